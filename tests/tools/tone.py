"""Phones that send tones and say whose tones they have heard: RTP in G.711, G.722 and Opus, which FFmpeg encodes and decodes."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import av
import numpy as np

FRAME_S = 0.02
FRAMES = 50
"""Packets of one tone, sent over and over: a second of a whole number of Hz has no seam."""
AMPLITUDE = 3000
HEARD = AMPLITUDE / 3
"""A tone above this is heard, one below a tenth of it is not."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec as SDP and FFmpeg know it; clock_hz: of timestamps."""

    payload_type: int
    rtpmap: str
    ffmpeg: str
    rate_hz: int
    clock_hz: int

    @property
    def encoding(self) -> str:
        return self.rtpmap.split("/")[0]


PCMU = Codec(0, "PCMU/8000", "pcm_mulaw", 8000, 8000)
PCMA = Codec(8, "PCMA/8000", "pcm_alaw", 8000, 8000)
G722 = Codec(9, "G722/8000", "g722", 16000, 8000)
OPUS = Codec(111, "opus/48000/2", "libopus", 48000, 48000)


def encode(codec: Codec, hz: int, amplitude: int = AMPLITUDE) -> list[bytes]:
    """The payloads of a tone, one for each 20 ms."""
    context = av.CodecContext.create(codec.ffmpeg, "w")
    context.sample_rate, context.layout, context.format = codec.rate_hz, "mono", "s16"
    if codec.ffmpeg == "libopus":
        context.options = {"application": "voip", "frame_duration": "20"}
    count = int(codec.rate_hz * FRAME_S)
    payloads: list[bytes] = []
    for number in range(FRAMES + 5):
        times = (number * count + np.arange(count)) / codec.rate_hz
        samples = (amplitude * np.sin(2 * np.pi * hz * times)).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts = codec.rate_hz, number * count
        payloads += [bytes(packet) for packet in context.encode(frame)]
    return payloads[:FRAMES]


def decode(codec: Codec, payloads: Iterable[bytes]) -> np.ndarray:
    """Samples of what came, at the codec's rate."""
    name = "opus" if codec.ffmpeg == "libopus" else codec.ffmpeg
    context = av.CodecContext.create(name, "r")
    if codec.ffmpeg != "libopus":
        context.sample_rate, context.layout = codec.rate_hz, "mono"
    else:
        context.sample_rate = codec.rate_hz
    blocks: list[np.ndarray] = []
    for payload in payloads:
        for frame in context.decode(av.Packet(payload)):
            block = frame.to_ndarray()
            mono = block[0] if frame.format.is_planar else block[0][:: len(frame.layout.channels)]
            blocks.append(mono.astype(float) * (32768 if frame.format.name.startswith("flt") else 1))
    return np.concatenate(blocks) if blocks else np.zeros(0)


def amplitude(samples: np.ndarray, rate_hz: int, hz: float) -> float:
    """How loud a tone is in samples, whatever its phase: by 100 ms, since a jitter buffer may shorten between them."""
    size = rate_hz // 10
    found = []
    for at in range(0, len(samples) - size + 1, size):
        angle = 2j * np.pi * hz * np.arange(size) / rate_hz
        found.append(2 * abs(np.sum(samples[at : at + size] * np.exp(-angle))) / size)
    return float(np.median(found)) if found else 0.0


