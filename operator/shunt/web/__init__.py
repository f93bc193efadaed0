"""The web pages, of the agent and of rooms: files that load nothing from other hosts, fed by the REST API that serves them.

The files hold no data, so they are given without a token; whatever the page asks for needs one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from aiohttp import web

_FOLDER = Path(__file__).parent
_FILES = {
    "/": ("page.html", "text/html"),
    "/ui/page.css": ("page.css", "text/css"),
    "/ui/page.js": ("page.js", "text/javascript"),
    "/ui/text.js": ("text.js", "text/javascript"),
    "/ui/ladder.js": ("ladder.js", "text/javascript"),
    "/ui/tiling.js": ("tiling.js", "text/javascript"),
}
PATHS = frozenset(_FILES)
_ROOM = ("room.html", "text/html")
_ROOM_FILES = {"/rooms/ui/room.css": ("room.css", "text/css"), "/rooms/ui/room.js": ("room.js", "text/javascript"), "/rooms/ui/tiles.js": ("tiles.js", "text/javascript")}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_ROOM_HEADERS = _HEADERS | {
    "Permissions-Policy": "camera=(self), microphone=(self), display-capture=(self)",
}


def add_routes(app: web.Application) -> None:
    """Serve the page at / and its parts below /ui/. The files are read once."""
    for path, (name, kind) in _FILES.items():
        app.router.add_get(path, _handler((_FOLDER / name).read_bytes(), kind))


def add_room_routes(app: web.Application) -> None:
    """Serve the page of every room at /rooms/NAME, and its parts below /rooms/ui/."""
    for path, (name, kind) in {"/rooms/{room}": _ROOM, **_ROOM_FILES}.items():
        app.router.add_get(path, _handler((_FOLDER / name).read_bytes(), kind, _ROOM_HEADERS))


def _handler(body: bytes, kind: str, headers: Mapping[str, str] = _HEADERS) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def serve(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    return serve
