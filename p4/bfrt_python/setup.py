"""Sets up a switch for relay.p4: ports, own MAC addresses, next hops, routes, default entries, flooding and mirroring for the CPU.

Without a switch (dry mode): python p4/bfrt_python/setup.py shunt.yaml [--plan switch.json]
checks the section `switch` of the configuration, prints every step, and writes the plan for the switch.

On the switch: python3 setup.py --execute switch.json [--check] [--prune] [--follow]
runs itself in bfshell. It writes what differs, reports every refused step, and lists rows that the plan lacks. Exit status: 0 the switch
is as planned; 1 a step was refused, or --check found a difference; 2 bfshell did not run it. Neither this mode nor bf_switchd needs packages.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

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
_OWNED = {"Ingress.route": "lpm", "Ingress.route6": "lpm", "Ingress.layer2": "ternary", "Egress.nexthop": "exact", "Egress.mtu": "range"}
"""Tables whose rows all come from the plan, with the form of their keys, in the order of removal: a route before its next hop."""
_OUTCOMES = ("added", "changed", "removed", "unchanged", "to add", "to change", "stale", "unresolved", "failed")
_SUMMARY = re.compile(r"^[0-9]+ steps: (.*)$", re.MULTILINE)
_LINE = re.compile(r"(%s|FAILED|[0-9]+ steps:) " % "|".join(_OUTCOMES))
_FIXED = {"$PORT": "port.port", "$PORT_STR_INFO": "port.port_str_info", "$pre.node": "pre.node", "$pre.mgid": "pre.mgid", "$mirror.cfg": "mirror.cfg"}


class SetupError(Exception):
    """A step cannot be carried out; says why."""


# The plan: steps as plain data, so that the switch needs neither YAML nor the agent's package.


def plan_of(switch: Any, program: str = "relay") -> Dict[str, Any]:
    """The plan for a `switch` section (shunt.config.switch.Switch): {"program", "steps", "hops"}.

    A step is {"why", "table", "action", "key", "data"}; without a key it sets the default entry, and with "alone" it
    removes the other entries that have the same value in this field. Values are numbers, strings and lists,
    {"port": "1/0"} for the device port of a front-panel port, and for keys also {"lpm": [value, length]},
    {"ternary": [value, mask]} and {"range": [first, last]}. `resolved` fills in what depends on neighbours: steps with "hop"
    need the MAC address of that next hop, steps with "via" take the first of these next hops that is reachable.
    """
    steps: List[Dict[str, Any]] = []

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
    for hop in switch.next_hops:
        put("frames of the CPU to next hop %s" % hop.name, "Ingress.layer2", _frames(from_cpu, _mac(hop.mac), _EVERY_BIT, 10), {"port": _device(hop.port)}, "bridge_to")
        steps[-1]["hop"] = hop.name
    put("frames of the CPU to groups and to everybody", "Ingress.layer2", _frames(from_cpu, 1 << 40, 1 << 40, 20), {"group": FLOOD_GROUP}, "bridge_to_group")
    for hop in switch.next_hops:
        data = {"src_mac": _mac(own[hop.port]), "dst_mac": _mac(hop.mac)}
        if hop.vlan is not None:
            data["vlan"] = hop.vlan
        where = "" if hop.address is None else " at %s" % hop.address
        put("next hop %s%s" % (hop.name, where), "Egress.nexthop", {"nexthop": numbers[hop.name]}, data, "send" if hop.vlan is None else "send_tagged")
        steps[-1]["hop"] = hop.name
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
        if route.to in numbers:
            steps[-1]["via"] = _chain(hops, route.to)
    return {
        "program": program,
        "steps": steps,
        "hops": {hop.name: {"number": numbers[hop.name], "port": _device(hop.port), "mac": hop.mac, "address": None if hop.address is None else str(hop.address)} for hop in switch.next_hops},
    }


def _chain(hops: Dict[str, Any], name: Optional[str]) -> List[str]:
    """A next hop, its backup, the backup's backup, and so on; each once."""
    found: List[str] = []
    while name is not None and name not in found:
        found.append(name)
        name = hops[name].backup
    return found


