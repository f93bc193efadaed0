"""Tiles made of slices, of H.264 or H.265: guard bands of sources, comparison with what the source's own decoder shows, and what holds for both codecs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np

from tests.tools.tiling import clips, program, rtp
from tests.tools.tiling.clips import Clip, Payloads, Picture
from tests.tools.tiling.program import INTRA, PREDICTED, Events


def guarded(pictures: Iterable[Any], rows: int, columns: int = 0) -> Iterable[Any]:
    """Pictures with bands of grey above and below, and at both sides."""
    for picture in pictures:
        bands = [(rows, columns), (rows // 2, columns // 2), (rows // 2, columns // 2)]
        flat = [np.pad(plane, ((high, high), (wide, wide)), constant_values=128) for plane, (high, wide) in zip(clips.planes(picture), bands, strict=True)]
        width = flat[0].shape[1]
        yield av.VideoFrame.from_ndarray(np.concatenate([plane.reshape(-1, width) for plane in flat]), format="yuv420p")


def grey(picture: Picture) -> bool:
    return all(bool((plane == 128).all()) for plane in picture)


def mismatching(shown: list[Picture], source: Clip) -> int:
    """Pictures of a tile that are not, in turn, the source's; grey before the first is passed over."""
    shown, wanted = clips.changes(shown), clips.changes(source.pictures)
    shown = shown[grey(shown[0]) :]
    return sum(not clips.same(one, other) for one, other in zip(shown, wanted, strict=False)) + abs(len(shown) - len(wanted))


@dataclass(frozen=True)
class Codec:
    """A codec whose tiles are slices: its name, FFmpeg's name of its decoder, its payload format both ways, a clip of it, and one tile of pictures."""

    name: str
    decoder: str
    payloads: Payloads
    joined: Callable[[list[bytes]], bytes]
    clip: Callable[..., Clip]
    tile: Callable[..., list[Picture]]

    def send(self, events: Events, place: int, ssrc: int, source: Clip) -> list[tuple[float, bytes]]:
        sender, sent = rtp.Sender(ssrc, 97), []
        for time, coded in zip(source.times, source.coded, strict=True):
            sent += [(time, packet) for packet in sender.packets(self.payloads(coded), time)]
        for time, packet in sent:
            events.packet(time, place, packet)
        return sent

    def received(self, packets: list[tuple[float, bytes]]) -> tuple[list[float], list[Picture]]:
        listed = list(rtp.pictures(packets))
        decoded = clips.decode(self.decoder, [self.joined(payloads) for _, payloads, _ in listed])
        assert len(decoded) == len(listed), "the decoder lost pictures"
        return [time for time, _, _ in listed], decoded


def check_joins_and_leaves(tiling: Path, codec: Codec) -> None:
    """A source stays, one leaves, one comes to its place later, and a receiver begins in mid-stream."""
    events = Events()
    stays = codec.clip("moving", 10, 4, seed=1)
    leaves = codec.clip("testsrc", 10, 1, seed=2)
    late = codec.clip("mandelbrot", 7, 2.2, seed=3, start=1.8)
    events.join(0, 0, 100, region=INTRA)
    events.join(0, 1, 101, region=INTRA)
    events.add(1.0, program.LEAVE, 1)
    events.join(2.05, 1, 102, region=INTRA)
    for place, ssrc, source in ((0, 100, stays), (1, 101, leaves), (1, 102, late)):
        codec.send(events, place, ssrc, source)
    events.add(3.01, program.KEY_FRAME, 0)
    output = program.run(tiling, codec.name, events)
    times, pictures = codec.received(output.packets[0])
    assert mismatching(codec.tile(pictures, 0), stays) == 0
    second = list(zip(times, codec.tile(pictures, 1), strict=True))
    assert all(grey(picture) for time, picture in second if 1.2 < time < 2.05)
    shown = [picture for picture in clips.changes(picture for time, picture in second if time > 2.05) if not grey(picture)]
    assert len(shown) == len([time for time in late.times if time > 2.05])
    assert all(clips.same(one, other) for one, other in zip(reversed(shown), reversed(late.pictures), strict=False))
    # All tiles are shown at once, those without a new picture too, by their last one.
    start = next(at for at, time in enumerate(times) if time >= 3.01)
    _, begun = codec.received([packet for packet in output.packets[0] if packet[0] >= 3.01])
    assert all(clips.same(one, other) for one, other in zip(begun, pictures[start:], strict=True))


def check_loss(tiling: Path, codec: Codec, *, guard: bool, **tile: Any) -> None:
    """Of a source that loses one packet in a hundred, only its own pictures are shown."""
    rng = random.Random(5)
    events = Events()
    source = codec.clip("moving", 10, 8, intra=5 if guard else 1, guard=guard)
    events.join(0, 0, 100, region=PREDICTED if guard else INTRA)
    for time, packet in codec.send(Events(), 0, 100, source):
        if rng.random() >= 0.01:
            events.packet(time, 0, packet)
    output = program.run(tiling, codec.name, events)
    _, pictures = codec.received(output.packets[0])
    shown = codec.tile(pictures, 0, **tile)
    strange = [picture for picture in shown if not grey(picture) and not any(clips.same(picture, own) for own in source.pictures)]
    assert len(strange) == 0
    assert len(source.pictures) // 3 < len(pictures) < len(source.pictures)
    assert any(time > 0.5 for time, ssrc in output.asked if ssrc == 100) or not guard
