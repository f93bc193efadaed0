"""Several H.261 sources with their packets, and the tiles that a receiver decodes."""

from __future__ import annotations

from tests.tools.cache import cached
from tests.tools.tiling import clips, rtp
from tests.tools.tiling.clips import Clip, Payloads, Picture
from tests.tools.tiling.program import Events

WIDTH, HEIGHT = 176, 144
H261 = 31


@cached(clips.__file__)
def h261_clip(kind: str, rate: int, seconds: float, *, seed: int = 1, start: float = 0.0, bit_rate: int = 100_000, intra: int = 12) -> Clip:
    """A clip that begins at `start`, each `intra`th picture coded intra."""
    count = int(rate * seconds)
    coded = clips.encode("h261", clips.frames(kind, str(rate), count, seed=seed), str(rate), bit_rate=bit_rate, g=str(intra))
    return Clip([start + at / rate for at in range(count)], coded, clips.decode("h261", coded))


def send(events: Events, place: int, ssrc: int, clip: Clip, *, payloads: Payloads = rtp.h261_groups) -> list[tuple[float, bytes]]:
    """Adds a clip's packets to the events; returns them too."""
    sender, sent = rtp.Sender(ssrc, H261), []
    for time, coded in zip(clip.times, clip.coded, strict=True):
        sent += [(time, packet) for packet in sender.packets(payloads(coded), time)]
    for time, packet in sent:
        events.packet(time, place, packet)
    return sent


def received(packets: list[tuple[float, bytes]]) -> tuple[list[float], list[Picture]]:
    """When each picture of a tiled stream comes, and what it shows."""
    listed = list(rtp.pictures(packets))
    decoded = clips.decode("h261", [rtp.h261_picture(payloads) for _, payloads, _ in listed])
    assert len(decoded) == len(listed), "the decoder lost pictures"
    return [time for time, _, _ in listed], decoded


def tile(pictures: list[Picture], place: int) -> list[Picture]:
    """What the pictures show at a place."""
    return [clips.cut(picture, WIDTH * (place % 2), HEIGHT * (place // 2), WIDTH, HEIGHT) for picture in pictures]


def mismatching(shown: list[Picture], clip: Clip) -> int:
    """Pictures of a tile that are not, in turn, what the source's own decoder shows; what the tile showed before the first is passed over."""
    shown, wanted = clips.changes(shown), clips.changes(clip.pictures)
    first = next((at for at, picture in enumerate(shown) if clips.same(picture, wanted[0])), len(shown))
    wrong = sum(not clips.same(one, other) for one, other in zip(shown[first:], wanted, strict=False))
    return wrong + abs(len(shown) - first - len(wanted))
