"""Softswitch and shunt-agent on the edge host, with conferences, driven by the admin API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml

from shunt.admin import AdminClient, AdminError, Event
from tests.tools.conference import rtcp
from tests.lab.party import Party
from tests.lab.processes import CONTROL_PORT, RELAY_PORT, ROOT, Process
from tests.lab.topology import BPF, EDGE_INTERFACES, EDGE_IP, LabError, Topology

AGENT = os.environ.get("SHUNT_AGENT") or str(ROOT / "target/release/shunt-agent")
PORTS = "20000-20999"
ROOM = "room"
_PATTERN = (0, 2, 1, 2)  # temporal layers of L1T3
T = TypeVar("T")


class Camera(Party):
    """A participant with one picture a packet: VP8 in three temporal layers, told by the payload descriptor. It answers a NACK by sending again, as browsers do."""

    def packet(self, number: int) -> bytes:
        layer = _PATTERN[number % 4]
        descriptor = struct.pack("!BBHB", 0x90, 0xA0, 0x8000 | number & 0x7FFF, layer << 6 | 0x20)
        key = number % 400 == 0
        head = struct.pack("!BBHII", 0x80, 0x80 | self.payload_type, number & 0xFFFF, number * 900 & 0xFFFFFFFF, self.ssrc)
        return head + descriptor + bytes([0 if key else 1]) + struct.pack("!I", number) + bytes(150)

    def number(self, data: bytes) -> int:
        """What the payload says is the packet's number."""
        return int(struct.unpack_from("!I", data, 12 + 6)[0])


