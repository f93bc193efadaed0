"""Receivers' feedback (Scallop, sections 5.3 to 5.5): whose estimate a sender hears, and what each receiver gets of it.

A sender obeys the last estimate it hears (browsers do), so it must hear of one downlink only: the best, because layers are
dropped for the others. And a receiver gets the highest decode target that its own estimate carries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shunt.config.selector import Estimate, SelectDecodeTarget

SMOOTHING = 0.3  # weight of a new estimate in the EWMA
LEAD = 1.1  # another downlink has to be better by this much
HOLD_S = 2.0  # and for this long
STALE_S = 5.0  # a receiver not heard of for so long is out (browsers send an estimate every 0.2 s)


@dataclass(slots=True)
class _Downlink:
    average: float
    heard: float


class BestDownlink:
    """For one sender: which receiver's REMB goes on to it.

    Each receiver's estimates are smoothed (EWMA). The chosen one stays until another's average has been LEAD times its own
    for HOLD_S seconds without a break, until it leaves, or until nothing has been heard of it for STALE_S seconds. Times
    are seconds of any clock that never goes back; estimates bit/s.
    """

    def __init__(self, smoothing: float = SMOOTHING, lead: float = LEAD, hold: float = HOLD_S, stale: float = STALE_S) -> None:
        self._smoothing, self._lead, self._hold, self._stale = smoothing, lead, hold, stale
        self._downlinks: dict[str, _Downlink] = {}
        self._leading: tuple[str, float] | None = None  # who is better than the chosen one, and since when
        self.chosen: str | None = None

    def estimate(self, receiver: str, bitrate: float, now: float) -> bool:
        """Take a receiver's estimate in; whether it goes on to the sender."""
        downlink = self._downlinks.get(receiver)
        if downlink is None or now - downlink.heard > self._stale:
            self._downlinks[receiver] = _Downlink(bitrate, now)
        else:
            downlink.average += self._smoothing * (bitrate - downlink.average)
            downlink.heard = now
        self._choose(now)
        return receiver == self.chosen

    def leave(self, receiver: str, now: float) -> None:
        """A receiver is gone: at once, not when its estimates are stale."""
        self._downlinks.pop(receiver, None)
        if self.chosen == receiver:
            self.chosen = self._leading = None
            self._choose(now)

    def average(self, receiver: str) -> float | None:
        """A receiver's smoothed estimate, bit/s."""
        downlink = self._downlinks.get(receiver)
        return downlink.average if downlink else None

    def _choose(self, now: float) -> None:
        for receiver in [name for name, downlink in self._downlinks.items() if now - downlink.heard > self._stale]:
            del self._downlinks[receiver]
        if not self._downlinks:
            self.chosen = self._leading = None
            return
        best = max(self._downlinks, key=lambda name: self._downlinks[name].average)
        current = self._downlinks.get(self.chosen) if self.chosen is not None else None
        if current is None:
            self.chosen, self._leading = best, None
        elif best == self.chosen or self._downlinks[best].average < self._lead * current.average:
            self._leading = None
        elif self._leading is None or self._leading[0] != best:
            self._leading = best, now
        elif now - self._leading[1] >= self._hold:
            self.chosen, self._leading = best, None


FEW_LOST, MANY_LOST = 0.02, 0.1  # shares of packets
CLIMB = 1.05  # by so much the bound rises with a report of few losses
BEYOND = 1.5  # no estimate says more of a downlink than so many times what is sent


@dataclass(slots=True)
class LossBound:
    """What a receiver's reports of loss leave of its downlink (draft-ietf-rmcat-gcc-02, section 6), bit/s; None: nothing speaks for a bound.

    A receiver's own estimate (REMB) is of delay alone: loss is for the sender of a call to judge, and in a conference for us.
    """

    bitrate: float | None = None

    def report(self, lost: float, sent: float) -> float | None:
        """Take a report in. lost: share of the packets, 0 to 1; sent: bit/s that go to this receiver now. The bound that holds now.

        It goes when it has climbed beyond anything that an estimate says of what is sent.
        """
        if lost > MANY_LOST:
            self.bitrate = (sent if self.bitrate is None else min(self.bitrate, sent)) * (1 - lost / 2)
        elif lost < FEW_LOST and self.bitrate is not None:
            self.bitrate *= CLIMB
            if self.bitrate > BEYOND * sent:
                self.bitrate = None
        return self.bitrate


GROWN = 1.1  # by so much more is sent to a receiver: its estimate, made of less, has to climb
_RISE, _FALL = 1.05, 0.95  # an estimate that climbs, or falls, by so much


@dataclass(slots=True)
class Climb:
    """Whether a receiver's estimate is below what is sent because it only has to climb yet. Bit/s, and seconds of any clock that never goes back.

    An estimate ends at about 1.5 times what arrived, and climbs some 8 % a second. So when more is sent, because somebody has joined
    or is sent in a higher quality, it says nothing against that for as long as it climbs, or GRACE_S seconds without climbing. One
    that falls does, until more is sent again.
    """

    sent: float = 0.0  # the most that was sent in the last RETRY_S seconds
    sent_at: float = float("-inf")
    base: float = 0.0  # the estimate that it must not fall below
    since: float = float("-inf")  # when it began to climb, or climbed last
    peak: float = 0.0  # the highest estimate of the last STALE_S seconds: what is sent is measured later than it arrives
    peak_at: float = float("-inf")
    first: bool = True  # it climbs from nothing, as that of a receiver does who has just come

    def carries(self, bitrate: float, sent: float, now: float) -> float:
        """What the receiver's downlink is taken to carry, from its estimate and from what is sent to it."""
        if bitrate >= self.peak or now - self.peak_at > STALE_S:
            self.peak, self.peak_at = bitrate, now
        if sent > GROWN * self.sent:
            self.first = not self.sent
            self.base, self.since = self.peak, now
        if sent >= self.sent or now - self.sent_at > RETRY_S:
            self.sent, self.sent_at = sent, now
        if bitrate >= _RISE * self.base:
            self.base, self.since = bitrate, now
        elif bitrate < _FALL * self.base:
            self.since = float("-inf")
        return max(bitrate, 1.001 * sent) if now - self.since < GRACE_S else bitrate


