"""A whole agent with a chip that finds entries by a 32-bit hash: two calls of one hash, and every packet arrives where it should."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shunt import collide, offload
from shunt.agent import Agent
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.proxy_hash import HASH32, LinearHash
from shunt.config.load import loads
from shunt.net import Endpoint, FiveTuple
from shunt.tables import collisions
from shunt.tables.entry import LearnNotice
from tests.bfrt.fake_switch import FakeSwitch, running
from tests.bfrt.test_proxy_hash import colliding
from tests.bfrt.test_relay_table import until
from tests.softswitch.schema import document

HASH = LinearHash.of_crc(HASH32, 12)
RELAY = "127.0.0.1"


class Chip(FakeSwitch):
    """A switch that finds an entry by the hash of its key, the first one in wins: what a hashed build does with equal hashes. It raises notices."""

    def __init__(self) -> None:
        tables = [table for table in document("relay")["tables"] if not table["name"].startswith("softswitch.")]
        super().__init__(json.dumps({**document("relay"), "tables": tables}).encode())

    def learned(self, notice: LearnNotice) -> None:
        """A packet has come that meets no entry."""
        message = pb.StreamMessageResponse()
        learn = self.schema.learns["learn"]
        message.digest.digest_id = learn.id
        (src, dst), data = notice.key, message.digest.data.add()
        values = (src.addr, dst.addr, src.port, dst.port, notice.rtp_version, notice.payload_type, notice.seq, notice.ssrc)
        for field, value in zip(learn.fields, values, strict=True):
            data.fields.add(field_id=field.id, stream=value if isinstance(value, bytes) else value.to_bytes(field.size or 0, "big"))
        self.notify(message)

    def lookup(self, key: FiveTuple) -> Endpoint | None:
        """Where a packet of this key is sent to; None where it meets no entry."""
        table = self.table("Ingress.relay")
        for (src, dst, sport, dport), data in self.held("Ingress.relay").items():
            held = FiveTuple(Endpoint(src, int.from_bytes(sport, "big")), Endpoint(dst, int.from_bytes(dport, "big")))
            if HASH.of(held) == HASH.of(key):
                fields = table.actions.by_id[data.action_id].fields
                found = {fields.by_id[each.field_id].name: each.stream for each in data.fields if each.field_id in fields.by_id}
                return Endpoint(found["dst_addr"], int.from_bytes(found["dst_port"], "big"))
        return None


class Phone:
    """A socket on loopback that remembers what it hears."""

    def __init__(self, at: Endpoint) -> None:
        self.at = at
        self.heard: list[bytes] = []
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        self.sock.bind((socket.inet_ntoa(at.addr), at.port))
        asyncio.get_running_loop().add_reader(self.sock, lambda: self.heard.append(self.sock.recv(2048)))

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.sock)
        self.sock.close()


class Stage:
    """The agent, its built-in relay, the chip and the phones."""

    def __init__(self, agent: Agent, chip: Chip) -> None:
        self.agent = agent
        self.chip = chip
        self.phones: list[Phone] = []
        self.sequence = 0

    def phone(self, at: Endpoint) -> Phone:
        self.phones.append(Phone(at))
        return self.phones[-1]

    async def command(self, text: str) -> int:
        reply = await self.agent.proxy.handle(text.encode(), b"1", "127.0.0.1")
        assert reply is not None
        return int(reply.split()[0])

    async def offer(self, call: str, at: Endpoint) -> Endpoint:
        """Where the callee sends to."""
        return Endpoint.of(RELAY, await self.command(f"Uc0 {call} {socket.inet_ntoa(at.addr)} {at.port} a;1"))

    async def answer(self, call: str, at: Endpoint) -> Endpoint:
        """Where the caller sends to."""
        return Endpoint.of(RELAY, await self.command(f"Lc0 {call} {socket.inet_ntoa(at.addr)} {at.port} a;1 b;1"))

    def send(self, phone: Phone, to: Endpoint, word: bytes) -> bytes:
        """One RTP packet: the chip carries it by what it finds, else it goes on to the relay and a notice to the agent."""
        self.sequence += 1
        ssrc = phone.at.port
        packet = b"\x80\x00" + self.sequence.to_bytes(2, "big") + bytes(4) + ssrc.to_bytes(4, "big") + word
        key = FiveTuple(phone.at, to)
        onward = self.chip.lookup(key)
        if onward is None:
            phone.sock.sendto(packet, (socket.inet_ntoa(to.addr), to.port))
            self.chip.learned(LearnNotice(key, 2, 0, self.sequence, ssrc))
        else:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
                out.sendto(packet, (socket.inet_ntoa(onward.addr), onward.port))
        return packet

    async def states(self, call: str) -> dict[str, tuple[str, str, str]]:
        """State, reason and detail of each direction's RTP, as `shunt why` has them."""
        view = await self.agent.why(call)
        assert view is not None
        return {s["direction"]: (s["state"], s["reason"], s["detail"]) for s in view["media"][0]["streams"] if s["component"] == "rtp"}


@asynccontextmanager
async def stage(folder: Path, setting: str) -> AsyncIterator[Stage]:
    chip = Chip()
    async with running(chip) as target:
        text = f"""
control: {{listen: ["unix:{folder}/c"]}}
builtin_relay: {{addresses: [{RELAY}], ports: 21200-21299}}
data_plane: {{target: "{target}", hash: {setting}}}
learning: {{one_way_after_s: 30}}
api: {{listen: "unix:{folder}/a"}}
"""
        agent = Agent(loads(text))
        await agent.start()
        made = Stage(agent, chip)
        try:
            await until(lambda: chip.held("Ingress.media"))
            yield made
        finally:
            for phone in made.phones:
                phone.close()
            await agent.close()


