"""The operator daemon goes in the middle of conferences: nobody loses media, and calls go on where they were when it is back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conference_control.lab import Bridge, Phone, await_that, bridge, unbroken
from tests.conference_control.room import NEEDS as pytestmark, accounted, enter
from tests.lab.topology import LabError


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Bridge]:
    """A bridge with an empty conference `room`."""
    with bridge(tmp_path) as made:
        made.ask("POST", "/v1/conferences?name=room")
        made.await_ready()
        yield made


def callers(room: Bridge) -> list[Phone]:
    """Two who have dialled in and hear each other."""
    phones = [Phone(room, host, name) for host, name in (("caller", "ann"), ("callee", "bob"))]
    for phone in phones:
        assert phone.call("room") == 200
    room.await_design("two-party")
    ann, bob = (phone.party for phone in phones)
    ann.await_packets(bob)
    bob.await_packets(ann)
    return phones


def names(room: Bridge) -> list[str]:
    return [one["name"] for one in room.conference()["participants"]]


def test_nobody_loses_media_and_dialogs_go_on(room: Bridge) -> None:
    """Killed between two who talk: not one packet is missing; then hold, resume, a third caller, and BYEs of both sides."""
    phones = callers(room)
    ann, bob = (phone.party for phone in phones)
    room.operator.kill()
    time.sleep(1.0)
    ann.await_packets(bob)
    room.start_operator()
    relay = ann.relay
    assert phones[0].call("room", "m=audio {port} RTP/AVP 0\r\na=inactive\r\n") == 200 and "a=inactive\r\n" in phones[0].answer
    assert room.conference()["participants"][0]["media"][0]["direction"] == "inactive"
    assert phones[0].call("room") == 200 and ann.relay == relay and names(room) == ["ann", "bob"]
    ann.await_packets(bob)
    bob.await_packets(ann)
    room.operator.kill()
    room.start_operator()
    third = Phone(room, "caller", "cem")
    assert third.call("room") == 200 and names(room) == ["ann", "bob", "cem"]
    assert phones[0].bye() == 200
    assert await_that(lambda: "ann" not in names(room))
    room.leave(bob)
    assert phones[1].receive().startswith("BYE sip:bob@"), "whoever answered the call, who is put out gets a BYE"
    ann.hush()
    assert unbroken(bob.received(ann)), "her media went on over both kills, and while she did not want any"


def test_a_phone_is_called_by_its_display_name_and_keeps_it(room: Bridge) -> None:
    """In any script, over a re-INVITE and a kill of the daemon, up to the record; another phone of that name gets a number; the REST API takes such names too."""
    first, second = (Phone(room, host, user, display="王 小明") for host, user in (("caller", "1001"), ("callee", "1002")))
    assert first.call("room") == second.call("room") == 200
    room.ask("POST", "/v1/conferences/room/participants?name=Zoe%CC%88%20M%C3%BCller")
    wanted = [("1001", "王 小明"), ("1002", "王 小明-2"), ("Zoe_Muller", "Zoë Müller")]

    def shown() -> list[tuple[str, str]]:
        return [(one["id"], one["name"]) for one in room.conference()["participants"]]

    assert shown() == wanted
    assert first.call("room", "m=audio {port} RTP/AVP 0\r\na=inactive\r\n") == 200 and shown() == wanted
    room.operator.kill()
    room.start_operator()
    assert shown() == wanted
    assert "王 小明 (1001)" in room.shunt("conference", "watch", "room", "--once")
    room.ask("DELETE", "/v1/conferences/room/participants/Zo%C3%AB%20M%C3%BCller")
    assert first.bye() == 200
    assert {(one["participant"], one["name"]) for one in room.records(2)} == {wanted[0], wanted[2]}


def test_who_is_put_out_while_it_is_away_gets_a_bye_when_it_is_back(room: Bridge) -> None:
    phones = callers(room)
    room.operator.kill()
    room.leave_at_agent(phones[1].party)
    room.start_operator()
    bye = phones[1].receive()
    assert bye.startswith("BYE sip:bob@")
    phones[1].accept(bye)
    assert names(room) == ["ann"]
    (record,) = room.records(1)
    assert (record["participant"], record["reason"]) == ("bob", "removed")


def test_an_invite_whose_answer_is_lost_with_the_daemon_is_answered_by_the_next(room: Bridge) -> None:
    phone = Phone(room, "caller", "ann")
    assert phone.call("room") == 200
    answer = phone.answer
    room.operator.kill()
    room.start_operator()
    again = phone.repeat("INVITE")
    assert again.startswith("SIP/2.0 200") and names(room) == ["ann"]

    def tag(text: str) -> str:
        return next(line for line in text.splitlines() if line.startswith("To:"))

    assert tag(again) == tag(answer) and again.partition("m=audio")[2] == answer.partition("m=audio")[2]


def test_calls_are_refused_while_the_agent_is_away(room: Bridge) -> None:
    """A SIP server that gets a 503 takes another; within calls nothing is answered that would end them."""
    phones = callers(room)
    room.agent.kill()
    assert Phone(room, "callee", "cem").call("room") == 503
    with pytest.raises(LabError):
        room.conference()
    phones[0].party.await_packets(phones[1].party)
    room.start_agent()
    room.await_ready()
    assert phones[0].bye() == 200
    assert await_that(lambda: names(room) == ["bob"])
