"""What decoding takes a receiver, measured with FFmpeg: more pictures take more, and without FFmpeg nothing is said."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.mixer import receiver
from tests.tools.tiling import clips


def coded(kind: str, count: int) -> list[bytes]:
    options = {"x264-params": "keyint=1:scenecut=0:ref=1:bframes=0"}
    return clips.encode("libx264", clips.frames(kind, "8", count), "8", preset="veryfast", **options)


def test_a_receiver_of_four_streams_spends_more_than_one_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four streams of noise against one: about four times as many macroblocks. That it is more than half as much holds on a busy machine too."""
    monkeypatch.setattr(receiver, "RUNS", 3)
    stream = coded("noise", 40)
    found = receiver.measure("H264", [stream] * 4, [stream])
    assert found is not None
    assert found["pictures"] == {"separate": 160, "tiled": 40} and found["streams"] == {"separate": 4, "tiled": 1}
    assert 0 < found["ratio"] < 0.5, found
    assert all(longer > once for runs in found["processes_s"].values() for once, longer in runs), "repeated pictures are decoded too"


def test_every_picture_is_decoded(tmp_path: Path) -> None:
    """FFmpeg counts what it has decoded: all pictures of all streams, though they have no timestamps."""
    files = [tmp_path / name for name in ("one", "other")]
    for file, count in zip(files, (5, 7), strict=True):
        file.write_bytes(b"".join(coded("testsrc", count)) * 3)
    command = receiver.decode("H264", files)
    command[1:1] = ["-stats"]
    command[command.index("-f", command.index("-fps_mode")) :] = ["-f", "framecrc", "-"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    shown = [line.split(",")[0] for line in lines if line and not line.startswith("#")]
    assert (shown.count("0"), shown.count("1")) == (15, 21)


def test_without_ffmpeg_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert receiver.measure("H261", [[b""]], [[b""]]) is None
