"""The offloader: brings the relay table to what the call book wants, and the call book to what packets show.

Everything that happens (a command, a learn notice, a BYE, a data plane that comes back) changes call
state and then calls `sync`; only `sync` asks for table writes, so no path can leave an entry half in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from typing import Any

from shunt import garbage, limits
from shunt.calls import reasons
from shunt.calls.book import CallBook, Slot
from shunt.calls.model import SIDES, Call, Component, Leg, MediaLine, Side, State, Stream
from shunt.calls.plan import Policy, Wanted, plan_line, plan_stream
from shunt.collide import CollisionWatch
from shunt.events.bus import LEARN, NOTE, STATE, TABLE, EventBus
from shunt.events.current import CURRENT_CALL
from shunt.guard import PortGuard
from shunt.learning.latch import Verdict
from shunt.learning.scanners import Scanners
from shunt.net import Endpoint, FiveTuple
from shunt.orphans import Orphans
from shunt.precedence import background, leisure
from shunt.refusal import Refusal
from shunt.tables.entry import LearnNotice, MediaRange, Outcome, RelayEntry, Result, StreamStats
from shunt.tables.operation import Haste
from shunt.tables.relay_table import DataPlaneUnavailable, RelayTable

log = logging.getLogger(__name__)

RETRY_AFTER = {Outcome.TABLE_FULL: 5.0, Outcome.HASH_COLLISION: 30.0, Outcome.REJECTED: 30.0, Outcome.UNAVAILABLE: 1.0}
REBIND_SILENCE_MS = 1000  # a shorter gap is loss, or a pause in speech, and no proof that the party has moved
ORPHAN_IDLE_MS = 30_000
_WRITTEN_AT_ONCE = 4000  # entries
_AT_ONCE = 500  # media lines that reconciling brings in order at the same time
_PAYLOAD_TYPES = 8
_SPRAY_PORTS = 3
_SPRAY_WINDOW = 5.0
_SPRAY_HOLD = 30.0
_SPRAY_SOURCES = 20_000


class SprayGuard:
    """Tells sources that touch many relay ports: nobody's phone sends one stream to several of them.

    Bounded: the oldest source is forgotten when there are too many.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[Endpoint, tuple[float, set[Endpoint]]] = OrderedDict()

    def is_sprayer(self, now: float, src: Endpoint, dst: Endpoint) -> bool:
        """now: monotonic seconds; counts this packet, then says whether src sprays."""
        since, ports = self._seen.get(src, (now, set()))
        held = len(ports) > _SPRAY_PORTS
        if now - since > (_SPRAY_HOLD if held else _SPRAY_WINDOW):
            since, ports = now, set()
        if len(ports) <= _SPRAY_PORTS:
            ports.add(dst)
        self._seen[src] = (since, ports)
        self._seen.move_to_end(src)
        if len(self._seen) > _SPRAY_SOURCES:
            self._seen.popitem(last=False)
        return len(ports) > _SPRAY_PORTS


def add_stats(past: StreamStats, last: StreamStats | None) -> None:
    """Keep what an entry counted before it was taken out."""
    if last is None:
        return
    past.packets += last.packets
    past.bytes += last.bytes
    for name in ("lost", "reordered", "duplicates", "stray"):
        value = getattr(last, name)
        if value is not None:
            setattr(past, name, (getattr(past, name) or 0) + value)
    past.jitter_us = last.jitter_us if last.jitter_us is not None else past.jitter_us
    past.ssrc = last.ssrc if last.ssrc is not None else past.ssrc


