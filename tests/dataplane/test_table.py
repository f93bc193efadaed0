"""The table itself: entries in, out and changed, overflow, capacity, media ranges, statistics, notices, adoption."""

from __future__ import annotations

import itertools
import random
import shutil
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from shunt.net import Endpoint, FiveTuple
from tests.dataplane.lab import HOST_A4, HOST_B4, HOST_B6, RELAY_A4, RELAY_B4, RELAY_B6, Lab, build, entry, ep
from tests.dataplane.traffic import PASS, REDIRECT, frame, send
from tests.softswitch import testrun
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch, SoftswitchFailed
from tests.tools.entry import MediaRange, RelayEntry

pytestmark = pytest.mark.netns

FIRST = entry(f"{HOST_A4}:4000", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", f"{HOST_B4}:6000")


def rtp(seq: int, *, ssrc: int = 0x1234, timestamp: int | None = None, kind: int = 0) -> bytes:
    return struct.pack("!BBHII", 0x80, kind, seq & 0xFFFF, (seq * 160 if timestamp is None else timestamp) & 0xFFFFFFFF, ssrc) + bytes(160)


def test_insert_get_modify_delete(plane: Plane, softswitch: Softswitch) -> None:
    key = FIRST.key
    assert plane.get([key]) == [None]
    assert plane.modify([FIRST]) == ["absent"]
    assert plane.delete([key]) == [False]
    assert plane.insert([FIRST]) == [None]
    assert plane.insert([FIRST]) == ["exists"]
    assert send(softswitch, key) == (REDIRECT, (FIRST.src, FIRST.dst))
    changed = RelayEntry(key, ep(f"[{RELAY_B6}]:20004"), ep(f"[{HOST_B6}]:6004"), ttl_ms=5, dscp=0)
    assert plane.modify([changed]) == [None]
    assert plane.get([key]) == [changed]
    assert send(softswitch, key) == (REDIRECT, (changed.src, changed.dst))
    assert plane.stats([key])[key].packets == 2
    assert plane.delete([key]) == [True]
    assert send(softswitch, key)[0] == PASS
    assert (plane.keys(), len(plane)) == ([], 0)


@pytest.fixture(scope="module")
def second_lab() -> Iterator[Lab]:
    """Namespaces for softswitches of other capacities, beside the module's own."""
    with build("s") as made:
        made.fix_neighbours()
        yield made


@contextmanager
def second(lab: Lab, capacity: int) -> Iterator[tuple[Plane, Softswitch]]:
    """Another softswitch of this capacity."""
    with Softswitch(["ra", "rb"], namespace=lab.ns("relay"), capacity=capacity, mismatch="pass") as process, Plane(process.target) as plane:
        yield plane, process


def test_many_at_once_are_inserted_as_one_by_one(plane: Plane, softswitch: Softswitch, second_lab: Lab) -> None:
    rng = random.Random(5)
    many = []
    for n in range(300):
        end = Endpoint(rng.randbytes(4), rng.randrange(65536))
        key = FiveTuple(Endpoint(rng.randbytes(4), rng.randrange(65536)), Endpoint(bytes((10, 9, 9, n % 3)), 9_900 + n * 7))
        many.append(RelayEntry(key, Endpoint(rng.choice((key.dst.addr, rng.randbytes(4))), rng.randrange(65536)), end, rng.randrange(1 << 32), rng.choice((None, 0, 46, 63))))
    many[-1] = RelayEntry(FIRST.key, FIRST.src, FIRST.dst)
    assert plane.insert(many) == [None] * 300
    with second(second_lab, capacity=1000) as (other, _):
        assert [other.insert([one])[0] for one in many] == [None] * 300
        assert plane.get([one.key for one in many]) == other.get([one.key for one in many]) == many
    assert send(softswitch, FIRST.key) == (REDIRECT, (FIRST.src, FIRST.dst))
    assert len(plane) == 300 and plane.stats([FIRST.key])[FIRST.key].packets == 1
    assert plane.delete([one.key for one in many]) == [True] * 300
    assert len(plane) == 0 and not plane.keys()


def test_a_batch_with_entries_that_do_not_simply_fit(second_lab: Lab) -> None:
    def at(source: str, port: int) -> RelayEntry:
        return entry(source, f"{RELAY_A4}:{port}", f"{RELAY_B4}:20002", f"{HOST_B4}:6000")

    there, later = at("10.1.0.2:1", 20000), at("10.1.0.2:1", 20000)
    another, twin = at("10.1.0.3:1", 20000), at("10.1.0.4:1", 20002)
    first = at("10.1.0.5:1", 20002)
    wrong = replace(at("10.1.0.6:1", 20004), dscp=63)
    with second(second_lab, capacity=300) as (plane, softswitch):
        assert plane.insert([there]) == [None]
        assert plane.insert([later, another, first, twin]) == ["exists", None, None, None]
        (outcome,) = plane.insert([replace(wrong, dscp=64)])
        assert outcome is not None and outcome.startswith("invalid: ")
        # The port has entries of others that found no slot: what comes next to it is relayed as they are.
        assert plane.delete([first.key]) == [True]
        assert plane.insert([first]) == [None]
        for made in (there, another, first, twin):
            assert send(softswitch, made.key) == (REDIRECT, (made.src, made.dst))
        assert plane.delete([first.key]) == [True]
        assert len(plane) == 3
        assert plane.insert([at("10.1.0.2:1", 30000 + n) for n in range(298)]) == [None] * 297 + ["full"]
        assert plane.insert([at("10.1.0.2:1", 40000)]) == ["full"]


def test_bad_entries_are_refused_by_name_and_do_no_harm(plane: Plane) -> None:
    short = RelayEntry(FiveTuple(Endpoint(b"abc", 1), Endpoint(b"abcd", 2)), FIRST.src, FIRST.dst)
    for made, why in ((replace(FIRST, key=FiveTuple(ep("10.0.0.1:1"), FIRST.key.dst), dscp=64), "wid"), (short, "4 bytes")):
        outcome = plane.insert([FIRST, made])
        assert outcome[0] is None
        assert outcome[1] is not None and outcome[1].startswith("invalid: ") and why in outcome[1]
        assert plane.keys() == [FIRST.key]
        plane.clear()


def test_every_source_of_one_port_has_its_own_entry(plane: Plane, softswitch: Softswitch) -> None:
    many = [entry(f"10.1.0.2:{4000 + n}", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", f"{HOST_B4}:{6000 + n}") for n in range(20)]
    assert plane.insert(many) == [None] * 20
    for made in many:
        assert send(softswitch, made.key) == (REDIRECT, (made.src, made.dst))
        assert plane.stats([made.key])[made.key].packets == 1
    # The one in the slot leaves: the others go on, and its own packets match no entry.
    before = plane.totals()["source_mismatch_packets"]
    assert plane.delete([many[0].key]) == [True]
    assert send(softswitch, many[0].key)[0] == PASS
    assert send(softswitch, many[7].key) == (REDIRECT, (many[7].src, many[7].dst))
    assert plane.totals()["source_mismatch_packets"] == before + 1
    assert plane.stats([many[7].key])[many[7].key].source_mismatch == 1
    assert plane.insert([many[0]]) == [None]
    assert sorted(plane.get([m.key for m in many]), key=lambda e: e.key) == sorted(many, key=lambda e: e.key)
    assert plane.delete([m.key for m in many]) == [True] * 20
    assert send(softswitch, many[3].key)[0] == PASS


def test_table_full_is_said_and_room_is_found_again(second_lab: Lab) -> None:
    with second(second_lab, capacity=300) as (plane, softswitch):
        many = [entry(f"{HOST_A4}:4000", f"{RELAY_A4}:{10000 + n}", f"{RELAY_B4}:20002", f"{HOST_B4}:6000") for n in range(301)]
        assert plane.insert(many) == [None] * 300 + ["full"]
        assert send(softswitch, many[300].key)[0] == PASS
        assert plane.delete([many[5].key]) == [True]
        assert plane.insert([many[300]]) == [None]
        assert send(softswitch, many[300].key) == (REDIRECT, (many[300].src, many[300].dst))


def test_more_addresses_than_slots_can_serve(second_lab: Lab) -> None:
    """Entries that find no slot work too, and go on working when their ports get slots."""
    with second(second_lab, capacity=1500) as (plane, softswitch):
        # 256 chunks of 256 ports: 1200 addresses with one port each cannot all have one, nor 1024 rows.
        many = [RelayEntry(FiveTuple(ep(f"{HOST_A4}:4000"), Endpoint(bytes((10, 9, n >> 8, n & 255)), 30000)), FIRST.src, FIRST.dst) for n in range(1200)]
        assert plane.insert(many) == [None] * 1200
        for made in (many[0], many[300], many[1199]):
            assert send(softswitch, made.key) == (REDIRECT, (made.src, made.dst))
            assert send(softswitch, FiveTuple(ep("10.1.0.9:1"), made.key.dst))[0] == PASS
        assert len(plane.keys()) == 1200
        # Room for slots again; another source of a port whose entry is loose brings that port a slot.
        assert plane.delete([made.key for made in many[:250]]) == [True] * 250
        neighbour = RelayEntry(FiveTuple(ep(f"{HOST_A4}:4001"), many[1199].key.dst), FIRST.src, FIRST.dst)
        assert plane.insert([neighbour]) == [None]
        assert send(softswitch, many[1199].key) == (REDIRECT, (many[1199].src, many[1199].dst))
        assert send(softswitch, neighbour.key)[0] == REDIRECT
        assert send(softswitch, many[900].key)[0] == REDIRECT
        plane.clear()
        assert send(softswitch, many[1199].key)[0] == PASS


def test_addresses_that_end_alike(second_lab: Lab) -> None:
    """One of them has the short way, all are served; when it goes, the next one has it."""
    with second(second_lab, capacity=1500) as (plane, softswitch):
        alike = [RelayEntry(FiveTuple(ep(f"{HOST_A4}:4000"), ep(f"10.{n}.2.3:30000")), FIRST.src, FIRST.dst) for n in (8, 9, 10)]
        for made in alike:
            assert plane.insert([made]) == [None]
        while alike:
            for made in alike:
                assert send(softswitch, made.key) == (REDIRECT, (made.src, made.dst))
            gone = alike.pop(0)
            assert plane.delete([gone.key]) == [True]
            assert send(softswitch, gone.key)[0] == PASS


def test_an_address_without_entries_meets_no_other_addresss_entries(second_lab: Lab) -> None:
    """However addresses are looked up: neither the bytes that two have in common nor a table's own words lead to another's entry."""
    with second(second_lab, capacity=1500) as (plane, softswitch):
        relay = ep("10.8.5.0:0").addr
        made = [RelayEntry(FiveTuple(ep(f"{HOST_A4}:4000"), Endpoint(relay, n << 8 | 7)), FIRST.src, FIRST.dst) for n in range(1, 33)]
        assert plane.insert(made) == [None] * len(made)
        for other in ("10.8.6.9", "10.9.5.0", "10.8.0.5", "11.8.5.0"):
            for one in made:
                assert send(softswitch, FiveTuple(one.key.src, Endpoint(ep(f"{other}:0").addr, one.key.dst.port)))[0] == PASS
        for one in made:
            assert send(softswitch, one.key) == (REDIRECT, (FIRST.src, FIRST.dst))


ADDRESSES = [bytes((10, 3, 0, n)) for n in range(2)] + [bytes((10, 4, 0, 1))] + [bytes(15) + bytes((n,)) for n in range(1, 3)]
endpoints = st.builds(Endpoint, st.sampled_from(ADDRESSES[:3]), st.integers(2000, 2002))
endpoints6 = st.builds(Endpoint, st.sampled_from(ADDRESSES[3:]), st.integers(2000, 2002))
keys = st.one_of(st.builds(FiveTuple, endpoints, endpoints), st.builds(FiveTuple, endpoints6, endpoints6))
out4 = st.tuples(st.just(ep(f"{RELAY_B4}:20002")), st.builds(Endpoint, st.just(ep(f"{HOST_B4}:1").addr), st.integers(1, 65535)))
out6 = st.tuples(st.just(ep(f"[{RELAY_B6}]:20002")), st.builds(Endpoint, st.just(ep(f"[{HOST_B6}]:1").addr), st.integers(1, 65535)))
entries = st.builds(lambda key, out, ttl, dscp: RelayEntry(key, out[0], out[1], ttl, dscp), keys, st.one_of(out4, out6), st.integers(0, 1 << 31), st.none() | st.integers(0, 63))


class Machine(RuleBasedStateMachine):
    """Random inserts, changes and deletes: the table, and the program on every key, agree with a plain dict."""

    plane: Plane
    softswitch: Softswitch

    @initialize()
    def empty(self) -> None:
        self.plane.clear()
        self.model: dict[FiveTuple, RelayEntry] = {}

    @rule(batch=st.lists(entries, min_size=1, max_size=8))
    def insert(self, batch: list[RelayEntry]) -> None:
        expected = []
        for made in batch:
            expected.append("exists" if made.key in self.model else None)
            self.model.setdefault(made.key, made)
        assert self.plane.insert(batch) == expected

    @rule(made=entries)
    def modify(self, made: RelayEntry) -> None:
        assert self.plane.modify([made]) == [None if made.key in self.model else "absent"]
        if made.key in self.model:
            self.model[made.key] = made

    @rule(batch=st.lists(keys, min_size=1, max_size=8, unique=True))
    def delete(self, batch: list[FiveTuple]) -> None:
        assert self.plane.delete(batch) == [key in self.model for key in batch]
        for key in batch:
            self.model.pop(key, None)

    @rule(made=entries)
    def packet(self, made: RelayEntry) -> None:
        there = self.model.get(made.key)
        verdict, out = send(self.softswitch, made.key)
        assert out == ((there.src, there.dst) if there else None)
        assert (verdict == REDIRECT) == (there is not None)

    @invariant()
    def same(self) -> None:
        assert set(self.plane.keys()) == set(self.model)
        assert len(self.plane) == len(self.model)
        assert self.plane.get(list(self.model)) == list(self.model.values())


class Restarting(Machine):
    """The same over restarts of the process."""

    @rule()
    def restart(self) -> None:
        self.softswitch.restart()
        self.plane.reconnect()


@pytest.mark.parametrize(("machine", "examples", "steps"), [(Machine, 25, 30), (Restarting, 3, 15)], ids=["one process", "with restarts"])
def test_any_order_of_operations_matches_a_dict(plane: Plane, softswitch: Softswitch, machine: type[Machine], examples: int, steps: int) -> None:
    machine.plane, machine.softswitch = plane, softswitch
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None, database=None, suppress_health_check=list(HealthCheck)))


def test_adoption_keeps_entries_counters_media_and_overflow(plane: Plane, softswitch: Softswitch) -> None:
    second = entry(f"{HOST_A4}:5000", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", f"{HOST_B4}:6002", dscp=46, ttl_ms=77)
    plane.insert([FIRST, second])
    ranges = [MediaRange(ep(f"{RELAY_A4}:0").addr, 20000, 20999), MediaRange(ep(f"{RELAY_A4}:0").addr, 21000, 21999), MediaRange(ep("[fd01::1]:0").addr, 5, 5)]
    assert [plane.add_media(r) for r in ranges] == [None] * 3
    assert plane.add_media(ranges[0]) == "exists"
    send(softswitch, FIRST.key)
    softswitch.restart()
    plane.reconnect()
    assert plane.get([FIRST.key, second.key]) == [FIRST, second]
    assert set(plane.media()) == set(ranges)
    assert plane.stats([FIRST.key])[FIRST.key].packets == 1
    assert send(softswitch, second.key) == (REDIRECT, (second.src, second.dst))
    assert plane.remove_media(ranges[1]) and not plane.remove_media(ranges[1])
    assert plane.delete([second.key, FIRST.key]) == [True, True]


def test_two_processes_cannot_control_one_data_plane(plane: Plane, softswitch: Softswitch) -> None:
    other = Softswitch(["ra"], namespace=softswitch.namespace, pin_dir=softswitch.pin_dir)
    with pytest.raises(SoftswitchFailed, match="another process"):
        other.start()
    shutil.rmtree(other.folder)
    assert plane.insert([FIRST]) == [None] and send(softswitch, FIRST.key) == (REDIRECT, (FIRST.src, FIRST.dst)), "the first goes on"


def test_unknown_interface_and_mode_are_named_and_leave_nothing(second_lab: Lab) -> None:
    for interface, mode, named in (("nosuch0", "auto", "nosuch0"), ("ra", "fast", "fast")):
        process = Softswitch([interface], namespace=second_lab.ns("relay"), capacity=300, mode=mode)
        try:
            with pytest.raises(SoftswitchFailed, match=named):
                process.start()
        finally:
            process.unload()
        assert not process.pin_dir.exists()


# Statistics


def test_loss_reordering_duplicates_and_wrap(plane: Plane, softswitch: Softswitch) -> None:
    plane.insert([FIRST])
    for seq in (65533, 65534, 0, 1, 65535, 3, 3, 5):  # 65535 late, 3 twice, 2 and 4 lost
        assert send(softswitch, FIRST.key, rtp(seq, ssrc=7))[0] == REDIRECT
    stats = plane.stats([FIRST.key])[FIRST.key]
    assert (stats.packets, stats.bytes, stats.ssrc) == (8, 8 * (28 + 172), 7)
    # RFC 3550 A.3: nine expected, eight received (the duplicate counts as received).
    assert (stats.lost, stats.reordered, stats.duplicates) == (1, 1, 1)


def test_new_ssrc_starts_anew_and_keeps_what_was_lost(plane: Plane, softswitch: Softswitch) -> None:
    plane.insert([FIRST])
    for seq in (10, 11, 14):
        send(softswitch, FIRST.key, rtp(seq, ssrc=1))
    for seq in (40000, 40001, 40003):
        send(softswitch, FIRST.key, rtp(seq, ssrc=2))
    stats = plane.stats()[FIRST.key]
    assert (stats.lost, stats.ssrc, stats.reordered, stats.duplicates) == (3, 2, 0, 0)


def test_jump_within_one_ssrc_is_a_restart_after_two_in_a_row(plane: Plane, softswitch: Softswitch) -> None:
    plane.insert([FIRST])
    for seq in (10, 11, 30000, 12, 13):  # one wild packet changes nothing
        send(softswitch, FIRST.key, rtp(seq))
    assert plane.stats()[FIRST.key].lost == 0
    for seq in (30000, 30001, 30002):
        send(softswitch, FIRST.key, rtp(seq))
    stats = plane.stats()[FIRST.key]
    assert (stats.lost, stats.packets) == (0, 8)


def test_rtcp_and_other_payloads_are_counted_but_are_no_rtp(plane: Plane, softswitch: Softswitch) -> None:
    plane.insert([FIRST])
    send(softswitch, FIRST.key, struct.pack("!BBHIIII", 0x80, 200, 6, 1, 2, 3, 4))
    send(softswitch, FIRST.key, b"\x00\x01\x00\x00" + bytes(16))
    send(softswitch, FIRST.key, b"x")
    stats = plane.stats()[FIRST.key]
    assert (stats.packets, stats.ssrc, stats.lost, stats.jitter_us) == (3, 0, 0, 0)


def test_jitter_of_a_steady_stream_is_small_and_of_a_shaken_one_is_its_own(plane: Plane, softswitch: Softswitch) -> None:
    steady, shaken = FIRST, entry(f"{HOST_A4}:4002", f"{RELAY_A4}:20004", f"{RELAY_B4}:20002", f"{HOST_B4}:6000")
    plane.insert([steady, shaken])
    begun = time.monotonic()
    delays = []
    for n in range(60):
        while time.monotonic() - begun < n * 0.004:
            pass
        # The clock advances by what really passed; the shaken stream's packets are now 5 ms early, now late.
        read = time.monotonic()
        now = int((read - begun) * 8000)
        send(softswitch, steady.key, rtp(n, timestamp=now))
        send(softswitch, shaken.key, rtp(n, timestamp=now + (40 if n % 2 else 0)))
        delays.append((time.monotonic() - read) * 1e6)
    # What the test itself shook the streams by, when it lost the processor, and a tick of their clocks.
    unsure = max(a + b for a, b in itertools.pairwise(delays)) + 250
    found = plane.stats()
    assert found[steady.key].jitter_us <= unsure
    assert 5000 - unsure <= found[shaken.key].jitter_us <= 5000 + unsure


def test_counters_are_set_to_zero_and_go_on(plane: Plane, softswitch: Softswitch) -> None:
    plane.insert([FIRST])
    for seq in (1, 2, 5):
        send(softswitch, FIRST.key, rtp(seq))
    stats = plane.stats()[FIRST.key]
    assert (stats.packets, stats.bytes, stats.lost, stats.ssrc) == (3, 600, 2, 0x1234)
    plane.reset_stats([FIRST.key])
    stats = plane.stats()[FIRST.key]
    assert (stats.packets, stats.bytes, stats.lost, stats.ssrc) == (0, 0, 0, 0)
    assert send(softswitch, FIRST.key) == (REDIRECT, (FIRST.src, FIRST.dst))
    assert plane.stats()[FIRST.key].packets == 1


def test_idle_times_and_notices(plane: Plane, softswitch: Softswitch) -> None:
    """Of each entry its own time to live counts, 0 means never; what is idle is reported once, and once more when it is active again."""
    first = replace(FIRST, ttl_ms=300)
    second = entry(f"{HOST_A4}:5000", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", f"{HOST_B4}:6002", ttl_ms=300)
    never = entry(f"{HOST_A4}:5000", f"{RELAY_A4}:20008", f"{RELAY_B4}:20002", f"{HOST_B4}:6002", ttl_ms=0)
    later = entry(f"{HOST_A4}:5000", f"{RELAY_A4}:20010", f"{RELAY_B4}:20002", f"{HOST_B4}:6002", ttl_ms=3_600_000)
    plane.watch_idle(interval_ms=100, min_ttl_ms=100, max_ttl_ms=3_600_000)
    try:
        assert plane.insert([first, second, never, later]) == [None] * 4
        assert {plane.idle_notice(), plane.idle_notice()} == {(first.key, True), (second.key, True)}
        idle = plane.idle()
        assert set(idle) == {first.key, second.key, never.key, later.key} and min(idle[first.key], idle[second.key], idle[never.key]) >= 300
        send(softswitch, first.key)
        idle = plane.idle([first.key, second.key])
        assert idle[first.key] < idle[second.key] and idle[second.key] >= 300
        assert plane.idle_notice() == (first.key, False)
        assert plane.idle_notice() == (first.key, True)
        assert plane.session.notices.idle.empty()
    finally:
        plane.watch_idle(enable=False)


def test_totals_add_up(plane: Plane, softswitch: Softswitch) -> None:
    before = plane.totals()
    plane.insert([FIRST])
    plane.add_media(MediaRange(ep(f"{RELAY_A4}:0").addr, 30000, 30010))
    send(softswitch, FIRST.key)
    send(softswitch, FiveTuple(ep("10.1.0.9:9"), FIRST.key.dst))
    send(softswitch, FiveTuple(ep("10.1.0.9:9"), ep(f"{RELAY_A4}:30005")))
    send(softswitch, FiveTuple(ep("10.1.0.9:9"), ep(f"{RELAY_A4}:30011")))
    after = plane.totals()
    grown = {name: after[name] - before[name] for name in after}
    # What the hosts' kernels say passes too.
    assert grown["passed_packets"] == grown["rx_packets"] - 3 >= 1
    wanted = {
        "relayed_packets": 1, "relayed_bytes": 40, "missed_packets": 1, "source_mismatch_packets": 1, "blocked_packets": 0, "limited_packets": 0, "conference_packets": 0,
        "too_big_packets": 0, "unrouted_packets": 0, "learn_notices": 2, "learn_suppressed": 0, "entries": 1, "capacity": 0,
    }  # fmt: skip
    assert {name: grown[name] for name in wanted} == wanted


def test_where_other_sources_pass_so_do_blocked_ones(plane: Plane, softswitch: Softswitch) -> None:
    missed = FiveTuple(ep("10.1.0.9:9"), ep(f"{RELAY_A4}:30005"))
    plane.add_media(MediaRange(missed.dst.addr, 30000, 30010))
    plane.blocklist.put(missed.src, 60_000)
    assert send(softswitch, missed)[0] == PASS
    assert plane.trace(missed)["reason"] == "blocked"


# Notices


def test_a_miss_on_a_media_port_is_told_with_what_the_packet_says(plane: Plane, softswitch: Softswitch) -> None:
    plane.add_media(MediaRange(ep(f"{RELAY_A4}:0").addr, 30000, 30001))
    key = FiveTuple(ep("192.0.2.5:7000"), ep(f"{RELAY_A4}:30001"))
    send(softswitch, key, rtp(500, ssrc=0xCAFE, kind=0x80 | 8))
    send(softswitch, FiveTuple(ep("192.0.2.5:7000"), ep(f"{RELAY_A4}:30002")))
    notices = plane.poll_learn()
    assert [(n.key, n.rtp_version, n.payload_type, n.seq, n.ssrc) for n in notices] == [(key, 2, 8, 500, 0xCAFE)]
    send(softswitch, key, b"short")
    assert [(n.rtp_version, n.payload_type, n.seq, n.ssrc) for n in plane.poll_learn()] == [(0, 0, 0, 0)]


def _next_window() -> None:
    """Wait for the start of a notice window."""
    time.sleep(0.1 - time.monotonic() % 0.1 + 0.001)


def _in_one_window(plane: Plane, softswitch: Softswitch, packets: list[tuple[FiveTuple, int]]) -> list[FiveTuple]:
    """The 5-tuples of the notices on so many packets of each when all were sent within one notice window; a busy machine may need several goes."""
    frames = [(frame(key), count) for key, count in packets]
    with testrun.pinned(softswitch.pin_dir, "relay_native", softswitch.namespace) as program:
        for _ in range(50):
            _next_window()
            plane.poll_learn()
            _next_window()
            window = time.monotonic_ns() // 100_000_000
            for one, count in frames:
                program.run(one, ingress="ra", repeat=count)
            if time.monotonic_ns() // 100_000_000 == window:
                return [notice.key for notice in plane.poll_learn()]
    raise AssertionError(f"{packets} never went out within one window of 100 ms")


def test_notices_are_bounded_for_one_flow_and_come_again(plane: Plane, softswitch: Softswitch) -> None:
    plane.add_media(MediaRange(ep(f"{RELAY_A4}:0").addr, 30000, 30100))
    key = FiveTuple(ep("192.0.2.5:7000"), ep(f"{RELAY_A4}:30001"))
    for _ in range(3):
        before = plane.totals()
        assert _in_one_window(plane, softswitch, [(key, 60)]) == [key] * 16
        after = plane.totals()
        seen, suppressed = (after[c] - before[c] for c in ("learn_notices", "learn_suppressed"))
        assert seen + suppressed >= 60 and suppressed >= 44


def _gates(key: FiveTuple) -> tuple[int, int, int]:
    """The numbers that address, port and flow of an IPv4 key are hashed to for their rate gates, as learn.h does, before they are cut to the number of gates."""

    def mixed(number: int, *words: int) -> int:
        for word in words:
            number = (number ^ word) * 0x9E3779B1 & 0xFFFFFFFF
            number ^= number >> 15
        return number

    def swapped(port: int) -> int:
        return port >> 8 | (port & 0xFF) << 8

    address = mixed(0x51ED270B, int.from_bytes(key.src.addr, "little"), 0, 0, 0)
    port = mixed(address, int.from_bytes(key.dst.addr, "little"), 0, 0, 0, swapped(key.dst.port))
    flow = mixed(port, swapped(key.src.port) + 1)
    return address ^ address >> 16, port ^ port >> 16, flow ^ flow >> 16


def test_a_busy_address_uses_up_no_flows_notices(plane: Plane, softswitch: Softswitch) -> None:
    """As an SBC's is that has many calls: the flow of another whose hash is the same would raise notices in the first moments of a window only."""
    relay = ep(f"{RELAY_A4}:0").addr
    plane.add_media(MediaRange(relay, 20000, 39999))
    busy = [FiveTuple(Endpoint(b"\xc0\x00\x02\x42", 1000 + n), Endpoint(relay, 20000 + 2 * n)) for n in range(80)]
    others = [FiveTuple(Endpoint(bytes((198, 51, 100, n % 199)), 5000 + n % 60_000), Endpoint(relay, 21_000 + n % 18_000)) for n in range(150_000)]
    hashed = [_gates(key) for key in others]
    address = _gates(busy[0])[0]
    # The hash is what this test takes it for: two flows with one gate share its notices.
    flow = hashed[0][2]
    shares = next(key for key, gates in zip(others[1:], hashed[1:]) if not (gates[2] ^ flow) & 0xFFFF)
    assert _in_one_window(plane, softswitch, [(others[0], 16), (shares, 1)]) == [others[0]] * 16
    for kind in (1, 2):  # a port's and a flow's
        same = next(key for key, gates in zip(others, hashed) if not (gates[kind] ^ address) & 0xFFFF)
        noticed = _in_one_window(plane, softswitch, [*((key, 1) for key in busy), (same, 1)])
        assert noticed == [*busy, same]


def test_other_sources_raise_few_notices_but_a_new_source_at_once(plane: Plane, softswitch: Softswitch) -> None:
    plane.insert([FIRST])
    flood = FiveTuple(ep("192.0.2.66:6666"), FIRST.key.dst)
    rebound = FiveTuple(ep("10.1.0.2:4999"), FIRST.key.dst)
    noticed = _in_one_window(plane, softswitch, [(flood, 40), (rebound, 1)])
    assert noticed.count(flood) == 2 and noticed.count(rebound) == 1
    mismatches = plane.stats()[FIRST.key].source_mismatch
    assert mismatches and mismatches % 41 == 0


def test_one_address_spraying_every_port_leaves_others_their_notices(plane: Plane, softswitch: Softswitch) -> None:
    """500 in a window are an address's share; another's packets raise notices all the same."""
    relay = ep(f"{RELAY_A4}:0").addr
    plane.add_media(MediaRange(relay, 20000, 39999))
    scan = [frame(FiveTuple(Endpoint(b"\xc0\x00\x02\x42", 1000 + n), Endpoint(relay, 20000 + n))) for n in range(3000)]
    honest = FiveTuple(ep("198.51.100.5:7000"), Endpoint(relay, 35000))
    with testrun.pinned(softswitch.pin_dir, "relay_native", softswitch.namespace) as program:
        _next_window()
        began = time.monotonic_ns() // 100_000_000
        for one in scan:
            program.run(one, ingress="ra")
        windows = time.monotonic_ns() // 100_000_000 - began + 1
        for n in range(40):
            program.run(frame(honest, rtp(n)), ingress="ra")
            if n % 10 == 9:
                _next_window()
    notices = plane.poll_learn()
    assert sum(n.key.src.ip == "192.0.2.66" for n in notices) <= 500 * windows
    assert sum(n.key == honest for n in notices) >= 20
