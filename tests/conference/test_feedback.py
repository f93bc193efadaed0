"""Feedback: the best downlink with hysteresis, decode targets against model receivers, key frames, and the operator's own function."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunt.conference import feedback
from shunt.conference.feedback import BestDownlink, Downlink, Estimate, KeyFrames, load_selector, select_decode_target, split_estimate

RATES = (190e3, 350e3, 610e3)  # of the AV1 capture, scaled: T0, T0+T1, all


# -- the best downlink ---------------------------------------------------------------------------------------------


def test_the_first_is_chosen_and_the_better_one_only_after_a_while():
    best = BestDownlink(hold=2.0)
    assert best.estimate("b", 1e6, 0.0)
    assert not best.estimate("c", 2e6, 0.1)
    assert best.estimate("b", 1e6, 1.0) and not best.estimate("c", 2e6, 2.0)
    assert best.estimate("c", 2e6, 2.2)
    assert best.chosen == "c" and not best.estimate("b", 1e6, 2.3)


def test_a_little_better_or_better_for_a_moment_changes_nothing():
    best = BestDownlink()
    best.estimate("b", 1e6, 0.0)
    for tick in range(1, 100):
        best.estimate("c", 1.05e6, tick / 10)
        best.estimate("b", 1e6, tick / 10)
    assert best.chosen == "b"
    for tick in range(100, 300):
        best.estimate("c", 3e6 if tick % 40 < 8 else 0.5e6, tick / 10)
        best.estimate("b", 1e6, tick / 10)
    assert best.chosen == "b"


def test_two_noisy_downlinks_do_not_alternate():
    """What Chromium's sender does with both: its rate swings between 0.3 and 2.2 Mbit/s."""
    rng, best, choices = random.Random(1), BestDownlink(), []
    for tick in range(600):
        for name, rate in (("b", 2.2e6), ("c", 0.3e6), ("d", 2.1e6)):
            best.estimate(name, rate * rng.uniform(0.85, 1.15), tick * 0.22)
        choices.append(best.chosen)
    assert sum(a != b for a, b in zip(choices, choices[1:])) <= 1 and choices[-1] in "bd"


def test_leaving_and_going_silent():
    best = BestDownlink(stale=5.0)
    best.estimate("b", 2e6, 0.0)
    best.estimate("c", 1e6, 0.0)
    best.leave("b", 1.0)
    assert best.chosen == "c" and best.average("b") is None
    best.estimate("d", 0.1e6, 2.0)
    assert best.estimate("d", 0.1e6, 7.1) and best.average("c") is None
    best.leave("d", 8.0)
    assert best.chosen is None
    assert best.estimate("e", 1.0, 9.0)


@given(st.lists(st.tuples(st.sampled_from("bcd"), st.floats(0, 1e7), st.floats(0, 3), st.booleans()), max_size=80))
@settings(max_examples=200, deadline=None)
def test_exactly_one_is_chosen_and_it_is_there(steps):
    best, now, heard = BestDownlink(), 0.0, {}
    for receiver, bitrate, passed, leaves in steps:
        now += passed
        if leaves:
            best.leave(receiver, now)
            heard.pop(receiver, None)
        else:
            passes = best.estimate(receiver, bitrate, now)
            heard[receiver] = now
            assert passes == (best.chosen == receiver)
            assert now - heard[best.chosen] <= feedback.STALE_S
        assert (best.chosen is None) <= all(now - last > 0 for last in heard.values()) or best.chosen in heard


def test_an_estimate_about_several_senders_is_shared():
    assert split_estimate(900.0, {"a": 200.0, "b": 100.0}) == {"a": 600.0, "b": 300.0}
    assert split_estimate(900.0, {"a": 200.0, "b": 0.0, "c": 100.0}) == {"a": 600.0, "b": 450.0, "c": 300.0}, "who is not heard yet takes nothing from the others"
    assert split_estimate(900.0, {"a": 0.0, "b": 0.0}) == {"a": 450.0, "b": 450.0}
    assert split_estimate(900.0, {}) == {}


# -- decode targets ------------------------------------------------------------------------------------------------


class Receiver:
    """A browser's estimate: it follows the link, but never gets beyond 1.5 times what arrives (plus 10 kbit/s), and climbs 8 % a second."""

    def __init__(self, link: float, start: float) -> None:
        self.link, self.value = link, start

    def say(self, sent: float, passed: float) -> float:
        arriving = min(sent, self.link)
        if sent > self.link:
            self.value = 0.85 * arriving
        else:
            self.value = min(self.value * 1.08**passed, 1.5 * arriving + 10e3, self.link)
        return self.value


def watch(link, seconds: float, start: float = 200e3, target: int = 2) -> tuple[list[tuple[float, int]], list[float], Downlink]:
    downlink, receiver, moves, key_frames = Downlink(target), Receiver(0.0, start), [], []
    for tick in range(int(seconds / 0.22)):
        now = tick * 0.22
        receiver.link = link(now)
        change = downlink.estimate(now, receiver.say(RATES[downlink.target], 0.22), RATES)
        if change:
            moves.append((now, change.target))
            if change.key_frame:
                key_frames.append(now)
    return moves, key_frames, downlink


def test_a_good_receiver_gets_to_the_top_though_its_estimate_is_bound_by_what_arrives():
    moves, key_frames, downlink = watch(lambda now: 5e6, 90, start=100e3, target=0)
    assert downlink.target == 2 and [target for _, target in moves] == [1, 2]
    assert len(key_frames) == 2


