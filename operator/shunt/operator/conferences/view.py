"""Conferences in the form that the REST API has, from the agent's snapshots. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shunt.admin.model import Conference, ConferenceSummary, Layers, Participant
from shunt.operator.conferences import names

_DESIGNS = {"nra": "NRA", "ra-r": "RA-R", "ra-sr": "RA-SR"}  # as the paper writes them
TARGETS = 3


def summary(conference: ConferenceSummary, present: int | None = None) -> dict[str, Any]:
    """A conference in a few words. present: how many participants have a source; None: not asked."""
    return {
        "name": conference["conference"],
        "participants": conference["participants"],
        "present": present,
        "design": _DESIGNS.get(conference["design"], conference["design"]),
        "problem": conference["problem"] or "",
    }


def layers_text(layers: Layers | None) -> str | None:
    """How a medium tells its layers: "dependency-descriptor:12", "vp8"."""
    if layers is None:
        return None
    return layers["by"] + (f":{layers['extension_id']}" if layers.get("extension_id") else "")


def participant(one: Participant) -> dict[str, Any]:
    """A participant and its media."""
    return {
        "id": one["participant"],
        "name": names.shown(one),
        "present": one["present"],
        "ice": one["ice"] is not None,
        "srtp": "SRTP authenticates sequence numbers" if one["encrypted"] else "",
        "call_id": one["call"],
        "mixed": one["mixed"],
        "gets_mix": one["gets_mix"],
        "muted": one["muted"],
        "gets_tiles": one["gets_tiles"],
        "silent_s": round(one["silent_s"], 1),
        "media": [
            {
                "medium": medium["medium"],
                "relay": medium["address"],
                "source": medium["latched"],
                "contested": medium["contested"],
                "direction": medium["direction"],
                "layers": layers_text(medium["layers"]),
                "codecs": medium["codecs"],
                "ssrcs": [stream["ssrc"] for stream in medium["streams"]],
                "repair": [stream["ssrc"] for stream in medium["streams"] if stream["repair"]],
                "conflicts": [{"ssrc": stream["ssrc"], "owner": stream["conflicts_with"]} for stream in medium["streams"] if stream["conflicts_with"] is not None],
                "packets": sum(stream["packets"] for stream in medium["streams"]),
                # Nothing is told of these by the agent.
                "unreached": None,
                "strays": None,
            }
            for medium in one["media"]
        ],
    }


def last_known(name: str, participants: Sequence[str], happened: list[dict[str, Any]]) -> dict[str, Any]:
    """A conference as its events last told it: who is in it, and nothing of media."""
    known = {"name": name, "present": None, "design": None, "problem": "", "tiling": None}
    return known | {"participants": [{"id": participant, "name": participant, "media": None} for participant in participants], "happened": happened}


def conference(found: Conference, happened: list[dict[str, Any]]) -> dict[str, Any]:
    """A conference as GET /v1/conferences/NAME gives it."""
    rates = {(member["participant"], medium["medium"]): next((stream["targets_bits_per_s"] for stream in medium["streams"]), []) for member in found["members"] for medium in member["media"]}
    return summary(found, sum(member["present"] for member in found["members"])) | {
        "mixer": found["mixer"],
        "speaker": found["speaker"],
        "announcements": found["announcements"],
        "tiling": found["tiling"],
        "unjoined": list(found["unjoined"]),
        "participants": [participant(member) for member in found["members"]],
        "qualities": list(found["qualities"]),
        "flows": [
            {"sender": one["sender"], "receiver": one["receiver"], "medium": one["medium"], "ssrc": stream["ssrc"], "packets": stream["packets"]}
            for one in found["subscriptions"]
            for stream in one["streams"]
        ],
        "counters_age_s": found["counters_age_s"],
        "downlinks": [
            {
                "sender": one["sender"],
                "receiver": one["receiver"],
                "medium": one["medium"],
                "target": one["target"],
                "targets": TARGETS,
                "paused": one["target"] is None,
                "decided_by": one["decided_by"],
                "estimate": one["estimate_bits_per_s"],
                "rates": rates.get((one["sender"], one["medium"]), []),
                "heard_by_sender": one["reported"],
            }
            for one in found["subscriptions"]
            if one["medium"] != "audio" and (one["estimate_bits_per_s"] is not None or one["target"] != TARGETS - 1)
        ],
        "happened": happened,
    }
