"""Tokens of rooms: who holds one may come into one room, in one role, until some time. Signed, and kept nowhere.

TOKEN = BASE64URL(JSON) "." BASE64URL(HMAC-SHA-256 of the first part). The key is in a file that the daemon makes.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

Role = Literal["room", "publish", "watch"]
ROLES: tuple[Role, ...] = ("room", "publish", "watch")
LONGEST_S = 366 * 86400
_KEY_BYTES = 32
_LONGEST = 1024  # characters of a token


class TokenRefused(Exception):
    """A token does not open this room; the text says why. expired: it did once."""

    def __init__(self, message: str, *, expired: bool = False) -> None:
        super().__init__(message)
        self.expired = expired


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token allows. until: Unix time; name: what its holder is called in the room, empty: as it wishes."""

    room: str
    role: Role
    until: int
    name: str = ""


class Signer:
    """Makes and reads tokens with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def token(self, grant: Grant) -> str:
        """The token of a grant."""
        given = {"room": grant.room, "role": grant.role, "until": grant.until} | ({"name": grant.name} if grant.name else {})
        body = _encoded(json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode())
        return f"{body}.{_encoded(self._mac(body))}"

    def grant(self, token: str, room: str, now: float | None = None, *, late: bool = False) -> Grant:
        """What a token allows in a room. late: also after its time, for who is in already. Raises TokenRefused."""
        body, _, mac = token.partition(".")
        if len(token) > _LONGEST or not mac or not hmac.compare_digest(_decoded(mac), self._mac(body)):
            raise TokenRefused("the token is none of this server's")
        given = json.loads(_decoded(body))
        grant = Grant(str(given["room"]), cast(Role, given["role"]), int(given["until"]), str(given.get("name", "")))
        if grant.room != room:
            raise TokenRefused(f"the token is for another room than {room}")
        if not late and grant.until < (time.time() if now is None else now):
            raise TokenRefused("the token has expired: ask for a new link", expired=True)
        return grant

    def _mac(self, body: str) -> bytes:
        return hmac.digest(self._key, body.encode("utf-8", "surrogateescape"), hashlib.sha256)


def signer(path: Path) -> Signer:
    """With the key of a file, which is made where there is none. Raises ValueError and OSError, naming it."""
    with contextlib.suppress(FileExistsError):
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(made, "w", encoding="ascii") as stream:
            stream.write(secrets.token_hex(_KEY_BYTES) + "\n")
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except ValueError:
        key = b""
    if len(key) < _KEY_BYTES:
        raise ValueError(f"rooms.secret_file {path}: it has to hold at least {2 * _KEY_BYTES} hexadecimal digits")
    return Signer(key)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    """The bytes of base64url; none where it is no such text."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
