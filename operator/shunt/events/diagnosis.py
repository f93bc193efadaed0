"""What is wrong with a call's media, in words: who sends nothing, from where packets come, what keeps a stream on the relay.

A pure function over the call's state and its events; every sentence names what it was concluded from.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shunt.calls import reasons
from shunt.calls.facts import Call, Leg, Line
from shunt.calls.kinds import Component, Side, State
from shunt.calls.measurement import NOTHING
from shunt.calls.sdp import SdpMedia
from shunt.events.bus import CONTROL, LEARN, SIP, Event
from shunt.net import Endpoint
from shunt.quality.codecs import carries_speech, codec_of
from shunt.quality.now import ANSWER_S, LOSS_PERCENT, NEVER_MEDIA
from shunt.quality.report import clock_known, speech_type

SILENT_S = 3.0  # longer than any gap that comfort noise leaves
_JITTER_MS = 30.0
_LEVELS = ("problem", "hint", "ok")
# RFC 1918, RFC 6598 (carrier-grade NAT), RFC 3927, RFC 4193, RFC 4291: addresses that mean something only where they are.
_PRIVATE = [ipaddress.ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8", "fc00::/7", "fe80::/10")]
# Verdicts of learning.
_OWN = frozenset({"known", "waiting", "contested", "quarantined", "latched", "moved", "restored", "asked-idle"})
_NOT_OWN = frozenset({"asymmetric", "source-mismatch", "scanner", "former"})
_ELSEWHERE = frozenset({reasons.OFFLOADED, reasons.ONE_WAY, reasons.WAITING_FOR_MEDIA, reasons.WAITING_FOR_OTHER_PARTY, reasons.WAITING_FOR_ANSWER, reasons.VERIFYING_SOURCE, reasons.CONTESTED})


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence. level: problem, hint or ok; the first finding of a call sums it up."""

    level: str
    text: str
    media: int | None = None
    party: str | None = None

    def view(self) -> dict[str, Any]:
        return {"level": self.level, "text": self.text, "media": self.media, "party": self.party}


@dataclass(slots=True)
class Evidence:
    """What else is known of a call when it is judged. All of it may be missing.

    sdp: the last SDP's media line by media index and party; traces: the data plane's own word on an entry, by its key; stale: why
    the entries' counters are not current, "" if they are; on_relay: media index and party whose packets the relay counted between two
    queries; host: causes on this host (shunt.health) for which packets do not meet the data plane.
    """

    sdp: Mapping[tuple[int | None, str], SdpMedia] = field(default_factory=dict)
    traces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    stale: str = ""
    on_relay: Collection[tuple[int | None, str]] = ()
    host: Sequence[str] = ()


def directions_of(events: Sequence[Event]) -> dict[tuple[int | None, str], SdpMedia]:
    """The last SDP of each party, by media index counted from 1 and party, as the SIP events show them."""
    found: dict[tuple[int | None, str], SdpMedia] = {}
    caller_tag: str | None = None
    for event in events:
        if event.kind != SIP:
            continue
        facts = event.facts
        if caller_tag is None and event.what == "INVITE":
            caller_tag = facts["from_tag"]
        if not facts["lines"]:
            continue
        sender = facts["to_tag"] if event.what.isdigit() else facts["from_tag"]
        party = "caller" if sender == caller_tag else "callee"
        for place, line in enumerate(facts["lines"], 1):
            found[place, party] = line
    return found


def diagnose(call: Call | None, events: Sequence[Event], now: float, evidence: Evidence | None = None) -> list[Finding]:
    """Judge a call. call is None when only its events are known. now: Unix time."""
    evidence = evidence or Evidence(directions_of(events))
    if call is None:
        return [_without_media(events)]
    findings: list[Finding] = []
    for line in call.lines:
        findings += _of_line(call, line, events, now, evidence)
    return findings or [Finding("hint", "The relay was asked for no port yet: the call has no media.")]


def _without_media(events: Sequence[Event]) -> Finding:
    final = _rejection(events)
    refused = [event for event in events if event.kind == CONTROL and _is_error(event.facts["reply"])]
    if final is not None:
        return Finding("hint", f"The call ended with {_status(final)} before the SIP server asked the relay for ports: there was no media to carry.")
    if refused:
        said = _said(refused[-1].facts["reply"])
        return Finding("problem", f"The relay {said} to the command {refused[-1].what}: without ports from it the call has no media.")
    return Finding("hint", "The SIP server asked the relay for no ports: if there is media, it does not come this way.")


