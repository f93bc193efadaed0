"""The vectors, run through the v1model twin in BMv2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.needs import need
from tests.p4 import bmv2
from tests.vectors.model import Vector, expected
from tests.vectors.relay import SWITCH_ENTRIES, V4, VECTORS, packet, relayed

need(*bmv2.TOOLS)
pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bmv2.Bmv2]:
    program: Path = bmv2.compile_twin(tmp_path_factory.mktemp("p4"))
    with bmv2.running(program) as made:
        made.cli([*bmv2.scene_commands(), *map(bmv2.relay_command, SWITCH_ENTRIES)])
        yield made


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_vector(switch: bmv2.Bmv2, vector: Vector) -> None:
    wanted = expected(vector)
    switch.send(vector.port, vector.frame)
    frames = switch.received(len(wanted))
    assert [(port.name, frame.hex()) for port, frame in frames] == [(port.name, frame.hex()) for port, frame in wanted]
    assert switch.notices(vector.learn is not None) == ([] if vector.learn is None else [vector.learn])
