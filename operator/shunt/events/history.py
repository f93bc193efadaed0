"""The history of each call: its events, in bounded memory.

Bounded twice: a call keeps its first and its last events, so that nobody fills the memory with packets to
one call; and all calls together keep a number of events, beyond which the calls that ended first go.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from shunt.events.bus import CONFERENCE, CONTROL, LEARN, NOTE, SIP, Event

_MERGE_WINDOW = 1.0  # seconds within which like learn notices count as one event
_MERGE_KEYS = 8  # sources told apart within the window; the rest count together


class _Track:
    """The events of one call-id. Learn notices are kept apart: they come in any number.

    What an INVITE without more would not need is made when it is needed: such come in floods.
    """

    __slots__ = ("first", "last", "notices", "left_out", "ended", "has_media", "_per_call", "_merging", "_window")

    def __init__(self, per_call: int) -> None:
        self.first: list[Event] = []
        self.last: deque[Event] | tuple[()] = ()
        self.notices: deque[Event] | tuple[()] = ()
        self.left_out = 0
        self.ended = False
        self.has_media = False
        self._per_call = per_call
        self._merging: dict[tuple[object, ...], Event] | None = None
        self._window = 0.0

    def add(self, event: Event) -> int:
        """Keep an event; returns by how many more events are held now."""
        if len(self.first) < self._per_call // 4:
            self.first.append(event)
            return 1
        if isinstance(self.last, tuple):
            self.last = deque(maxlen=self._per_call // 2)
        return self._append(self.last, event)

    def _append(self, events: deque[Event], event: Event) -> int:
        full = len(events) == events.maxlen
        self.left_out += full
        events.append(event)
        return 0 if full else 1

    def add_notice(self, event: Event) -> int:
        """Keep a learn notice, merged with like ones of the last second."""
        if self._merging is None or isinstance(self.notices, tuple):
            self._merging, self.notices = {}, deque(maxlen=self._per_call // 4)
        if event.at - self._window > _MERGE_WINDOW:
            self._merging.clear()
            self._window = event.at
        key: tuple[object, ...] = (event.media, event.party, event.component, event.what, event.facts.get("source"))
        like = self._merging.get(key)
        if like is None and len(self._merging) >= _MERGE_KEYS:
            key = ("others", event.what)
            like = self._merging.get(key)
        if like is not None:
            like.count += event.count
            like.until = event.at
            return 0
        self._merging[key] = event
        return self._append(self.notices, event)

    def __len__(self) -> int:
        return len(self.first) + len(self.last) + len(self.notices)

    def __iter__(self) -> Iterator[Event]:
        yield from self.first
        yield from self.last
        yield from self.notices


class History:
    """Subscriber of the bus: what happened to each call that runs, and to those that ended last."""

    def __init__(self, *, events: int = 100_000, per_call: int = 300) -> None:
        """events: how many are held in all (about 600 bytes each); per_call: how many of one call."""
        self.capacity = events
        self.held = 0
        self.calls_forgotten = 0
        self._per_call = max(per_call, 16)
        self._running: OrderedDict[str, _Track] = OrderedDict()
        self._ended: OrderedDict[str, _Track] = OrderedDict()
        self._branches: dict[str, set[str]] = {}

    def __call__(self, event: Event) -> None:
        """Take in one event (as a subscriber)."""
        kind, call_id = event.kind, event.call_id
        if kind == CONFERENCE or (kind == CONTROL and not call_id):
            return
        track = self._running.get(call_id)
        if track is None:
            track = self._open(event)
        self.held += track.add_notice(event) if kind == LEARN else track.add(event)
        if kind == CONTROL:
            track.has_media = True
        if not track.ended and self._ends(track, event):
            track.ended = True
            self._running.pop(call_id, None)
            self._ended[call_id] = track
        if self.held > self.capacity:
            self._forget()

    def _open(self, event: Event) -> _Track:
        call_id = event.call_id
        track = self._ended.get(call_id)
        if track is not None:
            if event.kind == CONTROL and event.what in ("U", "L", "offer", "answer"):
                # The call-id is used again, or another branch of it begins.
                del self._ended[call_id]
                track.ended = False
                self._running[call_id] = track
            return track
        track = self._running[call_id] = _Track(self._per_call)
        stem, dash, branch = call_id.rpartition("-")
        if dash and branch.isdigit():
            self._branches.setdefault(stem, set()).add(call_id)
        return track

    @staticmethod
    def _ends(track: _Track, event: Event) -> bool:
        if event.kind == NOTE:
            return event.what == "ended"
        # A call that never got media has no end of its own but what SIP shows.
        return event.kind == SIP and not track.has_media and (event.what == "BYE" or (event.what[:1] in "3456" and event.facts.get("cseq") == "INVITE"))

    def _forget(self) -> None:
        while self.held > self.capacity and (self._ended or self._running):
            pool = self._ended or self._running
            call_id, track = pool.popitem(last=False)
            self.held -= len(track)
            self.calls_forgotten += 1
            stem = call_id.rpartition("-")[0]
            if stem in self._branches:
                self._branches[stem].discard(call_id)
                if not self._branches[stem]:
                    del self._branches[stem]

    def _track(self, call_id: str) -> _Track | None:
        return self._running.get(call_id) or self._ended.get(call_id)

    def of(self, call_id: str) -> tuple[list[Event], int] | None:
        """The events of a call in order of time, and how many were left out; None for a call that is not known.

        SIP servers may add the branch to the call-id that they give the relay ("-0"): both belong together.
        """
        stem, dash, branch = call_id.rpartition("-")
        names = {call_id, *self._branches.get(call_id, ())}
        if dash and branch.isdigit():
            names.add(stem)
        tracks = [track for name in names if (track := self._track(name)) is not None]
        if not tracks:
            return None
        return sorted((event for track in tracks for event in track), key=lambda event: event.at), sum(track.left_out for track in tracks)

    def running(self) -> Iterator[tuple[str, list[Event]]]:
        """The calls with media that have not ended, and their events in order of time."""
        for call_id, track in self._running.items():
            if track.has_media:
                yield call_id, sorted(track, key=lambda event: event.at)

    def __len__(self) -> int:
        """How many call-ids have a history."""
        return len(self._running) + len(self._ended)
