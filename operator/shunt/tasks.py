"""Background tasks that run until they are cancelled: one that fails is logged and started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

RESTART_S = 1.0
"""Seconds from the failure of a background task to its next start."""


def being_cancelled() -> bool:
    """Whether somebody has asked to cancel the current task.

    A CancelledError may also come from what the task waits for, as from a client that is closed.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def keep_running(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run a loop until it returns or this task is cancelled; when it fails, start it again after RESTART_S.

    name: of the task, for the log.
    """
    while True:
        try:
            await work()
            return
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            log.error("background task %s was cancelled by another task; restarting it", name, exc_info=error)
        except Exception:
            log.exception("background task %s failed; restarting it", name)
        await asyncio.sleep(RESTART_S)
