"""The switch's own section: ports, the CPU port, next hops and routes, for the set-up script in p4/bfrt_python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from shunt.config.section import Location, Section
from shunt.config.values import Address, Name, Network

CPU, DISCARD = "cpu", "discard"
_FRONT = re.compile(r"[1-9][0-9]?/[0-7]")
_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")


def _port(value: Any) -> str | int:
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= 511:
            raise ValueError(f"device port {value} is not in 0..511")
        return value
    if not isinstance(value, str) or not _FRONT.fullmatch(value):
        raise ValueError(f'{value!r} is neither a front-panel port such as "1/0" (connector/channel, in quotes) nor a device port number')
    return value


def _mac(value: Any) -> str:
    if not isinstance(value, str) or not _MAC.fullmatch(value):
        raise ValueError(f'{value!r} is not a MAC address such as "02:00:00:00:00:01" (in quotes)')
    if int(value[:2], 16) & 1 or not int(value.replace(":", ""), 16):
        raise ValueError(f"{value} is not the address of one interface: it is a group address or zero")
    return value.lower()


SwitchPortName = Annotated[str | int, PlainValidator(_port)]
Mac = Annotated[str, PlainValidator(_mac)]


class SwitchPort(Section):
    """One port of the switch."""

    port: SwitchPortName = Field(description='Front-panel port "CONNECTOR/CHANNEL" as `pm show` writes it, or a device port number.')
    mac: Mac = Field(description="The switch's MAC address on this port. The switch routes frames to it.")
    speed: Literal["1G", "10G", "25G", "40G", "50G", "100G", "200G", "400G"] = Field(default="100G", description="Speed of the port.")
    fec: Literal["none", "firecode", "reed-solomon"] = Field(default="none", description="Forward error correction.")
    autoneg: Literal["auto", "on", "off"] = Field(default="auto", description="Auto-negotiation. auto: the platform decides.")
    mtu: int = Field(default=1500, ge=1280, le=9198, description="Longest IP packet, in bytes, that leaves by this port. Longer ones are dropped and counted.")
    enabled: bool = Field(default=True, description="Whether the port is enabled.")


class NextHop(Section):
    """A neighbour that packets are sent to: a MAC address, or an IP address that setup.py resolves on the switch, or both."""

    name: Name = Field(description="Name for routes.")
    port: SwitchPortName = Field(description="The port, one of switch.ports.")
    mac: Mac | None = Field(default=None, description="The neighbour's MAC address. With address: the one until the first answer.")
    address: Address | None = Field(default=None, description="The neighbour's IP address, for setup.py --follow. Default: the MAC address is fixed.")
    backup: Name | None = Field(default=None, description="The next hop that routes use while this one does not answer. Needs address.")
    vlan: int | None = Field(default=None, ge=1, le=4094, description="802.1Q tag. Default: untagged.")


class Route(Section):
    """Where packets to a prefix go."""

    prefix: Network = Field(description="IPv4 or IPv6 prefix. The longest match applies.")
    to: Name = Field(description="A next hop's name, cpu or discard.")


class Switch(Section):
    """The Tofino switch that p4/relay.p4 runs on; read by p4/bfrt_python/setup.py, not by the agent."""

    cpu_port: int = Field(default=64, ge=0, le=511, description="Device port of the switch's CPU: 64 on Tofino 1 (PCIe), 0 on Tofino 2.")
    ports: list[SwitchPort] = Field(min_length=1, description="The ports in use.")
    next_hops: list[NextHop] = Field(default=[], max_length=1023, description="Neighbours.")
    routes: list[Route] = Field(default=[], description="Routes, at least to the relay servers and to the phones.")

    def problems(self) -> Iterator[tuple[Location, str]]:
        """Yields contradictions between keys that are valid on their own: (location within the section, message)."""
        ports: dict[str | int, int] = {}
        for i, port in enumerate(self.ports):
            if (first := ports.setdefault(port.port, i)) != i:
                yield ("ports", i, "port"), f"{port.port} is listed twice (first as switch.ports.{first})"
            if port.port == self.cpu_port:
                yield ("ports", i, "port"), f"{port.port} is the CPU port"
        names: dict[str, int] = {}
        all_names = {hop.name for hop in self.next_hops}
        ways: dict[str, tuple[int, str | int]] = {}
        for i, hop in enumerate(self.next_hops):
            if hop.name in (CPU, DISCARD):
                yield ("next_hops", i, "name"), f"{hop.name!r} is reserved in routes"
            if (first := names.setdefault(hop.name, i)) != i:
                yield ("next_hops", i, "name"), f"{hop.name!r} is already the name of switch.next_hops.{first}"
            if hop.port not in ports:
                yield ("next_hops", i, "port"), f"{hop.port} is not one of switch.ports"
            if hop.mac is None and hop.address is None:
                yield ("next_hops", i), f"{hop.name!r} has neither mac nor address"
            if hop.backup is not None and (hop.backup == hop.name or hop.backup not in all_names):
                yield ("next_hops", i, "backup"), f"{hop.backup!r} is not another one of switch.next_hops"
            if hop.backup is not None and hop.address is None:
                yield ("next_hops", i, "backup"), f"{hop.name!r} has no address, so nothing shows when it is unreachable"
            if hop.mac is None:
                continue
            first, way = ways.setdefault(hop.mac, (i, hop.port))
            if way != hop.port:
                yield ("next_hops", i, "mac"), f"{hop.mac} is at port {way} (switch.next_hops.{first}): frames of the CPU could not be distinguished"
        prefixes: dict[str, int] = {}
        for i, route in enumerate(self.routes):
            if (first := prefixes.setdefault(str(route.prefix), i)) != i:
                yield ("routes", i, "prefix"), f"{route.prefix} is already routed by switch.routes.{first}"
            if route.to not in names and route.to not in (CPU, DISCARD):
                known = ", ".join([*names, CPU, DISCARD])
                yield ("routes", i, "to"), f"there is no next hop {route.to!r}; known here: {known}"
