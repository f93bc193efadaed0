"""Records of calls and of participants on files, exactly once: over a crash of this process, a full disk, and files that something else rotates.

A group of records is written ahead to a file of its own, with where it is to go; then it is appended, then the position in the agent's event
log moves behind it. What was begun is finished at the next start, from the file that was written ahead.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shunt.cdr.record import csv_header, csv_lines, json_line, lost_record
from shunt.config.model import Cdr
from shunt.errors import plain
from shunt.operator.accounting import Accounting, after
from shunt.operator.files import sync_folder, write_atomically
from shunt.operator.position import Position, accounting_of, accounting_view

log = logging.getLogger(__name__)

_MOST_WAITING = 20_000
_GROUP = 1000
_GATHER_S = 0.1
_RETRY_S = 1.0
_LOSS_SHOWN_S = 3600.0


CALL = "call"
"""The kind of calls' records."""


@dataclass(frozen=True, slots=True)
class Output:
    """A file that records are appended to. header: of a new file; lines: a record as it is written."""

    path: str
    header: str
    lines: Callable[[dict[str, Any]], str]

    @classmethod
    def json_lines(cls, path: str) -> Output:
        """One line of JSON for each record."""
        return cls(path, "", json_line)


def outputs(settings: Cdr | None) -> list[Output]:
    """The files of calls' records."""
    found = []
    if settings is not None and settings.json_lines:
        found.append(Output.json_lines(settings.json_lines))
    if settings is not None and settings.csv:
        found.append(Output(settings.csv, csv_header(), csv_lines))
    return found


