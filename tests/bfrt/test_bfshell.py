"""The scripts for bfshell against a double of its tables: set-up from the YAML configuration, and reading a switch out."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shunt.config.load import ConfigError, loads
from tests.bfrt.fake_bfshell import Entry, Leaf, Node, short_names, tree
from tests.softswitch.schema import document

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "p4" / "bfrt_python"
CONFIG = """
switch:
  cpu_port: 192
  ports:
    - {port: "1/0", mac: "02:00:00:00:01:00", fec: reed-solomon, mtu: 9000}
    - {port: "2/1", mac: "02:00:00:00:02:00", speed: 25G, autoneg: "off"}
    - {port: 140, mac: "02:00:00:00:03:00", enabled: false}
  next_hops:
    - {name: relay, port: "2/1", mac: "02:AA:00:00:00:01"}
    - {name: uplink, port: "1/0", mac: "02:aa:00:00:00:02", vlan: 100}
  routes:
    - {prefix: 198.18.0.1/32, to: relay}
    - {prefix: 0.0.0.0/0, to: uplink}
    - {prefix: 10.9.9.9/32, to: cpu}
    - {prefix: "fd91::/64", to: relay}
    - {prefix: 192.0.2.0/24, to: discard}
"""


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bfshell_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


setup, readout = script("setup"), script("readout")


def field(name: str, kind: str = "bytes", width: int = 0, match: str = "Exact", choices: tuple[str, ...] = ()) -> dict[str, Any]:
    type_: dict[str, Any] = {"type": kind}
    if width:
        type_["width"] = width
    if choices:
        type_["choices"] = list(choices)
    return {"id": 1, "name": name, "match_type": match, "type": type_}


def table(name: str, key: list[dict[str, Any]], data: tuple[dict[str, Any], ...] = (), actions: dict[str, Any] | None = None, default: str = "\0", size: int = 100) -> dict[str, Any]:
    specs = [{"name": action, "data": list(fields), "annotations": [{"name": note}] if note else []} for action, (fields, note) in (actions or {}).items()]
    return {"name": name, "size": size, "key": key, "data": [{"singleton": f} for f in data], "action_specs": specs, "default": default}


PORT, MACS = field("port", width=9), (field("src_mac", width=48), field("dst_mac", width=48))
FORWARDING = {
    "tables": [
        table(
            "pipe.Ingress.layer2",
            [field("ingress_port", width=9, match="Ternary"), field("hdr.ethernet.dst_addr", width=48, match="Ternary"), field("$MATCH_PRIORITY", "uint32")],
            actions={"Ingress.route_frame": ((), "@tableonly"), "Ingress.bridge_to": ((PORT,), "@tableonly"), "Ingress.bridge_to_group": ((field("group", width=16),), "@tableonly")},
        ),
        *(
            table(
                f"pipe.Ingress.route{six}",
                [field(f"hdr.ipv{six or 4}.dst_addr", width=128 if six else 32, match="LPM")],
                actions={f"Ingress.forward{six}": ((PORT, field("nexthop", width=16)), ""), "Ingress.to_cpu": ((PORT,), ""), "Ingress.discard": ((), "")},
                default="discard",
            )
            for six in ("", "6")
        ),
        table("pipe.Ingress.punt", [], actions={"Ingress.to_cpu": ((PORT,), "")}, default="to_cpu"),
        table(
            "pipe.Egress.mtu",
            [field("port", width=9), field("length", width=16, match="Range"), field("$MATCH_PRIORITY", "uint32")],
            actions={"Egress.too_big": ((), "@tableonly")},
        ),
        *(table(f"pipe.{gress}.dropped", [field("$COUNTER_INDEX", "uint32")], (field("$COUNTER_SPEC_PKTS", "uint64"),), size=8) for gress in ("Ingress", "Egress")),
        table(
            "pipe.Egress.nexthop",
            [field("nexthop", width=16)],
            actions={"Egress.send": (MACS, "@tableonly"), "Egress.send_tagged": ((*MACS, field("vlan", width=12)), "@tableonly"), "Egress.unknown_nexthop": ((), "@defaultonly")},
        ),
    ]
}
FIXED = {
    "tables": [
        table("$PORT", [field("$DEV_PORT", "uint32")], (
            field("$SPEED", "string", choices=("BF_SPEED_25G", "BF_SPEED_100G")),
            field("$FEC", "string", choices=("BF_FEC_TYP_NONE", "BF_FEC_TYP_REED_SOLOMON")),
            field("$PORT_ENABLE", "bool"),
            field("$AUTO_NEGOTIATION", "string", choices=("PM_AN_DEFAULT", "PM_AN_FORCE_ENABLE", "PM_AN_FORCE_DISABLE")),
        )),
        table("$PORT_STR_INFO", [field("$PORT_NAME", "string")], (field("$DEV_PORT", "uint32"),)),
        table("$pre.node", [field("$MULTICAST_NODE_ID", "uint32")], tuple(field(n, "uint16") for n in ("$MULTICAST_RID", "$MULTICAST_LAG_ID", "$DEV_PORT"))),
        table("$mirror.cfg", [field("$sid", "uint16")], (
            field("$session_enable", "bool"),
            field("$direction", "string", choices=("INGRESS", "EGRESS", "BOTH")),
            field("$ucast_egress_port", "uint32"),
            field("$ucast_egress_port_valid", "bool"),
            field("$max_pkt_len", "uint16"),
        ), {"$normal": ((), ""), "$coalescing": ((field("$timeout_usec", "uint32"),), "")}),
        table("$pre.mgid", [field("$MGID", "uint16")], tuple(field(n, "uint32") for n in ("$MULTICAST_NODE_ID", "$MULTICAST_NODE_L1_XID_VALID", "$MULTICAST_NODE_L1_XID"))),
    ]
}  # fmt: skip


def switch() -> Any:
    relay = copy.deepcopy(document("relay"))
    relay["tables"] = [{**t, "size": 1000, "default": "NoAction"} for t in relay["tables"] if t["name"].startswith("pipe.")]
    bfrt = tree("relay", *copy.deepcopy((relay, FORWARDING, FIXED)))
    for name, number in (("1/0", 132), ("2/1", 141)):
        bfrt.port.port_str_info.add(PORT_NAME=name, DEV_PORT=number)  # type: ignore[attr-defined]
    return bfrt


def plan(text: str = CONFIG) -> dict[str, Any]:
    config = loads(text)
    assert config.switch is not None
    # As on the switch: what is read there has been JSON.
    return json.loads(json.dumps(setup.plan_of(config.switch)))


def apply(bfrt: Any, made: dict[str, Any], said: list[str] | None = None) -> dict[str, int]:
    """Outcomes of carrying a plan out; its lines are appended to `said`."""
    found: dict[str, int] = setup.apply(bfrt, made, [].append if said is None else said.append)
    return found


def entries(leaf: Leaf) -> dict[tuple[Any, ...], tuple[str | None, dict[str, Any]]]:
    return {tuple(v for _, v in key): (e.action, {n.decode(): v for n, v in e.data.items()}) for key, e in leaf.entries.items()}


def test_a_switch_is_set_up() -> None:
    bfrt = switch()
    said: list[str] = []
    assert apply(bfrt, plan(), said)["failed"] == 0
    assert said[-1] == "25 steps: 22 added, 1 changed, 2 unchanged", said
    ports = entries(bfrt.port.port)
    assert set(ports) == {(132,), (141,), (140,)}
    assert ports[132,][1] == {"$SPEED": "BF_SPEED_100G", "$FEC": "BF_FEC_TYP_REED_SOLOMON", "$AUTO_NEGOTIATION": "PM_AN_DEFAULT", "$PORT_ENABLE": True}
    assert ports[141,][1]["$SPEED"] == "BF_SPEED_25G" and ports[141,][1]["$AUTO_NEGOTIATION"] == "PM_AN_FORCE_DISABLE" and ports[140,][1]["$PORT_ENABLE"] is False
    pipe = bfrt.relay.pipe
    assert entries(pipe.Egress.nexthop) == {
        (1,): ("Egress.send", {"src_mac": 0x020000000200, "dst_mac": 0x02AA00000001}),
        (2,): ("Egress.send_tagged", {"src_mac": 0x020000000100, "dst_mac": 0x02AA00000002, "vlan": 100}),
    }
    assert entries(pipe.Ingress.route) == {
        ((0xC6120001, 32),): ("Ingress.forward", {"port": 141, "nexthop": 1}),
        ((0, 0),): ("Ingress.forward", {"port": 132, "nexthop": 2}),
        ((0x0A090909, 32),): ("Ingress.to_cpu", {"port": 192}),
        ((0xC0000200, 24),): ("Ingress.discard", {}),
    }
    assert entries(pipe.Egress.mtu) == {(1, (mtu + 1, 65535), port): ("Egress.too_big", {}) for port, mtu in ((132, 9000), (141, 1500), (140, 1500))}
    assert entries(pipe.Ingress.route6) == {((0xFD91 << 112, 64),): ("Ingress.forward6", {"port": 141, "nexthop": 1})}
    assert pipe.Ingress.punt.default.action == "Ingress.to_cpu" and pipe.Ingress.punt.default.data == {b"port": 192}
    assert pipe.Ingress.route.default.action == "Ingress.discard"
    frames = {(mac, ingress): (priority, action, data) for (priority, mac, ingress), (action, data) in entries(pipe.Ingress.layer2).items()}
    every = (1 << 48) - 1
    assert frames[(0x020000000100, every), (132, 0x1FF)] == (10, "Ingress.route_frame", {})
    assert frames[(0x02AA00000001, every), (192, 0x1FF)] == (10, "Ingress.bridge_to", {"port": 141})
    # Group addresses have the lowest bit of their first byte set (IEEE 802).
    assert frames[(1 << 40, 1 << 40), (192, 0x1FF)] == (20, "Ingress.bridge_to_group", {"group": setup.FLOOD_GROUP})
    assert len(frames) == 3 + 2 + 1
    assert entries(bfrt.pre.node)[setup.FLOOD_NODE,][1]["$DEV_PORT"] == [132, 141, 140]
    assert entries(bfrt.pre.mgid)[setup.FLOOD_GROUP,][1]["$MULTICAST_NODE_ID"] == [setup.FLOOD_NODE]
    session = {"$session_enable": True, "$direction": "INGRESS", "$ucast_egress_port": 192, "$ucast_egress_port_valid": True, "$max_pkt_len": 16384}
    assert entries(bfrt.mirror.cfg) == {(1,): ("$normal", session)}
    assert re.search(rf"#define AGENT_SESSION {setup.AGENT_SESSION}\n", (ROOT / "p4" / "include" / "conference_config.p4").read_text())


def test_the_second_time_nothing_changes() -> None:
    bfrt = switch()
    apply(bfrt, plan())
    leaves = [bfrt.port.port, bfrt.relay.pipe.Ingress.route, bfrt.relay.pipe.Ingress.layer2, bfrt.relay.pipe.Egress.nexthop, bfrt.relay.pipe.Egress.mtu, bfrt.pre.node]
    for leaf in leaves:
        leaf.calls.clear()
    said: list[str] = []
    assert apply(bfrt, plan(), said)["failed"] == 0
    assert len(said) == 1 and "unchanged" in said[0] and "added" not in said[0] and "changed," not in said[0]
    assert {call for leaf in leaves for call in leaf.calls} == {"get", "get_default"}


def test_what_differs_is_changed() -> None:
    bfrt = switch()
    apply(bfrt, plan())
    said: list[str] = []
    assert apply(bfrt, plan(CONFIG.replace("speed: 25G, ", "").replace("vlan: 100", "vlan: 200").replace("9.9/32, to: cpu", "9.9/32, to: relay")), said)["failed"] == 0
    assert [line.split()[0] for line in said[:-1]] == ["changed"] * 3, said
    assert entries(bfrt.port.port)[141,][1]["$SPEED"] == "BF_SPEED_100G"
    assert entries(bfrt.relay.pipe.Egress.nexthop)[2,][1]["vlan"] == 200
    assert entries(bfrt.relay.pipe.Ingress.route)[((0x0A090909, 32),)] == ("Ingress.forward", {"port": 141, "nexthop": 1})


@pytest.mark.parametrize("mtu", [1400, 9100])
def test_a_port_has_one_mtu(mtu: int) -> None:
    bfrt = switch()
    apply(bfrt, plan())
    said: list[str] = []
    assert apply(bfrt, plan(CONFIG.replace("mtu: 9000", f"mtu: {mtu}")), said)["failed"] == 0
    assert len(said) == 2 and said[0].startswith("changed") and said[0].endswith(f"# packets of more than {mtu} bytes do not leave by port 1/0")
    assert {(port, first) for _, (first, _), port in entries(bfrt.relay.pipe.Egress.mtu)} == {(132, mtu + 1), (141, 1501), (140, 1501)}


def test_what_a_table_refuses_is_told_and_the_rest_is_done() -> None:
    bfrt = switch()
    bfrt.relay.pipe.Ingress.route.table["size"] = 2
    said: list[str] = []
    assert apply(bfrt, plan(), said)["failed"] == 2
    failed = [line for line in said if line.startswith("FAILED")]
    assert len(failed) == 2 and all("Ingress.route -> " in line and "No space" in line for line in failed)
    assert "Ingress.route -> to_cpu(hdr.ipv4.dst_addr=0xa090909/32): " in failed[0] and failed[0].endswith("# 10.9.9.9/32: cpu")
    assert len(entries(bfrt.relay.pipe.Ingress.route6)) == 1 and "2 failed" in said[-1]


STEPS = plan()["steps"]


@pytest.mark.parametrize("which", range(len(STEPS)), ids=[step["why"] for step in STEPS])
def test_any_step_may_be_refused(which: int) -> None:
    """Each step in turn: its table, key and reason are reported, and every other step is carried out."""
    step, bfrt, said = STEPS[which], switch(), list[str]()
    others = setup.Tables(bfrt)
    leaf = others.leaf(step["table"])
    key = None if step["key"] is None else setup.arguments(leaf.get, others.key_of(step))
    leaf.refuse = lambda verb, asked, data: "Hardware comms failed" if _is(key, asked) and verb in ("add", "mod", "set_default") else ""
    leaf.default = Entry({}, {}, None)
    outcomes = apply(bfrt, plan(), said)
    refused = [line for line in said if line.startswith("FAILED")]
    assert len(refused) == outcomes["failed"] == 1, refused
    assert step["table"] in refused[0] and "Hardware comms failed" in refused[0] and refused[0].endswith(step["why"])
    assert outcomes["added"] + outcomes["changed"] + outcomes["unchanged"] == len(STEPS) - 1
    leaf.refuse = lambda *_: ""
    again = apply(bfrt, plan())
    assert again["failed"] == 0 and again["added"] + again["changed"] == 1


def _is(arguments: dict[str, Any] | None, asked: dict[str, Any]) -> bool:
    if arguments is None:
        return not asked
    flat = [part for value in asked.values() for part in (value if isinstance(value, list) else [value])]
    return sorted(map(str, arguments.values())) == sorted(map(str, flat))


def test_a_value_that_cannot_be_parsed_is_reported() -> None:
    """bfrt_python prints it, and returns as if it had written the row."""
    wrong = plan()
    wrong["steps"][-1]["key"] = {"hdr.ipv4.dst_addr": {"lpm": ["nonsense", 24]}}
    said: list[str] = []
    assert apply(switch(), wrong, said)["failed"] == 1
    assert any(line.startswith("FAILED") and "Can`t parse key" in line for line in said)


@pytest.mark.parametrize("lost", [False, True])
def test_a_port_whose_new_speed_is_refused_keeps_the_old_one(lost: bool) -> None:
    bfrt, said = switch(), list[str]()
    apply(bfrt, plan())
    before = entries(bfrt.port.port)[141,]
    bfrt.port.port.refuse = lambda verb, key, data: "Invalid arguments" if verb == "add" and (lost or data["$SPEED"] == "BF_SPEED_100G") else ""
    assert apply(bfrt, plan(CONFIG.replace("speed: 25G, ", "")), said)["failed"] == 1
    failed = next(line for line in said if line.startswith("FAILED"))
    assert ("THE PORT IS GONE" if lost else "has its former settings") in failed
    assert entries(bfrt.port.port).get((141,)) == (None if lost else before)


SMALLER = CONFIG.replace("    - {prefix: 10.9.9.9/32, to: cpu}\n", "").replace(
    '    - {prefix: 0.0.0.0/0, to: uplink}\n', "").replace('    - {name: uplink, port: "1/0", mac: "02:aa:00:00:00:02", vlan: 100}\n', "").replace(
    '    - {port: 140, mac: "02:00:00:00:03:00", enabled: false}\n', "")  # fmt: skip


def rows(bfrt: Any) -> dict[str, Any]:
    tables = setup.Tables(bfrt)
    return {name: entries(tables.leaf(name)) for name in setup._OWNED}


def test_rows_that_the_configuration_no_longer_has() -> None:
    """Two routes, a next hop, its bridging, a port's MAC address and its MTU: listed, and removed only with prune."""
    bfrt, said = switch(), list[str]()
    apply(bfrt, plan())
    before = rows(bfrt)
    assert apply(bfrt, plan(SMALLER), said)["stale"] == 6
    listed = [line.split()[1] for line in said if line.startswith("stale")]
    assert listed == ["Ingress.route(hdr.ipv4.dst_addr=0/0)", "Ingress.route(hdr.ipv4.dst_addr=0xa090909/32)", *listed[2:]], listed
    assert [name.partition("(")[0] for name in listed[2:]] == ["Ingress.layer2"] * 2 + ["Egress.nexthop", "Egress.mtu"]
    assert rows(bfrt) == before
    said.clear()
    assert apply(bfrt, {**plan(SMALLER), "prune": True}, said)["removed"] == 6
    fresh = switch()
    apply(fresh, plan(SMALLER))
    assert rows(bfrt) == rows(fresh)
    assert apply(bfrt, {**plan(SMALLER), "prune": True})["unchanged"] == len(plan(SMALLER)["steps"])


