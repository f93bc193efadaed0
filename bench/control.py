"""The control plane: calls set up through the agent against the same relay asked directly; offload, processor and memory by calls, reconciling.

Run as root: python -m bench.control [--profile short|full|smoke] [--fresh]. Writes build/bench/control/PROFILE/. Exits 1 when a target was missed.

Commands come from this process as a SIP server sends them (bench/commands.py), in turns to the relay itself and to the agent in
front of it; then calls come as SIP, from SIPp by way of the real SIP server. The relay is rtpproxy where it is on PATH, else rtpengine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import ipaddress
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for _folder in (".", "operator"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))

from bench import commands, stand_in
from bench.load import come_first, give_precedence
from bench.peers import Rtpengine, Rtpproxy
from bench.runs import Run, end_cleanly, raw_steps, spread
from tests.lab.load import ControlClient, Load, Phones
from tests.lab.processes import CONTROL_PORT, PORTS, RELAY_PORT, Edge, Process, open_socket
from tests.lab.sipp import SCENARIOS, Sipp
from tests.lab.topology import CALLEE_IP, EDGE_IP, LabError, Topology

WAYS = {"direct": RELAY_PORT, "agent": CONTROL_PORT}
TARGET_RATE, TARGET_ADDED_US = 300, 1000.0
LADDER_FACTOR = 1.5
HOLD_S, MEDIA_HOLD_S = 0.5, 1.0
WARM_S = 2.0
AGE_RATE = 1200  # calls/s, at which an agent is made to age
SLOW_US = 50_000  # p99 above which a rate is no longer kept: a SIP server would begin to repeat itself soon
LOST_AT_MOST = 1e-3
LATE_US = 20_000  # p99 of the generator's own lateness above which a step is its fault
AGENT_PRIORITY = -10  # as its unit starts it
BIG_CALL_RATE = 400
BUSY = 0.1
IDLE_S = 3.0
STAND_IN_TTL_S = 7200  # nobody sends more than a packet, and 100,000 calls take minutes to come
STAND_IN_ADDRESS, STAND_IN_PORTS = "198.19.0.1", (10_000, 64_999)
SIP_TALK_MS = 500
ENTRIES_PER_CALL = 2  # RTP both ways: nobody has sent RTCP
DELETED_WITHIN_S = 5.0  # after the last hang-up is answered

AGED = 12_000
"""Calls, after which an agent's history is full, as configured here and as shipped (100,000 events): from then on it forgets as much as it learns."""
AGED_BY_MEDIA = 4_000
"""The same of calls that are put into the data plane: of each there is more to tell."""


@dataclass(frozen=True, slots=True)
class Profile:
    aged: int  # calls that an agent has had before its delays are measured
    repetitions: int
    seconds: float  # at the target rate
    aged_by_media: int  # and the same where every call is put into the data plane
    media_seconds: float
    ladder_seconds: float
    most_rate: int
    offloads: int
    calls: tuple[int, ...]
    sip_rates: tuple[int, ...]
    sip_seconds: float


PROFILES = {
    "smoke": Profile(60, 1, 0.5, 60, 0.5, 0.3, 450, 4, (100,), (20,), 1.0),
    "short": Profile(AGED, 3, 4.0, AGED_BY_MEDIA, 3.0, 1.5, 2500, 30, (300, 1_000), (300,), 3.0),
    "full": Profile(AGED, 9, 10.0, AGED_BY_MEDIA, 10.0, 5.0, 12000, 400, (1_000, 10_000, 100_000), (50, 100, 200, 300, 450, 600, 900), 10.0),
}


def rtpengine_argv() -> list[str]:
    """rtpengine's command, speaking rtpproxy's protocol."""
    return [
        "rtpengine", "--config-file=none", "--table=-1", "-f", "-E", f"--interface={EDGE_IP}", f"--listen-udp=127.0.0.1:{RELAY_PORT}",
        f"--port-min={PORTS[0]}", f"--port-max={PORTS[1]}", "--log-level=3", "--timeout=60", "--silent-timeout=60", "--delete-delay=0",
    ]  # fmt: skip


