"""Metrics from real events of the core, the whole exposition, and the dashboard's expressions against it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from shunt.agent import Agent
from shunt.config.model import Config
from shunt.events.bus import CONFERENCE, STATE, EventBus
from shunt.metrics.instruments import Instruments
from shunt.metrics.snapshot import exposition
from shunt.tables.entry import Outcome
from tests.agent.parts import Core

ROOT = Path(__file__).resolve().parents[2]
TOTALS = {
    "rx_packets": 1, "relayed_packets": 1, "relayed_bytes": 1, "missed_packets": 1, "source_mismatch_packets": 1, "blocked_packets": 1, "limited_packets": 1, "conference_packets": 1, "passed_packets": 1, "too_big_packets": 1, "unrouted_packets": 1, "learn_notices": 1,
    "learn_suppressed": 1, "entries": 1, "capacity": 10,
}


def samples(text: str) -> dict[str, list]:
    found: dict[str, list] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def value(instruments: Instruments, name: str, **labels: str) -> float:
    return instruments.registry.get_sample_value(name, labels) or 0.0


async def a_call(core: Core, call_id: str = "c1") -> None:
    to_caller, to_callee = await core.call(call_id)
    await core.packet("10.91.1.2:6000", to_caller)
    core.now += 0.015
    await core.packet("10.91.2.2:7000", to_callee)


async def test_a_call_moves_the_instruments() -> None:
    core, instruments = Core(), Instruments()
    core.offloader.events.subscribe(instruments)
    await a_call(core)
    await core.say("D c1 A B")
    assert value(instruments, "shunt_learn_verdicts_total", verdict="accepted") == 2
    assert value(instruments, "shunt_table_operations_total", operation="insert", outcome="installed") == 2
    assert value(instruments, "shunt_table_operations_total", operation="delete", outcome="removed") == 2
    assert value(instruments, "shunt_table_operation_seconds_count", operation="insert") == 2
    assert value(instruments, "shunt_time_to_offload_seconds_count") == 2
    assert value(instruments, "shunt_control_command_seconds_count", command="U") == 1
    assert value(instruments, "shunt_relay_reply_seconds_count", relay="r1") == 3
    assert value(instruments, "shunt_calls_ended_total", reason="released") == 1


async def test_failures_are_counted_by_reason() -> None:
    core, instruments = Core(), Instruments()
    core.offloader.events.subscribe(instruments)
    core.table.fail = Outcome.TABLE_FULL
    to_caller, to_callee = await core.call()
    await core.packet("10.91.1.2:6000", to_caller, wait=False)
    await core.packet("10.91.2.2:7000", to_callee)
    assert value(instruments, "shunt_offload_failures_total", reason="table-full") == 2
    assert value(instruments, "shunt_table_operations_total", operation="insert", outcome="table-full") == 2
    assert value(instruments, "shunt_time_to_offload_seconds_count") == 0


async def test_a_silent_relay_is_counted() -> None:
    core, instruments = Core(), Instruments()
    core.offloader.events.subscribe(instruments)
    core.relay.silent = True
    await core.say("Uc0,8 c1 10.91.1.2 6000 A;1")
    assert value(instruments, "shunt_relay_unanswered_total", relay="r1") >= 1


def test_unknown_command_letters_make_no_series_of_their_own() -> None:
    bus, instruments = EventBus(), Instruments()
    bus.subscribe(instruments)
    for n in range(100):
        bus.emit("control", "", f"X{n}", command=b"", reply=b"", relay=None, seconds=0.1)
    series = [s for family in instruments.registry.collect() if family.name == "shunt_control_command_seconds" for s in family.samples]
    assert {s.labels["command"] for s in series} == {"other"}


def test_streams_without_mos_are_counted_and_not_observed() -> None:
    instruments = Instruments()
    base = {"loss_percent": None, "jitter_ms": None, "codec": None, "mos": None, "packets": None, "note": "not measured: …"}
    instruments.quality([base, base | {"packets": 10, "note": "not rated: 10 packets are too few"}, base | {"packets": 500, "note": "not rated: …"}])
    instruments.quality([base | {"packets": 500, "mos": 4.2, "codec": "PCMU", "loss_percent": 1.0, "jitter_ms": 2.0}])
    assert [value(instruments, "shunt_streams_unrated_total", cause=cause) for cause in ("not-measured", "too-short", "codec")] == [1, 1, 1]
    assert value(instruments, "shunt_stream_mos_count", codec="PCMU") == 1 and value(instruments, "shunt_stream_loss_ratio_sum") == 0.01


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    """An agent with every section that has metrics; it is not started."""
    return Agent(Config.model_validate({
        "builtin_relay": {"addresses": ["127.0.0.1"], "ports": "36000-36100"}, "data_plane": {}, "hep": {}, "homer": {"target": "udp:127.0.0.1:9060"},
        "journal": {"path": str(tmp_path / "journal.sqlite")}, "cdr": {"csv": str(tmp_path / "cdr.csv")},
        "conference": {"address": "127.0.0.1", "ports": "20000-20100", "state": str(tmp_path / "conferences"), "cdr": {"csv": str(tmp_path / "conferences.csv")}},
    }))


async def whole(agent: Agent) -> str:
    bus = agent.offloader.events
    core = Core()
    core.offloader.events = bus
    core.proxy.offloader.events = bus
    await a_call(core)
    await core.say("D c1 A B")
    core.relay.silent = True
    await core.say("Uc0,8 c2 10.91.1.2 6000 A;1")
    bus.emit(CONFERENCE, "room", "joined")
    agent.observers.census = {"streams": {"offloaded": 2}, "reasons": {"offloaded": 2}}
    agent.observers.instruments.quality([{"packets": 500, "mos": 4.2, "codec": "PCMU", "loss_percent": 1.0, "jitter_ms": 2.0, "note": ""}])
    for relay in agent.pool.relays:
        relay.sessions, relay.packets_relayed = 1, 100
    agent._totals.update(TOTALS)
    agent.proxy.commands.update(core.proxy.commands)
    return scrape(agent)


def scrape(agent: Agent) -> str:
    """What a scrape would get while a stream runs."""
    return exposition(agent.status() | {"streams": {"offloaded": 2, "learning": 1, "relayed": 1}, "conferences": agent.status()["conferences"] | {"designs": {"NRA": 1}}}, TOTALS, agent.registry()).decode()


async def test_the_exposition_is_valid_and_no_series_comes_twice(agent: Agent) -> None:
    text = await whole(agent)
    seen = [line.rsplit(" ", 1)[0] for line in text.splitlines() if line and not line.startswith("#")]
    assert len(seen) == len(set(seen))
    found = samples(text)
    assert found["shunt_calls"][0].value == 0 and found["shunt_offload_share"][0].value == 0.5 and found["shunt_history_events"][0].value > 5
    assert found["shunt_table_operations_total"]
    helped = set(re.findall(r"^# HELP (\S+) (?=\S)", text, re.MULTILINE))
    assert {family.name for family in text_string_to_metric_families(text)} <= {name.removesuffix("_total") for name in helped} | helped


async def test_every_expression_of_dashboard_and_alerts_has_its_metrics(agent: Agent) -> None:
    names = set(samples(await whole(agent)))
    expressions = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    expressions += [variable["definition"] for variable in dashboard()["templating"]["list"] if "definition" in variable]
    rules = yaml.safe_load((ROOT / "packaging/prometheus/shunt.rules.yml").read_text())["groups"][0]["rules"]
    expressions += [rule["expr"] for rule in rules if rule["alert"] != "ShuntDown"]
    assert len(expressions) > 60
    for expression in expressions:
        used = set(re.findall(r"\bshunt_\w+", expression))
        assert used, expression
        assert used <= names, f"{expression}: {used - names} is not exported"
        labels = re.findall(r"by \(([\w, ]+)\)", expression)
        for label in {word.strip() for group in labels for word in group.split(",")} - {"instance", "le"}:
            assert any(label in sample.labels for name in used for sample in samples_of(names, agent, name)), f"{expression}: no label {label}"


_cache: dict[int, dict[str, list]] = {}


def samples_of(names: set[str], agent: Agent, name: str) -> list:
    if id(agent) not in _cache:
        _cache[id(agent)] = samples(scrape(agent))
    return _cache[id(agent)].get(name, [])


def dashboard() -> dict[str, Any]:
    return json.loads((ROOT / "packaging/grafana/shunt.json").read_text())


def panels() -> list[dict[str, Any]]:
    """All panels, those in folded rows too."""
    return [inner for panel in dashboard()["panels"] for inner in (panel, *panel.get("panels", ()))]


def drawn(kind: str = "") -> list[dict[str, Any]]:
    """The panels that show something, of one kind or of all."""
    return [panel for panel in panels() if panel["type"] != "row" and kind in ("", panel["type"])]


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def test_every_query_asks_the_chosen_source_about_the_chosen_agents() -> None:
    source, job, instance = dashboard()["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    for asker in (job, instance, *drawn(), *(target for panel in drawn() for target in panel["targets"])):
        assert asker["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, asker
    for panel in drawn():
        for target in panel["targets"]:
            selectors = re.findall(r"\bshunt_\w+(\{[^}]*\})?", target["expr"])
            assert selectors and all('job=~"$job",instance=~"$instance"' in selector for selector in selectors), target["expr"]


def test_axes_are_those_of_their_values() -> None:
    """What Grafana makes of a panel without a least or a greatest value: an axis from 250 µs, or one up to 10000 % where nothing was lost."""
    for panel in drawn("timeseries"):
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults.get("min") in (0, 1), panel["title"]
        if defaults.get("unit") == "percentunit":
            assert "max" in defaults or defaults["custom"].get("axisSoftMax", 100) <= 1, panel["title"]
        # What is so many per second has its unit, and no axis together with what is not.
        own = {prop["id"]: prop["value"] for override in panel["fieldConfig"]["overrides"] for prop in override["properties"]}
        rates = {target["refId"] for target in panel["targets"] if re.match(r"(8 \* )?sum[^(]*(\([^)]*\) )?\(rate\(", target["expr"]) and " / " not in target["expr"]}
        if rates and len(rates) < len(panel["targets"]):
            assert own.get("custom.axisPlacement") == "right" and "unit" in own, panel["title"]
        elif rates:
            assert defaults.get("unit") in ("pps", "bps", "ops", "suffix:/s"), panel["title"]


def test_gauges_show_what_is_now() -> None:
    """Over a range they would show an agent's last share for as long as the range reaches back after its end."""
    for panel in drawn("gauge"):
        assert all(target["instant"] and not target["range"] for target in panel["targets"]), panel["title"]


