"""Netlink (netlink(7), rtnetlink(7), and generic netlink): one request, its answers, their attributes."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

ROUTE, GENERIC = 0, 16
_REQUEST = 1
_ERROR, _DONE = 2, 3
_NESTED = 0x8000
_TYPE_MASK = 0x3FFF
_CONTROL_FAMILY, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2
_TIMEOUT_S = 1.0


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded."""
    return struct.pack("=HH", len(value) + 4, kind) + value + bytes(-len(value) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | _NESTED, b"".join(attributes))


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, value) of each attribute."""
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            return
        yield kind & _TYPE_MASK, data[at + 4 : at + length]
        at += (length + 3) & ~3


def number(value: bytes) -> int:
    """An unsigned number of 1, 2, 4 or 8 bytes."""
    return int(struct.unpack("=" + {1: "B", 2: "H", 4: "I", 8: "Q"}[len(value)], value)[0])


def text(value: bytes) -> str:
    """A string that ends with a zero byte."""
    return value.split(b"\0", 1)[0].decode(errors="replace")


def ask(protocol: int, kind: int, body: bytes) -> bytes:
    """The body of the kernel's answer to a request that has one answer. Raises OSError with the kernel's error."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as channel:
        channel.settimeout(_TIMEOUT_S)
        channel.bind((0, 0))
        channel.send(struct.pack("=IHHII", 16 + len(body), kind, _REQUEST, 1, 0) + body)
        data = channel.recv(1 << 18)
    length, answer = struct.unpack_from("=IH", data)
    if answer == _ERROR:
        error = -struct.unpack_from("=i", data, 16)[0]
        raise OSError(error, os.strerror(error))
    if answer == _DONE:
        raise OSError(0, "the kernel's answer is empty")
    return data[16:length]


def ask_family(name: str, command: int, *body: bytes) -> list[tuple[int, bytes]]:
    """The attributes of the answer of a generic netlink family. Raises OSError, with ENOENT where the kernel has no such family."""
    found = ask(GENERIC, _CONTROL_FAMILY, struct.pack("=BBH", _GET_FAMILY, 1, 0) + attribute(_FAMILY_NAME, name.encode() + b"\0"))
    family = number(dict(attributes(found[4:]))[_FAMILY_ID])
    return list(attributes(ask(GENERIC, family, struct.pack("=BBH", command, 1, 0) + b"".join(body))[4:]))
