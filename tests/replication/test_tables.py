"""The tables of replication over BF Runtime, as a client of P4 Studio's sees them: every message, code and counter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shunt.net import Endpoint
from tests.bfrt.test_schema import one_at_a_time
from tests.dataplane.lab import HOST_A4, HOST_B4, RELAY_A4, RELAY_B4, Lab
from tests.replication.conftest import COPIES, Bridge, Participant, Sender, rtp
from tests.softswitch import schema
from tests.softswitch.client import DELETE, EXISTS, INSERT, INVALID, MODIFY, NOT_FOUND, UNSUPPORTED, UPSERT, Session, details
from tests.softswitch.process import Softswitch
from tests.softswitch.replication import Action, StreamKey
from tests.tools.bfrt._pb import bfruntime_pb2 as pb

pytestmark = pytest.mark.netns

TABLES = schema.load(conferences=True).tables
CONFERENCE, LAYER, COPY, MGID, NODE, PRUNE = (TABLES[name] for name in ("conference", "layer", "copy", "$pre.mgid", "$pre.node", "$pre.prune"))
ROLLBACK = pb.WriteRequest.ROLLBACK_ON_ERROR


@pytest.fixture
def client(bridge: Bridge) -> Session:
    return bridge.plane.session


def put(data: pb.TableData, field: Any, value: Any) -> None:
    out = data.fields.add(field_id=field.id)
    if isinstance(value, bytes):
        out.stream = value
    else:
        array = out.bool_arr_val if field.type == "bool" else out.int_arr_val
        array.SetInParent()
        array.val.extend(value)


def update(kind: int, table: Any, key: Sequence[bytes], action: str | None = None, **values: Any) -> pb.Update:
    """An update of a table: key values in order, data by the field's name (without $)."""
    out = pb.Update(type=kind)
    entry = out.entity.table_entry
    entry.table_id = table.id
    for field, value in zip(table.key, key):
        made = entry.key.fields.add(field_id=field.id)
        made.exact.value = value
    if action is not None:
        entry.data.action_id = table.actions[action].id
    for name, value in values.items():
        fields = table.actions[action].fields if action is not None else table.data
        field = fields.find(name) or table.data["$" + name]
        put(entry.data, field, value.to_bytes(field.size or 0, "big") if isinstance(value, int) else value)
    return out


def u16(number: int) -> bytes:
    return number.to_bytes(2, "big")


def u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def node(kind: int, number: int, rid: int = 0, ports: Sequence[int] = (0,)) -> pb.Update:
    return update(kind, NODE, [u32(number)], **({} if kind == DELETE else {"MULTICAST_RID": rid, "MULTICAST_LAG_ID": [], "DEV_PORT": list(ports)}))


def tree(kind: int, mgid: int, nodes: Sequence[int] = (), xid: int | None = None) -> pb.Update:
    if kind == DELETE:
        return update(kind, MGID, [u16(mgid)])
    return update(kind, MGID, [u16(mgid)], MULTICAST_NODE_ID=list(nodes), MULTICAST_NODE_L1_XID_VALID=[xid is not None] * len(nodes), MULTICAST_NODE_L1_XID=[xid or 0] * len(nodes))


def copy(kind: int, number: int, rid: int, here: Endpoint = Endpoint.of(HOST_B4, 9), relay_port: int = 9) -> pb.Update:
    key = [number.to_bytes(3, "big"), u16(rid)]
    if kind == DELETE:
        return update(kind, COPY, key)
    return update(kind, COPY, key, "copy_to", src_addr=Endpoint.of(RELAY_B4, 0).addr, dst_addr=here.addr, src_port=relay_port, dst_port=here.port, nexthop=3)


def stream(kind: int, src: Endpoint, dst: Endpoint, ssrc: int, **action: int) -> pb.Update:
    key = [src.addr, dst.addr, u16(src.port), u16(dst.port), u32(ssrc)]
    return update(kind, CONFERENCE, key, *([] if kind == DELETE else ["replicate"]), **action)


