"""A room: softswitch, agent, operator daemon with its API over TLS, and edges in a namespace of their own, for real browsers and a SIP phone.

    browsers ── edge host (softswitch, agent, operator, Kamailio) ── 198.18.4.0/24 ── media (shunt-edge)

The edge's plain RTP passes the data plane at the interface between the two; what browsers send it is forwarded by the kernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from tests.conference_control.lab import AGENT, Bridge
from tests.lab.browser import CHROMIUM, Browser
from tests.lab.processes import API_PORT, ROOT, Process
from tests.lab.topology import EDGE_IP, LabError, Topology, run
from tests.tools.checked import checked

TOKEN = "a-token-of-the-lab"
MEDIA_IP = "198.18.4.2"
EDGE = os.environ.get("SHUNT_EDGE") or str(ROOT / "target/release/shunt-edge")
URL = f"https://{EDGE_IP}:{API_PORT}"


def lacking() -> str:
    """What is not there to run rooms with; empty: all is."""
    found = [f"{path} is not built" for path in (AGENT, EDGE) if not Path(path).exists()]
    return "; ".join(found)


class RoomLab(Bridge):
    """Everything that a room needs; `edges` of them."""

    def __init__(self, topology: Topology, work: Path, edges: int = 1, *, tls: bool = True) -> None:
        """tls: the API at the edge host's address over TLS, or at its loopback in the clear."""
        super().__init__(topology, work)
        self.browsers: list[Browser] = []
        self.tls = tls
        self.url = URL if tls else f"http://127.0.0.1:{API_PORT}"
        self._add_media_host()
        self.settings["softswitch"]["interfaces"].append("e-media")
        self.settings["softswitch"]["conference_copies"] = 2000
        self.settings["api"] = {"listen": f"127.0.0.1:{API_PORT}", "token": TOKEN}
        if tls:
            self.settings["api"] = {"listen": f"{EDGE_IP}:{API_PORT}", "token": TOKEN, "tls": self._certificate()}
        self.controls = [work / f"edge-{number}.sock" for number in range(edges)]
        self.settings["rooms"] = {
            "edges": [f"unix:{control}" for control in self.controls], "secret_file": str(work / "rooms.secret"), "url": self.url,
            "codecs_of": [{"rooms": "room*", "audio": ["PCMU"], "video": ["VP8"]}],
        }  # fmt: skip
        self.edges = [
            Process(topology, "media", f"edge {number}", [EDGE, "-c", str(self._edge_configuration(number, control))], work / f"edge-{number}.log") for number, control in enumerate(self.controls)
        ]

    def _add_media_host(self) -> None:
        name, topology = self.topology.name("media"), self.topology
        run("ip", "netns", "add", name)
        run("ip", "link", "add", "e-media", "netns", topology.name("edge"), "type", "veth", "peer", "name", "eth0", "netns", name)
        topology.run("edge", "ip", "-batch", "-", stdin="link set e-media up\naddr add 198.18.4.1/24 dev e-media")
        topology.run("media", "ip", "-batch", "-", stdin=f"link set lo up\nlink set eth0 up\naddr add {MEDIA_IP}/24 dev eth0\nroute add default via 198.18.4.1")
        for host, device in (("edge", "e-media"), ("media", "eth0")):
            topology.run(host, "ethtool", "-K", device, "gro", "on")
        topology.run("edge", "sh", "-ec", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def _certificate(self) -> dict[str, str]:
        key, certificate = self.work / "api.key", self.work / "api.crt"
        run(
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=rooms",
            "-addext", f"subjectAltName=IP:{EDGE_IP}", "-keyout", str(key), "-out", str(certificate),
        )  # fmt: skip
        return {"certificate": str(certificate), "key": str(key)}

    def _edge_configuration(self, number: int, control: Path) -> Path:
        path = self.work / f"edge-{number}.json"
        limits = {
            "sessions": 50, "media": 64, "unknown_packets": 200, "connections_per_address": 8, "connections": 100, "send_bitrate": 2_500_000, "receive_bitrate": 10_000_000, "connect": 30, "consent": 15,
        }  # fmt: skip
        section = {
            "listen": [f"{MEDIA_IP}:{3478 + number}"], "tcp": True, "advertise": [], "address": MEDIA_IP, "ports": f"{30000 + 1000 * number}-{30999 + 1000 * number}",
            "control": str(control), "socket_group": "root", "limits": limits,
        }  # fmt: skip
        path.write_text(json.dumps({"edge": section}))
        return path

    # -- running -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for number in range(len(self.edges)):
            self.start_edge(number)
        super().start()

    def start_edge(self, number: int = 0) -> None:
        self.edges[number].start().await_unix(self.controls[number])

    def stop(self) -> None:
        for browser in self.browsers:
            browser.close()
        for edge in self.edges:
            edge.stop()
        super().stop()

    # -- asking --------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str) -> dict:
        """A request to the REST API. Raises LabError with its words when it fails."""
        return json.loads(self._curl("-X", method, "-H", "X-Shunt-Command: 1", f"{self.url}{path}"))

    def fetch(self, path: str) -> str:
        """What the API answers, as text."""
        return self._curl(f"{self.url}{path}")

    def _curl(self, *argv: str) -> str:
        return self._command(["curl", "-sS", "-k", "--fail-with-body", "-H", f"Authorization: Bearer {TOKEN}", *argv])

    def at_edge(self, number: int = 0) -> list[dict[str, Any]]:
        """The sessions that an edge has."""
        return json.loads(self._command(["curl", "-sS", "--fail-with-body", "--unix-socket", str(self.controls[number]), "http://edge/v1/sessions"]))["sessions"]

    def link(self, room: str, **query: str) -> dict:
        """A link to a room: page, token."""
        return self.ask("POST", f"/v1/rooms/{room}/links?" + "&".join(f"{name}={quote(value)}" for name, value in query.items()))

    def names(self, room: str) -> list[str]:
        """Who is in, by the agent."""
        try:
            return [one["name"] for one in self.conference(room)["participants"]]
        except LabError:
            return []

    def shunt_room(self, *argv: str) -> str:
        """The output of `shunt room` on the edge host, which trusts the API's certificate."""
        env = [f"PYTHONPATH={ROOT / 'operator'}", f"SSL_CERT_FILE={self.work / 'api.crt'}", f"SHUNT_TOKEN={TOKEN}"]
        return self._command(["env", *env, sys.executable, "-m", "shunt.cli.main", "room", *argv, "--api", self.url])

    # -- browsers ------------------------------------------------------------------------------------------------

    def browser(self, host: str, name: str, kind: str = CHROMIUM) -> Browser:
        """A browser that has started."""
        made = Browser(self.topology, host, name, kind, self.work)
        self.browsers.append(made)
        return made.start()

    def enter(self, browser: Browser, room: str, **query: str) -> None:
        """Open the room's page, and press Join."""
        lobby(browser, self.link(room, **query)["page"])
        browser.click("#join")

    def diagnosis(self) -> str:
        """The ends of all logs, for who has to find out."""
        return "\n".join(f"-- {process.name}\n{process.tail(30)}" for process in (self.operator, self.agent, *self.edges))


def lobby(browser: Browser, page: str) -> None:
    """Open a link, and be called by the browser's name; camera and microphone are there."""
    browser.open(page)
    browser.await_that("Boolean(window.room && (room.watching || (room.tracks.audio && room.tracks.video)))")
    browser.evaluate(f"void (document.querySelector('#name').readOnly || (document.querySelector('#name').value = {json.dumps(browser.name)}))")


def report(browser: Browser) -> dict[str, Any]:
    """What the page knows of its session."""
    found: dict[str, Any] = browser.evaluate("room.report()")
    return found


def sees(browser: Browser, *names: str, seconds: float = 120.0) -> None:
    """Wait until pictures of all of these are decoded. Raises LabError with what is seen."""
    wanted = json.dumps([f"{name}/video" for name in names])
    try:
        browser.await_that(f"{wanted}.every((one) => (room.report().lines[one]?.frames ?? 0) > 5)", seconds)
    except LabError as error:
        raise LabError(f"{error}\n{json.dumps(report(browser), indent=1)}") from None


def hears(browser: Browser, *names: str, seconds: float = 120.0) -> None:
    """Wait until sound of all of these comes. Raises LabError with what is heard."""
    wanted = json.dumps([f"{name}/audio" for name in names])
    try:
        browser.await_that(f"{wanted}.every((one) => (room.report().lines[one]?.packets ?? 0) > 20)", seconds)
    except LabError as error:
        raise LabError(f"{error}\n{json.dumps(report(browser), indent=1)}") from None


class FileLab(RoomLab):
    """The shipped opensips-config/rooms.yaml, with the namespace that the unit shunt-edge-network makes. Only paths, groups and the names of namespaces differ."""

    def __init__(self, topology: Topology, work: Path) -> None:
        super().__init__(topology, work, tls=False)
        shipped = yaml.safe_load((ROOT / "opensips-config/rooms.yaml").read_text())
        own = {key: self.settings[key] for key in ("admin", "operator", "data_plane")}
        self.settings = shipped | own
        self.settings["softswitch"] |= {"listen": [f"unix:{self.bfrt}"], "pin_dir": str(self.pin_dir)}
        self.settings["conference"] |= {"state": str(work / "conferences")}
        self.settings["rooms"] |= {"edges": [f"unix:{self.controls[0]}"], "secret_file": str(work / "rooms.secret")}
        self.settings["edge"] |= {"control": str(self.controls[0]), "socket_group": "root"}
        self.settings["api"] |= {"token": TOKEN}
        self._edge_configuration(0, self.controls[0]).write_text(json.dumps(self._checked()))

    def _checked(self) -> dict[str, Any]:
        self.config.write_text(yaml.safe_dump(self.settings))
        return checked(self.config, "edge")

    def _add_media_host(self) -> None:
        unit = (ROOT / "packaging/systemd/shunt-edge-network.service.in").read_text()
        for command in re.findall("^ExecStart=-?(.*)$", unit, re.MULTILINE):
            self.topology.run("edge", *command.replace("shunt-edge", self.topology.name("media")).split())

    def start_agent(self) -> None:
        self.agent.start().await_unix(self.admin)


@contextlib.contextmanager
def file_lab(work: Path) -> Iterator[FileLab]:
    """The running lab of the shipped file."""
    with Topology("file") as topology:
        made = FileLab(topology, work)
        try:
            made.start()
            yield made
        finally:
            made.stop()


@contextlib.contextmanager
def room_lab(work: Path, edges: int = 1, *, tls: bool = True) -> Iterator[RoomLab]:
    """A running lab without rooms; everything is gone afterwards."""
    with Topology("room") as topology:
        made = RoomLab(topology, work, edges, tls=tls)
        try:
            made.start()
            yield made
        finally:
            made.stop()
