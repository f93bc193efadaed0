"""What the REST API asks of the operator daemon (api.view.AgentView): answers from the agent's snapshots and from its events."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry

from shunt import __version__
from shunt.admin import model as admin
from shunt.api.view import AgentUnavailable, DataPlaneUnavailable, NotDone
from shunt.calls.facts import Call
from shunt.calls.kinds import Component, Stop
from shunt.calls.text import report
from shunt.calls.view import call_view
from shunt.config.model import Config
from shunt.events import diagnosis
from shunt.events.bus import Event
from shunt.events.history import History
from shunt.export.homer import HomerExport
from shunt.metrics.instruments import Instruments
from shunt.operator import call_history
from shunt.operator.asking import Agent
from shunt.operator.calls import call_of_view, went_past
from shunt.operator.conferences.service import Conferences
from shunt.operator.dialogs import Dialogs, Found
from shunt.operator.endings import media_of
from shunt.operator.follow import Follower
from shunt.operator.health import Health
from shunt.operator.position import Position
from shunt.operator.records import Records
from shunt.operator.rooms.parts import RoomService
from shunt.operator.status import drain_view, status_view
from shunt.quality.now import call_now
from shunt.quality.report import call_quality

_PAGE = 1000  # the most that the admin API gives at once
_BETWEEN_COUNTS_S = 0.3  # several packets of any codec
_FRESH = 100  # of a page of so many calls counters are read from the data plane


class RemoteDrain:
    """Draining of the agent (api.drain.Draining)."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def view(self) -> dict[str, Any]:
        """What is left."""
        with self._agent.answering():
            return drain_view(await self._agent.client.drain_status())

    async def begin(self, stop: Stop) -> None:
        """Start draining, or change what is stopped."""
        with self._agent.answering():
            await self._agent.client.drain(stop.value)

    async def end(self) -> None:
        """Serve as before."""
        with self._agent.answering():
            await self._agent.client.end_drain()


