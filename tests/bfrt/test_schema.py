"""The softswitch's schema, and the reader of any target's."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.softswitch.process import Softswitch
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.bfrt._pb import bfruntime_pb2_grpc
from tests.tools.bfrt.schema import Schema, SchemaError

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "reference" / "schema.md"


@dataclass(frozen=True)
class Documents:
    """What a softswitch hands out."""

    program: dict[str, Any]
    fixed: dict[str, Any]

    @property
    def schema(self) -> Schema:
        return Schema.parse(json.dumps(self.program), json.dumps(self.fixed))


def handed_out(**settings: int) -> Documents:
    with Softswitch(**settings) as softswitch, grpc.insecure_channel(softswitch.target, [("grpc.default_authority", "localhost")]) as channel:  # type: ignore[arg-type]
        reply = bfruntime_pb2_grpc.BfRuntimeStub(channel).GetForwardingPipelineConfig(pb.GetForwardingPipelineConfigRequest(), timeout=60)
        softswitch.stop()
    return Documents(json.loads(reply.config[0].bfruntime_info), json.loads(reply.non_p4_config.bfruntime_info))


@pytest.fixture(scope="module")
def served() -> Iterator[Documents]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    yield handed_out(capacity=1_234)


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


def test_ids_are_those_that_bf_p4c_gives(served: Documents) -> None:
    for table in served.program["tables"]:
        assert table["id"] == 0x02000000 | one_at_a_time(table["name"])
        for action in table["action_specs"]:
            assert action["id"] == 0x01000000 | one_at_a_time(action["name"])
            assert [field["id"] for field in action["data"]] == list(range(1, len(action["data"]) + 1))


def test_tables_are_those_of_the_page(served: Documents) -> None:
    """docs/reference/schema.md names every table, key, action and parameter with its width."""
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| `pipe.Ingress.")]
    assert len(rows) == 4
    for row in rows:
        name, key, actions = (cell.strip() for cell in row.strip("|").split("|"))
        table = served.schema.tables[name.strip("`")]
        for field, width in re.findall(r"`([\w.]+)`:(\d+)", key):
            assert table.key[field].width == int(width)
        for action, parameters in re.findall(r"`(Ingress\.\w+)`\(([^)]*)\)", actions):
            found = table.actions[action]
            widths = re.findall(r"`(\w+)`:(\d+)", parameters)
            if widths:
                assert [(field.name, str(field.width)) for field in found.fields] == widths


def test_the_page_has_the_tables_of_the_softswitch() -> None:
    """docs/reference/schema.md names every table of its own, and every field of these."""
    page = DOCS.read_text()
    for table in json.loads((ROOT / "softswitch/schema/fixed.json").read_text())["tables"]:
        if not table["name"].startswith("softswitch."):
            continue
        assert f"`{table['name']}`" in page, table["name"]
        for field in table["data"]:
            name = field.get("singleton", field)["name"]
            assert f"`{name}`" in page, f"{table['name']}: {name}"


def test_sizes_follow_the_capacity(served: Documents) -> None:
    tables = served.schema.tables
    assert {tables[name].size for name in ("pipe.Ingress.relay", "pipe.Ingress.relay6", "softswitch.quality")} == {1_234}


def without_sizes(document: dict[str, Any]) -> dict[str, Any]:
    """The tables and learn filters of a document; the sizes are the configuration's."""
    return {"tables": [{**table, "size": 0} for table in document["tables"]], "learn_filters": document.get("learn_filters", [])}


def of_files(*names: str) -> dict[str, Any]:
    """What the schema files of these names say together."""
    parts = [without_sizes(json.loads((ROOT / "softswitch/schema" / f"{name}.json").read_text())) for name in names]
    return {part: [item for document in parts for item in document[part]] for part in ("tables", "learn_filters")}


def test_all_else_is_as_in_the_schema_files(served: Documents) -> None:
    """Which is what other tests read without a process."""
    assert without_sizes(served.program) == of_files("relay") and without_sizes(served.fixed) == of_files("fixed")
    with_conferences = handed_out(capacity=1_234, conference_copies=100)
    assert without_sizes(with_conferences.program) == of_files("relay", "conference") and without_sizes(with_conferences.fixed) == of_files("fixed")


def test_names_may_be_any_unique_suffix(served: Documents) -> None:
    tables = served.schema.tables
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
