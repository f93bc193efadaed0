"""Pairs of UDP ports (RTP even, RTCP the odd one above, RFC 3550 section 11), taken at random and rested after use."""

from __future__ import annotations

import errno
import random
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_TAKEN = (errno.EADDRINUSE, errno.EACCES)
_BAD_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)
# How long a pair that another process holds is left alone before it is tried again.
_TAKEN_REST = 1.0

RECEIVE_BUFFER = 512 * 1024
"""Bytes asked for as each media socket's receive buffer: a tenth of a second of 40 Mbit/s video."""


class PortsExhausted(Exception):
    """No pair could be had on that address; the text says how many are in use and how many rest."""


class AddressUnusable(Exception):
    """The address is not one of this host's, or of a family that it does not have."""


class PortTaken(Exception):
    """That very pair could not be had: it is given out already, out of range, or another process holds it."""


def bind_pair(ip: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Open the RTP and RTCP sockets ip:port and ip:port+1, non-blocking. Raises OSError as bind() does."""
    opened: list[socket.socket] = []
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        for number in (port, port + 1):
            sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            opened.append(sock)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            sock.bind((ip, number))
    except OSError:
        for sock in opened:
            sock.close()
        raise
    return opened[0], opened[1]


class _Pool:
    """The pairs of one address: free (in random reach), in use, resting after use, or held by somebody else."""

    __slots__ = ("free", "place", "used", "resting", "taken")

    def __init__(self, ports: range) -> None:
        self.free = list(ports)
        self.place = {port: i for i, port in enumerate(self.free)}
        self.used: set[int] = set()
        self.resting: deque[tuple[float, int]] = deque()
        self.taken: deque[tuple[float, int]] = deque()

    def wake(self, now: float) -> None:
        for queue in (self.resting, self.taken):
            while queue and queue[0][0] <= now:
                self.put(queue.popleft()[1])

    def put(self, port: int) -> None:
        self.place[port] = len(self.free)
        self.free.append(port)

    def take(self, port: int) -> None:
        at = self.place.pop(port)
        last = self.free.pop()
        if last != port:
            self.free[at] = last
            self.place[last] = at


class PortAllocator(Generic[T]):
    """Hands out even ports of one range, on as many addresses as are asked for.

    A pair is chosen at random among all free ones, so that the next port cannot be guessed; a pair that was released
    rests for `quarantine` seconds (late packets of the old call must not reach a new one), and a pair whose sockets
    another process holds is passed over. `binder(ip, port)` opens the sockets and raises OSError as bind() does.
    """

    def __init__(
        self, first_port: int, last_port: int, binder: Callable[[str, int], T], *, quarantine: float = 5.0,
        clock: Callable[[], float] = time.monotonic, rng: random.Random | None = None,
    ) -> None:
        """first_port..last_port inclusive; pairs lie wholly inside. Raises ValueError for a range without a pair."""
        if not 1 <= first_port <= last_port <= 65535:
            raise ValueError(f"media ports {first_port}-{last_port} are not a range in 1..65535")
        self.ports = range(first_port + first_port % 2, last_port, 2)
        if not self.ports:
            raise ValueError(f"media ports {first_port}-{last_port} hold no even port with the next one")
        self.quarantine = quarantine
        self._binder = binder
        self._clock = clock
        self._rng = rng or random.SystemRandom()
        self._pools: dict[str, _Pool] = {}

    def _pool(self, ip: str) -> _Pool:
        pool = self._pools.get(ip)
        if pool is None:
            pool = self._pools[ip] = _Pool(self.ports)
        pool.wake(self._clock())
        return pool

    def open(self, ip: str) -> tuple[int, T]:
        """A free pair on ip: its even port and what the binder opened. Raises PortsExhausted or AddressUnusable."""
        pool = self._pool(ip)
        while pool.free:
            port = pool.free[self._rng.randrange(len(pool.free))]
            try:
                opened = self._binder(ip, port)
            except OSError as error:
                if error.errno in _BAD_ADDRESS:
                    raise AddressUnusable(f"{ip}: {error.strerror}") from error
                if error.errno not in _TAKEN:
                    raise PortsExhausted(f"{ip}: no socket to be had: {error.strerror}") from error
                pool.take(port)
                pool.taken.append((self._clock() + _TAKEN_REST, port))
                continue
            pool.take(port)
            pool.used.add(port)
            return port, opened
        raise PortsExhausted(
            f"{ip}: all {len(self.ports)} port pairs {self.ports[0]}-{self.ports[-1] + 1} are taken "
            f"({len(pool.used)} in use, {len(pool.resting)} resting, {len(pool.taken)} held by other processes)"
        )

    def reopen(self, ip: str, port: int) -> T:
        """That very pair, also from quarantine: for a call that goes on after a restart. Raises PortTaken."""
        pool = self._pool(ip)
        resting = [entry for entry in pool.resting if entry[1] == port]
        if port not in pool.place and not resting:
            raise PortTaken(f"{ip}:{port} is in use already, or not an even port of {self.ports[0]}-{self.ports[-1] + 1}")
        try:
            opened = self._binder(ip, port)
        except OSError as error:
            raise PortTaken(f"{ip}:{port}: {error.strerror}") from error
        if resting:
            pool.resting.remove(resting[0])
        else:
            pool.take(port)
        pool.used.add(port)
        return opened

    def release(self, ip: str, port: int) -> None:
        """Give a pair back (its sockets are closed by now); it rests before it is used again. Raises KeyError."""
        pool = self._pools[ip]
        pool.used.remove(port)
        pool.resting.append((self._clock() + self.quarantine, port))

    def rest(self, ip: str, port: int, seconds: float) -> None:
        """Keep a free pair from use for a while: what was resting when an earlier process ended. Unknown ports pass."""
        pool = self._pool(ip)
        if port in pool.place and seconds > 0:
            pool.take(port)
            pool.resting.append((self._clock() + min(seconds, self.quarantine), port))
            pool.resting = deque(sorted(pool.resting))

    def resting(self) -> list[tuple[str, int, float]]:
        """(address, port, seconds left) of every pair in quarantine."""
        now = self._clock()
        return [
            (ip, port, until - now) for ip, pool in self._pools.items() for until, port in pool.resting if until > now
        ]

    def used(self, ip: str) -> int:
        """How many pairs are given out on that address."""
        pool = self._pools.get(ip)
        return len(pool.used) if pool else 0
