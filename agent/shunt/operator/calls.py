"""Calls as the admin API shows them, in the form that diagnosis, quality and records read (calls.facts). Pure functions.

All times are Unix times in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shunt.calls import reasons
from shunt.calls.kinds import SIDES, Component, Side, State
from shunt.hep.sip import SdpMedia
from shunt.net import Endpoint, FiveTuple
from shunt.quality.score import Measurement
from shunt.tables.entry import RelayEntry, StreamStats

_NOWHERE = (bytes(4), bytes(16))


@dataclass(frozen=True, slots=True)
class Latched:
    """Where one party's packets of a component come from. vouched: the agent in Python tells it, shunt-agent does not."""

    learned: Endpoint | None
    contested: bool = False
    vouched: bool | None = None


@dataclass(frozen=True, slots=True)
class Leg:
    """A party of a media line. sdp: the last SDP seen of it."""

    side: Side
    signalled: Endpoint | None
    relay: Endpoint | None
    asymmetric: bool
    strays: int
    payload_types: Mapping[int, int]
    rtp: Latched
    rtcp: Latched
    sdp: SdpMedia | None

    @property
    def held(self) -> bool:
        """Whether the signalled address is one that nobody can send to."""
        return self.signalled is not None and (self.signalled.addr in _NOWHERE or self.signalled.port == 0)


@dataclass(frozen=True, slots=True)
class Stream:
    """One direction of one component.

    past and measured have all that its entries counted, the present one too. counted: whether that is known; age_s: how old it is, None: not known;
    idle_s: seconds since the last packet that met its entry, None: not known.
    """

    sender: Side
    component: Component
    state: State
    reason: str
    detail: str
    since: float
    installed: RelayEntry | None
    was_offloaded: bool
    offloaded_after_ms: float | None
    idle_since: float | None
    past: StreamStats
    measured: Measurement
    counted: bool
    age_s: float | None
    idle_s: float | None
    live: StreamStats | None = None


@dataclass(slots=True)
class Line:
    """A media line."""

    call: Call
    tag: str
    other_tag: str | None
    media: int | None
    created: float
    legs: dict[Side, Leg]
    streams: list[Stream]
    released: str | None
    relay_counts: dict[Side, int] = field(default_factory=dict)
    relay_counts_age_s: float | None = None

    @property
    def answered(self) -> bool:
        """Whether both parties have a relay port."""
        return all(leg.relay is not None for leg in self.legs.values())

    def stream(self, sender: Side, component: Component) -> Stream:
        """One of its streams; one without packets where the agent shows none, as for RTCP that is muxed."""
        for stream in self.streams:
            if stream.sender is sender and stream.component is component:
                return stream
        return _absent(sender, component, self.created)


@dataclass(slots=True)
class Call:
    """A call on one relay."""

    call_id: str
    relay: str
    created: float
    lines: list[Line] = field(default_factory=list)
    counters_error: str | None = None

    @property
    def created_wall(self) -> float:
        """The same as created."""
        return self.created

    def sdp(self, media: int | None) -> SdpMedia | None:
        """An SDP of a media line, the caller's where both are known."""
        for line in self.lines:
            if line.media == media:
                return line.legs[Side.CALLER].sdp or line.legs[Side.CALLEE].sdp
        return None


def endpoint(text: str | None) -> Endpoint | None:
    """An address of the admin API."""
    return None if text is None else Endpoint.parse(text)


def sdp_media(sdp: Mapping[str, Any] | None) -> SdpMedia | None:
    """A media line of an SDP body."""
    if sdp is None:
        return None
    formats = tuple((item["payload_type"], str(item["encoding"]).upper(), item["clock_rate"]) for item in sdp["formats"])
    return SdpMedia(sdp["medium"], sdp["direction"], formats, sdp["ptime_ms"])


def _us(ms: float | None) -> int | None:
    return None if ms is None else round(ms * 1000)


def counted(counters: Mapping[str, Any] | None) -> tuple[StreamStats, Measurement]:
    """The admin API's counters, as statistics and as a measurement; None: nothing was counted."""
    if counters is None:
        return StreamStats(), Measurement()
    packets, jitter = counters["packets"], _us(counters["jitter_ms"])
    stats = StreamStats(
        packets=packets, bytes=counters["bytes"], lost=counters["lost"], reordered=counters["reordered"], duplicates=counters["duplicates"], jitter_us=jitter
    )
    measured = Measurement()
    measured.add(stats)
    measured.jitter_us_max = max(measured.jitter_us_max, _us(counters["jitter_max_ms"]) or 0)
    return stats, measured


def _entry(entry: Mapping[str, Any] | None) -> RelayEntry | None:
    if entry is None or entry["new_source"] is None or entry["new_destination"] is None:
        return None
    key = FiveTuple(Endpoint.parse(entry["source"]), Endpoint.parse(entry["destination"]))
    return RelayEntry(key, Endpoint.parse(entry["new_source"]), Endpoint.parse(entry["new_destination"]))


