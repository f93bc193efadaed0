"""Reading all facts that the checks of a configuration need."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from shunt.config.model import Config
from shunt.doctor import services, storage
from shunt.doctor.facts import Account, Facts, Ports, Unknown
from shunt.doctor.host import files, links, output, peers, sockets, system
from shunt.doctor.host.parallel import Later
from shunt.doctor.peers import ASKED, BUILTIN

# Of a whole check. A relay is asked five times, one second each at most; a Redis is connected to and asked three times.
_LOCAL_S, _ANSWERS_S = 5.0, 5.0


def read(config: Config, programs: Mapping[str, str]) -> Facts:
    """Everything that the checks need, within seconds. programs: paths of the daemons; one that is missing there is not installed."""
    later_links = {name: Later(partial(links.read, name, config.softswitch.pin_dir if config.softswitch is not None else ""), _LOCAL_S) for _, name in config.interfaces()}
    target = Later(partial(peers.connect, config.data_plane.target), _ANSWERS_S) if config.data_plane is not None else None
    relays = {relay.name: Later(partial(peers.rtpengine, relay.socket) if relay.is_rtpengine else partial(peers.rtpproxy, relay.socket, ASKED), _ANSWERS_S) for relay in config.relays}
    if config.builtin_relay is not None:
        relays[BUILTIN] = Later(partial(peers.rtpproxy, config.builtin_relay.listen[0], ASKED), _ANSWERS_S)
    redis = Later(partial(peers.redis, config.journal), _ANSWERS_S) if config.journal is not None and config.journal.redis is not None else None
    agent = Later(partial(peers.agent, config.admin.socket), _LOCAL_S) if config.serves_agent else None
    judged = Later(partial(peers.health, config.api), _ANSWERS_S) if config.serves_agent else None
    versions = {name: Later(partial(system.version, programs[name]), _LOCAL_S) for name in services.programs(config) if name in programs}
    chains = Later(system.chains, _LOCAL_S)
    policies = Later(partial(output.policies, [address for _, address, _ in config.media_ranges()]), _LOCAL_S)
    networks = Later(output.networks, _LOCAL_S)
    ports = Later(partial(_ports, config), _LOCAL_S)
    mounts, clock = Later(system.mounts, _LOCAL_S), Later(system.clock, _LOCAL_S)
    secrets = storage.secrets(config).values()
    places = {path: Later(partial(files.place, path), _LOCAL_S) for path in {*storage.folders(config).values(), *secrets}}
    found_ports = ports.result()
    if isinstance(found_ports, Unknown):
        found_ports = Ports(found_ports, (), found_ports, dict.fromkeys(_addresses(config), True))
    return Facts(
        links={name: later.result() for name, later in later_links.items()},
        kernel=system.kernel(),
        mounts=mounts.result(),
        clock=clock.result(),
        ports=found_ports,
        places={path: later.result() for path, later in places.items()},
        readable={path: files.unreadable(path) for path in secrets},
        account=_account(config),
        user=files.user(services.USER),
        groups={name: files.group(name) for name in services.socket_groups(config).values()},
        units=files.units(),
        programs={name: versions[name].result() if name in versions else None for name in services.programs(config)},
        agent=agent.result() if agent is not None else None,
        target=target.result() if target is not None else None,
        relays={name: later.result() for name, later in relays.items()},
        redis=redis.result() if redis is not None else None,
        chains=chains.result(),
        conntrack=system.conntrack(),
        policies=policies.result(),
        networks=networks.result(),
        health=judged.result() if judged is not None else None,
    )


def _addresses(config: Config) -> list[str]:
    """Addresses that should be this host's: of media, and of sockets."""
    found = [address for _, address, _ in config.media_ranges()] + [socket.host for _, socket in config.listeners() if socket.is_ip]
    return list(dict.fromkeys(found))


def _ports(config: Config) -> Ports:
    ranges = [ports for _, _, ports in config.media_ranges()]
    listeners = [socket for _, socket in config.listeners()]
    single = {(socket.scheme, socket.port) for socket in listeners if socket.is_ip}

    def wanted(row: sockets.Row) -> bool:
        return (row.kind, row.port) in single or (row.kind == "udp" and any(ports.first <= row.port <= ports.last_used for ports in ranges))

    return sockets.ports(_addresses(config), [socket.path for socket in listeners if not socket.is_ip], wanted)


def _account(config: Config) -> Account:
    """Whom the agent and the operator daemon run as, or would."""
    running = sockets.peer_uid(config.admin.socket) if config.serves_agent else None
    if running is not None:
        return files.account(running, "the running agent's")
    if (uid := files.user(services.USER)) is not None:
        return files.account(uid, "that of the units")
    return files.account(os.geteuid(), f"the one that asks: there is no user {services.USER}")
