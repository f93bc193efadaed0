"""Writes: every answer that P4 Studio's own server gives, per update and per batch."""

from __future__ import annotations

import re

import grpc
import pytest

from shunt.net import Endpoint, FiveTuple
from tests.bfrt.conftest import Raw, Served
from tests.bfrt.messages import MEDIA, RELAY, RELAY6, TABLES, TO, details, entity, insert, key_of, set_key, update
from tests.bfrt.traffic import rtp
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.entry import MediaRange, RelayEntry

INVALID, NOT_FOUND, EXISTS, NO_SPACE, UNSUPPORTED = 3, 5, 6, 8, 12
U = pb.Update
ROLLBACK = pb.WriteRequest.ROLLBACK_ON_ERROR


def five_tuple(number: int) -> FiveTuple:
    fields = dict(key_of(number))
    return FiveTuple(Endpoint(fields[1], int.from_bytes(fields[3], "big")), Endpoint(fields[2], int.from_bytes(fields[4], "big")))


TEN = [rtp(seq=number) for number in range(10)]


def packets(served: Served, key: FiveTuple) -> int:
    """How many packets an entry has counted."""
    return served.plane.stats([key])[key].packets


async def fails(client: Raw, *updates: pb.Update, **fields: object) -> list[tuple[int, int]]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(*updates, **fields)
    assert caught.value.code() == grpc.StatusCode.UNKNOWN and caught.value.details() == "Write Error Status"
    return details(caught.value)


def changed(template: pb.Update, change: object) -> pb.Update:
    out = pb.Update()
    out.CopyFrom(template)
    change(out.entity.table_entry)  # type: ignore[operator]
    return out


async def test_insert_becomes_a_relay_entry(served: Served) -> None:
    client = await served.raw().connect()
    assert not (await client.write(insert(1))).status
    key = five_tuple(1)
    assert served.table == {key: RelayEntry(key, Endpoint(b"\x0a\x5b\x01\x01", 7_000), Endpoint.of("10.9.9.9", 5_000), 30_000)}


