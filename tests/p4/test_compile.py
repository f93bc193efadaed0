"""`make p4`: what it says without a compiler, and, where there is one, that every kind of build still compiles."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.p4.program import P4, compile_p4, largest_p4

EVERY = compile_p4.read_builds() + compile_p4.read_builds("splits")


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "SDE_INSTALL": str(tmp_path)}
    for script in ("compile.py", "generate.py", "largest.py"):
        done = subprocess.run([sys.executable, str(P4 / script)], env=environment, capture_output=True, text=True)
        assert done.returncode != 0
        assert "bf-p4c" in done.stderr and "SDE_INSTALL" in done.stderr and "Traceback" not in done.stderr


def test_a_build_that_is_not_there_is_named(tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "bf-p4c"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    done = subprocess.run([sys.executable, str(P4 / "compile.py"), "nothing"], env={**os.environ, "SDE_INSTALL": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode != 0 and "no such build: nothing" in done.stderr


def test_a_refusal_of_the_compiler_is_reported(tmp_path: Path) -> None:
    fake = tmp_path / "bf-p4c"
    fake.write_text("#!/bin/sh\necho 'error: tofino supports up to 12 stages, using 13' >&2; exit 2\n")
    fake.chmod(0o755)
    build = compile_p4.Build("x", "tofino", {"RELAY_SIZE": "9"})
    assert "using 13" in compile_p4.compile_build(str(fake), build, tmp_path / "out")


def test_a_build_that_is_not_offered_is_refused_before_the_compiler_runs(tmp_path: Path) -> None:
    build = compile_p4.Build("x", "tofino", {"SEQUENCE": "2"}, program="conference")
    reason, seconds = compile_p4.make("no-such-compiler", build, tmp_path / "out")
    assert "S-LR" in reason and "Tofino 1" in reason and seconds == 0 and not (tmp_path / "out").exists()
    assert all(compile_p4.not_offered(build) is None for build in EVERY)


def test_a_compiler_that_loses_the_parsers_selects_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "bf-p4c"
    fake.write_text('#!/bin/sh\necho "relay.bfa:45: warning: Can\'t match parser state due to previous match" >&2\n')
    fake.chmod(0o755)
    assert "5752" in compile_p4.compile_build(str(fake), compile_p4.Build("x", "tofino", {"RELAY_SIZE": "9"}), tmp_path / "out")


def test_a_build_is_compiled_again_only_when_something_has_changed(tmp_path: Path) -> None:
    """Of the program as its preprocessor leaves it; comments are not of it."""
    runs, text = tmp_path / "runs", tmp_path / "text"
    text.write_text("a b\n")
    fake = tmp_path / "bf-p4c"
    fake.write_text(f'#!/bin/sh\ncase "$*" in --version) echo 1;; *" -E "*) cat {text};; *) echo x >> {runs};; esac\n')
    fake.chmod(0o755)
    build, out = compile_p4.Build("x", "tofino", {"RELAY_SIZE": "9"}), tmp_path / "out"
    reason, seconds = compile_p4.make(str(fake), build, out)
    assert reason is None and compile_p4.make(str(fake), build, out) == (None, seconds)
    assert len(runs.read_text().splitlines()) == 1
    compile_p4.make(str(fake), compile_p4.Build("x", "tofino", {"RELAY_SIZE": "10"}), out)
    text.write_text('# 1 "relay.p4"\n/* said otherwise */ a  b // c\n')
    compile_p4.make(str(fake), compile_p4.Build("x", "tofino", {"RELAY_SIZE": "10"}), out)
    assert len(runs.read_text().splitlines()) == 2
    text.write_text("a b c\n")
    compile_p4.make(str(fake), compile_p4.Build("x", "tofino", {"RELAY_SIZE": "10"}), out)
    assert len(runs.read_text().splitlines()) == 3
    fake.write_text("#!/bin/sh\nexit 2\n")
    assert compile_p4.make(str(fake), build, out)[0] == "exit status 2"
    assert compile_p4.make(str(fake), build, out)[0] == "exit status 2", "a build that failed is not there"


def loaded(out: Path) -> list[Path]:
    """The files that relay.conf tells bf_switchd to load."""
    (device,) = json.loads((out / "relay.conf").read_text())["p4_devices"]
    (program,) = device["p4_programs"]
    (pipeline,) = program["p4_pipelines"]
    assert program["program-name"] == "relay"
    return [Path(program["bfrt-config"]), Path(pipeline["context"]), Path(pipeline["config"])]


def test_a_build_says_what_bf_switchd_loads(tmp_path: Path) -> None:
    """Also one that is there already: absolute paths, since bf_switchd runs elsewhere."""
    fake = tmp_path / "bf-p4c"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    build, out = compile_p4.Build("x", "tofino2", {"RELAY_SIZE": "9"}), tmp_path / "out"
    for _ in range(2):
        assert compile_p4.make(str(fake), build, out)[0] is None
        assert loaded(out) == [out / "bfrt.json", out / "pipe" / "context.json", out / "pipe" / "tofino2.bin"]
        (out / "relay.conf").unlink()


@pytest.mark.parametrize("stride", [1, 2, 5])
def test_the_largest_size_is_found_up_and_down(stride: int) -> None:
    for most in range(-75, 60):
        tried: dict[int, bool] = {}

        def fits(steps: int) -> bool:
            assert steps not in tried, "every try is minutes of the compiler"
            return tried.setdefault(steps, steps <= most)

        assert largest_p4.largest(fits, stride) == most
        assert tried[most] and not tried[most + 1]
    assert largest_p4.largest(lambda steps: False, stride) is None


def test_a_step_is_a_hundredth() -> None:
    build = compile_p4.Build("x", "tofino", {"RELAY_SIZE": "157000", "RELAY6_SIZE": "45000", "COUNTED": "1"})
    assert largest_p4.grown(build, 0) == build.options
    assert largest_p4.grown(build, 2) == {"RELAY_SIZE": "160000", "RELAY6_SIZE": "46000", "COUNTED": "1"}


def test_a_split_is_its_build_with_other_sizes(tmp_path: Path) -> None:
    path = tmp_path / "builds.yaml"
    path.write_text("""
