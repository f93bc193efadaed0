"""What no answer waits for: done while no command of a SIP server is being answered, and at the latest a moment later.

The event loop takes turns in the order of events. Without this, what an answered command leaves to be done, and all that putting calls into
the data plane takes, stands before the next command, several times on its way: at some hundred calls a second that is most of
what a command may have to wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context

log = logging.getLogger(__name__)

MOST_S = 0.005
"""Seconds after which work is done, commands or not."""
TURN_S = 0.00002
"""Seconds of work in one turn of the event loop, after which a command that has come goes first."""
_MORE = 0.02
"""Seconds that a turn gets on top for each second that work is late: where commands leave too little time, both become slower."""
_AT_ONCE = Context()  # its callbacks are no such work themselves (see shunt.precedence)


class Leisure:
    """Counts the commands that are being answered, and does work between them, in order and a little at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """loop: whose leisure it is, also while that does not run; None: the one that runs."""
        self._loop = loop
        self._chore: Callable[[], object] | None = None
        self._every = 1
        self._answered = 0  # since the chore was last put down for doing
        self._busy = 0
        self._work: deque[tuple[float, Callable[[], object]]] = deque()  # first, as a monotonic time, when it is due
        self._next: asyncio.Handle | None = None
        self._due: asyncio.TimerHandle | None = None

    def always(self, chore: Callable[[], object], every: int) -> None:
        """Do this, besides, whenever so many commands have been answered."""
        self._chore, self._every = chore, every

    def begin(self) -> None:
        """A command has come."""
        self._busy += 1

    def end(self) -> None:
        """Its answer is about to be sent."""
        self._busy -= 1
        self._answered += 1
        if self._chore is not None and self._answered >= self._every:
            self._answered = 0
            self.later(self._chore)
        if self._work and not self._busy:
            self._plan()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """While a command waits for such work itself, it holds none up."""
        self._busy -= 1
        self._plan()
        try:
            yield
        finally:
            self._busy += 1

    def put(self, work: Callable[[], object]) -> None:
        """Call this once no command is being answered, but not at once. It has to see to its exceptions itself."""
        self._work.append((time.monotonic() + MOST_S, work))
        if self._next is None:
            self._plan()

    def later(self, work: Callable[[], object], then: Callable[[], object] | None = None) -> None:
        """put(), for work whose exceptions are logged; then is called after it, whatever came of it."""

        def do() -> None:
            for step in (work, then):
                try:
                    if step is not None:
                        step()
                except Exception:
                    log.exception("what was left for later failed")

        self.put(do)

    def when_free(self, work: Callable[[], object]) -> asyncio.Future[None]:
        """later(). The result is done when that is."""
        done = asyncio.get_running_loop().create_future()
        self.later(work, lambda: None if done.done() else done.set_result(None))
        return done

    async def finish(self) -> None:
        """Wait until what is left is done: in turns of the event loop, since a step of one task cannot be taken within another's."""
        await self.when_free(lambda: None)

    def _plan(self) -> None:
        if not self._work or self._next is not None:
            return
        loop = self._loop or asyncio.get_running_loop()
        if not self._busy:
            self._next = loop.call_soon(self._free, context=_AT_ONCE)  # after what has come meanwhile
        elif self._due is None:
            self._due = loop.call_at(self._work[0][0], self._overdue, context=_AT_ONCE)

    def _free(self) -> None:
        self._next = None
        work, until = self._work, time.monotonic() + TURN_S
        while work and not self._busy:
            work.popleft()[1]()
            if time.monotonic() >= until:
                break
        self._plan()

    def _overdue(self) -> None:
        self._due = None
        work, now = self._work, time.monotonic()
        until = now + TURN_S + _MORE * (now - work[0][0] if work else 0.0)
        while work and work[0][0] <= now:
            work.popleft()[1]()
            if time.monotonic() >= until:
                break
        self._plan()
