"""The relay table of a data plane: the one place of the agent that writes tables.

Operations of many callers go out together in batches; each gets its own result. Operations on one key
keep their order. Only the target's own OK makes an entry INSTALLED.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from shunt.bfrt import client as bfrt
from shunt.bfrt import wire
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.client import BfrtClient, BfrtRefused, BfrtUnavailable, UpdateError
from shunt.bfrt.schema import MATCH_PRIORITY, Action, Field, Schema, SchemaError, Table
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import LearnNotice, MediaRange, Outcome, RelayEntry, Result, StreamStats

log = logging.getLogger(__name__)

MAX_BATCH = 1000
_IN_FLIGHT = 2  # batches under way: the next is made while the target works on one
_READ_KEYS = 2000
_IDLE_POLL_MS, _IDLE_LEAST_MS, _IDLE_MOST_MS = 1_000, 1_000, 3_600_000
_ROUNDS = 5
_RETRY_DELAY = 0.02
_PARAMETERS = ("src_addr", "dst_addr", "src_port", "dst_port")
_INSERT, _MODIFY, _DELETE = pb.Update.INSERT, pb.Update.MODIFY, pb.Update.DELETE


class DataPlaneUnavailable(Exception):
    """The data plane does not answer, so a question about it has no answer."""


def _form(field: Field) -> str:
    """The struct format of a field's value on the wire."""
    if field.size is None or field.repeated:
        raise SchemaError(f"{field.name} is {field.type}, not a bit string")
    return {1: "B", 2: "H"}.get(field.size, f"{field.size}s")


class _Rewrite:
    """One action of the relay table that says where packets go, and the templates of its updates."""

    def __init__(self, table: Table, action: Action, key: Sequence[wire.Part], ttl: Field | None) -> None:
        self.action = action
        self.by_name = {name: action.fields.find(name) for name in (*_PARAMETERS, "set_dscp", "dscp")}
        for name in ("dst_addr", "src_port", "dst_port"):
            if self.by_name[name] is None:
                raise SchemaError(f"{table.name}: {action.name} has no parameter {name}")
        known = {field.id for field in self.by_name.values() if field is not None}
        strange = [field.name for field in action.fields if field.id not in known]
        if strange:
            raise SchemaError(f"{table.name}: {action.name} has a parameter {strange[0]} that the agent does not know")
        self.has_src = self.by_name["src_addr"] is not None
        self.has_dscp = self.by_name["set_dscp"] is not None and self.by_name["dscp"] is not None
        self.addr_size: int | None = None
        for name, sizes in (("src_addr", (4, 16)), ("dst_addr", (4, 16)), ("src_port", (2,)), ("dst_port", (2,)), ("set_dscp", (1,)), ("dscp", (1,))):
            field = self.by_name[name]
            if field is not None and field.size not in sizes:
                raise SchemaError(f"{table.name}: {action.name}'s {name} has {field.size} bytes")
            if field is not None and "addr" in name:
                if self.addr_size not in (None, field.size):
                    raise SchemaError(f"{table.name}: {action.name} mixes IP versions")
                self.addr_size = field.size
        data: list[wire.Part] = wire.number(1, action.id)
        for field in self.by_name.values():
            if field is not None:
                data += wire.data_stream(field.id, wire.Slot(_form(field)))
        if ttl is not None:
            data += wire.data_stream(ttl.id, wire.Slot("I"))
        self.has_ttl = ttl is not None
        self._templates = {
            kind: wire.Template(wire.message(3, wire.number(1, kind), wire.message(2, wire.message(1, wire.number(1, table.id), key, wire.message(3, data)))))
            for kind in (_INSERT, _MODIFY)
        }

    def suits(self, entry: RelayEntry) -> bool:
        """Whether this action can say what the entry does."""
        if len(entry.dst.addr) != self.addr_size or len(entry.src.addr) != self.addr_size:
            return False
        if entry.dscp is not None and not self.has_dscp:
            return False
        # Without a source address of its own, the packet's old destination becomes its source.
        return self.has_src or entry.src.addr == entry.key.dst.addr

    def update(self, kind: int, entry: RelayEntry) -> bytes:
        """A serialised update. Raises struct.error for a port, DSCP or time that does not fit."""
        key, src, dst = entry.key, entry.src, entry.dst
        values: list[bytes | int] = [key.src.addr, key.dst.addr, key.src.port, key.dst.port]
        if self.has_src:
            values.append(src.addr)
        values += (dst.addr, src.port, dst.port)
        if self.has_dscp:
            values += (entry.dscp is not None, entry.dscp or 0)
        if self.has_ttl:
            values.append(entry.ttl_ms)
        return self._templates[kind].pack(*values)

    def entry(self, key: FiveTuple, values: Mapping[int, Any], ttl: Field | None) -> RelayEntry:
        """The entry of values that a read returned, by field id."""
        fields = self.by_name
        address, sport, dport = fields["dst_addr"], fields["src_port"], fields["dst_port"]
        assert address is not None and sport is not None and dport is not None
        src_addr, dscp = key.dst.addr, None
        if (source := fields["src_addr"]) is not None:
            src_addr = values.get(source.id, b"")
        if (rewrites := fields["set_dscp"]) is not None and (code := fields["dscp"]) is not None and _number(values.get(rewrites.id)):
            dscp = _number(values.get(code.id))
        return RelayEntry(
            key,
            Endpoint(src_addr, _number(values.get(sport.id))),
            Endpoint(values.get(address.id, b""), _number(values.get(dport.id))),
            _number(values.get(ttl.id)) if ttl is not None else 0,
            dscp,
        )


