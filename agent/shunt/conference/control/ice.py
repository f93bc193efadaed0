"""STUN on media ports (RFC 8489) as an ICE-lite agent has to answer it (RFC 8445): checks are answered, none are sent.

What is not a check with the right credentials is not answered at all: media ports are open to everybody, and an
answer to a forged source would go to a victim.
"""

from __future__ import annotations

import secrets
import string
import struct
from typing import NamedTuple

from aioice import stun

from shunt.net import Endpoint

_ICE_CHARS = string.ascii_letters + string.digits + "+/"
_COOKIE = stun.COOKIE.to_bytes(4, "big")


class Credentials(NamedTuple):
    """Of the agent's side towards one participant (RFC 8839 section 5.4)."""

    ufrag: str
    pwd: str


class Check(NamedTuple):
    """A connectivity check that holds: what to answer, and whether the peer has settled on this pair of addresses."""

    answer: bytes
    nominated: bool


def make_credentials() -> Credentials:
    """New ones: 48 and 144 bits of chance (24 and 128 are the least)."""
    return Credentials(*("".join(secrets.choice(_ICE_CHARS) for _ in range(length)) for length in (8, 24)))


def is_stun(data: bytes) -> bool:
    """Whether a packet on a media port is STUN (RFC 7983)."""
    return len(data) >= 20 and data[0] < 4 and data[4:8] == _COOKIE


def check(data: bytes, source: Endpoint, mine: Credentials) -> Check | None:
    """Judge a packet from `source`; None when it is no binding request with these credentials. Never raises."""
    try:
        request = stun.parse_message(data)
    except (ValueError, struct.error):
        return None
    if (request.message_method, request.message_class) != (stun.Method.BINDING, stun.Class.REQUEST):
        return None
    key = mine.pwd.encode()
    if not str(request.attributes.get("USERNAME", "")).startswith(f"{mine.ufrag}:") or not request.check_message_integrity(key):
        return None
    answer = stun.Message(stun.Method.BINDING, stun.Class.RESPONSE, request.transaction_id, {"XOR-MAPPED-ADDRESS": (source.ip, source.port)})
    answer.add_message_integrity(key)
    return Check(bytes(answer), "USE-CANDIDATE" in request.attributes)
