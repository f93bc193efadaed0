"""The event bus and the history: bounded whatever comes, and the calls' events in order."""

from __future__ import annotations

import logging

from shunt.events.bus import CONTROL, LEARN, NOTE, RELAY, SIP, STATE, Event, EventBus
from shunt.events.history import History
from shunt.events.view import event_view, one_line
from shunt.net import Endpoint
from shunt.tables.entry import Outcome
from tests.agent.parts import Core


def bus_with(history: History) -> EventBus:
    bus = EventBus()
    bus.subscribe(history)
    return bus


def learn(bus: EventBus, call_id: str, source: str, what: str = "stray", at: float | None = None) -> None:
    bus.emit(
        LEARN, call_id, what, at=at, media=1, party="caller", component="rtp", source=Endpoint.parse(source), port=Endpoint.parse("192.0.2.1:35000"),
        ssrc=1, seq=1, payload_type=8, version=2,
    )


def test_events_of_a_call_come_back_in_order_of_time() -> None:
    history = History()
    bus = bus_with(history)
    bus.emit(NOTE, "c1", "second")
    first_at = history.of("c1")[0][0].at - 5
    bus.emit(CONTROL, "c1", "U", at=first_at, command=b"U", reply=b"1", relay="r1", seconds=5.0)
    bus.emit(NOTE, "c2", "other")
    events, left_out = history.of("c1")
    assert [event.what for event in events] == ["U", "second"] and left_out == 0
    assert abs((events[1].wall - events[0].wall) - 5) < 0.5, "wall time goes back with the beginning"
    assert history.of("nobody") is None


def test_a_failing_subscriber_disturbs_nobody(caplog) -> None:
    bus, seen = EventBus(), []
    bus.subscribe(lambda event: 1 / 0)
    bus.subscribe(seen.append)
    with caplog.at_level(logging.ERROR):
        bus.emit(NOTE, "c1", "x")
    assert len(seen) == 1 and "could not be used" in caplog.text


def test_a_call_keeps_its_first_and_its_last_events() -> None:
    history = History(per_call=40)
    bus = bus_with(history)
    for n in range(1000):
        bus.emit(STATE, "c1", str(n), reason="x", before="y", detail="")
    events, left_out = history.of("c1")
    names = [event.what for event in events]
    assert names[:3] == ["0", "1", "2"] and names[-1] == "999"
    assert len(events) == history.held == 30 and left_out == 970


def test_a_flood_of_notices_pushes_nothing_else_out() -> None:
    """100,000 packets from 1000 sources to one call: a handful of events, all else still there."""
    history = History(per_call=100)
    bus = bus_with(history)
    bus.emit(STATE, "c1", "learning", reason="x", before="y", detail="")
    for n in range(100_000):
        learn(bus, "c1", f"198.51.100.{n % 250}:{1000 + n % 1000}", at=1000 + n / 100_000)
    events, _ = history.of("c1")
    notices = [event for event in events if event.kind == LEARN]
    assert len(notices) <= 9 and sum(event.count for event in notices) == 100_000
    assert any(event.what == "learning" for event in events)


def test_like_notices_count_together_for_a_second_only() -> None:
    history = History()
    bus = bus_with(history)
    for n in range(30):
        learn(bus, "c1", "198.51.100.9:4000", at=100 + n * 0.1)
    events, _ = history.of("c1")
    assert 2 <= len(events) <= 4 and sum(event.count for event in events) == 30
    assert events[0].until > events[0].at


def test_all_calls_together_are_bounded_and_ended_ones_go_first() -> None:
    history = History(events=1000)
    bus = bus_with(history)
    bus.emit(CONTROL, "long", "U", command=b"U", reply=b"1", relay="r1", seconds=0.1)
    for n in range(500):
        for what in ("a", "b", "c", "ended"):
            bus.emit(NOTE, f"c{n}", what)
    assert history.held <= 1000
    assert history.of("long") is not None, "a call that runs is kept longer than ended ones"
    assert history.of("c0") is None and history.of("c499") is not None
    assert history.calls_forgotten > 200
    for n in range(5000):
        bus.emit(CONTROL, f"running{n}", "U", command=b"U", reply=b"1", relay="r1", seconds=0.1)
    assert history.held <= 1000 and len(history) <= 1000


