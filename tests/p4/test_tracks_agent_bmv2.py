"""Conferences of shunt-agent on a switch with S-LR: BMv2 behind BF Runtime, with the schema of the program that was compiled for Tofino 2, and what each
receiver gets. Nobody but the agent writes a table or a register.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.conference.rtcp import build_remb
from tests.bfrt.conference_lab import Someone
from tests.bfrt.switch_lab import until
from tests.lab.needs import need
from tests.p4 import bmv2
from tests.p4.bfrt_bmv2 import Bmv2Target
from tests.p4.browser import captured, consecutive
from tests.p4.program import GENERATED
from tests.p4.conference_scene import Scene, compiled, meet, meet_with_pictures
from tests.vectors.model import TO_B

need(*bmv2.TOOLS)
pytestmark = pytest.mark.netns

SCHEMA = GENERATED / "conference-lr.tofino2.bf-rt.json"
TRACKS = "PacketIngress.pipeline.conference.tracks"  # in BMv2


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory, 2)


@pytest.fixture
def device(program: Path) -> Iterator[tuple[bmv2.Bmv2, Bmv2Target]]:
    with bmv2.running(program) as made:
        yield made, Bmv2Target(made, bmv2.direct_counters(program), SCHEMA)


def numbers_of(target: Bmv2Target, table_name: str, field: str) -> list[int]:
    """A parameter of all entries of a table, but 0."""
    table, found = target.table(table_name), []
    for data in target.entries[table.id].values():
        action = table.actions.by_id[data.action_id]
        wanted = action.fields.find(field)
        found += [int.from_bytes(each.stream, "big") for each in data.fields if wanted is not None and each.field_id == wanted.id]
    return sorted(number for number in found if number)


async def test_numbers_over_changes_of_target_and_a_restart_of_the_agent(scene: Scene) -> None:
    """Less, more, less again, another agent, everything again: no number twice, and no gap where nothing was lost."""
    ann, bob, tom = scene.people.values()
    await meet(scene)
    packets = captured()
    ssrc = 0x51
    await meet_with_pictures(scene, ann, packets[0].sent_as(ssrc))
    scene.frames.clear()

    async def show(first: int, last: int) -> None:
        await scene.show(ann, [packet.sent_as(ssrc) for packet in packets[first:last]])

    await show(0, 1)
    await until(scene.layers)
    for target, (first, last) in ((0, (1, 60)), (1, (60, 120)), (0, (120, 180))):
        await scene.lab.target("ann", "bob", target)
        await scene.quiet()
        await show(first, last)
        await scene.quiet()
    await scene.lab.agent.end(kill=True)
    await show(180, 200)
    await scene.lab.start_agent()
    await scene.quiet()
    await show(200, 236)
    await scene.quiet()
    assert scene.numbers(tom, ssrc) == [packet.row.sequence for packet in packets[:236]], "everything for tom, as it was sent"
    got = scene.numbers(bob, ssrc)
    assert consecutive(got) and len(got) < 180
    assert numbers_of(scene.target, "Ingress.conference", "track") and len(numbers_of(scene.target, "Egress.copy", "sequence_state")) == 1


async def test_a_slow_receiver_and_who_comes_after_it(scene: Scene) -> None:
    """Its estimate falls: it loses layers, and its numbers have no gap and none comes twice. It leaves, the sender leaves; others join and have their rows."""
    ann, bob, tom = scene.people.values()
    await meet(scene)
    packets = captured()

    async def fall(sender: Someone, slow: Someone, ssrc: int, shift: int = 0) -> None:
        """The sender begins, its rate is measured, and then the receiver cannot take it."""

        async def show(first: int, last: int) -> None:
            await scene.show(sender, [packet.sent_as(ssrc, shift) for packet in packets[first:last]])

        def can_take(bitrate: float) -> None:
            scene.send(slow, "video", build_remb(slow.ssrc, int(bitrate), [ssrc]), rtcp=True)

        async def measured() -> bool:
            return len(await scene.rates(sender.name)) == 3

        await show(0, 1)  # a key frame: its structure comes out of the CPU port
        await until(scene.layers)
        can_take(1e6)  # from now on rates are measured
        await show(1, 160)
        await until(measured)
        can_take(1e6)
        await show(160, 170)
        await scene.quiet()
        assert scene.numbers(slow, ssrc) == [(packet.row.sequence + shift) & 0xFFFF for packet in packets[:170]]
        rates = await scene.rates(sender.name)

        async def lower() -> bool:
            can_take(rates[0] * 0.3)
            return (await scene.subscription(sender.name, slow.name))["target"] == 0

        await until(lower)
        await scene.quiet()
        await show(170, 236)
        await scene.quiet()

    def tracks() -> list[int]:
        return numbers_of(scene.target, "Ingress.conference", "track")

    def sequence_states() -> list[int]:
        return numbers_of(scene.target, "Egress.copy", "sequence_state")

    await meet_with_pictures(scene, ann, packets[0].sent_as(0x51))
    scene.frames.clear()
    await fall(ann, bob, 0x51)
    got, kept = scene.numbers(bob, 0x51), sum(packet.layer == 0 for packet in packets[180:236])
    assert scene.numbers(tom, 0x51) == [packet.row.sequence for packet in packets[:236]], "everything for tom, as it was sent"
    assert consecutive(got) and 170 + kept <= len(got) <= 180 + kept, "the lowest layer alone, no gap and nothing twice"
    assert len(tracks()) == len(sequence_states()) == 1

    # Both leave; who comes has their track and their sequence state, and numbers some thousands lower.
    high = scene.device.register(f"{TRACKS}.high", tracks()[0])
    (track,) = tracks()
    for one in (bob, ann):
        await scene.lab.leave(one)
        del scene.people[one.name]
    await until(lambda: not tracks() and not sequence_states())
    for number, (name, where) in enumerate((("dan", ann), ("eve", bob)), start=4):
        scene.people[name] = replace(where, name=name, number=number, relays={}, sent=0)
        await scene.lab.join(scene.people[name], ("audio", "video"))
    dan, eve = scene.people["dan"], scene.people["eve"]
    assert eve.hop is TO_B and scene.device.register(f"{TRACKS}.high", track) == high, "what nobody uses may lie"
    await meet(scene)
    await meet_with_pictures(scene, dan, packets[0].sent_as(0x52, -3000))
    scene.frames.clear()
    await fall(dan, eve, 0x52, shift=-3000)
    got = scene.numbers(eve, 0x52)
    assert tracks() == [track] and len(sequence_states()) == 1
    assert scene.numbers(tom, 0x52) == [(packet.row.sequence - 3000) & 0xFFFF for packet in packets[:236]]
    assert consecutive(got) and 170 + kept <= len(got) <= 180 + kept
    assert scene.device.register(f"{TRACKS}.high", track) >> 16 == (packets[235].row.sequence - 3000) & 0xFFFF
