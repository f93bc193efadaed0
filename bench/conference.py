"""Conferences, after Tsirikas and Xylomenos and after Scallop, side by side with servers in user space.

Run as root: python -m bench.conference [--profile short|full|smoke] [--fresh]. Writes build/bench/conference/PROFILE/.

Delay by the number of hosts, with one and two streams, and by the number of receivers; delay under load; packets and bytes by plane;
requests for nothing after rewriting sequence numbers; meetings that fit, by tree design. The same people with the same packets are
carried by the softswitch, by a server in user space (sfu.c) and by Janus where it is installed, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for _folder in (".", "operator"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))

from bench import meetings, planes, sequence
from bench.report import conference as report
from bench.report.page import range_text
from bench.rooms import KINDS, SYSTEMS, Person, Stream, System, UserSpace, build_all, delays, measure, running, side_by_side
from bench.runs import Run, end_cleanly, spread

BASE, ENHANCEMENT = KINDS[:2]
# Every host sends one packet each 40 ms, of as many bytes; with two streams each has every other packet.
_HOST_RATE, _HOST_BYTES = 25.0, 44
RECEIVERS_STREAMS = {BASE: Stream(50, 160), ENHANCEMENT: Stream(100, 1100)}
# A participant of Scallop's table 1, on the average.
LOAD_STREAMS = {BASE: Stream(49.5, 128), ENHANCEMENT: Stream(234.8, 1154)}
LOADS = {"two people": 2, "ten people": 10}
_BUSY = 0.1
_RESTLESS = 0.25
_POINTS = 200  # of a distribution, beside its last hundredth
_PEOPLE = 3  # of the meeting that is counted by planes


@dataclass(frozen=True, slots=True)
class Profile:
    """Numbers of hosts that send one stream and two, of receivers of one sender; ms of each step; repetitions; and of the other parts seconds, packets and 1/share of the meetings."""

    one: tuple[int, ...]
    two: tuple[int, ...]
    receivers: tuple[int, ...]
    loads: tuple[str, ...]
    ms: int
    repetitions: int
    planes_s: float
    packets: int
    share: int


PROFILES = {
    "smoke": Profile((2,), (4,), (), ("two people",), 300, 1, 4.0, 300, 4096),
    "short": Profile((2, 12), (10,), (), tuple(LOADS), 600, 2, 6.0, 1500, 512),
    "full": Profile((2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), (2, 4, 6, 8, 10), (1, 5, 10, 25, 50), tuple(LOADS), 2000, 5, 60.0, 20_000, 1),
}


def hosts(count: int, streams: int) -> list[Person]:
    """All send; with two streams all take the base, and every other one the enhancement too."""
    if streams == 1:
        return [Person(f"host{n}", ("caller", "callee")[n % 2], {BASE: Stream(_HOST_RATE, _HOST_BYTES)}) for n in range(count)]
    sends = dict.fromkeys((BASE, ENHANCEMENT), Stream(_HOST_RATE / 2, _HOST_BYTES))
    return [Person(f"host{n}", ("caller", "callee")[n // 2 % 2], sends, () if n % 2 else (BASE,)) for n in range(count)]


def audience(count: int) -> list[Person]:
    """One sends two streams, the others listen; they are heard once, or nobody would know where they are."""
    silent = dict.fromkeys((BASE, ENHANCEMENT), Stream(0, _HOST_BYTES))
    return [Person("sender", "caller", RECEIVERS_STREAMS), *(Person(f"receiver{n}", "callee", silent) for n in range(count))]


def crowd(count: int) -> list[Person]:
    return [Person(f"person{n}", ("caller", "callee")[n % 2], LOAD_STREAMS) for n in range(count)]


def scenarios(profile: Profile) -> dict[str, Callable[[], list[Person]]]:
    """Who meets in each step, by its key."""
    found: dict[str, Callable[[], list[Person]]] = {}
    for streams, counts in ((1, profile.one), (2, profile.two)):
        found |= {f"hosts/{streams}/{count:02}": lambda count=count, streams=streams: hosts(count, streams) for count in counts}
    found |= {f"receivers/{count:02}": lambda count=count: audience(count) for count in profile.receivers}
    found |= {f"load/{name.replace(' ', '-')}": lambda name=name: crowd(LOADS[name]) for name in profile.loads}
    return found


@contextlib.contextmanager
def when_needed(title: str) -> Iterator[Callable[[], System]]:
    """A system that is started at the first call, and once."""
    with contextlib.ExitStack() as stack:
        made: list[System] = []

        def get() -> System:
            if not made:
                made.append(stack.enter_context(running(title)))
            return made[0]

        yield get


def carry(run: Run, profile: Profile, titles: list[str]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The steps with live packets: by scenario and system the repetitions. Systems take turns in each."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {key: {title: [] for title in titles} for key in scenarios(profile)}
    for repetition in range(profile.repetitions):
        for title in titles:
            with when_needed(title) as get:
                for key, people in scenarios(profile).items():
                    step = run.step(f"{key}/{repetition}/{title.replace(' ', '-')}", lambda: measure(get(), people(), profile.ms))
                    found[key][title].append(step)
    return found


def analyse(found: dict[str, dict[str, list[dict[str, Any]]]], plane: dict[str, Any], numbers: list[dict[str, Any]], loaded: list[dict[str, Any]], busy: float) -> dict[str, Any]:
    """The figures of all parts, what is to be said of the run, and the targets."""
    compared = {key: side_by_side(each) for key, each in found.items()}
    remarks = []
    if busy > _BUSY:
        remarks.append(f"{busy:.0%} of the cores' time was already used when the run began: delays are not to be quoted, nor their ratios")
    for key, each in compared.items():
        base = each[UserSpace.title]["p50"]
        if len(base["values"]) > 1 and base["most"] - base["least"] > _RESTLESS * base["median"]:
            remarks.append(f"{key}: the server in user space itself varied from {base['least']:.0f} to {base['most']:.0f} µs at p50: this step's ratios are not to be quoted")
        for title, one in each.items():
            if one["skipped"]:
                remarks.append(f"{key}, {title}: the generator gave up {one['skipped']} packets")
    cost = {
        title: one["process_ns_per_copy"]
        for title, one in compared[max((key for key in compared if key.startswith("load/")), key=lambda key: compared[key][UserSpace.title]["due"])].items()
        if title != "softswitch"
    }
    rows = meetings.curves()
    per_copy = cost[UserSpace.title]["median"]
    overheads = sequence_rows(numbers)
    duplicates = sum(run["duplicates"] for run in numbers)
    targets = [
        {"target": f"S-LR: requests for nothing at {at:.0%} of loss", "wanted": f"≤ {most:.1%}", "found": f"{worst:.2%}", "met": worst <= most}
        for at, most in sequence.TARGETS
        if (worst := max((row["worst"] for row in overheads if row["algorithm"] == "S-LR" and not row["reordered"] and row["loss"] <= at), default=None)) is not None
    ]
    targets.append({"target": "numbers given out twice", "wanted": "0", "found": str(duplicates), "met": not duplicates})
    published = [capacity["meetings"] for capacity in meetings.paper()]
    targets.append(
        {
            "target": "meetings: two-party, NRA, RA-R, RA-SR",
            "wanted": "533K, 128K, 42.7K, 4.3K",
            "found": ", ".join(f"{count:,}" for count in published),
            "met": [count // 1000 for count in published] == [533, 131, 43, 4],
        }
    )
    return {
        "remarks": remarks, "targets": targets, "compared": compared, "distributions": {key: {title: distribution(steps) for title, steps in each.items()} for key, each in found.items() if key.startswith("load/")},
        "planes": planes.split(plane), "people_of_planes": plane["people"], "seconds_of_planes": plane["seconds"],
        "numbers": overheads, "meetings": {"curves": rows, "gains": meetings.gains(rows, per_copy) if per_copy else [], "loaded": loaded, "ns_per_copy": cost},
    }  # fmt: skip


def distribution(steps: list[dict[str, Any]]) -> list[list[float]]:
    """(µs, part of the copies that took at most as long), of all repetitions."""
    every = sorted(us for step in steps for us in step["arrivals"]["us"])
    shares = [n / _POINTS for n in range(_POINTS)] + [0.99 + n / 1000 for n in range(11)]
    return [[every[int(share * (len(every) - 1))], share] for share in sorted(set(shares))]


def sequence_rows(numbers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By algorithm, loss and reordering: requests for nothing over the packets due, worst and mean of pictures and targets; and over all requests."""
    by: dict[tuple[str, float, float], list[dict[str, Any]]] = {}
    for run in numbers:
        by.setdefault((run["algorithm"], run["loss"], run["reordered"]), []).append(run)
    rows = []
    for (algorithm, loss, reordered), runs in by.items():
        nothing = sum(run["extra"] + run["late"] for run in runs)
        lost = sum(run["due"] - run["forwarded"] - run["late"] for run in runs)
        rows.append(
            {
                "algorithm": algorithm, "loss": loss, "reordered": reordered, "worst": max(run["overhead"] for run in runs), "mean": nothing / sum(run["due"] for run in runs),
                "of_all_requests": nothing / (nothing + lost) if nothing + lost else 0.0, "masked": sum(run["masked"] for run in runs),
            }
        )  # fmt: skip
    return rows


