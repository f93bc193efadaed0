"""A host as Prometheus sees it, minute by minute, from a few words: `Host(calls=15).for_(10).for_(5, route=False)`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shunt.health.finding import CODES

SCRAPE_S = 15
PACKETS_S = 50.0  # of one stream
LATE = {"0.05": 0.9, "0.2": 1.0, "1.0": 1.0, "+Inf": 1.0}  # share of streams offloaded within so many seconds, where none is late

Labels = tuple[tuple[str, str], ...]
Series = dict[tuple[str, Labels], list[float | None]]


@dataclass(frozen=True)
class State:
    """What is so for a while. Shares are of calls that end (or streams), 0 to 1."""

    calls: float = 0.0
    length_s: float = 180.0
    scraped: bool = True  # the target is configured
    operator: bool = True
    agent: bool = True  # False: dead or hung
    relay: bool = True
    data_plane: bool = True
    unread: bool = False  # the counters of the data plane
    attached: bool = True  # the XDP programs, to the interfaces of media
    route: bool = True  # to half of the parties
    too_big: bool = False  # half of the packets are longer than the MTU
    commands: bool = True  # the SIP server asks the agent
    hep: bool = True
    disk: bool = True  # has room
    follows: bool = True  # the operator daemon gets events
    standby: bool = False
    pair: bool = False
    drained: bool = False
    findings: tuple[str, ...] = ()  # of the judgement of health
    outside: bool = False  # the relay's ports are not in the configuration
    capacity: float = 262_144.0
    recorded: float = 0.0
    ringing: float = 0.07
    contested: float = 0.0
    on_relay: float = 0.01  # streams that should be in the data plane, by some reason or other
    one_way: float = 0.01
    silent: float = 0.02
    unheard_now: float = 0.0
    timeouts: float = 0.005
    late: float = 0.002
    mos: float = 4.3
    verdicts_s: float = 0.0
    notices_lost_s: float = 0.0
    events_dropped_s: float = 0.0
    records_lost_s: float = 0.0


@dataclass
class Host:
    """One operator daemon with its agent. `for_` lets time go by; `series` is what was scraped."""

    now: State = field(default_factory=State)
    instance: str = "edge1:8077"
    steps: int = 0
    _totals: dict[tuple[str, Labels], float] = field(default_factory=dict)
    _series: Series = field(default_factory=dict)
    _uptime: float = 100_000.0
    _lost_at: float | None = None

    @classmethod
    def with_(cls, **state: Any) -> Host:
        """A host in this state."""
        return cls(State(**state))

    def for_(self, minutes: float, **changes: Any) -> Host:
        """So many minutes with these changes, which end with them."""
        state = replace(self.now, **changes)
        for _ in range(round(minutes * 60 / SCRAPE_S)):
            self._step(state)
        return self

    def then(self, **changes: Any) -> Host:
        """The same from here on."""
        self.now = replace(self.now, **changes)
        return self

    def restarts(self, down_s: float = 0.0) -> Host:
        """The agent starts anew: its counters begin at 0."""
        if down_s:
            self.for_(down_s / 60, agent=False)
        self._uptime = 0.0
        own = ("shunt_stream_", "shunt_cdr_", "shunt_events_missing")
        for name, labels in list(self._totals):
            if not name.startswith(own):
                self._totals[name, labels] = 0.0
        return self

    def operator_restarts(self, down_s: float = 30.0) -> Host:
        """The operator daemon starts anew."""
        self.for_(down_s / 60, operator=False)
        for name, labels in list(self._totals):
            if name.startswith(("shunt_stream_", "shunt_events_missing", "shunt_cdr_written", "shunt_cdr_failures")):
                self._totals[name, labels] = 0.0
        return self

    # -- one scrape -----------------------------------------------------------------------------------

    def _step(self, state: State) -> None:
        seen: dict[tuple[str, Labels], float] = {}
        if state.scraped:
            seen["up", (("job", "shunt"),)] = float(state.operator)
        ended = state.calls / state.length_s * SCRAPE_S
        self._uptime += SCRAPE_S
        of_agent = dict(self._of_agent(state, ended))
        of_operator = dict(self._of_operator(state, ended))
        if state.operator and state.scraped:
            seen |= of_operator
            if state.agent:
                seen |= of_agent
        for key in seen.keys() | self._series.keys():
            self._series.setdefault(key, [None] * self.steps).append(seen.get(key))
        self.steps += 1

    def _count(self, name: str, by: float, **labels: str) -> tuple[tuple[str, Labels], float]:
        key = name, tuple(labels.items())
        self._totals[key] = self._totals.get(key, 0.0) + by
        return key, self._totals[key]

    def _of_agent(self, state: State, ended: float) -> Iterator[tuple[tuple[str, Labels], float]]:
        def gauge(name: str, value: float, **labels: str) -> tuple[tuple[str, Labels], float]:
            return (name, tuple(labels.items())), value

        known = state.calls if state.commands and not state.standby else 0.0
        streams = 2 * known
        reasons = self._reasons(state, streams)
        offloaded = sum(count for reason, count in reasons.items() if reason in ("offloaded", "one-way", "silent"))
        waiting = sum(count for reason, count in reasons.items() if reason.startswith("waiting"))
        yield gauge("shunt_uptime_seconds", self._uptime)
        yield gauge("shunt_calls", round(known))
        yield gauge("shunt_calls_to_restore", 0)
        for carrier, count in (("offloaded", offloaded), ("learning", waiting), ("relayed", streams - offloaded - waiting)):
            yield gauge("shunt_streams", round(count), state=carrier)
        for reason, count in reasons.items():
            if round(count):
                yield gauge("shunt_streams_by_reason", round(count), reason=reason)
        yield gauge("shunt_relay_up", float(state.relay), relay="local")
        yield gauge("shunt_relay_sessions", round(state.calls), relay="local")
        yield gauge("shunt_journal_up", float(state.disk))
        yield gauge("shunt_events_up", float(state.disk))
        yield gauge("shunt_agent_draining", float(state.drained))
        if state.pair:
            yield gauge("shunt_role", float(not state.standby), role="active")
            yield gauge("shunt_role", float(state.standby), role="standby")
        heard = known - known * state.ringing
        # Streams with media that the programs see, and those that only the relay sees.
        active = max(0.0, streams * (1 - state.ringing)) if known else 2 * state.calls * (1 - state.ringing)
        by_plane = min(active, offloaded) if state.attached and state.data_plane else 0.0
        yield from self._packets(state, by_plane, active - by_plane)
        for verb in ("U", "L", "D"):
            yield self._count("shunt_control_commands_total", ended if state.commands else 0.0, command=verb)
        yield self._count("shunt_hep_messages_total", 7 * ended if state.hep else 0.0)
        yield self._count("shunt_hep_byes_total", ended if state.hep else 0.0)
        over = ended if state.commands else 0.0
        yield self._count("shunt_calls_ended_total", over * (1 - state.timeouts), reason="released")
        yield self._count("shunt_calls_ended_total", over * state.timeouts, reason="media-timeout")
        yield self._count("shunt_media_timeouts_total", over * state.timeouts)
        yield self._count("shunt_one_way_total", over * state.one_way)
        yield self._count("shunt_zero_packet_total", over * state.unheard_now)
        for edge, share in LATE.items():
            met = share if edge in ("1.0", "+Inf") else share - state.late
            yield self._count("shunt_time_to_offload_seconds_bucket", 2 * over * met if heard else 0.0, le=edge)
        yield self._count("shunt_time_to_offload_seconds_count", 2 * over if heard else 0.0)
        yield self._count("shunt_learn_verdicts_total", state.verdicts_s * SCRAPE_S, verdict="scanner")
        yield self._count("shunt_events_dropped_total", state.events_dropped_s * SCRAPE_S)

    def _reasons(self, state: State, streams: float) -> dict[str, float]:
        left, found = streams, {}

        def take(reason: str, share: float) -> None:
            nonlocal left
            count = min(left, streams * share)
            left -= count
            found[reason] = count

        take("waiting-for-answer", state.ringing)
        take("recording", state.recorded)
        take("outside-media-ranges", float(state.outside))
        take("draining", float(state.drained))
        take("contested", state.contested)
        take("verifying-source", state.on_relay)
        take("waiting-for-media", state.unheard_now)
        take("silent", state.silent)
        found["offloaded"] = left
        return found

    def _packets(self, state: State, by_plane: float, by_relay: float) -> Iterator[tuple[tuple[str, Labels], float]]:
        lost = by_plane / 2 if not state.route or state.too_big else 0.0
        packets = SCRAPE_S * PACKETS_S
        heard = 0.0 if state.unheard_now > 0.5 else 1.0
        yield self._count("shunt_media_packets_total", packets * (by_relay + lost) * heard, carrier="relay")
        if state.standby:
            return
        yield ("shunt_data_plane_up", ()), float(state.data_plane)
        yield ("shunt_data_plane_totals_read", ()), float(state.data_plane and not state.unread)
        counters = (
            self._count("shunt_media_packets_total", packets * (by_plane - lost) * heard, carrier="data_plane"),
            self._count("shunt_data_plane_relayed_packets_total", packets * (by_plane - lost) * heard),
            # A neighbour that is not known yet costs a call its first packet.
            self._count("shunt_data_plane_unrouted_packets_total", packets * lost * (not state.route) + state.attached * state.calls / state.length_s * SCRAPE_S),
            self._count("shunt_data_plane_too_big_packets_total", packets * lost * state.too_big),
            self._count("shunt_data_plane_learn_lost_total", state.notices_lost_s * SCRAPE_S),
            self._count("shunt_data_plane_agent_lost_total", 0.0),
        )
        if state.data_plane:
            yield ("shunt_data_plane_entries", ()), round(4 * state.calls)
            yield ("shunt_data_plane_capacity", ()), state.capacity
            if not state.unread:
                yield from counters

    def _of_operator(self, state: State, ended: float) -> Iterator[tuple[tuple[str, Labels], float]]:
        yield ("shunt_agent_up", ()), float(state.agent)
        yield ("shunt_events_connected", ()), float(state.follows and state.agent)
        yield ("shunt_cdr_up", ()), float(state.disk)
        found = {*state.findings, *(["draining"] if state.drained else [])} if state.agent else {"agent-unreachable"}
        for code, what in CODES.items():
            # While the agent does not answer, only this daemon's own codes are known.
            if state.agent or code in found:
                yield ("shunt_health_problem", (("code", code), ("severity", what.severity))), float(code in found)
        over = 2 * ended if state.commands and state.agent and state.follows else 0.0
        yield self._count("shunt_stream_mos_sum", over * state.mos, codec="PCMA")
        yield self._count("shunt_stream_mos_count", over, codec="PCMA")
        yield self._count("shunt_events_missing_total", 0.0, reason="lost")
        yield self._count("shunt_cdr_dropped_total", state.records_lost_s * SCRAPE_S)
        if state.records_lost_s:
            self._lost_at = float(self.steps * SCRAPE_S)
        if self._lost_at is not None:
            yield ("shunt_cdr_lost_timestamp_seconds", ()), self._lost_at

    # -- for promtool ---------------------------------------------------------------------------------

    def series(self) -> list[dict[str, str]]:
        """All that was scraped, as `input_series` of promtool."""
        found = []
        for (name, labels), values in self._series.items():
            named = {"job": "shunt", "instance": self.instance, **dict(labels)}
            text = ", ".join(f"{key}={json.dumps(value)}" for key, value in named.items())
            found.append({"series": f"{name}{{{text}}}", "values": " ".join(_samples(values))})
        return found


def _samples(values: list[float | None]) -> Iterator[str]:
    """A series that a scrape no longer has is stale at once."""
    before: float | None = None
    for value in values:
        if value is None:
            yield "_" if before is None else "stale"
        else:
            yield f"{value:.6g}" if value < 100_000 else f"{value:.0f}"
        before = value


def document(rules: str, hosts: list[Host], fired: Mapping[str, bool]) -> dict[str, Any]:
    """promtool's input. fired: the alerts that fire during the scene, and whether they still do at its end."""
    end_s = max(host.steps for host in hosts) * SCRAPE_S - SCRAPE_S

    def samples(names: list[str]) -> list[dict[str, Any]]:
        return [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)]

    asked = [
        {"expr": f'group by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{end_s + 60}s]))', "eval_time": f"{end_s}s", "exp_samples": samples(list(fired))},
        {"expr": 'group by (alertname) (ALERTS{alertstate="firing"})', "eval_time": f"{end_s}s", "exp_samples": samples([name for name, still in fired.items() if still])},
    ]
    series = [one for host in hosts for one in host.series()]
    return {"rule_files": [rules], "evaluation_interval": "1m", "tests": [{"interval": f"{SCRAPE_S}s", "input_series": series, "promql_expr_test": asked}]}
