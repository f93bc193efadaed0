"""Answers that are kept for a while, because a SIP server that got none repeats its command.

There are tens of thousands of them. One dictionary would be written anew whenever it has been filled once, and a command waits for
that for 3 to 7 ms; here they are in several smaller ones by age, and those too old are thrown away a few at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")

_PARTS = 8
_THROWN_AWAY = 2  # for each that is kept: more than come


class Answers(Generic[Key, Answer]):
    """By key what was answered, for `life` seconds; where more than `most` come in that time, the oldest go first, an eighth of them at a time."""

    def __init__(self, life: float, most: int) -> None:
        self._life, self._most = life, most
        self._span = life / _PARTS
        self._full = max(1, most // _PARTS)
        self._newest: dict[Key, tuple[Answer, float]] = {}  # with the time it is kept until
        self._begun = float("-inf")  # when the first of it was kept
        self._older: deque[tuple[dict[Key, tuple[Answer, float]], float]] = deque()  # newest first; with the time the last of it is kept until
        self._old: deque[dict[Key, tuple[Answer, float]]] = deque()  # to be thrown away

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._newest) + sum(len(part) for part, _ in self._older)

    def get(self, key: Key, now: float) -> Answer | None:
        """The last answer kept for this key; None where there is none any more. now: seconds of the clock that keep() is given."""
        found = self._newest.get(key)
        if found is None:
            for part, _ in self._older:
                found = part.get(key)
                if found is not None:
                    break
            else:
                return None
        answer, until = found
        return answer if until > now else None

    def keep(self, key: Key, answer: Answer, now: float) -> None:
        """Keep this answer, in place of an earlier one."""
        if now - self._begun >= self._span or len(self._newest) >= self._full:
            if self._newest:
                self._older.appendleft((self._newest, now + self._life))
            self._newest, self._begun = {}, now
            while self._older and (self._older[-1][1] <= now or len(self) + self._full > self._most):
                self._old.append(self._older.pop()[0])
        self._newest[key] = (answer, now + self._life)
        for _ in range(_THROWN_AWAY):
            if not self._old:
                break
            self._old[0].popitem()
            if not self._old[0]:
                self._old.popleft()

    def clear(self) -> None:
        """Forget all."""
        self._newest, self._begun = {}, float("-inf")
        self._older.clear()
        self._old.clear()
