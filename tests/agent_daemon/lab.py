"""The edge host with shunt-agent: softswitch, relay and agent as processes, two phones and an attacker in namespaces of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from shunt.admin import AdminClient, AgentUnreachable
from shunt.net import FiveTuple
from tests.attacks.scene import Scene
from tests.lab.load import ControlClient
from tests.lab.processes import CONTROL_PORT, NG_PORT, PORTS, RELAY_PORT, Edge, Process
from tests.lab.topology import EDGE_IP, EDGE_IP6, Topology
from tests.softswitch.plane import Plane
from tests.tools.checked import checked, program
from tests.tools.entry import RelayEntry

AGENT, RELAY = program("agent"), program("relay")


def relays() -> list[str]:
    """The relays that can be had here; shunt-relay always."""
    return ["shunt-relay", *(["rtpproxy"] if shutil.which("rtpproxy") else [])]


class Lab:
    """Processes on the edge host. Each can be killed and started again."""

    def __init__(self, topology: Topology, work: Path, relay: str, *, advertised: str | None = None, **changes: Any) -> None:
        """relay: one of relays(), or rtpengine. advertised: the address that rtpproxy tells parties in place of EDGE_IP. changes: sections of the configuration
        that take the place of the shipped ones."""
        self.topology, self.work, self.relay_name, self.advertised = topology, work, relay, advertised
        options = ("-A", f"{advertised}/{EDGE_IP6}") if advertised else ()
        self.edge = Edge(topology, work, "kamailio", "builtin" if relay == "shunt-relay" else relay, relay_options=options)
        self.softswitch = self.edge.softswitch
        self.relay = self.edge.relay if relay != "shunt-relay" else Process(topology, "edge", "shunt-relay", [RELAY, "-c", str(work / "relay.json")], work / "relay.log")
        self.agent = Process(topology, "edge", "shunt-agent", [AGENT, "-c", str(work / "agent.json")], work / "agent.log")
        self.admin = Path("/run") / f"{topology.prefix}-admin.sock"
        self.work.mkdir(parents=True, exist_ok=True)
        self.configure(**changes)

    def configure(self, **changes: Any) -> None:
        """Write the configuration that the next start of the agent reads."""
        config = self.edge.shunt_config()
        config.pop("builtin_relay", None)
        if self.relay_name != "rtpengine":
            media = [{"address": address, "ports": f"{PORTS[0]}-{PORTS[1]}"} for address in (EDGE_IP, EDGE_IP6)]
            if self.advertised:
                media[0]["advertised"] = self.advertised
            config["relays"] = [{"name": "local", "socket": f"udp:127.0.0.1:{RELAY_PORT}", "media": media, "ttl": 60, "symmetric": True}]
        config["log"] = {"level": "debug"}
        config |= changes
        self.edge.write_config(config)
        document = checked(self.edge.config)
        document["admin"] = {"socket": str(self.admin), "socket_group": "root", "events": str(self.work / "events")} | config.get("admin", {})
        (self.work / "agent.json").write_text(json.dumps(document))
        relay = {
            "listen": [f"udp:127.0.0.1:{RELAY_PORT}"], "allow": ["127.0.0.0/8"], "socket_group": "root", "addresses": [EDGE_IP, EDGE_IP6],
            "ports": f"{PORTS[0]}-{PORTS[1]}", "ttl": 60, "setup_ttl": config["relays"][0].get("setup_ttl"), "quarantine": 5.0, "packet_limit": 0, "tos": 184, "threads": 1,
        }  # fmt: skip
        learning = document["learning"]
        (self.work / "relay.json").write_text(json.dumps({"builtin_relay": relay, "learning": learning, "notify": {"allow": None}}))

    def start(self) -> None:
        """Start all, the SIP server excepted."""
        self.edge.start_softswitch()
        self.start_relay()
        self.start_agent()

    @property
    def control_port(self) -> int:
        """Where the agent takes commands for this relay."""
        return NG_PORT if self.relay_name == "rtpengine" else CONTROL_PORT

    def start_relay(self) -> None:
        self.relay.start().await_listening("udp", self.edge.relay_port)

    def start_agent(self) -> None:
        """Start it and wait until it listens and has the data plane."""
        self.agent.start().await_listening("udp", self.control_port)
        asyncio.run(self._connected())

    async def _connected(self) -> None:
        async with AdminClient(str(self.admin)) as admin, asyncio.timeout(60):
            while True:
                with contextlib.suppress(AgentUnreachable):  # it binds this socket last
                    if (await admin.status())["data_plane"]["connected"]:
                        return
                await asyncio.sleep(0.02)

    def stop(self) -> None:
        self.agent.stop()
        self.relay.stop()
        self.edge.stop()

    def entries(self) -> dict[FiveTuple, RelayEntry]:
        """What the softswitch's relay table holds, as a client of its own reads it."""
        with Plane(f"unix:{self.edge.bfrt}", bind=False) as plane:
            return plane.entries()


class LiveScene(Scene):
    """Phones and a control client at the agent of a Lab."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab.topology, lab.edge, ControlClient.to(lab.topology))
        self.lab = lab

    async def entries(self) -> dict[FiveTuple, RelayEntry]:
        return await asyncio.to_thread(self.lab.entries)

    async def until_entries(self, count: int, seconds: float = 60.0) -> dict[FiveTuple, RelayEntry]:
        """Wait until the table holds so many entries; the entries."""
        deadline = time.monotonic() + seconds
        while len(found := await self.entries()) != count:
            assert time.monotonic() < deadline, (f"{len(found)} entries, wanted {count}", found, self.lab.agent.tail())
            await asyncio.sleep(0.05)
        return found

    async def hang_up(self, call_id: str) -> None:
        assert await self.client.command(f"D {call_id} A B") == b"0"


@asynccontextmanager
async def live(work: Path, relay: str, **changes: Any) -> AsyncIterator[LiveScene]:
    """A running lab with its phones, taken down at the end. changes: as for Lab."""
    with Topology("agent") as topology:
        lab = Lab(topology, work, relay, **changes)
        try:
            await asyncio.to_thread(lab.start)
            scene = LiveScene(lab)
            try:
                yield scene
            finally:
                await scene.close()
        finally:
            await asyncio.to_thread(lab.stop)