def read(table: Any, key: Sequence[bytes] = ()) -> pb.Entity:
    out = pb.Entity()
    out.table_entry.CopyFrom(update(INSERT, table, key).entity.table_entry)
    return out


def values(table: Any, entry: pb.TableEntry) -> dict[str, Any]:
    """Data of a read entry by field name."""
    found: dict[str, Any] = {}
    action = table.actions.by_id.get(entry.data.action_id)
    for message in entry.data.fields:
        field = (action.fields.by_id.get(message.field_id) if action else None) or table.data.by_id[message.field_id]
        kind = message.WhichOneof("value")
        found[field.name] = int.from_bytes(message.stream, "big") if kind == "stream" else list(getattr(message, kind).val)
    return found


def codes(client: Session, *updates: pb.Update, **options: Any) -> list[int]:
    """The code of each update, 0 for those that were carried out."""
    return [0 if error is None else error.code for error in client.write(updates, **options)]


def done(client: Session, *updates: pb.Update, **options: Any) -> None:
    """Write updates, which must all be carried out."""
    assert client.write(updates, **options) == [None] * len(updates)


def conference(client: Session, bridge: Bridge, count: int = 3) -> tuple[list[Participant], Sender, StreamKey]:
    """A conference: everybody in tree 5, a sender who is not."""
    participants = [bridge.receiver(rid) for rid in range(1, count + 1)]
    updates = [node(INSERT, 100 + participant.rid, participant.rid) for participant in participants]
    updates += [copy(INSERT, 7, participant.rid, participant.here, participant.relay.port) for participant in participants]
    updates.append(tree(INSERT, 5, [100 + participant.rid for participant in participants]))
    sender, key = bridge.sender(0x1234)
    updates.append(stream(INSERT, *key.flow, key.ssrc, mgid=5, stream=7))
    done(client, *updates)
    return participants, sender, key


def test_a_conference(client: Session, bridge: Bridge) -> None:
    participants, sender, key = conference(client, bridge)
    sender.send(10)
    bridge.settled()
    assert [participant.numbers() for participant in participants] == [list(range(10))] * 3
    # One leaves, and the first, who sends, gets no copy.
    done(client, tree(MODIFY, 5, [101, 103]), update(INSERT, PRUNE, [u16(1)], DEV_PORT=[0]))
    done(client, stream(MODIFY, key.flow.src, key.flow.dst, key.ssrc, mgid=5, stream=7, rid=1, l2_xid=1))
    sender.send(10)
    bridge.settled()
    assert [participant.numbers() for participant in participants] == [[], [], list(range(10, 20))]
    question = read(CONFERENCE, [key.flow.src.addr, key.flow.dst.addr, u16(key.flow.src.port), u16(key.flow.dst.port), u32(0x1234)])
    first, second = (entity.table_entry for entity in client.read([question, read(COPY, [b"\0\0\7", u16(3)])]))
    assert values(CONFERENCE, first) == {
        "mgid": 5,
        "l1_xid": 0,
        "rid": 1,
        "l2_xid": 1,
        "stream": 7,
        "to_agent": 0,
        **dict.fromkeys(("trees", "layers", "extension", "descriptor", "track"), 0),
        "$COUNTER_SPEC_PKTS": 20,
        "$COUNTER_SPEC_BYTES": 4000,
    }
    assert first.key == question.table_entry.key
    there = participants[2].here
    assert values(COPY, second) == {
        "src_addr": int.from_bytes(Endpoint.of(RELAY_B4, 0).addr, "big"), "dst_addr": int.from_bytes(there.addr, "big"), "src_port": 20_003, "dst_port": there.port,
        "nexthop": 3, "target": 0, "sequence_state": 0, "cadence": 0, "payload_types": 0, "$COUNTER_SPEC_PKTS": 20, "$COUNTER_SPEC_BYTES": 4000,
    }  # fmt: skip
    done(client, stream(DELETE, key.flow.src, key.flow.dst, key.ssrc), tree(DELETE, 5))
    assert bridge.replication.streams() == [] and len(bridge.replication.nodes()) == 3


