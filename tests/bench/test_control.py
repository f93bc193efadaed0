"""The load of control commands against a relay that answers as told, and the figures of the control bench by hand."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from bench import commands, control, stand_in
from bench.report import control as report
from bench.report.page import Page
from tests.bench.test_reports import FACTS


@pytest.fixture
def relay():
    """A socket connected to a relay, and a list with what answers its commands: delay in seconds and reply, or None for silence."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    server.settimeout(0.05)
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.connect(server.getsockname())
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                data, sender = server.recvfrom(4096)
            except TimeoutError:
                continue
            cookie, command = data.split(b" ", 1)
            delay_and_reply = answers[0](command.decode())
            if delay_and_reply is not None:
                time.sleep(delay_and_reply[0])
                server.sendto(cookie + b" " + delay_and_reply[1], sender)

    answers = [lambda command: (0.0, b"0" if command.startswith("D") else b"4000 198.18.0.1")]
    thread = threading.Thread(target=serve)
    thread.start()
    yield client, answers
    over.set()
    thread.join()
    server.close()
    client.close()


def test_every_command_is_accounted_for(relay):
    client, _ = relay
    answered: list[int] = []
    found = commands.run(client, 20, 400, hold_s=0.02, tag="t", on_answer=answered.append)
    assert found.sent == {"U": 20, "L": 20, "D": 20} and {verb: len(values) for verb, values in found.delays.items()} == found.sent
    assert sorted(answered) == list(range(20)) and not found.refused
    assert 0.045 <= found.set_up_s and len(found.late_us) == 20


def test_delays_are_the_relays_and_lost_commands_are_lost(relay, monkeypatch):
    monkeypatch.setattr(commands, "PATIENCE_S", 3.0)
    client, answers = relay
    answers[0] = lambda command: None if command.startswith("L") and " t3@" in command else (0.01, b"0" if command.startswith("D") else b"4000 198.18.0.1")
    found = commands.run(client, 5, 20, hold_s=0.0, tag="t")
    assert found.sent == {"U": 5, "L": 5, "D": 4} and len(found.delays["L"]) == 4 and len(found.delays["D"]) == 4
    assert 10_000 <= min(found.delays["U"]) <= commands.quantiles(found.delays["U"])["p50"]
    assert found.record()["received"]["L"] == 4


def test_calls_are_hung_up_also_at_a_rate_that_nobody_can_keep(relay):
    client, answers = relay
    heard: list[str] = []

    def answer(command: str) -> tuple[float, bytes]:
        heard.append(command[0])
        return 0.0, b"0" if command.startswith("D") else b"4000 198.18.0.1"

    def slowly(call: int) -> tuple[str, int, str, int]:
        time.sleep(0.001)
        return "198.18.1.2", 2000, "198.18.2.2", 2000

    answers[0] = answer
    found = commands.run(client, 100, 1e6, hold_s=0.0, tag="t", media=slowly)
    assert found.sent == {verb: heard.count(verb) for verb in commands.VERBS} == dict.fromkeys(commands.VERBS, 100)
    assert heard.index("D") < 50, "calls were opened, and none was hung up before all were open"


def test_refusals_are_told(relay):
    client, answers = relay
    answers[0] = lambda command: (0.0, b"E8" if command.startswith("U") else b"0")
    found = commands.run(client, 3, 100, hold_s=0.0, tag="t")
    assert len(found.refused) == 3 and found.sent["L"] == 0


def test_the_stand_in_has_ports_for_every_call():
    first, last = control.STAND_IN_PORTS
    seen = set()
    for number in range(30_000):
        address, to_callee, to_caller = stand_in.endpoints(number, 0xC6130001, first, last)
        assert first <= to_callee < to_caller <= last - 1 and to_callee % 2 == 0
        seen |= {(address, to_callee), (address, to_caller)}
    assert len(seen) == 60_000
    assert len({address for address, _ in seen}) == stand_in.addresses(30_000, first, last)


def _commands(us: float, rate: int = 300, calls: int = 300, lost: int = 0, late: float = 10.0) -> dict:
    return {
        "calls": calls, "seconds": calls / rate, "rate": rate, "refused": [], "refused_count": 0, "late_us": {"p50": late, "p99": late, "max": late}, "agent_cpu_s": 0.3,
        "softswitch_cpu_s": 0.15, "entries_written": 4 * calls,
        "sent": dict.fromkeys(commands.VERBS, calls), "received": dict.fromkeys(commands.VERBS, calls - lost), "delays_us": {verb: [us] * (calls - lost) for verb in commands.VERBS},
    }  # fmt: skip


