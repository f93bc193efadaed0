"""JsSIP in Chromium and SIP.js in Firefox, as people have them, call a room by Kamailio and by OpenSIPS; a page and a SIP phone are in it.

Both send audio and video and get the others', over WebSockets in the clear (JsSIP) and over TLS (SIP.js), without REGISTER. `make setup-all` fetches the libraries from npm.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conference_control.lab import Phone, sip_server
from tests.lab.browser import CHROMIUM, FIREFOX, Browser
from tests.lab.party import await_that
from tests.lab.processes import ROOT, Process, opensips_modules
from tests.lab.topology import EDGE_IP
from tests.rooms.demo import ROOM, enter
from tests.rooms.lab import RoomLab, report, room_lab

LIBRARIES = ROOT / "build" / "sip-agents"
PAGE = ROOT / "tests" / "rooms" / "sip"
_PORT = 8099
_FETCHED = all((LIBRARIES / name).exists() for name in ("jssip.js", "sip.js"))
pytestmark = [
    pytest.mark.netns,
    pytest.mark.e2e,
    pytest.mark.xdist_group("browser"),
    pytest.mark.slow,
    pytest.mark.usefixtures("programs"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not _FETCHED, reason="npm cannot fetch the SIP user agents"),
]


def _lacks(server: str) -> str:
    """What this SIP server lacks here for WebSockets; empty: nothing."""
    if server == "kamailio":
        return ""
    if shutil.which(server) is None:
        return "OpenSIPS is not installed"
    modules = opensips_modules()
    return "" if all((modules / f"{name}.so").exists() for name in ("proto_ws", "proto_wss", "tls_openssl")) else "OpenSIPS is not installed with WebSockets"


class Agent:
    """A library's user agent in a browser."""

    def __init__(self, browser: Browser, library: str, server: str) -> None:
        """library: Jssip or Sipjs; server: the WebSocket's URL."""
        self.browser, self.library = browser, library
        browser.open(f"http://127.0.0.1:{_PORT}/page.html")
        browser.evaluate(f"void (window.agent = new {library}('{server}', '{EDGE_IP}', '{browser.name}'))")

    def ask(self, expression: str) -> Any:
        return self.browser.evaluate(f"agent.{expression}")

    def call(self, others: int) -> None:
        """Call the room; so many others send audio and video each."""
        answer = self.ask(f"call('{ROOM}', {{audio: {others - 1}, video: {others - 1}}})")
        assert answer == "confirmed", f"{self.browser.name} ({self.library}): {answer}"
        self.browser.evaluate("void play(agent)")

    def received(self) -> dict[str, dict[str, Any]]:
        """What comes in, by m-line."""
        found: dict[str, dict[str, Any]] = self.browser.evaluate("received(agent)")
        return found

    def await_media(self, audio: int, video: int) -> None:
        """Wait until so many lines of each bring something new."""
        before = self.received()

        def came() -> bool:
            now = self.received()
            new = [one for mid, one in now.items() if one["packets"] > before.get(mid, {"packets": 0})["packets"] + 10 or one["packets"] < before.get(mid, {"packets": 0})["packets"]]
            pictures = [one for mid, one in now.items() if one["kind"] == "video" and one["frames"] > before.get(mid, {"frames": 0})["frames"] + 5 and one["width"] > 0]
            return sum(one["kind"] == "audio" for one in new) >= audio and len(pictures) >= video

        assert await_that(came), (self.browser.name, before, self.received())


