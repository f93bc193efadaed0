"""Keeps the journal in step with the calls: the event loop marks what changed, one task writes it in groups.

An answer to the SIP server waits until the store has promised or written what it says (`kept`), so a killed
agent loses no call that the SIP server believes in. A store that fails holds nothing up: calls go on, what
is marked is written once the store is back.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from typing import cast

from shunt import limits
from shunt.calls.model import Call
from shunt.journal.codec import decode_call, encode_call
from shunt.journal.store import Group, JournalError, SharedStore, Store
from shunt.learning.latch import LatchPolicy
from shunt.precedence import background
from shunt.tasks import keep_running

log = logging.getLogger(__name__)

RETRY_S = 1.0
PATIENCE_S = 0.25
_AT_ONCE = 2000  # calls to a group
_STEP = 3  # calls encoded before the event loop has its turn
_GATHER_S = 0.1  # what nobody waits for is written together


def _give_up(written: asyncio.Future[None]) -> None:
    if not written.done():
        limits.count("journal_slow")
        written.set_result(None)


class Journal:
    """Marks and groups over a Store. That another agent has taken over (Fenced) is a failure like any other: the lease finds out too."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.failures = 0
        self.failing = False
        self._calls: dict[str, Call] = {}
        self._gone: set[str] = set()
        self._sessions: dict[str, str | None] = {}
        self._conferences: dict[str, str | None] = {}
        self._rows = Group()  # encoded, and promised where the store can do that; not yet written
        self._promising = store.promises  # and has taken the last promise
        self._kept: dict[str, int] = {}  # by call-id the hash of what the store has of it, or is about to have
        self._due = asyncio.Event()
        self._marked = 0
        self._written = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # goals in order
        self._writer: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises JournalError when the store cannot be used."""
        await self.store.open()

    def start(self) -> None:
        """Write from now on what is marked."""
        self._writer = asyncio.get_running_loop().create_task(keep_running("journal", self._write_groups), context=background() if self.store.promises else None)

    def call_changed(self, call: Call) -> None:
        """Mark a call to be written (or removed, when all its lines are released) with the next group."""
        if call.lines and all(line.released for line in call.lines):
            self._calls.pop(call.call_id, None)
            self._gone.add(call.call_id)
        else:
            self._gone.discard(call.call_id)
            self._calls[call.call_id] = call
        self._mark()

    def emptied(self) -> None:
        """The store has lost what it had: all that is marked from now on is to be written, changed or not."""
        self._kept.clear()

    def session_changed(self, key: str, body: str | None) -> None:
        """Mark a session of the built-in relay to be written; None removes it."""
        self._sessions[key] = body
        self._mark()

    def conference_changed(self, name: str, body: str | None) -> None:
        """Mark a conference to be written; None removes it. Only for a store that agents share."""
        self._conferences[name] = body
        self._mark()

    def _mark(self) -> None:
        self._marked += 1
        self._due.set()

    @property
    def pending(self) -> int:
        """Calls, sessions and conferences that are marked and not yet written."""
        rows = self._rows
        others = len(self._sessions.keys() | rows.sessions.keys()) + len(self._conferences.keys() | rows.conferences.keys())
        return len(self._calls.keys() | self._gone | rows.calls.keys()) + others

    async def kept(self, call_id: str | None = None) -> bool:
        """Make sure that what is marked of a call (None: of all) outlives this process, and all sessions of the built-in relay.

        Where the store promises that, nothing is waited for. Otherwise until everything marked so far is written; at most
        PATIENCE_S, and not at all while the store fails.
        """
        goal = self._marked
        if self._written >= goal or self._promise(list(self._calls.keys() | self._gone) if call_id is None else [call_id]):
            return True
        if self.failing or self._writer is None:
            return False
        loop = asyncio.get_running_loop()
        written = loop.create_future()
        self._waiting.append((goal, written))
        timer = loop.call_later(PATIENCE_S, _give_up, written)
        try:
            await written
        finally:
            timer.cancel()
        return self._written >= goal

    def _promise(self, call_ids: list[str]) -> bool:
        """Encode what is marked of these calls, and have the store promise it. False where it has not."""
        if not self._promising:
            return False
        group = Group(self._encode(call_ids), self._sessions)
        if not group:
            return True
        self._sessions = {}
        self._promising = self.store.promise(group)
        self._rows.calls.update(group.calls)
        self._rows.sessions.update(group.sessions)
        return self._promising

    def _encode(self, call_ids: list[str]) -> dict[str, str | None]:
        """The rows of these calls, as far as they are marked; marked they are no longer."""
        rows: dict[str, str | None] = {}
        for call_id in call_ids:
            call = self._calls.pop(call_id, None)
            if call is not None:
                # Much that marks a call changes nothing that is kept of it, and a write costs more than finding that out.
                body = encode_call(call)
                if self._kept.get(call_id) != (known := hash(body)):
                    self._kept[call_id] = known
                    rows[call_id] = body
            elif call_id in self._gone:
                self._gone.discard(call_id)
                self._kept.pop(call_id, None)
                rows[call_id] = None
        return rows

    async def _write_groups(self) -> None:
        while True:
            await self._due.wait()
            if self._promising:
                await asyncio.sleep(_GATHER_S)
            # Otherwise no waiting for more: what changes while a group is being written makes up the next one.
            if not await self.flush():
                await asyncio.sleep(RETRY_S)

    async def flush(self) -> bool:
        """Write what is marked; a write that fails is logged and counted, and what it held is written with the next."""
        self._due.clear()
        goal = self._marked
        marked = [*list(self._gone), *list(self._calls)[: max(0, _AT_ONCE - len(self._rows.calls))]]
        for first in range(0, len(marked), _STEP):
            if first:
                await asyncio.sleep(0)
            self._take(marked[first : first + _STEP])
        self._take([])
        rows, self._rows = self._rows, Group()
        try:
            if rows:
                await self.store.write(rows)
        except (JournalError, asyncio.CancelledError) as error:
            later = self._rows
            self._rows = Group(rows.calls | later.calls, rows.sessions | later.sessions, rows.conferences | later.conferences)
            self._due.set()
            if isinstance(error, asyncio.CancelledError):
                raise
            self._failed(error)
            return False
        self._promising = self.store.promises
        if self.failing:
            self.failing = False
            log.warning("%s: works again", self.store.name)
        if self._calls:
            self._due.set()  # more than one group's worth was marked
        else:
            self._written = max(self._written, goal)
        self._wake()
        return True

    def _take(self, call_ids: list[str]) -> None:
        """Have these calls' rows, and all sessions', among those that are to be written."""
        if not self._promise(call_ids):
            self._rows.calls.update(self._encode(call_ids))
            self._rows.sessions.update(self._sessions)
            self._sessions = {}
        self._rows.conferences.update(self._conferences)
        self._conferences = {}

    def _failed(self, error: JournalError) -> None:
        self.failures += 1
        limits.count("journal_failures")
        if not self.failing:
            log.error("%s; the calls run on, a restart would not know the latest", error)
        self.failing = True
        self._wake()

    def _wake(self) -> None:
        """Wake those whose marks are written; while the store fails, all."""
        waiting = self._waiting
        while waiting and (self.failing or waiting[0][0] <= self._written or waiting[0][1].done()):
            _, written = waiting.popleft()
            if not written.done():
                written.set_result(None)

    async def close(self, *, keep: bool = True) -> None:
        """Write what is marked, unless not to be kept (another agent writes now), and close the store."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
            self._writer = None
        while keep and self.pending:
            if not await self.flush():
                break
        await self.store.close()

    async def load(self, policy: LatchPolicy, clock: Callable[[], float]) -> tuple[list[Call], dict[str, str]]:
        """The calls and the built-in relay's sessions as they were; a row that cannot be read is logged and left out.

        Raises JournalError.
        """
        rows, sessions = await self.rows()
        calls = [self.read(call_id, body, policy, clock()) for call_id, body in rows.items()]
        return [call for call in calls if call is not None], sessions

    async def rows(self) -> tuple[dict[str, str], dict[str, str]]:
        """Bodies of calls by call-id, for read(), and of the built-in relay's sessions. Raises JournalError."""
        rows, sessions = await self.store.load()
        return dict(rows), sessions

    async def conferences(self) -> dict[str, str]:
        """Bodies of conferences by name. Only for a store that agents share. Raises JournalError."""
        return await cast(SharedStore, self.store).conferences()

    def read(self, call_id: str, body: str, policy: LatchPolicy, now: float) -> Call | None:
        """One call as it was; None, logged and counted, for a body that cannot be read."""
        try:
            return decode_call(json.loads(body), policy, now)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            limits.count("journal_unreadable")
            log.error("%s: call %s cannot be read (%s: %s): left out", self.store.name, call_id, type(error).__name__, error)
            return None
