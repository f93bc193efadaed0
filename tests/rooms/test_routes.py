"""WHIP, WHEP and the page's sessions over HTTP: statuses and headers, as RFC 9725 has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from shunt.api.server import _error
from shunt.operator.rooms.routes import RoomRoutes
from shunt.operator.rooms.tokens import Grant, Signer
from tests.rooms.test_offer import audio, lines, video
from tests.rooms.test_service import Place

KEYS = Signer(b"k" * 32)
SDP = {"Content-Type": "application/sdp"}
FRAGMENT = {"Content-Type": "application/trickle-ice-sdpfrag"}
PUBLISHED = lines(audio("0"), video("1"))
WATCHED = lines(audio("0", "recvonly"), video("1", "recvonly"))


def bearer(role: Any = "room", room: str = "board", until: int = 4_000_000_000) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS.token(Grant(room, role, until))}"}


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[tuple[TestClient, Place]]:
    place = Place(tmp_path)
    for edge in place.edges:
        await edge.start()
    place.rooms.start()
    app = web.Application()
    RoomRoutes(place.rooms, KEYS, "https://rooms.example.org", _error).add(app)
    async with TestClient(TestServer(app)) as client:
        yield client, place
    await place.rooms.close()
    for edge in place.edges:
        await edge.stop()


async def test_a_whip_session_from_its_begin_to_its_end(at: tuple[TestClient, Place]) -> None:
    client, place = at
    async with client.post("/whip/board?name=obs", data=PUBLISHED, headers=SDP | bearer("publish")) as made:
        assert made.status == 201 and made.content_type == "application/sdp" and await made.text() == "v=0\r\na=ice-ufrag:first\r\n"
        where, etag = made.headers["Location"], made.headers["ETag"]
        assert where.startswith("/whip/board/") and etag.startswith('"') and made.headers["Access-Control-Allow-Origin"] == "*"
    assert place.names() == ["obs"]
    fragment = "a=ice-ufrag:EsAw\r\na=ice-pwd:x\r\nm=audio 9 RTP/AVP 0\r\na=mid:0\r\na=end-of-candidates\r\n"
    for more, status in (({}, 428), ({"If-Match": '"other"'}, 412), ({"If-Match": etag}, 204)):
        async with client.patch(where, data=fragment, headers=FRAGMENT | bearer("publish") | more) as answer:
            assert answer.status == status, more
    async with client.patch(where, data=fragment, headers=SDP | bearer("publish") | {"If-Match": etag}) as answer:
        assert answer.status == 415
    async with client.delete(where, headers=bearer("publish")) as answer:
        assert answer.status == 200
    async with client.delete(where, headers=bearer("publish")) as answer:
        assert answer.status == 404 and (await answer.json())["error"] == "left"
    assert place.names() == [] and place.at_edges() == [0, 0]


@pytest.mark.parametrize("wildcard", ["*", '"*"'])
async def test_an_ice_restart_is_answered_with_the_edges_new_credentials(at: tuple[TestClient, Place], wildcard: str) -> None:
    client, place = at
    async with client.post("/whep/board", data=WATCHED, headers=SDP | bearer("watch")) as made:
        where, etag = made.headers["Location"], made.headers["ETag"]
    fragment = "a=group:BUNDLE 0 1\r\nm=audio 9 UDP/TLS/RTP/SAVPF 0\r\na=mid:0\r\na=ice-ufrag:EsAw\r\na=ice-pwd:P2uY\r\n"
    headers = FRAGMENT | bearer("watch")
    async with client.patch(where, data=fragment, headers=headers | {"If-Match": wildcard}) as answer:
        assert answer.status == 200 and answer.content_type == FRAGMENT["Content-Type"]
        text, renewed = await answer.text(), answer.headers["ETag"]
        assert "a=ice-ufrag:after EsAw\r\na=ice-pwd:new\r\na=candidate:1 1 udp" in text and "a=mid:0\r\n" in text
    assert renewed != etag
    for given, status in ((etag, 412), (renewed, 204)):
        async with client.patch(where, data=fragment, headers=headers | {"If-Match": given}) as answer:
            assert answer.status == status, "the ETag is of the ICE session"
    async with client.patch(where, data="a=ice-ufrag:EsAw\r\n", headers=headers | {"If-Match": wildcard}) as answer:
        assert answer.status == 400 and "a=ice-pwd" in (await answer.json())["error"]
    place.edges[0].sessions.clear()
    place.edges[1].sessions.clear()
    async with client.patch(where, data=fragment, headers=headers | {"If-Match": wildcard}) as answer:
        assert answer.status == 404 and "no such session" in (await answer.json())["error"]


async def test_whep_watches_and_only_watches(at: tuple[TestClient, Place]) -> None:
    client, place = at
    async with client.post("/whep/board", data=WATCHED, headers=SDP | bearer("watch")) as made:
        assert made.status == 201 and made.headers["Location"].startswith("/whep/board/")
    async with client.post("/whep/board", data=PUBLISHED, headers=SDP | bearer("watch")) as refused:
        assert refused.status == 403
    async with client.post("/whip/board", data=WATCHED, headers=SDP | bearer("watch")) as refused:
        assert refused.status == 403
    assert place.names() == ["viewer"]


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        ({}, 401, "token is needed"),
        ({"Authorization": "Bearer nonsense"}, 401, "none of this server's"),
        (bearer(room="kitchen"), 401, "another room"),
        (bearer(until=1), 401, "expired"),
        (bearer("watch"), 403, "watching"),
    ],
)
async def test_who_may_not_publish_is_told_why(at: tuple[TestClient, Place], headers: dict[str, str], status: int, said: str) -> None:
    client, place = at
    async with client.post("/whip/board", data=PUBLISHED, headers=SDP | headers) as answer:
        assert answer.status == status and said in (await answer.json())["error"]
        assert (status == 401) == ("WWW-Authenticate" in answer.headers)
    assert place.at_edges() == [0, 0] and place.agent.rooms == {}


async def test_what_is_no_offer_is_refused(at: tuple[TestClient, Place]) -> None:
    client, _ = at
    for body, headers, status in (("x", SDP, 400), (PUBLISHED, {"Content-Type": "text/plain"}, 415), ("v" * 300_000, SDP, 413), (b"\xff", SDP, 400)):
        async with client.post("/whip/board", data=body, headers=headers | bearer()) as answer:
            assert answer.status == status, body[:10]
    async with client.post("/whip/board", data=lines(audio("0", formats="9")), headers=SDP | bearer()) as answer:
        assert answer.status == 422 and "nothing is transcoded" in (await answer.json())["error"]


async def test_no_edge_is_a_503_that_says_when_to_come_again(at: tuple[TestClient, Place]) -> None:
    client, place = at
    for edge in place.edges:
        await edge.stop()
    async with client.post("/whip/board", data=PUBLISHED, headers=SDP | bearer()) as answer:
        assert answer.status == 503 and answer.headers["Retry-After"] and "an edge does not answer" in (await answer.json())["error"]


async def test_pages_of_other_origins_may_ask_first(at: tuple[TestClient, Place]) -> None:
    client, _ = at
    async with client.options("/whip/board") as answer:
        assert answer.status == 204 and answer.headers["Accept-Post"] == "application/sdp"
        assert "Authorization" in answer.headers["Access-Control-Allow-Headers"] and "PATCH" in answer.headers["Access-Control-Allow-Methods"]


async def test_the_pages_session(at: tuple[TestClient, Place]) -> None:
    client, place = at
    given = {"offer": lines(audio("0"), video("1"), video("2")), "name": "Ann Ä", "media": {"2": "screen"}}
    async with client.post("/rooms/board/sessions", json=given, headers=bearer()) as made:
        answer = await made.json()
        assert made.status == 201 and (answer["participant"], answer["name"]) == ("Ann_A", "Ann Ä") and answer["media"] == {"0": "audio", "1": "video", "2": "screen"}
    session = f"/rooms/board/sessions/{answer['session']}"
    async with client.get(session + "/events", headers=bearer(until=1)) as events:
        assert events.status == 200, "whose token has expired since stays"
        assert (await events.content.readline()) == b"event: room\n"
    async with client.post("/rooms/board/sessions", json=given | {"replaces": answer["session"]}, headers=bearer()) as made:
        assert (await made.json())["name"] == "Ann Ä" and place.names() == ["Ann_A"]
    async with client.post(session, json=given, headers=bearer()) as answer_again:
        assert answer_again.status == 404
    async with client.get("/rooms/board/participants", headers=bearer()) as peeked:
        assert [(one["id"], one["name"]) for one in (await peeked.json())["participants"]] == [("Ann_A", "Ann Ä")]
    async with client.get("/v1/rooms") as rooms:
        assert (await rooms.json())["rooms"] == [{"name": "board", "browsers": ["Ann Ä"]}]
    async with client.post("/rooms/board/sessions", json=given | {"name": "An\u202en"}, headers=bearer()) as refused:
        assert refused.status == 400 and "direction of writing" in (await refused.json())["error"]
    async with client.post("/rooms/board/sessions", json={"offer": 5}, headers=bearer()) as refused:
        assert refused.status == 400


async def test_links(at: tuple[TestClient, Place]) -> None:
    client, _ = at
    command = {"X-Shunt-Command": "1"}
    async with client.post("/v1/rooms/board/links?valid_s=60&role=watch&name=eve", headers=command) as made:
        link = await made.json()
        assert link["page"] == f"https://rooms.example.org/rooms/board#{link['token']}"
        assert KEYS.grant(link["token"], "board") == Grant("board", "watch", link["until"], "eve")
    async with client.post("/v1/rooms/board/links?name=Zoe%CC%88", headers=command) as made:
        assert KEYS.grant((await made.json())["token"], "board").name == "Zoë"
    for query, headers, status in (("?valid_s=0", command, 400), ("?name=a%0Ab", command, 400), ("?role=king", command, 400), ("?colour=red", command, 400), ("", {}, 403)):
        async with client.post(f"/v1/rooms/board/links{query}", headers=headers) as refused:
            assert refused.status == status, query
