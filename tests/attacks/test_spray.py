"""A spray of packets over the whole port range, from random ports: honest callers are offloaded all the same, and soon."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.attacks.scene import Scene, missing_relay, relays, scene
from tests.dataplane.lab import missing
from tests.lab.load import Phones
from tests.lab.processes import PORTS
from tests.lab.topology import EDGE_IP

pytestmark = [pytest.mark.netns, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

RATE = 100_000
LEAST = 10_000  # packets without which the test means nothing
# How much longer a call may take beside the spray than without it; what is added is for a machine where it takes no time.
BAR, BAR_MS = 5.0, 200.0
CALLS = 8
# What comes from media ports to the sprayer's own host, and not through it to a phone.
_STOLEN = f"""table inet spray {{
  counter stolen {{ }}
  chain arrived {{ type filter hook input priority 0; udp sport {PORTS[0]}-{PORTS[1]} counter name stolen; }}
}}"""


@pytest.mark.parametrize("relay", relays())
async def test_spray(relay: str, tmp_path: Path) -> None:
    if (reason := missing_relay(relay)) is not None:
        pytest.skip(reason)
    async with scene(tmp_path, relay) as here:
        with Phones(here.topology, "nat") as sprayer:
            here.topology.run("nat", "nft", "-f", "-", stdin=_STOLEN)
            for natted in (False, True):
                await _spray(here, relay, sprayer, natted)


async def _calls(here: Scene, first: int, natted: bool) -> list[float]:
    """Calls one after another. Returns the delays of their parties from the first packet to the data plane, ms, shortest first."""
    delays: list[float] = []
    for number in range(first, first + CALLS):
        await here.next_phones(number)
        to_caller, to_callee = await here.call(f"c{number}", natted=natted)
        here.caller.talk(to_caller)
        here.callee.talk(to_callee)
        delays += await here.until_offloaded(f"c{number}")
        await here.caller.hush()
        await here.callee.hush()
        assert here.caller.foul == here.callee.foul == 0, "what was sprayed has reached a phone"
        await here.client.command(f"D c{number} A B")
    return sorted(delays)


async def _spray(here: Scene, relay: str, sprayer: Phones, natted: bool) -> None:
    alone = await _calls(here, 1 + 2 * CALLS * natted, natted)
    sprayer.say(f"spray {sprayer.ip} {EDGE_IP} {PORTS[0]} {PORTS[1]} {RATE}")
    began, before = time.monotonic(), sprayer.sent()[2]
    await asyncio.sleep(0.5)
    cpu = _cpu(here.edge.agent.pid)
    delays = await _calls(here, 1 + CALLS + 2 * CALLS * natted, natted)
    took = time.monotonic() - began
    rate = (sprayer.sent()[2] - before) / took
    used = _cpu(here.edge.agent.pid) - cpu
    sprayer.say(f"spray {sprayer.ip} {EDGE_IP} {PORTS[0]} {PORTS[1]} 0")
    resident = _resident_mib(here.edge.agent.pid)
    bar = BAR_MS + BAR * alone[len(alone) // 2]
    stolen = _stolen(here)
    print(
        f"{relay}, {'phones behind NAT' if natted else 'addresses as signalled'}: spray of {rate:.0f} packets/s (asked for {RATE}): from the second party's first packet to offloaded {delays[len(delays) // 2]:.0f} ms median, "
        f"{delays[-1]:.0f} ms most, without the spray {alone[len(alone) // 2]:.0f} ms; agent {used / took:.0%} of a core, {resident} MiB; {stolen} packets came back to the sprayer"
    )
    assert rate * took > LEAST
    assert len(delays) == 2 * CALLS and delays[len(delays) // 2] <= bar
    assert resident < 400
    assert stolen == 0, "media has gone to the sprayer"


def _stolen(here: Scene) -> int:
    words = here.topology.run("nat", "nft", "list", "counter", "inet", "spray", "stolen").split()
    return int(words[words.index("packets") + 1])


def _cpu(pid: int) -> float:
    """Seconds of processor time used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _resident_mib(pid: int) -> int:
    return next(int(line.split()[1]) // 1024 for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
