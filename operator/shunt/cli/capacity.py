"""How many meetings fit, by design and by what runs out first (Scallop, section 6.1 and figure 17).

The paper's figures are of a Tofino 2 of 12.8 Tbit/s: 533K two-party meetings, 128K NRA, 42.7K RA-R, 4.3K RA-SR with ten
participants who all send. The last three are trees (the paper counts K = 1024 there). For the first it names neither limit
nor rate; 12.8 Tbit/s over 24 Mbit/s is 533,333, which is what `meeting_rate` of two participants stands for here.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any

HALVES = 2  # m: what shares a tree
SET = 7
"""Trees of a set as the agent lays them out: one of audio, three of video, three of the screen."""
LAYER_ROWS = 21  # of a stream with layers: three places of Chromium's VP8 structure, the largest that browsers send (docs/conference.md)


class Design(enum.Enum):
    """How the trees of a meeting are laid out (docs/conference.md)."""

    TWO_PARTY = "two-party"
    NRA = "NRA"
    RA_R = "RA-R"
    RA_SR = "RA-SR"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine holds (Scallop, section 6.3, and TNA's field widths). streams: what the copy table's 24-bit key tells apart; tracked: streams with rewritten
    numbers, each receiver's by itself."""

    trees: int = 65_536
    nodes: int = 1 << 24
    rids: int = 65_536
    streams: int = 1 << 24
    tracked: int = 65_536


@dataclass(frozen=True, slots=True)
class Load:
    """What each meeting is like. Rates are bit/s of all streams of one sender; adapted: receivers below the top quality."""

    participants: int = 10
    senders: int | None = None  # None: all
    layered_sources: int = 1  # streams with layers of each sender
    sources: int = 2
    adapted: int | None = None  # None: all
    sender_rate: float = 12e6


@dataclass(frozen=True, slots=True)
class Tables:
    """Rows of a data plane's tables (docs/replication.md); None: more than anybody asks for, so that the engine alone counts."""

    conference: int | None = None
    copy: int | None = None
    layer: int | None = None
    relay: int | None = None


def capacity(design: Design, load: Load = Load(), limits: Limits = Limits(), qualities: int = 3, line_rate: float = 12.8e12, tables: Tables = Tables()) -> dict[str, Any]:
    """How many such meetings fit, and what each limit alone would allow; `bound_by` is the smallest. line_rate: bit/s. Raises ValueError."""
    people = 2 if design is Design.TWO_PARTY else load.participants
    senders = min(people, people if load.senders is None else load.senders)
    adapted = min(people, people if load.adapted is None else load.adapted)
    if people < 2 or senders < 1 or qualities < 1 or adapted < 0 or load.sender_rate <= 0:
        raise ValueError("a conference needs at least two participants, one sender and one quality")
    trees = limits.trees - 1  # MGID 0 means that nothing is replicated
    sets = trees // qualities
    allowed: dict[str, int] = {"line rate": int(line_rate / (senders * (people - 1) * load.sender_rate))}
    if design is not Design.TWO_PARTY:
        rows = 1 if design is Design.NRA else qualities
        allowed["trees"] = {Design.NRA: HALVES * sets * qualities, Design.RA_R: HALVES * sets, Design.RA_SR: HALVES * sets // senders}[design]
        nodes = {Design.NRA: people, Design.RA_R: rows * people, Design.RA_SR: rows * senders * (people - 1)}[design]
        allowed["L1 nodes"] = (limits.nodes - 1) // nodes
        allowed["stream numbers"] = (limits.streams - 1) // (senders * load.sources)
        if HALVES * people >= limits.rids:
            raise ValueError(f"{limits.rids} RIDs of a tree are for {(limits.rids - 1) // HALVES} participants")
    if design in (Design.RA_R, Design.RA_SR) and adapted:
        pairs = adapted * senders - min(adapted, senders)  # nobody receives himself
        if pairs:
            allowed["rewritten streams"] = limits.tracked // (pairs * load.layered_sources)
    streams = senders * load.sources
    if design is Design.TWO_PARTY:
        rows_of = {"relay": (tables.relay, streams)}
    else:
        rows_of = {
            "conference": (tables.conference, streams), "copy": (tables.copy, streams * (people - 1)),
            "layer": (tables.layer, senders * load.layered_sources * LAYER_ROWS),
        }  # fmt: skip
    allowed |= {f"rows of {name}": there // needed for name, (there, needed) in rows_of.items() if there is not None and needed}
    bound_by = min(allowed, key=allowed.__getitem__)
    return {"design": design.value, "meetings": allowed[bound_by], "bound_by": bound_by, "allowed": allowed}


# What the paper's evaluation takes as the load of each design, and what it says comes out.
PAPER = {
    Design.TWO_PARTY: (Load(participants=2), "533K"),
    Design.NRA: (Load(participants=3), "128K"),
    Design.RA_R: (Load(participants=3, adapted=0), "42.7K"),
    Design.RA_SR: (Load(participants=10, adapted=0), "4.3K"),
}


def paper() -> list[dict[str, Any]]:
    """The four figures of the paper beside ours: each with the load that lets the design's own limit show."""
    return [{**capacity(design, load), "paper": figure, "load": asdict(load)} for design, (load, figure) in PAPER.items()]
