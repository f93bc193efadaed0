"""Interfaces: there, up, XDP mode by the softswitch's rules, queues, offloads, MTU."""

from __future__ import annotations

from typing import Any

import pytest

from shunt.doctor.facts import XDP_BASIC, XDP_BUFFERS, XDP_TRANSMIT, Feature, Link, Unknown
from shunt.doctor.finding import Finding
from shunt.doctor.interfaces import check, xdp_modes
from tests.doctor.hosts import OFFLOADS, by_subject, config, facts, link

SILENT = {"kind": "veth", "driver": "veth", "xdp_features": XDP_BASIC}


def found(eth0: Link | None | Unknown, mode: str = "auto", **eth1: Any) -> dict[str, Finding]:
    changed = config(("[eth0, eth1]}", f"[eth0, eth1], mode: {mode}}}"))
    return by_subject(check(changed, facts(links={"eth0": eth0, "eth1": link("eth1", **eth1)})))


def test_presence() -> None:
    assert found(link("eth0"))["interface eth0"] == Finding("ok", "interface eth0", "up, ice, MTU 1500")
    assert found(None)["interface eth0"].verdict == "fail"
    assert "no such interface" in found(None)["interface eth0"].found
    down = found(link("eth0", up=False))["interface eth0"]
    assert (down.verdict, down.advice) == ("fail", "ip link set eth0 up")
    assert found(Unknown("why"))["interface eth0"] == Finding("unknown", "interface eth0", "why")
    assert "XDP on eth0" not in found(None)


@pytest.mark.parametrize("mtu", [3487, 3600, 9000, 9001])
def test_a_large_mtu_is_named_where_the_driver_has_frames_of_one_buffer(mtu: int) -> None:
    narrow = link("eth0", mtu=mtu, xdp_features=XDP_BASIC | XDP_TRANSMIT)
    finding = found(narrow)["XDP on eth0"]
    assert finding.verdict == "warn" and "will be generic" in finding.found and f"MTU {mtu}" in finding.found and "mtu 3486" in finding.advice
    assert found(narrow, "native")["XDP on eth0"].verdict == "fail"
    for mode in ("auto", "native"):
        assert found(link("eth0", mtu=mtu, xdp_features=XDP_BASIC | XDP_TRANSMIT | XDP_BUFFERS), mode)["XDP on eth0"].verdict == "ok"
        assert found(link("eth0", mtu=3486, xdp_features=XDP_BASIC | XDP_TRANSMIT), mode)["XDP on eth0"].verdict == "ok"


def test_a_macvlan_needs_no_program_beside_that_of_the_interface_below() -> None:
    both = config(("[eth0, eth1]}", "[eth0, vmac0]}"))
    vmac = link("vmac0", kind="macvlan", driver="macvlan", below="eth0", xdp_features=0)
    report = by_subject(check(both, facts(links={"eth0": link("eth0"), "vmac0": vmac})))
    assert report["XDP on eth0"].verdict == "ok"
    assert report["XDP on vmac0"] == Finding("ok", "XDP on vmac0", "none needed: it is on top of eth0, whose program gets its packets")
    alone = config(("[eth0, eth1]}", "[vmac0]}"))
    report = by_subject(check(alone, facts(links={"vmac0": vmac})))
    assert report["XDP on vmac0"].verdict == "warn" and "name eth0 in softswitch.interfaces" in report["XDP on vmac0"].advice


def test_the_cpu_interface_of_a_switch_has_to_be_there() -> None:
    asked = config(("data_plane: {}", "data_plane: {cpu_interface: cpu0}"))
    links = dict(facts().links) | {"cpu0": None}
    missing = by_subject(check(asked, facts(links=links)))["interface cpu0"]
    assert missing.verdict == "fail" and "data_plane.cpu_interface" in missing.advice