def resolved(plan: Dict[str, Any], macs: Dict[str, Optional[str]], known: Dict[str, Optional[str]]) -> Dict[str, Any]:
    """The plan with the MAC addresses of reachable next hops (`macs`; None: unreachable) and each route on its first reachable one.

    `known` has the last MAC address of every next hop. A route without a reachable next hop stays on its first known one.
    A step that needs an unknown MAC address has "unresolved": its row stays as it is.
    """
    steps, bridged = [], set()
    for step in plan["steps"]:
        step = dict(step)
        if "hop" in step:
            name = step["hop"]
            mac = macs[name] or known[name]
            if mac is None:
                step["unresolved"] = plan["hops"][name]["address"]
            elif step["table"] == "Egress.nexthop":
                step["data"] = dict(step["data"], dst_mac=_mac(mac))
            else:
                if mac in bridged:  # two next hops of one neighbour, in different VLANs
                    continue
                bridged.add(mac)
                step["key"] = dict(step["key"], **{"hdr.ethernet.dst_addr": {"ternary": [_mac(mac), _EVERY_BIT]}})
        elif "via" in step:
            usable = [name for name in step["via"] if macs[name]] or [name for name in step["via"] if known[name]]
            if usable:
                hop = plan["hops"][usable[0]]
                step["data"] = {"port": hop["port"], "nexthop": hop["number"]}
                if usable[0] != step["via"][0]:
                    step["why"] += ", by its backup %s" % usable[0]
            else:
                step["unresolved"] = plan["hops"][step["via"][0]]["address"]
        steps.append(step)
    return dict(plan, steps=steps)


def _device(port: Any) -> Any:
    return port if isinstance(port, int) else {"port": port}


def _frames(ingress: Any, address: int, mask: int, priority: int) -> Dict[str, Any]:
    return {"ingress_port": ingress, "hdr.ethernet.dst_addr": {"ternary": [address, mask]}, "$MATCH_PRIORITY": priority}


def _mac(text: Optional[str]) -> int:
    return int((text or "0").replace(":", ""), 16)


