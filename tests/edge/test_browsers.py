"""Unmodified Chromium, with encryption, at the real edge: two of them, joined on the plain side."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from typing import Any

import pytest

from tests.edge.chromium import Chromium
from tests.edge.plain import Leg, Plane, is_rtcp
from tests.edge.process import Edge

pytestmark = pytest.mark.xdist_group("browser")

# args: scalability mode or null.
OFFER = """
  window.pc = new RTCPeerConnection();
  const media = await navigator.mediaDevices.getUserMedia({audio: true, video: {width: 640, height: 480}});
  for (const track of media.getTracks()) {
    const encodings = track.kind == 'video' && args[0] ? [{scalabilityMode: args[0]}] : undefined;
    pc.addTransceiver(track, {streams: [media], sendEncodings: encodings});
  }
  pc.ontrack = (event) => {
    const element = document.createElement(event.track.kind);
    element.autoplay = element.muted = true;
    element.srcObject = event.streams[0];
    document.body.append(element);
  };
  await pc.setLocalDescription();
  return pc.localDescription.sdp;
"""
ACCEPT = "await pc.setRemoteDescription({type: 'answer', sdp: args[0]});"
ADD = """
  pc.addTransceiver('video', {direction: 'recvonly'});
  await pc.setLocalDescription();
  return pc.localDescription.sdp;
"""
STATS = """
  const found = {video: [], audio: []};
  for (const one of (await pc.getStats()).values()) {
    if (one.type == 'inbound-rtp') found[one.kind].push(one);
    if (one.type == 'transport') found.transport = one;
    if (one.type == 'candidate-pair' && one.nominated) found.pair = one;
  }
  found.video.sort((a, b) => a.mid < b.mid ? -1 : 1);
  return found;
