"""The built-in relay as one piece: control commands in, media forwarded, sessions timed out, state handed on."""

from __future__ import annotations

import asyncio
import heapq
import ipaddress
import itertools
import logging
import math
import resource
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint
from shunt.relay.commands import Commands
from shunt.relay.forward import Forwarder, MediaLegs, counts
from shunt.relay.notify import NotifySender
from shunt.relay.ports import AddressUnusable, PortAllocator, PortTaken, bind_pair
from shunt.relay.session import TO_CALLEE, TO_CALLER, Leg, Session, SessionTable
from shunt.tables.entry import MediaRange
from shunt.tasks import keep_running

log = logging.getLogger(__name__)

_SWEEP_INTERVAL = 0.5
_TAKEN_RETRY_S = 0.02
_QUARANTINE_KEY = "quarantine"


@dataclass(frozen=True, slots=True)
class LegInfo:
    """One leg as an operator sees it: the relay's port, the party's signalled and its learned RTP and RTCP address."""

    relay: str
    port: int
    signalled: str | None
    learned: str | None
    learned_rtcp: str | None
    sends_to: str | None
    asymmetric: bool


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session; packets as in forward.counts(), ttl_left in seconds."""

    call_id: str
    tag: str
    complete: bool
    ttl_left: float
    to_callee: LegInfo
    to_caller: LegInfo
    packets: dict[str, int]


class BuiltinRelay:
    """A relay that speaks the rtpproxy protocol and forwards media in user space.

    addresses: the first is I (internal), the second E (external); without letters both legs use the first of the
    packet's IP version. Ports are even/odd pairs of first_port..last_port on each. ttl: seconds without media until a
    session ends (setup_ttl: until the answer came, default the same). asymmetric: learn no addresses unless modifier S
    asks for it, as rtpproxy does in bridging mode; off by default, since it leaves callers behind NAT without audio.
    on_timeout(call_id, tag) is called for each session that timed out.
    """

    def __init__(
        self, addresses: list[str], first_port: int, last_port: int, *, ttl: float = 60.0, setup_ttl: float | None = None,
        quarantine: float = 5.0, asymmetric: bool = False, policy: LatchPolicy | None = None, notify: bool = True,
        notifier: NotifySender | None = None, packet_limit: int = 0,
        on_timeout: Callable[[str, str], None] | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """notifier: who sends the notices, in place of one of its own. packet_limit: most packets/s of one stream, 0: no limit.

        Raises ValueError for an address that is none, a range without a pair, or a ttl not above 0."""
        if not addresses:
            raise ValueError("the built-in relay needs an address")
        if ttl <= 0 or (setup_ttl is not None and setup_ttl <= 0):
            raise ValueError(f"ttl {ttl} must be above 0")
        self.addresses = [str(ipaddress.ip_address(a)) for a in addresses]
        self.first_port, self.last_port = first_port, last_port
        self.ttl = ttl
        self.on_timeout = on_timeout
        self._clock = clock
        self._policy = policy or LatchPolicy()
        self._ports = PortAllocator(first_port, last_port, bind_pair, quarantine=quarantine, clock=clock)
        self._forwarder = Forwarder(clock)
        self._table = SessionTable()
        self._media: dict[Session, MediaLegs] = {}
        self._packet_limit = packet_limit
        self._own_notifier = NotifySender() if notify and notifier is None else None
        self._notify = notifier if notify and notifier is not None else self._own_notifier
        self._commands = Commands(
            self._table, self, self.addresses, ttl=ttl, setup_ttl=setup_ttl or ttl, asymmetric=asymmetric, clock=clock
        )
        self._changed: dict[str, Session | None] = {}
        self._born: dict[Session, float] = {}
        self._ended: dict[str, int | float] = dict.fromkeys(
            ("nsess_created", "nsess_destroyed", "nsess_timeout", "nsess_complete", "nsess_nortp", "nsess_owrtp", "nsess_nortcp",
             "nsess_owrtcp", "npkts_rcvd", "npkts_relayed", "npkts_discard"), 0,
        )
        self._ended["total_duration"] = 0.0
        # When to look at a session next: never later than its time-out could come, so that a sweep costs no more than
        # the sessions that are due. A heap entry counts only while _look_at has the same time.
        self._due: list[tuple[float, int, Session]] = []
        self._look_at: dict[Session, float] = {}
        self._entries = itertools.count()
        self._asked = (clock(), 0, 0.0)
        self._load_asked = (time.monotonic(), time.process_time(), 0.0)
        self._sweeper: asyncio.Task[None] | None = None

    # -- life -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Check that every address can be bound and begin forwarding. Raises AddressUnusable naming the address."""
        for ip in self.addresses:
            if not self.can_bind(ip):
                raise AddressUnusable(f"built-in relay: {ip} is not an address of this host")
        self._allow_descriptors()
        self._forwarder.start()
        self._sweeper = asyncio.get_running_loop().create_task(keep_running("sessions of the built-in relay", self._sweep_forever))

    def _allow_descriptors(self) -> None:
        """Raise the limit of open files as far as it goes: the usual 1024 is spent by 250 calls."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        sessions = (self.last_port - self.first_port + 1) // 4 * len(self.addresses)
        if hard != resource.RLIM_INFINITY and hard < 4 * sessions + 100:
            log.warning("built-in relay: %d open files are enough for %d sessions, the ports for %d", hard, hard // 4, sessions)

    async def close(self) -> None:
        """Close every socket. Sessions stay in what snapshot() returned before; no notices are sent for them."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
            self._sweeper = None
        self._forwarder.close()
        self._table.clear()
        self._media.clear()
        self._born.clear()
        self._due.clear()
        self._look_at.clear()
        self._changed.clear()
        if self._own_notifier is not None:
            await self._own_notifier.close()

    async def execute(self, body: bytes, cookie: bytes | None = None, peer_ip: str | None = None) -> bytes:
        """Execute a command; command and reply are without cookie and line end. peer_ip: the sender's address.

        With a cookie, a repetition is answered as the first time and not executed again.
        """
        return self._commands.execute(body, cookie, peer_ip)

    # -- what the agent asks ----------------------------------------------------------------------------

    @property
    def session_count(self) -> int:
        return len(self._table)

    def media_ranges(self) -> list[MediaRange]:
        """Where media for this relay arrives."""
        return [MediaRange(ipaddress.ip_address(ip).packed, self.first_port, self.last_port) for ip in self.addresses]

    def sessions(self) -> list[SessionInfo]:
        """Every session, for inspection."""
        now = self._clock()
        return [
            SessionInfo(
                s.call_id, s.tag, s.complete, round(s.left(now, self.last_heard(s)), 3),
                self._leg_info(s, TO_CALLEE), self._leg_info(s, TO_CALLER), self.counts(s),
            )
            for s in self._table
        ]

    def _leg_info(self, session: Session, index: int) -> LegInfo:
        leg = session.legs[index]
        pair = self._media[session].ports[index]
        learned = [str(p.latch.learned) if p.latch.learned is not None else None for p in pair] if pair else [None, None]
        sends_to = str(Endpoint.of(pair[0].remote[0].partition("%")[0], pair[0].remote[1])) if pair and pair[0].remote else None
        return LegInfo(
            leg.address, leg.port, str(leg.signalled) if leg.signalled is not None else None, learned[0], learned[1], sends_to,
            leg.asymmetric,
        )

    # -- handing on -------------------------------------------------------------------------------------

    def snapshot(self) -> list[dict[str, Any]]:
        """All sessions, and ports in quarantine, as JSON-able values; adopt() takes them."""
        return [self._dump(session) for session in self._table] + [
            {_QUARANTINE_KEY: [ip, port, round(left, 3)]} for ip, port, left in self._ports.resting()
        ]

    def take_changes(self) -> dict[str, dict[str, Any] | None]:
        """What is new since the last call, by a key for each session: its snapshot, or None when it is gone."""
        changed, self._changed = self._changed, {}
        return {key: None if session is None else self._dump(session) for key, session in changed.items()}

    async def take_over(self, snapshot: Iterable[dict[str, Any]], patience: float = 1.0) -> list[str]:
        """adopt(), with so many seconds for the sockets of a process that is just ending to be let go of."""
        waiting, deadline = list(snapshot), time.monotonic() + patience
        problems: list[str] = []
        while waiting:
            taken: list[dict[str, Any]] = []
            problems += self.adopt(waiting, taken if time.monotonic() < deadline else None)
            waiting = taken
            if waiting:
                await asyncio.sleep(_TAKEN_RETRY_S)
        return problems

    def adopt(self, snapshot: Iterable[dict[str, Any]], taken: list[dict[str, Any]] | None = None) -> list[str]:
        """Open the ports of these sessions again, under the same numbers, with what had been learned.

        Returns a sentence for each one that could not be had (its ports are taken, or the snapshot is not one of ours);
        such a session is unknown from now on. Its time-out begins anew. taken: where those go instead whose ports are taken.
        """
        problems = []
        for item in snapshot:
            try:
                if _QUARANTINE_KEY in item:
                    ip, port, left = item[_QUARANTINE_KEY]
                    self._ports.rest(str(ip), int(port), float(left))
                else:
                    self._load_session(item)
            except (PortTaken, KeyError, TypeError, ValueError, IndexError) as error:
                if taken is not None and isinstance(error, PortTaken):
                    taken.append(item)
                    continue
                name = item.get("call_id") if isinstance(item, dict) else None
                problems.append(f"session {name!r} cannot be carried on: {error or type(error).__name__}")
                log.error("built-in relay: %s", problems[-1])
                if isinstance(name, str) and isinstance(item.get("tag"), str):
                    self._changed[_key(name, item["tag"])] = None
        return problems

    def _dump(self, session: Session) -> dict[str, Any]:
        legs = []
        for index, leg in enumerate(session.legs):
            pair = self._media[session].ports[index]
            legs.append({
                "address": leg.address, "port": leg.port, "signalled": _text(leg.signalled), "asymmetric": leg.asymmetric,
                "weak": leg.weak, "on_hold": leg.on_hold, "codecs": list(leg.codecs), "tos": leg.tos,
                "learned": [
                    [_text(p.latch.learned), p.latch.latch.ssrc or 0] if p.latch.learned is not None else None for p in pair or ()
                ],
                "packets": [[p.received, p.relayed, p.dropped, p.ignored, p.send_errors] for p in pair or ()],
            })
        return {
            "call_id": session.call_id, "tag": session.tag, "ttl": session.ttl, "setup_ttl": session.setup_ttl,
            "strong": session.strong, "complete": session.complete, "notify": session.notify, "legs": legs,
        }

    def _load_session(self, item: dict[str, Any]) -> None:
        now = self._clock()
        legs = [
            Leg(
                str(d["address"]), int(d["port"]), Endpoint.parse(d["signalled"]) if d["signalled"] else None, bool(d["asymmetric"]),
                bool(d["weak"]), bool(d["on_hold"]), tuple(d["codecs"]), d["tos"],
            )
            for d in item["legs"]
        ]
        session = Session(
            str(item["call_id"]), str(item["tag"]), (legs[0], legs[1]), float(item["ttl"]), float(item["setup_ttl"]), now,
            bool(item["strong"]), bool(item["complete"]), tuple(item["notify"]) if item["notify"] else None,
        )
        known = self._table.find(session.call_id, session.tag, None)
        if known is not None:
            raise ValueError("it is there already")
        media = self._new_media(session)
        try:
            for index, (leg, saved) in enumerate(zip(legs, item["legs"])):
                if leg.port:
                    media.open(index, self._ports.reopen(leg.address, leg.port), leg, now)
                    for port, learned, packets in zip(media.ports[index], saved["learned"], saved["packets"]):
                        port.received, port.relayed, port.dropped, port.ignored, port.send_errors = (int(n) for n in packets)
                        if learned is not None:
                            port.restore(Endpoint.parse(learned[0]), int(learned[1]), now)
        except Exception:
            for port in media.all():
                port.sock.close()
            for index, leg in enumerate(legs):
                if media.ports[index] is not None:
                    self._ports.release(leg.address, leg.port)
            del self._media[session]
            raise
        for port in media.all():
            self._forwarder.add(port)
        self._table.add(session)
        self._born[session] = now
        self._look_again(session)

    # -- what the commands ask (commands.Media) -----------------------------------------------------------

    def open_leg(self, session: Session, index: int) -> None:
        leg = session.legs[index]
        port, sockets = self._ports.open(leg.address)
        media = self._media.get(session) or self._new_media(session)
        old, old_port, old_address = media.ports[index], leg.port, None
        if old is not None:
            old_address = old[0].sock.getsockname()[0]
        leg.port = port
        media.open(index, sockets, leg, self._clock())
        for new in media.ports[index]:
            self._forwarder.add(new)
        if old is not None:
            self._retire(old)
            for before, new in zip(old, media.ports[index]):
                new.received, new.relayed, new.dropped = before.received, before.relayed, before.dropped
                new.ignored, new.send_errors = before.ignored, before.send_errors
            self._ports.release(old_address, old_port)

    def _retire(self, pair: tuple) -> None:
        for port in pair:
            self._forwarder.remove(port)

    def _new_media(self, session: Session) -> MediaLegs:
        media = self._media[session] = MediaLegs(self._policy, lambda port, source: self._learned(session, port, source), self._packet_limit)
        return media

    def _learned(self, session: Session, port: int, source: Endpoint) -> None:
        log.info("port %d: source %s learned", port, source, extra={"call_id": session.call_id})
        self.changed(session)

    def leg_signalled(self, session: Session, index: int) -> None:
        self._media[session].signal(index, session.legs[index], self._clock())

    def created(self, session: Session) -> None:
        self._ended["nsess_created"] += 1
        self._born[session] = self._clock()

    def changed(self, session: Session) -> None:
        if session in self._media:
            self._changed[_key(session.call_id, session.tag)] = session
            self._look_again(session)

    def removed(self, session: Session) -> None:
        media = self._media.pop(session)
        self._look_at.pop(session, None)
        for name, value in self._session_totals(session, media).items():
            self._ended[name] += value
        self._ended["nsess_destroyed"] += 1
        self._ended["total_duration"] += self._clock() - self._born.pop(session)
        packets = counts(session, media)
        for prefix, name in (("", "rtp"), ("rtcp_", "rtcp")):
            heard = (packets[prefix + "from_caller"] > 0) + (packets[prefix + "from_callee"] > 0)
            if heard < 2:
                self._ended[f"nsess_{'no' if heard == 0 else 'ow'}{name}"] += 1
        for leg, pair in zip(session.legs, media.ports):
            if pair is not None:
                self._retire(pair)
                self._ports.release(leg.address, leg.port)
        self._changed[_key(session.call_id, session.tag)] = None

    @staticmethod
    def _session_totals(session: Session, media: MediaLegs) -> dict[str, int]:
        ports = media.all()
        return {
            "npkts_rcvd": sum(p.received + p.ignored for p in ports), "npkts_relayed": sum(p.relayed for p in ports),
            "npkts_discard": sum(p.dropped + p.ignored for p in ports), "nsess_complete": int(session.complete),
        }

    def set_tos(self, session: Session, index: int, tos: int) -> bool:
        session.legs[index].tos = tos
        return self._media[session].set_tos(index, tos)

    def counts(self, session: Session) -> dict[str, int]:
        return counts(session, self._media[session])

    def last_heard(self, session: Session) -> float:
        return self._media[session].last_heard()

    def totals(self) -> dict[str, int | float]:
        totals = dict(self._ended)
        for session, media in self._media.items():
            for name, value in self._session_totals(session, media).items():
                totals[name] += value
        then, packets, rate = self._asked
        now = self._clock()
        if now - then >= 1.0:
            rate = (totals["npkts_rcvd"] - packets) / (now - then)
            self._asked = (now, totals["npkts_rcvd"], rate)
        totals["pps_in"] = float(rate)
        return totals

    def load(self) -> float:
        then, used, load = self._load_asked
        now = time.monotonic()
        if now - then >= 1.0:
            load = 100 * (time.process_time() - used) / (now - then)
            self._load_asked = (now, time.process_time(), load)
        return load

    def can_notify(self) -> bool:
        return self._notify is not None

    def can_bind(self, ip: str) -> bool:
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((ip, 0))
            except OSError:
                return False
        return True

    def local_address_towards(self, ip: str) -> str | None:
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((ip, 9))
            except OSError:
                return None
            return probe.getsockname()[0].partition("%")[0]

    # -- time-outs --------------------------------------------------------------------------------------

    def _look_again(self, session: Session) -> None:
        now = self._clock()
        # At least a moment ahead: a difference lost in rounding would be due again at once, for ever.
        due = now + max(session.left(now, self.last_heard(session)), 0.01)
        if due < self._look_at.get(session, math.inf):
            self._look_at[session] = due
            heapq.heappush(self._due, (due, next(self._entries), session))

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL)
            self.sweep()

    def sweep(self) -> None:
        """End the sessions whose time is up, and raise their notices."""
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            due, _, session = heapq.heappop(self._due)
            if self._look_at.get(session) != due:
                continue
            del self._look_at[session]
            if session.left(now, self.last_heard(session)) > 0:
                self._look_again(session)
                continue
            log.warning("%s %s: no media for %g s: session time-out", session.call_id, session.tag, session.limit(), extra={"call_id": session.call_id})
            self._table.remove(session)
            self.removed(session)
            self._ended["nsess_timeout"] += 1
            if session.notify is not None and self._notify is not None:
                self._notify.notify_soon(*session.notify)
            if self.on_timeout is not None:
                try:
                    self.on_timeout(session.call_id, session.tag)
                except Exception:
                    log.exception("%s: on_timeout failed", session.call_id)


def _key(call_id: str, tag: str) -> str:
    return f"{call_id} {tag}"


def _text(endpoint: Endpoint | None) -> str | None:
    return None if endpoint is None else str(endpoint)
