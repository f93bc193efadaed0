"""The agent places tiled streams on mixers: softswitch, agent and two mixers as processes; sources play a clip when they are asked for a key frame, and a viewer decodes."""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import av
import pytest

from shunt.admin import AdminError
from tests.agent_conference.conftest import binary as binary
from tests.agent_conference.lab import ROOM, Lab
from tests.lab.processes import Process, open_socket
from tests.lab.topology import CALLEE_IP, CALLER_IP, Topology
from tests.mixer_daemon.process import BINARY, _Connection, await_that
from tests.tiling import test_h264 as column, test_h265 as grid
from tests.tiling.test_mixer import Receiver, tiles
from tests.tools.conference import rtcp
from tests.tools.conference.rtp import parse_header
from tests.tools.tiling import clips, rtp, scene
from tests.tools.tiling.clips import Clip, Picture

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
RATE, PICTURES = 25, 10
MIXER_PORT = 45_000
H264, H265 = 97, 98
SIZE = "its pictures are not of the tile's size"
_ports = itertools.count(47_000, 2)
_ssrcs = itertools.count(0x7100)


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
            section = {"listen": f"unix:{control}", "allow": [], "socket_group": "root", "address": ip, "port": MIXER_PORT + 10 * number, "receivers": 10, "load": 0.9}
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
        self.mixers[name].start().await_unix(self.controls[name], 30)

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


class Person(Receiver):
    """A participant with one socket, also for RTCP. A source plays its clip until RTCP comes, and then when it is asked for a key frame; between, it sends nothing."""

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
            while not self._over.wait(0.05) and not any(self._is_wanted(packet) for packet in self.rtcp[taken:]):
                if not taken and time.monotonic() - ended > 0.5:
                    break  # nobody knows it yet
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
        packets = list(self.packets.get(ssrc, []))
        while packets and not parse_header(packets[-1][1]).marker:
            packets.pop()
        if ssrc not in self._decoders:
            # The first one need not be whole.
            first = next((at for at, (_, packet) in enumerate(packets) if parse_header(packet).marker), None)
            if first is None:
                return None
            self._decoders[ssrc] = av.CodecContext.create("h261", "r"), first + 1
        context, at = self._decoders[ssrc]
        if len(packets) > at:
            for _, payloads, _ in rtp.pictures(packets[at:]):
                for frame in context.decode(av.Packet(rtp.h261_picture(payloads))):
                    self._shown[ssrc] = clips.planes(frame)
        self._decoders[ssrc] = context, max(at, len(packets))
        return self._shown.get(ssrc)

    def sliced(self, codec: str, ssrc: int) -> list[Picture]:
        """What a stream of H.264 or H.265 shows from its first IDR picture on."""
        packets = list(self.packets.get(ssrc, []))
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


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MixingLab]:
    with Topology("tiled") as topology:
        made = MixingLab(topology, tmp_path)
        try:
            made.start()
            made.create()
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module")
def sources() -> list[Clip]:
    return [scene.h261_clip(clips.KINDS[seed % 4], RATE, PICTURES / RATE, seed=seed + 1, bit_rate=300_000, intra=100) for seed in range(5)]


@pytest.fixture(scope="module")
def large() -> Clip:
    """Of pictures that are as large as all four tiles."""
    coded = clips.encode("h261", clips.frames("testsrc", str(RATE), PICTURES, size="352x288"), str(RATE), size=(352, 288), bit_rate=300_000)
    return Clip([0.0] * len(coded), coded)


def holds(look: Callable[[], bool], lab: MixingLab, seconds: float = 20.0) -> None:
    assert await_that(look, seconds), f"{lab.room()['tiling']}\n{lab.agent.tail()}"


