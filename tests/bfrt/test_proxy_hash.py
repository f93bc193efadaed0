"""The hash of hashed builds: by its definition, by the compiler's bit-by-bit form, and what the agent takes a target for."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunt.bfrt.proxy_hash import HASH32, HASH48, Crc, HashError, LinearHash, distinct, from_context
from shunt.bfrt.schema import Schema, SchemaError
from shunt.net import Endpoint, FiveTuple
from shunt.tables.target import Plan
from tests.softswitch.schema import document, load

SIZES = {4: 12, 16: 36}
GENERATED = Path(__file__).parents[2] / "p4" / "generated"


def key_bytes(key: FiveTuple) -> bytes:
    return key.src.addr + key.dst.addr + key.src.port.to_bytes(2, "big") + key.dst.port.to_bytes(2, "big")


def some_key(rng: random.Random, size: int = 4) -> FiveTuple:
    return FiveTuple(Endpoint(rng.randbytes(size), rng.randrange(65536)), Endpoint(rng.randbytes(size), rng.randrange(65536)))


def colliding(hash_: LinearHash, key: FiveTuple, *, free: Sequence[int] | None = None) -> list[FiveTuple]:
    """Other 5-tuples with the hash of `key` that differ from it in the given bits only (default: source address and port)."""
    size = len(key.src.addr)
    if free is None:
        free = [*range(8 * size), *range(16 * size, 16 * size + 16)]
    # Gauss: combinations of free bits whose columns cancel out.
    basis: dict[int, tuple[int, int]] = {}
    found = []
    for bit in free:
        column, mask = hash_.columns[bit], 1 << 8 * hash_.size - 1 - bit
        while column and (top := column.bit_length()) in basis:
            column, mask = column ^ basis[top][0], mask ^ basis[top][1]
        if column:
            basis[column.bit_length()] = (column, mask)
        else:
            found.append(mask)
    original = int.from_bytes(key_bytes(key), "big")
    keys = []
    for mask in found:
        raw = (original ^ mask).to_bytes(hash_.size, "big")
        src, dst, ports = raw[:size], raw[size : 2 * size], raw[2 * size :]
        keys.append(FiveTuple(Endpoint(src, int.from_bytes(ports[:2], "big")), Endpoint(dst, int.from_bytes(ports[2:], "big"))))
    return keys


def context(crc: Crc, size: int, *, name: str = "Ingress.relay", places: Sequence[int] | None = None, stages: int = 3, header: str = "hdr.ipv4") -> dict[str, Any]:
    """A context.json as the compiler writes it, reduced to what says how a table stores its key.

    Each matrix bit is found by hashing a key with one bit set, as the compiler does. places: the bits of the
    hash unit (52 wide) that hold the hash.
    """
    places = list(range(crc.bits)) if places is None else places
    names = [f"{header}.src_addr", f"{header}.dst_addr", "hdr.udp.src_port", "hdr.udp.dst_port"]
    widths = [8 * size, 8 * size, 16, 16]
    length, seed = SIZES[size], crc.of(bytes(SIZES[size]))
    sources: list[list[dict[str, Any]]] = [[] for _ in range(crc.bits)]
    lowest = 8 * length
    for field, width in zip(names, widths):
        lowest -= width
        for bit in range(width):
            column = crc.of((1 << lowest + bit).to_bytes(length, "big")) ^ seed
            for place in range(crc.bits):
                if column >> place & 1:
                    sources[place].append({"field_bit": bit, "field_name": field, "global_name": field, "hash_match_group": 0, "hash_match_group_bit": 0})
    bits = [{"hash_bit": places[n], "seed": seed >> n & 1, "bits_to_xor": sources[n]} for n in range(crc.bits)]
    random.Random(1).shuffle(bits)
    stage = {
        "stage_table_type": "proxy_hash_match", "proxy_hash_bit_width": crc.bits, "proxy_hash_algorithm": "crc",
        "proxy_hash_function": {"hash_bits": bits, "hash_function_number": 0, "ghost_bit_info": []},
    }  # fmt: skip
    fields = [{"name": field, "bit_width": width, "match_type": "exact", "position": n} for n, (field, width) in enumerate(zip(names, widths))]
    relay = {"name": name, "table_type": "match", "match_key_fields": fields, "match_attributes": {"match_type": "exact", "stage_tables": [stage] * stages}}
    other = {"name": "Ingress.route", "table_type": "match", "match_key_fields": fields[1:2], "match_attributes": {"stage_tables": [{"stage_table_type": "hash_match"}]}}
    return {"tables": [other, relay, {"name": "Ingress.relay.learn", "table_type": "action_data"}]}


def test_definitions_are_the_known_crcs() -> None:
    """The check values of the CRC catalogue (CRC-32, CRC-64/ECMA-182, CRC-64/XZ), and zlib."""
    assert HASH32.of(b"123456789") == 0xCBF43926 == zlib.crc32(b"123456789")
    assert Crc(64, 64, 0x42F0E1EBA9EA3693, False, 0, 0).of(b"123456789") == 0x6C40DF5F0B497347
    assert Crc(64, 64, 0x42F0E1EBA9EA3693, True, 2**64 - 1, 2**64 - 1).of(b"123456789") == 0x995DC9BBDF1939FA


@pytest.mark.parametrize("size", [12, 36])
@pytest.mark.parametrize(("crc", "chips"), [(HASH32, ["tofino1"]), (HASH48, ["tofino1", "tofino2"])], ids=["hash32", "hash48"])
def test_hashes_known_without_a_context_are_the_compiled_programs(crc: Crc, chips: list[str], size: int) -> None:
    """Every bit of the matrix and of the seed, as bf-p4c gave them to the driver."""
    built_in = LinearHash.of_crc(crc, size)
    for chip in chips:
        compiled = from_context((GENERATED / f"hash{crc.bits}.{chip}.context.json").read_bytes())["Ingress.relay" if size == 12 else "Ingress.relay6"]
        assert [(hash_.bits, hash_.seed, hash_.columns) for hash_ in compiled] == [(built_in.bits, built_in.seed, built_in.columns)]


@lru_cache
def matrix(crc: Crc, size: int) -> LinearHash:
    return LinearHash.of_crc(crc, size)


@settings(deadline=None)
@given(st.binary(min_size=12, max_size=12), st.binary(min_size=36, max_size=36))
def test_the_matrix_is_the_crc(short: bytes, long: bytes) -> None:
    for crc in (HASH32, HASH48, Crc(40, 64, 0xAD93D23594C935A9, True, 2**64 - 1, 5)):
        assert matrix(crc, 12).of_bytes(short) == crc.of(short)
        assert matrix(crc, 36).of_bytes(long) == crc.of(long)


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize("crc", [HASH32, HASH48])
@pytest.mark.parametrize("first", [0, 4])
def test_the_compilers_bit_by_bit_form_is_the_same_function(size: int, crc: Crc, first: int) -> None:
    """Whichever bits of the hash unit the compiler took, and whatever else the file holds."""
    places = [*range(first, first + crc.bits - 10), *range(52 - 10, 52)] if first + crc.bits <= 42 else range(first, first + crc.bits)
    if places[-1] >= 52:
        places = range(52 - crc.bits, 52)
    found = from_context(json.dumps(context(crc, size, places=places)))
    assert set(found) == {"Ingress.relay"}
    (hash_,) = found["Ingress.relay"]
    rng = random.Random(7)
    for _ in range(200):
        key = some_key(rng, size)
        assert hash_.of(key) == hash_.of_bytes(key_bytes(key)) == crc.of(key_bytes(key))
    assert hash_.rows() == LinearHash.of_crc(crc, SIZES[size]).rows()


def test_a_table_that_stores_its_keys_has_no_hash() -> None:
    document = context(HASH32, 4)
    document["tables"][1]["match_attributes"]["stage_tables"] = [{"stage_table_type": "hash_match"}]
    assert from_context(json.dumps(document)) == {"Ingress.relay": ()}


def test_stages_with_hashes_of_their_own_are_all_kept() -> None:
    document = context(HASH32, 4)
    stages = document["tables"][1]["match_attributes"]["stage_tables"]
    stages.append(context(HASH48, 4)["tables"][1]["match_attributes"]["stage_tables"][0])
    assert [hash_.bits for hash_ in from_context(json.dumps(document))["Ingress.relay"]] == [32, 48]


def test_equal_rows_are_equal_collisions() -> None:
    """Seeds and the order of bits make no difference to which keys collide, and rows() says so."""
    rng = random.Random(3)
    one = LinearHash.of_crc(HASH32, 12)
    order = list(range(32))
    rng.shuffle(order)
    mixed = LinearHash(32, 5, [sum((column >> place & 1) << n for n, place in enumerate(order)) for column in one.columns])
    # A bit of the result may also be the sum of others.
    summed = LinearHash(32, 0, [column ^ (column >> 1 & 1) for column in one.columns])
    other = LinearHash.of_crc(Crc(32, 32, 0x1EDC6F41, True, 0, 0), 12)
    assert one.rows() == mixed.rows() == summed.rows() != other.rows()
    assert len(distinct([one, mixed, other, summed])) == 2


@pytest.mark.parametrize(("crc", "size"), [(HASH32, 4), (HASH48, 4), (HASH32, 16), (HASH48, 16)])
def test_collisions_can_be_made(crc: Crc, size: int) -> None:
    hash_ = LinearHash.of_crc(crc, SIZES[size])
    free = None if crc is HASH32 or size == 16 else range(96)
    for seed in range(20):
        key = some_key(random.Random(seed), size)
        others = colliding(hash_, key, free=free)
        assert len(set(others)) >= 10
        for other in others:
            assert other != key and crc.of(key_bytes(other)) == crc.of(key_bytes(key))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.pop("tables"), "tables"),
        (lambda d: d["tables"][1]["match_attributes"]["stage_tables"][0].pop("proxy_hash_function"), "proxy_hash_function"),
        (lambda d: d["tables"][1]["match_attributes"]["stage_tables"][0]["proxy_hash_function"]["hash_bits"].pop(), "31 are given"),
        (lambda d: d["tables"][1]["match_attributes"]["stage_tables"][0]["proxy_hash_function"].update(hash_bits=[]), "0 are given"),
        (lambda d: d["tables"][1]["match_attributes"]["stage_tables"][0]["proxy_hash_function"]["hash_bits"][0]["bits_to_xor"][0].update(field_name="md.vrf"), "md.vrf"),
        (lambda d: d.update(tables=7), "TypeError"),
    ],
)
def test_a_context_that_cannot_be_understood_says_what(change: Any, reason: str) -> None:
    document = json.loads(json.dumps(context(HASH32, 4)))
    change(document)
    with pytest.raises(HashError, match=reason):
        from_context(json.dumps(document))
    with pytest.raises(SchemaError, match="context.json"):
        load().with_contexts([json.dumps(document).encode()])


def test_no_json() -> None:
    with pytest.raises(HashError, match="context.json"):
        from_context(b"{")


def switch_schema() -> Schema:
    """The tables of a switch: the softswitch's own are not among them."""
    served = {"tables": [table for table in document("relay")["tables"] if not table["name"].startswith("softswitch.")]}
    return Schema.parse(json.dumps(served))


