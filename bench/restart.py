"""What the death of each process costs under load; writes build/bench/restart/results.json.

Run as root: python bench/restart.py [--calls N] [--rate N] [--only PART …].

Established calls, all offloaded, send 50 packets/s each way; new ones come at a steady rate, talk for four
seconds and hang up. One process is killed with SIGKILL and started again 0.1 s later, as its unit would.
Every packet of the established calls is counted where it was sent and where it arrived. One minute after
the kill, with all calls hung up half a minute before, nothing may be left in the data plane or the relay.

The commands come from this process, as a SIP server sends them (a datagram, repeated every half second; by NG where the relay is rtpengine),
and RTP from one C program for each side: SIPp cannot play the media of a thousand calls here. Where the SIP server
is to die, a real one is there, and the calls come as SIP from two user agents in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for folder in (".", "operator"):
    sys.path.insert(0, str(ROOT / folder))

from tests.lab.load import ControlClient, Load, LoadCall, Phones
from tests.lab.ngload import NgLoad
from tests.lab.processes import CONTROL_PORT, NG_PORT, Edge, Process, choose
from tests.lab.redis import RedisServer
from tests.lab.sipload import SipLoad
from tests.lab.topology import LabError, Topology

OUTPUT = ROOT / "build" / "bench" / "restart"
RESTART_AFTER = 0.1
RELAY_TIMEOUT_S = 15.0  # until a minute without media has passed for what came last
TALK = 4.0
SET_UP_TRIES = 3
SHUNNED_S = 3.0  # for which the shipped configurations' SIP server asks an agent that did not answer in time no more
PARTS = ("agent", "softswitch", "relay", "sip-server", "redis")
AT_ONCE = 20  # calls being set up or hung up together
TARGET_SERVICE, TARGET_BIG = 2.0, 10.0


class Run:
    """One lab, one kill."""

    def __init__(self, part: str, sip_server: str, relay: str, calls: int, rate: float, *, redis: bool) -> None:
        self.sip_server = sip_server
        self.part, self.relay, self.count, self.rate = part, relay, calls, rate
        self.with_redis = redis or part == "redis"
        self.work = OUTPUT / f"{part}-{relay}{'-redis' if redis else ''}"
        self.placed = self.hung_up = 0
        self.pending: set[asyncio.Task[None]] = set()

    async def run(self) -> dict[str, Any]:
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        with Topology("restart") as topology, Phones(topology, "caller") as caller, Phones(topology, "callee") as callee:
            edge = Edge(topology, self.work, self.sip_server, self.relay)
            redis = RedisServer(topology, self.work)
            config = edge.shunt_config()
            config["log"] = {"level": "warning"}
            if self.with_redis:
                redis.start()
                config["journal"] = {"redis": redis.url}
            edge.write_config(config)
            edge.write_sip_server_config()
            try:
                edge.start_softswitch()
                edge.start_relay()
                edge.start_agent()
                by_ng = self.relay == "rtpengine"
                client = ControlClient.to(topology, port=NG_PORT if by_ng else CONTROL_PORT)
                try:
                    if self.part != "sip-server":
                        return await self._measure(edge, redis, (NgLoad if by_ng else Load)(client, caller, callee), caller, callee)
                    edge.start_sip_server()
                    with SipLoad(topology, client, caller, callee) as load:
                        return await self._measure(edge, redis, load, caller, callee)
                finally:
                    client.close()
            finally:
                edge.stop()
                redis.stop()

    async def _measure(self, edge: Edge, redis: RedisServer, load: Load, caller: Phones, callee: Phones) -> dict[str, Any]:
        await self._in_service(load)
        established = [load.established(n) for n in range(self.count)]
        for first in range(0, self.count, AT_ONCE):
            await self._establish(edge, load, established[first : first + AT_ONCE])
            for call in established[first : first + AT_ONCE]:
                load.talk(call)
        await self._until_offloaded(edge, 2 * self.count)
        # From here on every packet counts: silence, so that counting starts with none under way.
        for call in established:
            load.hush(call)
        await asyncio.sleep(0.5)
        sent, got = self._counted(caller, callee)
        drops = caller.link_drops() + callee.link_drops()
        for call in established:
            load.talk(call)
        stop_new = asyncio.Event()
        placing = asyncio.create_task(self._place(load, stop_new))
        await asyncio.sleep(3.0)
        fresh_before = self._fresh(caller, callee)
        killed, victim, start = time.monotonic(), *self._victim(edge, redis)
        victim.kill()
        await asyncio.sleep(RESTART_AFTER)
        starting = asyncio.create_task(asyncio.to_thread(start))
        back = await self._in_service(load) - killed
        relayed_again = await self._new_call_works(load, edge) - killed
        await starting
        await asyncio.sleep(max(0.0, killed + 25 - time.monotonic()))
        stop_new.set()
        await placing
        await asyncio.gather(*self.pending)
        live_ok = await self._matches(edge, 2 * self.count)
        for call in established:
            load.hush(call)
        await asyncio.sleep(0.7)
        sent_after, got_after = self._counted(caller, callee)
        fresh_after = self._fresh(caller, callee)
        drops = caller.link_drops() + callee.link_drops() - drops
        slowest, repeated = load.client.slowest, load.client.repeated
        for first in range(0, self.count, AT_ONCE):
            await asyncio.gather(*(load.hang_up(call) for call in established[first : first + AT_ONCE]))
        await asyncio.sleep(max(0.0, killed + 60 - time.monotonic()))
        status, after_a_minute = edge.status(), self._left(edge.status())
        if any(after_a_minute.values()):
            await asyncio.sleep(RELAY_TIMEOUT_S)  # what nobody will ever end goes with the relay's own time-out
            status = edge.status()
        return {
            "part": self.part,
            "sip_server": self.sip_server if self.part == "sip-server" else None,
            "relay": self.relay,
            "journal": "redis" if self.with_redis else "sqlite",
            "calls": self.count,
            "rate": self.rate,
            "sent": sent_after - sent,
            "lost": (sent_after - sent) - (got_after - got),
            "dropped_by_lab_links": dict(drops),
            "fresh_calls": self.placed,
            "fresh_failed": len(load.failed),
            "failures": load.failed[:5],
            "fresh_sent": fresh_after[0] - fresh_before[0],
            "fresh_lost": (fresh_after[0] - fresh_before[0]) - (fresh_after[1] - fresh_before[1]),
            "back_s": round(back, 3),
            "new_call_offloaded_s": round(relayed_again, 3),
            "slowest_command_s": round(slowest, 3),
            "repeated_commands": repeated,
            "entries_matched_calls": live_ok,
            "after_a_minute": after_a_minute,
            "later": self._left(status),
            "limits": {k: v for k, v in status["limits"].items() if v},
        }

    async def _establish(self, edge: Edge, load: Load, calls: list[LoadCall]) -> None:
        """Set up calls that are to last. Nothing counts yet: one that a busy machine had no time for, or that the SIP server gave to the relay alone, is tried again."""
        for _ in range(SET_UP_TRIES):
            done = await asyncio.gather(*(load.set_up(call, modifiers="ii") for call in calls))
            calls = [call for call, ok in zip(calls, done) if not ok or await asyncio.to_thread(self._view, edge, call.call_id) is None]
            await asyncio.gather(*(load.hang_up(call) for call in calls))
            if not calls:
                load.failed.clear()
                return
            await asyncio.sleep(SHUNNED_S)
        raise LabError(f"{calls[0].call_id} is not set up by way of the agent after {SET_UP_TRIES} tries; {load.failed[-1:]}")

    @staticmethod
    def _left(status: dict[str, Any]) -> dict[str, int]:
        return {
            "calls": status["calls"],
            "entries": status["data_plane"]["entries"],
            "orphans": status["data_plane"]["orphans"],
            "sessions": sum(r["sessions"] or 0 for r in status["relays"]),
        }

    def _victim(self, edge: Edge, redis: RedisServer) -> tuple[Process, Callable[[], None]]:
        if self.part == "softswitch":
            return edge.softswitch, edge.start_softswitch
        if self.part == "relay":
            return edge.relay, edge.start_relay
        if self.part == "sip-server":
            return edge.sip_server, edge.start_sip_server
        if self.part == "redis":
            return redis.process, redis.start
        return edge.agent, edge.start_agent

    @staticmethod
    def _counted(caller: Phones, callee: Phones) -> tuple[int, int]:
        return caller.sent()[0] + callee.sent()[0], caller.received()[0] + callee.received()[0]

    @staticmethod
    def _fresh(caller: Phones, callee: Phones) -> tuple[int, int]:
        return caller.sent()[1] + callee.sent()[1], caller.received()[1] + callee.received()[1]

    async def _in_service(self, load: Load) -> float:
        """When the agent, or the SIP server where that is the victim, first answers what is sent now or later: a question every 50 ms."""
        asked: set[asyncio.Task[bool]] = set()
        while True:
            asked.add(asyncio.create_task(self._answers(load)))
            done, asked = await asyncio.wait(asked, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
            if any(task.result() for task in done):
                found = time.monotonic()
                for task in asked:
                    task.cancel()
                await asyncio.gather(*asked, return_exceptions=True)
                return found

    @staticmethod
    async def _answers(load: Load) -> bool:
        if isinstance(load, SipLoad):
            return await load.alive()
        return await load.client.command(load.ASK, tries=1, timeout=5.0) is not None

    async def _new_call_works(self, load: Load, edge: Edge) -> float:
        """When a call that is set up now has all of its media in the data plane."""
        call = load.fresh(90_000)
        await load.set_up(call, modifiers="ii")
        load.talk(call)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            view = await asyncio.to_thread(self._view, edge, call.call_id)
            if view and all(s["state"] == "offloaded" for line in view["media"] for s in line["streams"] if s["component"] == "rtp"):
                break
            await asyncio.sleep(0.05)
        found = time.monotonic()
        load.hush(call)
        await load.hang_up(call)
        return found

    @staticmethod
    def _view(edge: Edge, call_id: str) -> dict[str, Any] | None:
        try:
            return edge.get(f"/v1/calls/{call_id}")
        except (LabError, OSError):
            return None

    async def _until_offloaded(self, edge: Edge, streams: int) -> None:
        deadline = time.monotonic() + 30
        while (found := (await asyncio.to_thread(edge.status))["streams"]["offloaded"]) < streams:
            if time.monotonic() > deadline:
                raise LabError(f"{found} of {streams} streams are offloaded")
            await asyncio.sleep(0.2)

    async def _matches(self, edge: Edge, streams: int) -> bool:
        """Whether, with the short calls gone, the data plane holds the established calls' entries and no others."""
        for _ in range(40):
            status = await asyncio.to_thread(edge.status)
            if status["data_plane"]["entries"] == status["data_plane"]["ours"] == streams:
                return True
            await asyncio.sleep(0.25)
        return False

    async def _place(self, load: Load, stop: asyncio.Event) -> None:
        began = time.monotonic()
        while not stop.is_set():
            task = asyncio.create_task(self._short_call(load, self.placed))
            self.pending.add(task)
            task.add_done_callback(self.pending.discard)
            self.placed += 1
            await asyncio.sleep(max(0.0, began + self.placed / self.rate - time.monotonic()))

    async def _short_call(self, load: Load, index: int) -> None:
        call = load.fresh(index)
        if await load.set_up(call, modifiers="ii"):
            load.talk(call)
            await asyncio.sleep(TALK)
            load.hush(call)
        await load.hang_up(call)
        self.hung_up += 1


