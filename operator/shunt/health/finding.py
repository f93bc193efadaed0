"""What a judgement says: findings with a stable code, and what could not be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["fail", "warn"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. code: of CODES; subject: what it is about; cause, remedy: one sentence each; since_s: how long it has been so, None: not known."""

    code: str
    subject: str
    cause: str
    remedy: str
    since_s: int | None = None

    @property
    def severity(self) -> Severity:
        return CODES[self.code].severity

    def view(self) -> dict[str, Any]:
        """For JSON."""
        return {"code": self.code, "severity": self.severity, "subject": self.subject, "message": self.cause, "remedy": self.remedy, "since_s": self.since_s}


@dataclass(frozen=True, slots=True)
class Judgement:
    """findings: the worst first; unknown: why a code could not be judged, by code."""

    findings: tuple[Finding, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[Finding, ...]:
        """Findings with which calls are not served as they should be."""
        return tuple(finding for finding in self.findings if finding.severity == "fail")

    def of(self, *codes: str) -> Finding | None:
        """The first finding with one of these codes."""
        return next((finding for finding in self.findings if finding.code in codes), None)

    def view(self) -> dict[str, Any]:
        """For JSON: {verdict, findings, unknown}."""
        verdict = "fail" if self.failed else "warn" if self.findings else "unknown" if self.unknown else "ok"
        return {"verdict": verdict, "findings": [finding.view() for finding in self.findings], "unknown": [{"code": code, "message": why} for code, why in self.unknown.items()]}


@dataclass(frozen=True, slots=True)
class Code:
    """severity: `fail` where calls are not served, or not offloaded, as they should be; meaning: a short phrase."""

    severity: Severity
    meaning: str


CODES: dict[str, Code] = {
    "agent-unreachable": Code("fail", "the agent does not answer: it is dead, or hangs"),
    "relay-down": Code("fail", "a relay does not answer commands"),
    "data-plane-down": Code("fail", "the agent has no connection to the data plane"),
    "switch-not-set-up": Code("fail", "the switch has no ports, addresses and routes yet, and drops every packet"),
    "no-active-agent": Code("fail", "no agent of the group has the lease"),
    "mixer-down": Code("fail", "a mixer of conferences does not answer"),
    "xdp-missing": Code("fail", "an interface has no program of the softswitch now"),
    "xdp-loopback": Code("fail", "the softswitch is on `lo` alone"),
    "past-data-plane": Code("fail", "packets of offloaded streams arrive at the relay"),
    "unrouted": Code("fail", "the data plane has no next hop for packets of offloaded streams"),
    "outside-media-ranges": Code("fail", "the relay gives ports that no configured media range has"),
    "commands-missing": Code("fail", "SIP copies show calls for which no command came: the SIP server bypasses the agent"),
    "nothing-arrives": Code("fail", "no packet of either party arrives in many calls"),
    "cpu-port": Code("warn", "the CPU port of a switch cannot be used"),
    "too-big": Code("warn", "packets are larger than the MTU of the output interface"),
    "xdp-generic": Code("warn", "an interface has generic XDP, which costs more CPU time"),
    "host-policy": Code("warn", "IPsec, NAT, packet filters or routing rules of the host keep streams on the relay"),
    "table-full": Code("warn", "the relay table is full"),
    "hep-missing": Code("warn", "commands come without SIP copies, although `hep` is configured"),
    "hep-failed": Code("warn", "SIP copies cannot be received"),
    "draining": Code("warn", "the agent drains"),
    "clock-stepped": Code("warn", "the clock was set forwards or backwards"),
    "journal-failed": Code("warn", "the journal cannot be written"),
    "events-waiting": Code("warn", "the agent's event log cannot be written: events wait in its memory"),
    "events-dropped": Code("warn", "the agent's event log has lost events"),
    "events-missing": Code("warn", "the operator daemon has missed events"),
    "events-unreachable": Code("warn", "the agent's events do not arrive"),
    "events-rebuilding": Code("warn", "the operator daemon reads the history back from the event log"),
    "records-lost": Code("warn", "call records are lost: the files have a record of kind `lost`"),
    "records-waiting": Code("warn", "call records cannot be written"),
    "position-not-kept": Code("warn", "the operator daemon cannot store its position in the event log"),
    "agent-problem": Code("warn", "the agent reports a problem that this version does not know"),
}
"""Every code, the worst first. Codes are stable: alerts are built on them."""