class _KeyedTable:
    """A table whose key is the 5-tuple of one IP version."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.fields = [table.key[name] for name in _PARAMETERS]
        sizes = [field.size for field in self.fields]
        if len(table.key) != 4 or sizes not in ([4, 4, 2, 2], [16, 16, 2, 2]) or any(field.match != "Exact" for field in self.fields):
            raise SchemaError(f"{table.name}: its key is not a 5-tuple")
        self.addr_size = sizes[0]
        self.ids = [field.id for field in self.fields]
        self.wants(())

    def key_parts(self) -> list[wire.Part]:
        return wire.message(2, *(wire.key_exact(field.id, wire.Slot(_form(field))) for field in self.fields))

    def key(self, message: pb.TableKey) -> FiveTuple:
        """The 5-tuple of a key that the target sent. Raises SchemaError."""
        values = {field.field_id: field.exact.value for field in message.fields}
        try:
            src, dst, sport, dport = (values[number] for number in self.ids)
        except KeyError:
            raise SchemaError(f"{self.table.name}: the target sent a key without all of its fields") from None
        return FiveTuple(Endpoint(src, int.from_bytes(sport, "big")), Endpoint(dst, int.from_bytes(dport, "big")))

    def wants(self, data_fields: Iterable[int]) -> None:
        """Make read requests ask for these data fields only (none: for all)."""
        data = [part for number in data_fields for part in wire.message(2, wire.number(1, number))]
        tail = wire.message(3, data) if data else []
        flags = wire.message(9, wire.number(1, 1))  # from the hardware, not from a driver's cache

        def template(key: list[wire.Part]) -> wire.Template:
            return wire.Template(wire.message(3, wire.message(1, wire.number(1, self.table.id), key, tail, flags)))

        self._one, self._every = template(self.key_parts()), template([])

    def request(self, key: FiveTuple | None) -> bytes:
        """A serialised read of one entry, or of all."""
        if key is None:
            return self._every.pack()
        return self._one.pack(key.src.addr, key.dst.addr, key.src.port, key.dst.port)


class _Counters(_KeyedTable):
    """The counters of a relay table, where there is no better source of statistics."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.fields_of = [table.data.find(name) for name in ("$COUNTER_SPEC_PKTS", "$COUNTER_SPEC_BYTES")]
        self.wants(field.id for field in self.fields_of if field is not None)

    def stats(self, values: Mapping[int, Any]) -> StreamStats:
        """The counters of values that a read returned; 0 where the table does not count."""
        packets, size = (_number(values.get(field.id)) if field is not None else 0 for field in self.fields_of)
        return StreamStats(packets, size)


