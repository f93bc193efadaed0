"""Watches the host for the judgement of health: samples of the agent's status, calls that SIP copies show without a command, the clock."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from shunt.admin import AdminClient, AgentError, AgentUnreachable
from shunt.calls import reasons
from shunt.calls.kinds import Component, Side, State
from shunt.config.model import Config
from shunt.events.bus import CONTROL, SIP, Event
from shunt.health import judge
from shunt.health.facts import Agent, Facts, Flow, Interface, Own, Problem, Relay, Setup, Signalling, Unknown
from shunt.health.finding import Finding, Judgement
from shunt.operator.asking import Agent as Asked
from shunt.operator.calls import call_of_view

KINDS = (SIP, CONTROL)
_OF_MEDIA = ("relay-down", "data-plane-down", "xdp-missing", "xdp-loopback", "past-data-plane", "unrouted", "too-big", "nothing-arrives")
"""Codes of findings that explain what a call's media meets."""
_PAST = ("xdp-missing", "past-data-plane")
"""Codes with which packets of offloaded streams go past the data plane."""
_PAST_KEPT = 1000
_Value = TypeVar("_Value")
_PERIOD_S = 5.0
_FRESH_S = 1.0
_SPAN_S = 15.0
"""The span over which packets are compared: long enough for a relay and a data plane whose counters are read at different moments."""
_LEAST_SPAN_S = 5.0
_MINUTES_S = 600.0
_SETTLED_S = 3.0  # commands come before the answer, but by another socket than SIP copies
_SILENT_S = 10.0
_MOST_CALLS = 100_000
_LOOKED_AT = 100
_TRACED = 20
_OFFERS = ("U", "offer")


class Sightings:
    """Subscriber of the bus, for events of KINDS: answered calls with media of the last minutes, with and without a command."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """clock: Unix time."""
        self._clock = clock
        self._commanded: OrderedDict[str, None] = OrderedDict()
        self._begun: OrderedDict[str, None] = OrderedDict()
        self._answered: OrderedDict[str, float] = OrderedDict()

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if event.kind == CONTROL:
            _keep(self._commanded, event.call_id, None)
        elif event.what == "INVITE" and not event.facts["to_tag"]:
            _keep(self._begun, event.call_id, None)
        elif event.what.startswith("2") and event.what.isdigit() and event.facts["cseq"] == "INVITE" and event.facts["lines"] and event.call_id in self._begun:
            del self._begun[event.call_id]  # answers to later INVITEs are not counted again
            _keep(self._answered, event.call_id, event.at)

    def counts(self) -> tuple[int, int]:
        """How many calls were answered in the last minutes, and for how many of them no command came."""
        now = self._clock()
        while self._answered and next(iter(self._answered.values())) < now - _MINUTES_S:
            self._answered.popitem(last=False)
        settled = [call_id for call_id, at in self._answered.items() if at <= now - _SETTLED_S]
        # rtp_relay adds the branch to the Call-ID of commands.
        stems = {stem for call_id in self._commanded if (stem := call_id.rpartition("-")[0])}
        return len(settled), sum(call_id not in self._commanded and call_id not in stems for call_id in settled)


def _keep(found: OrderedDict[str, _Value], name: str, value: _Value) -> None:
    found[name] = value
    if len(found) > _MOST_CALLS:
        found.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    plane: int | None
    relay: int | None
    unrouted: int | None
    too_big: int | None
    on_relay: int
    offers: int
    copies: int


class Samples:
    """The agent's status at several moments of one run of it."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._kept: deque[_Sample] = deque()

    def add(self, status: Mapping[str, Any]) -> bool:
        """Take in a status; False: it is no newer than the last one, as when two are asked for at the same time."""
        at = status["uptime_s"]
        if status["epoch"] != self._epoch:
            self._epoch = status["epoch"]
            self._kept.clear()
        elif self._kept and at <= self._kept[-1].at:
            return False
        plane = status["data_plane"] or {}
        totals = plane.get("totals") or {}  # no data plane: an empty one
        counts = [relay["packets_relayed"] for relay in status["relays"]]
        commands = status["commands"]["by_verb"]
        sample = _Sample(
            at,
            plane.get("packets_relayed") if plane.get("connected") else None,
            None if None in counts else sum(counts),
            totals.get("unrouted_packets"),
            totals.get("too_big_packets"),
            sum(count["streams"] for count in status["streams"] if count["state"] not in (State.OFFLOADED.value, State.RELEASED.value)),
            sum(commands.get(verb, 0) for verb in _OFFERS),
            (status["hep"] or {}).get("messages", 0),
        )
        self._kept.append(sample)
        while self._kept and self._kept[0].at < at - _MINUTES_S:
            self._kept.popleft()
        return True

    def flow(self) -> Flow | None:
        """What was counted in the last span; None: there are no two samples that are apart enough."""
        if not self._kept:
            return None
        last = self._kept[-1]
        old = [sample for sample in self._kept if _LEAST_SPAN_S <= last.at - sample.at]
        if not old:
            return None
        first = next((sample for sample in reversed(old) if last.at - sample.at >= _SPAN_S), old[0])
        within = [sample for sample in self._kept if sample.at >= first.at]
        return Flow(
            last.at - first.at,
            plane=_more(first.plane, last.plane),
            relay=_more(first.relay, last.relay),
            unrouted=_more(first.unrouted, last.unrouted),
            too_big=_more(first.too_big, last.too_big),
            on_relay=max(sample.on_relay for sample in within),
            offers=last.offers - first.offers,
        )

    def signalling(self) -> tuple[int, int, float | None]:
        """Offers and SIP copies of the last minutes, and of how many seconds that is."""
        if len(self._kept) < 2:
            return 0, 0, None
        first, last = self._kept[0], self._kept[-1]
        return last.offers - first.offers, last.copies - first.copies, last.at - first.at


