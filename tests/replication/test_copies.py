"""One packet in, one rewritten copy out for each receiver: real sockets, real programs, every packet accounted for."""

from __future__ import annotations

import struct

import pytest

from shunt.net import Endpoint, FiveTuple
from shunt_softswitch.entries import BfrtError, Code
from shunt_softswitch.replication import Action, Rewrite, StreamKey
from tests.dataplane.lab import HOST_A4, MAC_A, MAC_RA, RELAY_A4, RELAY_B4
from tests.replication.conftest import Bridge, drain, numbers, rtp, settled

pytestmark = pytest.mark.netns

TREE, NUMBER, SSRC = 5, 7, 0x1234
NOBODY = Action(TREE, 0, 0, 0, NUMBER)  # no copy is excluded


def build(bridge: Bridge, count: int, **options: object) -> list:
    parties = [bridge.party(rid, NUMBER, **options) for rid in range(1, count + 1)]  # type: ignore[arg-type]
    bridge.replication.insert_tree(TREE, [(party.rid, None) for party in parties])
    return parties


@pytest.mark.parametrize("count", [1, 3, 50, 200])
def test_every_receiver_gets_every_packet_once(bridge: Bridge, count: int) -> None:
    parties = build(bridge, count)
    sender = bridge.stream(SSRC, NOBODY)
    errors = bridge.lab.checksum_errors("b")
    before = bridge.plane.totals()
    sender.send(40, gap=0.0005 if count < 100 else 0.004)
    settled()
    for party in parties:
        assert drain(party.socket) == [(n, (str(party.relay.ip), party.relay.port)) for n in range(40)], party.rid
        counted = bridge.replication.count_copy(NUMBER, party.rid)
        assert counted == (40, 40 * (20 + 8 + 172), 0, None)
    assert bridge.lab.checksum_errors("b") == errors
    after = bridge.plane.totals()
    counted = {name: after[name] - before[name] for name in after}
    assert counted["conference_packets"] == 40 and counted["relayed_packets"] == 0
    assert counted["rx_packets"] == 40 + counted["passed_packets"], "besides there is what hosts say to their neighbours"


@pytest.mark.parametrize("size", [16, 17, 173, 1200, 1400])
def test_payloads_of_any_length_arrive_with_good_checksums(bridge: Bridge, size: int) -> None:
    parties = build(bridge, 5)
    sender = bridge.stream(SSRC, NOBODY)
    before = bridge.lab.checksum_errors("b")
    sender.send(5, size=size)
    settled()
    for party in parties:
        party.socket.setblocking(False)
        assert [party.socket.recv(2000) for _ in range(5)] == [rtp(n, SSRC, size) for n in range(5)]
    assert bridge.lab.checksum_errors("b") == before


def test_checksums_from_the_wire_and_none_at_all(bridge: Bridge) -> None:
    """A full checksum, a wrong one, none: as from a network card, which a local socket's packets are not."""
    (party,) = build(bridge, 1)
    key = StreamKey(FiveTuple(Endpoint.of(HOST_A4, 5000), Endpoint.of(RELAY_A4, 6000)), SSRC)
    bridge.replication.insert_stream(key, NOBODY)
    raw = bridge.lab.raw("a", "a0")
    for number, how in enumerate(("full", "none", "wrong")):
        raw.send(frame(key.flow, rtp(number, SSRC), how))
    settled()
    before = bridge.lab.checksum_errors("b")
    assert party.numbers() == [0, 1], "a wrong checksum stays wrong"
    # The receiver verifies it when it reads.
    assert bridge.replication.count_copy(NUMBER, 1).packets == 3 and bridge.lab.checksum_errors("b") == before + 1
    raw.close()


def test_a_tag_is_taken_off(bridge: Bridge) -> None:
    (party,) = build(bridge, 1)
    key = StreamKey(FiveTuple(Endpoint.of(HOST_A4, 5000), Endpoint.of(RELAY_A4, 6000)), SSRC)
    bridge.replication.insert_stream(key, NOBODY)
    raw = bridge.lab.raw("a", "a0")
    raw.send(frame(key.flow, rtp(0, SSRC), "full", tag=100))
    settled()
    assert party.numbers() == [0]
    raw.close()


