"""How far the agent's events were dealt with, kept in a file over restarts of this side."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shunt.errors import cause
from shunt.operator.accounting import Accounting
from shunt.operator.files import write_atomically

log = logging.getLogger(__name__)

_FORMAT = 1


class Position:
    """`next` is the sequence number of the first event that is not dealt with; None: none ever was. `accounting`: of the calls that are recorded, None: none is."""

    def __init__(self, path: Path) -> None:
        """Reads the file. One that is damaged is moved aside, and said in the log: all that is kept of events is dealt with again. Raises OSError."""
        self.path = path
        self.failures = 0
        self.error: str | None = None
        self.next: int | None = None
        self.accounting: Accounting | None = None
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        try:
            document = json.loads(data)
            value = document["next"]
            if not isinstance(value, int) or value < 0:
                raise ValueError(value)
            self.accounting = accounting_of(document)
            self.next = value
        except (ValueError, KeyError, TypeError):
            aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
            path.rename(aside)
            log.error("%s was damaged and is now %s; all stored events are processed again", path, aside)

    def save(self, next_seq: int, accounting: Accounting | None) -> None:
        """Events below next_seq are dealt with, and these calls are recorded. Raises OSError; then `next` stays, and `error` says why."""
        if next_seq == self.next and accounting == self.accounting:
            return
        try:
            write_atomically(self.path, json.dumps({"format": _FORMAT, "next": next_seq, **accounting_view(accounting)}).encode())
        except OSError as error:
            self.failures += 1
            if self.error is None:
                log.error("%s: %s; retrying", self.path, cause(error))
            self.error = cause(error)
            raise
        if self.error is not None:
            log.warning("%s can be written again", self.path)
        self.error = None
        self.next, self.accounting = next_seq, accounting


def accounting_view(accounting: Accounting | None) -> dict[str, Any]:
    """A part of a document, as accounting_of reads it."""
    return {} if accounting is None else {"calls": asdict(accounting)}


def accounting_of(document: dict[str, Any]) -> Accounting | None:
    """The accounting of a document. Raises TypeError where it is damaged."""
    return Accounting(**document["calls"]) if "calls" in document else None
