"""What the relay program makes of single packets: input, entries, exact output; scapy computes every expected checksum."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

from shunt.net import FiveTuple
from tests.dataplane.lab import (
    HOST_A4, HOST_A6, HOST_B4, HOST_B6, MAC_A, MAC_B, MAC_RA, MAC_RB, RELAY_A4, RELAY_A6, RELAY_B4, RELAY_B6, Lab, entry, ep,
)  # fmt: skip
from tests.dataplane.traffic import PASS, REDIRECT, run
from tests.softswitch import names
from tests.softswitch.client import until
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.tools.entry import RelayEntry

pytestmark = pytest.mark.netns

RTP = bytes.fromhex("8000123400000140deadbeef") + bytes(range(160))
FRESH = 64  # the TTL that a new network namespace gives its packets
TO_HOST = {"src": MAC_A, "dst": MAC_RA}
RELAYED = {"src": MAC_RB, "dst": MAC_B}

V4 = entry(f"{HOST_A4}:4000", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", f"{HOST_B4}:6000")
V6 = entry(f"[{HOST_A6}]:4000", f"[{RELAY_A6}]:20000", f"[{RELAY_B6}]:20002", f"[{HOST_B6}]:6000")
V4_TO_6 = entry(f"{HOST_A4}:4006", f"{RELAY_A4}:20006", f"[{RELAY_B6}]:20002", f"[{HOST_B6}]:6000")
V6_TO_4 = entry(f"[{HOST_A6}]:4004", f"[{RELAY_A6}]:20004", f"{RELAY_B4}:20002", f"{HOST_B4}:6000")
DSCP = entry(f"{HOST_A4}:4010", f"{RELAY_A4}:20010", f"{RELAY_B4}:20002", f"{HOST_B4}:6000", dscp=46)
DSCP_6 = entry(f"[{HOST_A6}]:4010", f"[{RELAY_A6}]:20010", f"[{RELAY_B6}]:20002", f"[{HOST_B6}]:6000", dscp=46)
HAIRPIN = entry(f"{HOST_A4}:4012", f"{RELAY_A4}:20012", f"{RELAY_A4}:20014", f"{HOST_A4}:6012")
UNROUTED = entry(f"{HOST_A4}:4020", f"{RELAY_A4}:20020", f"{RELAY_B4}:20002", "203.0.113.9:6000")
LOCAL = entry(f"{HOST_A4}:4022", f"{RELAY_A4}:20022", f"{RELAY_B4}:20002", f"{RELAY_B4}:6000")
UNRESOLVED = entry(f"{HOST_A4}:4024", f"{RELAY_A4}:20024", f"{RELAY_B4}:20002", "10.2.0.77:6000")
SECOND = entry(f"{HOST_A4}:5000", f"{RELAY_A4}:20000", f"{RELAY_A4}:20002", f"{HOST_A4}:6001")
ENTRIES = [V4, V6, V4_TO_6, V6_TO_4, DSCP, DSCP_6, HAIRPIN, UNROUTED, LOCAL, UNRESOLVED, SECOND]


def packet(made: RelayEntry, payload: bytes = RTP, *, tag: Packet | None = None, ip: dict[str, object] | None = None, udp: dict[str, object] | None = None) -> Packet:
    """A packet that meets this entry."""
    src, dst = made.key
    header = (IP if src.version == 4 else IPv6)(**{"src": src.ip, "dst": dst.ip, **({"flags": "DF", "id": 7} if src.version == 4 else {}), **(ip or {})})
    upper = header / UDP(**{"sport": src.port, "dport": dst.port, **(udp or {})}) / Raw(payload)
    return Ether(**TO_HOST) / (tag / upper if tag else upper)


def relayed(made: RelayEntry, payload: bytes = RTP, *, ip: dict[str, object] | None = None, udp: dict[str, object] | None = None, ether: dict[str, str] | None = None) -> Packet:
    """What should leave: with a fresh TTL, everything else of the header as it was."""
    src, dst = made.src, made.dst
    if src.version == 4:
        fields = {"ttl": FRESH, "flags": "DF", "id": 7 if made.key.src.version == 4 else 0, **(ip or {})}
        header = IP(src=src.ip, dst=dst.ip, **fields)
    else:
        header = IPv6(src=src.ip, dst=dst.ip, **{"hlim": FRESH, **(ip or {})})
    return Ether(**(ether or RELAYED)) / header / UDP(**{"sport": src.port, "dport": dst.port, **(udp or {})}) / Raw(payload)


@dataclass(frozen=True)
class Case:
    """name: what it is about; sent; expected: the exact frame, or None when it passes up untouched, for the reason given."""

    name: str
    sent: Callable[[], Packet | bytes]
    expected: Callable[[], Packet] | None = None
    reason: str = "relayed"
    more: dict[str, object] = field(default_factory=dict)


def partial(made: RelayEntry, payload: bytes = RTP) -> bytes:
    """As a local sender hands it to the hardware: the checksum field holds the sum of the pseudo header alone."""
    frame = bytearray(bytes(packet(made, payload)))
    src, dst = made.key
    pseudo = src.addr + dst.addr + struct.pack("!HH", 17, 8 + len(payload))
    total = sum(struct.unpack(f"!{len(pseudo) // 2}H", pseudo))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    at = 14 + (20 if src.version == 4 else 40) + 6
    struct.pack_into("!H", frame, at, total)
    return bytes(frame)


def zero_sum_payload(made: RelayEntry) -> bytes:
    """A payload with which the relayed packet's checksum comes out as 0, which has to be sent as ffff."""
    body = bytearray(RTP[:20])
    at = 34 if made.dst.version == 4 else 54
    check = int.from_bytes(bytes(relayed(made, bytes(body)))[at + 6 : at + 8], "big")
    word = int.from_bytes(body[18:20], "big") + check
    body[18:20] = ((word & 0xFFFF) + (word >> 16)).to_bytes(2, "big")
    return bytes(body)


