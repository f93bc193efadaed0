"""Single frames through the programs of a running softswitch: made for a 5-tuple, run as they came in on an interface, and read back."""

from __future__ import annotations

import struct

from shunt.net import Endpoint, FiveTuple
from tests.dataplane.lab import MAC_A, MAC_RA
from tests.softswitch import testrun
from tests.softswitch.process import Softswitch

PASS, DROP, REDIRECT = testrun.XDP_PASS, testrun.XDP_DROP, testrun.XDP_REDIRECT


def ones_sum(data: bytes) -> int:
    """The one's complement sum of 16-bit words (RFC 1071)."""
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def frame(key: FiveTuple, payload: bytes = b"\x80\0" + bytes(10), checksum: str = "full", tag: int | None = None) -> bytes:
    """An Ethernet frame from host `a` to the relay. checksum: of UDP, `full`, `wrong` or `none`. tag: 802.1Q, with priority and VLAN."""
    (saddr, sport), (daddr, dport) = key
    length = 8 + len(payload)
    udp = struct.pack("!HHHH", sport, dport, length, 0)
    check = 0 if checksum == "none" else ~ones_sum(saddr + daddr + struct.pack("!HH", 17, length) + udp + payload) & 0xFFFF or 0xFFFF
    if checksum == "wrong":
        check ^= 0x0101
    if len(saddr) == 4:
        header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + length, 0, 0x4000, 64, 17, 0, saddr, daddr)
        header = header[:10] + struct.pack("!H", ~ones_sum(header) & 0xFFFF) + header[12:]
        kind = 0x0800
    else:
        header = struct.pack("!IHBB16s16s", 0x60000000, length, 17, 64, saddr, daddr)
        kind = 0x86DD
    ethernet = bytes.fromhex((MAC_RA + MAC_A).replace(":", "")) + (b"" if tag is None else struct.pack("!HH", 0x8100, tag))
    return ethernet + struct.pack("!H", kind) + header + udp[:6] + struct.pack("!H", check) + payload


def ends(out: bytes) -> tuple[Endpoint, Endpoint]:
    """Source and destination of an untagged frame."""
    size, addresses = (4, 26) if out[12:14] == b"\x08\x00" else (16, 22)
    sport, dport = struct.unpack_from("!HH", out, addresses + 2 * size)
    return Endpoint(out[addresses : addresses + size], sport), Endpoint(out[addresses + size : addresses + 2 * size], dport)


def run(softswitch: Softswitch, given: bytes, program: str = "relay_native", *, ingress: str | None = "ra", repeat: int = 1) -> tuple[int, bytes]:
    """Run a pinned program on a frame that came in on an interface; its verdict and the frame afterwards."""
    with testrun.pinned(softswitch.pin_dir, program, softswitch.namespace) as found:
        done = found.run(given, ingress=ingress, repeat=repeat)
    return done.verdict, done.frame


def send(softswitch: Softswitch, key: FiveTuple, payload: bytes = b"\x80\0" + bytes(10), program: str = "relay_native") -> tuple[int, tuple[Endpoint, Endpoint] | None]:
    """Run a packet of this key; the verdict and, when redirected, where it goes."""
    verdict, out = run(softswitch, frame(key, payload), program)
    return verdict, ends(out) if verdict == REDIRECT else None
