"""BF Runtime at the softswitch: rates, delays, restarts and memory by a native client, and how long one client holds up another.

Run as root: python -m bench.bfrt [--quick]. Writes build/bench/bfrt/results.json, and what every step found to raw/. Softswitch and
clients (bench/bfrt-client) are processes in a network namespace of their own; the entries go into the kernel's tables. Clients take turns
with another one that writes single entries all the time where it says `beside`: its delays are those of the other client.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from bench.control import process_cpu_s
from bench.join import PEOPLE, join
from bench.load import come_first
from bench.runs import ROOT, busy_share, commit, machine
from shunt.net import Endpoint, FiveTuple
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.softswitch.replication import Rewrite

OUTPUT = ROOT / "build" / "bench" / "bfrt"
CLIENT = ROOT / "target" / "release" / "bench-bfrt-client"
RECORD = np.dtype([("src", ">u4"), ("dst", ">u4"), ("sport", ">u2"), ("dport", ">u2"), ("to", ">u4"), ("to_port", ">u2"), ("from_port", ">u2")])
"""An entry in a client's file (bench/bfrt-client/src/entries.rs)."""
GOALS: dict[str, tuple[str, float]] = {
    "batched_inserts_per_s": (">=", 400_000), "single_write_p50_us": ("<=", 200), "read_1m_s": ("<=", 3), "other_client_p99_ms": ("<=", 20),
    "restart_500k_s": ("<=", 1), "restart_500k_one_port_s": ("<=", 3), "rss_mib_500k": ("<=", 100), "refuse_200mb_ms": ("<=", 200),
    "one_port_insert_ratio": ("<=", 3), "one_port_read_ratio": ("<=", 3), "one_port_restart_ratio": ("<=", 3), "one_port_clear_ratio": ("<=", 3),
}  # fmt: skip
BATCH = 1_000  # updates in a request; P4 Studio's client does not get faster with more
LARGE_BATCH = 250_000  # updates in a large request: 23 of the 32 MiB that a request may have
_RELAYS, _FIRST_PORT, _CALLS_PER_RELAY = 44, 12_000, 12_000
NETWORK = (
    "link set lo up",
    "link add shunt-bench type veth peer name shunt-far",
    "link set shunt-far up",
    "link set shunt-bench up",
    *(f"address add 10.91.0.{number}/16 dev shunt-bench" for number in range(1, _RELAYS)),
    "neigh replace 10.91.255.1 lladdr 02:00:00:00:00:02 dev shunt-bench nud permanent",
    "route add default via 10.91.255.1",
)


def calls(count: int) -> np.ndarray:
    """The entries of calls with one audio stream, RTP and RTCP both ways: four to a call, each at a relay port of its own.

    Callers have an address each, callees are behind 16 gateways.
    """
    rng, n = np.random.default_rng(1), np.arange(count)
    call, callee, rtcp = n // 4, n % 4 // 2, n % 2
    number = count // 4 + 1
    addresses = np.stack([rng.integers(0x0B000000, 0xDF000000, number), 0x64400001 + rng.integers(0, 16, number)])
    phones = rng.integers(512, 32_767, (2, number)) * 2
    relay = _FIRST_PORT + call % _CALLS_PER_RELAY * 4
    found = np.zeros(count, RECORD)
    found["src"], found["sport"] = addresses[callee, call], phones[callee, call] + rtcp
    found["dst"], found["dport"] = 0x0A5B0001 + call // _CALLS_PER_RELAY, relay + 2 * callee + rtcp
    found["to"], found["to_port"] = addresses[1 - callee, call], phones[1 - callee, call] + rtcp
    found["from_port"] = relay + 2 * (1 - callee) + rtcp
    return found


def one_port(count: int) -> np.ndarray:
    """Entries that share one relay port."""
    found = calls(count)
    found["src"] = 0x0B000000 + np.arange(count)
    found["dst"], found["dport"], found["from_port"] = 0x0A5B0001, _FIRST_PORT, _FIRST_PORT + 2
    return found


