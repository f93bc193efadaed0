"""The same streams through every relay: what a packet costs, how long it takes, what is lost, and how far it goes.

Run as root: python -m bench.relay_peers [--profile short|full] [--fresh]. Writes build/bench/relay/PROFILE/: raw/ (one
file for each step), results.json, report.html, report.md. Exits 1 when a target was missed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for _folder in (".", "operator"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))

from bench import iperf
from bench.load import PACKETS_PER_S, Load, Measured, Wires, later_than, quantile
from bench.peers import PEERS, Peer, Rtpproxy, Shunt
from bench.runs import Run, end_cleanly, raw_steps, spread
from shunt.quality import score as quality
from shunt.quality.codecs import codec_of

PCMA = 8
WARM_S = 1.0  # fifty packets of each stream: past those whose jitter the data plane measures one by one
LADDER_WARM_S = 0.4
TOGETHER_WARM_S = 0.3
BASE_PPS = 10_000
LOST_AT_MOST = 1e-4  # of the packets sent: what still counts as "before loss"
TOO_LATE_NS = 100_000_000  # as good as lost to a listener: sockets hold seconds of a stream before they lose any
KEPT_UP = 0.999
WINDOW_S = 0.1
NOISY = 0.25  # relative range of the baseline's repetitions beyond which costs are not quoted
NOISY_PART = 0.2  # largest part of a cost that the baseline's uncertainty may be
BUSY = 0.1  # share of the machine's cores that others may use before a run
SESSIONS = 900  # streams of the papers' scenario, one direction each
TIMES_SATURATION = 20
IN_KERNEL = ("nftables", "shunt", "redirect")  # whose cost is mostly that of a frame that comes alone
FLOOR = "redirect"  # the peer that does the least a relay in XDP can do


@dataclass(frozen=True, slots=True)
class Profile:
    repetitions: int
    seconds: float  # of a measurement at the base rate
    ladder_seconds: float
    arrivals: float  # streams that start per second, up to SESSIONS
    hold: float  # seconds after the last arrival
    factor: float  # from one rate of the growing load to the next
    bisections: int
    most_pps: int
    together: tuple[int, ...]  # frames handed over together at the base rate, besides one by one


PROFILES = {
    # Whether everything works: a minute, and no figure to be quoted.
    "smoke": Profile(1, 0.5, 0.3, 900.0, 0.5, 1.5, 0, 25_000, (8,)),
    "short": Profile(3, 1.5, 0.5, 450.0, 0.5, 4.0, 2, 3_000_000, (8,)),
    "full": Profile(5, 5.0, 3.0, 30.0, 15.0, 1.5, 3, 12_000_000, (2, 4, 8, 16, 32)),
}


def batch_of(pps: float) -> int:
    """Frames handed over together: what a network card that waits 50 µs would collect, 64 at most."""
    return max(1, min(64, int(pps * 50e-6)))


def streams_of(pps: float, peer: type[Peer] | None) -> int:
    """As many streams of 50 packets/s as make this rate, in whole calls; a peer's largest number when that is less."""
    most = Peer.most_calls if peer is None else peer.most_calls
    return 2 * max(1, min(most, round(pps / (2 * PACKETS_PER_S))))


