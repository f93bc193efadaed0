"""What follows from receivers' feedback: targets, the one report that each sender hears, key frames, the operator's own function."""

from __future__ import annotations

from typing import Any

import pytest

from shunt.conference.control.adaptation import OWN_SSRC, Adaptation
from shunt.conference.feedback import BEYOND, LossBound
from shunt.conference.rtcp import Kind, Report, build_remb, build_rr, classify, media_ssrcs, remb, reports, walk
from shunt.conference.rtp import MediaError, is_rtcp
from tests.conference import captures

ANN, BOB, CEM = 0xA, 0xB, 0xC
LADDER = (200e3, 300e3, 500e3)


class Hands:
    """Streams of known rates, and a record of what is asked for."""

    def __init__(self, **rates: tuple[float, ...]) -> None:
        self.ladders = rates
        self.targets: dict[tuple[str, str], int] = {}
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.key_frames: list[str] = []
        self.keys_needed = True

    def rates(self, conference: str, sender: str, kind: str) -> tuple[float, ...]:
        return self.ladders.get(sender, ()) if kind == "video" else ()

    def target(self, conference: str, sender: str, receiver: str) -> int | None:
        return self.targets.get((sender, receiver))

    def set_target(self, conference: str, sender: str, receiver: str, target: int) -> None:
        self.targets[sender, receiver] = target

    def needs_key_frame(self, conference: str, sender: str, kind: str) -> bool:
        return self.keys_needed

    def want_key_frame(self, conference: str, sender: str, kind: str) -> None:
        self.key_frames.append(sender)

    def tell(self, conference: str, what: str, **facts: Any) -> None:
        self.told.append((what, facts))


class Room:
    """An adaptation whose clock is turned by hand."""

    def __init__(self, *select: Any, **rates: tuple[float, ...]) -> None:
        self.now = 0.0
        self.hands = Hands(**rates)
        self.adaptation = Adaptation(self.hands, *select, clock=lambda: self.now)

    def hear(self, receiver: str, streams: dict[int, str], bitrate: float | None = None, lost: float = 0.0, *, named: list[int] | None = None, kind: str = "video") -> dict[str, bytes]:
        data = build_rr(9, [Report(ssrc, int(lost * 256), 0, 1, 2, 3, 4) for ssrc in streams])
        if bitrate is not None:
            data += build_remb(9, int(bitrate), streams if named is None else named)
        return self.adaptation.heard("room", receiver, kind, streams, data)


def estimate_in(packet: bytes) -> tuple[int, tuple[int, ...]] | None:
    return next(((found.bitrate, found.ssrcs) for item in walk(packet) if item.kind is Kind.REMB for found in [remb(packet, item)]), None)


def test_a_sender_hears_the_best_downlink_alone() -> None:
    room = Room(ann=LADDER)
    for tick in range(60):
        room.now = tick * 0.2
        bob, cem = room.hear("bob", {ANN: "ann"}, 1e6), room.hear("cem", {ANN: "ann"}, 4e5)
        assert list(bob) == ["ann"] and cem == {}
    bitrate, named = estimate_in(bob["ann"]) or (0, ())
    assert bitrate == pytest.approx(1e6, rel=1e-4) and named == (ANN,)
    (item, _) = walk(bob["ann"])
    assert reports(bob["ann"], item) == [Report(ANN, 0, 0, 1, 2, 3, 4)] and int.from_bytes(bob["ann"][4:8], "big") == OWN_SSRC
    # The other becomes the better one, and stays it for a while: the sender hears of it, and of one only.
    for tick in range(60, 90):
        room.now = tick * 0.2
        heard = [room.hear("bob", {ANN: "ann"}, 3e5), room.hear("cem", {ANN: "ann"}, 2e6)]
        assert sum(map(bool, heard)) == 1
    assert heard[0] == {} and [facts["receiver"] for what, facts in room.hands.told if what == "downlink"] == ["bob", "cem"]
    room.adaptation.leave("room", "cem")
    assert list(room.hear("bob", {ANN: "ann"}, 3e5)) == ["ann"]


