"""What a vector is, and the scene that all vectors share.

The scene: host A behind port A, host B behind port B, the relay server behind port SERVER, and the data plane in
front of it. A switch stands between them all. The softswitch runs on the relay server itself, so whatever a
switch sends to the SERVER or CPU port, or drops, the softswitch hands to its own kernel, untouched.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from scapy.packet import Packet

from shunt.net import Endpoint, FiveTuple
from tests.tools.entry import LearnNotice, MediaRange, RelayEntry

RELAY_A4, HOST_A4 = "10.1.0.1", "10.1.0.2"
RELAY_B4, HOST_B4 = "10.2.0.1", "10.2.0.2"
RELAY_A6, HOST_A6 = "fd01::1", "fd01::2"
RELAY_B6, HOST_B6 = "fd02::1", "fd02::2"
# The side of the relay (or switch) and of the host on each of the two links.
MAC_RA, MAC_A, MAC_RB, MAC_B = (f"02:00:00:00:00:{n}" for n in ("a1", "a2", "b1", "b2"))
# Between the switch and the relay server.
MAC_RS, MAC_S = "02:00:00:00:00:c1", "02:00:00:00:00:c2"
# A next hop that is reached with a tag.
MAC_RT, MAC_T, TAG = "02:00:00:00:00:d1", "02:00:00:00:00:d2", 300
TAGGED_NET4, TAGGED_NET6 = "10.3.0.0/16", "fd03::/64"

MEDIA_FIRST, MEDIA_LAST = 20_000, 29_999
RTP = bytes.fromhex("8000123400000140deadbeef") + bytes(range(160))
RTCP = bytes.fromhex("81c9000700000001") + bytes(24)


class Port(enum.IntEnum):
    """The switch's ports in the scene."""

    A = 1
    B = 2
    SERVER = 3
    CPU = 64


class Else(enum.Enum):
    """What becomes of a packet that is not relayed. On the softswitch all of them are: handed up untouched."""

    SERVER = "routed on: next hop's addresses, one off the time to live"
    SERVER_LAST_HOP = "routed on to the relay with its time to live as it is: there is nothing left to take off"
    CPU = "to the switch's CPU as it came"
    DROP = "nowhere"


@dataclass(frozen=True)
class Vector:
    """One packet in, on a port, and what has to come out.

    out: the port and the exact frame that leaves it; or what becomes of a packet that is not relayed.
    learn: the notice that has to be raised; None says that none may be.
    switch_out: where a switch has to do otherwise than the softswitch, with the reason in `why`.
    only: "switch" for what the softswitch leaves to its kernel.
    exact: needs the key stored as it is; with a hashed build the agent keeps one of the entries out.
    """

    name: str
    sent: Callable[[], Packet | bytes]
    out: tuple[Port, Callable[[], Packet]] | Else
    learn: LearnNotice | None = None
    port: Port = Port.A
    only: str | None = None
    switch_out: tuple[Port, Callable[[], Packet]] | Else | None = None
    why: str = ""
    exact: bool = False

    @property
    def on_switch(self) -> tuple[Port, Callable[[], Packet]] | Else:
        return self.out if self.switch_out is None else self.switch_out

    @property
    def frame(self) -> bytes:
        """The frame that goes in."""
        return bytes(self.sent())


def added(*words: int) -> int:
    """One's complement sum of 16-bit words (RFC 1071)."""
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def routed(frame: bytes, hop: NextHop, *, keep_ttl: bool = False) -> bytes:
    """The frame as a router sends it on to a next hop: its addresses and tag, one off the time to live.

    A header checksum that was wrong is as wrong afterwards (RFC 1624).
    """
    body = bytearray(frame[12:])
    tag = b""
    if body[:2] == b"\x81\x00":
        tag, body = bytes(body[:4]), body[4:]
    if not keep_ttl:
        if body[:2] == b"\x08\x00":
            old = int.from_bytes(body[10:12], "big")
            check = int.from_bytes(body[12:14], "big")
            body[10] -= 1
            new = int.from_bytes(body[10:12], "big")
            body[12:14] = (0xFFFF ^ added(0xFFFF ^ check, 0xFFFF ^ old, new)).to_bytes(2, "big")
        else:
            body[9] -= 1
    priority = int.from_bytes(tag[2:4], "big") & 0xF000 if tag else 0
    tag = b"\x81\x00" + (priority | hop.vlan).to_bytes(2, "big") if hop.vlan else b""
    return bytes.fromhex((hop.dst_mac + hop.src_mac).replace(":", "")) + tag + bytes(body)


