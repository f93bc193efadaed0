"""The pcapng writer, frames and filters of `shunt capture`, as plain functions."""

from __future__ import annotations

import io
import struct

import pytest

from shunt.cli import frames
from shunt.cli.capture import filter_of, streams_of
from shunt.cli.failure import Failure
from shunt.cli.pcapng import ETHERNET, INBOUND, Writer


def _blocks(data: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        assert length % 4 == 0 and struct.unpack_from("<I", data, at + length - 4) == (length,), "the length stands at both ends"
        found.append((kind, data[at + 8 : at + length - 4]))
        at += length
    return found


@pytest.mark.parametrize("size", range(9))
def test_blocks_are_whole_and_aligned(size: int) -> None:
    stream = io.BytesIO()
    writer = Writer(stream, "shunt")
    number = writer.interface(ETHERNET, "x" * size, "ä" * 40_000, "comment")
    writer.packet(number, (7 << 32) + 5, b"f" * size, 60, INBOUND, "c" * size)
    writer.statistics(number, 1, 2, 3)
    blocks = _blocks(stream.getvalue())
    assert [kind for kind, _ in blocks] == [0x0A0D0D0A, 1, 6, 5]
    assert struct.unpack_from("<IIIII", blocks[2][1]) == (0, 7, 5, size, 60)
    assert writer.bytes == len(stream.getvalue())


def _rtp(csrcs: int, extension: int | None) -> bytes:
    head = bytes([0x80 | csrcs | (16 if extension is not None else 0), 0]) + bytes(10 + 4 * csrcs)
    return head + (struct.pack("!HH", 0xBEDE, extension) + bytes(4 * extension) if extension is not None else b"")


@pytest.mark.parametrize("csrcs", [0, 3, 15])
@pytest.mark.parametrize("extension", [None, 0, 2])
@pytest.mark.parametrize("tags", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 6])
def test_only_headers_of_rtp_are_kept(csrcs: int, extension: int | None, tags: int, version: int) -> None:
    address = {4: "192.0.2.1", 6: "2001:db8::1"}[version]
    head = _rtp(csrcs, extension)
    packet = frames.datagram(address, 1, address, 2, head + b"media")
    frame = bytes(12) + b"\x81\x00\x00\x01" * tags + {4: b"\x08\x00", 6: b"\x86\xdd"}[version] + packet
    at = frames.payload_at(frame)
    assert at is not None and frame[at:] == head + b"media"
    assert frames.header_length(frame[at:]) == len(head)


def test_rtcp_is_kept_and_other_packets_are_not() -> None:
    report = b"\x80\xc8\x00\x06" + bytes(24)
    assert frames.is_rtcp(report) and frames.header_length(report) == len(report)
    assert not frames.is_rtcp(_rtp(0, None)) and frames.header_length(b"T.38 or STUN") == 0
    assert frames.payload_at(b"") is None and frames.payload_at(bytes(60)) is None


def test_text_of_the_admin_api_gives_the_bytes_again() -> None:
    assert frames.bytes_of(r"a\\x41\xff" + "ä") == b"a\\x41\xff\xc3\xa4"


def test_targets() -> None:
    assert filter_of("a84b4c@pc33") == {"call": "a84b4c@pc33"}
    assert filter_of("call=") == {"match": ""}
    assert filter_of("address=192.0.2.1") == {"address": "192.0.2.1"}
    assert filter_of("address=[2001:db8::1]:40000") == {"address": "2001:db8::1", "port": 40000}
    for wrong in ("state=offloaded", "address=", "address=192.0.2.1:x"):
        with pytest.raises(Failure):
            filter_of(wrong)


def test_each_relay_port_has_its_stream() -> None:
    call = {
        "call": "c",
        "lines": [
            {
                "media": 1,
                "caller": {"relay_port": "203.0.113.1:40000"},
                "callee": {"relay_port": None},
                "streams": [{"from": "caller", "component": "rtcp", "state": "offloaded", "reason": "offloaded", "entry": {"destination": "203.0.113.1:40001"}}],
            }
        ],
    }
    assert {str(port): (stream.name, stream.state) for port, stream in streams_of(call).items()} == {
        "203.0.113.1:40000": ("media 1 rtp from the caller", "unknown"),
        "203.0.113.1:40001": ("media 1 rtcp from the caller", "offloaded, offloaded"),
    }
