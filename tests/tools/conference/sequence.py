"""Sequence numbers of a receiver that does not get every layer: S-LM and S-LR (Scallop, section 6.2), and the change of target.

A receiver takes a missing number for a loss. Numbers of suppressed packets therefore have to go, and numbers of packets that
the network lost have to stay: the receiver asks for those again. A number too many costs one request for nothing; two
packets under one number break the decoder; a loss that is hidden freezes it. So, whatever arrives in whatever order:
no two packets ever get the same number, and a gap is closed only where all that was in it is known to be suppressed.

Everything is 16 bits wide and modulo 65536; "before" and "after" are the sign of a 16-bit difference. The state is a
handful of words, and a packet reads and writes each of them at most once, in the order in which they are named here: what
is done to a later word may depend on what an earlier one held, never the other way round. That is what one pass through a
Tofino's register arrays allows (two 16-bit halves to a word), and eBPF needs nothing else.

    word      halves                          S-LM   S-LR
    HIGH      highest number, mode             x      x     mode: fresh, running, resume
    FRAME     its frame number, its marks      x      x     ended, kept (S-LR)
    CADENCE   one bit for each of four frames         x     suppressed or not, learned from what passes
    OFFSET    what is taken from the number    x      x
    FLOOR     lowest number, first frame              x     of the packets to which the offset applies
    OPEN      whether the number before is     x            unused
    USED      numbers given out lately                x     one slot for each number modulo the window

S-LR sees every packet of the stream, also those it suppresses. Where the replication engine prunes them before anything
sees them, it runs in ingress, once for each stream and decode target, and the receiver sequence state follows in egress, once for each receiver.
S-LM sees only what its receiver gets.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import NamedTuple

_M = 0xFFFF
PHASES = 4  # the temporal patterns of L1T2 and L1T3 repeat after two and four frames
_FAR = 16  # more frames than this between two packets: what they were is not asked


def after(a: int, b: int) -> int:
    """How far a is after b, -32768..32767."""
    return ((a - b + 0x8000) & _M) - 0x8000


class Row(NamedTuple):
    """What rewriting knows of one packet: number, frame number, first and last packet of its frame, wanted or suppressed.

    key: the packet carries a template structure, so the frame cadence may begin anew.
    """

    sequence: int
    frame: int
    start: bool
    end: bool
    keep: bool
    key: bool = False


class Verdict(enum.Enum):
    FORWARD = "forward"
    SUPPRESS = "suppress"  # of a layer that the receiver does not get
    LATE = "late"  # too late for a number that is certainly its own
    REPEATED = "repeated"  # its number has been given out: a copy that the network made


class Outcome(NamedTuple):
    """position is the number given out, or (in-order suppressed packets) the one that the next packet kept will get.

    It is None for packets that are late or repeated, and for suppressed ones that are late.
    """

    verdict: Verdict
    position: int | None
    in_order: bool


_FRESH, _RUNNING, _RESUME = range(3)
_SUPPRESSED_LATE = Outcome(Verdict.SUPPRESS, None, False)
_LATE = Outcome(Verdict.LATE, None, False)
_REPEATED = Outcome(Verdict.REPEATED, None, False)


class Cadence(NamedTuple):
    """Which frames are suppressed, as signalling knows it: bit n of mask is frame base + n, and again every four frames."""

    mask: int
    base: int = 0

    def turned(self) -> int:
        """The mask as if base were 0."""
        return sum(1 << ((self.base + n) % PHASES) for n in range(PHASES) if self.mask >> n & 1)


def suppressed_between(mask: int, frame: int, count: int) -> int:
    """How many of the count frames after `frame` are suppressed: a table of (mask, frame & 3, count) -> count in a data plane."""
    full, rest = divmod(count, PHASES)
    found = full * mask.bit_count()
    for n in range(1, rest + 1):
        found += mask >> ((frame + n) & 3) & 1
    return found


class LowMemory:
    """S-LM: three words of state and a bit. Packets suppressed are not shown to it; the frame cadence comes from signalling.

    * The next number: the offset stays.
    * A gap: when the frame before had ended, a new one starts and all frames between are suppressed ones, the whole gap is
      theirs and the offset grows by it. Any other gap stays: something in it was lost.
    * An older packet: only the one right before the highest, and only while the number before the highest is unused.

    The paper closes every gap that has the right number of frames, and rewrites the packet before the highest in any case;
    the first hides losses at the edges of frames, and the second gives numbers out twice. Hence the mark in FRAME, and OPEN.
    """

    def __init__(self, cadence: Cadence | None = None) -> None:
        self._cadence = cadence.turned() if cadence else 0  # None closes no gap
        self._high, self._mode = 0, _FRESH
        self._frame, self._ended = 0, False
        self._offset, self._open = 0, False

    def resume(self) -> None:
        """The sender starts anew somewhere: the next packet gets the next number, whatever its own is."""
        if self._mode == _RUNNING:
            self._mode = _RESUME

    def accept(self, row: Row) -> Outcome:
        """Give a packet that its receiver shall get a number."""
        if not row.keep:
            return Outcome(Verdict.SUPPRESS, None, False)
        # HIGH
        ahead, mode, high = after(row.sequence, self._high), self._mode, self._high
        in_order = mode != _RUNNING or ahead > 0
        if in_order:
            self._high, self._mode = row.sequence, _RUNNING
        # FRAME
        frames, ended = (row.frame - self._frame) & _M, self._ended
        if in_order:
            self._frame, self._ended = row.frame, row.end
        closes = False
        if mode == _RUNNING and ended and row.start and 2 <= frames <= _FAR and not self._cadence >> (row.frame & 3) & 1:
            closes = suppressed_between(self._cadence, (row.frame - frames) & _M, frames - 1) == frames - 1
        # OFFSET
        if in_order and (mode == _RESUME or closes):
            self._offset = (self._offset + row.sequence - high - 1) & _M
        number = (row.sequence - self._offset) & _M
        # OPEN
        opened = self._open
        if in_order:
            self._open = mode == _RUNNING and ahead > 1 and not closes
        elif ahead == -1:
            self._open = False
        if in_order or ahead == -1 and opened:
            return Outcome(Verdict.FORWARD, number, in_order)
        return _REPEATED if ahead == 0 else _LATE


class _Epoch(NamedTuple):
    """Packets between two suppressed ones: one offset for all. Numbers lowest..highest and frames first..last are its own."""

    offset: int
    lowest: int
    highest: int
    first: int
    last: int


class LowRetransmission:
    """S-LR: sees every packet of a stream; `keep` says which the receivers of this decode target get.

    A gap between the highest packet so far and the next one is made of up to three parts: the end of the old frame (when it
    had not ended), whole frames, and the beginning of the new one (when it does not start). Each part has at least one
    packet, and whether it is suppressed is known from the packets on both sides, and for whole frames from the frame cadence.
    All parts suppressed: the whole gap goes. None: nothing goes. Mixed: one number goes for each suppressed part, because
    that many are certain. A gap of as many packets as parts is therefore right to the packet, and that is nearly all.

    An older packet gets a number while the offset in force is the one of its position: numbers from FLOOR on, frames from
    FLOOR's to the highest. history keeps that many earlier offsets beside it (0 on a switch; eBPF has room for more, and
    retransmissions under the stream's own SSRC need it). window is the size of USED.
    """

    _ENDED, _KEPT = 1, 2

    def __init__(self, cadence: Cadence | None = None, *, learn: bool = True, history: int = 0, window: int = 16) -> None:
        self._high, self._mode = 0, _FRESH
        self._frame, self._marks = 0, 0
        self._mask, self._learn = cadence.turned() if cadence else 0, learn
        self._offset = 0
        self._lowest, self._first = 0, 0
        self._used, self._window = 0, (1 << window) - 1
        self._size = window
        self._epochs: deque[_Epoch] = deque(maxlen=history)

    def resume(self) -> None:
        """The sender starts anew somewhere: the next packet gets the next number, whatever its own is."""
        if self._mode == _RUNNING:
            self._mode = _RESUME

    def accept(self, row: Row) -> Outcome:
        """Take one packet in, suppressed ones too."""
        sequence, frame, start, end, keep, key = row
        # HIGH
        ahead, mode, high = after(sequence, self._high), self._mode, self._high
        if mode == _RUNNING and ahead <= 0:
            return self._older(sequence, frame, keep, ahead)
        self._high, self._mode = sequence, _RUNNING
        # FRAME
        old_frame, marks = self._frame, self._marks
        self._frame, self._marks = frame, (self._ENDED if end else 0) | (self._KEPT if keep else 0)
        # CADENCE
        mask = self._mask
        bit = 1 << (frame & 3)
        if key and keep:
            self._mask = 0 if self._learn else mask
        elif self._learn:
            far = (frame - old_frame - 1) & _M > _FAR and frame != old_frame
            before = 0 if far else mask
            self._mask = before & ~bit if keep else before | bit
        if bool(mask & bit) == keep:
            mask = 0  # a packet that does not fit: the frame cadence may have begun anew within the gap
        # What of the gap is certainly suppressed: a table of small numbers.
        old_offset, tail_kept = self._offset, False
        if mode == _RUNNING:
            gap = ahead - 1
            gone, tail_kept = self._gone(gap, (frame - old_frame) & _M, old_frame, marks, mask, start, keep) if gap else (0, False)
        elif mode == _RESUME:
            gone = (sequence - high - 1) & _M
        else:
            gone = 0
        # OFFSET
        offset = (old_offset + gone) & _M
        self._offset = offset if keep else (offset + 1) & _M
        position = (sequence - offset) & _M
        # FLOOR
        if mode == _FRESH:
            self._lowest, self._first = position, frame
        elif gone or not keep:
            before = (high + 1 - old_offset) & _M
            # What of the gap stays open belongs to the new frame only if packets of that one are all that can fill it.
            lowest = before if keep and not start and not tail_kept and mode == _RUNNING else position
            if self._epochs.maxlen and lowest != self._lowest:  # otherwise no number was given out since
                # A frame right after one that ended, or whose lost end was kept, had the same offset.
                last = old_frame + 1 if marks & self._ENDED or tail_kept else old_frame
                self._epochs.append(_Epoch(old_offset, self._lowest, (lowest - 1) & _M, self._first, last & _M))
            self._lowest, self._first = lowest, frame
        # USED
        if mode == _FRESH:
            self._used = 1 if keep else 0
        else:
            step = (position - (high + 1 - old_offset)) & _M  # numbers skipped; one more when this one is given out
            self._used = (self._used << (step + 1) | 1 if keep else self._used << step) & self._window if step < self._size else int(keep)
        return Outcome(Verdict.FORWARD if keep else Verdict.SUPPRESS, position, True)

    def _gone(self, gap: int, frames: int, old_frame: int, marks: int, mask: int, start: bool, keep: bool) -> tuple[int, bool]:
        """How many numbers of a gap are certainly suppressed ones; whether it begins with packets that were kept."""
        old_kept = bool(marks & self._KEPT)
        if frames == 0:
            return (0, True) if keep or old_kept else (gap, False)
        suppressed = kept = 0
        tail_kept = False
        if not marks & self._ENDED:
            if old_kept:
                kept += 1
                tail_kept = True
            else:
                suppressed += 1
        if not start:
            if keep:
                kept += 1
            else:
                suppressed += 1
        between = frames - 1
        if between > _FAR:
            kept += 1  # or the frame number went back: nothing is certain
        elif between:
            gone = suppressed_between(mask, old_frame, between)
            suppressed += gone
            kept += between - gone
        if not kept:
            return (gap if suppressed else 0), False
        return max(0, min(suppressed, gap - kept)), tail_kept

    def _older(self, sequence: int, frame: int, keep: bool, ahead: int) -> Outcome:
        if not keep:
            return _SUPPRESSED_LATE
        number = self._number_of(sequence, frame)
        if number is None:
            return _REPEATED if ahead == 0 else _LATE
        back = ((self._high - self._offset) - number) & _M
        if self._used >> back & 1:
            return _REPEATED
        self._used |= 1 << back
        return Outcome(Verdict.FORWARD, number, False)

    def _number_of(self, sequence: int, frame: int) -> int | None:
        """The number that a kept packet from before the highest has or would have; None when that is no longer certain."""
        number = (sequence - self._offset) & _M
        if after(number, self._lowest) < 0 or after(frame, self._first) < 0 or after(self._frame, frame) < 0:
            for epoch in reversed(self._epochs):
                number = (sequence - epoch.offset) & _M
                if after(number, epoch.lowest) >= 0 and after(epoch.highest, number) >= 0 and after(frame, epoch.first) >= 0 and after(epoch.last, frame) >= 0:
                    break
            else:
                return None
        return number if 0 <= after(self._high - self._offset, number) < self._size else None


class SequenceState:
    """What follows S-LR for each receiver: from the numbers of its decode target to its own, across changes of target.

    Three words: TARGET (the target in force), BASE (taken from the target's numbers) and FLOOR (the first number given out
    under this target). A change takes place with the first packet in order that allows it (MediaPacket.changes) and that the
    new target keeps: it gets the number that the old target would give next, so the receiver notices nothing, and losses around it
    stay gaps. Packets that come later than that and are from before it have no number any more.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self._base = 0
        self._floor: int | None = None

    def accept(self, wanted: int, changes: bool, outcomes: dict[int, Outcome]) -> int | None:
        """The number for one packet, or None: not for this receiver.

        changes: whether the target may change to the wanted one with it; outcomes: what S-LR said for each target.
        """
        outcome = outcomes[self.target]
        if wanted != self.target:
            new = outcomes[wanted]
            if changes and new.in_order and new.verdict is Verdict.FORWARD and new.position is not None and outcome.position is not None:
                # TARGET, BASE, FLOOR
                self._floor = (outcome.position - self._base) & _M
                self._base = (new.position - self._floor) & _M
                self.target = wanted
                return self._floor
        if outcome.verdict is not Verdict.FORWARD or outcome.position is None:
            return None
        number = (outcome.position - self._base) & _M
        if self._floor is not None and not outcome.in_order and after(number, self._floor) < 0:
            return None
        return number
