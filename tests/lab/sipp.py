"""SIPp in the lab: callers, callees and registrations that run the shipped scenarios in a host's namespace."""

from __future__ import annotations

import csv
import itertools
from dataclasses import dataclass
from pathlib import Path

from tests.lab.processes import ROOT, Process
from tests.lab.topology import CALLEE_IP, CALLEE_IP6, CALLER_IP, CALLER_IP6, EDGE_IP, EDGE_IP6, NATCALLER_IP, NATCALLER_IP6, LabError, Topology

SCENARIOS = ROOT / "sipp-scenarios"
_ADDRESSES = {
    ("caller", 4): CALLER_IP,
    ("caller", 6): CALLER_IP6,
    ("callee", 4): CALLEE_IP,
    ("callee", 6): CALLEE_IP6,
    ("natcaller", 4): NATCALLER_IP,
    ("natcaller", 6): NATCALLER_IP6,
}


def address(host: str, version: int = 4) -> str:
    """A phone's own address."""
    return _ADDRESSES[host, version]


@dataclass(frozen=True)
class Counts:
    """How a SIPp process's calls ended."""

    attempted: int
    succeeded: int
    failed: int
    current: int


class Sipp:
    """One SIPp process. Each has a port range for media of its own, so that its streams can be told apart in captures."""

    _numbers = itertools.count(1)

    def __init__(
        self,
        topology: Topology,
        work: Path,
        host: str,
        scenario: str,
        *,
        sip_port: int,
        media_port: int,
        user: str = "",
        version: int = 4,
        calls: int | None = None,
        rate: float | None = None,
        limit: int | None = None,
        talk_ms: int | None = None,
        extra: tuple[str, ...] = (),
    ) -> None:
        """user: called user, for a caller. calls: end after so many; rate: calls/s; limit: at most so many at once; talk_ms: length of the scenario's pauses."""
        self.host, self.scenario, self.sip_port, self.media_port = host, scenario, sip_port, media_port
        self.version = version
        ip = address(host, version)
        self.name = f"sipp-{next(self._numbers):03d}-{host}-{scenario}"
        self.work = work = work.resolve()
        self.statistics = work / f"{self.name}.csv"
        edge = f"[{EDGE_IP6}]:5060" if version == 6 else f"{EDGE_IP}:5060"
        argv = ["sipp", "-sf", str(SCENARIOS / f"{scenario}.xml"), "-i", ip, "-mi", ip, "-p", str(sip_port), "-mp", str(media_port)]
        argv += ["-nostdin", "-trace_stat", "-stf", str(self.statistics), "-fd", "1", "-trace_err", "-error_file", str(work / f"{self.name}.err")]
        argv += ["-trace_msg", "-message_file", str(work / f"{self.name}.msg")] if calls is not None and calls <= 10 else []
        if user:
            argv += ["-s", user]
        if rate is not None:
            argv += ["-r", "1", "-rp", str(round(1000 / rate))]
        for option, value in (("-m", calls), ("-l", limit), ("-d", talk_ms)):
            if value is not None:
                argv += [option, str(value)]
        if scenario.startswith(("uac", "register")):
            argv.append(edge)
        argv += extra
        self.process = Process(topology, host, self.name, argv, work / f"{self.name}.log", {"TERM": "dumb"})
        self.process.cwd = SCENARIOS

    def start(self) -> "Sipp":
        """Start it; a callee listens when this returns."""
        self.process.start()
        if self.scenario.startswith("uas"):
            self.process.await_listening("udp", self.sip_port)
        return self

    def finish(self, seconds: float = 60.0) -> None:
        """Wait for the process's end. Raises LabError if it takes longer or if a call did not go as the scenario says."""
        status = self.process.wait(seconds)
        if status != 0:
            errors = self.work / f"{self.name}.err"
            detail = errors.read_text(errors="replace")[-2000:] if errors.exists() else self.process.tail()
            raise LabError(f"{self.name}: SIPp ended with {status}: {detail}")

    def stop(self) -> None:
        self.process.stop(2.0)

    def counts(self) -> Counts:
        """How its calls ended so far, by SIPp's own statistics (a second old at most while it runs)."""
        if not self.statistics.exists():
            return Counts(0, 0, 0, 0)
        with self.statistics.open(newline="") as file:
            rows = list(csv.DictReader(file, delimiter=";"))
        if not rows or rows[-1].get("FailedCall(C)") is None:
            rows = rows[:-1]
        if not rows:
            return Counts(0, 0, 0, 0)
        last = rows[-1]
        return Counts(int(last["TotalCallCreated"]), int(last["SuccessfulCall(C)"]), int(last["FailedCall(C)"]), int(last["CurrentCall"]))


def register(topology: Topology, work: Path, host: str, user: str, contact_port: int, version: int = 4) -> None:
    """Register a user of the edge's SIP server with a contact on a host. Raises LabError when refused."""
    port = 5900 + next(_registrations) % 90
    sipp = Sipp(topology, work, host, "register", sip_port=port, media_port=31900, user=user, version=version, calls=1, extra=("-key", "contact_port", str(contact_port)))
    sipp.start().finish()


_registrations = itertools.count()
