"""The report on relays: tables and plots after the published evaluation's figures 5, 6a, 6b, 6c and 7."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.load import ROOT, bin_edge
from bench.report.page import COLOURS, TARGET_HEAD, Page, heading_line, markdown, range_text, target_rows
from bench.relay_peers import IN_KERNEL, is_clean, mos_of_streams
from bench.runs import Run

Read = Callable[[str], list[dict[str, Any]]]


def _us(ns: float) -> str:
    return f"{ns / 1000:,.1f}"


def cost_rows(results: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, one in results["figures"].items():
        if "cpu_ns" not in one:
            continue
        ratio = range_text(one["ratio"], 1) if "ratio" in one and name != "shunt" else ""
        above = range_text(one["above_floor_ns"]) if one["above_floor_ns"] and name != "redirect" else ""
        rows.append([results["titles"][name], range_text(one["cpu_ns"]), ratio, above, range_text(one["p50_ns"], 1, 1000), range_text(one["p99_ns"], 1, 1000), f"{one['lost']:,} of {one['sent']:,}"])
    return rows


COST_HEAD = ("relay", "CPU ns a packet", "times Shunt's", "of it beyond XDP that only redirects", "delay p50, µs", "delay p99, µs", "lost")


TOGETHER_HEAD = ("frames together, at 10,000 packets/s", "relay", "CPU ns a packet", "times Shunt's")


def together_rows(results: dict[str, Any]) -> list[list[str]]:
    alone = {"size": 1, "costs": {}, "ratios": {}}
    for name, one in results["figures"].items():
        if name in IN_KERNEL and "cpu_ns" in one:
            alone["costs"][name] = one["cpu_ns"]
            if name != "shunt" and "ratio" in one:
                alone["ratios"][name] = one["ratio"]
    return [
        [str(one["size"]), results["titles"][name], range_text(cost), range_text(one["ratios"][name], 1) if name in one["ratios"] else ""]
        for one in (alone, *results["together"]) for name, cost in one["costs"].items()
    ]  # fmt: skip


def limit_rows(results: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, one in results["figures"].items():
        ladder = one.get("ladder")
        if not ladder:
            continue
        why = {"loss": "loss", "delay": "packets more than 100 ms late", "generator": "the generator fell behind: its core was full, or others used it", None: "the end of the ladder"}[
            ladder["limited_by"]
        ]
        at = next((level for level in ladder["levels"] if level["pps"] == ladder["highest_clean_pps"]), None)
        highest = ladder["highest_clean_pps"]
        there = [_us(at["p99_ns"]), f"{at['cpu_ns']:,.0f}"] if at else ["", ""]
        rows.append([results["titles"][name], f"{highest:,.0f}", f"{highest / 100:,.0f}", why, *there])
    return rows


LIMIT_HEAD = ("relay", "packets/s before loss or lateness", "two-way calls", "ended by", "delay p99 there, µs", "CPU ns a packet there, receiving included")
IPERF_HEAD = ("iperf3, one UDP stream of 1,400-byte datagrams", "entries in the table", "sent", "Gbit/s", "relayed", "lost, the receiver's socket included", "jitter, ms")


def iperf_rows(results: dict[str, Any]) -> list[list[str]]:
    """The third scenario: what iperf3 sent, what the relay passed on, what arrived."""
    return [
        [
            results["titles"][way], f"{one['entries']:,}" if one["entries"] else "", f"{one['sent']:,}", f"{one['bits_per_s'] / 1e9:.2f}",
            f"{one['relayed']:,} (its set-up included)" if one["relayed"] is not None else "not counted", f"{one['lost']:,}", f"{one['jitter_ms']:.3f}",
        ]
        for way, one in results["iperf"].items()
    ]  # fmt: skip


RESOURCES = ROOT / "build" / "p4" / "resources.json"
TABLE_TWO_HEAD = ("program", "chip", "IPv4 entries", "stages", "SRAM", "hash bits", "TCAM")
# Kfoury et al., Table II, the program on its own: 32-bit hashes that do not age.
_PAPER = (("published", "Tofino", "1,000,000", "", "97.84 %", "86.4 %", "0 %"), ("published", "Tofino", "1,050,000", "", "107.5 %", "89.8 %", "0 %"))


def table_two_rows(path: Path = RESOURCES) -> list[tuple[str, ...]]:
    """The paper's figures, and beside them what the compiler says of each build of ours; only the paper's where it has not run."""
    rows = list(_PAPER)
    if path.exists():
        for one in json.loads(path.read_text())["builds"]:
            shares = (f"{100 * one[name] / one[f'{name}_available']:.1f} %" for name in ("sram", "hash_bits", "tcam"))
            rows.append((one["name"], one["chip"], f"{one['relay']:,}", f"{one['stages']} of {one['stages_available']}", *shares))
    return rows


def table_two_note(path: Path = RESOURCES) -> str:
    """By which compiler, or that there was none."""
    if not path.exists():
        return "Ours are not there: no compiler (bf-p4c) has made the switch program's builds on this machine (make p4)."
    return f"By the compiler's own reports: {json.loads(path.read_text())['compiler']}."


def print_targets(results: dict[str, Any]) -> int:
    """Print what was found beside what was promised; the exit status."""
    for row in cost_rows(results):
        print("  ".join(f"{cell:>24}" if n else f"{cell:<46}" for n, cell in enumerate(row)))
    for text in results["remarks"]:
        print(f"! {text}")
    for target, wanted, found, verdict in target_rows(results):
        print(f"{target:<62} {wanted:>6}  {found:<48} {verdict}")
    return 1 if any(row["met"] is False for row in results["targets"]) else 0


def cdf(histogram: dict[str, int]) -> tuple[list[float], list[float]]:
    """µs and the part of the packets that took at most that long."""
    total, seen = sum(histogram.values()), 0
    xs, ys = [], []
    for number in sorted(map(int, histogram)):
        seen += histogram[str(number)]
        xs.append(bin_edge(number + 1) / 1000)
        ys.append(seen / total)
    return xs, ys


def _merged(steps: list[dict[str, Any]], field: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for found in steps:
        for number, count in found[field].items():
            total[number] = total.get(number, 0) + count
    return total


def _by_rate(read: Read) -> dict[float, dict[str, dict[str, Any]]]:
    """The steps of the growing load by packet rate and relay; those at which anything arrived."""
    found: dict[float, dict[str, dict[str, Any]]] = {}
    for step in read("ladder"):
        name = step["key"].split("/")[1]
        if name != "direct" and step["received"]:
            found.setdefault(step["pps"], {})[name] = step
    return found


def _telling_rates(by_rate: dict[float, dict[str, dict[str, Any]]]) -> list[float]:
    """Three rates (or the first of them for another): where all is well, where it begins not to be, and as high as two relays were taken."""
    if not by_rate:
        return []
    ordered = sorted(by_rate)
    failed = next((rate for rate in ordered if not all(is_clean(step) for step in by_rate[rate].values())), ordered[0])
    return [ordered[0], failed, max((rate for rate in ordered if len(by_rate[rate]) > 1), default=ordered[0])]


def fill(page: Page, facts: dict[str, Any], results: dict[str, Any], read: Read) -> None:
    """Add the tables and plots of a run to a page."""
    titles, figures = results["titles"], results["figures"]
    page.paragraph(
        "The same RTP streams (G.711, 50 packets/s of 172 bytes, two to a call) through every relay in the same run. Frames come from inside the kernel, as a network "
        "card's driver hands them up; sender and receiver count every sequence number and read one clock. CPU is the time of the relay's processes and of network "
        "softirqs, less what the same frames cost over a bare wire without a relay; the receiver's share is so taken out."
    )
    for text in (*results["missing"], *results["remarks"]):
        page.remark(text)
    page.heading("Targets")
    page.targets(target_rows(results))
    page.heading("10,000 packets/s")
    page.table(COST_HEAD, cost_rows(results))
    page.paragraph(
        "XDP that only redirects is the floor: a frame comes in by one veth and goes out by the other. What a relay costs beyond it is the relay's own work; the floor itself is "
        "receiving and sending on veths, one frame at a time, and no program in XDP can cost less here."
    )
    page.paragraph(f"Median of the repetitions, least and most in brackets. The bare wire: {range_text(results['direct_ns'])} ns a packet, known to {results['doubt_ns']:.0f} ns.")
    with page.plot("CPU time per relayed packet at 10,000 packets/s; bars are medians, lines the range of the repetitions.") as axes:
        named = [(name, one["cpu_ns"]) for name, one in figures.items() if "cpu_ns" in one]
        medians = [max(one["median"], 1) for _, one in named]
        errors = [[max(m - o["least"], 0) for m, (_, o) in zip(medians, named)], [max(o["most"] - m, 0) for m, (_, o) in zip(medians, named)]]
        axes.bar([name for name, _ in named], medians, color=[COLOURS[name] for name, _ in named], yerr=errors, capsize=4)
        axes.set_yscale("log")
        axes.set_ylabel("ns a packet")
    if results["together"]:
        page.paragraph(
            "The same rate, but several frames handed over together, as from a sender whose streams tick in step, or by a card that waits longer: the price of waking two interfaces is "
            "then shared, and what is left is more and more each relay's own work."
        )
        page.table(TOGETHER_HEAD, together_rows(results))
    by_name: dict[str, list[dict[str, Any]]] = {}
    for found in read("cost"):
        by_name.setdefault(found["key"].split("/")[2].removesuffix("-before").removesuffix("-after"), []).append(found)
    with page.plot("Delay (left, Fig. 6a) and delay variation between consecutive packets of a stream (right, Fig. 6b), all packets of all repetitions.", columns=2) as both:
        for axes, field, label in zip(both, ("delay", "variation"), ("delay, µs", "delay variation, µs")):
            for name, steps in by_name.items():
                axes.plot(*cdf(_merged(steps, field)), color=COLOURS[name], label=titles[name].split(",")[0], drawstyle="steps-post")
            axes.set_xscale("log")
            axes.set_xlabel(label)
            axes.set_ylabel("part of the packets")
        both[0].legend(fontsize=7)
    sessions = {found["key"].split("/")[1]: found for found in read("sessions")}
    page.heading("900 sessions, arriving one by one")
    with page.plot("CPU over time (Fig. 5): processes of the relay (left), network softirqs, those of sending and receiving included (right), in percent of one core.", columns=2) as both:
        for name, found in sessions.items():
            samples = found["samples"]
            times = [(a[0] + b[0]) / 2 for a, b in zip(samples, samples[1:])]
            process = [100 * ((b[3] - a[3]) - (b[5] - a[5])) / ((b[0] - a[0]) * 1e9) for a, b in zip(samples, samples[1:])]
            softirq = [100 * (b[4] - a[4]) / ((b[0] - a[0]) * 1e9) for a, b in zip(samples, samples[1:])]
            for axes, values in zip(both, (process, softirq)):
                axes.plot(times, values, color=COLOURS[name], label=titles[name].split(",")[0])
        for axes in both:
            axes.set_xlabel("s")
            axes.set_ylabel("% of a core")
        both[1].legend(fontsize=7)
    page.table(
        ("relay", "sent", "offered", "lost", "streams with loss", "delay p50, µs", "delay p99, µs", "MOS median", "MOS least"),
        [
            (
                titles[name], f"{one['sent']:,}", f"{one['offered']:,}", f"{one['lost']:,}", one["streams_with_loss"], _us(one["p50_ns"]), _us(one["p99_ns"]),
                one["mos"].get("median", ""), one["mos"].get("least", ""),
            )
            for name, whole in figures.items() if (one := whole.get("sessions"))
        ],
    )  # fmt: skip
    with page.plot("Loss of each stream (Fig. 6c).") as axes:
        for name, found in sessions.items():
            losses = sorted([100 * lost / sent for lost, sent in found["stream_lost"].values() if sent] + [0.0] * (found["streams"] - len(found["stream_lost"])))
            axes.plot(losses, [(n + 1) / len(losses) for n in range(len(losses))], color=COLOURS[name], label=titles[name].split(",")[0], drawstyle="steps-post")
        axes.set_xlabel("loss of a stream, %")
        axes.set_ylabel("part of the streams")
        axes.set_xlim(left=-0.1)
        axes.legend(fontsize=7)
    page.heading("Growing load")
    page.table(LIMIT_HEAD, limit_rows(results))
    page.paragraph("The generator's core also runs the softirqs that frames arrive in: where the kernel relays, generating and relaying share that one core, and the limit is that core's.")
    with page.plot("Packets lost or more than 100 ms late (left) and MOS of the worst twentieth of the streams (right, after Fig. 7) against the packet rate.", columns=2) as both:
        for name, one in figures.items():
            levels = [level for level in one.get("ladder", {}).get("levels", []) if level["sent"]]
            unusable = [100 * (level["lost"] + level["too_late"]) / level["sent"] for level in levels]
            both[0].plot([level["pps"] for level in levels], unusable, "o-", ms=3, color=COLOURS[name], label=titles[name].split(",")[0])
            rated = [level for level in levels if level["mos"]]
            both[1].plot([level["pps"] for level in rated], [level["mos"]["p5"] for level in rated], "o-", ms=3, color=COLOURS[name])
        for axes, label in zip(both, ("lost or late, %", "MOS")):
            axes.set_xscale("log")
            axes.set_xlabel("packets/s offered")
            axes.set_ylabel(label)
        both[0].set_ylim(bottom=0)
        both[1].set_ylim(1, 4.6)
        both[0].legend(fontsize=7)
    by_rate = _by_rate(read)
    if rates := _telling_rates(by_rate):
        with page.plot("MOS of all streams (Fig. 7) at the lowest rate, at the first that a relay did not keep, and at the highest that two relays were offered.", columns=3) as three:
            for axes, rate in zip(three, rates):
                for name, found in by_rate[rate].items():
                    values = sorted(mos_of_streams(found))
                    axes.plot(values, [(n + 1) / len(values) for n in range(len(values))], color=COLOURS[name], label=titles[name].split(",")[0], drawstyle="steps-post")
                axes.set_title(f"{rate:,.0f} packets/s, {rate / 100:,.0f} calls", fontsize=8)
                axes.set_xlim(1, 4.6)
                axes.set_xlabel("MOS")
            three[0].set_ylabel("part of the streams")
            three[0].legend(fontsize=6)
    with page.plot("CPU time per relayed packet against the packet rate, what the bare wire costs at that rate taken off; one run each, as far as it was clean.") as axes:
        for name, one in figures.items():
            costs = [(level["pps"], level["cost_ns"]) for level in one.get("ladder", {}).get("levels", []) if level["cost_ns"] and level["cost_ns"] > 0]
            if name != "direct" and costs:
                axes.plot([pps for pps, _ in costs], [ns for _, ns in costs], "o-", ms=3, color=COLOURS[name], label=titles[name].split(",")[0])
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("packets/s")
        axes.set_ylabel("ns a packet")
        axes.legend(fontsize=7)
    page.table(IPERF_HEAD, iperf_rows(results))
    page.heading("Resources of the switch program (Table II)")
    page.paragraph(table_two_note())
    page.table(TABLE_TWO_HEAD, table_two_rows())
    for key, text in (("twenty", "Shunt at twenty times rtpproxy's limit"), ("table", "Shunt with 800,000 further entries")):
        one = figures.get("shunt", {}).get(key)
        if one:
            page.paragraph(f"{text}: {one['pps']:,.0f} packets/s offered, {one['sent']:,} sent, {one['lost']:,} lost, delay p50 {_us(one['p50_ns'])} µs, p99 {_us(one['p99_ns'])} µs.")
    page.heading("The generator's own limits")
    page.table(
        ("step", "offered", "sent", "given up", "late: mean, µs", "late: most, µs"),
        [(found["key"], f"{found['offered']:,}", f"{found['sent']:,}", f"{found['skipped']:,}", _us(found["late_mean"]), _us(found["late_max"])) for found in read("") if "offered" in found],
    )
    page.facts(facts)


def text(facts: dict[str, Any], results: dict[str, Any]) -> str:
    """The run as an entry of the log, in Markdown."""
    remarks = "".join(f"- {remark}\n" for remark in (*results["missing"], *results["remarks"]))
    tables = [markdown(TARGET_HEAD, target_rows(results)), markdown(COST_HEAD, cost_rows(results)), markdown(TOGETHER_HEAD, together_rows(results)), markdown(LIMIT_HEAD, limit_rows(results))]
    tables += [markdown(IPERF_HEAD, iperf_rows(results)), f"Table II. {table_two_note()}\n\n" + markdown(TABLE_TWO_HEAD, table_two_rows())]
    return f"## Relays: {heading_line(facts)}\n\n" + (remarks + "\n" if remarks else "") + "\n".join(tables)


def write(run: Run, results: dict[str, Any], read: Read) -> None:
    """Write report.html and report.md of a run."""
    page = Page("Relays side by side")
    fill(page, run.facts, results, read)
    run.write("report.md", text(run.facts, results))
    print(f"report: {run.write('report.html', page.text())}")
