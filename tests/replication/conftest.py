"""Fixtures of the replication tests: a softswitch with room for conferences between two hosts, and senders and receivers of RTP."""

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
from tests.dataplane import lab as lab_module
from tests.dataplane.lab import HOST_A4, HOST_A6, HOST_B4, HOST_B6, RELAY_A4, RELAY_A6, RELAY_B4, RELAY_B6, Lab
from tests.softswitch.client import until
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.softswitch.replication import Action, Replication, Rewrite, StreamKey

COPIES = 1024
PORT = 0  # every node's: copies leave by their next hops
_RCVBUFFORCE = 33  # beyond the system's limit
_QUIET_S = 0.05
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
class Participant:
    """Where a participant receives, and the address that it gets copies from."""

    rid: int
    socket: socket.socket
    here: Endpoint
    relay: Endpoint

    def numbers(self) -> list[int]:
        return numbers(self.socket)


class Wires:
    """How many frames the hosts' interfaces have sent and received."""

    def __init__(self, lab: Lab) -> None:
        self._files = []
        for host in "ab":
            with lab_module.inside(lab.ns(host)):
                self._files.append(open("/proc/thread-self/net/dev", "rb", buffering=0))  # of this namespace, wherever it is read

    def frames(self) -> tuple[bytes, ...]:
        """Counters, to be compared."""
        for one in self._files:
            one.seek(0)
        return tuple(b"".join(line for line in one.read(1 << 16).splitlines() if b"0:" in line) for one in self._files)

    def close(self) -> None:
        for one in self._files:
            one.close()


@dataclass
class Bridge:
    """A softswitch with conferences between two hosts, a client of it, and what a test builds on it."""

    lab: Lab
    softswitch: Softswitch
    plane: Plane
    open_sockets: list[socket.socket] = field(default_factory=list)
    talkers: int = 0  # senders that are talking

    def __post_init__(self) -> None:
        self._wires = Wires(self.lab)

    @property
    def replication(self) -> Replication:
        assert self.plane.replication is not None
        return self.plane.replication

    def settled(self, quiet: float = _QUIET_S) -> None:
        """Wait until what was sent has arrived: until the hosts have been quiet for so long."""
        last = (self._wires.frames(), time.monotonic())

        def is_quiet() -> bool:
            nonlocal last
            now = (self._wires.frames(), time.monotonic())
            if now[0] != last[0]:
                last = now
            return now[1] - last[1] >= quiet

        until(is_quiet, "the hosts are quiet")

    def socket(self, host: str, version: int = 4, port: int | None = None) -> tuple[socket.socket, Endpoint]:
        """A UDP socket of host `a` or `b` with room for 15,000 packets."""
        ip = {("a", 4): HOST_A4, ("b", 4): HOST_B4, ("a", 6): HOST_A6, ("b", 6): HOST_B6}[host, version]
        number = next(_ports) if port is None else port
        made = roomy(self.lab.socket(host, ip, number))
        self.open_sockets.append(made)
        return made, Endpoint.of(ip, number)

    def receiver(self, rid: int, host: str = "b", version: int = 4) -> Participant:
        """A receiver that no table knows yet."""
        made, here = self.socket(host, version)
        relay = Endpoint.of({("a", 4): RELAY_A4, ("b", 4): RELAY_B4, ("a", 6): RELAY_A6, ("b", 6): RELAY_B6}[host, version], 20_000 + rid)
        return Participant(rid, made, here, relay)

    def participant(self, rid: int, number: int, host: str = "b", version: int = 4, *, node: int | None = None) -> Participant:
        """A receiver of the streams with this number: its socket, rewrite and node (in no tree yet)."""
        made = self.receiver(rid, host, version)
        self.replication.insert_copy(number, rid, Rewrite(made.relay, made.here))
        self.replication.insert_node(rid if node is None else node, rid, [PORT])
        return made

    def sender(self, ssrc: int, version: int = 4) -> tuple["Sender", StreamKey]:
        """A sender on host `a`, not replicated yet."""
        made, here = self.socket("a", version)
        relay = Endpoint.of(RELAY_A4 if version == 4 else RELAY_A6, 6_000 + ssrc % 1000)
        return Sender(self, made, relay, ssrc), StreamKey(FiveTuple(here, relay), ssrc)

    def stream(self, ssrc: int, action: Action, version: int = 4) -> "Sender":
        """A replicated sender on host `a`."""
        sender, key = self.sender(ssrc, version)
        self.replication.insert_stream(key, action)
        return sender

    def restart(self, **changes: object) -> None:
        """Restart the process, with these attributes of it changed, and connect again."""
        self.softswitch.stop()
        for name, value in changes.items():
            setattr(self.softswitch, name, value)
        self.softswitch.start()
        self.plane.reconnect()

    def close_sockets(self) -> None:
        for one in self.open_sockets:
            one.close()
        self._wires.close()


@dataclass
class Sender:
    """Sends numbered RTP packets to the relay."""

    bridge: Bridge
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

    def goes_on(self, count: int = 20) -> None:
        """Wait until so many packets more have been sent, while it is talking."""
        goal = self.sent + count
        until(lambda: self.sent >= goal, f"packet {goal}")

    @contextlib.contextmanager
    def talking(self, gap: float = 0.0002) -> Iterator[None]:
        """Send in the background, without a pause, for as long as the block runs. Behind the last such block all packets have arrived."""
        stop = threading.Event()

        def run() -> None:
            while not stop.is_set():
                self.send(gap=gap)

        thread = threading.Thread(target=run)
        thread.start()
        self.bridge.talkers += 1
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.bridge.talkers -= 1
            if not self.bridge.talkers:
                self.bridge.settled()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    reason = lab_module.missing()
    if reason:
        pytest.skip(reason)
    with lab_module.build("r") as made:
        yield made


@pytest.fixture(scope="module", params=["native", "generic"])
def _opened(request: pytest.FixtureRequest, lab: Lab) -> Iterator[tuple[Softswitch, Plane]]:
    lab.fix_neighbours()
    with Softswitch(["ra", "rb"], namespace=lab.ns("relay"), capacity=4096, mode=request.param, mismatch="pass", conference_copies=COPIES) as process, Plane(process.target) as plane:
        yield process, plane


@pytest.fixture
def bridge(_opened: tuple[Softswitch, Plane], lab: Lab) -> Iterator[Bridge]:
    """Empty tables; everything is removed again afterwards."""
    made = Bridge(lab, *_opened)
    yield made
    made.close_sockets()
    made.replication.clear()
    made.plane.poll_packets()
    made.plane.clear()