async def test_real_calls_that_ended_make_room_for_one_that_runs() -> None:
    """The delete that ends a call is reported after its end: that must not make it a running call again."""
    core, history = Core(), History(events=600)
    core.offloader.events.subscribe(history)
    ports = await core.call("long")
    await core.packet("10.91.1.2:6000", ports[0])
    for n in range(60):
        await core.call(f"short{n}")
        await core.say(f"D short{n} A B")
    assert history.held <= 600 and history.calls_forgotten > 10
    assert any(event.kind == LEARN for event in history.of("long")[0])


def test_branches_of_rtp_relay_belong_to_their_call() -> None:
    history = History()
    bus = bus_with(history)
    bus.emit(SIP, "c1", "INVITE", source=None, destination=None, cseq="INVITE", from_tag="a", to_tag=None, sdp=(), lines=())
    bus.emit(CONTROL, "c1-0", "U", command=b"U", reply=b"1", relay="r1", seconds=0.1)
    bus.emit(CONTROL, "c1-1", "U", command=b"U", reply=b"1", relay="r1", seconds=0.1)
    assert [event.call_id for event in history.of("c1")[0]] == ["c1", "c1-0", "c1-1"]
    assert [event.call_id for event in history.of("c1-1")[0]] == ["c1", "c1-1"]


def test_commands_about_no_call_and_relay_times_are_no_history() -> None:
    history = History()
    bus = bus_with(history)
    bus.emit(CONTROL, "", "VF", command=b"VF", reply=b"1", relay="r1", seconds=0.1)
    bus.emit(RELAY, "", "r1", seconds=0.1, answered=True)
    assert len(history) == 0


def test_a_call_id_used_again_lives_again() -> None:
    history = History(events=50)
    bus = bus_with(history)
    bus.emit(NOTE, "c1", "ended")
    bus.emit(CONTROL, "c1", "U", command=b"U", reply=b"1", relay="r1", seconds=0.1)
    for n in range(200):
        bus.emit(NOTE, f"x{n}", "ended")
    assert history.of("c1") is not None


def test_every_kind_of_event_can_be_written() -> None:
    """Views never fail, whatever the network put into the facts."""
    bus, seen = EventBus(), []
    bus.subscribe(seen.append)
    a, b = Endpoint.parse("192.0.2.1:5060"), Endpoint.parse("[2001:db8::1]:5060")
    bus.emit(SIP, "c\x1b[2J", "200", source=a, destination=b, cseq="BYE", from_tag="x", to_tag=None, sdp=(a,), lines=())
    bus.emit(CONTROL, "c", "U", command=b"U \xff\x00", reply=None, relay=None, seconds=0.1)
    learn(bus, "c", "198.51.100.9:4000", "an unknown verdict")
    bus.emit("table", "c", "delete", media=None, party="caller", component="rtp", key=None, outcome=Outcome.REJECTED, detail="no", seconds=0.1, last=None)
    bus.emit(STATE, "c", "learning", media=1, party="callee", component="rtcp", reason="new-reason", before="x", detail="d")
    bus.emit(NOTE, "c", "moved", before=a, source=b)
    bus.emit(NOTE, "c", "something new")
    for event in seen:
        shown = event_view(event, seen[0].at)
        assert shown["title"] and isinstance(shown["text"], str) and one_line(event)
    assert isinstance(seen[0], Event) and event_view(seen[0], seen[0].at)["after_ms"] == 0


def test_a_flood_of_invites_to_nobody_is_bounded_in_bytes() -> None:
    """Each with a Call-ID of its own: an attacker's cheapest way to fill a history."""
    import tracemalloc

    history = History(events=5000)
    bus = bus_with(history)
    source = Endpoint.parse("198.51.100.9:5060")
    tracemalloc.start()
    for n in range(20_000):
        bus.emit(SIP, f"flood{n}@x", "INVITE", source=source, destination=source, cseq="INVITE", from_tag="a", to_tag=None, sdp=(), lines=())
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(history) <= 5000 and size / 5000 < 2000, f"{size / 5000:.0f} bytes each"
