"""Packed and unpacked without protobuf objects, held against the generated code and against a softswitch."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunt.bfrt import wire
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.client import update_bytes
from shunt.bfrt.schema import Table
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import RelayEntry
from shunt.tables.target import RelayTarget
from tests.bfrt.conftest import Served
from tests.bfrt.messages import RELAY, RELAY6, insert
from tests.bfrt.test_relay_table import connected

ports = st.integers(0, 65535)
TABLES = {4: RELAY, 16: RELAY6}
TARGETS = {size: RelayTarget(table) for size, table in TABLES.items()}


def endpoints(size: int) -> st.SearchStrategy[Endpoint]:
    return st.builds(Endpoint, st.binary(min_size=size, max_size=size), ports)


@st.composite
def entries(draw: st.DrawFn) -> RelayEntry:
    size, out = draw(st.sampled_from((4, 16))), draw(st.sampled_from((4, 16)))
    key = FiveTuple(draw(endpoints(size)), draw(endpoints(size)))
    src = draw(st.one_of(endpoints(out), st.builds(Endpoint, st.just(key.dst.addr), ports)) if out == size else endpoints(out))
    return RelayEntry(key, src, draw(endpoints(out)), draw(st.integers(0, 2**32 - 1)), draw(st.one_of(st.none(), st.integers(0, 63))))


def named(table: Table, message: pb.TableEntry) -> dict[str, bytes]:
    """Key and data of an entry by the last parts of the fields' names."""
    fields = table.actions.by_id[message.data.action_id].fields
    out = {table.key.by_id[field.field_id].name.rpartition("hdr.")[2]: field.exact.value for field in message.key.fields}
    return out | {(fields.by_id.get(field.field_id) or table.data.by_id[field.field_id]).name: field.stream for field in message.data.fields}


@given(entries(), st.sampled_from((pb.Update.INSERT, pb.Update.MODIFY)))
def test_what_the_agent_packs_says_what_the_entry_is(entry: RelayEntry, kind: int) -> None:
    table = TABLES[len(entry.key.dst.addr)]
    (update,) = pb.WriteRequest.FromString(TARGETS[len(entry.key.dst.addr)].update(kind, entry)).updates
    message = update.entity.table_entry
    assert (update.type, message.table_id) == (kind, table.id)
    values, ip = named(table, message), f"ipv{entry.key.dst.version}"
    key = [values.pop(name) for name in (f"{ip}.src_addr", f"{ip}.dst_addr", "udp.src_port", "udp.dst_port")]
    assert key == [entry.key.src.addr, entry.key.dst.addr, entry.key.src.port.to_bytes(2, "big"), entry.key.dst.port.to_bytes(2, "big")]
    assert values.pop("$ENTRY_TTL") == entry.ttl_ms.to_bytes(4, "big")
    assert [values.pop(name) for name in ("dst_addr", "dst_port", "src_port")] == [entry.dst.addr, entry.dst.port.to_bytes(2, "big"), entry.src.port.to_bytes(2, "big")]
    assert values.pop("src_addr", entry.key.dst.addr) == entry.src.addr
    assert values.pop("set_dscp", b"\0") == bytes((entry.dscp is not None,)) and values.pop("dscp", b"\0") == bytes((entry.dscp or 0,)) and not values


def some_entry(dice: random.Random, number: int) -> RelayEntry:
    """Any entry, at one of a few relay addresses. number: makes its key different from others'."""
    size, out = dice.choice((4, 16)), dice.choice((4, 16))

    def end(size: int) -> Endpoint:
        return Endpoint(dice.randbytes(size), dice.randrange(65536))

    relay = Endpoint((b"\x0a\x5b\x01" if size == 4 else bytes.fromhex("fd91") + bytes(13)) + bytes((1 + number % 3,)), dice.randrange(65536))
    source = Endpoint(number.to_bytes(2, "big") + dice.randbytes(size - 2), dice.randrange(65536))
    short = size == out and dice.random() < 0.5
    src = Endpoint(relay.addr, dice.randrange(65536)) if short else end(out)
    return RelayEntry(FiveTuple(source, relay), src, end(out), dice.choice((0, 1_000_000, 2**32 - 1)), dice.choice((None, None, 0, 46, 63)))


async def test_what_the_agent_packs_is_what_the_softswitch_reads_and_says(served: Served) -> None:
    """Entries of every form: written by the agent, read by another client; then the agent reads them, all and one by one."""
    dice = random.Random(1)
    wanted = {entry.key: entry for entry in (some_entry(dice, number) for number in range(600))}
    async with connected(served.target) as table:
        results = await table.insert_many(list(wanted.values()))
        assert all(result.ok for result in results), [result for result in results if not result.ok][:3]
        assert served.table == wanted
        found = await table.entries()
        assert found.keys() == wanted.keys() and all(found[key].does_as(entry) and found[key].ttl_ms <= entry.ttl_ms for key, entry in wanted.items())
        assert (await table.stats(list(wanted))).keys() == (await table.stats(None)).keys() == wanted.keys()