class OperatorView:
    """The answers. It keeps nothing itself."""

    def __init__(
        self,
        *,
        config: Config,
        agent: Agent,
        follower: Follower,
        position: Position,
        history: History,
        dialogs: Dialogs,
        instruments: Instruments,
        records: Records | None,
        homer: HomerExport | None,
        health: Health,
        conferences: Conferences | None = None,
        rooms: RoomService | None = None,
    ) -> None:
        self.conferences = conferences
        self.rooms = rooms
        self.drain = RemoteDrain(agent)
        self._config, self._agent, self._follower, self._position, self._health = config, agent, follower, position, health
        self._history, self._dialogs, self._instruments, self._records, self._homer = history, dialogs, instruments, records, homer

    # -- the agent as a whole -------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """As AgentView.status; the last one known, with its age, while the agent does not answer. Raises AgentUnavailable where there is none."""
        status, age_s, error = await self._agent.status()
        judged = await self._health.judged(status, error)
        return status_view(status, age_s, error) | self.own() | {"problems": [finding.view() for finding in judged.findings]}

    async def health(self) -> dict[str, Any]:
        """As AgentView.health."""
        return (await self._health.judgement()).view()

    def health_known(self) -> dict[str, Any]:
        """As AgentView.health_known."""
        return self._health.last().view()

    def own(self) -> dict[str, Any]:
        """As AgentView.own."""
        history, records, homer = self._history, self._records, self._homer
        return {
            "events": self._follower.view() | {"position": self._position.next, "position_error": self._position.error},
            "history": {"events": history.held, "capacity": history.capacity, "calls": len(history), "forgotten": history.calls_forgotten},
            "cdr": None if records is None else _records_view(records),
            "homer": None if homer is None else {"sent": homer.sent, "dropped": homer.dropped},
        }

    async def problems(self) -> list[str]:
        """As AgentView.problems."""
        return [f"{finding.code}: {finding.cause}" for finding in (await self._health.judgement()).failed]

    def registry(self) -> CollectorRegistry:
        """Metrics that are counted as events come."""
        return self._instruments.registry

    async def agent_metrics(self) -> str:
        """The agent's own metrics, in the OpenMetrics text format. Raises AgentUnavailable."""
        with self._agent.answering():
            return await self._agent.client.metrics()

    # -- calls ----------------------------------------------------------------------------------------

    async def calls(self, state: str | None, reason: str | None, match: str | None, offset: int, limit: int, problems: bool = False, by_mos: bool = False) -> tuple[list[dict[str, Any]], int]:
        """As AgentView.calls. Raises AgentUnavailable, NotDone."""
        if problems or by_mos:
            listed = [call for call in await self._all(state, reason, match) if call["problems"] or not problems]
            if by_mos:
                listed.sort(key=lambda call: (call["mos"] is None, call["mos"]))
            return listed[offset : offset + limit], len(listed)
        found: list[admin.Call] = []
        passed, total, after = 0, 0, None
        with self._agent.answering():
            while True:
                page = await self._agent.client.calls(state=state, reason=reason, match=match or None, limit=min(_PAGE, offset + limit - passed), after=after, fresh=offset + limit - passed <= _FRESH)
                total, after = page["total"], page["next"]
                found += page["calls"][max(0, offset - passed) :]
                passed += len(page["calls"])
                if after is None or passed >= offset + limit or offset >= total:
                    break
        now = time.time()
        return [self._listed(self._of_view(call, now), now) for call in found], total

    async def _all(self, state: str | None, reason: str | None, match: str | None) -> list[dict[str, Any]]:
        """All calls that fit, with counters that are read for it."""
        found: list[dict[str, Any]] = []
        after: int | None = None
        with self._agent.answering():
            while True:
                page = await self._agent.client.calls(state=state, reason=reason, match=match or None, limit=_FRESH, after=after, fresh=True)
                now = time.time()
                found += [self._listed(self._of_view(call, now), now) for call in page["calls"]]
                after = page["next"]
                if after is None:
                    return found

    def _listed(self, call: Call, now: float) -> dict[str, Any]:
        return self._shown(call, now) | call_now(call, self._quality(call), now - call.created, self._health.past_data_plane(now, now))

    def known_calls(self, state: str | None, reason: str | None, match: str | None) -> tuple[list[dict[str, Any]], float]:
        """As AgentView.known_calls. Raises AgentUnavailable."""
        silent_s, now = self._silent_s(), time.time()
        found = []
        for call_id, events in self._history.running():
            if match is None or match in call_id:
                call = call_history.last_known(call_id, events)
                if _fits(call, state, reason):
                    found.append(self._shown(call, now - silent_s) | call_now(call, [], 0.0) | {"problems": []})
        return sorted(found, key=lambda call: call["created"]), silent_s

    def known_call(self, call_id: str) -> tuple[dict[str, Any] | None, float]:
        """As AgentView.known_call. Raises AgentUnavailable."""
        silent_s = self._silent_s()
        events, _ = self._history.of(call_id) or ([], 0)
        call = self._ended(events).get(call_id)
        if call is not None:
            return self._with_quality(call), silent_s
        return (self._shown(call_history.last_known(call_id, events), time.time() - silent_s) if events else None), silent_s

    def _silent_s(self) -> float:
        if self._agent.silent_s is None:
            raise AgentUnavailable("the agent has not answered yet")
        return self._agent.silent_s

    def find(self, text: str, since: float, until: float, over: bool | None, limit: int) -> list[dict[str, Any]]:
        """As AgentView.find."""
        return [_found(one) for one in itertools.islice(self._dialogs.search(text, since, until, over), limit)]

    async def call(self, call_id: str) -> dict[str, Any] | None:
        """As AgentView.call; of a call that is over what its end said, while its history is kept. Raises AgentUnavailable."""
        call = await self._running(call_id, fresh=False)
        if call is not None:
            return self._of_running(call)
        events, _ = self._history.of(call_id) or ([], 0)
        ended = self._ended(events).get(call_id)
        return None if ended is None else self._with_quality(ended)

    def _ended(self, events: list[Event]) -> dict[str, Call]:
        """Calls whose end is among the events."""
        ends = {event.call_id: event.at for event in events}
        return {name: went_past(call, self._health.past_data_plane(call.created, ends.get(name, call.created))) for name, call in call_history.ended_calls(events).items()}

    async def why(self, call_id: str) -> dict[str, Any] | None:
        """As AgentView.why. Raises AgentUnavailable, DataPlaneUnavailable."""
        call = await self._running(call_id, fresh=True)
        if call is None:
            return await self.call(call_id)
        if call.counters_error is not None:
            raise DataPlaneUnavailable(f"{call.counters_error}; the counters at hand are older")
        return self._of_running(call)

    async def _running(self, call_id: str, fresh: bool) -> Call | None:
        """A call that the agent knows; None: it does not."""
        try:
            with self._agent.answering():
                view = await self._agent.client.call(call_id, fresh=fresh)
        except NotDone as error:
            if error.status == 404:
                return None
            raise
        return self._of_view(view, time.time())

    def _of_view(self, view: admin.Call, now: float) -> Call:
        return call_of_view(view, now, self._health.past_data_plane(view["started_us"] / 1e6, now))

    def _shown(self, call: Call, now: float) -> dict[str, Any]:
        events, _ = self._history.of(call.call_id) or ([], 0)
        said = self._dialogs.signalling(call.call_id)
        return call_view(call, now, call_history.times_to_offload(events, call.call_id)) | {"from": said.from_uri, "to": said.to_uri}

    def _of_running(self, call: Call) -> dict[str, Any]:
        """A call that is up, with what is wrong with this host that its media may meet."""
        return self._with_quality(call) | {"host": [finding.view() for finding in self._health.of_media()]}

    def _with_quality(self, call: Call) -> dict[str, Any]:
        return self._shown(call, time.time()) | {"quality": self._quality(call)}

    def _quality(self, call: Call) -> list[dict[str, Any]]:
        return call_quality(call, lambda index: media_of(call, self._dialogs, index), self._config.quality.delay_ms)

    # -- one call's history ---------------------------------------------------------------------------

    async def history(self, call_id: str) -> dict[str, Any] | None:
        """As AgentView.history. While the agent does not answer: from the events alone, and saying so."""
        kept = self._history.of(call_id)
        events, left_out = kept or ([], 0)
        events = call_history.in_sip_order(events)
        ended, findings, calls, fresh, away = self._ended(events), [], [], True, False
        for name in dict.fromkeys([call_id, *(event.call_id for event in events)]):
            try:
                call = await self._running(name, fresh=True) or ended.get(name)
            except (AgentUnavailable, DataPlaneUnavailable) as error:
                call = ended.get(name)
                if call is None and name in (event.call_id for event in events):
                    fresh, away = False, isinstance(error, AgentUnavailable)
                    findings.append(diagnosis.Finding("hint", f"{error}: the last known state follows."))
            if call is not None:
                calls.append(call)
                fresh = fresh and call.counters_error is None
        if kept is None and not calls:
            return None
        now = time.time()
        host = [finding.cause for finding in self._health.of_media()]
        for call in calls:
            findings += call_history.diagnose(call, events, now, await self._traces(call), await self._on_relay(call), host)
        if not calls and not findings:
            findings = diagnosis.diagnose(None, events, now)
        common, _ = self._history.of("") or ([], 0)
        quality = [(call.call_id, self._quality(call)) for call in calls]
        found = call_history.as_json(call_id, call_history.surrounded(events, common), left_out=left_out, findings=findings, fresh=fresh, quality=quality)
        dialog = self._dialogs.find(call_id)
        signalling = None if dialog is None else _found(dialog)
        shown = [self._shown(call, now) | {"quality": media} for call, (_, media) in zip(calls, quality, strict=True)]
        made = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M:%S} UTC"
        found |= {"last_known_s": self._agent.silent_s} if away and self._agent.silent_s is not None else {}
        return found | {"signalling": signalling, "report": report(found, shown, signalling, self.health_known(), now=made, version=__version__)}

    async def _on_relay(self, call: Call) -> frozenset[tuple[int | None, str]]:
        """Whose packets the relay counts at this moment, where the data plane meets none."""
        if not call_history.seems_silent(call):
            return frozenset()
        await asyncio.sleep(_BETWEEN_COUNTS_S)
        try:
            again = await self._running(call.call_id, fresh=True)
        except (AgentUnavailable, DataPlaneUnavailable):
            again = None
        return frozenset() if again is None else call_history.on_relay(call, again)

    async def _traces(self, call: Call) -> dict[str, dict[str, str]]:
        """The data plane's own word on each RTP entry of a call; without those that it does not say."""
        entries = [stream.installed for line in call.lines for stream in line.streams if stream.installed is not None and stream.component is Component.RTP]
        answers = await asyncio.gather(*(self._verdict(str(entry.key.src), str(entry.key.dst)) for entry in entries))
        return {str(entry.key): answer for entry, answer in zip(entries, answers, strict=True) if answer is not None}

    async def _verdict(self, source: str, destination: str) -> dict[str, str] | None:
        try:
            with self._agent.answering():
                plane = (await self._agent.client.trace(source, destination))["data_plane"]
        except (AgentUnavailable, DataPlaneUnavailable, NotDone):
            return None
        if plane is None or plane["verdict"] == "unknown":
            return None
        return {"verdict": plane["verdict"], "reason": plane["reason"] or ""}

    async def trace(self, src: str, dst: str) -> dict[str, Any]:
        """As AgentView.trace. Raises AgentUnavailable, DataPlaneUnavailable, NotDone."""
        with self._agent.answering():
            found = await self._agent.client.trace(src, dst)
        plane, call = found["data_plane"], found["call"]
        return {
            "key": f"{found['source']} > {found['destination']}",
            "data_plane": None
            if plane is None
            else {
                "verdict": plane["verdict"],
                "reason": plane["reason"],
                "out_src": plane["out_source"],
                "out_dst": plane["out_destination"],
                "out_interface": plane["out_interface"],
            },
            "call": None if call is None else {"call_id": call["call"]} | {name: value for name, value in call.items() if name != "call"},
        }


def _fits(call: Call, state: str | None, reason: str | None) -> bool:
    """Whether one and the same stream has this state and reason."""
    return state is reason is None or any(state in (None, stream.state.value) and reason in (None, stream.reason) for line in call.lines for stream in line.streams)


def _records_view(records: Records) -> dict[str, Any]:
    accounting = records.accounting
    return {
        "up": records.error is None,
        "waiting": records.waiting,
        "written": records.written,
        "failures": records.failures,
        "dropped": 0 if accounting is None else accounting.lost,
        "lost_timestamp_seconds": None if accounting is None else accounting.lost_at,
    }


def _found(call: Found) -> dict[str, Any]:
    def time_of(at: float | None) -> str | None:
        return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")

    said = call.signalling
    return {
        "call_id": call.call_id,
        "from": said.from_uri,
        "to": said.to_uri,
        "began": time_of(call.began),
        "ended": time_of(call.ended),
        "answered": call.answered,
        "sip_code": said.code,
        "hung_up": said.hung_up,
    }
