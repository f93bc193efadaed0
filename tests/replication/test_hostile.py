"""Frames that are not what they say: each is replicated whole or goes up as it came."""

from __future__ import annotations

import random

import pytest

from shunt.net import Endpoint, FiveTuple
from tests.dataplane.lab import HOST_A4, RELAY_A4
from tests.dataplane.traffic import frame
from tests.replication.conftest import Bridge, rtp
from tests.softswitch import testrun
from tests.softswitch.replication import Action, StreamKey

pytestmark = pytest.mark.netns


def mutations(good: bytes, count: int) -> list[bytes]:
    """Frames cut off, lengthened, and with bytes changed, most of them in the headers."""
    draw = random.Random(4)
    found = [good[:length] for length in range(14, len(good))] + [good + bytes(n) for n in range(1, 64)]
    while len(found) < count:
        one = bytearray(good)
        for _ in range(draw.choice((1, 1, 2, 5))):
            one[draw.randrange(60 if draw.random() < 0.9 else len(one))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        found.append(bytes(one[: draw.choice((len(one), draw.randrange(14, len(one))))]))
    return found


@pytest.mark.parametrize("tag", [None, 5])
def test_nothing_is_half_done(bridge: Bridge, tag: int | None) -> None:
    participants = [bridge.participant(rid, 7) for rid in (1, 2)]
    bridge.replication.insert_tree(5, [(participant.rid, None) for participant in participants])
    key = StreamKey(FiveTuple(Endpoint.of(HOST_A4, 5000), Endpoint.of(RELAY_A4, 6000)), 9)
    bridge.replication.insert_stream(key, Action(5, 0, 0, 0, 7, to_agent=True))
    passed = taken = 0
    with testrun.attached("ra", bridge.softswitch.namespace) as program:
        # A checksum that the sender left to the hardware is completed in the packet: these have a full one.
        for given in mutations(frame(key.flow, rtp(1, 9), tag=tag), 3000):
            run = program.run(given, ingress="ra")
            if run.verdict == testrun.XDP_PASS:
                assert run.frame == given, given.hex()
                passed += 1
            else:
                assert run.verdict in (testrun.XDP_REDIRECT, testrun.XDP_DROP), given.hex()
                taken += 1
    assert passed > 1000 and taken > 300, (passed, taken)
    assert bridge.replication.count_stream(key).packets == taken
