"""The fence in front of the relay table: every write that the table can make is held back, and told so, while another agent may be in charge."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from shunt import limits
from shunt.net import Endpoint
from shunt.standby.fence import FencedTable
from shunt.tables.entry import MediaRange, Outcome, Result
from shunt.tables.operation import Haste
from shunt.tables.relay_table import RelayTable
from tests.bfrt.test_relay_table import entry

# What an agent that is not in charge may do, too.
READS = {"start", "close", "entries", "stats", "trace", "totals"}

PORT = Endpoint.of("10.91.1.1", 10_000)
RANGE = MediaRange(PORT.addr, 10_000, 10_099)
KEYS = [entry(n).key for n in range(3)]
# By method: arguments, and how many writes they ask for.
WRITES: dict[str, tuple[tuple[Any, ...], int]] = {
    "insert": ((entry(1),), 1),
    "place": (([entry(1), entry(2)], [entry(3)]), 3),
    "delete": ((KEYS[0],), 1),
    "insert_many": (([entry(1), entry(2)],), 2),
    "delete_many": ((KEYS, Haste.PATIENT), 3),
    "refuse": ((PORT, 1_000), 1),
    "hear": ((PORT,), 1),
    "hear_all": ((), 1),
    "guard": (({PORT: ()}, 1_000), 1),
    "unguard_all": ((), 1),
    "be_wary": (([RANGE], 1_000), 1),
    "know": (([PORT.addr], 1_000, [b"\x0a\0\0\1"]), 1),
    "know_nobody": ((), 1),
    "declare_media": (([RANGE],), 1),
}


class Recorder:
    """A table that notes what reaches it."""

    def __init__(self) -> None:
        self.reached: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def note(*arguments: Any) -> str:
            self.reached.append((name, arguments))
            return "the table's own answer"

        return note


class Gate:
    """A fence that is told whether it is open."""

    def __init__(self, is_open: bool) -> None:
        self.is_open = is_open

    def may_write(self) -> bool:
        return self.is_open


def coroutines(of: type) -> set[str]:
    return {name for name, member in vars(of).items() if inspect.iscoroutinefunction(member) and not name.startswith("_")}


def test_no_write_of_the_table_goes_past_the_fence() -> None:
    """What the fence does not know it hands to the table: a new way to write has to be fenced when it is made."""
    assert coroutines(RelayTable) - READS == coroutines(FencedTable) == set(WRITES)


def results(answer: object) -> list[Result]:
    """The results in an answer: one, or many, each perhaps with statistics."""
    if isinstance(answer, Result):
        return [answer]
    if isinstance(answer, tuple):
        assert answer[1] is None
        return [answer[0]]
    assert isinstance(answer, list)
    return [result for one in answer for result in results(one)]


@pytest.mark.parametrize("name", WRITES)
async def test_a_closed_fence_answers_for_the_table(name: str) -> None:
    arguments, writes = WRITES[name]
    table, before = Recorder(), limits.snapshot()["fenced_writes"]
    found = results(await getattr(FencedTable(table, Gate(False)), name)(*arguments))  # type: ignore[arg-type]
    assert table.reached == [] and {result.outcome for result in found} == {Outcome.UNAVAILABLE}
    assert len(found) == writes and "another agent" in found[0].detail and limits.snapshot()["fenced_writes"] == before + writes


@pytest.mark.parametrize("name", WRITES)
async def test_an_open_fence_is_not_there(name: str) -> None:
    arguments, _ = WRITES[name]
    table, before = Recorder(), limits.snapshot()["fenced_writes"]
    assert await getattr(FencedTable(table, Gate(True)), name)(*arguments) == "the table's own answer"  # type: ignore[arg-type]
    assert table.reached == [(name, arguments)] and limits.snapshot()["fenced_writes"] == before
