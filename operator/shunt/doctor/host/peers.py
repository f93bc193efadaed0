"""Asking what the daemons talk to: the data plane's socket, relays, Redis, the agent's admin API. One second for each answer."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from shunt.admin.client import AdminClient
from shunt.admin.errors import AdminError, AgentUnreachable
from shunt.calls.reasons import NOT_IN_DATA_PLANE
from shunt.config.load import api_token
from shunt.config.model import Api, Journal
from shunt.config.values import SocketAddress, host_port
from shunt.doctor.facts import Agent, Connection, RedisAnswer, RelayAnswer, Unknown
from shunt.errors import cause, plain

LIMIT_S = 1.0
_REPEAT_S = 0.3
_HEALTH_S = 4.5  # the operator daemon waits for the agent for 4 s
_LARGEST = 65_535
_PING = b"d7:command4:pinge"


def connect(target: str) -> Connection:
    """Connect to unix:/PATH or HOST:PORT, and close again."""
    found = host_port(target)
    try:
        if found.path:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(LIMIT_S)
                link.connect(found.path)
        else:
            socket.create_connection((found.host, found.port), LIMIT_S).close()
    except OSError as error:
        code: Literal["", "missing", "denied", "refused", "timeout", "name"] = ""
        match error:
            case FileNotFoundError():
                code = "missing"
            case PermissionError():
                code = "denied"
            case ConnectionRefusedError():
                code = "refused"
            case socket.gaierror():
                code = "name"
            case TimeoutError():
                code = "timeout"
        return Connection(f"no connection within {LIMIT_S:g} s" if code == "timeout" else cause(error), code)
    return Connection(None)


class _Relay:
    """A relay's control socket: sends one command and returns its answer. A context manager; raises OSError."""

    def __init__(self, address: SocketAddress) -> None:
        self._address = address
        self._cookie = f"doctor{os.getpid()}x{time.monotonic_ns() % 1_000_000}"
        self._count = 0
        self._link = self._connected() if address.scheme != "unix" else None

    def __enter__(self) -> _Relay:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._link is not None:
            self._link.close()

    def _connected(self) -> socket.socket:
        address = self._address
        family = socket.AF_UNIX if not address.is_ip else socket.AF_INET6 if ":" in address.host else socket.AF_INET
        link = socket.socket(family, socket.SOCK_DGRAM if address.scheme == "udp" else socket.SOCK_STREAM)
        link.settimeout(LIMIT_S)
        try:
            link.connect(address.path if not address.is_ip else (address.host, address.port))
        except OSError:
            link.close()
            raise
        return link

    def ask(self, command: bytes, cookie: bool = False) -> bytes:
        """The answer, without cookie. On streams commands have a cookie only in NG. Raises TimeoutError and other OSErrors."""
        self._count += 1
        prefix = f"{self._cookie}_{self._count} ".encode()
        if self._address.scheme == "udp":
            return self._datagram(prefix, command)
        link = self._link or self._connected()
        try:
            link.sendall(prefix + command if cookie else command + b"\n")
            answer = link.recv(_LARGEST)
        finally:
            if link is not self._link:
                link.close()
        if not answer:
            raise ConnectionResetError(0, "the relay closes the connection without an answer")
        return answer.removeprefix(prefix).strip()

    def _datagram(self, prefix: bytes, command: bytes) -> bytes:
        assert self._link is not None
        deadline = time.monotonic() + LIMIT_S
        while (left := deadline - time.monotonic()) > 0:
            self._link.send(prefix + command)
            self._link.settimeout(min(_REPEAT_S, left))
            with contextlib.suppress(TimeoutError):
                while True:
                    answer = self._link.recv(_LARGEST)
                    if answer.startswith(prefix):
                        return answer.removeprefix(prefix).strip()
        raise TimeoutError


def _asked(address: SocketAddress, question: Callable[[_Relay], RelayAnswer]) -> RelayAnswer:
    try:
        with _Relay(address) as relay:
            return question(relay)
    except TimeoutError:
        return RelayAnswer(error=f"no answer within {LIMIT_S:g} s")
    except ConnectionRefusedError:
        return RelayAnswer(error="nothing listens there")
    except OSError as error:
        return RelayAnswer(error=cause(error))


def rtpproxy(text: str, dates: tuple[int, ...]) -> RelayAnswer:
    """What a relay that speaks the rtpproxy protocol answers to V, and to VF with each date."""

    def question(relay: _Relay) -> RelayAnswer:
        version = relay.ask(b"V").decode(errors="replace")
        if not re.fullmatch(r"[0-9]+", version):
            return RelayAnswer(error=f"its answer to V is {version[:40]!r}, not a version")
        return RelayAnswer(version, {date: relay.ask(f"VF {date}".encode()) == b"1" for date in dates})

    return _asked(SocketAddress.parse(text), question)


