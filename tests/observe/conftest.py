"""A lab whose agent writes call records, logs events as JSON and reports to a capture server."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from shunt.export.hep import HepPacket
from tests.e2e.calls import Lab
from tests.e2e.conftest import parts
from tests.lab.processes import Edge, open_socket, work_folder
from tests.lab.topology import Topology
from tests.tools.hep import decode

HOMER_PORT = 9070


class WatchedEdge(Edge):
    """An edge with everything that operators look at switched on."""

    def shunt_config(self) -> dict:
        config = super().shunt_config()
        config["cdr"] = {"csv": str(self.work / "cdr.csv"), "json_lines": str(self.work / "cdr.jsonl")}
        config["homer"] = {"target": f"udp:127.0.0.1:{HOMER_PORT}", "capture_id": 7}
        config["history"] = {"log": True}
        config["log"] = {"level": "info", "format": "json"}
        return config


@dataclass
class Watched:
    """The lab, and what comes out of it besides media."""

    lab: Lab
    homer: socket.socket

    def record(self, call_id: str, seconds: float = 60.0) -> dict[str, Any]:
        """The call's record, once it is written. Raises AssertionError."""
        path, deadline = self.lab.edge.work / "cdr.jsonl", time.monotonic() + seconds
        while True:
            found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
            mine = [entry for entry in found if entry["call_id"].startswith(call_id)]
            if mine:
                assert len(mine) == 1, f"{len(mine)} records of one call"
                return mine[0]
            assert time.monotonic() < deadline, f"no record of {call_id} among {[entry['call_id'] for entry in found]}"
            time.sleep(0.05)

    def packets(self) -> list[HepPacket]:
        """What the capture server got since the last time."""
        found = []
        while True:
            try:
                found.append(decode(self.homer.recv(65535)))
            except BlockingIOError:
                return found

    def logged(self, call_id: str) -> list[dict[str, Any]]:
        """The operator daemon's log lines that name a call as theirs."""
        lines = [line for line in self.lab.edge.operator.log.read_text().splitlines() if line.startswith("{")]
        return [entry for entry in map(json.loads, lines) if str(entry.get("call_id", "")).startswith(call_id)]


@pytest.fixture(scope="module")
def watched(parts: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[Watched]:
    work = work_folder(request.module.__name__.rpartition(".")[2])
    with Topology("watch") as topology:
        homer = open_socket(topology, "edge", socket.AF_INET, socket.SOCK_DGRAM)
        homer.bind(("127.0.0.1", HOMER_PORT))
        homer.setblocking(False)
        with WatchedEdge(topology, work, *parts) as edge:
            yield Watched(Lab(topology, edge, work), homer)
        homer.close()
