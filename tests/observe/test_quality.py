"""Codecs, measurements over several entries, and when there is no MOS."""

from __future__ import annotations

import pytest

from shunt.calls.facts import Leg
from shunt.calls.kinds import Side
from shunt.calls.measurement import NOTHING, Measurement
from shunt.calls.sdp import Format, SdpMedia
from shunt.operator.calls import call_of_view, measurement
from shunt.quality.codecs import CODECS, carries_speech, codec_of
from shunt.quality.report import speech_type, stream_quality
from shunt.quality.score import score
from tests.tools import telling
from tests.tools.telling import BEGIN, JSON, counters, leg, line, offloaded

DYNAMIC: tuple[Format, ...] = ((111, "OPUS", 48000), (96, "G729", 8000), (101, "TELEPHONE-EVENT", 8000), (97, "SPEEX", 8000))


def measured(packets: int = 1000, **more: float | None) -> Measurement:
    """Of the counters that the agent tells."""
    found = measurement(counters(packets, **more))
    assert found is not None
    return found


def opinion(total: Measurement, payload_type: int | None = 8, formats: tuple[Format, ...] = (), delay_ms: float = 0.0) -> tuple[float | None, str]:
    found = score(total, codec_of(payload_type, formats), payload_type, delay_ms=delay_ms)
    return found.mos, found.note


@pytest.mark.parametrize(("number", "name"), [(0, "PCMU"), (8, "PCMA"), (18, "G729"), (9, "G722"), (4, "G723"), (111, "OPUS"), (96, "G729")])
def test_payload_types_have_names(number: int, name: str) -> None:
    codec = codec_of(number, DYNAMIC)
    assert codec is not None and codec.name == name


def test_a_dynamic_type_without_sdp_is_not_guessed() -> None:
    assert codec_of(96) is None
    mos, note = opinion(measured(), 96)
    assert mos is None and "payload type 96" in note


def test_dtmf_and_comfort_noise_do_not_tell_the_codec() -> None:
    assert [carries_speech(number, DYNAMIC) for number in (101, 13, 0, 111)] == [False, False, True, True]


def test_g711_without_loss_is_near_the_top_and_loss_and_codec_cost() -> None:
    good, _ = opinion(measured())
    lossy, _ = opinion(measured(lost=50))
    g729, _ = opinion(measured(), 18)
    g729_lossy, _ = opinion(measured(lost=50), 18)
    assert good is not None and lossy is not None and g729 is not None and g729_lossy is not None
    assert 4.3 < good <= 4.41
    assert good > lossy > g729_lossy and good > g729 > g729_lossy
    assert lossy == pytest.approx(3.9, abs=0.2) and g729 == pytest.approx(4.1, abs=0.1)


def test_delay_and_jitter_cost() -> None:
    far, near = opinion(measured(), delay_ms=300)[0], opinion(measured(), delay_ms=50)[0]
    rough, smooth = opinion(measured(jitter_ms=100.0))[0], opinion(measured())[0]
    assert far is not None and near is not None and rough is not None and smooth is not None
    assert far < near and rough < smooth


@pytest.mark.parametrize(
    ("total", "payload_type", "says"),
    [
        (NOTHING, 8, "not measured: the data plane carried none"),
        (measured(900, lost=None, jitter_ms=None), 8, "does not measure loss and jitter"),
        (measured(49), 8, "49 packets are too few"),
        (measured(), None, "payload type was not seen"),
        (measured(), 111, "no ITU-T planning values"),
        (measured(), 97, "SPEEX are not known here"),
        (measured(), 3, "no loss robustness"),
    ],
)
def test_what_was_not_measured_or_cannot_be_rated_has_no_mos(total: Measurement, payload_type: int | None, says: str) -> None:
    mos, note = opinion(total, payload_type, DYNAMIC)
    assert mos is None and says in note


def test_g722_is_said_to_be_an_approximation() -> None:
    mos, note = opinion(measured(), 9)
    assert mos is not None and note.startswith("approximation")


def test_every_rated_codec_has_both_values() -> None:
    for codec in CODECS.values():
        assert (codec.ie is None) == (codec.bpl is None)
        assert codec.rated or codec.note.startswith("not rated"), codec


def test_what_was_only_counted_is_not_measured() -> None:
    total = measured(900, lost=None, reordered=None, duplicates=None, jitter_ms=None, jitter_max_ms=None)
    assert (total.packets, total.measured, total.loss_percent, total.jitter_ms) == (900, 0, None, None)
    assert measurement(None) is None


def test_loss_is_a_share_of_what_was_sent() -> None:
    assert measured(1000, lost=100).loss_percent == pytest.approx(100 * 100 / 1100)
    assert measured(1000, lost=100, duplicates=100).loss_percent == pytest.approx(10.0), "duplicates are no packets that were sent"


def test_nothing_measured_has_neither_loss_nor_jitter() -> None:
    assert (NOTHING.loss_percent, NOTHING.jitter_ms) == (None, None)
    assert measured(0).loss_percent is None


def test_the_speech_type_is_the_most_frequent_one_that_is_speech() -> None:
    assert speech_type(Leg(payload_types={101: 40, 13: 9, 8: 5, 0: 2}), DYNAMIC) == 8
    assert speech_type(Leg(payload_types={101: 40}), DYNAMIC) is None


def quality(payload_type: int, sdp: SdpMedia | None, **more: float) -> JSON:
    """Of the caller's stream in a call that runs."""
    view = telling.snapshot(line(offloaded("caller", counters=counters(1000, **more)), offloaded("callee"), caller=leg("caller", payload_types=[[payload_type, 5]])))
    return stream_quality(call_of_view(view, BEGIN).lines[0], Side.CALLER, sdp, 50.0)


def test_jitter_of_an_unknown_clock_is_no_time_and_spoils_no_mos() -> None:
    """The data plane takes 8000 Hz for dynamic payload types: of Opus at 48 kHz its figure means nothing."""
    opus = quality(111, SdpMedia("audio", formats=DYNAMIC), lost=5)
    assert (opus["jitter_ms"], opus["jitter_max_ms"], opus["mos"], opus["lost"], opus["codec"]) == (None, None, None, 5, "OPUS")
    g729 = quality(96, SdpMedia("audio", formats=DYNAMIC), lost=5)
    assert (g729["jitter_ms"], g729["jitter_max_ms"]) == (0.5, 2.5) and g729["mos"] > 3.9
    assert quality(96, SdpMedia("audio", formats=((96, "G729", 16000),)), lost=5, jitter_ms=400.0)["mos"] == g729["mos"]


def test_video_is_not_rated_as_speech() -> None:
    found = quality(8, SdpMedia("video"))
    assert found["mos"] is None and "video is not speech" in found["note"]