def padded(frame: Packet) -> bytes:
    return bytes(frame) + b"\0" * 12


CASES = [
    Case("IPv4 RTP", lambda: packet(V4), lambda: relayed(V4)),
    Case("IPv4 without don't-fragment keeps its identification", lambda: packet(V4, ip={"flags": 0, "id": 777}), lambda: relayed(V4, ip={"flags": 0, "id": 777})),
    Case("IPv4, odd length", lambda: packet(V4, RTP[:171]), lambda: relayed(V4, RTP[:171])),
    Case("IPv4, one byte of payload", lambda: packet(V4, b"x"), lambda: relayed(V4, b"x")),
    Case("IPv4, no payload", lambda: packet(V4, b""), lambda: relayed(V4, b"")),
    Case("IPv4, checksum 0 stays 0", lambda: packet(V4, udp={"chksum": 0}), lambda: relayed(V4, udp={"chksum": 0})),
    Case("IPv4, checksum that comes out as 0 is sent as ffff", lambda: packet(V4, zero_sum_payload(V4)), lambda: relayed(V4, zero_sum_payload(V4))),
    Case("IPv4, TOS and ECN kept", lambda: packet(V4, ip={"tos": 0xB9}), lambda: relayed(V4, ip={"tos": 0xB9})),
    Case("IPv4, DSCP set, ECN kept", lambda: packet(DSCP, ip={"tos": 0x29}), lambda: relayed(DSCP, ip={"tos": 46 << 2 | 1})),
    Case("IPv4, TTL 2", lambda: packet(V4, ip={"ttl": 2}), lambda: relayed(V4)),
    Case("IPv4, TTL 255", lambda: packet(V4, ip={"ttl": 255}), lambda: relayed(V4)),
    Case("IPv4, partial checksum", lambda: partial(V4), lambda: relayed(V4)),
    Case("IPv4, partial checksum, odd length", lambda: partial(V4, RTP[:33]), lambda: relayed(V4, RTP[:33])),
    Case("IPv4, partial checksum, full frame", lambda: partial(V4, RTP[:12] + bytes(1460)), lambda: relayed(V4, RTP[:12] + bytes(1460))),
    Case("IPv4 with a tag leaves without", lambda: packet(V4, tag=Dot1Q(vlan=100, prio=5)), lambda: relayed(V4)),
    Case("IPv4, back to where it came from", lambda: packet(HAIRPIN), lambda: relayed(HAIRPIN, ether={"src": MAC_RA, "dst": MAC_A})),
    Case("IPv4, second source of one port", lambda: packet(SECOND), lambda: relayed(SECOND, ether={"src": MAC_RA, "dst": MAC_A})),
    Case("IPv6 RTP", lambda: packet(V6), lambda: relayed(V6)),
    Case("IPv6, odd length", lambda: packet(V6, RTP[:23]), lambda: relayed(V6, RTP[:23])),
    Case("IPv6, flow label and class kept", lambda: packet(V6, ip={"tc": 0xB9, "fl": 0xABCDE}), lambda: relayed(V6, ip={"tc": 0xB9, "fl": 0xABCDE})),
    Case("IPv6, DSCP set", lambda: packet(DSCP_6, ip={"tc": 0x03}), lambda: relayed(DSCP_6, ip={"tc": 46 << 2 | 3})),
    Case("IPv6, partial checksum", lambda: partial(V6), lambda: relayed(V6)),
    Case("IPv6, checksum that comes out as 0", lambda: packet(V6, zero_sum_payload(V6)), lambda: relayed(V6, zero_sum_payload(V6))),
    Case("IPv6 with a tag leaves without", lambda: packet(V6, tag=Dot1Q(vlan=9)), lambda: relayed(V6)),
    Case("IPv4 to IPv6", lambda: packet(V4_TO_6, ip={"tos": 0xB8}), lambda: relayed(V4_TO_6, ip={"tc": 0xB8})),
    Case("IPv4 to IPv6, checksum 0 is computed", lambda: packet(V4_TO_6, udp={"chksum": 0}), lambda: relayed(V4_TO_6)),
    Case("IPv4 to IPv6, odd length, checksum 0", lambda: packet(V4_TO_6, RTP[:21], udp={"chksum": 0}), lambda: relayed(V4_TO_6, RTP[:21])),
    Case("IPv4 to IPv6, partial checksum", lambda: partial(V4_TO_6), lambda: relayed(V4_TO_6)),
    Case("IPv4 to IPv6 with a tag", lambda: packet(V4_TO_6, tag=Dot1Q(vlan=9)), lambda: relayed(V4_TO_6)),
    Case("IPv4 to IPv6, checksum that comes out as 0", lambda: packet(V4_TO_6, zero_sum_payload(V4_TO_6)), lambda: relayed(V4_TO_6, zero_sum_payload(V4_TO_6))),
    Case("IPv6 to IPv4", lambda: packet(V6_TO_4, ip={"tc": 0xB8}), lambda: relayed(V6_TO_4, ip={"tos": 0xB8})),
    Case("IPv6 to IPv4, odd length", lambda: packet(V6_TO_4, RTP[:19]), lambda: relayed(V6_TO_4, RTP[:19])),
    Case("IPv6 to IPv4, partial checksum", lambda: partial(V6_TO_4, RTP[:19]), lambda: relayed(V6_TO_4, RTP[:19])),
    # From here on: up to the relay, untouched.
    Case("another source", lambda: packet(V4, udp={"sport": 4001}), reason="source-mismatch"),
    Case("another source address", lambda: packet(V4, ip={"src": "10.1.0.3"}), reason="source-mismatch"),
    Case("another source, IPv6", lambda: packet(V6, ip={"src": "fd01::3"}), reason="source-mismatch"),
    Case("another port", lambda: packet(V4, udp={"dport": 20001}), reason="not-media"),
    Case("another relay address", lambda: packet(V4, ip={"dst": "10.1.0.9"}), reason="not-media"),
    Case("TTL 1", lambda: packet(V4, ip={"ttl": 1}), reason="ttl-expired"),
    Case("hop limit 1", lambda: packet(V6, ip={"hlim": 1}), reason="ttl-expired"),
    Case("IP options", lambda: packet(V4, ip={"options": [IPOption_NOP()] * 4}), reason="ip-options"),
    Case("first fragment", lambda: packet(V4, ip={"flags": "MF"}), reason="fragment"),
    Case("later fragment", lambda: packet(V4, ip={"flags": 0, "frag": 100}), reason="fragment"),
    Case("IPv6 fragment", lambda: Ether(**TO_HOST) / IPv6(src=HOST_A6, dst=RELAY_A6) / IPv6ExtHdrFragment() / UDP(sport=4000, dport=20000) / Raw(RTP), reason="fragment"),
    Case("IPv6 hop-by-hop", lambda: Ether(**TO_HOST) / IPv6(src=HOST_A6, dst=RELAY_A6) / IPv6ExtHdrHopByHop() / UDP(sport=4000, dport=20000) / Raw(RTP), reason="ip-options"),
    Case("checksum 0 over IPv6", lambda: packet(V6, udp={"chksum": 0}), reason="no-checksum"),
    Case("TCP", lambda: Ether(**TO_HOST) / IP(src=HOST_A4, dst=RELAY_A4) / TCP(sport=4000, dport=20000), reason="not-udp"),
    Case("ICMP", lambda: Ether(**TO_HOST) / IP(src=HOST_A4, dst=RELAY_A4) / ICMP(), reason="not-udp"),
    Case("ARP", lambda: Ether(**TO_HOST) / ARP(), reason="not-ip"),
    Case("two tags", lambda: packet(V4, tag=Dot1Q(vlan=1) / Dot1Q(vlan=2)), reason="not-ip"),
    Case("broadcast frame", lambda: Ether(src=MAC_A, dst="ff:ff:ff:ff:ff:ff") / packet(V4).payload, reason="not-unicast"),
    Case("UDP length longer than the packet", lambda: packet(V4, udp={"len": 400}), reason="malformed"),
    Case("UDP length shorter than the packet", lambda: packet(V4, udp={"len": 20}), reason="malformed"),
    Case("UDP length past where its lower byte carries", lambda: packet(V4, bytes(40), ip={"len": 20}, udp={"len": 0xFFFF}), reason="malformed"),
    Case("UDP length below its header", lambda: packet(V4, udp={"len": 7}), reason="malformed"),
    Case("IPv4 length longer than the frame", lambda: packet(V4, ip={"len": 1000}), reason="malformed"),
    Case("IPv6 length longer than the frame", lambda: packet(V6, ip={"plen": 1000}), reason="malformed"),
    Case("cut off in the UDP header", lambda: bytes(packet(V4))[:38], reason="malformed"),
    Case("cut off in the tag", lambda: bytes(packet(V4, tag=Dot1Q(vlan=1)))[:17], reason="malformed"),
    Case("IPv4 to IPv6 with a wrong header checksum", lambda: packet(V4_TO_6, ip={"chksum": 0x1234}), reason="malformed"),
    Case("no route", lambda: packet(UNROUTED), reason="no-next-hop"),
    Case("to this host itself", lambda: packet(LOCAL), reason="no-next-hop"),
    Case("neighbour not resolved", lambda: packet(UNRESOLVED), reason="no-next-hop"),
    Case("longer than the output can take", lambda: packet(V4, bytes(1480)), reason="too-big-for-output"),
    Case("longer than the output can take as IPv6", lambda: packet(V4_TO_6, bytes(1470)), reason="too-big-for-output"),
]


