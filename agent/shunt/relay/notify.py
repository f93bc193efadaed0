"""Media time-out notices to the SIP server: the tag and a newline over tcp or a unix socket (facts section 9)."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass

from shunt.rtpproxy.codec import notify_line
from shunt.tasks import keep_running

log = logging.getLogger(__name__)

_SELF = "%%CC_SELF%%"
_ATTEMPTS = 6
_FIRST_DELAY = 0.1
_CONNECT_TIMEOUT = 2.0
_QUEUE = 10_000
_TARGETS = 64


@dataclass(frozen=True, slots=True)
class NotifyTarget:
    """Where notices go: a unix socket's path, or host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"tcp:{self.host}:{self.port}"


def parse_target(text: str, peer_ip: str | None) -> NotifyTarget:
    """Read tcp:HOST:PORT, unix:PATH, or a bare path, which is what OpenSIPS sends for unix:PATH; the host %%CC_SELF%% is the address the command came from.

    Raises ValueError for anything else: other schemes, a host that is no address, %%CC_SELF%% without an address.
    """
    if text.startswith("/"):
        return NotifyTarget(path=text)
    scheme, _, rest = text.partition(":")
    if scheme == "unix" and rest.startswith("/"):
        return NotifyTarget(path=rest)
    if scheme != "tcp":
        raise ValueError(f"notify socket {text!r} is neither tcp:ADDRESS:PORT nor unix:/PATH nor a path")
    host, _, port = rest.rpartition(":")
    if host == _SELF:
        if peer_ip is None:
            raise ValueError(f"notify socket {text!r}: it is not known where the command came from")
        host = peer_ip
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise ValueError(f"notify socket {text!r}: {host!r} is not an address") from None
    if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError(f"notify socket {text!r}: {port!r} is not a port")
    return NotifyTarget(host=str(address), port=int(port))


class _Connection:
    """One target: a queue of lines, and a task that keeps a connection and writes them."""

    def __init__(self, target: NotifyTarget, owner: NotifySender) -> None:
        self.queue: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE)
        self._target = target
        self._owner = owner
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.task = asyncio.get_running_loop().create_task(keep_running(f"time-out notices to {target}", self._run))

    async def _run(self) -> None:
        try:
            while True:
                line = await self.queue.get()
                try:
                    await self._deliver(line)
                finally:
                    self.queue.task_done()
        finally:
            self._drop()

    async def _deliver(self, line: bytes) -> None:
        delay = _FIRST_DELAY
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(delay)
                delay *= 2
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    await self._connect()
                    self._writer.write(line)
                    await self._writer.drain()
            except (OSError, TimeoutError) as error:
                reason = error
                self._drop()
                continue
            self._owner.sent += 1
            return
        self._owner.failed += 1
        log.error("time-out notice %r was not delivered to %s: %s", line, self._target, reason or "no answer in time")

    async def _connect(self) -> None:
        # A server that went away has closed its end: writing would seem to succeed and be lost.
        await asyncio.sleep(0)
        if self._writer is not None and not self._writer.is_closing() and not self._reader.at_eof():
            return
        self._drop()
        if self._target.path:
            self._reader, self._writer = await asyncio.open_unix_connection(self._target.path)
        else:
            self._reader, self._writer = await asyncio.open_connection(self._target.host, self._target.port)

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


class NotifySender:
    """Sends time-out notices, in order for each target, over one lasting connection each.

    A notice that cannot be delivered is tried again for some seconds, then counted in `failed` and logged. `sent`
    counts those written.
    """

    def __init__(self, permit: Callable[[NotifyTarget, str | None], bool] = lambda target, peer_ip: True) -> None:
        """permit(target, where the command came from): whether a U command may name this target."""
        self.sent = 0
        self.failed = 0
        self._permit = permit
        self._connections: dict[NotifyTarget, _Connection] = {}

    async def notify(self, socket: str, tag: str, peer_ip: str | None) -> None:
        """Queue a notice: `socket` and URL-encoded `tag` as the U command named them; `peer_ip` is where the command
        came from. Raises nothing."""
        self.notify_soon(socket, tag, peer_ip)

    def notify_soon(self, socket: str, tag: str, peer_ip: str | None) -> None:
        """notify() for callers that are no coroutines; needs a running event loop."""
        try:
            target = parse_target(socket, peer_ip)
            if not self._permit(target, peer_ip):
                raise ValueError(f"notify socket {target} is not permitted (notify.allow)")
            connection = self._connections.get(target)
            if connection is None:
                if len(self._connections) >= _TARGETS:
                    raise ValueError(f"notify socket {socket!r}: {_TARGETS} others are in use")
                connection = self._connections[target] = _Connection(target, self)
            connection.queue.put_nowait(notify_line(tag))
        except (ValueError, asyncio.QueueFull) as error:
            self.failed += 1
            log.error("time-out notice %r was not sent: %s", tag, error or f"{_QUEUE} are waiting already")

    async def close(self, grace: float = 1.0) -> None:
        """Close the connections; what is queued gets `grace` seconds to go out."""
        connections = list(self._connections.values())
        self._connections.clear()
        if connections:
            waiting = [asyncio.ensure_future(c.queue.join()) for c in connections]
            _, late = await asyncio.wait(waiting, timeout=grace)
            for future in late:
                future.cancel()
        for connection in connections:
            self.failed += connection.queue.qsize()
            connection.task.cancel()
        await asyncio.gather(*(c.task for c in connections), return_exceptions=True)