class Room:
    """The lab; a page, a phone, and browsers that are still free."""

    def __init__(self, room: RoomLab) -> None:
        self.room = room
        self.ann = room.browser("caller", "ann", CHROMIUM)
        self.cem, self.bob = room.browser("natcaller", "cem", CHROMIUM), room.browser("callee", "bob", FIREFOX)
        served = room.work / "page"
        served.mkdir()
        for file in (*LIBRARIES.glob("*.js"), *PAGE.glob("*.js"), *PAGE.glob("*.html")):
            shutil.copy(file, served)
        argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(_PORT), "--directory", str(served)]
        self.pages = [Process(room.topology, host, f"pages of {host}", argv, room.work / f"pages-{host}.log").start() for host in ("natcaller", "callee")]
        for page in self.pages:
            page.await_listening("tcp", _PORT)

    def shown(self, *keys: str) -> None:
        """Wait until the page gets more of all of these."""
        before = report(self.ann)["lines"]
        for key in keys:
            field, least = ("frames", 5) if key.endswith("/video") else ("packets", 20)
            had = (before.get(key) or {field: 0})[field]
            self.ann.await_that(f"(room.report().lines['{key}']?.{field} ?? 0) > {had + least}")

    def directions(self, name: str) -> dict[str, str]:
        return {one["medium"]: one["direction"] for member in self.room.conference(ROOM)["participants"] if member["name"] == name for one in member["media"]}


@pytest.fixture(scope="module")
def evening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    work: Path = tmp_path_factory.mktemp("sip-agents")
    with room_lab(work) as room:
        room.ask("POST", f"/v1/conferences?name={ROOM}")
        room.await_ready()
        room.move_focus("127.0.0.1")
        made = Room(room)
        assert enter(room, made.ann, 1, []) is None
        try:
            yield made
        finally:
            print(room.diagnosis())
            for page in made.pages:
                page.stop()


@pytest.mark.parametrize("name", ["kamailio", "opensips"])
def test_calls_of_jssip_and_sipjs(evening: Room, name: str) -> None:
    if lacks := _lacks(name):
        pytest.skip(lacks)
    room = evening.room
    server = sip_server(room, name, websockets=True, tls=room.settings["api"]["tls"])
    try:
        phone = Phone(room, "callee", "dora", server=5060, patience=60)
        phone.party.payload_type, phone.party.gap_s = 0, 0.02
        assert phone.call(ROOM) == 200, phone.answer
        cem, bob = Agent(evening.cem, "Jssip", f"ws://{EDGE_IP}:8080"), Agent(evening.bob, "Sipjs", f"wss://{EDGE_IP}:8443")
        cem.call(3)
        bob.call(3)

        # Each gets the page's and the other's picture, and those two's voices and the phone's; so do the page and the phone.
        cem.await_media(audio=3, video=2)
        bob.await_media(audio=3, video=2)
        evening.shown("cem/audio", "cem/video", "bob/audio", "bob/video", "dora/audio")
        assert await_that(lambda: sum(len(numbers) > 50 for numbers in phone.party.sequences.values()) == 3), "the phone hears three"

        # On hold nothing comes, and what is sent goes on; by UPDATE (JsSIP) and by re-INVITE (SIP.js).
        for agent, how in ((cem, "true"), (bob, "false")):
            assert agent.ask(f"hold({how})") == "done"
            assert evening.directions(agent.browser.name)["video"] == "sendonly" and not {"sendrecv", "recvonly"} & set(evening.directions(agent.browser.name).values())
        evening.shown("cem/audio", "cem/video", "bob/audio", "bob/video")
        assert cem.ask("unhold(true)") == bob.ask("unhold(false)") == "done"
        cem.await_media(audio=3, video=2)
        bob.await_media(audio=3, video=2)

        # The SIP server goes and comes back, and the WebSockets with it; media go on. A further offer tells the server which connection is whose.
        server.stop()
        evening.shown("cem/video", "bob/video")
        server.start().await_listening("udp", 5060)
        for agent in (cem, bob):
            agent.browser.await_that("agent.connections > 1")
            assert agent.ask("offerAgain(false)") == "done"
            agent.await_media(audio=3, video=2)

        # One is put out, and hears so over the new connection; the other hangs up.
        room.ask("DELETE", f"/v1/conferences/{ROOM}/participants/bob")
        bob.browser.await_that("Boolean(agent.ended)")
        assert cem.ask("hangUp()") == "ended"
        assert phone.bye() == 200
        assert await_that(lambda: room.names(ROOM) == ["ann"]), room.names(ROOM)
        assert await_that(lambda: [one["participant"] for one in room.at_edge()] == ["ann"])
    finally:
        print(server.tail(30))
        server.stop()
