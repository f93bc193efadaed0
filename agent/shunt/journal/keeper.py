"""Keeps the journal in step with the calls: the event loop marks what changed, one task writes it in groups.

An answer to the SIP server waits until the journal has what it promises (`kept`), so a killed agent
loses no call that the SIP server believes in. A store that fails holds nothing up: calls go on, what is
marked is written once the store is back.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable

from shunt import limits
from shunt.calls.model import Call
from shunt.journal.codec import decode_call, encode_call
from shunt.journal.store import Group, JournalError, Store
from shunt.learning.latch import LatchPolicy

log = logging.getLogger(__name__)

RETRY_S = 1.0
PATIENCE_S = 0.25
_AT_ONCE = 2000  # calls to a group: encoding them holds up the event loop


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
        self._kept: dict[str, int] = {}  # by call-id the hash of what the store has of it
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
        self._writer = asyncio.get_running_loop().create_task(self._write_groups())

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

    def _mark(self) -> None:
        self._marked += 1
        self._due.set()

    @property
    def pending(self) -> int:
        """Calls and sessions that are marked and not yet written."""
        return len(self._calls) + len(self._gone) + len(self._sessions)

    async def kept(self) -> bool:
        """Wait until everything marked so far is written; at most PATIENCE_S, and not at all while the store fails."""
        goal = self._marked
        if self._written >= goal:
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

    async def _write_groups(self) -> None:
        while True:
            await self._due.wait()
            # No waiting for more: what changes while a group is being written makes up the next one.
            if not await self.flush():
                await asyncio.sleep(RETRY_S)

    async def flush(self) -> bool:
        """Write what is marked; a write that fails is logged and counted, and what it held stays marked."""
        self._due.clear()
        goal = self._marked
        calls = {call_id: self._calls.pop(call_id) for call_id in list(self._calls)[:_AT_ONCE]}
        gone, self._gone = self._gone, set()
        sessions, self._sessions = self._sessions, {}
        # Much that marks a call changes nothing that is kept of it, and a write costs more than finding that out.
        bodies = {call_id: body for call_id, call in calls.items() if self._kept.get(call_id) != hash(body := encode_call(call))}
        group = Group(bodies | dict.fromkeys(gone), sessions)
        try:
            if group:
                await self.store.write(group)
        except (JournalError, asyncio.CancelledError) as error:
            for call_id in group.calls:
                self._kept.pop(call_id, None)  # what the store has of it is not known
            for call_id, call in calls.items():
                if call_id not in self._gone:
                    self._calls.setdefault(call_id, call)
            self._gone.update(gone - self._calls.keys())
            self._sessions = sessions | self._sessions
            self._due.set()
            if isinstance(error, asyncio.CancelledError):
                raise
            self._failed(error)
            return False
        for call_id in gone:
            self._kept.pop(call_id, None)
        self._kept.update((call_id, hash(body)) for call_id, body in bodies.items())
        if self.failing:
            self.failing = False
            log.warning("%s: works again", self.store.name)
        if self._calls:
            self._due.set()  # more than one group's worth was marked
        else:
            self._written = max(self._written, goal)
        self._wake()
        return True

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

    def read(self, call_id: str, body: str, policy: LatchPolicy, now: float) -> Call | None:
        """One call as it was; None, logged and counted, for a body that cannot be read."""
        try:
            return decode_call(json.loads(body), policy, now)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            limits.count("journal_unreadable")
            log.error("%s: call %s cannot be read (%s: %s): left out", self.store.name, call_id, type(error).__name__, error)
            return None
