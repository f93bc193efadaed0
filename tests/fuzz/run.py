"""`make fuzz`: all targets under coverage-guided fuzzers, libFuzzer and atheris; writes build/fuzz/report.json.

    python -m tests.fuzz.run [--inputs N] [--only TARGET …]

Each target runs in a process of its own, from the corpus in tests/fuzz/corpus. An input that breaks a target's promises is kept in
build/fuzz/TARGET and ends the run with status 1. With --keep inputs that reach new code are added to the corpus.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.targets import CORPUS, DAEMONS, ROOT, build, configuration

OUTPUT = ROOT / "build/fuzz"
TARGETS = (*DAEMONS, "configuration")
LENGTHS = {
    "bfrt_schema": 65536,
    "configuration": 2048,
    "conference_rtp": 256,
    "conference_rtcp": 256,
    "conference_stun": 256,
    "edge_layers": 2048,
    "edge_srtcp": 256,
    "ng_reply": 4096,
    "tiling_h261": 2048,
    "tiling_h264": 2048,
    "tiling_h265": 2048,
}
SLOW = {"configuration": 300, "mix_room": 40, "tiling_h261": 4}
"""Targets that get so many times fewer inputs."""
KEPT = 60
"""Inputs of a target that the repository keeps."""


def options(name: str, inputs: int) -> list[str]:
    """A target's folders, found and kept inputs, and libFuzzer's options, which are atheris's too."""
    folder = OUTPUT / name
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    (CORPUS / name).mkdir(parents=True, exist_ok=True)
    limits = [f"-runs={inputs}", f"-max_len={LENGTHS.get(name, 1024)}", "-timeout=20", "-rss_limit_mb=2048"]
    return [str(folder / "corpus"), str(CORPUS / name), f"-artifact_prefix={folder}/", "-print_final_stats=1", "-verbosity=1", *limits]


def fuzz_configuration(inputs: int) -> None:
    """Fuzz the configuration in this process; ends it."""
    import atheris

    atheris.instrument_func(configuration)
    atheris.Setup(["configuration", *options("configuration", inputs)], configuration)
    atheris.Fuzz()


def fuzz(name: str, inputs: int, program: Path) -> tuple[int, str]:
    """Fuzz one target; how many inputs it had (0: it failed), and the end of what it printed."""
    if name == "configuration":
        command = [sys.executable, "-m", "tests.fuzz.run", "--configuration", str(inputs)]
    else:
        command = [str(program), *options(name, inputs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", env=os.environ | {"FUZZ_TARGET": name}, check=False)
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    return int(executed[1]) if done.returncode == 0 and executed else 0, "\n".join((done.stdout + done.stderr).splitlines()[-40:])


def keep(name: str) -> None:
    """Add found inputs to the corpus, spread over all sizes: the small ones alone would be all of one kind."""
    found = sorted((OUTPUT / name / "corpus").iterdir(), key=lambda path: path.stat().st_size)
    room = max(0, KEPT - len(list((CORPUS / name).iterdir())))
    for path in found[:: max(1, len(found) // max(1, room))][:room]:
        (CORPUS / name / path.name[:16]).write_bytes(path.read_bytes())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=200_000, help="for each target; a slow one gets fewer")
    parser.add_argument("--only", nargs="*", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--keep", action="store_true", help="put inputs that reach new code into the corpus")
    parser.add_argument("--configuration", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.configuration:
        fuzz_configuration(arguments.configuration)
    program, report = build(), {}
    for name in arguments.only:
        began = time.monotonic()
        count, end = fuzz(name, max(1, arguments.inputs // SLOW.get(name, 1)), program)
        report[name] = {"inputs": count, "seconds": round(time.monotonic() - began, 1), "verdict": "ok" if count else "FAILED"}
        print(f"{name}: {count} inputs in {report[name]['seconds']} s: {report[name]['verdict']}", flush=True)
        if not count:
            print(end, flush=True)
        elif arguments.keep:
            keep(name)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    total = sum(int(entry["inputs"]) for entry in report.values())
    (OUTPUT / "report.json").write_text(json.dumps({"inputs": total, "targets": report}, indent=2) + "\n")
    print(f"{total} inputs altogether")
    return 0 if all(entry["inputs"] for entry in report.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
