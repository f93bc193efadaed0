"""What has to be done again and again: keeping relay sessions alive, raising media time-outs, forgetting dead sessions.

A relay that sees no media drops the session after its time-out, and the SIP server then hangs up both
parties (facts/rtpproxy-protocol section 7): so the agent owns the time-out of offloaded media lines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from shunt.calls import reasons
from shunt.calls.model import MediaLine, Side, Stream
from shunt.control.relays import Relay, RelayPool
from shunt.control.upstream import RelayError
from shunt.dialogs import BYE_GRACE
from shunt.events.bus import NOTE
from shunt.offload import ORPHAN_IDLE_MS, Offloader
from shunt.rtpproxy import codec
from shunt.rtpproxy.codec import CodecError
from shunt.tables.relay_table import DataPlaneUnavailable
from shunt.tasks import keep_running

log = logging.getLogger(__name__)

RAISED_TTL = 3600
AUDIT_AFTER = 15.0  # seconds; longer than any write may take
_REFRESH = RAISED_TTL / 3
_ENDED_IDLE_MS = 1000
_FEW_FORGOTTEN = 200  # to be looked at every second
_SLICE = 40  # calls looked at before commands have their turn
_FEW = 2  # media lines begun with before commands have their turn
_PAUSE, _SPREAD = 0.002, 0.5  # seconds between those, and over which many are spread
_AT_ONCE = 64  # commands to one relay in flight: its control thread also serves the SIP server

Notify = Callable[[str, str, str | None], Awaitable[None]]


class Upkeep:
    """The agent's clockwork; `tick` once a second."""

    def __init__(self, pool: RelayPool, offloader: Offloader, notify: Notify) -> None:
        self.pool = pool
        self.offloader = offloader
        self.book = offloader.book
        self.notify = notify
        self.timeouts_raised = 0
        self._swept_at = 0.0
        self._in_flight = asyncio.Semaphore(_AT_ONCE)
        self._unsure = 0
        self._audit_at: float | None = None
        self._forgotten: list[tuple[MediaLine, int]] = []  # with the milliseconds without a packet after which they are over

    async def run(self) -> None:
        """Tick for ever, and poll each relay beside it, so that a dead one holds nothing up."""
        await asyncio.gather(
            keep_running("upkeep", partial(self._every_second, self.tick)),
            *(keep_running(f"polls of relay {relay.name}", partial(self._every_second, relay.poll)) for relay in self.pool.relays),
        )

    @staticmethod
    async def _every_second(work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await work()
            await asyncio.sleep(1.0)

    async def tick(self) -> None:
        now = self.offloader.clock()
        shortest = min((relay.ttl for relay in self.pool.relays), default=60.0)
        sweeping = now - self._swept_at >= min(5.0, shortest / 4)
        due: list[MediaLine] = []
        refused: list[MediaLine] = []
        over: list[MediaLine] = []
        calls = self.book.calls()
        for first in range(0, len(calls), _SLICE):
            if first:
                await asyncio.sleep(0)
            lines = [line for call in calls[first : first + _SLICE] for line in call.lines if line.released is None]
            due += [line for line in lines if self._is_due(line, now)]
            refused += [line for line in lines if line.resume_at is not None and now >= line.resume_at]
            if sweeping:
                over += [line for line in lines if self._may_be_over(line, now)]
                self.offloader.collisions.expect(lines)
        await self._each(due, lambda line: self._keep_alive(line, now))
        await self.offloader.sweep_doomed()
        self._audit(now)
        await self._each(refused, self._after_bye)
        if sweeping or len(self._forgotten) <= _FEW_FORGOTTEN:
            await self._sweep_forgotten()
        if sweeping:
            self._swept_at = now
            await self.offloader.read_live(over)
            await self._each(over, lambda line: self._time_out(line, now))
            await self.offloader.sweep_orphans()

    async def _each(self, lines: list[MediaLine], work: Callable[[MediaLine], Awaitable[None]]) -> None:
        """Do this for all lines, a few after the other: neither commands here nor those of the SIP server at the relay stand behind a crowd."""
        under_way = []
        pause = min(_PAUSE, _SPREAD * _FEW / max(1, len(lines)))
        for number, line in enumerate(lines):
            if number and number % _FEW == 0:
                await asyncio.sleep(pause)
            under_way.append(asyncio.ensure_future(work(line)))
        await asyncio.gather(*under_way)

    async def _after_bye(self, line: MediaLine) -> None:
        """No delete followed a BYE. Either the SIP server gave it to the relay itself, while it thought this agent dead, or the call goes on."""
        relay = self._relay(line)
        if relay is not None and await self._relay_packets(line, relay) == "gone":
            await self.offloader.release([line], reasons.RELEASED)
            return
        log.info("%s: no delete followed the BYE; learning again", line.call.call_id, extra={"call_id": line.call.call_id})
        now, said = self.offloader.clock(), line.resume_at - BYE_GRACE
        if line.last_activity <= said:
            # Nothing was heard since: no entries until something is, and the time-out counts from the BYE.
            line.last_activity = said
            for leg in line.legs.values():
                leg.rtp.forget(now, quarantine=False)
                leg.rtcp.forget(now, quarantine=False)
                leg.latched_at = None
        self.offloader.resume(line)

    def _audit(self, now: float) -> None:
        """Compare the whole table some time after writes had to be repeated: a lost answer may have been a late one."""
        table = self.offloader.table
        if table is None:
            return
        unsure = table.counters.retries + table.counters.failures
        if unsure != self._unsure:
            self._unsure, self._audit_at = unsure, now + AUDIT_AFTER
        elif self._audit_at is not None and now >= self._audit_at and table.connected:
            self._audit_at = None
            self.offloader.spawn(self.offloader.reconcile())

    def _may_be_over(self, line: MediaLine, now: float) -> bool:
        """Whether nothing was heard of a line for long; the data plane says which entries are idle, so live calls cost nothing."""
        relay = self._relay(line)
        if relay is None or now - line.last_activity < relay.ttl:
            return False
        return all(stream.installed is None or stream.idle_since is not None for stream in line.streams)

    def _relay(self, line: MediaLine) -> Relay | None:
        relay = self.pool.by_name.get(line.call.relay)
        return relay if relay is not None and relay.alive and relay.keepalive is not None else None

    async def _ask(self, relay: Relay, body: bytes) -> bytes | None:
        async with self._in_flight:
            try:
                return await relay.request(body)
            except RelayError as error:
                log.warning("relay %s gave no answer to %.60r: %s", relay.name, body, error)
                return None

    # -- keeping the session ------------------------------------------------------------------------

    def _is_due(self, line: MediaLine, now: float) -> bool:
        kept = line.kept_alive_at
        if not line.offloaded:
            return kept is not None
        if kept is None:
            return True
        relay = self.pool.by_name.get(line.call.relay)
        return relay is not None and now - kept >= (_REFRESH if relay.keepalive != "lookup" else relay.ttl / 3)

    async def _keep_alive(self, line: MediaLine, now: float) -> None:
        relay = self._relay(line)
        if relay is None or line.released is not None:
            return
        try:
            if line.offloaded:
                every = _REFRESH if relay.keepalive != "lookup" else relay.ttl / 3
                if line.kept_alive_at is None or now - line.kept_alive_at >= every:
                    line.kept_alive_at = now
                    line.ttl_raised = relay.keepalive != "lookup"
                    self.offloader.line_changed(line)
                    await self._ask(relay, self._keepalive_command(line, relay, RAISED_TTL))
            elif line.kept_alive_at is not None:
                line.kept_alive_at = None
                if line.ttl_raised:
                    line.ttl_raised = False
                    await self._ask(relay, self._keepalive_command(line, relay, int(relay.ttl)))
        except CodecError as error:
            log.error("%s: no keep-alive can be written for it: %s", line.call.call_id, error, extra={"call_id": line.call.call_id})

    def _keepalive_command(self, line: MediaLine, relay: Relay, ttl: int) -> bytes:
        if relay.keepalive == "ttl-subcommand":
            return codec.build_query(line.call.call_id, line.tag, line.other_tag, media=line.media, ttl=ttl)
        callee = line.legs[Side.CALLEE]
        # Never U: one without notify arguments cancels the time-out notification (facts section 9).
        return codec.build_lookup(
            line.call.call_id, line.tag, line.other_tag, media=line.media, modifiers=callee.keepalive,
            ttl=ttl if relay.keepalive == "ttl-modifier" else None,
        )

    async def verify(self, lines: list[MediaLine]) -> None:
        """After a restart: let go of the lines whose session ended while nobody was listening.

        Never of one whose entries carry media: a relay that has died meanwhile forgot calls that go on in the data plane.
        """
        for relay in self.pool.relays:
            await relay.poll()
        gone: list[MediaLine] = []
        known_since: dict[str, float] = {}
        for line in lines:
            relay = self._relay(line)
            said = None if relay is None else await self._relay_packets(line, relay)
            if said == "gone":
                gone.append(line)
            elif said is not None:
                known_since[line.call.relay] = min(line.created, known_since.get(line.call.relay, line.created))
        await self.offloader.release([line for line in gone if not line.offloaded], reasons.RELAY_TIMEOUT)
        for line in gone:
            if line.offloaded:
                # A relay that remembers an older session has not died since: this one was ended.
                ended = known_since.get(line.call.relay, line.created) < line.created
                self._forgotten.append((line, _ENDED_IDLE_MS if ended else ORPHAN_IDLE_MS))

    async def _sweep_forgotten(self) -> None:
        table = self.offloader.table
        self._forgotten = [(line, patience) for line, patience in self._forgotten if line.released is None]
        if not self._forgotten or table is None or not table.connected:
            return
        try:
            await self.offloader.read_live([line for line, _ in self._forgotten])
        except DataPlaneUnavailable:
            return
        over = []
        for line, patience in self._forgotten:
            if all(stream.installed is None or _is_idle(stream, patience) for stream in line.streams):
                relay = self._relay(line)
                if relay is not None and await self._relay_packets(line, relay) == "gone":  # a re-INVITE may have made it known again
                    over.append(line)
        await self.offloader.release(over, reasons.RELAY_TIMEOUT)

    # -- media time-out -----------------------------------------------------------------------------

    async def _time_out(self, line: MediaLine, now: float) -> None:
        relay = self._relay(line)
        if relay is None or line.released is not None:
            return
        for stream in line.streams:
            if stream.installed is None or stream.idle_since is None:
                continue
            if stream.live is not None and stream.live.idle_ms is not None:
                idle = stream.live.idle_ms / 1000
                if idle * 1000 < stream.installed.ttl_ms:
                    # It woke up again; the data plane will report when it falls idle the next time.
                    stream.idle_since = None
            else:
                idle = now - stream.idle_since
            if idle < relay.ttl:
                return
        relayed = await self._relay_packets(line, relay)
        if relayed == "gone":
            await self.offloader.release([line], reasons.RELAY_TIMEOUT)
            return
        if relayed is not None and relayed != line.relay_packets:
            line.relay_packets = relayed
            line.last_activity = now
            return
        if line.offloaded or line.ttl_raised:
            await self._raise(line, relay)

    async def _relay_packets(self, line: MediaLine, relay: Relay) -> int | str | None:
        """Packets the relay itself counted for the line; "gone" when it does not know the session; None: cannot tell."""
        if not relay.may_query:
            return None
        command = codec.build_query(line.call.call_id, line.tag, line.other_tag, media=line.media)
        reply = await self._ask(relay, command)
        if reply is None:
            return None
        if codec.parse_reply(reply).error == codec.E_SESSION_NOT_FOUND:
            return "gone"
        try:
            values = dict(codec.parse_query_reply(codec.parse_command(command), reply))
        except CodecError:
            return None
        return int(values.get("npkts_ina", 0)) + int(values.get("npkts_ino", 0))

    async def _raise(self, line: MediaLine, relay: Relay) -> None:
        """No media anywhere for the relay's time-out: end the session as the relay would have."""
        log.warning("%s media %s: no packet for %.0f s: media time-out", line.call.call_id, line.media, relay.ttl, extra={"call_id": line.call.call_id})
        self.timeouts_raised += 1
        self.offloader.events.emit(NOTE, line.call.call_id, "media-timeout", media=line.media, seconds=relay.ttl)
        await self.offloader.release([line], reasons.MEDIA_TIMEOUT)
        try:
            await self._ask(relay, codec.build_delete(line.call.call_id, line.tag, line.other_tag, media=line.media))
        except CodecError as error:
            log.error("%s: no delete can be written for it: %s", line.call.call_id, error, extra={"call_id": line.call.call_id})
        if line.notify_socket and line.notify_tag:
            await self.notify(line.notify_socket, line.notify_tag, line.peer_ip)


def _is_idle(stream: Stream, patience_ms: int) -> bool:
    """Whether no packet has met a stream's entry for so long; a switch tells no times, only that an entry has fallen idle."""
    if stream.live is None or stream.live.idle_ms is None:
        return stream.idle_since is not None
    return stream.live.idle_ms > patience_ms
