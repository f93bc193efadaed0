"""Delay of a conference by its number of receivers, with one and with two streams: the softswitch, and a server in user space.

Run as root: python -m bench.conference [--profile short|full|smoke]. Writes build/bench/conference/PROFILE/results.json and raw/.

One sender, and so many receivers behind one interface; the same packets through both in turns, joined by the same requests.
A packet carries the time just before it is sent, and the kernel stamps each copy as it arrives at a receiver: what waits
in a receiver's socket is in no figure. The sender and the receivers share the machine's cores with what is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for _folder in (".", "agent", "softswitch"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))

from bench.runs import Run, spread  # noqa: E402
from bench.sfu import BINARY  # noqa: E402
from tests.conference_control.lab import Bridge  # noqa: E402
from tests.lab.processes import API_PORT, Process, open_socket  # noqa: E402
from tests.lab.topology import CALLEE_IP, CALLER_IP, EDGE_IP, LabError, Topology  # noqa: E402

SOURCE = ROOT / "bench" / "sfu.c"
PROFILES = {"smoke": ((1, 3), 0.5, 1), "short": ((1, 5, 10, 25, 50), 2.0, 2), "full": ((1, 2, 3, 5, 10, 15, 20, 25, 30, 40, 50), 5.0, 5)}
STREAMS = {"one stream": ("audio",), "two streams": ("audio", "video")}
RATES = {"audio": (50, 160), "video": (100, 1100)}  # packets/s, bytes of payload
SYSTEMS = ("softswitch", "user space")
_TIMESTAMPNS = 35
_FIRST_PORT = 40_000
_COPIES = 10_000  # everybody who is heard is a sender too: 51 to each other, two streams each, are 5,100
_JOINING_S = 90.0
_BUFFER = 8 << 20
_RCVBUFFORCE = 33
_BUSY = 0.1


def build() -> None:
    """Compile the server's media part, unless it is newer than its source. Raises LabError with the compiler's words."""
    if not BINARY.exists() or BINARY.stat().st_mtime < SOURCE.stat().st_mtime:
        BINARY.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([shutil.which("clang") or "cc", "-O2", "-Wall", "-Wextra", "-o", str(BINARY), str(SOURCE)], capture_output=True, text=True)
        if done.returncode:
            raise LabError(f"{SOURCE.name}: {done.stderr}")


class UserSpace(Bridge):
    """The server in user space where otherwise agent and softswitch are."""

    def __init__(self, topology: Topology, work: Path) -> None:
        super().__init__(topology, work)
        argv = [sys.executable, "-m", "bench.sfu", "--address", EDGE_IP, "--api", f"127.0.0.1:{API_PORT}"]
        self.server = Process(topology, "edge", "sfu", argv, work / "sfu.log", {"PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}"})

    def start(self) -> None:
        self.server.start().await_listening("tcp", API_PORT, 30)

    def stop(self) -> None:
        self.server.stop()


@contextlib.contextmanager
def running(system: str) -> Iterator[Bridge]:
    """One of the systems, started in namespaces of its own."""
    with tempfile.TemporaryDirectory() as work, Topology("cbench") as topology:
        made = (UserSpace if system == "user space" else Bridge)(topology, Path(work))
        made.settings["softswitch"]["conference_copies"] = _COPIES
        try:
            made.start()
            yield made
        finally:
            made.stop()


class Ear:
    """The sockets of all receivers, and when each packet of the sender arrived at which."""

    def __init__(self, ssrcs: dict[int, str]) -> None:
        self.arrivals: dict[str, list[tuple[int, int, int]]] = {kind: [] for kind in ssrcs.values()}  # (receiver, number, ns on the way)
        self.heard: set[tuple[int, str]] = set()
        self._ssrcs = ssrcs
        self._poll = select.epoll()
        self._sockets: dict[int, tuple[socket.socket, int]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def add(self, sock: socket.socket, receiver: int) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
        sock.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, _BUFFER)
        self._sockets[sock.fileno()] = sock, receiver
        self._poll.register(sock, select.EPOLLIN)

    def forget(self) -> None:
        """What has arrived so far is not measured."""
        for kind in self.arrivals:
            self.arrivals[kind] = []

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._poll.close()
        for sock, _ in self._sockets.values():
            sock.close()

    def _listen(self) -> None:
        while not self._over.is_set():
            for fd, _ in self._poll.poll(0.05):
                sock, receiver = self._sockets[fd]
                with contextlib.suppress(BlockingIOError):
                    while True:
                        data, ancillary, _, _ = sock.recvmsg(2048, 64)
                        number, ssrc = struct.unpack_from("!H", data, 2)[0], int.from_bytes(data[8:12], "big")
                        kind = self._ssrcs.get(ssrc)
                        if kind is not None:
                            seconds, rest = struct.unpack("qq", ancillary[0][2])
                            self.arrivals[kind].append((receiver, number, seconds * 10**9 + rest - int.from_bytes(data[12:20], "big")))
                            self.heard.add((receiver, kind))


class Voice:
    """The sender: packets of each stream by the clock."""

    def __init__(self, streams: dict[str, tuple[socket.socket, tuple[str, int], int]]) -> None:
        """streams: medium -> (socket, relay address, SSRC)."""
        self._streams = streams
        self._numbers = dict.fromkeys(streams, 0)

    def talk(self, seconds: float) -> dict[str, list[int]]:
        """Send for so long; the numbers of the packets of each stream."""
        due = {kind: time.monotonic() for kind in self._streams}
        over, sent = time.monotonic() + seconds, {kind: [] for kind in self._streams}
        while (now := time.monotonic()) < over:
            for kind, (sock, relay, ssrc) in self._streams.items():
                rate, size = RATES[kind]
                if due[kind] <= now:
                    due[kind] += 1 / rate
                    number = self._numbers[kind] = (self._numbers[kind] + 1) & 0xFFFF
                    sent[kind].append(number)
                    sock.sendto(struct.pack("!BBHIIQ", 0x80, 96, number, number * 160, ssrc, time.clock_gettime_ns(time.CLOCK_REALTIME)) + bytes(size - 8), relay)
            time.sleep(max(0.0, min(due.values()) - time.monotonic()))
        return sent


def _place(relay: str) -> tuple[str, int]:
    host, _, port = relay.rpartition(":")
    return host, int(port)


def measure(bridge: Bridge, receivers: int, kinds: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """One conference of a sender and so many receivers."""
    bridge.ask("POST", "/v1/conferences?name=room")
    if not isinstance(bridge, UserSpace):
        bridge.await_ready()
    port = _FIRST_PORT

    def join(host: str, name: str, address: str) -> dict[str, tuple[socket.socket, tuple[str, int]]]:
        nonlocal port
        query = f"name={name}&media={','.join(kinds)}" + ("" if isinstance(bridge, UserSpace) else f"&trusted={address}")
        found = {}
        for leg in bridge.ask("POST", f"/v1/conferences/room/participants?{query}")["media"]:
            sock = open_socket(bridge.topology, host, socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind((address, port))
            port += 1
            found[leg["medium"]] = sock, _place(leg["relay"])
        return found

    ssrcs = {kind: 0x5EED0000 + index for index, kind in enumerate(kinds)}
    ear = Ear({ssrc: kind for kind, ssrc in ssrcs.items()})
    mouths = join("caller", "sender", CALLER_IP)
    try:
        ears = [join("callee", f"receiver{number}", CALLEE_IP) for number in range(receivers)]
        for number, those in enumerate(ears):
            for sock, _ in those.values():
                ear.add(sock, number)
        voice = Voice({kind: (sock, relay, ssrcs[kind]) for kind, (sock, relay) in mouths.items()})
        deadline = time.monotonic() + _JOINING_S
        while len(ear.heard) < receivers * len(kinds):
            if time.monotonic() > deadline:
                raise LabError(f"only {len(ear.heard)} of {receivers * len(kinds)} copies arrive")
            for number, those in enumerate(ears):
                for kind, (sock, relay) in those.items():
                    if (number, kind) not in ear.heard:
                        sock.sendto(struct.pack("!BBHII", 0x80, 96, 1, 1, 0x1000 + number * 4 + len(kind)) + bytes(20), relay)
            voice.talk(0.1)
        voice.talk(0.3)
        time.sleep(0.1)
        ear.forget()
        sent = voice.talk(seconds)
        time.sleep(0.2)
        return {"receivers": receivers, "sent": {kind: len(those) for kind, those in sent.items()}, "arrivals": {kind: ear.arrivals[kind] for kind in kinds}}
    finally:
        ear.close()
        for sock, _ in mouths.values():
            sock.close()
        bridge.ask("DELETE", "/v1/conferences/room")


def figures(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """What repetitions of a step say: the quantiles of each copy's delay and of the last copy's, microseconds, and what was lost."""
    quantiles: dict[str, list[float]] = {"median": [], "p95": [], "p99": [], "last copy, median": []}
    lost = doubled = due = 0
    for step in steps:
        delays, last = [], {}
        for kind, arrivals in step["arrivals"].items():
            due += step["sent"][kind] * step["receivers"]
            copies = {(receiver, number) for receiver, number, _ in arrivals}
            lost += step["sent"][kind] * step["receivers"] - len(copies)
            doubled += len(arrivals) - len(copies)
            for _, number, delay in arrivals:
                delays.append(delay / 1000)
                last[kind, number] = max(last.get((kind, number), 0.0), delay / 1000)
        for name, values, share in (("median", delays, 0.5), ("p95", delays, 0.95), ("p99", delays, 0.99), ("last copy, median", list(last.values()), 0.5)):
            quantiles[name].append(sorted(values)[int(share * (len(values) - 1))])
    return {"us": {name: spread(values) for name, values in quantiles.items()}, "copies": due, "lost": lost, "doubled": doubled}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", choices=PROFILES, default="short")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    arguments = parser.parse_args()
    counts, seconds, repetitions = PROFILES[arguments.profile]
    build()
    run = Run("conference", arguments.profile, {}, fresh=arguments.fresh)
    run.plan(len(counts) * len(STREAMS) * len(SYSTEMS) * repetitions)
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for repetition in range(repetitions):
        for system in SYSTEMS:
            with running(system) as bridge:
                for name, kinds in STREAMS.items():
                    for count in counts:
                        key = f"{repetition}/{system}/{name}/{count:02}".replace(" ", "-")
                        found.setdefault((system, name, count), []).append(run.step(key, lambda: measure(bridge, count, kinds, seconds)))
    table = [{"streams": name, "receivers": count, **{system: figures(found[system, name, count]) for system in SYSTEMS}} for name in STREAMS for count in counts]
    for row in table:
        ours, theirs = (row[system]["us"] for system in SYSTEMS)
        row["ratio"] = {name: spread([b / a for a, b in zip(ours[name]["values"], theirs[name]["values"])]) for name in ours}
    remarks = []
    if run.facts["busy_before"] > _BUSY:
        remarks.append(f"{run.facts['busy_before']:.0%} of the cores' time was already used when the run began: the figures are not to be quoted")
    path = run.results({"remarks": remarks, "table": table})
    for name in STREAMS:
        print(f"{name}: delay of a copy in us (median, p99, and until the last copy is there); softswitch, user space, ratio of medians (least to most)")
        for row in (row for row in table if row["streams"] == name):
            ours, theirs = (row[system]["us"] for system in SYSTEMS)
            words = "  ".join("{:7.0f} {:7.0f} {:7.0f}".format(*(part[quantile]["median"] for quantile in ("median", "p99", "last copy, median"))) for part in (ours, theirs))
            ratio, lost = row["ratio"]["median"], [f"{row[system]['lost']} of {row[system]['copies']}" for system in SYSTEMS]
            print(f"  {row['receivers']:>3} receivers {words}   {ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f})   lost {lost[0]}, {lost[1]}")
    for remark in remarks:
        print(remark)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
