"""A host where nothing is wrong, for the configuration CONFIG, and how tests change it."""

from __future__ import annotations

import dataclasses
from typing import Any

from shunt.config.load import loads
from shunt.config.model import Config
from shunt.doctor.facts import (
    XDP_BASIC, XDP_TRANSMIT, Account, Agent, Bound, Clock, Connection, Facts, Feature, Kernel, Link, Mount, Node, Place, Ports, Process, RedisAnswer, RelayAnswer, Unit,
)  # fmt: skip
from shunt.doctor.finding import Finding
from shunt.doctor.peers import ASKED
from shunt.doctor.services import PLANE

CONFIG = """\
relays:
  - {name: r1, socket: "udp:127.0.0.1:22222", media: [{address: 192.0.2.1, ports: "20000-29999"}]}
  - {name: e1, type: rtpengine, socket: "udp:127.0.0.1:2223", media: [{address: 192.0.2.2, ports: "20000-29999"}]}
control: {listen: ["udp:127.0.0.1:22221", "unix:/run/shunt/c.sock"], ng: ["udp:127.0.0.1:22223"]}
hep: {}
data_plane: {}
journal: {}
cdr: {csv: /var/log/shunt/cdr.csv}
softswitch: {interfaces: [eth0, eth1]}
"""
UID, GID = 990, 991
SHUNT = Account("shunt", UID, frozenset({GID}), "that of the units")
ROOT_NODE = Node("/", True, 0o40755, 0, 0)
VAR = Node("/var", True, 0o40755, 0, 0)
OWN = Node("/var/own", True, 0o40750, UID, GID)
OFFLOADS = {"rx-lro": Feature(False, False), "rx-vlan-hw-parse": Feature(True, False), "rx-gro-hw": Feature(False, False), "rx-udp-gro-forwarding": Feature(False, False)}


def config(*changes: tuple[str, str]) -> Config:
    """CONFIG with pieces of its text replaced."""
    text = CONFIG
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return loads(text)


def link(name: str, **changes: Any) -> Link:
    """A good network card."""
    made = Link(name, up=True, mtu=1500, kind="", driver="ice", rx_queues=8, max_queues=16, offloads=OFFLOADS, attached=None, pinned=False, xdp_features=XDP_BASIC | XDP_TRANSMIT)
    return dataclasses.replace(made, **changes)


def place(path: str, **changes: Any) -> Place:
    """A folder of the user shunt with room."""
    nodes = (ROOT_NODE, dataclasses.replace(OWN, path=path))
    return dataclasses.replace(Place(path, nodes, read_only=False, free=10 << 30, free_files=1_000_000), **changes)


def udp(port: int, holder: Any, host: str = "0.0.0.0") -> Bound:
    return Bound("udp", host, port, holder)


AGENT, RTPPROXY = Process(10, "tokio-rt-worker", ("shunt-agent", "--config")), Process(11, "rtpproxy", ("/usr/bin/rtpproxy", "-f"))


def facts(**changes: Any) -> Facts:
    """The host, with fields replaced."""
    sandbox = {"User": ("shunt",), "CapabilityBoundingSet": ()}
    made = Facts(
        links={"eth0": link("eth0"), "eth1": link("eth1")},
        kernel=Kernel("6.12.1", cpus=8, btf=True, jit=1, neighbours={4: 4096, 6: 4096}),
        mounts=(Mount("/", "ext4", False), Mount("/sys/fs/bpf", "bpf", False)),
        clock=Clock(True, 0.01),
        ports=Ports((32768, 60999), (), (), {"192.0.2.1": True, "192.0.2.2": True, "127.0.0.1": True}),
        places={path: place(path) for path in ("/var/lib/shunt/events", "/var/lib/shunt/operator", "/var/lib/shunt", "/var/log/shunt")},
        readable={},
        account=SHUNT,
        user=UID,
        groups={"shunt": GID},
        units=(
            Unit("shunt-softswitch.service", "/s", {"CapabilityBoundingSet": (" ".join(sorted(PLANE)),)}),
            Unit("shunt-agent.service", "/a", sandbox),
        ),
        programs={"shunt-agent": "0.2.0", "shunt-softswitch": "0.2.0"},
        agent=Agent("0.2.0"),
        target=Connection(None),
        relays={"r1": RelayAnswer("20040107", dict.fromkeys(ASKED, True)), "e1": RelayAnswer("rtpengine")},
        redis=None,
        chains=0,
        conntrack=None,
        policies=(),
        networks=(),
        health={"findings": [], "unknown": []},
    )
    return dataclasses.replace(made, **changes)


def by_subject(findings: Any) -> dict[str, Finding]:
    """Findings by what was looked at; no two are about the same."""
    listed = list(findings)
    made = {finding.subject: finding for finding in listed}
    assert len(made) == len(listed), [finding.subject for finding in listed]
    return made
