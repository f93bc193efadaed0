"""A browser that speaks Opus and a telephone that speaks G.711 in one room, by way of a mixer: each hears the other's tone."""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conference_control.lab import Phone, sip_server
from tests.lab.browser import CHROMIUM, Browser
from tests.lab.party import await_that
from tests.lab.processes import ROOT, Process, open_socket
from tests.lab.topology import Topology
from tests.rooms.lab import MEDIA_IP, RoomLab, hears, lobby
from tests.tools.tone import AMPLITUDE, HEARD, PCMA, Talk, TonePhone

MIXER = os.environ.get("SHUNT_MIXER") or str(ROOT / "target/release/shunt-mixer")
pytestmark = [pytest.mark.netns, pytest.mark.e2e, pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("programs"), pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

PORT = 45_000
ROOM = "caller-room"  # its name begins as those of rooms that phones call, and Opus is what browsers have in it
_HZ = 1000

_SPEAK = """((hz, gain) => {
  const context = (window.mouth = new AudioContext()), tone = context.createOscillator(), volume = context.createGain(), to = context.createMediaStreamDestination();
  tone.frequency.value = hz;
  volume.gain.value = gain;
  tone.connect(volume).connect(to);
  tone.start();
  room.tracks.audio.stop();
  room.tracks.audio = to.stream.getAudioTracks()[0];
})"""
# How loud a tone is in what is received, in units of 16-bit samples.
_LISTEN = """((hz) => {
  const context = (window.ears ??= new AudioContext());
  const loud = room.session.pc.getReceivers().filter((one) => one.track.kind === "audio").map((one) => {
    if (!one.ear) {
      one.ear = Object.assign(context.createAnalyser(), { fftSize: 8192 });
      context.createMediaStreamSource(new MediaStream([one.track])).connect(one.ear);
    }
    const samples = new Float32Array(one.ear.fftSize);
    one.ear.getFloatTimeDomainData(samples);
    let re = 0, im = 0;
    samples.forEach((sample, at) => {
      re += sample * Math.cos((2 * Math.PI * hz * at) / context.sampleRate);
      im += sample * Math.sin((2 * Math.PI * hz * at) / context.sampleRate);
    });
    return (32768 * 2 * Math.hypot(re, im)) / samples.length;
  });
  return Math.max(0, ...loud);
})"""


class MixedRoom(RoomLab):
    """With a mixer beside the edge, and phones that send tones."""

    def __init__(self, topology: Topology, work: Path) -> None:
        super().__init__(topology, work)
        self.sounds: dict[str, TonePhone] = {}
        self._numbers = itertools.count()
        control = work / "mixer.sock"
        self.settings["conference"]["mixer"] = [f"unix:{control}"]
        section = {"listen": f"unix:{control}", "allow": [], "socket_group": "root", "address": MEDIA_IP, "port": PORT, "receivers": 40, "load": 0.9}
        document = {"valid": True, "errors": [], "config": {"mixer": section, "log": {"level": "info", "format": "text"}}}
        (work / "mixer.json").write_text(json.dumps(document))
        self.mixer = Process(topology, "media", "mixer", [MIXER, "-c", str(work / "mixer.json")], work / "mixer.log")
        self._control = control

    def start(self) -> None:
        self.mixer.start().await_unix(self._control)
        super().start()

    def restart_mixer(self) -> None:
        self.mixer.stop()
        self.mixer.start().await_unix(self._control)

    def stop(self) -> None:
        self.mixer.stop()
        super().stop()

    def party(self, host: str, name: str) -> TonePhone:  # type: ignore[override]
        number = next(self._numbers)
        made = open_socket(self.topology, host, socket.AF_INET, socket.SOCK_DGRAM)
        made.bind(("0.0.0.0", 46_000 + 2 * number))
        self.sounds[name] = TonePhone(name, PCMA, 400 + 110 * number, 0x7000 + number, made)
        return self.sounds[name]


@pytest.fixture
def room(tmp_path: Path) -> Iterator[MixedRoom]:
    with Topology("mixed") as topology:
        made = MixedRoom(topology, tmp_path)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def speaks(browser: Browser, hz: int) -> None:
    """Before it joins: what its microphone hears is a tone."""
    browser.evaluate(f"void {_SPEAK}({hz}, {AMPLITUDE / 32768})")


def test_a_browser_and_a_telephone_hear_each_other(room: MixedRoom) -> None:
    for name in ("room", ROOM):
        room.ask("POST", f"/v1/conferences?name={name}")
    room.await_ready()
    room.move_focus("127.0.0.1")
    server = sip_server(room)
    try:
        ann = room.browser("caller", "ann", CHROMIUM)
        lobby(ann, room.link(ROOM)["page"])
        speaks(ann, _HZ)
        ann.click("#join")
        ann.await_that("Boolean(room.session?.path)")
        phone = Phone(room, "callee", "dora", server=5060)
        tone = room.sounds["dora"]
        with Talk([tone]):
            media = "m=audio {port} RTP/AVP 8 101\r\na=rtpmap:8 PCMA/8000\r\na=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-15\r\n"
            assert phone.call(ROOM, media) == 200, phone.answer
            hears(ann, "dora")

            def heard_by_phone() -> bool:
                since = time.monotonic()
                time.sleep(0.5)
                return tone.hears(since, _HZ) > HEARD

            assert await_that(heard_by_phone), (room.conference(ROOM), room.diagnosis())
            assert await_that(lambda: ann.evaluate(f"{_LISTEN}({tone.hz})") > HEARD), room.conference(ROOM)
            since = time.monotonic()
            time.sleep(1.0)
            assert tone.hears(since, tone.hz) < HEARD / 2, "a telephone does not hear itself"
            members = {one["name"]: one for one in room.conference(ROOM)["participants"]}
            assert members["dora"]["gets_mix"]
            codecs = {name: {media["codecs"][0]["encoding"].lower() for media in one["media"] if media["medium"].startswith("audio") and media["codecs"]} for name, one in members.items()}
            assert "opus" in codecs["ann"] and codecs["dora"] == {"pcma"}, codecs
            assert phone.bye() == 200
    finally:
        server.stop()
