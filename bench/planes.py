"""Packets and bytes of a conference by type, and which plane handles each (Scallop, table 1).

Three people by ICE, each with sound and a layered picture, send what a browser sends: the RTP headers, sizes and pace of
Chromium's AV1 and Opus, its RTCP compounds and its connectivity checks (tests/vectors and constants below, from captures).
Chromium asked for nothing again on that network, so NACKs and PLIs come from a script. What reaches the edge host's own
network stack is seen there by a packet socket: that is the control plane's. All else that was sent went by the data plane alone.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for _folder in (".", "operator"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))

from aioice import stun

from bench import libbpf
from bench.rooms import CALLEE_IP, CALLER_IP, EDGE_IP, LabError, cpu_s, open_socket
from tests.tools.conference import descriptor, rtp
from tests.tools.conference.rtcp import Kind, Report, build_nack, build_pli, build_remb, build_rr, classify
from tests.conference_control.lab import Bridge

HEADERS = ROOT / "tests" / "vectors" / "conference" / "chromium_av1.txt"
EXTENSION = 12  # of the dependency descriptor, in these headers
AUDIO, VIDEO, STRUCTURE = "RTP, audio", "RTP, video", "RTP, video with a template structure"
REPORT, NOTHING_BUT_RR, ESTIMATE, NACK, PLI, CHECK, OTHER = "RTCP, SR and SDES", "RTCP, RR", "RTCP, RR and REMB", "RTCP, NACK", "RTCP, PLI", "STUN", "other"
TYPES = (AUDIO, VIDEO, STRUCTURE, REPORT, NOTHING_BUT_RR, ESTIMATE, NACK, PLI, CHECK, OTHER)
_AUDIO_TYPE = 111
_SOUND = (56, 58, 59, 59, 59, 59, 59, 59, 113, 111, 92, 78, 94, 90, 83, 80, 77, 71, 70, 63, 67, 65, 61, 65, 68, 102, 121, 138, 154, 168)  # bytes, 84 on the average
_SOUND_S = 0.02
_VIDEO_CLOCK = 90_000
# Seconds between a participant's packets of a kind. The first four as Chromium's, the last two by script.
_PACE = {REPORT: 1.65, ESTIMATE: 0.22, NOTHING_BUT_RR: 3.5, CHECK: 2.65, NACK: 2.0, PLI: 5.0}
_EXTENDED = struct.pack("!BBHIBBHII", 0x80, 207, 4, 1, 4, 0, 2, 0, 0)  # an XR with a receiver reference time, as Chromium's: 20 bytes
_PORT = 42_000
_UFRAG = "them"
_BIG = 8 << 20
_RCVBUFFORCE = 33
_COUNTERS_S = 6.0  # the agent reads counters every 5 s
_COUNTS = struct.Struct("<QQQ")


def type_of(payload: bytes) -> str:
    """What a UDP payload between a participant and the server is; one of TYPES."""
    if len(payload) >= 20 and payload[0] < 4:
        return CHECK
    if len(payload) < 8 or payload[0] >> 6 != 2:
        return OTHER
    try:
        if rtp.is_rtcp(payload):
            kinds = classify(payload)
            return next((name for kind, name in ((Kind.PLI, PLI), (Kind.NACK, NACK), (Kind.SR, REPORT), (Kind.REMB, ESTIMATE), (Kind.RR, NOTHING_BUT_RR)) if kinds & kind), OTHER)
        header = rtp.parse_header(payload)
        if payload[1] & 0x7F == _AUDIO_TYPE:
            return AUDIO
        element = rtp.find_element(payload, header, EXTENSION)
        return STRUCTURE if element is not None and descriptor.has_structure(element) else VIDEO
    except rtp.MediaError:
        return OTHER


class Tally:
    """Packets and bytes of UDP payload by type."""

    def __init__(self) -> None:
        self.counts = {kind: [0, 0] for kind in TYPES}

    def add(self, payload: bytes) -> None:
        one = self.counts[type_of(payload)]
        one[0] += 1
        one[1] += len(payload)


class Picture:
    """A browser's packets over and over, as (seconds from the first, packet): sequence, frame numbers and time go on."""

    def __init__(self, ssrc: int) -> None:
        lines = [line.split() for line in HEADERS.read_text().splitlines() if not line.startswith("#")]
        self._packets = [(bytes.fromhex(head), int(size)) for size, head in lines]
        self._ssrc = ssrc.to_bytes(4, "big")
        self._stamps = [int.from_bytes(head[4:8], "big") for head, _ in self._packets]
        self._where = [next(one.data for one in rtp.elements(head, rtp.parse_header(head)) if one.id == EXTENSION) for head, _ in self._packets]
        self._frames = [descriptor.parse_mandatory(head[where]).frame_number for (head, _), where in zip(self._packets, self._where)]
        frames = len(set(self._stamps))
        self._ticks = (self._stamps[-1] - self._stamps[0] & 0xFFFFFFFF) * frames // (frames - 1)  # of one turn, its last frame included

    def __iter__(self) -> Iterator[tuple[float, bytes]]:
        sequence = itertools.count()
        for turn in itertools.count():
            for (head, size), stamp, where, frame in zip(self._packets, self._stamps, self._where, self._frames):
                ticks = turn * self._ticks + (stamp - self._stamps[0] & 0xFFFFFFFF)
                made = bytearray(head)
                made[2:4] = (next(sequence) & 0xFFFF).to_bytes(2, "big")
                made[4:8] = (ticks & 0xFFFFFFFF).to_bytes(4, "big")
                made[8:12] = self._ssrc
                number = frame - self._frames[0] + turn * (self._frames[-1] - self._frames[0] + 1) & 0xFFFF
                made[where.start + 1 : where.start + 3] = number.to_bytes(2, "big")
                yield ticks / _VIDEO_CLOCK, bytes(made) + bytes(size)


