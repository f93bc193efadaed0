"""What no answer waits for: done while no command of a SIP server is being answered, and at the latest a moment later.

The event loop takes turns in the order of events. Without this, what an answered command leaves to be done stands before the next
command, and at some hundred calls a second that is a quarter of what a command may have to wait for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

log = logging.getLogger(__name__)

MOST_S = 0.005
"""Seconds after which work is done, commands or not."""


class Leisure:
    """Counts the commands that are being answered, and does one piece of work after the other between them."""

    def __init__(self, chore: Callable[[], object] | None = None, every: int = 1) -> None:
        """chore: what is to be done, besides, whenever so many commands have been answered."""
        self._chore = chore
        self._every = every
        self._answered = 0  # since the chore was last put down for doing
        self._busy = 0
        self._work: deque[tuple[float, Callable[[], object], asyncio.Future[None]]] = deque()  # first, by the loop's clock, when it is due
        self._next: asyncio.Handle | None = None
        self._due: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A command has come."""
        self._busy += 1

    def end(self) -> None:
        """Its answer is about to be sent."""
        self._busy -= 1
        self._answered += 1
        if self._chore is not None and self._answered >= self._every:
            self._answered = 0
            self.when_free(self._chore)
        if self._work and not self._busy:
            self._plan()

    def when_free(self, work: Callable[[], object]) -> asyncio.Future[None]:
        """Call this once no command is being answered, but not at once. The result is done when that is; an exception in it is logged."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._work.append((loop.time() + MOST_S, work, done))
        self._plan()
        return done

    def finish(self) -> None:
        """Do now all that is left."""
        while self._work:
            self._do()

    def _plan(self) -> None:
        if not self._work or self._next is not None:
            return
        loop = asyncio.get_running_loop()
        if not self._busy:
            self._next = loop.call_soon(self._free)  # after what has come meanwhile
        elif self._due is None:
            self._due = loop.call_at(self._work[0][0], self._overdue)

    def _free(self) -> None:
        self._next = None
        if self._work and not self._busy:
            self._do()
        self._plan()

    def _overdue(self) -> None:
        self._due = None
        if self._work and self._work[0][0] <= asyncio.get_running_loop().time():
            self._do()
        self._plan()

    def _do(self) -> None:
        _, work, done = self._work.popleft()
        try:
            work()
        except Exception:
            log.exception("what was left for later failed")
        if not done.done():
            done.set_result(None)
