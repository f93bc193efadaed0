"""The journal in one SQLite file in WAL mode: the default, for an agent that stands alone."""

from __future__ import annotations

import asyncio
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


class SqliteStore:
    """One file, one thread that uses it. A killed process loses nothing that was written; a power cut the last moments."""

    def __init__(self, path: str) -> None:
        self.name = f"journal {path}"
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._db: sqlite3.Connection | None = None

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

    def _write(self, group: Group) -> None:
        assert self._db is not None
        with self._db:
            for table, key, rows in (("call", "call_id", group.calls), ("relay_session", "id", group.sessions)):
                self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", [row for row in rows.items() if row[1] is not None])
                self._db.executemany(f"DELETE FROM {table} WHERE {key} = ?", [(name,) for name, body in rows.items() if body is None])

    async def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            await self._do(db.close)
        self._thread.shutdown()
