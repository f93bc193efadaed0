"""Layers in the control: how they are told, which rows and numbers follow, in which order a receiver gets less and more."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from shunt.conference import descriptor
from shunt.conference.control.layers import TARGETS, Former, Layering, LayerRow, Rewriting, Told, offered_layers, read_frame
from shunt.conference.control.manager import Conferences, _Meter
from shunt.conference.control.model import FIRST_TREE, TREES, Book, Conference, ConferenceError, Leg
from shunt.conference.control.rows import StreamKey
from shunt.conference.control.writer import Writer
from shunt.conference.engine import CONFERENCE, COPY, LAYER, RELAY, Limits, Source
from shunt.conference.packets import Layers
from shunt.conference.trees import Design
from shunt.net import Endpoint, FiveTuple
from tests.conference_control.test_control import POLICY, RELAY_IP, Plane, book, running, source, until, written  # noqa: F401
from tests.conference_control.test_layers_end_to_end import VECTORS
from tests.dataplane.lab import HOST_A4, RELAY_A4
from tests.replication.test_copies import frame

DD = Told(Layers.DEPENDENCY_DESCRIPTOR, 12)
FLOW = FiveTuple(Endpoint.of("198.51.100.9", 1), Endpoint.of("192.0.2.1", 2))
URI = "https://aomediacodec.github.io/av1-rtp-spec/#dependency-descriptor-rtp-header-extension"


def captured(name: str = "chromium_av1") -> list[bytes]:
    """The headers of a browser's packets."""
    return [bytes.fromhex(line.split()[1]) for line in (VECTORS / f"{name}.txt").read_text().splitlines() if not line.startswith("#")]


# -- how they are told -----------------------------------------------------------------------------------------------


def test_the_ways_and_what_is_none():
    for text in ("dependency-descriptor:12", "frame-marking:3", "vp8", "vp9"):
        assert str(Told.parse(text)) == text
    for text, words in (("h264", "'h264' is none of"), ("vp8:3", "vp8 has no id"), ("frame-marking", "has the id of its header extension"), ("dependency-descriptor:15", "1..14"), ("dependency-descriptor:x", "1..14")):
        with pytest.raises(ValueError, match=words):
            Told.parse(text)


def test_what_an_offer_says():
    assert offered_layers(["1 urn:ietf:params:rtp-hdrext:ssrc-audio-level", f"12/sendonly {URI} x"]) == (DD, f"12 {URI}")
    assert offered_layers(["5 urn:ietf:params:rtp-hdrext:framemarking", f"13 {URI}"]) == (Told(Layers.DEPENDENCY_DESCRIPTOR, 13), f"13 {URI}")
    assert offered_layers(["5 urn:ietf:params:rtp-hdrext:framemarking"]) == (Told(Layers.FRAME_MARKING, 5), "5 urn:ietf:params:rtp-hdrext:framemarking")
    assert offered_layers([f"15 {URI}", f"0 {URI}", f"x {URI}", "12", ""]) is None


def test_frames_from_the_data_plane():
    payload = captured()[0] + b"payload"
    flow = FiveTuple(Endpoint.of(HOST_A4, 5000), Endpoint.of(RELAY_A4, 6000))
    for tag in (None, 5):
        found = read_frame(frame(flow, payload, "full", tag))
        assert found is not None and (found.flow, found.ssrc, found.payload) == (flow, int.from_bytes(payload[8:12], "big"), payload)
    whole = frame(flow, payload, "full", None)
    six = whole[:12] + b"\x86\xdd" + b"\x60\0\0\0" + (8 + len(payload)).to_bytes(2, "big") + b"\x11\x40" + bytes(15) + b"\1" + bytes(15) + b"\2" + whole[34:]
    found = read_frame(six)
    assert found is not None and found.flow.src == Endpoint(bytes(15) + b"\1", 5000) and found.payload == payload
    for cut in range(len(whole)):
        found = read_frame(whole[:cut])
        assert found is None or whole[:cut].endswith(found.payload)


