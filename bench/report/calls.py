"""The report on calls that SIPp places: what each relay takes of the processor, over time and per packet, and what is lost."""

from __future__ import annotations

from typing import Any

from bench.calls import WAYS
from bench.report.page import COLOURS, Page, heading_line, markdown
from bench.runs import Run, raw_steps

HEAD = (
    "calls at once", "relay", "calls completed", "RTP packets sent, of those due", "lost", "in the data plane", "relay, % of a core", "agent and softswitch, %", "CPU ns of these processes a packet",
    "softirqs, all, %", "SIPp, %",
)  # fmt: skip


def rows(results: dict[str, Any]) -> list[list[str]]:
    found = []
    for one in results["rows"]:
        ours = f"{100 * (one['agent'] + one['softswitch']):.1f}" if "agent" in one and "softswitch" in one else ""
        relay = one.get("relay")
        found.append([
            f"{one['calls']:,}", WAYS[one["way"]], f"{one['good']:,}", f"{one['sent']:,} of {one['due']:,}" + ("" if one["kept_up"] else " (SIPp fell behind)"), f"{one['lost']:,}",
            f"{one['data_plane']:.1%}", "" if relay is None else f"{100 * relay:.1f}", ours, "" if one["process_ns"] is None else f"{one['process_ns']:,.0f}",
            f"{100 * one['softirq']:.0f}", f"{100 * (one.get('caller', 0) + one.get('callee', 0)):.0f}",
        ])  # fmt: skip
    return found


def print_rows(results: dict[str, Any]) -> int:
    """Print what was found; the exit status: 1 when nothing was measured."""
    for row in rows(results):
        print("; ".join(f"{head}: {cell}" for head, cell in zip(HEAD, row) if cell))
    for text in results["remarks"]:
        print(f"! {text}")
    return 0 if results["rows"] else 1


def fill(page: Page, facts: dict[str, Any], results: dict[str, Any], steps: dict[str, dict[str, Any]]) -> None:
    """Add the table and the plots of a run to a page."""
    page.paragraph(
        "Kfoury et al., scenarios 1 and 2, with their generator: SIPp places 30 calls a second by way of the real SIP server and plays G.711 both ways; all that is the relay's comes from "
        "its processes' clocks while all calls are up. Softirqs are those of the whole machine: what the phones' own sending and receiving cost is in them, alike for every relay. "
        "The agent's part with Shunt is that of a steady state: no call begins or ends meanwhile."
    )
    for text in (*results["missing"], *results["remarks"]):
        page.remark(text)
    page.table(HEAD, rows(results))
    most: dict[str, dict[str, Any]] = {}
    for step in steps.values():
        if step["way"] not in most or step["calls"] > most[step["way"]]["calls"]:
            most[step["way"]] = step
    caption = "Fig. 5: processor of the relay's processes (left; with Shunt its relay, agent and softswitch together) and of all softirqs (right) over time, at each relay's largest number of calls."
    with page.plot(caption, columns=2) as both:
        for way, step in most.items():
            times, relay, softirq = [], [], []
            for before, after in zip(step["samples"], step["samples"][1:]):
                seconds = after["at"] - before["at"]
                if seconds >= 0.1:
                    times.append(after["at"])
                    relay.append(sum(100 * (after[name] - before[name]) / seconds for name in ("relay", "agent", "softswitch") if name in after and name in before))
                    softirq.append(100 * (after["softirq"] - before["softirq"]) / seconds)
            for axes, values in zip(both, (relay, softirq)):
                axes.plot(times, values, color=COLOURS[way], label=f"{WAYS[way]}, {step['calls']} calls")
        for axes in both:
            axes.set_xlabel("s")
            axes.set_ylabel("% of a core")
            axes.set_ylim(bottom=0)
        both[0].legend(fontsize=7)
    page.facts(facts)


def text(facts: dict[str, Any], results: dict[str, Any]) -> str:
    """The run as an entry of the log, in Markdown."""
    remarks = "".join(f"- {remark}\n" for remark in (*results["missing"], *results["remarks"]))
    return f"## Calls as SIPp places them: {heading_line(facts)}\n\n" + (remarks + "\n" if remarks else "") + markdown(HEAD, rows(results))


def write(run: Run, results: dict[str, Any]) -> None:
    """Write report.html and report.md of a run."""
    page = Page("Calls as SIPp places them")
    fill(page, run.facts, results, raw_steps(run.folder))
    run.write("report.md", text(run.facts, results))
    print(f"report: {run.write('report.html', page.text())}")
