"""Reads and notifications: what comes back, in which order, and with which errors."""

from __future__ import annotations

import asyncio
import signal

import grpc
import pytest

from tests.bfrt.conftest import Served
from tests.bfrt.messages import RELAY, TABLES, TO, details, entity, insert, key_of, set_key, update
from tests.bfrt.test_write import five_tuple
from tests.bfrt.traffic import rtp
from tests.softswitch.schema import load
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.entry import LearnNotice, MediaRange

INVALID, NOT_FOUND, UNSUPPORTED = 3, 5, 12
U = pb.Update


async def fails(client: object, *entities: pb.Entity, **options: object) -> tuple[list[pb.Entity], list[tuple[int, int]]]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.read(*entities, **options)  # type: ignore[attr-defined]
    assert caught.value.code() == grpc.StatusCode.UNKNOWN and caught.value.details() == "Read Error Status"
    return list(caught.value.found.entities), details(caught.value)  # type: ignore[attr-defined]


async def test_a_keyed_read_has_key_action_and_table_fields(served: Served) -> None:
    client = await served.raw().connect()
    await client.write(insert(1))
    served.send(five_tuple(1), *(rtp(seq=number, size=172) for number in range(3)))
    (found,) = (await client.read(entity(1))).entities
    entry = found.table_entry
    assert entry.table_id == RELAY.id and not entry.is_default_entry and not entry.HasField("entry_tgt")
    assert entry.HasField("table_read_flag") and entry.HasField("table_flags")
    assert {f.field_id: f.exact.value for f in entry.key.fields} == dict(key_of(1))
    assert entry.data.action_id == TO.id
    values = {f.field_id: f.str_val or f.stream for f in entry.data.fields}
    left = int.from_bytes(values.pop(65543), "big")
    assert 0 < left <= 30_000
    assert values == {
        1: b"\x0a\x09\x09\x09", 2: (5_000).to_bytes(2, "big"), 3: (7_000).to_bytes(2, "big"),
        65544: "ENTRY_ACTIVE", 65553: (600).to_bytes(8, "big"), 65554: (3).to_bytes(8, "big"),
    }  # fmt: skip


async def test_wildcard_ends_in_the_default_entry(served: Served) -> None:
    client = await served.raw().connect()
    (only,) = (await client.read(entity())).entities
    assert only.table_entry.is_default_entry and not only.table_entry.HasField("key")
    assert only.table_entry.data.action_id == RELAY.actions["NoAction"].id
    await client.write(*(insert(n) for n in range(3_000)))
    found = (await client.read(entity())).entities
    assert len(found) == 3_001 and [e.table_entry.is_default_entry for e in found].index(True) == 3_000
    assert {e.table_entry.key.fields[3].exact.value for e in found[:-1]} == {dict(key_of(n))[4] for n in range(3_000)}
    (default,) = (await client.read(entity(default=True))).entities
    assert default == only


async def test_what_is_found_comes_before_what_is_missing(served: Served) -> None:
    client = await served.raw().connect()
    await client.write(insert(1), insert(3))
    found, errors = await fails(client, entity(1), entity(2), entity(3), entity(4), entity(1))
    assert [e.table_entry.key.fields[3].exact.value for e in found] == [dict(key_of(n))[4] for n in (1, 3, 1)]
    assert errors == [(0, 0), (NOT_FOUND, 0), (0, 0), (NOT_FOUND, 0)]
    quality = TABLES["softswitch.quality"].id
    found, errors = await fails(client, *(entity(n, table=quality) for n in (1, 2, 3)))
    assert len(found) == 2 and errors == [(0, 0), (NOT_FOUND, 0)]


async def test_errors_in_the_response(served: Served) -> None:
    client = await served.raw().connect()
    await client.write(insert(1))
    response = await client.read(entity(1), entity(2), metadata=(("error_in_resp", "1"),))
    assert len(response.entities) == 1 and [status.canonical_code for status in response.status] == [0, NOT_FOUND]


