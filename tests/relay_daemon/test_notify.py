"""Media time-outs, and the notices that SIP servers get of them."""

from __future__ import annotations

import socket
import time

import pytest

from tests.relay_daemon.process import Relay


class Server:
    """A SIP server's notify socket."""

    def __init__(self, family: int, where) -> None:
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.bind(where)
        self.sock.listen()
        self.sock.settimeout(60)
        self.connection: socket.socket | None = None

    def line(self, timeout: float = 60) -> bytes:
        """The next notice."""
        if self.connection is None:
            self.connection, _ = self.sock.accept()
        self.connection.settimeout(timeout)
        got = b""
        while not got.endswith(b"\n"):
            data = self.connection.recv(1)
            assert data, "closed"
            got += data
        return got

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.sock.close()


@pytest.fixture
def servers():
    made: list[Server] = []

    def make(family: int, where) -> Server:
        made.append(Server(family, where))
        return made[-1]

    yield make
    for server in made:
        server.close()


def test_a_silent_call_ends_at_its_time_out_and_its_server_is_told(servers, tmp_path):
    tcp, unix, bare = servers(socket.AF_INET, ("127.0.0.1", 0)), servers(socket.AF_UNIX, f"{tmp_path}/n"), servers(socket.AF_UNIX, f"{tmp_path}/b")
    port = tcp.sock.getsockname()[1]
    with Relay(ttl=1) as relay:
        started = time.monotonic()
        relay.ask("U deleted 192.0.2.1 6000 f;1 tcp:127.0.0.1:%d no" % port)
        relay.ask("U own 192.0.2.1 6000 f;1 t;1 tcp:%%%%CC_SELF%%%%:%d T1.a%%20b" % port)
        relay.ask("L own 192.0.2.2 7000 f;1 t;1")
        relay.ask(f"U unix 192.0.2.1 6000 f;1 unix:{tmp_path}/n T2")
        relay.ask(f"U bare 192.0.2.1 6000 f;1 {tmp_path}/b T3")
        relay.ask("U elsewhere 192.0.2.1 6000 f;1 tcp:192.0.2.7:9 T4")
        relay.ask("D deleted f")
        assert tcp.line() == b"T1.a b\n"
        assert time.monotonic() - started >= 1
        assert unix.line() == b"T2\n" and bare.line() == b"T3\n"
        assert relay.ask("Q own f;1 t;1") == "E50"
        while time.monotonic() - started < 60 and relay.ask("G nsess_timeout nsess_destroyed") != "4 5":
            time.sleep(0.1)  # the last one is looked at half a second later, if a busy machine had it begin later
        assert relay.ask("G nsess_timeout nsess_destroyed") == "4 5"
        assert "192.0.2.7:9 is not permitted" in relay.log
        with pytest.raises(TimeoutError):
            tcp.line(0.2)


def test_media_of_either_party_keeps_a_call_and_its_end_ends_it(servers, phone):
    tcp = servers(socket.AF_INET, ("127.0.0.1", 0))
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12", ssrc=0x22222222)
    with Relay(ttl=2, notify={"allow": ["tcp:127.0.0.1:%d" % tcp.sock.getsockname()[1]]}) as relay:
        relay.port("U c1 %s %d f;1 tcp:127.0.0.1:%d T1" % (*caller.place, tcp.sock.getsockname()[1]))
        to_caller = relay.port("L c1 %s %d f;1 t;1" % callee.place)
        caller.talk(to_caller, 20, 0.15)
        silent = time.monotonic()
        asked: list[str] = []
        while "20" not in asked[1:2] and time.monotonic() - silent < 1.5:  # a command may overtake the last packet
            asked = relay.ask("Q c1 f;1 t;1").split()
        assert asked[1] == "20"
        assert tcp.line() == b"T1\n"
        assert time.monotonic() - silent > 1.9


def test_keep_alives_keep_a_call_without_media():
    with Relay(ttl=1) as relay:
        relay.call(("192.0.2.1", 6000), ("192.0.2.2", 7000))
        relay.call(("192.0.2.1", 6000), ("192.0.2.2", 7000), name="c2")
        relay.ask("U c3 192.0.2.1 6000 f;1 && S ttl=4")
        for _ in range(6):
            time.sleep(0.4)
            assert relay.ask("Q c1 f;1 t;1 && S ttl=1").endswith(" 0 0 0 0")
            assert relay.ask("L c2 - 0 t;1 f;1").endswith(" 127.0.0.1")
        assert relay.ask("Q c3 f;1").split()[0] in ("1", "2")
        time.sleep(1.8)
        assert relay.ask("I").splitlines()[1] in ("active sessions: 0", "active sessions: 1")
        assert relay.ask("Q c1 f;1 t;1") == relay.ask("Q c2 f;1 t;1") == "E50"


def test_a_server_that_restarts_gets_the_next_notice(servers, tmp_path):
    first = servers(socket.AF_UNIX, f"{tmp_path}/n")
    with Relay(ttl=1) as relay:
        relay.ask(f"U c1 192.0.2.1 6000 f;1 {tmp_path}/n T1")
        assert first.line() == b"T1\n"
        first.close()
        (tmp_path / "n").unlink()
        relay.ask(f"U c2 192.0.2.1 6000 f;1 {tmp_path}/n T2")
        time.sleep(1.6)
        second = servers(socket.AF_UNIX, f"{tmp_path}/n")
        assert second.line() == b"T2\n", "it came back while the notice was tried again"


def test_notices_that_are_queued_go_out_at_the_end(servers, tmp_path):
    server = servers(socket.AF_UNIX, f"{tmp_path}/n")
    with Relay(ttl=1) as relay:
        for n in range(50):
            relay.ask(f"U c{n} 192.0.2.1 6000 f;1 {tmp_path}/n T{n}")
        while relay.ask("G nsess_timeout") != "50":
            time.sleep(0.005)
        assert relay.stop() == 0
    assert {server.line() for _ in range(50)} == {b"T%d\n" % n for n in range(50)}
