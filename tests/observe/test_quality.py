"""Codecs, measurements over several entries, and when there is no MOS."""

from __future__ import annotations

import pytest

from shunt.hep.sip import SdpMedia
from shunt.calls.model import Call, Component, Side, new_line
from shunt.learning.latch import LatchPolicy
from shunt.quality.codecs import CODECS, carries_speech, codec_of
from shunt.quality.report import speech_type, stream_quality
from shunt.quality.score import Measurement, score
from shunt.tables.entry import StreamStats

DYNAMIC = ((111, "OPUS", 48000), (96, "G729", 8000), (101, "TELEPHONE-EVENT", 8000), (97, "SPEEX", 8000))


def stats(packets: int = 1000, lost: int = 0, jitter_us: int = 500, **more: int) -> StreamStats:
    return StreamStats(packets, packets * 200, 10, lost, 0, more.pop("duplicates", 0), jitter_us, 7, 0)


def measured(*entries: StreamStats) -> Measurement:
    total = Measurement()
    for entry in entries:
        total.add(entry)
    return total


def opinion(total: Measurement, payload_type: int | None = 8, formats: tuple = (), **more) -> tuple[float | None, str]:
    found = score(total, codec_of(payload_type, formats), payload_type, delay_ms=more.pop("delay_ms", 0.0), **more)
    return found.mos, found.note


@pytest.mark.parametrize(("number", "name"), [(0, "PCMU"), (8, "PCMA"), (18, "G729"), (9, "G722"), (4, "G723"), (111, "OPUS"), (96, "G729")])
def test_payload_types_have_names(number: int, name: str) -> None:
    assert codec_of(number, DYNAMIC).name == name


def test_a_dynamic_type_without_sdp_is_not_guessed() -> None:
    assert codec_of(96) is None
    mos, note = opinion(measured(stats()), 96)
    assert mos is None and "payload type 96" in note


def test_dtmf_and_comfort_noise_do_not_tell_the_codec() -> None:
    assert [carries_speech(number, DYNAMIC) for number in (101, 13, 0, 111)] == [False, False, True, True]


def test_g711_without_loss_is_near_the_top_and_loss_and_codec_cost() -> None:
    good, _ = opinion(measured(stats()))
    lossy, _ = opinion(measured(stats(lost=50)))
    g729, _ = opinion(measured(stats()), 18)
    g729_lossy, _ = opinion(measured(stats(lost=50)), 18)
    assert 4.3 < good <= 4.41
    assert good > lossy > g729_lossy and good > g729 > g729_lossy
    assert lossy == pytest.approx(3.9, abs=0.2) and g729 == pytest.approx(4.1, abs=0.1)


def test_delay_and_jitter_cost() -> None:
    assert opinion(measured(stats()), delay_ms=300)[0] < opinion(measured(stats()), delay_ms=50)[0]
    assert opinion(measured(stats(jitter_us=100_000)))[0] < opinion(measured(stats()))[0]


@pytest.mark.parametrize(
    ("total", "payload_type", "says"),
    [
        (Measurement(), 8, "not measured: the data plane carried none"),
        (measured(StreamStats(packets=900, bytes=1)), 8, "does not measure loss and jitter"),
        (measured(stats(packets=49)), 8, "49 packets are too few"),
        (measured(stats()), None, "payload type was not seen"),
        (measured(stats()), 111, "no ITU-T planning values"),
        (measured(stats()), 97, "SPEEX are not known here"),
        (measured(stats()), 3, "no loss robustness"),
    ],
)
def test_what_was_not_measured_or_cannot_be_rated_has_no_mos(total: Measurement, payload_type: int | None, says: str) -> None:
    mos, note = opinion(total, payload_type, DYNAMIC)
    assert mos is None and says in note


def test_g722_is_said_to_be_an_approximation() -> None:
    mos, note = opinion(measured(stats()), 9)
    assert mos is not None and note.startswith("approximation")


def test_every_rated_codec_has_both_values() -> None:
    for codec in CODECS.values():
        assert (codec.ie is None) == (codec.bpl is None)
        assert codec.rated or codec.note.startswith("not rated"), codec


def test_entries_of_a_stream_add_up() -> None:
    total = measured(stats(1000, lost=10, jitter_us=1000), stats(3000, lost=30, jitter_us=5000))
    assert (total.packets, total.bytes, total.lost, total.entries) == (4000, 800_000, 40, 2)
    assert total.loss_percent == pytest.approx(100 * 40 / 4040)
    assert (total.jitter_ms, total.jitter_us_max) == (4.0, 5000)


def test_an_entry_that_was_only_counted_does_not_thin_out_the_loss() -> None:
    total = measured(StreamStats(packets=9000, bytes=1), stats(1000, lost=100))
    assert (total.packets, total.measured) == (10_000, 1000)
    assert total.loss_percent == pytest.approx(100 * 100 / 1100)


def test_duplicates_are_no_packets_that_were_sent() -> None:
    assert measured(stats(1000, lost=100, duplicates=100)).loss_percent == pytest.approx(10.0)


def test_live_counters_are_added_and_not_kept() -> None:
    total = measured(stats(1000, lost=10))
    assert total.with_live(stats(1000, lost=10)).lost == 20
    assert total.lost == 10 and total.with_live(None).values() == total.values()


def test_nothing_measured_has_neither_loss_nor_jitter() -> None:
    assert (Measurement().loss_percent, Measurement().jitter_ms) == (None, None)
    assert measured(stats(0)).loss_percent is None


def line():
    call = Call("c1", "r1", 0.0, 0.0)
    call.lines.append(new_line(call, "A", 1, 0.0, LatchPolicy()))
    return call.lines[0]


def test_the_speech_type_is_the_most_frequent_one_that_is_speech() -> None:
    leg = line().legs[Side.CALLER]
    leg.payload_types = {101: 40, 13: 9, 8: 5, 0: 2}
    assert speech_type(leg, DYNAMIC) == 8
    leg.payload_types = {101: 40}
    assert speech_type(leg, DYNAMIC) is None


def test_jitter_of_an_unknown_clock_is_no_time_and_spoils_no_mos() -> None:
    """The data plane takes 8000 Hz for dynamic payload types: of Opus at 48 kHz its figure means nothing."""
    media = line()
    media.legs[Side.CALLER].payload_types = {111: 5}
    media.stream(Side.CALLER, Component.RTP).measured = measured(stats(lost=5))
    opus = stream_quality(media, Side.CALLER, SdpMedia("audio", formats=DYNAMIC), 50.0)
    assert (opus["jitter_ms"], opus["mos"], opus["lost"], opus["codec"]) == (None, None, 5, "OPUS")
    media.legs[Side.CALLER].payload_types = {96: 5}
    g729 = stream_quality(media, Side.CALLER, SdpMedia("audio", formats=DYNAMIC), 50.0)
    assert g729["jitter_ms"] == 0.5 and g729["mos"] > 3.9


def test_video_is_not_rated_as_speech() -> None:
    media = line()
    media.legs[Side.CALLER].payload_types = {8: 5}
    media.stream(Side.CALLER, Component.RTP).measured = measured(stats())
    found = stream_quality(media, Side.CALLER, SdpMedia("video"), 50.0)
    assert found["mos"] is None and "video is not speech" in found["note"]
