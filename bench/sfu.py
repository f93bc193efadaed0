"""A software conference server for comparison: the REST interface of Shunt's conferences in front of bench/sfu.c, which carries the media.

    python -m bench.sfu --address 198.18.0.1 --ports 20000-29999 --api 127.0.0.1:8077

It knows create, join, leave, end, look and the first word on a pair's quality, with the parameters of docs/rest.md that these need.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections import deque
from pathlib import Path
from typing import Any

from aiohttp import web

ROOT = Path(__file__).resolve().parent.parent
BINARY = ROOT / "build" / "bench" / "sfu"
KINDS = ("audio", "video", "screen")


class Media:
    """The process that carries media."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(str(BINARY), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)

    async def ask(self, line: str) -> None:
        """Raises web.HTTPConflict with the process's words."""
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        async with self._turn:
            self._process.stdin.write(line.encode() + b"\n")
            answer = (await self._process.stdout.readline()).decode().strip()
        if answer != "ok":
            raise web.HTTPConflict(text=f"{line}: {answer}")

    async def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


class Server:
    """Conferences by name, participants by name, a port for each medium of each."""

    def __init__(self, address: str, first: int, last: int) -> None:
        self.media = Media()
        self._address = address
        self._free = deque(range(first, last, 2))
        self._numbers: dict[str, int] = {}
        self._rooms: dict[str, dict[str, dict[str, int]]] = {}  # conference -> participant -> medium -> port

    def _number(self, *name: str) -> int:
        return self._numbers.setdefault("/".join(name), len(self._numbers) + 1)

    async def create(self, request: web.Request) -> web.Response:
        name = request.query["name"]
        if name in self._rooms:
            raise web.HTTPConflict(text=f"there is a conference {name} already")
        self._rooms[name] = {}
        return web.json_response({"name": name})

    def _room(self, request: web.Request) -> tuple[str, dict[str, dict[str, int]]]:
        name = request.match_info["conference"]
        if name not in self._rooms:
            raise web.HTTPNotFound(text=f"there is no conference {name!r}")
        return name, self._rooms[name]

    async def join(self, request: web.Request) -> web.Response:
        name, room = self._room(request)
        participant = request.query["name"]
        if participant in room:
            raise web.HTTPConflict(text=f"{participant} takes part in {name} already")
        ports = room[participant] = {}
        for kind in request.query.get("media", "audio").split(","):
            ports[kind] = self._free.popleft()
            await self.media.ask(f"join {self._number(name)} {self._number(name, participant)} {KINDS.index(kind)} {self._address} {ports[kind]}")
        return web.json_response({"name": participant, "media": [{"medium": kind, "relay": f"{self._address}:{port}"} for kind, port in ports.items()]})

    async def leave(self, request: web.Request) -> web.Response:
        name, room = self._room(request)
        await self._out(name, room, request.match_info["participant"])
        return web.json_response({"conference": name})

    async def _out(self, name: str, room: dict[str, dict[str, int]], participant: str) -> None:
        await self.media.ask(f"leave {self._number(name)} {self._number(name, participant)}")
        self._free.extend(room.pop(participant).values())

    async def quality(self, request: web.Request) -> web.Response:
        """A pair's quality is said once: this server does not take it back."""
        name, room = self._room(request)
        sender, receiver, kind = (request.query[word] for word in ("sender", "receiver", "quality"))
        if sender not in room or receiver not in room:
            raise web.HTTPNotFound(text=f"{sender} and {receiver} do not both take part in {name}")
        if kind != KINDS[-1]:
            await self.media.ask(f"refuse {self._number(name)} {self._number(name, receiver)} {self._number(name, sender)} {KINDS.index(kind) + 1}")
        return web.json_response({"sender": sender, "receiver": receiver, "quality": kind})

    async def end(self, request: web.Request) -> web.Response:
        name, room = self._room(request)
        for participant in list(room):
            await self._out(name, room, participant)
        del self._rooms[name]
        return web.json_response({"ended": name})

    async def look(self, request: web.Request) -> web.Response:
        name, room = self._room(request)
        return web.json_response({"name": name, "design": "user space", "problem": "", "participants": [{"name": one} for one in room]})

    def app(self) -> web.Application:
        app = web.Application()
        one = "/v1/conferences/{conference}"
        app.router.add_post("/v1/conferences", self.create)
        app.router.add_get(one, self.look)
        app.router.add_delete(one, self.end)
        app.router.add_post(one + "/participants", self.join)
        app.router.add_delete(one + "/participants/{participant}", self.leave)
        app.router.add_post(one + "/quality", self.quality)
        return app


async def serve(address: str, ports: str, api: str) -> None:
    """Serve until the process is ended."""
    first, last = map(int, ports.split("-"))
    server = Server(address, first, last)
    await server.media.start()
    runner = web.AppRunner(server.app(), access_log=None)
    await runner.setup()
    host, _, port = api.rpartition(":")
    try:
        await web.TCPSite(runner, host, int(port)).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
        await server.media.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", required=True)
    parser.add_argument("--ports", default="20000-29999")
    parser.add_argument("--api", default="127.0.0.1:8077")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(arguments.address, arguments.ports, arguments.api))


if __name__ == "__main__":
    main()
