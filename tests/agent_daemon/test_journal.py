"""The journal of shunt-agent: calls outlive it, whatever becomes of the file."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shunt.admin import AdminClient
from tests.agent_daemon.lab import LiveScene, live
from tests.agent_daemon.test_calls import talk
from tests.agent_daemon.test_telling import QUICK
from tests.lab.load import ControlClient
from tests.lab.processes import CONTROL_PORT, RELAY_PORT

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


async def status(scene: LiveScene) -> dict[str, Any]:
    async with AdminClient(str(scene.lab.admin)) as admin:
        return await admin.status()


async def until(scene: LiveScene, fits: Callable[[dict[str, Any]], bool], seconds: float = 60.0) -> dict[str, Any]:
    """Wait for a status."""
    deadline = time.monotonic() + seconds
    while not fits(found := await status(scene)):
        assert time.monotonic() < deadline, (found, scene.lab.agent.tail())
        await asyncio.sleep(0.05)
    return found


async def restart(scene: LiveScene) -> None:
    """kill -9, and another one."""
    scene.lab.agent.kill()
    await asyncio.to_thread(scene.lab.start_agent)


async def test_a_call_outlives_the_agent_without_losing_a_packet(tmp_path: Path) -> None:
    """kill -9 in a call with media: no packet is lost, the call is restored, and a D removes its entries."""
    async with live(tmp_path, "shunt-relay") as scene:
        to_caller, to_callee = await scene.call("call-1", natted=False)
        await talk(scene, to_caller, to_callee)
        await asyncio.sleep(0.3)
        before, sent = scene.callee.received[scene.caller.ssrc], scene.caller.sent
        await restart(scene)
        found = await until(scene, lambda found: found["data_plane"]["reconciled"])
        assert (found["calls"], found["calls_to_restore"], found["data_plane"]["planned"], found["data_plane"]["orphans"]) == (1, 0, 2, 0), found
        assert found["journal"]["kind"] == "sqlite" and found["journal"]["error"] is None
        await scene.caller.hush()
        await asyncio.sleep(0.2)
        assert 0 <= scene.callee.received[scene.caller.ssrc] - before - (scene.caller.sent - sent) <= 1
        await scene.hang_up("call-1")
        await scene.until_entries(0)
        await restart(scene)
        assert (await until(scene, lambda found: found["data_plane"]["reconciled"]))["calls"] == 0


async def test_a_command_right_after_the_start_knows_its_call(tmp_path: Path) -> None:
    """A D that was sent while no agent was there is repeated, and is the first that the next agent hears."""
    async with live(tmp_path, "shunt-relay") as scene:
        await talk(scene, *await scene.call("call-1", natted=False))
        scene.lab.agent.kill()
        scene.lab.agent.start()
        await scene.hang_up("call-1")
        await scene.until_entries(0)


@pytest.mark.parametrize("damage", ["garbage", "cut", "directory", "row"])
async def test_a_damaged_journal_is_moved_aside_and_calls_are_served(tmp_path: Path, damage: str) -> None:
    """The agent starts, says so once, and has the call from the data plane and the relay's list."""
    async with live(tmp_path, "shunt-relay") as scene:
        await talk(scene, *await scene.call("call-1", natted=False))
        await asyncio.to_thread(scene.lab.agent.stop)
        journal = tmp_path / "journal.sqlite"
        if damage == "row":
            with sqlite3.connect(journal) as database:
                database.execute("UPDATE lines SET row = 'nothing'")
        elif damage == "directory":
            journal.unlink()
            journal.mkdir()
        else:
            journal.write_bytes(b"x" * 9000 if damage == "garbage" else journal.read_bytes()[:6000])
        await asyncio.to_thread(scene.lab.start_agent)
        found = await until(scene, lambda found: found["data_plane"]["orphans"] == 0 and found["calls"] == 1)
        assert found["journal"]["error"] is None
        assert len(list(tmp_path.glob("journal.sqlite.damaged-*"))) == (damage != "row")
        assert await scene.client.command("Uc8 call-2 10.0.0.1 6000 A;1") is not None
        await scene.hang_up("call-1")
        await scene.until_entries(0)