def test_a_removal_that_is_refused() -> None:
    bfrt, said = switch(), list[str]()
    apply(bfrt, plan())
    bfrt.relay.pipe.Ingress.route.refuse = lambda verb, key, data: "In use" if verb == "delete" else ""
    outcomes = apply(bfrt, {**plan(SMALLER), "prune": True}, said)
    assert (outcomes["failed"], outcomes["removed"]) == (2, 4)
    assert sum("In use" in line and "Ingress.route(" in line for line in said) == 2


def test_no_row_is_stale_while_a_ports_number_is_unknown() -> None:
    """The rows of that port cannot be told from rows of a removed one."""
    bfrt = switch()
    apply(bfrt, plan())
    bfrt.port.port_str_info.entries.clear()
    before = rows(bfrt)
    apply(bfrt, {**plan(), "prune": True})
    assert rows(bfrt) == before


@pytest.mark.parametrize(
    "text, expected", [(CONFIG, {}), (SMALLER, {"stale": 6, "to change": 1}), (CONFIG.replace("vlan: 100", "vlan: 7"), {"to change": 1}), (CONFIG.replace("mtu: 9000", "mtu: 1300"), {"to change": 1})]
)
def test_check_writes_nothing(text: str, expected: dict[str, int]) -> None:
    bfrt, empty = switch(), switch()
    apply(bfrt, plan())
    leaves = [setup.Tables(bfrt).leaf(step["table"]) for step in plan()["steps"]]
    for leaf in leaves:
        leaf.calls.clear()
    found = apply(bfrt, {**plan(text), "check": True, "prune": True})
    assert {name: count for name, count in found.items() if count and name != "unchanged"} == expected
    assert {call for leaf in leaves for call in leaf.calls} <= {"get", "get_default"}
    found = apply(empty, {**plan(), "check": True})
    assert (found["to add"], found["to change"], found["unchanged"]) == (22, 1, 2) and not any(rows(empty).values())