@dataclass(slots=True)
class Piece:
    """Bytes for one file. inode: the file's when they were written ahead, None where there was none; size: its size then."""

    path: str
    data: bytes
    inode: int | None
    size: int

    @classmethod
    def to(cls, path: str, header: str, data: bytes) -> Piece:
        """Data for the end of a file, behind a header where it is new. Raises OSError."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return cls(path, header.encode() + data, None, 0)
        return cls(path, data if found.st_size else header.encode() + data, found.st_ino, found.st_size)

    def finish(self) -> None:
        """Append the data, unless that was done: what was written of it is cut off first. Raises OSError."""
        path = self._find()
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            found = os.fstat(fd)
            before = found.st_size
            if self.inode in (None, found.st_ino):
                there = os.pread(fd, len(self.data), self.size)
                if there == self.data:
                    return
                if there and len(there) == before - self.size and self.data.startswith(there):
                    os.ftruncate(fd, self.size)
                    before = self.size
            else:
                log.warning("%s was replaced after records were written ahead: some may be in both files", self.path)
            self._append(fd, before)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_folder(Path(path).parent)

    def _append(self, fd: int, before: int) -> None:
        done = 0
        try:
            while done < len(self.data):
                done += os.write(fd, self.data[done:])
        except OSError as error:
            os.ftruncate(fd, before)
            raise OSError(error.errno, error.strerror, self.path) from None

    def _find(self) -> str:
        """Where the file is now: something else may have renamed it since, within its folder."""
        with contextlib.suppress(FileNotFoundError):
            if self.inode is None or os.stat(self.path).st_ino == self.inode:
                return self.path
        for entry in os.scandir(os.path.dirname(self.path)):
            if entry.inode() == self.inode and entry.is_file(follow_symlinks=False):
                return entry.path
        return self.path


@dataclass(frozen=True, slots=True)
class _Due:
    """The records of one event, and the accounting when they are written."""

    seq: int
    kind: str
    entries: tuple[dict[str, Any], ...]
    accounting: Accounting | None


class Records:
    """Writes records to the files of their kind, in a thread. A record is due until `position` is behind its event."""

    def __init__(self, files: Mapping[str, Sequence[Output]], position: Position, ahead: Path) -> None:
        """files: of each kind of records; ahead: the file that groups are written ahead to."""
        self.written = 0
        self.failures = 0
        self.error: str | None = None
        self._files = {kind: list(those) for kind, those in files.items()}
        self._position, self._ahead = position, ahead
        # Without files calls are not numbered on, and the next file does not begin with a loss.
        self._accounting = position.accounting if self._files.get(CALL) else None
        self._gap: str | None = None
        self._waiting: deque[_Due] = deque()
        self._group: list[_Due] = []
        self._due, self._closing, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()
        self._one = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records")

    async def recover(self) -> None:
        """Finish what a former process had begun, as soon as that is possible: before any event is followed."""
        while not await self._attempt(self._recover):
            await self._pause(_RETRY_S)
            if self._closing.is_set():
                return

    def _recover(self) -> None:
        """In the thread."""
        if not self._ahead.exists():
            return
        document = json.loads(self._ahead.read_bytes())
        if self._position.next is None or self._position.next < document["next"]:
            self._finish(document)
            self._accounting = self._position.accounting
            log.info("records that a former process had begun to write are complete")
        else:
            self._ahead.unlink()

    def _finish(self, document: dict[str, Any]) -> None:
        """In the thread: bring what was written ahead to its end."""
        for item in document["pieces"]:
            Piece(item["path"], base64.b64decode(item["data"]), item["inode"], item["size"]).finish()
        self._position.save(document["next"], accounting_of(document))
        self._ahead.unlink()

    def put(self, seq: int, entry: dict[str, Any], kind: str = CALL) -> None:
        """Have the record of an event written soon, if its kind has files. Waits for nothing: room() does."""
        if not self._files.get(kind):
            return
        self._waiting.append(_Due(seq, kind, (*self._lost_before(kind, entry), entry), self._accounting))
        if len(self._waiting) >= _MOST_WAITING:
            self._room.clear()
        self._due.set()

    def missed(self, reason: str) -> None:
        """Events are missing before the next record."""
        self._gap = reason

    def began(self, epoch: int, at: str) -> None:
        """A run of the agent began, at `at` (ISO 8601): from there on its calls are numbered."""
        if self._accounting is None and self._files.get(CALL):
            self._accounting = Accounting(epoch, 0, at)

    def _lost_before(self, kind: str, entry: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the record that stands for calls lost between the last record and this one; empty: none are lost."""
        if kind != CALL or entry.get("number") is None:
            return []
        self._accounting, lost = after(self._accounting, self._gap, Accounting(entry["epoch"], entry["number"], entry["ended"]), time.time())
        self._gap = None
        if lost is None:
            return []
        log.error("call records: %s%d lost between %s and %s (events %s)", "at least " if lost.at_least else "", lost.number, lost.since, lost.until, lost.reason)
        return [lost_record(lost.number, lost.at_least, lost.since, lost.until, lost.reason, epoch=entry["epoch"], seq=entry["seq"])]

    @property
    def accounting(self) -> Accounting | None:
        """After the last record that is written or waits."""
        return self._accounting

    def lost_lately(self) -> int:
        """How many records are lost in all, if that was noticed in the last hour."""
        accounting = self._accounting
        return accounting.lost if accounting is not None and accounting.lost_at is not None and time.time() - accounting.lost_at < _LOSS_SHOWN_S else 0

    @property
    def waiting(self) -> int:
        """How many events have records that are not written yet."""
        return len(self._group) + len(self._waiting)

    async def room(self) -> None:
        """Wait until records are taken: the agent keeps the events meanwhile."""
        await self._room.wait()

    @property
    def oldest(self) -> int | None:
        """The event of the oldest record that is not written; None: all are."""
        first = self._group or self._waiting
        return first[0].seq if first else None

    async def run(self) -> None:
        """Write until close(). Never cancelled: a write in the thread would be done a second time."""
        while not self._closing.is_set():
            await self._due.wait()
            await self._pause(_GATHER_S)
            self._due.clear()
            while (self._group or self._waiting) and not self._closing.is_set():
                if not await self._write_group():
                    await self._pause(_RETRY_S)

    async def close(self) -> None:
        """Write what waits, once; run() returns."""
        self._closing.set()
        self._due.set()
        while (self._group or self._waiting) and await self._write_group():
            pass
        self._thread.shutdown()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    async def _write_group(self) -> bool:
        """Write a group; whether that was possible. One that was not is tried again as it was."""
        async with self._one:  # run() and close() may come at once
            if not self._group:
                self._group = [self._waiting.popleft() for _ in range(min(len(self._waiting), _GROUP))]
            if not self._group:
                return True
            if not await self._attempt(partial(self._write, self._group)):
                return False
            self.written += len(self._group)
            self._group = []
            if len(self._waiting) < _MOST_WAITING:
                self._room.set()
            return True

    async def in_thread(self, work: Callable[[], None]) -> None:
        """Do something between two groups. Raises what it raises."""
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _attempt(self, work: Callable[[], None]) -> bool:
        """Do something in the thread; False: the file system did not let it."""
        try:
            await self.in_thread(work)
        except OSError as error:
            self.failures += 1
            said = plain(error, str(self._ahead))
            if self.error != said:
                log.error("call records: %s; they wait and are retried every second", said)
            self.error = said
            return False
        if self.error is not None:
            log.warning("call records can be written again")
        self.error = None
        return True

    def _write(self, group: list[_Due]) -> None:
        """In the thread. What a former attempt has begun is finished as it was written ahead."""
        if self._ahead.exists():
            document = json.loads(self._ahead.read_bytes())
        else:
            pieces = [asdict(piece) | {"data": base64.b64encode(piece.data).decode()} for piece in self._pieces(group)]
            document = {"next": group[-1].seq + 1, "pieces": pieces, **accounting_view(group[-1].accounting)}
            write_atomically(self._ahead, json.dumps(document).encode())
        self._finish(document)

    def _pieces(self, group: list[_Due]) -> list[Piece]:
        pieces = []
        for kind, files in self._files.items():
            entries = [entry for due in group if due.kind == kind for entry in due.entries]
            if entries:
                pieces += [Piece.to(file.path, file.header, _bytes("".join(map(file.lines, entries)))) for file in files]
        return pieces


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
