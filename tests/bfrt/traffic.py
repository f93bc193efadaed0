"""Frames that carry UDP, run through the softswitch's program: how a test lets entries be used and flows be learned."""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import subprocess
from collections.abc import Iterator

from shunt.net import FiveTuple
from tests.softswitch.process import Softswitch
from tests.softswitch.testrun import Run, attached, pinned

INTERFACE, MAC, PEER_MAC = "in0", "02:00:00:00:91:01", "02:00:00:00:91:02"
_SET_UP = f"""link set lo up
link add {INTERFACE} address {MAC} numrxqueues 1 type veth peer name out0 address {PEER_MAC}
link set {INTERFACE} up
link set out0 up
address add 10.91.1.1/24 dev {INTERFACE}
address add fd91::1/64 dev {INTERFACE} nodad
neigh replace 10.91.1.2 lladdr {PEER_MAC} dev {INTERFACE} nud permanent
neigh replace fd91::2 lladdr {PEER_MAC} dev {INTERFACE} nud permanent
route add default via 10.91.1.2
route add default via fd91::2
"""
_numbers = itertools.count()


def rtp(ssrc: int = 0x1234, seq: int = 1, size: int = 12) -> bytes:
    """An RTP packet of `size` bytes, payload type 0."""
    return struct.pack("!BBHII", 0x80, 0, seq, 0, ssrc).ljust(size, b"\0")


def frame(key: FiveTuple, payload: bytes) -> bytes:
    """An Ethernet frame to the softswitch's interface with a UDP datagram in it. Addresses are of one IP version."""
    src, dst = key
    datagram = struct.pack("!HHHH", src.port, dst.port, 8 + len(payload), 0) + payload
    pseudo = src.addr + dst.addr + struct.pack("!II", len(datagram), 17)
    checksum = _sum(pseudo + datagram) or 0xFFFF
    datagram = datagram[:6] + checksum.to_bytes(2, "big") + datagram[8:]
    if src.version == 4:
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(datagram), 7, 0x4000, 64, 17, 0) + src.addr + dst.addr
        head = head[:10] + _sum(head).to_bytes(2, "big") + head[12:]
    else:
        head = struct.pack("!IHBB", 6 << 28, len(datagram), 17, 64) + src.addr + dst.addr
    macs = (bytes.fromhex(mac.replace(":", "")) for mac in (MAC, PEER_MAC))
    return b"".join(macs) + (b"\x08\x00" if src.version == 4 else b"\x86\xdd") + head + datagram


def _sum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@contextlib.contextmanager
def namespace() -> Iterator[str]:
    """A network namespace with one end of a veth pair, INTERFACE, that has addresses and a default route; yields its name."""
    name = f"bfrt{os.getpid()}-{next(_numbers)}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "-batch", "-"], input=_SET_UP, text=True, check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


class Wire:
    """What arrives at the softswitch. Close it, or use it as a context manager."""

    def __init__(self, softswitch: Softswitch) -> None:
        """The softswitch runs: on INTERFACE, or on no interface; then frames arrive at the loopback."""
        self._ingress = INTERFACE if INTERFACE in softswitch.interfaces else None
        self._program = attached(INTERFACE, softswitch.namespace) if self._ingress else pinned(softswitch.pin_dir, "relay_native", softswitch.namespace)

    def receive(self, data: bytes) -> Run:
        """A frame arrives; the result is what the program does with it."""
        return self._program.run(data, ingress=self._ingress)

    def close(self) -> None:
        """Give up the program's handle."""
        self._program.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