# What is counted beside `rx_packets`, and `passed_packets` for all that passes up for any other reason.
COUNTED = {"relayed": "relayed_packets", "source-mismatch": "source_mismatch_packets", "no-next-hop": "unrouted_packets", "too-big-for-output": "too_big_packets"}
PASSED = {case.reason for case in CASES} - {"relayed", "source-mismatch"}


def counts(plane: Plane, before: dict[str, int]) -> dict[str, int]:
    """Which counters of packets have grown since."""
    return {name: n - before[name] for name, n in plane.totals().items() if n != before[name] and name.endswith("_packets")}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_packet(plane: Plane, softswitch: Softswitch, case: Case) -> None:
    assert plane.insert(ENTRIES) == [None] * len(ENTRIES)
    sent = bytes(case.sent())
    wanted = (PASS, sent) if case.expected is None else (REDIRECT, bytes(case.expected()))
    expected = {"rx_packets": 1} | ({COUNTED[case.reason]: 1} if case.reason in COUNTED else {}) | ({"passed_packets": 1} if case.reason in PASSED else {})
    for _ in range(10):
        before = plane.totals()
        verdict, left = run(softswitch, sent)
        assert (verdict, left.hex()) == (wanted[0], wanted[1].hex())
        # What the hosts' kernels say to their neighbours is counted too: not ten times in a row just then.
        if (counted := counts(plane, before)) == expected:
            break
    else:
        raise AssertionError(f"{counted}, not {expected}")
    # The generic program does the same, but leaves a partial checksum partial; the tracing one changes no count.
    if "partial" not in case.name:
        assert run(softswitch, sent, "relay_generic") == (verdict, left)
    for _ in range(10):
        before = plane.totals()
        traced, after = run(softswitch, sent, "relay_trace")
        assert (traced & 0xFF, names.REASONS[traced >> 8 & 0xFF], after) == (verdict, case.reason, left)
        if not (counted := counts(plane, before)):
            break
    else:
        raise AssertionError(f"a trace has counted {counted}")


