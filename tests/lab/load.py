"""Load without SIP: the control protocol as a SIP server speaks it, and RTP on many flows from the phones' namespaces.

SIPp plays media in user space, one thread to a stream, and tops out at a few hundred calls here; this
speaks to the agent's control socket itself and has one C program send the packets of all calls of a phone.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import json
import os
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lab.processes import CONTROL_PORT, ROOT, open_socket
from tests.lab.topology import CALLEE_IP, CALLER_IP, EDGE_IP, NAT_IP, LabError, Topology

SOURCE, BINARY = ROOT / "bench" / "rtpload.c", ROOT / "build" / "rtpload"
IPS = {"caller": CALLER_IP, "callee": CALLEE_IP, "nat": NAT_IP}
# Received packets are counted by port: established calls below, fresh ones above.
ESTABLISHED_PORTS, FRESH_PORTS = (6000, 15999), (16000, 31999)
FRESH_IDS = 65536
PACKET_S = 0.02
# Connection tracking of what a host sends itself would be the limit of a spray.
_COUNTERS = """table inet load {{
  counter established {{ }}
  counter fresh {{ }}
  chain arrived {{ type filter hook input priority -20; udp dport {0}-{1} counter name established; udp dport {2}-{3} counter name fresh; }}
  chain sent {{ type filter hook output priority raw; ip daddr {4} notrack; }}
}}"""


def build_generator() -> Path:
    """Compile the packet generator, unless it is newer than its source. Raises LabError with the compiler's words."""
    if not BINARY.exists() or BINARY.stat().st_mtime < SOURCE.stat().st_mtime:
        BINARY.parent.mkdir(exist_ok=True)
        made = BINARY.with_suffix(f".{os.getpid()}")  # another worker may be at the same
        done = subprocess.run([shutil.which("clang") or "cc", "-O2", "-Wall", "-o", str(made), str(SOURCE)], capture_output=True, text=True)
        if done.returncode:
            raise LabError(f"{SOURCE.name}: {done.stderr}")
        made.rename(BINARY)
    return BINARY


@dataclass(frozen=True, slots=True)
class Heard:
    """What arrived of a stream: different packets, repeated ones, those that the data plane carried and the first of these; what the listener missed; gaps by sequence number."""

    packets: int
    duplicates: int
    offloaded: int
    first_offloaded: int
    overflown: int
    gaps: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent of a stream: how many packets, and when (time.monotonic) those packets whose time is not 20 ms after the one before, and the last."""

    packets: int
    marks: list[int]
    times: list[float]

    @property
    def first(self) -> float:
        """When the first one left; 0.0 if there was none."""
        return self.times[0] if self.times else 0.0

    def at(self, seq: int) -> float:
        """When a packet left, by its number from 1."""
        mark = bisect.bisect_right(self.marks, seq) - 1
        return self.times[mark] + (seq - self.marks[mark]) * PACKET_S


class Phones:
    """The media of one host's phones: flows out, packets in. A context manager."""

    def __init__(self, topology: Topology, host: str) -> None:
        self.topology, self.host = topology, host
        self.ip = IPS[host]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Phones":
        self.topology.run(self.host, "nft", "-f", "-", stdin=_COUNTERS.format(*ESTABLISHED_PORTS, *FRESH_PORTS, EDGE_IP))
        command = self.topology.enter(self.host, str(build_generator()))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def say(self, *lines: str) -> None:
        """Commands to the generator (bench/rtpload.c)."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write("".join(f"{line}\n" for line in lines))
        self._process.stdin.flush()

    def sent(self) -> tuple[int, int, int]:
        """Packets sent so far: of established calls, of fresh ones, sprayed."""
        words = self._ask("count")
        return int(words[1]), int(words[2]), int(words[3])

    def hear(self) -> None:
        """Note every packet that arrives from now on, stream by stream."""
        self.say(f"hear {ESTABLISHED_PORTS[0]} {FRESH_PORTS[1]}")

    def end(self, number: int) -> "Sent":
        """End a call's flow: what was sent of it, and when."""
        words = self._ask(f"end {number}")
        marks = [(int(seq), float(at)) for seq, _, at in (word.partition(":") for word in words[2:])]
        return Sent(int(words[1]), [seq for seq, _ in marks], [at for _, at in marks])

    def heard(self, ssrc: int, sent: int) -> "Heard":
        """What arrived of a stream of which so many packets were sent; it is forgotten then."""
        words = self._ask(f"heard {ssrc} {sent}")
        gaps = [(int(first), int(last)) for first, _, last in (word.partition("-") for word in words[6:])]
        return Heard(*map(int, words[1:6]), gaps)

    def _ask(self, line: str) -> list[str]:
        self.say(line)
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout.readline().split()

    def link_drops(self) -> Counter[str]:
        """Packets that the lab's own link between this host and the edge has dropped since it was made, by direction: its ring was full, because the machine was.

        Towards the phone these are the packets of the edge's sockets as well as those that the data plane redirected.
        """
        ends = {f"{self.host} to edge": (self.host, "eth0"), f"edge to {self.host}": ("edge", f"e-{self.host}")}
        found = {way: json.loads(self.topology.run(host, "ip", "-j", "-s", "link", "show", device))[0] for way, (host, device) in ends.items()}
        return Counter({way: link["stats64"]["tx"]["dropped"] for way, link in found.items()})

    def received(self) -> tuple[int, int]:
        """Packets received so far: of established calls, of fresh ones."""
        text = self.topology.run(self.host, "nft", "list", "counters", "table", "inet", "load").split()
        found = [int(text[at + 1]) for at, word in enumerate(text) if word == "packets"]
        return found[0], found[1]


