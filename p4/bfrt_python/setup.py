"""Sets a switch up for relay.p4: ports, the CPU port, own MAC addresses, next hops, routes, default entries, flooding and mirroring for the CPU.

Without a switch (dry mode): python p4/bfrt_python/setup.py shunt.yaml [--plan switch.json]
checks the section `switch` of the configuration, prints every step, and writes the plan for the switch.

On the switch: bfshell -b .../setup.py
carries out the plan in /etc/shunt/switch.json, or where SHUNT_SWITCH_PLAN points in bf_switchd's
environment. Run again, it changes only what differs. Python in bf_switchd needs no packages for it.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import sys
from typing import Any, Callable, Dict, List, Optional

DEFAULT_PLAN = "/etc/shunt/switch.json"
FLOOD_GROUP = FLOOD_NODE = 65535
"""Multicast group and replication node of what the CPU sends to everybody; conferences take theirs from 1 upwards."""
AGENT_SESSION = 1
"""Mirror session of conference packets that the agent reads; as in include/conference_config.p4."""
_LONGEST_COPY = 16384
_LONGEST_PACKET = 65535
_EVERY_BIT = (1 << 48) - 1
_SPEEDS = "BF_SPEED_%s"
_FEC = {"none": "BF_FEC_TYP_NONE", "firecode": "BF_FEC_TYP_FIRECODE", "reed-solomon": "BF_FEC_TYP_REED_SOLOMON"}
_AUTONEG = {"auto": "PM_AN_DEFAULT", "on": "PM_AN_FORCE_ENABLE", "off": "PM_AN_FORCE_DISABLE"}
_FIXED = {"$PORT": "port.port", "$PORT_STR_INFO": "port.port_str_info", "$pre.node": "pre.node", "$pre.mgid": "pre.mgid", "$mirror.cfg": "mirror.cfg"}


class SetupError(Exception):
    """A step cannot be carried out; says which and why."""


# The plan: steps as plain data, so that the switch needs neither YAML nor the agent's package.


def plan_of(switch: Any, program: str = "relay") -> Dict[str, Any]:
    """The plan for a `switch` section (shunt.config.switch.Switch): {"program", "steps"}.

    A step is {"why", "table", "action", "key", "data"}; without a key it sets the default entry, and with "alone" it
    takes out the other entries that have the same value in this field. Values are numbers, strings and lists,
    {"port": "1/0"} for the device port of a front-panel port, and for keys also {"lpm": [value, length]},
    {"ternary": [value, mask]} and {"range": [first, last]}.
    """
    steps = []

    def put(why: str, table: str, key: Optional[Dict[str, Any]], data: Dict[str, Any], action: Optional[str] = None) -> None:
        steps.append({"why": why, "table": table, "action": action, "key": key, "data": data})

    numbers = {hop.name: n for n, hop in enumerate(switch.next_hops, 1)}
    hops = {hop.name: hop for hop in switch.next_hops}
    own = {port.port: port.mac for port in switch.ports}
    cpu_port = switch.cpu_port
    for port in switch.ports:
        data = {"$SPEED": _SPEEDS % port.speed, "$FEC": _FEC[port.fec], "$AUTO_NEGOTIATION": _AUTONEG[port.autoneg], "$PORT_ENABLE": port.enabled}
        put("port %s" % port.port, "$PORT", {"$DEV_PORT": _device(port.port)}, data)
    for port in switch.ports:
        key = {"port": _device(port.port), "length": {"range": [port.mtu + 1, _LONGEST_PACKET]}, "$MATCH_PRIORITY": 1}
        put("packets of more than %d bytes do not leave by port %s" % (port.mtu, port.port), "Egress.mtu", key, {}, "too_big")
        steps[-1]["alone"] = "port"
    put("what the CPU sends to everybody", "$pre.node", {"$MULTICAST_NODE_ID": FLOOD_NODE}, {"$MULTICAST_RID": 0, "$MULTICAST_LAG_ID": [], "$DEV_PORT": [_device(port.port) for port in switch.ports]})
    put("what the CPU sends to everybody", "$pre.mgid", {"$MGID": FLOOD_GROUP}, {"$MULTICAST_NODE_ID": [FLOOD_NODE], "$MULTICAST_NODE_L1_XID_VALID": [False], "$MULTICAST_NODE_L1_XID": [0]})
    put(
        "conference packets for the agent go to the CPU",
        "$mirror.cfg",
        {"$sid": AGENT_SESSION},
        {"$session_enable": True, "$direction": "INGRESS", "$ucast_egress_port": cpu_port, "$ucast_egress_port_valid": True, "$max_pkt_len": _LONGEST_COPY},
        "$normal",
    )
    put("address resolution and expired packets go to the CPU", "Ingress.punt", None, {"port": cpu_port}, "to_cpu")
    for port in switch.ports:
        key = _frames({"ternary": [_device(port.port), 0x1FF]}, _mac(port.mac), _EVERY_BIT, 10)
        put("frames to the switch's own address on port %s are routed" % port.port, "Ingress.layer2", key, {}, "route_frame")
    from_cpu = {"ternary": [cpu_port, 0x1FF]}
    for mac, port in {hop.mac: hop.port for hop in switch.next_hops}.items():
        put("frames of the CPU to %s" % mac, "Ingress.layer2", _frames(from_cpu, _mac(mac), _EVERY_BIT, 10), {"port": _device(port)}, "bridge_to")
    put("frames of the CPU to groups and to everybody", "Ingress.layer2", _frames(from_cpu, 1 << 40, 1 << 40, 20), {"group": FLOOD_GROUP}, "bridge_to_group")
    for hop in switch.next_hops:
        data = {"src_mac": _mac(own[hop.port]), "dst_mac": _mac(hop.mac)}
        if hop.vlan is not None:
            data["vlan"] = hop.vlan
        put("next hop %s" % hop.name, "Egress.nexthop", {"nexthop": numbers[hop.name]}, data, "send" if hop.vlan is None else "send_tagged")
    for table in ("Ingress.route", "Ingress.route6"):
        put("what no route fits is dropped", table, None, {}, "discard")
    for route in switch.routes:
        six = route.prefix.version == 6
        key = {"hdr.ipv6.dst_addr" if six else "hdr.ipv4.dst_addr": {"lpm": [int(route.prefix.network_address), route.prefix.prefixlen]}}
        table = "Ingress.route6" if six else "Ingress.route"
        if route.to in numbers:
            data, action = {"port": _device(hops[route.to].port), "nexthop": numbers[route.to]}, "forward6" if six else "forward"
        else:
            data, action = ({"port": cpu_port}, "to_cpu") if route.to == "cpu" else ({}, "discard")
        put("%s: %s" % (route.prefix, route.to), table, key, data, action)
    return {"program": program, "steps": steps}


def _device(port: Any) -> Any:
    return port if isinstance(port, int) else {"port": port}


def _frames(ingress: Any, address: int, mask: int, priority: int) -> Dict[str, Any]:
    return {"ingress_port": ingress, "hdr.ethernet.dst_addr": {"ternary": [address, mask]}, "$MATCH_PRIORITY": priority}


def _mac(text: str) -> int:
    return int(text.replace(":", ""), 16)


# Carrying it out. Table errors are printed by bfrt_python and not raised, so every step is read back.


class Tables:
    """The tables of a switch, as bfshell offers them."""

    def __init__(self, bfrt: Any, program: str = "relay") -> None:
        self.bfrt = bfrt
        self.program = program
        self._ports: Dict[str, int] = {}

    def leaf(self, table: str) -> Any:
        """The object of a table. Raises SetupError."""
        path = _FIXED.get(table) or "%s.pipe.%s" % (self.program, table)
        node = self.bfrt
        for name in path.split("."):
            node = getattr(node, name, None)
            if node is None:
                raise SetupError("there is no bfrt.%s: is program %r loaded, and of this version?" % (path, self.program))
        return node

    def resolve(self, value: Any) -> Any:
        """A plan's value with front-panel ports replaced by their device ports. Raises SetupError."""
        if isinstance(value, list):
            return [self.resolve(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "port" not in value:
            return {kind: self.resolve(parts) for kind, parts in value.items()}
        name = value["port"]
        if name not in self._ports:
            entry, said = _quietly(self.leaf("$PORT_STR_INFO").get, PORT_NAME=name, print_ents=False)
            entry = _single(entry)
            if entry is None:
                raise SetupError("there is no port %s on this switch%s" % (name, said))
            self._ports[name] = int(_names(entry.data)["$DEV_PORT"])
        return self._ports[name]

    def carry_out(self, step: Dict[str, Any]) -> str:
        """One step: "added", "changed" or "unchanged". Raises SetupError."""
        leaf = self.leaf(step["table"])
        data = {name: self.resolve(value) for name, value in step["data"].items()}
        if step["key"] is None:
            return self._default(leaf, step["action"], data)
        key = {name: self.resolve(value) for name, value in step["key"].items()}
        before = self._read(leaf, key)
        others = self._others(leaf, key, step["alone"]) if "alone" in step else []
        for other in others:
            _quietly(leaf.delete, **arguments(leaf.delete, other))
        if before is not None and _same(before, step["action"], data):
            return "changed" if others else "unchanged"
        suffix = "" if step["action"] is None else "_with_%s" % step["action"].replace("$", "")
        said = ""
        if before is not None and step["table"] == "$PORT":
            # Speed and FEC of a port that is there cannot be changed.
            _, said = _quietly(leaf.delete, **arguments(leaf.delete, key))
            before = None
        method = getattr(leaf, ("add" if before is None else "mod") + suffix)
        _, said_then = _quietly(method, **arguments(method, key, data))
        after = self._read(leaf, key)
        if after is None or not _same(after, step["action"], data):
            raise SetupError("%s: not taken%s" % (step["why"], said_then or said))
        return "added" if before is None and not others else "changed"

    @staticmethod
    def _others(leaf: Any, key: Dict[str, Any], field: str) -> List[Dict[str, Any]]:
        """The keys of entries that have the same value in a field as `key`, and are not it."""
        found, _ = _quietly(leaf.dump, return_ents=True)
        ranges = {name for name, value in key.items() if isinstance(value, dict)}
        keys = [{name: {"range": list(value)} if name in ranges else value for name, value in _names(entry.key).items()} for entry in found or []]
        return [other for other in keys if other[field] == key[field] and other != key]

    def _default(self, leaf: Any, action: str, data: Dict[str, Any]) -> str:
        before = self._read_default(leaf)
        if before is not None and _same(before, action, data):
            return "unchanged"
        method = getattr(leaf, "set_default_with_%s" % action)
        _, said = _quietly(method, **arguments(method, {}, data))
        after = self._read_default(leaf)
        if after is None or not _same(after, action, data):
            raise SetupError("default entry %s: not taken%s" % (action, said))
        return "changed"

    @staticmethod
    def _read(leaf: Any, key: Dict[str, Any]) -> Any:
        found, _ = _quietly(leaf.get, print_ents=False, **arguments(leaf.get, key))
        return _single(found)

    @staticmethod
    def _read_default(leaf: Any) -> Any:
        found, _ = _quietly(leaf.get_default, print_ent=False)
        return _single(found)


def arguments(method: Callable[..., Any], key: Dict[str, Any], data: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
    """The keyword arguments for fields by their full names. Raises SetupError.

    bfrt_python shortens names as far as the method's key and data fields stay apart, so one field has
    different names in different methods: the longest ending of the full name that the method takes is it.
    """
    taken = list(inspect.signature(method).parameters)
    found = {}
    for name, value in list(key.items()) + list((data or {}).items()):
        words = name.replace("$", "").split(".")
        kind, parts = next(iter(value.items())) if isinstance(value, dict) else ("exact", [value])
        endings = {"exact": [""], "lpm": ["", "_p_length"], "ternary": ["", "_mask"], "range": ["_start", "_end"]}[kind]
        for start in range(len(words)):
            names = ["_".join(words[start:]) + ending for ending in endings]
            if all(one in taken and one not in found for one in names):
                found.update(zip(names, parts))
                break
        else:
            raise SetupError("%s takes no %s; it takes %s" % (getattr(method, "__name__", method), name, ", ".join(taken)))
    return found


def _quietly(method: Callable[..., Any], **kwargs: Any) -> tuple:
    """Call a method of a table; its result, and what it printed as an ending for an error message."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        result = method(**kwargs)
    words = " ".join(out.getvalue().split())
    return result, ": " + words if words else ""


def _single(found: Any) -> Any:
    """The one entry that a get returned; None for none. -1 and None say that there is none."""
    if isinstance(found, list):
        found = found[0] if found else None
    return found if hasattr(found, "data") else None


def _names(fields: Optional[Dict[Any, Any]]) -> Dict[str, Any]:
    return {name.decode("ascii") if isinstance(name, bytes) else name: value for name, value in (fields or {}).items()}


def _same(entry: Any, action: Optional[str], data: Dict[str, Any]) -> bool:
    """Whether an entry does what is wanted: fields that the plan does not name may be anything."""
    if action is not None and (entry.action or "").rpartition(".")[2] != action:
        return False
    there = _names(entry.data)
    return all(_plain(there.get(name)) == _plain(value) for name, value in data.items())


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    return value


def apply(bfrt: Any, plan: Dict[str, Any], tell: Callable[[str], None] = print) -> int:
    """Carry a plan out; the number of steps that failed. tell gets a line for each step that changed something or failed."""
    tables = Tables(bfrt, plan["program"])
    outcomes = {"added": 0, "changed": 0, "unchanged": 0, "failed": 0}
    for step in plan["steps"]:
        try:
            outcome = tables.carry_out(step)
            if outcome != "unchanged":
                tell("%-9s %s" % (outcome, step["why"]))
        except SetupError as error:
            outcome = "failed"
            tell("FAILED    %s: %s" % (step["table"], error))
        outcomes[outcome] += 1
    tell("%d steps: %s" % (len(plan["steps"]), ", ".join("%d %s" % (count, outcome) for outcome, count in outcomes.items() if count)))
    return outcomes["failed"]


# Without a switch.


def describe(step: Dict[str, Any]) -> str:
    """A step as a line for people."""
    fields = ["%s=%s" % (name, _shown(value)) for part in (step["key"] or {}, step["data"]) for name, value in part.items()]
    what = step["table"] + (" default" if step["key"] is None else "") + (" -> %s" % step["action"] if step["action"] else "")
    return "%s(%s)   # %s" % (what, ", ".join(fields), step["why"])


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        if "port" in value:
            return "port " + value["port"]
        kind, (first, second) = next(iter(value.items()))
        form = {"lpm": "%s/%s", "ternary": "%s&&&%s", "range": "%s..%s"}[kind]
        return form % (_shown(first), _shown(second))
    if isinstance(value, list):
        return "[%s]" % ", ".join(_shown(item) for item in value)
    return hex(value) if isinstance(value, int) and not isinstance(value, bool) and value > 0xFFFF else str(value)


def dry(argv: list) -> int:
    """Dry mode; the exit status."""
    import argparse

    try:
        from shunt.config.load import ConfigError, load
    except ModuleNotFoundError as missing:
        print("dry mode reads the configuration as the agent does, and %s is missing: make setup, then build/venv/bin/python %s" % (missing.name, sys.argv[0]), file=sys.stderr)
        return 1

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="the YAML configuration with the section switch")
    parser.add_argument("--plan", help="write the plan for the switch to this file")
    options = parser.parse_args(argv)
    try:
        config = load(options.config)
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if config.switch is None:
        print("%s: it has no section switch" % options.config, file=sys.stderr)
        return 1
    plan = plan_of(config.switch, config.data_plane.program if config.data_plane is not None else "relay")
    for step in plan["steps"]:
        print(describe(step))
    if options.plan:
        with open(options.plan, "w", encoding="utf-8") as stream:
            json.dump(plan, stream, indent=1)
            stream.write("\n")
        print("%d steps written to %s; on the switch: bfshell -b setup.py" % (len(plan["steps"]), options.plan))
    return 0


def on_switch(bfrt: Any, tell: Callable[[str], None] = print) -> Optional[int]:
    """What bfshell -b runs; the number of steps that failed, or None when there is no plan."""
    path = os.environ.get("SHUNT_SWITCH_PLAN", DEFAULT_PLAN)
    try:
        with open(path, encoding="utf-8") as stream:
            plan = json.load(stream)
    except (OSError, ValueError) as error:
        tell("no plan: %s; make one with: python setup.py shunt.yaml --plan %s" % (error, path))
        return None
    return apply(bfrt, plan, tell)


if "bfrt" in globals():
    on_switch(globals()["bfrt"])
elif __name__ == "__main__":
    sys.exit(dry(sys.argv[1:]))