# Next hops with an address.

HOPS = """
switch:
  ports: [{port: 1, mac: "02:00:00:00:01:00"}, {port: 2, mac: "02:00:00:00:01:00"}]
  next_hops:
    - {name: first, port: 1, address: 10.1.0.1, backup: second}
    - {name: second, port: 2, address: 10.1.1.1, backup: third}
    - {name: third, port: 2, mac: "02:aa:00:00:00:03", vlan: 7}
    - {name: alone, port: 1, address: 10.1.0.9}
  routes:
    - {prefix: 0.0.0.0/0, to: first}
    - {prefix: 10.7.0.0/16, to: second}
    - {prefix: 10.8.0.0/16, to: alone}
"""
DEFAULT, SEVEN, EIGHT = (0, 0), (0x0A070000, 16), (0x0A080000, 16)
A, B, C, ALONE = "02:aa:00:00:00:01", "02:aa:00:00:00:02", "02:aa:00:00:00:03", "02:aa:00:00:00:09"


def neighbour(address: str, mac: str | None, state: str = "REACHABLE") -> dict[str, Any]:
    return {"dst": address, "dev": "bf_pci0", "state": [state]} | ({} if mac is None else {"lladdr": mac})


def neighbours(hops: Any, *listing: dict[str, Any]) -> dict[str, Any]:
    """The plan of HOPS as the runner hands it on after `ip neigh` listed this."""
    hops.take(list(listing))
    return json.loads(json.dumps({**plan(HOPS), "macs": hops.macs, "known": hops.known}))


