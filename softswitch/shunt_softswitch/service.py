"""The BF Runtime service: bf_switchd's answers, over the softswitch's data plane.

One asyncio thread serves everything, so calls never interleave inside a batch. What a client must see
(codes, details, order) follows what was measured on P4 Studio's own server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, NoReturn, Protocol

import grpc
import numpy as np
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from shunt.bfrt import wire
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.schema import Action, Table
from shunt.net import FiveTuple
from shunt.tables.entry import LearnNotice, MediaRange, RelayEntry, StreamStats
from shunt_softswitch.entries import (
    COUNTER_BYTES,
    COUNTER_PKTS,
    ENTRY_TTL,
    BfrtError,
    Code,
    MediaCodec,
    MediaKey,
    QualityCodec,
    ReadPlan,
    RelayCodec,
    UpdatePlan,
    Values,
    decode_data,
    decode_key,
    set_data,
)
from shunt_softswitch.hearing import Hearing, hearing_tables
from shunt_softswitch.replication import Replication
from shunt_softswitch.replication_tables import replication_tables
from shunt_softswitch.schema import PROGRAM, ServedSchema
from shunt_softswitch.served import Row, RowPlan, ServedTables, set_key

log = logging.getLogger(__name__)

_CHUNK = 1024
_DIGEST = 256
_STREAM_QUEUE = 4096
_ALL_PIPES = 0xFFFF
_INSERT, _MODIFY, _DELETE, _UPSERT = pb.Update.INSERT, pb.Update.MODIFY, pb.Update.DELETE, pb.Update.INSERT_OR_MODIFY
_STATUS = {code.value[0]: code for code in grpc.StatusCode}
_NO_STATS = StreamStats()


class DataPlane(Protocol):
    """What the service needs of shunt_softswitch.dataplane.DataPlane (and of its double in the tests)."""

    capacity: int

    def insert(self, entries: list[RelayEntry]) -> list[str | None]: ...
    def insert_rows(self, new: np.ndarray) -> np.ndarray: ...
    def modify(self, entries: list[RelayEntry]) -> list[str | None]: ...
    def delete(self, keys: list[FiveTuple]) -> list[bool]: ...
    def get(self, keys: list[FiveTuple]) -> list[RelayEntry | None]: ...
    def keys(self) -> Iterable[FiveTuple]: ...
    def scan(self, size: int, most: int) -> Iterable[list[tuple[RelayEntry, StreamStats]]]: ...
    def stats(self, keys: list[FiveTuple] | None) -> dict[FiveTuple, StreamStats]: ...
    def reset_stats(self, keys: Sequence[FiveTuple]) -> None: ...
    def idle(self, keys: list[FiveTuple] | None) -> dict[FiveTuple, int]: ...
    def expired(self) -> list[FiveTuple]: ...
    @property
    def hearing(self) -> Hearing: ...
    @property
    def replication(self) -> Replication | None: ...
    def clear(self) -> None: ...
    def media(self) -> Iterable[MediaRange]: ...
    def add_media(self, media: MediaRange) -> Any: ...
    def remove_media(self, media: MediaRange) -> Any: ...
    def trace(self, key: FiveTuple, vlan: int | None = None) -> dict[str, Any]: ...
    def totals(self) -> dict[str, int]: ...
    def interfaces(self) -> Iterable[tuple[str, int, str, int]]: ...


@dataclass(slots=True)
class _Client:
    """A subscribed client: its stream, what it wants to hear, what it is bound to."""

    id: int
    wants: pb.Subscribe.Notifications
    queue: asyncio.Queue[pb.StreamMessageResponse]
    bound: bool = False
    warm_init: str = "initial"

    def send(self, message: pb.StreamMessageResponse) -> bool:
        """Queue a message; False when the client does not keep up and it is lost."""
        try:
            self.queue.put_nowait(message)
        except asyncio.QueueFull:
            return False
        return True


@dataclass(slots=True)
class _IdleConfig:
    """The idle attribute of one relay table. Times are milliseconds."""

    enable: bool = False
    notify: bool = False
    interval: int = 0
    min_ttl: int = 0
    max_ttl: int = 0
    client_id: int = 0
    due: float = 0.0
    reported: dict[FiveTuple, int] = field(default_factory=dict)  # entries said to be idle, with their time-out


class _Group:
    """Consecutive updates of one kind and of different keys on the relay tables, applied in one go."""

    __slots__ = ("kind", "positions", "keys", "entries", "keep_ttl", "reset", "explicit")

    def __init__(self, kind: int = 0) -> None:
        self.kind = kind
        self.positions: list[int] = []
        self.keys: dict[FiveTuple, None] = {}
        self.entries: list[RelayEntry] = []
        self.keep_ttl: list[int] = []  # places in entries whose update named no $ENTRY_TTL
        self.reset: set[FiveTuple] = set()  # statistics start again
        self.explicit: set[FiveTuple] = set()  # written with relay_to_from although relay_to says the same


class _Batch:
    """The fate of one Write's updates."""

    __slots__ = ("errors", "existed", "gone", "served")

    def __init__(self, count: int) -> None:
        self.errors: list[BfrtError | None] = [None] * count
        self.gone: set[int] = set()  # DELETE did not find these
        self.existed: list[int] = []  # INSERT_OR_MODIFY found these keys there
        self.served = count  # updates that were looked at: fewer than all after a rollback