def _rejection(events: Sequence[Event]) -> Event | None:
    """The final response to a call's INVITE; None where there was none yet, or it was answered by a 2xx."""
    invites = [event for event in events if event.kind == SIP and event.facts["cseq"] == "INVITE"]
    finals = [event for event in invites if event.what.isdigit() and int(event.what) >= 200]
    # Behind a challenge (401, 407), or another branch's refusal, there is another INVITE.
    if not finals or any(int(event.what) < 300 for event in finals) or "INVITE" in [event.what for event in invites[invites.index(finals[-1]) :]]:
        return None
    # It is repeated on its way to the caller; an element on the way may have put its own in its place.
    return next(event for event in finals if event.what == finals[-1].what)


def _status(final: Event) -> str:
    """A response in words: its number, its phrase, who sent it."""
    phrase = final.facts.get("phrase")
    return f"{final.what}{f' ({phrase})' if phrase else ''} from {final.facts['source']}"


_NG_ERROR = re.compile(rb'6:result5:error|"result": ?"error"')
_NG_REASON = re.compile(rb'12:error-reason([0-9]+):|"error-reason": ?"([^"]*)"')


def _is_error(reply: bytes | None) -> bool:
    """Whether the relay refused: no reply, E and a number, or NG's result "error"."""
    return reply is None or reply.startswith(b"E") or _NG_ERROR.search(reply) is not None


def _said(reply: bytes | None) -> str:
    """What the relay said, in a sentence: an error's number, or NG's error-reason."""
    if reply is None:
        return "gave no reply"
    if reason := _NG_REASON.search(reply):
        text = reply[reason.end() :][: int(reason[1])] if reason[1] else reason[2]
        return f'replied "{text.decode("latin-1")}"'
    return f"replied {reply.decode('latin-1')}"


# The data plane's words for what keeps it from forwarding, explained.
_STUCK = {
    "no-next-hop": "This host has no route there, or its neighbour does not answer: see `ip route get` and `ip neigh`",
    "too-big-for-output": "They are larger than the MTU of the interface that they leave by",
    "output-cannot-transmit": "The interface that they leave by cannot send what native XDP redirects to it",
}
_Say = Callable[..., None]


class _Party:
    """What is known of one party's sending."""

    def __init__(self, call_id: str, line: Line, side: Side, events: Sequence[Event], evidence: Evidence) -> None:
        self.line = line
        self.name = side.value
        self.leg: Leg = line.legs[side]
        self.stream = line.stream(side, Component.RTP)
        self.measured = self.stream.measured or NOTHING
        self.sdp = evidence.sdp.get((line.media or 1, self.name))
        self.notices = [e for e in events if e.kind == LEARN and e.call_id == call_id and e.media == line.media and e.party == self.name and e.component == "rtp"]
        self.own = [e for e in self.notices if e.what in _OWN]
        self.listed = _listed(line.media or 1, events, evidence)
        self.on_relay = (line.media, self.name) in evidence.on_relay
        trace = evidence.traces.get(str(self.stream.installed.key)) if self.stream.installed is not None else None
        self.stuck = "" if trace is None or trace.get("verdict") in ("redirect", "tx") else trace.get("reason") or trace.get("verdict") or ""

    @property
    def sends(self) -> bool:
        """Whether media of this party's own ever arrived."""
        return bool(self.measured.packets or self.leg.relay_packets or self.leg.latched is not None or self.own)

    @property
    def private(self) -> str | None:
        """The private address that its SDP names for media, or signalling does; None: it is another."""
        named = self.sdp.address if self.sdp is not None else None
        relays = {leg.relay.addr for leg in self.line.legs.values() if leg.relay is not None}
        for address in (named, None if self.leg.signalled is None else self.leg.signalled.ip):
            if address is not None and _is_private(Endpoint.of(address, 0)) and Endpoint.of(address, 0).addr not in relays:
                return address
        return None

    @property
    def unreadable(self) -> str:
        """Why nobody can play what it sends; "" where that is not known."""
        if not self.own:
            return ""
        payload_type, total = self.own[-1].facts["payload_type"], self.measured
        if payload_type is None:
            return "not RTP" if total.packets and not total.measured else ""
        if self.listed and payload_type not in self.listed:
            codec = codec_of(payload_type)
            return f"RTP of payload type {payload_type}{f' ({codec.name})' if codec else ''}, which no SDP of the call lists"
        return ""

    @property
    def silent_since(self) -> float | None:
        """Seconds since its last packet, if that is long ago for media and the line is still up. Packets that the data plane passes on may not be counted by the entry."""
        idle = self.stream.idle_s
        if self.line.released is not None or idle is None or idle < SILENT_S or self.on_relay or self.stuck:
            return None
        return idle

    @property
    def next_hop(self) -> str:
        """Where its packets cannot be sent on to, because this host has no next hop there; "" where they can, or that is not known."""
        return str(self.stream.installed.dst) if self.stuck == "no-next-hop" and self.stream.installed is not None else ""

    @property
    def means_to_be_silent(self) -> bool:
        return self.sdp is not None and self.sdp.direction in NEVER_MEDIA

    def sources(self, verdicts: frozenset[str] | None = None) -> dict[Endpoint, int]:
        """How many packets were noticed from each source address, with one of these verdicts."""
        found: dict[Endpoint, int] = {}
        for event in self.notices:
            if verdicts is None or event.what in verdicts:
                found[event.facts["source"]] = found.get(event.facts["source"], 0) + event.count
        return found


