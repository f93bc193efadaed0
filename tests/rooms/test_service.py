"""A browser's session is at an edge and at the agent, or at neither: whichever of the two fails, and when the operator daemon starts anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from shunt.admin import AgentError, AgentUnreachable
from shunt.config.rooms import Rooms as Settings
from shunt.events.bus import CONFERENCE, Event
from shunt.operator.rooms.edge import EdgeClient, EdgeRefused
from shunt.operator.rooms.offer import NotTaken
from shunt.operator.rooms.service import NoEdge, NotYet, Rooms, SessionGone
from tests.rooms.fakes import FakeAgent, FakeEdge, agent_client
from tests.rooms.test_offer import audio, lines, video

OFFER = lines(audio("0"), video("1"), audio("2", "recvonly"))


class Place:
    """A service with two edges and an agent."""

    def __init__(self, tmp: Path) -> None:
        self.edges = [FakeEdge(tmp / f"edge{number}.sock", 30000 + 1000 * number) for number in range(2)]
        self.agent = FakeAgent()
        self.settings = Settings.model_validate({"edges": [f"unix:{edge.path}" for edge in self.edges], "secret_file": str(tmp / "secret")})
        self.rooms = self.service()

    def service(self) -> Rooms:
        return Rooms(self.settings, agent_client(self.agent), [EdgeClient(str(edge.path)) for edge in self.edges])

    def names(self, room: str = "board") -> list[str]:
        return [one["participant"] for one in self.agent.rooms.get(room, [])]

    def at_edges(self) -> list[int]:
        return [len(edge.sessions) for edge in self.edges]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    for edge in made.edges:
        await edge.start()
    made.rooms.start()
    yield made
    await made.rooms.close()
    for edge in made.edges:
        await edge.stop()


async def true(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return condition()


async def test_a_browser_is_at_an_edge_and_at_the_agent(place: Place) -> None:
    joined = await place.rooms.join("board", "ann", OFFER, "room")
    (member,) = place.agent.rooms["board"]
    assert [(one["medium"], one["direction"]) for one in member["media"]] == [("audio", "sendonly"), ("video", "sendonly"), ("audio/2", "recvonly")]
    edge = place.edges[0] if place.edges[0].sessions else place.edges[1]
    assert edge.connected[joined.session.id] == [
        {"mid": "0", "rtp": "203.0.113.10:20000"},
        {"mid": "1", "rtp": "203.0.113.10:20002"},
        {"mid": "2", "rtp": "203.0.113.10:20004"},
    ]
    await place.rooms.leave(joined.session)
    assert place.names() == [] and place.at_edges() == [0, 0] and place.agent.left == [("board", "ann", "bye")]


async def test_who_only_watches_has_a_first_medium_on_hold(place: Place) -> None:
    await place.rooms.join("board", "eve", lines(audio("0", "recvonly"), video("1", "recvonly")), "watch")
    (member,) = place.agent.rooms["board"]
    assert {one["medium"]: one["direction"] for one in member["media"]} == {"audio/2": "recvonly", "video/2": "recvonly", "audio": "inactive", "video": "inactive"}


async def test_the_edge_with_fewer_sessions_is_taken_and_one_that_is_down_is_left_out(place: Place) -> None:
    for _ in range(4):
        await place.rooms.join("board", "ann", OFFER, "room")
    assert place.at_edges() == [2, 2] and place.names() == ["ann", "ann-2", "ann-3", "ann-4"]
    await place.edges[0].stop()
    await place.rooms.join("board", "bob", OFFER, "room")
    assert len(place.edges[1].sessions) == 3


async def test_an_edge_that_is_full_is_left_out_and_without_any_the_reason_is_said(place: Place) -> None:
    place.edges[0].refuse = place.edges[1].refuse = (429, "limits.sessions: 0")
    with pytest.raises(NoEdge, match="limits.sessions: 0; limits.sessions: 0"):
        await place.rooms.join("board", "ann", OFFER, "room")
    place.edges[0].refuse = (400, "line 1 has no fingerprint")
    with pytest.raises(EdgeRefused, match="no fingerprint"):
        await place.rooms.join("board", "ann", OFFER, "room")


async def test_nothing_is_left_where_the_agent_refuses(place: Place) -> None:
    place.agent.refuse = AgentError(400, "invalid", "ann's video is H264, bob has not named it")
    with pytest.raises(AgentError, match="has not named it"):
        await place.rooms.join("board", "ann", OFFER, "room")
    assert await true(lambda: place.at_edges() == [0, 0]) and place.names() == [] and place.rooms.all() == []


async def test_nothing_is_left_where_the_edge_fails_last(place: Place) -> None:
    for edge in place.edges:
        edge.refuse_media = True
    with pytest.raises(EdgeRefused, match="no port"):
        await place.rooms.join("board", "ann", OFFER, "room")
    assert await true(lambda: place.at_edges() == [0, 0] and place.names() == [])


async def test_what_the_edge_ends_leaves_also_while_the_agent_is_away(place: Place) -> None:
    joined = await place.rooms.join("board", "ann", OFFER, "room")
    edge = next(one for one in place.edges if one.sessions)
    await true(lambda: bool(edge._followers))
    place.agent.away = True
    edge.close_session(joined.session.id, "no consent for 15 s")
    assert await true(lambda: place.rooms.all() == [])
    with pytest.raises(SessionGone, match="no consent for 15 s"):
        place.rooms.session("board", joined.session.id)
    place.agent.away = False
    assert await true(lambda: place.names() == [])


async def test_whom_the_agent_takes_out_loses_its_session(place: Place) -> None:
    joined = await place.rooms.join("board", "ann", OFFER, "room")
    member = place.agent.rooms["board"].pop()
    facts = {"conference": "board", "participant": "ann", "signalling": member["signalling"], "reason": "removed"}
    place.rooms(Event(CONFERENCE, "", "left", time.time(), None, None, None, facts))
    assert await true(lambda: place.at_edges() == [0, 0])
    (closed,) = [look async for look in place.rooms.follow(joined.session)]
    assert closed == {"closed": "removed from the room: removed"}


async def test_a_new_process_takes_up_what_both_have_and_ends_what_one_has(place: Place) -> None:
    both = await place.rooms.join("board", "ann", OFFER, "room")
    gone = await place.rooms.join("board", "bob", OFFER, "room")
    alone = await place.rooms.join("board", "cem", OFFER, "room")
    await place.rooms.close()
    for edge in place.edges:
        edge.sessions.pop(gone.session.id, None)
    place.agent.rooms["board"] = [one for one in place.agent.rooms["board"] if one["participant"] != "cem"]
    place.rooms = place.service()
    place.rooms.start()
    assert await true(lambda: place.names() == ["ann"] and sum(place.at_edges()) == 1)
    assert place.rooms.session("board", both.session.id).names == both.session.names
    await place.rooms.renegotiate(place.rooms.session("board", both.session.id), lines(audio("0"), video("1"), audio("2", "recvonly"), video("3", "recvonly")))
    assert place.agent.rooms["board"][0]["media"][-1]["medium"] == "video/2"
    assert alone.session.id not in [one.id for one in place.rooms.all()]


async def test_until_sessions_are_adopted_none_is_said_to_be_gone(place: Place) -> None:
    joined = await place.rooms.join("board", "ann", OFFER, "room")
    await place.rooms.close()
    place.agent.away = True
    place.rooms = place.service()
    place.rooms.start()
    with pytest.raises(NotYet):
        place.rooms.session("board", joined.session.id)
    with pytest.raises(NotYet):
        await place.rooms.join("board", "bob", OFFER, "room")
    place.agent.away = False

    def is_gone(session: str) -> bool:
        try:
            return place.rooms.session("board", session) is None
        except NotYet:
            return False
        except SessionGone:
            return True

    assert await true(lambda: is_gone("f" * 32))
    assert place.rooms.session("board", joined.session.id).participant == "ann"


async def test_an_edge_that_died_with_the_process_loses_its_sessions(place: Place) -> None:
    await place.rooms.join("board", "ann", OFFER, "room")
    await place.rooms.close()
    for edge in place.edges:
        await edge.stop()
    place.rooms = place.service()
    place.rooms.start()
    assert await true(lambda: place.names() == [])


async def test_an_edge_that_is_gone_loses_its_sessions_and_a_name_is_free_for_who_comes_again(place: Place) -> None:
    joined = await place.rooms.join("board", "ann", OFFER, "room")
    edge = next(one for one in place.edges if one.sessions)
    await edge.stop()
    assert await true(lambda: place.rooms.all() == [])
    await place.rooms.replaced("board", joined.session.id, "")
    again = await place.rooms.join("board", "ann", OFFER, "room")
    assert again.session.participant == "ann" and again.session.edge != joined.session.edge


async def test_while_the_agent_is_away_nobody_comes_in_and_nobody_is_lost(place: Place) -> None:
    joined = await place.rooms.join("board", "ann", OFFER, "room")
    place.agent.away = True
    with pytest.raises(AgentUnreachable):
        await place.rooms.join("board", "bob", OFFER, "room")
    look = await anext(aiter(place.rooms.follow(joined.session)))
    assert look["problem"] == "The room's server does not answer. Audio and video continue." and sum(place.at_edges()) == 1
    assert place.rooms.all() == [joined.session]


async def test_what_the_room_cannot_take_is_refused_with_the_reason(place: Place) -> None:
    await place.rooms.join("board", "ann", lines(audio("0", formats="0")), "room")
    with pytest.raises(NotTaken, match="audio is PCMU/8000 in this room"):
        await place.rooms.join("board", "bob", lines(audio("0", formats="111")), "room")


async def test_a_page_is_told_who_comes_and_how_many_lines_it_needs(place: Place) -> None:
    joined = await place.rooms.join("board", "ann", OFFER, "room")
    looks = place.rooms.follow(joined.session)
    first = await anext(looks)
    assert first["participants"] == [] and first["wanted"] == {"audio": 0, "video": 0, "screen": 0}
    await place.rooms.join("board", "bob", OFFER, "room")
    now = await anext(looks)
    while not now:
        now = await anext(looks)
    assert [one["name"] for one in now["participants"]] == ["bob"] and now["wanted"] == {"audio": 1, "video": 1, "screen": 0}
    assert now["lines"] == [{"mid": "2", "medium": "audio", "shows": None, "ssrc": None}]
