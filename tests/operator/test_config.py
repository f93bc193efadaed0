"""The configuration: what is taken, and where exactly errors point."""

from __future__ import annotations

import ipaddress
import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shunt.config import sip_server
from shunt.config.load import ConfigError, api_token, load, loads
from shunt.config.model import Config, Section
from shunt.config.values import PortRange, SocketAddress, host_port

ADVERTISED = """relays: [{name: r, socket: "udp:127.0.0.1:1", media: [
  {address: "%s", advertised: "%s", ports: 20000-20999}, {address: "%s", advertised: "%s", ports: 20000-20999}]}]"""
MINIMAL = """\
relays:
  - name: r1
    socket: udp:127.0.0.1:22222
"""
FULL = """\
control: {listen: ["udp:127.0.0.1:22221", "tcp:[::1]:22221", "unix:/run/shunt/c.sock", "cunix:/run/shunt/p.sock"], ng: ["udp:127.0.0.1:22224", "tcp:127.0.0.1:22224"], allow: ["127.0.0.0/8", "2001:db8::/32"], socket_group: sip, legs_per_call: 64, sessions_per_source: 20, sip_timeout_ms: 300}
relays:
  - {name: r1, socket: "udp:127.0.0.1:22222", media: [{address: 192.0.2.1, ports: 35000-65000}], ttl: 90, setup_ttl: 30, symmetric: true}
  - {name: r2, socket: "unix:/run/r2.sock", media: [{address: "2001:db8::1", ports: "35000 - 35999"}]}
  - {name: e1, type: rtpengine, socket: "tcp:127.0.0.1:2223", media: [{address: 192.0.2.3, ports: 30000-40000}], ttl: 30, silent_ttl: 600, setup_ttl: 120}
builtin_relay: {addresses: [192.0.2.2], ports: "35000-65000", ttl: 60, setup_ttl: 30, quarantine: 2.5, listen: ["unix:/run/r.sock", "udp:127.0.0.1:22223"], allow: ["10.0.0.0/8"], socket_group: sip, threads: 2}
data_plane: {target: "tofino.example:50052", device_id: 1, program: relay, idle_ms: 5000}
learning: {packets: 3, guard_ms: 40, contest_hold_s: 4, quarantine_s: 0, one_way_after_s: 0.5}
hep: {listen: "udp:127.0.0.1:9060", allow: ["127.0.0.0/8"]}
api: {listen: "unix:/run/shunt/api.sock", token_file: /etc/shunt/token}
notify: {allow: ["tcp:127.0.0.1:9999", "unix:/run/opensips/notify"]}
journal: {path: /var/lib/shunt/j.sqlite}
log: {level: debug, format: json}
softswitch: {interfaces: [eth0, eth1.100], listen: ["127.0.0.1:50052"], capacity: 1050000, mode: native, pin_dir: /sys/fs/bpf/x}
"""


