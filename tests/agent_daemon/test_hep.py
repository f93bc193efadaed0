"""Copies of SIP messages (HEPv3) that shunt-agent takes, on loopback: over UDP and TCP, from whom, what of garbage, and Kamailio's."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shunt.admin import Event
from shunt.export.hep import HepPacket, encode
from shunt.net import Endpoint
from tests.lab.ports import free_port
from tests.tools.agent import Agent

A, B = Endpoint.of("192.0.2.10", 5060), Endpoint.of("198.51.100.7", 5062)
CALL = "f81d4fae-7dec@192.0.2.10"
BYE = (
    b"BYE sip:bob@198.51.100.7:5062 SIP/2.0\r\n"
    b"Via: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bK1;rport\r\n"
    b"Max-Forwards: 70\r\n"
    b'From: "Alice; tag=no" <sip:alice@example.org;tag=inside>;tag=a73kszlfl\r\n'
    b"To: <sip:bob@example.org>;tag=1410948204\r\n"
    b"Call-ID: f81d4fae-7dec@192.0.2.10\r\n"
    b"CSeq: 231 BYE\r\n"
    b"Content-Length: 0\r\n\r\n"
)
SDP = b"v=0\r\nc=IN IP4 192.0.2.10\r\nt=0 0\r\nm=audio 6000 RTP/AVP 0\r\na=sendonly\r\n"
OK = (
    b"SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 192.0.2.10\r\nFrom: <sip:a@x>;tag=1\r\nTo: <sip:b@x>;tag=2\r\nCall-ID: c1\r\nCSeq: 1 INVITE\r\n"
    b"Content-Type: application/sdp\r\nContent-Length: " + str(len(SDP)).encode() + b"\r\n\r\n" + SDP
)


class Taking(Agent):
    """An agent that takes copies on a port of its own."""

    def __init__(self, folder: Path, scheme: str = "udp", listen: str = "127.0.0.1", **hep: Any) -> None:
        self.scheme = scheme
        self.hep_port = free_port(socket.SOCK_STREAM if scheme == "tcp" else socket.SOCK_DGRAM)
        relay = {"name": "r1", "socket": "udp:127.0.0.1:9", "media": [{"address": "127.0.0.1", "ports": "35000-35999"}]}
        super().__init__(folder, "agent", {"relays": [relay], "hep": {"listen": f"{scheme}:{listen}:{self.hep_port}"} | hep})

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """A SIP server's socket."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM if self.scheme == "tcp" else socket.SOCK_DGRAM)
        sock.bind((source, 0))
        sock.settimeout(60)
        sock.connect(("127.0.0.1", self.hep_port))
        return sock

    async def counted(self, **counts: int) -> dict[str, int]:
        """Wait until the status says so many of these."""
        status = await self.until(lambda status: status["hep"] is not None and all(status["hep"][name] >= count for name, count in counts.items()), 20)
        return dict(status["hep"])

    async def sip(self) -> list[Event]:
        """The events of SIP messages."""

        async def read(admin: Any) -> list[Event]:
            return [item async for item in admin.events(0, follow=False) if isinstance(item, Event) and item.kind == "sip"]

        deadline = time.monotonic() + 60
        while not (found := await self.ask(read)):
            assert time.monotonic() < deadline, self.tail()
            await asyncio.sleep(0.05)
        return found


@contextlib.asynccontextmanager
async def running(agent: Taking) -> AsyncIterator[Taking]:
    try:
        agent.start()
        await agent.until(lambda status: True)
        yield agent
    finally:
        agent.close()


@pytest.fixture(params=["udp", "tcp"])
async def taking(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Taking]:
    async with running(Taking(tmp_path, request.param)) as agent:
        yield agent


async def test_copies_arrive_and_what_is_no_sip_disturbs_nothing(taking: Taking) -> None:
    with taking.connect() as client:
        report = encode(HepPacket(A, B, b"{}", kind=5))
        keepalive = encode(HepPacket(A, B, b"\r\n\r\n"))
        nonsense = encode(HepPacket(A, B, b"nonsense"))
        for packet in (report, keepalive, nonsense, encode(HepPacket(A, B, BYE)), encode(HepPacket(B, A, OK))):
            client.send(packet)
        counts = await taking.counted(messages=2)
    assert (counts["messages"], counts["byes"], counts["malformed"], counts["blocked"]) == (2, 1, 1, 0)
    bye, ok = await taking.sip()
    assert (bye.facts["method"], bye.call, bye.facts["source"], bye.facts["destination"]) == ("BYE", CALL, str(A), str(B))
    assert (bye.facts["from_tag"], bye.facts["to_tag"]) == ("a73kszlfl", "1410948204")
    assert (ok.facts["status"], ok.facts["cseq_method"], ok.facts["source"]) == (200, "INVITE", str(B))
    (media,) = ok.facts["sdp"]
    assert (media["medium"], media["address"], media["port"], media["direction"]) == ("audio", "192.0.2.10", 6000, "sendonly")


