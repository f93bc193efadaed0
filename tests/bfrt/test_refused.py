"""The tables of refused sources, guarded and wary ports and known addresses over BF Runtime, and the agent's writes to them."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.net import Endpoint
from shunt.tables.entry import MediaRange, Outcome
from shunt.tables.relay_table import RelayTable
from shunt_softswitch.entries import Code
from tests.bfrt.conftest import Served, details
from tests.bfrt.test_relay_table import connected, table  # noqa: F401  (a fixture)

ADDRESS, PORT = Endpoint.of("10.66.6.6", 0), Endpoint.of("10.66.6.6", 9_999)
SIX = Endpoint.of("2001:db8::66", 0)


async def test_sources_are_refused_again_and_heard_again(served: Served, table: RelayTable) -> None:  # noqa: F811
    held = served.dataplane.hearing.refusals.held
    for source in (ADDRESS, PORT, SIX):
        assert (await table.refuse(source, 30_000)).ok
    assert (await table.refuse(ADDRESS, 40_000)).ok, "again: a longer time"
    assert held == {ADDRESS: 40_000, PORT: 30_000, SIX: 30_000}
    assert (await table.hear(PORT)).ok and (await table.hear(PORT)).ok
    assert set(held) == {ADDRESS, SIX}
    assert (await table.hear_all()).ok
    assert held == {}


async def test_a_full_table_says_so(served: Served, table: RelayTable) -> None:  # noqa: F811
    served.dataplane.hearing.refusals.held.update({Endpoint.of("10.0.0.1", port): 1 for port in range(100)})
    assert (await table.refuse(ADDRESS, 30_000)).outcome is Outcome.TABLE_FULL


async def test_without_a_data_plane_nothing_is_refused(unused_tcp_port: int) -> None:
    alone = RelayTable(f"127.0.0.1:{unused_tcp_port}", client_id=1)
    assert (await alone.refuse(ADDRESS, 1)).outcome is (await alone.hear_all()).outcome is Outcome.UNAVAILABLE


def row(served: Served, name: str, source: Endpoint, ttl_ms: int | None = None) -> pb.Entity:
    made = served.service.served.schema.tables[name]
    entity = pb.Entity()
    entity.table_entry.table_id = made.id
    for number, value in ((1, source.addr), (2, source.port.to_bytes(2, "big"))):
        field = entity.table_entry.key.fields.add()
        field.field_id, field.exact.value = number, value
    if ttl_ms is not None:
        data = entity.table_entry.data.fields.add()
        data.field_id, data.stream = 1, ttl_ms.to_bytes(4, "big")
    return entity


@pytest.mark.parametrize(
    ("kind", "ttl_ms", "there", "code"),
    [
        (pb.Update.INSERT, 5, True, Code.EXISTS),
        (pb.Update.MODIFY, 5, False, Code.NOT_FOUND),
        (pb.Update.DELETE, None, False, Code.NOT_FOUND),
        (pb.Update.INSERT, 0, False, Code.INVALID),
        (pb.Update.INSERT, None, False, Code.INVALID),
    ],
)
async def test_what_cannot_be_written_is_refused(served: Served, kind: int, ttl_ms: int | None, there: bool, code: Code) -> None:
    client = await served.raw().connect()
    if there:
        served.dataplane.hearing.refusals.put(ADDRESS, 7)
    before = dict(served.dataplane.hearing.refusals.held)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(pb.Update(type=kind, entity=row(served, "softswitch.refused", ADDRESS, ttl_ms)))
    assert [found for found, _ in details(caught.value)] == [code]
    assert served.dataplane.hearing.refusals.held == before


async def test_rows_that_look_alike_are_written_together_and_fail_one_by_one(served: Served) -> None:
    client = await served.raw().connect()
    sources = [Endpoint.of(f"10.66.6.{n}", 9_000 + n) for n in range(5)]
    inserts = [pb.Update(type=pb.Update.INSERT, entity=row(served, "softswitch.refused", source, 5_000 + n)) for n, source in enumerate(sources)]
    await client.write(inserts[0])  # from here on the layout is known
    served.dataplane.hearing.refusals.put(sources[2], 7)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(*inserts[1:])
    assert [code for code, _ in details(caught.value)] == [0, Code.EXISTS]
    assert served.dataplane.hearing.refusals.held == {source: 7 if n == 2 else 5_000 + n for n, source in enumerate(sources)}
    deletes = [pb.Update(type=pb.Update.DELETE, entity=row(served, "softswitch.refused", source)) for source in sources]
    await client.write(deletes[4])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(*deletes)
    assert [code for code, _ in details(caught.value)] == [0, 0, 0, 0, Code.NOT_FOUND]
    assert served.dataplane.hearing.refusals.held == {}
    too_wide = row(served, "softswitch.refused", sources[0], 5)
    too_wide.table_entry.key.fields[1].exact.value = b"\0\1\2"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(inserts[1], pb.Update(type=pb.Update.INSERT, entity=too_wide))
    assert [code for code, _ in details(caught.value)] == [0, Code.INVALID]
    assert served.dataplane.hearing.refusals.held == {sources[1]: 5_001}


async def test_sources_are_read_one_by_one_and_all(served: Served) -> None:
    client = await served.raw().connect()
    for source in (ADDRESS, PORT, SIX):
        served.dataplane.hearing.refusals.put(source, 1_234)
    one = (await client.read(row(served, "softswitch.refused6", SIX))).entities
    assert [entity.table_entry.data.fields[0].stream for entity in one] == [(1_234).to_bytes(4, "big")]
    everything = pb.Entity()
    everything.table_entry.table_id = served.service.served.schema.tables["softswitch.refused"].id
    found = (await client.read(everything)).entities
    assert {tuple(field.exact.value for field in entity.table_entry.key.fields) for entity in found} == {
        (ADDRESS.addr, b"\0\0"), (PORT.addr, PORT.port.to_bytes(2, "big")),
    }  # fmt: skip
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.read(row(served, "softswitch.refused", Endpoint.of("10.0.0.1", 1)))
    assert [code for code, _ in details(caught.value)] == [Code.NOT_FOUND]


async def test_a_batch_that_fails_is_taken_back(served: Served) -> None:
    client = await served.raw().connect()
    served.dataplane.hearing.refusals.put(PORT, 7)
    good = pb.Update(type=pb.Update.INSERT, entity=row(served, "softswitch.refused", ADDRESS, 5))
    longer = pb.Update(type=pb.Update.MODIFY, entity=row(served, "softswitch.refused", PORT, 5_000))
    bad = pb.Update(type=pb.Update.MODIFY, entity=row(served, "softswitch.refused6", SIX, 5))
    with pytest.raises(grpc.aio.AioRpcError):
        await client.write(good, longer, bad, atomicity=pb.WriteRequest.ROLLBACK_ON_ERROR)
    assert served.dataplane.hearing.refusals.held == {PORT: 7}


GUARDED, GUARDED6 = Endpoint.of("10.91.1.1", 30_004), Endpoint.of("2001:db8::1", 30_006)


async def test_ports_are_guarded_and_heard_again(served: Served, table: RelayTable) -> None:  # noqa: F811
    guards = served.dataplane.hearing.guards
    parties = (Endpoint.of("10.1.1.1", 0).addr, Endpoint.of("10.1.1.2", 0).addr)
    assert (await table.guard({GUARDED: parties, GUARDED6: ()}, 120_000)).ok
    assert guards.held == {GUARDED: 120_000, GUARDED6: 120_000}
    assert guards.heard(GUARDED) == list(parties) and guards.heard(GUARDED6) == []
    assert (await table.guard({GUARDED: parties[:1]}, 60_000)).ok
    assert guards.heard(GUARDED) == list(parties[:1]) and guards.held[GUARDED] == 60_000
    gone = dict.fromkeys((GUARDED, GUARDED6))
    assert (await table.guard(gone, 0)).ok and (await table.guard(gone, 0)).ok
    assert guards.held == {}


async def test_others_have_their_turn_while_many_guards_are_put_together(served: Served, table: RelayTable, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Sixty rows at once, as 300 calls a second make them, would hold up a command by a third of a millisecond."""
    turns, before = 0, []

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    write = table.client.write

    async def written(updates: list[bytes], *, timeout: float) -> object:
        before.append((turns, len(updates)))
        return await write(updates, timeout=timeout)

    monkeypatch.setattr(table.client, "write", written)
    ports = {Endpoint(GUARDED.addr, 30_000 + 2 * n): () for n in range(60)}
    task = asyncio.create_task(others())
    assert (await table.guard(ports, 1_000)).ok
    task.cancel()
    ((taken, rows),) = before
    assert rows == 60 and taken >= 5, "all in one write, and not all at once"
    assert served.dataplane.hearing.guards.held == dict.fromkeys(ports, 1_000)


