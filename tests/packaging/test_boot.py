"""The package under a real systemd: services start with their hardening, come back when killed or hung, and an upgrade ends no call."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.packaging import test_deb

pytestmark = test_deb.pytestmark

_BOOT = """
set -e
mount --make-rprivate /
mount --bind {root} {root}
ip link set lo up
{network}
mount -t proc proc {root}/proc
mount -t sysfs sysfs {root}/sys
mount -t cgroup2 cgroup2 {root}/sys/fs/cgroup
mount -t bpf bpf {root}/sys/fs/bpf
mount -t tmpfs tmpfs {root}/run
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot {root} /usr/lib/systemd/systemd --log-target=null
"""
_NETWORK = """\
ip link add in0 type veth peer name out0
ip link set in0 up
ip link set out0 up
ip address add 10.94.1.1/24 dev in0
"""
# With pins in another place than the default.
_ELSEWHERE = test_deb.CONFIGURATION.replace("softswitch: {", "softswitch: {pin_dir: /sys/fs/bpf/media/plane, ")


class Machine:
    """A clean Debian in namespaces of its own, with systemd as its first process."""

    def __init__(self, folder: Path, network: str = _NETWORK) -> None:
        """network: shell commands that make its interfaces."""
        self.root = folder / "root"
        self._network = network
        self._outer: subprocess.Popen[bytes] | None = None
        self._redis: subprocess.Popen[bytes] | None = None
        self._init = 0

    def boot(self) -> None:
        script = _BOOT.format(root=self.root, network=self._network)
        self._outer = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        self.until(lambda: children.read_text().strip() != "", "no first process")
        self._init = int(children.read_text().split()[0])
        self.until(lambda: self.run("systemctl", "is-system-running", check=False).strip() in ("running", "degraded"), "systemd did not come up")

    def destroy(self) -> None:
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait(10)
        if self._outer is not None:
            if self._init:
                os.kill(self._init, signal.SIGKILL)  # and with it everything in its namespace
            self._outer.wait(10)
        shutil.rmtree(self.root, ignore_errors=True)

    @property
    def init(self) -> int:
        """The process id of its systemd, as the host sees it."""
        return self._init

    def run(self, *command: str, check: bool = True) -> str:
        """Standard output and error. Raises AssertionError where the command fails."""
        inside = ["nsenter", f"--target={self._init}", "--all", "--root", "--wd", "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"]
        done = subprocess.run([*inside, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert not check or done.returncode == 0, f"{command}: {done.stdout}"
        return done.stdout

    def outside(self, *command: str) -> str:
        """Standard output of a program of this host in the machine's network."""
        return subprocess.run(["nsenter", f"--target={self._init}", "--net", *command], check=True, stdout=subprocess.PIPE, text=True).stdout

    def show(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", f"--property={name}", "--value", unit).strip()

    def until(self, holds: Callable[[], bool], otherwise: str, seconds: float = 60.0) -> None:
        """Wait until holds() is true. Raises AssertionError."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, otherwise + (self.run("journalctl", "--no-pager", "--lines=40", check=False) if self._init else "")
            time.sleep(0.1)

    def start_redis(self) -> None:
        """A Redis of this test's in the machine's network, as redis-server.service would be there; destroy() ends it."""
        folder = self.root.parent / "redis"
        folder.mkdir()
        command = ["nsenter", f"--target={self._init}", "--net", "redis-server", "--bind", "127.0.0.1", "--port", "6379", "--appendonly", "yes", "--dir", str(folder)]
        self._redis = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def role(self, port: int) -> str:
        """What the agent with its API at this port says it is; "" when it does not answer."""
        said = self.run("shunt", "status", "--json", "--api", f"127.0.0.1:{port}", check=False)
        return json.loads(said)["role"] if said.startswith("{") else ""

    def say(self, command: str, port: int = test_deb.CONTROL) -> str:
        """A SIP server's command to the agent, sent again until there is a reply, as SIP servers do."""
        script = (
            "import socket, sys\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.settimeout(0.3)\nfor _ in range(60):\n    try:\n"
            f"        s.sendto(b'1_1 ' + sys.argv[1].encode(), ('127.0.0.1', {port}))\n        print(s.recv(1000).decode().split(' ', 1)[1], end='')\n        break\n"
            "    except OSError:\n        pass\n"
        )
        return self.run("python3", "-c", script, command).strip()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    try:
        subprocess.run(["cp", "-a", "--reflink=auto", test_deb.CLEAN, made.root], check=True)
        made.boot()
        yield made
    finally:
        made.destroy()


def _install(machine: Machine, package: Path) -> str:
    shutil.copy(package, machine.root / "root/shunt.deb")
    return machine.run("dpkg", "--force-confdef", "--force-confold", "--force-unsafe-io", "--install", "/root/shunt.deb")


def test_services_under_systemd(machine: Machine, tmp_path: Path) -> None:
    said = _install(machine, test_deb.PACKAGES[-1])
    assert "systemctl enable --now" in said
    assert machine.run("systemctl", "is-active", "shunt-agent", check=False).strip() == "inactive", "nothing starts with an example's addresses"
    (machine.root / "etc/shunt/shunt.yaml").write_text(_ELSEWHERE)
    # Type=notify: this returns when all have said that they are ready.
    machine.run("systemctl", "enable", "--now", "shunt-softswitch", "shunt-relay", "shunt-agent", "shunt-operator")
    assert machine.show("shunt-softswitch", "StatusText").startswith("softswitch ready")
    agent = machine.show("shunt-agent", "MainPID")
    rights = dict(line.split(":", 1) for line in machine.run("cat", f"/proc/{agent}/status").splitlines() if ":" in line)
    assert int(rights["CapPrm"], 16) == int(rights["CapBnd"], 16) == 0 and rights["NoNewPrivs"].strip() == "1" and rights["Seccomp"].strip() == "2"

    port = machine.say("Uc8 call-1 10.94.1.2 6000 from").split()[0]
    assert port.isdigit()

    # Killed: both are back, the call too.
    for unit in ("shunt-agent", "shunt-softswitch"):
        pid = machine.show(unit, "MainPID")
        machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", unit)
        machine.until(lambda: machine.show(unit, "MainPID") not in (pid, "0") and machine.show(unit, "ActiveState") == "active", f"{unit} is not back")
    assert machine.say("Uc8 call-1 10.94.1.2 6000 from").split()[0] == port

    # Hung: the watchdog ends it, and it is back.
    pid = machine.show("shunt-agent", "MainPID")
    machine.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", "shunt-agent")
    machine.until(lambda: machine.show("shunt-agent", "MainPID") not in (pid, "0") and machine.show("shunt-agent", "ActiveState") == "active", "no watchdog")
    assert machine.say("Uc8 call-1 10.94.1.2 6000 from").split()[0] == port

    # An upgrade restarts what runs, and the call is there.
    before = {unit: machine.show(unit, "MainPID") for unit in ("shunt-agent", "shunt-softswitch")}
    later = test_deb._next_version(test_deb.PACKAGES[-1], tmp_path)
    _install(machine, later)
    assert all(machine.show(unit, "MainPID") not in (pid, "0") for unit, pid in before.items())
    assert machine.show("shunt-standby", "ActiveState") == "inactive"
    assert machine.say("Uc8 call-1 10.94.1.2 6000 from").split()[0] == port

    # A version that does not take the operator's file leaves the running processes alone.
    (machine.root / "etc/shunt/shunt.yaml").write_text(_ELSEWHERE + "of_another_version: 1\n")
    pid = machine.show("shunt-agent", "MainPID")
    assert "go on with the old code" in _install(machine, later)
    assert machine.show("shunt-agent", "MainPID") == pid

    assert machine.run("ls", "/sys/fs/bpf/media") == "plane\n" and "rx-vlan-offload: off" in machine.outside("ethtool", "-k", "in0")
    # The file is still one that this version does not take: the removal needs none.
    machine.run("dpkg", "--purge", "shunt")
    assert machine.show("shunt-agent", "ActiveState") == "inactive"
    assert [name for name in machine.run("ls", "/sys/fs/bpf").split() if not name.endswith(".debug")] == []
    assert "rx-vlan-offload: on" in machine.outside("ethtool", "-k", "in0") and "xdp" not in machine.outside("ip", "link", "show", "in0")


_PAIR = """\
builtin_relay: {addresses: [10.94.1.1], ports: "36000-36099"}
data_plane: {}
journal: {redis: "redis://127.0.0.1:6379/0"}
softswitch: {interfaces: [in0], capacity: 1000}
"""
_STANDBY = (
    _PAIR
    + """\
control: {listen: ["udp:127.0.0.1:22223"]}
admin: {socket: /run/shunt-standby/admin.sock, events: /var/lib/shunt/events-standby}
operator: {state_dir: /var/lib/shunt/operator-standby}
api: {listen: "127.0.0.1:8078"}
"""
)


def test_a_warm_standby(machine: Machine, tmp_path: Path) -> None:
    """Two units on one Redis: the second takes over from the first, the first stands by when it is back, and an upgrade of both ends no call."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    _install(machine, test_deb.PACKAGES[-1])
    machine.start_redis()
    (machine.root / "etc/shunt/shunt.yaml").write_text(_PAIR)
    (machine.root / "etc/shunt/standby.yaml").write_text(_STANDBY)
    machine.run("chgrp", "shunt", "/etc/shunt/standby.yaml")
    machine.run("systemctl", "enable", "--now", "shunt-softswitch", "shunt-relay", "shunt-agent", "shunt-operator")
    machine.until(lambda: machine.role(8077) == "active", "the agent is not in charge")
    machine.run("systemctl", "enable", "--now", "shunt-standby", "shunt-standby-operator")
    machine.until(lambda: machine.role(8078) == "standby", "the standby does not stand by")
    port = machine.say("Uc8 call-1 10.94.1.2 6000 from").split()[0]
    assert port.isdigit() and machine.say("Uc8 call-1 10.94.1.2 6000 from", 22223).split()[0] == port, "either address serves"

    machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "shunt-agent")
    assert machine.say("Uc8 call-1 10.94.1.2 6000 from", 22223).split()[0] == port
    machine.until(lambda: sorted((machine.role(8077), machine.role(8078))) == ["active", "standby"], "the killed one does not stand by")

    _install(machine, test_deb._next_version(test_deb.PACKAGES[-1], tmp_path))
    machine.until(lambda: sorted((machine.role(8077), machine.role(8078))) == ["active", "standby"], "no pair after the upgrade")
    assert machine.say("Uc8 call-1 10.94.1.2 6000 from").split()[0] == port