def verdict(result: dict[str, Any]) -> list[str]:
    """What a result falls short of."""
    short = []
    if result["lost"] > sum(result["dropped_by_lab_links"].values()):  # a link of a machine that is too busy is nobody's fault here
        short.append(f"{result['lost']} packets of established calls lost")
    if result["back_s"] > TARGET_SERVICE:
        short.append(f"back in service only after {result['back_s']} s")
    # A call that was being set up when the SIP server died is ended by nobody: the relay's time-out has to do it.
    left = result["later" if result["part"] == "sip-server" else "after_a_minute"]
    if any(left.values()):
        short.append(f"left behind: {left}")
    return short


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=50.0, help="new calls per second")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--relay", choices=("auto", "rtpproxy", "rtpengine", "builtin"), default="auto")
    parser.add_argument("--sip-server", choices=("auto", "opensips", "kamailio"), default="auto")
    parser.add_argument("--redis", action="store_true", help="keep the journal in Redis")
    arguments = parser.parse_args()
    sip_server, relay = choose(arguments.sip_server, arguments.relay)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    failed = False
    for part in arguments.only:
        if part == "relay" and relay == "builtin":
            print("relay: left out: no rtpproxy on PATH, and the built-in relay dies with the agent")
            continue
        result = asyncio.run(Run(part, sip_server, relay, arguments.calls, arguments.rate, redis=arguments.redis).run())
        short = verdict(result)
        failed = failed or bool(short)
        results.append(result | {"short": short})
        print(
            f"{part} ({relay}, {result['journal']}): {result['sent']} packets of {result['calls']} established calls, {result['lost']} lost (dropped by the lab's own links: {result['dropped_by_lab_links'] or 'none'}); "
            f"back after {result['back_s']} s, offloading again after {result['new_call_offloaded_s']} s; {result['fresh_calls']} new calls, "
            f"{result['fresh_failed']} failed; a minute later {result['after_a_minute']}, limits met {result['limits']}" + (f"  FALLS SHORT: {'; '.join(short)}" if short else ""),
            flush=True,
        )
    record = {"machine": platform.platform(), "results": results}
    (OUTPUT / "results.json").write_text(json.dumps(record, indent=2) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
