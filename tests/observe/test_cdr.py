"""Call records: what they say of what the agent tells, and that files survive rotation and full disks."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shunt.cdr.record import COLUMNS, csv_header, csv_lines, json_line
from shunt.config.model import Cdr
from shunt.metrics.instruments import Instruments
from shunt.operator import dialogs as dialog_events
from shunt.operator import endings as ending_events
from shunt.operator import records as writing
from shunt.operator.dialogs import Dialogs
from shunt.operator.endings import Endings
from shunt.operator.position import Position
from shunt.operator.records import CALL, Records, outputs
from tests.tools.telling import CALLEE, CALLER, TO_CALLER, Telling, counters, ended_line, ended_party, hold, sdp, silent


def parsed(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


class Recorded(Telling):
    """An agent's events, and the records that the operator daemon makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[dict[str, Any]] = []
        dialogs = Dialogs()
        self.bus.subscribe(dialogs, dialog_events.KINDS)
        self.bus.subscribe(Endings(dialogs, Instruments(), self, None, 50.0), ending_events.KINDS)

    def put(self, seq: int, entry: dict[str, Any], kind: str = CALL) -> None:
        """As of Records."""
        self.entries.append(entry)


def test_a_record_of_a_plain_call() -> None:
    told = Recorded()
    told.conversation(packets=500, seconds=60)
    (entry,) = told.entries
    assert (entry["call_id"], entry["reason"], entry["relay"], entry["from_tag"], entry["to_tag"]) == ("c1", "released", "local", "A", "B")
    assert (entry["started"], entry["ended"], entry["duration_s"]) == ("2026-11-24T12:08:08.000+00:00", "2026-11-24T12:09:10.020+00:00", 62.02)
    assert (entry["from"], entry["to"], entry["sip_code"], entry["hung_up"]) == ("sip:alice@example.net", "sip:bob@example.net", 200, "callee")
    assert (entry["epoch"], entry["seq"]) == (1, told.seq), "the event of its end"
    for side, address in (("caller", CALLER), ("callee", CALLEE)):
        party = entry["media"][0][side]
        assert (party["source"], party["packets"], party["lost"], party["jitter_ms"], party["jitter_max_ms"], party["codec"]) == (address, 500, 0, 0.5, 2.5, "PCMA")
        assert 4.0 < party["mos"] < 4.4 and party["offloaded"] and party["offloaded_after_ms"] == 8.2
    assert entry["media"][0]["caller"]["relay_port"] == TO_CALLER and entry["media"][0]["kind"] == "audio"