def errors(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loads(text)
    return caught.value.lines()


def test_a_minimal_file_is_short_and_has_the_documented_defaults():
    config = loads(MINIMAL)
    assert config.control.listen == ["udp:127.0.0.1:22221"]
    assert config.control.allow == [ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")]
    assert (config.relays[0].ttl, config.relays[0].symmetric) == (60, False)
    assert (config.data_plane, config.hep, config.journal, config.softswitch) == (None, None, None, None)
    learning = config.learning
    assert (learning.packets, learning.guard_ms, learning.contest_hold_s, learning.quarantine_s, learning.one_way_after_s) == (5, 80, 10, 3, 1.0)
    assert (config.api.listen, config.log.level) == ("127.0.0.1:8077", "info")


def test_every_key_is_taken():
    config = loads(FULL)
    assert config.relays[0].media[0].ports == PortRange(35000, 65000)
    assert config.relays[1].media[0].ports == PortRange(35000, 35999)
    assert config.softswitch.interfaces == ["eth0", "eth1.100"]
    assert {where for where, *_ in config.media_ranges()} == {("relays", 0, "media", 0, "ports"), ("relays", 1, "media", 0, "ports"), ("relays", 2, "media", 0, "ports"), ("builtin_relay", "ports")}
    # The effective configuration, written out, reads back as the same.
    assert loads(yaml.safe_dump(json.loads(config.model_dump_json(exclude_unset=True)))) == config


def test_empty_sections_in_braces_are_the_defaults():
    config = loads("builtin_relay: {addresses: [127.0.0.1]}\ndata_plane: {}\nhep: {}\njournal: {}\n")
    assert (config.data_plane.target, config.hep.listen, config.journal.path) == ("unix:/run/shunt-softswitch/bfrt.sock", "udp:127.0.0.1:9060", "/var/lib/shunt/journal.sqlite")


def test_the_built_in_relay_has_a_control_socket_of_its_own():
    config = loads("builtin_relay: {addresses: [127.0.0.1]}\n")
    assert config.builtin_relay.listen == ["cunix:/run/shunt-relay/control.sock"]
    both = MINIMAL + "builtin_relay: {addresses: [127.0.0.1], listen: ['cunix:/run/r.sock', 'udp:127.0.0.1:22222']}\n"
    assert errors(both) == ["shunt.yaml:3:13: relays.0.socket: udp:127.0.0.1:22222 is where the built-in relay listens (builtin_relay.listen.1), which is among the relays already"]
    taken = "builtin_relay: {addresses: [127.0.0.1], listen: ['udp:127.0.0.1:22221']}\n"
    assert errors(taken) == ["shunt.yaml:1:50: builtin_relay.listen.0: udp:127.0.0.1:22221 cannot be bound besides udp:127.0.0.1:22221 of control.listen.0"]


RTPENGINE = """\
control: {ng: ["udp:127.0.0.1:22223", "tcp:[::1]:22223"], allow: [127.0.0.0/8], sessions_per_source: 20}
relays:
  - name: e1
    type: rtpengine
    socket: "udp:127.0.0.1:2223"
    media: [{address: 192.0.2.1, ports: 30000-40000}, {address: "2001:db8::1", ports: 30000-40000}]
"""


def test_rtpengine_has_its_own_time_outs_unless_told_otherwise():
    config = loads(RTPENGINE)
    relay = config.document()["relays"][0]
    assert (relay["type"], relay["ttl"], relay["silent_ttl"], relay["setup_ttl"]) == ("rtpengine", 60, 3600, 3600)
    relay = loads(RTPENGINE + "    ttl: 20\n    silent_ttl: 120\n    setup_ttl: 90\n").document()["relays"][0]
    assert (relay["ttl"], relay["silent_ttl"], relay["setup_ttl"]) == (20, 120, 90)
    relay = loads(MINIMAL).document()["relays"][0]
    assert (relay["type"], relay["ttl"], relay["silent_ttl"], relay["setup_ttl"]) == ("rtpproxy", 60, None, None)


def test_a_protocol_that_no_relay_speaks_is_not_listened_for():
    """Its default address may be another program's."""
    alone = loads(RTPENGINE + "hep: {listen: 'udp:127.0.0.1:22221'}\n")
    assert (alone.document()["control"]["listen"], alone.document()["control"]["ng"]) == ([], ["udp:127.0.0.1:22223", "tcp:[::1]:22223"])
    both = loads(RTPENGINE + MINIMAL.removeprefix("relays:\n"))
    assert (both.document()["control"]["listen"], len(both.relays)) == (["udp:127.0.0.1:22221"], 2)
    builtin = loads(RTPENGINE + "builtin_relay: {addresses: [192.0.2.2]}\n")
    assert builtin.document()["control"]["listen"] == ["udp:127.0.0.1:22221"]
    assert loads(MINIMAL).document()["control"]["ng"] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (RTPENGINE.replace("type: rtpengine", "type: rtpproxy"), ["1:15: control.ng: no relay is of type rtpengine"]),
        (RTPENGINE.replace('ng: ["udp:127.0.0.1:22223", "tcp:[::1]:22223"], ', ""), ["4:11: relays.0.type: without control.ng no SIP server can reach this relay through the agent"]),
        (RTPENGINE.replace("rtpengine", "rtpengin"), ["4:11: relays.0.type: Input should be 'rtpproxy' or 'rtpengine'"]),
        (
            RTPENGINE.replace("udp:127.0.0.1:2223", "unix:/run/re.sock"),
            ["5:13: relays.0.socket: unix:/run/re.sock: rtpengine has no Unix socket: give udp:ADDRESS:PORT (--listen-ng) or tcp:ADDRESS:PORT (--listen-tcp-ng)"],
        ),
        (RTPENGINE.replace("udp:127.0.0.1:22223", "unix:/run/ng.sock"), ["1:16: control.ng.0: 'unix:/run/ng.sock': unix is not possible here, only udp, tcp"]),
        (RTPENGINE.replace("udp:127.0.0.1:22223", "udp:127.0.0.1:2223"), ["5:13: relays.0.socket: udp:127.0.0.1:2223 is where the agent itself listens (control.ng.0): it would talk to itself"]),
        (RTPENGINE.replace("udp:127.0.0.1:22223", "udp:192.0.2.1:30001"), ["1:16: control.ng.0: udp:192.0.2.1:30001 lies within the media ports 192.0.2.1 30000-40000 of relays.0.media.0.ports"]),
        (RTPENGINE.replace("tcp:[::1]", "udp:0.0.0.0"), ["1:39: control.ng.1: udp:0.0.0.0:22223 cannot be bound besides udp:127.0.0.1:22223 of control.ng.0"]),
        (
            RTPENGINE.replace("udp:127.0.0.1:22223", "udp:127.0.0.1:22221") + MINIMAL.removeprefix("relays:\n"),
            ["1:16: control.ng.0: udp:127.0.0.1:22221 cannot be bound besides udp:127.0.0.1:22221 of control.listen.0"],
        ),
        (RTPENGINE.replace("ng:", "listen: ['udp:127.0.0.1:22221'], ng:"), ["1:19: control.listen: no relay speaks the rtpproxy protocol: all of them are of type rtpengine, for control.ng"]),
        (RTPENGINE + "    symmetric: false\n", ["7:16: relays.0.symmetric: applies to rtpproxy only; rtpengine always learns addresses"]),
        (MINIMAL + "    silent_ttl: 9\n", ["4:17: relays.0.silent_ttl: rtpproxy has one time-out for all sessions (ttl); only a relay of type rtpengine has this one"]),
        (RTPENGINE + "    silent_ttl: 0\n", ["7:17: relays.0.silent_ttl: Input should be greater than or equal to 1"]),
    ],
)
def test_what_does_not_go_with_rtpengine_is_said_where_it_stands(text, says):
    assert errors(text) == [f"shunt.yaml:{line}" for line in says]


