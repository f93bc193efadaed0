"""A browser's spatial layers (SVC) through edge, softswitch and agent: who is behind a narrow link gets the lower one and is not paused, the others notice nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lab.browser import Browser
from tests.lab.party import await_that
from tests.rooms import pictures
from tests.rooms.lab import RoomLab, lobby, report, room_lab, sees

pytestmark = [pytest.mark.netns, pytest.mark.e2e, pytest.mark.xdist_group("browser"), pytest.mark.slow, pytest.mark.usefixtures("programs"), pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

ROOM = "stage"
# The page's cameras send in three temporal layers; here in two spatial ones besides (pictures of 480 by 270 have no third), by one codec.
_LAYERED = """(() => {
  const add = RTCPeerConnection.prototype.addTransceiver;
  RTCPeerConnection.prototype.addTransceiver = function (track, options) {
    const video = track === "video" || track.kind === "video";
    if (options.sendEncodings) options.sendEncodings = [{ scalabilityMode: "L2T3_KEY", maxBitrate: 600000 }];
    const made = add.call(this, track, options);
    if (!video) return made;
    made.setCodecPreferences(RTCRtpReceiver.getCapabilities("video").codecs.filter((one) => ["video/%s", "video/rtx"].includes(one.mimeType)));
    // Who only receives does not offer the dependency descriptor unless told so.
    const extensions = made.getHeaderExtensionsToNegotiate();
    for (const one of extensions) if (one.uri.includes("dependency-descriptor")) one.direction = "sendrecv";
    made.setHeaderExtensionsToNegotiate(extensions);
    return made;
  };
})()"""


def _video(browser: Browser) -> dict[str, Any]:
    """What a browser gets of Ann."""
    return report(browser)["lines"].get("ann/video") or {}


def _enter(room: RoomLab, browser: Browser, codec: str, **link: str) -> None:
    lobby(browser, room.link(ROOM, **link)["page"])
    browser.evaluate(f"void {_LAYERED % codec}")
    if "role" not in link:
        pictures.show(browser, 1, noise=3)
    browser.click("#join")
    browser.await_that("Boolean(room.session?.path)")
    pictures.watch(browser)


def _paused(room: RoomLab) -> bool:
    """Whether the agent has stopped Ann's video for Cem."""
    return any(one["paused"] for one in room.conference(ROOM)["downlinks"] if one["receiver"] == "cem" and one["medium"] == "video")


@pytest.mark.parametrize("codec", ["VP9", "AV1"])
def test_a_narrow_link_gets_the_lower_layer(tmp_path: Path, codec: str) -> None:
    with room_lab(tmp_path) as room:
        room.ask("POST", f"/v1/conferences?name={ROOM}")
        assert await_that(lambda: not room.conference(ROOM)["problem"]), room.conference(ROOM)["problem"]
        ann, bob, cem = (room.browser(host, name) for host, name in (("caller", "ann"), ("callee", "bob"), ("natcaller", "cem")))
        _enter(room, ann, codec)
        for browser in (bob, cem):
            _enter(room, browser, codec, role="watch")
            sees(browser, "ann")
        assert await_that(lambda: _video(cem).get("width") == _video(bob).get("width") == 480), (_video(cem), _video(bob))
        before = _video(bob)

        room.topology.run("nat", "tc", "qdisc", "add", "dev", "lan", "root", "tbf", "rate", "300kbit", "burst", "4kb", "latency", "200ms")
        assert await_that(lambda: _video(cem).get("width") == 240), (_video(cem), room.conference(ROOM)["downlinks"])
        # The agent forgives an estimate that is below what is sent for 15 s, and pauses after 3 s more.
        until = time.monotonic() + 25
        while time.monotonic() < until:
            assert not _paused(room), room.conference(ROOM)["downlinks"]
            pictures.await_frames(cem, "ann")

        room.topology.run("nat", "tc", "qdisc", "del", "dev", "lan", "root")
        assert await_that(lambda: _video(cem).get("width") == 480), (_video(cem), room.conference(ROOM)["downlinks"])
        pictures.await_frames(cem, "ann", count=30)
        for browser in (bob, cem):
            seen = pictures.watched(browser)["ann/video"]
            assert seen["corrupt"] == 0, (browser.name, seen)
        # The size of Bob's says nothing here: the encoder leaves the higher layer out itself where it takes more bits than it has.
        assert _video(bob)["packetsLost"] == before["packetsLost"]