@pytest.mark.parametrize("made", [V4, V6, V4_TO_6, V6_TO_4], ids=["4", "6", "4to6", "6to4"])
def test_generic_mode_keeps_a_partial_checksum_partial(plane: Plane, softswitch: Softswitch, made: RelayEntry) -> None:
    plane.insert(ENTRIES)
    verdict, left = run(softswitch, partial(made), "relay_generic")
    mirror = RelayEntry(FiveTuple(made.src, made.dst), made.src, made.dst)
    at = 14 + (20 if made.dst.version == 4 else 40) + 6
    assert verdict == REDIRECT
    assert left[at : at + 2] == partial(mirror)[at : at + 2]


def test_trailing_ethernet_padding_stays(plane: Plane, softswitch: Softswitch) -> None:
    plane.insert(ENTRIES)
    assert run(softswitch, padded(packet(V4, b"abc"))) == (REDIRECT, padded(relayed(V4, b"abc")))
    assert run(softswitch, padded(packet(V4_TO_6, b"abc", udp={"chksum": 0}))) == (REDIRECT, padded(relayed(V4_TO_6, b"abc")))


@pytest.mark.parametrize("made", [V4, V6, V4_TO_6, V6_TO_4], ids=["4", "6", "4to6", "6to4"])
@pytest.mark.parametrize("tag", [None, Dot1Q(vlan=7, prio=5)], ids=["untagged", "tagged"])
def test_next_hop_on_a_vlan(plane: Plane, softswitch: Softswitch, tagged_network: None, made: RelayEntry, tag: Packet | None) -> None:
    """The route leads to tag 300: an untagged packet gets it, a tagged one has its tag rewritten and keeps its priority."""
    far = RelayEntry(made.key, made.src, ep("10.3.0.2:6000" if made.dst.version == 4 else "[fd03::2]:6000"))
    plane.insert([far])
    until(lambda: plane.trace(far.key)["verdict"] == "redirect", "the neighbour is resolved")
    verdict, left = run(softswitch, bytes(packet(made, tag=tag)))
    assert verdict == REDIRECT
    assert left.hex() == bytes(Ether(**RELAYED) / Dot1Q(vlan=300, prio=5 if tag else 0) / relayed(far).payload).hex()


