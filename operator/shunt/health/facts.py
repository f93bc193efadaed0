"""What is known of a host and of what its daemons counted, as values: the judgement takes these, and tests make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Unknown:
    """In place of facts that could not be had: why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface of the softswitch. mode: of the program that is attached now, `native` or `generic`; "none": it has none."""

    name: str
    mode: str


@dataclass(frozen=True, slots=True)
class Relay:
    """A relay. error: what its control socket said when it was asked last, "" where it said nothing."""

    name: str
    address: str
    alive: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that the agent names itself."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Flow:
    """What was counted in a span of time. None: not known. on_relay: the most RTP streams that were not offloaded at any moment of it; offers: commands
    that set up media; unrouted, too_big: packets that the data plane passed to the kernel for want of a next hop, or by their size."""

    seconds: float
    plane: int | None = None
    relay: int | None = None
    unrouted: int | None = None
    too_big: int | None = None
    on_relay: int = 0
    offers: int = 0


@dataclass(frozen=True, slots=True)
class Signalling:
    """Calls of the last minutes. answered: calls that SIP copies show to be answered with media, past: those of them without a command;
    offers: commands that set up media, copies: SIP copies; seconds: the span of these two, None: not known."""

    answered: int = 0
    past: int = 0
    offers: int = 0
    copies: int = 0
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    """What the agent says of itself now. interfaces: None where the data plane does not tell them; streams: RTP streams by reason; silent_calls: answered calls
    of which neither data plane nor relay has a packet of either party for ten seconds, None: not known; examples: of a code, what one stream says of it."""

    role: str = "single"
    problems: Sequence[Problem] = ()
    relays: Sequence[Relay] = ()
    connected: bool | None = None
    interfaces: Sequence[Interface] | None = None
    streams: Mapping[str, int] = field(default_factory=dict)
    calls: int = 0
    silent_calls: int | None = 0
    draining: str | None = None
    flow: Flow | None = None
    examples: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Setup:
    """What the configuration says. mode: softswitch.mode, "" without a softswitch here; paths: of files, by what they are."""

    data_plane: bool = True
    hep: bool = False
    mode: str = ""
    interfaces: Sequence[str] = ()
    journal: str = ""
    events: str = ""


@dataclass(frozen=True, slots=True)
class Own:
    """What the operator daemon knows of itself. events_error: why the agent's events do not come, "": they do; gaps: what is missing, in words;
    records_lost: how many call records are lost, 0: none of the last hour; records_error, position_error: what a write said."""

    rebuilding: bool = False
    events_error: str = ""
    gaps: Sequence[str] = ()
    records_lost: int = 0
    records_error: str = ""
    position_error: str = ""
    clock_step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything."""

    agent: Agent | Unknown
    setup: Setup = Setup()
    signalling: Signalling = Signalling()
    own: Own = Own()
