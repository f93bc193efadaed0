"""Next hops: where the kernel would send each destination, kept in a table that the XDP program reads.

No packet pays for a route or neighbour lookup: an entry names a row, and this module keeps the rows true
by listening to the kernel's own route, neighbour and link changes.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from shunt_softswitch import layout, netlink

# How often neighbours are probed where the kernel does not keep them resolved itself, seconds.
PROBE_INTERVAL = 5.0
# Destinations looked up again in one turn after a route change, so that the server's loop is not held up.
_SLICE = 2000
UNRESOLVED = 0


class NextHopsExhausted(RuntimeError):
    """More distinct next hops than the table has rows."""


@dataclass(slots=True)
class _Hop:
    """One row: a neighbour on an interface. mtu is the smallest route MTU met, 0 for the interface's."""

    index: int
    ifindex: int
    addr: bytes
    mtu: int
    users: int = 0
    neighbour: netlink.Neighbour | None = None
    content: bytes = b""
    ours: bool = False  # we made the kernel keep it resolved


@dataclass(slots=True)
class _Destination:
    index: int
    users: int = 0


@dataclass(frozen=True, slots=True)
class Moved:
    """Entries that leave from src to dst now go by another row."""

    dst: bytes
    src: bytes
    old: int
    index: int


class NextHops:
    """Rows of the next-hop table, shared by all entries that use the same neighbour; row 0 never resolves.

    fd is readable when handle_events() has something to do.
    """

    def __init__(self, table: mmap.mmap) -> None:
        """table: the shared next-hop array."""
        self._table = table
        self._words = memoryview(table).cast("I")
        self._attached: set[int] = set()
        self._requests = netlink.Requests()
        self._features = netlink.DeviceFeatures()
        self._events = netlink.event_socket()
        self._feature_events = self._features.changes()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._events.fileno(), select.EPOLLIN)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        if self._feature_events is not None:
            self._epoll.register(self._feature_events.fileno(), select.EPOLLIN)
        self._links: dict[int, netlink.Link] = {link.ifindex: link for link in self._requests.links()}
        self._can_send: dict[int, bool] = {}
        self._hops: dict[tuple[int, bytes], _Hop] = {}
        self._destinations: dict[tuple[bytes, bytes], _Destination] = {}
        self._free: deque[int] = deque(range(1, layout.NEXTHOPS))
        self._by_index: dict[int, _Hop] = {}
        self._ahead: dict[tuple[bytes, bytes], netlink.Route | None] = {}  # asked for before it is needed
        self._pending: deque[tuple[bytes, bytes]] = deque()  # routes to look up again
        self._managed: bool | None = None  # whether this kernel keeps neighbours resolved; None: not tried
        self._probed = time.monotonic()
        self._clear(UNRESOLVED)

    @property
    def fd(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        """Stop listening; rows and managed neighbours stay, so that the kernel forwards on."""
        self._epoll.close()
        self._events.close()
        if self._feature_events is not None:
            self._feature_events.close()
        self._features.close()
        self._requests.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._words.release()

    def attached(self, interfaces: Iterable[int]) -> None:
        """Tell which interfaces carry the relay program: some can only send then."""
        self._attached = set(interfaces)
        self.forget_features()
        for hop in self._hops.values():
            self._write(hop)

    def forget_features(self) -> None:
        """Ask the kernel anew what each interface can do."""
        self._can_send.clear()

    def link(self, ifindex: int) -> netlink.Link | None:
        return self._links.get(ifindex)

    def link_named(self, name: str) -> netlink.Link | None:
        return next((link for link in self._links.values() if link.name == name), None)

    def describe(self, index: int) -> tuple[int, bytes, bool]:
        """Interface, neighbour address and whether resolved, of one row; (0, b"", False) for none."""
        hop = self._by_index.get(index)
        return (hop.ifindex, hop.addr, bool(hop.content)) if hop else (0, b"", False)

    # References

    def look_ahead(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Ask the kernel in one go for the routes of (dst, src) that are about to be acquired; none: forget what was not."""
        unknown = [pair for pair in pairs if pair not in self._destinations]
        routes = self._requests.routes([(dst, src if len(src) == len(dst) else None) for dst, src in unknown])
        self._ahead = dict(zip(unknown, routes))

    def acquire(self, dst: bytes, src: bytes, users: int = 1) -> int:
        """The row by which packets from src to dst leave; so many references more. Raises NextHopsExhausted."""
        destination = self._destinations.get((dst, src))
        if destination is None:
            destination = self._destinations[dst, src] = _Destination(self._resolve(dst, src))
        destination.users += users
        return destination.index

    def release(self, dst: bytes, src: bytes) -> None:
        """One reference fewer; the last one frees what nobody else uses."""
        destination = self._destinations.get((dst, src))
        if destination is None:
            return
        destination.users -= 1
        if destination.users <= 0:
            del self._destinations[dst, src]
            self._leave(destination.index)

    def adopt(self, dst: bytes, src: bytes, users: int, index: int, taken: set[int]) -> int:
        """Take over entries of a former process that use row `index`; returns the row they use from now on.

        taken: rows that entries not yet adopted may still use.
        """
        destination = self._destinations.get((dst, src))
        if destination is None:
            destination = self._destinations[dst, src] = _Destination(self._resolve(dst, src, index, taken))
        destination.users += users
        return destination.index

    def finish_adoption(self) -> None:
        """Clear the rows that no adopted entry uses, and order the free rows."""
        for index in range(1, layout.NEXTHOPS):
            if index not in self._by_index and self._words[index * 8] & 1:
                self._clear(index)
        self._free = deque(index for index in range(1, layout.NEXTHOPS) if index not in self._by_index)

    def _resolve(self, dst: bytes, src: bytes, wanted: int = 0, taken: set[int] | None = None) -> int:
        if (dst, src) in self._ahead:
            route = self._ahead.pop((dst, src))
        else:
            route = self._requests.route(dst, src if len(src) == len(dst) else None)
        if route is None and src:
            route = self._requests.route(dst)
        if route is None:
            return UNRESOLVED
        hop = self._hops.get((route.ifindex, route.gateway))
        if hop is None:
            hop = self._add_hop(route, wanted, taken)
        elif route.mtu and (not hop.mtu or route.mtu < hop.mtu):
            hop.mtu = route.mtu
            self._write(hop)
        hop.users += 1
        return hop.index

    def _add_hop(self, route: netlink.Route, wanted: int, taken: set[int] | None) -> _Hop:
        index = wanted
        if not index or index in self._by_index:
            while self._free and (self._free[0] in self._by_index or (taken and self._free[0] in taken)):
                self._free.popleft()
            if not self._free:
                raise NextHopsExhausted(f"more than {layout.NEXTHOPS - 1} next hops")
            index = self._free.popleft()
        hop = _Hop(index, route.ifindex, route.gateway, route.mtu)
        self._hops[route.ifindex, route.gateway] = hop
        self._by_index[index] = hop
        if wanted == index and self._words[index * 8] & 1:
            hop.content = bytes(self._table[index * 32 + 4 : index * 32 + 32])
        self._watch(hop)
        self._write(hop)
        return hop

    def _leave(self, index: int) -> None:
        hop = self._by_index.get(index)
        if hop is None:
            return
        hop.users -= 1
        if hop.users > 0:
            return
        del self._by_index[index], self._hops[hop.ifindex, hop.addr]
        self._clear(index)
        self._free.append(index)
        if hop.ours and hop.ifindex in self._links:
            self._requests.forget_neighbour(hop.ifindex, hop.addr, hop.neighbour.mac if hop.neighbour else b"")

    def _watch(self, hop: _Hop) -> None:
        """Learn a neighbour's present state, and have the kernel keep it resolved."""
        link = self._links.get(hop.ifindex)
        if link is None or not link.ethernet:
            return
        hop.neighbour = self._requests.neighbour(hop.ifindex, hop.addr)
        if hop.neighbour is not None and (hop.neighbour.managed or hop.neighbour.state & (netlink.NUD_PERMANENT | netlink.NUD_NOARP)):
            hop.ours = hop.neighbour.managed
            return
        try:
            if self._managed is not False:
                self._requests.manage_neighbour(hop.ifindex, hop.addr)
                now = self._requests.neighbour(hop.ifindex, hop.addr)
                self._managed = now is not None and now.managed
            if self._managed:
                hop.ours = True
            else:
                self._requests.probe_neighbour(hop.ifindex, hop.addr)
            hop.neighbour = self._requests.neighbour(hop.ifindex, hop.addr)
        except netlink.NetlinkError:
            # The interface is down or gone; its link event brings the hop here again.
            hop.neighbour = None

    # Rows

    def sends(self, ifindex: int) -> bool:
        """Whether what native XDP redirects to this interface is sent: else it would be lost without a trace."""
        known = self._can_send.get(ifindex)
        if known is None:
            features = self._features.of(ifindex)
            if features is not None:
                known = bool(features & netlink.XDP_ACT_NDO_XMIT)
            else:
                link = self._links.get(ifindex)
                known = ifindex in self._attached and link is not None and link.kind != "veth"
            self._can_send[ifindex] = known
        return known

    def _content(self, hop: _Hop) -> bytes:
        link = self._links.get(hop.ifindex)
        if link is None or not link.up or not link.ethernet or hop.neighbour is None or not hop.neighbour.usable:
            return b""
        out = link
        if link.vlan:
            parent = self._links.get(link.parent)
            if parent is None or not parent.up or not parent.ethernet or parent.vlan:
                return b""
            out = parent
        mtu = min(m for m in (link.mtu, hop.mtu, 65535) if m)
        flags = 0 if self.sends(out.ifindex) else layout.NEXTHOP_NO_XMIT
        return layout.NEXTHOP.pack(0, out.ifindex, hop.neighbour.mac + link.mac, link.vlan, mtu, flags, 0 if link.vlan or flags else mtu)[4:]

    def _write(self, hop: _Hop) -> None:
        content = self._content(hop)
        if content == hop.content:
            return
        at = hop.index * 8
        generation = self._words[at]
        if generation & 1:
            generation = self._words[at] = (generation + 1) & 0xFFFFFFFF
        if content:
            self._table[hop.index * 32 + 4 : hop.index * 32 + 32] = content
            self._words[at] = (generation + 1) & 0xFFFFFFFF
        hop.content = content

    def _clear(self, index: int) -> None:
        generation = self._words[index * 8]
        if generation & 1:
            self._words[index * 8] = (generation + 1) & 0xFFFFFFFF

    # Events

    def handle_events(self) -> list[Moved]:
        """Take in what the kernel reported; returns the destinations whose row has changed."""
        changed_links: set[int] = set()
        routes_changed = False
        try:
            while True:
                for kind, _sequence, body in netlink.messages(self._events.recv(1 << 17)):
                    if kind in (netlink.RTM_NEWNEIGH, netlink.RTM_DELNEIGH):
                        self._neighbour_changed(kind, body)
                    elif kind in (netlink.RTM_NEWLINK, netlink.RTM_DELLINK):
                        routes_changed |= self._link_changed(kind, body, changed_links)
                    else:
                        routes_changed = True
        except BlockingIOError:
            pass
        except OSError as exc:
            if exc.errno != errno.ENOBUFS:
                raise
            # Events were lost: start from what the kernel says now.
            self._links = {link.ifindex: link for link in self._requests.links()}
            changed_links.update(self._links)
            routes_changed = True
            for hop in self._hops.values():
                self._watch(hop)
        if self._feature_events is not None:
            try:
                while self._feature_events.recv(1 << 16):
                    changed_links.update(self._links)
            except (BlockingIOError, OSError):
                pass
        for ifindex in changed_links:
            self._can_send.pop(ifindex, None)
        if changed_links:
            for hop in self._hops.values():
                if hop.neighbour is None and hop.ifindex in changed_links:
                    self._watch(hop)
                self._write(hop)
        if routes_changed:
            self._pending = deque(self._destinations)
        self._probe()
        return self._look_again()

    def _neighbour_changed(self, kind: int, body: bytes) -> None:
        neighbour = netlink.parse_neighbour(body)
        hop = self._hops.get((neighbour.ifindex, neighbour.addr)) if neighbour else None
        if hop is None:
            return
        if kind == netlink.RTM_DELNEIGH:
            self._watch(hop)
        else:
            hop.neighbour = neighbour
        self._write(hop)

    def _link_changed(self, kind: int, body: bytes, changed: set[int]) -> bool:
        link = netlink.parse_link(body)
        old = self._links.get(link.ifindex)
        if kind == netlink.RTM_DELLINK:
            self._links.pop(link.ifindex, None)
        elif body[0] == 0:  # AF_UNSPEC: other families' messages lack the fields read here
            self._links[link.ifindex] = link
        new = self._links.get(link.ifindex)
        if new == old:
            return False
        changed.add(link.ifindex)
        return True

    def _probe(self) -> None:
        now = time.monotonic()
        if self._managed is not False or now - self._probed < PROBE_INTERVAL:
            return
        self._probed = now
        for hop in self._hops.values():
            try:
                self._requests.probe_neighbour(hop.ifindex, hop.addr)
            except netlink.NetlinkError:
                hop.neighbour = None
                self._write(hop)

    def _look_again(self) -> list[Moved]:
        moved: list[Moved] = []
        queue = self._pending
        for _ in range(min(_SLICE, len(queue))):
            dst, src = queue.popleft()
            destination = self._destinations.get((dst, src))
            if destination is None:
                continue
            try:
                index = self._resolve(dst, src)
            except NextHopsExhausted:
                index = UNRESOLVED
            old, destination.index = destination.index, index
            if index != old:
                moved.append(Moved(dst, src, old, index))
            else:
                self._leave(index)
        try:
            if queue:
                os.write(self._wake_write, b"\0")
            else:
                os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass
        return moved

    def settle(self, moved: list[Moved]) -> None:
        """Give up the rows that moved entries used before; call it once no entry names them any more."""
        for move in moved:
            self._leave(move.old)

    def clear(self, kept: Mapping[tuple[bytes, bytes], int] = MappingProxyType({})) -> None:
        """Give up every reference but `kept`: how many to each (dst, src)."""
        for name, destination in list(self._destinations.items()):
            destination.users = kept.get(name, 0)
            if not destination.users:
                self._leave(destination.index)
                del self._destinations[name]
