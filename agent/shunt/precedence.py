"""The agent's event loop: what a SIP server waits for goes before what is done in the background.

asyncio has one queue. What is begun in background() has another one here, the loop's leisure, and so has all that this begins: learning,
writing entries, statistics, the journal's disk. All of it keeps its order; commands overtake it. In any other event loop nothing is different.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

from shunt.leisure import Leisure

_IN_BACKGROUND: ContextVar[bool] = ContextVar("in_background")


def background() -> Context:
    """The current context, for asyncio's create_task(): the work begun with it, and all that it begins, gives way to commands."""
    context = copy_context()
    context.run(_IN_BACKGROUND.set, True)
    return context


def leisure() -> Leisure:
    """The running event loop's; one of the caller's own where that is no Loop or none is running."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return Leisure()
    return loop.leisure if isinstance(loop, Loop) else Leisure()


class _Later(asyncio.Handle):
    """A callback in the background."""

    __slots__ = ()

    def __call__(self) -> None:
        if not self.cancelled():
            self._run()


class Loop(asyncio.SelectorEventLoop):
    """asyncio's, with a queue for what is done in the background."""

    def __init__(self) -> None:
        super().__init__()
        self.leisure = Leisure(self)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        if not (_IN_BACKGROUND.get(False) if context is None else context.get(_IN_BACKGROUND, False)):
            return super().call_soon(callback, *args, context=context)
        handle = _Later(callback, args, self, context)
        self.leisure.put(handle)
        return handle
