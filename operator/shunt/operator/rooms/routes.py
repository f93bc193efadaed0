"""HTTP routes of rooms: the page's sessions, WHIP (RFC 9725), WHEP (draft-ietf-wish-whep), links, and what operators see.

/rooms/, /whip/ and /whep/ are for whoever holds a room's token; /v1/rooms is the REST API's, with its own token.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from shunt.admin import AdminError, AgentError
from shunt.api.drain import COMMAND_HEADER
from shunt.operator.conferences import names
from shunt.operator.conferences.names import BadName
from shunt.operator.rooms import offer as offers
from shunt.operator.rooms.edge import EdgeError, EdgeRefused
from shunt.operator.rooms.offer import Malformed, NotTaken
from shunt.operator.rooms.service import FOLLOWERS, Joined, NoEdge, NotYet, Rooms, SessionGone
from shunt.operator.rooms.session import Session
from shunt.operator.rooms.tokens import LONGEST_S, ROLES, Grant, Role, Signer, TokenRefused

log = logging.getLogger(__name__)

_SDP = "application/sdp"
_FRAGMENT = "application/trickle-ice-sdpfrag"
_LARGEST = 256 * 1024  # bytes of a body
_SILENCE_S = 10.0
_NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_ANY_ORIGIN = {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "Location, ETag, Link, Accept-Patch, Retry-After, WWW-Authenticate"}
_RETRY = {"Retry-After": "2"}
_Error = Callable[..., web.Response]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Refused(Exception):
    """A request that is not done, with the status of HTTP."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


_ENTITY_TAG = re.compile(r'\s*(?:\*|(?:W/)?"[^"]*")\s*(?:,|$)')
_NO_ANSWER = "The room's server does not answer. Try again in a moment."


def _refusal(error: Exception) -> _Refused:
    """Returns what an error of a session means to the client. Sockets and settings are in the log alone."""
    refused = _told(error)
    if refused.status == 503:
        log.warning("a request of a room got status 503: %s", error)
    return refused


def _told(error: Exception) -> _Refused:
    match error:
        case _Refused():
            return error
        case TokenRefused():
            return _Refused(401, str(error), {"WWW-Authenticate": 'Bearer error="invalid_token"'})
        case Malformed() | BadName():
            return _Refused(400, str(error))
        case NotTaken():
            return _Refused(422, str(error))
        case SessionGone():
            return _Refused(404, str(error))
        case NotYet():
            return _Refused(503, str(error), _RETRY)
        case NoEdge():
            return _Refused(503, "The room is full. Try again in a minute.", _RETRY)
        case EdgeRefused(status=400 | 422 as status):
            return _Refused(status, str(error))
        case AgentError(status=400 | 422):
            return _Refused(422, str(error))
        case AgentError(status=404 | 409 as status):
            return _Refused(status, str(error))
        case _:
            return _Refused(503, _NO_ANSWER, _RETRY)


_EXPECTED = (_Refused, TokenRefused, Malformed, BadName, NotTaken, NotYet, SessionGone, NoEdge, EdgeError, AdminError)