def test_the_example_takes_rtpengine_where_its_comment_says_so():
    """The lines for rtpengine in opensips-config/shunt.yaml, in place of those for rtpproxy, are a configuration."""
    text = (Path(__file__).resolve().parents[2] / "opensips-config/shunt.yaml").read_text()
    before, _, rest = text.partition("control:\n")
    _, _, rest = rest.partition("# For rtpengine")
    block, _, after = rest.partition("\n\n")
    config = loads(before + re.sub("^# ", "", block[block.index("\n") + 1 :], flags=re.MULTILINE) + "\n\n" + after)
    assert [relay.type for relay in config.relays] == ["rtpengine"]
    assert config.control.ng == ["udp:127.0.0.1:22223"]


def test_a_data_plane_hosts_file_needs_no_relay():
    config = loads("softswitch: {interfaces: [eth0]}\nlog: {level: warning}\n")
    assert not config.serves_agent


def test_an_edges_file_needs_no_relay_and_says_what_the_daemon_reads():
    config = loads('edge: {listen: ["192.0.2.1:3478"], address: 192.0.2.2}\n')
    assert not config.serves_agent
    assert (config.edge.tcp, config.edge.control, str(config.edge.ports)) == (True, "/run/shunt-edge/control.sock", "20000-29999")
    assert config.document()["edge"]["limits"]["media"] == 64


