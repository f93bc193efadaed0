"""HEPv3 to Homer over a real socket: events and quality reports, joined to the call by its Call-ID."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator

import pytest

from shunt.export import homer
from shunt.export.homer import KIND_LOG, KIND_RTP_REPORT, HomerExport, sip_call_id
from shunt.export.hep import HepPacket
from shunt.metrics.instruments import Instruments
from shunt.operator import endings as ending_events
from shunt.operator.dialogs import Dialogs
from shunt.operator.endings import Endings
from tests.tools.hep import decode
from tests.tools.telling import CALLER, Telling, counters, ended_line, silent


class Server:
    """A capture server: every packet it gets, decoded."""

    def __init__(self, family: int = socket.AF_INET, address: str = "127.0.0.1") -> None:
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.bind((address, 0))
        self.socket.setblocking(False)
        host = f"[{address}]" if ":" in address else address
        self.target = f"udp:{host}:{self.socket.getsockname()[1]}"

    def packets(self) -> list[HepPacket]:
        found = []
        while True:
            try:
                found.append(decode(self.socket.recv(65535)))
            except BlockingIOError:
                return found


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.socket.close()


def told(export: HomerExport, call: str = "c1") -> Telling:
    """An agent whose events go where the operator daemon's go: first their report, then what they say."""
    telling = Telling(call)
    telling.bus.subscribe(Endings(Dialogs(), Instruments(), None, export, 50.0), ending_events.KINDS)
    telling.bus.subscribe(export)
    return telling


async def test_a_call_becomes_log_lines_and_two_reports(server: Server) -> None:
    export = HomerExport(server.target, 77, events=True)
    await export.start()
    told(export).conversation(packets=1000)
    await export.close()
    packets = server.packets()
    assert {packet.correlation_id for packet in packets} == {b"c1"} and {packet.capture_id for packet in packets} == {77}
    assert all(packet.seconds > 1_700_000_000 for packet in packets)
    lines = [packet.payload.decode() for packet in packets if packet.kind == KIND_LOG]
    for words in ("U offer", "latched", "offloaded", "released"):
        assert any(words in line for line in lines), words
    assert not any("[sip]" in line for line in lines), "Homer has SIP from the SIP server's own tracer"
    reports = [(json.loads(packet.payload), packet) for packet in packets if packet.kind == KIND_RTP_REPORT]
    assert len(reports) == 2
    body, packet = reports[0]
    assert (body["TOTAL_PK"], body["PACKET_LOSS"], body["EXPECTED_PK"], body["JITTER"], body["MAX_JITTER"], body["CODEC_NAME"]) == (1000, 0, 1000, 0.5, 2.5, "PCMA")
    assert 4 < body["MOS"] < 4.4 and body["RTP_SIP_CALL_ID"] == "c1"
    assert str(packet.source) == CALLER == f"{body['SRC_IP']}:{body['SRC_PORT']}"
    assert export.sent == len(packets) and export.dropped == 0


async def test_of_packets_only_what_changes_a_source_is_told(server: Server) -> None:
    export = HomerExport(server.target, 77, events=True)
    await export.start()
    telling = told(export)
    for verdict in ("waiting", "latched", "known", "source-mismatch", "contested", "moved", "restored", "scanner"):
        telling.learn(verdict)
    await export.close()
    said = [packet.payload.decode() for packet in server.packets()]
    assert [line.partition(": ")[2].partition(" ")[0] for line in said] == ["latched", "contested", "moved", "restored"], said


async def test_without_events_only_reports_go_out(server: Server) -> None:
    export = HomerExport(server.target, 77, events=False)
    await export.start()
    told(export).conversation()
    await export.close()
    assert [packet.kind for packet in server.packets()] == [KIND_RTP_REPORT] * 2


async def test_a_branch_goes_by_the_calls_own_id(server: Server) -> None:
    """OpenSIPS's rtp_relay adds the branch to the Call-ID: Homer knows the call without it."""
    export = HomerExport(server.target, 77, events=False)
    await export.start()
    told(export, "abc@host-1").conversation()
    await export.close()
    assert {packet.correlation_id for packet in server.packets()} == {b"abc@host"}


@pytest.mark.parametrize(("control", "sip"), [("a-0", "a"), ("a-12", "a-12"), ("f81d4fae-7dec-11d0", "f81d4fae-7dec-11d0"), ("x-", "x-")])
def test_only_a_branch_digit_is_taken_off(control: str, sip: str) -> None:
    assert sip_call_id(control) == sip


async def test_an_unmeasured_stream_has_no_report(server: Server) -> None:
    export = HomerExport(server.target, 77, events=False)
    await export.start()
    telling = told(export)
    telling.ended(ended_line(rtp=counters(500, lost=None)))
    telling.ended(ended_line(caller=silent("caller"), callee=silent("callee")))
    await export.close()
    assert server.packets() == []


async def test_a_server_that_is_not_there_costs_nothing_but_its_packets(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.socket.close()
    export = HomerExport(server.target, 77, events=True)
    await export.start()
    telling = told(export)
    async with asyncio.timeout(60):
        while not export.dropped:
            telling.control("U")
            await asyncio.sleep(0.02)
    await export.close()
    assert sum("Homer at" in line.message for line in caplog.records) == 1


async def test_what_waits_is_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homer, "_MAX_WAITING", 10)
    export = HomerExport(server.target, 77, events=True)
    telling = told(export)
    for _ in range(40):
        telling.control("U")
    assert export.dropped == 30
    await export.start()
    await export.close()
    assert len(server.packets()) == 10


async def test_over_ipv6() -> None:
    server = Server(socket.AF_INET6, "::1")
    export = HomerExport(server.target, 1, events=False)
    await export.start()
    told(export).conversation()
    await export.close()
    assert len(server.packets()) == 2
    server.socket.close()
