"""H.265: what a stock decoder shows of the grid is what it shows of each source alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tools.conference.rtp import parse_header
from tests.tools.tiling import clips, program, rtp
from tests.tools.tiling.clips import Clip
from tests.tools.tiling.grid import CODEC, HEIGHT, WIDTH, clip, tile
from tests.tools.tiling.program import INTRA, PREDICTED, Events, mixed
from tests.tools.tiling.sliced import check_joins_and_leaves, check_loss, grey, mismatching

KINDS = ("testsrc", "mandelbrot", "moving", "moving")
"""Where predicted pictures are noise up to their edge, the encoder leaves traces in the band that neighbours do not share."""


def kvazaar_clip(folder: Path, kind: str, rate: int, seconds: float, *, seed: int, start: float, intra: int) -> Clip:
    """A clip by kvazaar, whose vectors and the samples that they interpolate from stay within the picture."""
    count = int(rate * seconds)
    raw, coded = folder / f"{seed}.yuv", folder / f"{seed}.h265"
    raw.write_bytes(b"".join(frame.to_ndarray().tobytes() for frame in clips.frames(kind, str(rate), count, size=f"{WIDTH}x{HEIGHT}", seed=seed)))
    options = ["--preset", "veryfast", "--gop", "0", "--ref", "1", "--no-tmvp", "--no-wpp", "--no-open-gop", "--owf", "0", "--threads", "0", "--mv-constraint", "frametilemargin"]
    size = ["-i", str(raw), "--input-res", f"{WIDTH}x{HEIGHT}", "--input-fps", str(rate), "-o", str(coded)]
    subprocess.run(["kvazaar", *options, *size, "-p", str(intra), "-q", str(22 + 2 * seed)], check=True, capture_output=True, timeout=120)
    pictures: list[bytes] = [b""]
    for unit in rtp.h264_units(coded.read_bytes()):
        pictures[-1] += b"\0\0\0\1" + unit
        if rtp.h265_kind(unit) < 32:
            pictures.append(b"")
    pictures = [picture for picture in pictures if any(rtp.h265_kind(unit) < 32 for unit in rtp.h264_units(picture))]
    return Clip([start + at / rate for at in range(count)], pictures, clips.decode("hevc", pictures))


def kinds(packets: list[tuple[float, bytes]]) -> list[tuple[float, set[int]]]:
    """Of each picture its time and the types of its NAL units."""
    return [(time, {rtp.h265_kind(unit) for unit in rtp.h264_units(rtp.h265_picture(payloads))}) for time, payloads, _ in rtp.pictures(packets)]


@pytest.mark.parametrize(
    "x265", ["", "ctu=32:sao=1:deblock=2,-2", "ctu=64:sao=1:max-tu-size=16:tu-intra-depth=3", "min-cu-size=16", "no-deblock=1", "crf=26:aq-mode=2:qg-size=16", "cbqpoffs=2:crqpoffs=-3"]
)
def test_each_picture_of_each_rate_is_shown_once(tiling: Path, x265: str) -> None:
    events, sources = Events(), []
    for place, (kind, rate) in enumerate(zip(clips.KINDS, (15, 12, 8, 5), strict=True)):
        sources.append(clip(kind, rate, 2, seed=place + 1, start=0.04 * place, x265=x265))
        events.join(0, place, 100 + place, region=INTRA)
        CODEC.send(events, place, 100 + place, sources[-1])
    output = program.run(tiling, "h265", events, hold=60)
    assert output.figures["refusals"] == []
    _, pictures = CODEC.received(output.packets[0])
    assert pictures[0][0].shape == (2 * HEIGHT, 2 * WIDTH)
    assert [mismatching(tile(pictures, place), source) for place, source in enumerate(sources)] == [0, 0, 0, 0]
    assert max(len(packet) for _, packet in output.packets[0]) <= 1372


def test_sixteen_in_a_grid_and_a_place_that_nobody_has(tiling: Path) -> None:
    events, sources = Events(), {}
    for place in range(16):
        if place == 6:
            continue
        sources[place] = clip(clips.KINDS[place % 4], 8, 1.5, seed=place + 1, start=0.007 * place)
        events.join(0, place, 100 + place, region=INTRA)
        CODEC.send(events, place, 100 + place, sources[place])
    output = program.run(tiling, "h265", events, places=16)
    _, pictures = CODEC.received(output.packets[0])
    assert pictures[0][0].shape == (4 * HEIGHT, 4 * WIDTH)
    assert {place: mismatching(tile(pictures, place, 4), source) for place, source in sources.items()} == dict.fromkeys(sources, 0)
    assert all(grey(picture) for picture in tile(pictures, 6, 4))
    named = [parse_header(packet).csrcs for _, packet in output.packets[0]]
    assert {csrc for csrcs in named for csrc in csrcs} == {100 + place for place in sources} and max(map(len, named)) <= 15


def check_predicted(tiling: Path, sources: list[Clip]) -> None:
    """Of different rates, IDR pictures at different times; a receiver asks for one of the grid."""
    events = Events()
    for place, source in enumerate(sources):
        events.join(0, place, 100 + place, region=PREDICTED)
        CODEC.send(events, place, 100 + place, source)
    events.add(2.03, program.KEY_FRAME, 0)
    output = program.run(tiling, "h265", events, hold=60)
    assert output.figures["refusals"] == []
    times, pictures = CODEC.received(output.packets[0])
    assert [mismatching(tile(pictures, place), source) for place, source in enumerate(sources)] == [0] * len(sources)
    # Sources' IDR pictures are intra slices in mid-stream. The receiver that asks begins with one of the grid, for which all sources' are waited.
    keys = [time for time, types in kinds(output.packets[0]) if 20 in types]
    assert len(keys) == 2 and 2.03 < keys[1] < 3.1
    assert all(types == {32, 33, 34, 20} or types == {1} for _, types in kinds(output.packets[0]))
    _, late = CODEC.received([packet for packet in output.packets[0] if packet[0] >= keys[1]])
    assert all(clips.same(one, other) for one, other in zip(late, pictures[times.index(keys[1]) :], strict=True))
    assert {ssrc for time, ssrc in output.asked if 2 < time < 2.1} == {100, 101, 102, 103}


def test_predicted_pictures_with_a_guard_band(tiling: Path) -> None:
    made = enumerate(zip(KINDS, (15, 12, 10, 8), (9, 11, 8, 7), strict=True))
    check_predicted(tiling, [clip(kind, rate, 4, seed=place + 1, start=0.03 * place, intra=intra, guard=True) for place, (kind, rate, intra) in made])


@pytest.mark.skipif(shutil.which("kvazaar") is None, reason="kvazaar is not installed")
def test_predicted_pictures_whose_vectors_stay_within_the_picture(tiling: Path, tmp_path: Path) -> None:
    made = enumerate(zip(clips.KINDS, (15, 12, 10, 8), (9, 11, 8, 7), strict=True))
    check_predicted(tiling, [kvazaar_clip(tmp_path, kind, rate, 4, seed=place + 1, start=0.03 * place, intra=intra) for place, (kind, rate, intra) in made])


def test_without_an_agreement_predicted_pictures_would_differ(tiling: Path) -> None:
    """Why it is asked for: that vectors leave the picture cannot be seen in headers."""
    events, sources = Events(), []
    for place in range(4):
        sources.append(clip("moving", 10, 2, seed=place + 1, intra=20))
        events.join(0, place, 100 + place, region=PREDICTED)
        CODEC.send(events, place, 100 + place, sources[-1])
    _, pictures = CODEC.received(program.run(tiling, "h265", events).packets[0])
    assert sum(mismatching(tile(pictures, place), source) for place, source in enumerate(sources)) > 0


def test_joins_leaves_and_a_receiver_that_begins(tiling: Path) -> None:
    check_joins_and_leaves(tiling, CODEC)


@pytest.mark.parametrize("guard", [False, True])
def test_loss_freezes_and_does_not_drift(tiling: Path, guard: bool) -> None:
    check_loss(tiling, CODEC, guard=guard)


def test_mixers_feed_a_mixer(tiling: Path) -> None:
    """Eight sources in grids of four, one of which has a place to spare."""
    sources = [clip(clips.KINDS[number % 4], 10, 1.5, seed=number + 1, start=0.004 * number) for number in range(7)]
    events = Events()
    for mixer in range(2):
        below = Events()
        for place in range(4):
            number = 4 * mixer + place
            if number < len(sources):
                below.join(0, place, 100 + number, region=INTRA)
                CODEC.send(below, place, 100 + number, sources[number])
                events.join(0, number, 1001 + mixer, 100 + number, region=mixed(place, 4))
        for time, packet in program.run(tiling, "h265", below, places=4).packets[0]:
            events.packet(time, 4 * mixer, packet[:8] + (1001 + mixer).to_bytes(4, "big") + packet[12:])
    output = program.run(tiling, "h265", events, places=9)
    assert output.figures["refusals"] == []
    _, pictures = CODEC.received(output.packets[0])
    assert pictures[0][0].shape == (3 * HEIGHT, 3 * WIDTH)
    assert [mismatching(tile(pictures, place, 3), source) for place, source in enumerate(sources)] == [0] * 7
    named = {csrc for _, packet in output.packets[0] for csrc in parse_header(packet).csrcs}
    assert named == {100 + number for number in range(7)}


REFUSED = {
    "predicts from other pictures, which is not agreed": {"intra": 10},
    "predicts motion vectors from those of the picture before": {"intra": 10, "x265": "temporal-mvp=1"},
    "predicts from other pictures than the one before": {"intra": 10, "x265": "ref=3"},
    "weighted prediction": {"intra": 10, "x265": "weightp=1"},
    "wavefronts": {"x265": "wpp=1:pools=2"},
    "scaling lists": {"x265": "scaling-list=default"},
    "no multiple of 64, its coding tree block": {"x265": "ctu=64", "width": 288},
    "a part of its pictures is not shown": {"width": 268, "x265": "min-cu-size=16"},
    "smaller than 256x64": {"width": 240},
    "structure of blocks differs": {"x265": "ctu=32"},
    "sign hiding differs": {"x265": "no-signhide=1"},
    "not of the tile's size": {"width": 272},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_tiled_is_refused_with_the_reason(tiling: Path, reason: str) -> None:
    events, options = Events(), dict(REFUSED[reason])
    if "differs" in reason or "tile's size" in reason:
        events.join(0, 0, 100, region=INTRA)
        CODEC.send(events, 0, 100, clip("testsrc", 10, 1))
    region = PREDICTED if options.get("intra") and "agreed" not in reason else INTRA
    events.join(0, 1, 101, region=region)
    CODEC.send(events, 1, 101, clip("moving", 10, 1, start=0.3, seed=2, **options))  # type: ignore[arg-type]
    output = program.run(tiling, "h265", events)
    assert any(reason in refusal for refusal in output.figures["refusals"]), output.figures["refusals"]
