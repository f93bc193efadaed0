"""Control sockets that SIP servers talk to: udp, tcp, unix and cunix, as rtpproxy itself offers them.

One handler answers commands from all of them. Datagrams carry a cookie, and a SIP server that got no answer repeats
the datagram with the same cookie: the command runs once, and every copy gets the identical answer.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import ipaddress
import logging
import os
import socket
import stat
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from shunt.answers import Answers
from shunt.control.framing import MAX_COMMAND, ControlAddress, parse_address, take_line
from shunt.rtpproxy.codec import E_SYNTAX, CodecError, build_error, parse_datagram

log = logging.getLogger(__name__)

COOKIE_LIFE = 35.0
"""Seconds an answer is kept for a repeated cookie; rtpproxy keeps its own 35 to 40 s."""
COOKIES_KEPT = 65536
"""Most answers kept at once; the oldest go first."""
IN_FLIGHT = 4096
"""Most commands of one listener that wait for their answer; above it the socket is not read."""
CONNECTIONS = 1024
"""Most stream connections of one listener."""
UNIX_COMMAND_TIMEOUT = 5.0
"""Seconds a client of a unix: socket has to send its one command."""
_DRAIN = 16
_CLOSE_GRACE = 1.0
_RECEIVE_BUFFER = 4 * 1024 * 1024
_IP_PKTINFO = 8  # linux/in.h; the socket module of Python 3.11 has only the IPv6 name

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Peer(NamedTuple):
    """Who sent a command. `host` and `port` are empty for unix and cunix; `connection` counts stream connections."""

    kind: str
    host: str = ""
    port: int = 0
    connection: int = 0

    def __str__(self) -> str:
        if not self.host:
            return f"{self.kind} connection {self.connection}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.kind}:{host}:{self.port}"


Handler = Callable[[bytes, bytes | None, Peer], Awaitable[bytes | None]]


class ListenError(OSError):
    """A control socket could not be opened; the message names it and says why."""


class _LimitedLog:
    """Warnings that a hostile or broken sender could repeat for ever: one for each kind in 10 s, with a count."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[float, int]] = {}

    def warning(self, kind: str, text: str, *args: object) -> None:
        now = time.monotonic()
        last, held = self._kinds.get(kind, (-1e9, 0))
        if now - last < 10.0:
            self._kinds[kind] = (last, held + 1)
            return
        self._kinds[kind] = (now, 0)
        log.warning(text + (f" ({held} more like it since)" if held else ""), *args)


