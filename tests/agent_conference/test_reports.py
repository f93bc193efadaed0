"""Sender reports in a full room. How long they take is measured by `make bench-feedback`."""

from __future__ import annotations

import resource

import pytest

from bench.feedback import reports

IN_ROOM = 50
TRIES = 3


@pytest.mark.slow
def test_a_sender_report_reaches_everybody_else_in_a_room_of_fifty() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most[1], most[1]))
    try:
        # A machine that is busy for long lets the queues of 50 sockets overflow: then all is sent again.
        for _ in range(TRIES):
            agent, plain = reports(6, IN_ROOM)
            if len(agent) == len(plain):
                break
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    assert len(plain) == 6 * 50 * (IN_ROOM - 1)
    assert len(agent) == len(plain), "a report is missing somewhere"
