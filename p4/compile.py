#!/usr/bin/env python3
"""Compiles the builds of builds.yaml with bf-p4c, those that are not yet there, and reports the resources that each one takes."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import polynomial
import yaml

HERE = Path(__file__).resolve().parent
_PROGRAMS = ("relay", "conference")
_LOADED = ("bfrt.json", "context.json", "tofino.bin", "tofino2.bin")  # by bf_switchd
_SERVED_AS = "relay"  # what bf_switchd calls either program, and the agent asks for
GENERATED = HERE / "generated"
_MADE = "made.json"
_SECRET = "secret"  # the folder of a build with what contains the site's polynomial
_ARCHITECTURE = {"tofino": "tna", "tofino2": "t2na"}
_CHIP = {"tofino": "Tofino 1", "tofino2": "Tofino 2"}
_HELP = """\
No Tofino compiler found. `make p4` needs bf-p4c, which is part of
  - the P4 compiler p4c (https://github.com/p4lang/p4c), built with ENABLE_TOFINO=ON; put its bf-p4c on PATH; or
  - P4 Studio (https://github.com/p4lang/open-p4studio); set SDE_INSTALL to where it is installed."""


# What the assembler says of a parser whose transitions have all become unconditional. It is a warning; the program would be another.
_LOST_SELECTS = "Can't match parser state due to previous match"


class NoCompiler(Exception):
    """bf-p4c is not installed."""


@dataclass(frozen=True)
class Build:
    """One way to compile a program: relay.p4 or conference.p4. options: the -D macros, RELAY_SIZE and RELAY6_SIZE among them; refused: larger ones that the compiler was seen to refuse; polynomial: the site's own, which no report names and no command line shows."""

    name: str
    chip: str
    options: Mapping[str, str]
    refused: Mapping[str, int] = field(default_factory=dict)
    program: str = "relay"
    polynomial: int | None = None

    @property
    def source(self) -> Path:
        return HERE / f"{self.program}.p4"


@dataclass(frozen=True)
class Resources:
    """What a build takes of a pipe. Available figures are of all stages of the chip."""

    name: str
    chip: str
    options: dict[str, str]
    relay: int
    relay6: int
    refused: dict[str, int]
    stages: int
    stages_available: int
    sram: int
    sram_available: int
    map_ram: int
    map_ram_available: int
    tcam: int
    tcam_available: int
    hash_bits: int
    hash_bits_available: int
    phv_bits: int
    phv_bits_available: int
    seconds: float


def find_compiler() -> str:
    """bf-p4c of $SDE_INSTALL, or on PATH. Raises NoCompiler."""
    install = os.environ.get("SDE_INSTALL")
    found = shutil.which("bf-p4c", path=str(Path(install) / "bin")) if install else None
    found = found or shutil.which("bf-p4c")
    if found is None:
        raise NoCompiler(_HELP)
    return found


def read_builds(part: str = "builds", path: Path = HERE / "builds.yaml") -> list[Build]:
    """The builds of builds.yaml, or its splits: a split is the build that it names with other table sizes."""
    document = yaml.safe_load(path.read_text())
    whole = {row["name"]: row for row in document["builds"]}

    def build(row: dict[str, Any]) -> Build:
        base = whole[row["of"]] if "of" in row else row
        options = {name: str(value) for name, value in {**base["options"], **row["options"]}.items()}
        return Build(row["name"], base["chip"], options, row.get("refused", {}), base.get("program", "relay"))

    return [build(row) for row in document[part]]


def sources() -> list[Path]:
    """Every file that the Tofino programs are made of."""
    return [*(HERE / f"{program}.p4" for program in _PROGRAMS), *sorted(path for path in (HERE / "include").glob("*.p4") if not path.stem.endswith("_v1model"))]


def source_hash() -> str:
    """SHA-256 over names and contents of the sources: a generated file says which ones it came from."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(path.relative_to(HERE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _command(compiler: str, build: Build) -> list[str]:
    defines = [word for name, value in build.options.items() for word in ("-D", f"{name}={value}")]
    return [compiler, "--target", build.chip, "--arch", _ARCHITECTURE[build.chip], "-g", *defines]


def _given(build: Build, folder: Path) -> Path:
    """What the compiler is given: the program or, with a polynomial, a file of that name with the polynomial before it. Others see a command line, not this file."""
    if build.polynomial is None:
        return build.source
    folder.mkdir(mode=0o700, parents=True)
    given = folder / build.source.name
    with os.fdopen(os.open(given, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f'#define POLYNOMIAL {build.polynomial:#x}\n#include "{build.source}"\n')
    return given


def _made_from(compiler: str, build: Build) -> dict[str, object]:
    """All that a build's output depends on. The program counts as the build's options leave it, without comments: a change to a part that is left out is none."""
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run([*_command(compiler, build), "-E", str(_given(build, Path(scratch) / _SECRET))], capture_output=True, text=True)
    text = re.sub(r"/\*.*?\*/|//[^\n]*|^#[^\n]*", " ", done.stdout, flags=re.DOTALL | re.MULTILINE)
    program = hashlib.sha256(" ".join(text.split()).encode()).hexdigest()
    return {"compiler": compiler_version(compiler), "program": program, "chip": build.chip, "options": dict(build.options)}


def fingerprint(compiler: str, build: Build) -> str:
    """SHA-256 of all that a build's output depends on."""
    return hashlib.sha256(json.dumps(_made_from(compiler, build), sort_keys=True).encode()).hexdigest()


def kept_seconds(compiler: str, build: Build, out: Path) -> float | None:
    """How long the build in a directory took, if it was made of the same program and options by the same compiler; else None."""
    try:
        made = json.loads((out / _MADE).read_text())
    except (OSError, ValueError):
        return None
    return float(made["seconds"]) if made["from"] == _made_from(compiler, build) else None


def not_offered(build: Build) -> str | None:
    """Why a build is not to be used on a switch, whatever the compiler says of it; None: it may be."""
    if build.options.get("SEQUENCE") == "2" and build.chip == "tofino":
        return "SEQUENCE=2 (S-LR) is for Tofino 2 and BMv2: it is a chain of 15 stages, and Tofino 1 has 12 (docs/p4.md); SEQUENCE=1 is S-LM"
    return None


def make(compiler: str, build: Build, out: Path) -> tuple[str | None, float]:
    """Compile a build unless it is there, and say to bf_switchd what to load. Returns None, or the compiler's reason for refusing, and how long the compiler took, in seconds."""
    if (reason := not_offered(build)) is not None:
        return reason, 0.0
    kept = kept_seconds(compiler, build, out)
    if kept is not None:
        out.chmod(0o700)
        _write_configuration(build, out)
        return None, kept
    started = time.monotonic()
    made_from = _made_from(compiler, build)
    reason = compile_build(compiler, build, out)
    seconds = round(time.monotonic() - started, 1)
    if reason is None:
        _write_configuration(build, out)
        (out / _MADE).write_text(json.dumps({"from": made_from, "seconds": seconds}) + "\n")
    return reason, seconds


def _write_configuration(build: Build, out: Path) -> None:
    """relay.conf: what bf_switchd and the model load. P4 Studio's own build does this in a step of its own, which not every bf-p4c has."""
    here = out.resolve()
    pipeline = {
        "p4_pipeline_name": "pipe", "context": str(here / "pipe" / "context.json"), "config": str(here / "pipe" / f"{build.chip}.bin"), "pipe_scope": [0, 1, 2, 3], "path": str(here),
    }  # fmt: skip
    program = {"program-name": _SERVED_AS, "bfrt-config": str(here / "bfrt.json"), "p4_pipelines": [pipeline]}
    chip = {"chip_family": build.chip, "instance": 0, "pcie_sysfs_prefix": "/sys/devices/pci0000:00/0000:00:03.0/0000:05:00.0", "sds_fw_path": "share/tofino_sds_fw/avago/firmware"}
    configuration = {"chip_list": [chip], "p4_devices": [{"device-id": 0, "p4_programs": [program], "agent0": "lib/libpltfm_mgr.so"}]}
    (out / f"{_SERVED_AS}.conf").write_text(json.dumps(configuration, indent=4) + "\n")


def containing(polynomial_: int, folder: Path) -> list[Path]:
    """The files below a folder in which a polynomial is written: as the compiler takes it, as the CRC has it, with or without its highest term."""
    crc = polynomial.of_crc(polynomial_)
    numbers = {polynomial_, crc, crc ^ 1 << crc.bit_length() - 1}
    words = [word.encode() for number in numbers for word in (f"{number:x}", str(number))]

    def has(path: Path) -> bool:
        content = path.read_bytes().lower()
        return any(word in content for word in words)

    return sorted(path for path in folder.rglob("*") if path.is_file() and has(path))


def compile_build(compiler: str, build: Build, out: Path) -> str | None:
    """Compile into a directory that only its owner reads: context.json reveals the polynomial. Returns None, or the compiler's reason for refusing."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(mode=0o700, parents=True)
    given = _given(build, out / _SECRET)
    done = subprocess.run([*_command(compiler, build), "-o", str(out), str(given)], capture_output=True, text=True, umask=0o077)
    (out / "compiler.log").write_text(done.stdout + done.stderr)
    if build.polynomial is not None:
        for path in containing(build.polynomial, out):
            if path.name in _LOADED:
                return f"{path.relative_to(out)} contains the site's polynomial"
            if path != given:
                path.unlink()
    if _LOST_SELECTS in done.stdout + done.stderr:
        return "this bf-p4c loses the parser's selects (p4lang/p4c issue 5752): take one with pull request 5753"
    if done.returncode == 0:
        return None
    errors = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower() or "stages" in line]
    return "; ".join(errors[:4]) or f"exit status {done.returncode}"


def read_resources(build: Build, out: Path, seconds: float) -> Resources:
    """The figures of a finished build, from the compiler's own logs, which name only the stages in use."""
    logs = out / "pipe" / "logs"
    mau = json.loads((logs / "resources.json").read_text())["resources"]["mau"]
    metrics = json.loads((logs / "metrics.json").read_text())
    rows = mau["mau_stages"]

    def total(of: str, things: str, *sizes: str) -> tuple[int, int]:
        used = sum(len(row[of][things]) for row in rows)
        available = mau["nStages"]
        for size in sizes:
            available *= rows[0][of][size]
        return used, available

    sram, map_ram = total("rams", "srams", "nRows", "nColumns"), total("map_rams", "maprams", "nRows", "nUnits")
    tcam, hash_bits = total("tcams", "tcams", "nRows", "nColumns"), total("hash_bits", "bits", "nBits", "nFunctions")
    used_stages = [row["stage_number"] for row in rows if row["rams"]["srams"] or row["tcams"]["tcams"] or row.get("gateways", {}).get("gateways") or row.get("logical_tables", {}).get("ids")]
    phv = metrics["phv"]
    phv_bits = sum(kind["bits_occupied"] for kinds in phv.values() if isinstance(kinds, list) for kind in kinds)
    config = macros(build)
    return Resources(
        build.name, build.chip, dict(build.options), int(config["RELAY_SIZE"]), int(config["RELAY6_SIZE"]), dict(build.refused),
        max(used_stages) + 1, mau["nStages"], *sram, *map_ram, *tcam, *hash_bits, phv_bits, PHV_BITS[build.chip], seconds,
    )  # fmt: skip


# Of one pipe: 64 containers of 32 bits, 96 of 16 and 64 of 8 on Tofino 1, with half as many again in tagalong containers that tables cannot
# reach; normal, mocha and dark containers on Tofino 2.
PHV_BITS = {"tofino": 4096 + 2048, "tofino2": 5120}


def macros(build: Build) -> dict[str, str]:
    """The build's options, with the defaults of its program for the rest."""
    files = ["config.p4", "conference_config.p4"] if build.program == "conference" else ["config.p4"]
    found = dict(re.findall(r"#ifndef (\w+)\n#define \1 (\w+)", "".join((HERE / "include" / name).read_text() for name in files)))
    return {**found, **build.options}


_COLUMNS = ("RELAY_KEY", "ACTIONS", "RELAY_SIZE", "RELAY6_SIZE")


def table(rows: list[Resources]) -> str:
    """The resources as a Markdown table."""
    lines = [
        "| build | chip | key | actions | other options | IPv4 entries | IPv6 entries | refused | stages | SRAM | map RAM | TCAM | hash bits | PHV bits |",
        "| --- | --- | --- | --- | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        config = macros(Build(row.name, row.chip, row.options))
        share = [
            f"{row.stages} of {row.stages_available}",
            *(f"{used} ({100 * used / available:.0f} %)" for used, available in (
                (row.sram, row.sram_available), (row.map_ram, row.map_ram_available), (row.tcam, row.tcam_available), (row.hash_bits, row.hash_bits_available), (row.phv_bits, row.phv_bits_available),
            )),
        ]  # fmt: skip
        refused = " + ".join(f"{int(row.refused.get(size, row.options[size])):,}" for size in ("RELAY_SIZE", "RELAY6_SIZE")) if row.refused else "not tried"
        others = " ".join(f"`{name}={value}`" for name, value in row.options.items() if name not in _COLUMNS)
        lines.append(f"| {row.name} | {_CHIP[row.chip]} | {config['RELAY_KEY']} | {config['ACTIONS']} | {others} | {row.relay:,} | {row.relay6:,} | {refused} | " + " | ".join(share) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="builds of builds.yaml; all when none is named")
    parser.add_argument("--splits", action="store_true", help="compile the splits of builds.yaml instead of its builds")
    parser.add_argument("--out", type=Path, default=HERE.parent / "build" / "p4", help="where to compile to")
    parser.add_argument("--published", action="store_true", help="hash with the published polynomials instead of the site's own (OUT/polynomials.json, made when it is not there)")
    parser.add_argument("--new-polynomials", action="store_true", help="draw new polynomials for the site, compile the builds named (those in OUT when none is), and say what to restart")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compiler runs at a time")
    arguments = parser.parse_args()
    part, report_name = ("splits", "splits") if arguments.splits else ("builds", "resources")
    try:
        compiler = find_compiler()
    except NoCompiler as reason:
        print(reason, file=sys.stderr)
        return 1
    drawn = arguments.out / "polynomials.json"
    if arguments.new_polynomials:
        arguments.names = arguments.names or sorted(path.parent.name for path in arguments.out.glob(f"*/{_MADE}"))
        if not arguments.names:
            print(f"{arguments.out} has no build: name those to compile", file=sys.stderr)
            return 1
        own = polynomial.renew(drawn)
    else:
        own = {} if arguments.published else polynomial.of_site(drawn)
    builds = [replace(build, polynomial=own.get(macros(build)["RELAY_KEY"])) for build in read_builds(part) if not arguments.names or build.name in arguments.names]
    unknown = set(arguments.names) - {build.name for build in builds}
    if unknown:
        print(f"no such build: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 1

    def one(build: Build) -> Resources | None:
        reason, seconds = make(compiler, build, arguments.out / build.name)
        if reason is not None:
            print(f"{build.name}: {reason}", file=sys.stderr, flush=True)
            return None
        made = read_resources(build, arguments.out / build.name, seconds)
        print(f"{build.name}: {made.stages} stages, {made.sram} SRAM blocks, {seconds:.0f} s", flush=True)
        return made

    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(one, builds))
    found = [made for made in results if made is not None]
    report = {"compiler": compiler_version(compiler), "sources": source_hash(), "builds": [asdict(row) for row in found]}
    (arguments.out / f"{report_name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (arguments.out / f"{report_name}.md").write_text(table(found))
    print(table(found))
    if arguments.new_polynomials:
        print(restart([arguments.out / row.name for row in found]))
    return 1 if len(found) < len(builds) else 0


def restart(outs: list[Path]) -> str:
    """What an operator does with builds that have new polynomials."""
    configurations = "\n".join(f"    {out.resolve() / f'{_SERVED_AS}.conf'}" for out in outs)
    return f"""\
New polynomials are in force once the switch runs a new build:
{configurations}
1. Restart bf_switchd with this {_SERVED_AS}.conf. All calls go over the relay meanwhile.
2. Run setup.py again: tables are empty after a start.
3. The agent needs no restart. It reads the new context.json when it connects, and offloads the calls again."""


def compiler_version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()


if __name__ == "__main__":
    sys.exit(main())