class ControlListener:
    """One control socket. `address` is `udp:HOST:PORT`, `tcp:HOST:PORT`, `unix:PATH` or `cunix:PATH` (see framing).

    `handler(body, cookie, peer)` gets the command without cookie and line end and returns the reply likewise; None
    means no answer, and so does an exception, which is logged: over udp the SIP server then repeats itself, and a
    stream connection is closed, since without cookies a missing answer would shift all later ones.
    `allow` limits udp and tcp to source networks ("10.0.0.0/8"); `mode` is the file mode of unix sockets.
    """

    def __init__(
        self, address: str, handler: Handler, *, allow: Iterable[str] | None = None, mode: int = 0o660,
        cookie_life: float = COOKIE_LIFE, max_in_flight: int = IN_FLIGHT,
    ) -> None:
        """Raises ValueError for a bad address or network."""
        self._wanted = parse_address(address)
        self._handler = handler
        self._allow: tuple[Network, ...] | None = (
            None if allow is None else tuple(ipaddress.ip_network(item) for item in allow)
        )
        # Commands come from few addresses: each is judged once.
        self._is_allowed = functools.lru_cache(maxsize=1024)(self._judge)
        self._mode = mode
        self._max_in_flight = max_in_flight
        self._limited = _LimitedLog()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sock: socket.socket | None = None
        self._tasks: set[asyncio.Task] = set()
        self._bound: ControlAddress | None = None
        self._closing = False
        self._connections = 0
        # udp
        self._reading = False
        self._pktinfo = False
        self._pending: dict[tuple, _Job] = {}
        self._answered: Answers[tuple, tuple[bytes, bytes]] = Answers(cookie_life, COOKIES_KEPT)  # body, and what was sent
        # unix, cunix
        self._path_identity: tuple[int, int] | None = None
        self.received = 0
        self.answered = 0
        self.retransmissions = 0
        self.refused = 0
        self.malformed = 0
        self.failed = 0

    @property
    def address(self) -> ControlAddress:
        """Where it listens; after start() with the real port if 0 was asked for."""
        return self._bound or self._wanted

    @property
    def in_flight(self) -> int:
        """Commands (udp) and connections (streams) being served now."""
        return len(self._tasks)

    async def start(self) -> None:
        """Open the socket. Raises ListenError, naming the socket and the reason."""
        self._loop = asyncio.get_running_loop()
        self._closing = False
        try:
            if self._wanted.is_unix:
                self._sock = self._open_unix(self._wanted.path)
                self._bound = self._wanted
            else:
                self._sock = self._open_inet()
                host, port = self._sock.getsockname()[:2]
                self._bound = ControlAddress(self._wanted.kind, host, port, family6=":" in host)
        except OSError as error:
            raise ListenError(error.errno, f"cannot listen on {self._wanted}: {error.strerror or error}") from error
        if self._wanted.kind == "udp":
            self._resume_reading()
        else:
            self._loop.add_reader(self._sock, self._accept)
        log.info("listening on %s", self._bound)

    async def close(self) -> None:
        """Stop listening, give commands in flight a second to finish, drop the rest, remove a unix socket's path."""
        self._closing = True
        if self._sock is None or self._loop is None:
            return
        self._loop.remove_reader(self._sock)
        self._reading = False
        if self._wanted.kind != "udp":
            # Idle connections have nothing to finish; those with a command in hand end after it (see _serve_lines).
            self._sock.close()
            for task in self._tasks:
                if task.get_name() == "idle":
                    task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_GRACE)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sock.close()
        self._sock = None
        self._pending.clear()
        self._answered.clear()
        self._remove_path()

    # -- opening ---------------------------------------------------------------------------------------------------

    def _open_inet(self) -> socket.socket:
        wanted = self._wanted
        kind = socket.SOCK_DGRAM if wanted.kind == "udp" else socket.SOCK_STREAM
        family = socket.AF_INET6 if wanted.family6 else socket.AF_INET
        # One's own address needs no resolver that might block; and a thread born here would keep the process's privileges.
        found = socket.getaddrinfo(wanted.host or None, wanted.port, family=family, type=kind, flags=socket.AI_PASSIVE)
        family, _, _, _, where = found[0]
        sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if kind == socket.SOCK_DGRAM:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
                # SIP servers connect() their socket, so from a wildcard address the answer must leave by the
                # address that the command came to.
                self._pktinfo = ipaddress.ip_address(where[0].split("%")[0]).is_unspecified
                if self._pktinfo and family == socket.AF_INET:
                    sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
                elif self._pktinfo:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
            else:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            if kind == socket.SOCK_STREAM:
                sock.listen(128)
        except BaseException:
            sock.close()
            raise
        return sock

    def _open_unix(self, path: str) -> socket.socket:
        self._clear_stale(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            # The mode must hold from the first instant, hence the umask and not only a chmod afterwards.
            before = os.umask(0o777 & ~self._mode)
            try:
                sock.bind(path)
            finally:
                os.umask(before)
            os.chmod(path, self._mode)
            status = os.stat(path)
            self._path_identity = (status.st_dev, status.st_ino)
            sock.listen(128)
        except BaseException:
            sock.close()
            raise
        return sock

    @staticmethod
    def _clear_stale(path: str) -> None:
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(status.st_mode):
            raise OSError(errno.EEXIST, "the path exists and is not a socket")
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            log.info("replaced the stale control socket %s", path)
        except FileNotFoundError:
            pass
        except BlockingIOError:
            raise OSError(errno.EADDRINUSE, "another process is listening on it (its queue is full)") from None
        else:
            raise OSError(errno.EADDRINUSE, "another process is listening on it")
        finally:
            probe.close()

    def _remove_path(self) -> None:
        if self._path_identity is None:
            return
        try:
            status = os.lstat(self._wanted.path)
            if (status.st_dev, status.st_ino) == self._path_identity:
                os.unlink(self._wanted.path)
        except FileNotFoundError:
            pass
        self._path_identity = None

    # -- common ----------------------------------------------------------------------------------------------------

    def _judge(self, host: str) -> bool:
        if self._allow is None:
            return True
        source = ipaddress.ip_address(host.split("%")[0])
        return any(source in network for network in self._allow)

    async def _run(self, body: bytes, cookie: bytes | None, peer: Peer) -> bytes | None:
        """The handler's answer; None if it has none or failed."""
        self.received += 1
        try:
            reply = await self._handler(body, cookie, peer)
        except asyncio.CancelledError:
            raise
        except Exception:
            self.failed += 1
            log.exception("command from %s not answered: %r (cookie %r)", peer, body[:200], cookie)
            return None
        if reply is not None:
            self.answered += 1
        return reply

    def _spawn(self, work: Awaitable[None], name: str = "") -> None:
        assert self._loop is not None
        task = self._loop.create_task(work, name=name or None)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("control socket %s: %r", self.address, task.exception(), exc_info=task.exception())
        self._over(task)

    def _over(self, task: asyncio.Task | None) -> None:
        self._tasks.discard(task)
        if self._wanted.kind == "udp" and not self._reading and len(self._tasks) <= self._max_in_flight // 2:
            self._resume_reading()

    # -- udp -------------------------------------------------------------------------------------------------------

    def _resume_reading(self) -> None:
        if self._sock is not None and self._loop is not None and not self._closing:
            self._loop.add_reader(self._sock, self._readable)
            self._reading = True

    def _readable(self) -> None:
        sock = self._sock
        assert sock is not None and self._loop is not None
        for _ in range(_DRAIN):
            if len(self._tasks) >= self._max_in_flight:
                # The kernel's queue holds what comes meanwhile; what it has no room for is repeated by its sender.
                self._loop.remove_reader(sock)
                self._reading = False
                self._limited.warning(
                    "full", "%s: %d commands in flight, not reading more for now", self.address, len(self._tasks)
                )
                return
            control: list[tuple[int, int, bytes]] = []
            try:
                if self._pktinfo:
                    data, control, flags, source = sock.recvmsg(MAX_COMMAND + 1, 64)
                else:
                    data, source = sock.recvfrom(MAX_COMMAND + 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._limited.warning("recv", "%s: receive: %s", self.address, error)
                return
            try:
                self._datagram(data, source, control)
            except Exception:
                self.failed += 1
                log.exception("%s: datagram from %s dropped: %r", self.address, source, data[:200])

    def _datagram(self, data: bytes, source: tuple, control: list[tuple[int, int, bytes]]) -> None:
        if not self._is_allowed(source[0]):
            self.refused += 1
            self._limited.warning("refused", "%s: refused a command from %s, not in allow", self.address, source[0])
            return
        if len(data) > MAX_COMMAND:
            self.malformed += 1
            self._limited.warning("long", "%s: datagram of %s is over %d bytes", self.address, source, MAX_COMMAND)
            return
        try:
            cookie, body = parse_datagram(data)
        except CodecError:
            # Without a cookie the answer is bare, as rtpproxy's is.
            self.malformed += 1
            self._send(build_error(E_SYNTAX) + b"\n", source, control)
            return
        if not body:
            self.malformed += 1
            self._send(cookie + b" " + build_error(E_SYNTAX) + b"\n", source, control)
            return
        key = (source, cookie)
        pending = self._pending.get(key)
        if pending is not None and pending.body == body:
            self.retransmissions += 1
            return
        if pending is None:
            kept = self._answered.get(key, time.monotonic())
            # A cookie with another command is a restarted client that has the process id of its predecessor: it
            # must not get an answer to something it never asked.
            if kept is not None and kept[0] == body:
                self.retransmissions += 1
                self._send(kept[1], source, control)
                return
        job = _Job(body)
        self._pending[key] = job
        assert self._loop is not None
        job.task = self._loop.create_task(self._answer(job, key, control))
        self._tasks.add(job.task)

    async def _answer(self, job: "_Job", key: tuple, control: list[tuple[int, int, bytes]]) -> None:
        source, cookie = key
        try:
            try:
                reply = await self._run(job.body, cookie, Peer("udp", source[0], source[1]))
            finally:
                current = self._pending.get(key) is job
                if current:
                    del self._pending[key]
            if reply is None or not current:
                return
            data = cookie + b" " + reply + b"\n"
            self._answered.keep(key, (job.body, data), time.monotonic())
            self._send(data, source, control)
        except Exception:
            log.exception("control socket %s", self.address)
        finally:
            # Not a callback of the task: that would be another turn of the event loop for each command.
            self._over(job.task)

    def _send(self, data: bytes, source: tuple, control: list[tuple[int, int, bytes]]) -> None:
        sock = self._sock
        if sock is None:
            return
        try:
            if control:
                sock.sendmsg([data], [_reply_source(item) for item in control], 0, source)
            else:
                sock.sendto(data, source)
        except OSError as error:
            # The SIP server repeats the command and gets the kept answer.
            self._limited.warning("send", "%s: reply to %s not sent: %s", self.address, source, error)

    # -- tcp, cunix, unix ------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._sock is not None
        for _ in range(_DRAIN):
            try:
                connection, source = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._limited.warning("accept", "%s: accept: %s", self.address, error)
                return
            kind = self._wanted.kind
            if kind == "tcp" and not self._is_allowed(source[0]):
                self.refused += 1
                self._limited.warning("refused", "%s: refused a connection from %s", self.address, source[0])
                connection.close()
                continue
            if len(self._tasks) >= CONNECTIONS:
                self.refused += 1
                self._limited.warning("full", "%s: %d connections, refused one more", self.address, len(self._tasks))
                connection.close()
                continue
            self._connections += 1
            connection.setblocking(False)
            if kind == "tcp":
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                peer = Peer(kind, source[0], source[1], self._connections)
            else:
                peer = Peer(kind, connection=self._connections)
            serve = self._serve_one if kind == "unix" else self._serve_lines
            self._spawn(serve(connection, peer), "idle")

    async def _serve_one(self, connection: socket.socket, peer: Peer) -> None:
        """unix: one command in one write, newline or not, then the reply, then the end (facts section 1)."""
        assert self._loop is not None
        with connection:
            try:
                async with asyncio.timeout(UNIX_COMMAND_TIMEOUT):
                    data = await self._loop.sock_recv(connection, MAX_COMMAND + 1)
                if not data:
                    return
                if len(data) > MAX_COMMAND:
                    self.malformed += 1
                    self._limited.warning("long", "%s: command over %d bytes", self.address, MAX_COMMAND)
                    return
                _set_busy(True)
                body = data.strip(b"\r\n")
                if not body.strip(b" \t\r\n"):
                    self.malformed += 1
                    reply: bytes | None = build_error(E_SYNTAX)
                else:
                    reply = await self._run(body, None, peer)
                if reply is not None:
                    await self._loop.sock_sendall(connection, reply + b"\n")
            except TimeoutError:
                self._limited.warning("slow", "%s: no command within %g s", peer, UNIX_COMMAND_TIMEOUT)
            except OSError as error:
                log.debug("%s: %s", peer, error)

    async def _serve_lines(self, connection: socket.socket, peer: Peer) -> None:
        """tcp and cunix: one command a line, answered in order, until the client closes."""
        assert self._loop is not None
        buffer = bytearray()
        with connection:
            try:
                while not self._closing:
                    data = await self._loop.sock_recv(connection, MAX_COMMAND)
                    if not data:
                        return
                    buffer += data
                    _set_busy(True)
                    while (line := take_line(buffer)) is not None:
                        if len(line) > MAX_COMMAND:
                            break
                        if not line.strip():
                            self.malformed += 1
                            reply: bytes | None = build_error(E_SYNTAX)
                        else:
                            reply = await self._run(line, None, peer)
                        if reply is None:
                            return
                        await self._loop.sock_sendall(connection, reply + b"\n")
                    if len(buffer) > MAX_COMMAND or line is not None:
                        self.malformed += 1
                        self._limited.warning("long", "%s: command over %d bytes, closing", peer, MAX_COMMAND)
                        return
                    _set_busy(False)
            except OSError as error:
                log.debug("%s: %s", peer, error)


class _Job:
    """A datagram's command while it waits for its answer."""

    __slots__ = ("body", "task")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.task: asyncio.Task | None = None


def _set_busy(busy: bool) -> None:
    # close() cancels idle connections at once and lets busy ones finish; the task's name carries the difference.
    task = asyncio.current_task()
    if task is not None:
        task.set_name("busy" if busy else "idle")


def _reply_source(item: tuple[int, int, bytes]) -> tuple[int, int, bytes]:
    """Turn the packet information of a received datagram into that of its reply (ip(7), ipv6(7))."""
    level, kind, data = item
    if level == socket.IPPROTO_IP:
        # struct in_pktinfo: interface, local address for the route, header destination. The interface is left to
        # routing, which may not be the one the command came by.
        _, local, destination = struct.unpack("=I4s4s", data[:12])
        return level, kind, struct.pack("=I4s4s", 0, destination if destination[0] < 224 else local, b"\0" * 4)
    return level, kind, data
