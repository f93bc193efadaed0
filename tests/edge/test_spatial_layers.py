"""Spatial layers of what Chromium sends (SVC): who has room for the lower ones gets those, and all again when there is room."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.edge.chromium import Chromium
from tests.edge.narrow import Narrow
from tests.edge.plain import Plane, is_rtcp
from tests.edge.process import Edge

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.slow]

WIDTH, HEIGHT = 960, 540  # the smallest of which Chromium makes three layers
# args: scalability mode. The upper half moves; the lower half is eight colours.
SEND = f"""
  window.pc = new RTCPeerConnection();
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [{WIDTH}, {HEIGHT}];
  document.body.append(canvas);
  const context = canvas.getContext('2d');
  let count = 0;
  setInterval(() => {{
    count++;
    for (let i = 0; i < 8; i++) {{
      context.fillStyle = `hsl(${{i * 45}} 70% 50%)`;
      context.fillRect(i * {WIDTH // 8}, {HEIGHT // 2}, {WIDTH // 8}, {HEIGHT // 2});
    }}
    context.fillStyle = '#888';
    context.fillRect(0, 0, {WIDTH}, {HEIGHT // 2});
    for (let i = 0; i < 60; i++) {{
      context.fillStyle = `hsl(${{(i * 37 + count) % 360}} 80% 50%)`;
      context.fillRect((i * 53 + count * (1 + i % 5)) % {WIDTH}, (i * 31 + count * (1 + i % 3)) % {HEIGHT // 2 - 40}, 60, 40);
    }}
  }}, 80);
  const media = canvas.captureStream(12);
  const sent = pc.addTransceiver(media.getTracks()[0], {{
    direction: 'sendonly', streams: [media], sendEncodings: [{{scalabilityMode: args[0], maxBitrate: 700000}}],
  }}).sender;
  const parameters = sent.getParameters();
  parameters.degradationPreference = 'maintain-resolution';
  await sent.setParameters(parameters);
  await pc.setLocalDescription();
  return pc.localDescription.sdp;
"""
WATCH = """
  window.pc = new RTCPeerConnection();
  const received = pc.addTransceiver('video', {direction: 'recvonly'});
  // Who only receives does not offer the dependency descriptor unless told so.
  const extensions = received.getHeaderExtensionsToNegotiate();
  for (const one of extensions) if (one.uri.includes('dependency-descriptor')) one.direction = 'sendrecv';
  received.setHeaderExtensionsToNegotiate(extensions);
  pc.ontrack = (event) => {
    window.element = document.createElement('video');
    element.autoplay = element.muted = true;
    element.srcObject = new MediaStream([event.track]);
    document.body.append(element);
  };
  await pc.setLocalDescription();
  return pc.localDescription.sdp;
"""
ACCEPT = "await pc.setRemoteDescription({type: 'answer', sdp: args[0]});"
STATS = """
  for (const one of (await pc.getStats()).values()) if (one.type == 'inbound-rtp') return one;
  return {};
"""
SENT = """
  for (const one of (await pc.getStats()).values()) if (one.type == 'outbound-rtp') return one;
  return {};
"""
# The middles of the colours as they are shown.
COLOURS = """
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [80, 40];
  const context = canvas.getContext('2d');
  context.drawImage(element, 0, 0, 80, 40);
  return [...Array(8).keys()].map((i) => [...context.getImageData(i * 10 + 5, 30, 1, 1).data].slice(0, 3));
"""


class Scene:
    """Ann sends to Bob, whose link is narrow at times, and to Carl."""

    def __init__(self, chromium: Chromium, edge: Edge, plane: Plane, codec: str, mode: str) -> None:
        self.chromium, self.edge = chromium, edge
        self.tabs: dict[str, str] = {}
        self.answers: dict[str, Any] = {}
        for name in ("ann", "bob", "carl"):
            tab = chromium.tab()
            sends = name == "ann"
            offer = chromium.run(tab, SEND, mode) if sends else chromium.run(tab, WATCH)
            answer = edge.create(offer, name, role="publish" if sends else "watch", codecs=[codec])
            chromium.run(tab, ACCEPT, answer["answer"])
            self.tabs[name], self.answers[name] = tab, answer
        legs = {name: plane.leg(answer["media"][0]["rtp"]) for name, answer in self.answers.items()}

        def to_both(packet: bytes) -> bytes:
            legs["bob"].sock.sendto(packet, legs["bob"].edge)
            return packet

        def requests(packet: bytes) -> bytes | None:
            # As the agent has it: of the two receivers' estimates the sender gets the higher one, and all requests for key frames.
            return packet if is_rtcp(packet) and packet[1] == 206 and packet[0] & 31 == 1 else None

        plane.join(legs["ann"], legs["carl"], to_both)
        plane.join(legs["carl"], legs["ann"])
        plane.join(legs["bob"], legs["ann"], requests)
        for name, answer in self.answers.items():
            medium = {"mid": answer["media"][0]["mid"], "rtp": legs[name].rtp}
            edge.ask("PUT", f"/v1/sessions/{answer['session']}/media", {"media": [medium]})

    def session(self, name: str) -> dict[str, Any]:
        return self.edge.session(self.answers[name]["session"])

    def sent(self, name: str) -> dict[str, Any]:
        counts: dict[str, Any] = self.session(name)["media"][0]["to_browser"]
        return counts

    def stats(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.chromium.run(self.tabs[name], STATS)
        return found

    def wait(self, what: str, holds: Callable[[], bool], timeout: float = 120) -> None:
        deadline = time.monotonic() + timeout
        while not holds():
            views = {name: (self.session(name), self.stats(name)) for name in ("bob", "carl")}
            assert time.monotonic() < deadline, f"{what}: {views} {self.chromium.run(self.tabs['ann'], SENT)}"
            time.sleep(0.3)

    def shows(self, name: str, width: int) -> bool:
        """Whether a browser shows pictures of a width, and goes on to decode."""
        found = self.stats(name)
        return found.get("frameWidth") == width and found.get("framesDecoded", 0) > 20

    def watch(self, name: str, frames: int) -> None:
        """Wait until a browser has decoded so many frames; each time that it is looked at, it shows the right colours."""
        before = self.stats(name)
        deadline = time.monotonic() + 120
        while (now := self.stats(name))["framesDecoded"] < before["framesDecoded"] + frames:
            assert time.monotonic() < deadline, f"{name} decodes {now['framesDecoded'] - before['framesDecoded']} frames: {self.session(name)}"
            colours = self.chromium.run(self.tabs[name], COLOURS)
            for at, colour in enumerate(colours):
                assert max(abs(a - b) for a, b in zip(colour, _colour(at * 45), strict=True)) < 60, f"{name}: {colours}"
            time.sleep(0.2)


def _colour(hue: int) -> tuple[float, float, float]:
    """hsl(HUE 70% 50%) as red, green and blue (CSS Color 4, section 7)."""

    def part(n: int) -> float:
        k = (n + hue / 30) % 12
        return 255 * (0.5 - 0.35 * max(-1, min(k - 3, 9 - k, 1)))

    return part(0), part(8), part(4)


@pytest.mark.parametrize(("codec", "mode"), [("VP9", "L3T3_KEY"), ("VP9", "L3T3"), ("AV1", "L3T3_KEY"), ("AV1", "L3T3")])
def test_a_narrow_link_gets_the_lower_layers(chromium: Chromium, codec: str, mode: str) -> None:
    proxy = Narrow(("127.0.0.1", 23479), ("127.0.0.1", 23478))
    try:
        with Edge(advertise=["127.0.0.1:23479"], tcp=False) as edge, Plane() as plane:
            scene = Scene(chromium, edge, plane, codec, mode)
            for name in ("bob", "carl"):
                scene.wait(f"{name} gets all", lambda name=name: scene.shows(name, WIDTH) and scene.sent(name)["layers_sent"] == 3)  # type: ignore[misc]
            before, start = scene.sent("carl")["bytes"], time.monotonic()
            scene.watch("carl", 40)
            rate = (scene.sent("carl")["bytes"] - before) * 8 / (time.monotonic() - start)

            proxy.limit(scene.session("bob")["remote"], 0.6 * rate)
            scene.wait("bob gets less", lambda: (scene.sent("bob")["layers_sent"] or 3) < 3 and (scene.stats("bob")["frameWidth"] or WIDTH) < WIDTH)
            # What waited in the queue before is over.
            scene.watch("bob", 20)
            scene.watch("bob", 60)
            assert scene.sent("bob")["other_layer"] > 0
            assert scene.stats("bob")["frameWidth"] < WIDTH, "there is no room for more"

            proxy.limit(scene.session("bob")["remote"], None)
            scene.wait("bob gets all again", lambda: scene.shows("bob", WIDTH) and scene.sent("bob")["layers_sent"] == 3)
            scene.watch("bob", 40)

            after = scene.stats("carl")
            assert (after["packetsLost"], after["nackCount"], after["frameWidth"]) == (0, 0, WIDTH), after
            assert scene.sent("carl")["layers_sent"] == 3 and scene.sent("carl")["other_layer"] == 0
            chromium.run(scene.tabs["ann"], "pc.close();")
    finally:
        proxy.close()
