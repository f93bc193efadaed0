"""Appends records to files that something else may rotate at any time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shunt.cdr.record import csv_header, csv_lines, json_line
from shunt.tasks import keep_running

log = logging.getLogger(__name__)

_MAX_WAITING = 20_000  # records that may wait for a disk that takes none
_RETRY_S = 1.0
_GATHER_S = 0.1


class RecordWriter:
    """Writes records to a CSV file, a file of JSON lines, or both, in a thread of its own.

    Each group of records is appended to a file that is opened for it, so logrotate may move files away
    without telling anybody. A group is in whole or not at all: what a full disk takes of it is cut off
    again, and the group is tried again every second.
    """

    def __init__(self, csv_path: str | None, json_path: str | None, *, header: str = csv_header(), lines: Callable[[dict[str, Any]], str] = csv_lines) -> None:
        """header, lines: of the CSV file, and of one record there."""
        self.written = 0
        self.failures = 0
        self.dropped = 0
        self._csv, self._json = csv_path, json_path
        self._header, self._lines = header, lines
        self._waiting: deque[dict[str, Any]] = deque()
        # A record is due in both files; one of them may fail while the other does not.
        self._rest: list[tuple[str, str, bytes]] = []
        self._rest_count = 0
        self._due = asyncio.Event()
        self._closing = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cdr")
        self._task: asyncio.Task[None] | None = None
        self._healthy = True

    def start(self) -> None:
        """Begin writing in the background."""
        self._task = asyncio.get_running_loop().create_task(keep_running("call records", self._run))

    def put(self, entry: dict[str, Any]) -> None:
        """Have a record written soon. When too many wait, the oldest is given up and counted."""
        if len(self._waiting) >= _MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(entry)
        self._due.set()

    async def _run(self) -> None:
        # Never cancelled: a write that is under way in the thread would be done a second time by close().
        while not self._closing.is_set():
            await self._due.wait()
            await self._pause(_GATHER_S)
            self._due.clear()
            if not await self._flush():
                await self._pause(_RETRY_S)
                self._due.set()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    async def _flush(self) -> bool:
        """Write what waits; whether all of it is written."""
        if not self._rest:
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), 1000))]
            if not group:
                return True
            self._rest = await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, group)
            self._rest_count = len(group)
        try:
            while self._rest:
                path, header, data = self._rest[0]
                await asyncio.get_running_loop().run_in_executor(self._thread, append, path, header, data)
                self._rest.pop(0)
        except OSError as error:
            self.failures += 1
            if self._healthy:
                log.error("call records: %s: %s; they wait, and are tried again every second", error.filename or self._rest[0][0], error.strerror)
            self._healthy = False
            return False
        if not self._healthy:
            log.warning("call records are written again")
        self._healthy = True
        self.written += self._rest_count
        return not self._waiting or await self._flush()

    def _encode(self, group: list[dict[str, Any]]) -> list[tuple[str, str, bytes]]:
        parts = []
        if self._json is not None:
            parts.append((self._json, "", "".join(json_line(entry) for entry in group).encode("utf-8", "backslashreplace")))
        if self._csv is not None:
            parts.append((self._csv, self._header, "".join(self._lines(entry) for entry in group).encode("utf-8", "backslashreplace")))
        return parts

    async def close(self) -> None:
        """Write what waits, once, and end."""
        self._closing.set()
        self._due.set()
        if self._task is not None:
            await self._task
        if not await self._flush():
            log.error("call records: %d could not be written", len(self._waiting) + self._rest_count)
        self._thread.shutdown()


def append(path: str, header: str, data: bytes) -> None:
    """Append data to a file, with a header first where it is new. All of it or nothing. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        before = os.fstat(fd).st_size
        if before == 0:
            data = header.encode() + data
        done = 0
        try:
            while done < len(data):
                done += os.write(fd, data[done:])
        except OSError as error:
            if done:
                os.ftruncate(fd, before)
            raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)