def test_a_record_has_what_its_end_says_and_counts_nothing_twice() -> None:
    """Streams that lose their entries tell counters too: the end has their sum."""
    told = Recorded()
    for packets in (500, 300):
        told.state("caller", "suspended", "re-invite", before="offloaded", counters=counters(packets, lost=packets // 10))
    told.ended(ended_line(rtp=counters(800, lost=35, reordered=2)))
    for side in ("caller", "callee"):
        party = told.entries[0]["media"][0][side]
        assert (party["packets"], party["lost"], party["reordered"]) == (800, 35, 2)


def test_a_silent_party_has_no_figures_and_no_mos() -> None:
    told = Recorded()
    told.ended(ended_line(caller=ended_party("caller", rtp=counters(400)), callee=silent("callee")))
    caller, callee = (told.entries[0]["media"][0][side] for side in ("caller", "callee"))
    assert caller["mos"] > 4 and callee["mos"] is None
    assert all(callee[name] is None for name in ("packets", "bytes", "lost", "loss_percent", "jitter_ms", "source", "codec"))
    assert callee["note"].startswith("not measured") and not callee["offloaded"]


def test_a_relayed_call_has_the_relays_own_counts() -> None:
    """Without a data plane nothing is measured, but the relay says what it relayed."""
    told = Recorded()
    told.ended(ended_line(caller=ended_party("caller", relay_packets=1), callee=ended_party("callee", relay_packets=2)))
    caller, callee = (told.entries[0]["media"][0][side] for side in ("caller", "callee"))
    assert (caller["relay_packets"], callee["relay_packets"]) == (1, 2)
    assert caller["packets"] is None and caller["mos"] is None


def test_the_agents_word_on_sdp_goes_before_the_copies_of_sip() -> None:
    told = Recorded()
    told.sip("INVITE", tags=("A", None), sdp=[sdp("video")])
    told.ended(ended_line(rtp=counters(500)))
    audio = sdp(formats=((96, "g729", 8000),))
    told.ended(ended_line(caller=ended_party("caller", rtp=counters(500), payload_types=[[96, 9]], sdp=audio)))
    copied, own = (entry["media"][0] for entry in told.entries)
    assert (copied["kind"], copied["caller"]["mos"]) == ("video", None)
    assert (own["kind"], own["caller"]["codec"]) == ("audio", "G729") and own["caller"]["mos"] > 3.5


def test_rtcp_that_the_data_plane_carried_is_in_the_record() -> None:
    told = Recorded()
    told.ended(ended_line(caller=ended_party("caller", rtp=counters(500), rtcp=counters(12)), callee=silent("callee")))
    assert [told.entries[0]["media"][0][side]["rtcp_packets"] for side in ("caller", "callee")] == [12, None]


def test_a_record_has_the_recordings_of_each_media_line() -> None:
    told = Recorded()
    told.ended(ended_line(1, recorded=[hold("copy", "C", "caller", "192.0.2.210:40020"), hold("subscription", "subscribe request", subscription="s1")], recorders=2), ended_line(2))
    (entry,) = told.entries
    first, second = parsed(csv_header() + csv_lines(entry))
    assert (first["recorders"], first["recorded_by"]) == ("2", "copy of the caller by C, to 192.0.2.210:40020; subscription s1 by subscribe request, to an unknown address")
    assert (second["recorders"], second["recorded_by"]) == ("0", "")
    copied = entry["media"][0]["recordings"][0]
    assert (copied["command"], copied["party"], copied["to"]) == ("C", "caller", ["192.0.2.210:40020"])


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


class Files:
    """The files of an operator daemon's records."""

    def __init__(self, folder: Path) -> None:
        self.table, self.lines = folder / "cdr.csv", folder / "cdr.jsonl"
        self.records = Records({CALL: outputs(Cdr(csv=str(self.table), json_lines=str(self.lines)))}, Position(folder / "position.json"), folder / "records.ahead")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Records]:
        task = asyncio.create_task(self.records.run())
        yield self.records
        await self.records.close()
        await task


async def written(records: Records, count: int) -> None:
    async with asyncio.timeout(60):
        while records.written < count:
            await asyncio.sleep(0.01)


async def test_both_files_are_written_and_survive_rotation(tmp_path: Path) -> None:
    files = Files(tmp_path)
    async with files.running() as records:
        records.put(1, entry("c1"))
        await written(records, 1)
        files.table.rename(tmp_path / "cdr.csv.1")
        files.lines.rename(tmp_path / "cdr.jsonl.1")
        for n in range(2, 5):
            records.put(n, entry(f"c{n}"))
    assert [row["call_id"] for row in parsed((tmp_path / "cdr.csv.1").read_text())] == ["c1"]
    assert [row["call_id"] for row in parsed(files.table.read_text())] == ["c2", "c3", "c4"], "the new file has its own header"
    assert [json.loads(line)["call_id"] for line in files.lines.read_text().splitlines()] == ["c2", "c3", "c4"]
    assert records.written == 4 and os.stat(files.table).st_mode & 0o777 == 0o640


async def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(writing, "_RETRY_S", 0.02)
    files = Files(tmp_path)
    real, full = os.write, [False]

    def short(fd: int, data: bytes) -> int:
        if full[0] and len(data) <= 20:
            raise OSError(28, "No space left on device")
        return real(fd, data[: len(data) - 20] if full[0] else data)

    async with files.running() as records:
        records.put(1, entry("c1"))
        await written(records, 1)
        monkeypatch.setattr(os, "write", short)
        full[0] = True
        records.put(2, entry("c2"))
        async with asyncio.timeout(60):
            while records.failures < 3:
                await asyncio.sleep(0.01)
        assert [json.loads(line)["call_id"] for line in files.lines.read_text().splitlines()] == ["c1"], "half a record was cut off again"
        assert records.error is not None and "No space left" in records.error
        full[0] = False
        await written(records, 2)
    assert [row["call_id"] for row in parsed(files.table.read_text())] == [json.loads(line)["call_id"] for line in files.lines.read_text().splitlines()] == ["c1", "c2"]
    assert sum("No space left" in line.message for line in caplog.records) == 1, "one line of log, not one a second"
