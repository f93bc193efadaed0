"""The systemd units: what systemd says of them, and that they fit what the services do."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from shunt.config.edge import EDGE_SOCKET
from shunt.config.load import load
from shunt.config.model import RELAY_SOCKET, SOFTSWITCH_SOCKET, Admin, Config, Journal
from tests.packaging import units

# Those that run as the user shunt, with no right at all.
USERS = ("shunt-agent", "shunt-operator", "shunt-relay", "shunt-edge", "shunt-edge-local", "shunt-mixer", "shunt-standby", "shunt-standby-operator")
NETWORK = "shunt-edge-network"  # no daemon: commands of root that make a namespace
SWITCH = "shunt-switch"  # on the switch, a script
DAEMONS = [name for name in units.NAMES if name not in (f"{NETWORK}.service", f"{SWITCH}.service")]
# systemd's own rating of exposure, in tenths; the softswitch needs four capabilities.
WORST = dict.fromkeys(USERS, 20) | {"shunt-softswitch": 40}


@pytest.fixture
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("systemd-analyze is not installed")
    return found


def test_systemd_finds_nothing_wrong(analyze: str, tmp_path: Path) -> None:
    program = tmp_path / "bin/shunt"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    made = units.write(tmp_path, str(tmp_path))
    assert {path.stem for path in made} == {*WORST, NETWORK, SWITCH}
    # Its script and its bfshell are on the switch.
    done = subprocess.run([analyze, "verify", "--man=no", *made], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "shunt" in line]
    assert said == [] and done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", DAEMONS)
def test_little_is_exposed(analyze: str, tmp_path: Path, name: str) -> None:
    unit = next(path for path in units.write(tmp_path, "/usr") if path.name == name)
    done = subprocess.run([analyze, "security", "--offline=true", "--no-pager", f"--threshold={WORST[unit.stem]}", unit], capture_output=True, text=True)
    assert done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if "✗" in line or "exposure" in line) + done.stderr


def test_rights_are_those_that_the_services_keep(tmp_path: Path) -> None:
    found = {path.stem: units.settings(path) for path in units.write(tmp_path, "/usr")}
    assert set(found["shunt-softswitch"]["CapabilityBoundingSet"].split()) == {"CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN"}
    for name in USERS:
        assert found[name]["CapabilityBoundingSet"] == "" and found[name]["User"] == "shunt"
        # Where the journal is by default has to be a folder that the service may write.
        assert Journal().path.startswith(f"/var/lib/{found[name]['StateDirectory']}/")
    folders = [unit["RuntimeDirectory"] for name, unit in found.items() if "RuntimeDirectory" in unit and name != "shunt-edge-local"]
    assert len(folders) == len(set(folders)), "it goes when one of them stops"
    for path, name in (
        (Admin().socket, "shunt-agent"),
        (RELAY_SOCKET.removeprefix("cunix:"), "shunt-relay"),
        (EDGE_SOCKET, "shunt-edge"),
        (SOFTSWITCH_SOCKET.removeprefix("unix:"), "shunt-softswitch"),
    ):
        assert str(path).startswith(f"/run/{found[name]['RuntimeDirectory']}/")


def test_the_edge_in_a_namespace_is_the_edge_and_takes_its_place(tmp_path: Path) -> None:
    edge, local = (units.settings(next(path for path in units.write(tmp_path, "/usr") if path.stem == name)) for name in ("shunt-edge", "shunt-edge-local"))
    more = {"NetworkNamespacePath": "/run/netns/shunt-edge", "Requires": f"{NETWORK}.service", "Conflicts": "shunt-edge.service"}
    changed = {"Description": local["Description"], "After": f"{edge['After']} {NETWORK}.service"}
    assert local == edge | more | changed


def test_the_set_up_of_a_switch_runs_with_bf_switchd_and_before_the_agent(tmp_path: Path) -> None:
    found = units.settings(next(path for path in units.write(tmp_path, "/usr") if path.stem == SWITCH))
    assert found["After"] == found["PartOf"] == found["WantedBy"] == "bf_switchd.service" and found["Before"] == "shunt-agent.service"
    assert (found["Type"], found["Restart"], found["StartLimitIntervalSec"]) == ("notify", "always", "0")
    assert found["CapabilityBoundingSet"] == "CAP_NET_ADMIN" and " --follow " in found["ExecStart"]
    assert (units.ROOT / found["ExecStart"].split()[1].removeprefix("/usr/share/shunt/")).is_file()


@pytest.mark.parametrize("name", DAEMONS)
def test_services_come_back_for_ever_and_are_watched(tmp_path: Path, name: str) -> None:
    found = units.settings(next(path for path in units.write(tmp_path, "/usr") if path.name == name))
    assert (found["Type"], found["Restart"], found["StartLimitIntervalSec"]) == ("notify", "always", "0")
    assert 5 <= int(found["WatchdogSec"]) <= 60
    assert found["RestartSec"] == "200ms", "back within two seconds"


def test_the_example_configurations_are_valid_and_make_a_pair() -> None:
    first: Config = load(units.ROOT / "opensips-config/shunt.yaml")
    second: Config = load(units.ROOT / "packaging/standby.yaml")
    assert second.relays == first.relays and second.data_plane == first.data_plane
    assert second.journal is not None and second.journal.redis is not None
    assert second.control.listen != first.control.listen and second.api.listen != first.api.listen
    assert second.admin.socket != first.admin.socket and second.admin.events != first.admin.events and second.operator.state_dir != first.operator.state_dir


def test_logrotate_takes_the_records_of_the_example(tmp_path: Path) -> None:
    """Each file in the folder of the units' logs that the example configuration names."""
    text = (units.ROOT / "packaging/logrotate").read_text(encoding="utf-8")
    patterns = [word for line in text.splitlines() if line.startswith("/") for word in line.rstrip("{ ").split()]
    example = (units.ROOT / "opensips-config/shunt.yaml").read_text(encoding="utf-8")
    records = re.findall(r"(?:csv|json_lines): (\S+)", example)
    assert len(records) == 2 and all(any(fnmatch.fnmatch(path, pattern) for pattern in patterns) for path in records), (records, patterns)
    assert "nocreate" in text and "copytruncate" not in text, "the daemon makes its files, with its own mode"
    if (program := shutil.which("logrotate", path="/usr/sbin:/usr/bin")) is not None:
        (tmp_path / "rules").write_text(text.replace("    su shunt shunt\n", "").replace("/var/log/shunt", str(tmp_path)))
        done = subprocess.run([program, "--debug", "--state", tmp_path / "state", tmp_path / "rules"], capture_output=True, text=True)
        assert done.returncode == 0 and "error" not in done.stderr, done.stderr
