"""`make bench-browsers`: Scallop's evaluation with three real, encrypted browsers in a room; writes build/bench/browsers/results.json.

* Packets and bytes by type, and where each is handled (Scallop, table 1): captured at the edge's interface, where both its sides pass.
* One receiver behind 150 kbit/s: what it and the others see before, during and after (figure 14).
* Loss of 5 % in both directions of one browser: corrupt frames, and whether requests for packets again end.
* Delay of a packet in the edge and in the data plane (figure 19).

planes.py has the first by script, without browsers. Browsers decode and encode on the same processors, which is what limits them here.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import struct
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.runs import ROOT, busy_share, commit
from tests.lab.browser import CHROMIUM, Browser, missing
from tests.lab.processes import Process
from tests.rooms import lab, pictures
from tests.rooms.lab import MEDIA_IP, RoomLab, hears, lobby, report, room_lab, sees

OUTPUT = ROOT / "build/bench/browsers"
ROOM = "meeting"
PEOPLE = (("ann", "caller"), ("bob", "callee"), ("cem", "natcaller"))
NARROW = "150kbit"
_EDGE_PORT = 3478
_RTCP = {200: "SR", 201: "RR", 202: "SDES", 203: "BYE", 204: "APP", 207: "XR"}
_FEEDBACK = {(205, 1): "NACK", (205, 15): "TWCC", (206, 1): "PLI", (206, 4): "FIR", (206, 15): "REMB"}
_NOISE = 3
_LONGEST_S = 1.0  # a packet that is found later is another one
_TRIES = 40


class Packet(NamedTuple):
    """A UDP packet that passed the edge's interface."""

    at: float
    source: tuple[str, int]
    to: tuple[str, int]
    payload: bytes

    @property
    def rtp(self) -> tuple[int, int, int] | None:
        """Payload type, sequence number and SSRC; None: it is none."""
        if len(self.payload) < 12 or self.payload[0] >> 6 != 2 or 192 <= self.payload[1] <= 223:
            return None
        number, _, ssrc = struct.unpack_from("!HII", self.payload, 2)
        return self.payload[1] & 0x7F, number, ssrc

    @property
    def what(self) -> bytes:
        """Of plain RTP, what a copy has in common with the packet, whatever its number: timestamp, SSRC, and the end of the payload."""
        return self.payload[4:12] + self.payload[-64:]


def read(path: Path) -> Iterator[Packet]:
    """The UDP packets of a capture (pcap, Ethernet, IPv4). What the kernel has put together (UDP_GRO) is taken apart again."""
    with path.open("rb") as file:
        magic = struct.unpack("<I", file.read(24)[:4])[0]
        unit = 1e-9 if magic == 0xA1B23C4D else 1e-6
        while len(head := file.read(16)) == 16:
            seconds, part, length, _ = struct.unpack("<IIII", head)
            data = file.read(length)
            if len(data) < 42 or data[12:14] != b"\x08\x00" or data[23] != 17:
                continue
            start = 14 + 4 * (data[14] & 15)
            source, to = (".".join(map(str, data[at : at + 4])) for at in (26, 30))
            source_port, to_port = struct.unpack_from("!HH", data, start)
            for payload in apart(data[start + 8 :]):
                yield Packet(seconds + part * unit, (source, source_port), (to, to_port), payload)


def apart(payload: bytes) -> list[bytes]:
    """RTP packets of one stream and one length that follow each other, and a last one that may be shorter."""
    if len(payload) < 1400 or payload[0] >> 6 != 2:
        return [payload]
    number, ssrc = struct.unpack_from("!H", payload, 2)[0], payload[8:12]
    at = payload.find(ssrc, 24)
    while at >= 0:
        size = at - 8
        if payload[size] >> 6 == 2 and struct.unpack_from("!H", payload, size + 2)[0] == (number + 1) & 0xFFFF:
            return [payload[start : start + size] for start in range(0, len(payload), size)]
        at = payload.find(ssrc, at + 1)
    return [payload]


