"""One call in plain words, from what the REST API says of it: for terminals, the page and tickets. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from shunt.calls.facts import Hold
from shunt.calls.reasons import REASONS

MARKS = {"problem": "!!", "hint": " !", "ok": "  "}
"""What stands before a finding of each level."""
KINDS = {"sip": "SIP", "control": "rtpproxy", "learn": "learn", "table": "table", "state": "state", "note": "agent"}
"""What the kinds of events are called."""
OLD_COUNTERS = "The counters could not be read now: those shown are older."
_AT_ONCE_MS = 20.0
_REPORTED = 60  # events in a report
_TAG = 12  # characters of a subscription's tag, of which rtpengine's have 64


def printable(text: Any) -> str:
    """Text from the network as it may be shown: control characters, overrides of the direction of writing and the like are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def duration(seconds: float) -> str:
    """750 ms, 12.5 s, 1 min 15 s, 2 h 03 min, 3 d 4 h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def size(number: int) -> str:
    """Bytes in decimal units."""
    value, units = float(number), ["B", "kB", "MB", "GB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def count(number: int, noun: str) -> str:
    """1 call, 2 calls."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


# -- where each stream is, and why --------------------------------------------------------------------


def why_lines(call: Mapping[str, Any]) -> list[str]:
    """Everything about one call (GET /v1/calls/CALL-ID)."""
    ended = ", ended" if call.get("ended") else ""
    lines = [f"Call {call['call_id']} on relay {call['relay']}, begun {call['created']}, {duration(call['age_s'])} ago{ended}"]
    for media in call.get("quality") or []:
        where = "" if media["index"] is None else f", media {media['index']}"
        for side in ("caller", "callee"):
            if media[side]["mos"] is not None:
                lines.append(f"Speech from the {side}{where}: MOS {media[side]['mos']:.2f} ({media[side]['codec']}, G.107)")
    lines.append(f"From tag {call['from_tag'] or '-'}, to tag {call['to_tag'] or '-'}")
    if not call["media"]:
        lines.append("No media line: no relay port has been asked for yet.")
    for media in call["media"]:
        lines += ["", f"Media {media['index'] if media['index'] is not None else '(only one)'}"]
        lines += [f"  {side}: {_leg(media['legs'].get(side) or {})}" for side in ("caller", "callee")]
        lines += _holds(media)
        lines += [line for stream in media["streams"] for line in _stream(stream)]
    return lines


def hold_text(hold: Hold) -> str:
    """What the relay does to the media, for whom, by which command, and where copies go."""
    named = hold.reason if hold.subscription is None else f"{hold.reason} {hold.subscription[:_TAG]}{'…' if len(hold.subscription) > _TAG else ''}"
    whose = f" of the {hold.party}" if hold.party else f" ({hold.selection})" if hold.selection else ""
    by = f" by {hold.command}" if hold.command else ", begun past the agent"
    to = f", to {', '.join(hold.to)}" if hold.to else ", to an unknown address" if hold.subscription is not None else ""
    return f"{named}{whose}{by}{to}"


def _holds(media: Mapping[str, Any]) -> list[str]:
    held = media.get("held_by") or []
    recorded = f"  recorded: {count(media['recorders'], 'recorder')}" if held and media["recorders"] else ""
    return [*([recorded] if recorded else []), *(f"    {hold['text']}" for hold in held if hold["recording"]), *(f"  held on the relay: {hold['text']}" for hold in held if not hold["recording"])]


def _leg(leg: Mapping[str, Any]) -> str:
    signalled, learned, relay = leg.get("signalled"), leg.get("learned"), leg.get("relay_address")
    if learned is None:
        heard = "no source latched yet"
    else:
        heard = f"sends from {learned} ({'as signalled' if learned == signalled else 'not as signalled'})"
    rtcp = f", RTCP from {leg['learned_rtcp']}" if leg.get("learned_rtcp") else ""
    elsewhere = f" (but {leg['sends_from']} sends to {leg['sends_to']})" if leg.get("sends_to") else ""
    counted = leg.get("relay_packets")
    carried = "" if not counted else f"; the relay has counted {counted} packets of it{_age(leg.get('relay_packets_age_s'))}"
    others = "" if not leg.get("source_mismatches") else f"; {count(leg['source_mismatches'], 'packet')} came there from other sources"
    return f"signalled {signalled or '-'}; {heard}{rtcp}; told to send to relay port {relay or '-'}{elsewhere}{others}{carried}"


def _age(seconds: float | None) -> str:
    return "" if not seconds else f", {duration(seconds)} ago"


def _stream(stream: Mapping[str, Any]) -> list[str]:
    lines = [f"  {stream['direction']} {stream['component'].upper()}: {stream['state']} for {duration(stream['since_s'])}, reason {stream['reason']}"]
    if explanation := stream.get("explanation") or REASONS.get(stream["reason"], ""):
        lines.append(f"    {explanation}")
    if stream.get("detail"):
        lines.append(f"    detail: {stream['detail']}")
    if stream.get("key"):
        lines.append(f"    entry: {stream['key']} leaves as {stream.get('rewrite')}")
    if stream["packets"] or stream.get("key"):
        idle = "" if stream.get("idle_ms") is None else f", the last {duration(stream['idle_ms'] / 1000)} ago"
        carried = "packets not known" if stream["packets"] is None else f"{stream['packets']} packets, {size(stream['bytes'] or 0)}"
        lines.append(f"    data plane: {carried}{_age(stream.get('counters_age_s')) if stream['packets'] is not None else ''}{idle}")
        if reception := _reception(stream):
            lines.append(f"    quality: {reception}")
    return lines


