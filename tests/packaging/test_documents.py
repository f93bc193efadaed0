"""The documents name what the code has."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_reason_is_in_the_documents() -> None:
    code = (ROOT / "crates/calls/calls/src/reason.rs").read_text(encoding="utf-8")
    reasons = re.findall(r'^    [A-Z]\w+ "([a-z-]+)" "', code, re.MULTILINE)
    assert "contested" in reasons and len(reasons) > 20, "reason.rs has another form"
    text = (ROOT / "docs/reasons.md").read_text(encoding="utf-8")
    assert [reason for reason in reasons if f"`{reason}`" not in text] == []


def test_every_page_is_in_the_navigation() -> None:
    """mkdocs shows others only to who knows their address."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))
    assert [page for page in pages if f"- {page}\n" not in navigation] == []


def test_the_title_of_every_page_is_the_question_that_it_answers() -> None:
    titles = {page.name: page.read_text(encoding="utf-8").split("\n", 1)[0] for page in (ROOT / "docs").rglob("*.md")}
    assert [f"{name}: {title}" for name, title in titles.items() if not (title.startswith("# ") and title.endswith("?"))] == []


def test_no_type_or_lint_error_is_passed_over_without_a_reason() -> None:
    wrong = []
    for source in sorted((ROOT / "operator").rglob("*.py")):
        lines = enumerate(source.read_text(encoding="utf-8").splitlines(), 1)
        wrong += [f"{source.name}:{number}" for number, line in lines if re.search(r"# (noqa|type: ignore)(?!.*  # \w)", line)]
    assert wrong == []
