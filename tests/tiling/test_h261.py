"""H.261: what a stock decoder shows of the tiled stream is what it shows of each source alone."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.tools.conference.rtp import parse_header
from tests.tools.tiling import clips, program, rtp, scene
from tests.tools.tiling.clips import Picture
from tests.tools.tiling.program import Events


def black(picture: Picture) -> bool:
    return all(bool((plane == level).all()) for plane, level in zip(picture, (16, 128, 128), strict=True))


def test_each_picture_of_each_rate_is_shown_once(tiling: Path) -> None:
    events, sources = Events(), []
    for place, (kind, rate) in enumerate(zip(clips.KINDS, (15, 12, 8, 5), strict=True)):
        sources.append(scene.h261_clip(kind, rate, 6, seed=place + 1, start=0.04 * place))
        events.join(0, place, 100 + place)
        scene.send(events, place, 100 + place, sources[-1], payloads=(rtp.h261_groups, rtp.h261_chunks)[place % 2])
    output = program.run(tiling, "h261", events, hold=60)
    _, pictures = scene.received(output.packets[0])
    assert [scene.mismatching(scene.tile(pictures, place), source) for place, source in enumerate(sources)] == [0, 0, 0, 0]
    assert max(len(packet) for _, packet in output.packets[0]) <= 1372
    assert output.figures["refusals"] == []


def test_packets_name_the_contributors_that_they_have_bits_of(tiling: Path) -> None:
    events = Events()
    for place in range(3):
        events.join(0, place, 100 + place)
        scene.send(events, place, 100 + place, scene.h261_clip("testsrc", 4, 2, start=0.25 + place * 0.07))
    output = program.run(tiling, "h261", events, hold=10)
    named = [contributors for _, _, contributors in rtp.pictures(output.packets[0])]
    assert named[:4] == [set(), {100}, {101}, {102}], "each picture of the mosaic has one source's picture, after one that is empty"
    assert all(parse_header(packet).csrcs == () or len(packet) > 60 for _, packet in output.packets[0])


def test_joins_and_leaves(tiling: Path) -> None:
    events = Events()
    stays = scene.h261_clip("moving", 10, 6, seed=1)
    leaves = scene.h261_clip("testsrc", 10, 2, seed=2)
    late = scene.h261_clip("mandelbrot", 10, 3.2, seed=3, start=2.8)
    events.join(0, 0, 100)
    events.join(0, 1, 101)
    events.add(2.0, program.LEAVE, 1)
    events.join(3.05, 1, 102)
    for place, ssrc, source in ((0, 100, stays), (1, 101, leaves), (1, 102, late)):
        scene.send(events, place, ssrc, source)
    output = program.run(tiling, "h261", events)
    times, pictures = scene.received(output.packets[0])
    assert scene.mismatching(scene.tile(pictures, 0), stays) == 0
    second = list(zip(times, scene.tile(pictures, 1), strict=True))
    assert all(black(picture) for time, picture in second if 2.2 < time < 3.9), "the place is black until a picture of the new participant is coded intra"
    # The twelfth after its first is the next that is coded intra.
    shown = clips.changes(picture for time, picture in second if time > 3.95)
    assert len(shown) == len(late.pictures) - 12
    assert all(clips.same(one, other) for one, other in zip(shown, late.pictures[12:], strict=True))
    assert (pytest.approx(3.05, abs=0.01), 102) in output.asked, "a participant that joins is asked for a key frame"


def test_a_receiver_that_begins_gets_key_frames_and_black_places(tiling: Path) -> None:
    events = Events()
    events.join(0, 2, 100)
    scene.send(events, 2, 100, scene.h261_clip("testsrc", 10, 4))
    events.add(2.05, program.KEY_FRAME, 0)
    output = program.run(tiling, "h261", events)
    assert [time for time, ssrc in output.asked if time > 1 and ssrc == 100] == [pytest.approx(2.05)]
    later = [packet for packet in output.packets[0] if packet[0] >= 2.05]
    _, pictures = scene.received(later)
    assert black(scene.tile(pictures, 0)[-1]) and black(scene.tile(pictures, 3)[-1])


def test_a_sources_own_packets_are_cut_by_the_same_rules(tiling: Path) -> None:
    """They fill packets, begin with a macroblock, have all bits of the picture, and can be tiled."""
    source = scene.h261_clip("mandelbrot", 8, 2, bit_rate=200_000, start=0.1)
    cut = program.cut(tiling, source.coded, 700)
    assert [rtp.h261_picture(payloads) for payloads in cut] == source.coded
    sizes = [[len(payload) + 12 for payload in payloads] for payloads in cut]
    assert all(size <= 700 for picture in sizes for size in picture)
    full = [size for picture in sizes for size in picture[:-1]]
    assert full and sum(full) / len(full) > 600, "a packet ends where the next macroblock does not fit"
    assert any(payload[0] >> 5 for payloads in cut for payload in payloads), "macroblocks begin at any bit"
    events, payloads = Events(), iter(cut)
    events.join(0, 0, 100)
    scene.send(events, 0, 100, source, payloads=lambda _: next(payloads))
    _, pictures = scene.received(program.run(tiling, "h261", events).packets[0])
    assert scene.mismatching(scene.tile(pictures, 0), source) == 0


@pytest.mark.parametrize("payloads", [rtp.h261_groups, rtp.h261_chunks])
def test_loss_freezes_and_does_not_drift(tiling: Path, payloads: clips.Payloads) -> None:
    """Every macroblock is always what the source's decoder has there, now or earlier; after pictures that are coded intra, now."""
    rng = random.Random(7)
    events = Events()
    source = scene.h261_clip("moving", 10, 12, bit_rate=150_000, intra=5)
    sent = scene.send(Events(), 0, 100, source, payloads=payloads)
    events.join(0, 0, 100)
    for time, packet in sent:
        if rng.random() >= 0.05:
            events.packet(time, 0, packet)
    output = program.run(tiling, "h261", events)
    times, pictures = scene.received(output.packets[0])
    exact = 0
    for time, picture in zip(times, scene.tile(pictures, 0), strict=True):
        until = int((time + 0.001) * 10) + 1
        intact = np.zeros((9, 11), bool)
        for former in source.pictures[:until]:
            difference = (picture[0] != former[0]).reshape(9, 16, 11, 16).any(axis=(1, 3))
            for mine, theirs in zip(picture[1:], former[1:], strict=True):
                difference |= (mine != theirs).reshape(9, 8, 11, 8).any(axis=(1, 3))
            intact |= ~difference
        intact |= (picture[0] == 16).reshape(9, 16, 11, 16).all(axis=(1, 3))
        assert intact.all(), f"at {time:.2f} s the tile shows what its source has never shown"
        exact += any(clips.same(picture, former) for former in source.pictures[max(0, until - 3) : until])
    assert exact > len(times) // 3, f"only {exact} of {len(times)} pictures are whole"
    assert len([ssrc for _, ssrc in output.asked if ssrc == 100]) > 2, "the source is asked for key frames"