# -- rows ------------------------------------------------------------------------------------------------------------


def see(layering: Layering, one: Source, packets: list[bytes]) -> int:
    """How often the rows changed."""
    return sum(layering.see(one, packet) for packet in packets)


def test_rows_follow_a_browser_over_a_change_of_template_ids():
    layering, one = Layering(), Source("room", "ann", "video:1")
    number, track = layering.stream(one, DD, FLOW, 1, False)
    assert track == 0 and layering.rows(one) == {} and layering.awaits_structure(one)
    packets = captured()
    assert see(layering, one, packets[:237]) == 1 and not layering.awaits_structure(one)
    rows = layering.rows(one)
    assert [rows[number, template].layer for template in range(10)] == [0, 0, 1, 2, 2, 0, 0, 1, 2, 2], "the ids that come next are there before they do"
    assert rows[number, 0].switches == rows[number, 1].switches == 0b111 and rows[number, 3].switches == 0
    assert see(layering, one, packets[237:]) == 1
    assert [layering.rows(one)[number, template].layer for template in range(15)] == [0, 0, 1, 2, 2] * 3, "late packets find theirs"


def structure(dtis: tuple[tuple[int, ...], ...]) -> descriptor.Structure:
    count = len(dtis[0])
    return descriptor.Structure(0, tuple(descriptor.Template(0, 0, dti, (), ()) for dti in dtis), (), tuple((0, n) for n in range(count)), ())


@pytest.mark.parametrize(
    ("dtis", "layers", "switches"),
    [
        (((2, 2), (0, 1)), [0, 1], [0b111, 0]),  # two targets: our highest is theirs
        (((2, 2), (0, 2)), [0, 1], [0b111, 0b110]),
        (((2, 2, 2, 2), (0, 1, 1, 1), (0, 0, 1, 1), (0, 0, 0, 2)), [0, 1, 2, 2], [0b111, 0, 0, 0b100]),  # four: the upper two go together
        (((2,),), [0], [0b111]),
    ],
)
def test_other_numbers_of_targets(monkeypatch, dtis, layers, switches):
    layering, one = Layering(), Source("room", "ann", "video:1")
    number, _ = layering.stream(one, DD, FLOW, 1, False)
    monkeypatch.setattr(descriptor, "parse", lambda element: descriptor.Descriptor(descriptor.Mandatory(True, True, 0, 0), None, structure(dtis), None))  # type: ignore[arg-type]
    layering.see(one, captured()[0])
    rows = layering.rows(one)
    assert [rows[number, template] for template in range(len(dtis))] == [LayerRow(*row) for row in zip(layers, switches)]


@pytest.mark.parametrize(
    ("upper", "dtis", "reason"), [(0, ((2, 0), (0, 2)), "do not contain each other"), (1, ((2, 2), (0, 2)), "spatial layers")], ids=["not nested", "spatial"]
)
def test_what_cannot_be_left_out_goes_whole(monkeypatch, caplog, upper, dtis, reason):
    """Rows of a structure before go with it; no key frame is asked for in vain; and a structure that can be told is again."""
    layering, one = Layering(), Source("room", "ann", "video:1")
    layering.stream(one, DD, FLOW, 1, False)
    assert see(layering, one, captured()) and layering.rows(one)
    plain = descriptor.parse
    made = structure(dtis)
    made = dataclasses.replace(made, templates=(made.templates[0], made.templates[1]._replace(spatial=upper)))
    monkeypatch.setattr(descriptor, "parse", lambda element: descriptor.Descriptor(descriptor.Mandatory(True, True, 0, 0), None, made, None))  # type: ignore[arg-type]
    assert layering.see(one, captured()[0]) and not layering.see(one, captured()[0])
    assert layering.rows(one) == {} and not layering.awaits_structure(one)
    assert caplog.text.count(reason) == 1, "said once"
    monkeypatch.setattr(descriptor, "parse", plain)
    assert see(layering, one, captured()) and layering.rows(one)


