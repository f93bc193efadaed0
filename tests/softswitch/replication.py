"""The conference tables and the replication engine over BF Runtime: streams, layers, copies, trees, nodes and prunes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from shunt.net import Endpoint, FiveTuple
from tests.softswitch.client import DELETE, INSERT, MODIFY, UPSERT, Row, Session
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.bfrt.schema import Table
from tests.tools.entry import StreamStats

Members = list[tuple[int, int | None]]
"""A tree's nodes, each with its L1 XID (None: it has none that is valid)."""


class StreamKey(NamedTuple):
    """A sender's stream: where it comes from, where to, and its SSRC."""

    flow: FiveTuple
    ssrc: int


class Action(NamedTuple):
    """The parameters of `replicate`, in the order of the schema."""

    mgid: int
    l1_xid: int
    rid: int
    l2_xid: int
    number: int
    to_agent: bool = False
    trees: int = 0
    layers: int = 0
    extension: int = 0
    descriptor: int = 0
    track: int = 0

    @property
    def mgids(self) -> range:
        """The trees that its packets may go into, lowest layer first."""
        return range(self.mgid, self.mgid + max(self.trees, 1))


class Layer(NamedTuple):
    """The parameters of `set_layer`."""

    layer: int
    switches: int = 0


class Rewrite(NamedTuple):
    """The parameters of `copy_to`, in the order of the schema but for source and destination; nexthop is kept and not used."""

    src: Endpoint
    dst: Endpoint
    nexthop: int = 0
    target: int = 0
    sequence_state: int = 0
    cadence: int = 0
    payload_types: int = 0


class Counted(NamedTuple):
    """What an entry has counted."""

    packets: int
    bytes: int


