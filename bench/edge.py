"""`make bench-edge`: processor time of the edge for a copy that goes to a browser, its delay, Janus and LiveKit beside it; writes build/bench/edge/results.json.

Browsers are str0m's (bench/edge-load), with DTLS, SRTP, TWCC and receiver reports as real ones; server, browsers and sender are on one machine over loopback.
What is counted is the server's own processor time (all threads, by the scheduler), for each packet that a browser has decrypted. The edge gets each copy as a
packet of its own from the plain side, as the data plane sends it; Janus (streaming plugin) gets one packet for all viewers and makes the copies itself, and so
does LiveKit, which gets it from a browser. Edge and Janus run at the same time.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import http.client
import itertools
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.livekit import LiveKit
from bench.runs import ROOT, busy_share, commit
from tests.edge.process import Edge

LOAD = ROOT / "target/release/bench-edge-load"
OUTPUT = ROOT / "build/bench/edge"
VIDEO, AUDIO = [0x10, 0x00, 0, 0, 0, 0, 0, 0], [0] * 8  # a VP8 payload that begins a key frame; Opus has no head
WARM_S = 12.0
TURNS = 8  # of measurements beside a peer
JANUS_HTTP, JANUS_RTP = 8089, 45_002


class Load:
    """The load program, told line by line."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        """address: where the browsers are."""
        self._process = subprocess.Popen([LOAD, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._asking = threading.Lock()

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(f"{op}: {answer['error']}")
        return answer

    def await_connected(self, browsers: int) -> None:
        deadline = time.monotonic() + 60
        while (found := self.ask("state")["connected"]) < browsers:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{found} of {browsers} browsers are connected after 60 s")
            time.sleep(0.1)

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def cpu_ns(pid: int) -> int:
    """Processor time of all threads of a process."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


def measure(load: Load, pid: int, seconds: float) -> dict[str, Any]:
    """Processor time for each packet that browsers have received in so many seconds."""
    load.ask("reset")
    before, began = cpu_ns(pid), time.monotonic()
    time.sleep(seconds)
    found = load.ask("report")
    used, elapsed = cpu_ns(pid) - before, time.monotonic() - began
    packets = max(found["packets"], 1)
    return {
        "copy_ns": round(used / packets), "packets": found["packets"], "packets_per_s": round(packets / elapsed), "server_core": round(used / 1e9 / elapsed, 3),
        "delay_us_p50": round((found["p50_ns"] or 0) / 1000), "delay_us_p99": round((found["p99_ns"] or 0) / 1000),
    }  # fmt: skip


def kernel_alone(browsers: int, streams: int, size: int, rate: float, burst: int) -> int:
    """Nanoseconds of a packet that comes in and goes out as at an edge, with nothing done to it."""
    with Load() as load:
        asked = {"payload_type": 96, "size": size, "rate": rate, "burst": burst, "step": 3000, "head": VIDEO}
        found: int = load.ask("floor", browsers=browsers, streams=streams, **{"from": "127.0.0.1:0"}, **asked)["copy_ns"]
        return found


@contextlib.contextmanager
def edge_serving(browsers: int, streams: int, kind: str, size: int, rate: float, burst: int) -> Iterator[tuple[Load, int]]:
    """Browsers at an edge, each of which receives so many streams, of so many packets a second, in frames of so many; and the edge's process."""
    limits = {"sessions": browsers, "media": streams, "unknown_packets": 10_000, "receive_bitrate": 200_000_000}
    last = 26_000 + 2 * browsers * streams + 99
    with Load() as load, Edge(listen="127.0.0.1:23478", ports=f"26000-{last}", limits=limits) as edge:
        source = "127.0.0.1:41999"
        targets, payload_type = [], 0
        for number in range(browsers):
            offer = load.ask("offer", id=number, audio=streams if kind == "audio" else 0, video=streams if kind == "video" else 0)["offer"]
            answer = edge.create(offer, f"browser-{number}", codecs=["opus", "VP8"])
            load.ask("accept", id=number, answer=answer["answer"])
            named = [{"mid": medium["mid"], "rtp": source} for medium in answer["media"]]
            edge.ask("PUT", f"/v1/sessions/{answer['session']}/media", {"media": named})
            targets += [medium["rtp"] for medium in answer["media"]]
            payload_type = answer["media"][0]["codecs"][0]["payload_type"]
        load.await_connected(browsers)
        head, step = (VIDEO, 3000) if kind == "video" else (AUDIO, 960)
        load.ask("send", **{"from": source}, to=targets, payload_type=payload_type, size=size, rate=rate, burst=burst, step=step, head=head)
        yield load, edge.process.pid
        load.ask("stop")


def at_edge(browsers: int, streams: int, kind: str, size: int, rate: float, burst: int, seconds: float) -> dict[str, Any]:
    """What such browsers cost."""
    with edge_serving(browsers, streams, kind, size, rate, burst) as (load, pid):
        time.sleep(WARM_S)
        found = measure(load, pid, seconds)
    due = rate * browsers * streams * seconds
    return found | {"browsers": browsers, "streams": streams, "size": size, "share_of_due": round(found["packets"] / due, 3)}


