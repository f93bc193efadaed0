"""The table itself: entries in, out and changed, overflow, capacity, media ranges, statistics, notices, adoption."""

from __future__ import annotations

import itertools
import os
import random
import select
import struct
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import MediaRange, RelayEntry
from shunt_softswitch import layout, libbpf, rows
from shunt_softswitch.dataplane import DataPlane, DataPlaneError, sample_packet
from tests.dataplane import lab as lab_module
from tests.dataplane.lab import HOST_A4, HOST_B4, HOST_B6, RELAY_A4, RELAY_B4, RELAY_B6, Lab, entry, ep

pytestmark = pytest.mark.netns

FIRST = entry(f"{HOST_A4}:4000", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", f"{HOST_B4}:6000")


def send(plane: DataPlane, key: FiveTuple, payload: bytes | None = None) -> tuple[int, tuple[Endpoint, Endpoint] | None]:
    """Run a packet of this key; returns the verdict and, when redirected, where it goes."""
    frame = sample_packet(key) if payload is None else bytes(
        Ether(dst="02:00:00:00:00:01") / IP(src=key.src.ip, dst=key.dst.ip) / UDP(sport=key.src.port, dport=key.dst.port) / Raw(payload)
    )
    done = libbpf.test_run(plane.program("relay_native"), frame)
    if done.retval != layout.XDP_REDIRECT:
        return done.retval, None
    out = done.packet
    if out[12:14] == b"\x08\x00":
        sport, dport = struct.unpack_from("!HH", out, 34)
        return done.retval, (Endpoint(out[26:30], sport), Endpoint(out[30:34], dport))
    sport, dport = struct.unpack_from("!HH", out, 54)
    return done.retval, (Endpoint(out[22:38], sport), Endpoint(out[38:54], dport))


def rtp(seq: int, *, ssrc: int = 0x1234, timestamp: int | None = None, kind: int = 0) -> bytes:
    return struct.pack("!BBHII", 0x80, kind, seq & 0xFFFF, (seq * 160 if timestamp is None else timestamp) & 0xFFFFFFFF, ssrc) + bytes(160)


def test_insert_get_modify_delete(plane: DataPlane) -> None:
    key = FIRST.key
    assert plane.get([key]) == [None]
    assert plane.modify([FIRST]) == ["absent"]
    assert plane.delete([key]) == [False]
    assert plane.insert([FIRST]) == [None]
    assert plane.insert([FIRST]) == ["exists"]
    assert send(plane, key) == (layout.XDP_REDIRECT, (FIRST.src, FIRST.dst))
    changed = RelayEntry(key, ep(f"[{RELAY_B6}]:20004"), ep(f"[{HOST_B6}]:6004"), ttl_ms=5, dscp=0)
    assert plane.modify([changed]) == [None]
    assert plane.get([key]) == [changed]
    assert send(plane, key) == (layout.XDP_REDIRECT, (changed.src, changed.dst))
    assert plane.stats([key])[key].packets == 2
    assert plane.delete([key]) == [True]
    assert send(plane, key)[0] == layout.XDP_PASS
    assert (plane.keys(), len(plane)) == ([], 0)


def as_rows(entries: list[RelayEntry]) -> np.ndarray:
    """Entries as insert_rows() takes them."""
    made = np.zeros(len(entries), dtype=rows.ROW)
    for row, one in zip(made, entries):
        for name, where in (("", one.key), ("out_", one)):
            row[f"{name}saddr"], row[f"{name}daddr"] = (int.from_bytes(end.addr, "little") for end in (where.src, where.dst))
            row[f"{name}sport"], row[f"{name}dport"] = where.src.port, where.dst.port
        row["ttl_ms"], row["set_dscp"], row["dscp"] = one.ttl_ms, one.dscp is not None, one.dscp or 0
    return made


def test_many_at_once_are_put_in_as_one_by_one(plane: DataPlane, lab: Lab) -> None:
    rng = random.Random(5)
    many = []
    for n in range(300):
        end = Endpoint(rng.randbytes(4), rng.randrange(65536))
        key = FiveTuple(Endpoint(rng.randbytes(4), rng.randrange(65536)), Endpoint(bytes((10, 9, 9, n % 3)), 9_900 + n * 7))
        many.append(RelayEntry(key, Endpoint(rng.choice((key.dst.addr, rng.randbytes(4))), rng.randrange(65536)), end, rng.randrange(1 << 32), rng.choice((None, 0, 46, 63))))
    many[-1] = RelayEntry(FIRST.key, FIRST.src, FIRST.dst)
    assert plane.insert_rows(as_rows(many)).all()
    with _second(lab, capacity=1000) as other:
        assert other.insert(many) == [None] * len(many)
        assert plane.get([one.key for one in many]) == other.get([one.key for one in many]) == many
        for one in many:
            for name in ("_slots", "_details"):
                found, wanted = (getattr(each, name)[each._slot_of(one.key)].copy() for each in (plane, other))
                assert all(found[part] == wanted[part] for part in found.dtype.names if part not in ("nexthop", "last_jiffies")), (name, one)
    assert send(plane, FIRST.key) == (layout.XDP_REDIRECT, (FIRST.src, FIRST.dst))
    assert len(plane) == 300 and plane.stats([FIRST.key])[FIRST.key].packets == 1
    assert plane.delete([one.key for one in many]) == [True] * 300
    assert plane._live == [0] * len(plane._live) and not plane._hops._destinations


def test_what_does_not_simply_fit_is_left_to_be_put_in_one_by_one(lab: Lab) -> None:
    def at(source: str, port: int) -> RelayEntry:
        return entry(source, f"{RELAY_A4}:{port}", f"{RELAY_B4}:20002", f"{HOST_B4}:6000")

    there, later = at("10.1.0.2:1", 20000), at("10.1.0.2:1", 20000)
    stranger, twin = at("10.1.0.3:1", 20000), at("10.1.0.4:1", 20002)
    first = at("10.1.0.5:1", 20002)
    wrong = as_rows([at("10.1.0.6:1", 20004)])
    wrong["set_dscp"], wrong["dscp"] = 1, 64
    with _second(lab, capacity=300) as plane:
        assert plane.insert([there]) == [None]
        assert plane.insert_rows(as_rows([later, stranger, first, twin])).tolist() == [False, False, True, False]
        assert plane.insert([later, stranger, twin]) == ["exists", None, None]
        assert plane.insert_rows(wrong).tolist() == [False]
        # The port has entries of others that found no slot: it is looked after one by one.
        assert plane.delete([first.key]) == [True]
        assert plane.insert_rows(as_rows([first])).tolist() == [False]
        assert send(plane, twin.key) == (layout.XDP_REDIRECT, (twin.src, twin.dst))
        assert len(plane) == 3
        full = as_rows([at("10.1.0.2:1", 30000 + n) for n in range(298)])
        assert not plane.insert_rows(full).any()
        assert plane.insert_rows(full[:297]).all()
        assert plane.insert([at("10.1.0.2:1", 40000)]) == ["full"]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (RelayEntry(FiveTuple(ep("10.0.0.1:1"), ep("[::1]:2")), FIRST.src, FIRST.dst), "key's addresses"),
        (RelayEntry(FIRST.key, FIRST.src, ep("[::1]:2")), "source and destination"),
        (RelayEntry(FiveTuple(Endpoint(b"abc", 1), Endpoint(b"abc", 2)), FIRST.src, FIRST.dst), "key's addresses"),
        (RelayEntry(FIRST.key, FIRST.src, Endpoint(FIRST.dst.addr, 65536)), "port"),
        (RelayEntry(FIRST.key, FIRST.src, Endpoint(FIRST.dst.addr, -1)), "port"),
        (RelayEntry(FIRST.key, FIRST.src, FIRST.dst, dscp=64), "DSCP 64"),
        (RelayEntry(FIRST.key, FIRST.src, FIRST.dst, ttl_ms=1 << 32), "time to live"),
    ],
)
def test_bad_entries_are_refused_by_name_and_do_no_harm(plane: DataPlane, made: RelayEntry, why: str) -> None:
    outcome = plane.insert([FIRST, made])
    assert outcome[0] is None
    assert outcome[1] is not None and outcome[1].startswith("invalid: ") and why in outcome[1]
    assert plane.keys() == [FIRST.key]


