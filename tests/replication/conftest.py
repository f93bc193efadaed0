"""Fixtures of the replication tests: a data plane with room for conferences between two hosts, and senders and receivers of RTP."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from shunt.net import Endpoint, FiveTuple
from shunt_softswitch.dataplane import DataPlane
from shunt_softswitch.replication import Action, Replication, Rewrite, StreamKey
from tests.dataplane import lab as lab_module
from tests.dataplane.lab import HOST_A4, HOST_A6, HOST_B4, HOST_B6, MAC_A, MAC_B, RELAY_A4, RELAY_A6, RELAY_B4, RELAY_B6, Lab

COPIES = 1024
PORT = 0  # every node's: copies leave by their next hops
_RCVBUFFORCE = 33  # beyond the system's limit
_ports = itertools.count(40_000)


def rtp(seq: int, ssrc: int, size: int = 172) -> bytes:
    """An RTP packet whose payload says its number."""
    return struct.pack("!BBHII", 0x80, 96, seq & 0xFFFF, seq * 160 & 0xFFFFFFFF, ssrc) + struct.pack("!I", seq) + bytes(size - 16)


def roomy(made: socket.socket) -> socket.socket:
    """With room for 15,000 packets."""
    made.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 32 << 20)
    return made


def drain(receiver: socket.socket) -> list[tuple[int, tuple[str, int]]]:
    """Numbers of the packets that wait in a socket, each with its source."""
    found = []
    receiver.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            data, source = receiver.recvfrom(4096)
            found.append((struct.unpack_from("!I", data, 12)[0], (source[0], source[1])))
    return found


def numbers(receiver: socket.socket) -> list[int]:
    return [number for number, _ in drain(receiver)]


@dataclass
class Party:
    """A participant: where it receives, and the address that it gets copies from."""

    rid: int
    socket: socket.socket
    here: Endpoint
    relay: Endpoint

    def numbers(self) -> list[int]:
        return numbers(self.socket)


@dataclass
class Bridge:
    """A data plane with conferences, in the namespace of the relay, and what a test builds on it."""

    lab: Lab
    plane: DataPlane
    open_sockets: list[socket.socket] = field(default_factory=list)

    @property
    def replication(self) -> Replication:
        assert self.plane.replication is not None
        return self.plane.replication

    def socket(self, host: str, version: int = 4, port: int | None = None) -> tuple[socket.socket, Endpoint]:
        """A UDP socket of host `a` or `b` with room for 15,000 packets."""
        ip = {("a", 4): HOST_A4, ("b", 4): HOST_B4, ("a", 6): HOST_A6, ("b", 6): HOST_B6}[host, version]
        number = next(_ports) if port is None else port
        made = roomy(self.lab.socket(host, ip, number))
        self.open_sockets.append(made)
        return made, Endpoint.of(ip, number)

    def party(self, rid: int, number: int, host: str = "b", version: int = 4, *, node: int | None = None) -> Party:
        """A receiver of the streams with this number: its socket, rewrite and node (in no tree yet)."""
        made, here = self.socket(host, version)
        relay = Endpoint.of({("a", 4): RELAY_A4, ("b", 4): RELAY_B4, ("a", 6): RELAY_A6, ("b", 6): RELAY_B6}[host, version], 20_000 + rid)
        self.replication.insert_copy(number, rid, Rewrite(relay, here))
        self.replication.insert_node(rid if node is None else node, rid, [PORT], [])
        return Party(rid, made, here, relay)

    def sender(self, ssrc: int, version: int = 4) -> tuple["Sender", StreamKey]:
        """A sender on host `a`, not replicated yet."""
        made, here = self.socket("a", version)
        relay = Endpoint.of(RELAY_A4 if version == 4 else RELAY_A6, 6_000 + ssrc % 1000)
        return Sender(made, relay, ssrc), StreamKey(FiveTuple(here, relay), ssrc)

    def stream(self, ssrc: int, action: Action, version: int = 4) -> "Sender":
        """A replicated sender on host `a`."""
        sender, key = self.sender(ssrc, version)
        self.replication.insert_stream(key, action)
        return sender


@dataclass
class Sender:
    """Sends numbered RTP packets to the relay."""

    socket: socket.socket
    relay: Endpoint
    ssrc: int
    sent: int = 0

    def send(self, count: int = 1, *, size: int = 172, gap: float = 0.0002) -> None:
        ip, port = str(self.relay.ip), self.relay.port
        for _ in range(count):
            self.socket.sendto(rtp(self.sent, self.ssrc, size), (ip, port))
            self.sent += 1
            if gap:
                time.sleep(gap)

    @contextlib.contextmanager
    def talking(self, gap: float = 0.0002) -> Iterator[None]:
        """Send in the background, without a pause, for as long as the block runs."""
        stop = threading.Event()

        def run() -> None:
            while not stop.is_set():
                self.send(gap=gap)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            time.sleep(0.05)


def settled(seconds: float = 0.05) -> None:
    """Wait until what was sent has arrived."""
    time.sleep(seconds)


def follow(bridge: Bridge) -> None:
    """Let the data plane hear of what changed."""
    for _ in range(20):
        bridge.plane.handle_events()
        time.sleep(0.005)


def fix_neighbours() -> None:
    """Permanent neighbours, so that no packet waits for one to be resolved."""
    for interface, address, mac in (("ra", HOST_A4, MAC_A), ("ra", HOST_A6, MAC_A), ("rb", HOST_B4, MAC_B), ("rb", HOST_B6, MAC_B)):
        lab_module.sh("ip", "neigh", "replace", address, "lladdr", mac, "dev", interface, "nud", "permanent")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    reason = lab_module.missing()
    if reason:
        pytest.skip(reason)
    with lab_module.build("r") as made:
        yield made


@pytest.fixture(scope="module", params=["native", "generic"])
def _opened(request: pytest.FixtureRequest, lab: Lab) -> Iterator[DataPlane]:
    with lab_module.inside(lab.ns("relay")):
        fix_neighbours()
        opened = DataPlane.open(interfaces=["ra", "rb"], capacity=4096, pin_dir=str(lab.pins), mode=request.param, copies=COPIES)
        try:
            yield opened
        finally:
            opened.unload()


@pytest.fixture
def bridge(_opened: DataPlane, lab: Lab) -> Iterator[Bridge]:
    """Empty tables; everything is taken out again afterwards."""
    made = Bridge(lab, _opened)
    yield made
    for one in made.open_sockets:
        one.close()
    made.replication.clear()
    made.replication.poll_agent(1 << 20)
    made.plane.clear()
