"""Calls that SIPp places through relays: figures by hand, and a real run of two ways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import calls
from bench.report import calls as report
from bench.report.page import Page
from tests.bench.test_reports import FACTS

ROOT = Path(__file__).resolve().parents[2]


def _step(way: str, count: int, **more) -> dict:
    found = {
        "way": way, "calls": count, "media_s": 4.0, "server": "kamailio", "good": count, "failed": 0, "due": 400 * count,
        "total": {"sent": 400 * count, "received": 400 * count - 3, "slow": 400 * count},
        "window": {"at": 2.0, "softirq": 0.2, "relay": 0.5, "caller": 0.1, "callee": 0.3, "sent": 10_000, "received": 10_000, "slow": 10_040},
        "samples": [{"at": 1.0, "softirq": 0.1, "relay": 0.1}, {"at": 2.0, "softirq": 0.3, "relay": 0.4}],
    }  # fmt: skip
    return found | more


def test_figures_by_hand():
    shunt = _step("shunt", 45)
    shunt["window"] = shunt["window"] | {"agent": 0.02, "softswitch": 0.04, "relay": 0.0, "slow": 100}
    found = calls.analyse({"rtpproxy/0045": _step("rtpproxy", 45), "shunt/0045": shunt}, FACTS)
    relay, ours = found["rows"]
    assert relay["way"] == "rtpproxy" and relay["relay"] == pytest.approx(0.25) and relay["process_ns"] == pytest.approx(50_000) and relay["lost"] == 3
    assert relay["data_plane"] == 0.0 and relay["softirq"] == pytest.approx(0.1) and "agent" not in relay
    assert ours["process_ns"] == pytest.approx(6_000) and ours["data_plane"] == pytest.approx(0.99) and ours["agent"] + ours["softswitch"] == pytest.approx(0.03)
    assert found["remarks"] == []
    page = Page("t")
    report.fill(page, FACTS, found | {"missing": ["x: not measured"]}, {"a": _step("rtpproxy", 45), "b": shunt})
    assert "99.0%" in page.text() and "x: not measured" in page.text() and "<svg" in page.text()
    assert "50,000" in report.text(FACTS, found | {"missing": []})


def test_a_generator_that_fell_behind_is_said_to_have():
    short = _step("rtpengine", 45, total={"sent": 17_000, "received": 17_000, "slow": 17_000})
    failed = _step("builtin", 45, good=44, failed=1)
    assert not calls.kept_up(short) and not calls.kept_up(failed) and calls.kept_up(_step("shunt", 45))
    found = calls.analyse({"a": short, "b": failed}, FACTS)
    assert len(found["remarks"]) == 2 and "94.4% of the packets sent" in found["remarks"][0]
    assert "SIPp fell behind" in report.rows(found)[0][3]


@pytest.mark.slow
def test_calls_through_the_slow_path_and_the_data_plane(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    code = "import json, sys; from pathlib import Path; from bench import calls\nprint(json.dumps([calls.step(Path(sys.argv[1]), way, 6, 0.5) for way in ('builtin', 'shunt')]))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    slow, fast = json.loads(done.stdout.splitlines()[-1])
    for found in (slow, fast):
        assert found["good"] == 6 and found["failed"] == 0
        assert 0.8 * found["due"] < found["total"]["received"] == found["total"]["sent"] <= found["due"]
        assert len(found["samples"]) >= 2 and found["window"]["at"] > 0
    # Each packet of the slow path passes the relay's own socket; of the others only those before the offload.
    assert slow["total"]["slow"] >= slow["total"]["sent"]
    assert fast["total"]["slow"] < 0.5 * fast["due"]
