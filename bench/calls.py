"""The published relay scenario as calls: SIPp places them by way of the real SIP server and plays their media, each relay in turn.

Run as root: python -m bench.calls [--profile short|full|smoke] [--fresh] [--only WAY …]. Writes build/bench/calls/PROFILE/.

Kfoury et al., scenarios 1 and 2: 30 calls arrive a second, up to as many as the profile says (900 in the full one), G.711 both ways. What the
relay's processes and the softirqs of the machine take is kept over time; RTP packets are counted where phones send and receive them.
SIPp's media are its own threads, so it is soon the limit: a count that it did not send in full is marked, and none above it is tried.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for _folder in (".", "agent", "softswitch", "sipp-scenarios"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))

import make_media

from bench.control import process_cpu_s, rtpengine_argv
from bench.load import come_first, give_precedence
from bench.peers import Rtpengine, Rtpproxy
from bench.runs import Run, end_cleanly, raw_steps
from tests.lab.processes import CONTROL_PORT, PORTS, RELAY_PORT, Edge, Process, choose
from tests.lab.sipp import SCENARIOS, Sipp
from tests.lab.topology import EDGE_IP, SINK_PORTS, LabError, Topology

ARRIVALS = 30  # calls/s: Kfoury et al., section V
PACKETS_PER_S = 50
RTP_UDP_BYTES = 8 + 12 + 160
SETTLE_S = 0.8  # until the last call has been answered and its media flow
BEYOND_S = 1.0  # from the end of a call's media to its BYE: what comes after a hang-up is nobody's
EVERY_S = 0.25
KEPT_UP = 0.999
PHONES = ("caller", "callee")
WAYS = {"rtpproxy": "rtpproxy", "rtpengine": "rtpengine, user space", "builtin": "Shunt's built-in relay, slow path", "shunt": "Shunt, XDP"}
_COUNTED = f"""table inet bench {{
  counter sent {{ }}
  counter received {{ }}
  chain out {{ type filter hook output priority -10; ip daddr {EDGE_IP} udp dport {PORTS[0]}-{PORTS[1]} udp length {RTP_UDP_BYTES} counter name sent; }}
  chain in {{ type filter hook input priority -10; udp dport {SINK_PORTS} udp length {RTP_UDP_BYTES} counter name received; }}
}}"""


@dataclass(frozen=True, slots=True)
class Profile:
    counts: tuple[int, ...]  # calls at once, one after the other until SIPp does not keep up
    hold: float  # seconds with all calls up


PROFILES = {
    "smoke": Profile((10,), 1.0),
    "short": Profile((45,), 2.0),
    "full": Profile((90, 300, 600, 900), 15.0),
}


def missing(way: str) -> str:
    """What has to be installed before this way can run; empty when nothing."""
    return {"rtpproxy": Rtpproxy.missing, "rtpengine": Rtpengine.missing}.get(way, str)()


def make_edge(topology: Topology, work: Path, way: str) -> Edge:
    """The edge host with the processes of one way, not yet started, its configurations written. Raises LabError."""
    server, _ = choose("auto", "auto")
    relay = "rtpproxy" if way == "rtpproxy" or (way == "shunt" and not Rtpproxy.missing()) else "builtin"
    edge = Edge(topology, work, server, relay, data_plane=way == "shunt")
    config = edge.shunt_config()
    config["log"] = {"level": "warning"}
    edge.write_config(config)
    if way == "rtpengine":
        edge.relay = Process(topology, "edge", "rtpengine", rtpengine_argv(), work / "rtpengine.log")
        edge.relay_name = "rtpproxy"  # by its protocol
    text = edge.sip_server_config()
    if way in ("rtpproxy", "rtpengine"):
        text = text.replace(f":{CONTROL_PORT}", f":{RELAY_PORT}")
    (work / f"{server}.cfg").write_text(text)
    return edge


def start(edge: Edge, way: str) -> dict[str, Process]:
    """Start what this way needs; the processes whose time is kept, by what they are."""
    if way in ("rtpproxy", "rtpengine"):
        edge.start_relay()
        edge.start_sip_server()
        found = {"relay": edge.relay}
    else:
        edge.start()
        found = {"agent": edge.agent, "softswitch": edge.softswitch, "relay": edge.relay} if way == "shunt" else {"relay": edge.agent}
        if way == "shunt":
            edge.await_data_plane()
    running = {name: process for name, process in found.items() if process is not None}
    for process in (*running.values(), edge.sip_server):
        give_precedence(process.pid)
    return running


class Counters:
    """RTP packets as the phones' own kernels count them."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        for host in PHONES:
            topology.run(host, "nft", "-f", "-", stdin=_COUNTED)

    def read(self) -> dict[str, int]:
        """Sent by phones, received by phones, and what the edge host's own sockets got (the relay's share, RTCP included)."""
        found = {"sent": 0, "received": 0, "slow": self.topology.slow_packets()}
        for host in PHONES:
            text = self.topology.run(host, "nft", "list", "counters", "table", "inet", "bench")
            for name, packets in re.findall(r"counter (\w+) \{\s*packets (\d+)", text):
                found[name] += int(packets)
        return found


