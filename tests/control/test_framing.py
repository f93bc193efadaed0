"""Control-socket addresses and where a stream's commands and replies end."""

from __future__ import annotations

import pytest

from shunt.control.framing import ControlAddress, info_reply_end, is_info, parse_address, take_line
from tests.control.relay_double import INFO


@pytest.mark.parametrize(
    ("text", "expected", "shown"),
    [
        ("udp:127.0.0.1:22222", ControlAddress("udp", "127.0.0.1", 22222), "udp:127.0.0.1:22222"),
        ("udp:*:22222", ControlAddress("udp", "", 22222), "udp:*:22222"),
        ("udp:[::1]:22222", ControlAddress("udp", "::1", 22222, family6=True), "udp:[::1]:22222"),
        ("udp6:::1:22222", ControlAddress("udp", "::1", 22222, family6=True), "udp:[::1]:22222"),
        ("tcp6:[fd00::1]:1", ControlAddress("tcp", "fd00::1", 1, family6=True), "tcp:[fd00::1]:1"),
        ("tcp:relay.example:22222", ControlAddress("tcp", "relay.example", 22222), "tcp:relay.example:22222"),
        ("unix:/run/r.sock", ControlAddress("unix", path="/run/r.sock"), "unix:/run/r.sock"),
        ("cunix:r.sock", ControlAddress("cunix", path="r.sock"), "cunix:r.sock"),
        ("/run/r.sock", ControlAddress("unix", path="/run/r.sock"), "unix:/run/r.sock"),
    ],
)
def test_addresses(text, expected, shown):
    assert parse_address(text) == expected and str(parse_address(text)) == shown


@pytest.mark.parametrize(
    "text",
    ["", "udp", "udp:1.2.3.4", "udp:1.2.3.4:x", "udp:1.2.3.4:70000", "sctp:1.2.3.4:5", "udp:::1:5", "unix:",
     "udp:[1.2.3.4]:5", "tcp:a b:5", "unix:" + "x" * 108],
)
def test_bad_addresses(text):
    with pytest.raises(ValueError):
        parse_address(text)


def test_lines():
    buffer = bytearray(b"V\r\nVF 2005")
    assert take_line(buffer) == b"V" and take_line(buffer) is None and buffer == b"VF 2005"


def test_info_has_several_lines():
    assert is_info(b"Ib") and is_info(b"i") and not is_info(b"V")
    whole = INFO + b"\n"
    assert all(info_reply_end(b"I", whole[:n]) == 0 for n in range(len(whole)))
    assert info_reply_end(b"I", whole) == len(whole)
    assert info_reply_end(b"Il", whole) == 0
    loaded = whole + b"average load: 0.000000\n"
    assert info_reply_end(b"Il", loaded) == len(loaded)
    assert info_reply_end(b"Ix", b"E18\n") == 4
