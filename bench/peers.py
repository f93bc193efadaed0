"""What relays the same streams, one way each: relay servers in user space, the kernel's NAT, Shunt's XDP, plain forwarding.

Every peer gets calls with the same phones, and answers with the ports that callers and callees send to.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

import grpc
import yaml

from bench import libbpf
from bench.load import FAR_LINKS, FIRST_PHONE_PORT, NEAR_LINKS, PHONES, RELAY_IP, ROOT, LoadError, Wires, come_first, inside
from bench.softswitch import Table
from shunt.net import Endpoint, FiveTuple
from tests.softswitch.plane import Plane
from tests.tools.entry import RelayEntry
from tests.tools.ng import NgClient, NgError

Ports = list[tuple[int, int]]
FIRST_RELAY_PORT, LAST_RELAY_PORT = 10000, 65000
CONTROL = ("127.0.0.1", 22222)
REDIRECT = ROOT / "build" / "bench" / "obj" / "redirect.o"
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Peer(ABC):
    """One way of relaying. start() before use, stop() after it, in any state."""

    name: str
    title: str
    most_calls = 15000  # two relay ports to a call below 65000, less where a peer needs more

    def __init__(self, wires: Wires, work: Path, cpus: list[int]) -> None:
        """work: for logs and configurations. cpus: the cores that a relay process may use (the generator has its own)."""
        self.wires, self.work, self.cpus = wires, work, cpus

    @staticmethod
    def missing() -> str:
        """What has to be installed before this peer can run; empty when nothing."""
        return ""

    @staticmethod
    def version() -> str:
        return ""

    @abstractmethod
    def start(self, calls: int) -> Ports | int:
        """Be ready to relay so many calls: the ports of each that its caller and its callee send to, or how many there are without any. Raises LoadError."""

    @abstractmethod
    def stop(self) -> None:
        """Leave nothing behind."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that packets go through."""
        return ()

    def phone(self, side: int, call: int) -> tuple[str, int]:
        """Address and port of the caller (side 0) or callee (1) of a call."""
        return PHONES[side], FIRST_PHONE_PORT + 2 * call


