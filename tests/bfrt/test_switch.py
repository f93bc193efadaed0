"""The agent's relay table against a switch: the schema of a compiled program, no tables of the softswitch's own, streams watched one by one."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import MediaRange, Outcome, StreamStats
from shunt.tables.relay_table import RelayTable
from shunt.tables.samples import Samples
from tests.bfrt.fake_switch import PIPES, FakeSwitch, running
from tests.bfrt.test_relay_table import connected, entry, entry6, until
from tests.softswitch import schema

GENERATED = Path(__file__).resolve().parents[2] / "p4" / "generated"


def compiled(name: str = "relay.tofino1.bf-rt.json") -> bytes:
    """A schema that the compiler wrote."""
    path = GENERATED / name
    if not path.exists():
        pytest.skip(f"p4/generated/{name} is not there: make p4-generated")
    return path.read_bytes()


def by_hand(*, counted: bool = False) -> bytes:
    """The same tables as far as the agent uses them, made of the softswitch's schema."""
    document = copy.deepcopy(schema.document("relay"))
    document["tables"] = [table for table in document["tables"] if not table["name"].startswith("softswitch.")]
    relays = [table for table in document["tables"] if table["name"].startswith("pipe.Ingress.relay")]
    for relay in relays:
        relay["size"] = 4_096
    counters = [item for item in relays[0]["data"] if item["singleton"]["name"].startswith("$COUNTER")]
    for number, relay in enumerate(relays):
        if not counted:
            relay["data"] = [item for item in relay["data"] if item not in counters]
        index = {"id": 1, "name": "index", "repeated": False, "type": {"type": "bytes", "width": 16}}
        watch = {"id": 900 + number, "name": f"Ingress.watch{'6' if number else ''}", "action_scope": "TableOnly", "annotations": [{"name": "@tableonly"}], "data": [index]}
        document["tables"].append(
            {**relay, "id": 0x300 + number, "name": f"pipe.Ingress.sample{'6' if number else ''}", "size": 64 >> number, "action_specs": [watch], "data": counters, "attributes": []}
        )
    value = {"id": 1, "name": "Ingress.missing.f1", "repeated": True, "type": {"type": "bytes", "width": 16}}
    document["tables"].append(
        {
            "id": 0x310, "name": "pipe.Ingress.missing", "table_type": "Register", "size": 64, "attributes": [], "supported_operations": [],
            "key": [{"id": 65557, "name": "$REGISTER_INDEX", "match_type": "Exact", "type": {"type": "uint32"}}],
            "data": [{"mandatory": False, "read_only": False, "singleton": value}],
        }
    )  # fmt: skip
    return json.dumps(document).encode()


@pytest.fixture(params=["by hand", "compiled"])
async def switch(request: pytest.FixtureRequest) -> AsyncIterator[FakeSwitch]:
    yield FakeSwitch(by_hand() if request.param == "by hand" else compiled())


def key_bytes(key: FiveTuple) -> tuple[bytes, ...]:
    return key.src.addr, key.dst.addr, key.src.port.to_bytes(2, "big"), key.dst.port.to_bytes(2, "big")


def count(switch: FakeSwitch, key: FiveTuple, packets: int, size: int, missing: int) -> None:
    """Make the switch have counted this on a watched stream."""
    table = switch.table("Ingress.sample")
    place = tuple(zip(sorted(table.key.by_id), key_bytes(key)))
    switch.counted[table.id, place] = (packets, size)
    action = next(action for action in table.actions if not action.default_only)
    data = switch.entries[table.id][place]
    index = next(field.stream for field in data.fields if field.field_id == action.fields["index"].id)
    register = switch.table("Ingress.missing")
    held = switch.entries[register.id]
    number = register.key["$REGISTER_INDEX"]
    value = pb.TableData()
    for pipe in range(PIPES):
        value.fields.add(field_id=next(iter(register.data)).id, stream=(missing if pipe == 1 else 0).to_bytes(2, "big"))
    held[((number.id, int.from_bytes(index, "big").to_bytes(4, "big")),)] = value