# A relay answers a number that it has seen lately as it did then, whichever client it is of.
_commands = itertools.count(1)


def datagrams(sock: socket.socket) -> Iterator[bytes]:
    """What has arrived on a socket that does not block; that nobody listened where it had sent to is no matter."""
    while True:
        try:
            yield sock.recv(65536)
        except BlockingIOError:
            return
        except ConnectionRefusedError:
            continue


class ControlClient:
    """A SIP server's side of the control protocol over UDP: a cookie for each command, repetitions with the same one."""

    def __init__(self, sock: socket.socket, *, timeout: float = 0.5, tries: int = 6) -> None:
        self._sock = sock
        self.timeout, self.tries = timeout, tries
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self.repeated = 0
        self.slowest = 0.0
        asyncio.get_running_loop().add_reader(sock, self._readable)

    @classmethod
    def to(cls, topology: Topology, host: str = "edge", port: int = CONTROL_PORT, **more: float) -> "ControlClient":
        """Towards a control socket on the loopback of a host's namespace."""
        sock = open_socket(topology, host, socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.connect(("127.0.0.1", port))
        return cls(sock, **more)  # type: ignore[arg-type]

    def _readable(self) -> None:
        for data in datagrams(self._sock):
            cookie, _, body = data.partition(b" ")
            future = self._waiting.get(cookie)
            if future is not None and not future.done():
                future.set_result(body.rstrip(b"\n"))

    async def command(self, text: str, *, tries: int | None = None, timeout: float | None = None) -> bytes | None:
        """The reply; None when there was none after all tries."""
        cookie = b"%d_%d" % (os.getpid(), next(_commands))
        future = self._waiting[cookie] = asyncio.get_running_loop().create_future()
        began = time.monotonic()
        try:
            for attempt in range(tries or self.tries):
                self.repeated += attempt > 0
                try:
                    self._sock.send(cookie + b" " + text.encode())
                except OSError:  # nobody listens; found out with the next datagram
                    pass
                try:
                    async with asyncio.timeout(timeout or self.timeout):
                        reply = await asyncio.shield(future)
                        self.slowest = max(self.slowest, time.monotonic() - began)
                        return reply
                except TimeoutError:
                    continue
            return None
        finally:
            del self._waiting[cookie]
            future.cancel()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()


@dataclass(slots=True)
class LoadCall:
    """One call: its id on the control channel, the phones' ports, and the relay's ports each sends to."""

    number: int
    call_id: str
    caller_port: int
    callee_port: int
    caller_sends: tuple[str, int] = ("", 0)
    callee_sends: tuple[str, int] = ("", 0)

    @property
    def ssrc(self) -> int:
        return 0x10000 + 2 * self.number


class Load:
    """Places calls: U, L, media, D."""

    ASK = "V"
    """A command about no call, which a relay that is there answers."""

    def __init__(self, client: ControlClient, caller: Phones, callee: Phones, *, tag: str = "load") -> None:
        self.client, self.caller, self.callee = client, caller, callee
        self.tag = tag
        self.failed: list[str] = []

    def established(self, index: int) -> LoadCall:
        """The index-th of the calls that are to last."""
        port = ESTABLISHED_PORTS[0] + 2 * index
        return LoadCall(index, f"{self.tag}-e{index}", port, port)

    def fresh(self, index: int) -> LoadCall:
        """The index-th of the short calls."""
        port = FRESH_PORTS[0] + 2 * (index % 8000)
        return LoadCall(FRESH_IDS + index % 100_000, f"{self.tag}-f{index}", port, port)

    async def set_up(self, call: LoadCall, *, modifiers: str = "") -> bool:
        """Offer and answer. False, and noted in `failed`, when one of them got no usable reply."""
        offer = await self.client.command(f"U{modifiers}c8 {call.call_id} {self.caller.ip} {call.caller_port} A;1")
        if not self._take(call, "callee", offer):
            return False
        answer = await self.client.command(f"L{modifiers}c8 {call.call_id} {self.callee.ip} {call.callee_port} A;1 B;1")
        return self._take(call, "caller", answer)

    def _take(self, call: LoadCall, who: str, reply: bytes | None) -> bool:
        words = (reply or b"").split()
        if len(words) < 2 or not words[0].isdigit() or words[0] == b"0":
            self.failed.append(f"{call.call_id}: {reply!r}")
            return False
        setattr(call, f"{who}_sends", (words[1].decode(), int(words[0])))
        return True

    def talk(self, call: LoadCall) -> None:
        """Both parties send from now on."""
        for phones, port, (ip, relay_port), ssrc in (
            (self.caller, call.caller_port, call.caller_sends, call.ssrc),
            (self.callee, call.callee_port, call.callee_sends, call.ssrc + 1),
        ):
            phones.say(f"add {call.number} {phones.ip} {port} {ip} {relay_port} {ssrc}")

    def hush(self, call: LoadCall) -> None:
        """Neither party sends any more."""
        for phones in (self.caller, self.callee):
            phones.say(f"del {call.number}")

    async def hang_up(self, call: LoadCall) -> None:
        """Delete the session. A delete that nobody answers is noted in `failed`."""
        if await self.client.command(f"D {call.call_id} A B") is None:
            self.failed.append(f"{call.call_id}: no answer to D")
