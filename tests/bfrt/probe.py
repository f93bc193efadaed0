"""A process that reads and writes one entry again and again, and says how long the softswitch let it wait: for tests of several clients.

What it reports for a call is the time that it took, or the CPU time that the softswitch took meanwhile where that is less: what other
processes of a busy machine take counts neither here, because this process comes before others, nor there. Each line on standard input is
answered with a line of JSON: how many calls there were since the last, and the milliseconds of the longest.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.bfrt.bulk import Flow, cpu_clock
from tests.softswitch.client import UPSERT, Refused, Session, pb
from tests.softswitch.process import ROOT, Softswitch

_KEY = Flow(b"\x0c\x01\x01\x01", b"\x0c\x02\x02\x02", b"\x10\x00", b"\x20\x00")
_PAUSE_S = 0.001


class Probe:
    """The process, from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self) -> tuple[int, float]:
        """Calls since the last question, and the milliseconds of the longest."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        return found["calls"], found["longest_ms"]


@contextlib.contextmanager
def probing(softswitch: Softswitch) -> Iterator[Probe]:
    """Run one beside a block."""
    command = [sys.executable, "-m", "tests.bfrt.probe", softswitch.target, str(softswitch.pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/operator"}) as process:
        try:
            made = Probe(process)
            made.ask()
            yield made
        finally:
            process.kill()


def main(target: str, pid: int) -> None:
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # threads inherit it
    with Session(target, bind=False) as session:
        table = session.table("relay")
        data = {"dst_addr": b"\x0a\x09\x09\x09", "dst_port": 1, "src_port": 2, "$ENTRY_TTL": 0}
        write = pb.WriteRequest(client_id=session.client_id, p4_name="relay", updates=[pb.Update(type=UPSERT, entity=session.entity(table, _KEY, "relay_to", data))])
        read = pb.ReadRequest(client_id=session.client_id, p4_name="relay", entities=[session.entity(table, _KEY)])

        def once(number: int) -> None:
            if number % 2:
                session.stub.Write(write)
            else:
                with contextlib.suppress(Refused):
                    session.read(read.entities)

        clock, calls, longest = cpu_clock(pid), 0, 0.0
        for number in range(20):
            once(number)
        while True:
            if select.select([sys.stdin], [], [], _PAUSE_S)[0]:
                if not sys.stdin.readline():
                    return
                print(json.dumps({"calls": calls, "longest_ms": longest}), flush=True)
                calls, longest = 0, 0.0
            began, work = time.monotonic(), time.clock_gettime(clock)
            once(calls)
            calls += 1
            longest = max(longest, 1e3 * min(time.monotonic() - began, time.clock_gettime(clock) - work))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
