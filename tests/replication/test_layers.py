"""Layers in the kernel: what a packet says of itself, the tree that it goes into, and the numbers that its receivers see.

The programs are held against shunt.conference, which describes all of it, and against the packet rows that every
implementation is held against.
"""

from __future__ import annotations

import json
import os
import random
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from shunt.conference import descriptor, rtp
from shunt.conference.packets import Layers, MediaPacket, Reader
from shunt.conference.rtp import MediaError
from shunt.conference.sequence import LowRetransmission, Row, Splice
from shunt.net import Endpoint, FiveTuple
from shunt_softswitch import layout, libbpf
from shunt_softswitch.entries import BfrtError
from shunt_softswitch.replication import TRACKS, Action, Layer, Rewrite, StreamKey
from tests.conference import streams, vectors
from tests.conference.test_packets import WAYS
from tests.dataplane.lab import HOST_A4, RELAY_A4
from tests.replication.conftest import Bridge, Party, settled
from tests.replication.test_copies import frame

pytestmark = pytest.mark.netns

SSRC, NUMBER, TREE, LAYERS, EXTENSION = 7, 8, 5, 3, 12
EVERY = 0xF  # switches: whoever can decode it can decode all from there on
DESCRIPTORS = {Layers.DEPENDENCY_DESCRIPTOR: 1, Layers.FRAME_MARKING: 2, Layers.VP8: 3, Layers.VP9: 4}
VERDICTS = ("forward", "suppress", "late", "repeated")
CASES = [case for case in json.loads(vectors.FILE.read_text())["cases"] if not case["history"]]


def named(cases: list[dict]) -> dict:
    return {"argvalues": cases, "ids": [case["name"] for case in cases]}


