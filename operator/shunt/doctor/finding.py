"""What a check says: one line, with a verdict and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "warn", "fail", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("ok", "warn", "fail", "unknown")


@dataclass(frozen=True, slots=True)
class Finding:
    """subject: what was looked at. found: what is there, or of `unknown` why nobody knows. advice: what to do; empty where there is nothing to do."""

    verdict: Verdict
    subject: str
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Findings about one part of the host."""

    title: str
    findings: tuple[Finding, ...]


def failed(groups: Iterable[Group]) -> bool:
    """Whether any finding is a failure."""
    return any(finding.verdict == "fail" for group in groups for finding in group.findings)


def document(groups: Iterable[Group]) -> dict[str, Any]:
    """The same as JSON has it: {summary: {verdict: count}, checks: [{group, verdict, subject, found, advice}]}."""
    checks = [{"group": group.title, **asdict(finding)} for group in groups for finding in group.findings]
    return {"summary": {verdict: sum(check["verdict"] == verdict for check in checks) for verdict in VERDICTS}, "checks": checks}
