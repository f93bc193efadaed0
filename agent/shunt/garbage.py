"""When Python looks for reference cycles: among few objects at a time, between commands, and hardly ever among all.

By itself it looks once 250 objects have been made that are not freed. But an agent that has run for a minute forgets an old event and
an old answer for each new one, and freeing an old object counts like freeing a new one: thousands of new objects gather before
Python looks, and commands wait for 1 to 3 ms until it has. So it is made to look every few commands, however many objects that are.
"""

from __future__ import annotations

import gc

EVERY = 4
"""Commands after which look() is due; in as many some hundred objects are made."""
_NEW = 250
_SELDOM = 10_000_000
"""Times of looking among new objects to one among all: that takes 0.4 s for 490,000, and 16,000 times had left 262 to be found there."""


def settle() -> None:
    """Once the program is read and the agent about to serve: none of this is garbage. A command waits a third of a microsecond for each object that is looked at."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(_NEW, 0, _SELDOM)


def look() -> None:
    """Among the objects made since the last time; not where somebody who makes very many has put that off (gc.disable)."""
    if gc.isenabled():
        gc.collect(1)
