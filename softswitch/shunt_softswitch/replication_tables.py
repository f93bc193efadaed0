"""The tables of replication over BF Runtime: conference, conference6, copy and the replication engine's, between messages and the data plane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shunt.bfrt.schema import Action, Names, Table
from shunt.net import Endpoint, FiveTuple
from shunt_softswitch.entries import COUNTER_BYTES, COUNTER_PKTS, BfrtError, Code, KeyValue, Values
from shunt_softswitch.pre import Members
from shunt_softswitch.replication import Action as Replicate
from shunt_softswitch.replication import Counted, Layer, Replication, Rewrite, StreamKey
from shunt_softswitch.served import Row, Served


def replication_tables(tables: Names[Table], replication: Replication | None) -> list[Served]:
    """The tables of a Replication; without one there are none."""
    if replication is None:
        return []
    served: list[Served] = [_Streams(tables[name], replication) for name in ("pipe.Ingress.conference", "pipe.Ingress.conference6")]
    served += [_Receptions(tables[name], replication) for name in ("softswitch.reception", "softswitch.reception6")]
    served += [_Layers(tables["pipe.Ingress.layer"], replication), _Copies(tables["pipe.Egress.copy"], replication), _Trees(tables["$pre.mgid"], replication)]
    served += [_Nodes(tables["$pre.node"], replication), _Prunes(tables["$pre.prune"], replication)]
    return served


class _Replicating(Served):
    """A table of a Replication."""

    def __init__(self, table: Table, replication: Replication) -> None:
        super().__init__(table)
        self.replication = replication


class _Matched(_Replicating):
    """A table of the program: actions with parameters, counters."""

    def _action(self, action: Action | None, values: Values) -> dict[str, bytes]:
        if action is None:
            raise BfrtError(Code.INVALID, f"No action given; table:{self.table.name}")
        if action.default_only:
            raise BfrtError(Code.INVALID, f"{action.name} is for the default entry only; table:{self.table.name}")
        for counter in (COUNTER_PKTS, COUNTER_BYTES):
            value = values.get(counter, b"")
            if isinstance(value, bytes) and any(value):
                raise BfrtError(Code.UNSUPPORTED, f"Counters can be set to zero only; table:{self.table.name}")
        found = {}
        for field in action.fields:
            value = values.get(field.id, bytes(field.size or 0))
            assert isinstance(value, bytes)
            found[field.name] = value
        return found

    @staticmethod
    def _row_data(action: Action, values: list[int | bytes], counted: Counted) -> Values:
        data: Values = {COUNTER_BYTES: counted.bytes.to_bytes(8, "big"), COUNTER_PKTS: counted.packets.to_bytes(8, "big")}
        for field, value in zip(action.fields, values):
            data[field.id] = value if isinstance(value, bytes) else int(value).to_bytes(field.size or 0, "big")
        return data


class _OfStreams(_Matched):
    """A table with a row for each stream of an IP version."""

    def __init__(self, table: Table, replication: Replication) -> None:
        super().__init__(table, replication)
        self.size = table.key.by_id[1].size

    def key(self, key: dict[int, KeyValue]) -> StreamKey:
        parts = [value for value in (key[n] for n in range(1, 6)) if isinstance(value, bytes)]
        saddr, daddr, sport, dport, ssrc = parts
        flow = FiveTuple(Endpoint(saddr, int.from_bytes(sport, "big")), Endpoint(daddr, int.from_bytes(dport, "big")))
        return StreamKey(flow, int.from_bytes(ssrc, "big"))

    def keys(self) -> Iterator[StreamKey]:
        return (key for key in self.replication.streams() if len(key.flow.dst.addr) == self.size)

    def has(self, key: StreamKey) -> bool:
        return self.replication.stream(key) is not None

    @staticmethod
    def _key_values(key: StreamKey) -> list[int | bytes]:
        (saddr, sport), (daddr, dport) = key.flow
        return [saddr, daddr, sport, dport, key.ssrc]


class _Receptions(_OfStreams):
    """`softswitch.reception` or `reception6`: how streams have been received."""

    def _refuse(self) -> BfrtError:
        return BfrtError(Code.UNSUPPORTED, f"{self.table.name} can only be read")

    def data(self, action: Action | None, values: Values, there: bool) -> Any:
        raise self._refuse()

    def insert(self, key: StreamKey, data: Any) -> None:
        raise self._refuse()

    def modify(self, key: StreamKey, data: Any) -> None:
        raise self._refuse()

    def delete(self, key: StreamKey) -> None:
        raise self._refuse()

    def state(self, key: StreamKey) -> Any:
        return self.replication.stream(key)

    def row(self, key: StreamKey) -> Row:
        stats = self.replication.reception(key)
        # What outgrows its field stays at the largest value rather than starting again at zero.
        values = {field: min(getattr(stats, field.name) or 0, (1 << (field.width or 0)) - 1) for field in self.table.data}
        return Row(self._key_values(key), None, {field.id: value.to_bytes(field.size or 0, "big") for field, value in values.items()})


class _Streams(_OfStreams):
    """`conference` or `conference6`."""

    def __init__(self, table: Table, replication: Replication) -> None:
        super().__init__(table, replication)
        self.replicate = next(action for action in table.actions if not action.default_only)

    def data(self, action: Action | None, values: Values, there: bool) -> Replicate:
        given = {name: int.from_bytes(value, "big") for name, value in self._action(action, values).items()}
        return Replicate(given["mgid"], given["l1_xid"], given["rid"], given["l2_xid"], given["stream"], bool(given["to_agent"]), *(given[name] for name in Replicate._fields[6:]))

    def insert(self, key: StreamKey, data: Replicate) -> None:
        self.replication.insert_stream(key, data)

    def modify(self, key: StreamKey, data: Replicate) -> None:
        self.replication.modify_stream(key, data)

    def delete(self, key: StreamKey) -> None:
        self.replication.delete_stream(key)

    def reset(self, key: StreamKey) -> None:
        self.replication.reset_stream(key)

    def state(self, key: StreamKey) -> Replicate | None:
        return self.replication.stream(key)

    def row(self, key: StreamKey) -> Row:
        action = self.replication.stream(key)
        assert action is not None
        return Row(self._key_values(key), self.replicate, self._row_data(self.replicate, list(action), self.replication.count_stream(key)))


class _Layers(_Matched):
    """`layer`."""

    def __init__(self, table: Table, replication: Replication) -> None:
        super().__init__(table, replication)
        self.set_layer = table.actions["set_layer"]

    def key(self, key: dict[int, KeyValue]) -> tuple[int, int]:
        layers, template = key[1], key[2]
        assert isinstance(layers, bytes) and isinstance(template, bytes)
        return int.from_bytes(layers, "big"), int.from_bytes(template, "big")

    def keys(self) -> Iterator[tuple[int, int]]:
        return self.replication.layers()

    def has(self, key: tuple[int, int]) -> bool:
        return self.replication.layer(*key) is not None

    def data(self, action: Action | None, values: Values, there: bool) -> Layer:
        return Layer(*(int.from_bytes(value, "big") for value in self._action(action, values).values()))

    def insert(self, key: tuple[int, int], data: Layer) -> None:
        if self.has(key):
            raise BfrtError(Code.EXISTS, f"Entry already exists in table:{self.table.name}")
        self.replication.put_layer(*key, data)

    def modify(self, key: tuple[int, int], data: Layer) -> None:
        self.there(key)
        self.replication.put_layer(*key, data)

    def delete(self, key: tuple[int, int]) -> None:
        self.there(key)
        self.replication.delete_layer(*key)

    def reset(self, key: tuple[int, int]) -> None:
        layer = self.replication.layer(*key)
        assert layer is not None
        self.replication.put_layer(*key, layer, reset=True)

    def state(self, key: tuple[int, int]) -> Layer | None:
        return self.replication.layer(*key)

    def row(self, key: tuple[int, int]) -> Row:
        layer = self.replication.layer(*key)
        assert layer is not None
        return Row(list(key), self.set_layer, self._row_data(self.set_layer, list(layer), self.replication.count_layer(*key)))


class _Copies(_Matched):
    """`copy`."""

    def __init__(self, table: Table, replication: Replication) -> None:
        super().__init__(table, replication)
        self.to = {4: table.actions["copy_to"], 16: table.actions["copy_to_v6"]}

    def key(self, key: dict[int, KeyValue]) -> tuple[int, int]:
        number, rid = key[1], key[2]
        assert isinstance(number, bytes) and isinstance(rid, bytes)
        return int.from_bytes(number, "big"), int.from_bytes(rid, "big")

    def keys(self) -> Iterator[tuple[int, int]]:
        return self.replication.copies()

    def has(self, key: tuple[int, int]) -> bool:
        return self.replication.copy(*key) is not None

    def data(self, action: Action | None, values: Values, there: bool) -> Rewrite:
        given = self._action(action, values)
        src = Endpoint(given["src_addr"], int.from_bytes(given["src_port"], "big"))
        dst = Endpoint(given["dst_addr"], int.from_bytes(given["dst_port"], "big"))
        return Rewrite(src, dst, *(int.from_bytes(given[name], "big") for name in Rewrite._fields[2:]))

    def insert(self, key: tuple[int, int], data: Rewrite) -> None:
        self.replication.insert_copy(*key, data)

    def modify(self, key: tuple[int, int], data: Rewrite) -> None:
        self.replication.modify_copy(*key, data)

    def delete(self, key: tuple[int, int]) -> None:
        self.replication.delete_copy(*key)

    def reset(self, key: tuple[int, int]) -> None:
        self.replication.reset_copy(*key)

    def state(self, key: tuple[int, int]) -> Rewrite | None:
        return self.replication.copy(*key)

    def row(self, key: tuple[int, int]) -> Row:
        rewrite = self.replication.copy(*key)
        assert rewrite is not None
        action = self.to[len(rewrite.dst.addr)]
        values: list[int | bytes] = [rewrite.src.addr, rewrite.dst.addr, rewrite.src.port, rewrite.dst.port, *rewrite[2:]]
        return Row(list(key), action, self._row_data(action, values, self.replication.count_copy(*key)))


class _Trees(_Replicating):
    """`$pre.mgid`."""

    def keys(self) -> Iterator[int]:
        return iter(self.replication.engine.trees)

    def has(self, key: int) -> bool:
        return key in self.replication.engine.trees

    def data(self, action: Action | None, values: Values, there: bool) -> Members:
        nodes = self._list(values, "$MULTICAST_NODE_ID")
        valid = self._list(values, "$MULTICAST_NODE_L1_XID_VALID")
        xids = self._list(values, "$MULTICAST_NODE_L1_XID")
        if not len(nodes) == len(valid) == len(xids):
            raise BfrtError(Code.INVALID, f"Multicast Node IDs size {len(nodes)}, Node L1 XIDs Valid size {len(valid)} and Node L1 XIDs size {len(xids)} do not match; table:{self.table.name}")
        if any(self._list(values, name) for name in ("$MULTICAST_ECMP_ID", "$MULTICAST_ECMP_L1_XID_VALID", "$MULTICAST_ECMP_L1_XID")):
            raise BfrtError(Code.INVALID, f"There are no ECMP groups here; table:{self.table.name}")
        return [(node, xid if use else None) for node, use, xid in zip(nodes, valid, xids)]

    def insert(self, key: int, data: Members) -> None:
        self.replication.insert_tree(key, data)

    def modify(self, key: int, data: Members) -> None:
        self.replication.modify_tree(key, data)

    def delete(self, key: int) -> None:
        self.replication.delete_tree(key)

    def state(self, key: int) -> Members | None:
        return self.replication.engine.members(key) if self.has(key) else None

    def row(self, key: int) -> Row:
        members = self.replication.engine.members(key)
        data = self._named(
            MULTICAST_NODE_ID=[node for node, _ in members],
            MULTICAST_NODE_L1_XID_VALID=[xid is not None for _, xid in members],
            MULTICAST_NODE_L1_XID=[xid or 0 for _, xid in members],
            MULTICAST_ECMP_ID=[],
            MULTICAST_ECMP_L1_XID_VALID=[],
            MULTICAST_ECMP_L1_XID=[],
        )
        return Row([key], None, data)


class _Nodes(_Replicating):
    """`$pre.node`."""

    def keys(self) -> Iterator[int]:
        return iter(self.replication.engine.nodes)

    def has(self, key: int) -> bool:
        return key in self.replication.engine.nodes

    def data(self, action: Action | None, values: Values, there: bool) -> tuple[int | None, list[int], list[int]]:
        rid = values.get(self.fields["$MULTICAST_RID"].id)
        number = int.from_bytes(rid, "big") if isinstance(rid, bytes) else None if there else 0
        return number, self._list(values, "$DEV_PORT"), self._list(values, "$MULTICAST_LAG_ID")

    def insert(self, key: int, data: tuple[int | None, list[int], list[int]]) -> None:
        rid, ports, lags = data
        self.replication.insert_node(key, rid or 0, ports, lags)

    def modify(self, key: int, data: tuple[int | None, list[int], list[int]]) -> None:
        self.replication.modify_node(key, *data)

    def delete(self, key: int) -> None:
        self.replication.delete_node(key)

    def state(self, key: int) -> tuple[int | None, list[int], list[int]] | None:
        node = self.replication.engine.nodes.get(key)
        return None if node is None else (node.rid, [] if node.port is None else [node.port], [])

    def restore(self, key: int) -> Callable[[], None]:
        back = super().restore(key)
        node = self.replication.engine.nodes.get(key)
        mgid = node.mgid if node is not None else None
        members = self.replication.engine.members(mgid) if mgid is not None else []

        def back_in_tree() -> None:
            gone = not self.has(key)
            back()
            if gone and mgid is not None:
                self.replication.modify_tree(mgid, members)

        return back_in_tree

    def row(self, key: int) -> Row:
        node = self.replication.engine.nodes[key]
        ports = [] if node.port is None else [node.port]
        return Row([key], None, self._named(MULTICAST_RID=node.rid.to_bytes(2, "big"), MULTICAST_LAG_ID=[], DEV_PORT=ports))


class _Prunes(_Replicating):
    """`$pre.prune`: to the driver every L2 XID has an entry, which may be empty."""

    def keys(self) -> Iterator[int]:
        return iter(self.replication.engine.prunes)

    def has(self, key: int) -> bool:
        return 0 <= key < self.table.size

    def data(self, action: Action | None, values: Values, there: bool) -> list[int]:
        return self._list(values, "$DEV_PORT")

    def insert(self, key: int, data: list[int]) -> None:
        self.replication.set_prune(key, data)

    modify = insert

    def delete(self, key: int) -> None:
        self.replication.set_prune(key, [])

    def state(self, key: int) -> list[int]:
        return sorted(self.replication.engine.prunes.get(key, ()))

    def row(self, key: int) -> Row:
        return Row([key], None, self._named(DEV_PORT=self.state(key)))