def _relay() -> type[Rtpproxy] | type[Rtpengine]:
    """A relay that the SIP server could talk to directly. Raises LabError when there is none."""
    for relay in (Rtpproxy, Rtpengine):
        if not relay.missing():
            return relay
    raise LabError("neither rtpproxy nor rtpengine is there: there is no relay to ask directly")


class Lab:
    """The lab with a relay, softswitch and agent running, started when it is first needed. A context manager."""

    def __init__(self, work: Path, stand_in_for: int = 0) -> None:
        """stand_in_for: that many calls on a relay that only answers, instead of a real one."""
        self.work, self.stand_in_for = work, stand_in_for
        self._stack = contextlib.ExitStack()
        self._edge: Edge | None = None
        self.warm = self.aged = False  # whether commands have gone both ways; and so many that the agent is no longer a new one
        self.placed = 0  # calls that the relay has given ports
        self._voices: Voices | None = None

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take it down; it is started anew when it is next needed."""
        self._stack.close()
        self._voices = None
        self._edge, self.warm, self.aged, self.placed = None, False, False, 0

    @property
    def edge(self) -> Edge:
        if self._edge is None:
            self._edge = self._start()
        return self._edge

    @property
    def voices(self) -> Voices:
        """Of the parties of its calls, on the relay that only answers."""
        if self._voices is None:
            self._voices = self._stack.enter_context(Voices(self.topology))
        return self._voices

    @property
    def topology(self) -> Topology:
        return self.edge.topology

    def _start(self) -> Edge:
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        topology = self._stack.enter_context(Topology("bench"))
        server = next((name for name in ("opensips", "kamailio") if shutil.which(name)), None)
        if server is None:
            raise LabError("no SIP server: neither kamailio nor opensips is on PATH")
        relay = _relay()
        edge = Edge(topology, self.work, server, "rtpproxy" if relay is Rtpproxy else "builtin")
        self._stack.callback(edge.stop)
        for process in (edge.agent, edge.softswitch):
            process.argv = ["nice", "-n", str(AGENT_PRIORITY - os.nice(0)), *process.argv]
        if self.stand_in_for or relay is not Rtpproxy:
            stand_in_argv = [sys.executable, "-m", "bench.stand_in", str(RELAY_PORT), STAND_IN_ADDRESS, *map(str, STAND_IN_PORTS)]
            edge.relay = Process(topology, "edge", "relay", stand_in_argv if self.stand_in_for else rtpengine_argv(), self.work / "relay.log", {"PYTHONPATH": str(ROOT)})
            edge.relay_name = "rtpproxy"  # by its protocol
        edge.write_config(self._config(edge))
        (self.work / f"{server}.cfg").write_text(edge.sip_server_config())
        edge.start_softswitch()
        edge.start_relay()
        edge.start_agent()
        for process in (edge.softswitch, edge.relay, edge.agent):
            give_precedence(process.pid)
        edge.await_data_plane()
        return edge

    def _config(self, edge: Edge) -> dict[str, Any]:
        config = edge.shunt_config()
        config["log"] = {"level": "warning"}
        if self.stand_in_for:
            first, last = STAND_IN_PORTS
            base = [int(part) for part in STAND_IN_ADDRESS.split(".")]
            count = stand_in.addresses(self.stand_in_for, first, last)
            ports = f"{first}-{last}"
            config["relays"][0]["media"] = [{"address": f"{base[0]}.{base[1]}.{base[2]}.{base[3] + n}", "ports": ports} for n in range(count)]
            config["relays"][0]["ttl"] = STAND_IN_TTL_S
            config["softswitch"]["capacity"] = max(65_536, 5 * self.stand_in_for)
            config["softswitch"]["mode"] = "native"
        return config

    @contextlib.contextmanager
    def socket_to(self, port: int) -> Iterator[socket.socket]:
        """A connected UDP socket on the edge host's loopback."""
        with open_socket(self.topology, "edge", socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("127.0.0.1", port))
            yield sock


def process_cpu_s(pid: int) -> float:
    """Processor seconds of a process, all its threads."""
    return time.clock_gettime((~pid << 3) | 2)


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+) kB", text, re.MULTILINE)[1]) / 1024


