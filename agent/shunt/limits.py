"""Counters of limits that were met: one small registry, so that every limit has a number an operator can see.

`LIMITS` says what each counter means; docs/limits.md says what happens then.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

log = logging.getLogger(__name__)

LIMITS: dict[str, str] = {
    "table_full": "Entries that the data plane refused because its table is full.",
    "ports_exhausted": "Commands that the built-in relay refused because its port range is empty.",
    "ports_clashed": "Times that a relay gave out a port of another call, and was made to take another.",
    "ports_clashed_refused": "Commands that were refused because a relay gave out nothing but ports of other calls.",
    "packets_over_limit": "Packets that the built-in relay dropped because a stream had more than builtin_relay.packet_limit.",
    "journal_failures": "Writes that the journal did not take.",
    "journal_slow": "Answers that did not wait for the journal any longer.",
    "journal_unreadable": "Rows of the journal that could not be read and were left out.",
    "clock_steps": "Steps of the wall clock by more than a second.",
    "fenced_writes": "Table writes that were not sent because another agent may be in charge.",
    "takeovers": "Times that this agent took over control.",
    "refused_draining": "New calls that were refused because the agent is draining.",
    "refused_sources": "Times that a source was found to scan ports and is not heard for a while at ports without an entry.",
    "api_busy": "REST requests that were refused because too many were under way.",
    "single_receive_queue": "Interfaces of the data plane with one receive queue: one processor core takes all of their packets.",
    "background_task_failures": "Times that a background task of the agent failed and was started again.",
    "generic_xdp": "Interfaces of the data plane that run XDP in the kernel's generic path.",
}

_counts: Counter[str] = Counter()


def count(name: str, by: int = 1) -> None:
    """Count a limit that was met. Raises KeyError for a name that LIMITS does not explain."""
    if name not in LIMITS:
        raise KeyError(name)
    _counts[name] += by


def state(name: str, value: int) -> None:
    """Set a limit that is a state and not an event. Raises KeyError as count does."""
    if name not in LIMITS:
        raise KeyError(name)
    _counts[name] = value


def snapshot() -> dict[str, int]:
    """Every counter, those at 0 too."""
    return {name: _counts[name] for name in LIMITS}


class ClockWatch:
    """Notices when the wall clock is set. Nothing but the times in logs and records depends on it."""

    STEP_S = 1.0

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        """wall: Unix time; steady: seconds that nobody sets."""
        self._wall, self._steady = wall, steady
        self._apart = wall() - steady()

    def look(self) -> float:
        """Seconds by which the wall clock was set since the last look; 0 for the little that clocks drift."""
        apart = self._wall() - self._steady()
        step, self._apart = apart - self._apart, apart
        if abs(step) < self.STEP_S:
            return 0.0
        count("clock_steps")
        log.warning("the wall clock was set by %+.1f s; calls and time-outs do not depend on it", step)
        return step