def test_reading_the_engine(client: Session, bridge: Bridge) -> None:
    done(client, node(INSERT, 1, 11), node(INSERT, 1 << 31, 12, [511]), node(INSERT, 3, 13, []), tree(INSERT, 65_535, [1, 1 << 31], 9), update(INSERT, PRUNE, [u16(2)], DEV_PORT=[5, 0]))
    entities = client.read([read(MGID, [u16(65_535)]), read(NODE, [u32(1 << 31)]), read(NODE, [u32(3)]), read(PRUNE, [u16(2)]), read(PRUNE, [u16(3)])])
    got = [values(table, entity.table_entry) for table, entity in zip((MGID, NODE, NODE, PRUNE, PRUNE), entities)]
    ecmp = {"$MULTICAST_ECMP_ID": [], "$MULTICAST_ECMP_L1_XID_VALID": [], "$MULTICAST_ECMP_L1_XID": []}
    assert got[0] == {"$MULTICAST_NODE_ID": [1, 1 << 31], "$MULTICAST_NODE_L1_XID_VALID": [True, True], "$MULTICAST_NODE_L1_XID": [9, 9], **ecmp}
    assert got[1:3] == [{"$MULTICAST_RID": 12, "$MULTICAST_LAG_ID": [], "$DEV_PORT": [511]}, {"$MULTICAST_RID": 13, "$MULTICAST_LAG_ID": [], "$DEV_PORT": []}]
    assert got[3:] == [{"$DEV_PORT": [0, 5]}, {"$DEV_PORT": []}]
    assert len(client.read([read(NODE)])) == 3
    usage = pb.Entity()
    usage.table_usage.table_id = NODE.id
    assert client.read([usage])[0].table_usage.usage == 3
    with pytest.raises(grpc.RpcError) as error:
        list(client.stub.Read(pb.ReadRequest(client_id=client.client_id, entities=[read(MGID, [u16(1)])])))
    (absent,) = details(error.value) or ()
    assert absent is not None and absent.code == NOT_FOUND


def test_all_entries_come_with_the_default_entry(client: Session, bridge: Bridge) -> None:
    conference(client, bridge)
    for table, count in ((CONFERENCE, 1), (COPY, 3)):
        entities = [entity.table_entry for entity in client.read([read(table)])]
        assert len(entities) == count + 1 and entities[-1].is_default_entry and not any(entry.is_default_entry for entry in entities[:-1])
        assert table.actions.by_id[entities[-1].data.action_id].default_only


def test_what_is_refused_and_how(client: Session, bridge: Bridge) -> None:
    src, dst = Endpoint.of(HOST_A4, 1), Endpoint.of(RELAY_A4, 1)
    done(client, node(INSERT, 1, 1), node(INSERT, 2, 2), tree(INSERT, 1, [1]), copy(INSERT, 1, 1), stream(INSERT, src, dst, 1, mgid=1))
    wrong = {
        "node exists": (node(INSERT, 1), EXISTS),
        "no such node": (node(DELETE, 9), NOT_FOUND),
        "node of two ports": (node(INSERT, 9, 1, [0, 1]), UNSUPPORTED),
        "port too large": (node(INSERT, 9, 1, [512]), INVALID),
        "another RID": (node(MODIFY, 1, 2), INVALID),
        "tree exists": (tree(INSERT, 1, []), EXISTS),
        "unknown node": (tree(INSERT, 2, [9]), NOT_FOUND),
        "node in another tree": (tree(INSERT, 2, [1]), EXISTS),
        "node twice": (tree(INSERT, 2, [2, 2]), EXISTS),
        "no such tree": (tree(MODIFY, 2, []), NOT_FOUND),
        "lengths": (update(MODIFY, MGID, [u16(1)], MULTICAST_NODE_ID=[1], MULTICAST_NODE_L1_XID=[0]), INVALID),
        "xid too wide": (update(MODIFY, MGID, [u16(1)], MULTICAST_NODE_ID=[1], MULTICAST_NODE_L1_XID_VALID=[True], MULTICAST_NODE_L1_XID=[65_536]), INVALID),
        "ecmp": (update(MODIFY, MGID, [u16(1)], MULTICAST_ECMP_ID=[1]), INVALID),
        "l2 xid": (update(INSERT, PRUNE, [u16(288)], DEV_PORT=[0]), INVALID),
        "copy exists": (copy(INSERT, 1, 1), EXISTS),
        "no such copy": (copy(DELETE, 1, 2), NOT_FOUND),
        "no action": (update(INSERT, COPY, [b"\0\0\1", u16(9)]), INVALID),
        "default action": (update(INSERT, COPY, [b"\0\0\1", u16(9)], "no_copy"), INVALID),
        "key too short": (update(INSERT, COPY, [b"\0\1", u16(9)], "copy_to"), INVALID),
        "stream exists": (stream(INSERT, src, dst, 1, mgid=1), EXISTS),
        "no such stream": (stream(DELETE, src, dst, 2), NOT_FOUND),
        "l2_xid too wide": (stream(INSERT, src, dst, 2, l2_xid=512), INVALID),
        "insert of all": (update(INSERT, NODE, []), INVALID),
        "increment": (tree(pb.Update.MODIFY_INC, 1, []), UNSUPPORTED),
    }
    wanted = {name: code for name, (_, code) in wrong.items()}
    assert dict(zip(wrong, codes(client, *(one for one, _ in wrong.values())))) == wanted
    assert len(bridge.replication.nodes()) == 2 and bridge.replication.trees() == [1]