def test_the_sender_does_not_hear_itself(bridge: Bridge) -> None:
    parties = build(bridge, 3)
    bridge.replication.set_prune(1, [0])
    sender = bridge.stream(SSRC, Action(TREE, 0, 2, 1, NUMBER))
    sender.send(20)
    settled()
    assert [len(party.numbers()) for party in parties] == [20, 0, 20]
    # Without the port in the set of its L2 XID the copy is made.
    bridge.replication.set_prune(1, [1])
    sender.send(10)
    settled()
    assert [len(party.numbers()) for party in parties] == [10, 10, 10]


def test_two_meetings_in_one_tree_do_not_hear_each_other(bridge: Bridge) -> None:
    first = [bridge.party(rid, 1) for rid in (1, 2, 3)]
    second = [bridge.party(rid, 2) for rid in (4, 5)]
    bridge.replication.insert_tree(TREE, [(party.rid, 1) for party in first] + [(party.rid, 2) for party in second])
    bridge.replication.set_prune(1, [0])
    # A packet of the first meeting excludes the second's L1 XID.
    one = bridge.stream(0x11, Action(TREE, 2, 1, 1, 1))
    other = bridge.stream(0x22, Action(TREE, 1, 4, 1, 2))
    one.send(30)
    other.send(10)
    settled()
    assert [len(party.numbers()) for party in first] == [0, 30, 30]
    assert [len(party.numbers()) for party in second] == [0, 10]
    one.send(5)
    settled()
    assert [len(party.numbers()) for party in second] == [0, 0]


@pytest.mark.parametrize("sender_version", [4, 6])
def test_receivers_of_both_ip_versions_on_both_interfaces(bridge: Bridge, sender_version: int) -> None:
    parties = [bridge.party(n * 4 + k + 1, NUMBER, host, version) for n in range(5) for k, (host, version) in enumerate((("a", 4), ("b", 6), ("b", 4), ("a", 6)))]
    bridge.replication.insert_tree(TREE, [(party.rid, None) for party in parties])
    sender = bridge.stream(SSRC, NOBODY, sender_version)
    before = [bridge.lab.checksum_errors(host) for host in "ab"]
    sender.send(25, gap=0.001)
    settled()
    for party in parties:
        assert drain(party.socket) == [(n, (str(party.relay.ip), party.relay.port)) for n in range(25)], party
    assert [bridge.lab.checksum_errors(host) for host in "ab"] == before


def test_what_is_of_no_conference_goes_up(bridge: Bridge) -> None:
    (party,) = build(bridge, 1)
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
    settled()
    host.setblocking(False)
    with pytest.raises(BlockingIOError):
        host.recv(2000)
    assert party.numbers() == [0]
    host.close()


def test_a_stream_without_receivers_is_swallowed(bridge: Bridge) -> None:
    sender = bridge.stream(SSRC, NOBODY)
    sender.send(3)
    settled()
    (key,) = bridge.replication.streams()
    assert bridge.replication.count_stream(key)[:3] == (3, 3 * 200, 3)


def test_copies_without_next_hop_are_counted(bridge: Bridge) -> None:
    parties = build(bridge, 2)
    bridge.replication.insert_copy(NUMBER, 3, Rewrite(Endpoint.of(RELAY_B4, 9), Endpoint.of("10.2.0.77", 9)))
    bridge.replication.insert_node(3, 3, [0], [])
    bridge.replication.modify_tree(TREE, [(1, None), (3, None), (2, None)])
    bridge.stream(SSRC, NOBODY).send(10)
    settled()
    assert [party.numbers() for party in parties] == [list(range(10))] * 2
    assert bridge.replication.count_copy(NUMBER, 3)[:3] == (0, 0, 10)


def test_the_agent_gets_a_copy(bridge: Bridge) -> None:
    (party,) = build(bridge, 1)
    sender = bridge.stream(SSRC, NOBODY._replace(to_agent=True))
    sender.send(3)
    settled()
    (key,) = bridge.replication.streams()
    found = bridge.replication.poll_agent()
    assert [(one, packet[42:]) for one, packet in found] == [(key, rtp(n, SSRC)) for n in range(3)]
    assert party.numbers() == [0, 1, 2]
    bridge.replication.modify_stream(key, NOBODY)
    sender.send(1)
    settled()
    assert bridge.replication.poll_agent() == []


# Changes under traffic


def contiguous(found: list[int]) -> bool:
    return found == list(range(found[0], found[0] + len(found))) if found else True


