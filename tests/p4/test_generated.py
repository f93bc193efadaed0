"""The schema as contract: what bf-p4c made of the program, held against the softswitch's schema."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Set
from typing import Any

import pytest

from shunt.net import Endpoint, FiveTuple
from tests.p4.program import GENERATED, compile_p4
from tests.softswitch import schema as softswitch_schema
from tests.tools.bfrt.proxy_hash import from_context
from tests.tools.bfrt.schema import Schema, Table
from tests.vectors.relay import COLLIDING, COLLIDING_TOO

CONFERENCES = ["conference.tofino1.bf-rt.json", "conference.tofino2.bf-rt.json"]
WITH_S_LR = "conference-lr.tofino2.bf-rt.json"
SCHEMAS = ["relay.tofino1.bf-rt.json", "relay.tofino2.bf-rt.json", "relay-counted.tofino1.bf-rt.json"]
CONTEXTS = ["hash48.tofino1.context.json", "hash48.tofino2.context.json", "hash32.tofino1.context.json"]
MANIFEST = json.loads((GENERATED / "manifest.json").read_text())


def generated(name: str) -> Schema:
    return Schema.parse((GENERATED / name).read_bytes())


SOFTSWITCH = softswitch_schema.load(fixed=False)


def test_generated_files_are_those_of_these_sources() -> None:
    assert MANIFEST["sources"] == compile_p4.source_hash(), "the P4 program has changed: run `make p4-generated`"


@pytest.mark.parametrize("name", [*SCHEMAS, *CONFERENCES, WITH_S_LR, *CONTEXTS])
def test_generated_files_are_not_edited(name: str) -> None:
    assert MANIFEST["files"][name] == hashlib.sha256((GENERATED / name).read_bytes()).hexdigest()


def test_manifest_names_every_file() -> None:
    assert set(MANIFEST["files"]) == {path.name for path in GENERATED.iterdir()} - {"manifest.json"}


def shape(table: Table) -> dict[str, Any]:
    """Names, widths and match kinds of a table's key and actions, as a writer must know them."""
    return {
        "key": [(field.name, field.width, field.match) for field in table.key],
        "actions": {action.name: [(field.name, field.width) for field in action.fields] for action in table.actions if not action.default_only},
    }


@pytest.mark.parametrize("name", SCHEMAS)
def test_tables_are_the_softswitchs(name: str) -> None:
    compiled = generated(name)
    for table in SOFTSWITCH.tables:
        assert shape(compiled.tables[table.name]) == shape(table), table.name


REPLICATION = [table for table in softswitch_schema.load(conferences=True, fixed=False).tables if SOFTSWITCH.tables.find(table.name) is None and table.name.startswith("pipe.")]
# What of replication a switch has not got: the control plane looks (docs/replication.md).
LEFT_OUT = {**dict.fromkeys(CONFERENCES, {"track", "switches", "payload_types"}), WITH_S_LR: {"cadence", "payload_types"}}


def test_replication_has_four_tables() -> None:
    assert {table.name for table in REPLICATION} == {"pipe.Ingress.conference", "pipe.Ingress.conference6", "pipe.Ingress.layer", "pipe.Egress.copy"}


@pytest.mark.parametrize("table", REPLICATION, ids=lambda table: table.name)
@pytest.mark.parametrize("name", LEFT_OUT)
def test_tables_of_replication_are_the_softswitchs(name: str, table: Table) -> None:
    compiled, wanted = generated(name).tables[table.name], shape(table)
    wanted["actions"] = {action: [field for field in fields if field[0] not in LEFT_OUT[name]] for action, fields in wanted["actions"].items()}
    assert shape(compiled) == wanted
    assert {field.name for field in compiled.data} == (set() if table.name.endswith(".layer") else {"$COUNTER_SPEC_PKTS", "$COUNTER_SPEC_BYTES"})
    check_ids(compiled, table, LEFT_OUT[name])


def check_ids(compiled: Table, served: Table, left_out: Set[str] = frozenset()) -> None:
    assert compiled.id == served.id
    for action in served.actions:
        if action.default_only:
            continue
        assert compiled.actions[action.name].id == action.id
        for field in action.fields:
            assert field.name in left_out or compiled.actions[action.name].fields[field.name].id == field.id
    for field in served.key:
        assert compiled.key[field.name].id == field.id


