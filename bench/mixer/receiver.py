"""Processor time of a receiver: FFmpeg decodes the tiled streams of a run in one process, and the sources' own streams in another.

Each process decodes everything once, and again with the coded pictures repeated; the difference is what the further pictures took, without the
start of the process and of its decoders. One thread for each decoder, all pictures are thrown away.
"""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FORMATS = {"H261": "h261", "H264": "h264", "H265": "hevc"}
REPEATED, RUNS = 10, 7
ABSENT = "not measured: ffmpeg is not on PATH"


def processor_time(command: list[str]) -> float:
    """User and system seconds of a program, all of its threads together. Raises CalledProcessError."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def decode(codec: str, files: Sequence[Path]) -> list[str]:
    """The command of a receiver that decodes all of these streams."""
    inputs = [word for file in files for word in ("-threads", "1", "-f", FORMATS[codec], "-i", str(file))]
    maps = [word for number in range(len(files)) for word in ("-map", f"{number}:v")]
    return ["ffmpeg", "-hide_banner", "-loglevel", "fatal", *inputs, *maps, "-fps_mode", "passthrough", "-f", "null", "-"]


def measure(codec: str, separate: Sequence[Sequence[bytes]], tiled: Sequence[Sequence[bytes]]) -> dict[str, Any] | None:
    """What decoding takes, in seconds of processor time for the pictures of the run; coded pictures of each stream, which begins with one that is
    coded intra. The runs of both are taken in turn. None: there is no ffmpeg."""
    if shutil.which("ffmpeg") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        commands: dict[str, list[list[str]]] = {}
        for name, streams in (("separate", separate), ("tiled", tiled)):
            commands[name] = []
            for times in (1, 1 + REPEATED):
                files = [Path(folder) / f"{name}{number}-{times}" for number in range(len(streams))]
                for file, pictures in zip(files, streams, strict=True):
                    file.write_bytes(b"".join(pictures) * times)
                commands[name].append(decode(codec, files))
        spent: dict[str, list[list[float]]] = {"separate": [], "tiled": []}
        for _ in range(RUNS):
            for name, pair in commands.items():
                spent[name].append([processor_time(command) for command in pair])
    decoding = {name: [(longer - once) / REPEATED for once, longer in runs] for name, runs in spent.items()}
    ratios = [tiled_s / separate_s for tiled_s, separate_s in zip(decoding["tiled"], decoding["separate"], strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3), "ratio_runs": [round(one, 3) for one in ratios],
        "seconds": {name: round(statistics.median(one), 4) for name, one in decoding.items()},
        "streams": {"separate": len(separate), "tiled": len(tiled)}, "pictures": {"separate": sum(map(len, separate)), "tiled": sum(map(len, tiled))},
        "repeated": REPEATED, "processes_s": {name: [[round(one, 4) for one in pair] for pair in runs] for name, runs in spent.items()},
    }  # fmt: skip
