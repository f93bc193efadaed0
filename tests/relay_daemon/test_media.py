"""Media over loopback: forwarding, learning, attacks, IPv6, new ports."""

from __future__ import annotations

import socket
import time

import pytest

from tests.relay_daemon.phone import plus
from tests.relay_daemon.process import Relay

NATTED = ("192.0.2.9", 6000)


def learned(relay: Relay, party: int, name: str = "c1") -> str:
    """The latched source of the caller (0) or the callee (1), from the list of sessions; `-` for none."""
    records = relay.ask("Is 0").split(" && ")[1:]
    words = next(record.split() for record in records if record.startswith(name + " "))
    return words[5 + party].split("/")[2]


def test_both_ways_and_counts(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12", ssrc=0x22222222)
    to_callee, to_caller = relay.call(caller.place, callee.place)
    sent = [caller.rtp(to_caller) for _ in range(10)]
    assert callee.heard(10) == [(packet, to_callee) for packet in sent]
    back = [callee.rtp(to_callee) for _ in range(7)]
    assert caller.heard(7) == [(packet, to_caller) for packet in back]
    assert relay.ask("Q c1 f;1 t;1") == "60 10 7 17 0"
    assert relay.ask("Q c1 t;1 f;1") == "60 7 10 17 0"
    assert relay.ask("G npkts_rcvd npkts_relayed npkts_discard") == "17 17 0"
    assert (learned(relay, 0), learned(relay, 1)) == (f"127.0.0.11:{caller.port}", f"127.0.0.12:{callee.port}")
    assert relay.ask("D c1 f t") == "0"
    assert relay.ask("G npkts_relayed nsess_complete nsess_nortp nsess_nortcp") == "17 1 0 1"


def test_many_calls_at_once_and_none_gets_anothers_packets(phone):
    with Relay(threads=4) as relay:
        calls = []
        for n in range(60):
            caller, callee = phone("127.0.0.11", ssrc=n + 1), phone("127.0.0.12", ssrc=1000 + n)
            calls.append((caller, callee, *relay.call(caller.place, callee.place, name=f"c{n}")))
        for _ in range(20):
            for caller, callee, to_callee, to_caller in calls:
                caller.rtp(to_caller)
                callee.rtp(to_callee)
            time.sleep(0.01)
        for caller, callee, to_callee, to_caller in calls:
            forth, back = callee.heard(20), caller.heard(20)
            assert [int.from_bytes(data[8:12]) for data, _ in forth] == [caller.ssrc] * 20 and {sender for _, sender in forth} == {to_callee}
            assert [int.from_bytes(data[8:12]) for data, _ in back] == [callee.ssrc] * 20 and {sender for _, sender in back} == {to_caller}
        assert relay.ask("G npkts_relayed npkts_discard") == "2400 0"


def test_bursts_keep_their_order(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    to_callee, to_caller = relay.call(caller.place, callee.place)
    for _ in range(5):
        sent = [caller.rtp(to_caller, size) for size in range(100)]
        assert [data for data, _ in callee.heard(100)] == sent


def test_sizes_from_nothing_to_the_largest(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    _, to_caller = relay.call(caller.place, callee.place)
    for size in (0, 1, 172, 2048, 9000, 65_507):
        caller.sock.sendto(b"z" * size, to_caller)
        [(data, _)] = callee.heard() or [(None, None)]
        assert data == b"z" * size, size


def test_a_stream_above_its_packet_limit_is_cut_down_and_others_are_not(phone):
    """400 packets/s: 100 in a quarter of a second."""
    with Relay(packet_limit=400) as relay:
        caller, callee, unknown = phone("127.0.0.11"), phone("127.0.0.12", ssrc=0x22222222), phone("127.0.0.13")
        to_callee, to_caller = relay.call(caller.place, callee.place)
        caller.rtp(to_caller)
        callee.rtp(to_callee)
        assert len(callee.heard()) == len(caller.heard()) == 1
        time.sleep(0.3)
        for n in range(300):
            caller.rtp(to_caller)
            unknown.rtp(to_callee)
            if n % 30 == 0:
                callee.rtp(to_callee)
        assert len(caller.heard(10, 2.0)) == 10, "neither the flood nor the unknown source takes anything from the callee's stream"
        got = len(callee.heard(300, 0.3))
        assert 90 <= got <= 200, "a window's worth, or two where the machine was slow"
        assert int(relay.ask("Q c1 f;1 t;1").split()[4]) == 300 - got
        time.sleep(0.3)
        caller.rtp(to_caller)
        assert callee.heard(), "the next window"


def test_rtcp_goes_its_own_way(relay, phone):
    caller, callee = phone("127.0.0.11", 5061), phone("127.0.0.12", 5071)
    to_callee, to_caller = relay.call((caller.ip, 5060), (callee.ip, 5070))
    packet = caller.rtcp(plus(to_caller))
    assert callee.heard() == [(packet, plus(to_callee))]
    packet = callee.rtcp(plus(to_callee))
    assert caller.heard() == [(packet, plus(to_caller))]
    assert relay.ask("Q c1 f;1 t;1") == "60 0 0 0 0"
    assert relay.ask("D c1 f") == "0"
    assert relay.ask("G npkts_relayed nsess_nortp nsess_nortcp nsess_owrtcp") == "2 1 0 0"


def test_rtcp_follows_a_party_behind_a_nat(relay, phone):
    """Behind a NAT the RTCP port is not RTP + 1: until RTCP is heard it is guessed, then taken from the same address."""
    caller, caller_rtcp, callee = phone("127.0.0.11", 5062), phone("127.0.0.11", 5099), phone("127.0.0.12", 5081)
    to_callee, to_caller = relay.call(NATTED, (callee.ip, 5080))
    caller.talk(to_caller, 8)
    assert learned(relay, 0) == "127.0.0.11:5062"
    guessed = phone("127.0.0.11", 5063)
    packet = callee.rtcp(plus(to_callee))
    assert guessed.heard() == [(packet, plus(to_caller))]
    caller_rtcp.rtcp(plus(to_caller))
    assert len(callee.heard()) == 1
    packet = callee.rtcp(plus(to_callee))
    assert caller_rtcp.heard() == [(packet, plus(to_caller))]


def test_another_port_of_the_signalled_address_is_learned_at_once(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    to_callee, to_caller = relay.call((caller.ip, 6000), callee.place)
    packet = caller.rtp(to_caller)
    assert callee.heard() == [(packet, to_callee)]
    packet = callee.rtp(to_callee)
    assert caller.heard() == [(packet, to_caller)]


def test_an_unknown_address_is_learned_behind_its_guard_and_loses_nothing(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    to_callee, to_caller = relay.call(NATTED, callee.place)
    sent = [caller.rtp(to_caller)]
    assert callee.is_left_alone(0.02)
    sent += caller.talk(to_caller, 9)
    assert [data for data, _ in callee.heard(10)] == sent
    packet = callee.rtp(to_callee)
    assert caller.heard() == [(packet, to_caller)]
    assert relay.ask("Q c1 f;1 t;1") == "60 10 1 11 0"


def test_before_learning_media_goes_to_the_signalled_address(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    to_callee, to_caller = relay.call(caller.place, callee.place)
    packet = callee.rtp(to_callee)
    assert caller.heard() == [(packet, to_caller)]


def test_early_media_before_the_answer_is_dropped_and_counted(relay, phone):
    callee = phone("127.0.0.12")
    to_callee = relay.port("U c1 127.0.0.11 6000 f;1")
    callee.talk(to_callee, 8)
    time.sleep(0.05)
    _, _, received, relayed, dropped = relay.ask("Q c1 f;1").split()
    assert received == dropped != "0" and relayed == "0"


def test_a_spray_neither_gets_nor_stops_a_call_with_known_addresses(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    attacker = phone("127.0.0.66", ssrc=0x66666666)
    to_callee, to_caller = relay.call(caller.place, callee.place)
    for _ in range(5):
        for port in (to_callee, to_caller, plus(to_callee), plus(to_caller)):
            attacker.rtp(port)
    sent = [caller.rtp(to_caller) for _ in range(5)]
    assert [data for data, _ in callee.heard(5)] == sent
    back = callee.rtp(to_callee)
    assert caller.heard() == [(back, to_caller)]
    for _ in range(20):
        attacker.rtp(to_callee)
        attacker.rtp(to_caller)
    assert attacker.is_left_alone() and callee.is_left_alone() and caller.is_left_alone()
    assert learned(relay, 0) == f"127.0.0.11:{caller.port}"
    assert int(relay.ask("G npkts_discard")) >= 40


def test_a_spray_before_a_party_behind_a_nat_only_delays_it(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    attacker = phone("127.0.0.66", ssrc=0x66666666)
    to_callee, to_caller = relay.call(NATTED, callee.place)
    for _ in range(3):
        attacker.rtp(to_caller)
    for n in range(30):
        caller.rtp(to_caller)
        if n % 12 == 0:
            attacker.rtp(to_caller)
        time.sleep(0.02)
    heard = callee.heard(30, 0.3)
    assert len(heard) >= 10 and all(data[8:12] == b"\x11\x11\x11\x11" for data, _ in heard)
    callee.rtp(to_callee)
    assert len(caller.heard()) == 1 and attacker.is_left_alone()


def test_a_rival_as_strong_as_the_learned_party_does_not_take_over(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    attacker = phone("127.0.0.66", ssrc=0x66666666)
    _, to_caller = relay.call(NATTED, callee.place)
    caller.talk(to_caller, 8)
    assert len(callee.heard(8)) == 8
    for _ in range(15):
        attacker.rtp(to_caller)
        caller.rtp(to_caller)
        time.sleep(0.01)
    heard = callee.heard(16, 0.5)
    assert len(heard) == 15 and all(data[8:12] == b"\x11\x11\x11\x11" for data, _ in heard)
    assert learned(relay, 0) == f"127.0.0.11:{caller.port}"


def test_a_nat_rebinding_costs_no_more_than_five_packets(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    to_callee, to_caller = relay.call(NATTED, callee.place)
    caller.talk(to_caller, 10)
    assert len(callee.heard(10)) == 10
    moved = phone("127.0.0.11")
    moved.seq = caller.seq
    moved.talk(to_caller, 10)
    assert len(callee.heard(10, 0.5)) >= 5
    packet = callee.rtp(to_callee)
    assert moved.heard() == [(packet, to_caller)]
    far = phone("127.0.0.14")
    far.seq = moved.seq + 20_000
    far.talk(to_caller, 3)
    assert callee.is_left_alone()


def test_a_re_invite_moves_a_party_that_is_not_behind_a_nat(relay, phone):
    caller, callee, elsewhere = phone("127.0.0.11"), phone("127.0.0.12"), phone("127.0.0.15", ssrc=0x55555555)
    to_callee, to_caller = relay.call(caller.place, callee.place)
    caller.rtp(to_caller)
    assert callee.heard()
    assert relay.port(f"U c1 {elsewhere.ip} {elsewhere.port} f;1 t;1") == to_callee
    packet = callee.rtp(to_callee)
    assert elsewhere.heard() == [(packet, to_caller)]
    packet = elsewhere.rtp(to_caller)
    assert callee.heard() == [(packet, to_callee)]
    caller.rtp(to_caller)
    assert callee.is_left_alone()


def test_hold_and_keep_alive_change_nothing(relay, phone):
    caller, callee, other = phone("127.0.0.11"), phone("127.0.0.12"), phone("127.0.0.66", ssrc=0x66666666)
    to_callee, to_caller = relay.call(caller.place, callee.place)
    caller.rtp(to_caller)
    assert callee.heard()
    assert relay.port("L c1 - 0 t;1 f;1") == to_callee
    assert relay.port("U c1 0.0.0.0 6000 f;1 t;1") == to_callee
    other.rtp(to_caller)
    assert callee.is_left_alone()
    packet = callee.rtp(to_callee)
    assert caller.heard() == [(packet, to_caller)]


def test_asymmetric_legs_learn_nothing(relay, phone):
    caller, listener, callee, unknown = phone("127.0.0.11"), phone("127.0.0.11"), phone("127.0.0.12"), phone("127.0.0.66")
    to_callee, to_caller = relay.call(listener.place, callee.place, "A")
    packet = caller.rtp(to_caller)  # another port of the signalled address
    assert callee.heard() == [(packet, to_callee)]
    unknown.rtp(to_caller)
    assert callee.is_left_alone()
    packet = callee.rtp(to_callee)
    assert listener.heard() == [(packet, to_caller)] and caller.is_left_alone()
    assert learned(relay, 0) == "-"


def test_a_leg_that_becomes_asymmetric_is_sent_to_where_it_said(relay, phone):
    caller, said, callee = phone("127.0.0.11"), phone("127.0.0.11"), phone("127.0.0.12")
    to_callee, to_caller = relay.call(said.place, callee.place)
    caller.rtp(to_caller)
    assert callee.heard()
    assert learned(relay, 0) == f"127.0.0.11:{caller.port}"
    relay.ask("UA c1 - 0 f;1 t;1")
    packet = callee.rtp(to_callee)
    assert said.heard() == [(packet, to_caller)] and caller.is_left_alone()
    assert learned(relay, 0) == "-"


def test_bridging_between_two_addresses(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    to_callee = relay.port(f"UIE c1 {caller.ip} {caller.port} f;1")
    to_caller = relay.port(f"LEI c1 {callee.ip} {callee.port} f;1 t;1")
    assert (to_callee[0], to_caller[0]) == ("127.0.0.2", "127.0.0.1")
    packet = caller.rtp(to_caller)
    assert callee.heard() == [(packet, to_callee)]
    packet = callee.rtp(to_callee)
    assert caller.heard() == [(packet, to_caller)]


@pytest.mark.parametrize("caller_ip, callee_ip, letters", [("::1", "::1", ("", "")), ("127.0.0.11", "::1", ("IE", "EI")), ("::1", "127.0.0.11", ("EI", "IE"))])
def test_ipv6_and_between_the_versions(phone, caller_ip, callee_ip, letters):
    with Relay(addresses=["127.0.0.1", "::1"]) as relay:
        caller, callee = phone(caller_ip), phone(callee_ip)
        six = ["6" if ":" in ip else "" for ip in (caller_ip, callee_ip)]
        to_callee = relay.port(f"U{letters[0]}{six[0]} c1 {caller_ip} {caller.port} f;1")
        to_caller = relay.port(f"L{letters[1]}{six[1]} c1 {callee_ip} {callee.port} f;1 t;1")
        assert (":" in to_callee[0]) == (":" in callee_ip) and (":" in to_caller[0]) == (":" in caller_ip)
        for _ in range(3):
            packet = caller.rtp(to_caller)
            assert callee.heard() == [(packet, to_callee)]
            packet = callee.rtp(to_callee)
            assert caller.heard() == [(packet, to_caller)]


def test_nobody_at_the_destination_does_no_harm(relay, phone):
    caller = phone("127.0.0.11")
    _, to_caller = relay.call(caller.place, ("127.0.0.12", 9))
    caller.talk(to_caller, 5)
    time.sleep(0.1)
    assert relay.ask("Q c1 f;1 t;1").split()[1] == "5"
    assert relay.udp.ask("V") == "20040107"


def test_an_address_that_cannot_be_sent_to_is_counted(relay, phone):
    caller = phone("127.0.0.11")
    _, to_caller = relay.call(caller.place, ("255.255.255.255", 6000))
    caller.rtp(to_caller)
    time.sleep(0.1)
    assert relay.ask("Q c1 f;1 t;1") == "60 1 0 0 1"


def test_a_new_port_on_modifier_n_keeps_counts_and_mark(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    caller.sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    to_callee, to_caller = relay.call(caller.place, callee.place)
    assert relay.ask("Q c1 f;1 t;1 && S tos=184") == "60 0 0 0 0"
    caller.rtp(to_caller)
    assert callee.heard()
    moved = relay.port(f"Ln c1 {callee.ip} {callee.port} f;1 t;1")
    assert moved != to_caller
    packet = caller.rtp(moved)
    assert callee.heard() == [(packet, to_callee)]
    packet = callee.rtp(to_callee)
    assert caller.heard() == [(packet, moved)]
    assert relay.ask("Q c1 f;1 t;1") == "60 2 1 3 0"
    callee.rtp(to_callee)
    time.sleep(0.1)
    _, ancillary, _, _ = caller.sock.recvmsg(2000, 100)
    assert ancillary and ancillary[0][2][:1] == bytes([184])


def test_the_phone_of_the_last_call_is_not_the_next_calls_party(phone):
    with Relay(ports="41000-41003", addresses=["127.0.0.1"], quarantine=0.2) as relay:
        old, other = phone("127.0.0.11", ssrc=0x33333333), phone("127.0.0.12")
        _, to_caller = relay.call(NATTED, other.place)
        old.talk(to_caller, 10)
        assert len(other.heard(10)) == 10
        assert relay.ask("D c1 f t") == "0"
        time.sleep(0.4)
        caller, callee = phone("127.0.0.21"), phone("127.0.0.22", ssrc=0x44444444)
        to_callee, to_caller_2 = relay.call(("192.0.2.10", 6000), callee.place, name="c2")
        for _ in range(25):
            old.rtp(to_caller)
            caller.rtp(to_caller_2)
            time.sleep(0.02)
        ssrcs = {data[8:12] for data, _ in callee.heard(25, 0.5)}
        if to_caller == to_caller_2:
            assert ssrcs == {b"\x11\x11\x11\x11"}
        assert learned(relay, 0, "c2") == f"127.0.0.21:{caller.port}"


def test_two_parties_at_one_address_and_a_neighbour_who_scans(relay, phone):
    """The address is shared: continuity decides, and who only touches each port holds nothing."""
    victim, callee = phone("127.0.0.11"), phone("127.0.0.12", ssrc=0x22222222)
    second, third = phone("127.0.0.11", ssrc=0x77777777), phone("127.0.0.13")
    _, to_victim = relay.call(("127.0.0.11", 6000), callee.place)
    _, to_second = relay.call(("127.0.0.11", 6002), third.place, name="c2")
    attacker = phone("127.0.0.11", ssrc=0x66666666)
    for _ in range(2):
        for port in range(41000, 41400, 2):
            attacker.rtp(("127.0.0.1", port))
        attacker.rtp(to_victim)
        time.sleep(0.3)
    heard = []
    for _ in range(50):
        victim.rtp(to_victim)
        second.rtp(to_second)
        time.sleep(0.01)
    heard = callee.heard(60, 0.5)
    assert len([data for data, _ in heard if data[8:12] == b"\x11\x11\x11\x11"]) >= 40
    assert learned(relay, 0) == f"127.0.0.11:{victim.port}" and learned(relay, 0, "c2") == f"127.0.0.11:{second.port}"


def test_a_neighbour_who_sends_before_the_caller_speaks_does_not_mute_it(relay, phone):
    """Both are at one address that two calls name: the stream is contested, and the caller is relayed."""
    caller, neighbour = phone("127.0.0.11"), phone("127.0.0.11", ssrc=0x66666666)
    callee, third = phone("127.0.0.12", ssrc=0x22222222), phone("127.0.0.13")
    _, to_caller = relay.call(("127.0.0.11", 6000), callee.place)
    relay.call(("127.0.0.11", 6002), third.place, name="c2")
    neighbour.talk(to_caller, 20)
    callee.heard(20, 0.1)
    for _ in range(100):
        neighbour.rtp(to_caller)
        caller.rtp(to_caller)
        time.sleep(0.01)
    ssrcs = [data[8:12] for data, _ in callee.heard(200, 0.5)]
    assert ssrcs.count(b"\x11\x11\x11\x11") >= 80


def test_what_is_sent_to_a_party_that_is_being_learned_waits_for_it(relay, phone):
    """Behind a NAT whose address two calls name: nobody is at the signalled port, and the first packets reach the party all the same, each once."""
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12", ssrc=0x22222222)
    to_callee, to_caller = relay.call(("127.0.0.11", 6000), callee.place)
    relay.call(("127.0.0.11", 6002), ("127.0.0.13", 7000), name="c2")
    caller.rtp(to_caller)
    assert len(callee.heard(1)) == 1
    sent = callee.talk(to_callee, 2)
    assert learned(relay, 0) == "-" and caller.is_left_alone()
    caller.talk(to_caller, 8)
    sent.append(callee.rtp(to_callee))
    assert caller.heard(4, 0.5) == [(packet, to_caller) for packet in sent]
    callee_rtcp = phone("127.0.0.12", callee.port + 1, ssrc=0x22222222)
    caller.rtcp(plus(to_caller))
    assert len(callee_rtcp.heard(1)) == 1
    report = callee_rtcp.rtcp(plus(to_callee))
    assert caller.heard(2, 0.5) == [(report, plus(to_caller))], "the SSRC of its RTP says that it is the party's"


def test_a_neighbour_who_sends_one_packet_gets_nothing_and_costs_a_silent_party_nothing(relay, phone):
    """The party listens at the signalled port and says nothing: it gets every packet, those that waited half a second late."""
    caller, neighbour = phone("127.0.0.11"), phone("127.0.0.11", ssrc=0x66666666)
    callee = phone("127.0.0.12", ssrc=0x22222222)
    to_callee, to_caller = relay.call(caller.place, callee.place)
    relay.call(("127.0.0.11", 6002), ("127.0.0.13", 7000), name="c2")
    neighbour.rtp(to_caller)
    callee.heard(1)
    sent = callee.talk(to_callee, 3)
    time.sleep(0.6)
    sent.append(callee.rtp(to_callee))
    assert caller.heard(5, 0.5) == [(packet, to_caller) for packet in sent]
    assert neighbour.is_left_alone()
