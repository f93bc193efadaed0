"""Counters and histograms fed by the event bus: learning, table writes, time to offload, commands, relays, calls, quality."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from shunt.calls import reasons
from shunt.calls.kinds import State
from shunt.events.bus import CONFERENCE, CONTROL, LEARN, NOTE, RELAY, STATE, TABLE, Event

_FAST = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_OFFLOAD = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
_MOS = (1.5, 2.0, 2.5, 2.75, 3.0, 3.25, 3.5, 3.6, 3.75, 4.0, 4.1, 4.2, 4.3, 4.4, 4.5)
_LOSS = (0.0, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
_JITTER = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
_DURATION = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)

# Why a stream that could have been offloaded was not. Waiting for a packet or an answer is no failure.
_FAILURES = frozenset({
    reasons.TABLE_FULL, reasons.HASH_COLLISION, reasons.REJECTED, reasons.DATA_PLANE_UNAVAILABLE, reasons.CONTESTED, reasons.DRAINING, reasons.RESIZE,
    reasons.PLAYBACK, reasons.RECORDING, reasons.COPY, reasons.DTMF,
})


class Instruments:
    """Subscriber of the bus. `registry` is what /metrics shows of it."""

    def __init__(self, *, of_agent: bool = True) -> None:
        """of_agent: whether nobody else counts what an agent does; shunt-agent has metrics of its own."""
        self.registry = CollectorRegistry(auto_describe=False)
        registry = self.registry if of_agent else CollectorRegistry(auto_describe=False)
        self._learn = Counter("shunt_learn_verdicts", "Learn notices about media ports of calls, by the verdict of guarded latching", ["verdict"], registry=registry)
        self._writes = Counter("shunt_table_operations", "Relay table operations, by outcome", ["operation", "outcome"], registry=registry)
        self._write_time = Histogram("shunt_table_operation_seconds", "Time of relay table operations, queueing included", ["operation"], buckets=_FAST, registry=registry)
        self._failures = Counter("shunt_offload_failures", "Streams that had to stay on or go back to the relay, by reason", ["reason"], registry=registry)
        self._to_offload = Histogram(
            "shunt_time_to_offload_seconds", "From the first packet of both parties to the entry in the data plane", buckets=_OFFLOAD, registry=registry
        )
        self._commands = Histogram(
            "shunt_control_command_seconds", "From a SIP server's command to its reply, the relay's time included", ["command"], buckets=_FAST, registry=registry
        )
        self._relay_time = Histogram("shunt_relay_reply_seconds", "Time of a relay's reply to a command", ["relay"], buckets=_FAST, registry=registry)
        self._relay_silent = Counter("shunt_relay_unanswered", "Commands that a relay did not answer", ["relay"], registry=registry)
        self._ended = Counter("shunt_calls_ended", "Calls that ended, by reason", ["reason"], registry=registry)
        self._duration = Histogram("shunt_call_duration_seconds", "Length of calls on the relay's ports", buckets=_DURATION, registry=registry)
        self._mos = Histogram("shunt_stream_mos", "MOS by the E-model (G.107) of streams that ended, where one could be computed", ["codec"], buckets=_MOS, registry=self.registry)
        self._loss = Histogram("shunt_stream_loss_ratio", "Share of lost packets of measured streams that ended", buckets=_LOSS, registry=self.registry)
        self._jitter = Histogram("shunt_stream_jitter_seconds", "Interarrival jitter (RFC 3550) of measured streams that ended", buckets=_JITTER, registry=self.registry)
        self._unrated = Counter("shunt_streams_unrated", "Streams that ended without a MOS, by cause", ["cause"], registry=self.registry)
        self._conferences = Counter("shunt_conference_events", "What happened in conferences: joined, left, source, target, downlink and others", ["what"], registry=self.registry)
        for verdict in ("accepted", "contested", "stray", "rebind"):
            self._learn.labels(verdict)
        for operation in ("insert", "modify", "delete"):
            self._write_time.labels(operation)
        self._writes.labels("insert", "installed")
        for reason in (reasons.TABLE_FULL, reasons.REJECTED, reasons.DATA_PLANE_UNAVAILABLE, reasons.CONTESTED):
            self._failures.labels(reason)
        # labels() takes a lock and a search each time; a handful of children is kept at hand.
        self._children: dict[tuple, Any] = {}

    def __call__(self, event: Event) -> None:
        """Count one event (as a subscriber)."""
        kind, facts = event.kind, event.facts
        if kind == LEARN:
            self._child(self._learn, event.what).inc()
        elif kind == STATE:
            if "after_ms" in facts:
                self._to_offload.observe(facts["after_ms"] / 1000)
            if facts["reason"] in _FAILURES and event.what != State.OFFLOADED.value:
                self._child(self._failures, facts["reason"]).inc()
        elif kind == TABLE:
            self._child(self._writes, event.what, facts["outcome"].value).inc()
            self._child(self._write_time, event.what).observe(facts["seconds"])
        elif kind == CONTROL:
            # Letters that the codec let through are few; anything else would make a series for each.
            self._child(self._commands, event.what if event.what in _COMMANDS else "other").observe(facts["seconds"])
        elif kind == RELAY:
            if facts["answered"]:
                self._child(self._relay_time, event.what).observe(facts["seconds"])
            else:
                self._child(self._relay_silent, event.what).inc()
        elif kind == CONFERENCE:
            self._child(self._conferences, event.what).inc()
        elif kind == NOTE and event.what == "ended":
            self._child(self._ended, facts["reason"]).inc()
            self._duration.observe(max(0.0, event.wall - facts["call"].created_wall))

    def quality(self, streams: list[dict[str, Any]]) -> None:
        """Count the quality of a call's RTP streams (quality.report.stream_quality) at its end."""
        for stream in streams:
            if stream["mos"] is not None:
                self._child(self._mos, stream["codec"]).observe(stream["mos"])
            elif stream["packets"]:
                self._child(self._unrated, "too-short" if "too few" in stream["note"] else "codec").inc()
            else:
                self._child(self._unrated, "not-measured").inc()
            if stream["loss_percent"] is not None:
                self._loss.observe(stream["loss_percent"] / 100)
            if stream["jitter_ms"] is not None:
                self._jitter.observe(stream["jitter_ms"] / 1000)

    def _child(self, metric: Any, *labels: str) -> Any:
        key = (metric, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child


_COMMANDS = frozenset({"U", "L", "D", "Q", "I", "G", "P", "S", "R", "C", "V", "VF", "X", "N"})
