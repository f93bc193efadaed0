"""The REST API: JSON over a TCP or unix socket, for the `shunt` command, dashboards and Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from shunt import web as web_page
from shunt.api.drain import add_routes as add_drain_routes
from shunt.api.socket import listening
from shunt.api.view import AgentUnavailable, AgentView, DataPlaneUnavailable, NotDone
from shunt.config.load import api_token, tls_context
from shunt.config.model import Api
from shunt.config.values import host_port
from shunt.metrics.exposition import exposition
from shunt.net import Endpoint

logger = logging.getLogger(__name__)

MAX_PAGE = 1000
_DEFAULT_PAGE = 100
_MAX_BODY = 1024  # nothing here takes a body
_MAX_LINE = 8190
_MAX_EVENT_CLIENTS = 32
_MAX_REQUESTS = 128  # under way at once, followers of events among them; those of rooms have a limit of their own
_EVENT_PERIOD_S = 1.0
_OF_ROOMS = ("/rooms/", "/whip/", "/whep/")
# How long an answer may wait for the data plane before the caller is told so.
_DATA_PLANE_TIMEOUT_S = 5.0
# An agent that takes longer counts as down; Prometheus waits 10 s.
_METRICS_TIMEOUT_S = 1.0

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_VIEW: web.AppKey[AgentView] = web.AppKey("view")
_STOPPING: web.AppKey[asyncio.Event] = web.AppKey("stopping")


class ApiServer:
    """Serves an AgentView on one socket: `listen` is its address, with the kernel's choice for port 0 after start."""

    def __init__(self, view: AgentView, settings: Api) -> None:
        """With a token, every route but /healthz and the page's own files needs Authorization: Bearer TOKEN.

        Raises ValueError where token_file cannot be read or holds no token.
        """
        self.listen = host_port(settings.listen)
        self._token = api_token(settings)
        self._tls = tls_context(settings)
        self._event_clients = 0
        self._requests = 0
        self._socket_inode: int | None = None
        self._runner: web.AppRunner | None = None
        self._view = view

    async def start(self) -> None:
        """Serve. Raises OSError, naming the socket, where it cannot be had."""
        sock = listening(self.listen)
        if self.listen.path:
            self._socket_inode = os.stat(self.listen.path).st_ino
        else:
            self.listen = self.listen._replace(port=sock.getsockname()[1])
        app = web.Application(middlewares=[self._guard], client_max_size=_MAX_BODY)
        app[_VIEW] = self._view
        app[_STOPPING] = asyncio.Event()
        app.on_shutdown.append(_announce_stop)
        web_page.add_routes(app)
        app.router.add_get("/healthz", _healthz)
        app.router.add_get("/metrics", _metrics)
        app.router.add_get("/readyz", _readyz)
        app.router.add_get("/v1/status", _status)
        app.router.add_get("/v1/health", _health)
        app.router.add_get("/v1/calls", _calls)
        app.router.add_get("/v1/calls/{call_id}", _call)
        app.router.add_get("/v1/calls/{call_id}/why", _why)
        app.router.add_get("/v1/calls/{call_id}/history", _history)
        app.router.add_get("/v1/find", _find)
        app.router.add_get("/v1/trace", _trace)
        app.router.add_get("/v1/events", self._events)
        if (drain := getattr(self._view, "drain", None)) is not None:
            add_drain_routes(app, drain, _error)
        if (conferences := getattr(self._view, "conferences", None)) is not None:
            conferences.add_routes(app, _error)
        if (rooms := getattr(self._view, "rooms", None)) is not None:
            rooms.add_routes(app, _error)
            web_page.add_room_routes(app)
        self._runner = web.AppRunner(app, access_log=None, max_line_size=_MAX_LINE, max_field_size=_MAX_LINE, handle_signals=False, shutdown_timeout=2.0)
        await self._runner.setup()
        try:
            await web.SockSite(self._runner, sock, ssl_context=self._tls).start()
        except BaseException:
            await self._runner.cleanup()
            self._runner = None
            sock.close()
            raise
        logger.info("REST API on %s%s", self.listen, "" if self._tls is None else " (HTTPS)")

    async def close(self) -> None:
        """Close the socket and end open event streams."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._socket_inode is not None:
            with contextlib.suppress(FileNotFoundError):
                # Another daemon may have taken the path over since.
                if os.stat(self.listen.path).st_ino == self._socket_inode:
                    os.unlink(self.listen.path)
            self._socket_inode = None

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        of_rooms = request.path.startswith(_OF_ROOMS)
        counted = not (of_rooms and request.path.endswith("/events"))
        if self._requests >= _MAX_REQUESTS and counted and request.path != "/v1/events":
            return _error(503, f"{_MAX_REQUESTS} requests are under way", headers={"Retry-After": "1"})
        self._requests += counted
        try:
            if of_rooms:
                return await handler(request)  # each of these asks for a room's token, and reads its own body
            if self._token is not None:
                if request.path not in ("/healthz", "/readyz") and request.path not in web_page.PATHS and not _bearer_matches(request, self._token):
                    return _error(401, "a bearer token is needed (header Authorization)", headers={"WWW-Authenticate": "Bearer"})
            elif not self.listen.path and not _host_is_literal(request.host):
                # Without a token, a web page that points a name of its own at this address could read calls.
                return _error(403, f"the Host header {request.host!r} is a name; use an IP address or localhost, or configure a token")
            if request.can_read_body:
                return _error(413, "no request here takes a body")
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            if error.status == 404 and request.path.startswith("/v1/conferences"):
                return _error(404, "conferences are not configured (section conference)")
            words = {404: f"no such resource: {request.path}", 405: f"{request.method} is not possible here"}
            allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}  # RFC 9110 section 15.5.6
            return _error(error.status, words.get(error.status, error.reason), headers=allowed)
        except _BadParameter as error:
            return _error(400, str(error), parameter=error.parameter)
        except DataPlaneUnavailable as error:
            return _error(503, f"data plane: {error}")
        except AgentUnavailable as error:
            return _error(503, str(error))
        except NotDone as error:
            return _error(error.status, str(error), parameter=error.parameter)
        except TimeoutError:
            return _error(503, f"the data plane has not answered within {_DATA_PLANE_TIMEOUT_S:g} s")
        except (asyncio.CancelledError, ConnectionResetError):
            raise
        except Exception:
            logger.exception("%s %s failed", request.method, request.path)
            return _error(500, "the operator daemon failed to answer; its log has the cause")
        finally:
            self._requests -= counted

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._event_clients >= _MAX_EVENT_CLIENTS:
            return _error(503, f"{_MAX_EVENT_CLIENTS} clients follow events already")
        _only(request)
        self._event_clients += 1
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
            await response.prepare(request)
            stopping = request.app[_STOPPING]
            while not stopping.is_set():
                with contextlib.suppress(AgentUnavailable):
                    await response.write(b"event: status\ndata: " + _dump(await request.app[_VIEW].status()).encode() + b"\n\n")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), _EVENT_PERIOD_S)
            return response
        finally:
            self._event_clients -= 1


class _BadParameter(Exception):
    """A query parameter cannot be used; names it."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(f"{parameter}: {message}")
        self.parameter = parameter


