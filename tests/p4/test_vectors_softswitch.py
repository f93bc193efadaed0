"""The vectors, run through the softswitch's XDP programs."""

from __future__ import annotations

import pytest

from shunt_softswitch import layout, libbpf
from shunt_softswitch.dataplane import DataPlane
from tests.vectors.model import MEDIA, Else, Vector
from tests.vectors.relay import ENTRIES, VECTORS

pytestmark = pytest.mark.netns


@pytest.fixture
def filled(plane: DataPlane) -> DataPlane:
    for ports in MEDIA:
        plane.add_media(ports)
    assert plane.insert(ENTRIES) == [None] * len(ENTRIES)
    return plane


@pytest.mark.parametrize("vector", [vector for vector in VECTORS if vector.only != "switch"], ids=lambda vector: vector.name)
def test_vector(filled: DataPlane, vector: Vector) -> None:
    sent = vector.frame
    expected = (layout.XDP_PASS, sent) if isinstance(vector.out, Else) else (layout.XDP_REDIRECT, bytes(vector.out[1]()))
    for program in ("relay_native", "relay_generic"):
        done = libbpf.test_run(filled.program(program), sent)
        assert (done.retval, done.packet.hex()) == (expected[0], expected[1].hex()), program
        assert filled.poll_learn(1 << 20) == ([] if vector.learn is None else [vector.learn]), program
