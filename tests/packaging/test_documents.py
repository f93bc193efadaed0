"""The documents name what the code has."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_reason_is_in_the_documents() -> None:
    code = (ROOT / "crates/calls/src/reason.rs").read_text(encoding="utf-8")
    reasons = re.findall(r'^    [A-Z]\w+ "([a-z-]+)" "', code, re.MULTILINE)
    assert "contested" in reasons and len(reasons) > 20, "reason.rs has another form"
    text = (ROOT / "docs/reasons.md").read_text(encoding="utf-8")
    assert [reason for reason in reasons if f"`{reason}`" not in text] == []


def test_every_page_is_in_the_navigation() -> None:
    """mkdocs shows others only to who knows their address."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))
    assert [page for page in pages if f"- {page}\n" not in navigation] == []