def test_insert_or_modify(client: Session, bridge: Bridge) -> None:
    updates = [node(UPSERT, 1, 1), copy(UPSERT, 1, 1), copy(UPSERT, 1, 1, Endpoint.of(HOST_B4, 77)), tree(UPSERT, 1, [1]), tree(UPSERT, 1, [])]
    response = client.stub.Write(pb.WriteRequest(client_id=client.client_id, updates=updates))
    assert [status.code for status in response.status] == [EXISTS] * 2
    rewrite = bridge.replication.copy(1, 1)
    assert rewrite is not None and rewrite.dst.port == 77


def everything(bridge: Bridge) -> Any:
    """All entries of the tables, without their counters."""
    r = bridge.replication
    nodes, trees = {number: r.node(number) for number in r.nodes()}, {mgid: r.members(mgid) for mgid in r.trees()}
    return nodes, trees, r.prunes(), {name: r.copy(*name) for name in r.copies()}, {key: r.stream(key) for key in r.streams()}


def test_a_batch_that_fails_is_rolled_back_whole(client: Session, bridge: Bridge) -> None:
    participants, sender, key = conference(client, bridge)
    before = everything(bridge)
    batch = [
        node(INSERT, 900, 9), copy(INSERT, 7, 9), tree(MODIFY, 5, [900, 101]), node(DELETE, 102), node(MODIFY, 103, 3, [1]), copy(MODIFY, 7, 1), copy(DELETE, 7, 3),
        update(INSERT, PRUNE, [u16(1)], DEV_PORT=[0]), stream(MODIFY, key.flow.src, key.flow.dst, key.ssrc, mgid=6), tree(INSERT, 6, [102]),
    ]  # fmt: skip
    assert codes(client, *batch, atomicity=ROLLBACK) == [0] * 9 + [NOT_FOUND]
    assert everything(bridge) == before
    sender.send(10)
    bridge.settled()
    assert [participant.numbers() for participant in participants] == [list(range(10))] * 3
    done(client, *batch[:-1], atomicity=ROLLBACK)
    assert everything(bridge) != before


