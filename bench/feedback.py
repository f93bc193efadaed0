"""What feedback costs shunt-agent: rooms of ten with audio and video, whose participants send RTCP at a browser's rates.

Run as root: python -m bench.feedback [--rooms 25,100,250] [--seconds N] [--layers vp8|none]. Prints the agent's processor time a second for each number
of rooms, and how late sender reports are in one room of fifty that sends feedback too, beside a process that only sends copies. SHUNT_AGENT and SHUNT_SOFTSWITCH name the binaries, by default those of this checkout.

Each participant sends, as libwebrtc does with rtcp-mux: of video a sender report with the blocks of the nine others and REMB every second, of audio a sender
report with blocks every 5 s, a NACK every 5 s and a PLI every 20 s. Media is sent at one packet in two seconds of each stream, since the kernel carries
it, and not the agent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import os
import random
import resource
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for _folder in (".", "operator"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))

from shunt.admin import AdminClient
from tests.tools.conference.rtcp import build_nack, build_pli, build_remb
from tests.agent_conference.lab import Lab
from tests.lab.processes import Process, open_socket
from tests.lab.topology import CALLEE_IP, CALLER_IP, EDGE_IP, Topology

HOSTS = {"caller": CALLER_IP, "callee": CALLEE_IP}
IN_ROOM = 10
_KINDS = ("audio", "video")
_VIDEO_S, _AUDIO_S, _NACK_S, _PLI_S, _MEDIA_S = 1.0, 5.0, 5.0, 20.0, 2.0
_TICKS = os.sysconf("SC_CLK_TCK")
_REMB = 5_000_000
_TIMESTAMPS = 35  # SO_TIMESTAMPNS
_REFLECTOR_PORT = 7100
_REFLECTOR = """
import socket, sys
made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
made.bind(("0.0.0.0", int(sys.argv[1])))
others = [(host, int(port)) for host, port in (one.rsplit(":", 1) for one in sys.argv[2:])]
while True:
    data = made.recv(2048)
    for other in others:
        made.sendto(data, other)
"""


@dataclass
class Stream:
    """One medium of one participant: where it sends, and what it sends of it."""

    made: socket.socket
    relay: tuple[str, int]
    ssrc: int
    sent: int = 0
    others: list[int] = field(default_factory=list)

    def rtp(self, picture: bool) -> None:
        head = struct.pack("!BBHII", 0x80, 96, self.sent & 0xFFFF, self.sent * 900 & 0xFFFFFFFF, self.ssrc)
        body = struct.pack("!BBHB", 0x90, 0xA0, 0x8000 | self.sent & 0x7FFF, 0x20) if picture else b""
        self.made.sendto(head + body + bytes(100), self.relay)
        self.sent += 1

    def report(self, remb: bool) -> None:
        blocks = b"".join(struct.pack("!IIIIII", ssrc, 0, self.sent, 10, 0, 0) for ssrc in self.others)
        body = struct.pack("!IIIIII", self.ssrc, int(time.time()) & 0xFFFFFFFF, 0, self.sent * 900 & 0xFFFFFFFF, self.sent, self.sent * 100) + blocks
        compound = struct.pack("!BBH", 0x80 | len(self.others), 200, len(body) // 4) + body
        self.made.sendto(compound + (build_remb(self.ssrc, _REMB, self.others) if remb else b""), self.relay)


def cpu_s(pid: int) -> float:
    """Processor seconds of a process, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def admit(lab: Lab, rooms: int, layers: str, in_room: int = IN_ROOM) -> list[dict[str, Stream]]:
    """Fill the rooms; the streams of each participant."""
    people: list[dict[str, Stream]] = []
    told = None if layers == "none" else {"by": layers}
    async with AdminClient(str(lab.socket)) as client:
        for number in range(rooms):
            await client.create_conference(f"r{number}")
            room = []
            for at in range(in_room):
                host = ("caller", "callee")[at % 2]
                wanted = [{"medium": "audio"}, {"medium": "video", "layers": told}]
                answer = await client.join(f"r{number}", f"p{at}", wanted, signalled=[HOSTS[host]])  # type: ignore[arg-type]
                one = {}
                for medium in answer["media"]:
                    made = open_socket(lab.topology, host, socket.AF_INET, socket.SOCK_DGRAM)
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096 if in_room == IN_ROOM else 1 << 18)
                    made.bind((HOSTS[host], 0))
                    relay = medium["address"].rsplit(":", 1)
                    one[medium["medium"]] = Stream(made, (relay[0], int(relay[1])), random.randrange(1, 1 << 32))
                room.append(one)
            for one in room:
                for kind in _KINDS:
                    one[kind].others = [other[kind].ssrc for other in room if other is not one][:31]
            people += room
    return people


