"""HEPv3 to a Homer capture server: a call's events as log lines, and a quality report for each measured stream.

Homer joins them to the SIP trace of the call by the correlation id, which is the SIP Call-ID. What it
has already from the SIP server's own tracer (the SIP messages) is not sent again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections import deque
from typing import Any

from shunt.config.values import SocketAddress
from shunt.errors import cause
from shunt.events.bus import LEARN, SIP, Event
from shunt.events.view import one_line
from shunt.export.hep import PROTOCOL_UDP, HepError, HepPacket, encode
from shunt.net import UNKNOWN, Endpoint
from shunt.tasks import keep_running

log = logging.getLogger(__name__)

KIND_RTP_REPORT = 34  # the JSON report of sipcapture's own RTP agent
KIND_LOG = 100
_MAX_WAITING = 5_000
_BURST = 200  # packets in one go; the loop has other work
_QUIET_S = 30.0  # a refused datagram is worth a log line this often
_TELLING_VERDICTS = frozenset({"latched", "contested", "moved", "restored"})


def sip_call_id(call_id: str) -> str:
    """The Call-ID in SIP: OpenSIPS's rtp_relay adds "-BRANCH" to the one that it gives the relay."""
    stem, dash, branch = call_id.rpartition("-")
    return stem if dash and len(branch) == 1 and branch.isdigit() else call_id


def report(call_id: str, direction: str, stream: dict[str, Any], source: Endpoint, destination: Endpoint, wall: float) -> dict[str, Any]:
    """The quality report of one stream in the words of sipcapture's RTP reports. Jitter is in ms; MOS is left out where there is none."""
    fields = {
        "CORRELATION_ID": call_id,
        "RTP_SIP_CALL_ID": call_id,
        "REPORT_TS": round(wall, 3),
        "REPORT_NAME": f"shunt {direction}",
        "TYPE": "FINAL",
        "TL_BYTE": stream["bytes"],
        "TOTAL_PK": stream["packets"],
        "EXPECTED_PK": stream["packets"] + stream["lost"],
        "PACKET_LOSS": stream["lost"],
        "OUT_ORDER": stream["reordered"],
        "JITTER": stream["jitter_ms"],
        "MEAN_JITTER": stream["jitter_ms"],
        "MAX_JITTER": stream["jitter_max_ms"],
        "SRC_IP": source.ip,
        "SRC_PORT": source.port,
        "DST_IP": destination.ip,
        "DST_PORT": destination.port,
        "CODEC_PT": stream["payload_type"],
        "CODEC_NAME": stream["codec"],
    }
    if stream["mos"] is not None:
        fields |= {"MOS": stream["mos"], "MEAN_MOS": stream["mos"], "MIN_MOS": stream["mos"], "RFACTOR": stream["r"], "MEAN_RFACTOR": stream["r"], "MIN_RFACTOR": stream["r"]}
    return fields


class HomerExport:
    """Sends to one capture server over UDP. It never waits: what the socket does not take at once is counted as dropped."""

    def __init__(self, target: str, capture_id: int, events: bool) -> None:
        """target: udp:ADDRESS:PORT; capture_id: this agent's id at Homer; events: send call events too, and not only reports."""
        self.target = SocketAddress.parse(target)
        self.capture_id = capture_id
        self.events = events
        self.sent = 0
        self.dropped = 0
        self._waiting: deque[bytes | Event] = deque()
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._quiet_until = 0.0
        self._socket: socket.socket | None = None

    async def start(self) -> None:
        """Open the socket. Raises OSError."""
        family = socket.AF_INET6 if ":" in self.target.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.connect((self.target.host, self.target.port))
        self._task = asyncio.get_running_loop().create_task(keep_running("Homer reports", self._run))

    async def close(self) -> None:
        """Send what waits, and close."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        while self._waiting:
            self._send_some()
        if self._socket is not None:
            self._socket.close()

    def __call__(self, event: Event) -> None:
        """Take in an event (as a subscriber of the bus). It is written as text later, off the path of the call."""
        if not self.events or not event.call_id or event.kind == SIP or (event.kind == LEARN and event.what not in _TELLING_VERDICTS):
            return
        self._put(event)

    def call_ended(self, record: dict[str, Any], wall: float) -> None:
        """Send a quality report for each measured stream of a call's record (cdr.record). wall: Unix time of its end."""
        call_id = sip_call_id(record["call_id"])
        for media in record["media"]:
            for side, other in (("caller", "callee"), ("callee", "caller")):
                stream = media[side]
                if stream["lost"] is None or stream["source"] is None or stream["relay_port"] is None:
                    continue
                source, destination = Endpoint.parse(stream["source"]), Endpoint.parse(stream["relay_port"])
                body = json.dumps(report(call_id, f"{side}->{other}", stream, source, destination, wall)).encode()
                self._put(self._packet(call_id, wall, body, KIND_RTP_REPORT, source, destination))

    def _put(self, item: bytes | Event) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self.dropped += 1
            return
        self._waiting.append(item)
        self._due.set()

    def _packet(self, call_id: str, wall: float, body: bytes, kind: int, source: Endpoint, destination: Endpoint) -> bytes:
        seconds = int(wall)
        packet = HepPacket(
            source,
            destination,
            body,
            kind,
            PROTOCOL_UDP,
            seconds,
            int((wall - seconds) * 1_000_000),
            self.capture_id,
            call_id.encode("utf-8", "surrogateescape"),
        )
        return encode(packet)

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self._send_some()
            if not self._waiting:
                self._due.clear()
            await asyncio.sleep(0.01)

    def _send_some(self) -> None:
        assert self._socket is not None
        for _ in range(min(_BURST, len(self._waiting))):
            item = self._waiting.popleft()
            try:
                if isinstance(item, Event):
                    item = self._packet(sip_call_id(item.call_id), item.at, one_line(item).encode("utf-8", "backslashreplace"), KIND_LOG, UNKNOWN, UNKNOWN)
                self._socket.send(item)
                self.sent += 1
            except (OSError, HepError) as error:
                self.dropped += 1
                if time.monotonic() >= self._quiet_until:
                    self._quiet_until = time.monotonic() + _QUIET_S
                    log.warning("Homer at %s: %s; reports are lost (%d so far)", self.target, cause(error), self.dropped)
