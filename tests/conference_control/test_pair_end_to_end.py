"""Conferences of a pair on one Redis, with real processes: the agent in charge dies, hangs or leaves, and participants, callers and operators go on with the other."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conference_control.lab import SIP_PORT, Bridge, Party, Phone, await_that, bridge, come_to_rest, sip_server, unbroken
from tests.conference_control.test_end_to_end import pytestmark as _needs
from tests.lab.processes import API_PORT, CONTROL_PORT, Process
from tests.lab.redis import RedisServer
from tests.lab.topology import EDGE_IP, LabError, Topology

pytestmark = [*_needs, pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")]

OTHER_CONTROL, OTHER_API = CONTROL_PORT + 10, API_PORT + 1
TAKE_OVER_S = 2.0


class PairBridge(Bridge):
    """A bridge with a second agent that stands by: the same file but for where it is commanded. Both are the agent in Python, with the operator's side inside."""

    def __init__(self, topology: Topology, work: Path) -> None:
        super().__init__(topology, work)
        self.agent = Process(topology, "edge", "agent", [word if word != "operator" else "run" for word in self.operator.argv], work / "agent.log", self.operator._env)
        del self.settings["relays"]
        self.settings["builtin_relay"] = {"addresses": [EDGE_IP], "ports": "35000-36000"}
        self.redis = RedisServer(topology, work)
        self.settings["journal"] = {"redis": self.redis.url, "group": "conferences"}
        self.other_sip = ""  # the other agent's, where it has one of its own
        self.other_config = work / "other.yaml"
        self.other = Process(topology, "edge", "other agent", [word.replace(str(self.config), str(self.other_config)) for word in self.agent.argv], work / "other.log", self.agent._env)

    def start(self) -> None:
        self.redis.start()
        super().start()
        self.await_role(API_PORT, "active")
        self.start_other()

    def start_agent(self) -> None:
        self.agent.start().await_listening("tcp", API_PORT, 30)

    def start_operator(self) -> None:
        """It is inside of the agent."""

    def start_other(self) -> None:
        conference = self.settings["conference"] | ({"sip": self.other_sip} if self.other_sip else {})
        other = self.settings | {"conference": conference, "control": {"listen": [f"udp:127.0.0.1:{OTHER_CONTROL}"]}, "api": {"listen": f"127.0.0.1:{OTHER_API}"}}
        self.other_config.write_text(yaml.safe_dump(other))
        self.other.start().await_listening("tcp", OTHER_API, 30)
        self.await_role(OTHER_API, "standby")

    def get(self, port: int, path: str) -> dict | None:
        """What the agent with its API at this port answers; None while it does not."""
        try:
            return json.loads(self._command(["curl", "-sS", "--fail-with-body", "-m", "1", f"http://127.0.0.1:{port}{path}"]))
        except LabError:
            return None

    def await_role(self, port: int, role: str, seconds: float = 15.0) -> None:
        assert await_that(lambda: (self.get(port, "/v1/status") or {}).get("role") == role, seconds), f"nobody is {role} at {port}\n{self.agent.tail()}\n{self.other.tail()}"

    def await_takeover(self, seconds: float) -> float:
        """Wait until the other agent has brought the conference to the data plane; how long that took."""
        began = time.monotonic()
        found = await_that(lambda: (self.get(OTHER_API, "/v1/conferences/room") or {"problem": "?"})["problem"] == "", seconds)
        assert found, f"not taken over after {seconds} s\n{self.other.tail()}"
        return time.monotonic() - began

    def stop(self) -> None:
        self.other.stop()
        super().stop()
        self.redis.stop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[PairBridge]:
    """A pair with an empty conference `room`."""
    with bridge(tmp_path, PairBridge) as made:
        made.ask("POST", "/v1/conferences?name=room")
        made.await_ready()
        yield made


def hear_each_other(parties: list[Party]) -> None:
    for one in parties:
        one.await_packets(*(other for other in parties if other is not one))


def three(pair: PairBridge) -> tuple[list[Phone], list[Party]]:
    """Two who have dialled in, and one behind a NAT whom the API has let in."""
    phones = [Phone(pair, host, name) for host, name in (("caller", "ann"), ("callee", "bob"))]
    for phone in phones:
        assert phone.call("room") == 200
    cem = pair.party("natcaller", "cem")
    cem.talk(pair.join(cem))
    pair.await_design("NRA")
    parties = [*(phone.party for phone in phones), cem]
    hear_each_other(parties)
    return phones, parties


