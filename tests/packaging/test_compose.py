"""The compose file: its services have the rights, folders and limits of the systemd units, and the images what it says of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging import units

ROOT = units.ROOT
OCI = ROOT / "packaging/oci"
DAEMONS = ("softswitch", "relay", "agent", "operator")
COMPOSE: dict[str, Any] = yaml.safe_load((OCI / "compose.yaml").read_text(encoding="utf-8"))


def _targets(name: str) -> dict[str, str]:
    """The text of each target of a Containerfile."""
    parts = re.split(r"^FROM \S+ AS (\w+)\n", (OCI / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _folders(service: dict[str, Any]) -> dict[str, str]:
    """What a service mounts, by its path in the container."""
    return {target: source for source, target in (re.sub(r"\$\{[^}]*\}", "VARIABLE", volume).split(":")[:2] for volume in service.get("volumes", []))}


@pytest.fixture
def unit(tmp_path: Path) -> dict[str, dict[str, str]]:
    return {path.stem.removeprefix("shunt-"): units.settings(path) for path in units.write(tmp_path, "/usr")}


@pytest.mark.parametrize("name", DAEMONS)
def test_rights_are_those_of_the_unit(unit: dict[str, dict[str, str]], name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["cap_drop"] == ["ALL"] and service["read_only"] and "no-new-privileges:true" in service["security_opt"]
    assert {f"CAP_{right}" for right in service.get("cap_add", [])} == set(unit[name]["CapabilityBoundingSet"].split())
    assert f"USER {unit[name].get('User', 'root')}:{unit[name]['Group']}\n" in _targets("Containerfile")[name]
    assert service.get("oom_score_adj", 0) == int(unit[name].get("OOMScoreAdjust", 0))


@pytest.mark.parametrize("name", DAEMONS)
def test_folders_and_limits_are_those_of_the_unit(unit: dict[str, dict[str, str]], name: str) -> None:
    service, folders = COMPOSE["services"][name], _folders(COMPOSE["services"][name])
    assert "/etc/shunt/shunt.yaml" in folders
    if "RuntimeDirectory" in unit[name]:
        # The same volume for all who use it.
        where = f"/run/{unit[name]['RuntimeDirectory']}"
        assert folders[where] in COMPOSE["volumes"]
        users = [_folders(COMPOSE["services"][other]).get(where) for other in DAEMONS]
        assert {user for user in users if user is not None} == {folders[where]}
        assert f"install -d -o {unit[name].get('User', 'root')} -g shunt" in _targets("Containerfile")["shunt"] and where in _targets("Containerfile")["shunt"]
    if name in ("agent", "operator"):
        assert folders["/var/lib/shunt"] == "state"
    assert ("/sys/fs/bpf" in folders) == (name == "softswitch")
    limits = service.get("ulimits", {})
    assert limits.get("nofile") == (int(unit[name]["LimitNOFILE"]) if "LimitNOFILE" in unit[name] else None)
    assert limits.get("memlock") == (-1 if unit[name].get("LimitMEMLOCK") == "infinity" else None)


def test_every_service_is_on_the_hosts_network_without_privileges() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["network_mode"] == "host", name
        assert service["restart"] == "unless-stopped", name
        assert "privileged" not in service, name


def test_every_image_has_a_target() -> None:
    targets = _targets("Containerfile") | _targets("Containerfile.peers")
    named = re.findall(r"localhost/shunt-(\w+)", (OCI / "compose.yaml").read_text(encoding="utf-8"))
    assert set(DAEMONS) <= set(named) <= set(targets)
    built = re.search(r"for daemon in ([\w ]+);", (OCI / "images.sh").read_text(encoding="utf-8"))
    assert built is not None and set(built[1].split()) == set(_targets("Containerfile")) - {"shunt"}


def test_each_sip_server_and_relay_has_a_profile_and_its_shipped_configuration() -> None:
    services = COMPOSE["services"]
    assert {service["profiles"][0]: name for name, service in services.items() if "profiles" in service} == {
        "builtin": "relay",
        "kamailio": "kamailio",
        "opensips": "opensips",
        "rtpengine": "rtpengine",
        "rtpproxy": "rtpproxy",
    }
    for name in re.findall(r":-(\w+\.cfg)\}", (OCI / "compose.yaml").read_text(encoding="utf-8")):
        assert (ROOT / "opensips-config" / name).is_file(), name
    # The relays' start lines are those of the documents.
    for name, words in (("rtpengine", services["rtpengine"]["command"]), ("rtpproxy", services["rtpproxy"]["entrypoint"])):
        text = (ROOT / f"opensips-config/{name}.md").read_text(encoding="utf-8")
        line = text[text.index(f"    {name} ") :].split("\n\n")[0].replace("\\\n", " ").split()
        assert [word for word in words if word not in line] == [], name
        assert [word for word in line if word not in words and word not in ("--config-file=none", "--table=-1", "-f", "-E", "--log-level=5", "rtpengine")] == [], name