class _RelayTarget(_KeyedTable):
    """`relay` or `relay6` of a target."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.ttl = table.data.find("$ENTRY_TTL")
        key = self.key_parts()
        self.rewrites: list[_Rewrite] = []
        reasons = ["there is none"]
        for action in table.actions:
            if not action.default_only:
                try:
                    self.rewrites.append(_Rewrite(table, action, key, self.ttl))
                except SchemaError as error:
                    # A target may have actions for other purposes.
                    reasons.append(str(error))
        if not self.rewrites:
            raise SchemaError(f"{table.name}: no action says where packets go: {reasons[-1]}")
        # The shortest action that suits an entry comes first.
        self.rewrites.sort(key=lambda rewrite: len(rewrite.action.fields))
        self.by_action = {rewrite.action.id: rewrite for rewrite in self.rewrites}
        self._delete = wire.Template(wire.message(3, wire.number(1, _DELETE), wire.message(2, wire.message(1, wire.number(1, table.id), key))))
        self.counters = _Counters(table)

    def update(self, kind: int, entry: RelayEntry) -> bytes:
        """A serialised INSERT or MODIFY. Raises ValueError or struct.error, saying what does not fit."""
        for rewrite in self.rewrites:
            if rewrite.suits(entry):
                return rewrite.update(kind, entry)
        raise ValueError(f"{self.table.name} has no action that sends {entry.key} out from {entry.src} to {entry.dst}" + (f" with DSCP {entry.dscp}" if entry.dscp is not None else ""))

    def delete(self, key: FiveTuple) -> bytes:
        """A serialised DELETE."""
        return self._delete.pack(key.src.addr, key.dst.addr, key.src.port, key.dst.port)


class _Quality(_KeyedTable):
    """`softswitch.quality` or `quality6`: StreamStats by their own names."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._names = {field.id: field.name for field in table.data}

    def stats(self, values: Mapping[int, Any]) -> StreamStats:
        """The statistics of values that a read returned, by field id."""
        get = {name: _number(values[number]) for number, name in self._names.items() if number in values}.get
        # Without an RTP packet there is nothing to say of losses and jitter.
        heard = bool(get("ssrc")) or any(get(name) for name in ("lost", "reordered", "duplicates", "jitter_us"))
        quality = [get(name) if heard else None for name in ("lost", "reordered", "duplicates", "jitter_us", "ssrc")]
        return StreamStats(get("packets", 0), get("bytes", 0), get("idle_ms"), *quality, get("stray"))


class _Row:
    """How to take read entries of one layout apart (see wire.Layout)."""

    __slots__ = ("action_id", "width", "_key", "_data")

    def __init__(self, table: _KeyedTable, message: pb.TableEntry) -> None:
        """message is one such entry. Raises ValueError when it is an unusual one."""
        key = [field.field_id for field in message.key.fields]
        kinds = [field.WhichOneof("value") for field in message.data.fields]
        data = [field.field_id for field, kind in zip(message.data.fields, kinds) if kind == "stream"]
        if sorted(key) != sorted(table.ids) or message.is_default_entry or not set(kinds) <= {"stream", "str_val"} or len(set(data)) < len(data):
            raise ValueError("an unusual entry")
        if [len(field.exact.value) for field in sorted(message.key.fields, key=lambda field: table.ids.index(field.field_id))] != [field.size for field in table.fields]:
            raise ValueError("an unusual key")
        self.action_id = message.data.action_id
        self._key = [key.index(number) for number in table.ids]
        self._data = [(number, 4 + place) for place, number in enumerate(data)]
        self.width = 4 + len(data)

    def items(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[FiveTuple, dict[int, Any]]]:
        """Key and data by field id of each row."""
        src, dst, sport, dport = self._key
        for row in rows:
            yield FiveTuple(Endpoint(row[src], row[sport]), Endpoint(row[dst], row[dport])), {number: row[place] for number, place in self._data}


class _Answers:
    """Reads a target's answers about one table."""

    def __init__(self, table: _KeyedTable) -> None:
        self.table = table
        self._splitter: wire.Splitter[_Row] = wire.Splitter(1, wire.ENTITY, self._learn)

    def _learn(self, body: bytes) -> tuple[pb.Entity, _Row | None]:
        entity = pb.Entity.FromString(body)
        try:
            return entity, _Row(self.table, entity.table_entry)
        except ValueError:
            return entity, None

    def items(self, response: bytes) -> Iterator[tuple[FiveTuple, int, Mapping[int, Any]]]:
        """Key, action id and data by field id of each entry; the default entry is left out. Raises SchemaError."""
        try:
            _, found = self._splitter.split(response)
        except (ValueError, DecodeError) as error:
            raise SchemaError(f"{self.table.table.name}: the target's answer cannot be read: {error}") from None
        for item in found:
            if isinstance(item, wire.Run):
                for key, values in item.plan.items(item.values):
                    yield key, item.plan.action_id, values
            elif item.table_entry.HasField("key"):
                message = item.table_entry
                yield self.table.key(message.key), message.data.action_id, {field.field_id: field.stream for field in message.data.fields}


def _number(value: bytes | int | None) -> int:
    """A value that a read returned, as a number."""
    if value is None:
        return 0
    return value if isinstance(value, int) else int.from_bytes(value, "big")


