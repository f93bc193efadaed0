"""Calls of browsers by SIP (RFC 7118): what the focus asks of whoever has the edges that their media ends at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from aiosipua import SdpMessage

Kept = Callable[[str, str, str], dict[str, Any]]
"""What is to be kept of a call, of its participant's identifier and name, and the answer."""


class NotNow(Exception):
    """No edge takes another browser now, or it does not answer (SIP status 503); the text says why."""


class Browsers(Protocol):
    """Participants at edges. All methods raise NotAcceptable, NotNow and AdminError."""

    async def join(self, conference: str, name: str, user: str, offer: str, call: str, kept: Kept) -> tuple[str, str]:
        """Let the browser of a call in. name: what it is called; user: what its identifier is made of. The identifier, and the answer."""
        ...

    async def change(self, conference: str, participant: str, offer: str, kept: Kept) -> str:
        """Take a further offer; the answer."""
        ...


def is_browser(offer: SdpMessage | None) -> bool:
    """Whether an offer is a browser's: DTLS-SRTP (RFC 5764), with a fingerprint."""
    return offer is not None and any("UDP/TLS/RTP/SAVP" in media.proto and ("fingerprint" in media.attributes or "fingerprint" in offer.attributes) for media in offer.media)
