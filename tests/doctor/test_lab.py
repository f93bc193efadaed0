"""`shunt doctor` beside real daemons and relays in a network namespace: when all is well, and with one thing broken after the other."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.processes import ROOT, Edge, open_socket
from tests.lab.topology import BPF, EDGE_INTERFACES, EDGE_IP, Topology, run
from tests.lab.needs import need

NEEDED = ("nft", "ethtool", "nsenter", "kamailio")
pytestmark = pytest.mark.netns
Checks = dict[str, dict[str, str]]


class Host:
    """The edge host with softswitch, relay, agent and operator daemon; no SIP server runs."""

    def __init__(self, edge: Edge, work: Path) -> None:
        self.edge, self.work = edge, work

    def doctor(self, *options: str, **sections: Any) -> subprocess.CompletedProcess[str]:
        """Run it with the daemons' configuration; sections replace those of the file."""
        config = yaml.safe_load(self.edge.config.read_text()) | sections
        file = self.work / "asked.yaml"
        file.write_text(yaml.safe_dump(config))
        command = self.edge.topology.enter("edge", sys.executable, "-m", "shunt.cli.main", "doctor", "-c", str(file), *options)
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "operator")}, check=False, timeout=180)

    def checks(self, code: int, **sections: Any) -> Checks:
        """Its findings by what was looked at."""
        done = self.doctor("--json", **sections)
        assert done.returncode == code, done.stdout + done.stderr
        return {check["subject"]: check for check in json.loads(done.stdout)["checks"]}

    def section(self, name: str) -> Any:
        """A copy of a section of the daemons' configuration."""
        return copy.deepcopy(yaml.safe_load(self.edge.config.read_text())[name])


def failures(checks: Checks) -> set[str]:
    return {subject for subject, check in checks.items() if check["verdict"] == "fail"}


@contextlib.contextmanager
def stopped(relay: str, work: Path) -> Iterator[Host]:
    """The host with nothing running yet."""
    need(*NEEDED, *([] if relay == "builtin" else [relay]))
    with Topology("doctor") as topology:
        edge = Edge(topology, work, "kamailio", relay)
        edge.work.mkdir(parents=True, exist_ok=True)
        edge.write_config(edge.shunt_config())
        try:
            yield Host(edge, work)
        finally:
            edge.stop()


@contextlib.contextmanager
def started(relay: str, work: Path) -> Iterator[Host]:
    with stopped(relay, work) as host:
        host.edge.start_softswitch()
        host.edge.start_relay()
        host.edge.start_agent()
        host.edge.await_data_plane()
        yield host


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with started("builtin", tmp_path_factory.mktemp("doctor")) as made:
        yield made


def test_nothing_fails_where_everything_runs(host: Host) -> None:
    checks = host.checks(0)
    for name in EDGE_INTERFACES:
        assert checks[f"interface {name}"]["found"] == "up, veth, MTU 1500"
        assert checks[f"XDP on {name}"]["found"] == "native"
        assert checks[f"offloads of {name}"]["verdict"] == "ok"
    assert checks["BPF file system"]["verdict"] == "ok"
    edge = host.edge
    for subject, process, name in (
        ("control.listen.0 udp:127.0.0.1:22221", edge.agent, "shunt-agent"),
        (f"builtin_relay.listen.0 cunix:{edge.relay_socket}", edge.relay, "shunt-relay"),
        ("builtin_relay.listen.1 udp:127.0.0.1:22222", edge.relay, "shunt-relay"),
        ("hep.listen udp:127.0.0.1:9060", edge.agent, "shunt-agent"),
        ("api.listen tcp:127.0.0.1:8077", edge.operator, "shunt operator"),
        (f"softswitch.listen.0 unix:{edge.bfrt}", edge.softswitch, "shunt-softswitch"),
    ):
        assert checks[subject]["found"] == f"held by {name} (pid {process.pid})"
    assert checks[f"data plane unix:{edge.bfrt}"]["verdict"] == "ok"
    assert "S ttl=" in checks[f"relay builtin cunix:{edge.relay_socket}"]["found"]
    assert {checks[name]["found"] for name in ("shunt-agent", "shunt-relay", "shunt-softswitch", "running agent")} == {"version 0.2.0"}
    assert checks[f"journal.path {edge.work}"]["verdict"] == "ok"
    # The kernel's own choice of ports is from 32768 on, and nothing is reserved.
    assert checks[f"media ports {EDGE_IP}:35000-65000"]["advice"] == "sysctl -w net.ipv4.ip_local_reserved_ports=35000-65001"
    assert "base chain is" in checks["nftables"]["found"]


def test_people_get_one_line_for_each_check(host: Host) -> None:
    done = host.doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "Network interfaces" in lines
    assert "  ok       XDP on e-caller: native" in lines
    counts = [sum(line.startswith(f"  {verdict} ") for line in lines) for verdict in ("ok", "warn", "fail", "unknown")]
    assert lines[-1] == "{} ok, {} warn, {} fail, {} unknown".format(*counts) and counts[2] == 0
    assert "\x1b" not in done.stdout