def _absent(sender: Side, component: Component, created: float) -> Stream:
    return Stream(
        sender, component, State.RELEASED, reasons.RELEASED, "", created, None, False, None, None, StreamStats(), Measurement(), counted=True, age_s=None, idle_s=None
    )


# -- a call that runs ---------------------------------------------------------------------------------


def call_of_view(view: Mapping[str, Any], now: float) -> Call:
    """A call of the admin API's snapshots. now: when it was taken."""
    lines = view["lines"]
    call = Call(view["call"], lines[0]["relay"] if lines else "", view["started_us"] / 1e6, counters_error=view["counters_error"])
    call.lines = [_line(call, line, now) for line in lines]
    return call


def _line(call: Call, view: Mapping[str, Any], now: float) -> Line:
    streams = [_stream(stream, now) for stream in view["streams"]]
    contested = {(stream.sender, stream.component) for stream in streams if stream.reason == reasons.CONTESTED}
    legs = {side: _leg(side, view[side.value], contested) for side in SIDES}
    counts = {side: view[side.value]["relay_packets"] for side in SIDES if view[side.value]["relay_packets"] is not None}
    age_s = view[Side.CALLER.value]["relay_packets_age_s"]
    return Line(call, view["from_tag"], view["to_tag"], view["media"], call.created, legs, streams, view["released"], counts, age_s)


def _leg(side: Side, view: Mapping[str, Any], contested: set[tuple[Side, Component]]) -> Leg:
    return Leg(
        side,
        signalled=endpoint(view["signalled"]),
        relay=endpoint(view["relay_port"]),
        asymmetric=view["asymmetric"],
        strays=view["source_mismatches"],
        payload_types=dict(view["payload_types"]),
        rtp=Latched(endpoint(view["latched"]), (side, Component.RTP) in contested),
        rtcp=Latched(endpoint(view["latched_rtcp"]), (side, Component.RTCP) in contested),
        sdp=sdp_media(view["sdp"]),
    )


def _stream(view: Mapping[str, Any], now: float) -> Stream:
    past, measured = counted(view["counters"])
    return Stream(
        Side(view["from"]),
        Component(view["component"]),
        State(view["state"]),
        view["reason"],
        view["detail"] or "",
        since=now - view["since_s"],
        installed=_entry(view["entry"]),
        was_offloaded=view["was_offloaded"],
        offloaded_after_ms=None if (after_us := view.get("offloaded_after_us")) is None else after_us / 1000,
        idle_since=None if view["idle_s"] is None else now - view["idle_s"],
        past=past,
        measured=measured,
        # What never had an entry carried nothing there.
        counted=view["counters"] is not None or not view["was_offloaded"],
        age_s=view["counters_age_s"],
        idle_s=view["idle_s"],
    )


# -- a call that is over ------------------------------------------------------------------------------


def call_of_end(call_id: str, facts: Mapping[str, Any], end: float) -> Call:
    """The call of an event `ended`. end: when it happened."""
    call = Call(call_id, facts["relay"], facts["started_us"] / 1e6)
    call.lines = [_ended_line(call, facts, line, end) for line in facts["lines"]]
    return call


def _ended_line(call: Call, facts: Mapping[str, Any], line: Mapping[str, Any], end: float) -> Line:
    streams = [_ended_stream(side, component, line, end) for component in Component for side in SIDES]
    legs = {side: _ended_leg(side, line[side.value]) for side in SIDES}
    counts = {side: line[side.value]["relay_packets"] for side in SIDES if line[side.value]["relay_packets"] is not None}
    return Line(call, line.get("from_tag", facts["from_tag"]), line.get("to_tag", facts["to_tag"]), line["media"], call.created, legs, streams, line["reason"], counts)


def _ended_leg(side: Side, party: Mapping[str, Any]) -> Leg:
    return Leg(
        side,
        signalled=endpoint(party["signalled"]),
        relay=endpoint(party["relay_port"]),
        asymmetric=False,
        strays=party["source_mismatches"],
        payload_types=dict(party["payload_types"]),
        rtp=Latched(endpoint(party["source"])),
        rtcp=Latched(None),
        sdp=sdp_media(party["sdp"]),
    )


def _ended_stream(side: Side, component: Component, line: Mapping[str, Any], end: float) -> Stream:
    party = line[side.value]
    past, measured = counted(party[component.value])
    rtp = component is Component.RTP
    after_us = party["offloaded_after_us"] if rtp else None
    return Stream(
        side,
        component,
        State.RELEASED,
        line["reason"],
        "",
        since=end,
        installed=None,
        was_offloaded=party["offloaded"] if rtp else party["rtcp"] is not None,
        offloaded_after_ms=None if after_us is None else after_us / 1000,
        idle_since=None,
        past=past,
        measured=measured,
        counted=True,
        age_s=None,
        idle_s=None,
    )
