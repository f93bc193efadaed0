"""H.264: what a stock decoder shows of the column is what it shows of each source alone."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.tools.conference.rtp import parse_header
from tests.tools.tiling import clips, program, rtp
from tests.tools.tiling.clips import Clip, Picture
from tests.tools.tiling.program import INTRA, PREDICTED, Events, mixed
from tests.tools.tiling.sliced import grey, guarded, mismatching

GUARD = 48


@pytest.fixture(scope="session")
def tiling() -> Path:
    return program.build()


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


def send(events: Events, place: int, ssrc: int, source: Clip) -> list[tuple[float, bytes]]:
    sender, sent = rtp.Sender(ssrc, 97), []
    for time, coded in zip(source.times, source.coded, strict=True):
        sent += [(time, packet) for packet in sender.packets(rtp.h264_payloads(coded), time)]
    for time, packet in sent:
        events.packet(time, place, packet)
    return sent


def received(packets: list[tuple[float, bytes]]) -> tuple[list[float], list[Picture]]:
    listed = list(rtp.pictures(packets))
    decoded = clips.decode("h264", [rtp.h264_picture(payloads) for _, payloads, _ in listed])
    assert len(decoded) == len(listed), "the decoder lost pictures"
    return [time for time, _, _ in listed], decoded


def tile(pictures: list[Picture], place: int, height: int = 144) -> list[Picture]:
    return [clips.cut(picture, 0, height * place, 176, height) for picture in pictures]


@pytest.mark.parametrize("profile", ["baseline", "main", "high"])
def test_each_picture_of_each_rate_is_shown_once(tiling: Path, profile: str) -> None:
    events, sources = Events(), []
    for place, (kind, rate) in enumerate(zip(clips.KINDS, (15, 12, 8, 5), strict=True)):
        sources.append(clip(kind, rate, 3, seed=place + 1, start=0.04 * place, profile=profile))
        events.join(0, place, 100 + place, region=INTRA)
        send(events, place, 100 + place, sources[-1])
    output = program.run(tiling, "h264", events, hold=60)
    _, pictures = received(output.packets[0])
    assert pictures[0][0].shape == (4 * 144, 176)
    assert [mismatching(tile(pictures, place), source) for place, source in enumerate(sources)] == [0, 0, 0, 0]
    assert max(len(packet) for _, packet in output.packets[0]) <= 1372
    assert output.figures["refusals"] == []


@pytest.mark.parametrize("profile", ["baseline", "high"])
def test_predicted_pictures_with_a_guard_band(tiling: Path, profile: str) -> None:
    """Sources of different rates, IDR pictures at different times."""
    events, sources = Events(), []
    # Noise would reach the band: its encoder leaves traces there, which edges of pictures and neighbours' bands do not share.
    for place, (kind, rate, intra) in enumerate(zip(("testsrc", "mandelbrot", "moving", "moving"), (15, 12, 10, 8), (9, 11, 8, 7), strict=True)):
        sources.append(clip(kind, rate, 4, seed=place + 1, start=0.03 * place, profile=profile, intra=intra, guard=True))
        events.join(0, place, 100 + place, region=PREDICTED)
        send(events, place, 100 + place, sources[-1])
    events.add(2.03, program.KEY_FRAME, 0)
    output = program.run(tiling, "h264", events, hold=60)
    times, pictures = received(output.packets[0])
    assert pictures[0][0].shape == (4 * 240, 176)
    assert [mismatching(tile(pictures, place, 240), source) for place, source in enumerate(sources)] == [0, 0, 0, 0]
    # The receiver that asks begins with the IDR picture for which all sources' intra pictures are waited.
    keys = [time for time, payloads, _ in rtp.pictures(output.packets[0]) if any(unit[0] & 31 == 5 for unit in rtp.h264_units(rtp.h264_picture(payloads)))]
    assert len(keys) == 2 and 2.03 < keys[1] < 3.1
    _, late = received([packet for packet in output.packets[0] if packet[0] >= keys[1]])
    assert all(clips.same(one, other) for one, other in zip(late, pictures[times.index(keys[1]) :], strict=True))
    assert {ssrc for time, ssrc in output.asked if 2 < time < 2.1} == {100, 101, 102, 103}


def test_without_a_guard_band_predicted_pictures_would_differ(tiling: Path) -> None:
    """Why a guard band has to be agreed: its absence cannot be seen in headers."""
    events, sources = Events(), []
    for place in range(2):
        sources.append(clip("moving", 10, 2, seed=place + 1, intra=20))
        events.join(0, place, 100 + place, region=PREDICTED)
        send(events, place, 100 + place, sources[-1])
    _, pictures = received(program.run(tiling, "h264", events).packets[0])
    assert sum(mismatching(tile(pictures, place), source) for place, source in enumerate(sources)) > 0


def test_joins_leaves_and_a_receiver_that_begins(tiling: Path) -> None:
    events = Events()
    stays = clip("moving", 10, 4, seed=1)
    leaves = clip("testsrc", 10, 1, seed=2)
    late = clip("mandelbrot", 7, 2.2, seed=3, start=1.8)
    events.join(0, 0, 100, region=INTRA)
    events.join(0, 1, 101, region=INTRA)
    events.add(1.0, program.LEAVE, 1)
    events.join(2.05, 1, 102, region=INTRA)
    for place, ssrc, source in ((0, 100, stays), (1, 101, leaves), (1, 102, late)):
        send(events, place, ssrc, source)
    events.add(3.01, program.KEY_FRAME, 0)
    output = program.run(tiling, "h264", events)
    times, pictures = received(output.packets[0])
    assert mismatching(tile(pictures, 0), stays) == 0
    second = list(zip(times, tile(pictures, 1), strict=True))
    assert all(grey(picture) for time, picture in second if 1.2 < time < 2.05)
    shown = [picture for picture in clips.changes(picture for time, picture in second if time > 2.05) if not grey(picture)]
    assert len(shown) == len([time for time in late.times if time > 2.05])
    assert all(clips.same(one, other) for one, other in zip(reversed(shown), reversed(late.pictures), strict=False))
    # All tiles are shown at once, those without a new picture too, by their last one.
    start = next(at for at, time in enumerate(times) if time >= 3.01)
    _, begun = received([packet for packet in output.packets[0] if packet[0] >= 3.01])
    assert all(clips.same(one, other) for one, other in zip(begun, pictures[start:], strict=True))


@pytest.mark.parametrize("guard", [False, True])
def test_loss_freezes_and_does_not_drift(tiling: Path, guard: bool) -> None:
    rng = random.Random(5)
    events = Events()
    source = clip("moving", 10, 8, intra=5 if guard else 1, guard=guard)
    events.join(0, 0, 100, region=PREDICTED if guard else INTRA)
    for time, packet in send(Events(), 0, 100, source):
        if rng.random() >= 0.01:
            events.packet(time, 0, packet)
    output = program.run(tiling, "h264", events)
    times, pictures = received(output.packets[0])
    strange = [picture for picture in tile(pictures, 0, source.pictures[0][0].shape[0]) if not grey(picture) and not any(clips.same(picture, own) for own in source.pictures)]
    assert len(strange) == 0
    assert len(source.pictures) // 3 < len(pictures) < len(source.pictures)
    assert any(time > 0.5 for time, ssrc in output.asked if ssrc == 100) or not guard


def test_slices_of_a_source(tiling: Path) -> None:
    events = Events()
    sources = [clip("testsrc", 10, 2, seed=1, x264="slices=3:no-deblock=1"), clip("noise", 10, 2, seed=2, x264="no-deblock=1")]
    for place, source in enumerate(sources):
        events.join(0, place, 100 + place, region=INTRA)
        send(events, place, 100 + place, source)
    _, pictures = received(program.run(tiling, "h264", events).packets[0])
    assert [mismatching(tile(pictures, place), source) for place, source in enumerate(sources)] == [0, 0]


def test_mixers_feed_a_mixer(tiling: Path) -> None:
    """Eighteen sources in columns of six: packets name at most fifteen."""
    sources = [clip(clips.KINDS[number % 4], 10, 1.5, seed=number + 1, start=0.004 * number, profile="high") for number in range(18)]
    events = Events()
    for mixer in range(3):
        below = Events()
        for place in range(6):
            number = 6 * mixer + place
            below.join(0, place, 100 + number, region=INTRA)
            send(below, place, 100 + number, sources[number])
            events.join(0, number, 1001 + mixer, 100 + number, region=mixed(place, 6))
        for time, packet in program.run(tiling, "h264", below, places=6).packets[0]:
            events.packet(time, 6 * mixer, packet[:8] + (1001 + mixer).to_bytes(4, "big") + packet[12:])
    output = program.run(tiling, "h264", events, places=18)
    _, pictures = received(output.packets[0])
    assert [mismatching(tile(pictures, place), source) for place, source in enumerate(sources)] == [0] * 18
    named = [parse_header(packet).csrcs for _, packet in output.packets[0]]
    assert {csrc for csrcs in named for csrc in csrcs} == {100 + number for number in range(18)} and max(map(len, named)) > 1


REFUSED = {
    "predicts from other pictures, which is not agreed": {"intra": 10},
    "predicts from other pictures than the one before": {"intra": 10, "x264": "ref=3"},
    "B slices": {"intra": 10, "profile": "main", "x264": "bframes=2:b-adapt=0"},
    "weighted prediction": {"intra": 10, "profile": "main", "x264": "weightp=1"},
    "interlaced": {"profile": "main", "x264": "interlaced=1"},
    "scaling lists": {"profile": "high", "x264": "cqm=jvt"},
    "deblocking filter crosses slices": {"x264": "slices=2"},
    "entropy coding differs": {"profile": "high"},
    "profile differs": {"profile": "high"},
    "not of the tile's size": {"guard": True},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_tiled_is_refused_with_the_reason(tiling: Path, reason: str) -> None:
    events, options = Events(), dict(REFUSED[reason])
    if "differs" in reason or "size" in reason:
        events.join(0, 0, 100, region=INTRA)
        send(events, 0, 100, clip("testsrc", 10, 1, x264="no-cabac=1" if "entropy" in reason else "", profile="high" if "entropy" in reason else "baseline"))
    region = PREDICTED if options.get("intra") and "agreed" not in reason else INTRA
    events.join(0, 1, 101, region=region)
    send(events, 1, 101, clip("moving", 10, 1, start=0.3, seed=2, **options))  # type: ignore[arg-type]
    output = program.run(tiling, "h264", events)
    assert any(reason in refusal for refusal in output.figures["refusals"]), output.figures["refusals"]
