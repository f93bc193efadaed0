"""The vectors of the relay: which packets leave how, which go on to the relay server, and which are learned from."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import (
    ICMPv6EchoRequest, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6ND_RA, ICMPv6ND_Redirect, ICMPv6ND_RS, IPv6, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop,
)  # fmt: skip
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

from shunt.net import Endpoint, FiveTuple
from tests.tools.entry import LearnNotice, RelayEntry
from tests.vectors.model import (
    HOST_A4, HOST_A6, HOST_B4, HOST_B6, MAC_A, MAC_B, MAC_RA, MAC_RB, MAC_RS, MAC_S, MEDIA_FIRST, MEDIA_LAST, RELAY_A4, RELAY_A6, RELAY_B4, RELAY_B6,
    RTCP, RTP, SWITCH_ADDRESS, TO_A, TO_B, TO_TAGGED, Else, NextHop, Port, Vector, added, entry, ep, routed,
)  # fmt: skip

V4 = entry(f"{HOST_A4}:4000", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", f"{HOST_B4}:6000")
V4_RTCP = entry(f"{HOST_A4}:4001", f"{RELAY_A4}:20001", f"{RELAY_B4}:20003", f"{HOST_B4}:6001")
V4_SAME = entry(f"{HOST_A4}:4002", f"{RELAY_A4}:20100", f"{RELAY_A4}:20102", f"{HOST_B4}:6002")
V6 = entry(f"[{HOST_A6}]:4000", f"[{RELAY_A6}]:20000", f"[{RELAY_B6}]:20002", f"[{HOST_B6}]:6000")
V6_SAME = entry(f"[{HOST_A6}]:4002", f"[{RELAY_A6}]:20100", f"[{RELAY_A6}]:20102", f"[{HOST_B6}]:6002")
V4_TO_6 = entry(f"{HOST_A4}:4006", f"{RELAY_A4}:20006", f"[{RELAY_B6}]:20002", f"[{HOST_B6}]:6000")
V6_TO_4 = entry(f"[{HOST_A6}]:4004", f"[{RELAY_A6}]:20004", f"{RELAY_B4}:20002", f"{HOST_B4}:6000")
DSCP = entry(f"{HOST_A4}:4010", f"{RELAY_A4}:20010", f"{RELAY_B4}:20002", f"{HOST_B4}:6000", dscp=46)
DSCP_0 = entry(f"{HOST_A4}:4011", f"{RELAY_A4}:20011", f"{RELAY_B4}:20002", f"{HOST_B4}:6000", dscp=0)
DSCP_6 = entry(f"[{HOST_A6}]:4010", f"[{RELAY_A6}]:20010", f"[{RELAY_B6}]:20002", f"[{HOST_B6}]:6000", dscp=46)
DSCP_4_TO_6 = entry(f"{HOST_A4}:4014", f"{RELAY_A4}:20016", f"[{RELAY_B6}]:20002", f"[{HOST_B6}]:6000", dscp=34)
DSCP_6_TO_4 = entry(f"[{HOST_A6}]:4014", f"[{RELAY_A6}]:20016", f"{RELAY_B4}:20002", f"{HOST_B4}:6000", dscp=34)
HAIRPIN = entry(f"{HOST_A4}:4012", f"{RELAY_A4}:20012", f"{RELAY_A4}:20014", f"{HOST_A4}:6012")
SECOND = entry(f"{HOST_A4}:5000", f"{RELAY_A4}:20000", f"{RELAY_A4}:20002", f"{HOST_A4}:6001")
LAST_PORTS = entry(f"{HOST_A4}:65535", f"{RELAY_A4}:{MEDIA_LAST}", f"{RELAY_B4}:65535", f"{HOST_B4}:65535")
TAGGED = entry(f"{HOST_A4}:4030", f"{RELAY_A4}:20030", f"{RELAY_B4}:20002", "10.3.0.9:6000")
TAGGED_6 = entry(f"[{HOST_A6}]:4030", f"[{RELAY_A6}]:20030", f"[{RELAY_B6}]:20002", "[fd03::9]:6000")


def _collision() -> tuple[RelayEntry, RelayEntry]:
    """Two entries whose 5-tuples have the same CRC-32, the hash of the hash32 build.

    What the ports, its last four bytes, make of a CRC depends only on them XORed with what it was before them.
    """
    first = FiveTuple(ep(f"{HOST_A4}:4040"), ep(f"{RELAY_A4}:20040"))
    ports = int.from_bytes(struct.pack("!HH", first.src.port, first.dst.port), "little")
    for host in range(3, 250):
        addr = Endpoint.of(f"10.1.0.{host}", 0).addr
        changed = ports ^ zlib.crc32(first.src.addr + first.dst.addr) ^ zlib.crc32(addr + first.dst.addr)
        sport, dport = struct.unpack("!HH", changed.to_bytes(4, "little"))
        if MEDIA_FIRST <= dport <= MEDIA_LAST and sport:
            second = FiveTuple(Endpoint(addr, sport), Endpoint(first.dst.addr, dport))
            return RelayEntry(first, ep(f"{RELAY_B4}:20002"), ep(f"{HOST_B4}:6040")), RelayEntry(second, ep(f"{RELAY_B4}:20002"), ep(f"{HOST_B4}:6041"))
    raise AssertionError("no collision found")


COLLIDING, COLLIDING_TOO = _collision()

# Those that the softswitch's namespaces can route; the rest need a switch's routes.
ENTRIES = [V4, V4_RTCP, V4_SAME, V6, V6_SAME, V4_TO_6, V6_TO_4, DSCP, DSCP_0, DSCP_6, DSCP_4_TO_6, DSCP_6_TO_4, HAIRPIN, SECOND, LAST_PORTS, COLLIDING, COLLIDING_TOO]  # fmt: skip
SWITCH_ENTRIES = [*ENTRIES, TAGGED, TAGGED_6]

Fields = dict[str, object] | None


def packet(made: RelayEntry, payload: bytes = RTP, *, tag: Packet | None = None, ip: Fields = None, udp: Fields = None) -> Packet:
    """A packet that meets this entry, as host A sends it."""
    src, dst = made.key
    if src.version == 4:
        header: Packet = IP(**{"src": src.ip, "dst": dst.ip, "flags": "DF", "id": 7, **(ip or {})})
    else:
        header = IPv6(**{"src": src.ip, "dst": dst.ip, **(ip or {})})
    upper = header / UDP(**{"sport": src.port, "dport": dst.port, **(udp or {})}) / Raw(payload)
    return Ether(src=MAC_A, dst=MAC_RA) / (tag / upper if tag else upper)


def relayed(made: RelayEntry, payload: bytes = RTP, *, ip: Fields = None, udp: Fields = None, hop: NextHop = TO_B, tag: Packet | None = None) -> Packet:
    """What should leave: one hop fewer, everything else of the header as it was."""
    src, dst = made.src, made.dst
    if src.version == 4:
        usual = {"ttl": 63, "flags": "DF", "id": 7 if made.key.src.version == 4 else 0}
        header: Packet = IP(**{"src": src.ip, "dst": dst.ip, **usual, **(ip or {})})
    else:
        header = IPv6(**{"src": src.ip, "dst": dst.ip, "hlim": 63, **(ip or {})})
    upper = header / UDP(**{"sport": src.port, "dport": dst.port, **(udp or {})}) / Raw(payload)
    return Ether(src=hop.src_mac, dst=hop.dst_mac) / (tag / upper if tag else upper)


def _udp_at(version: int) -> int:
    return 34 if version == 4 else 54


def zero_sum(made: RelayEntry) -> bytes:
    """A payload with which the relayed packet's checksum comes out as 0, which has to be sent as ffff."""
    body = bytearray(RTP[:20])
    at = _udp_at(made.dst.version)
    check = int.from_bytes(bytes(relayed(made, bytes(body)))[at + 6 : at + 8], "big")
    body[18:20] = added(int.from_bytes(body[18:20], "big"), check).to_bytes(2, "big")
    return bytes(body)


