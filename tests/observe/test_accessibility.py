"""The page in a real browser against axe-core's rules: overview, one call, and the question for the token; light and dark, desktop and phone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.axe import violations
from tests.lab.browser import CHROMIUM, Browser, missing
from tests.lab.processes import ROOT, Process
from tests.lab.topology import Topology

_LACKING = "; ".join(filter(None, (missing(CHROMIUM), "" if os.geteuid() == 0 else "needs root")))
pytestmark = [pytest.mark.netns, pytest.mark.skipif(bool(_LACKING), reason=_LACKING)]

PORT, TOKEN = 8077, "correct-horse"
SERVE = f"""
import asyncio
from tests.operator import stand_in
async def serve():
    api = stand_in.server(stand_in.StandIn(), "127.0.0.1:{PORT}", "{TOKEN}")
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
