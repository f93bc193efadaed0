"""Every key of the configuration file, with meaning, unit and default."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from shunt.config.conference import Conference
from shunt.config.edge import Edge
from shunt.config.mixer import Mixer
from shunt.config.rooms import Rooms
from shunt.config.section import Location, Section
from shunt.config.switch import Switch
from shunt.config.values import (
    AbsolutePath,
    ApiListen,
    ControlSocket,
    HepSocket,
    HostPort,
    Interface,
    IPNetwork,
    MediaAddress,
    Name,
    Network,
    NgSocket,
    NotifySocket,
    Owner,
    PortRange,
    Ports,
    RedisUrl,
    ServerListen,
    SocketAddress,
    Target,
    UdpSocket,
    addresses_overlap,
    host_port,
)
from shunt.errors import cause

SOFTSWITCH_SOCKET = "unix:/run/shunt-softswitch/bfrt.sock"
RELAY_SOCKET = "cunix:/run/shunt-relay/control.sock"
RTPENGINE_TTL = 3600
"""Seconds: what rtpengine's silent-timeout and offer-timeout are unless it is told otherwise."""
_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


class Control(Section):
    """Where SIP servers reach the agent, with the rtpproxy control protocol or with rtpengine's NG protocol."""

    listen: list[ControlSocket] = Field(
        default=["udp:127.0.0.1:22221"],
        min_length=1,
        description="Sockets for the rtpproxy protocol: udp:ADDRESS:PORT, tcp:ADDRESS:PORT, unix:/PATH (one command per connection) or cunix:/PATH (persistent). Not bound if no relay is an rtpproxy.",
    )
    ng: list[NgSocket] = Field(default=[], description="Sockets for the NG protocol, for relays of type rtpengine: udp:ADDRESS:PORT or tcp:ADDRESS:PORT.")
    allow: list[Network] = Field(default=list(_LOOPBACK), description="Networks that may send commands over UDP and TCP. Unix sockets have file permissions.")
    socket_group: Name = Field(default="shunt", description="Group that may use the Unix sockets.")
    legs_per_call: int = Field(default=128, ge=4, le=1_000_000, description="Most legs (tags) of one Call-ID. A command that would add another one gets an error.")
    sessions_per_source: int = Field(default=0, ge=0, le=1_000_000, description="Most new sessions per second from one source address. A further command gets an error. 0: no limit.")
    sip_timeout_ms: int = Field(
        default=200,
        ge=20,
        le=60_000,
        description="Milliseconds that the SIP server waits for the answer to one try. The agent does not execute older commands, and rejects new calls first under overload. `shunt check-config --sip-server` compares it with the SIP server's file.",
    )
    drain_on_stop_s: int = Field(
        default=0,
        ge=0,
        le=86_400,
        description="Most seconds that the agent drains after SIGTERM, until its entries are gone. 0: it stops at once; calls continue.",
    )


class MediaRange(Section):
    """A relay address and the ports on which media arrives there."""

    address: MediaAddress = Field(description="The address that media is sent to: rtpproxy's -l, or the ADDRESS in rtpengine's NAME/ADDRESS!ADVERTISED.")
    advertised: MediaAddress | None = Field(
        default=None,
        description="The address in rtpproxy's replies (-l ADDRESS=ADVERTISED or -A), if a 1:1 NAT translates it. Not for rtpengine, which reports its own addresses.",
    )
    ports: Ports = Field(description='UDP ports, inclusive, from an even port on: "35000-65000" (rtpproxy -m and -M, rtpengine --port-min and --port-max).')