def softirq_s() -> float:
    """Seconds that all cores have spent in softirqs since boot, the phones' part included."""
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[7]) / os.sysconf("SC_CLK_TCK")


def step(folder: Path, way: str, count: int, hold: float) -> dict[str, Any]:
    """So many calls, arriving ARRIVALS a second, through one relay. Raises LabError."""
    work = folder / way
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    arriving = count / ARRIVALS
    media = round((arriving + SETTLE_S + hold) * PACKETS_PER_S) / PACKETS_PER_S
    make_media.audio(work / "media_caller.pcap", 0x0CA11E01, 1000, 440.0, media)
    make_media.audio(work / "media_callee.pcap", 0x0CA11EE2, 65000, 1000.0, media)
    with Topology("calls") as topology:
        edge = make_edge(topology, work, way)
        try:
            watched = start(edge, way)
            counters = Counters(topology)
            return {"way": way, "calls": count, "media_s": media, "server": edge.sip_server_name} | _place(topology, work, watched, counters, count, arriving, media)
        finally:
            edge.stop()


def _place(topology: Topology, work: Path, watched: dict[str, Process], counters: Counters, count: int, arriving: float, media: float) -> dict[str, Any]:
    common = {"media_port": 6000, "calls": count, "talk_ms": round((media + BEYOND_S) * 1000)}
    callee = Sipp(topology, work, "callee", "uas_answer", sip_port=5060, **common)
    caller = Sipp(topology, work, "caller", "uac_call", sip_port=5070, user="1000", rate=ARRIVALS, limit=2 * count, **common)
    for sipp in (callee, caller):
        # SIPp takes the media from beside the scenario.
        scenario = shutil.copy(SCENARIOS / f"{sipp.scenario}.xml", work)
        sipp.process.argv[sipp.process.argv.index("-sf") + 1] = str(scenario)
        sipp.process.cwd = work
    sippen = {"caller": caller.process, "callee": callee.process}
    samples: list[dict[str, float]] = []
    try:
        callee.start()
        caller.start()
        begun = time.monotonic()

        def sample() -> dict[str, float]:
            found = {"at": time.monotonic() - begun, "softirq": softirq_s()}
            found |= {name: process_cpu_s(process.pid) for name, process in watched.items()}
            for name, process in sippen.items():
                with contextlib.suppress(OSError):  # it has ended
                    found[name] = process_cpu_s(process.pid)
            samples.append({name: round(value, 4) for name, value in found.items()})
            return samples[-1]

        edges: list[tuple[dict[str, float], dict[str, int]]] = []
        for due in (arriving + SETTLE_S, media):  # all calls are up and talk
            while time.monotonic() - begun < due:
                time.sleep(max(0.0, min(EVERY_S, begun + due - time.monotonic())))
                sample()
            edges.append((sample(), counters.read()))
        with contextlib.suppress(subprocess.TimeoutExpired, LabError):
            caller.process.wait(arriving + BEYOND_S + 15)
        outcome = caller.counts()
        time.sleep(0.3)
        total = counters.read()
    finally:
        caller.stop()
        callee.stop()
    (first, counted), (last, counted_then) = edges
    window = {name: round(last[name] - first[name], 4) for name in last if name in first} | {name: counted_then[name] - counted[name] for name in counted}
    return {"good": outcome.succeeded, "failed": outcome.failed, "due": 2 * count * round(media * PACKETS_PER_S), "total": total, "window": window, "samples": samples}


