"""A WHIP sender and a WHEP viewer of aiortc, which shares nothing with browsers or the edge: it publishes numbered pictures and a tone, and reads what comes.

    python -m tests.rooms.whip publish|watch URL TOKEN [--codec VP8|H264] [--seconds 5]

Prints one line of JSON: the answers of the server, and what was sent or received.
"""

from __future__ import annotations

import argparse
import asyncio
import fractions
import json
import ssl
from typing import Any
from urllib.parse import urljoin

import aiohttp
import numpy as np
from aiortc import RTCConfiguration, RTCPeerConnection, RTCRtpSender, RTCSessionDescription, VideoStreamTrack
from aiortc.mediastreams import AudioStreamTrack, MediaStreamError, MediaStreamTrack
from av import AudioFrame, VideoFrame

WIDTH, HEIGHT, FIELDS = 320, 180, 16
_TONE_HZ, _RATE = 1000, 48_000


class Pictures(VideoStreamTrack):  # type: ignore[misc]
    """16 fields, black or white, that are the picture's number."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    async def recv(self) -> VideoFrame:
        pts, time_base = await self.next_timestamp()
        self.number += 1
        bits = [(self.number >> (FIELDS - 1 - field)) & 1 for field in range(FIELDS)]
        rows = np.repeat(np.array(bits, dtype=np.uint8).reshape(2, FIELDS // 2) * 200 + 27, HEIGHT // 2, axis=0)
        luma = np.repeat(rows, WIDTH // (FIELDS // 2), axis=1)
        frame = VideoFrame.from_ndarray(np.repeat(luma[:, :, None], 3, axis=2), format="rgb24")
        frame.pts, frame.time_base = pts, time_base
        return frame


def number_of(frame: VideoFrame) -> int | None:
    """Of a received picture; None: it is none of these, or broken."""
    luma = frame.to_ndarray(format="gray")
    high, wide = luma.shape[0] // 2, luma.shape[1] // (FIELDS // 2)
    number = 0
    for field in range(FIELDS):
        row, column = divmod(field, FIELDS // 2)
        part = luma[row * high + high // 3 : row * high + 2 * high // 3, column * wide + wide // 3 : column * wide + 2 * wide // 3]
        if not (part.max() < 90 or part.min() > 165):
            return None
        number = number << 1 | int(part.mean() > 128)
    return number


class Tone(AudioStreamTrack):  # type: ignore[misc]
    """A tone of 1 kHz, 20 ms at a time."""

    async def recv(self) -> AudioFrame:
        silent = await super().recv()  # paces
        samples = _RATE // 50
        at = getattr(self, "at", 0)
        self.at = at + samples
        wave = (8000 * np.sin(2 * np.pi * _TONE_HZ * (at + np.arange(samples)) / _RATE)).astype(np.int16)
        frame = AudioFrame.from_ndarray(wave[None, :], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = _RATE, at, fractions.Fraction(1, _RATE)
        del silent
        return frame


async def _read(track: MediaStreamTrack, found: dict[str, Any]) -> None:
    last = 0
    while True:
        try:
            frame = await track.recv()
        except MediaStreamError:
            return
        if track.kind == "audio":
            samples = frame.to_ndarray().astype(float)
            loud = float(np.sqrt((samples**2).mean()))
            found["audio_frames"] += 1
            found["loudest"] = max(found["loudest"], loud)
            continue
        number = number_of(frame)
        found["video_frames"] += 1
        found["size"] = [frame.width, frame.height]
        if number is None or number < last:
            found["broken"] += 1
        else:
            last = number


async def run(action: str, url: str, token: str, codec: str, seconds: float) -> dict[str, Any]:
    """Begin a session, send or read for so long, and end it."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {token}"}
    pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    found: dict[str, Any] = {"audio_frames": 0, "video_frames": 0, "broken": 0, "loudest": 0.0, "size": None}
    pictures, readers = Pictures(), []
    if action == "publish":
        pc.addTransceiver(Tone(), direction="sendonly")
        video = pc.addTransceiver(pictures, direction="sendonly")
    else:
        pc.addTransceiver("audio", direction="recvonly")
        video = pc.addTransceiver("video", direction="recvonly")
    video.setCodecPreferences([one for one in RTCRtpSender.getCapabilities("video").codecs if one.name in (codec, "rtx")])
    pc.on("track", lambda track: readers.append(asyncio.ensure_future(_read(track, found))))
    await pc.setLocalDescription(await pc.createOffer())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting), headers=headers) as http:
        async with http.post(url, data=pc.localDescription.sdp, headers={"Content-Type": "application/sdp"}) as response:
            answer = await response.text()
            found["post"], place, etag = response.status, response.headers.get("Location"), response.headers.get("ETag")
        if found["post"] != 201 or place is None:
            return found | {"answer": answer}
        place = urljoin(url, place)
        await pc.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        for _ in range(200):
            if pc.connectionState == "connected":
                break
            await asyncio.sleep(0.05)
        found["state"] = pc.connectionState
        fragment = "".join(f"{line}\r\n" for line in pc.localDescription.sdp.splitlines() if line.startswith(("a=ice-ufrag", "a=ice-pwd", "m=", "a=mid", "a=candidate")))
        async with http.patch(place, data=fragment, headers={"Content-Type": "application/trickle-ice-sdpfrag", "If-Match": etag or ""}) as response:
            found["patch"] = response.status
        await asyncio.sleep(seconds)
        found["sent"] = pictures.number
        for one in (await pc.getStats()).values():
            if one.type == "inbound-rtp":
                found[f"{one.kind}_packets"], found[f"{one.kind}_lost"] = one.packetsReceived, one.packetsLost
            if one.type == "outbound-rtp":
                found[f"{one.kind}_packets"] = one.packetsSent
        async with http.delete(place) as response:
            found["delete"] = response.status
    await pc.close()
    for reader in readers:
        reader.cancel()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["publish", "watch"])
    parser.add_argument("url")
    parser.add_argument("token")
    parser.add_argument("--codec", choices=["VP8", "H264"], default="VP8")
    parser.add_argument("--seconds", type=float, default=5)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(run(given.action, given.url, given.token, given.codec, given.seconds))))


if __name__ == "__main__":
    main()
