"""`make p4-test`: says which data planes are there, and runs the vectors on every one of them."""

from __future__ import annotations

import sys

import pytest

from tests.dataplane import lab
from tests.p4 import bmv2, tofino

TARGETS = {
    "softswitch (eBPF)": (lab.missing, ["tests/p4/test_vectors_softswitch.py", "tests/replication/test_vectors.py"]),
    "BMv2 (v1model twin)": (
        bmv2.missing,
        [
            "tests/p4/test_vectors_bmv2.py",
            "tests/p4/test_bfrt_bmv2.py",
            "tests/p4/test_twin.py",
            "tests/p4/test_drops_bmv2.py",
            "tests/p4/test_replication_bmv2.py",
            "tests/p4/test_sequence_bmv2.py",
            "tests/p4/test_tracks_bmv2.py",
            "tests/p4/test_conference_agent_bmv2.py",
            "tests/p4/test_tracks_agent_bmv2.py",
        ],
    ),
    "Tofino (model or hardware, PTF)": (tofino.missing, ["tests/p4/test_vectors_tofino.py"]),
}


def main() -> int:
    present: list[str] = []
    for name, (missing, paths) in TARGETS.items():
        reason = missing()
        print(f"{name}: {'present' if reason is None else f'not here: {reason}'}")
        if reason is None:
            present += paths
    if not present:
        print("no data plane to run the vectors on", file=sys.stderr)
        return 1
    return int(pytest.main(["-q", *present]))


if __name__ == "__main__":
    sys.exit(main())
