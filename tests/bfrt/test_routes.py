"""Entries that are written together leave by the same routes as entries that are written one by one: those of the kernel."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
from collections.abc import Iterator

import pytest

from shunt.net import Endpoint, FiveTuple
from tests.bfrt.traffic import INTERFACE, Wire, frame, namespace, rtp
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.softswitch.testrun import XDP_PASS, XDP_REDIRECT
from tests.tools.entry import RelayEntry

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

NEIGHBOURS = {"10.92.0.9": "02:00:00:00:92:09", "10.92.0.8": "02:00:00:00:92:08", "10.92.0.7": "02:00:00:00:92:07", "fd92::9": "02:00:00:00:92:69"}


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    """A namespace with routes of all kinds, over a second interface too."""
    commands = [
        "link add near0 type veth peer name far0", "link set near0 up", "link set far0 up", "address add 10.92.0.1/24 dev near0", "address add fd92::1/64 dev near0 nodad",
        *(f"neigh replace {ip} lladdr {mac} dev near0 nud permanent" for ip, mac in NEIGHBOURS.items()),
        "route add 192.0.2.0/24 via 10.92.0.9 mtu 1400", "route add 198.51.100.0/24 via 10.92.0.8", "route add blackhole 203.0.113.0/24", "route add 2001:db8::/32 via fd92::9",
    ]  # fmt: skip
    with namespace() as name:
        subprocess.run(["ip", "-n", name, "-batch", "-"], input="\n".join(commands) + "\n", text=True, check=True)
        yield name


@pytest.fixture(scope="module")
def softswitch(home: str) -> Iterator[Softswitch]:
    with Softswitch([INTERFACE, "near0"], namespace=home) as made:
        yield made
        made.stop()


def destinations() -> list[bytes]:
    dice = random.Random(1)
    four = [bytes(prefix) + dice.randbytes(1) for prefix in ((192, 0, 2), (198, 51, 100), (203, 0, 113), (8, 8, 8), (127, 0, 0), (224, 0, 0)) for _ in range(8)]
    four += [bytes((10, 92, 0, last)) for last in (7, 8, 9)]
    return four + [socket.inet_pton(socket.AF_INET6, text) for text in ("2001:db8::5", "2001:db8::6", "fd92::9", "::1")]


def entry(number: int, to: bytes) -> RelayEntry:
    relay = Endpoint(b"\x0a\x5b\x01\x01" if len(to) == 4 else socket.inet_pton(socket.AF_INET6, "fd91::1"), 10_000 + number)
    source = Endpoint(b"\x0b\x00\x00\x01" if len(to) == 4 else socket.inet_pton(socket.AF_INET6, "2001:db8:1::1"), 4_000)
    return RelayEntry(FiveTuple(source, relay), Endpoint(relay.addr, 9_000), Endpoint(to, 5_000))


def neighbour(home: str, to: bytes) -> str | None:
    """The MAC address of the kernel's own next hop; None where it has no route that leaves by an interface."""
    text = Endpoint(to, 0).ip
    asked = subprocess.run(["ip", "-n", home, "-j", "route", "get", text], capture_output=True, text=True)
    if asked.returncode or not (found := json.loads(asked.stdout)) or found[0].get("type", "unicast") != "unicast" or found[0]["dev"] == "lo":
        return None
    via = found[0].get("gateway", text)
    return NEIGHBOURS.get(via, "02:00:00:00:91:02" if found[0]["dev"] == INTERFACE else None)


@pytest.mark.parametrize("together", [True, False])
def test_all_kinds(home: str, softswitch: Softswitch, together: bool) -> None:
    entries = [entry(number, to) for number, to in enumerate(destinations())]
    with Plane(softswitch.target) as plane, Wire(softswitch) as wire:
        outcomes = plane.insert(entries) if together else [plane.insert([each])[0] for each in entries]
        assert outcomes == [None] * len(entries)
        found: dict[str, str | None] = {}
        for each in entries:
            run = wire.receive(frame(each.key, rtp()))
            assert run.verdict in (XDP_PASS, XDP_REDIRECT)
            found[each.dst.ip] = ":".join(f"{byte:02x}" for byte in run.frame[:6]) if run.verdict == XDP_REDIRECT else None
        plane.clear()
    wanted = {each.dst.ip: neighbour(home, each.dst.addr) for each in entries}
    assert found == wanted
    assert None in wanted.values() and len({mac for mac in wanted.values() if mac is not None}) == 5
