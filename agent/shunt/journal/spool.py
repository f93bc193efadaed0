"""Rows that were promised and that the disk does not have yet: files in memory, which outlive the process but not the machine.

To write there takes microseconds and waits for no disk, so an answer can wait for it. Files PREFIX.1, PREFIX.2, … hold
a row to a line, `c` (call) or `s` (session), the name as JSON, a tab, the body; no body: the row is gone. A process that is
killed while it writes leaves a last line without its end, which nobody was promised.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import stat
from json.encoder import encode_basestring_ascii
from pathlib import Path

from shunt.journal.store import Group

log = logging.getLogger(__name__)

_MOST_BYTES = 32 << 20
"""When the disk takes nothing for so long that this much waits, no more is promised."""
_MEMORY = Path("/dev/shm")


class Spool:
    """The rows of one journal that wait for the disk."""

    def __init__(self, prefix: str) -> None:
        """Raises OSError where the first file cannot be made."""
        self.prefix = prefix
        self._number = 0
        self._oldest = 1
        self._file = -1
        self._size = 0  # of the file that is written
        self._waiting = 0  # bytes of all files
        self._begin()

    @classmethod
    def make(cls, journal: str) -> Spool:
        """A new spool for the journal at this path. Raises OSError."""
        return cls(str(_folder(journal) / f"journal-{secrets.token_hex(8)}"))

    def _begin(self) -> None:
        file = os.open(f"{self.prefix}.{self._number + 1}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._size = file, 0
        self._number += 1

    def append(self, group: Group) -> bool:
        """Keep these rows; False where there is no room, and then none of them is kept."""
        data = "".join([_line("c", name, body) for name, body in group.calls.items()] + [_line("s", name, body) for name, body in group.sessions.items()]).encode()
        if self._waiting + len(data) > _MOST_BYTES:
            return False
        try:
            written = os.write(self._file, data)
            if written < len(data):
                os.ftruncate(self._file, self._size)
        except OSError as error:
            log.error("%s: %s", self.prefix, error)
            return False
        if written < len(data):
            return False
        self._size += written
        self._waiting += written
        return True

    def turn(self) -> tuple[int, int]:
        """What is kept from now on goes to another file; the result, given to drop(), drops all that was kept before."""
        if self._size:
            self._begin()
        return self._number, self._waiting

    def drop(self, before: tuple[int, int]) -> None:
        """The disk has all that was kept before that turn()."""
        number, waiting = before
        for old in range(self._oldest, number):
            _unlink(f"{self.prefix}.{old}")
        self._oldest = max(self._oldest, number)
        self._waiting -= waiting

    def close(self) -> None:
        """Stop. What waits is left for the next process."""
        os.close(self._file)
        if not self._waiting:
            self.drop((self._number + 1, 0))


def read(prefix: str) -> Group:
    """The rows that a process before this one left there, the latest of each. Raises OSError."""
    found = Group()
    for path in _files(prefix):
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as stream:
            if os.fstat(file).st_uid != os.geteuid():
                raise PermissionError(f"{path} belongs to another user")
            for line in stream:
                name, tab, body = line[1:].partition(b"\t")
                if tab and line.endswith(b"\n"):
                    rows = found.calls if line[:1] == b"c" else found.sessions
                    rows[json.loads(name)] = body[:-1].decode() or None
    return found


def remove(prefix: str) -> None:
    """Remove what a process before this one left there, once the disk has it."""
    for path in _files(prefix):
        _unlink(path)


def _files(prefix: str) -> list[str]:
    folder, name = os.path.split(prefix)
    try:
        numbers = [int(file[len(name) + 1:]) for file in os.listdir(folder) if file.startswith(name + ".") and file[len(name) + 1:].isdigit()]
    except FileNotFoundError:
        return []  # the machine has been started anew
    return [f"{prefix}.{number}" for number in sorted(numbers)]


def _line(kind: str, name: str, body: str | None) -> str:
    return f"{kind}{encode_basestring_ascii(name)}\t{body or ''}\n"


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        log.warning("%s stays: %s", path, error)


def _folder(journal: str) -> Path:
    """A folder in memory of this user's own: the service's run-time folder, else one in /dev/shm, else, which may wait for a disk, the journal's."""
    given = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if given:
        return Path(given)
    folder = _MEMORY / f"shunt-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            return folder
        log.warning("%s is not this user's own: what the journal's disk does not have yet is kept beside it", folder)
    except OSError as error:
        log.warning("%s: %s: what the journal's disk does not have yet is kept beside it", folder, error)
    return Path(journal).absolute().parent
