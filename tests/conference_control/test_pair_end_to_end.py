"""Conferences of a pair on one Redis, each agent with its operator daemon: one pair of processes dies, hangs or leaves, and participants, callers and operators go on
with the other."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conference_control.lab import AGENT, SIP_PORT, Bridge, Party, Phone, await_that, bridge, come_to_rest, sip_server, unbroken
from tests.conference_control.room import NEEDS as pytestmark, need
from tests.lab.processes import API_PORT, CONTROL_PORT, Process
from tests.lab.redis import RedisServer
from tests.lab.topology import EDGE_IP, LabError, Topology
from tests.tools.checked import checked


OTHER_CONTROL, OTHER_API, OTHER_SIP = CONTROL_PORT + 10, API_PORT + 1, SIP_PORT + 1


class PairBridge(Bridge):
    """A bridge with a second agent that stands by, and its operator daemon: as on two hosts, each with SIP socket, REST API and records of its own."""

    def __init__(self, topology: Topology, work: Path, sip_ip: str = EDGE_IP) -> None:
        super().__init__(topology, work)
        self.redis = RedisServer(topology, work)
        self.settings["journal"] = {"redis": self.redis.url, "group": "conferences"}
        self.settings["conference"]["sip"] = f"udp:{sip_ip}:{SIP_PORT}"
        self.other_config = work / "other.yaml"
        self.other_admin = self.admin.with_name(f"{topology.prefix}-other.sock")
        self.other = Process(topology, "edge", "other agent", [AGENT, "-c", str(work / "other.json")], work / "other.log")
        argv = [word.replace(str(self.config), str(self.other_config)) for word in self.operator.argv]
        self.other_operator = Process(topology, "edge", "other operator", argv, work / "other-operator.log", self.operator._env)

    def start(self) -> None:
        self.redis.start()
        super().start()
        self.await_role(API_PORT, "active")
        self.other.start().await_listening("udp", OTHER_CONTROL)
        self.other.await_unix(self.other_admin)
        self.other_operator.start().await_listening("tcp", OTHER_API)
        self.await_role(OTHER_API, "standby")

    def configure(self) -> None:
        super().configure()
        work = self.work
        conference = self.settings["conference"] | {
            "sip": self.settings["conference"]["sip"].replace(str(SIP_PORT), str(OTHER_SIP)),
            "cdr": {"csv": str(work / "other.csv"), "json_lines": str(work / "other.jsonl")},
        }
        other = self.settings | {
            "conference": conference,
            "control": {"listen": [f"udp:127.0.0.1:{OTHER_CONTROL}"]},
            "api": {"listen": f"127.0.0.1:{OTHER_API}"},
            "admin": {"socket": str(self.other_admin), "socket_group": "root", "events": str(work / "other-events")},
            "operator": {"state_dir": str(work / "other-operator")},
        }
        self.other_config.write_text(yaml.safe_dump(other))
        (work / "other.json").write_text(json.dumps(checked(self.other_config)))

    def first_goes(self, *, killed: bool) -> None:
        """The agent in charge and its operator daemon are gone, as when their host is."""
        for process in (self.operator, self.agent):
            process.kill() if killed else process.stop()

    def get(self, port: int, path: str) -> dict[str, Any] | None:
        """What the API at this port answers; None while it does not."""
        try:
            return dict(json.loads(self._command(["curl", "-sS", "--fail-with-body", "-m", "1", f"http://127.0.0.1:{port}{path}"])))
        except LabError:
            return None

    def ask_other(self, method: str, path: str) -> dict[str, Any]:
        """A request to the other API. Raises LabError with its words when it fails."""
        return dict(json.loads(self._command(["curl", "-sS", "--fail-with-body", "-X", method, "-H", "X-Shunt-Command: 1", f"http://127.0.0.1:{OTHER_API}{path}"])))

    def await_role(self, port: int, role: str) -> None:
        assert await_that(lambda: (self.get(port, "/v1/status") or {}).get("role") == role), f"nobody is {role} at {port}\n{self.agent.tail()}\n{self.other.tail()}"

    def await_takeover(self) -> None:
        """Wait until the other agent has brought the conference to the data plane."""
        found = await_that(lambda: (self.get(OTHER_API, "/v1/conferences/room") or {"problem": "?"})["problem"] == "")
        assert found, f"not taken over\n{self.other.tail()}"
        self.other_operator.await_log("accepting calls at")

    def other_records(self, count: int) -> dict[str, dict[str, Any]]:
        """The records that the other operator daemon has written, by participant, once there are so many."""
        path = self.work / "other.jsonl"
        assert await_that(lambda: path.exists() and len(path.read_text().splitlines()) >= count), self.other_operator.tail()
        return {one["participant"]: one for one in map(json.loads, path.read_text().splitlines())}

    def stop(self) -> None:
        self.other_operator.stop()
        self.other.stop()
        super().stop()
        self.redis.stop()


def hear_each_other(parties: list[Party]) -> None:
    for one in parties:
        one.await_packets(*(other for other in parties if other is not one))


@pytest.mark.parametrize("name", ["kamailio", "opensips"])
def test_callers_behind_a_sip_server_go_on_with_the_other_agent(tmp_path: Path, name: str) -> None:
    """Callers' later requests go to the daemon that answered, and when that is dead, or its agent stands by, to the other."""
    need(name)
    with bridge(tmp_path, lambda topology, work: PairBridge(topology, work, "127.0.0.1")) as pair:
        pair.ask("POST", "/v1/conferences?name=room")
        pair.await_ready()
        server = sip_server(pair, name, other_agent=True)
        try:
            phones = [Phone(pair, host, each, 5060) for host, each in (("caller", "ann"), ("callee", "bob"))]
            assert [phone.call("room") for phone in phones] == [200, 200]
            ann, bob = (phone.party for phone in phones)
            hear_each_other([ann, bob])
            pair.first_goes(killed=True)
            pair.await_takeover()
            hear_each_other([ann, bob])
            assert phones[0].call("room", "m=audio {port} RTP/AVP 0\r\na=sendonly\r\n") == 200, "by the daemon that did not answer the call"
            assert phones[0].call("room") == 200 and f"sip:127.0.0.1:{OTHER_SIP}" in phones[0].answer
            pair.start_agent()
            pair.operator.start()
            pair.await_role(API_PORT, "standby")
            late = Phone(pair, "caller", "late", 5060)
            assert late.call("room") == 200, "the daemon whose agent stands by says that it does, and the other answers"
            hear_each_other([ann, bob, late.party])
            assert [phone.bye() for phone in (late, phones[0], phones[1])] == [200, 200, 200]
            assert {name: one["reason"] for name, one in pair.other_records(3).items()} == {"late": "bye", "ann": "bye", "bob": "bye"}
            assert unbroken(bob.received(ann))
        finally:
            server.stop()
