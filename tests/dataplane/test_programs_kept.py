"""What a softswitch finds loaded by the one before it is taken as it is, when it is the very same, and is loaded anew otherwise."""

from __future__ import annotations

import pytest

from tests.dataplane.lab import Lab
from tests.softswitch import testrun
from tests.softswitch.process import Softswitch

pytestmark = pytest.mark.netns


def numbers(softswitch: Softswitch) -> dict[str, int]:
    """The kernel's numbers of the pinned programs."""
    found = {}
    for name in testrun.programs(softswitch.pin_dir):
        with testrun.pinned(softswitch.pin_dir, name) as program:
            found[name] = program.number
    return found


def test_programs_are_taken_over(lab: Lab) -> None:
    softswitch = Softswitch(["ra", "rb"], namespace=lab.ns("relay"), capacity=1024, mismatch="pass")
    with softswitch:
        before = numbers(softswitch)
        assert {"relay_native", "relay_generic", "relay_trace"} <= set(before) and not {"limited_native", "limited_generic"} & set(before)
        softswitch.restart()
        assert numbers(softswitch) == before
        softswitch.stop()
        softswitch.mismatch = "drop"
        softswitch.start()
        dropping = numbers(softswitch)
        assert set(dropping) == set(before) and not set(dropping.values()) & set(before.values()), "another constant is another program"
        softswitch.stop()
        softswitch.packet_limit = 500
        softswitch.start()
        limited = numbers(softswitch)
        assert {"limited_native", "limited_generic"} <= set(limited) and not {"relay_native", "relay_generic"} & set(limited)
        with testrun.attached("ra", softswitch.namespace) as attached:
            assert attached.number in limited.values()
        softswitch.stop()
        softswitch.take_out()
        assert softswitch.pinned() == []
