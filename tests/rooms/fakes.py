"""An edge and an agent in this process, as their documents describe them: for what real ones do only when they fail."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path
from typing import Any, cast

from aiohttp import web

from shunt.admin import AgentError, AgentUnreachable
from shunt.admin.model import Conference, Participant
from shunt.operator.rooms.offer import read
from tests.operator_conferences import samples


class FakeEdge:
    """Takes every line that is not switched off. refuse: (status, words) of the next new session."""

    def __init__(self, path: Path, port: int = 30000) -> None:
        self.path, self.port = path, port
        self.sessions: dict[str, dict[str, Any]] = {}
        self.connected: dict[str, list[dict[str, str]]] = {}
        self.refuse: tuple[int, str] | None = None
        self.refuse_media = False
        self._followers: list[asyncio.Queue[dict[str, Any]]] = []
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/status", self._status)
        app.router.add_get("/v1/sessions", self._list)
        app.router.add_post("/v1/sessions", self._create)
        app.router.add_post("/v1/sessions/{id}/offer", self._renegotiate)
        app.router.add_post("/v1/sessions/{id}/ice", self._restart_ice)
        app.router.add_put("/v1/sessions/{id}/media", self._media)
        app.router.add_get("/v1/sessions/{id}", self._one)
        app.router.add_delete("/v1/sessions/{id}", self._end)
        app.router.add_get("/v1/events", self._events)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.path)).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self.path.unlink(missing_ok=True)

    def close_session(self, session: str, reason: str) -> None:
        del self.sessions[session]
        for follower in self._followers:
            follower.put_nowait({"session": session, "state": "closed", "reason": reason})

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response({"sessions": len(self.sessions)})

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response({"sessions": [{"session": one, "state": "connected"} for one in self.sessions]})

    async def _create(self, request: web.Request) -> web.Response:
        given = await request.json()
        if self.refuse is not None:
            (status, words), self.refuse = self.refuse, None
            return web.json_response({"error": words}, status=status)
        session = secrets.token_hex(16)
        self.sessions[session] = given | {"ufrag": "first"}
        return web.json_response({"session": session} | self._answer(given["offer"]), status=201)

    async def _one(self, request: web.Request) -> web.Response:
        found = self.sessions.get(request.match_info["id"])
        return web.json_response({"ufrag": found["ufrag"]}) if found is not None else web.json_response({"error": "no such session"}, status=404)

    async def _restart_ice(self, request: web.Request) -> web.Response:
        given, found = await request.json(), self.sessions.get(request.match_info["id"])
        if found is None:
            return web.json_response({"error": "no such session"}, status=404)
        found["ufrag"] = f"after {given['ufrag']}"
        return web.json_response({"ufrag": found["ufrag"], "pwd": "new", "candidates": ["candidate:1 1 udp 1 198.18.4.2 3478 typ host"]})

    async def _renegotiate(self, request: web.Request) -> web.Response:
        if request.match_info["id"] not in self.sessions:
            return web.json_response({"error": "no such session"}, status=404)
        return web.json_response(self._answer((await request.json())["offer"]))

    def _answer(self, text: str) -> dict[str, Any]:
        media = [
            {"mid": one.mid, "kind": one.kind, "direction": one.direction, "rtp": f"198.18.4.2:{self.port + 2 * place}", "codecs": one.codecs()[:1], "layers": None}
            for place, one in enumerate(read(text).sections)
            if not one.refused
        ]
        return {"answer": "v=0\r\na=ice-ufrag:first\r\n", "media": media}

    async def _media(self, request: web.Request) -> web.Response:
        if self.refuse_media:
            return web.json_response({"error": "no port"}, status=503)
        self.connected[request.match_info["id"]] = (await request.json())["media"]
        return web.Response(status=204)

    async def _end(self, request: web.Request) -> web.Response:
        return web.Response(status=404 if self.sessions.pop(request.match_info["id"], None) is None else 204)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._followers.append(queue)
        try:
            while True:
                await response.write(json.dumps(await queue.get()).encode() + b"\n")
        finally:
            self._followers.remove(queue)


class FakeAgent:
    """The methods of AdminClient that rooms use."""

    def __init__(self) -> None:
        self.rooms: dict[str, list[Participant]] = {}
        self.away = False
        self.refuse: AgentError | None = None
        self.left: list[tuple[str, str, str]] = []

    def _there(self, room: str) -> list[Participant]:
        if self.away:
            raise AgentUnreachable("/run/admin.sock", "connection refused")
        if room not in self.rooms:
            raise AgentError(404, "not-found", f"there is no conference {room}")
        return self.rooms[room]

    async def conferences(self) -> list[dict[str, Any]]:
        if self.away:
            raise AgentUnreachable("/run/admin.sock", "connection refused")
        return [{"conference": name} for name in self.rooms]

    async def conference(self, room: str) -> Conference:
        return samples.conference(*self._there(room), conference=room)

    async def create_conference(self, room: str) -> None:
        self.rooms[room] = []

    async def join(self, room: str, name: str, media: list[dict[str, Any]], *, signalled: list[str], signalling: Any, call: str | None = None) -> Participant:
        members = self._there(room)
        if self.refuse is not None:
            raise self.refuse
        made = [{**samples.medium(one["medium"], 20000 + 2 * place), **{key: one[key] for key in ("direction", "codecs")}} for place, one in enumerate(media)]
        members.append(samples.participant(name, *made, signalling=signalling, call=call))
        return members[-1]

    async def update_participant(self, room: str, name: str, *, signalling: Any, media: list[dict[str, Any]] | None = None) -> Participant:
        members = self._there(room)
        before = next(one for one in members if one["participant"] == name)
        if media is None:
            before["signalling"] = signalling
            return before
        members.remove(before)
        return await self.join(room, name, media, signalled=[], signalling=signalling)

    async def leave(self, room: str, name: str, reason: str) -> None:
        self.rooms[room] = [one for one in self._there(room) if one["participant"] != name]
        self.left.append((room, name, reason))


def agent_client(agent: FakeAgent) -> Any:
    return cast(Any, agent)
