"""Grids of H.265: clips by x265, and each tile of a grid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.tools.cache import cached
from tests.tools.tiling import clips, rtp, sliced
from tests.tools.tiling.clips import Clip, Picture
from tests.tools.tiling.sliced import Codec, guarded

WIDTH, HEIGHT, GUARD = 256, 192, 48


@cached(clips.__file__, sliced.__file__)
def clip(kind: str, rate: int, seconds: float, *, seed: int = 1, start: float = 0.0, intra: int = 1, guard: bool = False, width: int = WIDTH, x265: str = "") -> Clip:
    """A clip by x265, each `intra`th picture an IDR picture. FFmpeg 8.0 decodes sample adaptive offsets in coding trees of 16 otherwise than x265 does."""
    count, band = int(rate * seconds), GUARD * guard
    pictures: Iterable[Any] = clips.frames(kind, str(rate), count, size=f"{width - 2 * band}x{HEIGHT - 2 * band}", seed=seed)
    if guard:
        pictures = guarded(pictures, GUARD, GUARD)
    parameters = f"keyint={intra}:min-keyint={intra}:no-open-gop=1:scenecut=0:bframes=0:ref=1:weightp=0:temporal-mvp=0:ctu=16:sao=0:wpp=0:frame-threads=1:pools=none:qp={23 + seed}"
    more = f":{x265}" if x265 else ""
    coded = clips.encode("libx265", pictures, str(rate), size=(width, HEIGHT), preset="veryfast", **{"x265-params": f"{parameters}:repeat-headers=1:info=0:log-level=error{more}"})
    return Clip([start + at / rate for at in range(count)], coded, clips.decode("hevc", coded))


def tile(pictures: list[Picture], place: int, columns: int = 2) -> list[Picture]:
    return [clips.cut(picture, WIDTH * (place % columns), HEIGHT * (place // columns), WIDTH, HEIGHT) for picture in pictures]


CODEC = Codec("h265", "hevc", rtp.h265_payloads, rtp.h265_picture, clip, tile)
