"""REST routes of draining: GET, POST ?stop=offloads|calls and DELETE /v1/drain."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from aiohttp import web

from shunt.calls.kinds import Stop

COMMAND_HEADER = "X-Shunt-Command"
"""Requests that change something carry this header: a web page of another origin cannot send it without being asked first."""


class Draining(Protocol):
    """Draining of the agent."""

    async def view(self) -> dict[str, Any]:
        """{stop, calls, entries, empty}: what is left."""
        ...

    async def begin(self, stop: Stop) -> None:
        """Start draining, or change what is stopped."""
        ...

    async def end(self) -> None:
        """Serve as before."""
        ...


def add_routes(app: web.Application, drain: Draining, error: Callable[..., web.Response]) -> None:
    """Serve draining. error(status, message, parameter) makes an answer in the API's form."""

    async def answer() -> web.Response:
        value = await drain.view()
        return web.json_response(value, headers={"Cache-Control": "no-store"}, dumps=lambda value: json.dumps(value) + "\n")

    async def get(request: web.Request) -> web.Response:
        return await answer()

    async def begin(request: web.Request) -> web.Response:
        if COMMAND_HEADER not in request.headers:
            return error(403, f"a request that changes something needs the header {COMMAND_HEADER}")
        try:
            stop = Stop(request.query.get("stop", ""))
        except ValueError:
            return error(400, "stop: offloads or calls", parameter="stop")
        await drain.begin(stop)
        return await answer()

    async def end(request: web.Request) -> web.Response:
        if COMMAND_HEADER not in request.headers:
            return error(403, f"a request that changes something needs the header {COMMAND_HEADER}")
        await drain.end()
        return await answer()

    app.router.add_get("/v1/drain", get)
    app.router.add_post("/v1/drain", begin)
    app.router.add_delete("/v1/drain", end)
