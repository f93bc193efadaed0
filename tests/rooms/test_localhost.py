"""Two browsers on the operator daemon's own host, over localhost without TLS: a secure context too. And only two in a room, whose media has no tree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.axe import violations
from tests.lab.party import await_that
from tests.rooms import pictures
from tests.rooms.lab import RoomLab, hears, lobby, report, room_lab, sees

pytestmark = [pytest.mark.netns, pytest.mark.e2e, pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("programs"), pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RoomLab]:
    with room_lab(tmp_path, tls=False) as made:
        yield made
        print(made.diagnosis())


def test_two_on_localhost(room: RoomLab) -> None:
    ann, bob = room.browser("edge", "ann"), room.browser("edge", "bob")
    for whose, browser in enumerate((ann, bob), 1):
        lobby(browser, room.link("board")["page"])
        assert browser.evaluate("isSecureContext")
        assert violations(browser) == []
        pictures.show(browser, whose)
        browser.click("#join")
        browser.await_that("Boolean(room.session?.path)")
        pictures.watch(browser)
    for me, other in ((ann, bob), (bob, ann)):
        sees(me, other.name)
        hears(me, other.name)
        pictures.await_frames(me, other.name)
        assert pictures.watched(me)[f"{other.name}/video"]["corrupt"] == 0
    assert room.conference("board")["design"] == "two-party"
    assert violations(ann) == []
    # Who comes again sees a picture at once: the request for a key frame finds its way without a tree. A name is in any script, and normalised.
    bob.click("#leave")
    assert await_that(lambda: room.names("board") == ["ann"])
    bob.evaluate("void (document.querySelector('#name').value = 'שרה An\\u202en')")
    bob.click("#join")
    bob.await_that("document.querySelector('#trouble').textContent.includes('direction of writing') && !document.querySelector('#join').disabled")
    bob.evaluate("void (document.querySelector('#name').value = 'שרה Zoe\\u0308')")
    bob.click("#join")
    sees(bob, "ann")
    sees(ann, "Zoe")
    assert room.names("board") == ["ann", "שרה Zoë"]
    assert ann.evaluate("[...document.querySelectorAll('.tile .name bdi')].map((one) => one.textContent)") == ["ann", "שרה Zoë"]
    bob.resize(390, 780)
    # Nothing is cut off on a phone, and buttons are large enough for a thumb.
    bob.await_that("document.documentElement.scrollWidth <= innerWidth && [...document.querySelectorAll('#controls button')].every((one) => one.offsetHeight >= 40)")
    bob.evaluate("void document.dispatchEvent(new KeyboardEvent('keydown', { key: 'm', bubbles: true }))")
    assert bob.evaluate("document.querySelector('#mute').getAttribute('aria-pressed')") == "true"
    assert report(bob)["lost"] == 0
