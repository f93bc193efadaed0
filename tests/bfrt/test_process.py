"""The softswitch process in a network namespace of its own: ready line, entries that survive it, an orderly end."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
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
from tests.bfrt.test_relay_table import entry, entry6, until

ROOT = Path(__file__).resolve().parents[2]
PIN_DIR = Path(f"/sys/fs/bpf/bfrt-test-{os.getpid()}")

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces and XDP"),
    pytest.mark.skipif(not (ROOT / "softswitch/shunt_softswitch/obj/relay.o").exists(), reason="needs the built XDP programs: make build"),
]


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    name = f"bfrt{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        for command in ("link set lo up", "link add in0 type veth peer name out0", "link set in0 up", "link set out0 up", "address add 10.91.1.1/24 dev in0", "neigh replace 10.91.1.2 lladdr 02:00:00:00:00:02 dev in0 nud permanent", "route add default via 10.91.1.2"):
            subprocess.run(["ip", "-n", name, *command.split()], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


_MAIN = """
import asyncio, signal
from shunt_softswitch.server import run

async def main():
    task = asyncio.ensure_future(run(**settings))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        pass

asyncio.run(main())
"""


class Process:
    """A softswitch; its socket is a path, which network namespaces do not part."""

    def __init__(self, namespace: str, path: Path) -> None:
        self.namespace = namespace
        self.path = path
        self.child: subprocess.Popen[str] | None = None
        self.ready = ""
        self.settings: dict[str, object] = {"interfaces": ["in0"], "capacity": 2_000, "pin_dir": str(PIN_DIR)}

    @property
    def target(self) -> str:
        return f"unix:{self.path}"

    async def start(self, *, unload: bool = False, notify: str | None = None) -> str:
        """Start it; the result is its first line on stdout, empty when it ends without one."""
        settings = {**self.settings, "listen": [self.target], "unload_on_exit": unload}
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("agent", "softswitch"))}
        if notify is not None:
            environment["NOTIFY_SOCKET"] = notify
        # Not `ip netns exec`: that would also give it a /sys of its own, whose pins end with it.
        command = ["nsenter", f"--net=/run/netns/{self.namespace}", sys.executable, "-c", f"settings = {settings!r}\n{_MAIN}"]
        self.child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        self.ready = await asyncio.wait_for(asyncio.to_thread(self.child.stdout.readline), 20)
        return self.ready

    async def stop(self, number: int = signal.SIGTERM) -> int:
        child, self.child = self.child, None
        if child is None:
            return 0
        child.send_signal(number)
        out, err = await asyncio.to_thread(child.communicate, timeout=10)
        assert "Traceback" not in err, err
        return child.returncode


@pytest.fixture
async def process(namespace: str, tmp_path: Path) -> AsyncIterator[Process]:
    made = Process(namespace, tmp_path / "bfrt.sock")
    try:
        yield made
    finally:
        await made.stop(signal.SIGKILL)
        await made.start(unload=True)
        await made.stop()
        if PIN_DIR.exists():
            subprocess.run(["umount", str(PIN_DIR)], capture_output=True)
            shutil.rmtree(PIN_DIR, ignore_errors=True)


@pytest.fixture
async def table(process: Process) -> AsyncIterator[RelayTable]:
    made = RelayTable(process.target, client_id=1)
    await made.start()
    yield made
    await made.close()


def pinned() -> list[str]:
    return sorted(path.name for path in PIN_DIR.iterdir()) if PIN_DIR.exists() else []


async def test_entries_survive_the_process(process: Process, table: RelayTable) -> None:
    ready = await process.start()
    assert ready.startswith("READY softswitch ready: ") and "XDP on in0" in ready and "2000 entries" in ready, ready
    await until(lambda: table.connected, 15)
    assert table.data_plane in ("softswitch (native XDP on in0)", "softswitch (generic XDP on in0)")
    entries = [entry(1), entry(2, dscp=46, src=Endpoint.of("10.91.1.9", 7)), entry6(1)]
    # A second source at one relay port, which has no slot of its own.
    entries.append(replace(entry(1), key=FiveTuple(Endpoint.of("11.9.9.9", 9), entry(1).key.dst)))
    assert all(result.ok for result in await table.insert_many(entries))
    media = [MediaRange(bytes((10, 91, 1, 1)), 10_000, 20_000)]
    assert (await table.declare_media(media)).ok
    assert await table.entries() == {e.key: e for e in entries}
    stats = await table.stats(None)
    assert set(stats) == {e.key for e in entries} and all(s.packets == 0 and s.idle_ms is not None for s in stats.values())
    trace = await table.trace(entry(1).key)
    assert trace["out_src"] == str(entry(1).src) and trace["out_dst"] == str(entry(1).dst), trace
    assert (await table.totals())["entries"] == 4

    assert await process.stop() == 0
    assert pinned()
    await until(lambda: not table.connected)
    await process.start()
    assert "4 of 2000 entries" in process.ready
    await until(lambda: table.connected, 15)
    assert await table.entries() == {e.key: e for e in entries}
    assert (await table.declare_media(media)).ok
    assert [r.outcome.value for r, _ in await table.delete_many([e.key for e in entries])] == ["removed"] * 4

    await process.stop(signal.SIGKILL)
    await process.start(unload=True)
    await until(lambda: table.connected, 15)
    assert await process.stop() == 0
    assert not pinned()


async def test_a_stopped_process_is_waited_for_neither_long_nor_in_vain(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP: connections stand, and nobody answers. What was written meanwhile is done, or is not, as the results say."""
    monkeypatch.setattr(relay_table, "_URGENT", replace(relay_table._URGENT, timeout=0.4, patience=1.0))
    monkeypatch.setattr(relay_table, "_EXTENSION", 0.2)
    monkeypatch.setattr(bfrt_client, "_HUNG", 0.8)
    await process.start()
    table = RelayTable(process.target, client_id=1)
    await table.start()
    try:
        await until(lambda: table.connected, 15)
        assert (await table.insert(entry(1))).ok
        child = process.child
        assert child is not None
        child.send_signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            (gone, _), new = await asyncio.gather(table.delete(entry(1).key), table.insert(entry(2)))
            assert time.monotonic() - started < 4
            assert gone.outcome is new.outcome is Outcome.UNAVAILABLE
            await until(lambda: not table.connected)
        finally:
            child.send_signal(signal.SIGCONT)
        await until(lambda: table.connected, 15)
        # Nobody claims either of the two now: both are looked at, and out in the end.
        async with asyncio.timeout(15):
            while await table.entries():
                await asyncio.sleep(0.2)
        assert (await table.insert(entry(3))).ok and set(await table.entries()) == {entry(3).key}
        assert (await table.delete(entry(3).key))[0].ok
    finally:
        await table.close()


async def test_what_cannot_be_had_is_said(process: Process, namespace: str) -> None:
    await process.start()
    second = Process(namespace, process.path.with_name("second.sock"))
    assert await second.start() == ""
    assert second.child is not None
    _, err = await asyncio.to_thread(second.child.communicate, timeout=10)
    assert second.child.returncode != 0 and "OSError" in err.splitlines()[-1], err


async def test_systemd_is_told(process: Process) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(process.path) + ".notify")
        notify.settimeout(10)
        await process.start(notify=str(process.path) + ".notify")
        message = await asyncio.to_thread(notify.recv, 4096)
    assert message.startswith(b"READY=1\nSTATUS=softswitch ready: ")
