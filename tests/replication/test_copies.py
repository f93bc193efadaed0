"""One packet in, one rewritten copy out for each receiver: real sockets, real programs, every packet accounted for."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest

from shunt.net import Endpoint, FiveTuple
from tests.dataplane.lab import HOST_A4, RELAY_A4, RELAY_B4
from tests.dataplane.traffic import ends, frame
from tests.replication.conftest import Bridge, drain, numbers, rtp
from tests.softswitch.client import INVALID, NO_SPACE, NOT_FOUND, Refused
from tests.softswitch.replication import Action, Replication, Rewrite, StreamKey

pytestmark = pytest.mark.netns

TREE, NUMBER, SSRC = 5, 7, 0x1234
NOBODY = Action(TREE, 0, 0, 0, NUMBER)  # no copy is excluded


def build(bridge: Bridge, count: int, **options: object) -> list:
    participants = [bridge.participant(rid, NUMBER, **options) for rid in range(1, count + 1)]  # type: ignore[arg-type]
    bridge.replication.insert_tree(TREE, [(participant.rid, None) for participant in participants])
    return participants


@pytest.mark.parametrize("count", [1, 3, 50, 200])
def test_every_receiver_gets_every_packet_once(bridge: Bridge, count: int) -> None:
    participants = build(bridge, count)
    sender = bridge.stream(SSRC, NOBODY)
    errors = bridge.lab.checksum_errors("b")
    before = bridge.plane.totals()
    sender.send(40, gap=0.0005 if count < 100 else 0.004)
    bridge.settled()
    for participant in participants:
        assert drain(participant.socket) == [(n, (str(participant.relay.ip), participant.relay.port)) for n in range(40)], participant.rid
        counted = bridge.replication.count_copy(NUMBER, participant.rid)
        assert counted == (40, 40 * (20 + 8 + 172))
    assert bridge.lab.checksum_errors("b") == errors
    after = bridge.plane.totals()
    counted = {name: after[name] - before[name] for name in after}
    assert counted["conference_packets"] == 40 and counted["relayed_packets"] == 0
    assert counted["rx_packets"] == 40 + counted["passed_packets"], "besides there is what hosts say to their neighbours"


@pytest.mark.parametrize("size", [16, 17, 173, 1200, 1400])
def test_payloads_of_any_length_arrive_with_good_checksums(bridge: Bridge, size: int) -> None:
    participants = build(bridge, 5)
    sender = bridge.stream(SSRC, NOBODY)
    before = bridge.lab.checksum_errors("b")
    sender.send(5, size=size)
    bridge.settled()
    for participant in participants:
        participant.socket.setblocking(False)
        assert [participant.socket.recv(2000) for _ in range(5)] == [rtp(n, SSRC, size) for n in range(5)]
    assert bridge.lab.checksum_errors("b") == before


def test_checksums_from_the_wire_and_none_at_all(bridge: Bridge) -> None:
    """A full checksum, a wrong one, none: as from a network card, which a local socket's packets are not."""
    (participant,) = build(bridge, 1)
    key = StreamKey(FiveTuple(Endpoint.of(HOST_A4, 5000), Endpoint.of(RELAY_A4, 6000)), SSRC)
    bridge.replication.insert_stream(key, NOBODY)
    raw = bridge.lab.raw("a", "a0")
    for number, how in enumerate(("full", "none", "wrong")):
        raw.send(frame(key.flow, rtp(number, SSRC), checksum=how))
    bridge.settled()
    before = bridge.lab.checksum_errors("b")
    assert participant.numbers() == [0, 1], "a wrong checksum stays wrong"
    # The receiver verifies it when it reads.
    assert bridge.replication.count_copy(NUMBER, 1).packets == 3 and bridge.lab.checksum_errors("b") == before + 1
    raw.close()


def test_a_tag_is_taken_off(bridge: Bridge) -> None:
    (participant,) = build(bridge, 1)
    key = StreamKey(FiveTuple(Endpoint.of(HOST_A4, 5000), Endpoint.of(RELAY_A4, 6000)), SSRC)
    bridge.replication.insert_stream(key, NOBODY)
    raw = bridge.lab.raw("a", "a0")
    raw.send(frame(key.flow, rtp(0, SSRC), tag=100))
    bridge.settled()
    assert participant.numbers() == [0]
    raw.close()