def _steps() -> dict:
    steps = {f"delay/{n}/{way}": _commands(us + n) for n in range(3) for way, us in (("direct", 100.0), ("agent", 500.0))}
    steps |= {f"media/{n}/{way}": _commands(us + n) for n in range(3) for way, us in (("direct", 100.0), ("agent", 950.0))}
    steps |= {f"ladder/direct/{rate:06}": _commands(100.0, rate) for rate in (300, 450)}
    steps |= {"ladder/agent/000300": _commands(600.0), "ladder/agent/000450": _commands(90_000.0, 450)}
    row = {"answer_ms": 30.0, "packet_ms": 20.0, "write_ms": 3.0}
    steps |= {f"offload/{name}": {"calls": 2, "offloaded": 2, "rows": [row, row]} for name in control.OFFLOADS}
    sip = {"rate": 100, "calls": 10, "good": 10, "failed": 0, "took_s": 1.0, "invite_us": {"p50": 104_000.0, "p99": 110_000.0, "max": 1.0}, "timed": 10, "server": "kamailio", "agent_cpu_s": 0.02}
    steps |= {f"sip/{way}/00100": sip for way in control.WAYS}
    steps["calls/0001000"] = {
        "calls": 1000, "answered": 1000, "memory_before_mib": 50.0, "memory_mib": 60.0, "idle_before": 0.01, "idle": 0.02, "entries": 2000, "entries_left": 0, "set_up_s": 3.0,
        "set_up_cpu_s": 1.5, "hang_up_cpu_s": 0.5, "hang_up_s": 3.0, "softswitch_cpu_s": 0.2, "set_up_us": {"p50": 450.0, "p99": 1900.0, "max": 4000.0},
    }  # fmt: skip
    return steps


def test_control_figures_by_hand():
    found = control.analyse(_steps(), FACTS)
    assert found["delays_us"]["silent"]["L"]["p99"]["added"]["values"] == [400.0] * 3
    assert found["delays_us"]["media"]["D"]["p99"]["added"]["values"] == [850.0] * 3
    assert (found["rates"]["direct"]["highest"], found["rates"]["agent"]["highest"]) == (450, 300)
    assert found["cpu_us_per_call"]["silent"]["agent"]["median"] == pytest.approx(1000) and found["cpu_us_per_call"]["media"]["softswitch"]["median"] == pytest.approx(500)
    assert [row["met"] for row in found["targets"]] == [True, True, True] and found["remarks"] == []
    row = dict(zip(report.CALLS_HEAD, report.calls_rows(found)[0]))
    assert row["KiB a call"] == "10.2" and row["agent, CPU ms a call set up"] == "1.50"


def test_slow_lossy_and_late_rates_are_not_kept():
    found = [control.why_not_kept(step) for step in (_commands(1000.0), _commands(60_000.0), _commands(100.0, lost=2), _commands(100.0, lost=2, late=30_000.0))]
    assert found == ["", "slow", "lost", "generator late"]
    assert control.why_not_kept(_commands(100.0) | {"refused_count": 1}) == "refused"
    slow = {key: _commands(2500.0) if key.endswith("/agent") else step for key, step in _steps().items()}
    assert [row["met"] for row in control.analyse(slow, FACTS)["targets"]] == [True, False, False]


def test_calls_that_did_not_get_into_the_data_plane_are_told():
    steps = _steps()
    steps["media/1/agent"] |= {"entries_written": 4 * 300 - 2}
    (remark,) = control.analyse(steps, FACTS)["remarks"]
    assert remark.startswith("media/1/agent: of 1,200 entries") and "1,198" in remark
    steps["media/0/agent"] = _commands(2500.0)
    steps["media/2/agent"] = _commands(2500.0)
    assert [row["met"] for row in control.analyse(steps, FACTS)["targets"]] == [True, True, False]


def test_the_report_holds_the_figures_and_fetches_nothing():
    results, page = control.analyse(_steps(), FACTS), Page("x")
    report.fill(page, FACTS, results, _steps())
    text = page.text()
    assert text.count("<svg") == 3 and "0.400 (0.400–0.400)" in text and "url(http" not in text
    assert "no: slow" in text
    assert "| 0.20 | 0.45 | 1.90 | 0 |" in report.text(FACTS, results)
    assert report.print_targets(results) == 0


def test_delays_are_measured_with_an_agent_that_has_had_many_calls(monkeypatch, tmp_path):
    done = []
    monkeypatch.setattr(control.Lab, "voices", "voices")
    monkeypatch.setattr(control, "commands_step", lambda lab, way, rate, seconds, voices=None: done.append((way, round(rate * seconds), *([voices] if voices else []))))
    profile, lab = control.PROFILES["short"], control.Lab(tmp_path)
    each = round(profile.seconds * control.TARGET_RATE)
    for way in control.WAYS:
        control.delay_step(lab, way, profile)
    lab.stop()  # whoever goes on after that has a new agent
    control.delay_step(lab, "agent", profile)
    assert profile.aged == control.AGED
    assert done == [("agent", control.AGED), ("direct", each), ("agent", each), ("agent", control.AGED), ("agent", each)]
    done.clear()
    lab.stop()
    each = round(profile.media_seconds * control.TARGET_RATE)
    for way in control.WAYS:
        control.media_step(lab, way, profile)
    assert done == [("agent", control.AGED_BY_MEDIA, "voices"), ("direct", each), ("agent", each, "voices")]
