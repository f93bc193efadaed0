"""The paper's third scenario: iperf3's UDP streams as media of calls, with the entries of 400,000 sessions in the table.

iperf3 sets its test up over TCP, which the relay host passes on by NAT; the UDP packets go through the relay under test.
What a relay lost and what the receiving socket lost are told apart by the relay's own count.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from bench.load import NEAR_IPS, FIRST_PHONE_PORT, PHONES, RELAY_IP, LoadError, Wires
from bench.peers import Ports, Shunt
from shunt.net import Endpoint
from tests.tools.entry import RelayEntry

SESSIONS = 400_000
PORT = 5201  # iperf3's own
SENDER_PORT = FIRST_PHONE_PORT
LENGTH = 1400  # of a datagram: the paper's dummy media fills the link, not the sessions
WAYS = ("shunt", "nftables")
_NAT = """table ip iperf {{
  chain prerouting {{ type nat hook prerouting priority dstnat; ip daddr {relay} meta l4proto {{ {protocols} }} th dport {port} dnat ip to {phone}; }}
  chain postrouting {{ type nat hook postrouting priority srcnat; ip daddr {phone} meta l4proto {{ {protocols} }} th dport {port} snat ip to {near}; }}
}}
"""


def missing() -> str:
    """What has to be installed first; empty when nothing."""
    for name, package in (("iperf3", "iperf3"), ("nft", "nftables")):
        if not shutil.which(name):
            return f"{name} is not installed (Debian: {package})"
    return ""


class FullShunt(Shunt):
    """Shunt with two entries for each of 400,000 sessions besides the streams' own."""

    capacity = 1_050_000
    further = 2 * SESSIONS

    def start(self, calls: int) -> Ports:
        from bench.relay_table import entry

        ports = super().start(calls)
        towards = Endpoint(socket.inet_aton(PHONES[1]), 9)
        for start in range(0, self.further, 50_000):
            self.insert([RelayEntry(one.key, one.src, towards) for one in map(entry, range(start, start + 50_000))])
        return ports


class _OneStream(FullShunt):
    """The stream that iperf3 sends."""

    def phone(self, side: int, call: int) -> tuple[str, int]:
        return (PHONES[side], (SENDER_PORT, PORT)[side])

    def ports(self, calls: int) -> Ports:
        return [(PORT, PORT - 1)]


def _routes(wires: Wires, add: bool) -> None:
    """The phones' way to the relay: the caller's by its own wire, the callee's by the other."""
    verb = "add" if add else "del"
    for arguments in (
        ("route", verb, f"{RELAY_IP}/32", "via", NEAR_IPS[0], "dev", "a0"),
        ("route", verb, f"{RELAY_IP}/32", "via", NEAR_IPS[1], "dev", "b0", "table", "77"),
        ("route", verb, f"{NEAR_IPS[1]}/32", "dev", "b0", "table", "77"),
        ("rule", verb, "from", PHONES[1], "table", "77"),
    ):
        subprocess.run(wires.enter(wires.phones, "ip", *arguments), capture_output=True, check=add)


def measure(wires: Wires, work: Path, cpus: list[int], way: str, seconds: float) -> dict[str, Any]:
    """As many datagrams a second as iperf3 sends, through Shunt or the kernel's NAT; what its receiver, and Shunt, counted. Raises LoadError."""
    shunt = _OneStream(wires, work, cpus) if way == "shunt" else None
    entries, server = None, None
    try:
        if shunt is not None:
            shunt.start(1)
            entries = shunt.plane.totals()["entries"]
        protocols = "tcp" if shunt is not None else "tcp, udp"
        wires.run(wires.relay, "nft", "-f", "-", stdin=_NAT.format(relay=RELAY_IP, protocols=protocols, port=PORT, phone=PHONES[1], near=NEAR_IPS[1]))
        wires.forwarding(True)
        _routes(wires, True)
        server = subprocess.Popen(wires.enter(wires.phones, "iperf3", "-s", "-1", "-J", "-B", PHONES[1], "-p", str(PORT)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        time.sleep(0.3)
        before = shunt.plane.totals()["relayed_packets"] if shunt is not None else 0
        client = wires.enter(
            wires.phones, "iperf3", "-c", RELAY_IP, "-p", str(PORT), "-B", PHONES[0], "--cport", str(SENDER_PORT), "-u", "-b", "0", "-l", str(LENGTH), "-t", f"{max(1, round(seconds))}", "-J"
        )  # fmt: skip
        done = subprocess.run(client, capture_output=True, text=True, timeout=seconds + 30)
        relayed = shunt.plane.totals()["relayed_packets"] - before if shunt is not None else None
        try:
            end = json.loads(done.stdout)["end"]
            total = end["sum"]
        except (ValueError, KeyError) as error:
            raise LoadError(f"iperf3 through {way}: {done.stdout[-500:]}{done.stderr[-500:]}") from error
    finally:
        if server is not None:
            server.terminate()
            server.communicate()
        _routes(wires, False)
        subprocess.run(wires.enter(wires.relay, "nft", "delete", "table", "ip", "iperf"), capture_output=True)
        wires.forwarding(False)
        if shunt is not None:
            shunt.stop()
    return {
        "entries": entries, "seconds": total["seconds"], "sent": total["packets"], "bits_per_s": total["bits_per_second"], "jitter_ms": total["jitter_ms"],
        "lost": total["lost_packets"], "relayed": relayed, "length": LENGTH, "sender_cpu_percent": end["cpu_utilization_percent"]["host_total"],
    }  # fmt: skip