"""


def _played(line: dict[str, Any]) -> float:
    """When what a browser plays now was sampled, ms; infinite before two sender reports."""
    return float(line.get("estimatedPlayoutTimestamp") or "inf")


class Scene:
    """Two browsers whose media go to each other; `change` is what the plain side does to pictures."""

    def __init__(self, chromium: Chromium, edge: Edge, plane: Plane, mode: str | None = None, tcp: bool = False) -> None:
        self.chromium, self.edge, self.plane = chromium, edge, plane
        self.tabs: list[str] = []
        self.answers: list[dict[str, Any]] = []
        for name in ("ann", "bob"):
            tab = chromium.tab()
            answer = edge.create(chromium.run(tab, OFFER, mode), name)
            text: str = answer["answer"]
            if tcp:
                text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("a=candidate:") or " tcp " in line.lower())
            chromium.run(tab, ACCEPT, text)
            self.tabs.append(tab)
            self.answers.append(answer)
        self.legs = [[plane.leg(medium["rtp"]) for medium in answer["media"]] for answer in self.answers]
        for one, other in ((0, 1), (1, 0)):
            for mine, theirs in zip(self.legs[one], self.legs[other], strict=True):
                plane.join(mine, theirs)
            self.connect(one, self.answers[one]["media"], self.legs[one])

    def connect(self, who: int, media: list[dict[str, Any]], legs: list[Leg]) -> None:
        named = [{"mid": medium["mid"], "rtp": leg.rtp} for medium, leg in zip(media, legs, strict=True)]
        self.edge.ask("PUT", f"/v1/sessions/{self.answers[who]['session']}/media", {"media": named})

    def stats(self, who: int) -> dict[str, Any]:
        found: dict[str, Any] = self.chromium.run(self.tabs[who], STATS)
        return found

    def await_frames(self, who: int, frames: int, video: int = 0, timeout: float = 120) -> dict[str, Any]:
        """What a browser has once it has shown so many frames."""
        deadline = time.monotonic() + timeout
        while True:
            found = self.stats(who)
            if len(found["video"]) > video and (found["video"][video].get("framesDecoded") or 0) >= frames:
                return found
            assert time.monotonic() < deadline, f"{found}\n{self.edge.session(self.answers[who]['session'])}\n{self.edge.log}"
            time.sleep(0.2)


def test_sound_and_pictures_go_both_ways_and_stay_together(chromium: Chromium) -> None:
    with Edge() as edge, Plane() as plane:
        scene = Scene(chromium, edge, plane)
        for who in (0, 1):
            found = scene.await_frames(who, 100)
            video, audio = found["video"][0], found["audio"][0]
            assert (video["packetsLost"], video["nackCount"], audio["packetsLost"]) == (0, 0, 0)
            assert "GCM" in found["transport"]["srtpCipher"]
            # Both are told in one clock, by sender reports that were mapped.
            deadline = time.monotonic() + 120
            while not abs(_played(found["video"][0]) - _played(found["audio"][0])) < 300:  # ms; of two that are infinite there is no difference
                assert time.monotonic() < deadline, f"no two sender reports of each, or not in one clock: {found}"
                time.sleep(0.5)
                found = scene.stats(who)
        view = edge.session(scene.answers[0]["session"])
        assert view["transport"] == "udp" and view["estimate"] > 0


def test_over_tcp_alone(chromium: Chromium) -> None:
    with Edge() as edge, Plane() as plane:
        scene = Scene(chromium, edge, plane, tcp=True)
        assert scene.await_frames(1, 40)["video"][0]["packetsLost"] == 0
        assert edge.session(scene.answers[1]["session"])["transport"] == "tcp"


def test_a_layer_that_is_left_out_and_numbers_that_were_closed_up(chromium: Chromium) -> None:
    """The dependency descriptor goes through, its highest layer is left out on the way, and the picture does not break."""
    dropped = [0]

    def without_the_highest(packet: bytes) -> bytes | None:
        if is_rtcp(packet) or not packet[0] & 0x10:
            return packet
        data, at = packet[16 : 16 + 4 * int.from_bytes(packet[14:16], "big")], 0
        one_byte = packet[12:14] == b"\xbe\xde"
        template = None
        while at < len(data):
            if data[at] == 0:
                at += 1
                continue
            number, size, start = (data[at] >> 4, (data[at] & 15) + 1, at + 1) if one_byte else (data[at], data[at + 1], at + 2)
            if number == 12:
                template = data[start] & 63
            at = start + size
        assert template is not None, "each packet has the descriptor"
        if template in (5, 6):  # Chromium's VP8 in three layers, before any change of its structure
            dropped[0] += 1
            return None
        number = int.from_bytes(packet[2:4], "big") - dropped[0]
        return packet[:2] + (number & 0xFFFF).to_bytes(2, "big") + packet[4:]

    with Edge() as edge, Plane() as plane:
        scene = Scene(chromium, edge, plane, mode="L1T3")
        assert scene.answers[0]["media"][1]["layers"] == {"by": "dependency-descriptor", "extension_id": 12}
        plane.join(scene.legs[0][1], scene.legs[1][1], without_the_highest)
        scene.await_frames(1, 20)
        found = scene.await_frames(1, 60)["video"][0]
        assert dropped[0] > 20
        assert (found["packetsLost"], found["nackCount"]) == (0, 0)


def test_a_medium_that_is_added_takes_nothing_from_the_others(chromium: Chromium) -> None:
    with Edge() as edge, Plane() as plane:
        scene = Scene(chromium, edge, plane)
        scene.await_frames(1, 20)
        answer = edge.ask("POST", f"/v1/sessions/{scene.answers[1]['session']}/offer", {"offer": chromium.run(scene.tabs[1], ADD)})
        chromium.run(scene.tabs[1], ACCEPT, answer["answer"])
        assert [one["rtp"] for one in answer["media"][:2]] == [one["rtp"] for one in scene.answers[1]["media"]]
        third = plane.leg(answer["media"][2]["rtp"])
        scene.connect(1, answer["media"][2:], [third])
        first, second = scene.legs[0][1], scene.legs[1][1]

        def to_both(packet: bytes) -> bytes | None:
            third.sock.sendto(packet, third.edge)
            return packet

        plane.join(first, second, to_both)
        plane.join(third, first)
        found = scene.await_frames(1, 30, video=1)
        assert (found["video"][0]["packetsLost"], found["video"][0]["nackCount"]) == (0, 0)


RESTART = """
  pc.restartIce();
  await pc.setLocalDescription();
  return pc.localDescription.sdp;
