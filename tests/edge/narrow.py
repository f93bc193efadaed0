"""A UDP proxy before an edge, whose way to one browser can be made narrow: so many bit/s, and a queue of 200 ms before them."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time

Address = tuple[str, int]
_QUEUE_S = 0.2


class _Way:
    """From the edge to one browser."""

    def __init__(self, front: socket.socket, peer: Address, edge: Address) -> None:
        self.bitrate: float | None = None
        self.dropped = 0
        self.back = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.back.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.back.connect(edge)
        self._front, self._peer, self._free = front, peer, 0.0
        self._queue: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        for run in (self._read, self._write):
            threading.Thread(target=run, daemon=True).start()

    def _read(self) -> None:
        while packet := self._receive():
            now = time.monotonic()
            bitrate = self.bitrate
            start = max(now, self._free)
            if bitrate is not None and start - now > _QUEUE_S:
                self.dropped += 1
                continue
            self._free = start + (len(packet) * 8 / bitrate if bitrate else 0.0)
            self._queue.put((self._free, packet))
        self._queue.put((0.0, b""))

    def _receive(self) -> bytes:
        """The next packet; empty at the end."""
        while True:
            try:
                return self.back.recv(65536)
            except ConnectionRefusedError:  # the edge has ended
                continue
            except OSError:
                return b""

    def _write(self) -> None:
        while True:
            at, packet = self._queue.get()
            if not packet:
                return
            time.sleep(max(0.0, at - time.monotonic()))
            with contextlib.suppress(OSError):  # the test has ended
                self._front.sendto(packet, self._peer)


class Narrow:
    """The proxy."""

    def __init__(self, listen: Address, edge: Address) -> None:
        self._edge = edge
        self._front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._front.bind(listen)
        self._ways: dict[Address, _Way] = {}
        self._reader = threading.Thread(target=self._run, daemon=True)
        self._reader.start()

    def _run(self) -> None:
        while True:
            try:
                packet, peer = self._front.recvfrom(65536)
            except OSError:
                return
            if not packet:
                return
            if peer not in self._ways:
                self._ways[peer] = _Way(self._front, peer, self._edge)
            with contextlib.suppress(OSError):  # the edge has ended
                self._ways[peer].back.send(packet)

    def limit(self, remote: str, bitrate: float | None) -> None:
        """Let so many bit/s through to the browser that the edge sees at an address; None: all."""
        host, _, port = remote.rpartition(":")
        [way] = [way for way in self._ways.values() if way.back.getsockname() == (host, int(port))]
        way.bitrate = bitrate

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._front.shutdown(socket.SHUT_RDWR)
        self._reader.join()  # a socket that a thread reads from keeps its port
        self._front.close()
        for way in self._ways.values():
            with contextlib.suppress(OSError):
                way.back.shutdown(socket.SHUT_RDWR)
            way.back.close()