def _calls(lab: Lab, way: str, calls: int, rate: float, tag: str = "", voices: Voices | None = None) -> commands.Outcome:
    """Set up and hang up calls; voices: their parties speak once, so that each is put into the data plane."""
    first, lab.placed = lab.placed, lab.placed + calls
    with lab.socket_to(WAYS[way]) as sock:
        tag = f"{tag}{way}{time.monotonic_ns()}-"
        if voices is None:
            return commands.run(sock, calls, rate, hold_s=HOLD_S, tag=tag)
        return commands.run(sock, calls, rate, hold_s=MEDIA_HOLD_S, tag=tag, media=lambda n: voices.media(first + n), on_answer=lambda n: voices.speak(first + n))


def commands_step(lab: Lab, way: str, rate: float, seconds: float, voices: Voices | None = None) -> dict[str, Any]:
    """Calls at a rate, straight to the relay or through the agent; before that, once in a lab, some of both that do not count."""
    edge = lab.edge
    if not lab.warm:  # what is done for the first time takes longer
        for warming in WAYS:
            _calls(lab, warming, round(WARM_S * TARGET_RATE / 3), TARGET_RATE / 3, "warm")
        lab.warm = True
    agent, switch = edge.agent.pid, edge.softswitch.pid
    before, other, written = process_cpu_s(agent), process_cpu_s(switch), _written(edge)
    found = _calls(lab, way, max(1, round(rate * seconds)), rate, voices=voices)
    if voices is not None:
        _entries(edge, lambda entries: entries == 0, DELETED_WITHIN_S)  # they go a moment after the call's answer
    return found.record() | {
        "rate": rate, "agent_cpu_s": round(process_cpu_s(agent) - before, 4), "softswitch_cpu_s": round(process_cpu_s(switch) - other, 4), "entries_written": _written(edge) - written,
    }  # fmt: skip


def _written(edge: Edge) -> int:
    """Entries that the agent has put into the data plane or taken out, since it began."""
    return edge.status()["table_batches"]["updates"]


def delay_step(lab: Lab, way: str, profile: Profile) -> dict[str, Any]:
    """Calls at the target rate, with an agent that has been at work for a while: those on an exchange have."""
    if not lab.aged:
        commands_step(lab, "agent", AGE_RATE, profile.aged / AGE_RATE)
        lab.aged = True
    return commands_step(lab, way, TARGET_RATE, profile.seconds)


def media_step(lab: Lab, way: str, profile: Profile) -> dict[str, Any]:
    """delay_step() with every call put into the data plane, on the relay that only answers; that is asked directly for silent calls."""
    if not lab.aged:
        commands_step(lab, "agent", BIG_CALL_RATE, profile.aged_by_media / BIG_CALL_RATE, lab.voices)
        lab.aged = True
    return commands_step(lab, way, TARGET_RATE, profile.media_seconds, lab.voices if way == "agent" else None)


def _media_calls(profile: Profile) -> int:
    """How many calls its relay has to have ports for."""
    return profile.aged_by_media + round(2 * profile.repetitions * profile.media_seconds * TARGET_RATE + 2 * WARM_S * TARGET_RATE / 3) + 100


def why_not_kept(found: dict[str, Any]) -> str:
    """Empty when every command was answered in good time at this rate; else `generator late`, which makes all else its fault, `refused`, `lost` or `slow`."""
    if found["late_us"]["p99"] > LATE_US:
        return "generator late"
    if found["refused_count"]:
        return "refused"
    if min(found["received"].values()) < (1 - LOST_AT_MOST) * found["calls"]:
        return "lost"
    return "slow" if max(commands.quantiles(delays)["p99"] for delays in found["delays_us"].values()) > SLOW_US else ""


def ladder(run: Run, lab: Lab, way: str, profile: Profile) -> None:
    """Higher and higher rates until one is not kept, twice in a row."""
    rate, failed = float(TARGET_RATE), 0
    while rate <= profile.most_rate and failed < 2:
        found = run.step(f"ladder/{way}/{round(rate):06}", lambda: commands_step(lab, way, round(rate), profile.ladder_seconds))
        if not why_not_kept(found):
            failed = 0
        else:
            failed += 1
            lab.stop()  # calls that nobody hangs up are left behind, and a relay without free ports or files: the next step must not pay for it
        rate *= LADDER_FACTOR


