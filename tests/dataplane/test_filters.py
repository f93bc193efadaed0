"""Blocklist, source filter, greylist and allowlist in the kernel: what is not admitted at media ports without an entry is dropped, and nothing else is."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from shunt.net import Endpoint, FiveTuple
from tests.dataplane.lab import RELAY_A4, RELAY_A6, ep
from tests.dataplane.test_table import FIRST
from tests.dataplane.traffic import DROP, PASS, REDIRECT, frame, send
from tests.softswitch import testrun
from tests.softswitch.client import until
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.tools.entry import MediaRange

pytestmark = pytest.mark.netns

SCANNER = ep("10.1.0.9:4444")
MISSED = ep(f"{RELAY_A4}:30005")
_SHORT_MS = 2_000  # a time that ends while a test waits, and not before a busy machine has looked
_sources = itertools.count(20)
_strangers = (ep(f"10.9.{number >> 8}.{number & 255}:6000") for number in itertools.count(1))
Verdict = Callable[..., int]


@pytest.fixture(scope="module")
def mismatch() -> str:
    return "drop"


@pytest.fixture(autouse=True)
def _media(plane: Plane) -> Iterator[None]:
    plane.add_media(MediaRange(MISSED.addr, 30000, 30010))
    yield


@pytest.fixture
def verdict(softswitch: Softswitch) -> Verdict:
    """The verdict on a packet from a source to a relay port."""
    return lambda src, dst=MISSED: send(softswitch, FiveTuple(src, dst))[0]


@pytest.mark.parametrize(("blocked", "other_port"), [(SCANNER, PASS), (Endpoint(SCANNER.addr, 0), DROP)], ids=["port", "address"])
def test_only_what_is_blocked_is_dropped(plane: Plane, verdict: Verdict, blocked: Endpoint, other_port: int) -> None:
    assert verdict(SCANNER) == PASS
    assert plane.blocklist.put(blocked, 60_000)
    before = plane.totals()
    assert verdict(SCANNER) == DROP
    assert verdict(Endpoint(SCANNER.addr, 5)) == other_port
    assert verdict(ep("10.1.0.8:4444")) == PASS
    assert verdict(SCANNER, ep(f"{RELAY_A4}:30011")) == PASS, "no media port"
    grown = {name: value - before[name] for name, value in plane.totals().items()}
    assert grown["blocked_packets"] == (2 if other_port == DROP else 1)
    assert grown["blocked_packets"] + grown["missed_packets"] == 3 and grown["rx_packets"] == 3 + grown["passed_packets"] and grown["passed_packets"] >= 1
    assert plane.trace(FiveTuple(SCANNER, MISSED))["verdict"] == "drop"
    assert plane.trace(FiveTuple(SCANNER, MISSED))["reason"] == "blocked"
    plane.blocklist.remove(blocked)
    assert verdict(SCANNER) == PASS


def test_an_entry_goes_before_the_blocklist(plane: Plane, softswitch: Softswitch) -> None:
    plane.blocklist.put(Endpoint(FIRST.key.src.addr, 0), 60_000)
    plane.insert([FIRST])
    assert send(softswitch, FIRST.key) == (REDIRECT, (FIRST.src, FIRST.dst))


def test_the_agent_still_learns_of_blocked_packets(plane: Plane, verdict: Verdict) -> None:
    source = Endpoint(SCANNER.addr, 5_151)  # whose share of notices no other test has used
    plane.blocklist.put(source, 60_000)
    assert verdict(source) == DROP
    assert [notice.key for notice in plane.poll_learn()] == [FiveTuple(source, MISSED)]


def test_ipv6_and_ipv4_are_two(plane: Plane, verdict: Verdict) -> None:
    six = ep(f"[{RELAY_A6}]:30005")
    plane.add_media(MediaRange(six.addr, 30000, 30010))
    source = ep("[2001:db8::66]:77")
    plane.blocklist.put(Endpoint(source.addr, 0), 60_000)
    assert verdict(source, six) == DROP
    assert verdict(ep("[2001:db8::67]:77"), six) == PASS
    assert verdict(Endpoint(source.addr[:4], 77)) == PASS
    assert plane.blocklist.ends() == [Endpoint(source.addr, 0)]


def test_a_blocklist_entry_ends_by_itself(plane: Plane, verdict: Verdict) -> None:
    plane.blocklist.put(SCANNER, _SHORT_MS)
    left = plane.blocklist.remaining(SCANNER)
    assert verdict(SCANNER) == DROP and left is not None and 0 <= left <= _SHORT_MS
    until(lambda: verdict(SCANNER) == PASS, "the source is blocked no more")
    assert plane.blocklist.remaining(SCANNER) is None and plane.blocklist.ends() == []


def test_old_entries_make_room_for_new_ones(plane: Plane) -> None:
    """A full filter says so, until the time of one of its entries is over. Of all filters the greylist is the smallest."""
    first, *others = (Endpoint(bytes((10, 9, n >> 8, n & 255)), 0) for n in range(1 << 12))
    plane.greylist.put(first, 2 * _SHORT_MS, [(1, 2)])
    new = next(one for one in others if not plane.greylist.put(one, 60_000, [(1, 2)]))
    assert len(plane.greylist.ends()) >= 100 and plane.greylist.remaining(new) is None
    until(lambda: plane.greylist.put(new, 60_000, [(1, 2)]), "room in the greylist")
    ends = plane.greylist.ends()
    assert new in ends and first not in ends and not plane.greylist.put(Endpoint(b"\x0a\x08\x00\x01", 0), 60_000)


def test_another_process_finds_them(plane: Plane, softswitch: Softswitch, verdict: Verdict) -> None:
    """Who is blocked, and whose address is on the allowlist, stays so for the next owner. Without one nobody is kept out."""
    plane.blocklist.put(SCANNER, 60_000)
    plane.allowlist.put(Endpoint(PHONE.addr, 0), 60_000)
    assert verdict(SCANNER) == DROP
    plane.session.close()
    softswitch.restart()
    assert verdict(SCANNER) == PASS
    plane.reconnect()
    assert plane.blocklist.ends() == [SCANNER] and plane.allowlist.ends() == [Endpoint(PHONE.addr, 0)]
    until(lambda: verdict(SCANNER) == DROP, "the block is in force again")


@pytest.mark.parametrize("end", ["killed", "hanging", "stopped"])
def test_no_row_outlives_the_softswitch_by_long(plane: Plane, softswitch: Softswitch, verdict: Verdict, end: str) -> None:
    """Ports go to new calls while it is away: what was written for the last ones keeps nobody out, and does not come back with it."""
    filtered, greylisted = Endpoint(MISSED.addr, 30000), Endpoint(MISSED.addr, 30008)
    assert plane.source_filter.put(filtered, 600_000, [PHONE.addr])
    assert plane.greylist.put(RELAY, 600_000, [(30008, 30010)])
    unknown = next(_strangers)
    assert (verdict(unknown, filtered), verdict(unknown, greylisted)) == (DROP, DROP)
    if end == "killed":
        softswitch.kill()
    elif end == "hanging":
        softswitch.signal(signal.SIGSTOP)
    else:
        softswitch.stop()
    until(lambda: verdict(next(_strangers), filtered) == PASS, "the filter applies no more")
    until(lambda: verdict(next(_strangers), greylisted) == PASS, "the greylist applies no more")
    if end == "hanging":
        softswitch.signal(signal.SIGCONT)
    else:
        softswitch.start()
    plane.reconnect()
    assert plane.source_filter.ends() == plane.greylist.ends() == []


def test_a_source_filter_admits_some_addresses_only(plane: Plane, verdict: Verdict) -> None:
    even, odd, next_pair = (Endpoint(MISSED.addr, port) for port in (30004, 30005, 30006))
    admitted = [ep("10.1.0.7:1"), ep("10.1.0.8:1")]
    assert plane.source_filter.put(even, 60_000, [end.addr for end in admitted])
    for port in (even, odd):
        assert [verdict(end, port) for end in (*admitted, SCANNER)] == [PASS, PASS, DROP]
    assert verdict(SCANNER, next_pair) == PASS
    assert plane.trace(FiveTuple(SCANNER, even))["reason"] == "blocked"
    assert plane.source_filter.put(even, 60_000, [])
    assert verdict(admitted[0], even) == DROP, "nobody is admitted"
    plane.source_filter.remove(even)
    assert verdict(SCANNER, odd) == PASS


@pytest.mark.parametrize(("relay", "source", "everybody"), [(RELAY_A4, "10.1.0.9:77", "255.255.255.255"), (f"[{RELAY_A6}]", "[2001:db8::67]:77", "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]")])
def test_a_source_filter_may_admit_everybody_at_a_greylisted_port(plane: Plane, verdict: Verdict, relay: str, source: str, everybody: str) -> None:
    port, unknown = ep(f"{relay}:30004"), ep(source)
    plane.add_media(MediaRange(port.addr, 30000, 30010))
    assert plane.greylist.put(Endpoint(port.addr, 0), 60_000, [(30000, 30010)])
    assert verdict(unknown, port) == DROP
    address = ep(f"{everybody}:1").addr
    assert plane.source_filter.put(port, 60_000, [address])
    assert verdict(unknown, port) == PASS
    assert plane.source_filter.admitted(port) == [address]


def test_an_entry_goes_before_a_source_filter(plane: Plane, softswitch: Softswitch) -> None:
    plane.source_filter.put(Endpoint(FIRST.key.dst.addr, FIRST.key.dst.port & ~1), 60_000, [])
    plane.insert([FIRST])
    assert send(softswitch, FIRST.key) == (REDIRECT, (FIRST.src, FIRST.dst))


def test_a_source_filter_of_ipv6_ends_by_itself(plane: Plane, verdict: Verdict) -> None:
    port, phone, unknown = ep(f"[{RELAY_A6}]:30004"), ep("[2001:db8::66]:77"), ep("[2001:db8::67]:77")
    plane.add_media(MediaRange(port.addr, 30000, 30010))
    plane.source_filter.put(port, _SHORT_MS, [phone.addr])
    assert (verdict(phone, port), verdict(unknown, port)) == (PASS, DROP)
    assert plane.source_filter.admitted(port) == [phone.addr] and plane.source_filter.ends() == [port]
    until(lambda: verdict(unknown, port) == PASS, "the filter is in force no more")
    assert plane.source_filter.ends() == []


PHONE, RELAY = ep("10.1.0.7:6000"), Endpoint(MISSED.addr, 0)


def test_a_greylisted_port_admits_the_allowlist(plane: Plane, verdict: Verdict) -> None:
    assert plane.greylist.put(RELAY, 60_000, [(30000, 30003), (30006, 30010)])
    assert plane.allowlist.put(Endpoint(PHONE.addr, 0), 60_000)
    for port, unknown in ((30000, DROP), (30003, DROP), (30004, PASS), (30006, DROP), (30010, DROP)):
        assert verdict(PHONE, Endpoint(RELAY.addr, port)) == PASS
        assert verdict(next(_strangers), Endpoint(RELAY.addr, port)) == unknown, port
    assert plane.trace(FiveTuple(next(_strangers), Endpoint(RELAY.addr, 30008)))["reason"] == "blocked"
    assert plane.greylist.ranges(RELAY) == [(30000, 30003), (30006, 30010)]


def hits(softswitch: Softswitch, port: Endpoint, expected: list[int]) -> Endpoint:
    """A source that nobody knows, on whose packets to a port, one close behind another, these are the verdicts; a busy machine may need several."""
    with testrun.pinned(softswitch.pin_dir, "relay_native", softswitch.namespace) as program:
        for _ in range(10):
            unknown = ep(f"10.1.0.{next(_sources)}:6000")
            one = frame(FiveTuple(unknown, port))
            if (found := [program.run(one, ingress="ra").verdict for _ in expected]) == expected:
                return unknown
    raise AssertionError(f"{found}, not {expected}")


def test_an_unknown_source_that_goes_on_is_admitted_at_both_ports_of_a_pair_and_nowhere_else(plane: Plane, softswitch: Softswitch, verdict: Verdict) -> None:
    plane.greylist.put(RELAY, 60_000, [(30000, 30010)])
    even = Endpoint(RELAY.addr, 30004)
    unknown = hits(softswitch, even, [DROP] * 4 + [PASS] * 2)
    assert verdict(Endpoint(unknown.addr, 6001), even.next_port()) == PASS, "its RTCP"
    assert verdict(unknown, Endpoint(RELAY.addr, 30006)) == DROP
    other = next(_strangers)
    for _ in range(10):
        plane.trace(FiveTuple(other, even))
    assert verdict(other, even) == DROP, "a question does not count as a packet"


@pytest.mark.parametrize("gap", [0.25, 0.4, 1.0, 2.5], ids=lambda gap: f"{gap * 1000:.0f} ms")
def test_a_sender_that_sends_rarely_is_admitted_at_its_second_packet(plane: Plane, softswitch: Softswitch, gap: float) -> None:
    """Comfort noise, Opus DTX, text: whatever the pauses between its packets."""
    plane.greylist.put(RELAY, 60_000, [(30000, 30010)])
    unknown = hits(softswitch, MISSED, [DROP])
    with testrun.pinned(softswitch.pin_dir, "relay_native", softswitch.namespace) as program:
        for number in range(3):
            time.sleep(gap)
            assert program.run(frame(FiveTuple(unknown, MISSED)), ingress="ra").verdict == PASS, number
        assert program.run(frame(FiveTuple(unknown, Endpoint(MISSED.addr, 30008))), ingress="ra").verdict == DROP, "its first packet to another port"


def test_a_source_filter_goes_before_the_greylist(plane: Plane, verdict: Verdict) -> None:
    plane.greylist.put(RELAY, 60_000, [(30000, 30010)])
    plane.allowlist.put(Endpoint(SCANNER.addr, 0), 60_000)
    plane.source_filter.put(Endpoint(RELAY.addr, 30004), 60_000, [PHONE.addr])
    assert verdict(PHONE, Endpoint(RELAY.addr, 30004)) == PASS
    assert [verdict(SCANNER, Endpoint(RELAY.addr, 30004)) for _ in range(6)] == [DROP] * 6


def test_a_greylist_of_ipv6_ends_by_itself_and_with_the_agent(plane: Plane, verdict: Verdict) -> None:
    port, unknown, phone = ep(f"[{RELAY_A6}]:30004"), ep("[2001:db8::77]:77"), ep("[2001:db8::76]:77")
    plane.add_media(MediaRange(port.addr, 30000, 30010))
    plane.greylist.put(Endpoint(port.addr, 0), _SHORT_MS, [(30000, 30010)])
    plane.allowlist.put(Endpoint(phone.addr, 0), 60_000)
    assert (verdict(unknown, port), verdict(phone, port)) == (DROP, PASS)
    until(lambda: not plane.greylist.ends(), "the greylist is in force no more")
    assert verdict(unknown, port) == PASS
    plane.greylist.put(Endpoint(port.addr, 0), 60_000, [(30000, 30010)])
    plane.source_filter.put(Endpoint(port.addr, 30006), 60_000, [])
    assert verdict(ep("[2001:db8::68]:77"), port) == verdict(phone, Endpoint(port.addr, 30006)) == DROP
    plane.reconnect()
    assert verdict(ep("[2001:db8::68]:77"), port) == verdict(phone, Endpoint(port.addr, 30006)) == PASS
    assert plane.greylist.ends() == plane.source_filter.ends() == []
    assert plane.allowlist.ends() == [Endpoint(phone.addr, 0)], "the allowlist outlives the agent's session"
