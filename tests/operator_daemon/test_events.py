"""What the admin API's events become: history, diagnosis, SIP facts, records. Pure functions over what a stream has."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from shunt.admin import Event
from shunt.calls.kinds import Side
from shunt.cdr.record import csv_header, csv_lines, record
from shunt.events.bus import EventBus
from shunt.events.history import History
from shunt.events.view import event_view, one_line
from shunt.operator import dialogs as dialog_events
from shunt.operator import call_history
from shunt.operator.calls import call_of_view
from shunt.operator.dialogs import Dialogs
from shunt.operator.events import bus_event, gap_event, raw
from shunt.operator.status import count_streams, status_view

BEGIN = 1795522088.0
CALLER, CALLEE, RELAY = "192.0.2.2:6000", "198.51.100.3:7000", "203.0.113.10"


class Log:
    """Numbers events as an agent does."""

    def __init__(self) -> None:
        self.seq = 100
        self.bus = EventBus()
        self.history, self.dialogs = History(), Dialogs()
        self.bus.subscribe(self.history)
        self.bus.subscribe(self.dialogs, dialog_events.KINDS)

    def say(self, kind: str, call: str | None = "c1", after: float | None = None, **more: Any) -> None:
        place = {name: more.pop(name, None) for name in ("media", "party", "component")}
        self.seq += 1
        at = BEGIN + (self.seq - 100) / 100 if after is None else BEGIN + after
        self.bus.publish(bus_event(Event(self.seq, 1, datetime.fromtimestamp(at, UTC), 0.0, kind, more, call, **place)))

    def sip(self, call: str = "c1", *, cseq: str, tags: tuple[str, str | None] = ("A", "B"), sdp: list[dict[str, Any]] | None = None, **start: Any) -> None:
        ends = {"source": CALLER, "destination": f"{RELAY}:5060", "from": "sip:alice@example.net", "to": "sip:bob@example.net"}
        self.say("sip", call, **start, **ends, cseq_method=cseq, cseq=1, from_tag=tags[0], to_tag=tags[1], sdp=sdp)


def counters(packets: int) -> dict[str, Any]:
    return {"packets": packets, "bytes": packets * 200, "lost": 0, "reordered": 0, "duplicates": 0, "jitter_ms": 0.5, "jitter_max_ms": 2.5}


def ended_line(media: int | None, packets: int | None) -> dict[str, Any]:
    party = {"rtcp": None, "relay_packets": None, "payload_types": [[8, 6]], "sdp": None, "offloaded": packets is not None, "offloaded_after_us": None, "source_mismatches": 0}
    caller = {"signalled": CALLER, "source": CALLER, "relay_port": f"{RELAY}:35000", "rtp": None if packets is None else counters(packets)}
    return {"media": media, "reason": "released", "recorded": [], "recorders": 0, "caller": caller | party, "callee": caller | party | {"source": CALLEE}}


def ended(*lines: dict[str, Any]) -> dict[str, Any]:
    return {"reason": "released", "relay": "local", "from_tag": "A", "to_tag": "B", "started_us": int(BEGIN * 1e6), "duration_s": 60.0, "lines": list(lines)}


@pytest.mark.parametrize(
    ("text", "data"),
    [("plain", b"plain"), (r"a\\b", rb"a\b"), (r"a\xffb\x00", b"a\xffb\0"), (r"\\xff", rb"\xff"), ("é", "é".encode()), ("", b"")],
)
def test_each_text_stands_for_one_byte_string(text: str, data: bytes) -> None:
    assert raw(text) == data


def test_every_kind_of_event_can_be_told() -> None:
    """A line of the log and an object for JSON, of all that docs/admin-api.md lists, and of what a newer agent may add."""
    log, seen = Log(), []
    log.bus.subscribe(seen.append)
    entry = {"source": CALLER, "destination": f"{RELAY}:35000", "new_source": f"{RELAY}:35002", "new_destination": CALLEE}
    stream = {"media": 1, "party": "caller", "component": "rtp"}
    log.sip(method="INVITE", cseq="INVITE", tags=("A", None), sdp=[{"medium": "audio", "address": None, "port": 0, "direction": "inactive", "formats": [], "ptime_ms": None, "rtcp_mux": False}])
    log.say("control", verb="U", command="Uc8 c1 192.0.2.2 6000 A;1", reply="35000 203.0.113.10\\x0a", relay="local", peer="127.0.0.1", took_us=190, media=1)
    log.say("control", verb=None, command="?", reply=None, relay=None, peer=None, took_us=1)
    learn = {"source": CALLER, "port": f"{RELAY}:35000", "ssrc": 17, "sequence": 3, "payload_type": 8, "count": 1}
    log.say("learn", verdict="latched", **learn, **stream)
    log.say("learn", verdict="scanner", **(learn | {"ssrc": None, "sequence": None, "payload_type": None, "count": 40}), **stream)
    log.say("state", state="offloaded", before="learning", reason="offloaded", entry=entry, after_us=8200, **stream)
    log.say("state", state="suspended", before="offloaded", reason="re-invite", detail=None, counters=counters(40), **stream)
    log.say("table", operation="insert", entry=entry, outcome="unacknowledged", detail=None, took_us=5_000_000, **stream)
    log.say("call", what="moved", before=CALLER, source=CALLEE, **stream)
    log.say("ended", **ended(ended_line(1, 600)))
    for kind, what in (("relay", "down"), ("data-plane", "reset")):
        log.say(kind, None, what=what, name="local")
    log.say("agent", None, what="started", previous_seq=99, clean=False)
    log.say("conference", None, what="joined", conference="board", participant="alice")
    log.say("weather", None, what="rain", where=["here", {"there": None}])
    log.bus.publish(gap_event(100, 200, "lost", BEGIN))
    assert len(seen) == log.seq - 100 + 1
    for event in seen:
        if event.kind != "conference":
            view = event_view(event, BEGIN)
            assert view["title"] and isinstance(one_line(event), str) and view["kind"] in ("sip", "control", "learn", "state", "table", "note"), view
    assert sum(event.count for event in seen if event.kind == "learn") == 41


def test_sip_says_who_hung_up_and_how_it_was_answered() -> None:
    log = Log()
    for call, cancelled in (("answered", False), ("cancelled", True)):
        log.sip(call, method="INVITE", cseq="INVITE", tags=("A", None))
        log.sip(call, status=180, cseq="INVITE")
        if cancelled:
            log.sip(call, method="CANCEL", cseq="CANCEL", tags=("A", None))
            log.sip(call, status=200, cseq="CANCEL")
            log.sip(call, status=487, cseq="INVITE")
        else:
            log.sip(call, status=200, cseq="INVITE")
            log.sip(call, method="INVITE", cseq="INVITE", tags=("B", "A"))
            log.sip(call, status=488, cseq="INVITE", tags=("B", "A"))
            log.sip(call, method="BYE", cseq="BYE", tags=("B", "A"))
    answered, cancelled_call = log.dialogs.signalling("answered-0"), log.dialogs.signalling("cancelled")
    assert (answered.code, answered.hung_up, answered.from_uri) == (200, "callee", "sip:alice@example.net")
    assert (cancelled_call.code, cancelled_call.hung_up) == (487, "caller")
    assert log.dialogs.signalling("unknown").code is None


def test_a_call_is_judged_and_recorded_by_its_end() -> None:
    """Lines that end one after another are one call; what the data plane did not carry has no figure."""
    log = Log()
    log.say("ended", **ended(ended_line(1, 600)), after=60)
    log.say("ended", **ended(ended_line(2, None)), after=60.1)
    events, _ = log.history.of("c1") or ([], 0)
    call = call_history.ended_calls(events)["c1"]
    assert [line.media for line in call.lines] == [1, 2]
    findings = call_history.diagnose(call, events, BEGIN + 60, {})
    assert findings[0].text == "Media 1: Media flowed both ways; the data plane carried it."
    made = record(call, "released", BEGIN + 60, lambda _: None, 50.0, epoch=1, seq=102, number=7)
    first, second = made["media"]
    assert (first["caller"]["packets"], first["caller"]["codec"], first["caller"]["jitter_max_ms"]) == (600, "PCMA", 2.5)
    assert second["caller"]["packets"] is None and made["duration_s"] == 60.0
    assert csv_header().strip().endswith(",epoch,seq,number,lost,at_least,recorders,recorded_by") and csv_lines(made).splitlines()[0].endswith(",1,102,7,,,0,")


def leg(**more: Any) -> dict[str, Any]:
    base = {"signalled": CALLER, "latched": CALLER, "latched_rtcp": None, "relay_port": f"{RELAY}:35000", "asymmetric": False, "source_mismatches": 0}
    return base | {"payload_types": [[8, 6]], "allowed_sources": None, "sdp": None, "sends_from": None, "sends_to": None, "relay_packets": None, "relay_packets_age_s": None} | more


def running(idle_s: float | None, error: str | None = None) -> dict[str, Any]:
    stream = {"component": "rtp", "state": "offloaded", "reason": "offloaded", "detail": None, "since_s": 3.0, "entry": None, "was_offloaded": True}
    counted = {"counters": counters(50), "counters_age_s": 0.0, "idle_s": idle_s}
    streams = [{"from": side.value} | stream | counted for side in Side]
    line = {"media": None, "relay": "local", "from_tag": "A", "to_tag": "B", "released": None, "caller": leg(), "callee": leg(latched=CALLEE), "streams": streams, "holds": [], "recorders": 0}
    return {"call": "c1", "started_us": int(BEGIN * 1e6), "age_s": 60.0, "lines": [line], "counters_error": error}


@pytest.mark.parametrize(
    ("idle_s", "error", "said"),
    [
        (0.02, None, "Media flows both ways; the data plane carries it."),
        (14 * 60, None, "No audio either way: the caller has sent nothing for 14 min, and the callee has sent nothing for 14 min."),
        (None, None, "whether it flows now is not known: the agent does not tell when the last packet came."),
        (0.02, "no answer", "whether it flows now is not known: the counters could not be read (no answer)."),
    ],
)
def test_nothing_is_claimed_that_is_not_known(idle_s: float | None, error: str | None, said: str) -> None:
    call = call_of_view(running(idle_s, error), BEGIN + 60)
    assert call_history.diagnose(call, [], BEGIN + 60, {})[0].text.endswith(said)


def test_streams_are_counted_by_who_carries_them() -> None:
    counts = [("offloaded", "offloaded", 4), ("learning", "waiting-for-media", 2), ("allocated", "no-data-plane", 1), ("suspended", "re-invite", 1), ("released", "released", 9)]
    assert count_streams([{"state": s, "reason": r, "streams": n} for s, r, n in counts]) == {"offloaded": 4, "learning": 2, "relayed": 2}


def test_the_status_of_an_agent_that_is_away_claims_nothing() -> None:
    plane = {"target": "t", "connected": True, "name": "n", "entries": 1, "capacity": 2, "planned": 1, "orphans": 0, "reconciled": True, "lacks": [], "packets_relayed": None, "age_s": None}
    relay = {"name": "r", "address": "a", "alive": True, "sessions": 1, "version": None, "keepalive": None, "packets_relayed": None}
    status = {
        "version": "0", "epoch": 1, "pid": 2, "ready": True, "problems": [], "role": "single", "uptime_s": 1.0, "control": [], "relays": [relay], "data_plane": plane, "calls": 0,
        "streams": [], "commands": {"by_verb": {}}, "hep": None, "journal": None, "media_timeouts": 0, "source_mismatches": 0, "calls_to_restore": 0,
        "drain": {"stop": None, "since_s": None, "calls": 0, "entries": 0}, "limits": {"tasks_restarted": 0},
        "conferences": None, "ended": {"calls": 1, "one_way": 0, "zero_packet": 0}, "learn_notices": 5, "table_writes": None,
    }  # fmt: skip
    there, away = status_view(status, 0.0, None), status_view(status, 12.0, "refused")
    assert (there["data_plane"]["connected"], there["relays"][0]["alive"], there["ready"]) == (True, True, True)
    assert (away["data_plane"]["connected"], away["relays"][0]["alive"], away["ready"], away["table_reconciled"]) == (None, None, None, None)
    assert away["agent"] == {"reachable": False, "age_s": 12.0, "error": "refused", "epoch": 1, "pid": 2} and away["packets"] == {"data_plane": None, "relay": None}
    assert there["limits"]["tasks_restarted"] == 0
    assert (there["learn_notices"], there["table_batches"], there["ended"]["calls"]) == (5, None, 1)


def test_packets_of_a_data_plane_that_is_away_are_not_known() -> None:
    """A figure that stands still would be a rate of 0."""
    plane = {"target": "t", "connected": True, "name": "n", "entries": 1, "capacity": 2, "planned": 1, "orphans": 0, "reconciled": True, "lacks": [], "packets_relayed": 9, "age_s": 1.0}
    status = {
        "version": "0", "epoch": 1, "pid": 2, "ready": True, "problems": [], "role": "single", "uptime_s": 1.0, "control": [], "relays": [], "calls": 0,
        "streams": [], "commands": {"by_verb": {}}, "hep": None, "journal": None, "media_timeouts": 0, "source_mismatches": 0, "calls_to_restore": 0,
        "drain": {"stop": None, "since_s": None, "calls": 0, "entries": 0}, "limits": {},
        "conferences": None, "ended": {"calls": 0, "one_way": 0, "zero_packet": 0}, "learn_notices": 0, "table_writes": None,
    }  # fmt: skip

    def packets(error: str | None = None, **changes: Any) -> Any:
        return status_view(status | {"data_plane": plane | changes}, 0.0, error)["packets"]["data_plane"]

    assert packets() == 9
    assert packets(connected=False) is packets(age_s=60.0) is packets("refused") is None
