"""How many relay entries a second reach the kernel through batched BF Runtime writes: client and softswitch as two processes.

Needs root: the softswitch attaches to the loopback of a network namespace of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import RelayEntry

_ROOT = Path(__file__).resolve().parents[1]


def random_entries(count: int, seed: int = 1) -> list[RelayEntry]:
    """Relay entries of random phones on random ports of a few relay addresses; the same for the same seed."""
    rng = random.Random(seed)
    places = rng.sample(range(20 * 30_000), count)
    entries = []
    for place in places:
        relay = Endpoint(bytes((10, 91, 0, 1 + place // 30_000)), 30_000 + place % 30_000)
        phones = [Endpoint(rng.randbytes(4), rng.randrange(1024, 65536)) for _ in range(2)]
        entries.append(RelayEntry(FiveTuple(phones[0], relay), Endpoint(relay.addr, rng.randrange(30_000, 60_000)), phones[1]))
    return entries


async def _measure(target: str, count: int, singles: int) -> dict[str, Any]:
    from shunt.tables.relay_table import RelayTable

    table = RelayTable(target, client_id=os.getpid())
    up = asyncio.Event()
    table.on_up = up.set
    await table.start()
    try:
        await asyncio.wait_for(up.wait(), 20)
        entries = random_entries(count + singles)
        some, one_by_one = entries[:count], entries[count:]
        started = time.perf_counter()
        results = await table.insert_many(some)
        insert = time.perf_counter() - started
        failed = [result for result in results if not result.ok]
        if failed:
            raise RuntimeError(f"{len(failed)} of {count} entries failed, the first with {failed[0]}")
        started = time.perf_counter()
        present = await table.entries()
        read = time.perf_counter() - started
        if len(present) != count:
            raise RuntimeError(f"{count} entries are in, {len(present)} were read")
        started = time.perf_counter()
        deleted = await table.delete_many([entry.key for entry in some])
        delete = time.perf_counter() - started
        if not all(result.ok for result, _ in deleted):
            raise RuntimeError("a delete failed")
        table.batch_delay = 0.0
        started = time.perf_counter()
        for entry in one_by_one:
            await table.insert(entry)
        single = time.perf_counter() - started
        return {
            "grpc_entries_per_s": round(count / insert),
            "grpc_reads_per_s": round(count / read),
            "grpc_deletes_per_s": round(count / delete),
            "grpc_single_per_s": round(singles / single),
            "entries": count,
            "data_plane": table.data_plane,
        }
    finally:
        await table.close()


def _in_namespace(count: int, singles: int) -> dict[str, Any]:
    """Start a softswitch in this (private) network namespace and measure against it."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    pin_dir = f"/sys/fs/bpf/shunt-bench-{os.getpid()}"
    code = (
        "import asyncio\nfrom shunt_softswitch.server import run\n"
        f"asyncio.run(run(interfaces=['lo'], listen=['127.0.0.1:0'], capacity={max(2 * count, 100_000)}, pin_dir={pin_dir!r}, mode='generic', unload_on_exit=True))"
    )
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        ready = server.stdout.readline()
        if not ready.startswith("READY"):
            raise RuntimeError(f"the softswitch did not start: {ready.strip() or f'exit status {server.wait()}'}")
        port = ready.partition("BF Runtime on 127.0.0.1:")[2].partition(";")[0]
        return asyncio.run(_measure(f"127.0.0.1:{port}", count, singles))
    finally:
        server.send_signal(2)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def measure_grpc(count: int = 100_000, singles: int = 2000) -> dict[str, Any]:
    """Rates of inserts, reads and deletes of `count` entries, and of inserts one at a time. Raises RuntimeError."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT / "agent"), str(_ROOT / "softswitch"), str(_ROOT)])}
    command = ["unshare", "--net", sys.executable, "-m", "bench.grpc_writes", "--in-namespace", "--entries", str(count), "--singles", str(singles)]
    done = subprocess.run(command, env=environment, cwd=_ROOT, stdout=subprocess.PIPE, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"the measurement ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_grpc_entries_per_s(count: int = 100_000) -> float:
    """Relay entries a second through batched writes into a real softswitch. Raises RuntimeError."""
    return float(measure_grpc(count)["grpc_entries_per_s"])


def main() -> None:
    """Print the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--singles", type=int, default=2000)
    parser.add_argument("--in-namespace", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    measure = _in_namespace if options.in_namespace else measure_grpc
    print(json.dumps(measure(options.entries, options.singles)), flush=True)


if __name__ == "__main__":
    main()
