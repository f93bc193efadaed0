"""The diagnosis in words, over the agent's own core: what a call is told to suffer from, and what not."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from shunt.dialogs import DialogWatch
from shunt.events import diagnosis
from shunt.events.history import History
from shunt.hep.listener import SipSighting
from shunt.hep.sip import SdpMedia
from shunt.net import Endpoint
from shunt.tables.entry import Outcome
from tests.agent.parts import RELAY_IP, Core

CALLER, CALLEE = "10.91.1.2:6000", "10.91.2.2:7000"


class Case:
    """A core with a history, and the diagnosis of its one call."""

    def __init__(self, **policy) -> None:
        self.core = Core(**policy)
        self.history = History()
        self.core.offloader.events.subscribe(self.history)

    def findings(self, call_id: str = "c1", **evidence) -> list[diagnosis.Finding]:
        events, _ = self.history.of(call_id) or ([], 0)
        known = diagnosis.Evidence(evidence.pop("sdp", None) or diagnosis.directions_of(events), **evidence)
        return diagnosis.diagnose(self.core.book.call(call_id), events, self.core.now, known)

    def words(self, **evidence) -> str:
        return "\n".join(f"{finding.level}: {finding.text}" for finding in self.findings(**evidence))

    async def talk(self, src: str, port: int, count: int = 6, ssrc: int = 0x11, **more) -> None:
        for seq in range(count):
            await self.core.packet(src, port, ssrc, seq, **more)
            self.core.now += 0.02


async def test_both_ways_is_fine_and_says_who_carries_it() -> None:
    case = Case()
    to_caller, to_callee = await case.core.call()
    await case.talk(CALLER, to_caller)
    await case.talk(CALLEE, to_callee)
    assert case.words() == "ok: Media flows both ways; the data plane carries it."


async def test_a_silent_callee_is_named_with_its_port() -> None:
    case = Case(one_way_after=0.5)
    to_caller, to_callee = await case.core.call()
    await case.talk(CALLER, to_caller, 200)
    first, *rest = case.findings()
    assert (first.level, first.party) == ("problem", "callee")
    assert first.text == "One-way audio: the caller sends, but the callee has sent nothing so far."
    said = next(finding.text for finding in rest if "Not one packet reached" in finding.text)
    assert f"{RELAY_IP}:{to_callee}" in said and CALLEE in said


async def test_nothing_from_either_party() -> None:
    case = Case()
    await case.core.call()
    case.core.now += 10
    first, *rest = case.findings()
    assert first.text.startswith("No audio either way") and first.level == "problem"
    assert {finding.party for finding in rest if "Not one packet" in finding.text} == {"caller", "callee"}


async def test_a_call_just_answered_is_not_yet_a_problem() -> None:
    case = Case()
    await case.core.call()
    case.core.now += 0.3
    assert case.findings()[0].level == "ok"


async def test_no_answer_yet() -> None:
    case = Case()
    await case.core.say("Uc0,8 c1 10.91.1.2 6000 A;1")
    assert "no answer with media yet" in case.words()


async def test_a_private_address_that_never_sent_cannot_be_reached() -> None:
    """The classic: the callee's SDP says 192.168.…, and it never sends first."""
    case = Case(one_way_after=0.5)
    to_caller, _ = await case.core.call(callee="192.168.1.7 7000")
    await case.talk(CALLER, to_caller, 60)
    await case.core.offloader.sync(case.core.book.call("c1").lines[0])
    case.core.now += 5
    assert "goes to 192.168.1.7:7000, the address in the callee's SDP. It is a private address" in case.words()


async def test_two_claimants_are_both_named() -> None:
    case = Case()
    to_caller, to_callee = await case.core.call(caller="172.16.0.9 6000")
    await case.talk(CALLEE, to_callee)
    for seq in range(12):
        await case.core.packet("203.0.113.5:1111", to_caller, 0x21, seq)
        await case.core.packet("203.0.113.6:2222", to_caller, 0x22, seq)
        case.core.now += 0.02
    words = case.words()
    assert "Two sources claim to be the caller" in words and "203.0.113.5:1111" in words and "203.0.113.6:2222" in words


async def test_packets_that_are_no_rtp_are_said_to_be_that() -> None:
    case = Case()
    to_caller, to_callee = await case.core.call(caller="172.16.0.9 6000")
    await case.talk(CALLEE, to_callee)
    await case.talk("203.0.113.5:1111", to_caller, version=0)
    case.core.now += 5
    words = case.words()
    assert "Packets do reach" in words and "203.0.113.5:1111" in words and "they are not RTP" in words


async def test_nat_is_explained_and_is_no_problem() -> None:
    case = Case()
    to_caller, to_callee = await case.core.call(caller="192.168.1.9 6000")
    await case.talk("203.0.113.5:41000", to_caller, 12)
    await case.talk(CALLEE, to_callee)
    words = case.words()
    assert "problem" not in words
    assert "The caller sends from 203.0.113.5:41000, signalling says 192.168.1.9:6000: it is behind NAT" in words


async def test_a_party_that_stopped_is_found_by_the_idle_time() -> None:
    case = Case()
    to_caller, to_callee = await case.core.call()
    await case.talk(CALLER, to_caller)
    await case.talk(CALLEE, to_callee)
    stream = next(s for s in case.core.book.call("c1").lines[0].streams if s.sender.value == "callee" and s.component.value == "rtp")
    case.core.table.counts[stream.installed.key].idle_ms = 12_000
    await case.core.offloader.read_live()
    first = case.findings()[0]
    assert first.text == "One-way audio: the caller sends, but the callee has sent nothing for 12 s."


