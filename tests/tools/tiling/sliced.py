"""Tiles made of slices: guard bands of sources, and comparison with what the source's own decoder shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import av
import numpy as np

from tests.tools.tiling import clips
from tests.tools.tiling.clips import Clip, Picture


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
