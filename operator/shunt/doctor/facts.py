"""What is read of a host, as values: the checks take these, and tests make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Unknown:
    """In place of a value that could not be read: why."""

    reason: str


# -- network interfaces -------------------------------------------------------------------------------

XdpMode = Literal["native", "generic", "hardware", "several"]
XDP_BASIC, XDP_TRANSMIT, XDP_BUFFERS = 1, 4, 32
"""NETDEV_XDP_ACT_BASIC, _NDO_XMIT and _RX_SG (linux/netdev.h): takes programs in the driver; transmits what native XDP redirects to it; hands over frames
in several buffers."""


@dataclass(frozen=True, slots=True)
class Feature:
    """An offload of an interface. fixed: the driver does not let it be changed."""

    active: bool
    fixed: bool


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface. kind: as `ip -details link` names it, empty for a device of its own. attached: the mode of the XDP program on it;
    pinned: whether it is the softswitch's, that is, a link of this interface is pinned in pin_dir. max_queues: None where that cannot be set. below: the interface that a macvlan is on
    top of, empty for other kinds."""

    name: str
    up: bool
    mtu: int
    kind: str
    driver: str | Unknown
    rx_queues: int
    max_queues: int | None
    offloads: Mapping[str, Feature] | Unknown
    attached: XdpMode | None
    pinned: bool | Unknown
    xdp_features: int | Unknown
    below: str = ""


# -- kernel -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kernel:
    """release: of uname. jit: net.core.bpf_jit_enable. neighbours: gc_thresh3 by IP version."""

    release: str
    cpus: int
    btf: bool
    jit: int | Unknown
    neighbours: Mapping[int, int | Unknown]


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system."""

    path: str
    kind: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Clock:
    """What adjtimex(2) says. max_error_s: the largest error that the kernel reckons with."""

    synchronised: bool
    max_error_s: float


# -- sockets ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Process:
    """A process with its name and its arguments."""

    pid: int
    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound UDP or listening TCP socket, or a Unix socket that took a connection."""

    kind: Literal["udp", "tcp", "unix"]
    host: str
    port: int
    holder: Process | Unknown
    path: str = ""


@dataclass(frozen=True, slots=True)
class Ports:
    """ephemeral: net.ipv4.ip_local_port_range. reserved: net.ipv4.ip_local_reserved_ports, ranges inclusive. local: whether an address is this host's."""

    ephemeral: tuple[int, int] | Unknown
    reserved: tuple[tuple[int, int], ...]
    bound: tuple[Bound, ...] | Unknown
    local: Mapping[str, bool]


# -- files and accounts -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """A folder or file on the way to a path."""

    path: str
    is_folder: bool
    mode: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Place:
    """A path as far as it exists: its nodes from / on. free: bytes for others than root, free_files: inodes, None where the file system has no limit."""

    path: str
    nodes: tuple[Node, ...]
    read_only: bool
    free: int
    free_files: int | None

    @property
    def exists(self) -> bool:
        return self.nodes[-1].path == self.path


@dataclass(frozen=True, slots=True)
class Account:
    """Whom daemons run as, and how that is known ("the running agent's user")."""

    name: str
    uid: int
    gids: frozenset[int]
    source: str


@dataclass(frozen=True, slots=True)
class Unit:
    """A systemd service as its file and drop-ins say; settings of [Service], each with its values in order, after a reset by an empty one."""

    name: str
    path: str
    settings: Mapping[str, tuple[str, ...]]


# -- what answers -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connection:
    """A try to connect. error: what the kernel or the resolver said; None: it was taken."""

    error: str | None
    code: Literal["", "missing", "denied", "refused", "timeout", "name"] = ""


@dataclass(frozen=True, slots=True)
class Agent:
    """A running agent. unseen: RTP streams whose packets the relay receives and the data plane does not see (`not-in-data-plane`)."""

    version: str
    unseen: int = 0


@dataclass(frozen=True, slots=True)
class RelayAnswer:
    """What a relay says. version: of V, or "rtpengine". can: answers to VF by date. error: why there is none."""

    version: str = ""
    can: Mapping[int, bool] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RedisAnswer:
    """appends: whether it writes every change to its file (appendonly), None where it does not say."""

    appends: bool | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Conntrack:
    """Connection tracking of this network namespace: flows held, and how many can be."""

    held: int
    limit: int


@dataclass(frozen=True, slots=True)
class Policy:
    """Something that the host does to packets of local programs. kind: what; text: which one, as the host's own tools show it."""

    kind: Literal["IPsec", "routing", "translation"]
    text: str


@dataclass(frozen=True, slots=True)
class Network:
    """An interface that is up and has addresses. lower: the interfaces that carry its frames, itself and all below it. networks: its prefixes."""

    name: str
    kind: str
    lower: frozenset[str]
    networks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """A host. Maps have what the configuration asks for: `links` by interface (None: there is none such), `places` by path, `groups` by name (its id,
    None: there is none such), `relays` by name, `programs` by daemon (its version, None: it is not installed), `readable` by file (why it cannot be read, None: it can). health: GET /v1/health of the operator
    daemon, None: it was not asked."""

    links: Mapping[str, Link | None | Unknown]
    kernel: Kernel
    mounts: tuple[Mount, ...] | Unknown
    clock: Clock | Unknown
    ports: Ports
    places: Mapping[str, Place | Unknown]
    readable: Mapping[str, str | None]
    account: Account
    user: int | None
    groups: Mapping[str, int | None]
    units: tuple[Unit, ...]
    programs: Mapping[str, str | None | Unknown]
    agent: Agent | None | Unknown
    target: Connection | Unknown | None
    relays: Mapping[str, RelayAnswer | Unknown]
    redis: RedisAnswer | Unknown | None
    chains: int | Unknown
    conntrack: Conntrack | None
    policies: tuple[Policy, ...] | Unknown
    networks: tuple[Network, ...] | Unknown
    health: Mapping[str, Any] | Unknown | None = None
