"""A policy of the operator's own (`conference.selector`): reads the agent's estimates, and posts the decode targets that the function answers.

The agent has the default policy built in; this runs only where the configuration names another function.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field

from shunt.admin import AdminClient, AdminError, AgentError
from shunt.admin.model import Decision
from shunt.admin.model import Estimate as Told
from shunt.config.selector import Estimate, SelectDecodeTarget

log = logging.getLogger(__name__)

HOLD_S = 10.0
"""After so many seconds without a decision the agent's own policy decides again: this process may have died."""
KEEP_S = 60.0
"""Seconds of earlier estimates that the function is given."""
_GATHER_S = 0.1
_RETRY_S = 1.0
_FORGET_S = 300.0


@dataclass(slots=True)
class _Pair:
    """What the function is asked with, of one sender, receiver and medium."""

    history: deque[Estimate] = field(default_factory=deque)
    said: str = ""


class Decisions:
    """The function, and what it is asked with. No I/O, and no clock of its own."""

    def __init__(self, select: SelectDecodeTarget) -> None:
        self._select = select
        self._pairs: dict[tuple[str, str, str, str], _Pair] = {}
        self.failures = 0

    def decide(self, told: Told, now: float) -> Decision | None:
        """What follows from an estimate; None: nothing, or the function failed, which is said once. now: monotonic seconds."""
        rates = tuple(float(rate) for rate in told["targets_bits_per_s"])
        if len(rates) < 2 or told["medium"] == "audio":
            return None  # nothing is left out of such a stream
        if len(self._pairs) > 1000:
            self._forget(now)
        pair = self._pairs.setdefault((told["conference"], told["sender"], told["receiver"], told["medium"]), _Pair())
        current = len(rates) - 1 if told["target"] is None else min(told["target"], len(rates) - 1)
        estimate = Estimate(now, float(told["estimate_bits_per_s"]), rates, current)
        while pair.history and pair.history[0].time < now - KEEP_S:
            pair.history.popleft()
        try:
            answer = self._select(current, tuple(pair.history), estimate)
            if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(rates):
                raise ValueError(f"answers {answer!r}, which is no decode target of {len(rates)}")
        except Exception as error:  # whatever the operator's own code raises
            self.failures += 1
            reason = f"{type(error).__name__}: {error}"
            if reason != pair.said:
                log.error("conference.selector for %s of %s in %s: %s; the target stays", told["receiver"], told["sender"], told["conference"], reason)
            pair.said = reason
            return None
        pair.history.append(estimate)
        return {"sender": told["sender"], "receiver": told["receiver"], "target": answer}

    def _forget(self, now: float) -> None:
        self._pairs = {key: pair for key, pair in self._pairs.items() if pair.history and pair.history[-1].time > now - _FORGET_S}


class Selector:
    """Asks the function, and posts what it decides."""

    def __init__(self, client: AdminClient, select: SelectDecodeTarget) -> None:
        self._client, self._decisions = client, Decisions(select)
        self._due: dict[str, dict[tuple[str, str], Decision]] = {}  # by conference

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())
            group.create_task(self._post())

    async def _read(self) -> None:
        said = ""
        while True:
            try:
                async for told in self._client.estimates():
                    said = ""
                    if (decision := self._decisions.decide(told, time.monotonic())) is not None:
                        pair = decision["sender"], decision["receiver"]
                        of = self._due.setdefault(told["conference"], {})
                        before = of.get(pair)
                        # A sender's camera and screen have one target: the lower one.
                        if before is None or before["target"] is None or decision["target"] is None or decision["target"] < before["target"]:
                            of[pair] = decision
            except AdminError as error:
                if str(error) != said:
                    log.warning("estimates of the agent: %s; retrying", error)
                said = str(error)
            await asyncio.sleep(_RETRY_S)

    async def _post(self) -> None:
        while True:
            await asyncio.sleep(_GATHER_S)
            due, self._due = self._due, {}
            for conference, decisions in due.items():
                await self._give(conference, list(decisions.values()))

    async def _give(self, conference: str, decisions: list[Decision]) -> None:
        try:
            await self._client.set_targets(conference, decisions, HOLD_S)
        except AgentError as error:
            if len(decisions) == 1:
                log.debug("conference %s: %s", conference, error)  # one of the two has left
                return
            # All of one request are taken over, or none: one of the participants may be gone.
            for decision in decisions:
                await self._give(conference, [decision])
        except AdminError as error:
            log.debug("conference %s: %s", conference, error)
