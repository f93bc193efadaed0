"""Accounting of call records. The agent numbers the calls that end, so a hole in the numbers means lost records. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Accounting:
    """The account after the end of a call.

    epoch, number: the run of the agent, and how many calls had ended in it; ended: when (ISO 8601); lost: records lost so far; lost_at: Unix time when
    the last loss was noticed.
    """

    epoch: int
    number: int
    ended: str
    lost: int = 0
    lost_at: float | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """Lost records. at_least: more may be lost, since the agent restarted in between; since: None: not known."""

    number: int
    at_least: bool
    since: str | None
    until: str
    reason: str


def after(last: Accounting | None, gap: str | None, end: Accounting, now: float) -> tuple[Accounting, Lost | None]:
    """Returns the account after one more end of a call, and the records lost before it.

    last: after the end before, None: there was none, so that no earlier call was to be recorded; gap: why events between the two are missing, None: none are;
    end: the call's epoch, number and time; now: Unix time.
    """
    if last is None:
        return end, None
    same = last.epoch == end.epoch
    number = max(0, end.number - last.number - 1) if same else end.number - 1
    at_least = not same and gap is not None
    kept = replace(end, lost=last.lost + number, lost_at=last.lost_at)
    if number == 0 and not at_least:
        return kept, None
    return replace(kept, lost_at=now), Lost(number, at_least, last.ended or None, end.ended, gap or "lost")
