"""RTCP of shunt-mixer: reports on what it makes and on what it gets, lip sync, packets again, and the end of streams."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.mixer_daemon.process import Mixer, await_that
from tests.tools.conference import rtcp
from tests.tools.conference.rtcp import Kind, SenderInfo
from tests.tools.tone import FRAME_S, FRAMES, PCMA, encode, rtp

AUDIO, VIDEO, MIX, TILES = 0x11, 0x22, 0x33, 0x44
LATE_S = 2.0
"""By so much video comes later than audio."""
DROPPED = (10, 20, 21, 40)
EPOCH = 1 << 40
"""Of the sender's clock (s), which is none of the mixer's."""


class Ends:
    """In place of a data plane: a port for RTP, and one for RTCP above it."""

    def __init__(self) -> None:
        while True:
            self.media = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.media.bind(("127.0.0.1", 0))
            try:
                self.control.bind(("127.0.0.1", self.media.getsockname()[1] + 1))
                break
            except OSError:
                self.media.close()
                self.control.close()
        self.address = "127.0.0.1:{}".format(self.media.getsockname()[1])
        self.rtp: list[bytes] = []
        self.rtcp: list[tuple[float, bytes]] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(one,), daemon=True) for one in (self.media, self.control)]
        for one, thread in zip((self.media, self.control), self._threads, strict=True):
            one.settimeout(0.05)
            thread.start()

    def _read(self, one: socket.socket) -> None:
        while not self._over.is_set():
            try:
                data = one.recv(2048)
            except TimeoutError:
                continue
            if one is self.media:
                self.rtp.append(data)
            else:
                self.rtcp.append((time.time(), data))

    def close(self) -> None:
        self._over.set()
        for one, thread in zip((self.media, self.control), self._threads, strict=True):
            thread.join()
            one.close()

    def items(self, kind: Kind) -> list[tuple[float, bytes, rtcp.Item]]:
        return [(when, packet, item) for when, packet in list(self.rtcp) for item in rtcp.walk(packet) if item.kind is kind]

    def infos(self, ssrc: int) -> list[tuple[float, SenderInfo]]:
        """Sender reports of a stream, and when they came."""
        found = [(when, rtcp.sender_info(packet, item)) for when, packet, item in self.items(Kind.SR)]
        return [(when, info) for when, info in found if info.ssrc == ssrc]

    def blocks(self, ssrc: int) -> list[rtcp.Report]:
        found = [block for _, packet, item in self.items(Kind.RR) for block in rtcp.reports(packet, item)]
        return [block for block in found if block.ssrc == ssrc]

    def names(self) -> dict[int, str]:
        return {ssrc: name for _, packet, item in self.items(Kind.SDES) for ssrc, name in rtcp.cnames(packet, item).items()}

    def ended(self) -> set[int]:
        return {int.from_bytes(packet[item.where][4:8], "big") for _, packet, item in self.items(Kind.BYE)}


class Sender:
    """Sends a second of sound over and over, and pictures in packets that show nothing, with sender reports in one clock."""

    def __init__(self, ends: tuple[Ends, Ends], to: tuple[int, int]) -> None:
        self._ends, self._to, self._over = ends, to, threading.Event()
        self._began = time.monotonic()
        self.lsr = {AUDIO: 0, VIDEO: 0}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _report(self, ssrc: int, clock: int, late: float) -> None:
        """What is sampled now has this timestamp."""
        now = time.monotonic() - self._began
        ntp = int((EPOCH + now) * 2**32) & (2**64 - 1)
        compound = rtcp.build_sr(SenderInfo(ssrc, ntp, int((now - late) * clock) & 0xFFFFFFFF, 1, 1)) + rtcp.build_cname(ssrc, "ann@home")
        ends, to = (self._ends[0], self._to[0]) if ssrc == AUDIO else (self._ends[1], self._to[1])
        ends.control.sendto(compound, ("127.0.0.1", to + 1))
        self.lsr[ssrc] = ntp >> 16 & 0xFFFFFFFF

    def _run(self) -> None:
        number, payloads = 0, encode(PCMA, 440)
        while not self._over.is_set():
            if number not in DROPPED:
                self._ends[0].media.sendto(rtp(8, number, number * 160, AUDIO, payloads[number % FRAMES]), ("127.0.0.1", self._to[0]))
            if number % 5 == 0:
                # A picture start code of QCIF and nothing else: a picture without groups of blocks.
                shown = bytes(4) + (0x00010 << 12 | (number // 5 & 31) << 7 | 6).to_bytes(4, "big")
                self._ends[1].media.sendto(rtp(0x80 | 31, number // 5, number * 1800, VIDEO, shown), ("127.0.0.1", self._to[1]))
            if number % 25 == 0:
                # The network takes no time for audio. Of what is shown now audio with the same time went out long ago.
                self._report(AUDIO, 8000, 0.0)
                self._report(VIDEO, 90_000, -LATE_S)
            number += 1
            self._over.wait(max(0.0, self._began + number * FRAME_S - time.monotonic()))

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def described(ends: Ends, to: Ends) -> dict[str, Any]:
    codecs = [{"payload_type": 8, "encoding": "PCMA", "clock_rate": 8000}]
    mix = {"to": to.address, "ssrc": MIX, "payload_type": 8, "encoding": "PCMA", "clock_rate": 8000}
    return {"audio": {"from": ends.address, "participants": [{"participant": "ann", "ssrcs": [AUDIO], "codecs": codecs}, {"participant": "bob", "codecs": codecs, "mix": mix}]}}


def tiled(ends: Ends, to: Ends, ssrc: int = TILES) -> dict[str, Any]:
    tiles = [{"place": 0, "participant": "ann", "source": VIDEO}]
    return {"from": ends.address, "to": to.address, "codec": "H261", "payload_type": 31, "streams": [{"ssrc": ssrc, "tiles": tiles}]}


def port(address: str) -> int:
    return int(address.rsplit(":", 1)[1])


@pytest.fixture
def ends() -> Iterator[list[Ends]]:
    made = [Ends() for _ in range(4)]
    yield made
    for one in made:
        one.close()


def seconds(ntp: int) -> float:
    return ntp / 2**32


def test_reports_of_mixes_and_tiles_are_in_one_clock_and_tell_what_came(ends: list[Ends]) -> None:
    sound, picture, phone, screen = ends
    with Mixer() as mixer:
        status, heard = mixer.ask("PUT", "/v1/conferences/hall", described(sound, phone))
        assert status == 200, heard
        status, shown = mixer.ask("PUT", "/v1/tilings/hall", tiled(picture, screen))
        assert status == 200, shown
        sender = Sender((sound, picture), (port(heard["audio"]), port(shown["video"])))
        try:
            assert await_that(lambda: len(sound.infos(MIX)) >= 3 and len(picture.infos(TILES)) >= 3)
            # One canonical name for both streams, and those of who is in them.
            own = sound.names()[MIX]
            assert own == "hall@127.0.0.1" and picture.names()[TILES] == own
            assert sound.names()[AUDIO] == picture.names()[VIDEO] == "ann@home"
            # What went out is counted: fifty packets a second of 160 octets.
            (_, first), (_, last) = sound.infos(MIX)[0], sound.infos(MIX)[-1]
            assert 0 < first.packets < last.packets and last.octets == 160 * last.packets
            assert last.packets - first.packets == ((last.rtp - first.rtp) & 0xFFFFFFFF) // 160
            # What was sampled at one time is to be played at one time: video of that time goes out so much later. A report may wait for its reader.
            audio, video = (max(seconds(info.ntp) - at for at, info in ends.infos(ssrc)) for ends, ssrc in ((sound, MIX), (picture, TILES)))
            assert LATE_S / 2 < audio - video < LATE_S * 2, audio - video
            # And what came: those that were lost, the last sender report, and how long ago that was.
            assert await_that(lambda: any(block.highest_sequence > max(DROPPED) for block in sound.blocks(AUDIO)))
            block = sound.blocks(AUDIO)[-1]
            assert block.cumulative_lost == len(DROPPED) and block.lsr != 0 and block.dlsr > 0
            assert await_that(lambda: picture.blocks(VIDEO)[-1].lsr != 0)
            # A receiver's report is shown.
            _, info = sound.infos(MIX)[-1]
            said = rtcp.Report(MIX, 64, 9, 1, 80, info.ntp >> 16 & 0xFFFFFFFF, 0)
            sound.control.sendto(rtcp.build_rr(7, [said]), ("127.0.0.1", port(heard["audio"]) + 1))

            def reported() -> Any:
                (room,) = mixer.ask("GET", "/v1/conferences")[1]["conferences"]
                return next(one["reported"] for one in room["participants"] if one["participant"] == "bob")

            assert await_that(lambda: reported() is not None)
            found = reported()
            assert (found["lost"], found["jitter"]) == (0.25, 80) and 0 <= found["round_trip_ms"] < 20_000, found
        finally:
            sender.close()
        # Streams that are over say so, and so does who is told to stop.
        assert mixer.ask("PUT", "/v1/tilings/hall", tiled(picture, screen, TILES + 1))[0] == 200
        assert await_that(lambda: picture.ended() == {TILES})
        assert mixer.ask("DELETE", "/v1/conferences/hall")[0] == 204
        assert await_that(lambda: sound.ended() == {MIX})
        mixer.stop()
        assert await_that(lambda: picture.ended() == {TILES, TILES + 1})


def test_packets_are_asked_for_and_sent_again(ends: list[Ends]) -> None:
    _, picture, _, screen = ends
    with Mixer() as mixer:
        _, shown = mixer.ask("PUT", "/v1/tilings/hall", tiled(picture, screen))
        there = port(shown["video"])
        for number in (1, 2, 5):
            picture.media.sendto(rtp(31, number, 0, VIDEO, bytes(8)), ("127.0.0.1", there))

        def asked() -> set[bytes]:
            return {packet for _, packet, _ in picture.items(Kind.NACK)}

        assert await_that(lambda: rtcp.build_nack(TILES, VIDEO, [3, 4]) in asked()), json.dumps([packet.hex() for packet in asked()])
        # A receiver has missed one of the tiled stream: the very packet comes again.
        assert await_that(lambda: len(screen.rtp) > 1)
        missed = screen.rtp[0]
        assert screen.rtp.count(missed) == 1
        number = int.from_bytes(missed[2:4], "big")
        picture.control.sendto(rtcp.build_nack(7, TILES, [number]), ("127.0.0.1", there + 1))
        assert await_that(lambda: screen.rtp.count(missed) == 2)
