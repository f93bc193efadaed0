"""Events of the admin API as events of the bus. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from shunt import admin
from shunt.calls import reasons
from shunt.calls.sdp import SdpMedia
from shunt.events.bus import CONFERENCE, CONTROL, LEARN, NOTE, SIP, STATE, TABLE, Event
from shunt.net import UNKNOWN, Endpoint, FiveTuple
from shunt.operator.calls import call_of_end, endpoint, sdp_media

MISSING = "events-missing"
"""What a note says where the agent's events have a gap."""
_ESCAPED = re.compile(r"\\(\\|x([0-9a-fA-F]{2}))")
_UNANSWERED = ("unacknowledged", "unavailable")
_Facts = dict[str, Any]


def raw(text: str) -> bytes:
    """The bytes that a text of the admin API stands for: a backslash is written twice, and bytes that are no UTF-8 as \\xNN."""
    found, last = bytearray(), 0
    for match in _ESCAPED.finditer(text):
        found += text[last : match.start()].encode("utf-8", "surrogateescape")
        found += b"\\" if match[2] is None else bytes.fromhex(match[2])
        last = match.end()
    return bytes(found + text[last:].encode("utf-8", "surrogateescape"))


def bus_event(event: admin.Event) -> Event:
    """An event as the bus has it."""
    at = event.time.timestamp()
    kind, what, facts, call_id = _READERS.get(event.kind, _other)(event, at)
    count = facts.pop("count", 1)
    return Event(kind, call_id, what, at, event.media, event.party, event.component, facts, count, at, event.epoch, event.seq)


def gap_event(start: int, first: int, reason: str, at: float) -> Event:
    """A note that events from `start` up to, and without, `first` are missing. at: Unix time."""
    return Event(NOTE, "", MISSING, at, None, None, None, {"reason": reason, "detail": f"numbers {start} to {first - 1}, {reason}"})


_Read = tuple[str, str, _Facts, str]


def _sip(event: admin.Event, at: float) -> _Read:
    facts = event.facts
    lines: list[_Facts] = facts["sdp"] or []
    what = str(facts["method"]) if facts.get("method") is not None else str(facts["status"])
    found: _Facts = {
        "source": endpoint(facts["source"]) or UNKNOWN,
        "destination": endpoint(facts["destination"]) or UNKNOWN,
        "cseq": facts["cseq_method"],
        "cseq_number": facts["cseq"],
        "from_tag": facts["from_tag"] or "",
        "to_tag": facts["to_tag"],
        "sdp": tuple(_place(line) for line in lines),
        "lines": tuple(sdp_media(line) or SdpMedia("") for line in lines),
    }
    found |= {name: facts[name] for name in ("phrase", "from", "to", "user_agent", "reason", "request_uri") if facts.get(name) is not None}
    return SIP, what, found, event.call or ""


def _place(line: _Facts) -> Endpoint:
    return UNKNOWN._replace(port=line["port"]) if line["address"] is None else Endpoint.of(line["address"], line["port"])


def _control(event: admin.Event, at: float) -> _Read:
    facts = event.facts
    reply = facts["reply"]
    found = {"command": raw(facts["command"]), "reply": None if reply is None else raw(reply), "relay": facts["relay"], "seconds": facts["took_us"] / 1e6}
    return CONTROL, facts["verb"] or "?", found, event.call or ""


def _learn(event: admin.Event, at: float) -> _Read:
    facts = event.facts
    found = {
        "source": Endpoint.parse(facts["source"]),
        "port": Endpoint.parse(facts["port"]),
        "ssrc": facts["ssrc"],
        "seq": facts["sequence"],
        "payload_type": facts["payload_type"],
        "version": 0 if facts["payload_type"] is None else 2,
        "count": facts["count"],
    }
    return LEARN, facts["verdict"], found, event.call or ""


def _state(event: admin.Event, at: float) -> _Read:
    facts = event.facts
    found = {"reason": facts["reason"], "before": facts["before"], "detail": facts.get("detail") or ""}
    if facts.get("after_us") is not None:
        found["after_ms"] = facts["after_us"] / 1000
    if facts.get("entry") is not None:
        found["entry"] = _entry_text(facts["entry"])
    if facts.get("counters") is not None:
        found["counters"] = facts["counters"]
    return STATE, facts["state"], found, event.call or ""


def _entry_text(entry: _Facts) -> str:
    return f"{entry['source']} > {entry['destination']} leaves as {entry['new_source']} > {entry['new_destination']}"


def _table(event: admin.Event, at: float) -> _Read:
    facts, entry = event.facts, event.facts["entry"]
    leaves = None if entry["new_source"] is None else (Endpoint.parse(entry["new_source"]), Endpoint.parse(entry["new_destination"]))
    found = {
        "key": FiveTuple(Endpoint.parse(entry["source"]), Endpoint.parse(entry["destination"])),
        "rewrite": leaves,
        "outcome": reasons.DATA_PLANE_UNAVAILABLE if facts["outcome"] in _UNANSWERED else facts["outcome"],
        "detail": facts.get("detail") or (facts["outcome"] if facts["outcome"] == "unacknowledged" else ""),
        "seconds": facts["took_us"] / 1e6,
    }
    return TABLE, facts["operation"], found, event.call or ""


def _call(event: admin.Event, at: float) -> _Read:
    facts = {name: value for name, value in event.facts.items() if name != "what" and value is not None}
    return NOTE, event.facts["what"], facts, event.call or ""


def _ended(event: admin.Event, at: float) -> _Read:
    facts, call_id = event.facts, event.call or ""
    return NOTE, "ended", {"reason": facts["reason"], "duration_s": facts["duration_s"], "number": facts.get("number"), "call": call_of_end(call_id, facts, at)}, call_id


def _link(event: admin.Event, at: float) -> _Read:
    facts = event.facts
    return NOTE, f"{event.kind}-{facts['what']}", {"detail": ": ".join(filter(None, (facts["name"], facts.get("detail"))))}, ""


def _agent(event: admin.Event, at: float) -> _Read:
    facts = dict(event.facts)
    what = facts.pop("what")
    return NOTE, f"agent-{what}", facts, ""


def _conference(event: admin.Event, at: float) -> _Read:
    facts = dict(event.facts)
    return CONFERENCE, facts.pop("what"), facts, ""


def _other(event: admin.Event, at: float) -> _Read:
    """A kind that a newer agent knows."""
    return NOTE, event.kind, dict(event.facts), event.call or ""


_READERS: dict[str, Callable[[admin.Event, float], _Read]] = {
    "sip": _sip,
    "control": _control,
    "learn": _learn,
    "state": _state,
    "table": _table,
    "call": _call,
    "ended": _ended,
    "relay": _link,
    "data-plane": _link,
    "agent": _agent,
    "conference": _conference,
}
