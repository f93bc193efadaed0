"""The HEPv3 listener: UDP datagrams or a TCP stream in, sightings of SIP messages out to a callback."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shunt.config.values import IPNetwork, SocketAddress
from shunt.hep import sip
from shunt.hep.codec import HEADER_BYTES, KIND_SIP, HepError, decode, frame_length
from shunt.net import Endpoint

logger = logging.getLogger(__name__)

_DRAIN = 8  # datagrams before other work on the loop gets its turn
_PAUSE_S = 0.004  # between two looks: copies come in swarms, and to be woken for each costs more than to read it
_RECEIVE_BUFFER = 4 << 20
_MAX_CONNECTIONS = 64
_COMPLAINT_PERIOD_S = 10.0


@dataclass(slots=True)
class SipSighting:
    """A SIP message that passed the SIP server, as its tracer copied it.

    A request has method, a response has status. from_tag is "" where the message has none, to_tag is
    None outside of a dialog; cseq_method is the method that a response answers. source and destination
    are the message's own transport addresses, 0.0.0.0:0 where the copy does not say. sdp has an
    endpoint for each media line, in m-line order: port 0 where the line is switched off, address
    0.0.0.0 on hold and where SDP names no IP address; media says what else there is to each.
    """

    method: str | None
    status: int | None
    call_id: str
    from_tag: str
    to_tag: str | None
    cseq_method: str
    source: Endpoint
    destination: Endpoint
    sdp: tuple[Endpoint, ...]
    media: tuple[sip.SdpMedia, ...] = ()


@dataclass(slots=True)
class HepCounters:
    """What became of the packets since the start: every packet is counted once."""

    sightings: int = 0
    refused: int = 0  # from a network that is not allowed
    malformed: int = 0  # not HEPv3, or SIP that cannot be read
    not_sip: int = 0  # other kinds: RTCP reports, logs
    failed: int = 0  # the callback raised


def sighting(data: bytes) -> SipSighting | None:
    """The SIP message in one HEPv3 packet; None for other kinds and keep-alives. Raises HepError or SipError."""
    packet = decode(data)
    if packet.kind != KIND_SIP or not packet.payload.strip(b"\r\n\0 \t"):
        return None
    facts = sip.parse(packet.payload)
    return SipSighting(
        facts.method, facts.status, facts.call_id, facts.from_tag, facts.to_tag, facts.cseq_method, packet.source, packet.destination, facts.sdp, facts.media
    )


@dataclass(slots=True)
class _Complaints:
    """Garbage can come at any rate; the log gets one line in ten seconds, with the number left out."""

    silent_until: float = 0.0
    left_out: int = 0

    def log(self, message: str) -> None:
        now = time.monotonic()
        if now < self.silent_until:
            self.left_out += 1
            return
        logger.warning("%s%s", message, f" ({self.left_out} more since the last such line)" if self.left_out else "")
        self.silent_until, self.left_out = now + _COMPLAINT_PERIOD_S, 0


@dataclass(slots=True)
class HepListener:
    """Listens on one socket and calls `on_sighting` for every SIP message that arrives from an allowed network.

    `listen` is a udp or tcp address; port 0 lets the kernel choose. The callback runs on the event loop.
    """

    listen: SocketAddress
    allow: Sequence[IPNetwork]
    on_sighting: Callable[[SipSighting], None]
    counters: HepCounters = field(default_factory=HepCounters)
    _socket: socket.socket | None = None
    _next: asyncio.Handle | None = None  # reading goes on then
    _server: asyncio.Server | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set)
    _complaints: _Complaints = field(default_factory=_Complaints)
    _allowed: Callable[[str], bool] = field(init=False)

    def __post_init__(self) -> None:
        # Copies come from few addresses; judging each once keeps ipaddress off the packet path.
        self._allowed = functools.lru_cache(maxsize=1024)(self._judge)

    async def start(self) -> None:
        """Bind and listen. Raises OSError where the address cannot be bound."""
        if self.listen.scheme not in ("udp", "tcp"):
            raise ValueError(f"HEP arrives over udp or tcp, not {self.listen}")
        sock = self._bind()
        if self.listen.scheme == "udp":
            self._socket = sock
            asyncio.get_running_loop().add_reader(sock, self._wake, sock)
        else:
            self._server = await asyncio.start_server(self._serve, sock=sock)
        self.listen = self.listen._replace(port=sock.getsockname()[1])
        logger.info("listening for HEPv3 on %s", self.listen)

    async def stop(self) -> None:
        """Close the socket and every connection."""
        if self._socket is not None:
            if self._next is not None:
                self._next.cancel()
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._server is not None:
            self._server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            self._server = None

    def _bind(self) -> socket.socket:
        udp = self.listen.scheme == "udp"
        family = socket.AF_INET6 if ":" in self.listen.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if udp:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
            else:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.listen.host, self.listen.port))
        except OSError as error:
            sock.close()
            raise OSError(error.errno, f"HEP listener {self.listen}: {error.strerror}") from error
        return sock

    def _judge(self, host: str) -> bool:
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.allow)

    def _wake(self, sock: socket.socket) -> None:
        """The first datagram after a pause is read at once, and what has come since then with it."""
        asyncio.get_running_loop().remove_reader(sock)
        self._drain(sock)

    def _drain(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_DRAIN):
            try:
                data, peer = sock.recvfrom(65535)
            except OSError as error:
                if not isinstance(error, (BlockingIOError, InterruptedError)):
                    self._complaints.log(f"HEP listener {self.listen}: {error}")
                self._next = loop.call_later(_PAUSE_S, loop.add_reader, sock, self._wake, sock)
                return
            if self._allowed(peer[0]):
                self._take(data, peer[0])
            else:
                self._refuse(peer[0])
        self._next = loop.call_soon(self._drain, sock)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")[0]
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if not self._allowed(peer):
                self._refuse(peer)
            elif len(self._connections) > _MAX_CONNECTIONS:
                self._complaints.log(f"HEP connection from {peer} closed: {_MAX_CONNECTIONS} are open already")
            else:
                await self._read_stream(reader, peer)
        except (asyncio.IncompleteReadError, ConnectionError):
            logger.debug("HEP connection from %s ended", peer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _read_stream(self, reader: asyncio.StreamReader, peer: str) -> None:
        while True:
            header = await reader.readexactly(HEADER_BYTES)
            try:
                length = frame_length(header)
            except HepError as error:
                # Where the next packet begins is lost with the length.
                self.counters.malformed += 1
                self._complaints.log(f"HEP connection from {peer} closed: {error}")
                return
            self._take(header + await reader.readexactly(length - HEADER_BYTES), peer)

    def _refuse(self, peer: str) -> None:
        self.counters.refused += 1
        self._complaints.log(f"HEP from {peer} refused: its network is not in hep.allow")

    def _take(self, data: bytes, peer: str) -> None:
        try:
            seen = sighting(data)
        except (HepError, sip.SipError) as error:
            self.counters.malformed += 1
            self._complaints.log(f"HEP from {peer}: {error}")
            return
        if seen is None:
            self.counters.not_sip += 1
            return
        try:
            self.on_sighting(seen)
        except Exception:
            self.counters.failed += 1
            logger.exception("a SIP message seen by HEP (Call-ID %r) could not be used", seen.call_id)
        else:
            self.counters.sightings += 1
