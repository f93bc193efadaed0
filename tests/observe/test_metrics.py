"""The metrics that the operator daemon counts, the whole exposition with those of a running agent, and the dashboard's panels."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from shunt.events.bus import CONFERENCE, Event
from shunt.health.facts import Facts, Unknown
from shunt.health.finding import Judgement
from shunt.health.judge import judge
from shunt.metrics.exposition import exposition
from shunt.metrics.instruments import Instruments
from tests.lab.ports import free_port
from tests.tools.agent import AGENT, Agent

ROOT = Path(__file__).resolve().parents[2]
CDR = {"up": False, "waiting": 2, "written": 3, "failures": 1, "dropped": 7, "lost_timestamp_seconds": 1795522088.5}
OWN = {
    "events": {"connected": True, "missing": {"expired": 5, "lost": 0}},
    "history": {"events": 12, "capacity": 100, "calls": 4, "forgotten": 0},
    "cdr": CDR,
    "homer": {"sent": 5, "dropped": 0},
}
RATED = {"packets": 500, "mos": 4.2, "codec": "PCMU", "loss_percent": 1.0, "jitter_ms": 2.0, "note": ""}


def samples(text: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def value(instruments: Instruments, name: str, **labels: str) -> float:
    return instruments.registry.get_sample_value(name, labels) or 0.0


def test_streams_without_mos_are_counted_and_not_observed() -> None:
    instruments = Instruments()
    base = {"loss_percent": None, "jitter_ms": None, "codec": None, "mos": None, "packets": None, "note": "not measured: …"}
    instruments.quality([base, base | {"packets": 10, "note": "not rated: 10 packets are too few"}, base | {"packets": 500, "note": "not rated: …"}])
    instruments.quality([RATED])
    assert [value(instruments, "shunt_streams_unrated_total", cause=cause) for cause in ("not-measured", "too-short", "codec")] == [1, 1, 1]
    assert value(instruments, "shunt_stream_mos_count", codec="PCMU") == 1 and value(instruments, "shunt_stream_loss_ratio_sum") == 0.01


def test_what_happens_in_conferences_is_counted() -> None:
    instruments = Instruments()
    for what in ("joined", "joined", "left"):
        instruments(Event(CONFERENCE, "", what, 0.0, None, None, None, {"conference": "room"}))
    assert value(instruments, "shunt_conference_events_total", what="joined") == 2


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[str]:
    """What a running agent with every section that needs no data plane tells of itself."""
    if not Path(AGENT).exists():
        pytest.fail(f"{AGENT} is not built (make daemons)")
    config = {
        "relays": [{"name": "r1", "socket": "udp:127.0.0.1:9", "media": [{"address": "127.0.0.1", "ports": "35000-35999"}]}],
        "data_plane": {"target": f"unix:{tmp_path}/nobody.sock"}, "hep": {"listen": f"udp:127.0.0.1:{free_port(socket.SOCK_DGRAM)}"}, "journal": {"path": str(tmp_path / "journal.sqlite")},
        "conference": {"address": "127.0.0.1", "ports": "20000-20100", "state": str(tmp_path / "conferences")},
    }  # fmt: skip
    agent = Agent(tmp_path, "agent", config)
    try:
        agent.start()
        await agent.until(lambda status: True)
        yield await agent.ask(lambda admin: admin.metrics())
    finally:
        agent.close()


def whole(told: str | None) -> str:
    instruments = Instruments()
    instruments.quality([RATED])
    judged = Judgement() if told is not None else judge(Facts(Unknown("timed out")))
    return exposition(OWN, told, instruments.registry, judged.view()).decode()


async def test_the_exposition_is_valid_and_no_series_comes_twice(told: str) -> None:
    text = whole(told)
    seen = [line.rsplit(" ", 1)[0] for line in text.splitlines() if line and not line.startswith("#")]
    assert len(seen) == len(set(seen))
    found = samples(text)
    assert found["shunt_agent_up"][0].value == 1 and found["shunt_calls"][0].value == 0 and found["shunt_history_events"][0].value == 12
    assert found["shunt_relay_up"][0].labels == {"relay": "r1"} and found["shunt_cdr_written_total"][0].value == 3 and found["shunt_stream_mos_count"][0].value == 1
    helped = set(re.findall(r"^# HELP (\S+) (?=\S)", text, re.MULTILINE))
    assert {family.name for family in text_string_to_metric_families(text)} <= {name.removesuffix("_total") for name in helped} | helped


def test_without_the_agent_only_its_metrics_are_missing() -> None:
    found = samples(whole(None))
    problems = {sample.labels["code"]: sample.value for sample in found["shunt_health_problem"]}
    assert problems["agent-unreachable"] == 1 and problems["records-waiting"] == 0 and "xdp-missing" not in problems and found["shunt_health_unknown"][0].value > 10
    assert (found["shunt_cdr_up"][0].value, found["shunt_cdr_dropped_total"][0].value, found["shunt_cdr_lost_timestamp_seconds"][0].value) == (0, 7, 1795522088.5)
    assert [(sample.labels["reason"], sample.value) for sample in found["shunt_events_missing_total"]] == [("expired", 5), ("lost", 0)]
    assert found["shunt_agent_up"][0].value == 0 and found["shunt_homer_sent_total"][0].value == 5 and "shunt_calls" not in found


async def test_expressions_of_dashboard_and_alerts_ask_for_labels_that_there_are(told: str) -> None:
    """That every metric is there is for a running pair of agent and data plane to show (tests/operator_daemon)."""
    found = samples(whole(told))
    expressions = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    expressions += [variable["definition"] for variable in dashboard()["templating"]["list"] if "definition" in variable]
    expressions += [rule["expr"] for rule in rules() if rule.get("alert") != "ShuntDown"]
    assert len(expressions) > 60
    checked = 0
    for expression in expressions:
        used = set(re.findall(r"\bshunt_\w+", expression))
        assert used or used_sums(expression), expression
        if not used or not used <= found.keys():
            continue
        for label in {word.strip() for group in re.findall(r"by \(([\w, ]+)\)", expression) for word in group.split(",")} - {"instance", "le"}:
            checked += 1
            assert any(label in sample.labels for name in used for sample in found[name]), f"{expression}: no label {label}"
    assert checked > 5


def test_dashboard_and_alerts_ask_for_metrics_that_are_documented_under_their_present_names() -> None:
    """Conferences and switches have metrics that a small lab does not show."""
    document = (ROOT / "docs/metrics.md").read_text().split("## Former names")[0]
    known: set[str] = set()
    for section in document.split("\n## "):
        begins, ends = ("shunt_data_plane_", "_total") if "All begin with `shunt_data_plane_`" in section else ("", "")
        for row in section.splitlines():
            name = ""
            for span in re.findall(r"`([a-z0-9_*]+)", row):
                name = name if span.startswith("_") else span
                known |= {span, begins + span + ends} | ({name[: match.start()] + span for match in re.finditer("_", name)} if span.startswith("_") else set())
    patterns = [re.compile(name.replace("*", "[a-z_]+")) for name in known]
    used = set(re.findall(r"\bshunt_[a-z0-9_]+", (ROOT / "packaging/grafana/shunt.json").read_text() + (ROOT / "packaging/prometheus/shunt.rules.yml").read_text()))
    wrong = {name for name in used if not any(pattern.fullmatch(form) for pattern in patterns for form in (name, re.sub("_(bucket|count|sum)$", "", name)))}
    assert len(used) > 60 and not wrong, wrong


def rules() -> list[dict[str, Any]]:
    """All rules: alerts, and the sums that they use."""
    groups = yaml.safe_load((ROOT / "packaging/prometheus/shunt.rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def used_sums(expression: str) -> set[str]:
    return set(re.findall(r"\bshunt:\w+(?::\w+)?", expression))


def test_every_sum_that_a_rule_uses_is_recorded_and_used() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = set().union(*(used_sums(rule["expr"]) for rule in rules()))
    assert recorded == used, recorded ^ used


async def test_every_metric_that_the_page_reads_is_there(told: str) -> None:
    names = {family.name for family in text_string_to_metric_families(whole(told))}
    script = (ROOT / "operator/shunt/web/page.js").read_text()
    used = set(re.findall(r'"(shunt_\w+?)(?:_total|_count|_sum|_bucket)?"', script))
    assert used and used <= names, used - names


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


@pytest.mark.parametrize("ring", ["learn", "agent"])
def test_records_that_a_ring_loses_raise_an_alert(ring: str) -> None:
    alert = next(rule for rule in rules() if rule.get("alert") == "ShuntLosesNotices")
    assert f"increase(shunt_data_plane_{ring}_lost_total[5m]) > 0" in alert["expr"] and alert["labels"]["severity"] == "critical"


@pytest.mark.parametrize("gauge", ["shunt_journal_up", "shunt_data_plane_up", "shunt_relay_up", "shunt_events_up", "shunt_cdr_up"])
def test_what_cannot_be_reached_raises_an_alert(gauge: str) -> None:
    assert [rule["alert"] for rule in rules() if rule["expr"] == f"{gauge} == 0" and rule["labels"]["severity"] == "critical"]
