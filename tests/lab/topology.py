"""Network namespaces of the lab: an edge host, two phones, a NAT box with a phone behind it.

        caller ── 198.18.1.0/24 ──┐
                                 edge (198.18.0.1, fd91::1 on lo) ── 198.18.2.0/24 ── callee
    natcaller ── nat ── 198.18.3.0/24 ──┘
    192.168.50.2   masquerade, fully random ports

The edge host does not forward: media between phones passes only through the relay (user space) or the
data plane (XDP). veths have GRO on, without which frames redirected by native XDP are lost silently.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path

EDGE_IP, EDGE_IP6 = "198.18.0.1", "fd91::1"
CALLER_IP, CALLER_IP6 = "198.18.1.2", "fd91:1::2"
CALLEE_IP, CALLEE_IP6 = "198.18.2.2", "fd91:2::2"
NAT_IP, NAT_IP6 = "198.18.3.2", "fd91:3::2"
NATCALLER_IP, NATCALLER_IP6 = "192.168.50.2", "fd91:50::2"
EDGE_INTERFACES = ("e-caller", "e-callee", "e-nat")
HOSTS = ("edge", "caller", "callee", "nat", "natcaller")
SINK_PORTS = "6000-31999"

# Where phones' sockets are that ask for any port: where no media is, so that no RTCP comes to them either.
_ANY_PORT = "50000 60999"

_LOCKS = Path("/run/shunt-lab")
_NETNS = Path("/run/netns")
BPF = Path("/sys/fs/bpf")  # what a run pins is below BPF / prefix

# Phones play media from raw sockets (SIPp) and have no socket to receive it on: swallow it there, or the
# kernel answers every packet with ICMP port unreachable. Captures see packets before this.
_SINK = f"""table inet sink {{
  chain media {{ type filter hook input priority 0; udp dport {SINK_PORTS} counter drop; }}
}}"""
# What reaches the edge host's own sockets on media ports is what the data plane did not carry.
_SLOW = """table inet slow {
  counter media { }
  chain input { type filter hook input priority 0; ip daddr 198.18.0.1 udp dport 35000-65000 counter name media; ip6 daddr fd91::1 udp dport 35000-65000 counter name media; }
}"""
# The data plane sends with the host's own TTL, as a relay does. What the edge host's sockets send passes this hook, which XDP does not: captures
# tell the two apart by it.
RELAYED_TTL = 60
_RELAYED = (
    "table netdev relayed {\n"
    + "".join(
        f"""  chain {name} {{
    type filter hook egress device "{name}" priority 0;
    meta l4proto udp meta protocol ip ip ttl set {RELAYED_TTL};
    meta l4proto udp meta protocol ip6 ip6 hoplimit set {RELAYED_TTL};
  }}
"""
        for name in EDGE_INTERFACES
    )
    + "}\n"
)
_MASQUERADE = """table inet nat {
  chain postrouting { type nat hook postrouting priority srcnat; oifname "wan" masquerade random,fully-random; }
}"""


class LabError(RuntimeError):
    """The lab could not be built or a process in it did not do what it should."""


def run(*argv: str, stdin: str | None = None) -> str:
    """Run a command to its end and return its output. Raises LabError with the command and its words."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


