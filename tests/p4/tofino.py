"""A Tofino (model or hardware) under test: tables over BF Runtime, frames through PTF's data plane.

SHUNT_PTF_TARGET is bf_switchd's BF Runtime socket; SHUNT_PTF_PORTS says where the scene's ports are, as
"A=DEV_PORT@INTERFACE B=... SERVER=... CPU=...": the chip's port, and the interface on which PTF meets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from shunt.net import Endpoint, FiveTuple
from tests.softswitch.client import Refused, Session
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.bfrt.schema import Schema
from tests.tools.entry import LearnNotice, RelayEntry
from tests.vectors import replication
from tests.vectors.model import MAC_A, MEDIA, NEXTHOPS, ROUTED_MACS, ROUTES, SWITCH_ADDRESS, Port

_SHORTEST = 60  # bytes of an Ethernet frame, without its check sequence
_AGENT_SESSION = 1  # include/config.p4
Key = bytes | int | tuple[str, bytes | int, bytes | int]


def missing() -> str | None:
    """What running against a Tofino lacks here, or None."""
    if importlib.util.find_spec("ptf") is None:
        return "ptf is not installed"
    for variable in ("SHUNT_PTF_TARGET", "SHUNT_PTF_PORTS"):
        if variable not in os.environ:
            return f"{variable} is not set (docs/switch.md)"
    return None


def read_ports(text: str) -> dict[Port, tuple[int, str]]:
    """The scene's ports: the chip's port and the interface. Raises ValueError for a port that is missing or unknown."""
    found = {}
    for word in text.split():
        name, _, place = word.partition("=")
        number, _, interface = place.partition("@")
        if name not in Port.__members__ or not number.isdigit() or not interface:
            raise ValueError(f"{word!r} is not PORT=DEV_PORT@INTERFACE with PORT one of {', '.join(Port.__members__)}")
        found[Port[name]] = (int(number), interface)
    if set(found) != set(Port):
        raise ValueError(f"ports without a place: {', '.join(sorted(port.name for port in set(Port) - set(found)))}")
    return found


def _bytes(value: bytes | int, size: int) -> bytes:
    return value if isinstance(value, bytes) else value.to_bytes(size, "big")


def entity(schema: Schema, table_name: str, key: Mapping[str, Key], action_name: str, data: Mapping[str, bytes | int], *, default: bool = False) -> pb.Entity:
    """A table entry. Keys are exact values, or ("ternary", value, mask), ("lpm", value, length), ("range", low, high).

    Raises SchemaError or KeyError for a name that the target does not have.
    """
    table = schema.tables[table_name]
    made = pb.Entity()
    entry = made.table_entry
    entry.table_id = table.id
    entry.is_default_entry = default
    for name, value in key.items():
        wanted = table.key[name]
        size = wanted.size or 4
        part = entry.key.fields.add(field_id=wanted.id)
        match value:
            case ("ternary", given, mask):
                part.ternary.value, part.ternary.mask = _bytes(given, size), _bytes(mask, size)
            case ("lpm", given, length):
                part.lpm.value, part.lpm.prefix_len = _bytes(given, size), int(length)
            case ("range", low, high):
                part.range.low, part.range.high = _bytes(low, size), _bytes(high, size)
            case bytes() | int():
                part.exact.value = _bytes(value, size)
    action = table.actions[action_name]
    entry.data.action_id = action.id
    for name, given in data.items():
        wanted = action.fields[name]
        entry.data.fields.add(field_id=wanted.id, stream=_bytes(given, wanted.size or 0))
    return made


def relay_entity(schema: Schema, made: RelayEntry) -> pb.Entity:
    """A relay entry, with the smallest action that can say it, as the agent chooses."""
    src, dst, six = made.src, made.dst, made.key.src.version == 6
    table = "relay6" if six else "relay"
    data: dict[str, bytes | int] = {"dst_addr": dst.addr, "dst_port": dst.port, "src_port": src.port}
    if dst.version != made.key.dst.version:
        action = "relay6_to_v4" if six else "relay_to_v6"
    else:
        action = f"{table}_to" if src.addr == made.key.dst.addr and made.dscp is None else f"{table}_to_from"
    if not action.endswith("_to"):
        data |= {"src_addr": src.addr, "set_dscp": int(made.dscp is not None), "dscp": made.dscp or 0}
    key: dict[str, Key] = {"src_addr": made.key.src.addr, "dst_addr": made.key.dst.addr, "src_port": made.key.src.port, "dst_port": made.key.dst.port}
    return entity(schema, f"Ingress.{table}", key, f"Ingress.{action}", data)


def scene_entities(schema: Schema, ports: Mapping[Port, int]) -> list[pb.Entity]:
    """The switch of the vectors' scene, without relay entries. ports: the chip's."""

    def mac(text: str) -> bytes:
        return bytes.fromhex(text.replace(":", ""))

    made = []
    for hop in NEXTHOPS:
        data: dict[str, bytes | int] = {"src_mac": mac(hop.src_mac), "dst_mac": mac(hop.dst_mac)}
        if hop.vlan:
            data["vlan"] = hop.vlan
        made.append(entity(schema, "Egress.nexthop", {"nexthop": hop.number}, "Egress.send_tagged" if hop.vlan else "Egress.send", data))
    for prefix, hop in ROUTES:
        network = ipaddress.ip_network(prefix)
        six = "6" if network.version == 6 else ""
        key: dict[str, Key] = {"dst_addr": ("lpm", network.network_address.packed, network.prefixlen)}
        made.append(entity(schema, f"Ingress.route{six}", key, f"Ingress.forward{six}", {"port": ports[hop.port], "nexthop": hop.number}))
    for media in MEDIA:
        six = "6" if len(media.addr) == 16 else ""
        key = {"dst_addr": media.addr, "dst_port": ("range", media.first_port, media.last_port), "$MATCH_PRIORITY": 1}
        made.append(entity(schema, f"Ingress.media{six}", key, f"Ingress.is_media{six}", {}))
    whole_port, whole_mac = 0x1FF, 0xFFFFFFFFFFFF
    for port, address in ROUTED_MACS:
        key = {"ingress_port": ("ternary", ports[port], whole_port), "hdr.ethernet.dst_addr": ("ternary", mac(address), whole_mac), "$MATCH_PRIORITY": 1}
        made.append(entity(schema, "Ingress.layer2", key, "Ingress.route_frame", {}))
    key = {"ingress_port": ("ternary", ports[Port.CPU], whole_port), "hdr.ethernet.dst_addr": ("ternary", mac(MAC_A), whole_mac), "$MATCH_PRIORITY": 1}
    made.append(entity(schema, "Ingress.layer2", key, "Ingress.bridge_to", {"port": ports[Port.A]}))
    key = {"dst_addr": ("lpm", ipaddress.ip_address(SWITCH_ADDRESS).packed, 32)}
    made.append(entity(schema, "Ingress.route", key, "Ingress.to_cpu", {"port": ports[Port.CPU]}))
    return made


def fixed_entity(schema: Schema, table_name: str, key: int, data: Mapping[str, int | bool | str | list[int] | list[bool]], action_name: str = "") -> pb.Entity:
    """An entry of one of the target's own tables, which have one exact key."""
    table = schema.tables[table_name]
    made = pb.Entity()
    entry = made.table_entry
    entry.table_id = table.id
    (wanted,) = table.key
    entry.key.fields.add(field_id=wanted.id).exact.value = _bytes(key, wanted.size or 4)
    fields = table.data
    if action_name:
        entry.data.action_id, fields = table.actions[action_name].id, table.actions[action_name].fields
    for name, value in data.items():
        part = entry.data.fields.add(field_id=fields[name].id)
        if isinstance(value, list):
            array = part.bool_arr_val if fields[name].type == "bool" else part.int_arr_val
            array.SetInParent()
            array.val.extend(value)
        elif isinstance(value, str):
            part.str_val = value
        elif fields[name].type == "bool":
            part.bool_val = bool(value)
        else:
            part.stream = _bytes(value, fields[name].size or 4)
    return made


