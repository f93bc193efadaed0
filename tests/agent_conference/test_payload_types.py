"""Participants who number their codecs differently: each gets every packet with the payload type that it gave the codec itself."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.tools.conference import rtcp
from tests.agent_conference.lab import ROOM, Camera, Lab
from tests.agent_conference.test_media import all_unbroken
from tests.lab.party import Party, await_that


def opus(number: int) -> dict[str, Any]:
    return {"payload_type": number, "encoding": "opus", "clock_rate": 48_000, "channels": 2}


def vp8(number: int, repair: int | None = None) -> list[dict[str, Any]]:
    codecs: list[dict[str, Any]] = [{"payload_type": number, "encoding": "VP8", "clock_rate": 90_000}]
    if repair is not None:
        codecs.append({"payload_type": repair, "encoding": "rtx", "clock_rate": 90_000, "fmtp": f"apt={number}"})
    return codecs


def medium(*codecs: dict[str, Any], name: str = "audio", **more: Any) -> dict[str, Any]:
    return {"medium": name, "codecs": list(codecs), **more}


def hear_each_other(parties: Sequence[Party]) -> None:
    for party in parties:
        party.await_packets(*(other for other in parties if other is not party))


def enter(lab: Lab, numbers: Sequence[int]) -> list[Party]:
    """A participant for each payload type of Opus; they hear each other."""
    lab.create()
    parties = [lab.party(("caller", "callee")[at % 2], f"p{at}") for at in range(len(numbers))]
    for party, number in zip(parties, numbers):
        party.payload_type = number
        party.talk(lab.join(party, medium(opus(number)))["media"][0]["address"])
    hear_each_other(parties)
    return parties


def recent(receiver: Party, sender: Party) -> set[int]:
    """The payload types of a sender's packets from now on."""
    start = len(receiver.types.get(sender.ssrc, []))
    receiver.await_packets(sender)
    return set(receiver.types[sender.ssrc][start:])


def test_two_hear_each_other_with_numbers_of_their_own(lab: Lab) -> None:
    """By copies: an entry of the relay table could not rewrite them. Numbers that become the same by re-INVITE need none, and nothing is lost."""
    ann, bob = enter(lab, [109, 111])
    lab.await_design("nra")
    assert set(ann.types[bob.ssrc]) == {109} and set(bob.types[ann.ssrc]) == {111}
    for number, ended in ((96, {111}), (111, {111}), (109, {111})):
        lab.ask(lambda client, number=number: client.update_participant(ROOM, ann.name, media=[medium(opus(number))]))  # type: ignore[misc]
        assert await_that(lambda number=number: recent(ann, bob) == {number}), f"{number}: {recent(ann, bob)}"  # type: ignore[misc]
        ann.payload_type = number
        lab.await_design("two-party" if number == 111 else "nra")
        assert await_that(lambda ended=ended: recent(bob, ann) == ended), f"{number}: {recent(bob, ann)}"  # type: ignore[misc]
    for party in (ann, bob):
        party.hush()
    all_unbroken([ann, bob])


@pytest.mark.parametrize("process", ["agent", "softswitch"])
def test_numbers_outlive_a_process_that_is_killed(lab: Lab, process: str) -> None:
    ann, bob, cem = parties = enter(lab, [109, 111, 96])
    lab.await_design("nra")
    if process == "agent":
        lab.agent.kill()
        hear_each_other(parties)
        lab.start_agent()
    else:
        lab.softswitch.kill()
        hear_each_other(parties)
        lab.start_softswitch()
    lab.await_design("nra")
    hear_each_other(parties)
    for party in parties:
        party.hush()
    all_unbroken(parties)
    for party, number in ((ann, 109), (bob, 111), (cem, 96)):
        assert all(set(party.types[other.ssrc]) == {number} for other in parties if other is not party), party.name


def test_retransmissions_have_the_receivers_number(lab: Lab) -> None:
    """Those of the agent's cache, and those of RTX (RFC 4588), whose format is mapped by what it is about. Who did not agree to RTX gets none."""
    lab.create()
    cameras = [lab.party(("caller", "callee")[at % 2], f"p{at}", Camera) for at in range(3)]
    for camera, codecs in zip(cameras, (vp8(96, 97), vp8(120, 124), vp8(100))):
        camera.payload_type = codecs[0]["payload_type"]
        camera.talk(lab.join(camera, medium(*codecs, name="video", layers={"by": "vp8"}))["media"][0]["address"])
    hear_each_other(cameras)
    sender, asks, without = cameras
    lab.await_copies()

    asked: set[int] = set()
    before = lab.metric("retransmitted")

    def sent_again() -> bool:
        """Whether the agent has answered a NACK of what came just now; it has no copies from before it last found the data plane. An answer to an earlier one may come late."""
        lost = sorted(set(asks.sequences[sender.ssrc]) - asked)[-20:-10]
        asked.update(lost)
        asks.send_rtcp(rtcp.build_nack(asks.ssrc, sender.ssrc, lost))
        return await_that(lambda: [asks.sequences[sender.ssrc].count(number) for number in lost] == [2] * len(lost), 2)

    assert await_that(sent_again) and lab.metric("retransmitted") >= before + 10
    assert set(asks.types[sender.ssrc]) == {120} and set(without.types[sender.ssrc]) == {100}
    repair, number = 0x5000 + sender.ssrc, 0

    def repaired() -> bool:
        nonlocal number
        number += 1
        assert sender.relay is not None
        sender.socket.sendto(struct.pack("!BBHII", 0x80, 97, number, number, repair) + bytes(40), sender.relay)
        return repair in asks.types

    assert await_that(repaired), "RTX does not arrive"
    assert set(asks.types[repair]) == {124}
    time.sleep(0.3)
    assert repair not in without.types
