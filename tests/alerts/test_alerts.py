"""Each breakage raises its alerts and no other; nights, restarts, standbys and busy hours raise none."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from tests.lab.needs import need
from tests.alerts.scenes import Host, State, document
from tests.lab.processes import ROOT

RULES = ROOT / "packaging/prometheus/shunt.rules.yml"
BUSY, SMALL, NIGHT = 5000.0, 15.0, 1.5


def check(work: Path, hosts: Host | list[Host], fired: Iterable[str] = (), still: Iterable[str] = ()) -> None:
    """fired: the alerts of the whole scene; still: those of them at its end."""
    need("promtool", root=False)
    scenes = [hosts] if isinstance(hosts, Host) else hosts
    path = work / "alerts.test.yml"
    path.write_text(yaml.safe_dump(document(str(RULES), scenes, {name: name in set(still) for name in {*fired, *still}})))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


# Of each: what is changed, how many calls there are, how long it lasts, and what fires. Before and after it all is well.
BREAKAGES = {
    "draining": (dict(drained=True), SMALL, 8, {"ShuntDraining"}),
    "XDP missing at night": (dict(findings=("xdp-missing",)), 0.0, 4, {"ShuntFailing"}),
    "of two calls nothing arrives": (dict(findings=("nothing-arrives",)), 2.0, 4, {"ShuntFailing"}),
    "the clock was set": (dict(findings=("clock-stepped",)), SMALL, 12, {"ShuntImpaired"}),
    "agent killed": (dict(agent=False), SMALL, 3, {"ShuntAgentDown"}),
    "agent hung at night": (dict(agent=False), 0.0, 3, {"ShuntAgentDown"}),
    "operator daemon killed": (dict(operator=False), SMALL, 3, {"ShuntDown"}),
    "target no longer configured": (dict(scraped=False), SMALL, 3, {"ShuntDown"}),
    "relay stopped, or its control blocked": (dict(relay=False), SMALL, 3, {"ShuntRelayDown"}),
    "data plane stopped": (dict(data_plane=False), SMALL, 8, {"ShuntDataPlaneDown"}),
    "counters of the data plane unreadable": (dict(unread=True), SMALL, 10, {"ShuntDataPlaneUnread"}),
    "firewall before the host": (dict(unheard_now=1.0), SMALL, 20, {"ShuntOneWay"}),
    "firewall before one party": (dict(one_way=0.5, silent=0.6), SMALL, 30, {"ShuntOneWay"}),
    "firewall before one party of a tenth, busy": (dict(one_way=0.2), BUSY, 30, {"ShuntOneWay"}),
    "route missing": (dict(route=False), SMALL, 6, {"ShuntUnrouted"}),
    "route missing, one call": (dict(route=False), 2.0, 6, {"ShuntUnrouted"}),
    "MTU too small": (dict(too_big=True), SMALL, 6, {"ShuntTooBig"}),
    "XDP detached": (dict(attached=False), SMALL, 15, {"ShuntRelayCarries"}),
    "XDP detached, busy": (dict(attached=False), BUSY, 15, {"ShuntRelayCarries"}),
    "wrong interface": (dict(attached=False, on_relay=1.0), SMALL, 25, {"ShuntRelayCarries", "ShuntOffloadsLittle"}),
    "wrong media range": (dict(outside=True), SMALL, 12, {"ShuntMisconfigured", "ShuntRelayCarries"}),
    "wrong media range, one call": (dict(outside=True), 1.0, 12, {"ShuntMisconfigured"}),
    "SIP server past the agent": (dict(commands=False), SMALL, 45, {"ShuntBypassed"}),
    "SIP server past the agent, without HEP": (dict(commands=False, hep=False), SMALL, 45, {"ShuntBypassed"}),
    "HEP off": (dict(hep=False), SMALL, 45, {"ShuntNoSipCopies"}),
    "disk full": (dict(disk=False), SMALL, 3, {"ShuntJournalDown", "ShuntEventLogDown", "ShuntRecordsWait"}),
    "events stay away": (dict(follows=False), SMALL, 10, {"ShuntEventsStop"}),
    "notices lost": (dict(notices_lost_s=5.0), SMALL, 3, {"ShuntLosesNotices"}),
    "table full": (dict(capacity=64.0), SMALL, 8, {"ShuntTableFills"}),
    "a third of the streams contested": (dict(contested=0.33), SMALL, 20, {"ShuntOffloadsLittle"}),
    "offloads late, busy": (dict(late=0.1), BUSY, 30, {"ShuntOffloadsLate"}),
    "media time-outs, busy": (dict(timeouts=0.1), BUSY, 20, {"ShuntMediaTimeouts"}),
    "poor speech": (dict(mos=2.9), SMALL, 60, {"ShuntPoorSpeech"}),
    "attackers": (dict(verdicts_s=20.0), NIGHT, 8, {"ShuntAttacked"}),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_breakage_raises_its_alert_until_it_is_mended(tmp_path: Path, name: str) -> None:
    changes, calls, minutes, fired = BREAKAGES[name]
    check(tmp_path, Host.with_(calls=calls).for_(20).for_(minutes, **changes).for_(40), fired)


def test_what_is_lost_is_an_alert_for_an_hour(tmp_path: Path) -> None:
    """The full disk is mended; the loss remains."""
    host = Host.with_(calls=SMALL).for_(30).for_(3, disk=False, events_dropped_s=10.0).for_(1, records_lost_s=0.3)
    check(tmp_path, host.for_(20), {"ShuntJournalDown", "ShuntEventLogDown", "ShuntRecordsWait", "ShuntLosesEvents", "ShuntLosesRecords"}, {"ShuntLosesEvents", "ShuntLosesRecords"})


def test_records_lost_while_nobody_scraped_are_an_alert(tmp_path: Path) -> None:
    """The counter begins above 0 after two hours without a sample, so that nothing increases."""
    host = Host.with_(calls=SMALL).for_(10).for_(120, operator=False)
    host._lost_at, host._totals["shunt_cdr_dropped_total", ()] = host.steps * 15.0, 7.0
    check(tmp_path, host.for_(10), {"ShuntDown", "ShuntLosesRecords"}, {"ShuntLosesRecords"})


def test_an_agent_that_restarts_again_and_again_is_an_alert(tmp_path: Path) -> None:
    host = Host.with_(calls=SMALL).for_(10)
    for _ in range(4):
        host.restarts(30).for_(3)
    check(tmp_path, host, {"ShuntAgentRestarts"}, {"ShuntAgentRestarts"})


def test_one_host_of_three_is_named(tmp_path: Path) -> None:
    """An alert of one host comes from its series, whatever the others do."""
    well = [Host(State(calls=BUSY), instance=f"edge{n}:8077").for_(40) for n in (2, 3)]
    check(tmp_path, [Host.with_(calls=SMALL).for_(30).for_(10, route=False), *well], {"ShuntUnrouted"}, {"ShuntUnrouted"})


QUIET = {
    "no calls at all": Host.with_().for_(120),
    "a busy hour of 5,000 calls": Host.with_(calls=BUSY).for_(60),
    "a busy hour of short calls that mostly ring": Host.with_(calls=BUSY, length_s=25, ringing=0.6).for_(60),
    "recording of half of the calls": Host.with_(calls=400, recorded=0.5).for_(60),
    "recording of all calls": Host.with_(calls=40, recorded=0.93).for_(60),
    "two minutes of one call": Host.with_().for_(30).for_(2, calls=1).for_(30),
    "an agent that restarts": Host.with_(calls=SMALL).for_(30).restarts(30).for_(60),
    "an agent that restarts in the busy hour": Host.with_(calls=BUSY).for_(30).restarts(15).for_(60),
    "an operator daemon that restarts": Host.with_(calls=SMALL).for_(30).operator_restarts(30).for_(60),
    "a softswitch that restarts": Host.with_(calls=SMALL).for_(30).for_(0.25, data_plane=False).for_(60),
    "a standby": Host.with_(pair=True, standby=True, calls=BUSY, commands=False).for_(120),
    "a take-over": Host.with_(pair=True, standby=True, calls=400, commands=False).for_(60).then(standby=False, commands=True).for_(60),
    "an evening that ends": Host.with_(calls=2000).for_(30).then(calls=200).for_(30).then(calls=4).for_(120),
    "a morning that begins": Host.with_().for_(30).then(calls=50).for_(30).then(calls=BUSY).for_(60),
    "a scrape that fails now and then": Host.with_(calls=SMALL).for_(20).for_(0.5, operator=False).for_(20).for_(0.5, operator=False).for_(20),
    "a drain of three minutes before a reboot": Host.with_(calls=SMALL).for_(30).for_(3, drained=True).restarts(45).for_(60),
    "host policies keep streams on the relay": Host.with_(calls=SMALL, findings=("host-policy",)).for_(60),
    "a disk that is full for 20 s": Host.with_(calls=SMALL).for_(30).for_(0.25, disk=False).for_(60),
    "one party behind a phone that is on hold, at night": Host.with_(calls=NIGHT, silent=0.5).for_(120),
    "one call that a wrong port keeps from audio": Host.with_(calls=1.0, one_way=1.0, unheard_now=0.5).for_(20),
}


@pytest.mark.parametrize("name", QUIET)
def test_no_alert(tmp_path: Path, name: str) -> None:
    check(tmp_path, QUIET[name])


@pytest.mark.parametrize("seed", range(1))
def test_no_alert_in_a_day_with_its_small_misfortunes(tmp_path: Path, seed: int) -> None:
    """Calls by the hour; in each quarter of an hour something that happens to a few calls, and once in a while a restart."""
    chance = random.Random(seed)
    host = Host()
    for hour in range(24):
        calls = chance.choice([0.0, 0.3, 1.0, 3.0]) if hour < 7 or hour > 20 else chance.choice([30.0, 300.0, BUSY])
        for _ in range(4):
            one = 1 / max(1.0, calls * 5)  # one call of those that end in a quarter of an hour
            state = {
                "calls": calls,
                "late": 0.01 if calls > 20 else chance.choice([0.0, min(1.0, one)]),
                "mos": chance.uniform(4.0, 4.4) if calls > 20 else chance.choice([1.5, 2.5, 4.2]),
                "timeouts": 0.01 if calls > 20 else chance.choice([0.0, min(1.0, one)]),
                "one_way": 0.02 if calls > 20 else chance.choice([0.0, min(1.0, 2 * one)]),
                "recorded": chance.choice([0.0, 0.3]),
                "verdicts_s": chance.choice([0.0, 0.2]),
            }
            host.for_(15, **state)
        if chance.random() < 0.1:
            host.restarts(15)
    check(tmp_path, host)


def test_every_alert_of_the_file_fires_in_a_scene() -> None:
    """A rule that no scene raises may never fire."""
    shipped = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "alert" in rule}
    raised = set().union(*(fired for _, _, _, fired in BREAKAGES.values())) | {"ShuntLosesEvents", "ShuntLosesRecords", "ShuntAgentRestarts"}
    assert shipped == raised, shipped ^ raised