def test_a_link_that_narrows_and_widens():
    moves, _, downlink = watch(lambda now: 5e6 if now < 60 else 450e3 if now < 120 else 5e6, 260)
    down = [now for now, target in moves if target == 1 and 60 <= now < 62]
    assert down, moves
    assert downlink.target == 2


def test_a_narrow_link_is_not_tried_again_and_again():
    moves, key_frames, downlink = watch(lambda now: 420e3, 300)
    assert len(key_frames) <= 300 / feedback.RETRY_S + 1
    assert downlink.target in (0, 1, 2) and [target for _, target in moves].count(2) <= 300 / feedback.RETRY_S + 1


def test_down_goes_to_what_fits_and_never_below_the_lowest():
    def at(bitrate: float, current: int) -> int:
        return select_decode_target(current, [Estimate(-20.0, 700e3, RATES, current)], Estimate(0.0, bitrate, RATES, current))

    assert [at(bitrate, 2) for bitrate in (700e3, 400e3, 200e3, 10e3)] == [2, 1, 0, 0]
    assert at(10e3, 0) == 0
    first = Estimate(0.0, 1e9, RATES, 0)
    assert select_decode_target(0, (), first) == 0  # a first estimate moves nobody up,
    assert select_decode_target(2, (), first._replace(bitrate=200e3, target=2)) == 2  # or down: it has to climb yet
    assert select_decode_target(7, (), Estimate(0.0, 1e9, RATES, 2)) == 2  # a stream with fewer layers than before
    fewer = [Estimate(now, 1e9, RATES[:1], 1) for now in (-20.0, -5.0)]
    assert select_decode_target(1, fewer, Estimate(0.0, 440e3, RATES, 1)) == 1  # and one with more


@given(
    st.lists(st.tuples(st.floats(0, 2), st.floats(0, 1e8), st.lists(st.floats(0, 1e7), min_size=1, max_size=4)), min_size=1, max_size=40), st.integers(0, 3)
)
@settings(max_examples=200, deadline=None)
def test_any_estimates_give_a_target_that_is_there(steps, start):
    downlink, now = Downlink(start), 0.0
    for passed, bitrate, rates in steps:
        now += passed
        before = downlink.target
        change = downlink.estimate(now, bitrate, sorted(rates))
        assert 0 <= downlink.target < len(rates)
        assert change is None or (change.target != before and change.key_frame == (change.target > before))
        assert downlink.target <= before + 1


def test_key_frames_only_where_they_are_needed():
    downlink = Downlink(0, select=lambda current, history, estimate: 1, needs_key_frame=lambda old, new: False)
    assert downlink.estimate(0.0, 1e6, RATES) == (1, False)
    downlink = Downlink(2, select=lambda current, history, estimate: 1)
    assert downlink.estimate(0.0, 1e6, RATES) == (1, False)


# -- the operator's own function -----------------------------------------------------------------------------------


def always_lowest(current, history, estimate):
    return 0


def broken(current, history, estimate):
    return history[0]


def vague(current, history, estimate):
    return "low"


NOT_A_FUNCTION = 7


def test_a_function_from_configuration():
    select = load_selector(f"{__name__}:always_lowest")
    downlink = Downlink(2, select=select)
    assert downlink.estimate(0.0, 1e9, RATES) == (0, False)
    assert load_selector("shunt.conference.feedback:select_decode_target") is select_decode_target


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "is neither MODULE:FUNCTION nor"), ("/no/such/file.py:f", "FileNotFoundError"), ("/etc/hostname:f", "is no Python file"), ("no.such.module:f", "No module named"), (f"{__name__}:none", "has no none"), (f"{__name__}:NOT_A_FUNCTION", "not a function"),
        (f"{__name__}:broken", "IndexError"), (f"{__name__}:vague", "answers 'low'"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_with_the_reason(name, words):
    with pytest.raises(ValueError, match=words):
        load_selector(name)


def documented() -> str:
    """The example of docs/conference.md."""
    lines = (Path(__file__).parents[2] / "docs" / "conference.md").read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if "def half_of_the_estimate" in line)
    return "\n".join(line[4:] for line in lines[start : start + 3]) + "\n"


def test_a_function_from_a_file(tmp_path):
    """As an operator writes it who has only a package installed: beside no module of the agent's."""
    path = tmp_path / "select.py"
    path.write_text("from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\nclass Own:\n    number: int\n\n" + documented())
    select = load_selector(f"{path}:half_of_the_estimate")
    assert [select(2, (), Estimate(0.0, bitrate, RATES, 2)) for bitrate in (1e5, 4e5, 8e5, 2e6)] == [0, 0, 1, 2]
    for text, words in (("def f(:\n", "SyntaxError"), ("1 / 0\n", "ZeroDivisionError"), ("", "has no f")):
        path.write_text(text)
        with pytest.raises(ValueError, match=words):
            load_selector(f"{path}:f")


def test_an_answer_that_is_no_target_changes_nothing():
    downlink = Downlink(1, select=lambda current, history, estimate: 9)
    with pytest.raises(ValueError, match="decode target 9 is not in 0..2"):
        downlink.estimate(0.0, 1e6, RATES)
    assert downlink.target == 1


# -- key frames ----------------------------------------------------------------------------------------------------


def test_many_wishes_are_one_request():
    keys = KeyFrames(least=0.5)
    assert keys.wanted(10.0)
    assert not keys.wanted(10.1) and not keys.wanted(10.2)
    assert not keys.due(10.4) and keys.due(10.5) and not keys.due(11.5)
    assert keys.wanted(12.0) and not keys.wanted(12.1)
    keys.seen()
    assert not keys.due(13.0)
