"""Generated clips, encoded and decoded by FFmpeg."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

Picture = tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]
"""The three planes of 4:2:0."""
Payloads = Callable[[bytes], list[bytes]]
"""Cuts a picture's bits into payloads of packets."""
KINDS = ("testsrc", "mandelbrot", "noise", "moving")
_SOURCES = {
    "testsrc": "testsrc=size={size}:rate={rate}",
    "grain": "color=c=gray:size={size}:rate={rate},noise=all_seed={seed}:c0s=10:c0f=t",
    "mandelbrot": "mandelbrot=size={size}:rate={rate}",
    "noise": "color=c=gray:size={size}:rate={rate},noise=all_seed={seed}:c0s=40:c0f=t:c1s=40:c1f=t:c2s=40:c2f=t",
    "moving": "life=size={size}:rate={rate}:ratio=0.3:seed={seed}:mold=10:life_color=#C83232:death_color=#32C8FF",
}


@dataclass
class Clip:
    """A source: when each picture is taken (seconds), its bits, and what its own decoder makes of them."""

    times: list[float]
    coded: list[bytes]
    pictures: list[Picture] = field(default_factory=list)


def frames(kind: str, rate: str, count: int, *, size: str = "176x144", seed: int = 1) -> Iterator[Any]:
    """Pictures of a generated clip; moving clips begin at another place for each seed."""
    with av.open(_SOURCES[kind].format(size=size, rate=rate, seed=seed), format="lavfi") as source:
        for at, frame in enumerate(source.decode(video=0)):
            if at >= 7 * seed + count:
                return
            if at >= 7 * seed:
                yield frame.reformat(format="yuv420p")


def encode(codec: str, pictures: Iterable[Any], rate: str, *, size: tuple[int, int] = (176, 144), bit_rate: int = 0, **options: str) -> list[bytes]:
    """Each picture's bits."""
    context: Any = av.CodecContext.create(codec, "w")
    context.width, context.height, context.pix_fmt = *size, "yuv420p"
    context.rate = Fraction(rate)
    if bit_rate:
        context.bit_rate = bit_rate
    context.options = options
    context.thread_count = 1
    coded = []
    for at, picture in enumerate(pictures):
        picture.pts, picture.time_base, picture.pict_type = at, 1 / context.rate, 0
        coded += [bytes(packet) for packet in context.encode(picture)]
    return coded + [bytes(packet) for packet in context.encode(None)]


def planes(frame: Any) -> Picture:
    """The planes of a decoded picture."""
    width, height = frame.width, frame.height
    flat = frame.to_ndarray(format="yuv420p").reshape(-1)
    luma, chroma = width * height, width * height // 4
    half = (height // 2, width // 2)
    return flat[:luma].reshape(height, width), flat[luma : luma + chroma].reshape(half), flat[luma + chroma :].reshape(half)


def decode_each(codec: str, coded: Iterable[bytes]) -> Iterator[Picture]:
    """What a decoder makes of pictures, one after the other."""
    context: Any = av.CodecContext.create(codec, "r")
    context.thread_count = 1
    for bits in coded:
        yield from map(planes, context.decode(av.Packet(bits)))
    yield from map(planes, context.decode(None))


def decode(codec: str, coded: Iterable[bytes]) -> list[Picture]:
    """The same, at once."""
    return list(decode_each(codec, coded))


def cut(picture: Picture, x: int, y: int, width: int, height: int) -> Picture:
    """A part of a picture."""
    luma, blue, red = picture
    return (
        luma[y : y + height, x : x + width],
        blue[y // 2 : (y + height) // 2, x // 2 : (x + width) // 2],
        red[y // 2 : (y + height) // 2, x // 2 : (x + width) // 2],
    )


def same(one: Picture, other: Picture) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def changes(pictures: Iterable[Picture]) -> list[Picture]:
    """Pictures without those that repeat the one before."""
    kept: list[Picture] = []
    for picture in pictures:
        if not kept or not same(kept[-1], picture):
            kept.append(picture)
    return kept


def decode_file(path: Path) -> list[Picture]:
    """What a decoder makes of a bit stream in a file."""
    with av.open(str(path)) as source:
        return [planes(frame) for frame in source.decode(video=0)]
