"""Port pairs: never one in use, at rest or held by others; with real sockets and as a property."""

from __future__ import annotations

import errno
import random
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunt.relay.ports import AddressUnusable, PortAllocator, PortsExhausted, PortTaken, bind_pair
from shunt.relay.relay import BuiltinRelay


def close(pair) -> None:
    for sock in pair:
        sock.close()


def test_pairs_are_bound_even_and_odd_on_both_versions():
    allocator = PortAllocator(43000, 43099, bind_pair)
    for ip in ("127.0.0.1", "::1"):
        port, pair = allocator.open(ip)
        assert port % 2 == 0
        assert [s.getsockname()[:2] for s in pair] == [(ip, port), (ip, port + 1)]
        assert pair[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 512 * 1024
        close(pair)


@pytest.mark.parametrize("taken", [43101, 43102])
def test_a_port_that_another_process_holds_is_passed_over(taken):
    other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    other.bind(("127.0.0.1", taken))
    allocator = PortAllocator(43100, 43103, bind_pair)
    opened = []
    try:
        port, pair = allocator.open("127.0.0.1")
        opened.append(pair)
        assert port == (43102 if taken == 43101 else 43100)
        with pytest.raises(PortsExhausted, match="1 in use, 0 resting, 1 held by other processes"):
            allocator.open("127.0.0.1")
    finally:
        other.close()
        for pair in opened:
            close(pair)


def test_exhaustion_is_told_and_ends_with_the_quarantine():
    now = 100.0
    allocator = PortAllocator(43200, 43205, bind_pair, quarantine=5, clock=lambda: now)
    got = dict(allocator.open("127.0.0.1") for _ in range(3))
    assert sorted(got) == [43200, 43202, 43204]
    with pytest.raises(PortsExhausted, match="127.0.0.1: all 3 port pairs 43200-43205"):
        allocator.open("127.0.0.1")
    close(got.pop(43202))
    allocator.release("127.0.0.1", 43202)
    now = 104.99
    with pytest.raises(PortsExhausted, match="2 in use, 1 resting"):
        allocator.open("127.0.0.1")
    now = 105.0
    port, pair = allocator.open("127.0.0.1")
    assert port == 43202
    for p in (*got.values(), pair):
        close(p)


def test_an_address_of_another_host_is_refused_at_once():
    with pytest.raises(AddressUnusable, match="192.0.2.1"):
        PortAllocator(43000, 43999, bind_pair).open("192.0.2.1")


def test_no_more_descriptors_is_exhaustion_too():
    def binder(ip, port):
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(PortsExhausted, match="Too many open files"):
        PortAllocator(43000, 43999, binder).open("127.0.0.1")


@pytest.mark.parametrize("first, last", [(0, 10), (70000, 70001), (200, 100), (101, 102), (100, 100)])
def test_ranges_without_a_pair(first, last):
    with pytest.raises(ValueError, match="media ports"):
        PortAllocator(first, last, bind_pair)


def test_an_odd_start_and_an_even_end_stay_within_the_range():
    allocator = PortAllocator(43001, 43004, lambda ip, port: port)
    assert allocator.open("a")[0] == 43002
    with pytest.raises(PortsExhausted):
        allocator.open("a")


def test_choice_is_spread_over_the_range():
    allocator = PortAllocator(30000, 39999, lambda ip, port: port)
    got = [allocator.open("a")[0] for _ in range(200)]
    assert len({port // 1000 for port in got}) == 10
    assert got != sorted(got)


def test_two_addresses_have_the_same_port_each():
    allocator = PortAllocator(43000, 43001, lambda ip, port: port)
    assert allocator.open("a")[0] == allocator.open("b")[0] == 43000


def test_reopen_takes_that_very_pair_also_from_rest():
    allocator = PortAllocator(43000, 43009, lambda ip, port: port)
    assert allocator.reopen("a", 43004) == 43004
    with pytest.raises(PortTaken, match="a:43004"):
        allocator.reopen("a", 43004)
    with pytest.raises(PortTaken):
        allocator.reopen("a", 43005)
    allocator.release("a", 43004)
    assert allocator.reopen("a", 43004) == 43004
    assert not allocator.resting()


_STEPS = st.lists(
    st.tuples(st.sampled_from(["open", "release", "pass", "seize", "free"]), st.integers(0, 1000), st.sampled_from(["a", "b"])),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(steps=_STEPS, seed=st.integers(0, 10), pairs=st.integers(1, 12), quarantine=st.sampled_from([0.0, 0.5, 5.0]))
def test_never_a_port_in_use_at_rest_or_seized(steps, seed, pairs, quarantine):
    now = 0.0
    seized: set[tuple[str, int]] = set()
    used: dict[tuple[str, int], None] = {}
    rest: dict[tuple[str, int], float] = {}

    def binder(ip: str, port: int) -> tuple[str, int]:
        if (ip, port) in seized:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        assert (ip, port) not in used
        return ip, port

    first = 20000
    allocator = PortAllocator(
        first, first + 2 * pairs - 1, binder, quarantine=quarantine, clock=lambda: now, rng=random.Random(seed)
    )
    for kind, number, ip in steps:
        if kind == "open":
            every = {(ip, p) for p in range(first, first + 2 * pairs, 2)}
            try:
                port, pair = allocator.open(ip)
            except PortsExhausted:
                # A pair that was found seized is tried again after a second only: it may be free by now.
                left = every - set(used) - seized - {k for k, until in rest.items() if until > now}
                assert left <= freed_lately(now)
                continue
            assert pair == (ip, port) and pair in every
            assert rest.get(pair, now) <= now
            used[pair] = None
        elif kind == "release" and used:
            pair = sorted(used)[number % len(used)]
            del used[pair]
            rest[pair] = now + quarantine
            allocator.release(*pair)
        elif kind == "pass":
            now += number / 200
        elif kind == "seize":
            pair = (ip, first + 2 * (number % pairs))
            if pair not in used:
                seized.add(pair)
                FREED.pop(pair, None)
        elif kind == "free":
            for pair in seized:
                FREED[pair] = now
            seized.clear()
    FREED.clear()


FREED: dict[tuple[str, int], float] = {}


def freed_lately(now: float) -> set[tuple[str, int]]:
    return {pair for pair, at in FREED.items() if now < at + 1.0}


async def test_relay_out_of_ports_answers_with_an_error_that_keeps_it_in_service():
    now = 0.0
    relay = BuiltinRelay(["127.0.0.1"], 43300, 43303, clock=lambda: now)
    await relay.start()
    try:
        assert (await relay.execute(b"U c1 192.0.2.1 6000 f;1")).split()[1] == b"127.0.0.1"
        assert (await relay.execute(b"U c2 192.0.2.1 6000 f;1")).split()[1] == b"127.0.0.1"
        assert await relay.execute(b"U c3 192.0.2.1 6000 f;1") == b"E72"
        assert await relay.execute(b"L c1 192.0.2.2 6000 f;1 t;1") == b"E71"
        assert await relay.execute(b"Q c3 f;1") == b"E50"
        assert await relay.execute(b"D c2 f") == b"0"
        assert await relay.execute(b"L c1 192.0.2.2 6000 f;1 t;1") == b"E71", "the pair rests"
        now = 5.0
        assert (await relay.execute(b"L c1 192.0.2.2 6000 f;1 t;1")).split()[1] == b"127.0.0.1"
    finally:
        await relay.close()
    await BuiltinRelay(["127.0.0.1"], 43300, 43303).execute(b"V")
    close(bind_pair("127.0.0.1", 43300))
    close(bind_pair("127.0.0.1", 43302))


async def test_start_names_an_address_that_is_not_ours():
    relay = BuiltinRelay(["127.0.0.1", "192.0.2.1"], 43300, 43303)
    with pytest.raises(AddressUnusable, match="192.0.2.1 is not an address of this host"):
        await relay.start()
    await relay.close()
