"""One BF Runtime session from a test: subscription, binding, writes with a result for each update, reads, notifications, and rows of any table."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import status_pb2

from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.bfrt._pb import bfruntime_pb2_grpc
from tests.tools.bfrt.schema import Action, Field, Schema, Table

PROGRAM = "relay"
INSERT, MODIFY, DELETE, UPSERT = pb.Update.INSERT, pb.Update.MODIFY, pb.Update.DELETE, pb.Update.INSERT_OR_MODIFY
# google.rpc.Code
INVALID, NOT_FOUND, EXISTS, NO_SPACE, UNSUPPORTED = 3, 5, 6, 8, 12
_OPTIONS = (
    ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 1 << 30), ("grpc.absolute_max_metadata_size", 1 << 30),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),  # of a Unix socket gRPC makes its path, which is none (RFC 3986 section 3.2)
)  # fmt: skip
_TIMEOUT = 120.0  # seconds for a call, with a busy machine in mind
_BATCH = 20_000  # updates or entities in one message
_ids = itertools.count((os.getpid() % 0xFFF + 1) << 12)  # of 24 bits
_closed: set[int] = set()
"""Clients of this process that have ended, of which the softswitch may learn a moment later."""
_NOTICED_S = 10.0


class Refused(Exception):
    """The process refused an update, an entity or a whole call. `code` is a google.rpc.Code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Row:
    """An entry as it is read: the key's values in the order of the schema (bytes; a range as a pair), the action's name without its path, the data by name."""

    key: tuple[Any, ...]
    action: str | None
    data: dict[str, Any]

    def number(self, name: str) -> int:
        """A byte string of the data, as a number."""
        return int.from_bytes(self.data[name], "big")


@dataclass(slots=True)
class Notices:
    """What has come over the stream and nobody has taken yet, and how many of each digest there were."""

    digests: queue.SimpleQueue[tuple[int, pb.TableData]] = field(default_factory=queue.SimpleQueue)
    idle: queue.SimpleQueue[pb.IdleTimeoutNotification] = field(default_factory=queue.SimpleQueue)
    other: queue.SimpleQueue[pb.StreamMessageResponse] = field(default_factory=queue.SimpleQueue)


