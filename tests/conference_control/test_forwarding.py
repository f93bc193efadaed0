"""Receivers on a switch: ports and next hops by its own routes, over BF Runtime with the schema of the compiled program; a double keeps the tables.

After every write the tables are walked as the switch does for a packet: whoever is in all along gets one copy, by the port that its next hop is at.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.schema import Schema
from shunt.conference.control import manager
from shunt.cli.conference import text
from shunt.conference.control.forwarding import Forwarding, NextHop, NoRoute
from shunt.conference.control.manager import Conferences
from shunt.conference.control.rows import Rows, StreamKey
from shunt.conference.control.settings import Conference as Settings
from shunt.conference.engine import CONFERENCE, COPY, MGID, NODE, PRUNE
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import LearnNotice
from shunt.tables.relay_table import RelayTable
from tests.bfrt.fake_switch import FakeSwitch, Refused, running
from tests.conference_control.lab import rest_of
from tests.p4.bfrt_bmv2 import FIXED
from tests.p4.program import GENERATED
from tests.p4.tofino import entity
from tests.softswitch.schema import load

PROGRAM = (GENERATED / "conference.tofino2.bf-rt.json").read_bytes()
SCHEMA = Schema.parse(PROGRAM, FIXED)
MACS = {number: (bytes.fromhex(f"0200000000a{number}"), bytes.fromhex(f"0200000000b{number}")) for number in range(1, 8)}
PORT_OF = {1: 1, 2: 7, 5: 7, 6: 7, 7: 8}  # by next hop
ANN, BOB, CEM, DAN = "10.1.0.2", "10.2.0.2", "10.2.9.9", "172.16.0.1"
_agents = itertools.count(100)


def hop(number: int, vlan: int = 0) -> pb.Entity:
    data: dict[str, bytes | int] = {"src_mac": MACS[number][0], "dst_mac": MACS[number][1]}
    return entity(SCHEMA, "Egress.nexthop", {"nexthop": number}, "Egress.send_tagged" if vlan else "Egress.send", {**data, "vlan": vlan} if vlan else data)


def route(prefix: str, number: int) -> pb.Entity:
    """To a next hop."""
    network, _, length = prefix.partition("/")
    six = "6" if ":" in network else ""
    key: Any = {"dst_addr": ("lpm", Endpoint.of(network, 0).addr, int(length))}
    return entity(SCHEMA, f"Ingress.route{six}", key, f"Ingress.forward{six}", {"port": PORT_OF.get(number, 1), "nexthop": number})


def ends(prefix: str, action: str, data: dict[str, bytes | int]) -> pb.Entity:
    network, _, length = prefix.partition("/")
    return entity(SCHEMA, "Ingress.route", {"dst_addr": ("lpm", Endpoint.of(network, 0).addr, int(length))}, action, data)


SCENE = [*(hop(number) for number in (1, 2, 5, 6, 7)), route("10.1.0.0/16", 1), route("10.2.0.0/16", 2), route("10.2.9.0/24", 5)]


# -- longest prefixes ------------------------------------------------------------------------------------------------


def answer(entities: Iterable[pb.Entity]) -> list[bytes]:
    return [pb.ReadResponse(entities=entities).SerializeToString()]


def forwarding(*entities: pb.Entity) -> Forwarding:
    made = Forwarding.of(SCHEMA)
    assert made is not None and made.take(answer(entities))
    return made


def addr(ip: str) -> bytes:
    return Endpoint.of(ip, 0).addr


def test_the_longest_prefix_leads():
    made = forwarding(hop(1), hop(2, vlan=300), hop(5), route("0.0.0.0/0", 1), route("10.2.0.0/15", 5), route("10.2.0.0/16", 2), route("10.2.0.9/32", 1), route("fd00::/8", 2))
    for ip, number in (("192.0.2.1", 1), ("10.3.0.1", 5), ("10.2.0.8", 2), ("10.2.0.9", 1), ("fd12::1", 2)):
        assert made.next_hop(addr(ip)) == NextHop(PORT_OF[number], number, *MACS[number], 300 if number == 2 else None)
    with pytest.raises(NoRoute, match="fe80::1: the switch has no route there"):
        made.next_hop(addr("fe80::1"))


def test_where_nothing_is_sent():
    made = forwarding(
        hop(1), route("10.1.0.0/16", 1), route("10.4.0.0/16", 4), ends("10.5.0.0/16", "Ingress.discard", {}), ends("10.9.0.1/32", "Ingress.to_cpu", {"port": 64}),
    )  # fmt: skip
    for ip, words in (
        ("10.2.0.1", "10.2.0.1: the switch has no route there"), ("10.4.0.1", "names next hop 4, and Egress.nexthop has none of that number"),
        ("10.5.0.1", "the switch's route there ends in Ingress.discard"), ("10.9.0.1", "ends in Ingress.to_cpu"),
    ):  # fmt: skip
        for _ in range(2):  # also when it is asked again
            with pytest.raises(NoRoute, match=words):
                made.next_hop(addr(ip))


def test_a_default_action_leads_too_and_the_same_again_is_no_change():
    default = route("0.0.0.0/0", 1)
    default.table_entry.ClearField("key")
    default.table_entry.is_default_entry = True
    read = [hop(1), hop(2), route("10.2.0.0/16", 2), default]
    made = forwarding(*read)
    assert made.next_hop(addr("192.0.2.1")).number == 1 and made.next_hop(addr("10.2.0.1")).number == 2
    assert not made.take(answer(read)) and not made.take(answer(reversed(read)))
    assert made.take(answer(read[:-1]))
    with pytest.raises(NoRoute):
        made.next_hop(addr("192.0.2.1"))


def test_a_softswitch_has_no_routes_of_its_own():
    assert Forwarding.of(load(conferences=True)) is None


# -- conferences -----------------------------------------------------------------------------------------------------


class Switch(FakeSwitch):
    """A switch's tables, and what they make of a packet. always: receivers of every stream but their own that each of these is to reach."""

    def __init__(self) -> None:
        super().__init__(PROGRAM, fixed=FIXED)
        self.rows = Rows(self.schema)
        self.always: set[Endpoint] = set()
        self.broken: list[str] = []
        prune = self.table(PRUNE)
        for number in range(prune.size):  # has all its rows from the start
            self.entries[prune.id][((next(iter(prune.key)).id, number.to_bytes(2, "big")),)] = pb.TableData()

    async def operate(self, kind: int, *entities: pb.Entity) -> None:
        """What the operator writes."""
        for made in entities:
            self._write(pb.Update(type=kind, entity=made))  # type: ignore[arg-type]

    async def Write(self, request: pb.WriteRequest, context: Any) -> pb.WriteResponse:
        answer = await super().Write(request, context)
        for key in self.table_of(CONFERENCE):
            found = self.copies(key)
            to = [dst for dst, _, _ in found]
            if len(set(to)) != len(to):
                self.broken.append(f"{key}: twice to one: {found}")
            if missing := self.always - set(to) - {key.flow.src}:
                self.broken.append(f"{key}: not to {missing}")
            if wrong := [one for one in found if PORT_OF[one[2]] != one[1]]:
                self.broken.append(f"{key}: by a port that its next hop is not at: {wrong}")
        return answer

    def table_of(self, name: str) -> dict[Any, Any]:
        made = []
        for number in {table.id for table in (*self.rows._conference.values(), self.rows._copy, self.rows._mgid, self.rows._node)}:
            for key, data in self.entries[number].items():
                one = pb.Entity()
                one.table_entry.table_id = number
                for field, value in key:
                    one.table_entry.key.fields.add(field_id=field).exact.value = value
                one.table_entry.data.CopyFrom(data)
                made.append(one)
        return {found.key: found.value for found in self.rows.found(made) if found.table == name}

    def copies(self, key: StreamKey) -> list[tuple[Endpoint, int, int]]:
        """Where a packet of a stream leaves to: address, port, next hop."""
        tree, nodes, copies = self.table_of(CONFERENCE)[key], self.table_of(NODE), self.table_of(COPY)
        left_out = self._ports_of(tree.l2_xid)
        found = []
        for member in self.table_of(MGID).get(tree.mgid, ()):
            node = nodes[member.node]
            if member.xid_valid and member.xid == tree.l1_xid:
                continue
            for port in node.ports:
                copy = copies.get((tree.stream, node.rid))
                if copy is not None and not (node.rid == tree.rid and port in left_out):
                    found.append((copy.dst, port, copy.nexthop))
        return found

    def _ports_of(self, xid: int) -> list[int]:
        table = self.table(PRUNE)
        data = self.entries[table.id][((next(iter(table.key)).id, xid.to_bytes(2, "big")),)]
        return [port for field in data.fields for port in field.int_arr_val.val]


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to hold")