# How the parties' addresses are had: their SDP names private ones and they have to be learned; SDP is right, and the
# first packet confirms it; the SIP server says that SDP is to be trusted (modifier A).
OFFLOADS = {"learned": ("", "192.168.77.2"), "confirmed": ("", None), "trusted": ("A", None)}


async def _offloads(lab: Lab, count: int, name: str) -> dict[str, Any]:
    edge, (modifiers, private) = lab.edge, OFFLOADS[name]
    with Phones(lab.topology, "caller") as caller, Phones(lab.topology, "callee") as callee:
        client = ControlClient.to(lab.topology)
        load = Load(client, caller, callee, tag=f"{name}{os.getpid()}")
        actual = caller.ip
        rows = []
        try:
            for n in range(count):
                call = load.established(n)
                caller.ip = private or actual
                done = await load.set_up(call, modifiers=modifiers)
                caller.ip = actual
                if not done:
                    raise LabError(f"call not set up: {load.failed[-1]}")
                load.talk(call)
                deadline = time.monotonic() + 5
                while not (row := await asyncio.to_thread(_offload_times, edge, call.call_id)) and time.monotonic() < deadline:
                    await asyncio.sleep(0.05)
                first = max(phones.end(call.number).first for phones in (caller, callee))
                await load.hang_up(call)
                if row:
                    rows.append({"answer_ms": (row["offloaded"] - row["answered"]) * 1000, "packet_ms": (row["offloaded"] - first) * 1000, "write_ms": row["write_ms"]})
        finally:
            client.close()
    return {"calls": count, "offloaded": len(rows), "rows": rows}


def _offload_times(edge: Edge, call_id: str) -> dict[str, float] | None:
    """By the agent's history of a call: when its answer had been passed on, and when both directions of RTP were in the data plane."""
    events = edge.history(call_id)
    answered = [event["monotonic_s"] + event["facts"]["seconds"] for event in events if event["kind"] == "control" and event["what"] == "L"]
    offloaded = {event["stream"]: event["monotonic_s"] for event in events if event["kind"] == "state" and event["what"].startswith("offloaded") and event["component"] == "rtp"}
    writes = [event["facts"]["seconds"] * 1000 for event in events if event["kind"] == "table" and event["what"] == "insert"]
    if len(offloaded) < 2 or not answered:
        return None
    return {"answered": answered[-1], "offloaded": max(offloaded.values()), "write_ms": max(writes, default=0.0)}


class Voices:
    """The first packet of each party of calls on the relay that only answers. A context manager."""

    def __init__(self, topology: Topology) -> None:
        self._sockets = [open_socket(topology, host, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) for host in ("caller", "callee")]
        self._number = 0

    def __enter__(self) -> Voices:
        return self

    def __exit__(self, *exc: object) -> None:
        for sock in self._sockets:
            sock.close()

    @staticmethod
    def media(n: int) -> tuple[str, int, str, int]:
        """Addresses and ports of both parties of call n."""
        return f"198.18.1.{2 + n // 25_000}", 2000 + n % 25_000 * 2, CALLEE_IP, 2000 + n % 25_000 * 2

    def speak(self, n: int) -> None:
        """Both parties of call n send one RTP packet to the relay."""
        caller, caller_port, callee, callee_port = self.media(n)
        relay, for_callee, for_caller = stand_in.endpoints(n, int(ipaddress.IPv4Address(STAND_IN_ADDRESS)), *STAND_IN_PORTS)
        self._number += 1
        for sock, source, port, to, ssrc in zip(self._sockets, (caller, callee), (caller_port, callee_port), (for_caller, for_callee), (2 * n, 2 * n + 1)):
            rtp = struct.pack("!BBHII", 0x80, 8, self._number & 0xFFFF, 160 * self._number & 0xFFFFFFFF, ssrc) + bytes(160)
            ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 0, 0, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(relay))
            with contextlib.suppress(BlockingIOError):
                sock.sendto(ip + struct.pack("!HHHH", port, to, 8 + len(rtp), 0) + rtp, (relay, 0))


