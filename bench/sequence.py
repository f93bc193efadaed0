"""`make bench-sequence`: what rewriting sequence numbers costs under loss, reordering and copies; writes build/bench/sequence/results.json.

    python -m bench.sequence [--packets N]

An oracle that knows all that was sent judges each number given out. overhead: requests for nothing (numbers that no packet
has, and packets dropped because they came late), for each packet the receiver should get; masked: losses hidden; duplicates:
packets with a number that another one has. Exits 1 when a number was given out twice, or S-LR missed its targets (Scallop,
figure 18: below 5 % up to 10 % of loss, 7.5 % at 20 %).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tools.conference.sequence import Cadence, LowMemory, LowRetransmission, Outcome, Row, Verdict
from tests.conference import streams

OUTPUT = Path(__file__).resolve().parent.parent / "build" / "bench" / "sequence"
LOSSES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
PICTURES = {"small": streams.SMALL, "large": streams.LARGE}
NETWORKS: dict[str, dict[str, float]] = {
    "single losses": {},
    "losses in runs of 3": {"burst": 3.0},
    "1 % reordered": {"reorder": 0.01},
    "5 % reordered, 2 % doubled": {"reorder": 0.05, "repeat": 0.02},
}
REORDERED = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)
TARGETS = ((0.1, 0.05), (0.2, 0.075))


class _Pruned:
    """S-LR behind a replication engine that has already taken out what is suppressed."""

    def __init__(self, cadence: Cadence) -> None:
        self._inner = LowRetransmission(cadence, learn=False)

    def accept(self, row: Row) -> Outcome:
        return self._inner.accept(row) if row.keep else Outcome(Verdict.SUPPRESS, None, False)


PRUNED = "S-LR, sees only what is kept"
ALGORITHMS: dict[str, Callable[[Cadence], Any]] = {
    "S-LR": lambda cadence: LowRetransmission(),
    "S-LR, 32 offsets": lambda cadence: LowRetransmission(history=32, window=256),
    PRUNED: _Pruned,
    "S-LM": LowMemory,
}


def measure(algorithm: str, picture: str, kind: str, target: int, loss: float, packets: int) -> dict[str, Any]:
    """One run, the same for the same arguments. Signalling knows the frame cadence, and the encoder leaves no frame out."""
    return _run(algorithm, picture, target, packets, f"{picture} {kind} {target} {loss}", loss, NETWORKS[kind]) | {"network": kind}


def figure_18(packets: int) -> list[dict[str, Any]]:
    """Runs with growing loss and no reordering, and with growing reordering and no loss, of all algorithms that are to be compared."""
    worlds = [(loss, 0.0) for loss in LOSSES] + [(0.0, reordered) for reordered in REORDERED[1:]]
    return [
        _run(algorithm, picture, target, packets, f"{picture} {target} {loss} {reordered}", loss, {"reorder": reordered}) | {"reordered": reordered}
        for algorithm in ALGORITHMS if algorithm != PRUNED for picture in PICTURES for target in (0, 1) for loss, reordered in worlds
    ]  # fmt: skip


def _run(algorithm: str, picture: str, target: int, packets: int, seed: str, loss: float, network: dict[str, float]) -> dict[str, Any]:
    rng = random.Random(seed)
    sent = list(streams.video(rng, packets, PICTURES[picture], keys=299))
    mask = sum(1 << phase for phase in {packet.frame & 3 for packet in sent[:200] if packet.layer > target})
    oracle = streams.rehearse(sent, streams.network(rng, sent, loss=loss, **network), target, ALGORITHMS[algorithm](Cadence(mask)).accept)
    return {
        "algorithm": algorithm,
        "picture": picture,
        "target": target,
        "loss": loss,
        "packets": len(sent),
        "due": oracle.kept,
        "forwarded": oracle.forwarded,
        "overhead": round(oracle.overhead(), 6),
        "extra": oracle.extra,
        "late": oracle.late,
        "masked": oracle.masked,
        "duplicates": oracle.duplicates,
        "in_order_of_sending": oracle.ordered(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packets", type=int, default=20_000, help="of each run")
    arguments = parser.parse_args()
    began = time.monotonic()
    runs = [measure(algorithm, picture, kind, target, loss, arguments.packets) for algorithm in ALGORITHMS for picture in PICTURES for kind in NETWORKS for target in (0, 1) for loss in LOSSES]
    worst: dict[str, dict[str, dict[str, float]]] = {}
    for run in runs:
        of_network = worst.setdefault(run["algorithm"], {}).setdefault(run["network"], {})
        of_network[str(run["loss"])] = max(of_network.get(str(run["loss"]), 0.0), run["overhead"])
    duplicates = sum(run["duplicates"] for run in runs)
    missed = [
        f"S-LR at {loss:.0%} of loss, {run['picture']} picture, target {run['target']}: {run['overhead']:.2%}, {most:.1%} wanted"
        for loss, most in TARGETS
        for run in runs
        if run["algorithm"] == "S-LR" and run["network"] == "single losses" and run["loss"] <= loss and run["overhead"] > most
    ]
    rows = sum(run["packets"] for run in runs)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    results = {"rows": rows, "seconds": round(time.monotonic() - began, 1), "duplicates": duplicates, "missed": missed, "worst_overhead": worst, "runs": runs}
    (OUTPUT / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"{rows} rows, {duplicates} duplicate numbers, out of order of sending: {sum(not run['in_order_of_sending'] for run in runs)} runs")
    print("worst overhead, in % of the packets due" + "".join(f"{loss:>8.0%}" for loss in LOSSES))
    for algorithm, kinds in worst.items():
        for kind, of_network in kinds.items():
            print(f"{algorithm + ', ' + kind:<58}" + "".join(f"{100 * of_network[str(loss)]:>8.2f}" for loss in LOSSES))
    masked = {a: sum(run["masked"] for run in runs if run["algorithm"] == a) for a in ALGORITHMS}
    print("losses hidden: " + ", ".join(f"{algorithm} {count} of {sum(r['due'] for r in runs if r['algorithm'] == algorithm)}" for algorithm, count in masked.items()))
    print("\n".join(missed))
    sys.exit(1 if duplicates or missed else 0)


if __name__ == "__main__":
    main()
