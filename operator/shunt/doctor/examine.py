"""All checks, in the order in which an operator would go."""

from __future__ import annotations

from shunt.config.model import Config
from shunt.doctor import health, interfaces, kernel, output, peers, ports, services, storage
from shunt.doctor.facts import Facts
from shunt.doctor.finding import Group

_CHECKS = (
    ("Kernel and clock", kernel.check),
    ("Network interfaces", interfaces.check),
    ("Output path", output.check),
    ("Accounts, units, versions", services.check),
    ("Folders and files", storage.check),
    ("Ports and sockets", ports.check),
    ("Data plane, relays, Redis", peers.check),
    ("Calls, packets, programs now", health.check),
)


def examine(config: Config, facts: Facts) -> list[Group]:
    """What is found on a host for a configuration, by group; groups without a finding are left out."""
    groups = [Group(title, tuple(check(config, facts))) for title, check in _CHECKS]
    return [group for group in groups if group.findings]
