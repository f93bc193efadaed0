"""Asks the agent, and says what its silence and its errors mean to the REST API."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from shunt.admin import AdminClient, AgentError, AgentUnreachable
from shunt.admin.model import Status
from shunt.api.view import AgentUnavailable, DataPlaneUnavailable, NotDone

_UNAVAILABLE = frozenset({503, 504})
_RENAMED = {"source": "src", "destination": "dst"}  # parameters of GET /v1/trace
TIMEOUT_S = 4.0
"""Seconds that an answer of the agent may take: less than what the REST API waits for it."""


class Agent:
    """The admin client, and the last status that it got."""

    def __init__(self, client: AdminClient) -> None:
        self.client = client
        self._status: Status | None = None
        self._read = 0.0

    async def attempt(self) -> tuple[Status | None, float, str | None]:
        """The last status that was read (None: none ever was), its age in seconds, and why it could not be read anew (None: it was)."""
        error: str | None = None
        began = time.monotonic()
        try:
            self._status = await self.client.status()
            self._read = time.monotonic()
        except AgentUnreachable as failure:
            error = failure.detail
        except AgentError as failure:
            error = failure.message
        if self._read > began:
            error = None  # the agent has answered this request, or another one that was asked meanwhile
        return self._status, time.monotonic() - self._read, error

    async def status(self) -> tuple[Status, float, str | None]:
        """As attempt. Raises AgentUnavailable where no status was ever read."""
        status, age_s, error = await self.attempt()
        if status is None:
            raise AgentUnavailable(f"the agent has not answered yet: {error}")
        return status, age_s, error

    @property
    def silent_s(self) -> float | None:
        """Seconds since it last answered; None: it never did."""
        return None if self._status is None else time.monotonic() - self._read

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Around a request: errors of the admin API become the REST API's. Raises AgentUnavailable, DataPlaneUnavailable, NotDone."""
        try:
            yield
        except AgentUnreachable as error:
            since = "" if self.silent_s is None else f" (it last did {self.silent_s:.0f} s ago)"
            raise AgentUnavailable(f"the agent does not answer{since}: {error.detail}") from error
        except AgentError as error:
            if error.status in _UNAVAILABLE:
                raise DataPlaneUnavailable(error.message) from error
            parameter = None if error.parameter is None else _RENAMED.get(error.parameter, error.parameter)
            raise NotDone(400 if error.status == 422 else error.status, error.message, parameter) from error
