"""The moving picture of the demo: each text stands in its row for its time, and the committed file is small and whole."""

from __future__ import annotations

from xml.etree import ElementTree

from bench import demo_picture
from tests.packaging.pages import ROOT

_TEXT = "{http://www.w3.org/2000/svg}text"
_ANIMATE = "{http://www.w3.org/2000/svg}animate"


def test_each_row_shows_one_text_at_a_time() -> None:
    screens = [(1.0, ["head", "a"]), (2.0, ["head", "b"]), (1.0, ["head", "a", "ok   done"])]
    assert sorted(demo_picture.runs(screens)) == [
        (0, 0.0, 4.0, "head"),
        (1, 0.0, 1.0, "a"),
        (1, 1.0, 3.0, "b"),
        (1, 3.0, 4.0, "a"),
        (2, 3.0, 4.0, "ok   done"),
    ]


def test_without_animation_the_last_screen_is_shown() -> None:
    picture = ElementTree.fromstring(demo_picture.draw([(1.0, ["<1>"]), (3.0, ["<2>", "FAIL one"])], "demo"))
    shown = [text.text for text in picture.iter(_TEXT) if text.get("visibility") != "hidden"]
    assert shown == ["<2>", "FAIL one"]
    times = {text.text: text.find(_ANIMATE).get("keyTimes") for text in picture.iter(_TEXT)}
    assert times == {"<1>": "0;0.0000;0.2500", "<2>": "0;0.2500;1.0000", "FAIL one": "0;0.2500;1.0000"}


def test_the_committed_picture_is_that_of_a_demo_whose_checks_held() -> None:
    text = (ROOT / "docs/img/demo.svg").read_text(encoding="utf-8")
    assert len(text.encode()) <= demo_picture.MAX_BYTES
    lines = [element.text or "" for element in ElementTree.fromstring(text).iter(_TEXT)]
    assert any(line.startswith("ok ") and "offloaded" in line for line in lines)
    assert not any(line.startswith("FAIL") for line in lines)
