"""What an error of the operating system or of a library means, in plain words. All commands and daemons of this package write errors by it."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
from pathlib import Path
from typing import Any

NO_ANSWER = "no answer in time"
_CLOSED = "the connection was closed before the answer was complete"
_NO_HTTP = "the answer is no HTTP"
_LONGEST = 300


def plain(error: BaseException, where: str = "") -> str:
    """Returns where an error happened, and its cause. where: the file or socket; one that the error itself names wins; "": the caller names it."""
    if isinstance(error, OSError) and isinstance(error.filename, (str, Path)):
        where = str(error.filename)
    return f"{where}: {cause(error)}" if where else cause(error)


def cause(error: BaseException) -> str:
    """Returns what happened, without classes, error numbers and line breaks."""
    said = _of_library(error) or _of_system(error) or str(error) or _words(type(error).__name__)
    return " ".join(said.split())[:_LONGEST]


def _words(name: str) -> str:
    """The name of an error without a text: ConnectionLost becomes "connection lost"."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


def _of_system(error: BaseException) -> str:
    match error:
        case TimeoutError() if error.errno is None:
            return NO_ANSWER
        case ConnectionResetError() | BrokenPipeError():
            return _CLOSED
        case ssl.SSLCertVerificationError():
            return f"the TLS certificate is not accepted: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS failed: {(getattr(error, 'reason', None) or error.strerror or 'unknown cause').replace('_', ' ').lower()}"
        case OSError():
            return error.strerror or ""
    return ""


def _of_library(error: BaseException) -> str:
    match error:
        case KeyError():
            return f"{error} is missing"
        case json.JSONDecodeError():
            return f"no JSON: {error.msg}, line {error.lineno}, column {error.colno}"
        case UnicodeDecodeError():
            return f"no UTF-8 text: byte 0x{error.object[error.start]:02x} at offset {error.start}"
        case http.client.RemoteDisconnected() | http.client.IncompleteRead():
            return _CLOSED
        case http.client.HTTPException():
            return _NO_HTTP
    aiohttp = sys.modules.get("aiohttp")  # commands that do not use it start without it
    return "" if aiohttp is None else _of_aiohttp(error, aiohttp)


def _of_aiohttp(error: BaseException, aiohttp: Any) -> str:
    if isinstance(error, aiohttp.ServerTimeoutError):
        return NO_ANSWER
    if isinstance(error, aiohttp.ClientConnectorError):
        return _of_system(error.os_error)
    if isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError)):
        return _CLOSED
    if isinstance(error, aiohttp.ContentTypeError):
        return "the answer is no JSON"
    if isinstance(error, aiohttp.ClientResponseError):
        return _NO_HTTP if error.status == 400 else f"HTTP status {error.status}"
    return ""
