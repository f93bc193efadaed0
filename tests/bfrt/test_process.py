"""The softswitch process in a network namespace of its own: ready line, entries that survive it, an orderly end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shunt.net import Endpoint, FiveTuple
from tests.bfrt.conftest import other
from tests.bfrt.traffic import namespace
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch, SoftswitchFailed
from tests.tools.entry import MediaRange, RelayEntry

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

SIX_TO_FOUR = RelayEntry(FiveTuple(Endpoint.of("2001:db8::1", 2), Endpoint.of("2001:db8::2", 2)), Endpoint.of("10.1.1.1", 3), Endpoint.of("10.2.2.2", 4), 30_000, 46)


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


def test_entries_survive_the_process(process: Softswitch) -> None:
    ready = process.start()
    assert ready.startswith("READY softswitch ready: ") and "XDP on in0" in ready and "2000 entries" in ready, ready
    entries = [other(1), replace(other(2), dscp=46, src=Endpoint.of("10.91.1.9", 7)), SIX_TO_FOUR]
    # A second source at one relay port, which has no slot of its own.
    entries.append(replace(entries[0], key=FiveTuple(Endpoint.of("11.9.9.9", 9), entries[0].key.dst)))
    media = MediaRange(bytes((10, 91, 1, 1)), 10_000, 20_000)
    wanted = {entry.key: entry for entry in entries}
    with Plane(process.target) as plane:
        assert plane.insert(entries) == [None] * len(entries) and plane.add_media(media) is None
        assert plane.entries() == wanted
        trace = plane.trace(entries[0].key)
        assert trace["out_src"] == str(entries[0].src) and trace["out_dst"] == str(entries[0].dst), trace
        process.stop()
        assert process.pinned()
        assert "4 of 2000 entries" in process.start()
        plane.reconnect()
        assert plane.entries() == wanted and plane.media() == [media]
        assert plane.delete(list(wanted)) == [True] * len(entries)
    process.kill()
    process.take_out()
    assert process.pinned() == []


def test_what_cannot_be_had_is_said(process: Softswitch, home: str) -> None:
    """A second softswitch with the same folder of pins ends with a reason, and the first goes on."""
    process.start()
    second = Softswitch(["in0"], namespace=home, pin_dir=process.pin_dir)
    with pytest.raises(SoftswitchFailed) as failed:
        second.start()
    assert failed.value.code not in (0, None) and str(process.pin_dir) in failed.value.log.splitlines()[-1], failed.value.log
    assert process.running and process.pinned()


def test_systemd_is_told(process: Softswitch, tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    process.environment["NOTIFY_SOCKET"] = path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(path)
        notify.settimeout(60)
        process.start()
        message = notify.recv(4096)
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
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
