"""Calls, media lines, legs and streams: what the agent knows of one session of the relay."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from shunt.calls import reasons
from shunt.calls.kinds import COMPONENTS, SIDES, Component, Side, State
from shunt.learning.latch import Latch, LatchPolicy
from shunt.net import Endpoint
from shunt.quality.score import Measurement
from shunt.tables.entry import RelayEntry, StreamStats

UNSPECIFIED = (bytes(4), bytes(16))

__all__ = ["COMPONENTS", "SIDES", "UNSPECIFIED", "Call", "Component", "Leg", "MediaLine", "Side", "State", "Stream", "new_line"]


@dataclass(slots=True)
class Leg:
    """One party of a media line.

    signalled is the address and port that the party's U or L command named; relay is where the party
    sends to (the port in the reply to the OTHER party's command). payload_types counts the learn notices of
    each RTP payload type from the party's own source. addresses: where it may be, as Parties counts it;
    guarded: the relay port that a PortGuard guards for it.
    """

    side: Side
    rtp: Latch
    rtcp: Latch
    signalled: Endpoint | None = None
    relay: Endpoint | None = None
    modifiers: str = ""
    keepalive: str = ""
    asymmetric: bool = False
    first_heard: float | None = None
    latched_at: float | None = None
    last_heard: dict[Component, float] = field(default_factory=dict)
    strays: int = 0
    payload_types: dict[int, int] = field(default_factory=dict)
    addresses: tuple[bytes, ...] = ()
    guarded: Endpoint | None = None

    def latch(self, component: Component) -> Latch:
        return self.rtp if component is Component.RTP else self.rtcp

    def relay_port(self, component: Component) -> Endpoint | None:
        """Where this party's packets of a component arrive."""
        if self.relay is None:
            return None
        return self.relay if component is Component.RTP else self.relay.next_port()

    def name(self, address: Endpoint | None) -> None:
        """Signalling names this address and port for the party's RTP; its RTCP is at the next."""
        self.signalled = self.rtp.signalled = address
        self.rtcp.signalled = address.next_port() if address is not None and address.port < 65535 else None

    @property
    def held(self) -> bool:
        return self.signalled is not None and (self.signalled.addr in UNSPECIFIED or self.signalled.port == 0)

    def reachable_at(self, component: Component) -> Endpoint | None:
        """Where to send to this party: the learned address, else what signalling gave; None if neither is usable."""
        if self.held:
            return None
        latch = self.latch(component)
        if self.asymmetric or latch.learned is None:
            if component is Component.RTCP and not self.asymmetric and self.rtp.learned is not None and self.rtp.learned != self.signalled:
                # RTCP not heard yet, and RTP comes from elsewhere than signalled: guess its neighbour, as rtpproxy does.
                return self.rtp.learned.next_port() if self.rtp.learned.port < 65535 else None
            if self.signalled is None:
                return None
            return self.signalled if component is Component.RTP else self.signalled.next_port() if self.signalled.port < 65535 else None
        return latch.learned


@dataclass(slots=True)
class Stream:
    """One direction of one component.

    installed is the entry that the data plane confirmed, and only that; idle_since (monotonic seconds) is set
    when the data plane reported it idle. past sums what earlier entries counted, measured what they measured.
    """

    sender: Side
    component: Component
    state: State = State.ALLOCATED
    reason: str = reasons.WAITING_FOR_ANSWER
    detail: str = ""
    since: float = 0.0
    installed: RelayEntry | None = None
    uncertain: bool = False
    idle_since: float | None = None
    retry_at: float = 0.0
    offloaded_after_ms: float | None = None
    was_offloaded: bool = False
    past: StreamStats = field(default_factory=StreamStats)
    live: StreamStats | None = None
    measured: Measurement = field(default_factory=Measurement)

    def set(self, state: State, reason: str, now: float, detail: str = "") -> None:
        if (state, reason) != (self.state, self.reason):
            self.since = now
        self.state, self.reason, self.detail = state, reason, detail


@dataclass(slots=True)
class MediaLine:
    """One session of the relay: a call's media line, keyed (call-id, tag of the first U's sender, media index).

    established: a 2xx to the INVITE was seen in SIP, so a CANCEL can no longer end it. relay_counts: packets from
    each party by the relay's own word, the last time that somebody asked it.
    """

    call: "Call"
    tag: str
    media: int | None
    created: float
    legs: dict[Side, Leg]
    streams: list[Stream]
    other_tag: str | None = None
    notify_socket: str | None = None
    notify_tag: str | None = None
    peer_ip: str | None = None
    blocks: set[str] = field(default_factory=set)
    established: bool = False
    suspended: str | None = None
    resume_at: float | None = None
    released: str | None = None
    kept_alive_at: float | None = None
    ttl_raised: bool = False
    last_activity: float = 0.0
    relay_packets: int | None = None
    relay_counts: dict[Side, int] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def key(self) -> tuple[str, str, int | None]:
        return (self.call.call_id, self.tag, self.media)

    @property
    def answered(self) -> bool:
        return self.legs[Side.CALLER].relay is not None and self.legs[Side.CALLEE].relay is not None

    @property
    def offloaded(self) -> bool:
        for stream in self.streams:
            if stream.installed is not None:
                return True
        return False

    def stream(self, sender: Side, component: Component) -> Stream:
        for stream in self.streams:
            if stream.sender is sender and stream.component is component:
                return stream
        raise KeyError(f"{self.key} has no stream {sender.value} {component.value}")

    def suffix(self, tag: str) -> str:
        """The tag as the control protocol writes it, with the media index."""
        return tag if self.media is None else f"{tag};{self.media}"


@dataclass(slots=True)
class Call:
    """A SIP call as the relay knows it: one call-id, on one relay. closed: its end was told."""

    call_id: str
    relay: str
    created: float
    created_wall: float
    lines: list[MediaLine] = field(default_factory=list)
    closed: bool = False


def new_line(call: Call, tag: str, media: int | None, now: float, policy: LatchPolicy) -> MediaLine:
    """A media line with two unlearned legs and its four streams."""
    legs = {side: Leg(side, Latch(policy), Latch(policy)) for side in SIDES}
    streams = [Stream(side, component, since=now) for component in COMPONENTS for side in SIDES]
    return MediaLine(call, tag, media, now, legs, streams, last_activity=now)
