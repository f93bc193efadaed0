"""Two 5-tuples of one hash: the second stays on the relay, says why, and gets its entry when the first has gone."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from shunt.bfrt.proxy_hash import HASH32, HASH48, Crc, LinearHash
from shunt.bfrt.client import BfrtUnavailable
from shunt.net import Endpoint, FiveTuple
from shunt.tables import collisions as collisions_module
from shunt.tables import doubt, relay_table
from shunt.tables.collisions import EXPECTED_FOR, Collisions
from shunt.tables.entry import Outcome, RelayEntry
from tests.bfrt.conftest import Served, other
from tests.bfrt.test_proxy_hash import SIZES, colliding, context, some_key
from tests.bfrt.test_relay_table import OtherSchema, connected, entry, reduced_schema, until


def entry_of(key: FiveTuple) -> RelayEntry:
    return RelayEntry(key, Endpoint(key.dst.addr, 9_000), Endpoint(bytes(len(key.dst.addr) - 1) + b"\x07", 5_000))


def pair(crc: Crc = HASH32, size: int = 4, seed: int = 1) -> tuple[RelayEntry, RelayEntry]:
    """Two entries of one hash."""
    key = some_key(random.Random(seed), size)
    return entry_of(key), entry_of(colliding(LinearHash.of_crc(crc, SIZES[size]), key, free=range(16 * size + 32))[0])


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize(("setting", "crc"), [("hash32", HASH32), ("hash48", HASH48)])
async def test_the_second_of_two_stays_out_until_the_first_has_gone(served: Served, setting: str, crc: Crc, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collisions_module, "EXPECTED_FOR", 0.0)
    first, second = pair(crc, size)
    async with connected(served.target, stored_hash=setting) as table:
        assert (await table.insert(first)).outcome is Outcome.INSTALLED
        result = await table.insert(second)
        assert result.outcome is Outcome.HASH_COLLISION and not result.ok
        assert str(first.key) in result.detail and f"{crc.bits}-bit hash" in result.detail
        assert (await table.place((), [second]))[0].outcome is Outcome.HASH_COLLISION
        assert set(served.table) == {first.key} and table.counters.collisions == 2
        # What it has it may change.
        assert (await table.place((), [replace(first, dst=first.dst._replace(port=1))]))[0].ok and (await table.insert(first)).ok
        assert (await table.delete(second.key))[0].outcome is Outcome.ABSENT
        assert (await table.insert(second)).outcome is Outcome.HASH_COLLISION
        assert (await table.delete(first.key))[0].outcome is Outcome.REMOVED
        assert (await table.insert(second)).outcome is Outcome.INSTALLED
        assert (await table.insert(first)).outcome is Outcome.HASH_COLLISION
        assert set(served.table) == {second.key}


async def test_in_one_batch(served: Served) -> None:
    pairs = [pair(seed=seed) for seed in range(50)]
    async with connected(served.target, stored_hash="hash32") as table:
        results = await table.insert_many([e for both in pairs for e in both])
        assert [result.outcome for result in results] == [Outcome.INSTALLED, Outcome.HASH_COLLISION] * 50
        assert set(served.table) == {first.key for first, _ in pairs}


async def test_without_hashes_there_are_no_collisions(served: Served) -> None:
    async with connected(served.target) as table:
        assert [r.outcome for r in await table.insert_many(pair())] == [Outcome.INSTALLED] * 2


async def test_ipv4_and_ipv6_have_hashes_of_their_own(served: Served) -> None:
    """The same value in both tables is no collision."""
    four = LinearHash.of_crc(HASH32, 12)
    key4, key6 = some_key(random.Random(1)), some_key(random.Random(2), 16)
    six = LinearHash.of_crc(HASH32, 36)
    # An IPv6 key of the same hash value: one free bit for each bit of difference.
    wanted = four.of(key4) ^ six.of(key6)
    basis: dict[int, tuple[int, int]] = {}
    mask = 0
    for bit in range(288):
        column, combination = six.columns[bit], 1 << 287 - bit
        while column and column.bit_length() in basis:
            other = basis[column.bit_length()]
            column, combination = column ^ other[0], combination ^ other[1]
        if column:
            basis[column.bit_length()] = (column, combination)
    while wanted:
        other = basis[wanted.bit_length()]
        wanted, mask = wanted ^ other[0], mask ^ other[1]
    raw = (int.from_bytes(key6.src.addr + key6.dst.addr + key6.src.port.to_bytes(2, "big") + key6.dst.port.to_bytes(2, "big"), "big") ^ mask).to_bytes(36, "big")
    key6 = FiveTuple(Endpoint(raw[:16], int.from_bytes(raw[32:34], "big")), Endpoint(raw[16:32], int.from_bytes(raw[34:], "big")))
    assert four.of(key4) == six.of(key6)
    async with connected(served.target, stored_hash="hash32") as table:
        assert [r.outcome for r in await table.insert_many([entry_of(key4), entry_of(key6)])] == [Outcome.INSTALLED] * 2


async def test_an_entry_that_was_refused_holds_no_hash(served: Served) -> None:
    first, second = pair()
    async with connected(served.target, stored_hash="hash32") as table:
        assert (await table.insert(replace(first, dscp=64))).outcome is Outcome.REJECTED
        served.fill(room=0)
        assert (await table.insert(first)).outcome is Outcome.TABLE_FULL
        assert served.plane.delete([other(0).key]) == [True]
        assert (await table.insert(second)).outcome is Outcome.INSTALLED


async def test_an_entry_that_may_be_in_holds_its_hash(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what became of the first; until it is known, the second waits."""
    monkeypatch.setattr(relay_table, "_URGENT", replace(relay_table._URGENT, timeout=0.1, patience=0.3))
    monkeypatch.setattr(doubt, "LOOKS", (0.3, 0.2, 0.2))
    first, second = pair()
    hang = True
    async with connected(served.target, stored_hash="hash32") as table:
        write = table._client.write

        async def swallowed(updates: list[bytes], **options: Any) -> Any:
            if hang:
                asyncio.get_running_loop().call_later(0.5, lambda: asyncio.ensure_future(write(updates, timeout=5)))
                raise BfrtUnavailable("no answer")
            return await write(updates, **options)

        table._client.write = swallowed  # type: ignore[method-assign,assignment]
        assert (await table.insert(first)).outcome is Outcome.UNAVAILABLE
        hang = False
        assert (await table.insert(second)).outcome is Outcome.HASH_COLLISION
        await until(lambda: first.key in served.table)
        assert (await table.insert(second)).outcome is Outcome.HASH_COLLISION
        await until(lambda: not served.table and not len(table.doubts))
        assert (await table.insert(second)).outcome is Outcome.INSTALLED


