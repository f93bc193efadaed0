"""Layers in the kernel: what a packet says of itself, the tree that it goes into, and the numbers that its receivers see.

The softswitch is held against tests/tools/conference, which describes all of it, and against the packet rows that every
implementation is held against.
"""

from __future__ import annotations

import json
import random
import struct
import time

import pytest

from shunt.net import Endpoint, FiveTuple
from tests.conference import streams, vectors
from tests.conference.ways import WAYS
from tests.dataplane.lab import HOST_A4, RELAY_A4
from tests.replication.conftest import Bridge, Participant
from tests.softswitch.client import Refused
from tests.softswitch.replication import Action, Layer, Rewrite, StreamKey
from tests.tools.conference import descriptor, rtp
from tests.tools.conference.packets import Layers, MediaPacket, Reader
from tests.tools.conference.rtp import MediaError
from tests.tools.conference.sequence import LowRetransmission, Row, SequenceState

pytestmark = pytest.mark.netns

SSRC, NUMBER, TREE, LAYERS, EXTENSION = 7, 8, 5, 3, 12
EVERY = 0xF  # switches: whoever can decode it can decode all from there on
TRACKS = 1 << 16  # streams, and receivers, whose numbers can be rewritten
DESCRIPTORS = {Layers.DEPENDENCY_DESCRIPTOR: 1, Layers.FRAME_MARKING: 2, Layers.VP8: 3, Layers.VP9: 4}
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


def adapted(**more: int) -> Action:
    """A stream with a dependency descriptor, three trees and rewritten numbers."""
    return Action(TREE, 0, 0, 0, NUMBER, **{"trees": 3, "layers": LAYERS, "extension": EXTENSION, "descriptor": 1, "track": 1, **more})


class Conference:
    """A stream with a tree for each target, and receivers of different targets."""

    def __init__(self, bridge: Bridge, targets: list[int], action: Action, *, cadence: int = 0, everything: bool = False, rows: dict[int, Layer] | None = None) -> None:
        """everything: all receivers are in all trees. rows: what templates say; the default is that 0 to 2 are layers of their own."""
        self.bridge, self.action = bridge, action
        self.participants: list[Participant] = [bridge.receiver(rid) for rid in range(1, len(targets) + 1)]
        self.sender, self.key = bridge.sender(SSRC)
        trees = max(action.trees, 1)
        with bridge.plane.session.batching():
            for template, layer in ({n: Layer(n, EVERY) for n in range(3)} if rows is None else rows).items():
                bridge.replication.put_layer(LAYERS, template, layer)
            for participant, target in zip(self.participants, targets):
                rid = participant.rid
                bridge.replication.insert_copy(NUMBER, rid, Rewrite(participant.relay, participant.here, 0, target, rid if action.track or cadence else 0, cadence))
                for tree in range(trees):
                    bridge.replication.insert_node(1000 * (tree + 1) + rid, rid, [0])
            for tree in range(trees):
                bridge.replication.insert_tree(TREE + tree, [(1000 * (tree + 1) + rid, None) for rid, target in enumerate(targets, 1) if everything or target >= tree])
            bridge.replication.insert_stream(self.key, action)

    def retarget(self, rid: int, target: int) -> None:
        """Give a receiver another decode target, once all that was sent has been rewritten."""
        self.bridge.settled(0.01)
        before = self.bridge.replication.copy(NUMBER, rid)
        assert before is not None
        self.bridge.replication.modify_copy(NUMBER, rid, before._replace(target=target))

    def send(self, packet: bytes) -> None:
        self.sender.socket.sendto(packet, (str(self.sender.relay.ip), self.sender.relay.port))


def received(participant: Participant) -> list[bytes]:
    """The RTP packets of a receiver; checksums were right, or the kernel would not have let them through."""
    found = []
    participant.socket.setblocking(False)
    try:
        while True:
            found.append(participant.socket.recv(4096))
    except BlockingIOError:
        return found


