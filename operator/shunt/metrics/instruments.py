"""Counters and histograms that the operator daemon feeds: quality of calls that ended, and what happened in conferences. The agent counts the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from shunt.events.bus import CONFERENCE, Event

KINDS = (CONFERENCE,)
_MOS = (1.5, 2.0, 2.5, 2.75, 3.0, 3.25, 3.5, 3.6, 3.75, 4.0, 4.1, 4.2, 4.3, 4.4, 4.5)
_LOSS = (0.0, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
_JITTER = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)


class Instruments:
    """Subscriber of the bus, for events of KINDS. `registry` is what /metrics shows of it."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        self._mos = Histogram("shunt_stream_mos", "MOS by the E-model (G.107) of streams that ended, where one could be computed", ["codec"], buckets=_MOS, registry=registry)
        self._loss = Histogram("shunt_stream_loss_ratio", "Share of lost packets of measured streams that ended", buckets=_LOSS, registry=registry)
        self._jitter = Histogram("shunt_stream_jitter_seconds", "Interarrival jitter (RFC 3550) of measured streams that ended", buckets=_JITTER, registry=registry)
        self._unrated = Counter("shunt_streams_unrated", "Streams that ended without a MOS, by cause", ["cause"], registry=registry)
        self._conferences = Counter("shunt_conference_events", "What happened in conferences: joined, left, source, target, downlink and others", ["what"], registry=registry)

    def __call__(self, event: Event) -> None:
        """Count one event."""
        self._conferences.labels(event.what).inc()

    def quality(self, streams: Sequence[dict[str, Any]]) -> None:
        """Count the quality of a call's RTP streams (quality.report.stream_quality) at its end."""
        for stream in streams:
            if stream["mos"] is not None:
                self._mos.labels(stream["codec"]).observe(stream["mos"])
            elif stream["packets"]:
                self._unrated.labels("too-short" if "too few" in stream["note"] else "codec").inc()
            else:
                self._unrated.labels("not-measured").inc()
            if stream["loss_percent"] is not None:
                self._loss.observe(stream["loss_percent"] / 100)
            if stream["jitter_ms"] is not None:
                self._jitter.observe(stream["jitter_ms"] / 1000)