def calls_step(work: Path, count: int) -> dict[str, Any]:
    """Processor time and memory of the agent for so many calls at once, all in the data plane."""
    with Lab(work, stand_in_for=count) as lab, Voices(lab.topology) as voices:
        edge = lab.edge
        pid, switch = edge.agent.pid, edge.softswitch.pid
        time.sleep(1.0)
        found: dict[str, Any] = {"calls": count, "memory_before_mib": memory_mib(pid), "idle_before": _share(pid)}
        begun, cpu, other = time.monotonic(), process_cpu_s(pid), process_cpu_s(switch)
        with lab.socket_to(CONTROL_PORT) as sock:
            outcome = commands.run(sock, count, BIG_CALL_RATE, hold_s=None, tag="big", media=voices.media, on_answer=voices.speak)
            found |= {"answered": len(outcome.delays["L"]), "set_up_us": commands.quantiles(outcome.delays["U"] + outcome.delays["L"])}
            for _ in range(3):
                if (entries := _entries(edge, lambda entries: entries >= ENTRIES_PER_CALL * count, 5.0)) >= ENTRIES_PER_CALL * count:
                    break
                for n in range(count):  # once more: a notice may have been lost
                    voices.speak(n)
            found |= {"entries": entries, "set_up_s": time.monotonic() - begun, "set_up_cpu_s": process_cpu_s(pid) - cpu}
            found |= {"softswitch_cpu_s": process_cpu_s(switch) - other, "memory_mib": memory_mib(pid), "idle": _share(pid)}
            cpu, begun = process_cpu_s(pid), time.monotonic()
            _hang_up(sock, count)
            found["entries_left"] = _entries(edge, lambda entries: entries == 0, 30.0)
            found |= {"hang_up_cpu_s": process_cpu_s(pid) - cpu, "hang_up_s": time.monotonic() - begun}
        return found


def _entries(edge: Edge, enough: Callable[[int], bool], seconds: float) -> int:
    """How many entries the agent has in the data plane, once that is enough or the time is over."""
    deadline = time.monotonic() + seconds
    while not enough(found := edge.status()["data_plane"]["ours"]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def _share(pid: int) -> float:
    """The part of a core that a process uses while nothing is asked of it."""
    before, begun = process_cpu_s(pid), time.monotonic()
    time.sleep(IDLE_S)
    return (process_cpu_s(pid) - before) / (time.monotonic() - begun)


def _hang_up(sock: socket.socket, count: int) -> None:
    sock.setblocking(True)
    sock.settimeout(0)
    begun = time.monotonic()
    for n in range(count):
        sock.send(f"hang{os.getpid()}-{n} D big{n}@bench a{n} b{n}".encode())
        while True:
            with contextlib.suppress(BlockingIOError):
                sock.recv(4096)
                continue
            pause = begun + (n + 1) / BIG_CALL_RATE - time.monotonic()
            if pause <= 0:
                break
            time.sleep(min(pause, 0.001))


def sip_step(lab: Lab, way: str, rate: int, seconds: float) -> dict[str, Any]:
    """Calls as SIP at a rate, by way of the SIP server, whose relay is the agent or the relay itself."""
    edge, topology = lab.edge, lab.topology
    path = edge.work / f"{edge.sip_server_name}.cfg"
    text = edge.sip_server_config()
    path.write_text(text.replace(f":{CONTROL_PORT}", f":{RELAY_PORT}") if way == "direct" else text)
    scenario = edge.work / "uac.xml"
    scenario.write_text(_timed((SCENARIOS / "uac_call.xml").read_text()))
    before = process_cpu_s(edge.agent.pid)
    edge.start_sip_server()
    give_precedence(edge.sip_server.pid)
    calls = max(1, round(rate * seconds))
    uas = Sipp(topology, edge.work, "callee", "uas_silent", sip_port=5060, media_port=6000)
    uac = Sipp(
        topology, edge.work, "caller", "uac_call", sip_port=5070, media_port=6000, user="1000", calls=calls, talk_ms=SIP_TALK_MS,
        extra=("-r", str(rate), "-rp", "1000", "-l", str(10 * rate), "-trace_rtt", "-rtt_freq", "1", "-recv_timeout", "4000"),
    )  # fmt: skip
    uac.process.argv[uac.process.argv.index("-sf") + 1] = str(scenario)
    for process in (uac, uas):
        process.process.cwd = edge.work
    for old in edge.work.glob("*_rtt.csv"):
        old.unlink()
    try:
        uas.start()
        uac.start()
        begun = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired, LabError):
            uac.process.wait(seconds + 15)
        took = time.monotonic() - begun
        counts = uac.counts()
    finally:
        uac.stop()
        uas.stop()
        edge.sip_server.stop()
    times = []
    for found in edge.work.glob("uac_*_rtt.csv"):
        with found.open(newline="") as file:
            times += [float(row[1]) * 1000 for row in csv.reader(file, delimiter=";") if len(row) >= 2 and re.fullmatch(r"[\d.]+", row[1].strip())]
    return {
        "rate": rate, "calls": calls, "good": counts.succeeded, "failed": counts.failed, "took_s": round(took, 2), "invite_us": commands.quantiles(times), "timed": len(times),
        "server": edge.sip_server_name, "agent_cpu_s": round(process_cpu_s(edge.agent.pid) - before, 4),
    }  # fmt: skip