async def test_a_full_table_is_what_blocks_offload() -> None:
    case = Case()
    case.core.table.fail = Outcome.TABLE_FULL
    to_caller, to_callee = await case.core.call()
    await case.core.packet(CALLER, to_caller, wait=False)
    await case.core.packet(CALLEE, to_callee)
    words = case.words()
    assert "Media flows both ways; the relay carries it." in words
    assert "The caller's stream is on the relay: table-full (told to fail). The data plane's relay table is full." in words


async def test_signalled_silence_is_no_fault() -> None:
    case = Case()
    to_caller, to_callee = await case.core.call()
    await case.talk(CALLER, to_caller)
    case.core.now += 10
    first = case.findings(sdp={(1, "callee"): SdpMedia("audio", "recvonly")})[0]
    assert first.level == "ok" and "the callee's SDP says recvonly" in first.text


async def test_hold_by_address() -> None:
    case = Case()
    to_caller, to_callee = await case.core.call()
    await case.talk(CALLER, to_caller)
    await case.talk(CALLEE, to_callee)
    await case.core.say("Uc0,8 c1 0.0.0.0 6000 A;1 B;1")
    assert case.words().startswith("hint: On hold: the caller's signalled address is 0.0.0.0")


async def test_what_the_relay_counted_counts_as_heard() -> None:
    """Without a data plane the agent sees no packets: only the relay can tell."""
    case = Case(enabled=False)
    await case.core.call()
    case.core.now += 10
    assert case.findings(relay_packets={(1, "caller"): 500, (1, "callee"): 0})[0].text.startswith("One-way audio: the caller sends")


async def test_what_the_data_plane_does_not_forward_is_its_own_word() -> None:
    case = Case()
    to_caller, to_callee = await case.core.call()
    await case.talk(CALLER, to_caller)
    await case.talk(CALLEE, to_callee)
    key = str(case.core.book.call("c1").lines[0].streams[0].installed.key)
    words = case.words(traces={key: {"verdict": "pass", "reason": "no-next-hop"}})
    assert "The data plane does not forward the caller's packets to 10.91.2.2:7000: no-next-hop." in words


async def test_loss_on_the_way_here_is_a_problem() -> None:
    case = Case()
    to_caller, to_callee = await case.core.call()
    await case.talk(CALLER, to_caller)
    await case.talk(CALLEE, to_callee)
    for counts in case.core.table.counts.values():
        counts.packets, counts.lost, counts.jitter_us = 940, 60, 45_000
    await case.core.offloader.read_live()
    words = case.words()
    assert "6.0 % of the caller's packets were lost before they arrived here" in words and "45 ms of jitter" in words


async def test_an_ended_call_is_told_in_the_past() -> None:
    case = Case(one_way_after=0.1)
    to_caller, _ = await case.core.call()
    await case.talk(CALLER, to_caller, 30)
    await case.core.say("D c1 A B")
    assert case.findings()[0].text == "One-way audio: the caller sends, but the callee sent nothing."


def sighting(method: str | None, status: int | None, from_tag: str, to_tag: str | None, direction: str = "sendrecv") -> SipSighting:
    endpoint = Endpoint.parse("192.0.2.9:5060")
    return SipSighting(method, status, "c1", from_tag, to_tag, "INVITE", endpoint, endpoint, (endpoint,), (SdpMedia("audio", direction),))


async def test_directions_are_taken_from_each_partys_last_sdp() -> None:
    case = Case()
    watch = DialogWatch(case.core.offloader)
    for seen in (sighting("INVITE", None, "A", None), sighting(None, 200, "A", "B", "recvonly"), sighting("INVITE", None, "A", "B", "sendonly")):
        watch.on_sighting(seen)
    found = diagnosis.directions_of(case.history.of("c1")[0])
    assert {party: line.direction for (_, party), line in found.items()} == {"caller": "sendonly", "callee": "recvonly"}
    assert watch.sdp_media("c1", 1).direction == "sendonly" and watch.sdp_media("c1-0", 1) is not None and watch.sdp_media("c2", 1) is None


@pytest.mark.parametrize(("status", "says"), [(486, "ended with 486"), (404, "ended with 404")])
async def test_a_call_without_media_says_how_it_ended(status: int, says: str) -> None:
    case = Case()
    watch = DialogWatch(case.core.offloader)
    watch.on_sighting(sighting("INVITE", None, "A", None))
    watch.on_sighting(sighting(None, status, "A", "B"))
    assert says in case.words()


async def test_a_refused_command_is_said() -> None:
    case = Case()
    case.core.pool.relays[0].forward = _refuse
    await case.core.say("Uc0,8 c1 10.91.1.2 6000 A;1")
    assert "The relay replied E71 to the command U" in case.words()


async def _refuse(body: bytes, peer_ip: str | None) -> bytes:
    return b"E71"


async def test_judging_a_long_story_takes_a_bounded_number_of_steps() -> None:
    """It is computed on the agent's own loop, beside calls: twice the packets are not twice the work."""
    case = Case()
    to_caller, to_callee = await case.core.call()
    steps = []
    for until in (3000, 6000):
        for n in range(until - 3000, until):
            await case.core.packet(f"203.0.113.{n % 200}:{1000 + n}", to_caller, n, n, wait=False)
        steps.append(_calls_of(case.findings))
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