class Agent:
    """Conferences on a switch, and a room."""

    def __init__(self, address: str, folder: Path) -> None:
        settings = Settings.model_validate({"address": "10.9.0.1", "ports": "20000-20099", "state": str(folder)})
        self.conferences, self.table = Conferences(settings, LatchPolicy()), RelayTable(address, client_id=next(_agents))
        self.conferences.attach(self.table)
        self.at_rest = rest_of(self.conferences)

    async def start(self) -> None:
        await self.table.start()
        await self.conferences.start()
        await until(lambda: not self.conferences.problem)

    async def stop(self) -> None:
        await self.conferences.close()
        await self.table.close()

    @property
    def room(self) -> Any:
        return self.conferences.book.get("room")

    def seat(self, name: str, **ips: str) -> None:
        """Somebody joins with these media, and is heard from these addresses."""
        self.conferences.join("room", name, list(ips), [addr(ip) for ip in ips.values()])
        for kind, ip in ips.items():
            self.conferences.noticed(LearnNotice(FiveTuple(self.at(ip, kind), self.room.participants[name].legs[kind].relay), 2, 0, 1, self.ssrc(name, kind)))

    @staticmethod
    def at(ip: str, kind: str = "audio") -> Endpoint:
        return Endpoint.of(ip, 7000 if kind == "audio" else 7002)

    @staticmethod
    def ssrc(name: str, kind: str = "audio") -> int:
        return int.from_bytes(f"{name}{kind[0]}".encode(), "big")

    def stream(self, name: str, kind: str = "audio") -> StreamKey:
        leg = self.room.participants[name].legs[kind]
        return StreamKey(FiveTuple(leg.latch.learned, leg.relay), self.ssrc(name, kind))

    async def rest(self) -> None:
        """Until nothing is left to be done."""
        await until(self.at_rest)