def test_joins_and_leaves_lose_and_double_nothing(bridge: Bridge) -> None:
    """Whoever stays hears every packet once; whoever comes and goes hears one unbroken run each time."""
    stay = build(bridge, 3)
    guests = [bridge.party(rid, NUMBER) for rid in range(10, 20)]
    sender = bridge.stream(SSRC, NOBODY)
    always = [(party.rid, None) for party in stay]
    heard: dict[int, list[list[int]]] = {guest.rid: [] for guest in guests}
    with sender.talking():
        for turn in range(3):
            present = list(always)
            for guest in guests:
                present.append((guest.rid, None))
                bridge.replication.modify_tree(TREE, present)
            for guest in guests:
                present.remove((guest.rid, None))
                bridge.replication.modify_tree(TREE, present)
                settled(0.01)
                heard[guest.rid].append(guest.numbers())
    total = sender.sent
    assert total > 100
    for party in stay:
        assert party.numbers() == list(range(total))
    for runs in heard.values():
        assert all(contiguous(run) for run in runs) and any(runs)
    for guest in guests:
        assert guest.numbers() == []
    assert bridge.replication.count_copy(NUMBER, 1)[:1] == (total,)
    assert bridge.replication.count_stream(next(bridge.replication.streams())).lost == 0


def test_a_migration_to_another_tree_loses_and_doubles_nothing(bridge: Bridge) -> None:
    parties = build(bridge, 8)
    (key,) = [None]
    sender, key = bridge.sender(SSRC)
    bridge.replication.insert_stream(key, NOBODY)
    with sender.talking():
        for turn in range(20):
            tree, base = TREE + 1 + turn, 1000 * (turn + 1)
            for party in parties:
                bridge.replication.insert_node(base + party.rid, party.rid, [0], [])
            bridge.replication.insert_tree(tree, [(base + party.rid, None) for party in parties])
            bridge.replication.modify_stream(key, NOBODY._replace(mgid=tree))
            bridge.replication.delete_tree(tree - 1)
            bridge.replication.settle()
    assert sender.sent > 100
    for party in parties:
        got = party.numbers()
        assert got == list(range(sender.sent)), (len(got), sender.sent, sorted(set(range(sender.sent)) - set(got)))


def test_a_receiver_that_moves_gets_every_packet_at_one_place(bridge: Bridge) -> None:
    parties = build(bridge, 4)
    places = [bridge.socket("b") for _ in range(12)]
    sender = bridge.stream(SSRC, NOBODY)
    mine = [parties[0].socket]
    with sender.talking():
        for made, here in places:
            bridge.replication.modify_copy(NUMBER, 1, Rewrite(parties[0].relay, here))
            mine.append(made)
            settled(0.01)
    got = [numbers(one) for one in mine]
    assert sum(got, []) == list(range(sender.sent)) and sum(map(bool, got)) > 2
    for party in parties[1:]:
        assert party.numbers() == list(range(sender.sent))
    assert bridge.replication.count_copy(NUMBER, 1).packets == sender.sent
    bridge.replication.settle()
    assert bridge.replication.count_copy(NUMBER, 1).packets == sender.sent, "counters of the former rewrites are kept"


def test_a_larger_and_a_smaller_list_side_by_side(bridge: Bridge) -> None:
    """Many senders at once, each with another number of copies: no copy takes another packet's place."""
    everyone = [bridge.party(rid, NUMBER) for rid in range(1, 13)]
    senders = []
    for n in range(1, 7):
        for party in everyone[: 2 * n]:
            bridge.replication.insert_node(1000 * n + party.rid, party.rid, [0], [])
        bridge.replication.insert_tree(n, [(1000 * n + party.rid, None) for party in everyone[: 2 * n]])
        senders.append(bridge.stream(n, Action(n, 0, 0, 0, NUMBER)))
    for _ in range(50):
        for sender in senders:
            sender.send(1, gap=0)
        settled(0.002)
    settled()
    for party in everyone:
        party.socket.setblocking(False)
        got: dict[int, list[int]] = {}
        for _ in range(50 * sum(2 * n >= party.rid for n in range(1, 7))):
            data = party.socket.recv(2000)
            got.setdefault(struct.unpack_from("!I", data, 8)[0], []).append(struct.unpack_from("!I", data, 12)[0])
        assert got == {n: list(range(50)) for n in range(1, 7) if 2 * n >= party.rid}


