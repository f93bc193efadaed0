"""The judgement of health as the operator daemon has it: the same findings, in the same words (docs/health.md)."""

from __future__ import annotations

from collections.abc import Iterator

from shunt.config.model import Config
from shunt.doctor.facts import Facts, Unknown
from shunt.doctor.finding import Finding


def check(config: Config, facts: Facts) -> Iterator[Finding]:
    """Each finding, then what is not known."""
    if not config.serves_agent or facts.health is None:
        return
    if isinstance(facts.health, Unknown):
        yield Finding("unknown", "health", f"the operator daemon, which compares calls, packets and programs, does not answer: {facts.health.reason}")
        return
    for found in facts.health["findings"]:
        yield Finding("fail" if found["severity"] == "fail" else "warn", f"{found['code']} {found['subject']}", found["message"], found["remedy"])
    codes: dict[str, list[str]] = {}
    for one in facts.health["unknown"]:
        codes.setdefault(one["message"], []).append(one["code"])
    for why, of in codes.items():
        yield Finding("unknown", ", ".join(of), why)
    if not facts.health["findings"] and not codes:
        yield Finding("ok", "health", "calls, packets and programs agree")