def _listed(index: int, events: Sequence[Event], evidence: Evidence) -> frozenset[int]:
    """The payload types that any SDP of the call has for a media line."""
    lines = [event.facts["lines"][index - 1] for event in events if event.kind == SIP and len(event.facts["lines"]) >= index]
    lines += [line for (media, _), line in evidence.sdp.items() if media == index]
    return frozenset(payload_type for line in lines for payload_type, _, _ in line.formats)


def _nothing_in_common(caller: _Party, callee: _Party) -> str:
    """What the SDPs of both say where they have no codec in common, else ""."""
    named = [[name for number, name, _ in party.sdp.formats if carries_speech(number, party.sdp.formats)] if party.sdp is not None else [] for party in (caller, callee)]
    if not all(named) or set(named[0]) & set(named[1]):
        return ""
    return f"the caller's SDP has {', '.join(named[0])}, the callee's {', '.join(named[1])}"


def _is_private(endpoint: Endpoint | None) -> bool:
    if endpoint is None:
        return False
    address = ipaddress.ip_address(endpoint.addr)
    return any(address in network for network in _PRIVATE if network.version == address.version)


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"


def _of_line(call: Call, line: Line, events: Sequence[Event], now: float, evidence: Evidence) -> list[Finding]:
    prefix = f"Media {line.media}: " if len(call.lines) > 1 else ""
    found: list[Finding] = []

    def say(level: str, text: str, party: _Party | None = None) -> None:
        found.append(Finding(level, prefix + text, line.media, party.name if party is not None else None))

    caller, callee = (_Party(call.call_id, line, side, events, evidence) for side in (Side.CALLER, Side.CALLEE))
    if not line.answered:
        _unanswered(line, caller, _rejection(events), _accepted(events), say)
        return found
    _cut(line, say)
    _sum_up(line, caller, callee, now - call.created, evidence, say)
    if line.released is None:
        for cause in evidence.host:
            say("problem", f"This host: {cause}.")
    final = _rejection(events)
    if final is not None:
        say("hint", f"The call ended with {_status(final)}: what was sent before was early media.")
    for party in (caller, callee):
        _about_sending(party, say)
    for party, other in ((caller, callee), (callee, caller)):
        _about_reaching(party, other, say)
        _about_offload(party, say)
        _about_quality(party, say)
    # What is wrong comes first, the sum of it before all.
    return found[:1] + sorted(found[1:], key=lambda f: _LEVELS.index(f.level))


def _accepted(events: Sequence[Event]) -> Event | None:
    """The answer to a call's INVITE with media in it, as a copy of SIP shows it."""
    return next((event for event in events if event.kind == SIP and event.facts["cseq"] == "INVITE" and event.what.startswith("2") and event.facts["lines"]), None)


def _cut(line: Line, say: _Say) -> None:
    """A line that no party hung up."""
    if line.released == reasons.MEDIA_TIMEOUT:
        say("problem", "The media time-out ended the call: no packet of either party had come for the relay's time-out, neither to the data plane nor to the relay.")
    elif line.released == reasons.RELAY_TIMEOUT:
        say("problem", "The relay ended the call by its own time-out, or forgot it in a restart: it no longer had the session.")


def _unanswered(line: Line, caller: _Party, final: Event | None, accepted: Event | None, say: _Say) -> None:
    if final is not None:
        say("hint", f"The call ended with {_status(final)}: there was no answer, and only the caller's offer is known.")
        return
    if accepted is not None:
        say(
            "problem",
            f"{accepted.facts['source']} answered the call ({accepted.what}), and no command with the answer came to the agent: the SIP server used the relay directly, or no relay. Whether media flows is not known here.",
        )
        return
    over = f"; the line ended before ({line.released})" if line.released else " yet"
    say("hint" if line.released else "ok", f"There is no answer with media{over}: only the caller's offer is known" + ("." if not caller.sends else ", and the caller already sends."))


