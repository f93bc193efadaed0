"""Refused sources and guarded ports in the kernel: what is not to be heard at media ports without an entry is dropped, and nothing else is."""

from __future__ import annotations

import time

import pytest

from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import MediaRange
from shunt_softswitch import layout, libbpf
from shunt_softswitch.dataplane import DataPlane
from shunt_softswitch.hearing import Refusals
from tests.dataplane.lab import RELAY_A4, RELAY_A6, Lab, ep
from tests.dataplane.test_table import FIRST, send

pytestmark = pytest.mark.netns

DROP, PASS = layout.XDP_DROP, layout.XDP_PASS
SCANNER = ep("10.1.0.9:4444")
MISSED = ep(f"{RELAY_A4}:30005")


@pytest.fixture(scope="module")
def strays() -> str:
    return "drop"


@pytest.fixture(autouse=True)
def _media(plane: DataPlane):
    plane.add_media(MediaRange(MISSED.addr, 30000, 30010))
    yield
    plane.hearing.clear()


def verdict(plane: DataPlane, src: Endpoint, dst: Endpoint = MISSED) -> int:
    return send(plane, FiveTuple(src, dst))[0]


@pytest.mark.parametrize(("refused", "other_port"), [(SCANNER, PASS), (Endpoint(SCANNER.addr, 0), DROP)], ids=["port", "address"])
def test_only_what_is_refused_is_dropped(plane: DataPlane, refused: Endpoint, other_port: int) -> None:
    assert verdict(plane, SCANNER) == PASS
    assert plane.hearing.refusals.put(refused, 60_000)
    before = plane.totals()
    assert verdict(plane, SCANNER) == DROP
    assert verdict(plane, Endpoint(SCANNER.addr, 5)) == other_port
    assert verdict(plane, ep("10.1.0.8:4444")) == PASS
    assert verdict(plane, SCANNER, ep(f"{RELAY_A4}:30011")) == PASS, "no media port"
    grown = {name: value - before[name] for name, value in plane.totals().items()}
    assert grown["refused_packets"] == (2 if other_port == DROP else 1)
    assert grown["refused_packets"] + grown["missed_packets"] == 3 and grown["passed_packets"] == 1
    assert plane.trace(FiveTuple(SCANNER, MISSED))["verdict"] == "drop"
    assert plane.trace(FiveTuple(SCANNER, MISSED))["reason"] == "refused-source"
    plane.hearing.refusals.remove(refused)
    assert verdict(plane, SCANNER) == PASS


def test_an_entry_goes_before_a_refusal(plane: DataPlane) -> None:
    plane.hearing.refusals.put(Endpoint(FIRST.key.src.addr, 0), 60_000)
    plane.insert([FIRST])
    assert send(plane, FIRST.key) == (layout.XDP_REDIRECT, (FIRST.src, FIRST.dst))


def test_the_agent_still_hears_of_it(plane: DataPlane) -> None:
    source = Endpoint(SCANNER.addr, 5_151)  # whose share of notices no other test has used
    plane.hearing.refusals.put(source, 60_000)
    assert verdict(plane, source) == DROP
    assert [notice.key for notice in plane.poll_learn()] == [FiveTuple(source, MISSED)]


def test_ipv6_and_ipv4_are_two(plane: DataPlane) -> None:
    six = ep(f"[{RELAY_A6}]:30005")
    plane.add_media(MediaRange(six.addr, 30000, 30010))
    source = ep("[2001:db8::66]:77")
    plane.hearing.refusals.put(Endpoint(source.addr, 0), 60_000)
    assert verdict(plane, source, six) == DROP
    assert verdict(plane, ep("[2001:db8::67]:77"), six) == PASS
    assert verdict(plane, Endpoint(source.addr[:4], 77)) == PASS
    assert list(plane.hearing.refusals.ends()) == [Endpoint(source.addr, 0)]


def test_a_refusal_ends_by_itself(plane: DataPlane) -> None:
    plane.hearing.refusals.put(SCANNER, 60)
    assert verdict(plane, SCANNER) == DROP and 0 <= plane.hearing.refusals.remaining(SCANNER) <= 60
    time.sleep(0.08)
    assert verdict(plane, SCANNER) == PASS
    assert plane.hearing.refusals.remaining(SCANNER) is None and list(plane.hearing.refusals.ends()) == []