def _first_line(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    text = (done.stdout + done.stderr).strip()
    return text.splitlines()[0] if text else ""


class _Server(Peer):
    """A relay server: a process on the relay host that speaks the rtpproxy control protocol over UDP."""

    most_calls = 4000  # four sockets to a call, below the usual limit of open files
    _process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def argv(self) -> list[str]:
        """The command that runs the relay in the foreground."""

    def start(self, calls: int) -> Ports:
        self.work.mkdir(parents=True, exist_ok=True)
        argv = self.wires.enter(self.wires.relay, "taskset", "-c", ",".join(map(str, self.cpus)), *self.argv())
        with (self.work / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.work, start_new_session=True, preexec_fn=_before_exec,
                env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
            )  # fmt: skip
        with inside(self.wires.relay):
            control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with control:
            control.connect(CONTROL)
            self._await(control)
            return [self._call(control, call) for call in range(calls)]

    def _await(self, control: socket.socket) -> None:
        deadline = time.monotonic() + 20
        control.settimeout(0.1)
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                raise LoadError(f"{self.name} ended at once; its log: {self.work / self.name}.log")
            try:
                if self._ready(control):
                    return
            except (ConnectionRefusedError, TimeoutError, NgError):
                time.sleep(0.05)
        raise LoadError(f"{self.name} does not answer on its control socket; its log: {self.work / self.name}.log")

    def _ready(self, control: socket.socket) -> bool:
        """Whether it answers. Raises what a socket raises while it does not."""
        control.send(b"v0 V")
        return control.recv(4096).startswith(b"v0 ")

    def _call(self, control: socket.socket, call: int) -> tuple[int, int]:
        ports = []
        for verb, side, tags in (("U", 0, "a;1"), ("L", 1, "a;1 b;1")):
            address, port = self.phone(side, call)
            ports.append(self._ask(control, f"c{call}{verb}", f"{verb} bench{call}@shunt {address} {port} {tags}"))
        to_callee, to_caller = ports  # the reply to U is what the callee sends to
        return to_caller, to_callee

    def _ask(self, control: socket.socket, cookie: str, text: str) -> int:
        """Send a command, repeated as a SIP server would; return the port of its reply. Raises LoadError."""
        control.settimeout(1.0)
        for _ in range(5):
            try:
                control.send(f"{cookie} {text}".encode())
                while True:
                    words = control.recv(4096).decode().split()
                    if words and words[0] == cookie:
                        break
            except TimeoutError:
                continue
            if len(words) < 2 or not words[1].isdigit() or words[1] == "0":
                raise LoadError(f"{self.name} answered {' '.join(words[1:])!r} to {text!r}")
            return int(words[1])
        raise LoadError(f"{self.name} did not answer {text!r}")

    def stop(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)  # it leads its own session
                self._process.wait(5)
        self._process = None

    @property
    def pids(self) -> tuple[int, ...]:
        return (self._process.pid,) if self._process is not None else ()


def _before_exec() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    come_first()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Rtpproxy(_Server):
    name, title = "rtpproxy", "rtpproxy"

    @staticmethod
    def missing() -> str:
        return "" if shutil.which("rtpproxy") else "rtpproxy is not on PATH"

    @staticmethod
    def version() -> str:
        return _first_line("rtpproxy", "-V")

    def argv(self) -> list[str]:
        return [
            "rtpproxy", "-f", "-F", "-s", f"udp:{CONTROL[0]}:{CONTROL[1]}", "-l", RELAY_IP, "-m", str(FIRST_RELAY_PORT), "-M", str(LAST_RELAY_PORT),
            "-T", "600", "-d", "ERR", "-p", str(self.work / "rtpproxy.pid"),
        ]  # fmt: skip


class Rtpengine(_Server):
    name, title = "rtpengine", "rtpengine, user space"

    @staticmethod
    def missing() -> str:
        return "" if shutil.which("rtpengine") else "rtpengine is not installed (Debian: rtpengine-daemon)"

    @staticmethod
    def version() -> str:
        return _first_line("rtpengine", "--version")

    def argv(self) -> list[str]:
        # No kernel module (table -1); as many threads as it has cores.
        return [
            "rtpengine", "--config-file=none", "--table=-1", "-f", "-E", f"--interface={RELAY_IP}", f"--listen-udp={CONTROL[0]}:{CONTROL[1]}",
            f"--port-min={FIRST_RELAY_PORT}", f"--port-max={LAST_RELAY_PORT}", "--log-level=3", f"--num-threads={len(self.cpus)}", "--timeout=600",
            "--silent-timeout=600",
        ]  # fmt: skip


class Siphon(_Server):
    """By rtpengine's NG protocol. Its XDP part is a program of its own, which a stable Rust compiler does not build."""

    name, title = "siphon-rtp", "siphon-rtp, user space"

    @staticmethod
    def missing() -> str:
        return "" if shutil.which("siphon-rtp") else "siphon-rtp is not on PATH (not in Debian)"

    @staticmethod
    def version() -> str:
        return _first_line("siphon-rtp", "--version")

    def argv(self) -> list[str]:
        return [
            "siphon-rtp", f"--control={CONTROL[0]}:{CONTROL[1] + 1}", f"--ng={CONTROL[0]}:{CONTROL[1]}", f"--relay-bind-ip={RELAY_IP}",
            f"--port-min={FIRST_RELAY_PORT}", f"--port-max={LAST_RELAY_PORT}",
        ]  # fmt: skip

    def _ready(self, control: socket.socket) -> bool:
        return NgClient(control, CONTROL, timeout=0.1, tries=1).command("ping")["result"] == "pong"

    def _call(self, control: socket.socket, call: int) -> tuple[int, int]:
        client, ports = NgClient(control, CONTROL, timeout=1.0, tries=5), []
        for verb, side, tags in (("offer", 0, {"from_tag": "a"}), ("answer", 1, {"from_tag": "a", "to_tag": "b"})):
            address, port = self.phone(side, call)
            sdp = f"v=0\r\no=- {call} 1 IN IP4 {address}\r\ns=-\r\nc=IN IP4 {address}\r\nt=0 0\r\nm=audio {port} RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n"
            try:
                reply = client.command(verb, call_id=f"bench{call}@shunt", sdp=sdp, replace=["origin", "session-connection"], **tags)
            except NgError as error:
                raise LoadError(f"{self.name}: {error}") from None
            found = re.search(r"^m=audio (\d+) ", reply["sdp"], re.MULTILINE)
            if found is None:
                raise LoadError(f"{self.name} answered without a port: {reply['sdp']!r}")
            ports.append(int(found[1]))
        to_callee, to_caller = ports
        return to_caller, to_callee


class Builtin(_Server):
    name, title = "builtin", "Shunt's built-in relay, slow path"

    @staticmethod
    def version() -> str:
        return _first_line(str(ROOT / "target/release/shunt-relay"), "--version")

    def argv(self) -> list[str]:
        config = self.work / "builtin.yaml"
        relay = {"listen": [f"udp:{CONTROL[0]}:{CONTROL[1]}"], "addresses": [RELAY_IP], "ports": f"{FIRST_RELAY_PORT}-{LAST_RELAY_PORT}", "ttl": 600, "quarantine": 0}
        config.write_text(yaml.safe_dump({"builtin_relay": relay}))
        return [sys.executable, "-m", "shunt.cli.main", "relay", "-c", str(config)]


class _InKernel(Peer):
    """Ports that no process holds: two to a call, in order."""

    def ports(self, calls: int) -> Ports:
        return [(FIRST_RELAY_PORT + 2 * call, FIRST_RELAY_PORT + 2 * call + 1) for call in range(calls)]


class Nftables(_InKernel):
    name, title = "nftables", "nftables, connection tracking, DNAT and SNAT"

    @staticmethod
    def missing() -> str:
        return "" if shutil.which("nft") else "nft is not installed (Debian: nftables)"

    @staticmethod
    def version() -> str:
        return _first_line("nft", "--version")

    def start(self, calls: int) -> Ports:
        ports = self.ports(calls)
        onward, source = [], []
        for call, (to_caller_port, to_callee_port) in enumerate(ports):
            # The caller sends to the first; what it sends leaves from the second, towards the callee.
            for arrives, leaves, (address, port) in (
                (to_caller_port, to_callee_port, self.phone(1, call)),
                (to_callee_port, to_caller_port, self.phone(0, call)),
            ):
                onward.append(f"{arrives} : {address} . {port}")
                source.append(f"{address} . {port} : {RELAY_IP} . {leaves}")
        self.wires.run(self.wires.relay, "nft", "-f", "-", stdin=_NAT.replace("ONWARD", ", ".join(onward)).replace("SOURCE", ", ".join(source)).replace("RELAY", RELAY_IP))
        self.wires.forwarding(True)
        return ports

    def stop(self) -> None:
        self.wires.forwarding(False)
        subprocess.run(self.wires.enter(self.wires.relay, "nft", "delete", "table", "ip", "bench"), capture_output=True)


_NAT = """table ip bench {
  map onward { type inet_service : ipv4_addr . inet_service; elements = { ONWARD } }
  map source { type ipv4_addr . inet_service : ipv4_addr . inet_service; elements = { SOURCE } }
  chain prerouting { type nat hook prerouting priority dstnat; ip daddr RELAY meta l4proto udp dnat ip to udp dport map @onward; }
  chain postrouting { type nat hook postrouting priority srcnat; meta l4proto udp snat ip to ip daddr . udp dport map @source; }
}
"""


class Shunt(_InKernel):
    name, title = "shunt", "Shunt, XDP"
    _table: Table | None = None
    capacity = 65536

    @staticmethod
    def version() -> str:
        return _first_line("git", "-C", str(ROOT), "describe", "--always", "--dirty")

    def start(self, calls: int) -> Ports:
        ports = self.ports(calls)
        with inside(self.wires.relay):
            self._table = Table(NEAR_LINKS, capacity=self.capacity)
        self.insert(self.entries(ports))
        return ports

    def entries(self, ports: Ports) -> list[RelayEntry]:
        found = []
        for call, (for_caller, for_callee) in enumerate(ports):
            phones = [Endpoint(socket.inet_aton(address), port) for address, port in (self.phone(0, call), self.phone(1, call))]
            relay = [Endpoint(socket.inet_aton(RELAY_IP), port) for port in (for_caller, for_callee)]
            found += [RelayEntry(FiveTuple(phones[side], relay[side]), relay[1 - side], phones[1 - side]) for side in (0, 1)]
        return found

    def insert(self, entries: list[RelayEntry]) -> None:
        """Put entries in. Raises LoadError when one is refused."""
        assert self._table is not None
        try:
            self._table.insert(entries)
        except grpc.RpcError as error:
            raise LoadError(f"the data plane refused an entry: {error.details()}") from None

    @property
    def plane(self) -> Plane:
        assert self._table is not None
        return self._table.plane

    def stop(self) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None


class Forward(Peer):
    name, title = "forward", "plain kernel forwarding"

    @staticmethod
    def version() -> str:
        return f"Linux {os.uname().release}"

    def start(self, calls: int) -> int:
        self.wires.forwarding(True)
        return calls

    def stop(self) -> None:
        self.wires.forwarding(False)


class Redirect(Peer):
    """The floor: what the wires cost when a program on them does nothing but turn each frame to the other interface."""

    name, title = "redirect", "XDP that only redirects"
    _links: tuple[int, ...] = ()
    _loaded: libbpf.LoadedObject | None = None

    @staticmethod
    def version() -> str:
        return f"Linux {os.uname().release}"

    def start(self, calls: int) -> int:
        near = struct.pack("<II", *(self.wires.ifindex[link] for link in NEAR_LINKS))
        macs = b"".join((self.wires.macs[far] + self.wires.macs[near]).ljust(16, b"\0") for far, near in zip(FAR_LINKS, NEAR_LINKS))
        self._loaded = libbpf.load_object(REDIRECT, sizes={}, reuse={}, constants={"near": near, "macs": macs}, symbols=libbpf.constant_offsets(REDIRECT))
        with inside(self.wires.relay):
            self._links = tuple(libbpf.attach_xdp(self._loaded.programs["redirect"], self.wires.ifindex[link], generic=False) for link in NEAR_LINKS)
        return calls

    def stop(self) -> None:
        for fd in self._links:
            os.close(fd)
        if self._loaded is not None:
            self._loaded.close()
        self._links, self._loaded = (), None


PEERS: tuple[type[Peer], ...] = (Rtpproxy, Rtpengine, Siphon, Builtin, Nftables, Shunt, Redirect, Forward)
