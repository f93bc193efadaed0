"""Conferences of a pair: the agent in charge dies or hangs, Redis is emptied, and everybody goes on with the other agent."""

from __future__ import annotations

import copy
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shunt.admin import AdminError
from tests.agent_conference.lab import AGENT, Lab
from tests.agent_conference.test_media import all_unbroken
from tests.lab.party import Party
from tests.lab.processes import CONTROL_PORT, Process
from tests.lab.redis import RedisServer
from tests.lab.topology import Topology

OTHER_CONTROL = CONTROL_PORT + 10


class PairLab(Lab):
    """A lab with a second agent that stands by. Questions go to the agent that `socket` names."""

    def __init__(self, topology: Topology, work: Path) -> None:
        super().__init__(topology, work)
        self.redis = RedisServer(topology, work)
        self.settings["journal"] = {"redis": self.redis.url, "group": "conferences"}
        self.own = self.socket
        self.other_socket = self.socket.with_name(f"{topology.prefix}-other.sock")
        self.other = Process(topology, "edge", "other agent", [AGENT, "-c", str(work / "other.json")], work / "other.log")

    def start(self) -> None:
        self.redis.start()
        super().start()
        document = json.loads((self.work / "agent.json").read_text())
        other = copy.deepcopy(document)
        other["control"]["listen"] = [f"udp:127.0.0.1:{OTHER_CONTROL}"]
        other["admin"] |= {"socket": str(self.other_socket), "events": str(self.work / "other-events")}
        (self.work / "other.json").write_text(json.dumps(other))
        self.other.start().await_listening("udp", OTHER_CONTROL)
        self.socket = self.other_socket
        self.until(self.status, lambda found: found is not None and found["role"] == "standby" and found["ready"])
        self.socket = self.own

    def status(self) -> dict[str, Any] | None:
        try:
            return dict(self.ask(lambda client: client.status()))
        except AdminError:
            return None

    def take_over(self, seconds: float = 15.0) -> None:
        """From now on the other agent is asked; wait until it is in charge and has the conferences in the data plane."""
        self.socket = self.other_socket
        began = time.monotonic()
        self.until(self.status, lambda found: found is not None and found["role"] == "active", seconds)
        self.until(self.room, lambda room: room["problem"] is None, seconds)
        print(f"the other agent had the conference after {time.monotonic() - began:.2f} s")

    def stop(self) -> None:
        self.other.stop()
        super().stop()
        self.redis.stop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[PairLab]:
    with Topology("confp") as topology:
        made = PairLab(topology, tmp_path)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def hear_each_other(parties: list[Party]) -> None:
    for party in parties:
        party.await_packets(*(other for other in parties if other is not party))


def names(lab: Lab) -> list[str]:
    return [member["participant"] for member in lab.room()["members"]]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_agent_in_charge_goes(pair: PairLab, number: int) -> None:
    """Nobody misses a packet, the other agent knows everybody, and lets others in; one that hung stands by when it wakes."""
    parties = pair.talking(3)
    before = pair.await_design("nra")
    pair.socket = pair.other_socket
    with pytest.raises(AdminError, match="stands by"):
        pair.ask(lambda client: client.conferences())
    pair.agent.signal(number)
    pair.take_over()
    after = pair.await_design("nra")
    assert [member["media"][0]["address"] for member in after["members"]] == [member["media"][0]["address"] for member in before["members"]]
    hear_each_other(parties)
    new = pair.party("callee", "new")
    new.talk(pair.join(new)["media"][0]["address"])
    hear_each_other([*parties, new])
    if number == signal.SIGSTOP:
        pair.agent.signal(signal.SIGCONT)
        pair.socket = pair.own
        pair.until(pair.status, lambda found: found is not None and found["role"] == "standby")
        pair.socket = pair.other_socket
        assert sorted(names(pair)) == ["new", "p0", "p1", "p2"]
    for party in [*parties, new]:
        party.hush()
    all_unbroken([*parties, new])
    pair.until(lambda: pair.metric("rows"), lambda rows: rows == 4 + 12 + 4 + 1 + 1)


def test_a_store_that_comes_back_empty_is_filled_again(pair: PairLab) -> None:
    parties = pair.talking(3)
    pair.await_design("nra")
    port = pair.redis.url.rpartition(":")[2].partition("/")[0]
    subprocess.run(pair.topology.enter("edge", "redis-cli", "-p", port, "FLUSHALL"), check=True, capture_output=True)
    pair.agent.await_log("everything is written again")
    pair.until(pair.status, lambda found: found is not None and found["journal"]["pending"] == 0 and found["journal"]["error"] is None)
    pair.agent.kill()
    pair.take_over()
    assert sorted(names(pair)) == ["p0", "p1", "p2"]
    hear_each_other(parties)