def _timed(scenario: str) -> str:
    """The caller's scenario without media, with the time from INVITE to 200 taken."""
    scenario = re.sub(r"\s*<nop>.*?</nop>", "", scenario, flags=re.DOTALL)
    scenario = scenario.replace('<send retrans="500">', '<send retrans="500" start_rtd="1">', 1)
    return scenario.replace('<recv response="200" rrs="true"/>', '<recv response="200" rrs="true" rtd="1"/>', 1)


def measure(run: Run, profile: Profile) -> None:
    """All steps; a lab is only built for those that are still missing."""
    work = run.folder / "work"
    run.plan(4 * profile.repetitions + 10 + len(OFFLOADS) + len(profile.calls) + 2 * len(profile.sip_rates))
    with Lab(work) as lab:
        for n in range(profile.repetitions):
            for way in ("direct", "agent") if n % 2 == 0 else ("agent", "direct"):
                run.step(f"delay/{n}/{way}", lambda: delay_step(lab, way, profile))
        for way in WAYS:
            ladder(run, lab, way, profile)
        for name in OFFLOADS:
            run.step(f"offload/{name}", lambda: asyncio.run(_offloads(lab, profile.offloads, name)))
        for rate in profile.sip_rates:
            for way in WAYS:
                found = run.step(f"sip/{way}/{rate:05}", lambda: sip_step(lab, way, rate, profile.sip_seconds))
                if found["good"] < found["calls"]:
                    lab.stop()  # as after a rate of commands that was not kept
    with Lab(work, stand_in_for=_media_calls(profile)) as lab:
        for n in range(profile.repetitions):
            for way in ("direct", "agent") if n % 2 == 0 else ("agent", "direct"):
                run.step(f"media/{n}/{way}", lambda: media_step(lab, way, profile))
    for count in profile.calls:
        run.step(f"calls/{count:07}", lambda: calls_step(work, count))


def _added(pairs: list[dict[str, dict[str, Any]]], verb: str, q: str) -> dict[str, Any]:
    """A quantile of a command's delays both ways, and the difference within each repetition."""
    direct, agent = ([commands.quantiles(pair[way]["delays_us"][verb])[q] for pair in pairs] for way in WAYS)
    return {"direct": spread(direct), "agent": spread(agent), "added": spread([b - a for a, b in zip(direct, agent)])}


