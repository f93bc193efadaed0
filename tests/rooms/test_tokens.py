"""Tokens open one room, in one role, until some time; nothing else opens one."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from shunt.operator.rooms.tokens import Grant, Signer, TokenRefused, signer

GRANT = Grant("board", "room", 2_000_000_000, "Ann Ä")
KEYS = Signer(b"k" * 32)


def test_a_token_says_what_was_granted() -> None:
    assert KEYS.grant(KEYS.token(GRANT), "board", now=1_999_999_999) == GRANT


def test_of_another_key_it_is_refused() -> None:
    with pytest.raises(TokenRefused, match="none of this server's"):
        Signer(b"l" * 32).grant(KEYS.token(GRANT), "board", now=0)


@pytest.mark.parametrize("text", ["", ".", "a.b", "e30.", "ä.ö", "\udc80.x", "x" * 5000])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(TokenRefused, match="none of this server's"):
        KEYS.grant(text, "board", now=0)


def test_every_changed_character_is_noticed() -> None:
    token = KEYS.token(GRANT)
    for at in range(len(token) - 1):  # the last carries two bits that mean nothing
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        with pytest.raises(TokenRefused):
            KEYS.grant(changed, "board", now=0)


def test_another_room_and_a_late_hour() -> None:
    token = KEYS.token(GRANT)
    with pytest.raises(TokenRefused, match="another room"):
        KEYS.grant(token, "kitchen", now=0)
    with pytest.raises(TokenRefused, match="expired") as refused:
        KEYS.grant(token, "board", now=2_000_000_001)
    assert refused.value.expired
    assert KEYS.grant(token, "board", now=2_000_000_001, late=True) == GRANT, "who is in already stays"


def test_the_key_is_made_once_and_is_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    token = signer(path).token(GRANT)
    assert signer(path).grant(token, "board", now=0) == GRANT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("short\n")
    with pytest.raises(ValueError, match="secret"):
        signer(path)
