"""What the operator daemon does for conferences, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from shunt.admin import AdminClient
from shunt.config.conference import Conference as Settings
from shunt.config.selector import load_selector
from shunt.config.values import SocketAddress
from shunt.events.bus import CONFERENCE, Event, EventBus
from shunt.operator.asking import Agent
from shunt.operator.conferences import focus as focus_events
from shunt.operator.conferences import happened as happened_events
from shunt.operator.conferences.browsers import Browsers
from shunt.operator.conferences.happened import Happened
from shunt.operator.conferences.records import csv_header, csv_lines, record
from shunt.operator.conferences.routes import add_routes
from shunt.operator.records import Output, Records
from shunt.tasks import keep_running

RECORD = "participant"
"""The kind of these records, for `Records`."""
KINDS = (CONFERENCE,)


def outputs(settings: Settings | None) -> list[Output]:
    """The files of participants' records."""
    if settings is None or settings.cdr is None:
        return []
    found = []
    if settings.cdr.json_lines is not None:
        found.append(Output.json_lines(settings.cdr.json_lines))
    if settings.cdr.csv is not None:
        found.append(Output(settings.cdr.csv, csv_header(), csv_lines))
    return found


class Conferences:
    """Focus, routes, records and policy of one agent's conferences."""

    def __init__(self, settings: Settings, agent: Agent, client: AdminClient, records: Records | None, delay_ms: float, browsers: Browsers | None = None) -> None:
        """records: None where no participant is to have one; browsers: whoever has edges; delay_ms: the one-way delay that ratings assume. Raises ValueError for a selector that cannot be used."""
        self._agent, self._records, self._delay_ms = agent, records, delay_ms
        self.happened = Happened()
        self.focus: focus_events.Focus | None = None
        if settings.sip is not None:
            self.focus = focus_events.Focus(SocketAddress.parse(settings.sip), settings.sip_allow, client, browsers)
        self._select = load_selector(settings.selector) if settings.selector is not None else None
        self._client = client
        self._tasks: list[asyncio.Task[None]] = []

    def add_routes(self, app: web.Application, error: Callable[..., web.Response]) -> None:
        """Serve the REST API's routes."""
        add_routes(app, self._agent, self.happened, error)

    def rebuild(self, bus: EventBus) -> None:
        """Subscribe what earlier events bring back."""
        bus.subscribe(self.happened, happened_events.KINDS)

    def follow(self, bus: EventBus) -> None:
        """Subscribe what has effects outside of this process: it gets each event once."""
        if self._records is not None:
            bus.subscribe(self._left, KINDS)
        if self.focus is not None:
            bus.subscribe(self.focus, focus_events.KINDS)

    def _left(self, event: Event) -> None:
        if event.what == "left" and self._records is not None and "media" in event.facts:
            self._records.put(event.seq, record(event.facts, event.at, self._delay_ms, epoch=event.epoch, seq=event.seq), RECORD)

    async def start(self) -> None:
        """Take calls. Raises OSError, naming the socket."""
        if self.focus is not None:
            await self.focus.start()
            self._tasks.append(asyncio.create_task(keep_running("calls to conferences", self.focus.run)))
        if self._select is not None:
            from shunt.operator.conferences.selector import Selector

            self._tasks.append(asyncio.create_task(keep_running("conference.selector", Selector(self._client, self._select).run)))

    async def close(self) -> None:
        """Stop; calls and their media go on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.focus is not None:
            await self.focus.close()