class Replication:
    """The conference tables of a session. An update that is refused raises Refused and changes nothing."""

    def __init__(self, session: Session) -> None:
        self._session = session
        tables = session.schema.tables
        self._streams = {4: tables["pipe.Ingress.conference"], 6: tables["pipe.Ingress.conference6"]}
        self._receptions = {4: tables["softswitch.reception"], 6: tables["softswitch.reception6"]}
        self._layer, self._copies = tables["pipe.Ingress.layer"], tables["pipe.Egress.copy"]
        self._trees, self._nodes, self._prunes = tables["$pre.mgid"], tables["$pre.node"], tables["$pre.prune"]
        packet = session.schema.learns.find("softswitch.packet")
        self._packet = packet.id if packet is not None else None
        self._frames: list[bytes] = []
        self.received_packets = 0

    @property
    def capacity(self) -> int:
        """How many rewrites there is room for."""
        return self._copies.size

    @property
    def stream_capacity(self) -> int:
        """How many streams there is room for."""
        return self._streams[4].size

    # Streams

    def _put_stream(self, kind: int, key: StreamKey, action: Action | None) -> None:
        table = self._streams[key.flow.dst.version]
        name = next(one.name for one in table.actions if not one.default_only) if action is not None else None
        data = dict(zip((field.name for field in table.actions[name].fields), action)) if action is not None and name is not None else None
        self._session.put(kind, table, _stream_key(key), name, data)

    def insert_stream(self, key: StreamKey, action: Action) -> None:
        """Replicate a stream from now on."""
        self._put_stream(INSERT, key, action)

    def modify_stream(self, key: StreamKey, action: Action) -> None:
        """Change what becomes of a stream."""
        self._put_stream(MODIFY, key, action)

    def delete_stream(self, key: StreamKey) -> None:
        """Replicate a stream no more."""
        self._put_stream(DELETE, key, None)

    def _stream_row(self, key: StreamKey) -> Row | None:
        return self._session.get(self._streams[key.flow.dst.version], *_stream_key(key))

    def stream(self, key: StreamKey) -> Action | None:
        """What becomes of a stream; None when it is not replicated."""
        row = self._stream_row(key)
        if row is None:
            return None
        values = _parameters(self._streams[key.flow.dst.version], row)
        return Action(*values[:5], bool(values[5]), *values[6:])

    def streams(self) -> list[StreamKey]:
        """All streams that are replicated."""
        return [_read_stream_key(row.key) for table in self._streams.values() for row in self._session.rows(table)]

    def count_stream(self, key: StreamKey) -> Counted:
        """What a stream's entry has counted."""
        return _counted(self._stream_row(key))

    def reset_stream(self, key: StreamKey) -> None:
        """Set a stream's counters to 0."""
        action = self.stream(key)
        assert action is not None
        table = self._streams[key.flow.dst.version]
        name = next(one.name for one in table.actions if not one.default_only)
        self._session.put(MODIFY, table, _stream_key(key), name, dict(zip((field.name for field in table.actions[name].fields), action)), reset_stats=True)

    def reception(self, key: StreamKey) -> StreamStats:
        """How a stream has been received. Raises KeyError when it is not replicated."""
        row = self._session.get(self._receptions[key.flow.dst.version], *_stream_key(key))
        if row is None:
            raise KeyError(key)
        return StreamStats(**{name: row.number(name) for name in row.data})

    # Copies

    def _copy_data(self, rewrite: Rewrite) -> tuple[str, dict[str, Any]]:
        name = "copy_to" if rewrite.dst.version == 4 else "copy_to_v6"
        values = (rewrite.src.addr, rewrite.dst.addr, rewrite.src.port, rewrite.dst.port, *rewrite[2:])
        return name, dict(zip((field.name for field in self._copies.actions[name].fields), values))

    def insert_copy(self, number: int, rid: int, rewrite: Rewrite) -> None:
        """Rewrite the copies of streams of a number for a receiver."""
        self._session.put(INSERT, self._copies, (number, rid), *self._copy_data(rewrite))

    def modify_copy(self, number: int, rid: int, rewrite: Rewrite) -> None:
        """Change a rewrite."""
        self._session.put(MODIFY, self._copies, (number, rid), *self._copy_data(rewrite))

    def delete_copy(self, number: int, rid: int) -> None:
        """Remove a rewrite."""
        self._session.put(DELETE, self._copies, (number, rid))

    def copy(self, number: int, rid: int) -> Rewrite | None:
        """A rewrite; None when there is none."""
        row = self._session.get(self._copies, number, rid)
        if row is None:
            return None
        saddr, daddr, sport, dport, *more = (row.data[field.name] for field in self._copies.actions[row.action or ""].fields)
        return Rewrite(Endpoint(saddr, int.from_bytes(sport, "big")), Endpoint(daddr, int.from_bytes(dport, "big")), *(int.from_bytes(value, "big") for value in more))

    def copies(self) -> list[tuple[int, int]]:
        """Stream number and RID of every rewrite."""
        return [(int.from_bytes(row.key[0], "big"), int.from_bytes(row.key[1], "big")) for row in self._session.rows(self._copies)]

    def count_copy(self, number: int, rid: int) -> Counted:
        """What a rewrite has counted."""
        return _counted(self._session.get(self._copies, number, rid))

    def reset_copy(self, number: int, rid: int) -> None:
        """Set a rewrite's counters to 0."""
        rewrite = self.copy(number, rid)
        assert rewrite is not None
        self._session.put(MODIFY, self._copies, (number, rid), *self._copy_data(rewrite), reset_stats=True)

    # Layers

    def _put_layer(self, kind: int, layers: int, template: int, layer: Layer) -> None:
        action = self._layer.actions["set_layer"]
        self._session.put(kind, self._layer, (layers, template), action.name, dict(zip((field.name for field in action.fields), layer)))

    def put_layer(self, layers: int, template: int, layer: Layer) -> None:
        """Say in which layer packets of a template are; where something says so already its counters start again."""
        self._put_layer(UPSERT, layers, template, layer)

    def modify_layer(self, layers: int, template: int, layer: Layer) -> None:
        """Say otherwise; counters go on."""
        self._put_layer(MODIFY, layers, template, layer)

    def delete_layer(self, layers: int, template: int) -> None:
        """Say it no more."""
        self._session.put(DELETE, self._layer, (layers, template))

    def layer(self, layers: int, template: int) -> Layer | None:
        """The layer of a template; None when nothing says."""
        row = self._session.get(self._layer, layers, template)
        return None if row is None else Layer(*_parameters(self._layer, row))

    def layers(self) -> list[tuple[int, int]]:
        """All templates that have a layer, each with the number of its set."""
        return [(int.from_bytes(row.key[0], "big"), int.from_bytes(row.key[1], "big")) for row in self._session.rows(self._layer)]

    def count_layer(self, layers: int, template: int) -> Counted:
        """What a template's entry has counted."""
        return _counted(self._session.get(self._layer, layers, template))

    # The replication engine

    def _put_node(self, kind: int, number: int, rid: int | None, ports: Sequence[int], lags: Sequence[int]) -> None:
        data: dict[str, Any] = {"$MULTICAST_LAG_ID": lags, "$DEV_PORT": ports}
        self._session.put(kind, self._nodes, (number,), None, data if rid is None else {"$MULTICAST_RID": rid} | data)

    def insert_node(self, number: int, rid: int, ports: Sequence[int], lags: Sequence[int] = ()) -> None:
        """Make an L1 node, in no tree yet."""
        self._put_node(INSERT, number, rid, ports, lags)

    def modify_node(self, number: int, rid: int | None, ports: Sequence[int], lags: Sequence[int] = ()) -> None:
        """Change a node; rid None: it stays."""
        self._put_node(MODIFY, number, rid, ports, lags)

    def delete_node(self, number: int) -> None:
        """Remove a node, from its tree too."""
        self._session.put(DELETE, self._nodes, (number,))

    def node(self, number: int) -> tuple[int, list[int]] | None:
        """RID and ports of a node; None when there is none."""
        row = self._session.get(self._nodes, number)
        return None if row is None else (row.number("$MULTICAST_RID"), row.data["$DEV_PORT"])

    def nodes(self) -> list[int]:
        """The numbers of all nodes."""
        return [int.from_bytes(row.key[0], "big") for row in self._session.rows(self._nodes)]

    def _put_tree(self, kind: int, mgid: int, members: Members) -> None:
        data = {
            "$MULTICAST_NODE_ID": [node for node, _ in members], "$MULTICAST_NODE_L1_XID_VALID": [xid is not None for _, xid in members],
            "$MULTICAST_NODE_L1_XID": [xid or 0 for _, xid in members],
        }  # fmt: skip
        self._session.put(kind, self._trees, (mgid,), None, data)

    def insert_tree(self, mgid: int, members: Members) -> None:
        """Make a multicast group of these nodes."""
        self._put_tree(INSERT, mgid, members)

    def modify_tree(self, mgid: int, members: Members) -> None:
        """Give a multicast group these nodes."""
        self._put_tree(MODIFY, mgid, members)

    def delete_tree(self, mgid: int) -> None:
        """Remove a multicast group; its nodes stay."""
        self._session.put(DELETE, self._trees, (mgid,))

    def members(self, mgid: int) -> Members | None:
        """The nodes of a multicast group; None when there is no such group."""
        row = self._session.get(self._trees, mgid)
        if row is None:
            return None
        columns = (row.data[f"$MULTICAST_NODE_{name}"] for name in ("ID", "L1_XID_VALID", "L1_XID"))
        return [(node, xid if valid else None) for node, valid, xid in zip(*columns)]

    def trees(self) -> list[int]:
        """The numbers of all multicast groups."""
        return [int.from_bytes(row.key[0], "big") for row in self._session.rows(self._trees)]

    def set_prune(self, l2_xid: int, ports: Sequence[int]) -> None:
        """Say to which ports packets with an L2 XID are not copied."""
        self._session.put(UPSERT, self._prunes, (l2_xid,), None, {"$DEV_PORT": ports})

    def prune(self, l2_xid: int) -> list[int]:
        """The ports to which packets with an L2 XID are not copied."""
        row = self._session.get(self._prunes, l2_xid)
        return [] if row is None else sorted(row.data["$DEV_PORT"])

    def prunes(self) -> dict[int, list[int]]:
        """All L2 XIDs that keep packets from a port."""
        found = {int.from_bytes(row.key[0], "big"): sorted(row.data["$DEV_PORT"]) for row in self._session.rows(self._prunes)}
        return {xid: ports for xid, ports in found.items() if ports}

    def clear(self) -> None:
        """Empty every table of conferences."""
        for table in (*self._streams.values(), self._trees, self._nodes, self._prunes, self._copies, self._layer):
            self._session.clear(table)

    # Packets for the agent

    def receive(self, digest: int, data: pb.TableData) -> None:
        """Keep a packet that came as a digest, if this is one."""
        if digest == self._packet:
            length, frame = data.fields[0].stream, data.fields[1].stream
            self._frames.append(frame[: int.from_bytes(length, "big")])
            self.received_packets += 1

    def take_packets(self) -> list[bytes]:
        """Take the packets that are kept."""
        found, self._frames = self._frames, []
        return found


def _stream_key(key: StreamKey) -> tuple[bytes | int, ...]:
    (saddr, sport), (daddr, dport) = key.flow
    return saddr, daddr, sport, dport, key.ssrc


def _read_stream_key(key: Sequence[bytes]) -> StreamKey:
    saddr, daddr, sport, dport, ssrc = key
    flow = FiveTuple(Endpoint(saddr, int.from_bytes(sport, "big")), Endpoint(daddr, int.from_bytes(dport, "big")))
    return StreamKey(flow, int.from_bytes(ssrc, "big"))


def _parameters(table: Table, row: Row) -> list[int]:
    """The action's parameters in the order of the schema."""
    return [row.number(field.name) for field in table.actions[row.action or ""].fields]


def _counted(row: Row | None) -> Counted:
    assert row is not None, "there is no such entry"
    return Counted(row.number("$COUNTER_SPEC_PKTS"), row.number("$COUNTER_SPEC_BYTES"))
