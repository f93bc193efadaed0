"""The packet-rate limit of a stream: what exceeds it is dropped and counted, other streams notice nothing, and without one nothing is limited."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shunt.tables.entry import RelayEntry
from shunt_softswitch import layout
from shunt_softswitch.dataplane import DataPlane
from tests.dataplane import lab as lab_module
from tests.dataplane.lab import HOST_B4, HOST_B6, MAC_B, RELAY_B4, Lab, entry
from tests.dataplane.test_packets import V4, V4_TO_6, V6, packet, run

pytestmark = pytest.mark.netns

PER_SECOND = 80  # 20 in a window of a quarter of a second


@contextmanager
def opened(lab: Lab, packet_limit: int = 0, *, unload: bool = True) -> Iterator[DataPlane]:
    """A data plane without interfaces; without `unload` its entries stay in the kernel."""
    with lab_module.inside(lab.ns("relay")):
        for host in (HOST_B4, HOST_B6):
            lab_module.sh("ip", "neigh", "replace", host, "lladdr", MAC_B, "dev", "rb", "nud", "permanent")
        plane = DataPlane.open(interfaces=[], capacity=300, pin_dir=str(lab.pins / "limit"), packet_limit=packet_limit)
        try:
            yield plane
        finally:
            plane.unload() if unload else plane.close()


def _window(plane: DataPlane) -> int:
    ticks = layout.packet_limits(PER_SECOND, 0)["limit_window"]
    return plane._tick() // ticks


def _in_one_window(plane: DataPlane, send: list[bytes], program: str = "limited_native") -> list[int]:
    """The verdicts on packets that all came in one window."""
    for _ in range(20):
        before = _window(plane)
        while (start := _window(plane)) == before:  # to be at its very beginning
            time.sleep(0.001)
        verdicts = [run(plane, frame, program)[0] for frame in send]
        if _window(plane) == start:
            return verdicts
    raise AssertionError("this machine is too slow to send so few packets in a quarter of a second")


@pytest.mark.parametrize("made", [V4, V6, V4_TO_6], ids=["fast path", "IPv6", "4to6"])
def test_a_flooded_stream_is_limited_and_others_are_not(lab: Lab, made: RelayEntry) -> None:
    other = entry("10.1.0.9:4000", str(V4.key.dst), f"{RELAY_B4}:20004", f"{HOST_B4}:6002")  # at V4's port: it has no slot of its own
    with opened(lab, PER_SECOND) as plane:
        assert plane.insert([made, other]) == [None, None]
        most = layout.packet_limits(PER_SECOND, 0)["packet_limit"]
        assert most == 20
        flood, quiet = [bytes(packet(made))] * 30, [bytes(packet(other))] * 3
        verdicts = _in_one_window(plane, flood + quiet)
        assert verdicts == [layout.XDP_REDIRECT] * most + [layout.XDP_DROP] * 10 + [layout.XDP_REDIRECT] * 3
        totals = plane.totals()
        assert totals["limited_packets"] == plane.reasons()["over-limit"] >= 10
        assert totals["passed_packets"] == totals["missed_packets"] == 0
        assert run(plane, flood[0], "relay_trace")[0] & 0xFF == layout.XDP_REDIRECT, "trace tells where packets go, not how many"
        # In the next window it has its share again, and a stream without a slot is limited too.
        verdicts = _in_one_window(plane, flood[:1] + quiet * 10)
        assert verdicts[0] == layout.XDP_REDIRECT and verdicts[1:].count(layout.XDP_REDIRECT) == most


def test_without_a_limit_there_is_none_and_no_room_is_taken_for_it(lab: Lab) -> None:
    with opened(lab) as plane:
        plane.insert([V4])
        assert {run(plane, bytes(packet(V4)))[0] for _ in range(500)} == {layout.XDP_REDIRECT}
        assert plane.totals()["limited_packets"] == 0
        assert plane.memory()["limits"] < 10_000


def test_the_limit_comes_and_goes_with_the_process_and_entries_stay(lab: Lab) -> None:
    flood = [bytes(packet(V4))] * 30
    for limit, expected in ((0, 30), (PER_SECOND, 20), (0, 30)):
        with opened(lab, limit, unload=False) as plane:
            plane.insert([V4])
            # Only what keeps the limit is there, and only where there is one: it is the slower way.
            name = "limited_native" if limit else "relay_native"
            assert plane._relay_program(generic=False) == plane.program(name)
            assert _in_one_window(plane, flood, name).count(layout.XDP_REDIRECT) == expected
    with opened(lab) as plane:
        assert plane.keys() == [V4.key]
