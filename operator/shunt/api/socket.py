"""The socket that the REST API listens on."""

from __future__ import annotations

import errno
import os
import socket
import stat

from shunt.config.values import HostPort
from shunt.errors import cause

_BACKLOG = 128
_MODE = 0o660


def listening(listen: HostPort) -> socket.socket:
    """Listen on an address and port, or a unix socket's path. Raises OSError, naming the socket, where it cannot be had."""
    address: str | tuple[str, int] = listen.path or (listen.host, listen.port)
    family = socket.AF_UNIX if listen.path else socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if listen.path:
            _remove_stale_socket(listen.path)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        if listen.path:
            os.chmod(listen.path, _MODE)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"API socket {listen}: {cause(error)}") from error
    return sock


def _remove_stale_socket(path: str) -> None:
    """Unlink a socket that nobody listens on. Raises OSError (EADDRINUSE) where somebody does, or it is no socket."""
    try:
        kind = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise OSError(errno.EADDRINUSE, "the path exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, "another process listens on it")