def test_tiles_follow_joins_and_leaves_and_outlive_agent_and_mixer(lab: MixingLab, sources: list[Clip], large: Clip) -> None:
    viewer, bystander = lab.person("viewer"), lab.person("bystander")
    people = [lab.person(f"p{number}", clip) for number, clip in enumerate(sources[:3])]
    wanted = lab.ask(lambda client: client.set_tiling(ROOM, "H261", receivers=["viewer"]))
    assert (wanted["codec"], wanted["receivers"], wanted["mixer"]) == ("H261", ["viewer"], None)
    holds(lambda: lab.placed() == "caller" and len(lab.layout()) == 3, lab)
    first = lab.layout()
    assert set(first.values()) == {(0, 0), (0, 1), (0, 2)}
    (stream,) = lab.ssrcs()

    def right(*shown: Person) -> Callable[[], bool]:
        def looked() -> bool:
            layout, streams = lab.layout(), lab.ssrcs()
            places = [layout.get(person.name) for person in shown]
            return all(at is not None and person.clip is not None and viewer.sees(streams[at[0]], at[1], person.clip) for person, at in zip(shown, places, strict=True))

        return looked

    holds(right(*people), lab)
    holds(lambda: viewer.black(stream, 3), lab)  # nobody has it
    named = {csrc for _, packet in viewer.packets[stream] for csrc in parse_header(packet).csrcs}
    assert named == {person.ssrc for person in people}
    # Who gets tiles gets nothing else, and nobody else gets them.
    holds(lambda: all(person.ssrc in bystander.packets for person in people), lab)
    assert stream not in bystander.packets
    viewer.packets = {stream: viewer.packets[stream]}
    room = lab.room()
    assert [one["participant"] for one in room["members"] if one["gets_tiles"]] == ["viewer"]
    assert room["participants"] == 5 and not any(one["participant"].startswith("#") for one in room["members"])
    # Reports: of the stream to the viewer, with the names of those who told theirs; of what came of it to each source.
    for person in people:
        person.socket.sendto(rtcp.build_rr(person.ssrc) + rtcp.build_cname(person.ssrc, person.name), person.relay)
    holds(lambda: stream in viewer.reported() and all(person.ssrc in person.judged() for person in people), lab)
    holds(lambda: {person.ssrc: person.name for person in people}.items() <= viewer.names().items(), lab)
    assert viewer.reported() == {stream}, "nobody else's video comes to it"
    # One more joins, one leaves, and another one has its place.
    people.append(lab.person("p3", sources[3]))
    holds(right(*people), lab)
    assert lab.layout() == first | {"p3": (0, 3)}
    gone = people.pop(1)
    lab.ask(lambda client: client.leave(ROOM, gone.name))
    place = first[gone.name][1]
    holds(lambda: viewer.black(stream, place), lab)
    people.append(lab.person("p4", sources[4]))
    holds(right(*people), lab)
    assert lab.layout()["p4"] == first[gone.name] and gone.name not in lab.layout()
    # Sources that cannot be tiled are named: one that says so itself, and one that the mixer refuses.
    other = lab.person("talks-vp8", sources[0], (96, "VP8"))
    lab.person("large", large)
    holds(lambda: lab.untiled() == {"talks-vp8": "it sends VP8/90000, and not H261/90000", "large": SIZE}, lab)
    holds(lambda: lab.ssrcs() == [stream], lab)
    assert set(viewer.packets) <= {stream, *(event["streams"][-1]["ssrc"] for event in lab.events("layout"))}, "a viewer of tiles gets nobody's own video"
    # The agent goes and comes back: the stream goes on.
    lab.agent.kill()
    lab.start_agent()
    holds(lambda: lab.placed() == "caller", lab)
    assert lab.ssrcs()[0] == stream and viewer.gets(stream)
    holds(right(*people), lab)
    # The mixer goes: the other one has the conference, and asks for key frames.
    layout = {person.name: lab.layout()[person.name] for person in people}
    lab.mixers["caller"].kill()
    holds(lambda: lab.placed() == "callee", lab)
    assert stream not in lab.ssrcs()
    holds(lambda: stream in viewer.ended(), lab)
    holds(right(*people), lab)
    assert {person.name: lab.layout()[person.name] for person in people} == layout, "tiles stay where they were"
    # And one that begins anew is told again.
    second = lab.ssrcs()[0]
    lab.mixers["caller"].start().await_unix(lab.controls["caller"], 30)
    lab.mixers["callee"].stop()
    lab.mixers["callee"].start().await_unix(lab.controls["callee"], 30)
    holds(lambda: lab.placed() != "" and second not in lab.ssrcs(), lab)
    holds(right(*people), lab)
    # No tiles any more: everybody's own video, except for who has not named its codec.
    lab.ask(lambda client: client.set_tiling(ROOM, "H261", receivers=["viewer", "apart"]))
    apart = lab.person("apart", None, (97, "H261"))
    holds(lambda: lab.ssrcs()[0] in apart.packets, lab)
    assert lab.room()["unjoined"] == []
    lab.ask(lambda client: client.end_tiling(ROOM))
    viewer.packets.clear()
    holds(lambda: all(person.ssrc in viewer.packets and person.ssrc in apart.packets for person in people), lab)
    room = lab.room()
    assert room["tiling"] is None
    (unjoined,) = room["unjoined"]
    assert (unjoined["sender"], unjoined["receiver"]) == ("talks-vp8", "apart")
    assert unjoined["reason"] == "video: talks-vp8 has payload type 96 for VP8/90000, and apart has none"
    holds(lambda: other.ssrc in viewer.packets, lab)
    assert other.ssrc not in apart.packets
    with pytest.raises(AdminError, match="has no tiling"):
        lab.ask(lambda client: client.end_tiling(ROOM))


