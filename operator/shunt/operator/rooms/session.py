"""A browser's session at an edge, as it is kept with its participant for a restart of the operator daemon. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shunt.admin.model import JoinMedium, Participant
from shunt.operator.conferences import names as people
from shunt.operator.conferences.sdp import medium_of
from shunt.operator.rooms.edge import Medium, Target

_FORMAT = 1


@dataclass(slots=True)
class Session:
    """Whose session it is. participant, name: the identifier at the agent, and the name for people; edge: the socket; names: which medium of the participant each line is, by mid; holder: what is kept of the token that began it, empty for a SIP
    call; muted: as its browser says; besides: what else is kept, as a SIP call."""

    id: str
    edge: str
    room: str
    participant: str
    name: str
    role: str
    names: dict[str, str] = field(default_factory=dict)
    holder: str = ""
    muted: bool = False
    besides: dict[str, Any] = field(default_factory=dict)

    def kept(self) -> dict[str, Any]:
        """As JSON, for the participant's `signalling`."""
        own = {"session": self.id, "socket": self.edge, "role": self.role, "names": self.names, "holder": self.holder, "muted": self.muted}
        return self.besides | {"format": _FORMAT, people.KEY: self.name, "edge": own}

    @classmethod
    def read(cls, room: str, participant: str, kept: Any) -> Session | None:
        """The inverse of kept(); None: the participant is not at an edge, or not as this version writes it."""
        if not isinstance(kept, dict) or kept.get("format") != _FORMAT or not isinstance(kept.get("edge"), dict):
            return None
        given = kept["edge"]
        try:
            names = {str(mid): str(name) for mid, name in given["names"].items()}
            besides = {key: value for key, value in kept.items() if key not in ("format", people.KEY, "edge")}
            return cls(str(given["session"]), str(given["socket"]), room, participant, people.kept(participant, kept), str(given["role"]), names, str(given["holder"]), bool(given["muted"]), besides)
        except (KeyError, AttributeError):
            return None


def joined_media(media: Sequence[Medium], names: Mapping[str, str]) -> list[JoinMedium]:
    """What the agent is told of a browser's lines. A medium of which a browser only gets streams has a first one that is on hold."""
    found: dict[str, JoinMedium] = {}
    for one in media:
        if (name := names.get(one["mid"])) is not None:
            found[name] = {
                "medium": name,
                "transport": "RTP/AVPF",
                "direction": one["direction"],
                "codecs": one["codecs"],
                "layers": one.get("layers") if medium_of(name) != "audio" else None,
                "rtcp_mux": True,
                "destination": one["rtp"],
            }
    for name in list(found):
        kind = medium_of(name)
        if kind not in found:
            found[kind] = {"medium": kind, "transport": "RTP/AVPF", "direction": "inactive", "codecs": found[name].get("codecs", []), "rtcp_mux": True}
    return list(found.values())


def addresses(media: Sequence[Medium]) -> list[str]:
    """The addresses of an edge's plain sockets, which are latched by their first packet."""
    return list(dict.fromkeys(one["rtp"].rpartition(":")[0].strip("[]") for one in media))


def targets(participant: Participant, names: Mapping[str, str]) -> list[Target]:
    """Where each line's plain RTP goes: the conference's address of that medium."""
    places = {medium["medium"]: medium["address"] for medium in participant["media"]}
    return [{"mid": mid, "rtp": places[name]} for mid, name in names.items() if name in places]
