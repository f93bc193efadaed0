"""The little of rtnetlink and of the netdev family that next hops need, encoded by hand: one route lookup costs microseconds."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR = 20, 21
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
RTM_NEWRULE, RTM_DELRULE = 32, 33
# Links, neighbours, and addresses, routes and rules of both IP versions.
EVENT_GROUPS = 0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 0x40000

NUD_STALE, NUD_PERMANENT, NUD_NOARP = 0x04, 0x80, 0x40
# Permanent, no-ARP, reachable, probe, stale, delay: the states in which the address may be used.
NUD_VALID = 0x80 | 0x40 | 0x02 | 0x10 | 0x04 | 0x08
NTF_USE = 1
NTF_EXT_MANAGED = 1
RTN_UNICAST = 1
ARPHRD_ETHER = 1
IFF_UP = 1
XDP_ACT_REDIRECT, XDP_ACT_NDO_XMIT = 2, 4

_REQUEST, _ACK, _DUMP, _REPLACE, _CREATE = 1, 4, 0x300, 0x100, 0x400
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_LINK = struct.Struct("=BxHiII")
_ROUTES_AT_ONCE = 64  # their answers have to fit into the socket's buffer
_ROUTE = struct.Struct("=BBBBBBBBI")
_TABLE_HEAD = _ATTRIBUTE.pack(8, 15)  # RTA_TABLE, four bytes
_DST_AT = _ROUTE.size + 8  # of RTA_DST in an answer
_CACHE_SIZE = 36
_CACHE_HEAD = _ATTRIBUTE.pack(_CACHE_SIZE, 12)  # RTA_CACHEINFO
_ROUTE_ROOM = 4096  # an answer about one route is some hundred bytes
_MOST_ANSWERS = 4096
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_GENERIC = struct.Struct("=BBxx")
_NESTED = 0x3FFF


class NetlinkError(OSError):
    """The kernel refused a netlink request."""


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface. vlan is the 802.1Q tag of a VLAN sub-interface, parent the interface below it (else 0)."""

    ifindex: int
    name: str
    mac: bytes
    mtu: int
    up: bool
    ethernet: bool
    kind: str
    vlan: int
    parent: int
    rx_queues: int


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A neighbour-table entry; mac is empty until it is resolved."""

    ifindex: int
    addr: bytes
    mac: bytes
    state: int
    managed: bool

    @property
    def usable(self) -> bool:
        return len(self.mac) == 6 and bool(self.state & NUD_VALID)


@dataclass(frozen=True, slots=True)
class Route:
    """Where the kernel would send to: output interface, gateway (the destination itself on a link), MTU (0: the interface's)."""

    ifindex: int
    gateway: bytes
    mtu: int


def family_of(addr: bytes) -> int:
    return socket.AF_INET if len(addr) == 4 else socket.AF_INET6


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(len(value) + 4, kind) + value + b"\0" * (-len(value) % 4)


def attributes(data: bytes, at: int = 0) -> dict[int, bytes]:
    """The attributes of a message from offset `at` on, by type; a malformed rest is left out."""
    found: dict[int, bytes] = {}
    while at + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < 4 or at + length > len(data):
            break
        found[kind & _NESTED] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Split what a netlink socket delivered: (type, sequence number, body)."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _flags, sequence, _port = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            return
        yield kind, sequence, data[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def parse_link(body: bytes) -> Link:
    """Read an RTM_NEWLINK or RTM_DELLINK body."""
    _family, hardware, ifindex, flags, _change = _LINK.unpack_from(body)
    found = attributes(body, _LINK.size)
    info = attributes(found.get(18, b""))  # IFLA_LINKINFO
    kind = info.get(1, b"").rstrip(b"\0").decode("ascii", "replace")
    vlan = 0
    if kind == "vlan":
        vlan = struct.unpack_from("=H", attributes(info.get(2, b"")).get(1, b"\0\0"))[0]
    return Link(
        ifindex=ifindex,
        name=found.get(3, b"").rstrip(b"\0").decode("utf-8", "replace"),
        mac=found.get(1, b""),
        mtu=struct.unpack("=I", found.get(4, b"\0\0\0\0"))[0],
        up=bool(flags & IFF_UP),
        ethernet=hardware == ARPHRD_ETHER,
        kind=kind,
        vlan=vlan,
        parent=struct.unpack("=i", found.get(5, b"\0\0\0\0"))[0] if kind == "vlan" else 0,
        rx_queues=struct.unpack("=I", found.get(32, b"\1\0\0\0"))[0],
    )


def parse_neighbour(body: bytes) -> Neighbour | None:
    """Read an RTM_NEWNEIGH or RTM_DELNEIGH body; None when it is of another family than IP."""
    family, ifindex, state, _flags, _kind = _NEIGHBOUR.unpack_from(body)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    found = attributes(body, _NEIGHBOUR.size)
    extended = struct.unpack("=I", found.get(15, b"\0\0\0\0"))[0]
    return Neighbour(ifindex, found.get(1, b""), found.get(2, b""), state, bool(extended & NTF_EXT_MANAGED))


def _route_body(dst: bytes, src: bytes | None) -> bytes:
    """The body of an RTM_GETROUTE; attributes of addresses need no padding."""
    body = _ROUTE.pack(family_of(dst), len(dst) * 8, len(src) * 8 if src else 0, 0, 0, 0, 0, 0, 0) + _attribute(1, dst)
    return body + _attribute(2, src) if src else body


def _read_route(body: bytes, dst: bytes) -> Route | None:
    """Read an RTM_NEWROUTE body that answers for dst; None when it is not unicast or has no interface."""
    if _ROUTE.unpack_from(body)[7] != RTN_UNICAST:
        return None
    found = attributes(body, _ROUTE.size)
    if 4 not in found:  # RTA_OIF
        return None
    gateway = found.get(5) or found.get(18, b"\0\0")[2:] or dst  # RTA_GATEWAY, RTA_VIA
    metrics = attributes(found.get(8, b""))
    mtu = struct.unpack("=I", metrics[2])[0] if 2 in metrics else 0
    return Route(struct.unpack("=i", found[4])[0], gateway, mtu)


class Requests:
    """A socket for requests whose answers are awaited. Raises NetlinkError for what the kernel refuses."""

    def __init__(self, protocol: int = 0) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._socket.bind((0, 0))
        self._socket.settimeout(5)
        self._sequence = 0
        self._answers: dict[bytes, Route] = {}  # by what an RTM_NEWROUTE says besides the destination

    def close(self) -> None:
        self._socket.close()

    def ask(self, kind: int, flags: int, body: bytes) -> list[tuple[int, bytes]]:
        """Send one request; returns the messages of its answer (type, body)."""
        self._sequence += 1
        dump = flags & _DUMP == _DUMP
        request = _HEADER.pack(_HEADER.size + len(body), kind, flags | _REQUEST, self._sequence, 0) + body
        self._socket.send(request)
        found: list[tuple[int, bytes]] = []
        while True:
            try:
                data = self._socket.recv(1 << 17)
            except TimeoutError as exc:
                raise NetlinkError(errno.ETIMEDOUT, "netlink: no answer") from exc
            for answer, sequence, content in messages(data):
                if sequence != self._sequence:
                    continue
                if answer == _DONE:
                    return found
                if answer == _ERROR:
                    number = -struct.unpack_from("=i", content)[0]
                    if number:
                        raise NetlinkError(number, f"netlink: {os.strerror(number)}")
                    return found
                found.append((answer, content))
                if not dump and not flags & _ACK:
                    return found

    def links(self) -> list[Link]:
        return [parse_link(body) for kind, body in self.ask(RTM_GETLINK, _DUMP, _LINK.pack(0, 0, 0, 0, 0)) if kind == RTM_NEWLINK]

    def route(self, dst: bytes, src: bytes | None = None) -> Route | None:
        """The kernel's choice for dst (from src); None when there is none, or dst is this host's or not unicast."""
        try:
            answer = self.ask(RTM_GETROUTE, 0, _route_body(dst, src))
        except NetlinkError as exc:
            if exc.errno == errno.ETIMEDOUT:
                raise
            return None
        return next((_read_route(content, dst) for kind, content in answer if kind == RTM_NEWROUTE), None)

    def routes(self, wanted: Sequence[tuple[bytes, bytes | None]]) -> list[Route | None]:
        """route() of each (dst, src), many to a system call: asked for one by one, most of the time goes into calls."""
        found: list[Route | None] = [None] * len(wanted)
        for start in range(0, len(wanted), _ROUTES_AT_ONCE):
            part = wanted[start : start + _ROUTES_AT_ONCE]
            first = self._sequence + 1
            self._sequence += len(part)
            bodies = [_route_body(dst, src) for dst, src in part]
            self._socket.send(b"".join([_HEADER.pack(_HEADER.size + len(body), RTM_GETROUTE, _REQUEST, first + n, 0) + body for n, body in enumerate(bodies)]))
            left = len(part)
            while left:
                try:
                    data = self._socket.recv(_ROUTE_ROOM)
                except TimeoutError as exc:
                    raise NetlinkError(errno.ETIMEDOUT, "netlink: no answer") from exc
                for answer, sequence, content in messages(data):
                    place = sequence - first
                    if 0 <= place < len(part):
                        left -= 1
                        if answer == RTM_NEWROUTE:
                            found[start + place] = self._route_of(content, part[place][0])
        return found

    def _route_of(self, body: bytes, dst: bytes) -> Route | None:
        """_read_route(), or what it said of an answer that differs in the destination and in ages only: most destinations go by few gateways."""
        # The kernel writes RTA_TABLE first, then RTA_DST, and RTA_CACHEINFO last.
        after = _DST_AT + 4 + len(dst)
        if body[_ROUTE.size : _ROUTE.size + 4] != _TABLE_HEAD or body[_DST_AT:after] != _attribute(1, dst) or body[-_CACHE_SIZE : 4 - _CACHE_SIZE] != _CACHE_HEAD:
            return _read_route(body, dst)
        name = body[:_DST_AT] + body[after:-_CACHE_SIZE]
        route = self._answers.get(name)
        if route is None:
            route = _read_route(body, dst)
            if route is not None and route.gateway != dst:  # on a link the gateway is the destination itself
                if len(self._answers) >= _MOST_ANSWERS:
                    self._answers.clear()
                self._answers[name] = route
        return route

    def neighbour(self, ifindex: int, addr: bytes) -> Neighbour | None:
        body = _NEIGHBOUR.pack(family_of(addr), ifindex, 0, 0, 0) + _attribute(1, addr)
        try:
            answer = self.ask(RTM_GETNEIGH, 0, body)
        except NetlinkError:
            return None
        return next((parse_neighbour(content) for kind, content in answer if kind == RTM_NEWNEIGH), None)

    def manage_neighbour(self, ifindex: int, addr: bytes) -> None:
        """Have the kernel keep a neighbour resolved (`managed`, Linux 5.16). Raises NetlinkError."""
        body = _NEIGHBOUR.pack(family_of(addr), ifindex, 0, 0, 0) + _attribute(1, addr) + _attribute(15, struct.pack("=I", NTF_EXT_MANAGED))
        self.ask(RTM_NEWNEIGH, _ACK | _CREATE | _REPLACE, body)

    def probe_neighbour(self, ifindex: int, addr: bytes) -> None:
        """Have the kernel resolve a neighbour once. Raises NetlinkError."""
        body = _NEIGHBOUR.pack(family_of(addr), ifindex, 0, NTF_USE, 0) + _attribute(1, addr)
        self.ask(RTM_NEWNEIGH, _ACK | _CREATE | _REPLACE, body)

    def forget_neighbour(self, ifindex: int, addr: bytes, mac: bytes) -> None:
        """Stop keeping a neighbour resolved; what is known of it (mac, may be empty) stays to be used by others."""
        body = _NEIGHBOUR.pack(family_of(addr), ifindex, NUD_STALE if mac else 0, 0, 0) + _attribute(1, addr)
        try:
            if mac:
                self.ask(RTM_NEWNEIGH, _ACK | _REPLACE, body + _attribute(2, mac))
            else:
                self.ask(RTM_DELNEIGH, _ACK, body)
        except NetlinkError as exc:
            if exc.errno not in (errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENETDOWN):
                raise


class DeviceFeatures:
    """What XDP can do on each interface, by the netdev generic-netlink family (Linux 6.3); unknown before."""

    def __init__(self) -> None:
        self._requests = Requests(16)  # NETLINK_GENERIC
        self._family = 0
        self.group = 0
        try:
            answer = self._requests.ask(0x10, 0, _GENERIC.pack(3, 1) + _attribute(2, b"netdev\0"))
        except NetlinkError:
            return
        found = attributes(answer[0][1], _GENERIC.size)
        self._family = struct.unpack("=H", found[1])[0]
        for group in attributes(found.get(7, b"")).values():
            named = attributes(group)
            if named.get(1, b"").rstrip(b"\0") == b"mgmt":
                self.group = struct.unpack("=I", named[2])[0]

    def of(self, ifindex: int) -> int | None:
        """The NETDEV_XDP_ACT_* bits of an interface; None when the kernel does not tell."""
        if not self._family:
            return None
        try:
            answer = self._requests.ask(self._family, 0, _GENERIC.pack(1, 1) + _attribute(1, struct.pack("=I", ifindex)))
        except NetlinkError:
            return None
        features = attributes(answer[0][1], _GENERIC.size).get(3)
        return struct.unpack("=Q", features)[0] if features else None

    def changes(self) -> socket.socket | None:
        """A non-blocking socket that becomes readable when some interface's features change."""
        if not self.group:
            return None
        events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 16)
        events.bind((0, 0))
        events.setsockopt(270, 1, self.group)  # SOL_NETLINK, NETLINK_ADD_MEMBERSHIP
        return events

    def close(self) -> None:
        self._requests.close()


def event_socket() -> socket.socket:
    """A non-blocking socket that hears of links, neighbours, addresses, routes and rules."""
    events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 0)
    try:
        events.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)  # SO_RCVBUFFORCE
    except PermissionError:
        events.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    events.bind((0, EVENT_GROUPS))
    return events