def _whole(schema: Schema, table_name: str, key: Mapping[str, Key], action_name: str, data: Mapping[str, bytes | int]) -> pb.Entity:
    """An entry, with 0 for whatever else the action has in this program: numbers that stay as they are."""
    rest = {field.name: 0 for field in schema.tables[table_name].actions[action_name].fields}
    return entity(schema, table_name, key, action_name, {**rest, **data})


def replication_entities(schema: Schema, ports: Mapping[Port, int]) -> tuple[list[pb.Entity], list[pb.Entity]]:
    """The tables of replication of the vectors' scene: what is inserted, and the exclusion sets, which are always there."""
    made = [_whole(schema, "Ingress.layer", {"layers": layers, "template": template}, "Ingress.set_layer", {"layer": layer}) for (layers, template), layer in replication.LAYERS.items()]
    for number, receivers in replication.RECEIVERS.items():
        for one in receivers:
            data = {"src_addr": one.out.addr, "dst_addr": one.here.addr, "src_port": one.out.port, "dst_port": one.here.port, "nexthop": one.hop.number}
            made.append(_whole(schema, "Egress.copy", {"stream": number, "rid": one.rid}, "Egress.copy_to_v6" if one.here.version == 6 else "Egress.copy_to", data))
    for number, _, one in replication.nodes():
        made.append(fixed_entity(schema, "$pre.node", number, {"$MULTICAST_RID": one.rid, "$MULTICAST_LAG_ID": [], "$DEV_PORT": [ports[one.hop.port]]}))
    for mgid in replication.TREES:
        members = [(number, one) for number, tree, one in replication.nodes() if tree == mgid]
        arrays = {"ID": [number for number, _ in members], "L1_XID_VALID": [True for _ in members], "L1_XID": [one.meeting for _, one in members]}
        made.append(fixed_entity(schema, "$pre.mgid", mgid, {f"$MULTICAST_NODE_{name}": values for name, values in arrays.items()}))
    mirrored = {"$session_enable": True, "$direction": "INGRESS", "$ucast_egress_port": ports[Port.CPU], "$ucast_egress_port_valid": True, "$max_pkt_len": 16384}
    made.append(fixed_entity(schema, "$mirror.cfg", _AGENT_SESSION, mirrored, "$normal"))
    for stream in replication.STREAMS:
        six = "6" if stream.key.src.version == 6 else ""
        key: dict[str, Key] = {"src_addr": stream.key.src.addr, "dst_addr": stream.key.dst.addr, "src_port": stream.key.src.port, "dst_port": stream.key.dst.port, "ssrc": stream.ssrc}
        names = ("mgid", "l1_xid", "rid", "l2_xid", "stream", "to_agent", "trees", "layers", "extension", "descriptor")
        made.append(_whole(schema, f"Ingress.conference{six}", key, f"Ingress.replicate{six}", {name: getattr(stream, name) for name in names}))
    return made, [fixed_entity(schema, "$pre.prune", number, {"$DEV_PORT": [ports[port] for port in found]}) for number, found in replication.PRUNES.items()]


