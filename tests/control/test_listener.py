"""The listener on real sockets: every kind, retransmissions, bad input, failing handlers, stale paths."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Callable

import pytest

from shunt.control.listener import ControlListener, ListenError, Peer


class Handler:
    """Counts what it is given; answers `ok-<last word>` unless told otherwise."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, bytes | None, Peer]] = []
        self.gate: asyncio.Event | None = None
        self.silent = False
        self.broken = False

    async def __call__(self, body: bytes, cookie: bytes | None, peer: Peer) -> bytes | None:
        self.calls.append((body, cookie, peer))
        if self.gate is not None:
            await self.gate.wait()
        if self.broken:
            raise RuntimeError("handler broke")
        return None if self.silent else b"ok-" + body.split()[-1]


async def until(condition: Callable[[], object]) -> None:
    """Waits for what happens elsewhere in the loop; fails after 5 s."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


class Udp:
    """A SIP server's UDP socket."""

    def __init__(self, listener: ControlListener) -> None:
        family = socket.AF_INET6 if ":" in listener.address.host else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        host = {"0.0.0.0": "127.0.0.2", "::": "::1"}.get(listener.address.host, listener.address.host)
        self.sock.connect((host, listener.address.port))

    def send(self, data: bytes) -> None:
        self.sock.send(data)

    async def recv(self, timeout: float = 10.0) -> bytes:
        async with asyncio.timeout(timeout):
            return await asyncio.get_running_loop().sock_recv(self.sock, 65536)

    async def ask(self, data: bytes) -> bytes:
        self.send(data)
        return await self.recv()

    async def silence(self) -> None:
        with pytest.raises(TimeoutError):
            await self.recv(0.15)


@pytest.fixture
async def handler():
    return Handler()


@pytest.fixture
async def started(handler):
    """Makes and starts listeners; closes them and clients afterwards."""
    listeners: list[ControlListener] = []
    clients: list[Udp] = []

    async def start(address: str = "udp:127.0.0.1:0", **options):
        listener = ControlListener(address, handler, **options)
        listeners.append(listener)
        await listener.start()
        if listener.address.kind != "udp":
            return listener
        clients.append(Udp(listener))
        return listener, clients[-1]

    yield start
    for client in clients:
        client.sock.close()
    for listener in listeners:
        await listener.close()


# -- udp -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["udp:127.0.0.1:0", "udp:[::1]:0", "udp6:[::1]:0", "udp:*:0", "udp:[::]:0"])
async def test_udp_answers_the_sender_with_its_cookie(started, handler, address):
    listener, client = await started(address)
    # The client is connected: an answer from another local address than the one it wrote to would not reach it.
    assert await client.ask(b"27814_9051_0 V") == b"27814_9051_0 ok-V\n"
    assert await client.ask(b"1_2 VF 20050322\n") == b"1_2 ok-20050322\n"
    body, cookie, peer = handler.calls[1]
    assert (body, cookie) == (b"VF 20050322", b"1_2")
    assert (peer.kind, peer.port) == ("udp", client.sock.getsockname()[1])
    assert peer.host == client.sock.getsockname()[0]


async def test_same_cookie_again_is_answered_from_memory(started, handler):
    listener, client = await started()
    first = await client.ask(b"5_1 U c 10.0.0.1 6000 a;1")
    assert await client.ask(b"5_1 U c 10.0.0.1 6000 a;1") == first
    assert await client.ask(b"5_1 U c 10.0.0.1 6000 a;1\n") == first
    assert len(handler.calls) == 1 and listener.retransmissions == 2


async def test_same_cookie_in_progress_runs_once_and_is_answered_once(started, handler):
    listener, client = await started()
    handler.gate = asyncio.Event()
    for _ in range(3):
        client.send(b"5_1 D c a")
    await until(lambda: listener.retransmissions == 2)
    handler.gate.set()
    assert await client.recv() == b"5_1 ok-a\n"
    await client.silence()
    assert len(handler.calls) == 1


async def test_same_cookie_with_another_command_is_a_new_client(started, handler):
    _, client = await started()
    assert await client.ask(b"7_1 V") == b"7_1 ok-V\n"
    assert await client.ask(b"7_1 D c a") == b"7_1 ok-a\n"
    assert await client.ask(b"7_1 D c a") == b"7_1 ok-a\n"
    assert [body for body, _, _ in handler.calls] == [b"V", b"D c a"]


async def test_answer_to_the_predecessor_is_not_sent_to_the_restarted_client(started, handler):
    _, client = await started()
    handler.gate = asyncio.Event()
    client.send(b"7_1 V")
    client.send(b"7_1 D c a")
    await until(lambda: len(handler.calls) == 2)
    handler.gate.set()
    assert await client.recv() == b"7_1 ok-a\n"
    await client.silence()


