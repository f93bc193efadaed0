"""The output path of a host, and interfaces without the program."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from shunt.doctor.facts import Agent, Network, Policy, Unknown
from shunt.doctor.host import output as host
from shunt.doctor.output import check
from tests.doctor.hosts import by_subject, config, facts

MEDIA = ["192.0.2.1", "192.0.2.2"]


def test_each_kind_of_policy_is_named() -> None:
    assert by_subject(check(config(), facts()))["output path"].verdict == "ok"
    assert by_subject(check(config(), facts(policies=Unknown("why"))))["output path"].verdict == "unknown"
    kinds = (Policy("IPsec", "src 0.0.0.0/0 dst 198.51.100.0/24"), Policy("routing", "rule 7 by port, table 9"), *(Policy("translation", f"chain {n}") for n in range(5)))
    found = by_subject(check(config(), facts(policies=kinds)))
    assert {"IPsec policies", "routing rules", "address translation"} <= set(found) and "output path" not in found
    assert "198.51.100.0/24" in found["IPsec policies"].found and "host-policy" in found["IPsec policies"].found
    assert found["address translation"].found.count("chain") == 3 and "2 more" in found["address translation"].found


@pytest.mark.parametrize(
    ("networks", "verdict", "words"),
    [
        ([], "ok", "each interface"),
        ([Network("eth0", "", frozenset({"eth0"}), ("192.0.2.1/24",))], "ok", "each interface"),
        ([Network("br0", "bridge", frozenset({"br0", "eth1"}), ("192.0.2.1/24",))], "ok", "each interface"),
        ([Network("docker0", "bridge", frozenset({"docker0", "veth1"}), ("172.17.0.1/16",))], "ok", "docker0 (bridge, 172.17.0.1/16)"),
        ([Network("eth2", "", frozenset({"eth2"}), ("10.0.0.1/8",)), Network("wg0", "wireguard", frozenset({"wg0"}), ("10.9.0.1/24",))], "warn", "eth2 (10.0.0.1/8), wg0"),
    ],
)
def test_interfaces_without_the_program(networks: list[Network], verdict: str, words: str) -> None:
    finding = by_subject(check(config(), facts(networks=tuple(networks))))["parties elsewhere"]
    assert finding.verdict == verdict and words in finding.found and "not-in-data-plane" in finding.found
    assert (finding.advice != "") == (verdict == "warn")


@pytest.mark.parametrize(
    ("agent", "verdict", "words"),
    [
        (Agent("0.2.0"), "ok", "no stream"),
        (Agent("0.2.0", unseen=3), "warn", "3 streams stay on the relay"),
        (Unknown("why"), "unknown", "why"),
    ],
)
def test_streams_that_the_data_plane_does_not_see(agent: Agent | Unknown, verdict: str, words: str) -> None:
    assert "unseen parties" not in by_subject(check(config(), facts(agent=None)))
    finding = by_subject(check(config(), facts(agent=agent)))["unseen parties"]
    assert finding.verdict == verdict and words in finding.found
    assert ("softswitch.interfaces" in finding.advice) == (verdict == "warn")


def test_the_words_of_ip() -> None:
    text = """src 10.0.0.1/32 dst 192.0.2.9/32
\tdir out priority 0 ptype main
\ttmpl src 0.0.0.0 dst 0.0.0.0
\t\tproto esp reqid 0 mode transport
src 0.0.0.0/0 dst 10.0.0.0/8
\tdir out priority 5
src 0.0.0.0/0 dst 198.51.100.0/24
\tdir out action block priority 0
"""
    assert list(host.ipsec(text)) == ["src 10.0.0.1/32 dst 192.0.2.9/32", "src 0.0.0.0/0 dst 198.51.100.0/24"]
    listed: list[dict[str, Any]] = [
        {"priority": 0, "src": "all", "table": "local"},
        {"priority": 5, "src": "all", "fwmark": "0x7", "table": "9"},
        {"priority": 6, "src": "10.0.0.0", "srclen": 8, "table": "9"},
    ]
    assert list(host.rules(listed)) == ["rule 5 by mark, table 9"]


def test_lower_interfaces_and_addresses() -> None:
    def address(local: str, scope: str = "global") -> dict[str, Any]:
        return {"local": local, "prefixlen": 24, "scope": scope}

    listed = [
        {"ifname": "lo", "flags": ["LOOPBACK", "UP"], "addr_info": [address("127.0.0.1", "host")]},
        {"ifname": "eth0", "flags": ["UP"], "master": "bond0", "addr_info": []},
        {"ifname": "bond0", "flags": ["UP"], "linkinfo": {"info_kind": "bond"}, "addr_info": [address("192.0.2.1"), address("fe80::1", "link")]},
        {"ifname": "bond0.7", "flags": ["UP"], "link": "bond0", "linkinfo": {"info_kind": "vlan"}, "addr_info": [address("192.0.3.1")]},
        {"ifname": "docker0", "flags": ["NO-CARRIER", "UP"], "linkinfo": {"info_kind": "bridge"}, "addr_info": [address("172.17.0.1")]},
    ]
    found = {network.name: network for network in host.parse_networks(listed)}
    assert set(found) == {"bond0", "bond0.7"}
    assert found["bond0"].lower == {"bond0", "eth0"} and found["bond0"].networks == ("192.0.2.1/24",)
    assert found["bond0.7"].lower == {"bond0.7", "bond0", "eth0"}


@pytest.mark.netns
@pytest.mark.parametrize(
    ("commands", "translates"),
    [
        ([], False),
        (["iptables -t nat -A POSTROUTING -o eth0 -j MASQUERADE"], True),
        (["iptables -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE"], False),
        (["iptables -t nat -A POSTROUTING -s 192.0.2.0/24 -j MASQUERADE"], True),
        (["iptables -t nat -A POSTROUTING -p tcp -j MASQUERADE"], False),
        (["iptables -t nat -N x", "iptables -t nat -A x -j MASQUERADE", "iptables -t nat -A POSTROUTING -j x"], True),
        (["nft add table ip n", "nft add chain ip n p { type nat hook postrouting priority 100; }", "nft add rule ip n p ip saddr 10.0.0.0/8 snat to 192.0.2.9"], False),
        (["nft add table ip n", "nft add chain ip n p { type nat hook postrouting priority 100; }", "nft add rule ip n p oifname eth0 masquerade"], True),
    ],
)
def test_translations_of_the_real_netfilter(commands: list[str], translates: bool) -> None:
    script = "\n".join([*(f"{command.split()[0]} '{chr(39).join(command.split(' ', 1)[1:])}'" if command.startswith("nft") else command for command in commands), "nft --json list ruleset"])
    done = subprocess.run(["unshare", "--net", "sh", "-ec", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = list(host.translations(json.loads(done.stdout)["nftables"], MEDIA))
    assert bool(found) == translates, done.stdout
