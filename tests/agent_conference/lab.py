"""Softswitch and shunt-agent on the edge host, with conferences, driven by the admin API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml

from shunt.admin import AdminClient, AdminError, Event
from shunt.cli import daemons
from tests.tools.checked import checked, program
from tests.tools.conference import rtcp
from tests.lab.party import Party
from tests.lab.processes import CONTROL_PORT, RELAY_PORT, Process
from tests.lab.topology import BPF, EDGE_INTERFACES, EDGE_IP, LabError, Topology

AGENT = program("agent")
PRIORITY = ["nice", f"--adjustment={daemons.PRIORITY}"]  # as `shunt softswitch` starts it
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
        self.softswitch = Process(topology, "edge", "softswitch", [*PRIORITY, program("softswitch"), "-c", str(work / "softswitch.json")], work / "softswitch.log")
        self.agent = Process(topology, "edge", "shunt-agent", [AGENT, "-c", str(work / "agent.json")], work / "agent.log")
        self.parties: list[Party] = []
        self._first_event = 1
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
        document = checked(self.config)
        document["admin"] = {"socket": str(self.socket), "socket_group": "root", "events": str(self.work / "events")}
        (self.work / "agent.json").write_text(json.dumps(document))
        (self.work / "softswitch.json").write_text(json.dumps(checked(self.config, "softswitch")))

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

    def reset(self) -> None:
        """Have no conference and no party, all processes running, and no event yet."""
        self.dismiss()
        if not self.softswitch.alive:
            self.start_softswitch()
        if not self.agent.alive:
            self.start_agent()
        for one in self.until(self.conferences, lambda found: found is not None) or []:
            self.ask(lambda client, name=one["conference"]: client.end_conference(name))  # type: ignore[misc]
        self.until(lambda: self.metric("rows"), lambda rows: rows <= 1)  # one that is always there
        self._first_event = max((event.seq for event in self._events()), default=0) + 1

    def dismiss(self) -> None:
        """Close all parties' sockets."""
        for party in self.parties:
            party.close()
        self.parties.clear()

    def stop(self) -> None:
        self.dismiss()
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

    def await_copies(self, count: int = 500) -> None:
        """Wait until the agent has got so many copies more of what participants send."""
        least = self.metric("packets_copied") + count
        self.until(lambda: self.metric("packets_copied"), lambda copied: copied > least)

    def events(self, what: str) -> list[dict[str, Any]]:
        """Events of conferences of a kind, since the last reset."""
        return [event.facts for event in self._events() if event.seq >= self._first_event and event.kind == "conference" and event.facts["what"] == what]

    def _events(self) -> list[Event]:
        async def read(client: AdminClient) -> list[Event]:
            return [event async for event in client.events(1, follow=False) if isinstance(event, Event)]

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
