"""WHIP and WHEP by clients that are not ours: aiortc publishes and watches VP8 and H.264 with Opus, and every picture that came is read; GStreamer does with VP8."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.party import await_that
from tests.lab.processes import ROOT
from tests.rooms.lab import RoomLab, room_lab

pytestmark = [pytest.mark.netns, pytest.mark.e2e, pytest.mark.usefixtures("programs"), pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoomLab]:
    with room_lab(tmp_path_factory.mktemp("whip")) as made:
        yield made


def client(room: RoomLab, host: str, action: str, link: dict[str, str], codec: str, seconds: float) -> subprocess.Popen[str]:
    """aiortc on one of the lab's hosts."""
    url = link["whip" if action == "publish" else "whep"]
    argv = [sys.executable, "-m", "tests.rooms.whip", action, url, link["token"], "--codec", codec, "--seconds", str(seconds)]
    return subprocess.Popen(room.topology.enter(host, *argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def gstreamer(room: RoomLab, host: str, action: str, link: dict[str, str], seconds: float) -> subprocess.Popen[str]:
    """GStreamer on one of the lab's hosts, with the Python that has its bindings."""
    argv = ["/usr/bin/python3", "tests/rooms/gstreamer.py", action, link["whip" if action == "publish" else "whep"], link["token"], "--seconds", str(seconds)]
    return subprocess.Popen(room.topology.enter(host, *argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What it says at its end."""
    words, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    found: dict[str, Any] = json.loads(words)
    return found


@pytest.mark.parametrize("codec", ["VP8", pytest.param("H264", marks=pytest.mark.slow)])
def test_aiortc_publishes_and_watches(room: RoomLab, codec: str) -> None:
    name = f"stage-{codec}"
    publisher = client(room, "caller", "publish", room.link(name, role="publish"), codec, 120)
    try:
        assert await_that(lambda: room.names(name) == ["publisher"]), room.diagnosis()
        viewer = told(client(room, "natcaller", "watch", room.link(name, role="watch"), codec, 3))
        media = {one["medium"]: one["codecs"][0]["encoding"] for one in room.conference(name)["participants"][0]["media"]}
        assert media == {"audio": "opus", "video": codec}
        assert (viewer["post"], viewer["patch"], viewer["delete"], viewer["state"]) == (201, 204, 200, "connected"), viewer
        assert viewer["video_frames"] > 20 and viewer["broken"] == 0 and viewer["size"] == [320, 180], viewer
        assert viewer["audio_frames"] > 50 and viewer["loudest"] > 2000, viewer
        assert viewer["video_lost"] == viewer["audio_lost"] == 0, viewer
    finally:
        publisher.kill()  # as when its network is gone: the edge notices that its checks have ended
        publisher.communicate()
    room.ask("DELETE", f"/v1/conferences/{name}/participants/publisher")
    assert await_that(lambda: not room.at_edge())


def test_gstreamer_publishes_and_watches(room: RoomLab) -> None:
    """Its certificates are of RSA."""
    publisher = gstreamer(room, "caller", "publish", room.link("gst", role="publish"), 120)
    try:
        assert await_that(lambda: room.names("gst") == ["publisher"]), room.diagnosis()
        viewer = gstreamer(room, "natcaller", "watch", room.link("gst", role="watch"), 4)
        other = told(client(room, "callee", "watch", room.link("gst", role="watch"), "VP8", 4))
        seen = told(viewer)
        assert (seen["post"], seen["state"], seen["delete"]) == (201, "connected", 200), seen
        assert seen["video_frames"] > 20 and seen["audio_frames"] > 50, seen
        assert other["video_frames"] > 20 and other["audio_frames"] > 50 and other["loudest"] > 2000 and other["size"] == [320, 180], other
    finally:
        publisher.kill()
        publisher.communicate()
    room.ask("DELETE", "/v1/conferences/gst/participants/publisher")
    assert await_that(lambda: not room.at_edge())
