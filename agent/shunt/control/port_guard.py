"""No relay port for two calls: a relay that has died forgets its sessions, and gives the ports of calls that go on out again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from shunt import limits
from shunt.calls.book import CallBook
from shunt.net import Endpoint
from shunt.orphans import Orphans
from shunt.rtpproxy import codec
from shunt.rtpproxy.codec import CodecError, Command, Reply

log = logging.getLogger(__name__)

MOST_TRIES = 100
"""Ports that a relay is asked for in place of one that is held; each costs a round trip to it."""
_NO_PORT = {True: 72, False: 71}  # rtpproxy's errors for a session's first port and for its second

_FULL_TRIES, _FULL_S = 20, 0.005

Ask = Callable[[bytes], Awaitable[bytes | None]]
Locate = Callable[[Command, Reply], Endpoint | None]


@dataclass(frozen=True, slots=True)
class _Part:
    """A U or L, or the L chained to a U with &&, and where it stands in command and reply."""

    number: int
    command: Command
    body: bytes


class PortGuard:
    """Looks at the ports that a relay's answer names, and has the relay change those that another call holds.

    wake(port) is called before each look, so that a call of the journal which holds the port is in the book.
    """

    def __init__(self, book: CallBook, orphans: Orphans, wake: Callable[[Endpoint], None] = lambda port: None) -> None:
        self.book = book
        self.orphans = orphans
        self.wake = wake

    async def settle(self, command: Command, body: bytes, reply: bytes, ask: Ask, locate: Locate) -> bytes | None:
        """The reply to a U or L with ports that are this call's alone; an error where the relay has none; None when it fell silent.

        ask(body) sends the relay a command; locate(command, reply) is the address and port that a reply names.
        """
        try:
            second = codec.sub_lookup(command)
            parts = [_Part(0, command, body)] + ([_Part(1, second, second.raw)] if second is not None else [])
            for part in parts:
                holder = self._holder(part, reply, locate)
                if holder is None:
                    continue
                reply = await self._exchange(part, reply, ask, locate)
                if reply is None:
                    return None
                if self._holder(part, reply, locate) is not None:
                    return await self._refuse(command, part, holder, ask)
                limits.count("ports_clashed")
                log.warning("the relay gave %s a port of %s, and %r after it was asked again", command.call_id, holder, reply, extra={"call_id": command.call_id})
        except CodecError as error:
            log.warning("%.60r: its ports were not compared with those of other calls: %s", body, error)
        return reply

    async def _exchange(self, part: _Part, reply: bytes, ask: Ask, locate: Locate) -> bytes | None:
        """The reply with the last port that the relay gave for a part of it; the first that nobody holds, if there is one. None when it fell silent."""
        full = 0
        for _ in range(MOST_TRIES):
            answer = await ask(codec.with_new_port(part.body))
            if answer is None:
                return None
            if codec.parse_ports_reply(answer)[0].error is not None:
                full += 1
                if full == _FULL_TRIES:
                    break
                await asyncio.sleep(_FULL_S)  # rtpproxy closes the ports that it was asked to change a moment later
                continue
            changed = codec.splice_reply(reply, part.number, answer)
            if changed == reply:
                break  # it does not know what is asked of it
            reply = changed
            if self._holder(part, reply, locate) is None:
                break
        return reply

    def _holder(self, part: _Part, reply: bytes, locate: Locate) -> str | None:
        """Who holds the port that a part of the reply names, or the one above it; None where the port is the call's own."""
        replies = codec.parse_ports_reply(reply)
        if part.number >= len(replies) or replies[part.number].error is not None or not replies[part.number].port:
            return None
        port = locate(part.command, replies[part.number])
        for each in () if port is None else (port, port.next_port()):
            self.wake(each)
            slot = self.book.slot(each)
            if slot is not None and slot.line.call.call_id != part.command.call_id:
                return f"call {slot.line.call.call_id}"
            if slot is None and self.orphans.holds(each):
                return "a call that this agent does not know, which is in the data plane"
        return None

    async def _refuse(self, command: Command, part: _Part, holder: str, ask: Ask) -> bytes:
        """No call is better than two on one port: the session goes, where it is the command's own, and the SIP server hears that there is no port."""
        limits.count("ports_clashed_refused")
        log.error("the relay gives %s only ports of other calls (the last is of %s): refused", command.call_id, holder, extra={"call_id": command.call_id})
        new = self.book.find(command) is None
        if new and command.call_id is not None and command.from_tag is not None:
            await ask(codec.build_delete(command.call_id, command.from_tag, command.to_tag, media=command.from_media))
        return codec.build_error(_NO_PORT[new and part.number == 0])
