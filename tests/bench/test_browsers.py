"""What bench/browsers.py makes of captured packets."""

from __future__ import annotations

import struct

from bench.browsers import MEDIA_IP, Packet, apart, delays, kind_of, table

CODECS = {111: "audio, opus", 96: "video, VP8"}
EDGE, PLAIN, FOCUS, BROWSER = (MEDIA_IP, 3478), (MEDIA_IP, 30_000), ("198.18.0.1", 20_000), ("198.18.1.2", 50_000)


def rtp(number: int, kind: int = 96, ssrc: int = 7, size: int = 1000) -> bytes:
    return struct.pack("!BBHII", 0x80, kind, number & 0xFFFF, 3000 * number, ssrc) + bytes([number & 255]) * size


def test_packets_that_the_kernel_has_put_together_are_taken_apart() -> None:
    whole, last = [rtp(number) for number in (65_535, 65_536, 65_537)], rtp(65_538, size=300)
    assert apart(b"".join([*whole, last])) == [*whole, last]
    assert apart(rtp(1, size=1400)) == [rtp(1, size=1400)], "one that is alone stays as it is"


def test_types_are_told_apart() -> None:
    nack, remb = struct.pack("!BBH", 0x81, 205, 3) + bytes(12), struct.pack("!BBH", 0x8F, 206, 5) + bytes(20)
    report = struct.pack("!BBH", 0x80, 201, 1) + bytes(4)
    assert kind_of(report + remb + nack, CODECS, encrypted=False) == "RTCP RR/REMB/NACK"
    assert kind_of(report + remb, CODECS, encrypted=True) == "RTCP RR", "the rest is not legible"
    assert [kind_of(bytes([first, 1, 0, 0]) + bytes(16), CODECS, encrypted=True) for first in (0, 22)] == ["STUN", "DTLS"]
    assert [kind_of(rtp(1, kind), CODECS, encrypted=True) for kind in (111, 96, 97)] == ["RTP audio, opus", "RTP video, VP8", "RTP retransmission"]


def test_each_way_is_counted_and_delays_are_of_the_same_packet() -> None:
    packets = []
    for number in range(200):
        at = number / 100
        packets += [
            Packet(at, BROWSER, EDGE, rtp(number)), Packet(at + 0.001, PLAIN, FOCUS, rtp(number)),
            Packet(at + 0.0011, FOCUS, (MEDIA_IP, 30_001), rtp(number + 40)[:4] + rtp(number)[4:]),  # renumbered: it is told by what it carries
            Packet(at + 0.0031, EDGE, ("198.18.2.2", 50_001), rtp(number + 1040, ssrc=9)),
        ]  # fmt: skip
    found = delays(packets)
    assert {name: (one["packets"], one["p50"]) for name, one in found.items()} == {"edge, from browser": (200, 1000), "data plane": (200, 100), "edge, to browser": (200, 2000)}
    packets.append(Packet(3, PLAIN, FOCUS, struct.pack("!BBH", 0x80, 201, 1) + bytes(4)))
    ways = table(packets, CODECS, 2.0)
    assert {way: sum(one["packets"] for one in kinds.values()) for way, kinds in ways["by_way"].items()} == {
        "browser to edge": 200, "edge to data plane": 201, "data plane to edge": 200, "edge to browser": 200,
    }  # fmt: skip
    assert ways["agent_percent_of_packets"] == 0.5
