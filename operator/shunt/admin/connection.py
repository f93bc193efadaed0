"""HTTP over the agent's Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from shunt.admin.errors import AgentError, AgentUnreachable
from shunt.errors import cause

_BROKEN = (aiohttp.ClientError, OSError, asyncio.TimeoutError, json.JSONDecodeError, UnicodeDecodeError)


def path_of(*parts: str) -> str:
    """A path of the API; each part is percent-encoded whole, "/" included."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


class Connection:
    """Requests to one agent. Usable for one event loop, until close()."""

    def __init__(self, socket: str, timeout_s: float) -> None:
        self.socket = socket
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close what is open."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=self.socket, limit=0))
        return self._session

    def unreachable(self, error: BaseException) -> AgentUnreachable:
        """What an error of the connection means."""
        return AgentUnreachable(self.socket, cause(error))

    @contextlib.asynccontextmanager
    async def open(self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None, timeout: aiohttp.ClientTimeout | None = None) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response to a request, its body not yet read.

        Raises AgentUnreachable, also for what breaks while the body is read; AgentError with the agent's own words for an error.
        """
        given = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        url = URL(f"http://shunt{path}" + (f"?{urlencode(given)}" if given else ""), encoded=True)
        try:
            async with self._open().request(method, url, json=body, timeout=timeout or self._timeout) as response:
                if response.status >= 400:
                    raise await _error(response)
                yield response
        except _BROKEN as error:
            raise self.unreachable(error) from error

    async def ask(self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """The JSON answer to a request, None where there is no body. Raises as open() does."""
        async with self.open(method, path, query, body) as response:
            return None if response.status == 204 else await response.json()

    async def text(self, path: str) -> str:
        """The answer to a GET as text. Raises as open() does."""
        async with self.open("GET", path) as response:
            return await response.text()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _error(response: aiohttp.ClientResponse) -> AgentError:
    text = await response.text()
    try:
        error = (await response.json())["error"]
        return AgentError(response.status, str(error["code"]), str(error["message"]), error.get("parameter"))
    except (ValueError, KeyError, TypeError, AttributeError, aiohttp.ContentTypeError):
        return AgentError(response.status, "unknown", f"HTTP status {response.status}: {text.strip()[:200]}")
