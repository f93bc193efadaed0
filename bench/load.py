"""The load generator: RTP streams sent by the clock from inside the kernel, every packet accounted for at the other end.

Two namespaces, joined by two veth pairs:

    phones: a0 198.18.1.2 ──── relay: a1 198.18.1.1, 198.18.0.1 on lo, b1 198.18.2.1 ──── phones: b0 198.18.2.2

A thread pinned to the machine's last core runs bench/loadgen.bpf.c's `generate` on live frames (as a network card's
driver would hand them up), and its `receive` sits on a0 and b0. Everything that the relay host does to a frame in the
kernel then happens in softirqs, whose time tracepoints measure, and in its processes, whose CPU clocks are read.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import secrets
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for folder in (".", "operator"):
    if str(ROOT / folder) not in sys.path:
        sys.path.insert(0, str(ROOT / folder))

import numpy as np

from bench import libbpf

OBJECT = ROOT / "build" / "bench" / "obj" / "loadgen.o"
RELAY_IP = "198.18.0.1"
PHONES = ("198.18.1.2", "198.18.2.2")
NEAR_IPS = ("198.18.1.1", "198.18.2.1")
FAR_LINKS, NEAR_LINKS = ("a0", "b0"), ("a1", "b1")  # the phones', the relay host's
STREAMS, BINS = 65536, 2048
FIRST_PHONE_PORT = 2000
PACKETS_PER_S = 50  # of a stream: G.711, 20 ms
RTP_BYTES = 172
FRAME_BYTES = 14 + 20 + 8 + RTP_BYTES
GRACE_NS = 5_000_000  # for what was due before a run's end and is not sent yet
LEAD_NS = 60_000_000  # before a run's first frame: the kernel waits for a grace period or two before it begins with live frames
ENDLESS = (1 << 32) - 1  # runs of the program, minutes of them
WAKE = signal.SIGUSR1  # ends a call that would go on; what its handler does is nothing
FIRST = -20  # nice value of the generator and of relays: what else runs on the machine comes after them
_CLONE_NEWNET = 0x40000000
_PR_SET_NAME = 15

STREAM = np.dtype(
    [("saddr", ">u4"), ("daddr", ">u4"), ("sport", ">u2"), ("dport", ">u2"), ("far_addr", ">u4"), ("far_port", ">u2"), ("side", "<u2")]
    + [("sum", "<u4"), ("seq", "<u4"), ("pad", "<u4"), ("sent", "<u8")]
)
RECEIVED = np.dtype(
    [(name, "<u8") for name in ("packets", "duplicates", "reordered", "stale", "misdelivered", "corrupt", "window", "delay_sum", "delay_max", "last_delay", "variation_sum")]
    + [("highest", "<u4"), ("started", "<u4")]
)
SETTINGS = struct.Struct("<QQQIIIIII16s16s")
PROGRESS = np.dtype([(name, "<u8") for name in ("due", "sent", "skipped", "late_sum", "late_max", "runs", "release")] + [("position", "<u4"), ("open", "<u4")])
SOFTIRQ = struct.Struct("<QQQQ")
_libc = ctypes.CDLL(None, use_errno=True)
_RTP = bytes([0x80, 8]) + bytes(22) + b"\xd5" * (RTP_BYTES - 24)  # header, clock and run are the generator's; A-law silence
TEMPLATE = (
    bytes(12) + b"\x08\x00" + struct.pack("!BBHHHBBH", 0x45, 0, 28 + RTP_BYTES, 0, 0x4000, 64, 17, 0) + bytes(8)
    + struct.pack("!HHHH", 0, 0, 8 + RTP_BYTES, 0) + _RTP
)  # fmt: skip


class LoadError(RuntimeError):
    """The load could not be made or measured; the text says what and where."""


@contextlib.contextmanager
def precedence() -> Iterator[None]:
    """A server's precedence over whatever else runs here, for the calling thread and its session; both have afterwards what they had before."""
    thread, session = os.getpriority(os.PRIO_PROCESS, 0), session_nice()
    os.setpriority(os.PRIO_PROCESS, 0, FIRST)
    give_precedence(os.getpid())
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, thread)
        _set_session_nice(os.getpid(), session)


