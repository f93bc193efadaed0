"""`make fuzz`: the targets under atheris, which looks for inputs that reach new code; writes build/fuzz/report.json.

    python -m tests.fuzz.run [--inputs N] [--only TARGET …]

Each target runs in a process of its own, from the corpus in tests/fuzz/corpus. An input that breaks a
target's promises is kept in build/fuzz/TARGET and ends the run with status 1. With --keep the smallest set
of inputs that reaches the same code is written back to the corpus.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS, OUTPUT = Path(__file__).resolve().parent / "corpus", ROOT / "build" / "fuzz"
# Shares of the inputs: the parsers that strangers reach most easily get the most.
SHARES = {
    "rtp_packet": 3800, "rtpproxy_command": 2500, "hep3": 1800, "rtpproxy_reply": 900, "control_framing": 650, "sip_message": 120, "bfrt_answer": 100,
    "journal_row": 100, "configuration": 8, "bfrt_schema": 2,
    "conference_rtp": 1500, "conference_rtcp": 1200, "conference_frame": 600, "conference_stun": 300, "conference_feedback": 400,
}
LENGTHS = {"bfrt_schema": 65536, "configuration": 2048, "rtp_packet": 64}
KEPT = {"bfrt_schema": 6}  # inputs of one target that the repository keeps, 60 of the others


def work(name: str, runs: int, seconds: int) -> None:
    """Fuzz one target in this process; ends it."""
    import atheris

    with atheris.instrument_imports(include=["shunt"]):
        from tests.fuzz.targets import TARGETS

    folder = OUTPUT / name
    found = folder / "corpus"
    found.mkdir(parents=True, exist_ok=True)
    length = LENGTHS.get(name, 1024)
    atheris.Setup(
        [name, str(found), str(CORPUS / name), f"-runs={runs}", f"-max_total_time={seconds}", f"-max_len={length}", f"-artifact_prefix={folder}/", "-timeout=5",
         "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=1"],
        TARGETS[name],
    )
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=200_000, help="of all targets together")
    parser.add_argument("--seconds", type=int, default=0, help="most for each target; 0: as long as it takes")
    parser.add_argument("--only", nargs="*", choices=list(SHARES), default=list(SHARES))
    parser.add_argument("--keep", action="store_true", help="put inputs that reach new code into the corpus")
    parser.add_argument("--worker", nargs=2, metavar=("TARGET", "RUNS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker[0], int(arguments.worker[1]), arguments.seconds)
        return
    from tests.fuzz.targets import seeds

    report: dict[str, dict[str, float | int | str]] = {}
    failed = False
    total = sum(SHARES[name] for name in arguments.only)
    for name in arguments.only:
        (CORPUS / name).mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(seeds()[name]):
            path = CORPUS / name / f"seed-{number:02d}"
            if not path.exists():
                path.write_bytes(data)
        runs = max(1, arguments.inputs * SHARES[name] // total)
        began = time.monotonic()
        command = [sys.executable, "-m", "tests.fuzz.run", "--worker", name, str(runs), "--seconds", str(arguments.seconds)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
        executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
        count = int(executed.group(1)) if executed else 0
        verdict = "ok" if done.returncode == 0 and executed else "FAILED"
        report[name] = {"inputs": count, "seconds": round(time.monotonic() - began, 1), "verdict": verdict}
        print(f"{name}: {count} inputs in {report[name]['seconds']} s: {verdict}", flush=True)
        if verdict != "ok":
            failed = True
            print("\n".join((done.stdout + done.stderr).splitlines()[-40:]), flush=True)
        if arguments.keep and verdict == "ok":
            _keep(name)
    summary = {"inputs": sum(int(entry["inputs"]) for entry in report.values()), "targets": report}
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "report.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"{summary['inputs']} inputs altogether")
    sys.exit(1 if failed else 0)


def _keep(name: str) -> None:
    found = sorted((OUTPUT / name / "corpus").iterdir(), key=lambda path: path.stat().st_size)
    room = KEPT.get(name, 60) - len(list((CORPUS / name).iterdir()))
    # Spread over all sizes: the small ones alone would be all of one kind.
    for path in found[:: max(1, len(found) // max(1, room))][: max(0, room)]:
        (CORPUS / name / path.name[:16]).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()
