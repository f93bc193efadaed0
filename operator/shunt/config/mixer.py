"""The `mixer:` section of the configuration."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from pydantic import Field

from shunt.config.section import Location, Section
from shunt.config.values import MediaAddress, MixerSocket, Name, Network, Sound

MIXER_SOCKET = "unix:/run/shunt-mixer/control.sock"


class Announcements(Section):
    """Sounds for receivers of a mix when a participant joins or leaves, in conferences with announcements."""

    joined: Sound | None = Field(default=None, description="Sound when a participant joins: tone:HZ (50 to 4000), or a WAV file (16-bit PCM, one or two channels, 8,000 to 48,000 Hz, at most 10 s).")
    left: Sound | None = Field(default=None, description="Sound when a participant leaves, in the same form.")


class Mixer(Section):
    """A mixer of conference audio (`shunt mixer`). It runs on a host or in a network namespace of its own, because the data plane sends copies to it."""

    listen: MixerSocket = Field(default=MIXER_SOCKET, description="Control socket for the agents, unix: or tcp:.")
    allow: list[Network] = Field(default=[ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")], description="Networks of the agents, for tcp:. There is no password.")
    socket_group: Name = Field(default="shunt", description="Group that may use the Unix socket.")
    address: MediaAddress = Field(description="Address that receives the participants' media and sends the mixes. Not an address of the data plane's host.")
    port: int = Field(default=30000, ge=1, le=65535, description="UDP port of audio.")
    receivers: int = Field(default=400, ge=1, le=100_000, description="Most participants that get mixes.")
    load: float = Field(default=0.7, gt=0, le=1, description="Share of a core above which the mixer accepts no further conference.")

    decoder: str | None = Field(
        default="ffmpeg",
        min_length=1,
        description="Name or path of FFmpeg, or of a program with its options. It decodes one picture of each tiled source; undecodable sources are rejected. null: no trial decode.",
    )
    announcements: Announcements | None = Field(default=None, description="Sounds for participants that join and leave. Without this section there are none.")

    def problems(self) -> Iterator[tuple[Location, str]]:
        """Yields contradictions between keys that are valid on their own."""
        if self.listen.startswith("unix:") and "allow" in self.model_fields_set:
            yield ("allow",), "applies to tcp only; a Unix socket has socket_group"
