"""The report on conferences."""

from __future__ import annotations

from typing import Any

from bench.meetings import SIZES, software
from bench.report.page import Page, heading_line, markdown, range_text, target_rows
from bench.runs import Run

_COLOURS = {"softswitch": "#1b7837", "user space": "#b2182b", "Janus": "#ef8a62", "NRA": "#1b7837", "RA-R": "#2166ac", "RA-SR": "#762a83", "two-party": "#111111"}
_LINES = {"S-LR": ("#1b7837", "-"), "S-LR, 32 offsets": ("#1b7837", "--"), "S-LM": ("#b2182b", "-")}
_SCENARIOS = {
    "hosts/1": ("Every host sends one stream to all others (Tables I, III and V)", "hosts"),
    "hosts/2": ("Every host sends two streams, and every other host takes both (Tables II and IV)", "hosts"),
    "receivers": ("One sends two streams, the others listen", "receivers"),
    "load": ("Under load: everybody sends what a participant of Scallop's table 1 sends (figure 19)", "people"),
}
_PUBLISHED = {
    "hosts/1": "Published (Table V, two hosts): 0.859 ms on the average by the P4 program on a software switch, 2,573 ms by a server in Python. The servers here are in C, so the ratios are smaller.",
    "hosts/2": "Published (Tables II and IV, four hosts): 1.2 ms on the average by the P4 program, 34.8 s by the server, which was overloaded.",
    "load": "Published (figure 19): 26.8 times less at the median and 8.5 times at p99 by a hardware switch than by Mediasoup, in a call of two.",
}
DELAY_HEAD = ("", "carried by", "p50, µs", "p99, µs", "least", "mean", "most", "last copy, p50", "p50: times the softswitch's", "p99: times", "lost", "twice")
PLANE_HEAD = ("sent to the server", "packets", "part", "kbytes", "part", "data plane alone", "to the control plane", "participants got")
NUMBER_HEAD = ("algorithm", "loss", "reordered", "requests for nothing, of the packets due: worst", "mean", "of all requests", "losses hidden")
LOADED_HEAD = ("design", "participants", "fit", "loaded", "trees", "nodes", "streams", "writes", "s", "of it the allocator", "MiB in the kernel", "senders whose packets were followed")
FIT_HEAD = ("participants", "design", "all send, nobody adapted", "ends at", "all send, all adapted", "ends at", "one sends, nobody adapted", "ends at")


def _group(key: str) -> str:
    return next(name for name in _SCENARIOS if key.startswith(name + "/"))


def delay_rows(results: dict[str, Any], group: str) -> list[list[str]]:
    """Of one kind of scenario."""
    rows = []
    for key, each in results["compared"].items():
        if _group(key) == group:
            for title, one in each.items():
                ratio = one["ratio"]
                rows.append([
                    key.rpartition("/")[2].lstrip("0").replace("-", " "), title, range_text(one["p50"]), range_text(one["p99"]), *(f"{one[name]['median']:,.0f}" for name in ("min", "avg", "max", "last")),
                    *(range_text(ratio[name], 1) if title != "softswitch" else "1" for name in ("p50", "p99")), f"{one['lost']:,} of {one['due']:,}", f"{one['twice']:,}",
                ])  # fmt: skip
    return rows


def plane_rows(results: dict[str, Any]) -> list[list[str]]:
    found = results["planes"]
    packets, size = found["total"]

    def row(name: str, sent: list[int], data: int, control: int, got: Any) -> list[str]:
        return [name, f"{sent[0]:,}", f"{100 * sent[0] / packets:.2f} %", f"{sent[1] / 1000:,.1f}", f"{100 * sent[1] / size:.2f} %", f"{data:,}", f"{control:,}", str(got)]

    rows = [row(one["type"], one["sent"], one["data_plane"][0], one["control_plane"][0], f"{one['received'][0]:,}") for one in found["rows"] if one["sent"][0]]
    control, data = found["control"], [packets - found["control"][0], size - found["control"][1]]
    rows.append(row("control plane", control, 0, control[0], ""))
    rows.append(row("data plane", data, data[0], 0, ""))
    return rows


def number_rows(results: dict[str, Any]) -> list[list[str]]:
    return [
        [one["algorithm"], f"{one['loss']:.0%}", f"{one['reordered']:.1%}", *(f"{100 * one[name]:.2f} %" for name in ("worst", "mean", "of_all_requests")), f"{one['masked']:,}"]
        for one in results["numbers"]
    ]


