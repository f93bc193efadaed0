"""The agent: puts the control channel, the call book, the data plane and the operator's side together."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import signal
import time
from typing import Any

from shunt import __version__
from shunt.api.server import ApiServer
from shunt.api.view import DataPlaneUnavailable
from shunt.calls import view
from shunt.calls.book import CallBook
from shunt.calls.plan import Policy
from shunt.config.model import Config, Relay as RelayConfig
from shunt.config.values import SocketAddress
from shunt.control.listener import ControlListener, Peer
from shunt.control.proxy import ControlProxy
from shunt.control.relays import Relay, RelayPool
from shunt.control.upstream import RelayClient
from shunt.dialogs import DialogWatch
from shunt.hep.listener import HepListener
from shunt.journal import Journal
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint, FiveTuple
from shunt.offload import Offloader
from shunt.relay.notify import NotifySender, parse_target
from shunt.relay.relay import BuiltinRelay
from shunt.tables.entry import MediaRange
from shunt.tables.relay_table import RelayTable
from shunt.upkeep import Upkeep

log = logging.getLogger(__name__)

BUILTIN = "builtin"
PRIORITY = -10


class Agent:
    """One running agent. Also what the REST API looks at (api.view.AgentView)."""

    def __init__(self, config: Config) -> None:
        """Nothing is opened yet. Raises JournalError when the journal cannot be used."""
        self.config = config
        self.started = time.monotonic()
        learning = config.learning
        self.latch_policy = LatchPolicy(
            packets=learning.packets, guard=learning.guard_ms / 1000, contest_hold=learning.contest_hold_s, quarantine=learning.quarantine_s
        )
        self.journal = Journal(config.journal.path) if config.journal else None
        self.builtin = self._make_builtin()
        self.pool = RelayPool(self._make_relays())
        symmetric = {BUILTIN, *(r.name for r in config.relays if r.symmetric)}
        self.book = CallBook(self.latch_policy, symmetric_relays=symmetric)
        self.table: RelayTable | None = None
        if config.data_plane is not None:
            self.table = RelayTable(
                config.data_plane.target, client_id=os.getpid() & 0x7FFFFFFF, device_id=config.data_plane.device_id, program=config.data_plane.program
            )
        # An entry has to be reported idle before the relay's own time-out would have come.
        shortest = min(relay.ttl for relay in self.pool.relays)
        idle_ms = min(config.data_plane.idle_ms, int(shortest * 500)) if config.data_plane else 0
        policy = Policy(one_way_after=learning.one_way_after_s, idle_ms=max(idle_ms, 1000), enabled=self.table is not None)
        self.offloader = Offloader(self.book, self.table, policy)
        if self.journal is not None:
            self.offloader.line_changed = lambda line: self.journal.call_changed(line.call)
        self.notifier = NotifySender()
        self.upkeep = Upkeep(self.pool, self.offloader, self._notify)
        self.proxy = ControlProxy(self.pool, self.book, self.offloader)
        self.listeners = [ControlListener(address, self._handle, allow=config.control.allow) for address in config.control.listen]
        self.dialogs = DialogWatch(self.offloader)
        self.hep = None
        if config.hep is not None:
            self.hep = HepListener(SocketAddress.parse(config.hep.listen), config.hep.allow, self.dialogs.on_sighting)
        self.api = ApiServer(self, config.api)
        self._totals: dict[str, Any] = {}
        self._clockwork: list[asyncio.Task[None]] = []

    # -- putting together ---------------------------------------------------------------------------

    def _make_builtin(self) -> BuiltinRelay | None:
        settings = self.config.builtin_relay
        if settings is None:
            return None
        return BuiltinRelay(
            [str(a) for a in settings.addresses], settings.ports.first, settings.ports.last, ttl=float(settings.ttl), quarantine=float(settings.quarantine),
            policy=self.latch_policy,
        )

    def _make_relays(self) -> list[Relay]:
        relays = [self._external(settings) for settings in self.config.relays]
        if self.builtin is not None:
            relays.append(self._internal(self.builtin))
        return relays

    @staticmethod
    def _external(settings: RelayConfig) -> Relay:
        client = RelayClient(settings.socket)
        media = [MediaRange(m.address.packed, m.ports.first, m.ports.last) for m in settings.media]

        async def forward(body: bytes, peer_ip: str | None) -> bytes:
            return await client.forward(body)

        return Relay(settings.name, settings.socket, float(settings.ttl), media, forward, client.request, close=client.close)

    def _internal(self, builtin: BuiltinRelay) -> Relay:
        async def forward(body: bytes, peer_ip: str | None) -> bytes:
            return await builtin.execute(body, peer_ip=peer_ip)

        async def request(body: bytes) -> bytes:
            return await builtin.execute(body)

        return Relay(BUILTIN, BUILTIN, float(self.config.builtin_relay.ttl), builtin.media_ranges(), forward, request, close=builtin.close)

    async def _handle(self, body: bytes, cookie: bytes | None, peer: Peer) -> bytes | None:
        reply = await self.proxy.handle(body, cookie, peer.host or None)
        if self.builtin is not None and self.journal is not None:
            self._keep_builtin()
        return reply

    async def _notify(self, socket: str, tag: str, peer_ip: str | None) -> None:
        """Tell the SIP server of a media time-out, unless the socket that its command named is not a permitted one."""
        try:
            target = parse_target(socket, peer_ip)
        except ValueError as error:
            log.warning("media time-out not told: %s", error)
            return
        allowed = self.config.notify.allow
        if allowed is not None:
            permitted = str(target) in allowed
        else:
            permitted = bool(target.path) or target.host == peer_ip or ipaddress.ip_address(target.host).is_loopback
        if not permitted:
            log.warning("media time-out not told: notify socket %s is not permitted (notify.allow)", target)
            return
        await self.notifier.notify(socket, tag, peer_ip)

    def _keep_builtin(self) -> None:
        """The built-in relay's sockets die with the agent: its sessions are journalled so that the next one reopens them."""
        assert self.builtin is not None and self.journal is not None
        for key, session in self.builtin.take_changes().items():
            self.journal.session_changed(key, None if session is None else json.dumps(session))

    # -- running ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything. Raises OSError (ListenError, …) naming the socket that cannot be had."""
        restored: list = []
        if self.journal is not None:
            calls, sessions = self.journal.load(self.latch_policy, self.offloader.clock)
            if self.builtin is not None:
                self.builtin.adopt([json.loads(body) for body in sessions.values()])
            for call in calls:
                if call.relay not in self.pool.by_name:
                    log.error("journal: call %s was on relay %s, which is not configured any more: left out", call.call_id, call.relay)
                    continue
                self.book.restore(call)
                self.offloader.restore(call)
                restored.append(call)
            self.journal.start()
        if self.builtin is not None:
            await self.builtin.start()
        if self.table is not None:
            self.offloader.media = [media for relay in self.pool.relays for media in relay.media]
            await self.table.start()
        if restored:
            log.info("journal: %d calls carried on", len(restored))
            self.offloader.spawn(self.upkeep.verify([line for call in restored for line in call.lines]))
        for listener in self.listeners:
            await listener.start()
        if self.hep is not None:
            await self.hep.start()
        await self.api.start()
        loop = asyncio.get_running_loop()
        self._clockwork = [loop.create_task(self.upkeep.run()), loop.create_task(self._watch_totals())]

    async def close(self) -> None:
        """Stop serving; entries stay in the data plane and calls in the journal."""
        for listener in self.listeners:
            await listener.close()
        if self.hep is not None:
            await self.hep.stop()
        await self.api.close()
        for task in self._clockwork:
            task.cancel()
        await asyncio.gather(*self._clockwork, return_exceptions=True)
        await self.offloader.close()
        if self.table is not None:
            await self.table.close()
        if self.journal is not None:
            if self.builtin is not None:
                self._keep_builtin()
            await self.journal.close()
        for relay in self.pool.relays:
            if relay.close is not None:
                await relay.close()
        await self.notifier.close()

    async def _watch_totals(self) -> None:
        while True:
            if self.table is not None and self.table.connected:
                try:
                    self._totals = await self.table.totals()
                except Exception as error:  # the status page must not take the agent down
                    log.warning("totals of the data plane: %s", error)
            if self.builtin is not None and self.journal is not None:
                self._keep_builtin()
            await asyncio.sleep(1.0)

    # -- what the operator sees (api.view.AgentView) -------------------------------------------------------

    def status(self) -> dict[str, Any]:
        calls = self.book.calls()
        connected = self.table is not None and self.table.connected
        return {
            "version": __version__,
            "uptime_s": round(time.monotonic() - self.started, 3),
            "control": list(self.config.control.listen),
            "relays": [
                {
                    "name": r.name, "address": r.address, "alive": r.alive, "sessions": r.sessions, "version": r.version,
                    "keepalive": r.keepalive, "packets_relayed": r.packets_relayed,
                } for r in self.pool.relays
            ],
            "data_plane": None if self.table is None else {
                "target": self.config.data_plane.target, "connected": connected, "name": self.table.data_plane if connected else None,
                "entries": self._totals.get("entries"), "capacity": self._totals.get("capacity"), "ours": len(self.offloader.entries),
                "orphans": len(self.offloader.orphans),
            },
            "calls": len(calls),
            "streams": view.count_streams(calls),
            "packets": {
                "data_plane": self._totals.get("relayed_packets"),
                "relay": sum(r.packets_relayed or 0 for r in self.pool.relays),
            },
            "commands": dict(self.proxy.commands),
            "sightings": None if self.hep is None else {"byes": self.dialogs.byes, "messages": self.hep.counters.sightings, "refused": self.hep.counters.refused, "malformed": self.hep.counters.malformed},
            "media_timeouts": self.upkeep.timeouts_raised,
            "strays_ignored": self.offloader.strays_ignored,
            "journal_failures": None if self.journal is None else self.journal.failures,
        }

    def calls(self) -> list[dict[str, Any]]:
        now = self.offloader.clock()
        return [view.call_view(call, now) for call in self.book.calls()]

    def call(self, call_id: str) -> dict[str, Any] | None:
        call = self.book.call(call_id)
        return None if call is None else view.call_view(call, self.offloader.clock())

    async def why(self, call_id: str) -> dict[str, Any] | None:
        call = self.book.call(call_id)
        if call is None:
            return None
        if self.table is not None and not self.table.connected and any(line.offloaded for line in call.lines):
            raise DataPlaneUnavailable(f"{self.config.data_plane.target} does not answer; the counters at hand are older")
        await self.offloader.read_live(call.lines)
        return view.call_view(call, self.offloader.clock())

    async def trace(self, src: str, dst: str) -> dict[str, Any]:
        """Where a packet from src to dst ("ADDRESS:PORT") would go. Raises ValueError for text that is no address."""
        key = FiveTuple(Endpoint.parse(src), Endpoint.parse(dst))
        if key.src.version != key.dst.version:
            raise ValueError(f"{src} and {dst} are of different IP versions")
        answer: dict[str, Any] = {"key": str(key), "data_plane": None, "call": None}
        if self.table is not None and self.table.connected:
            answer["data_plane"] = await self.table.trace(key)
        slot = self.book.slot(key.dst)
        if slot is not None:
            stream = slot.line.stream(slot.side, slot.component)
            leg = slot.line.legs[slot.side]
            answer["call"] = {
                "call_id": slot.line.call.call_id, "media": slot.line.media, "from": slot.side.value, "component": slot.component.value,
                "state": stream.state.value, "reason": stream.reason, "expected_source": str(leg.latch(slot.component).learned or "") or None,
            }
        return answer

    async def totals(self) -> dict[str, Any]:
        return dict(self._totals)


async def run(config: Config) -> None:
    """Run an agent until SIGTERM or SIGINT."""
    with contextlib.suppress(PermissionError):
        # Every millisecond between a packet and its entry is a packet on the relay: come before batch work.
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    agent = Agent(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await agent.start()
        log.info("shunt %s: control on %s, relays %s", __version__, ", ".join(config.control.listen), ", ".join(r.name for r in agent.pool.relays))
        await stop.wait()
    finally:
        await agent.close()

