"""What a softswitch finds loaded by the one before it is taken as it is, when it is the very same, and is loaded anew otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from shunt_softswitch import libbpf
from shunt_softswitch.dataplane import DataPlane
from tests.dataplane import lab as lab_module
from tests.dataplane.lab import Lab
from tests.dataplane.test_table import FIRST

PROGRAMS = {"relay_native", "relay_generic", "relay_trace", "tick"}


def opened(lab: Lab, **options: object) -> DataPlane:
    with lab_module.inside(lab.ns("relay")):
        return DataPlane.open(interfaces=["ra", "rb"], capacity=1024, pin_dir=str(lab.pins), **options)


def number(plane: DataPlane, name: str) -> int:
    """The kernel's number of a program."""
    info = Path(f"/proc/self/fdinfo/{plane.program(name)}").read_text()
    return int(next(line.split()[1] for line in info.splitlines() if line.startswith("prog_id")))


def test_programs_are_taken_over(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = libbpf.load_object
    monkeypatch.setattr(libbpf, "load_object", lambda path, **more: (loads.append(path.name), load(path, **more))[1])
    plane = opened(lab)
    try:
        before = {name: number(plane, name) for name in PROGRAMS}
        plane.close()
        plane = opened(lab)
        assert {name: number(plane, name) for name in PROGRAMS} == before and len(loads) == 1
        plane.close()
        plane = opened(lab, strays="drop")
        assert len(loads) == 2 and number(plane, "relay_native") != before["relay_native"], "another constant is another program"
        plane.close()
        plane = opened(lab, strays="drop", packet_limit=500)
        assert len(loads) == 3
        limited = number(plane, "limited_native")
        plane.close()
        assert {path.name.partition("program_")[2] for path in lab.pins.glob("loaded_*_program_*")} == PROGRAMS - {"relay_native", "relay_generic"} | {"limited_native", "limited_generic"}
        next(lab.pins.glob("loaded_*_map_limits")).unlink()  # as if the process had died while it pinned them
        plane = opened(lab, strays="drop", packet_limit=500)
        assert len(loads) == 4 and number(plane, "limited_native") != limited
    finally:
        plane.unload()
    assert [path for path in lab.pins.iterdir() if path.suffix != ".debug"] == [], "the kernel shows maps.debug and progs.debug there"


def test_tables_of_a_version_with_fewer_are_taken_over(lab: Lab) -> None:
    """Maps that came later are made; what the older ones hold stays."""
    plane = opened(lab)
    try:
        plane.insert([FIRST])
        plane.close()
        for name in ("wary", "known"):
            (lab.pins / name).unlink()
        plane = opened(lab)
        assert plane.get([FIRST.key]) == [FIRST]
        assert plane.hearing.known.put(FIRST.key.src, 60_000)
        plane.close()
        plane = opened(lab)
        assert list(plane.hearing.known.ends()) == [FIRST.key.src], "and is pinned"
    finally:
        plane.unload()
