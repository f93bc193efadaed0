"""The page as the agent serves it: complete, without a word from elsewhere, and no data without the token."""

from __future__ import annotations

import re
from pathlib import Path

import aiohttp
import pytest

from shunt import web
from tests.operator import stand_in
from tests.operator.stand_in import StandIn

FOLDER = Path(web.__file__).parent


@pytest.fixture(params=[None, "correct horse"])
async def served(request):
    api = stand_in.server(StandIn(), "127.0.0.1:0", request.param)
    await api.start()
    async with aiohttp.ClientSession(f"http://{api.listen}") as session:
        yield session, request.param
    await api.close()


async def test_the_page_needs_no_token_and_its_data_does(served) -> None:
    session, token = served
    for path in sorted(web.PATHS):
        async with session.get(path) as answer:
            assert answer.status == 200 and len(await answer.text()) > 500, path
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    for path in ("/v1/status", "/v1/calls", "/v1/calls/first@x/history", "/metrics"):
        async with session.get(path) as answer:
            assert answer.status == (200 if token is None else 401), path
        async with session.get(path, headers={"Authorization": f"Bearer {token}"}) as answer:
            assert answer.status == 200, path


async def test_everything_that_the_page_names_is_served(served) -> None:
    session, _ = served
    async with session.get("/") as answer:
        page = await answer.text()
    for path in re.findall(r'(?:src|href)="(/[^"]+)"', page):
        async with session.get(path) as answer:
            assert answer.status == 200, path


async def test_a_name_that_points_here_is_refused_without_a_token(served) -> None:
    """DNS rebinding: a page elsewhere must not read calls by way of a name of its own."""
    session, token = served
    async with session.get("/", headers={"Host": "evil.example:8077"}) as answer:
        assert answer.status == (403 if token is None else 200)


@pytest.mark.parametrize("name", ["page.html", "page.css", "page.js", "ladder.js", "tiling.js"])
def test_nothing_comes_from_elsewhere_and_no_text_becomes_markup(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert not [url for url in re.findall(r"https?://[^\s\"'`)]+", text) if url != "http://www.w3.org/2000/svg"]
    for trap in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", 'onclick="', 'style="'):
        assert trap not in text, trap


def test_every_element_that_the_script_asks_for_is_on_the_page() -> None:
    page, script = (FOLDER / "page.html").read_text(), (FOLDER / "page.js").read_text()
    wanted = set(re.findall(r'\$\("([\w-]+)"\)', script))
    assert len(wanted) > 20 and wanted <= set(re.findall(r'id="([\w-]+)"', page))


def test_every_metric_that_the_page_reads_is_documented() -> None:
    documented = (FOLDER.parents[2] / "docs/metrics.md").read_text(encoding="utf-8")
    used = set(re.findall(r'"(shunt_\w+?)(?:_total|_count|_sum|_bucket)?"', (FOLDER / "page.js").read_text()))
    missing = {name for name in used if f"`{name}" not in documented}
    assert used and not missing, missing
