"""Time-out notices: bytes, targets, servers that come late, go away or never come."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from shunt.agent import Agent
from shunt.config.load import loads
from shunt.relay import notify
from shunt.relay.notify import NotifySender, NotifyTarget, parse_target
from shunt.relay.relay import BuiltinRelay


class Listener:
    """A SIP server's notify socket."""

    def __init__(self) -> None:
        self.data = b""
        self.connections = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        while data := await reader.read(1000):
            self.data += data

    async def has(self, data: bytes) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                while self.data != data:
                    await asyncio.sleep(0.005)
        return self.data == data

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()


@pytest.fixture
async def sender():
    sender = NotifySender()
    yield sender
    await sender.close()


@pytest.fixture
async def tcp():
    listener = Listener()
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0)
    listener.port = server.sockets[0].getsockname()[1]
    yield listener
    listener.hang_up()
    server.close()


async def test_tags_over_one_connection_unquoted(sender, tcp):
    await sender.notify(f"tcp:127.0.0.1:{tcp.port}", "T123.abcd", None)
    await sender.notify(f"tcp:127.0.0.1:{tcp.port}", "tag%20with%20space", None)
    assert await tcp.has(b"T123.abcd\ntag with space\n")
    assert tcp.connections == 1 and sender.sent == 2 and sender.failed == 0


async def test_the_built_in_relays_own_notices_need_permission_too(tcp):
    """The agent's notify.allow reaches the relay inside it: a session names a socket that is not on the list."""
    config = loads("builtin_relay: {addresses: [127.0.0.1], ports: 43500-43599, ttl: 1}\nnotify: {allow: ['tcp:127.0.0.1:%d']}\n" % tcp.port)
    agent, now = Agent(config), 0.0
    assert agent.builtin._notify is agent.notifier
    relay = BuiltinRelay(["127.0.0.1"], 43500, 43599, ttl=1, clock=lambda: now, notifier=agent.notifier)
    await relay.execute(b"U c1 127.0.0.11 6000 f;1 tcp:127.0.0.1:%d allowed" % tcp.port)
    await relay.execute(b"U c2 127.0.0.11 6002 f;1 tcp:127.0.0.2:%d refused" % tcp.port)
    now = 10.0
    relay.sweep()
    assert await tcp.has(b"allowed\n")
    assert relay.session_count == 0 and agent.notifier.failed == 1 and tcp.connections == 1
    await relay.close()
    await agent.notifier.close()


async def test_cc_self_is_where_the_command_came_from(sender, tcp):
    await sender.notify(f"tcp:%%CC_SELF%%:{tcp.port}", "T777.self", "127.0.0.1")
    assert await tcp.has(b"T777.self\n")
    await sender.notify(f"tcp:%%CC_SELF%%:{tcp.port}", "T778", None)
    assert sender.failed == 1


async def test_unix_socket(sender, tmp_path):
    listener = Listener()
    server = await asyncio.start_unix_server(listener.serve, tmp_path / "n.sock")
    await sender.notify(f"unix:{tmp_path}/n.sock", "T1", None)
    assert await listener.has(b"T1\n")
    listener.hang_up()
    server.close()


async def test_a_server_that_restarts_gets_the_next_one(sender, tcp):
    target = f"tcp:127.0.0.1:{tcp.port}"
    await sender.notify(target, "T1", None)
    assert await tcp.has(b"T1\n")
    tcp.hang_up()
    await asyncio.sleep(0.05)
    await sender.notify(target, "T2", None)
    assert await tcp.has(b"T1\nT2\n") and tcp.connections == 2


async def test_a_server_that_comes_late_gets_all_in_order(sender, tmp_path):
    path = tmp_path / "late.sock"
    await sender.notify(f"unix:{path}", "T1", None)
    await sender.notify(f"unix:{path}", "T2", None)
    await asyncio.sleep(0.15)
    listener = Listener()
    server = await asyncio.start_unix_server(listener.serve, path)
    assert await listener.has(b"T1\nT2\n")
    listener.hang_up()
    server.close()


