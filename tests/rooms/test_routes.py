"""WHIP, WHEP and the page's sessions over HTTP: statuses and headers, as RFC 9725 has them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer

from shunt.api.server import _error
from shunt.operator.rooms.routes import RoomRoutes
from shunt.operator.rooms.tokens import Grant, Signer
from tests.operator.stand_in import StandIn, server
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
        assert answer.status == 404 and (await answer.json())["error"] == "the media server has been restarted"


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
        assert answer.status == 503 and answer.headers["Retry-After"] and (await answer.json())["error"] == "The room is full. Try again in a minute."


async def test_pages_of_other_origins_may_ask_first(at: tuple[TestClient, Place]) -> None:
    client, _ = at
    async with client.options("/whip/board") as answer:
        assert answer.status == 204 and answer.headers["Accept-Post"] == "application/sdp"
        assert "Authorization" in answer.headers["Access-Control-Allow-Headers"] and "PATCH" in answer.headers["Access-Control-Allow-Methods"]


async def test_the_pages_session(at: tuple[TestClient, Place], monkeypatch: pytest.MonkeyPatch) -> None:
    client, place = at
    given = {"offer": lines(audio("0"), video("1"), video("2")), "name": "Ann Ä", "media": {"2": "screen"}}
    async with client.post("/rooms/board/sessions", json=given, headers=bearer()) as made:
        answer = await made.json()
        assert made.status == 201 and (answer["participant"], answer["name"]) == ("Ann_A", "Ann Ä") and answer["media"] == {"0": "audio", "1": "video", "2": "screen"}
    session = f"/rooms/board/sessions/{answer['session']}"
    now = time.time()
    with monkeypatch.context() as later:
        later.setattr("shunt.operator.rooms.tokens.time.time", lambda: now + 10_000_000_000)
        async with client.get(session + "/events", headers=bearer()) as events:
            assert events.status == 200, "whose token has expired since stays"
            assert (await events.content.readline()) == b"event: room\n"
        async with client.post("/rooms/board/sessions", json=given, headers=bearer()) as refused:
            assert refused.status == 401
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


@pytest.mark.parametrize("kind", ["application/sdp; charset=utf-8", "Application/SDP", 'application/sdp;x=y ; z="a;b"'])
async def test_a_content_type_may_have_parameters_and_an_answers_has_none(at: tuple[TestClient, Place], kind: str) -> None:
    client, _ = at
    async with client.post("/whip/board", data=PUBLISHED, headers={"Content-Type": kind} | bearer()) as made:
        assert made.status == 201 and made.headers["Content-Type"] == "application/sdp"
        where = made.headers["Location"]
    fragment = "m=audio 9 UDP/TLS/RTP/SAVPF 0\r\na=mid:0\r\na=ice-ufrag:EsAw\r\na=ice-pwd:P2uY\r\n"
    headers = {"Content-Type": "application/trickle-ice-sdpfrag; charset=utf-8", "If-Match": "*"} | bearer()
    async with client.patch(where, data=fragment, headers=headers) as answer:
        assert answer.status == 200 and answer.headers["Content-Type"] == "application/trickle-ice-sdpfrag"


@pytest.mark.parametrize(
    ("given", "status"), [("{0}", 204), ('"a", {0}', 204), ('{0},"b"', 204), ("W/{0}", 204), ('"a" , W/{0} , "c,d"', 204), ('"a","b"', 412), ("a", 400), ('"a" "b"', 400), ("", 412)]
)
async def test_if_match_is_a_list(at: tuple[TestClient, Place], given: str, status: int) -> None:
    client, _ = at
    async with client.post("/whip/board", data=PUBLISHED, headers=SDP | bearer()) as made:
        where, etag = made.headers["Location"], made.headers["ETag"]
    async with client.patch(where, data="a=end-of-candidates\r\n", headers=FRAGMENT | bearer() | {"If-Match": given.format(etag)}) as answer:
        assert answer.status == status, await answer.text()


@pytest.mark.parametrize(("path", "method"), [("/whip/board", "POST"), ("/whep/board", "POST"), ("/whip/board/1", "DELETE"), ("/rooms/board/sessions", "POST"), ("/v1/calls", "GET")])
async def test_another_method_is_a_405_that_names_those_that_are(tmp_path: Path, path: str, method: str) -> None:
    view = StandIn()
    view.rooms = SimpleNamespace(add_routes=lambda app, error: RoomRoutes(Place(tmp_path).rooms, KEYS, "", error).add(app))
    api = server(view, "127.0.0.1:0", None)
    await api.start()
    try:
        async with ClientSession() as client, client.put(f"http://{api.listen}{path}") as answer:
            assert answer.status == 405 and method in answer.headers["Allow"].split(","), answer.headers
            assert "PUT is not possible" in (await answer.json())["error"]
    finally:
        await api.close()


async def test_a_session_is_for_the_token_that_began_it(at: tuple[TestClient, Place]) -> None:
    """Whoever knows another's session, by whatever way, cannot end, change, mute or replace it with a link of its own."""
    client, place = at
    given = {"offer": PUBLISHED, "name": "ann"}
    async with client.post("/rooms/board/sessions", json=given, headers=bearer()) as made:
        page = await made.json()
    async with client.post("/whip/board", data=PUBLISHED, headers=SDP | bearer("publish")) as made:
        whip = made.headers["Location"]
    session = f"/rooms/board/sessions/{page['session']}"
    for role, until in (("watch", 4_000_000_000), ("publish", 4_000_000_001), ("room", 4_000_000_001)):
        stranger = bearer(role, until=until)
        for method, path, more in (
            ("DELETE", session, {}), ("DELETE", whip, {}), ("GET", session + "/events", {}), ("PUT", session + "/muted/yes", {}),
            ("POST", session, {"json": {"offer": WATCHED}}), ("PATCH", whip, {"data": "a=x:y\r\n", "headers": FRAGMENT | {"If-Match": "*"}}),
        ):  # fmt: skip
            async with client.request(method, path, **more | {"headers": more.get("headers", {}) | stranger}) as answer:
                assert answer.status == 403, (role, method, path)
    async with client.post("/rooms/board/sessions", json=given | {"replaces": page["session"]}, headers=bearer(until=4_000_000_001)) as made:
        assert (await made.json())["name"] == "ann-2", "who is in keeps its session and its name"
    assert sorted(place.names()) == ["ann", "ann-2", "publisher"]