def _sum_up(line: Line, caller: _Party, callee: _Party, age_s: float, evidence: Evidence, say: _Say) -> None:
    over = line.released is not None
    held = [party for party in (caller, callee) if party.leg.held]
    if held and not over:
        say("hint", f"On hold: the {held[0].name}'s signalled address is {held[0].leg.signalled}, so nothing is sent to it.")
        return
    stuck = [party for party in (caller, callee) if party.next_hop] if not over else []
    if stuck:
        words = " and ".join(f"the {party.name}'s to {party.next_hop}" for party in stuck)
        say("problem", f"This host has no next hop for packets of the call ({words}): the data plane passes them to the relay, which can reach no more than the host does.", stuck[0])
    speaking = [party for party in (caller, callee) if party.sends and party.silent_since is None]
    mute = [party for party in (caller, callee) if party not in speaking]
    unknown = not over and bool(evidence.stale) and any(party.stream.state is State.OFFLOADED for party in speaking)
    if not mute and unknown:
        say("hint", f"Media of both parties has been seen; whether it flows now is not known: {evidence.stale}.")
        return
    unplayable = _unplayable(caller, callee, speaking)
    if not mute and unplayable:
        say("problem", f"Packets {'came' if over else 'come'} from both, but {unplayable}.")
        return
    if not mute and stuck:
        return
    if not mute:
        offloaded = [p for p in (caller, callee) if not p.on_relay and (p.stream.state is State.OFFLOADED or (over and p.stream.was_offloaded))]
        carrier = {2: "the data plane carries it", 1: f"the data plane carries the {offloaded[0].name}'s, the relay the other" if offloaded else "", 0: "the relay carries it"}[len(offloaded)]
        say("ok", f"Media {'flowed' if over else 'flows'} both ways; {carrier if not over else carrier.replace('carries', 'carried')}.")
        return
    if all(party.means_to_be_silent for party in mute):
        words = " and ".join(f"the {party.name}'s SDP says {party.sdp.direction}" for party in mute if party.sdp is not None)
        say("ok", f"{'One-way' if len(mute) == 1 else 'No'} media, as signalled: {words}.")
        return
    if not over and age_s < ANSWER_S and not any(party.silent_since for party in mute):
        say("ok", "The call has just been answered; not all parties have sent media yet.")
        return
    if len(mute) == 2:
        say("problem", f"No audio either way: {_how_mute(caller)}, and {_how_mute(callee)}.")
    else:
        say("problem", f"One-way audio: the {speaking[0].name} sends, but {_how_mute(mute[0])}.", mute[0])
    if unplayable:
        say("problem", f"{unplayable[0].upper()}{unplayable[1:]}.")
    if unknown:
        say("hint", f"Whether media of the {speaking[0].name} flows now is not known: {evidence.stale}.", speaking[0])


def _unplayable(caller: _Party, callee: _Party, speaking: Sequence[_Party]) -> str:
    """Why what is sent cannot be played; "" where that is not known."""
    sent = [f"the {party.name} sends what is {party.unreadable}" for party in speaking if party.unreadable]
    if sent:
        return f"{' and '.join(sent)}: it cannot be played"
    apart = _nothing_in_common(caller, callee)
    return f"the answer has no codec of the offer ({apart})" if apart else ""


def _how_mute(party: _Party) -> str:
    if party.silent_since is not None:
        return f"the {party.name} has sent nothing for {_seconds(party.silent_since)}"
    over = party.line.released is not None
    return f"the {party.name} sent nothing" if over else f"the {party.name} has sent nothing so far"