def ways(bfrt: Any) -> dict[Any, Any]:
    return {key[0]: data.get("nexthop") for key, (_, data) in entries(bfrt.relay.pipe.Ingress.route).items()}


def test_next_hops_are_resolved_and_fail_over() -> None:
    bfrt, hops = switch(), setup.Hops(plan(HOPS)["hops"])
    first, second, alone = neighbour("10.1.0.1", A), neighbour("10.1.1.1", B, "STALE"), neighbour("10.1.0.9", ALONE, "DELAY")
    # Before anything answers: the ports are set up, and routes with a static backup use it.
    found = apply(bfrt, neighbours(hops))
    assert found["unresolved"] == 7 and len(bfrt.port.port.entries) == 2
    assert ways(bfrt) == {DEFAULT: 3, SEVEN: 3}
    assert apply(bfrt, neighbours(hops, first, second, alone))["unresolved"] == 0
    assert ways(bfrt) == {DEFAULT: 1, SEVEN: 2, EIGHT: 4}
    macs = {number: data["dst_mac"] for (number,), (_, data) in entries(bfrt.relay.pipe.Egress.nexthop).items()}
    assert macs == {1: 0x02AA00000001, 2: 0x02AA00000002, 3: 0x02AA00000003, 4: 0x02AA00000009}
    # The first dies: its routes use the second. A route without a backup stays.
    apply(bfrt, neighbours(hops, neighbour("10.1.0.1", None, "FAILED"), second))
    assert ways(bfrt) == {DEFAULT: 2, SEVEN: 2, EIGHT: 4}
    # Both die, a neighbour that only lacks its link layer address among them.
    apply(bfrt, neighbours(hops, neighbour("10.1.1.1", None, "INCOMPLETE")))
    assert ways(bfrt) == {DEFAULT: 3, SEVEN: 3, EIGHT: 4}
    # Another device takes the first one's address over.
    apply(bfrt, neighbours(hops, neighbour("10.1.0.1", ALONE), second, alone))
    assert ways(bfrt) == {DEFAULT: 1, SEVEN: 2, EIGHT: 4}
    assert entries(bfrt.relay.pipe.Egress.nexthop)[1,][1]["dst_mac"] == 0x02AA00000009


