"""Columns of H.264: clips by x264, and each tile of a column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.tools.cache import cached
from tests.tools.tiling import clips, rtp, sliced
from tests.tools.tiling.clips import Clip, Picture
from tests.tools.tiling.sliced import Codec, guarded

GUARD = 48


@cached(clips.__file__, sliced.__file__)
def clip(kind: str, rate: int, seconds: float, *, seed: int = 1, start: float = 0.0, profile: str = "baseline", intra: int = 1, guard: bool = False, x264: str = "") -> Clip:
    """A clip by x264, each `intra`th picture an IDR picture."""
    count = int(rate * seconds)
    pictures: Iterable[Any] = clips.frames(kind, str(rate), count, seed=seed)
    size = (176, 144 + 2 * GUARD * guard)
    if guard:
        pictures = guarded(pictures, GUARD)
    parameters = f"keyint={intra}:min-keyint={intra}:scenecut=0:ref=1:bframes=0:weightp=0:qp={23 + seed}:sliced-threads=0:aud=0{x264 and ':' + x264}"
    coded = clips.encode("libx264", pictures, str(rate), size=size, profile=profile, preset="veryfast", **{"x264-params": parameters})
    return Clip([start + at / rate for at in range(count)], coded, clips.decode("h264", coded))


def tile(pictures: list[Picture], place: int, height: int = 144) -> list[Picture]:
    return [clips.cut(picture, 0, height * place, 176, height) for picture in pictures]


CODEC = Codec("h264", "h264", rtp.h264_payloads, rtp.h264_picture, clip, tile)
