"""Entries that share one relay port, as behind a proxy or in a flood of sources: what one costs to insert, read, clear and adopt does not grow with their number.

What is compared is the CPU time that the daemon itself takes, the least of several runs: what a busy machine takes from it does not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.bfrt.bulk import Bulk, Flow, cpu_clock, one_port
from tests.softswitch.client import Session
from tests.softswitch.process import Softswitch

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

COUNT, RUNS = 30_000, 5
FEWER = 10  # times fewer entries, to compare with
MOST = 3.0  # times as much for an entry; caches take their share, and what grows with the number of entries would take ten
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


def test_insert_read_and_clear(softswitch: Softswitch) -> None:
    few, many = (least(softswitch, one_port(count)) for count in (COUNT // FEWER, COUNT))
    ratios = {name: many[name] / (FEWER * few[name]) for name in many}
    print({name: f"{1e6 * many[name] / COUNT:.2f} µs an entry, {ratio:.1f} times as with {COUNT // FEWER} entries" for name, ratio in ratios.items()})
    assert all(ratio <= MOST for ratio in ratios.values()), ratios


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