def rtcp_kinds(payload: bytes, *, encrypted: bool) -> str:
    """What an RTCP packet has in it; of SRTCP only the first header is legible."""
    found, at = [], 0
    while at + 4 <= len(payload):
        first, kind, length = struct.unpack_from("!BBH", payload, at)
        found.append(_RTCP.get(kind) or _FEEDBACK.get((kind, first & 31), f"{kind}/{first & 31}"))
        at += 4 * (length + 1)
        if encrypted:
            break
    names = [name for name in dict.fromkeys(found) if name != "SDES"]
    return "/".join(names) or "SDES"


def kind_of(payload: bytes, codecs: dict[int, str], *, encrypted: bool) -> str:
    """The type of a packet, as Scallop's table 1 has them."""
    if payload[0] < 4:
        return "STUN"
    if 20 <= payload[0] < 64:
        return "DTLS"
    if 192 <= payload[1] <= 223:
        return f"RTCP {rtcp_kinds(payload, encrypted=encrypted)}"
    return f"RTP {codecs.get(payload[1] & 0x7F, 'retransmission')}"


def table(packets: list[Packet], codecs: dict[int, str], seconds: float) -> dict[str, Any]:
    """Packets and bytes by side, direction and type: for each participant and second, and what part is handled where."""
    count: dict[str, Counter[str]] = defaultdict(Counter)
    octets: dict[str, Counter[str]] = defaultdict(Counter)
    for one in packets:
        if one.to == (MEDIA_IP, _EDGE_PORT):
            way = "browser to edge"
        elif one.source == (MEDIA_IP, _EDGE_PORT):
            way = "edge to browser"
        elif one.source[0] == MEDIA_IP:
            way = "edge to data plane"
        else:
            way = "data plane to edge"
        kind = kind_of(one.payload, codecs, encrypted="browser" in way)
        count[way][kind] += 1
        octets[way][kind] += len(one.payload)
    found: dict[str, Any] = {}
    for way, kinds in count.items():
        total, size = sum(kinds.values()), sum(octets[way].values())
        found[way] = {
            kind: {
                "packets": number, "percent": round(100 * number / total, 2), "per_participant_s": round(number / seconds / len(PEOPLE), 2),
                "kbytes": round(octets[way][kind] / 1000, 1), "percent_of_bytes": round(100 * octets[way][kind] / size, 2),
                "handled_by": handled_by(way, kind),
            }
            for kind, number in sorted(kinds.items())
        }  # fmt: skip
    sent = found.get("edge to data plane", {})
    control = {key: sum(one[key] for kind, one in sent.items() if one["handled_by"] == "agent") for key in ("packets", "kbytes")}
    return {"by_way": found, "agent_percent_of_packets": _percent(control["packets"], sent, "packets"), "agent_percent_of_bytes": _percent(control["kbytes"], sent, "kbytes")}


def _percent(part: float, of: dict[str, Any], key: str) -> float:
    return round(100 * part / max(sum(one[key] for one in of.values()), 1e-9), 2)


def handled_by(way: str, kind: str) -> str:
    """Where a packet ends, or what passes it on."""
    if "browser" in way:
        return "edge, then data plane" if kind.startswith("RTP") and "retransmission" not in kind else "edge"
    return "data plane" if kind.startswith("RTP") else "agent"


# -- delay -------------------------------------------------------------------------------------------------------------


def delays(packets: list[Packet]) -> dict[str, Any]:
    """Of media packets, in µs: in the edge towards the data plane, in the data plane and back at the edge's interface, and in the edge towards browsers (its pacing included)."""
    came: dict[tuple[int, int], float] = {}
    sent: dict[bytes, float] = {}
    arrived: set[tuple[tuple[str, int], bytes]] = set()
    up, through = [], []
    copies: dict[tuple[tuple[str, int], int], dict[int, float]] = defaultdict(dict)
    out: dict[tuple[tuple[str, int], int], dict[int, float]] = defaultdict(dict)
    for one in packets:
        if (head := one.rtp) is None:
            continue
        _, number, ssrc = head
        key = ssrc, number
        if one.to == (MEDIA_IP, _EDGE_PORT):
            came.setdefault(key, one.at)
        elif one.source == (MEDIA_IP, _EDGE_PORT):
            out[one.to, ssrc].setdefault(number, one.at)
        elif one.source[0] == MEDIA_IP:
            sent.setdefault(one.what, one.at)
            if key in came and one.at - came[key] < _LONGEST_S:
                up.append(one.at - came.pop(key))
        else:
            copies[one.to, ssrc].setdefault(number, one.at)
            if one.what in sent and (one.to, one.what) not in arrived:  # later ones were asked for again
                arrived.add((one.to, one.what))
                through.append(one.at - sent[one.what])
    down = [value for stream in copies.values() for value in _towards(stream, out)]
    return {"edge, from browser": quantiles(up), "data plane": quantiles(through), "edge, to browser": quantiles(down)}


