"""Mixers that feed a mixer: softswitch, agent and four mixers as processes; sources play clips of H.264, and a viewer decodes what the second level makes of the first's."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shunt.admin import AdminError

from tests.agent_conference.lab import ROOM
from tests.lab.topology import Topology
from tests.tiling.lab import H264, PICTURES, RATE, SIZE, MixingLab, Person, holds, running
from tests.tools.conference import rtcp
from tests.tools.conference.rtp import parse_header
from tests.tools.tiling import clips, column
from tests.tools.tiling.clips import Clip
from tests.tools.tiling.sliced import grey

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
MIXERS = ("caller", "callee", "caller2", "callee2")
PLACES, COLUMNS = 2, 2


class Levels(MixingLab):
    """Sources in columns of two, two of which are joined."""

    def __init__(self, topology: Topology, work: Path) -> None:
        super().__init__(topology, work, MIXERS)

    def source(self, name: str, clip: Clip) -> Person:
        return self.person(name, clip, (H264, "H264"))

    def want(self, **more: Any) -> None:
        self.ask(lambda client: client.set_tiling(ROOM, "H264", places=PLACES, columns=COLUMNS, payload_type=H264, receivers=["viewer"], **more))

    def columns(self) -> dict[int, tuple[int, str]]:
        """The SSRC of each column, and the mixer that makes it."""
        streams = self.room()["tiling"]["streams"]
        return {COLUMNS * at + one["column"]: (one["ssrc"], self.name_of(one["mixer"])) for at, stream in enumerate(streams) for one in stream["columns"]}

    def jobs(self) -> dict[str, set[int]]:
        """Which columns each mixer makes; -1 are the streams that are made of them."""
        made = {name: {number for number, (_, mixer) in self.columns().items() if mixer == name} for name in MIXERS}
        for name in (name for name in MIXERS if name == self.placed()):
            made[name].add(-1)
        return made

    def is_placed(self) -> bool:
        return self.placed() != "" and all(mixer for _, mixer in self.columns().values())

    def copied(self) -> set[tuple[str, str]]:
        """Whose video the data plane copies to which mixer's participant."""
        return {(one["sender"], one["receiver"]) for one in self.room()["subscriptions"] if one["receiver"].startswith("#")}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Levels]:
    with running(Levels, "levels", tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def sources() -> Iterator[Clip]:
    made = [column.clip(clips.KINDS[seed % 4], RATE, PICTURES / RATE, seed=seed + 1) for seed in range(9)]
    return iter(made)


def right(lab: Levels, viewer: Person, people: list[Person]) -> Callable[[], bool]:
    """Whether each source has a tile, which ends with the source's last picture, and has shown nothing but the source's pictures since it is the source's."""

    def looked() -> bool:
        layout, streams = lab.layout(), lab.ssrcs()
        if any(person.name not in layout for person in people):
            return False
        shown = {ssrc: viewer.column(ssrc) for ssrc in streams}
        for person in people:
            stream, place = layout[person.name]
            assert person.clip is not None
            if not shown[streams[stream]]:
                return False
            last = column.tile(shown[streams[stream]][-1:], place)[0]
            if not clips.same(last, person.clip.pictures[-1]):
                return False
        return True

    return looked


def never_wrong(viewer: Person, ssrc: int, place: int, *own: Clip) -> bool:
    """Whether a tile has never shown anything but grey and pictures of those who have had it."""
    pictures = [picture for clip in own for picture in clip.pictures]
    shown = clips.changes(column.tile(viewer.column(ssrc), place))
    return all(grey(one) or any(clips.same(one, picture) for picture in pictures) for one in shown)


def test_columns_of_several_mixers_are_joined_and_outlive_agent_and_mixers(lab: Levels, sources: Iterator[Clip]) -> None:
    viewer, bystander = lab.person("viewer"), lab.person("bystander")
    people = [lab.source(f"p{number}", clip) for number, clip in enumerate(itertools.islice(sources, 7))]
    lab.want()
    holds(lambda: len(lab.layout()) == len(people) and lab.is_placed(), lab)
    holds(right(lab, viewer, people), lab)
    layout = lab.layout()
    assert sorted(layout.values()) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)]
    assert len({mixer for _, mixer in lab.columns().values()}) > 1, "columns are spread over mixers"
    streams = lab.ssrcs()
    for at, ssrc in enumerate(streams):
        named = {csrc for _, packet in viewer.packets[ssrc] for csrc in parse_header(packet).csrcs}
        assert named == {person.ssrc for person in people if layout[person.name][0] == at}, "participants are named, and no mixer"
        assert max(len(parse_header(packet).csrcs) for _, packet in viewer.packets[ssrc]) <= 15
    # Each level gets what it works on. Who gets tiles gets nothing else, and nobody else gets anything of the mixers'.
    into = {(person.name, f"#tiles:{COLUMNS * layout[person.name][0] + layout[person.name][1] // PLACES}") for person in people}
    holds(lambda: lab.copied() == into | {(f"#tiles:{number}", "#tiles") for number in range(4)}, lab)
    viewer.packets = {ssrc: viewer.packets[ssrc] for ssrc in streams}
    holds(lambda: all(person.ssrc in bystander.packets for person in people), lab)
    assert set(bystander.packets) == {person.ssrc for person in people}
    room = lab.room()
    assert [one["participant"] for one in room["members"] if one["gets_tiles"]] == ["viewer"]
    assert not any(one["participant"].startswith("#") for one in room["members"])
    assert all(tile["height"] == 144 and tile["y"] == 144 * tile["place"] and tile["pictures"] for stream in room["tiling"]["streams"] for tile in stream["tiles"])
    # Names and reports go through both levels, and so do requests for key frames.
    for person in people:
        person.socket.sendto(rtcp.build_rr(person.ssrc) + rtcp.build_cname(person.ssrc, person.name), person.relay)
    holds(lambda: set(streams) <= viewer.reported() and all(person.ssrc in person.judged() for person in people), lab)
    holds(lambda: {person.ssrc: person.name for person in people}.items() <= viewer.names().items(), lab)
    assert viewer.reported() == set(streams)
    taken = {person.name: len(person.rtcp) for person in people}
    viewer.socket.sendto(rtcp.build_pli(viewer.ssrc, streams[0]), viewer.relay)
    for person in (person for person in people if layout[person.name][0] == 0):
        holds(lambda person=person: any(person._is_wanted(packet) for packet in person.rtcp[taken[person.name] :]), lab)  # type: ignore[misc]
    # One leaves, and the next has its place.
    gone = people.pop(1)
    lab.ask(lambda client: client.leave(ROOM, gone.name))
    people.append(lab.source("p7", next(sources)))
    holds(right(lab, viewer, people), lab)
    assert lab.layout() == {name: place for name, place in layout.items() if name != gone.name} | {"p7": layout[gone.name]}
    assert lab.ssrcs() == streams
    layout = lab.layout()
    # The agent goes and comes back: everything goes on where it was.
    columns = lab.columns()
    lab.agent.kill()
    lab.start_agent()
    holds(lambda: lab.columns() == columns and lab.ssrcs() == streams, lab)
    assert viewer.gets(*streams)
    assert set(viewer.packets) == set(streams), "a viewer of tiles gets neither columns nor anybody's own video"
    # A mixer of the first level goes: its columns are made by another one, and the rest goes on as it was.
    lost = next(name for name, made in lab.jobs().items() if made and -1 not in made)
    theirs = lab.jobs()[lost]
    lab.mixers[lost].kill()
    holds(lambda: lab.is_placed() and not lab.jobs()[lost], lab)
    holds(right(lab, viewer, people), lab)
    now = lab.columns()
    assert {number: now[number] for number in now if number not in theirs} == {number: columns[number] for number in columns if number not in theirs}
    assert all(now[number][0] != columns[number][0] for number in theirs)
    assert (lab.ssrcs(), lab.layout()) == (streams, layout)
    assert not viewer.ended(), "the streams go on"
    for person in people:
        stream, place = layout[person.name]
        before = [gone.clip] if person.name == "p7" else []
        assert never_wrong(viewer, streams[stream], place, *(clip for clip in (person.clip, *before) if clip)), person.name
    # That of the second level goes: streams begin anew, and columns go on, but for those that it made too.
    lab.start_mixer(lost)
    columns, last = lab.columns(), lab.placed()
    theirs = lab.jobs()[last] - {-1}
    lab.mixers[last].kill()
    holds(lambda: lab.is_placed() and not lab.jobs()[last], lab)
    holds(lambda: set(streams) <= viewer.ended(), lab)
    assert not set(streams) & set(lab.ssrcs())
    holds(right(lab, viewer, people), lab)
    now = lab.columns()
    assert {number: now[number] for number in now if number not in theirs} == {number: columns[number] for number in columns if number not in theirs}
    assert lab.layout() == layout, "tiles stay where they were"
    # A column that nobody has a tile of is no longer made; all of them end with the tiling.
    for person in people:
        if layout[person.name][0] == 1:
            lab.ask(lambda client, person=person: client.leave(ROOM, person.name))  # type: ignore[misc]
    holds(lambda: set(lab.columns()) == {0, 1} and len(lab.ssrcs()) == 1, lab)
    lab.ask(lambda client: client.end_tiling(ROOM))
    holds(lambda: lab.copied() == set(), lab)
    viewer.packets.clear()
    stay = [person for person in people if layout[person.name][0] == 0]
    holds(lambda: all(person.ssrc in viewer.packets for person in stay), lab)


