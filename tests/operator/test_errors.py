"""What breaks between a command and what it asks: one plain sentence with what and where, for every command and every kind of socket and file."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import click
import pytest
import yaml
from click.testing import CliRunner, Result

from shunt.admin import AdminClient, AgentUnreachable
from shunt.cli import client
from shunt.cli.main import cli
from shunt.doctor.host import peers
from shunt.errors import cause, plain
from tests.lab.processes import ROOT

RAW = re.compile(r"Traceback|Errno|Error\(|Exception|ssl:default|<class|object at 0x|\bNone\b|Cannot connect to host")
Commands = list[tuple[tuple[str, ...], list[str]]]


def _commands(asks: str) -> Commands:
    """Every command with an option or argument of this name, and words for what else it needs."""
    found: Commands = []

    def walk(group: click.Group, path: tuple[str, ...]) -> None:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                walk(command, (*path, name))
            elif any(parameter.name == asks for parameter in command.params):
                found.append(((*path, name), [_word(parameter) for parameter in command.params if isinstance(parameter, click.Argument) and parameter.required and parameter.name != asks]))

    walk(cli, ())
    return found


def _word(argument: click.Argument) -> str:
    if isinstance(argument.type, click.Choice):
        return str(argument.type.choices[0])
    return {"src": "192.0.2.1:4000", "dst": "192.0.2.2:4000"}.get(argument.name or "", "x")


OF_API, OF_FILE = _commands("api"), [one for one in _commands("path") if one[0] != ("softswitch",)] + [(("softswitch",), [])]


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def is_one_sentence(result: Result, where: str) -> None:
    """No traceback, no class, one line that names where."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code != 0
    lines = result.output.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("shunt: ") and where in lines[0] and not RAW.search(lines[0]), result.output