UP_ROOM = 1.1  # a higher target has to fit so many times,
UP_AFTER_S = 3.0  # and for so long: an estimate that climbs may fall again
BOUND = 1.3  # browsers' estimates end at about 1.5 times what arrives: from here on an estimate says no more than that,
TRY_AFTER_S = 8.0  # and after so long the next target is tried all the same,
RETRY_S = 30.0  # but not where it was sent in vain a short while ago
GRACE_S = 15.0  # a new target's estimate may take so long to climb to its rate, as long as it does not fall


def select_decode_target(current: int, history: Sequence[Estimate], estimate: Estimate) -> int:
    """The default: down at once to what fits, up by one when the next target has fitted for a while, or may well fit.

    Down: the present target needs more than the estimate; at once, unless the receiver is new to it and its estimate only
    has to climb yet. Up: the estimate has carried the next target for UP_AFTER_S seconds; or it has been as high as it can
    get with what is sent for TRY_AFTER_S seconds, which is how a receiver that gets little ever gets more.
    """
    rates = estimate.rates
    current = min(current, len(rates) - 1)
    if rates[current] > estimate.bitrate:
        since, before = estimate, None
        for past in reversed(history):
            if past.target != current:
                before = past
                break
            since = past
        new = estimate.time - since.time < GRACE_S and (before is None or before.target < current)
        if new and estimate.bitrate >= 0.95 * (before or since).bitrate:
            return current
        return max((target for target in range(current) if rates[target] <= estimate.bitrate), default=0)
    above = current + 1
    if above == len(rates):
        return current

    def held(seconds: float, holds: Callable[[Estimate], bool]) -> bool:
        since = estimate.time - seconds
        return bool(history) and history[0].time <= since and all(holds(past) for past in history if past.time > since) and holds(estimate)

    if held(UP_AFTER_S, lambda past: past.bitrate >= UP_ROOM * (past.rates[above] if above < len(past.rates) else rates[above])):
        return above
    in_vain = any(past.target >= above and past.time > estimate.time - RETRY_S for past in history)
    # An estimate of when the sender had fewer targets is one of the highest that there was.
    if not in_vain and held(TRY_AFTER_S, lambda past: past.target == current and past.bitrate >= BOUND * past.rates[min(current, len(past.rates) - 1)]):
        return above
    return current


class Change(NamedTuple):
    """A receiver's decode target changes. key_frame: the sender is to be asked for one (PLI)."""

    target: int
    key_frame: bool


@dataclass(slots=True)
class Downlink:
    """One receiver of one sender: its decode target, from its estimates.

    keep: seconds of history handed to the function. needs_key_frame(old, new): whether a move up has to begin with a key frame;
    by default it has, because a decoder that lacks the frames below cannot use the layer's next one. Streams whose higher
    layers depend on nothing that was dropped (the template's dti is "S" for the new target) can do without.
    """

    target: int
    select: SelectDecodeTarget = select_decode_target
    keep: float = 60.0
    needs_key_frame: Callable[[int, int], bool] = lambda old, new: new > old
    _history: deque[Estimate] = field(default_factory=deque)

    def estimate(self, now: float, bitrate: float, rates: Sequence[float]) -> Change | None:
        """Take an estimate in; the change it makes, if any.

        rates: bit/s that each decode target needs, lowest first (all that lies below included). A function that fails or
        answers what is no target changes nothing: its error is the caller's to report. Raises what the function raises.
        """
        new = Estimate(now, bitrate, tuple(rates), self.target)
        target = self.select(self.target, tuple(self._history), new)
        self._history.append(new)
        while self._history[0].time < now - self.keep:
            self._history.popleft()
        if not isinstance(target, int) or not 0 <= target < len(new.rates):
            raise ValueError(f"decode target {target!r} is not in 0..{len(new.rates) - 1}")
        if target == self.target:
            return None
        old, self.target = self.target, target
        return Change(target, target > old and self.needs_key_frame(old, target))


class KeyFrames:
    """For one sender: key-frame requests of many receivers made one. least: seconds between two that go on."""

    def __init__(self, least: float = 0.5) -> None:
        self._least = least
        self._asked: float | None = None
        self._due = False

    def wanted(self, now: float) -> bool:
        """Somebody needs a key frame; whether the request goes on now. One that does not is due later: ask due()."""
        if self._asked is None or now - self._asked >= self._least:
            self._asked, self._due = now, False
            return True
        self._due = True
        return False

    def due(self, now: float) -> bool:
        """Whether a request that was held back goes on now."""
        return self._due and self.wanted(now)

    def seen(self) -> None:
        """A key frame came: what was held back has been answered."""
        self._due = False


def split_estimate(bitrate: float, rates: Mapping[str, float]) -> dict[str, float]:
    """A receiver's estimate about several senders at once, as its share for each: by what each is sent now (bit/s).

    Where receivers take senders over one association, a REMB is about all of them, and no sender may have it whole. A sender whose
    rate is not known (0) takes nothing from the others, because the estimate was made without it: its own share is that of
    an average sender, besides.
    """
    sending = [rate for rate in rates.values() if rate > 0]
    typical = sum(sending) / len(sending) if sending else 1.0
    total = sum(sending) or float(len(rates))
    return {sender: bitrate * (rate if rate > 0 else typical) / total for sender, rate in rates.items()}
