"""Why the agent did not do what was asked."""

from __future__ import annotations


class AdminError(Exception):
    """The agent cannot be reached, or answered with an error; the text is for people."""


class AgentUnreachable(AdminError):
    """Nobody answers on the socket, or the connection broke."""

    def __init__(self, socket: str, detail: str) -> None:
        super().__init__(f"agent at {socket}: {detail}")
        self.socket = socket
        self.detail = detail


class AgentError(AdminError):
    """The agent answered with an error: `status` is that of HTTP, `code` the API's, `parameter` what was wrong where that is one parameter."""

    def __init__(self, status: int, code: str, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.parameter = parameter
