"""The event bus: what the agent says that happened, handed to whoever wants to know."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

# Kinds of events, and what `what` holds for each.
SIP = "sip"  # a method, or a status as text; facts: source, destination, cseq, cseq_number, from_tag, to_tag, media
CONTROL = "control"  # a command's letter, or NG's command; facts: command, reply (bytes or None), relay, seconds
LEARN = "learn"  # a verdict of learning; facts: source, port, ssrc, seq, payload_type
TABLE = "table"  # insert, modify, delete; facts: key, rewrite, outcome, detail, seconds (of a write that failed)
STATE = "state"  # the new state of a stream; facts: reason, before, detail, and after_ms for an offload
CONFERENCE = "conference"  # joined, left, source, target, downlink, …; call_id is empty, facts: conference, and what says more
NOTE = "note"  # anything else, in a word: suspended, resumed, ended, media-timeout, moved, idle, …


@dataclass(slots=True, eq=False)
class Event:
    """One thing that happened. at: Unix time, so that events of several runs of the agent are in order; call_id: "" for the agent as a whole.

    party and component name the stream where the event is about one; facts are values of the kind, kept
    as they are and only written as text when somebody reads them. count and until grow when
    like events follow each other closely. epoch and seq: its place in the event log of the admin API, 0 where it has none.
    """

    kind: str
    call_id: str
    what: str
    at: float
    media: int | None
    party: str | None
    component: str | None
    facts: dict[str, Any]
    count: int = 1
    until: float = 0.0
    epoch: int = 0
    seq: int = 0


Subscriber = Callable[[Event], None]


class EventBus:
    """Hands every event to every subscriber, at once and in order. A subscriber that fails is logged, never felt."""

    def __init__(self) -> None:
        self._subscribers: list[tuple[Subscriber, Collection[str] | None]] = []
        self._of: dict[str, tuple[Subscriber, ...]] = {}  # by kind

    def subscribe(self, subscriber: Subscriber, kinds: Collection[str] | None = None) -> None:
        """Call `subscriber` with every event of these kinds (None: of all) from now on. It must not wait for anything."""
        self._subscribers.append((subscriber, kinds))
        self._of.clear()

    def _subscribers_of(self, kind: str) -> tuple[Subscriber, ...]:
        found = self._of[kind] = tuple(subscriber for subscriber, kinds in self._subscribers if kinds is None or kind in kinds)
        return found

    def publish(self, event: Event) -> None:
        """Hand out an event."""
        subscribers = self._of.get(event.kind)
        for subscriber in self._subscribers_of(event.kind) if subscribers is None else subscribers:
            try:
                subscriber(event)
            except Exception:
                log.exception("an event (%s %s) could not be processed", event.kind, event.what)