@dataclass
class Tables:
    """The tables of a switch that has been filled, and the notices that it raises."""

    session: Session

    @property
    def schema(self) -> Schema:
        return self.session.schema

    async def notices(self, expected: int, *, patience: float = 5.0) -> list[LearnNotice]:
        """What has been raised since the last call, once it is so many or nothing more comes in time."""
        raised, found = self.session.notices.digests, []
        deadline = time.monotonic() + patience
        while True:
            while not raised.empty():
                found.append(self._learned(*raised.get()))
            if len(found) >= expected or time.monotonic() > deadline:
                return found
            await asyncio.sleep(0.01)

    def _learned(self, digest: int, data: pb.TableData) -> LearnNotice:
        names = {field.id: field.name for field in self.schema.learns.by_id[digest].fields}
        values = {names[item.field_id]: item.stream for item in data.fields}
        number = {name: int.from_bytes(value, "big") for name, value in values.items() if "addr" not in name}
        key = FiveTuple(Endpoint(values["src_addr"], number["src_port"]), Endpoint(values["dst_addr"], number["dst_port"]))
        return LearnNotice(key, number["rtp_version"], number["payload_type"], number["seq"], number["ssrc"])


@contextlib.asynccontextmanager
async def filled(target: str, ports: Mapping[Port, int], entries: Iterable[RelayEntry], *, conferences: bool = False) -> AsyncIterator[Tables]:
    """Connect to a BF Runtime target and fill its tables; the entries are taken out afterwards. Raises Refused, or grpc.RpcError when nobody answers.

    conferences: those of replication too, where the program has them. The target may be served by this very process.
    """
    session = await asyncio.to_thread(Session, target)
    written: list[pb.Entity] = []

    async def write(kind: int, entities: Iterable[pb.Entity]) -> None:
        for error in await asyncio.to_thread(session.write, [pb.Update(type=kind, entity=one) for one in entities]):  # type: ignore[arg-type]
            if error is not None:
                raise error

    try:
        schema = session.schema
        written = [*scene_entities(schema, ports), *(relay_entity(schema, entry) for entry in entries)]
        modified: list[pb.Entity] = []
        if conferences and schema.tables.find("Egress.copy") is not None:
            added, modified = replication_entities(schema, ports)
            written += added
        await write(pb.Update.INSERT, written)
        punt = entity(schema, "Ingress.punt", {}, "Ingress.to_cpu", {"port": ports[Port.CPU]}, default=True)
        await write(pb.Update.MODIFY, [punt, *modified])
        yield Tables(session)
    finally:
        for item in written:
            item.table_entry.ClearField("data")
        with contextlib.suppress(Refused, grpc.RpcError):
            await write(pb.Update.DELETE, written[::-1])
        await asyncio.to_thread(session.close)


