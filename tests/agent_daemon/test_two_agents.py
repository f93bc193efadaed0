"""Two agents at one softswitch, each with a relay and ports of its own: neither notices the other."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shunt.admin import AdminClient
from tests.agent_daemon.lab import AGENT, RELAY, Lab, LiveScene
from tests.attacks.scene import ATTACKER_PORT, CALLEE_PORT, CALLER_PORT, Phone
from tests.lab.load import ControlClient
from tests.lab.processes import PORTS, Process
from tests.lab.topology import CALLEE_IP, CALLER_IP, EDGE_IP, EDGE_IP6, NAT_IP, Topology
from tests.softswitch.plane import Plane
from tests.tools.checked import checked

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

FIRST, SECOND = (PORTS[0], 44_999), (45_000, PORTS[1])
CONTROL, CONTROL_OF_RELAY, HEP = 22_231, 22_232, 9_061


class Second:
    """Another agent with another relay on the edge host of a lab, at the same softswitch under another program name."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.work = lab, lab.work / "second"
        self.work.mkdir()
        self.admin = Path("/run") / f"{lab.topology.prefix}-second.sock"
        self.agent = Process(lab.topology, "edge", "second agent", [AGENT, "-c", str(self.work / "agent.json")], self.work / "agent.log")
        self.relay = Process(lab.topology, "edge", "second relay", [RELAY, "-c", str(self.work / "relay.json")], self.work / "relay.log")
        config = lab.edge.shunt_config() | {
            "control": {"listen": [f"udp:127.0.0.1:{CONTROL}"]},
            "relays": [{"name": "second", "socket": f"udp:127.0.0.1:{CONTROL_OF_RELAY}", "media": media(SECOND), "ttl": 60, "symmetric": True}],
            "hep": {"listen": f"udp:127.0.0.1:{HEP}"},
            "journal": {"path": str(self.work / "journal.sqlite")},
            "admin": {"socket": str(self.admin), "socket_group": "root", "events": str(self.work / "events")},
            "log": {"level": "debug"},
        }
        config["data_plane"]["program"] = "second"
        config.pop("builtin_relay", None)
        del config["softswitch"]
        (self.work / "shunt.yaml").write_text(json.dumps(config))
        (self.work / "agent.json").write_text(json.dumps(checked(self.work / "shunt.yaml")))
        relay = json.loads((lab.work / "relay.json").read_text())
        relay["builtin_relay"] |= {"listen": [f"udp:127.0.0.1:{CONTROL_OF_RELAY}"], "ports": f"{SECOND[0]}-{SECOND[1]}"}
        (self.work / "relay.json").write_text(json.dumps(relay))

    def start(self) -> None:
        self.relay.start().await_listening("udp", CONTROL_OF_RELAY)
        self.start_agent()

    def start_agent(self) -> None:
        self.agent.start().await_listening("udp", CONTROL)
        self.agent.await_unix(self.admin)

    def stop(self) -> None:
        self.agent.stop()
        self.relay.stop()


def media(ports: tuple[int, int]) -> list[dict[str, str]]:
    return [{"address": address, "ports": f"{ports[0]}-{ports[1]}"} for address in (EDGE_IP, EDGE_IP6)]


class SecondScene(LiveScene):
    """Other phones, and the second agent's control socket."""

    def __init__(self, lab: Lab, offset: int = 100) -> None:
        """offset: by how much its ports are higher than a first scene's."""
        self.offset = offset
        super().__init__(lab)
        self.client.close()
        self.client = ControlClient.to(lab.topology, port=CONTROL)

    def _phones(self, number: int) -> tuple[Phone, Phone]:
        port = self.offset + 2 * number
        return (
            Phone(self.topology, "caller", CALLER_IP, CALLER_PORT + port, 0xA11CE00 + port),
            Phone(self.topology, "callee", CALLEE_IP, CALLEE_PORT + port, 0xB0B00 + port),
        )

    def _attacker(self) -> Phone:
        return Phone(self.topology, "nat", NAT_IP, ATTACKER_PORT + self.offset, 0xBAD000 + self.offset, payload=b"attack")


