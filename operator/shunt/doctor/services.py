"""Checks of the accounts, the systemd units and the versions of the daemons."""

from __future__ import annotations

from collections.abc import Iterator

from shunt import __version__
from shunt.config.model import Config
from shunt.config.values import SocketAddress
from shunt.doctor.facts import Agent, Facts, Unit, Unknown
from shunt.doctor.finding import Finding

USER = "shunt"
PLANE = frozenset({"CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN"})
_PRIVILEGED_PORTS = 1024
# Sections whose sockets a unit binds.
_LOW_PORTS = {"shunt-agent.service": ("control", "hep"), "shunt-relay.service": ("builtin_relay",), "shunt-edge.service": ("edge",), "shunt-edge-local.service": ("edge",)}


def programs(config: Config) -> list[str]:
    """Daemons that the configuration needs."""
    needed = ["shunt-agent"] if config.serves_agent else []
    needed += ["shunt-relay"] if config.builtin_relay is not None else []
    needed += ["shunt-edge"] if config.edge is not None else []
    needed += ["shunt-mixer"] if config.mixer is not None else []
    return needed + (["shunt-softswitch"] if config.softswitch is not None else [])


def socket_groups(config: Config) -> dict[str, str]:
    """Groups that may use Unix sockets, by the configuration's key, where there is such a socket."""
    found = {}
    if config.serves_agent:
        found["admin.socket_group"] = config.admin.socket_group
        if any(not SocketAddress.parse(text).is_ip for text in config.control.listen):
            found["control.socket_group"] = config.control.socket_group
    if config.builtin_relay is not None and any(not SocketAddress.parse(text).is_ip for text in config.builtin_relay.listen):
        found["builtin_relay.socket_group"] = config.builtin_relay.socket_group
    if config.edge is not None:
        found["edge.socket_group"] = config.edge.socket_group
    if config.mixer is not None and config.mixer.listen.startswith("unix:"):
        found["mixer.socket_group"] = config.mixer.socket_group
    if config.softswitch is not None and any(text.startswith("unix:") for text in config.softswitch.listen):
        found["softswitch.socket_group"] = config.softswitch.socket_group
    return found


def check(config: Config, facts: Facts) -> Iterator[Finding]:
    """User, groups, units, versions."""
    if facts.user is None:
        yield Finding("warn", f"user {USER}", "there is none: the units do not start", "systemd-sysusers, or install the package; not needed where daemons run as another user")
    else:
        yield Finding("ok", f"user {USER}", f"uid {facts.user}")
    for key, name in socket_groups(config).items():
        yield _group(key, name, facts)
    yield from _units(config, facts)
    for name in programs(config):
        yield _program(name, facts.programs[name])
    if config.serves_agent:
        yield _agent(facts.agent)


def _group(key: str, name: str, facts: Facts) -> Finding:
    gid = facts.groups[name]
    if gid is None:
        return Finding("warn", key, f"there is no group {name}: only the daemon's own user may use its sockets", f"groupadd --system {name}, or correct {key}")
    if facts.account.uid != 0 and gid not in facts.account.gids:
        return Finding("fail", key, f"{facts.account.name} is not in group {name}", f"usermod -aG {name} {facts.account.name}, then restart the agent")
    return Finding("ok", key, f"{name} (gid {gid}), {facts.account.name} may use such sockets")


def _units(config: Config, facts: Facts) -> Iterator[Finding]:
    if not facts.units:
        yield Finding("unknown", "units", "no service file of Shunt is installed: user and capabilities depend on what starts the daemons")
        return
    for unit in facts.units:
        yield _unit(config, unit)


def capabilities(unit: Unit) -> frozenset[str] | None:
    """The bounding set; None: not limited. A list that begins with ~ takes away from all, which is not resolved here and counts as not limited."""
    values = unit.settings.get("CapabilityBoundingSet")
    if values is None or any(value.startswith("~") for value in values):
        return None
    return frozenset(word.upper() for value in values for word in value.split())


def _unit(config: Config, unit: Unit) -> Finding:
    subject = unit.name
    held, user = capabilities(unit), (unit.settings.get("User") or ("root",))[-1]
    if unit.name == "shunt-softswitch.service":
        missing = PLANE - held if held is not None else frozenset()
        if user != "root":
            return Finding("fail", subject, f"User={user} ({unit.path}): XDP programs cannot be attached", "remove User=")
        if missing:
            return Finding("fail", subject, f"CapabilityBoundingSet lacks {', '.join(sorted(missing))} ({unit.path})", f"CapabilityBoundingSet={' '.join(sorted(PLANE))}")
        return Finding("ok", subject, "root, with NET_ADMIN, BPF, PERFMON and SYS_ADMIN")
    if user == "root":
        return Finding("warn", subject, f"runs as root ({unit.path})", f"User={USER}: it needs no other rights")
    if unit.name in _LOW_PORTS and (low := _low_ports(config, unit.name)):
        ambient = frozenset(word.upper() for value in unit.settings.get("AmbientCapabilities", ()) for word in value.split())
        if "CAP_NET_BIND_SERVICE" not in ambient or (held is not None and "CAP_NET_BIND_SERVICE" not in held):
            both = "AmbientCapabilities=CAP_NET_BIND_SERVICE and CapabilityBoundingSet=CAP_NET_BIND_SERVICE in a drop-in"
            return Finding("fail", subject, f"may not bind ports below {_PRIVILEGED_PORTS}: {', '.join(low)}", both)
    return Finding("ok", subject, f"user {user}, {'all capabilities that it is given' if held is None else ', '.join(sorted(held)) or 'no capabilities'}")


def _low_ports(config: Config, unit: str) -> list[str]:
    sections = _LOW_PORTS[unit]
    return [str(socket) for where, socket in config.listeners() if where[0] in sections and socket.is_ip and socket.port < _PRIVILEGED_PORTS]


def _program(name: str, found: str | None | Unknown) -> Finding:
    if isinstance(found, Unknown):
        return Finding("unknown", name, found.reason)
    if found is None:
        return Finding("fail", name, "there is no such program", "install the package again, or `make daemons` in a checkout")
    if found != __version__:
        return Finding("fail", name, f"version {found}, but this command is {__version__}", "install both from one package")
    return Finding("ok", name, f"version {found}")


def _agent(found: Agent | Unknown | None) -> Finding:
    subject = "running agent"
    if found is None:
        return Finding("warn", subject, "none: no call is served", "start it: systemctl start shunt-agent (its log says why it ended)")
    if isinstance(found, Unknown):
        return Finding("unknown", subject, found.reason)
    if found.version != __version__:
        return Finding("warn", subject, f"version {found.version}, but {__version__} is installed", "systemctl restart shunt-agent; calls continue")
    return Finding("ok", subject, f"version {found.version}")
