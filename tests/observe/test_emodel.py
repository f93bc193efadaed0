"""The E-model against figures that the ITU has published."""

from __future__ import annotations

import math

import pytest

from shunt.quality import emodel
from shunt.quality.emodel import Parameters, effective_equipment, good_or_better, mos, poor_or_worse, rating


def test_all_defaults_give_the_published_rating() -> None:
    """G.107 (06/2015) clause 7.7: with all parameters at their defaults R = 93.2."""
    assert round(rating(Parameters()), 1) == 93.2
    assert round(mos(rating(Parameters())), 2) == 4.41


@pytest.mark.parametrize(
    ("r", "opinion", "good", "poor"),
    [(90, 4.34, 97, 0), (80, 4.03, 89, 1), (70, 3.60, 73, 6), (60, 3.10, 50, 17), (50, 2.58, 27, 38)],
)
def test_annex_b_from_rating_to_opinion(r: float, opinion: float, good: float, poor: float) -> None:
    """G.107 Table B.1: MOS, percentage good or better, percentage poor or worse."""
    assert mos(r) == pytest.approx(opinion, abs=0.01)
    assert good_or_better(r) == pytest.approx(good, abs=0.6)
    assert poor_or_worse(r) == pytest.approx(poor, abs=0.7)


def test_opinion_at_the_ends_of_the_scale() -> None:
    assert (mos(-5), mos(0), mos(100), mos(120)) == (1.0, 1.0, 4.5, 4.5)
    assert all(mos(r) <= mos(r + 0.5) + 1e-9 for r in [6.5 + n / 2 for n in range(187)])


@pytest.mark.parametrize(
    ("ie", "bpl", "published"),
    [
        # G.113 Appendix I, Table I.2 (provisional planning values, random loss in percent): {loss: Ie,eff}
        (11, 19.0, {0: 11, 0.5: 13, 1: 15, 1.5: 17, 2: 19, 3: 23, 4: 26, 8: 36, 16: 49}),  # G.729A with VAD
        (15, 16.1, {0: 15, 0.5: 17, 1: 19, 1.5: 22, 2: 24, 3: 27, 4: 32, 8: 41, 16: 55}),  # G.723.1 with VAD
        (0, 25.1, {0: 0, 1: 5, 2: 7, 3: 10, 5: 15, 7: 20, 10: 25}),  # G.711 with loss concealment
    ],
)
def test_loss_impairs_as_g113_lists_it(ie: float, bpl: float, published: dict[float, float]) -> None:
    """The formula with the codec's Bpl was fitted to these tables: within two points of R everywhere."""
    for loss, value in published.items():
        assert effective_equipment(ie, bpl, loss) == pytest.approx(value, abs=2.2), f"{loss} %"


def test_bursts_of_loss_are_worse_than_random_ones() -> None:
    assert effective_equipment(0, 4.3, 5, burst_r=2) > effective_equipment(0, 4.3, 5, burst_r=1)


def test_delay_has_its_knee_where_it_was_published() -> None:
    """G.107 clause 7.4: Idd is 0 up to 100 ms of absolute delay. G.114: up to 150 ms hardly anybody is disturbed, 400 ms are not to be exceeded."""
    at = {ms: rating(Parameters(t=ms, tr=2 * ms, ta=ms)) for ms in (0, 100, 150, 250, 400)}
    assert rating(Parameters(ta=100)) == rating(Parameters())
    assert at[0] - at[150] < 5
    assert at[400] < 70 < at[250]


def test_idd_follows_the_equation_of_the_recommendation() -> None:
    """7-27 and 7-28 worked out by hand for Ta = 200 ms: X = 1, Idd = 25 * (2^(1/6) - 3 * (1 + 3^-6)^(1/6) + 2)."""
    by_hand = 25 * (2 ** (1 / 6) - 3 * (1 + 3**-6) ** (1 / 6) + 2)
    assert rating(Parameters()) - rating(Parameters(ta=200)) == pytest.approx(by_hand, abs=1e-9)


@pytest.mark.parametrize("stmr", [5, 25])
def test_a_bad_sidetone_costs(stmr: float) -> None:
    assert rating(Parameters(stmr=stmr, t=50)) < rating(Parameters(t=50))


def test_quantizing_distortion_costs_as_planned() -> None:
    """G.113 allows 14 units in an international connection: still usable, clearly worse."""
    ratings = [rating(Parameters(qdu=units)) for units in (1, 4, 8, 14)]
    assert ratings == sorted(ratings, reverse=True) and ratings[-1] > 50


@pytest.mark.parametrize("values", [{"ppl": -1}, {"ppl": 100.5}, {"ta": -1}, {"t": -0.1}])
def test_nonsense_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        rating(Parameters(**values))


def test_every_possible_input_has_a_finite_rating() -> None:
    for loss in (0, 0.01, 3, 50, 100):
        for delay in (0, 1, 99.9, 100, 100.1, 1000, 5000):
            for ie, bpl in ((0, 25.1), (15, 16.1)):
                r = rating(Parameters(t=delay, tr=delay, ta=delay, ie=ie, bpl=bpl, ppl=loss))
                assert math.isfinite(r) and 1 <= emodel.mos(r) <= 4.5
