"""The Prometheus text of the operator daemon: the agent's own metrics, what this daemon keeps, writes and sends, and what it counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import parser as openmetrics

from shunt.health.finding import CODES

_PARTS = {"history": "Call history", "cdr": "Call records", "homer": "Packets to Homer"}
_GAUGES = frozenset({("history", "events"), ("history", "capacity"), ("history", "calls"), ("cdr", "up"), ("cdr", "waiting"), ("cdr", "lost_timestamp_seconds")})


# The parser has no types.
_families: Callable[[str], Iterator[Metric]] = openmetrics.text_string_to_metric_families


class _OfAgent:
    """A collector over the metrics of the agent, and what this daemon has besides."""

    def __init__(self, text: str | None, own: Iterable[Metric]) -> None:
        self._text, self._own = text, own

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("shunt_agent_up", "Whether the agent answers")
        up.add_metric([], float(self._text is not None))
        yield up
        theirs = list(_families(self._text)) if self._text is not None else []
        yield from theirs
        named = {metric.name for metric in theirs}
        yield from (metric for metric in self._own if metric.name not in named)


def _own(own: dict[str, Any]) -> Iterator[Metric]:
    for part, text in _PARTS.items():
        for name, value in (own.get(part) or {}).items():
            if value is not None:
                kind = GaugeMetricFamily if (part, name) in _GAUGES else CounterMetricFamily
                yield kind(f"shunt_{part}_{name}", f"{text}: {name.replace('_', ' ')}", value=float(value))
    if (events := own.get("events")) is not None:
        missing = CounterMetricFamily("shunt_events_missing", "Missing events of the agent, by cause", labels=["reason"])
        for reason, count in events["missing"].items():
            missing.add_metric([reason], float(count))
        yield missing
        yield GaugeMetricFamily("shunt_events_connected", "Whether the agent's events arrive", value=float(events["connected"]))


def _health(judged: Mapping[str, Any]) -> Iterator[Metric]:
    """1 for each code of which there is a finding, 0 for the others; none where it is not known."""
    found, unknown = {finding["code"] for finding in judged["findings"]}, {one["code"] for one in judged["unknown"]}
    problem = GaugeMetricFamily("shunt_health_problem", "Whether the judgement of health has a finding with this code", labels=["code", "severity"])
    for code, what in CODES.items():
        if code in found or code not in unknown:
            problem.add_metric([code, what.severity], float(code in found))
    yield problem
    yield GaugeMetricFamily("shunt_health_unknown", "Codes that could not be judged", value=len(unknown))


def exposition(own: dict[str, Any], agent: str | None, counted: CollectorRegistry, judged: Mapping[str, Any]) -> bytes:
    """The text format 0.0.4. own: AgentView.own; judged: health of the REST API; agent: the agent's own metrics as OpenMetrics text, None: it does not answer;
    counted: metrics.instruments."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfAgent(agent, [*_own(own), *_health(judged)]))
    return generate_latest(registry) + generate_latest(counted)