"""


def _attribute(text: str, name: str) -> str:
    return next(line.removeprefix(f"a={name}:") for line in text.splitlines() if line.startswith(f"a={name}:"))


def test_ice_begins_anew_and_nothing_else_does(chromium: Chromium) -> None:
    """As WHIP and WHEP do it (RFC 9725 section 4.3.3): credentials alone are exchanged, and the rest of the description stays."""
    with Edge() as edge, Plane() as plane:
        scene = Scene(chromium, edge, plane)
        before = scene.await_frames(1, 20)
        session, first = scene.answers[1]["session"], scene.answers[1]["answer"]
        remote = edge.session(session)["remote"]
        offer: str = chromium.run(scene.tabs[1], RESTART)
        given = {name: _attribute(offer, f"ice-{name}") for name in ("ufrag", "pwd")}
        ice = edge.ask("POST", f"/v1/sessions/{session}/ice", given)
        for name in ("ufrag", "pwd"):
            first = first.replace(_attribute(first, f"ice-{name}"), ice[name])
        chromium.run(scene.tabs[1], ACCEPT, first)
        deadline = time.monotonic() + 120
        while edge.session(session)["remote"] == remote:
            assert time.monotonic() < deadline, f"{edge.session(session)}\n{edge.log}"
            time.sleep(0.2)
        now = scene.stats(1)
        found = scene.await_frames(1, now["video"][0]["framesDecoded"] + 30)
        assert found["transport"]["iceLocalUsernameFragment"] == given["ufrag"] != before["transport"]["iceLocalUsernameFragment"]
        assert found["transport"]["dtlsState"] == "connected" and found["transport"]["selectedCandidatePairChanges"] > before["transport"]["selectedCandidatePairChanges"]
        assert found["video"][0]["packetsLost"] == 0
        assert edge.session(session)["state"] == "connected" and edge.session(session)["ufrag"] == ice["ufrag"]
        # What this one sends goes on too.
        scene.await_frames(0, scene.stats(0)["video"][0]["framesDecoded"] + 20)


SIMULCAST = """
  window.pc = new RTCPeerConnection();
  const media = await navigator.mediaDevices.getUserMedia({video: {width: 640, height: 480}});
  const encodings = [{rid: 'q', scaleResolutionDownBy: 4}, {rid: 'h', scaleResolutionDownBy: 2}, {rid: 'f'}];
  pc.addTransceiver(media.getTracks()[0], {direction: 'sendonly', streams: [media], sendEncodings: encodings});
  await pc.setLocalDescription();
  return pc.localDescription.sdp;
"""
WATCH = """
  window.pc = new RTCPeerConnection();
  pc.addTransceiver('video', {direction: 'recvonly'});
  pc.ontrack = (event) => {
    const element = document.createElement('video');
    element.autoplay = element.muted = true;
    element.srcObject = new MediaStream([event.track]);
    document.body.append(element);
  };
  await pc.setLocalDescription();
  return pc.localDescription.sdp;