def sound(ssrc: int) -> Iterator[tuple[float, bytes]]:
    """Opus as (seconds from the first, packet)."""
    for number in itertools.count():
        yield number * _SOUND_S, struct.pack("!BBHII", 0x80, _AUDIO_TYPE, number & 0xFFFF, number * 960 & 0xFFFFFFFF, ssrc) + bytes(_SOUND[number % len(_SOUND)] - 12)


class Browser:
    """A participant: a socket for each medium, what it sends when, and a count of what comes."""

    def __init__(self, bridge: Bridge, number: int, sent: Tally, got: Tally) -> None:
        self.name, self._sent, self._got = f"browser{number}", sent, got
        self.ssrcs = {"audio": 0x5EED1000 + 2 * number, "video": 0x5EED1001 + 2 * number}
        answer = bridge.ask("POST", f"/v1/conferences/room/participants?name={self.name}&media=audio,video&ice=yes&layers=video=dependency-descriptor:{EXTENSION}")
        self._ice = answer["ice"]
        self.sockets: dict[str, socket.socket] = {}
        self._relays: dict[str, tuple[str, int]] = {}
        host, address = (("caller", CALLER_IP), ("callee", CALLEE_IP))[number % 2]
        for leg in answer["media"]:
            made = self.sockets[leg["medium"]] = open_socket(bridge.topology, host, socket.AF_INET, socket.SOCK_DGRAM)
            made.bind((address, _PORT + 2 * number + (leg["medium"] == "video")))
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, _BIG)
            ip, _, port = leg["relay"].rpartition(":")
            self._relays[leg["medium"]] = ip, int(port)
        self.heard: dict[int, int] = {}  # the last sequence number of each SSRC

    def send(self, kind: str, payload: bytes) -> None:
        self._sent.add(payload)
        self.sockets[kind].sendto(payload, self._relays[kind])

    def receive(self, kind: str) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self.sockets[kind].recv(2048)
                self._got.add(data)
                if data[0] >> 6 == 2 and not rtp.is_rtcp(data):
                    self.heard[int.from_bytes(data[8:12], "big")] = int.from_bytes(data[2:4], "big")

    def check(self, kind: str) -> None:
        """A connectivity check with a nomination."""
        request = stun.Message(stun.Method.BINDING, stun.Class.REQUEST, attributes={"USERNAME": f"{self._ice['ufrag']}:{_UFRAG}", "PRIORITY": 1, "ICE-CONTROLLING": 1, "USE-CANDIDATE": None})
        request.add_message_integrity(self._ice["pwd"].encode())
        self.send(kind, bytes(request))

    def report(self, kind: str, now: float) -> None:
        """SR, SDES and XR, with nothing about others."""
        ssrc, clock = self.ssrcs[kind], time.time() + 2_208_988_800
        sender = struct.pack("!BBHIIIIII", 0x80, 200, 6, ssrc, int(clock), int(clock % 1 * 2**32), int(now * _VIDEO_CLOCK) & 0xFFFFFFFF, 1, 1)
        name = struct.pack("!BBHIBB", 0x81, 202, 6, ssrc, 1, 16) + b"0123456789abcdef" + bytes(2)
        self.send(kind, sender + name + _EXTENDED)

    def estimate(self, others: list[Browser]) -> None:
        """RR, REMB and XR about all pictures it gets."""
        ssrcs = [other.ssrcs["video"] for other in others]
        blocks = [Report(ssrc, 0, 0, self.heard.get(ssrc, 0), 0, 0, 0) for ssrc in ssrcs]
        self.send("video", build_rr(self.ssrcs["video"], blocks) + build_remb(self.ssrcs["video"], 10_000_000, ssrcs) + _EXTENDED)

    def close(self) -> None:
        for made in self.sockets.values():
            made.close()


