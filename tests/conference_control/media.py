"""Real pictures and sound: clips that FFmpeg encodes and packs into RTP, parties that send them, and FFmpeg again to unpack and decode what came.

Pictures carry the number of their sender and of the frame as black and white squares, so that what a decoder gives can be
held against what was encoded, frame by frame. Sound is a tone of the sender's own.
"""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import struct
import tempfile
import threading
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from tests.tools.conference.rtcp import Kind, build_pli, build_rr, requests, walk
from tests.tools.conference.rtp import MediaError
from tests.conference_control.lab import Bridge
from tests.lab.ports import free_port
from tests.lab.processes import open_socket
from tests.tools.cache import cached

CLIPS = 4
FPS, GOP, FRAMES = 30, 16, 64
TEMPORAL = (0, 2, 1, 2)  # layer of each frame, over and over
_SYNC = (True, True, True, False)  # whether a frame depends on the lowest layer alone (RFC 7741: Y)
WIDTH, HEIGHT, SQUARE = 176, 144, 12
TONE_HZ, TONE_STEP_HZ = 440, 150
SOUND_PACKETS, SOUND_S, RATE = 100, 0.02, 48_000
PAYLOAD_TYPE = {"audio": 111, "video": 96}
_CLOCK = {"audio": RATE, "video": 90_000}
_FORMAT = {"audio": "opus/48000/2", "video": "VP8/90000"}
_ID_BITS, _NUMBER_BITS = 4, 8
_FIRST_PORT = 42_000
_SILENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class Clip:
    """What a party sends over and over: for each frame its packets (marker, payload), and the pictures as they were before encoding."""

    frames: list[list[tuple[bool, bytes]]]
    pictures: list[np.ndarray]


class _Packets:
    """Takes what FFmpeg's RTP muxer writes, a packet at a time."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def write(self, data: bytes) -> int:
        if not 192 <= data[1] <= 223:
            self.taken.append(bytes(data))
        return len(data)

    def frame(self) -> list[tuple[bool, bytes]]:
        """The packets since the last call."""
        taken, self.taken = self.taken, []
        return [(bool(packet[1] & 0x80), packet[12:]) for packet in taken]


def _picture(sender: int, number: int) -> np.ndarray:
    """A luma plane: a still texture, a bar that moves, and the squares that say whose and which frame it is."""
    texture = np.random.default_rng(sender).integers(60, 180, (HEIGHT // 8, WIDTH // 8), np.uint8)
    luma = np.kron(texture, np.ones((8, 8), np.uint8))
    luma[40:60, (7 * number) % (WIDTH - 40) :][:, :40] = 230
    for place in range(_ID_BITS + _NUMBER_BITS):
        bit = (sender << _NUMBER_BITS | number) >> place & 1
        luma[:SQUARE, place * SQUARE : (place + 1) * SQUARE] = 235 if bit else 16
    return luma


def read_squares(luma: np.ndarray) -> tuple[int, int]:
    """(sender, frame) of a picture."""
    value = sum(int(luma[3:9, place * SQUARE + 3 : place * SQUARE + 9].mean() > 125) << place for place in range(_ID_BITS + _NUMBER_BITS))
    return value >> _NUMBER_BITS, value & (1 << _NUMBER_BITS) - 1


@functools.cache
@cached()
def pictures(sender: int) -> Clip:
    """VP8 in three temporal layers, a key frame every GOP frames."""
    sink, frames, originals = _Packets(), [], []
    with av.open(sink, "w", format="rtp", buffer_size=1200, options={"payload_type": str(PAYLOAD_TYPE["video"])}) as container:
        stream = container.add_stream("libvpx", rate=FPS)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate, stream.gop_size = WIDTH, HEIGHT, "yuv420p", 300_000, GOP
        layers = f"ts_number_layers=3:ts_target_bitrate=120,200,300:ts_rate_decimator=4,2,1:ts_periodicity=4:ts_layer_id={','.join(map(str, TEMPORAL))}:ts_layering_mode=3"
        stream.options = {"deadline": "realtime", "cpu-used": "8", "keyint_min": str(GOP), "lag-in-frames": "0", "error-resilient": "default", "ts-parameters": layers}
        for number in range(FRAMES):
            luma = _picture(sender, number)
            frame = av.VideoFrame.from_ndarray(np.vstack([luma, np.full((HEIGHT // 2, WIDTH), 128, np.uint8)]), format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            for packet in stream.encode(frame):
                container.mux(packet)
            frames.append([(marker, _tell_layer(payload, number)) for marker, payload in sink.frame()])
            originals.append(luma)
    assert all(frames), "a frame without packets"
    return Clip(frames, originals)


def _tell_layer(payload: bytes, number: int) -> bytes:
    """FFmpeg's payload descriptor (RFC 7741) has a picture id on the first packet of a frame, and no layer: each gets the layer alone."""
    after = 1
    if payload[0] & 0x80:
        assert payload[1] == 0x80 and payload[2] & 0x80, "a picture id of 15 bits"
        after = 4
    place = number % len(TEMPORAL)
    return bytes((payload[0] | 0x80, 0x20, TEMPORAL[place] << 6 | _SYNC[place] << 5)) + payload[after:]


