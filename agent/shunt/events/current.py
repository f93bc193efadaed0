"""The call that the running task works on, so that every log line can name it."""

from __future__ import annotations

from contextvars import ContextVar

CURRENT_CALL: ContextVar[str | None] = ContextVar("shunt_current_call", default=None)