def _bearer(request: web.Request) -> str:
    """Raises _Refused where there is none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _Refused(401, "a room's token is needed (header Authorization: Bearer TOKEN)", {"WWW-Authenticate": "Bearer"})
    return token.strip()


async def _text(request: web.Request, *kinds: str) -> str:
    """The body, of one of these kinds. Raises _Refused."""
    given = request.headers.get("Content-Type", "").partition(";")[0].strip()
    if given.lower() not in kinds:
        raise _Refused(415, f"the body has to be {' or '.join(kinds)}, not {given or 'without a Content-Type'}", {"Accept-Post": kinds[0]})
    found = b""
    async for chunk in request.content.iter_any():
        found += chunk
        if len(found) > _LARGEST:
            raise _Refused(413, f"the body is larger than {_LARGEST} bytes")
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise _Refused(400, "the body is not UTF-8") from None


async def _object(request: web.Request) -> dict[str, Any]:
    try:
        found = json.loads(await _text(request, "application/json"))
    except ValueError:
        raise _Refused(400, "the body is no JSON") from None
    if not isinstance(found, dict) or not isinstance(found.get("offer"), str):
        raise _Refused(400, "the body has to be an object with the SDP in offer")
    wanted = found.get("media", {})
    if not isinstance(wanted, dict) or not all(one in offers.MEDIA for one in wanted.values()):
        raise _Refused(400, f"media: says of a mid what it is for, {', '.join(offers.MEDIA)}")
    return found


def _sdp(status: int, text: str, kind: str, headers: Mapping[str, str]) -> web.Response:
    """An answer whose type has no parameter: clients compare it as a whole."""
    return web.Response(status=status, body=text.encode(), headers={**_NO_STORE, **headers, "Content-Type": kind})


def _entity_tags(text: str) -> list[str]:
    """The list of If-Match (RFC 9110 section 13.1.1), without marks of weak tags. Raises _Refused."""
    found, at = [], 0
    while at < len(text):
        if (match := _ENTITY_TAG.match(text, at)) is None:
            raise _Refused(400, f"If-Match: {text} is no list of entity tags")
        found.append(match[0].strip(" \t,").removeprefix("W/"))
        at = match.end()
    return found


def _etag(ufrag: str | None) -> str:
    """Of a session's ICE (RFC 9725 section 4.3.1). ufrag: the edge's user name in it."""
    return f'"{hashlib.sha256((ufrag or "").encode()).hexdigest()[:16]}"'


def _holder(request: web.Request) -> str:
    """What a session keeps of the token that began it."""
    return hashlib.sha256(_bearer(request).encode("utf-8", "surrogateescape")).hexdigest()[:32]


class RoomRoutes:
    """The routes, over the sessions and the key of links."""

    def __init__(self, rooms: Rooms, signer: Signer, url: str, error: _Error) -> None:
        """url: what links begin with; error(status, message, parameter, headers) makes an answer in the API's form."""
        self._rooms, self._signer, self._url, self._error = rooms, signer, url, error

    def add(self, app: web.Application) -> None:
        """Serve them."""
        router = app.router
        one = "/rooms/{room}/sessions/{session}"
        router.add_get("/rooms/{room}/participants", self._serve(self._peek))
        router.add_post("/rooms/{room}/sessions", self._serve(self._join))
        router.add_post(one, self._serve(self._renegotiate))
        router.add_get(one + "/events", self._serve(self._events))
        router.add_delete(one, self._serve(self._leave))
        router.add_put(one + "/muted/{muted}", self._serve(self._mute))
        for kind in ("whip", "whep"):
            begin = self._whip if kind == "whip" else self._whep
            router.add_post(f"/{kind}/{{room}}", self._serve(begin, open_to_all=True))
            router.add_options(f"/{kind}/{{room}}", self._serve(self._options, open_to_all=True))
            router.add_patch(f"/{kind}/{{room}}/{{session}}", self._serve(self._trickle, open_to_all=True))
            router.add_delete(f"/{kind}/{{room}}/{{session}}", self._serve(self._leave, open_to_all=True))
            router.add_options(f"/{kind}/{{room}}/{{session}}", self._serve(self._options, open_to_all=True))
        router.add_get("/v1/rooms", self._serve(self._list))
        router.add_get("/v1/rooms/{room}", self._serve(self._look))
        router.add_post("/v1/rooms/{room}/links", self._serve(self._link))

    def _serve(self, answer: _Handler, *, open_to_all: bool = False) -> _Handler:
        """open_to_all: pages of other origins may ask; they need a token as all do."""

        async def handler(request: web.Request) -> web.StreamResponse:
            try:
                response = await answer(request)
            except _EXPECTED as error:
                refused = _refusal(error)
                response = self._error(refused.status, str(refused), headers=refused.headers)
            if open_to_all:
                response.headers.update(_ANY_ORIGIN)
            return response

        return handler

    # -- who may -------------------------------------------------------------------------------------------------

    def _grant(self, request: web.Request, *, late: bool = False) -> Grant:
        return self._signer.grant(_bearer(request), request.match_info["room"], late=late)

    def _session(self, request: web.Request) -> Session:
        """The session of a request: the one that its token has begun. That the token has expired since does not matter."""
        self._grant(request, late=True)
        found = self._rooms.session(request.match_info["room"], request.match_info["session"])
        if not hmac.compare_digest(found.holder, _holder(request)):
            raise _Refused(403, "this session was begun with another token")
        return found

    @staticmethod
    def _allowed(grant: Grant, text: str) -> None:
        """Raises _Refused where an offer does more than a grant allows."""
        directions = {section.direction for section in offers.read(text).sections if section.kind in ("audio", "video") and not section.refused}
        if grant.role == "watch" and directions & {"sendrecv", "sendonly"}:
            raise _Refused(403, "this token is for watching: nothing may be sent with it")
        if grant.role == "publish" and directions & {"recvonly"}:
            raise _Refused(403, "this token is for publishing: nothing is to be seen with it")

    # -- the page ------------------------------------------------------------------------------------------------

    async def _peek(self, request: web.Request) -> web.Response:
        return _json(await self._rooms.peek(self._grant(request).room))

    async def _join(self, request: web.Request) -> web.Response:
        grant = self._grant(request)
        given = await _object(request)
        self._allowed(grant, given["offer"])
        if isinstance(before := given.get("replaces"), str):
            await self._rooms.replaced(grant.room, before, _holder(request))
        name = grant.name or str(given.get("name") or "guest")
        joined = await self._rooms.join(grant.room, name, given["offer"], grant.role, given.get("media"), holder=_holder(request), muted=given.get("muted") is True)
        return self._answer(joined, 201)

    async def _renegotiate(self, request: web.Request) -> web.Response:
        grant, session = self._grant(request, late=True), self._session(request)
        given = await _object(request)
        self._allowed(grant, given["offer"])
        return self._answer(await self._rooms.renegotiate(session, given["offer"], given.get("media")), 200)

    async def _mute(self, request: web.Request) -> web.Response:
        session = self._session(request)
        muted = request.match_info["muted"]
        if muted not in ("yes", "no"):
            raise _Refused(404, f"muted: {muted!r} is neither yes nor no")
        await self._rooms.mute(session, muted == "yes")
        return web.Response(status=204, headers=_NO_STORE)

    @staticmethod
    def _answer(joined: Joined, status: int) -> web.Response:
        session = joined.session
        value = {"session": session.id, "participant": session.participant, "name": session.name, "answer": joined.answer, "media": session.names, "refused": joined.refused}
        return web.json_response(value, status=status, headers=_NO_STORE | {"Location": f"/rooms/{session.room}/sessions/{session.id}"})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        if self._rooms.followers >= FOLLOWERS:
            raise _Refused(503, f"{FOLLOWERS} pages follow their rooms already", _RETRY)
        self._rooms.followers += 1
        try:
            response = web.StreamResponse(headers=_NO_STORE | {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
            await response.prepare(request)
            said = time.monotonic()
            with contextlib.suppress(ConnectionResetError):  # the page is gone
                async for look in self._rooms.follow(session):
                    if look:
                        name = "closed" if "closed" in look else "room"
                        await response.write(f"event: {name}\ndata: {json.dumps(look, ensure_ascii=False)}\n\n".encode())
                    elif time.monotonic() > said + _SILENCE_S:
                        await response.write(b": still the same\n\n")
                    else:
                        continue
                    said = time.monotonic()
            return response
        finally:
            self._rooms.followers -= 1

    async def _leave(self, request: web.Request) -> web.Response:
        await self._rooms.leave(self._session(request))
        return web.Response(status=200, headers=_NO_STORE)

    # -- WHIP and WHEP -------------------------------------------------------------------------------------------

    async def _whip(self, request: web.Request) -> web.Response:
        grant = self._grant(request)
        if grant.role == "watch":
            raise _Refused(403, "this token is for watching: nothing may be sent with it")
        return await self._begin(request, grant, "publish", "publisher")

    async def _whep(self, request: web.Request) -> web.Response:
        grant = self._grant(request)
        if grant.role == "publish":
            raise _Refused(403, "this token is for publishing: nothing is to be seen with it")
        return await self._begin(request, grant, "watch", "viewer")

    async def _begin(self, request: web.Request, grant: Grant, role: Role, name: str) -> web.Response:
        text = await _text(request, _SDP)
        self._allowed(Grant(grant.room, role, grant.until), text)
        joined = await self._rooms.join(grant.room, grant.name or request.query.get("name") or name, text, role, holder=_holder(request), whole=True)
        kind = request.path.split("/")[1]
        headers = {"Location": f"/{kind}/{grant.room}/{joined.session.id}", "ETag": _etag(offers.ice_ufrag(joined.answer)), "Accept-Patch": _FRAGMENT}
        return _sdp(201, joined.answer, _SDP, headers)

    async def _options(self, request: web.Request) -> web.Response:
        headers = {
            "Accept-Post": _SDP,
            "Access-Control-Allow-Methods": "OPTIONS, POST, PATCH, DELETE",
            "Access-Control-Allow-Headers": "Authorization, Content-Type, If-Match",
            "Access-Control-Max-Age": "3600",
        }
        return web.Response(status=204, headers=headers)

    async def _trickle(self, request: web.Request) -> web.Response:
        """An ICE restart (If-Match is *), or candidates of the client (RFC 9725 section 4.3).

        The edge is ICE-lite and learns candidates from checks (RFC 8445 section 2.5), so there is nothing to do with them.
        """
        session = self._session(request)
        fragment = offers.read_fragment(await _text(request, _FRAGMENT))
        given = request.headers.get("If-Match")
        if given is None:
            raise _Refused(428, "PATCH needs the header If-Match with the ETag of the session")
        tags = _entity_tags(given)
        if "*" in (tag.strip('"') for tag in tags):
            if fragment.ufrag is None or fragment.pwd is None:
                raise _Refused(400, "an ICE restart needs a=ice-ufrag and a=ice-pwd")
            ice = await self._rooms.restart_ice(session, fragment.ufrag, fragment.pwd)
            text = fragment.answer(ice["ufrag"], ice["pwd"], ice["candidates"], next(iter(session.names), "0"))
            return _sdp(200, text, _FRAGMENT, {"ETag": _etag(ice["ufrag"])})
        if _etag(await self._rooms.ice_user(session)) not in tags:
            raise _Refused(412, f"If-Match: {given} is not the session's ETag")
        return web.Response(status=204, headers=_NO_STORE)

    # -- for operators -------------------------------------------------------------------------------------------

    async def _list(self, request: web.Request) -> web.Response:
        found: dict[str, list[str]] = {}
        for session in self._rooms.all():
            found.setdefault(session.room, []).append(session.name)
        return _json({"rooms": [{"name": room, "browsers": names} for room, names in found.items()]})

    async def _look(self, request: web.Request) -> web.Response:
        room = request.match_info["room"]
        found = []
        for session in self._rooms.all():
            if session.room == room:
                details = await self._rooms.details(session)
                found.append(
                    {"participant": session.participant, "name": session.name, "role": session.role, "session": session.id, "edge": session.edge, "lines": session.names, "transport": details}
                )
        return _json({"name": room, "browsers": found})

    async def _link(self, request: web.Request) -> web.Response:
        if COMMAND_HEADER not in request.headers:
            raise _Refused(403, f"a request that changes something needs the header {COMMAND_HEADER}")
        query, room = request.query, request.match_info["room"]
        for name in query:
            if name not in ("valid_s", "role", "name"):
                return self._error(400, f"{name}: unknown parameter; known here: valid_s, role, name", parameter=name)
        valid, role = query.get("valid_s", "7200"), query.get("role", "room")
        if not (valid.isascii() and valid.isdecimal() and 1 <= int(valid) <= LONGEST_S):
            return self._error(400, f"valid_s: {valid!r} is no number of seconds in 1..{LONGEST_S}", parameter="valid_s")
        if role not in ROLES:
            return self._error(400, f"role: {role!r} is none of {', '.join(ROLES)}", parameter="role")
        try:
            name = names.checked(query["name"]) if query.get("name") else ""
        except BadName as error:
            return self._error(400, f"name: {error}", parameter="name")
        grant = Grant(room, role, int(time.time()) + int(valid), name)
        token = self._signer.token(grant)
        urls = {"page": f"{self._url}/rooms/{room}#{token}", "whip": f"{self._url}/whip/{room}", "whep": f"{self._url}/whep/{room}"}
        return _json({"room": room, "role": role, "until": grant.until, "token": token} | urls)


def _json(value: Any) -> web.Response:
    return web.json_response(value, headers=_NO_STORE, dumps=lambda given: json.dumps(given, ensure_ascii=False) + "\n")