def come_first() -> None:
    """The same until the process ends."""
    until_the_end = contextlib.ExitStack()
    until_the_end.enter_context(precedence())
    atexit.register(until_the_end.close)


def give_precedence(pid: int) -> None:
    """Precedence for all of a process's session, where the kernel schedules by sessions (and nice values count within one only)."""
    _set_session_nice(pid, FIRST)


def session_nice(group: Path = Path("/proc/self/autogroup")) -> int:
    """The nice value of this process's session; 0 where the kernel does not schedule it by sessions."""
    with contextlib.suppress(OSError):
        if told := group.read_text().split():  # empty for a process in a control group of its own
            return int(told[-1])
    return 0


def _set_session_nice(pid: int, nice: int) -> None:
    with contextlib.suppress(OSError):  # a kernel without automatic groups
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def command(*argv: str, stdin: str | None = None) -> str:
    """Run a command to its end and return its output. Raises LoadError with its words."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True)
    if done.returncode:
        raise LoadError(f"{' '.join(argv)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def enter(namespace: str) -> None:
    """Move the calling thread, and nothing else, into a network namespace. Raises OSError."""
    with open(f"/run/netns/{namespace}", "rb") as file:
        if _libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter namespace {namespace}")


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Work in a network namespace, and come back."""
    with open("/proc/thread-self/ns/net", "rb") as home:
        enter(namespace)
        try:
            yield
        finally:
            if _libc.setns(home.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "cannot return to the own namespace")


class Wires:
    """The two namespaces and what joins them. A context manager; nothing is left of it afterwards."""

    def __init__(self) -> None:
        self.prefix = f"shbench-{secrets.token_hex(3)}"
        self.phones, self.relay = f"{self.prefix}-phones", f"{self.prefix}-relay"
        self.macs: dict[str, bytes] = {}
        self.ifindex: dict[str, int] = {}

    def __enter__(self) -> Wires:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for name in (self.phones, self.relay):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def enter(self, namespace: str, *argv: str) -> list[str]:
        """The command line that runs argv in a namespace, with the same pid and mounts."""
        return ["nsenter", f"--net=/run/netns/{namespace}", "--", *argv]

    def run(self, namespace: str, *argv: str, stdin: str | None = None) -> str:
        return command(*self.enter(namespace, *argv), stdin=stdin)

    def _build(self) -> None:
        for name in (self.phones, self.relay):
            command("ip", "netns", "add", name)
        for far, near in zip(FAR_LINKS, NEAR_LINKS):
            command("ip", "link", "add", far, "netns", self.phones, "type", "veth", "peer", "name", near, "netns", self.relay)
        for namespace, links, addresses in ((self.phones, FAR_LINKS, PHONES), (self.relay, NEAR_LINKS, NEAR_IPS)):
            self.run(namespace, "ip", "link", "set", "lo", "up")
            for link, address in zip(links, addresses):
                # Neither end may talk on its own: neighbours are fixed, IPv6 is off.
                self.run(namespace, "sh", "-ec", f"echo 1 > /proc/sys/net/ipv6/conf/{link}/disable_ipv6")
                self.run(namespace, "ip", "link", "set", link, "up")
                self.run(namespace, "ip", "address", "add", f"{address}/24", "dev", link)
                self.run(namespace, "ethtool", "-K", link, "gro", "on")
                shown = json.loads(self.run(namespace, "ip", "-j", "link", "show", "dev", link))[0]
                self.macs[link] = bytes.fromhex(shown["address"].replace(":", ""))
                self.ifindex[link] = shown["ifindex"]
        for namespace, mine, theirs, addresses in ((self.relay, NEAR_LINKS, FAR_LINKS, PHONES), (self.phones, FAR_LINKS, NEAR_LINKS, NEAR_IPS)):
            for link, other, address in zip(mine, theirs, addresses):
                mac = ":".join(f"{byte:02x}" for byte in self.macs[other])
                self.run(namespace, "ip", "neigh", "replace", address, "lladdr", mac, "dev", link, "nud", "permanent")
        self.run(self.relay, "ip", "address", "add", f"{RELAY_IP}/32", "dev", "lo")
        self.run(self.relay, "sh", "-ec", "echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter; echo 0 > /proc/sys/net/ipv4/conf/default/rp_filter")

    def forwarding(self, on: bool) -> None:
        """Whether the relay host forwards IPv4."""
        self.run(self.relay, "sh", "-ec", f"echo {int(on)} > /proc/sys/net/ipv4/ip_forward")


