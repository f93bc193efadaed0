"""shunt-agent and shunt-relay as processes on loopback, with the double of bf_switchd in place of a switch, and phones.

The double finds entries as the chip would, and the lab carries packets accordingly: to where an entry says, else on to the relay, with a learn notice.
Each lab has a loopback address of its own, so several run side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from shunt.admin import AdminClient, AgentUnreachable
from shunt.admin.model import Call, Status
from shunt.net import Endpoint, FiveTuple
from tests.bfrt.fake_switch import WHOLE_KEYS, FakeSwitch, running
from tests.lab.processes import ROOT
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.checked import checked, program

GENERATED = ROOT / "p4" / "generated"
AGENT, RELAY = program("agent"), program("relay")
PORTS = (21200, 21299)
PATIENCE_S = 30.0  # on a busy machine
Hash = Callable[[FiveTuple], int]


async def until(holds: Callable[[], Any] | Callable[[], Awaitable[Any]], seconds: float = PATIENCE_S) -> Any:
    """Wait until it holds; what it returned. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while True:
            found = holds()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.02)


class Chip(FakeSwitch):
    """A switch that finds entries: by their keys, or by a hash of them, where the first one in wins."""

    def __init__(self, program: str = "relay.tofino1", *, hash_of: Hash | None = None, contexts: tuple[bytes, ...] = (WHOLE_KEYS,), fixed: bytes = b'{"tables": []}') -> None:
        """program: of p4/generated."""
        super().__init__((GENERATED / f"{program}.bf-rt.json").read_bytes(), contexts=contexts, fixed=fixed)
        self._hash = hash_of

    def learned(self, key: FiveTuple, seq: int, ssrc: int, payload_type: int = 0) -> bool:
        """A packet has come that meets no entry. False if its digest finds no client."""
        message = pb.StreamMessageResponse()
        learn = self.schema.learns["learn"]
        message.digest.digest_id = learn.id
        src, dst = key
        values = {"src_addr": src.addr, "dst_addr": dst.addr, "src_port": src.port, "dst_port": dst.port, "rtp_version": 2, "payload_type": payload_type, "seq": seq, "ssrc": ssrc}
        data = message.digest.data.add()
        for field in learn.fields:
            value = values[field.name]
            data.fields.add(field_id=field.id, stream=value if isinstance(value, bytes) else value.to_bytes(field.size or 0, "big"))
        return self.notify(message)

    def _to(self, data: pb.TableData) -> Endpoint:
        """Where an entry of `relay` sends packets to."""
        fields = self.table("Ingress.relay").actions.by_id[data.action_id].fields
        said = {fields.by_id[each.field_id].name: each.stream for each in data.fields if each.field_id in fields.by_id}
        return Endpoint(said["dst_addr"], int.from_bytes(said["dst_port"], "big"))

    def flows(self) -> dict[FiveTuple, Endpoint]:
        """The entries of `relay`: where each sends packets to."""
        found = {}
        for (src, dst, sport, dport), data in self.held("Ingress.relay").items():
            key = FiveTuple(Endpoint(src, int.from_bytes(sport, "big")), Endpoint(dst, int.from_bytes(dport, "big")))
            found[key] = self._to(data)
        return found

    def lookup(self, key: FiveTuple) -> Endpoint | None:
        """Where a packet of this key is sent to; None where it meets no entry."""
        if self._hash is not None:
            wanted = self._hash(key)
            return next((to for held, to in self.flows().items() if self._hash(held) == wanted), None)
        relay = self.table("Ingress.relay")
        parts = (key.src.addr, key.dst.addr, key.src.port.to_bytes(2, "big"), key.dst.port.to_bytes(2, "big"))
        data = self.entries[relay.id].get(tuple(sorted(zip((field.id for field in relay.key), parts, strict=True))))
        return None if data is None else self._to(data)

    def report_idle(self, key: FiveTuple) -> bool:
        """The entry has met no packet for its time-out. False if the notice finds no client."""
        relay = self.table("Ingress.relay")
        parts = (key.src.addr, key.dst.addr, key.src.port.to_bytes(2, "big"), key.dst.port.to_bytes(2, "big"))
        message = pb.StreamMessageResponse()
        message.idle_timeout_notification.table_entry.table_id = relay.id
        message.idle_timeout_notification.type = pb.IdleTimeoutNotification.ENTRY_IDLE
        for field, value in zip(relay.key, parts, strict=True):
            message.idle_timeout_notification.table_entry.key.fields.add(field_id=field.id).exact.value = value
        for held in self.entries[relay.id]:
            if tuple(value for _, value in held) == parts:
                self.time_left[held] = 0
        return self.notify(message)


