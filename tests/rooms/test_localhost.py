"""opensips-config/rooms.yaml as it is shipped: two browsers on the operator daemon's own host, over localhost without TLS, then a phone. No SIP server, no relay.

Two in a room have no tree.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.axe import violations
from tests.lab.browser import Browser
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


def without_video(bob: Browser, ann: Browser) -> None:
    """A browser without the room's video codec comes in with audio, is told why in words, and asks for no more lines of video."""
    bob.click("#leave")
    bob.evaluate("void (Session.prototype.plain = Session.prototype.offer)")
    bob.evaluate(
        "void (Session.prototype.offer = async function () { const given = await this.plain(); return { ...given, offer: given.offer.replace(/(VP8|VP9|H264|AV1)\\/90000/g, 'other/90000') }; })"
    )
    bob.click("#join")
    bob.await_that("document.querySelector('#notice').textContent === \"This room's video is VP8. Your browser does not have it, so you take part with audio only.\"")
    hears(bob, "ann")
    hears(ann, "Zoe")
    assert violations(bob) == []
    lines = bob.evaluate("room.session.pc.getTransceivers().length")
    bob.click("#camera")
    bob.click("#mute")
    ann.await_that("document.querySelector('.tile:not(.me) .badge').textContent.endsWith('muted')")
    assert bob.evaluate("room.session.pc.getTransceivers().length") == lines
    assert bob.evaluate("[room.report().lost, room.report().trouble]") == [0, ""]


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
    # A microphone that is muted while its page joins is shown muted.
    bob.evaluate("void (document.querySelector('#join').click(), room.mute())")
    sees(bob, "ann")
    sees(ann, "Zoe")
    badge = "document.querySelector('.tile:not(.me) .badge').textContent"
    ann.await_that(f"{badge} === 'muted'")
    bob.click("#mute")
    ann.await_that(f"{badge} === ''")
    assert room.names(NAME) == BROWSERS
    assert ann.evaluate("[...document.querySelectorAll('.tile .name bdi')].map((one) => one.textContent)") == BROWSERS
    bob.resize(390, 780)
    # Nothing is cut off on a phone, and buttons are large enough for a thumb.
    bob.await_that("document.documentElement.scrollWidth <= innerWidth && [...document.querySelectorAll('#controls button')].every((one) => one.offsetHeight >= 40)")
    bob.evaluate("void document.dispatchEvent(new KeyboardEvent('keydown', { key: 'm', bubbles: true }))")
    assert bob.evaluate("document.querySelector('#mute').getAttribute('aria-pressed')") == "true"
    ann.await_that(f"{badge} === 'muted'")
    # Another microphone is muted as the one before was.
    device = "(() => { const list = document.querySelector('#audio-input'); list.selectedIndex = list.length - 1; list.dispatchEvent(new Event('change')); return list.value; })()"
    bob.click("#choose")
    assert violations(bob) == []
    chosen = bob.evaluate(device)
    bob.await_that(f"room.tracks.audio?.getSettings().deviceId === {json.dumps(chosen)} && room.tracks.audio.enabled === false")
    # The browser's choice takes the place of one that is gone.
    bob.evaluate("void room.choose('audio', 'gone')")
    bob.await_that("room.chosen.audio === '' && room.tracks.audio?.readyState === 'live' && room.tracks.audio.enabled === false")
    bob.click("#mute")
    ann.await_that(f"{badge} === ''")
    # A shared screen is the largest tile, and the first.
    bob.click("#screen")
    area = "[...document.querySelectorAll('.tile')].map((one) => one.offsetWidth * one.offsetHeight)"
    ann.await_that("(room.report().lines['Zoe/screen']?.frames ?? 0) > 3")
    for size in ((1280, 800), (390, 780), (1900, 1000)):
        ann.resize(*size)
        ann.await_that(f"(() => {{ const all = {area}; const wide = document.querySelector('.tile.wide'); return all.length === 3 && wide.offsetWidth * wide.offsetHeight === Math.max(...all); }})()")
        ann.await_that("document.querySelector('.tile.wide').offsetTop <= Math.min(...[...document.querySelectorAll('.tile')].map((one) => one.offsetTop))")
    assert violations(ann) == []
    bob.click("#screen")
    ann.await_that("document.querySelector('.tile.wide') === null")
    without_video(bob, ann)
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
