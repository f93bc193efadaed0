"""What the REST API and the command show, from the agent's snapshots and events."""

from __future__ import annotations

from shunt.cli.conference import text
from shunt.cli.room import _line
from shunt.events.bus import CONFERENCE, Event
from shunt.operator.conferences import view
from shunt.operator.conferences.happened import Happened
from tests.operator_conferences.samples import PCMU, VP8, conference, medium, participant


def happened(*events: tuple[str, dict]) -> Happened:
    made = Happened()
    for what, facts in events:
        made(Event(CONFERENCE, "", what, 5.0, None, None, None, {"conference": "room"} | facts))
    return made


def test_a_conference_is_shown_as_people_know_it() -> None:
    video = medium("video", 20002, VP8, latched="192.0.2.7:4002", layers={"by": "dependency-descriptor", "extension_id": 12})
    video["streams"][0]["conflicts_with"] = "bob"
    video["streams"].append(video["streams"][0] | {"ssrc": 0xC8, "repair": True, "conflicts_with": None})
    flow = {
        "sender": "ann", "receiver": "bob", "medium": "video", "quality": "video", "target": 1, "decided_by": "policy", "packets": 5, "streams": [{"ssrc": 0xABC, "packets": 5}],
        "estimate_bits_per_s": 250_000, "reported": True,
    }  # fmt: skip
    found = conference(
        participant("ann", medium("audio", 20000, PCMU), video),
        participant("bob", medium("audio", 20004), present=False),
        subscriptions=[flow],
        qualities=[{"sender": "ann", "receiver": "bob", "quality": "video"}],
    )
    events = happened(
        ("joined", {"participant": "ann"}),
        ("target", {"sender": "ann", "receiver": "bob", "medium": "video", "before": 3, "level": 2, "estimate_bits_per_s": 250_000}),
        ("target", {"sender": "ann", "receiver": "bob", "medium": "video", "before": 2, "level": 0, "estimate_bits_per_s": 10_000}),
        ("downlink", {"participant": "ann", "medium": "video", "receiver": "bob"}),
        ("directions", {"participant": "ann", "medium": "audio", "direction": "inactive"}),
        ("ssrc-conflict", {"participant": "ann", "medium": "video", "ssrc": 7, "owner": "bob"}),
        ("repair", {"participant": "ann", "medium": "video", "ssrc": 0xC8, "payload_type": 97, "of": 96}),
        ("no-route", {"participant": "bob", "medium": "audio", "detail": "172.16.0.1: the switch has no route there"}),
        ("left", {"participant": "cem", "reason": "bye", "media": [], "signalling": {"sip": {}}}),
    )
    shown = view.conference(found, events.of("room"))
    assert (shown["name"], shown["design"], shown["problem"], shown["participants"][0]["media"][1]["layers"]) == ("room", "NRA", "", "dependency-descriptor:12")
    assert shown["qualities"] == [{"sender": "ann", "receiver": "bob", "quality": "video"}]
    assert shown["flows"] == [{"sender": "ann", "receiver": "bob", "medium": "video", "ssrc": 0xABC, "packets": 5}]
    assert "signalling" not in shown["happened"][-1] and shown["happened"][2]["target"] is None
    said = text(shown)
    for line in (
        "room: NRA",
        "bob gets target 1 of ann (was target 2): an estimate of 250k allows no more",
        "bob gets nothing of ann (was target 1): an estimate of 10k allows no more",
        "ann gets reports on its video from bob",
        "ann: audio inactive",
        "cem has left",
        "is not forwarded: bob owns this SSRC",
        "000000c8 repairs",
        "ann's video 00000007 is not forwarded: bob sent this SSRC first",
        "ann's video 000000c8 is treated as repair: its payload type is 97, not 96; receivers of fewer layers do not get it",
        "bob gets no audio: 172.16.0.1: the switch has no route there",
        "bob gets of ann's video: target 1 of 0..2, can take 250k, sent at 0k/0k/0k, ann gets this receiver's reports",
    ):
        assert line in said, said


