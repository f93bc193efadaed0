"""The lease: at most one agent of a group is in charge, and everybody knows by the clock when it no longer is.

The store grants a lease for a short time together with a fencing token, a number that only grows. The
holder renews it four times as often as it must. It believes in its lease only until the time that was
granted, counted from before it asked, so a process that was stopped or cut off knows on waking that it is
late. The journal checks the token with every write; the relay table is guarded by `Fence`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from shunt.journal.store import JournalError
from shunt.tasks import keep_running

log = logging.getLogger(__name__)

_RENEWALS = 4
UNDECIDED_S = 8.0
"""How long an agent that was cut off waits for another to let go of the lease."""
_MARGIN = 0.1  # share of the lease that is left to clocks that run at different speeds and to a write under way


class Grants(Protocol):
    """What the lease needs of the store (RedisStore)."""

    name: str
    token: int

    async def acquire(self, body: dict[str, Any], ms: int, *, least: int = 0, instead_of: str = "") -> Any: ...
    async def renew(self, body: str, ms: int) -> int: ...
    async def emptied(self) -> bool: ...
    async def release(self, body: str) -> None: ...


def _here() -> str:
    """Names this kernel's process ids: a holder that runs under the same ones can be looked up."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return secrets.token_hex(8)


def _start_time(pid: int) -> str | None:
    """When a process was started, in clock ticks since boot; None when there is no such process (or only its corpse)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


class Lease:
    """One agent's claim. `control` is where the other agents of the group send what reaches them meanwhile; `sip` where it takes calls to conferences."""

    def __init__(self, store: Grants, *, seconds: float, control: str, name: str = "", sip: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.seconds = seconds
        self.clock = clock
        self.on_lost: Callable[[str], None] = lambda why: None
        self.on_emptied: Callable[[], None] = lambda: None
        self.store_down = False
        self.holder: dict[str, Any] | None = None
        self._until = 0.0
        self._text = ""
        self._seen_token = 0
        self._seen_at = 0.0
        self._back_at = -seconds
        self._who = {"id": secrets.token_hex(8), "name": name, "control": control, "sip": sip, "here": _here(), "pid": os.getpid(), "start": _start_time(os.getpid())}
        self._renewing: asyncio.Task[None] | None = None

    @property
    def token(self) -> int:
        return self.store.token

    @property
    def held(self) -> bool:
        """Whether this agent is in charge, by the clock alone."""
        return self.clock() < self._until

    def is_me(self, holder: dict[str, Any]) -> bool:
        """Whether a lease's text names this agent."""
        return holder.get("id") == self._who["id"]

    def has_my_socket(self, holder: dict[str, Any]) -> bool:
        """Whether the agent that a lease's text names takes calls to conferences on the very socket that this one would."""
        return holder.get("sip") == self._who["sip"] and holder.get("here") == self._who["here"]

    async def try_acquire(self) -> bool:
        """Ask once. Raises JournalError when the store does not answer."""
        asked = self.clock()
        ms = int(self.seconds * 1000)
        corpse = self._corpse()
        if not corpse and self._seen_token and asked - self._seen_at < 2 * self.seconds and await self.store.emptied():
            return False  # nobody let go of the lease: the agent in charge comes first
        if self.store_down and self._seen_token:
            # The lease ran out because nobody could renew it; its holder has something to write.
            await self.store.emptied()
            self._back_at = asked
        self.store_down = False
        if asked - self._back_at < self.seconds:
            return False
        grant = await self.store.acquire(self._who, ms, least=self._seen_token, instead_of=corpse)
        if grant.token:
            self._until = asked + self.seconds * (1 - _MARGIN)
            self._text = grant.body
            self._seen_token = grant.token
            self.holder = self._who
            return True
        self._look_at(grant.body)
        return False

    def _look_at(self, text: str) -> None:
        try:
            holder = json.loads(text)
            self._seen_token = max(self._seen_token, int(holder["token"]))
        except (ValueError, KeyError, TypeError):
            log.error("%s: the lease reads %.100r", self.store.name, text)
            return
        self.holder, self._text, self._seen_at = holder, text, self.clock()

    def _corpse(self) -> str:
        """The text of a lease whose holder is known to be dead, because it was a process of this very host."""
        holder = self.holder
        if holder is None or holder is self._who or holder.get("here") != self._who["here"]:
            return ""
        return self._text if _start_time(int(holder.get("pid", 0))) != holder.get("start") else ""

    async def acquire(self) -> None:
        """Ask until granted."""
        while True:
            try:
                if await self.try_acquire():
                    return
            except JournalError as error:
                if not self.store_down:
                    log.error("%s; waiting for it", error)
                self.store_down = True
                self.holder = None
            await asyncio.sleep(self.seconds / _RENEWALS / (2 if self.holder is not None and self._corpse() else 1))

    def keep(self) -> None:
        """Renew from now on; on_lost(why) is called once when the lease is another's."""
        self._renewing = asyncio.get_running_loop().create_task(keep_running("lease", self._renew))

    async def _renew(self) -> None:
        cut_off: float | None = None
        while True:
            await asyncio.sleep(self.seconds / _RENEWALS)
            asked = self.clock()
            try:
                answer = await self.store.renew(self._text, int(self.seconds * 1000))
            except JournalError as error:
                if not self.store_down:
                    log.error("%s: the lease cannot be renewed", error)
                self.store_down = True
                continue
            if answer == 1:
                if self.store_down:
                    log.warning("%s: answers again", self.store.name)
                self.store_down, cut_off = False, None
                self._until = asked + self.seconds * (1 - _MARGIN)
                continue
            if cut_off is None and (self.store_down or answer == -1):
                # This agent was cut off from the store, and another was granted the lease. If that one could not have
                # the data plane, which one agent at a time can, it lets go of the lease again.
                cut_off = asked
            if cut_off is not None and await self._again(asked):
                log.error("%s: %s; writing everything again", self.store.name, "it was emptied" if answer == -1 else "this agent was cut off from it")
                self.store_down, cut_off = False, None
                self.on_emptied()
            elif cut_off is None or asked - cut_off > UNDECIDED_S:
                self._until, self.store_down = 0.0, False
                self.on_lost("another agent holds the lease")
                return

    async def _again(self, asked: float) -> bool:
        try:
            grant = await self.store.acquire(self._who, int(self.seconds * 1000), least=self._seen_token)
        except JournalError:
            return False
        if not grant.token:
            return False
        self._text, self._seen_token = grant.body, grant.token
        self._until = asked + self.seconds * (1 - _MARGIN)
        return True

    async def close(self) -> None:
        """Stop renewing, and let another agent take over at once."""
        task, self._renewing = self._renewing, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self.held:
            self._until = 0.0
            try:
                await self.store.release(self._text)
            except JournalError as error:
                log.warning("%s: the lease is left to expire", error)