def test_the_sender_gets_no_copy(bridge: Bridge) -> None:
    participants = build(bridge, 3)
    bridge.replication.set_prune(1, [0])
    sender = bridge.stream(SSRC, Action(TREE, 0, 2, 1, NUMBER))
    sender.send(20)
    bridge.settled()
    assert [len(participant.numbers()) for participant in participants] == [20, 0, 20]
    # Without the port in the set of its L2 XID the copy is made.
    bridge.replication.set_prune(1, [1])
    sender.send(10)
    bridge.settled()
    assert [len(participant.numbers()) for participant in participants] == [10, 10, 10]


def test_two_conferences_in_one_tree_get_only_their_own_copies(bridge: Bridge) -> None:
    first = [bridge.participant(rid, 1) for rid in (1, 2, 3)]
    second = [bridge.participant(rid, 2) for rid in (4, 5)]
    bridge.replication.insert_tree(TREE, [(participant.rid, 1) for participant in first] + [(participant.rid, 2) for participant in second])
    bridge.replication.set_prune(1, [0])
    # A packet of the first conference excludes the second's L1 XID.
    one = bridge.stream(0x11, Action(TREE, 2, 1, 1, 1))
    other = bridge.stream(0x22, Action(TREE, 1, 4, 1, 2))
    one.send(30)
    other.send(10)
    bridge.settled()
    assert [len(participant.numbers()) for participant in first] == [0, 30, 30]
    assert [len(participant.numbers()) for participant in second] == [0, 10]
    one.send(5)
    bridge.settled()
    assert [len(participant.numbers()) for participant in second] == [0, 0]


@pytest.mark.parametrize("sender_version", [4, 6])
def test_receivers_of_both_ip_versions_on_both_interfaces(bridge: Bridge, sender_version: int) -> None:
    participants = [bridge.participant(n * 4 + k + 1, NUMBER, host, version) for n in range(5) for k, (host, version) in enumerate((("a", 4), ("b", 6), ("b", 4), ("a", 6)))]
    bridge.replication.insert_tree(TREE, [(participant.rid, None) for participant in participants])
    sender = bridge.stream(SSRC, NOBODY, sender_version)
    before = [bridge.lab.checksum_errors(host) for host in "ab"]
    sender.send(25, gap=0.001)
    bridge.settled()
    for participant in participants:
        assert drain(participant.socket) == [(n, (str(participant.relay.ip), participant.relay.port)) for n in range(25)], participant
    assert [bridge.lab.checksum_errors(host) for host in "ab"] == before


def pairs(*found: tuple[int, int]) -> int:
    """Payload types of a sender and a receiver, as `copy_to` takes them."""
    return sum((before << 8 | after) << 16 * place for place, (before, after) in enumerate(found))


@pytest.mark.parametrize("sender_version", [4, 6])
def test_each_receiver_gets_its_own_payload_types(bridge: Bridge, sender_version: int) -> None:
    """The marker bit and all other payload types stay, and so does a wrong checksum."""
    marker, mapped = 0x80, pairs((96, 120), (0, 0), (97, 96), (0, 8))
    participants = [bridge.participant(rid, NUMBER, host, version) for rid, (host, version) in enumerate((("a", 4), ("b", 6), ("b", 4), ("a", 6), ("b", 4)), 1)]
    bridge.replication.insert_tree(TREE, [(participant.rid, None) for participant in participants])
    for participant in participants[:4]:
        bridge.replication.modify_copy(NUMBER, participant.rid, Rewrite(participant.relay, participant.here, payload_types=mapped))
    sender, key = bridge.sender(SSRC, sender_version)
    bridge.replication.insert_stream(key, NOBODY)
    before = [bridge.lab.checksum_errors(host) for host in "ab"]
    heads = [96, marker | 96, 97, 0, marker | 120]
    raw = bridge.lab.raw("a", "a0")
    for number, head in enumerate(heads):
        packet = bytearray(rtp(number, SSRC))
        packet[1] = head
        sender.socket.sendto(packet, (str(sender.relay.ip), sender.relay.port))
        bridge.settled()
        raw.send(frame(key.flow, bytes(packet), checksum="full"))
        bridge.settled()
    raw.send(frame(key.flow, rtp(9, SSRC), checksum="wrong"))
    bridge.settled()
    for participant in participants:
        participant.socket.setblocking(False)
        got = []
        while True:
            try:
                got.append(participant.socket.recv(2000)[1])
            except BlockingIOError:
                break
        wanted = [120, marker | 120, 96, 8, marker | 120] if participant.rid < 5 else heads
        assert got == [one for one in wanted for _ in range(2)], participant
    assert [bridge.lab.checksum_errors(host) - count for host, count in zip("ab", before)] == [2, 3], "the wrong one, at each receiver"