@dataclass(slots=True)
class Sample:
    """Sums since the start of a run at one moment: seconds, frames sent, ns of processes and of softirqs."""

    at: float
    sent: int
    active: int
    process_ns: int
    softirq_ns: int
    softirq_in_process_ns: int


@dataclass(slots=True)
class Measured:
    """What one run of the generator found. Times are ns."""

    offered: int
    sent: int
    skipped: int
    received: int
    duplicates: int
    reordered: int
    stale: int
    misdelivered: int
    corrupt: int
    seconds: float
    process_ns: int
    softirq_ns: int
    softirq_in_process_ns: int
    softirqs: int
    late_mean: float
    late_max: int
    delay: np.ndarray
    variation: np.ndarray
    late: np.ndarray
    stream_sent: np.ndarray
    stream_received: np.ndarray
    stream_delay_mean: np.ndarray
    stream_variation_mean: np.ndarray
    samples: list[Sample] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return self.sent - self.received

    @property
    def kept_up(self) -> bool:
        """Whether the generator itself sent what it was asked to: within one in a thousand."""
        return self.sent >= 0.999 * self.offered

    @property
    def cpu_ns(self) -> int:
        """Of processes and of network softirqs; what interrupted a watched process is in both clocks, and counted once."""
        return self.process_ns + self.softirq_ns - self.softirq_in_process_ns

    def record(self) -> dict[str, Any]:
        """For JSON: histograms as their used bins, losses of each stream that lost something."""
        plain = {name: getattr(self, name) for name in ("offered", "sent", "skipped", "received", "duplicates", "reordered", "stale", "misdelivered", "corrupt")}
        plain |= {name: getattr(self, name) for name in ("seconds", "process_ns", "softirq_ns", "softirq_in_process_ns", "softirqs", "late_mean", "late_max")}
        plain |= {name: sparse(getattr(self, name)) for name in ("delay", "variation", "late")}
        lost = self.stream_sent.astype(np.int64) - self.stream_received.astype(np.int64)
        plain["streams"] = len(lost)
        plain["stream_lost"] = {str(n): [int(lost[n]), int(self.stream_sent[n])] for n in np.flatnonzero(lost)}
        plain["stream_delay_mean"] = [int(value) for value in self.stream_delay_mean]
        plain["stream_variation_mean"] = [int(value) for value in self.stream_variation_mean]
        plain["samples"] = [[s.at, s.sent, s.active, s.process_ns, s.softirq_ns, s.softirq_in_process_ns] for s in self.samples]
        return plain


def sparse(histogram: np.ndarray) -> dict[str, int]:
    """The bins that hold something, by number."""
    return {str(n): int(histogram[n]) for n in np.flatnonzero(histogram)}


