"""Reconciling: what the agent does when the data plane is back, with its own client and a softswitch: read, compare, put right.

Run as root: python -m bench.reconcile [--entries N] [--repeats N]. Prints the samples as one line of JSON; `make bench-control` has them in
its results. Both are processes in a network namespace of their own. Each sample has the processor time of both, which other work on the
machine does not change as much as it changes the time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import time
from typing import Any

from bench.bfrt import NETWORK
from bench.control import process_cpu_s
from bench.runs import ROOT
from shunt.calls.book import CallBook
from shunt.calls.model import Call, Side, new_line
from shunt.calls.plan import Policy, plan_stream
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint
from shunt.offload import Offloader
from shunt.tables.relay_table import RelayTable
from tests.softswitch.process import Softswitch


class Calls:
    """A call book of calls with one audio stream, every stream of which ought to be in the table: four entries to a call."""

    def __init__(self, count: int, table: RelayTable, seed: int = 1) -> None:
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
                # The caller is a phone at an address of its own, the callee is behind one of 16 gateways.
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


class Bench:
    """An agent's client, its calls, and the samples taken."""

    def __init__(self, softswitch: Softswitch) -> None:
        self.pid = softswitch.pid
        self.table = RelayTable(softswitch.target, client_id=os.getpid())
        self.samples: list[dict[str, Any]] = []

    async def run(self, count: int, repeats: int) -> None:
        up = asyncio.Event()
        self.table.on_up = up.set
        await self.table.start()
        try:
            await asyncio.wait_for(up.wait(), 20)
            calls = Calls(count, self.table)
            gc.freeze()
            for _ in range(repeats):
                await self.all_kinds(calls)
        finally:
            await self.table.close()

    async def all_kinds(self, calls: Calls) -> None:
        """Reconcile an empty table, one that is right, and one with a fifth missing or wrong. The table is empty again afterwards."""
        entries, keys = calls.entries, [entry.key for entry in calls.entries]
        await self.reconcile("reconcile, all missing", calls)
        await self.reconcile("reconcile, nothing to do", calls)
        tenth = len(entries) // 10
        _sure(result for result, _ in await self.table.delete_many(keys[:tenth]))
        wrong = [type(entry)(entry.key, entry.src, entry.dst._replace(port=9), entry.ttl_ms) for entry in entries[tenth : 2 * tenth]]
        _sure(await self.table.insert_many(wrong))
        await self.reconcile("reconcile, a fifth missing or wrong", calls)
        _sure(result for result, _ in await self.table.delete_many(keys))

    async def reconcile(self, name: str, calls: Calls) -> None:
        gc.collect()
        server, own, begun = process_cpu_s(self.pid), time.process_time(), time.perf_counter()
        await calls.offloader.reconcile()
        seconds, own, server = time.perf_counter() - begun, time.process_time() - own, process_cpu_s(self.pid) - server
        size = len(calls.entries)
        self.samples.append(
            {"name": name, "count": size, "seconds": round(seconds, 6), "per_s": round(size / seconds, 1), "client_cpu_s": round(own, 3), "server_cpu_s": round(server, 3)}
        )
        present = await self.table.entries()
        if len(present) != size or any(not entry.does_as(present[entry.key]) for entry in calls.entries):
            raise RuntimeError(f"{name}: the table is not what it ought to be")


def _sure(results: Any) -> None:
    failed = [result for result in results if not result.ok]
    if failed:
        raise RuntimeError(f"{len(failed)} operations failed, the first with {failed[0]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=100_000, help="a multiple of 4")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        return subprocess.run(["unshare", "--net", sys.executable, "-m", "bench.reconcile", "--inside", *sys.argv[1:]], cwd=ROOT).returncode
    for command in NETWORK:
        subprocess.run(["ip", *command.split()], check=True)
    with Softswitch(["shunt-bench"], capacity=max(2 * options.entries, 10_000)) as softswitch:
        bench = Bench(softswitch)
        asyncio.run(bench.run(options.entries, options.repeats))
    print(json.dumps(bench.samples))
    return 0


if __name__ == "__main__":
    sys.exit(main())