class Session:
    """A subscribed client; bound unless told not to. Close it, or use it as a context manager."""

    def __init__(self, target: str, *, bind: bool = True, client_id: int | None = None, credentials: grpc.ChannelCredentials | None = None, program: str = PROGRAM) -> None:
        """target as gRPC names it; client_id: None for one that nobody uses; program: whose tables. Raises Refused, or grpc.RpcError when nobody answers."""
        self.target = target
        self.client_id = next(_ids) if client_id is None else client_id
        self.bound = bind
        self.program = program
        self.channel = grpc.insecure_channel(target, _OPTIONS) if credentials is None else grpc.secure_channel(target, credentials, _OPTIONS)
        self.stub = bfruntime_pb2_grpc.BfRuntimeStub(self.channel)
        self.notices = Notices()
        self._requests: queue.SimpleQueue[pb.StreamMessageRequest | None] = queue.SimpleQueue()
        self._subscribed = threading.Event()
        self._ended: grpc.RpcError | None = None
        self._batch: list[pb.Update] | None = None
        request = pb.StreamMessageRequest(client_id=self.client_id)
        wants = request.subscribe.notifications
        wants.enable_learn_notifications = wants.enable_idletimeout_notifications = wants.enable_entry_active_notifications = True
        self._requests.put(request)
        self._stream = self.stub.StreamChannel(iter(self._requests.get, None), wait_for_ready=True)
        self._reader = threading.Thread(target=self._read_stream, daemon=True)
        self._reader.start()
        try:
            if not self._subscribed.wait(_TIMEOUT) or self._ended is not None:
                raise self._ended or TimeoutError(f"{target} does not answer a subscription")
            self.schema = self._fetch_schema()
            if bind:
                self._bind()
        except BaseException:
            self.close()
            raise

    def _read_stream(self) -> None:
        try:
            for message in self._stream:
                kind = message.WhichOneof("update")
                if kind == "subscribe":
                    self._subscribed.set()
                elif kind == "digest":
                    for data in message.digest.data:
                        self.notices.digests.put((message.digest.digest_id, data))
                elif kind == "idle_timeout_notification":
                    self.notices.idle.put(message.idle_timeout_notification)
                else:
                    self.notices.other.put(message)
        except grpc.RpcError as error:
            self._ended = error
        self._subscribed.set()

    def _fetch_schema(self) -> Schema:
        reply = self.stub.GetForwardingPipelineConfig(pb.GetForwardingPipelineConfigRequest(client_id=self.client_id), timeout=_TIMEOUT)
        config = next(config for config in reply.config if config.p4_name == self.program)
        return Schema.parse(config.bfruntime_info, reply.non_p4_config.bfruntime_info)

    def _bind(self) -> None:
        request = pb.SetForwardingPipelineConfigRequest(client_id=self.client_id, action=pb.SetForwardingPipelineConfigRequest.BIND)
        request.config.add(p4_name=self.program)
        deadline = time.monotonic() + _NOTICED_S
        while True:
            try:
                self.stub.SetForwardingPipelineConfig(request, timeout=_TIMEOUT)
                return
            except grpc.RpcError as error:
                owner = re.search(r"Client ID (\d+) already owns", error.details() or "")
                if owner is None or int(owner[1]) not in _closed or time.monotonic() > deadline:
                    raise _refused(error) from None
                time.sleep(0.01)

    def reset_all(self) -> None:
        """Empty every table: a reset of the device."""
        request = pb.SetForwardingPipelineConfigRequest(client_id=self.client_id, action=pb.SetForwardingPipelineConfigRequest.VERIFY_AND_WARM_INIT_BEGIN_AND_END)
        request.config.add(p4_name=self.program)
        try:
            self.stub.SetForwardingPipelineConfig(request, timeout=_TIMEOUT)
        except grpc.RpcError as error:
            raise _refused(error) from None

    def close(self) -> None:
        """End the subscription, and with it the binding."""
        self._requests.put(None)
        self._stream.cancel()
        self._reader.join(_TIMEOUT)
        self.channel.close()
        _closed.add(self.client_id)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Calls

    def write(self, updates: Iterable[pb.Update], *, atomicity: int = pb.WriteRequest.CONTINUE_ON_ERROR, batch: int = _BATCH) -> list[Refused | None]:
        """Write updates, at most `batch` in a request; for each None or its error. Raises Refused when a whole call is refused."""
        found: list[Refused | None] = []
        for part in _batched(updates, batch):
            request = pb.WriteRequest(client_id=self.client_id, atomicity=atomicity, updates=part, p4_name="" if self.bound else self.program)
            _aim(request.target)
            try:
                self.stub.Write(request, timeout=_TIMEOUT)
            except grpc.RpcError as error:
                errors = details(error)
                if errors is None:
                    raise _refused(error) from None
                found += errors + [None] * (len(part) - len(errors))
            else:
                found += [None] * len(part)
        return found

    def read(self, entities: Iterable[pb.Entity]) -> list[pb.Entity]:
        """All that was found, over however many responses; what is not there is left out. Raises Refused for any other error."""
        found: list[pb.Entity] = []
        for part in _batched(entities, _BATCH):
            request = pb.ReadRequest(client_id=self.client_id, entities=part, p4_name="" if self.bound else self.program)
            _aim(request.target)
            try:
                for response in self.stub.Read(request, timeout=_TIMEOUT):
                    found += response.entities
            except grpc.RpcError as error:
                errors = details(error)
                if errors is None:
                    raise _refused(error) from None
                for other in errors:
                    if other is not None and other.code != NOT_FOUND:
                        raise other from None
        return found

    # Rows of any table

    def table(self, name: str) -> Table:
        """A table of the served schema, by its name or a dotted suffix. Raises SchemaError."""
        return self.schema.tables[name]

    def entity(self, table: Table, key: Sequence[Any] | None = None, action: str | None = None, data: Mapping[str, Any] | None = None, *, reset_stats: bool = False) -> pb.Entity:
        """An entry for a write or a read. Key and data values are numbers or bytes, a range is a pair; without a key the whole table is meant."""
        made = pb.Entity()
        entry = made.table_entry
        entry.table_id = table.id
        if key is not None:
            entry.key.SetInParent()
            for one, value in zip(table.key, key, strict=True):
                put = entry.key.fields.add(field_id=one.id)
                if one.match == "Range":
                    put.range.low, put.range.high = _raw(one, value[0]), _raw(one, value[1])
                else:
                    put.exact.value = _raw(one, value)
        chosen = None
        if action is not None:
            chosen = table.actions[action]
            entry.data.action_id = chosen.id
        for name, value in (data or {}).items():
            one = (chosen.fields.find(name) if chosen is not None else None) or table.data[name]
            _put(entry.data.fields.add(field_id=one.id), one, value)
        entry.table_flags.reset_stats = reset_stats
        return made

    def row(self, entity: pb.Entity) -> Row:
        """An entry that was read."""
        entry = entity.table_entry
        table = self.schema.tables.by_id[entry.table_id]
        raw = {message.field_id: message for message in entry.key.fields}
        key = tuple((raw[one.id].range.low, raw[one.id].range.high) if one.match == "Range" else raw[one.id].exact.value for one in table.key if one.id in raw)
        action = table.actions.by_id.get(entry.data.action_id)
        return Row(key, None if action is None else action.name.rpartition(".")[2], dict(_values(table, action, entry.data)))

    def rows(self, table: Table) -> list[Row]:
        """All entries of a table. The default entry is left out, unless the table has no key."""
        return [self.row(entity) for entity in self.read([self.entity(table)]) if not entity.table_entry.is_default_entry or not len(table.key)]

    def get(self, table: Table, *key: Any) -> Row | None:
        """One entry; None when it is not there."""
        found = self.read([self.entity(table, key)])
        return self.row(found[0]) if found else None

    def put(self, kind: int, table: Table, key: Sequence[Any] | None, action: str | None = None, data: Mapping[str, Any] | None = None, *, reset_stats: bool = False) -> None:
        """One update. Raises Refused, within batching() at its end."""
        update = pb.Update(type=kind, entity=self.entity(table, key, action, data, reset_stats=reset_stats))
        if self._batch is not None:
            self._batch.append(update)
            return
        error = self.write([update])[0]
        if error is not None:
            raise error

    @contextlib.contextmanager
    def batching(self) -> Iterator[None]:
        """Gather what is put within the block, and write it in one go. Raises Refused for the first that fails; the others are carried out."""
        self._batch = []
        try:
            yield
            updates = self._batch
        finally:
            self._batch = None
        for error in self.write(updates):
            if error is not None:
                raise error

    def clear(self, table: Table) -> None:
        """Delete all entries of a table. Raises Refused."""
        self.put(DELETE, table, None)