def test_every_source_of_one_port_has_its_own_entry(plane: DataPlane) -> None:
    many = [entry(f"10.1.0.2:{4000 + n}", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", f"{HOST_B4}:{6000 + n}") for n in range(20)]
    assert plane.insert(many) == [None] * 20
    for made in many:
        assert send(plane, made.key) == (layout.XDP_REDIRECT, (made.src, made.dst))
        assert plane.stats([made.key])[made.key].packets == 1
    # The one in the slot leaves: the others go on, and its own packets are strays.
    assert plane.delete([many[0].key]) == [True]
    assert send(plane, many[0].key)[0] == layout.XDP_PASS
    assert send(plane, many[7].key) == (layout.XDP_REDIRECT, (many[7].src, many[7].dst))
    assert plane.reasons()["stray-source"] >= 1
    assert plane.stats([many[7].key])[many[7].key].stray == 1
    assert plane.insert([many[0]]) == [None]
    assert sorted(plane.get([m.key for m in many]), key=lambda e: e.key) == sorted(many, key=lambda e: e.key)
    assert plane.delete([m.key for m in many]) == [True] * 20
    assert send(plane, many[3].key)[0] == layout.XDP_PASS


def test_table_full_is_said_and_room_is_found_again(lab: Lab) -> None:
    with _second(lab, capacity=300) as plane:
        many = [entry(f"{HOST_A4}:4000", f"{RELAY_A4}:{10000 + n}", f"{RELAY_B4}:20002", f"{HOST_B4}:6000") for n in range(301)]
        assert plane.insert(many) == [None] * 300 + ["full"]
        assert send(plane, many[300].key)[0] == layout.XDP_PASS
        assert plane.delete([many[5].key]) == [True]
        assert plane.insert([many[300]]) == [None]
        assert send(plane, many[300].key) == (layout.XDP_REDIRECT, (many[300].src, many[300].dst))


def test_more_addresses_than_slots_can_serve(lab: Lab) -> None:
    """Entries that find no slot work too, and go on working when their ports get slots."""
    with _second(lab, capacity=1500) as plane:
        # 256 chunks of 256 ports: 1200 addresses with one port each cannot all have one, nor 1024 rows.
        many = [
            RelayEntry(FiveTuple(ep(f"{HOST_A4}:4000"), Endpoint(bytes((10, 9, n >> 8, n & 255)), 30000)), FIRST.src, FIRST.dst) for n in range(1200)
        ]
        assert plane.insert(many) == [None] * 1200
        for made in (many[0], many[300], many[1199]):
            assert send(plane, made.key) == (layout.XDP_REDIRECT, (made.src, made.dst))
            assert send(plane, FiveTuple(ep("10.1.0.9:1"), made.key.dst))[0] == layout.XDP_PASS
        assert len(plane.keys()) == 1200
        # Room for slots again; another source of a port whose entry is loose brings that port a slot.
        assert plane.delete([made.key for made in many[:250]]) == [True] * 250
        neighbour = RelayEntry(FiveTuple(ep(f"{HOST_A4}:4001"), many[1199].key.dst), FIRST.src, FIRST.dst)
        assert plane.insert([neighbour]) == [None]
        assert send(plane, many[1199].key) == (layout.XDP_REDIRECT, (many[1199].src, many[1199].dst))
        assert send(plane, neighbour.key)[0] == layout.XDP_REDIRECT
        assert send(plane, many[900].key)[0] == layout.XDP_REDIRECT
        plane.clear()
        assert send(plane, many[1199].key)[0] == layout.XDP_PASS


def test_addresses_that_end_alike(lab: Lab) -> None:
    """One of them has the short way, all are served; when it goes, the next one has it."""
    with _second(lab, capacity=1500) as plane:
        alike = [RelayEntry(FiveTuple(ep(f"{HOST_A4}:4000"), ep(f"10.{n}.2.3:30000")), FIRST.src, FIRST.dst) for n in (8, 9, 10)]
        word = layout.shortcut(alike[0].key.dst.addr)
        shortcuts = memoryview(libbpf.map_view(plane.maps()[".data.places"], layout.PLACES_SIZE)).cast("I")
        ways = []
        for made in alike:
            assert plane.insert([made]) == [None]
        while alike:
            for made in alike:
                assert send(plane, made.key) == (layout.XDP_REDIRECT, (made.src, made.dst))
            ways.append(shortcuts[word])
            gone = alike.pop(0)
            assert plane.delete([gone.key]) == [True]
            assert send(plane, gone.key)[0] == layout.XDP_PASS
        assert 0 not in ways and len(set(ways)) == 3
        assert shortcuts[word] == 0


def test_an_address_without_a_shortcut_meets_other_slots_only(lab: Lab) -> None:
    """The short way takes the shortcuts themselves for its list of chunks then, which leads to a slot in use here."""
    with _second(lab, capacity=1500) as plane:
        relay = ep("10.8.5.0:0").addr  # its shortcut stands where a list has the chunk of ports 1280 to 1535
        made = [RelayEntry(FiveTuple(ep(f"{HOST_A4}:4000"), Endpoint(relay, n << 8 | 7)), FIRST.src, FIRST.dst) for n in range(1, 33)]
        assert plane.insert(made) == [None] * len(made)
        stranger = Endpoint(ep("10.8.6.9:0").addr, 5 << 8 | 7)
        places = memoryview(libbpf.map_view(plane.maps()[".data.places"], layout.PLACES_SIZE)).cast("I")
        assert places[layout.shortcut(stranger.addr)] == 0
        met = places[stranger.port >> 8] // layout.SLOT_SIZE + (stranger.port & 255)
        assert np.frombuffer(libbpf.map_view(plane.maps()[".data.slots"], (met + 1) * layout.SLOT_SIZE), dtype=layout.SLOT)["generation"][met] & 1
        assert send(plane, FiveTuple(ep(f"{HOST_A4}:4000"), stranger))[0] == layout.XDP_PASS
        for entry_there in made:
            assert send(plane, entry_there.key) == (layout.XDP_REDIRECT, (FIRST.src, FIRST.dst))


def _second(lab: Lab, capacity: int) -> DataPlane:
    """Another data plane, without interfaces, beside the module's own."""
    return _Unloaded(lab, capacity)


class _Unloaded:
    """Opens a data plane and unloads it at the end."""

    def __init__(self, lab: Lab, capacity: int) -> None:
        self._lab, self._capacity = lab, capacity

    def __enter__(self) -> DataPlane:
        lab = self._lab
        from tests.dataplane import lab as lab_module

        self._inside = lab_module.inside(lab.ns("relay"))
        self._inside.__enter__()
        lab_module.sh("ip", "neigh", "replace", HOST_B4, "lladdr", lab_module.MAC_B, "dev", "rb", "nud", "permanent")
        self._plane = DataPlane.open(interfaces=[], capacity=self._capacity, pin_dir=str(lab.pins / "second"))
        return self._plane

    def __exit__(self, *_: object) -> None:
        self._plane.unload()
        self._inside.__exit__(None, None, None)


ADDRESSES = [bytes((10, 3, 0, n)) for n in range(2)] + [bytes((10, 4, 0, 1))] + [bytes(15) + bytes((n,)) for n in range(1, 3)]
endpoints = st.builds(Endpoint, st.sampled_from(ADDRESSES[:3]), st.integers(2000, 2002))
endpoints6 = st.builds(Endpoint, st.sampled_from(ADDRESSES[3:]), st.integers(2000, 2002))
keys = st.one_of(st.builds(FiveTuple, endpoints, endpoints), st.builds(FiveTuple, endpoints6, endpoints6))
out4 = st.tuples(st.just(ep(f"{RELAY_B4}:20002")), st.builds(Endpoint, st.just(ep(f"{HOST_B4}:1").addr), st.integers(1, 65535)))
out6 = st.tuples(st.just(ep(f"[{RELAY_B6}]:20002")), st.builds(Endpoint, st.just(ep(f"[{HOST_B6}]:1").addr), st.integers(1, 65535)))
entries = st.builds(
    lambda key, out, ttl, dscp: RelayEntry(key, out[0], out[1], ttl, dscp), keys, st.one_of(out4, out6), st.integers(0, 1 << 31), st.none() | st.integers(0, 63)
)


def test_any_order_of_operations_matches_a_dict(lab: Lab, plane: DataPlane) -> None:
    """Random inserts, changes, deletes, restarts: the table, and the program on every key, agree with a plain dict."""
    holder = {"plane": plane}

    class Machine(RuleBasedStateMachine):
        @initialize()
        def empty(self) -> None:
            holder["plane"].clear()
            self.model: dict[FiveTuple, RelayEntry] = {}

        @rule(batch=st.lists(entries, min_size=1, max_size=8))
        def insert(self, batch: list[RelayEntry]) -> None:
            expected = []
            for made in batch:
                expected.append("exists" if made.key in self.model else None)
                self.model.setdefault(made.key, made)
            assert holder["plane"].insert(batch) == expected

        @rule(made=entries)
        def modify(self, made: RelayEntry) -> None:
            assert holder["plane"].modify([made]) == [None if made.key in self.model else "absent"]
            if made.key in self.model:
                self.model[made.key] = made

        @rule(batch=st.lists(keys, min_size=1, max_size=8, unique=True))
        def delete(self, batch: list[FiveTuple]) -> None:
            assert holder["plane"].delete(batch) == [key in self.model for key in batch]
            for key in batch:
                self.model.pop(key, None)

        @rule(made=entries)
        def packet(self, made: RelayEntry) -> None:
            there = self.model.get(made.key)
            verdict, out = send(holder["plane"], made.key)
            assert out == ((there.src, there.dst) if there else None)
            assert (verdict == layout.XDP_REDIRECT) == (there is not None)

        @rule()
        def restart(self) -> None:
            _restart(lab, holder)

        @invariant()
        def same(self) -> None:
            plane = holder["plane"]
            assert set(plane.keys()) == set(self.model)
            assert len(plane) == len(self.model)
            assert plane.get(list(self.model)) == list(self.model.values())

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=25, stateful_step_count=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    )


def _restart(lab: Lab, holder: dict[str, DataPlane]) -> None:
    """Close the data plane and take it over again, as a new process would; the fixture's object is renewed in place."""
    plane = holder["plane"]
    plane.close()
    again = DataPlane.open(interfaces=["ra", "rb"], capacity=4096, pin_dir=str(lab.pins))
    plane.__dict__.update(again.__dict__)


def test_adoption_keeps_entries_counters_media_and_overflow(lab: Lab, plane: DataPlane) -> None:
    second = entry(f"{HOST_A4}:5000", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", f"{HOST_B4}:6002", dscp=46, ttl_ms=77)
    plane.insert([FIRST, second])
    ranges = [MediaRange(ep(f"{RELAY_A4}:0").addr, 20000, 20999), MediaRange(ep(f"{RELAY_A4}:0").addr, 21000, 21999), MediaRange(ep("[fd01::1]:0").addr, 5, 5)]
    assert [plane.add_media(r) for r in ranges] == [None] * 3
    assert plane.add_media(ranges[0]) == "exists"
    send(plane, FIRST.key)
    holder = {"plane": plane}
    _restart(lab, holder)
    assert plane.get([FIRST.key, second.key]) == [FIRST, second]
    assert set(plane.media()) == set(ranges)
    assert plane.stats([FIRST.key])[FIRST.key].packets == 1
    assert send(plane, second.key) == (layout.XDP_REDIRECT, (second.src, second.dst))
    assert plane.remove_media(ranges[1]) and not plane.remove_media(ranges[1])
    assert plane.delete([second.key, FIRST.key]) == [True, True]


def test_two_processes_cannot_control_one_data_plane(lab: Lab, plane: DataPlane) -> None:
    with pytest.raises(DataPlaneError, match="another process"):
        DataPlane.open(interfaces=["ra"], pin_dir=str(lab.pins))


def test_maps_of_another_layout_make_room(lab: Lab, plane: DataPlane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An upgrade, or the way back, over another layout starts with empty tables, says so, and is attached."""
    here = layout.LAYOUT_VERSION
    with monkeypatch.context() as patch, lab_module.inside(lab.ns("relay")):
        for version in (here + 1, here):
            plane.insert([FIRST])
            plane.close()
            patch.setattr(layout, "LAYOUT_VERSION", version)
            plane.__dict__.update(DataPlane.open(interfaces=["ra", "rb"], capacity=4096, pin_dir=str(lab.pins)).__dict__)
            assert len(plane) == 0 and len(plane.interfaces()) == 2
            assert plane.insert([FIRST]) == [None] and send(plane, FIRST.key)[0] == layout.XDP_REDIRECT
            assert plane.delete([FIRST.key]) == [True]
    said = [record.getMessage() for record in caplog.records]
    assert f"have layout {here}, this program has {here + 1}: they are taken out" in said[0] and len(said) == 2


def test_unknown_interface_and_mode_are_named(lab: Lab) -> None:
    from tests.dataplane import lab as lab_module

    with lab_module.inside(lab.ns("relay")):
        with pytest.raises(DataPlaneError, match="'nosuch0'"):
            DataPlane.open(interfaces=["nosuch0"], capacity=300, pin_dir=str(lab.pins / "third"))
        with pytest.raises(DataPlaneError, match="'fast'"):
            DataPlane.open(interfaces=[], mode="fast", pin_dir=str(lab.pins / "third"))
        DataPlane.open(interfaces=[], capacity=300, pin_dir=str(lab.pins / "third")).unload()
    assert not (lab.pins / "third").exists()


# Statistics


def test_loss_reordering_duplicates_and_wrap(plane: DataPlane) -> None:
    plane.insert([FIRST])
    for seq in (65533, 65534, 0, 1, 65535, 3, 3, 5):  # 65535 late, 3 twice, 2 and 4 lost
        assert send(plane, FIRST.key, rtp(seq, ssrc=7))[0] == layout.XDP_REDIRECT
    stats = plane.stats([FIRST.key])[FIRST.key]
    assert (stats.packets, stats.bytes, stats.ssrc) == (8, 8 * (28 + 172), 7)
    # RFC 3550 A.3: nine expected, eight received (the duplicate counts as received).
    assert (stats.lost, stats.reordered, stats.duplicates) == (1, 1, 1)


def test_new_ssrc_starts_anew_and_keeps_what_was_lost(plane: DataPlane) -> None:
    plane.insert([FIRST])
    for seq in (10, 11, 14):
        send(plane, FIRST.key, rtp(seq, ssrc=1))
    for seq in (40000, 40001, 40003):
        send(plane, FIRST.key, rtp(seq, ssrc=2))
    stats = plane.stats()[FIRST.key]
    assert (stats.lost, stats.ssrc, stats.reordered, stats.duplicates) == (3, 2, 0, 0)


def test_jump_within_one_ssrc_is_a_restart_after_two_in_a_row(plane: DataPlane) -> None:
    plane.insert([FIRST])
    for seq in (10, 11, 30000, 12, 13):  # one wild packet changes nothing
        send(plane, FIRST.key, rtp(seq))
    assert plane.stats()[FIRST.key].lost == 0
    for seq in (30000, 30001, 30002):
        send(plane, FIRST.key, rtp(seq))
    stats = plane.stats()[FIRST.key]
    assert (stats.lost, stats.packets) == (0, 8)


def test_rtcp_and_other_payloads_are_counted_but_are_no_rtp(plane: DataPlane) -> None:
    plane.insert([FIRST])
    send(plane, FIRST.key, struct.pack("!BBHIIII", 0x80, 200, 6, 1, 2, 3, 4))
    send(plane, FIRST.key, b"\x00\x01\x00\x00" + bytes(16))
    send(plane, FIRST.key, b"x")
    stats = plane.stats()[FIRST.key]
    assert (stats.packets, stats.ssrc, stats.lost, stats.jitter_us) == (3, None, None, None)


def test_jitter_of_a_steady_stream_is_small_and_of_a_shaken_one_is_its_own(plane: DataPlane) -> None:
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
        send(plane, steady.key, rtp(n, timestamp=now))
        send(plane, shaken.key, rtp(n, timestamp=now + (40 if n % 2 else 0)))
        delays.append((time.monotonic() - read) * 1e6)
    # What the test itself shook the streams by, when it lost the processor, and a tick of their clocks.
    unsure = max(a + b for a, b in itertools.pairwise(delays)) + 250
    found = plane.stats()
    assert found[steady.key].jitter_us <= unsure
    assert 5000 - unsure <= found[shaken.key].jitter_us <= 5000 + unsure


def test_counters_carry_into_their_high_words(plane: DataPlane) -> None:
    plane.insert([FIRST])
    slot = plane._slot_of(FIRST.key)
    full = 1 << layout.COUNTER_BITS
    plane._slots["others"][slot] = full - 1
    plane._slots["bytes"][slot] = full - 16
    send(plane, FIRST.key, rtp(1))
    send(plane, FIRST.key, rtp(2))
    stats = plane.stats()[FIRST.key]
    assert (stats.packets, stats.bytes) == (full + 1, full - 16 + 400)
    assert (plane._details["packets_high"][slot], plane._details["bytes_high"][slot]) == (1, 1)
    plane.reset_stats([FIRST.key])
    stats = plane.stats()[FIRST.key]
    assert (stats.packets, stats.bytes, stats.ssrc) == (0, 0, None)
    assert send(plane, FIRST.key) == (layout.XDP_REDIRECT, (FIRST.src, FIRST.dst))


def test_idle_times_and_expiry(plane: DataPlane) -> None:
    second = entry(f"{HOST_A4}:5000", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", f"{HOST_B4}:6002", ttl_ms=60)
    never = entry(f"{HOST_A4}:5000", f"{RELAY_A4}:20008", f"{RELAY_B4}:20002", f"{HOST_B4}:6002", ttl_ms=0)
    first = RelayEntry(FIRST.key, FIRST.src, FIRST.dst, ttl_ms=60)
    plane.insert([first, second, never])
    assert plane.expired() == []
    time.sleep(0.1)
    send(plane, first.key)
    idle = plane.idle()
    assert idle[first.key] <= 2 * layout.TICK_MS
    assert 80 <= idle[second.key] <= 400
    assert plane.expired() == [second.key]
    assert plane.stats([second.key])[second.key].idle_ms >= 80


def test_totals_add_up(plane: DataPlane) -> None:
    before = plane.totals()
    plane.insert([FIRST])
    plane.add_media(MediaRange(ep(f"{RELAY_A4}:0").addr, 30000, 30010))
    send(plane, FIRST.key)
    send(plane, FiveTuple(ep("10.1.0.9:9"), FIRST.key.dst))
    send(plane, FiveTuple(ep("10.1.0.9:9"), ep(f"{RELAY_A4}:30005")))
    send(plane, FiveTuple(ep("10.1.0.9:9"), ep(f"{RELAY_A4}:30011")))
    after = plane.totals()
    grown = {name: after[name] - before[name] for name in after}
    assert grown == {
        "rx_packets": 4, "relayed_packets": 1, "relayed_bytes": 40, "missed_packets": 1, "stray_packets": 1, "passed_packets": 1, "refused_packets": 0, "limited_packets": 0, "conference_packets": 0, "too_big_packets": 0, "unrouted_packets": 0,
        "learn_notices": 2, "learn_suppressed": 0, "entries": 1, "capacity": 0,
    }  # fmt: skip


def test_where_strays_pass_so_do_refused_sources(plane: DataPlane) -> None:
    missed = FiveTuple(ep("10.1.0.9:9"), ep(f"{RELAY_A4}:30005"))
    plane.add_media(MediaRange(missed.dst.addr, 30000, 30010))
    plane.hearing.refusals.put(missed.src, 60_000)
    try:
        assert send(plane, missed)[0] == layout.XDP_PASS
        assert plane.trace(missed)["reason"] == "refused-source"
    finally:
        plane.hearing.refusals.clear()


# Notices


def test_a_miss_on_a_media_port_is_told_with_what_the_packet_says(plane: DataPlane) -> None:
    plane.add_media(MediaRange(ep(f"{RELAY_A4}:0").addr, 30000, 30001))
    key = FiveTuple(ep("192.0.2.5:7000"), ep(f"{RELAY_A4}:30001"))
    send(plane, key, rtp(500, ssrc=0xCAFE, kind=0x80 | 8))
    send(plane, FiveTuple(ep("192.0.2.5:7000"), ep(f"{RELAY_A4}:30002")))
    ready, _, _ = select.select([plane.learn_fd], [], [], 1)
    assert ready
    notices = plane.poll_learn()
    assert [(n.key, n.rtp_version, n.payload_type, n.seq, n.ssrc) for n in notices] == [(key, 2, 8, 500, 0xCAFE)]
    send(plane, key, b"short")
    assert [(n.rtp_version, n.payload_type, n.seq, n.ssrc) for n in plane.poll_learn()] == [(0, 0, 0, 0)]


def _next_window() -> None:
    """Wait for the start of a notice window."""
    time.sleep(0.1 - time.monotonic() % 0.1 + 0.001)


def _in_one_window(plane: DataPlane, packets: list[tuple[FiveTuple, int]]) -> list[FiveTuple]:
    """The 5-tuples told of so many packets of each when all were sent within one notice window; a busy machine may need several goes."""
    frames = [(sample_packet(key), count) for key, count in packets]
    for _ in range(50):
        _next_window()
        plane.poll_learn()
        window = time.monotonic_ns() // 100_000_000
        for frame, count in frames:
            libbpf.test_run(plane.program("relay_native"), frame, repeat=count)
        if time.monotonic_ns() // 100_000_000 == window:
            return [notice.key for notice in plane.poll_learn()]
    raise AssertionError(f"{packets} never went out within one window of 100 ms")


def test_notices_are_bounded_for_one_flow_and_come_again(plane: DataPlane) -> None:
    plane.add_media(MediaRange(ep(f"{RELAY_A4}:0").addr, 30000, 30100))
    key = FiveTuple(ep("192.0.2.5:7000"), ep(f"{RELAY_A4}:30001"))
    for _ in range(3):
        before = plane.totals()
        assert _in_one_window(plane, [(key, 60)]) == [key] * 16
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


def test_a_busy_address_uses_up_no_flows_notices(plane: DataPlane) -> None:
    """As an SBC's is that has many calls: the flow of another whose hash is the same would be heard of in the first moments of a window only."""
    relay = ep(f"{RELAY_A4}:0").addr
    plane.add_media(MediaRange(relay, 20000, 39999))
    busy = [FiveTuple(Endpoint(b"\xc0\x00\x02\x42", 1000 + n), Endpoint(relay, 20000 + 2 * n)) for n in range(80)]
    others = [FiveTuple(Endpoint(bytes((198, 51, 100, n % 199)), 5000 + n % 60_000), Endpoint(relay, 21_000 + n % 18_000)) for n in range(150_000)]
    hashed = [_gates(key) for key in others]
    address = _gates(busy[0])[0]
    # The hash is what this test takes it for: two flows with one gate share its notices.
    flow = hashed[0][2]
    shares = next(key for key, gates in zip(others[1:], hashed[1:]) if not (gates[2] ^ flow) & 0xFFFF)
    assert _in_one_window(plane, [(others[0], 16), (shares, 1)]) == [others[0]] * 16
    for kind in (1, 2):  # a port's and a flow's
        same = next(key for key, gates in zip(others, hashed) if not (gates[kind] ^ address) & 0xFFFF)
        told = _in_one_window(plane, [*((key, 1) for key in busy), (same, 1)])
        assert told == [*busy, same]


def test_strays_are_told_sparingly_but_a_new_source_at_once(plane: DataPlane) -> None:
    plane.insert([FIRST])
    flood = FiveTuple(ep("192.0.2.66:6666"), FIRST.key.dst)
    rebound = FiveTuple(ep("10.1.0.2:4999"), FIRST.key.dst)
    told = _in_one_window(plane, [(flood, 40), (rebound, 1)])
    assert told.count(flood) == 2 and told.count(rebound) == 1
    stray = plane.stats()[FIRST.key].stray
    assert stray >= 41 and stray % 41 == 0


def test_one_address_spraying_every_port_leaves_others_their_notices(plane: DataPlane) -> None:
    plane.add_media(MediaRange(ep(f"{RELAY_A4}:0").addr, 20000, 39999))
    _next_window()
    for n in range(3000):
        send(plane, FiveTuple(Endpoint(b"\xc0\x00\x02\x42", 1000 + n % 60000), Endpoint(ep(f"{RELAY_A4}:0").addr, 20000 + n)))
    honest = FiveTuple(ep("198.51.100.5:7000"), ep(f"{RELAY_A4}:35000"))
    for n in range(40):
        send(plane, honest, rtp(n))
        if n % 10 == 9:
            _next_window()
    notices = plane.poll_learn()
    sprayed = sum(n.key.src.ip == "192.0.2.66" for n in notices)
    assert sprayed <= 1500
    assert sum(n.key == honest for n in notices) >= 20


def test_event_descriptors_are_closed_with_the_data_plane(lab: Lab, plane: DataPlane) -> None:
    holder = {"plane": plane}
    _restart(lab, holder)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        _restart(lab, holder)
    assert len(os.listdir("/proc/self/fd")) == before
