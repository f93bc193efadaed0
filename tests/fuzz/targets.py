"""What is fuzzed: for each parser a function that takes any bytes and may fail only as the parser says it does.

A target that returns has kept its promises; any exception is a finding. Where a parser has an inverse, or
a second parser reads what it passes on, that is checked too.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shunt.bfrt.schema import Schema, SchemaError
from shunt.conference import descriptor, payload, rtcp, rtp
from shunt.conference.control import ice
from shunt.conference.control.adaptation import Adaptation
from shunt.conference.frames import FrameError, read_datagram, write_datagram
from shunt.config.load import ConfigError, loads
from shunt.control.framing import info_reply_end, parse_address, take_line
from shunt.hep import codec as hep
from shunt.hep import sip
from shunt.journal import Journal, encode_call
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint, FiveTuple
from shunt.relay.learning import read_rtcp, read_rtp
from shunt.relay.notify import parse_target
from shunt.rtpproxy import codec
from shunt.tables.target import Answers, Plan
from tests.softswitch.schema import document, load


def rtpproxy_command(data: bytes) -> None:
    """Datagram, command, and what is made of them on the way to the relay."""
    try:
        cookie, body = codec.parse_datagram(data)
    except codec.CodecError:
        cookie, body = b"1", data
    try:
        command = codec.parse_command(body, cookie)
    except codec.CodecError:
        return
    assert command.raw == body
    passed_on = codec.rewrite_notify_self(command, "192.0.2.1")
    assert codec.parse_command(passed_on).verb == command.verb
    try:
        codec.sub_lookup(command)
        codec.keepalive_modifiers(command.flags)
        assert command.endpoint is None or command.endpoint.port <= 65535
    except codec.CodecError:
        pass


def rtpproxy_reply(data: bytes) -> None:
    """Replies to U and L, and one to a Q whose command precedes it on a line of its own."""
    for parse in (codec.parse_reply, codec.parse_ports_reply):
        try:
            parse(data)
        except codec.CodecError:
            pass
    line, _, reply = data.partition(b"\n")
    try:
        command = codec.parse_command(line)
        if command.verb == "Q":
            codec.parse_query_reply(command, reply)
            again = codec.rewrite_query_reply(command, reply, {"npkts_ina": 1, "nrelayed": 2})
            codec.parse_query_reply(command, again)
    except codec.CodecError:
        pass


def control_framing(data: bytes) -> None:
    """Streams of commands and replies, and socket addresses."""
    buffer = bytearray(data)
    while (line := take_line(buffer)) is not None:
        assert b"\n" not in line
    assert 0 <= info_reply_end(data[:8], data) <= len(data)
    text = data.decode("latin-1")
    for parse in (parse_address, Endpoint.parse, lambda value: parse_target(value, "192.0.2.1")):
        try:
            parse(text)
        except ValueError:
            pass


def hep3(data: bytes) -> None:
    """A HEP packet; what was read is written and read to the same."""
    try:
        packet = hep.decode(data)
    except hep.HepError:
        return
    try:
        again = hep.encode(packet)
    except hep.HepError:  # mixed IP versions, or a payload that was compressed and is too long without
        return
    assert hep.decode(again) == packet


def sip_message(data: bytes) -> None:
    """A SIP message with its SDP, however broken."""
    try:
        sip.parse(data)
    except sip.SipError:
        pass
    sip.sdp_endpoints(data)
    sip.sdp_media(data)


def rtp_packet(data: bytes) -> None:
    """RTP and RTCP headers."""
    view = memoryview(data)
    for read in (read_rtp, read_rtcp):
        version_fits, ssrc, seq = read(view, len(data))
        assert isinstance(version_fits, bool) and 0 <= ssrc < 1 << 32 and 0 <= seq < 1 << 16


def bfrt_schema(data: bytes) -> None:
    """The schema that a target hands out."""
    try:
        Plan(Schema.parse(data))
    except SchemaError:
        pass


def configuration(data: bytes) -> None:
    """shunt.yaml."""
    try:
        loads(data.decode("utf-8", "replace"))
    except ConfigError as error:
        assert error.problems and all(p.line >= 1 and p.column >= 1 for p in error.problems)


def journal_row(data: bytes) -> None:
    """A row of the journal, of this or another version; one that is read can be written again."""
    call = _JOURNAL.read("c", data.decode("utf-8", "replace"), _POLICY, 1000.0)
    if call is not None:
        encode_call(call)


def bfrt_answer(data: bytes) -> None:
    """What a target answers to a read of the relay table."""
    for size, target in _PLAN.relay.items():
        try:
            for _ in Answers(target).items(data):
                pass
        except SchemaError:
            pass


class _Nowhere:
    """A store that is never asked."""

    name = "fuzz"
    promises = False


_PLAN = Plan(load())
_POLICY = LatchPolicy()
_JOURNAL = Journal(_Nowhere())  # type: ignore[arg-type]
_DESCRIPTOR = bytes.fromhex("c00001800214eaa860414d1410208427027f0167")
_STRUCTURE = descriptor.parse(_DESCRIPTOR).structure


def conference_rtp(data: bytes) -> None:
    """Header, extensions and every kind of descriptor that a conference's packets carry."""
    try:
        header = rtp.parse_header(data)
        elements = [data[element.data] for element in rtp.elements(data, header)] + [data[header.payload]]
    except rtp.MediaError:
        elements = [data]
    for element in elements:
        for parse in (lambda raw: descriptor.parse(raw, _STRUCTURE), payload.parse_frame_mark, payload.parse_vp8, payload.parse_vp9):
            try:
                parsed = parse(element)
            except rtp.MediaError:
                continue
            if isinstance(parsed, descriptor.Descriptor) and parsed.structure is not None:
                table = descriptor.LayerTable()
                table.see(parsed.structure)
                assert all(0 <= template_id < descriptor.IDS for template_id in table.rows) and parsed.mandatory.template_id in table.rows


