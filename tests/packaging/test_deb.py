"""The Debian package in a clean Debian 12: installed, run with the units' rights, upgraded under a call, purged."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging import units

ROOT = Path(__file__).resolve().parents[2]
CLEAN = ROOT / "build/packaging/root"
PACKAGES = sorted((ROOT / "build").glob("shunt_*.deb"), key=lambda path: path.stat().st_mtime)
CONTROL = 22221


def needs(variable: str) -> list[pytest.MarkDecorator]:
    """The marks of tests that run with this variable set, on a machine that lets its root boot a Debian in a folder."""
    marks = [pytest.mark.netns, pytest.mark.skipif(variable not in os.environ, reason=f"runs with {variable}=1")]
    if variable in os.environ:
        asked = subprocess.run([ROOT / "packaging/may-boot"], stdout=subprocess.PIPE, text=True)
        marks.append(pytest.mark.skipif(asked.returncode != 0, reason=asked.stdout.strip()))
    return marks


pytestmark = needs("DEB_TEST")

CONFIGURATION = """\
# Changed by the operator.
builtin_relay: {addresses: [10.94.1.1], ports: "36000-36099"}
data_plane: {}
journal: {path: /var/lib/shunt/journal.sqlite}
softswitch: {interfaces: [in0], capacity: 1000}
"""


class Host:
    """A copy of the clean root with a network of its own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.name = f"shpkg{os.getpid()}"
        self._children: list[subprocess.Popen[bytes]] = []
        self._mounts: list[Path] = []

    def build(self) -> None:
        subprocess.run(["cp", "-a", "--reflink=auto", CLEAN, self.root], check=True)
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        for command in ("link set lo up", "link add in0 type veth peer name out0", "link set in0 up", "link set out0 up", "address add 10.94.1.1/24 dev in0"):
            subprocess.run(["ip", "-n", self.name, *command.split()], check=True)
        for kind, where in (("proc", "proc"), ("sysfs", "sys"), ("bpf", "sys/fs/bpf")):
            # sysfs shows the interfaces of the namespace that mounts it.
            subprocess.run(["nsenter", f"--net=/run/netns/{self.name}", "mount", "-t", kind, kind, self.root / where], check=True)
            self._mounts.append(self.root / where)

    def destroy(self) -> None:
        for child in self._children:
            if child.poll() is None:
                child.kill()
                child.wait()
        for where in reversed(self._mounts):
            subprocess.run(["umount", "--lazy", where], check=True)
        subprocess.run(["ip", "netns", "del", self.name], check=False)

    def _command(self, *command: str) -> list[str]:
        return [
            "nsenter",
            f"--net=/run/netns/{self.name}",
            "chroot",
            str(self.root),
            "/usr/bin/env",
            "-i",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL=C.UTF-8",
            "DEBIAN_FRONTEND=noninteractive",
            *command,
        ]

    def run(self, *command: str, check: bool = True) -> str:
        """Standard output and error. Raises AssertionError where the command fails."""
        done = subprocess.run(self._command(*command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert not check or done.returncode == 0, f"{command}: {done.stdout}"
        return done.stdout

    def service(self, name: str) -> subprocess.Popen[bytes]:
        """Start what a unit starts, with the user, the rights and the folders that it has."""
        unit = units.settings(self.root / f"usr/lib/systemd/system/{name}.service")
        kept = [f"+{right.removeprefix('CAP_').lower()}" for right in unit["CapabilityBoundingSet"].split()]
        rights = ["--no-new-privs", f"--bounding-set={','.join(['-all', *kept])}"]
        if "User" in unit:
            rights.append(f"--reuid={unit['User']}")
        if "Group" in unit:
            rights += [f"--regid={unit['Group']}", "--clear-groups"]
        if "RuntimeDirectory" in unit:
            self.run("install", "-d", "-o", unit.get("User", "root"), "-g", unit["Group"], "-m", unit["RuntimeDirectoryMode"], f"/run/{unit['RuntimeDirectory']}")
        with (self.root / f"var/log/{name}.log").open("ab") as log:
            child = subprocess.Popen(self._command("setpriv", *rights, *unit["ExecStart"].split()), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._children.append(child)
        return child

    def await_addresses(self) -> None:
        """Wait until the kernel has finished its own addresses, whose routes come a second after the link."""
        deadline = time.monotonic() + 60
        shown = ["ip", "-n", self.name, "-6", "address", "show", "scope", "link"]
        while (said := subprocess.run(shown, stdout=subprocess.PIPE, text=True, check=True).stdout).count("inet6") < 2 or "tentative" in said:
            assert time.monotonic() < deadline, said
            time.sleep(0.1)

    def kernel(self) -> dict[str, str]:
        """What the kernel has been told in this network: all that the removal of the package has to leave as it was."""
        commands = (
            "ethtool -k in0",
            "ip -d link show in0",
            "ip rule",
            "ip route show table all",
            "nft list ruleset",
            "tc filter show dev in0 ingress",
            "sysctl -a --pattern ^net[.](ipv4|ipv6|core)[.]",
        )
        inside = [f"nsenter --net=/run/netns/{self.name} {command}" for command in commands]
        found = {command: subprocess.run(command.split(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout for command in inside}
        found["pins"] = str([path.name for path in (self.root / "sys/fs/bpf").iterdir() if not path.name.endswith(".debug")])
        found["neighbours"] = str("managed" in subprocess.run(["ip", "-n", self.name, "neigh"], stdout=subprocess.PIPE, text=True, check=True).stdout)
        return found

    def log(self, name: str) -> str:
        return (self.root / f"var/log/{name}.log").read_text(errors="replace")

    def status(self) -> dict[str, object]:
        """`shunt status`, empty while the agent cannot be reached."""
        text = self.run("shunt", "status", "--json", check=False)
        return json.loads(text) if text.startswith("{") else {}

    def await_agent(self) -> dict[str, object]:
        """Wait until the agent is up and has its data plane. Raises AssertionError with both logs."""
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            status = self.status()
            if status and status["data_plane"]["connected"]:
                return status
            time.sleep(0.1)
        raise AssertionError("".join(self.log(f"shunt-{name}") for name in ("softswitch", "relay", "agent", "operator")))

    def say(self, command: str) -> str:
        """A SIP server's command to the agent, and its reply."""
        script = (
            "import socket, sys\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.settimeout(3)\n"
            f"s.sendto(b'1_1 ' + sys.argv[1].encode(), ('127.0.0.1', {CONTROL}))\nprint(s.recv(1000).decode().split(' ', 1)[1], end='')"
        )
        return self.run("python3", "-c", script, command).strip()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    try:
        made.build()
        yield made
    finally:
        made.destroy()
        shutil.rmtree(made.root, ignore_errors=True)


def _next_version(package: Path, folder: Path) -> Path:
    """The same package as a later version whose example configuration differs."""
    tree = folder / "next"
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
    control = tree / "DEBIAN/control"
    control.write_text("\n".join(line + "+next" if line.startswith("Version:") else line for line in control.read_text().splitlines()) + "\n")
    with (tree / "etc/shunt/shunt.yaml").open("a") as example:
        example.write("# A line of the next version.\n")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, folder / "next.deb"], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return folder / "next.deb"


def _install(host: Host, package: Path) -> str:
    shutil.copy(package, host.root / "shunt.deb")
    return host.run("dpkg", "--force-confdef", "--force-confold", "--force-unsafe-io", "--install", "/shunt.deb")  # as unattended upgrades do


def test_install_run_upgrade_purge(host: Host, tmp_path: Path) -> None:
    host.await_addresses()
    before = host.kernel()
    assert "rx-vlan-offload: on" in "".join(before.values()), "an offload that the softswitch switches off"
    _install(host, PACKAGES[-1])

    # What is there, and whose.
    versions = [host.run("shunt", "--version"), *(host.run(f"/usr/lib/shunt/bin/shunt-{daemon}", "--version") for daemon in ("agent", "softswitch", "relay", "edge", "mixer"))]
    assert all(re.fullmatch(r"[a-z-]+ \d+\.\d+\.\d+ \(commit [0-9a-f]{12}\S*, .+\)\n", version) for version in versions), versions
    found = host.run("shunt", "check-config", "/etc/shunt/shunt.yaml", check=False)
    assert "there is no interface eth0 on this host" in found and found.count("/etc/shunt/shunt.yaml:") == 1, f"only the interface has to be named: {found}"
    assert host.run("stat", "-c", "%U:%G %a", "/etc/shunt/shunt.yaml").strip() == "root:shunt 640"
    assert host.run("stat", "-c", "%U %a", "/var/lib/shunt").strip() == "shunt 750"
    for path in (
        "usr/share/man/man1/shunt.1.gz",
        "usr/share/man/man5/shunt.yaml.5.gz",
        "usr/share/bash-completion/completions/shunt",
        "usr/share/zsh/vendor-completions/_shunt",
        "usr/share/doc/shunt/opensips-config/opensips.cfg",
        "usr/share/doc/shunt/examples/standby.yaml",
        "usr/share/shunt/sipp-scenarios/uac_call.xml",
        "usr/share/shunt/p4/relay.p4",
        "usr/share/shunt/p4/include/learning.p4",
        "usr/share/shunt/grafana/shunt.json",
        "usr/share/shunt/prometheus/shunt.rules.yml",
        "usr/lib/systemd/system/shunt-standby.service",
        "usr/lib/shunt/bin/shunt-softswitch",
        "usr/lib/shunt/bin/shunt-agent",
        "usr/lib/shunt/bin/shunt-relay",
        "usr/lib/shunt/bin/shunt-edge",
    ):
        assert (host.root / path).is_file(), path
    pages = [path.relative_to(host.root / "usr/share/doc/shunt") for path in (host.root / "usr/share/doc/shunt").rglob("*.md")]
    links = subprocess.run([ROOT / ".ci" / "links", *pages], cwd=host.root / "usr/share/doc/shunt", capture_output=True, text=True)
    assert pages and links.returncode == 0, links.stderr
    assert host.run("dpkg", "--verify", "shunt") == ""
    listed = host.run("dpkg", "-L", "shunt").split()
    # Compiled here, not where it was built.
    assert not any(path.endswith(".pyc") for path in listed)
    assert host.run("find", "/usr/lib/shunt/lib", "-name", "main.cpython-*.pyc")
    # Nothing names the place where the package was built.
    built = subprocess.run(["grep", "-rlF", str(ROOT), host.root / "usr/lib/shunt"], capture_output=True, text=True).stdout
    assert built == "" and "/usr/bin/shunt" in listed

    # It works, with the rights that the units give.
    (host.root / "etc/shunt/shunt.yaml").write_text(CONFIGURATION)
    softswitch, relay, agent, operator = (host.service(f"shunt-{name}") for name in ("softswitch", "relay", "agent", "operator"))
    host.await_agent()
    assert "READY softswitch ready" in host.log("shunt-softswitch")
    port = host.say("Uc8 call-1 10.94.1.2 6000 from")
    assert 36000 <= int(port.split()[0]) < 36100
    assert host.say("Lc8 call-1 10.94.1.3 7000 from to").split()[0].isdigit()
    pins = sorted(path.name for path in (host.root / "sys/fs/bpf/shunt").iterdir())
    assert any(name.startswith("link_") for name in pins)

    # An upgrade: the operator's file stays, the call goes on under the new code.
    said = _install(host, _next_version(PACKAGES[-1], tmp_path))
    assert (host.root / "etc/shunt/shunt.yaml").read_text() == CONFIGURATION, said
    assert "A line of the next version" in (host.root / "etc/shunt/shunt.yaml.dpkg-dist").read_text()
    assert host.run("dpkg-query", "-W", "-f", "${Version}", "shunt").endswith("+next")
    assert [child.poll() for child in (agent, softswitch, relay, operator)] == [None] * 4
    for child, name in ((softswitch, "shunt-softswitch"), (agent, "shunt-agent"), (operator, "shunt-operator")):
        child.terminate()
        assert child.wait(60) == 0, host.log(name)
        assert sorted(path.name for path in (host.root / "sys/fs/bpf/shunt").iterdir()) == pins, "entries stay while it is away"
        host.service(name)
    assert host.await_agent()["calls"] == 1
    assert host.say("Uc8 call-1 10.94.1.2 6000 from").split()[0] == port.split()[0]
    assert host.say("D call-1 from to") == "0"

    # Removal takes it out of the kernel and leaves the configuration; purging takes that too.
    for child in host._children:
        if child.poll() is None:
            child.terminate()
            child.wait(60)
    assert "rx-vlan-offload: off" in "".join(host.kernel().values())
    removed = host.run("dpkg", "--remove", "shunt")
    after = host.kernel()
    changed = [
        f"{mark} {line}" for what, said in after.items() for mark, one, other in (("-", before[what], said), ("+", said, before[what])) for line in one.splitlines() if line not in other.splitlines()
    ]
    assert changed == [], removed
    assert (host.root / "etc/shunt/shunt.yaml").exists() and "not empty" not in removed, removed
    host.run("dpkg", "--purge", "shunt")
    left = host.run("find", "/etc/shunt", "/var/lib/shunt", "/usr/lib/shunt", "/usr/bin/shunt", check=False)
    assert all("No such file" in line for line in left.splitlines()), left
