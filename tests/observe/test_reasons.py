"""The words of reasons: one source, which the agent, the commands and the documents share."""

from __future__ import annotations

import re

from shunt.calls.reasons import REASONS
from tests.lab.processes import ROOT


def test_commands_have_the_agents_words() -> None:
    text = (ROOT / "crates/calls/calls/src/reason.rs").read_text()
    assert dict(re.findall(r'^    \w+ "([a-z0-9-]+)" "(.*)";$', text, re.MULTILINE)) == REASONS


def test_the_documents_list_every_reason_once() -> None:
    rows = [line for line in (ROOT / "docs/reasons.md").read_text().splitlines() if line.startswith("| `")]
    listed = [reason for row in rows for reason in re.findall(r"`([a-z0-9-]+)`", row.split(" | ")[0])]
    assert sorted(listed) == sorted(REASONS)