def test_what_is_of_no_conference_goes_up(bridge: Bridge) -> None:
    (participant,) = build(bridge, 1)
    sender, key = bridge.sender(SSRC)
    bridge.replication.insert_stream(key, NOBODY)
    host = bridge.lab.socket("relay", RELAY_A4, key.flow.dst.port)
    to = (RELAY_A4, key.flow.dst.port)
    other, _ = bridge.socket("a")
    rtcp = struct.pack("!BBHI", 0x80, 200, 6, SSRC) + bytes(20)
    for payload, sock in ((rtp(1, 0x9999), sender.socket), (rtp(2, SSRC), other), (rtcp, sender.socket), (b"\x80", sender.socket), (b"", sender.socket), (bytes(40), sender.socket)):
        sock.sendto(payload, to)
        assert host.recv(2000) == payload
    sender.send(1)
    bridge.settled()
    host.setblocking(False)
    with pytest.raises(BlockingIOError):
        host.recv(2000)
    assert participant.numbers() == [0]
    host.close()


def test_a_stream_without_receivers_is_swallowed(bridge: Bridge) -> None:
    sender = bridge.stream(SSRC, NOBODY)
    sender.send(3)
    bridge.settled()
    (key,) = bridge.replication.streams()
    assert bridge.replication.count_stream(key) == (3, 3 * 200)


def test_copies_without_next_hop_are_left_out(bridge: Bridge) -> None:
    participants = build(bridge, 2)
    bridge.replication.insert_copy(NUMBER, 3, Rewrite(Endpoint.of(RELAY_B4, 9), Endpoint.of("10.2.0.77", 9)))
    bridge.replication.insert_node(3, 3, [0], [])
    bridge.replication.modify_tree(TREE, [(1, None), (3, None), (2, None)])
    bridge.stream(SSRC, NOBODY).send(10)
    bridge.settled()
    assert [participant.numbers() for participant in participants] == [list(range(10))] * 2
    assert bridge.replication.count_copy(NUMBER, 3) == (0, 0)


def test_the_agent_gets_a_copy(bridge: Bridge) -> None:
    (participant,) = build(bridge, 1)
    sender = bridge.stream(SSRC, NOBODY._replace(to_agent=True))
    sender.send(3)
    bridge.settled()
    (key,) = bridge.replication.streams()
    found = bridge.plane.poll_packets()
    assert [(ends(packet), packet[42:]) for packet in found] == [(tuple(key.flow), rtp(n, SSRC)) for n in range(3)]
    assert participant.numbers() == [0, 1, 2]
    bridge.replication.modify_stream(key, NOBODY)
    sender.send(1)
    bridge.settled()
    assert bridge.plane.poll_packets() == []


# Changes under traffic


def contiguous(found: list[int]) -> bool:
    return found == list(range(found[0], found[0] + len(found))) if found else True


def test_joins_and_leaves_lose_and_double_nothing(bridge: Bridge) -> None:
    """Whoever stays gets every packet once; whoever joins and leaves gets one unbroken run each time."""
    stay = build(bridge, 3)
    guests = [bridge.participant(rid, NUMBER) for rid in range(10, 20)]
    sender = bridge.stream(SSRC, NOBODY)
    always = [(participant.rid, None) for participant in stay]
    runs_of: dict[int, list[list[int]]] = {guest.rid: [] for guest in guests}
    with sender.talking():
        for turn in range(3):
            present = list(always)
            for guest in guests:
                present.append((guest.rid, None))
                bridge.replication.modify_tree(TREE, present)
            for guest in guests:
                present.remove((guest.rid, None))
                bridge.replication.modify_tree(TREE, present)
                sender.goes_on()
                runs_of[guest.rid].append(guest.numbers())
    total = sender.sent
    assert total > 100
    for participant in stay:
        assert participant.numbers() == list(range(total))
    for runs in runs_of.values():
        assert all(contiguous(run) for run in runs) and any(runs)
    for guest in guests:
        assert guest.numbers() == []
    assert bridge.replication.count_copy(NUMBER, 1).packets == total
    assert [bridge.replication.count_stream(key).packets for key in bridge.replication.streams()] == [total]


