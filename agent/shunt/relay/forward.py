"""Forwarding of media in user space: one epoll set for all media sockets, no allocation beyond what Python forces."""

from __future__ import annotations

import asyncio
import logging
import math
import select
import socket
import time
from collections.abc import Callable

from shunt import limits
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint
from shunt.relay.learning import Decision, SourceLatch, read_rtcp, read_rtp
from shunt.relay.session import TO_CALLEE, TO_CALLER, Leg, Session

log = logging.getLogger(__name__)

# Packets taken from one socket, and sockets served, before others get their turn.
_BURST = 64
# A socket that was served less than this many seconds ago may hold several packets; any other is read once, since
# finding out that it is empty costs more than being told again by epoll in the rare case that it is not.
_CLOSE = 0.002
_SOCKETS = 128
# Seconds between looks at a known source's SSRC and sequence number.
_SYNC_INTERVAL = 0.25
# Seconds over which a limit of packets is counted.
_WINDOW_S = 0.25

# One buffer for all sockets: a packet is sent on before the next is read. Views of every usual length are made
# beforehand, because slicing a memoryview allocates.
_BUFFER = bytearray(65536)
_WHOLE = memoryview(_BUFFER)
_VIEWS = [_WHOLE[:length] for length in range(2049)]

SockAddr = tuple  # (host, port) or, for IPv6 as received, (host, port, flow, scope)


def _view(size: int) -> memoryview:
    return _VIEWS[size] if size <= 2048 else _WHOLE[:size]


