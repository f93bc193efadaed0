"""Frames that are not what they say: each is replicated whole or goes up as it came."""

from __future__ import annotations

import random

import pytest

from shunt.net import Endpoint, FiveTuple
from shunt_softswitch import layout, libbpf
from shunt_softswitch.replication import Action, StreamKey
from tests.dataplane.lab import HOST_A4, RELAY_A4
from tests.replication.conftest import Bridge, rtp
from tests.replication.test_copies import frame

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
    parties = [bridge.party(rid, 7) for rid in (1, 2)]
    bridge.replication.insert_tree(5, [(party.rid, None) for party in parties])
    key = StreamKey(FiveTuple(Endpoint.of(HOST_A4, 5000), Endpoint.of(RELAY_A4, 6000)), 9)
    bridge.replication.insert_stream(key, Action(5, 0, 0, 0, 7, to_agent=True))
    mode = bridge.plane.interfaces()[0][2]
    program = bridge.replication.program(mode == "generic", False)
    verdicts: dict[str, int] = {}
    # A checksum that the sender left to the hardware is completed in the packet: these have a full one.
    for given in mutations(frame(key.flow, rtp(1, 9), "full", tag), 3000):
        run = libbpf.test_run(program, given)
        verdict = layout.VERDICTS[run.retval]
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
        assert verdict in ("pass", "redirect"), given.hex()
        if verdict == "pass":
            assert run.packet == given, given.hex()
        else:
            assert run.packet[12:14] == b"\xff\xff" and len(run.packet) == len(given) - (4 if tag is not None else 0)
    assert verdicts["pass"] > 1000 and verdicts["redirect"] > 300, verdicts
    counted = bridge.replication.count_stream(key)
    assert counted.packets == verdicts["redirect"] and counted.lost == 0
