"""The page in a real browser against axe-core's rules: overview, one call, one conference with tiled video, and the question for the token; light and dark, desktop and phone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.axe import violations
from tests.lab.browser import CHROMIUM, Browser
from tests.lab.needs import need
from tests.lab.processes import ROOT, Process
from tests.lab.topology import Topology

need(CHROMIUM)
pytestmark = pytest.mark.netns

PORT, TOKEN = 8077, "correct-horse"
SERVE = f"""
import asyncio
from tests.operator import stand_in, tiled
async def serve():
    view = stand_in.StandIn()
    view.conferences = tiled.Conferences()
    api = stand_in.server(view, "127.0.0.1:{PORT}", "{TOKEN}")
    await api.start()
    await asyncio.Event().wait()
asyncio.run(serve())
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    work: Path = tmp_path_factory.mktemp("page")
    with Topology("axe") as topology:
        server = Process(topology, "edge", "page", [sys.executable, "-c", SERVE], work / "page.log", {"PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"}).start()
        browser = Browser(topology, "edge", "reader", CHROMIUM, work)
        try:
            server.await_listening("tcp", PORT)
            browser.start().open(f"http://127.0.0.1:{PORT}/")
            yield browser
        finally:
            browser.close()
            server.stop()


def test_the_question_for_the_token(page: Browser) -> None:
    page.await_that("!document.querySelector('#token').hidden")
    assert violations(page) == []
    page.evaluate(f"void (document.querySelector('#token-text').value = '{TOKEN}')")
    page.click("#token button")
    page.await_that("!document.querySelector('#overview').hidden && document.querySelectorAll('#calls tbody tr').length > 2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 780)])
def test_overview_and_a_call(page: Browser, scheme: str, width: int, height: int) -> None:
    page.resize(width, height)
    page.prefer(scheme)
    page.evaluate("void (location.hash = '')")
    page.await_that("!document.querySelector('#overview').hidden && document.querySelectorAll('#calls tbody tr').length > 2")
    assert violations(page) == []
    page.evaluate("void [...document.querySelectorAll('#calls tbody a')].find((one) => one.textContent === 'first@x').click()")
    page.await_that("!document.querySelector('#call').hidden && document.querySelector('#diagnosis').textContent.length > 10")
    assert violations(page) == []


def layout(page: Browser) -> list[list[str]]:
    """The words of each stream's tiles, in the order in which a screen reader says them."""
    found: list[list[str]] = page.evaluate("[...document.querySelectorAll('#streams ol')].map((one) => [...one.children].map((tile) => [...tile.children].map((part) => part.textContent).join(' ')))")
    return found


def corners(page: Browser) -> list[list[list[int]]]:
    """Where each tile is on the page: its row and column among those of its stream."""
    found: list[list[list[int]]] = page.evaluate(
        "[...document.querySelectorAll('#streams ol')].map((one) => { const boxes = [...one.children].map((tile) => tile.getBoundingClientRect());"
        " const order = (key) => [...new Set(boxes.map((box) => Math.round(box[key])))].sort((a, b) => a - b);"
        " const [tops, lefts] = [order('top'), order('left')]; return boxes.map((box) => [tops.indexOf(Math.round(box.top)), lefts.indexOf(Math.round(box.left))]); })"
    )
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 780)])
def test_tiled_video_of_a_conference(page: Browser, scheme: str, width: int, height: int) -> None:
    page.resize(width, height)
    page.prefer(scheme)
    page.evaluate("void (location.hash = '')")
    page.await_that("!document.querySelector('#overview').hidden && document.querySelectorAll('#rooms tbody a').length === 4")
    page.evaluate("void [...document.querySelectorAll('#rooms tbody a')].find((one) => one.textContent === 'hall/1 b').click()")
    page.await_that("!document.querySelector('#conference').hidden && document.querySelector('#conference-name').textContent === 'hall/1 b'")
    assert layout(page) == [["0 ann", "1 bob no picture yet", "2 empty", "3 cem its bit stream cannot be read"], ["0 empty", "1 dora", "2 empty", "3 empty"]]
    assert corners(page) == [[[0, 0], [0, 1], [1, 0], [1, 1]]] * 2
    assert page.evaluate("[...document.querySelectorAll('#streams dl > *')].map((one) => one.textContent)") == ["eve", "its media are encrypted"]
    assert "made by mixer; got by ann, fay." in page.evaluate("document.querySelector('#tiling-line').textContent")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off on a phone"


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("tower", [[at % 3, at // 3] for at in range(6)]),  # two columns of three are joined
        ("screen", [[at // 3, at % 3] for at in range(9)]),  # tiles of 4:3, so three are side by side
    ],
)
def test_each_codec_has_its_shape(page: Browser, name: str, places: list[list[int]]) -> None:
    page.evaluate(f"void (location.hash = '/conferences/{name}')")
    page.await_that(f"document.querySelector('#conference-name').textContent === '{name}' && document.querySelectorAll('#streams li').length === {len(places)}")
    assert corners(page) == [places]
    assert violations(page) == []


def test_the_layout_follows_and_keeps_the_keyboard(page: Browser) -> None:
    """The grid is drawn anew when a tile is somebody else's, and who scrolls in it with the keyboard goes on doing so."""
    page.resize(390, 780)
    page.evaluate("void (location.hash = '/conferences/moving')")
    page.await_that("document.querySelector('#conference-name').textContent === 'moving' && document.querySelectorAll('#streams li').length === 9")
    page.evaluate("void document.querySelector('#streams .layouts').focus()")
    before = layout(page)
    page.evaluate("void (document.querySelector('#streams .layouts').scrollLeft = 8)")
    page.await_that(f"[...document.querySelectorAll('#streams li .who')].map((one) => one.textContent).join() !== {','.join(one.split(' ')[1] for one in before[0])!r}")
    assert page.evaluate("document.activeElement.className") == "layouts" and page.evaluate("document.activeElement.scrollLeft") == 8


def test_a_conference_without_tiles_and_one_that_is_over(page: Browser) -> None:
    for name, words in (("plain", "its video is not tiled"), ("gone", "There is no such conference any more.")):
        page.evaluate(f"void (location.hash = '/conferences/{name}')")
        page.await_that(f"document.querySelector('#conference-name').textContent === '{name}' && document.querySelector('#conference-line').textContent.includes({words!r})")
        assert page.evaluate("document.querySelector('#tiling').hidden")
        assert violations(page) == []