class MediaPort:
    """One UDP socket of a session: receives from one party, and sends what the opposite port received to it.

    `source` is the only sender whose packets take the fast path; `out` and `destination` say where they go.
    """

    __slots__ = (
        "sock", "fd", "port", "is_rtp", "sibling", "opposite", "latch", "asymmetric", "signalled", "remote", "source",
        "out", "destination", "received", "relayed", "dropped", "ignored", "send_errors", "last_heard", "_next_sync",
        "_recv", "_on_learned", "_window_limit", "_window_ends", "_window_count",
    )

    def __init__(
        self, sock: socket.socket, *, is_rtp: bool, policy: LatchPolicy, on_learned: Callable[[int, Endpoint], None] = lambda port, source: None, packet_limit: int = 0
    ) -> None:
        """packet_limit: most packets/s of the source that are relayed; further ones are dropped. 0: no limit."""
        self.sock = sock
        self.fd = sock.fileno()
        self.port = sock.getsockname()[1]
        self.is_rtp = is_rtp
        self.sibling: MediaPort | None = None
        self.opposite: MediaPort | None = None
        self.latch = SourceLatch(policy, read_rtp if is_rtp else read_rtcp)
        self.asymmetric = False
        self.signalled: Endpoint | None = None
        self.remote: SockAddr | None = None
        self.source: SockAddr | None = None
        self.out = None
        self.destination: SockAddr | None = None
        self.received = self.relayed = self.dropped = self.ignored = self.send_errors = 0
        self.last_heard = 0.0
        self._next_sync = 0.0
        self._recv = sock.recvfrom_into
        self._on_learned = on_learned
        self._window_limit = math.ceil(packet_limit * _WINDOW_S)
        self._window_ends = 0.0
        self._window_count = 0

    # -- what signalling says -------------------------------------------------------------------------

    def signal(self, signalled: Endpoint | None, asymmetric: bool, trusted: set[bytes], now: float) -> None:
        """The party's U or L named this address, or none (None keeps what was)."""
        if asymmetric != self.asymmetric:
            self.asymmetric = asymmetric
            self.source = None
            self.latch.forget(now)
            if asymmetric and self.signalled is not None:
                self._send_to(_sockaddr(self.signalled))
        old = self.signalled
        if signalled is None:
            return
        self.signalled = signalled
        self.latch.signal(signalled, trusted, now)
        learned = self.latch.learned
        if signalled == old and self.remote is not None and not asymmetric:
            return
        if asymmetric or learned is None or (old is not None and learned.addr == old.addr):
            # A party that was where it said it was is believed again about its new place; one behind a NAT is not.
            self._send_to(_sockaddr(signalled))

    def _send_to(self, remote: SockAddr | None) -> None:
        if remote is not None and (":" in remote[0]) != (self.sock.family == socket.AF_INET6):
            log.warning("port %d cannot send to %s: other IP version than its own", self.port, remote[0])
            remote = None
        self.remote = remote
        if self.opposite is not None:
            self.opposite.destination = remote

    def join(self, opposite: MediaPort | None) -> None:
        """What arrives here leaves from `opposite`, and the other way round. None: there is no other leg (yet)."""
        self.opposite = opposite
        self.out = opposite.sock.sendto if opposite is not None else None
        self.destination = opposite.remote if opposite is not None else None

    # -- packets --------------------------------------------------------------------------------------

    def drain(self, now: float) -> None:
        """Forward what has arrived, at most _BURST packets; now: monotonic seconds."""
        recv = self._recv
        relayed = received = 0
        size = -1
        room = self._room(now) if self._window_limit else _BURST
        try:
            for _ in range(_BURST if now - self.last_heard < _CLOSE else 1):
                size, sender = recv(_BUFFER)
                if sender != self.source:
                    self._unknown(now, sender, size)
                    size = -1
                    continue
                received += 1
                if received > room:
                    continue
                try:
                    self.out(_VIEWS[size] if size <= 2048 else _WHOLE[:size], self.destination)
                    relayed += 1
                except (OSError, TypeError):
                    # TypeError: no other leg yet, or nothing known to send to; tested here it costs nothing.
                    self._not_sent()
        except BlockingIOError:
            pass
        except OSError as error:
            log.debug("port %d: %s", self.port, error)
        if received:
            self.received += received
            self.relayed += relayed
            if received > room:
                self.dropped += received - room
                limits.count("packets_over_limit", received - room)
            self._window_count += received
            self.last_heard = now
            if now >= self._next_sync and size >= 0:
                self._next_sync = now + _SYNC_INTERVAL
                self.latch.sync(_view(size), size)

    def _room(self, now: float) -> int:
        """How many packets of the known source may still be relayed in this window. Those of strangers are not its fault."""
        if now >= self._window_ends:
            self._window_ends, self._window_count = now + _WINDOW_S, 0
        return max(0, self._window_limit - self._window_count)

    def _not_sent(self) -> None:
        if self.out is not None and self.destination is not None:
            self.send_errors += 1
        self.dropped += 1

    def _forward(self, packet: memoryview | bytes, now: float) -> None:
        self.received += 1
        self.last_heard = now
        try:
            self.out(packet, self.destination)
            self.relayed += 1
        except (OSError, TypeError):
            self._not_sent()

    def _unknown(self, now: float, sender: SockAddr, size: int) -> None:
        packet = _view(size)
        if self.asymmetric:
            if self.signalled is not None and sender[0] == self.signalled.ip:
                self.source = sender
                self._forward(packet, now)
            else:
                self.ignored += 1
            return
        try:
            src = Endpoint.of(sender[0].partition("%")[0], sender[1])
        except ValueError:
            self.ignored += 1
            return
        decision = self.latch.judge(now, src, packet, size, self.last_heard)
        if decision is Decision.LEARNED:
            self._learn(sender)
            for held in self.latch.release_held(now):
                self._forward(held, now)
            self._forward(packet, now)
        elif decision is Decision.FORWARD:
            self.source = sender
            self._forward(packet, now)
        elif decision is Decision.IGNORE:
            self.ignored += 1

    def _learn(self, sender: SockAddr) -> None:
        self.source = sender
        self._send_to(sender)
        self._on_learned(self.port, self.latch.learned)
        if self.is_rtp and self.sibling is not None:
            self.sibling.learned_rtp(self.latch.learned)

    def learned_rtp(self, rtp: Endpoint) -> None:
        """The party's RTP comes from there: its RTCP may too, and until heard is thought to use the next port."""
        self.latch.latch.trusted.add(rtp.addr)
        if self.asymmetric or (self.latch.learned is not None and self.latch.learned.addr == rtp.addr):
            return
        if self.signalled is not None and self.signalled.addr == rtp.addr and self.latch.learned is None:
            return
        self.latch.latch.learned = None
        self.source = None
        if rtp.port < 65535:
            self._send_to(_sockaddr(rtp.next_port()))

    def restore(self, source: Endpoint, ssrc: int, now: float) -> None:
        """Put back the source that an earlier process had learned."""
        self.latch.restore(source, ssrc)
        self.last_heard = now
        sender = _sockaddr(source)
        self.source = sender if source.version == 4 else (*sender, 0, 0)
        self._send_to(sender)
        if self.is_rtp and self.sibling is not None:
            self.sibling.learned_rtp(source)


def _sockaddr(endpoint: Endpoint) -> SockAddr:
    return (endpoint.ip, endpoint.port)


