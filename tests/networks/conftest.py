"""Labs that the rows share, and the comparison's table at the end."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lab.needs import need
from tests.agent_daemon.lab import Lab
from tests.networks.field import lab

_TABLE = "networks"


@pytest.fixture(scope="session")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, bool], Lab]]:
    """Returns the lab of a relay, alone or with Shunt; it is started when it is first asked for."""
    made: dict[tuple[str, bool], Lab] = {}
    with contextlib.ExitStack() as stack:

        def get(relay: str, with_shunt: bool) -> Lab:
            daemon = relay.split()[0]
            need(*() if daemon == "shunt-relay" else (daemon,))
            key = (relay, with_shunt)
            if key not in made:
                work = tmp_path_factory.mktemp(f"{relay.replace(' ', '')}-{'shunt' if with_shunt else 'alone'}")
                made[key] = stack.enter_context(lab(work, relay, with_shunt))
            return made[key]

        yield get


@pytest.fixture
def tabulate(record_property: Callable[[str, Any], None]) -> Callable[..., None]:
    """Enters a line of the table: row, relay, direction, packets sent and lost with the relay alone, the same with Shunt."""

    def enter(row: str, relay: str, way: str, alone: tuple[int, int], shunt: tuple[int, int], holds: bool) -> None:
        record_property(_TABLE, [row, relay, way, *alone, *shunt, holds])

    return enter


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the table and its sum."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports if getattr(report, "when", "") == "call"]
    lines = [line for report in reports for name, line in report.user_properties if name == _TABLE]
    if not lines:
        return
    terminalreporter.section("lost with the relay alone, and with Shunt")
    for row, relay, way, alone_sent, alone_lost, sent, lost, holds in lines:
        mark = " " if holds else "!"
        terminalreporter.write_line(f"{mark} {row:<62} {relay:<11} {way:<15} {alone_lost:>5} of {alone_sent:<5} {lost:>5} of {sent:<5}")
    failed = sum(not line[-1] for line in lines)
    alone, shunt = sum(line[4] for line in lines), sum(line[6] for line in lines)
    rows = len({(line[0], line[1]) for line in lines})
    terminalreporter.write_line(f"{rows} rows, {len(lines)} directions: {alone} packets lost with the relay alone, {shunt} with Shunt; {failed} directions out of bounds")
