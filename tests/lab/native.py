"""The edge host with the daemons in Rust: softswitch, relay, agent and operator daemon, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.lab.processes import PORTS, RELAY_PORT, ROOT, Edge, Process
from tests.lab.topology import EDGE_IP, EDGE_IP6, LabError, Topology


class NativeEdge(Edge):
    """As Edge, with shunt-agent, shunt-relay (where there is no rtpproxy) and the operator daemon in place of the agent in Python."""

    def __init__(
        self, topology: Topology, work: Path, sip_server: str = "auto", relay: str = "auto", *, data_plane: bool = True, passwords: Path | None = None
    ) -> None:
        super().__init__(topology, work, sip_server, relay, data_plane=data_plane, passwords=passwords)
        self.admin, self.relay_socket = (Path("/run") / f"{topology.prefix}-{name}.sock" for name in ("admin", "relay"))
        self.agent = self._shunt("agent", "agent")
        self.operator = self._shunt("operator", "operator")
        if self.relay is None:
            self.relay = self._shunt("relay", "relay")

    def stop(self) -> None:
        self.operator.stop()
        super().stop()

    def start_agent(self) -> None:
        """Start the agent, and the operator daemon where it does not run; wait until the daemon has this agent's status."""
        self.agent.start().await_unix(self.admin, 30)
        if not self.operator.alive:
            self.operator.start()
        self._await_status(lambda status: status["agent"]["reachable"] and status["agent"]["pid"] == self.agent.pid)

    def _await_status(self, wanted: Callable[[dict], bool], seconds: float = 30.0) -> None:
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

    def shunt_config(self) -> dict:
        """The shipped shunt.yaml with this lab's addresses, and the sockets of this lab's daemons."""
        config = super().shunt_config()
        config["admin"] = {"socket": str(self.admin), "socket_group": "root", "events": str(self.work / "events")}
        config["operator"] = {"state_dir": str(self.work / "operator")}
        if self.relay_name == "builtin":
            listen = [f"cunix:{self.relay_socket}", f"udp:127.0.0.1:{RELAY_PORT}"]
            media = {"addresses": [EDGE_IP, EDGE_IP6], "ports": f"{PORTS[0]}-{PORTS[1]}"}
            config["builtin_relay"] = {"listen": listen, "socket_group": "root", **media, "ttl": 60, "quarantine": 5}
        return config

    def _shunt(self, name: str, command: str) -> Process:
        """A daemon, as a `shunt` command with the configuration starts it."""
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "pycache")}
        env = {"PYTHONPATH": str(ROOT / "agent"), "PYTHONUNBUFFERED": "1", **compiled}
        return self._process(name, [sys.executable, "-m", "shunt.cli.main", command, "-c", str(self.config)], env)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, all its threads, in seconds (proc(5): utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
