"""The report on the control plane: delay of commands, calls per second, time to offload, what calls cost the agent, reconciling."""

from __future__ import annotations

from typing import Any

from bench.report.page import TARGET_HEAD, Page, heading_line, markdown, range_text, target_rows
from bench.runs import Run

_NAMES = {"direct": "the relay asked directly", "agent": "through the agent"}
_COLOURS = {"direct": "#b2182b", "agent": "#1b7837"}
_VERBS = {"U": "offer (U)", "L": "answer (L)", "D": "delete (D)"}
_LOADS = {"silent": "without media", "media": "every call put into the data plane"}
DELAY_HEAD = ("command, at 300 calls/s", "calls", "quantile", "relay directly, ms", "through the agent, ms", "added, ms")
RATE_HEAD = ("calls/s", "way", "kept", "p50 of U and L, ms", "p99, ms", "lost", "agent, % of a core")
SIP_HEAD = ("SIP calls/s", "way", "completed", "INVITE to 200: p50, ms", "p99, ms", "agent, CPU ms a call")
CALLS_HEAD = (
    "calls at once",
    "agent, CPU ms a call set up",
    "hung up",
    "memory, MiB",
    "KiB a call",
    "agent idle, % of a core",
    "softswitch, CPU ms a call set up",
    "U and L meanwhile: p50, ms",
    "p99, ms",
    "entries left",
)
OFFLOAD_HEAD = ("from", "calls", "p50, ms", "p99, ms", "most, ms", "of it writing the entries, p50, ms")


def delay_rows(results: dict[str, Any]) -> list[list[str]]:
    return [
        [_VERBS[verb], _LOADS[load], q, *(range_text(one[q][which], 3, 1000) for which in ("direct", "agent", "added"))]
        for load, found in results["delays_us"].items() for verb, one in found.items() for q in ("p50", "p99")
    ]  # fmt: skip


def _ms(us: float | None) -> str:
    return "" if us is None else f"{us / 1000:.2f}"


def rate_rows(results: dict[str, Any]) -> list[list[str]]:
    rows = []
    for way, one in results["rates"].items():
        for level in one["levels"]:
            share = f"{100 * level['agent_cpu']:.0f}" if way == "agent" else ""
            rows.append([f"{level['rate']:,.0f}", _NAMES[way], f"no: {level['why_not']}" if level["why_not"] else "yes", _ms(level["p50"]), _ms(level["p99"]), f"{level['lost']:,}", share])
    return rows


def sip_rows(results: dict[str, Any]) -> list[list[str]]:
    return [
        [
            f"{one['rate']:,}", f"{_NAMES[way]} ({one['server']})", f"{one['good']:,} of {one['calls']:,}", _ms(one["invite_us"].get("p50")), _ms(one["invite_us"].get("p99")),
            f"{1000 * one['agent_cpu_s'] / one['calls']:.2f}" if way == "agent" else "",
        ]
        for way, found in results["sip"].items() for one in found
    ]  # fmt: skip


def calls_rows(results: dict[str, Any]) -> list[list[str]]:
    return [
        [
            f"{one['answered']:,}", f"{1000 * one['set_up_cpu_s'] / one['calls']:.2f}", f"{1000 * one['hang_up_cpu_s'] / one['calls']:.2f}", f"{one['memory_mib']:.0f}",
            f"{1024 * (one['memory_mib'] - one['memory_before_mib']) / one['calls']:.1f}", f"{100 * one['idle']:.1f}", f"{1000 * one['softswitch_cpu_s'] / one['calls']:.2f}",
            _ms(one["set_up_us"].get("p50")), _ms(one["set_up_us"].get("p99")), f"{one['entries_left']:,}",
        ]
        for one in results["calls"]
    ]  # fmt: skip