@pytest.fixture
async def switch(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Switch, str]]:
    monkeypatch.setattr(manager, "_POLL_S", 0.1)
    made = Switch()
    async with running(made) as address:
        await made.operate(pb.Update.INSERT, *SCENE)
        yield made, address
    assert made.broken == []


@pytest.fixture
async def agent(switch: tuple[Switch, str], tmp_path: Path) -> AsyncIterator[Agent]:
    made = Agent(switch[1], tmp_path)
    await made.start()
    made.conferences.create("room")
    yield made
    await made.stop()


async def test_each_receiver_by_its_own_port_and_next_hop(switch: tuple[Switch, str], agent: Agent) -> None:
    tables, _ = switch
    for name, ip in (("ann", ANN), ("bob", BOB), ("cem", CEM)):
        agent.seat(name, audio=ip)
    await until(lambda: len(tables.table_of(CONFERENCE)) == 3)
    await agent.rest()
    to = {"ann": (agent.at(ANN), 1, 1), "bob": (agent.at(BOB), 7, 2), "cem": (agent.at(CEM), 7, 5)}
    for name in to:
        assert sorted(tables.copies(agent.stream(name))) == sorted(one for other, one in to.items() if other != name)

    # Nobody knows the way to dan: he is heard, gets nothing, and why is said.
    agent.seat("dan", audio=DAN)
    await until(lambda: len(tables.table_of(CONFERENCE)) == 4)
    await agent.rest()
    assert sorted(tables.copies(agent.stream("dan"))) == sorted(to.values())
    assert agent.at(DAN) not in {one.dst for one in tables.table_of(COPY).values()}
    reason = "172.16.0.1: the switch has no route there"
    assert agent.room.unreached == {("dan", "audio"): reason} and agent.conferences.totals()["unreached"] == 1
    shown = text(await agent.conferences.look("room"))
    assert f"gets nothing: {reason}" in shown and f"dan gets no audio: {reason}" in shown
    # His route comes.
    tables.always = {agent.at(ip) for ip in (ANN, BOB, CEM)}
    await tables.operate(pb.Update.INSERT, route("0.0.0.0/0", 7))
    await until(lambda: (agent.at(DAN), 8, 7) in tables.copies(agent.stream("ann")))
    await agent.rest()
    assert agent.room.unreached == {} and agent.room.happened[-1]["what"] == "route"
    assert (agent.at(DAN), 8, 7) not in tables.copies(agent.stream("dan"))


