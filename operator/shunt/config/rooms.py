"""The `rooms:` section of the configuration."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from pydantic import Field, field_validator

from shunt.config.section import Location, Section
from shunt.config.values import AbsolutePath

_CODECS = {"audio": ("opus", "PCMU", "PCMA", "G722"), "video": ("VP8", "H264", "VP9", "AV1")}


def _known(kind: str, names: list[str]) -> list[str]:
    by_name = {name.lower(): name for name in _CODECS[kind]}
    for name in names:
        if name.lower() not in by_name:
            raise ValueError(f"{name!r} is none of {', '.join(_CODECS[kind])}")
    if len({name.lower() for name in names}) < len(names):
        raise ValueError("a codec is listed twice")
    return [by_name[name.lower()] for name in names]


class Codecs(Section):
    """Codecs of rooms whose names match a pattern. The first match applies."""

    rooms: str = Field(min_length=1, max_length=64, description="A room's name, or a pattern with * and ?.")
    audio: list[str] = Field(default=["PCMU", "PCMA"], description="As rooms.audio.")
    video: list[str] = Field(default=["VP8", "H264"], description="As rooms.video.")

    @field_validator("audio")
    @classmethod
    def _audio(cls, names: list[str]) -> list[str]:
        return _known("audio", names)

    @field_validator("video")
    @classmethod
    def _video(cls, names: list[str]) -> list[str]:
        return _known("video", names)


class Rooms(Section):
    """Conferences that browsers join through edges (`shunt-edge`)."""

    edges: list[str] = Field(
        default=["unix:/run/shunt-edge/control.sock"],
        min_length=1,
        description="Control sockets of the edges, unix:/PATH. A browser gets the answering edge with the fewest sessions.",
    )
    secret_file: AbsolutePath = Field(default="/var/lib/shunt/operator/rooms.secret", description="File of the key that signs links, created if missing. A new key invalidates all links.")
    url: str | None = Field(default=None, pattern=r"^https?://[^/ ]+(/.*)?$", description="Start of all links: the REST API as browsers reach it, https://rooms.example.org. Default: api.listen.")
    create: bool = Field(default=True, description="The first participant with a link creates the room. false: only `shunt conference create` does.")
    audio: list[str] = Field(default=["opus", "PCMU", "PCMA"], min_length=1, description="Audio codecs in order of preference: opus, PCMU, PCMA, G722. The first participant fixes the room's codec.")
    video: list[str] = Field(default=["VP8", "H264"], description="Video codecs in order of preference: VP8, H264, VP9, AV1. An empty list: no video.")
    codecs_of: list[Codecs] = Field(default=[], description="Codecs of particular rooms, such as rooms that phones call.")

    @field_validator("edges")
    @classmethod
    def _sockets(cls, edges: list[str]) -> list[str]:
        for edge in edges:
            if not edge.startswith("unix:/"):
                raise ValueError(f"{edge!r} is not unix:/PATH")
        if len(set(edges)) < len(edges):
            raise ValueError("an edge is listed twice")
        return edges

    @field_validator("audio")
    @classmethod
    def _audio(cls, names: list[str]) -> list[str]:
        return _known("audio", names)

    @field_validator("video")
    @classmethod
    def _video(cls, names: list[str]) -> list[str]:
        return _known("video", names)

    def codecs(self, room: str) -> dict[str, list[str]]:
        """Returns the codecs of each medium of a room in order of preference."""
        special = next((one for one in self.codecs_of if fnmatch.fnmatchcase(room, one.rooms)), None)
        audio, video = (self.audio, self.video) if special is None else (special.audio, special.video)
        return {"audio": audio, "video": video, "screen": video}

    def problems(self, conference: bool) -> Iterator[tuple[Location, str]]:
        """Yields conflicts with the rest of the file: rooms without conferences."""
        if not conference:
            yield (), "needs a conference section: a room is a conference"
