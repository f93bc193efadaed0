"""REST routes of conferences, below /v1/conferences: questions and commands go to the agent. Parameters are in the query: no request of the API takes a body."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast, get_args

from aiohttp import web

from shunt.admin.model import JoinMedium, Layers, Mixed, Participant, Quality, TiledCodec
from shunt.api.drain import COMMAND_HEADER
from shunt.api.view import AgentUnavailable, NotDone
from shunt.operator.asking import Agent
from shunt.operator.conferences import names, view
from shunt.operator.conferences.happened import Happened
from shunt.operator.conferences.names import BadName

_Answer = Callable[[web.Request], Awaitable[Any]]
_WAYS = {"dependency-descriptor": True, "frame-marking": True, "vp8": False, "vp9": False}  # whether it has the id of a header extension


def add_routes(app: web.Application, agent: Agent, happened: Happened, error: Callable[..., web.Response]) -> None:
    """Serve conferences. error(status, message, parameter) makes an answer in the API's form."""

    def serve(known: tuple[str, ...], answer: _Answer, last_known: Callable[[web.Request], dict[str, Any] | None] | None = None) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            if request.method not in ("GET", "HEAD") and COMMAND_HEADER not in request.headers:
                return error(403, f"a request that changes something needs the header {COMMAND_HEADER}")
            for name in request.query:
                if name not in known:
                    return error(400, f"{name}: unknown parameter; known here: {', '.join(known) or 'none'}", parameter=name)
                if len(request.query.getall(name)) > 1:
                    return error(400, f"{name}: given more than once", parameter=name)
            try:
                with agent.answering():
                    value = await answer(request)
            except AgentUnavailable:
                if last_known is None or request.query.get("last_known") != "yes" or agent.silent_s is None or (value := last_known(request)) is None:
                    raise
                value |= {"last_known_s": agent.silent_s}
            headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
            return web.json_response(value, headers=headers, dumps=lambda given: json.dumps(given, ensure_ascii=False) + "\n")

        return handler

    client = agent.client

    async def look_at(name: str) -> Any:
        return view.conference(await client.conference(name), happened.of(name))

    async def everything(request: web.Request) -> Any:
        listed = await client.conferences()
        found = []
        for one in listed:
            members = (await client.conference(one["conference"]))["members"] if len(listed) <= _ASKED else None
            found.append(view.summary(one, None if members is None else sum(member["present"] for member in members)))
        return {"conferences": found}

    def known_names(request: web.Request) -> dict[str, Any]:
        return {"conferences": [view.last_known(name, present, []) | {"participants": len(present)} for name, present in happened.present().items()]}

    def known_one(request: web.Request) -> dict[str, Any] | None:
        present = happened.present().get(_name(request))
        return None if present is None else view.last_known(_name(request), present, happened.of(_name(request)))

    async def create(request: web.Request) -> Any:
        return view.conference(await _created(request), [])

    async def _created(request: web.Request) -> Any:
        name = _given(request, "name")
        await client.create_conference(name)
        return await client.conference(name)

    async def look(request: web.Request) -> Any:
        return await look_at(_name(request))

    async def end(request: web.Request) -> Any:
        await client.end_conference(_name(request))
        return {"ended": _name(request)}

    async def join(request: web.Request) -> Any:
        ice = request.query.get("ice", "no")
        if ice not in ("yes", "no"):
            raise NotDone(400, f"ice: {ice!r} is neither yes nor no", "ice")
        who, name = await _admitted(request)
        signalling = None if name == who else {names.KEY: name}
        made = await client.join(_name(request), who, _media(request), signalled=_addresses(request), ice=ice == "yes", mixed=_mixed(request.query.get("mixed", "auto")), signalling=signalling)
        return _joined(made)

    async def _admitted(request: web.Request) -> tuple[str, str]:
        """The identifier and the name of a new participant. What the agent takes as it is stays so, and the agent refuses it a second time."""
        wanted = _given(request, "name")
        if names.is_identifier(wanted):
            return wanted, wanted
        try:
            return names.admitted(await client.conference(_name(request)), wanted)
        except BadName as error:
            raise NotDone(400, f"name: {error}", "name") from None

    async def _who(request: web.Request, text: str) -> str:
        """The identifier of a participant that a request names by its identifier, or by its name where that cannot be one."""
        if not names.is_identifier(text):
            named = [one["participant"] for one in (await client.conference(_name(request)))["members"] if names.shown(one) == names.normal(text)]
            if not named:
                raise NotDone(404, f"no participant of {_name(request)} has this name")
            return named[0]
        return text

    async def _asked(request: web.Request, parameter: str) -> str:
        return await _who(request, _given(request, parameter))

    async def leave(request: web.Request) -> Any:
        participant = await _who(request, request.match_info["participant"])
        await client.leave(_name(request), participant)
        return {"conference": _name(request), "left": participant}

    async def quality(request: web.Request) -> Any:
        # A quality that there is not is for the agent to refuse.
        await client.set_quality(_name(request), await _asked(request, "sender"), await _asked(request, "receiver"), cast(Quality, _given(request, "quality")))
        return await look_at(_name(request))

    async def mixed(request: web.Request) -> Any:
        await client.update_participant(_name(request), await _asked(request, "participant"), mixed=_mixed(_given(request, "mixed")))
        return await look_at(_name(request))

    async def target(request: web.Request) -> Any:
        wanted, hold_s = _given(request, "target"), None
        if wanted == "auto":
            wanted, hold_s = str(view.TARGETS - 1), 0.0
        if wanted != "pause" and not (wanted.isascii() and wanted.isdecimal() and int(wanted) < view.TARGETS):
            raise NotDone(400, f"target: {wanted!r} is none of 0 to {view.TARGETS - 1}, pause and auto", "target")
        decision = {"sender": await _asked(request, "sender"), "receiver": await _asked(request, "receiver"), "target": None if wanted == "pause" else int(wanted)}
        await client.set_targets(_name(request), [decision], hold_s)  # type: ignore[list-item]  # its fields are checked above, and by the agent
        return await look_at(_name(request))

    async def tiling(request: web.Request) -> Any:
        predicted = request.query.get("predicted", "no")
        if predicted not in ("yes", "no"):
            raise NotDone(400, f"predicted: {predicted!r} is neither yes nor no", "predicted")
        codec = _given(request, "codec")
        if codec not in get_args(TiledCodec):
            raise NotDone(400, f"codec: {codec!r} is none of {', '.join(get_args(TiledCodec))}", "codec")
        receivers = request.query.get("receivers")
        await client.set_tiling(
            _name(request), cast(TiledCodec, codec), payload_type=_number(request, "payload_type"), places=_number(request, "places"),
            columns=_number(request, "columns"), predicted=predicted == "yes", receivers=None if receivers is None else receivers.split(","),
        )  # fmt: skip
        return await look_at(_name(request))

    async def announcements(request: web.Request) -> Any:
        wanted = _given(request, "announcements")
        if wanted not in ("yes", "no"):
            raise NotDone(400, f"announcements: {wanted!r} is neither yes nor no", "announcements")
        await client.set_announcements(_name(request), wanted == "yes")
        return await look_at(_name(request))

    async def end_tiling(request: web.Request) -> Any:
        await client.end_tiling(_name(request))
        return await look_at(_name(request))

    router, one = app.router, "/v1/conferences/{conference}"
    router.add_get("/v1/conferences", serve(("last_known",), everything, known_names))
    router.add_post("/v1/conferences", serve(("name",), create))
    router.add_get(one, serve(("last_known",), look, known_one))
    router.add_delete(one, serve((), end))
    router.add_post(one + "/participants", serve(("name", "media", "trusted", "ice", "transport", "layers", "mixed"), join))
    router.add_delete(one + "/participants/{participant}", serve((), leave))
    router.add_post(one + "/quality", serve(("sender", "receiver", "quality"), quality))
    router.add_post(one + "/mixed", serve(("participant", "mixed"), mixed))
    router.add_post(one + "/tiling", serve(("codec", "payload_type", "places", "columns", "predicted", "receivers"), tiling))
    router.add_delete(one + "/tiling", serve((), end_tiling))
    router.add_post(one + "/announcements", serve(("announcements",), announcements))
    router.add_post(one + "/target", serve(("sender", "receiver", "target"), target))


