"""A SIP server's side of the control protocol as a load: calls by the clock over UDP, every command's delay and fate.

Commands are due by the clock and do not wait for earlier calls. A delay is from just before the sending to the kernel's
time stamp on the reply's arrival, so what this process does meanwhile is in no delay; how late it sent is told apart.
Nothing is repeated: a command without a reply is lost.
"""

from __future__ import annotations

import gc
import heapq
import os
import random
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SO_TIMESTAMPNS = 35  # asm-generic/socket.h; its control message has the same number
_STAMP = struct.Struct("@qq")
_REPLIES = 65536
PATIENCE_S = 2.0
VERBS = ("U", "L", "D")
_numbers = iter(range(1 << 62))


@dataclass(slots=True)
class Outcome:
    """What became of the commands of one run; delays in µs by verb, in order of arrival."""

    calls: int
    seconds: float
    delays: dict[str, list[float]] = field(default_factory=lambda: {verb: [] for verb in VERBS})
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VERBS, 0))
    refused: list[str] = field(default_factory=list)
    late_us: list[float] = field(default_factory=list)
    own_cpu_s: float = 0.0
    set_up_s: float = 0.0  # from the first U sent to the last answer's reply

    def record(self) -> dict[str, Any]:
        """For JSON: delays rounded to 0.1 µs."""
        return {
            "calls": self.calls, "seconds": self.seconds, "sent": self.sent, "received": {verb: len(found) for verb, found in self.delays.items()},
            "refused": self.refused[:20], "refused_count": len(self.refused), "late_us": quantiles(self.late_us), "own_cpu_s": round(self.own_cpu_s, 3),
            "set_up_s": round(self.set_up_s, 4), "delays_us": {verb: [round(value, 1) for value in found] for verb, found in self.delays.items()},
        }  # fmt: skip


def quantiles(values: list[float]) -> dict[str, float]:
    """p50, p99 and the largest; empty when there are none."""
    if not values:
        return {}
    return {"p50": float(np.percentile(values, 50)), "p99": float(np.percentile(values, 99)), "max": float(max(values))}


def run(
    sock: socket.socket,
    calls: int,
    rate: float,
    *,
    hold_s: float | None,
    tag: str,
    modifiers: str = "",
    media: Callable[[int], tuple[str, int, str, int]] | None = None,
    on_answer: Callable[[int], None] = lambda call: None,
) -> Outcome:
    """Set up so many calls at a rate per second; hang each up hold_s to twice hold_s later (None: leave them).

    sock: a connected UDP socket. media(n): address and port of call n's caller and callee. on_answer is told of each
    call whose answer the relay has taken.
    """
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    found = Outcome(calls, calls / rate)
    unique = f"{os.getpid()}-{next(_numbers)}"
    room = socket.CMSG_SPACE(_STAMP.size)
    waiting: dict[bytes, tuple[str, int, float]] = {}
    hang_ups: list[tuple[float, int]] = []
    spread = random.Random(calls)
    ready: deque[int] = deque()  # calls whose offer is answered
    where = media or (lambda n: ("198.18.1.2", 2000 + 2 * (n % 30000), "198.18.2.2", 2000 + 2 * (n % 30000)))

    def send(verb: str, call: int) -> None:
        caller, caller_port, callee, callee_port = where(call)
        name, cookie = f"{tag}{call}@bench", f"{unique}-{call}{verb}".encode()
        if verb == "U":
            text = f"U{modifiers}c8 {name} {caller} {caller_port} a{call};1"
        elif verb == "L":
            text = f"L{modifiers}c8 {name} {callee} {callee_port} a{call};1 b{call};1"
        else:
            text = f"D {name} a{call} b{call}"
        began = time.time()
        waiting[cookie] = (verb, call, began)
        sock.send(cookie + b" " + text.encode())
        found.sent[verb] += 1

    def receive() -> None:
        for _ in range(64):
            try:
                data, control, _, _ = sock.recvmsg(_REPLIES, room)
            except BlockingIOError:
                return
            cookie, _, body = data.partition(b" ")
            known = waiting.pop(cookie, None)
            if known is None:
                continue
            verb, call, began = known
            seconds, ns = _STAMP.unpack_from(next(value for level, kind, value in control if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS))
            arrived = seconds + ns / 1e9
            if body[:1] == b"E" or (verb != "D" and body.split()[:1] in ([], [b"0"])):
                found.refused.append(f"{verb} {call}: {body[:80]!r}")
                continue
            found.delays[verb].append((arrived - began) * 1e6)
            if verb == "U":
                ready.append(call)
            elif verb == "L":
                on_answer(call)
                if hold_s is not None:
                    # Spread, so that hanging up does not fall into step with setting up.
                    heapq.heappush(hang_ups, (time.monotonic() + hold_s * spread.uniform(1.0, 2.0), call))

    gc.collect()
    gc.disable()
    cpu, start, placed, last_answer = time.process_time(), time.monotonic(), 0, 0.0
    try:
        quiet_since = start
        while True:
            now = time.monotonic()
            due = start + placed / rate
            # New calls come last: one that cannot send as fast as it should would do nothing else, and fill the relay.
            if ready:
                send("L", ready.popleft())
                quiet_since = now
            elif hang_ups and hang_ups[0][0] <= now:
                send("D", heapq.heappop(hang_ups)[1])
                quiet_since = now
            elif placed < calls and now >= due:
                found.late_us.append((now - due) * 1e6)
                send("U", placed)
                placed += 1
                quiet_since = now
            elif placed == calls and not hang_ups and (not waiting or now - quiet_since > PATIENCE_S):
                break
            else:
                following = [due] if placed < calls else []
                if hang_ups:
                    following.append(hang_ups[0][0])
                pause = min((at - now for at in following), default=0.05)
                select.select((sock,), (), (), max(0.0, min(pause, 0.05)))  # to the microsecond: poll() waits for whole milliseconds, and commands would come in bunches
            answers = len(found.delays["L"])
            receive()
            if len(found.delays["L"]) > answers:
                last_answer = time.monotonic()
    finally:
        gc.enable()
    found.own_cpu_s = time.process_time() - cpu
    found.set_up_s = max(0.0, last_answer - start)
    return found
