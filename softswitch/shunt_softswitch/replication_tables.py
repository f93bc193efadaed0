"""The tables of replication over BF Runtime: conference, conference6, copy and the replication engine's, between messages and the data plane."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.schema import Action, Names, Table
from shunt.net import Endpoint, FiveTuple
from shunt_softswitch.entries import COUNTER_BYTES, COUNTER_PKTS, BfrtError, Code, KeyValue, Values
from shunt_softswitch.pre import Members
from shunt_softswitch.replication import Action as Replicate
from shunt_softswitch.replication import Counted, Layer, Replication, Rewrite, StreamKey

log = logging.getLogger(__name__)

_INSERT, _MODIFY, _DELETE, _UPSERT = pb.Update.INSERT, pb.Update.MODIFY, pb.Update.DELETE, pb.Update.INSERT_OR_MODIFY


@dataclass(frozen=True, slots=True)
class Row:
    """One entry as it is read: the key's values in the order of the schema, the action, all data by field number."""

    key: list[int | bytes]
    action: Action | None
    data: Values


class ReplicationTables:
    """Serves the tables of a Replication; without one it serves none."""

    def __init__(self, tables: Names[Table], replication: Replication | None) -> None:
        self._undo: list[Callable[[], None]] | None = None
        self._tables: dict[int, _Served] = {}
        if replication is None:
            return
        self._replication = replication
        served: list[_Served] = [_Streams(tables[name], replication) for name in ("pipe.Ingress.conference", "pipe.Ingress.conference6")]
        served += [_Layers(tables["pipe.Ingress.layer"], replication), _Copies(tables["pipe.Egress.copy"], replication), _Trees(tables["$pre.mgid"], replication)]
        served += [_Nodes(tables["$pre.node"], replication), _Prunes(tables["$pre.prune"], replication)]
        self._tables = {one.table.id: one for one in served}

    def __contains__(self, table_id: int) -> bool:
        return table_id in self._tables

    def write(self, kind: int, table: Table, key: dict[int, KeyValue], action: Action | None, values: Values, *, reset: bool) -> bool:
        """One keyed update, which succeeds whole or changes nothing; whether INSERT_OR_MODIFY found the entry there. Raises BfrtError.

        reset: the entry's counters start again.
        """
        served = self._tables[table.id]
        number = served.key(key)
        there = served.has(number)
        if kind == _UPSERT:
            kind, existed = (_MODIFY, True) if there else (_INSERT, False)
            reset = existed
        else:
            existed = False
        inverse = served.restore(number) if self._undo is not None else None
        if kind == _DELETE:
            served.delete(number)
        else:
            data = served.data(action, values, there)
            if kind == _INSERT:
                served.insert(number, data)
            else:
                served.modify(number, data)
                if reset or any(counter in values for counter in (COUNTER_PKTS, COUNTER_BYTES)):
                    served.reset(number)
        if self._undo is not None and inverse is not None:
            self._undo.append(inverse)
        return existed

    def clear(self, table: Table) -> None:
        """Delete every entry of one table. Raises BfrtError."""
        served = self._tables[table.id]
        for number in list(served.keys()):
            if self._undo is not None:
                self._undo.append(served.restore(number))
            served.delete(number)

    def clear_all(self) -> None:
        """Empty all of the tables."""
        if self._tables:
            self._replication.clear()

    def rows(self, table: Table) -> Iterator[Row]:
        """All entries."""
        served = self._tables[table.id]
        for number in list(served.keys()):
            if served.has(number):
                yield served.row(number)

    def row(self, table: Table, key: dict[int, KeyValue]) -> Row:
        """One entry. Raises BfrtError."""
        served = self._tables[table.id]
        number = served.key(key)
        if not served.has(number):
            raise BfrtError(Code.NOT_FOUND, f"Entry not found in table:{table.name}")
        return served.row(number)

    def counts(self) -> dict[str, int]:
        """What became of packets for the agent, by the names of `softswitch.totals`."""
        return self._replication.agent_counts() if self._tables else {}

    def usage(self, table: Table) -> int:
        """How many entries there are."""
        return sum(1 for _ in self._tables[table.id].keys())

    def begin(self) -> None:
        """From here on changes are noted, so that roll_back() can take them back."""
        self._undo = []

    def commit(self) -> None:
        """Forget what was noted."""
        self._undo = None

    def roll_back(self) -> None:
        """Take back what changed since begin()."""
        undo, self._undo = self._undo or [], None
        for step in reversed(undo):
            try:
                step()
            except BfrtError:
                log.exception("a change to the replication tables cannot be taken back")


