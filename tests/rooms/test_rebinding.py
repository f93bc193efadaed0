"""A NAT that forgets its mappings: a browser behind it is heard and hears again within a check of the edge's own, in the same session."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tests.lab.browser import CHROMIUM, FIREFOX
from tests.lab.party import await_that
from tests.lab.processes import open_socket
from tests.lab.topology import Topology
from tests.rooms.lab import RoomLab, hears, report, room_lab
from tests.rooms.test_whip import client

pytestmark = [pytest.mark.netns, pytest.mark.e2e, pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("programs"), pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

_NETLINK_NETFILTER = 12
_DELETE_ALL = struct.pack("=IHHIIBBH", 20, 1 << 8 | 2, 1 | 4, 1, 0, socket.AF_INET, 0, 0)  # IPCTNL_MSG_CT_DELETE without a tuple, acknowledged


def forget_mappings(topology: Topology) -> None:
    """As `conntrack -F` on the NAT box, which chooses other ports from then on."""
    with open_socket(topology, "nat", socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as netlink:
        netlink.send(_DELETE_ALL)
        answer = netlink.recv(4096)
        assert struct.unpack_from("=i", answer, 16)[0] == 0, "the kernel refused"


@pytest.fixture
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoomLab]:
    with room_lab(tmp_path_factory.mktemp("rebinding")) as made:
        yield made
        print(made.diagnosis())


@pytest.mark.parametrize("kind", [CHROMIUM, FIREFOX])
def test_a_browser_is_heard_and_hears_after_its_nat_rebinds(room: RoomLab, kind: str) -> None:
    publisher = client(room, "caller", "publish", room.link("board", role="publish"), "VP8", 300)
    try:
        assert await_that(lambda: room.names("board") == ["publisher"]), room.diagnosis()
        cem = room.browser("natcaller", "cem", kind)
        room.enter(cem, "board")
        hears(cem, "publisher")
        session = report(cem)["sessions"]

        def at_edge() -> dict:
            return next(one["transport"] for one in room.ask("GET", "/v1/rooms/board")["browsers"] if one["participant"] == "cem")

        def sent() -> int:
            return sum(line["from_browser"]["packets"] for line in at_edge()["media"])

        def heard() -> int:
            return int(cem.evaluate("(async () => [...(await room.session.pc.getStats()).values()].filter((one) => one.type === 'inbound-rtp').reduce((sum, one) => sum + one.packetsReceived, 0))()"))

        for _ in range(3):
            before = at_edge()["remote"]
            forget_mappings(room.topology)
            begun = time.monotonic()
            assert await_that(lambda before=before: at_edge()["remote"] != before), room.diagnosis()
            moved = time.monotonic() - begun
            sends, hears_now = sent(), heard()
            assert await_that(lambda hears_now=hears_now: heard() > hears_now), room.diagnosis()
            both = time.monotonic() - begun
            assert await_that(lambda sends=sends: sent() > sends), room.diagnosis()
            print(f"{kind}: another address after {moved:.2f} s, hears after {both:.2f} s")
        assert report(cem)["sessions"] == session and report(cem)["lost"] == 0, "the session goes on"
    finally:
        publisher.kill()
        publisher.communicate()