def fit_rows(results: dict[str, Any]) -> list[list[str]]:
    by: dict[tuple[int, str], dict[tuple[bool, bool], dict[str, Any]]] = {}
    for one in results["meetings"]["curves"]:
        by.setdefault((one["participants"], one["design"]), {})[one["senders"] > 1, bool(one["adapted"])] = one
    rows = []
    for (people, design), each in by.items():
        cells = [each.get(which) for which in ((True, False), (True, True), (False, False))]
        rows.append([str(people), design, *(text for cell in cells for text in ((f"{cell['meetings']:,}", cell["bound_by"]) if cell else ("–", "")))])
    return rows


def loaded_rows(results: dict[str, Any]) -> list[list[str]]:
    names = ("people", "fit", "meetings", "trees", "nodes", "streams", "writes", "seconds", "allocator_s", "kernel_mib", "probed")
    return [[one["design"], *(f"{one[name]:,}" for name in names)] for one in results["meetings"]["loaded"]]


def shares_text(results: dict[str, Any]) -> str:
    """The sentence that table 1 is there for."""
    found = results["planes"]
    return (
        f"{100 * found['packets_by_data_plane']:.2f} % of the packets and {100 * found['bytes_by_data_plane']:.2f} % of the bytes were the data plane's alone (published: 96.46 % and 99.65 %), "
        f"{results['people_of_planes']} people, {results['seconds_of_planes']:.0f} s from the first check on. {found['copied_to_agent']} packets were copied to the agent; "
        f"the agent took {100 * found['agent_cpu_share']:.1f} % of a core. The data plane's own counters: {', '.join(f'{kind} {count:,}' for kind, count in found['counted'].items())} packets."
    )


# Scallop's table 1: RTCP and STUN, of the packets and of the bytes, in percent.
_PUBLISHED_RTCP, _PUBLISHED_STUN = (5.06, 0.48), (0.38, 0.05)
_SPLIT = (
    "Differently from the published split all RTCP is the control plane's here: sender reports, NACKs and PLIs, which the published program replicates or forwards in the data plane, go through the agent. "
    "A packet with a template structure is carried by the data plane and counts as the control plane's too, as there. RTP in the control plane is what came before its source was learned. "
    "The streams of this run are slower than the published ones, so that reports weigh more; of the published mix this split would leave {:.2f} % of the packets and {:.2f} % of the bytes to the data plane alone."
).format(*(100 - rtcp - stun for rtcp, stun in zip(_PUBLISHED_RTCP, _PUBLISHED_STUN)))


def cost_text(results: dict[str, Any]) -> str:
    costs = results["meetings"]["ns_per_copy"]
    return ", ".join(f"{title} {range_text(one)} ns" for title, one in costs.items())


def print_figures(results: dict[str, Any]) -> int:
    """Print what was found beside what was promised; the exit status."""
    for group, (title, _) in _SCENARIOS.items():
        if rows := delay_rows(results, group):
            print(f"{title}: delay of a copy")
            for row in (DELAY_HEAD, *rows):
                print("  ".join(f"{row[n]:<{width}}" for n, width in ((0, 10), (1, 10), (2, 24), (3, 24), (8, 28), (9, 22), (10, 18))).rstrip())
    print(shares_text(results))
    for row in loaded_rows(results):
        print("  ".join(f"{name} {cell}" for name, cell in zip(LOADED_HEAD[:7], row)))
    print(f"processor time of a copy under load: {cost_text(results)}")
    for text in (*results["missing"], *results["remarks"]):
        print(f"! {text}")
    for target, wanted, found, verdict in target_rows(results):
        print(f"{target:<62} {wanted:>24}  {found:<36} {verdict}")
    return 1 if any(row["met"] is False for row in results["targets"]) else 0


