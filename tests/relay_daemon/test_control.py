"""Control sockets of all kinds: commands, repetitions, limits, and who may command."""

from __future__ import annotations

import os
import socket
import stat
import time

import pytest

from tests.relay_daemon.process import Relay, RelayFailed, StreamClient, UdpClient, client


@pytest.mark.parametrize("kind", ["udp:127.0.0.1:0", "udp6:[::1]:0", "tcp:127.0.0.1:0", "tcp6:[::1]:0", "unix:{}/s", "cunix:{}/s", "udp:*:0"])
def test_a_call_over_every_kind_of_socket(kind, tmp_path):
    with Relay(listen=[kind.format(tmp_path)]) as relay:
        server = client(relay.addresses[0].replace("0.0.0.0", "127.0.0.1"))
        assert server.ask("V") == "20040107"
        offer = server.ask("Uc0,8,101 call@10.0.0.1 192.0.2.1 6000 from;1")
        answer = server.ask("Lc0,8,101 call@10.0.0.1 192.0.2.2 7000 from;1 to;1")
        ports = [int(reply.split()[0]) for reply in (offer, answer)]
        assert offer.split()[1:] == answer.split()[1:] == ["127.0.0.1"] and ports[0] != ports[1] and not ports[0] % 2 and not ports[1] % 2
        assert server.ask("Q call@10.0.0.1 from;1 to;1") == "60 0 0 0 0"
        assert server.ask("I").splitlines()[:3] == ["sessions created: 1", "active sessions: 1", "active streams: 2"]
        assert server.ask("Z") == "E0"
        assert server.ask("D call@10.0.0.1 from to") == "0"
        assert server.ask("D call@10.0.0.1 from to") == "E50"
        server.close()


def test_a_repeated_datagram_is_answered_as_before_and_not_executed(relay):
    first = relay.udp.send(b"1_2_3 Un c 192.0.2.1 6000 f;1")
    assert relay.udp.send(b"1_2_3 Un c 192.0.2.1 6000 f;1") == first
    assert relay.udp.send(b"1_2_4 Un c 192.0.2.1 6000 f;1\n") != first
    assert relay.ask("G nsess_created ncmds_rcvd_ndups") == "1 1"


def test_datagrams_that_are_no_commands(relay):
    assert relay.udp.send(b"   ") == b"E5\n"
    assert relay.udp.send(b"cookie") == b"cookie E5\n"
    assert relay.udp.send(b"cookie \xff\x00") == b"cookie E0\n"
    assert relay.udp.send(b"cookie U " + b"c" * 60_000) == b"cookie E5\n"
    assert relay.ask("V") == "20040107"


def test_the_reply_leaves_by_the_address_that_the_command_came_to():
    with Relay(listen=["udp:*:0", "udp6:[::]:0"]) as relay:
        for n, host in enumerate(("127.0.0.5", "[::1]")):
            port = relay.addresses[n].rpartition(":")[2]
            server = UdpClient(f"udp:{host}:{port}")
            assert server.ask("V") == "20040107"
            server.close()


def test_commands_are_taken_from_allowed_networks_only():
    with Relay(listen=["udp:127.0.0.1:0", "tcp:127.0.0.1:0"], allow=["127.0.0.1/32"]) as relay:
        outsider = UdpClient(relay.addresses[0], source="127.0.0.2")
        outsider.sock.settimeout(0.3)
        for _ in range(20):
            with pytest.raises(TimeoutError):
                outsider.sock.send(b"k X")
                outsider.sock.settimeout(0.02)
                outsider.sock.recv(100)
        outsider.close()
        with socket.create_connection(("127.0.0.1", int(relay.addresses[1].rpartition(":")[2])), source_address=("127.0.0.2", 0)) as sock:
            sock.settimeout(60)
            assert sock.recv(10) == b""
        assert relay.ask("V") == "20040107"
        assert relay.await_log("127.0.0.2", 2) == 2, "one line of each socket in ten seconds"


