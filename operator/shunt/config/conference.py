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
    """One record for each participant that left. Other programs may rotate the files at any time."""

    csv: AbsolutePath | None = Field(default=None, description="CSV file to append to, one line for each medium of a participant.")
    json_lines: AbsolutePath | None = Field(default=None, description="File of JSON lines to append to, one line for each participant.")


class Tiling(Section):
    """Tiled streams of each new conference, for all participants that can play them."""

    codec: Literal["H261", "H264", "H265"] = Field(description="Codec of the sources and of the tiled streams.")
    payload_type: int | None = Field(default=None, ge=0, le=127, description="Payload type of the tiled streams. Default: 31 for H.261, 96 for H.264, 97 for H.265.")
    places: int | None = Field(default=None, ge=1, le=255, description="Tiles of an H.264 column (default 15) or of an H.265 grid (default 16). An H.261 CIF picture has four.")
    columns: int | None = Field(default=None, ge=2, le=127, description="H.264 columns of a stream, each made by its own mixer and joined by another one. Default: one level of mixers.")
    predicted: bool = Field(default=False, description="Accept predicted H.264 or H.265 frames: all sources keep vectors within the picture or a guard band.")


class Conference(Section):
    """Conferences, replicated by the data plane."""

    address: MediaAddress = Field(description="The address that participants send to and that copies come from.")
    ports: Ports = Field(default=PortRange(20000, 29999), description="UDP ports for participants, inclusive, from an even port on: two for each medium of each participant.")
    state: AbsolutePath = Field(
        default="/var/lib/shunt/conferences",
        description="Folder of stored conferences, one file each, created if missing. Not used with journal.redis.",
    )
    timeout: int = Field(default=60, ge=5, le=86400, description="Seconds without a packet after which a participant is removed.")
    selector: str | None = Field(
        default=None,
        description="MODULE:FUNCTION or /PATH/FILE.py:FUNCTION that selects the layers of a receiver. Arguments: the current decode target, earlier estimates, the new estimate; result: the new decode target. Default: the agent's policy.",
    )
    cdr: Cdr | None = Field(default=None, description="Records of participants. Without this section none are written.")
    mixer: list[MixerSocket] = Field(default=[], max_length=64, description="Control sockets of the mixers: unix:/PATH or tcp:ADDRESS:PORT. Without them nothing is mixed.")
    tiling: Tiling | None = Field(default=None, description="Tiled video in each new conference. Without this section a conference is tiled on request.")
    announcements: bool = Field(default=False, description="In each new conference, receivers of a mix hear when participants join and leave (mixer.announcements).")
    sip: UdpSocket | None = Field(default=None, description="udp:ADDRESS:PORT for SIP calls to sip:CONFERENCE@ADDRESS from the SIP server. Without it there is no dial-in.")
    sip_allow: list[Network] = Field(
        default=[ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")], description="Networks that may send SIP: the SIP server's, which decides who may call."
    )

    @field_validator("selector")
    @classmethod
    def _selector_works(cls, name: str | None) -> str | None:
        if name is not None:
            load_selector(name)
        return name

    def problems(self, data_plane: bool) -> Iterator[tuple[Location, str]]:
        """Yields conflicts with the rest of the file: conferences without a data plane."""
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