def test_without_a_reachable_next_hop_a_route_stays_on_the_first_known_one() -> None:
    bfrt, text = switch(), HOPS.replace(", backup: third", "")
    hops = setup.Hops(plan(text)["hops"])
    hops.take([neighbour("10.1.0.1", A), neighbour("10.1.1.1", B)])
    apply(bfrt, {**plan(text), "macs": dict(hops.macs), "known": dict(hops.known)})
    hops.take([])
    apply(bfrt, {**plan(text), "macs": hops.macs, "known": hops.known})
    assert ways(bfrt) == {DEFAULT: 1, SEVEN: 2}


def test_two_uplinks_share_the_routes_and_stand_in_for_each_other() -> None:
    text = HOPS.replace("10.7.0.0/16", "128.0.0.0/1").replace("0.0.0.0/0", "0.0.0.0/1").replace("backup: third", "backup: first")
    bfrt, hops = switch(), setup.Hops(plan(text)["hops"])
    low, high, first, second = (0, 1), (1 << 31, 1), neighbour("10.1.0.1", A), neighbour("10.1.1.1", B)
    for listing, expected in (([first, second], {low: 1, high: 2}), ([second], {low: 2, high: 2}), ([first], {low: 1, high: 1}), ([], {low: 1, high: 2})):
        hops.take(listing)
        apply(bfrt, {**plan(text), "macs": dict(hops.macs), "known": dict(hops.known)})
        assert {way: hop for way, hop in ways(bfrt).items() if way != EIGHT} == expected, listing


def test_the_kernel_probes_what_it_knows() -> None:
    hops = setup.Hops(plan(HOPS)["hops"])
    probes = hops.take([neighbour("10.1.0.1", A), neighbour("10.1.1.1", B, "PERMANENT"), neighbour("10.9.9.9", C)])
    assert probes == [["neigh", "change", "10.1.0.1", "lladdr", A, "dev", "bf_pci0", "nud", "probe"]]


@pytest.mark.netns
def test_a_dead_neighbour_is_found_in_the_kernels_table() -> None:
    """A real kernel: the far end of a veth pair answers ARP, and then no longer."""
    if subprocess.run(["ip", "netns", "add", "far"], capture_output=True).returncode:
        pytest.skip("needs root")
    try:
        for line in (
            "link add n0 address 02:aa:00:00:00:0f type veth peer name n1 netns far", "addr add 10.1.0.2/24 dev n0", "link set n0 up",
            "-n far link set n1 address 02:aa:00:00:00:01 up", "-n far addr add 10.1.0.1/24 dev n1",
        ):  # fmt: skip
            subprocess.run(["ip", *line.split()], check=True)
        hops = setup.Hops(plan(HOPS)["hops"])
        wait(lambda: hops.macs["first"] == A, hops)
        subprocess.run(["ip", "-n", "far", "link", "set", "n1", "arp", "off"], check=True)
        wait(lambda: hops.macs["first"] is None, hops)
        assert hops.known["first"] == A
        subprocess.run(["ip", "-n", "far", "link", "set", "n1", "arp", "on"], check=True)
        wait(lambda: hops.macs["first"] == A, hops)
    finally:
        subprocess.run(["ip", "netns", "del", "far"])
        subprocess.run(["ip", "link", "del", "n0"], capture_output=True)


