"""The HEPv3 packets that go to Homer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunt.export.hep import HepError, HepPacket, encode
from shunt.net import Endpoint
from tests.tools.hep import decode

A = Endpoint.of("192.0.2.10", 5060)
B = Endpoint.of("198.51.100.7", 5062)


def test_bytes_are_those_of_the_specification() -> None:
    """Written out by hand from the HEPv3 layout."""
    packet = HepPacket(A, B, b"AB", kind=100, seconds=0x65000000, microseconds=42, capture_id=7, correlation_id=b"c1")
    assert encode(packet).hex(" ", 2).replace(" ", "") == (
        "48455033" "006d" + "0000000100" "0702" + "0000000200" "0711" + "0000000300" "0ac000020a" + "0000000400" "0ac6336407" + "0000000700" "0813c4" + "0000000800" "0813c6"
        + "0000000900" "0a65000000" + "0000000a00" "0a0000002a" + "0000000b00" "0764" + "0000000c00" "0a00000007" + "0000001100" "086331" + "0000000f00" "084142"
    )  # fmt: skip


@given(st.binary(max_size=2000), st.binary(max_size=50), st.booleans(), st.integers(0, 255), st.integers(0, 2**32 - 1))
def test_a_capture_server_reads_what_was_sent(payload: bytes, call: bytes, v6: bool, kind: int, number: int) -> None:
    ends = (Endpoint.of("2001:db8::1", 5060), Endpoint.of("2001:db8::2", 5061)) if v6 else (A, B)
    packet = HepPacket(*ends, payload, kind=kind, protocol=6, seconds=number, microseconds=42, capture_id=number, correlation_id=call)
    assert decode(encode(packet)) == packet


def test_what_cannot_be_sent_is_said() -> None:
    with pytest.raises(HepError, match="65535"):
        encode(HepPacket(A, B, bytes(65535)))
    with pytest.raises(HepError, match="different IP versions"):
        encode(HepPacket(A, Endpoint.of("2001:db8::1", 1), b"x"))
