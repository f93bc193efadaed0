"""Clients to relays over udp, tcp, unix and cunix control sockets.

Cookies towards the relay are always our own: relays keep answers by cookie alone, whoever sent it (facts section 10),
so two SIP servers behind one agent, or one of them restarted, would otherwise get each other's answers.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import itertools
import logging
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable

from shunt.control.framing import (
    MAX_REPLY, ControlAddress, info_reply_end, is_info, parse_address, take_line,
)
from shunt.rtpproxy.codec import CodecError, parse_datagram
from shunt.tasks import being_cancelled

log = logging.getLogger(__name__)

REFUSED_RETRY = 0.1
"""Seconds until a forwarded command is tried once more after the relay's host refused it (nobody on that port)."""
UNIX_CONNECTIONS = 16
"""Most connections at once to a unix: socket; rtpproxy serves them one after the other and queues few."""
_DRAIN = 64
_RECEIVE_BUFFER = 4 * 1024 * 1024

StateCallback = Callable[[bool, str], None]


class RelayError(Exception):
    """A relay gave no answer; the message names the relay and the command."""


class RelayTimeout(RelayError):
    """No answer in time."""


class RelayUnreachable(RelayError):
    """Nobody there: refused, no such socket, connection lost, or the client was closed."""


class RelayClient:
    """One relay's control socket. `address` as in framing; `timeout` is seconds for each try, `retries` is further
    tries of request().

    `alive` is None until the first answer or failure. Callbacks given to on_state(callback) are called with
    (alive, reason) at every change.
    """

    def __init__(self, address: str, *, timeout: float = 1.0, retries: int = 3) -> None:
        """Raises ValueError for a bad address, a time-out not above 0, or negative retries."""
        self.address = parse_address(address)
        if timeout <= 0 or retries < 0:
            raise ValueError(f"relay {address}: timeout must be above 0 and retries not below")
        self.timeout = timeout
        self.retries = retries
        self.alive: bool | None = None
        self.last_answer: float | None = None
        """time.monotonic() of the last answer."""
        self.sent = 0
        self.retransmitted = 0
        self.answers = 0
        self.late_answers = 0
        self.timeouts = 0
        self._callbacks: list[StateCallback] = []
        kinds = {"udp": _Datagram, "tcp": _Stream, "cunix": _Stream, "unix": _OneShot}
        self._transport: _Datagram | _Stream | _OneShot = kinds[self.address.kind](self)

    def on_state(self, callback: StateCallback) -> None:
        """Have callback(alive, reason) called whenever the relay comes up or goes down."""
        self._callbacks.append(callback)

    async def request(self, body: bytes) -> bytes:
        """Send a command of our own and return the reply, both without cookie and line end.

        Tries 1 + retries times, `timeout` seconds each, over udp with one cookie. So the command must be one that may
        run twice if it goes over a stream. Raises RelayTimeout or RelayUnreachable.
        """
        return await self._exchange(body, 1 + self.retries, patient=True)

    async def forward(self, body: bytes) -> bytes:
        """Pass on a SIP server's command and return the reply, both without cookie and line end.

        At most one repetition, after `timeout`, and failure after twice that: the SIP server itself repeats about
        once a second, so the relay sees no more copies than it would without us. Where nobody listens on the relay's
        port it fails after 0.1 s already, so that another relay can be taken. Raises RelayTimeout, RelayUnreachable.
        """
        return await self._exchange(body, 2, patient=False)

    async def close(self) -> None:
        """Close the socket; commands in flight fail with RelayUnreachable."""
        await self._transport.close()

    async def _exchange(self, body: bytes, tries: int, patient: bool) -> bytes:
        if not body.strip():
            raise ValueError("empty command")
        started = time.monotonic()
        try:
            reply = await self._transport.exchange(body, tries, patient)
        except RelayError as error:
            if isinstance(error, RelayTimeout):
                self.timeouts += 1
            # One command without an answer is that command's fault while others get theirs.
            if self.last_answer is None or self.last_answer < started:
                self._set_alive(False, str(error))
            raise
        return reply

    def _answered(self) -> None:
        self.answers += 1
        self.last_answer = time.monotonic()
        if not self.alive:
            self._set_alive(True, "answers")

    def _set_alive(self, alive: bool, reason: str) -> None:
        if self.alive is alive:
            return
        self.alive = alive
        if alive:
            log.info("relay %s answers", self.address)
        else:
            log.warning("%s; taken for dead", reason)
        for callback in self._callbacks:
            try:
                callback(alive, reason)
            except Exception:
                log.exception("relay %s: state callback failed", self.address)

    def _timed_out(self, body: bytes, tries: int) -> RelayTimeout:
        return RelayTimeout(
            f"relay {self.address}: no answer to {body[:120]!r} after {tries} tries of {self.timeout:g} s"
        )

    def _unreachable(self, what: str) -> RelayUnreachable:
        return RelayUnreachable(f"relay {self.address}: {what}")