class Host:
    """What reaches the edge host's own stack from its participants."""

    def __init__(self, bridge: Bridge) -> None:
        self.tally = Tally()
        self._socket = open_socket(bridge.topology, "edge", socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
        self._socket.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, _BIG)
        self._socket.settimeout(0.05)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        here = socket.inet_aton(EDGE_IP)
        while True:
            try:
                data, source = self._socket.recvfrom(2048)
            except TimeoutError:
                if self._over.is_set():
                    return
                continue
            start = 4 * (data[0] & 15)
            if source[2] == socket.PACKET_HOST and data[9] == socket.IPPROTO_UDP and data[16:20] == here:
                self.tally.add(data[start + 8 : start + int.from_bytes(data[start + 4 : start + 6], "big")])

    def close(self) -> int:
        """How many packets it was too slow for."""
        self._over.set()
        self._thread.join()
        _, dropped = struct.unpack("II", self._socket.getsockopt(263, 6, 8))  # SOL_PACKET, PACKET_STATISTICS
        self._socket.close()
        return dropped


def _schedule(browsers: list[Browser]) -> list[tuple[float, int, Callable[[float], float]]]:
    """(When, number, what to do), what is done returning when it is due again, in seconds from the start."""
    order = itertools.count()
    found: list[tuple[float, int, Callable[[float], float]]] = []

    def stream(browser: Browser, kind: str, packets: Iterator[tuple[float, bytes]], offset: float) -> None:
        waiting = [next(packets)]

        def go(due: float) -> float:
            browser.send(kind, waiting[0][1])
            waiting[0] = next(packets)
            return waiting[0][0] + offset

        found.append((offset, next(order), go))

    def repeat(first: float, every: float, work: Callable[[], None]) -> None:
        def go(due: float) -> float:
            work()
            return due + every

        found.append((first, next(order), go))

    for number, one in enumerate(browsers):
        others = [other for other in browsers if other is not one]
        shift = number / len(browsers)
        stream(one, "audio", sound(one.ssrcs["audio"]), 0.5 + shift * _SOUND_S)
        stream(one, "video", iter(Picture(one.ssrcs["video"])), 0.5 + shift / 30)
        for kind in ("audio", "video"):
            repeat(shift * 0.1, _PACE[CHECK], lambda one=one, kind=kind: one.check(kind))
            repeat(0.7 + shift, _PACE[REPORT], lambda one=one, kind=kind: one.report(kind, time.monotonic()))
        repeat(1.0 + shift * _PACE[ESTIMATE], _PACE[ESTIMATE], lambda one=one, others=others: one.estimate(others))
        repeat(1.2 + shift, _PACE[NOTHING_BUT_RR], lambda one=one, others=others: one.send("audio", build_rr(1, [Report(o.ssrcs["audio"], 0, 0, 0, 0, 0, 0) for o in others]) + _EXTENDED))
        victims = itertools.cycle([other.ssrcs["video"] for other in others])
        repeat(1.5 + shift, _PACE[NACK], lambda one=one, victims=victims: one.send("video", build_nack(1, ssrc := next(victims), [one.heard.get(ssrc, 0)])))
        repeat(2.0 + shift, _PACE[PLI], lambda one=one, victims=victims: one.send("video", build_pli(1, next(victims))))
    return found


