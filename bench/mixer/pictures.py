"""Tiled video beside separate streams and beside a unit that decodes and encodes, in one run; adds to build/bench/mixer/results.json.

    python -m bench.mixer.pictures [--seconds N] [--mixed N] [--audience N]

H.261: fifteen QCIF sources at 8 frames/s, as in the evaluation of the digital amphitheater, whose phases differ; four streams of CIF come
out. The same sources as streams of their own, cut into packets by the same rules; and cut anywhere, which no receiver has to understand. A multipoint control unit: ffmpeg decodes, tiles and
encodes at the same bit rate. H.264: fifteen sources coded intra in one column. H.265: sixteen sources of 256x192 coded intra in a grid. Then minutes of mixed frame rates with joins and leaves, and
an audience whose mixers feed a mixer. Every tile is compared with what the source's own decoder shows. Sizes are those of IP packets. Where there
is ffmpeg, what decoding takes a receiver of the tiled streams and one of the separate ones.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
for _folder in (".", "operator"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))

from bench.mixer import add, receiver
from bench.mixer.receiver import processor_time
from bench.runs import commit, machine
from tests.tools.conference.rtp import parse_header
from tests.tools.tiling import clips, program, rtp, scene, sliced
from tests.tools.tiling.clips import Clip, Picture
from tests.tools.tiling.program import INTRA, Events, mixed

OUTPUT = ROOT / "build/bench/mixer"
SOURCES, RATE, MTU, ETHERNET, HEADERS = 15, 8, 1400, 1500, 28
NEAR = 0.9
KINDS = {"testsrc": 28_000, "mandelbrot": 28_000, "grain": 90_000}
"""Clips, and the bit rate that each is encoded at: some participants move more than others, 1.1 Mbit/s altogether."""
TARGETS = {"tiles_mismatching": (0, 0), "packets_ratio": (0, 0.7), "bits_ratio": (0, 1.01), "near_mtu_share": (0.7, 1), "us_per_source_frame": (0, 25)}

RECEIVERS = {"receiver_cpu_ratio": "h261", "receiver_cpu_ratio_h261_intra": "h261_intra", "receiver_cpu_ratio_h264": "h264", "receiver_cpu_ratio_h265": "h265"}
"""A receiver's processor time for tiled streams, by that for separate ones: of which part of the run."""


def traffic(packets: Iterable[bytes], seconds: float) -> dict[str, float]:
    sizes = [len(packet) + HEADERS for packet in packets]
    near = sum(size >= NEAR * MTU for size in sizes) / len(sizes)
    return {"packets_per_s": round(len(sizes) / seconds, 1), "kbit_per_s": round(sum(sizes) * 8e-3 / seconds, 1), "near_mtu_share": round(near, 3)}


def played(packets: Iterable[tuple[float, bytes]], sources: list[Clip]) -> list[bytes]:
    """Packets of a stream up to the end of its sources: once all are silent it only keeps itself latched."""
    end = max(source.times[-1] for source in sources) + 0.5
    return [packet for at, packet in packets if at < end]


def ratios(tiled: dict[str, float], separate: dict[str, float]) -> dict[str, float]:
    return {f"{figure}_ratio": round(tiled[f"{of}_per_s"] / separate[f"{of}_per_s"], 4) for figure, of in (("packets", "packets"), ("bits", "kbit"))}


def ffmpeg(*arguments: str) -> list[str]:
    return ["ffmpeg", "-hide_banner", "-loglevel", "error", "-y", "-threads", "1", *arguments]


def decoding(files: list[Path], codec: str) -> float:
    """Processor time of a receiver that decodes, without what it takes to start; the least of three."""
    start = min(processor_time(ffmpeg("-f", "lavfi", "-i", "color=size=16x16:duration=0.1", "-f", "null", "-")) for _ in range(3))
    return min(sum(processor_time(ffmpeg("-f", codec, "-i", str(file), "-f", "null", "-")) - start for file in files) for _ in range(3))


def psnr(one: list[Picture], other: list[Picture]) -> float:
    """Of the luma of pictures, in dB."""
    error = np.mean([np.mean((a[0].astype(float) - b[0]) ** 2) for a, b in zip(one, other, strict=False)])
    return float(round(10 * np.log10(255**2 / max(error, 1e-9)), 2))


