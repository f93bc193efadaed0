"""The corpus again, and a few thousand mutations of it: short enough for every run; `make fuzz` is the long one."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, seeds

CORPUS = Path(__file__).resolve().parent / "corpus"
MUTATIONS = {"configuration": 150, "bfrt_schema": 60, "sip_message": 600}
_INTERESTING = (b"\x00", b"\xff", b" ", b"\n", b";", b":", b",", b"&&", b"%%CC_SELF%%", b"-1", b"65536", b"4294967296", b"[", b"]", b"{", b"\"", b"\xc3\x28")


def _inputs(name: str) -> list[bytes]:
    folder = CORPUS / name
    return seeds()[name] + [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else seeds()[name]


def _mutate(data: bytes, dice: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(out) + 1)
        kind = dice.randrange(5)
        if kind == 0 and out:
            out[at % len(out)] ^= 1 << dice.randrange(8)
        elif kind == 1:
            out[at:at] = dice.choice(_INTERESTING)
        elif kind == 2:
            del out[at : at + dice.randrange(1, 12)]
        elif kind == 3:
            end = at + dice.randrange(1, 24)
            out[at:at] = out[at:end]
        else:
            del out[at:]
    return bytes(out)


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_and_mutations(name: str) -> None:
    inputs = _inputs(name)
    assert inputs
    for data in inputs:
        TARGETS[name](data)
    dice = random.Random(zlib.crc32(name.encode()))
    for _ in range(MUTATIONS.get(name, 2000)):
        TARGETS[name](_mutate(dice.choice(inputs), dice))