class Lab:
    """The processes. Each can be killed and started again."""

    def __init__(self, topology: Topology, work: Path) -> None:
        self.topology, self.work = topology, work
        work.mkdir(parents=True, exist_ok=True)
        self.config = work / "shunt.yaml"
        self.pin_dir = BPF / topology.prefix
        self.bfrt = Path("/run") / f"{topology.prefix}-bfrt.sock"
        self.socket = Path("/run") / f"{topology.prefix}-admin.sock"
        env = {"PYTHONPATH": f"{ROOT / 'operator'}", "PYTHONUNBUFFERED": "1"}
        python = [sys.executable, "-m", "shunt.cli.main"]
        self.softswitch = Process(topology, "edge", "softswitch", [*python, "softswitch", "-c", str(self.config)], work / "softswitch.log", env)
        self.agent = Process(topology, "edge", "shunt-agent", [AGENT, "-c", str(work / "agent.json")], work / "agent.log")
        self.parties: list[Party] = []
        self.settings: dict[str, Any] = {
            "control": {"listen": [f"udp:127.0.0.1:{CONTROL_PORT}"]},
            # No call is made, so nobody listens there.
            "relays": [{"name": "local", "socket": f"udp:127.0.0.1:{RELAY_PORT}", "media": [{"address": EDGE_IP, "ports": "35000-36000"}], "ttl": 60, "symmetric": True}],
            "data_plane": {"target": f"unix:{self.bfrt}"},
            "conference": {"address": EDGE_IP, "ports": PORTS, "state": str(work / "conferences"), "timeout": 60},
            "log": {"level": "info"},
            "softswitch": {"interfaces": list(EDGE_INTERFACES), "listen": [f"unix:{self.bfrt}"], "capacity": 1000, "conference_copies": 400, "pin_dir": str(self.pin_dir)},
        }  # fmt: skip

    def configure(self) -> None:
        """Write what the next start of each process reads."""
        self.config.write_text(yaml.safe_dump(self.settings))
        checked = subprocess.run(
            [sys.executable, "-m", "shunt.cli.main", "check-config", "--json", str(self.config)],
            capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "operator")}, check=False,
        )  # fmt: skip
        if checked.returncode != 0:
            raise LabError(checked.stdout + checked.stderr)
        document = json.loads(checked.stdout)
        document["config"]["admin"] = {"socket": str(self.socket), "socket_group": "root", "events": str(self.work / "events")}
        (self.work / "agent.json").write_text(json.dumps(document))

    def start(self) -> None:
        self.configure()
        self.start_softswitch()
        self.start_agent()

    def start_softswitch(self) -> None:
        self.softswitch.start().await_unix(self.bfrt)

    def start_agent(self) -> None:
        """Start it and wait until it answers and has the data plane."""
        self.agent.start().await_listening("udp", CONTROL_PORT)
        self.until(self.conferences, lambda found: found is not None)
        self.until(lambda: self.ask(lambda client: client.status())["data_plane"], lambda found: bool(found and found["connected"]))

    def stop(self) -> None:
        for party in self.parties:
            party.close()
        self.agent.stop()
        self.softswitch.stop()
        shutil.rmtree(self.pin_dir, ignore_errors=True)

    # -- the admin API ---------------------------------------------------------------------------------------------

    def ask(self, question: Callable[[AdminClient], Awaitable[T]]) -> T:
        """Ask the agent. Raises AdminError."""

        async def asked() -> T:
            async with AdminClient(str(self.socket)) as client:
                return await question(client)

        return asyncio.run(asked())

    def conferences(self) -> list[Any] | None:
        """The list; None while the agent does not answer."""
        with contextlib.suppress(AdminError):
            return list(self.ask(lambda client: client.conferences()))
        return None

    def room(self, name: str = ROOM) -> dict[str, Any]:
        return dict(self.ask(lambda client: client.conference(name)))

    def create(self, name: str = ROOM) -> None:
        self.ask(lambda client: client.create_conference(name))

    def join(self, party: Party, *media: dict[str, Any], name: str = ROOM, **more: Any) -> dict[str, Any]:
        """Let a party in; by default with audio, or with video in layers where it is a camera."""
        video = {"medium": "video", "layers": {"by": "vp8"}}
        wanted = list(media) or [video if isinstance(party, Camera) else {"medium": "audio"}]
        return dict(self.ask(lambda client: client.join(name, party.name, wanted, **more)))  # type: ignore[arg-type]

    def leave(self, party: Party, name: str = ROOM) -> None:
        self.ask(lambda client: client.leave(name, party.name))

    def target(self, sender: Party, receiver: Party, target: int | None) -> None:
        self.ask(lambda client: client.set_targets(ROOM, [{"sender": sender.name, "receiver": receiver.name, "target": target}]))

    def metric(self, name: str) -> int:
        """A counter of conferences."""
        text = self.ask(lambda client: client.metrics())
        return next(int(float(line.split()[-1])) for line in text.splitlines() if line.startswith(f"shunt_conference_{name} ") or line.startswith(f"shunt_conference_{name}_total "))

    def events(self, what: str) -> list[dict[str, Any]]:
        """Events of conferences of a kind, so far."""

        async def read(client: AdminClient) -> list[dict[str, Any]]:
            return [event.facts async for event in client.events(1, follow=False) if isinstance(event, Event) and event.kind == "conference" and event.facts["what"] == what]

        return self.ask(read)

    def until(self, look: Callable[[], T], holds: Callable[[T], bool], seconds: float = 120.0) -> T:
        """Look until it holds. Raises LabError with what was seen last."""
        deadline = time.monotonic() + seconds
        while not holds(found := look()):
            if time.monotonic() > deadline:
                raise LabError(f"{found}\n{self.agent.tail()}")
            time.sleep(0.03)
        return found

    def await_design(self, design: str, seconds: float = 120.0) -> dict[str, Any]:
        return self.until(self.room, lambda room: room["design"] == design and room["problem"] is None, seconds)

    # -- participants ----------------------------------------------------------------------------------------------

    def party(self, host: str, name: str, kind: type[Party] = Party) -> Party:
        made = kind(self.topology, host, name)
        self.parties.append(made)
        return made

    def talking(self, count: int, kind: type[Party] = Party) -> list[Party]:
        """So many participants, on both hosts, who talk to each other already."""
        parties = [self.party(("caller", "callee")[at % 2], f"p{at}", kind) for at in range(count)]
        self.create()
        for party in parties:
            party.talk(self.join(party)["media"][0]["address"])
        for party in parties:
            party.await_packets(*(other for other in parties if other is not party))
            # From now on the agent knows that its RTCP has the port of its RTP.
            party.send_rtcp(rtcp.build_rr(party.ssrc))
        return parties


def pli(party: Party, sender: Party) -> bytes:
    """A request for a key frame in a party's name."""
    return rtcp.build_pli(party.ssrc, sender.ssrc)


@contextlib.contextmanager
def lab(work: Path) -> Iterator[Lab]:
    """A running lab without conferences; everything is gone afterwards."""
    with Topology("confd") as topology:
        made = Lab(topology, work)
        try:
            made.start()
            yield made
        finally:
            made.stop()