def fill(page: Page, facts: dict[str, Any], results: dict[str, Any]) -> None:
    """Add the tables and plots of a run to a page."""
    page.paragraph(
        "The same people with the same packets, carried in turns by the softswitch, by a plain server in user space (bench/sfu.c: one thread, epoll, packets in batches) and by Janus's video room, "
        "its encryption off. Delay is from just before a packet is sent to the kernel's time stamp on each copy; whoever receives is behind one of two interfaces. Ratios are taken within a repetition; "
        "median, least and most."
    )
    for text in (*results["missing"], *results["remarks"]):
        page.remark(text)
    page.heading("Targets")
    page.targets(target_rows(results))
    for group, (title, axis) in _SCENARIOS.items():
        rows = delay_rows(results, group)
        if not rows:
            continue
        page.heading(title)
        page.table((axis, *DELAY_HEAD[1:]), rows)
        if group in _PUBLISHED:
            page.paragraph(_PUBLISHED[group])
        if group != "load":
            _plot_delays(page, results, group, axis)
    for key, each in results["distributions"].items():
        with page.plot(f"Delay of all copies, {key.rpartition('/')[2].replace('-', ' ')}: all (left), the slowest tenth (right); after figure 19.", columns=2) as both:
            for title, points in each.items():
                for axes in both:
                    axes.plot([us for us, _ in points], [share for _, share in points], color=_COLOURS[title], label=title, drawstyle="steps-post")
            for axes in both:
                axes.set_xscale("log")
                axes.set_xlabel("µs")
            both[0].set_ylabel("part of the copies")
            both[1].set_ylim(0.9, 1.0)
            both[0].legend(fontsize=8)
    page.heading("Control and data plane (Scallop, table 1)")
    page.paragraph(shares_text(results))
    page.table(PLANE_HEAD, plane_rows(results))
    page.paragraph(_SPLIT)
    page.heading("Requests for nothing after rewriting sequence numbers (figure 18)")
    page.paragraph(
        'The published figure: "the fraction of extra retransmissions triggered by the receiver due to a mismatch between the rewritten sequence number and the ideal rewritten sequence number an oracle may have '
        'generated", of which it does not say what the whole is. Here a request for nothing is a number that no packet has (a gap that should have been closed) or whose packet was dropped because it came late; '
        "the whole is the packets due to the receiver, and beside it all requests, those for what the network lost included."
    )
    with page.plot(
        "Requests for nothing over packets due, the worst of two kinds of picture and two targets: against loss (left) and against packets reordered by up to four places (right).", columns=2
    ) as both:
        for algorithm, (colour, style) in _LINES.items():
            for axes, name, other in zip(both, ("loss", "reordered"), ("reordered", "loss")):
                points = sorted((one[name], one["worst"]) for one in results["numbers"] if one["algorithm"] == algorithm and not one[other])
                axes.plot([100 * x for x, _ in points], [100 * y for _, y in points], style, color=colour, marker="o", ms=3, label=algorithm)
        both[0].plot((0, 10, 10, 20), (5, 5, 7.5, 7.5), ":", color="#555555", label="published, S-LR")
        for axes, label in zip(both, ("lost, %", "reordered, %")):
            axes.set_yscale("symlog", linthresh=1)
            axes.set_ylim(-0.1, 200)
            axes.set_xlabel(label)
        both[0].set_ylabel("%")
        both[0].legend(fontsize=8)
    page.table(NUMBER_HEAD, number_rows(results))
    _fill_meetings(page, results)
    page.heading("The generator's own limits")
    page.table(
        ("step", "carried by", "packets sent", "given up", "late at most, µs"),
        [(key, title, f"{one['packets']:,}", f"{one['skipped']:,}", f"{one['late_us']:,}") for key, each in results["compared"].items() for title, one in each.items()],
    )
    page.facts(facts)


def _plot_delays(page: Page, results: dict[str, Any], group: str, axis: str) -> None:
    with page.plot(f"Delay of a copy by the number of {axis}: p50 (full) and p99 (dotted).", columns=2) as both:
        for title in next(iter(results["compared"].values())):
            each = [(int(key.rpartition("/")[2]), one[title]) for key, one in results["compared"].items() if _group(key) == group]
            for name, style in (("p50", "o-"), ("p99", "o:")):
                both[0].plot([count for count, _ in each], [one[name]["median"] for _, one in each], style, ms=3, color=_COLOURS[title], label=title if name == "p50" else None)
                if title != "softswitch":
                    medians = [one["ratio"][name]["median"] for _, one in each]
                    errors = [
                        [max(0.0, one["ratio"][name]["median"] - one["ratio"][name]["least"]) for _, one in each],
                        [max(0.0, one["ratio"][name]["most"] - one["ratio"][name]["median"]) for _, one in each],
                    ]
                    both[1].errorbar([count for count, _ in each], medians, yerr=errors, fmt=style, ms=3, capsize=3, color=_COLOURS[title])
        both[0].set_yscale("log")
        both[1].set_yscale("log")
        both[1].axhline(1.0, color="#777777", lw=0.8)
        both[0].set_ylabel("µs")
        both[1].set_ylabel("times the softswitch's")
        for axes in both:
            axes.set_xlabel(axis)
        both[0].legend(fontsize=8)