def test_temporal_ids_are_layers():
    layering, one = Layering(), Source("room", "ann", "video:1")
    number, _ = layering.stream(one, Told(Layers.VP8), FLOW, 1, False)
    assert [layering.rows(one)[number, temporal].layer for temporal in range(8)] == [0, 1, 2, 2, 2, 2, 2, 2]
    assert not layering.awaits_structure(one) and not layering.see(one, captured()[0])


# -- numbers ---------------------------------------------------------------------------------------------------------


def test_numbers_are_given_back_and_found_again():
    layering, ann, bob = Layering(Limits(tracked=4, tracks=4)), Source("room", "ann", "video:1"), Source("room", "bob", "video:2")
    there = Endpoint.of("198.51.100.7", 7)
    assert layering.splice(ann, "bob", there) == 0
    assert layering.stream(ann, DD, FLOW, 1, True)[1] == 1 and layering.splice(ann, "bob", there) == layering.splice(ann, "bob", there) == 1
    layering.stream(bob, DD, FLOW, 2, True)
    assert layering.splice(bob, "ann", there) == 2 and layering.room() == 2
    layering.forget("room", [bob], ["ann", "cem"])
    assert layering.room() == 3 and layering.rows(ann) == {}
    again = Layering(Limits(tracked=4, tracks=4))
    again.remember({(FLOW, 2): Former(9, 2, {5: LayerRow(1, 0)}, {there: 2}), (FLOW, 3): Former(4, 3, {}, {there: 3})})
    assert again.stream(ann, DD, FLOW, 1, True) == (1, 1), "numbers that something found has are not given"
    assert again.stream(bob, DD, FLOW, 2, False) == (9, 2), "who was tracked is tracked"
    assert again.rows(bob) == {(9, 5): LayerRow(1, 0)} and again.splice(bob, "ann", there) == 2
    assert again.splice(bob, "cem", Endpoint.of("198.51.100.7", 8)) == 1
    again.give_back()
    assert again.room() == 2, "what nobody took up is free: two tracks and two splices are taken"


def test_streams_for_which_there_is_no_room_go_whole():
    layering = Layering(Limits(tracks=1))
    assert layering.stream(Source("room", "ann", "video:1"), DD, FLOW, 1, True)[1] == 1
    assert layering.stream(Source("room", "bob", "video:1"), DD, FLOW, 2, True) == (0, 0)


# -- cadences: what a switch with S-LM has to be told ----------------------------------------------------------------


def test_cadences_follow_a_browsers_key_frames():
    """Its frames are T0, T2, T1, T2 from a key frame on; the second key frame comes at the place of a T1."""
    layering, one, packets = Layering(rewriting=Rewriting.S_LM), Source("room", "ann", "video:1"), captured()
    number, track = layering.stream(one, DD, FLOW, 1, True)
    assert track == 0 and layering.cadence(one, 0) == 0 and layering.awaits_structure(one)
    for key, until in ((1, 237), (151, len(packets))):
        assert see(layering, one, packets[:until]) >= 1 and not layering.awaits_structure(one)
        for target in range(TARGETS):
            wanted = sum(1 << frame % 4 for frame in range(key, key + 4) if (0, 2, 1, 2)[frame - key] > target)
            assert layering.cadence(one, target) == wanted
    assert layering.rows(one)[number, 0] == LayerRow(0, 0), "nothing is said of switches, which it has not got"
    assert not see(layering, one, packets[237:])


