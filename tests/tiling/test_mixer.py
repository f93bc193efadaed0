"""shunt-mixer tiles video: over its control API alone, and as a participant of a conference of agent and softswitch."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent_conference.lab import ROOM, Lab
from tests.agent_conference.lab import lab as running
from tests.lab.processes import Process, open_socket, roomy
from tests.lab.topology import CALLEE_IP
from tests.mixer_daemon.process import BINARY, Mixer, _Connection, await_that
from tests.tiling.lab import STREAM, Receiver, tiles
from tests.tools.conference import rtcp
from tests.tools.conference.rtp import parse_header
from tests.tools.tiling import clips, grid, rtp, scene
from tests.tools.tiling.clips import Clip, Payloads, Picture
from tests.tools.tiling.sliced import mismatching

RATE, SECONDS = 8, 4
MIXER_PORT = 45_000


def udp() -> socket.socket:
    made = roomy(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    made.bind(("127.0.0.1", 0))
    return made


def play(sources: list[tuple[socket.socket, tuple[str, int], rtp.Sender, Clip]], payloads: Payloads = rtp.h261_chunks) -> None:
    """Send clips as time goes by."""
    due = []
    for sender, to, numbered, clip in sources:
        due += [(at, sender, to, packet) for at, coded in zip(clip.times, clip.coded, strict=True) for packet in numbered.packets(payloads(coded), at)]
    began = time.monotonic()
    for at, sender, to, packet in sorted(due, key=lambda one: one[0]):
        time.sleep(max(0.0, began + at - time.monotonic()))
        sender.sendto(packet, to)


def tiling(source: str, to: str, tiles: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"from": source, "to": to, "codec": "H261", "payload_type": scene.H261, "streams": [{"ssrc": STREAM, "tiles": tiles}], **more}


def sources() -> list[Clip]:
    return [scene.h261_clip(kind, RATE, SECONDS, seed=number + 1, start=0.1 + 0.03 * number) for number, kind in enumerate(clips.KINDS)]


def complete(receiver: Receiver, own: list[Clip]) -> Callable[[], bool]:
    """Whether all tiles show their source's last picture."""

    def holds() -> bool:
        shown = receiver.pictures()
        return bool(shown) and all(clips.same(scene.tile(shown[-1:], place)[0], clip.pictures[-1]) for place, clip in enumerate(own))

    return holds


@pytest.fixture
def at_data_plane() -> Iterator[tuple[socket.socket, Receiver]]:
    """In place of a data plane: copies come from here, with RTCP a port higher."""
    while True:
        media = udp()
        control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            control.bind(("127.0.0.1", media.getsockname()[1] + 1))
            break
        except OSError:
            control.close()
            media.close()
    receiver = Receiver(control)
    yield media, receiver
    receiver.close()
    media.close()


