"""Accessibility of a page in a real browser, by axe-core's rules (WCAG 2 A and AA, and its best practices)."""

from __future__ import annotations

import json
from importlib.resources import files

from tests.lab.browser import Browser


def violations(browser: Browser) -> list[str]:
    """What the page that is shown does against axe-core's rules: rule, what it is, and the elements."""
    browser.evaluate(f"void (() => {{ {files('axe_core_python').joinpath('axe.min.js').read_text(encoding='utf-8')} }}).call(window)")
    found = browser.evaluate("axe.run(document, { resultTypes: ['violations'] }).then((one) => ({ passes: one.passes.length, violations: one.violations }))")
    assert found["passes"] > 10, "the page was looked at"
    return [f"{one['id']} ({one['impact']}): {one['help']}: {json.dumps([node['html'][:120] for node in one['nodes']])}" for one in found["violations"]]
