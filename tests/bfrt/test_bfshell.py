"""The scripts for bfshell against a double of its tables: set-up from the YAML configuration, and reading a switch out."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shunt.config.load import ConfigError, loads
from tests.bfrt.fake_bfshell import Leaf, Node, short_names, tree
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


def entries(leaf: Leaf) -> dict[tuple[Any, ...], tuple[str | None, dict[str, Any]]]:
    return {tuple(v for _, v in key): (e.action, {n.decode(): v for n, v in e.data.items()}) for key, e in leaf.entries.items()}


def test_a_switch_is_set_up() -> None:
    bfrt = switch()
    said: list[str] = []
    assert setup.apply(bfrt, plan(), said.append) == 0
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
    setup.apply(bfrt, plan(), lambda line: None)
    leaves = [bfrt.port.port, bfrt.relay.pipe.Ingress.route, bfrt.relay.pipe.Ingress.layer2, bfrt.relay.pipe.Egress.nexthop, bfrt.relay.pipe.Egress.mtu, bfrt.pre.node]
    for leaf in leaves:
        leaf.calls.clear()
    said: list[str] = []
    assert setup.apply(bfrt, plan(), said.append) == 0
    assert len(said) == 1 and "unchanged" in said[0] and "added" not in said[0] and "changed," not in said[0]
    assert {call for leaf in leaves for call in leaf.calls} == {"get", "get_default"}


def test_what_differs_is_changed() -> None:
    bfrt = switch()
    setup.apply(bfrt, plan(), lambda line: None)
    said: list[str] = []
    assert setup.apply(bfrt, plan(CONFIG.replace("speed: 25G, ", "").replace("vlan: 100", "vlan: 200").replace("9.9/32, to: cpu", "9.9/32, to: relay")), said.append) == 0
    assert [line.split()[0] for line in said[:-1]] == ["added", "changed", "changed"], said
    assert entries(bfrt.port.port)[141,][1]["$SPEED"] == "BF_SPEED_100G"
    assert entries(bfrt.relay.pipe.Egress.nexthop)[2,][1]["vlan"] == 200
    assert entries(bfrt.relay.pipe.Ingress.route)[((0x0A090909, 32),)] == ("Ingress.forward", {"port": 141, "nexthop": 1})


@pytest.mark.parametrize("mtu", [1400, 9100])
def test_a_port_has_one_mtu(mtu: int) -> None:
    bfrt = switch()
    setup.apply(bfrt, plan(), lambda line: None)
    said: list[str] = []
    assert setup.apply(bfrt, plan(CONFIG.replace("mtu: 9000", f"mtu: {mtu}")), said.append) == 0
    assert said[:-1] == [f"changed   packets of more than {mtu} bytes do not leave by port 1/0"]
    assert {(port, first) for _, (first, _), port in entries(bfrt.relay.pipe.Egress.mtu)} == {(132, mtu + 1), (141, 1501), (140, 1501)}


def test_what_a_table_refuses_is_told_and_the_rest_is_done() -> None:
    """bfrt_python prints a table's error and returns as if all were well."""
    bfrt = switch()
    bfrt.relay.pipe.Ingress.route.table["size"] = 2
    said: list[str] = []
    assert setup.apply(bfrt, plan(), said.append) == 2
    failed = [line for line in said if line.startswith("FAILED")]
    assert len(failed) == 2 and all("Ingress.route" in line and "No space" in line for line in failed)
    assert len(entries(bfrt.relay.pipe.Ingress.route6)) == 1 and "2 failed" in said[-1]


def test_a_port_that_the_switch_does_not_have() -> None:
    said: list[str] = []
    assert setup.apply(switch(), plan(CONFIG.replace('"2/1"', '"33/0"')), said.append) > 0
    assert any("there is no port 33/0" in line for line in said)


def test_another_program() -> None:
    config = loads(CONFIG)
    said: list[str] = []
    wrong = setup.plan_of(config.switch, "switch")
    assert setup.apply(switch(), wrong, said.append) > 0
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