def set_key(message: pb.TableKey, table: Table, values: list[int | bytes]) -> None:
    """Fill in a key of exact fields."""
    for field, value in zip(table.key, values):
        out = message.fields.add()
        out.field_id = field.id
        out.exact.value = value if isinstance(value, bytes) else value.to_bytes(field.size or 0, "big")


class _Served(ABC):
    """One table: between its messages and the data plane."""

    def __init__(self, table: Table, replication: Replication) -> None:
        self.table = table
        self.replication = replication
        self.fields = {field.name: field for field in table.data}

    def key(self, key: dict[int, KeyValue]) -> Any:
        """What names an entry; a number for the engine's tables."""
        value = key[1]
        assert isinstance(value, bytes)
        return int.from_bytes(value, "big")

    @abstractmethod
    def keys(self) -> Iterator[Any]: ...

    @abstractmethod
    def has(self, key: Any) -> bool: ...

    @abstractmethod
    def data(self, action: Action | None, values: Values, there: bool) -> Any: ...

    @abstractmethod
    def insert(self, key: Any, data: Any) -> None: ...

    @abstractmethod
    def modify(self, key: Any, data: Any) -> None: ...

    @abstractmethod
    def delete(self, key: Any) -> None: ...

    @abstractmethod
    def state(self, key: Any) -> Any:
        """The entry's data as insert() takes it; None when it is absent."""

    def restore(self, key: Any) -> Callable[[], None]:
        """What brings this entry, absent or not, back to how it is now."""
        before = self.state(key)

        def back() -> None:
            there = self.state(key) is not None
            if before is None:
                if there:
                    self.delete(key)
            else:
                (self.modify if there else self.insert)(key, before)

        return back

    @abstractmethod
    def row(self, key: Any) -> Row: ...

    def reset(self, key: Any) -> None:
        """Counters to 0, where there are any."""

    def _list(self, values: Values, name: str) -> list[Any]:
        """An array; absent is empty. Raises BfrtError for numbers that are too wide."""
        field = self.fields[name]
        value = values.get(field.id, [])
        assert isinstance(value, list)
        if field.width is not None and any(not 0 <= item < 1 << field.width for item in value):
            raise BfrtError(Code.INVALID, f"{name} is {field.width} bits wide; table:{self.table.name}")
        return value

    def _named(self, **values: Any) -> Values:
        """Data by field number, of values by the field's name without its mark."""
        return {self.fields["$" + name].id: value for name, value in values.items()}


class _Matched(_Served):
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


class _Streams(_Matched):
    """`conference` or `conference6`."""

    def __init__(self, table: Table, replication: Replication) -> None:
        super().__init__(table, replication)
        self.size = table.key.by_id[1].size
        self.replicate = next(action for action in table.actions if not action.default_only)

    def key(self, key: dict[int, KeyValue]) -> StreamKey:
        parts = [value for value in (key[n] for n in range(1, 6)) if isinstance(value, bytes)]
        saddr, daddr, sport, dport, ssrc = parts
        flow = FiveTuple(Endpoint(saddr, int.from_bytes(sport, "big")), Endpoint(daddr, int.from_bytes(dport, "big")))
        return StreamKey(flow, int.from_bytes(ssrc, "big"))

    def keys(self) -> Iterator[StreamKey]:
        return (key for key in self.replication.streams() if len(key.flow.dst.addr) == self.size)

    def has(self, key: StreamKey) -> bool:
        return self.replication.stream(key) is not None

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
        (saddr, sport), (daddr, dport) = key.flow
        return Row([saddr, daddr, sport, dport, key.ssrc], self.replicate, self._row_data(self.replicate, list(action), self.replication.count_stream(key)))


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
        self._there(key)
        self.replication.put_layer(*key, data)

    def delete(self, key: tuple[int, int]) -> None:
        self._there(key)
        self.replication.delete_layer(*key)

    def reset(self, key: tuple[int, int]) -> None:
        layer = self.replication.layer(*key)
        assert layer is not None
        self.replication.put_layer(*key, layer, reset=True)

    def _there(self, key: tuple[int, int]) -> None:
        if not self.has(key):
            raise BfrtError(Code.NOT_FOUND, f"Entry not found in table:{self.table.name}")

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


class _Trees(_Served):
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


class _Nodes(_Served):
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


class _Prunes(_Served):
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
