"""What receivers report of their downlinks, and what follows: how much each gets of whom, and which of them each sender hears.

Estimates (REMB) and reports (RR, and the report blocks of an SR) are taken apart by the senders that they are about. Of
all receivers a sender hears one, the best downlink; what the others cannot take is left out for them in the data plane.
It does no I/O: what goes on to senders is handed back, and what is to be done is asked of Hands.

TWCC is not passed: its numbers count all packets of one transport, and a receiver's transport carries several senders.
Answers to SIP offers do not take it up, and browsers then send REMB.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shunt.conference.control.model import KINDS
from shunt.conference.feedback import BEYOND, STALE_S, BestDownlink, Climb, Downlink, LossBound, SelectDecodeTarget, select_decode_target, split_estimate
from shunt.conference.rtcp import Kind, Remb, Report, build_remb, build_rr, remb, reports, walk

log = logging.getLogger(__name__)

OWN_SSRC = 1
"""In whose name the agent asks for key frames, and passes reports on."""
_MOST_BLOCKS = 31
_STALE_AUDIO_S = 4 * STALE_S  # audio has reports alone, some seconds apart


class Hands(Protocol):
    """What is known of the streams, and what can be done about them."""

    def rates(self, conference: str, sender: str, kind: str) -> tuple[float, ...]:
        """bit/s of each decode target of a sender's medium, lowest first, all that lies below included; empty: not known yet."""

    def target(self, conference: str, sender: str, receiver: str) -> int | None:
        """The decode target that a receiver is limited to; None: it gets all."""

    def set_target(self, conference: str, sender: str, receiver: str, target: int) -> None: ...

    def needs_key_frame(self, conference: str, sender: str, kind: str) -> bool:
        """Whether a receiver can take up higher layers of this medium with a key frame only."""

    def want_key_frame(self, conference: str, sender: str, kind: str) -> None: ...

    def tell(self, conference: str, what: str, **facts: Any) -> None:
        """Something happened that an operator may want to know."""


@dataclass(slots=True)
class _Pair:
    """One receiver of one sender's medium. estimate: bit/s, its share of the receiver's downlink, where one is known; bound: what losses leave of that."""

    downlink: Downlink
    targets: int = 1
    estimate: float | None = None
    bound: float | None = None
    heard: float = 0.0


@dataclass(slots=True)
class _Receiver:
    """What one receiver says on one medium's transport: its last REMB (bit/s and when), and what its losses leave."""

    bitrate: float = 0.0
    heard: float = float("-inf")
    bound: LossBound = field(default_factory=LossBound)
    climb: Climb = field(default_factory=Climb)
    named: frozenset[str] = frozenset()  # the senders that its last REMB was about


Place = tuple[str, str, str]  # conference, participant, medium


