"""The real processes of the lab: SIP server, relay, agent, operator daemon and softswitch on the edge host, from the shipped configurations.

Each runs in its namespace, is known by its pid, logs into build/, and is waited for until it listens.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import yaml

from shunt.cli.daemons import PRIORITY
from shunt.config import sip_server
from tests.lab.needs import lacking
from tests.lab.topology import BPF, CALLEE_IP, EDGE_INTERFACES, EDGE_IP, EDGE_IP6, LabError, Topology
from tests.tools.checked import checked, program
from tests.tools.ng import NgClient

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "opensips-config"
API_PORT = 8077
_SO_RCVBUFFORCE, _RECEIVE_BUFFER = 33, 8 << 20
CONTROL_PORT, RELAY_PORT = 22221, 22222
NG_PORT, RTPENGINE_PORT = 22223, 2223  # the agent's and rtpengine's own
PORTS = (35000, 65000)
_CUSTOMERS = ("198.18.0.0/16", "fd91::/16")
# The sockets of agent and relay in the shipped configurations of SIP servers, and what stands there without an agent.
_DIRECT = (
    ("udp:127.0.0.1:22221=1 udp:127.0.0.1:22222=0", "udp:127.0.0.1:22222"),
    ("udp:127.0.0.1:22223=1 udp:127.0.0.1:2223=0", "udp:127.0.0.1:2223"),
    ("udp:127.0.0.1:22223=256 udp:127.0.0.1:2223=1", "udp:127.0.0.1:2223"),
    ('"rtpproxy_sock", "udp:127.0.0.1:22221"', '"rtpproxy_sock", "udp:127.0.0.1:22222"'),
)
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def work_folder(name: str) -> Path:
    """An empty folder in build/e2e for logs and configurations; each worker of a parallel run has its own."""
    folder = ROOT / "build" / "e2e" / os.environ.get("PYTEST_XDIST_WORKER", "") / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def choose(sip_server: str = "auto", relay: str = "auto") -> tuple[str, str]:
    """Which SIP server and relay to run: what was asked for, or what is on PATH. Raises LabError for what is not there."""
    if sip_server == "auto":
        sip_server = "opensips" if shutil.which("opensips") else "kamailio"
    if relay == "auto":
        relay = "rtpproxy" if shutil.which("rtpproxy") else "builtin"
    for name in (sip_server, relay):
        if name != "builtin" and shutil.which(name) is None:
            raise LabError(lacking(name, root=False))
    return sip_server, relay


class Process:
    """One real process in a namespace."""

    def __init__(self, topology: Topology, host: str, name: str, argv: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.topology, self.host, self.name, self.argv, self.log = topology, host, name, argv, log
        self.cwd = log.parent
        self._env = env
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> "Process":
        """Start it. Raises LabError if it runs already."""
        if self.alive:
            raise LabError(f"{self.name} runs already as {self.pid}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                self.topology.enter(self.host, *self.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.cwd,
                env={**os.environ, **(self._env or {})},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        return self

    @property
    def pid(self) -> int:
        """Its pid. Raises LabError if it was never started."""
        if self._popen is None:
            raise LabError(f"{self.name} was not started")
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def wait(self, seconds: float) -> int:
        """Wait for its end and return its exit status. Raises LabError after so many seconds."""
        if self._popen is None:
            raise LabError(f"{self.name} was not started")
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise LabError(f"{self.name} did not end within {seconds} s; its log: {self.log}") from None

    def stop(self, patience: float = 5.0) -> None:
        """Ask it to end (SIGTERM); kill it and its children when it does not within so many seconds."""
        self._end(signal.SIGTERM, patience)

    def kill(self) -> None:
        """Kill it and its children at once, without warning (SIGKILL)."""
        self._end(signal.SIGKILL, 5.0)

    def _end(self, number: int, patience: float) -> None:
        if self._popen is None:
            return
        if self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(self._popen.pid, number)
                else:
                    self._popen.send_signal(number)
        try:
            self._popen.wait(patience)
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)  # it leads its own session: nobody else's group
        self._popen.wait(5.0)

    def await_listening(self, kind: str, port: int, seconds: float = 60.0) -> None:
        """Wait until a socket ("udp" or "tcp") is bound to the port in its namespace. Raises LabError with the log's end."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.alive:
                raise LabError(f"{self.name} ended with {self._popen.returncode if self._popen else '?'}:\n{self.tail()}")
            if _bound(self.pid, kind, port):
                return
            time.sleep(0.05)
        raise LabError(f"{self.name} does not listen on {kind} port {port} after {seconds} s:\n{self.tail()}")

    def await_unix(self, path: Path, seconds: float = 60.0) -> None:
        """Wait until it takes connections at a Unix socket. Raises LabError with the log's end."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.alive:
                raise LabError(f"{self.name} ended with {self._popen.returncode if self._popen else '?'}:\n{self.tail()}")
            with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
                probe.connect(str(path))
                return
            time.sleep(0.05)
        raise LabError(f"{self.name} does not listen on {path} after {seconds} s:\n{self.tail()}")

    def await_log(self, text: str, seconds: float = 60.0) -> None:
        """Wait until its log contains the text. Raises LabError with the log's end."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.log.exists() and text in self.log.read_text(errors="replace"):
                return
            if not self.alive:
                break
            time.sleep(0.02)
        raise LabError(f"{self.name} did not say {text!r}:\n{self.tail()}")

    def signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self._popen is not None and self._popen.poll() is None:
            self._popen.send_signal(number)

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""