def wait(condition: Callable[[], bool], hops: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, hops.macs
        hops.read()
        time.sleep(0.3)


@pytest.mark.parametrize(
    "change, message",
    [
        ((', mac: "02:aa:00:00:00:03"', ""), "neither mac nor address"),
        (("backup: second", "backup: first"), "not another one"),
        (("backup: second", "backup: nobody"), "not another one"),
        (('mac: "02:aa:00:00:00:03"', 'mac: "02:aa:00:00:00:03", backup: first'), "has no address"),
        (("10.1.0.9", "10.1.0"), "10.1.0"),
    ],
)
def test_a_wrong_next_hop_says_where(change: tuple[str, str], message: str) -> None:
    assert HOPS.count(change[0]) == 1
    with pytest.raises(ConfigError) as caught:
        loads(HOPS.replace(*change))
    assert any(message in line and "switch.next_hops" in line for line in caught.value.lines()), caught.value.lines()


# On the switch, outside bf_switchd. The double of bfshell ends at the end of its input and needs an absolute path, as the published one does.

BFSHELL = """
import pickle, select, sys
assert sys.argv[1] == "-b" and sys.argv[2].startswith("/")
if select.select([sys.stdin], [], [], 0)[0]:
    sys.exit(0)  # end of input, before the script ran
open("bfshell_temp", "w").close()
print("bfrt_root> We've found 1 p4 programs for device 0:")
sys.path.insert(0, {root!r})
from tests.bfrt import test_bfshell
bfrt = test_bfshell.switch()
test_bfshell.{prepare}(bfrt)
exec(compile(open(sys.argv[2]).read(), sys.argv[2], "exec"), {{"__name__": "__main__", "bfrt": bfrt}})
"""


def as_it_is(bfrt: Any) -> None:
    """An empty switch."""


def set_up(bfrt: Any) -> None:
    apply(bfrt, plan())


def refusing(bfrt: Any) -> None:
    bfrt.relay.pipe.Ingress.route.refuse = lambda verb, key, data: "No space" if verb == "add" else ""


def in_bfshell(tmp_path: Path, prepare: str, *options: str, text: str = CONFIG) -> subprocess.CompletedProcess[str]:
    (tmp_path / "bfshell.py").write_text(BFSHELL.format(root=str(ROOT), prepare=prepare))
    (tmp_path / "switch.json").write_text(json.dumps(plan(text)))
    command = f"{sys.executable} {tmp_path / 'bfshell.py'}"
    return subprocess.run([sys.executable, SCRIPTS / "setup.py", "--execute", tmp_path / "switch.json", "--bfshell", command, *options], capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "prepare, options, text, status, line",
    [
        ("as_it_is", (), CONFIG, 0, "25 steps: 22 added, 1 changed, 2 unchanged"),
        ("set_up", (), CONFIG, 0, "25 steps: 25 unchanged"),
        ("refusing", (), CONFIG, 1, "25 steps: 18 added, 1 changed, 2 unchanged, 4 failed"),
        ("as_it_is", ("--check",), CONFIG, 1, "25 steps: 2 unchanged, 22 to add, 1 to change"),
        ("set_up", ("--check",), CONFIG, 0, "25 steps: 25 unchanged"),
        ("set_up", ("--check",), SMALLER, 1, "18 steps: 17 unchanged, 1 to change, 6 stale"),
        ("set_up", (), SMALLER, 0, "18 steps: 1 changed, 17 unchanged, 6 stale"),
        ("set_up", ("--prune",), SMALLER, 0, "18 steps: 1 changed, 6 removed, 17 unchanged"),
        ("as_it_is", (), HOPS, 1, "steps: "),
        ("no_such_thing", (), CONFIG, 2, "bfshell did not carry the plan out"),
    ],
)
def test_the_exit_status(tmp_path: Path, prepare: str, options: tuple[str, ...], text: str, status: int, line: str) -> None:
    done = in_bfshell(tmp_path, prepare, *options, text=text)
    assert done.returncode == status, done.stdout + done.stderr
    assert line in done.stdout.splitlines()[-1] and ("bfrt_root" in done.stdout) is (status == 2)


def test_without_bfshell_or_plan(tmp_path: Path) -> None:
    (tmp_path / "switch.json").write_text(json.dumps(plan()))
    for arguments, message in (([tmp_path / "switch.json", "--bfshell", "/nowhere/bfshell"], "No such file"), ([tmp_path / "none.json"], "no plan")):
        done = subprocess.run([sys.executable, "-I", "-S", SCRIPTS / "setup.py", "--execute", *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and message in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_following_the_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run at the start, after each change, 6 s after bfshell did not answer, and 30 s after a refused step."""
    hops = setup.Hops(plan(HOPS)["hops"])
    states: list[str | None] = [None] * 4 + [A] * 14 + [B] * 3
    statuses, runs, ready = iter([2, 1, 1, 0, 0]), list[Any](), list[int]()

    def read() -> None:
        if not states:
            raise EOFError
        hops.macs["first"] = hops.known["first"] = states.pop(0)

    def run(made: dict[str, Any]) -> int:
        runs.append((len(states), made["macs"]["first"]))
        return next(statuses)

    monkeypatch.setattr(hops, "read", read)
    monkeypatch.setattr(setup, "_ready", lambda: ready.append(len(runs)))
    with pytest.raises(EOFError):
        setup.follow(plan(HOPS), hops, run, lambda seconds: None)
    assert runs == [(20, None), (18, None), (16, A), (6, A), (2, B)] and ready == [2, 3, 4, 5]


def test_a_port_that_the_switch_does_not_have() -> None:
    said: list[str] = []
    assert apply(switch(), plan(CONFIG.replace('"2/1"', '"33/0"')), said)["failed"] > 0
    assert any("there is no port 33/0" in line for line in said)


def test_another_program() -> None:
    config = loads(CONFIG)
    said: list[str] = []
    wrong = setup.plan_of(config.switch, "switch")
    assert apply(switch(), wrong, said)["failed"] > 0
    assert any("is program 'switch' loaded" in line for line in said)


def test_names_depend_on_the_method() -> None:
    """As the double has them, and as the script finds them."""
    names = short_names([["hdr.ipv4.src_addr", "hdr.udp.dst_port"], ["src_addr", "port"]])
    assert names == [{"hdr.ipv4.src_addr": "ipv4_src_addr", "hdr.udp.dst_port": "udp_dst_port"}, {"src_addr": "src_addr", "port": "port"}]
    relay = switch().relay.pipe.Ingress.relay
    key = {"hdr.ipv4.src_addr": 1, "hdr.ipv4.dst_addr": 2, "hdr.udp.src_port": 3, "hdr.udp.dst_port": 4}
    data = {"src_addr": 5, "dst_addr": 6, "src_port": 7, "dst_port": 8, "$ENTRY_TTL": 9}
    assert setup.arguments(relay.get, key) == {"src_addr": 1, "dst_addr": 2, "src_port": 3, "dst_port": 4}
    found = setup.arguments(relay.add_with_relay_to_from, key, data)
    assert found == {
        "ipv4_src_addr": 1, "ipv4_dst_addr": 2, "udp_src_port": 3, "udp_dst_port": 4, "src_addr": 5, "dst_addr": 6, "src_port": 7, "dst_port": 8, "ENTRY_TTL": 9,
    }  # fmt: skip
    with pytest.raises(TypeError):
        relay.add_with_relay_to_from(hdr_ipv4_src_addr=1)
    with pytest.raises(setup.SetupError, match="takes no vlan; it takes"):
        setup.arguments(relay.get, {"vlan": 1})


def test_the_p4_program_has_what_the_plan_names() -> None:
    """Tables, actions and parameters, as the P4 sources write them."""
    sources = "\n".join(path.read_text() for path in sorted((ROOT / "p4" / "include").glob("*.p4")))
    actions = {name: re.findall(r"bit<\d+> (\w+)", parameters) for name, parameters in re.findall(r"action (\w+)\(([^)]*)\)", sources)}
    for step in plan()["steps"]:
        if step["table"].startswith("$"):
            continue
        assert f'@name(".{step["table"]}")' in sources, step["table"]
        assert step["action"] in actions and set(step["data"]) <= set(actions[step["action"]]), step
        for name in step["key"] or ():
            assert name.startswith("$") or name in sources, name
    for name in readout.TABLES:
        assert f'@name(".{name}")' in sources, name


def test_dry_mode(tmp_path: Path) -> None:
    (tmp_path / "shunt.yaml").write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, SCRIPTS / "setup.py", tmp_path / "shunt.yaml", "--plan", tmp_path / "switch.json"], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "operator")}
    )
    assert done.returncode == 0, done.stderr
    assert "Ingress.route -> forward(hdr.ipv4.dst_addr=0xc6120001/32, port=port 2/1, nexthop=1)   # 198.18.0.1/32: relay" in done.stdout
    assert json.loads((tmp_path / "switch.json").read_text()) == plan()
    (tmp_path / "shunt.yaml").write_text(CONFIG.replace("to: relay}", "to: rely}", 1))
    done = subprocess.run([sys.executable, SCRIPTS / "setup.py", tmp_path / "shunt.yaml"], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "operator")})
    assert done.returncode == 1 and "switch.routes.0.to: there is no next hop 'rely'; known here: relay, uplink, cpu, discard" in done.stderr
    assert "shunt.yaml:12:" in done.stderr


def test_dry_mode_without_the_agents_packages_says_what_to_use() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", str(ROOT / "p4" / "bfrt_python" / "setup.py"), "shunt.yaml"], capture_output=True, text=True)
    assert done.returncode == 1 and "build/venv/bin/python" in done.stderr and "Traceback" not in done.stderr


def run_in_bfshell(name: str, bfrt: Node, **more: Any) -> dict[str, Any]:
    """What bfshell -b does: the script's text, with `bfrt` among its globals."""
    scope: dict[str, Any] = {"__name__": "__main__", "bfrt": bfrt, **more}
    exec(compile((SCRIPTS / f"{name}.py").read_text(), f"{name}.py", "exec"), scope)
    return scope


def test_as_bfshell_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "switch.json"
    monkeypatch.setenv("SHUNT_SWITCH_PLAN", str(path))
    bfrt = switch()
    run_in_bfshell("setup", bfrt)
    assert "no plan" in capsys.readouterr().out and not bfrt.port.port.entries
    path.write_text(json.dumps(plan()))
    run_in_bfshell("setup", bfrt)
    assert "failed" not in capsys.readouterr().out and len(bfrt.port.port.entries) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('port: "1/0", mac: "02:00', 'port: "1/9", mac: "02:00'), "neither a front-panel port"),
        (('mac: "02:00:00:00:01:00"', 'mac: "01:00:00:00:01:00"'), "not the address of one interface"),
        (('mac: "02:00:00:00:01:00"', "mac: 2"), "not a MAC address"),
        (("port: 140", 'port: "1/0"'), "listed twice"),
        (("port: 140", "port: 192"), "is the CPU port"),
        (("name: uplink", "name: relay"), "is already the name of switch.next_hops.0"),
        (("name: uplink", "name: cpu"), "is reserved in routes"),
        (('port: "1/0", mac: "02:aa', 'port: "7/0", mac: "02:aa'), "not one of switch.ports"),
        (("02:aa:00:00:00:02", "02:aa:00:00:00:01"), "could not be distinguished"),
        (("0.0.0.0/0", "198.18.0.1/32"), "routed by switch.routes.0"),
        (("vlan: 100", "vlan: 4095"), "less than or equal to 4094"),
        (("speed: 25G", "speed: 30G"), "'25G'"),
        (("mtu: 9000", "mtu: 576"), "greater than or equal to 1280"),
        (("cpu_port: 192", "cpu_prt: 192"), "did you mean cpu_port"),
    ],
)
def test_a_wrong_configuration_says_where(change: tuple[str, str], message: str) -> None:
    assert CONFIG.count(change[0]) == 1
    with pytest.raises(ConfigError) as caught:
        loads(CONFIG.replace(*change))
    assert any(message in line and "switch" in line for line in caught.value.lines()), caught.value.lines()