def test_a_transport_of_several_senders_is_shared_out() -> None:
    room = Room(ann=(600e3,), bob=(200e3,))
    onward = room.hear("cem", {ANN: "ann", BOB: "bob"}, 1.6e6)
    assert {sender: estimate_in(packet) for sender, packet in onward.items()} == {"ann": (pytest.approx(1.2e6, rel=1e-4), (ANN,)), "bob": (pytest.approx(4e5, rel=1e-4), (BOB,))}
    # A REMB about streams that nobody has is about the transport; reports about such are nobody's.
    assert estimate_in(room.hear("cem", {ANN: "ann", BOB: "bob"}, 1.6e6, named=[77])["bob"]) == (pytest.approx(4e5, rel=1e-4), (BOB,))
    assert room.adaptation.heard("room", "cem", "video", {ANN: "ann"}, build_rr(9, [Report(77, 0, 0, 0, 0, 0, 0)])) == {}


@pytest.mark.parametrize("keys_needed", [True, False])
def test_a_slow_receiver_gets_less_and_later_more_again(keys_needed: bool) -> None:
    room = Room(ann=LADDER)
    room.hands.keys_needed = keys_needed
    course = []
    for tick in range(600):
        room.now = tick * 0.2
        room.hear("bob", {ANN: "ann"}, 1e6)
        downlink = 1e6 if tick < 100 else 320e3 if tick < 200 else 230e3 if tick < 300 else 1e6
        target = room.hands.targets.get(("ann", "cem"), 2)
        room.hear("cem", {ANN: "ann"}, min(downlink, BEYOND * LADDER[target]))
        if not course or course[-1] != target:
            course.append(target)
    assert course == [2, 1, 0, 1, 2] and ("ann", "bob") not in room.hands.targets
    assert bool(room.hands.key_frames) == keys_needed and set(room.hands.key_frames) <= {"ann"}
    changes = [(facts["before"], facts["target"]) for what, facts in room.hands.told if what == "target"]
    assert changes == [(2, 1), (1, 0), (0, 1), (1, 2)]
    (cem,) = (one for one in room.adaptation.view("room") if one["receiver"] == "cem")
    assert (cem["target"], cem["targets"], cem["heard_by_sender"], cem["rates"]) == (2, 3, False, [200000, 300000, 500000])


class Browser:
    """A receiver's estimate: it never gets beyond 1.5 times what arrives, climbs 8 % a second, and falls below what the link takes when more is sent."""

    def __init__(self, link: float) -> None:
        self.link, self.value = link, 300e3

    def say(self, arriving: float, passed: float) -> float:
        if arriving > self.link:
            self.value = 0.85 * self.link
        else:
            self.value = min(self.value * 1.08**passed, max(self.value, 1.5 * arriving + 10e3))
        return self.value


def joined(first: int, more: int, links: dict[str, float] | None = None, *, estimates: bool = True) -> tuple[Room, list[tuple[float, str, str, int]]]:
    """A room of `first` for 60 s, then with `more`, who all begin to send at once; their rates are measured two seconds later. What changed, with the time."""
    names = [f"p{number}" for number in range(first + more)]
    room = Room(**dict.fromkeys(names[:first], LADDER))
    room.hands.keys_needed = False
    browsers = {name: Browser((links or {}).get(name, 100e6)) for name in names}
    changes: list[tuple[float, str, str, int]] = []
    for tick in range(750):
        room.now = tick * 0.2
        present = names if room.now >= 60 else names[:first]
        if room.now >= 62:
            room.hands.ladders.update(dict.fromkeys(names, LADDER))
        for receiver in present:
            senders = {1000 + number: name for number, name in enumerate(present) if name != receiver}
            arriving = sum(LADDER[room.hands.targets.get((sender, receiver), 2)] for sender in senders.values())
            value = browsers[receiver].say(arriving, 0.2)
            before = dict(room.hands.targets)
            room.hear(receiver, senders, value if estimates else None)
            changes += [(room.now, sender, to, target) for (sender, to), target in room.hands.targets.items() if before.get((sender, to)) != target]
    return room, changes


@pytest.mark.parametrize("estimates", [True, False], ids=["estimates", "reports alone"])
@pytest.mark.parametrize(("first", "more"), [(3, 6), (3, 1), (2, 12)])
def test_joins_take_nothing_from_anybody_whose_downlink_has_room(first: int, more: int, estimates: bool) -> None:
    """An estimate is of what arrived: it says nothing against senders who have just begun, and only has to climb. Nothing is lost here."""
    _, changes = joined(first, more, estimates=estimates)
    assert changes == []


