"""The man in the middle of the control protocol: passes every command on, and tells the call book what it means."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from shunt.calls import reasons
from shunt.calls.book import CallBook
from shunt.calls.model import SIDES, Component, MediaLine, Side
from shunt.control.port_guard import PortGuard
from shunt.control.relays import Relay, RelayPool
from shunt.control.upstream import RelayError
from shunt.events.bus import CONTROL, RELAY
from shunt.events.current import CURRENT_CALL
from shunt.net import Endpoint
from shunt.offload import Offloader
from shunt.rtpproxy import codec
from shunt.rtpproxy.codec import CodecError, Command, Reply
from shunt.tables.relay_table import DataPlaneUnavailable

log = logging.getLogger(__name__)

_KEPT = 600  # bytes of a command or reply that its event holds
_NOT_UNDERSTOOD_S = 30.0  # between two log lines about commands that are not understood


class _Turns:
    """A call's commands keep their order: each has its turn when the one before has ended."""

    def __init__(self) -> None:
        self._busy: dict[str, deque[asyncio.Future[None]] | None] = {}  # by call-id, who waits
        self._lasting: dict[str, list[bool]] = {}  # by call-id, whether the turn that is to last has ended meanwhile

    async def take(self, call_id: str) -> None:
        """Returns when it is the caller's turn, who has to end() it."""
        if call_id not in self._busy:
            self._busy[call_id] = None
            return
        waiting = self._busy[call_id]
        if waiting is None:
            waiting = self._busy[call_id] = deque()
        turn = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had come just then
                self.end(call_id)
            raise

    def extend(self, call_id: str) -> Callable[[], None]:
        """The turn that ends next is to last until the result is called too."""
        ended = self._lasting[call_id] = [False]

        def done() -> None:
            if ended[0]:
                self.end(call_id)
            elif self._lasting.get(call_id) is ended:
                del self._lasting[call_id]

        return done

    def end(self, call_id: str) -> None:
        """The next one, please."""
        if (lasting := self._lasting.pop(call_id, None)) is not None:
            lasting[0] = True
            return
        waiting = self._busy[call_id]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._busy[call_id]