def got(participant: Participant) -> list[tuple[int, int]]:
    """(number, index of the packet) of what a receiver got."""
    return [(struct.unpack_from("!H", data, 2)[0], struct.unpack("!I", data[-4:])[0]) for data in received(participant)]


# What a packet says


def opens(row: list) -> bool:
    """Whether a row's packet has a structure: its frame is everybody's, so the program suppresses none (the rewriting by itself does: tests/conference)."""
    return bool(row[5])


@pytest.mark.parametrize("case", **named([case for case in CASES if case["algorithm"] == "S-LR" and not any(opens(row) and not row[4] for row in case["rows"])]))
def test_packet_rows(bridge: Bridge, case: dict) -> None:
    """The rows of S-LR, as packets through the real programs: of target 0, for which template 1 is suppressed."""
    conference = Conference(bridge, [0], adapted(), everything=True)
    for nth, row in enumerate(case["rows"]):
        packet = Row(*row[:2], *map(bool, row[2:6]))
        conference.send(media(packet, not packet.keep, nth.to_bytes(4, "big")))
    bridge.settled()
    assert got(conference.participants[0]) == [(row[7], nth) for nth, row in enumerate(case["rows"]) if row[6] == "forward"]


@pytest.mark.parametrize("seed", range(2))
def test_the_reference_on_bad_networks(bridge: Bridge, seed: int) -> None:
    """Every target of a stream over networks that lose, reorder and double: as the reference says, and no number twice."""
    rng = random.Random(seed)
    conference, references = Conference(bridge, [0, 1, 2], adapted(), everything=True), [LowRetransmission() for _ in range(3)]
    expected: list[list[tuple[int | None, int]]] = [[], [], []]
    sent = list(streams.video(rng, 900, streams.SMALL if seed else streams.LARGE, keys=61, slips=0.02))
    for packet in streams.network(rng, sent, loss=0.1, burst=1 + seed, reorder=0.1, repeat=0.05):
        conference.send(media(packet.row(0), packet.layer, packet.index.to_bytes(4, "big")))
        for target, reference in enumerate(references):
            outcome = reference.accept(packet.row(target))
            if outcome.verdict.value == "forward":
                expected[target].append((outcome.position, packet.index))
    bridge.settled()
    for target, participant in enumerate(conference.participants):
        found = got(participant)
        assert found == expected[target]
        assert len({number for number, _ in found}) == len(found) > 100


@pytest.mark.parametrize("way", WAYS)
def test_the_other_ways_to_tell_a_layer(bridge: Bridge, way: str) -> None:
    """Temporal ids, frames that are counted, and where receivers may move up: as the reader says."""
    build, make = WAYS[way]
    reader = make()
    wanted = {1: 2, 2: 1, 3: 0}
    action = adapted(extension=3 if way == "frame marking" else 0, descriptor=DESCRIPTORS[reader._layers])
    conference = Conference(bridge, list(wanted.values()), action, everything=True, rows={layer: Layer(layer) for layer in range(3)})
    references, sequence_states = [LowRetransmission() for _ in range(3)], {rid: SequenceState(target) for rid, target in wanted.items()}
    expected: dict[int, list[tuple[int, int]]] = {rid: [] for rid in wanted}
    rng, changed = random.Random(9), 0
    for nth, packet in enumerate(streams.network(random.Random(5), list(streams.video(random.Random(1), 900, keys=50)), loss=0.05)):
        if nth % 60 == 0:
            rid = rng.randrange(1, 4)
            wanted[rid] = rng.randrange(3)
            conference.retarget(rid, wanted[rid])
        raw = build(packet) + packet.index.to_bytes(4, "big")
        conference.send(raw)
        read = reader.read(raw)
        outcomes = {target: reference.accept(read.row(target)) for target, reference in enumerate(references)}
        for rid, sequence_state in sequence_states.items():
            before = sequence_state.target
            number = sequence_state.accept(wanted[rid], read.changes(before, wanted[rid]), outcomes)
            changed += sequence_state.target != before
            if number is not None:
                expected[rid].append((number, packet.index))
    bridge.settled()
    for rid, participant in enumerate(conference.participants, 1):
        assert got(participant) == expected[rid], rid
    assert changed and sum(map(len, expected.values())) > 1000


