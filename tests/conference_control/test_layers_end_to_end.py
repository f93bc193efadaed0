"""A browser's stream through the real softswitch to a slow receiver: its frame rate falls and rises again, and its numbers never have a gap.

What is sent are the headers that Chromium sent, again and again, so that template ids move to and fro. Packets are numbered
at their end; a receiver's own record says what it got.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tools.conference import descriptor, rtp
from tests.tools.conference.rtcp import build_pli, build_remb, build_rr
from tests.conference_control.lab import Bridge, Party, Phone, await_that
from tests.conference_control.room import NEEDS as pytestmark, OWN_SSRC
from tests.lab.processes import open_socket
from tests.lab.topology import LabError

VECTORS = Path(__file__).parents[1] / "vectors" / "conference"
EXTENSION = 12
LAYERS = f"video=dependency-descriptor:{EXTENSION}"


class Got(NamedTuple):
    """A packet as it came: the number in its header, its place among all that were sent, its frame."""

    number: int
    index: int
    frame: int


class Camera:
    """Sends a browser's packets from a socket of its own, over and over, and knows what each was."""

    def __init__(self, bridge: Bridge, host: str, capture: str) -> None:
        lines = [line.split() for line in (VECTORS / f"{capture}.txt").read_text().splitlines() if not line.startswith("#")]
        self._packets = [(bytearray.fromhex(head), int(size)) for size, head in lines]
        self._first = int.from_bytes(self._packets[0][0][2:4], "big")
        self._elements = [self._descriptor(bytes(head)) for head, _ in self._packets]
        self._frames = descriptor.parse_mandatory(bytes(self._packets[-1][0][self._elements[-1]])).frame_number + 1
        self.ssrc = int.from_bytes(self._packets[0][0][8:12], "big")
        self.sent = 0
        self.frames: list[int] = []  # of each packet
        self.temporal: dict[int, int] = {}  # layer of each frame
        self.requests = b""  # all RTCP that came
        self._structure: descriptor.Structure | None = None
        self._socket = open_socket(bridge.topology, host, socket.AF_INET, socket.SOCK_DGRAM)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._relay = ("", 0)

    @staticmethod
    def _descriptor(head: bytes) -> slice:
        header = rtp.parse_header(head)
        return next(element.data for element in rtp.elements(head, header) if element.id == EXTENSION)

    def start(self, relay: str) -> None:
        host, _, port = relay.rpartition(":")
        self._relay = host, int(port)
        self._thread.start()

    def report(self) -> None:
        """RTCP, from the port of its media."""
        self._socket.sendto(build_rr(self.ssrc), self._relay)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while not self._over.is_set():
            turn, nth = divmod(self.sent, len(self._packets))
            (head, size), where = self._packets[nth], self._elements[nth]
            made = bytearray(head)
            made[2:4] = (self._first + self.sent & 0xFFFF).to_bytes(2, "big")
            told = descriptor.parse(bytes(head[where]), self._structure)
            self._structure = told.structure or self._structure
            frame = told.mandatory.frame_number + turn * self._frames & 0xFFFF
            made[where.start + 1 : where.start + 3] = frame.to_bytes(2, "big")
            self.frames.append(frame)
            self.temporal[frame] = told.template.temporal
            self._socket.sendto(bytes(made) + bytes(max(size - 4, 0)) + self.sent.to_bytes(4, "big"), self._relay)
            self.sent += 1
            with contextlib.suppress(BlockingIOError):
                while True:
                    came = self._socket.recv(2048, socket.MSG_DONTWAIT)
                    self.requests += came if 192 <= came[1] <= 223 else b""
            time.sleep(0.004)


