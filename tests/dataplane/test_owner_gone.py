"""A port that the relay uses again: entries of a former call drop the new party's packets only while they are used and their owner lives.

Packets go between real namespaces. A softswitch that was killed or hangs, and an owner whose connection is gone or that hangs, are known by
the sign of life that ends: within SECONDS. Entries without a packet for SECONDS drop nobody's packets either.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from shunt.net import FiveTuple
from tests.dataplane.lab import HOST_A4, HOST_A6, HOST_B4, RELAY_A4, RELAY_A6, RELAY_B4, Lab, ep
from tests.softswitch.client import until
from tests.softswitch.plane import Plane
from tests.softswitch.process import ROOT, Softswitch
from tests.tools.entry import RelayEntry

pytestmark = pytest.mark.netns

SECONDS = 5.0  # docs/softswitch.md
_COUNT = 30
_numbers = itertools.count(1)
_OWNER = """
import sys, time
from tests.softswitch.client import Session
session = Session(sys.argv[1])
print("bound", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def softswitch(lab: Lab) -> Iterator[Softswitch]:
    """A softswitch of the test's own, because it is killed."""
    lab.fix_neighbours()
    with Softswitch(["ra", "rb"], namespace=lab.ns("relay"), mismatch="drop") as made:
        yield made


class Port:
    """A relay port: the old party and the new one, who send to it, and the relay server and the far end, of which one receives."""

    def __init__(self, lab: Lab, port: int, family: int) -> None:
        host, relay = (HOST_A4, RELAY_A4) if family == 4 else (HOST_A6, RELAY_A6)
        bracket = "{}" if family == 4 else "[{}]"
        self.old, self.new = lab.socket("a", host, port), lab.socket("a", host, port + 1)
        self.relay, self.far = lab.socket("relay", relay, port), lab.socket("b", HOST_B4, port)
        key = FiveTuple(ep(f"{bracket.format(host)}:{port}"), ep(f"{bracket.format(relay)}:{port}"))
        self.entry = RelayEntry(key, ep(f"{RELAY_B4}:{port}"), ep(f"{HOST_B4}:{port}"), 600_000)
        self._to = (relay, port)

    def _sent(self, sender: socket.socket, receiver: socket.socket, count: int) -> int:
        """How many packets of a sender arrive."""
        wanted = {b"%d" % next(_numbers) for _ in range(count)}
        for payload in wanted:
            sender.sendto(payload, self._to)
        receiver.settimeout(0.3)
        found: set[bytes] = set()
        with contextlib.suppress(TimeoutError):
            while not wanted <= found:
                found.add(receiver.recv(2048))
        return len(wanted & found)

    def talk(self) -> int:
        """How many of 30 packets of the old party arrive at the far end."""
        return self._sent(self.old, self.far, _COUNT)

    def call(self) -> int:
        """How many of 30 packets of the new party arrive at the relay server."""
        return self._sent(self.new, self.relay, _COUNT)

    def drops(self) -> bool:
        """Whether the old party's packets are relayed and none of the new one's arrives."""
        return (self.talk(), self.call()) == (_COUNT, 0)

    def close(self) -> None:
        for one in (self.old, self.new, self.relay, self.far):
            one.close()


@pytest.fixture
def ports(lab: Lab) -> Iterator[list[Port]]:
    """A relay port of each IP version, whose entry leads to IPv4."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Port(lab, 21_000 + next(_numbers) % 500 * 2, family))) for family in (4, 6)]


@contextlib.contextmanager
def owner(softswitch: Softswitch) -> Iterator[subprocess.Popen[str]]:
    """A process that owns the tables."""
    made = subprocess.Popen([sys.executable, "-c", _OWNER, softswitch.target], cwd=ROOT, env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/operator"}, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    try:
        assert made.stdout.readline() == "bound\n"
        yield made
    finally:
        made.kill()
        made.wait()
        made.stdout.close()


@contextlib.contextmanager
def owned(softswitch: Softswitch, ports: list[Port]) -> Iterator[subprocess.Popen[str]]:
    """A process that owns entries in use at these ports; no packet of a new party passes."""
    with Plane(softswitch.target, bind=False) as plane:
        assert not any(plane.insert([port.entry for port in ports]))
    with owner(softswitch) as process:
        for port in ports:
            until(port.drops, "the entry drops packets of other sources")
        yield process


def assert_admitted(*ports: Port, seconds: float = SECONDS, talking: bool = True) -> None:
    """All packets that the new party sends later than so many seconds from now pass, though the old one goes on. An earlier pass is no fault."""
    end = time.monotonic() + seconds
    for port in ports:
        while True:
            begun = time.monotonic()
            if (not talking or port.talk() == _COUNT) and port.call() == _COUNT and port.call() == _COUNT:
                break
            assert begun < end, f"at {port.entry.key}"


def test_an_entry_in_use_drops_others_while_its_owner_lives(softswitch: Softswitch, ports: list[Port]) -> None:
    """Longer than a sign of life lasts, and longer than an entry without packets drops any."""
    with owned(softswitch, ports):
        end, admitted = time.monotonic() + 1.5 * SECONDS, 0
        while time.monotonic() < end:
            admitted += not all(port.drops() for port in ports)
        assert admitted <= 1, "once a busy machine may have kept the process from its sign of life"


def test_a_killed_softswitch(softswitch: Softswitch, ports: list[Port]) -> None:
    with owned(softswitch, ports):
        softswitch.kill()
        assert_admitted(*ports)


def test_a_softswitch_that_hangs(softswitch: Softswitch, ports: list[Port]) -> None:
    with owned(softswitch, ports):
        softswitch.signal(signal.SIGSTOP)
        try:
            assert_admitted(*ports)
        finally:
            softswitch.signal(signal.SIGCONT)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hanging"])
def test_an_owner_that_is_gone(softswitch: Softswitch, ports: list[Port], number: signal.Signals) -> None:
    with owned(softswitch, ports) as process:
        process.send_signal(number)
        assert_admitted(*ports)


def test_softswitch_and_owner_killed_together(softswitch: Softswitch, ports: list[Port]) -> None:
    with owned(softswitch, ports) as process:
        process.kill()
        softswitch.kill()
        assert_admitted(*ports)


def test_an_idle_entry(softswitch: Softswitch, ports: list[Port]) -> None:
    """Its owner lives: the new party is admitted until the old one is back."""
    with owned(softswitch, ports):
        assert_admitted(*ports, talking=False)
        for port in ports:
            until(port.drops, "an entry in use drops packets of other sources")


def test_the_new_softswitch_waits_for_an_owner(softswitch: Softswitch, ports: list[Port]) -> None:
    """After a restart the entries relay; they drop others again when somebody owns them."""
    with owned(softswitch, ports):
        softswitch.kill()
    softswitch.start()
    assert_admitted(*ports, seconds=0.0)
    with owner(softswitch):
        for port in ports:
            until(port.drops, "the entry drops packets of other sources")


def test_several_entries_at_one_port(softswitch: Softswitch, lab: Lab) -> None:
    """A second source at a port has no slot of its own: each of the two in use drops others, none does when idle or without an owner."""
    with contextlib.closing(Port(lab, 22_500, 4)) as port, lab.socket("a", HOST_A4, 22_599) as second:
        further = RelayEntry(FiveTuple(ep(f"{HOST_A4}:22599"), port.entry.key.dst), port.entry.src, port.entry.dst, 600_000)
        with Plane(softswitch.target, bind=False) as plane:
            assert plane.insert([port.entry, further]) == [None, None]
            with owner(softswitch):
                until(port.drops, "the first entry drops packets of other sources")
                first, port.old = port.old, second
                until(lambda: port.talk() and plane.idle([port.entry.key])[port.entry.key] > 1.2 * SECONDS * 1000, "the first entry is idle")
                until(port.drops, "the second entry drops them too")
                assert_admitted(port, talking=False)
                until(port.drops, "the second entry is in use again")
                softswitch.kill()
                assert_admitted(port)
                first.close()