def _damaged(frame: Packet, at: int, error: int = 0x0101) -> bytes:
    """The frame with the checksum at an offset off by an error, in one's complement."""
    raw = bytearray(bytes(frame))
    raw[at : at + 2] = added(int.from_bytes(raw[at : at + 2], "big"), error).to_bytes(2, "big")
    return bytes(raw)


def padded(frame: Packet) -> bytes:
    """With trailing bytes that fill an Ethernet frame up and belong to no header."""
    return bytes(frame) + b"\0" * 12


def flow(src: str, sport: int, dst: str, dport: int, payload: bytes = RTP, **more: Fields) -> Packet:
    """A packet of any 5-tuple."""
    return packet(RelayEntry(FiveTuple(Endpoint.of(src, sport), Endpoint.of(dst, dport)), ep("0.0.0.0:0"), ep("0.0.0.0:0")), payload, **more)


def notice(src: str, sport: int, dst: str, dport: int, payload: bytes = RTP) -> LearnNotice:
    """What has to be learned from such a packet."""
    first, second, seq, _, ssrc = struct.unpack("!BBHII", payload[:12]) if len(payload) >= 12 else (0, 0, 0, 0, 0)
    return LearnNotice(FiveTuple(Endpoint.of(src, sport), Endpoint.of(dst, dport)), first >> 6, second & 0x7F, seq, ssrc)


