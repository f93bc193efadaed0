"""Follows the agent's event stream, and publishes what comes on the event bus."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from shunt.admin import (
    AdminClient,
    AdminError,
    AgentError,
    AgentUnreachable,
    EventStream,
    Gap,
)
from shunt.events.bus import EventBus
from shunt.operator.events import bus_event, gap_event
from shunt.operator.position import Position

log = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 5.0
_GAPS_KEPT = 100


@dataclass(frozen=True, slots=True)
class Missing:
    """Events that never came: from `start` up to, and without, `first`. at: Unix time when that was noticed."""

    start: int
    first: int
    reason: str
    at: float

    def view(self) -> dict[str, Any]:
        """For JSON."""
        return {"from": self.start, "first": self.first, "reason": self.reason, "noticed": round(self.at, 3)}


class Follower:
    """One stream of events for the whole daemon.

    rebuild() publishes again what was dealt with before this process started, follow() what comes after that: who has effects outside of this process
    subscribes between the two. next_seq is the number after the last event published by follow().
    """

    def __init__(self, client: AdminClient, bus: EventBus, position: Position, room: Callable[[], Awaitable[None]]) -> None:
        """position: what is dealt with when rebuild() begins; room: waited for before each event, while consumers cannot take more."""
        self.next_seq: int | None = None
        self._position = position
        self.gaps: deque[Missing] = deque(maxlen=_GAPS_KEPT)
        self.gap_count = 0
        self.missing: Counter[str] = Counter(expired=0, lost=0)
        """How many events never came, by cause."""
        self.rebuilding = True
        self._client, self._bus, self._room = client, bus, room
        self._stream: EventStream | None = None
        self._error: str | None = None
        self._started = time.monotonic()

    async def rebuild(self) -> None:
        """Publish the kept events before the start. Waits for an agent that does not answer."""
        end = self.next_seq = self._position.next
        begin, wait = None, _FIRST_WAIT_S
        while end is not None:
            try:
                async with aclosing(aiter(self._client.events(begin, follow=False))) as items:
                    async for item in items:
                        if isinstance(item, Gap):
                            continue
                        if item.seq >= end:
                            break
                        begin = item.seq + 1
                        self._bus.publish(bus_event(item))
                break
            except (AgentUnreachable, AgentError) as error:
                self._broken(error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)
        self.rebuilding = False

    async def follow(self) -> None:
        """Publish events from the start on, for ever."""
        while True:
            self._stream = stream = self._client.events(self.next_seq)
            try:
                async for item in stream:
                    await self._room()
                    self._error = None
                    if isinstance(item, Gap):
                        self._miss(item)
                    else:
                        self._bus.publish(bus_event(item))
                    self.next_seq = item.first if isinstance(item, Gap) else item.seq + 1
            except AgentError as error:
                # Such as 403 until somebody adds this user to the agent's group.
                self._broken(error)
            await asyncio.sleep(_LONGEST_WAIT_S)

    def _miss(self, gap: Gap) -> None:
        missing = Missing(gap.start, gap.first, gap.reason, time.time())
        self.gaps.append(missing)
        self.gap_count += 1
        if gap.reason in self.missing:
            self.missing[gap.reason] += gap.first - gap.start
        log.warning("events %d to %d are missing (%s): history and records of that time may be incomplete", gap.start, gap.first - 1, gap.reason)
        if gap.reason == "reset":
            # Another log, from its beginning: what is dealt with of the former one says nothing of it.
            with contextlib.suppress(OSError):
                self._position.save(gap.first, self._position.accounting)
        self._bus.publish(gap_event(missing.start, missing.first, missing.reason, missing.at))

    def _broken(self, error: AdminError) -> None:
        if str(error) != self._error:
            log.warning("events of the agent: %s; retrying", error)
        self._error = str(error)

    @property
    def connected(self) -> bool:
        """Whether the stream is open."""
        return self._stream is not None and self._stream.connected

    def view(self) -> dict[str, Any]:
        """For the status: whether the stream is open, its age (seconds since anything came), and what is missing."""
        last = self._stream.last_line_s if self._stream is not None else None
        return {
            "connected": self.connected,
            "rebuilding": self.rebuilding,
            "age_s": round(time.monotonic() - (self._started if last is None else last), 3),
            "ever_connected": last is not None,
            "next": self.next_seq,
            "error": self._error or (self._stream.last_error if self._stream is not None else None),
            "gap_count": self.gap_count,
            "missing": dict(self.missing),
            "gaps": [gap.view() for gap in self.gaps],
        }
