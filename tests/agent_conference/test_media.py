"""Who hears whom: joins, leaves, designs, and an agent or a softswitch that is killed meanwhile."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any

import pytest

from tests.agent_conference.lab import Camera, Lab
from tests.lab.party import Party, holes, unbroken

_RECENT = 30  # packets


def all_unbroken(parties: list[Party]) -> None:
    """Nobody has missed a packet of anybody, or got one twice, since its first packet."""
    for one, other in permutations(parties, 2):
        numbers = one.received(other)
        assert unbroken(numbers), (one.name, other.name, holes(numbers))


def test_everybody_hears_everybody_from_two_to_five_and_back(lab: Lab) -> None:
    parties = lab.talking(2)
    assert lab.await_design("two-party")["participants"] == 2
    for at in range(2, 5):
        one = lab.party(("caller", "callee")[at % 2], f"p{at}")
        one.talk(lab.join(one)["media"][0]["address"])
        parties.append(one)
        for party in parties:
            party.await_packets(*(other for other in parties if other is not party))
    assert lab.await_design("nra")["participants"] == 5
    gone = parties[2:]
    for one in gone:
        lab.leave(one)
    lab.await_design("two-party")
    parties[0].await_packets(parties[1])
    counts = [len(party.received(other)) for party in parties[:2] for other in gone]
    for party in parties:
        party.hush()
    all_unbroken(parties[:2])
    assert counts == [len(party.received(other)) for party in parties[:2] for other in gone], "packets of who has left still come"
    assert {what["reason"] for what in lab.events("left")} == {"removed"}


def test_changes_of_a_conference_lose_nothing_in_it_nor_in_another(lab: Lab) -> None:
    """Two live in the same trees. One goes from design to design, somebody joins it and leaves: whoever gets everything of somebody misses nothing, in either."""
    sender, slow, other = cameras = lab.talking(3, Camera)
    lab.create("neighbours")
    neighbours = [lab.party(host, name) for host, name in (("caller", "n0"), ("callee", "n1"), ("caller", "n2"))]
    for party in neighbours:
        party.talk(lab.join(party, name="neighbours")["media"][0]["address"])
    for party in neighbours:
        party.await_packets(*(one for one in neighbours if one is not party))
    lab.await_design("nra")
    for changes, design in (((sender,), "ra-sr"), ((other,), "ra-r")):
        for whose in changes:
            lab.target(whose, slow, 1)
        lab.await_design(design)
        slow.await_packets(sender, other)
    guest = lab.party("callee", "guest", Camera)
    guest.talk(lab.join(guest)["media"][0]["address"])
    guest.await_packets(*cameras)
    sender.await_packets(guest)
    lab.leave(guest)
    for whose in (sender, other):
        lab.target(whose, slow, 2)
    lab.await_design("nra")
    slow.await_packets(sender, other)
    for party in (*cameras, guest, *neighbours):
        party.hush()
    all_unbroken(neighbours)
    pairs = [(sender, slow), (sender, other), (other, sender), (other, slow), (guest, sender), (guest, other), (sender, guest), (other, guest)]
    broken = [(receiver.name, whose.name, holes(numbers)) for receiver, whose in pairs if not unbroken(numbers := receiver.received(whose))]
    assert not broken, (broken, lab.topology.lost_on_wires())


def _opus(number: int) -> dict[str, Any]:
    return {"medium": "audio", "codecs": [{"payload_type": number, "encoding": "opus", "clock_rate": 48_000, "channels": 2}]}


@pytest.mark.parametrize("process", ["agent", "softswitch"])
def test_media_goes_on_over_a_process_that_is_killed(lab: Lab, process: str) -> None:
    """Each with the payload type that it gave the codec itself."""
    lab.create()
    numbers = {"p0": 109, "p1": 111, "p2": 96, "new": 111}

    def enter(at: int, name: str) -> Party:
        one = lab.party(("caller", "callee")[at % 2], name)
        one.payload_type = numbers[name]
        one.talk(lab.join(one, _opus(one.payload_type))["media"][0]["address"])
        return one

    def hear_each_other() -> None:
        for party in parties:
            party.await_packets(*(other for other in parties if other is not party))

    parties = [enter(at, name) for at, name in enumerate(list(numbers)[:3])]
    hear_each_other()
    before = lab.await_design("nra")
    {"agent": lab.agent, "softswitch": lab.softswitch}[process].kill()
    hear_each_other()
    {"agent": lab.start_agent, "softswitch": lab.start_softswitch}[process]()
    after = lab.await_design("nra")
    assert [(member["participant"], member["media"][0]["address"]) for member in after["members"]] == [(member["participant"], member["media"][0]["address"]) for member in before["members"]]
    parties.append(enter(3, "new"))
    hear_each_other()
    for party in parties:
        party.hush()
    all_unbroken(parties)
    for party in parties:
        assert all(set(party.types[other.ssrc]) == {party.payload_type} for other in parties if other is not party), party.name
    # Four audio participants: a stream and a node for each, twelve copies, one tree, and one row that is always there; nothing of before is left.
    lab.until(lambda: lab.metric("rows"), lambda rows: rows == 4 + 12 + 4 + 1 + 1)


def _await_layers(lab: Lab, receiver: Party, sender: Party, layers: set[int]) -> None:
    """Wait until what a receiver gets of a camera for a while are the packets of this set, by their place in the pattern of layers."""
    begun = len(receiver.received(sender))

    def recent() -> set[int]:
        numbers = receiver.received(sender)
        return {number % 4 for number in numbers[-_RECENT:]} if len(numbers) >= begun + _RECENT else set()

    lab.until(recent, lambda found: found == layers)


@pytest.mark.parametrize("process", ["agent", "softswitch"])
def test_no_number_comes_twice_over_a_process_that_is_killed(lab: Lab, process: str) -> None:
    """A receiver of fewer layers has numbers of its own, without gaps."""
    sender, limited, whole = lab.talking(3, Camera)
    lab.target(sender, limited, 1)
    lab.await_design("ra-sr")
    _await_layers(lab, limited, sender, {0, 2})
    {"agent": lab.agent, "softswitch": lab.softswitch}[process].kill()
    limited.await_packets(sender)
    {"agent": lab.start_agent, "softswitch": lab.start_softswitch}[process]()
    lab.await_design("ra-sr")
    _await_layers(lab, limited, sender, {0, 2})
    lab.target(sender, limited, 2)
    _await_layers(lab, limited, sender, {0, 1, 2, 3})
    numbers = limited.sequences[sender.ssrc]
    assert all(after == before + 1 & 0xFFFF for before, after in pairwise(numbers)), "there is a gap, or a number came twice"
    assert len(set(whole.sequences[sender.ssrc])) == len(whole.sequences[sender.ssrc])
