"""Audio: how many G.711 phones of one conference a core carries, and what mixing adds between mouth and ear.

    python -m bench.mixer.audio [--phones 50 100 200 …] [--seconds 10]

The mixer runs by itself on loopback; a process beside it sends what that many phones send, 50 packets a second each, and takes every mix. Three of them speak, or all do.
A core carries as many as the largest step of which the mixer's thread took at most 80 % of a core, left no tick out and sent every packet.

The delay is measured sample by sample: one phone sends bursts that begin at any place within a packet, and another one looks for where they begin in the mix. What is
between is the jitter buffer, the mixer's tick, and the sockets of this machine.
"""

from __future__ import annotations

import argparse
import random
import select
import socket
import threading
import time
from typing import Any

from bench.mixer import RESULTS, add
from tests.mixer_daemon.process import Mixer
from tests.tools.tone import FRAMES, PCMA, encode, rtp

FRAME_S = 0.02
MOST_LOAD = 0.8
WANTED_PHONES, WANTED_MS = 100, 60
_SILENCE = b"\xd5" * 160
_LOUD = 0xAA


class Phones:
    """So many phones behind two sockets: one sends for all, the other takes all mixes."""

    def __init__(self, mixer: Mixer, count: int, speaking: int) -> None:
        self.mixer, self.count, self.speaking = mixer, count, speaking
        self.mouth, self.ear = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        for one in (self.mouth, self.ear):
            one.bind(("127.0.0.1", 0))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.ear.setblocking(False)
        self.tones = [encode(PCMA, 300 + 31 * at, amplitude=1500) for at in range(min(speaking, 20))]
        self.received = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, daemon=True), threading.Thread(target=self._receive, daemon=True)]

    def __enter__(self) -> Phones:
        host, port = self.mouth.getsockname()
        ear = "{}:{}".format(*self.ear.getsockname())
        codec = {"payload_type": 8, "encoding": "PCMA", "clock_rate": 8000}
        participants = [{"participant": f"p{at}", "ssrcs": [1000 + at], "codecs": [codec], "mix": codec | {"to": ear, "ssrc": 100_000 + at}} for at in range(self.count)]
        status, answer = self.mixer.ask("PUT", "/v1/conferences/room", {"audio": {"from": f"{host}:{port}", "participants": participants}})
        assert status == 200, answer
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.mixer.ask("DELETE", "/v1/conferences/room")
        self.mouth.close()
        self.ear.close()

    def _send(self) -> None:
        due, number = time.monotonic(), 0
        while not self._stop.is_set():
            for at in range(self.count):
                payload = self.tones[at % len(self.tones)][number % FRAMES] if at < self.speaking else _SILENCE
                self.mouth.sendto(rtp(8, number, number * 160, 1000 + at, payload), self.mixer.audio)
            number += 1
            due += FRAME_S
            time.sleep(max(0.0, due - time.monotonic()))

    def _receive(self) -> None:
        while not self._stop.is_set():
            select.select([self.ear], [], [], 0.1)
            try:
                while True:
                    self.ear.recv(2048)
                    self.received += 1
            except BlockingIOError:
                pass


def _metric(mixer: Mixer, name: str) -> int:
    text = mixer.ask("GET", "/metrics")[1]
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}_total "))


def step(count: int, speaking: int, seconds: float) -> dict[str, Any]:
    """One number of phones: the share of a core that the mixer's thread took, and whether all went well."""
    with Mixer(receivers=100_000, load=1.0) as mixer, Phones(mixer, count, speaking) as phones:
        time.sleep(2.0)
        before, sent, ticks = phones.received, _metric(mixer, "shunt_mixer_packets_sent"), _metric(mixer, "shunt_mixer_ticks")
        time.sleep(seconds)
        loads = [mixer.ask("GET", "/v1/status")[1]["load"] for _ in range(3)]
        sent, ticks = _metric(mixer, "shunt_mixer_packets_sent") - sent, _metric(mixer, "shunt_mixer_ticks") - ticks
        (view,) = mixer.ask("GET", "/v1/conferences")[1]["conferences"]
        return {
            "phones": count,
            "speaking": speaking,
            "load": round(max(loads), 3),
            "ticks_skipped": _metric(mixer, "shunt_mixer_ticks_skipped"),
            "packets_per_tick": round(sent / ticks, 2),
            "received_share": round((phones.received - before) / max(1, sent), 3),
            "heard_speaking": sum(one["speaks"] for one in view["participants"]),
        }