async def test_the_requests_action_and_fields_filter(served: Served) -> None:
    client = await served.raw().connect()
    long = RELAY.actions["relay_to_from"]
    other = insert(2, action=long.id)
    fields = other.entity.table_entry.data.fields
    del fields[:]
    for field in long.fields:
        fields.add(field_id=field.id, stream=b"\x09\x09" if field.size == 2 else bytes(field.size))
    await client.write(insert(1), other, insert(3))
    only = entity()
    only.table_entry.data.action_id = TO.id
    found = (await client.read(only)).entities
    assert [(e.table_entry.HasField("key"), e.table_entry.is_default_entry) for e in found] == [(True, False), (False, False), (True, False), (False, True)]
    keyed = entity(2)
    keyed.table_entry.data.action_id = TO.id
    assert (await fails(client, keyed))[1] == [(INVALID, 0)]
    keyed.table_entry.data.action_id = long.id
    keyed.table_entry.data.fields.add(field_id=3)
    (found_one,) = (await client.read(keyed)).entities
    assert [(f.field_id, f.stream) for f in found_one.table_entry.data.fields] == [(3, b"\x09\x09")]
    keyed.table_entry.data.fields.add(field_id=99)
    only.table_entry.data.action_id = 4711
    assert (await fails(client, keyed, only))[1] == [(NOT_FOUND, 0), (NOT_FOUND, 0)]


async def test_an_entrys_own_target_is_echoed(served: Served) -> None:
    client = await served.raw().connect()
    await client.write(insert(1))
    wanted = entity(1)
    wanted.table_entry.entry_tgt.pipe_id, wanted.table_entry.entry_tgt.direction = 0xFFFF, 1
    (found,) = (await client.read(wanted)).entities
    assert found.table_entry.entry_tgt == wanted.table_entry.entry_tgt


async def test_the_action_that_was_written_is_read(served: Served) -> None:
    """relay_to_from with the relay's own address says what relay_to says, but is not what was written."""
    client = await served.raw().connect()
    long = RELAY.actions["relay_to_from"]
    for kind in (U.INSERT, U.MODIFY):
        written = update(kind, 1, action=long.id)
        fields = written.entity.table_entry.data.fields
        del fields[:]
        for field, value in zip(long.fields, (b"\x0a\x5b\x01\x01", b"\x0a\x09\x09\x09", b"\x00\x01", b"\x00\x02", b"\x00", b"\x00")):
            fields.add(field_id=field.id, stream=value)
        await client.write(written)
        assert (await client.read(entity(1))).entities[0].table_entry.data.action_id == long.id
    await client.write(update(U.MODIFY, 1))
    assert (await client.read(entity(1))).entities[0].table_entry.data.action_id == TO.id


async def test_usage_attribute_handle_and_ids(served: Served) -> None:
    client = await served.raw().connect()
    await client.write(insert(1), insert(2))

    async def one(wanted: pb.Entity) -> pb.Entity:
        (found,) = (await client.read(wanted)).entities
        return found

    assert (await one(pb.Entity(table_usage=pb.TableUsage(table_id=RELAY.id)))).table_usage.usage == 2
    idle = pb.Entity(table_attribute=pb.TableAttribute(table_id=RELAY.id, idle_table=pb.IdleTable()))
    assert not (await one(idle)).table_attribute.idle_table.enable
    handle = pb.Entity(handle=pb.HandleId(table_id=RELAY.id))
    set_key(handle.handle.key, key_of(2))
    number = (await one(handle)).handle.handle_id
    by_handle = pb.Entity(table_entry=pb.TableEntry(table_id=RELAY.id, handle_id=number))
    assert {f.field_id: f.exact.value for f in (await one(by_handle)).table_entry.key.fields} == dict(key_of(2))
    by_handle.table_entry.table_flags.key_only = True
    key_only = (await one(by_handle)).table_entry
    assert key_only.HasField("key") and not key_only.HasField("data") and key_only.table_flags.key_only
    await client.write(update(U.DELETE, 2))
    assert (await fails(client, by_handle))[1] == [(NOT_FOUND, 0)]
    names = pb.Entity()
    names.object_id.table_object.table_name = "relay"
    names.object_id.table_object.action_name.action = "relay_to"
    assert (await one(names)).object_id.id == TO.id
    names.object_id.table_object.table_name = "nothing"
    assert (await fails(client, names, pb.Entity()))[1] == [(NOT_FOUND, 0), (INVALID, 0)]


