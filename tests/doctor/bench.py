"""A host with two calls that are offloaded, for breaking: real daemons in namespaces, phones, commands and SIP copies; and what each tool says of it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import itertools
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from shunt.export.hep import HepPacket, encode
from shunt.net import Endpoint
from tests.agent_daemon.lab import Lab
from tests.lab.processes import API_PORT, CONTROL_PORT, ROOT, LabError, Process, open_socket
from tests.lab.topology import CALLEE_IP, CALLER_IP, EDGE_IP, Topology, run

HEP_PORT = 9060
RULES = ROOT / "packaging/prometheus/shunt.rules.yml"
# The operator daemon with shorter spans, and a clock that a file moves.
_OPERATOR = """
import sys, time as real, types
from pathlib import Path
import shunt.operator.health as health
health._PERIOD_S, health._SPAN_S, health._LEAST_SPAN_S, health._MINUTES_S, health._SILENT_S, health._SETTLED_S = 1.0, 7.0, 5.0, 9.0, 3.0, 0.5
def now():
    step = Path(sys.argv[1])
    return real.time() + (float(step.read_text()) if step.exists() else 0.0)
health.time = types.SimpleNamespace(time=now, monotonic=real.monotonic)
from shunt.cli.main import cli
cli(["operator", "-c", sys.argv[2]])
"""


class Phone:
    """A socket of a party that sends RTP to a relay port."""

    def __init__(self, topology: Topology, host: str, ip: str, port: int) -> None:
        self.ip, self.port, self.to, self.sent = ip, port, ("", 0), 0
        self.size = 160
        self.socket = open_socket(topology, host, socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((ip, port))

    def send(self) -> None:
        self.sent += 1
        packet = struct.pack("!BBHII", 0x80, 8, self.sent & 0xFFFF, self.sent * 160 & 0xFFFFFFFF, self.port) + b"\xd5" * self.size
        with contextlib.suppress(OSError):
            self.socket.sendto(packet, self.to)


@dataclass
class Said:
    """What each tool said at one moment, with exit codes."""

    status: tuple[int, str]
    doctor: tuple[int, str]
    why: tuple[int, str]
    history: tuple[int, str]
    health: dict[str, Any]
    readyz: tuple[int, str]
    metrics: str

    def texts(self) -> dict[str, str]:
        return {name: getattr(self, name)[1] for name in ("status", "doctor", "why", "history")}


@dataclass
class Bench:
    """Processes, calls, and the tools."""

    topology: Topology
    work: Path
    lab: Lab = field(init=False)

    def __post_init__(self) -> None:
        self.disk = self.work / "disk"
        self.disk.mkdir(parents=True)
        run("mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(self.disk))
        self.lab = Lab(self.topology, self.work, "shunt-relay", **self.sections())
        self.step = self.work / "step"
        env = {"PYTHONPATH": str(ROOT / "operator"), "PYTHONUNBUFFERED": "1"}
        self.operator = Process(self.topology, "edge", "operator", [sys.executable, "-c", _OPERATOR, str(self.step), str(self.lab.edge.config)], self.work / "operator.log", env)
        self._control = open_socket(self.topology, "edge", socket.AF_INET, socket.SOCK_DGRAM)
        self._control.settimeout(0.5)
        self._copies = open_socket(self.topology, "edge", socket.AF_INET, socket.SOCK_DGRAM)
        self._phones: dict[str, tuple[Phone, Phone]] = {}
        self._cookies, self._numbers = itertools.count(1), itertools.count(1)
        self._over = threading.Event()
        self._sender = threading.Thread(target=self._send)

    def sections(self) -> dict[str, Any]:
        """What differs from the shipped configuration."""
        return {
            "admin": {"socket": f"/run/{self.topology.prefix}-admin.sock", "socket_group": "root", "events": str(self.disk / "events")},
            "journal": {"path": str(self.disk / "journal.sqlite")},
            "operator": {"state_dir": str(self.work / "state")},
            "cdr": {"json_lines": str(self.disk / "cdr.jsonl")},
            "hep": {"listen": f"udp:127.0.0.1:{HEP_PORT}"},
            "log": {"level": "info"},
        }

    @property
    def edge(self) -> Any:
        return self.lab.edge

    def start(self) -> None:
        self.lab.start()
        self.start_operator()
        self._sender.start()

    def start_operator(self) -> None:
        self.operator.start().await_listening("tcp", API_PORT)

    def stop(self) -> None:
        self._over.set()
        if self._sender.is_alive():
            self._sender.join()
        for process in (self.operator, self.lab.agent, self.lab.relay, self.lab.softswitch):
            process.signal(18)
        self.operator.stop()
        self.lab.stop()
        run("umount", "--lazy", str(self.disk))

    def fill_disk(self) -> None:
        """Leave no room where journal, event log and records are."""
        system = os.statvfs(self.disk)
        run("mount", "-o", f"remount,size={(system.f_blocks - system.f_bfree) * system.f_frsize}", str(self.disk))

    def empty_disk(self) -> None:
        run("mount", "-o", "remount,size=1g", str(self.disk))

    def restart_softswitch(self, **section: Any) -> None:
        """The softswitch with other values in its section, and empty tables."""
        self.lab.softswitch.stop()
        shutil.rmtree(self.edge.pin_dir, ignore_errors=True)
        config = self.edge.shunt_config()
        config["softswitch"] |= section
        document = self.edge.config.read_text()
        self.edge.write_config(yaml.safe_load(document) | {"softswitch": config["softswitch"]})
        self.edge.start_softswitch()
        self.edge.write_config(yaml.safe_load(document))

    def restart_agent(self, **sections: Any) -> None:
        """The agent with other sections."""
        self.lab.agent.stop()
        self.lab.configure(**self.sections() | sections)
        self.lab.start_agent()

    def host(self, *argv: str) -> str:
        """A command on the edge host."""
        return self.topology.run("edge", *argv)

    # -- calls ----------------------------------------------------------------------------------------

    def _send(self) -> None:
        while not self._over.wait(0.02):
            for phone in [phone for phones in list(self._phones.values()) for phone in phones if phone.to[1]]:
                phone.send()

    def command(self, text: str, port: int = CONTROL_PORT) -> bytes | None:
        """A reply to a command of the SIP server; None: there was none."""
        cookie = b"b%d" % next(self._cookies)
        for _ in range(4):
            with contextlib.suppress(OSError):
                self._control.sendto(cookie + b" " + text.encode(), ("127.0.0.1", port))
                while True:
                    got, _, reply = self._control.recv(4096).partition(b" ")
                    if got == cookie:
                        return reply.strip()
        return None

    def call(self, *, port: int = CONTROL_PORT, hep: bool = True, wrong_port: bool = False) -> str:
        """Set up a call by commands and copies of SIP. wrong_port: the caller sends to another port than the SDP says."""
        number = next(self._numbers)
        name = f"call-{number}"
        caller, callee = Phone(self.topology, "caller", CALLER_IP, 40_000 + 2 * number), Phone(self.topology, "callee", CALLEE_IP, 42_000 + 2 * number)
        if hep:
            self._copy(name, "INVITE", CALLER_IP, caller.port, None)
        replies = [self.command(f"{verb}iic8 {name} {phone.ip} {phone.port} A;1{tag}", port) for verb, phone, tag in (("U", caller, ""), ("L", callee, " B;1"))]
        for phone, reply in zip((callee, caller), replies, strict=True):
            if reply is not None and not reply.startswith(b"E"):
                phone.to = (EDGE_IP, int(reply.split()[0]))
        if hep:
            self._copy(name, "200 OK", CALLEE_IP, callee.port, "B")
        if wrong_port:
            caller.to = (EDGE_IP, caller.to[1] + 1000)
        self._phones[name] = caller, callee
        return name

    def _copy(self, name: str, start: str, source: str, port: int, to_tag: str | None) -> None:
        first = f"SIP/2.0 {start}" if start[0].isdigit() else f"{start} sip:b@example.net SIP/2.0"
        head = [first, f"Call-ID: {name}", "From: <sip:a@example.net>;tag=A", f"To: <sip:b@example.net>{f';tag={to_tag}' if to_tag else ''}", "CSeq: 1 INVITE"]
        message = "\r\n".join([*head, "", f"v=0\r\nc=IN IP4 {source}\r\nm=audio {port} RTP/AVP 8\r\na=rtpmap:8 PCMA/8000\r\n"]).encode()
        self._copies.sendto(encode(HepPacket(Endpoint.of(source, 5060), Endpoint.of(EDGE_IP, 5060), message)), ("127.0.0.1", HEP_PORT))

    def hang_up(self, name: str) -> None:
        self.command(f"D {name} A B")
        for phone in self._phones.pop(name, ()):
            phone.socket.close()

    def ready(self) -> str:
        """Wait until two calls are offloaded and nothing is wrong; new ones where the former did not outlive what was broken. The first one's name."""
        deadline = time.monotonic() + 60
        while True:
            carried = [name for name in self._phones if self._offloaded(name)]
            if len(carried) == len(self._phones) >= 2:
                break
            if len(self._phones) < 2:
                self.call()
            elif time.monotonic() > deadline - 50:
                for name in [name for name in self._phones if name not in carried]:
                    self.hang_up(name)
                deadline = max(deadline, time.monotonic() + 55)
            time.sleep(0.2)
        self.until(lambda health: health["verdict"] == "ok")
        return next(iter(self._phones))

    def _offloaded(self, name: str) -> bool:
        with contextlib.suppress(LabError):
            call = self.edge.get(f"/v1/calls/{name}")
            return not call.get("ended") and all(stream["state"] == "offloaded" for line in call["media"] for stream in line["streams"] if stream["component"] == "rtp")
        return False

    def hang_up_all(self) -> None:
        """End every call."""
        for name in list(self._phones):
            self.hang_up(name)

    # -- tools ----------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        return self.edge.get("/v1/health")  # type: ignore[no-any-return]

    def until(self, met: Callable[[dict[str, Any]], bool], seconds: float = 60.0) -> dict[str, Any]:
        """Wait for a judgement, and return it."""
        deadline, found = time.monotonic() + seconds, None
        while time.monotonic() < deadline:
            with contextlib.suppress(LabError):
                if met(found := self.health()):
                    return found
            time.sleep(0.25)
        raise AssertionError(f"not within {seconds} s: {json.dumps(found, indent=1)}\n{self.operator.tail()}")

    def until_codes(self, codes: set[str]) -> dict[str, Any]:
        """Wait until these are found."""
        return self.until(lambda found: codes <= {one["code"] for one in found["findings"]})

    def page(self, path: str) -> tuple[int, str]:
        """Status and body of a page of the operator daemon; 0: it does not answer."""
        command = self.topology.enter("edge", "curl", "--silent", "--max-time", "20", "--write-out", "\n%{http_code}", f"http://127.0.0.1:{API_PORT}{path}")
        body, _, code = subprocess.run(command, capture_output=True, text=True, check=False).stdout.rpartition("\n")
        return int(code), body

    def command_line(self, *argv: str) -> tuple[int, str]:
        """Exit code and output of a `shunt` command."""
        command = self.topology.enter("edge", sys.executable, "-m", "shunt.cli.main", *argv)
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "operator")}, check=False, timeout=120)
        return done.returncode, done.stdout + done.stderr

    def ask(self, call: str) -> Said:
        """Ask all tools, at once."""
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(self.command_line, *words) for words in (("status",), ("doctor", "-c", str(self.edge.config)), ("why", call), ("history", call))]
            code, health = self.page("/v1/health")
            readyz, (_, metrics) = self.page("/readyz"), self.page("/metrics")
            answers = [one.result() for one in asked]
        return Said(*answers, json.loads(health) if code == 200 else {}, readyz, metrics)

    def until_firing(self, alert: str, before: str, began: float) -> None:
        """Wait until this alert would fire. before: /metrics at that monotonic time; some counts are read seconds later."""
        deadline = time.monotonic() + 60
        while alert not in (fired := self.firing(before, self.page("/metrics")[1], time.monotonic() - began)):
            assert time.monotonic() < deadline, (alert, fired)
            time.sleep(0.5)

    def firing(self, before: str, after: str, seconds: float, minutes: int = 40) -> set[str]:
        """The shipped alerts that fire when it stays so. before, after: two answers of /metrics, so many seconds apart ("": nothing answers)."""
        step_s, first, last = 30, _samples(before), _samples(after)
        series = [{"series": 'up{job="shunt", instance="edge"}', "values": f"{int(bool(after))}x{minutes * 60 // step_s}"}]
        for name, value in last.items():
            rate = (value - first.get(name, value)) / seconds * step_s if re.match(r"\w+_(total|sum|count|bucket)\b", name) or name.startswith("shunt_uptime_seconds") else 0.0
            series.append({"series": _labelled(name), "values": f"{value:.6f}+{max(rate, 0.0):.6f}x{minutes * 60 // step_s}"})
        names = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "alert" in rule]
        asked = [{"expr": 'group by (alertname) (ALERTS{alertstate="firing"})', "eval_time": f"{minutes}m", "exp_samples": []}]
        path = self.work / "alerts.test.yml"
        path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [{"interval": f"{step_s}s", "input_series": series, "promql_expr_test": asked}]}))
        done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, timeout=120, check=False)
        got = (done.stdout + done.stderr).partition("got:")[2]
        fired = {name for name in names if f'"{name}"' in got or f'\\"{name}\\"' in got}
        assert done.returncode == 0 or fired, done.stdout + done.stderr
        return fired


