"""How the processes that tests start find their signals."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell starts what runs in its background with SIGINT ignored, and all children would inherit that: Ctrl-C could not be tested."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