def test_a_migration_to_another_tree_loses_and_doubles_nothing(bridge: Bridge) -> None:
    participants = build(bridge, 8)
    sender, key = bridge.sender(SSRC)
    bridge.replication.insert_stream(key, NOBODY)
    with sender.talking():
        for turn in range(20):
            tree, base = TREE + 1 + turn, 1000 * (turn + 1)
            with bridge.plane.session.batching():
                for participant in participants:
                    bridge.replication.insert_node(base + participant.rid, participant.rid, [0])
                bridge.replication.insert_tree(tree, [(base + participant.rid, None) for participant in participants])
            bridge.replication.modify_stream(key, NOBODY._replace(mgid=tree))
            bridge.replication.delete_tree(tree - 1)
            sender.goes_on()
    assert sender.sent > 100
    for participant in participants:
        got = participant.numbers()
        assert got == list(range(sender.sent)), (len(got), sender.sent, sorted(set(range(sender.sent)) - set(got)))


def test_a_receiver_that_moves_gets_every_packet_at_one_place(bridge: Bridge) -> None:
    participants = build(bridge, 4)
    places = [bridge.socket("b") for _ in range(12)]
    sender = bridge.stream(SSRC, NOBODY)
    mine = [participants[0].socket]
    with sender.talking():
        for made, here in places:
            bridge.replication.modify_copy(NUMBER, 1, Rewrite(participants[0].relay, here))
            mine.append(made)
            sender.goes_on()
    got = [numbers(one) for one in mine]
    assert sum(got, []) == list(range(sender.sent)) and sum(map(bool, got)) > 2
    for participant in participants[1:]:
        assert participant.numbers() == list(range(sender.sent))
    assert bridge.replication.count_copy(NUMBER, 1).packets == sender.sent
    again = bridge.replication.copy(NUMBER, 1)
    assert again is not None
    bridge.replication.modify_copy(NUMBER, 1, again)
    assert bridge.replication.count_copy(NUMBER, 1).packets == sender.sent, "counters of the former rewrites are kept"


def test_a_larger_and_a_smaller_list_side_by_side(bridge: Bridge) -> None:
    """Many senders at once, each with another number of copies: no copy takes another packet's place."""
    everyone = [bridge.participant(rid, NUMBER) for rid in range(1, 13)]
    senders = []
    for n in range(1, 7):
        for participant in everyone[: 2 * n]:
            bridge.replication.insert_node(1000 * n + participant.rid, participant.rid, [0], [])
        bridge.replication.insert_tree(n, [(1000 * n + participant.rid, None) for participant in everyone[: 2 * n]])
        senders.append(bridge.stream(n, Action(n, 0, 0, 0, NUMBER)))
    for _ in range(50):
        for sender in senders:
            sender.send(1, gap=0)
        time.sleep(0.002)
    bridge.settled()
    for participant in everyone:
        participant.socket.setblocking(False)
        got: dict[int, list[int]] = {}
        for _ in range(50 * sum(2 * n >= participant.rid for n in range(1, 7))):
            data = participant.socket.recv(2000)
            got.setdefault(struct.unpack_from("!I", data, 8)[0], []).append(struct.unpack_from("!I", data, 12)[0])
        assert got == {n: list(range(50)) for n in range(1, 7) if 2 * n >= participant.rid}


# Limits


def test_a_change_that_fails_changes_nothing(bridge: Bridge) -> None:
    participants = build(bridge, 3)
    sender = bridge.stream(SSRC, NOBODY)
    replication = bridge.replication
    with bridge.plane.session.batching():
        for number in range(4, 514):
            replication.insert_node(number, number, [0])
            replication.insert_copy(NUMBER, number, Rewrite(Endpoint.of(RELAY_B4, 9), participants[0].here))
    before = replication.members(TREE)
    with pytest.raises(Refused, match="at most 512 copies") as refused:
        replication.modify_tree(TREE, [(number, None) for number in range(1, 514)])
    assert refused.value.code == NO_SPACE and replication.members(TREE) == before
    sender.send(10)
    bridge.settled()
    assert [participant.numbers() for participant in participants] == [list(range(10))] * 3