def carries(found: dict[str, Any]) -> bool:
    return bool(found["load"] <= MOST_LOAD and found["ticks_skipped"] == 0 and found["packets_per_tick"] >= 0.99 * found["phones"] and found["heard_speaking"] >= found["speaking"])


def delays(seconds: float, jitter_ms: float) -> list[float]:
    """What is added to each of many bursts, ms. jitter_ms: packets come up to so much later than they were made; the burst's own lateness is part of what the mixer adds."""
    generator = random.Random(7)
    with Mixer() as mixer, Phones(mixer, 2, 0) as phones:
        phones._stop.set()
        for thread in phones._threads:
            thread.join()
        found: list[float] = []
        begun: list[float] = []
        start, number, heard_loud = time.monotonic() + 0.1, 0, 0.0
        queue: list[tuple[float, bytes]] = []
        end = start + seconds
        burst_at, burst_left = 40, 0
        while (now := time.monotonic()) < end:
            made = start + number * FRAME_S
            if now >= made:
                payload = bytearray(_SILENCE)
                if number == burst_at:
                    offset = generator.randrange(160)
                    payload[offset:] = bytes([_LOUD]) * (160 - offset)
                    begun.append(made + offset / 8000)
                    burst_left, burst_at = 4, number + 30 + generator.randrange(7)
                elif burst_left:
                    payload[:] = bytes([_LOUD]) * 160
                    burst_left -= 1
                for ssrc, data in ((1000, bytes(payload)), (1001, _SILENCE)):
                    queue.append((made + generator.uniform(0, jitter_ms) / 1000, rtp(8, number, number * 160, ssrc, data)))
                queue.sort()
                number += 1
            while queue and queue[0][0] <= now:
                phones.mouth.sendto(queue.pop(0)[1], mixer.audio)
            wait = min(start + number * FRAME_S, queue[0][0] if queue else now + 1) - time.monotonic()
            ready, _, _ = select.select([phones.ear], [], [], max(0.0, min(wait, 0.005)))
            if not ready:
                continue
            data, when = phones.ear.recv(2048), time.monotonic()
            # The mix of the one who is silent: where the first loud sample is. 0x80 and 0x00 apart, A-law's highest codes.
            if int.from_bytes(data[8:12], "big") != 100_001 or not begun:
                continue
            loud = next((at for at, code in enumerate(data[-160:]) if (code ^ 0x55) & 0x70 >= 0x60), None)
            if loud is not None and when - heard_loud > 0.25:
                found.append(1000 * (when + loud / 8000 - begun[-1]))
            if loud is not None:
                heard_loud = when
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--phones", type=int, nargs="*", default=[50, 100, 200, 300, 400])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--delay-seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    steps, most = [], 0
    for count in arguments.phones:
        pair = [step(count, min(3, count), arguments.seconds), step(count, count, arguments.seconds) if count <= 100 else None]
        steps += [one for one in pair if one is not None]
        for one in steps[-2:]:
            print(one, flush=True)
        if not carries(steps[-1]) and not carries(pair[0] or {}):
            break
        most = count if carries(pair[0] or {}) else most
    quiet = sorted(delays(arguments.delay_seconds, 1.0))
    shaky = sorted(delays(arguments.delay_seconds, 20.0))

    def p99(values: list[float]) -> float:
        return round(values[min(len(values) - 1, int(0.99 * len(values)))], 1)

    figures = {
        "phones_per_core": most,
        "phones_steps": steps,
        "added_ms_p99": p99(quiet),
        "added_ms_median": round(quiet[len(quiet) // 2], 1),
        "added_ms_p99_jitter_20_ms": p99(shaky),
        "added_ms_bursts": len(quiet),
    }
    add(figures)
    print({key: value for key, value in figures.items() if key != "phones_steps"})
    print(f"written to {RESULTS}")
    return 0 if most >= WANTED_PHONES and figures["added_ms_p99"] <= WANTED_MS else 1


if __name__ == "__main__":
    raise SystemExit(main())
