"""All checks together, and what their findings become."""

from __future__ import annotations

import dataclasses

from shunt.config.load import loads
from shunt.doctor.examine import examine
from shunt.doctor.facts import Clock
from shunt.doctor.finding import Finding, Group, document, failed
from tests.doctor.hosts import config, facts


def test_nothing_is_said_against_a_good_host() -> None:
    groups = examine(config(), facts())
    assert {finding.verdict for group in groups for finding in group.findings} == {"ok"}, groups
    assert not failed(groups)


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
