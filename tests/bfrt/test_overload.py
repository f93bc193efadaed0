"""The relay table against a data plane that is slow, hangs, or carries writes out late: no write waits for a read, nothing waits for ever."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunt.bfrt import client as bfrt_client
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.net import Endpoint, FiveTuple
from shunt.tables import doubt, relay_table
from shunt.tables.entry import Outcome, RelayEntry, Result
from shunt.tables.operation import Haste, Job, Lanes, Operation
from tests.bfrt.conftest import Served
from tests.bfrt.forwarder import Forwarder, pass_back
from tests.bfrt.test_relay_table import COUNTED, busy, connected, entry, lasting, until

T = TypeVar("T")
NEVER = 3600.0
EVER = 30.0  # seconds; all that is waited for here is over in some


class Sluggish(Forwarder):
    """A target that takes its time; the functions say how many seconds each call waits.

    Writes wait before they are carried out, and are carried out even when their client has given them up:
    servers do that. Reads wait before they look (delay_read), and their answers until `answering` is set.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.delay_write: Callable[[], float] = lambda: 0.0
        self.delay_read: Callable[[], float] = lambda: 0.0
        self.answering = asyncio.Event()
        self.answering.set()
        self.left: set[asyncio.Task[bytes]] = set()

    async def write(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        async def in_time(delay: float) -> bytes:
            await asyncio.sleep(delay)
            return await self.onward("Write", data, context)

        task = asyncio.create_task(in_time(self.delay_write()))
        self.left.add(task)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(task)
        except grpc.aio.AioRpcError as error:
            await pass_back(context, error)
            raise

    async def read(self, data: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        await asyncio.sleep(self.delay_read())
        answers = [response async for response in super().read(data, context)]
        await self.answering.wait()
        for response in answers:
            yield response


@dataclass
class Rig:
    """A sluggish way to a softswitch. `served` is the softswitch itself, which answers at once."""

    service: Sluggish
    served: Served
    target: str

    @property
    def table(self) -> dict[FiveTuple, RelayEntry]:
        """What is in the relay tables."""
        return self.served.table


@pytest.fixture(scope="module")
def capacity() -> int:
    return 50_000


@pytest.fixture
async def rig(served: Served) -> AsyncIterator[Rig]:
    service = Sluggish(served.target)
    async with service.serve() as target:
        yield Rig(service, served, target)
        for task in service.left:
            task.cancel()
        await asyncio.gather(*service.left, return_exceptions=True)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines of tenths of seconds."""
    monkeypatch.setattr(relay_table, "_URGENT", replace(relay_table._URGENT, timeout=0.2, patience=1.0))
    monkeypatch.setattr(relay_table, "_READ_TIMEOUT", 0.5)
    monkeypatch.setattr(relay_table, "_EXTENSION", 0.2)
    monkeypatch.setattr(doubt, "LOOKS", (0.2, 0.3, 0.3))
    monkeypatch.setattr(bfrt_client, "_HUNG", 60.0)


def many(number: int) -> RelayEntry:
    """One of a great many entries."""
    relay = Endpoint(bytes((10, 92, number >> 8 & 0xFF, number & 0xFF)), 10_000)
    return RelayEntry(FiveTuple(Endpoint.of("11.0.0.1", 4_000 + (number >> 16)), relay), Endpoint(relay.addr, 9_000), Endpoint.of("10.9.9.9", 5_000))


async def timed(work: Awaitable[T]) -> tuple[T, float]:
    started = time.monotonic()
    return await work, time.monotonic() - started


def turns(*delays: float) -> Callable[[], float]:
    """These delays, one call after the other, then none."""
    left = iter(delays)
    return lambda: next(left, 0.0)


async def test_a_read_that_hangs_holds_up_no_write(rig: Rig) -> None:
    async with connected(rig.target) as table:
        await table.insert_many([entry(n) for n in range(10)])
        rig.service.delay_read = lambda: NEVER
        stuck = [asyncio.create_task(work) for work in (table.stats(None), table.entries(), table.stats([entry(1).key]))]
        try:
            await until(lambda: rig.service.reads >= 3)
            assert (await table.insert(entry(11))).outcome is Outcome.INSTALLED
            result, last = await table.delete(entry(1).key)
            assert result.outcome is Outcome.REMOVED and last is None
            assert entry(1).key not in rig.table
            assert not any(task.done() for task in stuck), "the writes waited for the reads"
        finally:
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)


async def test_statistics_that_come_later_than_a_delete_waits_are_in_its_result(rig: Rig) -> None:
    async with connected(rig.target) as table:
        await table.insert(entry(1))
        busy(rig.served, entry(1).key)
        rig.service.answering.clear()
        deletion = asyncio.create_task(table.delete(entry(1).key))
        await until(lambda: not rig.table)
        assert not deletion.done(), "the entry has to be out before the statistics are here"
        rig.service.answering.set()
        result, last = await deletion
        assert result.outcome is Outcome.REMOVED and lasting(last) == COUNTED


async def test_single_writes_go_before_bulk_work(rig: Rig) -> None:
    """While 40,000 entries are written, a call's own entries come and go in the time of some batches."""
    async with connected(rig.served.target) as table:
        bulk = asyncio.create_task(timed(table.insert_many([many(n) for n in range(40_000)])))
        await until(lambda: len(rig.served.plane))
        waits = []
        for number in range(5):
            result, took = await timed(table.insert(entry(number)))
            waits.append(took)
            assert result.ok
            (result, _), took = await timed(table.delete(entry(number).key))
            waits.append(took)
            assert result.ok
        assert not bulk.done(), "the bulk work was over too early to be in the way"
        results, bulk_took = await bulk
        assert all(result.ok for result in results) and len(rig.served.plane) == 40_000
        # Both sides share one thread and a busy machine: what counts is that nothing waits for the bulk work's end.
        assert max(waits) < bulk_took / 2, (waits, bulk_took)


async def test_a_write_that_is_swallowed_holds_up_no_other(rig: Rig, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_table, "_URGENT", replace(relay_table._URGENT, timeout=2.0, patience=10.0))
    async with connected(rig.target) as table:
        rig.service.delay_write = turns(NEVER)
        rig.service.writes = 0
        first = asyncio.create_task(table.insert(entry(1)))
        await until(lambda: rig.service.writes)
        for number in range(2, 6):
            assert (await table.insert(entry(number))).ok
        assert not first.done(), "the others waited until the first was given up"
        result = await first
        assert result.outcome is Outcome.INSTALLED, "it is sent again when its deadline has passed"
        assert set(rig.table) == {entry(n).key for n in range(1, 6)}
        assert table.connected


async def test_nothing_waits_for_ever(rig: Rig, impatient: None) -> None:
    async with connected(rig.target) as table:
        await table.insert(entry(1))
        rig.service.delay_write = rig.service.delay_read = lambda: NEVER
        work = [table.insert(entry(2)), table.place((), [entry(1, dst=Endpoint.of("10.1.1.1", 1))]), table.insert(entry(1))]
        async with asyncio.timeout(EVER):
            first, (changed,), last = await asyncio.gather(*work)
            assert {result.outcome for result in (first, changed, last)} == {Outcome.UNAVAILABLE}
            result, last = await table.delete(entry(1).key)
        assert result.outcome is Outcome.UNAVAILABLE and last is None


async def test_what_queues_behind_a_hanging_data_plane_does_not_wait_for_ever_either(rig: Rig, impatient: None) -> None:
    """More batches than may be under way: the last ones are never sent, and end like the others."""
    async with connected(rig.target, batch_delay=0.0) as table:
        rig.service.delay_write = lambda: NEVER
        tasks = []
        for number in range(30):
            tasks.append(asyncio.create_task(table.insert(entry(number))))
            await asyncio.sleep(0.005)
        async with asyncio.timeout(EVER):
            results = await asyncio.gather(*tasks)
        assert {result.outcome for result in results} == {Outcome.UNAVAILABLE}
        rig.service.delay_write = lambda: 0.0
        await until(lambda: not table._queues.waiting(Haste.URGENT))
        assert not rig.table, "nobody waits for these entries any more"


async def test_an_insert_that_comes_after_the_delete_is_taken_back(rig: Rig, impatient: None) -> None:
    async with connected(rig.target) as table:
        rig.service.delay_write = turns(0.5)  # the first attempt; its repetition is in time
        assert (await table.insert(entry(1))).outcome is Outcome.INSTALLED
        assert (await table.delete(entry(1).key))[0].outcome is Outcome.REMOVED
        await until(lambda: rig.table)  # the first attempt's doing
        await until(lambda: not rig.table)
        assert table.counters.repairs == 1
        await until(lambda: not len(table.doubts))


async def test_a_change_that_comes_after_a_newer_one_is_undone(rig: Rig, impatient: None) -> None:
    old, new = entry(1, dst=Endpoint.of("10.1.1.1", 1)), entry(1, dst=Endpoint.of("10.2.2.2", 2))
    async with connected(rig.target) as table:
        await table.insert(entry(1))
        rig.service.delay_write = turns(0.6)
        assert (await table.place((), [old]))[0].ok
        assert (await table.place((), [new]))[0].ok and rig.table[new.key] == new
        await until(lambda: rig.table[new.key] == old)
        await until(lambda: rig.table[new.key] == new)
        await until(lambda: not len(table.doubts))
        assert rig.table == {new.key: new}


async def test_a_delete_without_an_answer_is_seen_to_in_the_end(rig: Rig, impatient: None) -> None:
    """Its caller is told that there was no answer; the entry must not stay for ever."""
    async with connected(rig.target) as table:
        await table.insert(entry(1))
        rig.service.delay_write = lambda: NEVER
        assert (await table.delete(entry(1).key))[0].outcome is Outcome.UNAVAILABLE
        assert entry(1).key in rig.table
        rig.service.delay_write = lambda: 0.0
        await until(lambda: not rig.table)


async def test_an_entry_that_somebody_has_taken_up_since_is_not_taken_out(rig: Rig, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As reconciling does with an entry whose delete had no answer and that is wanted again."""
    monkeypatch.setattr(doubt, "LOOKS", (2.0, 0.3, 0.3))
    async with connected(rig.target) as table:
        await table.insert(entry(1))
        rig.service.delay_write = lambda: NEVER
        deleting = asyncio.ensure_future(table.delete(entry(1).key))
        await asyncio.sleep(0.05)
        assert not table.claim(entry(1)), "the delete under way may still take it out"
        assert (await deleting)[0].outcome is Outcome.UNAVAILABLE
        await until(lambda: entry(1).key not in table._queues)
        rig.service.delay_write = lambda: 0.0
        assert entry(1).key in table.doubts and table.claim(entry(1))
        await until(lambda: not len(table.doubts))
        assert rig.table == {entry(1).key: entry(1)} and table.counters.repairs == 0


async def test_an_entry_that_was_written_in_doubt_stays(rig: Rig, impatient: None) -> None:
    async with connected(rig.target) as table:
        rig.service.delay_write = turns(NEVER)
        assert (await table.insert(entry(1))).ok
        await until(lambda: not len(table.doubts))
        assert rig.table == {entry(1).key: entry(1)} and table.counters.repairs == 0


async def test_a_data_plane_that_answers_nothing_is_given_up_and_found_again(rig: Rig, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfrt_client, "_HUNG", 0.6)
    async with connected(rig.target) as table:
        ups: list[float] = []
        downs: list[str] = []
        table.on_up = lambda: ups.append(time.monotonic())
        table.on_down = downs.append
        rig.service.delay_write = lambda: NEVER
        assert (await table.insert(entry(1))).outcome is Outcome.UNAVAILABLE
        await until(lambda: downs)
        assert "answered nothing" in downs[0]
        rig.service.delay_write = lambda: 0.0
        await until(lambda: ups and table.connected)
        assert (await table.insert(entry(1))).ok


async def test_the_last_operation_on_a_key_wins_whatever_the_target_does_to_its_calls(rig: Rig) -> None:
    """Calls are answered in any order, after random times."""
    rng = random.Random(1)
    rig.service.delay_write = rig.service.delay_read = lambda: rng.choice((0.0, 0.002, 0.03))
    async with connected(rig.target, batch_delay=0.0) as table:
        last: dict[FiveTuple, RelayEntry | None] = {}
        tasks: list[asyncio.Task[object]] = []
        for number in range(300):
            key = entry(number % 7).key
            if rng.random() < 0.3:
                last[key] = None
                work: Awaitable[object] = table.delete(key) if rng.random() < 0.5 else table.delete_many([key])
            else:
                wanted = last[key] = entry(number % 7, dst=Endpoint.of("10.0.0.1", 1 + number))
                work = rng.choice((table.insert, lambda e: table.place((), [e]), lambda e: table.insert_many([e])))(wanted)
            tasks.append(asyncio.ensure_future(work))  # type: ignore[arg-type]
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice((0.0, 0.001, 0.005)))
        await asyncio.gather(*tasks)
        assert rig.table == {key: wanted for key, wanted in last.items() if wanted is not None}


@given(st.lists(st.tuples(st.sampled_from(("add", "take", "release")), st.sampled_from(Haste), st.integers(0, 3)), max_size=60))
def test_queues_keep_the_order_of_each_key(steps: list[tuple[str, Haste, int]]) -> None:
    """No two operations on one key under way, none overtaken, none lost, urgent ones first."""
    lanes = Lanes()
    order: dict[FiveTuple, list[Operation]] = {}
    under_way: list[Operation] = []
    for step, haste, number in steps:
        key = entry(number).key
        if step == "add":
            operation = Operation(pb.Update.INSERT, key, entry(number))
            order.setdefault(key, []).append(operation)
            lanes.add([operation], haste)
        elif step == "release":
            done, under_way = under_way[: number + 1], under_way[number + 1 :]
            lanes.release(done)
        else:
            taken = lanes.take(number + 1, haste)
            busy = {operation.key for operation in under_way}
            assert len({operation.key for operation in taken}) == len(taken) <= number + 1
            for operation in taken:
                assert operation.key not in busy
                assert order[operation.key].pop(0) is operation
            under_way += taken
        for wanted in order:
            assert (wanted in lanes) == bool(order[wanted] or any(operation.key == wanted for operation in under_way))
    rest = lanes.drain()
    assert len(rest) == sum(map(len, order.values()))
    assert not any(lanes.waiting(haste) for haste in Haste)


@pytest.mark.parametrize("slow", [Haste.PATIENT, Haste.BULK])
async def test_what_something_urgent_waits_for_is_urgent(rig: Rig, slow: Haste) -> None:
    lanes = Lanes()
    job = Job(3)
    first, other, second = (Operation(pb.Update.INSERT, entry(n).key, entry(n), job, place) for place, n in enumerate((1, 2, 1)))
    lanes.add([first, other], slow)
    lanes.add([second], Haste.URGENT)
    assert lanes.take(10, Haste.URGENT) == [first] and (lanes.waiting(Haste.URGENT), lanes.waiting(slow)) == (1, 1)
    assert lanes.take(10, slow) == [other]
    lanes.release([first])
    assert lanes.take(10, Haste.URGENT) == [second]
    for operation in (first, other, second):
        operation.finish(Result(Outcome.INSTALLED))
    await asyncio.wait_for(job.done, 10)
    assert [result.ok for result in job.answers()] == [True] * 3
