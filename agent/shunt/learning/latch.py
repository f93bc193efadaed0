"""Guarded latching of one leg's media source: a pure decision over the packets that were noticed.

RTP Bleed and RTP Inject (CVE-2017-14114, CVE-2025-53399) attack exactly this step: a relay that takes
the first packet for the leg's lets anybody who sprays the port range steal or inject a stream. Here
a source that signalling vouches for is taken at once; any other has to show a run of packets of one
SSRC, over a guard time, with no rival.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shunt.net import Endpoint

_SEQ_MODULUS = 1 << 16


@dataclass(frozen=True, slots=True)
class LatchPolicy:
    """When to believe a source. Times are seconds.

    packets: how many noticed packets of one SSRC an unvouched source must show;
    guard: over how long at least, without a rival; rival_packets: how many consistent packets make
    another source a rival (a spray touches each port too rarely); rival_window: how long a rival
    counts after its last packet; contest_hold: how long a contested leg stays on the relay after the
    last rival; quarantine: how long the old source is not learned again after signalling changed;
    max_seq_gap: the sequence distance that is plausible for one and the same stream; max_gap: how long
    an unvouched source may pause before it has to begin again (a scanner comes by less often than a
    phone sends); suspect: says of an address that nothing that comes from it is to be believed.
    """

    packets: int = 5
    guard: float = 0.08
    rival_packets: int = 2
    rival_window: float = 2.0
    contest_hold: float = 10.0
    quarantine: float = 3.0
    max_seq_gap: int = 3000
    max_candidates: int = 16
    max_gap: float = 0.3
    suspect: Callable[[bytes], bool] | None = None


class Verdict(enum.Enum):
    """What one noticed packet says about the leg's source."""

    WAITING = "waiting"  # not enough seen yet
    ACCEPTED = "accepted"  # this source is now the leg's
    KNOWN = "known"  # it is the leg's already
    CONTESTED = "contested"  # two sources claim the leg
    QUARANTINED = "quarantined"  # the old source, just after signalling changed
    REBIND = "rebind"  # looks like the same party from a new address: take it if the old one is silent
    OVERRIDE = "override"  # a vouched source where an unvouched one had been taken, or the very one that signalling names where it had not
    STRAY = "stray"  # somebody else's packet


@dataclass(slots=True)
class _Candidate:
    first: float
    last: float
    ssrc: int
    seq: int
    count: int = 1


def seq_follows(seq: int, after: int, max_gap: int) -> bool:
    """Whether RTP sequence number `seq` plausibly belongs to a stream last seen at `after` (mod 2^16)."""
    ahead = (seq - after) % _SEQ_MODULUS
    behind = (after - seq) % _SEQ_MODULUS
    return ahead <= max_gap or behind <= 100