class _Plan:
    """What a target's schema offers the relay table, resolved to ids. Raises SchemaError for one that cannot serve."""

    def __init__(self, schema: Schema) -> None:
        tables = schema.tables
        self.relay: dict[int, _RelayTarget] = {}
        for name in ("relay", "relay6"):
            table = tables.find(name)
            if table is not None:
                target = _RelayTarget(table)
                self.relay[target.addr_size or 0] = target
        if not self.relay:
            raise SchemaError("the target has no relay table")
        self.by_table = {target.table.id: target for target in self.relay.values()}
        self.answers = {size: _Answers(target) for size, target in self.relay.items()}
        quality = [_Quality(table) for table in (tables.find("softswitch.quality"), tables.find("softswitch.quality6")) if table is not None]
        self.quality = {source.addr_size or 0: source for source in quality}
        self.stats: dict[int, tuple[_Quality | _Counters, _Answers]] = {}
        for size, target in self.relay.items():
            source = self.quality.get(size) or target.counters
            self.stats[size] = (source, _Answers(source))
        trace = [_KeyedTable(table) for table in (tables.find("softswitch.trace"), tables.find("softswitch.trace6")) if table is not None]
        self.trace = {keyed.addr_size or 0: keyed for keyed in trace}
        self.totals = tables.find("softswitch.totals")
        self.interface = tables.find("softswitch.interface")
        self.media = {table.key["dst_addr"].size or 0: table for table in (tables.find("media"), tables.find("media6")) if table is not None}
        self.learns: dict[int, dict[str, int]] = {}
        for name in ("learn", "learn6"):
            learn = schema.learns.find(name)
            if learn is not None:
                self.learns[learn.id] = {part: learn.fields[part].id for part in (*_PARAMETERS, "rtp_version", "payload_type", "seq", "ssrc")}

    def for_key(self, key: FiveTuple) -> _RelayTarget:
        """The relay table of a key. Raises ValueError when the target has none for its IP version."""
        if len(key.src.addr) != len(key.dst.addr):
            raise ValueError(f"{key} mixes IP versions")
        target = self.relay.get(len(key.dst.addr))
        if target is None:
            raise ValueError(f"the data plane has no relay table for IPv{key.dst.version}")
        return target


class _Job:
    """What one caller waits for: the results of one or many operations."""

    __slots__ = ("results", "stats", "left", "done")

    def __init__(self, count: int) -> None:
        self.results: list[Result | None] = [None] * count
        self.stats: list[StreamStats | None] = [None] * count
        self.left = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not count:
            self.done.set_result(None)


class _Operation:
    """One update of the relay table on its way."""

    __slots__ = ("kind", "key", "entry", "job", "place", "stats")

    def __init__(self, kind: int, key: FiveTuple, entry: RelayEntry | None, job: _Job, place: int) -> None:
        self.kind = kind
        self.key = key
        self.entry = entry
        self.job = job
        self.place = place
        self.stats: StreamStats | None = None

    def finish(self, result: Result) -> None:
        job = self.job
        if job.results[self.place] is None:
            job.results[self.place] = result
            job.stats[self.place] = self.stats
            job.left -= 1
            if not job.left and not job.done.done():
                job.done.set_result(None)


_INSTALLED = Result(Outcome.INSTALLED)
_REMOVED = Result(Outcome.REMOVED)


@dataclass(slots=True)
class BatchCounters:
    """What the table has written since it was made, for metrics."""

    batches: int = 0
    updates: int = 0
    retries: int = 0
    failures: int = 0