def test_an_interface_that_is_missing_and_one_that_is_down(host: Host) -> None:
    softswitch = host.section("softswitch")
    softswitch["interfaces"].append("e-none")
    assert failures(host.checks(1, softswitch=softswitch)) == {"interface e-none"}
    host.edge.topology.run("edge", "ip", "link", "set", "e-nat", "down")
    try:
        down = host.checks(1)
        assert failures(down) == {"interface e-nat"} and down["interface e-nat"]["advice"] == "ip link set e-nat up"
    finally:
        host.edge.topology.run("edge", "ip", "link", "set", "e-nat", "up")


def test_the_program_of_another_softswitch(host: Host) -> None:
    checks = host.checks(1, softswitch=host.section("softswitch") | {"pin_dir": str(BPF / "another")})
    assert failures(checks) == {f"XDP on {name}" for name in EDGE_INTERFACES}
    assert checks["XDP on e-nat"]["advice"] == "detach it: ip link set e-nat xdp off"


def test_folders_that_cannot_be_written_to(host: Host) -> None:
    frozen = host.work / "frozen"
    frozen.mkdir()
    run("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(frozen))
    try:
        journal, records = {"path": str(frozen / "journal.sqlite")}, {"csv": str(host.work / "none" / "cdr.csv")}
        checks = host.checks(1, journal=journal, cdr=records, softswitch=host.section("softswitch") | {"pin_dir": str(host.work)})
    finally:
        run("umount", str(frozen))
    assert failures(checks) >= {f"journal.path {frozen}", f"cdr.csv {host.work}/none", "BPF file system"}
    assert checks[f"journal.path {frozen}"]["found"] == "the file system is read-only"


def test_ports_that_other_programs_have(host: Host) -> None:
    with open_socket(host.edge.topology, "edge", socket.AF_INET, socket.SOCK_DGRAM) as media, open_socket(host.edge.topology, "edge", socket.AF_INET, socket.SOCK_STREAM) as api:
        media.bind((EDGE_IP, 40000))
        api.bind(("127.0.0.1", 8078))
        api.listen()
        checks = host.checks(1, api={"listen": "127.0.0.1:8078"})
    assert failures(checks) == {"api.listen tcp:127.0.0.1:8078"}
    assert f"(pid {os.getpid()}), not by shunt operator" in checks["api.listen tcp:127.0.0.1:8078"]["found"]
    strange = checks[f"sockets in media ports {EDGE_IP}:35000-65000"]
    assert strange["verdict"] == "warn" and f"(pid {os.getpid()})" in strange["found"]


def test_what_is_away(host: Host) -> None:
    absent = host.work / "absent.sock"
    checks = host.checks(1, data_plane={"target": f"unix:{absent}"}, journal={"redis": "redis://127.0.0.1:6399/0"})
    assert failures(checks) == {f"data plane unix:{absent}", "Redis"}
    edge = host.edge
    edge.relay.kill()
    edge.agent.kill()
    try:
        wanted = {f"relay builtin cunix:{edge.relay_socket}", "agent-unreachable agent"}
        deadline = time.monotonic() + 60
        while failures(dead := host.checks(1)) != wanted and time.monotonic() < deadline:
            time.sleep(0.5)  # an agent counts as away once its answers have been missing for a while
        assert failures(dead) == wanted
        assert dead[f"relay builtin cunix:{edge.relay_socket}"]["found"] == "nothing listens there"
        assert dead["running agent"]["found"] == "none: no call is served"
        assert [check["verdict"] for subject, check in dead.items() if "xdp-missing" in subject] == ["unknown"], "nothing is well that only the agent knows"
        assert dead["control.listen.0 udp:127.0.0.1:22221"]["found"].startswith("free")
    finally:
        edge.start_relay()
        edge.start_agent()


@pytest.mark.parametrize(
    ("relay", "socket_text", "words"), [("rtpproxy", "udp:127.0.0.1:22222", "version 20040107; sessions are kept with"), ("rtpengine", "udp:127.0.0.1:2223", "rtpengine, answers ping with pong")]
)
def test_relays_of_others(relay: str, socket_text: str, words: str, tmp_path: Path) -> None:
    with started(relay, tmp_path) as host:
        checks = host.checks(0)
        assert checks[f"relay local {socket_text}"]["found"].startswith(words)
        host.edge.relay.signal(19)  # SIGSTOP: its socket is there, and nobody answers
        try:
            assert host.checks(1)[f"relay local {socket_text}"]["found"] == "no answer within 1 s"
        finally:
            host.edge.relay.signal(18)


@pytest.mark.parametrize("gro", ["on", "off"])
def test_the_xdp_mode_is_known_beforehand(gro: str, tmp_path: Path) -> None:
    """A veth whose peer has no GRO cannot transmit redirected frames, and makes the softswitch use generic XDP on all interfaces."""
    with stopped("builtin", tmp_path) as host:
        host.edge.topology.run("caller", "ethtool", "-K", "eth0", "gro", gro)
        before = host.checks(1)
        assert failures(before) == {f"data plane unix:{host.edge.bfrt}", f"relay builtin cunix:{host.edge.relay_socket}"}
        expected = {name: f"will be {'native' if gro == 'on' else 'generic'}" for name in EDGE_INTERFACES}
        assert {name: before[f"XDP on {name}"]["found"].partition(":")[0].partition(",")[0] for name in EDGE_INTERFACES} == expected
        host.edge.start_softswitch()
        host.edge.softswitch.await_log("READY")
        after = host.checks(1)
        assert {name: f"will be {after[f'XDP on {name}']['found'].partition(';')[0]}" for name in EDGE_INTERFACES} == expected
