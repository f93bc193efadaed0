"""Janus, a conference server from Debian, as a peer: started, asked over its HTTP interface, its connections set up without a browser.

Its debugging option turns encryption off, so that packets pass as plain RTP after a connectivity check (RFC 8445): what DTLS and
SRTP cost is in no figure, which is to its advantage.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aioice import stun

from tests.lab.processes import Process, open_socket
from tests.lab.topology import LabError, Topology

_PORT = 8088
_ROOM = 1
_PATIENCE_S = 10.0
_CHECK_S = 0.05
_UFRAG, _PWD = "them", "0123456789012345678901"
_CODECS = {"audio": "opus/48000/2", "video": "VP8/90000"}
_MOST = 4000  # bytes of a message on a media port
# Plugins that need sockets or files of their own.
_UNUSED = "audiobridge duktape echotest lua nosip recordplay sip streaming textroom videocall voicemail"


class Janus:
    """A server with one room at a time."""

    def __init__(self, topology: Topology, work: Path) -> None:
        self._topology, self._folder = topology, work / "janus"
        argv = ["janus", "-F", str(self._folder), "-C", str(self._folder / "janus.jcfg")]
        self.process = Process(topology, "edge", "janus", argv, work / "janus.log")
        self._http: http.client.HTTPConnection | None = None
        self._session = 0
        self._handles: list[int] = []
        self._transactions = itertools.count()
        self._events: list[dict[str, Any]] = []

    @staticmethod
    def missing() -> str:
        return "" if shutil.which("janus") else "it is not installed (Debian package janus)"

    @staticmethod
    def version() -> str:
        done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "janus"], capture_output=True, text=True)
        return f"Janus {done.stdout.strip()}"

    def start(self) -> None:
        """Start it, and open a session. Raises LabError."""
        self._folder.mkdir(parents=True)
        unused = ",".join(f"libjanus_{name}.so" for name in _UNUSED.split())
        (self._folder / "janus.jcfg").write_text(
            f'general: {{ debug_level = 3, session_timeout = 0, no_webrtc_encryption = true }}\nplugins: {{ disable = "{unused}" }}\n'
            'transports: { disable = "libjanus_mqtt.so,libjanus_nanomsg.so,libjanus_pfunix.so,libjanus_rabbitmq.so,libjanus_websockets.so" }\n'
            'media: { rtp_port_range = "20000-29999" }\nnat: { ice_enforce_list = "198.18.1.,198.18.2." }\n'
        )
        (self._folder / "janus.transport.http.jcfg").write_text(f'general: {{ json = "compact", base_path = "/janus", http = true, port = {_PORT}, ip = "127.0.0.1", https = false }}\n')
        (self._folder / "janus.plugin.videoroom.jcfg").write_text("general: { }\n")
        self.process.start().await_listening("tcp", _PORT)
        connection = open_socket(self._topology, "edge", socket.AF_INET, socket.SOCK_STREAM)
        connection.settimeout(_PATIENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.connect(("127.0.0.1", _PORT))
        self._http = http.client.HTTPConnection("127.0.0.1", _PORT)
        self._http.sock = connection
        self._session = self._post("", {"janus": "create"})["data"]["id"]

    def stop(self) -> None:
        if self._http is not None:
            self._http.close()
        self.process.stop()

    # -- rooms -----------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Open the room. Raises LabError."""
        self._keeper = self._attach()
        self._ask(self._keeper, {"request": "create", "room": _ROOM, "publishers": 1000, "audiocodec": "opus", "videocodec": "vp8", "notify_joining": False})

    def destroy(self) -> None:
        self._ask(self._keeper, {"request": "destroy", "room": _ROOM})
        for handle in [*self._handles, self._keeper]:
            self._post(f"/{self._session}/{handle}", {"janus": "detach"})
        self._handles.clear()

    def publish(self, feed: int, sock: socket.socket, streams: Sequence[tuple[str, int, int]]) -> tuple[str, int]:
        """Let somebody send (medium, SSRC, payload type) from this socket; where to. Raises LabError."""
        handle = self._attach()
        self._handles.append(handle)
        media = "".join(
            f"m={kind} 9 RTP/AVPF {number}\r\nc=IN IP4 {sock.getsockname()[0]}\r\na=mid:{mid}\r\na=sendonly\r\na=rtcp-mux\r\na=rtpmap:{number} {_CODECS[kind]}\r\n"
            f"a=ssrc:{ssrc} cname:{feed}\r\n{_transport(sock)}" for mid, (kind, ssrc, number) in enumerate(streams)
        )  # fmt: skip
        body = {"request": "joinandconfigure", "ptype": "publisher", "room": _ROOM, "id": feed}
        answer = self._ask(handle, body, {"type": "offer", "sdp": _head(range(len(streams))) + media})["jsep"]["sdp"]
        return self._connect(handle, sock, answer, controlling=True)

    def subscribe(self, sock: socket.socket, streams: Sequence[tuple[int, str]]) -> None:
        """Let somebody receive these (feed, mid) at this socket. Raises LabError."""
        handle = self._attach()
        self._handles.append(handle)
        body = {"request": "join", "ptype": "subscriber", "room": _ROOM, "streams": [{"feed": feed, "mid": mid} for feed, mid in streams]}
        offer = self._ask(handle, body)["jsep"]["sdp"]
        media = []
        for part in re.split(r"(?m)^(?=m=)", offer)[1:]:
            kept = [line for line in part.splitlines() if re.match(r"m=|a=mid|a=rtpmap|a=rtcp-mux", line)]
            media.append("\r\n".join([kept[0], f"c=IN IP4 {sock.getsockname()[0]}", *kept[1:], "a=recvonly"]) + "\r\n" + _transport(sock))
        mids = re.findall(r"(?m)^a=mid:(\S+)", offer)
        self._ask(handle, {"request": "start"}, {"type": "answer", "sdp": _head(mids) + "".join(media)})
        self._connect(handle, sock, offer, controlling=False)

    # -- its interface ----------------------------------------------------------------------------------------------

    def _attach(self) -> int:
        return self._post(f"/{self._session}", {"janus": "attach", "plugin": "janus.plugin.videoroom"})["data"]["id"]

    def _ask(self, handle: int, body: dict[str, Any], jsep: dict[str, str] | None = None) -> dict[str, Any]:
        """A request to the room; its answer, or the event that it comes as."""
        message: dict[str, Any] = {"janus": "message", "body": body} | ({"jsep": jsep} if jsep else {})
        answer = self._post(f"/{self._session}/{handle}", message)
        if answer["janus"] == "ack":
            answer = self._await("transaction", answer["transaction"])
        data = answer.get("plugindata", {}).get("data", {})
        if "error" in data or "error" in answer:
            raise LabError(f"Janus: {body}: {data.get('error') or answer['error']}")
        return answer

    def _await(self, key: str, value: Any, kind: str = "event") -> dict[str, Any]:
        """The event of which this holds. Raises LabError."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            for event in self._events:
                if event.get(key) == value and event["janus"] == kind:
                    self._events.clear()
                    return event
            self._events += self._request("GET", f"/janus/{self._session}?maxev=20")
        raise LabError(f"Janus said nothing of {key} {value} within {_PATIENCE_S:.0f} s:\n{self.process.tail()}")

    def _connect(self, handle: int, sock: socket.socket, sdp: str, *, controlling: bool) -> tuple[str, int]:
        """Have a connection by the address of theirs in the same network (RFC 8445 section 7); that address. Raises LabError."""
        ufrag, pwd = (re.search(rf"(?m)^a=ice-{word}:(\S+)", sdp) for word in ("ufrag", "pwd"))
        network = sock.getsockname()[0].rpartition(".")[0] + "."
        candidate = next((found for found in re.finditer(r"(?m)^a=candidate:\S+ 1 udp \d+ (\S+) (\d+) typ host", sdp, re.IGNORECASE) if found[1].startswith(network)), None)
        if ufrag is None or pwd is None or candidate is None:
            raise LabError(f"Janus names no address in {network}0/24:\n{sdp}")
        to = candidate[1], int(candidate[2])
        role = {"ICE-CONTROLLING": 1, "USE-CANDIDATE": None} if controlling else {"ICE-CONTROLLED": 1}
        request = stun.Message(stun.Method.BINDING, stun.Class.REQUEST, attributes={"USERNAME": f"{ufrag[1]}:{_UFRAG}", "PRIORITY": 2113929471, **role})
        request.add_message_integrity(pwd[1].encode())
        connected = threading.Event()
        checks = threading.Thread(target=_check, args=(sock, to, bytes(request), connected), daemon=True)
        checks.start()
        try:
            self._await("sender", handle, "webrtcup")
        finally:
            connected.set()
            checks.join()
        return to

    def _post(self, path: str, message: dict[str, Any]) -> dict[str, Any]:
        answer = self._request("POST", "/janus" + path, message | {"transaction": str(next(self._transactions))})
        if answer["janus"] == "error":
            raise LabError(f"Janus: {message}: {answer['error']}")
        return answer

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        assert self._http is not None
        try:
            self._http.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            return json.loads(self._http.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LabError(f"Janus does not answer {path}: {error!r}\n{self.process.tail()}") from error


def _head(mids: Any) -> str:
    return f"v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\na=group:BUNDLE {' '.join(map(str, mids))}\r\n"


def _transport(sock: socket.socket) -> str:
    ip, port = sock.getsockname()
    return f"a=ice-ufrag:{_UFRAG}\r\na=ice-pwd:{_PWD}\r\na=candidate:1 1 udp 2113929471 {ip} {port} typ host\r\na=end-of-candidates\r\n"


def _check(sock: socket.socket, to: tuple[str, int], request: bytes, connected: threading.Event) -> None:
    """Send checks, and answer theirs."""
    while not connected.is_set():
        sock.sendto(request, to)
        while select.select([sock], [], [], _CHECK_S)[0]:
            data, source = sock.recvfrom(_MOST)
            if data[:2] == b"\x00\x01":
                theirs = stun.parse_message(data)
                answer = stun.Message(stun.Method.BINDING, stun.Class.RESPONSE, theirs.transaction_id, {"XOR-MAPPED-ADDRESS": source})
                answer.add_message_integrity(_PWD.encode())
                sock.sendto(bytes(answer), source)
