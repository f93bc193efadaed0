"""The CPU port of a switch as a network interface of this host: datagrams to the conferences' address are heard there, and what the agent sends leaves by it.

A packet socket, because the address is the switch's and not this host's. Media does not pass here: without the interface it goes on, and only
RTCP, connectivity checks and template structures are not heard until it is back.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import socket
import struct
import sys
from collections.abc import Callable

from shunt.conference.frames import IPV4, IPV6, Datagram, FrameError, read_datagram

log = logging.getLogger(__name__)

_AT_ONCE, _PAUSE_S = 64, 0.005
"""Frames that are read together, and for how long nothing is read then: who floods the conferences' address does not hold up the agent."""
_AGAIN_S = 1.0
_MOST = 16_384  # bytes of a frame: what the mirror session cuts at
_BUFFER = 1 << 20
_OUTGOING = 4  # linux/if_packet.h: PACKET_OUTGOING
_SOL_PACKET, _ADD_MEMBERSHIP, _STATISTICS, _PROMISCUOUS = 263, 1, 6, 1
_ATTACH_FILTER = 26  # asm-generic/socket.h: SO_ATTACH_FILTER
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/filter.h: a word of the packet; jump; end, with so many bytes of it


def open_packet_socket(interface: str, address: bytes) -> socket.socket:
    """A socket that gets frames with IP packets to this address (4 or 16 bytes) from an interface, whosever MAC address they have. Raises OSError."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # of no protocol: nothing comes before the filter is there
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        code = _only_to(address)
        buffer = ctypes.create_string_buffer(code, len(code))
        made.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
        made.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, struct.pack("@iHH8s", socket.if_nametoindex(interface), _PROMISCUOUS, 0, b""))
        made.bind((interface, IPV4 if len(address) == 4 else IPV6))
        if failed := made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # the interface is down
            raise OSError(failed, os.strerror(failed))
    except OSError:
        made.close()
        raise
    return made


def _only_to(address: bytes) -> bytes:
    """A classic BPF program that takes packets to an address. The kernel has put a tag aside before it runs."""
    at = 14 + (16 if len(address) == 4 else 24)
    words = [int.from_bytes(address[start : start + 4], "big") for start in range(0, len(address), 4)]
    program = []
    for n, word in enumerate(words):
        left = 2 * (len(words) - n - 1)
        program += [(_LOAD, 0, 0, at + 4 * n), (_IF_EQUAL, 0, left + 1, word)]
    return b"".join(struct.pack("@HBBI", *one) for one in [*program, (_RETURN, 0, 0, 0xFFFF), (_RETURN, 0, 0, 0)])


class CpuPort:
    """Hears and sends by one interface, as long as it is there; otherwise tries again."""

    def __init__(self, interface: str, address: bytes, hear: Callable[[Datagram], None]) -> None:
        """address: packed, the one that datagrams are heard to. hear must not raise."""
        self.interface = interface
        self.problem = "it has not been opened yet"
        self.counts = {"cpu_port_frames": 0, "cpu_port_refused": 0, "cpu_port_lost": 0, "cpu_port_sent": 0, "cpu_port_unsent": 0}
        self._address, self._hear = address, hear
        self._socket: socket.socket | None = None
        self._again: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Open the interface, now or as soon as it is there."""
        self._again = None
        try:
            made = self._socket = open_packet_socket(self.interface, self._address)
        except OSError as error:
            self._gone(error)
            return
        if self.problem:
            log.info("data_plane.cpu_interface %s: heard", self.interface)
        self.problem = ""
        self._listen(made)

    def close(self) -> None:
        """Hear no more."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._drop()

    def send(self, frame: bytes) -> None:
        """Send a frame; what does not go out is counted."""
        try:
            if self._socket is None:
                raise OSError(errno.ENETDOWN, os.strerror(errno.ENETDOWN))
            self._socket.send(frame)
        except OSError as error:
            self.counts["cpu_port_unsent"] += 1
            log.debug("data_plane.cpu_interface %s: %s", self.interface, error)
        else:
            self.counts["cpu_port_sent"] += 1

    def _drop(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _gone(self, error: OSError) -> None:
        self._drop()
        why = f"{error.strerror or error}" + (" (it takes CAP_NET_RAW)" if error.errno == errno.EPERM else "")
        if why != self.problem:
            log.error("data_plane.cpu_interface %s: %s; conferences' RTCP, connectivity checks and layers are not heard until it is there", self.interface, why)
        self.problem = why
        self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self.start)

    def _listen(self, sock: socket.socket) -> None:
        self._again = None
        self.counts["cpu_port_lost"] += int.from_bytes(sock.getsockopt(_SOL_PACKET, _STATISTICS, 8)[4:], sys.byteorder)  # since it was last asked
        asyncio.get_running_loop().add_reader(sock, self._read, sock)

    def _read(self, sock: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                frame, (_, _, kind, _, _) = sock.recvfrom(_MOST)
            except BlockingIOError:
                return
            except OSError as error:
                self._gone(error)
                return
            if kind != _OUTGOING:
                self._take(frame)
        loop = asyncio.get_running_loop()
        loop.remove_reader(sock)
        self._again = loop.call_later(_PAUSE_S, self._listen, sock)

    def _take(self, frame: bytes) -> None:
        self.counts["cpu_port_frames"] += 1
        try:
            found = read_datagram(frame)
        except FrameError as error:
            self.counts["cpu_port_refused"] += 1
            log.debug("data_plane.cpu_interface %s: a frame of %d bytes: %s", self.interface, len(frame), error)
            return
        if found is not None:
            self._hear(found)