@pytest.mark.parametrize(
    ("distances", "cadences"),
    [([(), (2,), (1,)], [0b1010, 0, 0]), ([(), (1,)], [0, 0, 0]), ([(), (4,), (2,), (3, 1)], [0b1110, 0b1010, 0]), ([(), (3,), (1,)], [0, 0, 0]), ([(), (8,), (4,), (2,), (1,)], [0, 0, 0])],
    ids=["two layers", "one layer", "VP8", "a pattern of three", "four layers"],
)
def test_cadences_of_other_structures(monkeypatch, distances, cadences):
    """Where frame numbers modulo four do not tell the layer, no gap is closed."""
    layering, one = Layering(rewriting=Rewriting.S_LM), Source("room", "ann", "video:1")
    layering.stream(one, DD, FLOW, 1, True)
    layers = [max(0, index - 1) for index in range(len(distances))]
    count = max(layers) + 1
    templates = tuple(descriptor.Template(0, layer, (0,) * layer + (2,) * (count - layer), fdiffs, ()) for layer, fdiffs in zip(layers, distances))
    made = descriptor.Structure(0, templates, (), tuple((0, n) for n in range(count)), ())
    for first, frame, wanted in ((templates[0], 4, cadences), (templates[0], 5, [(mask << 1 | mask >> 3) & 15 for mask in cadences]), (templates[1], 4, [0, 0, 0])):
        monkeypatch.setattr(descriptor, "parse", lambda element, first=first, frame=frame: descriptor.Descriptor(descriptor.Mandatory(True, True, 0, frame), first, made, None))
        layering.see(one, captured()[0])
        assert [layering.cadence(one, target) for target in range(TARGETS)] == wanted


def test_what_such_a_switch_cannot_read_goes_whole():
    layering = Layering(Limits(tracked=2), Rewriting.S_LM, {Layers.DEPENDENCY_DESCRIPTOR})
    one, there = Source("room", "ann", "video:1"), Endpoint.of("198.51.100.7", 7)
    assert layering.stream(one, Told(Layers.VP8), FLOW, 1, True) == (0, 0) and layering.splice(one, "bob", there) == 0
    other = Source("room", "bob", "video:2")
    assert layering.stream(other, DD, FLOW, 2, True) == (1, 0) and layering.splice(other, "ann", there) == 1 and layering.room() == 1
    again = Layering(Limits(tracked=2), Rewriting.S_LM)
    again.remember({(FLOW, 2): Former(9, 0, {5: LayerRow(1, 0)}, {there: 2})})
    assert again.stream(other, DD, FLOW, 2, False) == (9, 0) and again.splice(other, "ann", there) == 2, "who had numbers of its own goes on"
    assert again.awaits_structure(other), "which frames are left out has to be seen anew"


# -- conferences -----------------------------------------------------------------------------------------------------


def seat(book: Book, number: int, told: Told | None = DD) -> str:  # noqa: F811
    """A participant with video whose source is known."""
    one = book.join("room", f"p{number}", ["audio", "video"], [], 0.0, layers={"video": told} if told else None)
    for offset, leg in enumerate(one.legs.values()):
        leg.latch.take(source(number * 10 + offset), number, 1)
        leg.ssrcs = [number * 10 + offset]
    book.keep(book.get("room"))
    return one.name


def row_of(book: Book, plane: Plane, name: str) -> Any:  # noqa: F811
    """What `conference` says of a participant's video."""
    leg = book.get("room").participants[name].legs["video"]
    return plane.rows[CONFERENCE, StreamKey(FiveTuple(leg.latch.learned, leg.relay), leg.ssrcs[0])]


def copy_of(book: Book, plane: Plane, sender: str, receiver: str) -> Any:  # noqa: F811
    """What `copy` says of a receiver of a participant's video."""
    row, there = row_of(book, plane, sender), book.get("room").participants[receiver].legs["video"].latch.learned
    (found,) = [value for (name, key), value in plane.rows.items() if name == COPY and key[0] == row.stream and value.dst == there]
    return found


def in_trees(book: Book, plane: Plane, sender: str, receiver: str) -> list[int]:  # noqa: F811
    """Layers of a participant's video that a receiver gets, by the tables alone."""
    row = row_of(book, plane, sender)
    leg = book.get("room").participants[sender].legs["video"]
    key = StreamKey(FiveTuple(leg.latch.learned, leg.relay), leg.ssrcs[0])
    there = book.get("room").participants[receiver].legs["video"].latch.learned
    found = []
    for layer in range(TARGETS):
        plane.rows[CONFERENCE, key] = row._replace(mgid=row.mgid + min(layer, max(row.trees, 1) - 1))
        if there in plane.receivers(key):
            found.append(layer)
    plane.rows[CONFERENCE, key] = row
    return found


