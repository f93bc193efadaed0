"""Where conferences are kept for the next agent: in a folder, or in the journal that the agents of a pair share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from shunt.journal.keeper import Journal

log = logging.getLogger(__name__)


class Shelf(Protocol):
    """Keeps one text for each conference."""

    async def open(self) -> None:
        """Have what was kept at hand. Raises JournalError."""

    def load(self) -> Iterator[tuple[str, str]]:
        """(where, text) of all that is kept."""

    def put(self, name: str, text: str | None) -> None:
        """Keep a conference's text; None: it is over. What fails is said, and does not stop the conference."""

    async def kept(self) -> None:
        """Wait until all that was put outlives this agent, for a moment at most."""


class Folder:
    """A file for each conference: outlives the process, and belongs to this host."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def open(self) -> None:
        pass  # files are read when they are asked for

    def load(self) -> Iterator[tuple[str, str]]:
        for path in sorted(self._path.glob("*.json")) if self._path.is_dir() else ():
            try:
                yield str(path), path.read_text()
            except OSError as error:
                log.error("%s cannot be carried on: %s", path, error.strerror or error)

    def put(self, name: str, text: str | None) -> None:
        path = self._path / f"{name}.json"
        try:
            if text is None:
                path.unlink(missing_ok=True)
                return
            self._path.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".new")
            fresh.write_text(text)
            os.replace(fresh, path)
        except OSError as error:
            log.error("conference %s is not kept for a restart: %s: %s", name, path, error.strerror or error)

    async def kept(self) -> None:
        pass  # a file that is written outlives the process


class Shared:
    """Rows of the journal, each written with the fencing token of the agent in charge."""

    def __init__(self, journal: "Journal") -> None:
        self._journal = journal
        self._found: dict[str, str] = {}

    async def open(self) -> None:
        self._found = await self._journal.conferences()

    def load(self) -> Iterator[tuple[str, str]]:
        for name, text in self._found.items():
            yield f"{self._journal.store.name}: conference {name}", text

    def put(self, name: str, text: str | None) -> None:
        self._journal.conference_changed(name, text)

    async def kept(self) -> None:
        await self._journal.kept()
