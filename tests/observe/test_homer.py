"""HEPv3 to Homer over a real socket: events and quality reports, joined to the call by its Call-ID."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from shunt.cdr.record import record
from shunt.events.bus import NOTE
from shunt.export import homer
from shunt.export.homer import KIND_LOG, KIND_RTP_REPORT, HomerExport, sip_call_id
from shunt.hep.codec import HepPacket, decode
from tests.agent.parts import Core


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
def server():
    server = Server()
    yield server
    server.socket.close()


async def a_call(export: HomerExport, core: Core, call_id: str = "c1") -> None:
    core.offloader.events.subscribe(export)

    def end(event) -> None:
        if event.kind == NOTE and event.what == "ended":
            export.call_ended(record(event.facts["call"], event.facts["reason"], core.now, event.wall, lambda *_: None, 50.0), event.wall)

    core.offloader.events.subscribe(end)
    to_caller, to_callee = await core.call(call_id)
    await core.packet("10.91.1.2:6000", to_caller)
    await core.packet("10.91.2.2:7000", to_callee)
    for counts in core.table.counts.values():
        counts.packets, counts.bytes, counts.lost, counts.reordered, counts.duplicates, counts.jitter_us = 1000, 200_000, 10, 1, 0, 1500
    await core.say(f"D {call_id} A B")


async def test_a_call_becomes_log_lines_and_two_reports(server: Server) -> None:
    export, core = HomerExport(server.target, 77, events=True), Core()
    await export.start()
    await a_call(export, core)
    await export.close()
    packets = server.packets()
    assert {packet.correlation_id for packet in packets} == {b"c1"} and {packet.capture_id for packet in packets} == {77}
    assert all(packet.seconds > 1_700_000_000 for packet in packets)
    lines = [packet.payload.decode() for packet in packets if packet.kind == KIND_LOG]
    assert any("U: the caller's media" in line for line in lines) and any("insert: installed" in line for line in lines) and any("offloaded" in line for line in lines)
    reports = [(json.loads(packet.payload), packet) for packet in packets if packet.kind == KIND_RTP_REPORT]
    assert len(reports) == 2
    body, packet = reports[0]
    assert (body["TOTAL_PK"], body["PACKET_LOSS"], body["EXPECTED_PK"], body["JITTER"], body["CODEC_NAME"]) == (1000, 10, 1010, 1.5, "PCMA")
    assert 4 < body["MOS"] < 4.4 and body["RTP_SIP_CALL_ID"] == "c1"
    assert str(packet.source) == "10.91.1.2:6000" == f"{body['SRC_IP']}:{body['SRC_PORT']}"
    assert export.sent == len(packets) and export.dropped == 0


async def test_without_events_only_reports_go_out(server: Server) -> None:
    export = HomerExport(server.target, 77, events=False)
    await export.start()
    await a_call(export, Core())
    await export.close()
    assert [packet.kind for packet in server.packets()] == [KIND_RTP_REPORT] * 2


async def test_a_branch_goes_by_the_calls_own_id(server: Server) -> None:
    """OpenSIPS's rtp_relay adds the branch to the Call-ID: Homer knows the call without it."""
    export = HomerExport(server.target, 77, events=False)
    await export.start()
    await a_call(export, Core(), "abc@host-1")
    await export.close()
    assert {packet.correlation_id for packet in server.packets()} == {b"abc@host"}


@pytest.mark.parametrize(("control", "sip"), [("a-0", "a"), ("a-12", "a-12"), ("f81d4fae-7dec-11d0", "f81d4fae-7dec-11d0"), ("x-", "x-")])
def test_only_a_branch_digit_is_taken_off(control: str, sip: str) -> None:
    assert sip_call_id(control) == sip


async def test_an_unmeasured_stream_has_no_report(server: Server) -> None:
    export, core = HomerExport(server.target, 77, events=False), Core()
    await export.start()
    await core.call()
    core.offloader.events.subscribe(export)
    call = core.book.call("c1")
    export.call_ended(record(call, "released", 0, 0, lambda *_: None, 50.0), 1.0)
    await export.close()
    assert server.packets() == []


async def test_a_server_that_is_not_there_costs_nothing_but_its_packets(caplog) -> None:
    server = Server()
    server.socket.close()
    export, core = HomerExport(server.target, 77, events=True), Core()
    await export.start()
    await a_call(export, core)
    async with asyncio.timeout(5):
        while not export.dropped:
            await core.say("Uc0,8 c2 10.91.1.2 6000 A;1")
            await asyncio.sleep(0.02)
    await export.close()
    assert sum("Homer at" in line.message for line in caplog.records) == 1


async def test_what_waits_is_bounded(server: Server, monkeypatch) -> None:
    monkeypatch.setattr(homer, "_MAX_WAITING", 10)
    export, core = HomerExport(server.target, 77, events=True), Core()
    core.offloader.events.subscribe(export)
    for n in range(40):
        core.offloader.events.emit(NOTE, "c1", f"n{n}")
    assert export.dropped == 30
    await export.start()
    await export.close()
    assert len(server.packets()) == 10


async def test_over_ipv6() -> None:
    server = Server(socket.AF_INET6, "::1")
    export = HomerExport(server.target, 1, events=False)
    await export.start()
    await a_call(export, Core())
    await export.close()
    assert len(server.packets()) == 2
    server.socket.close()