async def _resolve(address: ControlAddress, kind: int) -> tuple[int, tuple]:
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if address.family6 else socket.AF_UNSPEC
    found = await loop.getaddrinfo(address.host or None, address.port, family=family, type=kind)
    return found[0][0], found[0][4]


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return False
    return True


class _Waiting:
    """A datagram command that has no answer yet."""

    __slots__ = ("body", "data", "due", "future", "patient", "refusals", "tries_left")

    def __init__(self, body: bytes, data: bytes, future: asyncio.Future, tries: int, patient: bool) -> None:
        self.body = body
        self.data = data
        self.future = future
        self.tries_left = tries
        self.patient = patient
        self.refusals = 0
        self.due = 0.0  # by the loop's clock, when the try under way has failed


class _Datagram:
    """udp: many commands in flight at once, told apart by cookie, repeated with the same cookie."""

    def __init__(self, client: RelayClient) -> None:
        self._client = client
        self._sock: socket.socket | None = None
        self._opening: asyncio.Lock = asyncio.Lock()
        self._waiting: dict[bytes, _Waiting] = {}
        # What is due when. All wait equally long, so this is in order; most are answered long before, and one timer does for all.
        self._tries: deque[tuple[float, _Waiting]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        # SIP servers' cookies begin with a process id, ours with a letter; the random part keeps a restarted agent
        # from meeting answers that the relay kept for its predecessor.
        self._prefix = b"s" + secrets.token_hex(6).encode() + b"."
        self._numbers = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._by_name = not _is_numeric(client.address.host)
        self._closed = False

    async def exchange(self, body: bytes, tries: int, patient: bool) -> bytes:
        if self._sock is None:
            await self._open()
        loop = self._loop
        assert loop is not None
        cookie = self._prefix + b"%x" % next(self._numbers)
        waiting = _Waiting(body, cookie + b" " + body, loop.create_future(), tries, patient)
        self._waiting[cookie] = waiting
        self._client.sent += 1
        self._send(waiting)
        try:
            return await waiting.future
        finally:
            self._waiting.pop(cookie, None)
            while self._tries and self._tries[0][1].future.done():
                self._tries.popleft()

    async def close(self) -> None:
        self._closed = True
        self._drop_socket()
        if self._timer is not None:
            self._timer.cancel()
        for waiting in list(self._waiting.values()):
            if not waiting.future.done():
                waiting.future.set_exception(self._client._unreachable("the client was closed"))

    async def _open(self) -> None:
        async with self._opening:
            if self._closed:
                raise self._client._unreachable("the client was closed")
            if self._sock is not None:
                return
            try:
                family, where = await _resolve(self._client.address, socket.SOCK_DGRAM)
                sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
                try:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
                    # Connected, so that only the relay's own answers come in and a closed port is reported.
                    sock.connect(where)
                except BaseException:
                    sock.close()
                    raise
            except OSError as error:
                raise self._client._unreachable(str(error)) from error
            if self._closed:
                sock.close()
                raise self._client._unreachable("the client was closed")
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(sock, self._readable)
            self._sock = sock

    def _drop_socket(self) -> None:
        if self._sock is not None:
            assert self._loop is not None
            self._loop.remove_reader(self._sock)
            self._sock.close()
            self._sock = None

    def _send(self, waiting: _Waiting) -> None:
        waiting.tries_left -= 1
        assert self._loop is not None
        waiting.due = due = self._loop.time() + self._client.timeout
        self._tries.append((due, waiting))
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._on_due)
        if self._sock is None:
            return
        try:
            self._sock.send(waiting.data)
        except ConnectionRefusedError:
            # The report on an earlier datagram, handed over here; this one was not sent.
            self._refused()
            try:
                if self._sock is not None and not waiting.future.done():
                    self._sock.send(waiting.data)
            except OSError as error:
                log.debug("relay %s: send: %s", self._client.address, error)
        except OSError as error:
            # As good as lost on the way; the next try follows.
            log.debug("relay %s: send: %s", self._client.address, error)
            if error.errno == errno.EMSGSIZE and not waiting.future.done():
                waiting.future.set_exception(self._client._unreachable(f"{len(waiting.data)} bytes: {error}"))

    def _on_due(self) -> None:
        assert self._loop is not None
        while self._tries:
            due, waiting = self._tries[0]
            if due > self._loop.time() and not waiting.future.done() and waiting.due == due:
                self._timer = self._loop.call_at(due, self._on_due)
                return
            self._tries.popleft()
            self._try_failed(waiting, due)
        self._timer = None

    def _try_failed(self, waiting: _Waiting, due: float) -> None:
        if waiting.future.done() or waiting.due != due:
            return
        if waiting.tries_left > 0:
            self._client.retransmitted += 1
            self._send(waiting)
            return
        tries = 2 if not waiting.patient else 1 + self._client.retries
        if waiting.refusals:
            error: RelayError = self._client._unreachable(f"port refused {waiting.body[:120]!r}, {tries} tries")
        else:
            error = self._client._timed_out(waiting.body, tries)
        waiting.future.set_exception(error)
        if self._by_name and len(self._waiting) <= 1:
            # The name may lead elsewhere by now: the next command looks it up again.
            self._drop_socket()

    def _refused(self) -> None:
        """An ICMP port-unreachable came; it does not say for which command, so it counts for all in flight."""
        assert self._loop is not None
        for waiting in list(self._waiting.values()):
            if waiting.future.done():
                continue
            waiting.refusals += 1
            if waiting.patient:
                continue
            if waiting.tries_left > 0 and waiting.refusals == 1:
                waiting.due = due = self._loop.time() + REFUSED_RETRY
                self._loop.call_at(due, self._try_failed, waiting, due)
            elif waiting.tries_left <= 0:
                waiting.future.set_exception(
                    self._client._unreachable(f"port refused {waiting.body[:120]!r}")
                )

    def _readable(self) -> None:
        for _ in range(_DRAIN):
            if self._sock is None:
                return
            try:
                data = self._sock.recv(MAX_REPLY)
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionRefusedError:
                self._refused()
                continue
            except OSError as error:
                log.warning("relay %s: receive: %s", self._client.address, error)
                return
            try:
                cookie, body = parse_datagram(data)
            except CodecError:
                continue
            waiting = self._waiting.pop(cookie, None)
            if waiting is None or waiting.future.done():
                # The second answer to a repeated command, or one that came after we gave up.
                self._client.late_answers += 1
                continue
            self._client._answered()
            waiting.future.set_result(body)


