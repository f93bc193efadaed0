"""The daemon: its parts, put together and run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from pathlib import Path

from shunt import supervisor
from shunt.admin import AdminClient
from shunt.api.server import ApiServer
from shunt.config.model import Config
from shunt.events.bus import EventBus
from shunt.events.history import History
from shunt.events.log import log_event
from shunt.export.homer import HomerExport
from shunt.health.facts import Own
from shunt.metrics import instruments
from shunt.metrics.instruments import Instruments
from shunt.operator import dialogs as dialog_events
from shunt.operator import endings as ending_events
from shunt.operator import health
from shunt.operator import records as record_files
from shunt.operator.accounting import Accounting
from shunt.operator.asking import TIMEOUT_S, Agent
from shunt.operator.conferences import service as conferences
from shunt.operator.conferences.service import Conferences
from shunt.operator.dialogs import Dialogs
from shunt.operator.endings import Endings
from shunt.operator.files import FolderLock
from shunt.operator.follow import Follower
from shunt.operator.health import Health
from shunt.operator.position import Position
from shunt.operator.records import Records
from shunt.operator.rooms.parts import RoomService
from shunt.operator.view import OperatorView
from shunt.tasks import keep_running

log = logging.getLogger(__name__)

_SAVE_S = 1.0


class Daemon:
    """One operator daemon. run() serves until it is cancelled."""

    def __init__(self, config: Config) -> None:
        """Raises OSError, naming it, where the state folder cannot be used; ValueError for the token file, the key of rooms' links and api.tls."""
        folder = Path(config.operator.state_dir)
        self._lock = FolderLock(folder)
        self._position = Position(folder / "position.json")
        self._client = AdminClient(config.admin.socket, TIMEOUT_S)
        self._bus = EventBus()
        self._history = History(events=config.history.events, per_call=config.history.per_call)
        self._dialogs = Dialogs()
        self._instruments = Instruments()
        self._records: Records | None = None
        files = {record_files.CALL: record_files.outputs(config.cdr), conferences.RECORD: conferences.outputs(config.conference)}
        if any(files.values()):
            self._records = Records(files, self._position, folder / "records.ahead")
        self._homer = HomerExport(config.homer.target, config.homer.capture_id, config.homer.events) if config.homer is not None else None
        self._follower = Follower(self._client, self._bus, self._position, self._room)
        agent = Agent(self._client)
        self._conferences: Conferences | None = None
        self._rooms = RoomService(config.rooms, config.api, self._client) if config.rooms is not None else None
        if config.conference is not None:
            callers = self._rooms.callers if self._rooms is not None else None
            self._conferences = Conferences(config.conference, agent, self._client, self._records, config.quality.delay_ms, callers)
        self._health = Health(config, agent, self._client, self._own)
        view = OperatorView(
            config=config,
            agent=agent,
            follower=self._follower,
            position=self._position,
            history=self._history,
            dialogs=self._dialogs,
            instruments=self._instruments,
            records=self._records,
            homer=self._homer,
            health=self._health,
            conferences=self._conferences,
            rooms=self._rooms,
        )
        self._api = ApiServer(view, config.api)
        self._config = config

    async def run(self) -> None:
        """Serve. Raises OSError where a socket cannot be had."""
        await self._api.start()
        following: asyncio.Task[None] | None = None
        writing: asyncio.Task[None] | None = None
        watching: asyncio.Task[None] | None = None
        try:
            if self._homer is not None:
                await self._homer.start()
            if self._conferences is not None:
                await self._conferences.start()
            if self._rooms is not None:
                self._rooms.start()
            supervisor.tell(READY=1)
            following = asyncio.create_task(self._follow())
            watching = asyncio.create_task(keep_running("health", self._health.run))
            if self._records is not None:
                writing = asyncio.create_task(keep_running("call records", self._records.run))
            async with supervisor.signs_of_life():
                await following
        finally:
            supervisor.tell(STOPPING=1)
            await _cancelled(watching)
            await _cancelled(following)
            if self._records is not None:
                await self._records.close()
            if writing is not None:
                await writing
            await self._close()

    async def _follow(self) -> None:
        """Finish what was begun, bring back what consumers keep in memory, and follow."""
        if self._records is not None:
            await self._records.recover()
        self._bus.subscribe(self._history)
        self._bus.subscribe(self._dialogs, dialog_events.KINDS)
        self._bus.subscribe(self._health.sightings, health.KINDS)
        if self._conferences is not None:
            self._conferences.rebuild(self._bus)
        await self._follower.rebuild()
        # What these do shows outside of this process: they get each event once.
        self._bus.subscribe(self._instruments, instruments.KINDS)
        self._bus.subscribe(Endings(self._dialogs, self._instruments, self._records, self._homer, self._config.quality.delay_ms, self._health.past_data_plane), ending_events.KINDS)
        if self._conferences is not None:
            self._conferences.follow(self._bus)
        if self._rooms is not None:
            self._rooms.follow(self._bus)
        if self._homer is not None:
            self._bus.subscribe(self._homer)
        if self._config.history.log:
            self._bus.subscribe(log_event)
        async with asyncio.TaskGroup() as group:
            group.create_task(keep_running("events", self._follower.follow))
            group.create_task(keep_running("position", self._keep_position))

    async def _keep_position(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_S)
            await self._save_position()

    async def _save_position(self) -> None:
        """Keep how far events are dealt with. A record that is not written yet holds it back."""
        reached = self._follower.next_seq
        due = self._records.oldest if self._records is not None else None
        target = reached if due is None else due
        if target is None or target == self._position.next:
            return
        save = partial(self._position.save, target, self._accounting())
        with contextlib.suppress(OSError):  # said by Position, and tried again
            await (self._records.in_thread(save) if self._records is not None else asyncio.to_thread(save))

    def _own(self) -> Own:
        """What there is to judge of this daemon."""
        events, records, position = self._follower.view(), self._records, self._position
        gaps = [f"events {gap['from']} to {gap['first'] - 1} are missing ({gap['reason']})" for gap in events["gaps"]]
        return Own(
            rebuilding=events["rebuilding"],
            events_error="" if events["connected"] else events["error"] or "not connected",
            gaps=gaps,
            records_lost=0 if records is None else records.lost_lately(),
            records_error="" if records is None else records.error or "",
            position_error="" if position.error is None else f"{position.path}: {position.error}",
        )

    def _accounting(self) -> Accounting | None:
        """Of the calls whose records are written: all, or those before the ones that wait."""
        if self._records is None:
            return None
        return self._records.accounting if self._records.oldest is None else self._position.accounting

    async def _room(self) -> None:
        if self._records is not None:
            await self._records.room()

    async def _close(self) -> None:
        reached = self._follower.next_seq
        if reached is not None and (self._records is None or self._records.oldest is None):
            with contextlib.suppress(OSError):
                self._position.save(reached, self._accounting())
        if self._conferences is not None:
            await self._conferences.close()
        if self._rooms is not None:
            await self._rooms.close()
        if self._homer is not None:
            await self._homer.close()
        await self._api.close()
        await self._client.close()
        self._lock.release()


async def _cancelled(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def run(config: Config) -> None:
    """Run the daemon until it is cancelled. Raises OSError and ValueError, naming what cannot be had."""
    await Daemon(config).run()
