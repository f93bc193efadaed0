"""Checks of what the host does to packets on their way out, and of parties whose packets no program sees."""

from __future__ import annotations

from collections.abc import Iterator

from shunt.calls.reasons import NOT_IN_DATA_PLANE
from shunt.config.model import Config
from shunt.doctor.facts import Agent, Facts, Network, Policy, Unknown
from shunt.doctor.finding import Finding

_SHOWN = 3
_KINDS = {
    "IPsec": ("IPsec policies", "streams that they cover stay on the relay, which the kernel encrypts for"),
    "routing": ("routing rules", "streams that they may send another way stay on the relay"),
    "translation": ("address translation", "streams that it may translate stay on the relay"),
}
_ADVICE = {
    "IPsec": "nothing, if these parties should be encrypted; a policy for SIP alone needs `proto` and ports",
    "routing": "put media into a rule by addresses (`from`, `to`), if it has to be offloaded",
    "translation": "exclude media: a rule `ip saddr ADDRESS udp sport PORTS accept` before it, with the relay's own address and ports",
}


def check(config: Config, facts: Facts) -> Iterator[Finding]:
    """One line for each kind of policy, and one about interfaces without the program."""
    if config.softswitch is None:
        return
    if isinstance(facts.policies, Unknown):
        yield Finding("unknown", "output path", facts.policies.reason)
    elif not facts.policies:
        yield Finding("ok", "output path", "no IPsec policy, routing rule or address translation applies to media")
    else:
        for kind, (subject, effect) in _KINDS.items():
            if of_kind := [policy for policy in facts.policies if policy.kind == kind]:
                yield Finding("warn", subject, f"{_listed(of_kind)}: {effect} (host-policy)", _ADVICE[kind])
    yield _elsewhere(config.softswitch.interfaces, facts)
    if facts.agent is not None:
        yield _unseen(facts.agent)


def _unseen(agent: Agent | Unknown) -> Finding:
    subject = "unseen parties"
    if isinstance(agent, Unknown):
        return Finding("unknown", subject, agent.reason)
    if not agent.unseen:
        return Finding("ok", subject, f"no stream stays on the relay because the data plane does not see its packets ({NOT_IN_DATA_PLANE})")
    found = f"{agent.unseen} streams stay on the relay: it receives a party's packets, and the data plane does not ({NOT_IN_DATA_PLANE})"
    advice = (
        f"`shunt calls --reason {NOT_IN_DATA_PLANE}` lists their calls. If the packets come by an interface without the program, add it to softswitch.interfaces; "
        "if this host's destination NAT redirects them, list the address before it in relays[].media. A party on this host or in a container on it stays on the relay"
    )
    return Finding("warn", subject, found, advice)


def _listed(policies: list[Policy]) -> str:
    more = f" and {len(policies) - _SHOWN} more" if len(policies) > _SHOWN else ""
    return "; ".join(policy.text for policy in policies[:_SHOWN]) + more


def _elsewhere(interfaces: list[str], facts: Facts) -> Finding:
    subject = "parties elsewhere"
    if isinstance(facts.networks, Unknown):
        return Finding("unknown", subject, facts.networks.reason)
    without = [network for network in facts.networks if not network.lower & set(interfaces)]
    if not without:
        return Finding("ok", subject, "each interface with an address has the program; a party on this host itself (lo) stays on the relay (not-in-data-plane)")
    found = f"{', '.join(map(_named, without))}: without the program; a party there, or on this host itself, stays on the relay (not-in-data-plane)"
    cards = [network.name for network in without if network.kind not in ("bridge", "veth", "tun", "wireguard", "ipip", "gre", "sit", "xfrm", "vti")]
    advice = f"add {', '.join(cards)} to softswitch.interfaces, if media arrives there" if cards else "nothing: the kernel forwards media of containers and tunnels"
    return Finding("warn" if cards else "ok", subject, found, advice if cards else "")


def _named(network: Network) -> str:
    return f"{network.name} ({', '.join(part for part in (network.kind, *network.networks) if part)})"