def _of(name: str, made: RelayEntry, payload: bytes = RTP, *, ip: Fields = None, udp: Fields = None, tag: Packet | None = None, out_ip: Fields = None,
        hop: NextHop = TO_B, out_tag: Packet | None = None, only: str | None = None, exact: bool = False) -> Vector:  # fmt: skip
    """A packet that is relayed; ip and udp also give the fields that come out, out_ip where they differ."""
    return Vector(
        name,
        lambda: packet(made, payload, ip=ip, udp=udp, tag=tag),
        (hop.port, lambda: relayed(made, payload, ip=ip if out_ip is None else out_ip, udp=udp, hop=hop, tag=out_tag)),
        only=only,
        exact=exact,
    )


def _miss(name: str, src: str, sport: int, dst: str, dport: int, payload: bytes = RTP, **more: Fields) -> Vector:
    """A packet to a media port without an entry of its own: learned from, and on to the relay."""
    return Vector(name, lambda: flow(src, sport, dst, dport, payload, **more), Else.SERVER, learn=notice(src, sport, dst, dport, payload))


def _else(name: str, sent: Callable[[], Packet | bytes], out: Else = Else.SERVER, **more: object) -> Vector:
    return Vector(name, sent, out, **more)  # type: ignore[arg-type]


RELAYED = [
    _of("IPv4 RTP", V4),
    _of("IPv4, the relay's address stays", V4_SAME),
    _of("IPv4 RTCP on the next port", V4_RTCP, RTCP),
    _of("IPv4, RTCP on the same port", V4, RTCP),
    _of("IPv4, not RTP at all", V4, b"\0\1\0\0\x21\x12\xa4\x42" + bytes(12)),
    _of("IPv4 without don't-fragment keeps its identification", V4, ip={"flags": 0, "id": 777}),
    _of("IPv4, odd length", V4, RTP[:171]),
    _of("IPv4, one byte of payload", V4, b"x"),
    _of("IPv4, no payload", V4, b""),
    _of("IPv4, eleven bytes of payload", V4, RTP[:11]),
    _of("IPv4, twelve bytes of payload", V4, RTP[:12]),
    _of("IPv4, 1400 bytes", V4, RTP[:12] + bytes(1388)),
    _of("IPv4, checksum 0 stays 0", V4, udp={"chksum": 0}),
    _of("IPv4, checksum that comes out as 0 is sent as ffff", V4, zero_sum(V4)),
    _of("IPv4, TOS and ECN kept", V4, ip={"tos": 0xB9}),
    _of("IPv4, DSCP set, ECN kept", DSCP, ip={"tos": 0x29}, out_ip={"tos": 46 << 2 | 1}),
    _of("IPv4, DSCP set to 0, ECN kept", DSCP_0, ip={"tos": 0xBB}, out_ip={"tos": 3}),
    _of("IPv4, TTL 2", V4, ip={"ttl": 2}, out_ip={"ttl": 1}),
    _of("IPv4, TTL 255", V4, ip={"ttl": 255}, out_ip={"ttl": 254}),
    _of("IPv4 with a tag leaves without", V4, tag=Dot1Q(vlan=100, prio=5)),
    _of("IPv4, back to where it came from", HAIRPIN, hop=TO_A),
    _of("IPv4, second source of one port", SECOND, hop=TO_A),
    _of("IPv4, highest ports", LAST_PORTS),
    _of("IPv4, first of two 5-tuples with one CRC-32", COLLIDING, exact=True),
    _of("IPv4, second of two 5-tuples with one CRC-32", COLLIDING_TOO, exact=True),
    Vector("IPv4, wrong UDP checksum stays as wrong", lambda: _damaged(packet(V4), 40), (Port.B, lambda: Raw(_damaged(relayed(V4), 40)))),
    Vector("IPv4, wrong header checksum stays as wrong", lambda: _damaged(packet(V4), 24), (Port.B, lambda: Raw(_damaged(relayed(V4), 24)))),
    Vector("IPv4, padding behind the packet stays", lambda: padded(packet(V4, b"abc")), (Port.B, lambda: Raw(padded(relayed(V4, b"abc"))))),
    _of("IPv6 RTP", V6),
    _of("IPv6, the relay's address stays", V6_SAME),
    _of("IPv6, odd length", V6, RTP[:23]),
    _of("IPv6, no payload", V6, b""),
    _of("IPv6, flow label and class kept", V6, ip={"tc": 0xB9, "fl": 0xABCDE}),
    _of("IPv6, DSCP set", DSCP_6, ip={"tc": 0x03}, out_ip={"tc": 46 << 2 | 3}),
    _of("IPv6, hop limit 2", V6, ip={"hlim": 2}, out_ip={"hlim": 1}),
    _of("IPv6, checksum that comes out as 0 is sent as ffff", V6, zero_sum(V6)),
    _of("IPv6 with a tag leaves without", V6, tag=Dot1Q(vlan=9)),
    Vector("IPv6, wrong UDP checksum stays as wrong", lambda: _damaged(packet(V6), 60), (Port.B, lambda: Raw(_damaged(relayed(V6), 60)))),
    _of("IPv4 to IPv6", V4_TO_6, ip={"tos": 0xB9}, out_ip={"tc": 0xB9}),
    _of("IPv4 to IPv6, odd length", V4_TO_6, RTP[:21], out_ip={}),
    _of("IPv4 to IPv6, no payload", V4_TO_6, b"", out_ip={}),
    _of("IPv4 to IPv6, TTL 2", V4_TO_6, ip={"ttl": 2}, out_ip={"hlim": 1}),
    _of("IPv4 to IPv6, DSCP set", DSCP_4_TO_6, ip={"tos": 0x01}, out_ip={"tc": 34 << 2 | 1}),
    _of("IPv4 to IPv6 with a tag", V4_TO_6, tag=Dot1Q(vlan=9)),
    _of("IPv4 to IPv6, checksum that comes out as 0 is sent as ffff", V4_TO_6, zero_sum(V4_TO_6), out_ip={}),
    Vector("IPv4 to IPv6, wrong UDP checksum stays as wrong", lambda: _damaged(packet(V4_TO_6), 40), (Port.B, lambda: Raw(_damaged(relayed(V4_TO_6), 60)))),
    Vector(
        "IPv4 to IPv6, checksum 0", lambda: packet(V4_TO_6, udp={"chksum": 0}), (Port.B, lambda: relayed(V4_TO_6)),
        switch_out=Else.SERVER, why="IPv6 must have a checksum, and a switch cannot add up a payload: the relay server carries such a stream",
    ),
    _of("IPv6 to IPv4", V6_TO_4, ip={"tc": 0xB9, "fl": 0x12345}, out_ip={"tos": 0xB9}),
    _of("IPv6 to IPv4, odd length", V6_TO_4, RTP[:19], out_ip={}),
    _of("IPv6 to IPv4, hop limit 255", V6_TO_4, ip={"hlim": 255}, out_ip={"ttl": 254}),
    _of("IPv6 to IPv4, DSCP set", DSCP_6_TO_4, ip={"tc": 0x02}, out_ip={"tos": 34 << 2 | 2}),
    _of("IPv6 to IPv4 with a tag", V6_TO_4, tag=Dot1Q(vlan=9)),
    _of("IPv6 to IPv4, checksum that comes out as 0 is sent as ffff", V6_TO_4, zero_sum(V6_TO_4), out_ip={}),
    _of("IPv4, next hop with a tag", TAGGED, hop=TO_TAGGED, out_tag=Dot1Q(vlan=TO_TAGGED.vlan), only="switch"),
    _of("IPv4, tagged in and out: the priority stays", TAGGED, hop=TO_TAGGED, tag=Dot1Q(vlan=7, prio=5), out_tag=Dot1Q(vlan=TO_TAGGED.vlan, prio=5), only="switch"),
    _of("IPv6, next hop with a tag", TAGGED_6, hop=TO_TAGGED, out_tag=Dot1Q(vlan=TO_TAGGED.vlan), only="switch"),
]  # fmt: skip

