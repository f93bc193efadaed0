"""Network namespaces for the data-plane tests: a relay between two hosts, each on a veth pair of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shunt.net import Endpoint, FiveTuple
from tests.tools.entry import RelayEntry

RELAY_A4, HOST_A4 = "10.1.0.1", "10.1.0.2"
RELAY_B4, HOST_B4 = "10.2.0.1", "10.2.0.2"
RELAY_A6, HOST_A6 = "fd01::1", "fd01::2"
RELAY_B6, HOST_B6 = "fd02::1", "fd02::2"
MAC_RA, MAC_A, MAC_RB, MAC_B = (f"02:00:00:00:00:{n}" for n in ("a1", "a2", "b1", "b2"))
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str | None:
    """What these tests lack here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    if not Path("/sys/fs/bpf").is_dir():
        return "the kernel has no BPF file system"
    return None


def sh(*command: str) -> str:
    """Run a command; raises with its own words when it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """Move this thread into a namespace for a while."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        if _libc.setns(there, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter namespace {name}")
        yield
    finally:
        _libc.setns(home, _CLONE_NEWNET)
        os.close(home)
        os.close(there)


@dataclass(slots=True)
class Lab:
    """Namespaces `relay`, `a`, `b` with interfaces ra-a0 and rb-b0, and a directory for pins."""

    prefix: str
    pins: Path

    def ns(self, which: str) -> str:
        return f"{self.prefix}-{which}"

    def ip(self, which: str, *arguments: str) -> str:
        return sh("ip", "-n", self.ns(which), *arguments)

    def socket(self, which: str, ip: str, port: int, kind: int = socket.SOCK_DGRAM) -> socket.socket:
        """A bound UDP socket in a namespace."""
        with inside(self.ns(which)):
            family = socket.AF_INET6 if ":" in ip else socket.AF_INET
            made = socket.socket(family, kind)
        made.bind((ip, port))
        made.settimeout(60)
        return made

    def raw(self, which: str, interface: str) -> socket.socket:
        """A packet socket on an interface, for whole Ethernet frames."""
        with inside(self.ns(which)):
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        made.bind((interface, 0))
        made.settimeout(60)
        return made

    def fix_neighbours(self) -> None:
        """Give the relay permanent neighbours, so that no packet waits for one to be resolved."""
        for interface, address, mac in (("ra", HOST_A4, MAC_A), ("ra", HOST_A6, MAC_A), ("rb", HOST_B4, MAC_B), ("rb", HOST_B6, MAC_B)):
            self.ip("relay", "neigh", "replace", address, "lladdr", mac, "dev", interface, "nud", "permanent")

    def checksum_errors(self, which: str) -> int:
        """UDP checksum errors of a namespace, IPv4 and IPv6 together."""
        text = subprocess.run(["nsenter", f"--net=/run/netns/{self.ns(which)}", "cat", "/proc/net/snmp", "/proc/net/snmp6"], capture_output=True, text=True).stdout
        lines = [line.split() for line in text.splitlines()]
        udp = [fields for fields in lines if fields and fields[0] == "Udp:"]
        four = int(udp[1][udp[0].index("InCsumErrors")])
        return four + sum(int(fields[1]) for fields in lines if fields and fields[0] == "Udp6InCsumErrors")


@contextlib.contextmanager
def build(tag: str, *, gro: bool = True, relay_addresses: bool = True) -> Iterator[Lab]:
    """Make the namespaces; everything is gone afterwards. gro: without it the hosts' veth ends cannot take native redirects."""
    prefix = f"shdp{os.getpid() % 100000}{tag}"
    pins = Path(tempfile.mkdtemp(prefix=prefix))
    lab = Lab(prefix, pins / "pins")
    try:
        for which in ("relay", "a", "b"):
            sh("ip", "netns", "add", lab.ns(which))
            # What hosts say of themselves would be counted as packets.
            sh("ip", "netns", "exec", lab.ns(which), "sysctl", "-qw", "net.ipv6.conf.default.router_solicitations=0")
            lab.ip(which, "link", "set", "lo", "up")
        for which, relay_mac, mac in (("a", MAC_RA, MAC_A), ("b", MAC_RB, MAC_B)):
            lab.ip("relay", "link", "add", f"r{which}", "address", relay_mac, "type", "veth", "peer", "name", f"{which}0", "address", mac, "netns", lab.ns(which))
            if gro:
                sh("ip", "netns", "exec", lab.ns(which), "ethtool", "-K", f"{which}0", "gro", "on")
            lab.ip("relay", "link", "set", f"r{which}", "up")
            lab.ip(which, "link", "set", f"{which}0", "up")
        for which, net4, net6 in (("a", "10.1.0", "fd01:"), ("b", "10.2.0", "fd02:")):
            lab.ip("relay", "address", "add", f"{net4}.1/24", "dev", f"r{which}")
            lab.ip("relay", "address", "add", f"{net6}:1/64", "dev", f"r{which}", "nodad")
            lab.ip(which, "address", "add", f"{net4}.2/24", "dev", f"{which}0")
            lab.ip(which, "address", "add", f"{net6}:2/64", "dev", f"{which}0", "nodad")
            lab.ip(which, "route", "add", "default", "via", f"{net4}.1")
            lab.ip(which, "-6", "route", "add", "default", "via", f"{net6}:1")
        yield lab
    finally:
        for which in ("relay", "a", "b"):
            subprocess.run(["ip", "netns", "del", lab.ns(which)], capture_output=True)
        subprocess.run(["umount", str(lab.pins)], capture_output=True)
        for path in (lab.pins, pins):
            with contextlib.suppress(OSError):
                path.rmdir()


def ep(text: str) -> Endpoint:
    return Endpoint.parse(text)


def entry(src: str, relay: str, out: str, dst: str, **more: int) -> RelayEntry:
    """Packets src > relay leave as out > dst; all "address:port"."""
    return RelayEntry(FiveTuple(ep(src), ep(relay)), ep(out), ep(dst), **more)
