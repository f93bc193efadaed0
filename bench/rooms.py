"""Conferences for benches: the systems that carry them, people who join, and what of their packets arrived when.

Three systems: the softswitch with its agent, a plain server in user space (sfu.c), and Janus where it is installed. All run on
the edge host of the lab's network, senders on one side, receivers on the other, behind one interface each. phones.c sends and receives.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
for _folder in (".", "operator"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))

import numpy as np

from bench.control import process_cpu_s
from bench.janus import Janus
from bench.load import FIRST, give_precedence
from bench.runs import OUTPUT, spread
from bench.sfu import BINARY as SFU
from bench.sfu import KINDS
from tests.conference_control.lab import Bridge
from tests.lab.processes import API_PORT, Process, open_socket
from tests.lab.topology import CALLEE_IP, CALLER_IP, EDGE_IP, LabError, Topology

PHONES = OUTPUT / "phones"
HOSTS = {"caller": CALLER_IP, "callee": CALLEE_IP}
PAYLOAD_TYPE = {"audio": 111, "video": 96}
_FIRST_PORT = 40_000
_COPIES = 10_000  # everybody who is heard is a sender too: 51 to each other, two streams each, are 5,100
_TALKS = 60
_TALK_MS = 200
_RECORD = np.dtype([("leg", "<u2"), ("stream", "<u2"), ("number", "<u4"), ("ns", "<i8")])


def build(binary: Path, source: Path) -> None:
    """Compile a program of the bench, unless it is newer than its source. Raises LabError with the compiler's words."""
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        binary.parent.mkdir(parents=True, exist_ok=True)
        made = binary.with_suffix(f".{os.getpid()}")  # another process may do the same
        done = subprocess.run([shutil.which("clang") or "cc", "-O2", "-Wall", "-Wextra", "-pthread", "-o", str(made), str(source)], capture_output=True, text=True)
        if done.returncode:
            raise LabError(f"{source.name}: {done.stderr}")
        made.replace(binary)


def build_all() -> None:
    build(SFU, ROOT / "bench" / "sfu.c")
    build(PHONES, ROOT / "bench" / "phones.c")


class Stream(NamedTuple):
    """What is sent: packets/s (0: nothing, beyond being heard once), bytes of payload."""

    rate: float
    size: int


@dataclass(frozen=True, slots=True)
class Person:
    """Who takes part: what it sends, and which media it takes of others (empty: all that the conference has)."""

    name: str
    host: str
    sends: dict[str, Stream]
    takes: tuple[str, ...] = ()

    def hears(self, other: Person, kind: str) -> bool:
        return self is not other and (not self.takes or kind in self.takes)


@dataclass(slots=True)
class Seats:
    """Where people are: the sockets that each has, and where each of its media goes to."""

    legs: list[tuple[int, socket.socket]] = field(default_factory=list)  # person, socket
    mouths: list[tuple[int, str, int, tuple[str, int]]] = field(default_factory=list)  # person, medium, leg, address

    def close(self) -> None:
        for _, made in self.legs:
            made.close()


class System(ABC):
    """What carries conferences. One at a time: admit, then part."""

    title: str

    def __init__(self, topology: Topology, work: Path) -> None:
        self.topology, self.work = topology, work
        self._ports = iter(range(_FIRST_PORT, 65_000))

    @staticmethod
    def missing() -> str:
        """What has to be installed before it can run; empty when nothing."""
        return ""

    @staticmethod
    def version() -> str:
        return ""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """Leave nothing behind, whatever has happened."""

    @abstractmethod
    def admit(self, people: Sequence[Person]) -> Seats:
        """Begin a conference of these people."""

    @abstractmethod
    def part(self) -> None:
        """End the conference."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes that media passes through."""
        return ()

    def open(self, host: str) -> socket.socket:
        """A socket on one of the lab's hosts, at a port of its own."""
        made = open_socket(self.topology, host, socket.AF_INET, socket.SOCK_DGRAM)
        made.bind((HOSTS[host], next(self._ports)))
        return made


class _Rest(System):
    """A system with the REST interface of Shunt's conferences."""

    bridge: Bridge

    def _await_ready(self) -> None:
        """Wait until people can join."""

    def _join(self, person: Person, media: Sequence[str]) -> list[dict[str, str]]:
        return self.bridge.ask("POST", f"/v1/conferences/room/participants?name={person.name}&media={','.join(media)}&trusted={HOSTS[person.host]}")["media"]

    def admit(self, people: Sequence[Person]) -> Seats:
        self.bridge.ask("POST", "/v1/conferences?name=room")
        self._await_ready()
        media = [kind for kind in KINDS if any(kind in person.sends for person in people)]
        seats = Seats()
        for number, person in enumerate(people):
            for leg in self._join(person, media):
                host, _, port = leg["relay"].rpartition(":")
                seats.mouths.append((number, leg["medium"], len(seats.legs), (host, int(port))))
                seats.legs.append((number, self.open(person.host)))
        for receiver in people:
            if receiver.takes:
                for sender in people:
                    if sender is not receiver:
                        self.bridge.ask("POST", f"/v1/conferences/room/quality?sender={sender.name}&receiver={receiver.name}&quality={receiver.takes[-1]}")
        return seats

    def part(self) -> None:
        self.bridge.ask("DELETE", "/v1/conferences/room")

    def stop(self) -> None:
        self.bridge.stop()


