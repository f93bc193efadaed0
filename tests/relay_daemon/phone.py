"""A party of a call: one UDP socket that sends RTP or RTCP and hears what arrives."""

from __future__ import annotations

import select
import socket
import struct
import time

Place = tuple[str, int]


class Phone:
    """Sequence numbers go on from packet to packet."""

    def __init__(self, ip: str, port: int = 0, ssrc: int = 0x11111111) -> None:
        self.sock = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((ip, port))
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.ip, self.port = self.sock.getsockname()[:2]
        self.ssrc, self.seq = ssrc, 1000

    @property
    def place(self) -> Place:
        return self.ip, self.port

    def rtp(self, to: Place, size: int = 160) -> bytes:
        """Send one packet; its bytes."""
        packet = struct.pack("!BBHII", 0x80, 0, self.seq & 0xFFFF, self.seq * 160 & 0xFFFFFFFF, self.ssrc) + b"x" * size
        self.seq += 1
        self.sock.sendto(packet, to)
        return packet

    def rtcp(self, to: Place) -> bytes:
        """Send a sender report; its bytes."""
        packet = struct.pack("!BBHI", 0x80, 200, 6, self.ssrc) + bytes(20)
        self.sock.sendto(packet, to)
        return packet

    def talk(self, to: Place, packets: int, interval: float = 0.02) -> list[bytes]:
        """Packets at a phone's pace."""
        sent = []
        for n in range(packets):
            if n:
                time.sleep(interval)
            sent.append(self.rtp(to))
        return sent

    def heard(self, count: int = 1, timeout: float = 60.0) -> list[tuple[bytes, Place]]:
        """What has arrived, with where it came from: `count` packets, or fewer when the time is up."""
        got: list[tuple[bytes, Place]] = []
        end = time.monotonic() + timeout
        while len(got) < count:
            ready, _, _ = select.select([self.sock], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                break
            data, sender = self.sock.recvfrom(70_000)
            got.append((data, sender[:2]))
        return got

    def is_left_alone(self, seconds: float = 0.1) -> bool:
        """Whether nothing arrives for so long."""
        return not self.heard(1, seconds)


def plus(place: Place) -> Place:
    """The RTCP port of an RTP port."""
    return place[0], place[1] + 1