async def test_a_program_gets_all_of_its_offer_or_a_status_and_a_page_what_the_room_has(at: tuple[TestClient, Place]) -> None:
    client, place = at
    audio_only = lines(audio("0"), "m=video 9 UDP/TLS/RTP/SAVPF 45\r\na=mid:1\r\na=sendonly\r\na=rtpmap:45 AV1/90000\r\n")
    for path, text in (("/whip/board", audio_only), ("/whep/board", audio_only.replace("sendonly", "recvonly"))):
        async with client.post(path, data=text, headers=SDP | bearer()) as answer:
            assert answer.status == 422 and "offered: AV1" in (await answer.json())["error"]
    assert place.at_edges() == [0, 0]
    async with client.post("/rooms/board/sessions", json={"offer": audio_only}, headers=bearer()) as made:
        answer = await made.json()
        assert made.status == 201 and answer["refused"] == {"video": "VP8 or H264"} and answer["media"] == {"0": "audio"}


async def test_others_are_told_who_is_muted(at: tuple[TestClient, Place]) -> None:
    client, place = at
    async with client.post("/rooms/board/sessions", json={"offer": PUBLISHED, "name": "ann", "muted": True}, headers=bearer()) as made:
        session = f"/rooms/board/sessions/{(await made.json())['session']}"

    async def muted() -> bool:
        async with client.get("/rooms/board/participants", headers=bearer()) as answer:
            return bool((await answer.json())["participants"][0]["muted"])

    assert await muted()
    for word, status, wanted in (("no", 204, False), ("perhaps", 404, False), ("yes", 204, True)):
        async with client.put(f"{session}/muted/{word}", headers=bearer()) as answer:
            assert answer.status == status
        assert await muted() is wanted
    (member,) = place.agent.rooms["board"]
    assert member["signalling"]["edge"]["muted"] is True, "it is kept with the participant"
    place.agent.away = True
    async with client.put(f"{session}/muted/no", headers=bearer()) as answer:
        assert answer.status == 503
    place.agent.away = False
    assert await muted(), "what the agent has not taken counts for nothing"


async def test_a_page_is_told_nothing_of_sockets_and_settings(at: tuple[TestClient, Place]) -> None:
    client, place = at
    place.agent.away = True
    async with client.get("/rooms/board/participants", headers=bearer()) as answer:
        assert answer.status == 503 and (await answer.json())["error"] == "The room's server does not answer. Try again in a moment."
    place.agent.away = False
    for edge in place.edges:
        edge.refuse = (429, "limits.sessions: 0")
    async with client.post("/rooms/board/sessions", json={"offer": PUBLISHED}, headers=bearer()) as answer:
        assert answer.status == 503 and (await answer.json())["error"] == "The room is full. Try again in a minute."
    for edge in place.edges:
        edge.refuse_media = True
    async with client.post("/rooms/board/sessions", json={"offer": PUBLISHED}, headers=bearer()) as answer:
        assert answer.status == 503 and "port" not in (await answer.json())["error"]
