"""Reads a switch out that runs relay.p4: how full its tables are, what was counted, and the entries of a call.

On the switch: bfshell -b .../readout.py
prints occupancy and counters; with SHUNT_CALL=ADDRESS:PORT in bf_switchd's environment (a relay address
and port of the call) also that call's entries, and with SHUNT_SNAPSHOT=FILE everything goes to a file too.
In an interactive bfshell (bfshell -b .../readout.py -i) occupancy(), counters() and call("ADDRESS:PORT")
can be called afterwards.

Without a switch (dry mode): python p4/bfrt_python/readout.py SNAPSHOT [--call ADDRESS:PORT]
shows such a file again.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import json
import os
import sys
from typing import Any, Callable, Dict, Iterator, Optional

Snapshot = Dict[str, Dict[str, Any]]
PROGRAM = os.environ.get("SHUNT_PROGRAM", "relay")
RELAYS = ("Ingress.relay", "Ingress.relay6")
TABLES = RELAYS + ("Ingress.media", "Ingress.media6", "Ingress.sample", "Ingress.sample6", "Ingress.layer2", "Ingress.route", "Ingress.route6", "Egress.nexthop")
DROPS = {
    "Ingress.dropped": {1: "not_addressed", 2: "not_ip", 3: "unrouted"},
    "Egress.dropped": {1: "unknown_nexthop", 2: "turned_back", 3: "too_big", 4: "no_copy", 5: "above_target", 6: "late_copy"},
}
"""Rows of the counters of dropped packets, as in include/config.p4."""
_COUNTED = ("$COUNTER_SPEC_PKTS", "$COUNTER_SPEC_BYTES")


class ReadoutError(Exception):
    """Something cannot be read; says what and why."""


def read(bfrt: Any, program: str = PROGRAM) -> Snapshot:
    """A snapshot: {table: {"usage", "capacity", "entries": [{"key", "data", "action"}]}}; tables that the build lacks are left out."""
    snapshot = {}
    for table in TABLES + tuple(DROPS):
        leaf = bfrt
        for name in ("%s.pipe.%s" % (program, table)).split("."):
            leaf = getattr(leaf, name, None)
        if leaf is None:
            continue
        info = _quietly(leaf.info, return_info=True, print_info=False)
        # An empty table has nothing to dump, and bfrt_python says so as an error.
        entries = _quietly(leaf.dump, from_hw=True, return_ents=True) if info["usage"] or table in DROPS else None
        entries = entries if isinstance(entries, list) else []
        found = [{"key": _plain(entry.key), "data": _plain(entry.data), "action": _plain(entry.action)} for entry in entries]
        snapshot[table] = {"usage": info["usage"], "capacity": info["capacity"], "entries": [entry for entry in found if entry["key"]]}
    if not snapshot:
        raise ReadoutError("there is no table of program %r" % program)
    return snapshot


def _quietly(method: Callable[..., Any], **kwargs: Any) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        return method(**kwargs)


def _plain(value: Any) -> Any:
    """The same of what JSON can hold."""
    if isinstance(value, dict):
        return {_plain(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def occupancy_lines(snapshot: Snapshot) -> Iterator[str]:
    """Lines: every table with entries, capacity and how full it is."""
    yield "%-18s %10s %10s %7s" % ("table", "entries", "capacity", "full")
    for table, state in snapshot.items():
        if table in DROPS:
            continue
        share = 100.0 * state["usage"] / state["capacity"] if state["capacity"] else 0.0
        yield "%-18s %10d %10d %6.1f%%" % (table, state["usage"], state["capacity"], share)


def counter_lines(snapshot: Snapshot) -> Iterator[str]:
    """Lines: for tables that count, the sums and the busiest entries."""
    for table, state in snapshot.items():
        if table in DROPS:
            continue
        counted = [entry for entry in state["entries"] if _COUNTED[0] in entry["data"]]
        if not counted:
            continue
        packets, size = (sum(int(entry["data"].get(name, 0)) for entry in counted) for name in _COUNTED)
        yield "%-18s %d packets, %d bytes on %d entries" % (table, packets, size, len(counted))
        for entry in sorted(counted, key=lambda entry: -int(entry["data"][_COUNTED[0]]))[:10]:
            yield "    " + line(entry)


def drop_lines(snapshot: Snapshot) -> Iterator[str]:
    """Lines: dropped packets by reason."""
    for table, reasons in DROPS.items():
        rows = {_field(entry["key"], "$COUNTER_INDEX"): entry["data"].get(_COUNTED[0], 0) for entry in snapshot.get(table, {"entries": []})["entries"]}
        for row, reason in reasons.items():
            if row in rows:
                yield "dropped  %-16s %d packets" % (reason, rows[row])


def call_lines(snapshot: Snapshot, where: str) -> Iterator[str]:
    """Lines: the entries of a call, found by a relay address and port of it. Raises ReadoutError.

    Every entry names both of the call's relay ports: where its packets arrive and where they leave from; RTCP is one port up.
    """
    address, port = _where(where)
    wanted, seen, found = {(address, port & ~1)}, set(), []
    entries = [entry for table in RELAYS for entry in snapshot.get(table, {"entries": []})["entries"]]
    while wanted:
        spot = wanted.pop()
        seen.add(spot)
        for entry in entries:
            arrival, departure = _arrival(entry), _departure(entry)
            if spot in (_even(arrival), _even(departure)) and entry not in found:
                found.append(entry)
                wanted.update({_even(arrival), _even(departure)} - seen)
    if not found:
        yield "no entry at %s: its packets go on to the relay server" % where
    for entry in found:
        yield line(entry)


def _where(text: str) -> tuple:
    host, _, port = text.rpartition(":")
    try:
        return ipaddress.ip_address(host.strip("[]")), int(port)
    except ValueError:
        raise ReadoutError("%r is not ADDRESS:PORT, [ADDRESS]:PORT for IPv6" % text) from None


def _even(spot: tuple) -> tuple:
    return spot[0], spot[1] & ~1


def _field(fields: Dict[str, Any], name: str) -> Any:
    """A field by the last word of its name; None where there is none."""
    for full, value in fields.items():
        if full.rpartition(".")[2] == name:
            return value
    return None


def _address(value: Any, six: bool) -> Any:
    """An address as bfrt_python gives it, a number or text."""
    if isinstance(value, str):
        return ipaddress.ip_address(value)
    return ipaddress.IPv6Address(value) if six else ipaddress.IPv4Address(value)


def _six(entry: Dict[str, Any]) -> bool:
    return any("ipv6" in name for name in entry["key"])


def _arrival(entry: Dict[str, Any]) -> tuple:
    return _address(_field(entry["key"], "dst_addr"), _six(entry)), int(_field(entry["key"], "dst_port"))


def _departure(entry: Dict[str, Any]) -> tuple:
    """The relay address and port that the packets leave from: the old destination address unless the action has its own."""
    address = _field(entry["data"], "src_addr")
    out = _arrival(entry)[0] if address is None else _address(address, _out_six(entry))
    return out, int(_field(entry["data"], "src_port"))


def _out_six(entry: Dict[str, Any]) -> bool:
    action = (entry["action"] or "").rpartition(".")[2]
    return action.endswith("_v6") or (_six(entry) and not action.endswith("_v4"))


def line(entry: Dict[str, Any]) -> str:
    """One entry for people."""
    source = _spot(_address(_field(entry["key"], "src_addr"), _six(entry)), _field(entry["key"], "src_port"))
    text = "%s > %s" % (source, _spot(*_arrival(entry)))
    if _field(entry["data"], "dst_port") is not None:
        target = _spot(_address(_field(entry["data"], "dst_addr"), _out_six(entry)), _field(entry["data"], "dst_port"))
        text += "  leaves as  %s > %s" % (_spot(*_departure(entry)), target)
    more = ["%s %s" % (what, entry["data"][name]) for name, what in (("$COUNTER_SPEC_PKTS", "packets"), ("$COUNTER_SPEC_BYTES", "bytes"), ("$ENTRY_HIT_STATE", "state")) if name in entry["data"]]
    return text + ("  (%s)" % ", ".join(more) if more else "")


def _spot(address: Any, port: int) -> str:
    return ("[%s]:%s" if address.version == 6 else "%s:%s") % (address, port)


def show(snapshot: Snapshot, where: Optional[str], tell: Callable[[str], None] = print) -> None:
    """Print what there is to print. Raises ReadoutError."""
    for part in (occupancy_lines(snapshot), counter_lines(snapshot), drop_lines(snapshot), call_lines(snapshot, where) if where else ()):
        for text in part:
            tell(text)


def dry(argv: list) -> int:
    """Dry mode; the exit status."""
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshot", help="a file written with SHUNT_SNAPSHOT")
    parser.add_argument("--call", metavar="ADDRESS:PORT", help="a relay address and port of a call")
    options = parser.parse_args(argv)
    try:
        with open(options.snapshot, encoding="utf-8") as stream:
            show(json.load(stream), options.call)
    except (OSError, ValueError, ReadoutError) as error:
        print("%s: %s" % (options.snapshot, error), file=sys.stderr)
        return 1
    return 0


def on_switch(bfrt: Any, tell: Callable[[str], None] = print) -> None:
    """What bfshell -b runs."""
    try:
        snapshot = read(bfrt)
        path = os.environ.get("SHUNT_SNAPSHOT")
        if path:
            with open(path, "w", encoding="utf-8") as stream:
                json.dump(snapshot, stream)
        show(snapshot, os.environ.get("SHUNT_CALL"), tell)
    except (OSError, ReadoutError) as error:
        tell("readout: %s" % error)


def occupancy() -> None:
    """In bfshell: how full the tables are now."""
    print("\n".join(occupancy_lines(read(globals()["bfrt"]))))


def counters() -> None:
    """In bfshell: what was counted so far."""
    snapshot = read(globals()["bfrt"])
    print("\n".join(list(counter_lines(snapshot)) + list(drop_lines(snapshot))))


def call(where: str) -> None:
    """In bfshell: the entries of the call with this relay address and port."""
    print("\n".join(call_lines(read(globals()["bfrt"]), where)))


if "bfrt" in globals():
    on_switch(globals()["bfrt"])
elif __name__ == "__main__":
    sys.exit(dry(sys.argv[1:]))
