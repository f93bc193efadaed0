"""How many relay entries a second reach the kernel through batched BF Runtime writes: client and softswitch as two processes.

Run as root: python -m bench.grpc_writes. The softswitch then works in a network namespace of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import RelayEntry
from shunt_softswitch.dataplane import DataPlane

_ROOT = Path(__file__).resolve().parents[1]
_NETWORK = (
    "link set lo up",
    "link add shunt-bench type veth peer name shunt-far",
    "link set shunt-far up",
    "link set shunt-bench up",
    "address add 10.91.0.1/16 dev shunt-bench",
    "neigh replace 10.91.255.1 lladdr 02:00:00:00:00:02 dev shunt-bench nud permanent",
    "route add default via 10.91.255.1",
)


def call_entries(count: int, seed: int = 1) -> list[RelayEntry]:
    """The relay entries of calls with one audio stream: RTP and RTCP, both ways, so four to a call.

    Phones are random addresses, the relay hands out its ports in order; the same for the same seed.
    """
    rng = random.Random(seed)
    entries: list[RelayEntry] = []
    call = 0
    while len(entries) < count:
        relay, port = bytes((10, 91, 0, 1 + call // 12_000)), 12_000 + call % 12_000 * 4
        caller, callee = (Endpoint(rng.randbytes(3) + b"\x01", rng.randrange(1024, 65535, 2)) for _ in range(2))
        for part in (0, 1):
            from_caller, from_callee = Endpoint(relay, port + part), Endpoint(relay, port + 2 + part)
            a, b = Endpoint(caller.addr, caller.port + part), Endpoint(callee.addr, callee.port + part)
            entries += (RelayEntry(FiveTuple(a, from_caller), from_callee, b), RelayEntry(FiveTuple(b, from_callee), from_caller, a))
        call += 1
    return entries[:count]


async def _client(target: str, entries: list[RelayEntry], singles: int) -> dict[str, float]:
    """The agent's side: rates of inserts, reads and deletes of all entries, and of inserts one at a time."""
    from shunt.tables.relay_table import RelayTable

    table = RelayTable(target, client_id=os.getpid())
    up = asyncio.Event()
    table.on_up = up.set
    await table.start()
    try:
        await asyncio.wait_for(up.wait(), 20)
        rates: dict[str, float] = {}
        started = time.perf_counter()
        results = await table.insert_many(entries)
        rates["grpc_entries_per_s"] = len(entries) / (time.perf_counter() - started)
        failed = [result for result in results if not result.ok]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(entries)} entries failed, the first with {failed[0]}")
        started = time.perf_counter()
        present = await table.entries()
        rates["grpc_reads_per_s"] = len(entries) / (time.perf_counter() - started)
        if present.keys() < {entry.key for entry in entries}:
            raise RuntimeError(f"{len(entries)} entries are in, but only {len(present)} were read")
        started = time.perf_counter()
        deleted = await table.delete_many([entry.key for entry in entries])
        rates["grpc_deletes_per_s"] = len(entries) / (time.perf_counter() - started)
        if not all(result.ok for result, _ in deleted):
            raise RuntimeError("a delete failed")
        table.batch_delay = 0.0
        started = time.perf_counter()
        for entry in entries[:singles]:
            await table.insert(entry)
        rates["grpc_single_per_s"] = min(singles, len(entries)) / (time.perf_counter() - started)
        await table.delete_many([entry.key for entry in entries[:singles]])
        return {name: round(rate) for name, rate in rates.items()}
    finally:
        await table.close()


async def _serve(plane: DataPlane, entries: list[RelayEntry], singles: int) -> dict[str, float]:
    from shunt_softswitch import schema
    from shunt_softswitch.server import serve, settle_garbage_collector
    from shunt_softswitch.service import BfRuntimeService

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(_ROOT / folder) for folder in ("agent", "softswitch", "."))}
    settle_garbage_collector()
    async with serve(BfRuntimeService(plane, schema.load(plane.capacity)), ["127.0.0.1:0"]) as (port,):
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.grpc_writes", "--client", f"127.0.0.1:{port}", "--singles", str(singles)),
            cwd=_ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        out, _ = await client.communicate(pickle.dumps(entries))
    if client.returncode != 0:
        raise RuntimeError(f"the writing client ended with status {client.returncode}")
    return json.loads(out.splitlines()[-1])


def rates(plane: DataPlane, entries: list[RelayEntry], singles: int = 1000) -> dict[str, float]:
    """Serve `plane` from this process and write `entries` from another; entries a second by kind of operation.

    The entries are out again afterwards. Raises RuntimeError when an operation fails.
    """
    return asyncio.run(_serve(plane, entries, singles))


def entries_per_second(plane: DataPlane, entries: list[RelayEntry]) -> float:
    """Entries a second through batched writes into `plane`. Raises RuntimeError."""
    return rates(plane, entries, singles=1)["grpc_entries_per_s"]


def _in_namespace(count: int, singles: int) -> dict[str, Any]:
    """Measure against a softswitch in this (private) network namespace."""
    for command in _NETWORK:
        subprocess.run(["ip", *command.split()], check=True)
    pins = Path(f"/sys/fs/bpf/shunt-bench-{os.getpid()}")
    plane = DataPlane.open(interfaces=["shunt-bench"], capacity=max(2 * count, 100_000), pin_dir=str(pins))
    try:
        return {**rates(plane, call_entries(count), singles), "entries": count, "mode": plane.interfaces()[0][2]}
    finally:
        plane.unload()
        shutil.rmtree(pins, ignore_errors=True)


def measure_grpc(count: int = 100_000, singles: int = 2000) -> dict[str, Any]:
    """Rates for the entries of count / 4 calls, in a network namespace of its own. Raises RuntimeError."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(_ROOT / folder) for folder in ("agent", "softswitch", "."))}
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
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is not None:
        found: dict[str, Any] = asyncio.run(_client(options.client, pickle.load(sys.stdin.buffer), options.singles))
    else:
        found = (_in_namespace if options.in_namespace else measure_grpc)(options.entries, options.singles)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