def test_people_are_shown_by_name_and_asked_for_by_identifier() -> None:
    ann, bob = participant("Ann", medium("audio", 20000), signalling={"name": "Änn"}), participant("bob", medium("audio", 20004))
    flow = {
        "sender": "Ann", "receiver": "bob", "medium": "audio", "quality": "video", "target": 2, "decided_by": "policy", "packets": 5, "streams": [{"ssrc": 0xABC, "packets": 5}],
        "estimate_bits_per_s": None, "reported": False,
    }  # fmt: skip
    found = conference(ann, bob, subscriptions=[flow])
    events = happened(("source", {"participant": "Ann", "medium": "audio", "source": None}), ("left", {"participant": "cem", "reason": "bye", "media": [], "signalling": {"name": "جم"}}))
    shown = view.conference(found, events.of("room"))
    assert [(one["id"], one["name"]) for one in shown["participants"]] == [("Ann", "Änn"), ("bob", "bob")] and shown["flows"][0]["sender"] == "Ann"
    said = text(shown)
    for line in ("  Änn (Ann) ", "  bob  ", "  Änn             > bob ", "Änn's audio comes from nobody certain", "جم has left"):
        assert line in said, said


def test_a_browser_of_a_room_is_shown_by_name_and_identifier() -> None:
    browser = {"participant": "Zoe", "name": "Zoë", "role": "room", "edge": "/run/edge.sock", "transport": None}
    assert _line(browser) == "Zoë (Zoe)           room     its edge does not answer: /run/edge.sock"
    assert _line(browser | {"name": "Zoe", "transport": {"state": "connected"}}) == "Zoe                 room     connected"


def test_tiles_are_shown_with_who_has_none_and_why() -> None:
    tile = {"place": 1, "participant": "ann", "source": 7, "x": 176, "y": 0, "width": 176, "height": 144, "pictures": 80, "refused": 0, "refusal": None}
    waiting = tile | {"place": 2, "participant": "bob", "x": None, "pictures": 0, "refusal": "its bit stream cannot be read"}
    tiling = {
        "codec": "H261", "payload_type": None, "places": None, "columns": None, "predicted": False, "receivers": None, "mixer": "unix:/m.sock", "problem": None,
        "streams": [{"ssrc": 0xABC, "places": 4, "tiles": [tile, waiting], "columns": []}], "untiled": [{"participant": "cem", "reason": "its media are encrypted"}],
    }  # fmt: skip
    layout = {"streams": tiling["streams"], "untiled": tiling["untiled"]}
    shown = view.conference(conference(participant("ann", gets_tiles=True), tiling=tiling), happened(("layout", layout)).of("room"))
    assert shown["tiling"] == tiling and shown["participants"][0]["gets_tiles"]
    said = text(shown)
    for line in (
        "tiled H261 by unix:/m.sock\n",
        "00000abc tile 1   ann             at 176,0 176x144            80 pictures\n",
        "0 pictures, refused: its bit stream cannot be read\n",
        "cem has no tile: its media are encrypted",
        "tiles of ann, bob; cem has none: its media are encrypted",
    ):
        assert line in said, said
    columns = [{"column": 0, "ssrc": 0xC01, "mixer": "unix:/n.sock"}, {"column": 1, "ssrc": 0xC02, "mixer": None}]
    joined = tiling | {"columns": 2, "problem": "column 1: no mixer has room for it", "streams": [{"ssrc": 0xABC, "tiles": [tile], "columns": columns}]}
    said = text(view.conference(conference(tiling=joined), []))
    for line in ("tiled H261 by unix:/m.sock: column 1: no mixer has room for it", "00000abc column 0 is 00000c01 by unix:/n.sock\n", "00000abc column 1 is 00000c02 by no mixer\n"):
        assert line in said, said
    lacking = tiling | {"mixer": None, "problem": "no mixer has room for it"}
    assert "tiled H261 by no mixer: no mixer has room for it" in text(view.conference(conference(tiling=lacking), []))


def test_a_conference_that_begins_anew_has_no_past() -> None:
    kept = happened(("created", {}), ("joined", {"participant": "ann"}), ("ended", {}), ("created", {}))
    assert [one["what"] for one in kept.of("room")] == ["created"]


def test_who_is_in_a_conference_is_known_by_its_events() -> None:
    told = happened(("created", {}), ("joined", {"participant": "ann"}), ("joined", {"participant": "bob"}), ("left", {"participant": "ann", "reason": "bye", "media": []}))
    assert told.present() == {"room": ["bob"]}
    assert view.last_known("room", ["bob"], [])["participants"] == [{"id": "bob", "name": "bob", "media": None}]
    told(Event(CONFERENCE, "", "ended", 6.0, None, None, None, {"conference": "room"}))
    assert told.present() == {}