async def test_routes_that_change_are_followed_without_a_gap(switch: tuple[Switch, str], agent: Agent) -> None:
    tables, _ = switch
    for name, ip in (("ann", ANN), ("bob", BOB), ("cem", CEM)):
        agent.seat(name, audio=ip)
    await until(lambda: len(tables.table_of(CONFERENCE)) == 3)
    await agent.rest()
    tables.always = {agent.at(ip) for ip in (ANN, BOB, CEM)}
    trees = set(tables.table_of(MGID))
    await tables.operate(pb.Update.MODIFY, route("10.2.9.0/24", 6))  # another next hop at the same port
    await until(lambda: (agent.at(CEM), 7, 6) in tables.copies(agent.stream("ann")))
    await agent.rest()
    assert set(tables.table_of(MGID)) == trees
    await tables.operate(pb.Update.MODIFY, route("10.2.0.0/16", 7))  # bob is behind another port
    await until(lambda: (agent.at(BOB), 8, 7) in tables.copies(agent.stream("ann")))
    await agent.rest()
    assert sorted(tables.copies(agent.stream("cem"))) == [(agent.at(ANN), 1, 1), (agent.at(BOB), 8, 7)]
    assert sorted(tables.copies(agent.stream("bob"))) == [(agent.at(ANN), 1, 1), (agent.at(CEM), 7, 6)], "what he sends does not come back at his new port"
    # And back, with somebody who gets less: other trees, the same invariants.
    agent.conferences.set_quality("room", "ann", "cem", "audio")
    await tables.operate(pb.Update.MODIFY, route("10.2.0.0/16", 2))
    await until(lambda: (agent.at(BOB), 7, 2) in tables.copies(agent.stream("ann")))
    # A route goes: only its receiver has nothing any more.
    tables.always = {agent.at(ip) for ip in (ANN, CEM)}
    await tables.operate(pb.Update.DELETE, route("10.2.0.0/16", 2))
    await until(lambda: ("bob", "audio") in agent.room.unreached)
    await agent.rest()
    assert tables.copies(agent.stream("ann")) == [(agent.at(CEM), 7, 6)]
    for name in ("ann", "bob", "cem"):
        agent.conferences.leave("room", name)
    tables.always = set()
    await until(lambda: not any(tables.table_of(name) for name in (CONFERENCE, COPY, NODE, MGID)))
    await until(lambda: not any(tables._ports_of(xid) for xid in range(288)))  # no exclusion set is left filled