def until(condition: Callable[[], Any], what: str = "", seconds: float = 60.0) -> Any:
    """Wait for something to hold and give it back. Raises AssertionError when it does not in time."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"did not happen within {seconds:g} s: {what or condition}"
        time.sleep(0.005)
    return found


def _batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    left = iter(items)
    while part := list(itertools.islice(left, size)):
        yield part


def _aim(target: pb.TargetDevice) -> None:
    target.device_id, target.pipe_id, target.direction, target.prsr_id = 0, 0xFFFF, 0xFF, 0xFF


def _refused(error: grpc.RpcError) -> Refused:
    return Refused(error.code().value[0], f"{error.code().name}: {error.details()}")


def details(error: grpc.RpcError) -> list[Refused | None] | None:
    """The errors of a batch, up to the last; None where the whole call failed."""
    for name, value in error.trailing_metadata() or ():
        if name == "grpc-status-details-bin":
            found: list[Refused | None] = []
            for detail in status_pb2.Status.FromString(value).details:
                message = pb.Error()
                if not detail.Unpack(message):
                    return None
                found.append(Refused(message.canonical_code, message.message) if message.canonical_code else None)
            return found or None
    return None


def _raw(one: Field, value: Any) -> bytes:
    return value if isinstance(value, bytes) else int(value).to_bytes(one.size or 0, "big")


def _put(message: Any, one: Field, value: Any) -> None:
    if one.repeated:
        getattr(message, "bool_arr_val" if one.type == "bool" else "int_arr_val").val.extend(value)
        message.SetInParent()
        getattr(message, "bool_arr_val" if one.type == "bool" else "int_arr_val").SetInParent()
    elif one.type == "string":
        message.str_val = value
    elif one.type == "bool":
        message.bool_val = value
    else:
        message.stream = _raw(one, value)


def _values(table: Table, action: Action | None, data: pb.TableData) -> Iterator[tuple[str, Any]]:
    for message in data.fields:
        one = (action.fields.by_id.get(message.field_id) if action is not None else None) or table.data.by_id[message.field_id]
        kind = message.WhichOneof("value")
        value = getattr(message, kind) if kind is not None else b""
        yield one.name, list(value.val) if kind in ("int_arr_val", "bool_arr_val") else value
