"""What the journal needs of a place to keep calls in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class JournalError(OSError):
    """The store cannot be used or did not take a write; the message names it and says why."""


class Fenced(JournalError):
    """Another agent has taken over: this one must not write any more."""


@dataclass(slots=True)
class Group:
    """What one write changes: bodies by call-id, by session of the built-in relay and by conference; None removes."""

    calls: dict[str, str | None] = field(default_factory=dict)
    sessions: dict[str, str | None] = field(default_factory=dict)
    conferences: dict[str, str | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.calls or self.sessions or self.conferences)


class Store(Protocol):
    """A place that keeps bodies of calls and of the built-in relay's sessions. `name` is for messages.

    promises: whether it can make sure of something without waiting.
    """

    name: str
    promises: bool

    async def open(self) -> None:
        """Raises JournalError when it cannot be used or is of another format."""
        ...

    async def load(self) -> tuple[list[tuple[str, str]], dict[str, str]]:
        """(call-id, body) of every call, and the sessions' bodies. Raises JournalError."""
        ...

    def promise(self, group: Group) -> bool:
        """Make sure of this against the death of the process, at once; a write of all that was promised follows. False where that cannot be."""
        ...

    async def write(self, group: Group) -> None:
        """All of the group or nothing of it. Raises JournalError; Fenced when another agent has taken over."""
        ...

    async def close(self) -> None:
        """Idempotent."""
        ...


class SharedStore(Store, Protocol):
    """A store that the agents of a pair share. Conferences are kept there, too: those of an agent that stands alone have a folder."""

    async def conferences(self) -> dict[str, str]:
        """Bodies of conferences by name. Raises JournalError."""
        ...
