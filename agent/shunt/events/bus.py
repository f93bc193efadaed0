"""The event bus: parts of the agent say what happened in one call each, and whoever wants to know subscribes.

Nothing here is called for a media packet; an emit without subscribers costs one comparison.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

# Kinds of events, and what `what` holds for each.
SIP = "sip"  # a method, or a status as text; facts: source, destination, cseq, from_tag, to_tag, media
CONTROL = "control"  # a command letter; facts: command, reply (bytes or None), relay, seconds
RELAY = "relay"  # a relay's name; facts: seconds, answered (one command that the agent passed on)
LEARN = "learn"  # a verdict of guarded latching; facts: source, port, ssrc, seq, payload_type
TABLE = "table"  # insert, modify, delete; facts: key, rewrite, outcome, detail, seconds, last
STATE = "state"  # the new state of a stream; facts: reason, before, detail, and after_ms for an offload
CONFERENCE = "conference"  # joined, left, source, target, downlink, …; call_id is empty, facts: conference, and what says more
NOTE = "note"  # anything else, in a word: suspended, resumed, ended, media-timeout, rebound, idle, …


@dataclass(slots=True, eq=False)
class Event:
    """One thing that happened. at: monotonic seconds; wall: Unix time; call_id: "" for the agent as a whole.

    party and component name the stream where the event is about one; facts are values of the kind, kept
    as they are and only written as text when somebody reads them. count and until (monotonic) grow when
    like events follow each other closely. epoch and seq: its place in the event log of the admin API, 0 where it has none.
    """

    kind: str
    call_id: str
    what: str
    at: float
    wall: float
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

    def emit(
        self, kind: str, call_id: str, what: str, *, at: float | None = None,
        media: int | None = None, party: str | None = None, component: str | None = None, **facts: Any,
    ) -> None:
        """Report an event. at: monotonic seconds when it began, where that was not just now."""
        subscribers = self._of.get(kind)
        if subscribers is None:
            subscribers = self._subscribers_of(kind)
        if not subscribers:
            return
        now, wall = time.monotonic(), time.time()
        if at is not None:
            wall -= now - at
            now = at
        self._hand_out(subscribers, Event(kind, call_id, what, now, wall, media, party, component, facts))

    def publish(self, event: Event) -> None:
        """Hand out an event that somebody else has reported."""
        subscribers = self._of.get(event.kind)
        self._hand_out(self._subscribers_of(event.kind) if subscribers is None else subscribers, event)

    @staticmethod
    def _hand_out(subscribers: tuple[Subscriber, ...], event: Event) -> None:
        for subscriber in subscribers:
            try:
                subscriber(event)
            except Exception:
                log.exception("an event (%s %s) could not be used", event.kind, event.what)