async def test_a_restarted_agent_knows_what_is_in(served: Served) -> None:
    first, second = pair()
    served.plane.insert([first])
    async with connected(served.target, stored_hash="hash32") as table:
        assert set(await table.entries()) == {first.key}
        assert (await table.insert(second)).outcome is Outcome.HASH_COLLISION
        served.plane.delete([first.key])  # by somebody else
        assert await table.entries() == {}
        assert (await table.insert(second)).outcome is Outcome.INSTALLED


async def test_of_two_that_are_in_one_is_taken_out(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """An agent that knew nothing of hashes has left both; the chip would send one's packets the other's way."""
    first, second = pair()
    served.plane.insert([first, entry(1), second])
    async with connected(served.target, stored_hash="hash32") as table:
        kept = set(await table.entries())
        assert kept in ({first.key, entry(1).key}, {second.key, entry(1).key})
        await until(lambda: set(served.table) == kept)
        assert "the same hash" in caplog.text
        assert (await table.insert(second if first.key in kept else first)).outcome is Outcome.HASH_COLLISION


async def test_the_target_says_that_it_stores_hashes(served: Served) -> None:
    """As bf_switchd does, by handing the compiler's context.json out."""
    first, second = pair(HASH48)
    documents = [json.dumps(context(HASH48, 4)).encode(), json.dumps(context(HASH48, 16, name="Ingress.relay6", header="hdr.ipv6")).encode()]

    def only_a_switchs(document: dict[str, list[dict[str, Any]]]) -> None:
        document["tables"] = [table for table in document["tables"] if not table["name"].startswith("softswitch.")]

    way = OtherSchema(served.target, reduced_schema(only_a_switchs), contexts=tuple(documents))
    async with way.serve() as target, connected(target) as table:
        assert table.data_plane == "BF Runtime target (5-tuples taken as 48-bit hashes)"
        assert [r.outcome for r in await table.insert_many([first, second])] == [Outcome.INSTALLED, Outcome.HASH_COLLISION]
        assert set(served.table) == {first.key}


def test_a_table_whose_stages_hash_differently_heeds_them_all() -> None:
    hashes = (LinearHash.of_crc(HASH32, 12), LinearHash.of_crc(HASH48, 12))
    collisions = Collisions(hashes)
    first = some_key(random.Random(1))
    assert collisions.claim(first, 0) is None and collisions.claim(first, 0) is None and len(collisions) == 1
    for hash_ in hashes:
        assert all(collisions.claim(other, 0) == first for other in colliding(hash_, first, free=range(96)))
    assert collisions.keys() == [first]
    collisions.release(some_key(random.Random(2)))
    assert len(collisions) == 1
    collisions.release(first)
    assert len(collisions) == 0 and collisions.keys() == []


def test_a_5_tuple_in_use_keeps_others_of_its_hash_out_for_a_while() -> None:
    hash_ = LinearHash.of_crc(HASH32, 12)
    collisions = Collisions([hash_])
    first = some_key(random.Random(1))
    second, third = colliding(hash_, first)[:2]
    assert collisions.expect(first, 100) is None
    assert collisions.claim(first, 100) is None, "its own announcement does not keep a 5-tuple out"
    assert collisions.expect(second, 101) == first
    collisions.release(first)
    assert collisions.claim(first, 102) == second
    assert collisions.claim(second, 103) == first, "neither of them, as long as both are in use"
    assert collisions.claim(third, 104) in (first, second)
    # first and second come no more; third has it when that is believed.
    assert collisions.claim(third, 103 + EXPECTED_FOR) is None
    collisions.release(third)
    for number in range(1000):
        collisions.expect(some_key(random.Random(number)), 200)
    collisions.expect(first, 200 + 2 * EXPECTED_FOR)
    assert sum(map(len, collisions._expected)) == 1, "announcements that have run out are forgotten"


async def test_an_entry_is_told_of_whose_packets_another_would_take(served: Served) -> None:
    first, second = pair()
    told: list[tuple[FiveTuple, FiveTuple]] = []
    async with connected(served.target, stored_hash="hash32") as table:
        assert table.stores_hashes
        table.on_collision = lambda key, holder: told.append((key, holder))
        await table.insert(first)
        table.expect(second.key)
        table.expect(first.key)
        assert told == [(second.key, first.key)]
        await table.insert(second)
        assert told == [(second.key, first.key)] * 2
        await table.delete(first.key)
        assert (await table.insert(first)).outcome is Outcome.HASH_COLLISION, "the other one is in use"
        table.expect(some_key(random.Random(9), 16))
    async with connected(served.target) as table:
        assert not table.stores_hashes
        table.expect(second.key)