def offload_rows(results: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, field, text in (
        ("learned", "packet_ms", "the later party's first packet; the caller's SDP names a private address: 5 packets and 80 ms by default"),
        ("confirmed", "packet_ms", "the later party's first packet; SDP names the right addresses"), ("trusted", "packet_ms", "the later party's first packet; the SIP server vouches for SDP (modifier A)"),
    ):  # fmt: skip
        one = results["offload"][name]
        values = one.get(field, {})
        rows.append([text, f"{one['offloaded']} of {one['calls']}", *(f"{values[q]:.1f}" if values else "" for q in ("p50", "p99", "max")), f"{one['write_ms']['p50']:.1f}" if values else ""])
    return rows


def _tables(results: dict[str, Any]) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    return [
        (TARGET_HEAD, target_rows(results)), (DELAY_HEAD, delay_rows(results)), (RATE_HEAD, rate_rows(results)), (SIP_HEAD, sip_rows(results)),
        (OFFLOAD_HEAD, offload_rows(results)), (CALLS_HEAD, calls_rows(results)),
    ]  # fmt: skip


def print_targets(results: dict[str, Any]) -> int:
    """Print what was found beside what was promised; the exit status."""
    for head, rows in _tables(results)[1:]:
        print("  ".join(f"{cell:>20}" if n else f"{cell:<30}" for n, cell in enumerate(head)))
        for row in rows:
            print("  ".join(f"{cell:>20}" if n else f"{cell:<30}" for n, cell in enumerate(row)))
    for text in results["remarks"]:
        print(f"! {text}")
    for target, wanted, found, verdict in target_rows(results):
        print(f"{target:<72} {wanted:>8}  {found:<40} {verdict}")
    return 1 if any(row["met"] is False for row in results["targets"]) else 0


def fill(page: Page, facts: dict[str, Any], results: dict[str, Any], steps: dict[str, dict[str, Any]]) -> None:
    """Add the tables and plots of a run to a page."""
    page.paragraph(
        "Commands as a SIP server sends them, by the clock, over UDP: to the relay itself, and to the agent in front of the same relay, in turns. A delay is from just before "
        "the sending to the kernel's time stamp on the reply. What the agent adds is the difference of the quantiles within a repetition."
    )
    for text in results["remarks"]:
        page.remark(text)
    tables = _tables(results)
    page.heading("Targets")
    page.targets(tables[0][1])
    page.heading("Delay of a command")
    page.table(*tables[1])
    for load, cpu in results["cpu_us_per_call"].items():
        page.paragraph(f"Processor time for a call (U, L and D), {_LOADS[load]}: agent {range_text(cpu['agent'], 0)} µs, softswitch {range_text(cpu['softswitch'], 0)} µs.")
    page.paragraph("Where every call is put into the data plane, the relay only answers commands: that alone is what it is asked for directly.")
    with page.plot("Delay of commands at 300 calls/s, all repetitions: offers (left), answers (middle), deletes (right).", columns=3) as axes:
        for folder, way, colour, style, label in (
            ("delay", "direct", _COLOURS["direct"], "-", _NAMES["direct"]), ("delay", "agent", _COLOURS["agent"], "-", _NAMES["agent"]),
            ("media", "agent", _COLOURS["agent"], ":", f"{_NAMES['agent']}, {_LOADS['media']}"),
        ):  # fmt: skip
            found = [step for key, step in steps.items() if key.startswith(f"{folder}/") and key.endswith(way)]
            for one, verb in zip(axes, ("U", "L", "D")):
                values = sorted(value / 1000 for step in found for value in step["delays_us"][verb])
                one.plot(values, [(n + 1) / len(values) for n in range(len(values))], style, color=colour, label=label)
                one.set_xscale("log")
                one.set_xlabel(f"{_VERBS[verb]}, ms")
        axes[0].set_ylabel("part of the commands")
        axes[0].legend(fontsize=7)
    page.heading("Calls per second")
    page.table(*tables[2])
    with page.plot("Delay of offers and answers at p99 against calls set up per second; crosses: rates that were not kept.") as axes:
        for way, colour in _COLOURS.items():
            levels = [level for level in results["rates"][way]["levels"] if level["p99"] is not None]
            axes.plot([level["rate"] for level in levels], [level["p99"] / 1000 for level in levels], "-", color=colour, label=_NAMES[way])
            for clean, mark in ((True, "o"), (False, "x")):
                axes.plot([level["rate"] for level in levels if (not level["why_not"]) is clean], [level["p99"] / 1000 for level in levels if (not level["why_not"]) is clean], mark, color=colour)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("calls/s")
        axes.set_ylabel("ms")
        axes.legend(fontsize=7)
    page.table(*tables[3])
    page.paragraph("The callee rings for 100 ms before it answers, which is in every time from INVITE to 200.")
    page.heading("Until the media is in the data plane")
    page.table(*tables[4])
    page.heading("What calls cost the agent")
    page.table(*tables[5])
    page.paragraph("All calls are in the data plane with four entries each, their relay only answers commands; each party has sent one packet.")
    with page.plot("Memory of the agent against calls.") as axes:
        axes.plot([one["calls"] for one in results["calls"]], [one["memory_mib"] for one in results["calls"]], "o-", color=_COLOURS["agent"])
        axes.set_ylabel("MiB")
        axes.set_xscale("log")
        axes.set_xlabel("calls")
    page.facts(facts)


def text(facts: dict[str, Any], results: dict[str, Any]) -> str:
    """The run as an entry of the log, in Markdown."""
    remarks = "".join(f"- {remark}\n" for remark in results["remarks"])
    return f"## Control plane: {heading_line(facts)}\n\n" + (remarks + "\n" if remarks else "") + "\n".join(markdown(*table) for table in _tables(results))


def write(run: Run, results: dict[str, Any], steps: dict[str, dict[str, Any]] | None = None) -> None:
    """Write report.html and report.md of a run."""
    from bench.runs import raw_steps

    page = Page("The control plane")
    fill(page, run.facts, results, steps or raw_steps(run.folder))
    run.write("report.md", text(run.facts, results))
    print(f"report: {run.write('report.html', page.text())}")
