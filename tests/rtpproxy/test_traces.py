"""Every recorded command and reply goes through the codec: nothing lost, nothing misread."""

from __future__ import annotations

import re

import pytest

from shunt.net import Endpoint
from shunt.rtpproxy import codec
from shunt.rtpproxy.codec import CodecError, parse_command, parse_datagram, parse_reply
from tests.rtpproxy import traces
from tests.rtpproxy.traces import Exchange

FILES = traces.corpus_files() + traces.trace_files()

# What the relays themselves answered to the recorded commands that the codec refuses: E1 argument count, E5 only a
# cookie, E8 (rtpengine's only error), E14 codec list. Anything else refused is a defect of the codec.
REFUSED_BY_RELAY = {1, 5, 8, 14}


def commands(exchange: Exchange) -> list[tuple[bytes | None, bytes]]:
    """(cookie, body) of each command in an exchange; a stream's bytes may hold several."""
    if exchange.is_stream:
        lines = exchange.command.split(b"\n") if not exchange.channel.startswith("unix:") else [exchange.command]
        return [(None, line) for line in lines if line]
    cookie, body = parse_datagram(exchange.command)
    return [(cookie, body)]


def reply_body(exchange: Exchange) -> bytes | None:
    """The reply without cookie (udp) and line end; only for exchanges of one command."""
    if exchange.reply is None:
        return None
    if exchange.is_stream:
        return exchange.reply.rstrip(b"\n")
    cookie, body = parse_datagram(exchange.reply)
    assert cookie == parse_datagram(exchange.command)[0]
    return body


def test_recordings_are_here():
    if not traces.trace_files():
        pytest.skip("the recordings (shared/traces beside the repository) are not here; the corpus alone is replayed")
    assert sum(len(traces.load(path)) for path in traces.trace_files()) >= 800


def test_corpus_is_a_selection_worth_replaying():
    loaded = [exchange for path in traces.corpus_files() for exchange in traces.load(path)]
    assert len(loaded) >= 250
    verbs = {
        parse_command(body, cookie).verb
        for exchange in loaded if len(exchange.command.split()) > 2
        for cookie, body in commands(exchange)
        if not re.match(rb"U call1|U\?c ", body)
    }
    assert {"U", "L", "D", "Q", "V", "VF", "I", "G", "P", "S", "Z"} - {"V", "I"} <= verbs


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_command_and_reply_of(path):
    exchanges = traces.load(path)
    if not exchanges:
        assert not re.search(rb"--> relay|^\d+\.\d+ >> b", path.read_bytes(), re.MULTILINE), "lines not recognised"
        return
    for exchange in exchanges:
        where = f"{path.name}:{exchange.line}"
        if not exchange.command.split():
            with pytest.raises(CodecError):
                parse_datagram(exchange.command)
            assert parse_reply(exchange.reply).error == codec.E_SYNTAX, where
            continue
        bodies = commands(exchange)
        reply = reply_body(exchange)
        for cookie, body in bodies:
            if not exchange.is_stream:
                assert cookie + b" " + body == exchange.command.rstrip(b"\n") or not body, where
            try:
                command = parse_command(body, cookie)
            except CodecError as error:
                assert 0 <= error.position <= len(body), where
                assert reply is not None and parse_reply(reply).error in REFUSED_BY_RELAY, f"{where}: {error}"
                continue
            assert command.raw == body.rstrip(b"\r\n"), where
            assert command.cookie == cookie, where
            assert command.flags.unknown in ("", "?"), where
            if len(bodies) == 1 and reply is not None:
                check_reply(command, reply, where)


def check_reply(command: codec.Command, body: bytes, where: str) -> None:
    reply = parse_reply(body)
    assert reply.raw == body, where
    if reply.error is not None:
        assert body == b"E%d" % reply.error and reply.error in codec.ERROR_NAMES, where
        assert reply.error_text.startswith(f"E{reply.error} "), where
        return
    if command.verb in ("U", "L"):
        parts = codec.parse_ports_reply(body)
        assert len(parts) == (2 if codec.sub_lookup(command) else 1), where
        for part in parts:
            assert part.port is not None, where
            refused = part.port == 0
            assert refused or part.address is not None, where
            assert refused or part.address == "0.0.0.0" or part.endpoint == Endpoint.of(part.address, part.port), where
    elif command.verb == "Q" and len(reply.raw.split()) > 1:
        counters = codec.parse_query_reply(command, body)
        assert len(counters) == len(command.extra or codec.DEFAULT_COUNTERS), where
        assert all(value >= 0 for _, value in counters), where
        rewritten = codec.rewrite_query_reply(command, body, dict.fromkeys(codec.DEFAULT_COUNTERS, 0))
        assert rewritten == body, where
    elif command.verb in ("V", "VF", "D", "X", "S"):
        # One recorded D and one Q reuse a cookie on purpose and get the kept answer to a U.
        assert reply.numbers or reply.address, where


def test_pairing_of_a_lost_request():
    exchanges = traces.load(traces.CORPUS / "retransmission.txt")
    cookie = b"14868_6831_12 "
    copies = [e for e in exchanges if e.command.startswith(cookie) and e.channel.endswith(":22222")]
    assert len(copies) == 2 and copies[0].command == copies[1].command
    assert copies[0].reply is None and copies[1].reply is not None


def test_notification_and_milestones():
    path = traces.CORPUS / "direct.txt"
    assert [n.data for n in traces.load_notifications(path)] == [b"T123.abcd\ntag with space\n", b"T777.self\n"]
    if not traces.TRACES.is_dir():
        pytest.skip("the recordings (shared/traces beside the repository) are not here: no SIP milestones to read")
    sip = traces.load_sip(traces.TRACES / "01_opensips_basic_offer_answer.txt")
    assert sip[0].first_line == "INVITE sip:bob@10.91.1.1:5060 SIP/2.0" and sip[0].cseq == 1
    assert sip[0].sdp == "c=IN IP4 10.91.1.2 m=audio 6000 RTP/AVP 0 8 101"
    assert [m.method for m in sip if m.first_line.startswith("BYE")] == ["BYE", "BYE"]
    merged = traces.timeline(traces.TRACES / "01_opensips_basic_offer_answer.txt")
    assert isinstance(merged[0], traces.SipMilestone) and isinstance(merged[1], Exchange)
