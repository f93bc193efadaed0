"""Calls as the admin API shows them, as facts (calls.facts). Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from shunt.calls import reasons
from shunt.calls.facts import Call, Entry, Hold, Leg, Line, Stream
from shunt.calls.kinds import SIDES, Component, Side, State
from shunt.calls.measurement import Measurement, beside_relay
from shunt.calls.sdp import SdpMedia
from shunt.net import Endpoint, FiveTuple


def endpoint(text: str | None) -> Endpoint | None:
    """An address of the admin API."""
    return None if text is None else Endpoint.parse(text)


def sdp_media(sdp: Mapping[str, Any] | None) -> SdpMedia | None:
    """A media line of an SDP body."""
    if sdp is None:
        return None
    formats = tuple((item["payload_type"], str(item["encoding"]).upper(), item["clock_rate"]) for item in sdp["formats"])
    return SdpMedia(sdp["medium"], sdp["direction"], formats, sdp["ptime_ms"], sdp["address"])


def measurement(counters: Mapping[str, Any] | None, relay_packets: int | None = None, host: str = "") -> Measurement | None:
    """The admin API's counters of a stream. relay_packets, host: as of beside_relay."""
    if counters is None:
        return None
    if counters["lost"] is None:
        return Measurement(counters["packets"], counters["bytes"])
    measured = Measurement(
        packets=counters["packets"],
        bytes=counters["bytes"],
        measured=counters["packets"],
        lost=counters["lost"],
        reordered=counters["reordered"] or 0,
        duplicates=counters["duplicates"] or 0,
        jitter_ms=counters["jitter_ms"],
        jitter_max_ms=counters["jitter_max_ms"],
    )
    return beside_relay(measured, relay_packets, host)


def entry(view: Mapping[str, Any] | None) -> Entry | None:
    """An entry of the admin API; None where it does not say how packets leave."""
    if view is None or view["new_source"] is None or view["new_destination"] is None:
        return None
    key = FiveTuple(Endpoint.parse(view["source"]), Endpoint.parse(view["destination"]))
    return Entry(key, Endpoint.parse(view["new_source"]), Endpoint.parse(view["new_destination"]))


# -- a call that runs ---------------------------------------------------------------------------------


def call_of_view(view: Mapping[str, Any], now: float, host: str = "") -> Call:
    """A call of the admin API's snapshots. now: when it was taken; host: why packets went past the data plane in its time."""
    lines = view["lines"]
    return Call(view["call"], lines[0]["relay"] if lines else "", view["started_us"] / 1e6, [_line(line, now, host) for line in lines], view["counters_error"])


def _line(view: Mapping[str, Any], now: float, host: str) -> Line:
    streams = [_stream(stream, now, view[stream["from"]]["relay_packets"], host) for stream in view["streams"]]
    contested = {stream.sender for stream in streams if stream.reason == reasons.CONTESTED and stream.component is Component.RTP}
    legs = {side: _leg(view[side.value], side in contested) for side in SIDES}
    return Line(view["from_tag"], view["to_tag"], view["media"], legs, streams, view["released"], _holds(view["holds"]), view["recorders"])


def _holds(views: Iterable[Mapping[str, Any]]) -> list[Hold]:
    return [Hold(view["reason"], view["command"], view["party"], view.get("selection"), view.get("subscription"), view["recording"], tuple(view["to"])) for view in views]


def _leg(view: Mapping[str, Any], contested: bool) -> Leg:
    return Leg(
        signalled=endpoint(view["signalled"]),
        relay=endpoint(view["relay_port"]),
        latched=endpoint(view["latched"]),
        latched_rtcp=endpoint(view["latched_rtcp"]),
        contested=contested,
        asymmetric=view["asymmetric"],
        source_mismatches=view["source_mismatches"],
        payload_types=dict(view["payload_types"]),
        sdp=sdp_media(view["sdp"]),
        relay_packets=view["relay_packets"],
        relay_packets_age_s=view["relay_packets_age_s"],
        sends_from=endpoint(view["sends_from"]),
        sends_to=endpoint(view["sends_to"]),
    )


def _stream(view: Mapping[str, Any], now: float, relay_packets: int | None, host: str) -> Stream:
    after_us = view.get("offloaded_after_us")
    return Stream(
        Side(view["from"]),
        Component(view["component"]),
        State(view["state"]),
        view["reason"],
        since=now - view["since_s"],
        detail=view["detail"] or "",
        installed=entry(view["entry"]),
        was_offloaded=view["was_offloaded"],
        offloaded_after_ms=None if after_us is None else after_us / 1000,
        measured=measurement(view["counters"], relay_packets, host),
        # What never had an entry carried nothing there.
        counted=view["counters"] is not None or not view["was_offloaded"],
        age_s=view["counters_age_s"],
        idle_s=view["idle_s"],
    )


# -- a call that is over ------------------------------------------------------------------------------


def call_of_end(call_id: str, facts: Mapping[str, Any], end: float) -> Call:
    """The call of an event `ended`. end: when it happened."""
    return Call(call_id, facts["relay"], facts["started_us"] / 1e6, [_ended_line(facts, line, end) for line in facts["lines"]])


def went_past(call: Call, host: str) -> Call:
    """The same call, in whose time packets went past the data plane. host: why; "": none did."""
    if not host:
        return call
    lines = [replace(line, streams=[stream if stream.measured is None else replace(stream, measured=beside_relay(stream.measured, None, host)) for stream in line.streams]) for line in call.lines]
    return replace(call, lines=lines)


def _ended_line(facts: Mapping[str, Any], line: Mapping[str, Any], end: float) -> Line:
    streams = [_ended_stream(side, component, line, end) for component in Component for side in SIDES]
    legs = {side: _ended_leg(line[side.value]) for side in SIDES}
    return Line(line.get("from_tag", facts["from_tag"]), line.get("to_tag", facts["to_tag"]), line["media"], legs, streams, line["reason"], _holds(line["recorded"]), line["recorders"])


def _ended_leg(party: Mapping[str, Any]) -> Leg:
    return Leg(
        signalled=endpoint(party["signalled"]),
        relay=endpoint(party["relay_port"]),
        latched=endpoint(party["source"]),
        source_mismatches=party["source_mismatches"],
        payload_types=dict(party["payload_types"]),
        sdp=sdp_media(party["sdp"]),
        relay_packets=party["relay_packets"],
    )


def _ended_stream(side: Side, component: Component, line: Mapping[str, Any], end: float) -> Stream:
    party = line[side.value]
    rtp = component is Component.RTP
    after_us = party["offloaded_after_us"] if rtp else None
    return Stream(
        side,
        component,
        State.RELEASED,
        line["reason"],
        since=end,
        was_offloaded=party["offloaded"] if rtp else party["rtcp"] is not None,
        offloaded_after_ms=None if after_us is None else after_us / 1000,
        measured=measurement(party[component.value], party["relay_packets"]),
    )
