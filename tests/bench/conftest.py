"""What the bench's tests share: the load generator."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.load import Load, Wires
from tests.lab.built import require

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def load():
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    require(*(ROOT / f"build/bench/obj/{source.name.removesuffix('.bpf.c')}.o" for source in (ROOT / "bench").glob("*.bpf.c")))
    with Wires() as wires, Load(wires) as made:
        yield made
