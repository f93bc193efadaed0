"""Guarded latching: properties that hold for any order of packets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shunt.learning.latch import Latch, LatchPolicy, Verdict, seq_follows
from shunt.net import Endpoint

SOURCES = [Endpoint.of(f"10.0.0.{n}", 1000 + n) for n in range(4)]
PACKETS = st.lists(st.tuples(st.sampled_from(SOURCES), st.integers(1, 2), st.integers(0, 65535), st.floats(0, 0.05)), max_size=60)


@given(PACKETS)
def test_nobody_unvouched_is_accepted_without_a_run_over_the_guard_time(packets):
    policy = LatchPolicy()
    latch, now, seen = Latch(policy), 0.0, {}
    for src, ssrc, seq, gap in packets:
        now += gap
        seen.setdefault(src, []).append(now)
        if latch.observe(now, src, ssrc, seq) is Verdict.ACCEPTED:
            assert len(seen[src]) >= policy.packets
            assert now - seen[src][0] >= policy.guard


@given(PACKETS)
def test_a_vouched_source_is_never_displaced_by_an_unvouched_one(packets):
    trusted = SOURCES[0]
    latch, now = Latch(LatchPolicy(), [trusted.addr]), 0.0
    assert latch.observe(now, trusted, 9, 1) is Verdict.ACCEPTED
    for src, ssrc, seq, gap in packets:
        now += gap
        verdict = latch.observe(now, src, ssrc, seq)
        assert latch.learned == trusted
        assert verdict is (Verdict.KNOWN if src == trusted else verdict)
        assert src == trusted or verdict in (Verdict.STRAY, Verdict.REBIND)


@given(PACKETS)
def test_candidates_are_bounded(packets):
    policy = LatchPolicy(max_candidates=2)
    latch, now = Latch(policy), 0.0
    for src, ssrc, seq, gap in packets:
        now += gap
        latch.observe(now, src, ssrc, seq)
        assert len(latch._candidates) <= 2


@given(st.integers(0, 65535), st.integers(0, 3000))
def test_sequence_numbers_wrap(start, gap):
    assert seq_follows((start + gap) % 65536, start, 3000)
    assert not seq_follows((start + 30000) % 65536, start, 3000)


def test_a_contest_ends_when_the_rival_falls_silent():
    policy = LatchPolicy()
    latch, now = Latch(policy), 0.0
    for n in range(10):
        latch.observe(now, SOURCES[0], 1, n)
        latch.observe(now, SOURCES[1], 2, n)
        now += 0.02
    assert latch.contested and latch.learned is None
    accepted_at = None
    for n in range(10, 2000):
        if latch.observe(now, SOURCES[0], 1, n) is Verdict.ACCEPTED:
            accepted_at = now
            break
        now += 0.02
    assert accepted_at is not None and accepted_at >= policy.contest_hold


def test_a_quarantined_source_is_believed_again_afterwards():
    policy = LatchPolicy()
    latch = Latch(policy, [SOURCES[0].addr])
    latch.observe(0.0, SOURCES[0], 1, 1)
    latch.forget(1.0, quarantine=True)
    assert latch.observe(1.1, SOURCES[0], 1, 2) is Verdict.QUARANTINED
    assert latch.observe(1.1 + policy.quarantine, SOURCES[0], 1, 3) is Verdict.ACCEPTED
