"""Draining before maintenance: nothing new comes, what is there ends by itself, and the agent says when it is empty."""

from __future__ import annotations

import logging
from typing import Any

from shunt import limits
from shunt.calls.book import CallBook
from shunt.calls.kinds import Stop
from shunt.offload import Offloader
from shunt.rtpproxy.codec import CodecError, build_error, parse_command

log = logging.getLogger(__name__)

__all__ = ["Drain", "E_DRAINING", "Stop"]

E_DRAINING = 99
"""rtpproxy's own answer to a new session while it is being drained (facts section 10)."""


class Drain:
    """Whether the agent drains, and what is left."""

    def __init__(self, book: CallBook, offloader: Offloader) -> None:
        self.book = book
        self.offloader = offloader
        self.stop: Stop | None = None

    def begin(self, stop: Stop) -> None:
        """Start draining, or change what is stopped."""
        log.warning("draining: no new %s", stop.value)
        self.stop = stop
        self.offloader.draining = True

    def end(self) -> None:
        """Serve as before; streams that were kept out are offloaded now."""
        if self.stop is None:
            return
        log.warning("draining has ended")
        self.stop = None
        self.offloader.draining = False
        for line in self.book.lines():
            if not line.offloaded:
                self.offloader.spawn(self.offloader.sync(line))

    def refuse(self, body: bytes) -> bytes | None:
        """The answer to a command that would begin a new call while calls are stopped; None for every other."""
        if self.stop is not Stop.CALLS:
            return None
        try:
            command = parse_command(body)
        except CodecError:
            return None
        if command.verb != "U" or command.call_id is None or self.book.relay_of(command.call_id) is not None:
            return None
        limits.count("refused_draining")
        return build_error(E_DRAINING)

    def view(self) -> dict[str, Any]:
        """{stop: "offloads", "calls" or None, calls, entries, empty}: empty says that maintenance may begin."""
        calls, entries = len(self.book.calls()), len(self.offloader.entries)
        left = entries if self.stop is Stop.OFFLOADS else calls + entries
        return {"stop": None if self.stop is None else self.stop.value, "calls": calls, "entries": entries, "empty": self.stop is not None and left == 0}
