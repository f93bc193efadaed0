"""BMv2 under test: simple_switch in a network namespace, its tables filled through simple_switch_CLI, its learn notices read."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import json
import os
import re
import select
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shunt.net import Endpoint, FiveTuple
from tests.lab.needs import lacking
from tests.tools.entry import LearnNotice, MediaRange, RelayEntry
from tests.vectors import replication
from tests.vectors.model import MEDIA, NEXTHOPS, ROUTED_MACS, ROUTES, SWITCH_ADDRESS, MAC_A, NextHop, Port

P4 = Path(__file__).resolve().parents[2] / "p4"
_THRIFT_PORT = 9090
_START_TIMEOUT = 20.0
_PROMPT, _END = "RuntimeCmd: ", "end-of-answer"  # what no command is called is answered, and last
_CLONE_NEWNET = 0x40000000
_LEARN, _LEARN6 = 1, 2
# Scalability protocols over a Unix socket: greeting of a subscriber and of a publisher.
_SUBSCRIBER, _PUBLISHER = b"\0SP\0\0\x21\0\0", b"\0SP\0\0\x20\0\0"
_LEARN_HEADER = struct.Struct("<4sQIiQI")
# linux/if_packet.h: the kernel takes the tag of a received frame aside.
_SOL_PACKET, _PACKET_AUXDATA, _VLAN_VALID = 263, 8, 0x10
_AUXDATA = struct.Struct("=IIIHHHH")
_libc = ctypes.CDLL(None, use_errno=True)
DROPS = {
    "Ingress.dropped": {"not_addressed": 1, "not_ip": 2, "unrouted": 3},
    "Egress.dropped": {"unknown_nexthop": 1, "turned_back": 2, "too_big": 3, "no_copy": 4, "above_target": 5, "late_copy": 6},
}
"""Reasons to drop a packet, by their rows in the counters."""
_DROP_ROWS = 8


TOOLS = ("p4c-bm2-ss", "simple_switch", "simple_switch_CLI")


def missing() -> str | None:
    """What running BMv2 lacks here, or None."""
    return lacking(*TOOLS)


def compile_twin(directory: Path, options: Sequence[str] = (), program: str = "relay") -> Path:
    """A v1model program, relay or conference, as BMv2's JSON. Raises RuntimeError with the compiler's words."""
    out = directory / "relay.json"
    done = subprocess.run(["p4c-bm2-ss", "--arch", "v1model", *options, "-o", str(out), str(P4 / f"{program}_v1model.p4")], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"p4c-bm2-ss: {done.stderr}")
    return out


def direct_counters(program: Path) -> dict[str, str]:
    """The names of a compiled program's counters by the table that each belongs to."""
    return {counter["binding"]: counter["name"] for counter in json.loads(program.read_text())["counter_arrays"] if counter["is_direct"]}


def _number(value: bytes | int) -> str:
    return hex(value if isinstance(value, int) else int.from_bytes(value, "big"))


def key_words(key: FiveTuple) -> str:
    """A 5-tuple as match fields."""
    return " ".join(map(_number, (key.src.addr, key.dst.addr, key.src.port, key.dst.port)))


def relay_command(made: RelayEntry) -> str:
    """The command that adds an entry, with the smallest action that can say it, as the agent chooses."""
    src, dst, six = made.src, made.dst, made.key.src.version == 6
    table = "relay6" if six else "relay"
    dscp = [int(made.dscp is not None), made.dscp or 0]
    if dst.version != made.key.dst.version:
        action, values = ("relay6_to_v4" if six else "relay_to_v6"), [src.addr, dst.addr, src.port, dst.port, *dscp]
    elif src.addr == made.key.dst.addr and made.dscp is None:
        action, values = f"{table}_to", [dst.addr, dst.port, src.port]
    else:
        action, values = f"{table}_to_from", [src.addr, dst.addr, src.port, dst.port, *dscp]
    return f"table_add Ingress.{table} Ingress.{action} {key_words(made.key)} => {' '.join(map(_number, values))}"


def media_command(ports: MediaRange) -> str:
    six = "6" if len(ports.addr) == 16 else ""
    return f"table_add Ingress.media{six} Ingress.is_media{six} {_number(ports.addr)} {ports.first_port:#x}->{ports.last_port:#x} => 1"


