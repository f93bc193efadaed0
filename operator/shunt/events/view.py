"""Events as plain values for JSON, and as one line of text. No I/O."""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Any

from shunt.calls.reasons import REASONS
from shunt.calls.sdp import SdpMedia
from shunt.events.bus import CONTROL, LEARN, SIP, STATE, TABLE, Event
from shunt.net import Endpoint, FiveTuple

_COMMANDS = {"U": "offer", "L": "answer", "D": "delete", "Q": "query", "P": "play", "S": "stop playing", "R": "record", "C": "copy"}
_PHRASES = {
    "100": "Trying",
    "180": "Ringing",
    "181": "Forwarded",
    "183": "Session Progress",
    "200": "OK",
    "202": "Accepted",
    "302": "Moved Temporarily",
    "400": "Bad Request",
    "401": "Unauthorized",
    "403": "Forbidden",
    "404": "Not Found",
    "407": "Proxy Authentication Required",
    "408": "Request Timeout",
    "480": "Temporarily Unavailable",
    "481": "Call Does Not Exist",
    "486": "Busy Here",
    "487": "Request Terminated",
    "488": "Not Acceptable Here",
    "491": "Request Pending",
    "500": "Server Error",
    "503": "Service Unavailable",
    "504": "Server Time-out",
    "600": "Busy Everywhere",
    "603": "Decline",
}
VERDICTS = {
    "waiting": "not latched yet: a few more packets are needed",
    "known": "already the party's address; its entry was not installed yet",
    "contested": "two sources claim to be this party",
    "quarantined": "the old address, just after signalling changed it",
    "asymmetric": "this leg is declared asymmetric: only the signalled address counts",
    "latched": "latched: this is the party's source from now on",
    "moved": "the same stream from a new address: a NAT rebinding",
    "restored": "the former source again, after an injection",
    "asked-idle": "it depends on whether the latched source is silent",
    "source-mismatch": "another source has the stream: ignored",
    "scanner": "a source that sends to many ports: ignored",
    "former": "from the call that had this port before: ignored",
}
_COMMON = {
    "data-plane-up": "the data plane answers",
    "data-plane-down": "the data plane does not answer",
    "relay-up": "a relay answers again",
    "relay-down": "a relay does not answer",
    "data-plane-reset": "the data plane came back without its tables",
    "relay-reset": "a relay came back without its sessions",
    "data-plane-reconciled": "the data plane agrees with the plan",
    "agent-started": "the agent has started",
    "agent-stopped": "the agent has ended",
    "agent-active": "this agent is active now",
    "agent-standby": "this agent is a standby now",
    "agent-drain-begun": "the agent drains",
    "agent-drain-ended": "the agent no longer drains",
    "agent-audited": "the relay table was compared with the plan",
    "agent-journal-failed": "the journal cannot be written",
    "agent-journal-recovered": "the journal can be written again",
    "agent-late": "the agent's loop was late",
    "agent-limit": "a limit was reached",
    "events-missing": "events of the agent are missing here",
}
_NOTES = {
    "resumed": "signalling is complete: learning continues",
    "capture-begun": "a client captures the packets of the call",
    "capture-ended": "the capture has ended",
    "idle": "no packet matched this entry for its time-out",
    "moved": "the party moved to a new address",
    "media-timeout": "no media: the session ends, as it would on the relay",
}


