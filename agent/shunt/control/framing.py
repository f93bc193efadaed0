"""Control-socket addresses, and where a command or reply ends in a stream. Pure functions, no I/O.

Datagram: `<cookie> <command>`, answered by `<cookie> <reply>\\n`. Stream (tcp, cunix, unix): no cookie; a newline ends
a command and a reply, except that the reply to I has several lines (facts sections 1 and 8).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

MAX_COMMAND = 8192
"""Longest command in bytes; rtpproxy's own buffer."""
MAX_REPLY = 65536
"""Longest reply in bytes that is accepted from a relay."""

KINDS = ("udp", "tcp", "unix", "cunix")

_ERROR_LINE = re.compile(rb"E[0-9]{1,3}\r?\n")


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """Where a control socket is. `host` is "" for every local address; `family6` when IPv6 was asked for."""

    kind: str
    host: str = ""
    port: int = 0
    path: str = ""
    family6: bool = False

    @property
    def is_unix(self) -> bool:
        """True for unix and cunix."""
        return self.kind in ("unix", "cunix")

    def __str__(self) -> str:
        if self.is_unix:
            return f"{self.kind}:{self.path}"
        host = self.host or "*"
        return f"{self.kind}:[{host}]:{self.port}" if ":" in host else f"{self.kind}:{host}:{self.port}"


def parse_address(text: str) -> ControlAddress:
    """Read `udp:HOST:PORT`, `udp6:HOST:PORT`, `tcp:…`, `tcp6:…`, `unix:PATH`, `cunix:PATH`, or a bare path (unix).

    HOST is an address (IPv6 in brackets), a name, or `*` or nothing for every address. Raises ValueError.
    """
    if text.startswith("/"):
        return ControlAddress("unix", path=text)
    scheme, colon, rest = text.partition(":")
    if not colon:
        raise ValueError(f"{text!r} is not a control socket: expected udp:, tcp:, unix: or cunix: and an address")
    if scheme in ("unix", "cunix"):
        if not rest or "\0" in rest:
            raise ValueError(f"{text!r} has no path")
        if len(rest.encode()) > 107:
            raise ValueError(f"{text!r}: a unix socket's path has at most 107 bytes")
        return ControlAddress(scheme, path=rest)
    family6 = scheme in ("udp6", "tcp6")
    kind = scheme[:-1] if family6 else scheme
    if kind not in KINDS:
        raise ValueError(f"{text!r}: unknown kind {scheme!r}, expected udp, udp6, tcp, tcp6, unix or cunix")
    host, colon, port = rest.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{text!r} does not end in :PORT (0..65535)")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None
    elif ":" in host and not family6:
        raise ValueError(f"{text!r}: an IPv6 address goes in brackets")
    if re.search(r"[\s\[\]/]", host):
        raise ValueError(f"{text!r}: {host!r} is not a host")
    return ControlAddress(kind, "" if host == "*" else host, int(port), family6=family6 or ":" in host)


def take_line(buffer: bytearray) -> bytes | None:
    """Remove and return the first whole line of a stream's buffer, without its end; None if there is none yet."""
    end = buffer.find(b"\n")
    if end < 0:
        return None
    line = bytes(buffer[:end]).rstrip(b"\r")
    del buffer[: end + 1]
    return line


def is_info(command: bytes) -> bool:
    """True for I, the one command whose reply has several lines."""
    word = command.lstrip(b" \t\r\n")[:1]
    return word in (b"I", b"i")


def info_reply_end(command: bytes, buffer: bytes) -> int:
    """Length of the reply to I at the start of a stream's buffer; 0 while it is not complete.

    The last line is `packets transmitted:`, or with modifier l `average load:`. All that has arrived by then is taken,
    so nothing may be pipelined behind I.
    """
    if not buffer.endswith(b"\n"):
        return 0
    if _ERROR_LINE.match(buffer):
        return len(buffer)
    first = command.split()[0] if command.split() else b""
    last = b"average load:" if b"l" in first[1:].lower() else b"packets transmitted:"
    return len(buffer) if last in buffer else 0