class Pair:
    """Both, each with a scene of its own."""

    def __init__(self, lab: Lab, second: Second) -> None:
        self.lab, self.second = lab, second
        self.scenes = LiveScene(lab), SecondScene(lab)
        self.sockets = lab.admin, second.admin

    async def status(self, which: int) -> dict[str, Any]:
        async with AdminClient(str(self.sockets[which])) as admin:
            return await admin.status()

    async def until(self, which: int, **wanted: Any) -> dict[str, Any]:
        """Wait for a status whose `data_plane` has these values."""
        deadline = time.monotonic() + 60
        while True:
            found = await self.status(which)
            if all(found["data_plane"][name] == value for name, value in wanted.items()):
                return found
            assert time.monotonic() < deadline, (wanted, found, self.lab.agent.tail(), self.second.agent.tail())
            await asyncio.sleep(0.05)

    async def talk(self) -> None:
        """A call through each agent, with all four streams in the data plane."""
        for number, scene in enumerate(self.scenes):
            to_caller, to_callee = await scene.call(f"call-{number}", natted=False)
            scene.caller.talk(to_caller)
            scene.callee.talk(to_callee)
        await self.scenes[0].until_entries(4)

    async def learn_again(self) -> None:
        """Beside the calls of talk() one more through each agent is offloaded."""
        extra = SecondScene(self.lab, offset=200), SecondScene(self.lab, offset=300)
        extra[0].client.close()
        extra[0].client = ControlClient.to(self.lab.topology)
        for number, scene in enumerate(extra):
            to_caller, to_callee = await scene.call(f"call-again-{number}", natted=False)
            scene.caller.talk(to_caller)
            scene.callee.talk(to_callee)
        await self.scenes[0].until_entries(8)
        for scene in extra:
            await scene.close()

    async def close(self) -> None:
        for scene in self.scenes:
            await scene.close()


@asynccontextmanager
async def pair(work: Path) -> AsyncIterator[Pair]:
    with Topology("agents") as topology:
        lab = Lab(topology, work, "shunt-relay")
        config = lab.edge.shunt_config()
        relays = [{"name": "local", "socket": f"udp:127.0.0.1:{lab.edge.relay_port}", "media": media(FIRST), "ttl": 60, "symmetric": True}]
        lab.configure(relays=relays, softswitch=config["softswitch"] | {"programs": ["relay", "second", "third"]})
        relay = json.loads((work / "relay.json").read_text())
        relay["builtin_relay"]["ports"] = f"{FIRST[0]}-{FIRST[1]}"
        (work / "relay.json").write_text(json.dumps(relay))
        second = Second(lab)
        try:
            await asyncio.to_thread(lab.start)
            await asyncio.to_thread(second.start)
            made = Pair(lab, second)
            try:
                for which in range(2):
                    await made.until(which, connected=True, reconciled=True)
                yield made
            finally:
                await made.close()
        finally:
            await asyncio.to_thread(second.stop)
            await asyncio.to_thread(lab.stop)


