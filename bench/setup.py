"""Call set-up as an OpenSIPS asks for it: commands, HEP copies and RTP of both parties, at the relay alone and with shunt-agent in front of it.

Run as root: python -m bench.setup [--quick] [--relay rtpproxy|shunt-relay|rtpengine] [--only PART …]. Writes build/bench/setup/results.json and raw.json.

A call is U, L and D, 13 HEP copies, 20 RTP packets and 2 sender reports of each party, and lasts 1 to 1.5 s. Callers have an address each, callees are behind 16
gateways. With rtpengine the same commands go by NG: offer, answer and delete. An answer that comes later than 0.2 s is late: OpenSIPS would have given the relay up, and the call asks nothing more. With 100,000 calls the relay is one that only answers (bench/stand_in.py),
because no relay here has so many ports. Delays are compared with those of a program that only passes commands on, too (bench/setup-load/src/forwarder.rs): nothing that stands before
a relay adds less on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import stand_in
from bench.control import memory_mib, process_cpu_s
from bench.load import come_first, give_precedence
from bench.runs import OUTPUT, ROOT, busy_share, commit, machine
from shunt.admin import AdminClient, AgentUnreachable
from tests.agent_daemon.lab import Lab, relays
from tests.lab.processes import Process, open_socket
from tests.lab.topology import CALLEE_IP, CALLER_IP, Topology

LOAD = ROOT / "target" / "release" / "bench-setup-load"
FORWARDER = ROOT / "target" / "release" / "bench-forwarder"
HEP_PORT = 9060
LATE_US = 200_000
VERBS = ("update", "lookup", "delete")
CALLERS, CALLEES = "100.64.0.0/12", "100.80.0.0/12"
RATE = 300  # calls/s at which delays are compared, and with which the table is filled
RATES = (300, 600, 900, 1200, 1500, 1800, 2100, 2400, 2700, 3000, 3500, 4000)
MANY = 100_000
BURST = 500  # calls
AT_ONCE = 1e6  # calls/s: they begin as fast as they can be sent
OVERLOAD, AFTER = 2000, 100  # calls/s: twice what two cores can set up, and the load that follows
GOALS = {
    "highest_rate": (">=", 1500), "agent_cpu_ms_per_call": ("<=", 0.5), "added_p50_ms": ("<=", 0.1), "added_p99_ms": ("<=", 0.5),
    "memory_100k_mib": ("<=", 300), "restart_100k_serving_s": ("<=", 0.2), "restart_100k_reconciled_s": ("<=", 5),
    "overload_completed_ratio": (">=", 0.9), "after_overload_completed_share": (">=", 1),
}  # fmt: skip


class Bench:
    """What is measured, and what each step found."""

    def __init__(self, relay: str, quick: bool) -> None:
        """relay: rtpproxy, shunt-relay or rtpengine."""
        self.relay, self.quick = relay, quick
        self.raw: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def lab(self, way: str, **changes: Any) -> Iterator[Lab]:
        """The processes of one way: the relay `alone`, with a `forwarder` in front of it, or with `shunt`."""
        with Topology("setup") as topology, tempfile.TemporaryDirectory(prefix="shunt-setup") as folder:
            for route in (f"{CALLERS} via {CALLER_IP}", f"{CALLEES} via {CALLEE_IP}"):
                topology.run("edge", "ip", "route", "add", *route.split())
            lab = Lab(topology, Path(folder), self.relay, **changes)
            control = lab.edge.shunt_config()["control"] | {"sip_timeout_ms": LATE_US // 1000}
            lab.configure(control=control, log={"level": "warning"}, **changes)
            try:
                if way == "shunt":
                    lab.start()
                else:
                    lab.start_relay()
                if way == "forwarder":
                    listen, relay = f"127.0.0.1:{lab.control_port}", f"127.0.0.1:{lab.edge.relay_port}"
                    lab.agent = Process(topology, "edge", "forwarder", [str(FORWARDER), "--listen", listen, "--relay", relay], lab.work / "forwarder.log")
                    lab.agent.start().await_listening("udp", lab.control_port)
                for process in processes(lab, way).values():
                    give_precedence(process.pid)
                yield lab
            finally:
                lab.stop()

    def load(self, lab: Lab, way: str, calls: int, rate: float, *options: str) -> dict[str, Any]:
        """Put a load on, and note what it found and what each process took."""
        control = lab.edge.relay_port if way == "alone" else lab.control_port
        hep = ["--hep", f"127.0.0.1:{HEP_PORT}"] if way == "shunt" else []
        argv = [
            str(LOAD), "--control", f"127.0.0.1:{control}", "--protocol", "ng" if self.relay == "rtpengine" else "rtpproxy", *hep, "--rate", str(rate), "--calls", str(calls),
            "--caller-namespace", f"/run/netns/{lab.topology.name('caller')}", "--callee-namespace", f"/run/netns/{lab.topology.name('callee')}",
            "--caller", "100.64.0.2", "--callers", "60000", "--callee", "100.80.0.2", "--callees", "16", *options,
        ]  # fmt: skip
        running = processes(lab, way)
        before = {name: process_cpu_s(process.pid) for name, process in running.items()}
        # A machine that does not keep up ends the step, not the bench's patience.
        done = subprocess.run(lab.topology.enter("edge", *argv), stdout=subprocess.PIPE, text=True, timeout=60 + 4 * calls / rate)
        if done.returncode:
            raise RuntimeError(f"{LOAD.name} ended with {done.returncode}")
        found = json.loads(done.stdout)
        found |= {f"{name}_cpu_s": process_cpu_s(process.pid) - before[name] for name, process in running.items()}
        found |= {"way": way, "rate": rate}
        self.raw.append(found)
        shown = {f"{name}_ms_per_call": round(found[f"{name}_cpu_s"] * 1000 / calls, 3) for name in running}
        streams = {kind: f"{found[kind]['streams_offloaded']} of {2 * calls}" for kind in ("rtp", "rtcp")} if way == "shunt" else {}
        print(
            f"    {way:9} {rate:6.0f} calls/s  late {late(found)}, errors {found['errors']}, p99 ms {[round(quantile(found, verb, 99), 2) for verb in VERBS]}",
            shown,
            streams,
            file=sys.stderr,
            flush=True,
        )
        return found


def processes(lab: Lab, way: str) -> dict[str, Process]:
    """Those of a way, by their names in the figures."""
    front = {"alone": {}, "forwarder": {"forwarder": lab.agent}, "shunt": {"agent": lab.agent, "softswitch": lab.softswitch}}
    return {"relay": lab.relay} | front[way]


def quantile(found: dict[str, Any], verb: str, percent: float) -> float:
    """A quantile of the delays of a verb in ms."""
    return float(np.percentile(found[verb]["delays_us"] or [np.nan], percent)) / 1000


def late(found: dict[str, Any]) -> int:
    """Commands that OpenSIPS would have given up: answered late, or not at all."""
    return sum(found[verb]["sent"] - sum(delay <= LATE_US for delay in found[verb]["delays_us"]) for verb in VERBS) - found["errors"]


def delays(bench: Bench) -> dict[str, float]:
    """What the agent, and a forwarder, add to an answer at RATE calls/s, and what a call costs each process: all ways in turns."""
    turns, seconds = (1, 2) if bench.quick else (3, 10)
    found: dict[str, list[dict[str, Any]]] = {"alone": [], "forwarder": [], "shunt": []}
    for _ in range(turns):
        for way, kept in found.items():
            with bench.lab(way) as lab:
                kept.append(bench.load(lab, way, RATE * seconds, RATE))
                time.sleep(1)

    def added(way: str, percent: float) -> float:
        """The largest of all verbs, each the median of the turns."""
        middle = {way: [statistics.median(quantile(one, verb, percent) for one in kept) for verb in VERBS] for way, kept in found.items()}
        return max(there - alone for there, alone in zip(middle[way], middle["alone"]))

    def cost(way: str, process: str) -> float:
        return statistics.median(one[f"{process}_cpu_s"] * 1000 / one["calls"] for one in found[way])

    offloaded = min(one["rtp"]["streams_offloaded"] / (2 * one["calls"]) for one in found["shunt"])
    return {
        "added_p50_ms": added("shunt", 50), "added_p99_ms": added("shunt", 99), "forwarder_added_p50_ms": added("forwarder", 50), "forwarder_added_p99_ms": added("forwarder", 99),
        "forwarder_cpu_ms_per_call": cost("forwarder", "forwarder"), "agent_cpu_ms_per_call": cost("shunt", "agent"), "softswitch_cpu_ms_per_call": cost("shunt", "softswitch"),
        "relay_cpu_ms_per_call": cost("shunt", "relay"), "relay_alone_cpu_ms_per_call": cost("alone", "relay"), "offloaded_share": offloaded,
    }  # fmt: skip


def keeps_up(found: dict[str, Any]) -> bool:
    """Whether every answer came in time, and the load itself did."""
    return not late(found) and not found["errors"] and float(np.percentile(found["begun_late_us"], 99)) <= LATE_US


def rates(bench: Bench) -> dict[str, float]:
    """The highest rate at which no answer is late, of both ways. What fails is tried once more: one stall of the machine says nothing of a rate."""
    found = {}
    seconds = 2 if bench.quick else 5
    for way in ("alone", "shunt"):
        highest = 0.0
        with bench.lab(way) as lab:
            for rate in RATES:
                tries = (bench.load(lab, way, rate * seconds, rate, "--tag", f"{rate}-{number}") for number in range(2))
                if not any(keeps_up(one) for one in tries):
                    break
                highest = rate
                time.sleep(1)
        found["highest_rate" if way == "shunt" else "highest_rate_alone"] = highest
    return found | {"highest_rate_ratio": found["highest_rate"] / max(found["highest_rate_alone"], 1)}


def burst(bench: Bench) -> dict[str, float]:
    """BURST calls that begin at one moment: answers that are late or missing (a call without an answer asks no more), and the longest time that one took."""
    found = {}
    for way in ("alone", "shunt"):
        with bench.lab(way) as lab:
            loads = [bench.load(lab, way, BURST, AT_ONCE, "--packets", "1", "--tag", str(number)) for number in range(1 if bench.quick else 3)]
        suffix = "" if way == "shunt" else "_alone"
        found[f"burst_late{suffix}"] = float(max(late(one) for one in loads))
        found[f"burst_complete{suffix}"] = float(min(sum(delay <= LATE_US for delay in one["delete"]["delays_us"]) for one in loads))
        found[f"burst_longest_ms{suffix}"] = max(quantile(one, verb, 100) for one in loads for verb in VERBS)
    return found


def overload(bench: Bench) -> dict[str, float]:
    """More calls/s than the machine can set up, twice, and few calls/s 2 s after each, both ways: calls of which every answer came in time; with Shunt, memory and entries that are left, too."""
    found: dict[str, float] = {}
    for way in ("alone", "shunt"):
        over, after = [], []
        with bench.lab(way) as lab:
            for turn in range(1 if bench.quick else 2):
                for rate, kept, seconds in ((OVERLOAD, over, 2 if bench.quick else 10), (AFTER, after, 2 if bench.quick else 5)):
                    kept.append(bench.load(lab, way, rate * seconds, rate, "--tag", f"{rate}-{turn}"))
                    time.sleep(2)
            if way == "shunt":
                found |= {"after_overload_memory_mib": memory_mib(lab.agent.pid), "after_overload_entries": float(len(lab.entries()))}
                found["after_overload_offloaded_share"] = min(one["rtp"]["streams_offloaded"] / (2 * one["calls"]) for one in after)
        suffix = "" if way == "shunt" else "_alone"
        found |= {f"overload_{turn}_completed{suffix}": float(one["completed"]) for turn, one in enumerate(over, 1)}
        found |= {
            f"overload_completed_share{suffix}": sum(one["completed"] for one in over) / sum(one["calls"] for one in over),
            f"overload_longest_ms{suffix}": max(quantile(one, verb, 100) for one in over for verb in VERBS),
            f"after_overload_completed_share{suffix}": sum(one["completed"] for one in after) / sum(one["calls"] for one in after),
            f"after_overload_errors{suffix}": float(sum(one["errors"] for one in after)),
        }
    return found | {"overload_completed_ratio": found["overload_completed_share"] / max(found["overload_completed_share_alone"], 1e-9)}


def many(bench: Bench) -> dict[str, float]:
    """Memory with MANY calls in the data plane, and a kill of the agent: until it answers, and until its table is reconciled."""
    calls = MANY // 50 if bench.quick else MANY
    first, last = 35000, 64999
    hosts = stand_in.addresses(calls, first, last)
    media = [{"address": f"198.18.0.{101 + host}", "ports": f"{first}-{last}"} for host in range(hosts)]
    with bench.lab("alone") as lab:
        lab.relay.stop()
        port = lab.edge.relay_port
        relay = {"name": "local", "socket": f"udp:127.0.0.1:{port}", "media": media, "ttl": 7200}
        relay |= {"type": "rtpengine"} if bench.relay == "rtpengine" else {"symmetric": True}
        for one in media:
            lab.topology.run("edge", "ip", "addr", "add", f"{one['address']}/32", "dev", "lo")
        softswitch = lab.edge.shunt_config()["softswitch"] | {"capacity": 4 * calls + 10_000}
        lab.configure(log={"level": "warning"}, relays=[relay], softswitch=softswitch)
        lab.relay = Process(lab.topology, "edge", "stand-in", [sys.executable, "-m", "bench.stand_in", str(port), media[0]["address"], str(first), str(last)], lab.work / "stand_in.log", {"PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"})  # fmt: skip
        lab.start()
        for process in (lab.relay, lab.agent, lab.softswitch):
            give_precedence(process.pid)
        found = bench.load(lab, "shunt", calls, RATE, "--keep", "--packets", "14")
        time.sleep(2)
        entries = len(lab.entries())
        memory = memory_mib(lab.agent.pid)
        lab.agent.kill()
        began = time.monotonic()
        lab.agent.start()
        give_precedence(lab.agent.pid)
        serving = until_answered(lab) - began
        reconciled = until_reconciled(lab) - began
    return {"calls_kept": calls, "entries_kept": entries, "errors_kept": found["errors"], "memory_100k_mib": memory, "restart_100k_serving_s": serving, "restart_100k_reconciled_s": reconciled}


def until_answered(lab: Lab) -> float:
    """When a command is answered."""
    with open_socket(lab.topology, "edge", socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.01)
        for number in range(6000):
            with contextlib.suppress(OSError):
                ask = b"d7:command4:pinge" if lab.relay_name == "rtpengine" else b"V"
                sock.sendto(b"w%d %b" % (number, ask), ("127.0.0.1", lab.control_port))
                if sock.recv(2048):
                    return time.monotonic()
    raise RuntimeError("the agent does not answer")


def until_reconciled(lab: Lab) -> float:
    """When the agent has compared the table with its plan and all calls are restored."""
    deadline = time.monotonic() + 120
    status: dict[str, Any] = {}
    while time.monotonic() < deadline:
        with contextlib.suppress(AgentUnreachable):
            status = asyncio.run(status_of(lab))
            if status["data_plane"]["reconciled"] and not status["calls_to_restore"]:
                return time.monotonic()
        time.sleep(0.05)
    raise RuntimeError(f"not reconciled: {status}")


async def status_of(lab: Lab) -> dict[str, Any]:
    """The agent's status by its admin API."""
    async with AdminClient(str(lab.admin)) as admin:
        return await admin.status()


