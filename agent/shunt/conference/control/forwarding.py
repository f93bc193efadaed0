"""Where a switch sends packets to: its own routes and next hops, read over BF Runtime. They are its operator's, and nothing else says them a second time."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.client import entity_bytes
from shunt.bfrt.schema import Action, Schema, Table

_ROUTES = {4: "Ingress.route", 16: "Ingress.route6"}
_NEXT_HOPS = "Egress.nexthop"


class NoRoute(Exception):
    """The switch sends nothing to an address; the text says why."""


class NextHop(NamedTuple):
    """Where packets to an address go: the device port they leave by, the row of `Egress.nexthop`, and what that writes into their frames."""

    port: int
    number: int
    src_mac: bytes
    dst_mac: bytes
    vlan: int | None


class _Leads(NamedTuple):
    """What a route says: device port and row of `Egress.nexthop`; or why it leads nowhere."""

    port: int
    number: int
    nowhere: str = ""


_NO_ROUTE = _Leads(0, 0, "the switch has no route there")


class Forwarding:
    """The routes of one switch, as they were when last read."""

    def __init__(self, schema: Schema, routes: dict[int, Table], next_hops: Table) -> None:
        """routes: by the length of addresses in bytes."""
        self.schema = schema
        self._tables, self._next_hops = routes, next_hops
        self._routes: dict[int, dict[int, dict[int, _Leads]]] = {}  # by length of address in bytes, and of prefix in bits
        self._default: dict[int, _Leads] = {}
        self._hops: dict[int, tuple[bytes, bytes, int | None]] = {}
        self._found: dict[bytes, NextHop | NoRoute] = {}
        self._responses: Sequence[bytes] = ()

    @classmethod
    def of(cls, schema: Schema) -> Forwarding | None:
        """None for a data plane that has no routes of its own: its kernel's are in force."""
        routes = {size: table for size, name in _ROUTES.items() if (table := schema.tables.find(name)) is not None}
        next_hops = schema.tables.find(_NEXT_HOPS)
        return None if not routes or next_hops is None else cls(schema, routes, next_hops)

    def reading(self) -> list[bytes]:
        """What to read for take(), serialised."""
        return [entity_bytes(pb.Entity(table_entry=pb.TableEntry(table_id=table.id))) for table in (*self._tables.values(), self._next_hops)]

    def take(self, responses: Sequence[bytes]) -> bool:
        """The answer to reading(), serialised ReadResponses; whether anything has changed. The same as before, which is what comes again and again, is not parsed."""
        if responses == self._responses:
            return False
        self._responses = responses
        sizes = {table.id: size for size, table in self._tables.items()}
        routes: dict[int, dict[int, dict[int, _Leads]]] = {}
        default: dict[int, _Leads] = {}
        hops: dict[int, tuple[bytes, bytes, int | None]] = {}
        for entity in (entity for response in responses for entity in pb.ReadResponse.FromString(response).entities):
            entry = entity.table_entry
            if (size := sizes.get(entry.table_id)) is not None:
                leads = _leads(self._tables[size], entry)
                if not entry.key.fields:
                    default[size] = leads
                    continue
                lpm = entry.key.fields[0].lpm
                prefix = int.from_bytes(lpm.value, "big") >> (8 * size - lpm.prefix_len)
                routes.setdefault(size, {}).setdefault(lpm.prefix_len, {})[prefix] = leads
            elif entry.table_id == self._next_hops.id and entry.key.fields:
                said = _said(self._next_hops, entry)[1]
                if "dst_mac" in said:
                    vlan = int.from_bytes(said["vlan"], "big") if "vlan" in said else None
                    hops[int.from_bytes(entry.key.fields[0].exact.value, "big")] = said["src_mac"], said["dst_mac"], vlan
        changed = (routes, default, hops) != (self._routes, self._default, self._hops)
        if changed:
            self._routes, self._default, self._hops = routes, default, hops
            self._found = {}
        return changed

    def next_hop(self, address: bytes) -> NextHop:
        """Where packets to an address (4 or 16 bytes) go: by the longest prefix. Raises NoRoute."""
        found = self._found.get(address)
        if found is None:
            found = self._found[address] = self._look_up(address)
        if isinstance(found, NoRoute):
            raise NoRoute(*found.args)
        return found

    def _look_up(self, address: bytes) -> NextHop | NoRoute:
        leads = self._longest(address)
        if not leads.nowhere and leads.number not in self._hops:
            leads = leads._replace(nowhere=f"the switch's route there names next hop {leads.number}, and {_NEXT_HOPS} has none of that number")
        if leads.nowhere:
            return NoRoute(f"{ipaddress.ip_address(address)}: {leads.nowhere}")
        return NextHop(leads.port, leads.number, *self._hops[leads.number])

    def _longest(self, address: bytes) -> _Leads:
        size, number = len(address), int.from_bytes(address, "big")
        prefixes = self._routes.get(size, {})
        for length in sorted(prefixes, reverse=True):
            leads = prefixes[length].get(number >> (8 * size - length))
            if leads is not None:
                return leads
        return self._default.get(size, _NO_ROUTE)


def _said(table: Table, entry: pb.TableEntry) -> tuple[Action | None, dict[str, bytes]]:
    """An entry's action and its parameters by name."""
    action = table.actions.by_id.get(entry.data.action_id)
    return action, {} if action is None else {action.fields.by_id[field.field_id].name: field.stream for field in entry.data.fields if field.field_id in action.fields.by_id}


def _leads(table: Table, entry: pb.TableEntry) -> _Leads:
    action, said = _said(table, entry)
    if "nexthop" in said and "port" in said:
        return _Leads(int.from_bytes(said["port"], "big"), int.from_bytes(said["nexthop"], "big"))
    if not entry.key.fields:
        return _NO_ROUTE
    return _Leads(0, 0, f"the switch's route there ends in {action.name if action is not None else f'action {entry.data.action_id}'}")
