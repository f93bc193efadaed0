"""A browser gets tiled video: sources of H.264 that are coded intra, a mixer, and a room whose page shows each tile as its participant's."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from shunt.admin import AdminClient
from tests.lab.axe import violations
from tests.lab.browser import Browser
from tests.lab.party import await_that
from tests.lab.processes import open_socket
from tests.lab.topology import CALLER_IP, Topology
from tests.rooms.test_mixed import MixedRoom
from tests.tools.tiling import clips, rtp

pytestmark = [pytest.mark.netns, pytest.mark.e2e, pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("programs"), pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

ROOM, RATE, H264 = "room", 10, 97
COLOURS = {"ann": (81, 90, 240), "bob": (41, 240, 110)}  # red and blue, as Y, Cb and Cr
TILED_LINES = "Object.entries(room.report().lines).filter(([key, one]) => key.startsWith('#tiles/video/') && one).map(([, one]) => one)"
_ports = itertools.count(47_000, 2)


class Source:
    """A participant that sends pictures of one colour, coded intra."""

    def __init__(self, room: MixedRoom, name: str) -> None:
        planes = [np.full((rows, 176), value, np.uint8) for rows, value in zip((144, 36, 36), COLOURS[name], strict=True)]
        pictures = [av.VideoFrame.from_ndarray(np.concatenate(planes), format="yuv420p") for _ in range(RATE)]
        parameters = "keyint=1:scenecut=0:ref=1:bframes=0:weightp=0:qp=36:sliced-threads=0"
        self._coded = clips.encode("libx264", pictures, str(RATE), profile="high", preset="veryfast", **{"x264-params": parameters})
        port = next(_ports)
        self._socket = open_socket(room.topology, "caller", socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("0.0.0.0", port))
        medium = {"medium": "video", "direction": "sendonly", "codecs": [{"payload_type": H264, "encoding": "H264", "clock_rate": 90_000}]}

        async def join() -> Any:
            async with AdminClient(str(room.admin)) as client:
                return await client.join(ROOM, name, [medium], signalled=[CALLER_IP])  # type: ignore[list-item]

        host, relay = asyncio.run(join())["media"][0]["address"].rsplit(":", 1)
        self._to, self._sender, self._over = (host, int(relay)), rtp.Sender(0x10000 + port, H264), threading.Event()
        self._player = threading.Thread(target=self._play, daemon=True)
        self._player.start()

    def _play(self) -> None:
        began = time.monotonic()
        for number in itertools.count():
            for packet in self._sender.packets(rtp.h264_payloads(self._coded[number % len(self._coded)]), time.monotonic() - began):
                self._socket.sendto(packet, self._to)
            if self._over.wait(max(0.005, began + number / RATE - time.monotonic())):
                return

    def close(self) -> None:
        self._over.set()
        self._player.join()
        self._socket.close()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[MixedRoom]:
    with Topology("tiled") as topology:
        made = MixedRoom(topology, tmp_path)
        made.settings["rooms"] |= {"video": ["H264"], "codecs_of": []}
        try:
            made.start()
            yield made
            print(made.diagnosis())
        finally:
            made.stop()


def colour(browser: Browser, name: str, path: Path) -> tuple[int, ...]:
    """What is on the screen in the middle of a participant's tile: red, green, blue."""
    at = browser.evaluate(f"(({{ left, top, width, height }}) => [left + width / 2, top + height / 2])(room.tiles.all.get('{name}/video').frame.getBoundingClientRect())")
    browser.picture(path)
    with av.open(str(path)) as opened:
        pixels = next(opened.decode(video=0)).to_ndarray(format="rgb24")
    return tuple(int(value) for value in pixels[int(at[1]), int(at[0])])


def watching(room: MixedRoom) -> Browser:
    """A browser that only watches the room."""
    cem = room.browser("callee", "cem")
    cem.open(room.link(ROOM, role="watch")["page"])
    cem.await_that("Boolean(window.room?.watching)")
    cem.evaluate("void (document.querySelector('#name').value = 'cem')")
    cem.click("#join")
    return cem