class BfRuntimeService:
    """bfrt_proto.BfRuntime over a DataPlane. `clock` is monotonic seconds."""

    def __init__(self, dataplane: DataPlane, served: ServedSchema, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.dataplane = dataplane
        self.served = served
        self.clock = clock
        self._clients: dict[int, _Client] = {}
        tables = served.schema.tables
        self._relay = {tables[name].id: RelayCodec(tables[name]) for name in ("pipe.Ingress.relay", "pipe.Ingress.relay6")}
        self._media = {tables[name].id: MediaCodec(tables[name]) for name in ("pipe.Ingress.media", "pipe.Ingress.media6")}
        # The statistics and the trace tables take the same keys as the relay table of their IP version.
        self._quality = {tables[name].id: (QualityCodec(tables[name]), self._relay[tables[relay].id]) for name, relay in (("softswitch.quality", "relay"), ("softswitch.quality6", "relay6"))}
        self._trace = {tables[name].id: self._relay[tables[relay].id] for name, relay in (("softswitch.trace", "relay"), ("softswitch.trace6", "relay6"))}
        self._totals = tables["softswitch.totals"]
        self._interface = tables["softswitch.interface"]
        dataplane.hearing.open_up()  # whoever wrote it is bound no more
        self._further = ServedTables([*hearing_tables(tables, dataplane.hearing), *replication_tables(tables, dataplane.replication)])
        self._own = {*self._quality, *self._trace, self._totals.id, self._interface.id}
        self._by_size = {codec.addr_size: codec for codec in self._relay.values()}
        self._media_keys: dict[MediaKey, None] = {MediaKey((m.addr, m.first_port, m.last_port, 0)): None for m in dataplane.media()}
        self._idle = {table: _IdleConfig() for table in self._relay}
        self._idle_changed = asyncio.Event()
        self._explicit: set[FiveTuple] = set()
        keys = list(dataplane.keys())
        six = sum(len(key.dst.addr) == 16 for key in keys)
        self._count = {4: len(keys) - six, 16: six}
        self._handles: dict[int, FiveTuple] = {}
        self._handle_of: dict[FiveTuple, int] = {}
        self._next_handle = 1
        self._updates: wire.Splitter[UpdatePlan | RowPlan] = wire.Splitter(3, wire.UPDATE, self._learn_update)
        self._requests: wire.Splitter[ReadPlan] = wire.Splitter(3, wire.ENTITY, self._learn_request)
        learns = served.schema.learns
        self._learns = {4: learns["pipe.IngressDeparser.learn"].id, 16: learns["pipe.IngressDeparser.learn6"].id}
        self._packets = learns.find("softswitch.packet")

    def handler(self) -> grpc.GenericRpcHandler:
        """What grpc.aio.Server.add_generic_rpc_handlers takes."""
        return grpc.method_handlers_generic_handler(
            "bfrt_proto.BfRuntime",
            {
                # Write and Read deal in bytes: most of a batch is of a few layouts, which need no protobuf objects.
                "Write": grpc.unary_unary_rpc_method_handler(self.write, None, pb.WriteResponse.SerializeToString),
                "Read": grpc.unary_stream_rpc_method_handler(self.read, None, None),
                "SetForwardingPipelineConfig": grpc.unary_unary_rpc_method_handler(
                    self.set_config, pb.SetForwardingPipelineConfigRequest.FromString, pb.SetForwardingPipelineConfigResponse.SerializeToString
                ),
                "GetForwardingPipelineConfig": grpc.unary_unary_rpc_method_handler(
                    self.get_config, pb.GetForwardingPipelineConfigRequest.FromString, pb.GetForwardingPipelineConfigResponse.SerializeToString
                ),
                "StreamChannel": grpc.stream_stream_rpc_method_handler(self.stream, pb.StreamMessageRequest.FromString, pb.StreamMessageResponse.SerializeToString),
            },
        )

    # Sessions.

    async def stream(self, requests: AsyncIterator[pb.StreamMessageRequest], context: grpc.aio.ServicerContext) -> None:
        """StreamChannel: the subscription is in force, and the binding held, for as long as this runs."""
        client: _Client | None = None
        writer: asyncio.Task[None] | None = None
        try:
            async for request in requests:
                kind = request.WhichOneof("update")
                if kind == "digest_ack":
                    await _abort(context, BfrtError(Code.UNSUPPORTED, "Not yet implemented"))
                if kind != "subscribe" or client is not None:
                    continue
                if request.client_id in self._clients:
                    await _abort(context, BfrtError(Code.INVALID, "Can't have two clients with the same client id"))
                client = _Client(request.client_id, request.subscribe.notifications, asyncio.Queue(_STREAM_QUEUE))
                self._clients[client.id] = client
                reply = pb.StreamMessageResponse()
                reply.subscribe.status.SetInParent()
                client.send(reply)
                writer = asyncio.create_task(_drain(client.queue, context))
                log.info("client %d subscribed", client.id)
        finally:
            if writer is not None:
                writer.cancel()
            if client is not None:
                self._forget(client)

    def _forget(self, client: _Client) -> None:
        del self._clients[client.id]
        for idle in self._idle.values():
            if idle.notify and idle.client_id == client.id:
                idle.enable = False
        if client.bound:
            self.dataplane.hearing.open_up()
        log.info("client %d left%s", client.id, ", its binding with it" if client.bound else "")

    async def get_config(self, request: pb.GetForwardingPipelineConfigRequest, context: grpc.aio.ServicerContext) -> pb.GetForwardingPipelineConfigResponse:
        """GetForwardingPipelineConfig: anybody may ask."""
        if request.device_id != 0:
            await _abort(context, BfrtError(Code.INVALID, f"There is no device {request.device_id}"))
        reply = pb.GetForwardingPipelineConfigResponse()
        config = reply.config.add(p4_name=PROGRAM, bfruntime_info=self.served.program_json)
        config.profiles.add(profile_name="pipe", pipe_scope=range(4))
        reply.non_p4_config.bfruntime_info = self.served.fixed_json
        return reply

    async def set_config(self, request: pb.SetForwardingPipelineConfigRequest, context: grpc.aio.ServicerContext) -> pb.SetForwardingPipelineConfigResponse:
        """SetForwardingPipelineConfig: BIND, or a reset of all tables."""
        try:
            if request.action == request.BIND:
                self._bind(request)
            else:
                self._warm_init(request)
        except BfrtError as error:
            await _abort(context, error)
        return pb.SetForwardingPipelineConfigResponse()

    def _bind(self, request: pb.SetForwardingPipelineConfigRequest) -> None:
        client = self._clients.get(request.client_id)
        if client is None:
            raise BfrtError(Code.UNAVAILABLE, f"Unknown client. Client_id:{request.client_id}")
        if len(request.config) != 1:
            raise BfrtError(Code.INVALID, "Exactly one config message required.")
        name = request.config[0].p4_name
        if name == PROGRAM:
            owner = next((other for other in self._clients.values() if other.bound), None)
            if owner is not None:
                raise BfrtError(Code.EXISTS, f"Client ID {client.id} trying to bind but Client ID {owner.id} already owns this P4")
        if name != PROGRAM or request.device_id != 0:
            raise BfrtError(Code.NOT_FOUND, f"Failed to find BfRtInfo for program {name}")
        client.bound = True
        log.info("client %d bound to %s", client.id, name)

    def _warm_init(self, request: pb.SetForwardingPipelineConfigRequest) -> None:
        names = [config.p4_name for config in request.config]
        if request.device_id != 0 or len(set(names)) < len(names) or any(name != PROGRAM for name in names):
            raise BfrtError(Code.INVALID, "Invalid device config sent")
        client = self._clients.get(request.client_id)
        state = client.warm_init if client is not None else "initial"
        action = request.action
        if action == request.RECONCILE_AND_WARM_INIT_END:
            raise BfrtError(Code.UNSUPPORTED, "Reconcile and warmInitEnd not supported")
        if action == request.VERIFY_AND_WARM_INIT_BEGIN or action == request.VERIFY_AND_WARM_INIT_BEGIN_AND_END:
            if state == "started":
                raise BfrtError(Code.UNAVAILABLE, "Warm_init in process.")
            # What is written from here on is the new state.
            self.clear_all()
            self._tell_all(pb.WARM_INIT_STARTED)
            state = "started"
        if action == request.WARM_INIT_END:
            if request.config:
                raise BfrtError(Code.INVALID, "Commit msg cannot contain any config.")
            if state == "finished":
                raise BfrtError(Code.UNAVAILABLE, "Already warm_init_finished. Cannot perform WARM_INIT_END again")
            if state == "initial":
                self.clear_all()
        if action == request.WARM_INIT_END or action == request.VERIFY_AND_WARM_INIT_BEGIN_AND_END:
            self._tell_all(pb.WARM_INIT_FINISHED)
            state = "finished"
        if client is not None:
            client.warm_init = state

    def _tell_all(self, kind: pb.SetForwardingPipelineConfigResponseType) -> None:
        message = pb.StreamMessageResponse()
        message.set_forwarding_pipeline_config_response.set_forwarding_pipeline_config_response_type = kind
        for client in self._clients.values():
            client.send(message)

    def clear_all(self) -> None:
        """Empty every table, as a device reset does."""
        self.dataplane.clear()
        for media in {key.range: None for key in self._media_keys}:
            self.dataplane.remove_media(media)
        self._media_keys.clear()
        self.dataplane.hearing.clear()
        if self.dataplane.replication is not None:
            self.dataplane.replication.clear()
        self._forget_entries()
        for idle in self._idle.values():
            idle.enable = False
        log.info("all tables cleared")

    def _forget_entries(self) -> None:
        self._count = {4: 0, 16: 0}
        self._explicit.clear()
        self._handles.clear()
        self._handle_of.clear()
        for idle in self._idle.values():
            idle.reported.clear()

    def _authorise(self, client_id: int, device_id: int, p4_name: str) -> None:
        """Whether this client may read and write. Raises BfrtError."""
        client = self._clients.get(client_id)
        if client is None or p4_name:
            if p4_name != PROGRAM or device_id != 0:
                raise BfrtError(Code.NOT_FOUND, f"Unable to obtain BF_RT info for ({p4_name})")
        elif not client.bound:
            raise BfrtError(Code.UNKNOWN, "Unable to get bound_program")
        elif device_id != 0:
            raise BfrtError(Code.INVALID, f"The device id retrieved for this client connection (0) does not match the device id {device_id} passed in")

    # Write.

    def _learn_update(self, body: bytes) -> tuple[pb.Update, UpdatePlan | RowPlan | None]:
        update = pb.Update.FromString(body)
        entry = update.entity.table_entry
        codec = self._relay.get(entry.table_id)
        if update.type not in _FAILED or (codec is None and entry.table_id not in self._further):
            return update, None
        try:
            return update, RowPlan(self._table(entry.table_id), update.type, entry) if codec is None else UpdatePlan(codec, update.type, entry)
        except (ValueError, BfrtError):
            return update, None

    def _learn_request(self, body: bytes) -> tuple[pb.Entity, ReadPlan | None]:
        entity = pb.Entity.FromString(body)
        entry = entity.table_entry
        quality, codec = self._quality.get(entry.table_id, (None, self._relay.get(entry.table_id)))
        if codec is None or entry.WhichOneof("value") != "key":
            return entity, None
        try:
            return entity, ReadPlan(codec, quality, entry)
        except (ValueError, BfrtError):
            return entity, None

    async def write(self, data: bytes, context: grpc.aio.ServicerContext) -> pb.WriteResponse:
        """Write: a batch of updates."""
        options = _Options(context)
        try:
            rest, items = self._updates.split(data)
            request = pb.WriteRequest.FromString(rest)
        except (ValueError, DecodeError):
            await context.abort(grpc.StatusCode.INTERNAL, "Exception deserializing request!")
        try:
            self._authorise(request.client_id, request.target.device_id, request.p4_name)
            if request.atomicity == request.DATAPLANE_ATOMIC:
                raise BfrtError(Code.UNSUPPORTED, "DATAPLANE_ATOMIC isn't implemented")
            if request.atomicity == request.ROLLBACK_ON_ERROR:
                updates = list(pb.WriteRequest.FromString(data).updates)
                batch = _Batch(len(updates))
                self._apply_or_roll_back(request.client_id, updates, batch, options)
            else:
                batch = _Batch(sum(item.count if isinstance(item, wire.Run) else 1 for item in items))
                self._apply(request.client_id, items, batch, options, stop=False)
        except BfrtError as error:
            await _abort(context, error)
        response = pb.WriteResponse()
        details = self._report(batch, options, response)
        if details:
            await _abort_details(context, "Write Error Status", details)
        return response

    def _report(self, batch: _Batch, options: "_Options", response: pb.WriteResponse) -> list[tuple[int, pb.Error]]:
        """Fill in the response's statuses; the result are the errors that fail the call."""
        existed = set(batch.existed)
        details = []
        for position in range(batch.served) if options.error_in_resp or any(batch.errors) else sorted(existed):
            error = batch.errors[position]
            status = pb.Error()
            if position in existed:
                status.message, status.code = "Entry aleady exists, perform MODIFY", Code.EXISTS
            elif error is not None:
                status.message, status.canonical_code = str(error), error.code
                if options.error_in_resp and options.ignore_not_found and position in batch.gone:
                    status.code, status.canonical_code = Code.NOT_FOUND, 0
                else:
                    details.append((position, status))
            if options.error_in_resp or position in existed:
                response.status.append(status)
        return details

    def _apply(self, client_id: int, items: Sequence[pb.Update | wire.Run[UpdatePlan] | wire.Run[RowPlan]], batch: _Batch, options: "_Options", *, stop: bool) -> None:
        """Apply updates, or runs of them, in order; stop: not beyond the group in which the first fails."""
        errors = batch.errors
        group = _Group()
        position = 0
        for item in items:
            if options.deadline is not None and self.clock() > options.deadline:
                self._flush(group, batch)
                raise _DeadlineExceeded(Code.UNAVAILABLE, "Write RPC request timed out")
            if stop and any(errors):
                break
            if isinstance(item, wire.Run):
                if isinstance(item.plan, RowPlan):
                    self._flush(group, batch)
                    group = _Group()
                    self._write_rows(client_id, batch, position, item)
                else:
                    group = self._take_run(group, batch, position, item)
                position += item.count
                continue
            try:
                entry = item.entity.table_entry
                codec = self._relay.get(entry.table_id)
                if codec is None or entry.is_default_entry or entry.WhichOneof("value") != "key":
                    self._flush(group, batch)
                    group = _Group()
                    if self._write_other(client_id, item):
                        batch.existed.append(position)
                else:
                    key = codec.key(entry.key)
                    if item.type != group.kind or key in group.keys:
                        self._flush(group, batch)
                        group = _Group(item.type)
                    self._take(group, position, codec, key, entry)
            except Exception as error:
                self._note_failure(client_id, batch, position, item.type, error)
            position += 1
        self._flush(group, batch)

    def _write_rows(self, client_id: int, batch: _Batch, position: int, run: wire.Run[RowPlan]) -> None:
        """Apply a run of updates of a small table."""
        plan = run.plan
        for position, (key, values) in enumerate(plan.rows(run.values), position):
            try:
                if self._further.write(plan.kind, plan.table, key, plan.action, values, reset=plan.reset):
                    batch.existed.append(position)
            except Exception as error:
                self._note_failure(client_id, batch, position, plan.kind, error)

    @staticmethod
    def _note_failure(client_id: int, batch: _Batch, position: int, kind: int, error: Exception) -> None:
        if isinstance(error, BfrtError):
            batch.errors[position] = error
            if error.code == Code.NOT_FOUND and kind == _DELETE:
                batch.gone.add(position)
        else:
            log.error("update %d of a Write from client %d", position, client_id, exc_info=error)
            batch.errors[position] = BfrtError(Code.INTERNAL, f"{type(error).__name__}: {error}")

    def _take_run(self, group: _Group, batch: _Batch, position: int, run: wire.Run[UpdatePlan]) -> _Group:
        """Add a run of updates to the group, or to new ones; the result is the last of them."""
        plan = run.plan
        if plan.kind != group.kind:
            self._flush(group, batch)
            group = _Group(plan.kind)
        codec = plan.codec
        long_form = plan.action is codec.to_from
        values, positions = run.values, iter(range(position, position + run.count))
        if plan.in_rows:
            self._flush(group, batch)
            group = _Group(plan.kind)
            left = self._insert_rows(batch, position, run)
            values, positions = compress(values, left), compress(positions, left)
        for position, (key, row) in zip(positions, plan.keys(values)):
            if key in group.keys:
                self._flush(group, batch)
                group = _Group(plan.kind)
            if plan.action is not None:
                entry = plan.entry(key, row)
                if entry is None:
                    batch.errors[position] = BfrtError(Code.INVALID, f"A value does not fit its width; table:{codec.table.name}")
                    continue
                if not plan.has_ttl and plan.kind != _INSERT:
                    group.keep_ttl.append(len(group.entries))
                if plan.reset and plan.kind != _INSERT:
                    group.reset.add(key)
                if long_form and codec.action_of(entry, False) is codec.to:
                    group.explicit.add(key)
                group.entries.append(entry)
            group.positions.append(position)
            group.keys[key] = None
        return group

    def _insert_rows(self, batch: _Batch, position: int, run: wire.Run[UpdatePlan]) -> list[bool]:
        """Put in at once what can be of a run of inserts; which of them are left to be put in one by one."""
        plan = run.plan
        try:
            rows = plan.rows(run)
            if plan.action is plan.codec.to_from:
                # What the short form would say too is kept apart (_explicit), so it goes the long way.
                mask = (rows["out_saddr"] != rows["daddr"]) | (rows["set_dscp"] != 0)
                taken = np.zeros(len(rows), dtype=bool)
                taken[mask] = self.dataplane.insert_rows(rows[mask])
            else:
                taken = self.dataplane.insert_rows(rows)
        except Exception as error:
            log.exception("%d inserts on the data plane", run.count)
            batch.errors[position : position + run.count] = [BfrtError(Code.INTERNAL, f"{type(error).__name__}: {error}")] * run.count
            return [False] * run.count
        self._count[4] += int(taken.sum())
        if self._explicit:
            self._explicit.difference_update(key for key, _ in plan.keys(compress(run.values, taken.tolist())))
        return (~taken).tolist()

    def _take(self, group: _Group, position: int, codec: RelayCodec, key: FiveTuple, message: pb.TableEntry) -> None:
        """Check one keyed update of a relay table and add it to the group. Raises BfrtError."""
        kind = group.kind
        table = codec.table
        if kind == _DELETE:
            if message.HasField("data"):
                decode_data(table, message.data)
        elif kind == _INSERT or kind == _MODIFY or kind == _UPSERT:
            action, values = codec.plain(message.data) or self._checked_data(table, message.data)
            flags = message.table_flags
            if action is not None:
                ttl = values.get(ENTRY_TTL)
                entry = codec.entry(key, action, values, int.from_bytes(ttl, "big") if ttl is not None else 0)
                if ttl is None and kind != _INSERT:
                    group.keep_ttl.append(len(group.entries))
                if action is codec.to_from and codec.action_of(entry, False) is codec.to:
                    group.explicit.add(key)
            elif kind == _MODIFY and values:
                # Only the table's own fields: the entry keeps its action.
                current = self.dataplane.get([key])[0]
                if current is None:
                    raise BfrtError(Code.NOT_FOUND, f"Table Entry modify failed table:{table.name}")
                ttl = values.get(ENTRY_TTL)
                entry = current if ttl is None else replace(current, ttl_ms=int.from_bytes(ttl, "big"))
                if key in self._explicit:
                    group.explicit.add(key)
            else:
                raise BfrtError(Code.INVALID, f"{_FAILED[kind]}: no action given; table:{table.name}")
            if kind != _INSERT and (kind == _UPSERT or flags.reset_stats or COUNTER_PKTS in values or COUNTER_BYTES in values):
                group.reset.add(key)
            group.entries.append(entry)
        else:
            raise _refused(table, kind)
        group.positions.append(position)
        group.keys[key] = None

    def _checked_data(self, table: Table, message: pb.TableData) -> tuple[Action | None, dict[int, Any]]:
        action, values = decode_data(table, message)
        if action is not None and action.default_only:
            raise BfrtError(Code.INVALID, f"{action.name} is for the default entry only; table:{table.name}")
        for counter in (COUNTER_PKTS, COUNTER_BYTES):
            if any(values.get(counter, b"")):
                raise BfrtError(Code.UNSUPPORTED, f"Counters can be set to zero only; table:{table.name}")
        return action, values

    def _flush(self, group: _Group, batch: _Batch) -> None:
        """Apply a group to the data plane and note what became of each update."""
        if not group.positions:
            return
        keys = list(group.keys)
        try:
            if group.kind == _DELETE:
                outcomes: list[str | None] = [None if found else "absent" for found in self.dataplane.delete(keys)]
            elif group.kind == _INSERT:
                outcomes = self.dataplane.insert(group.entries)
            else:
                outcomes = self._modify(group, keys, batch)
        except Exception as error:
            log.exception("%d updates on the data plane", len(keys))
            for position in group.positions:
                batch.errors[position] = BfrtError(Code.INTERNAL, f"{type(error).__name__}: {error}")
            return
        if any(outcomes):
            for position, key, outcome in zip(group.positions, keys, outcomes):
                if outcome is not None:
                    batch.errors[position] = _failure(group.kind, self._by_size[len(key.dst.addr)].table, outcome)
                    if group.kind == _DELETE:
                        batch.gone.add(position)
        self._note(group, keys, outcomes)

    def _modify(self, group: _Group, keys: list[FiveTuple], batch: _Batch) -> list[str | None]:
        """MODIFY and INSERT_OR_MODIFY of a group."""
        dataplane = self.dataplane
        entries = group.entries
        before: list[RelayEntry | None] = []
        if group.kind == _UPSERT or group.keep_ttl:
            before = dataplane.get(keys)
            for place in group.keep_ttl:
                current = before[place]
                if current is not None:
                    entries[place] = replace(entries[place], ttl_ms=current.ttl_ms)
        outcomes: list[str | None]
        if group.kind == _MODIFY:
            outcomes = dataplane.modify(entries)
        else:
            outcomes = [None] * len(entries)
            there = [place for place, current in enumerate(before) if current is not None]
            new = [place for place, current in enumerate(before) if current is None]
            for places, operation in ((there, dataplane.modify), (new, dataplane.insert)):
                if places:
                    for place, outcome in zip(places, operation([entries[place] for place in places])):
                        outcomes[place] = outcome
            batch.existed += [group.positions[place] for place in there if outcomes[place] is None]
            for place in new:
                if outcomes[place] is None:
                    self._count[len(keys[place].dst.addr)] += 1
        reset = [key for key, outcome in zip(keys, outcomes) if outcome is None and key in group.reset]
        if reset:
            dataplane.reset_stats(reset)
        return outcomes

    def _note(self, group: _Group, keys: list[FiveTuple], outcomes: Sequence[str | None]) -> None:
        """Keep what the data plane does not: counts by table, which action was named, handles, idle reports."""
        if group.kind == _INSERT or group.kind == _DELETE:
            step = 1 if group.kind == _INSERT else -1
            done = [key for key, outcome in zip(keys, outcomes) if outcome is None] if any(outcomes) else keys
            six = sum(len(key.dst.addr) == 16 for key in done)
            self._count[16] += step * six
            self._count[4] += step * (len(done) - six)
        if self._explicit or group.explicit:
            for key, outcome in zip(keys, outcomes):
                if outcome is None:
                    (self._explicit.add if key in group.explicit else self._explicit.discard)(key)
        if group.kind == _DELETE and self._handles:
            for key, outcome in zip(keys, outcomes):
                if outcome is None and key in self._handle_of:
                    del self._handles[self._handle_of.pop(key)]
        for idle in self._idle.values():
            if idle.reported:
                for key in keys:
                    idle.reported.pop(key, None)

    def _apply_or_roll_back(self, client_id: int, updates: Sequence[pb.Update], batch: _Batch, options: "_Options") -> None:
        """All updates or none. What can be foreseen to fail fails before anything is touched, so statistics survive."""
        before, clears = self._foresee(updates, batch, options)
        failed = next((n for n, error in enumerate(batch.errors) if error is not None), None)
        if failed is None:
            if clears:
                keys = list(self.dataplane.keys())
                before.update(zip(keys, self.dataplane.get(keys)))
            media = list(self._media_keys)
            self._further.begin()
            self._apply(client_id, updates, batch, options, stop=not options.ignore_not_found)
            failed = next((n for n, error in enumerate(batch.errors) if error is not None and not (options.ignore_not_found and n in batch.gone)), None)
            if failed is None:
                self._further.commit()
                return
            self._further.roll_back()
            self._restore(before, media)
        batch.served = failed + 1
        batch.existed = [n for n in batch.existed if n < failed]

    def _foresee(self, updates: Sequence[pb.Update], batch: _Batch, options: "_Options") -> tuple[dict[FiveTuple, RelayEntry | None], bool]:
        """Note the first update that must fail; the result are the keys' entries as they are, and whether a relay table is cleared."""
        keyed: list[tuple[int, int, RelayCodec, FiveTuple]] = []
        clears = False
        position = 0
        try:
            for position, update in enumerate(updates):
                entry = update.entity.table_entry
                codec = self._relay.get(entry.table_id)
                if codec is None:
                    continue
                if entry.WhichOneof("value") == "key" and not entry.is_default_entry:
                    keyed.append((position, update.type, codec, codec.key(entry.key)))
                elif update.type == _DELETE and not entry.is_default_entry:
                    clears = True
        except BfrtError as error:
            batch.errors[position] = error
        keys = list({key: None for _, _, _, key in keyed})
        before = dict(zip(keys, self.dataplane.get(keys)))
        if clears:
            return before, True
        there = {key for key, entry in before.items() if entry is not None}
        for position, kind, codec, key in keyed:
            outcome = None
            if kind == _INSERT and key in there:
                outcome = "exists"
            elif kind in (_MODIFY, _DELETE) and key not in there:
                outcome = "absent"
            if outcome is not None:
                if outcome == "absent" and kind == _DELETE and options.ignore_not_found:
                    continue
                batch.errors[position] = _failure(kind, codec.table, outcome)
                break
            if kind == _DELETE:
                there.discard(key)
            else:
                there.add(key)
        return before, False

    def _restore(self, before: dict[FiveTuple, RelayEntry | None], media: list[MediaKey]) -> None:
        """Bring the relay tables and the media ranges back to what they were."""
        now = dict(zip(before, self.dataplane.get(list(before))))
        extra = [key for key, entry in now.items() if entry is not None and before[key] is None]
        changed = [entry for key, entry in before.items() if entry is not None and now[key] is not None and now[key] != entry]
        missing = [entry for key, entry in before.items() if entry is not None and now[key] is None]
        self.dataplane.delete(extra)
        self.dataplane.modify(changed)
        self.dataplane.insert(missing)
        for key in extra:
            self._count[len(key.dst.addr)] -= 1
        for entry in missing:
            self._count[len(entry.key.dst.addr)] += 1
        for key in [key for key in self._media_keys if key not in media]:
            self._remove_media(key)
        for key in media:
            if key not in self._media_keys:
                self._add_media(key)

    def _write_other(self, client_id: int, update: pb.Update) -> bool:
        """Anything but a keyed entry of a relay table; whether INSERT_OR_MODIFY found it there. Raises BfrtError."""
        entity = update.entity
        kind = entity.WhichOneof("entity")
        if kind == "table_usage":
            raise BfrtError(Code.UNSUPPORTED, "Write operation not available on TableUsage")
        if kind == "table_attribute":
            self._write_attribute(client_id, entity.table_attribute)
            return False
        if kind == "table_operation":
            table = self._table(entity.table_operation.table_id)
            wanted = entity.table_operation.table_operations_type
            # Counters and hit states are always current here, so there is nothing to wait for.
            if wanted not in table.operations and not (wanted == "Sync" and "SyncCounters" in table.operations):
                raise BfrtError(Code.UNSUPPORTED, "Operation not supported")
            return False
        if kind != "table_entry" and update.type != _DELETE:
            raise BfrtError(Code.UNSUPPORTED, "Invalid update.")
        return self._write_entry(update.type, entity.table_entry)

    def _write_entry(self, kind: int, entry: pb.TableEntry) -> bool:
        table = self._table(entry.table_id)
        if entry.is_default_entry and entry.key.fields:
            raise BfrtError(Code.INVALID, "Non-empty key for default entry")
        keyed = entry.WhichOneof("value") == "key"
        media = self._media.get(table.id)
        key = decode_key(table, entry.key) if keyed else None
        action, values = decode_data(table, entry.data)
        if kind not in _FAILED:
            raise _refused(table, kind)
        if entry.is_default_entry:
            self._write_default(table, kind, action)
            return False
        if not keyed:
            if kind != _DELETE:
                raise BfrtError(Code.INVALID, f"Table key cannot be empty table:{table.name}")
            if entry.WhichOneof("value") is not None:
                raise BfrtError(Code.UNSUPPORTED, f"Entries are deleted by key, not by handle; table:{table.name}")
            self._clear(table)
            return False
        assert key is not None
        if table.id in self._further:
            return self._further.write(kind, table, key, action, values, reset=entry.table_flags.reset_stats)
        if media is None:
            raise BfrtError(Code.UNSUPPORTED, f"{_FAILED[kind]} table:{table.name}")
        return self._write_media(media, kind, media.key(entry.key), action)

    def _write_default(self, table: Table, kind: int, action: Action | None) -> None:
        if kind != _MODIFY and kind != _DELETE:
            raise BfrtError(Code.UNSUPPORTED, "INSERT of default entry is not supported. Please use MODIFY instead")
        if table.id not in self._relay and table.id not in self._media:
            raise BfrtError(Code.UNSUPPORTED, f"Table Default entry set failed table:{table.name}")
        # A miss always goes on to the relay server: NoAction is the only default there can be.
        if kind == _MODIFY and (action is None or action.table_only):
            raise BfrtError(Code.INVALID, f"Table Default entry set failed table:{table.name}")

    def _clear(self, table: Table) -> None:
        """Delete every entry of one table."""
        if table.id in self._further:
            self._further.clear(table)
            return
        if table.id in self._own:
            raise BfrtError(Code.UNSUPPORTED, f"Table Entry delete all failed table:{table.name}")
        if table.id in self._media:
            size = self._media[table.id].addr_size
            for key in [key for key in self._media_keys if len(key[0]) == size]:
                self._remove_media(key)
        if table.id in self._relay:
            size = self._relay[table.id].addr_size
            if not self._count[20 - size]:
                self.dataplane.clear()
                self._forget_entries()
                return
            keys = [key for key in self.dataplane.keys() if len(key.dst.addr) == size]
            group = _Group(_DELETE)
            group.keys = dict.fromkeys(keys)
            for start in range(0, len(keys), _CHUNK):
                self.dataplane.delete(keys[start : start + _CHUNK])
            self._note(group, keys, [None] * len(keys))

    def _write_media(self, codec: MediaCodec, kind: int, key: MediaKey, action: Action | None) -> bool:
        there = key in self._media_keys
        name = codec.table.name
        if kind == _DELETE:
            if not there:
                raise BfrtError(Code.NOT_FOUND, f"{_FAILED[kind]} table:{name}")
            self._remove_media(key)
            return False
        if action is not codec.action:
            raise BfrtError(Code.INVALID, f"{_FAILED[kind]}: no action given; table:{name}" if action is None else f"{action.name} is for the default entry only; table:{name}")
        if kind == _INSERT and there:
            raise BfrtError(Code.EXISTS, f"{_FAILED[kind]} table:{name}")
        if kind == _MODIFY and not there:
            raise BfrtError(Code.NOT_FOUND, f"{_FAILED[kind]} table:{name}")
        if not there:
            if sum(len(other[0]) == codec.addr_size for other in self._media_keys) >= codec.table.size:
                raise BfrtError(Code.NO_SPACE, f"{_FAILED[kind]} table:{name}")
            self._add_media(key)
        return there and kind == _UPSERT

    def _add_media(self, key: MediaKey) -> None:
        # The same ports at another priority are there already.
        if not any(other.range == key.range for other in self._media_keys):
            outcome = self.dataplane.add_media(key.range)
            if isinstance(outcome, str):
                raise _failure(_INSERT, self._media_table(key), outcome)
        self._media_keys[key] = None

    def _remove_media(self, key: MediaKey) -> None:
        del self._media_keys[key]
        if not any(other.range == key.range for other in self._media_keys):
            self.dataplane.remove_media(key.range)

    def _media_table(self, key: MediaKey) -> Table:
        return next(codec.table for codec in self._media.values() if codec.addr_size == len(key[0]))

    def _table(self, number: int) -> Table:
        table = self.served.schema.tables.by_id.get(number)
        if table is None:
            raise BfrtError(Code.NOT_FOUND, f"Table not found for id {number}")
        return table

    def _write_attribute(self, client_id: int, message: pb.TableAttribute) -> None:
        table = self._table(message.table_id)
        kind = message.WhichOneof("attribute")
        if kind is None:
            raise BfrtError(Code.INVALID, "Invalid Attribute Type.")
        if kind == "entry_scope" and "EntryScope" in table.attributes:
            scopes = (message.entry_scope.gress_scope, message.entry_scope.pipe_scope, message.entry_scope.prsr_scope)
            if any(scope.WhichOneof("scope") == "user_defined" or scope.predef != scope.ALL for scope in scopes):
                raise BfrtError(Code.UNSUPPORTED, f"There is one scope only; table:{table.name}")
            return
        if kind != "idle_table" or table.id not in self._idle:
            raise BfrtError(Code.UNSUPPORTED, f"Failed to allocate Attribute {kind} table:{table.name}")
        wanted = message.idle_table
        if wanted.idle_table_mode not in (wanted.IDLE_TABLE_POLL_MODE, wanted.IDLE_TABLE_NOTIFY_MODE):
            raise BfrtError(Code.INVALID, "Invalid Idle Table Mode")
        notify = wanted.idle_table_mode == wanted.IDLE_TABLE_NOTIFY_MODE
        client = self._clients.get(client_id)
        if notify and (client is None or not client.wants.enable_idletimeout_notifications):
            raise BfrtError(Code.INVALID, f"idletimeout notifications are not enabled for client {client_id}")
        if notify and wanted.enable and wanted.max_ttl < wanted.min_ttl:
            raise BfrtError(Code.INVALID, f"max_ttl {wanted.max_ttl} is less than min_ttl {wanted.min_ttl}; table:{table.name}")
        self._idle[table.id] = _IdleConfig(wanted.enable, notify, wanted.ttl_query_interval, wanted.min_ttl, wanted.max_ttl, client_id)
        self._idle_changed.set()

    # Read.

    async def read(self, data: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        """Read: one response with everything that was found, then the status."""
        options = _Options(context)
        try:
            rest, items = self._requests.split(data)
            request = pb.ReadRequest.FromString(rest)
        except (ValueError, DecodeError):
            await context.abort(grpc.StatusCode.INTERNAL, "Exception deserializing request!")
        try:
            self._authorise(request.client_id, request.target.device_id, request.p4_name)
        except BfrtError as error:
            await _abort(context, error)
        reader = _Reader(self)
        position = 0
        for item in items:
            if options.deadline is not None and self.clock() > options.deadline:
                await _abort(context, _DeadlineExceeded(Code.UNAVAILABLE, "Read RPC request timed out"))
            if isinstance(item, wire.Run):
                reader.take_run(position, item)
                position += item.count
                continue
            if item.WhichOneof("entity") == "table_operation":
                await _abort(context, BfrtError(Code.UNSUPPORTED, "Read operation not available on TableOperation"))
            try:
                await reader.take(position, item)
            except BfrtError as error:
                reader.errors[position] = error
            except Exception as error:
                log.exception("entity %d of a Read from client %d", position, request.client_id)
                reader.errors[position] = BfrtError(Code.INTERNAL, f"{type(error).__name__}: {error}")
            position += 1
        reader.flush()
        details = [(n, pb.Error(canonical_code=error.code, message=str(error))) for n, error in sorted(reader.errors.items())]
        if options.error_in_resp:
            errors = dict(details)
            tail = pb.ReadResponse()
            for number in range(position):
                tail.status.append(errors.get(number, pb.Error()))
            reader.out.append(tail.SerializeToString())
            details = []
        yield b"".join(reader.out)
        if details:
            await _abort_details(context, "Read Error Status", details)

    # Notifications.

    def _learner(self) -> _Client | None:
        """The client that is bound, if it wants digests."""
        return next((client for client in self._clients.values() if client.bound and client.wants.enable_learn_notifications), None)

    def notify_packets(self, frames: Sequence[bytes]) -> None:
        """Send packets that are for the agent, as they came, to the client that is bound, if it wants digests."""
        client = self._learner()
        if client is None or self._packets is None:
            return
        length, frame = self._packets.fields
        for one in frames:
            message = pb.StreamMessageResponse()
            message.digest.digest_id = self._packets.id
            message.digest.target.pipe_id = _ALL_PIPES
            data = message.digest.data.add()
            data.fields.add(field_id=length.id, stream=len(one).to_bytes(2, "big"))
            data.fields.add(field_id=frame.id, stream=one.ljust(frame.size or 0, b"\0"))
            if not client.send(message):
                log.warning("client %d does not read its stream: packets for it lost", client.id)
                return

    def notify_learn(self, notices: Sequence[LearnNotice]) -> None:
        """Send learn notices to the client that is bound, if it wants them."""
        client = self._learner()
        if client is None:
            return
        for size, digest_id in self._learns.items():
            of_size = [notice for notice in notices if len(notice.key.dst.addr) == size]
            for start in range(0, len(of_size), _DIGEST):
                message = pb.StreamMessageResponse()
                digest = message.digest
                digest.digest_id = digest_id
                digest.target.pipe_id = _ALL_PIPES
                for notice in of_size[start : start + _DIGEST]:
                    data = digest.data.add()
                    for number, value in enumerate(_learn_values(notice), 1):
                        data.fields.add(field_id=number, stream=value)
                if not client.send(message):
                    log.warning("client %d does not read its stream: learn notices lost", client.id)
                    return

    async def watch_idle(self) -> None:
        """Send idle notifications for ever, as the tables' idle attributes ask."""
        while True:
            now = self.clock()
            waits = []
            for table, config in self._idle.items():
                if config.enable and config.notify:
                    if now >= config.due:
                        config.due = now + max(config.interval, 100) / 1000
                        try:
                            self._poll_idle(self._relay[table], config)
                        except Exception:
                            log.exception("idle times of %s", self._relay[table].table.name)
                    waits.append(config.due - now)
            self._idle_changed.clear()
            try:
                await asyncio.wait_for(self._idle_changed.wait(), min(waits) if waits else None)
            except TimeoutError:
                pass

    def _poll_idle(self, codec: RelayCodec, config: _IdleConfig) -> None:
        client = self._clients.get(config.client_id)
        if client is None:
            return
        reported = config.reported
        ages = self.dataplane.idle(list(reported)) if reported else {}
        for key, ttl in list(reported.items()):
            age = ages.get(key)
            if age is None:
                del reported[key]
            elif age < ttl:
                del reported[key]
                if client.wants.enable_entry_active_notifications:
                    client.send(_idle_message(codec, key, pb.IdleTimeoutNotification.ENTRY_ACTIVE))
        # An entry's own time-out decides, but never less than the attribute's least.
        late = [key for key in self.dataplane.expired() if len(key.dst.addr) == codec.addr_size and key not in reported]
        for start in range(0, len(late), _CHUNK):
            keys = late[start : start + _CHUNK]
            ages = self.dataplane.idle(keys)
            for key, entry in zip(keys, self.dataplane.get(keys)):
                if entry is None or ages.get(key, 0) < config.min_ttl:
                    continue
                # What does not fit into the client's queue is reported at the next poll.
                if not client.send(_idle_message(codec, key, pb.IdleTimeoutNotification.ENTRY_IDLE)):
                    return
                reported[key] = max(entry.ttl_ms, config.min_ttl)


class _Reader:
    """Gathers one Read's answer; keyed reads of entries and statistics go to the data plane in runs."""

    def __init__(self, service: BfRuntimeService) -> None:
        self.service = service
        self.out: list[bytes] = []
        self.errors: dict[int, BfrtError] = {}
        self._run: list[tuple[int, RelayCodec, QualityCodec | None, FiveTuple, pb.TableEntry]] = []

    def take_run(self, position: int, run: wire.Run[ReadPlan]) -> None:
        """Answer a run of keyed reads."""
        self.flush()
        codec, quality = run.plan.codec, run.plan.quality
        service = self.service
        keys = run.plan.keys(run.values)
        try:
            stats = service.dataplane.stats(keys)
            entries: Sequence[RelayEntry | None] = service.dataplane.get(keys) if quality is None else ()
        except Exception as error:
            log.exception("reading %d entries", len(keys))
            self.errors.update((position + n, BfrtError(Code.INTERNAL, f"{type(error).__name__}: {error}")) for n in range(len(keys)))
            return
        out = self.out
        for n, key in enumerate(keys):
            counted = stats.get(key)
            if quality is not None:
                if counted is not None:
                    out.append(quality.read_bytes(key, counted, True))
                    continue
            else:
                entry = entries[n]
                if entry is not None:
                    counted = counted or _NO_STATS
                    action = codec.action_of(entry, key in service._explicit)
                    out.append(codec.read_bytes(entry, counted, action, bool(entry.ttl_ms and (counted.idle_ms or 0) >= entry.ttl_ms), True))
                    continue
            table = codec.table if quality is None else quality.table
            self.errors[position + n] = BfrtError(Code.NOT_FOUND, f"Entry not found in table:{table.name}")

    async def take(self, position: int, entity: pb.Entity) -> None:
        """Answer one entity, or put it into the run. Raises BfrtError."""
        service = self.service
        entry = entity.table_entry
        if entry.WhichOneof("value") is not None and (entry.table_id in service._relay or entry.table_id in service._quality):
            quality, codec = service._quality.get(entry.table_id, (None, None))
            codec = codec or service._relay[entry.table_id]
            if entry.WhichOneof("value") == "key":
                key = codec.key(entry.key)
            else:
                found = service._handles.get(entry.handle_id)
                if found is None:
                    raise BfrtError(Code.NOT_FOUND, f"Entry not found in table:{codec.table.name}")
                key = found
            self._run.append((position, codec, quality, key, entry))
            if len(self._run) >= _CHUNK:
                self.flush()
            return
        self.flush()
        kind = entity.WhichOneof("entity")
        if kind == "table_entry":
            await self._entries(entry)
        elif kind == "table_usage":
            self._usage(entity.table_usage)
        elif kind == "table_attribute":
            self._attribute(entity.table_attribute)
        elif kind == "object_id":
            self._put(pb.Entity(object_id=pb.ObjectId(id=self._id_of(entity.object_id))))
        elif kind == "handle":
            self._handle(entity.handle)
        else:
            raise BfrtError(Code.INVALID, "Invalid Read entity received")

    def _put(self, entity: pb.Entity) -> None:
        body = entity.SerializeToString()
        self.out.append(b"\x0a" + wire.varint(len(body)) + body)

    def flush(self) -> None:
        """Answer the keyed reads gathered so far."""
        run, self._run = self._run, []
        if not run:
            return
        dataplane = self.service.dataplane
        keys = list({item[3]: None for item in run})
        try:
            entries = dict(zip(keys, dataplane.get(keys)))
            stats = dataplane.stats([key for key in keys if entries[key] is not None])
        except Exception as error:
            log.exception("reading %d entries", len(keys))
            self.errors.update((item[0], BfrtError(Code.INTERNAL, f"{type(error).__name__}: {error}")) for item in run)
            return
        for position, codec, quality, key, message in run:
            entry = entries[key]
            table = quality.table if quality is not None else codec.table
            try:
                if entry is None:
                    raise BfrtError(Code.NOT_FOUND, f"Entry not found in table:{table.name}")
                self._one(codec, quality, entry, stats.get(key, _NO_STATS), message, keyed=True)
            except BfrtError as error:
                self.errors[position] = error

    def _one(self, codec: RelayCodec, quality: QualityCodec | None, entry: RelayEntry, stats: StreamStats, request: pb.TableEntry, *, keyed: bool) -> None:
        """Append one entry, or its statistics, as the request wants it. Raises BfrtError."""
        table = quality.table if quality is not None else codec.table
        key_only = keyed and (request.table_flags.key_only or request.table_read_flag.key_only)
        action = None
        idle = False
        if quality is None:
            action = codec.action_of(entry, entry.key in self.service._explicit)
            wanted = request.data.action_id
            if wanted and wanted not in table.actions.by_id:
                raise BfrtError(Code.NOT_FOUND, f"Data Allocate failed for table:{table.name}")
            if wanted and wanted != action.id:
                if keyed:
                    raise BfrtError(Code.INVALID, f"Entry not found in table:{table.name}: its action is {action.name}")
                # A client skips an entry with neither key nor data; the first entry of a table is left out altogether.
                if self._listed:
                    self._put(pb.Entity(table_entry=pb.TableEntry(table_id=table.id)))
                return
            idle = bool(entry.ttl_ms and (stats.idle_ms or 0) >= entry.ttl_ms)
        if not request.data.fields and not request.HasField("entry_tgt") and not key_only:
            if quality is not None:
                self.out.append(quality.read_bytes(entry.key, stats, keyed))
            else:
                assert action is not None
                self.out.append(codec.read_bytes(entry, stats, action, idle, keyed))
            return
        out = pb.Entity()
        answer = out.table_entry
        self._begin(answer, table, request, keyed=keyed)
        codec.set_key(answer.key, entry.key)
        if not key_only:
            if quality is not None:
                self._fill(answer, table, None, quality.data_values(stats), request)
            else:
                assert action is not None
                answer.data.action_id = action.id
                self._fill(answer, table, action, codec.data_values(entry, stats, action, idle), request)
        self._put(out)

    _listed = False

    def _begin(self, answer: pb.TableEntry, table: Table, request: pb.TableEntry, *, keyed: bool) -> None:
        answer.table_id = table.id
        if keyed:
            answer.table_read_flag.key_only = request.table_read_flag.key_only
            answer.table_flags.key_only = request.table_flags.key_only
        if request.HasField("entry_tgt"):
            answer.entry_tgt.CopyFrom(request.entry_tgt)

    def _fill(self, answer: pb.TableEntry, table: Table, action: Action | None, values: Values, request: pb.TableEntry) -> None:
        """Add the data fields that the request names, or all. Raises BfrtError for a field that is not there."""
        wanted = {message.field_id for message in request.data.fields}
        missing = wanted - values.keys()
        if missing:
            raise BfrtError(Code.NOT_FOUND, f"ERROR Field ID {min(missing)} doesn't exist table:{table.name}")
        answer.data.SetInParent()
        for fields in ([action.fields] if action is not None else []) + [table.data]:
            set_data(answer.data, fields, values, lambda number: not wanted or number in wanted)

    async def _entries(self, request: pb.TableEntry) -> None:
        """All entries of a table, then its default entry; or a keyed entry of a small table."""
        service = self.service
        table = service._table(request.table_id)
        keyed = request.WhichOneof("value") is not None
        if keyed:
            key = decode_key(table, request.key)
            if table.id in service._trace:
                codec = service._trace[table.id]
                values = {name: str(value) for name, value in service.dataplane.trace(codec.key(request.key)).items()}
                self._small(table, request, {field.id: values.get(field.name, "") for field in table.data})
            elif table.id == service._interface.id:
                rows = {row[1]: row for row in service.dataplane.interfaces()}
                number = key[1]
                assert isinstance(number, bytes)
                row = rows.get(int.from_bytes(number, "big"))
                if row is None:
                    raise BfrtError(Code.NOT_FOUND, f"Entry not found in table:{table.name}")
                self._interface(table, request, row, keyed=True)
            elif table.id in service._media:
                media = service._media[table.id]
                wanted = media.key(request.key)
                if wanted not in service._media_keys:
                    raise BfrtError(Code.NOT_FOUND, f"Entry not found in table:{table.name}")
                self._media(media, wanted, request, keyed=True)
            elif table.id in service._further:
                self._row(table, service._further.row(table, key), request, keyed=True)
            else:
                raise BfrtError(Code.NOT_FOUND, f"Entry not found in table:{table.name}")
            return
        if not request.is_default_entry:
            await self._all(table, request)
        default = next((action for action in table.actions if action.default_only), None)
        if default is not None:
            answer = pb.Entity()
            answer.table_entry.is_default_entry = True
            self._begin(answer.table_entry, table, request, keyed=False)
            answer.table_entry.data.action_id = default.id
            self._put(answer)
        elif table.id == service._totals.id:
            totals = service.dataplane.totals()
            answer = pb.Entity()
            answer.table_entry.is_default_entry = True
            self._begin(answer.table_entry, table, request, keyed=False)
            self._fill(answer.table_entry, table, None, {field.id: int(totals.get(field.name, 0)).to_bytes(8, "big") for field in table.data}, request)
            self._put(answer)

    async def _all(self, table: Table, request: pb.TableEntry) -> None:
        service = self.service
        quality, codec = service._quality.get(table.id, (None, service._relay.get(table.id)))
        if codec is not None:
            if quality is None and request.data.action_id and request.data.action_id not in table.actions.by_id:
                raise BfrtError(Code.NOT_FOUND, f"Data Allocate failed for table:{table.name}")
            self._listed = False
            plain = not request.data.fields and not request.HasField("entry_tgt")
            for part in service.dataplane.scan(codec.addr_size, _CHUNK):
                if quality is not None and plain:
                    self.out += [quality.read_bytes(entry.key, counted, False) for entry, counted in part]
                else:
                    for entry, counted in part:
                        self._one(codec, quality, entry, counted, request, keyed=False)
                        self._listed = True
                # A large table must not hold up writes and notices.
                await asyncio.sleep(0)
        elif table.id in service._media:
            media = service._media[table.id]
            for key in list(service._media_keys):
                if len(key[0]) == media.addr_size:
                    self._media(media, key, request, keyed=False)
        elif table.id == service._interface.id:
            for row in service.dataplane.interfaces():
                self._interface(table, request, row, keyed=False)
        elif table.id in service._further:
            for number, found in enumerate(service._further.rows(table)):
                self._row(table, found, request, keyed=False)
                if number % _CHUNK == _CHUNK - 1:
                    await asyncio.sleep(0)

    def _small(self, table: Table, request: pb.TableEntry, values: dict[int, bytes | str]) -> None:
        out = pb.Entity()
        self._begin(out.table_entry, table, request, keyed=True)
        out.table_entry.key.CopyFrom(request.key)
        self._fill(out.table_entry, table, None, values, request)
        self._put(out)

    def _interface(self, table: Table, request: pb.TableEntry, row: tuple[str, int, str, int], *, keyed: bool) -> None:
        name, number, mode, queues = row
        out = pb.Entity()
        self._begin(out.table_entry, table, request, keyed=keyed)
        key = out.table_entry.key.fields.add()
        key.field_id, key.exact.value = 1, number.to_bytes(4, "big")
        self._fill(out.table_entry, table, None, {1: name, 2: mode, 3: queues.to_bytes(4, "big")}, request)
        self._put(out)

    def _media(self, codec: MediaCodec, key: MediaKey, request: pb.TableEntry, *, keyed: bool) -> None:
        out = pb.Entity()
        self._begin(out.table_entry, codec.table, request, keyed=keyed)
        codec.set_key(out.table_entry.key, key)
        out.table_entry.data.action_id = codec.action.id
        self._put(out)

    def _row(self, table: Table, row: Row, request: pb.TableEntry, *, keyed: bool) -> None:
        out = pb.Entity()
        self._begin(out.table_entry, table, request, keyed=keyed)
        set_key(out.table_entry.key, table, row.key)
        if row.action is not None:
            out.table_entry.data.action_id = row.action.id
        self._fill(out.table_entry, table, row.action, row.data, request)
        self._put(out)

    def _usage(self, request: pb.TableUsage) -> None:
        service = self.service
        table = service._table(request.table_id)
        codec = service._quality.get(table.id, (None, service._relay.get(table.id)))[1]
        if codec is not None:
            count = service._count[codec.addr_size]
        elif table.id in service._media:
            count = sum(len(key[0]) == service._media[table.id].addr_size for key in service._media_keys)
        elif table.id == service._interface.id:
            count = len(list(service.dataplane.interfaces()))
        elif table.id in service._further:
            count = service._further.usage(table)
        elif table.id in service._own:
            raise BfrtError(Code.UNSUPPORTED, "Unable to get usage")
        else:
            count = 0
        self._put(pb.Entity(table_usage=pb.TableUsage(table_id=table.id, usage=count)))

    def _attribute(self, request: pb.TableAttribute) -> None:
        table = self.service._table(request.table_id)
        kind = request.WhichOneof("attribute")
        out = pb.Entity()
        answer = out.table_attribute
        answer.table_id = table.id
        if kind is None:
            raise BfrtError(Code.INVALID, "Invalid Attribute Type.")
        if kind == "entry_scope" and "EntryScope" in table.attributes:
            answer.entry_scope.gress_scope.predef = pb.Mode.ALL
            answer.entry_scope.pipe_scope.predef = pb.Mode.ALL
            answer.entry_scope.prsr_scope.predef = pb.Mode.ALL
        elif kind == "idle_table" and table.id in self.service._idle:
            config = self.service._idle[table.id]
            idle = answer.idle_table
            idle.enable = config.enable
            if config.notify:
                idle.idle_table_mode = idle.IDLE_TABLE_NOTIFY_MODE
                idle.ttl_query_interval, idle.max_ttl, idle.min_ttl = config.interval, config.max_ttl, config.min_ttl
        else:
            raise BfrtError(Code.UNSUPPORTED, f"Failed to allocate Attribute {kind} table:{table.name}")
        self._put(out)

    def _handle(self, request: pb.HandleId) -> None:
        service = self.service
        if request.WhichOneof("value") != "key":
            raise BfrtError(Code.INVALID, "Invalid key is mandatory for get handle operation.")
        table = service._table(request.table_id)
        codec = service._relay.get(table.id)
        if codec is None:
            raise BfrtError(Code.UNSUPPORTED, f"Entry not found in table:{table.name}")
        key = codec.key(request.key)
        if service.dataplane.get([key])[0] is None:
            raise BfrtError(Code.NOT_FOUND, f"Entry not found in table:{table.name}")
        handle = service._handle_of.get(key)
        if handle is None:
            handle = service._next_handle
            service._next_handle += 1
            service._handle_of[key], service._handles[handle] = handle, key
        self._put(pb.Entity(handle=pb.HandleId(table_id=table.id, handle_id=handle)))

    def _id_of(self, request: pb.ObjectId) -> int:
        """The id of a named object."""
        schema = self.service.served.schema
        kind = request.WhichOneof("object")
        if kind == "table_object":
            wanted = request.table_object
            table = schema.tables.find(wanted.table_name)
            if table is None:
                raise BfrtError(Code.NOT_FOUND, "Table not found.")
            names = wanted.WhichOneof("names")
            found: Any = table
            if names == "action_name":
                found = table.actions.find(wanted.action_name.action)
            elif names == "key_field_name":
                found = table.key.find(wanted.key_field_name.field)
            elif names == "data_field_name":
                action = table.actions.find(wanted.data_field_name.action) if wanted.data_field_name.action else None
                fields = action.fields if action is not None else table.data
                found = fields.find(wanted.data_field_name.field) or table.data.find(wanted.data_field_name.field)
        elif kind == "learn_object":
            learn = schema.learns.find(request.learn_object.learn_name)
            if learn is None:
                raise BfrtError(Code.NOT_FOUND, "Learn Obj not found.")
            field_name = request.learn_object.data_field_name.field
            found = learn.fields.find(field_name) if field_name else learn
        else:
            raise BfrtError(Code.INVALID, "Wrong Option for ID get")
        if found is None:
            raise BfrtError(Code.NOT_FOUND, "Id get faild.")
        return int(found.id)


_FAILED = {_INSERT: "Table Add failed", _MODIFY: "Table Entry modify failed", _DELETE: "Table Entry delete failed", _UPSERT: "Table AddOrMod failed"}
_OUTCOMES = {"exists": Code.EXISTS, "full": Code.NO_SPACE, "absent": Code.NOT_FOUND}


def _failure(kind: int, table: Table, outcome: str) -> BfrtError:
    """The error for what the data plane said about an entry ("exists", "full", "absent", "invalid: why")."""
    code = _OUTCOMES.get(outcome, Code.INVALID)
    why = f": {outcome.partition(': ')[2] or outcome}" if code == Code.INVALID else ""
    return BfrtError(code, f"{_FAILED[kind]}{why} table:{table.name}")


def _refused(table: Table, kind: int) -> BfrtError:
    if kind == pb.Update.UNSPECIFIED:
        return BfrtError(Code.INVALID, "Unspecified update type")
    if kind == pb.Update.MODIFY_INC:
        return BfrtError(Code.UNSUPPORTED, f"Table Entry modify incremental failed table:{table.name}")
    if kind == pb.Update.RESET:
        return BfrtError(Code.UNSUPPORTED, f"Table Default Entry reset failed table:{table.name}")
    return BfrtError(Code.INVALID, "Invalid update type")


def _learn_values(notice: LearnNotice) -> Iterable[bytes]:
    src, dst = notice.key
    yield src.addr
    yield dst.addr
    yield src.port.to_bytes(2, "big")
    yield dst.port.to_bytes(2, "big")
    yield bytes((notice.rtp_version & 3,))
    yield bytes((notice.payload_type & 0x7F,))
    yield notice.seq.to_bytes(2, "big")
    yield notice.ssrc.to_bytes(4, "big")


def _idle_message(codec: RelayCodec, key: FiveTuple, kind: pb.IdleTimeoutNotification.NotificationType) -> pb.StreamMessageResponse:
    message = pb.StreamMessageResponse()
    notice = message.idle_timeout_notification
    notice.target.pipe_id = _ALL_PIPES
    notice.type = kind
    notice.table_entry.table_id = codec.table.id
    codec.set_key(notice.table_entry.key, key)
    return message


async def _drain(queue: asyncio.Queue[pb.StreamMessageResponse], context: grpc.aio.ServicerContext) -> None:
    """Write a client's messages to its stream until the stream ends."""
    while True:
        await context.write(await queue.get())


class _DeadlineExceeded(BfrtError):
    """The client's own deadline (metadata deadline_sec and deadline_nsec) passed on the way."""


class _Options:
    """What a client asks for in a call's metadata."""

    __slots__ = ("error_in_resp", "ignore_not_found", "deadline")

    def __init__(self, context: grpc.aio.ServicerContext, clock: Callable[[], float] = time.monotonic) -> None:
        self.error_in_resp = self.ignore_not_found = False
        self.deadline: float | None = None
        for name, value in context.invocation_metadata() or ():
            if name in ("error_in_resp", "ignore_not_found", "deadline_sec", "deadline_nsec"):
                try:
                    number = int(value)
                except ValueError:
                    continue
                if name.startswith("deadline") and number >= 0:
                    self.deadline = (clock() if self.deadline is None else self.deadline) + (number if name == "deadline_sec" else number / 1e9)
                elif number == 1:
                    setattr(self, name, True)


async def _abort(context: grpc.aio.ServicerContext, error: BfrtError) -> NoReturn:
    """End a call as a whole."""
    code = grpc.StatusCode.DEADLINE_EXCEEDED if isinstance(error, _DeadlineExceeded) else _STATUS[int(error.code)]
    await context.abort(code, str(error))
    raise AssertionError("abort returned")


async def _abort_details(context: grpc.aio.ServicerContext, message: str, errors: Sequence[tuple[int, pb.Error]]) -> NoReturn:
    """End a call with status UNKNOWN and one Error for each update up to the last that failed."""
    status = status_pb2.Status(code=Code.UNKNOWN, message=message)
    fine = any_pb2.Any()
    fine.Pack(pb.Error())
    for position, error in errors:
        while len(status.details) < position:
            status.details.append(fine)
        status.details.add().Pack(error)
    await context.abort(grpc.StatusCode.UNKNOWN, message, (("grpc-status-details-bin", status.SerializeToString()),))
    raise AssertionError("abort returned")