async def test_a_receiver_gets_less_and_more(book: Book, tmp_path: Path) -> None:  # noqa: F811
    """Down: its numbers change over while it is still in the trees. Up: it is in the trees first. And after a restart it goes on."""
    plane = Plane()
    writer = await written(book, plane)
    for number in (1, 2, 3):
        seat(book, number)
    room = book.get("room")
    await writer.bring(room.meeting())
    assert writer.allocator.placements["room"].design is Design.NRA and row_of(book, plane, "p1")[5:] == (1, 1, 12, 1, 0)
    assert copy_of(book, plane, "p1", "p2")[2:4] == (0, 0)

    book.set_target("room", "p1", "p2", 0)
    plane.log.clear()
    await writer.bring(room.meeting())
    assert plane.log == [("MODIFY", CONFERENCE), ("MODIFY", COPY), ("MODIFY", COPY)], "tracked, then numbered as one who gets all, then as one who gets less"
    assert row_of(book, plane, "p1").track == 1 and copy_of(book, plane, "p1", "p2")[2:4] == (0, 1)
    assert in_trees(book, plane, "p1", "p2") == [0, 1, 2] and copy_of(book, plane, "p1", "p3")[2:4] == (0, 0)
    room.held.clear()
    await writer.bring(room.meeting())
    assert writer.allocator.placements["room"].design is Design.RA_SR
    assert [in_trees(book, plane, "p1", other) for other in ("p2", "p3")] == [[0], [0, 1, 2]] and in_trees(book, plane, "p2", "p1") == [0, 1, 2]
    assert copy_of(book, plane, "p1", "p2")[2:4] == (0, 1)

    book.set_target("room", "p1", "p2", 1)
    assert room.held == {}
    plane.log.clear()
    await writer.bring(room.meeting())
    assert plane.log[-1] == ("MODIFY", COPY) and plane.log.count(("MODIFY", COPY)) == 1, "the trees first"
    assert in_trees(book, plane, "p1", "p2") == [0, 1] and copy_of(book, plane, "p1", "p2")[2:4] == (1, 1)

    writer.layering.see(Source("room", "p1", "video:0000000b"), captured()[0])
    await writer.bring(room.meeting())
    assert sum(name == LAYER for name, _ in plane.rows) == 10
    again = Book(RELAY_IP, 20_000, 20_099, POLICY, tmp_path)
    again.load()
    before = row_of(book, plane, "p1")
    writer = await written(again, plane)
    assert row_of(again, plane, "p1").track == before.track and row_of(again, plane, "p1").layers == before.layers and row_of(again, plane, "p1").mgid != before.mgid
    assert copy_of(again, plane, "p1", "p2")[2:4] == (1, 1) and sum(name == LAYER for name, _ in plane.rows) == 10
    assert in_trees(again, plane, "p1", "p2") == [0, 1]

    again.set_target("room", "p1", "p2", 2)
    await writer.bring(again.get("room").meeting())
    assert writer.allocator.placements["room"].design is Design.NRA and row_of(again, plane, "p1").track == 1
    again.leave("room", "p3")
    await writer.bring(again.get("room").meeting())
    assert not plane.relays, "a relay entry would not rewrite the numbers"
    again.leave("room", "p2")
    again.leave("room", "p1")
    await writer.bring(Conference("room").meeting())
    assert not plane.rows and writer.layering.room() == 65_536


async def test_nobody_who_gets_all_pays(book: Book) -> None:  # noqa: F811
    """Two are relayed although their layers are known, and pictures without layers have no numbers."""
    plane = Plane()
    writer = await written(book, plane)
    seat(book, 1)
    seat(book, 2, told=None)
    await writer.bring(book.get("room").meeting())
    assert len(plane.relays) == 4 and not plane.rows
    book.set_target("room", "p2", "p1", 0)
    book.get("room").held.clear()
    await writer.bring(book.get("room").meeting())
    assert len(plane.relays) == 4 and not plane.rows, "there is nothing to leave out"