async def test_everything_an_agent_does(switch: FakeSwitch) -> None:
    async with running(switch) as target, connected(target) as table:
        assert "BF Runtime target" in table.data_plane
        media = [MediaRange(b"\x0a\x5b\x01\x01", 10_000, 20_000), MediaRange(bytes(15) + b"\x01", 1, 65_535)]
        for _ in range(2):
            assert (await table.declare_media(media)).outcome is Outcome.INSTALLED
        assert len(switch.held("Ingress.media")) == len(switch.held("Ingress.media6")) == 1
        wanted = [entry(1, src=Endpoint(b"\x0a\x5b\x01\x01", 9_000)), entry(2, src=Endpoint.of("10.6.6.6", 2), dscp=46), entry6(1)]
        assert [result.outcome for result in await table.insert_many(wanted)] == [Outcome.INSTALLED] * 3, wanted
        assert set(switch.held("Ingress.relay")) == {key_bytes(e.key) for e in wanted[:2]}
        assert set(switch.held("Ingress.relay6")) == {key_bytes(wanted[2].key)}
        assert await table.entries() == {e.key: e for e in wanted}
        assert {attribute.table_id for attribute in switch.attributes} == {switch.table("Ingress.relay").id, switch.table("Ingress.relay6").id}
        assert all(attribute.idle_table.idle_table_mode == pb.IdleTable.IDLE_TABLE_NOTIFY_MODE for attribute in switch.attributes)
        # Without counters an entry is known to be there, and no more.
        assert (await table.stats([wanted[0].key, entry(9).key])).keys() == {wanted[0].key}
        assert (await table.totals())["entries"] == 3 and (await table.totals())["capacity"] > 3
        assert (await table.trace(wanted[0].key))["verdict"] == "unknown"
        assert (await table.insert(wanted[0])).ok and (await table.delete(wanted[0].key))[0].outcome is Outcome.REMOVED
        assert (await table.delete(wanted[0].key))[0].outcome is Outcome.ABSENT


async def test_what_a_switch_lacks_is_said(switch: FakeSwitch) -> None:
    async with running(switch) as target, connected(target) as table:
        assert "no softswitch.trace: packets cannot be traced through the data plane" in table.lacks
        assert "no softswitch.quality for relay: no jitter or idle times, nothing counted but on watched streams" in table.lacks
        assert "no softswitch.blocklist: before the offload a relay hears whoever scans its ports" in table.lacks
        assert len(table.lacks) == 4
    assert table.lacks == []


async def test_a_full_table_and_an_entry_that_is_there(switch: FakeSwitch) -> None:
    async with running(switch) as target, connected(target) as table:
        size = switch.table("Ingress.relay").size
        held = switch.entries[switch.table("Ingress.relay").id]
        held.update({((1, bytes((n >> 8, n & 255))),): pb.TableData() for n in range(size - 1)})
        results = await table.insert_many([entry(1), entry(2)])
        assert [result.outcome for result in results] == [Outcome.INSTALLED, Outcome.TABLE_FULL]
        assert (await table.insert(entry(1, dst=Endpoint.of("10.3.3.3", 3)))).outcome is Outcome.INSTALLED


async def test_the_hash_is_the_compiled_programs(switch: FakeSwitch) -> None:
    """The switch hands out the compiler's context.json, and the agent keeps 5-tuples of one hash apart."""
    from shunt.bfrt.proxy_hash import HASH48, from_context
    from tests.bfrt.test_proxy_hash import colliding, context

    switch.contexts = (json.dumps(context(HASH48, 4)).encode(), json.dumps(context(HASH48, 16, name="Ingress.relay6", header="hdr.ipv6")).encode())
    if switch.program != by_hand():
        switch.contexts = (compiled("hash48.tofino1.context.json"),)
    (hash_,) = next(hashes for name, hashes in from_context(switch.contexts[0]).items() if name.endswith(".relay"))
    other = colliding(hash_, entry(1).key, free=range(96))[0]
    async with running(switch) as target, connected(target) as table:
        assert table.data_plane == "BF Runtime target (5-tuples taken as 48-bit hashes)"
        assert (await table.insert(entry(1))).ok
        collider = type(entry(1))(other, Endpoint(other.dst.addr, 1), Endpoint.of("10.1.1.1", 1))
        assert (await table.insert(collider)).outcome is Outcome.HASH_COLLISION


async def test_streams_are_watched(switch: FakeSwitch) -> None:
    async with running(switch) as target, connected(target) as table:
        await table.insert_many([entry(n) for n in range(10)] + [entry6(1)])
        await until(lambda: len(switch.held("Ingress.sample")) == 10 and len(switch.held("Ingress.sample6")) == 1)
        count(switch, entry(3).key, 0, 0, 4711)  # what an earlier stream left in the register
        assert (await table.stats([entry(3).key]))[entry(3).key] == StreamStats(0, 0, None, None)
        count(switch, entry(3).key, 5, 1000, 9000)
        assert (await table.stats(None))[entry(3).key] == StreamStats(5, 1000, None, 0)
        count(switch, entry(3).key, 105, 21_000, 9007)
        assert (await table.stats([entry(3).key, entry(4).key]))[entry(3).key] == StreamStats(105, 21_000, None, 7)
        count(switch, entry(3).key, 106, 21_200, 9006)  # one of them came late
        result, last = await table.delete(entry(3).key)
        assert result.ok and last == StreamStats(106, 21_200, None, 6)
        await until(lambda: entry(3).key not in table._samples.indices)  # when the switch's answer has come
        assert len(switch.held("Ingress.sample")) == 9