LEARNED = [
    _miss("miss at a media port", HOST_A4, 7000, RELAY_A4, 20500),
    _miss("miss at the other relay address", HOST_A4, 7000, RELAY_B4, 20500),
    _miss("miss, first media port", HOST_A4, 7001, RELAY_A4, MEDIA_FIRST),
    _miss("miss, last media port", HOST_A4, 7001, RELAY_A4, MEDIA_LAST),
    _miss("miss, marker bit set", HOST_A4, 7002, RELAY_A4, 20502, b"\x80\xff" + RTP[2:]),
    _miss("miss, RTCP", HOST_A4, 7003, RELAY_A4, 20503, RTCP),
    _miss("miss, STUN", HOST_A4, 7004, RELAY_A4, 20504, b"\0\1\0\0\x21\x12\xa4\x42" + bytes(12)),
    _miss("miss, eleven bytes of payload", HOST_A4, 7005, RELAY_A4, 20505, RTP[:11]),
    _miss("miss, twelve bytes of payload", HOST_A4, 7005, RELAY_A4, 20506, RTP[:12]),
    _miss("miss, no payload", HOST_A4, 7006, RELAY_A4, 20507, b""),
    _miss("miss, without a UDP checksum", HOST_A4, 7007, RELAY_A4, 20508, udp={"chksum": 0}),
    _miss("miss with a tag", HOST_A4, 7008, RELAY_A4, 20509, tag=Dot1Q(vlan=7)),
    _miss("miss, IPv6", HOST_A6, 7000, RELAY_A6, 20500),
    _miss("miss, IPv6, four bytes of payload", HOST_A6, 7001, RELAY_A6, 20501, b"abcd"),
    _miss("another source port at a port with an entry", HOST_A4, 4999, RELAY_A4, 20000),
    _miss("another source address at a port with an entry", "10.1.0.3", 4000, RELAY_A4, 20000),
    _miss("another source at a port with an entry, IPv6", "fd01::3", 4000, RELAY_A6, 20000),
    _miss("an entry's source at another media port", HOST_A4, 4000, RELAY_A4, 20700),
    _miss("an entry's source and port at another relay address", HOST_A4, 4000, RELAY_B4, 20000),
]  # fmt: skip