def _towards(copies: dict[int, float], out: dict[tuple[tuple[str, int], int], dict[int, float]]) -> list[float]:
    """Times that the copies of one stream spend in the edge: it moves their numbers by a constant, which is the one that fits the most of them."""
    best: list[float] = []
    if len(copies) < 50:
        return best
    first, begun = next(iter(copies.items()))
    for stream in out.values():
        near = [number for number, at in stream.items() if 0 <= at - begun < _LONGEST_S / 2][:_TRIES]
        for candidate in near:
            moved = candidate - first
            found = [stream[number] - at for old, at in copies.items() if (number := (old + moved) & 0xFFFF) in stream and 0 <= stream[number] - at < _LONGEST_S]
            if len(found) > len(best) or (len(found) == len(best) and sum(found) < sum(best)):
                best = found
    return best if len(best) > 0.9 * len(copies) else []


def quantiles(values: list[float]) -> dict[str, Any]:
    """In µs."""
    ordered = sorted(values)
    if not ordered:
        return {"packets": 0}
    return {"packets": len(ordered), **{name: round(1e6 * ordered[int(share * (len(ordered) - 1))]) for name, share in (("p50", 0.5), ("p99", 0.99))}}


# -- browsers ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def captured(room: RoomLab, path: Path) -> Iterator[None]:
    """Write what passes the edge's interface."""
    capture = Process(
        room.topology, "media", "tcpdump", ["tcpdump", "-i", "eth0", "-n", "-U", "-B", "32768", "--time-stamp-precision=nano", "-s", "0", "-w", str(path), "udp"], path.with_suffix(".log")
    ).start()
    capture.await_log("listening on")
    try:
        yield
    finally:
        capture.stop()


def codecs(room: RoomLab) -> dict[int, str]:
    """Names of payload types, which all three have alike."""
    return {
        one["codecs"][0]["payload_type"]: f"{medium}, {one['codecs'][0]['encoding']}"
        for member in room.conference(ROOM)["participants"]
        for one in member["media"]
        if one["codecs"]
        for medium in [one["medium"].partition("/")[0]]
    }