class Viewer(Party):
    """Sends as any participant; of a camera it notes each packet."""

    def __init__(self, *args: object, camera: Camera) -> None:
        self.camera = camera
        self.seen: list[Got] = []
        super().__init__(*args)  # type: ignore[arg-type]

    def _receive(self) -> None:
        self.socket.settimeout(0.05)
        while not self._over.is_set():
            try:
                data = self.socket.recv(2048)
            except TimeoutError:
                continue
            if not 192 <= data[1] <= 223 and int.from_bytes(data[8:12], "big") == self.camera.ssrc:
                index = int.from_bytes(data[-4:], "big")
                self.seen.append(Got(int.from_bytes(data[2:4], "big"), index, self.camera.frames[index]))

    def await_packets(self, least: int, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while len(self.seen) < least:
            if time.monotonic() > deadline:
                raise LabError(f"{self.name} got {len(self.seen)} packets, not {least}")
            time.sleep(0.02)

    def without_gaps(self) -> bool:
        return [one.number for one in self.seen] == [self.seen[0].number + n & 0xFFFF for n in range(len(self.seen))]

    def share(self, start: int, stop: int) -> float:
        """Of the frames that were sent between two packets, those of which something came."""
        sent = {self.camera.frames[n] for n in range(start, stop)}
        return len({one.frame for one in self.seen if start <= one.index < stop}) / len(sent)

    def decodable(self) -> bool:
        """Whether each frame came whole, and none is of a layer above one that was left out: dependencies go to lower layers, and to the frame four before."""
        got: dict[int, set[int]] = {}
        for one in self.seen:
            got.setdefault(one.frame, set()).add(one.index)
        sent: dict[int, set[int]] = {}
        for index, frame in enumerate(self.camera.frames):
            sent.setdefault(frame, set()).add(index)
        inner = [frame for frame in got if self.seen[0].index < min(sent[frame]) and max(sent[frame]) < self.seen[-1].index]
        return all(got[frame] == sent[frame] for frame in inner)


def viewer(bridge: Bridge, host: str, name: str, camera: Camera) -> Viewer:
    made = Viewer(bridge.topology, host, name, camera=camera)
    bridge.parties.append(made)
    made.talk(bridge.join(made, media="video"))
    return made


@pytest.fixture
def stage(request: pytest.FixtureRequest, room: Bridge) -> Iterator[tuple[Bridge, Camera, Viewer, Viewer]]:
    """Ann's camera, and two who watch it: bob gets everything."""
    camera = Camera(room, "caller", getattr(request, "param", "chromium_av1"))
    answer = room.ask("POST", f"/v1/conferences/room/participants?name=ann&media=video&layers={LAYERS}")
    camera.start(answer["media"][0]["relay"])
    try:
        bob, cem = viewer(room, "callee", "bob", camera), viewer(room, "natcaller", "cem", camera)
        room.await_design("NRA")
        bob.await_packets(50)
        cem.await_packets(50)
        yield room, camera, bob, cem
    finally:
        camera.close()


def target(bridge: Bridge, receiver: str, number: int) -> None:
    bridge.ask("POST", f"/v1/conferences/room/target?sender=ann&receiver={receiver}&target={number}")


def phase(viewer: Viewer, target: int, count: int = 400) -> tuple[int, int]:
    """So many packets that are sent from when a viewer gets this target, and have arrived."""
    camera = viewer.camera

    def holds() -> bool:
        recent = set(camera.frames[-80:-20])
        return {one.frame for one in viewer.seen[-100:]} & recent == {frame for frame in recent if camera.temporal[frame] <= target}

    assert await_that(holds), f"{viewer.name} does not get target {target}"
    start = camera.sent
    assert await_that(lambda: viewer.seen[-1].index >= start + count), f"{viewer.name} gets nothing more"
    return start, start + count


@pytest.mark.parametrize("stage", ["chromium_av1", pytest.param("chromium_vp8", marks=pytest.mark.slow)], indirect=True)
def test_a_slow_receivers_frame_rate_falls_and_rises_without_gaps(stage: tuple[Bridge, Camera, Viewer, Viewer]) -> None:
    bridge, camera, bob, cem = stage
    target(bridge, "cem", 1)
    bridge.await_design("RA-SR")
    halved = phase(cem, 1)
    target(bridge, "cem", 0)
    quartered = phase(cem, 0)
    target(bridge, "cem", 1)
    risen = phase(cem, 1)
    target(bridge, "cem", 2)
    whole = phase(cem, 2)
    camera.report()
    before = camera.requests.count(build_pli(OWN_SSRC, camera.ssrc))
    for one in (bob, cem):
        one.send_rtcp(build_rr(one.ssrc) + build_pli(one.ssrc, camera.ssrc))
    assert await_that(lambda: camera.requests.count(build_pli(OWN_SSRC, camera.ssrc)) > before), "a key frame is asked for in the agent's name"
    camera.close()
    await_that(lambda: bob.seen[-1].index == camera.sent - 1)
    assert bob.without_gaps() and bob.decodable() and bob.seen[-1].index == camera.sent - 1
    assert cem.without_gaps(), "numbers of what is left out are closed up"
    assert len({one.number for one in cem.seen}) == len(cem.seen) and cem.decodable()
    assert 0.45 <= cem.share(*halved) <= 0.6
    assert 0.2 <= cem.share(*quartered) <= 0.4
    assert 0.45 <= cem.share(*risen) <= 0.6
    assert cem.share(*whole) == 1.0
    assert [one for one in bridge.conference()["participants"] if one["name"] == "ann"][0]["media"][0]["layers"] == LAYERS.partition("=")[2]


def test_a_caller_says_how_its_layers_are_told(room: Bridge) -> None:
    """The header extension of the offer is taken up in the answer, with its id; a codec that tells layers itself needs none."""
    uri = "https://aomediacodec.github.io/av1-rtp-spec/#dependency-descriptor-rtp-header-extension"
    phones = [Phone(room, host, name) for host, name in (("caller", "ann"), ("callee", "bob"))]
    video = "m=audio {port} RTP/AVP 0\r\nm=video {port} RTP/AVPF 96\r\na=rtpmap:96 VP8/90000\r\n"
    assert phones[0].call("room", video + f"a=extmap:4 urn:ietf:params:rtp-hdrext:sdes:mid\r\na=extmap:13 {uri}\r\na=extmap-allow-mixed\r\n") == 200
    assert f"a=extmap:13 {uri}\r\n" in phones[0].answer and "a=extmap-allow-mixed" in phones[0].answer and "extmap:4" not in phones[0].answer
    assert phones[1].call("room", video) == 200 and "extmap" not in phones[1].answer
    told = {one["name"]: one["media"][1]["layers"] for one in room.conference()["participants"]}
    assert told == {"ann": "dependency-descriptor:13", "bob": "vp8"}
    assert [phone.bye() for phone in phones] == [200, 200]