class Softswitch(_Rest):
    title = "softswitch"

    def start(self) -> None:
        self.bridge = Bridge(self.topology, self.work)
        self.bridge.settings["softswitch"]["conference_copies"] = _COPIES
        self.bridge.start()

    def _await_ready(self) -> None:
        self.bridge.await_ready(30.0)


class UserSpace(_Rest):
    title = "user space"

    def start(self) -> None:
        self.bridge = Bridge(self.topology, self.work)
        argv = [sys.executable, "-m", "bench.sfu", "--address", EDGE_IP, "--api", f"127.0.0.1:{API_PORT}"]
        self.bridge.agent = Process(self.topology, "edge", "sfu", argv, self.work / "sfu.log", {"PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"})
        self.bridge.agent.start().await_listening("tcp", API_PORT, 30)

    def stop(self) -> None:
        self.bridge.agent.stop()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process that carries media, which the one with the interface has started."""
        pid = self.bridge.agent.pid
        return tuple(int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


class JanusRoom(System):
    """Janus's video room, its encryption off: each person sends on one connection and receives on another."""

    title = "Janus"

    def __init__(self, topology: Topology, work: Path) -> None:
        super().__init__(topology, work)
        self._janus = Janus(topology, work)

    @staticmethod
    def missing() -> str:
        return Janus.missing()

    @staticmethod
    def version() -> str:
        return Janus.version()

    def start(self) -> None:
        self._janus.start()

    def stop(self) -> None:
        self._janus.stop()

    @property
    def pids(self) -> tuple[int, ...]:
        return (self._janus.process.pid,)

    def admit(self, people: Sequence[Person]) -> Seats:
        self._janus.create()
        seats, mids = Seats(), {}
        for number, person in enumerate(people):
            kinds = [kind for kind, stream in person.sends.items() if stream.rate]
            if kinds:
                made = self.open(person.host)
                relay = self._janus.publish(number + 1, made, [(kind, ssrc_of(number, kind), PAYLOAD_TYPE[kind]) for kind in kinds])
                mids[number] = {kind: str(at) for at, kind in enumerate(kinds)}
                seats.mouths += [(number, kind, len(seats.legs), relay) for kind in kinds]
                seats.legs.append((number, made))
        for number, person in enumerate(people):
            wanted = [(other + 1, mid) for other, of in mids.items() for kind, mid in of.items() if person.hears(people[other], kind)]
            if wanted:
                made = self.open(person.host)
                self._janus.subscribe(made, wanted)
                seats.legs.append((number, made))
        return seats

    def part(self) -> None:
        self._janus.destroy()


SYSTEMS: dict[str, type[System]] = {system.title: system for system in (Softswitch, UserSpace, JanusRoom)}


def ssrc_of(person: int, kind: str) -> int:
    return 0x5EED0000 + 16 * person + KINDS.index(kind)


@contextlib.contextmanager
def running(title: str) -> Iterator[System]:
    """One of the systems, started in namespaces of its own."""
    with tempfile.TemporaryDirectory() as work, Topology("cbench") as topology:
        made = SYSTEMS[title](topology, Path(work))
        try:
            made.start()
            for pid in made.pids:
                _prefer(pid)
            yield made
        finally:
            made.stop()