def test_a_full_table_says_so(bridge: Bridge) -> None:
    replication = bridge.replication
    with bridge.plane.session.batching():
        for n in range(replication.capacity):
            replication.insert_copy(1, n, Rewrite(Endpoint.of(RELAY_B4, 9), Endpoint.of("10.2.0.2", 9)))
    with pytest.raises(Refused) as refused:
        replication.insert_copy(2, 0, Rewrite(Endpoint.of(RELAY_B4, 9), Endpoint.of("10.2.0.2", 9)))
    assert refused.value.code == NO_SPACE
    with bridge.plane.session.batching():
        for n in range(replication.stream_capacity):
            replication.insert_stream(StreamKey(FiveTuple(Endpoint.of("10.1.0.2", n + 1), Endpoint.of(RELAY_A4, 6000)), n), Action(n, 0, 0, 0, n))
    with pytest.raises(Refused) as refused:
        replication.insert_stream(StreamKey(FiveTuple(Endpoint.of("10.1.0.2", 1), Endpoint.of(RELAY_A4, 6000)), 1 << 31), NOBODY)
    assert refused.value.code == NO_SPACE
    assert len(replication.streams()) == len(replication.copies()) == replication.capacity == replication.stream_capacity == 1024


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (lambda r: r.delete_copy(1, 1), NOT_FOUND),
        (lambda r: r.modify_copy(1, 1, Rewrite(Endpoint.of(RELAY_B4, 1), Endpoint.of(RELAY_B4, 1))), NOT_FOUND),
        (lambda r: r.insert_copy(1, 1, Rewrite(Endpoint.of(RELAY_B4, 1), Endpoint.of(RELAY_B4, 1), payload_types=pairs((96, 128)))), INVALID),
        (lambda r: r.insert_copy(1, 1, Rewrite(Endpoint.of(RELAY_B4, 1), Endpoint.of(RELAY_B4, 1), payload_types=pairs((96, 97), (96, 98)))), INVALID),
        (lambda r: r.delete_stream(StreamKey(FiveTuple(Endpoint.of(HOST_A4, 1), Endpoint.of(RELAY_A4, 1)), 1)), NOT_FOUND),
        (lambda r: r.insert_stream(StreamKey(FiveTuple(Endpoint.of(HOST_A4, 1), Endpoint.of(RELAY_A4, 1)), 1), Action(1, 0, 0, 512, 1)), INVALID),
    ],
    ids=["delete copy", "modify copy", "payload type", "payload type twice", "delete stream", "L2 XID"],
)
def test_bad_input_is_refused(bridge: Bridge, what: Callable[[Replication], None], code: int) -> None:
    with pytest.raises(Refused) as refused:
        what(bridge.replication)
    assert refused.value.code == code


def test_pruning_and_where_copies_are_made(bridge: Bridge) -> None:
    """By its L1 XID a packet leaves out the nodes that have it, by RID and the L2 XID of its port one copy; a node without a port makes none."""
    participants = {rid: bridge.receiver(rid) for rid in range(100, 105)}
    ports, xids = ([0], [1], [0], [1], []), (1, 1, 2, None, None)
    with bridge.plane.session.batching():
        for rid, port in zip(participants, ports):
            bridge.replication.insert_copy(NUMBER, rid, Rewrite(participants[rid].relay, participants[rid].here))
            bridge.replication.insert_node(rid, rid, port)
        bridge.replication.insert_tree(TREE, list(zip(participants, xids)))
        bridge.replication.set_prune(7, [1])
    wanted = {
        (0, 0, 0): [100, 101, 102, 103], (2, 0, 0): [100, 101, 103], (2, 101, 7): [100, 103], (2, 100, 7): [100, 101, 103], (2, 101, 0): [100, 101, 103],
    }  # fmt: skip
    for ssrc, (l1_xid, rid, l2_xid) in enumerate(wanted):
        bridge.stream(ssrc, Action(TREE, l1_xid, rid, l2_xid, NUMBER)).send(1)
        bridge.settled()
        assert [one for one, participant in participants.items() if participant.numbers() == [0]] == wanted[l1_xid, rid, l2_xid], (l1_xid, rid, l2_xid)
    # A deleted node leaves its tree, a deleted tree leaves its nodes.
    sender = bridge.stream(SSRC, NOBODY)
    bridge.replication.delete_node(101)
    assert bridge.replication.members(TREE) == [(100, 1), (102, 2), (103, None), (104, None)]
    sender.send(1)
    bridge.settled()
    assert [one for one, participant in participants.items() if participant.numbers() == [0]] == [100, 102, 103]
    bridge.replication.delete_tree(TREE)
    sender.send(1)
    bridge.settled()
    assert sorted(bridge.replication.nodes()) == [100, 102, 103, 104] and not any(participant.numbers() for participant in participants.values())
    bridge.replication.insert_tree(TREE + 1, [(100, None)])
