"""What is fuzzed: the daemons' parsers, by tests/fuzz/src, and the configuration, whose parser is Python's.

A target that returns has kept its promises. The daemons' targets are in one program (`build` makes it), which libFuzzer drives.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from shunt.config.load import ConfigError, loads

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).resolve().parent / "corpus"
DAEMONS = (
    "rtpproxy_command", "rtpproxy_reply", "control_framing", "book", "hep3", "sip_message", "conference_rtp", "conference_rtcp", "conference_stun", "edge", "edge_layers", "edge_srtcp",
    "bfrt_write", "bfrt_schema", "journal_row", "ng_command", "ng_framing", "ng_reply", "ng_value",
    "mix_room", "tiling_h261", "tiling_h264", "tiling_h265",
)  # fmt: skip
_COVERAGE = (
    "-Cpasses=sancov-module", "-Cllvm-args=-sanitizer-coverage-level=4", "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table", "-Cllvm-args=-sanitizer-coverage-trace-compares", "-Ccodegen-units=1", "--cfg", "fuzzing",
)  # fmt: skip


def build() -> Path:
    """The program of the daemons' targets, built with the instrumentation that libFuzzer needs. Raises CalledProcessError."""
    rust = str(ROOT / ".ci/rust")
    version = subprocess.run([rust, "rustc", "-vV"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    host = next(line.removeprefix("host: ") for line in version.splitlines() if line.startswith("host: "))
    folder = ROOT / "build/fuzz/cargo"
    # With a target named, the flags apply to it alone, and not to build scripts.
    command = [rust, "cargo", "build", "--quiet", "--release", "--manifest-path", str(ROOT / "tests/fuzz/program/Cargo.toml"), "--target", host]
    subprocess.run([*command, "--target-dir", str(folder)], cwd=ROOT, env=os.environ | {"RUSTFLAGS": " ".join(_COVERAGE)}, check=True)
    return folder / host / "release/shunt-fuzz-program"


def configuration(data: bytes) -> None:
    """shunt.yaml: what is wrong in it has a line and a column."""
    try:
        loads(data.decode("utf-8", "replace"))
    except ConfigError as error:
        assert error.problems and all(p.line >= 1 and p.column >= 1 for p in error.problems)