class MediaLegs:
    """The sockets of one session: per leg an RTP and an RTCP port, joined with those of the other leg."""

    __slots__ = ("ports", "_policy", "_on_learned", "_packet_limit")

    def __init__(self, policy: LatchPolicy, on_learned: Callable[[int, Endpoint], None] = lambda port, source: None, packet_limit: int = 0) -> None:
        """on_learned(port, source) is called whenever a port of the session has learned a source; packet_limit as in MediaPort."""
        self._packet_limit = packet_limit
        self.ports: list[tuple[MediaPort, MediaPort] | None] = [None, None]
        self._policy = policy
        self._on_learned = on_learned

    def open(self, index: int, sockets: tuple[socket.socket, socket.socket], leg: Leg, now: float) -> None:
        """Put the sockets of a leg in, new or in place of others, and join them with the other leg's."""
        rtp, rtcp = (
            MediaPort(sock, is_rtp=is_rtp, policy=self._policy, on_learned=self._on_learned, packet_limit=self._packet_limit)
            for sock, is_rtp in zip(sockets, (True, False))
        )
        rtp.sibling = rtcp
        self.ports[index] = (rtp, rtcp)
        other = self.ports[1 - index]
        for mine, theirs in zip((rtp, rtcp), other or (None, None)):
            mine.join(theirs)
            if theirs is not None:
                theirs.join(mine)
        self.signal(index, leg, now)
        if leg.tos is not None:
            self.set_tos(index, leg.tos)

    def signal(self, index: int, leg: Leg, now: float) -> None:
        """Tell the ports of a leg what the party's U or L said."""
        pair = self.ports[index]
        if pair is None:
            return
        rtp, rtcp = pair
        signalled = leg.signalled
        trusted = {signalled.addr} if signalled is not None else set()
        rtp.signal(signalled, leg.asymmetric, trusted, now)
        learned = rtp.latch.learned
        rtcp.signal(
            signalled.next_port() if signalled is not None and signalled.port < 65535 else None, leg.asymmetric,
            trusted | ({learned.addr} if learned is not None else set()), now,
        )
        if learned is not None and rtcp.latch.learned is None:
            rtcp.learned_rtp(learned)

    def set_tos(self, index: int, tos: int) -> bool:
        """Mark what leaves this leg's ports; tos is the whole octet, 0..255. False if the kernel refuses."""
        pair = self.ports[index]
        for port in pair or ():
            try:
                if port.sock.family == socket.AF_INET6:
                    port.sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
                else:
                    port.sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
            except OSError as error:
                log.warning("port %d: type of service %d: %s", port.port, tos, error)
                return False
        return True

    def all(self) -> list[MediaPort]:
        return [port for pair in self.ports if pair is not None for port in pair]

    def last_heard(self) -> float:
        """When any party's packet was last accepted; 0.0 for never."""
        return max((port.last_heard for port in self.all()), default=0.0)


class Forwarder:
    """All media sockets behind one epoll descriptor, of which the event loop watches only that one.

    The loop's own cost for each ready socket is more than that of forwarding a packet, hence the set of our own.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._epoll: select.epoll | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ports: dict[int, MediaPort] = {}

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        for port in self._ports.values():
            self._epoll.register(port.fd, select.EPOLLIN)
        self._loop.add_reader(self._epoll.fileno(), self._ready)

    def close(self) -> None:
        for port in list(self._ports.values()):
            self.remove(port)
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def add(self, port: MediaPort) -> None:
        self._ports[port.fd] = port
        if self._epoll is not None:
            self._epoll.register(port.fd, select.EPOLLIN)

    def remove(self, port: MediaPort) -> None:
        """Stop watching a port and close its socket."""
        del self._ports[port.fd]
        if self._epoll is not None:
            self._epoll.unregister(port.fd)
        if port.opposite is not None and port.opposite.opposite is port:
            port.opposite.join(None)
        port.sock.close()

    def _ready(self) -> None:
        ports = self._ports
        now = self._clock()
        for fd, _ in self._epoll.poll(0, _SOCKETS):
            port = ports.get(fd)
            if port is not None:
                port.drain(now)


def counts(session: Session, media: MediaLegs) -> dict[str, int]:
    """Packets of one session: from the callee and from the caller, relayed, dropped (nowhere to send, or refused),
    ignored (from strangers), each for RTP and with the prefix rtcp_ for RTCP."""
    result: dict[str, int] = {}
    for which, prefix in ((0, ""), (1, "rtcp_")):
        sides = [media.ports[i][which] if media.ports[i] is not None else None for i in (TO_CALLEE, TO_CALLER)]
        for side, name in zip(sides, ("from_callee", "from_caller")):
            result[prefix + name] = side.received if side is not None else 0
        for name in ("relayed", "dropped", "ignored", "send_errors"):
            result[prefix + name] = sum(getattr(side, name) for side in sides if side is not None)
    return result
