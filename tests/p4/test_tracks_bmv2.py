"""Sequence numbers of decode targets and of copies (S-LR, receiver sequence state), run through the v1model twin in BMv2: the packet rows, and the reference on bad networks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

import pytest

from tests.tools.conference.sequence import LowRetransmission, Row, SequenceState
from tests.conference import streams, vectors
from tests.lab.needs import need
from tests.p4 import bmv2
from tests.p4.test_sequence_bmv2 import BURST, FIRST_SSRC, FIRST_STREAM, LAYERS, TREE, numbered
from tests.vectors.model import Port
from tests.vectors.replication import ALICES, BOB, DEPENDENCY_DESCRIPTOR, EXTENSION, Receiver, Replicated, Stream, nodes, one_byte, rtp

need(*bmv2.TOOLS)
pytestmark = pytest.mark.netns

CASES = [case for case in json.loads(vectors.FILE.read_text())["cases"] if case["algorithm"] == "S-LR" and not case["history"]]
TARGETS = 3
SWITCHES = (0b111, 0b110, 0b100)  # of layers 0 to 2: whoever can decode them can decode these targets from there on
HIGHEST = 16384 - 1  # track


class Switch:
    """A switch that gives the receivers of its streams numbers of their own. Every stream is used once: the words keep what was before."""

    def __init__(self, made: bmv2.Bmv2) -> None:
        self.made = made
        self._next = self._handle = 0

    def stream(self, track: int | None = None) -> Stream:
        """A stream that nothing has been sent in yet."""
        self._next += 1
        stream = Stream(ALICES.key, FIRST_SSRC + self._next, TREE, FIRST_STREAM + self._next, layers=LAYERS, extension=EXTENSION, descriptor=DEPENDENCY_DESCRIPTOR)
        self.made.cli([bmv2.stream_command(stream, (track or self._next,))])
        return stream

    def receiver(self, stream: Stream, target: int) -> None:
        """BOB, who gets this target of a stream."""
        printed = self.made.cli([bmv2.copy_command(stream.stream, BOB, (target, stream.stream - FIRST_STREAM))])
        self._handle = int(printed.split("added with handle ")[1])

    def retarget(self, stream: Stream, target: int) -> None:
        """Another target, for the receiver of the last stream."""
        _, _, action, _, _, _, *values = bmv2.copy_command(stream.stream, BOB, (target, stream.stream - FIRST_STREAM)).split()
        self.made.cli([f"table_modify Egress.copy {action} {self._handle} {' '.join(values)}"])

    def send(self, packets: Sequence[tuple[Replicated, int | None]]) -> None:
        """Packets in, and whole frames out: each with its number, or none where that is None."""
        for at in range(0, len(packets), BURST):
            part = packets[at : at + BURST]
            for sent, _ in part:
                self.made.send(Port.A, sent.frame)
            wanted = [(BOB.hop.port, numbered(sent, number).copy(BOB).hex()) for sent, number in part if number is not None]
            told = [sent.frame.hex() for sent, _ in part if sent.to_agent]
            found = [(port, frame.hex()) for port, frame in self.made.received(len(wanted) + len(told), patience=15.0)]
            assert [one for one in found if one[0] != Port.CPU] == wanted
            assert [frame for port, frame in found if port == Port.CPU] == told


def packet(stream: Stream, row: Row, layer: int) -> Replicated:
    """One byte behind the mandatory fields says whether there is a structure."""
    data = bytes((row.start << 7 | row.end << 6 | layer,)) + row.frame.to_bytes(2, "big") + bytes((0x80 * row.key,))
    return numbered(Replicated("", stream, rtp(stream, one_byte([(3, b"abc"), (EXTENSION, data)]), payload=bytes(30)), to_agent=row.key), row.sequence)


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switch]:
    program = bmv2.compile_twin(tmp_path_factory.mktemp("p4"), ["-DSEQUENCE=2"], "conference")
    with bmv2.running(program) as made:
        commands = [*bmv2.scene_commands(), *bmv2.replication_commands(2)]
        commands += [bmv2.layer_command(LAYERS, layer, layer, (SWITCHES[layer],)) for layer in range(TARGETS)]
        commands += [f"mc_mgrp_create {TREE}", f"mc_node_create {BOB.rid} {int(BOB.hop.port)}", f"mc_node_associate {TREE} {len(list(nodes()))}"]
        made.cli(commands)
        yield Switch(made)


@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_packet_rows(switch: Switch, case: dict, target: int) -> None:
    stream = switch.stream()
    switch.receiver(stream, target)
    rows = [(Row(*row[:2], *map(bool, row[2:6])), row[7] if row[6] == "forward" else None) for row in case["rows"]]
    switch.send([(packet(stream, row, target if row.keep else target + 1), number) for row, number in rows])


@pytest.mark.parametrize("seed", range(3))
def test_the_reference_on_bad_networks(switch: Switch, seed: int) -> None:
    """Losses, reordering, copies, and targets that change all the time: as the reference, and no number twice."""
    rng = random.Random(seed)
    stream = switch.stream(HIGHEST if seed == 0 else None)
    tracks = {target: LowRetransmission() for target in range(TARGETS)}
    given: set[int] = set()
    wanted = seed % TARGETS
    sequence_state = SequenceState(wanted)
    switch.receiver(stream, wanted)
    packets: list[tuple[Replicated, int | None]] = []
    before, gone = switch.made.dropped(), 0
    for nth, sent in enumerate(streams.network(rng, streams.video(rng, 700, streams.SMALL, keys=61, slips=0.02), loss=0.08, burst=2, reorder=0.05, repeat=0.03)):
        if nth % 80 == 79:
            switch.send(packets)
            packets, wanted = [], rng.randrange(TARGETS)
            switch.retarget(stream, wanted)
        outcomes = {target: tracks[target].accept(sent.row(target)) for target in range(TARGETS)}
        number = sequence_state.accept(wanted, bool(sent.key or SWITCHES[sent.layer] >> wanted & 1), outcomes)
        if number is not None:
            assert number not in given
            given.add(number)
        packets.append((packet(stream, sent.row(2), sent.layer), number))
        gone += number is None
    switch.send(packets)
    dropped = {reason: packets - before.get(reason, 0) for reason, packets in switch.made.dropped(sum(before.values()) + gone).items()}
    assert set(dropped) == {"above_target", "late_copy"} and sum(dropped.values()) == gone
    assert len(given) > 150