class Topology:
    """The namespaces of one run. A context manager; what it makes is gone after it, whatever happened.

    The prefix is unique per run and held by a lock: namespaces whose owner died are found and removed by
    the next run.
    """

    def __init__(self, tag: str = "lab") -> None:
        self.prefix = f"shunt-{tag}-{secrets.token_hex(3)}"
        self._lock: int | None = None
        self._old_handlers: dict[int, object] = {}

    def name(self, host: str) -> str:
        """The namespace's name of one of HOSTS."""
        return f"{self.prefix}-{host}"

    def enter(self, host: str, *argv: str) -> list[str]:
        """The command line that runs argv in a host's namespace (with the same pid, and this mount namespace)."""
        return ["nsenter", f"--net={_NETNS / self.name(host)}", "--", *argv]

    def run(self, host: str, *argv: str, stdin: str | None = None) -> str:
        """Run a command to its end in a host's namespace. Raises LabError."""
        return run(*self.enter(host, *argv), stdin=stdin)

    def __enter__(self) -> "Topology":
        if os.geteuid() != 0:
            raise LabError("the lab makes network namespaces: run it as root")
        remove_leftovers()
        _LOCKS.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(_LOCKS / self.prefix, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A SIGTERM must unwind the stack like Ctrl-C does, or nothing is cleaned up; and Ctrl-C must do so
        # even where a shell started this in the background, with SIGINT ignored.
        with contextlib.suppress(ValueError):  # not in the main thread: the caller handles signals
            for number in (signal.SIGTERM, signal.SIGINT):
                self._old_handlers[number] = signal.signal(number, _interrupt)
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill what still runs in the namespaces and remove them. Harmless when called again."""
        if self._lock is None:
            return
        with _signals_held():
            _remove(self.prefix)
            (_LOCKS / self.prefix).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._old_handlers.clear()

    def pids(self) -> list[int]:
        """Processes that live in any of the namespaces now."""
        return [pid for host in HOSTS for pid in _pids(self.name(host))]

    def slow_packets(self) -> int:
        """Media packets that reached the edge host's own sockets: those the data plane did not carry."""
        words = self.run("edge", "nft", "list", "counter", "inet", "slow", "media").split()
        return int(words[words.index("packets") + 1])

    def lost_on_wires(self) -> dict[str, int]:
        """Packets that the veths have dropped because a queue was full, by host and interface: what neither the data plane nor a party did."""
        dropped = {}
        for host in HOSTS:
            for link in json.loads(self.run(host, "ip", "-json", "-statistics", "link")):
                count = sum(link["stats64"][way]["dropped"] for way in ("rx", "tx"))
                if count:
                    dropped[f"{host} {link['ifname']}"] = count
        return dropped

    def _build(self) -> None:
        for host in HOSTS:
            run("ip", "netns", "add", self.name(host))
        pairs = (
            ("edge", "e-caller", "caller", "eth0"),
            ("edge", "e-callee", "callee", "eth0"),
            ("edge", "e-nat", "nat", "wan"),
            ("nat", "lan", "natcaller", "eth0"),
        )
        for host_a, dev_a, host_b, dev_b in pairs:
            run("ip", "link", "add", dev_a, "netns", self.name(host_a), "type", "veth", "peer", "name", dev_b, "netns", self.name(host_b))
        addresses = {
            "edge": [("lo", f"{EDGE_IP}/32"), ("lo", f"{EDGE_IP6}/128")]
            + [("e-caller", "198.18.1.1/24"), ("e-caller", "fd91:1::1/64")]
            + [("e-callee", "198.18.2.1/24"), ("e-callee", "fd91:2::1/64")]
            + [("e-nat", "198.18.3.1/24"), ("e-nat", "fd91:3::1/64")],
            "caller": [("eth0", f"{CALLER_IP}/24"), ("eth0", f"{CALLER_IP6}/64")],
            "callee": [("eth0", f"{CALLEE_IP}/24"), ("eth0", f"{CALLEE_IP6}/64")],
            "nat": [("wan", f"{NAT_IP}/24"), ("wan", f"{NAT_IP6}/64"), ("lan", "192.168.50.1/24"), ("lan", "fd91:50::1/64")],
            "natcaller": [("eth0", f"{NATCALLER_IP}/24"), ("eth0", f"{NATCALLER_IP6}/64")],
        }
        gateways = {
            "caller": ("198.18.1.1", "fd91:1::1"),
            "callee": ("198.18.2.1", "fd91:2::1"),
            "nat": ("198.18.3.1", "fd91:3::1"),
            "natcaller": ("192.168.50.1", "fd91:50::1"),
        }
        for host in HOSTS:
            forward = int(host == "nat")
            settings: dict[str, object] = {"ipv4/ip_forward": forward, "ipv6/conf/all/forwarding": forward, "ipv4/conf/all/rp_filter": 0}
            if host != "edge":
                settings["ipv4/ip_local_port_range"] = _ANY_PORT
            self.run(host, "sh", "-ec", "; ".join(f"echo '{value}' > /proc/sys/net/{name}" for name, value in settings.items()))
            devices = sorted({device for device, _ in addresses[host]} | {"lo"})
            lines = [f"link set {device} up" for device in devices]
            lines += [f"addr add {address} dev {device}" + (" nodad" if ":" in address else "") for device, address in addresses[host]]
            if host in gateways:
                lines += [f"route add default via {gateway}" for gateway in gateways[host]]
            self.run(host, "ip", "-batch", "-", stdin="\n".join(lines))
            for device in devices:
                if device != "lo":
                    self.run(host, "ethtool", "-K", device, "gro", "on")
        self.run("nat", "nft", "-f", "-", stdin=_MASQUERADE)
        self.run("edge", "nft", "-f", "-", stdin=_SLOW)
        self.run("edge", "nft", "-f", "-", stdin=_RELAYED)
        for host in ("caller", "callee", "natcaller"):
            self.run(host, "nft", "-f", "-", stdin=_SINK)


def remove_leftovers() -> list[str]:
    """Remove the namespaces of runs whose owner is dead; return their prefixes."""
    gone = []
    if not _LOCKS.is_dir():
        return gone
    for path in sorted(_LOCKS.iterdir()):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # its owner lives
        else:
            _remove(path.name)
            path.unlink(missing_ok=True)
            gone.append(path.name)
        finally:
            os.close(fd)
    return gone


def _pids(namespace: str) -> list[int]:
    if not (_NETNS / namespace).exists():
        return []
    return [int(word) for word in run("ip", "netns", "pids", namespace).split()]


def _remove(prefix: str) -> None:
    if not _NETNS.is_dir():
        return
    names = sorted(path.name for path in _NETNS.iterdir() if path.name.startswith(prefix + "-"))
    for number, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        deadline = time.monotonic() + patience
        pids = [pid for name in names for pid in _pids(name)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while pids and time.monotonic() < deadline:
            time.sleep(0.05)
            pids = [pid for name in names for pid in _pids(name)]
        if not pids:
            break
    for name in names:
        run("ip", "netns", "del", name)
    shutil.rmtree(BPF / prefix, ignore_errors=True)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


@contextlib.contextmanager
def _signals_held():
    """Hold Ctrl-C and SIGTERM back, so that a second one does not stop the cleaning up."""
    held = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
