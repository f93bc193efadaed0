"""The relay table of a data plane: the one place of the agent that writes tables.

Operations of many callers go out together in batches; each gets its own result, within a bounded time.
Operations on one key keep their order. Only the target's own OK makes an entry INSTALLED. Writes wait for
no reads, and bulk work (reconciling, statistics) gives way to the writes of single streams.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from shunt import limits
from shunt.bfrt import client as bfrt
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.client import BfrtClient, BfrtRefused, BfrtUnavailable, UpdateError
from shunt.bfrt.schema import MATCH_PRIORITY, Learn, Schema, SchemaError, Table
from shunt.net import Endpoint, FiveTuple
from shunt.precedence import background
from shunt.tables.collisions import Collisions
from shunt.tables.doubt import Doubts, Wanted
from shunt.tables.entry import LearnNotice, MediaRange, Outcome, RelayEntry, Result, StreamStats
from shunt.tables.operation import Haste, Job, Lanes, Operation
from shunt.tables.samples import SamplePlan, Samples
from shunt.tables.target import Answers, KeyedTable, Plan, PortTable, StatsSource
from shunt.tasks import keep_running

log = logging.getLogger(__name__)

_IDLE_POLL_MS, _IDLE_LEAST_MS, _IDLE_MOST_MS = 1_000, 1_000, 3_600_000
_ROUNDS = 5
_RETRY_DELAY = 0.02
_WARY_RANGES = 4  # as many as a row of `softswitch.greylist` has room for
_READ_KEYS = 500  # a read of more would hold up the writes that come after it
_FEW = 64  # a question about so few entries need not go the way of the large answers
_READ_TIMEOUT = 5.0
_READ_ALL_TIMEOUT = 60.0
_SMALL_TIMEOUT = 10.0
_LATE_WORDS = 0.1  # seconds that the result of a delete waits for the statistics, once the entry is out
_HEARING_STEP = 8  # rows of who is heard that are put together before commands have their turn
_SAMPLE_DELAY = 0.05
_EXTENSION, _EXTENSIONS = 1.0, 10  # seconds, and how often, that a late caller waits on while others are answered
_BUSY = 6
_TURN = 1024  # entries of a large answer taken apart before others have their turn
_ALLOWED = tuple(f"allowed{n}" for n in range(4))
_INSERT, _MODIFY, _DELETE, _UPSERT = pb.Update.INSERT, pb.Update.MODIFY, pb.Update.DELETE, pb.Update.INSERT_OR_MODIFY


class DataPlaneUnavailable(Exception):
    """The data plane does not answer, so a question about it has no answer."""


@dataclass(frozen=True, slots=True)
class _Manners:
    """How one of the queues is served. Times are seconds."""

    haste: Haste
    company: float  # that an operation waits for others to go with it; besides batch_delay
    most: int  # operations to a batch
    in_flight: int  # batches under way
    timeout: float  # for one write
    patience: float  # for an operation from its caller's call to its result
    last_words: float  # that a delete waits for the statistics that were asked for before it

    def timeout_for(self, count: int) -> float:
        return self.timeout + count / 5000

    def patience_for(self, count: int) -> float:
        return self.patience + count / 1000


# Several batches of single streams' operations may be under way, so that one that the target has swallowed
# does not hold up the others; of bulk work never more than what the target has done in some milliseconds.
_URGENT = _Manners(Haste.URGENT, 0.0, 1000, 8, 2.0, 5.0, 0.02)
_PATIENT = _Manners(Haste.PATIENT, 0.04, 1000, 8, 2.0, 5.0, 0.1)
_BULK = _Manners(Haste.BULK, 0.0, 400, 2, 10.0, 30.0, 2.0)

_INSTALLED = Result(Outcome.INSTALLED)
_REMOVED = Result(Outcome.REMOVED)
_ABANDONED = Result(Outcome.UNAVAILABLE, "given up")


@dataclass(slots=True)
class BatchCounters:
    """What the table has written since it was made, for metrics."""

    batches: int = 0
    updates: int = 0
    retries: int = 0
    failures: int = 0
    collisions: int = 0  # entries not written because another one had their hash
    repairs: int = 0  # entries put right after a write that was given up had been carried out all the same


class _Lane:
    """What serves one of the queues."""

    def __init__(self, manners: _Manners) -> None:
        self.manners = manners
        self.wake = asyncio.Event()
        self.room = asyncio.Semaphore(manners.in_flight)
        self.due = math.inf  # when what waits has waited long enough for company
        self.sooner: asyncio.Future[None] | None = None  # while that is waited for
        self.begun = 0.0  # when the last batch went out

    def expect(self, due: float) -> None:
        """Something waits that is to go by then, a monotonic time."""
        if due < self.due:
            self.due = due
            if self.sooner is not None and not self.sooner.done():
                self.sooner.set_result(None)

    async def until_due(self, pause: float) -> None:
        """Wait until something is due, and at least so many seconds after the last batch."""
        loop = asyncio.get_running_loop()
        while (left := max(self.due, self.begun + pause) - time.monotonic()) > 0:
            self.sooner = sooner = loop.create_future()
            timer = loop.call_later(left, lambda: sooner.done() or sooner.set_result(None))
            try:
                await sooner
            finally:
                timer.cancel()
                self.sooner = None


class RelayTable:
    """Relay entries into one data plane, notices and statistics out of it.

    Callbacks are attributes: on_learn(LearnNotice), on_packet(frame) with a packet that the
    data plane copies to the agent, on_idle(FiveTuple) when an entry has met no packet for its time-out,
    on_active(FiveTuple) when it meets one again, on_up() when the data plane is (back) there, on_down(reason),
    on_collision(key, holder) when packets of a 5-tuple that has no entry would leave by that of another one. Questions (entries, stats, trace, totals) raise DataPlaneUnavailable
    when there is no answer; operations end in a Result in any case.
    """

    def __init__(self, target: str, *, client_id: int, device_id: int = 0, program: str = "relay", stored_hash: str = "auto", batch_delay: float = 0.002,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """target: HOST:PORT of a BF Runtime server. batch_delay: seconds an operation waits for company, and six times that after the last batch.

        stored_hash: how the target stores 5-tuples if it does not say so itself: none, hash32, hash48, or auto (see stored_hashes).
        credentials: of TLS to the target; without them the connection is in the clear.
        """
        self.on_learn: Callable[[LearnNotice], None] = lambda notice: None
        self.on_packet: Callable[[bytes], None] = lambda frame: None
        self.on_idle: Callable[[FiveTuple], None] = lambda key: None
        self.on_active: Callable[[FiveTuple], None] = lambda key: None
        self.on_collision: Callable[[FiveTuple, FiveTuple], None] = lambda key, holder: None
        self.on_up: Callable[[], None] = lambda: None
        self.on_down: Callable[[str], None] = lambda reason: None
        self.batch_delay = batch_delay
        self.counters = BatchCounters()
        self.data_plane = "BF Runtime target"
        self._client = BfrtClient(target, client_id=client_id, device_id=device_id, program=program)
        self._client.credentials = credentials
        self._client.check = self._check
        self._client.on_up = self._session_up
        self._client.on_down = self._session_down
        self._client.on_digest = self._digest
        self._client.on_idle = self._idle
        self._plan: Plan | None = None
        self._lacks: list[str] = []
        self._sample_plan: SamplePlan | None = None
        self._samples = Samples()
        self._sampling = asyncio.Event()
        self._hash_setting = stored_hash
        self._hashes: dict[int, Collisions] = {}  # by the size of an address, for tables that store hashes
        self._written: list[set[FiveTuple]] = []  # for each reading of everything: the keys written meanwhile
        self._up = False
        self._queues = Lanes()
        self._lanes = {manners.haste: _Lane(manners) for manners in (_URGENT, _PATIENT, _BULK)}
        self.doubts = Doubts()
        self._doubtful = asyncio.Event()
        self._given_up = 0
        self._answered = 0.0  # when the last batch was answered
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # Connection.

    async def start(self) -> None:
        """Begin connecting in the background; returns at once and keeps reconnecting until close()."""
        self._client.start()
        for haste, lane in self._lanes.items():
            # A command may wait for what is urgent: a re-INVITE's does until the entries are out.
            work = keep_running(f"writes ({haste.name.lower()})", partial(self._work, lane))
            self._spawn(work, None if haste is Haste.URGENT else background())
        self._spawn(keep_running("unanswered writes", self._watch_doubts), background())
        self._spawn(keep_running("watched streams", self._keep_samples), background())

    async def close(self) -> None:
        """Leave the data plane as it is; what is still on its way ends UNAVAILABLE. Idempotent."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()
        self._fail_queue("closed")

    def _spawn(self, work: Coroutine[Any, Any, None], context: Context | None = None) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the relay table failed", exc_info=task.exception())

    @property
    def connected(self) -> bool:
        """Whether operations can be expected to succeed now."""
        return self._up and self._client.connected

    @property
    def client(self) -> BfrtClient:
        """The connection, for tables that are none of the relay's (conferences): a data plane has one client that writes."""
        return self._client

    @property
    def lacks(self) -> list[str]:
        """What the data plane does not offer, as sentences for operators; empty while there is none."""
        return self._lacks if self.connected else []

    @property
    def last_error(self) -> str:
        """Why there is no connection; empty while there is one."""
        return "" if self.connected else self._client.last_error or "coming up"

    def _check(self, schema: Schema) -> None:
        self._plan = plan = Plan(schema, self._hash_setting)
        # Where every entry counts, nothing need be watched besides.
        self._sample_plan = None if plan.counts else SamplePlan.of(schema)
        held = [key for collisions in self._hashes.values() for key in collisions.keys()]
        self._hashes = {size: Collisions(hashes) for size, hashes in plan.hashes.items() if hashes}
        # They may all still be in; reading the table shows which.
        for key in held:
            if (collisions := self._hashes.get(len(key.dst.addr))) is not None:
                collisions.claim(key, time.monotonic())

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
            self._lacks = plan.lacks()
            for sentence in self._lacks:
                log.info("data plane %s: %s", self._client.target, sentence)
            await self._adopt_samples()
        except (BfrtUnavailable, BfrtRefused) as error:
            log.warning("data plane %s: %s", self._client.target, error)
            if not self._client.connected:
                return
        self._up = True
        try:
            self.on_up()
        except Exception:
            log.exception("on_up")

    async def _name(self, plan: Plan) -> str:
        table = plan.interface
        if table is None:
            bits = sorted({hash_.bits for hashes in plan.hashes.values() for hash_ in hashes})
            return "BF Runtime target" + (f" (5-tuples taken as {' and '.join(f'{number}-bit' for number in bits)} hashes)" if bits else "")
        entity = pb.Entity()
        entity.table_entry.table_id = table.id
        modes: dict[str, list[str]] = {}
        name_id, mode_id, queues = table.data["name"].id, table.data["mode"].id, table.data.find("rx_queues")
        single: list[str] = []
        for found in await self._client.read([entity], timeout=_READ_TIMEOUT):
            values = {field.field_id: field.str_val for field in found.table_entry.data.fields}
            if name_id in values:
                modes.setdefault(values.get(mode_id, "?"), []).append(values[name_id])
                streams = {field.field_id: field.stream for field in found.table_entry.data.fields}
                if queues is not None and int.from_bytes(streams.get(queues.id, b""), "big") == 1:
                    single.append(values[name_id])
        limits.state("generic_xdp", len(modes.get("generic", ())))
        limits.state("single_receive_queue", len(single))
        if single:
            log.warning("data plane %s: one receive queue, so one processor core for all packets: %s", self._client.target, ", ".join(single))
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
        _finish(self._queues.drain(), Result(Outcome.UNAVAILABLE, reason))

    # Notices.

    def _digest(self, digest: pb.DigestList) -> None:
        plan = self._plan
        if plan is not None and plan.packets is not None and digest.digest_id == plan.packets.id:
            self._packets(plan.packets, digest)
            return
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

    def _packets(self, learn: Learn, digest: pb.DigestList) -> None:
        length, frame = learn.fields["length"].id, learn.fields["frame"].id
        for data in digest.data:
            values = {field.field_id: field.stream for field in data.fields}
            try:
                self.on_packet(values[frame][: int.from_bytes(values[length], "big")])
            except Exception:
                log.exception("on_packet")

    def _idle(self, notice: pb.IdleTimeoutNotification) -> None:
        target = self._plan.by_table.get(notice.table_entry.table_id) if self._plan is not None else None
        if target is not None:
            told = self.on_idle if notice.type == pb.IdleTimeoutNotification.ENTRY_IDLE else self.on_active
            told(target.key(notice.table_entry.key))

    # Operations.

    def _submit(self, operations: list[Operation], haste: Haste) -> None:
        if self._closed or not self._client.connected:
            _finish(operations, Result(Outcome.UNAVAILABLE, "closed" if self._closed else self._client.last_error))
            return
        lane = self._lanes[haste]
        lane.expect(time.monotonic() + self.batch_delay + lane.manners.company)
        self._queues.add(operations, haste)
        self._wake()

    def _wake(self) -> None:
        """Let the queues be served that have something to do."""
        for haste, lane in self._lanes.items():
            if self._queues.waiting(haste):
                lane.wake.set()

    async def _all(self, asked: Iterable[tuple[int, FiveTuple, RelayEntry | None]], haste: Haste = Haste.URGENT) -> Job:
        asked = list(asked)
        job = Job(len(asked))
        self._submit([Operation(kind, key, entry, job, place) for place, (kind, key, entry) in enumerate(asked)], haste)
        if not job.done.done():
            # Who stands at the end of a long queue waits longer.
            patience = self._lanes[haste].manners.patience_for(sum(self._queues.waiting(each) for each in {Haste.URGENT, haste}))
            job.timer = asyncio.get_running_loop().call_later(patience, self._late, job, patience, 0)
            try:
                await job.done
            finally:
                if job.timer is not None:
                    job.timer.cancel()
        return job

    def _late(self, job: Job, patience: float, extensions: int) -> None:
        """A caller has waited for long: it goes on waiting only while others get answers, and not for ever."""
        if extensions < _EXTENSIONS and time.monotonic() - self._answered < _EXTENSION:
            job.timer = asyncio.get_running_loop().call_later(_EXTENSION, self._late, job, patience + _EXTENSION, extensions + 1)
        else:
            self._give_up(job, patience)

    def _give_up(self, job: Job, patience: float) -> None:
        if not self._given_up:
            # One line for all that are given up together.
            asyncio.get_running_loop().call_later(0.5, self._tell_given_up)
        self._given_up += job.left
        self.counters.failures += job.left
        job.expire(Result(Outcome.UNAVAILABLE, f"{self._client.target} has not answered for {patience:.3g} s"))

    def _tell_given_up(self) -> None:
        log.warning("data plane %s: %d operations had no answer in time", self._client.target, self._given_up)
        self._given_up = 0

    async def insert(self, entry: RelayEntry) -> Result:
        """Put an entry in; one that is there already is made to do what this one says."""
        return (await self.place([entry]))[0]

    async def place(self, new: Sequence[RelayEntry] = (), changed: Sequence[RelayEntry] = ()) -> list[Result]:
        """insert() of the new ones, and change what others do, keeping their counters; of these one that is gone is put in again. Results in this order."""
        job = await self._all([*((_INSERT, entry.key, entry) for entry in new), *((_MODIFY, entry.key, entry) for entry in changed)])
        return job.answers()

    async def delete(self, key: FiveTuple) -> tuple[Result, StreamStats | None]:
        """Take an entry out; with it the last statistics, read just before. ABSENT when it was not in."""
        return (await self.delete_many([key], Haste.URGENT))[0]

    async def insert_many(self, entries: Sequence[RelayEntry]) -> list[Result]:
        """insert() of each, giving way to single operations."""
        return (await self._all(((_INSERT, entry.key, entry) for entry in entries), Haste.BULK)).answers()

    async def delete_many(self, keys: Sequence[FiveTuple], haste: Haste = Haste.BULK) -> list[tuple[Result, StreamStats | None]]:
        """delete() of each; a patient one waits for company, bulk gives way to single operations."""
        job = await self._all(((_DELETE, key, None) for key in keys), haste)
        return list(zip(job.answers(), job.stats))

    async def _work(self, lane: _Lane) -> None:
        """Send what callers have queued, batch after batch."""
        manners = lane.manners
        while True:
            await lane.wake.wait()
            if manners.haste is not Haste.BULK and self._queues.waiting(manners.haste) < manners.most:
                # Of single operations each would cost as much as a batch: while many come they wait for longer.
                await lane.until_due(_BUSY * self.batch_delay)
            await lane.room.acquire()
            batch = self._queues.take(manners.most, manners.haste)
            waiting = self._queues.waiting(manners.haste)
            lane.due = time.monotonic() if waiting else math.inf
            if not batch or not waiting:
                lane.wake.clear()
            if batch:
                lane.begun = time.monotonic()
                self._spawn(self._send(lane, batch))
            else:
                # Everything queued waits for an operation under way on the same key, whose end wakes us.
                lane.room.release()

    async def _send(self, lane: _Lane, batch: list[Operation]) -> None:
        """Bring one batch to its end: deletes, which have statistics to wait for, on their own."""
        parts: tuple[list[Operation], list[Operation]] = ([], [])
        for operation in batch:
            parts[operation.kind == _DELETE].append(operation)
        try:
            await asyncio.gather(*(self._carry_out(lane.manners, part) for part in parts if part))
        finally:
            lane.room.release()
            self._wake()

    async def _carry_out(self, manners: _Manners, batch: list[Operation]) -> None:
        """Bring operations to their end, whatever happens."""
        try:
            await self._execute(manners, batch)
        except asyncio.CancelledError:
            _finish(batch, Result(Outcome.UNAVAILABLE, "closed"))
            raise
        except Exception as error:
            log.exception("a batch of %d operations", len(batch))
            _finish(batch, Result(Outcome.UNAVAILABLE, f"{type(error).__name__}: {error}"))
        finally:
            self._queues.release(batch)
            self._believe(batch)
            if self._hashes:
                self._free_hashes(batch)
            if self._sample_plan is not None:
                self._follow(batch)
            self._wake()

    async def _execute(self, manners: _Manners, batch: list[Operation]) -> None:
        """Write a batch, and again what may yet succeed; every operation has its result afterwards."""
        todo = batch
        reason = "the data plane is busy"
        give_up = time.monotonic() + manners.patience
        words: asyncio.Task[None] | None = None
        try:
            for round_number in range(_ROUNDS):
                plan = self._plan
                if plan is None or not self._client.connected:
                    reason = self._client.last_error
                    break
                sent, updates = self._encode(plan, todo)
                if not sent:
                    return
                if words is None and sent[0].kind == _DELETE and (plan.counts or self._samples.indices):
                    words = self._spawn(self._read_last(plan, sent, manners.haste is Haste.BULK))
                    await asyncio.wait({words}, timeout=manners.last_words)
                try:
                    errors = await self._client.write(updates, timeout=manners.timeout_for(len(updates)))
                except BfrtUnavailable as error:
                    reason = str(error)
                    errors = None
                    self._doubt(sent)
                except BfrtRefused as error:
                    _finish(sent, Result(Outcome.REJECTED, str(error)))
                    return
                self.counters.batches += 1
                if words is not None and not words.done() and errors is not None:
                    # The question went out before the delete, so its answer may well be on its way.
                    await asyncio.wait({words}, timeout=_LATE_WORDS)
                if errors is None:
                    todo, wait = sent, True
                else:
                    self._answered = time.monotonic()
                    self.counters.updates += len(sent)
                    todo, wait = self._settle(sent, errors)
                if not todo:
                    return
                if time.monotonic() > give_up:
                    break
                self.counters.retries += len(todo)
                if wait:
                    await asyncio.sleep(_RETRY_DELAY * 2**round_number)
        finally:
            if words is not None:
                words.cancel()
        self.counters.failures += len(todo)
        _finish(todo, Result(Outcome.UNAVAILABLE, reason))

    # Writes that were given up.

    def _doubt(self, operations: list[Operation]) -> None:
        """These were sent and not answered: they may still be carried out, at any time."""
        now = time.monotonic()
        for operation in operations:
            self.doubts.raise_(operation.key, now)
        self._doubtful.set()

    def _believe(self, operations: list[Operation]) -> None:
        """Note, for keys in doubt, what their callers now take to be true."""
        if not self.doubts:
            return
        for operation in operations:
            # Nobody was told of a repair's end, so it changes nobody's mind.
            if operation.result is not None and operation.waited_for and operation.key in self.doubts:
                self.doubts.note(operation.key, operation.told, operation.entry, modify=operation.asked == _MODIFY)

    def claim(self, entry: RelayEntry) -> bool:
        """An entry that was found in the table is somebody's from now on. False while an operation on its key is under way, which may take it out."""
        if entry.key in self._queues:
            return False
        # A delete that was given up is no longer wanted.
        self.doubts.note(entry.key, _INSTALLED, entry, modify=False)
        return True

    def _free_hashes(self, operations: list[Operation]) -> None:
        """Free the hashes of entries that are certainly not in after these operations."""
        for operation in operations:
            outcome = operation.result.outcome if operation.result is not None else None
            if outcome in (Outcome.REMOVED, Outcome.ABSENT) or (operation.kind == _INSERT and outcome in (Outcome.TABLE_FULL, Outcome.REJECTED)):
                self._release(operation.key)

    async def _watch_doubts(self) -> None:
        """Look, for ever, at the keys in doubt when they are due."""
        while True:
            due = self.doubts.next_due()
            if due is None:
                self._doubtful.clear()
                await self._doubtful.wait()
                continue
            await asyncio.sleep(max(0.05, due - time.monotonic()))
            try:
                await self._look()
            except (BfrtUnavailable, BfrtRefused, SchemaError) as error:
                log.warning("data plane %s: %d entries are in doubt: %s", self._client.target, len(self.doubts), error)

    async def _look(self) -> None:
        """Compare keys in doubt with what ought to be there, and put right what is not."""
        now = time.monotonic()
        keys = []
        for key in self.doubts.due(now)[:_READ_KEYS]:
            # Until the look is done it is not due again, whatever comes of it.
            self.doubts.postpone(key, now)
            if key not in self._queues:
                keys.append(key)
        plan = self._plan
        if plan is None or not self._client.connected or not keys:
            return
        present = await self._read_entries(plan, keys)
        repairs = []
        for key in keys:
            wanted = self.doubts.wanted(key)
            if key in self._queues:
                continue
            self.doubts.looked(key, time.monotonic())
            there = present.get(key)
            if wanted is Wanted.NOTHING and there is None:
                self._release(key)
            # Whatever went on since the read began, what is written now is what ought to be there.
            if wanted is Wanted.NOTHING and there is not None:
                repairs.append(Operation(_DELETE, key, None))
            elif isinstance(wanted, RelayEntry) and (there is None or not wanted.does_as(there)):
                repairs.append(Operation(_INSERT, key, wanted))
        if repairs:
            log.warning("data plane %s: %d entries differ after writes that were not answered; putting them right", self._client.target, len(repairs))
            self.counters.repairs += len(repairs)
            self._submit(repairs, Haste.BULK)

    def _encode(self, plan: Plan, operations: list[Operation]) -> tuple[list[Operation], list[bytes]]:
        """Serialised updates; what cannot be said to this target is REJECTED here."""
        sent: list[Operation] = []
        updates: list[bytes] = []
        for operation in operations:
            if operation.abandoned and operation.asked != _DELETE:
                # Its caller has gone on without it; only a delete is still wanted.
                operation.finish(_ABANDONED)
                continue
            try:
                target = plan.for_key(operation.key)
                entry = operation.entry
                update = target.delete(operation.key) if entry is None else target.update(operation.kind, entry)
                if entry is not None and self._hashes and not self._claim(operation):
                    continue
                updates.append(update)
                sent.append(operation)
            except (ValueError, struct.error) as error:
                operation.finish(Result(Outcome.REJECTED, str(error)))
        return sent, updates

    def _claim(self, operation: Operation) -> bool:
        """Make sure that no other entry has the hash of this one; else it ends here."""
        key = operation.key
        collisions = self._hashes.get(len(key.dst.addr))
        holder = collisions.claim(key, time.monotonic()) if collisions is not None else None
        for written in self._written:
            written.add(key)
        if collisions is None or holder is None:
            return True
        bits = "/".join(str(hash_.bits) for hash_ in collisions.hashes)
        self.counters.collisions += 1
        operation.finish(Result(Outcome.HASH_COLLISION, f"{holder} has the same {bits}-bit hash in the data plane"))
        self._check_expected(collisions, key)
        return False

    @property
    def stores_hashes(self) -> bool:
        """Whether the data plane may store 5-tuples as hashes, so that expect() matters."""
        return bool(self._hashes)

    def expect(self, key: FiveTuple) -> None:
        """Packets of this 5-tuple may come although no entry is in: those of other 5-tuples with its hash have to stay out for the next seconds."""
        collisions = self._hashes.get(len(key.dst.addr))
        if collisions is not None:
            self._check_expected(collisions, key)

    def _check_expected(self, collisions: Collisions, key: FiveTuple) -> None:
        holder = collisions.expect(key, time.monotonic())
        if holder is not None:
            try:
                self.on_collision(key, holder)
            except Exception:
                log.exception("on_collision")

    def _release(self, key: FiveTuple) -> None:
        """The key's entry is not in; another of its hash may be."""
        collisions = self._hashes.get(len(key.dst.addr))
        # After a write that was given up it may yet come.
        if collisions is not None and key not in self.doubts:
            collisions.release(key)

    def _settle(self, operations: list[Operation], errors: list[UpdateError | None]) -> tuple[list[Operation], bool]:
        """Finish what has an answer; the result are those to send again, and whether to wait before."""
        again: list[Operation] = []
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

    async def _read_last(self, plan: Plan, operations: list[Operation], bulk: bool) -> None:
        """Last statistics of entries about to be deleted; without an answer they stay unknown."""
        keys = [operation.key for operation in operations]
        # All at once, so that every question is ahead of the delete.
        questions = [self._sampled(keys, bulk)]
        if plan.counts:
            questions += [
                self._stats_of(source, answers, requests, timeout, bulk)
                for size, (source, answers) in plan.stats.items()
                for requests, timeout in _requests(source, size, keys)
            ]
        by_key = {operation.key: operation for operation in operations}
        for found in await asyncio.gather(*questions, return_exceptions=True):
            if isinstance(found, (BfrtUnavailable, BfrtRefused, SchemaError)):
                log.warning("data plane %s: last statistics: %s", self._client.target, found)
            elif isinstance(found, BaseException):
                raise found
            else:
                for key, stats in found.items():
                    by_key[key].stats = stats

    # Streams that are watched because not every entry counts.

    def _follow(self, operations: list[Operation]) -> None:
        """Watch the streams that these operations put in, let go of those that they took out."""
        done = [(operation.key, operation.entry) for operation in operations if operation.result is not None and operation.result.ok]
        self._samples.want([key for key, entry in done if entry is not None])
        self._samples.drop([key for key, entry in done if entry is None])
        if self._samples.waiting:
            self._sampling.set()

    async def _adopt_samples(self) -> None:
        """Take over what the target watches already, with its counts."""
        plan = self._sample_plan
        self._samples = Samples(plan.room if plan is not None else 0)
        if plan is None:
            return
        watched = {}
        for target in plan.targets.values():
            for response in await self._client.read_raw([target.request(None)], timeout=_READ_TIMEOUT, bulk=True):
                for key, _, values in target.answers.items(response):
                    watched[key] = target.index_of(values)
        self._samples.adopt(watched)

    async def _keep_samples(self) -> None:
        """Write, for ever, which streams are to be watched; the streams' own entries come first."""
        while True:
            await self._sampling.wait()
            await asyncio.sleep(_SAMPLE_DELAY)
            self._sampling.clear()
            try:
                while self._samples.waiting and self._client.connected:
                    await self._write_samples()
            except (BfrtUnavailable, BfrtRefused, SchemaError) as error:
                # What is really watched is read when the data plane is back.
                log.warning("data plane %s: watching streams: %s", self._client.target, error)

    async def _write_samples(self) -> None:
        plan, samples = self._sample_plan, self._samples
        if plan is None:
            samples.take(len(samples.indices) + _READ_KEYS)
            return
        watch, leave = samples.take(_READ_KEYS)
        targets = [(key, index, plan.targets.get(len(key.dst.addr))) for key, index in [*watch, *((key, None) for key in leave)]]
        for key, _, target in targets:
            if target is None:
                samples.release(key)
        sent = [(key, index, target) for key, index, target in targets if target is not None]
        if not sent:
            return
        updates = [target.unwatch(key) if index is None else target.watch(key, index) for key, index, target in sent]
        again = []
        for (key, index, target), error in zip(sent, await self._client.write(updates, timeout=_READ_TIMEOUT)):
            if index is None:
                samples.release(key)
            elif error is not None and error.code == bfrt.ALREADY_EXISTS:
                again.append((key, target.watch(key, index, again=True)))
            elif error is not None:
                log.debug("data plane %s: %s is not watched: %s", self._client.target, key, error.message)
                samples.release(key)
        if again:
            for (key, _), error in zip(again, await self._client.write([update for _, update in again], timeout=_READ_TIMEOUT)):
                if error is not None:
                    samples.release(key)

    async def _sampled(self, keys: Sequence[FiveTuple], bulk: bool) -> dict[FiveTuple, StreamStats]:
        """What was counted on those of these streams that are watched."""
        plan, samples = self._sample_plan, self._samples
        watched = [key for key in keys if key in samples.indices]
        if plan is None or not watched:
            return {}
        missing: dict[int, int] = {}
        counts: dict[FiveTuple, tuple[int, int]] = {}
        for size, target in plan.targets.items():
            for requests, timeout in _requests(target, size, watched):
                for response in await self._client.read_raw(requests, timeout=timeout, bulk=bulk):
                    for key, _, values in target.answers.items(response):
                        counts[key] = target.counts_of(values)
        if plan.missing is not None:
            indices = [samples.indices[key] for key in counts if key in samples.indices]
            for start in range(0, len(indices), _READ_KEYS):
                for response in await self._client.read_raw([plan.missing.request(index) for index in indices[start : start + _READ_KEYS]], timeout=_READ_TIMEOUT, bulk=bulk):
                    missing.update(plan.missing.values(response))
        return {key: samples.stats(key, *counted, missing.get(samples.indices[key])) for key, counted in counts.items() if key in samples.indices}

    # Questions.

    def _ready(self) -> Plan:
        if self._plan is None or not self._client.connected:
            raise DataPlaneUnavailable(self._client.last_error)
        return self._plan

    async def _read(self, entities: Iterable[bytes]) -> list[pb.Entity]:
        self._ready()
        try:
            responses = await self._client.read_raw(list(entities), timeout=_READ_TIMEOUT)
            return [entity for response in responses for entity in pb.ReadResponse.FromString(response).entities]
        except (BfrtUnavailable, BfrtRefused) as error:
            raise DataPlaneUnavailable(str(error)) from error

    async def entries(self) -> dict[FiveTuple, RelayEntry]:
        """Everything in the relay tables. A Tofino gives the time left as ttl_ms, not the time set."""
        plan = self._ready()
        written: set[FiveTuple] = set()
        self._written.append(written)
        try:
            found = await self._read_entries(plan, None)
        except (BfrtUnavailable, BfrtRefused, SchemaError) as error:
            raise DataPlaneUnavailable(str(error)) from error
        finally:
            self._written = [other for other in self._written if other is not written]
        if self._hashes:
            self._take_stock(found, written)
        if self._sample_plan is not None:
            self._samples.drop([key for key in self._samples.indices if key not in found and key not in written and key not in self._queues])
            self._samples.want(found)
            self._sampling.set()
        return found

    def _take_stock(self, found: dict[FiveTuple, RelayEntry], written: set[FiveTuple]) -> None:
        """Note who holds which hash; of two entries of one hash, which an agent that knew nothing of hashes left, one goes."""
        for collisions in self._hashes.values():
            for key in collisions.keys():
                if key not in found and key not in written and key not in self._queues:
                    self._release(key)
        colliding = []
        for key in found:
            held = self._hashes.get(len(key.dst.addr))
            if held is not None and (holder := held.claim(key, time.monotonic())) is not None:
                log.error("data plane %s: %s and %s have the same hash: the second is taken out", self._client.target, holder, key)
                colliding.append(Operation(_DELETE, key, None))
        for operation in colliding:
            del found[operation.key]
        self._submit(colliding, Haste.BULK)

    async def _read_entries(self, plan: Plan, keys: Sequence[FiveTuple] | None) -> dict[FiveTuple, RelayEntry]:
        found: dict[FiveTuple, RelayEntry] = {}
        for size, target in plan.relay.items():
            for requests, timeout in _requests(target, size, keys):
                for response in await self._client.read_raw(requests, timeout=timeout, bulk=True):
                    for number, (key, action_id, values) in enumerate(plan.answers[size].items(response)):
                        rewrite = target.by_action.get(action_id)
                        if rewrite is not None:
                            found[key] = rewrite.entry(key, values, target.ttl)
                        if number % _TURN == _TURN - 1:
                            await asyncio.sleep(0)
        return found

    async def stats(self, keys: list[FiveTuple] | None) -> dict[FiveTuple, StreamStats]:
        """What was counted on these entries (None: all); keys without an entry are left out."""
        plan = self._ready()
        try:
            return await self._read_stats(plan, keys, bulk=keys is None or len(keys) > _FEW)
        except (BfrtUnavailable, BfrtRefused, SchemaError) as error:
            raise DataPlaneUnavailable(str(error)) from error

    async def _read_stats(self, plan: Plan, keys: Sequence[FiveTuple] | None, *, bulk: bool) -> dict[FiveTuple, StreamStats]:
        found: dict[FiveTuple, StreamStats] = {}
        for size, (source, answers) in plan.stats.items():
            for requests, timeout in _requests(source, size, keys):
                found.update(await self._stats_of(source, answers, requests, timeout, bulk))
        if self._samples.indices:
            found.update(await self._sampled(list(found), bulk))
        return found

    async def _stats_of(self, source: StatsSource, answers: Answers, requests: list[bytes], timeout: float, bulk: bool) -> dict[FiveTuple, StreamStats]:
        found: dict[FiveTuple, StreamStats] = {}
        for response in await self._client.read_raw(requests, timeout=timeout, bulk=bulk):
            for number, (key, _, values) in enumerate(answers.items(response)):
                found[key] = source.stats(values)
                if number % _TURN == _TURN - 1:
                    await asyncio.sleep(0)
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
        for entity in await self._client.read([everything], timeout=_READ_TIMEOUT):
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
        return await self._write_small([bfrt.update_bytes(_INSERT, entity) for entity in updates])

    async def refuse(self, source: Endpoint, ttl_ms: int) -> Result:
        """Have dropped, for so long, what a source (with port 0: its whole address) sends to media ports where it meets no entry."""
        return await self._write_hearing(lambda plan: plan.refused, {source: {}}, ttl_ms)

    async def hear(self, source: Endpoint) -> Result:
        """End refuse(); that nothing was refused is no failure."""
        return await self._write_hearing(lambda plan: plan.refused, {source: None})

    async def hear_all(self) -> Result:
        """End refuse() for every source."""
        return await self._empty(lambda plan: plan.refused)

    @property
    def guards_ports(self) -> bool:
        """Whether the connected data plane has tables for guard(). Raises DataPlaneUnavailable while there is none."""
        return bool(self._ready().guarded)

    async def guard(self, ports: Mapping[Endpoint, tuple[bytes, ...] | None], ttl_ms: int) -> Result:
        """Have dropped, for so long, what comes to a port (even) and the next from other addresses than these and meets no entry.

        None in place of addresses ends that; that nothing was guarded is no failure.
        """
        return await self._write_hearing(lambda plan: plan.guarded, {port: None if heard is None else dict(zip(_ALLOWED, heard)) for port, heard in ports.items()}, ttl_ms)

    async def unguard_all(self) -> Result:
        """End guard() for every port."""
        return await self._empty(lambda plan: plan.guarded)

    async def be_wary(self, ranges: Iterable[MediaRange], ttl_ms: int) -> Result:
        """Have dropped, for so long, what a stranger sends to a port in these ranges that is not guarded and where it meets no entry, until he keeps on.

        Of an address with more ranges than the data plane has room for, the last are left out, and the result says so.
        """
        spans: dict[Endpoint, list[bytes]] = {}
        for media in ranges:
            spans.setdefault(Endpoint(media.addr, 0), []).append((media.first_port << 16 | media.last_port).to_bytes(4, "big"))
        rows = {address: {f"ports{n}": span for n, span in enumerate(of[:_WARY_RANGES])} for address, of in spans.items()}
        result = await self._write_hearing(lambda plan: plan.wary, rows, ttl_ms)
        over = [address.ip for address, of in spans.items() if len(of) > _WARY_RANGES]
        if result.ok and over:
            return Result(Outcome.REJECTED, f"more than {_WARY_RANGES} port ranges at {', '.join(over)}: at those after them, whoever comes before the guard is heard")
        return result

    async def know(self, addresses: Iterable[bytes], ttl_ms: int, instead_of: Iterable[bytes] = ()) -> Result:
        """Have these addresses, for so long, not taken for strangers'; instead_of: others, which make room for them."""
        rows: dict[Endpoint, dict[str, bytes] | None] = {Endpoint(addr, 0): None for addr in instead_of}
        return await self._write_hearing(lambda plan: plan.known, rows | {Endpoint(addr, 0): {} for addr in addresses}, ttl_ms)

    async def know_nobody(self) -> Result:
        """End know() for every address."""
        return await self._empty(lambda plan: plan.known)

    async def _empty(self, which: Callable[[Plan], Mapping[int, PortTable]]) -> Result:
        try:
            tables = which(self._ready()).values()
        except DataPlaneUnavailable as error:
            return Result(Outcome.UNAVAILABLE, str(error))
        return await self._write_small([table.clear for table in tables])

    async def _write_hearing(self, which: Callable[[Plan], Mapping[int, PortTable]], rows: Mapping[Endpoint, Mapping[str, bytes] | None], ttl_ms: int = 0) -> Result:
        """Write rows of one of the tables that say who is heard; rows: what each holds besides its time, None for one to be taken out."""
        try:
            tables, ttl, updates = which(self._ready()), ttl_ms.to_bytes(4, "big"), []
            for end, further in rows.items():
                if updates and len(updates) % _HEARING_STEP == 0:
                    await asyncio.sleep(0)
                updates.append(_of(tables, end).update(_DELETE, end, {}) if further is None else _of(tables, end).update(_UPSERT, end, {"ttl_ms": ttl, **further}))
            return await self._write_small(updates)
        except DataPlaneUnavailable as error:
            return Result(Outcome.UNAVAILABLE, str(error))
        except SchemaError as error:
            return Result(Outcome.REJECTED, str(error))

    async def _write_small(self, updates: list[bytes]) -> Result:
        """Write a few rows of a table that is none of the relay's. What is there already, or is gone already, is no failure."""
        try:
            errors = await self._client.write(updates, timeout=_SMALL_TIMEOUT)
        except BfrtUnavailable as error:
            return Result(Outcome.UNAVAILABLE, str(error))
        except (BfrtRefused, SchemaError) as error:
            return Result(Outcome.REJECTED, str(error))
        for error in errors:
            if error is not None and error.code not in (bfrt.ALREADY_EXISTS, bfrt.NOT_FOUND):
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


def _of(tables: Mapping[int, PortTable], end: Endpoint) -> PortTable:
    """The table of an address's IP version. Raises SchemaError where the target has none."""
    table = tables.get(len(end.addr))
    if table is None:
        raise SchemaError(f"this data plane cannot keep anybody from the relay (IPv{end.version})")
    return table


def _requests(source: KeyedTable, size: int, keys: Sequence[FiveTuple] | None) -> Iterator[tuple[list[bytes], float]]:
    """The reads, each with its deadline in seconds, that ask a table with addresses of `size` bytes for these keys, or for everything."""
    if keys is None:
        yield [source.request(None)], _READ_ALL_TIMEOUT
        return
    of_size = [key for key in keys if len(key.dst.addr) == size]
    for start in range(0, len(of_size), _READ_KEYS):
        yield [source.request(key) for key in of_size[start : start + _READ_KEYS]], _READ_TIMEOUT


def _finish(operations: Iterable[Operation], result: Result) -> None:
    for operation in operations:
        operation.finish(result)
