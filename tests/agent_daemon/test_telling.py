"""What shunt-agent tells of calls while they run and when they end, over its admin API, with real media."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from shunt.admin import AdminClient, Event
from shunt.export.hep import HepPacket, encode
from shunt.net import Endpoint
from tests.lab.processes import CONTROL_PORT
from tests.agent_daemon.lab import LiveScene, live
from tests.lab.processes import CONTROL_PORT, PORTS, RELAY_PORT, open_socket
from tests.lab.topology import CALLEE_IP, CALLER_IP, EDGE_IP

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

HEP_PORT = 9060
# An entry is idle after half of the relay's time-out.
QUICK = [{"name": "local", "socket": f"udp:127.0.0.1:{RELAY_PORT}", "media": [{"address": EDGE_IP, "ports": f"{PORTS[0]}-{PORTS[1]}"}], "ttl": 8, "symmetric": True}]


async def kept(admin: AdminClient, kind: str, call: str | None = None) -> list[Event]:
    """The events of one kind that are kept, of one call if it is named."""
    found = [event async for event in admin.events(0, follow=False) if isinstance(event, Event)]
    return [event for event in found if event.kind == kind and (call is None or event.call == call)]


async def until(admin: AdminClient, met: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> Any:
    """Wait for something that is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := await met()):
        assert time.monotonic() < deadline, f"not within {seconds} s; {await admin.status()}"
        await asyncio.sleep(0.1)
    return found


async def talking(scene: LiveScene, call_id: str = "call-1") -> tuple[tuple[str, int], tuple[str, int]]:
    """A call whose two streams are offloaded, and whose phones go on."""
    to_caller, to_callee = await scene.call(call_id, natted=False)
    scene.caller.talk(to_caller)
    scene.callee.talk(to_callee)
    await scene.until_entries(2)
    return to_caller, to_callee


def rtp(call: Any) -> dict[str, Any]:
    """The RTP streams of a call's first line, by their sender."""
    return {stream["from"]: stream for stream in call["lines"][0]["streams"] if stream["component"] == "rtp"}


def sip(scene: LiveScene, message: str) -> None:
    """A copy of a SIP message of the caller's."""
    packet = HepPacket(Endpoint.of(CALLER_IP, 5060), Endpoint.of(EDGE_IP, 5060), message.replace("\n", "\r\n").encode())
    with open_socket(scene.topology, "edge", socket.AF_INET, socket.SOCK_DGRAM) as copies:
        copies.sendto(encode(packet), ("127.0.0.1", HEP_PORT))


async def test_one_event_has_all_of_a_call_that_is_over(tmp_path: Path) -> None:
    """Two media lines, one of them removed before: one `ended`, with what records need of each party; SIP says who called whom and why it ended."""
    async with live(tmp_path, "shunt-relay", hep={"listen": f"udp:127.0.0.1:{HEP_PORT}"}) as scene, AdminClient(str(scene.lab.admin)) as admin:
        head = "From: Ann <sip:ann@example.org>;tag=A\nTo: <sip:bob@example.org>\nCall-ID: call-1\nUser-Agent: phone/1\n"
        body = f"v=0\nc=IN IP4 {CALLER_IP}\nm=audio {scene.caller.port} RTP/AVP 8\na=rtpmap:8 PCMA/8000\na=ptime:20\n"
        sip(scene, f"INVITE sip:bob@example.org SIP/2.0\n{head}CSeq: 1 INVITE\n\n{body}")
        await talking(scene)
        for command in (f"U call-1 {CALLER_IP} 7100 A;2", f"L call-1 {CALLER_IP} 7200 A;2 B;2", "D call-1 A;2 B;2"):
            assert await scene.client.command(command)
        await asyncio.sleep(0.5)
        assert await kept(admin, "ended") == [], "the call goes on"
        sip(scene, f"BYE sip:bob@example.org SIP/2.0\n{head}CSeq: 2 BYE\nReason: Q.850;cause=16\n\n")
        assert (await scene.client.command("Q call-1 A;1 B;1") or b"").split()[1:3]
        await scene.hang_up("call-1")
        await scene.until_entries(0)
        (ended,) = await until(admin, lambda: kept(admin, "ended", "call-1"))
        facts = ended.facts
        assert (facts["reason"], facts["from_tag"], facts["to_tag"], facts["relay"]) == ("released", "A", "B", "local")
        assert [(line["media"], line["answered"]) for line in facts["lines"]] == [(1, True), (2, True)]
        caller = facts["lines"][0]["caller"]
        assert caller["rtp"]["packets"] > 5 and caller["relay_packets"] is not None and caller["offloaded"], caller
        assert 0 < caller["offloaded_after_us"] < 30_000_000 and caller["payload_types"][0][0] == 8
        assert (caller["sdp"]["medium"], caller["sdp"]["formats"][0]["encoding"], caller["sdp"]["ptime_ms"]) == ("audio", "PCMA", 20)
        assert facts["lines"][1]["caller"]["rtp"] is None
        invite, bye = (event.facts for event in await kept(admin, "sip", "call-1"))
        assert (invite["from"], invite["to"], invite["request_uri"], invite["user_agent"]) == ("sip:ann@example.org", "sip:bob@example.org", "sip:bob@example.org", "phone/1")
        assert (invite["cseq"], invite["sdp"][0]["port"], bye["cseq"], bye["reason"]) == (1, scene.caller.port, 2, "Q.850;cause=16")
        offloaded = [event.facts for event in await kept(admin, "state", "call-1") if event.facts["state"] == "offloaded" and event.component == "rtp"]
        assert offloaded and all(facts["after_us"] >= 0 and facts["entry"] for facts in offloaded[:2]), offloaded
        status = await admin.status()
        assert status["ended"] == {"calls": 1, "one_way": 0, "zero_packet": 1}, "nobody sent anything on the second line"
        text = await admin.metrics()
        assert 'shunt_calls_ended_total{reason="released"} 1' in text and "shunt_zero_packet_total 1" in text and "shunt_time_to_offload_seconds_count 2" in text


