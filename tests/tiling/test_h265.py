"""H.265: what a stock decoder shows of the grid is what it shows of each source alone."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.tools.conference.rtp import parse_header
from tests.tools.tiling import clips, program, rtp
from tests.tools.tiling.clips import Clip, Picture
from tests.tools.tiling.program import INTRA, PREDICTED, Events, mixed
from tests.tools.tiling.sliced import grey, guarded, mismatching

WIDTH, HEIGHT, GUARD = 256, 192, 48
KINDS = ("testsrc", "mandelbrot", "moving", "moving")
"""Where predicted pictures are noise up to their edge, the encoder leaves traces in the band that neighbours do not share."""


@pytest.fixture(scope="session")
def tiling() -> Path:
    return program.build()


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


def send(events: Events, place: int, ssrc: int, source: Clip) -> list[tuple[float, bytes]]:
    sender, sent = rtp.Sender(ssrc, 97), []
    for time, coded in zip(source.times, source.coded, strict=True):
        sent += [(time, packet) for packet in sender.packets(rtp.h265_payloads(coded), time)]
    for time, packet in sent:
        events.packet(time, place, packet)
    return sent


def received(packets: list[tuple[float, bytes]]) -> tuple[list[float], list[Picture]]:
    listed = list(rtp.pictures(packets))
    decoded = clips.decode("hevc", [rtp.h265_picture(payloads) for _, payloads, _ in listed])
    assert len(decoded) == len(listed), "the decoder lost pictures"
    return [time for time, _, _ in listed], decoded


def tile(pictures: list[Picture], place: int, columns: int = 2) -> list[Picture]:
    return [clips.cut(picture, WIDTH * (place % columns), HEIGHT * (place // columns), WIDTH, HEIGHT) for picture in pictures]


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
        send(events, place, 100 + place, sources[-1])
    output = program.run(tiling, "h265", events, hold=60)
    assert output.figures["refusals"] == []
    _, pictures = received(output.packets[0])
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
        send(events, place, 100 + place, sources[place])
    output = program.run(tiling, "h265", events, places=16)
    _, pictures = received(output.packets[0])
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
        send(events, place, 100 + place, source)
    events.add(2.03, program.KEY_FRAME, 0)
    output = program.run(tiling, "h265", events, hold=60)
    assert output.figures["refusals"] == []
    times, pictures = received(output.packets[0])
    assert [mismatching(tile(pictures, place), source) for place, source in enumerate(sources)] == [0] * len(sources)
    # Sources' IDR pictures are intra slices in mid-stream. The receiver that asks begins with one of the grid, for which all sources' are waited.
    keys = [time for time, types in kinds(output.packets[0]) if 20 in types]
    assert len(keys) == 2 and 2.03 < keys[1] < 3.1
    assert all(types == {32, 33, 34, 20} or types == {1} for _, types in kinds(output.packets[0]))
    _, late = received([packet for packet in output.packets[0] if packet[0] >= keys[1]])
    assert all(clips.same(one, other) for one, other in zip(late, pictures[times.index(keys[1]) :], strict=True))
    assert {ssrc for time, ssrc in output.asked if 2 < time < 2.1} == {100, 101, 102, 103}


def test_predicted_pictures_with_a_guard_band(tiling: Path) -> None:
    made = enumerate(zip(KINDS, (15, 12, 10, 8), (9, 11, 8, 7), strict=True))
    check_predicted(tiling, [clip(kind, rate, 4, seed=place + 1, start=0.03 * place, intra=intra, guard=True) for place, (kind, rate, intra) in made])


@pytest.mark.skipif(shutil.which("kvazaar") is None, reason="no kvazaar on PATH, the encoder that keeps its vectors within the picture")
def test_predicted_pictures_whose_vectors_stay_within_the_picture(tiling: Path, tmp_path: Path) -> None:
    made = enumerate(zip(clips.KINDS, (15, 12, 10, 8), (9, 11, 8, 7), strict=True))
    check_predicted(tiling, [kvazaar_clip(tmp_path, kind, rate, 4, seed=place + 1, start=0.03 * place, intra=intra) for place, (kind, rate, intra) in made])


def test_without_an_agreement_predicted_pictures_would_differ(tiling: Path) -> None:
    """Why it is asked for: that vectors leave the picture cannot be seen in headers."""
    events, sources = Events(), []
    for place in range(4):
        sources.append(clip("moving", 10, 2, seed=place + 1, intra=20))
        events.join(0, place, 100 + place, region=PREDICTED)
        send(events, place, 100 + place, sources[-1])
    _, pictures = received(program.run(tiling, "h265", events).packets[0])
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
    output = program.run(tiling, "h265", events)
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
    output = program.run(tiling, "h265", events)
    _, pictures = received(output.packets[0])
    strange = [picture for picture in tile(pictures, 0) if not grey(picture) and not any(clips.same(picture, own) for own in source.pictures)]
    assert len(strange) == 0
    assert len(source.pictures) // 3 < len(pictures) < len(source.pictures)
    assert any(time > 0.5 for time, ssrc in output.asked if ssrc == 100) or not guard


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
                send(below, place, 100 + number, sources[number])
                events.join(0, number, 1001 + mixer, 100 + number, region=mixed(place, 4))
        for time, packet in program.run(tiling, "h265", below, places=4).packets[0]:
            events.packet(time, 4 * mixer, packet[:8] + (1001 + mixer).to_bytes(4, "big") + packet[12:])
    output = program.run(tiling, "h265", events, places=9)
    assert output.figures["refusals"] == []
    _, pictures = received(output.packets[0])
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
        send(events, 0, 100, clip("testsrc", 10, 1))
    region = PREDICTED if options.get("intra") and "agreed" not in reason else INTRA
    events.join(0, 1, 101, region=region)
    send(events, 1, 101, clip("moving", 10, 1, start=0.3, seed=2, **options))  # type: ignore[arg-type]
    output = program.run(tiling, "h265", events)
    assert any(reason in refusal for refusal in output.figures["refusals"]), output.figures["refusals"]
