"""Processes are killed at random under calls, and every media packet is accounted for; writes build/bench/kills/results.json.

Run as root: python bench/kills.py [--seconds N] [--calls N] [--rate N] [--parts PART …] [--seed N].

SIP calls by way of the real SIP server: some last as long as the run, others come at a steady rate and talk for 3 to 20
seconds. Every few seconds one process is killed with SIGKILL, sometimes a second one while the first is still away; each is
started again 0.2 s later, as its unit would. Phones note every RTP packet by its sequence number, so each one that is
missing is known by stream and time, and is set against what was dead then. Exit status 1: a packet was lost for which no
killed process is an excuse, or something was left behind in agent, data plane or relay at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import platform
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for folder in (".", "operator"):
    sys.path.insert(0, str(ROOT / folder))

from tests.lab.load import ControlClient, LoadCall, Phones, Sent
from tests.lab.processes import Edge, Process, choose
from tests.lab.redis import RedisServer
from tests.lab.sipload import SipLoad
from tests.lab.topology import LabError, Topology

OUTPUT = ROOT / "build" / "bench" / "kills"
PARTS = ("agent", "softswitch", "relay", "sip-server", "redis")
RESTART_AFTER = 0.2
AT_ONCE = 20  # calls being set up or hung up together
SET_UP_RATE = 50  # of the lasting calls, per second
EVERY_S = (4.0, 10.0)
SECOND_VICTIM = 0.2  # how often another process dies within a second
TALK_S = (3.0, 20.0)
ON_THE_WAY_S = 0.3  # for what is under way to arrive
LEFT_BEHIND_S = 75.0  # more than the relay's own time-out: what nobody ended is gone by then
# A process that has just answered has work to do before it does what it did before.
SETTLING_S = 1.0
MOST_STORIES = 100
SHUNNED_S = 3.0  # for which the shipped configurations' SIP server does not ask an agent that did not answer; with the built-in relay there is nobody else to ask
BUILTIN_TTL_S = 20  # only the time-out ends a call whose delete the SIP server, shunning its one relay, gave to nobody
STALE_S = 40.0  # for which the entry of a call that ended unseen may still be in: 30 s idle, and the next sweep


@dataclass
class Kill:
    """One kill; times are seconds since the run began."""

    part: str
    at: float
    back: float = float("inf")

    def covers(self, begin: float, end: float) -> bool:
        """Whether something between begin and end may have met it: what was on its way when the process died died with it."""
        return self.at - ON_THE_WAY_S <= end and begin <= self.back + SETTLING_S


@dataclass
class Loss:
    """Consecutive packets of one stream that did not arrive."""

    call_id: str
    sender: str
    first: int
    last: int
    begin: float
    end: float
    offloaded_from: int  # the stream's first packet that the data plane carried; 0: none
    port: int  # of the relay, that the sender sends to
    started: float  # when the stream began
    offloaded_at: float = 0.0  # when `offloaded_from` was sent; 0.0: never
    cause: str = ""

    @property
    def packets(self) -> int:
        return self.last - self.first + 1


@dataclass
class Account:
    """All that was sent and all that arrived."""

    streams: int = 0
    sent: int = 0
    received: int = 0
    duplicates: int = 0
    offloaded: int = 0
    losses: list[Loss] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return self.sent - self.received


class Run:
    """One lab, many kills."""

    def __init__(self, sip_server: str, relay: str, parts: list[str], seconds: float, calls: int, rate: float, seed: int, output: Path = OUTPUT) -> None:
        self.sip_server, self.relay, self.seconds, self.count, self.rate, self.seed = sip_server, relay, seconds, calls, rate, seed
        self.parts = parts
        self.random = random.Random(seed)
        self.work = output
        self.kills: list[Kill] = []
        self.account = Account()
        self.failed: list[tuple[float, float, str]] = []
        self.placed = 0
        self.overflown = 0
        self._stories = MOST_STORIES
        self._ports: dict[int, list[tuple[str, float, float]]] = {}  # relay ports, with the calls that had them, from when until when
        self._ports_of: dict[str, set[int]] = {}
        self._pending: set[asyncio.Task[None]] = set()
        self._away: set[str] = set()
        self._began = 0.0

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    async def run(self) -> dict[str, Any]:
        """The whole of it. Raises LabError when the lab does not work before anything was killed."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        with Topology("kills") as topology, Phones(topology, "caller") as caller, Phones(topology, "callee") as callee:
            edge, redis = Edge(topology, self.work, self.sip_server, self.relay), RedisServer(topology, self.work)
            self.edge = edge
            config = edge.shunt_config() | {"log": {"level": "info"}}
            if "redis" in self.parts:
                redis.start()
                config["journal"] = {"redis": redis.url}
            if self.relay == "builtin":
                config["builtin_relay"]["ttl"] = BUILTIN_TTL_S
            edge.write_config(config)
            edge.write_sip_server_config()
            try:
                edge.start()
                client = ControlClient.to(topology)
                with contextlib.closing(client), SipLoad(topology, client, caller, callee) as load:
                    caller.hear()
                    callee.hear()
                    return await self._measure(edge, redis, load)
            finally:
                edge.stop()
                redis.stop()

    async def _measure(self, edge: Edge, redis: RedisServer, load: SipLoad) -> dict[str, Any]:
        self._began = time.monotonic()
        dropped = load.caller.link_drops() + load.callee.link_drops()
        established = [load.established(n) for n in range(self.count)]
        for first in range(0, self.count, AT_ONCE):
            if not all(await asyncio.gather(*(load.set_up(call) for call in established[first : first + AT_ONCE]))):
                raise LabError(f"call not set up: {load.failed[-1]}")
            for call in established[first : first + AT_ONCE]:
                load.talk(call)
            await asyncio.sleep(AT_ONCE / SET_UP_RATE)
        known = (await asyncio.to_thread(edge.status))["calls"]
        if known != self.count:
            raise LabError(f"the agent knows {known} of {self.count} calls before anything was killed: the machine is too busy, the SIP server took the agent for dead")
        stop = asyncio.Event()
        placing = asyncio.create_task(self._place(load, stop))
        await asyncio.sleep(3.0)
        end = self.now + self.seconds
        while self.now < end:
            await self._strike(edge, redis, load)
            await asyncio.sleep(min(self.random.uniform(*EVERY_S), max(0.0, end - self.now)))
        stop.set()
        await placing
        await asyncio.gather(*self._pending)
        matches = await self._matches(edge)
        for first in range(0, self.count, AT_ONCE):
            await asyncio.gather(*(self._end(load, call, 0.0) for call in established[first : first + AT_ONCE]))
        dropped = load.caller.link_drops() + load.callee.link_drops() - dropped
        left = await self._left_behind(edge)
        for loss in self.account.losses:
            loss.cause = self._cause(loss)
        return {
            "sip_server": self.sip_server,
            "relay": self.relay,
            "parts": self.parts,
            "seconds": self.seconds,
            "seed": self.seed,
            "calls": self.count,
            "rate": self.rate,
            "kills": [asdict(kill) for kill in self.kills],
            "placed": self.placed,
            "failed_calls": [{"from": a, "to": b, "what": what, "cause": self._dead(a, b)} for a, b, what in self.failed],
            "streams": self.account.streams,
            "sent": self.account.sent,
            "lost": self.account.lost,
            "duplicates": self.account.duplicates,
            "offloaded": self.account.offloaded,
            "losses": [asdict(loss) | {"packets": loss.packets} for loss in self.account.losses],
            "listener_missed": self.overflown,
            "dropped_by_lab_links": dropped.total(),
            "entries_matched_calls": matches,
            "left_behind": left,
        }

    # -- kills --------------------------------------------------------------------------------------

    async def _strike(self, edge: Edge, redis: RedisServer, load: SipLoad) -> None:
        victims = self.random.sample(self.parts, 2 if self.random.random() < SECOND_VICTIM and len(self.parts) > 1 else 1)
        for number, part in enumerate(victims):
            if part in self._away:
                continue
            if number:
                await asyncio.sleep(self.random.random())
            process, start = self._victim(part, edge, redis)
            kill = Kill(part, self.now)
            process.kill()
            self.kills.append(kill)
            self._away.add(part)
            task = asyncio.create_task(self._bring_back(kill, start, load))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)

    async def _bring_back(self, kill: Kill, start: Callable[[], Any], load: SipLoad) -> None:
        await asyncio.sleep(RESTART_AFTER)
        await asyncio.to_thread(start)
        if kill.part == "agent":
            while await load.client.command("V", tries=1, timeout=0.1) is None:
                pass
        kill.back = self.now
        self._away.discard(kill.part)
        print(f"{kill.at:7.1f} s  {kill.part} killed, back after {kill.back - kill.at:.2f} s", flush=True)

    @staticmethod
    def _victim(part: str, edge: Edge, redis: RedisServer) -> tuple[Process, Callable[[], Any]]:
        return {
            "agent": (edge.agent, edge.start_agent),
            "softswitch": (edge.softswitch, edge.start_softswitch),
            "relay": (edge.relay, edge.start_relay),
            "sip-server": (edge.sip_server, edge.start_sip_server),
            "redis": (redis.process, redis.start),
        }[part]

    # -- calls --------------------------------------------------------------------------------------

    async def _place(self, load: SipLoad, stop: asyncio.Event) -> None:
        while not stop.is_set():
            task = asyncio.create_task(self._short_call(load, self.placed))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)
            self.placed += 1
            await asyncio.sleep(1 / self.rate)

    async def _short_call(self, load: SipLoad, index: int) -> None:
        call, began = load.fresh(index), self.now
        if not await load.set_up(call):
            self.failed += [(began, self.now, what) for what in load.failed if what.startswith(f"{call.call_id}:")]
            await load.hang_up(call)
            return
        load.talk(call)
        await asyncio.sleep(self.random.uniform(*TALK_S))
        await self._end(load, call, began)

    async def _end(self, load: SipLoad, call: LoadCall, began: float) -> None:
        """Stop talking, see what arrived, hang up: in this order, since packets on their way to a phone that hung up are nobody's loss."""
        ended = {"caller": load.caller.end(call.number), "callee": load.callee.end(call.number)}
        await asyncio.sleep(ON_THE_WAY_S)
        for sender, port, hearer, ssrc in (("caller", call.caller_sends[1], load.callee, call.ssrc), ("callee", call.callee_sends[1], load.caller, call.ssrc + 1)):
            self._count(call.call_id, sender, port, ended[sender], hearer, ssrc)
            self._ports.setdefault(port, []).append((call.call_id, began, self.now))
            self._ports_of.setdefault(call.call_id, set()).add(port)
        if self._stories and any(loss.call_id == call.call_id for loss in self.account.losses[-8:]):
            self._stories -= 1
            await asyncio.to_thread(self._keep_story, call.call_id)
        hanging = self.now
        await load.hang_up(call)
        self.failed += [(hanging, self.now, what) for what in load.failed if what.startswith(f"{call.call_id}:")]

    def _keep_story(self, call_id: str) -> None:
        """What the agent knows of a call that lost packets, for whoever looks into it later."""
        with contextlib.suppress(LabError, OSError):
            (self.work / f"{call_id}.history.json").write_text(json.dumps(self.edge.get(f"/v1/calls/{call_id}/history"), indent=1))

    def _count(self, call_id: str, sender: str, port: int, sent: Sent, hearer: Phones, ssrc: int) -> None:
        heard = hearer.heard(ssrc, sent.packets)
        account = self.account
        account.streams += 1
        account.sent += sent.packets
        account.received += heard.packets
        account.duplicates += heard.duplicates
        account.offloaded += heard.offloaded
        self.overflown = max(self.overflown, heard.overflown)
        for a, b in heard.gaps:
            begin, end, first = (round(at - self._began, 3) for at in (sent.at(a), sent.at(b), sent.first))
            offloaded_at = round(sent.at(heard.first_offloaded) - self._began, 3) if heard.first_offloaded else 0.0
            account.losses.append(Loss(call_id, sender, a, b, begin, end, heard.first_offloaded, port, first, offloaded_at))

    # -- judging ------------------------------------------------------------------------------------

    def _cause(self, loss: Loss) -> str:
        """Which kill a loss has to be put down to; "" where none is an excuse. The data plane's own packets need no process at all."""
        carrier = "relay" if self.relay != "builtin" else "agent"
        if loss.offloaded_from and loss.first >= loss.offloaded_from:
            for kill in reversed(self.kills):
                if carrier == kill.part == "relay" and loss.started <= kill.at < loss.offloaded_at:
                    other = self._neighbour(loss, lambda begin, end: kill.at < begin < loss.end)
                    if other:
                        return f"the relay died at {kill.at:.1f} s with the stream not yet in the data plane, and gave a port of it to {other}, with whose entry it came through then"
            return ""
        for kill in reversed(self.kills):
            if kill.part != carrier or kill.at - ON_THE_WAY_S > loss.end:
                continue
            if kill.covers(loss.begin, loss.end):
                return f"{kill.part} dead from {kill.at:.1f} to {kill.back:.1f} s, and the stream not yet in the data plane"
            other = self._neighbour(loss, lambda begin, end: begin < kill.at < end and end + SETTLING_S > loss.begin)
            if carrier == "relay" and other:
                return f"the relay died at {kill.at:.1f} s, forgot that {other} has a port of this call, and gave it out again"
            if carrier == "relay" and kill.at >= loss.started:
                return f"its session died with the relay at {kill.at:.1f} s, and the stream was not in the data plane"
        for kill in self.kills:
            if kill.part in ("agent", "softswitch") and kill.at <= loss.end:
                other = self._neighbour(loss, lambda begin, end: kill.covers(end, end) and loss.begin - end < STALE_S)
                if other:
                    return f"{other} ended while the {kill.part} was dead ({kill.at:.1f} to {kill.back:.1f} s), and the relay gave a port of it out again before the entry was out"
        return ""

    def _neighbour(self, loss: Loss, fits: Callable[[float, float], bool]) -> str:
        """Another call with a relay port of this one whose begin and end fit; "" where there is none.

        Either port: what still comes to the one from that call's party is whom the relay believes, and sends the other's packets to.
        """
        shared = (self._ports[port] for port in self._ports_of.get(loss.call_id, ()))
        return next((name for users in shared for name, begin, end in users if name != loss.call_id and fits(begin, end)), "")

    def _dead(self, begin: float, end: float) -> str:
        """The kills that a failed call may have met."""
        shunned = SHUNNED_S if self.relay == "builtin" else 0.0
        return ", ".join(f"{kill.part} killed at {kill.at:.1f} s" for kill in self.kills if kill.covers(begin - shunned * (kill.part == "agent"), end))

    async def _matches(self, edge: Edge) -> bool:
        """Whether the data plane comes to hold the entries of the agent's calls and no others."""
        for _ in range(180):  # an entry that no call claims goes once it has been idle for 30 s
            with contextlib.suppress(LabError, OSError):
                plane = (await asyncio.to_thread(edge.status))["data_plane"]
                if plane["entries"] == plane["ours"] and plane["orphans"] == 0:
                    return True
            await asyncio.sleep(0.25)
        return False

    async def _left_behind(self, edge: Edge) -> dict[str, Any]:
        """What is there once all calls have ended: looked at until nothing is, for a little more than a minute."""
        deadline = time.monotonic() + LEFT_BEHIND_S
        while True:
            status = await asyncio.to_thread(edge.status)
            left = {
                "calls": status["calls"],
                "entries": status["data_plane"]["entries"],
                "orphans": status["data_plane"]["orphans"],
                "sessions": sum(relay["sessions"] or 0 for relay in status["relays"]),
            }
            if not any(left.values()) or time.monotonic() > deadline:
                return left | {"after_s": round(LEFT_BEHIND_S - (deadline - time.monotonic()), 1)}
            await asyncio.sleep(1.0)