def _fill_meetings(page: Page, results: dict[str, Any]) -> None:
    found = results["meetings"]
    page.heading("Meetings by tree design (figures 15 to 17)")
    page.paragraph(
        "From the limits of a Tofino 2's replication engine. A server of 32 cores is worked out from the processor time of a copy under load in this run, sending included: "
        f"{cost_text(results)}. That is what such a server could do at best; nothing else is taken to run out. "
        "S-LM and S-LR take the same room here, so there is one line for both."
    )
    cost = found["ns_per_copy"]["user space"]["median"]
    with page.plot("Meetings against participants, all of whom send: by design with nobody adapted (full), and with all adapted and each number rewritten (dotted); after figure 17.") as axes:
        for design in ("NRA", "RA-R", "RA-SR"):
            for adapted, style in ((False, "-"), (True, ":")):
                points = [(one["participants"], one["meetings"]) for one in found["curves"] if one["design"] == design and one["senders"] > 1 and bool(one["adapted"]) == adapted]
                if points:
                    axes.plot([x for x, _ in points], [y for _, y in points], style, color=_COLOURS[design], label=design if not adapted else f"{design}, all adapted")
        _plot_software(axes, found, cost, True)
        _log(axes, "meetings")
    if found["gains"]:
        with page.plot("Left: meetings where all send and where one does, of all designs (after figure 16). Right: how many times those of 32 cores (after figure 15).", columns=2) as both:
            sizes = sorted({one["participants"] for one in found["curves"]})
            each = {size: [one["meetings"] for one in found["curves"] if one["participants"] == size] for size in sizes}
            both[0].fill_between(sizes, [min(each[size]) for size in sizes], [max(each[size]) for size in sizes], color=_COLOURS["softswitch"], alpha=0.3, label="replication engine")
            for all_send in (True, False):
                _plot_software(both[0], found, cost, all_send)
            _log(both[0], "meetings")
            gains = found["gains"]
            both[1].fill_between([one["participants"] for one in gains], [one["least"] for one in gains], [one["most"] for one in gains], color=_COLOURS["softswitch"], alpha=0.3)
            both[1].axhline(1.0, color="#777777", lw=0.8)
            both[1].set_yscale("log")
            both[1].set_xscale("log")
            both[1].set_xlabel("participants")
            both[1].set_ylabel("times")
    page.table(FIT_HEAD, fit_rows(results))
    page.paragraph("Loaded into the softswitch by the agent's allocator; then packets of the first and the last meeting, each of whose participants got each of them once.")
    page.table(LOADED_HEAD, loaded_rows(results))


def _plot_software(axes: Any, found: dict[str, Any], cost: float, all_send: bool) -> None:
    if cost:
        axes.plot(
            SIZES,
            [software(size, size if all_send else 1, cost) for size in SIZES],
            "--" if all_send else "-.",
            color=_COLOURS["user space"],
            label=f"32 cores, {'all send' if all_send else 'one sends'}",
        )


def _log(axes: Any, label: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("participants")
    axes.set_ylabel(label)
    axes.legend(fontsize=7)


def text(facts: dict[str, Any], results: dict[str, Any]) -> str:
    """The run as an entry of the log, in Markdown."""
    remarks = "".join(f"- {remark}\n" for remark in (*results["missing"], *results["remarks"]))
    parts = [markdown(("target", "wanted", "found", ""), target_rows(results))]
    for group, (title, axis) in _SCENARIOS.items():
        if rows := delay_rows(results, group):
            parts.append(f"{title}:\n\n" + markdown((axis, *DELAY_HEAD[1:]), rows))
    parts += [f"{shares_text(results)} {_SPLIT}\n\n" + markdown(PLANE_HEAD, plane_rows(results)), markdown(NUMBER_HEAD, [row for row in number_rows(results) if row[0] != "S-LR, 32 offsets"])]
    parts += [f"Processor time of a copy under load, sending included: {cost_text(results)}.\n\n" + markdown(LOADED_HEAD, loaded_rows(results))]
    return f"## Conferences: {heading_line(facts)}\n\n" + (remarks + "\n" if remarks else "") + "\n".join(parts)


def write(run: Run, results: dict[str, Any]) -> None:
    """Write report.html and report.md of a run."""
    page = Page("Conferences")
    fill(page, run.facts, results)
    run.write("report.md", text(run.facts, results))
    print(f"report: {run.write('report.html', page.text())}")
