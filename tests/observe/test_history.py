"""The event bus and the history: bounded whatever comes, and the calls' events in order."""

from __future__ import annotations

import logging
import tracemalloc

import pytest

from shunt.events.bus import LEARN, NOTE, Event, EventBus
from shunt.events.history import History
from shunt.events.view import event_view, one_line
from tests.tools.telling import CALLEE, CALLER, Telling, sdp


class Told(Telling):
    """An agent's events, and the history of them."""

    def __init__(self, history: History | None = None) -> None:
        super().__init__()
        self.history = History() if history is None else history
        self.bus.subscribe(self.history)

    def of(self, call: str) -> list[Event]:
        """The kept events of a call. Raises AssertionError where it has none."""
        found = self.history.of(call)
        assert found is not None, f"nothing is known of {call}"
        return found[0]


def test_events_of_a_call_come_back_in_order_of_time() -> None:
    told = Told()
    told.happened("suspended")
    told.pause(-5)
    told.control("U")
    told.say("call", {"what": "suspended"}, about="c2")
    events = told.of("c1")
    assert [event.what for event in events] == ["U", "suspended"] and events[1].at - events[0].at == 5
    assert told.history.of("nobody") is None


def test_a_failing_subscriber_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    told, seen = Told(), []

    def fail(event: Event) -> None:
        raise ValueError(event.what)

    told.bus.subscribe(fail)
    told.bus.subscribe(seen.append)
    with caplog.at_level(logging.ERROR):
        told.happened("suspended")
    assert len(seen) == 1 and "could not be processed" in caplog.text


def test_a_call_keeps_its_first_and_its_last_events() -> None:
    told = Told(History(per_call=40))
    for n in range(1000):
        told.state("caller", "learning", "waiting-for-media", detail=str(n))
        told.pause(0.1)
    found = told.history.of("c1")
    assert found is not None
    events, left_out = found
    names = [event.facts["detail"] for event in events]
    assert names[:3] == ["0", "1", "2"] and names[-1] == "999"
    assert len(events) == told.history.held == 30 and left_out == 970


def test_a_flood_of_notices_pushes_nothing_else_out() -> None:
    """100,000 packets from 1000 sources to one call, of which the agent tells each kind: a handful of events, all else still there."""
    told = Told(History(per_call=100))
    told.state("caller", "learning", "waiting-for-media")
    for n in range(10_000):
        told.learn("source-mismatch", source=f"198.51.100.{n % 250}:{1000 + n % 1000}", count=10)
        told.pause(0.0001)
    events = told.of("c1")
    notices = [event for event in events if event.kind == LEARN]
    assert len(notices) <= 9 * 2 and sum(event.count for event in notices) == 100_000
    assert any(event.what == "learning" for event in events)


def test_like_notices_count_together_for_a_second_only() -> None:
    told = Told()
    for _ in range(30):
        told.learn("source-mismatch", source="198.51.100.9:4000")
        told.pause(0.1)
    events = told.of("c1")
    assert 2 <= len(events) <= 4 and sum(event.count for event in events) == 30
    assert events[0].until > events[0].at


def test_all_calls_together_are_bounded_and_ended_ones_go_first() -> None:
    history = History(events=1000)
    told = Told(history)
    told.say("call", {"what": "suspended"}, about="long")
    for n in range(500):
        told.call = f"c{n}"
        for what in ("suspended", "resumed", "release-requested"):
            told.happened(what)
        told.ended()
    assert history.held <= 1000
    assert history.of("long") is not None, "a call that runs is kept longer than ended ones"
    assert history.of("c0") is None and history.of("c499") is not None
    assert history.calls_forgotten > 200
    for n in range(5000):
        told.call = f"running{n}"
        told.control("U")
    assert history.held <= 1000 and len(history) <= 1000


def test_whole_calls_that_ended_make_room_for_one_that_runs() -> None:
    """What is told of a call after its end, as the command that ended it, must not make it a running call again."""
    history = History(events=600)
    told = Told(history)
    told.call = "long"
    told.control("U")
    told.learn("latched")
    for n in range(60):
        told.call = f"short{n}"
        told.conversation(seconds=1)
        told.control(f"D short{n} A B", "0")
    assert history.held <= 600 and history.calls_forgotten > 10
    assert any(event.kind == LEARN for event in told.of("long"))


def test_branches_of_rtp_relay_belong_to_their_call() -> None:
    told = Told()
    for call in ("c1", "c1-0", "c1-1"):
        told.call = call
        told.pause(0.1)
        told.control("U") if call != "c1" else told.sip("INVITE", tags=("A", None))
    assert [event.call_id for event in told.of("c1")] == ["c1", "c1-0", "c1-1"]
    assert [event.call_id for event in told.of("c1-1")] == ["c1", "c1-1"]


def test_commands_about_no_call_are_no_history() -> None:
    told = Told()
    told.say("control", {"verb": "VF", "command": "VF", "reply": "1", "relay": "local", "peer": None, "took_us": 1}, about=None)
    assert len(told.history) == 0


def test_a_call_id_used_again_lives_again() -> None:
    told = Told(History(events=50))
    told.ended()
    told.control("U")
    for n in range(200):
        told.call = f"x{n}"
        told.ended()
    assert told.history.of("c1") is not None


def test_every_view_can_be_written_whatever_the_network_put_into_it() -> None:
    told, seen = Told(), []
    told.bus.subscribe(seen.append)
    told.call = "c\x1b[2J"
    told.sip(200, cseq="BYE", sdp=[sdp(address=None)])
    told.control("U \\xff\\x00", None)
    told.learn("known")
    told.table("delete", "rejected", detail="no")
    told.happened("moved", party="caller", before=CALLER, source=CALLEE)
    told.bus.publish(Event(NOTE, "c", "something new", told.now, None, None, None, {"reason": "new"}))
    told.bus.publish(Event(LEARN, "c", "a new verdict", told.now, 1, "caller", "rtp", seen[2].facts))
    for event in seen:
        shown = event_view(event, seen[0].at)
        assert shown["title"] and isinstance(shown["text"], str) and one_line(event)
    assert event_view(seen[0], seen[0].at)["after_ms"] == 0


def test_a_flood_of_invites_to_nobody_is_bounded_in_bytes() -> None:
    """Each with a Call-ID of its own: an attacker's cheapest way to fill a history."""
    bus, history = EventBus(), History(events=5000)
    bus.subscribe(history)
    told, events = Telling(), []
    told.bus.subscribe(events.append)
    told.sip("INVITE", tags=("A", None))
    (one,) = events
    tracemalloc.start()
    for n in range(20_000):
        bus.publish(Event(one.kind, f"flood{n}@x", one.what, one.at, None, None, None, dict(one.facts)))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(history) <= 5000 and size / 5000 < 2000, f"{size / 5000:.0f} bytes each"
