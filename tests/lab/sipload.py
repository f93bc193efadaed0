"""Load with SIP: calls by way of the real SIP server, as plain user agents without media stacks make them; media as in load.py.

Two UDP sockets, one in each phone's namespace. Requests are repeated as RFC 3261 section 17 says (T1 0.5 s, doubling),
and a 200 to an INVITE until its ACK comes, so what a process's death costs is what it would cost real phones.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import secrets
import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from tests.lab.load import ControlClient, Load, LoadCall, Phones, datagrams
from tests.lab.processes import open_socket
from tests.lab.topology import CALLEE_IP, CALLER_IP, EDGE_IP, Topology

CALLER_PORT, CALLEE_PORT = 5070, 5060  # the callee is the trunk of the shipped configurations
T1, T2, PATIENCE_S = 0.5, 4.0, 10.0
_SERVER = (EDGE_IP, 5060)
_CONNECTION, _MEDIA = re.compile(r"^c=IN IP4 (\S+)", re.MULTILINE), re.compile(r"^m=audio (\d+)", re.MULTILINE)


@dataclass
class Message:
    """One SIP message: start line, headers in order under lower-case names, body."""

    start: str
    headers: list[tuple[str, str]]
    body: str

    @classmethod
    def parse(cls, data: bytes) -> "Message":
        head, _, body = data.decode("utf-8", "replace").partition("\r\n\r\n")
        start, *lines = head.split("\r\n")
        return cls(start, [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)], body)

    def all(self, name: str) -> list[str]:
        """Every value of a header that may hold lists, in order."""
        return [part.strip() for key, value in self.headers if key == name for part in value.split(",")]

    def get(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name), "")

    @property
    def status(self) -> int:
        return int(self.start.split(" ", 2)[1]) if self.start.startswith("SIP/2.0") else 0

    @property
    def method(self) -> str:
        return "" if self.status else self.start.split(" ", 1)[0]

    @property
    def media(self) -> tuple[str, int] | None:
        """Where the body's SDP wants audio."""
        address, port = _CONNECTION.search(self.body), _MEDIA.search(self.body)
        return (address[1], int(port[1])) if address and port else None


@dataclass
class _Dialog:
    """The caller's side of a call."""

    from_header: str
    to_header: str = ""
    target: str = ""
    routes: list[str] = field(default_factory=list)
    cseq: int = 1
    ack: bytes = b""


