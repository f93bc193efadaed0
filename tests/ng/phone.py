"""A phone of a test: sockets for RTP and RTCP in a host's namespace; what it sent, what it got, and its SDP."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.lab.processes import open_socket
from tests.lab.sipp import address
from tests.lab.topology import Topology

Place = tuple[str, int]
_PORTS = itertools.count(32_100, 10)  # above those that the lab's hosts swallow, and never the same twice: who calls often from one port is a scanner
_SSRCS = itertools.count(0x0A0000)


@dataclass
class Relay:
    """Where a media line is to be sent to, as an SDP of the relay says."""

    rtp: Place
    rtcp: Place


@dataclass
class Line:
    """A media line of an SDP, with what a test may vary."""

    kind: str = "audio"
    formats: str = "0 8 101"
    protocol: str = "RTP/AVP"
    port: int | None = None  # None: the phone's own
    attributes: tuple[str, ...] = ("rtpmap:0 PCMU/8000", "rtpmap:8 PCMA/8000", "rtpmap:101 telephone-event/8000")

    def text(self, port: int) -> str:
        lines = [f"m={self.kind} {port if self.port is None else self.port} {self.protocol} {self.formats}"]
        return "\r\n".join(lines + [f"a={attribute}" for attribute in self.attributes]) + "\r\n"


AUDIO = Line()
VIDEO = Line("video", "96", attributes=("rtpmap:96 H264/90000",))


def sdp(at: str, ports: list[int], lines: tuple[Line, ...] = (AUDIO,), *session: str) -> str:
    """A session description; session: further attributes of the session."""
    family = "IP6" if ":" in at else "IP4"
    head = f"v=0\r\no=- 1 1 IN {family} {at}\r\ns=-\r\nc=IN {family} {at}\r\nt=0 0\r\n" + "".join(f"a={each}\r\n" for each in session)
    return head + "".join(line.text(port) for line, port in zip(lines, ports, strict=True))


def relays(text: str) -> list[Relay]:
    """Where the media lines of a relay's SDP are to be sent to; a line that is switched off has port 0."""
    session, *media = re.split(r"^(?=m=)", text, flags=re.MULTILINE)
    connection = r"^c=IN IP[46] (\S+)"
    common = re.search(connection, session, re.MULTILINE)
    found = []
    for line in media:
        own = re.search(connection, line, re.MULTILINE) or common
        assert own is not None, f"no c= line: {text!r}"
        port = int(line.split()[1])
        rtcp = re.search(r"^a=rtcp:(\d+)", line, re.MULTILINE)
        found.append(Relay((own[1], port), (own[1], int(rtcp[1]) if rtcp else port + 1)))
    return found


class Stream:
    """One media line of a phone."""

    def __init__(self, topology: Topology, host: str, at: str, port: int) -> None:
        self.port, self.ssrc = port, next(_SSRCS)
        self.seq = 1000
        self.sent: list[int] = []  # sequence numbers of RTP
        self.reports = 0  # RTCP packets sent
        self.got: dict[tuple[int, int], int] = {}  # by SSRC and sequence number: the payload type of what came
        self.repeated = 0
        self.rtcp_got: set[int] = set()  # SSRCs of which RTCP came
        family = socket.AF_INET6 if ":" in at else socket.AF_INET
        self._sockets = []
        for step in (0, 1):
            sock = open_socket(topology, host, family, socket.SOCK_DGRAM)
            sock.setblocking(False)
            sock.bind((at, port + step))
            asyncio.get_running_loop().add_reader(sock, self._readable, sock)
            self._sockets.append(sock)

    def _readable(self, sock: socket.socket) -> None:
        while True:
            try:
                data = sock.recv(2048)
            except OSError:
                return
            if len(data) < 12:
                continue
            if 192 <= data[1] <= 223:
                self.rtcp_got.add(struct.unpack_from("!I", data, 4)[0])
                continue
            seq, ssrc = struct.unpack_from("!H4xI", data, 2)
            self.repeated += (ssrc, seq) in self.got
            self.got[ssrc, seq] = data[1] & 0x7F

    def rtp(self, to: Place, payload_type: int = 0) -> None:
        """One packet now."""
        self.seq = (self.seq + 1) & 0xFFFF
        self._sockets[0].sendto(struct.pack("!BBHII", 0x80, payload_type, self.seq, self.seq * 160, self.ssrc) + bytes(160), to)
        self.sent.append(self.seq)

    def rtcp(self, to: Place, muxed: bool = False) -> None:
        """A sender report now; muxed: from the socket of RTP."""
        self._sockets[0 if muxed else 1].sendto(struct.pack("!BBHI", 0x80, 200, 6, self.ssrc) + bytes(20), to)
        self.reports += 1

    def close(self) -> None:
        for sock in self._sockets:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()


@dataclass
class Phone:
    """A party. `at` is its own address, `public` what others see of it."""

    topology: Topology
    host: str
    tag: str
    version: int = 4
    media: int = 1
    muxed: bool = False  # whether it sends RTCP from the socket of RTP
    relays: list[Relay] = field(default_factory=list)  # where it sends to, by media line
    payload_type: int = 0

    def __post_init__(self) -> None:
        self.at = address(self.host, self.version)
        first = next(_PORTS)
        self.streams = [Stream(self.topology, self.host, self.at, first + 2 * index) for index in range(self.media)]
        self._sending: asyncio.Task[None] | None = None

    @property
    def ports(self) -> list[int]:
        return [stream.port for stream in self.streams]

    def moves(self) -> None:
        """From now on its media is at other ports."""
        first = next(_PORTS)
        for index, old in enumerate(self.streams):
            new = Stream(self.topology, self.host, self.at, first + 2 * index)
            new.got, new.rtcp_got, new.seq = dict(old.got), set(old.rtcp_got), old.seq
            new.ssrc = old.ssrc
            new.sent = list(old.sent)
            old.close()
            self.streams[index] = new

    def talk(self, every: float = 0.02) -> None:
        """Send media of all lines, and reports now and then, to where the relay wants them at that moment, until hush()."""

        async def sending() -> None:
            due = time.monotonic()
            for number in itertools.count():
                for stream, relay in zip(self.streams, self.relays, strict=False):
                    if relay.rtp[1]:
                        stream.rtp(relay.rtp, self.payload_type)
                        if number % 25 == 5:
                            stream.rtcp(relay.rtp if self.muxed else relay.rtcp, self.muxed)
                due += every
                await asyncio.sleep(max(0.0, due - time.monotonic()))

        self._sending = asyncio.create_task(sending())

    async def hush(self) -> None:
        """Stop sending."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
            self._sending = None

    async def close(self) -> None:
        await self.hush()
        for stream in self.streams:
            stream.close()


async def until(holds: Callable[[], bool], what: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until it holds. Raises AssertionError with what it looks like then."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what()
        await asyncio.sleep(0.02)