def _more(before: int | None, now: int | None) -> int | None:
    """What was counted between two readings; None: not known, as after a restart of what counts."""
    return None if before is None or now is None or now < before else now - before


def agent_of(status: Mapping[str, Any], flow: Flow | None) -> Agent:
    """The facts of a status of the admin API."""
    plane = status["data_plane"]
    interfaces = None if plane is None or plane["interfaces"] is None else tuple(Interface(one["name"], one["mode"]) for one in plane["interfaces"])
    streams: Counter[str] = Counter()
    for count in status["streams"]:
        if count["state"] != State.RELEASED.value:
            streams[count["reason"]] += count["streams"]
    # Of streams that the data plane carries the reason says more than that.
    streams[reasons.OFFLOADED] = sum(count["streams"] for count in status["streams"] if count["state"] == State.OFFLOADED.value)
    return Agent(
        role=status["role"],
        problems=tuple(Problem(problem["code"], problem["message"]) for problem in [*status["problems"], *_of_event_log(status["events"])]),
        relays=tuple(Relay(relay["name"], relay["address"], relay["alive"], relay["error"] or "") for relay in status["relays"]),
        connected=None if plane is None else plane["connected"],
        interfaces=interfaces,
        streams=dict(streams),
        calls=status["calls"],
        draining=status["drain"]["stop"],
        flow=flow,
    )


