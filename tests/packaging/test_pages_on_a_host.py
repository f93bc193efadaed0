"""README and start pages, followed command by command on file systems fresh from debootstrap: a build machine and a server with systemd.

The server has what a page expects of its reader: Kamailio and rtpengine of Debian; OpenSIPS and rtpproxy, which Debian 12 lacks, if they are on PATH.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.processes import opensips_modules
from tests.packaging import pages, test_boot, test_deb

ROOT = pages.ROOT
HOST = ROOT / "build/packaging/host"  # packaging.mk: the clean root with Kamailio and rtpengine
SCENARIOS = ROOT / "sipp-scenarios"

pytestmark = test_deb.pytestmark

# The documentation addresses of the pages and of the shipped configurations. The peer of eth0 is every other host.
_NETWORK = """\
ip link add eth0 type veth peer name out0
ethtool -K eth0 gro on
ip address add 203.0.113.10/24 dev eth0
ip address add 2001:db8::10/64 dev eth0 nodad
ip link set eth0 up
ip route add default via 203.0.113.1
"""
_CUSTOMER, _TRUNK = "192.0.2.20", "198.51.100.20"
_TALK_MS = 30_000  # SIPp plays 24 s of media
_PEERS = (
    "link set lo up",
    "address add 203.0.113.1/24 dev out0",
    f"address add {_CUSTOMER}/32 dev out0",
    f"address add {_TRUNK}/32 dev out0",
    "address add 2001:db8::1/64 dev out0 nodad",
    "link set out0 up",
)
# Media goes to the phones' addresses, where SIPp has no socket for it.
_SINK = "table inet sink { chain media { type filter hook input priority 0; udp dport 6000-7999 drop; }\n}"
_OPENSIPS_UNIT = """\
[Service]
ExecStart=/usr/sbin/opensips -F -f /etc/opensips/opensips.cfg -m 128 -M 8
RuntimeDirectory=opensips
"""
_NAMES = {"opensips": "OpenSIPS"}  # in skip reasons
_IPV6_OPTIONS = " -6 /2001:db8::10 --bridge_symmetric"


class Server(test_boot.Machine):
    """A clean Debian with systemd, a SIP server and a relay, at 203.0.113.10; phones behind its only interface."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _NETWORK)
        self._peers = f"shpages{os.getpid()}"
        self._phones: list[subprocess.Popen[bytes]] = []
        self._calls = 0
        self._folder = folder

    def boot(self) -> None:
        subprocess.run(["cp", "-a", "--reflink=auto", HOST, self.root], check=True)
        shutil.copy(test_deb.PACKAGES[-1], self.root / "root")
        (self.root / "etc/apt/apt.conf.d/90assume-yes").write_text('APT::Get::Assume-Yes "true";\n')
        super().boot()
        subprocess.run(["ip", "netns", "add", self._peers], check=True)
        subprocess.run(["nsenter", f"--target={self.init}", "--net", "ip", "link", "set", "out0", "netns", self._peers], check=True)
        for command in _PEERS:
            subprocess.run(["ip", "-n", self._peers, *command.split()], check=True)
        self._outside("ethtool", "-K", "out0", "gro", "on")
        self._outside("nft", _SINK)

    def destroy(self) -> None:
        for phone in self._phones:
            phone.kill()
            phone.wait(10)
        subprocess.run(["ip", "netns", "del", self._peers], check=False)
        super().destroy()

    def _outside(self, *command: str) -> None:
        subprocess.run(["ip", "netns", "exec", self._peers, *command], check=True)

    def bring(self, program: str, to: str) -> None:
        """Copy a program of this machine, with the libraries that the server lacks. Skips the test if the program is not on PATH."""
        found = shutil.which(program)
        if found is None:
            pytest.skip(f"{_NAMES.get(program, program)} is not installed")
        shutil.copy(found, self.root / to)
        objects = [Path(found)]
        if program == "opensips":
            modules = opensips_modules()
            shutil.copytree(modules, self.root / "usr/lib/x86_64-linux-gnu/opensips/modules")
            objects += modules.glob("*.so")
            (self.root / "etc/opensips").mkdir()
            (self.root / "etc/systemd/system/opensips.service").write_text(_OPENSIPS_UNIT)
            self.run("systemctl", "daemon-reload")
        listed = subprocess.run(["ldd", *objects], capture_output=True, text=True).stdout
        for library in sorted(set(re.findall(r"=> (/\S+)", listed))):
            if not (self.root / library[1:]).exists():
                (self.root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, self.root / library[1:])
        self.run("ldconfig")

    def shell(self, line: str) -> str:
        """A line that the reader types as root in the home folder. Raises AssertionError with its output where it fails."""
        said = self.run("sh", "-c", f"cd /root && {line}")
        print(f"# {line}\n{said}", end="")
        assert ": not found" not in said, f"{line}: {said}"  # within $(…) the shell goes on
        return said

    def call(self) -> str:
        """Begin a call from a customer to the trunk and wait until both its streams are offloaded. Returns its Call-ID."""
        self._calls += 1
        call_id = f"call-{self._calls}@{_CUSTOMER}"
        common = ["ip", "netns", "exec", self._peers, "sipp", "-nostdin", "-m", "1", "-trace_err"]
        callee = ["-sf", "uas_answer.xml", "-i", _TRUNK, "-mi", _TRUNK, "-p", "5060", "-mp", "7000"]
        caller = ["-sf", "uac_call.xml", "-i", _CUSTOMER, "-mi", _CUSTOMER, "-p", "5080", "-mp", "6000", "-s", "100", "-d", str(_TALK_MS)]
        caller += ["-cid_str", call_id, "203.0.113.10:5060"]
        for number, side in enumerate((callee, caller)):
            with (self._folder / f"sipp-{number}.log").open("wb") as log:
                files = ["-error_file", str(self._folder / f"sipp-{number}.err")]
                self._phones.append(subprocess.Popen([*common, *side, *files], cwd=SCENARIOS, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TERM": "dumb"}))
        last = ""

        def offloaded() -> bool:
            nonlocal last
            last = self.run("shunt", "calls", "--json", check=False)
            calls = json.loads(last)["calls"] if last.startswith("{") else []
            streams = [stream for call in calls if call["call_id"] == call_id for media in call["media"] for stream in media["streams"] if stream["component"] == "rtp"]
            return len(streams) == 2 and all(stream["reason"] == "offloaded" for stream in streams)

        try:
            self.until(offloaded, "the call's streams are not offloaded\n")
        except AssertionError as error:
            errors = "".join(path.read_text(errors="replace") for path in self._folder.glob("sipp-*.err"))
            raise AssertionError(f"{last}\n{errors}\n{error}") from None
        return call_id

    def await_end(self) -> None:
        """Wait until the caller hangs up. Raises AssertionError if the call went otherwise than the scenarios say."""
        for phone in self._phones:
            assert phone.wait(120) == 0, "".join(path.read_text(errors="replace") for path in self._folder.glob("sipp-*.*"))
        self._phones.clear()


def _follow(server: Server, page: str) -> None:
    """Write every file and run every command of a page, in order."""
    for block in pages.blocks(page):
        if block.file:
            (server.root / block.file[1:]).write_text(block.text)
        if block.language != "sh":
            continue
        for line in block.lines:
            if line.startswith("rtpproxy "):
                # The page leaves it to the reader what starts it at boot.
                server.shell(f"systemd-run --quiet --collect --unit=rtpproxy {line}")
            elif line.startswith("editor "):
                # The server has the addresses of the shipped configuration.
                assert (server.root / line.removeprefix("editor /")).is_file(), line
            elif line == "shunt calls":
                call_id = server.call()
                assert call_id in server.shell(line)
                assert "offloaded" in server.shell(f"shunt why {call_id}")
                server.await_end()
            elif line.startswith(("shunt status", "shunt doctor")):
                # What has just been started may not be connected yet.
                server.until(functools.partial(_succeeds, server, line), f"{line} finds faults")
            else:
                server.shell(line)


def _succeeds(server: Server, line: str) -> bool:
    try:
        server.shell(line)
    except AssertionError:
        return False
    return True


def _without_ipv6(server: Server, page: str, sip_server: str) -> None:
    """What the section "IPv4 only" says in words."""
    text = pages.text_of(page)
    assert f"`{_IPV6_OPTIONS.strip()}`" in text and "Remove `symmetric` and the second address" in text, f"{page} says something else"
    start = next(line for line in pages.commands(page) if line.startswith("rtpproxy "))
    configuration = server.root / "etc/shunt/shunt.yaml"
    kept = [line for line in configuration.read_text().splitlines() if "2001:db8" not in line and "symmetric" not in line]
    configuration.write_text("\n".join(kept) + "\n")
    server.shell("ip address del 2001:db8::10/64 dev eth0")
    server.shell("systemctl stop rtpproxy")
    # By another name: systemd keeps a unit that another one is ordered after.
    server.shell(f"systemd-run --quiet --collect --unit=rtpproxy-ipv4 {start.replace(_IPV6_OPTIONS, '')}")
    # In this order: a SIP server that asks an agent before it is ready does without it for rtpproxy_disable_tout.
    server.shell("systemctl restart shunt-softswitch shunt-agent")
    server.shell(f"systemctl restart {sip_server}")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    try:
        made.boot()
        yield made
    finally:
        made.destroy()


def _install(server: Server) -> None:
    """The command by which install.md installs the package."""
    (line,) = [line for line in pages.commands("docs/start/install.md") if line.startswith("apt ")]
    server.shell(line)


@pytest.mark.parametrize("sip_server", ["opensips", "kamailio"])
def test_a_page_for_rtpproxy(server: Server, sip_server: str) -> None:
    page = f"docs/start/{sip_server}.md"
    server.bring("rtpproxy", "usr/bin/rtpproxy")
    if sip_server == "opensips":
        server.bring("opensips", "usr/sbin/opensips")
    _install(server)
    _follow(server, page)
    _without_ipv6(server, page, sip_server)
    server.call()
    server.await_end()


def test_the_page_for_rtpengine(server: Server) -> None:
    _install(server)
    _follow(server, "docs/start/rtpengine.md")


_BUILD = """
set -e
mount --make-rprivate /
mount -t proc proc {root}/proc
mount -t sysfs sysfs {root}/sys
mount -t bpf bpf {root}/sys/fs/bpf
mount --rbind /dev {root}/dev
mount -t tmpfs tmpfs {root}/run
exec chroot {root} /usr/bin/env -i SYSTEMD_OFFLINE=1 {environment} PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 sh -c 'cd /root/shunt && {line}'
"""
# How this machine reaches package mirrors, where that is not the default.
_MIRRORS = ("http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL", "CARGO_NET_RETRY")
_CERTIFICATES, _CERTIFICATES_THERE = Path("/etc/ssl/certs/ca-certificates.crt"), "/etc/ssl/mirrors.crt"
_FILES = ("etc/resolv.conf", "etc/hosts", "etc/apt/sources.list", "etc/apt/sources.list.d/debian.sources", "root/.cargo/config.toml")


class BuildMachine:
    """A clean Debian with make, git and a clone of this commit, without a running systemd. It shares the network of this machine, from which packages come."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"

    def build(self) -> None:
        subprocess.run(["cp", "-a", "--reflink=auto", test_deb.CLEAN, self.root], check=True)
        for name in _FILES:
            there, here = Path("/") / name, self.root / name
            if there.exists():
                here.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(there, here)
        if _CERTIFICATES.exists():
            there = self.root / _CERTIFICATES_THERE[1:]
            there.parent.mkdir(parents=True, exist_ok=True)  # a minimal root has no OpenSSL
            shutil.copyfile(_CERTIFICATES, there)
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, self.root / "root/shunt"], check=True)
        self.shell("apt-get update --quiet=2 && apt-get install --yes --quiet=2 --no-install-recommends make git")

    def shell(self, line: str) -> str:
        """A line that the reader types as root in the clone. Prints how long it took; raises AssertionError with the end of its output where it fails."""
        variables = {name: os.environ[name] for name in _MIRRORS if name in os.environ}
        if _CERTIFICATES.exists():
            variables |= dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT", "CARGO_HTTP_CAINFO"), _CERTIFICATES_THERE)
        environment = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        script = _BUILD.format(root=self.root, environment=environment, line=line)
        began = time.monotonic()
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        print(f"{line}: {time.monotonic() - began:.0f} s")
        assert done.returncode == 0, f"{line}: {done.stdout[-4000:]}"
        return done.stdout


@pytest.fixture
def build_machine(tmp_path: Path) -> Iterator[BuildMachine]:
    made = BuildMachine(tmp_path)
    try:
        made.build()
        yield made
    finally:
        shutil.rmtree(made.root, ignore_errors=True)


def test_readme_and_the_page_for_installing(build_machine: BuildMachine, server: Server) -> None:
    """The demo from nothing, the package, the installation without one; the package on the server."""
    for line in pages.commands("README.md"):
        if line not in pages.NOT_RUN:
            build_machine.shell(line)
    for line in pages.commands("docs/start/install.md"):
        if line.startswith("apt "):
            built = sorted((build_machine.root / "root/shunt/build").glob("shunt_*.deb"))
            for old in (server.root / "root").glob("shunt_*.deb"):
                old.unlink()
            shutil.copy(built[-1], server.root / "root")
            server.shell(line)
        else:
            build_machine.shell(line)
            if line.startswith("shunt "):
                server.shell(line)
