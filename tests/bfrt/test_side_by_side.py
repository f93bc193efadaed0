"""Clients side by side: whatever one asks for, another's single read or write waits no longer than BOUND_MS.

A fault of the daemon shows each time that the long operation is done, a machine that is busy with other things only now and then. So each
operation is done several times, and the best counts (see probe.py for what is measured). `make bench-bfrt` has the real figures.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator

import grpc
import pytest

from shunt.net import Endpoint, FiveTuple
from tests.bfrt.bulk import Bulk, one_port, spread
from tests.bfrt.probe import probing
from tests.bfrt.traffic import INTERFACE, namespace
from tests.softswitch.client import MODIFY, Session
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.softswitch.replication import Action, Replication, Rewrite, StreamKey
from tests.tools.bfrt._pb import bfruntime_pb2 as pb

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

BOUND_MS = 20.0
TIMES = 5
COUNT = 200_000
FLOWS, SHARED, APART = spread(COUNT), one_port(100_000), spread(20_000)
PEOPLE = 50


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    with namespace() as name:
        yield name


@pytest.fixture(scope="module")
def softswitch(home: str) -> Iterator[Softswitch]:
    with Softswitch([INTERFACE], namespace=home, capacity=COUNT + 1_000, conference_copies=2 * PEOPLE * PEOPLE) as made:
        yield made


@pytest.fixture
def session(softswitch: Softswitch) -> Iterator[Session]:
    with Session(softswitch.target) as made:
        made.reset_all()
        yield made
        made.reset_all()


def assert_nobody_waits(softswitch: Softswitch, operation: Callable[[], object], before: Callable[[], object] = lambda: None) -> None:
    """`operation` holds up no other client; `before` makes it possible again."""
    longest = []
    with probing(softswitch) as probe:
        probe.ask()
        time.sleep(0.5)
        _, alone = probe.ask()  # what this machine's other work costs a single read or write
        for _ in range(TIMES):
            before()
            probe.ask()
            operation()
            calls, worst = probe.ask()
            longest.append(worst if calls else float("inf"))
            if worst <= BOUND_MS + 3 * alone:
                break
    print(f"ms: {', '.join(f'{one:.1f}' for one in longest)}; alone {alone:.1f}")
    assert min(longest) <= BOUND_MS + 3 * alone, f"the longest waits, in ms: {longest}, and {alone} alone"


@pytest.mark.parametrize("flows", [FLOWS, SHARED], ids=["spread", "one port"])
def test_inserts(softswitch: Softswitch, session: Session, flows: list) -> None:
    bulk = Bulk(session)
    request = bulk.inserts(flows)
    assert_nobody_waits(softswitch, lambda: bulk.write(request), lambda: bulk.write(bulk.clearing()))


def test_inserts_whose_packets_go_to_as_many_addresses(softswitch: Softswitch, session: Session) -> None:
    """For each the kernel is asked for its route and neighbour."""
    bulk = Bulk(session)
    request = bulk.inserts_apart(APART)
    assert_nobody_waits(softswitch, lambda: bulk.write(request), lambda: bulk.write(bulk.clearing()))


def test_a_batch_that_fails(softswitch: Softswitch, session: Session) -> None:
    """All of it: errors one by one, and in ranges."""
    bulk = Bulk(session)
    bulk.write(bulk.inserts(FLOWS))
    requests = bulk.inserts(FLOWS), bulk.inserts(FLOWS[:60_000])

    def fail() -> None:
        for request in requests:
            with pytest.raises(grpc.RpcError):
                bulk.write(request)

    assert_nobody_waits(softswitch, fail)


def test_a_batch_that_is_rolled_back(softswitch: Softswitch, session: Session) -> None:
    """A clear and many inserts, and in the end a failure."""
    bulk = Bulk(session)
    bulk.write(bulk.inserts(FLOWS[:100_000]))
    request = bulk.clearing() + pb.WriteRequest(atomicity=pb.WriteRequest.ROLLBACK_ON_ERROR).SerializeToString()
    request += bulk.inserts(FLOWS[50_000:150_000]) + bulk.inserts(FLOWS[50_000:50_001])

    def fail() -> None:
        with pytest.raises(grpc.RpcError):
            bulk.write(request)

    assert_nobody_waits(softswitch, fail)
    assert len(bulk.keys(bulk.read(bulk.reading())) & set(FLOWS)) == 100_000


@pytest.mark.parametrize("flows", [FLOWS, SHARED], ids=["spread", "one port"])
def test_reads(softswitch: Softswitch, session: Session, flows: list) -> None:
    """Of a whole table, and of all its entries by their keys."""
    bulk = Bulk(session)
    bulk.write(bulk.inserts(flows))
    by_key = bulk.reads(flows)
    assert_nobody_waits(softswitch, lambda: bulk.read(bulk.reading()))
    assert_nobody_waits(softswitch, lambda: bulk.read(by_key))


@pytest.mark.parametrize("flows", [FLOWS, SHARED], ids=["spread", "one port"])
def test_clears(softswitch: Softswitch, session: Session, flows: list) -> None:
    bulk = Bulk(session)
    request = bulk.inserts(flows)

    def filled() -> None:
        bulk.write(bulk.clearing())
        bulk.write(request)

    assert_nobody_waits(softswitch, lambda: bulk.write(bulk.clearing()), filled)


def test_a_reset_of_all_tables(softswitch: Softswitch, session: Session) -> None:
    bulk = Bulk(session)
    request = bulk.inserts(FLOWS)
    assert_nobody_waits(softswitch, session.reset_all, lambda: bulk.write(request))


@pytest.mark.parametrize("flows", [FLOWS, SHARED], ids=["spread", "one port"])
def test_entries_that_become_idle(softswitch: Softswitch, session: Session, flows: list) -> None:
    """All of them, which are reported, and looked at from then on for whether they are in use again."""
    bulk = Bulk(session)
    bulk.write(bulk.inserts(flows, ttl=100))
    update = pb.Update(type=MODIFY)
    attribute = update.entity.table_attribute
    attribute.table_id = session.table("relay").id
    idle = attribute.idle_table
    idle.enable, idle.idle_table_mode, idle.ttl_query_interval, idle.max_ttl = True, idle.IDLE_TABLE_NOTIFY_MODE, 100, 0xFFFFFFFF
    assert session.write([update]) == [None]
    reported: set[bytes] = set()

    def some() -> None:
        end = time.monotonic() + 1.0
        while time.monotonic() < end or len(reported) < 4_000:
            reported.add(session.notices.idle.get(timeout=30).SerializeToString())

    assert_nobody_waits(softswitch, some)
    while len(reported) < len(flows):
        reported.add(session.notices.idle.get(timeout=30).SerializeToString())
    assert_nobody_waits(softswitch, lambda: time.sleep(1.0))


def test_a_route_that_changes(softswitch: Softswitch, session: Session, home: str) -> None:
    """All entries follow it."""
    bulk = Bulk(session)
    bulk.write(bulk.inserts(FLOWS[:100_000]))
    with Plane(softswitch.target, bind=False) as plane:
        (saddr, daddr, sport, dport) = FLOWS[0]
        key = FiveTuple(Endpoint(saddr, int.from_bytes(sport, "big")), Endpoint(daddr, int.from_bytes(dport, "big")))
        there = [True]

        def change() -> None:
            there[0] = not there[0]
            subprocess.run(["ip", "-n", home, "route", "replace", *(["default", "via", "10.91.1.2"] if there[0] else ["blackhole", "default"])], check=True)
            wanted = "redirect" if there[0] else "pass"
            end = time.monotonic() + 60
            while plane.trace(key)["verdict"] != wanted:
                assert time.monotonic() < end
                time.sleep(0.05)

        try:
            assert_nobody_waits(softswitch, lambda: (change(), change()))
        finally:
            if not there[0]:
                change()


def join(table: Replication, person: int) -> None:
    """A participant joins a conference of all before it: everybody sends to everybody else."""

    def towards(receiver: int) -> Rewrite:
        return Rewrite(Endpoint.of("10.91.1.1", 30_000 + 2 * receiver), Endpoint.of("10.91.1.2", 20_000 + 2 * receiver))

    table.insert_node(person, person, [0])
    for other in range(person):
        for sender, receiver in ((person, other), (other, person)):
            table.insert_copy(sender + 1, receiver, towards(receiver))
    table.modify_tree(1, [(one, None) for one in range(person + 1)])
    flow = FiveTuple(Endpoint.of("10.91.1.2", 20_000 + 2 * person), Endpoint.of("10.91.1.1", 30_000 + 2 * person))
    table.insert_stream(StreamKey(flow, person + 1), Action(1, 0, person, 0, person + 1))


@pytest.mark.parametrize("batched", [False, True], ids=["one by one", "in batches"])
def test_joins_of_a_conference(softswitch: Softswitch, session: Session, batched: bool) -> None:
    """Fifty participants; one update a request, or all of a participant's in one."""
    table = Replication(session)

    def all_join() -> None:
        table.insert_tree(1, [])
        for person in range(PEOPLE):
            if batched:
                with session.batching():
                    join(table, person)
            else:
                join(table, person)

    assert_nobody_waits(softswitch, all_join, session.reset_all)
    assert len(table.copies()) == PEOPLE * (PEOPLE - 1)
