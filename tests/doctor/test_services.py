"""User, groups, units, versions."""

from __future__ import annotations

import dataclasses
from typing import Any

from shunt.doctor.facts import Agent, Unit, Unknown
from shunt.doctor.finding import Finding
from shunt.doctor.services import PLANE, check
from tests.doctor.hosts import SHUNT, by_subject, config, facts


def found(*text: tuple[str, str], **changes: Any) -> dict[str, Finding]:
    return by_subject(check(config(*text), facts(**changes)))


def unit(name: str, **settings: tuple[str, ...]) -> Finding:
    return found(units=(Unit(name, "/x", settings),))[name]


def test_user_and_groups() -> None:
    assert found()["user shunt"].verdict == "ok"
    assert found(user=None)["user shunt"].verdict == "warn"
    assert found(groups={"shunt": None})["admin.socket_group"].verdict == "warn"
    outside = found(account=dataclasses.replace(SHUNT, gids=frozenset({5})))["softswitch.socket_group"]
    assert outside.verdict == "fail" and "usermod -aG shunt shunt" in outside.advice
    assert "builtin_relay.socket_group" not in found()


def test_units() -> None:
    assert found(units=())["units"].verdict == "unknown"
    everything = " ".join(PLANE)
    assert unit("shunt-softswitch.service", CapabilityBoundingSet=(everything,)).verdict == "ok"
    assert unit("shunt-softswitch.service").verdict == "ok", "nothing limits root"
    lacks = unit("shunt-softswitch.service", CapabilityBoundingSet=("CAP_NET_ADMIN CAP_BPF",))
    assert lacks.verdict == "fail" and "CAP_PERFMON, CAP_SYS_ADMIN" in lacks.found
    assert unit("shunt-softswitch.service", User=("shunt",), CapabilityBoundingSet=(everything,)).verdict == "fail"
    assert unit("shunt-agent.service", User=("shunt",), CapabilityBoundingSet=()).found == "user shunt, no capabilities"
    assert unit("shunt-agent.service").verdict == "warn", "as root"


def test_low_ports_need_a_capability() -> None:
    low = ("udp:127.0.0.1:22221", "udp:127.0.0.1:700")

    def agent(**more: tuple[str, ...]) -> Finding:
        return found(low, units=(Unit("shunt-agent.service", "/x", {"User": ("shunt",), "CapabilityBoundingSet": (), **more}),))["shunt-agent.service"]

    assert agent().verdict == "fail" and "udp:127.0.0.1:700" in agent().found
    both = ("CAP_NET_BIND_SERVICE",)
    assert agent(AmbientCapabilities=both, CapabilityBoundingSet=both).verdict == "ok"
    assert agent(AmbientCapabilities=both).verdict == "fail"


def test_versions() -> None:
    programs = {"shunt-agent": "0.1.0", "shunt-softswitch": None}
    versions = found(programs=programs)
    assert "0.1.0" in versions["shunt-agent"].found
    assert [versions[name].verdict for name in programs] == ["fail", "fail"]
    assert found(programs=programs | {"shunt-agent": Unknown("no libelf")})["shunt-agent"] == Finding("unknown", "shunt-agent", "no libelf")
    assert found(agent=Agent("0.2.0"))["running agent"].verdict == "ok"
    assert found(agent=Agent("0.1.9"))["running agent"].verdict == "warn"
    assert found(agent=Unknown("Permission denied"))["running agent"].verdict == "unknown"