@contextlib.contextmanager
def serving(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A Unix socket whose every connection is answered so."""
    over = threading.Event()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(16)
    listener.settimeout(0.05)

    def serve() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                link, _ = listener.accept()
                with link:
                    link.settimeout(5)
                    link.recv(65536)
                    answer(link)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield str(path)
    finally:
        over.set()
        thread.join()
        listener.close()


def _http(body: bytes, status: str = "200 OK", kind: str = "application/json") -> Callable[[socket.socket], None]:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    return lambda link: link.sendall(head + body)


def _hang(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.recv(1)  # until the other side gives up


GARBAGE: dict[str, Callable[[socket.socket], None]] = {
    "noise": lambda link: link.sendall(bytes(range(256)) * 4),
    "nothing": lambda link: None,
    "half a head": lambda link: link.sendall(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "half a body": lambda link: link.sendall(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 400\r\n\r\n{"calls":'),
    "a page": _http(b"<html>hello</html>", kind="text/html"),
    "broken JSON": _http(b'{"calls": [}'),
    "no text": _http(b"\xff\xfe\xfd"),
    "a list": _http(b"[]"),
    "a number": _http(b"7"),
    "another object": _http(b'{"hello": "there"}'),
    "other kinds of values": _http(json.dumps(dict.fromkeys(("calls", "conferences", "rooms", "streams", "events", "media", "stop", "next", "problems"), 3)).encode()),
    "an error of another program": _http(b"<h1>Bad Gateway</h1>", "502 Bad Gateway", "text/html"),
    "an error without a reason": _http(b"{}", "500 Internal Server Error"),
    "hangs": _hang,
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_TIMEOUT_S", 0.3)


@pytest.mark.parametrize("kind", GARBAGE)
def test_every_command_on_a_socket_that_answers_nonsense(tmp_path: Path, kind: str) -> None:
    with serving(tmp_path / "s", GARBAGE[kind]) as path:
        for command, words in OF_API:
            more = ["--yes"] if command == ("conference", "end") else []
            result = run(*command, *words, *more, "--api", f"unix:{path}")
            if result.exit_code == 0 and kind in ("another object", "other kinds of values"):
                assert not RAW.search(result.output), (command, result.output)
                continue
            is_one_sentence(result, path)
            assert result.exit_code == 3 or kind in ("an error without a reason",), (command, result.output)


@pytest.mark.parametrize("kind", ["dead", "missing", "denied", "no socket"])
def test_every_command_on_a_socket_that_is_not_to_be_had(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "folder" / "s"
    path.parent.mkdir()
    if kind == "no socket":
        path.write_text("")
    elif kind != "missing":
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(path))
        if kind == "denied":
            left.listen()
    path.parent.chmod(0o700)
    with unprivileged() if kind == "denied" else contextlib.nullcontext():
        for command, words in OF_API:
            result = run(*command, *words, "--api", f"unix:{path}")
            is_one_sentence(result, str(path))
            assert result.exit_code == 3 and ("Permission denied" in result.output) == (kind == "denied"), result.output


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Without the superuser's rights to files."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to give its rights up")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("kind", ["missing", "a folder", "denied", "no text", "no YAML", "a list"])
def test_every_command_with_a_file_that_cannot_be_used(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "shunt.yaml"
    match kind:
        case "a folder":
            path.mkdir()
        case "denied":
            path.write_text("relays: []\n")
            path.chmod(0)
        case "no text":
            path.write_bytes(b"relays: \xff\xfe\n")
        case "no YAML":
            path.write_text("relays: [}\n")
        case "a list":
            path.write_text("- relays\n")
    with unprivileged() if kind == "denied" else contextlib.nullcontext():
        for command, words in [*OF_FILE, (("check-config",), [])]:
            result = run(*command, *words, *(["-c"] if command != ("check-config",) else []), str(path))
            assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
            assert result.exit_code == 1 and str(path) in result.output and not RAW.search(result.output), (command, result.output)


async def _admin(path: str) -> str:
    async with AdminClient(path, 0.3) as admin:
        with pytest.raises(AgentUnreachable) as caught:
            await admin.status()
    return str(caught.value)


@pytest.mark.parametrize("kind", [name for name in GARBAGE if "object" not in name and "values" not in name and "a list" not in name and "number" not in name and "an error" not in name])
async def test_the_operator_daemon_says_what_is_wrong_with_the_agents_socket(tmp_path: Path, kind: str) -> None:
    with serving(tmp_path / "s", GARBAGE[kind]) as path:
        said = await _admin(path)
        assert said.startswith(f"agent at {path}: ") and not RAW.search(said) and "http://" not in said, said


async def test_the_operator_daemon_says_why_there_is_no_socket(tmp_path: Path) -> None:
    assert await _admin(f"{tmp_path}/none") == f"agent at {tmp_path}/none: No such file or directory"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left"))
        assert await _admin(f"{tmp_path}/left") == f"agent at {tmp_path}/left: Connection refused"


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", GARBAGE)
def test_doctor_beside_sockets_that_answer_nonsense(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agent, operator daemon, relay, data plane and Redis are one socket, with nonsense for all of them."""
    monkeypatch.setattr(peers, "LIMIT_S", 0.3)
    monkeypatch.setattr(peers, "_HEALTH_S", 0.3)
    with serving(tmp_path / "s", GARBAGE[kind]) as path:
        relay, plane, redis, admin, api = (tmp_path / name for name in ("relay", "plane", "redis", "admin", "api"))
        for link in (relay, plane, redis, admin, api):
            link.symlink_to(path)
        config = {
            "relays": [{"name": "local", "socket": f"cunix:{relay}", "media": [{"address": "192.0.2.1", "ports": "35000-36000"}]}],
            "data_plane": {"target": f"unix:{plane}"},
            "journal": {"redis": f"unix://{redis}"},
            "admin": {"socket": str(admin)},
            "api": {"listen": f"unix:{api}"},
        }
        (tmp_path / "shunt.yaml").write_text(yaml.safe_dump(config))
        result = run("doctor", "-c", str(tmp_path / "shunt.yaml"))
        assert isinstance(result.exception, SystemExit) and result.exit_code == 1, result.exc_info
        assert not RAW.search(result.output.replace("None of", "")), result.output
        health = [line for line in result.output.splitlines() if " health: " in line]
        assert len(health) == 1 and health[0].strip().startswith("unknown"), result.output


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory", "/x/y"), "/x/y: No such file or directory"),
        (OSError(28, "No space left on device"), "there: No space left on device"),
        (OSError("what it says"), "there: what it says"),
        (TimeoutError(), "there: no answer in time"),
        (TimeoutError(110, "Connection timed out"), "there: Connection timed out"),
        (socket.gaierror(-2, "Name or service not known"), "there: Name or service not known"),
        (ConnectionResetError(104, "Connection reset by peer"), "there: the connection was closed before the answer was complete"),
        (http.client.RemoteDisconnected("Remote end closed connection"), "there: the connection was closed before the answer was complete"),
        (http.client.BadStatusLine("\x00\x01"), "there: the answer is no HTTP"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:992)"), "there: TLS failed:"),
        (aiohttp.ServerDisconnectedError(), "there: the connection was closed before the answer was complete"),
        (aiohttp.ServerTimeoutError("Timeout on reading data from socket"), "there: no answer in time"),
        (UnicodeDecodeError("utf-8", b"ab\xff", 2, 3, "invalid start byte"), "there: no UTF-8 text: byte 0xff at offset 2"),
        (ValueError("one\n  two"), "there: one two"),
        (ValueError(), "there: value error"),
    ],
)
def test_an_error_in_plain_words(error: Exception, words: str) -> None:
    said = plain(error, "there")
    assert said.startswith(words) and not RAW.search(said), said


def test_json_says_where_it_breaks() -> None:
    with pytest.raises(ValueError) as caught:
        json.loads('{"a":\n 1,}')
    assert cause(caught.value).startswith("no JSON: ") and "line 2" in cause(caught.value)


def test_errors_are_put_into_words_in_one_place() -> None:
    """Nobody else reads strerror, which an error may lack."""
    users = [path for path in (ROOT / "operator/shunt").rglob("*.py") if re.search(r"error\.strerror|\{error!r\}|repr\(error\)", path.read_text())]
    assert [path.name for path in users if path.name not in ("errors.py", "records.py")] == [], users
