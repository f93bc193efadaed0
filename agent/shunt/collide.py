"""Streams whose 5-tuples have one hash in a hashed build: while more than one is in use, all of them stay on the relay.

The chip cannot tell them apart: an entry of one takes the packets of the others. So an entry goes out as
soon as it is known of another stream that its packets have the same hash, be it from signalling or from a
learn notice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shunt.calls import reasons
from shunt.calls.model import MediaLine, State, Stream
from shunt.net import FiveTuple

if TYPE_CHECKING:
    from shunt.offload import Offloader

log = logging.getLogger(__name__)

RETRY_AFTER = 30.0


class CollisionWatch:
    """Tells the relay table which 5-tuples are in use without an entry, and takes out entries that would claim their packets."""

    def __init__(self, offloader: Offloader) -> None:
        self.offloader = offloader
        if offloader.table is not None:
            offloader.table.on_collision = self.collided

    def expect(self, lines: Iterable[MediaLine]) -> None:
        """Announce where packets of these lines come from, as far as it is known, where no entry is in. To be repeated every few seconds."""
        table = self.offloader.table
        if table is None or not table.stores_hashes:
            return
        for line in lines:
            if line.released is not None:
                continue
            for stream in line.streams:
                key = _source(line, stream) if stream.installed is None else None
                if key is not None:
                    table.expect(key)

    def collided(self, key: FiveTuple, holder: FiveTuple) -> None:
        """Packets of `key` have the hash of `holder`, whose entry is in."""
        slot, stream = self.offloader.book.slot(holder.dst), self.offloader.entries.get(holder)
        if slot is None or stream is None:
            log.error("packets of %s may leave by the entry of %s, which has the same hash and belongs to no call", key, holder)
            return
        self.offloader.spawn(self._take_out(slot.line, stream, key, holder))

    async def _take_out(self, line: MediaLine, stream: Stream, key: FiveTuple, holder: FiveTuple) -> None:
        async with line.lock:
            if stream.installed is None or stream.installed.key != holder:
                return
            log.warning("%s: %s comes off the data plane: %s has the same hash there", line.call.call_id, holder, key)
            await self.offloader.take_out(line, stream, RETRY_AFTER, State.LEARNING, reasons.HASH_COLLISION, f"{key} has the same hash in the data plane")


def _source(line: MediaLine, stream: Stream) -> FiveTuple | None:
    """The 5-tuple of a stream's packets, learned or as signalling has it."""
    leg = line.legs[stream.sender]
    arrival = leg.relay_port(stream.component)
    source = leg.latch(stream.component).learned or leg.reachable_at(stream.component)
    if arrival is None or source is None or source.version != arrival.version:
        return None
    return FiveTuple(source, arrival)
