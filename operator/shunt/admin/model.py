"""The JSON of the admin API as types; docs/admin-api.md explains the fields. A newer agent may send more."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

Party = Literal["caller", "callee"]
Component = Literal["rtp", "rtcp"]
State = Literal["allocated", "learning", "offloaded", "suspended", "released"]
Stop = Literal["offloads", "calls"]
Direction = Literal["sendrecv", "sendonly", "recvonly", "inactive"]
Quality = Literal["audio", "video", "screen"]


class Problem(TypedDict):
    """Something that an operator should see to."""

    code: str
    message: str
    since_s: int | None


class InterfaceStatus(TypedDict):
    """An interface of the softswitch; `mode` is of the program that is attached now: native, generic or none."""

    name: str
    mode: str


class RelayStatus(TypedDict):
    """A relay; `error`: why the agent's last command to it had no reply."""

    name: str
    address: str
    alive: bool
    sessions: int | None
    version: str | None
    keepalive: str | None
    packets_relayed: int | None
    error: str | None


class DataPlaneStatus(TypedDict):
    """The data plane; `entries`, `capacity`, `packets_relayed` and `totals` are of all agents."""

    target: str
    connected: bool
    name: str | None
    entries: int | None
    capacity: int | None
    planned: int
    orphans: int
    reconciled: bool
    lacks: list[str]
    packets_relayed: int | None
    age_s: float | None
    interfaces: list[InterfaceStatus] | None
    totals: dict[str, int] | None


class StreamCount(TypedDict):
    """How many RTP streams have a state and a reason."""

    state: State
    reason: str
    streams: int


class Commands(TypedDict):
    """Control commands since the agent's start."""

    by_verb: dict[str, int]
    not_understood: int
    retransmissions: int
    without_reply: int


class HepStatus(TypedDict):
    """Copies of SIP since the agent's start."""

    messages: int
    byes: int
    blocked: int
    malformed: int


class JournalStatus(TypedDict):
    """The journal."""

    kind: str
    failures: int
    pending: int
    error: str | None


class DrainStatus(TypedDict):
    """`stop` is None while the agent does not drain."""

    stop: Stop | None
    since_s: float | None
    group: bool
    calls: int
    entries: int


class LogStatus(TypedDict):
    """The event log."""

    first: int
    next: int
    bytes: int
    segments: int
    written: int
    dropped: int
    error: str | None


class EndedCounts(TypedDict):
    """What is over, since the start: calls, and media lines with an answer of which no packet of one party, or of both, was seen."""

    calls: int
    one_way: int
    zero_packet: int


class TableWrites(TypedDict):
    """Writes to the data plane's tables, since the start."""

    batches: int
    updates: int
    retries: int
    failures: int
    collisions: int
    waiting: int


class Status(TypedDict):
    """The agent as a whole."""

    api: int
    epoch: int
    version: str
    pid: int
    started_us: int
    uptime_s: float
    role: Literal["single", "active", "standby"]
    ready: bool
    problems: list[Problem]
    control: list[str]
    relays: list[RelayStatus]
    data_plane: DataPlaneStatus | None
    calls: int
    calls_to_restore: int
    streams: list[StreamCount]
    commands: Commands
    hep: HepStatus | None
    journal: JournalStatus | None
    drain: DrainStatus
    media_timeouts: int
    source_mismatches: int
    ended: EndedCounts
    learn_notices: int
    table_writes: TableWrites | None
    limits: dict[str, int]
    conferences: int | None
    events: LogStatus
    followers: int


class Format(TypedDict):
    """A format of an m= line, by a=rtpmap or static; the clock rate is in Hz."""

    payload_type: int
    encoding: str
    clock_rate: int


class SdpLine(TypedDict):
    """A media line of an SDP body."""

    medium: str
    address: str | None
    port: int
    direction: Direction
    formats: list[Format]
    ptime_ms: int | None
    rtcp_mux: bool


class Entry(TypedDict):
    """Packets from source to destination leave from new_source to new_destination (ADDRESS:PORT)."""

    source: str
    destination: str
    new_source: str | None
    new_destination: str | None


class Counters(TypedDict):
    """What entries counted; None was not measured."""

    packets: int
    bytes: int
    lost: int | None
    reordered: int | None
    duplicates: int | None
    jitter_ms: float | None
    jitter_max_ms: float | None


