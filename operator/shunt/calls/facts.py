"""What is known of a call: its media lines, parties and streams. All times are Unix times in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shunt.calls import reasons
from shunt.calls.kinds import Component, Side, State
from shunt.calls.measurement import Measurement
from shunt.calls.sdp import SdpMedia
from shunt.net import Endpoint, FiveTuple

_NOWHERE = (bytes(4), bytes(16))


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the relay table: packets that match `key` leave from src to dst."""

    key: FiveTuple
    src: Endpoint
    dst: Endpoint


@dataclass(frozen=True, slots=True)
class Leg:
    """A party of a media line.

    relay: the relay port that it sends to; latched, latched_rtcp: where its packets come from; contested: whether two sources claim to be it;
    payload_types: packets noticed of each; sdp: the last one seen of it; relay_packets: what the relay counted, where it was asked, so long ago;
    sends_from, sends_to: while nothing of it has arrived at its relay port, the source and the port of its packets that arrive elsewhere.
    """

    signalled: Endpoint | None = None
    relay: Endpoint | None = None
    latched: Endpoint | None = None
    latched_rtcp: Endpoint | None = None
    contested: bool = False
    asymmetric: bool = False
    source_mismatches: int = 0
    payload_types: Mapping[int, int] = field(default_factory=dict)
    sdp: SdpMedia | None = None
    relay_packets: int | None = None
    relay_packets_age_s: float | None = None
    sends_from: Endpoint | None = None
    sends_to: Endpoint | None = None

    @property
    def held(self) -> bool:
        """Whether the signalled address is one that nobody can send to."""
        return self.signalled is not None and (self.signalled.addr in _NOWHERE or self.signalled.port == 0)


@dataclass(frozen=True, slots=True)
class Stream:
    """One direction of one component.

    installed: its entry in the data plane; measured: of all its entries, None: none of them carried anything, or what they carried is not known
    (`counted` tells which); age_s: how old that is; idle_s: since the last packet that met its entry; None: not known.
    """

    sender: Side
    component: Component
    state: State
    reason: str
    since: float
    detail: str = ""
    installed: Entry | None = None
    was_offloaded: bool = False
    offloaded_after_ms: float | None = None
    measured: Measurement | None = None
    counted: bool = True
    age_s: float | None = None
    idle_s: float | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Something that the relay does to a line's media, which keeps it there.

    command: what began it, None: the agent did not see it; party: whose media, None: both parties', or that is not known; selection: whose by the words of
    the command; subscription: its tag; recording: whether somebody else gets the media; to: where copies go, empty: into a file, or that is not known.
    """

    reason: str
    command: str | None = None
    party: str | None = None
    selection: str | None = None
    subscription: str | None = None
    recording: bool = False
    to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """A media line: one session of a relay.

    media: its index on the control channel; released: why it is over, None: it is not; holds: what keeps it on the relay, of a line that is over its
    recordings; recorders: how many get its media, or got it.
    """

    from_tag: str
    to_tag: str | None
    media: int | None
    legs: Mapping[Side, Leg]
    streams: Sequence[Stream]
    released: str | None = None
    holds: Sequence[Hold] = ()
    recorders: int = 0

    @property
    def answered(self) -> bool:
        """Whether both parties have a relay port."""
        return all(leg.relay is not None for leg in self.legs.values())

    def stream(self, sender: Side, component: Component) -> Stream:
        """One of its streams; one without packets where the agent shows none, as for RTCP that is muxed."""
        for stream in self.streams:
            if stream.sender is sender and stream.component is component:
                return stream
        return Stream(sender, component, State.RELEASED, reasons.RELEASED, 0.0)


@dataclass(frozen=True, slots=True)
class Call:
    """A call on one relay. counters_error: why its counters could not be read, None: they could."""

    call_id: str
    relay: str
    created: float
    lines: Sequence[Line] = ()
    counters_error: str | None = None

    def sdp(self, media: int | None) -> SdpMedia | None:
        """An SDP of a media line, the caller's where both are known."""
        for line in self.lines:
            if line.media == media:
                return line.legs[Side.CALLER].sdp or line.legs[Side.CALLEE].sdp
        return None