def nexthop_command(hop: NextHop) -> str:
    action, tag = ("send_tagged", f" {hop.vlan}") if hop.vlan else ("send", "")
    return f"table_add Egress.nexthop Egress.{action} {hop.number} => {hop.src_mac} {hop.dst_mac}{tag}"


def mtu_command(port: Port, mtu: int) -> str:
    return f"table_add Egress.mtu Egress.too_big {int(port)} {mtu + 1}->0xffff => 1"


def route_command(prefix: str, hop: NextHop) -> str:
    network = ipaddress.ip_network(prefix)
    six = "6" if network.version == 6 else ""
    return f"table_add Ingress.route{six} Ingress.forward{six} {_number(network.network_address.packed)}/{network.prefixlen} => {int(hop.port)} {hop.number}"


def scene_commands() -> list[str]:
    """The switch of the vectors' scene, without relay entries."""
    commands = [nexthop_command(hop) for hop in NEXTHOPS]
    commands += [route_command(prefix, hop) for prefix, hop in ROUTES]
    commands += [media_command(ports) for ports in MEDIA]
    for port, mac in ROUTED_MACS:
        commands.append(f"table_add Ingress.layer2 Ingress.route_frame {int(port)}&&&0x1ff {mac}&&&ff:ff:ff:ff:ff:ff => 1")
    commands.append(f"table_add Ingress.layer2 Ingress.bridge_to {int(Port.CPU)}&&&0x1ff {MAC_A}&&&ff:ff:ff:ff:ff:ff => {int(Port.A)} 1")
    commands.append(f"table_add Ingress.route Ingress.to_cpu {_number(ipaddress.ip_address(SWITCH_ADDRESS).packed)}/32 => {int(Port.CPU)}")
    return commands


def stream_command(made: replication.Stream, track: Sequence[int] = ()) -> str:
    """track: its number, for a program with SEQUENCE=2."""
    six = "6" if made.key.src.version == 6 else ""
    values = [made.mgid, made.l1_xid, made.rid, made.l2_xid, made.stream, made.to_agent, made.trees, made.layers, made.extension, made.descriptor, *track]
    return f"table_add Ingress.conference{six} Ingress.replicate{six} {key_words(made.key)} {made.ssrc:#x} => {' '.join(map(_number, values))}"


def copy_command(stream: int, receiver: replication.Receiver, numbers: Sequence[int] = ()) -> str:
    """numbers: target and sequence_state for a program with SEQUENCE=2, and the frame cadence with SEQUENCE=1."""
    six = "_v6" if receiver.here.version == 6 else ""
    values = [receiver.out.addr, receiver.here.addr, receiver.out.port, receiver.here.port, receiver.hop.number, *numbers]
    return f"table_add Egress.copy Egress.copy_to{six} {stream} {receiver.rid} => {' '.join(map(_number, values))}"


def layer_command(layers: int, template: int, layer: int, switches: Sequence[int] = ()) -> str:
    """switches: for a program with SEQUENCE=2."""
    return f"table_add Ingress.layer Ingress.set_layer {layers} {template} => {' '.join(map(str, [layer, *switches]))}"


def replication_commands(sequence: int = 0) -> list[str]:
    """The tables of replication of the vectors' scene, where all numbers stay; sequence: the program's SEQUENCE. What Tofino's engine does by itself, the twin has tables for."""
    numbers, track = [(), (0, 0, 0), (0, 0)][sequence], (0,) * (sequence == 2)
    commands = [f"mirroring_add 1 {int(Port.CPU)}"]
    commands += [stream_command(made, track) for made in replication.STREAMS]
    commands += [copy_command(stream, receiver, numbers) for stream, receivers in replication.RECEIVERS.items() for receiver in receivers]
    commands += [layer_command(layers, template, layer, track) for (layers, template), layer in replication.LAYERS.items()]
    commands += [f"mc_mgrp_create {mgid}" for mgid in replication.TREES]
    for handle, (_, mgid, receiver) in enumerate(replication.nodes()):
        commands += [f"mc_node_create {receiver.rid} {int(receiver.hop.port)}", f"mc_node_associate {mgid} {handle}"]
        commands.append(f"table_add Pre.node Pre.same_l1_xid {mgid} {receiver.rid} => {receiver.meeting}")
    commands += [f"table_add Pre.prune Pre.same_rid {l2_xid} {int(port)} =>" for l2_xid, ports in replication.PRUNES.items() for port in ports]
    return commands


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """The calling thread in a network namespace."""
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