# Carrying it out. bfrt_python raises the error of a write, prints that of a read, and returns after a value that it cannot parse.
# So every step is read back.


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

    def key_of(self, step: Dict[str, Any]) -> Dict[str, Any]:
        """A step's key with device ports. Raises SetupError."""
        return {name: self.resolve(value) for name, value in step["key"].items()}

    def carry_out(self, step: Dict[str, Any], check: bool = False) -> str:
        """One step; its outcome. With `check` nothing is written. Raises SetupError."""
        if "unresolved" in step:
            return "unresolved"
        leaf = self.leaf(step["table"])
        data = {name: self.resolve(value) for name, value in step["data"].items()}
        if step["key"] is None:
            return self._default(leaf, step["action"], data, check)
        key = self.key_of(step)
        before = self._read(leaf, key)
        others = [other for other in _keys(leaf, step["table"]) if other[step["alone"]] == key[step["alone"]] and other != key] if "alone" in step else []
        done = before is not None and _same(before, step["action"], data)
        if done and not others:
            return "unchanged"
        if check:
            return "to add" if before is None and not others else "to change"
        if not done:
            self._write(leaf, step, key, data, before)
        for other in others:
            _quietly(leaf.delete, **arguments(leaf.delete, other))
        return "added" if before is None and not others else "changed"

    def _write(self, leaf: Any, step: Dict[str, Any], key: Dict[str, Any], data: Dict[str, Any], before: Any) -> None:
        suffix = "" if step["action"] is None else "_with_%s" % step["action"].replace("$", "")
        if before is not None and step["table"] == "$PORT":
            # The speed and FEC of an existing port cannot be changed.
            _quietly(leaf.delete, **arguments(leaf.delete, key))
            try:
                self._put(leaf, "add", step["action"], key, data)
            except SetupError as error:
                there = _names(before.data)
                try:
                    self._put(leaf, "add", step["action"], key, {name: _plain(there[name]) for name in data if name in there})
                except SetupError as lost:
                    raise SetupError("%s; THE PORT IS GONE, since its former settings are refused too: %s" % (error, lost)) from None
                raise SetupError("%s; the port has its former settings" % error) from None
        else:
            self._put(leaf, ("add" if before is None else "mod") + suffix, step["action"], key, data)

    def _put(self, leaf: Any, method: str, action: Optional[str], key: Dict[str, Any], data: Dict[str, Any]) -> None:
        write = getattr(leaf, method)
        _, said = _quietly(write, **arguments(write, key, data))
        after = self._read(leaf, key)
        if after is None or not _same(after, action, data):
            raise SetupError("the row is not as written%s" % said)

    def stale(self, steps: List[Dict[str, Any]]) -> Iterator[Tuple[str, Dict[str, Any]]]:
        """Rows of the plan's own tables that no step names, as (table, key). A table with a step whose key is unknown has none."""
        for table in _OWNED:
            try:
                mine = [step for step in steps if step["table"] == table and step["key"] is not None]
                if table == "Ingress.layer2" and any("unresolved" in step for step in mine):
                    continue
                wanted = [self.key_of(step) for step in mine]
                found = _keys(self.leaf(table), table)
            except SetupError:
                continue
            replaced = [(step["alone"], key[step["alone"]]) for step, key in zip(mine, wanted) if "alone" in step]
            for key in found:
                if key not in wanted and not any(key[field] == value for field, value in replaced):
                    yield table, key

    def remove(self, table: str, key: Dict[str, Any]) -> None:
        """Removes a row. Raises SetupError."""
        leaf = self.leaf(table)
        _quietly(leaf.delete, **arguments(leaf.delete, key))
        if self._read(leaf, key) is not None:
            raise SetupError("the row is still there")

    def _default(self, leaf: Any, action: str, data: Dict[str, Any], check: bool) -> str:
        before = self._read_default(leaf)
        if before is not None and _same(before, action, data):
            return "unchanged"
        if check:
            return "to change"
        method = getattr(leaf, "set_default_with_%s" % action)
        _, said = _quietly(method, **arguments(method, {}, data))
        after = self._read_default(leaf)
        if after is None or not _same(after, action, data):
            raise SetupError("the default entry is not as written%s" % said)
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


def _keys(leaf: Any, table: str) -> List[Dict[str, Any]]:
    """The keys of all rows of one of the plan's own tables, as a plan writes them. Raises SetupError."""
    found, _ = _quietly(leaf.dump, return_ents=True)
    return [{name: {_OWNED[table]: list(value)} if isinstance(value, (list, tuple)) else value for name, value in _names(entry.key).items()} for entry in found or []]


