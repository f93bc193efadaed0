"""Codecs as the E-model sees them, by RTP payload type (RFC 3551 tables 4 and 5) or encoding name (SDP).

Equipment impairment Ie and packet-loss robustness Bpl are the planning values of ITU-T G.113 Appendix I
(Tables I.1 and I.4). A codec without values there is not rated: a number that nobody measured helps nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from shunt.calls.sdp import Format


@dataclass(frozen=True, slots=True)
class Codec:
    """name as in SDP; ie and bpl: None where G.113 has none; packet_ms: the usual packet time; look_ahead_ms: the encoder's.

    note: what the rating assumes, or why there is none.
    """

    name: str
    ie: float | None = None
    bpl: float | None = None
    packet_ms: int = 20
    look_ahead_ms: float = 0.0
    note: str = ""

    @property
    def rated(self) -> bool:
        return self.ie is not None


_PLC = "assumes that receivers conceal lost packets (G.711 Appendix I)"
CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        Codec("PCMU", 0.0, 25.1, note=_PLC),
        Codec("PCMA", 0.0, 25.1, note=_PLC),
        Codec("G729", 11.0, 19.0, 20, 5.0, "values of G.729A with voice activity detection"),
        Codec("G723", 15.0, 16.1, 30, 7.5, "values of the 6.3 kbit/s rate with voice activity detection"),
        Codec("GSM-EFR", 5.0, 10.0),
        Codec("G722", 0.0, 25.1, note="approximation: rated on the narrowband scale as G.711; without the gain of wideband"),
        Codec("OPUS", note="not rated: no ITU-T planning values on this scale, and its own error correction hides losses from any outside measurement"),
        Codec("GSM", note="not rated: G.113 Appendix I has no loss robustness for it"),
        Codec("ILBC", note="not rated: G.113 Appendix I has no values for it"),
        Codec("AMR", note="not rated: its rate changes within the stream, and the values with it"),
        Codec("AMR-WB", note="not rated: its rate changes within the stream, and the values with it"),
    )
}
# RFC 3551 table 4; the numbers that matter are the ones that need no a=rtpmap.
_STATIC = {0: "PCMU", 3: "GSM", 4: "G723", 8: "PCMA", 9: "G722", 18: "G729"}
_ALIASES = {"G729A": "G729", "G729B": "G729", "G729AB": "G729", "G7231": "G723", "PCMU-PLC": "PCMU"}
# Payload types that carry no speech.
NOT_SPEECH = frozenset({"TELEPHONE-EVENT", "CN", "RED"})
_COMFORT_NOISE = 13


def carries_speech(payload_type: int, formats: tuple[Format, ...] = ()) -> bool:
    """Whether packets of this type tell the codec: not comfort noise, not DTMF."""
    return payload_type != _COMFORT_NOISE and _named(payload_type, formats) not in NOT_SPEECH


def _named(payload_type: int, formats: tuple[Format, ...]) -> str | None:
    for number, name, _ in formats:
        if number == payload_type:
            return name
    return _STATIC.get(payload_type)


def codec_of(payload_type: int | None, formats: tuple[Format, ...] = ()) -> Codec | None:
    """The codec of a payload type. formats: (type, NAME, clock rate) of the SDP. None: it cannot be told.

    A codec that the table above does not know comes back unrated, with its name.
    """
    if payload_type is None:
        return None
    name = _named(payload_type, formats)
    if name is None:
        return None
    name = _ALIASES.get(name, name)
    return CODECS.get(name) or Codec(name, note=f"not rated: G.113 Appendix I values of {name} are not known here")
