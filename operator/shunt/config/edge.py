"""The `edge:` section of the configuration."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from pydantic import Field

from shunt.config.section import Location, Section
from shunt.config.values import AbsolutePath, HostPort, MediaAddress, Name, PortRange, Ports, ServerAddress, addresses_overlap, host_port

EDGE_SOCKET = "/run/shunt-edge/control.sock"


class EdgeLimits(Section):
    """Limits of an edge."""

    sessions: int = Field(default=500, ge=1, le=20_000, description="Browsers at one time.")
    media: int = Field(default=64, ge=1, le=1024, description="Media descriptions of one browser.")
    unknown_packets: int = Field(
        default=100,
        ge=1,
        le=100_000,
        description="Connectivity checks per second from one address (IPv6: a /64) before it shows a key, with bursts of twice as many. More are dropped and counted.",
    )
    connections_per_address: int = Field(default=16, ge=1, le=10_000, description="TCP connections of one address.")
    connections: int = Field(default=1000, ge=1, le=100_000, description="TCP connections of all addresses.")
    send_bitrate: int = Field(default=2_500_000, ge=100_000, le=100_000_000, description="Highest rate that the edge requests from a browser, bit/s.")
    receive_bitrate: int = Field(default=10_000_000, ge=100_000, le=1_000_000_000, description="Upper bound of the estimated rate towards a browser, bit/s.")
    connect: float = Field(default=30, ge=1, le=600, description="Seconds that a browser may take to connect.")
    consent: float = Field(default=30, ge=5, le=600, description="Seconds without a connectivity check after which the edge ends a session (RFC 7675).")


class Edge(Section):
    """The edge (`shunt edge`) terminates ICE, DTLS and SRTP of browsers, which are plain RTP participants to the data plane."""

    listen: list[ServerAddress] = Field(min_length=1, description="ADDRESS:PORT that browsers send to.")
    tcp: bool = Field(default=True, description="Accept browsers over TCP at the same addresses, for networks that block UDP.")
    advertise: list[ServerAddress] = Field(default=[], description="Addresses that browsers are told, in the order of listen, if a NAT translates them. Default: listen.")
    address: MediaAddress = Field(description="Address that the data plane sends plain RTP to. On the softswitch's host it must be in another network namespace.")
    ports: Ports = Field(default=PortRange(20000, 29999), description="UDP ports for plain RTP: one for each media description of each browser.")
    control: AbsolutePath = Field(default=EDGE_SOCKET, description="The control API's Unix socket (mode 0660, group socket_group).")
    socket_group: Name = Field(default="shunt", description="Group that may use the Unix socket.")
    limits: EdgeLimits = Field(default=EdgeLimits(), description="Limits of the edge.")

    def problems(self) -> Iterator[tuple[Location, str]]:
        """Yields contradictions between keys that are valid on their own."""
        if self.advertise and len(self.advertise) != len(self.listen):
            yield ("advertise",), f"{len(self.advertise)} addresses for {len(self.listen)} of listen"
        for i, text in enumerate(self.advertise or self.listen):
            if ipaddress.ip_address(host_port(text).host).is_unspecified:
                key = "advertise" if self.advertise else "listen"
                yield (key, i), f"{text} is not an address that a browser can send to" + ("" if self.advertise else ": give advertise too")
        for i, text in enumerate(self.listen):
            if self._lies_within(host_port(text)):
                yield ("listen", i), f"{text} lies within the ports of plain RTP, {self.address} {self.ports}"

    def _lies_within(self, listen: HostPort) -> bool:
        return addresses_overlap(listen.host, str(self.address)) and self.ports.first <= listen.port <= self.ports.last
