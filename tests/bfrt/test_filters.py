"""The tables of blocked sources, filtered and greylisted ports and allowed addresses over BF Runtime."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from shunt.net import Endpoint
from tests.bfrt.conftest import Served
from tests.bfrt.messages import details
from tests.bfrt.switch_lab import until
from tests.softswitch import names
from tests.softswitch.client import EXISTS, INVALID, NO_SPACE, NOT_FOUND, Refused
from tests.softswitch.plane import Filter
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.bfrt.schema import Table

ADDRESS, PORT = Endpoint.of("10.66.6.6", 0), Endpoint.of("10.66.6.6", 9_999)
SIX = Endpoint.of("2001:db8::66", 0)
SLACK = 90_000  # milliseconds that may pass between a write and the look at it


def holds(found: Filter, wanted: dict[Endpoint, int]) -> None:
    """A table has these rows and no others, each for about so many milliseconds more."""
    left = {end: found.remaining(end) for end in found.ends()}
    assert left.keys() == wanted.keys()
    assert all(milliseconds is not None and wanted[end] - SLACK < milliseconds <= wanted[end] for end, milliseconds in left.items()), left


async def test_a_full_table_says_so(served: Served) -> None:
    size = served_table(served, names.BLOCKLIST).size
    many = (Endpoint.of("10.0.0.1", 0)._replace(port=1 + number % 60_000, addr=(0x0A000000 + number // 60_000).to_bytes(4, "big")) for number in range(2 * size))
    errors = served.plane.session.write(pb.Update(type=pb.Update.INSERT, entity=row(served, names.BLOCKLIST, source, 600_000)) for source in many)
    assert {error.code for error in errors if error is not None} == {NO_SPACE} and len([error for error in errors if error is None]) >= size


def served_table(served: Served, name: str, six: bool = False) -> Table:
    """The table of this name, or the IPv6 one beside it."""
    return served.plane.session.schema.tables[name + ("6" if six else "")]


def row(served: Served, name: str, source: Endpoint, ttl_ms: int | None = None) -> pb.Entity:
    made = served_table(served, name, source.version == 6)
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
        (pb.Update.INSERT, 500_000, True, EXISTS),
        (pb.Update.MODIFY, 500_000, False, NOT_FOUND),
        (pb.Update.DELETE, None, False, NOT_FOUND),
        (pb.Update.INSERT, 0, False, INVALID),
        (pb.Update.INSERT, None, False, INVALID),
    ],
)
async def test_what_cannot_be_written_is_refused(served: Served, kind: int, ttl_ms: int | None, there: bool, code: int) -> None:
    client = await served.raw().connect()
    if there:
        assert served.plane.blocklist.put(ADDRESS, 900_000)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(pb.Update(type=kind, entity=row(served, names.BLOCKLIST, ADDRESS, ttl_ms)))
    assert [found for found, _ in details(caught.value)] == [code]
    holds(served.plane.blocklist, {ADDRESS: 900_000} if there else {})


async def test_rows_that_look_alike_are_written_together_and_fail_one_by_one(served: Served) -> None:
    client = await served.raw().connect()
    sources = [Endpoint.of(f"10.66.6.{n}", 9_000 + n) for n in range(5)]
    inserts = [pb.Update(type=pb.Update.INSERT, entity=row(served, names.BLOCKLIST, source, 500_000 + n)) for n, source in enumerate(sources)]
    await client.write(inserts[0])  # from here on the layout is known
    assert served.plane.blocklist.put(sources[2], 900_000)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(*inserts[1:])
    assert [code for code, _ in details(caught.value)] == [0, EXISTS]
    holds(served.plane.blocklist, {source: 900_000 if n == 2 else 500_000 + n for n, source in enumerate(sources)})
    deletes = [pb.Update(type=pb.Update.DELETE, entity=row(served, names.BLOCKLIST, source)) for source in sources]
    await client.write(deletes[4])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(*deletes)
    assert [code for code, _ in details(caught.value)] == [0, 0, 0, 0, NOT_FOUND]
    holds(served.plane.blocklist, {})
    too_wide = row(served, names.BLOCKLIST, sources[0], 500_000)
    too_wide.table_entry.key.fields[1].exact.value = b"\0\1\2"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(inserts[1], pb.Update(type=pb.Update.INSERT, entity=too_wide))
    assert [code for code, _ in details(caught.value)] == [0, INVALID]
    holds(served.plane.blocklist, {sources[1]: 500_001})


async def test_sources_are_read_one_by_one_and_all(served: Served) -> None:
    client = await served.raw().connect()
    for source in (ADDRESS, PORT, SIX):
        assert served.plane.blocklist.put(source, 234_000)
    one = (await client.read(row(served, names.BLOCKLIST, SIX))).entities
    (left,) = (int.from_bytes(entity.table_entry.data.fields[0].stream, "big") for entity in one)
    assert 234_000 - SLACK < left <= 234_000
    everything = pb.Entity()
    everything.table_entry.table_id = served_table(served, names.BLOCKLIST).id
    found = (await client.read(everything)).entities
    assert {tuple(field.exact.value for field in entity.table_entry.key.fields) for entity in found} == {
        (ADDRESS.addr, b"\0\0"), (PORT.addr, PORT.port.to_bytes(2, "big")),
    }  # fmt: skip
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.read(row(served, names.BLOCKLIST, Endpoint.of("10.0.0.1", 1)))
    assert [code for code, _ in details(caught.value)] == [NOT_FOUND]


async def test_a_batch_that_fails_is_taken_back(served: Served) -> None:
    client = await served.raw().connect()
    assert served.plane.blocklist.put(PORT, 500_000)
    good = pb.Update(type=pb.Update.INSERT, entity=row(served, names.BLOCKLIST, ADDRESS, 500_000))
    longer = pb.Update(type=pb.Update.MODIFY, entity=row(served, names.BLOCKLIST, PORT, 900_000))
    bad = pb.Update(type=pb.Update.MODIFY, entity=row(served, names.BLOCKLIST, SIX, 500_000))
    with pytest.raises(grpc.aio.AioRpcError):
        await client.write(good, longer, bad, atomicity=pb.WriteRequest.ROLLBACK_ON_ERROR)
    holds(served.plane.blocklist, {PORT: 500_000})


GUARDED, GUARDED6 = Endpoint.of("10.91.1.1", 30_004), Endpoint.of("2001:db8::1", 30_006)


async def test_a_source_filter_of_an_odd_port_is_refused(served: Served) -> None:
    with pytest.raises(Refused) as caught:
        served.plane.source_filter.put(Endpoint.of("10.91.1.1", 30_005), 1_000)
    assert caught.value.code == INVALID
    assert served.plane.source_filter.ends() == []


async def test_a_guard_is_read_with_those_it_hears(served: Served) -> None:
    client = await served.raw().connect()
    party = Endpoint.of("10.1.1.1", 0).addr
    assert served.plane.source_filter.put(GUARDED, 234_000, [party])
    (found,) = (await client.read(row(served, names.SOURCE_FILTER, GUARDED))).entities
    data = {field.field_id: field.stream for field in found.table_entry.data.fields}
    assert 234_000 - SLACK < int.from_bytes(data.pop(1), "big") <= 234_000 and data == {2: party, 3: bytes(4), 4: bytes(4), 5: bytes(4)}


async def test_a_guard_comes_back_whole_when_a_batch_is_taken_back(served: Served) -> None:
    client = await served.raw().connect()
    party = Endpoint.of("10.1.1.1", 0).addr
    assert served.plane.source_filter.put(GUARDED, 500_000, [party])
    gone = pb.Update(type=pb.Update.DELETE, entity=row(served, names.SOURCE_FILTER, GUARDED))
    bad = pb.Update(type=pb.Update.MODIFY, entity=row(served, names.BLOCKLIST, SIX, 500_000))
    with pytest.raises(grpc.aio.AioRpcError):
        await client.write(gone, bad, atomicity=pb.WriteRequest.ROLLBACK_ON_ERROR)
    holds(served.plane.source_filter, {GUARDED: 500_000})
    assert served.plane.source_filter.admitted(GUARDED) == [party]


async def test_a_wary_address_is_read_with_its_ranges_and_takes_no_wrong_one(served: Served) -> None:
    client = await served.raw().connect()
    assert served.plane.greylist.put(Endpoint(GUARDED.addr, 0), 234_000, [(30_000, 30_999)])
    entity = row(served, names.GREYLIST, Endpoint(GUARDED.addr, 0))
    del entity.table_entry.key.fields[1]
    (found,) = (await client.read(entity)).entities
    span = (30_000 << 16 | 30_999).to_bytes(4, "big")
    assert [field.exact.value for field in found.table_entry.key.fields] == [GUARDED.addr]
    held = {field.field_id: field.stream for field in found.table_entry.data.fields}
    assert 234_000 - SLACK < int.from_bytes(held.pop(1), "big") <= 234_000 and held == {2: span, 3: bytes(4), 4: bytes(4), 5: bytes(4)}
    for number, value in ((1, (500_000).to_bytes(4, "big")), (2, (30_999 << 16 | 30_000).to_bytes(4, "big"))):
        data = entity.table_entry.data.fields.add()
        data.field_id, data.stream = number, value
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(pb.Update(type=pb.Update.MODIFY, entity=entity))
    assert [code for code, _ in details(caught.value)] == [INVALID]
    assert served.plane.greylist.ranges(Endpoint(GUARDED.addr, 0)) == [(30_000, 30_999)]


async def test_guards_go_with_the_client_that_is_bound(served: Served) -> None:
    """Ports are open again when nobody is there to open them; who is allowed stays, for that lets more in and not less."""
    plane = served.plane
    owner, other = await served.raw().connect(), served.raw()
    await other.subscribe()
    assert plane.source_filter.put(GUARDED, 500_000) and plane.greylist.put(Endpoint(GUARDED.addr, 0), 500_000, [(30_000, 30_999)]) and plane.allowlist.put(ADDRESS, 500_000)
    other.stream.cancel()
    async with asyncio.timeout(60):
        while True:  # its id is free again when it is forgotten
            try:
                await other.subscribe()
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.01)
    holds(plane.source_filter, {GUARDED: 500_000})
    owner.stream.cancel()
    await until(lambda: not plane.source_filter.ends() and not plane.greylist.ends())
    holds(plane.allowlist, {ADDRESS: 500_000})