async def test_a_guard_of_an_odd_port_is_refused(served: Served, table: RelayTable) -> None:  # noqa: F811
    assert (await table.guard({Endpoint.of("10.91.1.1", 30_005): ()}, 1_000)).outcome is Outcome.REJECTED
    assert served.dataplane.hearing.guards.held == {}


async def test_a_guard_is_read_with_those_it_hears(served: Served) -> None:
    client = await served.raw().connect()
    party = Endpoint.of("10.1.1.1", 0).addr
    served.dataplane.hearing.guards.put(GUARDED, 1_234, [party])
    (found,) = (await client.read(row(served, "softswitch.guarded", GUARDED))).entities
    assert {field.field_id: field.stream for field in found.table_entry.data.fields} == {1: (1_234).to_bytes(4, "big"), 2: party, 3: bytes(4), 4: bytes(4), 5: bytes(4)}


async def test_a_guard_comes_back_whole_when_a_batch_is_taken_back(served: Served) -> None:
    client = await served.raw().connect()
    party = Endpoint.of("10.1.1.1", 0).addr
    served.dataplane.hearing.guards.put(GUARDED, 7, [party])
    gone = pb.Update(type=pb.Update.DELETE, entity=row(served, "softswitch.guarded", GUARDED))
    bad = pb.Update(type=pb.Update.MODIFY, entity=row(served, "softswitch.refused6", SIX, 5))
    with pytest.raises(grpc.aio.AioRpcError):
        await client.write(gone, bad, atomicity=pb.WriteRequest.ROLLBACK_ON_ERROR)
    assert served.dataplane.hearing.guards.held == {GUARDED: 7} and served.dataplane.hearing.guards.heard(GUARDED) == [party]


