"""Relayed packets and conference packets in one poll: the queue of an interface has one program for all that leaves by it."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from shunt.net import Endpoint, FiveTuple
from tests.dataplane import lab as lab_module
from tests.dataplane.lab import HOST_A4, RELAY_A4, RELAY_B4
from tests.dataplane.traffic import frame
from tests.replication.conftest import Bridge, drain, rtp
from tests.softswitch import bpf
from tests.softswitch.replication import Action, StreamKey
from tests.tools.entry import RelayEntry

pytestmark = pytest.mark.netns

_CONFERENCE, _RELAYED = 7000, 7001


def mixer(ifindex: int) -> int:
    """A program that sends each frame on with the lowest bit of its UDP destination port by chance; returns its file descriptor."""
    code = [
        (0x61, 7, 1, 0, 0),       # r7 = ctx->data
        (0x61, 8, 1, 4, 0),       # r8 = ctx->data_end
        (0xBF, 2, 7, 0, 0),       # r2 = r7
        (0x07, 2, 0, 0, 60),      # r2 += 60
        (0x2D, 2, 8, 8, 0),       # if r2 > r8 goto out
        (0x85, 0, 0, 0, 7),       # call get_prandom_u32
        (0x57, 0, 0, 0, 1),       # r0 &= 1
        (0x47, 0, 0, 0, _CONFERENCE & 0xFE),  # r0 |= the rest of the port's low byte
        (0x73, 7, 0, 37, 0),      # store it
        (0xB7, 1, 0, 0, ifindex), # r1 = ifindex
        (0xB7, 2, 0, 0, 0),       # r2 = 0
        (0x85, 0, 0, 0, 23),      # call redirect
        (0x95, 0, 0, 0, 0),       # return r0
        (0xB7, 0, 0, 0, 0),       # out: r0 = aborted
        (0x95, 0, 0, 0, 0),
    ]  # fmt: skip
    raw = b"".join(struct.pack("<BBhi", op, dst | src << 4, offset, value) for op, dst, src, offset, value in code)
    return bpf.load_xdp("mixer", raw)


@pytest.mark.parametrize("batch", [1, 2, 3, 16])
def test_each_is_rewritten_as_its_own_entry_says(bridge: Bridge, batch: int) -> None:
    participants = [bridge.participant(rid, 7) for rid in (1, 2, 3)]
    bridge.replication.insert_tree(5, [(participant.rid, None) for participant in participants])
    caller = Endpoint.of(HOST_A4, 5000)
    copied, relayed = (FiveTuple(caller, Endpoint.of(RELAY_A4, port)) for port in (_CONFERENCE, _RELAYED))
    bridge.replication.insert_stream(StreamKey(copied, 9), Action(5, 0, 0, 0, 7))
    callee, there = bridge.socket("b")
    assert bridge.plane.insert([RelayEntry(relayed, Endpoint.of(RELAY_B4, 7002), there)]) == [None]
    # Only with one of these an interface takes what is redirected to its peer.
    lab_module.sh("ip", "netns", "exec", bridge.lab.ns("relay"), "ethtool", "-K", "ra", "gro", "on")
    # Frames as a driver hands them over: `batch` of them in one go, relayed and conference ones in any order.
    with lab_module.inside(bridge.lab.ns("a")):
        program = mixer(socket.if_nametoindex("a0"))
        for _ in range(3):
            bpf.run_live(program, frame(copied, rtp(1, 9), checksum="none"), repeat=32 * batch, batch=batch)
    os.close(program)
    bridge.settled()
    got = drain(callee)
    assert set(got) == {(1, (RELAY_B4, 7002))}
    total = 96 * batch
    assert bridge.plane.stats([relayed])[relayed].packets == len(got)
    for participant in participants:
        assert drain(participant.socket) == [(1, (RELAY_B4, participant.relay.port))] * (total - len(got))
