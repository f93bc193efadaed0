"""Packed and unpacked without protobuf objects, held against the generated code."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunt.bfrt import wire
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.client import update_bytes
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import RelayEntry, StreamStats
from shunt.tables.target import RelayTarget
from shunt_softswitch.entries import QualityCodec, RelayCodec, UpdatePlan
from tests.bfrt.conftest import RELAY, RELAY6, TABLES, insert

ports = st.integers(0, 65535)


def endpoints(size: int) -> st.SearchStrategy[Endpoint]:
    return st.builds(Endpoint, st.binary(min_size=size, max_size=size), ports)


@st.composite
def entries(draw: st.DrawFn) -> RelayEntry:
    size, out = draw(st.sampled_from((4, 16))), draw(st.sampled_from((4, 16)))
    key = FiveTuple(draw(endpoints(size)), draw(endpoints(size)))
    src = draw(st.one_of(endpoints(out), st.builds(Endpoint, st.just(key.dst.addr), ports)) if out == size else endpoints(out))
    return RelayEntry(key, src, draw(endpoints(out)), draw(st.integers(0, 2**32 - 1)), draw(st.one_of(st.none(), st.integers(0, 63))))


_TARGETS = {4: RelayTarget(RELAY), 16: RelayTarget(RELAY6)}
_CODECS = {4: RelayCodec(RELAY), 16: RelayCodec(RELAY6)}


@given(entries(), st.sampled_from((pb.Update.INSERT, pb.Update.MODIFY)))
def test_what_the_agent_packs_is_what_the_server_reads(entry: RelayEntry, kind: int) -> None:
    size = len(entry.key.dst.addr)
    packed = _TARGETS[size].update(kind, entry)
    (update,) = pb.WriteRequest.FromString(packed).updates
    assert update.type == kind
    codec = _CODECS[size]
    message = update.entity.table_entry
    plan = UpdatePlan(codec, kind, message)
    # Without protobuf objects:
    layout = wire.Layout(packed, 2 if packed[1] < 0x80 else 3, wire.UPDATE)
    ((key, row),) = plan.keys(layout.values(packed))
    assert (key, plan.entry(key, row)) == (entry.key, entry)
    # With them:
    plain = codec.plain(message.data)
    assert plain is not None and codec.key(message.key) == entry.key
    assert codec.entry(entry.key, *plain, entry.ttl_ms) == entry


@given(entries(), st.booleans(), st.booleans(), st.booleans())
def test_read_entries_come_back(entry: RelayEntry, explicit: bool, idle: bool, keyed: bool) -> None:
    codec, target = _CODECS[len(entry.key.dst.addr)], _TARGETS[len(entry.key.dst.addr)]
    action = codec.action_of(entry, explicit)
    packed = codec.read_bytes(entry, StreamStats(2**40, 2**41), action, idle, keyed)
    (entity,) = pb.ReadResponse.FromString(packed).entities
    message = entity.table_entry
    assert target.key(message.key) == entry.key
    values = {field.field_id: field.stream for field in message.data.fields}
    assert target.by_action[message.data.action_id].entry(entry.key, values, target.ttl) == entry
    assert {f.field_id: f.str_val or f.stream for f in message.data.fields} == codec.data_values(entry, StreamStats(2**40, 2**41), action, idle)


@given(endpoints(4), endpoints(4), st.lists(st.integers(0, 2**70), min_size=9, max_size=9), st.booleans())
def test_statistics_come_back(src: Endpoint, dst: Endpoint, counts: list[int], keyed: bool) -> None:
    codec = QualityCodec(TABLES["softswitch.quality"])
    stats = StreamStats(*counts)
    (entity,) = pb.ReadResponse.FromString(codec.read_bytes(FiveTuple(src, dst), stats, keyed)).entities
    values = {f.field_id: f.stream for f in entity.table_entry.data.fields}
    assert values == codec.data_values(stats)
    assert int.from_bytes(values[1], "big") == min(counts[0], 2**64 - 1) and int.from_bytes(values[4], "big") == min(counts[3], 2**32 - 1)


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