def media(row: Row, template: int, payload: bytes = b"", *, ssrc: int = SSRC, before: bytes = b"", form: int = 1) -> bytes:
    """An RTP packet with a dependency descriptor among its header extensions; `before`: other elements. A key packet says that a structure follows."""
    data = bytes((row.start << 7 | row.end << 6 | template,)) + row.frame.to_bytes(2, "big") + (b"\x80" if row.key else b"")
    elements = before + (bytes((EXTENSION << 4 | len(data) - 1,)) if form == 1 else bytes((EXTENSION, len(data)))) + data
    elements += bytes(-len(elements) % 4)
    head = struct.pack("!BBHII", 0x90, 96, row.sequence, row.frame * 3000 & 0xFFFFFFFF, ssrc)
    return head + struct.pack("!HH", 0xBEDE if form == 1 else 0x1005, len(elements) // 4) + elements + payload


class Judged(NamedTuple):
    """What ingress made of a packet."""

    layer: int
    frame: int
    start: bool
    end: bool
    outcomes: list[tuple[str, int | None]]
    switches: int
    decodable: int


class Ingress:
    """The program, run on single packets on one processor; what it left for egress."""

    def __init__(self, bridge: Bridge, action: Action) -> None:
        self._bridge = bridge
        self.key = StreamKey(FiveTuple(Endpoint.of(HOST_A4, 5000), Endpoint.of(RELAY_A4, 6000)), SSRC)
        bridge.replication.insert_stream(self.key, action)
        self._program = bridge.replication.program(bridge.plane.interfaces()[0][2] == "generic", False)
        (self._cpu,) = os.sched_getaffinity(0)

    def judge(self, packet: bytes) -> Judged:
        verdict = libbpf.test_run(self._program, frame(self.key.flow, packet, "full")).retval
        assert layout.VERDICTS[verdict] == "drop", "a packet of the stream, for which there are no copies"
        groups = libbpf.per_cpu(self._bridge.replication.maps()["c_groups"], 0, libbpf.map_info(self._bridge.replication.maps()["c_groups"])[1])[self._cpu]
        (following,) = struct.unpack_from("<I", groups)
        at = len(groups) - 512 * 52 + (following - 1) % 512 * 52 + 16
        found = [struct.unpack_from("<BBBxH", groups, at + 6 * n) for n in range(4)]
        frame_number, layer, flags, switches, decodable = struct.unpack_from("<HBBBB", groups, at + 26)
        outcomes = [(VERDICTS[verdict], position if there else None) for verdict, _, there, position in found]
        return Judged(layer, frame_number, bool(flags & 2), bool(flags & 4), outcomes, switches, decodable)


@pytest.fixture
def one_cpu() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def adapted(**more: int) -> Action:
    """A stream with a dependency descriptor, three trees and rewritten numbers."""
    return Action(TREE, 0, 0, 0, NUMBER, **{"trees": 3, "layers": LAYERS, "extension": EXTENSION, "descriptor": 1, "track": 1, **more})


# What a packet says


def opens(row: list) -> bool:
    """Whether a row's packet has a structure: its frame is everybody's, so the program suppresses none (words.h by itself does: tests/conference)."""
    return bool(row[5])


@pytest.mark.parametrize("case", **named([case for case in CASES if case["algorithm"] == "S-LR" and not any(opens(row) and not row[4] for row in case["rows"])]))
def test_packet_rows(bridge: Bridge, one_cpu: None, case: dict) -> None:
    """The rows of S-LR, as packets through the real program: of target 0, for which template 1 is suppressed."""
    for template in range(2):
        bridge.replication.put_layer(LAYERS, template, Layer(template, EVERY))
    ingress = Ingress(bridge, adapted())
    for row in case["rows"]:
        packet = Row(*row[:2], *map(bool, row[2:6]))
        assert ingress.judge(media(packet, not packet.keep)).outcomes[0] == (row[6], row[7]), row


@pytest.mark.parametrize("seed", range(2))
def test_the_reference_on_bad_networks(bridge: Bridge, one_cpu: None, seed: int) -> None:
    """Every target of a stream over networks that lose, reorder and double: as the reference says, and no number twice."""
    rng = random.Random(seed)
    for template in range(3):
        bridge.replication.put_layer(LAYERS, template, Layer(template, EVERY))
    ingress, references = Ingress(bridge, adapted()), [LowRetransmission() for _ in range(3)]
    given: list[set[int]] = [set(), set(), set()]
    sent = list(streams.video(rng, 900, streams.SMALL if seed else streams.LARGE, keys=61, slips=0.02))
    for packet in streams.network(rng, sent, loss=0.1, burst=1 + seed, reorder=0.1, repeat=0.05):
        judged = ingress.judge(media(packet.row(0), packet.layer))
        for target, reference in enumerate(references):
            outcome = reference.accept(packet.row(target))
            assert judged.outcomes[target] == (outcome.verdict.value, outcome.position)
            if judged.outcomes[target][0] == "forward":
                assert outcome.position not in given[target]
                given[target].add(outcome.position)
    assert all(len(numbers) > 100 for numbers in given)


@pytest.mark.parametrize("way", WAYS)
def test_the_other_ways_to_tell_a_layer(bridge: Bridge, one_cpu: None, way: str) -> None:
    """Temporal ids, frames that are counted, and where receivers may move up: as the reader says."""
    build, make = WAYS[way]
    reader = make()
    for layer in range(3):
        bridge.replication.put_layer(LAYERS, layer, Layer(layer))
    ingress = Ingress(bridge, adapted(extension=3 if way == "frame marking" else 0, descriptor=DESCRIPTORS[reader._layers]))
    references = [LowRetransmission() for _ in range(3)]
    for packet in streams.network(random.Random(5), list(streams.video(random.Random(1), 900, keys=50)), loss=0.05):
        raw = build(packet)
        read, judged = reader.read(raw), ingress.judge(raw)
        assert (judged.layer, judged.frame, judged.start, judged.end) == (packet.layer, read.frame, read.start, read.end)
        for target, reference in enumerate(references):
            outcome = reference.accept(read.row(target))
            assert judged.outcomes[target] == (outcome.verdict.value, outcome.position)
            for current in range(3):
                assert bool(judged.switches >> target & judged.decodable >> current & 1) == bool(read.switches >> target & read.decodable >> current & 1)


def elements(draw: random.Random) -> tuple[bytes, int]:
    """Header extensions with a descriptor somewhere among them, or nowhere; which form."""
    form = draw.choice((1, 2))
    found = b""
    for _ in range(draw.randrange(6)):
        identity, size = draw.randrange(1, 15), draw.randrange(1, 9)
        found += bytes(draw.choice((0, 0, 1, 3)))
        found += (bytes((identity << 4 | size - 1,)) if form == 1 else bytes((identity, size))) + draw.randbytes(size)
    return found, form


def told_by_descriptor(raw: bytes) -> tuple[int, bool, bool]:
    """Layer, first and last packet of a frame; raises MediaError."""
    found = rtp.find_element(raw, rtp.parse_header(raw), EXTENSION)
    if found is None:
        return 0, True, True
    told = descriptor.parse_mandatory(found)
    return 0 if descriptor.has_structure(found) else told.template_id % 4, told.start, told.end


def told_by_reader(read: MediaPacket) -> tuple[int, bool, bool]:
    return ((read.needed_by & -read.needed_by).bit_length() - 1) % 4, read.start, read.end


@pytest.mark.parametrize("layers", DESCRIPTORS)
def test_hostile_headers(bridge: Bridge, one_cpu: None, layers: Layers) -> None:
    """Any bytes: read as the reader reads them, and where it refuses them the packet is everybody's."""
    draw = random.Random(11)
    for template in range(64):
        bridge.replication.put_layer(LAYERS, template, Layer(template % 4, EVERY))
    extended = layers in (Layers.DEPENDENCY_DESCRIPTOR, Layers.FRAME_MARKING)
    ingress = Ingress(bridge, adapted(extension=EXTENSION if extended else 0, descriptor=DESCRIPTORS[layers], track=0))
    told = 0
    for nth in range(700):
        before, form = elements(draw)
        packet = bytearray(media(Row(nth, nth, *(draw.random() < 0.5 for _ in range(2)), True, draw.random() < 0.1), draw.randrange(64), draw.randbytes(20), before=before, form=form))
        for _ in range(draw.choice((0, 0, 1, 3))):
            packet[draw.choice((0, draw.randrange(12, len(packet))))] = draw.choice((0x80, 0x90, 0xB0, 0x9F, 0, 0xFF, draw.randrange(256)))
        packet[0] = packet[0] & 0x3F | 0x80
        raw = bytes(packet)
        judged = ingress.judge(raw)
        try:
            expected = told_by_descriptor(raw) if layers is Layers.DEPENDENCY_DESCRIPTOR else told_by_reader(Reader(layers, EXTENSION if extended else None).read(raw))
        except MediaError as error:
            if "VP9 payload descriptor" in str(error):
                continue  # what is behind the layer is of no interest
            expected = 0, True, True
        assert (judged.layer, judged.start, judged.end) == expected, raw.hex()
        told += judged.layer > 0
    assert told > 60
    bridge.replication.poll_agent(1 << 16)


# Who gets it


class Room:
    """A stream with three trees, and receivers of different targets."""

    def __init__(self, bridge: Bridge, targets: list[int], action: Action, *, cadence: int = 0, everything: bool = False) -> None:
        self.bridge, self.action = bridge, action
        for template in range(3):
            bridge.replication.put_layer(LAYERS, template, Layer(template, EVERY))
        self.parties: list[Party] = []
        for rid, target in enumerate(targets, 1):
            party = bridge.party(rid, NUMBER, node=100 * rid)
            bridge.replication.modify_copy(NUMBER, rid, Rewrite(party.relay, party.here, 0, target, rid if action.track or cadence else 0, cadence))
            for tree in range(3):
                bridge.replication.insert_node(1000 * (tree + 1) + rid, rid, [0], [])
            self.parties.append(party)
        for tree in range(3):
            bridge.replication.insert_tree(TREE + tree, [(1000 * (tree + 1) + rid, None) for rid, target in enumerate(targets, 1) if everything or target >= tree])
        self.sender, self.key = bridge.sender(SSRC)
        bridge.replication.insert_stream(self.key, action)

    def retarget(self, rid: int, target: int) -> None:
        before = self.bridge.replication.copy(NUMBER, rid)
        assert before is not None
        self.bridge.replication.modify_copy(NUMBER, rid, before._replace(target=target))

    def send(self, packet: bytes) -> None:
        self.sender.socket.sendto(packet, (str(self.sender.relay.ip), self.sender.relay.port))


def got(party: Party) -> list[tuple[int, int]]:
    """(number, index of the packet) of what a receiver got; checksums were right, or the kernel would not have let it through."""
    found = []
    party.socket.setblocking(False)
    try:
        while True:
            data = party.socket.recv(4096)
            found.append((struct.unpack_from("!H", data, 2)[0], struct.unpack("!I", data[-4:])[0]))
    except BlockingIOError:
        return found


def test_each_layer_has_its_tree(bridge: Bridge) -> None:
    room = Room(bridge, [0, 1, 2], adapted(track=0))
    sent = list(streams.video(random.Random(1), 300))
    for packet in sent:
        room.send(media(packet.row(2), packet.layer, packet.index.to_bytes(4, "big")))
    settled()
    for target, party in enumerate(room.parties):
        assert got(party) == [(packet.sequence, packet.index) for packet in sent if packet.layer <= target]
    for layer in range(3):
        assert bridge.replication.count_layer(LAYERS, layer).packets == sum(packet.layer == layer for packet in sent)
    bridge.replication.put_layer(LAYERS, 2, Layer(2, 1))
    assert bridge.replication.count_layer(LAYERS, 2).packets > 0, "another row of the template counts on"
    # An id without a row is everybody's.
    room.send(media(Row(1, 2, True, True, True), 40, bytes(4)))
    settled()
    assert [got(party) for party in room.parties] == [[(1, 0)]] * 3


def test_the_row_moves_all_layers_at_once(bridge: Bridge) -> None:
    """Other trees, other layers, no layers: each packet has the copies of one state."""
    room = Room(bridge, [0, 1, 2], adapted(track=0))
    sent = list(streams.video(random.Random(1), 200))
    for packet in sent:
        if packet.index % 20 == 0:
            bridge.replication.modify_stream(room.key, (room.action, Action(TREE, 0, 0, 0, NUMBER))[packet.index // 20 % 2])
        room.send(media(packet.row(2), packet.layer, packet.index.to_bytes(4, "big")))
        if packet.index % 20 == 19:
            settled(0.01)
    settled()
    plain = {packet.index for packet in sent if packet.index // 20 % 2}  # everything goes into the tree of all
    for target, party in enumerate(room.parties):
        assert [index for _, index in got(party)] == [packet.index for packet in sent if packet.index in plain or packet.layer <= target]


def test_receivers_change_targets_without_gaps(bridge: Bridge) -> None:
    """Bad networks before the switch, and targets that change all the time: each receiver's numbers are the reference's, never one twice."""
    room = Room(bridge, [2, 1, 0], adapted(), everything=True)
    rng = random.Random(3)
    wanted = {1: 2, 2: 1, 3: 0}
    splices = {rid: Splice(target) for rid, target in wanted.items()}
    rewriters = [LowRetransmission() for _ in range(3)]
    expected: dict[int, list[tuple[int, int]]] = {rid: [] for rid in wanted}
    changed = 0
    sent = list(streams.video(rng, 6000, streams.SMALL))
    for nth, packet in enumerate(streams.network(rng, sent, loss=0.05, reorder=0.05, repeat=0.02)):
        if nth % 50 == 0:
            settled(0.004)
            rid, target = rng.randrange(1, 4), rng.randrange(3)
            wanted[rid] = target
            room.retarget(rid, target)
        outcomes = {target: rewriter.accept(packet.row(target)) for target, rewriter in enumerate(rewriters)}
        for rid, splice in splices.items():
            before = splice.target
            changes = packet.start and (wanted[rid] < before or packet.layer <= before)
            number = splice.accept(wanted[rid], changes, outcomes)
            changed += splice.target != before
            if number is not None:
                expected[rid].append((number, packet.index))
        room.send(media(packet.row(0), packet.layer, packet.index.to_bytes(4, "big")))
    settled()
    assert changed > 50
    for rid, party in enumerate(room.parties, 1):
        found = got(party)
        assert found == expected[rid]
        assert len({number for number, _ in found}) == len(found) > 1000


def test_nothing_lost_before_the_switch_leaves_no_gap_behind_it(bridge: Bridge) -> None:
    room = Room(bridge, [2], adapted(), everything=True)
    counts = []
    for packet in streams.video(random.Random(8), 4000, streams.SMALL):
        if packet.index % 500 == 250:
            settled(0.01)
            room.retarget(1, (1, 0, 1, 2)[packet.index // 500 % 4])
            counts.append(packet.index)
        room.send(media(packet.row(0), packet.layer, packet.index.to_bytes(4, "big")))
    settled()
    found = got(room.parties[0])
    first = found[0][0]
    assert [number for number, _ in found] == [first + n & 0xFFFF for n in range(len(found))]
    assert 1500 < len(found) < 4000 and counts


@pytest.mark.parametrize("case", **named([case for case in CASES if case["algorithm"] == "S-LM"]))
def test_packet_rows_without_a_track(bridge: Bridge, case: dict) -> None:
    """S-LM: the receiver's numbers from what it gets, and the cadence that signalling knows."""
    room = Room(bridge, [0], adapted(track=0), cadence=case["cadence"][0] & 15)
    for nth, row in enumerate(case["rows"]):
        room.send(media(Row(*row[:2], *map(bool, row[2:6])), 0, nth.to_bytes(4, "big")))
    settled()
    assert got(room.parties[0]) == [(row[7], nth) for nth, row in enumerate(case["rows"]) if row[6] == "forward"]


def test_a_frame_with_a_structure_is_everybodys_whatever_the_rows_say(bridge: Bridge, one_cpu: None) -> None:
    """Rows of an earlier structure stand where a new one begins: its first frame goes to all, whole, and whoever moves up may do so there."""
    bridge.replication.put_layer(LAYERS, 5, Layer(2, 0))
    ingress = Ingress(bridge, adapted())
    said = [
        ingress.judge(media(Row(sequence, frame_number, start, end, True, key), 5)) for sequence, frame_number, start, end, key in (
            (1, 10, True, True, False), (2, 11, True, False, True), (3, 11, False, False, False), (4, 11, False, True, False), (5, 12, True, True, False),
            (6, 12 + 300, True, True, False), (7, 11, True, True, False),  # long after, as another frame may be numbered again
        )
    ]  # fmt: skip
    assert [(one.layer, one.switches, one.decodable & 0xF) for one in said] == [
        (2, 0, 0xC), (0, 0xFF, 0xF), (0, 0xFF, 0xF), (0, 0xFF, 0xF), (2, 0, 0xC), (2, 0, 0xC), (2, 0, 0xC),
    ]  # fmt: skip
    assert [one.outcomes[0][0] for one in said[1:5]] == ["forward", "forward", "forward", "suppress"], "target 0"


def test_the_agent_gets_packets_with_a_template_structure(bridge: Bridge) -> None:
    """Within a limit: what a stream sends beyond it is counted and goes on to its receivers alone."""
    room = Room(bridge, [2], adapted())
    before = bridge.replication.agent_counts()
    packets = [media(Row(n, n, True, True, True, n % 10 == 0), 0, n.to_bytes(4, "big")) for n in range(30)]
    for packet in packets:
        room.send(packet)
    settled()
    assert [packet[42:] for _, packet in bridge.replication.poll_agent()] == packets[::10]
    for n in range(200):
        room.send(media(Row(30 + n, 30 + n, True, True, True, True), 0, n.to_bytes(4, "big")))
    settled()
    found = len(bridge.replication.poll_agent(1000))
    after = bridge.replication.agent_counts()
    assert 61 <= found < 200 and after["agent_packets"] - before["agent_packets"] == found + 3
    assert after["agent_suppressed"] - before["agent_suppressed"] == 200 - found
    assert len(got(room.parties[0])) == 230


def test_numbers_go_on_over_another_address_and_begin_anew_with_another_stream(bridge: Bridge) -> None:
    room = Room(bridge, [0], adapted())
    sent = list(streams.video(random.Random(2), 300))
    for packet in sent[:150]:
        room.send(media(packet.row(0), packet.layer, packet.index.to_bytes(4, "big")))
    settled()
    made, key = bridge.sender(SSRC)
    bridge.replication.insert_stream(key, room.action)
    bridge.replication.delete_stream(room.key)
    room.sender = made
    for packet in sent[150:]:
        room.send(media(packet.row(0), packet.layer, packet.index.to_bytes(4, "big")))
    settled()
    kept = [packet for packet in sent if packet.layer == 0]
    numbers = [number for number, _ in got(room.parties[0])]
    assert numbers == [kept[0].sequence + n & 0xFFFF for n in range(len(kept))]
    bridge.replication.delete_stream(key)
    bridge.replication.delete_copy(NUMBER, 1)
    bridge.replication.insert_copy(NUMBER, 1, Rewrite(room.parties[0].relay, room.parties[0].here, 0, 0, 1))
    bridge.replication.insert_stream(key, room.action)
    room.send(media(Row(7777, 1, True, True, True), 0, bytes(4)))
    settled()
    assert got(room.parties[0]) == [(7777, 0)]


def test_a_sender_that_begins_anew_far_back_is_followed(bridge: Bridge) -> None:
    """When nothing else has come for a while: its second packet gets the number that is next. A single stray from far back changes nothing."""
    room = Room(bridge, [2, 1], adapted(), everything=True)
    for n in range(50):
        room.send(media(Row(40_000 + n, n, True, True, True), 0, n.to_bytes(4, "big")))
    time.sleep(2.6)
    for n in (9_000, 20_000, 20_001, 20_002, 20_003):
        room.send(media(Row(n, n, True, True, True), 0, n.to_bytes(4, "big")))
    settled()
    for party in room.parties:
        assert [number for number, _ in got(party)] == [40_000 + n for n in range(53)]
    # While others come nothing is followed.
    for n in range(20):
        room.send(media(Row(20_004 + n, 20_004 + n, True, True, True), 0, bytes(4)))
        room.send(media(Row(3_000 + n, n, True, True, True), 0, bytes(4)))
    settled()
    assert [len(got(party)) for party in room.parties] == [20, 20]


@pytest.mark.parametrize("version", [4, 6])
def test_receivers_of_either_version_beside_each_other(bridge: Bridge, version: int) -> None:
    """Checksums, the kernel's own and complete ones, hold after the number has been rewritten."""
    for template in range(3):
        bridge.replication.put_layer(LAYERS, template, Layer(template, EVERY))
    parties = [bridge.party(1, NUMBER, "b", 4), bridge.party(2, NUMBER, "b", 6), bridge.party(3, NUMBER, "a", 4)]
    for party in parties:
        bridge.replication.modify_copy(NUMBER, party.rid, Rewrite(party.relay, party.here, 0, 1, party.rid))
    bridge.replication.insert_tree(TREE, [(party.rid, None) for party in parties])
    sender, key = bridge.sender(SSRC, version)
    bridge.replication.insert_stream(key, adapted(trees=1))
    sent = list(streams.video(random.Random(6), 400, streams.SMALL))
    before = bridge.lab.checksum_errors("b")
    for packet in sent:
        sender.socket.sendto(media(packet.row(0), packet.layer, packet.index.to_bytes(4, "big")), (str(sender.relay.ip), sender.relay.port))
    settled()
    kept = [packet.index for packet in sent if packet.layer <= 1]
    for party in parties:
        found = got(party)
        assert [index for _, index in found] == kept and [number for number, _ in found] == [found[0][0] + n & 0xFFFF for n in range(len(found))]
    assert bridge.lab.checksum_errors("b") == before


def test_what_is_refused(bridge: Bridge) -> None:
    key = StreamKey(FiveTuple(Endpoint.of(HOST_A4, 5000), Endpoint.of(RELAY_A4, 6000)), SSRC)
    for action in (adapted(descriptor=5), adapted(track=1 << 16), Action(0xFFFF, 0, 0, 0, NUMBER, trees=2)):
        with pytest.raises(BfrtError):
            bridge.replication.insert_stream(key, action)
    assert bridge.replication.stream(key) is None
    for more in ({"splice": TRACKS + 1}, {"target": 4}):
        with pytest.raises(BfrtError):
            bridge.replication.insert_copy(NUMBER, 1, Rewrite(Endpoint.of(RELAY_A4, 1), Endpoint.of(HOST_A4, 1), **more))
    assert bridge.replication.copy(NUMBER, 1) is None
