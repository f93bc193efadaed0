"""Recorded call flows through the man in the middle: replies pass untouched, and each party's leg has the right relay port.

The oracle is independent of the control channel: the SDP that the SIP server really sent to a party says
which port that party sends to.
"""

from __future__ import annotations

import re

import pytest

from shunt.calls.model import Side
from shunt.control.relays import Relay, RelayPool
from shunt.control.upstream import RelayTimeout
from shunt.net import Endpoint
from shunt.rtpproxy import codec
from shunt.rtpproxy.codec import CodecError
from tests.agent.parts import Core
from tests.rtpproxy.traces import Exchange, SipMilestone, timeline, trace_files

CALLS = [path for path in trace_files() if re.match(r"(0|1[0-8]|4[0-9])", path.name)]
_PORTS = re.compile(r"m=(?:audio|video) (\d+)")


class Recorded:
    """A relay that gives the recorded reply to the recorded command."""

    def __init__(self) -> None:
        self.reply: bytes | None = None
        self.heard: bytes | None = None

    async def forward(self, body: bytes, peer_ip: str | None) -> bytes:
        self.heard = body
        if self.reply is None:
            raise RelayTimeout("nothing was recorded")
        return self.reply

    async def request(self, body: bytes) -> bytes:
        raise RelayTimeout("the agent's own commands are not in the recording")


def bodies(exchange: Exchange) -> tuple[bytes, bytes | None]:
    if exchange.is_stream:
        return exchange.command.rstrip(b"\r\n"), exchange.reply.rstrip(b"\r\n") if exchange.reply is not None else None
    reply = codec.parse_datagram(exchange.reply)[1] if exchange.reply is not None else None
    return codec.parse_datagram(exchange.command)[1], reply


def sends_to(core: Core, party: bytes) -> set[int]:
    """The relay ports that legs signalled at this address send to; of all legs while nothing was signalled from there."""
    legs = [leg for line in core.book.lines() for leg in line.legs.values() if leg.relay is not None]
    named = {leg.relay.port for leg in legs if leg.signalled is not None and leg.signalled.addr == party}
    return named or {leg.relay.port for leg in legs}


@pytest.mark.skipif(not CALLS, reason="the recorded traces are not beside this checkout (shared/traces)")
@pytest.mark.parametrize("path", CALLS, ids=lambda p: p.stem)
async def test_recorded_flow(path):
    core, recorded = Core(), Recorded()
    core.pool = RelayPool([Relay("r1", "udp:test", 60.0, [], recorded.forward, recorded.request)])
    core.proxy.pool = core.pool
    checked = commands = 0
    server: set[str] = set()
    for event in timeline(path):
        if isinstance(event, Exchange):
            body, recorded.reply = bodies(event)
            reply = await core.proxy.handle(body, b"1", None)
            await core.settle()
            assert recorded.heard == body
            assert reply == recorded.reply, "with nothing offloaded every reply passes as it came"
            commands += 1
        elif isinstance(event, SipMilestone) and event.first_line.startswith("SIP/2.0 100"):
            server.add(event.source.rpartition(":")[0])
        elif isinstance(event, SipMilestone) and event.sdp and event.source.rpartition(":")[0] in server:
            party = Endpoint.parse(event.destination).addr
            known = sends_to(core, party)
            for port in map(int, _PORTS.findall(event.sdp)):
                if port and known and "0.0.0.0" not in event.sdp:
                    assert port in known, f"line {event.line}: {event.destination} was told to send to {port}, the book says {known}"
                    checked += 1
    assert commands, f"{path.name} holds no exchange"
    if "handshake" not in path.name and any(isinstance(e, SipMilestone) and e.sdp for e in timeline(path)):
        assert checked, "no SDP was compared: the oracle saw nothing"


async def test_ended_calls_leave_no_state():
    """After each recording that ends in a D, no call is left."""
    if not CALLS:
        pytest.skip("the recorded traces are not beside this checkout (shared/traces)")
    ended = 0
    for path in CALLS:
        core, recorded = Core(), Recorded()
        core.proxy.pool = RelayPool([Relay("r1", "udp:test", 60.0, [], recorded.forward, recorded.request)])
        exchanges = [bodies(e) for e in timeline(path) if isinstance(e, Exchange)]
        deleted, created = set(), set()
        for body, recorded.reply in exchanges:
            await core.proxy.handle(body, b"1", None)
            await core.settle()
            try:
                command = codec.parse_command(body)
            except CodecError:
                continue
            if command.verb == "D":
                deleted.add(command.call_id)
            elif command.verb == "U":
                created.add(command.call_id)
                deleted.discard(command.call_id)
        assert {c.call_id for c in core.book.calls()} <= created - deleted, path.name
        ended += len(deleted)
    assert ended >= 10


async def test_a_leg_knows_its_side_in_a_swapped_re_invite():
    core = Core()
    pl, pu = await core.call()
    await core.say("Uc0,8 c1 10.91.2.2 7200 B;1 A;1")
    line = core.book.lines()[0]
    assert (line.legs[Side.CALLEE].signalled.port, line.legs[Side.CALLEE].relay.port) == (7200, pu)
    assert (line.legs[Side.CALLER].signalled.port, line.legs[Side.CALLER].relay.port) == (6000, pl)
