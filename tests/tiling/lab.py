"""Softswitch, agent and mixers as processes; sources play a clip when they are asked for a key frame, and viewers decode."""

from __future__ import annotations

import itertools
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import av

from tests.agent_conference.lab import ROOM, Lab
from tests.lab.processes import Process, open_socket
from tests.lab.topology import CALLEE_IP, CALLER_IP, Topology
from tests.mixer_daemon.process import BINARY, _Connection, await_that
from tests.tools.conference import rtcp
from tests.tools.conference.rtp import is_rtcp, parse_header
from tests.tools.tiling import clips, column, grid, rtp, scene
from tests.tools.tiling.clips import Clip, Picture

STREAM = 77
RATE, PICTURES = 25, 10
MIXER_PORT = 45_000
H264, H265 = 97, 98
SIZE = "its pictures are not of the tile's size"
_ports = itertools.count(47_000, 2)
_ssrcs = itertools.count(0x7100)


class Receiver:
    """Notes the packets that come to a socket, apart by SSRC, and RTCP."""

    def __init__(self, made: socket.socket) -> None:
        self.socket = made
        self.packets: dict[int, list[tuple[float, bytes]]] = {}
        self.rtcp: list[bytes] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        while not self._over.is_set():
            if not select.select([self.socket], [], [], 0.05)[0]:
                continue
            data = self.socket.recv(2048)
            if is_rtcp(data):
                self.rtcp.append(data)
            elif data and data[0] >> 6 == 2:
                self.packets.setdefault(int.from_bytes(data[8:12], "big"), []).append((time.monotonic(), data))

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.socket.close()

    def pictures(self) -> list[Picture]:
        """What the tiled stream shows so far, up to the last picture that has come whole."""
        packets = list(self.packets.get(STREAM, []))
        while packets and not parse_header(packets[-1][1]).marker:
            packets.pop()
        return scene.received(packets)[1] if packets else []

    def asked(self, ssrc: int) -> bool:
        """Whether a PLI for a source has come."""
        return any(ssrc.to_bytes(4, "big") in packet for packet in list(self.rtcp))


def tiles(*ssrcs: int) -> list[dict[str, Any]]:
    return [{"place": place, "participant": f"p{place}", "source": ssrc} for place, ssrc in enumerate(ssrcs)]


def _payloads(payload_type: int, coded: bytes) -> list[bytes]:
    """A picture's payloads, by the codec."""
    return {H264: rtp.h264_payloads, H265: rtp.h265_payloads}.get(payload_type, rtp.h261_chunks)(coded)


def _whole(codec: str, coded: list[bytes]) -> list[Picture]:
    """What a decoder of H.264 or H.265 shows from the first IDR picture on."""
    is_idr = {"H264": lambda unit: unit[0] & 31 == 5, "H265": lambda unit: rtp.h265_kind(unit) == 20}[codec]
    first = next((at for at, picture in enumerate(coded) if any(map(is_idr, rtp.h264_units(picture)))), len(coded))
    return clips.decode({"H264": "h264", "H265": "hevc"}[codec], coded[first:])