@pytest.fixture
def tagged_network(lab: Lab) -> Iterator[None]:
    """Host b has a network behind VLAN 300 too."""
    try:
        lab.ip("relay", "link", "add", "link", "rb", "name", "rb.300", "type", "vlan", "id", "300")
    except RuntimeError:
        pytest.skip("the kernel has no 802.1Q interfaces")
    try:
        for address, host in (("10.3.0.1/24", "10.3.0.2"), ("fd03::1/64", "fd03::2")):
            lab.ip("relay", "address", "add", address, "dev", "rb.300", *(["nodad"] if ":" in address else []))
            lab.ip("relay", "link", "set", "rb.300", "up")
            lab.ip("relay", "neigh", "replace", host, "lladdr", MAC_B, "dev", "rb.300", "nud", "permanent")
        yield
    finally:
        lab.ip("relay", "link", "del", "rb.300")


@settings(max_examples=150, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=st.binary(max_size=1400), made=st.sampled_from([V4, V6, V4_TO_6, V6_TO_4, DSCP]), ttl=st.integers(2, 255), tos=st.integers(0, 255))
def test_any_payload_leaves_with_right_checksums(plane: Plane, softswitch: Softswitch, payload: bytes, made: RelayEntry, ttl: int, tos: int) -> None:
    plane.insert(ENTRIES)
    four = made.key.src.version == 4
    sent = packet(made, payload, ip={"ttl": ttl, "tos": tos} if four else {"hlim": ttl, "tc": tos})
    new = tos if made.dscp is None else made.dscp << 2 | tos & 3
    expected = relayed(made, payload, ip={"tos": new} if made.dst.version == 4 else {"tc": new})
    for frame in (bytes(sent), bytes(partial_of(sent))):
        verdict, left = run(softswitch, frame)
        assert (verdict, left.hex()) == (REDIRECT, bytes(expected).hex())