def bin_edge(number: int) -> int:
    """The lower end of a histogram's bin in ns; as `put` in loadgen.bpf.c."""
    return number if number < 32 else (32 + number % 32) << (number // 32 - 1)


def later_than(histogram: dict[str, int], ns: int) -> int:
    """How many of a sparse histogram took at least so long, bins taken whole."""
    return sum(count for number, count in histogram.items() if bin_edge(int(number)) >= ns)


def quantile(histogram: dict[str, int], q: float) -> float:
    """The value in ns below which the part q of a sparse histogram lies: the middle of its bin. Raises LoadError when it is empty."""
    total = sum(histogram.values())
    if not total:
        raise LoadError("a histogram without a packet has no quantiles")
    seen, wanted = 0, q * total
    for number in sorted(map(int, histogram)):
        seen += histogram[str(number)]
        if seen >= wanted:
            break
    return (bin_edge(number) + bin_edge(number + 1)) / 2


class Load:
    """The generator and the receivers, loaded into the kernel. A context manager; use from one thread."""

    def __init__(self, wires: Wires) -> None:
        self.wires = wires
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            raise LoadError("the load generator needs a core of its own: this machine has only one")
        self.cpu, self.other_cpus = cpus[-1], cpus[:-1]
        self._loaded = libbpf.load_object(OBJECT, sizes={}, reuse={}, constants={}, symbols={})
        maps = self._loaded.maps
        self._streams = np.frombuffer(libbpf.map_view(maps["streams"], STREAMS * STREAM.itemsize), dtype=STREAM, count=STREAMS)
        self._received = np.frombuffer(libbpf.map_view(maps["receiveds"], STREAMS * RECEIVED.itemsize), dtype=RECEIVED, count=STREAMS)
        self._settings = libbpf.map_view(maps[".data.settings"], SETTINGS.size)
        self._progress = np.frombuffer(libbpf.map_view(maps[".data.progress"], PROGRESS.itemsize), dtype=PROGRESS, count=1)
        self._links: list[int] = []
        self._number = 0
        self._woken: Any = signal.SIG_DFL

    def __enter__(self) -> Load:
        self._woken = signal.signal(WAKE, lambda *_: None)
        try:
            self._listen(self.wires.phones, FAR_LINKS)
            for tracepoint, program in (("softirq_entry", "softirq_begins"), ("softirq_exit", "softirq_ends")):
                fd = libbpf.library().lib.bpf_raw_tracepoint_open(tracepoint.encode(), self._loaded.programs[program])
                if fd < 0:
                    raise LoadError(f"cannot attach to the tracepoint {tracepoint}: {os.strerror(-fd)}")
                self._links.append(fd)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for fd in self._links:
            os.close(fd)
        self._links = []
        self._loaded.close()
        signal.signal(WAKE, self._woken)

    @property
    def programs(self) -> dict[str, int]:
        return self._loaded.programs

    def _listen(self, namespace: str, links: tuple[str, ...]) -> list[int]:
        with inside(namespace):
            made = [libbpf.attach_xdp(self._loaded.programs["receive"], self.wires.ifindex[link], generic=False) for link in links]
        self._links += made
        return made

    @contextlib.contextmanager
    def direct(self) -> Iterator[None]:
        """Receivers at the relay host: each frame goes over one wire, and no relay is in its way."""
        made = self._listen(self.wires.relay, NEAR_LINKS)
        try:
            yield
        finally:
            for fd in made:
                self._links.remove(fd)
                os.close(fd)

    def route(self, ports: list[tuple[int, int]] | int) -> None:
        """Set the streams up, two to a call. ports: for each call where its caller and where its callee sends to on the relay; a number of calls: no relay.

        Caller n and callee n use port 2000 + 2n. Sequence numbers start anew. Raises LoadError when there are too many.
        """
        count = ports if isinstance(ports, int) else len(ports)
        if not 0 < 2 * count <= STREAMS or FIRST_PHONE_PORT + 2 * count > 65535:
            raise LoadError(f"{count} calls are more than the generator has streams or ports for")
        n = np.arange(count)
        phones = [int.from_bytes(bytes(map(int, phone.split("."))), "big") for phone in PHONES]
        relay = int.from_bytes(bytes(map(int, RELAY_IP.split("."))), "big")
        s = np.zeros(2 * count, dtype=STREAM)
        for side in (0, 1):
            mine = s[side::2]
            mine["saddr"], mine["far_addr"], mine["side"] = phones[side], phones[1 - side], side
            mine["sport"] = mine["far_port"] = FIRST_PHONE_PORT + 2 * n
            mine["daddr"] = phones[1 - side] if isinstance(ports, int) else relay
            mine["dport"] = mine["far_port"] if isinstance(ports, int) else np.array(ports)[:, side]
        s["seq"] = (np.arange(2 * count) * 40503) & 0x7FFF
        s["sum"] = self._constant_sum(s)
        self._streams[:] = 0
        self._streams[: 2 * count] = s
        self.streams = 2 * count

    @staticmethod
    def _constant_sum(s: np.ndarray) -> np.ndarray:
        """What of a UDP checksum never changes: pseudo-header, UDP header, RTP without sequence number, timestamp, clock and run."""
        length = 8 + RTP_BYTES
        parts = np.zeros((len(s), 24 + RTP_BYTES), dtype=np.uint8)
        parts[:, 0:4] = s["saddr"].astype(">u4").view(np.uint8).reshape(-1, 4)
        parts[:, 4:8] = s["daddr"].astype(">u4").view(np.uint8).reshape(-1, 4)
        parts[:, 8:12] = list(struct.pack("!HH", 17, length))
        parts[:, 12:14] = s["sport"].astype(">u2").view(np.uint8).reshape(-1, 2)
        parts[:, 14:16] = s["dport"].astype(">u2").view(np.uint8).reshape(-1, 2)
        parts[:, 16:18] = list(struct.pack("!H", length))
        parts[:, 24:] = list(_RTP)
        ssrc = (0x5A000000 | np.arange(len(s))).astype(">u4")
        parts[:, 32:36] = ssrc.view(np.uint8).reshape(-1, 4)
        return parts.view("<u2").astype(np.uint64).sum(axis=1).astype(np.uint32)

    def _write(self, start: int, stop: int, interval: int, active: int, watched: int, batch: int) -> None:
        macs = [self.wires.macs[near] + self.wires.macs[far] for far, near in zip(FAR_LINKS, NEAR_LINKS)]
        self._settings[: SETTINGS.size] = SETTINGS.pack(start, stop, interval, active, self._number, *(self.wires.ifindex[link] for link in FAR_LINKS), watched, batch, *macs)

    def softirq(self) -> tuple[int, int, int]:
        """ns in the load's network softirqs so far on all cores, the part that interrupted the watched process, and how many there were."""
        found = [SOFTIRQ.unpack(value) for value in libbpf.per_cpu(self._loaded.maps["softirqs"], 0, SOFTIRQ.size)]
        return sum(row[1] for row in found), sum(row[2] for row in found), sum(row[3] for row in found)

    def _histogram(self, which: int) -> np.ndarray:
        return np.sum([np.frombuffer(value, dtype="<u8") for value in libbpf.per_cpu(self._loaded.maps["histograms"], which, BINS * 8)], axis=0)

    def _clear(self) -> None:
        self._received[:] = 0
        self._streams["sent"] = 0
        self._progress[:] = 0
        blank = bytes(BINS * 8 * libbpf.library().lib.libbpf_num_possible_cpus())
        for which in range(3):
            libbpf.update(self._loaded.maps["histograms"], struct.pack("<I", which), blank)

    def run(self, pps: float, seconds: float, *, streams: int | None = None, batch: int = 1, pids: tuple[int, ...] = (), grow: float | None = None, every: float = 0.5) -> Measured:
        """Send for so many seconds, wait for what is still under way, and account for all of it.

        pps: packets per second over all streams. streams: how many of route()'s talk (default: all). batch: frames
        handed over together, when the last of them is due. pids: the relay's processes, whose CPU time is measured (all threads; softirqs that interrupt the first
        are told apart). grow: streams that start per second; pps is then the rate at the end. every: seconds between samples.
        """
        total = self.streams if streams is None else streams
        self._number += 1
        self._clear()
        clocks = [(~pid << 3) | 2 for pid in pids]  # CPUCLOCK_SCHED of a process, as pthread_getcpuclockid(3) makes them

        def processes() -> int:
            return sum(time.clock_gettime_ns(clock) for clock in clocks)

        per_stream = pps / total
        active = total if grow is None else 1

        def interval() -> int:
            return max(1, round(1024e9 / (per_stream * active)))

        start = time.monotonic_ns() + LEAD_NS
        stop = start + round(seconds * 1e9)
        before, cpu_before = self.softirq(), processes()
        watched = pids[0] if pids else 0
        self._write(start, stop, interval(), active, watched, batch)
        failed: list[BaseException] = []
        over = threading.Event()
        thread = threading.Thread(target=self._generate, args=(over, batch, failed), name="generate")
        thread.start()
        samples: list[Sample] = []
        try:
            while time.monotonic_ns() < stop and thread.is_alive():
                if grow is not None:
                    elapsed = max(0.0, (time.monotonic_ns() - start) / 1e9)
                    active = min(total, max(1, int(elapsed * grow)))
                    self._write(start, stop, interval(), active, watched, batch)
                softirqs = self.softirq()
                at = (time.monotonic_ns() - start) / 1e9
                if not samples or at - samples[-1].at >= every:
                    samples.append(Sample(at, int(self._progress["sent"][0]), active, processes() - cpu_before, softirqs[0] - before[0], softirqs[1] - before[1]))
                time.sleep(min(0.1 if grow else every, max(0.001, (stop - time.monotonic_ns()) / 1e9)))
            while time.monotonic_ns() < stop + GRACE_NS and start + (int(self._progress["due"][0]) >> 10) < stop and thread.is_alive():
                time.sleep(0.0002)
        finally:
            self._write(start, 0, interval(), 0, watched, batch)
            over.set()
            while thread.is_alive():
                # A signal that comes just before the call is lost on it.
                signal.pthread_kill(thread.ident, WAKE)
                thread.join(0.002)
        if failed:
            raise failed[0]
        self._settle(total)
        after, cpu_after = self.softirq(), processes()
        progress = self._progress[0]
        sent, got = self._streams["sent"][:total].copy(), self._received[:total].copy()
        wanted = pps * seconds if grow is None else float(progress["sent"] + progress["skipped"])
        packets = np.maximum(got["packets"], 1)
        return Measured(
            offered=round(wanted), sent=int(progress["sent"]), skipped=int(progress["skipped"]), received=int(got["packets"].sum()),
            duplicates=int(got["duplicates"].sum()), reordered=int(got["reordered"].sum()), stale=int(got["stale"].sum()),
            misdelivered=int(got["misdelivered"].sum()), corrupt=int(got["corrupt"].sum()), seconds=seconds, process_ns=cpu_after - cpu_before, softirq_ns=after[0] - before[0],
            softirq_in_process_ns=after[1] - before[1], softirqs=after[2] - before[2], late_mean=float(progress["late_sum"]) / max(1, int(progress["sent"])),
            late_max=int(progress["late_max"]), delay=self._histogram(0), variation=self._histogram(1), late=self._histogram(2),
            stream_sent=sent, stream_received=got["packets"], stream_delay_mean=got["delay_sum"] // packets,
            stream_variation_mean=got["variation_sum"] // packets, samples=samples,
        )  # fmt: skip

    def _generate(self, over: threading.Event, batch: int, failed: list[BaseException]) -> None:
        """Send until `over`, in one call into the kernel: to begin and to end one takes it 10 ms each, during which nothing is sent."""
        try:
            os.sched_setaffinity(0, {self.cpu})
            _libc.prctl(_PR_SET_NAME, b"bench-generate", 0, 0, 0)  # by which the programs know its softirqs
            enter(self.wires.phones)
            with precedence():
                while not over.is_set():
                    libbpf.run_live(self._loaded.programs["generate"], TEMPLATE, repeat=ENDLESS, batch=batch)
        except BaseException as error:
            failed.append(error)

    def _settle(self, streams: int, patience: float = 5.0) -> None:
        """Wait until nothing has arrived for a third of a second."""
        deadline, last, since = time.monotonic() + patience, -1, time.monotonic()
        while time.monotonic() < deadline and time.monotonic() - since < 0.3:
            now = int(self._received["packets"][:streams].sum())
            if now != last:
                last, since = now, time.monotonic()
            if now >= int(self._progress["sent"][0]):
                return
            time.sleep(0.02)
