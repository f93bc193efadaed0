"""The output path of the host: what IPsec, routing rules, translation or a filter applies to is the kernel's to send."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shunt.net import FiveTuple
from tests.dataplane.conftest import empty
from tests.dataplane.lab import HOST_B4, HOST_B6, Lab, sh
from tests.dataplane.test_forwarding import across, drain, resolved
from tests.softswitch.client import until
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch

pytestmark = pytest.mark.netns

TEMPLATE = "tmpl proto esp mode transport"
# What is configured, what takes it back, and the IP versions of the receivers that it applies to.
POLICIES = {
    "IPsec, no state": (f"ip xfrm policy add src 0.0.0.0/0 dst {HOST_B4}/32 dir out {TEMPLATE}", "ip xfrm policy flush", {4}),
    "IPsec for IPv6": (f"ip xfrm policy add src ::/0 dst {HOST_B6}/128 dir out {TEMPLATE}", "ip xfrm policy flush", {6}),
    "IPsec, action block": (f"ip xfrm policy add src 0.0.0.0/0 dst {HOST_B4}/32 dir out action block", "ip xfrm policy flush", {4}),
    "IPsec for SIP": (f"ip xfrm policy add src 0.0.0.0/0 dst {HOST_B4}/32 proto udp dport 5060 dir out {TEMPLATE}", "ip xfrm policy flush", set()),
    "routing by port": ("ip rule add ipproto udp dport 6000 blackhole", "ip rule del ipproto udp dport 6000 blackhole", {4}),
    "masquerade": ("iptables -t nat -A POSTROUTING -p udp -o rb -j MASQUERADE", "iptables -t nat -F POSTROUTING", {4}),
    "masquerade of a container": ("iptables -t nat -A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE", "iptables -t nat -F POSTROUTING", set()),
    "filter": ("ip6tables -A OUTPUT -p udp --dport 6000 -j DROP", "ip6tables -F OUTPUT", {6}),
}


@pytest.fixture
def shown(lab: Lab) -> Iterator[Lab]:
    yield lab
    sh("ip", "netns", "exec", lab.ns("relay"), "sh", "-c", "while ip rule del ipproto udp dport 6000 2> /dev/null; do :; done")
    for command in ("ip xfrm policy flush", "iptables -t nat -F", "iptables -F", "ip6tables -F"):
        sh("ip", "netns", "exec", lab.ns("relay"), *command.split())


def run(lab: Lab, command: str) -> None:
    sh("ip", "netns", "exec", lab.ns("relay"), *command.split())


def until_told(plane: Plane, held: set[FiveTuple]) -> None:
    """Wait until the owner is told of these entries, and of no others."""
    found: set[FiveTuple] = set()

    def told() -> bool:
        found.update(plane.held_back())
        return held <= found

    until(told, f"the owner is told of {held}")
    assert found == held


@pytest.mark.parametrize("name", POLICIES)
def test_what_a_policy_applies_to_is_not_installed(shown: Lab, plane: Plane, name: str) -> None:
    command, undo, versions = POLICIES[name]
    there = {version: across(version, version)[0] for version in (4, 6)}
    run(shown, command)
    expected = ["host-policy" if version in versions else None for version in there]

    def asked() -> list[str | None]:
        plane.clear()  # one that was written before the policy was read stays, held back
        return plane.upsert(list(there.values()))

    until(lambda: asked() == expected, f"{name}: {expected}")
    assert set(plane.keys()) == {entry.key for version, entry in there.items() if version not in versions}
    run(shown, undo)
    until(lambda: plane.upsert(list(there.values())) == [None, None], "the policy is gone")


@pytest.mark.parametrize("name", [name for name, (_, _, versions) in POLICIES.items() if versions])
def test_a_policy_in_mid_call_holds_entries_back_at_once(shown: Lab, plane: Plane, name: str) -> None:
    command, undo, versions = POLICIES[name]
    entries = {version: across(version, version) for version in (4, 6)}
    plane.insert([entry for both in entries.values() for entry in both])
    plane.held_back()
    assert resolved(plane, *(entry for both in entries.values() for entry in both))
    run(shown, command)
    held = {entries[version][0].key for version in versions}
    until_told(plane, held)
    for version, (there, back) in entries.items():
        trace = plane.trace(there.key)
        assert (trace["verdict"], trace["reason"]) == (("pass", "no-next-hop") if version in versions else ("redirect", trace["reason"])), name
        assert plane.trace(back.key)["verdict"] == "redirect", "the other direction goes on"
    version = next(iter(versions))
    there = entries[version][0]
    with shown.socket("relay", there.key.dst.ip, there.key.dst.port) as relay, shown.socket("a", there.key.src.ip, there.key.src.port) as caller:
        caller.sendto(b"for the relay", (there.key.dst.ip, there.key.dst.port))
        assert [data for data, _ in drain(relay)] == [b"for the relay"]
    run(shown, undo)
    assert resolved(plane, there)


def test_a_route_change_does_not_let_an_entry_go(shown: Lab, plane: Plane) -> None:
    there = across(4, 4)[0]
    plane.insert([there])
    run(shown, POLICIES["IPsec, no state"][0])
    until(lambda: plane.trace(there.key)["verdict"] == "pass", "it is held back")
    for change in ("add", "del"):
        run(shown, f"ip route {change} {HOST_B4}/32 dev rb")
        other = across(4, 4, 20010)[1]
        plane.upsert([other])
        assert resolved(plane, other)
        assert plane.trace(there.key)["verdict"] == "pass"


def test_a_new_process_holds_back_what_the_former_one_did(shown: Lab, softswitch: Softswitch, plane: Plane) -> None:
    there, back = across(4, 4)
    plane.insert([there, back])
    run(shown, POLICIES["IPsec, no state"][0])
    until(lambda: plane.trace(there.key)["verdict"] == "pass", "it is held back")
    softswitch.restart()
    plane.reconnect(softswitch.target)
    assert resolved(plane, back)
    assert plane.trace(there.key)["verdict"] == "pass"
    until_told(plane, {there.key})
    empty(plane)
    assert plane.keys() == []
