"""The conference bench: what it makes of packets that were and were not there, its load generator, and all of it in small."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import struct
import sys

import pytest

from bench import conference, janus, meetings, planes, rooms, runs, sequence
from bench.janus import Janus
from bench.report import conference as report
from bench.report.page import Page
from bench.rooms import LabError, Person, Phones, Seats, Stream, delays, side_by_side
from shunt.cli.capacity import Design
from tests.bench.test_reports import FACTS
from tests.tools.conference import descriptor, rtp
from tests.tools.conference.rtcp import build_nack, build_pli, build_remb, build_rr


def live(test):
    """For tests that make network namespaces."""
    return pytest.mark.netns(pytest.mark.skipif(os.geteuid() != 0, reason="needs root")(test))


def step(copies: list[tuple[int, int, float]], *, sent: int = 2, receivers: int = 2, **more: float) -> dict:
    """A step with one stream of person 0: (receiver, number, µs) of what arrived."""
    columns = {"receiver": [c[0] for c in copies], "sender": [0] * len(copies), "medium": ["audio"] * len(copies), "number": [c[1] for c in copies], "us": [c[2] for c in copies]}
    return {
        "skipped": 0,
        "late_us": 5,
        "seconds": 1.0,
        "other": 0,
        "process_s": 0.0,
        "people": 3,
        "streams": [{"sender": 0, "medium": "audio", "sent": sent, "receivers": receivers}],
        "arrivals": columns,
    } | more


def test_delays_count_what_is_lost_and_when_the_last_copy_comes() -> None:
    found = delays(step([(1, 0, 10.0), (2, 0, 30.0), (1, 1, 20.0), (1, 1, 25.0)], process_s=6e-6))
    assert (found["due"], found["lost"], found["twice"]) == (4, 1, 1)
    assert (found["min"], found["p50"], found["max"], found["avg"], found["last"]) == (10.0, 20.0, 30.0, 20.0, 20.0)
    assert found["process_ns_per_copy"] == pytest.approx(2000)
    with pytest.raises(LabError, match="nothing arrived"):
        delays(step([]))


def test_ratios_are_taken_within_a_repetition() -> None:
    def one(us: float) -> dict:
        return step([(r, n, us) for r in (1, 2) for n in (0, 1)])

    found = side_by_side({"softswitch": [one(10.0), one(100.0)], "user space": [one(30.0), one(200.0)]})
    assert found["user space"]["ratio"]["p50"]["values"] == [3.0, 2.0] and found["softswitch"]["ratio"]["p99"]["values"] == [1.0, 1.0]
    assert found["user space"]["p50"]["median"] == 115.0 and found["user space"]["lost"] == 0


def test_who_hears_whom() -> None:
    one, two = conference.hosts(6, 1), conference.hosts(6, 2)
    assert all(a.hears(b, "audio") == (a is not b) for a, b in itertools.product(one, one))
    assert [person.hears(two[(n + 1) % 6], "video") for n, person in enumerate(two)] == [False, True] * 3
    assert sum(stream.rate for stream in one[0].sends.values()) == sum(stream.rate for stream in two[0].sends.values())
    assert [sum(stream.rate for stream in person.sends.values()) for person in conference.audience(2)] == [150, 0, 0]


def test_the_generator_accounts_for_every_packet() -> None:
    rooms.build_all()
    seats = Seats()
    for number in range(3):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind(("127.0.0.1", 0))
        seats.legs.append((number, made))
    to = [made.getsockname() for _, made in seats.legs]
    people = [Person("ann", "caller", {"audio": Stream(200, 44), "video": Stream(100, 1154)}), Person("bob", "callee", {"audio": Stream(0, 44)}), Person("cem", "callee", {})]
    seats.mouths = [(0, "audio", 0, to[1]), (0, "video", 0, to[2]), (1, "audio", 1, to[0])]
    phones = Phones(people, seats)
    try:
        assert phones.talk(120) == 2, "who sends nothing is heard in talk, and not counted"
        told, records = phones.measure(300)
        seats.legs[0][1].sendto(b"\x80\xc8" + bytes(30), to[1])
        again, _ = phones.measure(100)
    finally:
        phones.close()
        seats.close()
    assert told["other"] == 0 and again["other"] <= 1
    assert told["sent"][2] == 0 and len(records) == sum(told["sent"]) and told["sent"][0] + told["skipped"] >= 50
    for stream, leg in ((0, 1), (1, 2)):
        mine = records[records["stream"] == stream]
        assert set(mine["leg"]) == {leg} and mine["number"].tolist() == list(range(told["sent"][stream]))
    assert (records["ns"] > 0).all() and (records["ns"] < 10**9).all()


def test_types_of_packets() -> None:
    audio = next(planes.sound(1))[1]
    pictures = [packet for _, packet in itertools.islice(planes.Picture(2), 2)]
    rr = build_rr(1)
    sr = struct.pack("!BBHIIIIII", 0x80, 200, 6, 1, 2, 3, 4, 5, 6)
    for packet, kind in (
        (audio, planes.AUDIO), (pictures[0], planes.STRUCTURE), (pictures[1], planes.VIDEO), (sr, planes.REPORT), (rr, planes.NOTHING_BUT_RR),
        (rr + build_remb(1, 1000, [2]), planes.ESTIMATE), (rr + build_nack(1, 2, [3]), planes.NACK), (rr + build_remb(1, 1000, [2]) + build_pli(1, 2), planes.PLI),
        (b"\x00\x01\x00\x00\x21\x12\xa4\x42" + bytes(12), planes.CHECK), (b"", planes.OTHER), (b"\x80\xc9\x00\x09" + bytes(4), planes.OTHER), (b"\x9f\x60" + bytes(10), planes.OTHER),
    ):  # fmt: skip
        assert planes.type_of(packet) == kind, packet.hex()


def test_a_browsers_packets_go_on_without_a_seam() -> None:
    turns = 2 * sum(not line.startswith("#") for line in planes.HEADERS.read_text().splitlines()) + 5
    structure, before, frames = None, None, []
    for when, packet in itertools.islice(planes.Picture(7), turns):
        header = rtp.parse_header(packet)
        told = descriptor.parse(rtp.find_element(packet, header, planes.EXTENSION), structure)
        structure = told.structure or structure
        frames.append(told.mandatory.frame_number)
        sequence_number = int.from_bytes(packet[2:4], "big")
        assert packet[8:12] == bytes((0, 0, 0, 7))
        if before is not None:
            assert sequence_number == before[1] + 1 and 0 <= when - before[0] < 0.5
        before = when, sequence_number
    assert all(0 <= b - a <= 2 for a, b in zip(frames, frames[1:])) and len(set(frames)) > 400
    assert 17 < before[0] < 25, "some nine seconds a turn"


def test_planes_are_split_by_what_the_host_saw() -> None:
    empty = {kind: [0, 0] for kind in planes.TYPES}
    sent = empty | {planes.AUDIO: [90, 9000], planes.STRUCTURE: [2, 800], planes.CHECK: [8, 200]}
    base = {"people": 3, "seconds": 10.0, "sent": sent, "got": empty, "copied_to_agent": 1, "counted": {}, "not_seen": 0, "agent_cpu_s": 0.5}
    found = planes.split(base | {"host": empty | {planes.AUDIO: [5, 500], planes.STRUCTURE: [1, 400], planes.CHECK: [8, 200]}})
    by = {row["type"]: row for row in found["rows"]}
    assert by[planes.AUDIO]["data_plane"] == [85, 8500] and by[planes.STRUCTURE]["control_plane"] == [2, 800] and by[planes.STRUCTURE]["data_plane"] == [1, 400]
    assert found["control"] == [15, 1500] and found["packets_by_data_plane"] == 0.85 and found["bytes_by_data_plane"] == 0.85 and found["agent_cpu_share"] == 0.05
    with pytest.raises(LabError, match="9 packets reached the host, 8 were sent"):
        planes.split(base | {"host": empty | {planes.CHECK: [9, 200]}})


def test_requests_for_nothing_have_two_wholes() -> None:
    run = {"algorithm": "S-LR", "loss": 0.1, "reordered": 0.0, "due": 100, "forwarded": 88, "extra": 1, "late": 2, "masked": 0, "overhead": 0.03, "duplicates": 0}
    (row,) = conference.sequence_rows([run, run | {"extra": 0, "late": 0, "overhead": 0.0, "forwarded": 90}])
    assert row["worst"] == 0.03 and row["mean"] == 3 / 200 and row["of_all_requests"] == 3 / 23


def test_low_retransmission_asks_for_less_than_low_memory() -> None:
    found = sequence.figure_18(1200)
    rows = {(row["algorithm"], row["loss"], row["reordered"]): row for row in conference.sequence_rows(found)}
    assert not any(run["duplicates"] for run in found)
    assert rows["S-LR", 0.1, 0.0]["mean"] < rows["S-LM", 0.1, 0.0]["mean"] and rows["S-LR", 0.0, 0.05]["mean"] < rows["S-LM", 0.0, 0.05]["mean"]
    assert rows["S-LR", 0.0, 0.0]["worst"] == rows["S-LM", 0.0, 0.0]["worst"] == 0


def test_meetings_of_the_paper_and_of_32_cores() -> None:
    by = {(row["participants"], row["design"], row["senders"], row["adapted"]): row["meetings"] for row in meetings.curves()}
    assert (by[2, "two-party", 2, 0], by[3, "NRA", 3, 0], by[3, "RA-R", 3, 0], by[10, "RA-SR", 10, 0]) == (533_333, 131_070, 43_690, 4_369)
    assert by[10, "RA-SR", 10, 10] == 728 and by[10, "RA-SR", 1, 0] > by[10, "RA-SR", 10, 0]
    # 1 µs a copy: a core makes a million of them a second.
    assert meetings.software(10, 10, 1000.0) == pytest.approx(32e6 / (meetings.PACKETS_PER_SENDER * 90))
    ten = next(one for one in meetings.gains(meetings.curves(), 1000.0) if one["participants"] == 10)
    assert ten["least"] == pytest.approx(728 / meetings.software(10, 10, 1000.0)) and ten["least"] < ten["most"]


def test_a_peer_that_is_not_installed_is_left_out_and_the_report_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janus.shutil, "which", lambda name: None)
    assert conference.present() == (["softswitch", "user space"], ["Janus: not measured, it is not installed (Debian package janus)"])
    monkeypatch.setattr(janus.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert conference.present() == (["softswitch", "user space", "Janus"], [])


def fake() -> dict:
    """Results of a run that was not."""
    copies = [(r, n, 10.0 * r + n) for r in (1, 2) for n in range(2)]
    slow = [(r, n, 3 * us) for r, n, us in copies]
    found = {
        key: {"softswitch": [step(copies), step(copies)], "user space": [step(slow, process_s=8e-6), step([(r, n, 9 * us) for r, n, us in copies], process_s=8e-6)]}
        for key in ("hosts/1/02", "hosts/1/06", "hosts/2/10", "load/ten-people")
    }
    plane = {"people": 3, "seconds": 10.0, "sent": {k: [10, 1000] for k in planes.TYPES}, "host": {k: [1, 100] for k in planes.TYPES}, "got": {k: [0, 0] for k in planes.TYPES}}
    loaded = [{"design": "NRA", "people": 3, "fit": 131_070, "meetings": 31, "trees": 16, "nodes": 93, "streams": 93, "writes": 400, "seconds": 0.1, "allocator_s": 0.01, "kernel_mib": 5, "probed": 6}]
    plane |= {"copied_to_agent": 4, "counted": {"audio": 9}, "not_seen": 0, "agent_cpu_s": 0.3}
    return conference.analyse(found, plane, sequence.figure_18(200), loaded, busy=0.5) | {"missing": ["Janus: not measured, it is not installed"]}


def test_the_report_is_one_file_and_says_what_is_not_to_be_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    results = fake()
    page = Page("Conferences")
    report.fill(page, FACTS, results)
    text = page.text()
    assert text.count("<svg") == 6 and not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", text.replace("xlink:href", "href")) and "url(http" not in text
    assert "50% of the cores" in text and "ratios are not to be quoted" in text and "Janus: not measured" in text
    assert "6.0 (3.0–9.0)" in text and "user space 2,000 (2,000–2,000) ns" in text
    entry = report.text(FACTS, results)
    assert "| 10 | user space |" in entry and "| RTP, audio | 10 |" in entry and "| NRA | 3 | 131,070 | 31 |" in entry
    assert report.print_figures(results) == 0 and "533,333" in capsys.readouterr().out
    results["targets"][0]["met"] = False
    assert report.print_figures(results) == 1


@pytest.mark.slow
@live
def test_meetings_are_loaded_and_their_packets_followed() -> None:
    assert (two := meetings.load(Design.TWO_PARTY, 200_000))["streams"] == 4 and two["probed"] == 4
    found = meetings.load(Design.RA_SR, 4369)
    assert (found["meetings"], found["trees"], found["streams"], found["probed"]) == (2, 30, 20, 20) and found["nodes"] == 2 * 3 * 10 * 9


@pytest.mark.slow
@live
def test_the_whole_bench_in_small(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "OUTPUT", tmp_path)
    monkeypatch.setattr(runs, "busy_share", lambda: 0.0)
    monkeypatch.setitem(conference.PROFILES, "smoke", conference.Profile((), (4,), (2,), ("two people",), 200, 1, 3.0, 150, 50_000))
    monkeypatch.setattr(sys, "argv", ["conference", "--profile", "smoke"])
    conference.main()
    results = json.loads((tmp_path / "conference" / "smoke" / "results.json").read_text())
    titles = {"softswitch", "user space"} | ({"Janus"} if not Janus.missing() else set())
    assert set(results["compared"]) == {"hosts/2/04", "receivers/02", "load/two-people"}
    for key, each in results["compared"].items():
        assert set(each) == titles
        for title, one in each.items():
            assert one["due"] and (one["lost"], one["twice"]) == (0, 0), (key, title)
    # Base to three others each, the enhancement to those of them who take it.
    taken = {stream["receivers"] for stream in json.loads((tmp_path / "conference/smoke/raw/hosts/2/04/0/softswitch.json").read_text())["streams"] if stream["medium"] == "video"}
    assert taken == {1, 2}
    for row in results["planes"]["rows"]:
        if row["type"] in (planes.AUDIO, planes.VIDEO):
            # Each packet of the data plane came to both others, but for the first ones, before the third's address is known.
            assert row["data_plane"][0] > 50 and abs(2 * row["data_plane"][0] - row["received"][0]) <= 20
        if row["type"] in (planes.CHECK, planes.ESTIMATE, planes.REPORT):
            assert row["sent"][0] > 0 and row["data_plane"] == [0, 0]
    carried = {row["type"]: row["data_plane"][0] for row in results["planes"]["rows"]}
    counted = results["planes"]["counted"]
    assert counted == {"audio": carried[planes.AUDIO], "video": carried[planes.VIDEO] + carried[planes.STRUCTURE]}, "what was not seen by the host is what the data plane counted"
    assert {one["design"] for one in results["meetings"]["loaded"]} == {design.value for design in Design}
    assert "<svg" in (tmp_path / "conference" / "smoke" / "report.html").read_text()