def _of_event_log(log: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [] if log is None or log["error"] is None else [{"code": "events-waiting", "message": log["error"]}]


def setup_of(config: Config) -> Setup:
    """What the configuration says."""
    softswitch, journal = config.softswitch, config.journal
    return Setup(
        data_plane=config.data_plane is not None,
        hep=config.hep is not None,
        mode="" if softswitch is None else softswitch.mode,
        interfaces=() if softswitch is None else tuple(softswitch.interfaces),
        journal="" if journal is None or journal.redis is not None else journal.path,
        events=config.admin.events,
    )


def silent_calls(calls: Sequence[Mapping[str, Any]], now: float) -> int:
    """Of calls of the admin API, those of which nothing has come from either side for a while after their answer."""
    return sum(any(_is_silent(line, now) for line in call_of_view(call, now).lines) for call in calls)


def _is_silent(line: Any, now: float) -> bool:
    streams = [line.stream(side, Component.RTP) for side in Side]
    return (
        line.answered
        and line.released is None
        and not any(leg.held or leg.relay_packets for leg in line.legs.values())
        and all(stream.reason == reasons.WAITING_FOR_MEDIA and now - stream.since >= _SILENT_S for stream in streams)
    )


class Health:
    """The judgement of now. run() samples in the background; judgement() looks again where that is long ago."""

    def __init__(self, config: Config, agent: Asked, client: AdminClient, own: Callable[[], Own]) -> None:
        """own: what the operator daemon knows of itself."""
        self.sightings = Sightings()
        self._setup, self._agent, self._client, self._own = setup_of(config), agent, client, own
        self._samples = Samples()
        self._since: dict[tuple[str, str], float] = {}
        self._looked: float | None = None
        self._facts: Agent | Unknown = Unknown("it has not been asked yet")
        self._taken = self._judged = 0  # answers of the agent, errors too; the one that the facts are of
        self._looking: asyncio.Lock = asyncio.Lock()
        self._offset: deque[tuple[float, float]] = deque()
        self._past: deque[tuple[float, float, str]] = deque(maxlen=_PAST_KEPT)

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            await self._look()
            await asyncio.sleep(_PERIOD_S)

    async def judgement(self) -> Judgement:
        """What is wrong now."""
        if self._looked is None or time.monotonic() - self._looked > _FRESH_S:
            await self._look()
        return self.last()

    def last(self) -> Judgement:
        """What is wrong by the facts of the last look."""
        answered, past = self.sightings.counts()
        offers, copies, seconds = self._samples.signalling()
        own = replace(self._own(), clock_step_s=self._step())
        facts = Facts(self._facts, self._setup, Signalling(answered, past, offers, copies, seconds), own)
        return judge.dated(judge.judge(facts), self._since, time.monotonic())

    def of_media(self) -> list[Finding]:
        """What is wrong by the last look that the media of any running call may meet."""
        return [finding for finding in self.last().findings if finding.code in _OF_MEDIA]

    def _step(self) -> float:
        """By how much the clock was set in the last minutes; set to and fro: what it is now against the time that differs most."""
        now = time.monotonic()
        offset = time.time() - now
        if not self._offset or abs(offset - self._offset[-1][1]) > 0.5:
            self._offset.append((now, offset))
        while len(self._offset) > 1 and self._offset[1][0] < now - _MINUTES_S:
            self._offset.popleft()
        return max((offset - before for _, before in self._offset), key=abs)

    async def _look(self) -> None:
        if self._looking.locked():
            async with self._looking:  # another one looks
                return
        async with self._looking:
            status, _, error = await self._agent.attempt()
            await self._take(status, error)

    async def judged(self, status: Mapping[str, Any], error: str | None) -> Judgement:
        """What is wrong by a status that was just read. error: why it could not be read anew."""
        await self._take(status, error)
        return self.last()

    async def _take(self, status: Mapping[str, Any] | None, error: str | None) -> None:
        if status is None or error is not None:
            self._taken += 1
            self._facts, self._judged = Unknown(error or "no answer yet"), self._taken
        elif self._samples.add(status):
            self._taken += 1
            taken, facts = self._taken, await self._closer(agent_of(status, self._samples.flow()))
            if taken > self._judged:
                self._facts, self._judged = facts, taken
        before, self._looked = self._looked, time.monotonic()
        if (past := self.last().of(*_PAST)) is not None:
            # It may have been so since the look before.
            since = time.time() - (0.0 if before is None else self._looked - before)
            if self._past and self._past[-1][2] == past.cause and self._past[-1][1] >= since - _PERIOD_S:
                since = self._past.pop()[0]
            self._past.append((since, time.time(), past.cause))

    def past_data_plane(self, begin: float, end: float) -> str:
        """Why packets went past the data plane at some moment of a time; "": none are known to have. begin, end: Unix time."""
        # The next look comes within the period.
        return next((cause for since, until, cause in reversed(self._past) if since <= end and until + _PERIOD_S >= begin), "")

    async def _closer(self, agent: Agent) -> Agent:
        """The facts with what only calls tell, where there is something to see."""
        examples: dict[str, str] = {}
        silent: int | None = 0
        try:
            if agent.streams.get(reasons.WAITING_FOR_MEDIA, 0) >= 4:
                page = await self._client.calls(reason=reasons.WAITING_FOR_MEDIA, limit=_LOOKED_AT)
                silent = silent_calls(page["calls"], time.time())
                if page["total"] > _LOOKED_AT:
                    silent = silent * page["total"] // _LOOKED_AT
            if agent.streams.get(reasons.OUTSIDE_MEDIA):
                examples["outside-media-ranges"] = _port(await self._client.calls(reason=reasons.OUTSIDE_MEDIA, limit=1))
            if agent.flow is not None and (agent.flow.unrouted or 0) > 0:
                examples["unrouted"] = await self._unreachable()
        except (AgentUnreachable, AgentError):
            silent = None
        return replace(agent, silent_calls=silent, examples=examples)

    async def _unreachable(self) -> str:
        """An address to which the data plane has no next hop; "": none was found among the first calls."""
        page = await self._client.calls(state=State.OFFLOADED.value, limit=_TRACED)
        entries = {entry["new_destination"]: entry for call in page["calls"] for line in call["lines"] for stream in line["streams"] if (entry := stream["entry"]) is not None}
        for entry in list(entries.values())[:_TRACED]:
            plane = (await self._client.trace(entry["source"], entry["destination"]))["data_plane"]
            if plane is not None and plane["verdict"] not in ("redirect", "tx", "unknown"):
                return str(entry["new_destination"]).rpartition(":")[0].strip("[]")
        return ""


def _port(page: Mapping[str, Any]) -> str:
    """The relay port of a stream that is outside of the media ranges."""
    for call in page["calls"]:
        for line in call["lines"]:
            for stream in line["streams"]:
                if stream["reason"] == reasons.OUTSIDE_MEDIA and (port := line[stream["from"]]["relay_port"]):
                    return f"{port} of call {call['call']}"
    return ""
