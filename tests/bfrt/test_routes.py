"""Routes asked for many at a time are those asked for one by one."""

from __future__ import annotations

import os
import random
import socket
import subprocess
from collections.abc import Iterator

import pytest

from shunt_softswitch.netlink import Requests
from tests.dataplane.lab import inside

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")]


@pytest.fixture
def requests() -> Iterator[Requests]:
    name = f"bfrt-routes-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        for command in (
            "link set lo up", "link add near0 type veth peer name far0", "link set near0 up", "link set far0 up", "address add 10.91.0.1/24 dev near0", "address add fd91::1/64 dev near0 nodad",
            "route add 192.0.2.0/24 via 10.91.0.9 mtu 1400", "route add 198.51.100.0/24 via 10.91.0.8", "route add blackhole 203.0.113.0/24", "route add 2001:db8::/32 via fd91::9",
        ):  # fmt: skip
            subprocess.run(["ip", "-n", name, *command.split()], check=True)
        with inside(name):
            made = Requests()
            yield made
            made.close()
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def test_all_kinds(requests: Requests) -> None:
    rng = random.Random(1)
    four = [bytes(prefix) + rng.randbytes(1) for prefix in ((192, 0, 2), (198, 51, 100), (203, 0, 113), (10, 91, 0), (8, 8, 8), (127, 0, 0), (224, 0, 0))]
    six = [socket.inet_pton(socket.AF_INET6, text) for text in ("2001:db8::5", "fd91::7", "2001:4860::1", "::1")]
    sources = {4: [None, bytes((10, 91, 0, 1)), bytes((9, 9, 9, 9))], 16: [None, socket.inet_pton(socket.AF_INET6, "fd91::1")]}
    wanted = [(dst, src) for dst in four + six for src in sources[len(dst)]] * 8
    rng.shuffle(wanted)
    one_by_one = [requests.route(dst, src) for dst, src in wanted]
    assert requests.routes(wanted) == one_by_one
    assert None in one_by_one and len({route for route in one_by_one if route is not None}) == 5
    assert requests.routes([]) == [] and requests.route(four[0]) == requests.routes([(four[0], None)])[0]