_PROG_LOAD, _OBJ_PIN, _BPF_CALL, _XDP, _XDP_PASS = 5, 6, 321, 6, 2


def pin_foreign_program(path: Path) -> None:
    """An XDP program that passes every packet to the kernel, as another tool may attach one. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(struct.pack("<BBhi", 0xB7, 0, 0, _XDP_PASS) + struct.pack("<BBhi", 0x95, 0, 0, 0))
    licence, name = ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(str(path).encode())

    def bpf(command: int, words: bytes) -> int:
        attributes = ctypes.create_string_buffer(words, 128)
        result = int(libc.syscall(_BPF_CALL, command, attributes, 128))
        if result < 0:
            raise OSError(ctypes.get_errno(), "bpf")
        return result

    program = bpf(_PROG_LOAD, struct.pack("<IIQQ", _XDP, 2, ctypes.addressof(code), ctypes.addressof(licence)))
    try:
        bpf(_OBJ_PIN, struct.pack("<QI", ctypes.addressof(name), program))
    finally:
        os.close(program)


def _labelled(name: str) -> str:
    metric, _, labels = name.partition("{")
    return metric + "{" + ", ".join(filter(None, [labels.rstrip("}"), 'job="shunt"', 'instance="edge"'])) + "}"


def _samples(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            with contextlib.suppress(ValueError):
                if (number := float(value)) == number and abs(number) != float("inf"):
                    found[name] = number
    return found


@contextlib.contextmanager
def bench(work: Path) -> Iterator[Bench]:
    """All of it, taken down at the end."""
    with Topology("broken") as topology:
        made = Bench(topology, work)
        try:
            made.start()
            yield made
        finally:
            made.stop()
