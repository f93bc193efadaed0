"""The `mixer:` section of the configuration."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from pydantic import Field

from shunt.config.section import Location, Section
from shunt.config.values import MediaAddress, MixerSocket, Name, Network, Sound

MIXER_SOCKET = "unix:/run/shunt-mixer/control.sock"


class Announcements(Section):
    """What those who get a mix hear when somebody joins or leaves, in conferences that want it."""

    joined: Sound | None = Field(default=None, description="tone:HZ (50 to 4000), or the path of a WAV file of 16-bit PCM, one or two channels, 8,000 to 48,000 Hz, 10 s at most; absent: nothing.")
    left: Sound | None = Field(default=None, description="The same of who leaves.")


class Mixer(Section):
    """A mixer of conferences' audio: a daemon (`shunt mixer`), on a host of its own or in a network namespace, since copies come to it from the data plane."""

    listen: MixerSocket = Field(default=MIXER_SOCKET, description="Its control socket, for the agents that place conferences on it: unix: or tcp:.")
    allow: list[Network] = Field(
        default=[ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")], description="Networks from which commands are taken over tcp: the agents'. There is no password."
    )
    socket_group: Name = Field(default="shunt", description="Group that may use the Unix socket.")
    address: MediaAddress = Field(description="Where it gets what participants send, and sends mixes from; not an address of the data plane's host itself.")
    port: int = Field(default=30000, ge=1, le=65535, description="UDP port of audio.")
    receivers: int = Field(default=400, ge=1, le=100_000, description="Participants that it makes mixes for, at most.")
    load: float = Field(default=0.7, gt=0, le=1, description="The share of a core from which on it takes no further conference.")

    decoder: str | None = Field(
        default="ffmpeg",
        min_length=1,
        description="FFmpeg, or a program that takes its options: by name or path; it decodes one picture of each source of tiled video, and sources that it cannot decode are refused. null: none is tried.",
    )
    announcements: Announcements | None = Field(default=None, description="Sounds of who joins and who leaves, for conferences that want them; absent: nothing is heard.")

    def problems(self) -> Iterator[tuple[Location, str]]:
        """What is wrong between keys that are right by themselves."""
        if self.listen.startswith("unix:") and "allow" in self.model_fields_set:
            yield ("allow",), "is of tcp; who may use a Unix socket is for socket_group to say"