async def test_read_of_an_operation_fails_the_call(served: Served) -> None:
    client = await served.raw().connect()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.read(pb.Entity(table_operation=pb.TableOperation(table_id=RELAY.id)))
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_the_softswitchs_own_tables(served: Served) -> None:
    client = await served.raw().connect()
    await client.write(insert(1))
    # 3 more octets each; of 11 sequence numbers 12 comes late, 20 twice and six never.
    key = five_tuple(1)
    served.send(key, *(rtp(0xAABBCCDD, seq, 12 + 3 * number) for number, seq in enumerate((10, 11, 13, 20, 12, 20))))
    for _ in range(2):
        served.send(key._replace(src=key.src.next_port()), rtp(0xAABBCCDD, 16))

    def values(found: pb.Entity, name: str) -> dict[str, object]:
        table = TABLES[name]
        return {table.data.by_id[f.field_id].name: f.str_val or int.from_bytes(f.stream, "big") for f in found.table_entry.data.fields}

    (quality,) = (await client.read(entity(1, table=TABLES["softswitch.quality"].id))).entities
    found = values(quality, "softswitch.quality")
    assert list(found)[:8] == ["packets", "bytes", "idle_ms", "lost", "reordered", "duplicates", "jitter_us", "ssrc"]
    assert 0 <= int(str(found.pop("idle_ms"))) < 60_000 and int(str(found.pop("jitter_us"))) < 1 << 32
    assert list(found.values()) == [6, 6 * 40 + 3 * 15, 5, 1, 1, 0xAABBCCDD, 2], found
    (trace,) = (await client.read(entity(2, table=TABLES["softswitch.trace"].id))).entities
    assert trace.table_entry.data.fields[0].str_val == "pass" and len(trace.table_entry.data.fields) == 5
    (totals,) = (await client.read(entity(table=TABLES["softswitch.totals"].id))).entities
    assert totals.table_entry.is_default_entry and values(totals, "softswitch.totals")["capacity"] == 5_000
    (interface,) = (await client.read(entity(table=TABLES["softswitch.interface"].id))).entities
    shown = values(interface, "softswitch.interface")
    assert shown.pop("mode") in ("native", "generic") and shown == {"name": "in0", "rx_queues": 1}
    assert not (await client.read(entity(table=TABLES["$PORT"].id))).entities
    assert (await fails(client, pb.Entity(table_usage=pb.TableUsage(table_id=TABLES["softswitch.totals"].id))))[1] == [(UNSUPPORTED, 0)]


def learned_at(served: Served, number: int) -> None:
    """Let flows to the first ports of five_tuple() be learned."""
    assert served.plane.add_media(MediaRange(five_tuple(number).dst.addr, 30_000, 30_999)) is None


async def test_learn_digests_begin_at_bind(served: Served) -> None:
    """A client that is subscribed and not bound gets none; its first is of the first packet after it was bound."""
    learned_at(served, 1)
    owner, client = await served.raw().connect(), served.raw()
    await client.subscribe()
    served.notice(LearnNotice(five_tuple(1), 2, 0, 1, 0x1234))
    first = await asyncio.wait_for(owner.stream.read(), 60)
    assert first.digest.data[0].fields[7].stream == (0x1234).to_bytes(4, "big")
    owner.stream.cancel()
    await client.bind_when_free()
    served.notice(LearnNotice(five_tuple(2), 2, 0, 513, 0xAABBCCDD))
    message = await asyncio.wait_for(client.stream.read(), 60)
    digest = message.digest
    assert digest.digest_id == load().learns["learn"].id and digest.list_id == 0 and digest.target.pipe_id == 0xFFFF
    (data,) = digest.data
    assert not data.action_id
    key = dict(key_of(2))
    assert [(f.field_id, f.stream) for f in data.fields] == [
        (1, key[1]), (2, key[2]), (3, key[3]), (4, key[4]), (5, b"\x02"), (6, b"\x00"), (7, b"\x02\x01"), (8, b"\xaa\xbb\xcc\xdd"),
    ]  # fmt: skip


