"""The REST API on a real socket, over a stand-in for the agent."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from shunt.api import server
from shunt.api.server import ApiServer
from tests.operator import stand_in
from tests.operator.stand_in import ODD_CALL_ID, StandIn


class Client:
    """A real HTTP client against a real server."""

    def __init__(self, api: ApiServer, view: StandIn, session: aiohttp.ClientSession) -> None:
        self.api, self.view, self.session = api, view, session
        self.base = "http://localhost" if api.listen.path else f"http://{api.listen}"

    async def get(self, path: str, method: str = "GET", **more: Any) -> tuple[int, Any]:
        from yarl import URL

        async with self.session.request(method, URL(self.base + path, encoded=True), **more) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text


async def _client(listen: str, token: str | None = None):
    view = StandIn()
    api = stand_in.server(view, listen, token)
    await api.start()
    connector = aiohttp.UnixConnector(api.listen.path) if api.listen.path else aiohttp.TCPConnector()
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Client(api, view, session)
    await api.close()


@pytest.fixture(params=["tcp", "unix"])
async def client(request, tmp_path):
    async for each in _client("127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/api.sock"):
        yield each


@pytest.fixture
async def guarded():
    async for each in _client("127.0.0.1:0", "correct horse"):
        yield each


async def test_status_is_the_views(client):
    assert await client.get("/v1/status") == (200, await client.view.status())


async def test_calls_are_in_order_of_creation_and_paged(client):
    status, answer = await client.get("/v1/calls")
    assert (status, answer["total"], answer["next"]) == (200, 4, None)
    assert [c["call_id"] for c in answer["calls"]][:2] == ["first@x", "second@x"]
    _, page = await client.get("/v1/calls?limit=2&offset=1")
    assert ([c["call_id"] for c in page["calls"]], page["total"], page["next"]) == (["second@x", ODD_CALL_ID], 4, 3)
    _, last = await client.get("/v1/calls?limit=2&offset=3")
    assert (len(last["calls"]), last["next"]) == (1, None)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=learning", 2),
        ("reason=re-invite", 1),
        ("state=offloaded", 2),
        ("state=learning&reason=offloaded", 0),  # of one and the same stream
        ("state=nonsense", 0),
        ("problems=yes", 1),
        ("problems=no", 4),
    ],
)
async def test_calls_are_filtered_by_a_stream_that_matches_both(client, query, expected):
    assert (await client.get(f"/v1/calls?{query}"))[1]["total"] == expected


async def test_one_call_and_why(client):
    assert await client.get("/v1/calls/first@x") == (200, await client.view.call("first@x"))
    status, answer = await client.get("/v1/calls/first@x/why")
    assert (status, answer["age_s"]) == (200, 76.0)


async def test_calls_are_found_by_what_sip_said(client):
    async def found(query: str) -> list[str]:
        status, answer = await client.get(f"/v1/find?{query}")
        assert status == 200
        return [call["call_id"] for call in answer["calls"]]

    assert await found("") == ["gone@x", "first@x"] and await found("text=4930123") == ["gone@x"]
    assert await found("over=no") == ["first@x"] and await found("over=yes&limit=1&since=1700000000&until=1900000000") == ["gone@x"]


async def test_any_call_id_can_be_asked_for(client):
    path = "/v1/calls/" + quote(ODD_CALL_ID, safe="")
    assert (await client.get(path))[1]["call_id"] == ODD_CALL_ID
    assert (await client.get(path + "/why"))[1]["call_id"] == ODD_CALL_ID


@pytest.mark.parametrize(
    ("path", "status", "parameter", "says"),
    [
        ("/v1/calls/nobody", 404, "call_id", "no call with Call-ID 'nobody'"),
        ("/v1/calls/nobody/why", 404, "call_id", "nobody"),
        ("/v1/calls?limit=0", 400, "limit", "1..1000"),
        ("/v1/calls?limit=x", 400, "limit", "'x' is not a number"),
        ("/v1/calls?offset=-1", 400, "offset", "'-1'"),
        ("/v1/calls?offset=" + "9" * 5000, 400, "offset", "is not a number"),
        ("/v1/calls?stat=learning", 400, "stat", "known here: state, reason, match, problems, sort, last_known, limit, offset"),
        ("/v1/calls?problems=many", 400, "problems", "'many' is neither yes nor no"),
        ("/v1/calls?state=a&state=b", 400, "state", "more than once"),
        ("/v1/trace", 400, "src", "missing"),
        ("/v1/trace?src=192.0.2.1:5", 400, "dst", "missing"),
        ("/v1/trace?src=192.0.2.1&dst=192.0.2.2:1", 400, "src", "not ADDRESS:PORT"),
        ("/v1/trace?src=192.0.2.1:5&dst=192.0.2.2:99999", 400, "dst", "0..65535"),
        ("/v1/trace?src=192.0.2.1:5&dst=[2001:db8::1]:7", 400, "dst", "no packet is both"),
        ("/v1/find?over=maybe", 400, "over", "'maybe' is neither yes nor no"),
        ("/v1/find?since=yesterday", 400, "since", "'yesterday' is not a number"),
        ("/v1/status?x=1", 400, "x", "unknown parameter"),
        ("/v2", 404, None, "no such resource: /v2"),
    ],
)
async def test_errors_are_json_and_name_the_parameter(client, path, status, parameter, says):
    got, answer = await client.get(path)
    assert (got, answer.get("parameter")) == (status, parameter)
    assert says in answer["error"]


async def test_trace_is_the_data_planes_answer(client):
    status, answer = await client.get("/v1/trace?src=192.0.2.9:4000&dst=[::ffff:192.0.2.1]:35000")
    assert (status, answer["key"]) == (200, "192.0.2.9:4000 > 192.0.2.1:35000")
    assert answer == await client.view.trace("192.0.2.9:4000", "192.0.2.1:35000")


async def test_writing_is_refused_as_json(client):
    status, answer = await client.get("/v1/status", method="POST")
    assert (status, answer["error"]) == (405, "POST is not possible here")
    status, answer = await client.get("/v1/status", data=b"x" * 5000)
    assert status == 413 and "body" in answer["error"]


async def test_what_does_not_answer_is_said_and_metrics_go_on(client):
    client.view.unavailable = True
    status, answer = await client.get("/v1/calls/first@x/why")
    assert (status, answer["error"]) == (503, "data plane: 127.0.0.1:50052 does not answer")
    assert (await client.get("/v1/trace?src=192.0.2.1:5&dst=192.0.2.2:6"))[0] == 503
    status, text = await client.get("/metrics")
    assert status == 200
    assert "shunt_agent_up 0.0" in text and "shunt_history_events 12.0" in text and "shunt_calls" not in text
    assert await client.get("/readyz") == (503, "agent-unreachable: it does not answer\n")


async def test_hanging_data_plane_is_given_up(client, monkeypatch):
    monkeypatch.setattr(server, "_DATA_PLANE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(server, "_METRICS_TIMEOUT_S", 0.05)
    client.view.hang = True
    status, answer = await client.get("/v1/calls/first@x/why")
    assert status == 503 and "has not answered within 0.05 s" in answer["error"]
    assert (await client.get("/metrics"))[0] == 200


async def test_failure_inside_the_daemon_is_500_without_its_words(client):
    client.view.broken = True
    status, answer = await client.get("/v1/status")
    assert status == 500 and "broken" not in answer["error"]
    assert await client.get("/healthz") == await client.get("/readyz") == (200, "ok\n")


async def test_metrics_are_valid_and_true(client):
    _, text = await client.get("/metrics")
    samples = {(s.name, tuple(s.labels.values())): s.value for f in text_string_to_metric_families(text) for s in f.samples}
    assert samples["shunt_agent_up", ()] == 1
    assert samples["shunt_calls", ()] == 4
    assert samples["shunt_streams", ("learning",)] == 2
    assert samples["shunt_media_packets_total", ("data_plane",)] == 90_000
    assert samples["shunt_cdr_written_total", ()] == 3 and samples["shunt_history_capacity", ()] == 100
    assert "shunt_homer" not in text


async def test_events_give_a_status_each_second_and_end_with_the_server(client, monkeypatch):
    monkeypatch.setattr(server, "_EVENT_PERIOD_S", 0.02)
    async with client.session.get(client.base + "/v1/events") as response:
        assert response.content_type == "text/event-stream"
        for _ in range(3):
            assert await response.content.readline() == b"event: status\n"
            data = await response.content.readline()
            assert json.loads(data.removeprefix(b"data: "))["calls"] == 4
            assert await response.content.readline() == b"\n"
        await client.api.close()
        async with asyncio.timeout(60):
            await response.content.read()  # to its end


async def test_number_of_event_clients_is_limited(client, monkeypatch):
    monkeypatch.setattr(server, "_MAX_EVENT_CLIENTS", 1)
    monkeypatch.setattr(server, "_EVENT_PERIOD_S", 0.02)
    async with client.session.get(client.base + "/v1/events") as first:
        await first.content.readline()
        assert (await client.get("/v1/events"))[0] == 503
    async with asyncio.timeout(60):
        # The first client has gone; its place is free as soon as the server notices.
        while True:
            async with client.session.get(client.base + "/v1/events") as again:
                if again.status == 200:
                    break
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic correct horse", "Bearer", "Bearer corr\u00e9ct"])
async def test_without_the_token_nothing_but_health_is_told(guarded, header):
    headers = {"Authorization": header} if header else {}
    for path in ("/v1/status", "/v1/calls", "/metrics", "/v1/events", "/nothing"):
        status, answer = await guarded.get(path, headers=headers)
        assert (status, "token" in answer["error"]) == (401, True), path
    assert (await guarded.get("/healthz", headers=headers))[0] == 200


async def test_with_the_token_it_answers(guarded):
    assert (await guarded.get("/v1/status", headers={"Authorization": "bearer correct horse"}))[0] == 200


async def test_without_a_token_a_foreign_host_name_is_refused():
    async for client in _client("127.0.0.1:0"):
        assert (await client.get("/v1/calls", headers={"Host": "attacker.example:8077"}))[0] == 403
        for host in ("localhost:1", "127.0.0.1", "[::1]:8077"):
            assert (await client.get("/v1/calls", headers={"Host": host}))[0] == 200


async def test_unix_socket_is_not_for_everybody_and_goes_away(tmp_path):
    path = tmp_path / "api.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    api = stand_in.server(StandIn(), f"unix:{path}")
    await api.start()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    with pytest.raises(OSError, match="another process listens on it"):
        await stand_in.server(StandIn(), f"unix:{path}").start()
    await api.close()
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(OSError, match="is no socket"):
        await stand_in.server(StandIn(), f"unix:{path}").start()
    assert path.read_text() == "precious"


async def test_taken_port_is_named():
    api = stand_in.server(StandIn(), "127.0.0.1:0")
    await api.start()
    with pytest.raises(OSError, match=f"API socket 127.0.0.1:{api.listen.port}"):
        await stand_in.server(StandIn(), str(api.listen)).start()
    await api.close()


async def test_raw_garbage_does_not_stop_it(client):
    if client.api.listen.path:
        family, address = socket.AF_UNIX, client.api.listen.path
    else:
        family, address = socket.AF_INET, (client.api.listen.host, client.api.listen.port)
    for garbage in (b"\x00" * 100, b"GET " + b"/" * 20_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n"):
        with socket.socket(family) as raw:
            raw.connect(address)
            raw.sendall(garbage)
    assert (await client.get("/healthz"))[0] == 200
