"""Makes the media that the scenarios play: G.711 tones with RTCP reports, and video packets, as pcap files for SIPp.

The files it makes are kept beside it; run it again only to change them: python sipp-scenarios/make_media.py
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

HERE = Path(__file__).resolve().parent
SECONDS = 24
PTIME = 0.020
BASE_PORT = 6000
_PCAP_HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)


def ulaw(sample: int) -> int:
    """One 16-bit linear sample in G.711 mu-law."""
    sign = 0x80 if sample < 0 else 0
    magnitude = min(abs(sample), 32635) + 132
    exponent = magnitude.bit_length() - 8
    return ~(sign | exponent << 4 | magnitude >> (exponent + 3) & 0x0F) & 0xFF


def tone(hertz: float) -> bytes:
    """One second of a tone at 8 kHz."""
    return bytes(ulaw(round(8000 * math.sin(2 * math.pi * hertz * n / 8000))) for n in range(8000))


def rtp(payload_type: int, seq: int, timestamp: int, ssrc: int, payload: bytes, marker: bool = False) -> bytes:
    """An RTP packet (RFC 3550 section 5.1)."""
    return struct.pack("!BBHII", 0x80, payload_type | marker << 7, seq & 0xFFFF, timestamp & 0xFFFFFFFF, ssrc) + payload


def sender_report(ssrc: int, seconds: float, timestamp: int, packets: int, size: int) -> bytes:
    """An RTCP sender report without report blocks (RFC 3550 section 6.4.1)."""
    ntp = int(seconds * 2**32)
    return struct.pack("!BBHIQIII", 0x80, 200, 6, ssrc, ntp & (2**64 - 1), timestamp & 0xFFFFFFFF, packets, packets * size)


def record(seconds: float, port_offset: int, payload: bytes) -> bytes:
    """A pcap record: Ethernet, IPv4, UDP to BASE_PORT + port_offset. SIPp puts its own addresses and checksum in."""
    udp = struct.pack("!HHHH", BASE_PORT + port_offset, BASE_PORT + port_offset, 8 + len(payload), 0) + payload
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, bytes([192, 0, 2, 1]), bytes([192, 0, 2, 2]))
    frame = bytes(12) + b"\x08\x00" + ip + udp
    micros = round(seconds * 1_000_000)
    return struct.pack("<IIII", micros // 1_000_000, micros % 1_000_000, len(frame), len(frame)) + frame


def audio(path: Path, ssrc: int, first_seq: int, hertz: float, seconds: float = SECONDS) -> None:
    """G.711 at 50 packets/s on the media port, an RTCP sender report every 5 s (the first after 1 s) on the next one."""
    second = tone(hertz)
    records = []
    for n in range(round(seconds / PTIME)):
        at = n * PTIME
        payload = second[n % 50 * 160 : n % 50 * 160 + 160]
        records.append(record(at, 0, rtp(0, first_seq + n, n * 160, ssrc, payload, marker=n == 0)))
        if n % 250 == 50:
            records.append(record(at + 0.005, 1, sender_report(ssrc, at, n * 160, n, 160)))
    path.write_bytes(_PCAP_HEADER + b"".join(records))


def video(path: Path, ssrc: int, first_seq: int) -> None:
    """25 frames/s of two packets each, payload type 96; the contents are not video."""
    records = []
    for n in range(SECONDS // 2 * 50):
        frame, part = divmod(n, 2)
        payload = bytes([0x7C, 0x85 if part == 0 else 0x45]) + bytes((n + i) & 0xFF for i in range(301 + part))
        records.append(record(frame * 0.04 + part * 0.001, 0, rtp(96, first_seq + n, frame * 3600, ssrc, payload, marker=part == 1)))
    path.write_bytes(_PCAP_HEADER + b"".join(records))


def main() -> None:
    audio(HERE / "media_caller.pcap", 0x0CA11E01, 1000, 440.0)
    audio(HERE / "media_callee.pcap", 0x0CA11EE2, 65000, 1000.0)  # its sequence numbers wrap after 10 s
    video(HERE / "video_caller.pcap", 0x0CA11E03, 20000)
    video(HERE / "video_callee.pcap", 0x0CA11EE4, 30000)
    (HERE / "audio_caller.ulaw").write_bytes(tone(440.0))
    (HERE / "audio_callee.ulaw").write_bytes(tone(1000.0))


if __name__ == "__main__":
    main()