@pytest.mark.parametrize("family", [4, 6])
async def test_every_action_maps_to_its_rewrite(served: Served, family: int) -> None:
    client = await served.raw().connect()
    table = RELAY if family == 4 else RELAY6
    addresses = {4: (b"\x01\x02\x03\x04", b"\x05\x06\x07\x08"), 6: (bytes(range(16)), bytes(range(16, 32)))}
    src, dst = (Endpoint(address, port) for address, port in zip(addresses[family], (1111, 2222)))
    cross = 10 - family
    for name, out, dscp in (
        ("relay_to_from" if family == 4 else "relay6_to_from", family, None),
        ("relay_to_from" if family == 4 else "relay6_to_from", family, 46),
        ("relay_to_v6" if family == 4 else "relay6_to_v4", cross, 0),
    ):
        message = pb.Update(type=U.INSERT)
        entry = message.entity.table_entry
        entry.table_id = table.id
        set_key(entry.key, [(1, src.addr), (2, dst.addr), (3, src.port.to_bytes(2, "big")), (4, dst.port.to_bytes(2, "big"))])
        action = table.actions[name]
        entry.data.action_id = action.id
        out_src, out_dst = addresses[out]
        values = {"src_addr": out_src, "dst_addr": out_dst, "src_port": b"\x10\x01", "dst_port": b"\x10\x02", "set_dscp": bytes([dscp is not None]), "dscp": bytes([dscp or 0])}
        for field_name, value in sorted(values.items()):
            entry.data.fields.add(field_id=action.fields[field_name].id, stream=value)
        key = FiveTuple(src, dst)
        await client.write(message)
        assert served.table == {key: RelayEntry(key, Endpoint(out_src, 0x1001), Endpoint(out_dst, 0x1002), 0, dscp)}
        read = (await client.read(pb.Entity(table_entry=pb.TableEntry(table_id=table.id, key=entry.key)))).entities[0].table_entry
        assert read.data.action_id == action.id
        assert {field.field_id: field.stream for field in read.data.fields if field.field_id < 10} == {field.field_id: field.stream for field in entry.data.fields}
        message.type = U.DELETE
        entry.ClearField("data")
        await client.write(message)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("value too short", INVALID),
        ("value too long", INVALID),
        ("port too short", INVALID),
        ("wrong match kind", INVALID),
        ("no match kind", INVALID),
        ("unknown table", NOT_FOUND),
        ("unknown key field", NOT_FOUND),
        ("unknown data field", NOT_FOUND),
        ("unknown action", NOT_FOUND),
        ("default-only action", INVALID),
        ("no action", INVALID),
        ("no data", INVALID),
        ("no key", INVALID),
        ("dscp above its width", INVALID),
        ("set_dscp above its width", INVALID),
        ("a string for bytes", INVALID),
        ("default entry with a key", INVALID),
        ("insert of the default entry", UNSUPPORTED),
        ("counter set to a number", UNSUPPORTED),
        ("unspecified type", INVALID),
        ("unknown type", INVALID),
        ("modify of nothing", NOT_FOUND),
        ("ttl of nothing", NOT_FOUND),
        ("delete of nothing", NOT_FOUND),
        ("modify incremental", UNSUPPORTED),
        ("reset", UNSUPPORTED),
        ("usage", UNSUPPORTED),
        ("nothing", UNSUPPORTED),
        ("empty delete", NOT_FOUND),
        ("read-only table", UNSUPPORTED),
        ("fixed table", UNSUPPORTED),
        ("exists", EXISTS),
    ],
)
async def test_error_codes(served: Served, what: str, expected: int) -> None:
    client = await served.raw().connect()
    await client.write(insert(1))
    long = RELAY.actions["relay_to_from"]

    def with_long(entry: pb.TableEntry, number: int, value: bytes) -> None:
        entry.data.action_id = long.id
        entry.data.ClearField("fields")
        for field in long.fields:
            entry.data.fields.add(field_id=field.id, stream=value if field.id == number else bytes(field.size))

    port = TABLES["$PORT"]
    bad: dict[str, pb.Update] = {
        "value too short": changed(insert(2), lambda e: setattr(e.key.fields[0].exact, "value", b"\x01\x02\x03")),
        "value too long": changed(insert(2), lambda e: setattr(e.key.fields[0].exact, "value", b"\x00\x01\x02\x03\x04")),
        "port too short": changed(insert(2), lambda e: setattr(e.data.fields[2], "stream", b"\x01")),
        "wrong match kind": changed(insert(2), lambda e: setattr(e.key.fields[0].ternary, "value", b"\x01\x02\x03\x04")),
        "no match kind": changed(insert(2), lambda e: e.key.fields[0].ClearField("exact")),
        "unknown table": changed(insert(2), lambda e: setattr(e, "table_id", 4711)),
        "unknown key field": changed(insert(2), lambda e: setattr(e.key.fields[0], "field_id", 9)),
        "unknown data field": changed(insert(2), lambda e: setattr(e.data.fields[1], "field_id", 9)),
        "unknown action": changed(insert(2), lambda e: setattr(e.data, "action_id", 4711)),
        "default-only action": changed(insert(2, action=None), lambda e: setattr(e.data, "action_id", RELAY.actions["NoAction"].id)),
        "no action": insert(2, action=None),
        "no data": insert(2, data=False),
        "no key": insert(None),
        "dscp above its width": changed(insert(2), lambda e: with_long(e, 6, b"\x40")),
        "set_dscp above its width": changed(insert(2), lambda e: with_long(e, 5, b"\x02")),
        "a string for bytes": changed(insert(2), lambda e: setattr(e.data.fields[1], "str_val", "x")),
        "default entry with a key": changed(insert(2), lambda e: setattr(e, "is_default_entry", True)),
        "insert of the default entry": changed(insert(None), lambda e: setattr(e, "is_default_entry", True)),
        "counter set to a number": changed(insert(2), lambda e: e.data.fields.add(field_id=RELAY.data["$COUNTER_SPEC_PKTS"].id, stream=bytes(7) + b"\x01")),
        "unspecified type": update(0, 2),
        "unknown type": update(99, 2),
        "modify of nothing": update(U.MODIFY, 2),
        "ttl of nothing": update(U.MODIFY, 2, action=None),
        "delete of nothing": update(U.DELETE, 2),
        "modify incremental": update(U.MODIFY_INC, 1),
        "reset": update(U.RESET, 1),
        "usage": pb.Update(type=U.INSERT, entity=pb.Entity(table_usage=pb.TableUsage(table_id=RELAY.id))),
        "nothing": pb.Update(type=U.INSERT),
        "empty delete": pb.Update(type=U.DELETE),
        "read-only table": changed(update(U.DELETE, 2), lambda e: setattr(e, "table_id", TABLES["softswitch.quality"].id)),
        "fixed table": pb.Update(
            type=U.INSERT,
            entity=pb.Entity(table_entry=pb.TableEntry(table_id=port.id, key=pb.TableKey(fields=[pb.KeyField(field_id=1, exact=pb.KeyField.Exact(value=bytes(4)))]))),
        ),
        "exists": insert(1),
    }
    # In the middle of a batch whose other updates all take place.
    assert await fails(client, insert(10), bad[what], insert(11)) == [(0, 0), (expected, 0)]
    assert {key.dst.port for key in served.table} == {30_001, 30_010, 30_011}


