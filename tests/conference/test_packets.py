"""The reference reader of packets: rows are those of the stream, whatever way its layers are told."""

from __future__ import annotations

import random

import pytest

from tests.conference import streams
from tests.conference.ways import WAYS


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_those_of_the_stream(way):
    build, make = WAYS[way]
    sent = list(streams.video(random.Random(1), 800, keys=50))
    reader = make()
    for packet in sent:
        read = reader.read(build(packet))
        for target in (0, 1, 2):
            row, told = read.row(target), packet.row(target)
            assert (row.sequence, row.start, row.end, row.keep) == (told.sequence, told.start, told.end, told.keep)
        assert read.frame == (packet.frame - sent[0].frame) & 0xFFFF
