"""What shunt-agent tells of a call, as docs/admin-api.md has it: its events in order, and snapshots of it.

Every field and every word of a closed set is looked up in that document, so a test cannot rest on something that no agent says.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shunt.admin import Event, model
from shunt.calls.reasons import REASONS
from shunt.events.bus import EventBus
from shunt.operator.events import bus_event

CALLER, CALLEE, RELAY = "192.0.2.2:6000", "198.51.100.3:7000", "203.0.113.10"
TO_CALLER, TO_CALLEE = f"{RELAY}:35000", f"{RELAY}:35002"
"""The relay ports that the caller and the callee send to."""
BEGIN = 1795522088.0
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "admin-api.md"
_WORDS = ("verdict", "operation", "outcome", "what")
_SETS = {"state": model.State, "before": model.State, "direction": model.Direction, "from": model.Party, "component": model.Component}
_OTHER = {"caller": "callee", "callee": "caller"}
JSON = dict[str, Any]


# -- the document -------------------------------------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    """All names that stand in code spans."""
    return frozenset(re.findall(r"[A-Za-z][\w-]*", " ".join(re.findall(r"`([^`]+)`", text))))


@functools.cache
def _documented() -> tuple[dict[str, frozenset[str]], frozenset[str]]:
    """The words that the document has for each kind of event, and for calls."""
    text = DOCUMENT.read_text(encoding="utf-8")
    calls = _words(text.split("\n## Calls\n")[1].split("\n## Commands\n")[0])
    shared = calls | _words(text.split("### The envelope")[1].split("### Kinds")[0])
    kinds = text.split("### Kinds")[1].split("\n## The log\n")[0]
    parts = re.split(r"\n\*\*(`[^*]+)\*\*", kinds)[1:]
    found: dict[str, frozenset[str]] = {}
    for names, words in zip(parts[::2], parts[1::2], strict=True):
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", names), _words(words))
    # Media lines of SDP are described with the kind sip.
    return {kind: words | shared | found["sip"] for kind, words in found.items()}, calls | found["sip"]


def _check(value: Any, words: frozenset[str], where: str) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            assert name in words, f"{where}: {name} is not in {DOCUMENT.name}"
            if inner is not None and (known := _known(name, words, where)) is not None:
                assert inner in known, f"{where}: {name} is never {inner}"
            _check(inner, words, where)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, words, where)


def _known(name: str, words: frozenset[str], where: str) -> typing.Collection[str] | None:
    """All values that a field can have; None: any."""
    if where == "sip":
        return None
    if name in _WORDS:
        return words
    if name == "reason":
        return REASONS
    return typing.get_args(_SETS[name]) if name in _SETS and where != "call" else None


def documented(kind: str, facts: JSON) -> JSON:
    """The same, if the document has it for this kind of event. Raises AssertionError."""
    kinds, _ = _documented()
    _check(facts, kinds[kind], kind)
    return facts


# -- events -------------------------------------------------------------------------------------------


class Telling:
    """The event stream of an agent, on a bus. `now` is when the next event happens: it moves with pause()."""

    def __init__(self, call: str = "c1") -> None:
        self.call, self.now, self.seq, self.over = call, BEGIN, 100, 0
        self.bus = EventBus()

    def pause(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def say(self, kind: str, facts: JSON, *, about: str | None = "", media: int | None = None, party: Any = None, component: Any = None) -> None:
        """One event. about: its call, None: the agent as a whole; this call by default."""
        self.seq += 1
        call = self.call if about == "" else about
        time = datetime.fromtimestamp(self.now, UTC)
        self.bus.publish(bus_event(Event(self.seq, 1, time, self.now - BEGIN, kind, documented(kind, facts), call, media, party, component)))

    def sip(self, start: str | int, *, cseq: str = "INVITE", tags: tuple[str, str | None] = ("A", "B"), sdp: list[JSON] | None = None, source: str = CALLER, **more: Any) -> None:
        """A SIP message: start is a method or a status."""
        first: JSON = {"method": start} if isinstance(start, str) else {"status": start, "phrase": None}
        ends: JSON = {"source": source, "destination": f"{RELAY}:5060", "from": "sip:alice@example.net", "to": "sip:bob@example.net"}
        self.say("sip", first | ends | {"cseq_method": cseq, "cseq": 1, "from_tag": tags[0], "to_tag": tags[1], "sdp": sdp} | more)

    def control(self, command: str, reply: str | None = "35000", *, media: int | None = 1, verb: str | None = None) -> None:
        """A command of the SIP server. verb: without it the command's first letter, as in the rtpproxy protocol."""
        self.say("control", {"verb": verb or command[0], "command": command, "reply": reply, "relay": "local", "peer": "127.0.0.1", "took_us": 190}, media=media)

    def learn(self, verdict: str, party: str = "caller", source: str | None = None, *, count: int = 1, rtp: bool = True, payload_type: int = 8, component: str = "rtp", media: int | None = 1) -> None:
        """A packet without an entry, and what learning made of it."""
        port = TO_CALLER if party == "caller" else TO_CALLEE
        what = {"ssrc": 17, "sequence": 3, "payload_type": payload_type} if rtp else dict.fromkeys(("ssrc", "sequence", "payload_type"))
        facts = {"verdict": verdict, "source": source or {"caller": CALLER, "callee": CALLEE}[party], "port": port, "count": count} | what
        self.say("learn", facts, media=media, party=party, component=component)

    def state(self, party: str, state: str, reason: str | None = None, *, before: str = "learning", component: str = "rtp", media: int | None = 1, **more: Any) -> None:
        """A stream changed: with its entry when it becomes offloaded."""
        facts: JSON = {"state": state, "before": before, "reason": reason or state, "detail": None}
        if state == "offloaded":
            facts |= {"entry": entry(party), "after_us": 8200}
        self.say("state", facts | more, media=media, party=party, component=component)

    def table(self, operation: str, outcome: str, party: str = "caller", **more: Any) -> None:
        """A write that failed."""
        facts = {"operation": operation, "entry": entry(party), "outcome": outcome, "detail": None, "took_us": 900}
        self.say("table", facts | more, media=1, party=party, component="rtp")

    def happened(self, what: str, *, party: str | None = None, **more: Any) -> None:
        """An event of kind `call`."""
        self.say("call", {"what": what} | more, media=1, party=party, component=None if party is None else "rtp")

    def link(self, kind: str, what: str, name: str = "local") -> None:
        """Of a relay, or the data plane."""
        self.say(kind, {"what": what, "name": name, "detail": None}, about=None)

    def ended(self, *lines: JSON, reason: str = "released", duration_s: float | None = None) -> None:
        """The call is over."""
        self.over += 1
        facts = {"number": self.over, "reason": reason, "relay": "local", "from_tag": "A", "to_tag": "B", "started_us": round(BEGIN * 1e6)}
        self.say("ended", facts | {"duration_s": self.now - BEGIN if duration_s is None else duration_s, "lines": list(lines)})

    def conversation(self, *, packets: int = 500, seconds: float = 60.0) -> None:
        """A whole call that is offloaded both ways: SIP, commands, packets, entries, its end."""
        self.sip("INVITE", tags=("A", None), sdp=[sdp(port=6000)])
        self.control(f"Uc0,8 {self.call} 192.0.2.2 6000 A;1")
        self.pause(2)
        self.control(f"Lc0,8 {self.call} 198.51.100.3 7000 A;1 B;1")
        self.sip(200, sdp=[sdp(port=7000, address="198.51.100.3")], source=CALLEE)
        self.pause(0.02)
        for party in ("caller", "callee"):
            self.learn("latched", party)
            self.state(party, "offloaded")
        self.pause(seconds)
        self.sip("BYE", cseq="BYE", tags=("B", "A"), source=CALLEE)
        self.control(f"D {self.call} A B", "0")
        for party in ("caller", "callee"):
            self.state(party, "released", before="offloaded", counters=counters(packets))
        self.ended(ended_line(rtp=counters(packets)))