def test_overrides_name_what_is_there() -> None:
    for panel in drawn():
        known = {"byFrameRefID": {target["refId"] for target in panel["targets"]}, "byName": {target["legendFormat"] for target in panel["targets"]}}
        values = {"offloaded", "learning", "relayed"} if "{{state}}" in known["byName"] else set()
        for override in panel["fieldConfig"]["overrides"]:
            kind, name = override["matcher"]["id"], override["matcher"]["options"]
            assert name in known[kind] | values, f"{panel['title']}: nothing is called {name}"


def test_relays_of_two_agents_are_told_apart() -> None:
    """Each agent names its own relays, and `local` is the name in the shipped configuration."""
    for panel in drawn():
        for target in panel["targets"]:
            if re.search(r"shunt_relay_(up|sessions|unanswered)", target["expr"]):
                assert "by (instance, relay)" in target["expr"] and "{{instance}}" in target["legendFormat"], target["expr"]


def test_an_event_costs_microseconds() -> None:
    """Thirty-odd events to a call: with all subscribers they must stay far below the time that an insert takes."""
    import time

    from shunt.events.history import History

    bus = EventBus()
    bus.subscribe(Instruments())
    bus.subscribe(History())
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for n in range(2000):
            bus.emit(STATE, f"c{n % 100}", "offloaded", media=1, party="caller", component="rtp", reason="offloaded", before="learning", detail="")
        best = min(best, (time.perf_counter() - began) / 2000)
    assert best < 100e-6, f"{best * 1e6:.1f} µs"
