"""A telephone for one call at a time: it sends the SIP and the media that a test tells it to, right or wrong."""

from __future__ import annotations

import itertools
import queue
import re
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

from tests.lab.processes import open_socket
from tests.lab.sipload import Message
from tests.lab.sipp import address
from tests.lab.topology import EDGE_IP, LabError, Topology

TRUNK_PORT = 5060
"""The callee is the trunk of the shipped configurations."""
NUMBER = "0123456789"
_ports = itertools.count(40_000, 2)
_MEDIA = re.compile(r"^m=audio (\d+)", re.MULTILINE)
_ADDRESS = re.compile(r"^c=IN IP4 (\S+)", re.MULTILINE)
_NAMES = {0: "PCMU/8000", 8: "PCMA/8000", 18: "G729/8000", 101: "telephone-event/8000"}


def body(ip: str, port: int, formats: tuple[int, ...] = (0,), more: str = "a=sendrecv") -> str:
    """An SDP body with one audio line."""
    lines = ["v=0", f"o=phone 1 1 IN IP4 {ip}", "s=call", f"c=IN IP4 {ip}", "t=0 0", f"m=audio {port} RTP/AVP {' '.join(map(str, formats))}"]
    return "\r\n".join([*lines, *(f"a=rtpmap:{number} {_NAMES[number]}" for number in formats), more, ""])


