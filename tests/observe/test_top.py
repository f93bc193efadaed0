"""`shunt top` and `shunt history` over a real REST API, and the log's lines."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import logging
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from rich.console import Console

from shunt.cli import logs, top
from shunt.cli.main import cli
from tests.operator import stand_in
from tests.operator.stand_in import HOSTILE_CALL_ID, StandIn


@pytest.fixture
def api() -> Iterator[tuple[str, StandIn]]:
    """A REST API in a thread of its own, for commands that block."""
    loop, view = asyncio.new_event_loop(), StandIn()
    server = stand_in.server(view, "127.0.0.1:0")
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(5)
    yield f"http://{server.listen}", view
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def run(*argv: str):
    return CliRunner().invoke(cli, argv, env={"COLUMNS": "140", "TERM": "dumb"})


def test_top_shows_calls_relays_and_rates(api) -> None:
    url, view = api
    done = run("top", "--once", "--interval", "0.2", "--api", url)
    assert done.exit_code == 0, done.output
    for words in ("first@x", "r1", "14 of 262 144 entries", "offloaded", "198.51.100.9:41000", "newest of 4 calls"):
        assert words in done.output, words
    assert "\x1b[2J" not in done.output and "[bold]" in done.output, "a Call-ID is text, neither control codes nor markup"


def test_top_lives_on_a_terminal_and_ends_with_q(api) -> None:
    url, view = api
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    command = [sys.executable, "-m", "shunt.cli.main", "top", "--interval", "0.2", "--api", url]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"}, close_fds=True)
    os.close(slave)
    try:
        seen = _read_until(master, "first@x", 10)
        view.broken = True
        seen += _read_until(master, "waiting for it", 10)
        view.broken = False
        os.write(master, b"q")
        assert process.wait(60) == 0, seen
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _read_until(fd: int, text: str, seconds: float) -> str:
    seen, deadline = "", time.monotonic() + seconds
    while text not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([fd], [], [], 0.1)[0]:
            seen += os.read(fd, 65536).decode(errors="replace")
    return seen


def test_top_as_json_has_status_and_calls(api) -> None:
    url, view = api
    found = json.loads(run("top", "--json", "--api", url).output)
    assert found["status"] == asyncio.run(view.status()) and len(found["calls"]) == 4


def test_top_says_when_there_is_no_agent() -> None:
    done = run("top", "--once", "--api", "127.0.0.1:9")
    assert done.exit_code == 3 and "no agent at" in done.output


def test_rates_come_from_two_looks_and_survive_a_restart() -> None:
    rates = top.Rates()
    rates.look(10.0, {"data_plane": 1000, "relay": None})
    assert rates.now == {}
    rates.look(12.0, {"data_plane": 1500, "relay": 10})
    assert rates.now == {"data_plane": 250.0}
    rates.look(13.0, {"data_plane": 20, "relay": 30})
    assert rates.now == {"relay": 20.0}, "a counter that went back has no rate"
    assert list(rates.course["data_plane"]) == [250.0]


def test_a_total_that_is_read_more_rarely_than_it_is_looked_at_has_the_rate_of_its_readings() -> None:
    rates = top.Rates()
    for at, total, age in ((10.0, 1000, 0.5), (11.0, 1000, 1.5), (12.0, 3000, 0.5), (13.0, 3000, 1.5)):
        rates.look(at, {"data_plane": total}, {"data_plane": age})
    assert rates.now == {"data_plane": 1000.0} and list(rates.course["data_plane"]) == [1000.0, 1000.0]
    rates.look(14.0, {"data_plane": None}, {"data_plane": None})
    assert rates.now == {}, "it is not known"


@pytest.mark.parametrize(("values", "drawn"), [([], ""), ([0, 0], "  "), ([0, 5, 10], " ▄█")])
def test_sparklines(values: list[float], drawn: str) -> None:
    assert top.sparkline(values) == drawn


async def test_a_view_fits_the_terminal_and_says_what_is_wrong() -> None:
    view = StandIn()
    status = await view.status() | {"drain": {"stop": "calls"}, "role": "standby"}
    status["relays"][0]["alive"] = False
    status["data_plane"]["connected"] = False
    calls, total = await view.calls(None, None, None, 0, 60)
    page = {"calls": calls * 30, "total": total}
    console = Console(file=io.StringIO(), width=120, height=30)
    console.print(top.screen(status, page, top.Rates(), 30))
    text = console.file.getvalue()
    assert len(text.splitlines()) <= 30
    for words in ("DRAINING (no new stream is offloaded)", "standby", "NOT CONNECTED", "DOWN"):
        assert words in text, words


def test_history_tells_the_diagnosis_first_and_every_event(api) -> None:
    url, _ = api
    done = run("history", "first@x", "--api", url)
    lines = done.output.splitlines()
    assert done.exit_code == 0
    assert lines[1] == "!! One-way audio: the caller sends, but the callee has sent nothing so far."
    assert any("rtpproxy" in line and "U offer — U first@x [bold] — reply 35000" in line for line in lines)
    assert any("+0.812s" in line.replace(" ", "") or "0.812s" in line for line in lines)


def test_history_as_json_and_of_an_unknown_call(api) -> None:
    url, _ = api
    assert json.loads(run("history", "first@x", "--json", "--api", url).output)["diagnosis"][0]["level"] == "problem"
    assert run("history", HOSTILE_CALL_ID, "--api", url).exit_code == 0
    unknown = run("history", "nobody", "--api", url)
    assert unknown.exit_code == 1 and "nobody" in unknown.output


def record(style: str, message: str, **extra) -> str:
    stream = io.StringIO()
    logs.configure("info", style)
    handler = logging.getLogger().handlers[0]
    handler.stream = stream
    logging.getLogger("test").info(message, extra=extra or None)
    return stream.getvalue()


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
def test_log_lines_of_calls_have_fields_of_their_own() -> None:
    line = json.loads(record("json", "x", call_id="c2", event="table", what="insert"))
    assert (line["call_id"], line["event"], line["what"]) == ("c2", "table", "insert")
    assert "call_id" not in json.loads(record("json", "nobody's"))


@pytest.mark.usefixtures("root_logger")
def test_what_came_from_the_network_starts_no_line_of_its_own() -> None:
    assert record("text", "c1\n2026 ERROR forged\x1b[2J").count("\n") == 1