def sdp(medium: str = "audio", direction: str = "sendrecv", *, address: str | None = "192.0.2.2", port: int = 6000, formats: tuple[tuple[int, str, int], ...] = ()) -> JSON:
    """A media line of an SDP body."""
    listed = [{"payload_type": number, "encoding": name, "clock_rate": rate} for number, name, rate in formats]
    return {"medium": medium, "address": address, "port": port, "direction": direction, "formats": listed, "ptime_ms": None, "rtcp_mux": False}


def entry(party: str = "caller") -> JSON:
    """The entry of a party's stream."""
    ports = {"caller": TO_CALLER, "callee": TO_CALLEE}
    addresses = {"caller": CALLER, "callee": CALLEE}
    return {"source": addresses[party], "destination": ports[party], "new_source": ports[_OTHER[party]], "new_destination": addresses[_OTHER[party]]}


def counters(packets: int, **more: Any) -> JSON:
    """Counters of a stream."""
    return {"packets": packets, "bytes": packets * 200, "lost": 0, "reordered": 0, "duplicates": 0, "jitter_ms": 0.5, "jitter_max_ms": 2.5} | more


def ended_party(party: str, **more: Any) -> JSON:
    """A party of a media line that is over."""
    address, port = (CALLER, TO_CALLER) if party == "caller" else (CALLEE, TO_CALLEE)
    made: JSON = {"signalled": address, "source": address, "relay_port": port, "rtp": None, "rtcp": None, "relay_packets": None, "payload_types": [[8, 6]], "sdp": None}
    made |= {"offloaded": more.get("rtp") is not None, "offloaded_after_us": 8200 if more.get("rtp") is not None else None, "source_mismatches": 0}
    return made | more


