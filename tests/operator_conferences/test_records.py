"""Records of participants from the agent's events."""

from __future__ import annotations

import csv
import io
from typing import Any

from shunt.operator.conferences.records import LOST_READING, csv_header, csv_lines, record
from tests.operator_conferences.samples import PCMU, VP8


def usage(**more: Any) -> dict[str, Any]:
    return {"rows": 1, "packets": 500, "bytes": 100_000, "measured": 500, "lost": 5, "reordered": 1, "duplicates": 0, "jitter_ms": 2.5, "jitter_max_ms": 4.0} | more


def left(*media: dict[str, Any]) -> dict[str, Any]:
    facts = {
        "conference": "room",
        "participant": "ann",
        "call": "=1@h",
        "reason": "bye",
        "joined_us": 1_795_522_088_000_000,
        "duration_s": 12.3456,
        "media": list(media),
        "signalling": {"name": "=Änn"},
    }
    return record(facts, 1_795_522_100.5, 50.0, epoch=7, seq=8)


def audio(**more: Any) -> dict[str, Any]:
    return {
        "medium": "audio", "address": "203.0.113.10:20000", "latched": "192.0.2.7:4000", "payload_type": 0, "codecs": [PCMU], "sent": usage(), "received": usage(packets=900, bytes=180_000),
    } | more  # fmt: skip


def test_a_medium_is_rated_by_its_codec() -> None:
    entry = left(audio())
    assert (entry["joined"], entry["left"], entry["duration_s"]) == ("2026-11-24T12:08:08.000+00:00", "2026-11-24T12:08:20.500+00:00", 12.346)
    (one,) = entry["media"]
    assert (one["packets"], one["lost"], one["received_packets"], one["received_bytes"]) == (500, 5, 900, 180_000)
    assert (one["codec"], one["payload_type"], one["jitter_ms"], one["jitter_max_ms"]) == ("PCMU", 0, 2.5, 4.0)
    assert one["loss_percent"] == round(100 * 5 / 505, 3) and 3 < one["mos"] < 4.5


def test_video_is_not_rated_and_what_was_not_carried_is_not_0() -> None:
    (one,) = left(audio(medium="video", codecs=[VP8], payload_type=96, sent=usage(rows=0, packets=0, bytes=0, measured=0, lost=0, jitter_ms=None, jitter_max_ms=None)))["media"]
    assert one["packets"] is None and one["lost"] is None and one["jitter_ms"] is None and one["mos"] is None and one["note"] == "not rated: video is not speech"


def test_a_lost_reading_is_said() -> None:
    (one,) = left(audio(sent=None))["media"]
    assert one["packets"] is None and one["received_packets"] == 900 and one["note"].startswith(LOST_READING)


def test_jitter_of_a_clock_that_the_data_plane_does_not_know_is_no_time() -> None:
    (one,) = left(audio(payload_type=96, codecs=[]))["media"]
    assert one["jitter_ms"] is None and one["lost"] == 5 and "96 is dynamic" in one["note"]


def test_csv_has_a_line_for_each_medium() -> None:
    text = csv_header() + csv_lines(left(audio(), audio(medium="video", codecs=[VP8], payload_type=96)))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["medium"], row["participant"], row["seq"]) for row in rows] == [("audio", "ann", "8"), ("video", "ann", "8")]
    assert rows[0]["name"] == "'=Änn" and left(audio())["name"] == "=Änn"
    assert rows[0]["call_id"] == "'=1@h", "a spreadsheet takes it for no formula"
