"""What ought to be in the relay table for a media line, and why not where nothing ought to: a pure function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shunt.calls import reasons
from shunt.calls.model import Component, MediaLine, State, Stream
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import MediaRange, RelayEntry


@dataclass(frozen=True, slots=True)
class Policy:
    """one_way_after: seconds after which a stream whose receiver is silent goes to the signalled address; idle_ms: time-out of entries; media: where the data plane listens (empty: everywhere)."""

    one_way_after: float = 1.0
    idle_ms: int = 30_000
    enabled: bool = True
    media: tuple[MediaRange, ...] = ()

    def listens_at(self, port: Endpoint) -> bool:
        """Whether packets to this relay port, with no entry, are noticed."""
        return not self.media or any(port in media for media in self.media)


class Wanted(NamedTuple):
    """The entry a stream should have (None: stay on the relay), with state and reason."""

    entry: RelayEntry | None
    state: State
    reason: str


def plan_line(line: MediaLine, now: float, policy: Policy) -> list[Wanted]:
    """plan_stream() for each stream of a line, in their order."""
    stays = _stays(line, policy)
    return [stays or _plan_by_itself(line, stream, now, policy) for stream in line.streams]


def plan_stream(line: MediaLine, stream: Stream, now: float, policy: Policy) -> Wanted:
    """Decide for one stream. now: monotonic seconds."""
    return _stays(line, policy) or _plan_by_itself(line, stream, now, policy)


def _stays(line: MediaLine, policy: Policy) -> Wanted | None:
    """What keeps a line on the relay as a whole."""
    if line.released is not None:
        return Wanted(None, State.RELEASED, line.released)
    if not policy.enabled:
        return Wanted(None, State.ALLOCATED, reasons.NO_DATA_PLANE)
    if line.suspended is not None:
        return Wanted(None, State.SUSPENDED, line.suspended)
    if line.blocks:
        return Wanted(None, State.SUSPENDED, sorted(line.blocks)[0])
    if not line.answered:
        return Wanted(None, State.ALLOCATED, reasons.WAITING_FOR_ANSWER)
    return None


def _plan_by_itself(line: MediaLine, stream: Stream, now: float, policy: Policy) -> Wanted:
    sender, receiver = line.legs[stream.sender], line.legs[stream.sender.other]
    if receiver.held:
        return Wanted(None, State.SUSPENDED, reasons.ON_HOLD)
    latch = sender.latch(stream.component)
    if latch.contested:
        return Wanted(None, State.SUSPENDED, reasons.CONTESTED)
    arrival = sender.relay_port(stream.component)
    if latch.learned is None:
        if arrival is not None and not policy.listens_at(arrival):
            return Wanted(None, State.SUSPENDED, reasons.OUTSIDE_MEDIA)
        heard = sender.last_heard.get(stream.component)
        return Wanted(None, State.LEARNING, reasons.WAITING_FOR_MEDIA if heard is None else reasons.VERIFYING_SOURCE)
    target = receiver.reachable_at(stream.component)
    source = receiver.relay_port(stream.component)
    if target is None or source is None or arrival is None:
        return Wanted(None, State.LEARNING, reasons.WAITING_FOR_OTHER_PARTY)
    reason = reasons.OFFLOADED
    if receiver.rtp.learned is None:
        if sender.latched_at is None or now - sender.latched_at < policy.one_way_after:
            return Wanted(None, State.LEARNING, reasons.WAITING_FOR_OTHER_PARTY)
        reason = reasons.ONE_WAY
    entry = RelayEntry(FiveTuple(latch.learned, arrival), source, target, policy.idle_ms)
    return Wanted(entry, State.OFFLOADED, reason)
