"""Ports of the loopback address for processes that a test starts, and that no other socket can get in between."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

# Below what the kernel chooses from for sockets that ask for any port (ip_local_port_range, 32768 and up): a port
# that is free now may otherwise be any client's before the process has started that is told to listen on it.
_FIRST, _LAST = 2_000, 9_999
_MEDIA_FIRST, _MEDIA_RANGES, _MEDIA_SIZE = 10_000, 50, 400


def _round() -> Iterator[int]:
    """The even ports of the range again and again, each test process from a place of its own. Nobody has the odd ones, for RTCP goes to the port after that of its RTP."""
    count = (_LAST - _FIRST + 1) // 2
    at = os.getpid() * 97 % count
    while True:
        yield _FIRST + 2 * at
        at = (at + 1) % count


_NEXT = _round()


def free_port(kind: int = socket.SOCK_DGRAM) -> int:
    """An even port of 127.0.0.1 that nobody uses now, and that is not given out again before all others were; nor does anybody use the next one.

    `kind` is SOCK_DGRAM or SOCK_STREAM. Raises OSError when the whole range is taken.
    """
    for _ in range((_LAST - _FIRST + 1) // 2):
        port = next(_NEXT)
        try:
            for each in (port, port + 1):
                with socket.socket(socket.AF_INET, kind) as probe:
                    probe.bind(("127.0.0.1", each))
        except OSError:
            continue
        return port
    raise OSError(f"no free port between {_FIRST} and {_LAST}")


def media_ports() -> str:
    """A range of 200 pairs of media ports that no free_port() lies in, as the configuration writes it."""
    first = _MEDIA_FIRST + os.getpid() % _MEDIA_RANGES * _MEDIA_SIZE
    return f"{first}-{first + _MEDIA_SIZE - 1}"
