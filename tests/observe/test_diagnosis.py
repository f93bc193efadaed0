"""The diagnosis in words, over what the agent tells: what a call is told to suffer from, and what not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from shunt.events import diagnosis
from shunt.events.diagnosis import Finding
from shunt.events.history import History
from shunt.operator import dialogs as dialog_events
from shunt.operator import call_history
from shunt.calls.kinds import Side
from shunt.operator.calls import call_of_view, went_past
from shunt.quality.report import stream_quality
from shunt.operator.dialogs import Dialogs
from tests.tools import telling
from tests.tools.telling import BEGIN, CALLEE, JSON, TO_CALLEE, Telling, counters, ended_line, ended_party, leg, line, offloaded, relayed, sdp, silent, snapshot, unheard


class Case(Telling):
    """An agent's events with the history of them, and the diagnosis of their one call."""

    def __init__(self) -> None:
        super().__init__()
        self.history, self.dialogs = History(), Dialogs()
        self.bus.subscribe(self.history)
        self.bus.subscribe(self.dialogs, dialog_events.KINDS)

    def findings(self, running: JSON | None = None, traces: dict[str, dict[str, str]] | None = None) -> list[Finding]:
        """Of a call that runs; else of one that is over, or never had media."""
        events, _ = self.history.of(self.call) or ([], 0)
        now = BEGIN + running["age_s"] if running is not None else self.now
        call = call_of_view(running, now) if running is not None else call_history.ended_calls(events).get(self.call)
        return diagnosis.diagnose(None, events, now) if call is None else call_history.diagnose(call, events, now, traces or {})

    def words(self, running: JSON | None = None, traces: dict[str, dict[str, str]] | None = None) -> str:
        return "\n".join(f"{finding.level}: {finding.text}" for finding in self.findings(running, traces))


ONE_WAY = line(offloaded("caller", 200, reason="one-way"), relayed("callee", "waiting-for-media"), callee=unheard("callee"))


def test_both_ways_is_fine_and_says_who_carries_it() -> None:
    assert Case().words(snapshot()) == "ok: Media flows both ways; the data plane carries it."
    half = line(offloaded("caller"), relayed("callee", "recording", "suspended"))
    assert Case().findings(snapshot(half))[0].text == "Media flows both ways; the data plane carries the caller's, the relay the other."


def test_a_silent_callee_is_named_with_its_port() -> None:
    first, *rest = Case().findings(snapshot(ONE_WAY))
    assert (first.level, first.party) == ("problem", "callee")
    assert first.text == "One-way audio: the caller sends, but the callee has sent nothing so far."
    said = next(finding.text for finding in rest if "Not one packet reached" in finding.text)
    assert TO_CALLEE in said and CALLEE in said


def nobody(age_s: float, **more: Any) -> JSON:
    """A call that nobody has sent anything in."""
    streams = [relayed(party, "waiting-for-media") for party in ("caller", "callee")]
    return snapshot(line(*streams, **{"caller": unheard("caller"), "callee": unheard("callee")} | more), age_s=age_s)


def test_nothing_from_either_party() -> None:
    first, *rest = Case().findings(nobody(10))
    assert first.text.startswith("No audio either way") and first.level == "problem"
    assert {finding.party for finding in rest if "Not one packet" in finding.text} == {"caller", "callee"}


def test_a_call_just_answered_is_not_yet_a_problem() -> None:
    assert Case().findings(nobody(0.3))[0].level == "ok"


def test_no_answer_yet() -> None:
    assert "no answer with media yet" in Case().words(nobody(5, caller=unheard("caller", relay_port=None), callee=unheard("callee", signalled=None)))


def test_a_private_address_that_never_sent_cannot_be_reached() -> None:
    """The classic: the callee's SDP says 192.168.…, and it never sends first."""
    private = "192.168.1.7:7000"
    sent = offloaded("caller", reason="one-way", entry=telling.entry("caller") | {"new_destination": private})
    words = Case().words(snapshot(line(sent, relayed("callee", "waiting-for-media"), callee=unheard("callee", signalled=private))))
    assert f"goes to {private}, the address in the callee's SDP. It is a private address" in words


