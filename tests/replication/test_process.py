"""A meeting over a softswitch process that is killed: the kernel goes on, and the next process knows everything."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.bfrt.conftest import Raw
from tests.bfrt.test_process import Process
from tests.dataplane import lab as lab_module
from tests.dataplane.lab import RELAY_A4, Lab
from tests.replication.conftest import Sender, fix_neighbours, numbers, roomy, settled
from tests.replication.test_tables import CONFERENCE, COPY, INSERT, MGID, MODIFY, NODE, copy, node, read, stream, tree, values

pytestmark = pytest.mark.netns


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[tuple[Process, Lab]]:
    reason = lab_module.missing()
    if reason:
        pytest.skip(reason)
    with lab_module.build("p") as lab:
        with lab_module.inside(lab.ns("relay")):
            fix_neighbours()
        made = Process(lab.ns("relay"), tmp_path / "bfrt.sock")
        made.settings = {"interfaces": ["ra", "rb"], "capacity": 1000, "pin_dir": f"/sys/fs/bpf/{lab.prefix}", "conference_copies": 100}
        try:
            yield made, lab
        finally:
            await made.stop(signal.SIGKILL)
            await made.start(unload=True)
            await made.stop()
            assert not Path(f"/sys/fs/bpf/{lab.prefix}").exists()


async def tables(client: Raw) -> list[object]:
    """All entries of the tables, without their counters."""
    found = []
    for table in (CONFERENCE, COPY, MGID, NODE):
        for entity in (await client.read(read(table))).entities:
            data = {name: value for name, value in values(table, entity.table_entry).items() if not name.startswith("$COUNTER")}
            found.append((table.name, entity.table_entry.key.SerializeToString(), sorted(data.items())))
    return sorted(found)


async def test_kill_9_under_traffic(process: tuple[Process, Lab]) -> None:
    softswitch, lab = process
    assert (await softswitch.start()).startswith("READY")
    receivers = [roomy(lab.socket("b", lab_module.HOST_B4, 41_000 + n)) for n in range(3)]
    talker = lab.socket("a", lab_module.HOST_A4, 5000)
    sender = Sender(talker, lab_module.ep(f"{RELAY_A4}:6000"), 0x1234)
    async with grpc.aio.insecure_channel(softswitch.target) as channel:
        client = await Raw(channel, 1).connect()
        updates = [node(INSERT, n, n) for n in range(3)]
        updates += [copy(INSERT, 7, n, lab_module.ep(f"{lab_module.HOST_B4}:{41_000 + n}"), 20_000 + n) for n in range(3)]
        updates += [tree(INSERT, 5, [0, 1]), stream(INSERT, lab_module.ep(f"{lab_module.HOST_A4}:5000"), sender.relay, sender.ssrc, mgid=5, stream=7)]
        await client.write(*updates)
        before = await tables(client)
    with sender.talking(gap=0.002):
        await softswitch.stop(signal.SIGKILL)
        settled()
        await softswitch.start()
        async with grpc.aio.insecure_channel(softswitch.target) as channel:
            client = await Raw(channel, 2).connect()
            assert await tables(client) == before
            settled()
            await client.write(tree(MODIFY, 5, [0, 1, 2]))
            settled()
    first, second, third = (numbers(one) for one in receivers)
    assert first == second == list(range(sender.sent)) and sender.sent > 100
    assert 0 < len(third) < sender.sent and third == list(range(third[0], sender.sent))
    for one in (*receivers, talker):
        one.close()