class Relay(Section):
    """An rtpproxy or rtpengine that the agent forwards control commands to."""

    name: Name = Field(description="The relay's name in `shunt status` and metrics: letters, digits, . _ -")
    type: Literal["rtpproxy", "rtpengine"] = Field(default="rtpproxy", description="rtpproxy gets the commands of control.listen, rtpengine those of control.ng.")
    socket: ControlSocket = Field(description="The relay's control socket. rtpproxy (-s): udp:, tcp:, unix: or cunix:. rtpengine: udp: (--listen-ng) or tcp: (--listen-tcp-ng).")
    media: list[MediaRange] = Field(default=[], description="Where media arrives: one item for each address. Required with a data plane.")
    ttl: int = Field(default=60, ge=1, le=86400, description="Seconds without media after which the relay drops a session (rtpproxy -T, rtpengine --timeout).")
    silent_ttl: int | None = Field(default=None, ge=1, le=86400, description="The same while a party is on hold or only receives; rtpengine only (--silent-timeout). Default 3600.")
    setup_ttl: int | None = Field(default=None, ge=1, le=86400, description="The same before the answer: rtpproxy -W, default ttl; rtpengine --offer-timeout, default 3600.")
    tos: int | None = Field(
        default=None,
        ge=0,
        le=255,
        description="TOS byte of the relay's packets and of offloaded ones. rtpproxy -t and builtin_relay.tos, default 184 (EF); rtpengine --tos, default 0.",
    )
    symmetric: bool = Field(default=False, description="Whether an rtpproxy with two addresses learns addresses (--bridge_symmetric). rtpengine always does.")

    @property
    def is_rtpengine(self) -> bool:
        return self.type == "rtpengine"

    def effective(self) -> dict[str, Any]:
        """The values that the daemon gets, with the defaults of this type."""
        values = self.model_dump(mode="json")
        if self.is_rtpengine:
            for key in ("silent_ttl", "setup_ttl"):
                values[key] = values[key] or RTPENGINE_TTL
        return values

    def problems(self) -> Iterator[tuple[Location, str]]:
        """Yields the keys that do not fit the type: (location within the section, message)."""
        yield from self._advertised_problems()
        if not self.is_rtpengine:
            if self.silent_ttl is not None:
                yield ("silent_ttl",), "rtpproxy has one time-out for all sessions (ttl); only a relay of type rtpengine has this one"
            return
        if not SocketAddress.parse(self.socket).is_ip:
            yield ("socket",), f"{self.socket}: rtpengine has no Unix socket: give udp:ADDRESS:PORT (--listen-ng) or tcp:ADDRESS:PORT (--listen-tcp-ng)"
        if "symmetric" in self.model_fields_set:
            yield ("symmetric",), "applies to rtpproxy only; rtpengine always learns addresses"

    def _advertised_problems(self) -> Iterator[tuple[Location, str]]:
        own: dict[str, str] = {}
        for i, media in enumerate(self.media):
            if media.advertised is None:
                continue
            where: Location = ("media", i, "advertised")
            if self.is_rtpengine:
                yield where, "applies to rtpproxy only (-A); rtpengine reports the address at which its media arrives"
            elif problem := _not_advertisable(str(media.address), str(media.advertised)):
                yield where, problem
            elif any(str(other.address) == str(media.advertised) for other in self.media):
                yield where, f"{media.advertised} is a media address of this relay itself"
            elif own.setdefault(str(media.advertised), str(media.address)) != str(media.address):
                yield where, f"{media.advertised} already stands for {own[str(media.advertised)]}"


def _not_advertisable(own: str, advertised: str) -> str | None:
    """Returns what is wrong with an advertised address."""
    if ipaddress.ip_address(own).version != ipaddress.ip_address(advertised).version:
        return f"{advertised} is of another IP version than {own}, for which it stands"
    return None


class BuiltinRelay(Section):
    """The built-in relay (`shunt relay`), used without rtpproxy. Its name among the agent's relays is "builtin"."""

    listen: list[ControlSocket] = Field(
        default=[RELAY_SOCKET],
        min_length=1,
        description="Control sockets: udp:, tcp:, unix: or cunix:. The agent uses the first. A second one lets the SIP server use the relay while the agent does not answer.",
    )
    allow: list[Network] = Field(default=list(_LOOPBACK), description="Networks that may send commands over UDP and TCP.")
    socket_group: Name = Field(default="shunt", description="Group that may use the Unix sockets.")
    addresses: list[MediaAddress] = Field(min_length=1, max_length=2, description="One address, or two for bridging (letters I and E, in this order).")
    advertised: list[MediaAddress] = Field(default=[], max_length=2, description="Addresses in the replies, in the order of addresses, if a 1:1 NAT translates them.")
    ports: Ports = Field(default=PortRange(35000, 65000), description="UDP ports for media, inclusive, from an even port on.")
    ttl: int = Field(default=60, ge=1, le=86400, description="Seconds without media after which a session is dropped.")
    setup_ttl: int | None = Field(default=None, ge=1, le=86400, description="The same before the answer. Default ttl.")
    quarantine: float = Field(default=5, ge=0, le=3600, description="Seconds before a released port is used again.")
    packet_limit: int = Field(
        default=0, ge=0, le=1_000_000, description="Most packets per second of one stream; the relay drops and counts more. 0: no limit. Speech has 50 or 100, video several hundred."
    )
    tos: int = Field(default=184, ge=0, le=255, description='TOS byte of the relay\'s packets; 184 is EF. The relay "builtin" needs the same `relays[].tos`.')
    threads: int = Field(default=1, ge=1, le=64, description="Threads that forward media. One serves thousands of streams.")


