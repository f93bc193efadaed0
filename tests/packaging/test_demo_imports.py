"""`make demo` works with the packages that its set-up installs: its modules import nothing else."""

from __future__ import annotations

import subprocess
import sys

# Imports the demo and prints the distributions outside the closure of shunt[demo] that its modules came from.
SCRIPT = """
import importlib.metadata as metadata, re, sys
import tests.lab.demo

def closure(name, extras, seen):
    name = re.sub(r"[-_.]+", "-", name).lower()
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    for line in metadata.distribution(name).requires or ():
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra\\s*==\\s*['\\"]([\\w-]+)", marker)
        if extra and extra[1] not in extras:
            continue
        wanted = re.match(r"([\\w.-]+)(?:\\[([\\w,-]+)\\])?", requirement)
        try:
            closure(wanted[1], tuple((wanted[2] or "").split(",")), seen)
        except metadata.PackageNotFoundError:
            pass  # for another platform or version of Python

seen = set()
closure("shunt", ("demo",), seen)
allowed = {name for name, _ in seen}
of = metadata.packages_distributions()
for module in sorted({name.partition(".")[0] for name in sys.modules}):
    owners = {re.sub(r"[-_.]+", "-", owner).lower() for owner in of.get(module, ())}
    if owners and not owners & (allowed | {"setuptools", "pip"}):
        print(module)
"""


def test_the_demo_imports_only_what_its_set_up_installs() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [], "not among the packages of shunt[demo] in pyproject.toml"
