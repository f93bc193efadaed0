"""The report on the data plane's cost per packet, its rate and its table."""

from __future__ import annotations

import math
from typing import Any

from bench.report.page import Page, heading_line, markdown, range_text
from bench.runs import Run

_COLOURS = {"ipv4": "#1b7837", "vlan": "#762a83", "ipv6": "#2166ac", "to6": "#b35806", "to4": "#e08214"}
_TITLES = {"ipv4": "IPv4", "vlan": "IPv4, tagged on arrival", "ipv6": "IPv6", "to6": "IPv4 in, IPv6 out", "to4": "IPv6 in, IPv4 out"}
COST_HEAD = ("packet", "entries", "payload, bytes", "ns a packet", "instructions", "cycles", "cache misses")
OTHER_HEAD = ("figure", "found")


def cost_rows(results: dict[str, Any]) -> list[list[str]]:
    rows = []
    for one in results["costs"]:
        counts = [f"{one['counted'][name]:.1f}" if name in one["counted"] else "–" for name in ("instructions", "cycles", "cache_misses")]
        rows.append([_TITLES[one["kind"]], f"{one['entries']:,}", f"{one['payload']}", range_text(one["ns"]), *counts])
    return rows


def other_rows(results: dict[str, Any]) -> list[list[str]]:
    live, table = results["live"], results["table"]
    rows = [[f"{_TITLES[kind]}: ns more for every tenfold number of entries", f"{value:.1f}"] for kind, value in results["slope_ns_per_decade"].items()]
    rows += [[f"reading one cache line of the table, {int(entries):,} entries, ns", range_text(one)] for entries, one in results["lines"].items()]
    if results["not_counted"]:
        rows.append(["the processor's counters", f"cannot be read here ({results['not_counted']})"])
    alone = range_text(live["alone"], 2, 1e6) if math.isfinite(live["alone"]["most"]) else "more than could be told from the generator's own"
    rows += [
        ["one core that generates, relays and receives, million packets/s", range_text(live["relay"], 2, 1e6)],
        ["the same without the relay, million packets/s", range_text(live["direct"], 2, 1e6)],
        ["one core that only relays (from these two), million packets/s", alone],
        ["lost in these runs", f"{live['lost']:,} of {live['sent']:,}"],
        ["entries inserted / read with counters / deleted a second", " / ".join(f"{table[f'{name}_per_s']:,.0f}" for name in ("inserted", "read", "deleted"))],
        ["memory for 1,050,000 entries, MiB; bytes an entry", f"{table['memory_mib']:.0f}; {table['bytes_per_entry']:.0f}"],
    ]
    return rows


def print_targets(results: dict[str, Any]) -> int:
    """Print the figures. This bench states how cost grows; what it may be is bench-relay-table's."""
    for row in (*cost_rows(results), *other_rows(results)):
        print("  ".join(f"{cell:<70}" if n == 0 and len(row) == 2 else f"{cell:<26}" for n, cell in enumerate(row)).rstrip())
    for text in results["remarks"]:
        print(f"! {text}")
    return 0


def fill(page: Page, facts: dict[str, Any], results: dict[str, Any]) -> None:
    """Add the tables and plots of a run to a page."""
    page.paragraph(
        "Cost of a packet: the kernel runs the XDP program on packets in memory; each is the next RTP packet of another stream, in an order without pattern, and what "
        "the wrapper costs that makes them is subtracted. All that a relayed packet costs is in it: parsing, lookup, comparison, rewriting, checksums, counters, loss "
        "and jitter, redirect; the network card's driver is not."
    )
    for text in results["remarks"]:
        page.remark(text)
    page.heading("Cost")
    page.table(COST_HEAD, cost_rows(results))
    page.paragraph("Medians of the differences, least and most in brackets.")
    by_entries = [one for one in results["costs"] if one["by"] == "entries"]
    with page.plot("ns a packet against the number of entries; the dotted line is what reading one cache line of the table costs on this machine.") as axes:
        for kind, colour in _COLOURS.items():
            points = [(one["entries"], one["ns"]) for one in by_entries if one["kind"] == kind]
            if points:
                grows = results["slope_ns_per_decade"].get(kind)
                label = _TITLES[kind] + (f": {grows:.1f} ns for every tenfold" if grows is not None else "")
                medians = [ns["median"] for _, ns in points]
                errors = [[ns["median"] - ns["least"] for _, ns in points], [ns["most"] - ns["median"] for _, ns in points]]
                axes.errorbar([x for x, _ in points], medians, yerr=errors, fmt="o-", ms=4, capsize=3, color=colour, label=label)
        axes.plot([int(entries) for entries in results["lines"]], [one["median"] for one in results["lines"].values()], ":", color="#555555", label="one cache line")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("entries")
        axes.set_ylabel("ns a packet")
        axes.legend(fontsize=8)
    with page.plot("ns a packet against RTP payload; 1,000 entries.") as axes:
        points = [one for one in results["costs"] if one["by"] == "payload"]
        axes.plot([one["payload"] for one in points], [one["ns"]["median"] for one in points], "o-", color=_COLOURS["ipv4"])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("bytes of payload")
        axes.set_ylabel("ns a packet")
    page.heading("Rate, table and memory")
    page.table(OTHER_HEAD, other_rows(results))
    page.facts(facts)


def text(facts: dict[str, Any], results: dict[str, Any]) -> str:
    """The run as an entry of the log, in Markdown."""
    remarks = "".join(f"- {remark}\n" for remark in results["remarks"])
    tables = [markdown(COST_HEAD, cost_rows(results)), markdown(OTHER_HEAD, other_rows(results))]
    return f"## Data plane, packet by packet: {heading_line(facts)}\n\n" + (remarks + "\n" if remarks else "") + "\n".join(tables)


def write(run: Run, results: dict[str, Any]) -> None:
    """Write report.html and report.md of a run."""
    page = Page("The data plane, packet by packet")
    fill(page, run.facts, results)
    run.write("report.md", text(run.facts, results))
    print(f"report: {run.write('report.html', page.text())}")