def conference_rtcp(data: bytes) -> None:
    """A compound: classified, taken apart for its senders, SSRCs replaced; what goes on can be read again."""
    try:
        rtcp.classify(data)
        requests = rtcp.to_senders(data, {1: rtcp.Route("a", 7)}, 9)
        assert len(rtcp.rewrite_ssrcs(data, {1: 2})) == len(data)
    except rtp.MediaError:
        return
    for built in requests.values():
        assert not rtcp.classify(built) & ~rtcp.TO_SENDER


_ICE = ice.Credentials("evtj", "VOkJxbRl1RmTxUk/WvJxBt")


def conference_frame(data: bytes) -> None:
    """A frame from a switch's CPU port, or cut by the data plane; what is read can be written, and is then the same."""
    with contextlib.suppress(FrameError):
        read_datagram(data, cut=True)
    with contextlib.suppress(FrameError):
        found = read_datagram(data)
        assert found is None or read_datagram(write_datagram(*found, bytes(6), bytes(6))) == found


def conference_stun(data: bytes) -> None:
    """A packet to a media port: whatever it is, at most it is answered, and then only with the right credentials."""
    found = ice.check(data, Endpoint.of("192.0.2.1", 4000), _ICE)
    assert found is None or (ice.is_stun(found.answer) and b"evtj:" in data)


class _Deaf:
    """Hands of an adaptation that do nothing; every sender has three targets."""

    def rates(self, conference: str, sender: str, kind: str) -> tuple[float, ...]:
        return (1e5, 2e5, 4e5)

    def target(self, conference: str, sender: str, receiver: str) -> int | None:
        return None

    def set_target(self, conference: str, sender: str, receiver: str, target: int) -> None:
        assert 0 <= target <= 2

    def needs_key_frame(self, conference: str, sender: str, kind: str) -> bool:
        return True

    def want_key_frame(self, conference: str, sender: str, kind: str) -> None:
        pass

    def tell(self, conference: str, what: str, **facts: Any) -> None:
        pass


def conference_feedback(data: bytes) -> None:
    """A receiver's compound: what goes on to its senders can be read again, and holds reports and estimates alone."""
    adaptation = Adaptation(_Deaf())
    for kind in ("audio", "video"):
        try:
            onward = adaptation.heard("room", "cem", kind, {1: "ann", 2: "bob"}, data)
        except rtp.MediaError:
            continue
        for built in onward.values():
            assert not rtcp.classify(built) & ~(rtcp.Kind.RR | rtcp.Kind.REMB)
    adaptation.view("room")


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        rtpproxy_command, rtpproxy_reply, control_framing, hep3, sip_message, rtp_packet, bfrt_schema, configuration, journal_row, bfrt_answer,
        conference_rtp, conference_rtcp, conference_frame, conference_stun, conference_feedback,
    )
}