async def test_other_networks_are_refused(tmp_path: Path) -> None:
    async with running(Taking(tmp_path, allow=["127.0.0.2/32"])) as agent:
        for source in ("127.0.0.1", "127.0.0.2"):
            with agent.connect(source) as client:
                client.send(encode(HepPacket(A, B, BYE)))
        counts = await agent.counted(messages=1, blocked=1)
        assert (counts["messages"], counts["blocked"]) == (1, 1)


async def test_an_ipv4_sender_to_an_any_address_is_judged_as_ipv4(tmp_path: Path) -> None:
    async with running(Taking(tmp_path, listen="[::]", allow=["127.0.0.0/8"])) as agent:
        with agent.connect() as client:
            client.send(encode(HepPacket(A, B, BYE)))
        assert (await agent.counted(messages=1))["blocked"] == 0


async def test_a_stream_in_single_bytes_then_garbage_closes_only_that_connection(tmp_path: Path) -> None:
    async with running(Taking(tmp_path, "tcp")) as agent:
        with agent.connect() as client, agent.connect() as other:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in encode(HepPacket(A, B, BYE)):
                client.send(bytes([byte]))
            await agent.counted(messages=1)
            client.send(b"GET / HTTP/1.1\r\n\r\n")
            assert await asyncio.to_thread(_ended, client)
            other.send(encode(HepPacket(A, B, BYE)))
            counts = await agent.counted(messages=2)
        assert counts["malformed"] == 1


def _ended(client: socket.socket) -> bool:
    """Whether the other side closes the connection."""
    with contextlib.suppress(ConnectionResetError):
        return client.recv(1) == b""
    return True


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    agent = Taking(tmp_path)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", agent.hep_port))
        try:
            agent.start()
            assert await asyncio.to_thread(agent.wait, 20) != 0
            assert f"udp:127.0.0.1:{agent.hep_port}" in agent.text(), agent.tail()
        finally:
            agent.close()


KAMAILIO = """\
#!KAMAILIO
debug=1
log_stderror=yes
children=1
disable_tcp=yes
auto_aliases=no
listen=udp:127.0.0.1:{sip}
loadmodule "sl.so"
loadmodule "pv.so"
loadmodule "siptrace.so"
modparam("siptrace", "duplicate_uri", "sip:127.0.0.1:{hep}")
modparam("siptrace", "hep_mode_on", 1)
modparam("siptrace", "hep_version", 3)
modparam("siptrace", "trace_to_database", 0)
modparam("siptrace", "trace_on", 1)
modparam("siptrace", "trace_init_mode", 1)
modparam("siptrace", "trace_mode", 1)
request_route {{ sl_send_reply("200", "OK"); exit; }}
"""


@pytest.mark.skipif(shutil.which("kamailio") is None, reason="kamailio is not installed")
async def test_a_bye_through_kamailio_is_seen_with_its_answer(tmp_path: Path) -> None:
    """The copies of Kamailio's own siptrace module."""
    async with running(Taking(tmp_path)) as agent:
        port = free_port()
        (tmp_path / "kamailio.cfg").write_text(KAMAILIO.format(sip=port, hep=agent.hep_port))
        arguments = ("-DD", "-E", "-f", str(tmp_path / "kamailio.cfg"), "-Y", str(tmp_path))
        with (tmp_path / "log").open("wb") as log:
            server = await asyncio.create_subprocess_exec("kamailio", *arguments, stdout=log, stderr=log)
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as phone:
                phone.bind(("127.0.0.1", 0))
                phone.connect(("127.0.0.1", port))
                async with asyncio.timeout(60):
                    while (await agent.counted())["messages"] < 2:
                        assert server.returncode is None, (tmp_path / "log").read_text()
                        with contextlib.suppress(ConnectionRefusedError):  # the answer to the one before: Kamailio is not up yet
                            phone.send(BYE)
                        await asyncio.sleep(0.1)
                here = Endpoint.of(*phone.getsockname())
        finally:
            server.send_signal(signal.SIGTERM)
            await asyncio.wait_for(server.wait(), 60)
        there = Endpoint.of("127.0.0.1", port)
        request, answer = (await agent.sip())[:2]
        assert (request.facts["method"], request.call, request.facts["source"], request.facts["destination"]) == ("BYE", CALL, str(here), str(there))
        assert (request.facts["from_tag"], request.facts["to_tag"]) == ("a73kszlfl", "1410948204")
        assert (answer.facts["status"], answer.facts["cseq_method"], answer.facts["source"], answer.facts["destination"]) == (200, "BYE", str(there), str(here))
        assert (await agent.counted())["malformed"] == 0