async def test_a_call_with_one_silent_party_counts_as_one_way(tmp_path: Path) -> None:
    async with live(tmp_path, "shunt-relay") as scene, AdminClient(str(scene.lab.admin)) as admin:
        to_caller, _ = await scene.call("call-1", natted=False)
        scene.caller.talk(to_caller)
        await until(admin, lambda: kept(admin, "learn", "call-1"))
        assert "shunt_one_way_total 0" in await admin.metrics(), "a call that goes on may still get its other party"
        await scene.hang_up("call-1")
        await until(admin, lambda: kept(admin, "ended", "call-1"))
        status = await admin.status()
        assert status["ended"] == {"calls": 1, "one_way": 1, "zero_packet": 0}, status["ended"]
        assert "shunt_one_way_total 1" in await admin.metrics()


async def test_packets_that_are_alike_are_gathered(tmp_path: Path) -> None:
    """Somebody else's packets to an offloaded port: the first is an event, those of the next second are one more, and none is left out."""
    async with live(tmp_path, "shunt-relay") as scene, AdminClient(str(scene.lab.admin)) as admin:
        to_caller, _ = await talking(scene)

        async def both() -> list[Any]:
            found = [event.facts for event in await kept(admin, "learn", "call-1") if event.facts["verdict"] == "latched"]
            return found if len(found) == 2 else []

        latched = await until(admin, both)
        assert all(facts["ssrc"] and facts["payload_type"] == 8 and facts["count"] == 1 for facts in latched)
        for _ in range(30):
            scene.attacker.send(to_caller)
            await asyncio.sleep(0.02)

        async def told() -> list[int]:
            # The data plane reports some of them only.
            reported = (await admin.status())["source_mismatches"]
            counts = [event.facts["count"] for event in await kept(admin, "learn", "call-1") if event.facts["verdict"] == "source-mismatch"]
            return counts if reported > 3 and sum(counts) == reported else []

        counts = await until(admin, told)
        assert counts[0] == 1 and len(counts) < sum(counts), counts
        assert (await admin.call("call-1"))["lines"][0]["caller"]["source_mismatches"] == sum(counts)
        assert f'shunt_learn_verdicts_total{{verdict="source-mismatch"}} {sum(counts)}' in await admin.metrics()


async def test_a_party_that_falls_silent_is_told_and_found(tmp_path: Path) -> None:
    """The stream stays offloaded, with a reason of its own, how long nothing came, and an event; and back."""
    async with live(tmp_path, "shunt-relay", relays=QUICK) as scene, AdminClient(str(scene.lab.admin)) as admin:
        await talking(scene)
        await scene.caller.hush()

        async def silent() -> Any:
            return (await admin.calls(reason="silent"))["calls"]

        (call,) = await until(admin, silent, 60)
        assert rtp(call)["caller"]["state"] == "offloaded" and rtp(call)["caller"]["idle_s"] >= 1, rtp(call)
        assert rtp(call)["callee"]["reason"] == "offloaded"
        fresh = rtp((await admin.calls(reason="silent", fresh=True))["calls"][0])["callee"]
        assert fresh["counters_age_s"] == 0 and fresh["counters"]["packets"] > 10 and fresh["idle_s"] < rtp(call)["caller"]["idle_s"], fresh

        async def told() -> list[Event]:
            return [event for event in await kept(admin, "call", "call-1") if event.facts["what"] == "idle"]

        # The event log is written after the state that it tells of.
        idle = await until(admin, told)
        assert [(event.party, event.component) for event in idle] == [("caller", "rtp")] and idle[0].facts["seconds"] >= 1
        assert 'shunt_streams_by_reason{reason="silent"} 1' in await admin.metrics()
        to_caller = next(stream["entry"]["destination"] for stream in rtp(call).values() if stream["from"] == "caller")
        host, _, port = to_caller.rpartition(":")
        scene.caller.talk((host, int(port)))

        async def active() -> Any:
            return [event for event in await kept(admin, "call", "call-1") if event.facts["what"] == "active"]

        await until(admin, active)
        assert (await admin.calls(reason="silent"))["total"] == 0


