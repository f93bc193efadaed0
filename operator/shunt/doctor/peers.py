"""Checks of what the daemons talk to: data plane, relays, Redis."""

from __future__ import annotations

from collections.abc import Iterator

from shunt.config.model import BuiltinRelay, Config, Relay
from shunt.doctor.facts import Connection, Facts, RedisAnswer, RelayAnswer, Unknown
from shunt.doctor.finding import Finding

BUILTIN = "builtin"
"""The built-in relay's name among the relays."""
# Dates of VF (crates/protocols/rtpproxy/src/capability.rs).
TTL_SUBCOMMAND, TTL_MODIFIER, QUERY, NOTIFY = 20251015, 20210524, 20080403, 20081224
ASKED = (TTL_SUBCOMMAND, TTL_MODIFIER, QUERY, NOTIFY)


def check(config: Config, facts: Facts) -> Iterator[Finding]:
    """Data plane, each relay, Redis: those that are configured."""
    if config.data_plane is not None and facts.target is not None:
        yield _target(config.data_plane.target, facts.target)
    elif config.serves_agent:
        yield Finding("ok", "data plane", "none is configured: all media stays on the relays")
    for relay in config.relays:
        yield _relay(relay.name, relay.socket, relay, facts.relays[relay.name])
    if config.builtin_relay is not None:
        yield _relay(BUILTIN, config.builtin_relay.listen[0], config.builtin_relay, facts.relays[BUILTIN])
    if facts.redis is not None:
        yield _redis(facts.redis)


def _target(target: str, found: Connection | Unknown) -> Finding:
    subject = f"data plane {target}"
    if isinstance(found, Unknown):
        return Finding("unknown", subject, found.reason)
    if found.error is None:
        return Finding("ok", subject, "takes connections")
    advice = {
        "missing": "start the softswitch (journalctl -u shunt-softswitch), or correct data_plane.target",
        "denied": "the agent's user has to be in softswitch.socket_group",
        "refused": "start the softswitch or bf_switchd there, or correct data_plane.target",
        "timeout": "is the host up, and does a firewall between drop the port?",
        "name": "correct the name in data_plane.target, or the resolver",
    }.get(found.code, "look at the softswitch's or bf_switchd's log")
    return Finding("fail", subject, found.error, advice)


def _relay(name: str, socket: str, relay: Relay | BuiltinRelay, found: RelayAnswer | Unknown) -> Finding:
    subject = f"relay {name} {socket}"
    if isinstance(found, Unknown):
        return Finding("unknown", subject, found.reason)
    if found.error is not None:
        start = "shunt-relay" if isinstance(relay, BuiltinRelay) else relay.type
        key = "builtin_relay.listen" if isinstance(relay, BuiltinRelay) else "relays[].socket"
        return Finding(
            "fail",
            subject,
            found.error,
            f"see whether {start} runs, and whether a packet filter drops commands or replies; compare {key} with its control socket, and its access list with this host's address",
        )
    if isinstance(relay, Relay) and relay.is_rtpengine:
        return Finding("ok", subject, "rtpengine, answers ping with pong")
    can = [date for date in ASKED if found.can.get(date)]
    if QUERY not in can:
        known = f"version {found.version}, without sessions' statistics (VF {QUERY})"
        return Finding("warn", subject, f"{known}: its packets are not counted", "is it an rtpengine? then `type: rtpengine` and its NG socket; otherwise a newer rtpproxy")
    if TTL_SUBCOMMAND in can:
        keeps = "sessions are kept with S ttl="
    elif TTL_MODIFIER in can:
        keeps = "sessions are kept with T"
    else:
        keeps = "sessions are kept with an L every third of ttl"
    notices = "time-out notices" if NOTIFY in can else "no time-out notices (rtpproxy -n)"
    return Finding("ok", subject, f"version {found.version}; {keeps}; {notices}")


def _redis(found: RedisAnswer | Unknown) -> Finding:
    subject = "Redis"
    if isinstance(found, Unknown):
        return Finding("unknown", subject, found.reason)
    if found.error is not None:
        return Finding("fail", subject, found.error, "start Redis, or correct journal.redis and journal.redis_password_file")
    if found.appends is None:
        return Finding("unknown", subject, "answers, but does not report whether it stores data (INFO persistence)")
    if not found.appends:
        return Finding("warn", subject, "answers, but appendonly is off: it forgets calls when it restarts", "redis-cli config set appendonly yes, and in redis.conf")
    return Finding("ok", subject, "answers, appendonly is on")
