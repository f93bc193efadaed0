"""50 participants join one conference of the softswitch, each of whom sends to all others: when everybody hears everybody.

Run as root: python -m bench.join [--people N]. Writes build/bench/join/results.json. The participants' sockets are in two network
namespaces, senders on one side of the softswitch, receivers on the other; a process of its own sends one RTP packet for each of them every 100 ms
and reads the copies. Meanwhile a client of the softswitch lets one after the other join, as fast as it can, one request each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from bench.load import precedence
from bench.runs import OUTPUT, busy_share, commit, machine
from shunt.net import Endpoint, FiveTuple
from tests.dataplane import lab as lab_module
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.softswitch.replication import Action, Replication, Rewrite, StreamKey

PEOPLE = 50
GOAL_S = 3.0
INTERVAL_S = 0.1
AFTERWARDS_S = 5.0
_SEND_PORT, _RECEIVE_PORT, _RELAY_PORT = 20_000, 20_000, 30_000


def join(table: Replication, person: int, ends: Callable[[int], tuple[FiveTuple, Rewrite]]) -> None:
    """The writes with which a participant joins a conference whose group 1 has all former ones. ends: what somebody sends by, how copies reach somebody."""
    table.insert_node(person, person, [0])
    for other in range(person):
        for sender, receiver in ((person, other), (other, person)):
            table.insert_copy(sender + 1, receiver, ends(receiver)[1])
    table.modify_tree(1, [(one, None) for one in range(person + 1)])
    table.insert_stream(StreamKey(ends(person)[0], person + 1), Action(1, 0, person, 0, person + 1))


def _ends(person: int) -> tuple[FiveTuple, Rewrite]:
    here = Endpoint.of(lab_module.RELAY_A4, _RELAY_PORT + 2 * person)
    towards = Rewrite(Endpoint.of(lab_module.RELAY_B4, _RELAY_PORT + 2 * person), Endpoint.of(lab_module.HOST_B4, _RECEIVE_PORT + 2 * person))
    return FiveTuple(Endpoint.of(lab_module.HOST_A4, _SEND_PORT + 2 * person), here), towards


def talk(lab: lab_module.Lab, people: int, control: Connection) -> None:
    """Send and receive for all participants until told to end; then report seconds of the clock and gaps, by receiver and sender."""
    with precedence():
        _talk(lab, people, control)


def _talk(lab: lab_module.Lab, people: int, control: Connection) -> None:
    senders = [lab.socket("a", lab_module.HOST_A4, _SEND_PORT + 2 * person) for person in range(people)]
    receivers = [lab.socket("b", lab_module.HOST_B4, _RECEIVE_PORT + 2 * person) for person in range(people)]
    poll = select.epoll()
    for person, one in enumerate(receivers):
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)  # SO_RCVBUFFORCE
        poll.register(one, select.EPOLLIN)
    by_fd = {one.fileno(): person for person, one in enumerate(receivers)}
    poll.register(control, select.EPOLLIN)
    first, last, gap = np.full((people, people), np.nan), np.full((people, people), np.nan), np.zeros((people, people))
    number, due = 0, time.monotonic()
    control.send("begun")
    while True:
        if (now := time.monotonic()) >= due:
            for person, one in enumerate(senders):
                one.sendto(struct.pack("!BBHII", 0x80, 8, number & 0xFFFF, number * 800 & 0xFFFFFFFF, person + 1) + bytes(160), (lab_module.RELAY_A4, _RELAY_PORT + 2 * person))
            number, due = number + 1, due + INTERVAL_S
        for fd, _ in poll.poll(max(0.0, due - time.monotonic())):
            if fd not in by_fd:
                control.send((first, gap))
                return
            receiver, now = by_fd[fd], time.monotonic()
            for sender in _heard(receivers[receiver]):
                if np.isnan(first[receiver, sender]):
                    first[receiver, sender] = now
                else:
                    gap[receiver, sender] = max(gap[receiver, sender], now - last[receiver, sender])
                last[receiver, sender] = now


def _heard(receiver: socket.socket) -> list[int]:
    """The senders of the packets that wait."""
    found = []
    try:
        while True:
            found.append(int.from_bytes(receiver.recv(2048)[8:12], "big") - 1)
    except BlockingIOError:
        return found


def measure(people: int) -> dict[str, Any]:
    """Seconds from the last join to the last pair's first packet; those of each join; the longest gap of a pair that had begun."""
    with lab_module.build("jo") as lab:
        lab.fix_neighbours()
        mine, theirs = multiprocessing.Pipe()
        phones = multiprocessing.Process(target=talk, args=(lab, people, theirs), daemon=True)
        phones.start()
        with Softswitch(["ra", "rb"], namespace=lab.ns("relay"), mode="native", conference_copies=people * people) as process, Plane(process.target) as plane:
            table = plane.replication
            assert table is not None
            table.insert_tree(1, [])
            mine.recv()
            begun = []
            for person in range(people):
                begun.append(time.monotonic())
                with plane.session.batching():
                    join(table, person, _ends)
            ended = time.monotonic()
            time.sleep(AFTERWARDS_S)
            mine.send("end")
            first, gap = mine.recv()
            phones.join()
    others = ~np.eye(people, dtype=bool)
    silent = int(np.isnan(first[others]).sum())
    heard = float(np.nanmax(first[others])) if silent < others.sum() else float("nan")
    return {
        "people": people, "pairs": int(others.sum()), "pairs_silent": silent, "heard_after_last_join_s": heard - begun[-1], "joins_s": ended - begun[0],
        "join_us": [round(1e6 * (after - before)) for before, after in zip(begun, [*begun[1:], ended])], "longest_gap_s": float(gap[others].max()),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--people", type=int, default=PEOPLE)
    options = parser.parse_args()
    facts = {"commit": commit(), "machine": machine(), "busy_before": round(busy_share(), 4)}
    found = measure(options.people)
    met = found["pairs_silent"] == 0 and found["heard_after_last_join_s"] <= GOAL_S
    folder = OUTPUT / "join"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps({"facts": facts, **found, "goal_s": GOAL_S, "met": met}, indent=1) + "\n")
    print(
        f"{found['people']} participants joined in {found['joins_s']:.2f} s; everybody heard everybody {found['heard_after_last_join_s']:.3f} s after the last join "
        f"(at most {GOAL_S:g}: {'met' if met else 'MISSED'}), {found['pairs_silent']} of {found['pairs']} pairs did not; the longest gap of a stream was {found['longest_gap_s']:.3f} s"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
