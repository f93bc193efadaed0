"""How long sender reports take to everybody else of a full room."""

from __future__ import annotations

import resource

import pytest

from bench.feedback import percentile, reports

IN_ROOM = 50
GOAL_S = 0.001
TRIES = 3
FACTOR = 4
"""How much later than copies of a process that does nothing else; on a machine without other work it is 1 to 2."""


@pytest.mark.slow
def test_sender_reports_pass_at_once_in_a_room_of_fifty() -> None:
    """In 1 ms (p99); where the machine's other work makes that impossible, not much later than what a process of a few lines sends in turns with the agent."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most[1], most[1]))
    try:
        # A machine that is busy for long lets the queues of 50 sockets overflow: then all is measured again.
        for _ in range(TRIES):
            agent, plain = reports(6, IN_ROOM)
            if len(agent) == len(plain):
                break
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    assert len(plain) == 6 * 50 * (IN_ROOM - 1)
    assert len(agent) == len(plain), "a report is missing somewhere"
    found = {percent: (percentile(agent, percent), percentile(plain, percent)) for percent in (50, 99)}
    print({percent: tuple(f"{one * 1000:.2f} ms" for one in pair) for percent, pair in found.items()})
    for percent, (ours, others) in found.items():
        assert ours <= max(GOAL_S, FACTOR * others), f"p{percent}: {ours * 1000:.2f} ms, a process that only sends {others * 1000:.2f} ms"