def seen(browsers: list[Browser], before: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What each browser got of each other's pictures since `before`."""
    found: dict[str, Any] = {}
    for browser in browsers:
        for key, line in report(browser)["lines"].items():
            old = before[browser.name].get(key)
            if line is None or old is None or line["kind"] != "video":
                continue
            found[f"{browser.name} sees {key.partition('/')[0]}"] = {
                "frames_s": round((line["frames"] - old["frames"]) / seconds, 1), "kbit_s": round(8e-3 * (line["bytes"] - old["bytes"]) / seconds),
                **{name: line[name] - old[name] for name in ("freezes", "packetsLost", "nacks", "plis")},
            }  # fmt: skip
    return found


def lines(browsers: list[Browser]) -> dict[str, Any]:
    return {browser.name: report(browser)["lines"] for browser in browsers}


def phase(browsers: list[Browser], seconds: float) -> dict[str, Any]:
    """What is seen in so many seconds."""
    before, begun = lines(browsers), time.monotonic()
    time.sleep(seconds)
    return seen(browsers, before, time.monotonic() - begun)


def frames(browsers: list[Browser]) -> dict[str, int]:
    """Frames that were read so far, and those that were not what somebody shows."""
    all_of = [one for browser in browsers for one in pictures.watched(browser).values()]
    return {"read": sum(one["seen"] for one in all_of), "corrupt": sum(one["corrupt"] for one in all_of)}


def run(seconds: float, settle: float) -> dict[str, Any]:
    """All of it, in one meeting."""
    with tempfile.TemporaryDirectory() as work, room_lab(Path(work)) as room:
        browsers = [room.browser(host, name, CHROMIUM) for name, host in PEOPLE]
        for whose, browser in enumerate(browsers, 1):
            lobby(browser, room.link(ROOM)["page"])
            pictures.show(browser, whose, noise=_NOISE)
            browser.click("#join")
            browser.await_that("Boolean(room.session?.path)", 60)
            pictures.watch(browser)
        for browser in browsers:
            others = [one.name for one in browsers if one is not browser]
            sees(browser, *others, seconds=60)
            hears(browser, *others, seconds=60)
        print("three browsers see and hear each other", flush=True)
        time.sleep(settle)  # bandwidth estimates rise

        path = Path(work) / "meeting.pcap"
        with captured(room, path):
            before = phase(browsers, seconds)
        packets = list(read(path))
        found: dict[str, Any] = {"table": table(packets, codecs(room), seconds), "delay_us": delays(packets)}
        print(json.dumps(found["delay_us"]), flush=True)

        link = ("nat", "tc", "qdisc")
        room.topology.run(*link, "add", "dev", "lan", "root", "tbf", "rate", NARROW, "burst", "4kb", "latency", "300ms")
        time.sleep(settle)
        narrow = phase(browsers, seconds)
        room.topology.run(*link, "del", "dev", "lan", "root")
        time.sleep(settle)
        found["narrow"] = {"link": NARROW, "behind it": "cem", "before": before, "during": narrow, "after": phase(browsers, seconds)}
        print("one was behind a narrow link", flush=True)

        whole = frames(browsers)
        room.topology.run("nat", "nft", "-f", "-", stdin="table inet loss {\n chain forward { type filter hook forward priority 0; numgen random mod 100 < 5 drop; }\n}")
        lossy = phase(browsers, seconds)
        room.topology.run("nat", "nft", "delete", "table", "inet", "loss")
        time.sleep(3)
        quiet = phase(browsers, 4)  # who still asks for packets now asks for ever
        read_then = frames(browsers)
        found["loss"] = {
            "percent": 5, "both directions of": "cem", "seen": lossy, "frames_read": read_then["read"] - whole["read"], "corrupt_frames": read_then["corrupt"] - whole["corrupt"],
            "nacks_in_4_s_afterwards": sum(one["nacks"] for one in quiet.values()), "afterwards": quiet,
        }  # fmt: skip
        for browser in browsers:
            browser.click("#leave")
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="length of each part [20]")
    parser.add_argument("--settle", type=float, default=15, help="seconds that estimates get to change [15]")
    given = parser.parse_args()
    if lacks := "; ".join(filter(None, (missing(CHROMIUM), lab.lacking(), "" if os.geteuid() == 0 else "needs root"))):
        print(lacks, file=sys.stderr)
        return 1
    busy = busy_share()
    found = run(given.seconds, given.settle)
    facts = {
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "kernel": platform.release(),
        "processors": os.cpu_count(),
        "busy_before": round(busy, 2),
        "load": os.getloadavg()[0],
        "seconds": given.seconds,
    }
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "results.json").write_text(json.dumps({"facts": facts, **found}, indent=1) + "\n")
    for way, kinds in found["table"]["by_way"].items():
        print(way)
        for kind, one in kinds.items():
            print(f"  {kind:<24}{one['packets']:>8} {one['percent']:>6} % {one['per_participant_s']:>8}/s {one['kbytes']:>9} kB {one['percent_of_bytes']:>6} %  {one['handled_by']}")
    print(json.dumps({"agent_percent_of_packets": found["table"]["agent_percent_of_packets"], "delay_us": found["delay_us"], "narrow": found["narrow"], "loss": found["loss"]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
