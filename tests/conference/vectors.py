"""The packet-row vectors that every implementation of sequence rewriting is held against; `python -m tests.conference.vectors` writes them.

tests/vectors/conference/sequence.json: cases, each with the algorithm, its parameters, and rows
[sequence, frame, start, end, keep, key, verdict, position]; position is null where the outcome has none. Cases named "by
hand" are not generated: they are kept as they stand in the file.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.tools.conference.sequence import PHASES, Cadence, LowMemory, LowRetransmission, Row
from tests.conference import streams

FILE = Path(__file__).resolve().parents[1] / "vectors" / "conference" / "sequence.json"
_KEYS = 5 * PHASES + 3  # frames between key frames: with the key frame whole turns of the frame cadence
HOSTILE = "rows that no sender would send"


def build(case: dict[str, Any]) -> LowMemory | LowRetransmission:
    """The rewriter that a case is about."""
    cadence = None if case["cadence"] is None else Cadence(*case["cadence"])
    if case["algorithm"] == "S-LM":
        return LowMemory(cadence)
    return LowRetransmission(cadence, learn=case["learn"], history=case["history"], window=case["window"])


def run(case: dict[str, Any]) -> list[list[Any]]:
    """The rows of a case with what the reference says of them."""
    rewriter = build(case)
    rows = []
    for row in case["rows"]:
        outcome = rewriter.accept(Row(*row[:2], *map(bool, row[2:6])))
        rows.append([*row[:6], outcome.verdict.value, outcome.position])
    return rows


def _generated() -> list[dict[str, Any]]:
    cases = []
    for nth, (name, options) in enumerate(
        [
            ("no loss", {}),
            ("loss 10 %", {"loss": 0.1}),
            ("loss 20 % in runs", {"loss": 0.2, "burst": 3.0}),
            ("reordering", {"reorder": 0.1}),
            ("loss, reordering and copies", {"loss": 0.1, "reorder": 0.1, "repeat": 0.05}),
            (HOSTILE, {}),
        ]
    ):
        for algorithm, history in (("S-LM", 0), ("S-LR", 0), ("S-LR", 8)):
            rng = random.Random(nth)
            target = nth % 2
            sent = list(streams.video(rng, 150, streams.SMALL if nth % 3 else streams.LARGE, keys=_KEYS))
            suppressed, kept = ({packet.frame % PHASES for packet in sent if (packet.layer > target) is above} for above in (True, False))
            assert suppressed and not suppressed & kept, "a frame cadence says what is suppressed by the frame's number alone"
            mask = sum(1 << phase for phase in suppressed)
            rows = [packet.row(target) for packet in streams.network(rng, sent, **options)]
            if name == HOSTILE:
                rows = [Row(rng.choice([rng.randrange(65536), 65530 + rng.randrange(20) & 0xFFFF]), rng.randrange(4), *(rng.random() < 0.5 for _ in range(4))) for _ in rows]
            case = {
                "name": name,
                "algorithm": algorithm,
                "cadence": [mask, 0] if algorithm == "S-LM" else None,
                "learn": algorithm == "S-LR",
                "history": history,
                "window": 16 if not history else 256,
                "rows": [[*row[:2], *map(int, row[2:])] for row in rows if row.keep or algorithm == "S-LR"],
            }
            case["rows"] = run(case)
            cases.append(case)
    return cases


def main() -> None:
    by_hand = [case for case in json.loads(FILE.read_text())["cases"] if case["name"].startswith("by hand")] if FILE.exists() else []
    FILE.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for case in by_hand + _generated():
        head = json.dumps({key: value for key, value in case.items() if key != "rows"})[:-1]
        rows = ",\n".join("  " + ", ".join(json.dumps(row, separators=(",", ":")) for row in case["rows"][at : at + 4]) for at in range(0, len(case["rows"]), 4))
        lines.append(f'{head}, "rows": [\n{rows}\n]}}')
    FILE.write_text('{"columns": ["sequence", "frame", "start", "end", "keep", "key", "verdict", "position"], "cases": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
