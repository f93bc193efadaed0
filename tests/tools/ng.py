"""rtpengine's NG protocol, as much of it as tests need: bencode, and a client over UDP."""

from __future__ import annotations

import itertools
import os
import socket
from typing import Any

_LARGEST = 65_535
_cookies = itertools.count(1)


class NgError(Exception):
    """No answer, or one that says that the command failed."""


def encode(value: Any) -> bytes:
    """Bencode: dictionaries keep their order, as SIP servers write them. Booleans are not part of it."""
    if isinstance(value, dict):
        return b"d" + b"".join(encode(key) + encode(item) for key, item in value.items()) + b"e"
    if isinstance(value, (list, tuple)):
        return b"l" + b"".join(map(encode, value)) + b"e"
    if isinstance(value, int):
        return b"i%de" % value
    data = value.encode() if isinstance(value, str) else bytes(value)
    return b"%d:" % len(data) + data


def decode(data: bytes) -> Any:
    """The one value that these bytes are. Raises ValueError."""
    value, end = _value(data, 0)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes after the end")
    return value


def _value(data: bytes, at: int) -> tuple[Any, int]:
    kind = data[at : at + 1]
    if kind == b"i":
        end = data.index(b"e", at)
        return int(data[at + 1 : end]), end + 1
    if kind in (b"l", b"d"):
        items, at = [], at + 1
        while data[at : at + 1] != b"e":
            item, at = _value(data, at)
            items.append(item)
        return (items if kind == b"l" else dict(zip(items[::2], items[1::2]))), at + 1
    colon = data.index(b":", at)
    end = colon + 1 + int(data[at:colon])
    if end > len(data):
        raise ValueError(f"a string at {at} is longer than the message")
    return data[colon + 1 : end].decode(errors="surrogateescape"), end


class NgClient:
    """Sends commands over a UDP socket and waits for their replies, repeating a command as SIP servers do."""

    def __init__(self, sock: socket.socket, address: tuple[str, int], timeout: float = 0.5, tries: int = 4) -> None:
        self._socket, self._address, self._timeout, self._tries = sock, address, timeout, tries

    def __enter__(self) -> NgClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def command(self, command: str, **keys: Any) -> dict[str, Any]:
        """The reply to a command; of keys, "_" stands for "-". Raises NgError where there is none, or it is an error."""
        reply = self.ask(command, **keys)
        if reply.get("result") not in ("ok", "pong"):
            raise NgError(f"{command} {keys}: {reply}")
        return reply

    def ask(self, command: str, **keys: Any) -> dict[str, Any]:
        """The same, but an error is a reply too."""
        cookie = b"test-%d-%d" % (os.getpid(), next(_cookies))
        message = cookie + b" " + encode({name.replace("_", "-"): value for name, value in keys.items()} | {"command": command})
        for _ in range(self._tries):
            self._socket.sendto(message, self._address)
            self._socket.settimeout(self._timeout)
            try:
                while True:
                    reply, _ = self._socket.recvfrom(_LARGEST)
                    name, _, body = reply.partition(b" ")
                    if name == cookie:
                        return dict(decode(body))
            except OSError:
                continue
        raise NgError(f"{self._address} does not answer {command}")
