"""Packets to rows: every way in which layers are told, with and without losses, and real streams through to the numbers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable

import pytest

from shunt.conference import descriptor, rtp
from shunt.conference.packets import Layers, MediaPacket, Reader, original_sequence, why_not_adapted, with_original_sequence
from shunt.conference.rtp import MediaError
from shunt.conference.sequence import LowRetransmission, Splice, Verdict
from tests.conference import captures, streams
from tests.conference.streams import Sent


def header(packet: Sent, *extension: bytes) -> bytes:
    """An RTP header; the marker ends a frame, a timestamp is one frame's."""
    data = b"".join(extension)
    data += bytes(-len(data) % 4)
    fixed = bytes((0x90 if data else 0x80, 0x60 | 0x80 * packet.end)) + packet.sequence.to_bytes(2, "big")
    fixed += (packet.frame * 3000 & 0xFFFFFFFF).to_bytes(4, "big") + b"\0\0\0\7"
    return fixed + (b"\xbe\xde" + (len(data) // 4).to_bytes(2, "big") + data if data else b"")


def marked(packet: Sent) -> bytes:
    first = 0x80 * packet.start | 0x40 * packet.end | 0x20 * packet.key | packet.layer
    return header(packet, bytes((0x32, first, 0, packet.index & 0xFF))) + b"payload"


def vp8(packet: Sent) -> bytes:
    picture = 0x8000 | packet.frame & 0x7FFF
    return header(packet) + bytes((0x80 | 0x10 * packet.start, 0xE0)) + picture.to_bytes(2, "big") + bytes((1, packet.layer << 6)) + b"\1payload"


def vp8_without_pictures(packet: Sent) -> bytes:
    return header(packet) + bytes((0x80 | 0x10 * packet.start, 0x20, packet.layer << 6)) + b"\1payload"


def vp9(packet: Sent) -> bytes:
    first = 0xA0 | 0x08 * packet.start | 0x04 * packet.end
    return header(packet) + bytes((first, packet.frame & 0x7F, packet.layer << 5, 0)) + b"payload"


WAYS: dict[str, tuple[Callable[[Sent], bytes], Callable[[], Reader]]] = {
    "frame marking": (marked, lambda: Reader(Layers.FRAME_MARKING, 3)),
    "VP8": (vp8, lambda: Reader(Layers.VP8)),
    "VP8 without picture ids": (vp8_without_pictures, lambda: Reader(Layers.VP8)),
    "VP9": (vp9, lambda: Reader(Layers.VP9)),
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_those_of_the_stream(way):
    build, make = WAYS[way]
    sent = list(streams.video(random.Random(1), 800, keys=50))
    reader = make()
    for packet in sent:
        read = reader.read(build(packet))
        for target in (0, 1, 2):
            row, told = read.row(target), packet.row(target)
            assert (row.sequence, row.start, row.end, row.keep) == (told.sequence, told.start, told.end, told.keep)
        assert read.frame == (packet.frame - sent[0].frame) & 0xFFFF


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", [0, 1])
def test_losses_and_reordering_read_from_packets(way, target):
    build, make = WAYS[way]
    rng = random.Random(2)
    sent = list(streams.video(rng, 8000))
    reader, rewriter = make(), LowRetransmission(history=16, window=64)
    oracle = streams.Oracle(sent, target)
    for packet in streams.network(rng, sent, loss=0.1, reorder=0.01):
        oracle.see(packet, rewriter.accept(reader.read(build(packet)).row(target)))
    assert oracle.duplicates == 0 and oracle.ordered()
    assert oracle.masked <= 0.001 * oracle.kept
    # Without a count of frames a lost frame may be any number of them: gaps stay that need not.
    assert oracle.overhead() < (0.05 if way in ("VP8", "VP9") else 0.2), oracle.overhead()


def test_where_receivers_without_a_descriptor_move_up():
    def read(way: str, **fields) -> MediaPacket:
        return WAYS[way][1]().read(WAYS[way][0](Sent(0, **{"layer": 0, "sequence": 9, "frame": 5, "start": True, "end": True, "key": False, **fields})))

    key = read("frame marking", key=True)
    assert key.changes(0, 2) and key.changes(0, 1) and key.changes(2, 0)
    base = read("frame marking")
    assert not base.changes(0, 1) and base.changes(2, 1)  # the next frame of layer 1 may depend on one that was left out
    assert not read("frame marking", key=True, start=False).changes(0, 2)
    one = header(Sent(0, 1, 9, 5, True, True, False), bytes((0x32, 0xC8 | 1, 0, 0)))
    sync = Reader(Layers.FRAME_MARKING, 3).read(one + b"x")
    assert sync.changes(0, 1) and not sync.changes(0, 2)
    assert Reader(Layers.VP8).read(bytes.fromhex("80e000010000000000000007" + "90e0800101" + "60" + "01")).changes(0, 1)
    assert Reader(Layers.VP8).read(bytes.fromhex("80e000010000000000000007" + "10" + "00")).changes(0, 2)


def test_what_a_reader_needs():
    with pytest.raises(ValueError, match="frame-marking: extension id None"):
        Reader(Layers.FRAME_MARKING)
    with pytest.raises(ValueError, match="vp8: extension id 3"):
        Reader(Layers.VP8, 3)


def test_packets_without_what_tells_layers_go_to_everybody():
    packet = Sent(0, 0, 10, 5, True, True, False)
    for layers in (Layers.FRAME_MARKING, Layers.DEPENDENCY_DESCRIPTOR):
        read = Reader(layers, 3).read(header(packet, b"\x20\x00\x00") + b"x")
        assert read.needed_by == descriptor.EVERYBODY and not read.empty
    padding = b"\xa0" + header(packet)[1:12] + b"\0\0\0\4"
    read = Reader(Layers.VP8).read(padding)
    assert read.empty and read.row(0).keep
    with pytest.raises(MediaError):
        Reader(Layers.VP8).read(header(packet) + b"\x80")


# -- what Chromium sent --------------------------------------------------------------------------------------------


def video_of(name: str) -> Iterable[tuple[bytes, rtp.Header]]:
    identity = captures.extension_id(name)
    main = None
    for datagram in captures.datagrams(name):
        data = datagram.payload
        if data[0] >> 6 == 2 and not rtp.is_rtcp(data):
            found = rtp.parse_header(data)
            if found.payload_type != 111 and rtp.find_element(data, found, identity) is not None:
                if main is None and f"ssrc={found.ssrc} pt={found.payload_type} rtx" not in captures.summary(name):
                    main = found.ssrc
                if found.ssrc == main:
                    yield data, found


VIDEOS = [name for name in captures.names() if "l1t3" in name or name.startswith("k1")]


@pytest.mark.skipif(not VIDEOS, reason="no captures beside the repository (../shared/captures)")
@pytest.mark.parametrize("name", VIDEOS or ["none"])
@pytest.mark.parametrize("target", [0, 1])
def test_captures_at_15_and_7_5_frames(name, target):
    """A receiver gets every second or fourth frame, whole, in numbers without a gap, also across a change of structure."""
    reader, rewriter = Reader(Layers.DEPENDENCY_DESCRIPTOR, captures.extension_id(name)), LowRetransmission()
    frames: dict[int, int] = {}
    numbers, kept_frames = [], []
    for data, _ in video_of(name):
        read = reader.read(data)
        frames[read.frame] = read.needed_by
        outcome = rewriter.accept(read.row(target))
        if outcome.verdict is Verdict.FORWARD:
            numbers.append(outcome.position)
            kept_frames.append(read.frame)
    assert [(b - a) & 0xFFFF for a, b in zip(numbers, numbers[1:])] == [1] * (len(numbers) - 1)
    assert set(kept_frames) == {frame for frame, mask in frames.items() if mask >> target & 1}
    assert abs(len(set(kept_frames)) / len(frames) - (0.25, 0.5)[target]) < 0.02


@pytest.mark.skipif(not VIDEOS, reason="no captures beside the repository (../shared/captures)")
@pytest.mark.parametrize("name", VIDEOS or ["none"])
def test_captures_with_losses(name):
    """What another reader of the layers would keep, lost at random: nothing twice, nothing hidden, hardly anything asked for in vain."""
    packets: list[MediaPacket] = []
    reader = Reader(Layers.DEPENDENCY_DESCRIPTOR, captures.extension_id(name))
    packets = [reader.read(data) for data, _ in video_of(name)]
    for seed in range(10):
        rng = random.Random(seed)
        sent = [Sent(n, 0 if packet.row(1).keep else 2, packet.header.sequence, packet.frame, packet.start, packet.end, packet.to_agent) for n, packet in enumerate(packets)]
        oracle = streams.rehearse(sent, streams.network(rng, sent, loss=0.1, reorder=0.02), 1, LowRetransmission(history=8, window=64).accept)
        assert oracle.duplicates == 0 and oracle.ordered()
        assert oracle.masked == 0 and oracle.overhead() < 0.03


@pytest.mark.skipif(not VIDEOS, reason="no captures beside the repository (../shared/captures)")
@pytest.mark.parametrize("name", VIDEOS or ["none"])
def test_after_changes_of_target_every_frame_has_the_frames_it_depends_on(name):
    """Up where the stream allows it, down anywhere: frame differences of the descriptor only name frames that were forwarded."""
    identity = captures.extension_id(name)
    rng = random.Random(3)
    reader, known, ups = Reader(Layers.DEPENDENCY_DESCRIPTOR, identity), None, 0
    rewriters = {target: LowRetransmission() for target in range(3)}
    splice, wanted = Splice(0), 0
    forwarded, numbers = set(), []
    for data, found in video_of(name):
        packet = reader.read(data)
        parsed = descriptor.parse(rtp.find_element(data, found, identity), known)
        known = parsed.structure or known
        if rng.random() < 0.1:
            wanted = rng.randrange(3)
        before = splice.target
        outcomes = {target: rewriter.accept(packet.row(target)) for target, rewriter in rewriters.items()}
        number = splice.accept(wanted, packet.changes(before, wanted), outcomes)
        ups += splice.target > before
        if number is not None:
            numbers.append(number)
            assert all((packet.frame - diff) & 0xFFFF in forwarded for diff in parsed.template.fdiffs), packet
            forwarded.add(packet.frame)
    assert ups > 5
    assert [(b - a) & 0xFFFF for a, b in zip(numbers, numbers[1:])] == [1] * (len(numbers) - 1)


@pytest.mark.skipif(not VIDEOS, reason="no captures beside the repository (../shared/captures)")
def test_vp9_descriptors_say_the_same_as_the_dependency_descriptor():
    name = next(name for name in VIDEOS if "vp9" in name)
    by_descriptor, by_payload = Reader(Layers.DEPENDENCY_DESCRIPTOR, captures.extension_id(name)), Reader(Layers.VP9)
    first, ups = None, 0
    for data, _ in video_of(name):
        one, other = by_descriptor.read(data), by_payload.read(data)
        first = one.frame if first is None else first
        assert ((one.frame - first) & 0xFFFF, one.start, one.end) == (other.frame, other.start, other.end)
        assert [one.row(target).keep for target in range(3)] == [other.row(target).keep for target in range(3)]
        for old in range(3):
            for new in range(3):
                assert not other.changes(old, new) or one.changes(old, new), (one, other)
        ups += other.changes(0, 2)
    assert ups > 50


# -- retransmissions and SRTP --------------------------------------------------------------------------------------


def test_a_retransmission_names_the_number_that_its_receiver_knows():
    data = bytes.fromhex("802f0001000000000000000905dc" + "c0ffee")
    found = rtp.parse_header(data)
    assert original_sequence(data, found) == 1500
    changed = with_original_sequence(data, found, 65536 + 7)
    assert original_sequence(changed, found) == 7 and changed[:12] + changed[14:] == data[:12] + data[14:]
    padding = bytes.fromhex("a02f00010000000000000009" + "00000004")
    assert original_sequence(padding, rtp.parse_header(padding)) is None
    short = bytes.fromhex("802f0001000000000000000905")
    with pytest.raises(MediaError, match="RTX payload of 1 byte"):
        original_sequence(short, rtp.parse_header(short))


@pytest.mark.skipif(not VIDEOS, reason="no captures beside the repository (../shared/captures)")
@pytest.mark.parametrize("name", VIDEOS or ["none"])
def test_retransmissions_in_captures_are_copies_of_packets_that_were_sent(name):
    sent, again, padding = {}, 0, 0
    rtx = {int(ssrc) for ssrc in re.findall(r"ssrc=(\d+) pt=\d+ rtx", captures.summary(name))}
    for datagram in captures.datagrams(name):
        data = datagram.payload
        if data[0] >> 6 != 2 or rtp.is_rtcp(data):
            continue
        found = rtp.parse_header(data)
        if found.ssrc not in rtx:
            sent[found.sequence, found.timestamp] = data[found.payload]
        elif (number := original_sequence(data, found)) is None:
            padding += 1
        else:
            assert sent[number, found.timestamp] == data[found.payload][2:]
            again += 1
    told = re.search(r"rtx/90000: (\d+) pkts.*padding-only pkts (\d+)", captures.summary(name))
    assert (again + padding, padding) == (int(told[1]), int(told[2]))


def test_srtp_is_not_adapted_and_the_reason_is_said():
    assert why_not_adapted("RTP/AVP") is None and why_not_adapted("rtp/avpf") is None
    for transport in ("RTP/SAVP", "UDP/TLS/RTP/SAVPF"):
        assert why_not_adapted(transport) == f"{transport}: SRTP authenticates sequence numbers, which leaving out layers has to rewrite"
    assert "no RTP transport" in why_not_adapted("UDP/DTLS/SCTP")
