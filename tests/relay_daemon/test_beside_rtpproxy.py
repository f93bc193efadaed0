"""Side by side with a real rtpproxy 3.x: random commands are answered alike, port for port."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.lab.ports import free_port
from tests.relay_daemon.process import Relay, UdpClient

RTPPROXY = shutil.which("rtpproxy")
SEEDS, COMMANDS = 12, 120


@contextlib.contextmanager
def rtpproxy(addresses: list[str]) -> Iterator[UdpClient]:
    """A client of one on loopback."""
    assert RTPPROXY is not None
    address = f"udp:127.0.0.1:{free_port(socket.SOCK_DGRAM)}"
    process = subprocess.Popen([RTPPROXY, "-f", "-F", "-s", address, "-m", "45000", "-M", "45999", "-l", "/".join(addresses)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = UdpClient(address)
    try:
        client.await_answers()
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait(60)


def random_command(rng: random.Random, bridging: bool) -> str:
    call = rng.choice(["c1", "c2", "c3"])
    tags = [f"{rng.choice('ab')}{rng.choice([';1', ';1', ';2', ''])}" for _ in range(rng.choice([1, 2, 2]))]
    kind = rng.choice("UUUULLLLDDQQQSX" if rng.random() < 0.1 else "UUUULLLLDQQQ")
    if kind in "UL":
        letters = rng.choice(["", "", "c0,8", "A", "S", "w", "W", "n", "6", "E", "IE", "EI", "IEI", "?", "l127.0.0.2", "R127.0.0.1", "e" if bridging else "c"])
        if letters == "6" and not bridging:
            letters = ""
        address = rng.choice(["192.0.2.1", "192.0.2.2", "-", "0.0.0.0", "999.1.1.1"])
        after = rng.choice(["", "", "", " && S ttl=77", " && S ttl=0", " && L 192.0.2.7 7000", " && L 192.0.2.7 7000 && S ttl=9", " && D", " && Dw", " && X", " && S foo=1"])
        return f"{kind}{letters} {call} {address} {rng.choice([6000, 7000, 65535])} {' '.join(tags)}{after}"
    if kind == "D":
        return f"D{rng.choice(['', '', 'w', 'x'])} {call} {' '.join(tags)}"
    if kind == "Q":
        names = " ttl npkts_ina nrelayed" if len(tags) == 2 and rng.random() < 0.3 else ""
        return f"Q{rng.choice(['', 'v', 'x'])} {call} {' '.join(tags)}{names}{rng.choice(['', '', ' && S ttl=33', ' && D'])}"
    if kind == "S":
        return f"S {call} {' '.join(tags)}"
    return "X"


def alike(command: str, expected: str, got: str, ports: dict[str, str]) -> bool:
    """Whether two replies say the same. ports: theirs to ours, which grows."""
    # A port and its address are one thing: the same number may be given out on two addresses.
    theirs, ours = (re.sub(r"(\d{5}) (127\S+)", r"\2:\1", text).split() for text in (expected, got))
    if len(theirs) != len(ours):
        return False
    for a, b in zip(theirs, ours):
        if ":" in a and ":" in b:
            if ports.setdefault(a, b) != b or a.partition(":")[0] != b.partition(":")[0]:
                return False
        elif command[0] == "Q" and a != b:
            # rtpproxy counts its seconds by its own ticks.
            ttls = [int(word.removeprefix("ttl=")) for word in (a, b) if word.removeprefix("ttl=").isdigit()]
            if len(ttls) != 2 or abs(ttls[0] - ttls[1]) > 1 or min(ttls) <= 1:
                return False
        elif a != b:
            return False
    return True


@pytest.mark.skipif(RTPPROXY is None, reason="rtpproxy is not installed")
@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]], ids=["one address", "bridging"])
def test_random_commands_are_answered_as_by_rtpproxy(addresses: list[str]) -> None:
    with rtpproxy(addresses) as theirs, Relay(addresses=addresses, ports="44000-44999", quarantine=0.0) as ours:
        for seed in range(SEEDS):
            rng = random.Random(seed)
            history: list[str] = []
            ports: dict[str, str] = {}
            for _ in range(COMMANDS):
                command = random_command(rng, len(addresses) > 1)
                expected, got = theirs.ask(command), ours.ask(command)
                history.append(f"{command}  ->  {expected}  |  {got}")
                assert alike(command, expected, got, ports), "\n".join([f"seed {seed}", *history[-40:], f"ports so far: {ports}"])
                if re.search(r"\b[DX]", command):
                    # Freed ports may be given out again, by each side to another session.
                    ports.clear()
            theirs.ask("X")
            ours.ask("X")