class _Queued:
    """A command on a stream: done when its line came back."""

    __slots__ = ("body", "future", "info", "written")

    def __init__(self, body: bytes, future: asyncio.Future) -> None:
        self.body = body
        self.future = future
        self.info = is_info(body)
        self.written = False


class _Stream:
    """tcp and cunix: one connection, commands pipelined, answers in order.

    Without cookies the order is all there is: after a time-out the connection is closed, and every command on it
    fails, so that an answer can never go to the wrong command.
    """

    def __init__(self, client: RelayClient) -> None:
        self._client = client
        self._connecting = asyncio.Lock()
        self._reader_task: asyncio.Task | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._queue: deque[_Queued] = deque()
        self._closed = False

    async def exchange(self, body: bytes, tries: int, patient: bool) -> bytes:
        line = _one_line(body)
        failure: RelayError | None = None
        refused = 0
        for attempt in range(tries):
            if attempt:
                self._client.retransmitted += 1
            started = time.monotonic()
            try:
                await self._connect()
            except RelayUnreachable as error:
                failure = error
                refused += 1
                if self._closed or attempt + 1 == tries:
                    break
                # A patient caller waits out a relay's restart; a SIP server's command must fail soon.
                pause = self._client.timeout - (time.monotonic() - started) if patient else REFUSED_RETRY
                await asyncio.sleep(max(0.0, pause))
                continue
            item = _Queued(line, asyncio.get_running_loop().create_future())
            self._client.sent += 1
            self._queue.append(item)
            self._write_next()
            writer = self._writer
            try:
                async with asyncio.timeout(self._client.timeout):
                    return await asyncio.shield(item.future)
            except TimeoutError:
                failure = self._client._timed_out(body, attempt + 1)
                item.future.cancel()
                if writer is self._writer:
                    self._disconnect("closed after a time-out")
            except RelayUnreachable as error:
                failure = error
            except asyncio.CancelledError:
                # It keeps its place in the queue: its answer still comes and must not go to the next one.
                item.future.cancel()
                raise
            if self._closed:
                break
        assert failure is not None
        raise failure

    async def close(self) -> None:
        self._closed = True
        self._disconnect("the client was closed")

    async def _connect(self) -> None:
        async with self._connecting:
            if self._closed:
                raise self._client._unreachable("the client was closed")
            if self._writer is not None:
                return
            address = self._client.address
            try:
                async with asyncio.timeout(self._client.timeout):
                    if address.is_unix:
                        reader, writer = await asyncio.open_unix_connection(address.path)
                    else:
                        family = socket.AF_INET6 if address.family6 else socket.AF_UNSPEC
                        reader, writer = await asyncio.open_connection(
                            address.host or None, address.port, family=family
                        )
                        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except TimeoutError:
                raise self._client._unreachable(f"no connection within {self._client.timeout:g} s") from None
            except OSError as error:
                raise self._client._unreachable(_reason(error)) from error
            if self._closed:
                writer.close()
                raise self._client._unreachable("the client was closed")
            self._writer = writer
            self._reader_task = asyncio.get_running_loop().create_task(self._read(reader, writer))

    def _write_next(self) -> None:
        """Write what may be written: everything in order, but nothing behind an I whose answer is still coming."""
        if self._writer is None:
            return
        for item in self._queue:
            if not item.written:
                if item.info and item is not self._queue[0]:
                    return
                item.written = True
                self._writer.write(item.body + b"\n")
            if item.info:
                return

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer = bytearray()
        reason = "connection closed by the relay"
        try:
            while data := await reader.read(MAX_REPLY):
                buffer += data
                while self._queue and (reply := self._take(buffer)) is not None:
                    item = self._queue.popleft()
                    self._client._answered()
                    if not item.future.done():
                        item.future.set_result(reply)
                    self._write_next()
                if not self._queue and buffer:
                    reason = f"bytes that answer nothing: {bytes(buffer[:80])!r}"
                    break
                if len(buffer) > MAX_REPLY:
                    reason = f"reply over {MAX_REPLY} bytes"
                    break
        except OSError as error:
            reason = _reason(error)
        if writer is self._writer:
            self._disconnect(reason)

    def _take(self, buffer: bytearray) -> bytes | None:
        head = self._queue[0]
        if not head.written:
            return None
        if not head.info:
            return take_line(buffer)
        end = info_reply_end(head.body, bytes(buffer))
        if not end:
            return None
        reply = bytes(buffer[:end]).rstrip(b"\r\n")
        del buffer[:end]
        return reply

    def _disconnect(self, reason: str) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        task, self._reader_task = self._reader_task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        queue, self._queue = self._queue, deque()
        for item in queue:
            if not item.future.done():
                item.future.set_exception(self._client._unreachable(reason))


