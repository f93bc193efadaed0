"""The plain side of two sessions: what one browser's edge socket sends goes to the other's, as a data plane would do it."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

Address = tuple[str, int]
# A packet to what goes on in its place; None: it is lost.
Change = Callable[[bytes], bytes | None]


def keep(packet: bytes) -> bytes | None:
    """The packet as it is."""
    return packet


def is_rtcp(packet: bytes) -> bool:
    """Whether a packet is RTCP (RFC 5761 section 4)."""
    return len(packet) > 1 and 192 <= packet[1] <= 223


@dataclass
class Leg:
    """A medium of one session: the edge's plain address and the socket that stands for the conference's."""

    edge: Address
    sock: socket.socket
    packets: list[bytes] = field(default_factory=list)

    @property
    def rtp(self) -> str:
        """Where the edge is to send."""
        host, port = self.sock.getsockname()
        return f"{host}:{port}"


class Plane:
    """Legs that are joined in pairs, each way with a change."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._pairs: dict[int, tuple[Leg, Leg | None, Change]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def leg(self, edge: str) -> Leg:
        """A leg for a plain address of the edge."""
        host, _, port = edge.rpartition(":")
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        leg = Leg((host, int(port)), sock)
        self.join(leg, None)
        self._selector.register(sock, selectors.EVENT_READ)
        return leg

    def join(self, sender: Leg, receiver: Leg | None, change: Change = keep) -> None:
        """What comes from one goes to the other from now on."""
        self._pairs[sender.sock.fileno()] = (sender, receiver, change)

    def _run(self) -> None:
        while not self._stopped.is_set():
            for key, _ in self._selector.select(0.1):
                sender, receiver, change = self._pairs[key.fd]
                for _ in range(64):
                    try:
                        packet = sender.sock.recv(65536)
                    except OSError:
                        break
                    sender.packets.append(packet)
                    if receiver is not None and (changed := change(packet)) is not None:
                        receiver.sock.sendto(changed, receiver.edge)

    def __enter__(self) -> Plane:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(5)
        for sender, _, _ in self._pairs.values():
            sender.sock.close()
        self._selector.close()