async def test_what_finds_no_room_is_offloaded_all_the_same(switch: FakeSwitch) -> None:
    room = switch.table("Ingress.sample").size
    async with running(switch) as target, connected(target) as table:
        many = [entry(n) for n in range(room + 20)]
        assert all(result.ok for result in await table.insert_many(many))
        await until(lambda: len(switch.held("Ingress.sample")) == room)
        assert len(switch.held("Ingress.relay")) == room + 20
        assert len(await table.stats([e.key for e in many])) == room + 20
        unwatched = next(e.key for e in many if e.key not in table._samples.indices)
        await table.delete(next(iter(table._samples.indices)))
        await until(lambda: len(switch.held("Ingress.sample")) == room - 1)
        # The next reconciling takes up what has no counters yet.
        await table.entries()
        await until(lambda: len(switch.held("Ingress.sample")) == room)
        assert unwatched in table._samples.indices or len(table._samples.indices) == room


async def test_a_restarted_agent_goes_on_with_what_is_watched(switch: FakeSwitch) -> None:
    async with running(switch) as target:
        async with connected(target) as table:
            await table.insert_many([entry(n) for n in range(5)])
            await until(lambda: len(switch.held("Ingress.sample")) == 5)
            before = dict(table._samples.indices)
        count(switch, entry(2).key, 50, 5_000, 3)
        del switch.entries[switch.table("Ingress.relay").id][tuple(zip((1, 2, 3, 4), key_bytes(entry(4).key)))]
        async with connected(target) as table:
            assert table._samples.indices == before
            assert (await table.stats([entry(2).key]))[entry(2).key].packets == 50
            await table.entries()
            await until(lambda: len(switch.held("Ingress.sample")) == 4)
            assert (await table.insert(entry(9))).ok
            await until(lambda: entry(9).key in table._samples.indices)
            assert len(set(table._samples.indices.values())) == len(table._samples.indices)


@pytest.mark.parametrize("made", ["by hand", "compiled"])
async def test_a_build_with_counters_on_every_entry_watches_nothing(made: str) -> None:
    switch = FakeSwitch(by_hand(counted=True) if made == "by hand" else compiled("relay-counted.tofino1.bf-rt.json"))
    async with running(switch) as target, connected(target) as table:
        await table.insert(entry(1))
        table_id = switch.table("Ingress.relay").id
        switch.counted[table_id, tuple(zip((1, 2, 3, 4), key_bytes(entry(1).key)))] = (7, 700)
        assert await table.stats([entry(1).key]) == {entry(1).key: StreamStats(7, 700)}
        assert (await table.delete(entry(1).key))[1] == StreamStats(7, 700)
        assert not switch.held("Ingress.sample") and not table._samples.indices


def test_registers_are_never_shared() -> None:
    samples = Samples(3)
    keys = [entry(n).key for n in range(6)]
    samples.adopt({keys[0]: 1, keys[1]: 1, keys[2]: 9})
    assert samples.indices == {keys[0]: 1}
    assert samples.take(10) == ([], [keys[1], keys[2]]), "of two streams on one register one goes, and so does one on no register"
    samples.want(keys[3:6])
    watch, _ = samples.take(10)
    assert {index for _, index in watch} == {0, 2} and len(watch) == 2 and not samples.waiting
    samples.drop([keys[3], keys[5]])
    assert samples.take(10) == ([], [keys[3]])
    samples.release(keys[3])
    samples.want([keys[3]])
    samples.drop([keys[3]])
    assert samples.take(10) == ([], []), "what came and went in between is never written"
    samples.want([keys[3]])
    assert len(samples.take(1)[0]) == 1


def test_losses_wrap_around() -> None:
    samples = Samples(1)
    key = entry(1).key
    assert samples.stats(key, 5, 500, 65_530).lost == 0
    assert samples.stats(key, 6, 600, 4).lost == 10
    assert samples.stats(key, 7, 700, 1).lost == 7
    assert samples.stats(key, 8, 800, None).lost is None


def test_softswitch_needs_no_samples() -> None:
    assert all("sample" not in table.name for table in schema.load().tables)
