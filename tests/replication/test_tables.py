"""The tables of replication over BF Runtime, as a client of P4 Studio's sees them, on a real data plane."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.net import Endpoint
from shunt_softswitch import schema
from shunt_softswitch.entries import Code
from shunt_softswitch.replication import Action
from shunt_softswitch.server import serve
from shunt_softswitch.service import BfRuntimeService
from tests.bfrt.conftest import Raw, details
from tests.bfrt.test_schema import one_at_a_time
from tests.dataplane.lab import HOST_A4, HOST_B4, RELAY_A4, RELAY_B4
from tests.replication.conftest import COPIES, Bridge, Party, Sender, rtp, settled

pytestmark = pytest.mark.netns

TABLES = schema.load(4096, COPIES).schema.tables
CONFERENCE, LAYER, COPY, MGID, NODE, PRUNE = (TABLES[name] for name in ("conference", "layer", "copy", "$pre.mgid", "$pre.node", "$pre.prune"))
INSERT, MODIFY, DELETE, UPSERT = pb.Update.INSERT, pb.Update.MODIFY, pb.Update.DELETE, pb.Update.INSERT_OR_MODIFY
_ids = itertools.count(9000)


@pytest.fixture
async def client(bridge: Bridge, tmp_path: Path) -> AsyncIterator[Raw]:
    address = f"unix:{tmp_path}/bfrt"
    service = BfRuntimeService(bridge.plane, schema.load(bridge.plane.capacity, COPIES))
    async with serve(service, [address]):
        async with grpc.aio.insecure_channel(address, options=(("grpc.max_metadata_size", 1 << 24),)) as channel:
            made = await Raw(channel, next(_ids)).connect()
            made.service = service  # type: ignore[attr-defined]
            yield made


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


async def refused(client: Raw, *updates: pb.Update, **options: Any) -> list[int]:
    """The codes of each update up to the last that failed."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await client.write(*updates, **options)
    return [canonical for canonical, _ in details(error.value)]


async def meeting(client: Raw, bridge: Bridge, count: int = 3) -> tuple[list[Party], Sender]:
    """A meeting written over BF Runtime: everybody in tree 5, a sender who is not."""
    parties = []
    for rid in range(1, count + 1):
        made, here = bridge.socket("b")
        parties.append(Party(rid, made, here, Endpoint.of(RELAY_B4, 20_000 + rid)))
    updates = [node(INSERT, 100 + party.rid, party.rid) for party in parties]
    updates += [copy(INSERT, 7, party.rid, party.here, party.relay.port) for party in parties]
    updates.append(tree(INSERT, 5, [100 + party.rid for party in parties]))
    made, here = bridge.socket("a")
    sender = Sender(made, Endpoint.of(RELAY_A4, 6000), 0x1234)
    updates.append(stream(INSERT, here, sender.relay, sender.ssrc, mgid=5, stream=7))
    await client.write(*updates)
    return parties, sender


async def test_a_meeting(client: Raw, bridge: Bridge) -> None:
    parties, sender = await meeting(client, bridge)
    sender.send(10)
    settled()
    assert [party.numbers() for party in parties] == [list(range(10))] * 3
    # One leaves, one comes to hear another meeting only, the sender is left out.
    await client.write(tree(MODIFY, 5, [101, 103]), update(INSERT, PRUNE, [u16(1)], DEV_PORT=[0]))
    (key,) = bridge.replication.streams()
    await client.write(stream(MODIFY, key.flow.src, key.flow.dst, key.ssrc, mgid=5, stream=7, rid=1, l2_xid=1))
    sender.send(10)
    settled()
    assert [party.numbers() for party in parties] == [[], [], list(range(10, 20))]
    response = await client.read(read(CONFERENCE, [key.flow.src.addr, key.flow.dst.addr, u16(key.flow.src.port), u16(6000), u32(0x1234)]), read(COPY, [b"\0\0\7", u16(3)]))
    first, second = (entity.table_entry for entity in response.entities)
    assert values(CONFERENCE, first) == {"mgid": 5, "l1_xid": 0, "rid": 1, "l2_xid": 1, "stream": 7, "to_agent": 0, **dict.fromkeys(("trees", "layers", "extension", "descriptor", "track"), 0), "$COUNTER_SPEC_PKTS": 20, "$COUNTER_SPEC_BYTES": 4000}
    assert first.key == read(CONFERENCE, [key.flow.src.addr, key.flow.dst.addr, u16(key.flow.src.port), u16(6000), u32(0x1234)]).table_entry.key
    there = parties[2].here
    assert values(COPY, second) == {
        "src_addr": int.from_bytes(Endpoint.of(RELAY_B4, 0).addr, "big"), "dst_addr": int.from_bytes(there.addr, "big"), "src_port": 20_003, "dst_port": there.port,
        "nexthop": 3, "target": 0, "splice": 0, "cadence": 0, "$COUNTER_SPEC_PKTS": 20, "$COUNTER_SPEC_BYTES": 4000,
    }  # fmt: skip
    await client.write(stream(DELETE, key.flow.src, key.flow.dst, key.ssrc), tree(DELETE, 5))
    assert list(bridge.replication.streams()) == [] and len(bridge.replication.engine.nodes) == 3