def _sh(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


@dataclass
class Bmv2:
    """A running switch. Frames go in and come out at the far ends of its ports' veth pairs."""

    namespace: str
    sockets: dict[Port, socket.socket]
    learn: socket.socket
    console: subprocess.Popen[str]  # simple_switch_CLI
    _buffer: bytearray = field(default_factory=bytearray)

    def cli(self, commands: Iterable[str]) -> str:
        """Run commands; returns what was printed. Raises RuntimeError for a command that failed."""
        assert self.console.stdin is not None and self.console.stdout is not None
        self.console.stdin.write("\n".join([*commands, _END]) + "\n")
        self.console.stdin.flush()
        printed = []
        for line in self.console.stdout:
            if line.rstrip().endswith(f"Unknown syntax: {_END}"):
                break
            printed.append(line.replace(_PROMPT, ""))
        else:
            raise RuntimeError(f"simple_switch_CLI ended: {''.join(printed)[-2000:]}")
        for line in printed:
            if line.startswith(("Error", "Invalid")) or "Unknown syntax" in line:
                raise RuntimeError(f"simple_switch_CLI: {line}\n{''.join(printed)[-2000:]}")
        return "".join(printed)

    def register(self, name: str, index: int) -> int:
        text = self.cli([f"register_read {name} {index}"])
        found = re.search(rf"{re.escape(name)}\[{index}\]= (\d+)", text)
        if found is None:
            raise RuntimeError(f"simple_switch_CLI: register_read {name} {index}: {text}")
        return int(found[1])

    def counted(self, counter: str, handles: Sequence[int]) -> list[tuple[int, int]]:
        """Packets and bytes (of frames) that a direct counter has of these entries."""
        text = self.cli(f"counter_read {counter} {handle}" for handle in handles)
        found = [(int(packets), int(size)) for size, packets in re.findall(r"\((\d+) bytes, (\d+) packets\)", text)]
        if len(found) != len(handles):
            raise RuntimeError(f"simple_switch_CLI: counter_read {counter}: {text}")
        return found

    def dropped(self, expected: int = 0, *, patience: float = 5.0) -> dict[str, int]:
        """Dropped packets by reason, those with at least one; waits for `expected` of them in all up to `patience` seconds. Raises RuntimeError when a row counts that is no reason's."""
        deadline = time.monotonic() + patience
        while sum((found := self._dropped()).values()) < expected and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    def _dropped(self) -> dict[str, int]:
        names = {(table, row): reason for table, rows in DROPS.items() for reason, row in rows.items()}
        found: dict[str, int] = {}
        for table in DROPS:
            for row, (packets, _) in enumerate(self.counted(table, range(_DROP_ROWS))):
                if packets and (table, row) not in names:
                    raise RuntimeError(f"{table} counts in row {row}, which is no reason's")
                if packets:
                    found[names[table, row]] = packets
        return found

    def send(self, port: Port, frame: bytes) -> None:
        self.sockets[port].send(frame)

    def received(self, expected: int, *, patience: float = 2.0, quiet: float = 0.04) -> list[tuple[Port, bytes]]:
        """Frames that came out: waits for `expected` of them up to `patience` seconds, then for more until it is quiet."""
        frames: list[tuple[Port, bytes]] = []
        by_socket = {made: port for port, made in self.sockets.items()}
        deadline = time.monotonic() + patience
        while True:
            wait = quiet if len(frames) >= expected else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select(list(by_socket), [], [], wait)
            if not ready:
                return frames
            for made in ready:
                frame, ancillary, _, address = made.recvmsg(65536, 256)
                if address[2] != socket.PACKET_OUTGOING:
                    frames.append((by_socket[made], _with_tag(frame, ancillary)))

    def notices(self, expected: int, *, patience: float = 2.0) -> list[LearnNotice]:
        """Learn notices that were raised; waits for `expected` of them up to `patience` seconds."""
        found: list[LearnNotice] = []
        deadline = time.monotonic() + patience
        while True:
            while len(self._buffer) >= 9:
                length = int.from_bytes(self._buffer[1:9], "big")
                if len(self._buffer) < 9 + length:
                    break
                found += _samples(bytes(self._buffer[9 : 9 + length]))
                del self._buffer[: 9 + length]
            wait = 0.0 if len(found) >= expected else max(0.0, deadline - time.monotonic())
            if not select.select([self.learn], [], [], wait)[0]:
                return found
            data = self.learn.recv(65536)
            if not data:
                raise RuntimeError("BMv2 closed its notification socket")
            self._buffer += data


def _with_tag(frame: bytes, ancillary: list[tuple[int, int, bytes]]) -> bytes:
    for level, kind, data in ancillary:
        if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
            status, _, _, _, _, tag, protocol = _AUXDATA.unpack_from(data)
            if status & _VLAN_VALID:
                return frame[:12] + struct.pack("!HH", protocol, tag) + frame[12:]
    return frame


def _samples(message: bytes) -> list[LearnNotice]:
    """Read one message of learn samples; other notices have other topics."""
    if message[:4] != b"LEA|":
        return []
    _, _, _, list_id, _, count = _LEARN_HEADER.unpack_from(message)
    size = {_LEARN: 4, _LEARN6: 16}[list_id]
    form = struct.Struct(f"!{size}s{size}sHHBBHI")
    found = []
    for n in range(count):
        src, dst, sport, dport, version, payload_type, seq, ssrc = form.unpack_from(message, _LEARN_HEADER.size + n * form.size)
        found.append(LearnNotice(FiveTuple(Endpoint(src, sport), Endpoint(dst, dport)), version, payload_type, seq, ssrc))
    return found


def _subscribe(path: Path) -> socket.socket:
    """Connect to the notification socket. Raises RuntimeError when it is not one."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(5)
    made.connect(str(path))
    made.sendall(_SUBSCRIBER)
    if made.recv(8, socket.MSG_WAITALL) != _PUBLISHER:
        raise RuntimeError("BMv2's notification socket does not publish")
    made.settimeout(None)
    return made


@contextlib.contextmanager
def running(program: Path) -> Iterator[Bmv2]:
    """simple_switch with the scene's four ports; everything is gone afterwards."""
    namespace = f"shp4{os.getpid() % 100000}"
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=namespace)))
        _sh("ip", "netns", "add", namespace)
        stack.callback(_sh, "ip", "netns", "del", namespace)
        _sh("ip", "-n", namespace, "link", "set", "lo", "up")
        sockets = {}
        for port in Port:
            switch, host = f"s{int(port)}", f"h{int(port)}"
            _sh("ip", "-n", namespace, "link", "add", switch, "type", "veth", "peer", "name", host)
            for name in (switch, host):
                # Neither end may speak for itself, or there would be more frames than the vectors'.
                _sh("ip", "netns", "exec", namespace, "sysctl", "-q", "-w", f"net.ipv6.conf.{name}.disable_ipv6=1")
                _sh("ip", "-n", namespace, "link", "set", name, "mtu", "9000", "arp", "off", "up")
            with inside(namespace):
                made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            stack.callback(made.close)
            made.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
            made.bind((host, 0))
            sockets[port] = made
        interfaces = [word for port in Port for word in ("-i", f"{int(port)}@s{int(port)}")]
        notifications = directory / "notifications"
        log = stack.enter_context(open(directory / "log", "w+"))
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, "simple_switch", *interfaces, "--thrift-port", str(_THRIFT_PORT),
             "--notifications-addr", f"ipc://{notifications}", str(program)], stdout=log, stderr=log,
        )  # fmt: skip
        stack.callback(process.wait)
        stack.callback(process.kill)
        deadline = time.monotonic() + _START_TIMEOUT
        with inside(namespace):
            while True:
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"simple_switch did not start: {log.read()[-2000:]}")
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", _THRIFT_PORT), timeout=1):
                    break
                time.sleep(0.05)
        learn = _subscribe(notifications)
        stack.callback(learn.close)
        console = subprocess.Popen(
            ["ip", "netns", "exec", namespace, "simple_switch_CLI", "--thrift-port", str(_THRIFT_PORT)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        stack.enter_context(console)
        stack.callback(console.kill)
        yield Bmv2(namespace, sockets, learn, console)