# Reading out.


def with_a_call() -> Any:
    """Two calls: audio of the first with RTCP, the second bridged between two relay addresses; and one over IPv6."""
    bfrt = switch()
    four, six = bfrt.relay.pipe.Ingress.relay, bfrt.relay.pipe.Ingress.relay6
    relay, inner = 0xC6120001, 0xC6120002
    caller, callee = 0xC6120102, 0xC6120202
    for up in (0, 1):
        four.add_with_relay_to(ipv4_src_addr=caller, ipv4_dst_addr=relay, udp_src_port=6000 + up, udp_dst_port=35002 + up, dst_addr=callee, dst_port=7000 + up, src_port=35000 + up)
        four.add_with_relay_to(ipv4_src_addr=callee, ipv4_dst_addr=relay, udp_src_port=7000 + up, udp_dst_port=35000 + up, dst_addr=caller, dst_port=6000 + up, src_port=35002 + up)
    four.add_with_relay_to_from(
        ipv4_src_addr=caller, ipv4_dst_addr=relay, udp_src_port=6100, udp_dst_port=36002, src_addr=inner, dst_addr=callee, src_port=36000, dst_port=7100, COUNTER_SPEC_PKTS=5, COUNTER_SPEC_BYTES=860
    )
    four.add_with_relay_to_from(
        ipv4_src_addr=callee, ipv4_dst_addr=inner, udp_src_port=7100, udp_dst_port=36000, src_addr=relay, dst_addr=caller, src_port=36002, dst_port=6100, COUNTER_SPEC_PKTS=7, COUNTER_SPEC_BYTES=1204
    )
    six.add_with_relay6_to(ipv6_src_addr=1, ipv6_dst_addr=2, udp_src_port=6000, udp_dst_port=40002, dst_addr=3, dst_port=7000, src_port=40000)
    return bfrt