@pytest.mark.parametrize(
    ("mode", "changes", "verdict", "words"),
    [
        ("auto", {}, "ok", "will be native"),
        ("native", {}, "ok", "will be native"),
        ("generic", {}, "ok", "will be generic, as"),
        ("auto", {"xdp_features": 0}, "warn", "will be generic: the driver ice takes no programs"),
        ("native", {"xdp_features": 0}, "fail", "mode is native"),
        ("auto", SILENT, "warn", "cannot transmit redirected frames"),
        ("native", SILENT, "fail", "they are lost"),
        ("auto", {"xdp_features": XDP_BASIC}, "unknown", "only with a program attached"),
        ("auto", {"xdp_features": Unknown("old kernel")}, "unknown", "old kernel"),
        ("auto", {"xdp_features": Unknown("old kernel"), "kind": "veth"}, "warn", "will be generic"),
        ("auto", {"attached": "native", "pinned": True}, "ok", "native"),
        ("auto", {"attached": "generic", "pinned": True}, "warn", "generic"),
        ("generic", {"attached": "generic", "pinned": True}, "ok", "generic"),
        ("native", {"attached": "generic", "pinned": True}, "warn", "but softswitch.mode is native"),
        ("auto", {"attached": "native", "pinned": False}, "fail", "another XDP program"),
        ("auto", {"attached": "native", "pinned": Unknown("no right")}, "unknown", "no right"),
    ],
)
def test_xdp_mode(mode: str, changes: dict[str, Any], verdict: str, words: str) -> None:
    finding = found(link("eth0", **changes), mode)["XDP on eth0"]
    assert finding.verdict == verdict and words in finding.found, finding


def test_one_interface_that_cannot_transmit_makes_all_generic() -> None:
    modes = xdp_modes("auto", {"eth0": link("eth0"), "v0": link("v0", **SILENT), "g0": link("g0", xdp_features=0)})
    assert [modes[name].verdict for name in modes] == ["warn", "warn", "warn"]
    assert "because v0 cannot transmit" in modes["eth0"].found
    # One that is generic itself does not change the others.
    assert xdp_modes("auto", {"eth0": link("eth0"), "g0": link("g0", xdp_features=0)})["eth0"].verdict == "ok"
    assert xdp_modes("native", {"eth0": link("eth0"), "v0": link("v0", **SILENT)})["eth0"].verdict == "ok"
    assert XDP_TRANSMIT == 4


def test_receive_queues() -> None:
    assert found(link("eth0"))["receive queues of eth0"] == Finding("ok", "receive queues of eth0", "8 for 8 CPU cores")
    one = found(link("eth0", rx_queues=1))["receive queues of eth0"]
    assert (one.verdict, one.advice) == ("warn", "ethtool -L eth0 combined 8")
    fixed = found(link("eth0", rx_queues=1, max_queues=None))["receive queues of eth0"]
    assert fixed.verdict == "warn" and "ethtool" not in fixed.advice


def test_offloads() -> None:
    def offloads(attached: str | None = None, **changes: Feature) -> Finding:
        named = {name.replace("_", "-"): feature for name, feature in changes.items()}
        return found(link("eth0", attached=attached, pinned=True, offloads=OFFLOADS | named))["offloads of eth0"]

    assert offloads() == Finding("ok", "offloads of eth0", "none that disturbs; the softswitch will switch off rx-vlan-hw-parse")
    left = offloads("native", rx_lro=Feature(True, False))
    assert (left.verdict, left.advice) == ("warn", "ethtool -K eth0 lro off rxvlan off")
    hardware = offloads(rx_gro_hw=Feature(True, False))
    assert (hardware.verdict, hardware.advice) == ("warn", "ethtool -K eth0 rx-gro-hw off")
    fixed = offloads(rx_lro=Feature(True, True))
    assert fixed.verdict == "warn" and "cannot be changed" in fixed.advice and "ethtool" not in fixed.advice
    assert found(link("eth0", offloads=Unknown("why")))["offloads of eth0"].verdict == "unknown"


def test_different_mtus_and_no_interface_at_all() -> None:
    assert found(link("eth0"), mtu=9000)["MTU"].verdict == "warn"
    assert "MTU" not in found(link("eth0"))
    assert "MTU" not in found(link("eth0"), mtu=65536, kind="loopback")
    none = by_subject(check(config(("[eth0, eth1]", "[]")), facts(links={})))
    assert none["softswitch.interfaces"].verdict == "warn"