def test_two_claimants_are_both_named() -> None:
    case = Case()
    for source in ("203.0.113.5:1111", "203.0.113.6:2222"):
        case.learn("contested", source=source, count=12)
    words = case.words(snapshot(line(relayed("caller", "contested"), offloaded("callee"), caller=unheard("caller"))))
    assert "Two sources claim to be the caller" in words and "203.0.113.5:1111" in words and "203.0.113.6:2222" in words


def test_packets_that_are_no_rtp_are_said_to_be_that() -> None:
    case = Case()
    case.learn("source-mismatch", source="203.0.113.5:1111", rtp=False, count=6)
    words = case.words(snapshot(line(relayed("caller", "waiting-for-media"), offloaded("callee"), caller=unheard("caller"))))
    assert "Packets do reach" in words and "203.0.113.5:1111 (6 packets" in words and "they are not RTP" in words


@pytest.mark.parametrize(("verdict", "says"), [("scanner", "sends to many relay ports, as a scanner does"), ("asymmetric", "declared this leg asymmetric"), ("source-mismatch", "another stream's")])
def test_why_a_source_is_not_latched(verdict: str, says: str) -> None:
    case = Case()
    case.learn(verdict, source="203.0.113.5:1111")
    assert says in case.words(snapshot(line(relayed("caller", "waiting-for-media"), offloaded("callee"), caller=unheard("caller"))))


def test_packets_of_others_are_a_hint_where_the_party_is_heard() -> None:
    case = Case()
    case.learn("source-mismatch", source="203.0.113.5:1111", count=7)
    first, *rest = case.findings(snapshot())
    assert first.level == "ok" and [finding.text for finding in rest if "7 packets to the caller's relay port came from other sources (203.0.113.5:1111)" in finding.text]


def test_nat_is_explained_and_is_no_problem() -> None:
    behind = leg("caller", signalled="192.168.1.9:6000", latched="203.0.113.5:41000")
    words = Case().words(snapshot(line(caller=behind)))
    assert "problem" not in words
    assert "The caller sends from 203.0.113.5:41000, signalling says 192.168.1.9:6000: it is behind NAT" in words


def test_a_party_that_stopped_is_found_by_the_idle_time() -> None:
    stopped = line(offloaded("caller"), offloaded("callee", reason="silent", idle_s=12.0))
    assert Case().findings(snapshot(stopped))[0].text == "One-way audio: the caller sends, but the callee has sent nothing for 12 s."


def test_a_full_table_is_what_blocks_offload() -> None:
    streams = [relayed(party, "table-full", detail="told to fail") for party in ("caller", "callee")]
    words = Case().words(snapshot(line(*streams)))
    assert "Media flows both ways; the relay carries it." in words
    assert "The caller's stream is on the relay: table-full (told to fail). The data plane's relay table is full." in words


def test_signalled_silence_is_no_fault() -> None:
    quiet = unheard("callee", sdp=sdp(direction="recvonly"))
    first = Case().findings(snapshot(ONE_WAY | {"callee": quiet}, age_s=10))[0]
    assert first.level == "ok" and "the callee's SDP says recvonly" in first.text


def test_hold_by_address() -> None:
    held = line(relayed("caller", "on-hold"), relayed("callee", "on-hold"), caller=leg("caller", signalled="0.0.0.0:6000"))
    assert Case().words(snapshot(held)).startswith("hint: On hold: the caller's signalled address is 0.0.0.0")


def test_what_the_relay_counted_counts_as_heard() -> None:
    """Without a data plane the agent sees no packets: only the relay can tell."""
    streams = [relayed(party, "no-data-plane", "allocated") for party in ("caller", "callee")]
    counted = line(*streams, caller=unheard("caller", relay_packets=500), callee=unheard("callee", relay_packets=0))
    assert Case().findings(snapshot(counted, age_s=10))[0].text.startswith("One-way audio: the caller sends")


