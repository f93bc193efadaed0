"""An audience in two levels, with a real agent, softswitch and four mixers; adds to build/bench/mixer/results.json.

    python -m bench.mixer.levels [--people N] [--rate N] [--receivers N]

Sources of QCIF that are coded intra play all the time; two viewers get the streams, and as many further receivers as are asked for, which nobody reads: the kernel counts what comes to them. Every tile has to end with a picture of its source: once all
have one, after a mixer of columns is killed, after the one that joins them is, and after somebody has left and come back. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for _folder in (".", "operator"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))

from bench.mixer import add
from bench.mixer.pictures import KINDS, h264_clip
from bench.runs import commit, machine
from shunt.admin import AdminClient
from tests.agent_conference.lab import ROOM
from tests.lab.processes import Process, open_socket
from tests.lab.topology import CALLER_IP, Topology
from tests.mixer_daemon.process import _Connection
from tests.tiling.lab import H264, MixingLab, Receiver
from tests.tools.conference import rtcp
from tests.tools.conference.rtp import parse_header
from tests.tools.tiling import clips, column, rtp
from tests.tools.tiling.clips import Clip

MIXERS = ("caller", "callee", "caller2", "callee2")
COLUMNS, VIEWERS, FIRST_PORT, BUFFER = 4, 2, 46_000, 64 << 20
SO_RCVBUFFORCE, SO_MEMINFO, DROPS = 33, 55, 8
ATTEMPTS = 5


def processor_s(process: Process) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle_s() -> float:
    """Seconds in which processors had nothing to do, since the start of the machine."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return int(fields[4]) / os.sysconf("SC_CLK_TCK")


def gaps(packets: list[bytes]) -> int:
    """Numbers that are missing between packets of a stream."""
    numbers = [int.from_bytes(packet[2:4], "big") for packet in packets]
    return sum((after - before - 1) & 0xFFFF for before, after in itertools.pairwise(numbers))


