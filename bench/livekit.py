"""LiveKit's server as a peer of the edge: one browser publishes by WHIP, others subscribe over its signalling protocol, all of them encrypted.

Its signalling is WebSocket messages in protobuf, of which three matter here: an offer of the server, the answer to it, and ICE candidates.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiohttp

_NAMES = ("livekit-server", "livekit")
_PORT, _KEY, _SECRET = 17880, "bench", "a secret of this bench, and of nothing else"
_ROOM = "bench"
_PATIENCE_S = 30.0
_CANDIDATES_S = 0.3  # candidates follow an offer within
# Fields of SignalResponse and SignalRequest, of SessionDescription and of TrickleRequest.
_OFFER, _TRICKLE, _ANSWER = 3, 4, 2
_TYPE, _SDP = 1, 2
_CANDIDATE, _TARGET, _SUBSCRIBER = 1, 2, 1
Answering = Callable[[str], str]


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protobuf message: varints and strings of bytes; others are passed over."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
        elif kind == 2:
            size = varint()
            yield number, message[at : at + size]
            at += size
        else:
            at += 8 if kind == 1 else 4


def field(number: int, value: bytes) -> bytes:
    """A field that is a string of bytes."""
    size, length = len(value), bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + value


def token(identity: str) -> str:
    """A JSON Web Token that lets a participant into the room (RFC 7519, HS256)."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    now = int(time.time())
    grants = {"room": _ROOM, "roomJoin": True, "canPublish": True, "canSubscribe": True}
    claims = {"iss": _KEY, "sub": identity, "nbf": now - 60, "exp": now + 3600, "video": grants}
    body = f"{part(json.dumps({'alg': 'HS256', 'typ': 'JWT'}).encode())}.{part(json.dumps(claims).encode())}"
    return f"{body}.{part(hmac.new(_SECRET.encode(), body.encode(), hashlib.sha256).digest())}"


class LiveKit:
    """A server with one room."""

    def __init__(self, address: str) -> None:
        """address: where it is to receive media."""
        self._folder = Path(tempfile.mkdtemp(prefix="livekit-"))
        config = self._folder / "livekit.yaml"
        # What is measured is forwarding: congestion control would stop videos that a busy machine delays.
        config.write_text(
            f"port: {_PORT}\nbind_addresses: ['127.0.0.1']\nlogging: {{level: warn}}\nkeys: {{{_KEY}: '{_SECRET}'}}\n"
            f"rtc: {{tcp_port: 0, port_range_start: 50000, port_range_end: 59999, node_ip: {address}, use_external_ip: false, enable_loopback_candidate: true, congestion_control: {{enabled: false}}}}\n"
        )
        self._log = (self._folder / "log").open("w")
        self.process = subprocess.Popen([self._binary(), "--config", str(config)], stdout=self._log, stderr=subprocess.STDOUT)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._viewers: list[asyncio.Task[None]] = []
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                if self._request("GET", "/", b"").status == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"LiveKit does not start: {self.tail()}")
            time.sleep(0.2)

    @staticmethod
    def _binary() -> str:
        return next((found for name in _NAMES if (found := shutil.which(name))), "")

    @classmethod
    def missing(cls) -> str:
        return "" if cls._binary() else "livekit-server is not on PATH (not in Debian)"

    @classmethod
    def version(cls) -> str:
        return subprocess.run([cls._binary(), "--version"], capture_output=True, text=True).stdout.strip()

    def tail(self) -> str:
        return (self._folder / "log").read_text()[-2000:]

    def _request(self, method: str, path: str, body: bytes, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", _PORT, timeout=_PATIENCE_S)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        return connection.getresponse()

    def publish(self, offer: str) -> str:
        """The answer to the offer of a browser that sends (WHIP, RFC 9725). Raises RuntimeError."""
        response = self._request("POST", "/whip/v1", offer.encode(), Content_Type="application/sdp", Authorization=f"Bearer {token('publisher')}")
        answer = response.read().decode()
        if response.status != 201:
            raise RuntimeError(f"LiveKit: {response.status} {answer}")
        return answer

    def view(self, name: str, answering: Answering) -> None:
        """A participant that subscribes to everything; answering: what its browser answers to an offer. Raises RuntimeError, TimeoutError."""
        described: asyncio.Future[None] = self._do(self._future())
        self._viewers.append(self._do(self._start(self._stay(name, answering, described))))
        self._do(asyncio.wait_for(described, _PATIENCE_S))

    @staticmethod
    async def _future() -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    @staticmethod
    async def _start(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(coroutine)

    def _do(self, coroutine: Coroutine[Any, Any, Any] | Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_PATIENCE_S + 5)

    @staticmethod
    async def _stay(name: str, answering: Answering, described: asyncio.Future[None]) -> None:
        """Stay in the room; `described` is done with the first answer to a video."""
        candidates: list[str] = []
        url = f"ws://127.0.0.1:{_PORT}/rtc?access_token={token(name)}&auto_subscribe=1&protocol=15&sdk=python"
        try:
            async with aiohttp.ClientSession() as http_session, http_session.ws_connect(url) as socket:
                async for message in socket:
                    if message.type is not aiohttp.WSMsgType.BINARY:
                        continue
                    for number, value in fields(message.data):
                        if number == _TRICKLE and isinstance(value, bytes):
                            candidates += trickled(value)
                        elif number == _OFFER and isinstance(value, bytes):
                            sdp = str(dict(fields(value))[_SDP], "utf-8")  # type: ignore[arg-type]  # a string, by its definition
                            if not candidates:
                                candidates += await _candidates(socket)
                            answer = await asyncio.to_thread(answering, with_candidates(sdp, candidates))
                            await socket.send_bytes(field(_ANSWER, field(_TYPE, b"answer") + field(_SDP, answer.encode())))
                            if "m=video" in sdp and not described.done():
                                described.set_result(None)
        except Exception as error:
            if not described.done():
                described.set_exception(RuntimeError(f"LiveKit, {name}: {error!r}"))
        if not described.done():
            described.set_exception(RuntimeError(f"LiveKit, {name}: the server has closed the connection"))

    def stop(self) -> None:
        for viewer in self._viewers:
            self._loop.call_soon_threadsafe(viewer.cancel)
        self.process.kill()  # asked to end it waits for its participants
        self.process.wait()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


async def _candidates(socket: aiohttp.ClientWebSocketResponse) -> list[str]:
    """Candidates that follow an offer."""
    found = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CANDIDATES_S):
            while True:
                message = await socket.receive()
                for number, value in fields(message.data):
                    if number == _TRICKLE and isinstance(value, bytes):
                        found += trickled(value)
    return found


def trickled(message: bytes) -> list[str]:
    """The candidate of a TrickleRequest, if it is the subscriber's."""
    found = dict(fields(message))
    candidate = found.get(_CANDIDATE, b"{}")
    return [json.loads(candidate)["candidate"]] if found.get(_TARGET, 0) == _SUBSCRIBER and isinstance(candidate, bytes) else []


def with_candidates(sdp: str, candidates: list[str]) -> str:
    """The description with the candidates in its first medium (RFC 8839)."""
    lines = sdp.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("m="))
    end = next((at for at, line in enumerate(lines) if at > first and line.startswith("m=")), len(lines))
    added = [f"a={candidate}" for candidate in candidates if candidate]
    return "\r\n".join([*lines[:end], *added, *lines[end:]]) + "\r\n"