def test_joins_thin_the_streams_of_a_receiver_whose_downlink_is_full() -> None:
    """Two streams of 500 kbit/s fit its 1.2 Mbit/s, eight do not. Everybody else gets all."""
    room, changes = joined(3, 6, {"p1": 1.2e6})
    assert {receiver for _, _, receiver, _ in changes} == {"p1"} and min(when for when, *_ in changes) >= 60
    assert {room.hands.targets[sender, "p1"] for sender in room.hands.ladders if sender != "p1"} == {0}


def test_a_receiver_that_never_climbs_gets_less_in_the_end() -> None:
    """Its estimate stays below what is sent, and what is sent goes up and down: that is no reason to wait for ever."""
    room = Room(ann=LADDER)
    for tick in range(200):
        room.now = tick * 0.2
        room.hands.ladders["ann"] = tuple(rate * (1.15 if tick % 20 < 10 else 1.0) for rate in LADDER)
        room.hear("cem", {ANN: "ann"}, 460e3)
        if room.hands.targets:
            break
    assert 15 <= room.now < 35 and room.hands.targets == {("ann", "cem"): 1}


def test_who_only_reports_loses_layers_by_loss() -> None:
    room = Room(ann=LADDER)
    for tick in range(20):
        room.now = tick * 1.0
        room.hear("cem", {ANN: "ann"}, lost=0.3 if room.hands.targets.get(("ann", "cem"), 2) == 2 else 0.0)
    assert room.hands.targets["ann", "cem"] == 1
    for tick in range(20, 120):
        room.now = tick * 1.0
        room.hear("cem", {ANN: "ann"})
    assert room.hands.targets["ann", "cem"] == 2, "and gets them back when nothing is lost any more"


def test_an_estimate_that_ignores_losses_is_bound_by_them() -> None:
    room = Room(ann=LADDER)
    for tick in range(5):
        room.now = tick * 0.2
        room.hear("cem", {ANN: "ann"}, 1e6, lost=0.5)
    assert room.hands.targets["ann", "cem"] < 2


def test_audio_has_one_reporter_and_no_targets() -> None:
    room = Room(ann=LADDER)
    for tick in range(10):
        room.now = tick * 6.0
        assert estimate_in(room.hear("bob", {ANN: "ann"}, kind="audio")["ann"]) is None
        assert room.hear("cem", {ANN: "ann"}, kind="audio") == {}
    assert room.hands.targets == {} and room.adaptation.view("room")[0]["estimate"] is None


def test_layers_that_become_known_later_begin_where_the_data_plane_is() -> None:
    room = Room(ann=(500e3,))
    room.hear("cem", {ANN: "ann"}, 1e6)
    room.hands.targets["ann", "cem"] = 1  # from before a restart
    room.hands.ladders["ann"] = LADDER
    room.now = 0.2
    room.hear("cem", {ANN: "ann"}, 1e6)
    assert room.adaptation.view("room")[0]["target"] == 1 and room.hands.targets["ann", "cem"] == 1
    room.hands.targets["ann", "cem"] = 0  # by an operator
    for tick in range(2, 40):
        room.now = tick * 0.2
        room.hear("cem", {ANN: "ann"}, 1e6)
    changes = [(facts["before"], facts["target"]) for what, facts in room.hands.told if what == "target"]
    assert changes == [(0, 1), (1, 2)], "estimates go on from where the operator set it"


def test_estimates_of_two_transports_are_kept_apart() -> None:
    room = Room(ann=LADDER, bob=LADDER)
    for tick in range(20):
        room.now = tick * 0.2
        for ssrc, sender, bitrate, transport in ((ANN, "ann", 1e6 if tick < 5 else 320e3, "video"), (BOB, "bob", 1e6, "video/2")):
            room.adaptation.heard("room", "cem", "video", {ssrc: sender}, build_remb(9, int(bitrate), [ssrc]), transport=transport)
            room.adaptation.heard("room", "cem", "video", {ssrc: sender}, build_rr(9, [Report(ssrc, 0, 0, 1, 2, 3, 4)]), transport=transport)
    assert room.hands.targets == {("ann", "cem"): 1}
    assert {one["sender"]: one["estimate"] for one in room.adaptation.view("room")} == {"ann": pytest.approx(320e3, rel=1e-3), "bob": pytest.approx(1e6, rel=1e-3)}


