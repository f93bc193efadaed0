"""Names of participants: the one rule for them, and the identifiers that the agent knows participants by. Pure functions.

A name is for people, in any script. It is kept in the participant's `signalling`. An identifier has the characters that the agent allows, and never changes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import unquote

from shunt.admin.model import Conference, Participant

LONGEST = 64
"""Characters of a name, after normalisation."""
KEY = "name"
"""The field of `signalling` that has the name."""
_IDENTIFIER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,62}")
_UNWANTED = re.compile(r"[^A-Za-z0-9_.@+-]")
_LONGEST_IDENTIFIER = 50  # without the number that keeps two apart
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # Bidi_Control (Unicode Standard Annex 9)
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")  # letters, marks and symbols that are not seen
_QUOTED = re.compile(r'\s*"((?:[^"\\]|\\.)*)"', re.DOTALL)


class BadName(Exception):
    """A text cannot be a participant's name; the message says why, without the text."""


def checked(text: str) -> str:
    """Returns the name in the form that is kept: Unicode's NFC, without white space around it. Raises BadName."""
    name = normal(text)
    for character in name:
        if character in _DIRECTIONS:
            raise BadName(f"the name has a character that changes the direction of writing (U+{ord(character):04X})")
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
            raise BadName(f"the name has a control character (U+{ord(character):04X})")
    if len(name) > LONGEST:
        raise BadName(f"the name has {len(name)} characters, and may have {LONGEST}")
    if not any(_seen(character) for character in name):
        raise BadName("the name has no visible character")
    return name


def normal(text: str) -> str:
    """Returns a text in Unicode's NFC, without spaces around it."""
    return unicodedata.normalize("NFC", text).strip(" \u00a0\u3000")


def _seen(character: str) -> bool:
    return unicodedata.category(character)[0] not in "CZM" and character not in _BLANK


def distinct(name: str, taken: Collection[str]) -> str:
    """Returns the name, with a number where somebody in the conference has it already; "ANN" and "ann" are one name."""
    folded = {_folded(one) for one in taken}
    found, number = name, 1
    while _folded(found) in folded:
        number += 1
        end = f"-{number}"
        found = name[: LONGEST - len(end)] + end
    return found


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def identifier(text: str, taken: Collection[str]) -> str:
    """Returns an identifier that nobody has: the text without accents and without other scripts, "guest" where nothing is left of it."""
    plain = "".join(character for character in unicodedata.normalize("NFKD", text) if character.isascii())
    wanted = _UNWANTED.sub("_", plain.strip())[:_LONGEST_IDENTIFIER].lstrip(".@+-")
    if not wanted.strip("_.@+-"):
        wanted = "guest"
    found, number = wanted, 1
    while found in taken:
        number += 1
        found = f"{wanted}-{number}"
    return found


def is_identifier(text: str) -> bool:
    """Whether the agent takes a text as it is."""
    return _IDENTIFIER.fullmatch(text) is not None


def admitted(conference: Conference, wanted: str, user: str | None = None) -> tuple[str, str]:
    """Returns the identifier and the name of somebody who comes into a conference. user: what the identifier is made of, the name unless given. Raises BadName."""
    members = conference["members"]
    name = distinct(checked(wanted), {shown(one) for one in members})
    return identifier(user or wanted, {one["participant"] for one in members}), name


def shown(participant: Participant) -> str:
    """Returns a participant's name: its identifier where it has no other."""
    return kept(participant["participant"], participant["signalling"])


def kept(participant: str, signalling: Any) -> str:
    """Returns the name that is kept in a participant's `signalling`. participant: the identifier."""
    name = signalling.get(KEY) if isinstance(signalling, Mapping) else None
    return name if isinstance(name, str) and name else participant


def words(participant: str, name: str) -> str:
    """Returns both for a log: the name, and the identifier where it is another one."""
    return name if name == participant else f"{name} ({participant})"


def caller(header: str, user: str | None) -> tuple[str, str]:
    """Returns the name and the user part of a SIP caller. header: the From header; user: the user part of its URI.

    A display name that cannot be a name costs nobody a call: the user part, or "anonymous", stands for it.
    """
    part = unquote(user or "") or "anonymous"
    for text in (_display_name(header), part):
        try:
            return checked(text), part
        except BadName:
            continue
    return "anonymous", part


def _display_name(header: str) -> str:
    """The display name of a name-addr (RFC 3261 section 25.1), empty where there is none."""
    if (quoted := _QUOTED.match(header)) is not None:
        return re.sub(r"\\(.)", r"\1", quoted[1], flags=re.DOTALL)
    before, bracket, _ = header.partition("<")
    return before.strip() if bracket else ""
