"""Media through the built-in relay over real sockets on loopback: forwarding, learning, attacks, IPv6, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time

import pytest

from shunt import limits
from shunt.relay.relay import BuiltinRelay

FIRST, LAST = 42000, 42999


class Phone:
    """One UDP socket that sends RTP or RTCP and keeps what arrives, with where it came from."""

    def __init__(self, ip: str, port: int = 0, ssrc: int = 0x11111111) -> None:
        self.sock = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((ip, port))
        self.sock.setblocking(False)
        self.ip, self.port = self.sock.getsockname()[:2]
        self.ssrc, self.seq = ssrc, 1000

    def rtp(self, to: tuple[str, int], text: bytes = b"x" * 160) -> bytes:
        packet = struct.pack("!BBHII", 0x80, 0, self.seq & 0xFFFF, self.seq * 160, self.ssrc) + text
        self.seq += 1
        self.sock.sendto(packet, to)
        return packet

    def rtcp(self, to: tuple[str, int]) -> bytes:
        packet = struct.pack("!BBHI", 0x80, 200, 6, self.ssrc) + bytes(20)
        self.sock.sendto(packet, to)
        return packet

    async def heard(self, count: int = 1, timeout: float = 5.0) -> list[tuple[bytes, tuple]]:
        """What has arrived: `count` packets, or fewer when the time is up."""
        got, end = [], time.monotonic() + timeout
        while len(got) < count and time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                data, sender = self.sock.recvfrom(2048)
                got.append((data, sender[:2]))
                continue
            await asyncio.sleep(0.002)
        return got

    async def silence(self, seconds: float = 0.05) -> bool:
        return await self.heard(1, seconds) == []


@pytest.fixture
async def relay():
    relay = BuiltinRelay(["127.0.0.1", "127.0.0.2"], FIRST, LAST)
    await relay.start()
    yield relay
    await relay.close()


@pytest.fixture
def phone():
    phones = []

    def make(ip: str, port: int = 0, ssrc: int = 0x11111111) -> Phone:
        phones.append(Phone(ip, port, ssrc))
        return phones[-1]

    yield make
    for p in phones:
        p.sock.close()


async def say(relay: BuiltinRelay, text: str) -> bytes:
    return await relay.execute(text.encode(), None, "127.0.0.1")


async def port_of(relay: BuiltinRelay, text: str) -> tuple[str, int]:
    words = (await say(relay, text)).split()
    assert words[0].isdigit() and words[0] != b"0", words
    return words[1].decode(), int(words[0])


async def call(relay, caller: tuple[str, int], callee: tuple[str, int], mods: str = "", name: str = "c1"):
    """(to_callee, to_caller): where the callee sends to (reply to U), and where the caller does (reply to L)."""
    six = "6" if ":" in caller[0] else ""
    p_u = await port_of(relay, f"U{six}{mods} {name} {caller[0]} {caller[1]} f;1")
    six = "6" if ":" in callee[0] else ""
    p_l = await port_of(relay, f"L{six}{mods} {name} {callee[0]} {callee[1]} f;1 t;1")
    return p_u, p_l


def plus(address: tuple[str, int]) -> tuple[str, int]:
    return address[0], address[1] + 1


def info(relay, name: str = "c1"):
    return next(s for s in relay.sessions() if s.call_id == name)


async def test_both_ways_and_counts(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12", ssrc=0x22222222)
    p_u, p_l = await call(relay, (caller.ip, caller.port), (callee.ip, callee.port))
    sent = [caller.rtp(p_l) for _ in range(10)]
    assert await callee.heard(10) == [(packet, p_u) for packet in sent]
    back = [callee.rtp(p_u) for _ in range(7)]
    assert await caller.heard(7) == [(packet, p_l) for packet in back]
    assert await say(relay, "Q c1 f;1 t;1") == b"60 10 7 17 0"
    assert await say(relay, "Q c1 t;1 f;1") == b"60 7 10 17 0"
    assert await say(relay, "G npkts_rcvd npkts_relayed npkts_discard") == b"17 17 0"
    assert await say(relay, "D c1 f t") == b"0"
    assert await say(relay, "G npkts_relayed nsess_nortp nsess_nortcp") == b"17 0 1"


async def test_what_is_logged_of_a_call_names_it(relay, phone, caplog):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12", ssrc=0x22222222)
    _, p_l = await call(relay, (caller.ip, caller.port), (callee.ip, callee.port))
    with caplog.at_level("INFO"):
        caller.rtp(p_l)
        await callee.heard()
    assert [record.call_id for record in caplog.records if "learned" in record.getMessage()] == ["c1"]


async def test_a_stream_above_its_packet_limit_is_cut_down_and_others_are_not(phone):
    """400 packets/s: 100 in a quarter of a second. The flood's victim gets no more; the other direction, other calls and strangers cost nothing of it."""
    relay = BuiltinRelay(["127.0.0.1"], FIRST, LAST, packet_limit=400)
    await relay.start()
    try:
        over = limits.snapshot()["packets_over_limit"]
        caller, callee, stranger = phone("127.0.0.11"), phone("127.0.0.12", ssrc=0x22222222), phone("127.0.0.13")
        p_u, p_l = await call(relay, (caller.ip, caller.port), (callee.ip, callee.port))
        caller.rtp(p_l)
        callee.rtp(p_u)
        assert len(await callee.heard(1)) == len(await caller.heard(1)) == 1
        await asyncio.sleep(0.3)
        for n in range(300):
            caller.rtp(p_l)
            stranger.rtp(p_u)
            if n % 30 == 0:
                callee.rtp(p_u)
                await asyncio.sleep(0)
        assert len(await caller.heard(10, 2.0)) == 10, "neither the flood nor the stranger takes anything from the callee's stream"
        got = len(await callee.heard(300, 0.2))
        assert 90 <= got <= 200, "a window's worth, or two where the machine was slow"
        assert limits.snapshot()["packets_over_limit"] - over == info(relay).packets["dropped"] == 300 - got
        await asyncio.sleep(0.3)
        caller.rtp(p_l)
        assert len(await callee.heard(1)) == 1, "the next window"
    finally:
        await relay.close()


