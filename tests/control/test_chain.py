"""Listener and relay client together, the handler only passing on: what the SIP server sees is what the relay said."""

from __future__ import annotations

import asyncio
import socket

import pytest

from shunt.control.listener import ControlListener, Peer
from shunt.control.upstream import RelayClient, RelayError
from tests.control.relay_double import RelayDouble
from tests.rtpproxy import traces

KINDS = ["udp", "tcp", "unix", "cunix"]


class Chain:
    """SIP server's socket -> listener -> relay client -> relay double."""

    def __init__(self, tmp_path, down: str, up: str, timeout: float) -> None:
        self.replies: dict[bytes, bytes] = {}
        self.relay = RelayDouble(up, f"{tmp_path}/up.sock" if up.endswith("unix") else "", self._answer)
        self._down = f"{down}:{tmp_path}/down.sock" if down.endswith("unix") else f"{down}:127.0.0.1:0"
        self._timeout = timeout

    async def __aenter__(self) -> "Chain":
        await self.relay.start()
        self.client = RelayClient(self.relay.address, timeout=self._timeout)
        self.listener = ControlListener(self._down, self._handle)
        await self.listener.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.listener.close()
        await self.client.close()
        await self.relay.stop()

    async def _answer(self, body: bytes) -> bytes | None:
        return self.replies.get(body)

    async def _handle(self, body: bytes, cookie: bytes | None, peer: Peer) -> bytes | None:
        try:
            return await self.client.forward(body)
        except RelayError:
            return None

    def udp_socket(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.connect((self.listener.address.host, self.listener.address.port))
        return sock

    async def ask(self, body: bytes, lines: int) -> bytes:
        """One command by way of a connection (or cookie) of its own; the reply of so many lines with its line end."""
        address = self.listener.address
        async with asyncio.timeout(3):
            if address.kind == "udp":
                with self.udp_socket() as sock:
                    sock.send(b"1_1 " + body)
                    reply = await asyncio.get_running_loop().sock_recv(sock, 65536)
                assert reply.startswith(b"1_1 ")
                return reply[4:]
            if address.is_unix:
                reader, writer = await asyncio.open_unix_connection(address.path)
            else:
                reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(body + b"\n")
            reply = b"".join([await reader.readline() for _ in range(lines)])
            writer.close()
            return reply


@pytest.mark.parametrize("up", KINDS)
@pytest.mark.parametrize("down", KINDS)
async def test_every_kind_to_every_kind(tmp_path, down, up):
    exchanges = traces.load(traces.CORPUS / "direct.txt")
    async with Chain(tmp_path, down, up, timeout=2.0) as chain:
        done = 0
        for exchange in exchanges:
            body = exchange.command.partition(b" ")[2].rstrip(b"\n")
            if not body or exchange.reply is None or body == b"Il":
                continue
            reply = exchange.reply.partition(b" ")[2]
            chain.replies = {body: reply.removesuffix(b"\n")}
            assert await chain.ask(body, reply.count(b"\n")) == reply, exchange
            done += 1
        assert done >= 90
        assert chain.client.retransmitted == 0 and len(chain.relay.commands) == done


FILES = [
    path for path in traces.corpus_files() + traces.trace_files()
    if any(exchange.channel.startswith("udp:") for exchange in traces.load(path))
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
async def test_recordings_pass_through_unchanged(tmp_path, path):
    """The recorded datagrams in, the recorded datagrams out: cookies, blanks and all."""
    loop = asyncio.get_running_loop()
    async with Chain(tmp_path, "udp", "udp", timeout=2.0) as chain:
        sockets: dict[str, socket.socket] = {}
        sent: set[tuple[str, bytes]] = set()
        for exchange in traces.load(path):
            cookie, _, body = exchange.command.partition(b" ")
            key = (exchange.channel + exchange.client, cookie)
            # Cookies used again on purpose get the relay's kept answer; that is the listener's own test.
            if not body or exchange.is_stream or exchange.reply is None or key in sent:
                continue
            sent.add(key)
            chain.replies = {body.rstrip(b"\n"): exchange.reply.partition(b" ")[2].removesuffix(b"\n")}
            sock = sockets.get(key[0]) or sockets.setdefault(key[0], chain.udp_socket())
            sock.send(exchange.command)
            async with asyncio.timeout(3):
                assert await loop.sock_recv(sock, 65536) == exchange.reply
        assert [body for _, body in chain.relay.commands] and len(chain.relay.commands) == len(sent)
        for sock in sockets.values():
            sock.close()


async def test_recordings_beside_the_repository_were_replayed():
    if not traces.trace_files():
        pytest.skip("the recordings (shared/traces beside the repository) are not here; the corpus alone is replayed")
    assert len([path for path in FILES if path.parent == traces.TRACES]) >= 50


async def test_repetitions_do_not_multiply(tmp_path):
    """A dead-silent relay sees no more copies than the SIP server sent, plus the one under way."""
    async with Chain(tmp_path, "udp", "udp", timeout=0.1) as chain:
        with chain.udp_socket() as sock:
            for _ in range(6):
                sock.send(b"5_1 D c a")
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.25)
        assert 4 <= len(chain.relay.commands) <= 7


async def test_lost_answer_comes_with_the_next_repetition(tmp_path):
    async with Chain(tmp_path, "udp", "udp", timeout=0.1) as chain:
        with chain.udp_socket() as sock:
            sock.send(b"5_1 D c a")
            await asyncio.sleep(0.05)
            chain.replies[b"D c a"] = b"0"
            async with asyncio.timeout(2):
                assert await asyncio.get_running_loop().sock_recv(sock, 100) == b"5_1 0\n"


async def test_two_sip_servers_with_the_same_cookies(tmp_path):
    """Kamailio's cookies are <pid>_<seq>: two of them may send the same ones; the relay keeps answers by cookie alone."""
    async with Chain(tmp_path, "udp", "udp", timeout=2.0) as chain:
        chain.replies = {b"D one a": b"0", b"D two a": b"E50"}
        with chain.udp_socket() as one, chain.udp_socket() as two:
            one.send(b"13936_4 D one a")
            two.send(b"13936_4 D two a")
            loop = asyncio.get_running_loop()
            assert await loop.sock_recv(one, 100) == b"13936_4 0\n"
            assert await loop.sock_recv(two, 100) == b"13936_4 E50\n"
        assert len({cookie for cookie, _ in chain.relay.commands}) == 2
