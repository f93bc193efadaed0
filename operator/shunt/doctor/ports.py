"""Checks of UDP and TCP ports: those of media, and the sockets that the daemons listen on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from shunt.config.model import Config, dotted
from shunt.config.section import Location
from shunt.config.values import PortRange, SocketAddress, addresses_overlap
from shunt.doctor.facts import Bound, Facts, Process, Unknown
from shunt.doctor.finding import Finding

_DAEMONS = ("shunt-agent", "shunt-relay", "shunt-edge", "shunt-mixer", "shunt-softswitch")
# Who listens on the sockets of a section.
_LISTENS = {
    "control": "shunt-agent",
    "hep": "shunt-agent",
    "builtin_relay": "shunt-relay",
    "edge": "shunt-edge",
    "mixer": "shunt-mixer",
    "conference": "shunt operator",
    "api": "shunt operator",
    "softswitch": "shunt-softswitch",
}
# Whose sockets belong into a media range, by the section that the range is of.
_MEDIA = {"relays": ("rtpproxy", "rtpengine"), "builtin_relay": ("shunt-relay",), "conference": ("shunt-agent",), "edge": ("shunt-edge",)}
_SHOWN = 3


def check(config: Config, facts: Facts) -> Iterator[Finding]:
    """Each media range, then each listening socket."""
    ranges = list(config.media_ranges())
    for where, address, ports in ranges:
        if not facts.ports.local[address]:
            yield _elsewhere(where, address, ports, config.softswitch is not None)
            continue
        yield _ephemeral(_subject(address, ports), ports, facts, [other for _, there, other in ranges if facts.ports.local[there]])
        yield _foreign(f"sockets in {_subject(address, ports)}", address, ports, _MEDIA[str(where[0])], facts)
    for where, wanted in config.listeners():
        if where[0] != "api" or config.serves_agent:  # a data-plane host's file has the default too
            yield _listener(where, wanted, facts)


def role(process: Process) -> str:
    """Which part of Shunt a process is, or its name. A daemon's first argument is its name, whatever thread or file it is."""
    first = PurePosixPath(process.arguments[0]).name if process.arguments else process.name
    if first in _DAEMONS:
        return first
    of_shunt = any(PurePosixPath(word).name == "shunt" or word == "shunt.cli.main" for word in process.arguments[:4])
    return "shunt operator" if of_shunt and "operator" in process.arguments else process.name


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int] | None:
    first, last = max(one[0], other[0]), min(one[1], other[1])
    return (first, last) if first <= last else None


def unreserved(ports: PortRange, ephemeral: tuple[int, int], reserved: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The first run of media ports that the kernel gives to any socket that asks for no particular port."""
    common = _overlap((ports.first, ports.last_used), ephemeral)
    if common is None:
        return None
    first, last = common
    for start, end in sorted(reserved):
        if start > first:
            return first, min(last, start - 1)
        if end >= first:
            first = end + 1
        if first > last:
            return None
    return first, last


def _subject(address: str, ports: PortRange) -> str:
    return f"media ports {f'[{address}]' if ':' in address else address}:{ports}"


def _elsewhere(where: Location, address: str, ports: PortRange, softswitch: bool) -> Finding:
    subject, found = _subject(address, ports), f"{address} is not an address of this host"
    if where[0] == "builtin_relay":
        return Finding("fail", subject, found, "correct builtin_relay.addresses, or add the address (`ip address`)")
    if softswitch:
        return Finding(
            "warn",
            subject,
            found,
            f"right if another host has it; a relay in a container here: give the address that phones send to, or start it with the host's network; otherwise correct {dotted(where[:-1])}, or add the address (`ip address`)",
        )
    return Finding("unknown", subject, f"{found}: the ports are another host's, or a switch's")


def _ephemeral(subject: str, ports: PortRange, facts: Facts, ranges: Sequence[PortRange]) -> Finding:
    ephemeral = facts.ports.ephemeral
    if isinstance(ephemeral, Unknown):
        return Finding("unknown", subject, ephemeral.reason)
    common = unreserved(ports, ephemeral, facts.ports.reserved)
    if common is None:
        return Finding("ok", subject, "the kernel gives none of them to other sockets")
    found = f"{common[0]}-{common[1]} lie in ip_local_port_range ({ephemeral[0]}-{ephemeral[1]}): the kernel may give them to any program"
    # The setting is one list: what is there already stays.
    wanted = [*facts.ports.reserved, *dict.fromkeys((each.first, each.last_used) for each in ranges)]
    return Finding("warn", subject, found, f"sysctl -w net.ipv4.ip_local_reserved_ports={','.join(f'{first}-{last}' for first, last in wanted)}")


def _foreign(subject: str, address: str, ports: PortRange, expected: Sequence[str], facts: Facts) -> Finding:
    bound = facts.ports.bound
    if isinstance(bound, Unknown):
        return Finding("unknown", subject, bound.reason)
    inside = [b for b in bound if b.kind == "udp" and ports.first <= b.port <= ports.last_used and addresses_overlap(b.host, address)]
    strange = [(b, b.holder) for b in inside if isinstance(b.holder, Process) and role(b.holder) not in expected]
    if strange:
        words = [f"{b.port} by {holder.name} (pid {holder.pid})" for b, holder in strange[:_SHOWN]]
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        return Finding("warn", subject, f"taken by programs other than {' or '.join(expected)}: {', '.join(words)}{more}", "move these programs to other ports")
    if unknown := [b.holder for b in inside if isinstance(b.holder, Unknown)]:
        return Finding("unknown", subject, f"{len(unknown)} are in use by unknown processes: {unknown[0].reason}")
    return Finding("ok", subject, f"{len(inside)} in use by {' or '.join(expected)}" if inside else "none in use")


def _listener(where: Location, wanted: SocketAddress, facts: Facts) -> Finding:
    subject, expected = f"{dotted(where)} {wanted}", _LISTENS[str(where[0])]
    bound = facts.ports.bound
    if isinstance(bound, Unknown):
        return Finding("unknown", subject, bound.reason)
    wildcard = wanted.host in ("0.0.0.0", "::")
    if where[0] == "edge" and not wildcard and not facts.ports.local[wanted.host]:
        return Finding("unknown", subject, f"{wanted.host} is not an address of this host: correct if the edge has a network namespace or a host of its own")
    if wanted.is_ip and not wildcard and not facts.ports.local[wanted.host]:
        return Finding("fail", subject, f"{wanted.host} is not an address of this host", f"correct {dotted(where)}, or add the address (`ip address`)")
    holders = [b.holder for b in bound if _same(b, wanted)]
    if not holders:
        return Finding("ok", subject, f"free: {expected} does not run, or listens elsewhere")
    processes = [holder for holder in holders if isinstance(holder, Process)]
    if others := [process for process in processes if role(process) != expected]:
        return Finding("fail", subject, f"taken by {role(others[0])} (pid {others[0].pid}), not by {expected}", f"end that program, or correct {dotted(where)}")
    if processes:
        return Finding("ok", subject, f"held by {expected} (pid {processes[0].pid})")
    reason = next(holder.reason for holder in holders if isinstance(holder, Unknown))
    return Finding("unknown", subject, f"in use by an unknown process: {reason}")


def _same(bound: Bound, wanted: SocketAddress) -> bool:
    if not wanted.is_ip:
        return bound.kind == "unix" and bound.path == wanted.path
    return bound.kind == wanted.scheme and bound.port == wanted.port and addresses_overlap(bound.host, wanted.host)