class Adaptation:
    """The feedback of all conferences of an agent."""

    def __init__(self, hands: Hands, select: SelectDecodeTarget = select_decode_target, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds that never go back."""
        self._hands, self._select, self._clock = hands, select, clock
        self._pairs: dict[tuple[Place, str], _Pair] = {}  # by sender's place and receiver
        self._receivers: dict[Place, _Receiver] = {}
        self._best: dict[Place, BestDownlink] = {}
        self._failed: set[str] = set()
        self._active: dict[str, float] = {}
        self.counts = {"estimates": 0, "reports": 0, "twcc_refused": 0, "targets_down": 0, "targets_up": 0, "downlinks_changed": 0}

    def active(self) -> list[str]:
        """Conferences of which something was heard lately: those whose rates are worth measuring."""
        since = self._clock() - 2 * STALE_S
        self._active = {name: heard for name, heard in self._active.items() if heard > since}
        return list(self._active)

    def heard(self, conference: str, receiver: str, kind: str, streams: Mapping[int, str], data: bytes, *, transport: str = "") -> dict[str, bytes]:
        """Take a receiver's compound in. streams: SSRC -> sender, of what it gets on this transport; transport: which it is, where
        a medium has several; what goes on, by sender. Raises MediaError."""
        estimate: Remb | None = None
        blocks: dict[str, list[Report]] = {}
        for item in walk(data):
            if item.kind is Kind.REMB:
                estimate = remb(data, item)
            elif item.kind in Kind.RR | Kind.SR:
                for block in reports(data, item):
                    if block.ssrc in streams:
                        blocks.setdefault(streams[block.ssrc], []).append(block)
            elif item.kind is Kind.TWCC:
                self.counts["twcc_refused"] += 1
        named = {streams[ssrc] for ssrc in estimate.ssrcs if ssrc in streams} if estimate is not None else set()
        if estimate is not None and not named:
            named = set(streams.values())  # a transport's estimate that names nothing that is sent is about all of it
        if not named and not blocks:
            return {}
        now = self._active[conference] = self._clock()
        mine = self._receivers.setdefault((conference, receiver, transport or kind), _Receiver())
        sent = {sender: self._sent((conference, sender, kind), receiver) for sender in streams.values()}
        total = sum(sent.values())
        if blocks:
            self.counts["reports"] += 1
            lost = [block.fraction_lost / 256 for those in blocks.values() for block in those]
            if total:
                mine.bound.report(sum(lost) / len(lost), total)
        if estimate is not None and named:
            self.counts["estimates"] += 1
            mine.bitrate, mine.heard, mine.named = float(estimate.bitrate), now, frozenset(named)
        judged = {sender: sent[sender] for sender in mine.named & set(sent) or set(sent)}
        bitrate = self._downlink(mine, sum(judged.values()), now)
        shares = split_estimate(bitrate, judged) if bitrate is not None else {}
        # A sender hears of a first estimate as it is, as in a call of two. Later ones do not make it send less because others have joined.
        told = split_estimate(min(mine.bitrate, bitrate), judged) if estimate is not None and mine.climb.first and bitrate is not None else shares
        onward = {}
        for sender in named | set(blocks):
            chosen = self._judge((conference, sender, kind), receiver, shares.get(sender), now)
            self._pairs[(conference, sender, kind), receiver].bound = mine.bound.bitrate
            if chosen:
                onward[sender] = build_rr(OWN_SSRC, blocks.get(sender, [])[:_MOST_BLOCKS])
                if sender in named:
                    onward[sender] += build_remb(OWN_SSRC, int(told[sender]), [ssrc for ssrc, whose in streams.items() if whose == sender])
        return onward

    def _sent(self, place: Place, receiver: str) -> float:
        """bit/s that a receiver gets of a sender's medium now; 0: not known."""
        rates = self._hands.rates(*place)
        pair = self._pairs.get((place, receiver))
        if not rates:
            return 0.0
        return rates[min(pair.downlink.target if pair is not None and pair.targets > 1 else len(rates) - 1, len(rates) - 1)]

    @staticmethod
    def _downlink(mine: _Receiver, total: float, now: float) -> float | None:
        """bit/s that a receiver's downlink has for a medium of these senders, of whom it gets `total` now; None: nothing is known."""
        if now - mine.heard <= STALE_S:
            carried = mine.climb.carries(mine.bitrate, total, now)
            return carried if mine.bound.bitrate is None else min(carried, mine.bound.bitrate)
        if not total:
            return None
        return BEYOND * total if mine.bound.bitrate is None else mine.bound.bitrate

    def _judge(self, place: Place, receiver: str, share: float | None, now: float) -> bool:
        """What an estimate changes for a receiver of one sender; whether this receiver is whom the sender hears."""
        conference, sender, kind = place
        best = self._best.setdefault(place, BestDownlink(stale=_STALE_AUDIO_S if kind == KINDS[0] else STALE_S))
        pair = self._pairs.get((place, receiver))
        if pair is None:
            pair = self._pairs[place, receiver] = _Pair(Downlink(0, self._select))
        pair.heard = now
        if share is not None:
            pair.estimate = share
            self._adapt(place, receiver, pair, share, now)
        before = best.chosen
        # Of a medium whose rate is not known (audio) a sender hears one receiver all the same, whoever was first.
        chosen = best.estimate(receiver, pair.estimate or 1.0, now)
        if best.chosen != before:
            self.counts["downlinks_changed"] += 1
            self._hands.tell(conference, "downlink", sender=sender, medium=kind, receiver=best.chosen, before=before)
        return chosen

    def _adapt(self, place: Place, receiver: str, pair: _Pair, share: float, now: float) -> None:
        conference, sender, kind = place
        rates = self._hands.rates(*place)
        if len(rates) < 2:
            return
        limit = self._hands.target(conference, sender, receiver)
        in_force = len(rates) - 1 if limit is None else min(limit, len(rates) - 1)
        if pair.targets != len(rates):  # its layers have just become known, or are others now
            pair.targets, pair.downlink = len(rates), Downlink(in_force, self._select)
        pair.downlink.target = in_force  # an operator may have set another
        pair.downlink.needs_key_frame = lambda old, new: new > old and self._hands.needs_key_frame(conference, sender, kind)
        before = pair.downlink.target
        try:
            change = pair.downlink.estimate(now, share, rates)
            if change is not None:
                self._hands.set_target(conference, sender, receiver, change.target)
        except Exception as error:  # of the operator's own function, too
            pair.downlink.target = before
            if conference not in self._failed:
                self._failed.add(conference)
                log.exception("conference %s: no decode target could be chosen (conference.selector) or set for %s of %s, and it stays as it is", conference, receiver, sender)
                self._hands.tell(conference, "target-failed", detail=f"{type(error).__name__}: {error}")
            return
        self._failed.discard(conference)
        if change is None:
            return
        self.counts["targets_up" if change.target > before else "targets_down"] += 1
        if change.key_frame:
            self._hands.want_key_frame(conference, sender, kind)
        self._hands.tell(
            conference, "target", sender=sender, receiver=receiver, medium=kind, before=before, target=change.target, estimate=round(share), rates=[round(rate) for rate in rates]
        )

    # -- who is gone, and what is known ----------------------------------------------------------------------------

    def leave(self, conference: str, participant: str) -> None:
        """A participant is gone, as a sender and as a receiver."""
        now = self._clock()
        for place in [place for place in self._best if place[:2] == (conference, participant)]:
            del self._best[place]
        for place, best in self._best.items():
            if place[0] == conference:
                best.leave(participant, now)
        for place in [place for place in self._receivers if place[:2] == (conference, participant)]:
            del self._receivers[place]
        for key in [key for key in self._pairs if key[0][0] == conference and participant in (key[0][1], key[1])]:
            del self._pairs[key]

    def end(self, conference: str) -> None:
        """A conference is over; its participants have left."""
        self._active.pop(conference, None)
        self._failed.discard(conference)

    def view(self, conference: str) -> list[dict[str, Any]]:
        """What is known of each receiver of each sender that was heard of lately."""
        now = self._clock()
        found = []
        for (place, receiver), pair in self._pairs.items():
            if place[0] != conference or now - pair.heard > 2 * STALE_S:
                continue
            best = self._best.get(place)
            found.append({
                "sender": place[1], "receiver": receiver, "medium": place[2], "target": pair.downlink.target if pair.targets > 1 else None, "targets": pair.targets,
                "estimate": None if pair.estimate is None else round(pair.estimate), "loss_bound": None if pair.bound is None else round(pair.bound),
                "rates": [round(rate) for rate in self._hands.rates(*place)], "heard_by_sender": best is not None and best.chosen == receiver, "heard_s": round(now - pair.heard, 1),
            })  # fmt: skip
        return found