def partial_of(frame: Packet) -> bytes:
    """The same frame with only the pseudo header in its checksum."""
    raw = bytearray(bytes(frame))
    four = IP in frame
    at = 14 + (20 if four else 40)
    addresses = bytes(raw[at - 8 : at]) if four else bytes(raw[at - 32 : at])
    pseudo = addresses + struct.pack("!H", 17) + bytes(raw[at + 4 : at + 6])
    total = sum(struct.unpack(f"!{len(pseudo) // 2}H", pseudo))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into("!H", raw, at + 6, total)
    return bytes(raw)


@settings(max_examples=300, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(min_size=14, max_size=200), base=st.sampled_from(range(len(CASES))), flips=st.lists(st.tuples(st.integers(0, 80), st.integers(0, 255)), max_size=4))
def test_damaged_frames_are_relayed_right_or_left_alone(plane: Plane, softswitch: Softswitch, raw: bytes, base: int, flips: list[tuple[int, int]]) -> None:
    """Whatever is not redirected is bit for bit as it came; whatever is went to an entry's destination."""
    plane.insert(ENTRIES)
    damaged = bytearray(bytes(CASES[base].sent()))
    for at, value in flips:
        if at < len(damaged):
            damaged[at] = value
    targets = {(made.src, made.dst) for made in ENTRIES}
    for frame in (raw, bytes(damaged)):
        verdict, left = run(softswitch, frame)
        if verdict == REDIRECT:
            parsed = Ether(left)
            inner = parsed[IP] if IP in parsed else parsed[IPv6]
            assert (ep(f"[{inner.src}]:{inner[UDP].sport}"), ep(f"[{inner.dst}]:{inner[UDP].dport}")) in targets
        else:
            assert (verdict, left) == (PASS, frame)


PASSED_UP: dict[str, Callable[[RelayEntry, bytes], Packet]] = {
    "too big": lambda made, rtp: packet(made, rtp + bytes(1400)),
    "TTL 1": lambda made, rtp: packet(made, rtp, ip={"ttl": 1} if made.key.src.version == 4 else {"hlim": 1}),
    "first fragment": lambda made, rtp: packet(made, rtp, ip={"flags": "MF"}) if made.key.src.version == 4 else _extended(made, rtp, IPv6ExtHdrFragment(m=1)),
    "options": lambda made, rtp: packet(made, rtp, ip={"options": [IPOption_NOP()] * 4}) if made.key.src.version == 4 else _extended(made, rtp, IPv6ExtHdrHopByHop()),
    "broadcast": lambda made, rtp: Ether(src=MAC_A, dst="ff:ff:ff:ff:ff:ff") / packet(made, rtp).payload,
}
"""Packets that the kernel delivers to the relay, although their flow has an entry."""