def elements(draw: random.Random) -> tuple[bytes, int]:
    """Header extensions with a descriptor somewhere among them, or nowhere; which form."""
    form = draw.choice((1, 2))
    found = b""
    for _ in range(draw.randrange(6)):
        identity, size = draw.randrange(1, 15), draw.randrange(1, 9)
        found += bytes(draw.choice((0, 0, 1, 3)))
        found += (bytes((identity << 4 | size - 1,)) if form == 1 else bytes((identity, size))) + draw.randbytes(size)
    return found, form


def told_by_descriptor(raw: bytes) -> int:
    """The layer; raises MediaError."""
    found = rtp.find_element(raw, rtp.parse_header(raw), EXTENSION)
    return 0 if found is None or descriptor.has_structure(found) else descriptor.parse_mandatory(found).template_id % 4


def told_by_reader(read: MediaPacket) -> int:
    return ((read.needed_by & -read.needed_by).bit_length() - 1) % 4


@pytest.mark.parametrize("layers", DESCRIPTORS)
def test_hostile_headers(bridge: Bridge, layers: Layers) -> None:
    """Any bytes: read as the reader reads them, and where it refuses them the packet is everybody's. Whatever comes goes out as it was."""
    draw = random.Random(11)
    extended = layers in (Layers.DEPENDENCY_DESCRIPTOR, Layers.FRAME_MARKING)
    action = adapted(trees=4, extension=EXTENSION if extended else 0, descriptor=DESCRIPTORS[layers], track=0)
    conference = Conference(bridge, [0, 1, 2, 3], action, rows={template: Layer(template % 4, EVERY) for template in range(64)})
    expected: list[list[bytes]] = [[], [], [], []]
    unsaid: set[bytes] = set()
    told = 0
    for nth in range(700):
        before, form = elements(draw)
        packet = bytearray(media(Row(nth, nth, *(draw.random() < 0.5 for _ in range(2)), True, draw.random() < 0.1), draw.randrange(64), draw.randbytes(20), before=before, form=form))
        for _ in range(draw.choice((0, 0, 1, 3))):
            packet[draw.choice((0, draw.randrange(12, len(packet))))] = draw.choice((0x80, 0x90, 0xB0, 0x9F, 0, 0xFF, draw.randrange(256)))
        packet[0] = packet[0] & 0x3F | 0x80
        raw = bytes(packet)
        conference.send(raw)
        try:
            layer = told_by_descriptor(raw) if layers is Layers.DEPENDENCY_DESCRIPTOR else told_by_reader(Reader(layers, EXTENSION if extended else None).read(raw))
        except MediaError as error:
            if "VP9 payload descriptor" in str(error):
                unsaid.add(raw)  # what is behind the layer is of no interest
                continue
            layer = 0
        told += layer > 0
        for target in range(layer, 4):
            expected[target].append(raw)
    bridge.settled()
    for target, participant in enumerate(conference.participants):
        assert [packet for packet in received(participant) if packet not in unsaid] == expected[target], target
    assert told > 60


# Who gets it


def test_each_layer_has_its_tree(bridge: Bridge) -> None:
    conference = Conference(bridge, [0, 1, 2], adapted(track=0))
    sent = list(streams.video(random.Random(1), 300))
    for packet in sent:
        conference.send(media(packet.row(2), packet.layer, packet.index.to_bytes(4, "big")))
    bridge.settled()
    for target, participant in enumerate(conference.participants):
        assert got(participant) == [(packet.sequence, packet.index) for packet in sent if packet.layer <= target]
    for layer in range(3):
        assert bridge.replication.count_layer(LAYERS, layer).packets == sum(packet.layer == layer for packet in sent)
    bridge.replication.modify_layer(LAYERS, 2, Layer(2, 1))
    assert bridge.replication.count_layer(LAYERS, 2).packets > 0, "another row of the template counts on"
    # An id without a row is everybody's.
    conference.send(media(Row(1, 2, True, True, True), 40, bytes(4)))
    bridge.settled()
    assert [got(participant) for participant in conference.participants] == [[(1, 0)]] * 3


