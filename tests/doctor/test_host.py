"""Reading a host: the kernel's texts, this process's own sockets and folders, time limits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from shunt.doctor import services
from shunt.doctor.facts import Mount, Process, Unknown
from shunt.doctor.host import files, links, sockets, system
from shunt.doctor.host.parallel import Later
from tests.doctor.hosts import by_subject, config, facts
from tests.lab.ports import free_port

ROOT = Path(__file__).resolve().parents[2]

UDP = """\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  100: 0100007F:56CD 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0000000000000000 0
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000001000000:1F8D 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0 100 0 0 10 0
   1: 00000000000000000000000001000000:1F8E 00000000000000000000000001000000:1F8D 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 100 0 0 10 0
"""
MOUNTS = """\
22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:27 / /sys/fs/bpf rw,nosuid shared:9 - bpf bpf rw,mode=700
31 22 0:28 / /mnt/a\\040b ro,relatime - tmpfs tmpfs rw
32 22 0:29 / /mnt/c rw,relatime - tmpfs tmpfs ro
"""


def test_the_kernels_tables() -> None:
    assert sockets.parse_table(UDP, "udp") == [sockets.Row("udp", "127.0.0.1", 22221, 4711)]
    assert sockets.parse_table(TCP6, "tcp") == [sockets.Row("tcp", "::1", 8077, 12)], "only who listens"
    assert sockets.parse_ranges("8080,9148-9150\n") == ((8080, 8080), (9148, 9150))
    assert sockets.parse_ranges("\n") == ()
    expected = (Mount("/", "ext4", False), Mount("/sys/fs/bpf", "bpf", False), Mount("/mnt/a b", "tmpfs", True), Mount("/mnt/c", "tmpfs", True))
    assert system.parse_mounts(MOUNTS) == expected
    assert isinstance(system.number("/proc/sys/none"), Unknown)


OTHER = "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', int(sys.argv[1]))); print('bound', flush=True); sys.stdin.read()"


def test_sockets_of_other_processes_and_not_ones_own(tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "s.sock"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind(("127.0.0.1", port))
        assert sockets.bound(lambda row: row.port == port) == ()
    with subprocess.Popen([sys.executable, "-c", OTHER, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"bound\n"
        (found,) = sockets.bound(lambda row: row.kind == "udp" and row.port == port)
        assert isinstance(found.holder, Process)
        assert (found.host, found.holder.pid, found.holder.arguments[1]) == ("127.0.0.1", other.pid, "-c")
        other.communicate()
    with socket.socket(socket.AF_UNIX) as listener:
        assert sockets.unix_listener(str(path)) is None
        listener.bind(str(path))
        assert sockets.unix_listener(str(path)) is None, "a file that nobody listens on"
        listener.listen()
        met = sockets.unix_listener(str(path))
        assert met is not None and isinstance(met.holder, Process) and met.holder.pid == os.getpid()
        assert sockets.peer_uid(str(path)) == os.geteuid()
    found_ports = sockets.ports(["127.0.0.1", "192.0.2.77", "::"], [], lambda row: False)
    assert (found_ports.local["127.0.0.1"], found_ports.local["192.0.2.77"]) == (True, False)


def test_places(tmp_path: Path) -> None:
    there = files.place(str(tmp_path))
    assert there.exists and there.nodes[0].path == "/" and there.free > 0
    missing = files.place(str(tmp_path / "a" / "b"))
    assert not missing.exists and missing.nodes[-1].path == str(tmp_path)
    (tmp_path / "file").write_text("x")
    behind = files.place(str(tmp_path / "file" / "b"))
    assert (behind.nodes[-1].path, behind.nodes[-1].is_folder) == (str(tmp_path / "file"), False)
    assert files.unreadable(str(tmp_path / "file")) is None
    assert files.unreadable(str(tmp_path / "none")) == "No such file or directory"


def test_units_with_drop_ins(tmp_path: Path) -> None:
    first, second = tmp_path / "etc", tmp_path / "lib"
    (first / "shunt-agent.service.d").mkdir(parents=True)
    (second / "shunt-agent.service.d").mkdir(parents=True)
    (second / "shunt-agent.service").write_text("[Unit]\nUser=no\n[Service]\nUser=shunt\nCapabilityBoundingSet=\n# User=x\n")
    (second / "shunt-agent.service.d/10.conf").write_text("[Service]\nUser=other\n")
    (first / "shunt-agent.service.d/10.conf").write_text("[Service]\nCapabilityBoundingSet=CAP_NET_BIND_SERVICE \\\n CAP_CHOWN\n")
    (unit,) = files.units((str(first), str(second)))
    assert unit.settings["User"] == ("shunt",), "a drop-in of the same name hides the other"
    assert unit.settings["CapabilityBoundingSet"][-1].split() == ["CAP_NET_BIND_SERVICE", "CAP_CHOWN"]
    assert files.parse_settings(["[Service]\nA=1\nA=\nA=2\n", "[Service]\nB=\n"]) == {"A": ("2",), "B": ()}


def test_the_units_of_the_package_are_as_they_should_be(tmp_path: Path) -> None:
    subprocess.run([ROOT / "packaging/units.sh", "/usr", tmp_path], check=True)
    installed = files.units((str(tmp_path),))
    assert len(installed) == 9
    findings = by_subject(services.check(config(), facts(units=installed)))
    assert {unit.name: findings[unit.name].verdict for unit in installed} == {unit.name: "ok" for unit in installed}


def test_interfaces_and_clock_of_this_host() -> None:
    assert links.read("no-such-dev", "/none") is None
    assert links.read("a-name-that-is-too-long", "/none") is None
    loopback = links.read("lo", "/none")
    assert loopback is not None and (loopback.kind, loopback.name, loopback.attached) == ("loopback", "lo", None)
    assert not isinstance(loopback.offloads, Unknown) and "rx-gro" in loopback.offloads
    assert system.clock().max_error_s >= 0


def test_versions_of_programs(tmp_path: Path) -> None:
    program = tmp_path / "program"

    def says(script: str) -> str | Unknown:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return system.version(str(program))

    assert says("echo shunt-agent 0.2.0") == "0.2.0"
    assert says("echo 'shunt-agent 0.2.0 (commit unknown, rustc 1.85.0, x86_64-unknown-linux-gnu, release)'") == "0.2.0"
    assert says("exit 3") == Unknown(f"{program} --version: exit code 3")
    assert says("echo no libelf >&2; exit 127") == Unknown(f"{program} --version: no libelf")
    assert says("exec sleep 60") == Unknown(f"{program} --version does not end within 1 s")


def test_what_takes_too_long_is_left_behind() -> None:
    stop = threading.Event()
    slow, quick, refused = Later(stop.wait, 0.05), Later(lambda: 7, 30), Later(lambda: os.stat("/no/such"), 30)
    assert slow.result() == Unknown("no result within 0.05 s")
    assert quick.result() == 7
    assert refused.result() == Unknown("/no/such: No such file or directory")
    stop.set()