def test_commands_of_a_connection_are_answered_in_order(tmp_path):
    with Relay(listen=["tcp:127.0.0.1:0", f"cunix:{tmp_path}/s"]) as relay:
        for address in relay.addresses:
            sock = StreamClient(address).connect()
            sock.sendall(b"V\r\nQ nobody f\nVF 20050")
            sock.sendall(b"322\nG nsess_created\n")
            got = b""
            while got.count(b"\n") < 4:
                got += sock.recv(1000)
            assert got == b"20040107\nE50\n1\n0\n"
            sock.close()


def test_a_command_without_an_end_is_answered_and_the_connection_closed():
    with Relay(listen=["tcp:127.0.0.1:0"]) as relay:
        sock = StreamClient(relay.addresses[0]).connect()
        sock.sendall(b"U " + b"c" * 9000)
        got = b""
        while data := sock.recv(100):
            got += data
        assert got == b"E5\n"
        sock.close()


def test_a_hundred_servers_at_once():
    with Relay(listen=["tcp:127.0.0.1:0"]) as relay:
        servers = [StreamClient(relay.addresses[0]) for _ in range(100)]
        for n, server in enumerate(servers):
            server.ask(f"U c{n} 192.0.2.1 6000 f;1")
        assert servers[0].ask("G nsess_created") == "100"
        for server in servers:
            server.close()


def test_files_of_unix_sockets(tmp_path):
    path = tmp_path / "new" / "s"
    with Relay(listen=[f"unix:{path}"]) as relay:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
        with pytest.raises(RelayFailed, match="another process listens there") as failed:
            Relay(listen=[f"unix:{path}"])
        assert failed.value.code == 1
        assert StreamClient(relay.addresses[0]).ask("V\n") == "20040107"
        relay.process.kill()
        relay.process.wait()
        with Relay(listen=[f"unix:{path}"]) as second:
            assert StreamClient(second.addresses[0]).ask("V") == "20040107", "a file that nobody listens on is replaced"
            assert second.stop() == 0
        assert not path.exists()


def test_ports_that_run_out_are_told_once():
    with Relay(ports="41000-41003", addresses=["127.0.0.1"], quarantine=0.3) as relay:
        relay.call(("192.0.2.1", 6000), ("192.0.2.2", 7000))
        assert [relay.ask(f"U d{n} 192.0.2.1 6000 f;1") for n in range(5)] == ["E72"] * 5
        assert relay.await_log("all 2 port pairs are taken (2 in use") == 1
        assert relay.ask("D c1 f t") == "0"
        assert relay.ask("U e 192.0.2.1 6000 f;1") == "E72", "a port rests before it is given out again"
        time.sleep(0.5)
        assert relay.port("U e 192.0.2.1 6000 f;1")[1] in (41000, 41002)


def test_the_list_of_sessions(relay):
    to_callee, to_caller = relay.call(("192.0.2.1", 6000), ("192.0.2.2", 7000))
    relay.ask("U c2 192.0.2.3 8000 g;1 tcp:127.0.0.1:9 T%201")
    first, second = relay.ask("Is 0").removeprefix("0 && ").split(" && ")
    assert first == f"c1 f;1 t;1 60 complete 127.0.0.1:{to_caller[1]}/192.0.2.1:6000/-/- 127.0.0.1:{to_callee[1]}/192.0.2.2:7000/-/- - -"
    assert second.startswith("c2 g;1 - 60 setup -/192.0.2.3:8000/-/- 127.0.0.1:") and second.endswith(" tcp:127.0.0.1:9 T%201")
    assert relay.ask("VF 20261124") == "1"
    assert relay.ask("Is 1").startswith("0 && c2 ")
    for n in range(400):
        relay.ask(f"U more{n} 192.0.2.3 8000 g;1")
    names, after = [], 0
    while True:
        after, *records = relay.ask(f"Is {after}").split(" && ")
        names += [record.split()[0] for record in records]
        if after == "0":
            break
    assert names == ["c1", "c2", *(f"more{n}" for n in range(400))]