def _quietly(method: Callable[..., Any], **kwargs: Any) -> tuple:
    """Calls a method of a table; returns its result, and what it printed as an ending for an error message. Raises SetupError."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            result = method(**kwargs)
    except Exception as error:  # BfRtTableError, of a module that only bf_switchd has; and what a value of the wrong type leads to
        kind = type(error).__name__
        raise SetupError(str(error) if kind == "BfRtTableError" else "%s: %s" % (kind, error)) from None
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


def apply(bfrt: Any, plan: Dict[str, Any], tell: Callable[[str], None] = print) -> Dict[str, int]:
    """Carries a plan out and returns how many steps had each outcome. `tell` gets a line for each outcome but "unchanged", and a summary."""
    tables = Tables(bfrt, plan["program"])
    static = {name: hop["mac"] for name, hop in plan["hops"].items()}
    steps = resolved(plan, plan.get("macs", static), plan.get("known", static))["steps"]
    check, prune = plan.get("check", False), plan.get("prune", False)
    outcomes = dict.fromkeys(_OUTCOMES, 0)

    def attempt(what: str, why: str, work: Callable[[], str]) -> None:
        try:
            outcome = work()
            if outcome != "unchanged":
                tell("%-10s %s   # %s" % (outcome, what, why))
        except SetupError as error:
            outcome = "failed"
            tell("FAILED     %s: %s   # %s" % (what, error, why))
        outcomes[outcome] += 1

    def removal(table: str, key: Dict[str, Any]) -> str:
        if check or not prune:
            return "stale"
        tables.remove(table, key)
        return "removed"

    for step in steps:
        attempt(_named(step), step["why"], lambda: tables.carry_out(step, check))
    for table, key in tables.stale(steps):
        attempt("%s(%s)" % (table, _fields(key)), "no longer in the configuration", lambda: removal(table, key))
    tell("%d steps: %s" % (len(steps), ", ".join("%d %s" % (count, outcome) for outcome, count in outcomes.items() if count)))
    return outcomes


# Without a switch.


def describe(step: Dict[str, Any]) -> str:
    """A step as a line for people."""
    return "%s(%s)   # %s" % (_what(step), _fields(dict(step["key"] or {}, **step["data"])), step["why"])


def _named(step: Dict[str, Any]) -> str:
    return "%s(%s)" % (_what(step), _fields(step["key"] or {}))


def _what(step: Dict[str, Any]) -> str:
    return step["table"] + (" default" if step["key"] is None else "") + (" -> %s" % step["action"] if step["action"] else "")


def _fields(fields: Dict[str, Any]) -> str:
    return ", ".join("%s=%s" % (name, _shown(value)) for name, value in fields.items())


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
        print("%d steps written to %s; on the switch: python3 setup.py --execute %s" % (len(plan["steps"]), options.plan, options.plan))
    return 0


# On the switch, outside bf_switchd: bfshell always ends with status 0, so its output tells the outcome.

_PERIOD = 3.0
_RETRY = 30.0
_LONGEST_RUN = 120.0
_REACHABLE = {"REACHABLE", "STALE", "DELAY", "PROBE", "PERMANENT", "NOARP"}


def execute(argv: list) -> int:
    """Carries a plan out by bfshell; the exit status."""
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--execute", metavar="PLAN", required=True, help="the plan that the dry mode wrote")
    parser.add_argument("--check", action="store_true", help="print the differences; write nothing")
    parser.add_argument("--prune", action="store_true", help="remove routes, next hops, MTUs and MAC addresses that the plan lacks")
    parser.add_argument("--follow", action="store_true", help="keep running: follow the neighbour table, and fail over to backups")
    parser.add_argument("--bfshell", metavar="COMMAND", default="bfshell", help="how to run bfshell (default: bfshell)")
    options = parser.parse_args(argv)
    try:
        with open(options.execute, encoding="utf-8") as stream:
            plan = dict(json.load(stream), check=options.check, prune=options.prune)
    except (OSError, ValueError) as error:
        print("no plan: %s; make one with: python setup.py shunt.yaml --plan %s" % (error, options.execute), file=sys.stderr)
        return 2

    def run(plan: Dict[str, Any]) -> int:
        return _status(run_in_bfshell(shlex.split(options.bfshell), plan), options.check)

    hops = Hops(plan["hops"])
    if not options.follow:
        hops.read()
        return run(dict(plan, macs=hops.macs, known=hops.known))
    follow(plan, hops, run)
    return 0


def _status(outcomes: Optional[Dict[str, int]], check: bool) -> int:
    if outcomes is None:
        return 2
    wrong = ("failed", "unresolved") + (("to add", "to change", "stale") if check else ())
    return 1 if any(outcomes.get(outcome) for outcome in wrong) else 0


def run_in_bfshell(command: List[str], plan: Dict[str, Any]) -> Optional[Dict[str, int]]:
    """Runs this file in bfshell with a plan and prints its lines; returns the outcomes, or None when it did not run to its end."""
    with tempfile.TemporaryDirectory() as folder:
        path, script = os.path.join(folder, "switch.json"), os.path.join(folder, "run.py")
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(plan, stream)
        with open(script, "w", encoding="utf-8") as stream:
            # A namespace of its own: bf_switchd keeps that of a script for the next one.
            scope = '{"__name__": "setup", "bfrt": bfrt, "SHUNT_SWITCH_PLAN": %r}' % path
            stream.write("exec(compile(open(%r, encoding='utf-8').read(), 'setup.py', 'exec'), %s)\n" % (os.path.abspath(__file__), scope))
        # bfshell ends at the end of its input, before the script: the pipe stays open. It writes a file to the current folder.
        reading, writing = os.pipe()
        try:
            done = subprocess.run(command + ["-b", script], stdin=reading, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, timeout=_LONGEST_RUN)
            text = done.stdout.decode("utf-8", "replace").replace("\r", "")
        except (OSError, subprocess.TimeoutExpired) as error:
            text = "%s\n" % error
        finally:
            os.close(reading)
            os.close(writing)
    summary = _SUMMARY.search(text)
    sys.stdout.write(text if summary is None else "".join(line + "\n" for line in text.split("\n") if _LINE.match(line)))
    if summary is None:
        print("bfshell did not carry the plan out", flush=True)
        return None
    sys.stdout.flush()
    return {outcome: int(count) for count, _, outcome in (part.partition(" ") for part in summary.group(1).split(", "))}


class Hops:
    """The next hops with an address, as the kernel's neighbour table has them. `macs`: None for an unreachable one; `known`: the last MAC address."""

    def __init__(self, hops: Dict[str, Any]) -> None:
        self.addresses = {name: hop["address"] for name, hop in hops.items() if hop["address"] is not None}
        self.known: Dict[str, Optional[str]] = {name: hop["mac"] for name, hop in hops.items()}
        self.macs = dict(self.known)

    def take(self, listing: List[Dict[str, Any]]) -> List[List[str]]:
        """Takes what `ip -j neigh show` lists; returns the arguments of `ip` that have the kernel probe what it knows."""
        probes = []
        found = {one["dst"]: one for one in listing if "lladdr" in one and _REACHABLE.intersection(one.get("state", ()))}
        for name, address in self.addresses.items():
            one = found.get(address)
            self.macs[name] = None if one is None else one["lladdr"]
            if one is not None:
                self.known[name] = one["lladdr"]
                if "PERMANENT" not in one["state"]:
                    probes.append(["neigh", "change", address, "lladdr", one["lladdr"], "dev", one["dev"], "nud", "probe"])
        return probes

    def read(self) -> None:
        """Reads the neighbour table, and has the kernel probe each next hop: an unreachable one fails within 3 s."""
        if not self.addresses:
            return
        for command in self.take(json.loads(subprocess.run(["ip", "-j", "neigh", "show"], stdout=subprocess.PIPE, check=True).stdout or b"[]")):
            subprocess.run(["ip"] + command, stderr=subprocess.DEVNULL)
        for name, address in self.addresses.items():
            if self.macs[name] is None:
                # A datagram to the discard port makes the kernel resolve the address.
                with contextlib.suppress(OSError), socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as made:
                    made.sendto(b"", (address, 9))


