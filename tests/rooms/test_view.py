"""What a page is told of its room."""

from __future__ import annotations

import pytest

from shunt.admin.model import Participant
from shunt.operator.rooms import view
from shunt.operator.rooms.session import Session
from tests.operator_conferences.samples import OPUS, VP8, conference, medium, participant

MOST = view.MOST_LINES
TILING = {"streams": [], "untiled": []}


def _senders(count: int) -> list[Participant]:
    return [participant(f"p{number}", medium("audio", 1000, OPUS), medium("video", 2000, VP8)) for number in range(count)]


def _without_line(senders: int, shown: int, lines: int, **mine: object) -> dict[str, list[str]]:
    """The senders without a line, as ann's page is told. shown: how many senders her lines bring; lines: how many she has of audio and of video."""
    kinds = [(kind, place) for kind in ("audio", "video") for place in range(lines)]
    received = [medium(f"{kind}/{place + 2}", 3000, shows=f"p{place}" if place < shown else None) for kind, place in kinds]
    ann = participant("ann", medium("audio", 1, OPUS), *received, **mine)
    session = Session("s", "edge", "room", "ann", "Ann", "join", {f"{kind[0]}{place}": f"{kind}/{place + 2}" for kind, place in kinds})
    tiling = TILING if ann["gets_tiles"] else None
    found: dict[str, list[str]] = view.room(conference(ann, *_senders(senders), tiling=tiling), session)["without_line"]
    assert found.pop("screen") == []
    return found


@pytest.mark.parametrize(("senders", "left"), [(MOST, []), (MOST + 1, [f"p{MOST}"]), (50, [f"p{number}" for number in range(MOST, 50)])])
def test_senders_beyond_the_lines_are_named(senders: int, left: list[str]) -> None:
    assert _without_line(senders, MOST, MOST) == {"audio": left, "video": left}


@pytest.mark.parametrize(("shown", "lines"), [(3, 3), (0, 0), (MOST - 1, MOST)])
def test_a_sender_that_waits_for_a_line_is_not_left_out(shown: int, lines: int) -> None:
    assert _without_line(50, shown, lines) == {"audio": [], "video": []}


def test_a_stream_of_many_senders_leaves_nobody_out() -> None:
    assert _without_line(MOST + 1, MOST, MOST, gets_mix=True) == {"audio": [], "video": [f"p{MOST}"]}
    assert _without_line(MOST + 1, MOST, MOST, gets_tiles=True) == {"audio": [f"p{MOST}"], "video": []}