def test_what_the_data_plane_does_not_forward_is_its_own_word() -> None:
    key = f"{telling.CALLER} > {telling.TO_CALLER}"
    words = Case().words(snapshot(), {key: {"verdict": "pass", "reason": "no-next-hop"}})
    assert f"The data plane does not forward the caller's packets to {CALLEE}: no-next-hop." in words
    assert "does not forward" not in Case().words(snapshot(), {key: {"verdict": "redirect", "reason": ""}})


def test_loss_on_the_way_here_is_a_problem() -> None:
    lossy = offloaded("caller", counters=counters(940, lost=60, jitter_ms=45.0))
    words = Case().words(snapshot(line(lossy, offloaded("callee"))))
    assert "6.0 % of the caller's packets were lost before they arrived here" in words and "45 ms of jitter" in words
    assert "of the callee's packets" not in words


def test_jitter_of_an_unknown_clock_is_not_told() -> None:
    opus = leg("caller", payload_types=[[111, 6]], sdp=sdp(formats=((111, "opus", 48000),)))
    assert "jitter" not in Case().words(snapshot(line(offloaded("caller", counters=counters(940, jitter_ms=45.0)), offloaded("callee"), caller=opus)))


def test_each_media_line_is_judged() -> None:
    texts = [finding.text for finding in Case().findings(snapshot(line(), ONE_WAY | {"media": 2}))]
    assert texts[0].startswith("Media 1: Media flows both ways") and "Media 2: One-way audio: the caller sends, but the callee has sent nothing so far." in texts


def test_an_ended_call_is_told_in_the_past() -> None:
    case = Case()
    case.pause(60)
    case.ended(ended_line(caller=ended_party("caller", rtp=counters(30)), callee=silent("callee")))
    assert case.findings()[0].text == "One-way audio: the caller sends, but the callee sent nothing."


def test_copies_of_sip_that_come_late_are_told_in_their_place() -> None:
    """A forwarded INVITE behind the ACK, a 200 behind it: and a request that is sent again stays where it is."""
    case = Case()
    case.sip("INVITE", tags=("A", None))
    case.sip(100)
    for what in (200, "ACK", 200, "INVITE"):
        case.pause(0.01)
        case.sip(what)
    case.pause(5)
    case.sip("INVITE")
    case.sip("BYE", cseq="BYE", tags=("B", "A"))
    case.sip(200, cseq="BYE", tags=("B", "A"))
    events, _ = case.history.of(case.call) or ([], 0)
    told = call_history.in_sip_order(events)
    assert [event.what for event in told] == ["INVITE", "100", "INVITE", "200", "200", "ACK", "INVITE", "BYE", "200"]
    assert [event.at for event in told] == sorted(event.at for event in told)
    assert sorted(event.seq for event in told) == [event.seq for event in events], "none is lost, none told twice"


def test_directions_are_taken_from_each_partys_last_sdp() -> None:
    case = Case()
    case.sip("INVITE", tags=("A", None), sdp=[sdp()])
    case.sip(200, sdp=[sdp(direction="recvonly")])
    case.sip("INVITE", sdp=[sdp(direction="sendonly")])
    events, _ = case.history.of("c1") or ([], 0)
    found = diagnosis.directions_of(events)
    assert {party: media.direction for (_, party), media in found.items()} == {"caller": "sendonly", "callee": "recvonly"}
    last = case.dialogs.sdp_media("c1", 1)
    assert last is not None and last.direction == "sendonly" and case.dialogs.sdp_media("c1-0", 1) == last and case.dialogs.sdp_media("c2", 1) is None
    assert "the callee's SDP says recvonly" in case.words(snapshot(ONE_WAY, age_s=10)), "where the agent names no SDP of a party, the copies of SIP do"


@pytest.mark.parametrize(("status", "says"), [(486, "ended with 486"), (404, "ended with 404")])
def test_a_call_without_media_says_how_it_ended(status: int, says: str) -> None:
    case = Case()
    case.sip("INVITE", tags=("A", None), sdp=[sdp()])
    case.sip(status)
    assert says in case.words()


