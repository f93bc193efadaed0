"""Everything that watches the agent's events: history, metrics, call records, Homer, the log. Put together in one place."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from shunt.calls.model import SIDES, Call, Component, Side, State
from shunt.calls.reasons import NO_DATA_PLANE
from shunt.cdr.record import record
from shunt.cdr.writer import RecordWriter
from shunt.config.model import Config
from shunt.control.relays import RelayPool
from shunt.control.upstream import RelayError
from shunt.dialogs import DialogWatch
from shunt.events import diagnosis
from shunt.events.bus import NOTE, Event
from shunt.events.history import History
from shunt.events.log import log_event
from shunt.events.view import event_view
from shunt.export.homer import HomerExport
from shunt.metrics.instruments import Instruments
from shunt.offload import Offloader
from shunt.precedence import background
from shunt.quality.report import call_quality
from shunt.rtpproxy import codec
from shunt.rtpproxy.codec import CodecError
from shunt.tables.relay_table import DataPlaneUnavailable, RelayTable
from shunt.tasks import keep_running

_SLICE = 25  # calls looked at before other work gets its turn
_CENSUS_SHARE = 20  # rest at least so many times as long as a census took
_RELAY_PATIENCE_S = 1.0


class Observers:
    """The subscribers of one agent's event bus, and the answers that are made from what they keep."""

    def __init__(self, config: Config, offloader: Offloader, dialogs: DialogWatch, pool: RelayPool) -> None:
        self.config = config
        self.offloader, self.dialogs, self.pool = offloader, dialogs, pool
        self.instruments = Instruments()
        self.history = History(events=config.history.events, per_call=config.history.per_call)
        self.records = RecordWriter(config.cdr.csv, config.cdr.json_lines) if config.cdr is not None else None
        self.homer = HomerExport(config.homer.target, config.homer.capture_id, config.homer.events) if config.homer is not None else None
        self.census: dict[str, dict[str, int]] = {"streams": {}, "reasons": {}}
        self._census_task: asyncio.Task[None] | None = None
        self._alive = {relay.name: relay.alive for relay in pool.relays}
        self._bus = bus = offloader.events
        if offloader.table is not None:
            self._watch_table(offloader.table)
        bus.subscribe(self.instruments)
        if config.history.events:
            bus.subscribe(self.history)
        if config.history.log:
            bus.subscribe(log_event)
        if self.homer is not None:
            bus.subscribe(self.homer)
        bus.subscribe(self._on_end, (NOTE,))

    async def start(self) -> None:
        """Begin writing and sending. Raises OSError."""
        if self.records is not None:
            self.records.start()
        if self.homer is not None:
            await self.homer.start()
        self._census_task = asyncio.get_running_loop().create_task(keep_running("census", self._take_census), context=background())

    async def close(self) -> None:
        """Write and send what waits."""
        if self._census_task is not None:
            self._census_task.cancel()
            await asyncio.gather(self._census_task, return_exceptions=True)
        if self.records is not None:
            await self.records.close()
        if self.homer is not None:
            await self.homer.close()

    def _watch_table(self, table: RelayTable) -> None:
        went_up, went_down = table.on_up, table.on_down

        def up() -> None:
            self._bus.emit(NOTE, "", "data-plane-up")
            went_up()

        def down(reason: str) -> None:
            self._bus.emit(NOTE, "", "data-plane-down", detail=reason)
            went_down(reason)

        table.on_up, table.on_down = up, down

    def _watch_relays(self) -> None:
        for relay in self.pool.relays:
            if relay.alive != self._alive.get(relay.name):
                self._alive[relay.name] = relay.alive
                self._bus.emit(NOTE, "", "relay-up" if relay.alive else "relay-down", detail=relay.name)

    # -- the end of a call --------------------------------------------------------------------------

    def _on_end(self, event: Event) -> None:
        if event.kind != NOTE or event.what != "ended":
            return
        call: Call = event.facts["call"]
        if self.records is None and self.homer is None:
            self.instruments.quality([media[side.value] for media in self.quality(call) for side in SIDES if media["kind"] in (None, "audio")])
            return
        entry = record(call, event.facts["reason"], self.offloader.clock(), event.wall, self.dialogs.sdp_media, self.config.quality.delay_ms)
        self.instruments.quality([media[side.value] for media in entry["media"] for side in SIDES if media["kind"] in (None, "audio")])
        if self.records is not None:
            self.records.put(entry)
        if self.homer is not None:
            self.homer.call_ended(entry, event.wall)

    def quality(self, call: Call) -> list[dict[str, Any]]:
        """The quality of each media line of a call, with the counters at hand."""
        return call_quality(call, self.dialogs.sdp_media, self.config.quality.delay_ms)

    # -- one call's story ---------------------------------------------------------------------------

    async def story(self, call_id: str) -> dict[str, Any] | None:
        """Everything about one call: its events, and what they mean in words. None where nothing is known of it."""
        book = self.offloader.book
        found = self.history.of(call_id)
        calls = [call for name in self._names(call_id, found) if (call := book.call(name)) is not None]
        if found is None and not calls:
            return None
        events, left_out = found or ([], 0)
        fresh = True
        try:
            await self.offloader.read_live([line for call in calls for line in call.lines if line.offloaded])
        except DataPlaneUnavailable:
            fresh = False
        findings = []
        for call in calls:
            evidence = diagnosis.Evidence(diagnosis.directions_of(events), await self._relay_packets(call), await self._traces(call))
            findings += diagnosis.diagnose(call, events, self.offloader.clock(), evidence)
        if not calls:
            findings = diagnosis.diagnose(None, events, self.offloader.clock())
        events = self._with_surroundings(events)
        begin = events[0].at if events else time.monotonic()
        return {
            "call_id": call_id,
            "begin": event_view(events[0], begin)["time"] if events else None,
            "diagnosis": [finding.view() for finding in findings],
            "counters_fresh": fresh,
            "left_out": left_out,
            "quality": [{"call_id": call.call_id, "media": self.quality(call)} for call in calls],
            "events": [event_view(event, begin) for event in events],
        }

    def _with_surroundings(self, events: list[Event]) -> list[Event]:
        """A call's events with those of the agent as a whole that fell into its time."""
        common, _ = self.history.of("") or ([], 0)
        if not events or not common:
            return events
        over = events[-1].at if any(event.what == "ended" and event.kind == NOTE for event in events) else float("inf")
        return sorted([*events, *(event for event in common if events[0].at <= event.at <= over)], key=lambda event: event.at)

    def _names(self, call_id: str, found: tuple[list[Event], int] | None) -> list[str]:
        """The call-ids on the control channel that belong to this one."""
        names = {call_id: None}
        for event in (found or ([], 0))[0]:
            names.setdefault(event.call_id)
        return list(names)

    async def _relay_packets(self, call: Call) -> dict[tuple[int | None, str], int]:
        """What the relay counted from each party; empty where it cannot be asked."""
        relay = self.pool.by_name.get(call.relay)
        counts: dict[tuple[int | None, str], int] = {}
        if relay is None or not relay.alive or not relay.may_query:
            return counts
        for line in call.lines:
            if line.released is not None:
                continue
            try:
                command = codec.build_query(call.call_id, line.tag, line.other_tag, media=line.media)
                async with asyncio.timeout(_RELAY_PATIENCE_S):
                    reply = await relay.request(command)
                values = dict(codec.parse_query_reply(codec.parse_command(command), reply))
            except (CodecError, RelayError, TimeoutError):
                continue
            for side, name in ((Side.CALLER, "npkts_ina"), (Side.CALLEE, "npkts_ino")):
                counts[line.media, side.value] = int(values.get(name, 0))
        return counts

    async def _traces(self, call: Call) -> dict[str, dict[str, str]]:
        """The data plane's own word on each RTP entry of a call."""
        table, found = self.offloader.table, {}
        for line in call.lines:
            for stream in line.streams:
                if table is None or stream.installed is None or stream.component is not Component.RTP:
                    continue
                try:
                    answer = await table.trace(stream.installed.key)
                except DataPlaneUnavailable:
                    return found
                if answer["verdict"] != "unknown":
                    found[str(stream.installed.key)] = answer
        return found

    # -- counting streams ---------------------------------------------------------------------------

    async def _take_census(self) -> None:
        """Count streams by state and by reason for metrics, in slices: a hundred thousand calls must not hold up a command."""
        while True:
            self._watch_relays()
            began = time.monotonic()
            worked = 0.0
            streams: Counter[str] = Counter(offloaded=0, learning=0, relayed=0)
            why: Counter[str] = Counter()
            calls = self.offloader.book.calls()
            for first in range(0, len(calls), _SLICE):
                at = time.monotonic()
                count_streams(calls[first : first + _SLICE], streams, why)
                worked += time.monotonic() - at
                await asyncio.sleep(0)
            self.census = {"streams": dict(streams), "reasons": {name: why[name] for name in why.keys() | self.census["reasons"].keys()}}
            await asyncio.sleep(max(1.0 - (time.monotonic() - began), worked * _CENSUS_SHARE))

    # -- metrics ------------------------------------------------------------------------------------

    def counters(self) -> dict[str, Any]:
        """What this part of the agent has to say in the status."""
        return {
            "history": {"events": self.history.held, "capacity": self.history.capacity, "calls": len(self.history), "forgotten": self.history.calls_forgotten},
            "cdr": None if self.records is None else {"written": self.records.written, "failures": self.records.failures, "dropped": self.records.dropped},
            "homer": None if self.homer is None else {"sent": self.homer.sent, "dropped": self.homer.dropped},
            "streams_by_reason": dict(self.census["reasons"]),
        }


def count_streams(calls: list[Call], streams: Counter[str], why: Counter[str]) -> None:
    """Count the RTP streams of running lines: in `streams` by who carries them, in `why` by reason."""
    for call in calls:
        for line in call.lines:
            if line.released:
                continue
            for stream in line.streams:
                if stream.component is not Component.RTP:
                    continue
                why[stream.reason] += 1
                if stream.state is State.OFFLOADED:
                    streams["offloaded"] += 1
                elif stream.state in (State.LEARNING, State.ALLOCATED) and stream.reason != NO_DATA_PLANE:
                    streams["learning"] += 1
                else:
                    streams["relayed"] += 1