def _die_with_parent() -> None:
    # Whoever kills the lab with SIGKILL does not leave its processes behind.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _bound(pid: int, kind: str, port: int) -> bool:
    suffix = f":{port:04X}"
    for name in (kind, kind + "6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                words = line.split()
                if words[1].endswith(suffix) and (kind == "udp" or words[3] == "0A"):
                    return True
    return False


def roomy(made: socket.socket) -> socket.socket:
    """The socket, with room for what comes while its reader waits for a processor: what the kernel drops there looks like loss on the way."""
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
    return made


def open_socket(topology: Topology, host: str, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """A socket that lives in a host's namespace, for use from this process."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def make() -> None:
        # Only this short-lived thread moves; the socket stays where it was made.
        try:
            with open(f"/run/netns/{topology.name(host)}", "rb") as namespace:
                if _libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            made.append(roomy(socket.socket(family, kind, protocol)) if kind == socket.SOCK_DGRAM else socket.socket(family, kind, protocol))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failed:
        raise LabError(f"no socket in {topology.name(host)}: {failed[0]}")
    return made[0]


class _Daemon(Process):
    """A daemon in Rust, started with what `shunt NAME -c FILE` gives it, and at that priority."""

    def __init__(self, topology: Topology, name: str, command: str, config: Path, work: Path) -> None:
        self._command, self._config, self._document = command, config, work / f"{name}.json"
        argv = ["nice", f"--adjustment={PRIORITY}", program(command), "--config", str(self._document)]
        super().__init__(topology, "edge", name, argv, work / f"{name}.log")

    def start(self) -> Process:
        self._document.write_text(json.dumps(checked(self._config, self._command)))
        return super().start()


class Edge:
    """The edge host's processes: `with Edge(topology, ...) as edge` starts all of them and stops them."""

    def __init__(
        self,
        topology: Topology,
        work: Path,
        sip_server: str = "auto",
        relay: str = "auto",
        *,
        data_plane: bool = True,
        passwords: Path | None = None,
        direct: bool = False,
        relay_options: tuple[str, ...] = (),
        interfaces: dict[str, tuple[str, ...]] | None = None,
        by_command: bool = False,
    ) -> None:
        """work: where logs and instantiated configurations go. passwords: turn them on, and no network is trusted; a folder for db_text.

        direct: the SIP server talks to the relay, and there is no agent and no data plane. relay_options: further options of
        rtpproxy or rtpengine, which win over those of the start line. interfaces: addresses of named interfaces of rtpengine,
        in place of one that has all. by_command: `shunt agent`, `shunt relay` and `shunt softswitch` start the daemons, as units do; otherwise
        they get what these commands would give them.
        """
        self.topology = topology
        self.work = work.resolve()
        self.sip_server_name, self.relay_name = choose(sip_server, relay)
        self.direct = direct
        self.with_data_plane = data_plane and not direct
        self.passwords = passwords
        self.by_command = by_command
        self.relay_options, self.interfaces = relay_options, interfaces or {}
        self.pin_dir = BPF / topology.prefix
        self.bfrt, self.admin, self.relay_socket = (Path("/run") / f"{topology.prefix}-{name}.sock" for name in ("bfrt", "admin", "relay"))
        self.config = self.work / "shunt.yaml"
        self.agent, self.operator, self.softswitch = (self._daemon(name) for name in ("agent", "operator", "softswitch"))
        self.relay = self._daemon("relay") if self.relay_name == "builtin" else self._process(self.relay_name, self._relay_command())
        self.sip_server = self._process(self.sip_server_name, self._sip_server_command())

    def __enter__(self) -> "Edge":
        self.work.mkdir(parents=True, exist_ok=True)
        self.write_config(self.shunt_config())
        self.write_sip_server_config()
        self.start()
        return self

    def write_config(self, config: dict) -> None:
        """Make this the agent's and the softswitch's configuration, for their next start."""
        self.config.write_text(yaml.safe_dump(config, sort_keys=False))

    def write_sip_server_config(self) -> None:
        self._sip_server_config_path().write_text(self.sip_server_config())

    def start(self) -> None:
        """Start all. Raises LabError, with nothing left running, if a process does not come up."""
        try:
            if self.with_data_plane:
                self.start_softswitch()
            self.start_relay()
            if not self.direct:
                self.start_agent()
            if self.with_data_plane:
                self.await_data_plane()  # its socket is there before its programs are
            self.start_sip_server()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop all in the order that leaves nothing behind, and unpin the data plane."""
        for process in (self.sip_server, self.operator, self.agent, self.relay, self.softswitch):
            process.stop()
        if self.pin_dir.exists():
            shutil.rmtree(self.pin_dir, ignore_errors=True)

    def start_softswitch(self) -> None:
        self.softswitch.start().await_unix(self.bfrt)

    def start_relay(self) -> None:
        self.relay.start().await_listening("udp", self.relay_port)

    @property
    def relay_port(self) -> int:
        """The relay's own control port."""
        return RTPENGINE_PORT if self.relay_name == "rtpengine" else RELAY_PORT

    def ng(self, port: int = RTPENGINE_PORT) -> NgClient:
        """A client on the edge host that speaks NG, with rtpengine itself unless told otherwise (NG_PORT: with the agent)."""
        return NgClient(open_socket(self.topology, "edge", socket.AF_INET, socket.SOCK_DGRAM), ("127.0.0.1", port))

    def relay_sessions(self) -> int:
        """The calls that the relay itself has, by its own word. Raises LabError."""
        if self.relay_name == "rtpengine":
            with self.ng() as ng:
                return len(ng.command("list", limit=100_000)["calls"])
        with open_socket(self.topology, "edge", socket.AF_INET, socket.SOCK_DGRAM) as control:
            control.settimeout(10)
            control.sendto(b"lab_%d I" % time.monotonic_ns(), ("127.0.0.1", RELAY_PORT))
            answer = control.recv(4096).decode()
        for line in answer.splitlines():
            name, _, value = line.partition(":")
            if name.endswith("active sessions"):
                return int(value)
        raise LabError(f"the relay's answer to I: {answer!r}")

    def start_agent(self) -> None:
        """Start the agent, and the operator daemon where it does not run; wait until that has this agent's status."""
        self.agent.start().await_unix(self.admin)
        if not self.operator.alive:
            self.operator.start()
        self._await_status(lambda status: status["agent"]["reachable"] and status["agent"]["pid"] == self.agent.pid)

    def _await_status(self, wanted: Callable[[dict], bool], seconds: float = 60.0) -> None:
        deadline, found = time.monotonic() + seconds, None
        while time.monotonic() < deadline:
            for process in (self.agent, self.operator):
                if not process.alive:
                    raise LabError(f"{process.name} has ended:\n{process.tail()}")
            with contextlib.suppress(LabError):
                found = self.status()
                if wanted(found):
                    return
            time.sleep(0.05)
        raise LabError(f"the operator daemon does not show the agent as it should; its last status: {found}\n{self.operator.tail()}")

    def await_data_plane(self, seconds: float = 60.0) -> None:
        """Wait until the agent answers and has its data plane. Raises LabError when it has none by then."""
        deadline, found = time.monotonic() + seconds, "no answer"
        while time.monotonic() < deadline:
            try:
                found = self.status()["data_plane"]
            except LabError as error:
                found = str(error)
            else:
                if found["connected"]:
                    return
            time.sleep(0.1)
        raise LabError(f"the agent does not reach the data plane: {found}")

    def start_sip_server(self) -> None:
        self.sip_server.start().await_listening("udp", 5060)

    def get(self, path: str, port: int = API_PORT) -> dict:
        """GET from the REST API at a port. Raises LabError when it does not answer with 200."""
        return json.loads(self._http("GET", path, port))

    def status(self) -> dict:
        return self.get("/v1/status")

    def calls(self) -> list[dict]:
        """All calls the agent knows now."""
        answer = self.get("/v1/calls")
        return answer["calls"] if isinstance(answer, dict) else answer

    def history(self, call_id: str) -> list[dict]:
        """The events of a call; none when the operator daemon does not know the call."""
        try:
            return self.get(f"/v1/calls/{quote(call_id, safe='')}/history")["events"]
        except LabError as error:
            if "404" in str(error):
                return []
            raise

    def shunt(self, *argv: str, code: int = 0) -> str:
        """The output of a `shunt` command on the edge host. Raises LabError when it ends with another exit code."""
        env = {"PYTHONPATH": f"{ROOT / 'operator'}"}
        command = self.topology.enter("edge", sys.executable, "-m", "shunt.cli.main", *argv)
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})
        if done.returncode != code:
            raise LabError(f"shunt {' '.join(argv)}: exit {done.returncode}: {done.stdout.strip()} {done.stderr.strip()}")
        return done.stdout

    def shunt_config(self) -> dict:
        """The shipped shunt.yaml with this lab's addresses."""
        config = yaml.safe_load(_substitute((CONFIGS / "shunt.yaml").read_text()))
        config["softswitch"]["interfaces"] = list(EDGE_INTERFACES)
        config["softswitch"]["pin_dir"] = str(self.pin_dir)
        config["softswitch"]["listen"] = [f"unix:{self.bfrt}"]
        config["data_plane"]["target"] = f"unix:{self.bfrt}"
        config["journal"] = {"path": str(self.work / "journal.sqlite")}
        config["admin"] = {"socket": str(self.admin), "socket_group": "root", "events": str(self.work / "events")}
        config["operator"] = {"state_dir": str(self.work / "operator")}
        sip_timeout = sip_server.timeout_ms(self.sip_server_config())
        if self.relay_name == "builtin":
            del config["relays"]
            listen = [f"cunix:{self.relay_socket}", f"udp:127.0.0.1:{RELAY_PORT}"]
            media = {"addresses": [EDGE_IP, EDGE_IP6], "ports": f"{PORTS[0]}-{PORTS[1]}"}
            config["builtin_relay"] = {"listen": listen, "socket_group": "root", **media, "ttl": 60, "quarantine": 5}
        if self.relay_name == "rtpengine":
            addresses = [address for group in self.interfaces.values() for address in group] or [EDGE_IP, EDGE_IP6]
            config["control"] = {"ng": [f"udp:127.0.0.1:{NG_PORT}", f"tcp:127.0.0.1:{NG_PORT}"]}
            media = [{"address": address, "ports": f"{PORTS[0]}-{PORTS[1]}"} for address in addresses]
            config["relays"] = [{"name": "local", "type": "rtpengine", "socket": f"udp:127.0.0.1:{RTPENGINE_PORT}", "media": media, **self._time_outs()}]
        if not self.with_data_plane:
            del config["data_plane"]
        config["control"]["sip_timeout_ms"] = sip_timeout
        return config

    def _time_outs(self) -> dict[str, int]:
        """What rtpengine's time-outs are, for the agent: those of its last options."""
        keys = {"--timeout": "ttl", "--silent-timeout": "silent_ttl", "--offer-timeout": "setup_ttl"}
        given = (word.partition("=") for word in self._relay_command())
        return {keys[name]: int(value) for name, _, value in given if name in keys}

    def sip_server_config(self) -> str:
        """The shipped configuration of the SIP server with this lab's addresses and a log on standard error."""
        suffix = "-rtpengine" if self.relay_name == "rtpengine" else ""
        text = _substitute((CONFIGS / f"{self.sip_server_name}{suffix}.cfg").read_text())
        if self.direct:
            for both, relay in _DIRECT:
                text = text.replace(both, relay)
            text = text.replace("#!define WITH_BACKUP_RELAY", "##!define WITH_BACKUP_RELAY")
        text = text.replace("stderror_enabled = no", "stderror_enabled = yes").replace("syslog_enabled = yes", "syslog_enabled = no")
        text = text.replace("log_stderror = no", "log_stderror = yes")
        text = text.replace("/run/opensips/", f"{self.work}/").replace("/run/kamailio/", f"{self.work}/")
        if self.passwords is not None:
            text = text.replace("#AUTH#", "").replace("##!define WITH_AUTH", "#!define WITH_AUTH")
            text = text.replace("/etc/opensips/dbtext", str(self.passwords)).replace("/etc/kamailio/dbtext", str(self.passwords))
            text = text.replace(_CUSTOMERS[0], "192.0.2.0/24").replace(_CUSTOMERS[1], "2001:db8:2::/48")
        if self.sip_server_name == "opensips":
            text = text.replace("/usr/lib/x86_64-linux-gnu/opensips/modules/", f"{opensips_modules()}/")
        return text

    def _daemon(self, command: str, config: Path | None = None, name: str = "") -> Process:
        """A daemon with a configuration (the edge's)."""
        config = config or self.config
        if command == "operator" or self.by_command:
            # With byte code, as an installed Shunt has it, but not in the source tree.
            compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "pycache")}
            env = {"PYTHONPATH": str(ROOT / "operator"), "PYTHONUNBUFFERED": "1", "SHUNT_DAEMONS": str(Path(program(command)).resolve().parent), **compiled}
            return self._process(name or command, [sys.executable, "-m", "shunt.cli.main", command, "-c", str(config)], env)
        return _Daemon(self.topology, name or command, command, config, self.work)

    def _process(self, name: str, argv: list[str], env: dict[str, str] | None = None) -> Process:
        return Process(self.topology, "edge", name, argv, self.work / f"{name}.log", env)

    def _sip_server_config_path(self) -> Path:
        return self.work / f"{self.sip_server_name}.cfg"

    def _sip_server_command(self) -> list[str]:
        path, pid = str(self._sip_server_config_path()), str(self.work / f"{self.sip_server_name}.pid")
        if self.sip_server_name == "opensips":
            return ["opensips", "-F", "-f", path, "-m", "128", "-M", "8", "-P", pid, "-w", str(self.work)]
        return ["kamailio", "-DD", "-E", "-f", path, "-m", "128", "-M", "8", "-P", pid, "-Y", str(self.work), "-w", str(self.work)]

    def _relay_command(self) -> list[str]:
        """The first start line of rtpproxy.md or rtpengine.md, with this lab's addresses."""
        text = _substitute((CONFIGS / f"{self.relay_name}.md").read_text())
        lines = text.splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith(f"    {self.relay_name} "))
        words = " ".join(line.strip().rstrip("\\") for line in lines[first : first + 2]).split()
        pid = self.work / f"{self.relay_name}.pid"
        if self.relay_name == "rtpproxy":
            return [*words, "-p", str(pid), *self.relay_options]
        if self.interfaces:
            words = [word for word in words if not word.startswith("--interface=")]
            words += [f"--interface={name}/{address}" for name, addresses in self.interfaces.items() for address in addresses]
        # Without a delay a call is off its list as soon as it is deleted, and tests see what is left.
        return [*words, f"--pidfile={pid}", "--num-threads=2", "--delete-delay=0", *self.relay_options]

    def _http(self, method: str, path: str, port: int = API_PORT) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.sock = open_socket(self.topology, "edge", socket.AF_INET, socket.SOCK_STREAM)
        try:
            connection.sock.settimeout(60)
            connection.sock.connect(("127.0.0.1", port))
            connection.request(method, path, headers={"Connection": "close"})
            response = connection.getresponse()
            body = response.read()
        except OSError as error:
            raise LabError(f"the agent's API does not answer {method} {path}: {error}") from None
        finally:
            connection.close()
        if response.status != 200:
            raise LabError(f"{method} {path}: {response.status} {body[:500]!r}")
        return body


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, all its threads, in seconds (proc(5): utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _substitute(text: str) -> str:
    """The lab's addresses in place of the documentation addresses of the shipped configurations."""
    pairs = (
        ("203.0.113.10", EDGE_IP),
        ("2001:db8::10", EDGE_IP6),
        ("198.51.100.20:5060", f"{CALLEE_IP}:5060"),
        ("192.0.2.0/24", _CUSTOMERS[0]),
        ("2001:db8:2::/48", _CUSTOMERS[1]),
        ("change-this-secret", "b0kJ2mZq8RtVw5Xy1Ls9"),
    )
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def opensips_modules() -> Path:
    """Where the modules of the OpenSIPS on PATH are. Raises LabError."""
    binary = Path(shutil.which("opensips") or "").resolve()
    found = [path for lib in ("lib", "lib64") for path in binary.parent.parent.glob(f"{lib}/**/opensips/modules")]
    if not found:
        raise LabError(f"no OpenSIPS modules below {binary.parent.parent}")
    return found[0]