class Offloader:
    """Keeps the data plane in step with the call book."""

    def __init__(self, book: CallBook, table: RelayTable | None, policy: Policy, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.book = book
        self.table = table
        self.policy = policy
        self.clock = clock
        self.draining = False
        self.events = EventBus()
        self.leisure = leisure()
        self.leisure.always(garbage.look, garbage.EVERY)
        self.media: list[MediaRange] = []
        self.entries: dict[FiveTuple, Stream] = {}
        self.orphans = Orphans()
        self.foreign: Callable[[FiveTuple], bool] = lambda key: False  # entries that another part of the agent looks after
        self.strays_ignored = 0
        self.line_changed: Callable[[MediaLine], None] = lambda line: None
        self._doomed: set[FiveTuple] = set()
        self._touched: set[FiveTuple] | None = None  # keys written while reconciling reads the table
        self._told: dict[int, MediaLine] = {}  # lines of which packets were noticed, by id
        self._spray = SprayGuard()
        self._scanners: Scanners | None = None
        self._guard: PortGuard | None = None
        self._refusal = Refusal(book.parties, table, self.spawn, clock) if table is not None else None
        if self._refusal is not None:
            book.parties.came = self._refusal.came
        self._tasks: set[asyncio.Task[None]] = set()
        self._reconciling = asyncio.Lock()
        self.reconciled = False
        self.loaded = asyncio.Event()
        self.loaded.set()
        if table is not None:
            table.on_learn = self.noticed
            table.on_idle = self.fell_idle
            table.on_active = self.woke_up
            table.on_up = lambda: self.spawn(self.reconcile())
        self.collisions = CollisionWatch(self)

    def watch_scanners(self, scanners: Scanners) -> None:
        """Tell these of packets to ports that no call has, and have the data plane refuse whom they find."""
        self._scanners = scanners
        scanners.is_shared = self.book.parties.__contains__
        if self._refusal is not None:
            scanners.found = self._refusal.found

    def guard_ports(self, careful: Iterable[MediaRange] = ()) -> None:
        """Have relay ports of calls that are being set up hear nobody but their parties; careful: ports of relays that see to it themselves."""
        if self.table is not None:
            self._guard = PortGuard(self.book.parties, self.table, self.spawn_now, careful, self.leisure)

    async def heard(self, line: MediaLine) -> None:
        """Wait until the relay hears the parties of a line, if only its ports' guards say who they are."""
        if self._guard is not None:
            await self._guard.settled(line.legs.values())

    def restore(self, call: Call) -> None:
        """A call from the journal: its entries are claimed, and reconcile will make sure of them."""
        for line in call.lines:
            for stream in line.streams:
                if stream.installed is not None:
                    self.entries[stream.installed.key] = stream

    # -- tasks ------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background; an exception in it is logged, never lost."""
        return self._begin(work, background())

    def spawn_now(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """spawn() of what commands may wait for: it does not give way to them."""
        return self._begin(work, None)

    def _begin(self, work: Coroutine[Any, Any, None], context: Context | None) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())

    async def close(self) -> None:
        await self.leisure.finish()
        await asyncio.sleep(0)  # what takes no write is done by then
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- bringing the table to what is wanted --------------------------------------------------------

    async def sync(self, line: MediaLine) -> None:
        """Make the data plane hold what `plan_stream` wants for this line. Safe to call at any time, concurrently."""
        if self._settle(line):
            self.line_changed(line)
        else:
            await self._write(line)

    async def _write(self, line: MediaLine) -> None:
        """sync(), where that may take table writes."""
        token = CURRENT_CALL.set(line.call.call_id)
        try:
            async with line.lock:
                wanted = await self._remove_unwanted(line)
                self.collisions.expect([line])
                await self._install_wanted(line, wanted)
        finally:
            CURRENT_CALL.reset(token)
        self.line_changed(line)
        self._schedule_one_way(line)

    def _settle(self, line: MediaLine) -> bool:
        """sync(), where that takes no table write: then all of it is done at once. False: nothing was done."""
        if line.lock.locked():
            return False
        now = self.clock()
        wanted = plan_line(line, now, self.policy)
        for stream, (entry, _, _) in zip(line.streams, wanted):
            if stream.installed != entry or stream.uncertain:
                return False
        for stream, (_, state, reason) in zip(line.streams, wanted):
            if stream.state is not state or stream.reason != reason or stream.detail:
                self._set(line, stream, state, reason, now)
        self.collisions.expect((line,))
        self._schedule_one_way(line)
        return True

    def sync_soon(self, line: MediaLine, *, changed: bool = True) -> None:
        """sync() without waiting for it. changed: whether what the journal keeps of the line may be other than it was."""
        if not self._settle(line):
            self.spawn(self._write(line))
        elif changed:
            self.line_changed(line)

    def _set(self, line: MediaLine, stream: Stream, state: State, reason: str, now: float, detail: str = "", **facts: Any) -> None:
        """Set a stream's state; a change is an event."""
        before = stream.state
        changed = (state, reason) != (before, stream.reason)
        stream.set(state, reason, now, detail)
        if changed:
            self._tell(line, stream, STATE, state.value, reason=reason, before=before.value, detail=detail, **facts)

    def _tell(self, line: MediaLine, stream: Stream, kind: str, what: str, *, at: float | None = None, **facts: Any) -> None:
        self.events.emit(kind, line.call.call_id, what, at=at, media=line.media, party=stream.sender.value, component=stream.component.value, **facts)

    async def _remove_unwanted(self, line: MediaLine) -> list[Wanted] | None:
        """Returns what the streams should have, in their order; None where that may have changed while entries were taken out."""
        now = self.clock()
        plan = plan_line(line, now, self.policy)
        out: list[Stream] = []
        for stream, wanted in zip(line.streams, plan):
            if stream.installed is not None and (wanted.entry is None or wanted.entry.key != stream.installed.key):
                out.append(stream)
            elif stream.installed is None and wanted.entry is None:
                self._set(line, stream, wanted.state, wanted.reason, now)
        if not out:
            return plan
        await self._remove(line, out)
        return None

    async def _remove(self, line: MediaLine, streams: list[Stream]) -> None:
        assert self.table is not None
        out = [(stream, stream.installed) for stream in streams if stream.installed is not None]
        began = time.monotonic()
        # The entries of a call that is over match packets of its own phones only.
        results = await self.table.delete_many([entry.key for _, entry in out], Haste.URGENT if line.released is None else Haste.PATIENT)
        for (stream, entry), (result, last) in zip(out, results):
            self._removed(line, stream, entry, result, last, began)

    def _removed(self, line: MediaLine, stream: Stream, entry: RelayEntry, result: Result, last: StreamStats | None, began: float) -> None:
        self._tell(line, stream, TABLE, "delete", at=began, key=entry.key, outcome=result.outcome, detail=result.detail, seconds=time.monotonic() - began, last=last)
        add_stats(stream.past, last)
        stream.measured.add(last if last is not None else stream.live)
        stream.live = None
        if not result.ok:
            # The data plane does not answer: the key is remembered and deleted first thing when it is back.
            self._doomed.add(entry.key)
        self._touch([entry.key])
        self.entries.pop(entry.key, None)
        stream.installed = None
        stream.uncertain = False
        now = self.clock()
        wanted = plan_stream(line, stream, now, self.policy)
        self._set(line, stream, wanted.state if wanted.entry is None else State.LEARNING, wanted.reason, now)

    async def take_out(self, line: MediaLine, stream: Stream, seconds: float, state: State, reason: str, detail: str) -> None:
        """Take a stream's entry out for at least so many seconds, for a reason that is not its own. The caller holds the line's lock."""
        await self._remove(line, [stream])
        now = self.clock()
        stream.retry_at = now + seconds
        self._set(line, stream, state, reason, now, detail)
        self.line_changed(line)
        asyncio.get_running_loop().call_later(seconds + 0.01, self._retry, line)

    async def _install_wanted(self, line: MediaLine, plan: list[Wanted] | None) -> None:
        """plan: what the streams should have, if that is known."""
        # Signalling may change the line while writes are under way: plan again until nothing is left to do.
        for _ in range(4):
            now = self.clock()
            todo: list[tuple[Stream, RelayEntry, str]] = []
            for stream, wanted in zip(line.streams, plan or plan_line(line, now, self.policy)):
                if wanted.entry is None:
                    continue
                if stream.installed is not None and stream.installed.key != wanted.entry.key:
                    continue  # its source has changed meanwhile: the old entry has to be removed first, below
                if stream.installed == wanted.entry and not stream.uncertain:
                    self._set(line, stream, State.OFFLOADED, wanted.reason, now)
                elif self.draining and stream.installed is None:
                    self._set(line, stream, State.LEARNING, reasons.DRAINING, now)
                elif now >= stream.retry_at:
                    todo.append((stream, wanted.entry, wanted.reason))
            if todo:
                await self._install(line, todo)
            stale = [
                s for s in line.streams
                if s.installed is not None and s.installed != plan_stream(line, s, self.clock(), self.policy).entry
            ]
            if not stale:
                return
            plan = await self._remove_unwanted(line)

    async def _install(self, line: MediaLine, todo: list[tuple[Stream, RelayEntry, str]]) -> None:
        """Write entries of streams, each with its reason, all at once."""
        assert self.table is not None
        new: list[tuple[Stream, RelayEntry, str]] = []
        changed: list[tuple[Stream, RelayEntry, str]] = []
        for stream, entry, reason in todo:
            holder = self.entries.get(entry.key)
            if holder is not None and holder is not stream:
                self._set(line, stream, State.LEARNING, reasons.CONTESTED, self.clock(), f"{entry.key} already belongs to another stream")
                stream.retry_at = self.clock() + 5.0
                continue
            self._doomed.discard(entry.key)
            self.orphans.pop(entry.key, None)
            self._touch([entry.key])
            (new if stream.installed is None else changed).append((stream, entry, reason))
        began = time.monotonic()
        results = await self.table.place([entry for _, entry, _ in new], [entry for _, entry, _ in changed])
        for number, ((stream, entry, reason), result) in enumerate(zip(new + changed, results)):
            self._placed(line, stream, entry, reason, "insert" if number < len(new) else "modify", result, began)

    def _placed(self, line: MediaLine, stream: Stream, entry: RelayEntry, reason: str, what: str, result: Result, began: float) -> None:
        self._touch([entry.key])  # a reading that began meanwhile may be older than the entry
        now = self.clock()
        self._tell(line, stream, TABLE, what, at=began, key=entry.key, rewrite=(entry.src, entry.dst), outcome=result.outcome, detail=result.detail, seconds=time.monotonic() - began)
        if result.outcome is Outcome.INSTALLED:
            stream.installed = entry
            stream.uncertain = False
            stream.idle_since = None
            stream.was_offloaded = True
            self.entries[entry.key] = stream
            heard = [leg.first_heard for leg in line.legs.values() if leg.first_heard is not None]
            after: dict[str, float] = {}
            if stream.component is Component.RTP and stream.offloaded_after_ms is None and len(heard) == 2:
                stream.offloaded_after_ms = after["after_ms"] = (now - max(heard)) * 1000
            self._set(line, stream, State.OFFLOADED, reason, now, **after)
            return
        if result.outcome is Outcome.UNAVAILABLE:
            # It may be in after all, old or new: it is taken out, or written again, once the data plane answers.
            if stream.installed is not None:
                stream.uncertain = True
            else:
                self._doomed.add(entry.key)
        elif result.outcome is Outcome.TABLE_FULL:
            limits.count("table_full")
        stream.retry_at = now + RETRY_AFTER.get(result.outcome, 5.0)
        self._set(line, stream, State.LEARNING, result.outcome.value, now, result.detail)
        asyncio.get_running_loop().call_at(asyncio.get_running_loop().time() + RETRY_AFTER.get(result.outcome, 5.0) + 0.01, self._retry, line)

    def _retry(self, line: MediaLine) -> None:
        if line.released is None:
            self.sync_soon(line, changed=False)

    def _schedule_one_way(self, line: MediaLine) -> None:
        if line.released is not None:
            return
        now = self.clock()
        for side in SIDES:
            leg, other = line.legs[side], line.legs[side.other]
            if leg.latched_at is not None and other.rtp.learned is None:
                due = leg.latched_at + self.policy.one_way_after
                if due > now:
                    asyncio.get_running_loop().call_later(due - now + 0.005, self._one_way_due, line, leg, other)

    def _one_way_due(self, line: MediaLine, leg: Leg, other: Leg) -> None:
        if leg.latched_at is not None and other.rtp.learned is None:
            self._retry(line)

    # -- signalling ----------------------------------------------------------------------------------

    async def suspend(self, line: MediaLine, reason: str, side: Side | None = None, *, quarantine: bool = False) -> None:
        """Take a line's entries out before signalling goes on; returns when the data plane has confirmed it.

        side: the party whose address changes and has to be learned anew; quarantine: do not believe its old source for a while.
        """
        line.suspended = reason
        self._note(line, "suspended", side, reason=reason)
        if reason == reasons.BYE_SEEN:
            for leg in line.legs.values():
                self.book.parties.left(leg)  # its port may be another call's before the relay's delete comes by here
        if side is not None:
            leg = line.legs[side]
            now = self.clock()
            leg.rtp.forget(now, quarantine=quarantine)
            leg.rtcp.forget(now, quarantine=quarantine)
            leg.latched_at = None
            leg.last_heard.clear()
            leg.payload_types.clear()
        await self.sync(line)

    def resume(self, line: MediaLine) -> None:
        """Signalling is through: learn and offload again."""
        suspended, line.suspended, line.resume_at = line.suspended, None, None
        if suspended is not None:
            self._note(line, "resumed", reason=suspended)
        if suspended == reasons.BYE_SEEN:
            for leg in line.legs.values():
                self.book.parties.changed(leg)
        self.sync_soon(line, changed=suspended is not None)

    def give_back(self, lines: list[MediaLine], reason: str) -> None:
        """The first step of release(): their ports mean nothing any more; the journal has lines with entries until these are out."""
        for line in lines:
            if line.released is None:
                self.book.release(line, reason)
        for line in lines:
            if not any(other.offloaded for other in line.call.lines):
                self.line_changed(line)

    async def release(self, lines: Iterable[MediaLine], reason: str) -> None:
        """The lines are over: entries out, then forgotten but for a tombstone."""
        lines = list(lines)
        self.give_back(lines, reason)
        if busy := self._let_go(lines, reason):
            await self._take_off(lines, busy, reason)

    def _let_go(self, lines: list[MediaLine], reason: str) -> list[MediaLine]:
        """release(), as far as it takes no table write; the result are the lines that have entries, without which it is done."""
        for line in lines:
            self._note(line, "released", reason=reason)
        busy = []
        for line in lines:
            if self._settle(line):
                self.line_changed(line)
            else:
                busy.append(line)
        if not busy:
            self._end_calls(lines, reason)
        return busy

    async def _take_off(self, lines: list[MediaLine], busy: list[MediaLine], reason: str) -> None:
        if len(busy) == 1:  # as most calls have: a task of its own would cost as much again
            await self._write(busy[0])
        else:
            await asyncio.gather(*(self._write(line) for line in busy))
        self._end_calls(lines, reason)

    def _end_calls(self, lines: list[MediaLine], reason: str) -> None:
        for call in {id(line.call): line.call for line in lines}.values():
            # Only when the last counters of all entries have been read; two media lines may be released at once.
            if not call.closed and all(line.released and not line.offloaded for line in call.lines):
                call.closed = True
                self.events.emit(NOTE, call.call_id, "ended", reason=reason, call=call)

    def release_when_free(self, lines: list[MediaLine], reason: str, then: Callable[[], object]) -> None:
        """release() after give_back(), once no command is being answered; then is called when that is done."""
        under_way: list[asyncio.Task[None]] = []

        def release() -> None:
            if busy := self._let_go(lines, reason):
                under_way.append(self.spawn(self._take_off(lines, busy, reason)))

        def done() -> None:
            for task in under_way:
                task.add_done_callback(lambda _: then())
            if not under_way:
                then()

        self.leisure.later(release, done)

    def _note(self, line: MediaLine, what: str, side: Side | None = None, **facts: Any) -> None:
        self.events.emit(NOTE, line.call.call_id, what, media=line.media, party=side.value if side is not None else None, **facts)

    # -- idle entries ----------------------------------------------------------------------------------

    def fell_idle(self, key: FiveTuple) -> None:
        """The data plane reports that an entry has met no packet for its time-out."""
        stream = self.entries.get(key)
        if stream is not None and stream.installed is not None:
            stream.idle_since = self.clock() - stream.installed.ttl_ms / 1000
            slot = self.book.slot(key.dst)
            if slot is not None:
                self._tell(slot.line, stream, NOTE, "idle", seconds=stream.installed.ttl_ms / 1000)

    def woke_up(self, key: FiveTuple) -> None:
        """An entry that had fallen idle meets packets again."""
        stream = self.entries.get(key)
        if stream is not None:
            stream.idle_since = None

    # -- learning -----------------------------------------------------------------------------------

    def noticed(self, notice: LearnNotice) -> None:
        """A learn notice from the data plane. Called for every one: no awaiting, no writes here."""
        slot = self.book.slot(notice.key.dst)
        if slot is None or slot.line.released is not None:
            if self._scanners is not None and self.loaded.is_set():  # before, a call may be in the journal
                self._scanners.note(notice.key)
            return
        now = self.clock()
        line, leg, src = slot.line, slot.line.legs[slot.side], notice.key.src
        latch = leg.latch(slot.component)
        vouched = src.addr in latch.trusted or (slot.component is Component.RTCP and leg.rtp.learned is not None and src.addr == leg.rtp.learned.addr)
        if self._spray.is_sprayer(now, src, notice.key.dst) and not vouched:
            leg.strays += 1
            self.strays_ignored += 1
            self._noted(slot, notice, "sprayer")
            return
        if leg.asymmetric and not vouched:
            leg.strays += 1
            self._noted(slot, notice, "asymmetric")
            return
        if slot.component is Component.RTCP and vouched:
            latch.trusted.add(src.addr)
        # RTCP has no sequence number, and its SSRC stands where RTP has the timestamp: only the source counts there.
        ssrc, seq = (notice.ssrc, notice.seq) if slot.component is Component.RTP else (0, 0)
        before = latch.learned
        verdict = latch.observe(now, src, ssrc, seq, is_rtp=notice.rtp_version == 2)
        self._noted(slot, notice, verdict.value)
        if verdict is Verdict.STRAY:
            leg.strays += 1
            if self._guard is not None and notice.rtp_version != 2:
                self._guard.knocked(now, leg, src)
            return
        if verdict is Verdict.QUARANTINED:
            return
        if verdict is Verdict.REBIND:
            self.spawn(self._rebind(line, leg, slot.component, src, notice))
            return
        if verdict is Verdict.OVERRIDE:
            latch.take(src, ssrc, seq)
        leg.last_heard[slot.component] = now
        line.last_activity = now
        if slot.component is Component.RTP and notice.rtp_version == 2 and (notice.payload_type in leg.payload_types or len(leg.payload_types) < _PAYLOAD_TYPES):
            leg.payload_types[notice.payload_type] = leg.payload_types.get(notice.payload_type, 0) + 1
        if slot.component is Component.RTP and leg.first_heard is None:
            leg.first_heard = now
        if verdict in (Verdict.ACCEPTED, Verdict.OVERRIDE):
            self.book.parties.add(leg, (src.addr,))
            if slot.component is Component.RTP:
                leg.latched_at = now
        if latch.learned != before or verdict is Verdict.CONTESTED or any(
            s.sender is slot.side and s.component is slot.component and s.installed is None for s in line.streams
        ):
            if id(line) not in self._told:
                self._told[id(line)] = line
                self.leisure.later(self._sync_told)

    def _sync_told(self) -> None:
        """sync_soon() of a line, once for all that was noticed of it together: mostly it is the second party's packet that says what to do."""
        line = self._told.pop(next(iter(self._told)))
        if line.suspended is None:
            self.sync_soon(line)

    def _noted(self, slot: Slot, notice: LearnNotice, verdict: str) -> None:
        self.events.emit(
            LEARN, slot.line.call.call_id, verdict, media=slot.line.media, party=slot.side.value, component=slot.component.value,
            source=notice.key.src, port=notice.key.dst, ssrc=notice.ssrc, seq=notice.seq, payload_type=notice.payload_type, version=notice.rtp_version,
        )

    async def _rebind(self, line: MediaLine, leg: Leg, component: Component, src: Endpoint, notice: LearnNotice) -> None:
        """Follow a NAT rebinding, but only when the old source has fallen silent: an injector's victim has not."""
        stream = line.stream(leg.side, component)
        if stream.installed is not None and self.table is not None:
            try:
                stats = await self.table.stats([stream.installed.key])
            except DataPlaneUnavailable:
                return  # the next packet from there asks again
            stat = stats.get(stream.installed.key)
            # A switch tells no idle times, only that an entry has fallen idle.
            silent = stat is not None and (stream.idle_since is not None if stat.idle_ms is None else stat.idle_ms >= REBIND_SILENCE_MS)
            if not silent:
                leg.strays += 1
                return
        elif self.clock() - leg.last_heard.get(component, 0.0) < REBIND_SILENCE_MS / 1000:
            leg.strays += 1
            return
        if line.released is not None or line.suspended is not None:
            return
        log.info("%s media %s: the %s's %s moved from %s to %s", line.call.call_id, line.media, leg.side.value, component.value, leg.latch(component).learned, src, extra={"call_id": line.call.call_id})
        self._note(line, "moved", leg.side, component_moved=component.value, before=leg.latch(component).learned, source=src)
        leg.latch(component).take(src, notice.ssrc if component is Component.RTP else 0, notice.seq)
        self.book.parties.add(leg, (src.addr,))
        leg.last_heard[component] = self.clock()
        if component is Component.RTP:
            leg.rtcp.trusted.add(src.addr)
        await self.sync(line)

    # -- reconciling --------------------------------------------------------------------------------

    async def reconcile(self) -> None:
        """The data plane is (back) there: make sure of every entry, in both directions, never cutting a live stream."""
        assert self.table is not None
        async with self._reconciling:
            self.reconciled = False
            declared = await self.table.declare_media(self.media)
            while not declared.ok:
                log.error("the data plane does not take the media addresses, so nothing can be learned: %s", declared.detail or declared.outcome.value)
                await asyncio.sleep(RETRY_AFTER[declared.outcome])
                if not self.table.connected:
                    return
                declared = await self.table.declare_media(self.media)
            if self._refusal is not None:
                self._refusal.start_over()
            touched = self._touched = set()  # written while this goes on: what was read of them may be old
            try:
                await self._compare(touched)
                if self._guard is not None:  # after the journal is read
                    await self._guard.start_over(self.media, [leg for line in self.book.lines() for leg in line.legs.values()])
            except DataPlaneUnavailable as error:
                log.warning("the table was not compared: %s", error)  # it is again when the data plane is back
                return
            finally:
                self._touched = None
            await self.sweep_doomed()
            await self._sync_all()
            self.reconciled = True

    async def _compare(self, touched: set[FiveTuple]) -> None:
        """Read the table; what it has lost is written again, what it has besides is adopted or an orphan."""
        assert self.table is not None
        present = await self.table.entries()
        await self.loaded.wait()  # the journal is read beside the table
        lost = {}
        for number, (key, stream) in enumerate(list(self.entries.items())):
            if number % _WRITTEN_AT_ONCE == _WRITTEN_AT_ONCE - 1:
                await asyncio.sleep(0)
            if key not in touched and not _same_rewrite(present.get(key), stream.installed):
                lost[key] = stream
                if key not in present:
                    # What it had counted when it was last read is all that will be known of it.
                    add_stats(stream.past, stream.live)
                    stream.measured.add(stream.live)
                    stream.live = None
        await self._write_again(lost, present)
        now = self.clock()
        for key, entry in present.items():
            if key in touched or key in self.entries or self.foreign(key):
                continue
            if key in self._doomed:
                if self._is_wanted(key, entry, now) and self._adopt(key, entry, now):
                    self._doomed.discard(key)  # a write without an answer had got in: taking it out would cost packets
            elif not self._adopt(key, entry, now):
                self.orphans.setdefault(key, now)

    async def _write_again(self, lost: dict[FiveTuple, Stream], present: dict[FiveTuple, RelayEntry]) -> None:
        """Put in again what the data plane has lost, or has something else in place of: many at a time. What fails is left to sync()."""
        keys = list(lost)
        for start in range(0, len(keys), _WRITTEN_AT_ONCE):
            now = self.clock()
            again: list[tuple[MediaLine, Stream, RelayEntry]] = []
            for key in keys[start : start + _WRITTEN_AT_ONCE]:
                stream, slot = lost[key], self.book.slot(key.dst)
                entry = stream.installed
                if entry is None or entry.key != key or self.entries.get(key) is not stream:
                    continue  # it has changed since
                if slot is None or slot.line.lock.locked() or plan_stream(slot.line, stream, now, self.policy).entry != entry:
                    self._give_up(key, stream, key in present)
                else:
                    again.append((slot.line, stream, entry))
            # Whatever signalling asks for from here on comes after these writes: operations on one key keep their order.
            began = time.monotonic()
            for (line, stream, entry), result in zip(again, await self.table.insert_many([entry for _, _, entry in again])):
                if not result.ok and stream.installed is entry:
                    self._give_up(entry.key, stream, entry.key in present or result.outcome is Outcome.UNAVAILABLE)
                self._tell(
                    line, stream, TABLE, "insert", at=began, key=entry.key, rewrite=(entry.src, entry.dst), outcome=result.outcome, detail=result.detail,
                    seconds=time.monotonic() - began,
                )

    def _give_up(self, key: FiveTuple, stream: Stream, may_be_in: bool) -> None:
        """A stream has no entry that could be counted on."""
        self.entries.pop(key, None)
        if may_be_in:
            self._doomed.add(key)
        stream.installed = None
        stream.uncertain = False

    async def _sync_all(self) -> None:
        todo: list[MediaLine] = []
        for number, line in enumerate(self.book.lines()):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            now = self.clock()
            wanted = plan_line(line, now, self.policy)
            for stream in line.streams:
                stream.retry_at = 0.0
            if any(one.entry != stream.installed or stream.uncertain or (one.entry is not None and stream.state is not one.state) for one, stream in zip(wanted, line.streams)):
                todo.append(line)
            if len(todo) >= _AT_ONCE:
                await asyncio.gather(*(self.sync(line) for line in todo))
                todo.clear()
        await asyncio.gather(*(self.sync(line) for line in todo))

    def _is_wanted(self, key: FiveTuple, entry: RelayEntry, now: float) -> bool:
        """Whether a stream wants an entry just as it is."""
        slot = self.book.slot(key.dst)
        if slot is None or slot.line.lock.locked():
            return False
        return _same_rewrite(entry, plan_stream(slot.line, slot.line.stream(slot.side, slot.component), now, self.policy).entry)

    def _adopt(self, key: FiveTuple, entry: RelayEntry, now: float) -> bool:
        """An entry that an agent before us wrote and did not live to note: it says whom that agent believed."""
        slot = self.book.slot(key.dst)
        if slot is None or slot.line.released is not None:
            return False
        line, leg = slot.line, slot.line.legs[slot.side]
        stream = line.stream(slot.side, slot.component)
        if stream.installed is not None or self.table is None or not self.table.claim(entry):
            return False
        latch = leg.latch(slot.component)
        if latch.learned is None and not latch.contested:
            latch.take(key.src, 0, 0)
            self.book.parties.add(leg, (key.src.addr,))
            leg.last_heard[slot.component] = now
            if slot.component is Component.RTP:
                leg.latched_at = leg.first_heard = now
        # Whether it is still wanted is for the plan to say.
        stream.installed = entry
        stream.was_offloaded = True
        self.entries[key] = stream
        return True

    async def sweep_doomed(self) -> None:
        """Delete the entries of which it is not known whether they are in and that nobody wants."""
        if not self._doomed or self.table is None or not self.table.connected:
            return
        self._doomed.difference_update([key for key in self._doomed if key in self.entries])
        keys = list(self._doomed)
        for key, (result, _) in zip(keys, await self._delete_many(keys)):
            if result.ok:
                self._doomed.discard(key)

    async def _delete_many(self, keys: list[FiveTuple]) -> list[tuple[Result, StreamStats | None]]:
        """Delete keys that no stream has. What is read of them before or while this goes on is old, whichever of the two began first."""
        assert self.table is not None
        self._touch(keys)
        results = await self.table.delete_many(keys)
        self._touch(keys)
        return results

    def _touch(self, keys: Iterable[FiveTuple]) -> None:
        if self._touched is not None:
            self._touched.update(keys)

    async def sweep_orphans(self) -> None:
        """Delete entries that no call of ours claims once nothing uses them (they are of an agent before us)."""
        if not self.orphans or self.table is None or not self.table.connected:
            return
        for key in set(self.orphans) & set(self.entries):
            self.orphans.pop(key, None)
        stats = await self.table.stats(list(self.orphans))
        idle = [
            key for key in self.orphans
            if key not in self.entries and ((stat := stats.get(key)) is None or (stat.idle_ms is not None and stat.idle_ms > ORPHAN_IDLE_MS))
        ]
        for key, (result, _) in zip(idle, await self._delete_many(idle)):
            if result.ok:
                self.orphans.pop(key, None)

    async def read_live(self, lines: Iterable[MediaLine] | None = None) -> None:
        """Read the data plane's statistics of the given lines' entries (all when None) into their streams."""
        if self.table is None or not self.table.connected:
            return
        if lines is None:
            stats = await self.table.stats(None)
        else:
            keys = [s.installed.key for line in lines for s in line.streams if s.installed is not None]
            stats = await self.table.stats(keys) if keys else {}
        for key, stat in stats.items():
            stream = self.entries.get(key)
            if stream is not None:
                stream.live = stat


def _same_rewrite(a: RelayEntry | None, b: RelayEntry | None) -> bool:
    return a is not None and b is not None and (a.src, a.dst) == (b.src, b.dst)