def nothing_was_lost(parties: list[Party]) -> None:
    for one in parties:
        one.hush()
    for one in parties:
        for other in parties:
            if other is not one:
                await_that(lambda: one.received(other)[-1] == other.sent - 1)
                assert unbroken(one.received(other)) and one.received(other)[-1] == other.sent - 1, f"{one.name} of {other.name}"


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_the_agent_in_charge_goes(pair: PairBridge, how: str) -> None:
    """Nobody misses a packet; who has dialled in goes on hold, resumes and hangs up with the other agent, which knows everybody and lets others in."""
    phones, parties = three(pair)
    ann, bob, cem = parties
    for words in (["http://127.0.0.1:{}/v1/conferences"], ["-X", "POST", "-H", "X-Shunt-Command: 1", "http://127.0.0.1:{}/v1/conferences?name=other"]):
        assert "this agent stands by" in pair._command(["curl", "-sS", *(word.format(OTHER_API) for word in words)])
    pair.agent.kill() if how == "killed" else pair.agent.stop()
    took = pair.await_takeover(5.0)
    print(f"{how}: the other agent had the conference after {took:.2f} s")
    assert took < TAKE_OVER_S, pair.other.tail()
    # Three streams, six rewrites, a tree and its three nodes were there, and are no more than that in the end.
    pair.other.await_log("13 rows found, 10 of them taken out")
    hear_each_other(parties)
    look = pair.get(OTHER_API, "/v1/conferences/room")
    assert look is not None and {one["name"]: one["present"] for one in look["participants"]} == {"ann": True, "bob": True, "cem": True}
    relay = ann.relay
    assert phones[0].call("room", "m=audio {port} RTP/AVP 0\r\na=inactive\r\n") == 200 and ann.relay == relay
    assert come_to_rest(lambda: len(ann.received(bob))), "on hold"
    assert unbroken(ann.received(bob)) and unbroken(ann.received(cem))
    ann.got.clear()
    assert phones[0].call("room") == 200
    ann.await_packets(bob, cem)
    dan = Phone(pair, "caller", "dan")
    assert dan.call("room") == 200
    hear_each_other([*parties, dan.party])
    assert [phone.bye() for phone in (dan, phones[0])] == [200, 200]
    nothing_was_lost([bob, cem])
    pair._command(["curl", "-sS", "--fail-with-body", "-X", "DELETE", "-H", "X-Shunt-Command: 1", f"http://127.0.0.1:{OTHER_API}/v1/conferences/room/participants/bob"])
    assert phones[1].receive().startswith("BYE sip:bob@"), "who is put out gets a BYE, whoever answered the call"
    records = {one["participant"]: one for one in pair.records(3)}
    assert {name: one["reason"] for name, one in records.items()} == {"dan": "bye", "ann": "bye", "bob": "removed"}
    assert all(one["media"][0]["received_packets"] for one in records.values())


@pytest.mark.parametrize("name", ["kamailio", "opensips"])
def test_each_agent_has_a_sip_socket_of_its_own(tmp_path: Path, name: str) -> None:
    """As on two hosts. Callers' later requests go to the agent that answered, and when that is dead, or stands by, to the other."""
    if shutil.which(name) is None:
        pytest.skip(f"needs {name}")

    def apart(topology: Topology, work: Path) -> PairBridge:
        made = PairBridge(topology, work)
        made.settings["conference"]["sip"] = f"udp:127.0.0.1:{SIP_PORT}"
        made.other_sip = f"udp:127.0.0.1:{SIP_PORT + 1}"
        return made

    with bridge(tmp_path, apart) as pair:
        pair.ask("POST", "/v1/conferences?name=room")
        pair.await_ready()
        server = sip_server(pair, name, other_agent=True)
        try:
            phones = [Phone(pair, host, each, 5060) for host, each in (("caller", "ann"), ("callee", "bob"))]
            assert [phone.call("room") for phone in phones] == [200, 200]
            ann, bob = (phone.party for phone in phones)
            hear_each_other([ann, bob])
            pair.agent.kill()
            pair.await_takeover(5.0)
            hear_each_other([ann, bob])
            assert phones[0].call("room", "m=audio {port} RTP/AVP 0\r\na=sendonly\r\n") == 200, "by the agent that did not answer the call"
            assert phones[0].call("room") == 200 and "sip:127.0.0.1:5071" in phones[0].answer
            pair.start_agent()
            pair.await_role(API_PORT, "standby")
            late = Phone(pair, "caller", "late", 5060)
            assert late.call("room") == 200, "the agent that stands by says that it does, and the other answers"
            hear_each_other([ann, bob, late.party])
            assert [phone.bye() for phone in (late, phones[0], phones[1])] == [200, 200, 200]
            assert {one["participant"]: one["reason"] for one in pair.records(3)} == {"late": "bye", "ann": "bye", "bob": "bye"}
            assert unbroken(bob.received(ann))
        finally:
            server.stop()


def test_an_agent_that_hangs_is_replaced_and_does_not_write_when_it_wakes(pair: PairBridge) -> None:
    """It still holds the sockets: calls wait until it wakes. Then it finds another in charge, and stands by."""
    phones, parties = three(pair)
    pair.agent.signal(signal.SIGSTOP)
    try:
        pair.await_takeover(8.0)
        hear_each_other(parties)
        dan = pair.party("caller", "dan")
        answer = json.loads(pair._command(["curl", "-sS", "--fail-with-body", "-X", "POST", "-H", "X-Shunt-Command: 1", f"http://127.0.0.1:{OTHER_API}/v1/conferences/room/participants?name=dan"]))
        dan.talk(answer["media"][0]["relay"])
        hear_each_other([*parties, dan])
    finally:
        pair.agent.signal(signal.SIGCONT)
    pair.await_role(API_PORT, "standby")
    pair.other.await_log("conference.sip: the socket is there")
    assert phones[0].bye() == 200
    look = pair.get(OTHER_API, "/v1/conferences/room")
    assert look is not None and [one["name"] for one in look["participants"]] == ["bob", "cem", "dan"] and look["problem"] == ""
    parties[0].hush()
    nothing_was_lost([*parties[1:], dan])


def test_a_store_that_comes_back_empty_is_filled_again(pair: PairBridge) -> None:
    """What it had is written by the agent in charge, and is there for the other."""
    phones, parties = three(pair)
    pair._command(["redis-cli", "-p", pair.redis.url.rpartition(":")[2].partition("/")[0], "FLUSHALL"])
    pair.agent.await_log("writing everything again")
    time.sleep(0.5)
    pair.agent.kill()
    pair.await_takeover(5.0)
    look = pair.get(OTHER_API, "/v1/conferences/room")
    assert look is not None and [one["name"] for one in look["participants"]] == ["ann", "bob", "cem"]
    assert phones[0].bye() == 200
    nothing_was_lost(parties[1:])
