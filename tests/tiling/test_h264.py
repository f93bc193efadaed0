"""H.264: what a stock decoder shows of the column is what it shows of each source alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.conference.rtp import parse_header
from tests.tools.tiling import clips, program, rtp
from tests.tools.tiling.column import CODEC, GUARD, clip, tile
from tests.tools.tiling.program import INTRA, PREDICTED, Events, mixed
from tests.tools.tiling.sliced import check_joins_and_leaves, check_loss, mismatching


@pytest.mark.parametrize("profile", ["baseline", "main", "high"])
def test_each_picture_of_each_rate_is_shown_once(tiling: Path, profile: str) -> None:
    events, sources = Events(), []
    for place, (kind, rate) in enumerate(zip(clips.KINDS, (15, 12, 8, 5), strict=True)):
        sources.append(clip(kind, rate, 3, seed=place + 1, start=0.04 * place, profile=profile))
        events.join(0, place, 100 + place, region=INTRA)
        CODEC.send(events, place, 100 + place, sources[-1])
    output = program.run(tiling, "h264", events, hold=60)
    _, pictures = CODEC.received(output.packets[0])
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
        CODEC.send(events, place, 100 + place, sources[-1])
    events.add(2.03, program.KEY_FRAME, 0)
    output = program.run(tiling, "h264", events, hold=60)
    times, pictures = CODEC.received(output.packets[0])
    assert pictures[0][0].shape == (4 * 240, 176)
    assert [mismatching(tile(pictures, place, 240), source) for place, source in enumerate(sources)] == [0, 0, 0, 0]
    # The receiver that asks begins with the IDR picture for which all sources' intra pictures are waited.
    keys = [time for time, payloads, _ in rtp.pictures(output.packets[0]) if any(unit[0] & 31 == 5 for unit in rtp.h264_units(rtp.h264_picture(payloads)))]
    assert len(keys) == 2 and 2.03 < keys[1] < 3.1
    _, late = CODEC.received([packet for packet in output.packets[0] if packet[0] >= keys[1]])
    assert all(clips.same(one, other) for one, other in zip(late, pictures[times.index(keys[1]) :], strict=True))
    assert {ssrc for time, ssrc in output.asked if 2 < time < 2.1} == {100, 101, 102, 103}


def test_without_a_guard_band_predicted_pictures_would_differ(tiling: Path) -> None:
    """Why a guard band has to be agreed: its absence cannot be seen in headers."""
    events, sources = Events(), []
    for place in range(2):
        sources.append(clip("moving", 10, 2, seed=place + 1, intra=20))
        events.join(0, place, 100 + place, region=PREDICTED)
        CODEC.send(events, place, 100 + place, sources[-1])
    _, pictures = CODEC.received(program.run(tiling, "h264", events).packets[0])
    assert sum(mismatching(tile(pictures, place), source) for place, source in enumerate(sources)) > 0


def test_joins_leaves_and_a_receiver_that_begins(tiling: Path) -> None:
    check_joins_and_leaves(tiling, CODEC)


@pytest.mark.parametrize("guard", [False, True])
def test_loss_freezes_and_does_not_drift(tiling: Path, guard: bool) -> None:
    check_loss(tiling, CODEC, guard=guard, height=144 + 2 * GUARD * guard)


def test_slices_of_a_source(tiling: Path) -> None:
    events = Events()
    sources = [clip("testsrc", 10, 2, seed=1, x264="slices=3:no-deblock=1"), clip("noise", 10, 2, seed=2, x264="no-deblock=1")]
    for place, source in enumerate(sources):
        events.join(0, place, 100 + place, region=INTRA)
        CODEC.send(events, place, 100 + place, source)
    _, pictures = CODEC.received(program.run(tiling, "h264", events).packets[0])
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
            CODEC.send(below, place, 100 + number, sources[number])
            events.join(0, number, 1001 + mixer, 100 + number, region=mixed(place, 6))
        for time, packet in program.run(tiling, "h264", below, places=6).packets[0]:
            events.packet(time, 6 * mixer, packet[:8] + (1001 + mixer).to_bytes(4, "big") + packet[12:])
    output = program.run(tiling, "h264", events, places=18)
    _, pictures = CODEC.received(output.packets[0])
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
        CODEC.send(events, 0, 100, clip("testsrc", 10, 1, x264="no-cabac=1" if "entropy" in reason else "", profile="high" if "entropy" in reason else "baseline"))
    region = PREDICTED if options.get("intra") and "agreed" not in reason else INTRA
    events.join(0, 1, 101, region=region)
    CODEC.send(events, 1, 101, clip("moving", 10, 1, start=0.3, seed=2, **options))  # type: ignore[arg-type]
    output = program.run(tiling, "h264", events)
    assert any(reason in refusal for refusal in output.figures["refusals"]), output.figures["refusals"]
