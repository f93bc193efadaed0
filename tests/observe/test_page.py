"""The operator's page in a real browser, over the operator daemon's own view and API: list, order, report, ladder, and what it shows while agent or operator daemon are dead."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.lab.axe import violations
from tests.lab.browser import CHROMIUM, Browser
from tests.lab.needs import need
from tests.lab.processes import ROOT, Process, work_folder
from tests.lab.topology import Topology
from tests.observe.served import ARABIC, CHINESE, HOSTILE_FROM, HOSTILE_ID, LOSSY, SIX, UNKNOWN, WELL

need(CHROMIUM)
pytestmark = pytest.mark.netns

PORT = 8077
SIZES = pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 780)], ids=["desktop", "phone"])
ROWS = "[...document.querySelectorAll('#calls tbody tr')]"
# Boxes of elements as [left, top, right, bottom].
BOXES = "[...document.querySelectorAll(%s)].map((one) => one.getBoundingClientRect()).map((box) => [box.left, box.top, box.right, box.bottom])"


class Page:
    """The page in a browser, and what serves it."""

    def __init__(self, topology: Topology, work: Path) -> None:
        self._work = work
        env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"}
        self.server = Process(topology, "edge", "operator", [sys.executable, "-m", "tests.observe.served", str(PORT), str(work)], work / "operator.log", env)
        self.browser = Browser(topology, "edge", "reader", CHROMIUM, work)

    def flag(self, name: str, on: bool) -> None:
        """away: the agent is dead; draining: it drains."""
        (self._work / name).touch() if on else (self._work / name).unlink(missing_ok=True)

    def serve(self) -> None:
        """Start what serves the page."""
        self.server.start()
        self.server.await_listening("tcp", PORT)

    def open(self, behind: str = "") -> None:
        """Load the page anew, at a call or conference, and wait until it shows something."""
        self.browser.open(f"http://127.0.0.1:{PORT}/{behind}")
        self.browser.await_that("['overview', 'call', 'conference', 'nothing'].some((id) => !document.getElementById(id).hidden)")

    def go(self, behind: str) -> None:
        """Follow a link of the page."""
        self.browser.evaluate(f"void (location.hash = {json.dumps(behind)})")
        kind = "conference" if behind.startswith("/conferences/") else "call" if behind else "overview"
        self.browser.await_that(f"!document.getElementById('{kind}').hidden")

    def call(self, call_id: str) -> None:
        """Go to a call, and wait for its ladder."""
        self.go(quote(call_id, safe=""))
        self.browser.await_that(f"document.getElementById('call-id').textContent.startsWith({json.dumps(call_id[:6])}) && document.querySelectorAll('#ladder .event').length > 0")

    def text(self, selector: str) -> str:
        """The text of what is shown of an element."""
        found: str = self.browser.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def boxes(self, selector: str) -> list[list[float]]:
        found: list[list[float]] = self.browser.evaluate(BOXES % json.dumps(selector))
        return found

    def picture(self, name: str, of: str = "header") -> None:
        """For whoever looks at it after the run."""
        self.browser.evaluate(f"void document.querySelector({json.dumps(of)}).scrollIntoView()")
        self.browser.picture(self._work / f"{name}.png")

    def check(self) -> None:
        """What holds for everything that is shown: accessible, not wider than the screen, no words of the machine room."""
        assert violations(self.browser) == []
        assert self.browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the screen"
        text = self.text("body")
        assert not [word for word in (".sock", "unix:", "undefined", "NaN", "[object", "TypeError", "null", "Traceback", "_s:") if word in text], text


@pytest.fixture(scope="module")
def shown() -> Iterator[Page]:
    with Topology("page") as topology:
        page = Page(topology, work_folder("page"))
        try:
            page.serve()
            page.browser.start()
            yield page
        finally:
            page.browser.close()
            page.server.stop()


@pytest.fixture
def page(shown: Page, width: int, height: int) -> Iterator[Page]:
    """With agent and operator daemon well."""
    shown.browser.resize(width, height)
    yield shown
    for flag in ("away", "draining"):
        shown.flag(flag, False)
    if shown.server.alive:
        os.kill(shown.server.pid, signal.SIGCONT)
    else:
        shown.serve()


def row(page: Page, call_id: str) -> dict[str, Any]:
    """The cells of a call of the list: {label: [text, tooltip]}."""
    found: dict[str, Any] = page.browser.await_that(
        f"(() => {{ const row = {ROWS}.find((one) => one.querySelector('a').hash === '#' + encodeURIComponent({json.dumps(call_id)}));"
        " return row && Object.fromEntries([...row.cells].map((cell) => [cell.dataset.label, [cell.innerText, cell.querySelector('[title]')?.title]])); })()"
    )
    return found


@SIZES
def test_the_list_says_who_calls_whom(page: Page, width: int) -> None:
    page.open("?sort=mos")
    for call_id, caller, callee in ((LOSSY, ARABIC, CHINESE), (WELL, "sip:alice@example.net", "sip:bob@example.net")):
        cells = row(page, call_id)
        assert cells["From"][1] == caller and caller in cells["From"][0] and cells["To"][1] == callee and callee in cells["To"][0]
        assert "192.0.2.2:6000" in cells["From"][0] and cells["Call-ID"][1] == call_id
    assert page.browser.evaluate("[...document.querySelectorAll('#calls bdi')].every((one) => getComputedStyle(one).unicodeBidi === 'isolate')")
    assert page.browser.evaluate("(({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth)(document.querySelector('section:has(#calls)'))"), "every column is on the screen"
    page.picture(f"list-{width}", "#calls")
    page.check()
    page.open(f"?match={UNKNOWN}")
    cells = row(page, UNKNOWN)
    assert cells["From"][0].startswith("unknown") and cells["To"][0].startswith("unknown") and cells["Loss, jitter, MOS"][0].startswith("–, –, –")


@SIZES
def test_what_a_stranger_writes_stays_text(page: Page, width: int) -> None:
    page.open("?sort=mos")
    cells = row(page, HOSTILE_ID)
    assert "\\u202e" in cells["From"][1] and "a" * 300 in cells["From"][1] and "x" * 300 in cells["Call-ID"][1], "the tooltip has the whole of it"
    page.check()
    page.call(HOSTILE_ID)
    assert "<script>" in page.text("#signalled") and "\\u202e" in page.text("#call-id")
    page.browser.click("#copy")
    page.browser.await_that("document.getElementById('report').value.includes('onerror')")
    page.picture(f"hostile-{width}")
    page.check()
    shown = page.browser.evaluate("document.documentElement.outerHTML + document.getElementById('report').value")
    assert "\u202e" not in shown and "\u2066" not in shown
    assert page.browser.evaluate("document.title") == "Shunt" and not page.browser.evaluate("document.querySelectorAll('main img, main script').length")
    assert HOSTILE_FROM[:20] in page.text("#signalled")


def figures(page: Page) -> list[float | None]:
    """The MOS of each row."""
    texts = page.browser.evaluate(ROWS + ".map((one) => one.querySelector('[data-label^=Loss]').firstChild.textContent.split(', ').at(-1))")
    return [None if text == "–" else float(text) for text in texts]


@SIZES
def test_the_worst_calls_come_first_and_the_address_keeps_it(page: Page) -> None:
    page.open()
    page.browser.evaluate("void (() => { const order = document.getElementById('order'); order.value = 'mos'; order.dispatchEvent(new Event('change')); })()")
    page.browser.await_that(f"{ROWS}[0]?.innerText.includes('lossy') && document.getElementById('figures').ariaSort === 'ascending'")
    assert page.browser.evaluate("location.search") == "?sort=mos"
    page.browser.evaluate("window.former = true, void location.reload()")
    page.browser.await_that(f"!window.former && document.readyState === 'complete' && {ROWS}[0]?.innerText.includes('lossy')")
    assert page.browser.evaluate("document.getElementById('order').value") == "mos"
    found = figures(page)
    page.browser.click("#newer")
    page.browser.await_that(f"{ROWS}.at(-1).innerText.includes('past-hep')")
    found += figures(page)
    known = [mos for mos in found if mos is not None]
    assert known == sorted(known) and known[0] < known[-1] and found[: len(known)] == known and found[-1] is None
    page.call(WELL)
    page.go("")
    assert page.browser.evaluate("location.search") == "?sort=mos"
    page.check()


@SIZES
def test_a_report_is_copied_and_shown(page: Page, width: int) -> None:
    page.open(f"#{quote(LOSSY)}")
    page.browser.await_that("!document.getElementById('call').hidden")
    page.browser.evaluate("void Object.defineProperty(navigator, 'clipboard', { configurable: true, value: { writeText: async (text) => { window.copied = text; } } })")
    page.browser.click("#copy")
    text = page.browser.await_that("document.getElementById('copied').textContent === 'The report is copied.' && window.copied")
    assert text == page.browser.evaluate("document.getElementById('report').value")
    for part in (
        LOSSY,
        ARABIC,
        CHINESE,
        "Began 2026-11-24T12:08:08",
        "200",
        "8.00 %",
        "jitter 0.50 ms",
        "MOS ",
        "!! 8.0 % of the caller's packets were lost",
        "Host",
        "offloaded for",
        "reason offloaded",
        "INVITE",
    ):
        assert part in text, part
    page.picture(f"report-{width}")
    page.check()


@SIZES
@pytest.mark.parametrize("allowed", [True, False])
def test_without_rights_to_the_clipboard_the_report_is_selected(page: Page, allowed: bool) -> None:
    """As without TLS: there is no clipboard, and perhaps the old way to copy."""
    page.open(f"#{quote(WELL)}")
    page.browser.await_that("!document.getElementById('call').hidden")
    page.browser.evaluate(f"void (Object.defineProperty(navigator, 'clipboard', {{ configurable: true, value: undefined }}), document.execCommand = () => {json.dumps(allowed)})")
    page.browser.click("#copy")
    page.browser.await_that(f"document.getElementById('copied').textContent.includes({json.dumps('is copied' if allowed else 'copy it from here')})")
    assert page.browser.evaluate("(({ value, selectionStart, selectionEnd }) => selectionStart === 0 && selectionEnd === value.length && value.length > 500)(document.getElementById('report'))")


def marked(page: Page, who: str) -> None:
    """Wait for the mark of what is not of now, and see that it grows older."""
    page.browser.await_that(f"!document.getElementById('old').hidden && document.getElementById('old').innerText.includes({json.dumps(who)})")
    age = page.text("#old-age")
    assert "last known state" in age and " old." in age
    page.browser.await_that(f"document.getElementById('old-age').innerText !== {json.dumps(age)}")
    assert page.browser.evaluate("document.getElementById('old').getBoundingClientRect().bottom < innerHeight"), "the mark is in view"


def unmarked(page: Page) -> None:
    page.browser.await_that("document.getElementById('old').hidden && document.getElementById('trouble').hidden")


@SIZES
def test_a_page_that_is_open_keeps_what_it_knew_of_a_dead_agent(page: Page, width: int) -> None:
    page.open("?sort=mos")
    before = row(page, LOSSY)
    page.call(LOSSY)
    diagnosis = page.text("#diagnosis")
    page.go("/conferences/hall%2F1%20b")
    page.go("")
    page.flag("away", True)
    marked(page, "The agent does not answer")
    assert row(page, LOSSY)["Loss, jitter, MOS"] == before["Loss, jitter, MOS"]
    page.picture(f"agent-dead-{width}")
    page.check()
    page.call(LOSSY)
    marked(page, "The agent does not answer")
    assert page.text("#diagnosis") == diagnosis
    page.browser.click("#copy")
    page.browser.await_that("document.getElementById('report').value.startsWith('The agent does not answer. This is the last known state')")
    page.go("/conferences/hall%2F1%20b")
    marked(page, "The agent does not answer")
    page.browser.await_that("document.querySelectorAll('#streams li').length === 8")
    page.check()
    page.flag("away", False)
    unmarked(page)


@SIZES
def test_a_page_that_is_opened_later_shows_what_events_told_of_a_dead_agent(page: Page, width: int) -> None:
    page.flag("away", True)
    page.open(f"?match={quote(WELL)}")
    marked(page, "The agent does not answer")
    cells = row(page, WELL)
    assert "sip:alice@example.net" in cells["From"][0] and "192.0.2.2:6000" in cells["From"][0] and "198.51.100.3:7000" in cells["To"][0]
    assert cells["Streams"][0].split() == ["caller", "offloaded", "callee", "offloaded"] and "–, –, –" in cells["Loss, jitter, MOS"][0], "figures are not told by events"
    assert page.browser.evaluate("[...document.querySelectorAll('#rooms tbody tr')].map((one) => [...one.cells].map((cell) => cell.innerText).join())") == ["hall/1 b,–,2"]
    page.picture(f"agent-dead-later-{width}", "#calls")
    page.check()
    page.browser.evaluate("void (() => { const state = document.getElementById('state'); state.value = 'problems'; state.dispatchEvent(new Event('change')); })()")
    page.browser.await_that("document.getElementById('trouble').innerText.includes('The agent does not answer')")
    assert page.browser.evaluate(ROWS + ".length") == 0 and page.text("#total") == "", "which calls have problems now is not known"
    page.call(WELL)
    marked(page, "The agent does not answer")
    assert "unknown" in page.text("#parties") and "the last known state follows" in page.text("#diagnosis")
    page.picture(f"agent-dead-call-{width}")
    page.check()
    page.go("/conferences/hall%2F1%20b")
    marked(page, "The agent does not answer")
    assert page.browser.evaluate("[...document.querySelectorAll('#members tbody tr')].map((one) => one.innerText.split(/\\s+/).join())") == ["ann,unknown,unknown", "fay,unknown,unknown"]
    page.check()


@SIZES
def test_a_page_that_waits_says_so(page: Page) -> None:
    """What is selected to be copied stays, and grows old."""
    page.open(f"#{quote(WELL)}")
    page.browser.await_that("!document.getElementById('call').hidden")
    page.browser.evaluate("void getSelection().selectAllChildren(document.getElementById('call-id'))")
    marked(page, "The page waits while text is selected")
    page.browser.evaluate("void getSelection().removeAllRanges()")
    unmarked(page)


@SIZES
def test_of_an_agent_that_never_answered_nothing_is_known(page: Page) -> None:
    page.server.kill()
    page.flag("away", True)
    page.serve()
    page.open()
    page.browser.await_that("!document.getElementById('nothing').hidden && document.getElementById('trouble').innerText === 'The agent has not answered yet: connection refused.'")
    page.check()
    page.flag("away", False)
    page.browser.await_that(f"document.getElementById('nothing').hidden && {ROWS}.length > 2")
    unmarked(page)


@SIZES
@pytest.mark.parametrize("fate", ["killed", "hung"])
def test_the_page_goes_on_without_the_operator_daemon(page: Page, width: int, fate: str) -> None:
    page.open("?sort=mos")
    row(page, LOSSY)
    page.call(LOSSY)
    page.go("/conferences/tower")
    page.go("")
    row(page, LOSSY)
    if fate == "killed":
        page.server.kill()
    else:
        os.kill(page.server.pid, signal.SIGSTOP)
    marked(page, "The operator daemon does not answer")
    assert "8.0 %" in row(page, LOSSY)["Loss, jitter, MOS"][0]
    page.picture(f"operator-{fate}-{width}", "#calls")
    page.check()
    page.call(LOSSY)
    marked(page, "The operator daemon does not answer")
    page.browser.click("#copy")
    page.browser.await_that("document.getElementById('report').value.includes('8.00 %')")
    page.go("/conferences/tower")
    page.browser.await_that("document.querySelectorAll('#streams li').length === 6")
    page.browser.evaluate("void (location.hash = 'never-seen')")
    page.browser.await_that("!document.getElementById('nothing').hidden && document.getElementById('trouble').innerText.includes('The operator daemon does not answer')")
    page.check()
    if fate == "killed":
        page.serve()
    else:
        os.kill(page.server.pid, signal.SIGCONT)
    page.go("")
    unmarked(page)


@SIZES
def test_the_ladder_is_read_without_scrolling_sideways(page: Page, width: int) -> None:
    page.open()
    for call_id in (SIX, LOSSY):
        page.call(call_id)
        page.picture(f"ladder-{call_id[:3]}-{width}", "#ladder")
        assert page.browser.evaluate("(({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth)(document.getElementById('ladder'))")
        left, _, right, _ = page.boxes("#ladder")[0]
        words = page.boxes("#ladder :is(.label, .words, .pill-text, .time, .when, .lane-name, .gap)")
        assert len(words) > 15 and all(left <= word[0] and word[2] <= right + 0.5 for word in words), "no label is cut off"
        overlapping = [(a, b) for n, a in enumerate(words) for b in words[n + 1 :] if min(a[2], b[2]) - max(a[0], b[0]) > 1 and min(a[3], b[3]) - max(a[1], b[1]) > 3]
        assert not overlapping
        arrows = page.boxes("#ladder line.arrow")
        assert len(arrows) >= 8 and all(arrow[2] - arrow[0] >= 40 for arrow in arrows)
        assert page.browser.evaluate("[...document.querySelectorAll('#ladder text')].every((one) => parseFloat(getComputedStyle(one).fontSize) >= 11)")
        assert "INVITE" in page.text("#ladder") and page.text("#ladder p").startswith("Caller ")
        page.check()


@SIZES
def test_the_ladder_is_used_with_the_keyboard(page: Page) -> None:
    page.open(f"#{quote(LOSSY)}")
    page.browser.await_that("document.querySelectorAll('#ladder .event').length > 5")
    page.browser.evaluate("void document.querySelectorAll('#ladder .event')[3].focus()")
    press = "void document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))"
    page.browser.evaluate(press)
    page.browser.await_that("document.querySelector('#ladder foreignObject div')?.innerText.includes('2026-11-24')")
    box, inner = page.boxes("#ladder foreignObject")[0], page.boxes("#ladder foreignObject div")[0]
    assert inner[3] <= box[3] + 1, "the whole text has room"
    assert page.browser.evaluate("document.activeElement.dataset.row") == "3" and page.browser.evaluate("document.activeElement.ariaExpanded") == "true"
    page.check()
    page.browser.evaluate(press)
    page.browser.await_that("!document.querySelector('#ladder foreignObject')")


@SIZES
def test_draining_and_findings_are_on_top(page: Page, width: int) -> None:
    page.flag("draining", True)
    for behind in ("", f"#{quote(WELL)}", "#/conferences/tower"):
        page.open(behind)
        page.browser.await_that("document.getElementById('chips').innerText.includes('The agent drains: no new stream is offloaded.')")
        assert "draining for 4 s: 0 calls and 0 entries left" in page.text("#chips")
        assert page.boxes("#chips")[0][3] < 400 and page.boxes("header")[0][1] <= 1
        page.check()
    page.picture(f"draining-{width}")
    page.flag("away", True)
    page.browser.await_that("document.getElementById('chips').innerText.includes('The agent does not answer: connection refused.')")
    page.check()
