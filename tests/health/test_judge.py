"""The judgement: each situation of a host, as facts, and the findings that it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shunt.health.facts import Agent, Facts, Flow, Interface, Own, Problem, Relay, Setup, Signalling, Unknown
from shunt.health.finding import CODES, Judgement
from shunt.health.judge import dated, judge
from tests.lab.processes import ROOT

SETUP = Setup(data_plane=True, hep=True, mode="auto", interfaces=("eth0",), journal="/var/lib/shunt/journal", events="/var/lib/shunt/events")
RELAY = Relay("r1", "udp:127.0.0.1:22222", alive=True)
# Ten calls of 100 packets a second each, all offloaded, for 15 s.
FLOW = Flow(15.0, plane=15_000, relay=20, unrouted=0, too_big=0, on_relay=0, offers=0)
WELL = Agent(relays=(RELAY,), connected=True, interfaces=(Interface("eth0", "native"),), streams={"offloaded": 20}, calls=10, flow=FLOW)


def facts(setup: Setup = SETUP, signalling: Signalling | None = None, own: Own | None = None, **agent: Any) -> Facts:
    """A host on which all is well but for these."""
    return Facts(replace(WELL, **agent), setup, signalling or Signalling(10, 0, 30, 200, 600.0), own or Own())


def flow(**changes: Any) -> Flow:
    return replace(FLOW, **changes)


def codes(judged: Judgement) -> set[str]:
    return {finding.code for finding in judged.findings}


# What the host is like, the findings' codes, and words of the first finding's cause.
SITUATIONS: dict[str, tuple[Facts, set[str], str]] = {
    "all is well": (facts(), set(), ""),
    "nothing runs yet": (facts(calls=0, streams={}, flow=flow(plane=0, relay=0)), set(), ""),
    "no data plane is configured": (facts(replace(SETUP, data_plane=False), connected=None, interfaces=None, streams={"no-data-plane": 20}, flow=flow(plane=None, relay=15_000)), set(), ""),
    "a standby": (facts(role="standby", connected=False, interfaces=None, streams={}, calls=0), set(), ""),
    # The data plane.
    "program detached": (facts(interfaces=(Interface("eth0", "none"),), flow=flow(plane=0, relay=15_000)), {"xdp-missing"}, "eth0 has no program of the softswitch now"),
    "program detached, no call": (facts(interfaces=(Interface("eth0", "none"),), calls=0, streams={}, flow=flow(plane=0, relay=0)), {"xdp-missing"}, "eth0"),
    "one of two detached": (facts(interfaces=(Interface("eth0", "native"), Interface("eth1", "none")), flow=flow(plane=7_000, relay=7_000)), {"xdp-missing"}, "eth1 has no"),
    "no interface at all": (facts(interfaces=()), {"xdp-missing"}, "eth0 has no"),
    "loopback alone": (
        facts(replace(SETUP, interfaces=("lo",)), interfaces=(Interface("lo", "generic"),), streams={"not-in-data-plane": 4}, calls=2, flow=flow(plane=0, relay=3_000, on_relay=4)),
        {"xdp-loopback"},
        "on lo alone",
    ),
    "loopback and a card": (facts(interfaces=(Interface("lo", "generic"), Interface("eth0", "native"))), set(), ""),
    "generic by accident": (facts(interfaces=(Interface("eth0", "generic"),)), {"xdp-generic"}, "generic XDP on eth0"),
    "generic as wished": (facts(replace(SETUP, mode="generic"), interfaces=(Interface("eth0", "generic"),)), set(), ""),
    "packets past the program": (facts(flow=flow(plane=0, relay=15_000)), {"past-data-plane"}, "relays counted 15000 packets in 15 s, the data plane 0"),
    "half of the packets past it": (facts(flow=flow(plane=7_500, relay=7_500)), {"past-data-plane"}, "bypass the data plane"),
    "calls begin": (facts(flow=flow(relay=2_000, offers=10)), set(), ""),
    "some calls are recorded": (facts(streams={"offloaded": 16, "recording": 4}, flow=flow(plane=12_000, relay=3_000, on_relay=4)), set(), ""),
    "RTCP at the relay": (facts(flow=flow(relay=60)), set(), ""),
    "relay's counts not known": (facts(flow=flow(relay=None)), set(), ""),
    "no next hop": (
        facts(flow=flow(plane=7_500, relay=7_500, unrouted=7_500), examples={"unrouted": "192.0.2.2"}),
        {"unrouted"},
        "had no next hop to 192.0.2.2: the data plane passed them to the relay",
    ),
    "a neighbour is resolved": (facts(flow=flow(unrouted=12, relay=12)), set(), ""),
    "larger than the MTU": (facts(flow=flow(plane=7_500, relay=7_500, too_big=7_500)), {"too-big"}, "larger than the MTU"),
    "data plane away": (facts(connected=False, interfaces=None, problems=(Problem("data-plane-down", "unix:/x: connection refused"),), flow=None), {"data-plane-down"}, "unix:/x: connection refused"),
    "table full": (facts(streams={"offloaded": 20, "table-full": 2}), {"table-full"}, "2 streams are on the relay because the relay table is full"),
    "host policy": (facts(streams={"offloaded": 18, "host-policy": 1}), {"host-policy"}, "1 stream is on the relay because IPsec"),
    # Relays.
    "relay away": (
        facts(relays=(replace(RELAY, alive=False),), problems=(Problem("relay-down", "relay r1 (udp:127.0.0.1:22222) does not answer"),)),
        {"relay-down"},
        "relay r1 (udp:127.0.0.1:22222) does not answer",
    ),
    "relay refuses": (facts(relays=(replace(RELAY, alive=False, error="connection refused"),)), {"relay-down"}, "does not answer: connection refused"),
    "one of two relays away": (facts(relays=(RELAY, replace(RELAY, name="r2", alive=False))), {"relay-down"}, "relay r2"),
    "wrong media range": (
        facts(streams={"outside-media-ranges": 2}, calls=1, flow=flow(plane=0, relay=1_500, on_relay=2), examples={"outside-media-ranges": "198.51.100.1:40000 of call c"}),
        {"outside-media-ranges"},
        "2 streams are on a relay port that no configured media range has (198.51.100.1:40000 of call c)",
    ),
    # Signalling and the way to the host.
    "SIP server past the agent": (facts(signalling=Signalling(12, 12, 0, 200, 600.0), calls=0, streams={}), {"commands-missing"}, "12 of 12 answered calls"),
    "some calls need no relay": (facts(signalling=Signalling(12, 3, 9, 200, 600.0)), set(), ""),
    "one call past the agent": (facts(signalling=Signalling(1, 1, 0, 20, 600.0)), set(), ""),
    "no SIP copies": (facts(signalling=Signalling(0, 0, 30, 0, 600.0)), {"hep-missing"}, "30 offers came by the control socket and no SIP copy"),
    "HEP is not configured": (facts(replace(SETUP, hep=False), signalling=Signalling(0, 0, 30, 0, 600.0)), set(), ""),
    "firewall before the host": (
        facts(streams={"waiting-for-media": 20}, silent_calls=10, flow=flow(plane=0, relay=0, on_relay=20)),
        {"nothing-arrives"},
        "in 10 of 10 calls no packet arrives from either party",
    ),
    "one silent call": (facts(silent_calls=1), set(), ""),
    "a few silent calls of many": (facts(silent_calls=3), set(), ""),
    # Daemons, files, clock.
    "agent draining": (facts(draining="offloads"), {"draining"}, "no new stream is offloaded"),
    "journal full": (facts(problems=(Problem("journal-failed", "database or disk is full"),)), {"journal-failed"}, "the journal /var/lib/shunt/journal cannot be written: database or disk is full"),
    "events dropped": (facts(problems=(Problem("events-dropped", "1070 events were dropped"),)), {"events-dropped"}, "/var/lib/shunt/events: 1070 events were dropped"),
    "records wait": (facts(own=Own(records_error="/var/log/shunt/cdr.csv: No space left on device")), {"records-waiting"}, "/var/log/shunt/cdr.csv"),
    "position not kept": (facts(own=Own(position_error="/var/lib/shunt/position.json: read-only")), {"position-not-kept"}, "position.json"),
    "events do not come": (facts(own=Own(events_error="403")), {"events-unreachable"}, "403"),
    "events missing": (facts(own=Own(gaps=("events 5 to 9 are missing (rotated)",))), {"events-missing"}, "5 to 9"),
    "clock set forwards": (facts(own=Own(clock_step_s=3600.0)), {"clock-stepped"}, "forwards by 3600 s"),
    "clock set backwards": (facts(own=Own(clock_step_s=-2.0)), {"clock-stepped"}, "backwards by 2 s"),
    "clock slewed": (facts(own=Own(clock_step_s=0.2)), set(), ""),
    "a mixer away": (facts(problems=(Problem("mixer-down", "unix:/m: refused"),)), {"mixer-down"}, "unix:/m"),
    "a newer agent's problem": (facts(problems=(Problem("comet", "a comet comes"),)), {"agent-problem"}, "a comet comes"),
    "two causes": (facts(interfaces=(Interface("eth0", "none"),), relays=(replace(RELAY, alive=False),)), {"xdp-missing", "relay-down"}, "relay r1"),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_has_its_findings(name: str) -> None:
    given, wanted, words = SITUATIONS[name]
    judged = judge(given)
    assert codes(judged) == wanted, judged.findings
    if words:
        assert words in judged.findings[0].cause
    for finding in judged.findings:
        assert finding.subject and finding.remedy.endswith((".", ")", "it.")), finding
        assert "\n" not in finding.cause + finding.remedy


def test_nothing_is_well_while_the_agent_does_not_answer() -> None:
    """What only the agent can tell is unknown; what this daemon knows itself is said."""
    judged = judge(Facts(Unknown("timed out"), SETUP, Signalling(), Own(records_error="full", events_error="refused")))
    assert codes(judged) == {"agent-unreachable", "records-waiting"}
    assert set(judged.unknown) == set(CODES) - {
        "agent-unreachable",
        "events-missing",
        "events-unreachable",
        "events-rebuilding",
        "records-lost",
        "records-waiting",
        "position-not-kept",
        "clock-stepped",
    }
    assert judged.view()["verdict"] == "fail"


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [
        ({"connected": False}, {"xdp-missing", "past-data-plane", "unrouted", "too-big", "xdp-loopback", "xdp-generic", "host-policy", "table-full"}),
        ({"interfaces": None}, {"xdp-missing", "xdp-loopback", "xdp-generic"}),
        ({"flow": None}, {"past-data-plane", "unrouted", "too-big"}),
        ({"flow": replace(FLOW, relay=None)}, {"past-data-plane"}),
        ({"flow": replace(FLOW, unrouted=None)}, {"unrouted"}),
        ({"silent_calls": None}, {"nothing-arrives"}),
        ({}, set()),
    ],
)
def test_what_is_not_told_is_unknown(changes: dict[str, Any], unknown: set[str]) -> None:
    judged = judge(facts(**changes))
    assert set(judged.unknown) == unknown and not judged.findings
    assert judged.view()["verdict"] == ("unknown" if unknown else "ok")


def test_a_finding_keeps_its_age_until_it_is_gone() -> None:
    since: dict[tuple[str, str], float] = {}
    bad, well = judge(facts(draining="calls")), judge(facts())
    assert dated(bad, since, 100.0).findings[0].since_s == 0
    assert dated(bad, since, 130.0).findings[0].since_s == 30
    assert dated(well, since, 131.0).findings == ()
    assert dated(bad, since, 140.0).findings[0].since_s == 0


def test_the_table_of_codes_in_the_documents_is_the_one_here() -> None:
    rows = [line.removesuffix(" |").split(" | ") for line in (ROOT / "docs/health.md").read_text().splitlines() if line.startswith("| `")]
    assert [(row[0][3:-1], row[1], row[2]) for row in rows] == [(code, what.severity, what.meaning) for code, what in CODES.items()]
