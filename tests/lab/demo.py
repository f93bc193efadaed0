"""`make demo`: real SIP calls through a NAT box, their media carried by the kernel, every claim measured on the wire.

    python -m tests.lab.demo --sip-server auto|opensips|kamailio --relay auto|rtpproxy|rtpengine|builtin

Writes build/demo/report.json and ends with status 0 only if every check held.
"""

from __future__ import annotations

import argparse
import collections
import json
import shutil
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from shunt.cli.top import Rates
from tests.lab.capture import Account, Call, Capture, account
from tests.lab.processes import ROOT, Edge, choose, cpu_seconds
from tests.lab.sipp import Sipp, register
from tests.lab.topology import LabError, Topology

OUTPUT = ROOT / "build" / "demo"
LOAD_SECONDS = 32
TALK_MS = 9500
GIVE_UP_MS = 2000
SHARE_BAR = 0.98
PHONES = ("caller", "natcaller", "callee")


@dataclass(frozen=True)
class Lane:
    """Calls of one kind between one caller and one callee process."""

    host: str
    caller: str
    callee: str
    rate: float  # calls per second
    ends: str  # how each of its calls is to end, in the words of capture.Call.how
    talk_ms: int = TALK_MS

    @property
    def calls(self) -> int:
        return round(self.rate * LOAD_SECONDS)


LANES = (
    Lane("caller", "uac_call", "uas_answer", 3, "BYE by caller"),
    Lane("caller", "uac_callee_bye", "uas_bye", 3, "BYE by callee"),
    Lane("natcaller", "uac_call", "uas_answer", 2, "BYE by caller"),
    Lane("natcaller", "uac_callee_bye", "uas_bye", 2, "BYE by callee"),
    Lane("caller", "uac_cancel", "uas_cancelled", 0.5, "CANCEL", GIVE_UP_MS),
    Lane("natcaller", "uac_cancel", "uas_cancelled", 0.5, "CANCEL", GIVE_UP_MS),
    Lane("caller", "uac_busy", "uas_busy", 1, "486"),
)