class Tls(Section):
    """Certificates for BF Runtime over TLS; PEM files."""

    ca_file: AbsolutePath | None = Field(
        default=None, description="Certificate authorities of the other side. Default for the agent: the system's authorities; for the softswitch: clients need no certificate."
    )
    certificate_file: AbsolutePath | None = Field(default=None, description="This side's certificate. Required for the softswitch.")
    key_file: AbsolutePath | None = Field(default=None, description="The certificate's key.")


class DataPlane(Section):
    """The BF Runtime server that holds the relay table; without this section all media stays on the relay."""

    target: Target = Field(default=SOFTSWITCH_SOCKET, description="The BF Runtime server: the softswitch's unix:/PATH, or HOST:PORT of bf_switchd or of a remote softswitch.")
    device_id: int = Field(default=0, ge=0, le=0xFFFFFFFF, description="BF Runtime device id.")
    program: Name = Field(default="relay", description="Name of the P4 program that owns the tables.")
    tls: Tls | None = Field(default=None, description="TLS to the BF Runtime server. Without it the connection is not encrypted: use loopback or a management network.")
    cpu_interface: Interface | None = Field(
        default=None,
        description="Network interface of a switch's CPU port, on the switch's own host. It carries RTCP, ICE checks and copies of conferences, and the agent's own packets. Not for a softswitch, which uses the host's sockets.",
    )
    idle_ms: int = Field(default=30_000, ge=1000, le=3_600_000, description="Milliseconds without a packet after which an entry is idle.")
    hash: Literal["auto", "none"] = Field(
        default="auto",
        description="How a switch that sends no context.json stores 5-tuples. auto: unknown, so the agent rejects the switch. none: whole (RELAY_KEY=exact). A context.json takes precedence.",
    )


class Learning(Section):
    """When a source address behind NAT is latched."""

    packets: int = Field(default=5, ge=1, le=1000, description="Packets of one SSRC that an unsignalled source must send.")
    guard_ms: int = Field(default=80, ge=0, le=10_000, description="Milliseconds that these packets must span, without a rival.")
    contest_hold_s: float = Field(default=10, ge=0, le=3600, description="Seconds that a contested stream stays on the relay after the rival's last packet.")
    quarantine_s: float = Field(default=3, ge=0, le=3600, description="Seconds during which the old source is not learned again after a signalled change.")
    one_way_after_s: float = Field(default=1.0, ge=0, le=3600, description="Seconds after which a stream is offloaded to the signalled address although the other party has sent nothing.")
    first_packets: Literal["any", "named"] = Field(
        default="named",
        description="Sources that reach the relay before a stream is offloaded. named: signalled and latched addresses; packets from other sources are dropped until the stream is latched. any: all sources; the relay may latch an unknown one. Not used with the built-in relay.",
    )


class Hep(Section):
    """Copies of SIP messages (HEPv3), from which BYE and CANCEL are taken."""

    listen: HepSocket = Field(default="udp:127.0.0.1:9060", description="udp:ADDRESS:PORT or tcp:ADDRESS:PORT.")
    allow: list[Network] = Field(default=list(_LOOPBACK), description="Networks that may send SIP copies. Without this key, a loopback listener accepts any address.")

    def networks(self) -> list[IPNetwork]:
        """Where copies may come from. A SIP server sends to loopback from whichever of its addresses it likes (Kamailio: the first)."""
        host = SocketAddress.parse(self.listen).host
        if "allow" in self.model_fields_set or not ipaddress.ip_address(host).is_loopback:
            return list(self.allow)
        return [ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")]


class ApiTls(Section):
    """TLS of the REST API; PEM files, read at the start."""

    certificate: AbsolutePath = Field(description="The certificate, followed by its intermediate certificates.")
    key: AbsolutePath = Field(description="The certificate's key.")


class Api(Section):
    """The local REST API, which the `shunt` command uses too."""

    listen: ApiListen = Field(default="127.0.0.1:8077", description="ADDRESS:PORT, or unix:/PATH.")
    token: str | None = Field(default=None, min_length=8, max_length=512, description="Token that requests must carry in the header Authorization: Bearer TOKEN.")
    token_file: AbsolutePath | None = Field(default=None, description="File whose first line is the token, instead of token.")
    tls: ApiTls | None = Field(default=None, description="Serve HTTPS. Browsers allow camera and microphone only on HTTPS pages and on localhost.")


class Admin(Section):
    """The agent's admin API, which the operator daemon uses."""

    socket: AbsolutePath = Field(default="/run/shunt/admin.sock", description="Unix socket of the agent's admin API.")
    socket_group: Name = Field(default="shunt", description="Group that may use the socket.")
    events: AbsolutePath = Field(default="/var/lib/shunt/events", description="Folder of the agent's event log.")


class Operator(Section):
    """The operator daemon (`shunt operator`)."""

    state_dir: AbsolutePath = Field(default="/var/lib/shunt/operator", description="Folder of the daemon's position in the event log. Created if its parent exists.")


class Notify(Section):
    """The media time-out notices that the agent sends to the SIP server."""

    allow: list[NotifySocket] | None = Field(
        default=None,
        description="Sockets that a U command may name: tcp:ADDRESS:PORT or unix:/PATH. Without this key: Unix sockets, loopback and the commanding SIP server.",
    )


class Journal(Section):
    """Where calls are stored, so that a restarted agent or a standby can restore them."""

    path: AbsolutePath = Field(default="/var/lib/shunt/journal.sqlite", description="SQLite file. Its folder is created if the parent exists. Not used with redis.")
    redis: RedisUrl | None = Field(default=None, description="Redis for a pair of agents: redis://HOST:PORT/DB, rediss:// for TLS, or unix:///PATH.")
    redis_password_file: AbsolutePath | None = Field(default=None, description="File whose first line is the password of Redis.")
    group: Name = Field(default="shunt", description="Agents of one group share calls and data plane; one of them is active. Several groups may use one Redis.")

    def password(self) -> str | None:
        """Reads the password of Redis. Raises ValueError, naming the file, if it cannot be read."""
        if self.redis_password_file is None:
            return None
        try:
            with open(self.redis_password_file, encoding="utf-8") as stream:
                return stream.readline(4096).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"journal.redis_password_file {self.redis_password_file}: {cause(error)}") from None


