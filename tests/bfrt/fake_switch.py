"""A double of bf_switchd: a BF Runtime server that keeps the tables of any schema in memory, entry by entry, as the protocol has them.

Unlike the softswitch it knows nothing of relaying, so it serves whatever the compiler made of a program.
Counters count when a test says so, registers hold what a test puts in, in each of four pipes.

Sessions are as in open-p4studio's bf_rt_server_mgr.cpp and bf_rt_server_impl.cpp: a client id is one client's until its stream ends, one client
owns a program, an operation of a client waits for its last one, callbacks find their client by 24 bits of its id, a whole table is read at once and
comes in one message, and gRPC's defaults are in force but for the size of requests.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import status_pb2

from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.bfrt._pb import bfruntime_pb2_grpc
from tests.tools.bfrt.schema import Schema, Table

PIPES = 4
_PARTS = {"Exact": ("value",), "Range": ("low", "high"), "Ternary": ("value", "mask"), "LPM": ("value", "prefix_len")}
_NOT_FOUND, _EXISTS, _INVALID, _NO_SPACE = 5, 6, 3, 8
_AT_ONCE = 200  # entries that are read before other clients have their turn
_COOKIE_MASK = 0x00FF_FFFF  # bf_switchd packs the device id into the upper 8 bits of the cookie of a callback


class Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def _whole(name: str, address: int) -> dict[str, Any]:
    fields = {"src_addr": address, "dst_addr": address, "src_port": 16, "dst_port": 16}
    keys = [{"name": f"hdr.{field}", "bit_width": width} for field, width in fields.items()]
    return {"name": name, "match_key_fields": keys, "match_attributes": {"stage_tables": [{"stage_table_type": "hash_match"}]}}


# The context.json of a build with RELAY_KEY=exact, reduced to what the agent reads.
WHOLE_KEYS = json.dumps({"tables": [_whole("Ingress.relay", 32), _whole("Ingress.relay6", 128)]}).encode()


class FakeSwitch(bfruntime_pb2_grpc.BfRuntimeServicer):
    """Entries by table and key: {table id: {key as sorted (field id, bytes): TableData}}."""

    def __init__(self, program: bytes, *, fixed: bytes = b'{"tables": []}', contexts: tuple[bytes, ...] = (WHOLE_KEYS,), name: str = "relay") -> None:
        self.program, self.fixed, self.contexts, self.name = program, fixed, contexts, name
        self.schema = Schema.parse(program, fixed)
        self.entries: dict[int, dict[tuple[Any, ...], pb.TableData]] = {table.id: {} for table in self.schema.tables}
        self.attributes: list[pb.TableAttribute] = []
        self.counted: dict[tuple[int, tuple[Any, ...]], tuple[int, int]] = {}
        self.writes = 0
        self.updates: list[tuple[str, int]] = []  # (table, update type) as they came
        self.port = 0
        self.read_s = 0.0  # that reading one entry takes; the session is locked meanwhile
        self.time_left: dict[tuple[Any, ...], int] = {}  # ms until an entry is idle, by key as in `entries`; of others what was written
        self.sessions = 0  # bindings so far
        self.whole_reads = 0  # tables that were read as a whole
        self.asked: Counter[tuple[str, str]] = Counter()  # entities of reads, by table, and "key" or "all"
        self.room: int | None = None  # for entries of each table, where not what the schema says
        self._streams: dict[int, asyncio.Queue[pb.StreamMessageResponse | None]] = {}  # by client id; None ends one
        self._owner: int | None = None  # the client that is bound
        self._cookie: int | None = None  # of the callbacks that the binding registered
        self._sessions: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)  # by client id: one operation at a time

    def table(self, name: str) -> Table:
        return self.schema.tables[name]

    def held(self, name: str) -> dict[tuple[Any, ...], pb.TableData]:
        """A table's entries by the values of their key fields, in the order of the schema."""
        return {tuple(value for _, value in key): data for key, data in self.entries[self.table(name).id].items()}

    async def StreamChannel(self, requests: AsyncIterator[pb.StreamMessageRequest], context: grpc.aio.ServicerContext) -> AsyncIterator[pb.StreamMessageResponse]:
        client_id = (await anext(aiter(requests))).client_id
        if client_id in self._streams:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Can't have two clients with the same client id")
        queue = self._streams[client_id] = asyncio.Queue()
        try:
            reply = pb.StreamMessageResponse()
            reply.subscribe.status.code = 0
            yield reply
            while (message := await queue.get()) is not None:
                yield message
        finally:
            del self._streams[client_id]
            if self._owner == client_id:
                self._owner = self._cookie = None

    @property
    def owned(self) -> bool:
        """Whether a client is bound."""
        return self._owner is not None

    def kick(self) -> None:
        """End the streams of all clients, as when another program is loaded."""
        for queue in self._streams.values():
            queue.put_nowait(None)

    def notify(self, message: pb.StreamMessageResponse) -> bool:
        """Send a digest or idle notice to the client that the callback's cookie names. False if there is no such client: bf_switchd then drops it."""
        queue = None if self._cookie is None else self._streams.get(self._cookie)
        if queue is None:
            return False
        queue.put_nowait(message)
        return True

    async def GetForwardingPipelineConfig(self, request: Any, context: Any) -> pb.GetForwardingPipelineConfigResponse:
        reply = pb.GetForwardingPipelineConfigResponse()
        config = reply.config.add(p4_name=self.name, bfruntime_info=self.program)
        for number, text in enumerate(self.contexts):
            config.profiles.add(profile_name=f"pipe{number}", context=text, binary=b"\0" * 100)
        reply.non_p4_config.bfruntime_info = self.fixed
        return reply

    async def SetForwardingPipelineConfig(self, request: Any, context: Any) -> pb.SetForwardingPipelineConfigResponse:
        if request.client_id not in self._streams:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"Unknown client. Client_id:{request.client_id}")
        if [config.p4_name for config in request.config] != [self.name]:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such program")
        if self._owner is not None:
            text = f"Client ID {request.client_id} trying to bind but Client ID {self._owner} already owns this P4"
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, text)
        self._owner, self._cookie = request.client_id, request.client_id & _COOKIE_MASK
        self.sessions += 1
        return pb.SetForwardingPipelineConfigResponse()

    async def _program(self, request: pb.WriteRequest | pb.ReadRequest, context: grpc.aio.ServicerContext) -> None:
        """A request names its program, unless its client is bound to one."""
        if request.p4_name == self.name or not request.p4_name and self._owner == request.client_id:
            return
        if request.client_id in self._streams and not request.p4_name:
            await context.abort(grpc.StatusCode.UNKNOWN, "Unable to get bound_program")
        await context.abort(grpc.StatusCode.NOT_FOUND, f"P4 program {request.p4_name!r} not found")

    async def Write(self, request: pb.WriteRequest, context: grpc.aio.ServicerContext) -> pb.WriteResponse:
        await self._program(request, context)
        self.writes += 1
        errors: list[Refused | None] = []
        async with self._sessions[request.client_id]:
            for update in request.updates:
                try:
                    self._write(update)
                    errors.append(None)
                except Refused as error:
                    errors.append(error)
        await _report(context, "Write Error Status", errors)
        return pb.WriteResponse()

    def _write(self, update: pb.Update) -> None:
        if update.entity.WhichOneof("entity") == "table_attribute":
            self.attributes.append(update.entity.table_attribute)
            return
        entry = update.entity.table_entry
        table = self.schema.tables.by_id[entry.table_id]
        self.updates.append((table.name, update.type))
        held = self.entries[table.id]
        if not entry.HasField("key"):
            if update.type != pb.Update.DELETE:
                raise Refused(_INVALID, "no key")
            held.clear()
            return
        key = self._key(table, entry.key)
        if update.type == pb.Update.DELETE:
            if held.pop(key, None) is None:
                raise Refused(_NOT_FOUND, f"Table Entry delete failed table:{table.name} Object not found")
            self.counted.pop((table.id, key), None)
            return
        self._check(table, entry.data)
        if table.type == "Register":  # all its rows are there
            held[key] = entry.data
            return
        if update.type == pb.Update.INSERT and key in held:
            raise Refused(_EXISTS, f"Table Add failed table:{table.name} Already exists")
        if update.type == pb.Update.MODIFY and key not in held:
            raise Refused(_NOT_FOUND, f"Table Entry modify failed table:{table.name} Object not found")
        if len(held) >= (self.room or table.size) and key not in held:
            raise Refused(_NO_SPACE, f"Table Add failed table:{table.name} No space")
        held[key] = entry.data

    def _key(self, table: Table, message: pb.TableKey) -> tuple[Any, ...]:
        """(field id, value) of every key field: bytes; (low, high) of a range, (value, mask) of a ternary field, (value, length) of a prefix."""
        found = {}
        for field in message.fields:
            known = table.key.by_id.get(field.field_id)
            if known is None or field.WhichOneof("match_type") != known.match.lower():
                raise Refused(_INVALID, f"field {field.field_id} table:{table.name}")
            value: Any = tuple(getattr(getattr(field, known.match.lower()), part) for part in _PARTS[known.match])
            if any(len(part) != known.size for part in value if isinstance(part, bytes)):
                raise Refused(_INVALID, f"{known.name} has {len(value[0])} bytes table:{table.name}")
            found[known.id] = value[0] if known.match == "Exact" else value
        return tuple((number, found.get(number, b"")) for number in sorted(table.key.by_id))

    def _check(self, table: Table, data: pb.TableData) -> None:
        action = table.actions.by_id.get(data.action_id)
        if len(table.actions) and action is None:
            raise Refused(_NOT_FOUND, f"action {data.action_id} table:{table.name}")
        for field in data.fields:
            known = (action.fields.by_id.get(field.field_id) if action is not None else None) or table.data.by_id.get(field.field_id)
            if known is None:
                raise Refused(_NOT_FOUND, f"field {field.field_id} table:{table.name}")
            if known.size is not None and not known.repeated and len(field.stream) != known.size:
                raise Refused(_INVALID, f"{known.name} has {len(field.stream)} bytes table:{table.name}")

    async def Read(self, request: pb.ReadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[pb.ReadResponse]:
        await self._program(request, context)
        response = pb.ReadResponse()
        errors: list[Refused | None] = []
        async with self._sessions[request.client_id]:
            for entity in request.entities:
                try:
                    await self._read(entity, response)
                    errors.append(None)
                except Refused as error:
                    errors.append(error)
        yield response
        await _report(context, "Read Error Status", errors)

    async def _read(self, entity: pb.Entity, response: pb.ReadResponse) -> None:
        if entity.WhichOneof("entity") == "table_usage":
            response.entities.add().table_usage.CopyFrom(pb.TableUsage(table_id=entity.table_usage.table_id, usage=len(self.entries[entity.table_usage.table_id])))
            return
        request = entity.table_entry
        table = self.schema.tables.by_id[request.table_id]
        held = self.entries[table.id]
        self.asked[table.name, "key" if request.HasField("key") else "all"] += 1
        if request.HasField("key"):
            key = self._key(table, request.key)
            if table.type in ("Register", "Counter"):
                held.setdefault(key, pb.TableData())
            if key not in held:
                raise Refused(_NOT_FOUND, f"Entry not found in table:{table.name}")
            self._answer(table, key, held[key], response, from_hw=request.table_flags.from_hw)
            await asyncio.sleep(self.read_s)
            return
        began, count = time.monotonic(), 0  # of a whole table
        for key, data in list(held.items()):
            self._answer(table, key, data, response)
            count += 1
            if count % _AT_ONCE == 0:
                await asyncio.sleep(max(0.0, began + count * self.read_s - time.monotonic()))
        await asyncio.sleep(max(0.0, began + count * self.read_s - time.monotonic()))
        self.whole_reads += count >= _AT_ONCE
        if len(table.actions):
            answer = response.entities.add().table_entry
            answer.table_id, answer.is_default_entry = table.id, True
            answer.data.SetInParent()

    def _answer(self, table: Table, key: tuple[Any, ...], data: pb.TableData, response: pb.ReadResponse, from_hw: bool = True) -> None:
        answer = response.entities.add().table_entry
        answer.table_id = table.id
        for number, value in key:
            match = table.key.by_id[number].match
            field = getattr(answer.key.fields.add(field_id=number), match.lower())
            for part, held in zip(_PARTS[match], value if isinstance(value, tuple) else (value,), strict=True):
                setattr(field, part, held)
        answer.data.CopyFrom(data)
        if (left := self.time_left.get(key)) is not None and (ttl := table.data.find("$ENTRY_TTL")) is not None:
            for field in answer.data.fields:
                if field.field_id == ttl.id:
                    field.stream = left.to_bytes(ttl.size or 4, "big")
        # The driver answers with what it read last: here it has not read yet.
        packets, size = self.counted.get((table.id, key), (0, 0)) if from_hw else (0, 0)
        for name, count in (("$COUNTER_SPEC_BYTES", size), ("$COUNTER_SPEC_PKTS", packets)):
            counter = table.data.find(name)
            if counter is not None:
                answer.data.fields.add(field_id=counter.id, stream=count.to_bytes(counter.size or 8, "big"))
        if table.type == "Register" and not data.fields:
            for field in table.data:
                for _ in range(PIPES):
                    answer.data.fields.add(field_id=field.id, stream=bytes(field.size or 1))


async def _report(context: grpc.aio.ServicerContext, message: str, errors: list[Refused | None]) -> None:
    failed = [number for number, error in enumerate(errors) if error is not None]
    if not failed:
        return
    status = status_pb2.Status(code=2, message=message)
    for error in errors[: failed[-1] + 1]:
        packed = any_pb2.Any()
        packed.Pack(pb.Error() if error is None else pb.Error(canonical_code=error.code, message=str(error)))
        status.details.append(packed)
    await context.abort(grpc.StatusCode.UNKNOWN, message, (("grpc-status-details-bin", status.SerializeToString()),))


@asynccontextmanager
async def running(switch: FakeSwitch, credentials: grpc.ServerCredentials | None = None, *, also: str | None = None) -> AsyncIterator[str]:
    """Serve a switch with bf_switchd's server options, gRPC's defaults but for the size of requests; yields HOST:PORT.

    credentials: of TLS; also: another address, for who is in another network namespace.
    """
    server = grpc.aio.server(options=(("grpc.max_receive_message_length", -1),))
    bfruntime_pb2_grpc.add_BfRuntimeServicer_to_server(switch, server)
    switch.port = server.add_insecure_port("127.0.0.1:0") if credentials is None else server.add_secure_port("127.0.0.1:0", credentials)
    if also is not None:
        server.add_insecure_port(also)
    await server.start()
    try:
        yield f"127.0.0.1:{switch.port}"
    finally:
        await server.stop(grace=0.1)
