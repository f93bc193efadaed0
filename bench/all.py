"""All benches of a profile, one after the other, and one report over them: build/bench/PROFILE.html and PROFILE.md.

Run as root: python -m bench.all [--profile short|full|smoke] [--fresh]. short (under ten minutes on two cores): relays, calls,
data plane, control plane and conferences; full: these at length, then the other benches, whose own targets are printed beside
what they found, all but bench-kills. An interrupted run goes on with what is missing. Exits 1 when a target was missed or a bench failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for _folder in (".", "operator"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))

from bench.relay_peers import PROFILES, reader
from bench.report import calls as calls_report
from bench.report import conference as conference_report
from bench.report import control as control_report
from bench.report import packet as packet_report
from bench.report import relay as relay_report
from bench.report.page import Page
from bench.runs import OUTPUT, Run, end_cleanly, raw_steps

PROFILED = ("bench.relay_peers", "bench.calls", "bench.packet", "bench.control", "bench.conference")
# Name, arguments, where it keeps its results.
OTHERS = (
    ("relay table", ("-m", "bench.relay_table"), "relay-table"),
    ("BF Runtime", ("-m", "bench.bfrt"), "bfrt"),
    ("replication", ("-m", "bench.replication"), "replication/short"),
    ("sequence numbers", ("-m", "bench.sequence"), "sequence"),
    ("call set-up", ("-m", "bench.setup"), "setup"),
    ("call set-up by NG", ("-m", "bench.setup", "--relay", "rtpengine"), "setup"),
    ("restarts", (str(ROOT / "bench" / "restart.py"),), "restart"),
)


@contextlib.contextmanager
def _running(title: str, *arguments: str, **how: Any) -> Iterator[subprocess.Popen[Any]]:
    """A bench as a process of its own. When this one is interrupted, it waits until that has taken down what it had set up."""
    print(f"==> {title}", flush=True)
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, **how)
    try:
        yield process
    except KeyboardInterrupt:  # Ctrl-C is for both
        process.wait()
        raise
    except SystemExit:
        process.terminate()
        process.wait()
        raise


def _run(title: str, *arguments: str) -> int:
    """Run a bench that writes its own report; returns its exit status."""
    with _running(title, *arguments) as process:
        return process.wait()


def _run_and_keep(title: str, *arguments: str) -> dict[str, Any]:
    """Run a bench, show what it prints, and return its exit `status` and the last lines that it `printed`."""
    lines: list[str] = []
    with _running(title, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
        status = process.wait()
    return {"status": status, "printed": "\n".join(lines[-60:])}


def _load(folder: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Facts and results of a finished run."""
    try:
        results = json.loads((folder / "results.json").read_text())
    except FileNotFoundError:
        return None
    return results["facts"], results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", choices=sorted(PROFILES), default="short")
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    arguments = parser.parse_args()
    end_cleanly()
    begun = time.monotonic()
    statuses: dict[str, int] = {}
    printed: dict[str, str] = {}
    for module in PROFILED:
        statuses[module] = _run(module, "-m", module, "--profile", arguments.profile, *(["--fresh"] if arguments.fresh else []))
    if arguments.profile == "full":
        others = Run("others", arguments.profile, {}, fresh=arguments.fresh)
        others.plan(len(OTHERS))
        for title, command, _ in OTHERS:
            key = title.replace(" ", "-")
            found = others.step(key, lambda: _run_and_keep(title, *command))
            statuses[title], printed[title] = found["status"], found["printed"]
            if found["status"]:
                others.forget(key)  # whether it missed a target or did not come to its end: the next run does it again
    page, entry = Page("Shunt measured"), []
    relay, packet = (_load(OUTPUT / name / arguments.profile) for name in ("relay", "packet"))
    if relay:
        page.part("Relays side by side")
        relay_report.fill(page, *relay, reader(OUTPUT / "relay" / arguments.profile))
        entry.append(relay_report.text(*relay))
    calls = _load(OUTPUT / "calls" / arguments.profile)
    if calls:
        page.part("Calls as SIPp places them")
        calls_report.fill(page, *calls, raw_steps(OUTPUT / "calls" / arguments.profile))
        entry.append(calls_report.text(*calls))
    if packet:
        page.part("The data plane, packet by packet")
        packet_report.fill(page, *packet)
        entry.append(packet_report.text(*packet))
    control = _load(OUTPUT / "control" / arguments.profile)
    if control:
        page.part("The control plane")
        control_report.fill(page, *control, raw_steps(OUTPUT / "control" / arguments.profile))
        entry.append(control_report.text(*control))
    conference = _load(OUTPUT / "conference" / arguments.profile)
    if conference:
        page.part("Conferences")
        conference_report.fill(page, *conference)
        entry.append(conference_report.text(*conference))
    for title, _, folder in OTHERS:
        if title in printed:
            status, text = statuses[title], printed[title]
            page.part(title[0].upper() + title[1:])
            page.paragraph(f"Exit status {status}; raw samples and results in build/bench/{folder}/. What it printed:")
            page.block(text)
            entry.append(f"## {title[0].upper() + title[1:]}\n\nExit status {status}.\n\n```\n{text}\n```\n")
    OUTPUT.mkdir(parents=True, exist_ok=True)
    whole = OUTPUT / f"{arguments.profile}.html"
    whole.write_text(page.text())
    (OUTPUT / f"{arguments.profile}.md").write_text("\n".join(entry))
    print(f"==> {time.monotonic() - begun:.0f} s; report: {whole.relative_to(ROOT)}, table for bench/log: {whole.with_suffix('.md').relative_to(ROOT)}")
    missed = [name for name, status in statuses.items() if status]
    if missed:
        print(f"targets missed, or failed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
