"""Entries that share one relay port, as behind a proxy or in a flood of sources, cost little more than others to insert and read.

To clear and to adopt them costs more often: others are in an array that is mapped into memory, where that takes a tenth of a microsecond an
entry; these are in a hash map of the kernel, which takes about one. The bounds are there against a cost that grows with their number. That of
adoption is by what inserting the same entries takes: to adopt others takes so little beside a start that it cannot be told from it.

What is compared is the CPU time that the daemon itself takes, the least of several runs: what a busy machine takes from it does not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.bfrt.bulk import Bulk, Flow, cpu_clock, one_port, spread
from tests.softswitch.client import Session
from tests.softswitch.process import Softswitch

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root to load the softswitch's programs")]

COUNT, RUNS = 30_000, 5
MOST = {"insert": 3.0, "read": 3.0, "clear": 12.0}  # times as much as others
ADOPTION = 3.0  # times as much as inserting


@pytest.fixture(scope="module")
def softswitch() -> Iterator[Softswitch]:
    with Softswitch(capacity=2 * COUNT) as made:
        yield made


@contextmanager
def measured(softswitch: Softswitch, seconds: list[float]) -> Iterator[None]:
    """Add the CPU time that the process takes meanwhile."""
    began = time.clock_gettime(cpu_clock(softswitch.pid))
    yield
    seconds.append(time.clock_gettime(cpu_clock(softswitch.pid)) - began)


def least(softswitch: Softswitch, flows: list[Flow]) -> dict[str, float]:
    """The least CPU seconds of each operation on these entries."""
    insert: list[float] = []
    read: list[float] = []
    clear: list[float] = []
    with Session(softswitch.target) as session:
        bulk = Bulk(session)
        requests = bulk.inserts(flows), bulk.reading(), bulk.clearing()
        for _ in range(RUNS):
            with measured(softswitch, insert):
                bulk.write(requests[0])
            with measured(softswitch, read):
                responses = bulk.read(requests[1])
            assert bulk.keys(responses) == set(flows)
            with measured(softswitch, clear):
                bulk.write(requests[2])
    return {"insert": min(insert), "read": min(read), "clear": min(clear)}


def start_seconds(softswitch: Softswitch) -> float:
    """The least CPU time of a start on what is pinned."""
    found = []
    for _ in range(RUNS):
        softswitch.restart()
        found.append(time.clock_gettime(cpu_clock(softswitch.pid)))
    return min(found)


def compare(cost: Callable[[list[Flow]], dict[str, float]]) -> None:
    others, shared = cost(spread(COUNT)), cost(one_port(COUNT))
    ratios = {name: shared[name] / others[name] for name in others}
    print({name: f"{1e6 * others[name] / COUNT:.2f} µs, one port {1e6 * shared[name] / COUNT:.2f} µs, {ratio:.1f} times" for name, ratio in ratios.items()})
    assert all(ratio <= MOST[name] for name, ratio in ratios.items()), ratios


def test_insert_read_and_clear(softswitch: Softswitch) -> None:
    compare(lambda flows: least(softswitch, flows))


def test_adoption(softswitch: Softswitch) -> None:
    """What a restart takes longer than one without entries, beside what inserting them takes."""
    empty = start_seconds(softswitch)
    flows, insert = one_port(COUNT), []
    with Session(softswitch.target) as session:
        for _ in range(RUNS):
            with measured(softswitch, insert):
                Bulk(session).write(Bulk(session).inserts(flows))
            Bulk(session).write(Bulk(session).clearing())
        Bulk(session).write(Bulk(session).inserts(flows))
    adopted = start_seconds(softswitch) - empty
    with Session(softswitch.target) as session:
        bulk = Bulk(session)
        assert bulk.keys(bulk.read(bulk.reading())) == set(flows)
        bulk.write(bulk.clearing())
    print(f"adopted {1e6 * adopted / COUNT:.2f} µs, inserted {1e6 * min(insert) / COUNT:.2f} µs an entry")
    assert adopted <= ADOPTION * min(insert), (adopted, insert)
