"""Load without SIP by NG: offers, answers and deletes as a SIP server with an rtpengine module sends them."""

from __future__ import annotations

import re

from tests.lab.load import Load, LoadCall
from tests.tools.ng import decode, encode

_SDP = "v=0\r\no=- 1 1 IN IP4 {0}\r\ns=-\r\nc=IN IP4 {0}\r\nt=0 0\r\nm=audio {1} RTP/AVP 0\r\na=sendrecv\r\n"
_RELAY = re.compile(r"c=IN IP4 (\S+)[\s\S]*m=audio (\d+)")


class NgLoad(Load):
    """Places calls: offer, answer, media, delete."""

    ASK = encode({"command": "ping"}).decode()

    async def set_up(self, call: LoadCall, *, modifiers: str = "") -> bool:
        """Offer and answer. False, and noted in `failed`, when one of them got no usable reply. `modifiers` are rtpproxy's and mean nothing here."""
        ids = {"call-id": call.call_id, "from-tag": "A"}
        offer = {"sdp": _SDP.format(self.caller.ip, call.caller_port), **ids, "command": "offer"}
        if not self._take(call, "callee", await self._ask(offer)):
            return False
        answer = {"sdp": _SDP.format(self.callee.ip, call.callee_port), **ids, "to-tag": "B", "command": "answer"}
        return self._take(call, "caller", await self._ask(answer))

    async def _ask(self, message: dict[str, str]) -> bytes | None:
        """The relay's port and address in a reply, in the words of the rtpproxy protocol; the reply as it is where it has none."""
        reply = await self.client.command(encode(message).decode())
        found = _RELAY.search(decode(reply).get("sdp", "")) if reply else None
        return f"{found[2]} {found[1]}".encode() if found else reply

    async def hang_up(self, call: LoadCall) -> None:
        """Delete the call. A delete that nobody answers is noted in `failed`."""
        if await self.client.command(encode({"call-id": call.call_id, "from-tag": "A", "command": "delete"}).decode()) is None:
            self.failed.append(f"{call.call_id}: no answer to delete")