def load(people: list[dict[str, Stream]], seconds: float) -> tuple[int, float]:
    """Send what browsers send for so long; how many RTCP packets were sent, and how late the last of them was."""
    begin, end = time.monotonic(), time.monotonic() + seconds
    due: list[tuple[float, int, str]] = []
    periods = {"video": _VIDEO_S, "audio": _AUDIO_S, "nack": _NACK_S, "pli": _PLI_S, "media": _MEDIA_S}
    for number in range(len(people)):
        due += [(begin + random.random() * period, number, what) for what, period in periods.items()]
    heapq.heapify(due)
    count, late = 0, 0.0
    while (now := time.monotonic()) < end:
        at, number, what = due[0]
        if at > now:
            time.sleep(min(at - now, 0.002))
            continue
        late = now - at
        heapq.heapreplace(due, (at + periods[what] * random.uniform(0.9, 1.1), number, what))
        one = people[number]
        video = one["video"]
        if what == "media":
            one["audio"].rtp(False)
            video.rtp(True)
            continue
        count += 1
        if what == "nack":
            video.made.sendto(build_nack(video.ssrc, random.choice(video.others), [video.sent & 0xFFFF]), video.relay)
        elif what == "pli":
            video.made.sendto(build_pli(video.ssrc, random.choice(video.others)), video.relay)
        else:
            one[what].report(what == "video")
    return count, late


def latch(people: list[dict[str, Stream]]) -> None:
    """All are behind two addresses, so that each has to show a run of packets."""
    for at in range(0, len(people), 50):
        for _ in range(8):
            for one in people[at : at + 50]:
                one["audio"].rtp(False)
                one["video"].rtp(True)
            time.sleep(0.02)


@contextlib.contextmanager
def occupied(rooms: int, layers: str, in_room: int, copies: int) -> Iterator[tuple[Lab, list[dict[str, Stream]], float]]:
    """Processes of their own with so many rooms, all latched and sending for 5 s: the lab, the participants, and joins/s."""
    with Topology("feedback") as topology, tempfile.TemporaryDirectory(dir="/tmp") as work:
        lab = Lab(topology, Path(work))
        lab.settings["softswitch"] |= {"conference_copies": copies, "capacity": 10_000}
        lab.settings["conference"]["ports"] = "20000-29999"
        lab.settings["log"] = {"level": "warning"}
        people: list[dict[str, Stream]] = []
        try:
            lab.start()
            begun = time.monotonic()
            people = asyncio.run(admit(lab, rooms, layers, in_room))
            joins = len(people) / (time.monotonic() - begun)
            latch(people)
            lab.until(lambda: lab.conferences() or [], lambda found: len(found) == rooms and all(one["design"] == "nra" and not one["problem"] for one in found), 120)
            load(people, 5)
            yield lab, people, joins
        finally:
            for one in people:
                for stream in one.values():
                    stream.made.close()
            lab.stop()


