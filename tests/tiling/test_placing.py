"""The agent places tiled streams on mixers: softswitch, agent and two mixers as processes; sources play a clip when they are asked for a key frame, and a viewer decodes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shunt.admin import AdminError

from tests.agent_conference.lab import ROOM
from tests.tiling.lab import H264, H265, PICTURES, RATE, SIZE, MixingLab, Person, holds, running
from tests.tools.conference import rtcp
from tests.tools.conference.rtp import parse_header
from tests.tools.tiling import clips, column, grid, scene
from tests.tools.tiling.clips import Clip

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MixingLab]:
    with running(MixingLab, "tiled", tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def sources() -> list[Clip]:
    return [scene.h261_clip(clips.KINDS[seed % 4], RATE, PICTURES / RATE, seed=seed + 1, bit_rate=300_000, intra=100) for seed in range(5)]


@pytest.fixture(scope="module")
def large() -> Clip:
    """Of pictures that are as large as all four tiles."""
    coded = clips.encode("h261", clips.frames("testsrc", str(RATE), PICTURES, size="352x288"), str(RATE), size=(352, 288), bit_rate=300_000)
    return Clip([0.0] * len(coded), coded)


def test_tiles_follow_joins_and_leaves_and_outlive_agent_and_mixer(lab: MixingLab, sources: list[Clip], large: Clip) -> None:
    viewer, bystander = lab.person("viewer"), lab.person("bystander")
    people = [lab.person(f"p{number}", clip) for number, clip in enumerate(sources[:3])]
    wanted = lab.ask(lambda client: client.set_tiling(ROOM, "H261", receivers=["viewer"]))
    assert (wanted["codec"], wanted["receivers"], wanted["mixer"]) == ("H261", ["viewer"], None)
    holds(lambda: lab.placed() == "caller" and len(lab.layout()) == 3, lab)
    first = lab.layout()
    assert set(first.values()) == {(0, 0), (0, 1), (0, 2)}
    (stream,) = lab.ssrcs()

    def right(*shown: Person) -> Callable[[], bool]:
        def looked() -> bool:
            layout, streams = lab.layout(), lab.ssrcs()
            places = [layout.get(person.name) for person in shown]
            return all(at is not None and person.clip is not None and viewer.sees(streams[at[0]], at[1], person.clip) for person, at in zip(shown, places, strict=True))

        return looked

    holds(right(*people), lab)
    holds(lambda: viewer.black(stream, 3), lab)  # nobody has it
    named = {csrc for _, packet in viewer.packets[stream] for csrc in parse_header(packet).csrcs}
    assert named == {person.ssrc for person in people}
    # Who gets tiles gets nothing else, and nobody else gets them.
    holds(lambda: all(person.ssrc in bystander.packets for person in people), lab)
    assert stream not in bystander.packets
    viewer.packets = {stream: viewer.packets[stream]}
    room = lab.room()
    assert [one["participant"] for one in room["members"] if one["gets_tiles"]] == ["viewer"]
    assert room["participants"] == 5 and not any(one["participant"].startswith("#") for one in room["members"])
    # Reports: of the stream to the viewer, with the names of those who told theirs; of what came of it to each source.
    for person in people:
        person.socket.sendto(rtcp.build_rr(person.ssrc) + rtcp.build_cname(person.ssrc, person.name), person.relay)
    holds(lambda: stream in viewer.reported() and all(person.ssrc in person.judged() for person in people), lab)
    holds(lambda: {person.ssrc: person.name for person in people}.items() <= viewer.names().items(), lab)
    assert viewer.reported() == {stream}, "nobody else's video comes to it"
    # One more joins, one leaves, and another one has its place.
    people.append(lab.person("p3", sources[3]))
    holds(right(*people), lab)
    assert lab.layout() == first | {"p3": (0, 3)}
    gone = people.pop(1)
    lab.ask(lambda client: client.leave(ROOM, gone.name))
    place = first[gone.name][1]
    holds(lambda: viewer.black(stream, place), lab)
    people.append(lab.person("p4", sources[4]))
    holds(right(*people), lab)
    assert lab.layout()["p4"] == first[gone.name] and gone.name not in lab.layout()
    # Sources that cannot be tiled are named: one that says so itself, and one that the mixer refuses.
    other = lab.person("talks-vp8", sources[0], (96, "VP8"))
    lab.person("large", large)
    holds(lambda: lab.untiled() == {"talks-vp8": "it sends VP8/90000, and not H261/90000", "large": SIZE}, lab)
    holds(lambda: lab.ssrcs() == [stream], lab)
    assert set(viewer.packets) <= {stream, *(event["streams"][-1]["ssrc"] for event in lab.events("layout"))}, "a viewer of tiles gets nobody's own video"
    # The agent goes and comes back: the stream goes on.
    lab.agent.kill()
    lab.start_agent()
    holds(lambda: lab.placed() == "caller", lab)
    assert lab.ssrcs()[0] == stream and viewer.gets(stream)
    holds(right(*people), lab)
    # The mixer goes: the other one has the conference, and asks for key frames.
    layout = {person.name: lab.layout()[person.name] for person in people}
    lab.mixers["caller"].kill()
    holds(lambda: lab.placed() == "callee", lab)
    assert stream not in lab.ssrcs()
    holds(lambda: stream in viewer.ended(), lab)
    holds(right(*people), lab)
    assert {person.name: lab.layout()[person.name] for person in people} == layout, "tiles stay where they were"
    # And one that begins anew is told again.
    second = lab.ssrcs()[0]
    lab.mixers["caller"].start().await_unix(lab.controls["caller"])
    lab.mixers["callee"].stop()
    lab.mixers["callee"].start().await_unix(lab.controls["callee"])
    holds(lambda: lab.placed() != "" and second not in lab.ssrcs(), lab)
    holds(right(*people), lab)
    # No tiles any more: everybody's own video, except for who has not named its codec.
    lab.ask(lambda client: client.set_tiling(ROOM, "H261", receivers=["viewer", "apart"]))
    apart = lab.person("apart", None, (97, "H261"))
    holds(lambda: lab.ssrcs()[0] in apart.packets, lab)
    assert lab.room()["unjoined"] == []
    lab.ask(lambda client: client.end_tiling(ROOM))
    viewer.packets.clear()
    holds(lambda: all(person.ssrc in viewer.packets and person.ssrc in apart.packets for person in people), lab)
    room = lab.room()
    assert room["tiling"] is None
    (unjoined,) = room["unjoined"]
    assert (unjoined["sender"], unjoined["receiver"]) == ("talks-vp8", "apart")
    assert unjoined["reason"] == "video: talks-vp8 has payload type 96 for VP8/90000, and apart has none"
    holds(lambda: other.ssrc in viewer.packets, lab)
    assert other.ssrc not in apart.packets
    with pytest.raises(AdminError, match="has no tiling"):
        lab.ask(lambda client: client.end_tiling(ROOM))


def test_columns_of_h264_are_placed(lab: MixingLab) -> None:
    """Three sources in columns of two: another mixer goes on with both streams."""
    viewer = lab.person("viewer")
    clips_of = [column.clip(clips.KINDS[seed], RATE, PICTURES / RATE, seed=seed + 1) for seed in range(3)]
    people = [lab.person(f"p{number}", clip, (H264, "H264")) for number, clip in enumerate(clips_of)]
    lab.ask(lambda client: client.set_tiling(ROOM, "H264", places=2, payload_type=H264, receivers=["viewer"]))

    def right() -> bool:
        layout, streams = lab.layout(), lab.ssrcs()
        return len(layout) == 3 and all(viewer.sees_slices("H264", streams[layout[person.name][0]], layout[person.name][1], clip) for person, clip in zip(people, clips_of, strict=True))

    holds(right, lab)
    assert sorted(lab.layout().values()) == [(0, 0), (0, 1), (1, 0)]
    if shutil.which("ffmpeg"):
        broken_is_named(lab, viewer)
        holds(right, lab)
    before, host = lab.ssrcs(), lab.placed()
    lab.mixers[host].kill()
    holds(lambda: lab.placed() not in ("", host) and not set(before) & set(lab.ssrcs()), lab)
    holds(right, lab)


def broken_is_named(lab: MixingLab, viewer: Person) -> None:
    """A source whose slices end early loses its tile, and the reason is the decoder's."""
    whole = column.clip("mandelbrot", RATE, PICTURES / RATE, seed=4)
    broken = lab.person("broken", Clip(whole.times, [coded[: len(coded) * 2 // 3] for coded in whole.coded]), (H264, "H264"))

    def named() -> bool:
        for stream in lab.ssrcs():
            viewer.socket.sendto(rtcp.build_pli(viewer.ssrc, stream), viewer.relay)
        return lab.untiled().get("broken", "").startswith("a decoder cannot decode its picture: ")

    holds(named, lab)
    assert "broken" not in lab.layout()
    lab.ask(lambda client: client.leave(ROOM, broken.name))


def test_grids_of_h265_are_placed(lab: MixingLab) -> None:
    """Five sources in grids of four."""
    viewer = lab.person("viewer")
    clips_of = [grid.clip(clips.KINDS[seed % 4], RATE, PICTURES / RATE, seed=seed + 1) for seed in range(5)]
    people = [lab.person(f"p{number}", clip, (H265, "H265")) for number, clip in enumerate(clips_of)]
    lab.ask(lambda client: client.set_tiling(ROOM, "H265", places=4, payload_type=H265, receivers=["viewer"]))

    def right() -> bool:
        layout, streams = lab.layout(), lab.ssrcs()
        return len(layout) == 5 and all(viewer.sees_slices("H265", streams[layout[person.name][0]], layout[person.name][1], clip) for person, clip in zip(people, clips_of, strict=True))

    holds(right, lab)
    assert sorted(lab.layout().values()) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]


def test_what_cannot_be_is_refused_and_a_conference_without_mixers_says_so(lab: MixingLab, sources: list[Clip]) -> None:
    lab.person("ann", sources[0], (96, "VP8"))
    for more, reason in (
        ({"places": 5}, "a CIF picture of H.261 has 4"),
        ({"payload_type": 128}, "payload_type 128 is not in 0..127"),
        ({"receivers": ["ann"]}, "ann can be given no tiles: it has not named the codec"),
        ({"receivers": ["#mixer"]}, "receiver"),
    ):
        with pytest.raises(AdminError, match=reason):
            lab.ask(lambda client, more=more: client.set_tiling(ROOM, "H261", **more))  # type: ignore[misc]
    assert lab.room()["tiling"] is None
    for mixer in lab.mixers.values():
        mixer.kill()
    lab.person("bob", sources[1])
    viewer = lab.person("viewer")
    lab.ask(lambda client: client.set_tiling(ROOM, "H261"))
    holds(lambda: lab.room()["tiling"]["problem"] is not None and "bob" in lab.layout(), lab)
    assert lab.placed() == ""
    for host, mixer in lab.mixers.items():
        mixer.start().await_unix(lab.controls[host])
    holds(lambda: lab.room()["tiling"]["problem"] is None and viewer.sees(lab.ssrcs()[0], 0, sources[1]), lab)