async def test_reading_the_engine(client: Raw, bridge: Bridge) -> None:
    await client.write(node(INSERT, 1, 11), node(INSERT, 1 << 31, 12, [511]), node(INSERT, 3, 13, []), tree(INSERT, 65_535, [1, 1 << 31], 9), update(INSERT, PRUNE, [u16(2)], DEV_PORT=[5, 0]))
    response = await client.read(read(MGID, [u16(65_535)]), read(NODE, [u32(1 << 31)]), read(NODE, [u32(3)]), read(PRUNE, [u16(2)]), read(PRUNE, [u16(3)]))
    got = [values(table, entity.table_entry) for table, entity in zip((MGID, NODE, NODE, PRUNE, PRUNE), response.entities)]
    ecmp = {"$MULTICAST_ECMP_ID": [], "$MULTICAST_ECMP_L1_XID_VALID": [], "$MULTICAST_ECMP_L1_XID": []}
    assert got[0] == {"$MULTICAST_NODE_ID": [1, 1 << 31], "$MULTICAST_NODE_L1_XID_VALID": [True, True], "$MULTICAST_NODE_L1_XID": [9, 9], **ecmp}
    assert got[1:3] == [{"$MULTICAST_RID": 12, "$MULTICAST_LAG_ID": [], "$DEV_PORT": [511]}, {"$MULTICAST_RID": 13, "$MULTICAST_LAG_ID": [], "$DEV_PORT": []}]
    assert got[3:] == [{"$DEV_PORT": [0, 5]}, {"$DEV_PORT": []}]
    assert len((await client.read(read(NODE))).entities) == 3
    usage = pb.Entity()
    usage.table_usage.table_id = NODE.id
    assert (await client.read(usage)).entities[0].table_usage.usage == 3
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await client.read(read(MGID, [u16(1)]))
    assert details(error.value) == [(Code.NOT_FOUND, 0)]


async def test_all_entries_come_with_the_default_entry(client: Raw, bridge: Bridge) -> None:
    await meeting(client, bridge)
    for table, count in ((CONFERENCE, 1), (COPY, 3)):
        entities = [entity.table_entry for entity in (await client.read(read(table))).entities]
        assert len(entities) == count + 1 and entities[-1].is_default_entry and not any(entry.is_default_entry for entry in entities[:-1])
        assert table.actions.by_id[entities[-1].data.action_id].default_only


async def test_what_is_refused_and_how(client: Raw, bridge: Bridge) -> None:
    src, dst = Endpoint.of(HOST_A4, 1), Endpoint.of(RELAY_A4, 1)
    await client.write(node(INSERT, 1, 1), node(INSERT, 2, 2), tree(INSERT, 1, [1]), copy(INSERT, 1, 1), stream(INSERT, src, dst, 1, mgid=1))
    codes = {
        "node exists": (node(INSERT, 1), Code.EXISTS),
        "no such node": (node(DELETE, 9), Code.NOT_FOUND),
        "node of two ports": (node(INSERT, 9, 1, [0, 1]), Code.UNSUPPORTED),
        "port too large": (node(INSERT, 9, 1, [512]), Code.INVALID),
        "another RID": (node(MODIFY, 1, 2), Code.INVALID),
        "tree exists": (tree(INSERT, 1, []), Code.EXISTS),
        "unknown node": (tree(INSERT, 2, [9]), Code.NOT_FOUND),
        "node in another tree": (tree(INSERT, 2, [1]), Code.EXISTS),
        "node twice": (tree(INSERT, 2, [2, 2]), Code.EXISTS),
        "no such tree": (tree(MODIFY, 2, []), Code.NOT_FOUND),
        "lengths": (update(MODIFY, MGID, [u16(1)], MULTICAST_NODE_ID=[1], MULTICAST_NODE_L1_XID=[0]), Code.INVALID),
        "xid too wide": (update(MODIFY, MGID, [u16(1)], MULTICAST_NODE_ID=[1], MULTICAST_NODE_L1_XID_VALID=[True], MULTICAST_NODE_L1_XID=[65_536]), Code.INVALID),
        "ecmp": (update(MODIFY, MGID, [u16(1)], MULTICAST_ECMP_ID=[1]), Code.INVALID),
        "l2 xid": (update(INSERT, PRUNE, [u16(288)], DEV_PORT=[0]), Code.INVALID),
        "copy exists": (copy(INSERT, 1, 1), Code.EXISTS),
        "no such copy": (copy(DELETE, 1, 2), Code.NOT_FOUND),
        "no action": (update(INSERT, COPY, [b"\0\0\1", u16(9)]), Code.INVALID),
        "default action": (update(INSERT, COPY, [b"\0\0\1", u16(9)], "no_copy"), Code.INVALID),
        "key too short": (update(INSERT, COPY, [b"\0\1", u16(9)], "copy_to"), Code.INVALID),
        "stream exists": (stream(INSERT, src, dst, 1, mgid=1), Code.EXISTS),
        "no such stream": (stream(DELETE, src, dst, 2), Code.NOT_FOUND),
        "l2_xid too wide": (stream(INSERT, src, dst, 2, l2_xid=512), Code.INVALID),
        "insert of all": (update(INSERT, NODE, []), Code.INVALID),
        "increment": (tree(pb.Update.MODIFY_INC, 1, []), Code.UNSUPPORTED),
    }
    wanted = {name: code for name, (_, code) in codes.items()}
    assert dict(zip(codes, await refused(client, *(one for one, _ in codes.values())))) == wanted
    assert len(bridge.replication.engine.nodes) == 2 and list(bridge.replication.engine.trees) == [1]


