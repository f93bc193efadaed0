"""What the relay itself does with packets from a source it does not know: guarded latching, decided here at once.

The agent may leave a contested stream on the relay; the relay has nobody to leave it to. So it keeps to whom it has
learned, prefers the address that signalling names, follows a NAT rebinding, and among strangers takes the one
that sends like a call does, not like a spray over the port range.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from shunt.learning.latch import Latch, LatchPolicy, Verdict, seq_follows
from shunt.net import Endpoint

# The distance that rtpproxy allows for the same SSRC from a new address (facts section 5).
_REBIND_SEQ_GAP = 536
# Seconds after which a source that sends nothing may be replaced: by the same SSRC or a vouched address; in the time
# after a U or L, by a stranger who passes the guard.
_SILENT = 1.0
_SILENT_AFTER_SIGNALLING = 0.3
# Seconds after a U or L in which a party may come from an address that nothing vouches for (rtpproxy's window).
_SIGNALLING_WINDOW = 10.0
# Among contesting strangers one is taken that sent this many packets lately, and this many times its best rival's.
_DOMINANT_PACKETS = 15
_DOMINANT_RATIO = 4
_HALF_LIFE = 1.0
# Packets held back per stranger until it is believed; older ones than this are not sent after all.
_HELD_PACKETS = 8
_HELD_SECONDS = 0.5


class Decision(enum.Enum):
    """What to do with a packet."""

    FORWARD = "forward"
    LEARNED = "learned"  # forward, after what was held; this source is the leg's from now on
    HOLD = "hold"
    IGNORE = "ignore"


@dataclass(slots=True)
class _Stranger:
    held: deque[tuple[float, bytes]]
    score: float = 0.0
    last: float = 0.0


def read_rtp(packet: memoryview, size: int) -> tuple[bool, int, int]:
    """(looks like RTP, SSRC, sequence number) by RFC 3550 section 5.1; zeros for anything else."""
    if size < 12 or packet[0] >> 6 != 2:
        return False, 0, 0
    return True, int.from_bytes(packet[8:12]), packet[2] << 8 | packet[3]


def read_rtcp(packet: memoryview, size: int) -> tuple[bool, int, int]:
    """(looks like RTCP, SSRC of the sender, 0) by RFC 3550 section 6.4.1; RTCP has no sequence number."""
    if size < 8 or packet[0] >> 6 != 2 or not 192 <= packet[1] <= 223:
        return False, 0, 0
    return True, int.from_bytes(packet[4:8]), 0


class SourceLatch:
    """The learned source of one relay port. Reads no clock, does no I/O; `read` is read_rtp or read_rtcp."""

    __slots__ = ("latch", "signalled", "window_until", "contested", "_read", "_strangers", "_mover")

    def __init__(self, policy: LatchPolicy, read: Callable[[memoryview, int], tuple[bool, int, int]]) -> None:
        self.latch = Latch(policy)
        self.signalled: Endpoint | None = None
        self.window_until = 0.0
        self.contested = 0
        self._read = read
        self._strangers: dict[Endpoint, _Stranger] = {}
        # Judges, in the time after a U or L, who may follow a learned source that fell silent.
        self._mover: Latch | None = None

    @property
    def learned(self) -> Endpoint | None:
        return self.latch.learned

    def signal(self, signalled: Endpoint | None, trusted: set[bytes], now: float) -> None:
        """Signalling named this address (again); `trusted` are the addresses that it vouches for."""
        self.signalled = signalled
        self.latch.trusted = trusted
        self.latch.vouched = self.latch.learned is not None and self.latch.learned.addr in trusted
        self.window_until = now + _SIGNALLING_WINDOW

    def restore(self, source: Endpoint, ssrc: int) -> None:
        """Put back what an earlier process had learned."""
        self.latch.take(source, ssrc, 0)

    def forget(self, now: float) -> None:
        self.latch.forget(now, quarantine=False)
        self._strangers.clear()
        self._mover = None

    def sync(self, packet: memoryview, size: int) -> None:
        """Note SSRC and sequence number of a packet of the learned source, so that a rebinding is recognised."""
        is_media, ssrc, seq = self._read(packet, size)
        if is_media:
            self.latch.ssrc, self.latch.seq = ssrc, seq

    def judge(self, now: float, src: Endpoint, packet: memoryview, size: int, last_heard: float) -> Decision:
        """Judge a packet of a source other than the learned one; last_heard: when that one last sent (seconds)."""
        is_media, ssrc, seq = self._read(packet, size)
        latch = self.latch
        holder, holder_ssrc, holder_seq = latch.learned, latch.ssrc, latch.seq
        silent = now - last_heard
        verdict = latch.observe(now, src, ssrc, seq, is_rtp=is_media)
        if verdict is Verdict.ACCEPTED:
            return Decision.LEARNED
        if verdict is Verdict.KNOWN:
            return Decision.FORWARD
        if holder is not None:
            decision = self._judge_against(holder, holder_ssrc, holder_seq, verdict, src, ssrc, seq, silent)
            if decision is Decision.LEARNED or now >= self.window_until or silent <= _SILENT_AFTER_SIGNALLING:
                self._mover = None
                return decision
            # The party said something through signalling and fell silent at its old address: it may have moved.
            if self._mover is None:
                self._mover = Latch(latch.policy)
            verdict = self._mover.observe(now, src, ssrc, seq, is_rtp=is_media)
            if verdict is Verdict.ACCEPTED:
                self._mover = None
                latch.take(src, ssrc, seq)
                return Decision.LEARNED
        if verdict not in (Verdict.WAITING, Verdict.CONTESTED):
            return Decision.IGNORE
        return self._judge_stranger(now, verdict, src, ssrc, seq, packet, size)

    def _judge_against(
        self, holder: Endpoint, holder_ssrc: int | None, holder_seq: int, verdict: Verdict, src: Endpoint,
        ssrc: int, seq: int, silent: float,
    ) -> Decision:
        latch = self.latch
        if verdict is Verdict.OVERRIDE:
            take = True
        elif verdict is Verdict.REBIND:
            same = ssrc == holder_ssrc and ssrc != 0
            take = silent > _SILENT or src == self.signalled or (same and seq_follows(seq, holder_seq, _REBIND_SEQ_GAP))
        else:
            take = False
            if verdict is Verdict.CONTESTED:
                # First come stays: dropping the holder would let anybody silence a call.
                self.contested += 1
                latch.take(holder, holder_ssrc or 0, holder_seq)
        if not take:
            return Decision.IGNORE
        latch.take(src, ssrc, seq)
        return Decision.LEARNED

    def _judge_stranger(
        self, now: float, verdict: Verdict, src: Endpoint, ssrc: int, seq: int, packet: memoryview, size: int
    ) -> Decision:
        stranger = self._strangers.get(src)
        if stranger is None:
            if len(self._strangers) >= self.latch.policy.max_candidates:
                del self._strangers[min(self._strangers, key=lambda s: (self._strangers[s].score, self._strangers[s].last))]
            stranger = self._strangers[src] = _Stranger(deque(maxlen=_HELD_PACKETS))
        stranger.score = stranger.score * 0.5 ** ((now - stranger.last) / _HALF_LIFE) + 1
        stranger.last = now
        if verdict is Verdict.CONTESTED and self.latch.learned is None:
            self.contested += 1
            rivals = (s.score * 0.5 ** ((now - s.last) / _HALF_LIFE) for e, s in self._strangers.items() if e != src)
            if stranger.score >= _DOMINANT_PACKETS and stranger.score >= _DOMINANT_RATIO * max(rivals, default=0.0):
                self.latch.take(src, ssrc, seq)
                return Decision.LEARNED
        stranger.held.append((now, bytes(packet[:size])))
        return Decision.HOLD

    def release_held(self, now: float) -> list[bytes]:
        """After LEARNED: what had been held back of the source now learned, oldest first; all else is forgotten."""
        stranger = self._strangers.get(self.latch.learned) if self.latch.learned is not None else None
        held = [data for at, data in stranger.held if now - at < _HELD_SECONDS] if stranger else []
        self._strangers.clear()
        return held
