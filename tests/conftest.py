"""What holds for every test: signals of started processes, a network for each worker, tests marked slow, and the table of skips."""

from __future__ import annotations

import functools
import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.lab.isolation import isolate
from tests.skips import remedy

# Every process that a test starts becomes another program at once. gRPC's own handlers around a fork cost such a child its life now and then: its
# poller finds its descriptor closed, and aborts.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

ROOT = Path(__file__).resolve().parents[1]
_SKIPPED = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts what runs in its background with SIGINT ignored, and all children would inherit that: Ctrl-C could not be tested."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_SKIPPED] = Counter()
    if hasattr(config, "workerinput"):
        if os.geteuid() == 0:
            isolate()
    else:
        config.pluginmanager.register(_Skips(config))


class _Groups(LoadScopeScheduling):
    """Gives the tests of a file to one worker, since they share its fixtures, and those of all files marked as of one group too.

    xdist's own `loadgroup` marks tests in a field that pytest 9.2 does not read.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid.partition("::")[0])


@functools.cache
def _group(path: str) -> str:
    """What a file's tests are marked with as a whole, `xdist_group("NAME")`; else the file's own path."""
    found = re.search(r'^pytestmark = [^@]*?xdist_group\("(\w+)"\)', (ROOT / path).read_text(), re.MULTILINE)
    return found[1] if found else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Groups | None:
    """For `--dist loadgroup`."""
    return _Groups(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests marked slow, or with SHUNT_ALL=1 all others; a test that is named on the command line runs in any case."""
    if any("::" in argument for argument in config.args):
        return
    wanted = os.environ.get("SHUNT_ALL") == "1"
    left_out = [item for item in items if (item.get_closest_marker("slow") is not None) != wanted]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        kept = set(items) - set(left_out)
        items[:] = [item for item in items if item in kept]


class _Skips:
    """Counts skips by reason, prints them as one table, and fails the run for a reason that is not allowed."""

    def __init__(self, config: pytest.Config) -> None:
        self._reasons = config.stash[_SKIPPED]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._count(report)

    def _count(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple) and not hasattr(report, "wasxfail"):
            self._reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and any(remedy(reason) is None for reason in self._reasons):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._reasons:
            return
        terminalreporter.section("skipped")
        width = max(len(reason) for reason in self._reasons)
        for reason, count in self._reasons.most_common():
            what = remedy(reason)
            terminalreporter.write_line(f"{count:5}  {reason:{width}}  " + (what or "NOT ALLOWED: see tests/skips.py"), red=what is None)