def test_who_spoils_a_column_is_named_and_the_others_keep_their_tiles(lab: Levels) -> None:
    """The first of the second column has pictures of another size, and so decides what nobody else there is like."""
    viewer = lab.person("viewer")
    own = [column.clip(clips.KINDS[seed], RATE, PICTURES / RATE, seed=seed + 1) for seed in range(3)]
    large = column.clip("testsrc", RATE, PICTURES / RATE, guard=True)
    people = [lab.source("p0", own[0]), lab.source("p1", own[1])]
    lab.want()
    holds(right(lab, viewer, people), lab)
    first = lab.layout()
    assert sorted(first.values()) == [(0, 0), (0, 1)]
    lab.source("large", large)
    holds(lambda: lab.layout().get("large") == (0, 2), lab)
    people.append(lab.source("p2", own[2]))
    holds(lambda: lab.untiled() == {"large": SIZE}, lab)
    holds(right(lab, viewer, people), lab)
    layout = lab.layout()
    assert {name: layout[name] for name in first} == first
    assert set(layout) == {"p0", "p1", "p2"} and layout["p2"] in ((0, 2), (0, 3)), "the second column's, and the first place of it if that is free by then"


def test_what_cannot_be_joined_is_refused(lab: Levels) -> None:
    for codec, more, reason in (
        ("H261", {"columns": 4}, "columns: a CIF picture of H.261 cannot grow"),
        ("H264", {"columns": 1}, "columns 1: two at least are joined"),
        ("H264", {"columns": 5, "places": 60}, "columns: 300 tiles of a stream are more than 255"),
    ):
        with pytest.raises(AdminError, match=reason):
            lab.ask(lambda client, codec=codec, more=more: client.set_tiling(ROOM, codec, **more))  # type: ignore[misc,arg-type]
    assert lab.room()["tiling"] is None
