"""Real calls, and what the operator is told of them, held against captures on the phones' own interfaces."""

from __future__ import annotations

import csv
import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.calls import Outcome, await_clean, place
from tests.lab.topology import LabError
from tests.observe.conftest import Watched

pytestmark = [pytest.mark.e2e, pytest.mark.netns]


UNREAD = 10
"""Packets of 20 ms: a delete waits 50 ms for the reading, and on a busy machine for a processor."""


def measured(outcome: Outcome) -> dict[str, range]:
    """How many RTP packets of each party the data plane can have counted, by the captures: those that came through it, and further ones that nobody was owed."""
    found: dict[str, range] = {}
    for direction in outcome.packets.directions:
        party = "caller" if direction.sender == outcome.call.caller else "callee"
        found[party] = range(direction.offloaded, direction.offloaded + direction.besides + 1)
    assert len(found) == len(outcome.packets.directions), "a call with one medium"
    return found


def sip_id(outcome: Outcome) -> str:
    return outcome.call.call_id


def history(watched: Watched, call_id: str) -> dict[str, Any]:
    return json.loads(watched.lab.edge.shunt("history", call_id, "--json"))


def metric(watched: Watched, name: str) -> float:
    text = watched.lab.edge._http("GET", "/metrics").decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE))


def test_a_normal_call_from_behind_nat(watched: Watched) -> None:
    rated = metric(watched, "shunt_stream_mos_count")
    watched.packets()
    outcome = place(watched.lab, "uac_call", "uas_answer", host="natcaller", talk_ms=2500)
    entry = watched.record(sip_id(outcome))
    (media,) = entry["media"]
    seen = measured(outcome)
    for party in ("caller", "callee"):
        found = media[party]
        assert found["packets"] in seen[party] and found["packets"] > 20, (party, found, seen)
        assert (found["lost"], found["codec"]) == (0, "PCMU")
        assert found["jitter_ms"] is not None and 3.5 < found["mos"] <= 4.41 and found["offloaded_after_ms"] is not None
    assert media["caller"]["source"] != media["caller"]["signalled"], "the NAT's port is the one that was learned"
    assert entry["duration_s"] > 2
    with (watched.lab.edge.work / "cdr.csv").open(newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["call_id"] == entry["call_id"])
    assert (int(row["caller_packets"]), float(row["callee_mos"])) == (media["caller"]["packets"], media["callee"]["mos"])

    told = history(watched, entry["call_id"])
    assert told["diagnosis"][0] == {"level": "ok", "text": "Media flowed both ways; the data plane carried it.", "media": media["index"], "party": None}
    kinds = [event["kind"] for event in told["events"]]
    assert {"sip", "control", "learn", "state", "note"} <= set(kinds)
    times = [event["after_ms"] for event in told["events"]]
    assert times == sorted(times)
    installed = [event for event in told["events"] if event["kind"] == "state" and event["what"] == "offloaded" and event["component"] == "rtp"]
    order = [kinds.index("control"), kinds.index("learn"), told["events"].index(installed[0])]
    assert order == sorted(order), "ports, then packets, then entries"
    assert {event["party"] for event in installed} == {"caller", "callee"} and all(event["facts"]["entry"] for event in installed)

    reports = [json.loads(packet.payload) for packet in watched.packets() if packet.kind == 34]
    assert {(report["TOTAL_PK"], report["MOS"]) for report in reports} == {(media[p]["packets"], media[p]["mos"]) for p in ("caller", "callee")}
    assert {report["RTP_SIP_CALL_ID"] for report in reports} == {sip_id(outcome)}
    assert metric(watched, "shunt_stream_mos_count") == rated + 2
    assert any(line.get("event") == "state" and line["what"] == "offloaded" for line in watched.logged(entry["call_id"]))
    await_clean(watched.lab)


