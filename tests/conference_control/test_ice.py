"""Connectivity checks: the RFC's own example, what Chromium sent, forgeries, and a participant that is reached by ICE alone."""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
import struct

import pytest

from shunt.conference.control.ice import Check, Credentials, check, is_stun, make_credentials
from shunt.net import Endpoint
from tests.conference import captures
from tests.conference_control.stun import request

SOURCE = Endpoint.of("192.0.2.1", 32853)
# RFC 5769 section 2.1, with its password.
MINE = Credentials("evtj", "VOkJxbRl1RmTxUk/WvJxBt")
SAMPLE = bytes.fromhex(
    "000100582112a442b7e7a701bc34d686fa87dfae802200105354554e207465737420636c69656e74002400046e0001ff80290008932ff9b151263b36"
    "00060009" + b"evtj:h6vY".hex() + "202020" + "000800149aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a280280004e57a3bcf"
)  # fmt: skip


def test_the_rfcs_example_is_answered() -> None:
    found = check(SAMPLE, SOURCE, MINE)
    assert found is not None and not found.nominated
    answer = found.answer
    assert answer[:2] == b"\x01\x01" and answer[4:20] == SAMPLE[4:20] and struct.unpack("!H", answer[2:4])[0] == len(answer) - 20
    # RFC 5769 section 2.2 has the same address.
    assert answer[20:32] == bytes.fromhex("002000080001a147e112a643")
    assert answer[32:36] == b"\x00\x08\x00\x14"
    signed = answer[:2] + struct.pack("!H", 32 - 20 + 24) + answer[4:32]
    assert answer[36:56] == hmac.digest(MINE.pwd.encode(), signed, hashlib.sha1)
    assert answer[56:] == struct.pack("!HHI", 0x8028, 4, binascii.crc32(answer[:56]) ^ 0x5354554E)


def test_nominations_are_told_and_ipv6_is_answered() -> None:
    found = check(request(MINE, nominate=True), Endpoint.of("2001:db8::7", 4000), MINE)
    assert isinstance(found, Check) and found.nominated and found.answer[20:26] == bytes.fromhex("002000140002")


@pytest.mark.parametrize(
    "data",
    [
        request(MINE, key="another"), request(Credentials("evtk", MINE.pwd)), request(MINE, kind=0x11), request(MINE)[:-1], SAMPLE[:-4] + b"\0\0\0\0",
        SAMPLE[:20].replace(b"\x00\x58", b"\x00\x00", 1), b"", bytes(20), SAMPLE.replace(b"\x80\x29\x00\x08", b"\x80\x29\xff\x08"), SAMPLE.replace(b"\x00\x24\x00\x04", b"\x00\x24\x00\x03"),
    ],
)
def test_what_is_no_check_of_ours_is_not_answered(data: bytes) -> None:
    assert check(data, SOURCE, MINE) is None


def test_credentials_are_of_chance_and_of_the_alphabet() -> None:
    made = {make_credentials() for _ in range(100)}
    assert len(made) == 100 and all(re.fullmatch("[A-Za-z0-9+/]{8}", one.ufrag) and re.fullmatch("[A-Za-z0-9+/]{24}", one.pwd) for one in made)


@pytest.mark.skipif(not captures.names(), reason="needs the captures of a browser")
@pytest.mark.parametrize("name", captures.names())
def test_checks_of_a_browser_are_answered(name: str) -> None:
    """Each of a browser's requests holds with the password of the side that it went to, and with no other."""
    sides = []
    for part in ("offer", "answer"):
        text = (captures.FOLDER / f"{name}.{part}.sdp").read_text()
        sides.append(Credentials(re.search(r"a=ice-ufrag:(\S+)", text)[1], re.search(r"a=ice-pwd:(\S+)", text)[1]))  # type: ignore[index]
    requests = [one.payload for one in captures.datagrams(name) if is_stun(one.payload) and one.payload[:2] == b"\0\1"]
    assert len(requests) > 5
    held = [[check(data, SOURCE, side) is not None for side in sides] for data in requests]
    assert all(sum(one) == 1 for one in held) and {one.index(True) for one in held} == {0, 1}
