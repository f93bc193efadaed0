"""Who hears whom: joins, leaves, designs, and an agent or a softswitch that is killed meanwhile."""

from __future__ import annotations

from itertools import permutations

import pytest

from tests.agent_conference.lab import Camera, Lab
from tests.lab.party import Party, holes, unbroken
from tests.lab.topology import CALLER_IP


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


def test_who_only_listens_is_served(lab: Lab) -> None:
    parties = lab.talking(3)
    listener = lab.party("caller", "listener")
    answer = lab.join(listener, {"medium": "audio", "direction": "recvonly"}, signalled=[CALLER_IP])
    host, port = answer["media"][0]["address"].rsplit(":", 1)
    listener.relay = (host, int(port))
    listener.send_rtcp(bytes.fromhex("80c90001") + listener.ssrc.to_bytes(4, "big"))
    listener.await_packets(*parties)
    assert not any(party.received(listener) for party in parties)


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


@pytest.mark.parametrize("process", ["agent", "softswitch"])
def test_media_goes_on_over_a_process_that_is_killed(lab: Lab, process: str) -> None:
    parties = lab.talking(3)
    before = lab.await_design("nra")
    if process == "agent":
        lab.agent.kill()
        for party in parties:
            party.await_packets(*(other for other in parties if other is not party))
        lab.start_agent()
    else:
        lab.softswitch.kill()
        for party in parties:
            party.await_packets(*(other for other in parties if other is not party))
        lab.start_softswitch()
    after = lab.await_design("nra")
    assert [member["participant"] for member in after["members"]] == [member["participant"] for member in before["members"]]
    assert [member["media"][0]["address"] for member in after["members"]] == [member["media"][0]["address"] for member in before["members"]]
    new = lab.party("callee", "new")
    new.talk(lab.join(new)["media"][0]["address"])
    for party in [*parties, new]:
        party.await_packets(*(other for other in [*parties, new] if other is not party))
    for party in [*parties, new]:
        party.hush()
    all_unbroken([*parties, new])
    # Three audio participants: a stream, a node and three copies each more for the new one, and one tree; nothing of before is left.
    lab.until(lambda: lab.metric("rows"), lambda rows: rows == 4 + 12 + 4 + 1 + 1)


def test_what_a_change_answers_is_kept_and_what_has_ended_is_not(lab: Lab) -> None:
    lab.create("kept")
    lab.create("gone")
    party = lab.party("caller", "ann")
    answer = lab.join(party, name="kept", ice=True, call="abc@example")
    lab.ask(lambda client: client.end_conference("gone"))
    lab.agent.kill()
    lab.start_agent()
    assert [one["conference"] for one in lab.conferences() or []] == ["kept"]
    (member,) = lab.room("kept")["members"]
    assert member | {"silent_s": 0} == answer | {"silent_s": 0} and member["ice"]["ufrag"] and member["call"] == "abc@example"