class Phone:
    """A SIP socket, a media socket, and a thread that sends a packet each 20 ms while `packet` makes one."""

    def __init__(self, topology: Topology, host: str, sip_port: int = 0) -> None:
        self.ip = address(host)
        self.sip, self.media = (open_socket(topology, host, socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        self.port = next(_ports)
        self.sip.bind((self.ip, sip_port))
        self.media.bind((self.ip, self.port))
        self.ssrc, self.sent = secrets.randbits(32), 0
        self.relay: tuple[str, int] | None = None
        self.packet: Callable[[], bytes | None] = self.rtp
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._run(self._talk)

    def _run(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()

    def rtp(self, payload_type: int = 0) -> bytes:
        """The next packet of its voice."""
        self.sent += 1
        return struct.pack("!BBHII", 0x80, payload_type, self.sent & 0xFFFF, self.sent * 160 & 0xFFFFFFFF, self.ssrc) + b"\xff" * 160

    def mute(self) -> None:
        """Send no media from now on."""
        self.packet = lambda: None

    def listen_to(self, text: str) -> None:
        """Send media to where an SDP wants it."""
        found, port = _ADDRESS.search(text), _MEDIA.search(text)
        if found and port:
            self.relay = found[1], int(port[1])

    def _talk(self) -> None:
        while not self._over.wait(0.02):
            if self.relay is not None and (packet := self.packet()) is not None:
                self.media.sendto(packet, self.relay)

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self.sip.close()
        self.media.close()


class Callee(Phone):
    """Answers as it is told: `answer` is a status and the SDP of a 200."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, "callee", TRUNK_PORT)
        self.answer: tuple[int, str] = 200, body(self.ip, self.port)
        self.requests: list[Message] = []
        """What was asked of it, but for what came again."""
        self._answers: queue.Queue[Message] = queue.Queue()
        self._run(self._serve)

    def _serve(self) -> None:
        while not self._over.is_set():
            if not select.select([self.sip], [], [], 0.05)[0]:
                continue
            data, source = self.sip.recvfrom(65535)
            request = Message.parse(data)
            if request.status:
                self._answers.put(request)
                continue
            if request.get("cseq") not in [earlier.get("cseq") for earlier in self.requests]:
                self.requests.append(request)
            if request.method in ("INVITE", "UPDATE"):
                status, text = self.answer
                if status == 200:
                    self.listen_to(request.body)
                self.sip.sendto(self._reply(request, status, text if status == 200 else ""), source)
            elif request.method != "ACK":
                if request.method != "INFO":
                    self.relay = None
                self.sip.sendto(self._reply(request, 200, ""), source)

    def request(self, method: str, number: int, text: str = "") -> Message:
        """A request within the call that the first INVITE began; the final answer. Raises LabError where there is none."""
        invite = self.requests[0]
        branch = secrets.token_hex(8)
        contact = invite.get("contact")
        lines = [f"{method} {contact[contact.index('<') + 1 : contact.index('>')]} SIP/2.0"]
        lines += [f"Via: SIP/2.0/UDP {self.ip}:{TRUNK_PORT};branch=z9hG4bK{branch};rport", *(f"Route: {route}" for route in invite.all("record-route"))]
        lines += [f"From: {invite.get('to')};tag=callee", f"To: {invite.get('from')}", f"Call-ID: {invite.get('call-id')}", f"CSeq: {number} {method}"]
        lines += [f"Contact: <sip:callee@{self.ip}:{TRUNK_PORT}>", "Max-Forwards: 70", *(["Content-Type: application/sdp"] if text else [])]
        data = "\r\n".join([*lines, f"Content-Length: {len(text)}", "", text]).encode()
        for _ in range(10):
            self.sip.sendto(data, (EDGE_IP, 5060))
            try:
                while True:
                    answer = self._answers.get(timeout=1)
                    if answer.status >= 200 and answer.get("cseq") == f"{number} {method}":
                        return answer
            except queue.Empty:
                pass
        raise LabError(f"no answer to {method} of {invite.get('call-id')}")

    def _reply(self, request: Message, status: int, text: str) -> bytes:
        copied = [(name, value) for name, value in request.headers if name in ("via", "from", "call-id", "cseq", "record-route")]
        to = request.get("to")
        lines = [f"SIP/2.0 {status} As told", *(f"{name}: {value}" for name, value in copied), f"to: {to}" + ("" if "tag=" in to else ";tag=callee")]
        lines += [f"contact: <sip:callee@{self.ip}:{TRUNK_PORT}>", *(["content-type: application/sdp"] if text else []), f"content-length: {len(text)}", "", text]
        return "\r\n".join(lines).encode()


class Caller(Phone):
    """Calls, and hangs up."""

    def __init__(self, topology: Topology, host: str = "caller") -> None:
        super().__init__(topology, host, 0)
        self.call_id = secrets.token_hex(8)
        self.content_type = "application/sdp"
        self._to, self._routes, self._contact = f"<sip:{NUMBER}@{EDGE_IP}>", list[str](), f"sip:{NUMBER}@{EDGE_IP}"

    def call(self, text: str | None = None, number: str = NUMBER) -> int:
        """Place the call with this SDP, and return the final status. Raises LabError where there is none."""
        self._to, self._contact = f"<sip:{number}@{EDGE_IP}>", f"sip:{number}@{EDGE_IP}"
        answer = self._transaction("INVITE", 1, text if text is not None else body(self.ip, self.port))
        if answer.status >= 300:
            self._send("ACK", 1, branch="1")
            return answer.status
        self._to = answer.get("to")
        self._routes = list(reversed(answer.all("record-route")))
        self._contact = answer.get("contact").strip("<>")
        self._send("ACK", 1)
        self.listen_to(answer.body)
        return answer.status

    def request(self, method: str, number: int, text: str = "", parameters: Callable[[str], str] = str) -> Message:
        """A request within the call; the final answer. parameters: what to make of each Route header. Raises LabError where there is no answer."""
        routes, self._routes = self._routes, [parameters(route) for route in self._routes]
        try:
            answer = self._transaction(method, number, text)
            if method == "INVITE":
                self._send("ACK", number, branch="" if answer.status < 300 else str(number))
        finally:
            self._routes = routes
        return answer

    def hang_up(self, number: int = 2) -> int:
        """The status of the answer. Raises LabError without an answer to the BYE."""
        self.relay = None
        return self._transaction("BYE", number).status

    def _transaction(self, method: str, number: int, text: str = "", seconds: float = 60.0) -> Message:
        deadline, again = time.monotonic() + seconds, 0.0
        while time.monotonic() < deadline:
            if time.monotonic() >= again:
                self._send(method, number, text, branch=str(number))
                again = time.monotonic() + 1
            if select.select([self.sip], [], [], 0.1)[0]:
                answer = Message.parse(self.sip.recv(65535))
                if answer.status >= 200 and answer.get("cseq") == f"{number} {method}":
                    return answer
                again = deadline if answer.status else again
        raise LabError(f"no answer to {method} of {self.call_id}")

    def _send(self, method: str, number: int, text: str = "", branch: str = "") -> None:
        own = "{}:{}".format(*self.sip.getsockname())
        lines = [f"{method} {self._contact} SIP/2.0", f"Via: SIP/2.0/UDP {own};branch=z9hG4bK{self.call_id}{branch or secrets.token_hex(4)};rport"]
        lines += [f"Route: {route}" for route in self._routes]
        lines += [f"From: <sip:caller@{self.ip}>;tag=caller", f"To: {self._to}", f"Call-ID: {self.call_id}", f"CSeq: {number} {method}"]
        lines += [f"Contact: <sip:caller@{own}>", "Max-Forwards: 70", *([f"Content-Type: {self.content_type}"] if text else []), f"Content-Length: {len(text)}", "", text]
        self.sip.sendto("\r\n".join(lines).encode(), (EDGE_IP, 5060))