class RelayTable:
    """Relay entries into one data plane, notices and statistics out of it.

    Callbacks are attributes: on_learn(LearnNotice), on_idle(FiveTuple), on_up() when the data plane is
    (back) there, on_down(reason). Questions (entries, stats, trace, totals) raise DataPlaneUnavailable
    when there is no answer; operations end in a Result in any case.
    """

    def __init__(self, target: str, *, client_id: int, device_id: int = 0, program: str = "relay", batch_delay: float = 0.002) -> None:
        """target: HOST:PORT of a BF Runtime server. batch_delay: seconds an operation may wait for company."""
        self.on_learn: Callable[[LearnNotice], None] = lambda notice: None
        self.on_idle: Callable[[FiveTuple], None] = lambda key: None
        self.on_up: Callable[[], None] = lambda: None
        self.on_down: Callable[[str], None] = lambda reason: None
        self.batch_delay = batch_delay
        self.counters = BatchCounters()
        self.data_plane = "BF Runtime target"
        self._client = BfrtClient(target, client_id=client_id, device_id=device_id, program=program)
        self._client.check = self._check
        self._client.on_up = self._session_up
        self._client.on_down = self._session_down
        self._client.on_digest = self._digest
        self._client.on_idle = self._idle
        self._plan: _Plan | None = None
        self._up = False
        self._queue: deque[_Operation] = deque()
        self._oldest = 0.0
        self._wake = asyncio.Event()
        self._room = asyncio.Semaphore(_IN_FLIGHT)
        self._busy: set[FiveTuple] = set()  # keys of the operations under way
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # Connection.

    async def start(self) -> None:
        """Begin connecting in the background; returns at once and keeps reconnecting until close()."""
        self._client.start()
        self._spawn(self._work())

    async def close(self) -> None:
        """Leave the data plane as it is; what is still on its way ends UNAVAILABLE. Idempotent."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()
        self._fail_queue("closed")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def connected(self) -> bool:
        """Whether operations can be expected to succeed now."""
        return self._up and self._client.connected

    @property
    def last_error(self) -> str:
        """Why there is no connection; empty while there is one."""
        return "" if self.connected else self._client.last_error or "coming up"

    def _check(self, schema: Schema) -> None:
        self._plan = _Plan(schema)

    def _session_up(self, schema: Schema) -> None:
        self._spawn(self._come_up())

    async def _come_up(self) -> None:
        plan = self._plan
        assert plan is not None
        try:
            attributes = []
            for target in plan.relay.values():
                if "IdleTimeout" in target.table.attributes:
                    entity = pb.Entity()
                    entity.table_attribute.table_id = target.table.id
                    idle = entity.table_attribute.idle_table
                    idle.enable, idle.idle_table_mode = True, idle.IDLE_TABLE_NOTIFY_MODE
                    idle.ttl_query_interval, idle.min_ttl, idle.max_ttl = _IDLE_POLL_MS, _IDLE_LEAST_MS, _IDLE_MOST_MS
                    attributes.append(entity)
            for error in await self._client.write_entities(_INSERT, attributes):
                if error is not None:
                    log.warning("data plane %s: no idle notices: %s", self._client.target, error.message)
            self.data_plane = await self._name(plan)
        except (BfrtUnavailable, BfrtRefused) as error:
            log.warning("data plane %s: %s", self._client.target, error)
            if not self._client.connected:
                return
        self._up = True
        try:
            self.on_up()
        except Exception:
            log.exception("on_up")

    async def _name(self, plan: _Plan) -> str:
        table = plan.interface
        if table is None:
            return "BF Runtime target"
        entity = pb.Entity()
        entity.table_entry.table_id = table.id
        modes: dict[str, list[str]] = {}
        name_id, mode_id = table.data["name"].id, table.data["mode"].id
        for found in await self._client.read([entity]):
            values = {field.field_id: field.str_val for field in found.table_entry.data.fields}
            if name_id in values:
                modes.setdefault(values.get(mode_id, "?"), []).append(values[name_id])
        return f"softswitch ({'; '.join(f'{mode} XDP on ' + ', '.join(names) for mode, names in modes.items()) or 'no interface'})"

    def _session_down(self, reason: str) -> None:
        was_up, self._up = self._up, False
        self._fail_queue(reason)
        if was_up:
            try:
                self.on_down(reason)
            except Exception:
                log.exception("on_down")

    def _fail_queue(self, reason: str) -> None:
        queue, self._queue = self._queue, deque()
        for operation in queue:
            operation.finish(Result(Outcome.UNAVAILABLE, reason))

    # Notices.

    def _digest(self, digest: pb.DigestList) -> None:
        plan = self._plan
        ids = plan.learns.get(digest.digest_id) if plan is not None else None
        if ids is None:
            return
        for data in digest.data:
            values = {field.field_id: field.stream for field in data.fields}
            try:
                number = {name: int.from_bytes(values[ids[name]], "big") for name in ("src_port", "dst_port", "rtp_version", "payload_type", "seq", "ssrc")}
                key = FiveTuple(Endpoint(values[ids["src_addr"]], number["src_port"]), Endpoint(values[ids["dst_addr"]], number["dst_port"]))
            except KeyError:
                log.warning("data plane %s: a learn notice lacks fields", self._client.target)
                continue
            try:
                self.on_learn(LearnNotice(key, number["rtp_version"], number["payload_type"], number["seq"], number["ssrc"]))
            except Exception:
                log.exception("on_learn")

    def _idle(self, notice: pb.IdleTimeoutNotification) -> None:
        target = self._plan.by_table.get(notice.table_entry.table_id) if self._plan is not None else None
        if target is not None and notice.type == pb.IdleTimeoutNotification.ENTRY_IDLE:
            self.on_idle(target.key(notice.table_entry.key))

    # Operations.

    def _submit(self, operations: list[_Operation]) -> None:
        if self._closed or not self._client.connected:
            reason = "closed" if self._closed else self._client.last_error
            for operation in operations:
                operation.finish(Result(Outcome.UNAVAILABLE, reason))
            return
        if not self._queue:
            self._oldest = time.monotonic()
        self._queue += operations
        self._wake.set()

    async def _all(self, kind: int, keys: Sequence[FiveTuple], entries: Sequence[RelayEntry | None]) -> _Job:
        job = _Job(len(keys))
        self._submit([_Operation(kind, key, entry, job, place) for place, (key, entry) in enumerate(zip(keys, entries))])
        await job.done
        return job

    async def insert(self, entry: RelayEntry) -> Result:
        """Put an entry in; one that is there already is made to do what this one says."""
        return (await self.insert_many([entry]))[0]

    async def modify(self, entry: RelayEntry) -> Result:
        """Change what an entry does, keeping its counters; one that is gone is put in again."""
        job = await self._all(_MODIFY, [entry.key], [entry])
        return _results(job)[0]

    async def delete(self, key: FiveTuple) -> tuple[Result, StreamStats | None]:
        """Take an entry out; with it the last statistics, read just before. ABSENT when it was not in."""
        return (await self.delete_many([key]))[0]

    async def insert_many(self, entries: Sequence[RelayEntry]) -> list[Result]:
        """insert() of each."""
        return _results(await self._all(_INSERT, [entry.key for entry in entries], entries))

    async def delete_many(self, keys: Sequence[FiveTuple]) -> list[tuple[Result, StreamStats | None]]:
        """delete() of each."""
        job = await self._all(_DELETE, keys, [None] * len(keys))
        return list(zip(_results(job), job.stats))

    async def _work(self) -> None:
        """Send what callers have queued, batch after batch."""
        while True:
            await self._wake.wait()
            if len(self._queue) < MAX_BATCH:
                # While batches are under way others wait anyway, so only fresh operations wait for company.
                await asyncio.sleep(max(0.0, self.batch_delay - (time.monotonic() - self._oldest)))
            await self._room.acquire()
            batch = self._take()
            if not batch or not self._queue:
                self._wake.clear()
            if batch:
                self._spawn(self._send(batch))
            else:
                # Everything queued waits for an operation under way on the same key, whose end wakes us.
                self._room.release()

    def _take(self) -> list[_Operation]:
        """The next operations, each of another key than all others under way: none may overtake one on its key."""
        batch: list[_Operation] = []
        waiting: list[_Operation] = []
        queue, busy = self._queue, self._busy
        while queue and len(batch) < MAX_BATCH:
            operation = queue.popleft()
            if operation.key in busy:
                waiting.append(operation)
            else:
                busy.add(operation.key)
                batch.append(operation)
        queue.extendleft(reversed(waiting))
        return batch

    async def _send(self, batch: list[_Operation]) -> None:
        """Bring one batch to its end, whatever happens."""
        try:
            await self._execute(batch)
        except asyncio.CancelledError:
            _finish(batch, Result(Outcome.UNAVAILABLE, "closed"))
            raise
        except Exception as error:
            log.exception("a batch of %d operations", len(batch))
            _finish(batch, Result(Outcome.UNAVAILABLE, f"{type(error).__name__}: {error}"))
        finally:
            self._busy.difference_update(operation.key for operation in batch)
            self._room.release()
            if self._queue:
                self._wake.set()

    async def _execute(self, batch: list[_Operation]) -> None:
        """Write a batch, and again what may yet succeed; every operation has its result afterwards."""
        todo = batch
        reason = "the data plane is busy"
        leaving = [operation for operation in batch if operation.kind == _DELETE]
        for round_number in range(_ROUNDS):
            plan = self._plan
            if plan is None or not self._client.connected:
                reason = self._client.last_error
                break
            sent, updates = self._encode(plan, todo)
            if not sent:
                return
            try:
                if leaving:
                    await self._read_last(plan, leaving)
                    leaving = []
                errors = await self._client.write(updates)
            except BfrtUnavailable as error:
                reason = str(error)
                errors = None
            except BfrtRefused as error:
                _finish(sent, Result(Outcome.REJECTED, str(error)))
                return
            self.counters.batches += 1
            if errors is None:
                todo, wait = sent, True
            else:
                self.counters.updates += len(sent)
                todo, wait = self._settle(sent, errors)
            if not todo:
                return
            self.counters.retries += len(todo)
            if wait:
                await asyncio.sleep(_RETRY_DELAY * 2**round_number)
        self.counters.failures += len(todo)
        _finish(todo, Result(Outcome.UNAVAILABLE, reason))

    def _encode(self, plan: _Plan, operations: list[_Operation]) -> tuple[list[_Operation], list[bytes]]:
        """Serialised updates; what cannot be said to this target is REJECTED here."""
        sent: list[_Operation] = []
        updates: list[bytes] = []
        for operation in operations:
            try:
                target = plan.for_key(operation.key)
                entry = operation.entry
                updates.append(target.delete(operation.key) if entry is None else target.update(operation.kind, entry))
                sent.append(operation)
            except (ValueError, struct.error) as error:
                operation.finish(Result(Outcome.REJECTED, str(error)))
        return sent, updates

    def _settle(self, operations: list[_Operation], errors: list[UpdateError | None]) -> tuple[list[_Operation], bool]:
        """Finish what has an answer; the result are those to send again, and whether to wait before."""
        again: list[_Operation] = []
        wait = False
        for operation, error in zip(operations, errors):
            if error is None:
                operation.finish(_REMOVED if operation.kind == _DELETE else _INSTALLED)
            elif error.code in bfrt.RETRYABLE:
                again.append(operation)
                wait = True
            elif error.code == bfrt.ALREADY_EXISTS and operation.kind == _INSERT:
                operation.kind = _MODIFY
                again.append(operation)
            elif error.code == bfrt.NOT_FOUND and operation.kind == _MODIFY:
                operation.kind = _INSERT
                again.append(operation)
            elif error.code == bfrt.NOT_FOUND and operation.kind == _DELETE:
                operation.finish(Result(Outcome.ABSENT, error.message))
            elif error.code == bfrt.NO_SPACE:
                operation.finish(Result(Outcome.TABLE_FULL, error.message))
            else:
                operation.finish(Result(Outcome.REJECTED, error.message))
        return again, wait

    async def _read_last(self, plan: _Plan, operations: list[_Operation]) -> None:
        """Last statistics of entries about to be deleted; without an answer they stay unknown."""
        try:
            found = await self._read_stats(plan, [operation.key for operation in operations])
        except (BfrtRefused, SchemaError) as error:
            log.warning("data plane %s: last statistics: %s", self._client.target, error)
            return
        for operation in operations:
            operation.stats = found.get(operation.key)

    # Questions.

    def _ready(self) -> _Plan:
        if self._plan is None or not self._client.connected:
            raise DataPlaneUnavailable(self._client.last_error)
        return self._plan

    async def _read(self, entities: Iterable[bytes]) -> list[pb.Entity]:
        self._ready()
        try:
            return [entity for response in await self._client.read_raw(list(entities)) for entity in pb.ReadResponse.FromString(response).entities]
        except (BfrtUnavailable, BfrtRefused) as error:
            raise DataPlaneUnavailable(str(error)) from error

    async def entries(self) -> dict[FiveTuple, RelayEntry]:
        """Everything in the relay tables. A Tofino gives the time left as ttl_ms, not the time set."""
        plan = self._ready()
        found: dict[FiveTuple, RelayEntry] = {}
        try:
            for size, target in plan.relay.items():
                for response in await self._client.read_raw([target.request(None)]):
                    for key, action_id, values in plan.answers[size].items(response):
                        rewrite = target.by_action.get(action_id)
                        if rewrite is not None:
                            found[key] = rewrite.entry(key, values, target.ttl)
        except (BfrtUnavailable, BfrtRefused, SchemaError) as error:
            raise DataPlaneUnavailable(str(error)) from error
        return found

    async def stats(self, keys: list[FiveTuple] | None) -> dict[FiveTuple, StreamStats]:
        """What was counted on these entries (None: all); keys without an entry are left out."""
        plan = self._ready()
        try:
            return await self._read_stats(plan, keys)
        except (BfrtUnavailable, BfrtRefused, SchemaError) as error:
            raise DataPlaneUnavailable(str(error)) from error

    async def _read_stats(self, plan: _Plan, keys: list[FiveTuple] | None) -> dict[FiveTuple, StreamStats]:
        found: dict[FiveTuple, StreamStats] = {}
        for size, (source, answers) in plan.stats.items():
            if keys is None:
                requests = [[source.request(None)]]
            else:
                of_size = [key for key in keys if len(key.dst.addr) == size]
                requests = [[source.request(key) for key in of_size[start : start + _READ_KEYS]] for start in range(0, len(of_size), _READ_KEYS)]
            for request in requests:
                for response in await self._client.read_raw(request):
                    for key, _, values in answers.items(response):
                        found[key] = source.stats(values)
        return found

    async def declare_media(self, ranges: list[MediaRange]) -> Result:
        """Make the data plane raise learn notices for these addresses and ports.

        Idempotent; ranges that others have declared stay. The result is the first failure, if any.
        """
        try:
            plan = self._ready()
            for size, table in plan.media.items():
                wanted = [media for media in ranges if len(media.addr) == size]
                if wanted:
                    result = await self._declare(table, wanted)
                    if not result.ok:
                        return result
        except (DataPlaneUnavailable, BfrtUnavailable) as error:
            return Result(Outcome.UNAVAILABLE, str(error))
        except (BfrtRefused, SchemaError) as error:
            return Result(Outcome.REJECTED, str(error))
        missing = next((media for media in ranges if len(media.addr) not in plan.media), None)
        if missing is not None:
            return Result(Outcome.REJECTED, f"the data plane has no media table for {Endpoint(missing.addr, missing.first_port)}")
        return _INSTALLED

    async def _declare(self, table: Table, ranges: list[MediaRange]) -> Result:
        address, ports, priority = table.key["dst_addr"], table.key["dst_port"], table.key.find(MATCH_PRIORITY)
        if ports.match != "Range":
            raise SchemaError(f"{table.name}: {ports.name} matches {ports.match}, not a range")
        action = next((action for action in table.actions if not action.default_only), None)
        if action is None:
            raise SchemaError(f"{table.name} has no action")
        everything = pb.Entity()
        everything.table_entry.table_id = table.id
        present = set()
        for entity in await self._client.read([everything]):
            values = {field.field_id: field for field in entity.table_entry.key.fields}
            if address.id in values and ports.id in values:
                span = values[ports.id].range
                present.add(MediaRange(values[address.id].exact.value, int.from_bytes(span.low, "big"), int.from_bytes(span.high, "big")))
        updates = []
        for media in ranges:
            if media in present:
                continue
            entity = pb.Entity()
            entry = entity.table_entry
            entry.table_id = table.id
            field = entry.key.fields.add()
            field.field_id, field.exact.value = address.id, media.addr
            field = entry.key.fields.add()
            field.field_id = ports.id
            field.range.low, field.range.high = media.first_port.to_bytes(2, "big"), media.last_port.to_bytes(2, "big")
            if priority is not None:
                field = entry.key.fields.add()
                field.field_id, field.exact.value = priority.id, (1).to_bytes(4, "big")
            entry.data.action_id = action.id
            updates.append(entity)
        if not updates:
            return _INSTALLED
        for error in await self._client.write_entities(_INSERT, updates):
            if error is not None and error.code != bfrt.ALREADY_EXISTS:
                outcome = {bfrt.NO_SPACE: Outcome.TABLE_FULL, bfrt.UNAVAILABLE: Outcome.UNAVAILABLE}.get(error.code, Outcome.REJECTED)
                return Result(outcome, error.message)
        return _INSTALLED

    async def trace(self, key: FiveTuple) -> dict[str, str]:
        """Where the data plane would send a packet of this 5-tuple, by its own word: verdict, reason, out_src, out_dst, out_interface."""
        plan = self._ready()
        keyed = plan.trace.get(len(key.dst.addr))
        if keyed is None:
            return {"verdict": "unknown", "reason": "this data plane cannot trace packets", "out_src": "", "out_dst": "", "out_interface": ""}
        for entity in await self._read([keyed.request(key)]):
            values = {field.field_id: field.str_val for field in entity.table_entry.data.fields}
            return {field.name: values.get(field.id, "") for field in keyed.table.data}
        raise DataPlaneUnavailable(f"no answer to a trace of {key}")

    async def totals(self) -> dict[str, int]:
        """Counters of the whole data plane; at least `entries` and `capacity`."""
        plan = self._ready()
        if plan.totals is not None:
            entity = pb.Entity()
            entity.table_entry.table_id = plan.totals.id
            entity.table_entry.is_default_entry = True
            for found in await self._read([bfrt.entity_bytes(entity)]):
                values = {field.field_id: int.from_bytes(field.stream, "big") for field in found.table_entry.data.fields}
                return {field.name: values.get(field.id, 0) for field in plan.totals.data}
            raise DataPlaneUnavailable("the data plane has no totals")
        usage = [bfrt.entity_bytes(pb.Entity(table_usage=pb.TableUsage(table_id=target.table.id))) for target in plan.relay.values()]
        entries = sum(found.table_usage.usage for found in await self._read(usage))
        return {"entries": entries, "capacity": sum(target.table.size for target in plan.relay.values())}


def _results(job: _Job) -> list[Result]:
    return [result if result is not None else Result(Outcome.UNAVAILABLE, "no answer") for result in job.results]


def _finish(operations: Iterable[_Operation], result: Result) -> None:
    for operation in operations:
        operation.finish(result)