ULAW, ALAW, EVENTS = (0, "PCMU", 8000), (8, "PCMA", 8000), (101, "telephone-event", 8000)


def answered(offer: tuple[tuple[int, str, int], ...], answer: tuple[tuple[int, str, int], ...]) -> Case:
    """A call whose parties named these formats."""
    case = Case()
    case.sip("INVITE", tags=("A", None), sdp=[sdp(formats=offer)])
    case.sip(200, sdp=[sdp(formats=answer, address="198.51.100.3", port=7000)], source=CALLEE)
    return case


def test_a_payload_type_that_no_sdp_lists_is_no_media() -> None:
    case = answered((ULAW, EVENTS), (ULAW, EVENTS))
    case.learn("latched", "caller", payload_type=0)
    case.learn("latched", "callee", payload_type=18)
    first, *rest = case.findings(snapshot())
    assert first.level == "problem"
    assert first.text == "Packets come from both, but the callee sends what is RTP of payload type 18 (G729), which no SDP of the call lists: it cannot be played."
    assert not any(finding.level == "problem" for finding in rest)


@pytest.mark.parametrize("sent", [0, 8, 101])
def test_what_any_sdp_of_the_call_lists_is_negotiated(sent: int) -> None:
    """Before a re-INVITE another codec may have been in use; and some send with the number that they named themselves."""
    case = answered((ALAW,), (ALAW,))
    case.learn("latched", "callee", payload_type=sent)
    case.sip("INVITE", sdp=[sdp(formats=(ULAW, EVENTS))])
    case.sip(200, sdp=[sdp(formats=(ULAW, EVENTS))], source=CALLEE)
    assert case.findings(snapshot())[0].level == "ok"


def test_without_sdp_no_payload_type_is_judged() -> None:
    case = Case()
    case.learn("latched", "callee", payload_type=18)
    assert case.findings(snapshot())[0].level == "ok"


def test_an_answer_without_a_codec_of_the_offer() -> None:
    case = answered((ULAW, EVENTS), (ALAW, EVENTS))
    assert case.findings(snapshot())[0].text == "Packets come from both, but the answer has no codec of the offer (the caller's SDP has PCMU, the callee's PCMA)."
    assert "problem: The answer has no codec of the offer" in case.words(snapshot(ONE_WAY))
    assert answered((ULAW, ALAW), (ALAW,)).findings(snapshot())[0].level == "ok"
    dynamic = answered(((96, "opus", 48000),), ((111, "OPUS", 48000),))
    assert dynamic.findings(snapshot())[0].level == "ok", "numbers are each party's own"


def test_packets_of_the_party_that_are_no_rtp_are_no_media() -> None:
    case = Case()
    case.learn("latched", "callee", rtp=False)
    unmeasured = counters(150, **dict.fromkeys(("lost", "reordered", "duplicates", "jitter_ms", "jitter_max_ms")))
    carried = line(offloaded("caller"), offloaded("callee", counters=unmeasured))
    assert case.findings(snapshot(carried))[0].text == "Packets come from both, but the callee sends what is not RTP: it cannot be played."
    assert case.findings(snapshot())[0].level == "ok", "a first packet by STUN, and RTP behind it"
    case.pause(60)
    case.ended(ended_line(caller=ended_party("caller", rtp=counters(150)), callee=ended_party("callee", rtp=unmeasured)))
    assert case.findings()[0].text.startswith("Packets came from both, but the callee sends what is not RTP")


def test_a_private_address_in_sdp_is_told_where_nothing_came() -> None:
    """The SIP server put the source of SIP in its place on the control channel; the SDP says what is wrong with the phone."""
    case = Case()
    case.sip("INVITE", tags=("A", None), sdp=[sdp()])
    case.sip(200, sdp=[sdp(address="192.168.77.3")], source=CALLEE)
    words = case.words(snapshot(ONE_WAY))
    assert "hint: The callee's SDP names 192.168.77.3, a private address" in words
    assert "private" not in Case().words(snapshot(ONE_WAY))


