"""A small HTTP client for the agent's REST API, over TCP or a unix socket (stdlib only: the command starts fast)."""

from __future__ import annotations

import http.client
import json
import os
import socket
import traceback
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from shunt.cli.failure import EXIT_PROBLEM, EXIT_UNREACHABLE, EXIT_USAGE, Failure
from shunt.errors import cause

# More than the agent itself waits for the data plane, so that its own words arrive.
_TIMEOUT_S = 8.0
_PAGE = 100  # as many have counters that are read for them


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """Asks one agent. `api` is http://HOST:PORT, https://HOST:PORT, HOST:PORT or unix:/PATH."""

    def __init__(self, api: str, token: str | None = None) -> None:
        """Raises Failure (usage) where `api` is none of these."""
        self.api = api
        self.asked = "nothing yet"
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._unix = api.removeprefix("unix:") if api.startswith("unix:") else None
        if self._unix is None:
            url = api if "://" in api else f"http://{api}"
            try:
                parts = urlsplit(url)
                host, port = parts.hostname, parts.port
            except ValueError:
                host = port = None
                parts = urlsplit("")
            if parts.scheme not in ("http", "https") or not host:
                raise Failure(f"{api!r} is not http://HOST:PORT, https://HOST:PORT, HOST:PORT or unix:/PATH", EXIT_USAGE)
            self._host, self._port, self._tls = host, port or 8077, parts.scheme == "https"

    def unreadable(self, error: Exception) -> Failure:
        """What it means that the last answer has not what a command reads of it."""
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Failure(
            f"what answers at {self.api} is not a Shunt of this version: its answer to {self.asked} cannot be read: {cause(error)} ({os.path.basename(at.filename)}:{at.lineno})", EXIT_UNREACHABLE
        )

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """The JSON answer to a question. Raises Failure as ask() does."""
        return self.ask("GET", path, **query)

    def ask(self, method: str, path: str, **query: Any) -> dict[str, Any]:
        """The JSON answer. Raises Failure: unreachable, or with the agent's own words for an error."""
        self.asked = f"{method} {path}"
        given = {name: value for name, value in query.items() if value is not None}
        target = path + (f"?{urlencode(given)}" if given else "")
        if self._unix is not None:
            connection: http.client.HTTPConnection = _UnixConnection(self._unix, _TIMEOUT_S)
        elif self._tls:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_S)  # the system's authorities, and those of SSL_CERT_FILE
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, target, headers=self._headers | ({} if method == "GET" else {"X-Shunt-Command": "1"}))
            response = connection.getresponse()
            body = response.read()
        except TimeoutError:
            raise Failure(f"no answer from the agent at {self.api} within {_TIMEOUT_S:g} s", EXIT_UNREACHABLE) from None
        except OSError as error:
            raise Failure(f"no agent at {self.api}: {cause(error)} (is `shunt operator` running? --api or SHUNT_API names another)", EXIT_UNREACHABLE) from None
        except http.client.HTTPException as error:
            raise Failure(f"what answers at {self.api} is not a Shunt agent: {cause(error)}", EXIT_UNREACHABLE) from None
        finally:
            connection.close()
        try:
            answer = json.loads(body)
        except ValueError:
            raise Failure(f"what answers at {self.api} is not a Shunt agent (status {response.status}, no JSON)", EXIT_UNREACHABLE) from None
        if not isinstance(answer, dict):
            raise Failure(f"what answers at {self.api} is not a Shunt agent (status {response.status}, no JSON object)", EXIT_UNREACHABLE)
        if response.status != 200:
            message = str(answer.get("error") or f"{self.api} answers {self.asked} with HTTP status {response.status}, and gives no reason")
            hint = " (set SHUNT_TOKEN or --token-file)" if response.status == 401 else ""
            raise Failure(message + hint, EXIT_USAGE if response.status == 400 else EXIT_PROBLEM, response.status)
        return answer

    def calls(self, state: str | None, reason: str | None, problems: bool = False) -> Iterator[dict[str, Any]]:
        """Every call that has a stream in this state and with this reason, page by page; problems: of which something is wrong now."""
        offset: int | None = 0
        seen: set[str] = set()
        while offset is not None:
            page = self.get("/v1/calls", state=state, reason=reason, problems="yes" if problems else None, limit=_PAGE, offset=offset)
            for call in page["calls"]:
                # Calls come and go between pages; none is shown twice.
                if call["call_id"] not in seen:
                    seen.add(call["call_id"])
                    yield call
            offset = page["next"]

    def find(self, text: str, since: int | None, until: int | None, over: bool | None, limit: int) -> list[dict[str, Any]]:
        """Calls whose From, To or Call-ID has this text, latest first. since, until: Unix time."""
        only = None if over is None else "yes" if over else "no"
        found: list[dict[str, Any]] = self.get("/v1/find", text=text, since=since, until=until, over=only, limit=limit)["calls"]
        return found

    def call(self, call_id: str) -> dict[str, Any]:
        """One call with the counters that the agent has at hand."""
        return self.get("/v1/calls/" + quote(call_id, safe=""))

    def why(self, call_id: str) -> dict[str, Any]:
        """One call with counters read now. Raises Failure with status 503 where the data plane does not answer."""
        return self.get(f"/v1/calls/{quote(call_id, safe='')}/why")

    def history(self, call_id: str) -> dict[str, Any]:
        """What happened to a call and what it means. Raises Failure with status 404 for an unknown call."""
        return self.get(f"/v1/calls/{quote(call_id, safe='')}/history")