class _OneShot:
    """unix: a connection for every command; the relay closes it after the reply."""

    def __init__(self, client: RelayClient) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(UNIX_CONNECTIONS)
        self._tasks: set[asyncio.Task] = set()
        self._closed = False

    async def exchange(self, body: bytes, tries: int, patient: bool) -> bytes:
        line = _one_line(body)
        failure: RelayError | None = None
        for attempt in range(tries):
            if self._closed:
                raise self._client._unreachable("the client was closed")
            if attempt:
                self._client.retransmitted += 1
            started = time.monotonic()
            async with self._slots:
                self._client.sent += 1
                # The time for the relay's answer does not include the wait for a slot.
                started = time.monotonic()
                task = asyncio.get_running_loop().create_task(self._once(line))
                self._tasks.add(task)
                try:
                    async with asyncio.timeout(self._client.timeout):
                        reply = await task
                    self._client._answered()
                    return reply
                except TimeoutError:
                    failure = self._client._timed_out(body, attempt + 1)
                except OSError as error:
                    failure = self._client._unreachable(_reason(error))
                except asyncio.CancelledError:
                    if self._closed and not being_cancelled():
                        raise self._client._unreachable("the client was closed") from None
                    raise
                finally:
                    task.cancel()
                    self._tasks.discard(task)
            if isinstance(failure, RelayUnreachable) and attempt + 1 < tries:
                pause = self._client.timeout - (time.monotonic() - started) if patient else REFUSED_RETRY
                await asyncio.sleep(max(0.0, pause))
        assert failure is not None
        raise failure

    async def close(self) -> None:
        self._closed = True
        for task in list(self._tasks):
            task.cancel()

    async def _once(self, line: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sock:
            while True:
                try:
                    sock.connect(self._client.address.path)
                    break
                except BlockingIOError:
                    # The relay's queue of connections is full; there is no event for it having room again.
                    await asyncio.sleep(0.005)
            await loop.sock_sendall(sock, line + b"\n")
            buffer = bytearray()
            while data := await loop.sock_recv(sock, MAX_REPLY):
                buffer += data
                if len(buffer) > MAX_REPLY:
                    raise OSError(errno.EMSGSIZE, f"reply over {MAX_REPLY} bytes")
                if info_reply_end(line, bytes(buffer)) if is_info(line) else b"\n" in buffer:
                    break
            if not buffer:
                raise OSError(errno.ECONNRESET, "connection closed without a reply")
            return bytes(buffer).rstrip(b"\r\n")


def _one_line(body: bytes) -> bytes:
    # A line end inside a datagram is a blank to the relay (facts section 1); on a stream it would end the command
    # and begin another.
    return body.strip(b"\r\n").replace(b"\r", b" ").replace(b"\n", b" ")


def _reason(error: OSError) -> str:
    return error.strerror or os.strerror(error.errno) if error.errno else str(error)