def rtpengine(text: str) -> RelayAnswer:
    """What an rtpengine answers to ping (NG protocol)."""

    def question(relay: _Relay) -> RelayAnswer:
        answer = relay.ask(_PING, cookie=True)
        return RelayAnswer("rtpengine") if b"4:pong" in answer else RelayAnswer(error=f"its answer to ping is {answer[:40].decode(errors='replace')!r}, not pong")

    return _asked(SocketAddress.parse(text), question)


def redis(journal: Journal) -> RedisAnswer:
    """Whether the journal's Redis takes the password and answers."""
    assert journal.redis is not None
    parts = urlsplit(journal.redis)
    try:
        password = journal.password()
    except ValueError as error:
        return RedisAnswer(error=str(error))
    try:
        with _redis_link(journal.redis) as link:
            if password is not None:
                names = [unquote(parts.username)] if parts.username else []
                if (answer := _redis_ask(link, "AUTH", *names, password)) != "+OK":
                    return RedisAnswer(error=_redis_error(answer))
            if (answer := _redis_ask(link, "PING")) != "+PONG":
                return RedisAnswer(error=_redis_error(answer))
            about = re.search(r"^aof_enabled:([01])", _redis_ask(link, "INFO", "persistence"), re.MULTILINE)
            return RedisAnswer(about[1] == "1" if about else None)
    except TimeoutError:
        return RedisAnswer(error=f"no answer within {LIMIT_S:g} s")
    except OSError as error:
        return RedisAnswer(error=cause(error))


def _redis_link(url: str) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(LIMIT_S)
        link.connect(parts.path)
        return link
    host = parts.hostname or ""
    link = socket.create_connection((host, parts.port or 6379), LIMIT_S)
    return ssl.create_default_context().wrap_socket(link, server_hostname=host) if parts.scheme == "rediss" else link


def _redis_error(answer: str) -> str:
    """An error of Redis in its words; anything else is no Redis."""
    return answer[1:] if answer.startswith("-") else f"its answer is {answer[:40]!r}: no Redis"


def _redis_ask(link: socket.socket, *words: str) -> str:
    """One command of RESP, and its answer as far as it comes at once."""
    link.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words))
    answer = link.recv(_LARGEST)
    # A bulk string says its length; a large one comes in several parts.
    if answer.startswith(b"$") and b"\r\n" in answer:
        size = int(answer[1 : answer.index(b"\r\n")]) + answer.index(b"\r\n") + 4
        while len(answer) < size and (more := link.recv(_LARGEST)):
            answer += more
    return answer.decode(errors="replace").strip()


def agent(socket_path: str) -> Agent | None | Unknown:
    """The agent behind an admin socket; None: the socket has no listener."""

    async def ask() -> Agent:
        async with AdminClient(socket_path, LIMIT_S) as admin:
            status = await admin.status()
        return Agent(str(status["version"]), sum(row["streams"] for row in status["streams"] if row["reason"] == NOT_IN_DATA_PLANE))

    if not os.path.exists(socket_path):
        return None
    try:
        return asyncio.run(ask())
    except AgentUnreachable as error:
        return None if connect(f"unix:{socket_path}").code == "refused" else Unknown(error.detail)
    except AdminError as error:
        return Unknown(str(error))


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_HEALTH_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def health(settings: Api) -> dict[str, Any] | Unknown:
    """GET /v1/health of the operator daemon."""
    where = host_port(settings.listen)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(where.host, where.host)
    connection: http.client.HTTPConnection
    try:
        token = api_token(settings)
        if where.path:
            connection = _UnixConnection(where.path)
        elif settings.tls is not None:
            # The certificate is for another name than this address.
            context = ssl.create_default_context(cafile=settings.tls.certificate)
            context.check_hostname = False
            connection = http.client.HTTPSConnection(host, where.port, timeout=_HEALTH_S, context=context)
        else:
            connection = http.client.HTTPConnection(host, where.port, timeout=_HEALTH_S)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/health", headers={"Authorization": f"Bearer {token}"} if token else {})
            answer = connection.getresponse()
            found: dict[str, Any] = json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Unknown(plain(error, settings.listen))
    if answer.status != 200 or "findings" not in found:
        return Unknown(f"{settings.listen}: {found.get('error', 'it is not an operator daemon of this version')}")
    return found
