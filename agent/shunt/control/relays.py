"""The relays behind the agent: external ones over the control protocol and the built-in one, behind one face."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from shunt.control.upstream import RelayError
from shunt.rtpproxy import capabilities
from shunt.tables.entry import MediaRange

log = logging.getLogger(__name__)

Send = Callable[..., Awaitable[bytes]]


@dataclass(slots=True)
class Relay:
    """One relay. ttl is its session time-out in seconds; keepalive how its sessions are kept while it sees no media."""

    name: str
    address: str
    ttl: float
    media: list[MediaRange]
    forward: Send  # a SIP server's command: (body, peer_ip) -> reply body
    request: Send  # one of the agent's own: (body) -> reply body
    alive: bool = True
    keepalive: str | None = None
    version: str = ""
    sessions: int | None = None
    packets_relayed: int | None = None
    counts_packets: bool = True
    may_query: bool = False  # rtpengine's Q corrupts its own call (facts section 12)
    close: Callable[[], Awaitable[None]] | None = None

    async def probe(self) -> None:
        """Ask what the relay can do; decides the keep-alive method. Raises RelayError when it does not answer."""
        self.version = (await self.request(b"V")).decode("ascii", "replace").strip()
        answers: dict[int, bool] = {}
        for date in capabilities.AGENT_HANDSHAKE:
            answers[date] = (await self.request(b"VF %d" % date)).strip() == b"1"
        self.keepalive = capabilities.keepalive_method(answers)
        self.may_query = capabilities.may_query(answers)

    async def poll(self) -> None:
        """Read sessions and packet totals for `shunt status`; a relay that lacks a command is not asked again."""
        try:
            if self.keepalive is None:
                await self.probe()
            text = (await self.request(b"I")).decode("ascii", "replace")
            found = re.search(r"active sessions: (\d+)", text)
            self.sessions = int(found.group(1)) if found else None
            if self.counts_packets:
                reply = (await self.request(b"G npkts_relayed")).split()
                if reply and reply[0].isdigit():
                    self.packets_relayed = int(reply[0])
                else:
                    self.counts_packets = False
            if not self.alive:
                log.warning("relay %s (%s) answers again", self.name, self.address)
            self.alive = True
        except RelayError as error:
            if self.alive:
                log.error("relay %s (%s) does not answer: %s", self.name, self.address, error)
            self.alive = False
            self.keepalive = None


@dataclass(slots=True)
class RelayPool:
    """The relays in order of configuration; a new call goes to the living one with the fewest sessions."""

    relays: list[Relay]
    by_name: dict[str, Relay] = field(init=False)

    def __post_init__(self) -> None:
        self.by_name = {relay.name: relay for relay in self.relays}

    def candidates(self) -> list[Relay]:
        """The relays to try for a new call, best first; dead ones last, for they may be back."""
        if len(self.relays) == 1:
            return self.relays
        return sorted(self.relays, key=lambda r: (not r.alive, r.sessions or 0))