@pytest.mark.parametrize(("status", "says"), [(486, "ended with 486 from"), (488, "ended with 488 from")])
def test_a_refusal_after_the_offer_is_named(status: int, says: str) -> None:
    """The SIP server asked the relay for a port before: there is a media line, without an answer."""
    case = Case()
    case.sip("INVITE", tags=("A", None), sdp=[sdp()])
    case.control(f"Uc0,8 {case.call} 192.0.2.2 6000 A;1")
    case.sip(407)
    case.sip("INVITE", tags=("A", None), sdp=[sdp()])
    case.sip(status, source=CALLEE)
    case.ended(ended_line(caller=silent("caller"), callee=silent("callee") | {"relay_port": None}))
    assert f"{says} {CALLEE}" in case.words()


def test_a_challenge_is_no_refusal() -> None:
    case = Case()
    case.sip("INVITE", tags=("A", None), sdp=[sdp()])
    case.sip(407)
    case.sip("INVITE", tags=("A", None), sdp=[sdp()])
    assert "407" not in case.words(nobody(5, caller=unheard("caller", relay_port=None), callee=unheard("callee", signalled=None)))


def test_a_refused_command_is_said() -> None:
    case = Case()
    case.control("Uc0,8 c1 192.0.2.2 6000 A;1", "E71")
    assert "The relay replied E71 to the command U" in case.words()
    silent_relay = Case()
    silent_relay.control("Uc0,8 c1 192.0.2.2 6000 A;1", None)
    assert "The relay gave no reply to the command U" in silent_relay.words()


@pytest.mark.parametrize(
    "reply", ["d6:result5:error12:error-reason17:Ran out of ports.e", "d12:error-reason17:Ran out of ports.6:result5:errore", '{"result":"error","error-reason":"Ran out of ports."}']
)
def test_a_command_that_rtpengine_refused_is_said_in_its_words(reply: str) -> None:
    case = Case()
    case.control("d7:command5:offere", reply, verb="offer")
    assert 'The relay replied "Ran out of ports." to the command offer' in case.words()


def test_judging_a_long_story_takes_a_bounded_number_of_steps() -> None:
    """It is computed beside the events of all calls: twice the packets are not twice the work. Time is the events' own, so a busy machine changes nothing."""
    case, steps = Case(), []
    for until in (3000, 6000):
        for n in range(until - 3000, until):
            case.learn("source-mismatch", source=f"203.0.113.{n % 200}:{1000 + n}")
            case.pause(0.01)
        steps.append(_calls_of(lambda: case.findings(snapshot())))
    assert 0 < steps[1] < 1.2 * steps[0], steps