def _reception(stream: Mapping[str, Any]) -> str:
    words = []
    if (lost := stream.get("lost")) is not None:
        expected = lost + (stream["packets"] or 0)
        words.append(f"{lost} lost" + (f" ({100 * lost / expected:.2f} %)" if expected else ""))
    words += [f"{stream[name]} {name}" for name in ("reordered", "duplicates") if stream.get(name) is not None]
    if stream.get("jitter_ms") is not None:
        words.append(f"jitter {stream['jitter_ms']:.2f} ms")
    return ", ".join(words)


# -- what happened ------------------------------------------------------------------------------------


def quality_lines(history: Mapping[str, Any]) -> list[str]:
    """The quality of each stream of a call's history (GET /v1/calls/CALL-ID/history)."""
    return [_quality(media, side) for call in history["quality"] for media in call["media"] for side in ("caller", "callee")]


def _quality(media: Mapping[str, Any], side: str) -> str:
    stream = media[side]
    number = "" if media["index"] is None else f" {media['index']}"
    name = f"{media['kind'] or 'media'}{number} from the {side}: "
    if stream["packets"] is None:
        return f"{name}{stream['note']}"
    words = [f"{stream['packets']} packets, {size(stream['bytes'])} in the data plane"]
    if stream["loss_percent"] is not None:
        words.append(f"{stream['lost']} lost ({stream['loss_percent']:.2f} %)")
    if stream["jitter_ms"] is not None:
        words.append(f"jitter {stream['jitter_ms']:.2f} ms")
    if stream["codec"]:
        words.append(stream["codec"])
    words.append(f"MOS {stream['mos']:.2f} (R {stream['r']:.1f})" if stream["mos"] is not None else f"no MOS: {stream['note']}")
    return name + ", ".join(words)


def event_lines(events: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Kind, time with stream, title and text of each event; what happened to several streams of a media line at once is one."""
    events = _together(events)
    width = max((len(event["stream"] or "") for event in events), default=0)
    return [
        (event["kind"], f"{event['time'][11:23]} {event['after_ms'] / 1000:+9.3f}s  {KINDS.get(event['kind'], event['kind']):<8}  {event['stream'] or '':<{width}}  ", event["title"], event["text"])
        for event in events
    ]


def _together(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for event in events:
        last = found[-1] if found else None
        alike = last is not None and event["kind"] == "state" and all(event[name] == last[name] for name in ("kind", "title", "text", "media"))
        if alike and last is not None and event["after_ms"] - last["after_ms"] < _AT_ONCE_MS:
            last["stream"] = f"{last['streams'] + 1} streams"
            last["streams"] += 1
        else:
            found.append({**event, "streams": 1})
    return found


# -- for a ticket -------------------------------------------------------------------------------------


def report(history: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], signalling: Mapping[str, Any] | None, health: Mapping[str, Any], *, now: str, version: str) -> str:
    """All that is known of a call. calls: as GET /v1/calls/CALL-ID gives them; signalling: as GET /v1/find, None: no SIP was seen; health: as GET /v1/health."""
    lines = [f"Call {history['call_id']}", f"Report of {now}, Shunt {version}", *_signalling(signalling), "", *_host(health), "", "Diagnosis"]
    lines += [f"{MARKS[finding['level']]} {finding['text']}" for finding in history["diagnosis"]]
    lines += [] if history["counters_fresh"] else [f"   {OLD_COUNTERS}"]
    lines += [f"   {line}" for line in quality_lines(history)]
    for call in calls:
        lines += ["", *why_lines(call)]
    events = [f"{head}{title}{f' — {text}' if text else ''}" for _, head, title, text in event_lines(history["events"])]
    lines += ["", "Events (UTC)", *events[: _REPORTED // 2]]
    if (passed := len(events) - _REPORTED) > 0:
        lines.append(f"… {passed} more: `shunt history` has them")
    lines += events[_REPORTED // 2 :][-_REPORTED // 2 :]
    if history["left_out"]:
        lines.append(f"{history['left_out']} events of the middle are not kept")
    return "".join(f"{printable(line).rstrip()}\n" for line in lines)


def _signalling(said: Mapping[str, Any] | None) -> list[str]:
    if said is None:
        return ["From, To and times of SIP: unknown, no copy of its SIP was seen"]
    if said["ended"] is None:
        end = "is up" if said["answered"] else "is not answered yet"
    else:
        end = f"ended {said['ended']} after {duration((datetime.fromisoformat(said['ended']) - datetime.fromisoformat(said['began'])).total_seconds())}"
        end += f", the {said['hung_up']} hung up" if said["hung_up"] else ""
    return [f"From {said['from'] or 'unknown'}", f"To {said['to'] or 'unknown'}", f"Began {said['began']}, final response {said['sip_code'] or 'none yet'}, {end}"]


def _host(health: Mapping[str, Any]) -> list[str]:
    found = [f"{MARKS['problem' if finding['severity'] == 'fail' else 'hint']} {finding['message']}" + _for(finding["since_s"]) for finding in health["findings"]]
    unknown = [f"   not known: {why} ({count(len(codes), 'check')}: {', '.join(codes)})" for why, codes in _by_why(health["unknown"]).items()]
    return ["Host", *(found or ["   no finding"]), *unknown]


def _for(seconds: float | None) -> str:
    return "" if seconds is None else f" (for {duration(seconds)})"


def _by_why(unknown: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in unknown:
        found.setdefault(one["message"], []).append(one["code"])
    return found