class Latch:
    """The learned source of one leg and component (RTP or RTCP). It does no I/O and reads no clock."""

    __slots__ = ("policy", "trusted", "signalled", "learned", "vouched", "ssrc", "seq", "_candidates", "_quarantined", "_quarantine_until", "_rival_seen")

    def __init__(self, policy: LatchPolicy, trusted: Iterable[bytes] = ()) -> None:
        """trusted: packed addresses that signalling vouches for (SDP connection address, SIP source address)."""
        self.policy = policy
        self.trusted: set[bytes] = set(trusted)
        self.signalled: Endpoint | None = None  # whom signalling names, with the port
        self.learned: Endpoint | None = None
        self.vouched = False
        self.ssrc: int | None = None
        self.seq = 0
        self._candidates: dict[Endpoint, _Candidate] = {}
        self._quarantined: Endpoint | None = None
        self._quarantine_until = 0.0
        self._rival_seen: float | None = None

    @property
    def contested(self) -> bool:
        return self._rival_seen is not None

    def forget(self, now: float, *, quarantine: bool) -> None:
        """Learn anew; with quarantine the source learned so far is not believed for a while."""
        if quarantine and self.learned is not None:
            self._quarantined = self.learned
            self._quarantine_until = now + self.policy.quarantine
        self.learned = None
        self.vouched = False
        self.ssrc = None
        self._candidates.clear()
        self._rival_seen = None

    def lift_quarantine(self) -> None:
        """The change in signalling was refused: the old source is as good as before."""
        self._quarantined = None

    def take(self, src: Endpoint, ssrc: int, seq: int) -> None:
        """Make src the leg's source (after ACCEPTED by itself, or the caller's decision on REBIND)."""
        self.learned = src
        self.vouched = src.addr in self.trusted
        self.ssrc = ssrc
        self.seq = seq
        self._candidates.clear()
        self._rival_seen = None

    def contest(self, now: float) -> None:
        """Drop the learned source because another one claims the leg with equal right."""
        self.learned = None
        self.ssrc = None
        self._rival_seen = now

    def observe(self, now: float, src: Endpoint, ssrc: int, seq: int, *, is_rtp: bool = True) -> Verdict:
        """Judge one packet. now: monotonic seconds; is_rtp: the payload looked like RTP or RTCP version 2."""
        if self._quarantined == src:
            if now < self._quarantine_until:
                return Verdict.QUARANTINED
            self._quarantined = None
        trusted = src.addr in self.trusted
        if self.learned is not None:
            return self._observe_learned(now, src, ssrc, seq, trusted, is_rtp)
        if trusted:
            self.take(src, ssrc, seq)
            return Verdict.ACCEPTED
        if not is_rtp or (self.policy.suspect is not None and self.policy.suspect(src.addr)):
            return Verdict.STRAY
        candidate = self._count(now, src, ssrc, seq)
        if self._rival(now, src) and candidate.count >= self.policy.rival_packets:
            self._rival_seen = now
        if self._rival_seen is not None:
            if now - self._rival_seen < self.policy.contest_hold:
                return Verdict.CONTESTED
            self._rival_seen = None
        if candidate.count < self.policy.packets or now - candidate.first < self.policy.guard:
            return Verdict.WAITING
        self.take(src, ssrc, seq)
        return Verdict.ACCEPTED

    def _observe_learned(self, now: float, src: Endpoint, ssrc: int, seq: int, trusted: bool, is_rtp: bool) -> Verdict:
        if src == self.learned:
            self.ssrc, self.seq = ssrc, seq
            return Verdict.KNOWN
        if trusted and (src == self.signalled or not self.vouched):
            return Verdict.OVERRIDE
        if trusted or (is_rtp and ssrc == self.ssrc and ssrc != 0):
            return Verdict.REBIND
        if not is_rtp or self.vouched or (self.policy.suspect is not None and self.policy.suspect(src.addr)):
            return Verdict.STRAY
        # An unvouched source holds the leg: another one that is as persistent has an equal claim.
        if self._count(now, src, ssrc, seq).count >= self.policy.packets:
            self._candidates.clear()
            self.contest(now)
            return Verdict.CONTESTED
        return Verdict.STRAY

    def _count(self, now: float, src: Endpoint, ssrc: int, seq: int) -> _Candidate:
        candidate = self._candidates.get(src)
        if candidate is None:
            if len(self._candidates) >= self.policy.max_candidates:
                weakest = min(self._candidates, key=lambda s: (self._candidates[s].count, self._candidates[s].last))
                del self._candidates[weakest]
            candidate = self._candidates[src] = _Candidate(now, now, ssrc, seq)
        elif candidate.ssrc == ssrc and now - candidate.last <= self.policy.max_gap and seq_follows(seq, candidate.seq, self.policy.max_seq_gap):
            candidate.count += 1
            candidate.last, candidate.seq = now, seq
        else:
            self._candidates[src] = candidate = _Candidate(now, now, ssrc, seq)
        return candidate

    def _rival(self, now: float, src: Endpoint) -> bool:
        return any(
            other != src and c.count >= self.policy.rival_packets and now - c.last < self.policy.rival_window
            for other, c in self._candidates.items()
        )
