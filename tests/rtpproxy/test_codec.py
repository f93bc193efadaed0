"""The codec on representative commands and replies, at its edges, and on bytes that are nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunt.net import Endpoint
from shunt.rtpproxy import capabilities, codec
from shunt.rtpproxy.codec import (
    CodecError, build_delete, build_lookup, build_query, build_update, keepalive_modifiers, parse_command,
    parse_datagram, parse_ports_reply, parse_query_reply, parse_reply, rewrite_notify_self, rewrite_query_reply,
    sub_lookup,
)

# -- commands ------------------------------------------------------------------------------------------------------


def test_offer_of_opensips():
    cookie, body = parse_datagram(b"27814_9051_12 Uc0,8,101 1-28350@10.91.1.2 10.91.1.2 6000 28350UACtag1;1")
    command = parse_command(body, cookie)
    assert command.verb == "U" and command.cookie == b"27814_9051_12" and command.modifiers == "c0,8,101"
    assert command.flags.codecs == (0, 8, 101) and command.flags.letters == {"C"}
    assert command.call_id == "1-28350@10.91.1.2"
    assert command.endpoint == Endpoint.of("10.91.1.2", 6000)
    assert (command.from_tag, command.from_media) == ("28350UACtag1", 1)
    assert (command.to_tag, command.to_media) == (None, None)
    assert command.notify_socket is None and command.subcommands == () and command.extra == ()


def test_answer_of_second_media():
    command = parse_command(b"LEIc96,97 1-5300@10.91.1.2 10.91.2.2 7002 5300UACtag1;2 5297UAStag1;2")
    assert command.verb == "L" and command.flags.directions == "EI"
    assert (command.from_media, command.to_media) == (2, 2)
    assert command.to_tag == "5297UAStag1"


def test_ipv6_as_opensips_writes_it():
    command = parse_command(b"LEI6c0,8,101 c FD91:2:0:0:0:0:0:2 7000 a;1 b;1")
    assert command.flags.ipv6 and "6" in command.flags.letters
    assert command.address == "FD91:2:0:0:0:0:0:2" and command.endpoint == Endpoint.of("fd91:2::2", 7000)


@pytest.mark.parametrize(
    ("text", "field", "value", "codecs"),
    [
        ("R10.91.2.2c0,8", "remote_address", "10.91.2.2", (0, 8)),
        ("l10.91.2.1", "local_address", "10.91.2.1", ()),
        ("6RFD91:2:0:0:0:0:0:2c0,8", "remote_address", "FD91:2:0:0:0:0:0:2", (0, 8)),
        ("6R[fd91::c0]c8", "remote_address", "fd91::c0", (8,)),
        ("6lfd91:2::1", "local_address", "fd91:2::1", ()),
    ],
)
def test_addresses_among_the_modifiers(text, field, value, codecs):
    flags = parse_command(f"U{text} c 10.0.0.1 6000 a;1".encode()).flags
    assert getattr(flags, field) == value and flags.codecs == codecs and flags.unknown == ""


def test_all_modifiers():
    flags = parse_command(b"uIeS6wZ20l10.0.0.9c0,101t30n c 10.0.0.1 6000 a;1").flags
    assert flags.letters == set("IES6WZLCTN")
    assert (flags.directions, flags.symmetric, flags.asymmetric, flags.weak) == ("IE", True, False, True)
    assert (flags.resize, flags.ttl, flags.new_port, flags.local_address) == (20, 30, True, "10.0.0.9")
    assert flags.parts == ("I", "e", "S", "6", "w", "Z20", "l10.0.0.9", "c0,101", "t30", "n")


@pytest.mark.parametrize(("text", "asymmetric"), [("A", True), ("SA", True), ("AS", False), ("", False)])
def test_last_of_a_and_s_counts(text, asymmetric):
    flags = parse_command(f"U{text} c 10.0.0.1 6000 a;1".encode()).flags
    assert flags.asymmetric is asymmetric and flags.symmetric is (bool(text) and not asymmetric)


def test_unknown_modifiers_are_kept_not_refused():
    flags = parse_command(b"U?c0q! c 10.0.0.1 6000 a;1").flags
    assert flags.unknown == "?q!" and flags.codecs == (0,) and "Q" in flags.letters


def test_notify_arguments():
    with_to = parse_command(b"U c 10.0.0.1 6000 a;1 b;1 tcp:127.0.0.1:9999 T222.4af857c")
    without = parse_command(b"U c 10.0.0.1 6000 a;1 tcp:127.0.0.1:9999 tag%20with%20space")
    assert (with_to.to_tag, with_to.notify_socket, with_to.notify_tag) == ("b", "tcp:127.0.0.1:9999", "T222.4af857c")
    assert (without.to_tag, without.notify_socket) == (None, "tcp:127.0.0.1:9999")
    assert codec.notify_line(without.notify_tag) == b"tag with space\n"


def test_kamailio_notify_socket_without_tag():
    command = parse_command(b"U c 10.0.0.1 6000 a;1 13729UAStag1;1 xmlrpc:http://127.0.0.1:8000/RPC2")
    assert (command.to_tag, command.to_media) == ("13729UAStag1", 1)
    assert command.notify_socket == "xmlrpc:http://127.0.0.1:8000/RPC2" and command.notify_tag is None


def test_kamailio_query_with_bare_to_tag():
    command = parse_command(b"Q 1-13949@10.91.1.2 13949UACtag1;1 13945UAStag1")
    assert (command.from_media, command.to_tag, command.to_media) == (1, "13945UAStag1", None)


def test_query_with_names_and_subcommand():
    command = parse_command(b"Qv c a;1 b;1 ttl npkts_ina && S ttl=3600")
    assert command.extra == ("ttl", "npkts_ina") and command.flags.letters == {"V"}
    assert command.subcommands == (b"S ttl=3600",)


def test_subcommands_are_kept_exactly():
    command = parse_command(b"U c 10.0.0.1 6000 a;1 b;1 && L 10.91.2.2  7000 && M3:1  D tcp:1.2.3.4:5 x")
    assert command.subcommands == (b"L 10.91.2.2  7000", b"M3:1  D tcp:1.2.3.4:5 x")
    answer = sub_lookup(command)
    assert answer is not None and answer.verb == "L" and answer.endpoint == Endpoint.of("10.91.2.2", 7000)
    assert (answer.call_id, answer.from_tag, answer.to_tag, answer.to_media) == ("c", "a", "b", 1)
    assert sub_lookup(parse_command(b"Q c a;1 b;1 && S ttl=25")) is None


def test_null_address_and_dash():
    hold = parse_command(b"U c 0.0.0.0 6000 a;1 b;1")
    assert hold.on_hold and hold.endpoint is None and hold.address == "0.0.0.0"
    dash = parse_command(b"L c - 0 a;1 b;1")
    assert dash.address is None and dash.port == 0 and dash.endpoint is None and not dash.on_hold
    name = parse_command(b"U c host.example 6000 a;1")
    assert name.address == "host.example" and name.endpoint is None


def test_delete_forms():
    everything = parse_command(b"Dw c fk tk")
    assert everything.flags.weak and everything.from_media is None and everything.to_tag == "tk"
    one = parse_command(b"D c fm;2 tm;2")
    assert (one.from_media, one.to_media) == (2, 2)
    assert parse_command(b"D c fm").to_tag is None


def test_other_verbs():
    play = parse_command(b"P20 c /var/announce 0,8 a;1 b;1")
    assert (play.call_id, play.from_tag, play.to_tag, play.extra) == ("c", "a", "b", ("/var/announce", "0,8"))
    copy = parse_command(b"C c udp:10.0.0.9:4000 a;1 b;1")
    assert (copy.call_id, copy.from_tag, copy.extra) == ("c", "a", ("udp:10.0.0.9:4000",))
    assert parse_command(b"vf 20081102").verb == "VF" and parse_command(b"VF 20081102").extra == ("20081102",)
    assert parse_command(b"Ib").flags.letters == {"B"} and parse_command(b"X").call_id is None
    assert parse_command(b"Gv nsess_created").extra == ("nsess_created",)
    unknown = parse_command(b"Zebra x y")
    assert (unknown.verb, unknown.extra, unknown.raw) == ("Zebra", ("x", "y"), b"Zebra x y")


@pytest.mark.parametrize("tag", ["t;", "t;01", "t;x", "t;-1", "t;123456"])
def test_media_index_only_in_plain_decimal(tag):
    command = parse_command(f"D c {tag}".encode())
    assert (command.from_tag, command.from_media) == (tag, None)


@pytest.mark.parametrize(
    ("body", "position", "what"),
    [
        (b"", 0, "no command"),
        (b" \t", 0, "no command"),
        (b"&& S ttl=3", 0, "no command before &&"),
        (b"U call1", 7, "U without address"),
        (b"U call1 10.0.0.1 6000", 21, "U without from-tag"),
        (b"L", 1, "L without call-id"),
        (b"D c", 3, "D without from-tag"),
        (b"P c file 0", 10, "P without from-tag"),
        (b"VF", 2, "VF without date"),
        (b"U c 10.0.0.1 port a;1", 13, "port 'port'"),
        (b"U c 10.0.0.1 65536 a;1", 13, "port '65536'"),
        (b"U c 10.0.0.1 -1 a;1", 13, "port '-1'"),
        (b"UAc c 10.0.0.1 1 a;1", 2, "modifier c"),
        (b"Uc0c8 c 10.0.0.1 1 a;1", 3, "modifier c"),
        (b"UZ c 10.0.0.1 1 a;1", 1, "modifier Z"),
        (b"UARx c 10.0.0.1 1 a;1", 2, "modifier R"),
        (b"Ul999.1.1.1 c 10.0.0.1 1 a;1", 1, "modifier l"),
        (b"U c 10.0.0.1 1 a;1 tcp:1.2.3.4:5 T%zz", 34, "notify tag"),
        (b"D c a\0b", 5, "NUL"),
        (b"Q c a;1 b;1 &&", 14, "nothing after &&"),
        (b"Q c a;1 b;1 && && S ttl=1", 14, "nothing after &&"),
    ],
)
def test_refusals_name_position_and_reason(body, position, what):
    with pytest.raises(CodecError) as caught:
        parse_command(body)
    assert caught.value.position == position and what in str(caught.value)


def test_datagrams():
    assert parse_datagram(b"ckNL V\n") == (b"ckNL", b"V")
    assert parse_datagram(b"c  Q  x \r\n") == (b"c", b"Q  x ")
    assert parse_datagram(b"onlyacookie") == (b"onlyacookie", b"")
    for nothing in (b"", b" \r\n"):
        with pytest.raises(CodecError):
            parse_datagram(nothing)


# -- replies -------------------------------------------------------------------------------------------------------


def test_port_replies():
    (plain,) = parse_ports_reply(b"36884 10.91.1.1\n")
    assert plain.endpoint == Endpoint.of("10.91.1.1", 36884) and plain.third is None and not plain.ipv6
    (six,) = parse_ports_reply(b"36318 fd91:1::1 6")
    assert six.endpoint == Endpoint.of("fd91:1::1", 36318) and six.ipv6 and six.third == "6"
    (rtpengine,) = parse_ports_reply(b"38000 10.91.1.1 4")
    assert rtpengine.third == "4" and not rtpengine.ipv6 and rtpengine.endpoint == Endpoint.of("10.91.1.1", 38000)
    (port_only,) = parse_ports_reply(b"36884")
    assert port_only.port == 36884 and port_only.endpoint is None
    for refused in (b"0", b"0 0.0.0.0"):
        (reply,) = parse_ports_reply(refused)
        assert reply.port == 0 and reply.endpoint is None and reply.ok
    (null,) = parse_ports_reply(b"38010 0.0.0.0 4")
    assert null.port == 38010 and null.endpoint is None


def test_port_reply_with_subcommand():
    first, second = parse_ports_reply(b"36584 10.91.1.1 && 36132 10.91.1.1\n")
    assert (first.port, second.port) == (36584, 36132) and second.endpoint == Endpoint.of("10.91.1.1", 36132)
    assert parse_ports_reply(b"E3\n")[0].error == 3


@pytest.mark.parametrize("body", [b"", b"hello", b"70000 10.0.0.1", b"5 0 0 0 0", b"&& 5"])
def test_not_a_port_reply(body):
    with pytest.raises(CodecError):
        parse_ports_reply(body)


def test_other_replies():
    error = parse_reply(b"E50\n")
    assert error.error == 50 and not error.ok and error.error_text == "E50 session-not-found (no such session)"
    assert parse_reply(b"E77").error_text == "E77 unlisted (not a code of rtpproxy 3.2)"
    assert parse_reply(b"60 134 134 268 0").numbers == (60, 134, 134, 268, 0)
    assert parse_reply(b"20040107").numbers == (20040107,) and parse_reply(b"20040107").port is None
    assert parse_reply(b"1 0 0.500000").numbers == (1, 0, 0.5)
    assert parse_reply(b"sessions created: 1\nactive sessions: 1").numbers == ()
    assert parse_reply(b"\n").raw == b""


Q = parse_command(b"Q c a;1 b;1")
QV = parse_command(b"Qv c a;1 b;1")
ADD = {"npkts_ina": 100, "npkts_ino": 20, "nrelayed": 3, "longest_ipi": 9, "absent": 1}


def test_query_replies():
    assert parse_query_reply(Q, b"60 134 201 402 0\n") == [
        ("ttl", 60), ("npkts_ina", 134), ("npkts_ino", 201), ("nrelayed", 402), ("ndropped", 0)
    ]
    verbose = parse_query_reply(QV, b"ttl=6 npkts_ina=1 npkts_ino=2 nrelayed=3 ndropped=0")
    assert dict(verbose) == {"ttl": 6, "npkts_ina": 1, "npkts_ino": 2, "nrelayed": 3, "ndropped": 0}
    named = parse_command(b"Q c a;1 b;1 nrelayed longest_ipi")
    assert parse_query_reply(named, b"41 0.020000") == [("nrelayed", 41), ("longest_ipi", 0.02)]


@pytest.mark.parametrize(
    ("command", "reply", "expected"),
    [
        (Q, b"60 134 201 402 0\n", b"60 234 221 405 0\n"),
        (Q, b"60  134\t201 402 0 \r\n", b"60  234\t221 405 0 \r\n"),
        (QV, b"ttl=60 npkts_ina=0 npkts_ino=0 nrelayed=0 ndropped=7",
         b"ttl=60 npkts_ina=100 npkts_ino=20 nrelayed=3 ndropped=7"),
        (parse_command(b"Q c a;1 b;1 nrelayed longest_ipi ttl"), b"9 0.020000 60", b"12 0.020000 60"),
        (parse_command(b"Qv c a;1 b;1 npkts_ino"), b"npkts_ino=9\n", b"npkts_ino=29\n"),
        (parse_command(b"Q c a;1 b;1 && S ttl=5"), b"5 0 0 0 0", b"5 100 20 3 0"),
        (Q, b"60 1 2 3 4 && 0\n", b"60 101 22 6 4 && 0\n"),
        (Q, b"E50\n", b"E50\n"),
        (Q, b"3600 268 0 0 0", b"3600 368 20 3 0"),
    ],
)
def test_counts_added_in_place(command, reply, expected):
    assert rewrite_query_reply(command, reply, ADD) == expected


@pytest.mark.parametrize(
    ("command", "reply"),
    [(Q, b"60 1 2 3"), (Q, b""), (Q, b"60 1 2 3 x"), (QV, b"60 1 2 3 4"), (parse_command(b"D c a"), b"0")],
)
def test_query_reply_that_does_not_fit(command, reply):
    with pytest.raises(CodecError):
        rewrite_query_reply(command, reply, ADD)


# -- the agent's own commands, rewriting ---------------------------------------------------------------------------


def test_builders():
    assert build_update("c", "10.0.0.1", 6000, "a", modifiers="c0,8") == b"Uc0,8 c 10.0.0.1 6000 a;1"
    assert build_update("c", "10.0.0.1", 6000, "a", "b", media=2, notify=("tcp:127.0.0.1:9", "T1.2")) == (
        b"U c 10.0.0.1 6000 a;2 b;2 tcp:127.0.0.1:9 T1.2"
    )
    assert build_lookup("c", "a", "b", modifiers="c0,8,101") == b"Lc0,8,101 c - 0 a;1 b;1"
    assert build_lookup("c", "a", "b", ttl=3600) == b"L c - 0 a;1 b;1 && T3600"
    assert build_delete("c", "a", "b") == b"D c a b"
    assert build_delete("c", "a", "b", media=2, weak=True) == b"Dw c a;2 b;2"
    assert build_query("c", "a", "b", ttl=3600) == b"Q c a;1 b;1 && S ttl=3600"
    assert build_query("c", "a", "b", counters=("ttl",), verbose=True) == b"Qv c a;1 b;1 ttl"
    assert codec.build_version() == b"V" and codec.build_capability(20251015) == b"VF 20251015"
    assert codec.build_error(50) == b"E50"


@pytest.mark.parametrize(
    "build",
    [
        lambda: build_update("c d", "10.0.0.1", 6000, "a"),
        lambda: build_update("", "10.0.0.1", 6000, "a"),
        lambda: build_update("c", "10.0.0.1", 65536, "a"),
        lambda: build_delete("c", "a\nD x"),
        lambda: build_delete("&&", "a"),
        lambda: build_delete("c", "ключ"),
        lambda: build_query("c", "a", "b", ttl=0),
        lambda: build_query("c", "a", None, counters=("ttl",)),
    ],
)
def test_builders_refuse_what_would_be_another_command(build):
    with pytest.raises(CodecError):
        build()


def test_keepalive_repeats_state_but_takes_no_new_port():
    flags = parse_command(b"LEISnZ20c0,8 c 10.0.0.1 6000 a;1 b;1").flags
    assert keepalive_modifiers(flags) == "EISZ20c0,8"


def test_notify_self():
    body = b"Uc0  n3 10.91.1.2 6000 f;1 tcp:%%CC_SELF%%:9999 T777.%25%25CC_SELF"
    assert rewrite_notify_self(parse_command(body), "192.0.2.7") == (
        b"Uc0  n3 10.91.1.2 6000 f;1 tcp:192.0.2.7:9999 T777.%25%25CC_SELF"
    )
    assert b" tcp:[2001:db8::7]:9999 " in rewrite_notify_self(parse_command(body), "2001:db8::7")
    elsewhere = b"U c 10.0.0.1 6000 %%CC_SELF%%;1"
    assert rewrite_notify_self(parse_command(elsewhere), "192.0.2.7") == elsewhere
    with pytest.raises(ValueError):
        rewrite_notify_self(parse_command(body), "nobody")


def test_keepalive_method():
    method = capabilities.keepalive_method
    assert method({20251015: True, 20210524: True}) == "ttl-subcommand"
    assert method({20251015: False, 20210524: True}) == "ttl-modifier"
    assert method({20251015: False}) == method({}) == "lookup"
    assert capabilities.may_query({20080403: True}) and not capabilities.may_query({20080403: False})
    asked = {*capabilities.OPENSIPS_HANDSHAKE, *capabilities.KAMAILIO_HANDSHAKE, *capabilities.AGENT_HANDSHAKE}
    assert asked <= set(capabilities.MEANINGS)


# -- any bytes -----------------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [b"U", b"L", b"Q", b"Qv", b"D", b"P", b"C", b"VF", b"&&", b" ", b"\t", b"\r\n", b"c0,8", b"Z20", b"R10.0.0.1",
     b"l[", b"R::1c0", b"call", b"10.0.0.1", b"-", b"6000", b"tag;1", b";", b"%", b"tcp:%%CC_SELF%%:1", b"E50", b"0",
     b"36884", b"=", b"ttl=6", b"\xff", b"\xdf", b"\0", b"6"]
)
NEARLY = st.lists(PIECES, max_size=14).map(b"".join)
NEARLY_WORDS = st.lists(PIECES, max_size=14).map(b" ".join)
ANYTHING = st.one_of(st.binary(max_size=200), NEARLY, NEARLY_WORDS)


@settings(max_examples=1500, deadline=None)
@given(ANYTHING)
def test_any_bytes_as_a_command(data):
    try:
        command = parse_command(data)
    except CodecError as error:
        assert 0 <= error.position <= len(data)
        return
    assert command.raw == data.rstrip(b"\r\n")
    assert parse_command(command.raw) == command
    assert "".join(command.flags.parts) in ("", command.modifiers)
    command.endpoint, command.on_hold
    rewritten = rewrite_notify_self(command, "192.0.2.1")
    if command.notify_socket is None or "%%CC_SELF%%" not in command.notify_socket:
        assert rewritten == command.raw
    else:
        assert rewritten.replace(b"192.0.2.1", b"%%CC_SELF%%") == command.raw.replace(b"192.0.2.1", b"%%CC_SELF%%")
    try:
        sub_lookup(command)
    except CodecError:
        pass


@settings(max_examples=1500, deadline=None)
@given(ANYTHING)
def test_any_bytes_as_a_datagram_and_reply(data):
    try:
        cookie, body = parse_datagram(data)
    except CodecError:
        assert not data.strip(b" \t\r\n")
        return
    assert cookie in data and body in data
    reply = parse_reply(body)
    assert reply.raw == body.rstrip(b"\r\n")
    reply.endpoint, reply.error_text
    for read in (codec.parse_ports_reply, lambda b: parse_query_reply(Q, b), lambda b: parse_query_reply(QV, b)):
        try:
            read(body)
        except CodecError:
            pass


WORD = st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f\x85\xa0;&%:/"),
               min_size=1, max_size=20)


@settings(max_examples=300, deadline=None)
@given(WORD, WORD, st.none() | WORD, st.integers(0, 65535), st.none() | st.integers(0, 99))
def test_what_is_built_reads_back(call_id, from_tag, to_tag, port, media):
    command = parse_command(build_update(call_id, "10.0.0.1", port, from_tag, to_tag, media=media))
    assert (command.call_id, command.from_tag, command.to_tag) == (call_id, from_tag, to_tag)
    assert (command.port, command.from_media) == (port, media)
    assert command.to_media == (media if to_tag is not None else None)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 2**40), min_size=5, max_size=5), st.integers(0, 2**40), st.booleans())
def test_rewriting_adds_exactly(values, more, verbose):
    words = [b"%d" % v for v in values]
    if verbose:
        words = [name.encode() + b"=" + word for name, word in zip(codec.DEFAULT_COUNTERS, words)]
    command = QV if verbose else Q
    before = dict(parse_query_reply(command, b" ".join(words)))
    after = dict(parse_query_reply(command, rewrite_query_reply(command, b" ".join(words), {"nrelayed": more})))
    assert after.pop("nrelayed") == before.pop("nrelayed") + more and after == before
