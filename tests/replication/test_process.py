"""A conference over a softswitch process that is killed: the kernel goes on, and the next process knows everything."""

from __future__ import annotations

import pytest

from tests.dataplane import lab as lab_module
from tests.replication.conftest import Bridge
from tests.replication.test_tables import everything
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.softswitch.replication import Action

pytestmark = pytest.mark.netns


def test_kill_9_under_traffic() -> None:
    reason = lab_module.missing()
    if reason:
        pytest.skip(reason)
    with lab_module.build("p") as lab:
        lab.fix_neighbours()
        process = Softswitch(["ra", "rb"], namespace=lab.ns("relay"), capacity=1000, conference_copies=100)
        with process, Plane(process.target) as plane:
            bridge = Bridge(lab, process, plane)
            first, second, third = (bridge.participant(rid, 7) for rid in (1, 2, 3))
            bridge.replication.insert_tree(5, [(1, None), (2, None)])
            sender = bridge.stream(0x1234, Action(5, 0, 0, 0, 7))
            before = everything(bridge)
            with sender.talking(gap=0.002):
                sender.goes_on()
                process.kill()
                sender.goes_on()
                process.start()
                plane.reconnect()
                assert everything(bridge) == before
                sender.goes_on()
                bridge.replication.modify_tree(5, [(1, None), (2, None), (3, None)])
                sender.goes_on()
            got = [participant.numbers() for participant in (first, second, third)]
            assert got[0] == got[1] == list(range(sender.sent)) and sender.sent > 80
            assert 0 < len(got[2]) < sender.sent and got[2] == list(range(got[2][0], sender.sent))
            bridge.close_sockets()
