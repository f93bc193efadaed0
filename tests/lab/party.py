"""Participants of conferences with real sockets: they send numbered RTP and note every packet that comes."""

from __future__ import annotations

import itertools
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.lab.processes import open_socket
from tests.lab.topology import LabError, Topology

_RCVBUFFORCE = 33
_GAP_S = 0.005
_LEAST = 40_000  # below, phones' ports are swallowed
_ssrcs = itertools.count(0x1000)


class Party:
    """A participant: one socket that sends numbered RTP to its relay address, and notes every packet that comes."""

    def __init__(self, topology: Topology, host: str, name: str, port: int = 0) -> None:
        self.name, self.host = name, host
        self.ssrc = next(_ssrcs)
        self.sent = 0
        self.payload_type = 96
        self.gap_s = _GAP_S  # between two packets
        self.got: dict[int, list[int]] = {}  # SSRC -> numbers, as they came
        self.sequences: dict[int, list[int]] = {}  # the same packets' sequence numbers
        self.types: dict[int, list[int]] = {}  # and payload types
        self.rtcp: list[bytes] = []
        self.rtcp_at: list[float] = []  # when each of them came, by time.perf_counter()
        self.stun: list[bytes] = []
        self.sources: set[tuple[str, int]] = set()
        self.relay: tuple[str, int] | None = None
        self.socket = open_socket(topology, host, socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 8 << 20)
        self.socket.bind(("0.0.0.0", port or _LEAST + self.ssrc % 1000 * 2))  # RTCP may come to the next port
        self._talking = threading.Event()
        self._sending = threading.Lock()
        self._over = threading.Event()
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._receiver = threading.Thread(target=self._receive, daemon=True)
        self._sender.start()
        self._receiver.start()

    def packet(self, number: int) -> bytes:
        """What it sends as the how many-th."""
        return struct.pack("!BBHIII", 0x80, self.payload_type, number & 0xFFFF, number * 160 & 0xFFFFFFFF, self.ssrc, number) + bytes(156)

    def number(self, data: bytes) -> int:
        """Which packet of its sender's this is, by the payload."""
        return int(struct.unpack_from("!I", data, 12)[0])

    def talk(self, relay: str) -> None:
        """Send to this address from now on."""
        host, _, port = relay.rpartition(":")
        self.relay = host, int(port)
        self._talking.set()

    def send_rtcp(self, data: bytes) -> None:
        """Once, from the socket of its media."""
        assert self.relay is not None
        self.socket.sendto(data, self.relay)

    def hush(self) -> None:
        """Send no more; on an idle machine what was sent has arrived afterwards."""
        with self._sending:
            self._talking.clear()
        time.sleep(0.1)

    def close(self) -> None:
        self._over.set()
        self._talking.set()
        self._sender.join()
        self._receiver.join()
        self.socket.close()

    def _send(self) -> None:
        while True:
            self._talking.wait()
            if self._over.is_set():
                return
            with self._sending:
                if self._talking.is_set():
                    assert self.relay is not None
                    self.socket.sendto(self.packet(self.sent), self.relay)
                    self.sent += 1
            time.sleep(self.gap_s)

    def _receive(self) -> None:
        while not self._over.is_set():
            if not select.select([self.socket], [], [], 0.05)[0]:
                continue
            data, source = self.socket.recvfrom(2048)
            if data[0] < 4:
                self.stun.append(data)
                continue
            if 192 <= data[1] <= 223:
                self.rtcp_at.append(time.perf_counter())
                self.rtcp.append(data)
                continue
            sequence, ssrc = struct.unpack_from("!H4xI", data, 2)
            self.sources.add(source)
            self.got.setdefault(ssrc, []).append(self.number(data))
            self.sequences.setdefault(ssrc, []).append(sequence)
            self.types.setdefault(ssrc, []).append(data[1] & 0x7F)

    def received(self, other: Party) -> list[int]:
        """The numbers of another's packets, as they came."""
        return self.got.get(other.ssrc, [])

    def await_packets(self, *others: Party, seconds: float = 120.0) -> None:
        """Wait until packets of all of these have come. Raises LabError."""
        deadline = time.monotonic() + seconds
        before = {other.ssrc: len(self.received(other)) for other in others}
        while time.monotonic() < deadline:
            if all(len(self.received(other)) > before[other.ssrc] + 2 for other in others):
                return
            time.sleep(0.01)
        raise LabError(f"{self.name} gets no packets of {[other.name for other in others if len(self.received(other)) <= before[other.ssrc] + 2]}")


def await_that(holds: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Wait until it holds, for so long; whether it does."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def come_to_rest(count: Callable[[], Any], seconds: float = 120.0) -> bool:
    """Wait until a count no longer changes: packets that are under way come in yet. Whether it has come to rest within so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        before = count()
        time.sleep(0.2)
        if count() == before:
            return True
    return False


def unbroken(numbers: list[int]) -> bool:
    """Whether these are consecutive numbers, each once and in order."""
    return bool(numbers) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def holes(numbers: list[int]) -> list[tuple[int, int]]:
    """The pairs of neighbours that are not consecutive, for a message: what was lost, doubled or out of order."""
    return [pair for pair in itertools.pairwise(numbers) if pair[1] != pair[0] + 1]