def _extended(made: RelayEntry, payload: bytes, header: Packet) -> Packet:
    src, dst = made.key
    return Ether(**TO_HOST) / IPv6(src=src.ip, dst=dst.ip) / header / UDP(sport=src.port, dport=dst.port) / Raw(payload)


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    made=st.sampled_from([V4, V6, V4_TO_6, V6_TO_4, SECOND, UNROUTED]), ways=st.lists(st.sampled_from(["relayed", "lost", "malformed", *PASSED_UP]), min_size=1, max_size=24),
    first=st.sampled_from([0x1234, 65530]),
)  # fmt: skip
def test_packets_that_pass_up_to_the_relay_have_arrived(plane: Plane, softswitch: Softswitch, made: RelayEntry, ways: list[str], first: int) -> None:
    """They are no loss of their stream, and not among the packets that were relayed."""
    plane.clear()
    plane.insert(ENTRIES)
    arrived, relayed_here = [], 0
    for number, way in enumerate(ways):
        rtp = struct.pack("!BBHII", 0x80, 0, (first + number) & 0xFFFF, 160 * number, 0xDEADBEEF) + bytes(160)
        if way == "lost":
            continue
        if way == "malformed":
            assert run(softswitch, bytes(packet(made, rtp, udp={"len": 400})))[0] == PASS
            continue
        verdict, _ = run(softswitch, bytes(PASSED_UP.get(way, packet)(made, rtp)))
        assert verdict == (REDIRECT if way == "relayed" and made is not UNROUTED else PASS), way
        arrived.append(number)
        relayed_here += verdict == REDIRECT
    stats = plane.stats()[made.key]
    lost = arrived[-1] - arrived[0] + 1 - len(arrived) if arrived else 0
    assert (stats.packets, stats.lost, stats.reordered, stats.duplicates) == (relayed_here, lost, 0, 0)
    assert bool(stats.bytes) == bool(relayed_here)


@pytest.mark.parametrize("made", [V4, V6, SECOND, UNROUTED], ids=["4", "6", "second source", "no next hop"])
@pytest.mark.parametrize("way", ["relayed", *PASSED_UP])
def test_a_stream_that_passes_up_to_the_relay_is_not_idle(plane: Plane, softswitch: Softswitch, made: RelayEntry, way: str) -> None:
    plane.insert(ENTRIES)
    until(lambda: plane.stats()[made.key].idle_ms >= 100, "it is idle")
    begun = time.monotonic()
    run(softswitch, bytes(PASSED_UP.get(way, packet)(made, RTP)))
    idle_ms = plane.stats()[made.key].idle_ms
    assert idle_ms <= 1000 * (time.monotonic() - begun) + 20, "twenty: two ticks of a slow clock"


def test_trace_names_the_way_out(plane: Plane, softswitch: Softswitch) -> None:
    plane.insert(ENTRIES)
    assert plane.trace(V4.key) == {
        "verdict": "redirect", "reason": "relayed", "out_src": f"{RELAY_B4}:20002", "out_dst": f"{HOST_B4}:6000", "out_interface": "rb",
    }  # fmt: skip
    assert plane.trace(V4_TO_6.key)["out_dst"] == f"[{HOST_B6}]:6000"
    assert plane.trace(HAIRPIN.key)["out_interface"] == "ra"
    assert plane.trace(FiveTuple(ep("192.0.2.1:1"), V4.key.dst))["reason"] == "source-mismatch"
    before = plane.totals()
    assert plane.trace(UNRESOLVED.key) == {"verdict": "pass", "reason": "no-next-hop", "out_src": "", "out_dst": "", "out_interface": ""}
    after = plane.totals()
    assert after | {"rx_packets": 0, "passed_packets": 0} == before | {"rx_packets": 0, "passed_packets": 0}, "but for what the hosts' kernels say"
