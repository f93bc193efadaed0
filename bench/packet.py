"""What one relayed packet costs in the data plane: against entries, packet size and headers; packets/s of a core; entries/s.

Run as root: python -m bench.packet [--profile short|full|smoke] [--fresh]. Writes build/bench/packet/PROFILE/.

Cost: BPF_PROG_TEST_RUN of the relay behind a wrapper that gives each run the next packet of another stream, in an order
without pattern, less the wrapper alone; both in turns, so that a repetition is one difference. Packets/s of a core: live
frames through a real interface pair, with the relay and without it, generated and received on the same core.
"""

from __future__ import annotations

import argparse
import errno
import math
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for _folder in (".", "operator"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))

from bench import counters, libbpf
from bench.load import FAR_LINKS, Load, Wires, inside
from bench.peers import Shunt
from bench.runs import Run, end_cleanly, raw_steps, spread
from bench.softswitch import Table as Softswitch
from shunt.net import Endpoint, FiveTuple
from tests.tools.entry import RelayEntry

OBJECT = ROOT / "build" / "bench" / "obj" / "packet.o"
CAPACITY = 1_050_000
# As in packet.bpf.c.
FIRST_DADDR, FIRST_SADDR, FIRST_PORT, PORTS = 0x0A640001, 0x0B000000, 4096, 61440
DADDR6, SADDR6 = 0xFD000064, 0xFD00000B
PHONE4, PHONE6 = bytes((198, 18, 2, 2)), struct.pack("!IIII", 0xFD910002, 0, 0, 2)
RELAY4, RELAY6 = (FIRST_DADDR).to_bytes(4, "big"), struct.pack("!IIII", DADDR6, 0, 0, 1)
ADJUSTED = ("vlan", "to6", "to4")  # kinds whose wrapper moves the packet's beginning back
G711 = 160
PAYLOADS = (20, G711, 480, 1200)
PAYLOAD_ENTRIES = 1_000
NOISY = 0.25
INTERRUPTED_AT_MOST = 10
BUSY = 0.1


@dataclass(frozen=True, slots=True)
class Profile:
    samples: int
    repeat: int  # runs in one sample
    sizes: tuple[int, ...]
    sizes6: tuple[int, ...]
    seconds: float  # of live frames
    repetitions: int


PROFILES = {
    "smoke": Profile(2, 20_000, (100, 1_000), (100,), 0.3, 1),
    "short": Profile(7, 400_000, (100, 1_000, 10_000, 100_000, 1_000_000), (100, 1_000, 10_000, 100_000), 1.0, 3),
    "full": Profile(15, 1_000_000, (100, 1_000, 10_000, 100_000, 1_000_000), (100, 1_000, 10_000, 100_000, 1_000_000), 5.0, 9),
}


