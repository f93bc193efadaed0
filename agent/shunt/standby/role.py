"""Which part this agent plays in its group, and what becomes of commands that reach it while it is not in charge.

Both agents of a pair listen for SIP servers all the time. The one in charge answers; the other passes what
it gets on to that one, so a SIP server may use either address and finds both alive. When the one in charge
dies, commands are held until the other has taken over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from shunt.control.listener import Peer
from shunt.control.upstream import RelayClient, RelayError
from shunt.rtpproxy import codec
from shunt.rtpproxy.codec import CodecError
from shunt.standby.fence import Fence
from shunt.standby.lease import Lease

log = logging.getLogger(__name__)

ACTIVE, STANDBY, LOST = "active", "standby", "lost"
_PASS_ON_TIMEOUT_S = 0.4
_TRY_AGAIN_S = 0.05
_MOST_HELD = 2000  # commands that wait for a take-over; further ones are not answered, as if they had been lost on the way

Handle = Callable[[bytes, bytes | None, Peer], Awaitable[bytes | None]]


class Role:
    """One agent's role. `serve` handles a command once this agent is in charge."""

    def __init__(self, lease: Lease, serve: Handle) -> None:
        self.lease = lease
        self.fence = Fence(lease)
        self.state = STANDBY
        self.lost = asyncio.Event()
        self.passed_on = 0
        self._serve = serve
        self._changed = asyncio.Event()
        self._held = 0
        self._peer: tuple[str, RelayClient] | None = None

    def become(self, state: str) -> None:
        """Change the role; commands that were held are handled now."""
        if state != self.state:
            log.warning("role: %s", state)
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()
        if state == LOST:
            self.lost.set()

    def lose(self, why: str) -> None:
        """Another agent is in charge: stop at once."""
        if self.state != LOST:
            log.error("no longer in charge: %s", why)
            self.become(LOST)

    async def handle(self, body: bytes, cookie: bytes | None, peer: Peer) -> bytes | None:
        """Answer a SIP server's command, or have the agent in charge answer it. None: no answer came in time."""
        if self.state == ACTIVE:
            return await self._serve(body, cookie, peer)
        if self._held >= _MOST_HELD:
            return None
        self._held += 1
        try:
            async with asyncio.timeout(self.lease.seconds + 2.0):
                return await self._elsewhere(body, cookie, peer)
        except TimeoutError:
            return None
        finally:
            self._held -= 1

    async def _elsewhere(self, body: bytes, cookie: bytes | None, peer: Peer) -> bytes | None:
        own = self._with_sender(body, cookie, peer)
        while self.state != ACTIVE:
            client = await self._client()
            if client is not None:
                try:
                    reply = await client.forward(own)
                    self.passed_on += 1
                    return reply
                except RelayError as error:
                    log.debug("the agent in charge gave no answer: %s", error)
            if self.state == LOST:
                return None
            try:
                async with asyncio.timeout(_TRY_AGAIN_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return await self._serve(body, cookie, peer)

    @staticmethod
    def _with_sender(body: bytes, cookie: bytes | None, peer: Peer) -> bytes:
        """A notify socket that names only a port means the sender's address, which is not ours."""
        try:
            return codec.rewrite_notify_self(codec.parse_command(body, cookie), peer.host) if peer.host else body
        except CodecError:
            return body

    async def _client(self) -> RelayClient | None:
        holder = self.lease.holder
        if holder is None or self.lease.is_me(holder) or not holder.get("control"):
            return None
        address = str(holder["control"])
        if self._peer is None or self._peer[0] != address:
            old, self._peer = self._peer, None
            if old is not None:
                await old[1].close()
            try:
                self._peer = (address, RelayClient(address, timeout=_PASS_ON_TIMEOUT_S))
            except ValueError as error:
                log.error("the agent in charge says it listens on %r: %s", address, error)
                return None
        return self._peer[1]

    async def close(self) -> None:
        """Let go of the lease, so that another agent may take over at once."""
        await self.lease.close()
        if self._peer is not None:
            await self._peer[1].close()