builds:
  - {name: a, chip: tofino2, options: {ACTIONS: plain, RELAY_SIZE: 3000, RELAY6_SIZE: 1000}, refused: {RELAY_SIZE: 3500}}
splits:
  - {name: a-ipv6, of: a, options: {RELAY_SIZE: 500, RELAY6_SIZE: 2000}}
""")
    (split,) = compile_p4.read_builds("splits", path)
    assert split == compile_p4.Build("a-ipv6", "tofino2", {"ACTIONS": "plain", "RELAY_SIZE": "500", "RELAY6_SIZE": "2000"})


def test_what_was_refused_is_larger_than_what_fits() -> None:
    for build in EVERY:
        sizes = {size: int(value) for size, value in build.options.items() if size in ("RELAY_SIZE", "RELAY6_SIZE")}
        larger = sizes | dict(build.refused)
        assert set(larger) == set(sizes) and all(larger[size] >= sizes[size] for size in sizes), build.name
        assert larger != sizes or not build.refused, build.name


def test_builds_name_options_that_the_program_has() -> None:
    def options(name: str) -> set[str]:
        return set(re.findall(r"#ifndef (\w+)", (P4 / "include" / name).read_text()))

    known = {"relay": options("config.p4"), "conference": options("config.p4") | options("conference_config.p4")}
    assert len({build.name for build in EVERY}) == len(EVERY)
    for build in EVERY:
        assert set(build.options) <= known[build.program]
        assert build.chip in ("tofino", "tofino2")


def included(path: Path) -> set[Path]:
    """A source of the program and all that it includes."""
    return {path}.union(*(included(path.parent / name) for name in re.findall(r'^#include "(.+)"', path.read_text(), re.MULTILINE)))


def test_relay_is_read_without_a_switchboard() -> None:
    """Options are set in config.p4; beside it five conditions are left: the chip's architecture, the stored hash, and what delay takes."""
    met = {path.name: len(re.findall("^#if", path.read_text(), re.MULTILINE)) for path in included(P4 / "relay.p4")}
    assert met["relay.p4"] == 0 and not any("conference" in name for name in met)
    assert sum(met.values()) - met["config.p4"] <= 5, met


def test_every_option_is_built_for_both_chips() -> None:
    """Each value of each option is in some build of each chip, so that `make p4` compiles it."""
    for chip in ("tofino", "tofino2"):
        configs = [compile_p4.macros(build) for build in compile_p4.read_builds() if build.chip == chip]
        for option, values in {"RELAY_KEY": {"hash48", "hash32", "exact"}, "ACTIONS": {"across", "bridged", "plain"}, "COUNTED": {"0", "1"}, "DELAY": {"0", "1"}}.items():
            assert {config[option] for config in configs} >= values, (chip, option)


def test_published_sizes_are_those_of_the_builds() -> None:
    def number(text: str) -> int:
        return int(text.replace(",", ""))

    def numbers(text: str) -> list[int]:
        return [number(size) for size in text.split(" + ")]

    page = (P4.parent / "docs" / "reference" / "p4-builds.md").read_text()
    rows = {row[0]: row for row in ([cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()) if row and re.search(r"-tofino[12]$", row[0])}
    assert set(rows) == {build.name for build in EVERY}
    for build in EVERY:
        row, sizes = rows[build.name], {option: int(value) for option, value in build.options.items() if option.endswith("_SIZE")}
        if build.program == "relay":
            assert numbers(row[4]) + numbers(row[5]) == [sizes["RELAY_SIZE"], sizes["RELAY6_SIZE"]], build.name
            refused = {**sizes, **build.refused}
            assert numbers(row[6]) == [int(refused["RELAY_SIZE"]), int(refused["RELAY6_SIZE"])], build.name
        else:
            assert "room for 40,000 IPv4 and 8,192 IPv6 relay entries" in page
            assert [sizes["RELAY_SIZE"], sizes["RELAY6_SIZE"]] == [40000, 8192], build.name
            assert numbers(row[3]) == [sizes["CONFERENCE_SIZE"], sizes["CONFERENCE6_SIZE"]], build.name
            assert numbers(row[4]) * 2 == [sizes["LAYER_SIZE"], sizes["COPY_SIZE"]], build.name


@pytest.mark.parametrize("chip", ["tofino", "tofino2"])
def test_program_compiles(chip: str, tmp_path: Path) -> None:
    if shutil.which("bf-p4c") is None and "SDE_INSTALL" not in os.environ:
        pytest.skip("bf-p4c is not installed")
    build = compile_p4.Build("small", chip, {"RELAY_SIZE": "4096", "RELAY6_SIZE": "4096"})
    assert compile_p4.make(compile_p4.find_compiler(), build, tmp_path / "out")[0] is None
    assert all(path.stat().st_size for path in loaded(tmp_path / "out"))
    assert compile_p4.read_resources(build, tmp_path / "out", 0.0).stages <= (12 if chip == "tofino" else 20)