def test_each_participant_is_shown_by_its_tile(room: MixedRoom, tmp_path: Path) -> None:
    """One stream comes to the browser, and the page shows of it at each name what that participant sends."""
    room.ask("POST", f"/v1/conferences?name={ROOM}")
    room.await_ready()
    room.ask("POST", f"/v1/conferences/{ROOM}/tiling?codec=H264&places=4")
    sources = [Source(room, name) for name in COLOURS]
    try:
        tiled = lambda: sorted(tile["participant"] for stream in room.conference(ROOM)["tiling"]["streams"] for tile in stream["tiles"] if tile["width"])
        assert await_that(lambda: tiled() == ["ann", "bob"]), room.conference(ROOM)["tiling"]
        cem = watching(room)
        cem.await_that(f"{TILED_LINES}.length === 1 && {TILED_LINES}[0].frames > 5")
        assert [stream["places"] for stream in room.conference(ROOM)["tiling"]["streams"]] == [4]

        def is_shown() -> bool:
            red, blue = (colour(cem, name, tmp_path / "page.png") for name in COLOURS)
            return red[0] > 150 > 80 > red[2] and blue[2] > 150 > 80 > blue[0]

        assert await_that(is_shown), [colour(cem, name, tmp_path / "page.png") for name in COLOURS]
        words = cem.await_that(
            "((all) => all.every((one) => one.includes('in one stream with others: 176×576')) && all)([...document.querySelectorAll('.tile .quality')].map((one) => one.textContent))"
        )
        assert len(words) == 2 and cem.evaluate("[...document.querySelectorAll('.tile .name')].map((one) => one.textContent).sort()") == ["ann", "bob"]
        assert violations(cem) == []
        cem.resize(390, 780)
        assert cem.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off on a phone"
        assert await_that(is_shown), "on a phone too"
        cem.prefer("dark")
        assert violations(cem) == []
        # Without tiles everybody's own video comes, and is shown whole.
        room.ask("DELETE", f"/v1/conferences/{ROOM}/tiling")
        cem.await_that("['ann', 'bob'].every((one) => (room.report().lines[`${one}/video`]?.frames ?? 0) > 5)")
        cem.await_that("document.querySelectorAll('.frame.part').length === 0")
        assert await_that(is_shown)
    finally:
        for source in sources:
            source.close()


@pytest.mark.slow
def test_each_tiled_stream_comes_by_a_line_of_its_own(room: MixedRoom, tmp_path: Path) -> None:
    """Two streams of one tile each; then a mixer that begins anew, whose streams are others."""
    room.ask("POST", f"/v1/conferences?name={ROOM}")
    room.await_ready()
    room.ask("POST", f"/v1/conferences/{ROOM}/tiling?codec=H264&places=1")
    sources = [Source(room, name) for name in COLOURS]
    try:
        streams = lambda: {stream["ssrc"] for stream in room.conference(ROOM)["tiling"]["streams"] for tile in stream["tiles"] if tile["width"]}
        assert await_that(lambda: len(streams()) == 2), room.conference(ROOM)["tiling"]
        cem = watching(room)
        cem.await_that(f"{TILED_LINES}.length === 2 && {TILED_LINES}.every((one) => one.frames > 5)")

        def are_shown() -> bool:
            red, blue = (colour(cem, name, tmp_path / "page.png") for name in COLOURS)
            return red[0] > 150 > 80 > red[2] and blue[2] > 150 > 80 > blue[0]

        assert await_that(are_shown), [colour(cem, name, tmp_path / "page.png") for name in COLOURS]
        cem.await_that("[...document.querySelectorAll('.tile .quality')].filter((one) => one.textContent.includes('in one stream with others: 176×144')).length === 2")
        lines = cem.evaluate("room.look.lines.filter((one) => one.shows === '#tiles').map((one) => [one.mid, one.ssrc])")
        assert len({mid for mid, _ in lines}) == 2 and {ssrc for _, ssrc in lines} == streams()
        before = streams()
        room.restart_mixer()

        def others_play() -> bool:
            named = {stream["ssrc"] for stream in room.conference(ROOM)["tiling"]["streams"]}
            playing = cem.evaluate("Object.entries(room.report().lines).filter(([key, one]) => key.startsWith('#tiles/video/') && one?.frames > 5).map(([key]) => Number(key.split('/')[2]))")
            return len(named) == 2 and not named & before and set(playing) == named

        assert await_that(others_play), (room.conference(ROOM)["tiling"], cem.evaluate("room.report().lines"))
        assert await_that(are_shown), [colour(cem, name, tmp_path / "page.png") for name in COLOURS]
    finally:
        for source in sources:
            source.close()