def loudest(phone: TonePhone, since: float, hz: float) -> float:
    """How loud a tone has been for a tenth of a second, at its loudest."""
    packets = sorted(phone.since(since), key=lambda packet: packet.sequence)
    samples, rate = decode(phone.codec, [packet.payload for packet in packets]), phone.codec.rate_hz
    blocks = [samples[at : at + rate // 10] for at in range(0, len(samples) - rate // 10 + 1, rate // 50)]
    return max((amplitude(block, rate, hz) for block in blocks), default=0.0)


def rtp(payload_type: int, sequence: int, timestamp: int, ssrc: int, payload: bytes) -> bytes:
    return struct.pack("!BBHII", 0x80, payload_type, sequence & 0xFFFF, timestamp & 0xFFFFFFFF, ssrc) + payload


@dataclass(slots=True)
class Packet:
    """A packet that came, and when (s)."""

    when: float
    payload_type: int
    sequence: int
    timestamp: int
    ssrc: int
    csrcs: tuple[int, ...]
    payload: bytes

    @classmethod
    def read(cls, when: float, data: bytes) -> Packet:
        first, second, sequence, timestamp, ssrc = struct.unpack_from("!BBHII", data)
        count = first & 15
        at = 12 + 4 * count
        csrcs = struct.unpack_from(f"!{count}I", data, 12)
        if first & 0x10:
            at += 4 + 4 * struct.unpack_from("!H", data, at + 2)[0]
        return cls(when, second & 0x7F, sequence, timestamp, ssrc, csrcs, data[at:])


@dataclass(slots=True)
class TonePhone:
    """Sends a tone of its own to `to`, from its socket, and keeps what comes."""

    name: str
    codec: Codec
    hz: int
    ssrc: int
    socket: socket.socket
    to: tuple[str, int] | None = None
    talks: bool = True
    number: int = 0
    heard: list[Packet] = field(default_factory=list)
    rtcp: list[tuple[float, bytes]] = field(default_factory=list)
    """RTCP that came, and when (s)."""
    payloads: list[bytes] = field(default_factory=list)
    drops: frozenset[int] = frozenset()
    """Packets of a hundred that the network loses on their way."""

    def __post_init__(self) -> None:
        self.payloads = encode(self.codec, self.hz)
        self.socket.setblocking(False)

    def send(self) -> None:
        """The next 20 ms."""
        number, self.number = self.number, self.number + 1
        if self.to is None or not self.talks or number % 100 in self.drops:
            return
        timestamp = number * int(self.codec.clock_hz * FRAME_S)
        self.socket.sendto(rtp(self.codec.payload_type, number, timestamp, self.ssrc, self.payloads[number % FRAMES]), self.to)

    def press(self, key: int) -> None:
        """A key: a telephone event of three packets (payload type 101)."""
        timestamp = self.number * int(self.codec.clock_hz * FRAME_S)
        for duration in (160, 320, 480):
            if self.to is not None:
                self.socket.sendto(rtp(101, self.number, timestamp, self.ssrc, struct.pack("!BBH", key, 0x8A if duration == 480 else 0x0A, duration)), self.to)
            self.number += 1

    def report(self, compound: bytes) -> None:
        """RTCP, from the port of RTP: so that is where RTCP comes to."""
        if self.to is not None:
            self.socket.sendto(compound, (self.to[0], self.to[1] + 1))

    def talk(self, relay: str) -> None:
        """Send to this address from now on."""
        host, _, port = relay.rpartition(":")
        self.to = host, int(port)

    def hush(self) -> None:
        self.to = None

    def close(self) -> None:
        self.socket.close()

    def since(self, when: float) -> list[Packet]:
        return [packet for packet in self.heard if packet.when >= when]

    def hears(self, when: float, hz: float) -> float:
        """How loud a tone has been since a time."""
        packets = sorted(self.since(when), key=lambda packet: packet.sequence)
        samples = decode(self.codec, (packet.payload for packet in packets))
        return amplitude(samples, self.codec.rate_hz, hz)


class Talk:
    """Phones that talk, each 20 ms one packet, and listen, until the end of the context."""

    def __init__(self, phones: Sequence[TonePhone]) -> None:
        self.phones = list(phones)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, daemon=True), threading.Thread(target=self._receive, daemon=True)]

    def __enter__(self) -> Talk:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            for phone in list(self.phones):
                phone.send()
            due += FRAME_S
            time.sleep(max(0.0, due - time.monotonic()))

    def _receive(self) -> None:
        while not self._stop.is_set():
            phones = {phone.socket: phone for phone in list(self.phones)}
            ready, _, _ = select.select(list(phones), [], [], 0.1)
            for one in ready:
                while True:
                    try:
                        data = one.recv(2048)
                    except BlockingIOError:
                        break
                    if len(data) > 1 and 192 <= data[1] <= 223:
                        phones[one].rtcp.append((time.monotonic(), data))
                    else:
                        phones[one].heard.append(Packet.read(time.monotonic(), data))


def deaf(phones: Sequence[TonePhone], when: float) -> list[str]:
    """Whom each phone has not heard since a time, and who has heard itself: nothing, where everybody heard all others."""
    wrong: list[str] = []
    for phone in phones:
        for other in phones:
            found = phone.hears(when, other.hz)
            if other is phone and found > HEARD / 2:
                wrong.append(f"{phone.name} hears itself ({found:.0f})")
            if other is not phone and other.talks and found < HEARD:
                wrong.append(f"{phone.name} does not hear {other.name} ({found:.0f})")
    return wrong


def await_heard(phones: Sequence[TonePhone], seconds: float = 120.0) -> None:
    """Waits until each phone hears all others and not itself, for half a second. Fails with the phones that do not."""
    deadline = time.monotonic() + seconds
    while True:
        since = time.monotonic()
        time.sleep(0.5)
        wrong = deaf(phones, since)
        if not wrong:
            return
        assert time.monotonic() < deadline, wrong


def await_silence(phone: TonePhone, hz: float, below: float = HEARD / 5, seconds: float = 120.0) -> None:
    """Waits until a phone hears a tone no longer, for half a second. Fails with the tone's amplitude."""
    deadline = time.monotonic() + seconds
    while True:
        since = time.monotonic()
        time.sleep(0.5)
        found = phone.hears(since, hz)
        if phone.since(since) and found < below:
            return
        assert time.monotonic() < deadline, f"{phone.name} hears {hz} Hz ({found:.0f}), {len(phone.since(since))} packets"


def await_tone(phone: TonePhone, hz: float, above: float = HEARD, seconds: float = 120.0) -> None:
    """Waits until a phone hears a tone, for half a second. Fails with the tone's amplitude."""
    deadline = time.monotonic() + seconds
    while True:
        since = time.monotonic()
        time.sleep(0.5)
        found = phone.hears(since, hz)
        if found > above:
            return
        assert time.monotonic() < deadline, f"{phone.name} does not hear {hz} Hz ({found:.0f})"