def tone_of(sender: int) -> int:
    return TONE_HZ + TONE_STEP_HZ * sender


@functools.cache
@cached()
def sound(sender: int) -> Clip:
    """Opus, 20 ms to a packet."""
    sink, frames = _Packets(), []
    with av.open(sink, "w", format="rtp", buffer_size=1200, options={"payload_type": str(PAYLOAD_TYPE["audio"])}) as container:
        stream = container.add_stream("libopus", rate=RATE, layout="mono", bit_rate=32_000)
        size = int(RATE * SOUND_S)
        for number in range(SOUND_PACKETS + 2):  # the encoder keeps some back
            times = (np.arange(size) + number * size) / RATE
            frame = av.AudioFrame.from_ndarray((np.sin(2 * np.pi * tone_of(sender) * times) * 12_000).astype(np.int16)[None, :], format="s16", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = RATE, number * size, Fraction(1, RATE)
            for packet in stream.encode(frame):
                container.mux(packet)
                frames.append(sink.frame())
    return Clip([frame for frame in frames if frame][:SOUND_PACKETS], [])


class Person:
    """A party with a camera and a microphone, each with ports of its own; it keeps every packet that comes, and begins its pictures anew when asked to."""

    def __init__(self, bridge: Bridge, host: str, name: str, number: int) -> None:
        """number: of its ports and SSRCs; pictures and tones are CLIPS different ones."""
        self.name, self.number = name, number
        self.got: dict[tuple[str, int], list[bytes]] = {}  # by medium and SSRC
        self.key_frames_asked = 0
        self.shown: list[int] = []  # numbers of the frames that it has sent
        self.ssrcs = {"audio": 0xA0000 + number, "video": 0xB0000 + number}
        self._relay: dict[str, tuple[str, int]] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._reports: dict[str, socket.socket] = {}
        for index, kind in enumerate(self.ssrcs):
            for offset, sockets in ((0, self._sockets), (1, self._reports)):
                made = sockets[kind] = open_socket(bridge.topology, host, socket.AF_INET, socket.SOCK_DGRAM)
                made.bind(("0.0.0.0", _FIRST_PORT + number * 4 + index * 2 + offset))
        self.clip = number % CLIPS
        self._clips = {"audio": sound(self.clip), "video": pictures(self.clip)}
        self._at = {"audio": 0, "video": 0}  # of the clip
        self._count = {"audio": 0, "video": 0}  # frames sent
        self._sequence = {"audio": 1000, "video": 60_000}  # the latter wraps
        self._anew = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def enter(self, bridge: Bridge, layers: str = "") -> None:
        """Join, and talk from now on. layers: how its pictures' layers are told ("video=vp8"); without, its pictures go on whole."""
        answer = bridge.ask("POST", f"/v1/conferences/room/participants?name={self.name}&media=audio,video" + (f"&layers={layers}" if layers else ""))
        for leg in answer["media"]:
            host, _, port = leg["relay"].rpartition(":")
            self._relay[leg["medium"]] = host, int(port)
        self._thread.start()

    def leave(self) -> None:
        """Send and receive no more."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        for made in (*self._sockets.values(), *self._reports.values()):
            made.close()

    def _live(self) -> None:
        begun = time.monotonic()
        due = {"audio": begun, "video": begun}
        kinds = {made.fileno(): kind for sockets in (self._sockets, self._reports) for kind, made in sockets.items()}
        for kind, made in self._reports.items():
            made.sendto(build_rr(self.ssrcs[kind]), (self._relay[kind][0], self._relay[kind][1] + 1))
        everything = [*self._sockets.values(), *self._reports.values()]
        while not self._over.is_set():
            for kind, gap in (("audio", SOUND_S), ("video", 1 / FPS)):
                if time.monotonic() >= due[kind]:
                    due[kind] += gap
                    self._send(kind)
            for made in select.select(everything, [], [], max(0.0, min(due.values()) - time.monotonic()))[0]:
                self._take(kinds[made.fileno()], made.recv(2048))

    def _send(self, kind: str) -> None:
        clip = self._clips[kind]
        if kind == "video":
            if self._anew:
                self._anew = False
                self._at[kind] = -(-self._at[kind] // GOP) * GOP % FRAMES
            self.shown.append(self._at[kind])
        stamp = int(self._count[kind] * _CLOCK[kind] * (SOUND_S if kind == "audio" else 1 / FPS)) & 0xFFFFFFFF
        for marker, payload in clip.frames[self._at[kind]]:
            header = struct.pack("!BBHII", 0x80, marker << 7 | PAYLOAD_TYPE[kind], self._sequence[kind], stamp, self.ssrcs[kind])
            self._sequence[kind] = self._sequence[kind] + 1 & 0xFFFF
            self._sockets[kind].sendto(header + payload, self._relay[kind])
        self._at[kind] = (self._at[kind] + 1) % len(clip.frames)
        self._count[kind] += 1

    def _take(self, kind: str, data: bytes) -> None:
        if 192 <= data[1] <= 223:
            with contextlib.suppress(MediaError):
                asked = [one for item in walk(data) if item.kind in Kind.PLI | Kind.FIR for one in requests(data, item)]
                if any(one.media_ssrc == self.ssrcs["video"] for one in asked):
                    self.key_frames_asked += 1
                    self._anew = True
            return
        ssrc = int.from_bytes(data[8:12], "big")
        stream = self.got.setdefault((kind, ssrc), [])
        if not stream and kind == "video":  # as a browser does that cannot decode yet
            self._reports[kind].sendto(build_rr(self.ssrcs[kind]) + build_pli(self.ssrcs[kind], ssrc), (self._relay[kind][0], self._relay[kind][1] + 1))
        stream.append(data)

    def packets_of(self, other: Person, kind: str) -> list[bytes]:
        """What came of another's medium, in order of arrival."""
        return list(self.got.get((kind, other.ssrcs[kind]), []))

    def report(self, data: bytes) -> None:
        """RTCP about pictures."""
        self._reports["video"].sendto(data, (self._relay["video"][0], self._relay["video"][1] + 1))


def decode(kind: str, packets: list[bytes]) -> list[np.ndarray]:
    """What FFmpeg makes of these RTP packets: luma planes, or samples (mono, -1 to 1) frame by frame."""
    port = free_port()
    number = PAYLOAD_TYPE[kind]
    sdp = f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=-\nc=IN IP4 127.0.0.1\nt=0 0\nm={kind} {port} RTP/AVP {number}\na=rtpmap:{number} {_FORMAT[kind]}\n"
    with tempfile.NamedTemporaryFile("w", suffix=".sdp") as file:
        Path(file.name).write_text(sdp)
        feeder = threading.Thread(target=_feed, args=(packets, port), daemon=True)
        feeder.start()
        options = {"protocol_whitelist": "file,udp,rtp", "analyzeduration": "300000", "buffer_size": "8000000"}
        found: list[np.ndarray] = []
        with av.open(file.name, options=options, timeout=(20.0, _SILENCE_S)) as container, contextlib.suppress(av.error.ExitError):  # the end: nothing came for so long
            for frame in container.decode(**{kind: 0}):
                found.append(_plain(frame))
        feeder.join()
    return found


def _plain(frame: Any) -> np.ndarray:
    if isinstance(frame, av.VideoFrame):
        return frame.to_ndarray(format="yuv420p")[: frame.height]
    samples = frame.to_ndarray().astype(np.float64)
    samples = samples / 32768 if frame.format.name.startswith("s16") else samples
    return samples[0] if frame.format.is_planar else samples.reshape(-1, len(frame.layout.channels))[:, 0]


def _feed(packets: list[bytes], port: int) -> None:
    """Send to a decoder once it listens."""
    deadline = time.monotonic() + 120
    while f":{port:04X} " not in Path("/proc/net/udp").read_text() and time.monotonic() < deadline:
        time.sleep(0.005)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for packet in packets:
            sender.sendto(packet, ("127.0.0.1", port))
            time.sleep(0.0002)