def test_packets_out_of_order_and_doubled(tiling: Path) -> None:
    rng = random.Random(3)
    events = Events()
    source = scene.h261_clip("testsrc", 10, 4)
    events.join(0, 0, 100)
    for time, packet in scene.send(Events(), 0, 100, source):
        for _ in range(rng.choice((1, 1, 2))):
            events.packet(time + (rng.uniform(0, 0.03) if time else 0), 0, packet)
    _, pictures = scene.received(program.run(tiling, "h261", events).packets[0])
    shown = clips.changes(scene.tile(pictures, 0))
    assert scene.mismatching(shown, source) == 0


def test_mixers_feed_a_mixer(tiling: Path) -> None:
    """Two mixers with two participants each, whose tiles a third one puts together; it names the participants, not the mixers."""
    sources = [scene.h261_clip(kind, 10, 3, seed=place + 1, start=0.02 * place) for place, kind in enumerate(clips.KINDS)]
    events = Events()
    for mixer in range(2):
        below = Events()
        for place in range(2):
            number = 2 * mixer + place
            below.join(0, 4 * mixer + place, 100 + number)
            scene.send(below, 4 * mixer + place, 100 + number, sources[number])
            events.join(0, number, mixer + 1, 100 + number, region=bytes((place,)))
        for stream, packets in program.run(tiling, "h261", below).packets.items():
            if stream == mixer:
                for time, packet in packets:
                    events.packet(time, 2 * mixer, packet)
    output = program.run(tiling, "h261", events)
    _, pictures = scene.received(output.packets[0])
    assert [scene.mismatching(scene.tile(pictures, place), source) for place, source in enumerate(sources)] == [0, 0, 0, 0]
    assert {csrc for _, packet in output.packets[0] for csrc in parse_header(packet).csrcs} == {100, 101, 102, 103}


def test_what_cannot_be_tiled_is_refused_with_the_reason(tiling: Path) -> None:
    coded = clips.encode("h261", clips.frames("testsrc", "5", 3, size="352x288"), "5", size=(352, 288))
    for coded_source, reason in (
        (coded, "its pictures are not of the tile's size"),
        ([b"\x00\x00\x01\xb3" * 20], "its bit stream cannot be read: no picture start code (bit 0)"),
    ):
        events = Events()
        events.join(0, 0, 100)
        scene.send(events, 0, 100, clips.Clip([0.1, 0.3, 0.5][: len(coded_source)], coded_source), payloads=rtp.h261_chunks)
        output = program.run(tiling, "h261", events)
        assert output.figures["refusals"][:1] == [reason]
