"""The reference of sequence rewriting: vectors, never a number twice whatever arrives, and what it costs against the paper's figure."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tools.conference.sequence import Cadence, LowMemory, LowRetransmission, Outcome, Row, SequenceState, Verdict, after, suppressed_between
from tests.conference import streams, vectors

CASES = json.loads(vectors.FILE.read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=[f"{case['algorithm']}-{case['history']}-{case['name']}" for case in CASES])
def test_vectors(case):
    assert vectors.run(case) == case["rows"]


def test_the_table_of_frames_between():
    for mask in range(16):
        for frame in range(8):
            for count in range(17):
                assert suppressed_between(mask, frame, count) == sum(mask >> (f & 3) & 1 for f in range(frame + 1, frame + 1 + count))


# -- never a number twice ------------------------------------------------------------------------------------------


def given_out(accept, rows) -> None:
    """Fail when two packets get one number (numbers unwrapped), or when one in order does not get the highest yet."""
    at, highest, seen = None, -1, set()
    for row in rows:
        outcome = accept(row)
        if outcome.position is None:
            assert not outcome.in_order
            continue
        number = outcome.position if at is None else at + after(outcome.position, at & 0xFFFF)
        if outcome.in_order:
            assert at is None or number >= at
            at = number
        if outcome.verdict is Verdict.FORWARD:
            assert number not in seen, row
            assert not outcome.in_order or number > highest
            seen.add(number)
            highest = max(highest, number)


REWRITERS = {
    "S-LM": lambda: LowMemory(Cadence(0b1010, 1)),
    "S-LR": lambda: LowRetransmission(),
    "S-LR with history": lambda: LowRetransmission(history=8, window=256),
    "S-LR with a frame cadence": lambda: LowRetransmission(Cadence(0b1010), learn=False),
}


near = st.tuples(st.integers(-6, 12), st.integers(-2, 6), st.booleans(), st.booleans(), st.booleans(), st.booleans())
far = st.tuples(st.integers(0, 65535), st.integers(0, 65535), st.booleans(), st.booleans(), st.booleans(), st.booleans())


@pytest.mark.parametrize("name", REWRITERS)
@given(st.integers(0, 65535), st.lists(st.one_of(near, near, near, far), max_size=60), st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_no_rows_whatever_get_one_number_twice(name, start, steps, resume_at):
    rewriter = REWRITERS[name]()
    rows, sequence, frame = [], start, 0
    for step in steps:
        sequence, frame = (sequence + step[0]) & 0xFFFF, (frame + step[1]) & 0xFFFF
        rows.append(Row(sequence, frame, *step[2:]))
    count = 0

    def accept(row: Row) -> Outcome:
        nonlocal count
        count += 1
        if count == resume_at:
            rewriter.resume()
        return rewriter.accept(row)

    given_out(accept, rows)


@pytest.mark.parametrize("seed", range(4))
def test_bad_networks_never_get_a_number_twice_and_order_is_kept(seed):
    """The short form of `make bench-sequence`."""
    rng = random.Random(seed)
    for sizes in (streams.SMALL, streams.LARGE):
        sent = list(streams.video(rng, 3000, sizes, keys=97, slips=0.01))
        arriving = list(streams.network(rng, sent, loss=rng.choice([0.0, 0.05, 0.3, 0.6]), burst=rng.choice([1.0, 4.0]), reorder=0.1, distance=12, repeat=0.05))
        for target in (0, 1):
            for make in REWRITERS.values():
                oracle = streams.rehearse(sent, arriving, target, make().accept)
                assert oracle.duplicates == 0 and oracle.forwarded
                assert oracle.ordered()


# -- what it costs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize("sizes", [streams.SMALL, streams.LARGE], ids=["small", "large"])
@pytest.mark.parametrize(("loss", "most"), [(0.0, 0.0), (0.01, 0.001), (0.1, 0.005), (0.2, 0.01)])
def test_overhead_of_s_lr_is_far_below_the_papers(target, sizes, loss, most):
    """Figure 18: below 5 % up to 10 % of loss, about 7.5 % at 20 %."""
    rng = random.Random(7)
    sent = list(streams.video(rng, 8000, sizes))
    oracle = streams.rehearse(sent, streams.network(rng, sent, loss=loss), target, LowRetransmission().accept)
    assert oracle.overhead() <= most
    assert oracle.masked <= oracle.kept * 0.0002


def test_without_loss_nothing_is_lost_and_the_numbers_are_the_oracles():
    rng = random.Random(1)
    sent = list(streams.video(rng, 5000, slips=0.05, keys=50))
    for target in (0, 1, 2):
        oracle = streams.rehearse(sent, sent, target, LowRetransmission().accept)
        assert (oracle.forwarded, oracle.extra, oracle.masked, oracle.late) == (oracle.kept, 0, 0, 0)


def test_history_brings_late_packets_home():
    rng = random.Random(2)
    sent = list(streams.video(rng, 8000))
    arriving = list(streams.network(rng, sent, loss=0.02, reorder=0.05, distance=60))
    short = streams.rehearse(sent, arriving, 1, LowRetransmission().accept)
    long = streams.rehearse(sent, arriving, 1, LowRetransmission(history=32, window=256).accept)
    assert long.late * 20 < short.late and long.duplicates == 0 and long.ordered()


def steady(rewriter, frames: range) -> None:
    """One-packet frames, every second one suppressed: even frames are kept."""
    for n in frames:
        rewriter.accept(Row(n, n, True, True, n % 2 == 0))


def test_a_lost_key_frame_in_the_place_of_a_suppressed_one_is_not_hidden():
    rewriter = LowRetransmission()
    steady(rewriter, range(11))  # 10 is kept; 11 would be suppressed, but is a key frame, and lost
    assert rewriter.accept(Row(12, 12, True, True, False)).position == 10 - 5 + 2  # after 5 comes a gap of one
    assert rewriter.accept(Row(13, 13, True, True, True)).position == 7


def test_a_sender_that_starts_anew_goes_on_in_its_receivers_numbers():
    rewriter = LowRetransmission()
    assert rewriter.accept(Row(500, 1, True, True, True)).position == 500
    assert rewriter.accept(Row(100, 9, True, True, True)).verdict is Verdict.LATE  # for all that one packet tells
    rewriter.resume()
    assert rewriter.accept(Row(101, 10, True, True, True)).position == 501
    assert rewriter.accept(Row(102, 11, True, True, False)).position == 502
    assert rewriter.accept(Row(104, 13, True, True, True)).position == 503
    low = LowMemory()
    low.accept(Row(500, 1, True, True, True))
    low.resume()
    assert low.accept(Row(100, 9, True, True, True)).position == 501


# -- changes of target ---------------------------------------------------------------------------------------------


def sequence_state_run(rng: random.Random, loss: float, reorder: float, packets: int = 4000) -> tuple[list[tuple[int, int]], int, int]:
    """Numbers that one receiver gets over changes of target at any time; (number, index) in order, changes, packets it should have got."""
    sent = list(streams.video(rng, packets))
    rewriters = {target: LowRetransmission(history=4, window=64) for target in (0, 1, 2)}
    sequence_state = SequenceState(2)
    wanted, got, changes, due = 2, [], 0, 0
    top = None
    for packet in streams.network(rng, sent, loss=loss, reorder=reorder, repeat=reorder / 5):
        if rng.random() < 0.01:
            wanted = rng.randrange(3)
        before = sequence_state.target
        outcomes = {target: rewriter.accept(packet.row(target)) for target, rewriter in rewriters.items()}
        number = sequence_state.accept(wanted, packet.start, outcomes)
        changes += sequence_state.target != before
        due += packet.layer <= sequence_state.target
        if number is not None:
            assert packet.layer <= sequence_state.target
            number = number if top is None else top + after(number, top & 0xFFFF)
            top = number if top is None else max(top, number)
            got.append((number, packet.index))
    return got, changes, due


def test_a_change_of_target_leaves_no_gap():
    got, changes, due = sequence_state_run(random.Random(4), 0.0, 0.0)
    assert changes > 20 and len(got) == due
    numbers = [number for number, _ in got]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.parametrize("seed", range(4))
def test_changes_under_loss_and_reordering_never_give_a_number_twice(seed):
    got, changes, due = sequence_state_run(random.Random(seed), 0.1, 0.1)
    numbers = [number for number, _ in got]
    assert changes > 10 and len(set(numbers)) == len(numbers)
    places = [index for _, index in sorted(got)]
    assert all(a < b for a, b in zip(places, places[1:]))
    assert len(got) > 0.9 * due