class MixingLab(Lab):
    """With mixers: one on each host, named as that is, unless there are to be more."""

    def __init__(self, topology: Topology, work: Path, names: Iterable[str] = ("caller", "callee")) -> None:
        super().__init__(topology, work)
        self.people: list[Person] = []
        self.controls = {name: Path("/run") / f"{topology.prefix}-{name}-mixer.sock" for name in names}
        self.settings["conference"]["mixer"] = [f"unix:{path}" for path in self.controls.values()]
        self.mixers: dict[str, Process] = {}
        for number, (name, control) in enumerate(self.controls.items()):
            host, ip = ("caller", CALLER_IP) if name.startswith("caller") else ("callee", CALLEE_IP)
            section = {"listen": f"unix:{control}", "allow": [], "socket_group": "root", "address": ip, "port": MIXER_PORT + 10 * number, "receivers": 10, "load": 0.9, "decoder": "ffmpeg"}
            (work / f"mixer-{name}.json").write_text(json.dumps({"valid": True, "errors": [], "config": {"mixer": section, "log": {"level": "info", "format": "text"}}}))
            self.mixers[name] = Process(topology, host, f"mixer-{name}", [BINARY, "-c", str(work / f"mixer-{name}.json")], work / f"mixer-{name}.log")

    def start(self) -> None:
        for name in self.mixers:
            self.start_mixer(name)
        # One of them has something to do already.
        busy = _Connection(str(self.controls["callee"]))
        tiling = {"from": "198.51.100.1:9", "to": "198.51.100.1:9", "codec": "H261", "payload_type": 31, "streams": [{"ssrc": 1, "tiles": tiles(2)}]}
        busy.request("PUT", "/v1/tilings/other", json.dumps(tiling))
        assert busy.getresponse().status == 200
        busy.close()
        super().start()

    def start_mixer(self, name: str) -> None:
        self.mixers[name].start().await_unix(self.controls[name])

    def stop(self) -> None:
        for person in self.people:
            person.close()
        for mixer in self.mixers.values():
            mixer.stop()
        super().stop()

    def person(self, name: str, clip: Clip | None = None, codec: tuple[int, str] | None = None) -> Person:
        """Somebody who has joined with video: a source of a clip, or a viewer."""
        made = Person(self, name, clip, codec)
        self.people.append(made)
        return made

    def placed(self) -> str:
        """The name of the mixer that tiles the conference."""
        return self.name_of((self.room()["tiling"] or {}).get("mixer"))

    def name_of(self, control: str | None) -> str:
        return next((name for name, path in self.controls.items() if control == f"unix:{path}"), "")

    def layout(self) -> dict[str, tuple[int, int]]:
        """Which tile is whose: stream and place."""
        streams = self.room()["tiling"]["streams"]
        return {tile["participant"]: (at, tile["place"]) for at, stream in enumerate(streams) for tile in stream["tiles"]}

    def untiled(self) -> dict[str, str]:
        return {one["participant"]: one["reason"] for one in self.room()["tiling"]["untiled"]}

    def ssrcs(self) -> list[int]:
        return [stream["ssrc"] for stream in self.room()["tiling"]["streams"]]


L = TypeVar("L", bound=MixingLab)