def analyse(steps: dict[str, dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
    """All figures from the raw steps, by key."""
    remarks = []
    if facts["busy_before"] > BUSY:
        remarks.append(f"{facts['busy_before']:.0%} of the cores' time was already used when the run began: delays and rates are not to be quoted")

    def below(folder: str) -> list[dict[str, Any]]:
        return [found | {"key": key} for key, found in steps.items() if key.startswith(f"{folder}/")]

    def paired(folder: str) -> list[dict[str, dict[str, Any]]]:
        pairs: dict[str, dict[str, dict[str, Any]]] = {}
        for found in below(folder):
            _, n, way = found["key"].split("/")
            pairs.setdefault(n, {})[way] = found
        return list(pairs.values())

    delays, cpu = {}, {}
    for name, pairs in (("silent", paired("delay")), ("media", paired("media"))):
        delays[name] = {verb: {q: _added(pairs, verb, q) for q in ("p50", "p99")} for verb in commands.VERBS}
        for way in WAYS:
            if any(pair[way]["late_us"]["p99"] > LATE_US for pair in pairs):
                remarks.append(f"the generator was more than {LATE_US / 1000:.0f} ms late with one command in a hundred ({way}, {name})")
        cpu[name] = {which: spread([pair["agent"][f"{which}_cpu_s"] / pair["agent"]["calls"] * 1e6 for pair in pairs]) for which in ("agent", "softswitch")}
    for pair in paired("media"):
        due = 2 * ENTRIES_PER_CALL * pair["agent"]["calls"]
        if pair["agent"]["entries_written"] < (1 - LOST_AT_MOST) * due:
            remarks.append(f"{pair['agent']['key']}: of {due:,} entries to be put in and taken out {pair['agent']['entries_written']:,} were written: not every call was in the data plane")
    rates = {}
    for way in WAYS:
        levels = sorted(below(f"ladder/{way}"), key=lambda found: found["rate"])
        kept = max((found["rate"] for found in levels if not why_not_kept(found)), default=0)
        rates[way] = {
            "highest": kept,
            "levels": [
                {
                    "rate": found["rate"], "why_not": why_not_kept(found), "p50": commands.quantiles(found["delays_us"]["U"] + found["delays_us"]["L"]).get("p50"),
                    "p99": commands.quantiles(found["delays_us"]["U"] + found["delays_us"]["L"]).get("p99"), "late_p99": found["late_us"]["p99"],
                    "lost": 3 * found["calls"] - sum(found["received"].values()), "agent_cpu": found["agent_cpu_s"] / (found["calls"] / found["rate"]),
                }
                for found in levels
            ],
        }  # fmt: skip
    offload = {}
    for name in OFFLOADS:
        rows = steps[f"offload/{name}"]["rows"]
        offload[name] = {field: commands.quantiles([row[field] for row in rows]) for field in ("answer_ms", "packet_ms", "write_ms")} if rows else {}
        offload[name] |= {"calls": steps[f"offload/{name}"]["calls"], "offloaded": len(rows)}
    sip = {way: sorted(below(f"sip/{way}"), key=lambda found: found["rate"]) for way in WAYS}
    calls = sorted(below("calls"), key=lambda found: found["calls"])
    worst, with_media = (max(one[verb]["p99"]["added"]["median"] for verb in commands.VERBS) for one in (delays["silent"], delays["media"]))
    targets = [
        {"target": "calls set up per second through the agent", "wanted": f"≥ {TARGET_RATE}", "found": f"{rates['agent']['highest']:,.0f} (the relay alone: {rates['direct']['highest']:,.0f})", "met": rates["agent"]["highest"] >= TARGET_RATE},
        {"target": f"added at p99 to a command, {TARGET_RATE} calls/s, the worst of U, L, D", "wanted": "≤ 1 ms", "found": f"{worst / 1000:.2f} ms", "met": worst <= TARGET_ADDED_US},
        {"target": "the same with every call put into the data plane", "wanted": "≤ 1 ms", "found": f"{with_media / 1000:.2f} ms", "met": with_media <= TARGET_ADDED_US},
    ]  # fmt: skip
    return {"remarks": remarks, "delays_us": delays, "cpu_us_per_call": cpu, "rates": rates, "offload": offload, "sip": sip, "calls": calls, "targets": targets}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", choices=sorted(PROFILES), default="short")
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    arguments = parser.parse_args()
    end_cleanly()
    relay = _relay()
    run = Run("control", arguments.profile, {relay.name: relay.version(), "python": sys.version.split()[0]}, fresh=arguments.fresh)
    come_first()
    measure(run, PROFILES[arguments.profile])
    from bench.report import control

    results = analyse(raw_steps(run.folder), run.facts)
    run.results(results)
    control.write(run, results)
    return control.print_targets(results)


if __name__ == "__main__":
    sys.exit(main())
