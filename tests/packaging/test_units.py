"""The systemd units: what systemd says of them, and that they fit what the services do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from shunt.config.load import load
from shunt.config.model import Config, Journal
from shunt.privileges import BPF, NET_ADMIN, PERFMON, SYS_ADMIN
from tests.packaging import units

NUMBERS = {"CAP_NET_ADMIN": NET_ADMIN, "CAP_BPF": BPF, "CAP_PERFMON": PERFMON, "CAP_SYS_ADMIN": SYS_ADMIN}
# systemd's own rating of exposure, in tenths; an agent has no right at all, the softswitch needs four.
WORST = {"shunt-agent": 20, "shunt-standby": 20, "shunt-softswitch": 40}


@pytest.fixture
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("needs systemd-analyze (Debian: systemd)")
    return found


def test_systemd_finds_nothing_wrong(analyze: str, tmp_path: Path) -> None:
    program = tmp_path / "bin/shunt"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    made = units.write(tmp_path, str(tmp_path))
    assert len(made) == 3
    done = subprocess.run([analyze, "verify", "--man=no", *made], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "shunt" in line]
    assert said == [] and done.returncode == 0, done.stderr


@pytest.mark.parametrize("source", units.SOURCES, ids=lambda path: path.name)
def test_little_is_exposed(analyze: str, tmp_path: Path, source: Path) -> None:
    unit = next(path for path in units.write(tmp_path, "/usr") if path.name == source.name.removesuffix(".in"))
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", f"--threshold={WORST[unit.stem]}", unit], capture_output=True, text=True
    )
    assert done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if "✗" in line or "exposure" in line) + done.stderr


def test_rights_are_those_that_the_services_keep() -> None:
    found = {source.name.removesuffix(".service.in"): units.settings(source) for source in units.SOURCES}
    assert {NUMBERS[name] for name in found["shunt-softswitch"]["CapabilityBoundingSet"].split()} == {NET_ADMIN, BPF, PERFMON, SYS_ADMIN}
    for name in ("shunt-agent", "shunt-standby"):
        assert found[name]["CapabilityBoundingSet"] == "" and found[name]["User"] == "shunt"
        # Where the journal is by default has to be a folder that the service may write.
        assert Journal().path.startswith(f"/var/lib/{found[name]['StateDirectory']}/")
    assert found["shunt-agent"]["RuntimeDirectory"] != found["shunt-standby"]["RuntimeDirectory"], "it goes when one of them stops"


@pytest.mark.parametrize("source", units.SOURCES, ids=lambda path: path.name)
def test_services_come_back_for_ever_and_are_watched(source: Path) -> None:
    found = units.settings(source)
    assert (found["Type"], found["Restart"], found["StartLimitIntervalSec"]) == ("notify", "always", "0")
    assert 5 <= int(found["WatchdogSec"]) <= 60
    assert found["RestartSec"] == "200ms", "back within two seconds"


def test_the_example_configurations_are_valid_and_make_a_pair() -> None:
    first: Config = load(units.ROOT / "opensips-config/shunt.yaml")
    second: Config = load(units.ROOT / "packaging/standby.yaml")
    assert second.relays == first.relays and second.data_plane == first.data_plane
    assert second.journal is not None and second.journal.redis is not None
    assert second.control.listen != first.control.listen and second.api.listen != first.api.listen
