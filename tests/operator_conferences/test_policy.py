"""The operator's own policy: what its function is asked with, and what becomes of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from shunt.admin.model import Estimate as Told
from shunt.config.selector import Estimate
from shunt.operator.conferences.selector import KEEP_S, Decisions


def told(estimate: int, **more: Any) -> Told:
    made = {
        "conference": "room", "sender": "ann", "receiver": "bob", "medium": "video", "estimate_bits_per_s": estimate, "remb_bits_per_s": None, "fraction_lost": None,
        "targets_bits_per_s": [100, 200, 400], "target": 2,
    }  # fmt: skip
    return cast(Told, made | more)


def test_the_function_has_what_was_before() -> None:
    asked: list[tuple[int, int, Estimate]] = []

    def select(current: int, history: Sequence[Estimate], estimate: Estimate) -> int:
        asked.append((current, len(history), estimate))
        return 1

    decisions = Decisions(select)
    assert decisions.decide(told(150), 10.0) == {"sender": "ann", "receiver": "bob", "target": 1}
    decisions.decide(told(160, target=1), 11.0)
    decisions.decide(told(170, receiver="cem"), 12.0)
    decisions.decide(told(180, target=None), 11.5 + KEEP_S)
    assert [(current, count) for current, count, _ in asked] == [(2, 0), (1, 1), (2, 0), (2, 0)], "history is kept for a while, and for each pair"
    assert asked[0][2] == Estimate(10.0, 150.0, (100.0, 200.0, 400.0), 2)


@pytest.mark.parametrize("answer", [7, -1, True, "2", None])
def test_an_answer_that_is_no_target_changes_nothing(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    decisions = Decisions(lambda current, history, estimate: answer)
    assert [decisions.decide(told(100), at) for at in (1.0, 2.0)] == [None, None] and decisions.failures == 2
    assert len([record for record in caplog.records if "conference.selector" in record.message]) == 1, "it is said once"


def test_a_function_that_fails_changes_nothing() -> None:
    def fails(current: int, history: Sequence[Estimate], estimate: Estimate) -> int:
        raise KeyError("x")

    decisions = Decisions(fails)
    assert decisions.decide(told(100), 1.0) is None and decisions.failures == 1


def test_streams_without_layers_are_nobodys_decision() -> None:
    decisions = Decisions(lambda current, history, estimate: 0)
    assert decisions.decide(told(100, targets_bits_per_s=[400]), 1.0) is None
    assert decisions.decide(told(100, medium="audio"), 1.0) is None
