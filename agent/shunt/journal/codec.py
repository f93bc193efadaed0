"""The journal: running calls on disk, so that a restarted agent carries on where it was. SQLite in WAL mode.

Writing is done by one thread in groups; the event loop only marks what changed. A crash loses at most
the group being written (milliseconds), which reconciling with the data plane and the relay then repairs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shunt.calls.model import Call, Component, Leg, MediaLine, Side, State, Stream, new_line
from shunt.learning.latch import Latch, LatchPolicy
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import RelayEntry, StreamStats

log = logging.getLogger(__name__)

FORMAT = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS call (call_id TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS relay_session (id TEXT PRIMARY KEY, body TEXT NOT NULL);
"""


class JournalError(Exception):
    """The journal cannot be used; the message names the file and what is wrong."""


class Journal:
    """One SQLite file. Raises JournalError when it cannot be opened or is of another format."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.failures = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._calls: dict[str, Call] = {}
        self._gone: set[str] = set()
        self._sessions: dict[str, str | None] = {}
        self._due = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        try:
            self._db = self._thread.submit(self._open).result()
        except sqlite3.Error as error:
            raise JournalError(f"journal {path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.executescript(_SCHEMA)
        found = db.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
        if found is None:
            db.execute("INSERT INTO meta VALUES ('format', ?)", (str(FORMAT),))
            db.commit()
        elif found[0] != str(FORMAT):
            raise JournalError(f"journal {self.path}: format {found[0]}, this version reads {FORMAT}; move the file away to start empty")
        return db

    # -- writing ----------------------------------------------------------------------------------

    def start(self) -> None:
        self._writer = asyncio.get_running_loop().create_task(self._write_groups())

    def call_changed(self, call: Call) -> None:
        """Mark a call to be written (or removed, when all its lines are released) with the next group."""
        if call.lines and all(line.released for line in call.lines):
            self._calls.pop(call.call_id, None)
            self._gone.add(call.call_id)
        else:
            self._gone.discard(call.call_id)
            self._calls[call.call_id] = call
        self._due.set()

    def session_changed(self, key: str, body: str | None) -> None:
        """Mark a session of the built-in relay to be written; None removes it."""
        self._sessions[key] = body
        self._due.set()

    async def _write_groups(self) -> None:
        while True:
            await self._due.wait()
            # No waiting for more: what changes while a group is being written makes up the next one.
            await self.flush()

    async def flush(self) -> None:
        """Write what is marked; a failed write is logged, counted, and tried again with the next group."""
        self._due.clear()
        calls = [(call_id, encode_call(call)) for call_id, call in self._calls.items()]
        gone, sessions = list(self._gone), dict(self._sessions)
        marked = dict(self._calls)
        self._calls.clear()
        self._gone.clear()
        self._sessions.clear()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, calls, gone, sessions)
        except sqlite3.Error as error:
            self.failures += 1
            log.error("journal %s: %s; the calls run on, a restart would not know the latest", self.path, error)
            for call_id, call in marked.items():
                self._calls.setdefault(call_id, call)
            self._gone.update(set(gone) - self._calls.keys())
            self._sessions = sessions | self._sessions
            await asyncio.sleep(1.0)
            self._due.set()

    def _write(self, calls: list[tuple[str, str]], gone: list[str], sessions: dict[str, str | None]) -> None:
        with self._db:
            self._db.executemany("INSERT OR REPLACE INTO call VALUES (?, ?)", calls)
            self._db.executemany("DELETE FROM call WHERE call_id = ?", [(c,) for c in gone])
            self._db.executemany("INSERT OR REPLACE INTO relay_session VALUES (?, ?)", [(k, v) for k, v in sessions.items() if v is not None])
            self._db.executemany("DELETE FROM relay_session WHERE id = ?", [(k,) for k, v in sessions.items() if v is None])

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.cancel()
        if self._calls or self._gone or self._sessions:
            await self.flush()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
        self._thread.shutdown()

    # -- reading ----------------------------------------------------------------------------------

    def load(self, policy: LatchPolicy, clock: Callable[[], float]) -> tuple[list[Call], dict[str, str]]:
        """The calls and the built-in relay's sessions as they were; a row that cannot be read is logged and left out."""
        rows, sessions = self._thread.submit(self._read).result()
        calls = []
        for call_id, body in rows:
            try:
                calls.append(decode_call(json.loads(body), policy, clock()))
            except (ValueError, KeyError, TypeError) as error:
                log.error("journal %s: call %s cannot be read (%s): left out", self.path, call_id, error)
        return calls, sessions

    def _read(self) -> tuple[list[tuple[str, str]], dict[str, str]]:
        rows = self._db.execute("SELECT call_id, body FROM call").fetchall()
        return rows, dict(self._db.execute("SELECT id, body FROM relay_session").fetchall())


