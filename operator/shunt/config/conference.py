"""The `conference:` section of the configuration."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Literal

from pydantic import Field, field_validator

from shunt.config.section import Location, Section
from shunt.config.selector import load_selector
from shunt.config.values import AbsolutePath, MediaAddress, MixerSocket, Network, PortRange, Ports, UdpSocket


class Cdr(Section):
    """A record for every participant who has left; other programs may rotate the files at any time."""

    csv: AbsolutePath | None = Field(default=None, description="CSV file to append to, one line for each medium of a participant.")
    json_lines: AbsolutePath | None = Field(default=None, description="File of JSON lines to append to, one line for each participant.")


class Tiling(Section):
    """Tiled streams of each new conference, for everybody who can play them."""

    codec: Literal["H261", "H264", "H265"] = Field(description="The codec of the tiled streams, which is that of the sources.")
    payload_type: int | None = Field(default=None, ge=0, le=127, description="Of the tiled streams; absent: 31 for H.261, 96 for H.264, 97 for H.265.")
    places: int | None = Field(default=None, ge=1, le=255, description="Tiles of a column of H.264 (absent: 15) or of a grid of H.265 (absent: 16). A CIF picture of H.261 has four.")
    columns: int | None = Field(default=None, ge=2, le=127, description="Columns of H.264, each made by a mixer of its own, that one more joins in a stream; absent: one level of mixers.")
    predicted: bool = Field(
        default=False, description="All sources of H.264 or H.265 have agreed to keep vectors within the picture or a guard band, so their pictures may predict from the one before."
    )


class Conference(Section):
    """Conferences, replicated by the data plane."""

    address: MediaAddress = Field(description="The address that participants send to, and that copies come from.")
    ports: Ports = Field(default=PortRange(20000, 29999), description="UDP ports for participants, inclusive: two for each medium of each participant; starts at an even port.")
    state: AbsolutePath = Field(
        default="/var/lib/shunt/conferences",
        description="Folder in which conferences are kept for a restart of the agent, a file for each; it is made if need be. With journal.redis they are kept there.",
    )
    timeout: int = Field(default=60, ge=5, le=86400, description="Seconds without a packet after which a participant is removed.")
    selector: str | None = Field(
        default=None,
        description="MODULE:FUNCTION, or /PATH/FILE.py:FUNCTION, that says which layers a receiver gets: called with its decode target, its earlier estimates and the new one, it returns the new decode target; absent: as the agent decides.",
    )
    cdr: Cdr | None = Field(default=None, description="Records of participants; absent: none.")
    mixer: list[MixerSocket] = Field(default=[], max_length=64, description="Control sockets of mixers (unix:/PATH or tcp:ADDRESS:PORT), among which conferences are placed; absent: nothing is mixed.")
    tiling: Tiling | None = Field(default=None, description="Tiled streams of each new conference in place of everybody's video; absent: as long as nobody asks for them.")
    announcements: bool = Field(default=False, description="In each new conference those who get a mix hear who joins and who leaves: the sounds of the mixers (mixer.announcements).")
    sip: UdpSocket | None = Field(default=None, description="udp:ADDRESS:PORT on which SIP calls to sip:CONFERENCE@ADDRESS are taken from the SIP server; absent: no dial-in.")
    sip_allow: list[Network] = Field(
        default=[ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")], description="Networks from which SIP is taken: the SIP server's, which says who may call."
    )

    @field_validator("selector")
    @classmethod
    def _selector_works(cls, name: str | None) -> str | None:
        if name is not None:
            load_selector(name)
        return name

    def problems(self, data_plane: bool) -> Iterator[tuple[Location, str]]:
        """What is wrong with the rest of the file: without a data plane."""
        if not data_plane:
            yield (), "needs a data_plane: nothing else carries conferences"
        for i, text in enumerate(self.mixer):
            if text in self.mixer[:i]:
                yield ("mixer", i), f"{text} is listed twice"
        if self.announcements and not self.mixer:
            yield ("announcements",), "needs a mixer (conference.mixer)"
        if self.tiling is not None and not self.mixer:
            yield ("tiling",), "needs a mixer (conference.mixer)"
        if self.tiling is not None and self.tiling.codec == "H261" and self.tiling.places not in (None, 4):
            yield ("tiling", "places"), "a CIF picture of H.261 has four"
        if self.tiling is not None and self.tiling.columns is not None:
            if self.tiling.codec == "H261":
                yield ("tiling", "columns"), "a CIF picture of H.261 cannot grow, so nothing is joined to it"
            elif self.tiling.columns * (self.tiling.places or 15) > 255:
                yield ("tiling", "columns"), "a stream has at most 255 tiles"
        if self.cdr is not None and self.cdr.csv is None and self.cdr.json_lines is None:
            yield ("cdr",), "names no file: give csv, json_lines or both"
        elif self.cdr is not None and self.cdr.csv == self.cdr.json_lines:
            yield ("cdr", "json_lines"), "is the file of csv too"
