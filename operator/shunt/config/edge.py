"""The `edge:` section of the configuration."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from pydantic import Field

from shunt.config.section import Location, Section
from shunt.config.values import AbsolutePath, HostPort, MediaAddress, Name, PortRange, Ports, ServerAddress, addresses_overlap, host_port

EDGE_SOCKET = "/run/shunt-edge/control.sock"


class EdgeLimits(Section):
    """How much there may be of everything at an edge."""

    sessions: int = Field(default=500, ge=1, le=20_000, description="Browsers at a time.")
    media: int = Field(default=64, ge=1, le=1024, description="Media descriptions of one browser.")
    unknown_packets: int = Field(
        default=100,
        ge=1,
        le=100_000,
        description="Connectivity checks a second from one address that has shown no key (twice as many at once); further ones are dropped and counted. An IPv6 address counts by its first 64 bits.",
    )
    connections_per_address: int = Field(default=16, ge=1, le=10_000, description="TCP connections of one address.")
    connections: int = Field(default=1000, ge=1, le=100_000, description="TCP connections of all.")
    send_bitrate: int = Field(default=2_500_000, ge=100_000, le=100_000_000, description="bit/s that a browser is asked to send at most.")
    receive_bitrate: int = Field(default=10_000_000, ge=100_000, le=1_000_000_000, description="bit/s that the estimate of what a browser can be sent counts at most.")
    connect: float = Field(default=30, ge=1, le=600, description="Seconds that a browser may take to connect.")
    consent: float = Field(default=30, ge=5, le=600, description="Seconds without a connectivity check after which a browser is gone (RFC 7675).")


class Edge(Section):
    """The edge (`shunt edge`): ICE, DTLS and SRTP of browsers, which are participants with plain RTP towards the data plane."""

    listen: list[ServerAddress] = Field(min_length=1, description="ADDRESS:PORT where browsers send to.")
    tcp: bool = Field(default=True, description="Whether browsers may come over TCP too, at the same addresses: for networks that block UDP.")
    advertise: list[ServerAddress] = Field(default=[], description="The addresses that browsers are told, one for each of listen and in its order, where a NAT is between; absent: those of listen.")
    address: MediaAddress = Field(description="Where the data plane sends plain RTP to. On the host of the softswitch it is in a network namespace of its own.")
    ports: Ports = Field(default=PortRange(20000, 29999), description="UDP ports for plain RTP: one for each media description of each browser.")
    control: AbsolutePath = Field(default=EDGE_SOCKET, description="The control API's Unix socket (mode 0660, group socket_group).")
    socket_group: Name = Field(default="shunt", description="Group that may use the Unix socket.")
    limits: EdgeLimits = Field(default=EdgeLimits(), description="How much there may be of everything.")

    def problems(self) -> Iterator[tuple[Location, str]]:
        """What is wrong between keys that are right by themselves."""
        if self.advertise and len(self.advertise) != len(self.listen):
            yield ("advertise",), f"{len(self.advertise)} addresses for {len(self.listen)} of listen"
        for i, text in enumerate(self.advertise or self.listen):
            if ipaddress.ip_address(host_port(text).host).is_unspecified:
                key = "advertise" if self.advertise else "listen"
                yield (key, i), f"{text} is no address that a browser can send to" + ("" if self.advertise else ": give advertise too")
        for i, text in enumerate(self.listen):
            if self._lies_within(host_port(text)):
                yield ("listen", i), f"{text} lies within the ports of plain RTP, {self.address} {self.ports}"

    def _lies_within(self, listen: HostPort) -> bool:
        return addresses_overlap(listen.host, str(self.address)) and self.ports.first <= listen.port <= self.ports.last
