"""The BF Runtime client against a real softswitch: single and batched writes, reads, reconciling, and what bulk work costs single writes.

Run as root: python -m bench.bfrt [--quick]. Client and softswitch are two processes in a network namespace
of their own; the entries go into the kernel's tables. Every measurement is repeated; results.json has the
medians with the goals, and every single sample with the processor time that both sides took, which other
work on the machine does not change much while it changes the rates.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "bench" / "bfrt" / "results.json"
GOALS = {"batched_over_single": 20.0, "batched_entries_per_s": 50_000.0, "reconcile_s": 5.0}
_NETWORK = (
    "link set lo up",
    "link add shunt-bench type veth peer name shunt-far",
    "link set shunt-far up",
    "link set shunt-bench up",
    *(f"address add 10.91.0.{number}/16 dev shunt-bench" for number in range(1, 10)),
    "neigh replace 10.91.255.1 lladdr 02:00:00:00:00:02 dev shunt-bench nud permanent",
    "route add default via 10.91.255.1",
)
_CALLERS = 5_000
_TICK = os.sysconf("SC_CLK_TCK")


def _cpu_of(pid: int) -> float:
    """Processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


class Meter:
    """Samples: what was measured, how often, how long it took, and the processor time of both processes."""

    def __init__(self, server: int) -> None:
        self.server = server
        self.samples: list[dict[str, Any]] = []

    async def take(self, name: str, count: int, work: Callable[[], Awaitable[Any]]) -> Any:
        """Measure one piece of work on `count` entries; returns its result."""
        gc.collect()
        server, own, started = _cpu_of(self.server), time.process_time(), time.perf_counter()
        result = await work()
        seconds = time.perf_counter() - started
        self.samples.append(
            {
                "name": name, "count": count, "seconds": round(seconds, 6), "per_s": round(count / seconds, 1),
                "client_cpu_s": round(time.process_time() - own, 3), "server_cpu_s": round(_cpu_of(self.server) - server, 3),
            }
        )  # fmt: skip
        cpu = "{client_cpu_s:6.2f} + {server_cpu_s:5.2f} s".format(**self.samples[-1])
        print(f"    {name:36} {count:>7} in {seconds:7.3f} s = {count / seconds:9,.0f}/s   processor: {cpu}", file=sys.stderr, flush=True)
        return result

    def median(self, name: str, what: str) -> float:
        return statistics.median(sample[what] for sample in self.samples if sample["name"] == name)