@pytest.mark.parametrize("name", CONFERENCES)
def test_words_of_sequence_numbers_are_there(name: str) -> None:
    """A row of zeros is a receiver that has got nothing: the control plane writes it."""
    tables = generated(name).tables
    for word, width in (("high", 32), ("frame", 32), ("offset", 16), ("open", 8)):
        value = next(iter(tables[f"pipe.Egress.{word}"].data))
        assert (value.name, value.width) == (f"Egress.{word}.f1", width)


def test_words_of_tracks_are_there() -> None:
    """A row of zeros is a stream, or a receiver, of which nothing has come: the control plane writes it."""
    tables = generated(WITH_S_LR).tables
    tracks, slots = "Ingress.pipeline.conference.tracks.", 16
    words = {"high": 32, "high_of_upper": 32, "frame": 32, "used": 16}
    words |= {f"{target}.{word}": width for target in ("lower", "upper") for word, width in (("cadence", 8), ("offset", 16), ("floor", 16), ("used", 16))}
    rows = tables[f"pipe.{tracks}high"].size
    for word, width in words.items():
        found = tables[f"pipe.{tracks}{word}"]
        assert next(iter(found.data)).width == width and found.size == (rows * slots if word.endswith("used") else rows)
    for word, width in (("target", 8), ("base", 16), ("floor", 16)):
        assert next(iter(tables[f"pipe.Egress.{word}"].data)).width == width


@pytest.mark.parametrize("name", SCHEMAS)
def test_ids_are_the_softswitchs(name: str) -> None:
    compiled = generated(name)
    for table in SOFTSWITCH.tables:
        check_ids(compiled.tables[table.name], table)


@pytest.mark.parametrize("name", [*SCHEMAS, *CONFERENCES, WITH_S_LR])
def test_digests_are_the_softswitchs(name: str) -> None:
    compiled = generated(name)
    for learn in SOFTSWITCH.learns:
        found = compiled.learns[learn.name]
        assert [(field.id, field.name, field.width) for field in found.fields] == [(field.id, field.name, field.width) for field in learn.fields]


@pytest.mark.parametrize("table", ["pipe.Ingress.relay", "pipe.Ingress.relay6"])
def test_all_entries_age_and_the_counted_build_counts(table: str) -> None:
    wanted = {field.name for field in SOFTSWITCH.tables[table].data}
    counters = {name for name in wanted if name.startswith("$COUNTER")}
    assert counters and wanted - counters
    assert {field.name for field in generated("relay-counted.tofino1.bf-rt.json").tables[table].data} >= wanted
    plain = {field.name for field in generated("relay.tofino1.bf-rt.json").tables[table].data}
    assert plain >= wanted - counters and not plain & counters


@pytest.mark.parametrize("name", CONTEXTS)
def test_every_bit_of_the_hash_counts(name: str) -> None:
    """One function for a table in however many stages, and as many independent bits as it is wide."""
    hashes = from_context((GENERATED / name).read_bytes())
    bits = int(name[4:6])
    assert {key.rpartition(".")[2]: value[0].size for key, value in hashes.items()} == {"relay": 12, "relay6": 36}
    for found in hashes.values():
        assert len(found) == 1
        assert found[0].bits == len(found[0].rows()) == bits


def test_collisions_are_found_by_the_compilers_own_function() -> None:
    """Two 5-tuples with one CRC-32 share the 32-bit hash of the compiled program, and not the 48-bit one."""
    short = next(value[0] for name, value in from_context((GENERATED / "hash32.tofino1.context.json").read_bytes()).items() if name.endswith("relay"))
    long = next(value[0] for name, value in from_context((GENERATED / "hash48.tofino1.context.json").read_bytes()).items() if name.endswith("relay"))
    assert short.of(COLLIDING.key) == short.of(COLLIDING_TOO.key)
    assert long.of(COLLIDING.key) != long.of(COLLIDING_TOO.key)
    other = FiveTuple(Endpoint.of("10.1.0.9", 1), COLLIDING.key.dst)
    assert short.of(other) != short.of(COLLIDING.key)
    packed = [key.src.addr + key.dst.addr + key.src.port.to_bytes(2, "big") + key.dst.port.to_bytes(2, "big") for key in (COLLIDING.key, COLLIDING_TOO.key)]
    assert zlib.crc32(packed[0]) == zlib.crc32(packed[1])