class Frames(Protocol):
    """The ports of a switch, from outside."""

    def send(self, port: Port, frame: bytes) -> None: ...

    async def received(self, expected: int) -> list[tuple[Port, bytes]]:
        """Frames that came out: waits for `expected` of them, then for more until it is quiet."""


@dataclass
class Ptf:
    """Frames through PTF."""

    dataplane: Any

    def send(self, port: Port, frame: bytes) -> None:
        self.dataplane.send(0, int(port), frame)

    async def received(self, expected: int, *, patience: float = 5.0, quiet: float = 0.3) -> list[tuple[Port, bytes]]:
        frames: list[tuple[Port, bytes]] = []
        deadline = time.monotonic() + patience
        while True:
            wait = quiet if len(frames) >= expected else max(0.0, deadline - time.monotonic())
            result = await asyncio.to_thread(self.dataplane.poll, device_number=0, timeout=wait)
            if not isinstance(result, self.dataplane.PollSuccess):
                return frames
            frames.append((Port(result.port), bytes(result.packet)))


@contextlib.contextmanager
def ptf(interfaces: Mapping[Port, str]) -> Iterator[Ptf]:
    """PTF's data plane on these interfaces."""
    from ptf.dataplane import DataPlane

    dataplane = DataPlane({"platform": "eth"})
    try:
        for port, interface in interfaces.items():
            dataplane.port_add(interface, 0, int(port))
        yield Ptf(dataplane)
    finally:
        dataplane.kill()


def unpadded(frames: Sequence[tuple[Port, bytes]], wanted: Sequence[tuple[Port, bytes]]) -> list[tuple[Port, bytes]]:
    """The frames without what Ethernet fills short ones up with, of which those that are wanted in their places have nothing."""
    same = [(port, frame[: len(other)] if len(other) < _SHORTEST else frame) for (port, frame), (_, other) in zip(frames, wanted)]
    return [*same, *frames[len(same) :]]