async def test_insert_or_modify(client: Raw, bridge: Bridge) -> None:
    response = await client.write(node(UPSERT, 1, 1), copy(UPSERT, 1, 1), copy(UPSERT, 1, 1, Endpoint.of(HOST_B4, 77)), tree(UPSERT, 1, [1]), tree(UPSERT, 1, []))
    assert [status.code for status in response.status] == [Code.EXISTS] * 2
    rewrite = bridge.replication.copy(1, 1)
    assert rewrite is not None and rewrite.dst.port == 77


async def test_a_batch_that_fails_is_taken_back_whole(client: Raw, bridge: Bridge) -> None:
    parties, sender = await meeting(client, bridge)
    r = bridge.replication
    (key,) = r.streams()

    def everything() -> Any:
        nodes = {number: (one.rid, one.port, one.mgid, one.xid) for number, one in r.engine.nodes.items()}
        return nodes, {mgid: list(one) for mgid, one in r.engine.trees.items()}, dict(r.engine.prunes), {n: r.copy(*n) for n in r.copies()}, {k: r.stream(k) for k in r.streams()}

    before = everything()
    batch = [
        node(INSERT, 900, 9), copy(INSERT, 7, 9), tree(MODIFY, 5, [900, 101]), node(DELETE, 102), node(MODIFY, 103, 3, [1]), copy(MODIFY, 7, 1), copy(DELETE, 7, 3),
        update(INSERT, PRUNE, [u16(1)], DEV_PORT=[0]), stream(MODIFY, key.flow.src, key.flow.dst, key.ssrc, mgid=6), tree(INSERT, 6, [102]),
    ]  # fmt: skip
    codes = await refused(client, *batch, atomicity=pb.WriteRequest.ROLLBACK_ON_ERROR)
    assert codes == [0] * 9 + [Code.NOT_FOUND]
    assert everything() == before
    sender.send(10)
    settled()
    assert [party.numbers() for party in parties] == [list(range(10))] * 3
    await client.write(*batch[:-1], atomicity=pb.WriteRequest.ROLLBACK_ON_ERROR)
    assert everything() != before


async def test_counters_are_set_to_zero(client: Raw, bridge: Bridge) -> None:
    parties, sender = await meeting(client, bridge, 1)
    sender.send(5)
    settled()
    again = copy(MODIFY, 7, 1, parties[0].here, parties[0].relay.port)
    assert bridge.replication.count_copy(7, 1).packets == 5
    await client.write(again)
    assert bridge.replication.count_copy(7, 1).packets == 5
    put(again.entity.table_entry.data, COPY.data["$COUNTER_SPEC_PKTS"], bytes(8))
    await client.write(again)
    assert bridge.replication.count_copy(7, 1).packets == 0
    again.entity.table_entry.data.fields[-1].stream = bytes(7) + b"\1"
    assert await refused(client, again) == [Code.UNSUPPORTED]
    (key,) = bridge.replication.streams()
    change = stream(MODIFY, key.flow.src, key.flow.dst, key.ssrc, mgid=5, stream=7)
    change.entity.table_entry.table_flags.reset_stats = True
    await client.write(change)
    assert bridge.replication.count_stream(key).packets == 0