def plain(value: Any) -> Any:
    """A fact as a JSON value: addresses as text, bytes as Latin-1 (the control protocol's), dataclasses as objects."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return value.decode("latin-1").strip("\r\n")
    if isinstance(value, (Endpoint, FiveTuple)):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, SdpMedia):
        return {name: plain(getattr(value, name)) for name in value.__slots__}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return str(value)


def _rewrite(value: tuple[Endpoint, Endpoint] | None) -> str | None:
    return None if value is None else f"{value[0]} > {value[1]}"


def title(event: Event) -> str:
    """What happened, in a few words."""
    facts = event.facts
    if event.kind == SIP:
        phrase = _PHRASES.get(event.what, "")
        return f"{event.what} {phrase}".strip() + (f" ({facts['cseq']})" if event.what.isdigit() and facts["cseq"] != "INVITE" else "")
    if event.kind == CONTROL:
        return f"{event.what} {_COMMANDS.get(event.what, '')}".strip()
    if event.kind == LEARN:
        return f"{(event.component or '').upper()} from {facts['source']}: {event.what}" + (f" ×{event.count}" if event.count > 1 else "")
    if event.kind == TABLE:
        return f"{event.what}: {facts['outcome']}"
    if event.kind == STATE:
        return event.what if event.what == facts["reason"] else f"{event.what}: {facts['reason']}"
    reason = facts.get("reason")
    return event.what + (f": {reason}" if reason else "")


def text(event: Event) -> str:
    """The rest of what is known of it, in a sentence."""
    facts = event.facts
    if event.kind == SIP:
        media = "; ".join(f"{line.kind} at {endpoint}" + (f", {line.direction}" if line.direction != "sendrecv" else "") for endpoint, line in zip(facts["sdp"], facts["lines"], strict=True))
        return f"{facts['source']} > {facts['destination']}" + (f"; SDP: {media}" if media else "")
    if event.kind == CONTROL:
        reply = "no reply" if facts["reply"] is None else f"reply {plain(facts['reply'])}"
        return f"{plain(facts['command'])} — {reply} after {facts['seconds'] * 1000:.1f} ms, relay {facts['relay'] or '?'}"
    if event.kind == LEARN:
        what = f"to relay port {facts['port']}, " + (f"payload type {facts['payload_type']}, SSRC {facts['ssrc']:08x}" if facts["version"] == 2 else "not RTP")
        return f"{what}; {VERDICTS.get(event.what, event.what)}"
    if event.kind == TABLE:
        words = str(facts["key"])
        if rewrite := _rewrite(facts.get("rewrite")):
            words += f" leaves as {rewrite}"
        if facts["detail"]:
            words += f"; the data plane says: {facts['detail']}"
        return f"{words}; {facts['seconds'] * 1000:.1f} ms"
    if event.kind == STATE:
        after = f" {facts['after_ms']:.1f} ms after both parties' first packet." if "after_ms" in facts else ""
        entry = f" Entry: {facts['entry']}." if "entry" in facts else ""
        return f"was {facts['before']}. {REASONS.get(facts['reason'], '')}{after}{entry}" + (f" {facts['detail']}" if facts["detail"] else "")
    if event.what in _COMMON:
        return f"{_COMMON[event.what]}{': ' if facts.get('detail') else ''}{facts.get('detail') or ''}"
    if event.what == "moved":
        return f"from {facts['before']} to {facts['source']}"
    if event.what in ("suspended", "released", "ended") and facts.get("reason") in REASONS:
        return REASONS[facts["reason"]]
    return _NOTES.get(event.what, "")


def stream_name(event: Event) -> str | None:
    """Whose stream, where the event is about one: "caller->callee rtp"."""
    if event.party is None:
        return None
    if event.component is None:
        return event.party
    return f"{event.party}->{'callee' if event.party == 'caller' else 'caller'} {event.component}"


def event_view(event: Event, begin: float) -> dict[str, Any]:
    """One event for JSON. begin: when the history's first event was; after_ms counts from there."""
    facts = {name: plain(value) for name, value in event.facts.items() if name not in ("call", "rewrite")}
    if "rewrite" in event.facts:
        facts["rewrite"] = _rewrite(event.facts["rewrite"])
    return {
        "after_ms": round((event.at - begin) * 1000, 3),
        "time": datetime.fromtimestamp(event.at, UTC).isoformat(timespec="microseconds"),
        "kind": event.kind,
        "what": event.what,
        "media": event.media,
        "party": event.party,
        "component": event.component,
        "stream": stream_name(event),
        "title": title(event),
        "text": text(event),
        "count": event.count,
        "until_ms": round((event.until - begin) * 1000, 3) if event.count > 1 else None,
        "facts": facts,
    }


def one_line(event: Event) -> str:
    """An event as a line for a log."""
    words = [f"[{event.kind}]"]
    if event.media is not None:
        words.append(f"media {event.media}")
    if (name := stream_name(event)) is not None:
        words.append(name)
    rest = text(event)
    return " ".join(words) + f" {title(event)}" + (f" — {rest}" if rest else "")