async def test_what_the_real_server_lets_pass(served: Served) -> None:
    """Absent key fields are zero, and so is absent data."""
    client = await served.raw().connect()
    message = changed(insert(1), lambda e: (e.key.fields.pop(0), e.data.fields.pop(1)))
    assert message.entity.table_entry.data.fields[1].field_id == 2
    await client.write(message)
    (entry,) = served.table.values()
    assert entry.key.dst.addr == bytes(4) and entry.dst.addr == bytes(4)


async def test_modify_keeps_what_it_does_not_name(served: Served) -> None:
    client = await served.raw().connect()
    await client.write(insert(1, ttl=1_000_000))
    key = five_tuple(1)
    served.send(key, *TEN)
    await client.write(update(U.MODIFY, 1, port=6_000, ttl=None))
    assert 500_000 < served.table[key].ttl_ms <= 1_000_000 and served.table[key].dst.port == 6_000
    await client.write(update(U.MODIFY, 1, action=None, ttl=2_000_000))
    assert 1_500_000 < served.table[key].ttl_ms <= 2_000_000 and served.table[key].dst.port == 6_000
    assert packets(served, key) == 10
    await client.write(changed(update(U.MODIFY, 1), lambda e: setattr(e.table_flags, "reset_stats", True)))
    assert packets(served, key) == 0
    served.send(key, *TEN)
    assert packets(served, key) == 10
    await client.write(changed(update(U.MODIFY, 1), lambda e: e.data.fields.add(field_id=RELAY.data["$COUNTER_SPEC_PKTS"].id, stream=bytes(8))))
    assert packets(served, key) == 0


async def test_insert_or_modify_says_what_was_there(served: Served) -> None:
    client = await served.raw().connect()
    response = await client.write(*(update(U.INSERT_OR_MODIFY, n) for n in (1, 2, 1)))
    assert [(status.canonical_code, status.code) for status in response.status] == [(0, EXISTS)]
    response = await client.write(update(U.INSERT_OR_MODIFY, 3), update(U.INSERT_OR_MODIFY, 1, port=9), metadata=(("error_in_resp", "1"),))
    assert [(status.canonical_code, status.code) for status in response.status] == [(0, 0), (0, EXISTS)]
    assert served.table[five_tuple(1)].dst.port == 9
    usage = await client.read(pb.Entity(table_usage=pb.TableUsage(table_id=RELAY.id)))
    assert usage.entities[0].table_usage.usage == 3


async def test_one_batch_may_use_a_key_several_times(served: Served) -> None:
    client = await served.raw().connect()
    found = await fails(client, insert(1), insert(1), update(U.DELETE, 1), update(U.DELETE, 1), insert(1, port=8))
    assert found == [(0, 0), (EXISTS, 0), (0, 0), (NOT_FOUND, 0)]
    assert served.table[five_tuple(1)].dst.port == 8


