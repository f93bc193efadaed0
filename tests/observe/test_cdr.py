"""Call records: what they say after re-INVITEs, and that files survive rotation and full disks."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from shunt.cdr import writer as writing
from shunt.cdr.record import COLUMNS, csv_header, csv_lines, json_line, record
from shunt.cdr.writer import RecordWriter, append
from shunt.events.bus import NOTE
from shunt.tables.entry import StreamStats
from tests.agent.parts import Core

CALLER, CALLEE = "10.91.1.2:6000", "10.91.2.2:7000"


def parsed(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


class Records:
    """The records of a core's calls, as the agent would write them."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.entries: list[dict[str, Any]] = []
        core.offloader.events.subscribe(self)

    def __call__(self, event) -> None:
        if event.kind == NOTE and event.what == "ended":
            self.entries.append(record(event.facts["call"], event.facts["reason"], self.core.now, event.wall, lambda call_id, index: None, 50.0))


async def talk(core: Core, packets: int, lost: int, ports: tuple[int, int], callee: str = CALLEE) -> None:
    await core.packet(CALLER, ports[0])
    await core.packet(callee, ports[1])
    for counts in core.table.counts.values():
        counts.packets, counts.bytes, counts.lost, counts.reordered, counts.duplicates, counts.jitter_us, counts.ssrc = packets, packets * 200, lost, 1, 0, 2000, 7


async def test_a_record_of_a_plain_call() -> None:
    core = Core()
    records = Records(core)
    ports = await core.call()
    await talk(core, 500, 5, ports)
    core.now += 60
    await core.say("D c1 A B")
    (entry,) = records.entries
    assert (entry["call_id"], entry["reason"], entry["duration_s"], entry["from_tag"], entry["to_tag"]) == ("c1", "released", 60.0, "A", "B")
    for side, address in (("caller", CALLER), ("callee", CALLEE)):
        party = entry["media"][0][side]
        assert (party["source"], party["packets"], party["lost"], party["jitter_ms"], party["codec"]) == (address, 500, 5, 2.0, "PCMA")
        assert 4.0 < party["mos"] < 4.4 and party["offloaded"] and party["offloaded_after_ms"] is not None


async def test_a_re_invite_adds_up_and_never_counts_twice() -> None:
    core = Core()
    records = Records(core)
    ports = await core.call()
    await talk(core, 500, 5, ports)
    await core.say("Lc0,8 c1 10.91.2.2 7100 A;1 B;1")
    core.now += 5
    await talk(core, 300, 30, ports, "10.91.2.2:7100")
    await core.offloader.read_live()
    await core.say("D c1 A B")
    (entry,) = records.entries
    for side in ("caller", "callee"):
        assert (entry["media"][0][side]["packets"], entry["media"][0][side]["lost"], entry["media"][0][side]["reordered"]) == (800, 35, 2)


async def test_a_silent_party_has_no_figures_and_no_mos() -> None:
    core = Core(one_way_after=0.1)
    records = Records(core)
    ports = await core.call()
    await core.packet(CALLER, ports[0])
    core.now += 1
    await core.offloader.sync(core.book.call("c1").lines[0])
    for counts in core.table.counts.values():
        counts.packets, counts.lost, counts.jitter_us = 400, 0, 100
    await core.say("D c1 A B")
    caller, callee = (records.entries[0]["media"][0][side] for side in ("caller", "callee"))
    assert caller["mos"] > 4 and callee["mos"] is None
    assert all(callee[name] is None for name in ("packets", "bytes", "lost", "loss_percent", "jitter_ms", "source", "codec"))
    assert callee["note"].startswith("not measured")


async def test_the_end_is_told_once_and_after_the_last_counters() -> None:
    core = Core()
    records = Records(core)
    ports = await core.call()
    await talk(core, 500, 5, ports)
    core.table.delay = 0.01
    await asyncio.gather(core.say("D c1 A B"), core.say("D c1 A B"))
    await core.say("D c1 A B")
    assert [entry["media"][0]["caller"]["packets"] for entry in records.entries] == [500]


async def test_a_call_that_loses_its_data_plane_keeps_what_was_last_read() -> None:
    core = Core()
    records = Records(core)
    ports = await core.call()
    await talk(core, 500, 5, ports)
    await core.offloader.read_live()
    core.table.held.clear()
    core.table.counts.clear()
    await core.offloader.reconcile()
    await core.settle()
    for counts in core.table.counts.values():
        counts.packets, counts.lost = 100, 0
    await core.say("D c1 A B")
    assert records.entries[0]["media"][0]["caller"]["packets"] == 600


async def test_a_relayed_call_has_the_relays_own_counts() -> None:
    """Without a data plane nothing is measured, but the SIP server's last query says what the relay relayed."""
    core = Core(enabled=False)
    records = Records(core)
    await core.call()
    await core.say("Q c1 A;1 B;1")
    await core.say("D c1 A B")
    caller, callee = (records.entries[0]["media"][0][side] for side in ("caller", "callee"))
    assert (caller["relay_packets"], callee["relay_packets"]) == (1, 2)
    assert caller["packets"] is None and caller["mos"] is None


# -- text ---------------------------------------------------------------------------------------------


def entry(call_id: str = "c1", **media: Any) -> dict[str, Any]:
    party = {"packets": 5, "mos": 4.1, "offloaded": True, "note": 'a "quoted", note'}
    line = {"index": 1, "kind": "audio", "reason": "released", "caller": party, "callee": dict.fromkeys(party)} | media
    return {"format": 1, "call_id": call_id, "reason": "released", "started": "s", "ended": "e", "duration_s": 1.5, "relay": "r1", "from_tag": "a", "to_tag": None, "media": [line]}