class Standby(Section):
    """How agents of one group take over from each other; takes effect with journal.redis."""

    name: Name | None = Field(default=None, description="This agent's name in the log of the other one. Default: the host's name.")
    control: ControlSocket | None = Field(default=None, description="Where the other agent reaches this one's control socket. Default: the first of control.listen.")
    ng: NgSocket | None = Field(default=None, description="The same for the NG protocol. Default: the first of control.ng.")
    lease_ms: int = Field(default=1000, ge=200, le=60_000, description="Milliseconds after which an unrenewed lease expires and the other agent takes over.")


class History(Section):
    """What is kept of each call for `shunt history` and the web page."""

    events: int = Field(default=100_000, ge=0, le=10_000_000, description="Most events stored, about 600 bytes each; finished calls are removed first. 0: none.")
    per_call: int = Field(default=300, ge=16, le=10_000, description="Most events stored of one call: its first and its last ones.")
    log: bool = Field(default=False, description="Also write each event to the log: level info; learn notices and SIP messages at debug.")


class Cdr(Section):
    """A record for every call that ended; other programs may rotate the files at any time."""

    csv: AbsolutePath | None = Field(default=None, description="CSV file to append to, one line for each media line of a call.")
    json_lines: AbsolutePath | None = Field(default=None, description="File of JSON lines to append to, one line for each call.")


class Quality(Section):
    """How speech quality is estimated (ITU-T G.107)."""

    delay_ms: float = Field(default=50.0, ge=0, le=2000, description="Assumed one-way network delay in milliseconds, which a server in the middle cannot measure.")


class Homer(Section):
    """A Homer capture server that gets quality reports and call events (HEPv3 over UDP)."""

    target: UdpSocket = Field(description="udp:ADDRESS:PORT of the capture server.")
    capture_id: int = Field(default=2001, ge=0, le=0xFFFFFFFF, description="This agent's id at Homer.")
    events: bool = Field(default=True, description="Send the events of calls as log lines, in addition to quality reports.")