def silent(party: str) -> JSON:
    """A party of a media line that is over, which has sent nothing."""
    return ended_party(party, source=None, payload_types=[])


def hold(reason: str, command: str | None, party: str | None = None, *to: str, **more: Any) -> JSON:
    """Something that the relay does to a line's media."""
    recording = reason in ("recording", "copy", "forwarding", "subscription")
    return {"reason": reason, "command": command, "party": party, "recording": recording, "to": list(to)} | more


def ended_line(
    media: int | None = 1, *, caller: JSON | None = None, callee: JSON | None = None, rtp: JSON | None = None, reason: str = "released", recorded: Sequence[JSON] = (), recorders: int = 0
) -> JSON:
    """A media line that is over. rtp: the counters of parties that are not given."""
    parties = {"caller": caller or ended_party("caller", rtp=rtp), "callee": callee or ended_party("callee", rtp=rtp)}
    return {"media": media, "from_tag": "A", "to_tag": "B", "reason": reason, "answered": True, "recorded": list(recorded), "recorders": recorders} | parties


# -- snapshots ----------------------------------------------------------------------------------------


def leg(party: str, **more: Any) -> JSON:
    """A party of a call that runs, whose packets come from where signalling says."""
    address, port = (CALLER, TO_CALLER) if party == "caller" else (CALLEE, TO_CALLEE)
    made: JSON = {"signalled": address, "latched": address, "latched_rtcp": None, "relay_port": port, "asymmetric": False, "source_mismatches": 0}
    made |= {"payload_types": [[8, 6]], "allowed_sources": None, "sdp": None, "sends_from": None, "sends_to": None, "relay_packets": None, "relay_packets_age_s": None}
    return made | more


def unheard(party: str, **more: Any) -> JSON:
    """A party of a call that runs, of which nothing has come."""
    return leg(party, latched=None, payload_types=[], **more)


def offloaded(party: str, packets: int = 50, *, reason: str = "offloaded", idle_s: float | None = 0.02, **more: Any) -> JSON:
    """A stream that the data plane carries."""
    made: JSON = {"from": party, "component": "rtp", "state": "offloaded", "reason": reason, "detail": None, "since_s": 3.0, "entry": entry(party), "was_offloaded": True}
    made |= {"counters": counters(packets), "counters_age_s": 0.0, "offloaded_after_us": 8200, "idle_s": idle_s}
    return made | more


def relayed(party: str, reason: str, state: str = "learning", **more: Any) -> JSON:
    """A stream that the relay carries, or nobody."""
    made: JSON = {"from": party, "component": "rtp", "state": state, "reason": reason, "detail": None, "since_s": 3.0, "entry": None, "was_offloaded": False}
    made |= {"counters": None, "counters_age_s": None, "offloaded_after_us": None, "idle_s": None}
    return made | more


def line(*streams: JSON, media: int | None = 1, caller: JSON | None = None, callee: JSON | None = None, released: str | None = None, holds: Sequence[JSON] = (), recorders: int = 0) -> JSON:
    """A media line. Its streams are offloaded, and its parties heard, where they are not given."""
    listed = list(streams) or [offloaded("caller"), offloaded("callee")]
    made = {"media": media, "relay": "local", "from_tag": "A", "to_tag": "B", "released": released, "holds": list(holds), "recorders": recorders}
    return made | {"caller": caller or leg("caller"), "callee": callee or leg("callee"), "streams": listed}


def snapshot(*lines: JSON, call: str = "c1", age_s: float = 60.0, counters_error: str | None = None) -> JSON:
    """A call as GET /v1/calls/CALL-ID gives it."""
    _, words = _documented()
    found = {"call": call, "started_us": round(BEGIN * 1e6), "age_s": age_s, "lines": list(lines) or [line()], "counters_error": counters_error}
    _check(found, words, "calls")
    return found