# -- calls as JSON ----------------------------------------------------------------------------------


def _end(endpoint: Endpoint | None) -> list[Any] | None:
    return None if endpoint is None else [endpoint.addr.hex(), endpoint.port]


def _endpoint(value: list[Any] | None) -> Endpoint | None:
    return None if value is None else Endpoint(bytes.fromhex(value[0]), int(value[1]))


def _latch(latch: Latch) -> dict[str, Any]:
    return {"learned": _end(latch.learned), "ssrc": latch.ssrc, "seq": latch.seq, "trusted": [a.hex() for a in latch.trusted]}


def encode_call(call: Call) -> str:
    """A call as one line of JSON. Monotonic times are not kept: they mean nothing to the next process."""
    return json.dumps({
        "call_id": call.call_id, "relay": call.relay, "created": call.created_wall,
        "lines": [_encode_line(line) for line in call.lines if line.released is None],
    })


def _encode_line(line: MediaLine) -> dict[str, Any]:
    return {
        "tag": line.tag, "media": line.media, "other_tag": line.other_tag,
        "notify": [line.notify_socket, line.notify_tag, line.peer_ip], "blocks": sorted(line.blocks), "ttl_raised": line.ttl_raised,
        "established": line.established,
        "legs": {
            side.value: {
                "signalled": _end(leg.signalled), "relay": _end(leg.relay), "modifiers": leg.modifiers, "keepalive": leg.keepalive,
                "asymmetric": leg.asymmetric, "rtp": _latch(leg.rtp), "rtcp": _latch(leg.rtcp),
            } for side, leg in line.legs.items()
        },
        "streams": [
            {
                "sender": s.sender.value, "component": s.component.value, "was": s.was_offloaded, "packets": s.past.packets, "bytes": s.past.bytes,
                "entry": None if s.installed is None else [
                    _end(s.installed.key.src), _end(s.installed.key.dst), _end(s.installed.src), _end(s.installed.dst), s.installed.ttl_ms,
                ],
            } for s in line.streams
        ],
    }


def decode_call(body: dict[str, Any], policy: LatchPolicy, now: float) -> Call:
    """Read one call back. Raises KeyError, TypeError or ValueError for what encode_call did not write."""
    wall = float(body["created"])
    call = Call(body["call_id"], body["relay"], now - max(0.0, time.time() - wall), wall)
    for item in body["lines"]:
        line = new_line(call, item["tag"], item["media"], now, policy)
        line.other_tag = item["other_tag"]
        line.notify_socket, line.notify_tag, line.peer_ip = item["notify"]
        line.blocks = set(item["blocks"])
        line.ttl_raised = item["ttl_raised"]
        line.established = item["established"]
        for side in Side:
            _decode_leg(line.legs[side], item["legs"][side.value], now)
        for row in item["streams"]:
            _decode_stream(line.stream(Side(row["sender"]), Component(row["component"])), row, now)
        call.lines.append(line)
    return call


def _decode_leg(leg: Leg, row: dict[str, Any], now: float) -> None:
    leg.signalled, leg.relay = _endpoint(row["signalled"]), _endpoint(row["relay"])
    leg.modifiers, leg.keepalive, leg.asymmetric = row["modifiers"], row["keepalive"], row["asymmetric"]
    for latch, kept in ((leg.rtp, row["rtp"]), (leg.rtcp, row["rtcp"])):
        latch.trusted = {bytes.fromhex(a) for a in kept["trusted"]}
        learned = _endpoint(kept["learned"])
        if learned is not None:
            latch.take(learned, kept["ssrc"] or 0, kept["seq"])
    if leg.rtp.learned is not None:
        leg.latched_at = leg.first_heard = now


def _decode_stream(stream: Stream, row: dict[str, Any], now: float) -> None:
    stream.was_offloaded = row["was"]
    stream.past = StreamStats(packets=row["packets"], bytes=row["bytes"])
    if row["entry"] is not None:
        key_src, key_dst, src, dst = (_endpoint(value) for value in row["entry"][:4])
        stream.installed = RelayEntry(FiveTuple(key_src, key_dst), src, dst, row["entry"][4])
        stream.set(State.OFFLOADED, "offloaded", now)
