"""Files that are in whole or not at all, also after a crash of the machine."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file. After a crash it has the old content or the new one. Raises OSError."""
    beside = path.with_name(path.name + ".new")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    with open(fd, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(fd)
    os.replace(beside, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a crash of the machine. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class FolderLock:
    """A folder that one process uses at a time. It is free again when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder where only that one is missing. Raises OSError, naming it, also where another process has the lock."""
        folder.mkdir(mode=0o750, exist_ok=True)
        path = folder / "lock"
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._fd)
            raise OSError(error.errno, "another operator daemon uses this folder", str(folder)) from None

    def release(self) -> None:
        """Give the folder free."""
        os.close(self._fd)