def _prefer(pid: int) -> None:
    """Precedence over whatever else runs here: to the generator and to servers in user space alike."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(task.name), FIRST)
    give_precedence(pid)


class Phones:
    """The program that sends and receives on the sockets of people's seats."""

    def __init__(self, people: Sequence[Person], seats: Seats) -> None:
        self._process = subprocess.Popen([str(PHONES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, pass_fds=[made.fileno() for _, made in seats.legs], start_new_session=True)
        self.streams: list[tuple[int, str]] = []
        try:
            _prefer(self._process.pid)
            for _, made in seats.legs:
                self._ask(f"leg {made.fileno()}", "ok")
            for person, kind, leg, (ip, port) in seats.mouths:
                rate, size = people[person].sends.get(kind, Stream(0, 16))
                self._ask(f"stream {leg} {ssrc_of(person, kind)} {PAYLOAD_TYPE[kind]} {rate} {size} {ip} {port}", "ok")
                self.streams.append((person, kind))
        except BaseException:
            self.close()
            raise

    def _ask(self, line: str, wanted: str) -> list[str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        words = self._process.stdout.readline().split()
        if words[:1] != [wanted]:
            raise LabError(f"phones: {line}: {' '.join(words) or 'nothing'}")
        return words[1:]

    def talk(self, ms: int) -> int:
        """All speak for a moment; how many pairs of a stream and a leg have been connected so far."""
        return int(self._ask(f"talk {ms}", "pairs")[0])

    def measure(self, ms: int) -> tuple[dict[str, Any], np.ndarray]:
        """What was sent, and what arrived."""
        with tempfile.NamedTemporaryFile() as file:
            skipped, late, seconds, other, *sent = self._ask(f"measure {ms} {file.name}", "measured")
            records = np.fromfile(file.name, _RECORD)
        return {"skipped": int(skipped), "late_us": int(late), "seconds": float(seconds), "other": int(other), "sent": list(map(int, sent))}, records

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def cpu_s(pids: Sequence[int]) -> float:
    """Processor seconds of processes so far, all their threads."""
    return sum(map(process_cpu_s, pids))


def measure(system: System, people: Sequence[Person], ms: int) -> dict[str, Any]:
    """One conference: what its senders sent, and each copy's receiver, stream, number and delay. Raises LabError when not all hear each other."""
    seats = system.admit(people)
    try:
        phones = Phones(people, seats)
        try:
            pairs = sum(bool(stream.rate) and other.hears(person, kind) for person in people for kind, stream in person.sends.items() for other in people)
            for _ in range(_TALKS):
                if (heard := phones.talk(_TALK_MS)) >= pairs:
                    break
            else:
                raise LabError(f"{system.title}: only {heard} of {pairs} pairs hear each other")
            before = cpu_s(system.pids)
            told, records = phones.measure(ms)
            told["process_s"] = round(cpu_s(system.pids) - before, 6)
        finally:
            phones.close()
    finally:
        seats.close()
        system.part()
    sent = told.pop("sent")
    person_of = np.array([person for person, _ in seats.legs])
    return {
        **told, "people": len(people),
        "streams": [
            {"sender": person, "medium": kind, "sent": count, "receivers": sum(other.hears(people[person], kind) for other in people)}
            for (person, kind), count in zip(phones.streams, sent) if count
        ],
        "arrivals": {
            "receiver": person_of[records["leg"]].tolist(), "sender": [phones.streams[n][0] for n in records["stream"]], "medium": [phones.streams[n][1] for n in records["stream"]],
            "number": records["number"].tolist(), "us": [round(ns / 1000, 1) for ns in records["ns"].tolist()],
        },
    }  # fmt: skip


def delays(step: dict[str, Any]) -> dict[str, Any]:
    """What one step says, in µs: of all copies, and until the last copy of a packet is there; what was lost, came twice, or to whom it should not."""
    arrivals = step["arrivals"]
    seen: dict[tuple[int, str, int], dict[int, float]] = {}
    twice = 0
    for receiver, sender, kind, number, us in zip(*(arrivals[name] for name in ("receiver", "sender", "medium", "number", "us"))):
        copies = seen.setdefault((sender, kind, number), {})
        twice += receiver in copies
        copies.setdefault(receiver, us)
    due = sum(stream["sent"] * stream["receivers"] for stream in step["streams"])
    came = sum(map(len, seen.values()))
    every = sorted(us for copies in seen.values() for us in copies.values())
    last = sorted(max(copies.values()) for copies in seen.values())
    if not every:
        raise LabError("nothing arrived")
    return {
        "min": every[0], "avg": sum(every) / len(every), "max": every[-1], "p50": _quantile(every, 0.5), "p99": _quantile(every, 0.99), "last": _quantile(last, 0.5),
        "due": due, "lost": due - came, "twice": twice, "packets": sum(stream["sent"] for stream in step["streams"]), "late_us": step["late_us"], "skipped": step["skipped"],
        "process_ns_per_copy": 1e9 * step["process_s"] / came,
    }  # fmt: skip


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))]


def side_by_side(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Repetitions of one step by system: the spread of each figure, and of how many times the softswitch's the others' were in the same repetition."""
    by = {title: [delays(step) for step in steps] for title, steps in found.items()}
    ours = by[Softswitch.title]
    names = ("min", "avg", "max", "p50", "p99", "last")
    return {
        title: {
            **{name: spread([one[name] for one in each]) for name in (*names, "process_ns_per_copy")},
            **{name: sum(one[name] for one in each) for name in ("due", "lost", "twice", "packets", "skipped")},
            "late_us": max(one["late_us"] for one in each),
            "ratio": {name: spread([b[name] / a[name] for a, b in zip(ours, each)]) for name in names},
        }
        for title, each in by.items()
    }  # fmt: skip