def others(count: int = 2_000) -> np.ndarray:
    """The entries of the other client, at a relay address that nobody else uses."""
    found = calls(count)
    found["dst"] = 0x0A5B0000 + _RELAYS - 1
    return found


class Bench:
    """A softswitch, its clients, and what each step found."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.raw: dict[str, list[dict[str, Any]]] = {}
        self._process: Softswitch | None = None
        self._clients = 0

    @property
    def process(self) -> Softswitch:
        assert self._process is not None
        return self._process

    @contextlib.contextmanager
    def softswitch(self, capacity: int, *, copies: int = 0) -> Iterator[None]:
        """A new one, with empty tables."""
        with Softswitch(["shunt-bench"], capacity=capacity, conference_copies=copies) as self._process:
            yield

    def file(self, name: str, entries: np.ndarray) -> str:
        """A client's file of these entries."""
        path = self.work / name
        entries.tofile(path)
        return str(path)

    def command(self, *work: str) -> list[str]:
        """A client's command line. The number of its own is not used again."""
        target = self.process.target if self.process.target.startswith("unix:") else f"http://{self.process.target}"
        self._clients += 1
        return [str(CLIENT), "--target", target, "--client-id", str(self._clients), *work]

    def client(self, *work: str) -> dict[str, Any]:
        """Let a client do its work. Raises CalledProcessError."""
        return json.loads(subprocess.run(self.command(*work), stdout=subprocess.PIPE, check=True).stdout)

    @contextlib.contextmanager
    def beside(self, found: dict[str, Any]) -> Iterator[None]:
        """Another client writes single entries within the block; its delays come into `found`."""
        child = subprocess.Popen(self.command("beside", self.file("others", others())), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None and child.stdout.readline() == b"begun\n"
            yield
            found["beside_us"] = json.loads(child.communicate()[0])["delays_us"]
        finally:
            child.kill()
            child.wait()

    def keep(self, step: str, found: dict[str, Any]) -> dict[str, Any]:
        """Note what a step found, and show it."""
        self.raw.setdefault(step, []).append(found)
        shown = {key: f"{median(value):.0f} (p99 {quantile(value, 0.99):.0f}, max {max(value):.0f})" if isinstance(value, list) and value else value for key, value in found.items()}
        print(f"    {step:24} {shown}", file=sys.stderr, flush=True)
        return found

    def anonymous_mib(self) -> float:
        """The softswitch's memory without its maps, which are not anonymous."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]

    def entries(self) -> int:
        with Plane(self.process.target, bind=False) as plane:
            return len(plane)


def median(values: list[float]) -> float:
    return statistics.median(values)


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


# What is measured


def inserts(bench: Bench, count: int, repeats: int) -> None:
    """Inserts in requests of 1,000, and single writes into an empty table."""
    file = bench.file("calls", calls(count))
    with bench.softswitch(2 * count):
        for _ in range(repeats):
            bench.keep("singles", bench.client("singles", file))
        for _ in range(repeats):
            bench.keep("insert", bench.client("insert", file, "--batch", str(BATCH)))
            bench.client("clear")


def reads(bench: Bench, count: int, repeats: int) -> None:
    """Reads of a whole table, with another client beside them."""
    file = bench.file("calls", calls(count))
    with bench.softswitch(count + 10_000):
        bench.client("insert", file)
        for _ in range(repeats):
            found: dict[str, Any] = {}
            with bench.beside(found):
                found |= bench.client("read")
            # The other client's one entry may be among them.
            if not 0 <= found["entries"] - count <= 1:
                raise RuntimeError(f"{count} entries are in, {found['entries']} were read")
            bench.keep("read", found)


def restart(bench: Bench) -> dict[str, Any]:
    """Seconds from SIGTERM to READY, of them those to the end of the old process; the memory of the new one."""
    begun = time.perf_counter()
    bench.process.stop()
    ended = time.perf_counter()
    bench.process.start()
    ready = time.perf_counter()
    return {"seconds": ready - begun, "to_end_s": ended - begun, "entries": bench.entries(), "anonymous_mib": bench.anonymous_mib()}


def ports(bench: Bench, count: int, repeats: int) -> None:
    """Entries that have a relay port each, and entries that share one: insert, read, restart, clear."""
    for name, entries in (("spread", calls(count)), ("one_port", one_port(count))):
        file = bench.file(name, entries)
        with bench.softswitch(2 * count):
            for _ in range(repeats):
                bench.keep(f"{name}/insert", bench.client("insert", file) | {"anonymous_mib": bench.anonymous_mib()})
                bench.keep(f"{name}/read", bench.client("read"))
                found = bench.keep(f"{name}/restart", restart(bench))
                if found["entries"] != count:
                    raise RuntimeError(f"{count} entries were in, {found['entries']} after a restart")
                bench.keep(f"{name}/clear", bench.client("clear"))


def refusal(bench: Bench, repeats: int) -> None:
    """A request of 200 MB by gRPC's own library, which P4 Studio's client uses: by itself, and with another client beside it; memory afterwards."""
    body = bytes([0x1A, 100]) + bytes(100)  # one more update of 100 bytes
    body *= 200_000_000 // len(body)

    def refuse(plane: Plane) -> dict[str, Any]:
        server, begun = process_cpu_s(bench.process.pid), time.perf_counter()
        try:
            plane.session.channel.unary_unary("/bfrt_proto.BfRuntime/Write")(body)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
                seconds, server = time.perf_counter() - begun, process_cpu_s(bench.process.pid) - server
                return {"bytes": len(body), "seconds": seconds, "server_cpu_s": server, "message": error.details(), "anonymous_mib": bench.anonymous_mib()}
            raise
        raise RuntimeError(f"a request of {len(body)} bytes was not refused")

    with bench.softswitch(10_000), Plane(bench.process.target, bind=False) as plane:
        for _ in range(repeats):
            bench.keep("oversized", refuse(plane))
        for _ in range(repeats):
            found: dict[str, Any] = {}
            with bench.beside(found):
                found |= refuse(plane)
            bench.keep("beside/oversized", found)


def delays(bench: Bench, count: int, large: int) -> None:
    """What another client waits: while nobody does anything, while `large` inserts come, a clear of `count`, changes of a conference."""
    everything = bench.file("large", calls(large))
    part = bench.file("calls", calls(count))

    def step(name: str, work: Callable[[], dict[str, Any]]) -> None:
        found: dict[str, Any] = {}
        with bench.beside(found):
            found |= work()
        bench.keep(f"beside/{name}", found)

    def nothing() -> dict[str, Any]:
        time.sleep(2)
        return {"seconds": 2}

    with bench.softswitch(large + 10_000, copies=10_000):
        step("nothing", nothing)
        step("inserts, small requests", lambda: bench.client("insert", everything))
        bench.client("clear")
        step("inserts, large requests", lambda: bench.client("insert", everything, "--batch", str(LARGE_BATCH)))
        bench.client("clear")
        bench.client("insert", part)
        step("clear", lambda: bench.client("clear"))
        step("conference", lambda: conference(bench))


def conference(bench: Bench) -> dict[str, Any]:
    """50 participants join one conference, each of whom sends to all others: one request for each of them."""
    with Plane(bench.process.target) as plane:
        table, changes = plane.replication, []
        assert table is not None
        table.insert_tree(1, [])
        for person in range(PEOPLE):
            begun = time.perf_counter()
            with plane.session.batching():
                join(table, person, _ends)
            changes.append(time.perf_counter() - begun)
        table.clear()
    return {"seconds": sum(changes), "joins_us": [round(1e6 * one) for one in changes]}


def _ends(person: int) -> tuple[FiveTuple, Rewrite]:
    here, there = (Endpoint.of(address, 20_000 + 2 * person) for address in ("10.91.0.1", "10.92.0.1"))
    return FiveTuple(there, here), Rewrite(here, there)


def figures(raw: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """The figures of results.json, from the raw data."""

    def seconds(step: str) -> float:
        return median([found["seconds"] for found in raw[step]])

    def p99_ms(step: str) -> float:
        return max(quantile(found["beside_us"], 0.99) for found in raw[step]) / 1000

    found = {
        "batched_inserts_per_s": median([one["entries"] / one["seconds"] for one in raw["insert"]]),
        "single_write_p50_us": median([median(one["inserts_us"]) for one in raw["singles"]]),
        "read_1m_s": seconds("read"),
        "other_client_p99_ms": p99_ms("read"),
        "restart_500k_s": seconds("spread/restart"),
        "restart_500k_one_port_s": seconds("one_port/restart"),
        "rss_mib_500k": max(one["anonymous_mib"] for step in ("insert", "restart") for one in raw[f"spread/{step}"]),
        "refuse_200mb_ms": seconds("oversized") * 1000,
    }
    found |= {f"one_port_{step}_ratio": seconds(f"one_port/{step}") / seconds(f"spread/{step}") for step in ("insert", "read", "restart", "clear")}
    for step in raw:
        if step.startswith("beside/"):
            name = re.sub(r"\W+", "_", step.removeprefix("beside/"))
            found[f"other_client_p99_ms_{name}"] = p99_ms(step)
            found[f"other_client_max_ms_{name}"] = max(max(one["beside_us"]) for one in raw[step]) / 1000
    return {name: round(value, 3) for name, value in found.items()}


def verdicts(found: dict[str, float]) -> dict[str, bool]:
    """For every figure with a goal, whether it is met."""
    return {name: found[name] >= goal if sign == ">=" else found[name] <= goal for name, (sign, goal) in GOALS.items()}


def _inside(quick: bool) -> int:
    """Measure in this network namespace; the result is the exit status."""
    for command in NETWORK:
        subprocess.run(["ip", *command.split()], check=True)
    facts = {"commit": commit(), "machine": machine(), "quick": quick, "busy_before": round(busy_share(), 4)}
    come_first()
    share, repeats = (100, 1) if quick else (1, 5)
    with tempfile.TemporaryDirectory(prefix="shunt-bench") as folder:
        bench = Bench(Path(folder))
        inserts(bench, 500_000 // share, repeats)
        reads(bench, 1_000_000 // share, repeats)
        ports(bench, 500_000 // share, repeats)
        refusal(bench, repeats)
        delays(bench, 1_000_000 // share, 2_000_000 // share)
    found = figures(bench.raw)
    met = verdicts(found)
    results = {"facts": facts | {"load_after": os.getloadavg()}, **found, "goals": {name: f"{sign} {goal:g}" for name, (sign, goal) in GOALS.items()}, "met": met}
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "raw.json").write_text(json.dumps(bench.raw, separators=(",", ":")) + "\n")
    (OUTPUT / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    for name, value in found.items():
        sign, goal = GOALS.get(name, ("", 0))
        print(f"{name:52} {value:12,.1f}" + (f"   {sign} {goal:g}: {'met' if met[name] else 'MISSED'}" if sign else ""))
    if facts["busy_before"] > 0.1:
        print(f"{facts['busy_before']:.0%} of the cores' time was already used when the run began: the figures are not to be quoted")
    print(f"raw data: {OUTPUT.relative_to(ROOT)}/raw.json")
    return 0 if quick or all(met.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a hundredth of the entries, once: shows that everything works")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench-bfrt makes a network namespace and loads eBPF programs: run it as root")
    if options.inside:
        return _inside(options.quick)
    return subprocess.run(["unshare", "--net", sys.executable, "-m", "bench.bfrt", "--inside", *(["--quick"] if options.quick else [])], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