def test_counters_are_set_to_zero(client: Session, bridge: Bridge) -> None:
    participants, sender, key = conference(client, bridge, 1)
    sender.send(5)
    bridge.settled()
    again = copy(MODIFY, 7, 1, participants[0].here, participants[0].relay.port)
    assert bridge.replication.count_copy(7, 1).packets == 5
    done(client, again)
    assert bridge.replication.count_copy(7, 1).packets == 5
    put(again.entity.table_entry.data, COPY.data["$COUNTER_SPEC_PKTS"], bytes(8))
    done(client, again)
    assert bridge.replication.count_copy(7, 1).packets == 0
    again.entity.table_entry.data.fields[-1].stream = bytes(7) + b"\1"
    assert codes(client, again) == [UNSUPPORTED]
    change = stream(MODIFY, key.flow.src, key.flow.dst, key.ssrc, mgid=5, stream=7)
    change.entity.table_entry.table_flags.reset_stats = True
    done(client, change)
    assert bridge.replication.count_stream(key).packets == 0


def test_clearing(client: Session, bridge: Bridge) -> None:
    participants, sender, key = conference(client, bridge)
    done(client, update(DELETE, COPY, []))
    sender.send(5)
    bridge.settled()
    assert [participant.numbers() for participant in participants] == [[]] * 3 and bridge.replication.copies() == []
    client.reset_all()
    assert not bridge.replication.streams() and not bridge.replication.nodes() and not bridge.replication.trees()


numbers = st.integers(0, 5)
steps = st.one_of(
    st.builds(node, st.sampled_from([INSERT, MODIFY, DELETE]), numbers, st.integers(0, 3), st.lists(st.integers(0, 1), max_size=1)),
    st.builds(tree, st.sampled_from([INSERT, MODIFY, DELETE]), st.integers(0, 2), st.lists(numbers, max_size=4), st.none() | st.integers(0, 2)),
    st.builds(lambda xid, ports: update(MODIFY, PRUNE, [u16(xid)], DEV_PORT=ports), st.integers(0, 2), st.lists(st.integers(0, 1))),
)


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(steps, max_size=12))
def test_any_batch_that_fails_is_rolled_back(client: Session, bridge: Bridge, changes: list[pb.Update]) -> None:
    """The batch fails at its end, if not before; what it wrote until then is undone. Its changes that are possible can then be made."""
    bridge.replication.clear()
    done(client, node(INSERT, 0, 0), node(INSERT, 1, 1), tree(INSERT, 0, [1], 1))
    before = everything(bridge)
    failing = codes(client, *changes, node(DELETE, 1 << 20), atomicity=ROLLBACK)
    assert any(failing) and everything(bridge) == before
    carried_out = [change for change, code in zip(changes, codes(client, *changes)) if not code]
    after = everything(bridge)
    members = [number for one in after[1].values() for number, _ in one or ()]
    assert set(members) <= set(after[0]) and len(set(members)) == len(members), "a node is in one tree at most, and exists"
    bridge.replication.clear()
    done(client, node(INSERT, 0, 0), node(INSERT, 1, 1), tree(INSERT, 0, [1], 1))
    done(client, *carried_out, atomicity=ROLLBACK)
    assert everything(bridge) == after


def test_the_schema_says_what_there_is_room_for(client: Session, lab: Lab) -> None:
    sizes = {name: client.schema.tables[name].size for name in ("copy", "conference", "$pre.node", "$pre.mgid")}
    assert sizes == {"copy": COPIES, "conference": COPIES, "$pre.node": 4 * COPIES, "$pre.mgid": 65_536}
    with Softswitch(["lo"], namespace=lab.ns("relay")) as process, Session(process.target) as without:
        assert without.schema.tables.find("conference") is None and without.schema.tables.find("copy") is None