def verdict(result: dict[str, Any]) -> list[str]:
    """What a result falls short of."""
    short = []
    unexplained = [loss for loss in result["losses"] if not loss["cause"]]
    number = sum(loss["packets"] for loss in unexplained)
    if number > result["dropped_by_lab_links"]:  # a link of a machine that is too busy is nobody's fault here
        short.append(f"{number} packets lost without a cause, of which the lab's own links dropped {result['dropped_by_lab_links']}")
    if result["listener_missed"]:
        short.append(f"the listeners missed {result['listener_missed']} packets: the account is worth nothing")
    unexplained_calls = [call for call in result["failed_calls"] if not call["cause"]]
    if unexplained_calls:
        short.append(f"{len(unexplained_calls)} calls failed without a cause")
    if not result["entries_matched_calls"]:
        short.append("the data plane held other entries than the calls'")
    left = {name: number for name, number in result["left_behind"].items() if name != "after_s" and number}
    if left:
        short.append(f"left behind: {left}")
    return short


def report(result: dict[str, Any], show: Callable[[str], None] = print) -> None:
    """What happened, in words."""
    for loss in result["losses"]:
        show(
            f"lost: {loss['packets']} of {loss['call_id']} from the {loss['sender']} ({loss['first']}-{loss['last']}, {loss['begin']:.2f} to {loss['end']:.2f} s; "
            f"in the data plane from {loss['offloaded_from'] or 'never'}): {loss['cause'] or 'NO CAUSE'}" + (f" (port {loss['port']})" if not loss["cause"] else "")
        )
    for call in result["failed_calls"]:
        show(f"failed: {call['what']} ({call['from']:.1f} to {call['to']:.1f} s): {call['cause'] or 'NO CAUSE'}")
    killed = Counter(kill["part"] for kill in result["kills"])
    slowest = {part: round(max(kill["back"] - kill["at"] for kill in result["kills"] if kill["part"] == part), 2) for part in killed}
    show(
        f"{len(result['kills'])} kills in {result['seconds']:.0f} s ({', '.join(f'{part} {count}, back within {slowest[part]} s' for part, count in killed.items())}); "
        f"{result['calls']} lasting and {result['placed']} short calls, {len(result['failed_calls'])} failed; {result['sent']} packets in {result['streams']} streams, "
        f"{result['offloaded'] / max(1, result['sent']):.2%} through the data plane, {result['lost']} lost ({result['dropped_by_lab_links']} by the lab's own links), {result['duplicates']} twice; left behind: {result['left_behind']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--calls", type=int, default=200, help="calls that last as long as the run")
    parser.add_argument("--rate", type=float, default=10.0, help="new calls per second")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sip-server", choices=("auto", "opensips", "kamailio"), default="auto")
    parser.add_argument("--relay", choices=("auto", "rtpproxy", "builtin"), default="auto")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 16) if arguments.seed is None else arguments.seed
    run = Run(*choose(arguments.sip_server, arguments.relay), arguments.parts, arguments.seconds, arguments.calls, arguments.rate, seed)
    result = asyncio.run(run.run())
    short = verdict(result)
    (OUTPUT / "results.json").write_text(json.dumps({"machine": platform.platform()} | result | {"short": short}, indent=2) + "\n")
    report(result)
    print(f"seed {seed}" + (f"; FALLS SHORT: {'; '.join(short)}" if short else "; nothing was lost without a cause, nothing left behind"))
    sys.exit(bool(short))


if __name__ == "__main__":
    main()