def _own_address() -> str:
    """An address of this host that is not the loopback's, which Janus does not offer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.200", 9))
        address: str = sock.getsockname()[0]
        return address


class Janus:
    """Debian's Janus with one mount point, encryption on."""

    def __init__(self, kind: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="janus-"))
        codec = 'videocodec = "vp8"' if kind == "video" else 'audiocodec = "opus"'
        rtpmap = 'videopt = 96\n  videortpmap = "VP8/90000"' if kind == "video" else 'audiopt = 111\n  audiortpmap = "opus/48000/2"'
        unused = ",".join(f"libjanus_{name}.so" for name in "audiobridge duktape echotest lua nosip recordplay sip textroom videocall videoroom voicemail".split())
        (self._folder / "janus.jcfg").write_text(
            f'general: {{ debug_level = 2, session_timeout = 0 }}\nplugins: {{ disable = "{unused}" }}\n'
            'transports: { disable = "libjanus_mqtt.so,libjanus_nanomsg.so,libjanus_pfunix.so,libjanus_rabbitmq.so,libjanus_websockets.so" }\n'
            'media: { rtp_port_range = "50000-59999" }\n'
            f'nat: {{ ice_enforce_list = "{_own_address()}", ice_lite = true }}\n'
        )
        (self._folder / "janus.transport.http.jcfg").write_text(f'general: {{ json = "compact", base_path = "/janus", http = true, port = {JANUS_HTTP}, ip = "127.0.0.1", https = false }}\n')
        (self._folder / "janus.plugin.streaming.jcfg").write_text(
            f'mount: {{\n  type = "rtp"\n  id = 1\n  {kind} = true\n  {kind}port = {JANUS_RTP}\n  {kind}iface = "127.0.0.1"\n  {rtpmap}\n  {codec}\n}}\n'
        )
        self.process = subprocess.Popen(["janus", "-F", str(self._folder), "-C", str(self._folder / "janus.jcfg")], stdout=(self._folder / "log").open("w"), stderr=subprocess.STDOUT)
        self._transactions = itertools.count()
        deadline = time.monotonic() + 20
        while True:
            try:
                self._session = self._post("", {"janus": "create"})["data"]["id"]
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise RuntimeError(f"Janus does not start: {(self._folder / 'log').read_text()[-2000:]}") from None
                time.sleep(0.2)

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", JANUS_HTTP, timeout=40)
        try:
            connection.request(method, "/janus" + path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def _post(self, path: str, message: dict[str, Any]) -> Any:
        answer = self._request("POST", path, message | {"transaction": str(next(self._transactions))})
        if answer["janus"] == "error":
            raise RuntimeError(f"Janus: {message}: {answer['error']}")
        return answer

    def view(self, load: Load, number: int) -> None:
        """A browser that watches the mount point."""
        handle = self._post(f"/{self._session}", {"janus": "attach", "plugin": "janus.plugin.streaming"})["data"]["id"]
        self._post(f"/{self._session}/{handle}", {"janus": "message", "body": {"request": "watch", "id": 1}})
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for event in self._request("GET", f"/{self._session}?maxev=20"):
                if event.get("sender") == handle and "jsep" in event:
                    answer = load.ask("answer", id=number, offer=event["jsep"]["sdp"])["answer"]
                    self._post(f"/{self._session}/{handle}", {"janus": "message", "body": {"request": "start"}, "jsep": {"type": "answer", "sdp": answer}})
                    return
        raise RuntimeError("Janus made no offer")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def janus_serving(browsers: int, kind: str, size: int, rate: float, burst: int) -> Iterator[tuple[Load, int]]:
    """Viewers of one mount point of Janus, and its process."""
    with Load(_own_address()) as load:
        janus = Janus(kind)
        try:
            for number in range(browsers):
                janus.view(load, number)
            load.await_connected(browsers)
            head, step, payload_type = (VIDEO, 3000, 96) if kind == "video" else (AUDIO, 960, 111)
            load.ask("send", **{"from": "127.0.0.1:0"}, to=[f"127.0.0.1:{JANUS_RTP}"], payload_type=payload_type, size=size, rate=rate, burst=burst, step=step, head=head)
            yield load, janus.process.pid
        finally:
            janus.stop()


def beside_janus(browsers: int, size: int, rate: float, burst: int, seconds: float) -> dict[str, Any]:
    """The edge and Janus at the same time, so that what else the machine does is the same for both: one video for each browser."""
    with edge_serving(browsers, 1, "video", size, rate, burst) as edge, janus_serving(browsers, "video", size, rate, burst) as janus:
        time.sleep(WARM_S)
        turns: list[dict[str, Any]] = []
        for _ in range(TURNS):
            both = (edge, janus)
            for load, _pid in both:
                load.ask("reset")
            before = [cpu_ns(pid) for _load, pid in both]
            time.sleep(seconds / 2)
            packets = [load.ask("report")["packets"] for load, _pid in both]
            costs = [(cpu_ns(pid) - was) / max(count, 1) for (_load, pid), was, count in zip(both, before, packets, strict=True)]
            turns.append({"edge_ns": round(costs[0]), "janus_ns": round(costs[1]), "packets": packets, "ratio": round(costs[1] / costs[0], 2)})
        return {"janus_ratio": round(statistics.median(turn["ratio"] for turn in turns), 2), "turns": turns}


def at_livekit(browsers: int, size: int, rate: float, burst: int, seconds: float) -> dict[str, Any]:
    """Subscribers of a video that one more browser publishes in a room of LiveKit."""
    with Load() as load:
        livekit = LiveKit("127.0.0.1")
        try:
            load.ask("accept", id=browsers, answer=livekit.publish(load.ask("publish", id=browsers)["offer"]))
            load.await_connected(1)
            load.ask("feed", id=browsers, size=size, rate=rate, burst=burst, step=3000, head=VIDEO)
            for number in range(browsers):
                livekit.view(f"browser-{number}", lambda offer, number=number: load.ask("answer", id=number, offer=offer)["answer"])
            load.await_connected(1 + browsers)
            time.sleep(WARM_S)
            found = measure(load, livekit.process.pid, seconds)
            return found | {"browsers": browsers, "streams": 1, "size": size, "share_of_due": round(found["packets"] / (rate * browsers * seconds), 3)}
        finally:
            livekit.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="length of each measurement [10]")
    parser.add_argument("--browsers", type=int, default=20, help="browsers of the measurements of cost [20]")
    arguments = parser.parse_args()
    seconds, browsers = arguments.seconds, arguments.browsers
    steps: dict[str, dict[str, Any]] = {}
    busy = busy_share()

    def step(name: str, found: dict[str, Any]) -> dict[str, Any]:
        print(f"{name}: {json.dumps(found)}", flush=True)
        steps[name] = found
        return found

    # Each browser receives four videos of 25 frames of four packets a second, or eight voices.
    # The tag of GCM and the extensions of a hop make a packet of 1,200 octets one of about 1,250.
    floor = step("the kernel alone, 1,250 octets", {"copy_ns": kernel_alone(browsers, 4, 1250, 100, 4)})
    video = step("edge, 1,200 octets", at_edge(browsers, 4, "video", 1200, 100, 4, seconds))
    step("the kernel alone, 1,250 octets, six times as many", {"copy_ns": kernel_alone(browsers, 4, 1250, 600, 4)})
    busy_video = step("edge, 1,200 octets, six times as many", at_edge(browsers, 4, "video", 1200, 600, 4, seconds))
    audio = step("edge, 160 octets", at_edge(browsers, 8, "audio", 160, 50, 1, seconds))
    alone = step("edge, one browser", at_edge(1, 1, "video", 1200, 100, 4, seconds))
    # Of peers as many copies a second to as many browsers: the edge's load in one stream.
    ratios: dict[str, float | None] = {"janus_ratio": None, "livekit_ratio": None}
    reasons = {"janus_ratio": "" if shutil.which("janus") else "it is not installed (Debian package janus)", "livekit_ratio": LiveKit.missing()}
    if not reasons["livekit_ratio"]:
        ours = step("edge, 1,200 octets, one stream", at_edge(browsers, 1, "video", 1200, 400, 4, seconds))
    if not reasons["janus_ratio"]:
        ratios["janus_ratio"] = step("edge and Janus at the same time", beside_janus(browsers, 1200, 400, 4, seconds))["janus_ratio"]
    if not reasons["livekit_ratio"]:
        livekit = step(f"{LiveKit.version()}, 1,200 octets", at_livekit(browsers, 1200, 400, 4, seconds))
        ratios["livekit_ratio"] = round(livekit["copy_ns"] / ours["copy_ns"], 2)
    results = {
        "copy_ns_1200": video["copy_ns"], "copy_ns_1200_busy": busy_video["copy_ns"], "copy_ns_160": audio["copy_ns"], **ratios,
        "kernel_ns_1200": floor["copy_ns"], "delay_us_p50": alone["delay_us_p50"], "delay_us_p99": alone["delay_us_p99"],
        "reasons": {name: reason for name, reason in reasons.items() if reason},
        "commit": commit(), "date": datetime.date.today().isoformat(), "machine": {"kernel": platform.release(), "processors": os.cpu_count(), "busy_before": round(busy, 2)},
        "steps": steps,
    }  # fmt: skip
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps({key: results[key] for key in ("copy_ns_1200", "copy_ns_1200_busy", "kernel_ns_1200", "copy_ns_160", "janus_ratio", "livekit_ratio", "delay_us_p50", "delay_us_p99")}))
    sys.exit(0)


if __name__ == "__main__":
    main()
