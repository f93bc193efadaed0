"""The vectors, run through a Tofino, model or hardware, where P4 Studio is; and what fills its tables, everywhere."""

from __future__ import annotations

import json
import os

import pytest

from tests.p4 import tofino
from tests.p4.program import GENERATED
from tests.softswitch import schema as softswitch_schema
from tests.tools.bfrt.schema import Schema
from tests.vectors import replication
from tests.vectors.model import TO_SERVER, Port, routed, expected
from tests.vectors.relay import COLLIDING_TOO, SWITCH_ENTRIES, VECTORS

PORTS = {port: int(port) + 128 for port in Port}


def test_ports_are_read() -> None:
    text = "A=128@veth1 B=129@veth2 SERVER=130@veth3 CPU=192@veth64"
    assert tofino.read_ports(text)[Port.SERVER] == (130, "veth3")
    for bad in ("A=128@veth1", text.replace("128", "x"), text + " C=1@veth9", text.replace("@veth1", "")):
        with pytest.raises(ValueError):
            tofino.read_ports(bad)


@pytest.mark.parametrize("name", ["relay.tofino1.bf-rt.json", "relay.tofino2.bf-rt.json"])
def test_tables_are_filled_by_names_that_the_compiled_program_has(name: str) -> None:
    text = (GENERATED / name).read_text()
    schema = Schema.parse(text)
    tables = {table["id"]: table for table in json.loads(text)["tables"]}
    made = [*tofino.scene_entities(schema, PORTS), *(tofino.relay_entity(schema, entry) for entry in SWITCH_ENTRIES)]
    used = set()
    for item in made:
        entry = item.table_entry
        table = tables[entry.table_id]
        used.add(table["name"].rpartition(".")[2])
        kinds = {key["id"]: key["match_type"].lower() for key in table["key"]}
        assert {part.field_id: part.WhichOneof("match_type") for part in entry.key.fields} == kinds
        action = next(action for action in table["action_specs"] if action["id"] == entry.data.action_id)
        assert {item.field_id for item in entry.data.fields} == {parameter["id"] for parameter in action["data"]}
    assert used == {"relay", "relay6", "media", "media6", "route", "route6", "nexthop", "layer2"}


def test_padding_of_short_frames_is_taken_off_and_nothing_else() -> None:
    arp, long = bytes(range(42)), bytes(60)
    wanted = [(Port.CPU, arp), (Port.A, long)]
    assert tofino.unpadded([(Port.CPU, arp + bytes(18)), (Port.A, long)], wanted) == wanted
    for frames in ([(Port.CPU, arp[:-1])], [(Port.CPU, arp), (Port.A, long + b"\0")], [*wanted, (Port.B, arp)]):
        assert tofino.unpadded(frames, wanted) == frames


async def failures(tables: tofino.Tables, ports: tofino.Frames) -> list[str]:
    """What the vectors find."""
    found = []
    for vector in (vector for vector in VECTORS if not vector.exact):
        wanted = expected(vector)
        ports.send(vector.port, vector.frame)
        frames = tofino.unpadded(await ports.received(len(wanted)), wanted)
        notices = await tables.notices(vector.learn is not None)
        if frames != wanted or notices != ([] if vector.learn is None else [vector.learn]):
            found.append(f"{vector.name}: {[(port.name, frame.hex()) for port, frame in frames]} {notices}")
    return found


async def replication_failures(tables: tofino.Tables, ports: tofino.Frames) -> list[str]:
    """What the vectors of replication find."""
    found = []
    for vector in replication.VECTORS:
        wanted = [(Port.SERVER, routed(vector.frame, TO_SERVER))] if vector.passed else replication.copies(vector, vector.on_switch, Port.CPU)
        ports.send(Port.A, vector.frame)
        frames = tofino.unpadded(sorted(await ports.received(len(wanted))), wanted)
        notices = await tables.notices(0)
        if frames != wanted or notices:
            found.append(f"{vector.name}: {[(port.name, frame.hex()) for port, frame in frames]} {notices}")
    return found


# A hashed build takes one of two colliding entries at most; the vectors that need both are BMv2's and the softswitch's.
ENTRIES = [entry for entry in SWITCH_ENTRIES if entry is not COLLIDING_TOO]


@pytest.mark.parametrize("name", ["conference.tofino1.bf-rt.json", "conference.tofino2.bf-rt.json"])
def test_tables_of_replication_are_filled_by_names_that_the_compiled_program_has(name: str) -> None:
    schema = Schema.parse((GENERATED / name).read_bytes(), json.dumps(softswitch_schema.document("fixed")))
    made, modified = tofino.replication_entities(schema, PORTS)
    assert {schema.tables.by_id[item.table_entry.table_id].name for item in made} == {
        "pipe.Ingress.conference", "pipe.Ingress.conference6", "pipe.Ingress.layer", "pipe.Egress.copy", "$pre.node", "$pre.mgid", "$mirror.cfg",
    }  # fmt: skip
    for item in made:
        entry = item.table_entry
        table = schema.tables.by_id[entry.table_id]
        fields = table.actions.by_id[entry.data.action_id].fields if entry.data.action_id else table.data
        assert {part.field_id for part in entry.data.fields} <= set(fields.by_id)
        assert all(len(part.stream) == fields.by_id[part.field_id].size for part in entry.data.fields if part.WhichOneof("value") == "stream")
    ((number, port),) = [(part.table_entry.key.fields[0].exact.value, list(part.table_entry.data.fields[0].int_arr_val.val)) for part in modified[:1]]
    assert (number, port) == (b"\0\1", [PORTS[Port.A]])


@pytest.mark.parametrize("what", ["relay", "replication"])
async def test_vectors(what: str) -> None:
    reason = tofino.missing()
    if reason:
        pytest.skip(reason)
    ports = tofino.read_ports(os.environ["SHUNT_PTF_PORTS"])
    with tofino.ptf({port: interface for port, (_, interface) in ports.items()}) as frames:
        async with tofino.filled(os.environ["SHUNT_PTF_TARGET"], {port: number for port, (number, _) in ports.items()}, ENTRIES, conferences=True) as tables:
            if what == "relay":
                assert await failures(tables, frames) == []
                return
            if tables.schema.tables.find("Egress.copy") is None:
                pytest.skip("the program on the switch has no conferences")
            assert await replication_failures(tables, frames) == []
