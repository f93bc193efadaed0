"""What diagnosis, quality and call records read of a call: the agent's own call state fits, and so does what the admin API says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from shunt.calls.kinds import Component, Side, State
from shunt.net import Endpoint
from shunt.quality.score import Measurement
from shunt.tables.entry import RelayEntry, StreamStats


class LatchFacts(Protocol):
    """Where packets of one party and component come from."""

    @property
    def learned(self) -> Endpoint | None:
        """The latched source."""

    @property
    def vouched(self) -> bool | None:
        """Whether signalling names the latched source's address; None: not known."""

    @property
    def contested(self) -> bool:
        """Whether two sources claim to be the party."""


class LegFacts(Protocol):
    """A party of a media line."""

    @property
    def signalled(self) -> Endpoint | None:
        """What signalling says."""

    @property
    def relay(self) -> Endpoint | None:
        """The relay port that it sends to."""

    @property
    def asymmetric(self) -> bool:
        """Whether only the signalled address counts."""

    @property
    def held(self) -> bool:
        """Whether the signalled address is one that nobody can send to."""

    @property
    def strays(self) -> int:
        """Packets of unknown sources."""

    @property
    def payload_types(self) -> Mapping[int, int]:
        """Packets noticed of each RTP payload type."""

    @property
    def rtp(self) -> LatchFacts:
        """The source of its RTP."""

    @property
    def rtcp(self) -> LatchFacts:
        """The source of its RTCP."""


class StreamFacts(Protocol):
    """One direction of one component. Times are in seconds of the clock that `now` is of."""

    @property
    def sender(self) -> Side:
        """Who sends."""

    @property
    def component(self) -> Component:
        """RTP or RTCP."""

    @property
    def state(self) -> State:
        """Where it is."""

    @property
    def reason(self) -> str:
        """Why, as in calls.reasons."""

    @property
    def detail(self) -> str:
        """The data plane's own words."""

    @property
    def since(self) -> float:
        """Since when."""

    @property
    def installed(self) -> RelayEntry | None:
        """Its entry in the data plane."""

    @property
    def idle_since(self) -> float | None:
        """Since when its entry has met no packet; None: it meets packets, or that is not known."""

    @property
    def offloaded_after_ms(self) -> float | None:
        """From both parties' first packet to its entry."""

    @property
    def was_offloaded(self) -> bool:
        """Whether it ever had an entry."""

    @property
    def past(self) -> StreamStats:
        """What its former entries counted."""

    @property
    def live(self) -> StreamStats | None:
        """What its entry has counted."""

    @property
    def measured(self) -> Measurement:
        """What its former entries measured."""


class LineFacts(Protocol):
    """A media line: one session of a relay."""

    @property
    def call(self) -> CallFacts:
        """Its call."""

    @property
    def tag(self) -> str:
        """The caller's tag."""

    @property
    def other_tag(self) -> str | None:
        """The callee's tag."""

    @property
    def media(self) -> int | None:
        """Its index on the control channel."""

    @property
    def created(self) -> float:
        """When it began."""

    @property
    def legs(self) -> Mapping[Side, LegFacts]:
        """Both parties."""

    @property
    def streams(self) -> Sequence[StreamFacts]:
        """All its streams."""

    @property
    def released(self) -> str | None:
        """Why it is over; None: it is not."""

    @property
    def answered(self) -> bool:
        """Whether both parties have a relay port."""

    @property
    def relay_counts(self) -> Mapping[Side, int]:
        """Packets of each party that the relay counted, where it was asked."""

    def stream(self, sender: Side, component: Component) -> StreamFacts:
        """One of its streams. Raises KeyError where it is not there."""


class CallFacts(Protocol):
    """A call as its relay knows it."""

    @property
    def call_id(self) -> str:
        """The Call-ID on the control channel."""

    @property
    def relay(self) -> str:
        """The relay's name."""

    @property
    def created(self) -> float:
        """When it began, by the clock that `now` is of."""

    @property
    def created_wall(self) -> float:
        """When it began, Unix time."""

    @property
    def lines(self) -> Sequence[LineFacts]:
        """Its media lines."""