class Calls:
    """A call book of calls with one audio stream, every stream of which ought to be in the table: four entries to a call."""

    def __init__(self, count: int, table: Any, seed: int = 1) -> None:
        from shunt.calls.book import CallBook
        from shunt.calls.model import Call, Side, new_line
        from shunt.calls.plan import Policy, plan_stream
        from shunt.learning.latch import LatchPolicy
        from shunt.net import Endpoint
        from shunt.offload import Offloader

        rng, now = random.Random(seed), time.monotonic()
        self.book = CallBook(LatchPolicy())
        # Nothing sends here; entries that fall idle would be reported, as those of live calls are not.
        policy = Policy(idle_ms=3_600_000)
        self.offloader = Offloader(self.book, table, policy)
        self.entries = []
        for number in range(count // 4):
            call = Call(f"bench-{number}", "bench", now, time.time())
            line = new_line(call, "a", 0, now, LatchPolicy())
            call.lines.append(line)
            relay, port = bytes((10, 91, 0, 1 + number // 12_000)), 12_000 + number % 12_000 * 4
            for place, side in enumerate(Side):
                leg = line.legs[side]
                # The caller is a phone at an address of its own, the callee is behind one of 16 trunk gateways.
                address = bytes((100, 64, 0, 1 + rng.randrange(16))) if place else rng.randbytes(3) + b"\x01"
                phone = Endpoint(address, rng.randrange(1024, 65534, 2))
                leg.signalled, leg.relay = phone, Endpoint(relay, port + 2 * place)
                leg.rtp.take(phone, number, 1)
                leg.rtcp.take(phone.next_port(), 0, 0)
            for stream in line.streams:
                stream.installed = plan_stream(line, stream, now, policy).entry
                assert stream.installed is not None
                self.entries.append(stream.installed)
            self.book.restore(call)
            self.offloader.restore(call)


async def _measure(target: str, server: int, count: int, singles: int, repeats: int, only_reconcile: bool) -> dict[str, Any]:
    from shunt.tables.relay_table import RelayTable

    table = RelayTable(target, client_id=os.getpid())
    up = asyncio.Event()
    table.on_up = up.set
    await table.start()
    meter = Meter(server)
    try:
        await asyncio.wait_for(up.wait(), 20)
        calls = Calls(count, table)
        gc.freeze()
        for _ in range(repeats):
            if only_reconcile:
                _sure(await table.insert_many(calls.entries))
                await _reconciling(meter, table, calls)
                continue
            await _writes(meter, table, calls.entries, singles)
            await _beside_bulk_work(meter, table, calls.entries)
            await _reconciling(meter, table, calls)
        return {"samples": meter.samples, "figures": {} if only_reconcile else _figures(meter)}
    finally:
        await table.close()


async def _writes(meter: Meter, table: Any, entries: list[Any], singles: int) -> None:
    few, keys = entries[:singles], [entry.key for entry in entries]

    async def one_by_one() -> None:
        for entry in few:
            _sure([await table.insert(entry)])

    async def by_many_callers() -> None:
        for start in range(0, len(entries), _CALLERS):
            _sure(await asyncio.gather(*(table.insert(entry) for entry in entries[start : start + _CALLERS])))

    table.batch_delay, delay = 0.0, table.batch_delay
    await meter.take("insert, one at a time", len(few), one_by_one)
    table.batch_delay = delay
    _sure(result for result, _ in await table.delete_many([entry.key for entry in few]))
    _sure(await meter.take("insert, batched", len(entries), lambda: table.insert_many(entries)))
    found = await meter.take("read entries", len(entries), table.entries)
    if found.keys() != set(keys):
        raise RuntimeError(f"{len(entries)} entries are in, {len(found)} were read")
    await meter.take("read statistics", len(entries), lambda: table.stats(None))
    results = await meter.take("delete with statistics, batched", len(entries), lambda: table.delete_many(keys))
    _sure(result for result, _ in results)
    if any(stats is None for _, stats in results):
        raise RuntimeError("statistics of a deleted entry are missing")
    await meter.take("insert, 5,000 callers at a time", len(entries), by_many_callers)
    _sure(result for result, _ in await table.delete_many(keys))


async def _beside_bulk_work(meter: Meter, table: Any, entries: list[Any]) -> None:
    """How long single inserts and deletes take while all other entries are being written."""
    own, others = entries[:40], entries[40:]
    bulk = asyncio.create_task(table.insert_many(others))
    await asyncio.sleep(0.05)
    for entry in own:
        if bulk.done():
            break
        _sure([await meter.take("single insert beside bulk work", 1, lambda: table.insert(entry))])
        result, _ = await meter.take("single delete beside bulk work", 1, lambda: table.delete(entry.key))
        _sure([result])
    _sure(await bulk)


async def _reconciling(meter: Meter, table: Any, calls: Calls) -> None:
    """What the agent does when the data plane is back: read, compare, put right. In the end all entries are in, or out again."""
    entries, keys, size = calls.entries, [entry.key for entry in calls.entries], len(calls.entries)

    async def reconcile(name: str) -> None:
        await meter.take(name, size, calls.offloader.reconcile)
        present = await table.entries()
        if len(present) != size or any(not entry.does_as(present[entry.key]) for entry in entries):
            raise RuntimeError(f"{name}: the table is not what it ought to be")

    _sure(result for result, _ in await table.delete_many(keys))
    await reconcile("reconcile, all missing")
    await reconcile("reconcile, nothing to do")
    tenth = size // 10
    _sure(result for result, _ in await table.delete_many(keys[:tenth]))
    wrong = [type(entry)(entry.key, entry.src, entry.dst._replace(port=9), entry.ttl_ms) for entry in entries[tenth : 2 * tenth]]
    _sure(await table.insert_many(wrong))
    await reconcile("reconcile, a fifth missing or wrong")
    _sure(result for result, _ in await table.delete_many(keys))


def _sure(results: Any) -> None:
    failed = [result for result in results if not result.ok]
    if failed:
        raise RuntimeError(f"{len(failed)} operations failed, the first with {failed[0]}")


def _figures(meter: Meter) -> dict[str, float]:
    single, batched = (meter.median(name, "per_s") for name in ("insert, one at a time", "insert, batched"))
    beside = sorted(s["seconds"] for s in meter.samples if s["name"].endswith("beside bulk work"))
    cpu = {side: meter.median("insert, batched", f"{side}_cpu_s") / meter.median("insert, batched", "count") * 1e6 for side in ("client", "server")}
    return {
        "single_entries_per_s": single,
        "batched_entries_per_s": batched,
        "batched_over_single": round(batched / single, 1),
        "many_callers_entries_per_s": meter.median("insert, 5,000 callers at a time", "per_s"),
        "deletes_with_statistics_per_s": meter.median("delete with statistics, batched", "per_s"),
        "reads_per_s": meter.median("read entries", "per_s"),
        "statistics_per_s": meter.median("read statistics", "per_s"),
        "reconcile_s": max(meter.median(name, "seconds") for name in {s["name"] for s in meter.samples if s["name"].startswith("reconcile")}),
        "beside_bulk_work_ms_p50": round(beside[len(beside) // 2] * 1000, 2),
        "beside_bulk_work_ms_max": round(beside[-1] * 1000, 2),
        "client_cpu_us_per_entry": round(cpu["client"], 2),
        "server_cpu_us_per_entry": round(cpu["server"], 2),
        # What the slower side would reach with a core to itself, and what reconciling costs both sides together.
        "batched_entries_per_core_s": round(1e6 / max(cpu.values())),
        "reconcile_cpu_s": round(max(s["client_cpu_s"] + s["server_cpu_s"] for s in meter.samples if s["name"].startswith("reconcile")), 2),
    }


def _numbers(options: argparse.Namespace) -> list[str]:
    """The command line's share that both sides need."""
    return ["--entries", str(options.entries), "--singles", str(options.singles), "--repeats", str(options.repeats), *(["--reconcile"] if options.reconcile else [])]


async def _serve(plane: Any, options: argparse.Namespace) -> dict[str, Any]:
    from shunt_softswitch import schema
    from shunt_softswitch.server import serve, settle_garbage_collector
    from shunt_softswitch.service import BfRuntimeService

    settle_garbage_collector()
    numbers = _numbers(options)
    async with serve(BfRuntimeService(plane, schema.load(plane.capacity)), ["127.0.0.1:0"]) as (port,):
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.bfrt", "--client", f"127.0.0.1:{port}", "--server", str(os.getpid()), *numbers), cwd=ROOT, stdout=subprocess.PIPE
        )  # fmt: skip
        out, _ = await client.communicate()
    if client.returncode != 0:
        raise RuntimeError(f"the client ended with status {client.returncode}")
    return json.loads(out.splitlines()[-1])


def _inside(options: argparse.Namespace) -> dict[str, Any]:
    """The softswitch's side, in a private network namespace."""
    from shunt_softswitch.dataplane import DataPlane

    for command in _NETWORK:
        subprocess.run(["ip", *command.split()], check=True)
    pins = Path(f"/sys/fs/bpf/shunt-bench-{os.getpid()}")
    plane = DataPlane.open(interfaces=["shunt-bench"], capacity=max(2 * options.entries, 10_000), pin_dir=str(pins))
    try:
        return asyncio.run(_serve(plane, options))
    finally:
        plane.unload()
        shutil.rmtree(pins, ignore_errors=True)


def _calibration() -> float:
    """Seconds of processor time for a fixed piece of Python, now: what other work on the machine does to every figure here."""
    started, total = time.process_time(), 0
    for number in range(2_000_000):
        total += number
    return round(time.process_time() - started, 3)


def _machine() -> dict[str, Any]:
    model = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), platform.machine())
    return {"cpu": model, "cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version(), "load_before": os.getloadavg(), "nice": os.nice(0), "calibration_before_s": _calibration()}


def main() -> None:
    """Measure and write results.json; exit status 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000, help="a multiple of 4")
    parser.add_argument("--singles", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--reconcile", action="store_true", help="only reconcile, and print the samples as one line of JSON")
    parser.add_argument("--quick", action="store_true", help="10,000 entries, once")
    for name in ("--client", "--server"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.entries, options.singles, options.repeats = 10_000, 500, 1
    if options.client is not None:
        print(json.dumps(asyncio.run(_measure(options.client, int(options.server), options.entries, options.singles, options.repeats, options.reconcile))), flush=True)
        return
    if options.inside:
        print(json.dumps(_inside(options)), flush=True)
        return
    if os.geteuid() != 0:
        sys.exit("bench-bfrt makes a network namespace and loads eBPF programs: run it as root")
    machine = _machine()
    numbers = _numbers(options)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("agent", "softswitch", "."))}
    print(f"==> BF Runtime: {options.entries:,} entries, {options.repeats} times", file=sys.stderr)
    done = subprocess.run(["unshare", "--net", sys.executable, "-m", "bench.bfrt", "--inside", *numbers], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"the measurement ended with status {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    if options.reconcile:
        print(json.dumps(found["samples"]))
        return
    figures = found["figures"]
    met = {name: (figures[name] <= goal if name.endswith("_s") and "per_s" not in name else figures[name] >= goal) for name, goal in GOALS.items()}
    results = {
        "entries": options.entries, "repeats": options.repeats, "machine": machine | {"load_after": os.getloadavg(), "calibration_after_s": _calibration()},
        "figures": figures, "goals": GOALS, "met": met, "samples": found["samples"],
    }  # fmt: skip
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(results, indent=1) + "\n")
    for name, value in figures.items():
        goal = f"   goal {GOALS[name]:g}: {'met' if met[name] else 'MISSED'}" if name in GOALS else ""
        print(f"{name:32} {value:12,.1f}{goal}")
    print(f"raw data: {OUTPUT.relative_to(ROOT)}")
    if not all(met.values()) and not options.quick:
        sys.exit(1)


if __name__ == "__main__":
    main()
