"""Conferences on a bridge of real processes: who enters, and what everybody has then received."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.conference_control.lab import Bridge, Party, await_that, unbroken

OWN_SSRC = 1  # in whose name the agent asks for key frames, and passes reports on

NEEDS = [
    pytest.mark.netns,
    pytest.mark.usefixtures("agent_binary"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


def enter(room: Bridge, host: str, name: str, **more: str) -> Party:
    party = room.party(host, name)
    party.talk(room.join(party, **more))
    return party


def three(room: Bridge) -> list[Party]:
    """Three who hear each other: behind the NAT, and two in the open."""
    parties = [enter(room, host, name) for host, name in (("caller", "ann"), ("callee", "bob"), ("natcaller", "cem"))]
    room.await_design("NRA")
    for one in parties:
        one.await_packets(*(other for other in parties if other is not one))
    return parties


def accounted(parties: list[Party]) -> None:
    """Everybody has received everybody else without a gap to the end, each packet once, and never itself."""
    for one in parties:
        one.hush()
    await_that(lambda: all(one.received(other)[-1:] == [other.sent - 1] for one in parties for other in parties if other is not one))
    for one in parties:
        assert one.ssrc not in one.got, f"{one.name} hears itself"
        for other in parties:
            if other is not one:
                numbers = one.received(other)
                assert unbroken(numbers), f"{one.name} of {other.name}: {numbers[:3]}..{numbers[-3:]}, {len(numbers)} of {numbers[-1] - numbers[0] + 1 if numbers else 0}"
                assert numbers[-1] == other.sent - 1, f"{one.name} of {other.name}: the last is {numbers[-1]} of {other.sent}"


def need(server: str) -> None:
    """Skips the test where this SIP server is not installed: kamailio or opensips."""
    if shutil.which(server) is None:
        pytest.skip("OpenSIPS is not installed" if server == "opensips" else f"{server} is not installed")
