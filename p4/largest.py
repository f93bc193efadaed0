#!/usr/bin/env python3
"""Finds the largest tables of the builds of builds.yaml by compiling: sizes that fit where one step more is refused.

    python p4/largest.py [NAME...]

A step is one hundredth of the sizes in builds.yaml. From these the search goes up, or down, in growing strides, and then
halves the distance. Every size tried is one run of the compiler: minutes, and more where it refuses. What is found is
left in build/p4/NAME, so that `make p4` has nothing more to do once builds.yaml says the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import compile as p4_compile

_LEAST = -75  # steps, where a search gives up


def largest(fits: Callable[[int], bool], stride: int) -> int | None:
    """The largest number that fits while the next one does not; from 0 on, up or down. None when nothing down to _LEAST does."""
    low, high = (0, None) if fits(0) else (None, 0)
    reach = stride
    while high is None:
        if fits(low + reach):
            low += reach
            reach *= 2
        else:
            high = low + reach
    while low is None:
        if high == _LEAST:
            return None
        lower = max(high - reach, _LEAST)
        if fits(lower):
            low = lower
        else:
            high = lower
            reach *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def grown(build: p4_compile.Build, steps: int) -> dict[str, str]:
    """The build's options with tables larger (smaller) by so many hundredths, in steps of 500 entries."""
    sizes = {size: str(round(int(build.options[size]) * (100 + steps) / 50_000) * 500) for size in ("RELAY_SIZE", "RELAY6_SIZE")}
    return dict(build.options) | (sizes if steps else {})


def search(compiler: str, build: p4_compile.Build, out: Path, stride: int) -> tuple[dict[str, str], dict[str, str]] | None:
    """The largest options of a build and those that are refused, each size tried being compiled; None when none was found. The build is left in out/NAME."""

    def fits(steps: int) -> bool:
        options = grown(build, steps)
        tried = out / "tried" / f"{build.name}{steps:+}"
        kept = replace(build, options=options, refused={})
        if p4_compile.kept_seconds(compiler, kept, out / build.name) is not None:
            return True
        reason, seconds = p4_compile.make(compiler, kept, tried)
        print(f"{build.name}: {int(options['RELAY_SIZE']):,} + {int(options['RELAY6_SIZE']):,} {'fit' if reason is None else 'refused: ' + reason}, {seconds:.0f} s", flush=True)
        if reason is None:
            shutil.rmtree(out / build.name, ignore_errors=True)
            tried.rename(out / build.name)
        else:
            shutil.rmtree(tried)
        return reason is None

    found = largest(fits, stride)
    return None if found is None else (grown(build, found), grown(build, found + 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="builds and splits of builds.yaml; all builds when none is named")
    parser.add_argument("--out", type=Path, default=p4_compile.HERE.parent / "build" / "p4", help="where to compile to")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compiler runs at a time")
    parser.add_argument("--stride", type=int, default=2, help="steps that the first stride takes")
    arguments = parser.parse_args()
    try:
        compiler = p4_compile.find_compiler()
    except p4_compile.NoCompiler as reason:
        print(reason, file=sys.stderr)
        return 1
    builds = p4_compile.read_builds()
    if arguments.names:
        builds = [build for build in builds + p4_compile.read_builds("splits") if build.name in arguments.names]

    def one(build: p4_compile.Build) -> bool:
        found = search(compiler, build, arguments.out, arguments.stride)
        sizes = "nothing fits" if found is None else ", refused: ".join(f"{{RELAY_SIZE: {options['RELAY_SIZE']}, RELAY6_SIZE: {options['RELAY6_SIZE']}}}" for options in found)
        print(f"==> {build.name}: {sizes}", flush=True)
        return found is not None

    with ThreadPoolExecutor(arguments.jobs) as pool:
        return 0 if all(list(pool.map(one, builds))) else 1


if __name__ == "__main__":
    sys.exit(main())