async def test_commands_say_who_answered(tmp_path: Path) -> None:
    """The relay's name also of the command that ends a call; none where the agent answers itself; no verb where nothing is understood."""
    control = {"listen": [f"udp:127.0.0.1:{CONTROL_PORT}"], "legs_per_call": 4}
    async with live(tmp_path, "shunt-relay", control=control) as scene, AdminClient(str(scene.lab.admin)) as admin:
        await scene.call("call-1", natted=False)
        await scene.hang_up("call-1")
        await scene.client.command("?? what is this")
        replies = [await scene.client.command(f"U call-2 198.51.100.1 4000 {tag};1") for tag in "ABCDE"]
        assert [reply is not None and reply.startswith(b"E") for reply in replies] == [False, False, True, True, True], replies

        async def refused() -> Any:
            told = [(event.facts["verb"], event.facts["relay"]) for event in await kept(admin, "control")]
            return told[-1:] == [("U", None)] and told

        told = await until(admin, refused)
        assert [relay for verb, relay in told if verb == "D"] == ["local"], told
        assert [event.facts["command"] for event in await kept(admin, "control") if event.facts["verb"] is None] == ["?? what is this"]
        assert (await admin.status())["limits"]["sessions_refused"] == 3


async def test_an_operator_is_told_of_the_data_plane_and_the_relay(tmp_path: Path) -> None:
    """The softswitch killed: a call that waits says so, its counters are not shown as fresh; back, table and plan are compared. The relay forgets its sessions."""
    async with live(tmp_path, "shunt-relay") as scene, AdminClient(str(scene.lab.admin)) as admin:
        await scene.call("call-1", natted=False)

        async def links(kind: str) -> list[str]:
            return [event.facts["what"] for event in await kept(admin, kind)]

        async def reconciled() -> bool:
            return (await links("data-plane"))[-1:] == ["reconciled"]

        await until(admin, reconciled)
        status = await admin.status()
        assert status["data_plane"] is not None and status["data_plane"]["reconciled"]

        async def counted() -> Any:
            plane = (await admin.status())["data_plane"]
            return plane is not None and plane["packets_relayed"] is not None and plane["entries"] == 0 and plane["age_s"] < 10

        await until(admin, counted)
        scene.lab.softswitch.kill()

        async def said() -> bool:
            call = await admin.call("call-1")
            return call["counters_error"] is not None and {stream["reason"] for stream in rtp(call).values()} == {"data-plane-unavailable"}

        await until(admin, said)
        problems = (await admin.status())["problems"]
        assert [problem["code"] for problem in problems] == ["data-plane-down"] and problems[0]["since_s"] is not None
        await asyncio.to_thread(scene.lab.edge.start_softswitch)

        async def reconciled_again() -> bool:
            told = await links("data-plane")
            return told[:2] == ["up", "reconciled"] and "down" in told and told[-1] == "reconciled"

        await until(admin, reconciled_again)

        scene.lab.relay.kill()

        async def down() -> bool:
            return "down" in await links("relay")

        await until(admin, down)
        await asyncio.to_thread(scene.lab.start_relay)

        async def reset() -> bool:
            return "reset" in await links("relay")

        await until(admin, reset)


async def test_the_end_that_an_operator_asked_for(tmp_path: Path) -> None:
    """`release-requested` comes before the end; signalling's changes are told too."""
    async with live(tmp_path, "shunt-relay") as scene, AdminClient(str(scene.lab.admin)) as admin:
        await talking(scene)
        await scene.client.command(f"Uiic8 call-1 {CALLER_IP} {scene.caller.port + 4} A;1 B;1")
        await scene.client.command(f"Lc8 call-1 {CALLEE_IP} {scene.callee.port} A;1 B;1")
        await admin.release("call-1")
        await scene.until_entries(0)
        await until(admin, lambda: kept(admin, "ended", "call-1"))
        assert [event.facts["what"] for event in await kept(admin, "call", "call-1")] == ["suspended", "resumed", "release-requested"]