class _Phone(ABC):
    """One user agent's socket."""

    def __init__(self, topology: Topology, host: str, ip: str, port: int) -> None:
        self.ip, self.port = ip, port
        self._sock = open_socket(topology, host, socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.setblocking(False)
        self._sock.bind((ip, port))
        asyncio.get_running_loop().add_reader(self._sock, self._readable)

    def _readable(self) -> None:
        for data in datagrams(self._sock):
            if data.strip():
                self.received(Message.parse(data))

    @abstractmethod
    def received(self, message: Message) -> None: ...

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # no server: it will be sent again
            self._sock.sendto(data, _SERVER)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()


def _sdp(ip: str, port: int) -> str:
    return f"v=0\r\no=- 1 1 IN IP4 {ip}\r\ns=-\r\nc=IN IP4 {ip}\r\nt=0 0\r\nm=audio {port} RTP/AVP 8\r\na=rtpmap:8 PCMA/8000\r\n"


class _Callee(_Phone):
    """Answers every call at once, at the media port that the request's user part names."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, "callee", CALLEE_IP, CALLEE_PORT)
        self.offers: dict[str, tuple[str, int]] = {}
        self._answers: dict[str, bytes] = {}
        self._repeating: dict[str, asyncio.Task[None]] = {}

    def received(self, message: Message) -> None:
        call_id = message.get("call-id")
        if message.method == "INVITE":
            if message.media is not None:
                self.offers[call_id] = message.media
            if call_id not in self._answers:
                user = message.start.split(" ")[1].removeprefix("sip:").partition("@")[0]
                self._answers[call_id] = self._reply(message, ";tag=B", _sdp(self.ip, int(user)))
                self._repeating[call_id] = asyncio.create_task(self._repeat(call_id))
            else:
                self.send(self._answers[call_id])
        elif message.method == "ACK":
            self._hush(call_id)
        elif message.method:
            self.send(self._reply(message))
            if message.method == "BYE":
                self.forget(call_id)

    def forget(self, call_id: str) -> None:
        self._hush(call_id)
        self._answers.pop(call_id, None)
        self.offers.pop(call_id, None)

    def _hush(self, call_id: str) -> None:
        task = self._repeating.pop(call_id, None)
        if task is not None:
            task.cancel()

    async def _repeat(self, call_id: str) -> None:
        wait = T1
        while call_id in self._answers:
            self.send(self._answers[call_id])
            await asyncio.sleep(wait)
            wait = min(2 * wait, T2)

    def _reply(self, request: Message, tag: str = "", body: str = "") -> bytes:
        kept = [f"{name.title()}: {value}" for name, value in request.headers if name in ("via", "record-route", "from", "call-id", "cseq")]
        lines = ["SIP/2.0 200 OK", *kept, f"To: {request.get('to')}{tag}", f"Contact: <sip:{self.ip}:{self.port}>"]
        lines += ["Content-Type: application/sdp"] if body else []
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body]).encode()

    def close(self) -> None:
        for call_id in list(self._repeating):
            self._hush(call_id)
        super().close()


class _Caller(_Phone):
    """Places calls and hangs up."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, "caller", CALLER_IP, CALLER_PORT)
        self._dialogs: dict[str, _Dialog] = {}
        self._waiting: dict[tuple[str, str], asyncio.Queue[Message]] = {}
        self._branches = itertools.count()
        self.repeated = 0

    def received(self, message: Message) -> None:
        if not message.status:
            return  # nobody calls the caller
        call_id, cseq = message.get("call-id"), message.get("cseq")
        queue = self._waiting.get((call_id, cseq))
        if queue is not None:
            queue.put_nowait(message)
        elif message.status == 200 and cseq.endswith("INVITE") and call_id in self._dialogs:
            self.send(self._dialogs[call_id].ack)  # the callee has not seen it

    def _request(self, method: str, uri: str, call_id: str, dialog: _Dialog, body: str = "", branch: str = "") -> bytes:
        lines = [
            f"{method} {uri} SIP/2.0",
            f"Via: SIP/2.0/UDP {self.ip}:{self.port};branch={branch or self._branch()}",
            "Max-Forwards: 70",
            *(f"Route: {route}" for route in dialog.routes),
            f"From: {dialog.from_header}",
            f"To: {dialog.to_header}",
            f"Call-ID: {call_id}",
            f"CSeq: {dialog.cseq} {method}",
            f"Contact: <sip:{self.ip}:{self.port}>",
        ]
        lines += ["Content-Type: application/sdp"] if body else []
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body]).encode()

    def _branch(self) -> str:
        return f"z9hG4bK{secrets.token_hex(4)}{next(self._branches)}"

    async def _transact(self, data: bytes, call_id: str, cseq: str, patience: float = PATIENCE_S) -> Message | None:
        """Send a request until it has a final reply, which is returned; None: there was none in time."""
        queue = self._waiting[call_id, cseq] = asyncio.Queue()
        wait, answered = T1, False
        try:
            async with asyncio.timeout(patience):
                while True:
                    if not answered or not cseq.endswith("INVITE"):  # a provisional reply ends an INVITE's repetitions
                        self.send(data)
                    try:
                        async with asyncio.timeout(wait):
                            while True:
                                reply = await queue.get()
                                if reply.status >= 200:
                                    return reply
                                answered = True
                    except TimeoutError:
                        self.repeated += 1
                        wait = min(2 * wait, T2)
        except TimeoutError:
            return None
        finally:
            del self._waiting[call_id, cseq]

    async def invite(self, call_id: str, user: str, port: int) -> Message | None:
        """Set a call up. Its final reply; None without one."""
        dialog = _Dialog(f"<sip:caller@{EDGE_IP}>;tag=A", f"<sip:{user}@{EDGE_IP}>")
        branch, uri = self._branch(), f"sip:{user}@{EDGE_IP}"
        reply = await self._transact(self._request("INVITE", uri, call_id, dialog, _sdp(self.ip, port), branch), call_id, "1 INVITE")
        if reply is None:
            self.send(self._request("CANCEL", uri, call_id, dialog, branch=branch))
            return None
        dialog.to_header = reply.get("to")
        if reply.status >= 300:
            self.send(self._request("ACK", uri, call_id, dialog, branch=branch))
            return reply
        dialog.target = reply.get("contact").strip("<>")
        dialog.routes = list(reversed(reply.all("record-route")))
        dialog.ack = self._request("ACK", dialog.target, call_id, dialog)
        self._dialogs[call_id] = dialog
        self.send(dialog.ack)
        return reply

    async def bye(self, call_id: str) -> bool | None:
        """Hang up; whether it was answered, None where there was no call."""
        dialog = self._dialogs.pop(call_id, None)
        if dialog is None:
            return None
        dialog.cseq += 1
        return await self._transact(self._request("BYE", dialog.target, call_id, dialog), call_id, f"{dialog.cseq} BYE") is not None

    async def options(self) -> bool:
        """Whether the SIP server answers now."""
        call_id = secrets.token_hex(8)
        dialog = _Dialog(f"<sip:caller@{EDGE_IP}>;tag=A", f"<sip:{EDGE_IP}>")
        reply = await self._transact(self._request("OPTIONS", f"sip:{EDGE_IP}", call_id, dialog), call_id, "1 OPTIONS", T1 / 2)
        return reply is not None


class SipLoad(Load):
    """Places calls: INVITE, 200, ACK, media, BYE. A context manager."""

    def __init__(self, topology: Topology, client: ControlClient, caller: Phones, callee: Phones, *, tag: str = "load") -> None:
        super().__init__(client, caller, callee, tag=tag)
        self.sip_caller, self.sip_callee = _Caller(topology), _Callee(topology)

    def __enter__(self) -> "SipLoad":
        return self

    def __exit__(self, *exc: object) -> None:
        self.sip_caller.close()
        self.sip_callee.close()

    async def set_up(self, call: LoadCall, *, modifiers: str = "") -> bool:
        """Call and be answered. False, and noted in `failed`, when that did not work out, or the media would not go through the relay."""
        reply = await self.sip_caller.invite(call.call_id, str(call.callee_port), call.caller_port)
        offer = self.sip_callee.offers.get(call.call_id)
        if reply is None or reply.status != 200 or reply.media is None or offer is None:
            self.failed.append(f"{call.call_id}: {reply.start if reply is not None else 'no final reply to INVITE'}")
            return False
        call.caller_sends, call.callee_sends = reply.media, offer
        if {reply.media[0], offer[0]} != {EDGE_IP}:
            self.failed.append(f"{call.call_id}: media would go from {CALLER_IP} to {reply.media[0]} and from {CALLEE_IP} to {offer[0]}")
            return False
        return True

    async def hang_up(self, call: LoadCall) -> None:
        """BYE. One that nobody answers is noted in `failed`."""
        if await self.sip_caller.bye(call.call_id) is False:
            self.failed.append(f"{call.call_id}: no answer to BYE")
        self.sip_callee.forget(call.call_id)

    async def alive(self) -> bool:
        """Whether the SIP server answers."""
        return await self.sip_caller.options()