def kept_up(found: dict[str, Any]) -> bool:
    """Whether SIPp placed every call and sent every packet of its media."""
    return found["good"] == found["calls"] and found["total"]["sent"] >= KEPT_UP * found["due"]


def analyse(steps: dict[str, dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
    """All figures from the raw steps, by key."""
    remarks = []
    if facts["busy_before"] > 0.1:
        remarks.append(f"{facts['busy_before']:.0%} of the cores' time was already used when the run began: its CPU figures are not to be quoted")
    rows = []
    for found in sorted(steps.values(), key=lambda one: (one["calls"], list(WAYS).index(one["way"]))):
        window, total = found["window"], found["total"]
        seconds = window["at"]
        row = {"way": found["way"], "calls": found["calls"], "good": found["good"], "due": found["due"], "sent": total["sent"], "lost": total["sent"] - total["received"], "kept_up": kept_up(found)}
        row |= {name: window[name] / seconds for name in ("relay", "agent", "softswitch", "softirq", "caller", "callee") if name in window}
        row["process_ns"] = 1e9 * sum(window.get(name, 0.0) for name in ("relay", "agent", "softswitch")) / window["received"] if window["received"] else None
        row["data_plane"] = max(0.0, 1 - window["slow"] / window["sent"]) if window["sent"] else 0.0
        rows.append(row)
        if not row["kept_up"]:
            remarks.append(
                f"{WAYS[found['way']]}, {found['calls']} calls: {found['good']} completed and {total['sent'] / found['due']:.1%} of the packets sent; relay and SIPp share the cores, so this is no limit of the relay alone"
            )
    return {"remarks": remarks, "rows": rows, "targets": []}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", choices=sorted(PROFILES), default="short")
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    parser.add_argument("--only", nargs="+", choices=list(WAYS), metavar="WAY", help=f"these relays alone: {', '.join(WAYS)}")
    arguments = parser.parse_args()
    end_cleanly()
    profile = PROFILES[arguments.profile]
    wanted = arguments.only or list(WAYS)
    left_out = [f"{WAYS[way]}: not measured, {missing(way)}" for way in wanted if missing(way)]
    for text in left_out:
        print(text)
    ways = [way for way in wanted if not missing(way)]
    versions = {peer.name: peer.version() for peer in (Rtpproxy, Rtpengine) if peer.name in ways}
    run = Run("calls" if not arguments.only else "calls-" + "-".join(arguments.only), arguments.profile, versions, fresh=arguments.fresh)
    come_first()
    run.plan(len(ways))
    for way in ways:
        for number, count in enumerate(profile.counts):
            run.plan(1 if number else 0)
            if not kept_up(run.step(f"{way}/{count:04}", lambda: step(run.folder / "work", way, count, profile.hold))):
                break
    results = analyse(raw_steps(run.folder), run.facts) | {"missing": left_out}
    run.results(results)
    from bench.report import calls

    calls.write(run, results)
    return calls.print_rows(results)


if __name__ == "__main__":
    sys.exit(main())