_ASKED = 50
"""Of so many conferences each is asked who is present; of more it is not known."""


def _joined(made: Participant) -> dict[str, Any]:
    ice = made["ice"]
    return view.participant(made) | ({} if ice is None else {"ice": {"ufrag": ice["ufrag"], "pwd": ice["password"]}})


def _mixed(text: str) -> Mixed:
    if text not in get_args(Mixed):
        raise NotDone(400, f"mixed: {text!r} is none of {', '.join(get_args(Mixed))}", "mixed")
    return cast(Mixed, text)


def _name(request: web.Request) -> str:
    return request.match_info["conference"]


def _given(request: web.Request, name: str) -> str:
    value = request.query.get(name)
    if not value:
        raise NotDone(400, f"{name}: is missing", name)
    return value


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 4 and int(text) < 256):
        raise NotDone(400, f"{name}: {text!r} is not a number from 0 to 255", name)
    return None if text is None else int(text)


def _media(request: web.Request) -> list[JoinMedium]:
    layers, transport = _layers(request), request.query.get("transport", "RTP/AVP")
    kinds = list(dict.fromkeys(request.query.get("media", "audio").split(",")))
    if unknown := [kind for kind in layers if kind not in kinds]:
        raise NotDone(400, f"layers of {unknown[0]!r}: this medium is not in media", "layers")
    return [{"medium": kind, "transport": transport, "layers": layers.get(kind)} for kind in kinds]


def _layers(request: web.Request) -> dict[str, Layers]:
    """How media tell their layers: "video=dependency-descriptor:12,screen=vp8"."""
    found: dict[str, Layers] = {}
    for part in filter(None, request.query.get("layers", "").split(",")):
        kind, _, told = part.partition("=")
        way, _, number = told.partition(":")
        if way not in _WAYS:
            raise NotDone(400, f"layers {told!r}: {way!r} is none of {', '.join(_WAYS)}", "layers")
        if _WAYS[way] != bool(number) or number and not (number.isdecimal() and 1 <= int(number) <= 14):
            raise NotDone(400, f"layers {told!r}: {way} has {'the id of its header extension behind a colon, 1..14' if _WAYS[way] else 'no id'}", "layers")
        found[kind] = {"by": way, "extension_id": int(number) if number else None}
    return found


def _addresses(request: web.Request) -> list[str]:
    found = []
    for text in filter(None, request.query.get("trusted", "").split(",")):
        try:
            found.append(str(ipaddress.ip_address(text)))
        except ValueError:
            raise NotDone(400, f"trusted: {text!r} is not an IP address", "trusted") from None
    return found