class Leg(TypedDict):
    """A party of a media line."""

    signalled: str | None
    latched: str | None
    latched_rtcp: str | None
    relay_port: str | None
    asymmetric: bool
    source_mismatches: int
    payload_types: list[tuple[int, int]]
    allowed_sources: list[str] | None
    sdp: SdpLine | None
    sends_from: str | None
    sends_to: str | None
    relay_packets: int | None
    relay_packets_age_s: float | None


# "from" is a keyword of Python, so this one is not a class.
Stream = TypedDict(
    "Stream",
    {
        "from": Party,
        "component": Component,
        "state": State,
        "reason": str,
        "detail": str | None,
        "since_s": float,
        "entry": Entry | None,
        "was_offloaded": bool,
        "counters": Counters | None,
        "counters_age_s": float | None,
        "offloaded_after_us": int | None,
        "idle_s": float | None,
    },
)


class Hold(TypedDict):
    """Something that the relay does to a line's media, which keeps it there. command: None: the agent did not see it; party: None: both, or that is not known."""

    reason: str
    command: str | None
    party: Party | None
    selection: NotRequired[str]
    subscription: NotRequired[str]
    recording: bool
    to: list[str]


class Line(TypedDict):
    """A media line: one session of a relay. recorders: how many get its media."""

    media: int | None
    relay: str
    from_tag: str
    to_tag: str | None
    released: str | None
    caller: Leg
    callee: Leg
    streams: list[Stream]
    holds: list[Hold]
    recorders: int


class Call(TypedDict):
    """One call. Its counters are fresh if counters_error is None and their counters_age_s is 0."""

    call: str
    started_us: int
    age_s: float
    lines: list[Line]
    counters_error: str | None


class CallPage(TypedDict):
    """Some calls, the oldest first. total: how many fit the filter; next: for the page after this one."""

    calls: list[Call]
    total: int
    next: int | None


class TraceVerdict(TypedDict):
    """The data plane's own words on a packet."""

    verdict: str
    reason: str | None
    out_source: str | None
    out_destination: str | None
    out_interface: str | None


TraceCall = TypedDict(
    "TraceCall",
    {
        "call": str,
        "media": int | None,
        "from": Party,
        "component": Component,
        "state": State,
        "reason": str,
        "expected_source": str | None,
    },
)


class Trace(TypedDict):
    """Where a packet would go, and whose it is."""

    source: str
    destination: str
    data_plane: TraceVerdict | None
    call: TraceCall | None


class Audit(TypedDict):
    """What a comparison of the relay table with the plan found."""

    entries: int
    missing: int
    unexpected: int
    different: int
    writes: int
    took_s: float


class Codec(TypedDict):
    """A codec as signalling has it; the clock rate is in Hz."""

    payload_type: int
    encoding: str
    clock_rate: int
    channels: NotRequired[int | None]
    fmtp: NotRequired[str | None]


class Layers(TypedDict):
    """How packets tell their layers: by dependency-descriptor (with extension_id), vp8 or vp9."""

    by: str
    extension_id: NotRequired[int | None]


class JoinMedium(TypedDict):
    """A medium of a participant, as its SDP has it."""

    medium: str
    transport: NotRequired[str]
    direction: NotRequired[Direction]
    codecs: NotRequired[list[Codec]]
    layers: NotRequired[Layers | None]
    rtcp_mux: NotRequired[bool | None]
    destination: NotRequired[str | None]


class Credentials(TypedDict):
    """ICE credentials of the agent's side (RFC 8445 section 5.3)."""

    ufrag: str
    password: str


class StreamRate(TypedDict):
    """One SSRC that a participant sends."""

    ssrc: int
    payload_type: int | None
    packets: int
    bits_per_s: int | None
    targets_bits_per_s: list[int]
    repair: bool
    conflicts_with: str | None


class ParticipantMedium(TypedDict):
    """A medium of a participant ("video/2": a further one that brings it one sender, `shows`, or of tiled streams one, `shows_ssrc`): where it sends to, where it comes from."""

    medium: str
    address: str
    direction: Direction
    latched: str | None
    contested: bool
    transport: str
    codecs: list[Codec]
    layers: Layers | None
    rtcp_mux: bool
    shows: str | None
    shows_ssrc: NotRequired[int | None]
    streams: list[StreamRate]


Mixed = Literal["auto", "yes", "no"]
"""Whether a participant gets a mix of audio; auto: who plays one stream, and who cannot play what somebody sends."""


