"""BMv2 as a switch that speaks BF Runtime: the schema of the compiled program in front, simple_switch with its v1model twin behind.

What a client writes is checked against the schema and put into BMv2's table of the same name, with the same action and parameters;
learn notices come back as digests, direct counters and registers of one field as they stand in BMv2 (byte counters count frames there).
The replication engine and its mirror sessions are BMv2's own, with the twin's tables for what that does not prune.
So whatever programs a Tofino can be run where there is none.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import grpc

from tests.bfrt.fake_switch import FakeSwitch, Refused
from tests.p4.bmv2 import Bmv2
from tests.p4.program import GENERATED
from tests.softswitch import schema as softswitch_schema
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.bfrt.schema import MATCH_PRIORITY, Field, Table
from tests.tools.entry import LearnNotice

_INVALID, _INTERNAL = 3, 13
_PATIENCE = 0.2  # seconds between two looks whether the client is still there


class Bmv2Target(FakeSwitch):
    """Serves the tables of a running BMv2 by the names of the program that was compiled for Tofino."""

    def __init__(self, device: Bmv2, counters: Mapping[str, str], schema: Path = GENERATED / "relay.tofino1.bf-rt.json") -> None:
        """counters: the device's direct counters by table."""
        super().__init__(schema.read_bytes(), fixed=FIXED)
        self.device = device
        self.counters = counters
        self._telling: asyncio.Task[None] | None = None
        self._commands: list[str] = []
        self._added: list[Hashable] = []  # whose handles the next commands' answers have
        self._handles: dict[Hashable, int] = {}
        self._rids: dict[int, int] = {}  # by node
        prune = self.table("$pre.prune")
        for number in range(prune.size):  # has all its rows from the start
            self.entries[prune.id][((next(iter(prune.key)).id, number.to_bytes(2, "big")),)] = pb.TableData()

    async def SetForwardingPipelineConfig(self, request: Any, context: Any) -> pb.SetForwardingPipelineConfigResponse:
        reply = await super().SetForwardingPipelineConfig(request, context)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())
        return reply

    async def _tell(self) -> None:
        """Pass notices on to the client that is bound, as long as there is one."""
        while self.owned:
            for notice in await asyncio.to_thread(self.device.notices, 1, patience=_PATIENCE):
                self.notify(self._digest(notice))

    def _digest(self, notice: LearnNotice) -> pb.StreamMessageResponse:
        learn = self.schema.learns["learn6" if notice.key.src.version == 6 else "learn"]
        values = {
            "src_addr": notice.key.src.addr, "dst_addr": notice.key.dst.addr, "src_port": notice.key.src.port, "dst_port": notice.key.dst.port,
            "rtp_version": notice.rtp_version, "payload_type": notice.payload_type, "seq": notice.seq, "ssrc": notice.ssrc,
        }  # fmt: skip
        reply = pb.StreamMessageResponse()
        reply.digest.digest_id = learn.id
        data = reply.digest.data.add()
        for field in learn.fields:
            value = values[field.name]
            data.fields.add(field_id=field.id, stream=value if isinstance(value, bytes) else value.to_bytes(field.size or 1, "big"))
        return reply

    async def Write(self, request: pb.WriteRequest, context: grpc.aio.ServicerContext) -> pb.WriteResponse:
        before = {number: dict(held) for number, held in self.entries.items()}
        self._commands, self._added = [], []
        try:
            return await super().Write(request, context)
        finally:
            try:
                self._run()
            except RuntimeError as error:
                self.entries = before
                await context.abort(grpc.StatusCode.INTERNAL, str(error))

    def _run(self) -> None:
        """Carry out what a request has come to. Raises RuntimeError with BMv2's words."""
        if not self._commands:
            return
        commands, added, self._commands, self._added = self._commands, self._added, [], []
        printed = self.device.cli(commands)
        handles = [int(line.rpartition(" ")[2]) for line in printed.splitlines() if "added with handle " in line or "created with handle " in line]
        if len(handles) != len(added):
            raise RuntimeError(f"{len(added)} entries added, {len(handles)} handles")
        self._handles.update(zip(added, handles, strict=True))

    def _handle(self, of: Hashable) -> int:
        """Of what may have been added a moment ago."""
        if of in self._added:
            self._run()
        return self._handles[of]

    def _write(self, update: pb.Update) -> None:
        entry = update.entity.table_entry
        if update.entity.WhichOneof("entity") != "table_entry":
            super()._write(update)
            return
        table = self.schema.tables.by_id[entry.table_id]
        name = table.name.removeprefix("pipe.")
        if entry.is_default_entry:
            self._check(table, entry.data)
            self._commands.append(f"table_set_default {name} {' '.join(self._action(table, entry.data))}")
            return
        if not entry.HasField("key"):
            raise Refused(_INVALID, f"emptying a table at once: {name}")
        key = self._key(table, entry.key)
        if table.type == "Register":
            self._check(table, entry.data)
            words = {field.field_id: field.stream for field in entry.data.fields}
            # What the chip's units have beside a word of 32 bits is for their own working: the twin has not got it.
            row = b"".join(words[number] for number in sorted(words))[:4]
            self._commands.append(f"register_write {_register(name)} {int.from_bytes(key[0][1], 'big')} {int.from_bytes(row, 'big')}")
            return
        before = self._values(table, self.entries[table.id].get(key))
        super()._write(update)
        if update.type not in (pb.Update.INSERT, pb.Update.MODIFY, pb.Update.DELETE):
            raise Refused(_INVALID, f"{pb.Update.Type.Name(update.type)} of an entry")
        if name in _ENGINE:
            _ENGINE[name](self, int.from_bytes(key[0][1], "big"), before, self._values(table, self.entries[table.id].get(key)))
            return
        match update.type:
            case pb.Update.INSERT:
                action, *values = self._action(table, entry.data)
                self._commands.append(f"table_add {name} {action} {self._match(table, key)} => {' '.join(values)}{self._priority(table, key)}")
                self._added.append((table.id, key))
            case pb.Update.MODIFY:
                action, *values = self._action(table, entry.data)
                self._commands.append(f"table_modify {name} {action} {self._handle((table.id, key))} {' '.join(values)}")
            case _:
                self._commands.append(f"table_delete {name} {self._handle((table.id, key))}")
                del self._handles[table.id, key]

    # -- the replication engine: what there was, and what there is to be; None: nothing ---------------------------------

    def _values(self, table: Table, data: pb.TableData | None) -> dict[str, Any] | None:
        """What an entry of one of the target's own tables says."""
        if data is None or not table.name.startswith("$"):
            return None
        fields = table.data.by_id | {field.id: field for action in table.actions for field in action.fields}
        found = {}
        for field in data.fields:
            kind = field.WhichOneof("value")
            value = getattr(field, kind)
            found[fields[field.field_id].name] = int.from_bytes(value, "big") if kind == "stream" else value if kind in ("bool_val", "str_val") else list(value.val)
        return found

    def _node(self, number: int, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        ports = " ".join(map(str, after["$DEV_PORT"])) if after is not None else ""
        if after is None:
            self._commands.append(f"mc_node_destroy {self._handle(('node', number))}")
            del self._handles["node", number], self._rids[number]
        elif before is None:
            self._commands.append(f"mc_node_create {after['$MULTICAST_RID']} {ports}")
            self._added.append(("node", number))
            self._rids[number] = after["$MULTICAST_RID"]
        else:
            self._commands.append(f"mc_node_update {self._handle(('node', number))} {ports}")

    def _tree(self, number: int, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        """Nodes by their handles, and a row of Pre.node for each whose L1 XID is valid."""
        was, now = _members(before), _members(after)
        for node, xid in was - now:
            if node in self._rids:
                self._commands.append(f"mc_node_dissociate {number} {self._handle(('node', node))}")
            if xid is not None:
                self._commands.append(f"table_delete Pre.node {self._handle(('xid', number, node))}")
                del self._handles["xid", number, node]
        if after is None:
            self._commands.append(f"mc_mgrp_destroy {number}")
        elif before is None:
            self._commands.append(f"mc_mgrp_create {number}")
        for node, xid in now - was:
            handle = self._handle(("node", node))
            self._commands.append(f"mc_node_associate {number} {handle}")
            if xid is not None:
                self._commands.append(f"table_add Pre.node Pre.same_l1_xid {number} {self._rids[node]} => {xid}")
                self._added.append(("xid", number, node))

    def _prune(self, number: int, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        was, now = (set(ports["$DEV_PORT"]) if ports else set() for ports in (before, after))
        for port in was - now:
            self._commands.append(f"table_delete Pre.prune {self._handle(('prune', number, port))}")
            del self._handles["prune", number, port]
        for port in now - was:
            self._commands.append(f"table_add Pre.prune Pre.same_rid {number} {port} =>")
            self._added.append(("prune", number, port))

    def _mirror(self, number: int, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        self._commands.append(f"mirroring_delete {number}" if after is None else f"mirroring_add {number} {after['$ucast_egress_port']}")

    def _read(self, entity: pb.Entity, response: pb.ReadResponse) -> None:
        if entity.WhichOneof("entity") == "table_entry":
            table = self.schema.tables.by_id[entity.table_entry.table_id]
            name = table.name.removeprefix("pipe.")
            if name in self.counters:
                keys = list(self.entries[table.id])
                counted = self.device.counted(self.counters[name], [self._handles[table.id, key] for key in keys]) if keys else []
                self.counted.update({(table.id, key): both for key, both in zip(keys, counted, strict=True)})
            elif table.type == "Register" and len(table.data) == 1:
                key = self._key(table, entity.table_entry.key)
                (field,) = table.data
                value = self.device.register(_register(name), int.from_bytes(key[0][1], "big"))
                data = self.entries[table.id][key] = pb.TableData()
                data.fields.add(field_id=field.id, stream=value.to_bytes(field.size or 1, "big"))
        super()._read(entity, response)

    def _action(self, table: Table, data: pb.TableData) -> list[str]:
        """The action and its parameters as words."""
        action = table.actions.by_id[data.action_id]
        given = {field.field_id: field.stream for field in data.fields}
        return [action.name, *(f"{int.from_bytes(given[field.id], 'big'):#x}" for field in sorted(action.fields, key=lambda field: field.id))]

    def _match(self, table: Table, key: tuple[Any, ...]) -> str:
        return " ".join(_word(table.key.by_id[number], value) for number, value in key if table.key.by_id[number].name != MATCH_PRIORITY)

    def _priority(self, table: Table, key: tuple[Any, ...]) -> str:
        found = [value for number, value in key if table.key.by_id[number].name == MATCH_PRIORITY]
        return f" {int.from_bytes(found[0], 'big')}" if found else ""


FIXED = json.dumps({"tables": [table for table in softswitch_schema.document("fixed")["tables"] if table["name"].startswith(("$pre.", "$mirror."))]}).encode()
_ENGINE = {"$pre.node": Bmv2Target._node, "$pre.mgid": Bmv2Target._tree, "$pre.prune": Bmv2Target._prune, "$mirror.cfg": Bmv2Target._mirror}


def _register(name: str) -> str:
    """The twin's name of a register: where the program gives it none, it has that of the control around it, which is another there."""
    return f"Packet{name}" if name.startswith("Ingress.pipeline.") else name


def _members(tree: dict[str, Any] | None) -> set[tuple[int, int | None]]:
    """(node, its L1 XID where that is valid) of a tree."""
    if tree is None:
        return set()
    arrays = (tree[f"$MULTICAST_NODE_{part}"] for part in ("ID", "L1_XID_VALID", "L1_XID"))
    return {(node, xid if valid else None) for node, valid, xid in zip(*arrays, strict=True)}


def _word(field: Field, value: Any) -> str:
    """A key field as BMv2's command line has it."""
    match field.match:
        case "Ternary":
            return f"0x{value[0].hex()}&&&0x{value[1].hex()}"
        case "LPM":
            return f"0x{value[0].hex()}/{value[1]}"
        case "Range":
            return f"0x{value[0].hex()}->0x{value[1].hex()}"
        case _:
            return f"0x{value.hex()}"
