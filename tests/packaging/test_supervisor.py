"""What systemd hears of agent and operator daemon: ready once they answer, signs of life while their loops turn, the end."""

from __future__ import annotations

import asyncio
import grp
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
import yaml

from shunt import supervisor
from tests.lab.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PERIOD_S = 0.6


class Ear:
    """The socket that systemd would listen on."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind("\0" + address[1:] if address.startswith("@") else address)
        self._sock.setblocking(False)

    async def next(self, seconds: float) -> dict[str, str]:
        """The next message. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            text = await asyncio.get_running_loop().sock_recv(self._sock, 4096)
        return dict(line.split("=", 1) for line in text.decode().splitlines())

    async def until(self, name: str, seconds: float = 60.0) -> dict[str, str]:
        """The next message that says this. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while True:
            said = await self.next(max(0.0, deadline - time.monotonic()))
            if name in said:
                return said

    def close(self) -> None:
        self._sock.close()


async def under_a_watchdog(command: str, config: Path) -> None:
    """A daemon says that it is ready, shows life while it is not stopped, and says that it ends."""
    ear = Ear(str(config.with_name(f"{command}.notify")))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "operator"), "NOTIFY_SOCKET": ear.address, "WATCHDOG_USEC": str(int(PERIOD_S * 1e6))}
    child = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        'WATCHDOG_PID=$$ exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "shunt.cli.main",
        command,
        "-c",
        str(config),
        env=environment,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await ear.until("READY")
        for _ in range(4):
            await ear.until("WATCHDOG")
        # One that hangs shows no life: so systemd ends it.
        child.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            while True:
                await ear.next(PERIOD_S)
        child.send_signal(signal.SIGCONT)
        await ear.until("WATCHDOG")
        child.terminate()
        await ear.until("STOPPING")
        assert await asyncio.wait_for(child.wait(), 60) == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        ear.close()


@pytest.mark.parametrize("command", ["agent", "operator"])
async def test_a_daemon_under_a_watchdog(tmp_path: Path, command: str) -> None:
    config = tmp_path / "shunt.yaml"
    group = grp.getgrgid(os.getgid()).gr_name
    config.write_text(
        yaml.safe_dump(
            {
                "control": {"listen": [f"udp:127.0.0.1:{free_port(socket.SOCK_DGRAM)}"]},
                "api": {"listen": f"127.0.0.1:{free_port(socket.SOCK_STREAM)}"},
                "relays": [{"name": "local", "socket": f"udp:127.0.0.1:{free_port(socket.SOCK_DGRAM)}"}],
                "admin": {"socket": str(tmp_path / "admin.sock"), "socket_group": group, "events": str(tmp_path / "events")},
                "operator": {"state_dir": str(tmp_path / "state")},
            }
        )
    )
    await under_a_watchdog(command, config)


async def test_without_a_supervisor_nothing_is_sent_and_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    assert supervisor.tell(READY=1) is False
    assert supervisor.watchdog_period() is None
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    assert supervisor.watchdog_period() == 2.0
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid() + 1))
    assert supervisor.watchdog_period() is None, "meant for another process"


async def test_an_abstract_socket_and_text_of_several_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    ear = Ear(f"@shunt-test-{os.getpid()}")
    monkeypatch.setenv("NOTIFY_SOCKET", ear.address)
    assert supervisor.tell(STATUS="two\nMAINPID=1", READY=1)
    assert await ear.next(2.0) == {"STATUS": "two MAINPID=1", "READY": "1"}
    ear.close()


async def test_a_supervisor_that_is_gone_does_not_take_its_service_along(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    assert supervisor.tell(READY=1) is False