def _bearer_matches(request: web.Request, token: str) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    given_bytes = given.strip().encode("utf-8", "surrogateescape")
    return scheme.lower() == "bearer" and hmac.compare_digest(given_bytes, token.encode("utf-8"))


def _host_is_literal(host: str) -> bool:
    name = host.rpartition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    extra = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"} | (headers or {})
    return web.Response(text=_dump(value) + "\n", status=status, content_type="application/json", headers=extra)


def _error(status: int, message: str, parameter: str | None = None, headers: dict[str, str] | None = None) -> web.Response:
    return _json({"error": message} | ({"parameter": parameter} if parameter else {}), status, headers)


def _only(request: web.Request, *known: str) -> None:
    """Refuse query parameters that are misspelt or given twice: a filter that is ignored misleads."""
    for name in request.query:
        if name not in known:
            raise _BadParameter(name, f"unknown parameter; known here: {', '.join(known) or 'none'}")
        if len(request.query.getall(name)) > 1:
            raise _BadParameter(name, "given more than once")


def _number(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 11 or not low <= int(text) <= high:
        raise _BadParameter(name, f"{text!r} is not a number in {low}..{high}")
    return int(text)


def _endpoint(request: web.Request, name: str) -> Endpoint:
    text = request.query.get(name)
    if text is None:
        raise _BadParameter(name, "is missing; give ADDRESS:PORT")
    try:
        return Endpoint.parse(text)
    except ValueError as error:
        raise _BadParameter(name, str(error)) from None


async def _announce_stop(app: web.Application) -> None:
    app[_STOPPING].set()


async def _healthz(request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _readyz(request: web.Request) -> web.Response:
    """200, or 503 with one problem a line."""
    found = await request.app[_VIEW].problems()
    return web.Response(status=503 if found else 200, text="\n".join(found or ["ok"]) + "\n")


async def _status(request: web.Request) -> web.Response:
    _only(request)
    return _json(await request.app[_VIEW].status())


async def _health(request: web.Request) -> web.Response:
    _only(request)
    return _json(await request.app[_VIEW].health())


async def _metrics(request: web.Request) -> web.Response:
    """The agent's own metrics, and those of the operator daemon."""
    view = request.app[_VIEW]
    text: str | None = None
    with contextlib.suppress(AgentUnavailable, DataPlaneUnavailable, NotDone, TimeoutError):
        async with asyncio.timeout(_METRICS_TIMEOUT_S):
            text = await view.agent_metrics()
    return web.Response(body=exposition(view.own(), text, view.registry(), view.health_known()), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def _yes_or_no(request: web.Request, name: str) -> bool | None:
    """A parameter that is yes or no; None: it is not given. Raises _BadParameter."""
    given = request.query.get(name)
    if given not in (None, "yes", "no"):
        raise _BadParameter(name, f"{given!r} is neither yes nor no")
    return None if given is None else given == "yes"


async def _calls(request: web.Request) -> web.Response:
    _only(request, "state", "reason", "match", "problems", "sort", "last_known", "limit", "offset")
    limit = _number(request, "limit", _DEFAULT_PAGE, 1, MAX_PAGE)
    offset = _number(request, "offset", 0, 0, 999_999_999)
    query, view = request.query, request.app[_VIEW]
    if query.get("sort") not in (None, "mos"):
        raise _BadParameter("sort", f"{query['sort']!r} is not mos")
    problems, by_mos, last_known = bool(_yes_or_no(request, "problems")), "sort" in query, _yes_or_no(request, "last_known")
    fits = query.get("state"), query.get("reason"), query.get("match")
    silent_s: float | None = None
    try:
        found, total = await view.calls(*fits, offset, limit, problems, by_mos)
    except AgentUnavailable:
        if not last_known or problems:  # what is wrong with a call now is not known
            raise
        known, silent_s = view.known_calls(*fits)
        found, total = known[offset : offset + limit], len(known)
    after = offset + limit
    return _json({"calls": found, "total": total, "offset": offset, "limit": limit, "next": after if after < total else None} | _dated(silent_s))


def _unknown_call(call_id: str) -> web.Response:
    return _error(404, f"no call with Call-ID {call_id!r}", parameter="call_id")


def _dated(silent_s: float | None) -> dict[str, Any]:
    """What marks an answer as the last known one."""
    return {} if silent_s is None else {"last_known_s": silent_s}


async def _call(request: web.Request) -> web.Response:
    _only(request, "last_known")
    call_id, view = request.match_info["call_id"], request.app[_VIEW]
    last_known, silent_s = _yes_or_no(request, "last_known"), None
    try:
        call = await view.call(call_id)
    except AgentUnavailable:
        if not last_known:
            raise
        call, silent_s = view.known_call(call_id)
    return _unknown_call(call_id) if call is None else _json(call | _dated(silent_s))


async def _why(request: web.Request) -> web.Response:
    _only(request)
    call_id = request.match_info["call_id"]
    async with asyncio.timeout(_DATA_PLANE_TIMEOUT_S):
        call = await request.app[_VIEW].why(call_id)
    return _unknown_call(call_id) if call is None else _json(call)


async def _history(request: web.Request) -> web.Response:
    _only(request)
    call_id = request.match_info["call_id"]
    async with asyncio.timeout(_DATA_PLANE_TIMEOUT_S):
        history = await request.app[_VIEW].history(call_id)
    return _unknown_call(call_id) if history is None else _json(history)


async def _find(request: web.Request) -> web.Response:
    """Calls by who called whom and when; those that are over too."""
    _only(request, "text", "since", "until", "over", "limit")
    since, until = (_number(request, name, default, 0, 99_999_999_999) for name, default in (("since", 0), ("until", 99_999_999_999)))
    over = _yes_or_no(request, "over")
    limit = _number(request, "limit", _DEFAULT_PAGE, 1, MAX_PAGE)
    found = request.app[_VIEW].find(request.query.get("text", ""), since, until, over, limit)
    return _json({"calls": found, "limit": limit})


async def _trace(request: web.Request) -> web.Response:
    _only(request, "src", "dst")
    src, dst = _endpoint(request, "src"), _endpoint(request, "dst")
    if src.version != dst.version:
        raise _BadParameter("dst", f"{dst} is IPv{dst.version} but src is IPv{src.version}: no packet is both")
    async with asyncio.timeout(_DATA_PLANE_TIMEOUT_S):
        return _json(await request.app[_VIEW].trace(str(src), str(dst)))