class _Plan:
    """Any layout with as many values as it is told."""

    def __init__(self, width: int) -> None:
        self.width = width


def _learn(body: bytes) -> tuple[pb.Update, _Plan | None]:
    update = pb.Update.FromString(body)
    entry = update.entity.table_entry
    return update, _Plan(len(entry.key.fields) + len(entry.data.fields))


def _flat(items: list[object], numbers: list[list[bytes]]) -> list[list[bytes]]:
    for item in items:
        if isinstance(item, wire.Run):
            rows = list(item.values)
            assert len(rows) == item.count
            numbers += [[value if isinstance(value, bytes) else None for value in row] for row in rows]
        else:
            entry = item.entity.table_entry  # type: ignore[attr-defined]
            numbers.append([f.exact.value for f in entry.key.fields] + [f.stream for f in entry.data.fields])
    return numbers


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1_000)), max_size=60), st.booleans())
def test_splitting_finds_every_record_in_order(kinds: list[tuple[int, int]], again: bool) -> None:
    updates = []
    for kind, number in kinds:
        message = insert(number, ttl=None if kind == 1 else 1_000)
        if kind == 2:
            message.type = pb.Update.MODIFY
        if kind == 3:
            message.entity.table_entry.is_default_entry = True
        updates.append(message)
    request = pb.WriteRequest(client_id=7, updates=updates, p4_name="relay")
    request.target.pipe_id = 0xFFFF
    splitter: wire.Splitter[_Plan] = wire.Splitter(3, wire.UPDATE, _learn)
    for _ in range(2 if again else 1):
        rest, items = splitter.split(request.SerializeToString())
        found = _flat(items, [])
    assert pb.WriteRequest.FromString(rest) == pb.WriteRequest(client_id=7, p4_name="relay", target=request.target)
    expected = [[f.exact.value for f in u.entity.table_entry.key.fields] + [f.stream for f in u.entity.table_entry.data.fields] for u in updates]
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected):
        # Values of 1, 2 and 8 bytes come as numbers and were checked elsewhere.
        assert all(a is None or a == b for a, b in zip(got, wanted, strict=True))


@given(st.binary(max_size=200))
def test_splitting_anything_agrees_with_protobuf(data: bytes) -> None:
    """What the splitter takes, protobuf takes too, with the same records; what protobuf refuses, it never takes."""
    splitter: wire.Splitter[_Plan] = wire.Splitter(3, wire.UPDATE, _learn)
    try:
        rest, items = splitter.split(data)
        mine = (pb.WriteRequest.FromString(rest), items)
    except Exception:
        mine = None
    try:
        theirs = pb.WriteRequest.FromString(data)
    except Exception:
        theirs = None
    if mine is not None:
        assert theirs is not None and len(theirs.updates) == len(mine[1])


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.key.fields[0].ternary.SetInParent(),
        lambda entry: setattr(entry, "handle_id", 5),
        lambda entry: entry.entry_tgt.SetInParent(),
        lambda entry: entry.data.fields[0].int_arr_val.SetInParent(),
    ],
)
def test_unusual_messages_have_no_layout(change: object) -> None:
    message = insert(1)
    change(message.entity.table_entry)  # type: ignore[operator]
    with pytest.raises(ValueError):
        wire.Layout(update_bytes(message.type, message.entity), 2, wire.UPDATE)


def test_a_field_given_twice_has_no_layout() -> None:
    """Protobuf takes the last of two; a layout would have to guess."""
    value = b"\x0a\x04\x01\x02\x03\x04"
    twice = b"\x08\x01\x12" + bytes((len(value) * 2,)) + value * 2
    record = b"\x0a" + bytes((len(twice),)) + twice
    for tag in (b"\x12", b"\x0a", b"\x12"):
        record = tag + bytes((len(record),)) + record
    with pytest.raises(ValueError, match="no place"):
        wire.Layout(record, 0, wire.UPDATE)


def test_too_many_layouts_are_forgotten() -> None:
    splitter: wire.Splitter[_Plan] = wire.Splitter(3, wire.UPDATE, _learn)
    for table in range(1, 1_000):
        message = insert(1)
        message.entity.table_entry.table_id = table
        rest, items = splitter.split(update_bytes(message.type, message.entity))
        assert len(items) == 1 and not rest
    assert splitter._count <= splitter._MOST_LAYOUTS
