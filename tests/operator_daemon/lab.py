"""The edge host with shunt-agent and the operator daemon as processes, and what comes out of the latter."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from shunt.export.hep import HepPacket, encode
from shunt.net import Endpoint
from tests.agent_daemon.lab import Lab, LiveScene
from tests.lab.processes import API_PORT, ROOT, LabError, Process, open_socket
from tests.lab.topology import CALLEE_IP, CALLER_IP, EDGE_IP, Topology
from tests.tools.hep import decode

HOMER_PORT = 9070
HEP_PORT = 9060


class OperatorLab(Lab):
    """A Lab whose operator daemon can be killed and started again too."""

    def __init__(self, topology: Topology, work: Path, **changes: Any) -> None:
        super().__init__(topology, work, "shunt-relay", **changes)
        env = {"PYTHONPATH": f"{ROOT / 'operator'}", "PYTHONUNBUFFERED": "1"}
        self.operator = Process(topology, "edge", "operator", [sys.executable, "-m", "shunt.cli.main", "operator", "-c", str(self.edge.config)], work / "operator.log", env)

    def configure(self, **changes: Any) -> None:
        """As of a Lab, with all that the operator daemon does switched on."""
        own = {
            "admin": {"socket": str(self.admin), "socket_group": "root", "events": str(self.work / "events")} | changes.pop("admin", {}),
            "operator": {"state_dir": str(self.work / "state")},
            "cdr": {"csv": str(self.work / "cdr.csv"), "json_lines": str(self.work / "cdr.jsonl")},
            "homer": {"target": f"udp:127.0.0.1:{HOMER_PORT}", "capture_id": 7},
            "hep": {"listen": f"udp:127.0.0.1:{HEP_PORT}"},
        }
        self.cdr = Path((own | changes)["cdr"]["json_lines"])
        super().configure(**own | changes)

    def start(self) -> None:
        super().start()
        self.start_operator()

    def start_operator(self) -> None:
        """Start it, and wait until it follows the agent's events."""
        self.operator.start().await_listening("tcp", API_PORT)
        self.until(lambda: self.edge.status()["events"]["connected"])

    def stop(self) -> None:
        self.operator.stop()
        super().stop()

    def until(self, met: Callable[[], Any], seconds: float = 60.0) -> Any:
        """Wait for something that is true, and return it. Raises AssertionError with the daemon's log."""
        deadline = time.monotonic() + seconds
        while True:
            found = None
            with contextlib.suppress(LabError):
                found = met()
            if found:
                return found
            assert time.monotonic() < deadline, f"not within {seconds} s; the operator's log:\n{self.operator.tail()}"
            time.sleep(0.05)

    def metrics(self) -> str:
        """What Prometheus reads from the operator daemon."""
        command = self.topology.enter("edge", "curl", "--silent", "--fail", f"http://127.0.0.1:{API_PORT}/metrics")
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout

    def metric(self, name: str) -> float | None:
        """One of these that has no labels; None: it is not there."""
        found = re.search(rf"^{name} (\S+)$", self.metrics(), re.MULTILINE)
        return None if found is None else float(found[1])

    def records(self) -> list[dict[str, Any]]:
        """What is in the file of JSON lines."""
        path = self.cdr
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def rows(self) -> list[dict[str, str]]:
        """What is in the CSV file."""
        path = self.cdr.with_suffix(".csv")
        return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []

    def await_record(self, call_id: str) -> dict[str, Any]:
        """The only record of a call."""
        (found,) = self.until(lambda: [record for record in self.records() if record["call_id"] == call_id])
        return found


class Talk(LiveScene):
    """Phones, a SIP server's control commands and its copies of SIP messages."""

    def __init__(self, lab: OperatorLab) -> None:
        super().__init__(lab)
        self.operated = lab
        self._copies = open_socket(lab.topology, "edge", socket.AF_INET, socket.SOCK_DGRAM)
        self._homer = open_socket(lab.topology, "edge", socket.AF_INET, socket.SOCK_DGRAM)
        self._homer.bind(("127.0.0.1", HOMER_PORT))
        self._homer.setblocking(False)

    def sip(self, call_id: str, start: str, cseq: str, *, tags: tuple[str, str | None] = ("A", "B"), source: str = CALLER_IP, sdp_port: int | None = None) -> None:
        """A copy of a SIP message that the SIP server has received. start: "INVITE" or "200 OK"; tags: of From and To."""
        to_tag = "" if tags[1] is None else f";tag={tags[1]}"
        first = f"SIP/2.0 {start}" if start[0].isdigit() else f"{start} sip:bob@example.net SIP/2.0"
        head = [first, f"Call-ID: {call_id}", f"From: <sip:alice@example.net>;tag={tags[0]}", f"To: <sip:bob@example.net>{to_tag}", f"CSeq: 1 {cseq}"]
        body = "" if sdp_port is None else f"v=0\r\nc=IN IP4 {source}\r\nm=audio {sdp_port} RTP/AVP 8\r\na=rtpmap:8 PCMA/8000\r\n"
        message = "\r\n".join([*head, "", body]).encode()
        packet = HepPacket(Endpoint.of(source, 5060), Endpoint.of(EDGE_IP, 5060), message)
        self._copies.sendto(encode(packet), ("127.0.0.1", HEP_PORT))

    async def conversation(self, call_id: str) -> None:
        """A call that is offloaded both ways, with its SIP, whose phones go on."""
        self.sip(call_id, "INVITE", "INVITE", tags=("A", None), sdp_port=self.caller.port)
        to_caller, to_callee = await self.call(call_id, natted=False)
        self.sip(call_id, "200 OK", "INVITE", source=CALLEE_IP, sdp_port=self.callee.port)
        self.caller.talk(to_caller)
        self.callee.talk(to_callee)
        await self.until_entries(2)

    async def bye(self, call_id: str) -> None:
        """The callee hangs up."""
        await self.caller.hush()
        await self.callee.hush()
        self.sip(call_id, "BYE", "BYE", tags=("B", "A"), source=CALLEE_IP)
        await self.hang_up(call_id)

    def reported(self) -> list[HepPacket]:
        """What the capture server got since the last time."""
        found = []
        while True:
            try:
                found.append(decode(self._homer.recv(65535)))
            except BlockingIOError:
                return found

    async def ask(self, path: str) -> dict[str, Any]:
        """GET from the operator's REST API."""
        return await asyncio.to_thread(self.lab.edge.get, path)

    async def close(self) -> None:
        await super().close()
        self._copies.close()
        self._homer.close()


@asynccontextmanager
async def live(work: Path, **changes: Any) -> AsyncIterator[Talk]:
    """A running lab with its phones, taken down at the end. changes: sections of the configuration."""
    with Topology("oper") as topology:
        lab = OperatorLab(topology, work, **changes)
        try:
            await asyncio.to_thread(lab.start)
            talk = Talk(lab)
            try:
                yield talk
            finally:
                await talk.close()
        finally:
            await asyncio.to_thread(lab.stop)


NEEDS_ROOT = "needs root"
IS_ROOT = os.geteuid() == 0
