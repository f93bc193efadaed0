"""Kept answers: for how long, how many, which of two, and that old ones are thrown away a few at a time."""

from __future__ import annotations

import random

from shunt.answers import Answers


def test_an_answer_is_kept_for_its_life_and_no_longer():
    answers: Answers[str, str] = Answers(35.0, 1000)
    for n in range(100):
        answers.keep(f"k{n}", f"a{n}", n / 2)
    assert answers.get("k50", 25 + 34.9) == "a50"
    assert answers.get("k50", 25 + 35.1) is None
    assert answers.get("other", 0.0) is None


def test_the_last_answer_counts():
    answers: Answers[str, str] = Answers(35.0, 1000)
    answers.keep("k", "first", 0.0)
    answers.keep("other", "a", 10.0)  # in another part by now
    answers.keep("k", "second", 10.0)
    assert answers.get("k", 11.0) == "second"
    answers.keep("k", "third", 10.0)
    assert answers.get("k", 44.0) == "third"
    assert len(answers) == 3


def test_the_oldest_go_first_where_there_are_too_many():
    answers: Answers[int, int] = Answers(35.0, 800)
    for n in range(5000):
        answers.keep(n, -n, n / 1e6)
    kept = [n for n in range(5000) if answers.get(n, 0.005) is not None]
    assert kept == list(range(kept[0], 5000)) and 700 < len(kept) <= 800
    assert len(answers) == len(kept)


def test_of_one_kept_there_is_still_the_last():
    answers: Answers[int, int] = Answers(0.1, 1)
    for n in range(1, 10):
        answers.keep(n, n, float(n))
        assert answers.get(n, n + 0.05) == n and len(answers) == 1
    answers.clear()
    assert answers.get(9, 9.05) is None and len(answers) == 0


def test_it_says_what_a_dictionary_would_say_at_any_rate():
    chance = random.Random(7)
    answers: Answers[int, int] = Answers(35.0, 100_000)
    plain: dict[int, tuple[int, float]] = {}
    now, right = 0.0, 0
    for n in range(30_000):
        now += chance.choice((0.0, 0.0001, 0.01, 0.05)) if chance.random() > 0.0005 else 20.0
        key = chance.randrange(1000)
        answer, until = plain.get(key, (None, 0.0))
        assert answers.get(key, now) == (answer if until > now else None)
        right += until > now
        if chance.random() < 0.7:
            answers.keep(key, n, now)
            plain[key] = (n, now + 35.0)
    assert 5_000 < right < 29_000


def test_what_is_too_old_is_thrown_away_a_few_at_a_time_and_in_the_end_wholly():
    freed = 0

    class Answer:
        def __del__(self) -> None:
            nonlocal freed
            freed += 1

    answers: Answers[int, Answer] = Answers(35.0, 65536)
    most, before = 0, 0
    for n in range(120_000):  # at 1000 a second
        answers.keep(n, Answer(), n / 1000)
        most, before = max(most, freed - before), freed
    assert 0 < most <= 2
    assert 35_000 <= len(answers) <= 45_000
    assert 120_000 - freed <= 45_000