def test_old_refusals_make_room_for_new_ones(plane: DataPlane) -> None:
    fd = plane.maps()["refused"]
    now = time.monotonic_ns()
    clock = Refusals(fd, clock=lambda: now)
    room = 0
    while clock.put(Endpoint(SCANNER.addr, room), 1_000):
        room += 1
        assert room < 1 << 16
    assert room >= 1_000 and clock.remaining(Endpoint(SCANNER.addr, room)) is None
    now += 2_000_000_000
    assert clock.put(Endpoint(SCANNER.addr, room), 1_000)
    assert list(clock.ends()) == [Endpoint(SCANNER.addr, room)]


def test_a_full_map_is_not_looked_through_for_each_row_that_it_refuses(plane: DataPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic_ns()
    refusals = Refusals(plane.maps()["refused"], clock=lambda: now)
    looked = []
    elements = libbpf.elements
    monkeypatch.setattr(libbpf, "elements", lambda fd: looked.append(fd) or elements(fd))
    port = 0
    while refusals.put(Endpoint(SCANNER.addr, port), 1_000 if port else 500):
        port += 1
        assert port < 1 << 16
    for _ in range(100):
        assert not refusals.put(Endpoint(SCANNER.addr, port), 1_000)
    assert len(looked) == 1, "until a row's time is over there is nothing to find"
    now += 600_000_000
    assert refusals.put(Endpoint(SCANNER.addr, port), 100) and len(looked) == 2
    assert not refusals.put(Endpoint(SCANNER.addr, port + 1), 1_000) and len(looked) == 2
    now += 100_000_000
    assert refusals.put(Endpoint(SCANNER.addr, port + 1), 1_000) and refusals.remaining(Endpoint(SCANNER.addr, port)) is None, "a row that came later may end sooner"


def test_another_process_finds_them(lab: Lab, plane: DataPlane) -> None:
    """The map is pinned with the others: what is refused stays so while the softswitch is restarted."""
    plane.hearing.refusals.put(SCANNER, 60_000)
    assert (lab.pins / "refused").exists()
    assert all((lab.pins / name).exists() for name in ("guarded", "wary", "known"))


def test_a_guarded_port_hears_some_addresses_only(plane: DataPlane) -> None:
    even, odd, next_pair = (Endpoint(MISSED.addr, port) for port in (30004, 30005, 30006))
    heard = [ep("10.1.0.7:1"), ep("10.1.0.8:1")]
    assert plane.hearing.guards.put(even, 60_000, [end.addr for end in heard])
    for port in (even, odd):
        assert [verdict(plane, end, port) for end in (*heard, SCANNER)] == [PASS, PASS, DROP]
    assert verdict(plane, SCANNER, next_pair) == PASS
    assert plane.trace(FiveTuple(SCANNER, even))["reason"] == "refused-source"
    assert plane.hearing.guards.put(even, 60_000, [])
    assert verdict(plane, heard[0], even) == DROP, "nobody is heard"
    plane.hearing.guards.remove(even)
    assert verdict(plane, SCANNER, odd) == PASS


def test_an_entry_goes_before_a_guard(plane: DataPlane) -> None:
    plane.hearing.guards.put(Endpoint(FIRST.key.dst.addr, FIRST.key.dst.port & ~1), 60_000, [])
    plane.insert([FIRST])
    assert send(plane, FIRST.key) == (layout.XDP_REDIRECT, (FIRST.src, FIRST.dst))


def test_a_guard_of_ipv6_ends_by_itself(plane: DataPlane) -> None:
    port, party, stranger = ep(f"[{RELAY_A6}]:30004"), ep("[2001:db8::66]:77"), ep("[2001:db8::67]:77")
    plane.add_media(MediaRange(port.addr, 30000, 30010))
    plane.hearing.guards.put(port, 60, [party.addr])
    assert (verdict(plane, party, port), verdict(plane, stranger, port)) == (PASS, DROP)
    assert plane.hearing.guards.heard(port) == [party.addr] and list(plane.hearing.guards.ends()) == [port]
    time.sleep(0.08)
    assert verdict(plane, stranger, port) == PASS and list(plane.hearing.guards.ends()) == []


PHONE, RELAY = ep("10.1.0.7:6000"), Endpoint(MISSED.addr, 0)


def test_a_wary_port_hears_whom_it_knows(plane: DataPlane) -> None:
    assert plane.hearing.wary.put(RELAY, 60_000, [(30000, 30003), (30006, 30010)])
    assert plane.hearing.known.put(Endpoint(PHONE.addr, 0), 60_000)
    for port, stranger in ((30000, DROP), (30003, DROP), (30004, PASS), (30006, DROP), (30010, DROP)):
        assert verdict(plane, PHONE, Endpoint(RELAY.addr, port)) == PASS
        assert verdict(plane, SCANNER, Endpoint(RELAY.addr, port)) == stranger, port
    assert plane.trace(FiveTuple(SCANNER, Endpoint(RELAY.addr, 30008)))["reason"] == "refused-source"
    assert plane.hearing.wary.ranges(RELAY) == [(30000, 30003), (30006, 30010)]


def test_a_stranger_who_keeps_on_is_heard_at_both_ports_of_a_pair_and_nowhere_else(plane: DataPlane) -> None:
    plane.hearing.wary.put(RELAY, 60_000, [(30000, 30010)])
    stranger, even = ep("10.1.0.21:6000"), Endpoint(RELAY.addr, 30004)
    assert [verdict(plane, stranger, even) for _ in range(6)] == [DROP] * 4 + [PASS] * 2
    assert verdict(plane, Endpoint(stranger.addr, 6001), even.next_port()) == PASS, "his RTCP"
    assert verdict(plane, stranger, Endpoint(RELAY.addr, 30006)) == DROP
    assert verdict(plane, Endpoint(SCANNER.addr, 6000), even) == DROP
    for _ in range(10):
        plane.trace(FiveTuple(SCANNER, even))
    assert verdict(plane, SCANNER, even) == DROP, "a question does not count as a packet"


def test_who_pauses_does_not_keep_on(plane: DataPlane) -> None:
    plane.hearing.wary.put(RELAY, 60_000, [(30000, 30010)])
    stranger = ep("10.1.0.22:6000")
    for _ in range(2):
        assert [verdict(plane, stranger) for _ in range(4)] == [DROP] * 4
        time.sleep(0.15)


def test_a_guard_says_more_than_wariness(plane: DataPlane) -> None:
    plane.hearing.wary.put(RELAY, 60_000, [(30000, 30010)])
    plane.hearing.known.put(Endpoint(SCANNER.addr, 0), 60_000)
    plane.hearing.guards.put(Endpoint(RELAY.addr, 30004), 60_000, [PHONE.addr])
    assert verdict(plane, PHONE, Endpoint(RELAY.addr, 30004)) == PASS
    assert [verdict(plane, SCANNER, Endpoint(RELAY.addr, 30004)) for _ in range(6)] == [DROP] * 6


def test_wariness_of_ipv6_ends_by_itself_and_with_the_agent(plane: DataPlane) -> None:
    port, stranger, phone = ep(f"[{RELAY_A6}]:30004"), ep("[2001:db8::67]:77"), ep("[2001:db8::66]:77")
    plane.add_media(MediaRange(port.addr, 30000, 30010))
    plane.hearing.wary.put(Endpoint(port.addr, 0), 60, [(30000, 30010)])
    plane.hearing.known.put(Endpoint(phone.addr, 0), 60_000)
    assert (verdict(plane, stranger, port), verdict(plane, phone, port)) == (DROP, PASS)
    time.sleep(0.08)
    assert verdict(plane, stranger, port) == PASS
    plane.hearing.wary.put(Endpoint(port.addr, 0), 60_000, [(30000, 30010)])
    plane.hearing.open_up()
    assert verdict(plane, stranger, port) == PASS
    assert list(plane.hearing.known.ends()) == [Endpoint(phone.addr, 0)], "known addresses outlive the agent"
