"""What this host does to packets of local programs on their way out, and which networks it is on: read with `ip` and `nft`."""

from __future__ import annotations

import ipaddress
import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shunt.doctor.facts import Network, Policy, Unknown

_PROGRAM_S = 1.0
_SELECTORS = {"fwmark": "mark", "uid_start": "user", "sport": "port", "sport_start": "port", "dport": "port", "dport_start": "port", "tos": "TOS"}
_TRANSLATIONS = ("masquerade", "snat", "dnat", "redirect", "xt")


def _run(name: str, *arguments: str) -> str:
    """Standard output. Raises OSError where the program is missing or fails."""
    program = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if program is None:
        raise FileNotFoundError(2, f"the program {name} is not installed")
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=_PROGRAM_S, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(0, f"{name} does not end within {_PROGRAM_S:g} s") from None
    if done.returncode:
        raise OSError(0, f"{name}: {(done.stderr.strip() or 'failed').splitlines()[0]}")
    return done.stdout


def policies(media: Sequence[str]) -> tuple[Policy, ...] | Unknown:
    """IPsec policies for output, routing rules by more than addresses, and translations of packets that `media` addresses send. Raises OSError."""
    found = [Policy("IPsec", text) for text in ipsec(_run("ip", "xfrm", "policy", "list", "dir", "out"))]
    for family in ("-4", "-6"):
        found += [Policy("routing", text) for text in rules(json.loads(_run("ip", family, "--json", "rule") or "[]"))]
    try:
        ruleset = json.loads(_run("nft", "--json", "list", "ruleset"))
    except FileNotFoundError:
        ruleset = {"nftables": []}
    found += [Policy("translation", text) for text in translations(ruleset["nftables"], media)]
    return tuple(found)


def ipsec(text: str) -> Iterator[str]:
    """The policies in the output of `ip xfrm policy` that encrypt or block: their first lines."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line[:1].isspace() and blocks:
            blocks[-1].append(line.strip())
        elif line.startswith("src "):
            blocks.append([line.strip()])
    for first, *others in blocks:
        if any(line.startswith("tmpl ") or "action block" in line for line in others):
            yield first


def rules(listed: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The rules of `ip --json rule` that select by more than addresses and interfaces."""
    for rule in listed:
        if by := dict.fromkeys(word for key, word in _SELECTORS.items() if key in rule):
            yield f"rule {rule.get('priority')} by {', '.join(by)}, table {rule.get('table', '-')}"


def translations(listed: Iterable[Mapping[str, Any]], media: Sequence[str]) -> Iterator[str]:
    """The postrouting chains of `nft --json list ruleset` that may translate packets from these addresses."""
    items = list(listed)
    bases = [item["chain"] for item in items if item.get("chain", {}).get("hook") == "postrouting" and item["chain"].get("type") == "nat"]
    of_chain: dict[tuple[str, str, str], list[Sequence[Any]]] = {}
    for item in items:
        if (rule := item.get("rule")) is not None:
            of_chain.setdefault((rule["family"], rule["table"], rule["chain"]), []).append(rule["expr"])
    for base in bases:
        key = (base["family"], base["table"], base["name"])
        if _translates(key, of_chain, media, set()):
            yield f"nftables chain {' '.join(key)}"


def _translates(key: tuple[str, str, str], of_chain: Mapping[tuple[str, str, str], list[Sequence[Any]]], media: Sequence[str], seen: set[tuple[str, str, str]]) -> bool:
    if key in seen:
        return False
    seen.add(key)
    for expressions in of_chain.get(key, ()):
        if any(_excludes(expression, media) for expression in expressions):
            continue
        for expression in expressions:
            if any(name in expression for name in _TRANSLATIONS) and _is_target(expression):
                return True
            for word in ("jump", "goto"):
                if word in expression and _translates((*key[:2], expression[word]["target"]), of_chain, media, seen):
                    return True
    return False


def _is_target(expression: Mapping[str, Any]) -> bool:
    """Matches of iptables are no targets; what nft does not understand is one."""
    described = expression.get("xt")
    return not isinstance(described, Mapping) or (described.get("type") == "target" and described.get("name") in ("MASQUERADE", "SNAT", "NETMAP", "REDIRECT"))


def _excludes(expression: Mapping[str, Any], media: Sequence[str]) -> bool:
    """Whether a rule with this expression cannot match UDP packets from these addresses."""
    match expression.get("match"):
        case {"op": "==", "left": {"payload": {"field": "saddr"}}, "right": right}:
            return not any(_contains(right, address) for address in media)
        case {"op": "==", "left": {"meta": {"key": "l4proto"}} | {"payload": {"field": "protocol" | "nexthdr"}}, "right": str(protocol)}:
            return protocol != "udp"
        case {"left": {"payload": {"protocol": "tcp" | "sctp" | "icmp"}}}:
            return True
    return False


def _contains(right: object, address: str) -> bool:
    match right:
        case str():
            text = right
        case {"prefix": {"addr": str(network), "len": int(length)}}:
            text = f"{network}/{length}"
        case _:
            return True
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(text, strict=False)
    except ValueError:
        return True


def networks() -> tuple[Network, ...]:
    """Interfaces that are up and have addresses other than link-local ones. Raises OSError."""
    return parse_networks(json.loads(_run("ip", "--json", "--details", "address") or "[]"))


def parse_networks(listed: Sequence[Mapping[str, Any]]) -> tuple[Network, ...]:
    """The same, from what `ip --json --details address` says."""
    links = [link for link in listed if "ifname" in link]
    below: dict[str, set[str]] = {link["ifname"]: {link["ifname"]} for link in links}
    for link in links:
        if "master" in link:
            below.setdefault(link["master"], set()).add(link["ifname"])
        if "link" in link and link.get("linkinfo", {}).get("info_kind") == "vlan":
            below[link["ifname"]].add(link["link"])
    found = []
    for link in links:
        name, flags = link["ifname"], link.get("flags", ())
        prefixes = tuple(f"{each['local']}/{each['prefixlen']}" for each in link.get("addr_info", ()) if each.get("scope") == "global" and "local" in each)
        if "UP" not in flags or "NO-CARRIER" in flags or "LOOPBACK" in flags or not prefixes:
            continue
        lower, more = set[str](), {name}
        while more:
            lower |= more
            more = {low for each in more for low in below.get(each, ())} - lower
        found.append(Network(name, link.get("linkinfo", {}).get("info_kind", ""), frozenset(lower), prefixes))
    return tuple(found)