def seeds() -> dict[str, list[bytes]]:
    """A few inputs of each kind that are as they should be, for the fuzzer to start from."""
    corpus = Path(__file__).resolve().parents[1] / "rtpproxy" / "corpus"
    wire = sorted({ast.literal_eval(found) for path in corpus.glob("*.txt") for found in re.findall(r"b'(?:[^'\\\\]|\\\\.)*'", path.read_text(errors="replace"))})
    invite = (
        b"INVITE sip:bob@198.18.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP 198.18.1.2:5060;branch=z9hG4bK1\r\nFrom: <sip:a@x>;tag=A\r\nTo: <sip:b@x>\r\n"
        b"Call-ID: c1\r\nCSeq: 1 INVITE\r\nContent-Type: application/sdp\r\nContent-Length: 115\r\n\r\n"
        b"v=0\r\no=- 1 1 IN IP4 198.18.1.2\r\ns=-\r\nc=IN IP4 198.18.1.2\r\nt=0 0\r\nm=audio 6000 RTP/AVP 8 0\r\na=rtpmap:8 PCMA/8000\r\n"
    )
    return {
        "rtpproxy_command": [
            b"1_2 Uc0,8 c1 198.18.1.2 6000 A;1 tcp:%%CC_SELF%%:9999 tag", b"1_2 Lc8 c1 198.18.2.2 7000 A;1 B;1", b"3 D c1 A B", b"4 VF 20040107",
            b"5 Q c1 A B", b"6 Uii c1 fd91::2 6000 A;1 && S ttl=3600", b"7 P1 c1 file codec A B", b"8 G npkts_relayed", b"9 U c1 198.18.1.2 6000 A;1 && ", *wire[::4],
        ],
        "rtpproxy_reply": [b"36000 198.18.0.1", b"36000 fd91::1", b"E50", b"0", b"Q c1 A B\n60 1 2 3 0", b"Qv c1 A B npkts_ina ttl\n12 60"],
        "control_framing": [b"udp:127.0.0.1:22221", b"unix:/run/x.sock", b"tcp:[::1]:9999", b"V\nI\n", b"active sessions: 1\npackets transmitted: 3\n"],
        "hep3": [hep.encode(hep.HepPacket(Endpoint.of("198.18.1.2", 5060), Endpoint.of("198.18.0.1", 5060), invite))],
        "sip_message": [
            invite, b"SIP/2.0 200 OK\r\nCall-ID: c1\r\nCSeq: 1 INVITE\r\nFrom: <sip:a@x>;tag=A\r\nTo: <sip:b@x>;tag=B\r\n\r\n",
            b"BYE sip:b SIP/2.0\r\ni: c1\r\nf: a;tag=A\r\nt: b;tag=B\r\nCSeq: 2 BYE\r\n\r\n",
        ],
        "rtp_packet": [bytes.fromhex("8008000100000001deadbeef") + bytes(20), bytes.fromhex("80c8000600000001") + bytes(20)],
        "conference_rtp": [
            bytes.fromhex("902e06d38c9a9a8bf8576f4f10000006") + b"\x0c\x14" + _DESCRIPTOR + b"\x00\x00" + bytes(8),
            bytes.fromhex("902e06d48c9a9a8bf8576f4fbede0002") + bytes.fromhex("c2c0000222010203") + bytes.fromhex("90e0a1b2c3a09d012a"),
        ],
        "conference_rtcp": [
            rtcp.build_rr(1) + rtcp.build_remb(1, 10**6, [1, 2]) + bytes.fromhex("80cf00040000000104000002eeabffd8510fa58f"),
            rtcp.build_nack(3, 1, [5, 6, 30]) + rtcp.build_fir(3, 1, 4) + rtcp.build_pli(3, 1),
        ],
        "conference_frame": [
            write_datagram(FiveTuple(Endpoint.of("10.2.0.2", 7001), Endpoint.of("10.9.0.1", 20001)), rtcp.build_pli(3, 1), bytes(6), bytes(6), 5),
            write_datagram(FiveTuple(Endpoint.of("fd02::2", 7001), Endpoint.of("fd09::1", 20001)), rtcp.build_rr(1), bytes(6), bytes(6)),
        ],
        "conference_stun": [
            bytes.fromhex(
                "000100582112a442b7e7a701bc34d686fa87dfae802200105354554e207465737420636c69656e74002400046e0001ff80290008932ff9b151263b36"
                "000600096576746a3a68367659202020000800149aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a280280004e57a3bcf"
            ),
        ],
        "conference_feedback": [rtcp.build_rr(1, [rtcp.Report(1, 30, 0, 1, 2, 3, 4)]) + rtcp.build_remb(1, 10**6, [1, 2]), rtcp.build_remb(1, 10**5, [])],
        "bfrt_schema": [json.dumps(document("relay")).encode()],
        "configuration": [
            b"builtin_relay: {addresses: [127.0.0.1]}\n",
            b"relays:\n  - {name: a, socket: 'udp:127.0.0.1:1', media: [{address: 10.0.0.1, ports: 35000-65000}]}\ndata_plane: {}\njournal: {redis: 'redis://h:1/0'}\n",
        ],
        "journal_row": [_row().encode()],
        "bfrt_answer": [b"", b"\x0a\x02\x0a\x00"],
    }


def _row() -> str:
    from shunt.calls.model import Call, new_line

    call = Call("c1", "r1", 1000.0, 1.0)
    call.lines.append(new_line(call, "A", 1, 1000.0, _POLICY))
    text = json.loads(encode_call(call))
    text["lines"][0]["legs"]["caller"]["relay"] = ["0a5b0101", 36000]
    return json.dumps(text)
