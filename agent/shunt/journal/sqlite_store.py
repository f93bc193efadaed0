"""The journal in one SQLite file in WAL mode: the default, for an agent that stands alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shunt.journal import spool
from shunt.journal.codec import FORMAT
from shunt.journal.spool import Spool
from shunt.journal.store import Group, JournalError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS call (call_id TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS relay_session (id TEXT PRIMARY KEY, body TEXT NOT NULL);
"""


# What was written is copied from the write-ahead log into the file by a thread of its own, every so many writes: it waits for the disk,
# and no answer may. While calls come without a pause the log would grow for ever; beyond so many pages the writer begins it anew.
_COPY_EVERY = 500
_LOG_PAGES = 8192
_ROWS = 250  # to a statement: writing them as JSON keeps the interpreter from the event loop

log = logging.getLogger(__name__)


class SqliteStore:
    """One file, one thread that writes it, and a spool for what is on its way there.

    A killed process loses nothing that was promised or written; a power cut the last moments.
    """

    promises = True

    def __init__(self, path: str) -> None:
        self.name = f"journal {path}"
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._db: sqlite3.Connection | None = None
        self._spool: Spool | None = None
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="journal-copy")
        self._copying: asyncio.Task[None] | None = None
        self._writes = 0

    async def _do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        except (sqlite3.Error, OSError) as error:
            raise JournalError(f"{self.name}: {error}") from error

    async def open(self) -> None:
        self._db, self._spool = await self._do(self._open)

    def _open(self) -> tuple[sqlite3.Connection, Spool]:
        Path(self._path).parent.mkdir(mode=0o750, exist_ok=True)  # the last folder alone: more would hide a mistake
        db = sqlite3.connect(self._path, isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA wal_autocheckpoint=0")
        db.executescript(_SCHEMA)
        known = dict(db.execute("SELECT name, value FROM meta").fetchall())
        if (found := known.setdefault("format", str(FORMAT))) != str(FORMAT):
            raise sqlite3.DataError(f"format {found}, this version reads {FORMAT}; move the file away to start empty")
        fresh = Spool.make(self._path)
        old = known.get("spool")
        with _transaction(db):
            if old is not None:
                _put(db, self._left_behind(old))
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", [("format", str(FORMAT)), ("spool", fresh.prefix)])
        if old is not None:
            spool.remove(old)
        return db, fresh

    def _left_behind(self, prefix: str) -> Group:
        """What the last process had promised and not yet written."""
        try:
            return spool.read(prefix)
        except (OSError, ValueError) as error:
            log.error("%s: what was promised last is lost: %s", self.name, error)
            return Group()

    async def load(self) -> tuple[list[tuple[str, str]], dict[str, str]]:
        return await self._do(self._load)

    def _load(self) -> tuple[list[tuple[str, str]], dict[str, str]]:
        assert self._db is not None
        rows = self._db.execute("SELECT call_id, body FROM call").fetchall()
        return rows, dict(self._db.execute("SELECT id, body FROM relay_session").fetchall())

    def promise(self, group: Group) -> bool:
        return self._spool is not None and self._spool.append(group)

    async def write(self, group: Group) -> None:
        assert self._spool is not None
        try:
            turn = self._spool.turn()
        except OSError as error:
            raise JournalError(f"{self.name}: {error}") from error
        await self._do(self._write, group)
        self._spool.drop(turn)
        self._writes += 1
        if self._writes >= _COPY_EVERY and (self._copying is None or self._copying.done()):
            self._writes = 0
            self._copying = asyncio.get_running_loop().create_task(self._copy())

    async def _copy(self) -> None:
        try:
            pages = await asyncio.get_running_loop().run_in_executor(self._copier, self._checkpoint)
            if pages > _LOG_PAGES:
                await self._do(self._begin_log_anew)
        except (sqlite3.Error, JournalError) as error:
            log.warning("%s: not copied from its log: %s", self.name, error)

    def _checkpoint(self) -> int:
        """Copy what can be copied without anybody waiting; returns how many pages the log has."""
        with contextlib.closing(sqlite3.connect(self._path)) as db:
            return int(db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1])

    def _begin_log_anew(self) -> None:
        assert self._db is not None
        self._db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()

    def _write(self, group: Group) -> None:
        assert self._db is not None
        with _transaction(self._db):
            _put(self._db, group)

    async def close(self) -> None:
        if self._copying is not None:
            await asyncio.gather(self._copying, return_exceptions=True)
        db, self._db = self._db, None
        if db is not None:
            await self._do(db.close)
        kept, self._spool = self._spool, None
        if kept is not None:
            kept.close()
        self._thread.shutdown()
        self._copier.shutdown()


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _put(db: sqlite3.Connection, group: Group) -> None:
    """Change the rows of a group, many in one statement: each statement takes the interpreter from the event loop and gives it back."""
    for table, key, rows in (("call", "call_id", group.calls), ("relay_session", "id", group.sessions)):
        for some in _parts(list(rows.items())):
            kept = {name: body for name, body in some if body is not None}
            gone = [name for name, body in some if body is None]
            if kept:
                db.execute(f"INSERT OR REPLACE INTO {table} SELECT key, value FROM json_each(?)", (json.dumps(kept),))
            if gone:
                db.execute(f"DELETE FROM {table} WHERE {key} IN (SELECT value FROM json_each(?))", (json.dumps(gone),))


def _parts(rows: list[tuple[str, str | None]]) -> Iterator[list[tuple[str, str | None]]]:
    return (rows[first : first + _ROWS] for first in range(0, len(rows), _ROWS))
