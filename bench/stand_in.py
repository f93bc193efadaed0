"""A relay that only answers, in the rtpproxy protocol or in NG: it hands out ports of many addresses at once. For more calls than a relay has ports.

Run: python -m bench.stand_in PORT ADDRESS FIRST LAST. ADDRESS is the first of as many neighbouring IPv4 addresses as are needed.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import sys
from typing import Any

from tests.tools.ng import decode, encode

PER_CALL = 4


def endpoints(number: int, first_address: int, first: int, last: int) -> tuple[str, int, int]:
    """Relay address and the ports that callee and caller of call number are told."""
    per_address = (last - first + 1) // PER_CALL
    port = first + number % per_address * PER_CALL
    return str(ipaddress.IPv4Address(first_address + number // per_address)), port, port + 2


def addresses(calls: int, first: int, last: int) -> int:
    """How many relay addresses so many calls need."""
    return -(-calls // ((last - first + 1) // PER_CALL))


class Rtpengine:
    """What a stand-in for rtpengine knows of its calls: by Call-ID the number, and of each party its tag, where it is, and where it sends to."""

    def __init__(self, base: int, first: int, last: int) -> None:
        self._range = base, first, last
        self._numbers: dict[str, int] = {}
        self._parties: dict[str, list[tuple[str, tuple[str, int], tuple[str, int]]]] = {}

    def answer(self, body: bytes) -> bytes:
        """The reply to a command."""
        message = decode(body)
        command, call = message["command"], message.get("call-id", "")
        if command in ("offer", "answer"):
            return encode({"sdp": self._negotiate(command, call, message), "result": "ok"})
        if command == "query":
            return encode(self._describe(call))
        if command == "statistics":
            return encode({"statistics": {"currentstatistics": {"sessionstotal": len(self._parties)}, "totalstatistics": {}}, "result": "ok"})
        return encode({"calls": [], "result": "ok"} if command == "list" else {"result": "pong" if command == "ping" else "ok"})

    def _negotiate(self, command: str, call: str, message: dict[str, Any]) -> str:
        number = self._numbers.setdefault(call, len(self._numbers))
        relay, to_callee, to_caller = endpoints(number, *self._range)
        found = re.search(r"c=IN IP4 (\S+)[\s\S]*m=audio (\d+)", message["sdp"])
        assert found is not None
        place = found[1], int(found[2])
        tag, own, other = (message["from-tag"], to_caller, to_callee) if command == "offer" else (message["to-tag"], to_callee, to_caller)
        parties = self._parties.setdefault(call, [])
        del parties[0 if command == "offer" else 1 :]
        parties.append((tag, place, (relay, own)))
        return message["sdp"].replace(f"c=IN IP4 {place[0]}", f"c=IN IP4 {relay}").replace(f"m=audio {place[1]} ", f"m=audio {other} ")

    def _describe(self, call: str) -> dict[str, Any]:
        if call not in self._parties:
            return {"result": "error", "error-reason": "Unknown call-id"}
        tags = {}
        parties = self._parties[call]
        for at, (tag, place, local) in enumerate(parties):
            flow = [{"tag": parties[1 - at][0] if len(parties) > 1 else "", "type": "offer/answer"}]
            streams = [_stream(place, local, 0, "RTP"), _stream(place, local, 1, "RTCP")]
            medias = [{"index": 1, "type": "audio", "protocol": "RTP/AVP", "streams": streams, "flags": ["initialized", "send", "recv"]}]
            tags[tag] = {"tag": tag, "created": at, "subscriptions": flow, "subscribers": flow, "medias": medias}
        return {"created": 1, "tags": tags, "result": "ok"}


def _stream(place: tuple[str, int], local: tuple[str, int], step: int, kind: str) -> dict[str, Any]:
    end = {"family": "IPv4", "address": place[0], "port": place[1] + step}
    stats = {"packets": 0, "bytes": 0, "errors": 0}
    return {"local port": local[1] + step, "local address": local[0], "endpoint": end, "advertised endpoint": end, "flags": [kind, "filled"], "stats": stats}


def serve(port: int, address: str, first: int, last: int) -> None:
    """Answer commands until killed."""
    base, numbers = int(ipaddress.IPv4Address(address)), {}
    rtpengine = Rtpengine(base, first, last)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        sock.bind(("127.0.0.1", port))
        while True:
            data, sender = sock.recvfrom(65536)
            cookie, _, body = data.partition(b" ")
            if body[:1] == b"d":
                sock.sendto(cookie + b" " + rtpengine.answer(body), sender)
                continue
            words = data.split()
            cookie, verb = words[0], words[1][:1] if len(words) > 1 else b""
            if verb in (b"U", b"L"):
                number = numbers.setdefault(words[2], len(numbers))
                relay, to_callee, to_caller = endpoints(number, base, first, last)
                reply = f"{to_callee if verb == b'U' else to_caller} {relay}".encode()
            elif words[1:] == [b"V"]:
                reply = b"20040107"
            elif verb == b"V":
                reply = b"1"
            elif verb == b"I":
                reply = b"sessions created: %d\nactive sessions: %d\nactive streams: 0\npackets received: 0\npackets transmitted: 0" % (len(numbers), len(numbers))
            else:
                reply = b"0"
            sock.sendto(cookie + b" " + reply, sender)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