def reports(seconds: float, in_room: int = 50) -> tuple[list[float], list[float]]:
    """
    How late the copies of one participant's sender reports are at the others, by the kernel's time at each of them; in turns with it how late copies of a packet
    are that a process of a few lines sends to the same addresses: what it costs on this machine to wake up and to send so many. Both in seconds, sorted.
    """
    with occupied(1, "none", in_room, 8000) as (lab, people, _):
        first, *others = (one["audio"] for one in people)
        for other in others:
            other.made.setblocking(False)
            other.made.setsockopt(socket.SOL_SOCKET, _TIMESTAMPS, 1)
            _drain(other.made)
        where = [f"{host}:{port}" for host, port in (other.made.getsockname() for other in others)]
        reflector = Process(lab.topology, "edge", "reflector", [sys.executable, "-c", _REFLECTOR, str(_REFLECTOR_PORT), *where], lab.work / "reflector.log").start()
        try:
            reflector.await_listening("udp", _REFLECTOR_PORT)
            ways: list[tuple[tuple[str, int], list[float]]] = [(first.relay, []), ((EDGE_IP, _REFLECTOR_PORT), [])]
            sent: list[float] = []
            for number in range(int(seconds * 50) * len(ways) + 50):  # after the last, time for what is still under way
                if number < int(seconds * 50) * len(ways):
                    sent.append(time.time())
                    first.made.sendto(struct.pack("!BBHIIIIII", 0x80, 200, 6, first.ssrc, number, 0, 0, 0, 0), ways[number % len(ways)][0])
                load(people, 0.02)
                for data, at in (found for other in others for found in _drain(other.made)):
                    ssrc, stamp = struct.unpack_from("!II", data, 4) if data[1] == 200 else (0, 0)
                    if ssrc == first.ssrc and stamp < len(sent):
                        ways[stamp % len(ways)][1].append(at - sent[stamp])
        finally:
            reflector.stop()
        agent, plain = (sorted(late) for _, late in ways)
        return agent, plain


def percentile(late: list[float], percent: int) -> float:
    return late[len(late) * percent // 100]


def _drain(made: socket.socket) -> list[tuple[bytes, float]]:
    """What waits in a socket, each with the time at which the kernel had it."""
    found = []
    while True:
        try:
            data, control, _, _ = made.recvmsg(2048, 64)
        except BlockingIOError:
            return found
        stamps = [struct.unpack("qq", value) for level, kind, value in control if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMPS)]
        found += [(data, second + nanosecond / 1e9) for second, nanosecond in stamps]


def measure(rooms: int, seconds: float, layers: str) -> None:
    """One number of rooms; prints a line."""
    with occupied(rooms, layers, IN_ROOM, max(1000, rooms * IN_ROOM * (IN_ROOM - 1) * 2 * 5 // 4)) as (lab, people, joins):
        before, cpu, taken = time.monotonic(), cpu_s(lab.agent.pid), lab.metric("rtcp_taken")
        count, late = load(people, seconds)
        took = time.monotonic() - before
        ms = (cpu_s(lab.agent.pid) - cpu) * 1000 / took
        got = lab.metric("rtcp_taken") - taken
        rows, status = lab.metric("rows"), Path(f"/proc/{lab.agent.pid}/status").read_text()
        memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) // 1024
        print(
            f"{rooms:4} rooms of {IN_ROOM}: agent {ms:6.1f} ms/s of a core, {count / took:6.0f} RTCP/s sent, {got / took:6.0f} taken (sender {late * 1000:.0f} ms late), "
            f"{rows} rows, {memory} MiB, {joins:.0f} joins/s",
            flush=True,
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rooms", default="25,100,250", help="numbers of rooms, one after the other; empty: none")
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--layers", default="vp8", choices=("vp8", "none"), help="how video tells its layers")
    chosen = options.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for rooms in map(int, filter(None, chosen.rooms.split(","))):
        measure(rooms, chosen.seconds, chosen.layers)
    for who, late in zip(("shunt-agent", "a process that only sends"), reports(chosen.seconds)):
        print(
            f"one room of 50, {who}: {len(late)} copies of {int(chosen.seconds * 50)} sender reports, p50 {percentile(late, 50) * 1000:.2f} ms, "
            f"p99 {percentile(late, 99) * 1000:.2f} ms, at most {late[-1] * 1000:.1f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
