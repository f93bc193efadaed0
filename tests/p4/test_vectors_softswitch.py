"""The vectors, run through the softswitch's XDP programs."""

from __future__ import annotations

import pytest

from tests.dataplane.traffic import PASS, REDIRECT, run
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.vectors.model import MEDIA, Else, Port, Vector, of_host
from tests.vectors.relay import ENTRIES, VECTORS

pytestmark = pytest.mark.netns

INTERFACES = {Port.A: "ra", Port.B: "rb"}


@pytest.fixture
def filled(plane: Plane) -> Plane:
    for ports in MEDIA:
        plane.add_media(ports)
    assert plane.insert(ENTRIES) == [None] * len(ENTRIES)
    return plane


@pytest.mark.parametrize("vector", [vector for vector in VECTORS if vector.only != "switch"], ids=lambda vector: vector.name)
def test_vector(filled: Plane, softswitch: Softswitch, vector: Vector) -> None:
    sent = vector.frame
    expected = (PASS, sent) if isinstance(vector.out, Else) else (REDIRECT, of_host(bytes(vector.out[1]())))
    for program in ("relay_native", "relay_generic"):
        verdict, left = run(softswitch, sent, program, ingress=INTERFACES[vector.port])
        assert (verdict, left.hex()) == (expected[0], expected[1].hex()), program
        assert filled.poll_learn() == ([] if vector.learn is None else [vector.learn]), program
