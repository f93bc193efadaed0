"""One table operation on its way, what its caller waits for, and the queues in which operations wait their turn.

Urgent operations (a stream that can be offloaded) go before patient ones (a call that is over), and those before bulk work (reconciling).
Operations on one key never overtake each other, whichever queue they came through.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum

from shunt.net import FiveTuple
from shunt.tables.entry import Outcome, RelayEntry, Result, StreamStats


class Job:
    """What one caller waits for: the results of one or many operations."""

    __slots__ = ("results", "stats", "left", "done", "timer")

    def __init__(self, count: int) -> None:
        self.results: list[Result | None] = [None] * count
        self.stats: list[StreamStats | None] = [None] * count
        self.left = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        if not count:
            self.done.set_result(None)

    def answers(self) -> list[Result]:
        """The results, once done."""
        return [result if result is not None else Result(Outcome.UNAVAILABLE, "no answer") for result in self.results]

    def expire(self, result: Result) -> None:
        """Give every operation that has no result yet this one: nobody waits any longer."""
        self.results = [result if found is None else found for found in self.results]
        self.left = 0
        if not self.done.done():
            self.done.set_result(None)


class Operation:
    """One update of the relay table. kind is a pb.Update type; asked is what the caller wanted, kind may change on the way."""

    __slots__ = ("kind", "asked", "key", "entry", "stats", "result", "_job", "_place")

    def __init__(self, kind: int, key: FiveTuple, entry: RelayEntry | None, job: Job | None = None, place: int = 0) -> None:
        self.kind = self.asked = kind
        self.key = key
        self.entry = entry
        self.stats: StreamStats | None = None
        self.result: Result | None = None
        self._job = job
        self._place = place

    def finish(self, result: Result) -> None:
        """Note the outcome and tell the caller; only the first outcome counts."""
        if self.result is not None:
            return
        self.result = result
        job = self._job
        if job is not None and job.results[self._place] is None:
            job.results[self._place] = result
            job.stats[self._place] = self.stats
            job.left -= 1
            if not job.left and not job.done.done():
                job.done.set_result(None)

    @property
    def waited_for(self) -> bool:
        """Whether there is a caller to be told."""
        return self._job is not None

    @property
    def told(self) -> Result:
        """What the caller was told, which is not `result` when it came too late. Only for operations with both."""
        told = None if self._job is None else self._job.results[self._place]
        assert told is not None
        return told

    @property
    def abandoned(self) -> bool:
        """Whether its caller has been told that there was no answer."""
        return self._job is not None and self.result is None and self._job.results[self._place] is not None


class Haste(Enum):
    """How soon an operation has to be done."""

    URGENT = "urgent"  # a call waits for it
    PATIENT = "patient"  # nobody waits for it
    BULK = "bulk"  # one of very many


class Lanes:
    """Operations waiting for their turn, by haste, and the keys of those under way."""

    def __init__(self) -> None:
        self._urgent: deque[Operation] = deque()
        self._urgent_keys: dict[FiveTuple, int] = {}
        self._slow: dict[Haste, dict[FiveTuple, list[Operation]]] = {Haste.PATIENT: {}, Haste.BULK: {}}
        self._busy: set[FiveTuple] = set()

    def __contains__(self, key: FiveTuple) -> bool:
        """Whether an operation on this key waits or is under way."""
        return key in self._busy or key in self._urgent_keys or any(key in queue for queue in self._slow.values())

    def waiting(self, haste: Haste) -> int:
        """How many urgent operations wait; of the others, for how many keys."""
        return len(self._urgent if haste is Haste.URGENT else self._slow[haste])

    def add(self, operations: Iterable[Operation], haste: Haste) -> None:
        """Queue operations, in order."""
        for operation in operations:
            key = operation.key
            if haste is Haste.URGENT or key in self._urgent_keys:
                # What waits on the same key goes first, so it becomes as urgent as what waits for it.
                for queue in self._slow.values():
                    for earlier in queue.pop(key, ()):
                        self._add_urgent(earlier)
                self._add_urgent(operation)
                continue
            # Operations on one key wait in one queue.
            queue = next((queue for queue in self._slow.values() if key in queue), self._slow[haste])
            queue.setdefault(key, []).append(operation)

    def _add_urgent(self, operation: Operation) -> None:
        self._urgent.append(operation)
        self._urgent_keys[operation.key] = self._urgent_keys.get(operation.key, 0) + 1

    def take(self, most: int, haste: Haste) -> list[Operation]:
        """The next operations, each of another key than all others under way; release() their keys in the end."""
        return self._take_urgent(most) if haste is Haste.URGENT else self._take_slow(self._slow[haste], most)

    def _take_urgent(self, most: int) -> list[Operation]:
        batch: list[Operation] = []
        waiting: list[Operation] = []
        queue, busy = self._urgent, self._busy
        while queue and len(batch) < most:
            operation = queue.popleft()
            key = operation.key
            if key in busy:
                waiting.append(operation)
                continue
            busy.add(key)
            batch.append(operation)
            if (left := self._urgent_keys[key] - 1) > 0:
                self._urgent_keys[key] = left
            else:
                del self._urgent_keys[key]
        queue.extendleft(reversed(waiting))
        return batch

    def _take_slow(self, queue: dict[FiveTuple, list[Operation]], most: int) -> list[Operation]:
        batch: list[Operation] = []
        for key, operations in queue.items():
            if len(batch) >= most:
                break
            if key not in self._busy:
                batch.append(operations[0])
        for operation in batch:
            self._busy.add(operation.key)
            operations = queue[operation.key]
            del operations[0]
            if not operations:
                del queue[operation.key]
        return batch

    def release(self, operations: Sequence[Operation]) -> None:
        """These operations have come to their end: others on their keys may go."""
        self._busy.difference_update(operation.key for operation in operations)

    def drain(self) -> list[Operation]:
        """Take out everything that waits."""
        found = [*self._urgent, *(operation for queue in self._slow.values() for operations in queue.values() for operation in operations)]
        self._urgent.clear()
        self._urgent_keys.clear()
        for queue in self._slow.values():
            queue.clear()
        return found