async def test_relay_addresses_are_wary_and_parties_known(served: Served, table: RelayTable) -> None:  # noqa: F811
    hearing = served.dataplane.hearing
    four, six = Endpoint(GUARDED.addr, 0), Endpoint(GUARDED6.addr, 0)
    ranges = [MediaRange(four.addr, 30_000, 30_999), MediaRange(six.addr, 40_000, 49_999), MediaRange(four.addr, 35_000, 35_999)]
    assert (await table.be_wary(ranges, 60_000)).ok
    assert hearing.wary.held == {four: 60_000, six: 60_000}
    assert hearing.wary.ranges(four) == [(30_000, 30_999), (35_000, 35_999)] and hearing.wary.ranges(six) == [(40_000, 49_999)]
    assert (await table.know([ADDRESS.addr, SIX.addr], 70_000)).ok and (await table.know([SIX.addr], 80_000)).ok
    assert hearing.known.held == {ADDRESS: 70_000, SIX: 80_000}


async def test_of_too_many_ranges_the_last_are_left_out_and_that_is_said(served: Served, table: RelayTable) -> None:  # noqa: F811
    told = await table.be_wary([MediaRange(GUARDED.addr, first, first + 9) for first in range(30_000, 30_050, 10)], 60_000)
    assert told.outcome is Outcome.REJECTED and "more than 4 port ranges at 10.91.1.1" in told.detail
    assert served.dataplane.hearing.wary.ranges(Endpoint(GUARDED.addr, 0)) == [(first, first + 9) for first in range(30_000, 30_040, 10)]


async def test_a_wary_address_is_read_with_its_ranges_and_takes_no_wrong_one(served: Served) -> None:
    client = await served.raw().connect()
    served.dataplane.hearing.wary.put(Endpoint(GUARDED.addr, 0), 1_234, [(30_000, 30_999)])
    entity = row(served, "softswitch.wary", Endpoint(GUARDED.addr, 0))
    del entity.table_entry.key.fields[1]
    (found,) = (await client.read(entity)).entities
    span = (30_000 << 16 | 30_999).to_bytes(4, "big")
    assert [field.exact.value for field in found.table_entry.key.fields] == [GUARDED.addr]
    assert {field.field_id: field.stream for field in found.table_entry.data.fields} == {1: (1_234).to_bytes(4, "big"), 2: span, 3: bytes(4), 4: bytes(4), 5: bytes(4)}
    for number, value in ((1, (5).to_bytes(4, "big")), (2, (30_999 << 16 | 30_000).to_bytes(4, "big"))):
        data = entity.table_entry.data.fields.add()
        data.field_id, data.stream = number, value
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(pb.Update(type=pb.Update.MODIFY, entity=entity))
    assert [code for code, _ in details(caught.value)] == [Code.INVALID]
    assert served.dataplane.hearing.wary.ranges(Endpoint(GUARDED.addr, 0)) == [(30_000, 30_999)]


async def test_guards_go_with_the_client_that_is_bound(served: Served) -> None:
    guards, clients = served.dataplane.hearing.guards, served.service._clients
    owner, other = await served.raw().connect(), served.raw()
    await other.subscribe()
    guards.put(GUARDED, 120_000, [])
    wary, known = served.dataplane.hearing.wary, served.dataplane.hearing.known
    wary.put(Endpoint(GUARDED.addr, 0), 120_000, [(30_000, 30_999)])
    known.put(ADDRESS, 120_000)
    other.stream.cancel()
    async with asyncio.timeout(5):
        while other.client_id in clients:
            await asyncio.sleep(0.01)
    assert guards.held == {GUARDED: 120_000}
    owner.stream.cancel()
    async with asyncio.timeout(5):
        while owner.client_id in clients:
            await asyncio.sleep(0.01)
    assert guards.held == wary.held == {} and known.held == {ADDRESS: 120_000}