def test_the_row_moves_all_layers_at_once(bridge: Bridge) -> None:
    """Other trees, other layers, no layers: each packet has the copies of one state."""
    conference = Conference(bridge, [0, 1, 2], adapted(track=0))
    sent = list(streams.video(random.Random(1), 200))
    for packet in sent:
        if packet.index % 20 == 0:
            bridge.replication.modify_stream(conference.key, (conference.action, Action(TREE, 0, 0, 0, NUMBER))[packet.index // 20 % 2])
        conference.send(media(packet.row(2), packet.layer, packet.index.to_bytes(4, "big")))
        if packet.index % 20 == 19:
            bridge.settled(0.01)
    bridge.settled()
    plain = {packet.index for packet in sent if packet.index // 20 % 2}  # everything goes into the tree of all
    for target, participant in enumerate(conference.participants):
        assert [index for _, index in got(participant)] == [packet.index for packet in sent if packet.index in plain or packet.layer <= target]


def test_receivers_change_targets_without_gaps(bridge: Bridge) -> None:
    """Bad networks before the switch, and targets that change all the time: each receiver's numbers are the reference's, never one twice."""
    conference = Conference(bridge, [2, 1, 0], adapted(), everything=True)
    rng = random.Random(3)
    wanted = {1: 2, 2: 1, 3: 0}
    sequence_states = {rid: SequenceState(target) for rid, target in wanted.items()}
    rewriters = [LowRetransmission() for _ in range(3)]
    expected: dict[int, list[tuple[int, int]]] = {rid: [] for rid in wanted}
    changed = 0
    sent = list(streams.video(rng, 6000, streams.SMALL))
    for nth, packet in enumerate(streams.network(rng, sent, loss=0.05, reorder=0.05, repeat=0.02)):
        if nth % 50 == 0:
            rid, target = rng.randrange(1, 4), rng.randrange(3)
            wanted[rid] = target
            conference.retarget(rid, target)
        outcomes = {target: rewriter.accept(packet.row(target)) for target, rewriter in enumerate(rewriters)}
        for rid, sequence_state in sequence_states.items():
            before = sequence_state.target
            changes = packet.start and (wanted[rid] < before or packet.layer <= before)
            number = sequence_state.accept(wanted[rid], changes, outcomes)
            changed += sequence_state.target != before
            if number is not None:
                expected[rid].append((number, packet.index))
        conference.send(media(packet.row(0), packet.layer, packet.index.to_bytes(4, "big")))
    bridge.settled()
    assert changed > 50
    for rid, participant in enumerate(conference.participants, 1):
        found = got(participant)
        assert found == expected[rid]
        assert len({number for number, _ in found}) == len(found) > 1000


def test_nothing_lost_before_the_switch_leaves_no_gap_behind_it(bridge: Bridge) -> None:
    conference = Conference(bridge, [2], adapted(), everything=True)
    counts = []
    for packet in streams.video(random.Random(8), 4000, streams.SMALL):
        if packet.index % 500 == 250:
            conference.retarget(1, (1, 0, 1, 2)[packet.index // 500 % 4])
            counts.append(packet.index)
        conference.send(media(packet.row(0), packet.layer, packet.index.to_bytes(4, "big")))
    bridge.settled()
    found = got(conference.participants[0])
    first = found[0][0]
    assert [number for number, _ in found] == [first + n & 0xFFFF for n in range(len(found))]
    assert 1500 < len(found) < 4000 and counts


@pytest.mark.parametrize("case", **named([case for case in CASES if case["algorithm"] == "S-LM"]))
def test_packet_rows_without_a_track(bridge: Bridge, case: dict) -> None:
    """S-LM: the receiver's numbers from what it gets, and the frame cadence that signalling knows."""
    conference = Conference(bridge, [0], adapted(track=0), cadence=case["cadence"][0] & 15)
    for nth, row in enumerate(case["rows"]):
        conference.send(media(Row(*row[:2], *map(bool, row[2:6])), 0, nth.to_bytes(4, "big")))
    bridge.settled()
    assert got(conference.participants[0]) == [(row[7], nth) for nth, row in enumerate(case["rows"]) if row[6] == "forward"]


def test_a_frame_with_a_structure_is_everybodys_whatever_the_rows_say(bridge: Bridge) -> None:
    """Rows of an earlier structure stand where a new one begins: its first frame goes to all, whole, and whoever moves up may do so there."""
    conference = Conference(bridge, [0, 2, 0], adapted(), everything=True, rows={5: Layer(2, 0)})
    frames = [
        (1, 10, True, True, False), (2, 11, True, False, True), (3, 11, False, False, False), (4, 11, False, True, False), (5, 12, True, True, False),
        (6, 12 + 300, True, True, False), (7, 11, True, True, False),  # long after, as another frame may be numbered again
    ]  # fmt: skip
    conference.retarget(3, 2)
    for sequence, frame_number, start, end, key in frames:
        conference.send(media(Row(sequence, frame_number, start, end, True, key), 5, sequence.to_bytes(4, "big")))
    bridge.settled()
    indices = [[index for _, index in got(participant)] for participant in conference.participants]
    assert indices[0] == [2, 3, 4], "target 0 gets the frame with the structure alone"
    assert indices[1] == [1, 2, 3, 4, 5, 6, 7]
    assert indices[2] == [2, 3, 4, 5, 6, 7], "no frame before that with the structure lets a receiver move up"


def test_the_agent_gets_packets_with_a_template_structure(bridge: Bridge) -> None:
    """Within a limit: what a stream sends beyond it is counted and goes on to its receivers alone."""
    conference = Conference(bridge, [2], adapted())
    before = bridge.plane.totals()
    packets = [media(Row(n, n, True, True, True, n % 10 == 0), 0, n.to_bytes(4, "big")) for n in range(30)]
    for packet in packets:
        conference.send(packet)
    bridge.settled()
    assert [packet[42:] for packet in bridge.plane.poll_packets()] == packets[::10]
    for n in range(200):
        conference.send(media(Row(30 + n, 30 + n, True, True, True, True), 0, n.to_bytes(4, "big")))
    bridge.settled()
    found = len(bridge.plane.poll_packets())
    after = bridge.plane.totals()
    assert 61 <= found < 200 and after["agent_packets"] - before["agent_packets"] == found + 3
    assert after["agent_suppressed"] - before["agent_suppressed"] == 200 - found
    assert len(got(conference.participants[0])) == 230


def test_numbers_go_on_over_another_address_and_begin_anew_with_another_stream(bridge: Bridge) -> None:
    conference = Conference(bridge, [0], adapted())
    sent = list(streams.video(random.Random(2), 300))
    for packet in sent[:150]:
        conference.send(media(packet.row(0), packet.layer, packet.index.to_bytes(4, "big")))
    bridge.settled()
    made, key = bridge.sender(SSRC)
    bridge.replication.insert_stream(key, conference.action)
    bridge.replication.delete_stream(conference.key)
    conference.sender = made
    for packet in sent[150:]:
        conference.send(media(packet.row(0), packet.layer, packet.index.to_bytes(4, "big")))
    bridge.settled()
    kept = [packet for packet in sent if packet.layer == 0]
    numbers = [number for number, _ in got(conference.participants[0])]
    assert numbers == [kept[0].sequence + n & 0xFFFF for n in range(len(kept))]
    bridge.replication.delete_stream(key)
    bridge.replication.delete_copy(NUMBER, 1)
    bridge.replication.insert_copy(NUMBER, 1, Rewrite(conference.participants[0].relay, conference.participants[0].here, 0, 0, 1))
    bridge.replication.insert_stream(key, conference.action)
    conference.send(media(Row(7777, 1, True, True, True), 0, bytes(4)))
    bridge.settled()
    assert got(conference.participants[0]) == [(7777, 0)]


def test_a_sender_that_begins_anew_far_back_is_followed(bridge: Bridge) -> None:
    """When nothing else has come for a while: its second packet gets the number that is next. A single one from far back changes nothing."""
    conference = Conference(bridge, [2, 1], adapted(), everything=True)
    for n in range(50):
        conference.send(media(Row(40_000 + n, n, True, True, True), 0, n.to_bytes(4, "big")))
    time.sleep(2.6)
    for n in (9_000, 20_000, 20_001, 20_002, 20_003):
        conference.send(media(Row(n, n, True, True, True), 0, n.to_bytes(4, "big")))
    bridge.settled()
    for participant in conference.participants:
        assert [number for number, _ in got(participant)] == [40_000 + n for n in range(53)]
    # While others come nothing is followed.
    for n in range(20):
        conference.send(media(Row(20_004 + n, 20_004 + n, True, True, True), 0, bytes(4)))
        conference.send(media(Row(3_000 + n, n, True, True, True), 0, bytes(4)))
    bridge.settled()
    assert [len(got(participant)) for participant in conference.participants] == [20, 20]


@pytest.mark.parametrize("version", [4, 6])
def test_receivers_of_either_version_beside_each_other(bridge: Bridge, version: int) -> None:
    """Checksums, the kernel's own and complete ones, hold after the number has been rewritten."""
    for template in range(3):
        bridge.replication.put_layer(LAYERS, template, Layer(template, EVERY))
    participants = [bridge.participant(1, NUMBER, "b", 4), bridge.participant(2, NUMBER, "b", 6), bridge.participant(3, NUMBER, "a", 4)]
    for participant in participants:
        bridge.replication.modify_copy(NUMBER, participant.rid, Rewrite(participant.relay, participant.here, 0, 1, participant.rid))
    bridge.replication.insert_tree(TREE, [(participant.rid, None) for participant in participants])
    sender, key = bridge.sender(SSRC, version)
    bridge.replication.insert_stream(key, adapted(trees=1))
    sent = list(streams.video(random.Random(6), 400, streams.SMALL))
    before = bridge.lab.checksum_errors("b")
    for packet in sent:
        sender.socket.sendto(media(packet.row(0), packet.layer, packet.index.to_bytes(4, "big")), (str(sender.relay.ip), sender.relay.port))
    bridge.settled()
    kept = [packet.index for packet in sent if packet.layer <= 1]
    for participant in participants:
        found = got(participant)
        assert [index for _, index in found] == kept and [number for number, _ in found] == [found[0][0] + n & 0xFFFF for n in range(len(found))]
    assert bridge.lab.checksum_errors("b") == before


def test_what_is_refused(bridge: Bridge) -> None:
    key = StreamKey(FiveTuple(Endpoint.of(HOST_A4, 5000), Endpoint.of(RELAY_A4, 6000)), SSRC)
    for action in (adapted(descriptor=5), adapted(track=1 << 16), Action(0xFFFF, 0, 0, 0, NUMBER, trees=2)):
        with pytest.raises(Refused):
            bridge.replication.insert_stream(key, action)
    assert bridge.replication.stream(key) is None
    for more in ({"sequence_state": TRACKS + 1}, {"target": 4}):
        with pytest.raises(Refused):
            bridge.replication.insert_copy(NUMBER, 1, Rewrite(Endpoint.of(RELAY_A4, 1), Endpoint.of(HOST_A4, 1), **more))
    assert bridge.replication.copy(NUMBER, 1) is None
