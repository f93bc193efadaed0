"""What a page is told of its room, from the agent's snapshot. Pure functions."""

from __future__ import annotations

from typing import Any

from shunt.admin.model import Conference, Participant, ParticipantMedium, Subscription, Tiling
from shunt.operator.conferences.sdp import medium_of
from shunt.operator.rooms.offer import MEDIA
from shunt.operator.rooms.session import Session

TARGETS = 3
_SENDING = ("sendrecv", "sendonly")


def peek(found: Conference) -> dict[str, Any]:
    """The room as it is seen from outside: who is in, and how many lines its streams need."""
    return {"participants": [_participant(one) for one in found["members"]], "wanted": _wanted(found["members"])}


def _wanted(senders: list[Participant]) -> dict[str, int]:
    return {kind: sum(_sends(one, kind) for one in senders) for kind in MEDIA}


def room(found: Conference, session: Session) -> dict[str, Any]:
    """The room as one of its browsers is to see it.

    {participants: [{name, present, at_edge, media: {medium: whether it is sent}}], lines: [{mid, medium, shows}], wanted: {medium: lines that bring streams},
    quality: [{sender, medium, target, targets, layers, decided_by, estimate, rates}], tiling: None, or of a browser that gets tiled video {streams: how many,
    tiles: [{name, x, y, width, height}], untiled: {name: reason}}}; rates in bits/s, tiles in samples of a stream that is the only one.
    """
    others = [one for one in found["members"] if one["participant"] != session.participant]
    mine = next((one for one in found["members"] if one["participant"] == session.participant), None)
    shows = {medium["medium"]: medium.get("shows") for medium in mine["media"]} if mine is not None else {}
    return {
        "room": found["conference"],
        "me": session.participant,
        "problem": found["problem"],
        "participants": [_participant(one) for one in others],
        "lines": [{"mid": mid, "medium": medium_of(name), "shows": shows.get(name)} for mid, name in session.names.items() if "/" in name],
        "wanted": _wanted(others),
        "quality": [_quality(one, others) for one in found["subscriptions"] if one["receiver"] == session.participant],
        "tiling": _tiling(found["tiling"]) if mine is not None and mine["gets_tiles"] and found["tiling"] is not None else None,
    }


def _tiling(tiling: Tiling) -> dict[str, Any]:
    """The layout. All streams come by one line, of which a browser makes one picture: of several, no part is anybody's for certain."""
    streams = tiling["streams"]
    tiles = streams[0]["tiles"] if len(streams) == 1 else []
    return {
        "streams": len(streams),
        "tiles": [{"name": one["participant"], **{edge: one[edge] for edge in ("x", "y", "width", "height")}} for one in tiles if one["width"]],
        "untiled": {one["participant"]: one["reason"] for one in tiling["untiled"]},
    }


def _participant(one: Participant) -> dict[str, Any]:
    return {
        "name": one["participant"],
        "present": one["present"],
        "at_edge": Session.read("", "", one["signalling"]) is not None,
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
