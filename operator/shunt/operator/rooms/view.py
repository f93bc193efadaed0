"""What a page is told of its room, from the agent's snapshot. Pure functions."""

from __future__ import annotations

from typing import Any

from shunt.admin.model import Conference, Participant, ParticipantMedium, Subscription, Tiling
from shunt.operator.conferences import names
from shunt.operator.conferences.sdp import MOST_LEGS, medium_of
from shunt.operator.rooms.offer import MEDIA
from shunt.operator.rooms.session import Session

TARGETS = 3
MOST_LINES = MOST_LEGS - 1
"""Lines of one medium by which a browser receives; the remaining media description sends."""
NO_ANSWER = "The room's server does not answer. Audio and video continue."
PROBLEM = "The room has a problem: some audio or video may be missing. Tell whoever runs it."
_SENDING = ("sendrecv", "sendonly")


def peek(found: Conference) -> dict[str, Any]:
    """The room as it is seen from outside: who is in, and how many lines its streams need."""
    return {"participants": [_participant(one) for one in found["members"]], "wanted": _wanted(found["members"])}


def _wanted(senders: list[Participant]) -> dict[str, int]:
    return {kind: sum(_sends(one, kind) for one in senders) for kind in MEDIA}


def room(found: Conference, session: Session) -> dict[str, Any]:
    """The room as one of its browsers is to see it.

    {participants: [{id, name, present, at_edge, muted, media: {medium: whether it is sent}}], lines: [{mid, medium, shows, ssrc}], wanted: {medium: lines that bring streams},
    without_line: {medium: ids of senders that this browser does not receive, because each of its MOST_LINES lines brings another sender},
    quality: [{sender, medium, target, targets, layers, decided_by, estimate, rates}], tiling: None, or of a browser that gets tiled video {streams: how many,
    tiles: [{id, ssrc, x, y, width, height}], untiled: {id: reason}}}; shows and sender are ids; rates in bits/s, tiles in samples of their stream. ssrc: of which tiled stream, as lines have it.
    """
    others = [one for one in found["members"] if one["participant"] != session.participant]
    mine = next((one for one in found["members"] if one["participant"] == session.participant), None)
    shows = {medium["medium"]: (medium.get("shows"), medium.get("shows_ssrc")) for medium in mine["media"]} if mine is not None else {}
    nobody = (None, None)
    lines = [{"mid": mid, "medium": medium_of(name), "shows": shows.get(name, nobody)[0], "ssrc": shows.get(name, nobody)[1]} for mid, name in session.names.items() if "/" in name]
    tiling = _tiling(found["tiling"]) if mine is not None and mine["gets_tiles"] and found["tiling"] is not None else None
    merged = {"audio": mine is not None and mine["gets_mix"], "video": tiling is not None}
    return {
        "room": found["conference"],
        "me": session.participant,
        "name": session.name,
        "problem": PROBLEM if found["problem"] else None,
        "participants": [_participant(one) for one in others],
        "lines": lines,
        "wanted": _wanted(others),
        "without_line": {kind: [] if merged.get(kind) else _without_line(others, lines, kind) for kind in MEDIA},
        "quality": [_quality(one, others) for one in found["subscriptions"] if one["receiver"] == session.participant],
        "tiling": tiling,
    }


def _without_line(others: list[Participant], lines: list[dict[str, Any]], kind: str) -> list[str]:
    """Senders of a medium for which no line is left. A line that is free, or can still be added, leaves nobody out."""
    shown = [line["shows"] for line in lines if line["medium"] == kind]
    if len(shown) < MOST_LINES or None in shown:
        return []
    return [one["participant"] for one in others if _sends(one, kind) and one["participant"] not in shown]


def _tiling(tiling: Tiling) -> dict[str, Any]:
    """The layout. Each stream comes by a line of its own, as far as there are enough."""
    tiles = [(stream["ssrc"], tile) for stream in tiling["streams"] for tile in stream["tiles"] if tile["width"]]
    return {
        "streams": len(tiling["streams"]),
        "tiles": [{"id": one["participant"], "ssrc": ssrc, **{edge: one[edge] for edge in ("x", "y", "width", "height")}} for ssrc, one in tiles],
        "untiled": {one["participant"]: one["reason"] for one in tiling["untiled"]},
    }


def _participant(one: Participant) -> dict[str, Any]:
    session = Session.read("", "", one["signalling"])
    return {
        "id": one["participant"],
        "name": names.shown(one),
        "present": one["present"],
        "at_edge": session is not None,
        "muted": one["muted"] or session is not None and session.muted,
        "media": {kind: _sends(one, kind) for kind in MEDIA if _first(one, kind) is not None},
    }


def _first(one: Participant, kind: str) -> ParticipantMedium | None:
    return next((medium for medium in one["media"] if medium["medium"] == kind), None)


def _sends(one: Participant, kind: str) -> bool:
    medium = _first(one, kind)
    return medium is not None and medium["direction"] in _SENDING


def _quality(one: Subscription, others: list[Participant]) -> dict[str, Any]:
    sender = next((other for other in others if other["participant"] == one["sender"]), None)
    medium = _first(sender, one["medium"]) if sender is not None else None
    rates = next((stream["targets_bits_per_s"] for stream in medium["streams"] if not stream["repair"]), []) if medium is not None else []
    return {
        "sender": one["sender"],
        "medium": one["medium"],
        "target": one["target"],
        "targets": TARGETS,
        "layers": medium is not None and medium["layers"] is not None,
        "decided_by": one["decided_by"],
        "estimate": one["estimate_bits_per_s"],
        "rates": rates,
    }