def _about_sending(party: _Party, say: _Say) -> None:
    leg = party.leg
    if party.on_relay and party.stream.state is State.OFFLOADED and party.stream.idle_s is not None:
        say(
            "problem",
            f"The {party.name}'s packets arrive at the relay, past the data plane: the relay counts them now, and their entry met the last one {_seconds(party.stream.idle_s)} ago.",
            party,
        )
    if not party.sends and not leg.held and not party.means_to_be_silent:
        sources = party.sources()
        said = f"signalling names {leg.signalled} as its own" if leg.signalled is not None else "signalling named no address of it"
        if leg.sends_to is not None:
            say(
                "problem",
                f"The {party.name} sends to a wrong port: packets from {leg.sends_from} arrive at {leg.sends_to}, and it was told to send to {leg.relay} ({said}). The SDP that it got was changed on the way, or it keeps the port of another call.",
                party,
            )
        elif not sources:
            cause = "It is muted without sending silence, a firewall or NAT on its side blocks what it sends, or it sends elsewhere because the SDP that it got was changed on the way"
            say("problem", f"Not one packet reached {leg.relay}, the relay port that the {party.name} was told to send to ({said}). {cause}.", party)
            if (private := party.private) is not None:
                say(
                    "hint",
                    f"The {party.name}'s SDP names {private}, a private address: packets to it arrive only in your own network, and its real address is learned from its first packet.",
                    party,
                )
        else:
            listed = ", ".join(f"{source} ({count} packets: {_why_not(party, source)})" for source, count in list(sources.items())[:4])
            say("problem", f"Packets do reach {leg.relay}, the {party.name}'s relay port, but none from a source that can be latched: {listed}; {said}.", party)
    elif leg.contested:
        claims = ", ".join(str(source) for source in list(party.sources(frozenset({"contested", "waiting", "source-mismatch"})))[:4])
        say("problem", f"Two sources claim to be the {party.name}: {claims or 'see the events'}. Its media stays on the relay until one of them falls silent; one may be an attacker.", party)
    elif leg.latched is None and party.own:
        source = party.own[-1].facts["source"]
        say("hint", f"The {party.name}'s packets come from {source}, which signalling does not name ({leg.signalled}): a few more are needed to latch it.", party)
    elif leg.latched is not None and leg.signalled is not None and leg.latched != leg.signalled and not leg.held:
        behind = "it is behind NAT" if leg.latched.addr != leg.signalled.addr else "its port was translated"
        say("ok", f"The {party.name} sends from {leg.latched}, signalling says {leg.signalled}: {behind}, which needs no action.", party)
    if party.silent_since is not None:
        say(
            "problem",
            f"The last packet of the {party.name} ({leg.latched}) met its entry {_seconds(party.silent_since)} ago, after {party.measured.packets} packets: it stopped sending, or its NAT binding moved and the new source is not latched.",
            party,
        )
    others = {source: count for source, count in party.sources(_NOT_OWN).items() if source != leg.latched}
    if others and party.sends:
        say("hint", f"{sum(others.values())} packets to the {party.name}'s relay port came from other sources ({', '.join(map(str, list(others)[:3]))}) and were ignored.", party)


def _why_not(party: _Party, source: Endpoint) -> str:
    verdicts = {event.what for event in party.notices if event.facts["source"] == source}
    if "scanner" in verdicts:
        return "it sends to many relay ports, as a scanner does"
    if "asymmetric" in verdicts:
        return "the SIP server declared this leg asymmetric, so only the signalled address counts"
    if all(event.facts["version"] != 2 for event in party.notices if event.facts["source"] == source):
        return "they are not RTP"
    return "another stream's"


def _about_reaching(party: _Party, other: _Party, say: _Say) -> None:
    entry = party.stream.installed
    if entry is None:
        return
    if party.stuck:
        explained = _STUCK.get(party.stuck, "")
        say("problem", f"The data plane does not forward the {party.name}'s packets to {entry.dst}: {party.stuck}{f'. {explained}' if explained else ''}.", party)
    if other.leg.latched is None and not other.leg.asymmetric and _is_private(entry.dst):
        say(
            "problem",
            f"What the {party.name} sends goes to {entry.dst}, the address in the {other.name}'s SDP. It is a private address: unless it is in your own network, "
            f"nothing arrives. The {other.name}'s real address is learned from its first packet, which has not come.",
            party,
        )


def _about_offload(party: _Party, say: _Say) -> None:
    stream = party.stream
    if party.line.released is None and stream.state is not State.OFFLOADED and stream.reason not in _ELSEWHERE:
        detail = f" ({stream.detail})" if stream.detail else ""
        say("hint", f"The {party.name}'s stream is on the relay: {stream.reason}{detail}. {reasons.REASONS.get(stream.reason, '')}".rstrip(), party)


def _about_quality(party: _Party, say: _Say) -> None:
    total = party.measured
    if total.unsure:
        say("hint", f"{total.lost} of the {party.name}'s packets did not reach the data plane; whether they were lost is not known: {total.unsure}.", party)
    if total.loss_percent is not None and total.loss_percent >= LOSS_PERCENT and total.measured >= 50:
        say("problem", f"{total.loss_percent:.1f} % of the {party.name}'s packets were lost before they arrived here: the loss is between it and this server.", party)
    formats = party.sdp.formats if party.sdp is not None else ()
    if total.jitter_ms is not None and total.jitter_ms >= _JITTER_MS and clock_known(speech_type(party.leg, formats), formats):
        say("hint", f"The {party.name}'s packets arrive with {total.jitter_ms:.0f} ms of jitter: the receiver's buffer has to hold twice that.", party)