def h261(seconds: float, *, intra: int, factor: int) -> dict[str, Any]:
    """Fifteen sources in four streams, beside fifteen streams, and beside ffmpeg as a multipoint control unit."""
    rng = random.Random(1)
    sources = [
        scene.h261_clip(kind, RATE, seconds, seed=number + 1, start=0.2 + rng.uniform(0, 1 / RATE), bit_rate=factor * rate, intra=intra) for number, (kind, rate) in enumerate(5 * list(KINDS.items()))
    ]
    built = program.PATH
    events, separate = h261_sent(built, sources, MTU)
    anywhere = [bytes(12) + chunk for source in sources for coded in source.coded for chunk in rtp.h261_chunks(coded, MTU - HEADERS - 16)]
    runs = [program.run(built, "h261", events, size=MTU - HEADERS) for _ in range(7)]
    output = runs[0]
    mismatching, delays, tiled_pictures = 0, list[float](), list[list[bytes]]()
    for stream, packets in output.packets.items():
        listed = list(rtp.pictures(packets))
        coded = [rtp.h261_picture(payloads) for _, payloads, _ in listed]
        pictures = clips.decode("h261", coded)
        own = sources[4 * stream : 4 * stream + 4]
        mismatching += sum(scene.mismatching(scene.tile(pictures, place), source) for place, source in enumerate(own))
        tiled_pictures.append(coded)
        for place in range(len(own)):
            came = [at for at, _, contributors in listed if 100 + 4 * stream + place in contributors]
            delays += [sent - taken for taken, sent in zip(own[place].times, came, strict=False)]
    files = {name: [OUTPUT / f"{name}{number}.h261" for number in range(len(streams))] for name, streams in (("source", sources), ("tiled", tiled_pictures))}
    for file, coded in zip(files["source"] + files["tiled"], [source.coded for source in sources] + tiled_pictures, strict=True):
        file.write_bytes(b"".join(coded))
    has_ffmpeg = shutil.which("ffmpeg") is not None
    tiled = traffic([packet for packets in output.packets.values() for packet in played(packets, sources)], seconds)
    larger, alone_larger = h261_sent(built, sources, ETHERNET)
    tiled_larger = [packet for packets in program.run(built, "h261", larger, size=ETHERNET - HEADERS).packets.values() for packet in played(packets, sources)]
    alone, split = traffic(separate, seconds), traffic(anywhere, seconds)
    frames = sum(len(source.coded) for source in sources)
    micros = [1e6 * run.figures["seconds"] / frames for run in runs]
    return {
        "sources": SOURCES, "source_frames": frames, "tiles_mismatching": mismatching, "tiled": tiled, "separate": alone, **ratios(tiled, alone),
        "separate_cut_anywhere": split, "against_cut_anywhere": ratios(tiled, split),
        f"mtu_{ETHERNET}": ratios(traffic(tiled_larger, seconds), traffic(alone_larger, seconds)),
        "us_per_source_frame": round(statistics.median(micros), 2), "us_per_source_frame_runs": [round(one, 2) for one in micros],
        "hold_ms": {"mean": round(1e3 * statistics.mean(delays), 1), "largest": round(1e3 * max(delays), 1)},
        "receiver_s": {"separate": round(decoding(files["source"], "h261"), 3), "tiled": round(decoding(files["tiled"], "h261"), 3)} if has_ffmpeg else None,
        "receiver_cpu": receiver.measure("H261", [source.coded for source in sources], tiled_pictures),
        "control_unit": control_unit(files["source"], sources, seconds, alone, intra, frames) if has_ffmpeg else None,
    }  # fmt: skip


def h261_sent(built: Path, sources: list[Clip], mtu: int) -> tuple[Events, list[bytes]]:
    """What sources send to a mixer, and their packets as they are without one: cut before macroblocks, which RFC 4587 does not have split."""
    events, separate = Events(), []
    for number, source in enumerate(sources):
        events.join(0, number, 100 + number)
        payloads = iter(program.cut(built, source.coded, mtu - HEADERS))
        sent = scene.send(events, number, 100 + number, source, payloads=lambda _, payloads=payloads: next(payloads))  # type: ignore[misc]
        separate += [packet for _, packet in sent]
    return events, separate


