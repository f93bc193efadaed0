"""What the death of each process costs under load; writes build/bench/restart/results.json.

Run as root: python bench/restart.py [--calls N] [--rate N] [--only PART …] [--table N].

Established calls, all offloaded, send 50 packets/s each way; new ones come at a steady rate, talk for four
seconds and hang up. One process is killed with SIGKILL and started again 0.1 s later, as its unit would.
Every packet of the established calls is counted where it was sent and where it arrived. One minute after
the kill, with all calls hung up half a minute before, nothing may be left in the data plane or the relay.

The commands come from this process, as a SIP server sends them (a datagram, repeated every half second),
and RTP from one C program for each side: SIPp cannot play the media of a thousand calls here. What the
SIP server's own death costs is shown with a real one, in tests/e2e/test_failures.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for folder in (".", "agent", "softswitch"):
    sys.path.insert(0, str(ROOT / folder))

from tests.lab.load import ControlClient, Load, Phones  # noqa: E402
from tests.lab.processes import Edge, Process  # noqa: E402
from tests.lab.redis import RedisServer  # noqa: E402
from tests.lab.topology import LabError, Topology  # noqa: E402

OUTPUT = ROOT / "build" / "bench" / "restart"
RESTART_AFTER = 0.1
PRIORITY = -10
TALK = 4.0
PARTS = ("agent", "softswitch", "relay", "redis")
TARGET_SERVICE, TARGET_BIG = 2.0, 10.0


class Run:
    """One lab, one kill."""

    def __init__(self, part: str, relay: str, calls: int, rate: float, *, redis: bool) -> None:
        self.part, self.relay, self.count, self.rate = part, relay, calls, rate
        self.with_redis = redis or part == "redis"
        self.work = OUTPUT / f"{part}-{relay}{'-redis' if redis else ''}"
        self.placed = self.hung_up = 0
        self.pending: set[asyncio.Task[None]] = set()

    async def run(self) -> dict[str, Any]:
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        with Topology("restart") as topology, Phones(topology, "caller") as caller, Phones(topology, "callee") as callee:
            edge = Edge(topology, self.work, "kamailio", self.relay)
            redis = RedisServer(topology, self.work)
            for process in (edge.agent, edge.softswitch):
                process.argv = ["nice", "-n", str(PRIORITY - os.nice(0)), *process.argv]  # as their units start them
            config = edge.shunt_config()
            config["log"] = {"level": "warning"}
            if self.with_redis:
                redis.start()
                config["journal"] = {"redis": redis.url}
            edge.write_config(config)
            try:
                edge.start_softswitch()
                edge.start_relay()
                edge.start_agent()
                client = ControlClient.to(topology)
                try:
                    return await self._measure(edge, redis, Load(client, caller, callee), caller, callee)
                finally:
                    client.close()
            finally:
                edge.stop()
                redis.stop()

    async def _measure(self, edge: Edge, redis: RedisServer, load: Load, caller: Phones, callee: Phones) -> dict[str, Any]:
        await self._in_service(load.client)
        established = [load.established(n) for n in range(self.count)]
        for call in established:
            if not await load.set_up(call, modifiers="ii"):
                raise LabError(f"call not set up: {load.failed[-1]}")
            load.talk(call)
        await self._until_offloaded(edge, 2 * self.count)
        # From here on every packet counts: silence, so that counting starts with none under way.
        for call in established:
            load.hush(call)
        await asyncio.sleep(0.5)
        sent, got = self._counted(caller, callee)
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
        back = await self._in_service(load.client) - killed
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
        slowest, repeated = load.client.slowest, load.client.repeated
        for call in established:
            await load.hang_up(call)
        await asyncio.sleep(max(0.0, killed + 60 - time.monotonic()))
        status = edge.status()
        return {
            "part": self.part, "relay": self.relay, "journal": "redis" if self.with_redis else "sqlite", "calls": self.count, "rate": self.rate,
            "sent": sent_after - sent, "lost": (sent_after - sent) - (got_after - got),
            "fresh_calls": self.placed, "fresh_failed": len(load.failed), "failures": load.failed[:5],
            "fresh_sent": fresh_after[0] - fresh_before[0], "fresh_lost": (fresh_after[0] - fresh_before[0]) - (fresh_after[1] - fresh_before[1]),
            "back_s": round(back, 3), "new_call_offloaded_s": round(relayed_again, 3), "slowest_command_s": round(slowest, 3), "repeated_commands": repeated,
            "entries_matched_calls": live_ok,
            "after_a_minute": {
                "calls": status["calls"], "entries": status["data_plane"]["entries"], "orphans": status["data_plane"]["orphans"],
                "sessions": sum(r["sessions"] or 0 for r in status["relays"]), "limits": {k: v for k, v in status["limits"].items() if v},
            },
        }

    def _victim(self, edge: Edge, redis: RedisServer) -> tuple[Process, Callable[[], None]]:
        if self.part == "softswitch":
            return edge.softswitch, edge.start_softswitch
        if self.part == "relay":
            assert edge.relay is not None
            return edge.relay, edge.start_relay
        if self.part == "redis":
            return redis.process, redis.start
        return edge.agent, edge.start_agent

    @staticmethod
    def _counted(caller: Phones, callee: Phones) -> tuple[int, int]:
        return caller.sent()[0] + callee.sent()[0], caller.received()[0] + callee.received()[0]

    @staticmethod
    def _fresh(caller: Phones, callee: Phones) -> tuple[int, int]:
        return caller.sent()[1] + callee.sent()[1], caller.received()[1] + callee.received()[1]

    @staticmethod
    async def _in_service(client: ControlClient) -> float:
        """When the agent first answers a command that is sent now or later: one every 50 ms, however long its answer takes."""
        asked: set[asyncio.Task[bytes | None]] = set()
        while True:
            asked.add(asyncio.create_task(client.command("V", tries=1, timeout=5.0)))
            done, asked = await asyncio.wait(asked, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
            if any(task.result() is not None for task in done):
                found = time.monotonic()
                for task in asked:
                    task.cancel()
                await asyncio.gather(*asked, return_exceptions=True)
                return found
            asked = set(asked)

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
    after, short = result["after_a_minute"], []
    if result["lost"]:
        short.append(f"{result['lost']} packets of established calls lost")
    if result["back_s"] > TARGET_SERVICE:
        short.append(f"back in service only after {result['back_s']} s")
    if after["entries"] or after["orphans"]:
        short.append(f"{after['entries']} entries, {after['orphans']} orphans a minute later")
    if after["sessions"] or after["calls"]:
        short.append(f"{after['sessions']} sessions, {after['calls']} calls a minute later")
    return short


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=50.0, help="new calls per second")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--relay", choices=("auto", "rtpproxy", "builtin"), default="auto")
    parser.add_argument("--redis", action="store_true", help="keep the journal in Redis")
    arguments = parser.parse_args()
    relay = arguments.relay if arguments.relay != "auto" else "rtpproxy" if shutil.which("rtpproxy") else "builtin"
    OUTPUT.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    failed = False
    for part in arguments.only:
        if part == "relay" and relay == "builtin":
            print("relay: skipped: no rtpproxy on PATH, and the built-in relay dies with the agent")
            continue
        result = asyncio.run(Run(part, relay, arguments.calls, arguments.rate, redis=arguments.redis).run())
        short = verdict(result)
        failed = failed or bool(short)
        results.append(result | {"short": short})
        print(
            f"{part} ({relay}, {result['journal']}): {result['sent']} packets of {result['calls']} established calls, {result['lost']} lost; "
            f"back after {result['back_s']} s, offloading again after {result['new_call_offloaded_s']} s; {result['fresh_calls']} new calls, "
            f"{result['fresh_failed']} failed; a minute later {result['after_a_minute']}" + (f"  FALLS SHORT: {'; '.join(short)}" if short else ""), flush=True,
        )
    record = {"machine": platform.platform(), "results": results}
    (OUTPUT / "results.json").write_text(json.dumps(record, indent=2) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