def of_host(frame: bytes, ttl: int = 64) -> bytes:
    """The frame with the time to live that a host gives its own packets, as the softswitch sends it: a switch takes one off instead."""
    body = bytearray(frame)
    at = 18 if body[12:14] == b"\x81\x00" else 14
    if body[at - 2 : at] == b"\x08\x00":
        old, check = (int.from_bytes(body[at + n : at + n + 2], "big") for n in (8, 10))
        body[at + 8] = ttl
        new = int.from_bytes(body[at + 8 : at + 10], "big")
        body[at + 10 : at + 12] = (0xFFFF ^ added(0xFFFF ^ check, 0xFFFF ^ old, new)).to_bytes(2, "big")
    elif body[at - 2 : at] == b"\x86\xdd":
        body[at + 7] = ttl
    return bytes(body)


def ep(text: str) -> Endpoint:
    return Endpoint.parse(text)


def entry(src: str, relay: str, out: str, dst: str, **more: int) -> RelayEntry:
    """Packets src > relay leave as out > dst; all "address:port"."""
    return RelayEntry(FiveTuple(ep(src), ep(relay)), ep(out), ep(dst), **more)


MEDIA = [MediaRange(Endpoint.of(address, 0).addr, MEDIA_FIRST, MEDIA_LAST) for address in (RELAY_A4, RELAY_B4, RELAY_A6, RELAY_B6)]


@dataclass(frozen=True)
class NextHop:
    """Where a route leads: the port, the addresses of the frame, and its tag."""

    number: int
    port: Port
    src_mac: str
    dst_mac: str
    vlan: int = 0


TO_A = NextHop(1, Port.A, MAC_RA, MAC_A)
TO_B = NextHop(2, Port.B, MAC_RB, MAC_B)
TO_SERVER = NextHop(3, Port.SERVER, MAC_RS, MAC_S)
TO_TAGGED = NextHop(4, Port.B, MAC_RT, MAC_T, TAG)
NEXTHOPS = [TO_A, TO_B, TO_SERVER, TO_TAGGED]

# Longest prefixes win: the relay's own addresses lie within the hosts' networks.
ROUTES = [
    ("10.1.0.0/16", TO_A), ("10.2.0.0/16", TO_B), (f"{RELAY_A4}/32", TO_SERVER), (f"{RELAY_B4}/32", TO_SERVER), (TAGGED_NET4, TO_TAGGED),
    ("fd01::/64", TO_A), ("fd02::/64", TO_B), (f"{RELAY_A6}/128", TO_SERVER), (f"{RELAY_B6}/128", TO_SERVER), (TAGGED_NET6, TO_TAGGED),
]  # fmt: skip
# The switch's own MAC address on each port, and an address that only its CPU can answer for.
ROUTED_MACS = [(Port.A, MAC_RA), (Port.B, MAC_RB), (Port.SERVER, MAC_RS)]
SWITCH_ADDRESS = "10.9.0.1"


def expected(vector: Vector) -> list[tuple[Port, bytes]]:
    """Every frame that has to come out of the switch, and where."""
    match vector.on_switch:
        case Else.SERVER:
            return [(Port.SERVER, routed(vector.frame, TO_SERVER))]
        case Else.SERVER_LAST_HOP:
            return [(Port.SERVER, routed(vector.frame, TO_SERVER, keep_ttl=True))]
        case Else.CPU:
            return [(Port.CPU, vector.frame)]
        case Else.DROP:
            return []
        case port, frame:
            return [(port, bytes(frame()))]