class ControlProxy:
    """Handles one command at a time a call; replies are the relay's own, but for packet counts added to Q."""

    def __init__(self, pool: RelayPool, book: CallBook, offloader: Offloader) -> None:
        self.pool = pool
        self.book = book
        self.offloader = offloader
        self.ports = PortGuard(book, offloader.orphans)
        self.keep: Callable[[str | None], Awaitable[object]] | None = None  # waited for before the answer to a command about this call-id
        self._turns = _Turns()
        self.commands: dict[str, int] = {}
        self._not_understood = 0  # commands since the last log line about one
        self._not_understood_logged = -math.inf

    async def handle(self, body: bytes, cookie: bytes | None, peer_ip: str | None) -> bytes | None:
        """Answer one command of a SIP server (without cookie and line end). None: no reply, as if the relay were silent."""
        try:
            command = codec.parse_command(body, cookie)
        except CodecError as error:
            self._log_not_understood(error)
            return await self._pass(self._default(), body, peer_ip)
        self.commands[command.verb] = self.commands.get(command.verb, 0) + 1
        began, relay, reply = time.monotonic(), self._relay_of(command), None
        leisure, answering = self.offloader.leisure, False
        token = CURRENT_CALL.set(command.call_id)
        try:
            if command.call_id is None:
                reply = await self._global(command, body, peer_ip)
            else:
                await self._turns.take(command.call_id)
                leisure.begin()
                answering = True
                try:
                    reply = await self._of_call(command, body, peer_ip)
                finally:
                    self._turns.end(command.call_id)
            if self.keep is not None:
                await self.keep(command.call_id)
        finally:
            CURRENT_CALL.reset(token)
            if answering:
                leisure.end()
            relay = relay or self._relay_of(command)
            self.offloader.events.emit(
                CONTROL, command.call_id or "", command.verb, at=began, media=command.from_media, party=self.book.described(command), command=body[:_KEPT], reply=reply[:_KEPT] if reply is not None else None,
                relay=relay.name if relay is not None else None, peer=peer_ip, seconds=time.monotonic() - began,
            )
        return reply

    def _log_not_understood(self, error: CodecError) -> None:
        """One line every _NOT_UNDERSTOOD_S, however many such commands come."""
        self._not_understood += 1
        if (now := time.monotonic()) - self._not_understood_logged >= _NOT_UNDERSTOOD_S:
            log.info("passing on a command that is not understood: %s (%d such commands since the last line)", error, self._not_understood)
            self._not_understood, self._not_understood_logged = 0, now

    def _default(self) -> Relay:
        return self.pool.candidates()[0]

    async def _pass(self, relay: Relay, body: bytes, peer_ip: str | None) -> bytes | None:
        began = time.monotonic()
        try:
            reply = await relay.forward(body, peer_ip)
        except RelayError as error:
            log.warning("relay %s gave no answer to %.60r: %s", relay.name, body, error)
            reply = None
        self.offloader.events.emit(RELAY, "", relay.name, at=began, seconds=time.monotonic() - began, answered=reply is not None)
        return reply

    # -- commands about no call -----------------------------------------------------------------------

    async def _global(self, command: Command, body: bytes, peer_ip: str | None) -> bytes | None:
        relays = self.pool.relays
        if command.verb == "X":
            for relay in relays:
                lines = [line for line in self.book.lines() if line.call.relay == relay.name]
                await self.offloader.release(lines, reasons.RELEASED)
            replies = [await self._pass(relay, body, peer_ip) for relay in relays]
            return next((r for r in replies if r is not None), None)
        if command.verb == "VF" and len(relays) > 1:
            # A feature is there only where every relay has it: the call may land on any of them.
            replies = [r for r in [await self._pass(relay, body, peer_ip) for relay in relays if relay.alive] if r is not None]
            return min(replies, default=None)
        return await self._pass(self._default(), body, peer_ip)

    # -- commands about a call ------------------------------------------------------------------------

    async def _of_call(self, command: Command, body: bytes, peer_ip: str | None) -> bytes | None:
        verb = command.verb
        if verb in ("U", "L"):
            return await self._offer_answer(command, body, peer_ip)
        relay = self._relay_of(command)
        if verb == "D":
            return await self._delete(command, relay, body, peer_ip)
        if verb == "Q":
            return await self._query(command, relay, body, peer_ip)
        if verb in ("P", "R", "C"):
            lines = self.book.block(command)
            with self.offloader.leisure.aside():
                await asyncio.gather(*(self.offloader.sync(line) for line in lines))
            reply = await self._somewhere(command, relay, body, peer_ip)
            if reply is not None and codec.parse_reply(reply).error is not None:
                # The relay will not do it: nothing keeps the stream there.
                for line in lines:
                    line.blocks -= {reasons.PLAYBACK, reasons.RECORDING, reasons.COPY}
                    self.offloader.sync_soon(line)
            return reply
        if verb == "S":
            reply = await self._somewhere(command, relay, body, peer_ip)
            for line in self.book.unblock(command):
                self.offloader.sync_soon(line)
            return reply
        return await self._somewhere(command, relay, body, peer_ip)

    async def _delete(self, command: Command, relay: Relay | None, body: bytes, peer_ip: str | None) -> bytes | None:
        """The call's next command waits until its entries are out, the answer does not: they match packets of this call's own phones only."""
        lines = self.book.matching(command)
        busy = any(line.offloaded or line.lock.locked() for line in lines)
        release = self.offloader.spawn(self.offloader.release(lines, reasons.RELEASED)) if busy else None
        reply = await self._somewhere(command, relay, body, peer_ip)
        if release is None:
            self.offloader.give_back(lines, reasons.RELEASED)
            self.offloader.release_when_free(lines, reasons.RELEASED, self._turns.extend(command.call_id))
        elif not release.done():
            done = self._turns.extend(command.call_id)
            release.add_done_callback(lambda _: done())
        return reply

    def _relay_of(self, command: Command) -> Relay | None:
        name = self.book.relay_of(command.call_id or "")
        return self.pool.by_name.get(name) if name else None

    async def _somewhere(self, command: Command, relay: Relay | None, body: bytes, peer_ip: str | None) -> bytes | None:
        """To the call's relay; for a call not known here (it is older than this agent) to each until one knows it."""
        if relay is not None or len(self.pool.relays) == 1:
            return await self._pass(relay or self.pool.relays[0], body, peer_ip)
        last: bytes | None = None
        for relay in self.pool.candidates():
            reply = await self._pass(relay, body, peer_ip)
            if reply is None:
                continue
            last = reply
            if codec.parse_reply(reply).error is None and not (command.verb == "L" and reply.split()[:1] == [b"0"]):
                return reply
        return last

    async def _offer_answer(self, command: Command, body: bytes, peer_ip: str | None) -> bytes | None:
        if peer_ip is not None:
            body = codec.rewrite_notify_self(command, peer_ip)
        change = self.book.foresee(command)
        if change is not None and change.changed:
            with self.offloader.leisure.aside():
                await self.offloader.suspend(
                    change.line, reasons.RE_INVITE, change.side if change.moved else None, quarantine=change.moved
                )
        relay = self._relay_of(command)
        if relay is None and command.verb == "U":
            relay, reply = await self._first_living(body, peer_ip)
        else:
            reply = await self._somewhere(command, relay, body, peer_ip)
            relay = relay or self._default()
        if reply is not None:
            reply = await self.ports.settle(
                command, body, reply, lambda again: self._pass(relay, again, peer_ip), lambda part, ports: self._relay_port(part, relay, ports),
            )
        line = change.line if change is not None else None
        if reply is not None:
            line = self._apply(command, relay, reply, peer_ip) or line
        if line is not None:
            self.offloader.line_changed(line)  # before the answer, which waits for the journal
            if line.answered or line.suspended is not None or line.offloaded:
                # Also after a CANCEL of one branch: an offer or answer says that the call goes on. Before an answer there is nothing to do.
                # The answer comes first, and the call's next command after this.
                self.offloader.leisure.later(partial(self.offloader.resume, line), self._turns.extend(command.call_id))
            if line.answered:
                with self.offloader.leisure.aside():
                    await self.offloader.heard(line)
        return reply

    async def _first_living(self, body: bytes, peer_ip: str | None) -> tuple[Relay, bytes | None]:
        candidates = self.pool.candidates()
        for relay in candidates:
            reply = await self._pass(relay, body, peer_ip)
            if reply is not None:
                return relay, reply
            relay.alive = False
        return candidates[0], None

    def _apply(self, command: Command, relay: Relay, reply: bytes, peer_ip: str | None):
        """Tell the book about a successful U or L, and about the ones chained to it with &&."""
        try:
            replies = codec.parse_ports_reply(reply)
            second = codec.sub_lookup(command)
        except CodecError as error:
            log.warning("relay %s: %s", relay.name, error)
            return None
        parts = [command] if second is None else [command, second]
        line = None
        for part, ports in zip(parts, replies):
            if ports.error is not None or not ports.port:
                continue
            relay_port = self._relay_port(part, relay, ports)
            if relay_port is None:
                log.warning("relay %s answered %.60r without a usable address: that media line is not offloaded", relay.name, reply)
                continue
            line = self.book.offer_answer(part, relay.name, relay_port, self.offloader.clock(), time.time(), peer_ip) or line
        return line

    def _relay_port(self, command: Command, relay: Relay, ports: Reply) -> Endpoint | None:
        """The address and port that the reply to a U or L names."""
        if ports.endpoint is None and ports.port and (known := self.book.sibling_address(command) or self._only_address(relay)) is not None:
            # A bare port, or 0.0.0.0 for a further media line (rtpengine): the SIP server keeps the session's address.
            return Endpoint(known, ports.port)
        return ports.endpoint

    @staticmethod
    def _only_address(relay: Relay) -> bytes | None:
        addresses = {m.addr for m in relay.media}
        return addresses.pop() if len(addresses) == 1 else None

    async def _query(self, command: Command, relay: Relay | None, body: bytes, peer_ip: str | None) -> bytes | None:
        reply = await self._somewhere(command, relay, body, peer_ip)
        found = self.book.find(command)
        if reply is None or found is None:
            return reply
        line, swapped = found
        first = Side.CALLEE if swapped else Side.CALLER
        self._keep_counts(line, first, command, reply)
        with contextlib.suppress(DataPlaneUnavailable):  # then the counts at hand are added
            await self.offloader.read_live([line])
        counts = {}
        for side in SIDES:
            stream = line.stream(side, Component.RTP)
            counts[side] = stream.past.packets + (stream.live.packets if stream.live else 0)
        added = {"npkts_ina": counts[first], "npkts_ino": counts[first.other], "nrelayed": counts[Side.CALLER] + counts[Side.CALLEE]}
        try:
            return codec.rewrite_query_reply(command, reply, added)
        except CodecError as error:
            log.warning("relay %s: %s", line.call.relay, error)
            return reply

    @staticmethod
    def _keep_counts(line: MediaLine, first: Side, command: Command, reply: bytes) -> None:
        """A SIP server asks for the counts just before it hangs up: what the relay itself relayed belongs into the call's record."""
        try:
            values = dict(codec.parse_query_reply(command, reply))
        except CodecError:
            return
        if "npkts_ina" in values and "npkts_ino" in values:
            line.relay_counts = {first: int(values["npkts_ina"]), first.other: int(values["npkts_ino"])}
