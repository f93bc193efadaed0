"""Sockets at the relay addresses of participants: nobody else gets their ports, and what no row claims is not answered with ICMP errors.

What arrives here is what the data plane leaves to the host: packets before their source is learned, and RTCP. It is read and
dropped. Where the relay address is not of this host there is nothing to hold.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

from shunt.conference.control.model import Book, Participant
from shunt.net import Endpoint

log = logging.getLogger(__name__)

_AT_ONCE = 64
_MOST = 2048


class Sockets:
    """RTP and RTCP sockets of all participants."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._open: dict[Endpoint, socket.socket] = {}
        self._elsewhere = False
        self.packets = 0

    def open(self, participant: Participant) -> None:
        """Hold a participant's ports. One that somebody else has is said: its media works, but errors go back to its senders."""
        for leg in participant.legs.values():
            for endpoint in (leg.relay, leg.relay.next_port()):
                self._hold(endpoint)

    def _hold(self, endpoint: Endpoint) -> None:
        made = socket.socket(socket.AF_INET if endpoint.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
        try:
            made.setblocking(False)
            made.bind((endpoint.ip, endpoint.port))
        except OSError as error:
            made.close()
            if error.errno != errno.EADDRNOTAVAIL or not self._elsewhere:
                log.warning("conference address %s is not held: %s", endpoint, error.strerror or error)
            self._elsewhere = self._elsewhere or error.errno == errno.EADDRNOTAVAIL
            return
        self._open[endpoint] = made
        asyncio.get_running_loop().add_reader(made, self._read, made)

    def _read(self, sock: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock.recv(_MOST)
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error of something sent from here
            self.packets += 1

    def close(self, participant: Participant) -> None:
        """Let a participant's ports go."""
        for leg in participant.legs.values():
            for endpoint in (leg.relay, leg.relay.next_port()):
                self._let_go(endpoint)

    def close_all(self) -> None:
        for endpoint in list(self._open):
            self._let_go(endpoint)

    def _let_go(self, endpoint: Endpoint) -> None:
        made = self._open.pop(endpoint, None)
        if made is not None:
            asyncio.get_running_loop().remove_reader(made)
            made.close()