def _calls_of(work: Callable[[], object]) -> int:
    """How many functions of Python are called."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


# -- faults of this host are not the parties' --------------------------------------------------------------


def judged(running: JSON, traces: JSON | None = None, on_relay: tuple[tuple[int | None, str], ...] = (), host: tuple[str, ...] = ()) -> list[Finding]:
    now = BEGIN + running["age_s"]
    return call_history.diagnose(call_of_view(running, now), [], now, traces or {}, on_relay, host)


def blames(findings: list[Finding]) -> bool:
    """Whether a party or its network is said to be at fault."""
    return any(word in finding.text for finding in findings for word in ("has sent nothing", "stopped sending", "lost before they arrived", "Not one packet"))


def test_packets_without_a_next_hop_are_the_hosts_fault() -> None:
    key = f"{telling.CALLER} > {telling.TO_CALLER}"
    for idle_s in (0.02, 12.0):
        stream = offloaded("caller", idle_s=idle_s)
        found = judged(snapshot(line(stream, offloaded("callee"), caller=leg("caller", relay_packets=618))), {key: {"verdict": "pass", "reason": "no-next-hop"}}, ((1, "caller"),))
        assert found[0].level == "problem" and found[0].text.startswith(f"This host has no next hop for packets of the call (the caller's to {CALLEE})"), found
        assert not blames(found)


@pytest.mark.parametrize("parties", [("caller",), ("callee",), ("caller", "callee")])
def test_who_is_counted_by_the_relay_is_not_silent(parties: tuple[str, ...]) -> None:
    """Their entries meet nothing, as the program was detached."""
    streams = [offloaded(party, idle_s=40.0 if party in parties else 0.02) for party in ("caller", "callee")]
    legs = {party: leg(party, relay_packets=900) for party in parties}
    cause = "eth0 has no program of the softswitch now"
    found = judged(snapshot(line(*streams, **legs)), on_relay=tuple((1, party) for party in parties), host=(cause,))
    assert found[0].text.startswith("Media flows both ways") and not blames(found), found
    assert f"problem: This host: {cause}." in [f"{finding.level}: {finding.text}" for finding in found]
    assert sum("arrive at the relay, past the data plane" in finding.text for finding in found) == len(parties)
    assert blames(judged(snapshot(line(*streams, **legs)))), "a relay whose count stands still says that they are silent"


@pytest.mark.parametrize(("lost", "relay_packets", "known"), [(900, 930, False), (900, 450, False), (900, 20, True), (900, None, True), (40, 900, True), (0, 900, True)])
def test_a_gap_that_the_relay_may_have_carried_is_no_loss(lost: int, relay_packets: int | None, known: bool) -> None:
    stream = offloaded("caller", counters=counters(3000, lost=lost))
    call = call_of_view(snapshot(line(stream, offloaded("callee"), caller=leg("caller", relay_packets=relay_packets))), BEGIN)
    quality = stream_quality(call.lines[0], Side.CALLER, None, 100.0)
    assert (quality["lost"], quality["loss_percent"] is not None) == ((lost, True) if known else (None, False))
    assert known or (quality["mos"] is None and f"{lost} packets did not reach the data plane" in quality["note"])
    assert blames(call_history.diagnose(call, [], BEGIN + 60, {})) == (known and lost > 0)


def test_a_gap_while_the_host_let_packets_past_is_no_loss_in_the_record() -> None:
    case = Case()
    case.ended(ended_line(rtp=counters(3000, lost=900)))
    events, _ = case.history.of(case.call) or ([], 0)
    (call,) = call_history.ended_calls(events).values()
    assert stream_quality(went_past(call, "").lines[0], Side.CALLER, None, 100.0)["lost"] == 900
    assert stream_quality(went_past(call, "eth0 has no program").lines[0], Side.CALLER, None, 100.0)["lost"] is None


@pytest.mark.parametrize(("reason", "says"), [("media-timeout", "The media time-out ended the call"), ("relay-timeout", "The relay ended the call")])
def test_a_call_that_a_time_out_ended_says_so_first(reason: str, says: str) -> None:
    case = Case()
    case.pause(90)
    case.ended(ended_line(rtp=counters(500), reason=reason), reason=reason)
    first, *rest = case.findings()
    assert first.level == "problem" and first.text.startswith(says)
    assert rest[0].text.startswith("Media flowed both ways")


def test_an_answer_in_sip_without_a_command_is_said() -> None:
    case = Case()
    case.sip("INVITE", tags=("A", None), sdp=[sdp()])
    case.control("U")
    case.sip(200, sdp=[sdp(address="192.0.2.3")], source="192.0.2.3:5060")
    open_line = line(relayed("caller", "waiting-for-answer"), relayed("callee", "waiting-for-answer"), callee=unheard("callee", signalled=None), caller=leg("caller", relay_port=None))
    text = case.findings(snapshot(open_line))[0].text
    assert "answered the call (200), and no command with the answer came to the agent" in text


@pytest.mark.parametrize("source", [CALLEE, "198.51.100.7:4711"], ids=["its signalled address", "another port"])
def test_a_phone_that_sends_to_a_wrong_port_is_named_with_it(source: str) -> None:
    wrong = line(offloaded("caller", 200, reason="one-way"), relayed("callee", "waiting-for-media"), callee=unheard("callee", sends_from=source, sends_to="203.0.113.1:40000"))
    words = Case().words(snapshot(wrong))
    assert f"packets from {source} arrive at 203.0.113.1:40000, and it was told to send to {TO_CALLEE}" in words
    assert "blocks what it sends" not in words, "no guess beside a fact"
