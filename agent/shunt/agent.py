"""The agent: puts the control channel, the call book, the data plane and the operator's side together."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import importlib
import ipaddress
import json
import logging
import secrets
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from shunt import __version__, limits, privileges, supervisor
from shunt.api.door import open_door
from shunt.api.view import DataPlaneUnavailable
from shunt.bfrt.tls import client_credentials
from shunt.calls import view
from shunt.calls.book import CallBook
from shunt.calls.model import Call
from shunt.calls.plan import Policy
from shunt.config.model import Config, Relay as RelayConfig
from shunt.config.values import SocketAddress, host_port
from shunt.control.listener import ControlListener, Peer
from shunt.control.proxy import ControlProxy
from shunt.control.relays import Relay, RelayPool
from shunt.control.upstream import RelayClient
from shunt.dialogs import DialogWatch
from shunt.drain import Drain
from shunt.hep.listener import HepListener
from shunt.journal import Journal, Store
from shunt.journal.codec import relay_ports
from shunt.journal.sqlite_store import SqliteStore
from shunt.learning.latch import LatchPolicy
from shunt.learning.scanners import Scanners
from shunt.net import Endpoint, FiveTuple
from shunt.observers import Observers
from shunt.precedence import background
from shunt.offload import Offloader
from shunt.relay.notify import NotifySender, NotifyTarget
from shunt.relay.relay import BuiltinRelay
from shunt.rtpproxy import codec
from shunt.standby.fence import FencedTable
from shunt.standby.lease import UNDECIDED_S, Lease
from shunt.standby.role import ACTIVE, Role
from shunt.tables.entry import MediaRange
from shunt.tables import relay_table as tables
from shunt.tables.relay_table import RelayTable
from shunt.tasks import keep_running
from shunt.upkeep import Upkeep

if TYPE_CHECKING:
    from shunt.api.server import ApiServer
    from shunt.conference.control.manager import Conferences

log = logging.getLogger(__name__)

BUILTIN = "builtin"
_FEW_CALLS = 200  # are counted at once: a command waits for no more
_VIEWS_AT_ONCE = 25  # before commands have their turn
_TURN_S = 0.005  # of reading calls from the journal before commands have theirs
_COUNTERS_PATIENCE_S = 1.0  # a list of calls is worth having without the latest counters too
_STAND_IN_S = 0.5  # until who is in charge is known, and has the sockets it is to have
_BIND_PATIENCE_S = 1.0  # for a data plane that does not answer when this agent takes over
_TAKE_OVER_FIRST_S = 1.0  # that the REST API waits for a take-over which may be due at the start
_RIVAL_PATIENCE_S = 5.0  # for another agent to let go of the data plane


class Agent:
    """One running agent. Also what the REST API looks at (api.view.AgentView)."""

    def __init__(self, config: Config) -> None:
        """Nothing is opened yet. Raises ValueError for values that only the whole can judge."""
        self.config = config
        self.started = time.monotonic()
        learning = config.learning
        self.scanners = Scanners()
        self.latch_policy = LatchPolicy(
            packets=learning.packets, guard=learning.guard_ms / 1000, contest_hold=learning.contest_hold_s, quarantine=learning.quarantine_s,
            suspect=self.scanners.is_suspect,
        )
        self.role: Role | None = None
        self.journal = Journal(self._make_store()) if config.journal else None
        self.notifier = NotifySender(self._may_notify)
        self.builtin = self._make_builtin()
        self.pool = RelayPool(self._make_relays())
        symmetric = {BUILTIN, *(r.name for r in config.relays if r.symmetric)}
        self.book = CallBook(self.latch_policy, symmetric_relays=symmetric)
        self.table: RelayTable | None = None
        if config.data_plane is not None:
            # The client id must differ from that of every other agent, also of one in another container or before this one.
            # bf_switchd finds the client of a digest or idle notice by 24 bits of it.
            self.table = RelayTable(
                config.data_plane.target, client_id=secrets.randbits(24) or 1, device_id=config.data_plane.device_id, program=config.data_plane.program,
                credentials=client_credentials(config.data_plane.tls),
                stored_hash=config.data_plane.hash,
            )
            if self.role is not None:
                self.table.client.may_write = self.role.fence.may_write
                self.table = FencedTable(self.table, self.role.fence)
        # An entry has to be reported idle before the relay's own time-out would have come.
        shortest = min(relay.ttl for relay in self.pool.relays)
        idle_ms = min(config.data_plane.idle_ms, int(shortest * 500)) if config.data_plane else 0
        media = tuple(media for relay in self.pool.relays for media in relay.media)
        policy = Policy(one_way_after=learning.one_way_after_s, idle_ms=max(idle_ms, 1000), enabled=self.table is not None, media=media)
        self.offloader = Offloader(self.book, self.table, policy)
        self.offloader.watch_scanners(self.scanners)
        if learning.first_packets == "named":
            self.offloader.guard_ports(self.builtin.media_ranges() if self.builtin is not None else ())
        if self.role is not None and self.table is not None:
            self._watch_binding(self.role, self.table)
        self.conferences = self._make_conferences()
        if self.journal is not None:
            self.offloader.line_changed = lambda line: self.journal.call_changed(line.call)
        self.upkeep = Upkeep(self.pool, self.offloader, self.notifier.notify)
        self.proxy = ControlProxy(self.pool, self.book, self.offloader)
        if self.journal is not None:
            self.proxy.keep = self._keep
        handle = self._handle if self.role is None else self.role.handle
        self.listeners = [ControlListener(address, handle, allow=config.control.allow) for address in config.control.listen]
        self.dialogs = DialogWatch(self.offloader)
        self.drain = Drain(self.book, self.offloader)
        self.hep = None
        if config.hep is not None:
            self.hep = HepListener(SocketAddress.parse(config.hep.listen), config.hep.networks(), self.dialogs.on_sighting)
        self.observers = Observers(config, self.offloader, self.dialogs, self.pool)
        self.api: ApiServer | None = None
        self._door: socket.socket | None = None  # of the API
        self._serving = asyncio.Event()  # commands that arrive before wait
        self._totals: dict[str, Any] = {}
        self._dormant: dict[str, str] = {}  # calls of the journal that are not yet in the book
        self._dormant_ports: dict[Endpoint, str] | None = None  # which of them holds a relay port, once somebody has asked
        self.proxy.ports.wake = self._wake_holder
        self._clockwork: list[asyncio.Task[None]] = []
        self._taking_over: asyncio.Task[None] | None = None

    # -- putting together ---------------------------------------------------------------------------

    def _make_store(self) -> Store:
        settings = self.config.journal
        assert settings is not None
        if settings.redis is None:
            return SqliteStore(settings.path)
        from shunt.journal.redis_store import RedisStore  # takes its time, and most agents stand alone

        store = RedisStore(settings.redis, settings.group, password=settings.password())
        standby = self.config.standby
        name = socket.gethostname() if standby.name is None else standby.name
        sip = (self.config.conference.sip if self.config.conference is not None else None) or ""
        control = self.config.control.listen[0] if standby.control is None else standby.control
        self.role = Role(Lease(store, seconds=standby.lease_ms / 1000, control=control, name=name, sip=sip), self._handle)
        return store

    @staticmethod
    def _watch_binding(role: Role, table: RelayTable | FencedTable) -> None:
        """The fence follows the binding; an agent that lost both lease and binding must not come back by itself."""
        went_up, went_down = table.on_up, table.on_down

        def up() -> None:
            role.fence.bound()
            went_up()

        def down(reason: str) -> None:
            role.fence.unbound()
            went_down(reason)
            if role.state == ACTIVE and not role.lease.held:
                role.lose("the lease has run out, and the data plane's binding is gone too")

        table.on_up, table.on_down = up, down

    def _make_conferences(self) -> Conferences | None:
        if self.config.conference is None or self.table is None:
            return None
        from shunt.conference.control.manager import Conferences
        from shunt.conference.control.shelf import Shared

        made = Conferences(
            self.config.conference, self.latch_policy, self.scanners, events=self.offloader.events, delay_ms=self.config.quality.delay_ms,
            shelf=Shared(self.journal) if self.role is not None and self.journal is not None else None,
            cpu_interface=self.config.data_plane.cpu_interface if self.config.data_plane is not None else None,
        )
        made.attach(self.table)
        self.offloader.foreign = made.owns
        return made

    def _make_builtin(self) -> BuiltinRelay | None:
        settings = self.config.builtin_relay
        if settings is None:
            return None
        return BuiltinRelay(
            [str(a) for a in settings.addresses], settings.ports.first, settings.ports.last, ttl=float(settings.ttl), quarantine=float(settings.quarantine),
            policy=self.latch_policy, notifier=self.notifier, packet_limit=settings.packet_limit,
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
        if not self._serving.is_set():
            await self._serving.wait()
        if self._dormant:
            self._wake_named(body)
        refusal = self.drain.refuse(body)
        if refusal is not None:
            return refusal
        return await self.proxy.handle(body, cookie, peer.host or None)

    async def _keep(self, call_id: str | None) -> None:
        """What the SIP server is told holds after a crash too."""
        assert self.journal is not None
        if self.builtin is not None:
            self._keep_builtin()
        await self.journal.kept(call_id)

    def _may_notify(self, target: NotifyTarget, peer_ip: str | None) -> bool:
        """Whether the SIP server may be told of a media time-out at the socket that its command named."""
        allowed = self.config.notify.allow
        if allowed is not None:
            return str(target) in allowed
        return bool(target.path) or target.host == peer_ip or ipaddress.ip_address(target.host).is_loopback

    def _keep_builtin(self) -> None:
        """The built-in relay's sockets die with the agent: its sessions are journalled so that the next one reopens them."""
        assert self.builtin is not None and self.journal is not None
        for key, session in self.builtin.take_changes().items():
            self.journal.session_changed(key, None if session is None else json.dumps(session))

    # -- running ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve. Raises OSError (ListenError, JournalError, …) naming what cannot be had.

        With a shared journal this returns as soon as commands can be passed on; taking over follows in the background.
        """
        if self._door is None:
            await self.open()
        await self.observers.start()
        if self.role is None:
            if self.journal is not None:
                await self.journal.open()
            await self._take_over()
        else:
            self._taking_over = asyncio.get_running_loop().create_task(self._stand_by(self.role))
            await asyncio.wait({self._taking_over}, timeout=_TAKE_OVER_FIRST_S)
        await self._start_api()

    async def open(self) -> None:
        """Open what may need privileges, and start no thread: threads keep the privileges that they are born with. Raises OSError."""
        for listener in self.listeners:
            await listener.start()
        if self.hep is not None and self.role is None:
            await self.hep.start()
        self._door = open_door(host_port(self.config.api.listen))

    async def _start_api(self) -> None:
        # What answering commands has no need of takes as long to import as all the rest: that goes on beside the event loop.
        server = await asyncio.to_thread(importlib.import_module, "shunt.api.server")
        self.api = server.ApiServer(self, self.config.api)
        await self.api.start(self._door)

    async def _stand_by(self, role: Role) -> None:
        """Wait until this agent is in charge, and take over. What fails then makes way for the other agent."""
        assert self.journal is not None
        try:
            stand_in = asyncio.get_running_loop().create_task(self._stand_in(role))
            try:
                await role.lease.acquire()
            finally:
                stand_in.cancel()
                await asyncio.gather(stand_in, return_exceptions=True)
            began = time.monotonic()
            role.lease.on_lost = role.lose
            role.lease.on_emptied = self._write_all
            role.lease.keep()
            await self.journal.open()
            await self._take_over()
            if not await self._bind(began):
                await self.table.close()
                await role.lease.close()
                # It was not dead but cut off from the store: it is to have the lease back.
                await asyncio.sleep(UNDECIDED_S)
                role.lose("another agent holds the data plane")
                return
            limits.count("takeovers")
            role.become(ACTIVE)
            log.info("in charge of group %s with token %d, %.0f ms after the lease", self.config.journal.group, role.lease.token, (time.monotonic() - began) * 1000)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("taking over failed")
            role.lose(str(error))

    async def _stand_in(self, role: Role) -> None:
        """Have SIP calls to conferences turned to the agent in charge, where that one does not take them on this very socket."""
        if self.conferences is None:
            return
        await asyncio.sleep(_STAND_IN_S)
        while (holder := role.lease.holder) is None:
            await asyncio.sleep(_STAND_IN_S)
        if not role.lease.is_me(holder) and not role.lease.has_my_socket(holder):
            await self.conferences.stand_by()

    async def _bind(self, began: float) -> bool:
        """Wait for the data plane's binding: briefly for one that does not answer, longer for one that another agent still holds."""
        if self.table is None:
            return True
        while not self.table.connected:
            waited = time.monotonic() - began
            rival = "another client owns" in self.table.last_error
            if waited > (_RIVAL_PATIENCE_S if rival else _BIND_PATIENCE_S):
                return not rival
            await asyncio.sleep(0.01)
        return True

    def _write_all(self) -> None:
        assert self.journal is not None
        self.journal.emptied()
        for call_id in list(self._dormant):
            self._wake(call_id)
        for call in self.book.calls():
            self.journal.call_changed(call)
        if self.builtin is not None:
            for item in self.builtin.snapshot():
                if "call_id" in item:
                    self.journal.session_changed(f"{item['call_id']} {item['tag']}", json.dumps(item))
        if self.conferences is not None:
            self.conferences.keep_all()

    async def _take_over(self) -> None:
        """Carry on where the journal ends. Calls are read in the background; one that a command names is read at once."""
        if self.journal is not None:
            self._dormant, sessions = await self.journal.rows()
            if self.builtin is not None:
                await self.builtin.take_over([json.loads(body) for body in sessions.values()])
            self.journal.start()
        if self.builtin is not None:
            await self.builtin.start()
        if self.conferences is not None:
            await self.conferences.start()
        if self.table is not None:
            self.offloader.media = [media for relay in self.pool.relays for media in relay.media]
            await self.table.start()
        if self._dormant:
            self.offloader.loaded.clear()
            self.offloader.spawn(self._wake_all())
        if self.hep is not None and self.role is not None:
            await self.hep.start()
        self._serving.set()
        loop = asyncio.get_running_loop()
        self._clockwork = [loop.create_task(work, context=background()) for work in (self.upkeep.run(), keep_running("totals", self._watch_totals))]

    def _wake(self, call_id: str) -> Call | None:
        """Take a call out of what the journal said. None when it has none, or one that cannot be carried on."""
        body = self._dormant.pop(call_id, None)
        if body is None or self.journal is None:
            return None
        call = self.journal.read(call_id, body, self.latch_policy, self.offloader.clock())
        if call is None:
            return None
        if call.relay not in self.pool.by_name:
            log.error("journal: call %s was on relay %s, which is not configured any more: left out", call.call_id, call.relay, extra={"call_id": call.call_id})
            return None
        self.book.restore(call)
        self.offloader.restore(call)
        return call

    def _wake_named(self, body: bytes) -> None:
        """Wake the call that a command names."""
        try:
            command = codec.parse_command(body)
        except codec.CodecError:
            return
        if command.call_id is not None:
            self._wake(command.call_id)
        elif command.verb == "X":
            for call_id in list(self._dormant):
                self._wake(call_id)

    def _wake_holder(self, port: Endpoint) -> None:
        """Wake the call that holds a relay port or the one below it."""
        if not self._dormant:
            return
        if self._dormant_ports is None:
            self._dormant_ports = {each: call_id for call_id, body in self._dormant.items() for each in relay_ports(body)}
        for each in (port, Endpoint(port.addr, port.port - 1)):
            if each in self._dormant_ports:
                self._wake(self._dormant_ports[each])

    async def _wake_all(self) -> None:
        began, count = time.monotonic(), len(self._dormant)
        gc.disable()  # nothing of all this is garbage, and looking for some takes longer the more there is
        try:
            turn = began
            for call_id in list(self._dormant):
                self._wake(call_id)
                if time.monotonic() - turn > _TURN_S:
                    await asyncio.sleep(0)
                    turn = time.monotonic()
        finally:
            gc.freeze()
            gc.enable()
            self._dormant_ports = None
            self.book.put_in_order()
            self.offloader.loaded.set()
        log.info("journal: %d calls carried on, read in %.1f s", count, time.monotonic() - began)
        await self.upkeep.verify(self.book.lines())

    async def close(self) -> None:
        """Stop serving; entries stay in the data plane and calls in the journal."""
        if self._taking_over is not None:
            self._taking_over.cancel()
            await asyncio.gather(self._taking_over, return_exceptions=True)
        for listener in self.listeners:
            await listener.close()
        if self.hep is not None:
            await self.hep.stop()
        if self.api is not None:
            await self.api.close()
        elif self._door is not None:
            self._door.close()
        for task in self._clockwork:
            task.cancel()
        await asyncio.gather(*self._clockwork, return_exceptions=True)
        if self.conferences is not None:
            await self.conferences.close()
        await self.offloader.close()
        await self.observers.close()
        if self.table is not None:
            await self.table.close()
        if self.journal is not None:
            in_charge = self.role is None or self.role.state == ACTIVE
            if self.builtin is not None and in_charge:
                self._keep_builtin()
            await self.journal.close(keep=in_charge)
        for relay in self.pool.relays:
            if relay.close is not None:
                await relay.close()
        if self.role is not None:
            await self.role.close()  # when the relay's ports are free: the other agent opens them at once
        await self.notifier.close()

    async def _watch_totals(self) -> None:
        clock = limits.ClockWatch()
        while True:
            clock.look()
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
        connected = self.table is not None and self.table.connected
        return {
            "version": __version__,
            "role": "alone" if self.role is None else self.role.state,
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
                "orphans": len(self.offloader.orphans), "lacks": self.table.lacks,
            },
            "calls": self.book.count,
            "conferences": None if self.conferences is None else self.conferences.totals(),
            "streams": self._count_streams(),
            "packets": {
                "data_plane": self._totals.get("relayed_packets"),
                "relay": sum(r.packets_relayed or 0 for r in self.pool.relays),
            },
            "learn_notices": self._totals.get("learn_notices"),
            "commands": dict(self.proxy.commands),
            "sightings": None if self.hep is None else {"byes": self.dialogs.byes, "messages": self.hep.counters.sightings, "refused": self.hep.counters.refused, "malformed": self.hep.counters.malformed},
            "media_timeouts": self.upkeep.timeouts_raised,
            "strays_ignored": self.offloader.strays_ignored,
            "journal_failures": None if self.journal is None else self.journal.failures,
            "journal_pending": None if self.journal is None else self.journal.pending,
            "calls_to_read": len(self._dormant),
            "table_reconciled": self.table is not None and self.offloader.reconciled,
            "drain": self.drain.view(),
            "limits": limits.snapshot(),
            "table_batches": None if self.table is None else dataclasses.asdict(self.table.counters),
            **self.observers.counters(),
        }

    def _count_streams(self) -> dict[str, int]:
        # Counting all of a busy agent's streams takes long: then the census of the last seconds answers.
        return view.count_streams(self.book.calls()) if self.book.count <= _FEW_CALLS else dict(self.observers.census["streams"])

    def registry(self) -> CollectorRegistry:
        """The metrics that are counted as things happen."""
        return self.observers.instruments.registry

    async def calls(self, state: str | None, reason: str | None, match: str | None, offset: int, limit: int) -> tuple[list[dict[str, Any]], int]:
        """One page of the calls, oldest first, and how many there are in all."""
        page, total = await view.page(self.book.calls(), state, reason, match, offset, limit)
        with contextlib.suppress(tables.DataPlaneUnavailable, TimeoutError):
            async with asyncio.timeout(_COUNTERS_PATIENCE_S):
                await self.offloader.read_live([line for call in page for line in call.lines if line.offloaded])
        now, found = self.offloader.clock(), []
        for call in page:
            found.append(view.call_view(call, now))
            if len(found) % _VIEWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return found, total

    def call(self, call_id: str) -> dict[str, Any] | None:
        call = self.book.call(call_id)
        return None if call is None else self._view(call)

    def _view(self, call: Call) -> dict[str, Any]:
        return view.call_view(call, self.offloader.clock()) | {"quality": self.observers.quality(call)}

    async def history(self, call_id: str) -> dict[str, Any] | None:
        """A call's events and what they mean in words."""
        return await self.observers.story(call_id)

    async def why(self, call_id: str) -> dict[str, Any] | None:
        call = self.book.call(call_id)
        if call is None:
            return None
        if self.table is not None and not self.table.connected and any(line.offloaded for line in call.lines):
            raise DataPlaneUnavailable(f"{self.config.data_plane.target} does not answer; the counters at hand are older")
        await self.offloader.read_live(call.lines)
        return self._view(call)

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
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with supervisor.signs_of_life():
        while not stop.is_set():
            # An agent that lost its role starts again from nothing, as a standby.
            await _serve(config, stop)


async def _serve(config: Config, stop: asyncio.Event) -> None:
    """One agent's life: until told to stop, or until it has lost its role."""
    agent = Agent(config)
    try:
        await agent.open()
        # An interface that goes away and comes back is opened anew.
        privileges.keep_only((privileges.NET_RAW,) if config.data_plane is not None and config.data_plane.cpu_interface is not None else ())
        await agent.start()
        control = ", ".join(config.control.listen)
        log.info("shunt %s: control on %s, relays %s", __version__, control, ", ".join(r.name for r in agent.pool.relays))
        supervisor.tell(READY=1, STATUS=f"control on {control}")
        await _until(stop, *([agent.role.lost] if agent.role is not None else []))
        if stop.is_set():
            supervisor.tell(STOPPING=1)
    finally:
        await agent.close()


async def _until(*events: asyncio.Event) -> None:
    """Wait for the first of these."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