async def test_learn_digests_only_for_those_who_asked(served: Served) -> None:
    learned_at(served, 1)
    client = await served.raw().connect(learn=False)
    before = served.plane.totals()["learn_notices"]
    served.notice(LearnNotice(five_tuple(1), 2, 0, 1, 0x1234))
    assert served.plane.totals()["learn_notices"] == before + 1
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.stream.read(), 0.3)


async def test_many_flows_are_learned_in_few_digests_and_all_of_them(served: Served) -> None:
    """Notices that wait for the process together share messages, in their order; none is lost."""
    learned_at(served, 1)
    client = await served.raw().connect()
    wanted = [LearnNotice(five_tuple(number), 2, 0, number, 0xBEEF) for number in range(200)]
    served.softswitch.signal(signal.SIGSTOP)
    try:
        for notice in wanted:
            served.notice(notice)
    finally:
        served.softswitch.signal(signal.SIGCONT)
    seen: list[int] = []
    messages = 0
    async with asyncio.timeout(60):
        while len(seen) < len(wanted):
            message = await client.stream.read()
            messages += 1
            seen += [int.from_bytes(data.fields[6].stream, "big") for data in message.digest.data]
    assert seen == list(range(200)) and messages <= 20


def idle_attribute(*, enable: bool = True, notify: bool = True) -> pb.Update:
    out = pb.Update(type=U.INSERT)
    attribute = out.entity.table_attribute
    attribute.table_id = RELAY.id
    idle = attribute.idle_table
    idle.enable, idle.ttl_query_interval, idle.min_ttl, idle.max_ttl = enable, 100, 100, 3_600_000
    if notify:
        idle.idle_table_mode = idle.IDLE_TABLE_NOTIFY_MODE
    return out


async def test_idle_and_active_notifications(served: Served) -> None:
    client = await served.raw().connect(active=True)
    await client.write(insert(1, ttl=1_000), insert(2, ttl=0), idle_attribute())
    message = await asyncio.wait_for(client.stream.read(), 60)
    idle = message.idle_timeout_notification
    assert idle.type == idle.ENTRY_IDLE and idle.target.pipe_id == 0xFFFF and not idle.table_entry.HasField("data")
    assert idle.table_entry.table_id == RELAY.id and {f.field_id: f.exact.value for f in idle.table_entry.key.fields} == dict(key_of(1))
    (found,) = (await client.read(entity(1))).entities
    assert [f.str_val for f in found.table_entry.data.fields if f.field_id == 65544] == ["ENTRY_IDLE"]
    with pytest.raises(TimeoutError):  # once is enough
        await asyncio.wait_for(asyncio.shield(pending := asyncio.ensure_future(client.stream.read())), 0.5)
    served.send(five_tuple(1))
    assert (await asyncio.wait_for(pending, 60)).idle_timeout_notification.type == idle.ENTRY_ACTIVE
    again = (await asyncio.wait_for(client.stream.read(), 60)).idle_timeout_notification
    assert again.type == idle.ENTRY_IDLE and again.table_entry.key == idle.table_entry.key


async def test_idle_notifications_need_a_subscription_to_them(served: Served) -> None:
    client = await served.raw().connect(idle=False)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(idle_attribute())
    assert details(caught.value) == [(INVALID, 0)]
    await client.write(idle_attribute(notify=False))
    read = pb.Entity(table_attribute=pb.TableAttribute(table_id=RELAY.id, idle_table=pb.IdleTable()))
    assert (await client.read(read)).entities[0].table_attribute.idle_table.enable


async def test_idle_notifications_end_with_their_client(served: Served) -> None:
    client = await served.raw().connect()
    await client.write(insert(1, ttl=200), idle_attribute())
    assert (await asyncio.wait_for(client.stream.read(), 60)).WhichOneof("update") == "idle_timeout_notification"
    await client.stream.done_writing()
    assert await client.stream.read() is grpc.aio.EOF
    other = await served.raw().connect()
    await other.write(insert(2, ttl=200))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(other.stream.read(), 1.0)
