"""shunt-mixer has a picture of each source decoded once: what that says, and that no decoder harms a stream."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mixer_daemon.process import Mixer, await_that
from tests.tiling.lab import STREAM, Receiver, tiles
from tests.tiling.test_mixer import at_data_plane as at_data_plane
from tests.tiling.test_mixer import play, tiling, udp
from tests.tools.conference.rtp import parse_header
from tests.tools.tiling import clips, column, grid, rtp, scene, sliced
from tests.tools.tiling.clips import Clip, Payloads, Picture

RATE, SECONDS, PATIENCE_S = 8, 2, 15
NEEDED = "a decoder cannot decode its picture"
Plane = tuple[Any, Receiver]


def h261(kind: str, seed: int) -> Clip:
    return scene.h261_clip(kind, RATE, SECONDS, seed=seed, start=0.1)


def h264(kind: str, seed: int) -> Clip:
    return column.clip(kind, RATE, SECONDS, seed=seed, start=0.1)


def h265(kind: str, seed: int) -> Clip:
    return grid.clip(kind, RATE, SECONDS, seed=seed, start=0.1)


CODECS: dict[str, tuple[Callable[[str, int], Clip], Payloads, int]] = {
    "H261": (h261, rtp.h261_chunks, scene.H261),
    "H264": (h264, rtp.h264_payloads, 97),
    "H265": (h265, rtp.h265_payloads, 97),
}


def overwritten(coded: bytes) -> bytes:
    """A picture with other bits in the middle of its last slice: headers are as they were."""
    at = len(coded) - len(rtp.h264_units(coded)[-1]) // 2
    return coded[:at] + b"\xa5" * 12 + coded[at + 12 :]


def shortened(coded: bytes) -> bytes:
    """A picture whose last slice ends early."""
    return coded[: -len(rtp.h264_units(coded)[-1]) // 3]


def other_parameters(coded: bytes) -> bytes:
    """A picture whose video parameter set (clause 7.3.2.1) has other reserved bits: the mixer makes its own, and FFmpeg finds no fault with slice data of H.265."""
    units = [unit[:4] + b"\0\0" + unit[6:] if rtp.h265_kind(unit) == 32 else unit for unit in rtp.h264_units(coded)]
    return b"".join(b"\0\0\0\1" + unit for unit in units)


class Wall:
    """A tiling of one stream on a mixer, its sources, and a receiver."""

    def __init__(self, mixer: Mixer, media: Any, codec: str, count: int) -> None:
        self.mixer, self.media, self.codec = mixer, media, codec
        _, self.payloads, self.payload_type = CODECS[codec]
        self.receiver = Receiver(udp())
        here, to = ("127.0.0.1:{}".format(one.getsockname()[1]) for one in (media, self.receiver.socket))
        more = {} if codec == "H261" else {"places": 4}
        streams = [{"ssrc": STREAM, "tiles": tiles(*range(100, 100 + count)), **more}]
        status, answer = mixer.ask("PUT", "/v1/tilings/wall", tiling(here, to, [], codec=codec, payload_type=self.payload_type, streams=streams))
        assert status == 200, answer
        host, port = answer["video"].rsplit(":", 1)
        self.to = host, int(port)
        self.senders = [rtp.Sender(100 + place, self.payload_type) for place in range(count)]

    def play(self, own: list[Clip]) -> None:
        play([(self.media, self.to, sender, clip) for sender, clip in zip(self.senders, own, strict=False)], self.payloads)

    def tile(self, place: int) -> dict[str, Any]:
        found: dict[str, Any] = self.mixer.ask("GET", "/v1/tilings")[1]["tilings"][0]["streams"][0]["tiles"][place]
        return found

    def trials(self) -> dict[str, Any]:
        found: dict[str, Any] = self.mixer.ask("GET", "/v1/status")[1]["trial_decode"]
        return found

    def shown(self, place: int) -> list[Picture]:
        packets = list(self.receiver.packets.get(STREAM, []))
        while packets and not parse_header(packets[-1][1]).marker:
            packets.pop()
        if not packets:
            return []
        if self.codec == "H261":
            return scene.tile(scene.received(packets)[1], place)
        kind = {"H264": column.CODEC, "H265": grid.CODEC}[self.codec]
        return kind.tile(kind.received(packets)[1], place)

    def ends_with(self, place: int, clip: Clip) -> bool:
        shown = self.shown(place)
        return bool(shown) and clips.same(shown[-1], clip.pictures[-1])

    def mismatching(self, place: int, clip: Clip) -> int:
        return (scene.mismatching if self.codec == "H261" else sliced.mismatching)(self.shown(place), clip)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def children(pid: int) -> list[str]:
    return [one for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()]


@pytest.mark.parametrize("codec", CODECS)
def test_sources_that_a_decoder_can_decode(at_data_plane: Plane, codec: str) -> None:
    own = [CODECS[codec][0](clips.KINDS[seed], seed + 1) for seed in range(3)]
    with Mixer(decoder="ffmpeg") as mixer:
        wall = Wall(mixer, at_data_plane[0], codec, 3)
        assert [wall.tile(place)["trial"] for place in range(3)] == ["pending"] * 3
        wall.play(own)
        assert await_that(lambda: [wall.tile(place)["trial"] for place in range(3)] == ["decoded"] * 3, 3 * PATIENCE_S), wall.trials()
        found = wall.trials()
        assert (found["decoder"], found["decoded"], found["undecodable"], found["problem"]) == ("ffmpeg", 3, 0, None)
        assert found["took_ms"] > 0
        assert await_that(lambda: all(wall.ends_with(place, clip) for place, clip in enumerate(own)))
        assert [wall.mismatching(place, clip) for place, clip in enumerate(own)] == [0, 0, 0], "a source has its tile before the decoder has said anything"
        assert "shunt_mixer_trial_decodes_total 3" in mixer.ask("GET", "/metrics")[1]
        wall.receiver.close()


@pytest.mark.parametrize(("codec", "damage"), [("H264", overwritten), ("H264", shortened), ("H265", other_parameters)])
def test_a_source_that_no_decoder_can_decode_loses_its_tile(at_data_plane: Plane, codec: str, damage: Callable[[bytes], bytes]) -> None:
    """Its slices can be tiled as far as headers tell. The one beside it is as it was."""
    good, bad = (CODECS[codec][0](kind, seed) for seed, kind in ((1, "testsrc"), (2, "mandelbrot")))
    bad = Clip(bad.times, [damage(coded) for coded in bad.coded])
    with Mixer(decoder="ffmpeg") as mixer:
        wall = Wall(mixer, at_data_plane[0], codec, 2)
        wall.play([good, bad])
        assert await_that(lambda: wall.tile(1)["trial"] == "undecodable", 3 * PATIENCE_S), wall.trials()
        refusal = wall.tile(1)["refusal"]
        assert refusal.startswith(f"{NEEDED}: ") and refusal.isascii() and refusal.isprintable() and len(refusal) < 200, refusal
        assert wall.trials()["undecodable"] == 1
        assert (wall.tile(0)["trial"], wall.tile(0)["refusal"]) == ("decoded", None)
        # Its further pictures are refused, and counted, which is what the agent goes by; its tile is grey.
        before = wall.tile(1)
        again = Clip([0.1 + number / RATE for number in range(2)], good.coded[:2], good.pictures[:2])
        wall.play([again, Clip(again.times, bad.coded[:2])])
        assert await_that(lambda: (wall.tile(1)["refused"] - before["refused"], wall.tile(1)["pictures"] - before["pictures"]) == (2, 2)), wall.tile(1)
        assert await_that(lambda: sliced.grey(wall.shown(1)[-1]) and wall.ends_with(0, again))
        # Who has its place afterwards is tried anew.
        here, to = ("127.0.0.1:{}".format(one.getsockname()[1]) for one in (at_data_plane[0], wall.receiver.socket))
        streams = [{"ssrc": STREAM, "places": 4, "tiles": [*tiles(100), {"place": 1, "participant": "other", "source": 102}]}]
        assert mixer.ask("PUT", "/v1/tilings/wall", tiling(here, to, [], codec=codec, payload_type=97, streams=streams))[0] == 200
        wall.senders[1] = rtp.Sender(102, 97)
        other = CODECS[codec][0]("moving", 3)
        wall.play([again, other])
        assert await_that(lambda: wall.tile(1)["trial"] == "decoded" and wall.ends_with(1, other), 3 * PATIENCE_S), wall.tile(1)
        wall.receiver.close()


def test_an_undecodable_source_does_not_decide_the_size_of_others(at_data_plane: Plane) -> None:
    """It comes first, and is of another profile than the next one."""
    bad = column.clip("testsrc", RATE, SECONDS, start=0.1, profile="high", x264="8x8dct=1")
    bad = Clip(bad.times, [shortened(coded) for coded in bad.coded])
    good = h264("mandelbrot", 2)
    with Mixer(decoder="ffmpeg") as mixer:
        wall = Wall(mixer, at_data_plane[0], "H264", 2)
        wall.play([bad])
        assert await_that(lambda: wall.tile(0)["trial"] == "undecodable", 3 * PATIENCE_S), wall.trials()
        wall.play([Clip([], []), good])
        assert await_that(lambda: wall.ends_with(1, good)), wall.tile(1)
        assert wall.tile(1)["refusal"] is None
        wall.receiver.close()


def test_h261_that_cannot_be_decoded_is_refused_by_the_mixer_itself(at_data_plane: Plane) -> None:
    bad = h261("testsrc", 1)
    bad = Clip(bad.times, [coded[: len(coded) // 2] + bytes(40) for coded in bad.coded])
    with Mixer(decoder="ffmpeg") as mixer:
        wall = Wall(mixer, at_data_plane[0], "H261", 1)
        wall.play([bad])
        assert await_that(lambda: str(wall.tile(0)["refusal"]).startswith("its bit stream cannot be read")), wall.tile(0)
        assert wall.tile(0)["trial"] == "pending"
        wall.receiver.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("echo '[h264 @ 0x1] nothing is right' >&2; exit 1", "cannot decode H264: nothing is right"),
        ("cat > /dev/null; kill -SEGV $$", "was ended: signal: 11"),
        ("kill -KILL $$", "was ended: signal: 9"),
        ("exec /nonexistent/ffmpeg", "cannot be started: "),
        ("cat > /dev/null; head -c 1000000 /dev/zero; exit 3", "cannot decode H264: exit code 3"),
        (None, "there is no "),
    ],
    ids=["finds fault with everything", "crashes", "is killed", "lacks a part", "talks too much", "is missing"],
)
def test_no_decoder_harms_a_stream(at_data_plane: Plane, tmp_path: Path, text: str | None, problem: str) -> None:
    own = [h264("testsrc", 1), h264("mandelbrot", 2)]
    program = str(tmp_path / "none") if text is None else script(tmp_path / "decoder", text)
    with Mixer(decoder=program) as mixer:
        wall = Wall(mixer, at_data_plane[0], "H264", 2)
        wall.play(own)
        assert await_that(lambda: [wall.tile(place)["trial"] for place in range(2)] == ["unavailable"] * 2, 3 * PATIENCE_S), wall.trials()
        found = wall.trials()
        assert (found["unavailable"], found["undecodable"]) == (2, 0) and problem in found["problem"], found
        assert await_that(lambda: all(wall.ends_with(place, clip) for place, clip in enumerate(own)))
        assert [wall.mismatching(place, clip) for place, clip in enumerate(own)] == [0, 0]
        wall.receiver.close()


def test_a_decoder_that_hangs_is_ended_with_what_it_has_started(at_data_plane: Plane, tmp_path: Path) -> None:
    own = [h264("testsrc", 1)]
    program = script(tmp_path / "decoder", "sleep 600 & wait")
    with Mixer(decoder=program) as mixer:
        wall = Wall(mixer, at_data_plane[0], "H264", 1)
        wall.play([Clip(own[0].times[:1], own[0].coded[:1])])
        assert await_that(lambda: any(children(int(pid)) for pid in children(mixer.process.pid)), PATIENCE_S)
        (decoder,) = children(mixer.process.pid)
        (other,) = children(int(decoder))
        wall.play(own)
        assert await_that(lambda: wall.tile(0)["trial"] == "unavailable", PATIENCE_S + 30), wall.trials()
        assert f"has said nothing in {PATIENCE_S} s" in wall.trials()["problem"]
        assert await_that(lambda: wall.ends_with(0, own[0])), "the stream does not wait for it"
        assert wall.mismatching(0, own[0]) == 0
        assert await_that(lambda: not any(_runs(pid) for pid in (decoder, other)) and not children(mixer.process.pid)), (decoder, other)
        wall.receiver.close()


def _runs(pid: str) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_without_a_decoder_sources_are_tiled_untried(at_data_plane: Plane) -> None:
    own = [h264("testsrc", 1)]
    with Mixer(decoder=None) as mixer:
        wall = Wall(mixer, at_data_plane[0], "H264", 1)
        wall.play(own)
        assert await_that(lambda: wall.tile(0)["trial"] == "unavailable" and wall.ends_with(0, own[0]))
        assert wall.trials()["decoder"] is None and not children(mixer.process.pid)
        wall.receiver.close()


def test_a_decoder_has_limits(at_data_plane: Plane, tmp_path: Path) -> None:
    """It cannot write to files, and says itself what else holds for it."""
    limits = "$(ulimit -t) s, $(ulimit -v) KiB, $(ulimit -f) blocks, $(ulimit -c) blocks of a core, nice $(nice), in $(pwd)"
    program = script(tmp_path / "decoder", f'trap "" XFSZ; cat > /dev/null; echo "{limits}" >&2; echo x > {tmp_path}/written; exit 1')
    with Mixer(decoder=program) as mixer:
        wall = Wall(mixer, at_data_plane[0], "H264", 1)
        wall.play([h264("testsrc", 1)])
        assert await_that(lambda: wall.tile(0)["trial"] == "unavailable")
        assert f"5 s, 1048576 KiB, 0 blocks, 0 blocks of a core, nice {os.nice(0) + 10}, in /" in wall.trials()["problem"], wall.trials()
        assert not (tmp_path / "written").read_text()
        wall.receiver.close()
