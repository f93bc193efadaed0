"""Every reason to drop a packet is counted, and what is longer than a port's MTU is dropped: the v1model twin in BMv2, a packet for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

from tests.lab.needs import need
from tests.p4 import bmv2
from tests.vectors.model import HOST_A4, HOST_A6, HOST_B4, HOST_B6, MAC_A, MAC_RA, MAC_RS, MAC_S, RELAY_A4, RTP, Port
from tests.vectors.relay import V4, V4_TO_6, packet

need(*bmv2.TOOLS)
pytestmark = pytest.mark.netns

MTU = 1500


def routed(*layers: Packet) -> Packet:
    """A frame from host A to the switch."""
    frame = Ether(src=MAC_A, dst=MAC_RA)
    for layer in layers:
        frame /= layer
    return frame


def ipv4(length: int, dst: str = HOST_B4, **fields: object) -> Packet:
    return IP(src=HOST_A4, dst=dst, **fields) / UDP(sport=1, dport=2) / Raw(bytes(length - 28))


def ipv6(length: int, dst: str = HOST_B6) -> Packet:
    return IPv6(src=HOST_A6, dst=dst) / UDP(sport=1, dport=2) / Raw(bytes(length - 48))


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bmv2.Bmv2]:
    with bmv2.running(bmv2.compile_twin(tmp_path_factory.mktemp("p4"))) as made:
        nowhere = f"table_add Ingress.route Ingress.forward 198.51.100.0/24 => {int(Port.B)} 999"  # a next hop that is not there
        refused = "table_add Ingress.route Ingress.discard 10.200.0.0/16 =>"
        entries = [bmv2.relay_command(entry) for entry in (V4, V4_TO_6)]
        made.cli([*bmv2.scene_commands(), nowhere, refused, bmv2.mtu_command(Port.B, MTU), *entries])
        yield made


DROPPED = {
    "to another's MAC address": ("not_addressed", Port.A, Ether(src=MAC_A, dst="02:00:00:00:00:77") / ipv4(40)),
    "from the CPU to nobody": ("not_addressed", Port.CPU, Ether(src=MAC_RA, dst="02:00:00:00:00:77") / ipv4(40)),
    "neither IP nor ARP": ("not_ip", Port.A, Ether(src=MAC_A, dst=MAC_RA, type=0x88B5) / Raw(bytes(50))),
    "two tags": ("not_ip", Port.A, routed(Dot1Q(vlan=1), Dot1Q(vlan=2), ipv4(40))),
    "no route": ("unrouted", Port.A, routed(ipv4(40, "203.0.113.9"))),
    "no route, IPv6": ("unrouted", Port.A, routed(ipv6(60, "2001:db8::9"))),
    "a route that discards": ("unrouted", Port.A, routed(ipv4(40, "10.200.0.1"))),
    "unknown next hop": ("unknown_nexthop", Port.A, routed(ipv4(40, "198.51.100.9"))),
    "unknown next hop, IPv4 with a tag": ("unknown_nexthop", Port.A, routed(Dot1Q(vlan=9), ipv4(40, "198.51.100.9"))),
    "out of the port that it came from, at its last hop": (
        "turned_back", Port.SERVER, Ether(src=MAC_S, dst=MAC_RS) / IP(src=HOST_A4, dst=RELAY_A4, ttl=1) / UDP(sport=7200, dport=20610) / Raw(RTP),
    ),
    "too long": ("too_big", Port.A, routed(ipv4(MTU + 1))),
    "too long, and not to be fragmented": ("too_big", Port.A, routed(ipv4(MTU + 1, flags="DF"))),
    "too long, with a tag": ("too_big", Port.A, routed(Dot1Q(vlan=9), ipv4(MTU + 1))),
    "too long, IPv6": ("too_big", Port.A, routed(ipv6(MTU + 1))),
    "much too long": ("too_big", Port.A, routed(ipv4(8900))),
    "too long once it is IPv6": ("too_big", Port.A, packet(V4_TO_6, RTP + bytes(MTU - 20 - 28 + 1 - len(RTP)))),
}  # fmt: skip


@pytest.mark.parametrize("reason, port, frame", DROPPED.values(), ids=DROPPED)
def test_a_dropped_packet_is_counted_once_by_its_reason(switch: bmv2.Bmv2, reason: str, port: Port, frame: Packet) -> None:
    before = switch.dropped()
    switch.send(port, bytes(frame))
    assert switch.dropped(sum(before.values()) + 1) == before | {reason: before.get(reason, 0) + 1}
    assert switch.received(0) == []


PASSED = {
    "as long as the MTU": routed(ipv4(MTU)),
    "as long as the MTU, with a tag": routed(Dot1Q(vlan=9), ipv4(MTU)),
    "as long as the MTU, IPv6": routed(ipv6(MTU)),
    "as long as the MTU once it is IPv6": packet(V4_TO_6, RTP + bytes(MTU - 20 - 28 - len(RTP))),
    "by a port without an MTU": Ether(src=MAC_S, dst=MAC_RS) / IP(src=RELAY_A4, dst=HOST_A4) / UDP(sport=1, dport=2) / Raw(bytes(8900)),
    "to the CPU": routed(ipv4(8900, ttl=1)),
}


@pytest.mark.parametrize("frame", PASSED.values(), ids=PASSED)
def test_what_fits_is_neither_dropped_nor_counted(switch: bmv2.Bmv2, frame: Packet) -> None:
    before = switch.dropped()
    switch.send(Port.SERVER if frame[Ether].src == MAC_S else Port.A, bytes(frame))
    assert len(switch.received(1)) == 1
    assert switch.dropped() == before


def test_another_mtu(switch: bmv2.Bmv2) -> None:
    switch.cli([bmv2.mtu_command(Port.A, 1280)])
    back = [Ether(src=MAC_S, dst=MAC_RS) / IP(src=RELAY_A4, dst=HOST_A4) / UDP(sport=1, dport=2) / Raw(bytes(length - 28)) for length in (1280, 1281)]
    for frame in back:
        switch.send(Port.SERVER, bytes(frame))
    assert [port for port, _ in switch.received(1)] == [Port.A]
