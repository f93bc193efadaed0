"""REST routes of conferences, below /v1/conferences. Parameters are in the query: no request of the API takes a body."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from shunt.api.drain import COMMAND_HEADER
from shunt.conference.control.layers import Told
from shunt.conference.control.manager import Conferences
from shunt.conference.control.model import ConferenceError

_Answer = Callable[[web.Request], Awaitable[Any]]


def add_routes(app: web.Application, conferences: Conferences, error: Callable[..., web.Response]) -> None:
    """Serve conferences. error(status, message, parameter) makes an answer in the API's form."""

    def serve(known: tuple[str, ...], answer: _Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            if request.method not in ("GET", "HEAD") and COMMAND_HEADER not in request.headers:
                return error(403, f"a request that changes something needs the header {COMMAND_HEADER}")
            if not conferences.serving:
                return error(503, "this agent stands by, and the one in charge has the conferences")
            for name in request.query:
                if name not in known:
                    return error(400, f"{name}: unknown parameter; known here: {', '.join(known) or 'none'}", parameter=name)
                if len(request.query.getall(name)) > 1:
                    return error(400, f"{name}: given more than once", parameter=name)
            try:
                value = await answer(request)
                if request.method not in ("GET", "HEAD"):
                    await conferences.shelf.kept()  # what is answered outlives this agent
            except ConferenceError as failed:
                return error(failed.status, str(failed))
            headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
            return web.json_response(value, headers=headers, dumps=lambda given: json.dumps(given, ensure_ascii=False) + "\n")

        return handler

    async def everything(request: web.Request) -> Any:
        return {"conferences": conferences.list()}

    async def create(request: web.Request) -> Any:
        return conferences.create(_given(request, "name"))

    async def look(request: web.Request) -> Any:
        return await conferences.look(request.match_info["conference"])

    async def end(request: web.Request) -> Any:
        return conferences.end(request.match_info["conference"])

    async def join(request: web.Request) -> Any:
        media = request.query.get("media", "audio").split(",")
        ice = request.query.get("ice", "no")
        if ice not in ("yes", "no"):
            raise ConferenceError(400, f"ice: {ice!r} is neither yes nor no")
        await conferences.ready()
        return conferences.join(
            request.match_info["conference"], _given(request, "name"), media, _addresses(request), ice=ice == "yes", transport=request.query.get("transport", "RTP/AVP"),
            layers=_layers(request),
        )  # fmt: skip

    async def leave(request: web.Request) -> Any:
        return conferences.leave(request.match_info["conference"], request.match_info["participant"])

    async def quality(request: web.Request) -> Any:
        return conferences.set_quality(request.match_info["conference"], _given(request, "sender"), _given(request, "receiver"), _given(request, "quality"))

    async def target(request: web.Request) -> Any:
        wanted = _given(request, "target")
        if not wanted.isdecimal():
            raise ConferenceError(400, f"target: {wanted!r} is no number")
        name = request.match_info["conference"]
        conferences.set_target(name, _given(request, "sender"), _given(request, "receiver"), int(wanted))
        return await conferences.look(name)

    router, one = app.router, "/v1/conferences/{conference}"
    router.add_get("/v1/conferences", serve((), everything))
    router.add_post("/v1/conferences", serve(("name",), create))
    router.add_get(one, serve((), look))
    router.add_delete(one, serve((), end))
    router.add_post(one + "/participants", serve(("name", "media", "trusted", "ice", "transport", "layers"), join))
    router.add_delete(one + "/participants/{participant}", serve((), leave))
    router.add_post(one + "/quality", serve(("sender", "receiver", "quality"), quality))
    router.add_post(one + "/target", serve(("sender", "receiver", "target"), target))


def _given(request: web.Request, name: str) -> str:
    value = request.query.get(name)
    if not value:
        raise ConferenceError(400, f"{name}: is missing")
    return value


def _layers(request: web.Request) -> dict[str, Told]:
    """How media tell their layers: "video=dependency-descriptor:12,screen=vp8"."""
    found = {}
    for part in filter(None, request.query.get("layers", "").split(",")):
        kind, _, told = part.partition("=")
        try:
            found[kind] = Told.parse(told)
        except ValueError as error:
            raise ConferenceError(400, str(error)) from None
    return found


def _addresses(request: web.Request) -> list[bytes]:
    found = []
    for text in filter(None, request.query.get("trusted", "").split(",")):
        try:
            found.append(ipaddress.ip_address(text).packed)
        except ValueError:
            raise ConferenceError(400, f"trusted: {text!r} is not an IP address") from None
    return found
