"""The short form of bench/kills.py: half a minute of random kills under SIP calls; nothing is lost without a cause, nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.kills import PARTS, Kill, Loss, Run, report, verdict
from tests.lab.processes import choose

_ALL_KINDS_SEED = 3


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.netns
async def test_random_kills(tmp_path: Path) -> None:
    run = Run(*choose(), list(PARTS), seconds=20.0, calls=20, rate=3.0, seed=_ALL_KINDS_SEED, output=tmp_path / "kills")
    result = await run.run()
    report(result)
    assert len(result["kills"]) >= 3 and result["sent"] > 20_000 and result["offloaded"] > result["sent"] / 2
    assert verdict(result) == []


def _run_with(*kills: Kill, relay: str = "rtpproxy") -> Run:
    run = Run("kamailio", relay, list(PARTS), 1.0, 1, 1.0, 0)
    run.kills = list(kills)
    return run


def test_only_the_death_of_what_carries_a_stream_is_a_cause() -> None:
    """An offloaded stream needs no process; one on the relay needs the relay, and its session."""
    run = _run_with(Kill("agent", 5.0, 6.0), Kill("relay", 10.0, 10.5))
    assert run._cause(Loss("a", "caller", 30, 31, 5.2, 5.3, 1, 40000, 1.0)) == ""
    assert run._cause(Loss("a", "caller", 30, 31, 5.2, 5.3, 40, 40000, 1.0)) == ""
    assert run._cause(Loss("a", "caller", 30, 31, 10.2, 10.3, 1, 40000, 1.0)) == ""
    assert "dead from 10.0" in run._cause(Loss("a", "caller", 30, 31, 10.2, 10.3, 40, 40000, 1.0))
    assert "died with the relay" in run._cause(Loss("a", "caller", 30, 900, 14.0, 20.0, 0, 40000, 1.0))
    assert run._cause(Loss("a", "caller", 1, 31, 14.0, 14.1, 40, 40000, 13.9)) == "", "the relay had died before that call began"
    run._ports[40000] = [("old", 2.0, 20.0)]
    run._ports_of["a"] = {40000, 40002}
    assert "forgot that old has a port of this call" in run._cause(Loss("a", "caller", 30, 31, 14.0, 14.1, 40, 40002, 1.0))
    # What came through the data plane after the relay had forgotten the call went with the entry of the call that got the port then.
    run._ports |= {40000: [("new", 12.0, 20.0)], 40002: [("a", 1.0, 20.0)]}
    assert "gave a port of it to new" in run._cause(Loss("a", "caller", 800, 801, 17.0, 17.1, 600, 40002, 1.0, 13.0))
    assert run._cause(Loss("a", "caller", 800, 801, 17.0, 17.1, 1, 40002, 1.0, 1.1)) == "", "it was in the data plane when the relay died"
    assert run._cause(Loss("a", "caller", 800, 801, 11.0, 11.1, 600, 40002, 1.0, 10.8)) == "", "the port had not been given to anybody"
    assert "agent dead" in _run_with(Kill("agent", 5.0, 6.0), relay="builtin")._cause(Loss("a", "caller", 1, 9, 5.2, 5.4, 10, 40000, 1.0))


def test_what_falls_short() -> None:
    good = {"losses": [], "listener_missed": 0, "dropped_by_lab_links": 0, "failed_calls": [], "entries_matched_calls": True, "left_behind": {"calls": 0, "sessions": 0, "after_s": 3.0}}
    lost = {"packets": 7, "cause": ""}
    assert verdict(good) == [] == verdict(good | {"losses": [lost | {"cause": "relay dead"}]}) == verdict(good | {"losses": [lost], "dropped_by_lab_links": 7})
    assert "7 packets" in verdict(good | {"losses": [lost], "dropped_by_lab_links": 6})[0]
    assert "1 calls" in verdict(good | {"failed_calls": [{"cause": ""}]})[0]
    assert "'sessions': 1" in verdict(good | {"left_behind": {"calls": 0, "sessions": 1, "after_s": 75.0}})[0]
    assert verdict(good | {"listener_missed": 1}) and verdict(good | {"entries_matched_calls": False})