def test_one_way_audio_is_explained_while_it_lasts(watched: Watched) -> None:
    """The callee sends nothing: a live `shunt history` must say so, with the port that nothing reached."""
    told: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.2):
            try:
                calls = [call for call in watched.lab.edge.calls() if not call["ended"] and call["age_s"] > 2.6]
                if calls:
                    told.append(watched.lab.edge.shunt("history", calls[0]["call_id"]))
                    return
            except LabError:
                continue

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        outcome = place(watched.lab, "uac_call", "uas_silent", talk_ms=15000)  # the command takes seconds to start on a busy machine
    finally:
        stop.set()
        asking.join()
    (text,) = told
    lines = text.splitlines()
    assert lines[1] == "!! One-way audio: the caller sends, but the callee has sent nothing so far."
    entry = watched.record(sip_id(outcome))
    caller, callee = (entry["media"][0][party] for party in ("caller", "callee"))
    assert f"Not one packet reached {callee['relay_port']}, the relay port that the callee was told to send to" in lines[2]
    assert caller["packets"] > 20 and caller["mos"] > 3.5
    assert callee["mos"] is None and callee["packets"] is None and callee["note"].startswith("not measured")
    assert {d.sender for d in outcome.packets.directions} == {outcome.call.caller}, "the captures agree: the callee sent nothing"
    after = history(watched, entry["call_id"])["diagnosis"]
    assert after[0]["text"] == "One-way audio: the caller sends, but the callee sent nothing." and after[0]["party"] == "callee"
    await_clean(watched.lab)


def test_loss_on_the_callers_way_is_found_on_its_side_only(watched: Watched) -> None:
    topology = watched.lab.topology
    rules = """table inet lossy {
  chain on_the_way { type filter hook forward priority 0; udp dport 35000-65000 udp sport 6000 numgen inc mod 20 0 drop; }
}"""
    topology.run("nat", "nft", "-f", "-", stdin=rules)
    try:
        outcome = place(watched.lab, "uac_call", "uas_answer", host="natcaller", talk_ms=3500)
    finally:
        topology.run("nat", "nft", "delete", "table", "inet", "lossy")
    entry = watched.record(sip_id(outcome))
    caller, callee = (entry["media"][0][party] for party in ("caller", "callee"))
    assert 3.5 < caller["loss_percent"] < 6.5, caller
    assert callee["loss_percent"] == 0
    assert 3.5 < caller["mos"] < callee["mos"] - 0.3
    told = history(watched, entry["call_id"])["diagnosis"]
    assert any(finding["level"] == "problem" and "of the caller's packets were lost before they arrived here" in finding["text"] for finding in told)
    assert not any("of the callee's packets" in finding["text"] for finding in told)
    await_clean(watched.lab)


def test_a_re_invite_to_another_port_keeps_what_was_measured_before(watched: Watched) -> None:
    outcome = place(watched.lab, "uac_reinvite_port", "uas_answer", talk_ms=1500)
    entry = watched.record(sip_id(outcome))
    seen = measured(outcome)
    for party in ("caller", "callee"):
        # Entries go in mid-stream: what passes between their last reading and that is not counted.
        counted = entry["media"][0][party]["packets"]
        assert seen[party].start - UNREAD <= counted < seen[party].stop, (party, entry["media"][0][party], seen)
    removed = [e for e in history(watched, entry["call_id"])["events"] if e["kind"] == "state" and e["component"] == "rtp" and e["facts"].get("counters")]
    # Counters of a stream are those of all its entries so far.
    carried = {event["party"]: event["facts"]["counters"]["packets"] for event in removed}
    assert all(len([event for event in removed if event["party"] == party]) == 2 for party in ("caller", "callee")), removed
    # The entry goes on counting between that reading and its removal.
    assert all(0 <= entry["media"][0][party]["packets"] - carried[party] <= UNREAD for party in ("caller", "callee")), (carried, entry["media"])
    await_clean(watched.lab)


def test_a_refused_call_has_a_history_and_no_record(watched: Watched) -> None:
    outcome = place(watched.lab, "uac_busy", "uas_busy")
    told = history(watched, sip_id(outcome))
    assert any(event["kind"] == "sip" and event["what"] == "486" for event in told["events"])
    time.sleep(0.3)
    lines = Path(watched.lab.edge.work / "cdr.jsonl").read_text().splitlines()
    for entry in map(json.loads, lines):
        if entry["call_id"].startswith(sip_id(outcome)):
            assert all(media[party]["mos"] is None and media[party]["packets"] is None for media in entry["media"] for party in ("caller", "callee"))


def test_top_status_and_page_of_the_running_agent(watched: Watched) -> None:
    text = watched.lab.edge.shunt("top", "--once", "--interval", "0.3")
    assert "shunt top" in text and "entries" in text
    page = watched.lab.edge._http("GET", "/").decode()
    assert "<title>Shunt</title>" in page
    status = watched.lab.edge.status()
    assert status["cdr"]["failures"] == 0 and status["homer"]["dropped"] == 0 and status["homer"]["sent"] > 0