def test_all_errors_come_at_once_in_file_order_with_line_and_column():
    text = """\
relays:
  - name: r 1
    socket: udp:127.0.0.1:222222
    media: [{address: 192.0.2.1, ports: 35001-65000}]
    symmetric: yes
    ttl: 010
    ttl: 0
data_plane:
hepp: {}
log: {level: loud, quux: 3}
control: {listen: udp:192.0.2.1:5, allow: [10.0.0.1/8, 3]}
softswitch: {}
"""
    assert errors(text) == [
        "shunt.yaml:2:11: relays.0.name: 'r 1' is not a name of 1 to 63 letters, digits, '.', '_' or '-'",
        "shunt.yaml:3:13: relays.0.socket: port '222222' is not in 1..65535",
        "shunt.yaml:4:41: relays.0.media.0.ports: '35001-65000' starts at an odd port: RTP uses even ports, RTCP the odd one after it (RFC 3550 section 11)",
        "shunt.yaml:5:16: relays.0.symmetric: write true or false, not yes",
        "shunt.yaml:7:5: relays.0.ttl: this key was given before, at 6:5",
        "shunt.yaml:7:10: relays.0.ttl: Input should be greater than or equal to 1",
        "shunt.yaml:8:1: data_plane: no value is given: write {} for the defaults, or remove the key",
        "shunt.yaml:9:1: hepp: unknown key; did you mean hep?",
        "shunt.yaml:10:14: log.level: Input should be 'debug', 'info', 'warning' or 'error'",
        "shunt.yaml:10:20: log.quux: unknown key; known here: level, format",
        'shunt.yaml:11:19: control.listen: a list was expected: ["..."], or lines that start with "- "',
        "shunt.yaml:11:44: control.allow.0: '10.0.0.1/8' is not a network such as 127.0.0.0/8: has host bits set",
        'shunt.yaml:11:56: control.allow.1: a network such as "127.0.0.0/8" was expected, not 3',
        "shunt.yaml:12:13: softswitch.interfaces: this key is missing",
    ]


