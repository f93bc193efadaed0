"""Reproducers of RTP Bleed (CVE-2017-14114) and RTP Inject (CVE-2025-53399) against a running call."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.attacks.scene import Scene, missing_relay, relays, scene
from tests.dataplane.lab import missing

pytestmark = [pytest.mark.netns, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


@pytest.mark.parametrize("first_packets", ["any", "named"])
@pytest.mark.parametrize("relay", relays())
async def test_bleed_and_inject(relay: str, first_packets: str, tmp_path: Path) -> None:
    if (reason := missing_relay(relay)) is not None:
        pytest.skip(reason)
    async with scene(tmp_path, relay, first_packets) as here:
        await _running_call(here, relay)
        await here.next_phones(1)
        safe = relay == "builtin" or first_packets == "named"
        await _call_that_is_raced(here, relay, safe=safe)
        await here.next_phones(2)
        await _call_being_set_up(here, relay, safe=safe)
        if safe:
            for number, natted in enumerate((False, True), 3):
                await here.next_phones(number)
                await _call_with_a_silent_party(here, relay, natted=natted)


async def _running_call(here: Scene, relay: str) -> None:
    """An attacker who knows the relay's ports, and then the SSRC and sequence too, gets no packet and has none forwarded."""
    to_caller, to_callee = await here.call("victim", natted=False)
    here.caller.talk(to_caller)
    here.callee.talk(to_callee)
    await here.until_offloaded("victim")
    before, said = here.caller.received[0x0B0B], here.callee.sent
    # RTP Bleed: a stranger's packets at both ports, and whatever they bring back.
    here.attacker.talk(to_caller, to_callee, every=0.005)
    await asyncio.sleep(1.0)
    await here.attacker.hush()
    # RTP Inject: with the victims' own SSRC, and sequence numbers that follow theirs.
    for step in range(150):
        here.attacker.send(to_caller, ssrc=here.caller.ssrc, seq=here.caller.seq + 1 + step % 3)
        here.attacker.send(to_callee, ssrc=here.callee.ssrc, seq=here.callee.seq + 1 + step % 3)
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.3)
    stolen, injected = sum(here.attacker.received.values()), here.caller.foul + here.callee.foul
    heard = here.caller.received[0x0B0B] - before
    print(f"{relay}: attacker sent {here.attacker.sent} packets, got {stolen}; {injected} injected")
    assert stolen == 0, f"the attacker received packets of {dict(here.attacker.received)}"
    assert injected == 0, f"{injected} packets of the attacker reached a phone"
    assert heard >= 0.9 * (here.callee.sent - said) - 1 and heard > 10, "the call itself went on"
    view = await here.view("victim")
    assert all(s["state"] == "offloaded" for line in view["media"] for s in line["streams"] if s["component"] == "rtp")
    assert view["media"][0]["legs"]["caller"]["learned"].startswith("198.18.1.2:")
    await here.client.command("D victim A B")


async def _call_being_set_up(here: Scene, relay: str, *, safe: bool) -> None:
    """Phones behind NAT, and an attacker who touches every port over and over: the data plane never takes the attacker's address.

    safe: the attacker gets nothing of theirs before the offload either. rtpproxy alone latches to who comes first. While both phones are
    silent shunt-relay may take the attacker for either party, and sends it its own packets.
    """
    to_caller, to_callee = await here.call("natted", natted=True)
    before, foul_before = here.stolen(), here.caller.foul + here.callee.foul
    # As RTP Bleed scanners do: each port in its turn, the two of the call among them.
    ports = [(to_caller[0], port) for port in range(to_caller[1] - 200, to_caller[1] + 200, 2)] + [to_callee]
    here.attacker.talk(*ports, every=0.05)
    await asyncio.sleep(0.3)
    here.caller.talk(to_caller)
    here.callee.talk(to_callee)
    await here.until_offloaded("natted")
    view = await here.view("natted")
    learned = {side: leg["learned"] for side, leg in view["media"][0]["legs"].items()}
    assert learned == {"caller": f"{here.caller.ip}:{here.caller.port}", "callee": f"{here.callee.ip}:{here.callee.port}"}
    got, foul = here.stolen(), here.caller.foul + here.callee.foul
    await asyncio.sleep(1.0)
    later, foul_later = here.stolen(), here.caller.foul + here.callee.foul
    print(f"{relay}: before the offload the attacker got {got - before} packets and had {foul - foul_before} forwarded, afterwards {later - got} and {foul_later - foul}")
    assert later == got, "the attacker receives media of an offloaded call"
    assert foul_later == foul, "the attacker's packets reach a phone of an offloaded call"
    if safe:
        assert (got, foul) == (before, foul_before), "an attacker gets nothing before the offload either"


async def _call_that_is_raced(here: Scene, relay: str, *, safe: bool) -> None:
    """An attacker who knows each port as soon as it is open, and is there before anything that the agent does then.

    safe: as above; if not, the reproducer works.
    """
    before, foul_before = sum(here.attacker.received.values()), here.caller.foul + here.callee.foul

    to_caller, to_callee = await here.call("raced", natted=True, opened=here.attacker.send, ringing_s=0.05)
    here.caller.talk(to_caller)
    here.callee.talk(to_callee)
    await here.until_offloaded("raced")
    await asyncio.sleep(0.3)
    got, foul = sum(here.attacker.received.values()) - before, here.caller.foul + here.callee.foul - foul_before
    print(f"{relay}: racing, the attacker got {got} packets and had {foul} forwarded")
    assert (got, foul) == (0, 0) if safe else got > 0


async def _call_with_a_silent_party(here: Scene, relay: str, *, natted: bool) -> None:
    """The callee says nothing yet, and somebody touches both ports with another SSRC each time. It draws no media."""
    call_id = f"silent-{natted}"
    to_caller, to_callee = await here.call(call_id, natted=natted)
    here.caller.talk(to_caller)
    before, foul = here.stolen(), here.caller.foul + here.callee.foul
    for touch in range(10):
        for port in (to_callee, to_caller) if touch % 2 else (to_caller, to_callee):
            here.attacker.send(port, ssrc=0xBAD000 + 2 * touch + (port == to_caller), seq=touch)
            await asyncio.sleep(0.07)
    got, foul = here.stolen() - before, here.caller.foul + here.callee.foul - foul
    print(f"{relay}, silent party {'behind NAT' if natted else 'as signalled'}: the attacker got {got} packets and had {foul} forwarded")
    assert got == 0, "the attacker got media of a call whose party is silent"
    here.callee.talk(to_callee)
    await here.until_offloaded(call_id)
    view = await here.view(call_id)
    learned = {side: leg["learned"] for side, leg in view["media"][0]["legs"].items()}
    assert learned == {"caller": f"{here.caller.ip}:{here.caller.port}", "callee": f"{here.callee.ip}:{here.callee.port}"}
    assert here.stolen() - before == 0
    await here.client.command(f"D {call_id} A B")
