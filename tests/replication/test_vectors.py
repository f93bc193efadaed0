"""The vectors of replication, run through the softswitch between two hosts."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator

import pytest

from tests.dataplane.lab import Lab
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.softswitch.replication import Action, Layer, Replication, Rewrite, StreamKey
from tests.vectors.model import Port, of_host
from tests.vectors.replication import LAYERS, PRUNES, RECEIVERS, STREAMS, TREES, VECTORS, Replicated, copies, nodes

pytestmark = pytest.mark.netns

_PATIENCE, _QUIET = 2.0, 0.02  # seconds


def fill(replication: Replication) -> None:
    """The tables of the vectors' scene."""
    for number, receivers in RECEIVERS.items():
        for receiver in receivers:
            replication.insert_copy(number, receiver.rid, Rewrite(receiver.out, receiver.here))
    for number, _, receiver in nodes():
        replication.insert_node(number, receiver.rid, [int(receiver.hop.port)], [])
    for mgid in TREES:
        replication.insert_tree(mgid, [(number, receiver.meeting) for number, tree, receiver in nodes() if tree == mgid])
    for l2_xid, ports in PRUNES.items():
        replication.set_prune(l2_xid, [int(port) for port in ports])
    for (layers, template), layer in LAYERS.items():
        replication.put_layer(layers, template, Layer(layer))
    for made in STREAMS:
        action = Action(made.mgid, made.l1_xid, made.rid, made.l2_xid, made.stream, bool(made.to_agent), made.trees, made.layers, made.extension, made.descriptor)
        replication.insert_stream(StreamKey(made.key, made.ssrc), action)


@pytest.fixture(scope="module")
def wires(_opened: tuple[Softswitch, Plane], lab: Lab) -> Iterator[dict[Port, socket.socket]]:
    """Packet sockets of both hosts, with the tables filled."""
    _, plane = _opened
    assert plane.replication is not None
    fill(plane.replication)
    sockets = {Port.A: lab.raw("a", "a0"), Port.B: lab.raw("b", "b0")}
    yield sockets
    for made in sockets.values():
        made.close()
    plane.replication.clear()


def is_copy(frame: bytes) -> bool:
    """UDP over either version of IP: what else hosts receive is their kernels' own."""
    return (frame[12:14] == b"\x08\0" and frame[23] == 17) or (frame[12:14] == b"\x86\xdd" and frame[20] == 17)


def received(sockets: dict[Port, socket.socket], expected: int) -> list[tuple[Port, bytes]]:
    """Copies that arrived: waits for as many, then until it is quiet."""
    found: list[tuple[Port, bytes]] = []
    ports = {made: port for port, made in sockets.items()}
    deadline = time.monotonic() + _PATIENCE
    while True:
        wait = _QUIET if len(found) >= expected else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(list(ports), [], [], wait)
        if not ready:
            return sorted(found)
        for made in ready:
            frame, address = made.recvfrom(65536)
            if address[2] != socket.PACKET_OUTGOING and is_copy(frame):
                found.append((ports[made], frame))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_vector(_opened: tuple[Softswitch, Plane], wires: dict[Port, socket.socket], vector: Replicated) -> None:
    wanted = [(port, of_host(frame)) for port, frame in copies(vector, [] if vector.passed else vector.to)]
    wires[Port.A].send(vector.frame)
    frames = received(wires, len(wanted))
    assert [(port.name, frame.hex()) for port, frame in frames] == [(port.name, frame.hex()) for port, frame in wanted]
    assert _opened[1].poll_packets() == ([vector.frame] if vector.to_agent else [])
