"""The journal in one SQLite file in WAL mode: the default, for an agent that stands alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shunt.journal.codec import FORMAT
from shunt.journal.store import Group, JournalError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS call (call_id TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS relay_session (id TEXT PRIMARY KEY, body TEXT NOT NULL);
"""


# How long the event loop may keep the interpreter's lock while the journal's thread wants it: answers wait for that thread.
_SWITCH_S = 0.0005


# What was written is copied from the write-ahead log into the file by a thread of its own, every so many writes: it waits for the disk,
# and no answer may. While calls come without a pause the log would grow for ever; beyond so many pages the writer begins it anew.
_COPY_EVERY = 500
_LOG_PAGES = 8192

log = logging.getLogger(__name__)


class SqliteStore:
    """One file, one thread that writes it. A killed process loses nothing that was written; a power cut the last moments."""

    def __init__(self, path: str) -> None:
        self.name = f"journal {path}"
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._db: sqlite3.Connection | None = None
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="journal-copy")
        self._copying: asyncio.Task[None] | None = None
        self._writes = 0

    async def _do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        except sqlite3.Error as error:
            raise JournalError(f"{self.name}: {error}") from error

    async def open(self) -> None:
        sys.setswitchinterval(_SWITCH_S)
        self._db = await self._do(self._open)

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA wal_autocheckpoint=0")
        db.executescript(_SCHEMA)
        found = db.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
        if found is None:
            db.execute("INSERT INTO meta VALUES ('format', ?)", (str(FORMAT),))
            db.commit()
        elif found[0] != str(FORMAT):
            raise JournalError(f"{self.name}: format {found[0]}, this version reads {FORMAT}; move the file away to start empty")
        return db

    async def load(self) -> tuple[list[tuple[str, str]], dict[str, str]]:
        return await self._do(self._load)

    def _load(self) -> tuple[list[tuple[str, str]], dict[str, str]]:
        assert self._db is not None
        rows = self._db.execute("SELECT call_id, body FROM call").fetchall()
        return rows, dict(self._db.execute("SELECT id, body FROM relay_session").fetchall())

    async def write(self, group: Group) -> None:
        await self._do(self._write, group)
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
        with self._db:
            for table, key, rows in (("call", "call_id", group.calls), ("relay_session", "id", group.sessions)):
                self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", [row for row in rows.items() if row[1] is not None])
                self._db.executemany(f"DELETE FROM {table} WHERE {key} = ?", [(name,) for name, body in rows.items() if body is None])

    async def close(self) -> None:
        if self._copying is not None:
            await asyncio.gather(self._copying, return_exceptions=True)
        db, self._db = self._db, None
        if db is not None:
            await self._do(db.close)
        self._thread.shutdown()
        self._copier.shutdown()