def test_which_trees_a_receiver_is_in(book: Book) -> None:  # noqa: F811
    for number in (1, 2, 3):
        seat(book, number)
    room = book.get("room")
    assert room.meeting().targets == {} and room.meeting().layers == {}
    book.set_target("room", "p1", "p2", 1)
    assert room.meeting().targets == {}, "held"
    room.held.clear()
    first = FIRST_TREE["video"]
    assert room.meeting().targets["p1", "p2"] >= {0, first, first + 1} and first + 2 not in room.meeting().targets["p1", "p2"]
    assert room.meeting().layers["p1"] == {0, first, first + 1, first + 2}
    book.set_quality("room", "p1", "p2", "audio")
    assert room.meeting().targets["p1", "p2"] == {0}
    assert max(FIRST_TREE.values()) + TARGETS == TREES


async def test_refusals(running, book: Book) -> None:  # noqa: F811
    for layers, transport, words in (
        ({"video": DD}, "RTP/SAVP", "SRTP authenticates sequence numbers"), ({"screen": DD}, "RTP/AVP", "layers of 'screen'"), ({"audio": DD}, "RTP/AVP", "layers of 'audio'"),
    ):  # fmt: skip
        with pytest.raises(ConferenceError, match=words):
            book.join("room", "p9", ["audio", "video"], [], 0.0, transport=transport, layers=layers)
    conferences, _ = running
    for name in ("ann", "bob"):
        conferences.join("room", name, ["video"], [], layers={"video": DD})
    conferences.join("room", "cem", ["video"], [], transport="RTP/SAVP")
    for pair, target, words in ((("ann", "bob"), 3, "not in 0..2"), (("ann", "ann"), 0, "nothing of its own"), (("ann", "dan"), 0, "no participant 'dan'"), (("cem", "bob"), 0, "SRTP authenticates")):
        with pytest.raises(ConferenceError, match=words):
            conferences.set_target("room", *pair, target)
    conferences.set_target("room", "ann", "bob", 0)
    assert conferences.book.get("room").held == {("ann", "bob"): 2}


async def test_a_structure_that_was_lost_is_asked_for(running: tuple[Conferences, Plane], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Its packets go to everybody, for no row tells their layers; a key frame brings it again. Rows that have just come are given a moment."""
    conferences, _ = running
    for number in (1, 2, 3):
        seat(conferences.book, number)
    conferences._touch("room")
    await until(lambda: conferences.list()[0]["design"] == "NRA")
    asked: list[Leg] = []
    monkeypatch.setattr(conferences._sockets, "want_key_frame", asked.append)
    one = Source("room", "p1", "video:0000000b")
    assert conferences._writer is not None and conferences._writer.layering.see(one, captured()[0])
    conferences._touch("room")
    await until(lambda: len(list(conferences._writer.layers_of("room"))) == 10)
    asked.clear()

    def measured(total: float, *layers: float | None) -> list[Leg]:
        for place, rate in ((("room", "p1", "video"), total), *((("room", "p1", "video", str(n)), rate) for n, rate in enumerate(layers))):
            conferences._meters.setdefault(place, _Meter()).rate = rate
        conferences._want_structures("room")
        return [asked.pop() for _ in asked[:]]

    leg = conferences.book.get("room").participants["p1"].legs["video"]
    assert measured(1e6, None, None, None) == [] == measured(1e6, 5e5, 2e5, 2e5)
    assert measured(1e6, 1e5, 5e4, 0.0) == [] and measured(1e6, 1e5, 0.0, 0.0) == [leg] == measured(1e6, 1e5, 0.0, 0.0)
    assert measured(1e6, 9e5, 0.0, 0.0) == [] == measured(1e6, 1e5, 0.0, 0.0), "told again in between"
