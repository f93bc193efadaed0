"""What holds for every test: how the processes that tests start find their signals, and what workers of a parallel run share."""

from __future__ import annotations

import os
import signal

import pytest

from tests.lab.isolation import isolate

# Every process that a test starts becomes another program at once. gRPC's own handlers around a fork cost such a child its life now and then: its
# poller finds its descriptor closed, and aborts.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts what runs in its background with SIGINT ignored, and all children would inherit that: Ctrl-C could not be tested."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput") and os.geteuid() == 0:
        isolate()