def control_unit(files: list[Path], sources: list[Clip], seconds: float, alone: dict[str, float], intra: int, frames: int) -> dict[str, Any]:
    """ffmpeg decodes four sources at a time, puts them into one picture and encodes that."""
    spent, packets, quality = 0.0, [], []
    for stream in range(0, SOURCES, 4):
        group = files[stream : stream + 4]
        inputs = [argument for file in group for argument in ("-f", "h261", "-framerate", str(RATE), "-i", str(file))]
        inputs += ["-f", "lavfi", "-i", f"color=size=176x144:rate={RATE}:duration={seconds}"] * (4 - len(group))
        stack = "".join(f"[{number}:v]" for number in range(4)) + "xstack=inputs=4:layout=0_0|w0_0|0_h0|w0_h0"
        result = OUTPUT / f"control{stream // 4}.h261"
        options = [
            "-filter_complex_threads",
            "1",
            "-filter_complex",
            stack,
            "-threads",
            "1",
            "-c:v",
            "h261",
            "-b:v",
            str(int(1000 * alone["kbit_per_s"] * len(group) / SOURCES)),
            "-g",
            str(intra),
            "-frames:v",
            str(int(seconds * RATE)),
            "-f",
            "h261",
        ]
        spent += processor_time(ffmpeg(*inputs, *options, str(result)))
        pictures = clips.decode_file(result)
        for place, source in enumerate(sources[stream : stream + 4]):
            # Its pictures come some frames late; which is told by what is most like them.
            quality.append(max(psnr(scene.tile(pictures, place)[late:], source.pictures) for late in range(5)))
        for coded in _pictures_of(result.read_bytes()):
            packets += [b"\0" * 12 + chunk for chunk in rtp.h261_chunks(coded, MTU - HEADERS - 16)]
    return {"us_per_source_frame": round(1e6 * spent / frames, 1), "psnr_db": round(statistics.mean(quality), 2), **traffic(packets, seconds)}


def _pictures_of(stream: bytes) -> list[bytes]:
    """Pictures of a byte stream whose picture start codes begin with an octet, as FFmpeg writes it."""
    starts = [at for at in range(len(stream) - 2) if stream[at] == 0 and stream[at + 1] == 1 and stream[at + 2] >> 4 == 0]
    return [stream[start:end] for start, end in zip(starts, [*starts[1:], len(stream)], strict=True)]


def h264_clip(kind: str, rate: int, seconds: float, *, seed: int, start: float, quantiser: int) -> Clip:
    count = int(rate * seconds)
    parameters = f"keyint=1:scenecut=0:ref=1:bframes=0:weightp=0:qp={quantiser}:sliced-threads=0"
    coded = clips.encode("libx264", clips.frames(kind, str(rate), count, seed=seed), str(rate), profile="high", preset="veryfast", **{"x264-params": parameters})
    return Clip([start + at / rate for at in range(count)], coded, clips.decode("h264", coded))


def h264_column(pictures: list[Picture], sources: list[Clip]) -> int:
    """Mismatching tiles of a column."""
    return sum(sliced.mismatching([clips.cut(picture, 0, 144 * place, 176, 144) for picture in pictures], source) for place, source in enumerate(sources))


def sent_sliced(sources: list[Clip], payloads: Callable[[bytes], list[bytes]]) -> tuple[Events, list[bytes]]:
    """What sources that are coded intra send to a mixer, and their packets as they are without one."""
    events, separate = Events(), []
    for number, source in enumerate(sources):
        sender = rtp.Sender(100 + number, 97)
        events.join(0, number, 100 + number, region=INTRA)
        for at, coded in zip(source.times, source.coded, strict=True):
            for packet in sender.packets(payloads(coded), at):
                events.packet(at, number, packet)
                separate.append(packet)
    return events, separate


def h264(seconds: float) -> dict[str, Any]:
    """Fifteen sources that are coded intra, in one column."""
    rng = random.Random(2)
    sources = [h264_clip(list(KINDS)[number % 3], RATE, seconds, seed=number + 1, start=0.2 + rng.uniform(0, 1 / RATE), quantiser=42) for number in range(SOURCES)]
    events, separate = sent_sliced(sources, lambda coded: rtp.h264_payloads(coded, MTU - HEADERS - 14))
    built = program.PATH
    runs = [program.run(built, "h264", events, size=MTU - HEADERS, places=SOURCES) for _ in range(7)]
    packets = runs[0].packets[0]
    coded_column = [rtp.h264_picture(payloads) for _, payloads, _ in rtp.pictures(packets)]
    pictures = clips.decode("h264", coded_column)
    frames = sum(len(source.coded) for source in sources)
    tiled, alone = traffic(played(packets, sources), seconds), traffic(separate, seconds)
    micros = statistics.median(1e6 * run.figures["seconds"] / frames for run in runs)
    return {
        "sources": SOURCES, "source_frames": frames, "tiles_mismatching": h264_column(pictures, sources), "tiled": tiled, "separate": alone,
        **ratios(tiled, alone), "us_per_source_frame": round(micros, 2),
        "receiver_cpu": receiver.measure("H264", [source.coded for source in sources], [coded_column]),
    }  # fmt: skip


