"""The control channel: framing, repetitions, statistics; time-outs, and the death of each process."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import pytest

from tests.lab.processes import NG_PORT, RTPENGINE_PORT, Edge, open_socket
from tests.ng.scene import TCP_PORT, Scene, scene
from tests.tools.ng import decode, encode

pytestmark = [pytest.mark.netns, pytest.mark.e2e]


def _port(ng: Scene) -> int:
    return RTPENGINE_PORT if ng.alone else NG_PORT


async def _datagram(ng: Scene, message: bytes) -> bytes:
    def exchange() -> bytes:
        with open_socket(ng.topology, "edge", socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(60)
            sock.sendto(message, ("127.0.0.1", _port(ng)))
            return sock.recv(65_535)

    return await asyncio.to_thread(exchange)


async def test_ping_in_both_encodings(ng: Scene) -> None:
    assert await _datagram(ng, b"c1 d7:command4:pinge") == b"c1 d6:result4:ponge"
    cookie, _, body = (await _datagram(ng, b'c2 {"command":"ping"}')).partition(b" ")
    assert (cookie, json.loads(body)) == (b"c2", {"result": "pong"})


async def test_commands_over_tcp(ng: Scene) -> None:
    """A connection takes many commands, in pieces of any size and several in one."""

    def exchange() -> bytes:
        with open_socket(ng.topology, "edge", socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.settimeout(60)
            sock.connect(("127.0.0.1", TCP_PORT if ng.alone else NG_PORT))
            for part in (b"t1 d7:comm", b"and4:pinge", b"t2 d7:command4:pinget3 d7:command4:pinge"):
                sock.sendall(part)
                time.sleep(0.05)
            got = b""
            while got.count(b"4:pong") < 3:
                piece = sock.recv(4096)
                assert piece, got
                got += piece
            return got

    got = await asyncio.to_thread(exchange)
    assert all(f"t{number} d6:result4:ponge".encode() in got for number in (1, 2, 3)), got


async def test_json_sets_calls_up(ng: Scene) -> None:
    call = ng.call()
    text = call.sdp(call.caller)
    offer = {"command": "offer", "call-id": call.id, "from-tag": call.caller.tag, "sdp": text}
    _, _, body = (await _datagram(ng, b"j1 " + json.dumps(offer).encode())).partition(b" ")
    assert json.loads(body)["result"] == "ok"
    assert (await call.command("delete", from_tag=call.caller.tag))["result"] == "ok"


async def test_a_repeated_cookie_gets_the_same_reply(ng: Scene) -> None:
    """A repetition is not a second offer: the ports are the same, and the reply is, byte for byte."""
    call = ng.call()
    message = b"again " + encode({"sdp": call.sdp(call.caller), "call-id": call.id, "from-tag": call.caller.tag, "command": "offer"})
    first, second = await _datagram(ng, message), await _datagram(ng, message)
    assert first == second and decode(first.partition(b" ")[2])["result"] == "ok"
    await call.command("delete", from_tag=call.caller.tag)


async def test_statistics_count_what_the_data_plane_carried(ng: Scene) -> None:
    """query and delete count every packet, wherever it went."""
    call = ng.call()
    await call.connect()
    await call.offloaded()
    await asyncio.sleep(1.0)
    await call.hush()
    sent = sum(len(phone.streams[0].sent) for phone in (call.caller, call.callee))
    await asyncio.sleep(0.5)
    for reply in (await call.command("query"), await call.command("delete", from_tag=call.caller.tag)):
        counted = reply["totals"]["RTP"]["packets"]
        # The keep-alives of an agent are no media.
        assert sent - 2 <= counted <= sent + 4, (counted, sent)


async def test_the_agent_reaches_rtpengine_over_tcp(own_edge: Edge) -> None:
    """relays[].socket may be tcp:, for listen-tcp-ng."""
    await asyncio.to_thread(own_edge.agent.stop)
    config = own_edge.shunt_config()
    config["relays"][0]["socket"] = f"tcp:127.0.0.1:{TCP_PORT}"
    own_edge.write_config(config)
    await asyncio.to_thread(own_edge.start_agent)
    await asyncio.to_thread(own_edge.await_data_plane)
    async with scene(own_edge) as ng:
        call = ng.call()
        await call.connect()
        await call.offloaded()
        await call.hang_up()
        await call.check_media()
        await ng.clean()


@pytest.mark.parametrize("own_edge", [("--timeout=4",)], indirect=True)
async def test_an_offloaded_call_outlives_the_relays_time_out(own_edge: Edge) -> None:
    """rtpengine drops a call without packets after 4 s; this one is kept for as long as it talks, and dropped when it does not."""
    async with scene(own_edge) as ng:
        call = ng.call()
        await call.connect()
        await call.offloaded()
        await asyncio.sleep(12)
        await call.offloaded()
        assert await asyncio.to_thread(own_edge.relay_sessions) == 1
        await call.hush()
        await call.check_media()
        deadline = time.monotonic() + 60
        while await asyncio.to_thread(own_edge.relay_sessions):
            assert time.monotonic() < deadline, "a silent call is kept"
            await asyncio.sleep(0.2)
        await ng.clean()


@pytest.mark.parametrize("victim", ["agent", "softswitch", "relay"])
async def test_a_call_outlives_the_death_of(own_edge: Edge, victim: str) -> None:
    """Killed in mid-call and started again a second later: not a packet of the offloaded call is lost."""
    async with scene(own_edge) as ng:
        call = ng.call()
        await call.connect()
        await call.offloaded()
        process = getattr(own_edge, victim)
        await asyncio.to_thread(process.kill)
        await asyncio.sleep(1.0)
        await asyncio.to_thread(getattr(own_edge, f"start_{victim}"))
        await call.more(50)
        await call.check_media()
        if victim != "relay":  # that one has forgotten the call
            await call.hang_up()
        else:
            await ng.ask("delete", call_id=call.id)
        await ng.clean()


async def test_calls_of_the_relay_are_adopted(own_edge: Edge) -> None:
    """A call that was set up past the agent, which was dead, is offloaded when the agent is back."""
    await asyncio.to_thread(own_edge.agent.kill)
    async with scene(own_edge) as ng:
        call = ng.call()
        with ng.past_the_agent():
            await call.connect()
        await asyncio.to_thread(own_edge.start_agent)
        await call.offloaded()
        await call.hang_up()
        await call.check_media()
        await ng.clean()


@pytest.mark.parametrize("own_edge", [("--delete-delay=300",)], indirect=True)
@pytest.mark.parametrize("killed", [False, True])
async def test_what_a_delete_has_ended_stays_ended_while_rtpengine_lists_it(own_edge: Edge, killed: bool) -> None:
    """rtpengine keeps a deleted call for its delete-delay: it is no call for the agent, nor for one that has just started."""
    async with scene(own_edge) as ng:
        ended, answered_past, unknown = ng.call(), ng.call(), ng.call()
        await ended.connect()
        await ended.offloaded()
        await ended.hang_up()
        await answered_past.offer()
        if killed:
            await asyncio.to_thread(own_edge.agent.kill)
        with ng.past_the_agent():
            await unknown.connect()
            await answered_past.answer()
        answered_past.talk()
        if killed:
            await asyncio.to_thread(own_edge.start_agent)
        # The same list of rtpengine shows the ended call, too.
        for call in (answered_past, unknown):
            await call.offloaded(seconds=40)
        assert await live_calls(own_edge) == {answered_past.id, unknown.id}
        for call in (answered_past, unknown):
            await call.hang_up()
        assert not await live_calls(own_edge)


async def live_calls(edge: Edge) -> set[str]:
    """The calls that the agent has now; `view` shows ended ones, too."""
    return {call["call_id"] for call in await asyncio.to_thread(edge.calls)}
