"""All checks together, and what their findings become."""

from __future__ import annotations

import dataclasses

from shunt.config.load import loads
from shunt.doctor.examine import examine
from shunt.doctor.facts import Bound, Clock, Unknown
from shunt.doctor.finding import Finding, Group, document, failed
from tests.doctor.hosts import config, facts, link


def test_nothing_is_said_against_a_good_host() -> None:
    groups = examine(config(), facts())
    assert {finding.verdict for group in groups for finding in group.findings} == {"ok"}, groups
    assert not failed(groups)


def test_the_judgement_of_health_is_shown_in_its_words() -> None:
    found = {"code": "unrouted", "severity": "fail", "subject": "192.0.2.9", "message": "900 packets had no next hop", "remedy": "Look."}
    unknown = [{"code": "xdp-missing", "message": "not told"}, {"code": "xdp-generic", "message": "not told"}]
    (told,) = [group for group in examine(config(), facts(health={"findings": [found], "unknown": unknown})) if group.title == "Calls, packets, programs now"]
    assert told.findings == (Finding("fail", "unrouted 192.0.2.9", "900 packets had no next hop", "Look."), Finding("unknown", "xdp-missing, xdp-generic", "not told"))
    (silent,) = [group for group in examine(config(), facts(health=Unknown("refused"))) if group.title == "Calls, packets, programs now"]
    assert [finding.verdict for finding in silent.findings] == ["unknown"] and not failed([silent])


def test_an_interface_that_has_lost_its_program_fails_while_the_softswitch_runs() -> None:
    runs = Bound("unix", "", 0, Unknown("not root"), "/run/shunt-softswitch/bfrt.sock")
    lost = facts(ports=dataclasses.replace(facts().ports, bound=(runs,)), links={"eth0": link("eth0", attached="native", pinned=True), "eth1": link("eth1")})
    found = {finding.subject: finding for group in examine(config(), lost) for finding in group.findings}
    assert found["XDP on eth0"].verdict == "ok"
    assert found["XDP on eth1"].verdict == "fail" and found["XDP on eth1"].found.startswith("eth1 has no program of the softswitch now")


def test_every_finding_that_is_not_ok_or_unknown_says_what_to_do() -> None:
    bad = facts(
        links={"eth0": None, "eth1": None}, kernel=dataclasses.replace(facts().kernel, release="5.10", btf=False, jit=0, neighbours={4: 1, 6: 1}), mounts=(), user=None,
        groups={"shunt": None}, clock=Clock(False, 16.0),
    )  # fmt: skip
    groups = examine(config(), bad)
    assert failed(groups)
    for finding in (finding for group in groups for finding in group.findings):
        assert finding.advice or finding.verdict in ("ok", "unknown"), finding


def test_a_data_plane_host_is_asked_for_its_data_plane_alone() -> None:
    titles = [group.title for group in examine(loads("softswitch: {interfaces: [eth0]}"), facts())]
    assert titles == ["Kernel and clock", "Network interfaces", "Output path", "Accounts, units, versions", "Ports and sockets"]


def test_the_document_counts_and_lists() -> None:
    groups = [Group("A", (Finding("ok", "x", "y"), Finding("fail", "z", "w", "do")))]
    assert document(groups) == {
        "summary": {"ok": 1, "warn": 0, "fail": 1, "unknown": 0},
        "checks": [
            {"group": "A", "verdict": "ok", "subject": "x", "found": "y", "advice": ""},
            {"group": "A", "verdict": "fail", "subject": "z", "found": "w", "advice": "do"},
        ],
    }
    assert failed(groups) and not failed([Group("A", (Finding("warn", "x", "y"), Finding("unknown", "x", "y")))])