class Audience(MixingLab):
    """Sources that play from one thread, and viewers."""

    def __init__(self, topology: Topology, work: Path, clip_of: list[Clip], rate: int) -> None:
        super().__init__(topology, work, MIXERS)
        self.settings["softswitch"] |= {"conference_copies": 4000, "capacity": 4000}
        self.clips, self.rate = clip_of, rate
        self.sources: dict[str, tuple[socket.socket, tuple[str, int], rtp.Sender, Clip]] = {}
        self.viewers: list[Receiver] = []
        self.unread: list[socket.socket] = []
        self._ports, self._over = iter(range(FIRST_PORT, 65_000, 2)), threading.Event()
        self._player = threading.Thread(target=self._play, daemon=True)

    def join(self, names: list[str], direction: str) -> None:
        medium = {"medium": "video", "direction": direction, "codecs": [{"payload_type": H264, "encoding": "H264", "clock_rate": 90_000}]}

        async def joined() -> list[Any]:
            async with AdminClient(str(self.socket)) as client:
                return [await client.join(ROOM, name, [medium], signalled=[CALLER_IP]) for name in names]  # type: ignore[list-item]

        for name, answer in zip(names, asyncio.run(joined()), strict=True):
            made = open_socket(self.topology, "caller", socket.AF_INET, socket.SOCK_DGRAM)
            port = next(self._ports)
            made.bind(("0.0.0.0", port))
            host, relay = answer["media"][0]["address"].rsplit(":", 1)
            to = host, int(relay)
            if direction == "recvonly":
                made.sendto(rtcp.build_rr(port), to)
                if len(self.viewers) == VIEWERS:
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                    self.unread.append(made)
                    continue
                made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
                self.viewers.append(Receiver(made))
                self.viewers[-1].relay = to  # type: ignore[attr-defined]
            else:
                self.sources[name] = made, to, rtp.Sender(0x10000 + port, H264), self.clips[len(self.sources) % len(self.clips)]

    def play(self) -> None:
        self._player.start()

    def _play(self) -> None:
        began, number = time.monotonic(), 0
        while not self._over.is_set():
            for made, to, sender, clip in list(self.sources.values()):
                for packet in sender.packets(rtp.h264_payloads(clip.coded[number % len(clip.coded)]), time.monotonic() - began):
                    made.sendto(packet, to)
            number += 1
            self._over.wait(max(0.005, began + number / self.rate - time.monotonic()))

    def settled(self) -> bool:
        """Whether every source has a tile that a mixer makes and has a picture of."""
        tiling = self.room()["tiling"]
        columns = [one for stream in tiling["streams"] for one in stream["columns"]]
        shown = [tile for stream in tiling["streams"] for tile in stream["tiles"] if tile["x"] is not None and tile["pictures"] and tile["refusal"] is None]
        return tiling["mixer"] is not None and all(one["mixer"] for one in columns) and len(shown) == len(self.sources)

    def makers(self) -> set[str]:
        """The mixers of columns."""
        return {self.name_of(one["mixer"]) for stream in self.room()["tiling"]["streams"] for one in stream["columns"]}

    def mismatching(self) -> int | None:
        """Tiles that end with no picture of their source, of what the first viewer decodes from the key frame that it asks for. None: it has lost packets each time."""
        for _ in range(ATTEMPTS):
            if (wrong := self._mismatching()) is not None:
                return wrong
        return None

    def _mismatching(self) -> int | None:
        """The same; None: the viewer has lost packets meanwhile."""
        viewer, wrong = self.viewers[0], 0
        before = {ssrc: len(viewer.packets.get(ssrc, [])) for ssrc in self.ssrcs()}
        for ssrc in before:
            viewer.socket.sendto(rtcp.build_pli(1, ssrc), viewer.relay)  # type: ignore[attr-defined]
        time.sleep(2.5)
        for stream in self.room()["tiling"]["streams"]:
            packets = list(viewer.packets.get(stream["ssrc"], []))
            ends = [at + 1 for at, (_, packet) in enumerate(packets) if parse_header(packet).marker]
            begin = max((at for at in ends if at <= before.get(stream["ssrc"], 0)), default=0)
            if gaps([packet for _, packet in packets[begin:]]):
                return None
            coded = [rtp.h264_picture(payloads) for _, payloads, _ in rtp.pictures(packets[begin : ends[-1] if ends else 0])]
            key = next((at for at, picture in enumerate(coded) if any(unit[0] & 31 == 5 for unit in rtp.h264_units(picture))), len(coded))
            shown = clips.decode("h264", coded[key:])[-1:]
            for tile in stream["tiles"]:
                own = self.sources[tile["participant"]][3].pictures
                wrong += not shown or not any(clips.same(column.tile(shown, tile["place"])[0], picture) for picture in own)
        return wrong

    def arrived(self) -> list[int]:
        """Packets that have come to each receiver: to viewers those that were read, to others those for which there was no room."""
        counted = [struct.unpack("9I", made.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))[DROPS] for made in self.unread]
        return [sum(map(len, list(viewer.packets.values()))) for viewer in self.viewers] + counted

    def trials(self) -> dict[str, int]:
        """How decoding a picture of each source has gone, of all mixers together."""
        found = [self.status(name)["trial_decode"] for name in self.mixers]
        return {key: sum(one[key] for one in found) for key in ("decoded", "undecodable", "unavailable")}

    def status(self, name: str) -> dict[str, Any]:
        connection = _Connection(str(self.controls[name]))
        connection.request("GET", "/v1/status")
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def stop(self) -> None:
        self._over.set()
        self._player.join()
        for viewer in self.viewers:
            viewer.close()
        for made in self.unread:
            made.close()
        super().stop()


def seconds_until(lab: Audience, look: Callable[[], bool], patience: float = 90) -> float:
    began = time.monotonic()
    while not look():
        if time.monotonic() - began > patience:
            sys.exit(f"not settled within {patience} s: {json.dumps(lab.room()['tiling'])}\n{lab.agent.tail()}")
        time.sleep(0.05)
    return round(time.monotonic() - began, 2)