class Phone:
    """A socket on loopback that remembers what it gets."""

    def __init__(self, at: Endpoint) -> None:
        self.at = at
        self.got: list[bytes] = []
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        self.sock.bind((socket.inet_ntoa(at.addr), at.port))
        asyncio.get_running_loop().add_reader(self.sock, lambda: self.got.append(self.sock.recv(2048)))

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.sock)
        self.sock.close()


class Daemon:
    """A process of the lab."""

    def __init__(self, argv: list[str], log: Path) -> None:
        self.argv, self.log = argv, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    async def end(self, *, kill: bool = False) -> None:
        process, self._process = self._process, None
        if process is not None:
            (process.kill if kill else process.terminate)()
            await asyncio.to_thread(process.wait, 20)

    def text(self) -> str:
        return self.log.read_text(errors="replace")


class SwitchLab:
    """The processes, the chip and the phones."""

    def __init__(self, folder: Path, chip: FakeSwitch, target: str, **data_plane: Any) -> None:
        """data_plane: more of that section of the configuration."""
        self.switch, self.folder = chip, folder
        number = os.getpid()
        self.relay_address = f"127.{64 + number // 250 % 128}.{number % 250}.1"
        self.control = folder / "control"
        self.socket = folder / "admin"
        self.config: dict[str, Any] = {
            "control": {"listen": [f"unix:{self.control}"]},
            "relays": [
                {
                    "name": "local", "socket": f"unix:{folder}/relay", "ttl": 60, "symmetric": True,
                    "media": [{"address": self.relay_address, "ports": f"{PORTS[0]}-{PORTS[1]}"}],
                },
            ],
            "data_plane": {"target": target, **data_plane},
            "journal": {"path": str(folder / "journal.sqlite")},
            "log": {"level": "info"},
        }  # fmt: skip
        self.agent = Daemon([AGENT, "-c", str(folder / "agent.json")], folder / "agent.log")
        self.relay = Daemon([RELAY, "-c", str(folder / "relay.json")], folder / "relay.log")
        self.phones: list[Phone] = []
        self._sequence = 0

    @property
    def chip(self) -> Chip:
        assert isinstance(self.switch, Chip)
        return self.switch

    def configure(self) -> None:
        """Write what the next start of each process reads."""
        path = self.folder / "shunt.yaml"
        path.write_text(yaml.safe_dump(self.config))
        document = checked(path)
        document["admin"] = {"socket": str(self.socket), "socket_group": "root", "events": str(self.folder / "events")}
        (self.folder / "agent.json").write_text(json.dumps(document))
        relay = {
            "listen": [f"unix:{self.folder}/relay"], "allow": ["127.0.0.0/8"], "socket_group": "root", "addresses": [self.relay_address],
            "ports": f"{PORTS[0]}-{PORTS[1]}", "ttl": self.config["relays"][0]["ttl"], "setup_ttl": None, "quarantine": 5.0, "packet_limit": 0, "tos": 184, "threads": 1,
        }  # fmt: skip
        (self.folder / "relay.json").write_text(json.dumps({"builtin_relay": relay, "learning": document["learning"], "notify": {"allow": None}}))

    async def start(self) -> None:
        self.configure()
        self.relay.start()
        await until(lambda: (self.folder / "relay").exists())
        await self.start_agent()

    async def start_agent(self) -> None:
        """Start it, and wait until it has the switch."""
        self.agent.start()
        await until(self.connected)

    async def close(self) -> None:
        for phone in self.phones:
            phone.close()
        await self.agent.end()
        await self.relay.end()

    # -- the agent ------------------------------------------------------------------------------------------------

    async def status(self) -> Status | None:
        """None while the agent does not answer."""
        with contextlib.suppress(AgentUnreachable):
            async with AdminClient(str(self.socket)) as admin:
                return await admin.status()
        return None

    async def connected(self) -> bool:
        status = await self.status()
        return bool(status and status["data_plane"] and status["data_plane"]["connected"])

    async def audit(self) -> None:
        async with AdminClient(str(self.socket)) as admin:
            await admin.audit()

    async def metrics(self) -> str:
        async with AdminClient(str(self.socket)) as admin:
            return await admin.metrics()

    async def call(self, call_id: str) -> Call:
        async with AdminClient(str(self.socket)) as admin:
            return await admin.call(call_id)

    async def streams(self, call_id: str) -> dict[str, tuple[str, str, str | None]]:
        """State, reason and detail of each party's RTP."""
        lines = (await self.call(call_id))["lines"]
        return {stream["from"]: (stream["state"], stream["reason"], stream["detail"]) for stream in lines[-1]["streams"] if stream["component"] == "rtp"}

    async def command(self, text: str) -> str:
        """A command of the rtpproxy protocol, as a SIP server sends it to a Unix socket; the reply."""
        reader, writer = await asyncio.open_unix_connection(str(self.control))
        try:
            writer.write(f"{text}\n".encode())
            async with asyncio.timeout(PATIENCE_S):
                reply = await reader.readline()
        finally:
            writer.close()
        return reply.decode().strip()

    async def offer(self, call: str, at: Endpoint) -> Endpoint:
        """Where the callee sends to."""
        return self._port(await self.command(f"Uc0 {call} {socket.inet_ntoa(at.addr)} {at.port} a;1"))

    async def answer(self, call: str, at: Endpoint) -> Endpoint:
        """Where the caller sends to."""
        return self._port(await self.command(f"Lc0 {call} {socket.inet_ntoa(at.addr)} {at.port} a;1 b;1"))

    def _port(self, reply: str) -> Endpoint:
        return Endpoint.of(self.relay_address, int(reply.split()[0]))

    # -- phones ---------------------------------------------------------------------------------------------------

    def phone(self, at: Endpoint) -> Phone:
        self.phones.append(Phone(at))
        return self.phones[-1]

    def send(self, phone: Phone, to: Endpoint, word: bytes) -> bytes:
        """One RTP packet."""
        self._sequence += 1
        ssrc = phone.at.port
        packet = b"\x80\x00" + self._sequence.to_bytes(2, "big") + bytes(4) + ssrc.to_bytes(4, "big") + word
        key = FiveTuple(phone.at, to)
        onward = self.chip.lookup(key)
        if onward is None:
            phone.sock.sendto(packet, (socket.inet_ntoa(to.addr), to.port))
            self.chip.learned(key, self._sequence, ssrc)
        else:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
                out.sendto(packet, (socket.inet_ntoa(onward.addr), onward.port))
        return packet

    async def talk(self, phones: list[Phone], targets: list[Endpoint], rounds: int) -> list[list[bytes]]:
        """Everybody sends; the packets that each phone is to get."""
        due: list[list[bytes]] = [[] for _ in phones]
        for _ in range(rounds):
            for number, (phone, target) in enumerate(zip(phones, targets, strict=True)):
                due[number ^ 1].append(self.send(phone, target, b"from %d" % number))
            await asyncio.sleep(0.02)
        return due

    async def offloaded_call(self, call: str = "one", *, base: int = 6000) -> tuple[list[Phone], list[Endpoint]]:
        """A call whose streams have their entries; its phones, and where each sends to."""
        first, callee = Endpoint.of("127.10.0.1", base), Endpoint.of("127.10.0.2", base + 1000)
        to_caller = await self.offer(call, first)
        to_callee = await self.answer(call, callee)
        phones, targets = [self.phone(first), self.phone(callee)], [to_callee, to_caller]
        await self.talk_until_offloaded(call, phones, targets)
        return phones, targets

    async def talk_until_offloaded(self, call: str, phones: list[Phone], targets: list[Endpoint]) -> None:
        async def offloaded() -> bool:
            await self.talk(phones, targets, 2)
            return {state for state, _, _ in (await self.streams(call)).values()} == {"offloaded"}

        await until(offloaded)


@asynccontextmanager
async def switch_lab(folder: Path, chip: Chip | None = None, **data_plane: Any) -> AsyncIterator[SwitchLab]:
    """A running lab, with the default learning settings."""
    chip = chip or Chip()
    async with running(chip) as target:
        lab = SwitchLab(folder, chip, target, **data_plane)
        try:
            await lab.start()
            yield lab
        finally:
            await lab.close()
