"""opensips-config/rooms.yaml as it is shipped: two browsers on the operator daemon's own host, over localhost without TLS, then a phone. No SIP server, no relay.

Two in a room have no tree.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.axe import violations
from tests.conference_control.lab import Phone
from tests.lab.party import await_that
from tests.lab.processes import ROOT
from tests.packaging import pages
from tests.rooms import pictures
from tests.rooms.lab import FileLab, file_lab, hears, lobby, report, sees

pytestmark = [pytest.mark.netns, pytest.mark.e2e, pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("programs"), pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


NAME = "conf-board"
BROWSERS = ["ann", "שרה Zoë"]


@pytest.fixture
def room(tmp_path: Path) -> Iterator[FileLab]:
    with file_lab(tmp_path) as made:
        yield made
        print(made.diagnosis())


def test_two_on_localhost(room: FileLab) -> None:
    ann, bob = room.browser("edge", "ann"), room.browser("edge", "bob")
    for whose, browser in enumerate((ann, bob), 1):
        lobby(browser, room.link(NAME)["page"])
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
    assert room.conference(NAME)["design"] == "two-party"
    assert violations(ann) == []
    # Who comes again sees a picture at once: the request for a key frame finds its way without a tree. A name is in any script, and normalised.
    bob.click("#leave")
    assert await_that(lambda: room.names(NAME) == ["ann"])
    bob.evaluate("void (document.querySelector('#name').value = 'שרה An\\u202en')")
    bob.click("#join")
    bob.await_that("document.querySelector('#trouble').textContent.includes('direction of writing') && !document.querySelector('#join').disabled")
    bob.evaluate("void (document.querySelector('#name').value = 'שרה Zoe\\u0308')")
    bob.click("#join")
    sees(bob, "ann")
    sees(ann, "Zoe")
    assert room.names(NAME) == BROWSERS
    assert ann.evaluate("[...document.querySelectorAll('.tile .name bdi')].map((one) => one.textContent)") == BROWSERS
    bob.resize(390, 780)
    # Nothing is cut off on a phone, and buttons are large enough for a thumb.
    bob.await_that("document.documentElement.scrollWidth <= innerWidth && [...document.querySelectorAll('#controls button')].every((one) => one.offsetHeight >= 40)")
    bob.evaluate("void document.dispatchEvent(new KeyboardEvent('keydown', { key: 'm', bubbles: true }))")
    assert bob.evaluate("document.querySelector('#mute').getAttribute('aria-pressed')") == "true"
    assert report(bob)["lost"] == 0
    commands = pages.commands("docs/start/rooms.md")
    assert len(commands) == 4, "three for the browsers, one for a telephone"
    telephone = commands[3].replace("ip netns exec shunt-edge", f"ip netns exec {room.topology.name('media')}").replace("/usr/share/shunt/sipp-scenarios", str(ROOT / "sipp-scenarios"))
    sipp = subprocess.Popen(["bash", "-c", f"{telephone} -nostdin"], stdout=subprocess.DEVNULL)
    hears(ann, "guest1")
    assert sipp.wait(120) == 0
    phone = Phone(room, "media", "1001", display="王 小明", ip="10.200.0.2", focus="10.200.0.1")
    phone.party.payload_type = 0
    assert phone.call(NAME) == 200
    hears(ann, "1001")
    assert await_that(lambda: len(phone.party.got) == 2), "it hears both browsers"
    assert room.names(NAME) == [*BROWSERS, "王 小明"]
    assert phone.bye() == 200
    assert await_that(lambda: room.names(NAME) == BROWSERS)
    assert room.ask("GET", "/v1/health")["findings"] == [], "without a relay nothing is missing"
