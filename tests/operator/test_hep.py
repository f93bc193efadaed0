"""The HEPv3 codec, the SIP reader behind it, and the listener on real sockets."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import socket
import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunt.config.values import SocketAddress
from shunt.hep import sip
from shunt.hep.codec import KIND_RTCP, UNKNOWN, HepError, HepPacket, decode, encode, frame_length
from shunt.hep.listener import HepListener, SipSighting, sighting
from shunt.net import Endpoint

A = Endpoint.of("192.0.2.10", 5060)
B = Endpoint.of("198.51.100.7", 5062)
LOOPBACK = [ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")]

BYE = (
    b"BYE sip:bob@198.51.100.7:5062 SIP/2.0\r\n"
    b"Via: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bK1;rport\r\n"
    b"Max-Forwards: 70\r\n"
    b'From: "Alice; tag=no" <sip:alice@example.org;tag=inside>;tag=a73kszlfl\r\n'
    b"To: <sip:bob@example.org>;tag=1410948204\r\n"
    b"Call-ID: f81d4fae-7dec@192.0.2.10\r\n"
    b"CSeq: 231 BYE\r\n"
    b"Content-Length: 0\r\n\r\n"
)
SDP = (
    b"v=0\r\no=- 1 1 IN IP4 192.0.2.10\r\ns=-\r\nc=IN IP4 192.0.2.10\r\nt=0 0\r\n"
    b"m=audio 6000/2 RTP/AVP 0\r\nb=AS:x\r\na=sendrecv\r\n"
    b"m=video 0 RTP/AVP 96\r\n"
    b"m=audio 7000 RTP/AVP 8\r\nc=IN IP6 2001:db8::5\r\n"
)


def with_body(body: bytes, content_type: bytes = b"application/sdp") -> bytes:
    return (
        b"SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 192.0.2.10\r\nFrom: <sip:a@x>;tag=1\r\nTo: <sip:b@x>;tag=2\r\n"
        b"Call-ID: c1\r\nCSeq: 1 INVITE\r\nContent-Type: " + content_type + b"\r\n"
        b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    )


def test_packet_survives_the_round_trip():
    packet = HepPacket(A, B, BYE, seconds=1_700_000_000, microseconds=42, capture_id=2001, correlation_id=b"x", protocol=6)
    assert decode(encode(packet)) == packet
    six = HepPacket(Endpoint.of("2001:db8::1", 5060), Endpoint.of("2001:db8::2", 5061), b"x")
    assert decode(encode(six)) == six


def test_bytes_are_those_of_the_specification():
    # Written out by hand from the HEPv3 layout, not with encode().
    packet = bytes.fromhex("48455033 0027 0000000300 0a c000020a 0000000700 08 13c4 0000000b 0007 01 0000000f 0008 4142".replace(" ", ""))
    got = decode(packet)
    assert (got.source, got.destination, got.kind, got.payload) == (A, UNKNOWN, 1, b"AB")


def test_chunks_of_other_vendors_and_unknown_ones_are_skipped():
    # Vendor 7's chunk 3 is not an IPv4 address, and chunk 999 is nothing we know.
    packet = bytes.fromhex("48455033 001c 000700030007ff 000003e70007ff 0000000f00084142".replace(" ", ""))
    assert decode(packet).payload == b"AB"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "0 bytes are too few"),
        (b"HEP3\x00", "5 bytes are too few"),
        (b"HEP3\x00\x05", "less than its own header"),
        (b"XXXX\x00\x06", "not b'HEP3'"),
        (b"\x02\x1c\x02\x11" + bytes(30), "HEP version 2; set the SIP server's tracing to version 3"),
        (b"HEP3\x00\xff", "announces 255 bytes but has 6"),
        (b"HEP3\x00\x06", "no payload chunk"),
        (b"HEP3\x00\x08\x00\x00", "2 bytes at byte 6 are too few for a chunk"),
        (b"HEP3\x00\x0c\x00\x00\x00\x0f\x00\x05", "chunk 15 at byte 6 announces 5 bytes"),
        (b"HEP3\x00\x0c\x00\x00\x00\x0f\x00\x07", "chunk 15 at byte 6 announces 7 bytes; 6 are left"),
        (b"HEP3\x00\x0d\x00\x00\x00\x03\x00\x07\x01", "chunk 3 at byte 6 holds 1 bytes instead of 4"),
        (b"HEP3\x00\x0d\x00\x00\x00\x10\x00\x07\x01", "cannot be inflated"),
    ],
)
def test_broken_packets_name_what_is_wrong(data, says):
    with pytest.raises(HepError, match=says.replace("(", r"\(")):
        decode(data)


def test_compressed_payload_is_bounded():
    def packet(payload: bytes) -> bytes:
        chunk = gzip.compress(payload)
        return b"HEP3" + struct.pack("!HHHH", 12 + len(chunk), 0, 16, 6 + len(chunk)) + chunk

    assert decode(packet(BYE)).payload == BYE
    with pytest.raises(HepError, match="larger than 65536"):
        decode(packet(bytes(10_000_000)))


def test_oversized_packet_is_refused_when_encoding():
    with pytest.raises(HepError, match="65535"):
        encode(HepPacket(A, B, bytes(65535)))


def test_mapped_address_becomes_ipv4():
    mapped = Endpoint(bytes(10) + b"\xff\xff" + A.addr, 5060)
    assert decode(encode(HepPacket(mapped, Endpoint.of("2001:db8::2", 1), b"x"))).source == A


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_the_named_errors(data):
    for candidate in (data, b"HEP3" + struct.pack("!H", 6 + len(data)) + data):
        try:
            seen = sighting(candidate)
        except (HepError, sip.SipError):
            continue
        assert seen is None or isinstance(seen, SipSighting)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_messages_raise_nothing_but_the_named_errors(data):
    whole = bytearray(encode(HepPacket(A, B, data.draw(st.sampled_from([BYE, with_body(SDP)])))))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(whole) - 1))
        what = data.draw(st.integers(0, 2))
        if what == 0:
            whole[at] = data.draw(st.integers(0, 255))
        elif what == 1:
            del whole[at : at + data.draw(st.integers(1, 20))]
            whole = whole or bytearray(b"H")
        else:
            whole[at:at] = data.draw(st.binary(max_size=20))
    for candidate in (bytes(whole), encode(HepPacket(A, B, bytes(whole)))):
        try:
            seen = sighting(candidate)
        except (HepError, sip.SipError):
            continue
        assert seen is None or (seen.method is None) != (seen.status is None)


@given(st.text(max_size=60), st.binary(max_size=200))
def test_a_bye_is_seen_whatever_another_header_holds(value, raw):
    line = b"X-Odd: " + value.encode("utf-8", "replace").replace(b"\r", b"").replace(b"\n", b"") + b"\r\n"
    noise = raw.replace(b"\r", b"").replace(b"\n", b"")
    # A line of noise that is itself a wanted header comes after the real ones, so it may not replace them.
    odd = BYE.replace(b"Content-Length: 0\r\n", line + b"q" + noise + b"\r\n")
    assert (lambda f: (f.method, f.call_id, f.from_tag, f.to_tag))(sip.parse(odd)) == ("BYE", "f81d4fae-7dec@192.0.2.10", "a73kszlfl", "1410948204")


def test_tags_come_from_the_header_and_not_from_name_or_uri():
    facts = sip.parse(BYE)
    assert facts == sip.SipMessageFacts("BYE", None, "f81d4fae-7dec@192.0.2.10", "a73kszlfl", "1410948204", "BYE", ())


COMPACT = (
    b"\r\n\r\nCANCEL sip:bob@x SIP/2.0\nv: SIP/2.0/UDP x\n folded : junk\ni:\n  abc@host\nF:\tsip:a@x\n ;TAG=77\nt : <sip:b@x>\nCSeq:\n 9\n CANCEL\n"
)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (COMPACT, ("CANCEL", None, "abc@host", "77", None, "CANCEL")),
        (BYE.replace(b"CSeq: 231 BYE\r\n", b""), ("BYE", None, "f81d4fae-7dec@192.0.2.10", "a73kszlfl", "1410948204", "BYE")),
        (BYE.replace(b"\r\n", b"\r"), ("BYE", None, "f81d4fae-7dec@192.0.2.10", "a73kszlfl", "1410948204", "BYE")),
        (BYE.replace(b"Via", b"X: 1\r\n" * 300 + b"Via"), ("BYE", None, "f81d4fae-7dec@192.0.2.10", "a73kszlfl", "1410948204", "BYE")),
        (BYE.replace(b"\r\n\r\n", b""), ("BYE", None, "f81d4fae-7dec@192.0.2.10", "a73kszlfl", "1410948204", "BYE")),
        (BYE.replace(b";tag=a73kszlfl", b""), ("BYE", None, "f81d4fae-7dec@192.0.2.10", "", "1410948204", "BYE")),
        (BYE.replace(b"BYE sip:bob@198.51.100.7:5062", b"BYE sip:bob smith@x"), ("BYE", None, "f81d4fae-7dec@192.0.2.10", "a73kszlfl", "1410948204", "BYE")),
        (BYE.replace(b";tag=a73kszlfl", b';x="; tag=no";tag=yes'), ("BYE", None, "f81d4fae-7dec@192.0.2.10", "yes", "1410948204", "BYE")),
        (COMPACT.replace(b"CSeq", b"From: <sip:a@x>;tag=78\nX"), ("CANCEL", None, "abc@host", "77", None, "CANCEL")),
        (with_body(b""), (None, 200, "c1", "1", "2", "INVITE")),
        (b"SIP/2.0 486\r\ni: c2\r\nf: <sip:a@x>;tag=1\r\nt: <sip:b@x>;tag=2\r\nCSeq: 1 INVITE\r\n\r\n", (None, 486, "c2", "1", "2", "INVITE")),
    ],
)
def test_odd_but_readable_messages(data, expected):
    facts = sip.parse(data)
    assert (facts.method, facts.status, facts.call_id, facts.from_tag, facts.to_tag, facts.cseq_method) == expected


@pytest.mark.parametrize("odd", [b"f8\xff4fae", "f8\u00e44fae".encode()])
def test_call_id_beyond_ascii_is_the_same_text_as_in_the_control_protocol(odd):
    assert sip.parse(BYE.replace(b"f81d4fae", odd)).call_id.encode("latin-1") == odd + b"-7dec@192.0.2.10"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "no SIP start line"),
        (BYE.replace(b"Call-ID", b"Call-XX"), "no Call-ID"),
        (b"SIP/2.0 999 What\r\nCall-ID: 1\r\n\r\n", "no SIP start line"),
    ],
)
def test_what_is_not_sip_is_named(data, says):
    with pytest.raises(sip.SipError, match=says):
        sip.parse(data)


def test_sdp_endpoints_by_media_line():
    expected = (Endpoint.of("192.0.2.10", 6000), Endpoint.of("192.0.2.10", 0), Endpoint.of("2001:db8::5", 7000))
    assert sip.parse(with_body(SDP)).sdp == expected
    multipart = b"--b1\r\nContent-Type: application/sdp\r\n\r\n" + SDP + b"\r\n--b1\r\nContent-Type: text/plain\r\n\r\nm=audio 1 x\r\n--b1--\r\n"
    assert sip.parse(with_body(multipart, b"multipart/mixed;boundary=b1")).sdp == expected
    assert sip.parse(with_body(b"m=audio 1 RTP/AVP 0\r\n", b"text/plain")).sdp == ()
    held = b"v=0\r\nc=IN IP4 0.0.0.0\r\nm=audio 6000 RTP/AVP 0\r\nm=audio 99999 RTP/AVP 0\r\nc=IN IP4 host.example\r\n"
    assert sip.sdp_endpoints(held) == (Endpoint(bytes(4), 6000), Endpoint(bytes(4), 0))


class Seen:
    """Collects sightings and lets a test wait for a number of them."""

    def __init__(self) -> None:
        self.all: list[SipSighting] = []
        self.arrived = asyncio.Event()

    def __call__(self, seen: SipSighting) -> None:
        if seen.call_id == "raise":
            raise RuntimeError("the callback's own trouble")
        self.all.append(seen)
        self.arrived.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.all) < count:
                self.arrived.clear()
                await self.arrived.wait()


@pytest.fixture(params=["udp", "tcp"])
async def listening(request):
    seen = Seen()
    listener = HepListener(SocketAddress(request.param, "127.0.0.1", 0), LOOPBACK, seen)
    await listener.start()
    yield listener, seen
    await listener.stop()


async def test_sightings_arrive_over_real_sockets(listening):
    listener, seen = listening
    kind = socket.SOCK_DGRAM if listener.listen.scheme == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as client:
        client.connect(("127.0.0.1", listener.listen.port))
        raising = encode(HepPacket(A, B, BYE.replace(b"f81d4fae-7dec@192.0.2.10", b"raise")))
        report = encode(HepPacket(A, B, b"{}", kind=KIND_RTCP))
        keepalive = encode(HepPacket(A, B, b"\r\n\r\n"))
        nonsense = encode(HepPacket(A, B, b"nonsense"))
        for packet in (raising, report, keepalive, nonsense, encode(HepPacket(A, B, BYE)), encode(HepPacket(B, A, with_body(SDP)))):
            client.send(packet)
        await seen.wait_for(2)
    bye, ok = seen.all
    assert (bye.method, bye.call_id, bye.source, bye.destination) == ("BYE", "f81d4fae-7dec@192.0.2.10", A, B)
    assert (ok.method, ok.status, ok.cseq_method, ok.source) == (None, 200, "INVITE", B)
    assert ok.sdp[0] == Endpoint.of("192.0.2.10", 6000)
    c = listener.counters
    assert (c.sightings, c.failed, c.not_sip, c.malformed, c.refused) == (2, 1, 2, 1, 0)


async def test_other_networks_are_refused():
    seen = Seen()
    listener = HepListener(SocketAddress("udp", "127.0.0.1", 0), [ipaddress.ip_network("127.0.0.2/32")], seen)
    await listener.start()
    try:
        for source in ("127.0.0.1", "127.0.0.2"):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.bind((source, 0))
                client.sendto(encode(HepPacket(A, B, BYE)), ("127.0.0.1", listener.listen.port))
        await seen.wait_for(1)
        assert (len(seen.all), listener.counters.refused) == (1, 1)
    finally:
        await listener.stop()


async def test_ipv4_client_of_an_any_address_listener_is_judged_as_ipv4():
    seen = Seen()
    listener = HepListener(SocketAddress("udp", "::", 0), LOOPBACK, seen)
    await listener.start()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(encode(HepPacket(A, B, BYE)), ("127.0.0.1", listener.listen.port))
        await seen.wait_for(1)
        assert listener.counters.refused == 0
    finally:
        await listener.stop()


async def test_tcp_stream_in_single_bytes_then_garbage_closes_only_that_connection():
    seen = Seen()
    listener = HepListener(SocketAddress("tcp", "127.0.0.1", 0), LOOPBACK, seen)
    await listener.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.listen.port)
        for byte in encode(HepPacket(A, B, BYE)):
            writer.write(bytes([byte]))
            await writer.drain()
        await seen.wait_for(1)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        _, again = await asyncio.open_connection("127.0.0.1", listener.listen.port)
        again.write(encode(HepPacket(A, B, BYE)))
        await seen.wait_for(2)
        again.close()
    finally:
        await listener.stop()
    assert listener.counters.malformed == 1


async def test_bound_port_is_named_in_the_error():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"HEP listener udp:127.0.0.1:{port}"):
            await HepListener(SocketAddress("udp", "127.0.0.1", port), LOOPBACK, Seen()).start()


def test_frame_length_is_the_announced_one():
    assert frame_length(encode(HepPacket(A, B, BYE))) == len(encode(HepPacket(A, B, BYE)))


def test_a_message_takes_well_under_a_millisecond():
    packet = encode(HepPacket(A, B, with_body(SDP)))
    best = min(_timed(packet) for _ in range(5))
    assert best < 0.001, f"{best * 1e6:.0f} us for one packet"


def _timed(packet: bytes) -> float:
    began = time.perf_counter()
    for _ in range(200):
        sighting(packet)
    return (time.perf_counter() - began) / 200