async def test_calls_of_both_are_offloaded_and_a_hang_up_ends_one(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        await both.talk()
        for which in range(2):
            found = await both.until(which, planned=2, orphans=0)
            assert (found["calls"], found["problems"]) == (1, []), found
        await both.scenes[0].hang_up("call-0")
        left = await both.scenes[1].until_entries(2)
        assert all(SECOND[0] <= key.dst.port <= SECOND[1] for key in left), left
        await both.scenes[1].hang_up("call-1")
        await both.scenes[1].until_entries(0)


async def test_the_death_of_one_costs_the_other_no_packet_and_no_entry(tmp_path: Path) -> None:
    """kill -9 of the first, and it comes back: it finds its own entries, and the other's are none of its business."""
    async with pair(tmp_path) as both:
        await both.talk()
        await asyncio.sleep(0.3)
        counted = [(phone, phone.sent, other, other.received[phone.ssrc]) for phone, other in _directions(both)]
        both.lab.agent.kill()
        await asyncio.sleep(1.0)
        # A new call through the other one is offloaded meanwhile.
        extra = SecondScene(both.lab, offset=200)
        to_caller, to_callee = await extra.call("call-2", natted=False)
        extra.caller.talk(to_caller)
        extra.callee.talk(to_callee)
        await both.scenes[1].until_entries(6)
        await asyncio.to_thread(both.lab.start_agent)
        await both.until(0, reconciled=True, planned=2, orphans=0)
        await both.until(1, reconciled=True, planned=4, orphans=0)
        assert len(await both.scenes[0].entries()) == 6
        for scene in both.scenes:
            await scene.caller.hush()
            await scene.callee.hush()
        await asyncio.sleep(0.3)
        for phone, sent, other, received in counted:
            # One may have been on its way when counting began.
            assert 0 <= other.received[phone.ssrc] - received - (phone.sent - sent) <= 1, (hex(phone.ssrc), phone.sent - sent, other.received[phone.ssrc] - received)
        await extra.close()


async def test_a_reset_by_another_client_is_made_good(tmp_path: Path) -> None:
    """All tables are empty, media ranges and idle times among them: both agents begin again with what they have planned."""
    async with pair(tmp_path) as both:
        await both.talk()
        bfrt = f"unix:{both.lab.edge.bfrt}"
        with Plane(bfrt, program="third") as third:
            third.session.reset_all()
            await both.scenes[0].until_entries(4)
            for which in range(2):
                await both.until(which, reconciled=True, planned=2, orphans=0)
        for work in (both.lab.work, both.second.work):
            assert "another client has reset the target's tables" in (work / "agent.log").read_text()
        await both.learn_again()


async def test_a_softswitch_that_comes_back_serves_both(tmp_path: Path) -> None:
    """kill -9 of the softswitch: entries go on, and each agent takes its media ranges up again."""
    async with pair(tmp_path) as both:
        await both.talk()
        both.lab.softswitch.kill()
        for which in range(2):
            await both.until(which, connected=False)
        await asyncio.to_thread(both.lab.edge.start_softswitch)
        for which in range(2):
            await both.until(which, connected=True, reconciled=True, planned=2, orphans=0)
        assert len(await both.scenes[0].entries()) == 4
        await both.learn_again()


async def test_ports_of_the_other_are_not_taken(tmp_path: Path) -> None:
    """An agent that is told to use another one's ports says which, and the other one's calls go on."""
    async with pair(tmp_path) as both:
        await both.talk()
        both.second.agent.stop()
        document = json.loads((both.second.work / "agent.json").read_text())
        document["relays"][0]["media"] = media(FIRST)
        (both.second.work / "agent.json").write_text(json.dumps(document))
        await asyncio.to_thread(both.second.start_agent)
        await both.until(1, connected=True)
        log = both.second.agent.log.read_text()
        assert f"Ports {FIRST[0]} to {FIRST[1]} of {EDGE_IP} are another program's" in log, both.second.agent.tail()
        await both.until(0, planned=2, orphans=0)
        before = both.scenes[0].callee.received[both.scenes[0].caller.ssrc]
        await asyncio.sleep(0.5)
        assert both.scenes[0].callee.received[both.scenes[0].caller.ssrc] > before
        assert len(await both.scenes[0].entries()) == 4, "nobody's entries are touched"


def _directions(both: Pair) -> list[tuple[Phone, Phone]]:
    """Who sends to whom."""
    found = []
    for scene in both.scenes:
        found += [(scene.caller, scene.callee), (scene.callee, scene.caller)]
    return found
