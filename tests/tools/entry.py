"""What a client says to a data plane and hears from it: entries, media ranges, statistics, notices."""

from __future__ import annotations

from dataclasses import dataclass

from shunt.net import Endpoint, FiveTuple


@dataclass(frozen=True, slots=True)
class RelayEntry:
    """One entry of the relay table: packets that match `key` leave from `src` to `dst`.

    src and dst may be of another IP version than the key (IPv4 <-> IPv6 relaying). ttl_ms is the idle
    time after which the data plane reports the entry idle (it never removes it by itself); dscp
    rewrites the DSCP field (0..63) when given.
    """

    key: FiveTuple
    src: Endpoint
    dst: Endpoint
    ttl_ms: int = 30_000
    dscp: int | None = None

    def does_as(self, other: RelayEntry) -> bool:
        """Whether packets leave as they do with the other entry: time-outs, which a target counts down, are left aside."""
        return (self.src, self.dst, self.dscp) == (other.src, other.dst, other.dscp)


@dataclass(slots=True)
class StreamStats:
    """What the data plane counted on one entry since it was installed.

    lost, reordered and jitter follow RFC 3550 section 6.4.1 and A.8; they are None where the data
    plane does not measure them. jitter_us and idle_ms are microseconds and milliseconds; delay_ns
    is nothing the relay table knows and is not here.
    """

    packets: int = 0
    bytes: int = 0
    idle_ms: int | None = None
    lost: int | None = None
    reordered: int | None = None
    duplicates: int | None = None
    jitter_us: int | None = None
    ssrc: int | None = None
    source_mismatch: int | None = None  # packets to this relay port from any other source


@dataclass(frozen=True, slots=True)
class LearnNotice:
    """A packet that met no entry at a relay address and media port (digest on Tofino, ring buffer in the softswitch).

    rtp_version is the top two bits of the payload (2 for RTP/RTCP), payload_type seven bits of the
    second byte, seq and ssrc as at RTP's places; all 0 when the payload is shorter than 12 bytes.
    """

    key: FiveTuple
    rtp_version: int
    payload_type: int
    seq: int
    ssrc: int


@dataclass(frozen=True, slots=True)
class MediaRange:
    """A relay address and the ports (inclusive) on which media arrives: misses there raise learn notices."""

    addr: bytes
    first_port: int
    last_port: int

    def __contains__(self, end: Endpoint) -> bool:
        return end.addr == self.addr and self.first_port <= end.port <= self.last_port
