"""The description of sequence rewriting as passes over words, in C: the same outcomes as the reference, row by row."""

from __future__ import annotations

import ctypes
import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.conference.sequence import LowMemory, LowRetransmission, Outcome, Row, SequenceState, Verdict
from tests.conference import streams, vectors

FOLDER = Path(__file__).resolve().parents[2] / "softswitch" / "bpf"
SOURCE = """
#include "seq_rewrite.h"
struct outcome slr(struct slr *s, struct row r, int learn) { return slr_accept(s, r, learn); }
void slr_fresh(struct slr *s, u16 mask) { slr_init(s, mask); }
struct outcome slm(struct slm *s, struct row r, u16 mask) { return slm_accept(s, r, mask); }
int sequence_state(struct sequence_state *s, u16 wanted, int changes, const struct outcome *of, u16 *number) { return sequence_state_accept(s, wanted, changes, of, number); }
"""
VERDICTS = (Verdict.FORWARD, Verdict.SUPPRESS, Verdict.LATE, Verdict.REPEATED)


class CRow(ctypes.Structure):
    _fields_ = [("sequence", ctypes.c_uint16), ("frame", ctypes.c_uint16), *((name, ctypes.c_uint8) for name in ("start", "end", "keep", "key"))]


class COutcome(ctypes.Structure):
    _fields_ = [("verdict", ctypes.c_uint8), ("in_order", ctypes.c_uint8), ("has_position", ctypes.c_uint8), ("position", ctypes.c_uint16)]

    def told(self) -> Outcome:
        return Outcome(VERDICTS[self.verdict], self.position if self.has_position else None, bool(self.in_order))


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> ctypes.CDLL:
    compiler = shutil.which("clang") or "cc"
    folder = tmp_path_factory.mktemp("words")
    (folder / "words.c").write_text(SOURCE)
    library = folder / "words.so"
    subprocess.run([compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{FOLDER}", "-o", library, folder / "words.c"], check=True)
    found = ctypes.CDLL(str(library))
    found.slr.restype = found.slm.restype = COutcome
    found.slr.argtypes = [ctypes.c_void_p, CRow, ctypes.c_int]
    found.slm.argtypes = [ctypes.c_void_p, CRow, ctypes.c_uint16]
    found.sequence_state.argtypes = [ctypes.c_void_p, ctypes.c_uint16, ctypes.c_int, ctypes.POINTER(COutcome), ctypes.POINTER(ctypes.c_uint16)]
    found.slr_fresh.argtypes = [ctypes.c_void_p, ctypes.c_uint16]
    return found


def s_lr(words: ctypes.CDLL, mask: int = 0, learn: bool = True) -> Callable[[Row], Outcome]:
    state = ctypes.create_string_buffer(256)
    words.slr_fresh(state, mask)
    return lambda row: words.slr(state, CRow(*row), learn).told()


def raw_s_lr(words: ctypes.CDLL) -> Callable[[Row], COutcome]:
    state = ctypes.create_string_buffer(256)
    words.slr_fresh(state, 0)
    return lambda row: words.slr(state, CRow(*row), True)


def s_lm(words: ctypes.CDLL, mask: int) -> Callable[[Row], Outcome]:
    state = ctypes.create_string_buffer(64)
    return lambda row: words.slm(state, CRow(*row), mask).told()


CASES = [case for case in json.loads(vectors.FILE.read_text())["cases"] if not case["history"]]


@pytest.mark.parametrize("case", CASES, ids=[f"{case['algorithm']}-{case['name']}" for case in CASES])
def test_vectors(words, case):
    mask, _ = case["cadence"] or (0, 0)
    accept = s_lm(words, mask) if case["algorithm"] == "S-LM" else s_lr(words, mask, case["learn"])
    for row in case["rows"]:
        outcome = accept(Row(*row[:2], *map(bool, row[2:6])))
        assert [outcome.verdict.value, outcome.position] == row[6:], row


def test_the_same_on_streams_over_bad_networks(words):
    for seed in range(6):
        rng = random.Random(seed)
        sent = list(streams.video(rng, 5000, streams.SMALL if seed & 1 else streams.LARGE, keys=61, slips=0.02))
        arriving = list(streams.network(rng, sent, loss=0.15, burst=1.0 + seed % 3, reorder=0.1, repeat=0.05))
        accept, reference = s_lr(words), LowRetransmission()
        low, low_reference = s_lm(words, 0b1010), LowMemory(vectors.Cadence(0b1010))
        for packet in arriving:
            row = packet.row(seed % 2)
            assert accept(row) == reference.accept(row)
            if row.keep:
                assert low(row) == low_reference.accept(row)


def test_the_same_on_rows_that_no_sender_would_send(words):
    rng = random.Random(9)
    accept, reference = s_lr(words), LowRetransmission()
    low, low_reference = s_lm(words, 0b1010), LowMemory(vectors.Cadence(0b1010))
    sequence = frame = 0
    for _ in range(40_000):
        sequence = (sequence + rng.choice([1, 1, 1, 2, 3, -1, -2, rng.randrange(-12, 12), rng.randrange(65536) if rng.random() < 0.02 else 1])) & 0xFFFF
        frame = (frame + rng.choice([0, 0, 1, 1, 2, 3, -1, rng.randrange(65536) if rng.random() < 0.02 else 0])) & 0xFFFF
        row = Row(sequence, frame, *(rng.random() < 0.5 for _ in range(3)), rng.random() < 0.05)
        assert accept(row) == reference.accept(row), row
        if row.keep:
            assert low(row) == low_reference.accept(row), row


def test_sequence_state_is_the_same_over_changes_of_target_and_bad_networks(words):
    changed = passed = 0
    for seed in range(6):
        rng = random.Random(seed)
        sent = list(streams.video(rng, 4000))
        rewriters, references = [raw_s_lr(words) for _ in range(3)], [LowRetransmission() for _ in range(3)]
        state, reference, wanted = (ctypes.c_uint16 * 4)(2), SequenceState(2), 2
        number = ctypes.c_uint16()
        for packet in streams.network(rng, sent, loss=0.1 * (seed % 3), reorder=0.05, repeat=0.02):
            if rng.random() < 0.02:
                wanted = rng.randrange(3)
            before = reference.target
            outcomes = (COutcome * 4)(*(rewriter(packet.row(target)) for target, rewriter in enumerate(rewriters)))
            told = reference.accept(wanted, packet.start, {target: each.accept(packet.row(target)) for target, each in enumerate(references)})
            goes = words.sequence_state(state, wanted, packet.start, outcomes, ctypes.byref(number))
            assert (number.value if goes else None) == told and state[0] == reference.target
            changed += reference.target != before
            passed += bool(goes)
    assert changed > 100 and passed > 5000