PARTS = {"delays": delays, "burst": burst, "rates": rates, "overload": overload, "many": many}


def main() -> int:
    """The exit status: 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few calls, once: shows that everything works")
    parser.add_argument("--relay", choices=("rtpproxy", "shunt-relay", "rtpengine"), default=relays()[-1])
    parser.add_argument("--only", action="append", choices=PARTS, help="this part alone (may be repeated)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench-setup makes network namespaces and loads eBPF programs: run it as root")
    facts = {"commit": commit(), "machine": machine(), "relay": options.relay, "quick": options.quick, "busy_before": round(busy_share(), 4)}
    come_first()
    bench, found = Bench(options.relay, options.quick), {}
    for name in options.only or PARTS:
        print(f"==> {name}", file=sys.stderr, flush=True)
        found |= PARTS[name](bench)
    met = {name: found[name] >= goal if sign == ">=" else found[name] <= goal for name, (sign, goal) in GOALS.items() if name in found}
    folder = OUTPUT / "setup"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "raw.json").write_text(json.dumps(bench.raw, separators=(",", ":")) + "\n")
    results = {"facts": facts, **{name: round(value, 4) for name, value in found.items()}, "goals": {name: f"{sign} {goal:g}" for name, (sign, goal) in GOALS.items()}, "met": met}
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    for name, value in found.items():
        sign, goal = GOALS.get(name, ("", 0))
        print(f"{name:32} {value:12,.3f}" + (f"   {sign} {goal:g}: {'met' if met[name] else 'MISSED'}" if sign else ""))
    if facts["busy_before"] > 0.1:
        print(f"{facts['busy_before']:.0%} of the cores' time was already used when the run began: the figures are not to be quoted")
    return 0 if options.quick or all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