class Person(Receiver):
    """A participant with one socket, also for RTCP. A source plays its clip until it is asked for a key frame, and then when it is; between, it sends nothing."""

    def __init__(self, lab: MixingLab, name: str, clip: Clip | None, codec: tuple[int, str] | None) -> None:
        made = open_socket(lab.topology, "caller", socket.AF_INET, socket.SOCK_DGRAM)
        made.bind(("0.0.0.0", next(_ports)))
        self.name, self.clip, self.ssrc = name, clip, next(_ssrcs)
        self._decoders: dict[int, tuple[Any, int]] = {}
        self._shown: dict[int, Picture] = {}
        kind = {"codecs": [{"payload_type": codec[0], "encoding": codec[1], "clock_rate": 90_000}]} if codec else {}
        medium = {"medium": "video", "direction": "sendrecv" if clip else "recvonly", **kind}
        answer = lab.ask(lambda client: client.join(ROOM, name, [medium], signalled=[CALLER_IP]))  # type: ignore[list-item]
        host, port = answer["media"][0]["address"].rsplit(":", 1)
        self.relay = host, int(port)
        super().__init__(made)
        self._payload_type = codec[0] if codec else scene.H261
        self._player = threading.Thread(target=self._play, daemon=True)
        self._player.start()

    def _play(self) -> None:
        sender = rtp.Sender(self.ssrc, self._payload_type)
        began = time.monotonic()
        while not self._over.is_set():
            for coded in self.clip.coded if self.clip else ():
                for packet in sender.packets(_payloads(self._payload_type, coded), time.monotonic() - began):
                    self.socket.sendto(packet, self.relay)
                self._over.wait(1 / RATE)
            taken, ended = len(self.rtcp), time.monotonic()
            was_asked = any(map(self._is_wanted, self.rtcp))
            while not self._over.wait(0.05) and not any(self._is_wanted(packet) for packet in self.rtcp[taken:]):
                if not was_asked and time.monotonic() - ended > 0.5:
                    break  # nobody knows it yet; other RTCP may come before that
                # Its RTCP has the port of its RTP, and is what a viewer is found by.
                self.socket.sendto(rtcp.build_rr(self.ssrc), self.relay)

    def _is_wanted(self, compound: bytes) -> bool:
        """Whether RTCP asks for a key frame (RFC 4585 section 6.3.1)."""
        while len(compound) >= 12:
            if compound[1] == 206 and int.from_bytes(compound[8:12], "big") == self.ssrc:
                return True
            compound = compound[4 + 4 * int.from_bytes(compound[2:4], "big") :]
        return False

    def _items(self, kind: rtcp.Kind) -> list[tuple[bytes, rtcp.Item]]:
        return [(packet, item) for packet in list(self.rtcp) for item in rtcp.walk(packet) if item.kind is kind]

    def reported(self) -> set[int]:
        """The streams of which sender reports have come."""
        return {rtcp.sender_info(packet, item).ssrc for packet, item in self._items(rtcp.Kind.SR)}

    def judged(self) -> set[int]:
        """The streams of which reception reports have come."""
        return {block.ssrc for packet, item in self._items(rtcp.Kind.RR) for block in rtcp.reports(packet, item)}

    def names(self) -> dict[int, str]:
        return {ssrc: name for packet, item in self._items(rtcp.Kind.SDES) for ssrc, name in rtcp.cnames(packet, item).items()}

    def ended(self) -> set[int]:
        byes = [packet[item.where] for packet, item in self._items(rtcp.Kind.BYE)]
        return {int.from_bytes(bye[at : at + 4], "big") for bye in byes for at in range(4, 4 + 4 * (bye[0] & 31), 4)}

    def close(self) -> None:
        self._over.set()
        self._player.join()
        super().close()

    def shows(self, ssrc: int) -> Picture | None:
        """What the latest picture of a tiled stream shows."""
        packets = rtp.in_order(list(self.packets.get(ssrc, [])), time.monotonic())
        while packets and not parse_header(packets[-1][1]).marker:
            packets.pop()
        if ssrc not in self._decoders:
            # Of a picture whose beginning has not come nothing can be shown.
            first = next((at for at, (_, packet) in enumerate(packets) if rtp.begins_h261_picture(packet)), None)
            if first is None:
                return None
            self._decoders[ssrc] = av.CodecContext.create("h261", "r"), first
        context, at = self._decoders[ssrc]
        if len(packets) > at:
            for _, payloads, _ in rtp.pictures(packets[at:]):
                for frame in context.decode(av.Packet(rtp.h261_picture(payloads))):
                    self._shown[ssrc] = clips.planes(frame)
        self._decoders[ssrc] = context, max(at, len(packets))
        return self._shown.get(ssrc)

    def sliced(self, codec: str, ssrc: int) -> list[Picture]:
        """What a stream of H.264 or H.265 shows from its first IDR picture on."""
        packets = rtp.in_order(list(self.packets.get(ssrc, [])), time.monotonic())
        while packets and not parse_header(packets[-1][1]).marker:
            packets.pop()
        # The first one need not be whole.
        first = next((at + 1 for at, (_, packet) in enumerate(packets) if parse_header(packet).marker), 0)
        joined = rtp.h264_picture if codec == "H264" else rtp.h265_picture
        shown = _whole(codec, [joined(payloads) for _, payloads, _ in rtp.pictures(packets[first:])])
        if not shown:
            # As any receiver that cannot decode yet.
            self.socket.sendto(rtcp.build_pli(self.ssrc, ssrc), self.relay)
        return shown

    def column(self, ssrc: int) -> list[Picture]:
        return self.sliced("H264", ssrc)

    def sees_slices(self, codec: str, ssrc: int, place: int, clip: Clip) -> bool:
        """Whether a tile of a column of H.264, or of a grid of H.265 with two columns, shows what the clip ends with."""
        shown, tile = self.sliced(codec, ssrc), column.tile if codec == "H264" else grid.tile
        return bool(shown) and clips.same(tile(shown[-1:], place)[0], clip.pictures[-1])

    def sees(self, ssrc: int, place: int, clip: Clip) -> bool:
        """Whether a tile shows what the clip ends with."""
        shown = self.shows(ssrc)
        return shown is not None and clips.same(scene.tile([shown], place)[0], clip.pictures[-1])

    def black(self, ssrc: int, place: int) -> bool:
        shown = self.shows(ssrc)
        return shown is not None and bool((scene.tile([shown], place)[0][0] == 16).all())

    def gets(self, *others: int) -> bool:
        """Whether packets of all of these streams come from now on."""
        before = {ssrc: len(self.packets.get(ssrc, [])) for ssrc in others}
        return await_that(lambda: all(len(self.packets.get(ssrc, [])) > before[ssrc] for ssrc in others))


@contextmanager
def running(kind: type[L], name: str, work: Path) -> Iterator[L]:
    """A laboratory in namespaces of its own, with a conference."""
    with Topology(name) as topology:
        made = kind(topology, work)
        try:
            made.start()
            made.create()
            yield made
        finally:
            made.stop()


def holds(look: Callable[[], bool], lab: MixingLab, seconds: float = 120.0) -> None:
    assert await_that(look, seconds), f"{lab.room()['tiling']}\n{lab.agent.tail()}"