def test_columns_of_h264_are_placed(lab: MixingLab) -> None:
    """Three sources in columns of two: another mixer goes on with both streams."""
    viewer = lab.person("viewer")
    clips_of = [column.clip(clips.KINDS[seed], RATE, PICTURES / RATE, seed=seed + 1) for seed in range(3)]
    people = [lab.person(f"p{number}", clip, (H264, "H264")) for number, clip in enumerate(clips_of)]
    lab.ask(lambda client: client.set_tiling(ROOM, "H264", places=2, payload_type=H264, receivers=["viewer"]))

    def right() -> bool:
        layout, streams = lab.layout(), lab.ssrcs()
        return len(layout) == 3 and all(viewer.sees_slices("H264", streams[layout[person.name][0]], layout[person.name][1], clip) for person, clip in zip(people, clips_of, strict=True))

    holds(right, lab)
    assert sorted(lab.layout().values()) == [(0, 0), (0, 1), (1, 0)]
    before, host = lab.ssrcs(), lab.placed()
    lab.mixers[host].kill()
    holds(lambda: lab.placed() not in ("", host) and not set(before) & set(lab.ssrcs()), lab)
    holds(right, lab)


def test_grids_of_h265_are_placed(lab: MixingLab) -> None:
    """Five sources in grids of four."""
    viewer = lab.person("viewer")
    clips_of = [grid.clip(clips.KINDS[seed % 4], RATE, PICTURES / RATE, seed=seed + 1) for seed in range(5)]
    people = [lab.person(f"p{number}", clip, (H265, "H265")) for number, clip in enumerate(clips_of)]
    lab.ask(lambda client: client.set_tiling(ROOM, "H265", places=4, payload_type=H265, receivers=["viewer"]))

    def right() -> bool:
        layout, streams = lab.layout(), lab.ssrcs()
        return len(layout) == 5 and all(
            viewer.sees_slices("H265", streams[layout[person.name][0]], layout[person.name][1], clip) for person, clip in zip(people, clips_of, strict=True)
        )

    holds(right, lab)
    assert sorted(lab.layout().values()) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]


def test_what_cannot_be_is_refused_and_a_conference_without_mixers_says_so(lab: MixingLab, sources: list[Clip]) -> None:
    lab.person("ann", sources[0], (96, "VP8"))
    for more, reason in (
        ({"places": 5}, "a CIF picture of H.261 has 4"),
        ({"payload_type": 128}, "payload_type 128 is not in 0..127"),
        ({"receivers": ["ann"]}, "ann can be given no tiles: it has not named the codec"),
        ({"receivers": ["#mixer"]}, "receiver"),
    ):
        with pytest.raises(AdminError, match=reason):
            lab.ask(lambda client, more=more: client.set_tiling(ROOM, "H261", **more))  # type: ignore[misc]
    assert lab.room()["tiling"] is None
    for mixer in lab.mixers.values():
        mixer.kill()
    lab.person("bob", sources[1])
    viewer = lab.person("viewer")
    lab.ask(lambda client: client.set_tiling(ROOM, "H261"))
    holds(lambda: lab.room()["tiling"]["problem"] is not None and "bob" in lab.layout(), lab)
    assert lab.placed() == ""
    for host, mixer in lab.mixers.items():
        mixer.start().await_unix(lab.controls[host], 30)
    holds(lambda: lab.room()["tiling"]["problem"] is None and viewer.sees(lab.ssrcs()[0], 0, sources[1]), lab)