def measure(lab: Audience, people: int, receivers: int) -> dict[str, Any]:
    names = [f"p{number}" for number in range(people)]
    lab.ask(lambda client: client.set_tiling(ROOM, "H264", columns=COLUMNS, payload_type=H264))
    lab.join([f"viewer{number}" for number in range(VIEWERS + receivers)], "recvonly")
    lab.join(names, "sendonly")
    lab.play()
    found: dict[str, Any] = {"load": os.getloadavg()[0], "settled_s": seconds_until(lab, lab.settled)}
    found["copies"] = len(lab.room()["subscriptions"])
    time.sleep(3)
    arrived, idle = lab.arrived(), idle_s()
    read = {ssrc: len(packets) for ssrc, packets in list(lab.viewers[0].packets.items())}
    spent, began = {name: processor_s(one) for name, one in {"agent": lab.agent, **lab.mixers}.items()}, time.monotonic()
    time.sleep(10)
    found["core_percent"] = {name: round(100 * (processor_s(one) - spent[name]) / (time.monotonic() - began), 1) for name, one in {"agent": lab.agent, **lab.mixers}.items()}
    elapsed = time.monotonic() - began
    rates = [(after - before) / elapsed for before, after in zip(arrived, lab.arrived(), strict=True)]
    found["packets_per_s"] = {"receivers": len(rates), "least": round(min(rates)), "most": round(max(rates)), "altogether": round(sum(rates))}
    found["lost_packets"] = sum(gaps([packet for _, packet in list(packets)[read.get(ssrc, 0) :]]) for ssrc, packets in list(lab.viewers[0].packets.items()))
    found["idle_percent"] = round(100 * (idle_s() - idle) / elapsed / (os.cpu_count() or 1), 1)
    found["trials"] = lab.trials()
    found["mismatching"] = [lab.mismatching()]
    last, streams = lab.placed(), lab.ssrcs()
    lost = min(lab.makers() - {last})
    lab.mixers[lost].kill()
    found["columns_again_s"] = seconds_until(lab, lambda: lost not in lab.makers() and lab.settled())
    time.sleep(2)
    found["mismatching"].append(lab.mismatching())
    found["streams_went_on"] = lab.ssrcs() == streams
    lab.start_mixer(lost)
    time.sleep(1)
    lab.mixers[last].kill()
    found["streams_again_s"] = seconds_until(lab, lambda: lab.placed() not in ("", last) and lab.settled())
    time.sleep(2)
    found["mismatching"].append(lab.mismatching())
    gone = names[people // 2]
    lab.ask(lambda client: client.leave(ROOM, gone))
    lab.sources.pop(gone)
    found["left_s"] = seconds_until(lab, lambda: gone not in lab.layout())
    lab.join([gone], "sendonly")
    found["joined_s"] = seconds_until(lab, lab.settled)
    time.sleep(2)
    found["mismatching"].append(lab.mismatching())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--people", type=int, default=240, help="how many send")
    parser.add_argument("--rate", type=int, default=8, help="pictures a second of each")
    parser.add_argument("--receivers", type=int, default=0, help=f"how many get the streams besides {VIEWERS} that are looked at")
    arguments = parser.parse_args()
    distinct = [h264_clip(list(KINDS)[number % 3], arguments.rate, 10 / arguments.rate, seed=number + 1, start=0, quantiser=42) for number in range(12)]
    with Topology("audience") as topology, tempfile.TemporaryDirectory() as work:
        lab = Audience(topology, Path(work), distinct, arguments.rate)
        try:
            lab.start()
            lab.create()
            found = measure(lab, arguments.people, arguments.receivers)
        finally:
            lab.stop()
    add({"levels": {"commit": commit(), "machine": machine(), "people": arguments.people, "rate": arguments.rate, **found}})
    print(json.dumps(found))
    sys.exit(0 if all(wrong == 0 for wrong in found["mismatching"]) else 1)


if __name__ == "__main__":
    main()