def test_the_contract_is_the_schema() -> None:
    """docs/replication.md names every table, key, action and parameter with its width."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "replication.md").read_text()
    rows = {row.split("`")[1]: row for row in text.splitlines() if row.startswith("| `")}
    wanted = {"pipe.Ingress.conference", "pipe.Egress.copy"}
    for name in wanted:
        _, key, actions = (cell.strip() for cell in rows[name].strip("|").split("|"))
        assert re.findall(r"`([\w.]+)`:(\d+)", key) == [(field.name, str(field.width)) for field in TABLES[name].key]
        action, parameters = re.findall(r"`(\w+\.\w+)`\(([^)]*)\)", actions)[0]
        assert re.findall(r"`(\w+)`:(\d+)", parameters) == [(field.name, str(field.width)) for field in TABLES[name].actions[action].fields]
    for name in ("$pre.mgid", "$pre.node", "$pre.prune"):
        for field in re.findall(r"`(\$\w+)`", rows[name].split("|")[2] + rows[name].split("|")[3]):
            table = TABLES[name]
            assert table.key.find(field) or table.data.find(field), field


@pytest.mark.parametrize("name", ["pipe.Ingress.conference", "pipe.Ingress.conference6", "pipe.Egress.copy"])
def test_ids_are_those_that_bf_p4c_gives(name: str) -> None:
    table = TABLES[name]
    assert table.id == 0x02000000 | one_at_a_time(name)
    assert all(action.id == 0x01000000 | one_at_a_time(action.name) for action in table.actions)


def layer(kind: int, layers: int, template: int, layer: int = 0, switches: int = 0) -> pb.Update:
    key = [u16(layers), bytes((template,))]
    return update(kind, LAYER, key) if kind == DELETE else update(kind, LAYER, key, "set_layer", layer=layer, switches=switches)


def test_layers(client: Session, bridge: Bridge) -> None:
    done(client, layer(INSERT, 3, 4, 2, 5), layer(INSERT, 3, 5, 1), layer(UPSERT, 3, 5, 2, 6))
    (entity,) = client.read([read(LAYER, [u16(3), b"\4"])])
    assert values(LAYER, entity.table_entry) == {"layer": 2, "switches": 5, "$COUNTER_SPEC_PKTS": 0, "$COUNTER_SPEC_BYTES": 0}
    assert {key: bridge.replication.layer(*key) for key in bridge.replication.layers()} == {(3, 4): (2, 5), (3, 5): (2, 6)}
    assert codes(client, layer(INSERT, 3, 4), layer(MODIFY, 3, 9), layer(DELETE, 3, 9)) == [EXISTS, NOT_FOUND, NOT_FOUND]
    done(client, layer(DELETE, 3, 4))
    assert bridge.replication.layers() == [(3, 5)]


def test_packets_for_the_agent_are_digests(client: Session, bridge: Bridge) -> None:
    """A frame as it came, with its length; it is the learn filter's width."""
    sender, key = bridge.sender(0x77)
    bridge.replication.insert_stream(key, Action(5, 0, 0, 0, 7, to_agent=True))
    sender.send(1)
    number, data = client.notices.digests.get(timeout=30)
    assert number == client.schema.learns["softswitch.packet"].id
    length, frame = (field.stream for field in data.fields)
    size = int.from_bytes(length, "big")
    assert size == 14 + 20 + 8 + 172 and len(frame) == 1536
    assert frame[size - 172 : size] == rtp(0, 0x77) and not any(frame[size:])
    client.notices.digests.put((number, data))  # for who counts them


def test_how_streams_are_received_is_read(client: Session, bridge: Bridge) -> None:
    """`softswitch.reception` has a row for each stream, of its own IP version, and nothing is written there."""
    _, sender, stream_key = conference(client, bridge)
    for number in (0, 1, 4):
        sender.socket.sendto(rtp(number, sender.ssrc), (str(sender.relay.ip), sender.relay.port))
    bridge.settled()
    (src, dst), ssrc = stream_key
    key = [src.addr, dst.addr, u16(src.port), u16(dst.port), u32(ssrc)]
    table, other = TABLES["softswitch.reception"], TABLES["softswitch.reception6"]
    for question in (read(table, key), read(table)):
        (found,) = client.read([question])
        said = values(table, found.table_entry)
        assert {name: said[name] for name in ("packets", "bytes", "lost", "reordered", "duplicates")} == {"packets": 3, "bytes": 600, "lost": 2, "reordered": 0, "duplicates": 0}
        assert [field.exact.value for field in found.table_entry.key.fields] == key
    assert not client.read([read(other)])
    assert codes(client, update(DELETE, table, key)) == [UNSUPPORTED]
    assert codes(client, update(MODIFY, table, key, packets=0)) == [UNSUPPORTED]
    assert bridge.replication.streams() == [stream_key]