def test_a_tiling_over_the_control_api(at_data_plane: tuple[socket.socket, Receiver]) -> None:
    media, control = at_data_plane
    own = sources()
    receiver = Receiver(udp())
    here = "127.0.0.1:{}".format(media.getsockname()[1])
    to = "127.0.0.1:{}".format(receiver.socket.getsockname()[1])
    with Mixer() as mixer:
        described = tiling(here, to, tiles(100, 101, 102, 103))
        status, answer = mixer.ask("PUT", "/v1/tilings/wall", described)
        assert status == 200, answer
        host, port = answer["video"].rsplit(":", 1)
        play([(media, (host, int(port)), rtp.Sender(100 + place, scene.H261), clip) for place, clip in enumerate(own)])
        assert await_that(complete(receiver, own))
        pictures = receiver.pictures()
        assert [scene.mismatching(scene.tile(pictures, place), clip) for place, clip in enumerate(own)] == [0, 0, 0, 0]
        assert all(control.asked(ssrc) for ssrc in (100, 101, 102, 103)), "new tiles need key frames"
        _, listed = mixer.ask("GET", "/v1/tilings")
        (stream,) = listed["tilings"][0]["streams"]
        assert [(tile["participant"], tile["x"], tile["y"], tile["width"], tile["height"]) for tile in stream["tiles"]] == [
            ("p0", 0, 0, 176, 144), ("p1", 176, 0, 176, 144), ("p2", 0, 144, 176, 144), ("p3", 176, 144, 176, 144),
        ]  # fmt: skip
        assert [(tile["pictures"], tile["refusal"]) for tile in stream["tiles"]] == [(RATE * SECONDS, None)] * 4
        # A participant leaves; the others stay as they are.
        assert mixer.ask("PUT", "/v1/tilings/wall", tiling(here, to, tiles(100, 101, 102)))[0] == 200
        assert await_that(lambda: bool((scene.tile(receiver.pictures()[-1:], 3)[0][0] == 16).all()))
        assert clips.same(scene.tile(receiver.pictures()[-1:], 0)[0], own[0].pictures[-1])
        assert mixer.ask("DELETE", "/v1/tilings/wall")[0] == 204
        assert mixer.ask("DELETE", "/v1/tilings/wall")[0] == 404
        assert "shunt_mixer_video_packets_sent_total" in mixer.ask("GET", "/metrics")[1]
    receiver.close()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"payload_type": 128}, "payload type 128 is not in 0..127"),
        ({"mtu": 500}, "mtu 500 is not in 1200..9000"),
        ({"streams": [{"ssrc": 1, "tiles": [{"place": 4, "participant": "p", "source": 2}]}]}, "stream 1 has no place 4, or two tiles at it"),
        ({"streams": [{"ssrc": 1, "tiles": []}, {"ssrc": 1, "tiles": []}]}, "stream 1 is there twice"),
        ({"streams": [{"ssrc": 1, "places": 0, "tiles": []}]}, "stream 1 has no places: 1 to 255 are possible"),
        ({"streams": [{"ssrc": 1, "columns": 2, "tiles": []}]}, "stream 1 has columns: those of H.265 alone have"),
        ({"codec": "H265", "streams": [{"ssrc": 1, "columns": 0, "tiles": []}]}, "stream 1 has 0 columns and 16 rows: 1 to 20 columns and 1 to 22 rows are possible"),
        ({"codec": "H265", "streams": [{"ssrc": 1, "places": 90, "columns": 4, "tiles": []}]}, "stream 1 has 4 columns and 23 rows: 1 to 20 columns and 1 to 22 rows are possible"),
        ({"codec": "H265", "streams": [{"ssrc": 1, "tiles": [{"place": 16, "participant": "p", "source": 2}]}]}, "stream 1 has no place 16, or two tiles at it"),
    ],
)
def test_a_description_that_cannot_be(change: dict[str, Any], what: str) -> None:
    with Mixer() as mixer:
        status, answer = mixer.ask("PUT", "/v1/tilings/wall", tiling("127.0.0.1:9", "127.0.0.1:9", []) | change)
        assert (status, answer["error"]["message"]) == (400, what)
        assert mixer.ask("GET", "/v1/tilings")[1]["tilings"] == []


