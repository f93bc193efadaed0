"""The history of one call, and what it means in words. Pure functions: what has to be asked for is handed in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shunt.calls.facts import Call, Leg, Line, Stream
from shunt.calls.kinds import SIDES, Component, Side, State
from shunt.calls.sdp import SdpMedia
from shunt.calls.view import StreamKey
from shunt.events import diagnosis
from shunt.events.bus import CONTROL, LEARN, NOTE, SIP, STATE, Event
from shunt.events.diagnosis import Evidence, Finding
from shunt.events.view import event_view

_LATCHED = frozenset({"known", "latched", "moved", "restored"})
_LATE_S = 0.4  # less than T1 (RFC 3261 section 17.1.1.1), after which a request is sent again


def in_sip_order(events: Sequence[Event]) -> list[Event]:
    """The events with those of SIP in the order of their transactions.

    Copies come from several processes of a SIP server, each when it has done its work: that of a forwarded INVITE may come after the answer's. Such a copy gets
    the place, and the time, of the message before which it must have been sent.
    """
    found: list[Event] = []
    for event in events:
        at = len(found)
        if event.kind == SIP:
            # Requests and responses of one sender's CSeq, as far back as a copy can be late.
            for place in range(len(found) - 1, -1, -1):
                before = found[place]
                if event.at - before.at > _LATE_S:
                    break
                if before.kind == SIP and before.facts["from_tag"] == event.facts["from_tag"] and _place_in_dialog(before) > _place_in_dialog(event):
                    at = place
        found.insert(at, event if at == len(found) else replace(event, at=found[at].at, until=0.0))
    return found


def _place_in_dialog(event: Event) -> tuple[int, int]:
    """The number of its CSeq; request, provisional response, final response, ACK. A 100 is of one hop, and says nothing of what was forwarded."""
    if event.what.isdigit():
        phase = 0 if event.what == "100" else 1 if int(event.what) < 200 else 2
    else:
        phase = 3 if event.what == "ACK" else 0
    return event.facts["cseq_number"] or 0, phase


def ended_calls(events: Sequence[Event]) -> dict[str, Call]:
    """The calls whose end is among the events, by Call-ID. Lines that ended one after another are put together."""
    found: dict[str, Call] = {}
    for event in events:
        if event.kind != NOTE or event.what != "ended":
            continue
        call: Call = event.facts["call"]
        before = found.get(call.call_id)
        ended = {(line.from_tag, line.media) for line in call.lines}
        kept = () if before is None or before.created != call.created else before.lines
        found[call.call_id] = replace(call, lines=[*(line for line in kept if (line.from_tag, line.media) not in ended), *call.lines])
    return found


def last_known(call_id: str, events: Sequence[Event]) -> Call:
    """A call that has not ended, as its events last told it: relay ports, sources and states. What no event tells, as counters, is not known."""
    relay, created = "", events[0].at if events else 0.0
    legs: dict[tuple[int | None, Side], Leg] = {}
    streams: dict[tuple[int | None, Side, Component], Stream] = {}
    for event in events:
        if event.kind == CONTROL:
            relay = event.facts["relay"] or relay
        if event.call_id != call_id or event.party is None or event.component is None:
            continue
        side, component = Side(event.party), Component(event.component)
        if event.kind == LEARN and component is Component.RTP:
            leg = legs.get((event.media, side), Leg())
            legs[event.media, side] = replace(leg, relay=event.facts["port"], latched=event.facts["source"] if event.what in _LATCHED else leg.latched)
        elif event.kind == STATE:
            streams[event.media, side, component] = Stream(side, component, State(event.what), event.facts["reason"], event.at, event.facts["detail"], was_offloaded=True, counted=False)
    lines = []
    for media in dict.fromkeys([*(media for media, _ in legs), *(media for media, _, _ in streams)]):
        lines.append(Line("", None, media, {side: legs.get((media, side), Leg()) for side in SIDES}, [stream for (index, _, _), stream in streams.items() if index == media]))
    return Call(call_id, relay, created, lines, "the agent does not answer")


def times_to_offload(events: Sequence[Event], call_id: str) -> dict[StreamKey, float]:
    """From both parties' first packet to the entry, in ms, of each stream of a call whose events say so."""
    return {(event.media, event.party or "", event.component or ""): event.facts["after_ms"] for event in events if event.kind == STATE and event.call_id == call_id and "after_ms" in event.facts}


def uncertainty(call: Call) -> str:
    """Why nobody knows whether media of a running call flows now; "" if that is known."""
    if call.counters_error is not None:
        return f"the counters could not be read ({call.counters_error})"
    offloaded = [stream for line in call.lines for stream in line.streams if stream.state is State.OFFLOADED and stream.component is Component.RTP]
    if any(stream.idle_s is None for stream in offloaded):
        return "the agent does not tell when the last packet came"
    return ""


def on_relay(before: Call, after: Call) -> frozenset[tuple[int | None, str]]:
    """Returns media index and party of those whose packets the relay counted between two queries."""
    counted = {(line.media, side.value): leg.relay_packets for line in before.lines for side, leg in line.legs.items()}
    return frozenset(
        (line.media, side.value)
        for line in after.lines
        for side, leg in line.legs.items()
        if leg.relay_packets is not None and (known := counted.get((line.media, side.value))) is not None and leg.relay_packets > known
    )


def seems_silent(call: Call) -> bool:
    """Whether a stream of a running call has an entry that meets nothing while the relay has counted packets of it: the relay is to be asked again."""
    return any(
        stream.component is Component.RTP and stream.state is State.OFFLOADED and (stream.idle_s or 0.0) >= diagnosis.SILENT_S and line.legs[stream.sender].relay_packets
        for line in call.lines
        if line.released is None
        for stream in line.streams
    )


def diagnose(call: Call, events: Sequence[Event], now: float, traces: Mapping[str, Mapping[str, str]], rising: Collection[tuple[int | None, str]] = (), host: Sequence[str] = ()) -> list[Finding]:
    """Judge a call that runs or is over. now: Unix time; traces, rising, host: as of diagnosis.Evidence."""
    sdp: dict[tuple[int | None, str], SdpMedia] = dict(diagnosis.directions_of(events))
    for line in call.lines:
        sdp |= {(line.media or 1, side.value): leg.sdp for side, leg in line.legs.items() if leg.sdp is not None}
    return diagnosis.diagnose(call, events, now, Evidence(sdp, traces, uncertainty(call), rising, host))


def as_json(call_id: str, events: Sequence[Event], *, left_out: int, findings: Sequence[Finding], fresh: bool, quality: Sequence[tuple[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """The answer of GET /v1/calls/CALL-ID/history. quality: of each media line, by Call-ID on the control channel."""
    begin = events[0].at if events else 0.0
    return {
        "call_id": call_id,
        "begin": event_view(events[0], begin)["time"] if events else None,
        "diagnosis": [finding.view() for finding in findings],
        "counters_fresh": fresh,
        "left_out": left_out,
        "quality": [{"call_id": name, "media": media} for name, media in quality],
        "events": [event_view(event, begin) | {"seq": event.seq or None} for event in events],
    }


def surrounded(events: list[Event], common: Sequence[Event]) -> list[Event]:
    """A call's events with those of the agent as a whole that fell into its time."""
    if not events:
        return events
    over = events[-1].at if any(event.kind == NOTE and event.what == "ended" for event in events) else float("inf")
    return sorted([*events, *(event for event in common if events[0].at <= event.at <= over)], key=lambda event: event.at)