async def test_a_server_that_never_comes_is_given_up(sender, monkeypatch, tmp_path):
    monkeypatch.setattr(notify, "_FIRST_DELAY", 0.001)
    await sender.notify(f"unix:{tmp_path}/no.sock", "T1", None)
    async with asyncio.timeout(2):
        while not sender.failed:
            await asyncio.sleep(0.005)
    assert (sender.sent, sender.failed) == (0, 1)


async def test_the_queue_and_the_number_of_targets_are_bounded(sender, monkeypatch, tmp_path):
    monkeypatch.setattr(notify, "_QUEUE", 3)
    monkeypatch.setattr(notify, "_TARGETS", 2)
    for n in range(10):
        await sender.notify(f"unix:{tmp_path}/no.sock", f"T{n}", None)
    assert sender.failed == 7
    await sender.notify(f"unix:{tmp_path}/second.sock", "T", None)
    await sender.notify(f"unix:{tmp_path}/third.sock", "T", None)
    assert sender.failed == 8
    await sender.close(grace=0.01)


@pytest.mark.parametrize("text", [
    "xmlrpc:http://127.0.0.1:8000/RPC2", "tcp:127.0.0.1", "tcp:127.0.0.1:0", "tcp:127.0.0.1:99999", "tcp:host.example:9", "tcp::9", "unix:", "unix:relative",
    "", "T1", "tcp:127.0.0.1:٣",
])
async def test_other_sockets_are_refused_quietly(sender, text):
    with pytest.raises(ValueError, match="notify socket"):
        parse_target(text, "127.0.0.1")
    await sender.notify(text, "T1", "127.0.0.1")
    assert sender.failed == 1


def test_targets():
    assert parse_target("tcp:[::1]:9", None) == NotifyTarget(host="::1", port=9)
    assert parse_target("/run/opensips/n.sock", None) == parse_target("unix:/run/opensips/n.sock", None) == NotifyTarget(path="/run/opensips/n.sock")
    assert parse_target("tcp:%%CC_SELF%%:9", "fd91::1") == NotifyTarget(host="fd91::1", port=9)


async def test_relay_raises_the_notice_at_time_out_and_only_then(tcp):
    now = 0.0
    relay = BuiltinRelay(["127.0.0.1"], 43400, 43499, ttl=3, clock=lambda: now)
    socket = f"tcp:127.0.0.1:{tcp.port}"
    await relay.start()
    try:
        for command in (
            f"Uc0 n1 192.0.2.2 6000 f;1 {socket} T1", "Lc0 n1 192.0.2.3 7000 f;1 t;1",
            f"Uc0 n2 192.0.2.2 6000 f;1 tcp:%%CC_SELF%%:{tcp.port} T2",
            f"Uc0 n3 192.0.2.2 6000 f;1 {socket} T3.deleted",
            f"Uc0 n4 192.0.2.2 6000 f;1 {socket} T4.cleared", "Uc0 n4 192.0.2.2 6000 f;1 t;1",
            f"Uc0 n5 192.0.2.2 6000 f;1 t;1 {socket} T5",
            "Uc0 n6 192.0.2.2 6000 f;1 t;1 xmlrpc:http://127.0.0.1:8000/RPC2",
        ):
            assert (await relay.execute(command.encode(), None, "127.0.0.1")).endswith(b" 127.0.0.1"), command
        await relay.execute(b"D n3 f")
        now = 2.9
        relay.sweep()
        assert tcp.data == b""
        now = 3.1
        relay.sweep()
        assert await tcp.has(b"T1\nT2\nT5\n")
    finally:
        await relay.close()


async def test_relay_without_notices_says_so():
    relay = BuiltinRelay(["127.0.0.1"], 43400, 43499, notify=False)
    assert await relay.execute(b"VF 20081224") == b"0"
    assert await relay.execute(b"U c1 192.0.2.1 6000 f;1 tcp:127.0.0.1:9 T1") == b"E75"
    assert relay.session_count == 0
    await relay.close()
