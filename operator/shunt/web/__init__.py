"""The agent's web page: three files without a word from elsewhere, fed by the REST API that serves them.

The files hold no data, so they are given without a token; whatever the page asks for needs one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

_FOLDER = Path(__file__).parent
_FILES = {"/": ("page.html", "text/html"), "/ui/page.css": ("page.css", "text/css"), "/ui/page.js": ("page.js", "text/javascript"), "/ui/ladder.js": ("ladder.js", "text/javascript")}
PATHS = frozenset(_FILES)
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_routes(app: web.Application) -> None:
    """Serve the page at / and its parts below /ui/. The files are read once."""
    for path, (name, kind) in _FILES.items():
        app.router.add_get(path, _handler((_FOLDER / name).read_bytes(), kind))


def _handler(body: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def serve(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)

    return serve
