"""What systemd is told of a service: that it is ready, what it is doing, and that it is still alive (sd_notify(3))."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator

from shunt.errors import cause

log = logging.getLogger(__name__)

# One of three may come late before the supervisor loses patience.
_SIGNS_PER_PERIOD = 3


def tell(**state: str | int) -> bool:
    """Send such as READY=1, STATUS="…" to the supervisor; False where there is none or it does not listen."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    lines = "\n".join(f"{name}={' '.join(str(value).split())}" for name, value in state.items())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.setblocking(False)  # a supervisor that hangs must not take its service with it
        try:
            sock.sendto(lines.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError as error:
            log.warning("cannot notify the supervisor of %s: %s", ", ".join(state), cause(error))
            return False
    return True


def watchdog_period() -> float | None:
    """Seconds within which the supervisor wants a sign of life from this process; None: it does not watch."""
    text, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not text.isdigit() or not int(text) or pid not in ("", str(os.getpid())):
        return None
    return int(text) / 1e6


@contextlib.asynccontextmanager
async def signs_of_life() -> AsyncIterator[None]:
    """Within this the supervisor gets signs of life for as long as the event loop turns."""
    period = watchdog_period()
    signs = None if period is None else asyncio.get_running_loop().create_task(_show_life(period / _SIGNS_PER_PERIOD))
    try:
        yield
    finally:
        if signs is not None:
            signs.cancel()
            await asyncio.gather(signs, return_exceptions=True)


async def _show_life(interval: float) -> None:
    while True:
        tell(WATCHDOG=1)
        await asyncio.sleep(interval)