def measure(bridge: Bridge, people: int, seconds: float) -> dict[str, Any]:
    """One conference from the first check to the last packet: by type, what was sent to the server, what its host's stack saw of it, what participants got.

    Raises LabError when not all get all.
    """
    bridge.ask("POST", "/v1/conferences?name=room")
    bridge.await_ready()
    sent, got, host = Tally(), Tally(), Host(bridge)
    counts = libbpf.get(bridge.pin_dir / "c_agent_counts")
    browsers: list[Browser] = []
    poll, by_fd = select.epoll(), {}
    try:
        for number in range(people):
            browsers.append(Browser(bridge, number, sent, got))
            for kind, made in browsers[-1].sockets.items():
                poll.register(made, select.EPOLLIN)
                by_fd[made.fileno()] = browsers[-1], kind
        copied, before = _copied(counts), cpu_s([bridge.agent.pid])
        begun, queue = time.monotonic(), _schedule(browsers)
        heapq.heapify(queue)
        while (now := time.monotonic() - begun) < seconds:
            while queue[0][0] <= now:
                due, order, work = queue[0]
                heapq.heapreplace(queue, (work(due), order, work))
            for fd, _ in poll.poll(max(0.0, queue[0][0] - (time.monotonic() - begun))):
                browser, kind = by_fd[fd]
                browser.receive(kind)
        cpu = cpu_s([bridge.agent.pid]) - before
        time.sleep(0.3)
        for browser, kind in by_fd.values():
            browser.receive(kind)
        missing = [(one.name, f"{ssrc:08x}") for one in browsers for other in browsers if other is not one for ssrc in other.ssrcs.values() if ssrc not in one.heard]
        if missing:
            raise LabError(f"not heard: {missing}\n{bridge.agent.tail()}")
        copied = _copied(counts) - copied
        before_that: dict[str, int] = {}
        counted = _counted(bridge)
        while counted != before_that:
            time.sleep(_COUNTERS_S)
            before_that, counted = counted, _counted(bridge)
    finally:
        missed = host.close()
        poll.close()
        os.close(counts)
        for browser in browsers:
            browser.close()
        bridge.ask("DELETE", "/v1/conferences/room")
    return {
        "people": people,
        "seconds": seconds,
        "sent": sent.counts,
        "host": host.tally.counts,
        "got": got.counts,
        "copied_to_agent": copied,
        "counted": counted,
        "not_seen": missed,
        "agent_cpu_s": round(cpu, 3),
    }


def _counted(bridge: Bridge) -> dict[str, int]:
    """Packets of each medium, as the agent has read them of the data plane's counters."""
    counted: dict[str, int] = {}
    for leg in (leg for one in bridge.conference()["participants"] for leg in one["media"]):
        counted[leg["medium"]] = counted.get(leg["medium"], 0) + leg["packets"]
    return counted


def _copied(counts: int) -> int:
    """Packets that the data plane has copied to the agent so far."""
    return sum(_COUNTS.unpack(value)[0] for value in libbpf.per_cpu(counts, 0, _COUNTS.size))


def split(step: dict[str, Any]) -> dict[str, Any]:
    """Each type's packets and bytes, sent to the server, by the data plane and to the control plane, and the shares of the whole.

    A packet with a template structure goes on in the data plane and is the control plane's as well; it counts as the latter's, as
    in the published table. What the host saw beyond what was sent would be an error of measuring: raises LabError.
    """
    rows, control = [], [0, 0]
    for kind in TYPES:
        there, up = step["sent"][kind], step["host"][kind]
        if up[0] > there[0]:
            raise LabError(f"{kind}: {up[0]} packets reached the host, {there[0]} were sent")
        agent = there if kind == STRUCTURE else up
        rows.append({"type": kind, "sent": there, "data_plane": [there[0] - up[0], there[1] - up[1]], "control_plane": list(agent), "received": step["got"][kind]})
        control = [control[0] + agent[0], control[1] + agent[1]]
    total = [sum(row["sent"][place] for row in rows) for place in (0, 1)]
    return {
        "rows": rows, "total": total, "control": control, "packets_by_data_plane": 1 - control[0] / total[0], "bytes_by_data_plane": 1 - control[1] / total[1],
        "copied_to_agent": step["copied_to_agent"], "counted": step["counted"], "agent_cpu_share": step["agent_cpu_s"] / step["seconds"],
    }  # fmt: skip
