"""Client of an edge's control API: sessions of browsers. HTTP over its Unix socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, NotRequired, TypedDict, cast
from urllib.parse import quote

import aiohttp
from yarl import URL

from shunt.admin.model import Codec, Direction, Layers
from shunt.errors import cause

_TIMEOUT_S = 4.0
_SILENCE_S = 40.0
_BROKEN = (aiohttp.ClientError, OSError, asyncio.TimeoutError)


class EdgeError(Exception):
    """An edge did not do what was asked; the text is for people."""


class EdgeUnreachable(EdgeError):
    """Nobody answers. gone: nobody listens on the socket, so that the process is not there."""

    def __init__(self, socket: str, detail: str, *, gone: bool) -> None:
        super().__init__(f"edge at {socket}: {detail}")
        self.gone = gone


class EdgeRefused(EdgeError):
    """The edge answered with an error of its own: status is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Medium(TypedDict):
    """A line of a browser's SDP, and what it is on the cause side. direction: as the browser sees it."""

    mid: str
    kind: str
    direction: Direction
    rtp: str
    codecs: list[Codec]
    layers: NotRequired[Layers | None]


class Answer(TypedDict):
    """What a new offer is answered with. session: only of the first."""

    session: NotRequired[str]
    answer: str
    media: list[Medium]


class Ice(TypedDict):
    """An edge's side of a session's ICE. candidates: lines of SDP without their a=."""

    ufrag: str
    pwd: str
    candidates: list[str]


class Target(TypedDict):
    """Where a line's cause RTP goes, and comes from."""

    mid: str
    rtp: str


class EdgeClient:
    """Asks one edge. Every method raises EdgeUnreachable and EdgeRefused."""

    def __init__(self, socket: str) -> None:
        """socket: "unix:/PATH", or the path."""
        self.socket = socket.removeprefix("unix:")
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections; streams end."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def status(self, timeout_s: float = 1.0) -> dict[str, Any]:
        """Limits, counts and uptime."""
        return cast(dict[str, Any], await self._ask("GET", "/v1/status", timeout_s=timeout_s))

    async def create(self, conference: str, participant: str, offer: str, role: str, label: str) -> Answer:
        """Begin a session."""
        body = {"conference": conference, "participant": participant, "offer": offer, "role": role, "label": label}
        return cast(Answer, await self._ask("POST", "/v1/sessions", body))

    async def renegotiate(self, session: str, offer: str) -> Answer:
        """Take a further offer of a session."""
        return cast(Answer, await self._ask("POST", f"/v1/sessions/{quote(session, safe='')}/offer", {"offer": offer}))

    async def restart_ice(self, session: str, ufrag: str, pwd: str) -> Ice:
        """Begin a session's ICE anew, with the browser's new credentials."""
        return cast(Ice, await self._ask("POST", f"/v1/sessions/{quote(session, safe='')}/ice", {"ufrag": ufrag, "pwd": pwd}))

    async def connect(self, session: str, media: Sequence[Target]) -> None:
        """Say where cause RTP goes."""
        await self._ask("PUT", f"/v1/sessions/{quote(session, safe='')}/media", {"media": list(media)})

    async def sessions(self) -> list[dict[str, Any]]:
        """All sessions."""
        return cast(list[dict[str, Any]], (await self._ask("GET", "/v1/sessions"))["sessions"])

    async def session(self, session: str) -> dict[str, Any]:
        """One session with its counters."""
        return cast(dict[str, Any], await self._ask("GET", f"/v1/sessions/{quote(session, safe='')}"))

    async def end(self, session: str) -> None:
        """End a session; one that is not there is ended."""
        try:
            await self._ask("DELETE", f"/v1/sessions/{quote(session, safe='')}")
        except EdgeRefused as error:
            if error.status != 404:
                raise

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Changes of sessions as they come, until the connection ends; first an empty one, when it is open."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2.0, sock_read=_SILENCE_S)
        try:
            async with self._open().get(URL("http://edge/v1/events"), timeout=timeout) as response:
                if response.status != 200:
                    raise await _refused(response)
                yield {}
                async for line in response.content:
                    if line.strip():
                        yield cast(dict[str, Any], json.loads(line))
        except _BROKEN as error:
            raise self._unreachable(error) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=self.socket, limit=0))
        return self._session

    async def _ask(self, method: str, path: str, body: Any = None, *, timeout_s: float = _TIMEOUT_S) -> Any:
        url = URL(f"http://edge{path}", encoded=True)
        try:
            async with self._open().request(method, url, json=body, timeout=aiohttp.ClientTimeout(total=timeout_s)) as response:
                if response.status >= 400:
                    raise await _refused(response)
                text = await response.text()
                return json.loads(text) if text.strip() else None
        except (*_BROKEN, ValueError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: BaseException) -> EdgeUnreachable:
        gone = isinstance(error, (ConnectionRefusedError, FileNotFoundError)) or isinstance(error, aiohttp.ClientConnectorError)
        return EdgeUnreachable(self.socket, cause(error), gone=gone)


async def _refused(response: aiohttp.ClientResponse) -> EdgeRefused:
    text = await response.text()
    try:
        return EdgeRefused(response.status, str(json.loads(text)["error"]))
    except (ValueError, KeyError, TypeError):
        return EdgeRefused(response.status, f"HTTP status {response.status}: {text.strip()[:200]}")
