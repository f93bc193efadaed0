"""Media ports and listening sockets."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shunt.config.values import PortRange
from shunt.doctor.facts import Bound, Process, Unknown
from shunt.doctor.finding import Finding
from shunt.doctor.ports import check, role, unreserved
from tests.doctor.hosts import AGENT, RTPPROXY, by_subject, config, facts, udp

MEDIA, SOCKETS = "media ports 192.0.2.1:20000-29999", "sockets in media ports 192.0.2.1:20000-29999"
CONTROL = "control.listen.0 udp:127.0.0.1:22221"
STRANGER = Process(99, "named", ("/usr/sbin/named",))


def found(*bound: Bound, text: tuple[tuple[str, str], ...] = (), **changes: Any) -> dict[str, Finding]:
    return by_subject(check(config(*text), facts(ports=dataclasses.replace(facts().ports, bound=bound) if not changes else dataclasses.replace(facts().ports, **changes))))


@pytest.mark.parametrize(
    ("reserved", "left"),
    [((), (35000, 60999)), (((35000, 65001),), None), (((35000, 40000),), (40001, 60999)), (((50000, 65535),), (35000, 49999)), (((35000, 40000), (40001, 60999)), None), (((1, 2),), (35000, 60999))],
)
def test_which_media_ports_the_kernel_may_give_away(reserved: tuple[tuple[int, int], ...], left: tuple[int, int] | None) -> None:
    assert unreserved(PortRange(35000, 65000), (32768, 60999), reserved) == left


def test_media_ports_and_the_kernels_own_choice() -> None:
    assert found()[MEDIA].verdict == "ok"
    overlap = found(ephemeral=(25000, 60999), reserved=((5000, 5010),))[MEDIA]
    assert (overlap.verdict, overlap.advice) == ("warn", "sysctl -w net.ipv4.ip_local_reserved_ports=5000-5010,20000-29999")
    assert found(ephemeral=(25000, 60999), reserved=((20000, 29999),))[MEDIA].verdict == "ok"
    assert found(ephemeral=Unknown("why"))[MEDIA].verdict == "unknown"


def test_media_addresses_of_other_hosts() -> None:
    local = dict(facts().ports.local) | {"192.0.2.1": False}
    assert found(local=local)[MEDIA].verdict == "warn"
    assert SOCKETS not in found(local=local)
    elsewhere = found(local=local, text=(("softswitch: {interfaces: [eth0, eth1]}\n", ""), ("data_plane: {}", 'data_plane: {target: "sw:50052"}')))
    assert elsewhere[MEDIA].verdict == "unknown"
    builtin = (
        ('media: [{address: 192.0.2.1, ports: "20000-29999"}]}', "}"),
        ("data_plane: {}", "builtin_relay: {addresses: [192.0.2.1], ports: '20000-29999'}"),
        ("media: [{address: 192.0.2.2", "media: [{address: 127.0.0.9"),
    )
    assert found(local=local | {"127.0.0.9": True}, text=builtin)[MEDIA].verdict == "fail"


def test_sockets_in_media_ports() -> None:
    assert found()[SOCKETS].found == "none in use"
    assert found(udp(20002, RTPPROXY, "192.0.2.1"))[SOCKETS] == Finding("ok", SOCKETS, "1 in use by rtpproxy or rtpengine")
    strange = found(udp(20002, STRANGER))[SOCKETS]
    assert strange.verdict == "warn" and "20002 by named (pid 99)" in strange.found
    assert "and 2 more" in found(*(udp(port, STRANGER) for port in range(20000, 20005)))[SOCKETS].found
    # Another address, another port, another protocol.
    assert found(udp(20002, STRANGER, "192.0.2.9"), udp(30000, STRANGER), Bound("tcp", "0.0.0.0", 20002, STRANGER))[SOCKETS].verdict == "ok"
    assert found(udp(20002, Unknown("not root")))[SOCKETS].verdict == "unknown"
    assert found(bound=Unknown("why"))[SOCKETS].verdict == "unknown"


def test_listening_sockets() -> None:
    assert found()[CONTROL].verdict == "ok" and "free" in found()[CONTROL].found
    assert found(udp(22221, AGENT, "127.0.0.1"))[CONTROL] == Finding("ok", CONTROL, "held by shunt-agent (pid 10)")
    taken = found(udp(22221, RTPPROXY))[CONTROL]
    assert taken.verdict == "fail" and "taken by rtpproxy (pid 11)" in taken.found
    assert found(udp(22221, Unknown("not root")))[CONTROL].verdict == "unknown"
    assert found(Bound("tcp", "127.0.0.1", 22221, STRANGER))[CONTROL].verdict == "ok"
    unix = found(Bound("unix", "", 0, STRANGER, "/run/shunt/c.sock"))["control.listen.1 unix:/run/shunt/c.sock"]
    assert unix.verdict == "fail"
    away = found(local=dict(facts().ports.local) | {"127.0.0.1": False})[CONTROL]
    assert away.verdict == "fail" and "not an address of this host" in away.found


def test_who_a_process_is() -> None:
    assert role(AGENT) == "shunt-agent"
    assert role(Process(1, "shunt", ("/usr/lib/shunt/bin/python3", "-I", "/usr/bin/shunt", "operator", "-c", "x"))) == "shunt operator"
    assert role(Process(1, "python", ("python", "-m", "shunt.cli.main", "operator", "-c", "x"))) == "shunt operator"
    assert role(Process(1, "vi", ("vi", "/etc/shunt/operator"))) == "vi"
    assert role(Process(1, "kworker")) == "kworker"
