"""Figures of the packet bench, interrupted runs, and that a report is one file that fetches nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import pytest

from bench import counters, packet, runs
from bench.report import packet as packet_report
from bench.report import relay as relay_report
from bench.report.page import Page, markdown
from bench.relay_peers import analyse

FACTS = {
    "commit": "0123456789ab", "started": "2026-01-02T03:04:05+00:00", "profile": "smoke", "busy_before": 0.0, "versions": {"clang": "14"},
    "machine": {"cpu": "a <fast> one", "cores": 2, "virtual": True, "memory_mib": 2048, "kernel": "6.1", "system": "Debian", "mitigations": {"spectre_v2": "Mitigation: Retpolines"}},
}  # fmt: skip


def _samples(kind: str, entries: int, relay: int, payload: int = 160, **more: int) -> dict:
    taken = {f"{kind}_wrapper": [20, 22], f"{kind}_relay": [relay + 20, relay + 22], **{name: [value, value + 2] for name, value in more.items()}}
    counts = {f"{kind}_wrapper": {"instructions": 100_000, "cycles": 1}, f"{kind}_relay": {"instructions": 350_000, "cycles": 1}}
    return {"kind": kind, "entries": entries, "payload": payload, "samples_ns": taken, "runs_per_sample": 1000, "counted": counts}


def _steps() -> dict:
    live = {name: {"received": count, "sent": count, "seconds": 1.0} for name, count in (("direct", 4_000_000), ("relay", 2_000_000))}
    return {
        "entries/ipv4-0000100": _samples("ipv4", 100, 40, ipv4_line=23),
        "entries/ipv4-0010000": _samples("ipv4", 10_000, 60, ipv4_line=25),
        "entries/vlan-0000100": _samples("vlan", 100, 100, vlan_adjusted=32),
        "payload/ipv4-1200": _samples("ipv4", 1000, 45, payload=1200, ipv4_line=23),
        "table": {"entries": 1000, "inserted_s": 0.01, "read_s": 0.001, "deleted_s": 0.002, "capacity": 1000, "memory_bytes": {"slots": 64000}},
        "live/0": live,
    }


def test_packet_figures():
    found = packet.analyse(_steps(), FACTS)
    by = {(one["kind"], one["entries"]): one["ns"]["median"] for one in found["costs"] if one["by"] == "entries"}
    assert by == {("ipv4", 100): 40, ("ipv4", 10_000): 60, ("vlan", 100): 94}  # less one of the two adjustments of 12 ns together
    assert found["slope_ns_per_decade"] == {"ipv4": pytest.approx(10)}
    assert found["lines"][100]["median"] == 3
    # 500 ns a packet with the relay, 250 without: 250 for the relay alone.
    assert found["live"]["alone"]["median"] == pytest.approx(4_000_000)
    assert found["table"]["inserted_per_s"] == pytest.approx(100_000) and found["table"]["bytes_per_entry"] == 64
    assert found["remarks"] == []


def test_a_restless_wrapper_says_so():
    steps = _steps()
    steps["entries/ipv4-0000100"]["samples_ns"]["ipv4_wrapper"] = [20, 40]
    assert [text for text in packet.analyse(steps, FACTS)["remarks"] if text.startswith("entries/ipv4-0000100") and "not to be quoted" in text]


def _relay_step(cpu: int, **more: object) -> dict:
    plain = {name: 0 for name in ("process_ns", "softirq_in_process_ns", "corrupt", "misdelivered", "skipped")}
    plain |= {"offered": 1000, "sent": 1000, "received": 1000, "softirq_ns": cpu * 1000, "late_mean": 5.0, "late_max": 70, "pps": 10_000, "streams": 2}
    plain |= {name: {"200": 1000} for name in ("delay", "variation", "late")}
    plain |= {"stream_lost": {}, "stream_delay_mean": [900, 900], "stream_variation_mean": [10, 10], "samples": [[n / 20, 500 * n, 2, 30 * n, 500 * n * cpu, 30 * n] for n in range(3)]}
    return plain | more


def test_a_relay_report_is_one_file_and_holds_its_figures():
    steps = {f"cost/0/{name}": _relay_step(cpu) for name, cpu in (("direct-before", 300), ("direct-after", 300), ("rtpproxy", 20_300), ("shunt", 500), ("forward", 1500))}
    steps |= {f"sessions/{name}": _relay_step(500) for name in ("direct", "shunt")}
    steps |= {f"ladder/shunt/{pps:08}": _relay_step(500, pps=pps, received=1000 - (pps > 10_000)) for pps in (10_000, 15_000)}
    steps["ladder/direct/00010000"] = _relay_step(300)
    steps["twenty"] = _relay_step(500, pps=200_000)
    steps["iperf/shunt"] = {"entries": 800_002, "seconds": 2.0, "sent": 1000, "bits_per_s": 2.5e9, "jitter_ms": 0.01, "lost": 3, "relayed": 1002, "length": 1400}

    def read(folder: str) -> list[dict]:
        return [found | {"key": key} for key, found in steps.items() if not folder or key == folder or key.startswith(f"{folder}/")]

    results = analyse(read, FACTS, ["rtpproxy", "shunt", "forward"])
    results |= {"missing": ["rtpengine: not measured, it is not installed"], "titles": {name: name for name in ("rtpproxy", "shunt", "forward", "direct")}}
    assert results["figures"]["rtpproxy"]["ratio"]["median"] == 100
    assert results["figures"]["shunt"]["ladder"] | {"levels": []} == {"highest_clean_pps": 10_000, "limited_by": "loss", "levels": []}
    assert {row["target"].split(",")[0]: row["met"] for row in results["targets"]}["CPU per relayed packet at 10"] is None  # the last: nftables was not there
    assert [level["cost_ns"] for level in results["figures"]["shunt"]["ladder"]["levels"]] == [200, None]
    page = Page("Relays <side> by side")
    relay_report.fill(page, FACTS, results, read)
    text = page.text()
    assert text.count("<svg") == 7 and "Relays &lt;side&gt; by side" in text and "a &lt;fast&gt; one" in text
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", text.replace("xlink:href", "href")) and "url(http" not in text
    assert "100.0 (100.0–100.0)" in text and "rtpengine: not measured" in text
    assert "<td>800,002</td><td>1,000</td><td>2.50</td><td>1,002 (its set-up included)</td><td>3</td>" in text
    assert "100.0 (100.0–100.0)" in relay_report.text(FACTS, results)


def test_table_two_stands_beside_the_published_one_and_says_when_there_was_no_compiler(tmp_path):
    path = tmp_path / "resources.json"
    assert "no compiler" in relay_report.table_two_note(path) and [row[0] for row in relay_report.table_two_rows(path)] == ["published"] * 2
    build = {"name": "b", "chip": "tofino", "relay": 1000, "stages": 7, "stages_available": 12}
    build |= {f"{name}{end}": value for name in ("sram", "hash_bits", "tcam") for end, value in (("", 24), ("_available", 96))}
    path.write_text(json.dumps({"compiler": "9.13", "builds": [build]}))
    assert "9.13" in relay_report.table_two_note(path)
    assert relay_report.table_two_rows(path)[-1] == ("b", "tofino", "1,000", "7 of 12", "25.0 %", "25.0 %", "25.0 %")


def test_what_a_relay_costs_beyond_the_floor():
    costs = {"direct-before": 300, "direct-after": 300, "rtpproxy": 20_500, "shunt": 600, "redirect": 500}
    steps = {f"cost/0/{name}": _relay_step(cpu) for name, cpu in costs.items()}
    results = analyse(lambda folder: [found | {"key": key} for key, found in steps.items() if key.startswith(folder)], FACTS, ["rtpproxy", "shunt", "redirect"])
    assert results["figures"]["shunt"]["above_floor_ns"]["median"] == 100 and results["figures"]["shunt"]["cpu_ns"]["median"] == 300
    assert results["figures"]["rtpproxy"]["ratio_above_floor"] == 200
    # What stands beside the target is not the target.
    assert [(row["met"], row["wanted"]) for row in results["targets"] if "beyond" in row["target"]] == [(None, "–")]


def test_frames_that_come_together_have_their_own_ratios():
    steps = {f"cost/0/{name}": _relay_step(cpu) for name, cpu in {"direct-before": 300, "direct-after": 300, "nftables": 1100, "shunt": 450, "rtpproxy": 9000}.items()}
    for n, cost in enumerate((40, 50, 60)):
        steps |= {f"together/08/{n}/{name}": _relay_step(cpu) for name, cpu in {"direct-before": 90, "direct-after": 110, "nftables": 700, "shunt": 100 + cost}.items()}
    results = analyse(lambda folder: [found | {"key": key} for key, found in steps.items() if key.startswith(f"{folder}/")], FACTS, ["rtpproxy", "nftables", "shunt"])
    results |= {"missing": [], "titles": {name: name for name in ("rtpproxy", "nftables", "shunt")}}
    (one,) = results["together"]
    assert one["size"] == 8 and one["costs"]["shunt"]["values"] == [40, 50, 60] and one["ratios"]["nftables"]["median"] == pytest.approx(12)
    rows = [row for row in results["targets"] if "nftables / Shunt" in row["target"]]
    assert [(row["wanted"], row["met"], row["found"].split()[0]) for row in rows] == [("≥ 10", False, "5.3"), ("–", None, "12.0")]
    assert [row[:2] for row in relay_report.together_rows(results)] == [["1", "nftables"], ["1", "shunt"], ["8", "nftables"], ["8", "shunt"]]
    assert "| 8 | nftables | 600 (600–600) | 12.0 (10.0–15.0) |" in relay_report.text(FACTS, results)


def test_a_packet_report_states_the_slope():
    page = Page("x")
    results = packet.analyse(_steps(), FACTS)
    packet_report.fill(page, FACTS, results)
    assert "ns more for every tenfold number of entries</td><td>10.0" in page.text()
    assert "| IPv4 | 10,000 | 160 | 60 (60–60) | 250.0 | 0.0 | – |" in packet_report.text(FACTS, results)


def test_counters_count_the_work_and_say_when_they_cannot():
    little, much = (counters.count(lambda: sum(range(steps)), ("task_clock_ns",))["task_clock_ns"] for steps in (20_000, 2_000_000))
    assert 0 < little < much
    steps = _steps()
    for step in steps.values():
        if "counted" in step:
            step["counted"] = {name: {"not_counted": "instructions: not here"} for name in step["counted"]}
    results = packet.analyse(steps, FACTS)
    assert ["the processor's counters", "cannot be read here (instructions: not here)"] in packet_report.other_rows(results)


def test_markdown_keeps_its_columns():
    assert markdown(("a", "b"), [("x|y", 1)]) == "| a | b |\n| --- | --- |\n| x\\|y | 1 |\n"


def test_an_interrupted_run_goes_on_and_a_changed_one_starts_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "OUTPUT", tmp_path)
    monkeypatch.setattr(runs, "busy_share", lambda: 0.0)
    done: list[str] = []

    def go(version: str, fresh: bool = False) -> dict:
        run = runs.Run("x", "smoke", {"peer": version}, fresh=fresh)
        for key in ("a/1", "a/2"):
            run.step(key, lambda: done.append(key) or {"found": key})
        return runs.raw_steps(run.folder)

    def dies() -> dict:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run = runs.Run("x", "smoke", {"peer": "1"})
        run.step("a/1", lambda: done.append("a/1") or {"found": "a/1"})
        run.step("a/2", dies)
    assert go("1") == {"a/1": {"found": "a/1"}, "a/2": {"found": "a/2"}}
    assert done == ["a/1", "a/2"]
    go("1")
    assert done == ["a/1", "a/2"]
    go("2")
    go("2", fresh=True)
    assert done == ["a/1", "a/2"] * 3


def test_a_bench_that_is_terminated_takes_down_what_it_set_up():
    program = "import time\nfrom bench.runs import end_cleanly\nend_cleanly()\ntry:\n print('up', flush=True)\n time.sleep(30)\nfinally:\n print('down')"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=runs.ROOT) as process:
        assert process.stdout.readline() == "up\n"
        process.terminate()
        assert process.communicate(timeout=20)[0] == "down\n" and process.returncode == 143