def bits(schema: Schema, setting: str) -> dict[int, list[int]]:
    return {size: [hash_.bits for hash_ in hashes] for size, hashes in Plan(schema, setting).hashes.items()}


def test_the_softswitch_compares_whole_keys() -> None:
    assert bits(load(), "auto") == {4: [], 16: []}
    # Where the operator says otherwise, the operator is believed.
    assert bits(load(), "hash32") == {4: [32], 16: [32]}


def test_a_switch_that_says_how_it_stores_keys_is_believed() -> None:
    told = switch_schema().with_contexts([json.dumps(context(HASH48, 4)).encode(), json.dumps(context(HASH48, 16, name="Ingress.relay6", header="hdr.ipv6")).encode()])
    assert bits(told, "auto") == bits(told, "hash48") == bits(told, "none") == {4: [48], 16: [48]}
    # What is configured comes on top: a wrong setting must not switch the check off.
    assert bits(told, "hash32") == {4: [48, 32], 16: [48, 32]}
    exact = context(HASH48, 4)
    exact["tables"][1]["match_attributes"]["stage_tables"] = [{"stage_table_type": "hash_match"}]
    told = switch_schema().with_contexts([json.dumps(exact).encode()])
    assert Plan(told, "auto").hashes[4] == ()


def test_a_switch_that_says_nothing_may_be_any_build() -> None:
    assert bits(switch_schema(), "auto") == {4: [32, 48], 16: [32, 48]}
    assert bits(switch_schema(), "none") == {4: [], 16: []}