def test_occupancy_and_counters() -> None:
    snapshot = json.loads(json.dumps(readout.read(with_a_call())))
    lines = list(readout.occupancy_lines(snapshot))
    assert re.split(r"\s+", lines[1]) == ["Ingress.relay", "6", "1000", "0.6%"]
    assert any(line.startswith("Ingress.route6") for line in lines)
    counted = list(readout.counter_lines(snapshot))
    assert counted[0].split(maxsplit=1) == ["Ingress.relay", "12 packets, 2064 bytes on 2 entries"]
    assert "packets 7, bytes 1204" in counted[1]


def test_dropped_packets_by_reason() -> None:
    bfrt = switch()
    for table, rows in (("Ingress", {0: 0, 1: 4, 2: 0, 3: 2, 4: 0}), ("Egress", {0: 0, 1: 0, 3: 9})):
        for row, packets in rows.items():
            getattr(bfrt.relay.pipe, table).dropped.add(COUNTER_INDEX=row, COUNTER_SPEC_PKTS=packets)
    snapshot = json.loads(json.dumps(readout.read(bfrt)))
    assert [line.split(maxsplit=2)[1:] for line in readout.drop_lines(snapshot)] == [
        ["not_addressed", "4 packets"], ["not_ip", "0 packets"], ["unrouted", "2 packets"], ["unknown_nexthop", "0 packets"], ["too_big", "9 packets"],
    ]  # fmt: skip
    assert not any("dropped" in line for line in (*readout.occupancy_lines(snapshot), *readout.counter_lines(snapshot)))
    assert list(readout.drop_lines(readout.read(switch()))) == []


def test_the_reasons_are_those_of_the_program() -> None:
    text = (ROOT / "p4" / "include" / "config.p4").read_text()
    rows = re.findall(r"#define (\w+) (\d)\b", text[text.index("Why a packet was dropped") : text.index("Kinds of learn notices")])
    assert [(name.lower(), int(row)) for name, row in rows] == [(name, row) for reasons in readout.DROPS.values() for row, name in reasons.items()]


def test_a_calls_entries() -> None:
    snapshot = readout.read(with_a_call())
    first = list(readout.call_lines(snapshot, "198.18.0.1:35000"))
    assert len(first) == 4 and list(readout.call_lines(snapshot, "198.18.0.1:35003")) != []
    assert "198.18.1.2:6000 > 198.18.0.1:35002  leaves as  198.18.0.1:35000 > 198.18.2.2:7000" in first
    assert set(readout.call_lines(snapshot, "198.18.0.1:35003")) == set(first)
    bridged = list(readout.call_lines(snapshot, "198.18.0.2:36000"))
    assert len(bridged) == 2 and any("198.18.0.2:36000 > 198.18.2.2:7100" in line for line in bridged)
    assert list(readout.call_lines(snapshot, "[::2]:40002")) == ["[::1]:6000 > [::2]:40002  leaves as  [::2]:40000 > [::3]:7000"]
    assert "no entry" in next(readout.call_lines(snapshot, "198.18.0.1:50000"))
    with pytest.raises(readout.ReadoutError, match="not ADDRESS:PORT"):
        list(readout.call_lines(snapshot, "relay"))


def test_readout_in_bfshell_and_dry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "snapshot.json"
    monkeypatch.setenv("SHUNT_SNAPSHOT", str(saved))
    monkeypatch.setenv("SHUNT_CALL", "198.18.0.1:35000")
    scope = run_in_bfshell("readout", with_a_call())
    shown = capsys.readouterr().out
    assert "Ingress.relay" in shown and shown.count("leaves as") >= 4
    scope["call"]("198.18.0.2:36000")
    assert capsys.readouterr().out.count("leaves as") == 2
    scope["occupancy"]()
    scope["counters"]()
    assert "12 packets" in capsys.readouterr().out
    done = subprocess.run([sys.executable, SCRIPTS / "readout.py", saved, "--call", "198.18.0.1:35000"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == shown
    done = subprocess.run([sys.executable, SCRIPTS / "readout.py", saved, "--call", "x"], capture_output=True, text=True)
    assert done.returncode == 1 and "not ADDRESS:PORT" in done.stderr
    run_in_bfshell("readout", tree("other"))
    assert "no table of program 'relay'" in capsys.readouterr().out