class Bench:
    """What the steps share: the wires, the load generator, and one peer at a time."""

    def __init__(self, run: Run, profile: Profile, wires: Wires, load: Load, peers: list[type[Peer]]) -> None:
        self.run, self.profile, self.wires, self.load, self.peers = run, profile, wires, load, peers

    def measure(self, cls: type[Peer] | None, pps: float, seconds: float, streams: int | None = None, *, warm: float = WARM_S, **more: Any) -> dict[str, Any]:
        """One measurement with a peer started for it, or (None) over the bare wire, after `warm` seconds of the same that do not count."""
        count = streams or streams_of(pps, cls)
        if cls is None:
            self.load.route(count // 2)
            with self.load.direct():
                return self._warm_and_run(pps, seconds, (), warm, **more).record() | {"pps": pps}
        peer = cls(self.wires, self.run.folder / "work", self.load.other_cpus)
        try:
            self.load.route(peer.start(count // 2))
            return self._warm_and_run(pps, seconds, peer.pids, warm, **more).record() | {"pps": pps}
        finally:
            peer.stop()

    def _warm_and_run(self, pps: float, seconds: float, pids: tuple[int, ...], warm: float, **more: Any) -> Measured:
        batch = more.pop("batch", batch_of(pps))
        # Every stream has been heard by the relay and its paths are in the caches before anything is measured.
        self.load.run(min(pps, BASE_PPS) if pids else pps, max(warm, 2.2 * self.load.streams / min(pps, BASE_PPS) if pids else 0), pids=pids, batch=batch)
        return self.load.run(pps, seconds, pids=pids, batch=batch, **more)

    def cost(self) -> None:
        """Every peer at the base rate, in turns, with the bare wire before, between and after."""
        for n in range(self.profile.repetitions):
            turn = n % len(self.peers)
            for key, cls in (("direct-before", None), *((cls.name, cls) for cls in self.peers[turn:] + self.peers[:turn]), ("direct-after", None)):
                self.run.step(f"cost/{n}/{key}", lambda: self.measure(cls, BASE_PPS, self.profile.seconds, every=WINDOW_S))

    def together(self) -> None:
        """What the kernel itself relays, at the base rate again, but frames come several together."""
        peers = [cls for cls in self.peers if cls.name in IN_KERNEL]
        for size in self.profile.together if peers else ():
            for n in range(self.profile.repetitions):
                for key, cls in (("direct-before", None), *((cls.name, cls) for cls in peers), ("direct-after", None)):
                    self.run.step(f"together/{size:02}/{n}/{key}", lambda: self.measure(cls, BASE_PPS, self.profile.seconds / 2, warm=TOGETHER_WARM_S, batch=size, every=WINDOW_S))

    def sessions(self) -> None:
        """The papers' scenario: streams arrive one by one, up to 900; CPU over time, then delay and loss of each."""
        seconds = SESSIONS / self.profile.arrivals + self.profile.hold
        for cls in (None, *self.peers):
            name = cls.name if cls else "direct"
            self.run.step(
                f"sessions/{name}",
                lambda: self.measure(cls, SESSIONS * PACKETS_PER_S, seconds, SESSIONS, grow=self.profile.arrivals, every=min(0.5, seconds / 40)),
            )

    def ladder(self, cls: type[Peer] | None) -> float:
        """Higher and higher rates until something is lost or the generator cannot follow; returns the highest clean rate."""
        name = cls.name if cls else "direct"
        self.run.plan(8)

        def clean(pps: float) -> bool:
            found = self.run.step(f"ladder/{name}/{round(pps):08}", lambda: self.measure(cls, pps, self.profile.ladder_seconds, warm=LADDER_WARM_S))
            return is_clean(found)

        pps, good, bad = float(BASE_PPS), 0.0, 0.0
        while pps <= self.profile.most_pps:
            if not clean(pps):
                # Once more, further up: what others do on the machine must not pass for the relay's limit.
                if bad:
                    break
                bad = pps
            else:
                good, bad = pps, 0.0
            pps = round(pps * self.profile.factor)
        for _ in range(self.profile.bisections if bad and good else 0):
            middle = round(math.sqrt(good * bad))
            if clean(middle):
                good = middle
            else:
                bad = middle
        return good


def unusable(found: dict[str, Any]) -> int:
    """Packets lost, garbled, sent elsewhere, or too late for a listener."""
    return found["sent"] - found["received"] + found["corrupt"] + found["misdelivered"] + later_than(found["delay"], TOO_LATE_NS)


def is_clean(found: dict[str, Any]) -> bool:
    """Whether the generator kept up and next to nothing became unusable."""
    return found["sent"] >= KEPT_UP * found["offered"] and unusable(found) <= LOST_AT_MOST * found["sent"]


def what_ended(found: dict[str, Any]) -> str:
    """Why a rate was not clean: `loss`, `delay` or `generator`."""
    if unusable(found) <= LOST_AT_MOST * found["sent"]:
        return "generator"
    return "loss" if unusable(found) - later_than(found["delay"], TOO_LATE_NS) > LOST_AT_MOST * found["sent"] else "delay"


def cpu_ns(found: dict[str, Any]) -> float:
    """CPU time of the relay's processes and of network softirqs, per received packet. The softirqs that interrupted the process are in both clocks."""
    return (found["process_ns"] + found["softirq_ns"] - found["softirq_in_process_ns"]) / max(1, found["received"])


def typical_cpu_ns(found: dict[str, Any]) -> float:
    """As cpu_ns, but the median of windows of WINDOW_S: what others do to the caches for a moment is in few of them. Of the packets sent."""
    windows = []
    for (_, sent, _, process, softirq, both), (_, sent_then, _, process_then, softirq_then, both_then) in zip(found["samples"], found["samples"][1:]):
        if sent_then - sent >= found["pps"] * WINDOW_S / 2:
            windows.append((process_then - process + softirq_then - softirq - (both_then - both)) / (sent_then - sent))
    return median(windows) if windows else cpu_ns(found)


def mos_of_streams(found: dict[str, Any]) -> list[float]:
    """MOS of each stream by the E-model, from its measured loss, delay and delay variation; nothing else is in the way."""
    values = []
    per_stream = found["sent"] / found["streams"]
    for n in range(found["streams"]):
        lost, sent = found["stream_lost"].get(str(n), (0, max(quality.LEAST_PACKETS, round(per_stream))))
        jitter_ms = found["stream_variation_mean"][n] / 1e6
        measured = max(sent - lost, quality.LEAST_PACKETS)
        one = quality.Measurement(packets=measured, measured=measured, lost=lost, jitter_ms=jitter_ms)
        value = quality.score(one, codec_of(PCMA), PCMA, delay_ms=found["stream_delay_mean"][n] / 1e6).mos
        if value is not None:
            values.append(value)
    return values


def analyse(read: Callable[[str], list[dict[str, Any]]], facts: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """All figures from the raw steps. read: the steps below a folder of raw/, each with its `key`."""
    by_repetition: dict[str, dict[str, dict[str, Any]]] = {}
    for found in read("cost"):
        _, n, name = found["key"].split("/")
        by_repetition.setdefault(n, {})[name] = found
    complete = [found for found in by_repetition.values() if "direct-before" in found and "direct-after" in found]
    base = [typical_cpu_ns(found[which]) for found in complete for which in ("direct-before", "direct-after")]
    remarks = []
    if facts["busy_before"] > BUSY:
        remarks.append(f"{facts['busy_before']:.0%} of the cores' time was already used when the run began: delays and limits are not to be quoted")
    figures: dict[str, Any] = {}
    # How far two baselines of one repetition are apart is how well a cost is known.
    doubt = max(abs(typical_cpu_ns(found["direct-before"]) - typical_cpu_ns(found["direct-after"])) for found in complete)
    relative = (max(base) - min(base)) / spread(base)["median"]
    if relative > NOISY:
        remarks.append(f"the bare wire cost {min(base):.0f} to {max(base):.0f} ns a packet, a range of {relative:.0%} (at most {NOISY:.0%}): no cost of this run is to be quoted")
    for name in names:
        costs, delays = [], {q: [] for q in (0.5, 0.99)}
        lost = sent = 0
        for found in complete:
            if name not in found:
                continue
            wire = (typical_cpu_ns(found["direct-before"]) + typical_cpu_ns(found["direct-after"])) / 2
            costs.append(typical_cpu_ns(found[name]) - wire)
            for q, values in delays.items():
                values.append(quantile(found[name]["delay"], q))
            lost += found[name]["sent"] - found[name]["received"]
            sent += found[name]["sent"]
        if not costs:
            continue
        above = [typical_cpu_ns(found[name]) - typical_cpu_ns(found[FLOOR]) for found in complete if name in found and FLOOR in found]
        figures[name] = {"cpu_ns": spread(costs), "above_floor_ns": spread(above) if above else None, "p50_ns": spread(delays[0.5]), "p99_ns": spread(delays[0.99]), "lost": lost, "sent": sent}
        figures[name]["kept_up"] = all(found[name]["sent"] >= KEPT_UP * found[name]["offered"] for found in complete if name in found)
    if held_up := [name for name, one in figures.items() if not one["kept_up"]]:
        remarks.append(f"the generator did not keep up at {BASE_PPS:,} packets/s with {', '.join(held_up)}: it was held up by other work on its core")
    if "shunt" in figures:
        for name in figures:
            for key, one in (("ratio", "shunt"), ("ratio_of_floor", FLOOR)):
                if ratios := ratios_of(complete, name, one):
                    figures[name][key] = spread(ratios)
        own = figures["shunt"]["above_floor_ns"]
        for name in figures:
            if own and own["least"] > 0 and name not in ("shunt", FLOOR):
                figures[name]["ratio_above_floor"] = figures[name]["above_floor_ns"]["median"] / own["median"]
        if doubt > NOISY_PART * figures["shunt"]["cpu_ns"]["median"]:
            remarks.append(f"the bare wire's cost is known to {doubt:.0f} ns only, which is more than a fifth of Shunt's: ratios are not to be quoted")
    together = together_of(read("together"))
    wires = {found["pps"]: cpu_ns(found) for found in read("ladder/direct") if is_clean(found)}
    for name in (*names, "direct"):
        steps = sorted(read(f"ladder/{name}"), key=lambda found: found["pps"])
        good = [found["pps"] for found in steps if is_clean(found)]
        first = next((found for found in steps if found["pps"] > max(good, default=0)), None)
        if steps:
            limit = None if first is None else what_ended(first)
            levels = [
                {
                    "pps": found["pps"], "sent": found["sent"], "offered": found["offered"], "lost": found["sent"] - found["received"],
                    "too_late": later_than(found["delay"], TOO_LATE_NS), "cpu_ns": cpu_ns(found),
                    "cost_ns": cpu_ns(found) - wires[found["pps"]] if found["pps"] in wires and is_clean(found) else None,
                    "p50_ns": quantile(found["delay"], 0.5) if found["received"] else None,
                    "p99_ns": quantile(found["delay"], 0.99) if found["received"] else None,
                    "mos": mos_quantiles(found),
                }
                for found in steps
            ]  # fmt: skip
            figures.setdefault(name, {})["ladder"] = {"highest_clean_pps": max(good, default=0), "limited_by": limit, "levels": levels}
    for found in read("sessions"):
        name = found["key"].split("/")[1]
        figures.setdefault(name, {})["sessions"] = {
            "sent": found["sent"], "offered": found["offered"], "lost": found["sent"] - found["received"], "streams_with_loss": len(found["stream_lost"]),
            "p50_ns": quantile(found["delay"], 0.5), "p99_ns": quantile(found["delay"], 0.99), "mos": mos_quantiles(found),
        }  # fmt: skip
    for key in ("twenty", "table"):
        for found in read(key):
            figures.setdefault("shunt", {})[key] = {
                "pps": found["pps"], "offered": found["offered"], "sent": found["sent"], "lost": found["sent"] - found["received"], "cpu_ns": cpu_ns(found),
                "entries": found.get("entries"), "p50_ns": quantile(found["delay"], 0.5), "p99_ns": quantile(found["delay"], 0.99),
            }  # fmt: skip
    iperfs = {found["key"].split("/")[1]: found for found in read("iperf")}
    return {"iperf": iperfs, "direct_ns": spread(base), "doubt_ns": doubt, "remarks": remarks, "figures": figures, "together": together, "targets": targets(figures, together)}


def together_of(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each number of frames handed over together: what the relays cost, and how many times Shunt's cost that is."""
    by_size: dict[int, dict[str, dict[str, dict[str, Any]]]] = {}
    for found in steps:
        _, size, n, name = found["key"].split("/")
        by_size.setdefault(int(size), {}).setdefault(n, {})[name] = found
    rows = []
    for size, by_repetition in sorted(by_size.items()):
        complete = [found for found in by_repetition.values() if "direct-before" in found and "direct-after" in found]
        costs: dict[str, list[float]] = {}
        for found in complete:
            wire = (typical_cpu_ns(found["direct-before"]) + typical_cpu_ns(found["direct-after"])) / 2
            for name in IN_KERNEL:
                if name in found:
                    costs.setdefault(name, []).append(typical_cpu_ns(found[name]) - wire)
        ratios = {name: ratios_of(complete, name, "shunt") for name in costs if name != "shunt"}
        rows.append({"size": size, "costs": {name: spread(values) for name, values in costs.items()}, "ratios": {name: spread(values) for name, values in ratios.items() if values}})
    return rows


def ratios_of(repetitions: list[dict[str, dict[str, Any]]], name: str, one: str) -> list[float]:
    """What a peer costs beyond the bare wire, times what another costs, in each repetition that has both."""
    found = []
    for steps in repetitions:
        if name in steps and one in steps:
            wire = (typical_cpu_ns(steps["direct-before"]) + typical_cpu_ns(steps["direct-after"])) / 2
            if typical_cpu_ns(steps[one]) > wire:
                found.append((typical_cpu_ns(steps[name]) - wire) / (typical_cpu_ns(steps[one]) - wire))
    return found


def mos_quantiles(found: dict[str, Any]) -> dict[str, float]:
    values = sorted(mos_of_streams(found))
    return {"least": values[0], "p5": values[len(values) // 20], "median": values[len(values) // 2]} if values else {}


def targets(figures: dict[str, Any], together: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was promised, what was found; met is None where the peer was not there."""
    rows = []

    def add(text: str, wanted: str, found: str, met: bool | None) -> None:
        rows.append({"target": text, "wanted": wanted, "found": found, "met": met})

    for name, least in (("rtpproxy", 100), ("rtpengine", 100), ("nftables", 10)):
        ratio = figures.get(name, {}).get("ratio")
        text = f"CPU per relayed packet at {BASE_PPS:,} packets/s, {name} / Shunt"
        if ratio is None:
            add(text, f"≥ {least}", "not measured", None)
        else:
            add(text, f"≥ {least}", f"{ratio['median']:.1f} ({ratio['least']:.1f}–{ratio['most']:.1f})", ratio["median"] >= least)
        if floor := figures.get(name, {}).get("ratio_of_floor"):
            add(f"what the floor reaches, {name} / {FLOOR}", "–", f"{floor['median']:.1f} ({floor['least']:.1f}–{floor['most']:.1f})", None)
    shunt, forward = figures.get("shunt", {}), figures.get("forward", {})
    for name in ("rtpproxy", "rtpengine", "nftables"):
        if "ratio_above_floor" in figures.get(name, {}):
            add(f"CPU per relayed packet beyond what {FLOOR} costs, {name} / Shunt", "–", f"{figures[name]['ratio_above_floor']:.0f}", None)
    for one in together:
        if ratio := one["ratios"].get("nftables"):
            text = f"CPU per relayed packet at {BASE_PPS:,} packets/s, {one['size']} together, nftables / Shunt"
            add(text, "–", f"{ratio['median']:.1f} ({ratio['least']:.1f}–{ratio['most']:.1f})", None)
    costs = {name: {level["pps"]: level["cost_ns"] for level in figures.get(name, {}).get("ladder", {}).get("levels", []) if level["cost_ns"]} for name in ("nftables", "shunt")}
    if common := [pps for pps in costs["nftables"] if costs["shunt"].get(pps, 0) > 0]:
        add(
            f"CPU per relayed packet at {max(common):,.0f} packets/s, in batches of {batch_of(max(common))}, nftables / Shunt",
            "–",
            f"{costs['nftables'][max(common)] / costs['shunt'][max(common)]:.1f}",
            None,
        )
    for q in ("p50_ns", "p99_ns"):
        if q in shunt and q in forward:
            ours, floor = shunt[q]["median"], forward[q]["median"]
            add(f"delay {q[:3]}, Shunt / plain forwarding", "≤ 1", f"{ours / floor:.2f} ({ours / 1000:.1f} µs / {floor / 1000:.1f} µs)", ours <= floor)
    twenty = shunt.get("twenty")
    if twenty:
        sent_enough = twenty["sent"] >= KEPT_UP * twenty["offered"]
        text = f"{twenty['lost']:,} of {twenty['sent']:,} lost" + ("" if sent_enough else f"; the generator reached only {twenty['sent'] / twenty['offered']:.0%} of it")
        add(f"loss at {TIMES_SATURATION} × rtpproxy's limit ({twenty['pps']:,.0f} packets/s)", "none", text, twenty["lost"] == 0 and sent_enough)
    else:
        add(f"loss at {TIMES_SATURATION} × rtpproxy's limit", "none", "not measured", None)
    return rows


def reader(run_folder: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Reads the steps of a folder of a run's raw/, or the one step of that name; "" is all of them."""
    steps = raw_steps(run_folder)

    def read(folder: str) -> list[dict[str, Any]]:
        return [found | {"key": key} for key, found in steps.items() if not folder or key == folder or key.startswith(f"{folder}/")]

    return read


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", choices=sorted(PROFILES), default="short")
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    parser.add_argument("--only", nargs="+", choices=[cls.name for cls in PEERS], help="these peers alone")
    arguments = parser.parse_args()
    end_cleanly()
    profile = PROFILES[arguments.profile]
    wanted = [cls for cls in PEERS if not arguments.only or cls.name in arguments.only]
    peers = [cls for cls in wanted if not cls.missing()]
    missing = [f"{cls.title}: not measured, {cls.missing()}" for cls in wanted if cls.missing()]
    missing += [f"The iperf3 scenario: not measured, {iperf.missing()}"] if iperf.missing() else []
    for text in missing:
        print(text)
    run = Run("relay" if not arguments.only else "relay-" + "-".join(arguments.only), arguments.profile, {cls.name: cls.version() for cls in peers}, fresh=arguments.fresh)
    with Wires() as wires, Load(wires) as load:
        bench = Bench(run, profile, wires, load, peers)
        run.plan(profile.repetitions * (len(peers) + 2 + len(profile.together) * (2 + sum(cls.name in IN_KERNEL for cls in peers))) + len(peers) + 4)
        bench.cost()
        bench.together()
        bench.sessions()
        limits = {cls.name: bench.ladder(cls) for cls in peers}
        bench.ladder(None)
        if limits.get(Rtpproxy.name) and Shunt in peers:
            twenty = TIMES_SATURATION * limits[Rtpproxy.name]
            run.step("twenty", lambda: bench.measure(Shunt, twenty, profile.seconds))
        if Shunt in peers:
            run.step("table", lambda: bench.measure(iperf.FullShunt, BASE_PPS, profile.seconds) | {"entries": iperf.FullShunt.further})
        if not iperf.missing() and not arguments.only:
            for way in iperf.WAYS:
                run.step(f"iperf/{way}", lambda: iperf.measure(wires, run.folder / "work", load.other_cpus, way, profile.seconds))
    read = reader(run.folder)
    results = analyse(read, run.facts, [cls.name for cls in peers])
    results["missing"] = missing
    results["titles"] = {cls.name: cls.title for cls in PEERS} | {"direct": "the bare wire"}
    run.results(results)
    from bench.report import relay

    relay.write(run, results, read)
    return relay.print_targets(results)


if __name__ == "__main__":
    sys.exit(main())