# Limits


def test_a_refused_change_changes_nothing(bridge: Bridge) -> None:
    parties = build(bridge, 3)
    sender = bridge.stream(SSRC, NOBODY)
    replication = bridge.replication
    for number in range(4, 514):
        replication.insert_node(number, number, [0], [])
        if number < 513:
            replication.insert_copy(NUMBER, number, Rewrite(Endpoint.of(RELAY_B4, 9), parties[0].here))
    replication.insert_copy(NUMBER, 513, Rewrite(Endpoint.of(RELAY_B4, 9), parties[0].here))
    before = replication.engine.members(TREE)
    with pytest.raises(BfrtError, match="at most 512 copies, not 513") as refused:
        replication.modify_tree(TREE, [(number, None) for number in range(1, 514)])
    assert refused.value.code == Code.NO_SPACE and replication.engine.members(TREE) == before
    sender.send(10)
    settled()
    assert [party.numbers() for party in parties] == [list(range(10))] * 3


def test_a_full_table_says_so(bridge: Bridge) -> None:
    replication = bridge.replication
    for n in range(replication.capacity):
        replication.insert_copy(1, n, Rewrite(Endpoint.of(RELAY_B4, 9), Endpoint.of("10.2.0.2", 9)))
    with pytest.raises(BfrtError, match="room for 1024 rewrites"):
        replication.insert_copy(2, 0, Rewrite(Endpoint.of(RELAY_B4, 9), Endpoint.of("10.2.0.2", 9)))
    for n in range(replication.stream_capacity):
        replication.insert_stream(StreamKey(FiveTuple(Endpoint.of("10.1.0.2", n + 1), Endpoint.of(RELAY_A4, 6000)), n), Action(n, 0, 0, 0, n))
    with pytest.raises(BfrtError, match="room for 1024 streams"):
        replication.insert_stream(StreamKey(FiveTuple(Endpoint.of("10.1.0.2", 1), Endpoint.of(RELAY_A4, 6000)), 1 << 31), NOBODY)
    assert len(list(replication.streams())) == 1024 and len(list(replication.copies())) == 1024


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda r: r.insert_copy(1, 1, Rewrite(Endpoint.of(RELAY_B4, 1), Endpoint.of("fd02::2", 1))), "not both IPv4 or both IPv6"),
        (lambda r: r.insert_copy(1 << 24, 1, Rewrite(Endpoint.of(RELAY_B4, 1), Endpoint.of(RELAY_B4, 1))), "not in 0..16777215"),
        (lambda r: r.delete_copy(1, 1), "no rewrite"),
        (lambda r: r.modify_copy(1, 1, Rewrite(Endpoint.of(RELAY_B4, 1), Endpoint.of(RELAY_B4, 1))), "no rewrite"),
        (lambda r: r.delete_stream(StreamKey(FiveTuple(Endpoint.of(HOST_A4, 1), Endpoint.of(RELAY_A4, 1)), 1)), "not replicated"),
    ],
)
def test_bad_input_is_refused(bridge: Bridge, what: object, message: str) -> None:
    with pytest.raises(BfrtError, match=message):
        what(bridge.replication)  # type: ignore[operator]


def frame(flow: FiveTuple, payload: bytes, checksum: str, tag: int | None = None) -> bytes:
    """An Ethernet frame from host `a` to the relay with a full, a wrong or no UDP checksum."""
    from shunt_softswitch.dataplane import _ones_sum

    (saddr, sport), (daddr, dport) = flow
    length = 8 + len(payload)
    check = 0
    if checksum != "none":
        check = ~_ones_sum(saddr + daddr + struct.pack("!HHHHHH", 17, length, sport, dport, length, 0) + payload) & 0xFFFF or 0xFFFF
    if checksum == "wrong":
        check ^= 0x0101
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + length, 0, 0x4000, 64, 17, 0, saddr, daddr)
    header = header[:10] + struct.pack("!H", ~_ones_sum(header) & 0xFFFF) + header[12:]
    ethernet = bytes.fromhex((MAC_RA + MAC_A).replace(":", ""))
    if tag is not None:
        ethernet += struct.pack("!HH", 0x8100, tag)
    return ethernet + b"\x08\0" + header + struct.pack("!HHHH", sport, dport, length, check) + payload