def test_errors_between_keys_come_at_once_too():
    text = """\
control: {listen: ["udp:0.0.0.0:36000", "tcp:127.0.0.1:8077"]}
relays:
  - {name: a, socket: "udp:127.0.0.1:36000", media: [{address: 192.0.2.1, ports: 35000-40000}]}
  - {name: a, socket: "udp:127.0.0.1:7", media: [{address: 192.0.2.1, ports: 40000-41000}, {address: "2001:db8::1", ports: 40000-41000}]}
  - {name: b, socket: "unix:/run/x"}
builtin_relay: {addresses: [192.0.2.1, 192.0.2.1], ports: 41002-41003}
data_plane: {}
api: {token: abcdefgh, token_file: /x}
softswitch: {interfaces: [eth0, eth0], listen: ["0.0.0.0:8077"]}
"""
    assert errors(text) == [
        "shunt.yaml:1:20: control.listen.0: udp:0.0.0.0:36000 lies within the media ports 192.0.2.1 35000-40000 of relays.0.media.0.ports",
        "shunt.yaml:3:23: relays.0.socket: udp:127.0.0.1:36000 is where the agent itself listens (control.listen.0): it would talk to itself",
        "shunt.yaml:4:12: relays.1.name: 'a' is already the name of relays.0",
        "shunt.yaml:4:78: relays.1.media.0.ports: 192.0.2.1 ports 40000-41000 overlap 35000-40000 of relays.0.media.0.ports",
        "shunt.yaml:5:5: relays.2: media is missing: with a data_plane the agent must know where this relay's media arrives",
        "shunt.yaml:6:40: builtin_relay.addresses.1: 192.0.2.1 is listed twice",
        "shunt.yaml:8:6: api.listen: tcp:127.0.0.1:8077 cannot be bound besides tcp:127.0.0.1:8077 of control.listen.1",
        "shunt.yaml:8:36: api.token_file: token is given too; keep one of them",
        "shunt.yaml:9:33: softswitch.interfaces.1: 'eth0' is listed twice (first as softswitch.interfaces.0)",
        "shunt.yaml:9:49: softswitch.listen.0: tcp:0.0.0.0:8077 cannot be bound besides tcp:127.0.0.1:8077 of control.listen.1",
        "shunt.yaml:9:49: softswitch.listen.0: tcp:0.0.0.0:8077 cannot be bound besides tcp:127.0.0.1:8077 of api.listen",
        "shunt.yaml:9:49: softswitch.listen.0: 0.0.0.0:8077 is reachable from elsewhere: give softswitch.tls with ca_file, so that clients need a certificate",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ":1:1: the file is empty"),
        ("# only this\n", ":1:1: the file is empty"),
        ("- a\n", ":1:1: the file is not a mapping"),
        ("log: {level: info}\n", ":1:1: neither a relay nor conferences: give relays, builtin_relay or conference"),
        ("{}", ":1:1: neither a relay"),
        ("a: &x [1]\nb: *x\n", ":2:4: b: *x: aliases are not supported"),
        ("log:\n  <<: {level: info}\n", ":2:3: log.<<: unknown key"),
        ("a: !!python/object/apply:os.system [x]\n", ":1:4: a: the tag"),
        ("log: {level: ! info}\n", ":1:14: log.level: the tag '!' is not supported"),
        ("a: 1\n---\nb: 2\n", ":2:1: a second document"),
        ("a: 1\n\tb: 2\n", ":2:1: a tab: YAML indents with spaces only"),
        ('a: "open\n', ":2:1: not YAML: while scanning a quoted scalar"),
        ("a: 1\nb: \x07\n", ":2:4: a character that YAML does not allow"),
        ("? [1]\n: 2\n", ":1:3: a key has to be a plain word"),
        ("[" * 100_000, ": nested deeper than 32 levels"),
        ("a: " + "9" * 100_000, ":1:1: a: unknown key"),
        ('api: {listen: "0.0.0.0:8077"}\n' + MINIMAL, ":1:15: api.listen: 0.0.0.0:8077 is reachable from elsewhere"),
        ("builtin_relay: {addresses: [0.0.0.0]}", ":1:29: builtin_relay.addresses.0: '0.0.0.0' cannot receive media"),
        ("builtin_relay: {addresses: [fe80::1%eth0]}", "zone"),
        ("builtin_relay: {addresses: [relay.example]}", "'relay.example' is not an IPv4 or IPv6 address"),
        ("builtin_relay: {addresses: [1234]}", "an IP address was expected, not 1234"),
        ("builtin_relay: {addresses: []}", ":1:28: builtin_relay.addresses: List should have at least 1 item"),
        ("builtin_relay: {addresses: [127.0.0.1], ports: 35000}", "a port range such as"),
        ("builtin_relay: {addresses: [127.0.0.1], ports: 60000-70000}", "1024..65535"),
        ("builtin_relay: {addresses: [127.0.0.1], ttl: '60'}", ":1:46: builtin_relay.ttl: Input should be a valid integer, not the text '60'"),
        ("builtin_relay: {addresses: [127.0.0.1], ttl: 12:30}", "not the text '12:30'"),
        ("builtin_relay: {addresses: [127.0.0.1], ttl: true}", "valid integer"),
        ("builtin_relay: {addresses: [10.0.0.1], advertised: [192.0.2.1, 192.0.2.2]}", ":1:52: builtin_relay.advertised: 2 addresses for 1 of addresses"),
        ('builtin_relay: {addresses: [10.0.0.1], advertised: ["::1"]}', "builtin_relay.advertised.0: ::1 is of another IP version than 10.0.0.1"),
        ("builtin_relay: {addresses: [10.0.0.1, 10.0.0.2], advertised: [192.0.2.1, 192.0.2.1]}", "builtin_relay.advertised.1: 192.0.2.1 is listed twice"),
        (ADVERTISED % ("10.0.0.1", "::1", "10.0.0.2", "192.0.2.2"), "relays.0.media.0.advertised: ::1 is of another IP version than 10.0.0.1"),
        (ADVERTISED % ("10.0.0.1", "192.0.2.1", "10.0.0.2", "192.0.2.1"), "relays.0.media.1.advertised: 192.0.2.1 already stands for 10.0.0.1"),
        (ADVERTISED % ("10.0.0.1", "10.0.0.2", "10.0.0.2", "192.0.2.1"), "relays.0.media.0.advertised: 10.0.0.2 is a media address of this relay itself"),
        (
            ('control: {ng: ["udp:127.0.0.1:2223"]}\n' + ADVERTISED.replace("name: r", "type: rtpengine, name: r")) % ("10.0.0.1", "192.0.2.1", "10.0.0.2", "192.0.2.2"),
            "relays.0.media.0.advertised: applies to rtpproxy only (-A)",
        ),
        ("builtin_relay: {addresses: [127.0.0.1], quarantine: .nan}", "valid number"),
        ('control: {listen: ["udp:::1:22221"]}\n' + MINIMAL, ":1:20: control.listen.0: an IPv6 address needs brackets: [::1]:22221"),
        ('control: {listen: ["sctp:127.0.0.1:1"]}\n' + MINIMAL, "is not udp:ADDRESS:PORT"),
        ('control: {listen: ["unix:run/x"]}\n' + MINIMAL, "not absolute"),
        ('control: {listen: ["unix:/%s"]}\n' % ("x" * 120) + MINIMAL, "at most 107"),
        ("hep: {listen: unix:/run/x}\n" + MINIMAL, "unix is not possible here, only udp, tcp"),
        ('notify: {allow: ["udp:127.0.0.1:5"]}\n' + MINIMAL, "udp is not possible here"),
        ('edge: {listen: ["0.0.0.0:3478"], address: 192.0.2.1}', ":1:17: edge.listen.0: 0.0.0.0:3478 is not an address that a browser can send to: give advertise too"),
        ('edge: {listen: ["192.0.2.1:3478"], advertise: ["192.0.2.9:1", "192.0.2.9:2"], address: 192.0.2.1}', ":1:47: edge.advertise: 2 addresses for 1 of listen"),
        ('edge: {listen: ["192.0.2.1:20010"], address: 192.0.2.1}', "edge.listen.0: 192.0.2.1:20010 lies within the ports of plain RTP, 192.0.2.1 20000-29999"),
        ('edge: {listen: ["edge:3478"], address: 192.0.2.1}', "'edge' is not an IPv4 or IPv6 address"),
        ("edge: {listen: [], address: 192.0.2.1}", "edge.listen: List should have at least 1 item"),
    ],
)
def test_one_error(text, says):
    lines = errors(text)
    assert any(says in line for line in lines), lines