async def test_sizes_from_nothing_to_the_largest(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    p_u, p_l = await call(relay, (caller.ip, caller.port), (callee.ip, callee.port))
    for size in (0, 1, 172, 2048, 2049):
        caller.sock.sendto(b"z" * size, p_l)
        callee.sock.setblocking(False)
        [(data, _)] = await callee.heard(1) or [(None, None)]
        assert data == (b"z" * size)[:2048], size


async def test_rtcp_goes_its_own_way(relay, phone):
    caller, callee = phone("127.0.0.11", 5061), phone("127.0.0.12", 5071)
    p_u, p_l = await call(relay, (caller.ip, 5060), (callee.ip, 5070))
    packet = caller.rtcp(plus(p_l))
    assert await callee.heard() == [(packet, plus(p_u))]
    packet = callee.rtcp(plus(p_u))
    assert await caller.heard() == [(packet, plus(p_l))]
    assert await say(relay, "Q c1 f;1 t;1") == b"60 0 0 0 0"
    assert info(relay).packets["rtcp_relayed"] == 2


async def test_rtcp_follows_a_natted_party(relay, phone):
    """Behind a NAT the RTCP port is not RTP + 1: until RTCP is heard it is guessed, then taken from the same address."""
    caller, caller_rtcp, callee = phone("127.0.0.11", 5062), phone("127.0.0.11", 5099), phone("127.0.0.12", 5081)
    p_u, p_l = await call(relay, ("192.0.2.9", 6000), (callee.ip, 5080))
    for _ in range(8):
        caller.rtp(p_l)
        await asyncio.sleep(0.02)
    assert info(relay).to_caller.learned == "127.0.0.11:5062"
    guessed = phone("127.0.0.11", 5063)
    packet = callee.rtcp(plus(p_u))
    assert await guessed.heard() == [(packet, plus(p_l))]
    caller_rtcp.rtcp(plus(p_l))
    assert len(await callee.heard()) == 1
    packet = callee.rtcp(plus(p_u))
    assert await caller_rtcp.heard() == [(packet, plus(p_l))]


async def test_nat_port_is_learned_at_once_from_the_signalled_address(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    p_u, p_l = await call(relay, (caller.ip, 6000), (callee.ip, callee.port))
    packet = caller.rtp(p_l)
    assert await callee.heard() == [(packet, p_u)]
    packet = callee.rtp(p_u)
    assert await caller.heard() == [(packet, p_l)]


async def test_unknown_address_is_learned_behind_its_guard_and_loses_nothing(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    p_u, p_l = await call(relay, ("192.0.2.9", 6000), (callee.ip, callee.port))
    sent = [caller.rtp(p_l)]
    assert await callee.silence()
    for _ in range(9):
        await asyncio.sleep(0.02)
        sent.append(caller.rtp(p_l))
    assert [data for data, _ in await callee.heard(10)] == sent
    packet = callee.rtp(p_u)
    assert await caller.heard() == [(packet, p_l)]
    assert await say(relay, "Q c1 f;1 t;1") == b"60 10 1 11 0"


async def test_before_learning_media_goes_to_the_signalled_address(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    p_u, p_l = await call(relay, (caller.ip, caller.port), (callee.ip, callee.port))
    packet = callee.rtp(p_u)
    assert await caller.heard() == [(packet, p_l)]


async def test_early_media_before_the_answer_is_dropped_and_counted(relay, phone):
    callee = phone("127.0.0.12")
    p_u = await port_of(relay, "U c1 127.0.0.11 6000 f;1")
    for _ in range(8):
        callee.rtp(p_u)
        await asyncio.sleep(0.02)
    reply = (await say(relay, "Q c1 f;1")).split()
    assert reply[2] == reply[4] and int(reply[4]) > 0 and reply[3] == b"0"


async def test_spray_neither_gets_nor_stops_a_call_with_known_addresses(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    attacker = phone("127.0.0.66", ssrc=0x66666666)
    p_u, p_l = await call(relay, (caller.ip, caller.port), (callee.ip, callee.port))
    for _ in range(5):
        for port in (p_u, p_l, plus(p_u), plus(p_l)):
            attacker.rtp(port)
    sent = [caller.rtp(p_l) for _ in range(5)]
    assert [data for data, _ in await callee.heard(5)] == sent
    back = callee.rtp(p_u)
    assert await caller.heard() == [(back, p_l)]
    for _ in range(20):
        attacker.rtp(p_u)
        attacker.rtp(p_l)
    assert await attacker.silence()
    assert await callee.silence() and await caller.silence()
    assert info(relay).to_caller.learned == f"127.0.0.11:{caller.port}"
    assert info(relay).packets["ignored"] >= 40


async def test_spray_before_a_natted_party_only_delays_it(relay, phone):
    """An attacker who sprays the port while the caller is still unknown gets nothing; the caller, who sends like a call
    does, is learned all the same."""
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    attacker = phone("127.0.0.66", ssrc=0x66666666)
    p_u, p_l = await call(relay, ("192.0.2.9", 6000), (callee.ip, callee.port))
    attacker.rtp(p_l)
    attacker.rtp(p_l)
    attacker.rtp(p_l)
    for n in range(30):
        caller.rtp(p_l)
        if n % 12 == 0:
            attacker.rtp(p_l)
        await asyncio.sleep(0.02)
    heard = await callee.heard(30, 0.3)
    assert len(heard) >= 10 and all(data[8:12] == b"\x11\x11\x11\x11" for data, _ in heard)
    callee.rtp(p_u)
    assert len(await caller.heard()) == 1
    assert await attacker.silence()


async def test_rival_as_strong_as_the_learned_party_does_not_take_over(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    attacker = phone("127.0.0.66", ssrc=0x66666666)
    p_u, p_l = await call(relay, ("192.0.2.9", 6000), (callee.ip, callee.port))
    for _ in range(8):
        caller.rtp(p_l)
        await asyncio.sleep(0.02)
    await callee.heard(8)
    for _ in range(15):
        attacker.rtp(p_l)
        caller.rtp(p_l)
        await asyncio.sleep(0.01)
    heard = await callee.heard(15)
    assert len(heard) == 15 and all(data[8:12] == b"\x11\x11\x11\x11" for data, _ in heard)
    assert info(relay).to_caller.learned == f"127.0.0.11:{caller.port}"


async def test_nat_rebinding_with_the_same_ssrc_is_followed_at_once(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    p_u, p_l = await call(relay, (caller.ip, caller.port), (callee.ip, callee.port))
    for _ in range(3):
        caller.rtp(p_l)
    await callee.heard(3)
    moved = phone("127.0.0.13")
    moved.seq = caller.seq
    packet = moved.rtp(p_l)
    assert await callee.heard() == [(packet, p_u)]
    packet = callee.rtp(p_u)
    assert await moved.heard() == [(packet, p_l)]
    far = phone("127.0.0.14")
    far.seq = moved.seq + 20_000
    far.rtp(p_l)
    assert await callee.silence()


async def test_re_invite_moves_a_party_that_is_not_behind_nat(relay, phone):
    caller, callee, elsewhere = phone("127.0.0.11"), phone("127.0.0.12"), phone("127.0.0.15", ssrc=0x55555555)
    p_u, p_l = await call(relay, (caller.ip, caller.port), (callee.ip, callee.port))
    caller.rtp(p_l)
    await callee.heard()
    assert await port_of(relay, f"U c1 {elsewhere.ip} {elsewhere.port} f;1 t;1") == p_u
    packet = callee.rtp(p_u)
    assert await elsewhere.heard() == [(packet, p_l)]
    caller.rtp(p_l)
    assert len(await callee.heard()) == 1, "the old place is heard until the new one speaks"
    packet = elsewhere.rtp(p_l)
    assert await callee.heard() == [(packet, p_u)]
    caller.rtp(p_l)
    assert await callee.silence()


async def test_keepalive_lookup_changes_nothing(relay, phone):
    caller, callee, other = phone("127.0.0.11"), phone("127.0.0.12"), phone("127.0.0.66", ssrc=0x66666666)
    p_u, p_l = await call(relay, (caller.ip, caller.port), (callee.ip, callee.port))
    caller.rtp(p_l)
    await callee.heard()
    assert await port_of(relay, "L c1 - 0 t;1 f;1") == p_u
    other.rtp(p_l)
    assert await callee.silence()
    packet = callee.rtp(p_u)
    assert await caller.heard() == [(packet, p_l)]


async def test_asymmetric_legs_learn_nothing(relay, phone):
    caller, listener, callee = phone("127.0.0.11"), phone("127.0.0.11"), phone("127.0.0.12")
    p_u, p_l = await call(relay, (listener.ip, listener.port), (callee.ip, callee.port), "A")
    packet = caller.rtp(p_l)  # another port of the signalled address
    assert await callee.heard() == [(packet, p_u)]
    phone("127.0.0.66").rtp(p_l)
    assert await callee.silence()
    packet = callee.rtp(p_u)
    assert await listener.heard() == [(packet, p_l)]
    assert await caller.silence()
    assert info(relay).to_caller.asymmetric and info(relay).to_caller.learned is None


async def test_a_leg_that_becomes_asymmetric_is_sent_to_where_it_said(relay, phone):
    caller, said, callee = phone("127.0.0.11"), phone("127.0.0.11"), phone("127.0.0.12")
    p_u, p_l = await call(relay, (said.ip, said.port), (callee.ip, callee.port))
    caller.rtp(p_l)
    await callee.heard()
    await say(relay, "UA c1 - 0 f;1 t;1")
    packet = callee.rtp(p_u)
    assert await said.heard() == [(packet, p_l)]
    assert await caller.silence()


async def test_bridging_between_two_addresses(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    p_u = await port_of(relay, f"UIE c1 {caller.ip} {caller.port} f;1")
    p_l = await port_of(relay, f"LEI c1 {callee.ip} {callee.port} f;1 t;1")
    assert (p_u[0], p_l[0]) == ("127.0.0.2", "127.0.0.1")
    packet = caller.rtp(p_l)
    assert await callee.heard() == [(packet, p_u)]
    packet = callee.rtp(p_u)
    assert await caller.heard() == [(packet, p_l)]


@pytest.mark.parametrize("caller_ip, callee_ip, mods", [("::1", "::1", ("", "")), ("127.0.0.11", "::1", ("IE", "EI")), ("::1", "127.0.0.11", ("EI", "IE"))])
async def test_ipv6_and_between_the_versions(phone, caller_ip, callee_ip, mods):
    relay = BuiltinRelay(["127.0.0.1", "::1"], FIRST, LAST)
    await relay.start()
    try:
        caller, callee = phone(caller_ip), phone(callee_ip)
        six = ["6" if ":" in ip else "" for ip in (caller_ip, callee_ip)]
        p_u = await port_of(relay, f"U{mods[0]}{six[0]} c1 {caller_ip} {caller.port} f;1")
        p_l = await port_of(relay, f"L{mods[1]}{six[1]} c1 {callee_ip} {callee.port} f;1 t;1")
        assert (":" in p_u[0]) == (":" in callee_ip) and (":" in p_l[0]) == (":" in caller_ip)
        for _ in range(3):
            packet = caller.rtp(p_l)
            assert await callee.heard() == [(packet, p_u)]
            packet = callee.rtp(p_u)
            assert await caller.heard() == [(packet, p_l)]
    finally:
        await relay.close()


async def test_nobody_at_the_destination_does_no_harm(relay, phone):
    caller = phone("127.0.0.11")
    p_u, p_l = await call(relay, (caller.ip, caller.port), ("127.0.0.12", 9))
    for _ in range(5):
        caller.rtp(p_l)
        await asyncio.sleep(0.01)
    assert await say(relay, "Q c1 f;1 t;1") == b"60 5 0 5 0"


async def test_an_address_that_cannot_be_sent_to_is_counted(relay, phone):
    caller = phone("127.0.0.11")
    _, p_l = await call(relay, (caller.ip, caller.port), ("255.255.255.255", 6000))
    caller.rtp(p_l)
    await asyncio.sleep(0.05)
    assert await say(relay, "Q c1 f;1 t;1") == b"60 1 0 0 1"
    assert info(relay).packets["send_errors"] == 1


async def test_new_port_on_modifier_n(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    p_u, p_l = await call(relay, (caller.ip, caller.port), (callee.ip, callee.port))
    caller.rtp(p_l)
    await callee.heard()
    moved = await port_of(relay, f"Ln c1 {callee.ip} {callee.port} f;1 t;1")
    assert moved != p_l
    packet = caller.rtp(moved)
    assert await callee.heard() == [(packet, p_u)]
    packet = callee.rtp(p_u)
    assert await caller.heard() == [(packet, moved)]
    assert (await say(relay, "Q c1 f;1 t;1")).split()[1] == b"2"


async def test_offer_and_answer_in_one_command(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    reply = await say(relay, f"U c1 {caller.ip} {caller.port} f;1 t;1 && L {callee.ip} {callee.port}")
    first, second = (part.split() for part in reply.split(b" && "))
    p_u, p_l = (first[1].decode(), int(first[0])), (second[1].decode(), int(second[0]))
    packet = caller.rtp(p_l)
    assert await callee.heard() == [(packet, p_u)]
    packet = callee.rtp(p_u)
    assert await caller.heard() == [(packet, p_l)]


async def test_type_of_service(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    callee.sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    p_u, p_l = await call(relay, (caller.ip, caller.port), (callee.ip, callee.port))
    assert await say(relay, "Q c1 t;1 f;1 && S tos=184") == b"60 0 0 0 0"
    caller.rtp(p_l)
    await asyncio.sleep(0.05)
    _, ancillary, _, _ = callee.sock.recvmsg(2048, 64)
    assert (socket.IPPROTO_IP, socket.IP_TOS, b"\xb8") in [(a, b, c[:1]) for a, b, c in ancillary]


async def test_many_streams_lose_nothing(relay, phone):
    calls = []
    for n in range(20):
        caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
        p_u, p_l = await call(relay, (caller.ip, caller.port), (callee.ip, callee.port), name=f"many{n}")
        calls.append((caller, callee, p_u, p_l))
    for _ in range(50):
        for caller, callee, p_u, p_l in calls:
            caller.rtp(p_l)
            callee.rtp(p_u)
        await asyncio.sleep(0.005)
    for caller, callee, _, _ in calls:
        assert len(await caller.heard(50)) == 50 and len(await callee.heard(50)) == 50


# -- restart ----------------------------------------------------------------------------------------------


async def test_snapshot_is_carried_on_under_the_same_ports(phone):
    first = BuiltinRelay(["127.0.0.1"], FIRST, LAST)
    await first.start()
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    p_u, p_l = await call(first, ("192.0.2.9", 6000), (callee.ip, callee.port))
    await say(first, "U c2 192.0.2.7 6000 g;1 tcp:127.0.0.1:9 T1")
    for _ in range(8):
        caller.rtp(p_l)
        await asyncio.sleep(0.02)
    await callee.heard(8)
    await say(first, "U gone 192.0.2.7 6000 g;1")
    await say(first, "D gone g")
    saved = json.loads(json.dumps(first.snapshot()))
    await first.close()

    second = BuiltinRelay(["127.0.0.1"], FIRST, LAST)
    assert second.adopt(saved) == []
    await second.start()
    try:
        assert second.session_count == 2
        packet = callee.rtp(p_u)
        assert await caller.heard() == [(packet, p_l)], "the learned address was kept"
        packet = caller.rtp(p_l)
        assert await callee.heard() == [(packet, p_u)]
        assert await port_of(second, f"U c1 192.0.2.9 6000 f;1 t;1") == p_u
        assert (await say(second, "Q c1 f;1 t;1")).split()[1:4] == [b"9", b"1", b"10"]
        assert second._ports.resting(), "ports at rest stay at rest"
        assert await say(second, "D c1 f t") == b"0"
    finally:
        await second.close()


async def test_snapshot_with_ports_taken_or_nonsense_is_refused_one_by_one():
    first = BuiltinRelay(["127.0.0.1"], FIRST, LAST)
    await first.start()
    p_u, p_l = await call(first, ("192.0.2.9", 6000), ("192.0.2.8", 6000))
    await call(first, ("192.0.2.9", 6000), ("192.0.2.8", 6000), name="c2")
    saved = first.snapshot()
    await first.close()
    squatter = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    squatter.bind(plus(p_l))
    second = BuiltinRelay(["127.0.0.1"], FIRST, LAST)
    try:
        problems = second.adopt([*saved, {"call_id": "x"}, {"quarantine": ["y"]}, {}])
        assert len(problems) == 4 and "c1" in problems[0] and str(p_l[1]) in problems[0]
        assert second.session_count == 1
        assert second.take_changes() == {"c1 f;1": None}
        squatter.close()
        assert second.adopt(saved[:1]) == [], "nothing of the refused one was left open"
        assert len(second.adopt(saved)) == 2, "sessions that are there already"
    finally:
        squatter.close()
        await second.close()


async def test_ports_of_a_process_that_is_just_ending_are_waited_for():
    first, second = BuiltinRelay(["127.0.0.1"], FIRST, LAST), BuiltinRelay(["127.0.0.1"], FIRST, LAST)
    await first.start()
    try:
        p_u, p_l = await call(first, ("192.0.2.9", 6000), ("192.0.2.8", 6000))
        asyncio.get_running_loop().call_later(0.1, first._forwarder.close)
        assert await second.take_over(first.snapshot(), patience=5.0) == []
        assert await port_of(second, "U c1 192.0.2.9 6000 f;1 t;1") == p_u
        assert len(await second.take_over([{"call_id": "x"}])) == 1, "nonsense is not waited for"
    finally:
        await second.close()


async def test_changes_are_told_once(relay, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    p_u, p_l = await call(relay, (caller.ip, caller.port), (callee.ip, callee.port))
    assert set(relay.take_changes()) == {"c1 f;1"} and relay.take_changes() == {}
    await say(relay, "Q c1 f;1 t;1")
    caller.rtp(p_l)
    await callee.heard()
    changes = relay.take_changes()
    assert changes["c1 f;1"]["legs"][1]["learned"][0] == [f"127.0.0.11:{caller.port}", 0x11111111]
    assert relay.take_changes() == {}
    await say(relay, "Q c1 f;1 t;1 && S ttl=777")
    assert relay.take_changes()["c1 f;1"]["ttl"] == 777
    await say(relay, "Uw c1 - 0 f;1")
    await say(relay, "D c1 f")
    assert relay.take_changes()["c1 f;1"]["strong"] is False
    await say(relay, "Dw c1 t f")
    assert relay.take_changes() == {"c1 f;1": None}


# -- time-outs --------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def aging():
    clock = Clock()
    ended = []
    relay = BuiltinRelay(["127.0.0.1"], FIRST, LAST, ttl=6, setup_ttl=20, clock=clock, on_timeout=lambda *a: ended.append(a))
    await relay.start()
    relay.test_clock, relay.ended = clock, ended
    yield relay
    await relay.close()


@pytest.mark.parametrize("kind", ["rtp", "rtcp", "one byte"])
async def test_media_of_one_side_keeps_a_session(aging, phone, kind):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    _, p_l = await call(aging, (caller.ip, caller.port), (callee.ip, callee.port))
    for _ in range(4):
        aging.test_clock.now += 5
        if kind == "rtp":
            caller.rtp(p_l)
        elif kind == "rtcp":
            caller.rtcp(plus(p_l))
        else:
            caller.sock.sendto(b"\0", p_l)
        await asyncio.sleep(0.03)
        aging.sweep()
    assert (await say(aging, "Q c1 f;1 t;1")).split()[0] == b"6"
    aging.test_clock.now += 6.1
    aging.sweep()
    assert await say(aging, "Q c1 f;1 t;1") == b"E50" and aging.ended == [("c1", "f;1")]
    assert await say(aging, "G nsess_timeout nsess_destroyed") == b"1 1"


async def test_strangers_and_queries_keep_nothing(aging, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    _, p_l = await call(aging, (caller.ip, caller.port), (callee.ip, callee.port))
    caller.rtp(p_l)
    await callee.heard()
    aging.test_clock.now += 4
    phone("127.0.0.66", ssrc=6).rtp(p_l)
    await say(aging, "Q c1 f;1 t;1")
    await asyncio.sleep(0.03)
    aging.test_clock.now += 2.1
    aging.sweep()
    assert aging.session_count == 0


async def test_ttl_of_a_session_can_be_set(aging):
    await call(aging, ("192.0.2.9", 6000), ("192.0.2.8", 6000))
    assert await say(aging, "Q c1 f;1 t;1 && S ttl=2000000000") == b"6 0 0 0 0"
    aging.test_clock.now += 5000
    aging.sweep()
    assert (await say(aging, "Q c1 f;1 t;1")).split()[0] == b"1999995000"
    assert (await say(aging, "L c1 - 0 f;1 t;1 && T25")).split()[1] == b"127.0.0.1"
    assert (await say(aging, "Q c1 f;1 t;1")).split()[0] == b"25"
    assert await say(aging, "Q c1 f;1 t;1 && T9") == b"E3"
    assert (await say(aging, "Lt30 c1 - 0 f;1 t;1")).split()[1] == b"127.0.0.1"
    assert (await say(aging, "Q c1 f;1 t;1")).split()[0] == b"30"
    aging.test_clock.now += 30.5
    aging.sweep()
    assert aging.session_count == 0


async def test_keepalives_pile_nothing_up_and_shorter_times_hold(aging):
    await call(aging, ("192.0.2.9", 6000), ("192.0.2.8", 6000))
    for _ in range(500):
        aging.test_clock.now += 2
        await say(aging, "L c1 - 0 f;1 t;1")
        aging.sweep()
    assert aging.session_count == 1 and len(aging._due) <= 3
    await say(aging, "Q c1 f;1 t;1 && S ttl=3600")
    aging.test_clock.now += 100
    aging.sweep()
    await say(aging, "Q c1 f;1 t;1 && S ttl=2")
    aging.test_clock.now += 2.1
    aging.sweep()
    assert aging.session_count == 0


async def test_time_outs_run_by_themselves():
    relay = BuiltinRelay(["127.0.0.1"], FIRST, LAST, ttl=0.2)
    await relay.start()
    try:
        await say(relay, "U c1 192.0.2.9 6000 f;1")
        async with asyncio.timeout(3):
            while relay.session_count:
                await asyncio.sleep(0.05)
    finally:
        await relay.close()


async def test_unanswered_offer_lives_for_its_own_time(aging):
    await say(aging, "U c1 192.0.2.9 6000 f;1")
    aging.test_clock.now += 19
    aging.sweep()
    assert aging.session_count == 1
    aging.test_clock.now += 1.1
    aging.sweep()
    assert aging.session_count == 0


# -- following a party that moves, by the relay's own clock ---------------------------------------------------


async def test_a_rebinding_late_in_a_call_is_judged_by_the_latest_packets(aging, phone):
    caller, callee = phone("127.0.0.11"), phone("127.0.0.12")
    _, p_l = await call(aging, (caller.ip, caller.port), (callee.ip, callee.port))
    for _ in range(6):
        caller.rtp(p_l)
        await callee.heard()
        caller.seq += 400
        aging.test_clock.now += 0.3
    caller.rtp(p_l)
    await callee.heard()
    moved = phone("127.0.0.13")
    moved.seq = caller.seq
    packet = moved.rtp(p_l)
    assert [data for data, _ in await callee.heard()] == [packet]


@pytest.mark.parametrize("signalled, silent, follows", [(True, 1.0, True), (True, 0.1, False), (False, 1.0, False)])
async def test_a_stranger_follows_only_after_signalling_and_silence(aging, phone, signalled, silent, follows):
    """A phone behind NAT may come back from elsewhere with a new SSRC after a re-INVITE; nobody may without one."""
    caller, callee, stranger = phone("127.0.0.11"), phone("127.0.0.12"), phone("127.0.0.13", ssrc=0x77777777)
    p_u, p_l = await call(aging, ("192.0.2.9", 6000), (callee.ip, callee.port))
    await say(aging, "Q c1 f;1 t;1 && S ttl=60")
    for _ in range(8):
        caller.rtp(p_l)
        await asyncio.sleep(0.005)
        aging.test_clock.now += 0.02
    assert len(await callee.heard(8)) == 8
    aging.test_clock.now += 11
    if signalled:
        await say(aging, "U c1 192.0.2.9 6000 f;1 t;1")
    caller.rtp(p_l)
    assert len(await callee.heard()) == 1
    aging.test_clock.now += silent
    for _ in range(8):
        stranger.rtp(p_l)
        await asyncio.sleep(0.005)
        aging.test_clock.now += 0.02
    assert len(await callee.heard(8, 0.2)) == (8 if follows else 0)
    packet = callee.rtp(p_u)
    assert await (stranger if follows else caller).heard() == [(packet, p_l)]
