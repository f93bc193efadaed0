"""One relay as operators have it, alone or with Shunt in front, and phones that send as told. Rows of the comparison play on it."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shunt.export.hep import HepPacket, encode as encode_hep
from shunt.net import Endpoint
from shunt.admin import AdminClient
from tests.agent_daemon.lab import Lab
from tests.lab.load import ControlClient
from tests.lab.processes import CONTROL_PORT, NG_PORT, RELAY_PORT, RTPENGINE_PORT, open_socket
from tests.lab.topology import CALLEE_IP, CALLER_IP, EDGE_IP, NATCALLER_IP, Topology
from tests.tools.ng import decode, encode

IPS = {"caller": CALLER_IP, "callee": CALLEE_IP, "natcaller": NATCALLER_IP}
NOBODY = "10.99.99.99"
"""An address that nobody has: what a phone behind a NAT writes into its SDP."""
BEHIND_NAT, ADVERTISED = "rtpproxy -A", "198.18.0.9"
"""A relay that tells parties another address than its own, as in clouds, and that address."""
_ONE_TO_ONE = f"table ip provider {{ chain out {{ type nat hook output priority -100; ip daddr {ADVERTISED} dnat to {EDGE_IP}\n}}\n}}\n"
HEP_PORT = 9060
_ports = itertools.count(33_000, 4)
_ssrcs = itertools.count(0x5000_0001)
_SDP = "v=0\r\no=- 1 1 IN IP4 {0}\r\ns=-\r\nc=IN IP4 {0}\r\nt=0 0\r\nm=audio {1} RTP/AVP 0\r\na=sendrecv\r\n"
_RELAY = re.compile(r"c=IN IP4 (\S+)[\s\S]*m=audio (\d+)")
Place = tuple[str, int]


@dataclass(eq=False)
class Phone:
    """Sockets in a host's namespace. It sends RTP of one SSRC from its first socket, unless told otherwise, and counts what arrives at any of them."""

    topology: Topology
    host: str
    ip: str
    media: Callable[[int, int], bytes] | None = None
    """Makes the packet of a number and an SSRC; None: RTP."""
    sockets: list[socket.socket] = field(default_factory=list)
    ssrcs: list[int] = field(default_factory=lambda: [next(_ssrcs)])
    """The last one is what it sends."""
    sequence: int = 0
    sent: list[float] = field(default_factory=list)
    """When each packet left."""
    received: Counter[int] = field(default_factory=Counter)
    """By SSRC."""
    marks: Counter[int] = field(default_factory=Counter)
    """TOS bytes of what has arrived."""
    relay: Place | None = None
    """Where it sends to."""
    _talk: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> socket.socket:
        """One more socket, which it sends from now on."""
        sock = open_socket(self.topology, self.host, socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        sock.bind((self.ip, next(_ports)))
        self.sockets.append(sock)
        asyncio.get_running_loop().add_reader(sock, self._readable, sock)
        return sock

    @property
    def port(self) -> int:
        return int(self.sockets[-1].getsockname()[1])

    def move(self, *, anew: bool = False) -> None:
        """Send from another port from now on. anew: with another SSRC too."""
        self.open()
        if anew:
            self.ssrcs.append(next(_ssrcs))

    def heard(self, other: "Phone") -> int:
        """Packets of the other phone that have arrived."""
        return sum(self.received[ssrc] for ssrc in other.ssrcs)

    def _readable(self, sock: socket.socket) -> None:
        while True:
            try:
                data, controls, _, _ = sock.recvmsg(2048, 64)
            except OSError:
                return
            if len(data) >= 12:
                self.received[struct.unpack_from("!I", data, 8)[0]] += 1
                self.marks.update(value[0] for level, kind, value in controls if (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS))

    def send(self) -> None:
        """One packet now."""
        self.sequence = (self.sequence + 1) & 0xFFFF
        data = (self.media or rtp)(self.sequence, self.ssrcs[-1])
        if self.relay is not None:
            self.sockets[-1].sendto(data, self.relay)
            self.sent.append(time.monotonic())

    def talk(self, every: float = 0.02, *, before: Callable[[], None] = lambda: None) -> None:
        """Send each so many seconds until hush(). before: called before each packet."""

        async def talking() -> None:
            due = time.monotonic()
            while True:
                before()
                self.send()
                due += every
                await asyncio.sleep(max(0.0, due - time.monotonic()))

        self._talk = asyncio.create_task(talking())

    def forget(self) -> None:
        """Count from now on."""
        self.sent.clear()
        self.received.clear()

    async def hush(self) -> None:
        if self._talk is not None:
            self._talk.cancel()
            await asyncio.gather(self._talk, return_exceptions=True)
            self._talk = None

    async def close(self) -> None:
        await self.hush()
        for sock in self.sockets:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()


def rtp(sequence: int, ssrc: int) -> bytes:
    return struct.pack("!BBHII", 0x80, 0, sequence, sequence * 160 & 0xFFFF_FFFF, ssrc) + b"\xff" * 160


def udptl(sequence: int, ssrc: int) -> bytes:
    """A fax packet (T.38): no RTP. The SSRC's place has the number by which the receiver counts it."""
    return struct.pack("!HBB", sequence, 0x06, 0xC0) + b"\x00" * 4 + struct.pack("!I", ssrc) + b"\x55" * 20


@dataclass(frozen=True)
class Sent:
    """One direction of one call: packets that were sent, and how many of them arrived."""

    way: str
    sent: int
    heard: int

    @property
    def lost(self) -> int:
        return self.sent - self.heard


class Call:
    """A call between two phones. Addresses are as the SIP server would tell them to the relay."""

    def __init__(self, place: "Field", call_id: str, caller: Phone, callee: Phone) -> None:
        self.field, self.call_id, self.caller, self.callee = place, call_id, caller, callee
        self.phones = {"A": caller, "B": callee}

    async def offer(self, *, by: str = "A", address: Place | None = None) -> None:
        """An offer of one party (A: the caller's tag): the other one learns where to send to. address: what its SDP says; default: where it sends from."""
        phone, other = self.phones[by], self.phones["B" if by == "A" else "A"]
        other.relay = await self.field.describe(self.call_id, "offer", by, address or (phone.ip, phone.port)) or other.relay

    async def answer(self, *, by: str = "B", address: Place | None = None) -> None:
        """The answer of the other party."""
        phone, other = self.phones[by], self.phones["B" if by == "A" else "A"]
        other.relay = await self.field.describe(self.call_id, "answer", by, address or (phone.ip, phone.port)) or other.relay

    async def set_up(self, caller: Place | None = None, callee: Place | None = None) -> None:
        await self.offer(address=caller)
        await self.answer(address=callee)

    async def settle(self) -> list[Sent]:
        """Hush both phones, and count."""
        for phone in self.phones.values():
            await phone.hush()
        await asyncio.sleep(0.3)
        return [
            Sent("caller → callee", len(self.caller.sent), self.callee.heard(self.caller)),
            Sent("callee → caller", len(self.callee.sent), self.caller.heard(self.callee)),
        ]


class Field:
    """A lab with one relay. with_shunt: softswitch and agent stand in front of it; else the SIP server's commands go to the relay itself."""

    def __init__(self, lab: Lab, with_shunt: bool) -> None:
        self.lab, self.with_shunt = lab, with_shunt
        self.topology, self.relay = lab.topology, lab.relay_name
        self._calls = itertools.count(1)
        self._phones: list[Phone] = []
        self._made: list[Call] = []
        own = RTPENGINE_PORT if self.relay == "rtpengine" else RELAY_PORT
        port = (NG_PORT if self.relay == "rtpengine" else CONTROL_PORT) if with_shunt else own
        self.client = ControlClient.to(self.topology, port=port)
        self._hep = open_socket(self.topology, "edge", socket.AF_INET, socket.SOCK_DGRAM)

    def phone(self, host: str, ip: str = "", media: Callable[[int, int], bytes] | None = None) -> Phone:
        """A phone on a host of the topology; ip: another address of that host than its usual one, which is added to it."""
        if ip:
            device = "lo" if host == "edge" else "eth0"
            self.topology.run(host, "ip", "addr", "replace", f"{ip}/24" if device != "lo" else f"{ip}/32", "dev", device)
        self._phones.append(Phone(self.topology, host, ip or IPS[host], media))
        return self._phones[-1]

    def call(self, caller: Phone, callee: Phone) -> Call:
        self._made.append(Call(self, f"n{next(self._calls)}-{time.monotonic_ns()}", caller, callee))
        return self._made[-1]

    async def describe(self, call_id: str, what: str, by: str, address: Place) -> Place | None:
        """Tell the relay an offer or answer of a party; where the other party is to send to. None: the relay named no port."""
        ip, port = address
        other = "B" if by == "A" else "A"
        if self.relay == "rtpengine":
            message: dict[str, Any] = {"command": what, "call-id": call_id, "sdp": _SDP.format(ip, port), "flags": ["trust-address"]}
            message |= {"from-tag": by} if what == "offer" else {"from-tag": other, "to-tag": by}
            if what == "offer" and self._is_up(call_id):
                message |= {"to-tag": other}
            reply = await self.client.command(encode(message).decode())
            found = _RELAY.search(decode(reply).get("sdp", "")) if reply else None
            return (found[1], int(found[2])) if found else None
        if what == "offer":
            tags = f"{by};1" + (f" {other};1" if self._is_up(call_id) else "")
        else:
            tags = f"{other};1 {by};1"
        reply = await self.client.command(f"{'U' if what == 'offer' else 'L'}c0 {call_id} {ip} {port} {tags}")
        assert reply is not None, f"no answer to the {what} of {call_id}"
        words = reply.decode().split()
        return (words[1], int(words[0])) if len(words) > 1 and int(words[0]) else None

    def _is_up(self, call_id: str) -> bool:
        call = next(call for call in self._made if call.call_id == call_id)
        return call.caller.relay is not None

    def invite(self, call: Call, source: str) -> None:
        """Show the agent a copy of the caller's INVITE, which came from this address."""
        lines = ["INVITE sip:1@x SIP/2.0", f"Via: SIP/2.0/UDP {source}:5060;branch=z9hG4bK{call.call_id}", "From: <sip:a@x>;tag=A", "To: <sip:b@x>"]
        self.sip("\r\n".join([*lines, f"Call-ID: {call.call_id}", "CSeq: 1 INVITE", "Content-Length: 0", "", ""]), (source, 5060), (EDGE_IP, 5060))

    def sip(self, message: str, source: Place, destination: Place) -> None:
        """Show the agent a copy of a SIP message, as the SIP server does by HEP. The relay alone is told nothing."""
        if self.with_shunt:
            packet = HepPacket(Endpoint.of(*source), Endpoint.of(*destination), message.encode())
            self._hep.sendto(encode_hep(packet), ("127.0.0.1", HEP_PORT))

    async def states(self, call: Call) -> list[str]:
        """States of the RTP streams of a call; none where Shunt does not run."""
        if not self.with_shunt:
            return []
        async with AdminClient(str(self.lab.admin)) as admin:
            view = await admin.call(call.call_id)
        return [str(stream["state"]) for line in view["lines"] for stream in line["streams"] if stream["component"] == "rtp"]

    async def close(self) -> None:
        """Hang up all calls and close the phones; the lab goes on."""
        for call in self._made:
            if self.relay == "rtpengine":
                await self.client.command(encode({"command": "delete", "call-id": call.call_id, "from-tag": "A", "delete-delay": 0}).decode())
            else:
                await self.client.command(f"D {call.call_id} A B")
        for phone in self._phones:
            await phone.close()
        self.client.close()
        self._hep.close()


@contextmanager
def lab(work: Path, relay: str, with_shunt: bool) -> Iterator[Lab]:
    """A lab in which Fields are made one after another. relay: BEHIND_NAT has a 1:1 NAT between itself and the phones."""
    with Topology("net") as topology:
        if relay == BEHIND_NAT:
            for host in ("caller", "callee"):
                topology.run(host, "nft", "-f", "-", stdin=_ONE_TO_ONE)
        made = Lab(topology, work, relay.split()[0], advertised=ADVERTISED if relay == BEHIND_NAT else None)
        try:
            if with_shunt:
                made.start()
            else:
                made.start_relay()
            yield made
        finally:
            made.stop()


Play = Callable[[Field], Awaitable[list[Sent]]]


@dataclass(frozen=True)
class Row:
    """A situation of the comparison: what happens, and with which relays."""

    name: str
    play: Play
    relays: tuple[str, ...] = ("rtpproxy", "rtpengine", "shunt-relay")
    more: int = 5
    """Packets of one direction that Shunt may lose beyond what the relay alone loses."""