PASSED = [
    _else("port below the media ports", lambda: flow(HOST_A4, 7100, RELAY_A4, MEDIA_FIRST - 1)),
    _else("port above the media ports", lambda: flow(HOST_A4, 7100, RELAY_A4, MEDIA_LAST + 1)),
    _else("port above the media ports, IPv6", lambda: flow(HOST_A6, 7100, RELAY_A6, MEDIA_LAST + 1)),
    _else("TTL 1", lambda: packet(V4, ip={"ttl": 1}), Else.SERVER_LAST_HOP),
    _else("TTL 0", lambda: packet(V4, ip={"ttl": 0}), Else.SERVER_LAST_HOP),
    _else("TTL 1, IPv4 to IPv6", lambda: packet(V4_TO_6, ip={"ttl": 1}), Else.SERVER_LAST_HOP),
    _else("TTL 1 at a media port without an entry", lambda: flow(HOST_A4, 7101, RELAY_A4, 20600, ip={"ttl": 1}), Else.SERVER_LAST_HOP),
    _else("hop limit 1", lambda: packet(V6, ip={"hlim": 1}), Else.SERVER_LAST_HOP),
    _else("TTL 1 at another port", lambda: flow(HOST_A4, 7100, RELAY_A4, 5060, ip={"ttl": 1}), Else.CPU),
    _else("hop limit 1 at another port", lambda: flow(HOST_A6, 7100, RELAY_A6, 5060, ip={"hlim": 1}), Else.CPU),
    _else("IP options", lambda: packet(V4, ip={"options": [IPOption_NOP()] * 4})),
    _else("IP options at a port without an entry", lambda: flow(HOST_A4, 7102, RELAY_A4, 20601, ip={"options": [IPOption_NOP()] * 8})),
    _else("IP options and a wrong header checksum", lambda: _damaged(packet(V4, ip={"options": [IPOption_NOP()] * 4}), 24)),
    _else("first fragment", lambda: packet(V4, ip={"flags": "MF"})),
    _else("later fragment", lambda: packet(V4, ip={"flags": 0, "frag": 100})),
    _else("fragment at a port without an entry", lambda: flow(HOST_A4, 7103, RELAY_A4, 20602, ip={"flags": "MF"})),
    _else("IPv6 fragment", lambda: Ether(src=MAC_A, dst=MAC_RA) / IPv6(src=HOST_A6, dst=RELAY_A6) / IPv6ExtHdrFragment() / UDP(sport=4000, dport=20000) / Raw(RTP)),
    _else("IPv6 hop-by-hop options", lambda: Ether(src=MAC_A, dst=MAC_RA) / IPv6(src=HOST_A6, dst=RELAY_A6) / IPv6ExtHdrHopByHop() / UDP(sport=4000, dport=20000) / Raw(RTP)),
    _else("checksum 0 over IPv6", lambda: packet(V6, udp={"chksum": 0})),
    _else("checksum 0 over IPv6, to IPv4", lambda: packet(V6_TO_4, udp={"chksum": 0})),
    _else("checksum 0 over IPv6 at a port without an entry", lambda: flow(HOST_A6, 7104, RELAY_A6, 20603, udp={"chksum": 0})),
    _else("TCP", lambda: Ether(src=MAC_A, dst=MAC_RA) / IP(src=HOST_A4, dst=RELAY_A4) / TCP(sport=4000, dport=20000)),
    _else("ICMP", lambda: Ether(src=MAC_A, dst=MAC_RA) / IP(src=HOST_A4, dst=RELAY_A4) / ICMP()),
    _else("ICMPv6 echo", lambda: Ether(src=MAC_A, dst=MAC_RA) / IPv6(src=HOST_A6, dst=RELAY_A6) / ICMPv6EchoRequest()),
    _else("UDP length longer than the packet", lambda: packet(V4, udp={"len": 400})),
    _else("UDP length shorter than the packet", lambda: packet(V4, udp={"len": 20})),
    _else("UDP length below its header", lambda: packet(V4, udp={"len": 7})),
    _else("UDP length below its header, at a port without an entry", lambda: flow(HOST_A4, 7105, RELAY_A4, 20604, udp={"len": 7})),
    _else("UDP length longer than the packet, IPv6", lambda: packet(V6, udp={"len": 400})),
    _else("IPv4 length longer than the frame", lambda: packet(V4, ip={"len": 1000})),
    _else("IPv6 length longer than the frame", lambda: packet(V6, ip={"plen": 1000})),
    _else("cut off in the UDP header", lambda: bytes(packet(V4))[:38]),
    _else("cut off in the UDP header, IPv6", lambda: bytes(packet(V6))[:58]),
    _else("cut off in the RTP header", lambda: bytes(packet(V4))[:48]),
    _else("cut off in the RTP header, at a port without an entry", lambda: bytes(flow(HOST_A4, 7106, RELAY_A4, 20605))[:48]),
    Vector(
        "cut off behind the RTP header", lambda: bytes(packet(V4))[:100], Else.SERVER,
        switch_out=(Port.B, lambda: Raw(bytes(relayed(V4))[:100])),
        why="a switch begins to work on a packet before its end has arrived; the receiver drops what is cut off",
    ),
    _else("IPv4 to IPv6 with a wrong header checksum", lambda: _damaged(packet(V4_TO_6), 24)),
    _else("IP version 5", lambda: packet(V4, ip={"version": 5})),
    _else("cut off in the IPv4 header", lambda: bytes(packet(V4))[:30], Else.DROP),
    _else("cut off in the IPv6 header", lambda: bytes(packet(V6))[:50], Else.DROP),
    _else("cut off in the tag", lambda: bytes(packet(V4, tag=Dot1Q(vlan=1)))[:17], Else.DROP),
    _else("two tags", lambda: packet(V4, tag=Dot1Q(vlan=1) / Dot1Q(vlan=2)), Else.DROP),
    _else("broadcast frame", lambda: Ether(src=MAC_A, dst="ff:ff:ff:ff:ff:ff") / packet(V4).payload, Else.DROP),
    _else("broadcast frame to a port without an entry", lambda: Ether(src=MAC_A, dst="ff:ff:ff:ff:ff:ff") / flow(HOST_A4, 7107, RELAY_A4, 20606).payload, Else.DROP),
    _else("frame to another MAC address", lambda: Ether(src=MAC_A, dst="02:00:00:00:00:77") / flow(HOST_A4, 7108, RELAY_A4, 20607).payload, Else.DROP),
    _else("neither IP nor ARP", lambda: Ether(src=MAC_A, dst=MAC_RA, type=0x88B5) / Raw(bytes(50)), Else.DROP),
    _else("ARP request", lambda: Ether(src=MAC_A, dst="ff:ff:ff:ff:ff:ff") / ARP(hwsrc=MAC_A, psrc=HOST_A4, pdst=RELAY_A4), Else.CPU),
    _else("ARP request with a tag", lambda: Ether(src=MAC_A, dst="ff:ff:ff:ff:ff:ff") / Dot1Q(vlan=12) / ARP(hwsrc=MAC_A, psrc=HOST_A4, pdst=RELAY_A4), Else.CPU),
    _else("ARP reply", lambda: Ether(src=MAC_A, dst=MAC_RA) / ARP(op=2, hwsrc=MAC_A, psrc=HOST_A4, hwdst=MAC_RA, pdst=RELAY_A4), Else.CPU),
    _else("neighbour solicitation", lambda: Ether(src=MAC_A, dst="33:33:ff:00:00:01") / IPv6(src=HOST_A6, dst="ff02::1:ff00:1", hlim=255) / ICMPv6ND_NS(tgt=RELAY_A6), Else.CPU),
    _else("neighbour solicitation with a tag", lambda: Ether(src=MAC_A, dst="33:33:ff:00:00:01") / Dot1Q(vlan=12) / IPv6(src=HOST_A6, dst="ff02::1:ff00:1", hlim=255) / ICMPv6ND_NS(tgt=RELAY_A6), Else.CPU),
    _else("router solicitation", lambda: Ether(src=MAC_A, dst="33:33:00:00:00:02") / IPv6(src=HOST_A6, dst="ff02::2", hlim=255) / ICMPv6ND_RS(), Else.CPU),
    _else("router advertisement", lambda: Ether(src=MAC_A, dst="33:33:00:00:00:01") / IPv6(src="fe80::1", dst="ff02::1", hlim=255) / ICMPv6ND_RA(), Else.CPU),
    _else("redirect", lambda: Ether(src=MAC_A, dst=MAC_RA) / IPv6(src="fe80::1", dst=RELAY_A6, hlim=255) / ICMPv6ND_Redirect(tgt=HOST_A6, dst=HOST_B6), Else.CPU),
    _else("neighbour advertisement", lambda: Ether(src=MAC_A, dst=MAC_RA) / IPv6(src=HOST_A6, dst=RELAY_A6, hlim=255) / ICMPv6ND_NA(tgt=HOST_A6), Else.CPU),
]  # fmt: skip


