"""What the host would encrypt, drop, translate or route otherwise leaves as with the relay alone: by the kernel, or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from shunt.admin import AdminClient
from tests.agent_daemon.lab import Lab
from tests.dataplane.lab import missing
from tests.lab.topology import CALLEE_IP
from tests.networks.field import Call, Field, Sent

pytestmark = [pytest.mark.slow, pytest.mark.netns, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

# What is configured on the relay's host, and what takes it back.
POLICIES = {
    "IPsec without state": (f"ip xfrm policy add src 0.0.0.0/0 dst {CALLEE_IP}/32 dir out tmpl proto esp mode transport", "ip xfrm policy flush"),
    "IPsec, action block": (f"ip xfrm policy add src 0.0.0.0/0 dst {CALLEE_IP}/32 dir out action block", "ip xfrm policy flush"),
    "rule by protocol and port": ("ip rule add ipproto udp sport 1024-65534 to {0} dport 1024-65534 blackhole", "ip rule del ipproto udp sport 1024-65534 to {0} dport 1024-65534 blackhole"),
    "mark and rule": (f"iptables -t mangle -A OUTPUT -d {CALLEE_IP} -p udp -j MARK --set-mark 9; ip rule add fwmark 9 blackhole", "iptables -t mangle -F; ip rule del fwmark 9 blackhole"),
}


async def _until(lab: Lab, call: Call, *wanted: str) -> None:
    """Wait until the RTP streams of a call have these reasons."""
    end = time.monotonic() + 60
    async with AdminClient(str(lab.admin)) as admin:
        while True:
            view = await admin.call(call.call_id)
            found = [str(stream["reason"]) for stream in view["lines"][0]["streams"] if stream["component"] == "rtp"]
            if sorted(found) == sorted(wanted):
                return
            assert time.monotonic() < end, f"{found}, not {wanted}"
            await asyncio.sleep(0.1)


async def _play(lab: Lab, command: str, undo: str, before: bool) -> list[Sent]:
    """A call to a party that the policy covers; before: it is there before the call, else it comes while the call is offloaded."""
    field = Field(lab, True)
    call = field.call(field.phone("caller"), field.phone("callee"))

    try:
        if before:
            field.topology.run("edge", "sh", "-c", command)
        await call.set_up()
        call.callee.talk()
        call.caller.talk()
        if not before:
            await _until(lab, call, "offloaded", "offloaded")
            field.topology.run("edge", "sh", "-c", command)
        await _until(lab, call, "offloaded", "host-policy")
        sent, heard = len(call.caller.sent), call.callee.heard(call.caller)
        await asyncio.sleep(1.0)
        after = Sent("caller → callee", len(call.caller.sent) - sent, call.callee.heard(call.caller) - heard)
        field.topology.run("edge", "sh", "-c", undo)
        await _until(lab, call, "offloaded", "offloaded")
        return [after, *await call.settle()]
    finally:
        field.topology.run("edge", "sh", "-c", f"{undo}; true")
        await field.close()


@pytest.mark.parametrize("before", [True, False], ids=["before the call", "in mid-call"])
@pytest.mark.parametrize("name", POLICIES)
def test_no_packet_leaves_against_the_hosts_policy(labs: Callable[[str, bool], Lab], name: str, before: bool) -> None:
    command, undo = (text.format(CALLEE_IP) for text in POLICIES[name])
    during, _, back = asyncio.run(_play(labs("shunt-relay", True), command, undo, before))
    assert during.sent > 0 and during.heard == 0, f"{during.heard} of {during.sent} left"
    assert back.lost <= 5, f"the other direction: {back.lost} of {back.sent} lost"