async def test_clearing(client: Raw, bridge: Bridge) -> None:
    parties, sender = await meeting(client, bridge)
    await client.write(update(DELETE, COPY, []))
    sender.send(5)
    settled()
    assert [party.numbers() for party in parties] == [[]] * 3 and list(bridge.replication.copies()) == []
    request = pb.SetForwardingPipelineConfigRequest(client_id=client.client_id, action=pb.SetForwardingPipelineConfigRequest.VERIFY_AND_WARM_INIT_BEGIN_AND_END)
    request.config.add(p4_name="relay")
    await client.stub.SetForwardingPipelineConfig(request)
    assert not list(bridge.replication.streams()) and not bridge.replication.engine.nodes and not bridge.replication.engine.trees


def test_the_schema_says_what_there_is_room_for() -> None:
    assert (COPY.size, CONFERENCE.size, NODE.size, MGID.size) == (COPIES, COPIES, 4 * COPIES, 65_536)
    without = schema.load(4096).schema.tables
    assert without.find("conference") is None and without.find("copy") is None


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


async def test_layers(client: Raw, bridge: Bridge) -> None:
    await client.write(layer(INSERT, 3, 4, 2, 5), layer(INSERT, 3, 5, 1), layer(UPSERT, 3, 5, 2, 6))
    response = await client.read(read(LAYER, [u16(3), b"\4"]))
    (entity,) = response.entities
    assert values(LAYER, entity.table_entry) == {"layer": 2, "switches": 5, "$COUNTER_SPEC_PKTS": 0, "$COUNTER_SPEC_BYTES": 0}
    assert {key: bridge.replication.layer(*key) for key in bridge.replication.layers()} == {(3, 4): (2, 5), (3, 5): (2, 6)}
    for wrong, code in ((layer(INSERT, 3, 4), Code.EXISTS), (layer(MODIFY, 3, 9), Code.NOT_FOUND), (layer(DELETE, 3, 9), Code.NOT_FOUND)):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await client.write(wrong)
        assert [number for number, *_ in details(error.value)] == [code]
    await client.write(layer(DELETE, 3, 4))
    assert list(bridge.replication.layers()) == [(3, 5)]


async def test_packets_for_the_agent_are_digests(client: Raw, bridge: Bridge) -> None:
    """A frame as it came, with its length; it is the learn filter's width."""
    sender, key = bridge.sender(0x77)
    bridge.replication.insert_stream(key, Action(5, 0, 0, 0, 7, to_agent=True))
    sender.send(1)
    settled()
    frames = [frame for _, frame in bridge.replication.poll_agent()]
    client.service.notify_packets(frames)  # type: ignore[attr-defined]
    message = await client.stream.read()  # type: ignore[union-attr]
    (learn,) = [one for one in schema.load(4096, COPIES).schema.learns if one.name == "softswitch.packet"]
    assert message.digest.digest_id == learn.id
    (data,) = message.digest.data
    length, frame = (field.stream for field in data.fields)
    assert int.from_bytes(length, "big") == len(frames[0]) and len(frame) == 1536
    assert frame[: len(frames[0])] == frames[0] and frame[len(frames[0]) - 172 : len(frames[0])] == rtp(0, 0x77)


async def test_how_streams_are_received_is_read(client: Raw, bridge: Bridge) -> None:
    """`softswitch.reception` has a row for each stream, of its own IP version, and nothing is written there."""
    _, sender = await meeting(client, bridge)
    for number in (0, 1, 4):
        sender.socket.sendto(rtp(number, sender.ssrc), (str(sender.relay.ip), sender.relay.port))
    settled()
    (stream_key,) = bridge.replication.streams()
    (src, dst), ssrc = stream_key
    key = [src.addr, dst.addr, u16(src.port), u16(dst.port), u32(ssrc)]
    table, other = TABLES["softswitch.reception"], TABLES["softswitch.reception6"]
    for question in (read(table, key), read(table)):
        (found,) = (await client.read(question)).entities
        said = values(table, found.table_entry)
        assert {name: said[name] for name in ("packets", "bytes", "lost", "reordered", "duplicates")} == {"packets": 3, "bytes": 600, "lost": 2, "reordered": 0, "duplicates": 0}
        assert [field.exact.value for field in found.table_entry.key.fields] == key
    assert not (await client.read(read(other))).entities
    assert await refused(client, update(DELETE, table, key)) == [Code.UNSUPPORTED]
    assert await refused(client, update(MODIFY, table, key, packets=0)) == [Code.UNSUPPORTED]
    assert list(bridge.replication.streams()) == [stream_key]
