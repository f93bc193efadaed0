"""The softswitch's schema, and the reader of any target's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shunt.bfrt.schema import Schema, SchemaError
from shunt_softswitch import schema

DOCS = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
SERVED = schema.load(1_234)
PROGRAM = json.loads(SERVED.program_json)


def one_at_a_time(name: str) -> int:
    """Bob Jenkins's one-at-a-time hash, from which bf-p4c makes the low 24 bits of its ids."""
    value = 0
    for byte in name.encode():
        value = (value + byte) & 0xFFFFFFFF
        value = (value + (value << 10)) & 0xFFFFFFFF
        value ^= value >> 6
    value = (value + (value << 3)) & 0xFFFFFFFF
    value ^= value >> 11
    return (value + (value << 15)) & 0xFFFFFF


def test_ids_are_those_that_bf_p4c_gives() -> None:
    for table in PROGRAM["tables"]:
        assert table["id"] == 0x02000000 | one_at_a_time(table["name"])
        for action in table["action_specs"]:
            assert action["id"] == 0x01000000 | one_at_a_time(action["name"])
            assert [field["id"] for field in action["data"]] == list(range(1, len(action["data"]) + 1))


def test_tables_are_those_of_the_architecture() -> None:
    """docs/architecture.md names every table, key, action and parameter with its width."""
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| `pipe.")]
    assert len(rows) == 4
    for row in rows:
        name, key, actions = (cell.strip() for cell in row.strip("|").split("|"))
        table = SERVED.schema.tables[name.strip("`")]
        for field, width in re.findall(r"`([\w.]+)`:(\d+)", key):
            assert table.key[field].width == int(width)
        for action, parameters in re.findall(r"`(Ingress\.\w+)`\(([^)]*)\)", actions):
            found = table.actions[action]
            widths = re.findall(r"`(\w+)`:(\d+)", parameters)
            if widths:
                assert [(field.name, str(field.width)) for field in found.fields] == widths


def test_sizes_follow_the_capacity() -> None:
    tables = SERVED.schema.tables
    assert {tables[name].size for name in ("pipe.Ingress.relay", "pipe.Ingress.relay6", "softswitch.quality")} == {1_234}


def test_names_may_be_any_unique_suffix() -> None:
    tables = SERVED.schema.tables
    assert tables["relay"] is tables["Ingress.relay"] is tables["pipe.Ingress.relay"]
    assert tables.find("gress.relay") is None
    with pytest.raises(SchemaError, match="there is no 'nothing'"):
        tables["nothing"]


def document(*names: str) -> str:
    tables = [{"name": name, "id": n, "table_type": "X", "size": 1, "key": [], "data": []} for n, name in enumerate(names)]
    return json.dumps({"tables": tables})


def test_ambiguous_suffixes() -> None:
    tables = Schema.parse(document("a.relay", "b.relay")).tables
    with pytest.raises(SchemaError, match=r"any of a\.relay, b\.relay"):
        tables["relay"]
    assert tables["a.relay"].id == 0
    # A full name wins over longer ones that end in it.
    assert Schema.parse(document("pipe.relay", "relay")).tables["relay"].id == 1


@pytest.mark.parametrize("text", [b"", b"\xff", b"[]", b"{}", b'{"tables": [{}]}', b'{"tables": 3}', b'{"tables": [{"name": 1}]}', document("a", "b").replace('"id": 1', '"id": 0').encode()])
def test_bad_documents_are_refused(text: bytes) -> None:
    with pytest.raises(SchemaError):
        Schema.parse(text)


def test_all_forms_of_fields_are_read() -> None:
    text = json.dumps(
        {
            "tables": [
                {
                    "name": "t", "id": 1, "table_type": "X", "size": 1,
                    "key": [{"id": 1, "name": "k", "match_type": "ATCAM", "type": {"type": "bytes", "width": 9}}],
                    "data": [
                        {"mandatory": True, "read_only": True, "singleton": {"id": 1, "name": "s", "repeated": False, "type": {"type": "uint16"}}},
                        {"mandatory": True, "read_only": False, "oneof": [{"id": 2, "name": "m", "repeated": False, "type": {"type": "uint32"}}, {"id": 3, "name": "g", "repeated": False, "type": {"type": "bool"}}]},
                        {"mandatory": False, "read_only": False, "singleton": {"id": 4, "name": "c", "repeated": True, "container": []}},
                    ],
                }
            ]
        }
    )  # fmt: skip
    table = Schema.parse(text).tables["t"]
    key = table.key["k"]
    assert (key.match, key.size, key.limit) == ("Exact", 2, 512)
    assert [(f.name, f.type, f.size, f.read_only) for f in table.data] == [("s", "uint16", 2, True), ("m", "uint32", 4, False), ("g", "bool", None, False), ("c", "container", None, False)]