def follow(plan: Dict[str, Any], hops: Hops, run: Callable[[Dict[str, Any]], int], sleep: Callable[[float], None] = time.sleep) -> None:
    """Carries the plan out at once, when a next hop changes, 6 s after bfshell did not answer, and 30 s after a refused step. Never returns."""
    last, again = None, 0.0
    while True:
        hops.read()
        if last != hops.macs or again <= 0:
            last = dict(hops.macs)
            for name, mac in last.items():
                if mac is None:
                    print("next hop %s: %s does not answer; routes use its backup if it has one" % (name, hops.addresses[name]), flush=True)
            status = run(dict(plan, macs=last, known=dict(hops.known)))
            if status != 2:
                _ready()
            again = {0: float("inf"), 2: 2 * _PERIOD}.get(status, _RETRY)
        sleep(_PERIOD)
        again -= _PERIOD


def _ready() -> None:
    """Tells systemd that the switch has been set up (sd_notify)."""
    path = os.environ.pop("NOTIFY_SOCKET", None)
    if path:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
            made.sendto(b"READY=1", "\0" + path[1:] if path.startswith("@") else path)


def on_switch(bfrt: Any, tell: Callable[[str], None] = print) -> Optional[Dict[str, int]]:
    """What bfshell -b runs; the outcomes, or None when there is no plan."""
    path = globals().get("SHUNT_SWITCH_PLAN") or os.environ.get("SHUNT_SWITCH_PLAN", DEFAULT_PLAN)
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
    sys.exit(execute(sys.argv[1:]) if any(word.startswith("--execute") for word in sys.argv) else dry(sys.argv[1:]))
