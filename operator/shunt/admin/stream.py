"""The event stream: it reconnects, resumes after the last event, and says what is missing."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, cast

import aiohttp

from shunt.admin.connection import Connection, path_of
from shunt.admin.errors import AgentError, AgentUnreachable
from shunt.admin.model import Component, Facts, Party

log = logging.getLogger(__name__)

# The agent sends something every 15 s: a stream that is silent for longer is dead.
_SILENCE_S = 40.0
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_LONGEST_LINE = 1 << 21
# Errors that go away by themselves: too many followers, an agent that is starting.
_PASSING = frozenset({502, 503, 504})


@dataclass(frozen=True, slots=True)
class Event:
    """One event. time: when it happened (UTC); mono_s: the same by the agent's monotonic clock, from the start of its epoch.

    call, media, party and component name what it is about, None where it is not about that.
    """

    seq: int
    epoch: int
    time: datetime
    mono_s: float
    kind: str
    facts: Facts
    call: str | None = None
    media: int | None = None
    party: Party | None = None
    component: Component | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Events are missing: from `start` up to, and without, `first`.

    expired: no longer kept; lost: the agent could not keep them; reset: the log is another one, which is sent from its beginning.
    """

    start: int
    first: int
    reason: Literal["expired", "lost", "reset"]


@dataclass(slots=True)
class EventStream:
    """An asynchronous iterator over the events of one agent.

    next_seq is the number after the last event given, None before the first: store it, and begin with it to go on after a restart of this side.
    connected, and last_line_s (time.monotonic() of the last line), say how old what is known is.
    """

    _connection: Connection
    next_seq: int | Literal["next"] | None
    follow: bool = True
    connected: bool = False
    last_line_s: float | None = None
    epoch: int | None = None
    last_error: str | None = None
    _wait_s: float = field(default=_FIRST_WAIT_S)

    async def __aiter__(self) -> AsyncGenerator[Event | Gap, None]:
        """Raises AgentError for a request that the agent will never answer otherwise; with follow=False AgentUnreachable too."""
        while True:
            try:
                async for item in self._once():
                    yield item
                if not self.follow:
                    return
            except AgentUnreachable as error:
                if not self.follow:
                    raise
                self._broken(error.detail)
            except AgentError as error:
                if not self.follow or error.status not in _PASSING:
                    raise
                self._broken(error.message)
            finally:
                self.connected = False
            await asyncio.sleep(self._wait_s)
            self._wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S)

    def _broken(self, detail: str) -> None:
        if detail != self.last_error:
            log.warning("event stream of the agent at %s: %s; retrying", self._connection.socket, detail)
        self.last_error = detail

    async def _once(self) -> AsyncIterator[Event | Gap]:
        """The events of one connection."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=_SILENCE_S)
        query = {"from": self.next_seq, "follow": self.follow}
        async with self._connection.open("GET", path_of("events"), query, timeout=timeout) as response:
            async for line in lines_of(response):
                self.last_line_s = time.monotonic()
                if (item := self._read(line)) is not None:
                    yield item

    def _read(self, line: dict[str, Any]) -> Event | Gap | None:
        kind = line["kind"]
        if kind == "hello":
            self._hello(line)
        elif kind == "end":
            self._end(str(line["reason"]))
        elif kind == "gap":
            # What follows is kept from there on, also if the connection breaks before it comes.
            self.next_seq = int(line["first"])
            return Gap(int(line["from"]), self.next_seq, line["reason"])
        elif "seq" in line:
            self.next_seq = int(line["seq"]) + 1
            return _event(line)
        return None

    def _hello(self, line: dict[str, Any]) -> None:
        self.connected, self.last_error, self._wait_s = True, None, _FIRST_WAIT_S
        self.epoch = int(line["epoch"])
        if self.next_seq == "next":
            # Else what happens during a lost connection would be lost.
            self.next_seq = int(line["next"])

    def _end(self, reason: str) -> None:
        if reason not in ("caught-up", "stopping"):
            log.warning("event stream of the agent at %s: ended by the agent: %s", self._connection.socket, reason)
        self.last_error = reason


async def lines_of(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yields the JSON lines of a response."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)
        if len(rest) > _LONGEST_LINE:
            raise aiohttp.ClientPayloadError("a line of the stream is too long")


def _event(line: dict[str, Any]) -> Event:
    return Event(
        seq=line["seq"],
        epoch=line["epoch"],
        time=datetime.fromtimestamp(line["time_us"] / 1e6, UTC),
        mono_s=line["mono_us"] / 1e6,
        kind=line["kind"],
        facts=line["facts"],
        call=line.get("call"),
        media=line.get("media"),
        party=cast("Party | None", line.get("party")),
        component=cast("Component | None", line.get("component")),
    )