async def test_same_cookie_from_another_source_is_another_command(started, handler):
    listener, first = await started()
    second = Udp(listener)
    try:
        assert await first.ask(b"9_1 D c a") == b"9_1 ok-a\n"
        assert await second.ask(b"9_1 D c b") == b"9_1 ok-b\n"
    finally:
        second.sock.close()
    assert len(handler.calls) == 2


async def test_answers_are_forgotten(started, handler, monkeypatch):
    monkeypatch.setattr("shunt.control.listener.COOKIES_KEPT", 10)
    listener, client = await started(cookie_life=0.1)
    await client.ask(b"1_1 V")
    await asyncio.sleep(0.12)
    await client.ask(b"1_1 V")
    assert len(handler.calls) == 2
    for i in range(40):
        await client.ask(b"2_%d V" % i)
    assert len(listener._answered) <= 10


async def test_malformed_datagrams(started, handler):
    listener, client = await started()
    assert await client.ask(b"onlyacookie") == b"onlyacookie E5\n"
    assert await client.ask(b"c \n") == b"c E5\n"
    assert await client.ask(b"") == b"E5\n"
    client.send(b"c " + b"x" * 9000)
    await client.silence()
    assert handler.calls == [] and listener.malformed == 4
    # Whatever it is, the handler gets to pass it on.
    assert await client.ask(b"c \xff\x00\x01 x") == b"c ok-x\n"
    assert handler.calls[0][0] == b"\xff\x00\x01 x"


async def test_a_failing_handler_means_no_answer_and_a_retry_runs_again(started, handler, caplog):
    listener, client = await started()
    handler.broken = True
    with caplog.at_level(logging.ERROR, "shunt.control.listener"):
        client.send(b"3_1 D call-of-the-log a")
        await client.silence()
    assert "call-of-the-log" in caplog.text and "handler broke" in caplog.text and listener.failed == 1
    handler.broken = False
    assert await client.ask(b"3_1 D call-of-the-log a") == b"3_1 ok-a\n"
    handler.silent = True
    client.send(b"3_2 V")
    await client.silence()
    assert len(handler.calls) == 3


async def test_a_thousand_commands_at_once(started, handler):
    listener, client = await started()
    handler.gate = asyncio.Event()
    expected = {b"%d_1 ok-%d\n" % (i, i) for i in range(1000)}
    for i in range(1000):
        client.send(b"%d_1 Q c %d" % (i, i))
        if i % 50 == 0:
            await asyncio.sleep(0)
    await until(lambda: listener.in_flight == 1000)
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    handler.gate.set()
    assert {await client.recv() for _ in range(1000)} == expected


async def test_commands_in_flight_are_bounded_and_the_rest_waits(started, handler):
    listener, client = await started(max_in_flight=20)
    handler.gate = asyncio.Event()
    for i in range(100):
        client.send(b"%d_1 V" % i)
    await until(lambda: len(handler.calls) == 20)
    await asyncio.sleep(0.05)
    assert len(handler.calls) == 20
    handler.gate.set()
    assert len({await client.recv() for _ in range(100)}) == 100


@pytest.mark.parametrize(("allow", "served"), [(["127.0.0.0/8"], True), (["10.0.0.0/8", "::/0"], False)])
async def test_allowed_networks(started, handler, allow, served):
    listener, client = await started(allow=allow)
    client.send(b"1_1 V")
    if served:
        assert await client.recv() == b"1_1 ok-V\n"
    else:
        await client.silence()
        assert listener.refused == 1 and handler.calls == []


async def test_allowed_networks_over_tcp(started, handler):
    listener = await started("tcp:127.0.0.1:0", allow=["10.0.0.0/8"])
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
    assert await reader.read() == b"" and listener.refused == 1
    writer.close()


async def test_occupied_port(started):
    listener, _ = await started()
    with pytest.raises(ListenError, match=rf"udp:127.0.0.1:{listener.address.port}.*in use"):
        await started(f"udp:127.0.0.1:{listener.address.port}")


def test_bad_arguments(handler):
    with pytest.raises(ValueError, match="sctp"):
        ControlListener("sctp:1.2.3.4:5", handler)
    with pytest.raises(ValueError):
        ControlListener("udp:127.0.0.1:1", handler, allow=["10.0.0.1/8"])


async def test_close_lets_commands_finish(handler):
    listener = ControlListener("udp:127.0.0.1:0", handler)
    await listener.start()
    client = Udp(listener)
    handler.gate = asyncio.Event()
    client.send(b"1_1 V")
    await until(lambda: handler.calls)
    asyncio.get_running_loop().call_later(0.05, handler.gate.set)
    await listener.close()
    assert await client.recv() == b"1_1 ok-V\n"
    client.sock.close()
    await listener.close()


# -- tcp, cunix, unix ----------------------------------------------------------------------------------------------


async def connect(listener: ControlListener):
    if listener.address.is_unix:
        return await asyncio.open_unix_connection(listener.address.path)
    return await asyncio.open_connection(listener.address.host, listener.address.port)