def test_a_target_that_is_refused_is_not_in_force() -> None:
    room = Room(ann=LADDER)

    def refuse(*args: object) -> None:
        raise RuntimeError("no room")

    room.hands.set_target = refuse  # type: ignore[method-assign]
    room.hear("cem", {ANN: "ann"}, 1e6)
    for tick in range(3):
        room.now = 1 + tick
        room.hear("cem", {ANN: "ann"}, 2e5)
    assert room.adaptation.view("room")[0]["target"] == 2 and [what for what, _ in room.hands.told].count("target-failed") == 1


def test_an_operators_function_is_asked_and_its_failure_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    room = Room(lambda current, history, estimate: 0 if estimate.bitrate < 7e5 else 9, ann=LADDER)
    room.hear("cem", {ANN: "ann"}, 6e5)
    assert room.hands.targets == {("ann", "cem"): 0}
    for _ in range(3):
        room.hear("cem", {ANN: "ann"}, 9e5)
    assert room.hands.targets == {("ann", "cem"): 0} and [what for what, _ in room.hands.told].count("target-failed") == 1
    assert "decode target 9 is not in 0..2" in caplog.text


@pytest.mark.skipif(not captures.names(), reason="needs the captures of a browser")
def test_a_browsers_compounds_are_understood() -> None:
    """Each estimate that Chromium sent (RR+REMB+XR, NACK+REMB, PLI+REMB) goes on as it was, and TWCC does not."""
    estimates = twcc = 0
    for name in captures.names():
        room = Room(ann=(500e3,))
        for one in captures.datagrams(name):
            if not is_rtcp(one.payload):
                continue
            said = [remb(one.payload, item) for item in walk(one.payload) if item.kind is Kind.REMB]
            streams = {ssrc: "ann" for found in said for ssrc in found.ssrcs} or {item_ssrc: "ann" for item in walk(one.payload) for item_ssrc in media_ssrcs(one.payload, item)}
            room.now = one.time
            onward = room.adaptation.heard("room", "cem", "video", streams, one.payload)
            if said:
                estimates += 1
                assert estimate_in(onward["ann"]) == (pytest.approx(said[0].bitrate, rel=1e-4), tuple(streams))
        twcc += room.adaptation.counts["twcc_refused"]
    assert estimates > 100 and twcc > 100


def test_twcc_is_counted_and_goes_nowhere() -> None:
    room = Room(ann=LADDER)
    twcc = bytes.fromhex("8fcd0005") + bytes(4) + ANN.to_bytes(4, "big") + bytes(12)
    assert classify(twcc) is Kind.TWCC and room.adaptation.heard("room", "cem", "video", {ANN: "ann"}, twcc) == {}
    assert room.adaptation.counts["twcc_refused"] == 1
    with pytest.raises(MediaError):
        room.adaptation.heard("room", "cem", "video", {ANN: "ann"}, twcc[:9])


def test_who_has_left_is_forgotten() -> None:
    room = Room(ann=LADDER, bob=LADDER)
    for receiver, streams in (("bob", {ANN: "ann"}), ("cem", {ANN: "ann", BOB: "bob"}), ("ann", {BOB: "bob"})):
        room.hear(receiver, streams, 1e6)
    assert room.adaptation.active() == ["room"]
    room.adaptation.leave("room", "bob")
    assert [(one["sender"], one["receiver"]) for one in room.adaptation.view("room")] == [("ann", "cem")]
    room.adaptation.leave("room", "cem")
    room.adaptation.end("room")
    assert room.adaptation.view("room") == [] and room.adaptation.active() == []


def test_the_bound_of_losses_comes_and_goes() -> None:
    bound = LossBound()
    assert bound.report(0.05, 5e5) is None
    assert bound.report(0.2, 5e5) == pytest.approx(4.5e5)
    assert bound.report(0.05, 5e5) == pytest.approx(4.5e5)
    steps = 0
    while bound.report(0.0, 4e5) is not None:
        steps += 1
    assert 3 < steps < 30
