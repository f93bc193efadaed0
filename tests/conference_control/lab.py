"""Participants with real sockets; softswitch, shunt-agent and the operator daemon as processes, for end-to-end tests of conferences."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import yaml

from shunt.cli import daemons
from tests.lab.party import Party, await_that, come_to_rest, unbroken
from tests.lab.processes import API_PORT, CONTROL_PORT, RELAY_PORT, ROOT, Edge, Process, open_socket
from tests.lab.topology import BPF, CALLEE_IP, CALLER_IP, EDGE_INTERFACES, EDGE_IP, LabError, Topology, run
from tests.tools.checked import checked, program

PORTS = "20000-20999"
SIP_PORT = 5070
_SIP_PORTS = itertools.cycle(range(5100, 6000))  # of phones: below all ports that media or its RTCP comes to
AGENT = program("agent")
PRIORITY = ["nice", f"--adjustment={daemons.PRIORITY}"]  # as `shunt softswitch` starts it


class Bridge:
    """Softswitch and agent on the edge host, with conferences."""

    def __init__(self, topology: Topology, work: Path) -> None:
        self.topology, self.work = topology, work
        self.config = work / "shunt.yaml"
        self.pin_dir = BPF / topology.prefix
        self.bfrt = Path("/run") / f"{topology.prefix}-bfrt.sock"
        self.admin = Path("/run") / f"{topology.prefix}-admin.sock"
        python = [sys.executable, "-m", "shunt.cli.main"]
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "pycache")}
        env = {"PYTHONPATH": f"{ROOT / 'operator'}", "PYTHONUNBUFFERED": "1", **compiled}
        self.agent = Process(topology, "edge", "shunt-agent", [AGENT, "-c", str(work / "agent.json")], work / "agent.log")
        self.operator = Process(topology, "edge", "operator", [*python, "operator", "-c", str(self.config)], work / "operator.log", env)
        self.softswitch = Process(topology, "edge", "softswitch", [*PRIORITY, program("softswitch"), "-c", str(work / "softswitch.json")], work / "softswitch.log")
        self.parties: list[Party] = []
        self.settings: dict = {
            "control": {"listen": [f"udp:127.0.0.1:{CONTROL_PORT}"]},
            # No call is made, so nobody listens there.
            "relays": [{"name": "local", "socket": f"udp:127.0.0.1:{RELAY_PORT}", "media": [{"address": EDGE_IP, "ports": "35000-36000"}], "ttl": 60, "symmetric": True}],
            "admin": {"socket": str(self.admin), "socket_group": "root", "events": str(work / "events")},
            "operator": {"state_dir": str(work / "operator")},
            "data_plane": {"target": f"unix:{self.bfrt}"},
            "conference": {
                "address": EDGE_IP, "ports": PORTS, "state": str(work / "conferences"), "timeout": 60,
                "sip": f"udp:{EDGE_IP}:{SIP_PORT}", "sip_allow": ["198.18.0.0/16"],
                "cdr": {"csv": str(work / "conferences.csv"), "json_lines": str(work / "conferences.jsonl")},
            },
            "softswitch": {
                "interfaces": list(EDGE_INTERFACES), "listen": [f"unix:{self.bfrt}"], "capacity": 1000, "conference_copies": 400, "pin_dir": str(self.pin_dir),
            },
        }  # fmt: skip

    def start(self) -> None:
        self.configure()
        self.start_softswitch()
        self.start_agent()
        self.start_operator()

    def configure(self) -> None:
        """Write what the next start of each process reads."""
        self.config.write_text(yaml.safe_dump(self.settings))
        (self.work / "agent.json").write_text(json.dumps(checked(self.config)))
        (self.work / "softswitch.json").write_text(json.dumps(checked(self.config, "softswitch")))

    def start_softswitch(self) -> None:
        self.softswitch.start().await_unix(self.bfrt)

    def start_agent(self) -> None:
        self.agent.start().await_listening("udp", CONTROL_PORT)
        self.agent.await_unix(self.admin)

    def start_operator(self) -> None:
        """Start it, and wait until it takes calls."""
        begun = self.operator.log.stat().st_size if self.operator.log.exists() else 0
        self.operator.start().await_listening("tcp", API_PORT)
        if not await_that(lambda: "accepting calls at" in self.operator.log.read_text(errors="replace")[begun:]):
            raise LabError(self.operator.tail())

    def move_focus(self, ip: str) -> None:
        """Have SIP taken at another address: the edge host's own, where phones reach it, or the loopback, where only a SIP server does."""
        if f"udp:{ip}:{SIP_PORT}" != self.settings["conference"]["sip"]:
            self.settings["conference"]["sip"] = f"udp:{ip}:{SIP_PORT}"
            self.configure()
            self.operator.stop()
            self.start_operator()

    def dismiss(self) -> None:
        """Close all parties' sockets."""
        for party in self.parties:
            party.close()
        self.parties.clear()

    def stop(self) -> None:
        self.dismiss()
        self.operator.stop()
        self.agent.stop()
        self.softswitch.stop()
        shutil.rmtree(self.pin_dir, ignore_errors=True)

    def party(self, host: str, name: str) -> Party:
        made = Party(self.topology, host, name)
        self.parties.append(made)
        return made

    def ask(self, method: str, path: str) -> dict:
        """A request to the REST API. Raises LabError with its words when it fails."""
        return json.loads(self._command(["curl", "-sS", "--fail-with-body", "-X", method, "-H", "X-Shunt-Command: 1", f"http://127.0.0.1:{API_PORT}{path}"]))

    def fetch(self, path: str) -> str:
        """What the API answers, as text."""
        return self._command(["curl", "-sS", "--fail-with-body", f"http://127.0.0.1:{API_PORT}{path}"])

    def metric(self, name: str) -> int:
        """A counter of conferences, as the agent's metrics have it."""
        text = self._command(["curl", "-sS", "--fail-with-body", "--unix-socket", str(self.admin), "http://shunt/metrics"])
        found = re.search(rf"^shunt_conference_{name}(?:_total)? (\S+)$", text, re.MULTILINE)
        if found is None:
            raise LabError(f"no metric of {name}")
        return int(float(found[1]))

    def _command(self, argv: list[str]) -> str:
        return run(*self.topology.enter("edge", *argv))

    def conference(self, name: str = "room") -> dict:
        return self.ask("GET", f"/v1/conferences/{name}")

    def shunt(self, *argv: str) -> str:
        """The output of a `shunt` command on the edge host."""
        env = f"PYTHONPATH={ROOT / 'operator'}"
        return self._command(["env", env, sys.executable, "-m", "shunt.cli.main", *argv])

    def join(self, party: Party, name: str = "room", **more: str) -> str:
        """Let a party in; the result is the relay address of its audio."""
        query = "&".join(f"{key}={value}" for key, value in {"name": party.name, **more}.items())
        answer = self.ask("POST", f"/v1/conferences/{name}/participants?{query}")
        return answer["media"][0]["relay"]

    def leave(self, party: Party, name: str = "room") -> None:
        self.ask("DELETE", f"/v1/conferences/{name}/participants/{party.name}")

    def leave_at_agent(self, party: Party, name: str = "room") -> None:
        """Put a party out by the agent's admin API, whether there is an operator daemon or not."""
        url = f"http://shunt/v1/conferences/{name}/participants/{party.name}"
        self._command(["curl", "-sS", "--fail-with-body", "-X", "DELETE", "--unix-socket", str(self.admin), url])

    def recorded(self) -> int:
        """How many have left whose rows are out."""
        path = self.work / "conferences.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def records(self, count: int, seconds: float = 120.0) -> list[dict]:
        """The participants' records, once there are so many. Raises LabError."""
        path, deadline = self.work / "conferences.jsonl", time.monotonic() + seconds
        while True:
            found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
            if len(found) >= count:
                return found
            if time.monotonic() > deadline:
                raise LabError(f"{len(found)} records of {count}\n{self.operator.tail()}")
            time.sleep(0.02)

    def await_design(self, design: str, name: str = "room", seconds: float = 120.0) -> dict:
        """Wait until a conference is laid out so. Raises LabError."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.conference(name)
            if found["design"] == design and not found["problem"]:
                return found
            if time.monotonic() > deadline:
                raise LabError(f"{name} is {found['design']} ({found['problem']}), not {design}:\n{self.agent.tail()}")
            time.sleep(0.02)

    def await_ready(self, seconds: float = 120.0) -> None:
        """Wait until conferences can be joined. Raises LabError."""
        deadline = time.monotonic() + seconds
        while True:
            problem: str | LabError
            try:
                problem = self.conference()["problem"]
            except LabError as error:  # the agent is not there yet
                problem = error
            if not problem:
                return
            if time.monotonic() > deadline:
                raise LabError(f"{problem}\n{self.agent.tail()}")
            time.sleep(0.05)


BridgeT = TypeVar("BridgeT", bound=Bridge)


@contextlib.contextmanager
def bridge(work: Path, kind: Callable[[Topology, Path], BridgeT] = Bridge) -> Iterator[BridgeT]:
    """A running bridge without conferences; everything is gone afterwards."""
    with Topology("conf") as topology:
        made = kind(topology, work)
        try:
            made.start()
            yield made
        finally:
            made.stop()


class Phone:
    """A SIP phone of few words: it calls a conference, and its party sends to the address of the answer."""

    def __init__(self, bridge: Bridge, host: str, name: str, server: int = SIP_PORT, patience: float = 60, display: str = "", ip: str = "", focus: str = EDGE_IP) -> None:
        """ip: its own address, unless the host has one; focus: the address that it calls, and sends media to; display: the display name of its From; server: the port on the edge host that it sends SIP to; patience: seconds that it waits for a message."""
        self.party = bridge.party(host, name)
        self.server = server
        self._target = ""
        self._route: list[str] = []
        self.answer = ""
        self._name, self._display = name, f'"{display}" ' if display else ""
        self._ip = ip or {"caller": CALLER_IP, "callee": CALLEE_IP}[host]
        self._focus = focus
        self._socket = open_socket(bridge.topology, host, socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((self._ip, next(_SIP_PORTS)))
        self._socket.settimeout(patience)
        self._port = self._socket.getsockname()[1]
        self._to = ""
        self._cseq = 0
        self._room = ""
        self._sent: dict[str, bytes] = {}  # the last request of each method

    def call(self, conference: str, media: str = "m=audio {port} RTP/AVP 0\r\n", address: str = "", method: str = "INVITE", wrap: Callable[[str], tuple[str, str]] | None = None) -> int:
        """INVITE, in the call if there is one, and ACK of the answer; or an UPDATE. The final status. With 200 the party talks.

        address: in the SDP, in place of its own; wrap: makes the body's type and content of the SDP.
        """
        self._room = conference
        port = self.party.socket.getsockname()[1]
        sdp = f"v=0\r\no=- 1 1 IN IP4 {self._ip}\r\ns=-\r\nc=IN IP4 {address or self._ip}\r\nt=0 0\r\n" + media.format(port=port)
        self._send(method, *reversed(wrap(sdp)) if wrap is not None else (sdp,))
        answer = self.answer = self._final()
        self._to = next(line for line in answer.splitlines() if line.lower().startswith("to:"))[3:].strip()
        status = int(answer.split()[1])
        if status == 200:  # what follows goes to the contact, by way of who recorded a route
            first = not self._target  # later answers change the target, but not the route (RFC 3261 section 12.2)
            self._target = next(line for line in answer.splitlines() if line.lower().startswith("contact:")).partition("<")[2].rstrip(">")
            if first:
                self._route = [line.partition(":")[2].strip() for line in reversed(answer.splitlines()) if line.lower().startswith("record-route:")]
        if method == "INVITE":
            self._send("ACK", new=False)
        if status == 200:
            words = next((line for line in answer.splitlines() if line.startswith("m=audio")), "").split()
            if words:
                self.party.talk(f"{self._focus}:{words[1]}")
        return status

    def call_without_offer(self, conference: str, media: str = "m=audio {port} RTP/AVP 0\r\n") -> int:
        """INVITE without a body, in the call if there is one; the offer is in the 200, the answer in the ACK. The status."""
        self._room = conference
        self._send("INVITE")
        answer = self.answer = self._final()
        self._to = next(line for line in answer.splitlines() if line.lower().startswith("to:"))[3:].strip()
        status = int(answer.split()[1])
        if status == 200:
            self._target = next(line for line in answer.splitlines() if line.lower().startswith("contact:")).partition("<")[2].rstrip(">")
            words = next(line for line in answer.splitlines() if line.startswith("m=audio")).split()
            sdp = f"v=0\r\no=- 1 1 IN IP4 {self._ip}\r\ns=-\r\nc=IN IP4 {self._ip}\r\nt=0 0\r\n" + media.format(port=self.party.socket.getsockname()[1])
            self._send("ACK", sdp if media else "", new=False)
            self.party.talk(f"{self._focus}:{words[1]}")
        return status

    def bye(self) -> int:
        """Hang up; the status of the answer. The party falls silent."""
        self._send("BYE")
        status = int(self._final().split()[1])
        self.party.hush()
        return status

    def send_bye(self) -> None:
        """Hang up, and wait for no answer."""
        self._send("BYE")

    def repeat(self, method: str) -> str:
        """Send the last request of a method once more, as when its answer was lost; the final answer."""
        self._socket.sendto(self._sent[method], (self._focus, self.server))
        return self._final()

    def accept(self, request: str) -> None:
        """Answer a request with 200."""
        kept = [line for line in request.splitlines() if line.partition(":")[0].lower() in ("via", "record-route", "from", "to", "call-id", "cseq")]
        self._socket.sendto(("\r\n".join(["SIP/2.0 200 OK", *kept, "Content-Length: 0"]) + "\r\n\r\n").encode(), (self._focus, self.server))

    def await_nothing(self, seconds: float) -> None:
        """Wait for so long; no message may come. Raises AssertionError with one that does."""
        self._socket.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            raise AssertionError(self.receive())

    def receive(self) -> str:
        """The next message."""
        return self._socket.recv(4096).decode()

    def _final(self) -> str:
        while True:
            text = self.receive()
            if text.startswith("SIP/2.0") and not text.startswith("SIP/2.0 1"):
                return text

    def _send(self, method: str, body: str = "", content_type: str = "application/sdp", *, new: bool = True) -> None:
        self._cseq += new
        uri = f"sip:{self._room}@{self._focus}:{self.server}"
        lines = [
            f"{method} {self._target or uri} SIP/2.0", *(f"Route: {route}" for route in self._route), f"Via: SIP/2.0/UDP {self._ip}:{self._port};branch=z9hG4bK{self.party.ssrc}{method}{self._cseq};rport", "Max-Forwards: 70",
            f"From: {self._display}<sip:{self._name}@{self._ip}>;tag={self.party.ssrc}", f"To: {self._to or f'<{uri}>'}", f"Call-ID: {self.party.ssrc}@{self._ip}",
            f"CSeq: {self._cseq} {method}", f"Contact: <sip:{self._name}@{self._ip}:{self._port}>",
            *([f"Content-Type: {content_type}"] if body else []), f"Content-Length: {len(body)}",
        ]  # fmt: skip
        self._sent[method] = ("\r\n".join(lines) + "\r\n\r\n" + body).encode()
        self._socket.sendto(self._sent[method], (self._focus, self.server))


def sip_server(bridge: Bridge, name: str = "kamailio", *, other_agent: bool = False, websockets: bool = False, tls: dict[str, str] | None = None) -> Process:
    """The SIP server of the shipped configuration on port 5060 of the edge host, with calls to conferences switched on: kamailio or opensips.

    The focus has to be at the loopback: whatever is at the SIP server's own address is the server itself, to it. tls: certificate and key of its WebSockets.
    """
    edge = Edge(bridge.topology, bridge.work, name, "builtin")
    text = edge.sip_server_config().replace("#CONFERENCES#", "").replace("##!define WITH_CONFERENCES", "#!define WITH_CONFERENCES")
    if other_agent:
        text = text.replace("#OTHER_AGENT#", "").replace("##!define WITH_OTHER_AGENT", "#!define WITH_OTHER_AGENT")
        text = text.replace('"fr_timer", 5000', '"fr_timer", 1000').replace('"fr_timeout", 5', '"fr_timeout", 2')  # a dead agent is waited for less long
    if websockets:
        text = text.replace("##!define WITH_WEBSOCKETS", "#!define WITH_WEBSOCKETS").replace("#WEBSOCKETS#", "")
    if tls is not None:
        text = text.replace("##!define WITH_WSS", "#!define WITH_WSS").replace("#WSS#", "")
        for place, file in (("fullchain.pem", tls["certificate"]), ("key.pem", tls["key"])):
            text = text.replace(f"/etc/{name}/tls/{place}", file)
    assert text.count('"^conf-"') == 1 and f'"sip:127.0.0.1:{SIP_PORT}"' in text
    text = text.replace("^conf-", "^(room|caller|callee|natcaller)")
    (bridge.work / f"{name}.cfg").write_text(text)
    edge.sip_server.start().await_listening("udp", 5060)
    return edge.sip_server
