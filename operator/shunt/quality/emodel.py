"""The E-model of ITU-T G.107 (06/2015): from transmission parameters to the rating R and the mean opinion score. No I/O.

All formulas and default values are the Recommendation's; equation numbers in the comments are those of
its clause 7. Everything is evaluated, though most of a VoIP call's parameters stay at their defaults, so
that the result can be held against published values of the whole model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameters:
    """The input of the model, with the defaults of Table 2/G.107.

    slr, rlr, stmr, ds, dr, telr, wepl: loudness ratings and losses in dB (lstr is stmr + dr); t, tr, ta: mean one-way
    delay of the echo path, round-trip delay of the four-wire loop and absolute delay in ms; nc and nfor:
    noise in dBm0p and dBmp; ps, pr: room noise in dB(A); ppl: random packet loss in %; advantage: A;
    delay_sensitivity and least_delay (ms): sT and mT of clause 7.4.
    """

    slr: float = 8.0
    rlr: float = 2.0
    stmr: float = 15.0
    ds: float = 3.0
    dr: float = 3.0
    telr: float = 65.0
    wepl: float = 110.0
    t: float = 0.0
    tr: float = 0.0
    ta: float = 0.0
    qdu: float = 1.0
    ie: float = 0.0
    bpl: float = 4.3
    ppl: float = 0.0
    burst_r: float = 1.0
    nc: float = -70.0
    nfor: float = -64.0
    ps: float = 35.0
    pr: float = 35.0
    advantage: float = 0.0
    delay_sensitivity: float = 1.0
    least_delay: float = 100.0


def rating(p: Parameters) -> float:
    """R = Ro - Is - Id - Ie,eff + A (7-1). Raises ValueError for a loss outside 0..100 % or a delay below 0."""
    if not 0 <= p.ppl <= 100:
        raise ValueError(f"a packet loss of {p.ppl} % is not in 0..100")
    if min(p.t, p.tr, p.ta) < 0:
        raise ValueError("a delay below 0 ms")
    no, ro = _signal_to_noise(p)
    ist, simultaneous = _simultaneous(p, no, ro)
    return ro - simultaneous - _delay(p, no, ro, ist) - effective_equipment(p.ie, p.bpl, p.ppl, p.burst_r) + p.advantage


def mos(r: float) -> float:
    """The estimated conversational MOS of a rating (Annex B, B-4)."""
    if r <= 0:
        return 1.0
    if r >= 100:
        return 4.5
    # Between 0 and 6.5 the polynomial dips below the scale's end.
    return max(1.0, 1 + 0.035 * r + r * (r - 60) * (100 - r) * 7e-6)


def good_or_better(r: float) -> float:
    """Percentage of users who would say good or better (Annex B, B-2)."""
    return 100 * _normal((r - 60) / 16)


def poor_or_worse(r: float) -> float:
    """Percentage of users who would say poor or worse (Annex B, B-3)."""
    return 100 * _normal((45 - r) / 16)


def effective_equipment(ie: float, bpl: float, ppl: float, burst_r: float = 1.0) -> float:
    """Ie,eff: the equipment impairment under packet loss of ppl percent (7-29)."""
    if ppl == 0:
        return ie
    return ie + (95 - ie) * ppl / (ppl / burst_r + bpl)


def _normal(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def _signal_to_noise(p: Parameters) -> tuple[float, float]:
    """The noise sum No in dBm0p and the basic signal-to-noise ratio Ro (7-2 to 7-7)."""
    olr = p.slr + p.rlr
    send_room = p.ps - p.slr - p.ds - 100 + 0.004 * (p.ps - olr - p.ds - 14) ** 2
    effective_room = p.pr + 10 * math.log10(1 + 10 ** ((10 - (p.stmr + p.dr)) / 10))
    receive_room = p.rlr - 121 + effective_room + 0.008 * (effective_room - 35) ** 2
    floor = p.nfor + p.rlr
    no = 10 * math.log10(sum(10 ** (noise / 10) for noise in (p.nc, send_room, receive_room, floor)))
    return no, 15 - 1.5 * (p.slr + no)


def _simultaneous(p: Parameters, no: float, ro: float) -> tuple[float, float]:
    """Ist and Is = Iolr + Ist + Iq (7-8 to 7-17): too loud, sidetone, quantizing."""
    x = p.slr + p.rlr + 0.2 * (64 + no - p.rlr)
    iolr = 20 * ((1 + (x / 8) ** 8) ** (1 / 8) - x / 8)
    stmro = -10 * math.log10(10 ** (-p.stmr / 10) + math.exp(-p.t / 4) * 10 ** (-p.telr / 10))
    ist = 12 * (1 + ((stmro - 13) / 6) ** 8) ** (1 / 8) - 28 * (1 + ((stmro + 1) / 19.4) ** 35) ** (1 / 35) - 13 * (1 + ((stmro - 3) / 33) ** 13) ** (1 / 13) + 29
    q = 37 - 15 * math.log10(p.qdu)
    g = 1.07 + 0.258 * q + 0.0602 * q * q
    y = (ro - 100) / 15 + 46 / 8.4 - g / 9
    z = 46 / 30 - g / 40
    iq = 15 * math.log10(1 + 10**y + 10**z)
    return ist, iolr + ist + iq


def _delay(p: Parameters, no: float, ro: float, ist: float) -> float:
    """Id = Idte + Idle + Idd (7-18 to 7-28): talker echo, listener echo, absolute delay."""
    terv = p.telr - 40 * math.log10((1 + p.t / 10) / (1 + p.t / 150)) + 6 * math.exp(-0.3 * p.t * p.t)
    if p.stmr < 9:
        terv += ist / 2
    roe, re = -1.5 * (no - p.rlr), 80 + 2.5 * (terv - 14)
    idte = ((roe - re) / 2 + math.sqrt((roe - re) ** 2 / 4 + 100) - 1) * (1 - math.exp(-p.t))
    if p.stmr > 20:
        idte = math.sqrt(idte * idte + ist * ist)
    rle = 10.5 * (p.wepl + 7) * float((p.tr + 1) ** -0.25)
    idle = (ro - rle) / 2 + math.sqrt((ro - rle) ** 2 / 4 + 169)
    idd = 0.0
    if p.ta > p.least_delay:
        x, s = math.log2(p.ta / p.least_delay), 6 * p.delay_sensitivity
        idd = 25 * ((1 + x**s) ** (1 / s) - 3 * (1 + (x / 3) ** s) ** (1 / s) + 2)
    return idte + idle + idd