async def test_media_of_one_participant_have_one_port(switch: tuple[Switch, str], agent: Agent) -> None:
    """A node of a tree is one participant: two ports would be two copies of everything."""
    tables, _ = switch
    agent.seat("bob", audio=ANN[:-1] + "3", video=BOB)
    agent.seat("ann", audio=ANN, video=ANN)
    await until(lambda: len(tables.held("Ingress.relay")) == 4)
    await agent.rest()
    assert agent.room.unreached == {}, "relay entries go by each medium's own route"
    agent.seat("cem", audio=CEM, video=CEM)
    await until(lambda: len(tables.table_of(CONFERENCE)) == 6)
    await agent.rest()
    assert agent.room.unreached == {("bob", "video"): "10.2.0.2: the switch sends there by port 7, and other media of bob by port 1; they have to have one in common"}
    assert agent.at(BOB, "video") not in {one.dst for one in tables.table_of(COPY).values()}
    assert (agent.at("10.1.0.3"), 1, 1) in tables.copies(agent.stream("ann"))
    assert sorted(tables.copies(agent.stream("bob", "video"))) == [(agent.at(ANN, "video"), 1, 1), (agent.at(CEM, "video"), 7, 5)]


async def test_an_agent_that_starts_anew_finds_what_is_there(switch: tuple[Switch, str], agent: Agent, tmp_path: Path) -> None:
    tables, address = switch
    for name, ip in (("ann", ANN), ("bob", BOB), ("cem", CEM)):
        agent.seat(name, audio=ip)
    await until(lambda: len(tables.table_of(CONFERENCE)) == 3)
    await agent.rest()
    before = sorted(tables.copies(agent.stream("ann")))
    tables.always = {agent.at(ip) for ip in (ANN, BOB, CEM)}
    await agent.conferences.close()
    await agent.table.close()
    again = Agent(address, tmp_path)
    await again.start()
    try:
        await again.rest()
        assert sorted(tables.copies(again.stream("ann"))) == before
        assert [len(tables.table_of(name)) for name in (CONFERENCE, MGID, NODE)] == [3, 1, 3]
        await tables.operate(pb.Update.MODIFY, route("10.2.0.0/16", 7))
        await until(lambda: (agent.at(BOB), 8, 7) in tables.copies(again.stream("ann")))
    finally:
        await again.stop()


async def test_a_route_that_is_missing_is_looked_for_at_once(switch: tuple[Switch, str], agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "_POLL_S", 600.0)
    await asyncio.sleep(0.2)  # the last reading that was on its way
    tables, _ = switch
    await tables.operate(pb.Update.INSERT, route("172.16.0.0/12", 7))
    monkeypatch.setattr(manager, "_ROUTES_S", 0.0)
    for name, ip in (("ann", ANN), ("bob", BOB), ("dan", DAN)):
        agent.seat(name, audio=ip)
    await until(lambda: len(tables.table_of(CONFERENCE)) == 3)
    await agent.rest()
    assert (agent.at(DAN), 8, 7) in tables.copies(agent.stream("ann")) and agent.room.unreached == {}


async def test_routes_that_cannot_be_read_stay_as_they_were(switch: tuple[Switch, str], agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    tables, _ = switch
    for name, ip in (("ann", ANN), ("bob", BOB), ("cem", CEM)):
        agent.seat(name, audio=ip)
    await until(lambda: len(tables.table_of(CONFERENCE)) == 3)
    await agent.rest()
    tables.always = {agent.at(ip) for ip in (ANN, BOB, CEM)}
    trees = tables.table_of(MGID)
    refused = tables.table("Egress.nexthop").id
    read = tables._read

    def refuse(entity_: pb.Entity, response: pb.ReadResponse) -> None:
        if entity_.table_entry.table_id == refused:
            raise Refused(13, "not now")
        read(entity_, response)

    monkeypatch.setattr(tables, "_read", refuse)
    await until(lambda: "the switch's routes cannot be read, and those of before are in force" in caplog.text)
    assert not agent.conferences.problem and tables.table_of(MGID) == trees
    monkeypatch.setattr(tables, "_read", read)
    await tables.operate(pb.Update.MODIFY, route("10.2.0.0/16", 7))
    await until(lambda: (agent.at(BOB), 8, 7) in tables.copies(agent.stream("ann")))
