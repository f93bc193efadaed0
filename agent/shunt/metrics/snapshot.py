"""Prometheus text from one look at the agent: a collector over status() and totals(), and what the instruments counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import parser as openmetrics

# The counters of the table softswitch.totals; entries and capacity are gauges.
_COUNTERS = {
    "rx_packets": "Packets that the data plane looked at",
    "relayed_packets": "Packets relayed by the data plane",
    "relayed_bytes": "Bytes relayed by the data plane",
    "missed_packets": "Packets to a media port that met no entry",
    "source_mismatch_packets": "Packets to an offloaded media port from another source",
    "blocked_packets": "Packets dropped at a media port without an entry because their source scans ports",
    "limited_packets": "Packets dropped because their stream had more than softswitch.packet_limit",
    "conference_packets": "Packets of conferences, each copied to its receivers",
    "passed_packets": "Packets handed on to the kernel untouched",
    "too_big_packets": "Those of them that the output interface's MTU did not take",
    "unrouted_packets": "Those of them whose destination has no route, or a neighbour that is not known yet",
    "learn_notices": "Learn notices raised",
    "learn_suppressed": "Learn notices left out by rate limiting",
}
# Counters that had another name until 0.2; both are served for one release.
_FORMER_NAMES = {"source_mismatch_packets": "stray_packets", "blocked_packets": "refused_packets"}


class _Snapshot:
    """A collector over values that were read already (the data plane is asked asynchronously)."""

    def __init__(self, status: dict[str, Any], totals: dict[str, Any] | None) -> None:
        self._status = status
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        status = self._status
        yield InfoMetricFamily("shunt", "The agent", value={"version": str(status.get("version", ""))})
        yield _gauge("shunt_uptime_seconds", "Seconds since the agent's start", status.get("uptime_s"))
        yield _gauge("shunt_calls", "Calls that the agent knows", status.get("calls"))
        yield _labelled(GaugeMetricFamily, "shunt_streams", "Streams by state", "state", status.get("streams") or {})
        yield _labelled(GaugeMetricFamily, "shunt_streams_by_reason", "RTP streams by the reason for their state", "reason", status.get("streams_by_reason") or {})
        yield _gauge("shunt_offload_share", "Share of the RTP streams that the data plane carries, 0 to 1", _share(status.get("streams") or {}))
        yield _labelled(CounterMetricFamily, "shunt_media_packets", "Media packets by carrier", "carrier", status.get("packets") or {})
        relays = status.get("relays") or []
        yield _labelled(GaugeMetricFamily, "shunt_relay_up", "Whether the relay answers", "relay", {r["name"]: r.get("alive") for r in relays})
        yield _labelled(GaugeMetricFamily, "shunt_relay_sessions", "Sessions on the relay", "relay", {r["name"]: r.get("sessions") for r in relays})
        yield _labelled(CounterMetricFamily, "shunt_relay_packets", "Media packets that the relay relayed", "relay", {r["name"]: r.get("packets_relayed") for r in relays})
        yield _labelled(CounterMetricFamily, "shunt_control_commands", "Control commands from SIP servers", "command", status.get("commands") or {})
        for name, text, value in (
            ("shunt_hep_messages", "SIP messages seen by HEP", (status.get("sightings") or {}).get("messages")),
            ("shunt_hep_byes", "BYE and CANCEL seen by HEP", (status.get("sightings") or {}).get("byes")),
            ("shunt_media_timeouts", "Media time-outs raised to SIP servers", status.get("media_timeouts")),
            ("shunt_strays_ignored", "Noticed packets that were no party's", status.get("strays_ignored")),
            ("shunt_journal_failures", "Journal writes that failed", status.get("journal_failures")),
        ):
            if value is not None:
                yield CounterMetricFamily(name, text, value=value)
        yield _labelled(CounterMetricFamily, "shunt_limits", "Limits that were met, by name (docs/limits.md)", "limit", status.get("limits") or {})
        yield from _own(status)
        if (conferences := status.get("conferences")) is not None:
            yield _labelled(GaugeMetricFamily, "shunt_conferences", "Conferences by the design of their trees", "design", conferences["designs"])
            yield _gauge("shunt_conferences_with_problem", "Conferences that the data plane does not hold as they are to be", conferences["with_problem"])
            yield _labelled(GaugeMetricFamily, "shunt_conference_participants", "Participants: present (their media has a source), awaited, on hold", "state", conferences["participants"])
            yield _gauge("shunt_conference_limited", "Pairs of sender and receiver of which layers are left out", conferences["limited"])
            yield CounterMetricFamily("shunt_conference_rows_written", "Writes to the replication tables", value=conferences["rows_written"])
            yield CounterMetricFamily("shunt_conference_strays_ignored", "Noticed packets to participants' ports that were not theirs", value=conferences["strays_ignored"])
            yield _labelled(CounterMetricFamily, "shunt_conference_feedback", "RTCP and STUN of participants, and what followed", "what", conferences["feedback"])
            if conferences["records"] is not None:
                yield _labelled(CounterMetricFamily, "shunt_conference_records", "Records of participants: written, writes that failed, given up", "what", conferences["records"])
        plane = status.get("data_plane")
        if plane:
            yield _gauge("shunt_data_plane_up", "Whether the data plane is connected", plane.get("connected"))
            yield _gauge("shunt_data_plane_entries", "Relay entries in the data plane", plane.get("entries"))
            yield _gauge("shunt_data_plane_ours", "Relay entries that this agent holds", plane.get("ours"))
            yield _gauge("shunt_data_plane_orphans", "Relay entries that no call claims (left by an agent before this one)", plane.get("orphans"))
            yield _gauge("shunt_data_plane_capacity", "Relay entries that the data plane can hold", plane.get("capacity"))
        yield _gauge("shunt_data_plane_totals_read", "Whether the data plane's own counters could be read", bool(self._totals))
        for name, text in _COUNTERS.items():
            value = (self._totals or {}).get(name)
            if value is not None:
                yield CounterMetricFamily(f"shunt_data_plane_{name}", text, value=value)
                if (former := _FORMER_NAMES.get(name)) is not None:
                    yield CounterMetricFamily(f"shunt_data_plane_{former}", f"Former name of shunt_data_plane_{name}", value=value)


def _own(status: dict[str, Any]) -> Iterator[Metric]:
    for part, text in (("history", "Call history"), ("cdr", "Call records"), ("homer", "Packets to Homer"), ("table_batches", "Relay table writes")):
        for name, value in (status.get(part) or {}).items():
            kind = GaugeMetricFamily if part == "history" and name != "forgotten" else CounterMetricFamily
            yield kind(f"shunt_{part}_{name}", f"{text}: {name}", value=value)


def _gauge(name: str, text: str, value: Any) -> Metric:
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], float(value))
    return family


def _labelled(kind: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, text: str, label: str, values: dict[str, Any]) -> Metric:
    family = kind(name, text, labels=[label])
    for key, value in values.items():
        if value is not None:
            family.add_metric([str(key)], float(value))
    return family


def _share(streams: dict[str, int]) -> float | None:
    known = sum(streams.values())
    return streams.get("offloaded", 0) / known if known else None


class _OfAgent:
    """A collector over the metrics of shunt-agent, and what this daemon's status has besides."""

    def __init__(self, text: str | None, own: Iterable[Metric]) -> None:
        self._text, self._own = text, own

    def collect(self) -> Iterator[Metric]:
        yield _gauge("shunt_agent_up", "Whether the agent answers", float(self._text is not None))
        theirs = list(openmetrics.text_string_to_metric_families(self._text)) if self._text is not None else []
        yield from theirs
        named = {metric.name for metric in theirs}
        yield from (metric for metric in self._own if metric.name not in named)


def own_part(status: dict[str, Any]) -> dict[str, Any]:
    """What the operator daemon itself keeps, writes and sends."""
    return {name: status[name] for name in ("history", "cdr", "homer") if name in status}


def exposition(status: dict[str, Any], totals: dict[str, Any] | None, counted: CollectorRegistry) -> bytes:
    """The text format 0.0.4; totals is None where the data plane could not be asked. counted: metrics.instruments."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(status, totals))
    return generate_latest(registry) + generate_latest(counted)


def exposition_of_operator(status: dict[str, Any], agent: str | None, counted: CollectorRegistry) -> bytes:
    """The same of the operator daemon. agent: the agent's own metrics as OpenMetrics text; None: it does not answer."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfAgent(agent, list(_own(own_part(status)))))
    return generate_latest(registry) + generate_latest(counted)
