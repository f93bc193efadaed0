"""The parties, components and states that a call's streams have, and what draining stops: names that every part shares."""

from __future__ import annotations

import enum


class Side(enum.Enum):
    """A party of a media line. The caller is the party that the session's first U command described, as in rtpproxy."""

    CALLER = "caller"
    CALLEE = "callee"

    # There is one of each, and legs are looked up by it at every step: the Enum's own hash is that of its name, in Python.
    __hash__ = object.__hash__

    @property
    def other(self) -> Side:
        """The one at the other end."""
        return Side.CALLEE if self is Side.CALLER else Side.CALLER


class Component(enum.Enum):
    """RTP, or RTCP on its own port (RTP port + 1); muxed RTCP travels in the RTP stream."""

    RTP = "rtp"
    RTCP = "rtcp"

    __hash__ = object.__hash__


SIDES, COMPONENTS = tuple(Side), tuple(Component)  # going through an Enum costs ten times as much


class State(enum.Enum):
    """Where a stream is: which of them carries its packets."""

    ALLOCATED = "allocated"
    LEARNING = "learning"
    OFFLOADED = "offloaded"
    SUSPENDED = "suspended"
    RELEASED = "released"


class Stop(enum.Enum):
    """What draining stops. New streams stay on the relay. The agent is empty when no entry is left (OFFLOADS), or no call either (CALLS)."""

    OFFLOADS = "offloads"
    CALLS = "calls"
