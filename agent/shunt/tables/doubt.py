"""Keys whose state in the data plane is in doubt: a write on them was given up without an answer, and may yet be carried out.

A server that is slow or hung can apply such a write seconds later, after a newer one on the same key. So
each of these keys is looked at again, several times, until what was given up can no longer be on its way.
"""

from __future__ import annotations

import enum

from shunt.net import FiveTuple
from shunt.tables.entry import Outcome, RelayEntry, Result

LOOKS = (1.0, 4.0, 15.0)  # seconds to the next look, from one look to the next


class Wanted(enum.Enum):
    """What ought to be at a key, where that is not an entry."""

    NOTHING = "nothing"
    UNKNOWN = "unknown"


class _Doubt:
    __slots__ = ("wanted", "due", "looks")

    def __init__(self, due: float) -> None:
        self.wanted: RelayEntry | Wanted = Wanted.UNKNOWN
        self.due = due
        self.looks = 0


class Doubts:
    """The keys in doubt, what their callers believe to be there, and when to look. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._doubts: dict[FiveTuple, _Doubt] = {}

    def __len__(self) -> int:
        return len(self._doubts)

    def __contains__(self, key: FiveTuple) -> bool:
        return key in self._doubts

    def raise_(self, key: FiveTuple, now: float) -> None:
        """A write on this key was given up just now."""
        self._doubts[key] = _Doubt(now + LOOKS[0])

    def note(self, key: FiveTuple, result: Result, entry: RelayEntry | None, *, modify: bool) -> None:
        """An operation on the key ended like this, which is what its caller believes from now on."""
        doubt = self._doubts.get(key)
        if doubt is None:
            return
        if entry is None or (not modify and result.outcome is not Outcome.INSTALLED):
            # A delete, whatever came of it, and an insert that did not succeed: nobody claims the key.
            doubt.wanted = Wanted.NOTHING
        else:
            doubt.wanted = entry if result.outcome is Outcome.INSTALLED else Wanted.UNKNOWN

    def due(self, now: float) -> list[FiveTuple]:
        """The keys to look at now."""
        return [key for key, doubt in self._doubts.items() if doubt.due <= now]

    def next_due(self) -> float | None:
        """When the next look is due."""
        return min((doubt.due for doubt in self._doubts.values()), default=None)

    def wanted(self, key: FiveTuple) -> RelayEntry | Wanted:
        """What ought to be at the key."""
        doubt = self._doubts.get(key)
        return Wanted.UNKNOWN if doubt is None else doubt.wanted

    def postpone(self, key: FiveTuple, now: float) -> None:
        """It could not be looked at."""
        if (doubt := self._doubts.get(key)) is not None:
            doubt.due = now + LOOKS[0]

    def looked(self, key: FiveTuple, now: float) -> None:
        """The key was looked at; after the last look it is in doubt no more."""
        doubt = self._doubts.get(key)
        if doubt is None:
            return
        doubt.looks += 1
        if doubt.looks >= len(LOOKS):
            del self._doubts[key]
        else:
            doubt.due = now + LOOKS[doubt.looks]

    def clear(self) -> None:
        """Forget all: whoever comes back to the data plane reads everything anew."""
        self._doubts.clear()