class Participant(TypedDict):
    """A participant of a conference; gets_mix: it does at present; muted: by its keys; gets_tiles: its video comes tiled."""

    participant: str
    call: str | None
    joined_us: int
    present: bool
    silent_s: float
    encrypted: bool
    media: list[ParticipantMedium]
    ice: Credentials | None
    signalling: Any
    mixed: Mixed
    gets_mix: bool
    muted: bool
    gets_tiles: bool


class CopiedStream(TypedDict):
    """One SSRC as a receiver gets it."""

    ssrc: int
    packets: int | None


class Subscription(TypedDict):
    """What a receiver gets of a sender's medium; target is None where it is paused."""

    sender: str
    receiver: str
    medium: Quality
    quality: Quality
    target: int | None
    decided_by: Literal["policy", "external", "operator"]
    packets: int | None
    streams: list[CopiedStream]
    estimate_bits_per_s: int | None
    reported: bool


class PairQuality(TypedDict):
    """The highest medium that a receiver gets of a sender, where that is not all."""

    sender: str
    receiver: str
    quality: Quality


TiledCodec = Literal["H261", "H264", "H265"]
"""Codecs whose pictures can be tiled."""


class TilingWish(TypedDict):
    """Tiled streams that are wanted; None: as the agent has it by default, in one level, and for everybody who can play them."""

    codec: TiledCodec
    payload_type: int | None
    places: int | None
    columns: int | None
    predicted: bool
    receivers: list[str] | None


class Tile(TypedDict):
    """A tile of a stream, in samples of luma; None until the mixer knows the size. refused: pictures of its source that could not be tiled."""

    place: int
    participant: str
    source: int
    x: int | None
    y: int | None
    width: int | None
    height: int | None
    pictures: int
    refused: int
    refusal: str | None


class TiledColumn(TypedDict):
    """A column that is joined with others in a stream; mixer: the control socket of the one that makes it."""

    column: int
    ssrc: int
    mixer: str | None


class TiledStream(TypedDict):
    """One stream that shows many participants; places: how many tiles it has room for; columns: of two levels."""

    ssrc: int
    places: int
    tiles: list[Tile]
    columns: list[TiledColumn]


class Untiled(TypedDict):
    """Somebody who sends video and has no tile, and why."""

    participant: str
    reason: str


class Tiling(TilingWish):
    """Tiled streams as they are; mixer: the control socket of the one that makes them; problem: why none does."""

    mixer: str | None
    problem: str | None
    streams: list[TiledStream]
    untiled: list[Untiled]


class ConferenceSummary(TypedDict):
    """A conference in the list."""

    conference: str
    participants: int
    design: str
    problem: str | None


class Unjoined(TypedDict):
    """A receiver that cannot be given a sender's video, and why."""

    sender: str
    receiver: str
    reason: str


class Conference(ConferenceSummary):
    """A conference with its participants; mixing: there are mixers; mixer: the control socket of the one that has its audio; speaker: by that mixer; announcements: those who get a mix hear who joins and leaves; tiling: its tiled streams; counters_age_s: of the packets of copies, None: none were read."""

    mixing: bool
    mixer: str | None
    speaker: str | None
    announcements: bool
    tiling: Tiling | None
    unjoined: list[Unjoined]
    started_us: int
    members: list[Participant]
    qualities: list[PairQuality]
    subscriptions: list[Subscription]
    counters_age_s: float | None


class Usage(TypedDict):
    """Sums of counters; `measured` packets are those which what follows belongs to (RFC 3550)."""

    rows: int
    packets: int
    bytes: int
    measured: int
    lost: int
    reordered: int
    duplicates: int
    jitter_ms: float | None
    jitter_max_ms: float | None


class MediumUsage(TypedDict):
    """What a medium of a participant carried until it left; None: a reading of the data plane's counters is lost."""

    medium: str
    address: str
    latched: str | None
    payload_type: int | None
    codecs: list[Codec]
    sent: Usage | None
    received: Usage | None


class Decision(TypedDict):
    """A policy's decision: 0 to 2, or None to pause."""

    sender: str
    receiver: str
    target: int | None


class Estimate(TypedDict):
    """What a policy decides from."""

    conference: str
    sender: str
    receiver: str
    medium: Quality
    estimate_bits_per_s: int
    remb_bits_per_s: int | None
    fraction_lost: float | None
    targets_bits_per_s: list[int]
    target: int | None


Facts = dict[str, Any]
"""What an event of some kind says; docs/admin-api.md lists the fields of each kind."""