async def test_full(served: Served) -> None:
    client = await served.raw().connect()
    served.fill(room=3)
    assert await fails(client, *(insert(n) for n in range(5))) == [(0, 0)] * 3 + [(NO_SPACE, 0)] * 2


@pytest.mark.parametrize("size", [4_900])
async def test_long_batches_of_one_layout(served: Served, size: int) -> None:
    client = await served.raw().connect()
    # One odd update in the middle interrupts the run of like ones.
    updates = [insert(n) for n in range(size)]
    updates[size // 2] = insert(1)
    assert await fails(client, *updates) == [(0, 0)] * (size // 2) + [(EXISTS, 0)]
    assert len(served.table) == size - 1
    assert served.table[five_tuple(size - 1)].dst == Endpoint.of("10.9.9.9", 5_000)
    await client.write(*(update(U.DELETE, n) for n in range(size) if n != size // 2))
    assert not served.table


async def test_long_batches_of_the_long_form(served: Served) -> None:
    """Taken as columns or one by one: what the short form would say too keeps its action, a wrong value fails alone."""
    client = await served.raw().connect()
    action = RELAY.actions["relay_to_from"]

    def long_form(number: int) -> pb.Update:
        message = insert(number, action=None)
        data = message.entity.table_entry.data
        data.action_id = action.id
        source = five_tuple(number).dst.addr if number % 3 == 0 else b"\x0a\x01\x01\x01"
        marked, code = (1, 64 if number == 20 else 46) if number % 3 == 1 or number == 20 else (0, 0)
        for field, value in zip(action.fields, (source, b"\x0a\x09\x09\x09", b"\x10\x00", b"\x20\x00", bytes((marked,)), bytes((code,)))):
            data.fields.add(field_id=field.id, stream=value)
        return message

    assert await fails(client, *(long_form(n) for n in range(40)), insert(41), insert(2)) == [(0, 0)] * 20 + [(INVALID, 0)] + [(0, 0)] * 20 + [(EXISTS, 0)]
    numbers = [n for n in range(40) if n != 20]
    found = {n: served.table[five_tuple(n)] for n in numbers}
    assert {n: entry.dscp for n, entry in found.items()} == {n: 46 if n % 3 == 1 else None for n in numbers}
    assert all(
        entry == RelayEntry(five_tuple(n), Endpoint(five_tuple(n).dst.addr if n % 3 == 0 else b"\x0a\x01\x01\x01", 4096), Endpoint.of("10.9.9.9", 8192), 30_000, entry.dscp)
        for n, entry in found.items()
    )
    read = await client.read(*(entity(n) for n in numbers))
    assert [e.table_entry.data.action_id for e in read.entities] == [action.id] * len(numbers)
    await client.write(*(update(U.DELETE, n) for n in numbers), *(insert(n) for n in numbers))
    read = await client.read(*(entity(n) for n in numbers))
    assert [e.table_entry.data.action_id for e in read.entities] == [TO.id] * len(numbers)


async def test_rollback_undoes_everything_and_keeps_statistics(served: Served) -> None:
    client = await served.raw().connect()
    await client.write(insert(1), insert(2))
    served.send(five_tuple(1), *TEN)
    before = served.table
    found = await fails(client, insert(3), update(U.MODIFY, 2, port=1), update(U.DELETE, 1), insert(2), insert(4), atomicity=ROLLBACK)
    assert found == [(0, 0)] * 3 + [(EXISTS, 0)]
    assert served.table == before and packets(served, five_tuple(1)) == 10


async def test_rollback_of_what_cannot_be_foreseen(served: Served) -> None:
    client = await served.raw().connect()
    await client.write(insert(1), insert(2))
    served.fill(room=1)
    before, filled = served.own, len(served.plane) - 2
    assert await fails(client, update(U.DELETE, 1), insert(3), insert(4), insert(5), insert(6), atomicity=ROLLBACK) == [(0, 0)] * 3 + [(NO_SPACE, 0)]
    assert served.own == before
    media = media_update(U.INSERT, 10, 20)
    assert await fails(client, media, insert(7), insert(8), atomicity=ROLLBACK) == [(0, 0), (0, 0), (NO_SPACE, 0)]
    assert served.own == before and not served.plane.media()
    usage = await client.read(pb.Entity(table_usage=pb.TableUsage(table_id=RELAY.id)))
    assert usage.entities[0].table_usage.usage == filled + 2
    await client.write(update(U.DELETE, 1), insert(3), insert(1), atomicity=ROLLBACK)
    assert len(served.own) == 3


async def test_rollback_with_a_clear(served: Served) -> None:
    client = await served.raw().connect()
    await client.write(insert(1), insert(2))
    before = served.table
    clear = pb.Update(type=U.DELETE, entity=entity())
    assert await fails(client, clear, insert(3), insert(3), atomicity=ROLLBACK) == [(0, 0), (0, 0), (EXISTS, 0)]
    assert served.table == before


async def test_dataplane_atomic(served: Served) -> None:
    client = await served.raw().connect()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(insert(1), atomicity=pb.WriteRequest.DATAPLANE_ATOMIC)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert not served.table


async def test_ignore_not_found_needs_error_in_resp(served: Served) -> None:
    client = await served.raw().connect()
    await client.write(insert(1))
    only, both = (("ignore_not_found", "1"),), (("ignore_not_found", "1"), ("error_in_resp", "1"))
    assert await fails(client, update(U.DELETE, 2), metadata=only) == [(NOT_FOUND, 0)]
    response = await client.write(update(U.DELETE, 2), update(U.DELETE, 1), metadata=both)
    assert [(status.canonical_code, status.code) for status in response.status] == [(0, NOT_FOUND), (0, 0)]
    await client.write(update(U.DELETE, 2), insert(5), metadata=both, atomicity=ROLLBACK)
    assert five_tuple(5) in served.table
    assert await fails(client, insert(5), metadata=both) == [(EXISTS, 0)]


async def test_default_entry(served: Served) -> None:
    client = await served.raw().connect()

    def default(kind: int, action: int | None) -> pb.Update:
        out = pb.Update(type=kind, entity=entity(default=True))
        if action is not None:
            out.entity.table_entry.data.action_id = action
        return out

    await client.write(default(U.MODIFY, RELAY.actions["NoAction"].id), default(U.DELETE, None))
    assert await fails(client, default(U.MODIFY, TO.id), default(U.MODIFY, None)) == [(INVALID, 0), (INVALID, 0)]


def media_update(kind: int, low: int, high: int, priority: int = 1, action: str | None = "is_media") -> pb.Update:
    out = pb.Update(type=kind)
    entry = out.entity.table_entry
    entry.table_id = MEDIA.id
    entry.key.fields.add(field_id=1).exact.value = b"\x0a\x00\x00\x01"
    ports = entry.key.fields.add(field_id=2)
    ports.range.low, ports.range.high = low.to_bytes(2, "big"), high.to_bytes(2, "big")
    entry.key.fields.add(field_id=65537).exact.value = priority.to_bytes(4, "big")
    if action is not None and kind != U.DELETE:
        entry.data.action_id = MEDIA.actions[action].id
    return out


async def test_media_ranges(served: Served) -> None:
    client = await served.raw().connect()
    wanted = MediaRange(b"\x0a\x00\x00\x01", 10, 20)
    await client.write(media_update(U.INSERT, 10, 20))
    assert await fails(client, media_update(U.INSERT, 10, 20), media_update(U.INSERT, 30, 25), media_update(U.DELETE, 1, 2), media_update(U.INSERT, 3, 4, action=None)) == [
        (EXISTS, 0),
        (INVALID, 0),
        (NOT_FOUND, 0),
        (INVALID, 0),
    ]
    await client.write(media_update(U.INSERT, 10, 20, priority=2), media_update(U.DELETE, 10, 20))
    assert served.plane.media() == [wanted]  # there still, at the other priority
    entries = (await client.read(entity(table=MEDIA.id))).entities
    assert [e.table_entry.is_default_entry for e in entries] == [False, True]
    assert [(f.field_id, f.WhichOneof("match_type")) for f in entries[0].table_entry.key.fields] == [(1, "exact"), (2, "range"), (65537, "exact")]
    await client.write(pb.Update(type=U.DELETE, entity=entity(table=MEDIA.id)))
    assert not served.plane.media()


async def test_clear_leaves_the_other_ip_version(served: Served) -> None:
    client = await served.raw().connect()
    key6 = FiveTuple(Endpoint(bytes(15) + b"\x01", 1), Endpoint(bytes(15) + b"\x02", 2))
    assert served.plane.insert([RelayEntry(key6, key6.dst, key6.src)]) == [None]
    await client.write(insert(1), insert(2))
    await client.write(pb.Update(type=U.DELETE, entity=entity()))
    assert list(served.table) == [key6]
    for table, count in ((RELAY, 0), (RELAY6, 1)):
        assert (await client.read(pb.Entity(table_usage=pb.TableUsage(table_id=table.id)))).entities[0].table_usage.usage == count


async def test_operations_and_attributes(served: Served) -> None:
    client = await served.raw().connect()

    def operation(name: str, table: int = RELAY.id) -> pb.Update:
        return pb.Update(type=U.INSERT, entity=pb.Entity(table_operation=pb.TableOperation(table_id=table, table_operations_type=name)))

    await client.write(operation("Sync"), operation("SyncCounters"), operation("UpdateHitState"))
    assert await fails(client, operation("SyncRegisters"), operation("Sync", MEDIA.id), operation("Sync", 4711)) == [(UNSUPPORTED, 0), (UNSUPPORTED, 0), (NOT_FOUND, 0)]
    scope = pb.Entity()
    scope.table_attribute.table_id = RELAY.id
    scope.table_attribute.entry_scope.pipe_scope.predef = pb.Mode.ALL
    await client.write(pb.Update(type=U.INSERT, entity=scope))
    scope.table_attribute.entry_scope.pipe_scope.predef = pb.Mode.SINGLE
    none = pb.Entity(table_attribute=pb.TableAttribute(table_id=RELAY.id))
    hashing = pb.Entity(table_attribute=pb.TableAttribute(table_id=RELAY.id, dyn_hashing=pb.DynHashing()))
    assert await fails(client, *(pb.Update(type=U.INSERT, entity=e) for e in (scope, none, hashing))) == [(UNSUPPORTED, 0), (INVALID, 0), (UNSUPPORTED, 0)]


async def test_a_deadline_that_has_passed(served: Served) -> None:
    client = await served.raw().connect()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(insert(1), metadata=(("deadline_sec", "0"),))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await client.write(insert(1), metadata=(("deadline_sec", "5"), ("deadline_nsec", "x")))


async def test_a_deadline_that_passes_within_a_batch_says_what_was_done(served: Served) -> None:
    """Batches with later and later deadlines, until one is over between its first update and its last."""
    client = await served.raw().connect()
    again = [update(U.INSERT_OR_MODIFY, number) for number in range(3_000)]
    updates = [insert(0), *(one for number in range(3_000) for one in (insert(number), *[again[number]] * 20))]
    for step in range(60):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.write(*updates, metadata=(("deadline_nsec", str(int(1e6 * 1.2**step))),))
        text = caught.value.details() or ""
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED, "it was over before one deadline, and not begun before the last"
        if "not tried" in text:
            break
        assert text.startswith("Write RPC request timed out"), text
        assert not served.table
    first = re.search(r"updates from (\d+) on were not tried; all others were applied$", text)
    assert first is not None, text
    tried = int(first[1])
    assert (f"1 of {len(updates)} updates failed: 1 (Already exists);" if tried > 1 else f"0 of {len(updates)} updates failed;") in text, text
    assert len(served.table) == 1 + max(tried - 2, 0) // 21, text


async def test_fields_of_ttl_are_four_bytes(served: Served) -> None:
    client = await served.raw().connect()
    assert await fails(client, changed(insert(1), lambda e: setattr(e.data.fields[0], "stream", b"\x01"))) == [(INVALID, 0)]
    assert RELAY.data["$ENTRY_TTL"].id == 65543