def test_a_grid_of_h265_over_the_control_api(at_data_plane: tuple[socket.socket, Receiver]) -> None:
    """Three columns; then two, which is another stream."""
    media, control = at_data_plane
    own = [grid.clip(clips.KINDS[number], RATE, 2, seed=number + 1, start=0.1 + 0.03 * number) for number in range(4)]
    receiver = Receiver(udp())
    here = "127.0.0.1:{}".format(media.getsockname()[1])
    to = "127.0.0.1:{}".format(receiver.socket.getsockname()[1])

    def shown() -> list[Picture]:
        packets = list(receiver.packets.get(STREAM, []))
        while packets and not parse_header(packets[-1][1]).marker:
            packets.pop()
        return grid.CODEC.received(packets)[1] if packets else []

    def complete(columns: int) -> bool:
        pictures = shown()
        return bool(pictures) and all(clips.same(grid.tile(pictures[-1:], place, columns)[0], clip.pictures[-1]) for place, clip in enumerate(own))

    with Mixer() as mixer:
        for columns in (3, 2):
            receiver.packets.clear()
            streams = [{"ssrc": STREAM, "places": 5, "columns": columns, "tiles": tiles(100, 101, 102, 103)}]
            status, answer = mixer.ask("PUT", "/v1/tilings/wall", tiling(here, to, [], codec="H265", payload_type=97, streams=streams))
            assert status == 200, answer
            host, port = answer["video"].rsplit(":", 1)
            senders = [rtp.Sender(100 + place, 97) for place in range(4)]
            play([(media, (host, int(port)), sender, clip) for sender, clip in zip(senders, own, strict=True)], rtp.h265_payloads)
            assert await_that(lambda columns=columns: complete(columns))  # type: ignore[misc]
            pictures = shown()
            assert pictures[0][0].shape == (192 * -(-5 // columns), 256 * columns)
            assert [mismatching(grid.tile(pictures, place, columns), clip) for place, clip in enumerate(own)] == [0, 0, 0, 0]
            (stream,) = mixer.ask("GET", "/v1/tilings")[1]["tilings"][0]["streams"]
            assert [(tile["x"], tile["y"], tile["width"], tile["height"]) for tile in stream["tiles"]] == [
                (256 * (place % columns), 192 * (place // columns), 256, 192) for place in range(4)
            ]  # fmt: skip
            assert all(control.asked(ssrc) for ssrc in (100, 101, 102, 103)), "new tiles need key frames"
    receiver.close()


def test_why_a_source_is_refused_is_shown(at_data_plane: tuple[socket.socket, Receiver]) -> None:
    media, _ = at_data_plane
    here = "127.0.0.1:{}".format(media.getsockname()[1])
    with Mixer() as mixer:
        _, answer = mixer.ask("PUT", "/v1/tilings/wall", tiling(here, here, tiles(100)))
        host, port = answer["video"].rsplit(":", 1)
        for packet in rtp.Sender(100, scene.H261).packets([bytes(4) + b"no H.261"], 0):
            media.sendto(packet, (host, int(port)))

        def refusal() -> str | None:
            return str(mixer.ask("GET", "/v1/tilings")[1]["tilings"][0]["streams"][0]["tiles"][0]["refusal"])

        assert await_that(lambda: refusal() == "its bit stream cannot be read: no picture start code (bit 0)"), refusal()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_mixer_in_a_conference_of_agent_and_softswitch(tmp_path: Path) -> None:
    """Four participants send; the mixer gets the data plane's copies, and a viewer the tiled stream as that of one more participant."""
    own = sources()
    with running(tmp_path) as lab:
        control = Path("/run") / f"{lab.topology.prefix}-mixer.sock"
        section = {"listen": f"unix:{control}", "allow": [], "socket_group": "root", "address": CALLEE_IP, "port": MIXER_PORT, "receivers": 10, "load": 0.9}
        (tmp_path / "mixer.json").write_text(json.dumps({"valid": True, "errors": [], "config": {"mixer": section, "log": {"level": "info", "format": "text"}}}))
        mixer = Process(lab.topology, "callee", "mixer", [BINARY, "-c", str(tmp_path / "mixer.json")], tmp_path / "mixer.log")
        mixer.start().await_unix(control)
        receivers: list[Receiver] = []
        try:
            conference(lab, control, own, receivers)
        finally:
            mixer.stop()
            for receiver in receivers:
                receiver.close()


def conference(lab: Lab, control: Path, own: list[Clip], receivers: list[Receiver]) -> None:
    def participant(name: str, *signalled: str) -> tuple[str, int]:
        """Where a participant with video sends to."""
        video: list[dict[str, Any]] = [{"medium": "video"}]
        answer = lab.ask(lambda client: client.join(ROOM, name, video, signalled=list(signalled)))
        host, port = answer["media"][0]["address"].rsplit(":", 1)
        return host, int(port)

    lab.create()
    host, port = participant("mixer", CALLEE_IP)
    there = f"{host}:{port}"
    for number in range(5):
        made = open_socket(lab.topology, "caller", socket.AF_INET, socket.SOCK_DGRAM)
        made.bind(("0.0.0.0", 47_000 + 2 * number))
        receivers.append(Receiver(made))
    relays = [participant(f"p{number}") for number in range(5)]
    viewer = receivers[4]

    def put(body: dict[str, Any]) -> None:
        connection = _Connection(str(control))
        connection.request("PUT", "/v1/tilings/wall", json.dumps(body))
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        connection.close()

    put(tiling(there, there, tiles(100, 101, 102, 103)))
    # The data plane copies once it knows where everybody is: each one sends what shows nothing, and the mixer its black picture.
    senders = [rtp.Sender(100 + number, scene.H261) for number in range(5)]

    def known() -> bool:
        for number, sender in enumerate(senders):
            for packet in sender.packets([bytes(4) + b"\0"], 0):
                receivers[number].socket.sendto(packet, relays[number])
        return all(100 + number in viewer.packets for number in range(4)) and STREAM in viewer.packets

    assert await_that(known), (viewer.packets.keys(), lab.room())
    lab.until(lab.room, lambda room: room["problem"] is None)
    time.sleep(0.5)
    viewer.packets.clear()
    play([(receivers[number].socket, relays[number], senders[number], clip) for number, clip in enumerate(own)])
    assert await_that(complete(viewer, own))
    pictures = viewer.pictures()
    assert [scene.mismatching(scene.tile(pictures, place), clip) for place, clip in enumerate(own)] == [0, 0, 0, 0]
    named = {csrc for _, packet in viewer.packets[STREAM] for csrc in parse_header(packet).csrcs}
    assert named == {100, 101, 102, 103}
    # The viewer's request for a key frame of the stream goes to all who are in it. RTCP has the port of RTP here, and the agent learns that.
    for number, receiver in enumerate(receivers):
        receiver.socket.sendto(rtcp.build_rr(100 + number), relays[number])
        receiver.rtcp.clear()
    viewer.socket.sendto(rtcp.build_pli(104, STREAM), relays[4])
    assert await_that(lambda: all(receivers[number].asked(100 + number) for number in range(4))), [receiver.rtcp for receiver in receivers]
