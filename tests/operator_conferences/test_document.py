"""What docs/start/conferences.md shows can be used as it is."""

from __future__ import annotations

from pathlib import Path

import yaml

from shunt.config.load import load
from tests.lab.processes import ROOT


CALLS = "relays: [{name: a, socket: 'udp:127.0.0.1:22222', media: [{address: 203.0.113.10, ports: '35000-36000'}]}]\ndata_plane: {}\n"


def test_the_documents_first_configuration_passes_the_check(tmp_path: Path) -> None:
    lines = (ROOT / "docs" / "start" / "conferences.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("    "))
    text = "\n".join(line[4:] for line in lines[first : next(number for number in range(first, len(lines)) if not lines[number].startswith("    "))])
    assert {"conference", "softswitch"} == set(yaml.safe_load(text))
    path = tmp_path / "shunt.yaml"
    path.write_text(CALLS + text)
    config = load(str(path))
    assert config.conference is not None and config.conference.sip == "udp:127.0.0.1:5070"