def test_udp6_as_opensips_writes_it():
    for text in ("udp6:[2001:db8::1]:22221", "udp6:2001:db8::1:22221", "udp:[2001:db8::1]:22221"):
        assert SocketAddress.parse(text) == SocketAddress("udp", "2001:db8::1", 22221)


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("udp:127.0.0.1:5", "udp:127.0.0.1:5", True),
        ("udp:127.0.0.1:5", "tcp:127.0.0.1:5", False),
        ("udp:0.0.0.0:5", "udp:127.0.0.1:5", True),
        ("udp:[::]:5", "udp:127.0.0.1:5", True),
        ("udp:0.0.0.0:5", "udp:[::1]:5", False),
        ("unix:/a", "cunix:/a", True),
        ("unix:/a", "udp:127.0.0.1:5", False),
    ],
)
def test_clashes(one, other, clash):
    a, b = SocketAddress.parse(one), SocketAddress.parse(other)
    assert (a.clashes(b), b.clashes(a)) == (clash, clash)


def test_the_port_after_an_even_end_is_media_too():
    assert PortRange(35000, 65000).last_used == 65001
    assert PortRange(35000, 64999).overlaps(PortRange(65000, 65001)) is False
    assert PortRange(35000, 65000).overlaps(PortRange(65001, 65003)) is True