def test_csv_has_every_column_and_a_line_for_each_media_line() -> None:
    two = entry()
    two["media"].append(two["media"][0] | {"index": 2, "kind": "video"})
    rows = parsed(csv_header() + csv_lines(two) + csv_lines(entry("c2") | {"media": []}))
    assert [(row["call_id"], row["media"], row["kind"]) for row in rows] == [("c1", "1", "audio"), ("c1", "2", "video"), ("c2", "", "")]
    assert tuple(rows[0]) == COLUMNS and None not in rows[0].values()
    assert (rows[0]["caller_packets"], rows[0]["caller_mos"], rows[0]["caller_note"], rows[0]["callee_mos"]) == ("5", "4.1", 'a "quoted", note', "")


@pytest.mark.parametrize("call_id", ["=cmd|' /C calc'!A0", "+1", "-1", "@x", "a,b\r\nc"])
def test_a_call_id_from_the_network_is_only_text(call_id: str) -> None:
    (row,) = parsed(csv_header() + csv_lines(entry(call_id)))
    assert row["call_id"].lstrip("'") == call_id and row["call_id"][0] not in "=+-@"
    assert json.loads(json_line(entry(call_id)))["call_id"] == call_id


# -- files --------------------------------------------------------------------------------------------


async def written(writer: RecordWriter, count: int) -> None:
    async with asyncio.timeout(5):
        while writer.written < count:
            await asyncio.sleep(0.01)


async def test_both_files_are_written_and_survive_rotation(tmp_path: Path) -> None:
    table, lines = tmp_path / "cdr.csv", tmp_path / "cdr.jsonl"
    writer = RecordWriter(str(table), str(lines))
    writer.start()
    writer.put(entry("c1"))
    await written(writer, 1)
    table.rename(tmp_path / "cdr.csv.1")
    lines.rename(tmp_path / "cdr.jsonl.1")
    for n in range(2, 5):
        writer.put(entry(f"c{n}"))
    await writer.close()
    assert [row["call_id"] for row in parsed((tmp_path / "cdr.csv.1").read_text())] == ["c1"]
    assert [row["call_id"] for row in parsed(table.read_text())] == ["c2", "c3", "c4"], "the new file has its own header"
    assert [json.loads(line)["call_id"] for line in lines.read_text().splitlines()] == ["c2", "c3", "c4"]
    assert writer.written == 4 and os.stat(table).st_mode & 0o777 == 0o640


async def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(writing, "_RETRY_S", 0.02)
    monkeypatch.setattr(writing, "_GATHER_S", 0.0)
    path = tmp_path / "cdr.csv"
    writer = RecordWriter(str(path), None)
    writer.start()
    writer.put(entry("c1"))
    await written(writer, 1)
    real, full = os.write, [True]

    def short(fd: int, data: bytes) -> int:
        if full[0] and len(data) <= 20:
            raise OSError(28, "No space left on device")
        return real(fd, data[: len(data) - 20] if full[0] else data)

    monkeypatch.setattr(os, "write", short)
    writer.put(entry("c2"))
    async with asyncio.timeout(5):
        while writer.failures < 3:
            await asyncio.sleep(0.01)
    assert [row["call_id"] for row in parsed(path.read_text())] == ["c1"], "half a record was cut off again"
    full[0] = False
    await written(writer, 2)
    await writer.close()
    assert [row["call_id"] for row in parsed(path.read_text())] == ["c1", "c2"]
    assert sum("No space left" in line.message for line in caplog.records) == 1, "one line of log, not one a second"


async def test_closing_during_a_write_writes_once(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(writing, "_GATHER_S", 0.0)
    began, real = asyncio.Event(), writing.append
    loop = asyncio.get_running_loop()

    def slow(path: str, header: str, data: bytes) -> None:
        loop.call_soon_threadsafe(began.set)
        time.sleep(0.1)
        real(path, header, data)

    monkeypatch.setattr(writing, "append", slow)
    writer = RecordWriter(None, str(tmp_path / "cdr.jsonl"))
    writer.start()
    writer.put(entry("c1"))
    await began.wait()
    writer.put(entry("c2"))
    await writer.close()
    assert [json.loads(line)["call_id"] for line in (tmp_path / "cdr.jsonl").read_text().splitlines()] == ["c1", "c2"]


async def test_a_folder_that_is_not_there_is_named_and_waited_for(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(writing, "_RETRY_S", 0.02)
    writer = RecordWriter(None, str(tmp_path / "later" / "cdr.jsonl"))
    writer.start()
    writer.put(entry())
    async with asyncio.timeout(5):
        while not writer.failures:
            await asyncio.sleep(0.01)
    (tmp_path / "later").mkdir()
    await written(writer, 1)
    await writer.close()
    assert f"{tmp_path}/later/cdr.jsonl" in caplog.text


async def test_what_waits_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(writing, "_MAX_WAITING", 10)
    writer = RecordWriter("/nowhere/cdr.csv", None)
    for n in range(25):
        writer.put(entry(f"c{n}"))
    assert writer.dropped == 15


def test_a_device_without_room_raises_with_its_name() -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        append("/dev/full", "", b"x\n")
    assert caught.value.filename == "/dev/full"


def test_stats_of_an_entry_are_plain() -> None:
    assert StreamStats().lost is None, "what was not measured must not look like no loss"