class Log(Section):
    """The log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Lowest severity that is written.")
    format: Literal["text", "json"] = Field(default="text", description="Text, or one JSON object per line.")


class Softswitch(Section):
    """The Linux data plane (`shunt softswitch`)."""

    interfaces: list[Interface] = Field(description="Network interfaces where media arrives or leaves. An empty list serves the tables without packets.")
    listen: list[ServerListen] = Field(
        default=[SOFTSWITCH_SOCKET],
        min_length=1,
        description="Sockets of the BF Runtime server (gRPC): unix:/PATH (mode 0660, group socket_group), ADDRESS:PORT on loopback for the users in owners, or any ADDRESS:PORT with tls.ca_file.",
    )
    socket_group: Name = Field(default="shunt", description="Group that may use the Unix socket.")
    programs: list[Name] = Field(
        default=["relay"],
        min_length=1,
        max_length=64,
        description="Programs, one for each agent or pair, which names it in data_plane.program. Each agent has its own media ranges; only the first program has conferences.",
    )
    owners: list[Owner] = Field(
        default=["unix", "tls"],
        min_length=1,
        description="Clients that may own, read and write the tables: unix, tcp (every local user), tls, user:NAME (of a Unix socket, or TCP on loopback) or certificate:NAME.",
    )
    request_limit: int = Field(default=32 << 20, ge=1 << 20, le=1 << 30, description="Largest request in bytes. A larger one gets RESOURCE_EXHAUSTED.")
    capacity: int = Field(default=262_144, ge=1, le=16_777_216, description="Entries of the relay table. A call with one audio stream takes four.")
    mode: Literal["auto", "native", "generic"] = Field(default="auto", description="native: XDP in the driver. generic: XDP in the kernel's generic path. auto: native if possible.")
    tls: Tls | None = Field(default=None, description="Serve BF Runtime on TCP over TLS only. With ca_file, clients need a certificate.")
    source_mismatch: Literal["drop", "pass"] = Field(
        default="drop", description="Action for a packet of a source that is blocked or does not match the port's entry: drop (with a learn notice), or pass to the relay."
    )
    packet_limit: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Most packets per second of one entry; more are dropped and counted. 0: no limit and no cost. With a limit, each packet takes the slower path through the program.",
    )
    conference_copies: int = Field(default=0, ge=0, le=4_000_000, description="Most rewrites of conference packets: one for each receiver of each stream with ports of its own. 0: no conferences.")
    pin_dir: AbsolutePath = Field(default="/sys/fs/bpf/shunt", description="Folder on a BPF file system for pinned programs and maps.")

    def open_to(self) -> Iterator[tuple[Location, str]]:
        """Yields (location, message) of TCP addresses at which every local user may command the data plane."""
        mutual = self.tls is not None and self.tls.ca_file is not None
        for text in self.listen:
            if not text.startswith("unix:") and not mutual and "tcp" in self.owners:
                yield ("softswitch", "owners"), f"tcp lets every local user redirect media through {text}: name users instead (user:NAME)"


class Config(Section):
    """The whole file."""

    control: Control = Field(default=Control(), description="Where SIP servers reach the agent.")
    relays: list[Relay] = Field(default=[], description="External relays. A call stays with its relay. Conferences need none.")
    builtin_relay: BuiltinRelay | None = Field(default=None, description="The built-in relay.")
    data_plane: DataPlane | None = Field(default=None, description="Where entries are installed. Without this section all media stays on the relay.")
    learning: Learning = Field(default=Learning(), description="When a source address is latched.")
    hep: Hep | None = Field(default=None, description="SIP copies (HEP). Without this section the agent does not listen for them.")
    api: Api = Field(default=Api(), description="The REST API.")
    admin: Admin = Field(default=Admin(), description="The agent's admin API.")
    operator: Operator = Field(default=Operator(), description="The operator daemon.")
    notify: Notify = Field(default=Notify(), description="Media time-out notices.")
    journal: Journal | None = Field(default=None, description="Where calls are stored. Without this section a restart forgets them.")
    standby: Standby = Field(default=Standby(), description="Take-over between agents that share a journal in Redis.")
    history: History = Field(default=History(), description="Events of each call.")
    cdr: Cdr | None = Field(default=None, description="Call records. Without this section none are written.")
    quality: Quality = Field(default=Quality(), description="Estimates of speech quality.")
    homer: Homer | None = Field(default=None, description="Reports to Homer. Without this section none are sent.")
    log: Log = Field(default=Log(), description="The log.")
    conference: Conference | None = Field(default=None, description="Conferences. Without this section there are none.")
    edge: Edge | None = Field(default=None, description="The edge for browsers.")
    mixer: Mixer | None = Field(default=None, description="A mixer of conference audio on this host.")
    rooms: Rooms | None = Field(default=None, description="Conferences for browsers. Without this section there are none.")
    softswitch: Softswitch | None = Field(default=None, description="The Linux data plane.")
    switch: Switch | None = Field(default=None, description="Ports and routes of a Tofino switch, for its set-up script.")

    @property
    def serves_rtpproxy(self) -> bool:
        """Returns whether a relay speaks the rtpproxy protocol."""
        return self.builtin_relay is not None or any(not relay.is_rtpengine for relay in self.relays)

    @property
    def serves_agent(self) -> bool:
        """Returns whether `shunt agent` can use this file: it names a relay, or has conferences. The file of a data-plane host need not."""
        return bool(self.relays) or self.builtin_relay is not None or self.conference is not None

    def document(self) -> dict[str, Any]:
        """The values that the daemons in Rust get: every key with its value in force, as JSON. api.token goes to the operator daemon only."""
        effective = self.model_dump(mode="json")
        if self.api.token is not None:
            effective["api"]["token"] = "(hidden)"
        if self.hep is not None:
            effective["hep"]["allow"] = [str(network) for network in self.hep.networks()]
        if not self.serves_rtpproxy:
            effective["control"]["listen"] = []
        effective["relays"] = [relay.effective() for relay in self.relays]
        return effective

    def problems(self) -> list[tuple[Location, str]]:
        """Yields contradictions between keys that are valid on their own: (location, message), in file order by section."""
        return [
            *self._relay_problems(),
            *self._port_problems(),
            *self._socket_problems(),
            *self._api_problems(),
            *self._journal_problems(),
            *self._cdr_problems(),
            *self._softswitch_problems(),
            *self._switch_problems(),
            *self._conference_problems(),
            *self._edge_problems(),
            *self._mixer_problems(),
        ]

    def warnings(self) -> Iterator[tuple[Location, str]]:
        """Yields settings that are valid but probably wrong: (location, message)."""
        if self.data_plane is not None and self.softswitch is not None:
            target = host_port(self.data_plane.target)
            if not any(_reaches(target, host_port(text)) for text in self.softswitch.listen):
                yield ("data_plane", "target"), f"{target} is not the softswitch of this file, which listens on {', '.join(self.softswitch.listen)}"
            programs = self.softswitch.programs
            if self.data_plane.program not in programs:
                yield ("data_plane", "program"), f"{self.data_plane.program} is not served by the softswitch of this file, which has {', '.join(programs)}"
            elif self.conference is not None and self.data_plane.program != programs[0]:
                yield ("conference",), f"the softswitch of this file serves conferences to program {programs[0]}, not to {self.data_plane.program}"
        if self.softswitch is not None:
            yield from self.softswitch.open_to()
        for i, text in enumerate(self.control.listen):
            if not text.startswith(("udp:", "tcp:")):
                continue
            host = ipaddress.ip_address(SocketAddress.parse(text).host)
            if not host.is_loopback and not host.is_unspecified and all(ipaddress.ip_network(network).is_loopback for network in self.control.allow):
                yield (
                    ("control", "listen", i),
                    f"control.allow has loopback only, but a SIP server of this host sends to {host} from {host}, so no command is accepted there. Add the SIP server's address",
                )

    def interfaces(self) -> Iterator[tuple[Location, str]]:
        """Yields (location, name) of the network interfaces that this host must have."""
        if self.data_plane is not None and self.data_plane.cpu_interface is not None:
            yield ("data_plane", "cpu_interface"), self.data_plane.cpu_interface
        for i, name in enumerate(self.softswitch.interfaces if self.softswitch is not None else []):
            yield ("softswitch", "interfaces", i), name

    def _relay_problems(self) -> Iterator[tuple[Location, str]]:
        without_agent = (self.softswitch or self.switch or self.edge or self.mixer) is not None and self.model_fields_set <= {"softswitch", "switch", "edge", "mixer", "log"}
        if not self.serves_agent and not without_agent:
            yield (), "neither a relay nor conferences: give relays, builtin_relay or conference"
        names: dict[str, int] = {}
        sockets: dict[str, int] = {}
        for i, relay in enumerate(self.relays):
            if (first := names.setdefault(relay.name, i)) != i:
                yield ("relays", i, "name"), f"{relay.name!r} is already the name of relays.{first}"
            if (first := sockets.setdefault(relay.socket, i)) != i:
                yield ("relays", i, "socket"), f"{relay.socket} is already the socket of relays.{first}"
            if self.data_plane is not None and not relay.media:
                yield ("relays", i), "media is missing: with a data_plane the agent must know where this relay's media arrives"
            for where, message in relay.problems():
                yield ("relays", i, *where), message
            if relay.is_rtpengine and not self.control.ng:
                yield ("relays", i, "type"), "without control.ng no SIP server can reach this relay through the agent"
        if self.serves_agent and self.control.ng and not any(relay.is_rtpengine for relay in self.relays):
            yield ("control", "ng"), "no relay is of type rtpengine"
        if self.serves_agent and not self.serves_rtpproxy and "listen" in self.control.model_fields_set:
            yield ("control", "listen"), "no relay speaks the rtpproxy protocol" + (": all of them are of type rtpengine, for control.ng" if self.relays else "")
        if self.builtin_relay is not None:
            addresses = self.builtin_relay.addresses
            if len(set(addresses)) < len(addresses):
                yield ("builtin_relay", "addresses", 1), f"{addresses[1]} is listed twice"
            advertised = self.builtin_relay.advertised
            if advertised and len(advertised) != len(addresses):
                yield ("builtin_relay", "advertised"), f"{len(advertised)} addresses for {len(addresses)} of addresses"
            for i, (own, told) in enumerate(zip(addresses, advertised, strict=False)):
                if problem := _not_advertisable(str(own), str(told)):
                    yield ("builtin_relay", "advertised", i), problem
            if len(set(advertised)) < len(advertised):
                yield ("builtin_relay", "advertised", 1), f"{advertised[1]} is listed twice"

    def media_ranges(self) -> Iterator[tuple[Location, str, PortRange]]:
        """Yields (location, address, ports) of every media range of every relay."""
        for i, relay in enumerate(self.relays):
            for j, media in enumerate(relay.media):
                yield ("relays", i, "media", j, "ports"), str(media.address), media.ports
        if self.builtin_relay is not None:
            for address in dict.fromkeys(self.builtin_relay.addresses):
                yield ("builtin_relay", "ports"), str(address), self.builtin_relay.ports
        if self.conference is not None:
            yield ("conference", "ports"), str(self.conference.address), self.conference.ports
        if self.edge is not None:
            yield ("edge", "ports"), str(self.edge.address), self.edge.ports

    def _port_problems(self) -> Iterator[tuple[Location, str]]:
        ranges = list(self.media_ranges())
        for n, (where, address, ports) in enumerate(ranges):
            for earlier_where, earlier_address, earlier in ranges[:n]:
                if address == earlier_address and ports.overlaps(earlier):
                    yield where, f"{address} ports {ports} overlap {earlier} of {dotted(earlier_where)}"
        for where, socket in self.listeners():
            if not socket.is_ip or socket.scheme != "udp":
                continue
            for range_where, address, ports in ranges:
                if addresses_overlap(socket.host, address) and ports.first <= socket.port <= ports.last_used:
                    yield where, f"{socket} lies within the media ports {address} {ports} of {dotted(range_where)}"

    def listeners(self) -> Iterator[tuple[Location, SocketAddress]]:
        for i, text in enumerate(self.control.listen if self.serves_rtpproxy else []):
            yield ("control", "listen", i), SocketAddress.parse(text)
        for i, text in enumerate(self.control.ng):
            yield ("control", "ng", i), SocketAddress.parse(text)
        if self.hep is not None:
            yield ("hep", "listen"), SocketAddress.parse(self.hep.listen)
        if self.builtin_relay is not None:
            for i, text in enumerate(self.builtin_relay.listen):
                yield ("builtin_relay", "listen", i), SocketAddress.parse(text)
        if self.conference is not None and self.conference.sip is not None:
            yield ("conference", "sip"), SocketAddress.parse(self.conference.sip)
        if self.edge is not None:
            for i, text in enumerate(self.edge.listen):
                yield ("edge", "listen", i), SocketAddress.parse(f"udp:{text}")
        if self.mixer is not None:
            yield ("mixer", "listen"), SocketAddress.parse(self.mixer.listen)
            yield ("mixer", "port"), SocketAddress("udp", str(self.mixer.address), self.mixer.port)
        yield ("api", "listen"), _as_socket(self.api.listen)
        if self.softswitch is not None:
            for i, text in enumerate(self.softswitch.listen):
                yield ("softswitch", "listen", i), _as_socket(text)

    def _socket_problems(self) -> Iterator[tuple[Location, str]]:
        listeners = list(self.listeners())
        for n, (where, socket) in enumerate(listeners):
            for earlier_where, earlier in listeners[:n]:
                if socket.clashes(earlier):
                    yield where, f"{socket} cannot be bound besides {earlier} of {dotted(earlier_where)}"
        for i, relay in enumerate(self.relays):
            for where, socket in listeners:
                if not SocketAddress.parse(relay.socket).clashes(socket):
                    continue
                if where[0] == "builtin_relay":
                    yield ("relays", i, "socket"), f"{relay.socket} is where the built-in relay listens ({dotted(where)}), which is among the relays already"
                else:
                    yield ("relays", i, "socket"), f"{relay.socket} is where the agent itself listens ({dotted(where)}): it would talk to itself"

    def _api_problems(self) -> Iterator[tuple[Location, str]]:
        if self.api.token is not None and self.api.token_file is not None:
            yield ("api", "token_file"), "token is given too; keep one of them"
        listen = host_port(self.api.listen)
        exposed = not listen.path and not ipaddress.ip_address(listen.host).is_loopback
        if exposed and self.api.token is None and self.api.token_file is None:
            yield ("api", "listen"), f"{self.api.listen} is reachable from elsewhere: give api.token or api.token_file"

    def _journal_problems(self) -> Iterator[tuple[Location, str]]:
        if self.journal is not None and self.journal.redis is not None:
            if "path" in self.journal.model_fields_set:
                yield ("journal", "path"), "redis is given too; keep one of them"
        elif "standby" in self.model_fields_set:
            yield ("standby",), "without journal.redis no other agent can take over"

    def _cdr_problems(self) -> Iterator[tuple[Location, str]]:
        if self.cdr is not None and self.cdr.csv is None and self.cdr.json_lines is None:
            yield ("cdr",), "names no file: give csv, json_lines or both"
        elif self.cdr is not None and self.cdr.csv == self.cdr.json_lines:
            yield ("cdr", "json_lines"), "is the file of csv too"

    def _switch_problems(self) -> Iterator[tuple[Location, str]]:
        for where, message in self.switch.problems() if self.switch is not None else ():
            yield ("switch", *where), message

    def _edge_problems(self) -> Iterator[tuple[Location, str]]:
        for where, message in self.edge.problems() if self.edge is not None else ():
            yield ("edge", *where), message

    def _conference_problems(self) -> Iterator[tuple[Location, str]]:
        for where, message in self.conference.problems(self.data_plane is not None) if self.conference is not None else ():
            yield ("conference", *where), message
        for where, message in self.rooms.problems(self.conference is not None) if self.rooms is not None else ():
            yield ("rooms", *where), message
        if self.cdr is None or self.conference is None or self.conference.cdr is None:
            return
        calls = {os.path.normpath(path): name for name in ("csv", "json_lines") if (path := getattr(self.cdr, name)) is not None}
        for name in ("csv", "json_lines"):
            path = getattr(self.conference.cdr, name)
            if path is not None and (there := calls.get(os.path.normpath(path))) is not None:
                yield ("conference", "cdr", name), f"is the file of cdr.{there} too: records of participants have other columns than those of calls"

    def _mixer_problems(self) -> Iterator[tuple[Location, str]]:
        for where, message in self.mixer.problems() if self.mixer is not None else ():
            yield ("mixer", *where), message

    def _tls_problems(self) -> Iterator[tuple[Location, str]]:
        for name, section in (("data_plane", self.data_plane), ("softswitch", self.softswitch)):
            tls = section.tls if section is not None else None
            if tls is None:
                continue
            if (tls.certificate_file is None) != (tls.key_file is None):
                yield (name, "tls"), "certificate_file and key_file go together"
            elif name == "softswitch" and tls.certificate_file is None:
                yield (name, "tls"), "a server needs certificate_file and key_file"

    def _softswitch_problems(self) -> Iterator[tuple[Location, str]]:
        yield from self._tls_problems()
        if self.softswitch is None:
            return
        seen: dict[str, int] = {}
        for i, name in enumerate(self.softswitch.interfaces):
            if (first := seen.setdefault(name, i)) != i:
                yield ("softswitch", "interfaces", i), f"{name!r} is listed twice (first as softswitch.interfaces.{first})"
        for i, name in enumerate(self.softswitch.programs):
            if (first := self.softswitch.programs.index(name)) != i:
                yield ("softswitch", "programs", i), f"{name!r} is listed twice (first as softswitch.programs.{first})"
        mutual = self.softswitch.tls is not None and self.softswitch.tls.ca_file is not None
        for i, text in enumerate(self.softswitch.listen):
            listen = host_port(text)
            if not listen.path and not ipaddress.ip_address(listen.host).is_loopback and not mutual:
                yield ("softswitch", "listen", i), f"{text} is reachable from elsewhere: give softswitch.tls with ca_file, so that clients need a certificate"


def _reaches(target: HostPort, listen: HostPort) -> bool:
    """Returns whether a connection to the target may arrive at the listener. A host name may have any address."""
    if target.path or listen.path:
        return target.path == listen.path
    try:
        ipaddress.ip_address(target.host)
    except ValueError:
        return target.port == listen.port
    return target.port == listen.port and addresses_overlap(target.host, listen.host)


def _as_socket(text: str) -> SocketAddress:
    listen = host_port(text)
    return SocketAddress("unix", path=listen.path) if listen.path else SocketAddress("tcp", listen.host, listen.port)


def dotted(where: Location) -> str:
    """A location as text: relays.0.socket; "(file)" for the file as a whole."""
    return ".".join(map(str, where)) or "(file)"