@pytest.fixture(params=["tcp", "cunix"])
async def lines(request, started, tmp_path):
    """A listener of a persistent kind."""
    return await started("tcp:127.0.0.1:0" if request.param == "tcp" else f"cunix:{tmp_path}/c.sock")


async def test_persistent_connection(lines, handler):
    reader, writer = await connect(lines)
    writer.write(b"V\n")
    assert await reader.readline() == b"ok-V\n"
    writer.write(b"VF 2005")
    await asyncio.sleep(0.05)
    assert len(handler.calls) == 1
    writer.write(b"0322\r\nD c a\nQ c b\n")
    assert [await reader.readline() for _ in range(3)] == [b"ok-20050322\n", b"ok-a\n", b"ok-b\n"]
    assert handler.calls[1][:2] == (b"VF 20050322", None)
    assert handler.calls[1][2].kind == lines.address.kind and handler.calls[1][2].connection == 1
    writer.write(b"\n")
    assert await reader.readline() == b"E5\n"
    writer.close()


async def test_no_answer_closes_the_stream(lines, handler):
    handler.silent = True
    reader, writer = await connect(lines)
    writer.write(b"V\nVF 20050322\n")
    # With the second answer in the place of the first the client would be misled from then on.
    assert await reader.read() == b""
    assert len(handler.calls) == 1
    writer.close()


async def test_endless_line_is_cut_off(lines, handler):
    reader, writer = await connect(lines)
    writer.write(b"x" * 20000)
    try:
        assert await reader.read() == b""
    except ConnectionResetError:
        pass
    assert handler.calls == [] and lines.malformed == 1
    writer.close()


async def test_a_thousand_commands_over_streams(lines, handler):
    async def one(number: int) -> None:
        reader, writer = await connect(lines)
        writer.write(b"".join(b"Q c %d-%d\n" % (number, i) for i in range(50)))
        for i in range(50):
            assert await reader.readline() == b"ok-%d-%d\n" % (number, i)
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(one(n) for n in range(20)))
    assert len(handler.calls) == 1000


async def test_client_that_vanishes_does_no_harm(lines, handler):
    handler.gate = asyncio.Event()
    reader, writer = await connect(lines)
    writer.write(b"V\n")
    await until(lambda: handler.calls)
    writer.transport.abort()
    handler.gate.set()
    reader, writer = await connect(lines)
    writer.write(b"X\n")
    assert await reader.readline() == b"ok-X\n"
    writer.close()


@pytest.mark.parametrize("command", [b"V", b"V\n"])
async def test_unix_one_command_then_close(started, handler, tmp_path, command):
    listener = await started(f"unix:{tmp_path}/u.sock")
    reader, writer = await connect(listener)
    writer.write(command)
    assert await reader.read() == b"ok-V\n"
    assert handler.calls[0][:2] == (b"V", None)
    writer.close()


async def test_unix_second_line_belongs_to_the_same_command(started, handler, tmp_path):
    listener = await started(f"unix:{tmp_path}/u.sock")
    reader, writer = await connect(listener)
    writer.write(b"V\nVF 20050322\n")
    assert await reader.read() == b"ok-20050322\n"
    assert handler.calls[0][0] == b"V\nVF 20050322"
    writer.close()


async def test_unix_idle_client_is_dropped(started, handler, tmp_path, monkeypatch):
    monkeypatch.setattr("shunt.control.listener.UNIX_COMMAND_TIMEOUT", 0.1)
    listener = await started(f"unix:{tmp_path}/u.sock")
    reader, writer = await connect(listener)
    async with asyncio.timeout(2):
        assert await reader.read() == b""
    writer.close()


async def test_unix_path_mode_stale_live_and_removal(handler, tmp_path):
    path = f"{tmp_path}/u.sock"
    first = ControlListener(f"unix:{path}", handler, mode=0o600)
    await first.start()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    second = ControlListener(f"cunix:{path}", handler)
    with pytest.raises(ListenError, match="another process is listening"):
        await second.start()
    await first.close()
    assert not os.path.exists(path)

    left = socket.socket(socket.AF_UNIX)
    left.bind(path)
    left.close()
    await second.start()
    reader, writer = await connect(second)
    writer.write(b"V\n")
    assert await reader.readline() == b"ok-V\n"
    writer.close()
    # Somebody else's socket at our path is not ours to remove.
    os.unlink(path)
    other = socket.socket(socket.AF_UNIX)
    other.bind(path)
    await second.close()
    assert os.path.exists(path)
    other.close()


async def test_unix_path_that_is_a_file(handler, tmp_path):
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(ListenError, match="not a socket"):
        await ControlListener(f"unix:{path}", handler).start()
    assert path.read_text() == "precious"


async def test_close_with_idle_connections_is_quick(lines, handler):
    reader, writer = await connect(lines)
    writer.write(b"V\n")
    await reader.readline()
    before = asyncio.get_running_loop().time()
    await lines.close()
    assert asyncio.get_running_loop().time() - before < 0.5
    assert await reader.read() == b""
    writer.close()