async def two_calls(stage: Stage, *, talk_first: bool = False) -> tuple[list[Phone], list[Endpoint]]:
    """Two calls whose callers' 5-tuples have the same hash; the phones, and where each sends to."""
    first, callee = Endpoint.of("127.10.0.1", 6000), Endpoint.of("127.10.0.2", 7000)
    from_callee = await stage.offer("one", first)
    from_first = await stage.answer("one", callee)
    phones, targets = [stage.phone(first), stage.phone(callee)], [from_first, from_callee]
    if talk_first:
        await talk(stage, phones, targets, 10)
        assert {state for state, _, _ in (await stage.states("one")).values()} == {"offloaded"}
    # The second caller's address is chosen when it is known where it will send to: a probing call shows the next ports.
    other = Endpoint.of("127.10.0.3", 7000)
    from_other = await stage.offer("two", Endpoint.of("127.10.0.9", 6000))
    from_second = await stage.answer("two", other)
    wanted = HASH.of(FiveTuple(first, from_first))
    second = next(
        key.src for base in range(256) for key in colliding_with(wanted, FiveTuple(Endpoint(bytes((127, base, 1, 1)), 6000), from_second)) if key.src.port > 1024
    )
    assert HASH.of(FiveTuple(second, from_second)) == wanted
    await stage.offer("two", second)
    await stage.answer("two", other)
    return [*phones, stage.phone(second), stage.phone(other)], [*targets, from_second, from_other]


def colliding_with(wanted: int, key: FiveTuple) -> list[FiveTuple]:
    """5-tuples with a wanted hash that differ from `key` in the source only, the first byte of its address left as it is."""
    free = [*range(8, 32), *range(64, 80)]
    basis: dict[int, tuple[int, int]] = {}
    for bit in free:
        column, mask = HASH.columns[bit], 1 << 95 - bit
        while column and (top := column.bit_length()) in basis:
            column, mask = column ^ basis[top][0], mask ^ basis[top][1]
        if column:
            basis[column.bit_length()] = (column, mask)
    rest, mask = HASH.of(key) ^ wanted, 0
    while rest and rest.bit_length() in basis:
        column, more = basis[rest.bit_length()]
        rest, mask = rest ^ column, mask ^ more
    if rest:
        return []
    raw = (int.from_bytes(key.src.addr + key.dst.addr + key.src.port.to_bytes(2, "big") + key.dst.port.to_bytes(2, "big"), "big") ^ mask).to_bytes(12, "big")
    found = FiveTuple(Endpoint(raw[:4], int.from_bytes(raw[8:10], "big")), key.dst)
    return [found, *colliding(HASH, found, free=free)]


async def talk(stage: Stage, phones: list[Phone], targets: list[Endpoint], rounds: int) -> list[list[bytes]]:
    """Everybody sends; the packets that each phone ought to hear."""
    due: list[list[bytes]] = [[] for _ in phones]
    for _ in range(rounds):
        for number, (phone, target) in enumerate(zip(phones, targets)):
            due[number ^ 1].append(stage.send(phone, target, b"from %d" % number))
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.05)
    return due


async def test_streams_of_one_hash_stay_on_the_relay_and_nothing_goes_astray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "RETRY_AFTER", {outcome: 0.2 for outcome in offload.RETRY_AFTER})
    monkeypatch.setattr(collide, "RETRY_AFTER", 0.2)
    monkeypatch.setattr(collisions, "EXPECTED_FOR", 1.5)
    async with stage(tmp_path, "hash32") as on:
        phones, targets = await two_calls(on)
        due = await talk(on, phones, targets, 20)
        for number in ("one", "two"):
            states = await on.states(number)
            state, reason, detail = states["caller->callee"]
            assert (state, reason) == ("learning", "hash-collision") and "hash in the data plane" in detail
            assert states["callee->caller"][0] == "offloaded", "the other direction has a hash of its own"
        for phone, wanted in zip(phones, due):
            assert set(phone.heard) == set(wanted), "a packet is missing, or somebody else's"
        # The first call ends: its hash is free, and the second stream gets its entry.
        await on.command("D one a b")
        await until(lambda: on.chip.lookup(FiveTuple(phones[2].at, targets[2])) is not None)
        assert (await on.states("two"))["caller->callee"][:2] == ("offloaded", "offloaded")
        phones[3].heard.clear()
        last = await talk(on, phones[2:], targets[2:], 3)
        assert phones[3].heard == last[1]


async def test_an_entry_goes_out_as_soon_as_another_call_of_its_hash_is_set_up(tmp_path: Path) -> None:
    """The first call talks over the chip already; the second one's first packet must not leave by its entry."""
    async with stage(tmp_path, "hash32") as on:
        phones, targets = await two_calls(on, talk_first=True)
        await until(lambda: on.chip.lookup(FiveTuple(phones[2].at, targets[2])) is None, 0.5)
        assert (await on.states("one"))["caller->callee"][:2] == ("learning", "hash-collision")
        for phone in phones:
            phone.heard.clear()
        due = await talk(on, phones, targets, 10)
        for phone, wanted in zip(phones, due):
            assert set(phone.heard) == set(wanted), "a packet is missing, or somebody else's"


async def test_without_the_check_packets_do_go_astray(tmp_path: Path) -> None:
    """What the test above would miss if the agent did not compare hashes."""
    async with stage(tmp_path, "none") as on:
        phones, targets = await two_calls(on)
        await talk(on, phones, targets, 20)
        assert any(b"from 2" in packet for packet in phones[1].heard)
