"""The packet-rate limit of a stream: what exceeds it is dropped and counted, other streams notice nothing, and without one nothing is limited."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.dataplane.lab import HOST_B4, RELAY_B4, Lab, entry
from tests.dataplane.test_packets import V4, V4_TO_6, V6, packet
from tests.dataplane.traffic import DROP, REDIRECT, run
from tests.softswitch import testrun
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.tools.entry import RelayEntry

pytestmark = pytest.mark.netns

PER_SECOND, MOST = 80, 20  # in a window of a quarter of a second
_WINDOW_S = 0.25


@pytest.fixture(scope="module")
def limited(lab: Lab) -> Iterator[Softswitch]:
    """A softswitch that each test starts, with a limit or without."""
    lab.fix_neighbours()
    made = Softswitch(["ra", "rb"], namespace=lab.ns("relay"), capacity=300)
    yield made
    made.unload()


@contextmanager
def opened(softswitch: Softswitch, packet_limit: int = 0) -> Iterator[Plane]:
    """A client of the softswitch, which runs with this limit; its entries stay in the kernel."""
    softswitch.packet_limit = packet_limit
    softswitch.start()
    try:
        with Plane(softswitch.target) as plane:
            yield plane
    finally:
        softswitch.stop()


def verdicts(softswitch: Softswitch, frames: list[bytes], program: str = "limited_native") -> list[int]:
    """The verdicts on frames that came at once, and in a window of which nothing else has had a part."""
    time.sleep(2 * _WINDOW_S)
    with testrun.pinned(softswitch.pin_dir, program, softswitch.namespace) as found:
        return [found.run(frame, ingress="ra").verdict for frame in frames]


def in_one_window(softswitch: Softswitch, frames: list[bytes], expected: list[int], program: str = "limited_native") -> None:
    """Whether these are the verdicts on frames that all came in one window, which not every go will meet."""
    for _ in range(20):
        if (found := verdicts(softswitch, frames, program)) == expected:
            return
    raise AssertionError(f"{found}, not {expected}")


@pytest.mark.parametrize("made", [V4, V6, V4_TO_6], ids=["fast path", "IPv6", "4to6"])
def test_a_flooded_stream_is_limited_and_others_are_not(limited: Softswitch, made: RelayEntry) -> None:
    other = entry("10.1.0.9:4000", str(V4.key.dst), f"{RELAY_B4}:20004", f"{HOST_B4}:6002")  # at V4's port: it has no slot of its own
    with opened(limited, PER_SECOND) as plane:
        before = plane.totals()
        assert plane.insert([made, other]) == [None, None]
        flood, quiet = [bytes(packet(made))] * 30, [bytes(packet(other))] * 3
        in_one_window(limited, flood + quiet, [REDIRECT] * MOST + [DROP] * 10 + [REDIRECT] * 3)
        counted = {name: value - before[name] for name, value in plane.totals().items()}
        assert counted["limited_packets"] >= 10 and counted["missed_packets"] == 0
        assert counted["rx_packets"] == counted["limited_packets"] + counted["relayed_packets"] + counted["passed_packets"]
        assert run(limited, flood[0], "relay_trace")[0] & 0xFF == REDIRECT, "trace tells where packets go, not how many"
        # In the next window it has its share again, and a stream without a slot is limited too.
        in_one_window(limited, flood[:1] + quiet * 10, [REDIRECT] + [REDIRECT] * MOST + [DROP] * 10)
        plane.clear()


def test_without_a_limit_there_is_none(limited: Softswitch) -> None:
    with opened(limited) as plane:
        before = plane.totals()
        plane.insert([V4])
        with testrun.pinned(limited.pin_dir, "relay_native", limited.namespace) as program:
            assert {program.run(bytes(packet(V4)), ingress="ra").verdict for _ in range(500)} == {REDIRECT}
        assert plane.totals()["limited_packets"] == before["limited_packets"]
        plane.clear()


def test_the_limit_comes_and_goes_with_the_process_and_entries_stay(limited: Softswitch) -> None:
    flood = [bytes(packet(V4))] * 30
    for limit, program in ((0, "relay_native"), (PER_SECOND, "limited_native"), (0, "relay_native")):
        with opened(limited, limit) as plane:
            plane.insert([V4])
            # Only what keeps the limit is attached, and only where there is one: it is the slower way.
            with testrun.attached("ra", limited.namespace) as attached:
                assert attached.name == program[:15]
            in_one_window(limited, flood, [REDIRECT] * (MOST if limit else 30) + [DROP] * (10 if limit else 0), program)
    with opened(limited) as plane:
        assert plane.keys() == [V4.key]
        plane.clear()
