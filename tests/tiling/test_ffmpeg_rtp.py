"""Sources and receivers are ffmpeg's own RTP: over sockets, with its SDP."""

from __future__ import annotations

import select
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np

from tests.tools.conference.rtp import parse_header
from tests.tools.tiling import clips, program, rtp, scene
from tests.tools.tiling.program import Events

RATE, SECONDS = 8, 3


def ffmpeg(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["ffmpeg", "-hide_banner", "-loglevel", "error", "-y", *arguments], stdin=subprocess.DEVNULL)


def test_h261_from_ffmpeg_and_to_ffmpeg(tiling: Path, tmp_path: Path) -> None:
    sockets, senders = [], []
    for number in range(2):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind(("127.0.0.1", 0))
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sockets.append(receiver)
        source = f"testsrc=size=176x144:rate={RATE}:duration={SECONDS},hue=h={90 * number}"
        coded = ["-c:v", "h261", "-b:v", "120k", "-g", "12", "-flags", "+bitexact"]
        address = f"rtp://127.0.0.1:{receiver.getsockname()[1]}?pkt_size=1200"
        senders.append(ffmpeg("-re", "-f", "lavfi", "-i", source, *coded, "-strict", "experimental", "-f", "rtp", address, *coded, "-f", "h261", str(tmp_path / f"{number}.h261")))
    events, began = Events(), dict[int, int]()
    while True:
        # What has come before a sender ended is read to the end.
        ended = all(sender.poll() is not None for sender in senders)
        readable = select.select(sockets, [], [], 0.1)[0]
        if ended and not readable:
            break
        for receiver in readable:
            packet, number = receiver.recv(2048), sockets.index(receiver)
            header = parse_header(packet)
            if number not in began:
                began[number] = header.timestamp
                events.join(0, number, header.ssrc)
            events.packet(0.1 + (header.timestamp - began[number]) / rtp.CLOCK % (2**32 / rtp.CLOCK), number, packet)
    assert [sender.returncode for sender in senders] == [0, 0]
    output = program.run(tiling, "h261", events)
    sources = [scene.Clip([], [], clips.decode_file(tmp_path / f"{number}.h261")) for number in range(2)]
    assert [len(source.pictures) for source in sources] == [RATE * SECONDS] * 2
    _, pictures = scene.received(output.packets[0])
    assert [scene.mismatching(scene.tile(pictures, place), source) for place, source in enumerate(sources)] == [0, 0]

    # What ffmpeg makes of the mixer's packets is what PyAV made of them above.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    description = f"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=video {port} RTP/AVP 31\r\na=rtpmap:31 H261/90000\r\n"
    (tmp_path / "tiled.sdp").write_text(description)
    raw = tmp_path / "tiled.yuv"
    inputs = ["-protocol_whitelist", "file,udp,rtp", "-flags", "+bitexact", "-i", str(tmp_path / "tiled.sdp")]
    receiver_process = ffmpeg(*inputs, "-fps_mode", "passthrough", "-f", "rawvideo", "-flush_packets", "1", str(raw))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        deadline = time.monotonic() + 120
        while f":{port:04X} " not in Path("/proc/net/udp").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        for _, packet in output.packets[0]:
            sender.sendto(packet, ("127.0.0.1", port))
            time.sleep(0.004)
    # It ends with what it has once nothing more comes.
    size = 0
    while (now := raw.stat().st_size if raw.exists() else 0) == 0 or now != size:
        assert time.monotonic() < deadline + 120, "ffmpeg shows nothing"
        size = now
        time.sleep(1)
    receiver_process.send_signal(signal.SIGINT)
    receiver_process.wait(120)
    shown = np.fromfile(raw, np.uint8).reshape(-1, 352 * 288 * 3 // 2)
    wanted = [np.concatenate([plane.reshape(-1) for plane in picture]) for picture in pictures]
    found = [next((at for at, picture in enumerate(wanted) if np.array_equal(picture, one)), None) for one in shown]
    assert None not in found, "ffmpeg shows what was not sent"
    assert len(found) > len(pictures) // 2, "the receiver has lost most pictures"