async def test_a_full_disk_holds_no_call_up(tmp_path: Path) -> None:
    """Calls are set up, the status says what is wrong, and all is written once there is room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", disk], check=True)
    try:
        async with live(tmp_path, "shunt-relay", journal={"path": str(disk / "journal.sqlite")}) as scene:
            with open(disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError, match="space"):
                while True:
                    filler.write(bytes(4096))
            for number in range(50):
                assert await scene.client.command(f"Uc8 full-{number} 10.0.0.1 6000 A;1") is not None
            found = await until(scene, lambda found: found["journal"]["error"] is not None)
            assert "journal-failed" in {problem["code"] for problem in found["problems"]} and found["journal"]["pending"] > 0
            (disk / "filler").unlink()
            await until(scene, lambda found: found["journal"]["error"] is None and found["journal"]["pending"] == 0)
            await restart(scene)
            assert (await until(scene, lambda found: found["calls_to_restore"] == 0 and found["data_plane"]["reconciled"]))["calls"] == 50
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def multiply(journal: Path, count: int) -> None:
    """The one row of a journal, as that of so many calls."""
    with sqlite3.connect(journal) as database:
        row = json.loads(database.execute("SELECT row FROM lines").fetchone()[0])
        row |= {"streams": [], "kept_alive_ms": None, "ttl_raised": False}

        def rows() -> Any:
            for number in range(count):
                address, port = f"10.99.{number // 10_000}.1", 4 * (number % 10_000) + 10_000
                row["key"]["call_id"] = name = f"many-{number}"
                row["caller"]["relay"], row["callee"]["relay"] = f"{address}:{port}", f"{address}:{port + 2}"
                yield name.encode(), row["key"]["tag"].encode(), row["key"]["media"] or -1, port, port + 2, json.dumps(row).encode()

        database.executemany("INSERT INTO lines (call_id, tag, media, caller_port, callee_port, row) VALUES (?, ?, ?, ?, ?, ?)", rows())


async def test_an_agent_with_many_calls_to_restore_serves_at_once(tmp_path: Path) -> None:
    """With 20,000 rows it answers while it restores them, and then knows all of them."""
    count = int(os.environ.get("SHUNT_JOURNAL_ROWS", "20000"))
    async with live(tmp_path, "shunt-relay") as scene:
        await scene.call("call-1", natted=False)
        await asyncio.to_thread(scene.lab.agent.stop)
        multiply(tmp_path / "journal.sqlite", count)
        began = time.monotonic()
        scene.lab.agent.start()
        # The log has the READY of the agent before it.
        await asyncio.to_thread(scene.lab.agent.await_listening, "udp", CONTROL_PORT)
        ready = time.monotonic() - began
        assert await scene.client.command(f"Q many-{count - 1} A;1 B;1") is not None
        answered = time.monotonic() - began
        await until(scene, lambda found: found["calls"] == count + 1 and found["calls_to_restore"] == 0, 60)
        restored = time.monotonic() - began
        memory = next(line for line in Path(f"/proc/{scene.lab.agent.pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
        print(f"{count} rows: ready after {ready:.3f} s, first answer after {answered:.3f} s, restored after {restored:.3f} s, {memory}")
        assert answered < restored


async def test_a_call_that_ended_while_the_agent_was_away_leaves_no_entries(tmp_path: Path) -> None:
    """The D went to the relay itself: once the entries are idle, the relay is asked, and they go."""
    async with live(tmp_path, "shunt-relay", relays=QUICK) as scene:
        await talk(scene, *await scene.call("call-1", natted=False))
        await asyncio.to_thread(scene.lab.agent.stop)
        past = ControlClient.to(scene.topology, port=RELAY_PORT)
        assert await past.command("D call-1 A B") == b"0"
        past.close()
        await scene.caller.hush()
        await scene.callee.hush()
        await asyncio.to_thread(scene.lab.start_agent)
        assert len(await scene.entries()) == 2
        await scene.until_entries(0)
