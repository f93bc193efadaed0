"""Sequence numbers of copies (S-LM), run through the v1model twin in BMv2: the packet rows, and the reference on bad networks."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator, Sequence

import pytest

from tests.tools.conference.sequence import Cadence, LowMemory, Row, Verdict
from tests.conference import streams, vectors
from tests.lab.needs import need
from tests.p4 import bmv2
from tests.vectors.model import Port
from tests.vectors.replication import ALICES, BOB, CAROL, CAMERA_6, DEPENDENCY_DESCRIPTOR, EXTENSION, Receiver, Replicated, Stream, nodes, one_byte, rtp

need(*bmv2.TOOLS)
pytestmark = pytest.mark.netns

CASES = [case for case in json.loads(vectors.FILE.read_text())["cases"] if case["algorithm"] == "S-LM"]
TREE, LAYERS, TARGET, FIRST_STREAM, FIRST_SSRC = 40, 9, 1, 0x000300, 0x33330000
BURST = 16  # BMv2's queues hold 64 packets, and drop what is beyond
MASKS = [0b0000, 0b0010, 0b1010, 0b0111, 0b1110]
HIGHEST_SEQUENCE_STATE = 65536  # its row is row 0


class Switch:
    """A switch that gives the receivers of its streams numbers of their own. Every stream is used once: the words keep what was before."""

    def __init__(self, made: bmv2.Bmv2) -> None:
        self.made = made
        self._next = 0

    def stream(self, mask: int, *, six: bool = False, sequence_state: int | None = None) -> tuple[Stream, Receiver]:
        """A stream that nothing has been sent in yet, and its one receiver."""
        self._next += 1
        key = (CAMERA_6 if six else ALICES).key
        stream = Stream(key, FIRST_SSRC + self._next, TREE + six, FIRST_STREAM + self._next, layers=LAYERS, extension=EXTENSION, descriptor=DEPENDENCY_DESCRIPTOR)
        receiver = CAROL if six else BOB
        self.made.cli([bmv2.stream_command(stream), bmv2.copy_command(stream.stream, receiver, (TARGET, sequence_state or self._next, mask))])
        return stream, receiver

    def send(self, stream: Stream, receiver: Receiver, packets: Sequence[tuple[Replicated, int | None]]) -> None:
        """Packets in, and whole frames out: each with its number, or none where that is None."""
        for at in range(0, len(packets), BURST):
            part = packets[at : at + BURST]
            for sent, _ in part:
                self.made.send(Port.A, sent.frame)
            wanted = [(receiver.hop.port, numbered(sent, number).copy(receiver).hex()) for sent, number in part if number is not None]
            assert [(port, frame.hex()) for port, frame in self.made.received(len(wanted), patience=15.0)] == wanted


def numbered(sent: Replicated, number: int) -> Replicated:
    return dataclasses.replace(sent, payload=sent.payload[:2] + number.to_bytes(2, "big") + sent.payload[4:])


def packet(stream: Stream, row: Row, template: int = 0, **more: object) -> Replicated:
    data = bytes((row.start << 7 | row.end << 6 | template,)) + row.frame.to_bytes(2, "big")
    made = Replicated("", stream, rtp(stream, one_byte([(3, b"abc"), (EXTENSION, data)]), payload=bytes(30)), **more)  # type: ignore[arg-type]
    return numbered(made, row.sequence)


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switch]:
    program = bmv2.compile_twin(tmp_path_factory.mktemp("p4"), ["-DSEQUENCE=1"], "conference")
    with bmv2.running(program) as made:
        commands = [*bmv2.scene_commands(), *bmv2.replication_commands(1)]
        commands += [f"table_add Ingress.layer Ingress.set_layer {LAYERS} {template} => {template}" for template in range(3)]
        for handle, (mgid, receiver) in enumerate([(TREE, BOB), (TREE + 1, CAROL)], len(list(nodes()))):
            commands += [f"mc_mgrp_create {mgid}", f"mc_node_create {receiver.rid} {int(receiver.hop.port)}", f"mc_node_associate {mgid} {handle}"]
        made.cli(commands)
        yield Switch(made)


@pytest.mark.parametrize("six", [False, True], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_packet_rows(switch: Switch, case: dict, six: bool) -> None:
    stream, receiver = switch.stream(Cadence(*case["cadence"]).turned(), six=six)
    rows = [(Row(*row[:2], *map(bool, row[2:6])), row[7]) for row in case["rows"]]
    switch.send(stream, receiver, [(packet(stream, row), number) for row, number in rows])


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: f"{mask:04b}")
def test_the_reference_on_bad_networks(switch: Switch, mask: int) -> None:
    """Losses, reordering, copies, and whatever a sender may say: as the reference, and no number twice."""
    rng = random.Random(mask)
    stream, receiver = switch.stream(mask, sequence_state=HIGHEST_SEQUENCE_STATE if mask == MASKS[0] else None)
    reference, given, packets = LowMemory(Cadence(mask)), set(), []
    video = [sent for sent in streams.video(rng, 800, streams.SMALL, keys=61, slips=0.02) if not mask >> (sent.frame & 3) & 1]
    rows = [sent.row(2) for sent in streams.network(rng, video, loss=0.08, burst=2, reorder=0.1, repeat=0.05)]
    rows += [Row(rows[-1].sequence + 0x8000 & 0xFFFF, rows[-1].frame, True, True, True)]  # neither before nor after
    for row in rows:
        outcome = reference.accept(row)
        packets.append((packet(stream, row), outcome.position if outcome.verdict is Verdict.FORWARD else None))
        if outcome.verdict is Verdict.FORWARD:
            assert outcome.position not in given
            given.add(outcome.position)
    assert len(given) > 100
    before, late = switch.made.dropped(), sum(number is None for _, number in packets)
    switch.send(stream, receiver, packets)
    assert late and switch.made.dropped(sum(before.values()) + late) == before | {"late_copy": before.get("late_copy", 0) + late}


def closed(switch: Switch, *, six: bool = False) -> tuple[Stream, Receiver]:
    """A stream whose receiver is one behind: a suppressed frame of one packet has gone."""
    stream, receiver = switch.stream(0b0010, six=six)
    switch.send(stream, receiver, [(packet(stream, Row(10, 0, True, True, True)), 10), (packet(stream, Row(12, 2, True, True, True)), 11)])
    return stream, receiver


@pytest.mark.parametrize(
    "six, more", [(False, {}), (False, {"bare": True}), (False, {"error": 0x0101}), (True, {}), (True, {"error": 0x0101})],
    ids=["IPv4, right", "IPv4, none", "IPv4, wrong", "IPv6, right", "IPv6, wrong"],
)  # fmt: skip
def test_checksums_stay_what_they_are(switch: Switch, six: bool, more: dict) -> None:
    stream, receiver = closed(switch, six=six)
    switch.send(stream, receiver, [(packet(stream, Row(13, 3, True, True, True), **more), 12)])


def test_packets_without_a_descriptor_have_numbers_too(switch: Switch) -> None:
    stream, receiver = closed(switch)
    for number, extension in ((13, None), (14, one_byte([(3, b"abc")]))):
        switch.send(stream, receiver, [(numbered(Replicated("", stream, rtp(stream, extension, payload=bytes(30))), number), number - 1)])


def test_what_is_above_the_target_does_not_go(switch: Switch) -> None:
    stream, receiver = closed(switch)
    rows = [(13, 3, TARGET, 12), (14, 4, TARGET + 1, None), (15, 5, 0, 14)]
    before = switch.made.dropped()
    switch.send(stream, receiver, [(packet(stream, Row(sequence, frame, True, True, True), template), number) for sequence, frame, template, number in rows])
    assert switch.made.dropped(sum(before.values()) + 1) == before | {"above_target": before.get("above_target", 0) + 1}


def test_a_row_that_is_cleared_begins_anew(switch: Switch) -> None:
    """What the control plane does when a sender has started anew far away, or another receiver gets the number."""
    stream, receiver = closed(switch)
    far = [(packet(stream, Row(40_000, 9, True, True, True)), None)]
    switch.send(stream, receiver, far)
    sequence_state = stream.stream - FIRST_STREAM
    switch.made.cli([f"register_write Egress.{word} {sequence_state} 0" for word in ("high", "offset", "open")])
    switch.send(stream, receiver, [(far[0][0], 40_000)])