@pytest.mark.parametrize("listen", ["unix:/run/s.sock", "127.0.0.1:50052", "[::1]:50052"])
def test_the_softswitch_needs_no_certificates_where_only_this_host_reaches_it(listen):
    assert loads(f'softswitch: {{interfaces: [eth0], listen: ["{listen}"]}}').softswitch.listen == [listen]


def test_other_addresses_need_certificates_of_clients():
    tls = "tls: {certificate_file: /c, key_file: /k, ca_file: /a}"
    assert loads(f'softswitch: {{interfaces: [eth0], listen: ["192.0.2.1:50052"], {tls}}}').softswitch.tls.ca_file == "/a"
    for unfit in ("", tls.replace(", ca_file: /a", "")):
        (error,) = errors(f'softswitch: {{interfaces: [eth0], listen: ["192.0.2.1:50052"]{unfit and ", "}{unfit}}}')
        assert "192.0.2.1:50052 is reachable from elsewhere" in error


def test_host_port_takes_values_apart():
    assert host_port("[::1]:8077")[:2] == ("::1", 8077)
    assert host_port("unix:/run/x").path == "/run/x"


def test_file_errors(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_bytes(b"log:\n  level: \xff\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert caught.value.lines() == [f"{file}:2:10: byte 0xff is not UTF-8"]
    file.write_bytes(b"#" * (2 << 20))
    with pytest.raises(ConfigError, match="larger than"):
        load(file)
    file.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load(file).relays[0].name == "r1"
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.yaml")


def test_token_comes_from_the_file(tmp_path):
    file = tmp_path / "token"
    config = loads(MINIMAL + f"api: {{token_file: {file}}}\n")
    with pytest.raises(ValueError, match="No such file"):
        api_token(config.api)
    file.write_text("short\n")
    with pytest.raises(ValueError, match="5 characters"):
        api_token(config.api)
    file.write_text("long enough\nsecond line\n")
    assert api_token(config.api) == "long enough"
    assert api_token(loads(MINIMAL).api) is None


def test_every_key_is_described():
    def fields(model: type[Section]):
        for name, field in model.model_fields.items():
            yield f"{model.__name__}.{name}", field.description

    undescribed = [name for section in [Config, *Section.__subclasses__()] for name, text in fields(section) if not text]
    assert undescribed == []


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_text_does_anything_but_load_or_raise_config_errors(data):
    text = data.draw(st.one_of(st.text(max_size=80), st.just(FULL)))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.text(alphabet="{}[]:,-#&*!|>'\"%@ \n\t0a~", max_size=4)) + text[at + data.draw(st.integers(0, 6)) :]
    try:
        assert isinstance(loads(text), Config)
    except ConfigError as error:
        lines = text.count("\n") + 2
        assert error.problems and all(1 <= p.line <= lines and p.column >= 1 for p in error.problems)


@pytest.mark.parametrize(
    ("target", "listen", "own"),
    [
        ("unix:/run/a.sock", "unix:/run/a.sock", True),
        ("unix:/run/a.sock", "unix:/run/b.sock", False),
        ("unix:/run/a.sock", "127.0.0.1:50052", False),
        ("127.0.0.1:50052", "127.0.0.1:50052", True),
        ("127.0.0.1:50053", "127.0.0.1:50052", False),
        ("192.0.2.1:50052", "127.0.0.1:50052", False),
        # A name may be that of the listener's address.
        ("localhost:50052", "127.0.0.1:50052", True),
        ("tofino:50053", "127.0.0.1:50052", False),
    ],
)
def test_a_data_plane_other_than_the_files_own_softswitch_is_warned_of(target: str, listen: str, own: bool):
    text = f"builtin_relay: {{addresses: [127.0.0.1]}}\ndata_plane: {{target: '{target}'}}\nsoftswitch: {{interfaces: [lo], listen: ['unix:/run/x.sock', '{listen}']}}\n"
    assert [where for where, _ in loads(text).warnings()] == ([] if own else [("data_plane", "target")])


@pytest.mark.parametrize(
    ("listen", "owners", "warned"),
    [
        ("127.0.0.1:50052", "[unix, tcp]", True),
        ("'[::1]:50052'", "[tcp]", True),
        ("127.0.0.1:50052", "[unix, 'user:root']", False),
        ("127.0.0.1:50052", "[unix, tls]", False),
        ("'unix:/run/b.sock'", "[unix, tcp]", False),
    ],
)
def test_a_data_plane_that_every_local_user_may_command_is_warned_of(listen: str, owners: str, warned: bool):
    text = f"builtin_relay: {{addresses: [127.0.0.1]}}\nsoftswitch: {{interfaces: [lo], listen: ['unix:/run/x.sock', {listen}], owners: {owners}}}\n"
    assert [where for where, message in loads(text).warnings() if "every local user" in message] == ([("softswitch", "owners")] if warned else [])


CONFIGS = Path(__file__).resolve().parents[2] / "opensips-config"


@pytest.mark.parametrize(("name", "wanted"), [("opensips.cfg", 200), ("kamailio.cfg", 1000), ("opensips-rtpengine.cfg", 1000), ("kamailio-rtpengine.cfg", 300)])
def test_the_shipped_sip_servers_wait_as_long_as_shunt_yaml_says(name: str, wanted: int):
    assert sip_server.timeout_ms((CONFIGS / name).read_text()) == wanted
    said = (CONFIGS / "shunt.yaml").read_text()
    assert f"sip_timeout_ms: {wanted}" in said or f"{name} {wanted}" in said or f"{name}: {wanted}" in said
    if name == "opensips.cfg":
        assert loads(said).control.sip_timeout_ms == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('loadmodule "rtpproxy.so"\n', 1000),
        ('loadmodule "/usr/lib/x/rtpengine.so"\nmodparam("rtpengine", "rtpengine_tout_ms", 300)\n', 300),
        ('loadmodule "rtpproxy.so"\n  modparam( "rtpproxy","rtpproxy_timeout" , "0.35" )\n', 350),
        ('loadmodule "rtpproxy.so"\n# modparam("rtpproxy", "rtpproxy_timeout", "0.1")\n', 1000),
        ('loadmodule "rtpproxy.so"\nloadmodule "rtpengine.so"\nmodparam("rtpproxy", "rtpproxy_tout", 2)\nmodparam("rtpengine", "rtpengine_tout", 1)\n', 1000),
        ('#loadmodule "rtpproxy.so"\nloadmodule "tm.so"\n', None),
    ],
)
def test_the_time_out_of_a_sip_server_is_read_from_its_file(text: str, wanted: int | None):
    assert sip_server.timeout_ms(text) == wanted


def test_a_time_out_longer_than_the_sip_servers_is_an_error_and_a_shorter_one_a_warning():
    text = 'loadmodule "rtpproxy.so"\nmodparam("rtpproxy", "rtpproxy_timeout", "0.2")\n'
    assert sip_server.compared(200, text, "x.cfg") is None
    longer, shorter = sip_server.compared(1000, text, "x.cfg"), sip_server.compared(100, text, "x.cfg")
    assert longer and longer[1] and "x.cfg: waits for 200 ms" in longer[0]
    assert shorter and not shorter[1]
    missing = sip_server.compared(200, "", "x.cfg")
    assert missing and missing[1]
