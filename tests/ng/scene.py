"""Calls that a test sets up itself, with NG commands to the agent, or to rtpengine where there is no agent."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from tests.lab.processes import NG_PORT, RTPENGINE_PORT, Edge
from tests.lab.topology import NAT_IP, LabError
from tests.ng.phone import AUDIO, Line, Phone, relays, sdp, until
from tests.tools.ng import NgClient, NgError

_CALLS = itertools.count(1)
ENOUGH = 60
"""Packets of a stream, after which a call may be hung up."""
SIP_S = 0.005
"""Seconds between a reply of the relay and the phone that its SDP goes to: by way of the SIP server and the network."""
TCP_PORT = RTPENGINE_PORT + 1
"""Where rtpengine takes NG over TCP in these tests."""
INTERFACES = {"all": ("198.18.0.1", "fd91::1"), "outside": ("198.18.1.1",), "inside": ("198.18.2.1",)}
"""Logical interfaces of rtpengine in these tests; the first is that of calls that name none."""


class Call:
    """A call between two phones, and the keys that a SIP server would send."""

    def __init__(self, scene: "Scene", caller: Phone, callee: Phone, lines: tuple[Line, ...], keys: dict[str, Any]) -> None:
        self.scene, self.caller, self.callee, self.lines, self.keys = scene, caller, callee, lines, keys
        self.id = f"ng-{next(_CALLS)}@test"
        self.answered = False

    async def command(self, command: str, **keys: Any) -> dict[str, Any]:
        """A command about this call, and its reply. Raises NgError."""
        return await self.scene.command(command, call_id=self.id, **keys)

    async def offer(self, by: Phone | None = None, text: str | None = None, **keys: Any) -> str:
        """`by` (the caller) offers; whoever gets it sends to where the reply says. The reply's SDP."""
        by = by or self.caller
        other = self.callee if by is self.caller else self.caller
        tags = {"from_tag": by.tag} | ({"to_tag": other.tag} if self.answered else {})
        reply = await self.command("offer", sdp=text or self.sdp(by), received_from=_received_from(by), **tags, **{**self.keys, **keys})
        other.relays = relays(reply["sdp"])
        return str(reply["sdp"])

    async def answer(self, by: Phone | None = None, text: str | None = None, **keys: Any) -> str:
        """`by` (the callee) answers. The reply's SDP."""
        by = by or self.callee
        other = self.caller if by is self.callee else self.callee
        reply = await self.command("answer", sdp=text or self.sdp(by), received_from=_received_from(by), from_tag=other.tag, to_tag=by.tag, **{**self.keys, **keys})
        other.relays = relays(reply["sdp"])
        self.answered = True
        return str(reply["sdp"])

    def sdp(self, phone: Phone) -> str:
        return sdp(phone.at, phone.ports, self.lines)

    async def connect(self, **keys: Any) -> None:
        """Offer and answer; both talk."""
        await self.offer(**keys)
        await self.answer(**keys)
        await asyncio.sleep(SIP_S)
        self.talk()

    async def change(self, by: Phone | None = None, text: str | None = None, back: str | None = None) -> None:
        """A re-INVITE of `by` (the caller), which the other one answers."""
        by = by or self.caller
        await self.offer(by, text)
        await self.answer(self.callee if by is self.caller else self.caller, back)

    def talk(self) -> None:
        self.caller.talk()
        self.callee.talk()

    async def hush(self) -> None:
        """Both fall silent, and what is under way arrives."""
        for phone in (self.caller, self.callee):
            await phone.hush()
        await asyncio.sleep(0.15)

    async def hang_up(self) -> dict[str, Any]:
        """Silence, once both have sent enough to judge by, and a delete of the call. The reply."""
        deadline = time.monotonic() + 3
        while any(len(stream.sent) < ENOUGH for phone in (self.caller, self.callee) for stream in phone.streams) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        await self.hush()
        return await self.command("delete", from_tag=self.caller.tag)

    async def view(self) -> dict[str, Any] | None:
        """What the agent shows of it; None while it does not know it."""
        try:
            return dict(await asyncio.to_thread(self.scene.edge.get, f"/v1/calls/{self.id}"))
        except LabError as error:
            if "404" in str(error):
                return None
            raise

    async def streams(self, component: str = "rtp", line: int | None = None) -> list[dict[str, Any]]:
        view = await self.view()
        media = (view or {"media": []})["media"]
        return [s for index, each in enumerate(media) if line in (None, index) for s in each["streams"] if s["component"] == component]

    async def offloaded(self, *components: str, line: int | None = None, seconds: float = 60.0) -> None:
        """Wait until every stream of these components (RTP and RTCP) is offloaded; at once where there is no agent."""
        for component in components or ("rtp", "rtcp"):
            await self._until(component, line, seconds, lambda s: s["state"] == "offloaded", "offloaded")

    async def stays(self, reason: str, *, line: int | None = None, seconds: float = 60.0) -> None:
        """Wait until every RTP stream is on the relay for this reason, and see that it stays so."""
        await self._until("rtp", line, seconds, lambda s: s["state"] != "offloaded" and s["reason"] == reason, reason)
        if not self.scene.alone:
            await asyncio.sleep(0.5)
            found = await self.streams(line=line)
            assert all(s["state"] != "offloaded" and s["reason"] == reason for s in found), _brief(found)

    async def _until(self, component: str, line: int | None, seconds: float, holds: Any, wanted: str) -> None:
        if self.scene.alone:
            await asyncio.sleep(0.3)
            return
        deadline = time.monotonic() + seconds
        while not (found := await self.streams(component, line)) or not all(map(holds, found)):
            assert time.monotonic() < deadline, f"{component} is not {wanted}: {_brief(found)}"
            await asyncio.sleep(0.03)

    def lost(self) -> dict[str, list[int]]:
        """Packets that one sent and the other did not get: the how many-th of them, by sender and line."""
        found = {}
        for sender, receiver in ((self.caller, self.callee), (self.callee, self.caller)):
            for index, (out, into) in enumerate(zip(sender.streams, receiver.streams, strict=False)):
                found[f"{sender.tag} {index}"] = [number for number, seq in enumerate(out.sent) if (out.ssrc, seq) not in into.got]
        return found

    async def check_media(self, least: int = 20) -> None:
        """Both are silent: all that was sent has arrived once, reports too."""
        await self.hush()
        for phone in (self.caller, self.callee):
            for stream in phone.streams:
                assert len(stream.sent) >= least, f"{phone.tag} has sent {len(stream.sent)} packets"
                assert stream.repeated == 0, f"{phone.tag} got {stream.repeated} packets twice"
        assert not any(self.lost().values()), f"lost: {self.lost()}"

    async def more(self, packets: int) -> None:
        """Let every stream send so many more."""
        streams = [stream for phone in (self.caller, self.callee) for stream in phone.streams]
        wanted = [len(stream.sent) + packets for stream in streams]
        await until(lambda: all(len(stream.sent) >= count for stream, count in zip(streams, wanted, strict=True)), lambda: "a phone does not send")

    async def talked(self, seconds: float = 0.5) -> None:
        """Let them talk, and see that the reports of both arrive."""
        await asyncio.sleep(seconds)
        for sender, receiver in ((self.caller, self.callee), (self.callee, self.caller)):
            for out, into in zip(sender.streams, receiver.streams, strict=False):
                if out.reports:
                    await until(lambda out=out, into=into: out.ssrc in into.rtcp_got, lambda sender=sender: f"no report of {sender.tag} has arrived")