def entry(n: int, kind: str) -> RelayEntry:
    """Entry n of the table: a stream of its own, towards the phones' side; to6 and to4 leave as the other IP version."""
    if kind in ("ipv6", "to4"):
        relay = Endpoint(struct.pack("!IIII", DADDR6, 0, 0, 1 + n // PORTS), FIRST_PORT + n % PORTS)
        source = Endpoint(struct.pack("!IIII", SADDR6, 0, 0, n), 1024 + n % 50000)
    else:
        relay = Endpoint((FIRST_DADDR + n // PORTS).to_bytes(4, "big"), FIRST_PORT + n % PORTS)
        source = Endpoint((FIRST_SADDR + n).to_bytes(4, "big"), 1024 + n % 50000)
    towards = Endpoint(PHONE6 if kind in ("ipv6", "to6") else PHONE4, 1024 + n % 60000)
    leaves = {"to6": RELAY6, "to4": RELAY4}.get(kind, relay.addr)
    return RelayEntry(FiveTuple(source, relay), Endpoint(leaves, relay.port ^ 1), towards)


def order(entries: int) -> dict[str, bytes]:
    """The wrapper's constants for going through this many entries without a pattern."""
    shift = max((entries - 1).bit_length(), 2)
    return {"bench_mask": struct.pack("<I", (1 << shift) - 1), "bench_shift": struct.pack("<I", shift), "bench_half": struct.pack("<I", shift // 2)}


def frame(kind: str, payload: int) -> bytes:
    """A frame to start from: the wrapper fills in addresses, ports, checksums and RTP."""
    size = 8 + 12 + payload
    ethernet = b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02"
    if kind in ("ipv6", "to4"):
        network = b"\x86\xdd" + struct.pack("!IHBB", 0x60000000, size, 17, 64) + bytes(32)
    else:
        network = b"\x08\0" + struct.pack("!BBHHHBBH", 0x45, 0, 20 + size, 1, 0x4000, 64, 17, 0) + bytes(8)
        network = b"\x81\0\0\x64" + network if kind == "vlan" else network
    return ethernet + network + struct.pack("!HHHH", 0, 0, size, 0x1234) + b"\x80\x08" + bytes(10 + payload)


def run_program(program: int, start: bytes, *, repeat: int) -> libbpf.TestRun:
    """BPF_PROG_TEST_RUN; begun anew when a signal ended it. Raises BpfError."""
    for _ in range(INTERRUPTED_AT_MOST):
        try:
            return libbpf.test_run(program, start, repeat=repeat)
        except libbpf.BpfError as error:
            if error.errno != errno.EINTR:
                raise
    raise libbpf.BpfError(errno.EINTR, f"{INTERRUPTED_AT_MOST} runs in a row were ended by signals")


class Table:
    """A data plane in the relay host's namespace, and the wrapped programs on its maps."""

    def __init__(self, wires: Wires) -> None:
        self._wires = wires
        wires.run(wires.relay, "sh", "-ec", "echo 0 > /proc/sys/net/ipv6/conf/b1/disable_ipv6")
        wires.run(wires.relay, "ip", "address", "replace", "fd91:2::1/64", "dev", "b1", "nodad")
        mac = ":".join(f"{byte:02x}" for byte in wires.macs[FAR_LINKS[1]])
        wires.run(wires.relay, "ip", "neigh", "replace", "fd91:2::2", "lladdr", mac, "dev", "b1", "nud", "permanent")
        with inside(wires.relay):
            self.softswitch = Softswitch(["a1", "b1"], capacity=CAPACITY)

    def close(self) -> None:
        self.softswitch.close()

    def fill(self, first: int, last: int, kind: str) -> float:
        """Insert entries; returns the seconds that the writes took."""
        spent = 0.0
        for start in range(first, last, 50_000):
            batch = self.softswitch.updates(entry(n, kind) for n in range(start, min(start + 50_000, last)))
            begun = time.perf_counter()
            self.softswitch.write(batch)
            spent += time.perf_counter() - begun
        return spent

    def packet(self, kind: str, entries: int, payload: int, samples: int, repeat: int) -> dict[str, Any]:
        """ns of the wrapper, of the relay behind it, and, for IPv4, of reading one cache line of the table; by samples."""
        loaded = self.softswitch.load(OBJECT, constants={"bench_entries": struct.pack("<I", entries), **order(entries)})
        try:
            names = [f"{kind}_wrapper", f"{kind}_relay", *(["ipv4_line"] if kind == "ipv4" else [f"{kind}_adjusted"] if kind in ADJUSTED else [])]
            start = frame(kind, payload)
            before = self.softswitch.plane.totals()["relayed_packets"]
            # Every stream past its first packets, whose jitter is measured one by one.
            warm = 24 * entries
            run_program(loaded.programs[f"{kind}_relay"], start, repeat=warm)
            taken: dict[str, list[int]] = {name: [] for name in names}
            for _ in range(samples):
                for name in names:
                    taken[name].append(run_program(loaded.programs[name], start, repeat=repeat).duration_ns)
            relayed, sent = self.softswitch.plane.totals()["relayed_packets"] - before, warm + samples * repeat
            # The wrapper's IPv4 and IPv6 checksums fit no packet: one in 65536 looks like a partial one and goes the long way.
            if relayed < 0.9999 * sent:  # more than were asked for: runs that a signal ended
                raise RuntimeError(f"only {relayed} of {sent} packets met their entry: {self.softswitch.plane.totals()}")
            counted = {name: counters_of(loaded.programs[name], start, repeat) for name in names[:2]}
            return {
                "kind": kind, "entries": entries, "payload": payload, "runs_per_sample": repeat, "samples_ns": taken, "relayed": relayed, "sent": sent,
                "counted": counted,
            }  # fmt: skip
        finally:
            loaded.close()


def counters_of(program: int, start: bytes, repeat: int) -> dict[str, Any]:
    """What the processor counted over so many runs; where it cannot be read, why."""
    try:
        return counters.count(lambda: run_program(program, start, repeat=repeat))
    except counters.NotCounted as error:
        return {"not_counted": str(error.strerror)}


def counted(step: dict[str, Any]) -> dict[str, float]:
    """Instructions, cycles and cache misses of one packet, the wrapper's taken off; empty where they could not be read."""
    wrapper, relay = (step["counted"][f"{step['kind']}_{name}"] for name in ("wrapper", "relay"))
    return {name: (relay[name] - wrapper[name]) / step["runs_per_sample"] for name in counters.HARDWARE if name in relay and name in wrapper}


def cost(step: dict[str, Any]) -> dict[str, Any]:
    """ns of one packet: the differences of all samples."""
    taken, kind = step["samples_ns"], step["kind"]
    values = [relay - wrapper for relay, wrapper in zip(taken[f"{kind}_relay"], taken[f"{kind}_wrapper"])]
    if kind in ADJUSTED:  # the wrapper gives the room back or takes it: one adjustment of two
        values = [value - (adjusted - wrapper) / 2 for value, adjusted, wrapper in zip(values, taken[f"{kind}_adjusted"], taken[f"{kind}_wrapper"])]
    return spread([float(value) for value in values])


def slope(points: list[tuple[float, float]]) -> float:
    """Least-squares ns for every tenfold number of entries."""
    xs, ys = [math.log10(x) for x, _ in points], [y for _, y in points]
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys)) / sum((x - mx) ** 2 for x in xs)


def measure(run: Run, profile: Profile) -> None:
    """All steps. The table is only filled for those that are still missing."""

    def missing(*keys: str) -> bool:
        return any(not (run.raw / f"{key}.json").exists() for key in keys)

    run.plan(len(profile.sizes) + sum(size <= max(profile.sizes6) for size in profile.sizes) + 3 * len(profile.sizes6) + len(PAYLOADS) + profile.repetitions + 1)
    with Wires() as wires:
        for sizes, kinds in ((profile.sizes, ("ipv4", "vlan")), *((profile.sizes6, (kind,)) for kind in ("ipv6", "to6", "to4"))):
            plain = kinds[0] == "ipv4"
            # The largest table takes longest; in a short profile only plain IPv4 has it.
            keys = {(kind, size): f"entries/{kind}-{size:07}" for size in sizes for kind in kinds if kind == "ipv4" or size <= max(profile.sizes6)}
            extra = [f"payload/ipv4-{payload:04}" for payload in PAYLOADS] + ["table"] if plain else []
            if not missing(*keys.values(), *extra):
                for key in (*keys.values(), *extra):
                    run.step(key, dict)
                continue
            table = Table(wires)
            try:
                filled, spent = 0, 0.0
                for size in sizes:
                    spent += table.fill(filled, size, kinds[0])
                    filled = size
                    for kind in kinds:
                        if (kind, size) not in keys:
                            continue
                        run.step(keys[kind, size], lambda: table.packet(kind, size, G711, profile.samples, profile.repeat))
                    if plain and size == PAYLOAD_ENTRIES:
                        for payload in PAYLOADS:
                            run.step(f"payload/ipv4-{payload:04}", lambda: table.packet("ipv4", size, payload, profile.samples, profile.repeat))
                if plain:
                    run.step("table", lambda: table_rates(table, filled, spent))
            finally:
                table.close()
        with Load(wires) as load:
            for n in range(profile.repetitions):
                run.step(f"live/{n}", lambda: live(wires, load, run, profile.seconds))


def table_rates(table: Table, entries: int, spent: float) -> dict[str, Any]:
    """Entries a second into, out of and from the maps, in batches, through BF Runtime; bytes of kernel memory."""
    begun = time.perf_counter()
    found = len(table.softswitch.plane.stats())
    read = time.perf_counter() - begun
    if found != entries:
        raise RuntimeError(f"{found} of {entries} entries were read")
    memory = table.softswitch.memory()
    keys = table.softswitch.plane.keys()
    begun = time.perf_counter()
    gone = sum(table.softswitch.plane.delete(keys))
    deleted = time.perf_counter() - begun
    if gone != entries:
        raise RuntimeError(f"{gone} of {entries} entries were deleted")
    return {"entries": entries, "inserted_s": spent, "read_s": read, "deleted_s": deleted, "capacity": CAPACITY, "memory_bytes": memory}


def live(wires: Wires, load: Load, run: Run, seconds: float) -> dict[str, Any]:
    """Packets/s of one core that generates, relays and receives, and of the same without the relay: as fast as it goes."""
    peer = Shunt(wires, run.folder / "work", load.other_cpus)
    found: dict[str, Any] = {}
    calls, flat_out = 1000, 50e6
    load.route(calls)
    with load.direct():
        found["direct"] = load.run(flat_out, seconds, batch=64).record()
    try:
        load.route(peer.start(calls))
        load.run(flat_out, 0.2, batch=64)
        found["relay"] = load.run(flat_out, seconds, batch=64).record()
    finally:
        peer.stop()
    return found


def live_rates(step: dict[str, Any]) -> dict[str, float]:
    """Received packets/s with and without the relay, and of a core that only relays: 1 / (time with - time without)."""
    with_relay, without = (step[name]["received"] / step[name]["seconds"] for name in ("relay", "direct"))
    alone = 1 / (1 / with_relay - 1 / without) if with_relay < without else math.inf
    return {"relay": with_relay, "direct": without, "alone": alone, "lost": step["relay"]["sent"] - step["relay"]["received"], "sent": step["relay"]["sent"]}


def analyse(steps: dict[str, dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
    """All figures from the raw steps, by key."""
    remarks = []
    if facts["busy_before"] > BUSY:
        remarks.append(f"{facts['busy_before']:.0%} of the cores' time was already used when the run began: the figures are not to be quoted")
    costs, lines = [], {}
    for key, step in steps.items():
        if key.startswith(("entries/", "payload/")):
            costs.append({"by": key.split("/")[0], **{name: step[name] for name in ("kind", "entries", "payload")}, "ns": cost(step), "counted": counted(step)})
            wrapper = spread([float(value) for value in step["samples_ns"][f"{step['kind']}_wrapper"]])
            if (wrapper["most"] - wrapper["least"]) / wrapper["median"] > NOISY:
                remarks.append(f"{key}: the wrapper alone took {wrapper['least']:.0f} to {wrapper['most']:.0f} ns: this figure is not to be quoted")
        if key.startswith("entries/ipv4"):
            lines[step["entries"]] = spread([float(a - b) for a, b in zip(step["samples_ns"]["ipv4_line"], step["samples_ns"]["ipv4_wrapper"])])
    reason = next((step["counted"][f"{step['kind']}_relay"].get("not_counted") for key, step in steps.items() if key.startswith("entries/")), None)
    slopes = {}
    for kind in ("ipv4", "vlan", "ipv6", "to6", "to4"):
        points = [(one["entries"], one["ns"]["median"]) for one in costs if one["by"] == "entries" and one["kind"] == kind]
        if len(points) > 1:
            slopes[kind] = slope(points)
    rates = [live_rates(step) for key, step in steps.items() if key.startswith("live/")]
    table = steps["table"]
    found = {
        "remarks": remarks, "not_counted": reason, "costs": costs, "lines": lines, "slope_ns_per_decade": slopes,
        "live": {name: spread([one[name] for one in rates]) for name in ("relay", "direct", "alone")} | {"lost": sum(one["lost"] for one in rates), "sent": sum(one["sent"] for one in rates)},
        "table": {
            "entries": table["entries"], **{f"{name}_per_s": table["entries"] / table[f"{name}_s"] for name in ("inserted", "read", "deleted")},
            "bytes_per_entry": sum(table["memory_bytes"].values()) / table["capacity"], "memory_mib": sum(table["memory_bytes"].values()) / 2**20,
        },
    }  # fmt: skip
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", choices=sorted(PROFILES), default="short")
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    arguments = parser.parse_args()
    end_cleanly()
    clang = subprocess.run(["clang", "--version"], capture_output=True, text=True).stdout.splitlines()
    run = Run("packet", arguments.profile, {"clang": clang[0] if clang else "", "shunt": Shunt.version()}, fresh=arguments.fresh)
    measure(run, PROFILES[arguments.profile])
    from bench.report import packet

    results = analyse(raw_steps(run.folder), run.facts)
    run.results(results)
    packet.write(run, results)
    return packet.print_targets(results)


if __name__ == "__main__":
    sys.exit(main())
