"""Stand-ins for what lies outside the agent's core: a data plane in memory and a relay that only hands out ports."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from shunt.calls.book import CallBook
from shunt.calls.plan import Policy
from shunt.control.proxy import ControlProxy
from shunt.control.relays import Relay, RelayPool
from shunt.control.upstream import RelayUnreachable
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint, FiveTuple
from shunt.offload import Offloader
from shunt.rtpproxy import codec
from shunt.tables.entry import LearnNotice, MediaRange, Outcome, RelayEntry, Result, StreamStats
from shunt.tables.operation import Haste
from shunt.tables.relay_table import BatchCounters

RELAY_IP = "10.91.1.1"


class MemoryTable:
    """The interface of RelayTable over a dictionary; `fail` makes the next operations end with that outcome, `fails` those on a key."""

    def __init__(self) -> None:
        self.held: dict[FiveTuple, RelayEntry] = {}
        self.counts: dict[FiveTuple, StreamStats] = {}
        self.log: list[tuple[str, FiveTuple]] = []
        self.refused: dict[Endpoint, int] = {}
        self.guarded: dict[Endpoint, tuple[bytes, ...]] = {}
        self.wary: list[MediaRange] = []
        self.known: set[bytes] = set()
        self.known_room = 65_536
        self.fail: Outcome | None = None
        self.fails: dict[FiveTuple, Outcome] = {}
        self.delay = 0.0
        self.order = asyncio.Lock()  # operations on one key keep their order
        self.connected = True
        self.stores_hashes = False
        self.counters = BatchCounters()
        self.on_learn = self.on_idle = lambda *_: None
        self.on_up = lambda: None
        self.on_down = lambda reason: None

    async def insert(self, entry: RelayEntry) -> Result:
        async with self.order:
            await asyncio.sleep(self.delay)
            return self._insert(entry)

    def _insert(self, entry: RelayEntry) -> Result:
        fail = self.fails.get(entry.key, self.fail)
        if fail is not None:
            return Result(fail, "told to fail")
        self.log.append(("insert", entry.key))
        self.held[entry.key] = entry
        self.counts[entry.key] = StreamStats(idle_ms=0)
        return Result(Outcome.INSTALLED)

    async def place(self, new: Sequence[RelayEntry] = (), changed: Sequence[RelayEntry] = ()) -> list[Result]:
        return [await self.insert(entry) for entry in (*new, *changed)]

    async def delete(self, key: FiveTuple) -> tuple[Result, StreamStats | None]:
        async with self.order:
            await asyncio.sleep(self.delay)
            if self.fails.get(key, self.fail) is Outcome.UNAVAILABLE:
                return Result(Outcome.UNAVAILABLE), None
            self.log.append(("delete", key))
            found = self.held.pop(key, None)
            return Result(Outcome.REMOVED if found else Outcome.ABSENT), self.counts.pop(key, None)

    async def insert_many(self, entries: list[RelayEntry]) -> list[Result]:
        async with self.order:
            await asyncio.sleep(self.delay)
            return [self._insert(entry) for entry in entries]

    async def delete_many(self, keys: list[FiveTuple], haste: Haste = Haste.BULK) -> list[tuple[Result, StreamStats | None]]:
        return [await self.delete(key) for key in keys]

    def claim(self, entry: RelayEntry) -> bool:
        return True

    async def entries(self) -> dict[FiveTuple, RelayEntry]:
        return dict(self.held)

    async def stats(self, keys: list[FiveTuple] | None) -> dict[FiveTuple, StreamStats]:
        return {k: v for k, v in self.counts.items() if keys is None or k in keys}

    async def declare_media(self, ranges: list[MediaRange]) -> Result:
        return Result(Outcome.INSTALLED)

    async def refuse(self, source: Endpoint, ttl_ms: int) -> Result:
        self.refused[source] = ttl_ms
        return Result(Outcome.INSTALLED)

    async def hear(self, source: Endpoint) -> Result:
        self.refused.pop(source, None)
        return Result(Outcome.INSTALLED)

    async def guard(self, ports: Mapping[Endpoint, tuple[bytes, ...] | None], ttl_ms: int) -> Result:
        await asyncio.sleep(self.delay)
        for port, heard in ports.items():
            if heard is None:
                self.guarded.pop(port, None)
            else:
                self.guarded[port] = heard
        return Result(Outcome.INSTALLED)

    guards_ports = True

    async def unguard_all(self) -> Result:
        self.guarded.clear()
        return Result(Outcome.INSTALLED)

    async def be_wary(self, ranges: Iterable[MediaRange], ttl_ms: int) -> Result:
        self.wary = list(ranges)
        return Result(Outcome.INSTALLED)

    async def know(self, addresses: Iterable[bytes], ttl_ms: int, instead_of: Iterable[bytes] = ()) -> Result:
        await asyncio.sleep(self.delay)
        self.known -= set(instead_of)
        for addr in addresses:
            if len(self.known) == self.known_room and addr not in self.known:
                return Result(Outcome.TABLE_FULL, "no room")
            self.known.add(addr)
        return Result(Outcome.INSTALLED)

    async def know_nobody(self) -> Result:
        self.known.clear()
        return Result(Outcome.INSTALLED)

    async def hear_all(self) -> Result:
        self.refused.clear()
        return Result(Outcome.INSTALLED)


class PortRelay:
    """Answers U and L as rtpproxy does (facts section 4): the port belongs to the leg, whichever command asks for it."""

    def __init__(self) -> None:
        self.sessions: dict[tuple[str, str, int | None], tuple[int, int]] = {}
        self.next_port = 36000
        self.seen: list[bytes] = []
        self.silent = False
        self.at_command = lambda command: None

    async def request(self, body: bytes) -> bytes:
        return await self.forward(body, None)

    async def forward(self, body: bytes, peer_ip: str | None) -> bytes:
        self.seen.append(body)
        if self.silent:
            raise RelayUnreachable("told to be silent")
        command = codec.parse_command(body)
        self.at_command(command)
        if command.verb == "V":
            return b"20040107"
        if command.verb == "VF":
            return b"1"
        if command.verb == "D":
            gone = [k for k in self.sessions if k[0] == command.call_id and k[1] in (command.from_tag, command.to_tag)]
            for key in gone:
                del self.sessions[key]
            return b"0" if gone else b"E50"
        if command.verb == "Q":
            return b"60 1 2 3 0" if any(k[0] == command.call_id for k in self.sessions) else b"E50"
        if command.verb not in ("U", "L"):
            return b"0"
        first, second = (command.call_id, command.from_tag, command.from_media), (command.call_id, command.to_tag, command.to_media)
        key = first if first in self.sessions or second not in self.sessions else second
        if key not in self.sessions:
            if command.verb == "L":
                return b"0"
            self.sessions[key] = (self.next_port, self.next_port + 2)
            self.next_port += 4
        to_callee = (command.verb == "U") == (key == first)
        return b"%d %s" % (self.sessions[key][0 if to_callee else 1], RELAY_IP.encode())


class Core:
    """The agent's core on the stand-ins."""

    def __init__(self, **policy) -> None:
        self.now = 1000.0
        self.table = MemoryTable()
        self.relay = PortRelay()
        self.book = CallBook(LatchPolicy())
        self.offloader = Offloader(self.book, self.table, Policy(**policy), clock=lambda: self.now)
        self.pool = RelayPool([Relay("r1", "udp:test", 60.0, [], self.relay.forward, self.relay.request)])
        self.proxy = ControlProxy(self.pool, self.book, self.offloader)

    async def say(self, text: str) -> bytes | None:
        reply = await self.proxy.handle(text.encode(), b"1_2_3", "127.0.0.1")
        await self.settle()
        return reply

    async def settle(self) -> None:
        """Let background work finish."""
        await self.offloader.leisure.finish()
        while self.offloader._tasks:
            await asyncio.gather(*list(self.offloader._tasks))

    async def packet(self, src: str, relay_port: int, ssrc: int = 0x11, seq: int = 1, *, version: int = 2, wait: bool = True) -> None:
        """A packet from src met no entry at the relay's port."""
        key = FiveTuple(Endpoint.parse(src), Endpoint.of(RELAY_IP, relay_port))
        self.offloader.noticed(LearnNotice(key, version, 8, seq, ssrc))
        if wait:
            await self.settle()

    async def call(self, call_id: str = "c1", caller: str = "10.91.1.2 6000", callee: str = "10.91.2.2 7000") -> tuple[int, int]:
        """Set up a call; returns the ports that the caller and the callee send to."""
        to_callee = await self.say(f"Uc0,8 {call_id} {caller} A;1")
        to_caller = await self.say(f"Lc0,8 {call_id} {callee} A;1 B;1")
        return int(to_caller.split()[0]), int(to_callee.split()[0])

    def stream(self, call_id: str = "c1", direction: str = "caller->callee", component: str = "rtp") -> dict:
        from shunt.calls.view import call_view
        view = call_view(self.book.call(call_id), self.now)
        return next(s for s in view["media"][0]["streams"] if (s["direction"], s["component"]) == (direction, component))

    def rewrites(self) -> dict[str, str]:
        """The table as text: "source > relay port" -> "new source > new destination"."""
        return {str(key): f"{e.src} > {e.dst}" for key, e in self.table.held.items()}