def _forwarded(name: str, frame: Callable[[], Packet], hop: NextHop, port: Port = Port.A) -> Vector:
    return Vector(name, frame, (hop.port, lambda: Raw(routed(bytes(frame()), hop))), port=port, only="switch")


FORWARDED = [
    _forwarded("routed: from the relay server to a host", lambda: Ether(src=MAC_S, dst=MAC_RS) / IP(src=RELAY_A4, dst=HOST_A4, flags="DF", id=5) / UDP(sport=20000, dport=4000) / Raw(RTP), TO_A, Port.SERVER),
    _forwarded("routed: from the relay server to a host, IPv6", lambda: Ether(src=MAC_S, dst=MAC_RS) / IPv6(src=RELAY_A6, dst=HOST_B6) / UDP(sport=20000, dport=4000) / Raw(RTP), TO_B, Port.SERVER),
    _forwarded("routed: without a UDP checksum it stays without", lambda: Ether(src=MAC_S, dst=MAC_RS) / IP(src=RELAY_A4, dst=HOST_A4) / UDP(sport=20000, dport=4000, chksum=0) / Raw(RTP), TO_A, Port.SERVER),
    _forwarded("routed: TCP between hosts", lambda: Ether(src=MAC_A, dst=MAC_RA) / IP(src=HOST_A4, dst=HOST_B4) / TCP(sport=1, dport=2), TO_B),
    _forwarded("routed: into a network with a tag", lambda: Ether(src=MAC_A, dst=MAC_RA) / IP(src=HOST_A4, dst="10.3.7.7") / UDP(sport=1, dport=2) / Raw(b"abc"), TO_TAGGED),
    _forwarded("routed: tag and priority", lambda: Ether(src=MAC_A, dst=MAC_RA) / Dot1Q(vlan=5, prio=6) / IPv6(src=HOST_A6, dst="fd03::7") / UDP(sport=1, dport=2) / Raw(b"abc"), TO_TAGGED),
    _forwarded("routed: IP options and fragments of others", lambda: Ether(src=MAC_B, dst=MAC_RB) / IP(src=HOST_B4, dst=HOST_A4, flags="MF", options=[IPOption_NOP()] * 4) / UDP(sport=1, dport=2) / Raw(bytes(24)), TO_A, Port.B),
    _forwarded("routed: an entry's packets on their way back are not the entry's", lambda: Ether(src=MAC_B, dst=MAC_RB) / IP(src=HOST_B4, dst=HOST_A4) / UDP(sport=20000, dport=4000) / Raw(RTP), TO_A, Port.B),
    _else("no route", lambda: Ether(src=MAC_A, dst=MAC_RA) / IP(src=HOST_A4, dst="203.0.113.9") / UDP(sport=1, dport=2), Else.DROP, only="switch"),
    _else("no route, IPv6", lambda: Ether(src=MAC_A, dst=MAC_RA) / IPv6(src=HOST_A6, dst="2001:db8::9") / UDP(sport=1, dport=2), Else.DROP, only="switch"),
    _else("expired on its way to another", lambda: Ether(src=MAC_A, dst=MAC_RA) / IP(src=HOST_A4, dst=HOST_B4, ttl=1) / UDP(sport=1, dport=2), Else.CPU, only="switch"),
    _else("expired media, back to where it came from", lambda: Ether(src=MAC_S, dst=MAC_RS) / IP(src=HOST_A4, dst=RELAY_A4, ttl=1) / UDP(sport=7200, dport=20610) / Raw(RTP), Else.DROP, port=Port.SERVER, only="switch"),
    _else("expired media, back to where it came from, IPv6", lambda: Ether(src=MAC_S, dst=MAC_RS) / IPv6(src=HOST_A6, dst=RELAY_A6, hlim=1) / UDP(sport=7200, dport=20610) / Raw(RTP), Else.DROP, port=Port.SERVER, only="switch"),
    _else("to the switch itself", lambda: Ether(src=MAC_A, dst=MAC_RA) / IP(src=HOST_A4, dst=SWITCH_ADDRESS, ttl=255) / ICMP(), Else.CPU, only="switch"),
    Vector("ARP from the switch's CPU", lambda: Ether(src=MAC_RA, dst=MAC_A) / ARP(op=2, hwsrc=MAC_RA, psrc="10.1.0.254", hwdst=MAC_A, pdst=HOST_A4),
           (Port.A, lambda: Ether(src=MAC_RA, dst=MAC_A) / ARP(op=2, hwsrc=MAC_RA, psrc="10.1.0.254", hwdst=MAC_A, pdst=HOST_A4)), port=Port.CPU, only="switch"),
    Vector("media from the switch's CPU goes as it is, and nothing is learned from it", lambda: Ether(src=MAC_RA, dst=MAC_A) / IP(src=SWITCH_ADDRESS, dst=RELAY_A4) / UDP(sport=7201, dport=20611) / Raw(RTP),
           (Port.A, lambda: Ether(src=MAC_RA, dst=MAC_A) / IP(src=SWITCH_ADDRESS, dst=RELAY_A4) / UDP(sport=7201, dport=20611) / Raw(RTP)), port=Port.CPU, only="switch"),
    Vector("a frame from the switch's CPU is bridged as it came though its 5-tuple has an entry", lambda: Ether(src=MAC_RA, dst=MAC_A) / IP(src=HOST_A4, dst=RELAY_A4) / UDP(sport=4000, dport=20000) / Raw(RTP),
           (Port.A, lambda: Ether(src=MAC_RA, dst=MAC_A) / IP(src=HOST_A4, dst=RELAY_A4) / UDP(sport=4000, dport=20000) / Raw(RTP)), port=Port.CPU, only="switch"),
    Vector("IP from the switch's CPU goes as it is", lambda: Ether(src=MAC_RA, dst=MAC_A) / IP(src=SWITCH_ADDRESS, dst=HOST_A4, ttl=64) / ICMP(),
           (Port.A, lambda: Ether(src=MAC_RA, dst=MAC_A) / IP(src=SWITCH_ADDRESS, dst=HOST_A4, ttl=64) / ICMP()), port=Port.CPU, only="switch"),
]  # fmt: skip

VECTORS = [*RELAYED, *LEARNED, *PASSED, *FORWARDED]