class Demo:
    """One run: build the lab, place the calls, watch, take it down, account for every packet."""

    def __init__(self, console: Console, sip_server: str, relay: str) -> None:
        self.console = console
        self.sip_server, self.relay = choose(sip_server, relay)
        self.data_plane = ""
        self.most_at_once = 0
        self.shown: list[tuple[float, Table]] = []  # the live table, with the second since the first call
        self.checks: list[tuple[str, bool, str]] = []  # claim, whether it held, details

    def run(self) -> dict[str, Any]:
        """Run it all and return the report. Raises LabError if the lab itself fails."""
        shutil.rmtree(OUTPUT, ignore_errors=True)
        OUTPUT.mkdir(parents=True)
        self.console.print(f"SIP server: [bold]{self.sip_server}[/]   relay: [bold]{self.relay}[/]   data plane: [bold]softswitch (XDP)[/]")
        topology = Topology("demo")
        with topology:
            self.console.print(f"network namespaces {topology.prefix}-*: edge, caller, callee, and natcaller behind nat")
            captures = [Capture(topology, OUTPUT, host) for host in PHONES]
            with Edge(topology, OUTPUT, self.sip_server, self.relay) as edge:
                self.data_plane = f"softswitch ({_xdp_mode(topology)} XDP)"
                daemons = {"agent": edge.agent.pid, "softswitch": edge.softswitch.pid}
                cpu_before = {name: cpu_seconds(pid) for name, pid in daemons.items()}
                for capture in captures:
                    capture.start()
                callers, callees = self._start_calls(topology)
                try:
                    self._watch(edge, topology, callers)
                    for sipp in (*callers, *callees):
                        sipp.process.wait(15)
                finally:
                    for sipp in (*callers, *callees):
                        sipp.stop()
                for capture in captures:
                    capture.stop()
                left = self._left(edge)
                slow = topology.slow_packets()
                cpu = {name: cpu_seconds(pid) - cpu_before[name] for name, pid in daemons.items()}
            left["processes_left"] = len(topology.pids())
        self.console.print("calls are over; reading the captures")
        calls, packets = account(captures)
        return self._report([s.counts() for s in callers], calls, packets, left, slow, cpu)

    def _start_calls(self, topology: Topology) -> tuple[list[Sipp], list[Sipp]]:
        callers, callees = [], []
        for number, lane in enumerate(LANES):
            user, port = f"lane{number}", 5070 + number
            register(topology, OUTPUT, "callee", user, port)
            common = {"media_port": 6000 + 2000 * number, "calls": lane.calls, "talk_ms": lane.talk_ms}
            callees.append(Sipp(topology, OUTPUT, "callee", lane.callee, sip_port=port, **common))
            callers.append(Sipp(topology, OUTPUT, lane.host, lane.caller, sip_port=port, user=user, rate=lane.rate, **common))
        for sipp in (*callees, *callers):
            sipp.start()
        return callers, callees

    def _watch(self, edge: Edge, topology: Topology, callers: list[Sipp]) -> None:
        """Show what happens until the last call is over. Raises LabError if that takes too long or a part of the edge dies."""
        started = time.monotonic()
        deadline = started + LOAD_SECONDS + TALK_MS / 1000 + 30
        rates = Rates()
        with Live(console=self.console, refresh_per_second=4, transient=False) as live:
            while any(sipp.process.alive for sipp in callers):
                now = time.monotonic()
                if now > deadline:
                    raise LabError("the calls did not end in time")
                for process in (edge.sip_server, edge.agent, edge.operator, edge.softswitch, edge.relay):
                    if not process.alive:
                        raise LabError(f"{process.name} died in mid-run:\n{process.tail()}")
                status = edge.status()
                totals = {"data_plane": status["packets"]["data_plane"], "relay": topology.slow_packets()}
                rates.look(now, totals, {"data_plane": (status["data_plane"] or {}).get("age_s")})
                self.most_at_once = max(self.most_at_once, status["calls"])
                self.shown.append((now - started, _table(now - started, status, rates.now)))
                if self.console.is_terminal:
                    live.update(self.shown[-1][1])
                else:
                    self.console.print(_line(now - started, status, rates.now))
                time.sleep(1.0)

    def _left(self, edge: Edge) -> dict[str, int]:
        """Entries and relay sessions that are still there a moment after the last BYE."""
        left = {"entries_left": -1, "relay_sessions_left": -1}
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline and any(left.values()):
            status = edge.status()
            entries = (status["data_plane"] or {}).get("entries")
            left["entries_left"] = entries if entries is not None else -1
            if self.relay == "builtin":
                left["relay_sessions_left"] = sum(relay["sessions"] for relay in status["relays"])
            else:
                left["relay_sessions_left"] = edge.relay_sessions()
            time.sleep(0.25)
        return left

    def _report(self, counts: list, calls: dict[str, Call], packets: Account, left: dict[str, int], slow: int, cpu: dict[str, float]) -> dict[str, Any]:
        """cpu: seconds of processor time of each daemon over the run, idle time included."""
        delays = sorted(packets.delays_ms())
        carried = packets.offloaded
        offloaded = sum(d.first_offloaded is not None for d in packets.directions)
        report: dict[str, Any] = {
            "sip_server": self.sip_server,
            "relay": self.relay,
            "data_plane": self.data_plane,
            "calls": {
                "attempted": sum(c.attempted for c in counts),
                "completed": sum(c.succeeded for c in counts),
                "failed": sum(c.failed for c in counts) + sum(c.current for c in counts),
            },
            "streams": {"offloaded": offloaded, "not_offloaded": len(packets.directions) - offloaded},
            "packets": {
                "sent": packets.sent,
                "received": packets.received,
                "lost": packets.lost,
                "unreachable": packets.unreachable,
                "data_plane": carried,
                "relay": packets.received - carried,
            },
            "offload_share": round(carried / packets.received, 5) if packets.received else 0.0,
            "offload_delay_ms": {"p50": _percentile(delays, 50), "p99": _percentile(delays, 99)},
            "nat_calls": sum(call.caller == "natcaller" for call in calls.values()),
            **{f"{name}_cpu_ms_per_call": round(1000 * seconds / max(1, sum(c.attempted for c in counts)), 3) for name, seconds in cpu.items()},
            **left,
        }
        self._check(report, calls, packets, slow)
        return report

    def _check(self, report: dict[str, Any], calls: dict[str, Call], packets: Account, slow: int) -> None:
        planned = sum(lane.calls for lane in LANES)
        ends = collections.Counter(call.how for call in calls.values())
        expected: collections.Counter[str] = collections.Counter()
        for lane in LANES:
            expected[lane.ends] += lane.calls
        done = report["calls"]
        hung_up = ", ".join(f"{count} {how}" for how, count in sorted(ends.items()))
        talked = sum(call.answered or call.how == "CANCEL" for call in calls.values())
        checks = self.checks = [
            (f"all {planned} calls placed and ended as planned", done == {"attempted": planned, "completed": planned, "failed": 0}, f"{done}"),
            ("every kind of hang-up as planned", ends == expected, hung_up),
            (f"calls from behind NAT: {report['nat_calls']}", report["nat_calls"] == sum(lane.calls for lane in LANES if lane.host == "natcaller"), ""),
            ("media flowed both ways in every call that talked", len(packets.directions) == 2 * talked, f"{len(packets.directions)} streams of {talked} calls"),
            ("every stream was offloaded", report["streams"]["not_offloaded"] == 0, f"{report['streams']}"),
            (f"at least {SHARE_BAR:.0%} of packets carried by the data plane", report["offload_share"] >= SHARE_BAR, f"{report['offload_share']:.2%}"),
            ("no packet lost", report["packets"]["lost"] == 0 and report["packets"]["sent"] > 0, f"{report['packets']['lost']} of {report['packets']['sent']}"),
            ("no packet delivered twice", packets.duplicates == 0, f"{packets.duplicates}"),
            ("no table entry left", report["entries_left"] == 0, f"{report['entries_left']}"),
            ("no relay session left", report["relay_sessions_left"] == 0, f"{report['relay_sessions_left']}"),
            ("no process left", report["processes_left"] == 0, f"{report['processes_left']}"),
        ]
        self.ok = all(held for _, held, _ in checks)
        delay = report["offload_delay_ms"]
        self.console.print()
        for text, held, detail in checks:
            self.console.print(f"  [{'green' if held else 'red'}]{'ok  ' if held else 'FAIL'}[/] {text}" + (f"  ({detail})" if detail else ""), highlight=False)
        self.console.print(
            f"\n{done['attempted']} calls, up to {self.most_at_once} at once ({hung_up}). {report['packets']['sent']:,} media packets sent, "
            f"{report['packets']['received']:,} received; {report['packets']['data_plane']:,} came through the data plane "
            f"and {report['packets']['relay']:,} through the relay, whose sockets saw {slow:,} in all (media after a hang-up included). "
            f"Not counted: {report['packets']['unreachable']} packets to phones behind the NAT that had sent nothing yet, which nobody can deliver. "
            f"From the second party's first packet to the first one through the data plane: {delay['p50']} ms (median), {delay['p99']} ms (99 %), "
            "of which up to 20 ms is the wait for the next packet. "
            f"Processor time for a call, idle time included: agent {report['agent_cpu_ms_per_call']} ms, softswitch {report['softswitch_cpu_ms_per_call']} ms.",
            highlight=False,
        )


