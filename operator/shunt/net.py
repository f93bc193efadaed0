"""Transport addresses and 5-tuples, as every part of Shunt names them."""

from __future__ import annotations

import functools
import ipaddress
import socket
from typing import NamedTuple


@functools.lru_cache(maxsize=16384)
def _packed(ip: str) -> bytes:
    """An address read once is not read again: a call's commands name the same ones several times. Raises ValueError."""
    address = ipaddress.ip_address(ip.strip("[]"))
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed


class Endpoint(NamedTuple):
    """A UDP transport address: packed address (4 bytes IPv4, 16 bytes IPv6, network order) and port."""

    addr: bytes
    port: int

    @classmethod
    def of(cls, ip: str, port: int) -> Endpoint:
        """Make one from text. Raises ValueError for a bad address or a port outside 0..65535.

        An IPv4-mapped IPv6 address (::ffff:a.b.c.d) becomes the IPv4 address.
        """
        if not 0 <= port <= 65535:
            raise ValueError(f"port {port} is not in 0..65535")
        return cls(_packed(ip), port)

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Read "a.b.c.d:port" or "[v6]:port". Raises ValueError."""
        host, sep, port = text.rpartition(":")
        if not sep or not port.isdigit():
            raise ValueError(f"{text!r} is not ADDRESS:PORT")
        return cls.of(host, int(port))

    @property
    def ip(self) -> str:
        """The address as text (IPv6 compressed, without brackets)."""
        family = socket.AF_INET if len(self.addr) == 4 else socket.AF_INET6
        return socket.inet_ntop(family, self.addr)

    @property
    def version(self) -> int:
        """4 or 6."""
        return 4 if len(self.addr) == 4 else 6

    def next_port(self) -> Endpoint:
        """The same address, port + 1: where RTCP goes when it is not muxed (RFC 3550 section 11)."""
        return Endpoint(self.addr, self.port + 1)

    def __str__(self) -> str:
        return f"{self.ip}:{self.port}" if self.version == 4 else f"[{self.ip}]:{self.port}"


UNKNOWN = Endpoint(bytes(4), 0)
"""Where a message does not say who sent it: nobody sends from this address (RFC 1122 section 3.2.1.3)."""


class FiveTuple(NamedTuple):
    """The key of a relay entry; the protocol is always UDP."""

    src: Endpoint
    dst: Endpoint

    def __str__(self) -> str:
        return f"{self.src} > {self.dst}"
