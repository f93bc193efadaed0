"""SIP over UDP for the focus: what the library leaves out of server transactions (RFC 3261 sections 12.1.1 and 17.2)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from aiosipua import SipRequest, SipResponse, UdpSipTransport

log = logging.getLogger(__name__)

TRANSACTION_S = 32.0
"""64 T1: for as long a request may come again."""


class _Datagrams(asyncio.DatagramProtocol):
    """Hands datagrams to a transport."""

    def __init__(self, owner: FocusTransport) -> None:
        self._owner = owner

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._owner._dispatch(data, (str(addr[0]), int(addr[1])))

    def error_received(self, exc: Exception) -> None:
        log.debug("conference.sip: %s", exc)


class FocusTransport(UdpSipTransport):
    """Adds the Record-Route headers of an INVITE to its answers, without which a proxy does not see the rest of the call; and answers a request that
    comes again as it was answered before."""

    def __init__(self, local_addr: tuple[str, int], invite_of: Callable[[str], SipRequest | None]) -> None:
        """invite_of: the INVITE that a call's answers are for, by Call-ID."""
        super().__init__(local_addr)
        self._invite_of = invite_of
        self._answers: OrderedDict[tuple[str, str], tuple[float, SipResponse]] = OrderedDict()  # by the topmost Via and the method

    async def start(self) -> None:
        """Listen. Raises OSError. (The library's own protocol does not take the event loop's transport for one of datagrams before Python 3.12.)"""
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: _Datagrams(self), local_addr=self.local_addr)
        self._udp_transport = transport

    def send_reply(self, response: SipResponse) -> None:
        """Send an answer by its Via."""
        cseq = response.cseq
        invite = self._invite_of(response.call_id or "")
        if invite is not None and cseq is not None and cseq.method == "INVITE" and 100 < response.status_code < 300 and not response.headers.get("record-route"):
            for route in invite.headers.get("record-route"):
                response.headers.append("Record-Route", route)
        if cseq is not None:
            now = time.monotonic()
            self._answers[response.headers.get("via")[0], cseq.method] = now, response
            while self._answers and next(iter(self._answers.values()))[0] < now - TRANSACTION_S:
                self._answers.popitem(last=False)
        super().send_reply(response)

    def send(self, message: SipRequest | SipResponse, addr: tuple[str, int]) -> None:
        """Send, while the socket is open; what is not answered goes again."""
        if self._udp_transport is not None:
            super().send(message, addr)

    def repeat(self, request: SipRequest) -> bool:
        """Whether this request has been answered before; then the answer goes once more."""
        via = request.headers.get("via")
        answered = self._answers.get((via[0], request.method)) if via else None
        if answered is None:
            return False
        super().send_reply(answered[1])
        return True