def _table(seconds: float, status: dict[str, Any], rates: dict[str, float]) -> Table:
    streams = status["streams"]
    table = Table(title=f"{seconds:4.0f} s", min_width=60)
    for column in ("calls", "offloaded", "learning", "relayed", "data plane packets/s", "relay packets/s"):
        table.add_column(column, justify="right")
    table.add_row(str(status["calls"]), *_streams(streams), f"{rates.get('data_plane', 0):,.0f}", f"{rates.get('relay', 0):,.0f}")
    return table


def _line(seconds: float, status: dict[str, Any], rates: dict[str, float]) -> str:
    offloaded, learning, relayed = _streams(status["streams"])
    return (
        f"{seconds:4.0f} s  calls {status['calls']:4}  streams: offloaded {offloaded:>4} learning {learning:>4} relayed {relayed:>4}"
        f"  packets/s: data plane {rates.get('data_plane', 0):6,.0f} relay {rates.get('relay', 0):5,.0f}"
    )


def _streams(streams: dict[str, int]) -> tuple[str, str, str]:
    offloaded, learning = streams.get("offloaded", 0), streams.get("learning", 0)
    return str(offloaded), str(learning), str(sum(streams.values()) - offloaded - learning)


def _percentile(ordered: list[float], percent: int) -> float | None:
    if len(ordered) < 2:
        return round(ordered[0], 1) if ordered else None
    return round(statistics.quantiles(ordered, n=100, method="inclusive")[percent - 1], 1)


def _xdp_mode(topology: Topology) -> str:
    """How the kernel runs the program on the edge's interfaces, in the kernel's own words."""
    names = {1: "native", 2: "generic", 3: "offloaded"}
    links = json.loads(topology.run("edge", "ip", "-j", "-d", "link", "show"))
    modes = {names.get(link["xdp"]["mode"], "mixed") for link in links if "xdp" in link}
    if not modes:
        raise LabError("no XDP program is attached to any interface of the edge")
    return "/".join(sorted(modes))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.splitlines()[0])
    parser.add_argument("--sip-server", choices=["auto", "opensips", "kamailio"], default="auto")
    parser.add_argument("--relay", choices=["auto", "rtpproxy", "rtpengine", "builtin"], default="auto")
    options = parser.parse_args(argv)
    console = Console(soft_wrap=True)
    try:
        demo = Demo(console, options.sip_server, options.relay)
        report = demo.run()
    except LabError as error:
        console.print(f"[red]the demo failed:[/] {error}", markup=True, highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; everything is cleaned up")
        return 130
    path = OUTPUT / "report.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    console.print(f"report: {path.relative_to(ROOT)}", highlight=False)
    return 0 if demo.ok else 1


if __name__ == "__main__":
    sys.exit(main())