def h265(seconds: float) -> dict[str, Any]:
    """Sixteen sources that are coded intra, in a grid of four by four."""
    rng = random.Random(5)
    width, height, places = 256, 192, 16
    count = int(RATE * seconds)
    parameters = "keyint=1:min-keyint=1:bframes=0:ctu=16:sao=0:wpp=0:frame-threads=1:pools=none:repeat-headers=1:info=0:log-level=error"
    sources = []
    for number in range(places):
        start = 0.2 + rng.uniform(0, 1 / RATE)
        kind, quantiser = (("testsrc", 46), ("mandelbrot", 46), ("grain", 34))[number % 3]
        pictures = clips.frames(kind, str(RATE), count, size=f"{width}x{height}", seed=number + 1)
        coded = clips.encode("libx265", pictures, str(RATE), size=(width, height), preset="veryfast", **{"x265-params": f"{parameters}:qp={quantiser}"})
        sources.append(Clip([start + at / RATE for at in range(count)], coded, clips.decode("hevc", coded)))
    events, separate = sent_sliced(sources, lambda coded: rtp.h265_payloads(coded, MTU - HEADERS - 15))
    built = program.PATH
    runs = [program.run(built, "h265", events, size=MTU - HEADERS, places=places) for _ in range(7)]
    packets = runs[0].packets[0]
    coded_grid = [rtp.h265_picture(payloads) for _, payloads, _ in rtp.pictures(packets)]
    shown = clips.decode("hevc", coded_grid)
    wrong = sum(sliced.mismatching([clips.cut(picture, width * (place % 4), height * (place // 4), width, height) for picture in shown], source) for place, source in enumerate(sources))
    frames = sum(len(source.coded) for source in sources)
    tiled, alone = traffic(played(packets, sources), seconds), traffic(separate, seconds)
    micros = [1e6 * run.figures["seconds"] / frames for run in runs]
    return {
        "sources": places, "source_frames": frames, "tiles_mismatching": wrong, "tiled": tiled, "separate": alone, **ratios(tiled, alone),
        "us_per_source_frame": round(statistics.median(micros), 2), "us_per_source_frame_runs": [round(one, 2) for one in micros],
        "receiver_cpu": receiver.measure("H265", [source.coded for source in sources], [coded_grid]),
    }  # fmt: skip


def drift(seconds: int) -> dict[str, Any]:
    """Four places for a long time: sources of other rates join and leave, each for some twenty seconds; each picture of each is compared."""
    rng = random.Random(3)
    events, stays = Events(), []
    clip = {rate: scene.h261_clip(kind, rate, 30, seed=rate, bit_rate=60_000, intra=2 * rate) for rate, kind in zip((15, 12, 8, 5), clips.KINDS, strict=True)}
    ssrc = 100
    for place in range(4):
        at = rng.uniform(0.1, 3)
        while at < seconds:
            rate, length = rng.choice(list(clip)), rng.uniform(8, 30)
            count = int(length * rate)
            own = clip[rate]
            stay = Clip([at + number / rate for number in range(count)], own.coded[:count], own.pictures[:count])
            ssrc += 1
            events.join(at - 0.01, place, ssrc)
            scene.send(events, place, ssrc, stay, payloads=rtp.h261_chunks)
            events.add(stay.times[-1] + 0.5, program.LEAVE, place)
            stays.append((place, stay))
            at = stay.times[-1] + rng.uniform(1, 3)
    output = program.run(program.PATH, "h261", events, size=MTU - HEADERS, hold=60)
    listed = list(rtp.pictures(output.packets[0]))
    times = [at for at, _, _ in listed]
    wrong = compared = 0
    coded = (rtp.h261_picture(payloads) for _, payloads, _ in listed)
    shown: list[list[Picture]] = [[] for _ in stays]
    for at, picture in zip(times, clips.decode_each("h261", coded), strict=True):
        tiles = scene.tile([picture], 0), scene.tile([picture], 1), scene.tile([picture], 2), scene.tile([picture], 3)
        for number, (place, stay) in enumerate(stays):
            if stay.times[0] - 1e-3 <= at < stay.times[-1] + 0.45:
                (tile,) = tiles[place]
                if not shown[number] or not clips.same(shown[number][-1], tile):
                    shown[number].append(tuple(plane.copy() for plane in tile))  # type: ignore[arg-type]
            elif shown[number] and at > stay.times[-1] + 0.45:
                wrong += scene.mismatching(shown[number], stay)
                compared += len(stay.pictures)
                shown[number] = []
    for number, (_, stay) in enumerate(stays):
        if shown[number]:
            wrong += scene.mismatching(shown[number], stay)
            compared += len(stay.pictures)
    return {"seconds": seconds, "joins": len(stays), "pictures_out": len(listed), "tiles_compared": compared, "tiles_mismatching": wrong}


def audience(people: int, seconds: float) -> dict[str, Any]:
    """An audience in columns of fifteen, and those in columns of sixty: what a receiver gets, and what it costs."""
    distinct = [h264_clip(list(KINDS)[number % 3], RATE, seconds, seed=number + 1, start=0.2, quantiser=42) for number in range(12)]
    rng = random.Random(4)
    built, spent = program.PATH, {"first": 0.0, "second": 0.0}
    members: list[Clip] = []
    for number in range(people):
        own = distinct[number % len(distinct)]
        phase = rng.uniform(0, 1 / RATE)
        members.append(Clip([at + phase for at in own.times], own.coded, own.pictures))
    columns, separate = [], 0
    for column in range(0, people, SOURCES):
        events = Events()
        for place, member in enumerate(members[column : column + SOURCES]):
            sender = rtp.Sender(10_000 + column + place, 97)
            events.join(0, place, 10_000 + column + place, region=INTRA)
            for at, coded in zip(member.times, member.coded, strict=True):
                for packet in sender.packets(rtp.h264_payloads(coded, MTU - HEADERS - 14), at):
                    events.packet(at, place, packet)
                    separate += 1
        output = program.run(built, "h264", events, size=MTU - HEADERS, places=SOURCES)
        spent["first"] += output.figures["seconds"]
        columns.append(output.packets[0])
    walls, wrong, csrcs = list[list[bytes]](), 0, 0
    for wall in range(0, len(columns), 4):
        events = Events()
        for number, packets in enumerate(columns[wall : wall + 4]):
            for place in range(SOURCES):
                events.join(0, SOURCES * number + place, 1001 + number, 10_000 + SOURCES * (wall + number) + place, region=mixed(place, SOURCES))
            for at, packet in packets:
                events.packet(at, SOURCES * number, packet[:8] + (1001 + number).to_bytes(4, "big") + packet[12:])
        output = program.run(built, "h264", events, size=MTU - HEADERS, places=4 * SOURCES)
        spent["second"] += output.figures["seconds"]
        walls.append([packet for _, packet in output.packets[0]])
        pictures = clips.decode("h264", [rtp.h264_picture(payloads) for _, payloads, _ in rtp.pictures(output.packets[0])])
        wrong += h264_column(pictures, members[SOURCES * wall : SOURCES * (wall + 4)])
        csrcs = max(csrcs, *(len(parse_header(packet).csrcs) for packet in walls[-1]))
    frames = sum(len(member.coded) for member in members)
    return {
        "people": people, "streams": {"separate": people, "one level": len(columns), "two levels": len(walls)},
        "packets_per_s": {"separate": round(separate / seconds, 1), "one level": round(sum(map(len, columns)) / seconds, 1), "two levels": round(sum(map(len, walls)) / seconds, 1)},
        "us_per_source_frame": {level: round(1e6 * value / frames, 2) for level, value in spent.items()}, "most_csrcs": csrcs, "tiles_mismatching": wrong,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20, help="of each clip")
    parser.add_argument("--mixed", type=int, default=600, help="seconds of mixed frame rates with joins and leaves")
    parser.add_argument("--audience", type=int, default=240, help="how many are in it")
    arguments = parser.parse_args()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    raw = {
        "h261": h261(arguments.seconds, intra=96, factor=1),
        "h261_intra": h261(arguments.seconds, intra=1, factor=3),
        "h264": h264(arguments.seconds),
        "h265": h265(arguments.seconds),
        "mixed": drift(arguments.mixed),
        "audience": audience(arguments.audience, min(4.0, arguments.seconds)),
    }
    found: dict[str, Any] = {figure: raw["h261"][figure] for figure in ("packets_ratio", "bits_ratio", "us_per_source_frame")}
    found |= {"near_mtu_share": raw["h261"]["tiled"]["near_mtu_share"], "tiles_mismatching": sum(one["tiles_mismatching"] for one in raw.values())}
    for key, of in RECEIVERS.items():
        found[key] = (raw[of]["receiver_cpu"] or {}).get("ratio")
    (OUTPUT / "pictures.json").write_text(json.dumps({"commit": commit(), "machine": machine(), "seconds": round(time.monotonic() - began, 1), **raw}, indent=1) + "\n")
    add(found)
    for name, one in raw.items():
        print(f"{name}: {json.dumps(one)}")
    missed = [f"{name} {found[name]}: {least} to {most} wanted" for name, (least, most) in TARGETS.items() if not least <= found[name] <= most]
    print(json.dumps(found), *missed, *(f"{key}: {receiver.ABSENT}" for key in RECEIVERS if found[key] is None), sep="\n")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
