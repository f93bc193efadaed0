"""The relay's sessions as rtpproxy keys them: call-id and the tag;N of the first U. Pure state, no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shunt.net import Endpoint

TO_CALLEE = 0
"""Index of the leg whose port the callee sends to (the port in the reply to U)."""
TO_CALLER = 1
"""Index of the leg whose port the caller sends to (the port in the reply to L)."""


@dataclass(slots=True)
class Leg:
    """One party's side of a session: the relay's port towards it, and what signalling said about it.

    `signalled` is the address and port from the party's own U or L, where packets go until its real address is
    learned; `asymmetric` (modifier A) forbids learning; `weak` is the flag that D must clear with w.
    """

    address: str
    port: int = 0
    signalled: Endpoint | None = None
    asymmetric: bool = False
    weak: bool = False
    on_hold: bool = False
    codecs: tuple[int, ...] = ()
    tos: int | None = None


@dataclass(slots=True, eq=False)
class Session:
    """One media line of a call. Times are monotonic seconds; tag is the creator's tag with its `;N`."""

    call_id: str
    tag: str
    legs: tuple[Leg, Leg]
    ttl: float
    setup_ttl: float
    touched: float
    strong: bool = True
    complete: bool = False
    notify: tuple[str, str, str | None] | None = None
    """(socket, URL-encoded tag, address the command came from) for the time-out notice."""

    def limit(self) -> float:
        """Seconds without activity that the session may live: shorter or longer until the answer (L) came."""
        return self.ttl if self.complete else self.setup_ttl

    def set_ttl(self, seconds: float, now: float) -> None:
        """A new time-out for this session, counted from now."""
        self.ttl = self.setup_ttl = seconds
        self.touched = now

    def left(self, now: float, active: float = 0.0) -> float:
        """Seconds until the time-out; `active` is when media was last seen."""
        return max(self.touched, active) + self.limit() - now

    @property
    def held(self) -> bool:
        """Whether a strong or weak flag still keeps the session."""
        return self.strong or self.legs[0].weak or self.legs[1].weak


def tags_match(session_tag: str, given: str) -> int:
    """0 no match; 1 the same; 2 the session's tag is the given one with `;N` behind it (all media of a call)."""
    if session_tag == given:
        return 1
    return 2 if session_tag.startswith(given) and session_tag[len(given):len(given) + 1] == ";" else 0


@dataclass(slots=True)
class Deletion:
    """What a D did to the sessions it matched: gone, or kept by another flag. Neither is the error E50."""

    removed: list[Session] = field(default_factory=list)
    kept: list[Session] = field(default_factory=list)

    @property
    def matched(self) -> bool:
        return bool(self.removed or self.kept)


class SessionTable:
    """All sessions, by call-id and in order of creation."""

    def __init__(self) -> None:
        self._calls: dict[str, list[Session]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Session]:
        for sessions in list(self._calls.values()):
            yield from list(sessions)

    def add(self, session: Session) -> None:
        self._calls.setdefault(session.call_id, []).append(session)
        self._count += 1

    def remove(self, session: Session) -> None:
        """Raises KeyError or ValueError for a session that is not in the table."""
        sessions = self._calls[session.call_id]
        sessions.remove(session)
        self._count -= 1
        if not sessions:
            del self._calls[session.call_id]

    def clear(self) -> list[Session]:
        """Empty the table; returns what was in it."""
        sessions = list(self)
        self._calls.clear()
        self._count = 0
        return sessions

    def find(self, call_id: str, from_tag: str, to_tag: str | None) -> tuple[Session, int] | None:
        """The session a U, L or Q is about and its leg: TO_CALLEE if the creator's tag comes first, else TO_CALLER.

        Only one of the tags is compared (rtpproxy ignores the other: facts section 4). A second tag without `;N`
        matches too if the first one's `;N` is the session's.
        """
        for session in self._calls.get(call_id, ()):
            if session.tag == from_tag:
                return session, TO_CALLEE
            if to_tag is not None:
                match = tags_match(session.tag, to_tag)
                same_media = session.tag.rpartition(";")[1:] == from_tag.rpartition(";")[1:]
                if match == 1 or (match == 2 and same_media):
                    return session, TO_CALLER
        return None

    def delete(self, call_id: str, from_tag: str, to_tag: str | None, *, weak: bool) -> Deletion:
        """What D does: clears the strong flag (or with w the weak flag of the leg that the tags' order tells) of each
        session that matches, and removes those without a flag left. A tag with `;N` removes one session, a bare tag
        those of all media."""
        result = Deletion()
        for session in list(self._calls.get(call_id, ())):
            match, leg = tags_match(session.tag, from_tag), TO_CALLER
            if not match and to_tag is not None:
                match, leg = tags_match(session.tag, to_tag), TO_CALLEE
            if not match:
                continue
            if weak:
                session.legs[leg].weak = False
            else:
                session.strong = False
            if session.held:
                result.kept.append(session)
                continue
            self.remove(session)
            result.removed.append(session)
            if match == 1:
                break
        return result
