"""The softswitch process in a network namespace of its own: ready line, entries that survive it, an orderly end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shunt.bfrt import client as bfrt_client
from shunt.net import Endpoint, FiveTuple
from shunt.tables import relay_table
from shunt.tables.entry import MediaRange, Outcome
from shunt.tables.relay_table import RelayTable
from tests.bfrt.conftest import other
from tests.bfrt.test_relay_table import entry, entry6, until
from tests.bfrt.traffic import namespace
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch, SoftswitchFailed

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces and XDP")]


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    with namespace() as name:
        yield name


@pytest.fixture
def process(home: str) -> Iterator[Softswitch]:
    """One that has not been started."""
    made = Softswitch(["in0"], namespace=home)
    try:
        yield made
    finally:
        made.unload()


async def start(process: Softswitch, *, unload: bool = False) -> str:
    """Start it while the agent's table goes on; its READY line."""
    return await asyncio.to_thread(process.start, unload=unload)


@pytest.fixture
async def table(process: Softswitch) -> AsyncIterator[RelayTable]:
    made = RelayTable(process.target, client_id=1)
    await made.start()
    yield made
    await made.close()


async def test_entries_survive_the_process(process: Softswitch, table: RelayTable) -> None:
    ready = await start(process)
    assert ready.startswith("READY softswitch ready: ") and "XDP on in0" in ready and "2000 entries" in ready, ready
    await until(lambda: table.connected)
    assert table.data_plane in ("softswitch (native XDP on in0)", "softswitch (generic XDP on in0)")
    entries = [entry(1), entry(2, dscp=46, src=Endpoint.of("10.91.1.9", 7)), entry6(1)]
    # A second source at one relay port, which has no slot of its own.
    entries.append(replace(entry(1), key=FiveTuple(Endpoint.of("11.9.9.9", 9), entry(1).key.dst)))
    assert all(result.ok for result in await table.insert_many(entries))
    media = [MediaRange(bytes((10, 91, 1, 1)), 10_000, 20_000)]
    assert (await table.declare_media(media)).ok

    async def all_there() -> bool:
        found = await table.entries()
        return found.keys() == {e.key for e in entries} and all(found[e.key].does_as(e) and found[e.key].ttl_ms <= e.ttl_ms for e in entries)

    assert await all_there()
    stats = await table.stats(None)
    assert set(stats) == {e.key for e in entries} and all(s.packets == 0 and s.idle_ms is not None for s in stats.values())
    trace = await table.trace(entry(1).key)
    assert trace["out_src"] == str(entry(1).src) and trace["out_dst"] == str(entry(1).dst), trace
    assert (await table.totals())["entries"] == 4

    await asyncio.to_thread(process.stop)
    assert process.pinned()
    await until(lambda: not table.connected)
    assert "4 of 2000 entries" in await start(process)
    await until(lambda: table.connected)
    assert await all_there()
    assert (await table.declare_media(media)).ok
    assert [r.outcome.value for r, _ in await table.delete_many([e.key for e in entries])] == ["removed"] * 4

    process.kill()
    await start(process, unload=True)
    await until(lambda: table.connected)
    await asyncio.to_thread(process.stop)
    assert process.pinned() == []


async def test_a_stopped_process_is_waited_for_neither_long_nor_in_vain(process: Softswitch, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP: connections stand, and nobody answers. What was written meanwhile is done, or is not, as the results say."""
    monkeypatch.setattr(relay_table, "_URGENT", replace(relay_table._URGENT, timeout=0.4, patience=1.0))
    monkeypatch.setattr(relay_table, "_EXTENSION", 0.2)
    monkeypatch.setattr(bfrt_client, "_HUNG", 0.8)
    await start(process)
    table = RelayTable(process.target, client_id=1)
    await table.start()
    try:
        await until(lambda: table.connected)
        assert (await table.insert(entry(1))).ok
        process.signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            (gone, _), new = await asyncio.gather(table.delete(entry(1).key), table.insert(entry(2)))
            assert time.monotonic() - started < 10
            assert gone.outcome is new.outcome is Outcome.UNAVAILABLE
            await until(lambda: not table.connected)
        finally:
            process.signal(signal.SIGCONT)
        await until(lambda: table.connected)
        # Nobody claims either of the two now: both are looked at, and out in the end.
        async with asyncio.timeout(60):
            while await table.entries():
                await asyncio.sleep(0.2)
        assert (await table.insert(entry(3))).ok and set(await table.entries()) == {entry(3).key}
        assert (await table.delete(entry(3).key))[0].ok
    finally:
        await table.close()


async def test_what_cannot_be_had_is_said(process: Softswitch, home: str) -> None:
    """A second softswitch with the same folder of pins ends with a reason, and the first goes on."""
    await start(process)
    second = Softswitch(["in0"], namespace=home, pin_dir=process.pin_dir)
    with pytest.raises(SoftswitchFailed) as failed:
        await start(second)
    assert failed.value.code not in (0, None) and str(process.pin_dir) in failed.value.log.splitlines()[-1], failed.value.log
    assert process.running and process.pinned()


async def test_systemd_is_told(process: Softswitch, tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    process.environment["NOTIFY_SOCKET"] = path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(path)
        notify.settimeout(30)
        await start(process)
        message = await asyncio.to_thread(notify.recv, 4096)
    lines = message.decode().splitlines()
    assert "READY=1" in lines and any(line.startswith("STATUS=softswitch ready: ") for line in lines), lines


def test_an_end_in_order_though_nobody_reads_the_log(process: Softswitch) -> None:
    """Whoever read standard output and error has gone: what cannot be said is not said, and the process goes on and ends as ever."""
    file = process.folder / "shunt.yaml"
    file.write_text(json.dumps({"softswitch": process.settings() | {"pin_dir": str(process.pin_dir)}, "log": {"level": "debug", "format": "text"}}))
    child = subprocess.Popen([*process.command(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline().startswith(b"READY")
        child.stdout.close()
        child.stderr.close()
        with Plane(process.target, bind=True) as plane:  # a client that comes and goes is a line of the log
            assert plane.insert([other(1)]) == [None]
        child.terminate()
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