def present() -> tuple[list[str], list[str]]:
    """The systems that are installed, and of each other one why it is left out."""
    why = {title: system.missing() for title, system in SYSTEMS.items()}
    return [title for title in why if not why[title]], [f"{title}: not measured, {text}" for title, text in why.items() if text]


def alone(titles: list[str], profile: str) -> int:
    """Measure systems by themselves, and print their delays."""
    run = Run("conference-alone", profile, {title: SYSTEMS[title].version() for title in titles}, fresh=True)
    run.plan(len(scenarios(PROFILES[profile])) * len(titles) * PROFILES[profile].repetitions)
    for key, each in carry(run, PROFILES[profile], titles).items():
        for title, steps in each.items():
            figures = [delays(step) for step in steps]
            print(f"{key:<20} {title:<12} " + "  ".join(f"{name} {range_text(spread([one[name] for one in figures]))} µs" for name in ("p50", "p99", "last")))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", choices=PROFILES, default="short")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, help="the delays of these systems alone, without the rest: to check a figure")
    arguments = parser.parse_args()
    end_cleanly()
    profile = PROFILES[arguments.profile]
    build_all()
    titles, missing = present()
    if arguments.only:
        return alone([title for title in titles if title in arguments.only], arguments.profile)
    run = Run("conference", arguments.profile, {title: version for title in titles if (version := SYSTEMS[title].version())}, fresh=arguments.fresh)
    run.plan(len(scenarios(profile)) * len(titles) * profile.repetitions + 2 + len(meetings.Design))
    found = carry(run, profile, titles)
    with when_needed("softswitch") as get:
        plane = run.step("planes", lambda: planes.measure(get().bridge, _PEOPLE, profile.planes_s))  # type: ignore[attr-defined]
    numbers = run.step("numbers", lambda: {"runs": sequence.figure_18(profile.packets)})["runs"]
    loaded = [run.step(f"meetings/{design.value}", lambda: meetings.load(design, profile.share)) for design in meetings.Design]
    results = analyse(found, plane, numbers, loaded, run.facts["busy_before"]) | {"missing": missing}
    run.results(results)
    report.write(run, results)
    return report.print_figures(results)


if __name__ == "__main__":
    sys.exit(main())
