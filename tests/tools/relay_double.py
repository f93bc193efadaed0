"""Relays that are none: real control sockets with answers that a test gives, and port numbers as rtpproxy gives them out.

Nothing is parsed by the code under test: a datagram is split at its first blank, a stream at newlines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

Answer = Callable[[bytes], Awaitable[bytes | None]]
RELAY_IP = "10.91.1.1"  # in the answers of PortNumbers


class RelayDouble:
    """Listens like a relay on one control socket. `commands` has (cookie or None, body) of everything received."""

    def __init__(self, kind: str, path: str = "", *, answer: Answer) -> None:
        self.kind = kind
        self.path = path
        self.answer = answer
        self.commands: list[tuple[bytes | None, bytes]] = []
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task] = set()

    @property
    def address(self) -> str:
        return f"{self.kind}:{self.path}" if self.path else f"{self.kind}:127.0.0.1:{self.port}"

    async def start(self) -> RelayDouble:
        loop = asyncio.get_running_loop()
        if self.kind == "udp":
            self._transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), local_addr=("127.0.0.1", self.port))
            self.port = self._transport.get_extra_info("sockname")[1]
        elif self.kind == "tcp":
            self._server = await asyncio.start_server(self._lines, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]
        else:
            serve = self._once if self.kind == "unix" else self._lines
            self._server = await asyncio.start_unix_server(serve, self.path)
        return self

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await asyncio.sleep(0)
            self._server = None
            if self.path and os.path.exists(self.path):
                os.unlink(self.path)
        await asyncio.sleep(0.01)

    async def __aenter__(self) -> RelayDouble:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def datagram(self, data: bytes, source: tuple) -> None:
        cookie, _, body = data.partition(b" ")
        self.commands.append((cookie, body))
        task = asyncio.get_running_loop().create_task(self._reply(cookie, body, source))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, cookie: bytes, body: bytes, source: tuple) -> None:
        reply = await self.answer(body)
        if reply is not None and self._transport is not None:
            self._transport.sendto(cookie + b" " + reply + b"\n", source)

    async def _lines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while line := await reader.readline():
                body = line.rstrip(b"\n")
                self.commands.append((None, body))
                reply = await self.answer(body)
                if reply is not None:
                    writer.write(reply + b"\n")
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _once(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            body = (await reader.read(8192)).rstrip(b"\n")
            self.commands.append((None, body))
            reply = await self.answer(body)
            if reply is not None:
                writer.write(reply + b"\n")
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, relay: RelayDouble) -> None:
        self._relay = relay

    def datagram_received(self, data: bytes, addr: tuple) -> None:
        self._relay.datagram(data, addr)


class PortNumbers:
    """Answers U and L with ports that belong to the leg, whichever command asks for it; no socket is bound. `seen` has all commands, `sessions` those that were not deleted."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.silent = False
        self.sessions: dict[tuple[bytes, bytes], int] = {}  # by Call-ID and the tag that the session is named after: its lower port
        self._next = 36000

    async def answer(self, body: bytes) -> bytes | None:
        self.seen.append(body)
        if self.silent:
            return None
        verb, words = body[:1].upper(), body.split()
        if words[0] == b"V":
            return b"20040107"
        if words[0] == b"VF":
            return b"1"
        if verb in (b"D", b"Q"):
            # A D names no media line.
            tags = [tag.partition(b";")[0] for tag in words[2:]]
            held = [key for key in self.sessions if key[0] == words[1] and key[1].partition(b";")[0] in tags]
            if verb == b"Q":
                return b"60 1 2 3 0" if held else b"E50"
            for key in held:
                del self.sessions[key]
            return b"0" if held else b"E50"
        if verb not in (b"U", b"L"):
            return b"0"
        call, tags = words[1], words[4:6]
        named = next((tag for tag in tags if (call, tag) in self.sessions), None)
        if named is None:
            if verb == b"L":
                return b"0"
            named = tags[0]
            self.sessions[call, named] = self._next
            self._next += 4
        # U of the party that the session is named after asks where the other one is to send to, and its L the other way round.
        to_callee = (verb == b"U") == (named == tags[0])
        return b"%d %s" % (self.sessions[call, named] + (0 if to_callee else 2), RELAY_IP.encode())
