"""Start and end of the process: configuration, exit codes, systemd."""

from __future__ import annotations

import itertools
import statistics
import json
import signal
import socket
import subprocess
import time

import pytest

from tests.relay_daemon.process import BINARY, Relay, RelayFailed, configuration


def start(text: str, *arguments: str) -> subprocess.CompletedProcess:
    """Start it with a configuration on standard input; it is expected to end by itself."""
    return subprocess.run([BINARY, *(arguments or ("--config", "-"))], input=text, capture_output=True, text=True, timeout=20)


def test_help():
    done = start("", "--help")
    assert done.returncode == 0 and "--config" in done.stdout and "rtpproxy" in done.stdout


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(signum, relay):
    relay.call(("192.0.2.1", 6000), ("192.0.2.2", 7000))
    assert relay.stop(signum) == 0
    assert "1 sessions end with it" in relay.log and "panicked" not in relay.log


WRONG = [
    ({"listen": ["carrier-pigeon:1"]}, "is not a control socket"),
    ({"listen": []}, "builtin_relay.listen"),
    ({"addresses": []}, "builtin_relay.addresses"),
    ({"addresses": ["0.0.0.0"]}, "builtin_relay.addresses"),
    ({"addresses": ["203.0.113.9"]}, "cannot bind 203.0.113.9"),
    ({"listen": ["udp:203.0.113.9:22222"]}, "cannot bind udp:203.0.113.9:22222"),
    ({"ports": "41001-41002"}, "builtin_relay.ports"),
    ({"ports": "0-1"}, "builtin_relay.ports"),
    ({"ports": "70000-70001"}, "70000"),
    ({"ttl": 0}, "builtin_relay.ttl"),
    ({"threads": 0}, "builtin_relay.threads"),
    ({"allow": ["10.0.0.0/33"]}, "10.0.0.0/33"),
    ({"notify": {"allow": ["carrier-pigeon"]}}, "notify.allow"),
    ({"builtin_relay": None}, "builtin_relay"),
]


@pytest.mark.parametrize("changes, said", WRONG, ids=[said for _, said in WRONG])
def test_a_wrong_configuration_is_exit_code_78(changes, said):
    config = configuration(**{key: value for key, value in changes.items() if key != "builtin_relay"})
    if "builtin_relay" in changes:
        del config["builtin_relay"]
    done = start(json.dumps(config))
    assert done.returncode == 78, done
    assert said in done.stderr and "READY" not in done.stdout


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "null", '{"valid": false, "errors": [], "config": null}'])
def test_what_is_no_checked_configuration_is_exit_code_78(text):
    assert start(text).returncode == 78


def test_a_file_that_is_not_there_is_exit_code_78(tmp_path):
    assert start("", "--config", str(tmp_path / "none.json")).returncode == 78


def test_a_configuration_by_a_file_descriptor():
    read, write = socket.socketpair()
    with read, write:
        write.close()
        process = subprocess.Popen(["/bin/sh", "-c", f'exec "{BINARY}" --config /dev/fd/3 3<&0'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        process.stdin.write(json.dumps(configuration()))
        process.stdin.close()
        assert process.stdout.readline().startswith("READY relay ready: commands on udp:127.0.0.1:")
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()


def test_a_control_socket_that_is_taken_is_exit_code_1(relay):
    with pytest.raises(RelayFailed, match="cannot bind udp:127.0.0.1") as failed:
        Relay(listen=[relay.addresses[0]])
    assert failed.value.code == 1


def test_systemd_hears_of_start_life_and_end(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        relay = Relay(environment={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}, watched=True)
        messages = [manager.recv(1000).decode()]
        assert messages[0].startswith("READY=1\nSTATUS=relay ready: commands on udp:127.0.0.1:")
        came = [time.monotonic()]
        for _ in range(10):
            assert manager.recv(1000) == b"WATCHDOG=1\n"
            came.append(time.monotonic())
        assert statistics.median(later - one for one, later in itertools.pairwise(came)) < 0.3, "the time that WATCHDOG_USEC gives"
        assert relay.stop() == 0
        rest = manager.recv(1000)
        while rest == b"WATCHDOG=1\n":
            rest = manager.recv(1000)
        assert rest == b"STOPPING=1\n"


def test_a_command_flood_does_not_starve_media(relay, phone):
    """Media has threads of its own: commands that arrive without a pause cost no packet."""
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12", ssrc=0x22222222)
    _, to_caller = relay.call(caller.place, callee.place)
    caller.rtp(to_caller)
    assert callee.heard()
    sent = 0
    for n in range(2000):
        relay.udp.sock.send(b"k%d U x%d 192.0.2.1 6000 f;1" % (n, n % 50))
        if n % 20 == 0:
            caller.rtp(to_caller)
            sent += 1
    assert len(callee.heard(sent)) == sent
