"""The flows and attacks of tests/e2e, with rtpengine and each SIP server."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e import test_access, test_flows
from tests.e2e.calls import Lab, place
from tests.lab.processes import CONFIGS, Edge, opensips_modules
from tests.lab.topology import Topology
from tests.lab.needs import need

pytestmark = [pytest.mark.e2e, pytest.mark.netns]

# What pytest finds here is run with the fixtures of this folder.
globals().update({name: test for module in (test_access, test_flows) for name, test in vars(module).items() if name.startswith("test_")})


def test_rtpengine_alone_serves_the_configuration(parts: tuple[str, str], tmp_path: Path) -> None:
    """Without an agent in the configuration: what benches compare with."""
    with Topology("ng") as topology, Edge(topology, tmp_path, *parts, direct=True) as edge:
        outcome = place(Lab(topology, edge, tmp_path), "uac_reinvite_port", "uas_answer")
        assert outcome.call.how == "BYE by caller" and len(outcome.packets.directions) == 2
        assert outcome.packets.lost == 0 and outcome.packets.offloaded == 0
        assert edge.relay_sessions() == 0


@pytest.mark.parametrize("name", ["kamailio", "kamailio-rtpengine", "opensips", "opensips-rtpengine"])
def test_shipped_configurations_are_valid(name: str, tmp_path: Path) -> None:
    """With all options on; addresses and module folder are this machine's."""
    server = name.partition("-")[0]
    need(server, root=False)
    text = (CONFIGS / f"{name}.cfg").read_text().replace("203.0.113.10", "127.0.0.1").replace("2001:db8::10", "::1").replace("change-this-secret", "another secret")
    for option in ("AUTH", "CONFERENCES", "OTHER_AGENT"):
        text = text.replace(f"#{option}#", "").replace(f"##!define WITH_{option}", f"#!define WITH_{option}")
    if server == "opensips":
        text = text.replace("/usr/lib/x86_64-linux-gnu/opensips/modules/", f"{opensips_modules()}/")
    path = tmp_path / f"{name}.cfg"
    path.write_text(text)
    checked = subprocess.run([server, "-c" if server == "kamailio" else "-C", "-f", str(path)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