"""


def test_of_three_encodings_a_browser_gets_one(chromium: Chromium) -> None:
    with Edge() as edge, Plane() as plane:
        tabs, answers = [], []
        for name, script, role in (("ann", SIMULCAST, "publish"), ("bob", WATCH, "watch")):
            tab = chromium.tab()
            answer = edge.create(chromium.run(tab, script), name, role=role, codecs=["VP8"])
            chromium.run(tab, ACCEPT, answer["answer"])
            tabs.append(tab)
            answers.append(answer)
        assert "a=simulcast:recv q;h;f" in answers[0]["answer"]
        legs = [plane.leg(answer["media"][0]["rtp"]) for answer in answers]
        plane.join(legs[0], legs[1])
        plane.join(legs[1], legs[0])
        for answer, leg in zip(answers, legs, strict=True):
            edge.ask("PUT", f"/v1/sessions/{answer['session']}/media", {"media": [{"mid": answer["media"][0]["mid"], "rtp": leg.rtp}]})
        # Which it gets depends on what the machine can encode; edge/tests say when another one takes its place.
        deadline = time.monotonic() + 120
        while not (found := chromium.run(tabs[1], STATS)["video"]) or found[0].get("framesDecoded", 0) < 100:
            assert time.monotonic() < deadline, f"{found} {edge.session(answers[1]['session'])}"
            time.sleep(0.2)
        assert len(chromium.run(tabs[1], STATS)["video"]) == 1, "one stream, whatever is sent in it"
        assert edge.session(answers[1]["session"])["media"][0]["to_browser"]["other_encoding"] > 0


class Lossy:
    """A UDP proxy before the edge that loses a share of the packets in both directions, once it is told to."""

    def __init__(self, listen: tuple[str, int], edge: tuple[str, int], share: float) -> None:
        self._edge, self._share, self.on = edge, share, False
        self._front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._front.bind(listen)
        self._backs: dict[tuple[str, int], socket.socket] = {}
        self._random = random.Random(1)
        self._reader = threading.Thread(target=self._run, daemon=True)
        self._reader.start()

    def _loses(self, packet: bytes) -> bool:
        return self.on and len(packet) > 12 and packet[0] >= 128 and self._random.random() < self._share

    def _run(self) -> None:
        while True:
            try:
                packet, peer = self._front.recvfrom(65536)
            except OSError:
                return
            if not packet:  # the socket was shut down
                return
            if peer not in self._backs:
                self._backs[peer] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                self._backs[peer].connect(self._edge)
                threading.Thread(target=self._back, args=(self._backs[peer], peer), daemon=True).start()
            if not self._loses(packet):
                with contextlib.suppress(ConnectionRefusedError):  # the edge has ended
                    self._backs[peer].send(packet)

    def _back(self, back: socket.socket, peer: tuple[str, int]) -> None:
        while True:
            try:
                packet = back.recv(65536)
            except OSError:
                return
            if not packet:  # the socket was shut down
                return
            if not self._loses(packet):
                with contextlib.suppress(OSError):  # the test has ended
                    self._front.sendto(packet, peer)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._front.shutdown(socket.SHUT_RDWR)
        self._reader.join()  # a socket that a thread reads from keeps its port
        self._front.close()
        for back in self._backs.values():
            with contextlib.suppress(OSError):
                back.shutdown(socket.SHUT_RDWR)
            back.close()


def test_five_percent_of_loss_in_both_directions(chromium: Chromium) -> None:
    proxy = Lossy(("127.0.0.1", 23479), ("127.0.0.1", 23478), 0.05)
    try:
        with Edge(advertise=["127.0.0.1:23479"], tcp=False) as edge, Plane() as plane:
            scene = Scene(chromium, edge, plane)
            scene.await_frames(1, 20)
            proxy.on = True
            found = scene.await_frames(1, 200)["video"][0]
            assert found["retransmittedPacketsReceived"] > 0 and found["nackCount"] > 0
            view = edge.session(scene.answers[1]["session"])["media"][1]
            assert view["to_browser"]["nacks_received"] > 0 and view["from_browser"]["nacks_sent"] > 0
            assert view["to_browser"]["lost"] <= 3, "the sender's losses are repaired before the data plane, but for those under way"
            # Chromium counts what was lost on the way as lost, whether it came again or not.
            assert found["retransmittedPacketsReceived"] >= found["packetsLost"] > 0, found
    finally:
        proxy.close()