class Scene:
    """A running edge, with an agent or without, and phones."""

    def __init__(self, edge: Edge) -> None:
        self.edge, self.topology, self.alone = edge, edge.topology, edge.direct
        self._ng: NgClient = edge.ng(RTPENGINE_PORT if self.alone else NG_PORT)
        self._phones: list[Phone] = []

    def phone(self, host: str, tag: str, **options: Any) -> Phone:
        made = Phone(self.topology, host, f"{tag}-{next(_CALLS)}", **options)
        self._phones.append(made)
        return made

    def call(self, lines: tuple[Line, ...] = (AUDIO,), *, host: str = "caller", versions: tuple[int, int] = (4, 4), muxed: tuple[bool, bool] = (False, False), **keys: Any) -> Call:
        """A call that is not set up yet. keys: of all its offers and answers."""
        caller = self.phone(host, "caller", version=versions[0], media=len(lines), muxed=muxed[0])
        callee = self.phone("callee", "callee", version=versions[1], media=len(lines), muxed=muxed[1])
        return Call(self, caller, callee, lines, {"replace": ["origin", "session-connection"], **keys})

    @contextlib.contextmanager
    def past_the_agent(self) -> Iterator[None]:
        """Commands go to rtpengine itself, as a SIP server sends them that finds no agent."""
        agent = self._ng
        with self.edge.ng() as self._ng:
            yield
        self._ng = agent

    async def command(self, command: str, **keys: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self._ng.command, command, **keys)

    async def ask(self, command: str, **keys: Any) -> dict[str, Any]:
        """The same, where an error is wanted."""
        return await asyncio.to_thread(self._ng.ask, command, **keys)

    async def clean(self, seconds: float = 60.0) -> None:
        """Wait until neither the relay nor the data plane has anything left. Raises AssertionError."""
        deadline = time.monotonic() + seconds
        while True:
            left: dict[str, Any] = {"relay": await asyncio.to_thread(self.edge.relay_sessions)}
            if not self.alone:
                left["entries"] = (await asyncio.to_thread(self.edge.status))["data_plane"]["entries"]
            if not any(left.values()):
                return
            assert time.monotonic() < deadline, f"left behind after {seconds} s: {left}"
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Take down what a test that failed has left at the relay."""
        for phone in self._phones:
            await phone.close()
        for client in (self._ng, self.edge.ng()):
            with client, contextlib.suppress(NgError):
                for call_id in client.command("list", limit=1000)["calls"]:
                    client.ask("delete", call_id=call_id)


_INTRODUCED: set[str] = set()


async def _introduce(ng: Scene) -> None:
    """The phones have called before, so that the data plane has their addresses on its allowlist. (There are no copies of SIP here, which
    name an address before its first packet.)"""
    for version in (4, 6):
        for host in ("caller", "natcaller"):
            call = ng.call(host=host, versions=(version, version))
            await call.offer()
            await call.answer()
            await call.command("delete", from_tag=call.caller.tag)
            await asyncio.sleep(0.3)


@asynccontextmanager
async def scene(edge: Edge) -> AsyncIterator[Scene]:
    """Phones and a client at a running edge."""
    made = Scene(edge)
    try:
        if not edge.direct and edge.agent.alive and edge.topology.prefix not in _INTRODUCED:
            _INTRODUCED.add(edge.topology.prefix)
            await _introduce(made)
        yield made
    finally:
        await made.close()


def start(edge: Edge) -> None:
    """Start all but the SIP server."""
    edge.work.mkdir(parents=True, exist_ok=True)
    config = edge.shunt_config()
    config["log"] = {"level": "debug"}
    edge.write_config(config)
    if not edge.direct:
        edge.start_softswitch()
    edge.start_relay()
    if not edge.direct:
        edge.start_agent()
        edge.agent.await_listening("udp", NG_PORT)
        edge.await_data_plane()


def _received_from(phone: Phone) -> list[str]:
    seen = NAT_IP if phone.host == "natcaller" else phone.at
    return ["IP6" if ":" in seen else "IP4", seen]


def _brief(streams: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(s["direction"], s["state"], s["reason"]) for s in streams]
