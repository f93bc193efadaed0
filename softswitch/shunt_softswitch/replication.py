"""Conferences in the kernel: streams, copies and the replication engine's trees, made into lists of copies that the programs walk.

bpf/conference.h says what the programs make of the maps. Nothing that a program may be reading is ever written over: a
change writes new records, turns every stream over to its new list with one store, and gives the old records
back after a grace period of the kernel. So no packet is lost to a change, or copied twice. Each update succeeds whole or
changes nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import StreamStats
from shunt_softswitch import layout, libbpf
from shunt_softswitch.buddy import Buddy
from shunt_softswitch.entries import BfrtError, Code
from shunt_softswitch.figures import figures
from shunt_softswitch.nexthop import Moved, NextHops, NextHopsExhausted
from shunt_softswitch.pre import PORTS, Engine, Members, Node, Undo

log = logging.getLogger(__name__)

OBJECT = Path(__file__).with_name("obj") / "replicate.o"
MAPS = (
    "c_layout", "c_index", "c_streams", "c_copies", "c_wides", "c_lists", "c_nodes", "c_trees", "c_prunes", "c_groups", "c_outputs", "c_devices", "c_agent", "c_agent_counts",
    "c_layers", "c_tracks", "c_receivers", "c_receptions",
)  # fmt: skip
_MAGIC = 0x53484E44
# Changes with every change of conference.h that an adopting process could trip over.
_VERSION = 4
_MARK = struct.Struct("<IIIIII")

# The most copies of one packet. A driver's queue has to take them in one go.
MAX_COPIES = 512
DEVICES = 4
OUTPUTS = 4096
_BARRIER = 0  # the row of c_outputs that no list names
_NO_PORT = 0xFFFFFFFF
_RETIRED = 4096  # records that wait for a grace period before one is asked for

_STREAM_SIZE = 128
_STREAM_KEY = struct.Struct("!16s16sHH4s")
_STREAM_TURN, _STREAM_COUNTERS, _STREAM_ACTION = 48, 56, 84
_STREAM_STATS = struct.Struct("<QQQI")
_ACTION = struct.Struct("<IHHHHI")
_TO_AGENT, _TRACKED, _ONE_TREE = 8, 0x1000, 0x2000
_RECEPTION = np.dtype([("slot", layout.SLOT), ("detail", layout.DETAIL)])
_RECEPTION_SIZE = _RECEPTION.itemsize
_COPY_SIZE = 64
_COPY = struct.Struct("!4s4sHH")
_COPY_NEXTHOP, _COPY_FLAGS, _COPY_VALID, _COPY_COUNTERS, _COPY_NAME, _COPY_PRIOR = 12, 14, 15, 16, 40, 48
_COPY_STATS = struct.Struct("<QQQ")
_COPY_KEY = struct.Struct("<IHH")
_OUT6, _RENUMBERED = 1, 2
_WIDE_SIZE = 40
_RENUMBERING = struct.Struct("<IBBxx")
_RENUMBERING_AT = 32
_ELEMENT = struct.Struct("<I")
_CHANGES = struct.Struct("!HH")
_HEAD = struct.Struct("<HHHH")
_DEVICE = struct.Struct("<II")
_NODE = struct.Struct("<IIHHHBB")
_AGENT_COPY = struct.Struct("<II")
_AGENT_COUNTS = struct.Struct("<QQQ")
_LAYER_KEY = struct.Struct("<I")
_LAYER = struct.Struct("<BxH4xQQ")
_ZERO4, _ZERO12 = bytes(4), bytes(12)
MAX_NUMBER = (1 << 24) - 1
TRACKS = 1 << 16  # streams, and receivers, whose numbers can be rewritten
TARGETS = 4
NODES = 4  # for each rewrite: a receiver has one in the tree of each quality that it gets
_WINDOW = 16
# What a stream that is new starts with: of its numbers given out lately, some that do not belong there (slr_init).
_TRACK = (bytes(16) + struct.pack(f"<{_WINDOW}H", *range(1, _WINDOW + 1))) * TARGETS + bytes(24)
_RECEIVER_SIZE = 24


class StreamKey(NamedTuple):
    """A sender's stream: where it comes from, where to, and its SSRC."""

    flow: FiveTuple
    ssrc: int


class Action(NamedTuple):
    """The parameters of `replicate`."""

    mgid: int
    l1_xid: int
    rid: int
    l2_xid: int
    number: int
    to_agent: bool = False
    trees: int = 0
    layers: int = 0
    extension: int = 0
    descriptor: int = 0
    track: int = 0

    @property
    def mgids(self) -> range:
        """The trees that its packets may go into, lowest layer first."""
        return range(self.mgid, self.mgid + max(self.trees, 1))


class Layer(NamedTuple):
    """The parameters of `set_layer`."""

    layer: int
    switches: int = 0


class Rewrite(NamedTuple):
    """The parameters of `copy_to`: nexthop is kept and not used."""

    src: Endpoint
    dst: Endpoint
    nexthop: int = 0
    target: int = 0
    splice: int = 0
    cadence: int = 0


class Counted(NamedTuple):
    """What an entry has counted. lost: packets of a stream without any copy, copies without a next hop or too big for it."""

    packets: int
    bytes: int
    lost: int
    idle_ticks: int | None = None  # since the last packet, in the kernel's ticks


@dataclass(frozen=True, slots=True)
class _List:
    """A list of copies; or, of a stream with several trees, the words that say where each tree's is (parts)."""

    at: int = 0
    words: int = 0
    outputs: int = 0
    copies: frozenset[int] = frozenset()  # RIDs in it
    parts: tuple[_List, ...] = ()


_NO_COPIES = _List()


@dataclass(slots=True)
class _Stream:
    index: int
    action: Action
    list: _List = _NO_COPIES


@dataclass(slots=True)
class _Copy:
    index: int
    rewrite: Rewrite
    row: int
    ifindex: int  # that it leaves by; 0: no route
    former: list[int] = field(default_factory=list)  # indexes whose counters still have to be added


class Full(BfrtError):
    """Something has no room for an update."""

    def __init__(self, what: str) -> None:
        super().__init__(Code.NO_SPACE, what)


def sizes(copies: int) -> dict[str, int]:
    """The rows of each map for this many rewrites: as many streams, NODES nodes and 16 words of lists for each, numbers rewritten for up to TRACKS."""
    words, tracks = 1 << max(16 * copies - 1, 63).bit_length(), min(copies, TRACKS) + 1
    return {
        "c_index": copies, "c_streams": copies, "c_receptions": copies, "c_copies": copies + 1, "c_wides": copies + 1, "c_lists": words, "c_nodes": min(NODES * copies, 1 << 24),
        "c_layers": 8 * min(max(copies, 8), 1 << 16), "c_tracks": tracks, "c_receivers": tracks,
    }  # fmt: skip


class Replication:
    """The conference part of the data plane. Synchronous, one thread; made with open()."""

    def __init__(self, loaded: libbpf.LoadedObject, hops: NextHops, clock: Callable[[], int]) -> None:
        """Use open(). clock: the kernel's tick."""
        self._loaded = loaded
        self._hops = hops
        self._tick = clock
        maps = loaded.maps
        _, _, streams, copies, words, tracks = _MARK.unpack_from(libbpf.map_view(maps["c_layout"], _MARK.size))
        self.capacity = copies - 1
        self.stream_capacity = streams
        self._stream_mm = libbpf.map_view(maps["c_streams"], streams * _STREAM_SIZE)
        self._stream_words = memoryview(self._stream_mm).cast("I")
        self._stream_turns = memoryview(self._stream_mm).cast("Q")
        self._reception_mm = libbpf.map_view(maps["c_receptions"], streams * _RECEPTION_SIZE)
        self._receptions = np.frombuffer(self._reception_mm, dtype=_RECEPTION, count=streams)
        self._copy_mm = libbpf.map_view(maps["c_copies"], copies * _COPY_SIZE)
        self._copy_shorts = memoryview(self._copy_mm).cast("H")
        self._wide_mm = libbpf.map_view(maps["c_wides"], copies * _WIDE_SIZE)
        self._list_mm = libbpf.map_view(maps["c_lists"], words * 8)
        self.track_capacity = tracks - 1
        self._track_mm = libbpf.map_view(maps["c_tracks"], tracks * len(_TRACK))
        self._receiver_mm = libbpf.map_view(maps["c_receivers"], tracks * _RECEIVER_SIZE)
        self._ring = libbpf.Ring(maps["c_agent"])
        self._words = words
        self._devices: set[int] = set()
        self._spare = 0
        self._start_empty()

    def _start_empty(self) -> None:
        """What Python keeps of tables without entries."""
        self.engine = Engine(max_nodes=sizes(self.capacity)["c_nodes"])
        self._streams: dict[StreamKey, _Stream] = {}
        self._copies: dict[tuple[int, int], _Copy] = {}
        self._layers: dict[tuple[int, int], Layer] = {}
        self._tracking: Counter[int] = Counter()  # streams by track
        self._splicing: Counter[int] = Counter()  # rewrites by splice
        self._by_tree: dict[int, dict[StreamKey, None]] = {}
        self._by_number: dict[int, dict[StreamKey, None]] = {}
        self._keys: dict[int, StreamKey] = {}  # by index
        self._free_streams = list(range(self.stream_capacity - 1, -1, -1))
        self._free_copies = list(range(self.capacity, 0, -1))
        self._lists = Buddy(self._words)
        self._outputs: dict[tuple[tuple[int, int], ...], int] = {}
        self._output_of: dict[int, tuple[tuple[int, int], ...]] = {}
        self._output_users: Counter[int] = Counter()
        self._free_outputs = list(range(OUTPUTS - 1, 0, -1))
        self._held: Counter[tuple[bytes, bytes]] = Counter()
        self._retired: list[Callable[[], None]] = []

    # Opening and closing

    @classmethod
    def open(
        cls, *, pin_dir: Path, copies: int, hops: NextHops, clock: Callable[[], int], relay_maps: dict[str, int], constants: dict[str, bytes], limited: bool
    ) -> Replication:
        """Load the programs over the relay's maps, with room for `copies` rewrites; or on the maps that are pinned in pin_dir. limited: where streams have a limit.

        To be followed by adopt(). Maps of another layout are taken out. Raises BpfError.
        """
        pinned: dict[str, int] = {}
        try:
            fresh = not (pin_dir / "c_layout").exists()
            if not fresh:
                pinned["c_layout"] = libbpf.get(pin_dir / "c_layout")
                magic, version, *_ = _MARK.unpack_from(libbpf.map_view(pinned["c_layout"], _MARK.size))
                fresh = (magic, version) != (_MAGIC, _VERSION)
                if fresh:
                    log.warning("the conference maps pinned in %s have layout %d, this program has %d: they are taken out, and conferences pause until the agent has written them again", pin_dir, version, _VERSION)
                    os.close(pinned.pop("c_layout"))
            if fresh:
                cls.unpin(pin_dir)
            else:
                pinned |= {name: libbpf.get(pin_dir / name) for name in MAPS if name not in pinned}
            wanted = sizes(copies)
            others = ("replicate_native", "replicate_generic") if limited else ("replicate_limited_native", "replicate_limited_generic")
            loaded = libbpf.load_object(
                OBJECT, sizes=wanted, reuse={**relay_maps, **pinned}, constants=constants, symbols=libbpf.constant_offsets(OBJECT), without=others
            )
            if fresh:
                mark = libbpf.map_view(loaded.maps["c_layout"], _MARK.size)
                _MARK.pack_into(mark, 0, _MAGIC, _VERSION, wanted["c_streams"], wanted["c_copies"], wanted["c_lists"], wanted["c_tracks"])
                for name in reversed(MAPS):
                    libbpf.pin(loaded.maps[name], pin_dir / name)
        finally:
            for fd in pinned.values():
                os.close(fd)
        made = cls(loaded, hops, clock)
        if made.capacity != copies:
            log.warning("the conference maps pinned in %s have room for %d rewrites; %d takes effect after they are unloaded", pin_dir, made.capacity, copies)
        return made

    def close(self) -> None:
        """End this process's part; everything goes on in the kernel."""
        self._ring.close()
        for view in (self._stream_words, self._stream_turns, self._copy_shorts):
            view.release()
        del self._receptions
        if self._spare:
            os.close(self._spare)
        self._loaded.close()

    @staticmethod
    def unpin(pin_dir: Path) -> None:
        """Forget the maps for good, once no interface has the programs any more."""
        for name in MAPS:
            (pin_dir / name).unlink(missing_ok=True)

    def program(self, generic: bool, limited: bool) -> int:
        """The program that takes the relay's place on an interface."""
        return self._loaded.programs[f"replicate_{'limited_' if limited else ''}{'generic' if generic else 'native'}"]

    def maps(self) -> dict[str, int]:
        """File descriptors of the maps by name; they stay this object's."""
        return {name: self._loaded.maps[name] for name in MAPS}

    @contextlib.contextmanager
    def other_program(self, copies: int, program: int) -> Iterator[None]:
        """For measurements: copies of packets that have this many run another egress program for a while."""
        rows = {row: composition for row, composition in self._output_of.items() if sum(count for _, count in composition) == copies}
        for row, composition in rows.items():
            self._fill_output(row, composition, program)
        try:
            yield
        finally:
            for row, composition in rows.items():
                self._fill_output(row, composition)

    # Streams

    def insert_stream(self, key: StreamKey, action: Action) -> None:
        """Replicate a stream from now on. Raises BfrtError."""
        self._check_stream(key, action)
        if key in self._streams:
            raise BfrtError(Code.EXISTS, "The stream is replicated already")
        if not self._free_streams:
            self.settle()
        if not self._free_streams:
            raise Full(f"There is room for {self.stream_capacity} streams")
        stream = _Stream(self._free_streams.pop(), action)
        self._link(key, action)
        try:
            fresh = self._write_list(key, stream)
        except BfrtError:
            self._unlink(key, action)
            self._free_streams.append(stream.index)
            raise
        at = stream.index * _STREAM_SIZE
        self._stream_mm[at : at + _STREAM_SIZE] = bytes(_STREAM_SIZE)
        self._forget_reception(stream.index)
        raw = _raw_key(key)
        self._stream_mm[at : at + len(raw)] = raw
        self._track(action.track)
        self._put_action(stream.index, action)
        self._stream_words[at // 4 + 20] = self._tick()
        self._turn(stream, fresh)
        problem = libbpf.update(self._loaded.maps["c_index"], raw, struct.pack("<I", stream.index))
        if problem:
            self._unlink(key, action)
            self._untrack(action.track)
            self._retire(lambda made=stream.list: self._free_list(made))
            self._retire(lambda: self._free_streams.append(stream.index))
            raise Full(f"{os.strerror(problem)}: no room for one more stream")
        self._streams[key] = stream
        self._keys[stream.index] = key

    def modify_stream(self, key: StreamKey, action: Action) -> None:
        """Change how a stream is replicated; its counters go on. Raises BfrtError."""
        self._check_stream(key, action)
        stream = self._stream(key)
        before = stream.action
        self._unlink(key, before)
        self._link(key, action)
        stream.action = action
        try:
            fresh = self._write_list(key, stream)
        except BfrtError:
            self._unlink(key, action)
            self._link(key, before)
            stream.action = before
            raise
        self._track(action.track)
        self._put_action(stream.index, action)
        self._turn(stream, fresh)
        self._untrack(before.track)

    def delete_stream(self, key: StreamKey) -> None:
        """Replicate a stream no longer. Raises BfrtError."""
        stream = self._stream(key)
        libbpf.delete(self._loaded.maps["c_index"], _raw_key(key))
        self._unlink(key, stream.action)
        self._untrack(stream.action.track)
        del self._streams[key], self._keys[stream.index]
        self._retire(lambda: self._free_list(stream.list))

        def free() -> None:
            at = stream.index * _STREAM_SIZE
            self._stream_mm[at : at + _STREAM_SIZE] = bytes(_STREAM_SIZE)
            self._free_streams.append(stream.index)

        self._retire(free)

    def stream(self, key: StreamKey) -> Action | None:
        """How a stream is replicated; None when it is not."""
        stream = self._streams.get(key)
        return stream.action if stream is not None else None

    def streams(self) -> Iterator[StreamKey]:
        """All streams."""
        return iter(list(self._streams))

    def count_stream(self, key: StreamKey) -> Counted:
        """What has come of a stream. Raises BfrtError."""
        packets, size, unsent, tick = _STREAM_STATS.unpack_from(self._stream_mm, self._stream(key).index * _STREAM_SIZE + _STREAM_COUNTERS)
        return Counted(packets, size, unsent, (self._tick() - tick) & 0xFFFFFFFF)

    def reset_stream(self, key: StreamKey) -> None:
        """Set a stream's counters to 0. Raises BfrtError."""
        at = self._stream(key).index * _STREAM_SIZE + _STREAM_COUNTERS
        self._stream_mm[at : at + 24] = bytes(24)
        self._forget_reception(self._stream(key).index)

    def reception(self, key: StreamKey) -> StreamStats:
        """How a stream has been received, counted from its insertion or the last reset. Raises BfrtError."""
        one = self._receptions[self._stream(key).index : self._stream(key).index + 1].copy()
        return figures(one["slot"], one["detail"], one["detail"]["stray"], self._tick())[0]

    def _forget_reception(self, index: int) -> None:
        self._receptions[index] = np.zeros((), dtype=_RECEPTION)
        self._receptions["slot"]["last_jiffies"][index] = self._tick() & 0xFFFFFFFF

    def _stream(self, key: StreamKey) -> _Stream:
        stream = self._streams.get(key)
        if stream is None:
            raise BfrtError(Code.NOT_FOUND, "The stream is not replicated")
        return stream

    def _check_stream(self, key: StreamKey, action: Action) -> None:
        src, dst = key.flow
        if len(src.addr) != len(dst.addr) or len(src.addr) not in (4, 16):
            raise BfrtError(Code.INVALID, "The stream's addresses are not both IPv4 or both IPv6")
        if not 0 <= action.number <= MAX_NUMBER:
            raise BfrtError(Code.INVALID, f"The number {action.number} is not in 0..{MAX_NUMBER}")
        if action.descriptor > 4:
            raise BfrtError(Code.INVALID, f"The descriptor {action.descriptor} is none of 0..4")
        if action.mgids.stop > 1 << 16:
            raise BfrtError(Code.INVALID, f"There is no tree {action.mgids.stop - 1}")
        if action.track > self.track_capacity:
            raise Full(f"There is room for {self.track_capacity} streams with rewritten numbers, and the track is {action.track}")

    def _track(self, track: int) -> None:
        """One more stream keeps its numbers here; the first of them begins anew."""
        if track:
            if not self._tracking[track]:
                self._track_mm[track * len(_TRACK) : (track + 1) * len(_TRACK)] = _TRACK
            self._tracking[track] += 1

    def _untrack(self, track: int) -> None:
        if track:
            self._tracking[track] -= 1

    def _link(self, key: StreamKey, action: Action) -> None:
        for mgid in action.mgids:
            self._by_tree.setdefault(mgid, {})[key] = None
        self._by_number.setdefault(action.number, {})[key] = None

    def _unlink(self, key: StreamKey, action: Action) -> None:
        for table, name in (*((self._by_tree, mgid) for mgid in action.mgids), (self._by_number, action.number)):
            del table[name][key]
            if not table[name]:
                del table[name]

    def _put_action(self, index: int, action: Action) -> None:
        at = index * _STREAM_SIZE + _STREAM_ACTION
        # The program may still be reading the row of before, which is not 0 where it is read.
        track = action.track or _ACTION.unpack_from(self._stream_mm, at)[-1]
        _ACTION.pack_into(self._stream_mm, at, action.number, action.mgid, action.rid, action.l1_xid, action.l2_xid, track)

    # Copies

    def insert_copy(self, number: int, rid: int, rewrite: Rewrite) -> None:
        """Say what the copies with this RID of the streams with this number become. Raises BfrtError."""
        if (number, rid) in self._copies:
            raise BfrtError(Code.EXISTS, "There is a rewrite for these copies")
        copy = self._make_copy(number, rid, rewrite)
        self._copies[number, rid] = copy
        try:
            fresh = self._write_lists(self._receiving(number, rid))
        except BfrtError:
            del self._copies[number, rid]
            self._drop_copy(copy)
            raise
        self._splice(rewrite)
        self._copy_mm[copy.index * _COPY_SIZE + _COPY_VALID] = 1
        self._turn_all(fresh)

    def modify_copy(self, number: int, rid: int, rewrite: Rewrite) -> None:
        """Change what copies become; their counters go on. Raises BfrtError."""
        old = self._copy(number, rid)
        new = self._make_copy(number, rid, rewrite)
        new.former = [*old.former, old.index]
        self._copies[number, rid] = new
        try:
            fresh = self._write_lists(self._receiving(number, rid))
        except BfrtError:
            self._copies[number, rid] = old
            self._drop_copy(new)
            raise
        self._splice(rewrite)
        self._copy_mm[new.index * _COPY_SIZE + _COPY_VALID] = 1
        self._turn_all(fresh)
        self._unsplice(old.rewrite)
        self._copy_mm[old.index * _COPY_SIZE + _COPY_VALID] = 0

        def fold() -> None:
            at = new.index * _COPY_SIZE + _COPY_PRIOR
            packets, size, _ = self._copy_counters(old.index)
            have = struct.unpack_from("<QQ", self._copy_mm, at)
            struct.pack_into("<QQ", self._copy_mm, at, have[0] + packets, have[1] + size)
            new.former = [index for index in new.former if index != old.index]
            current = self._copies.get((number, rid))
            if current is not None and current is not new:
                current.former = [index for index in current.former if index != old.index]
            self._drop_copy(old)

        self._retire(fold)

    def delete_copy(self, number: int, rid: int) -> None:
        """These copies are dropped from now on. Raises BfrtError."""
        copy = self._copy(number, rid)
        receiving = self._receiving(number, rid)
        del self._copies[number, rid]
        try:
            fresh = self._write_lists(receiving)
        except BfrtError:
            self._copies[number, rid] = copy
            raise
        self._turn_all(fresh)
        self._unsplice(copy.rewrite)
        self._copy_mm[copy.index * _COPY_SIZE + _COPY_VALID] = 0
        self._retire(lambda: self._drop_copy(copy))

    def copy(self, number: int, rid: int) -> Rewrite | None:
        """What copies become; None when they are dropped."""
        copy = self._copies.get((number, rid))
        return copy.rewrite if copy is not None else None

    def copies(self) -> Iterator[tuple[int, int]]:
        """Number and RID of all rewrites."""
        return iter(list(self._copies))

    def count_copy(self, number: int, rid: int) -> Counted:
        """What has been sent by a rewrite. Raises BfrtError."""
        copy = self._copy(number, rid)
        sums = [0, 0, 0]
        for index in (copy.index, *copy.former):
            for n, value in enumerate(self._copy_counters(index)):
                sums[n] += value
        return Counted(*sums)

    def reset_copy(self, number: int, rid: int) -> None:
        """Set the counters of a rewrite to 0. Raises BfrtError."""
        copy = self._copy(number, rid)
        for index in (copy.index, *copy.former):
            at = index * _COPY_SIZE
            self._copy_mm[at + _COPY_COUNTERS : at + _COPY_COUNTERS + 24] = bytes(24)
            self._copy_mm[at + _COPY_PRIOR : at + _COPY_PRIOR + 16] = bytes(16)

    def _copy_counters(self, index: int) -> tuple[int, int, int]:
        at = index * _COPY_SIZE
        packets, size, dropped = _COPY_STATS.unpack_from(self._copy_mm, at + _COPY_COUNTERS)
        prior_packets, prior_size = struct.unpack_from("<QQ", self._copy_mm, at + _COPY_PRIOR)
        return packets + prior_packets, size + prior_size, dropped

    def _copy(self, number: int, rid: int) -> _Copy:
        copy = self._copies.get((number, rid))
        if copy is None:
            raise BfrtError(Code.NOT_FOUND, "There is no rewrite for these copies")
        return copy

    def _receiving(self, number: int, rid: int) -> list[tuple[StreamKey, _Stream]]:
        """The streams of a number whose packets have a copy with this RID."""
        found = []
        for key in self._by_number.get(number, ()):
            stream = self._streams[key]
            if rid in stream.list.copies or any(rid in self.engine.copies(mgid, *stream.action[1:4]) for mgid in stream.action.mgids):
                found.append((key, stream))
        return found

    def _make_copy(self, number: int, rid: int, rewrite: Rewrite) -> _Copy:
        src, dst = rewrite.src, rewrite.dst
        if len(src.addr) != len(dst.addr) or len(src.addr) not in (4, 16):
            raise BfrtError(Code.INVALID, "Source and destination of the copy are not both IPv4 or both IPv6")
        if not 0 <= number <= MAX_NUMBER:
            raise BfrtError(Code.INVALID, f"The number {number} is not in 0..{MAX_NUMBER}")
        if rewrite.splice > self.track_capacity:
            raise Full(f"There is room for {self.track_capacity} receivers with rewritten numbers, and the splice is {rewrite.splice}")
        if rewrite.target >= TARGETS:
            raise BfrtError(Code.INVALID, f"The target {rewrite.target} is not in 0..{TARGETS - 1}")
        if not self._free_copies:
            self.settle()
        if not self._free_copies:
            raise Full(f"There is room for {self.capacity} rewrites")
        try:
            row = self._hops.acquire(dst.addr, src.addr)
        except NextHopsExhausted as error:
            raise Full(str(error)) from error
        self._held[dst.addr, src.addr] += 1
        copy = _Copy(self._free_copies.pop(), rewrite, row, self._ifindex(row))
        at = copy.index * _COPY_SIZE
        six = len(dst.addr) == 16
        self._copy_mm[at : at + _COPY_SIZE] = bytes(_COPY_SIZE)
        _COPY.pack_into(self._copy_mm, at, _ZERO4 if six else src.addr, _ZERO4 if six else dst.addr, src.port, dst.port)
        self._copy_shorts[(at + _COPY_NEXTHOP) // 2] = row
        self._copy_mm[at + _COPY_FLAGS] = (_OUT6 if six else 0) | (_RENUMBERED if rewrite.splice else 0)
        _RENUMBERING.pack_into(self._wide_mm, copy.index * _WIDE_SIZE + _RENUMBERING_AT, rewrite.splice, rewrite.target, rewrite.cadence)
        _COPY_KEY.pack_into(self._copy_mm, at + _COPY_NAME, number, rid, rewrite.nexthop)
        if six:
            self._wide_mm[copy.index * _WIDE_SIZE : copy.index * _WIDE_SIZE + 32] = src.addr + dst.addr
        return copy

    def _splice(self, rewrite: Rewrite) -> None:
        """One more rewrite numbers by this splice; the first of them begins anew, with its target in force."""
        if rewrite.splice:
            if not self._splicing[rewrite.splice]:
                self._receiver_mm[rewrite.splice * _RECEIVER_SIZE : (rewrite.splice + 1) * _RECEIVER_SIZE] = struct.pack("<H22x", rewrite.target)
            self._splicing[rewrite.splice] += 1

    def _unsplice(self, rewrite: Rewrite) -> None:
        if rewrite.splice:
            self._splicing[rewrite.splice] -= 1

    def _drop_copy(self, copy: _Copy) -> None:
        self._copy_mm[copy.index * _COPY_SIZE + _COPY_VALID] = 0
        destination = copy.rewrite.dst.addr, copy.rewrite.src.addr
        self._hops.release(*destination)
        self._held[destination] -= 1
        if not self._held[destination]:
            del self._held[destination]
        self._free_copies.append(copy.index)

    def _ifindex(self, row: int) -> int:
        """The interface that frames by this row are handed to: below a VLAN's."""
        ifindex, _, _ = self._hops.describe(row)
        link = self._hops.link(ifindex)
        return link.parent if link is not None and link.vlan else ifindex

    # Layers

    def put_layer(self, layers: int, template: int, layer: Layer, *, reset: bool = False) -> None:
        """Say which layer a template is, from the next packet on; the counters of one that is there go on unless `reset`. Raises Full."""
        counted = (0, 0) if reset else self.count_layer(layers, template)[:2]
        problem = libbpf.update(self._loaded.maps["c_layers"], _LAYER_KEY.pack(layers << 8 | template), _LAYER.pack(*layer, *counted))
        if problem:
            raise Full(f"{os.strerror(problem)}: no room for one more layer, there are {len(self._layers)}")
        self._layers[layers, template] = layer

    def delete_layer(self, layers: int, template: int) -> None:
        """Packets of this template are everybody's from now on."""
        libbpf.delete(self._loaded.maps["c_layers"], _LAYER_KEY.pack(layers << 8 | template))
        del self._layers[layers, template]

    def count_layer(self, layers: int, template: int) -> Counted:
        """What has come of a template; nothing where there is no row."""
        room = ctypes.create_string_buffer(_LAYER.size)
        found = libbpf.lookup(self._loaded.maps["c_layers"], _LAYER_KEY.pack(layers << 8 | template), room)
        return Counted(*_LAYER.unpack(room.raw)[2:], 0) if found else Counted(0, 0, 0)

    def layer(self, layers: int, template: int) -> Layer | None:
        """Which layer a template is; None where nothing is said."""
        return self._layers.get((layers, template))

    def layers(self) -> Iterator[tuple[int, int]]:
        """`layers` and template of all rows."""
        return iter(list(self._layers))

    # The replication engine

    def change_engine(self, trees: Iterable[int], change: Callable[[], Undo]) -> None:
        """Change the engine's tables; `trees`: the trees whose copies that may change. Raises BfrtError, and then nothing has changed."""
        undo = change()
        streams = {key: self._streams[key] for mgid in trees for key in self._by_tree.get(mgid, ())}
        try:
            fresh = self._write_lists(streams.items())
        except BfrtError:
            undo()
            raise
        self._turn_all(fresh)

    def insert_node(self, number: int, rid: int, ports: list[int], lags: list[int]) -> None:
        """INSERT into `$pre.node`. Raises BfrtError."""
        self.change_engine((), lambda: self.engine.add_node(number, rid, ports, lags))
        self._save_node(number)

    def modify_node(self, number: int, rid: int | None, ports: list[int], lags: list[int]) -> None:
        """MODIFY of `$pre.node`. Raises BfrtError."""
        node = self.engine.nodes.get(number)
        trees = [node.mgid] if node is not None and node.mgid is not None else []
        self.change_engine(trees, lambda: self.engine.modify_node(number, rid, ports, lags))
        self._save_node(number)

    def delete_node(self, number: int) -> None:
        """DELETE from `$pre.node`. Raises BfrtError."""
        node = self.engine.nodes.get(number)
        trees = [node.mgid] if node is not None and node.mgid is not None else []
        self.change_engine(trees, lambda: self.engine.delete_node(number))
        libbpf.delete(self._loaded.maps["c_nodes"], struct.pack("<I", number))

    def insert_tree(self, mgid: int, members: Members) -> None:
        """INSERT into `$pre.mgid`. Raises BfrtError."""
        self.change_engine((mgid,), lambda: self.engine.add_tree(mgid, members))
        libbpf.update(self._loaded.maps["c_trees"], struct.pack("<I", mgid), struct.pack("<I", 1))
        self._save_members(mgid)

    def modify_tree(self, mgid: int, members: Members) -> None:
        """MODIFY of `$pre.mgid`: every stream's packets have either the old copies or the new. Raises BfrtError."""
        before = list(self.engine.trees.get(mgid, ()))
        self.change_engine((mgid,), lambda: self.engine.modify_tree(mgid, members))
        for number in before:
            if self.engine.nodes[number].mgid is None:
                self._save_node(number)
        self._save_members(mgid)

    def delete_tree(self, mgid: int) -> None:
        """DELETE from `$pre.mgid`. Raises BfrtError."""
        before = list(self.engine.trees.get(mgid, ()))
        self.change_engine((mgid,), lambda: self.engine.delete_tree(mgid))
        libbpf.delete(self._loaded.maps["c_trees"], struct.pack("<I", mgid))
        for number in before:
            self._save_node(number)

    def set_prune(self, l2_xid: int, ports: list[int]) -> None:
        """Set an entry of `$pre.prune`. Raises BfrtError."""
        trees = {mgid for stream in self._streams.values() if stream.action.l2_xid == l2_xid for mgid in stream.action.mgids}
        self.change_engine(trees, lambda: self.engine.set_prune(l2_xid, ports))
        key = struct.pack("<I", l2_xid)
        bits = sum(1 << port for port in self.engine.prunes.get(l2_xid, ()))
        if bits:
            libbpf.update(self._loaded.maps["c_prunes"], key, bits.to_bytes(PORTS // 8, "little"))
        else:
            libbpf.delete(self._loaded.maps["c_prunes"], key)

    def _save_members(self, mgid: int) -> None:
        for position, number in enumerate(self.engine.trees[mgid]):
            self._save_node(number, position)

    def _save_node(self, number: int, position: int = 0) -> None:
        node = self.engine.nodes[number]
        in_tree = node.mgid is not None
        port = _NO_PORT if node.port is None else node.port
        value = _NODE.pack(port, position, node.rid, node.mgid or 0, node.xid or 0, node.xid is not None, in_tree)
        problem = libbpf.update(self._loaded.maps["c_nodes"], struct.pack("<I", number), value)
        if problem:
            log.error("node %d is in force but cannot be kept for a restart: %s", number, os.strerror(problem))

    # Lists

    def _elements(self, mgid: int, action: Action) -> list[tuple[int, int, _Copy]]:
        """RID, interface and rewrite of each copy that a tree makes of a stream, ordered by interface."""
        found = []
        for rid in self.engine.copies(mgid, *action[1:4]):
            copy = self._copies.get((action.number, rid))
            if copy is not None and copy.ifindex:
                found.append((rid, copy.ifindex, copy))
        found.sort(key=_by_interface)
        return found

    def _write_lists(self, streams: Iterable[tuple[StreamKey, _Stream]]) -> list[tuple[_Stream, _List]]:
        """Write the lists that these streams are to have, without turning to them. Raises Full, and then none is written."""
        made: list[tuple[_Stream, _List]] = []
        try:
            for key, stream in streams:
                made.append((stream, self._write_list(key, stream)))
        except BfrtError:
            for _, fresh in made:
                self._free_list(fresh)
            raise
        return made

    def _write_list(self, key: StreamKey, stream: _Stream) -> _List:
        mgids = stream.action.mgids
        if len(mgids) == 1:
            return self._write_tree(key, stream.action, mgids[0])
        parts: list[_List] = []
        try:
            for mgid in mgids:
                parts.append(self._write_tree(key, stream.action, mgid))
            at = self._take(len(mgids))
        except BfrtError:
            for part in parts:
                self._free_list(part)
            raise
        self._list_mm[at * 8 : (at + len(parts)) * 8] = struct.pack(f"<{len(parts)}Q", *(part.at for part in parts))
        return _List(at, len(parts), 0, frozenset().union(*(part.copies for part in parts)), tuple(parts))

    def _take(self, words: int) -> int:
        at = self._lists.take(words)
        if not at:
            self.settle()
            at = self._lists.take(words)
        if not at:
            raise Full(f"There is room for {self._lists.size} words of lists, {self._lists.used} are taken")
        return at

    def _write_tree(self, key: StreamKey, action: Action, mgid: int) -> _List:
        elements = self._elements(mgid, action)
        if not elements:
            return _NO_COPIES
        if len(elements) > MAX_COPIES:
            raise Full(f"A packet has at most {MAX_COPIES} copies, not {len(elements)}")
        counts = Counter(ifindex for _, ifindex, _ in elements)
        if len(counts) > DEVICES:
            raise Full(f"The copies of a packet leave by at most {DEVICES} interfaces, not {len(counts)}")
        composition = tuple(sorted(counts.items()))
        words = 1 + len(composition) + len(elements)
        at = self._take(words)
        try:
            outputs = self._output(composition)
        except BfrtError:
            self._lists.give(at, words)
            raise
        body = bytearray(_HEAD.pack(len(elements), outputs, len(composition), 0))
        first = 0
        for ifindex, count in composition:
            body += _DEVICE.pack(ifindex, first)
            first += count
        (saddr, sport), (daddr, dport) = key.flow
        for _, _, copy in elements:
            src, dst = copy.rewrite[:2]
            body += _ELEMENT.pack(copy.index)
            if len(saddr) == 4 and len(dst.addr) == 4:
                body += _CHANGES.pack(*layout.checksum_changes(saddr, daddr, sport, dport, src.addr, dst.addr, src.port, dst.port))
            else:
                body += _ZERO4
        self._list_mm[at * 8 : at * 8 + len(body)] = bytes(body)
        return _List(at, words, outputs, frozenset(rid for rid, _, _ in elements))

    def _turn_all(self, fresh: list[tuple[_Stream, _List]]) -> None:
        for stream, made in fresh:
            self._turn(stream, made)

    def _turn(self, stream: _Stream, fresh: _List) -> None:
        """From here on the stream's packets are what its action says, and have the copies of this list."""
        before, stream.list = stream.list, fresh
        self._stream_turns[(stream.index * _STREAM_SIZE + _STREAM_TURN) // 8] = fresh.at | _flags(stream.action) << 32
        if before.at:
            self._retire(lambda: self._free_list(before))

    def _free_list(self, gone: _List) -> None:
        for part in gone.parts:
            self._free_list(part)
        if not gone.at:
            return
        self._lists.give(gone.at, gone.words)
        if not gone.outputs:
            return
        self._output_users[gone.outputs] -= 1
        if not self._output_users[gone.outputs]:
            del self._output_users[gone.outputs]
            del self._outputs[self._output_of.pop(gone.outputs)]
            self._free_outputs.append(gone.outputs)

    def _output(self, composition: tuple[tuple[int, int], ...]) -> int:
        """The row of the device map with these interfaces, one reference more."""
        row = self._outputs.get(composition)
        if row is None:
            if not self._free_outputs:
                self.settle()
            if not self._free_outputs:
                raise Full(f"There is room for {OUTPUTS - 1} different sets of interfaces and numbers of copies")
            row = self._free_outputs[-1]
            self._fill_output(row, composition)
            self._free_outputs.pop()
            self._outputs[composition] = row
            self._output_of[row] = composition
        self._output_users[row] += 1
        return row

    def _fill_output(self, row: int, composition: tuple[tuple[int, int], ...], program: int | None = None) -> None:
        program = self._loaded.programs["replicate_copy"] if program is None else program
        try:
            # Relayed packets to such an interface run the same program, whoever comes first in a poll.
            for ifindex in {ifindex for ifindex, _ in composition} - self._devices:
                problem = libbpf.update(self._loaded.maps["c_devices"], struct.pack("<I", ifindex), struct.pack("<Ii", ifindex, program))
                if problem:
                    raise OSError(problem, f"interface {ifindex}: {os.strerror(problem)}")
                self._devices.add(ifindex)
                self._barrier()
            fd = libbpf.device_map([ifindex for ifindex, count in composition for _ in range(count)], program)
        except OSError as error:
            raise Full(f"no device map: {error}") from error
        try:
            problem = libbpf.update(self._loaded.maps["c_outputs"], struct.pack("<I", row), struct.pack("<i", fd))
        finally:
            os.close(fd)
        if problem:
            raise Full(f"no device map: {os.strerror(problem)}")

    # Giving back

    def _retire(self, free: Callable[[], None]) -> None:
        self._retired.append(free)
        if len(self._retired) > _RETIRED:
            self.settle()

    def settle(self) -> None:
        """Give back what no program reads any more. Takes a grace period (some ms) when there is anything."""
        if not self._retired:
            return
        self._barrier()
        retired, self._retired = self._retired, []
        for free in retired:
            free()

    def _barrier(self) -> None:
        """Wait until every program that is running now has ended: an update of a map of maps does, before it returns."""
        if not self._spare:
            self._spare = libbpf.device_map([], self._loaded.programs["replicate_copy"])
        problem = libbpf.update(self._loaded.maps["c_outputs"], struct.pack("<I", _BARRIER), struct.pack("<i", self._spare))
        if problem:
            raise libbpf.BpfError(problem, f"cannot wait for the programs: {os.strerror(problem)}")

    # Next hops

    def destinations(self) -> Counter[tuple[bytes, bytes]]:
        """How many rewrites hold each destination and source address, those that are only waiting to be given back too."""
        return self._held

    def moved(self, moved: Iterable[Moved]) -> None:
        """Follow next hops that changed: those whose routes go elsewhere now."""
        rows = {(move.dst, move.src): move.index for move in moved}
        if not rows or not self._copies:
            return
        streams: dict[StreamKey, _Stream] = {}
        for (number, rid), copy in self._copies.items():
            row = rows.get((copy.rewrite.dst.addr, copy.rewrite.src.addr))
            if row is None:
                continue
            self._copy_shorts[(copy.index * _COPY_SIZE + _COPY_NEXTHOP) // 2] = row
            copy.row = row
            if copy.ifindex != self._ifindex(row):
                copy.ifindex = self._ifindex(row)
                streams.update((key, stream) for key, stream in self._receiving(number, rid))
        for key, stream in streams.items():
            try:
                self._turn_all(self._write_lists([(key, stream)]))
            except BfrtError as error:
                log.error("a route changed, and the copies of %s with SSRC %08x do not follow: %s", key.flow, key.ssrc, error)

    @property
    def agent_fd(self) -> int:
        """Readable when poll_agent() has packets."""
        return self._loaded.maps["c_agent"]

    def poll_agent(self, limit: int = 256) -> list[tuple[StreamKey, bytes]]:
        """Take up to `limit` frames of streams with to_agent set, each as it came (its first 1,536 bytes)."""
        found = []
        for record in self._ring.read(limit):
            index, length = _AGENT_COPY.unpack_from(record)
            key = self._keys.get(index)
            if key is not None:
                found.append((key, record[_AGENT_COPY.size : _AGENT_COPY.size + length]))
        return found

    def agent_counts(self) -> dict[str, int]:
        """Packets for the agent since the maps were made: told, held back by the limit of their stream, lost because nobody took them."""
        columns = zip(*(_AGENT_COUNTS.unpack(value) for value in libbpf.per_cpu(self._loaded.maps["c_agent_counts"], 0, _AGENT_COUNTS.size)))
        return dict(zip(("agent_packets", "agent_suppressed", "agent_lost"), map(sum, columns)))

    # Adoption

    def clear(self) -> None:
        """Take everything out, in a time that does not hold up others even for the largest tables."""
        maps = self._loaded.maps
        for key in self._streams:
            libbpf.delete(maps["c_index"], _raw_key(key))
        for layers, template in self._layers:
            libbpf.delete(maps["c_layers"], _LAYER_KEY.pack(layers << 8 | template))
        for table, numbers in (("c_trees", self.engine.trees), ("c_nodes", self.engine.nodes), ("c_prunes", self.engine.prunes)):
            for number in numbers:
                libbpf.delete(maps[table], struct.pack("<I", number))
        self._copy_flags()[:] = 0
        # No packet finds a stream any more; those under way still have their lists.
        self._barrier()
        for (dst, src), users in self._held.items():
            for _ in range(users):
                self._hops.release(dst, src)
        self._start_empty()

    def rows(self) -> set[int]:
        """The rows of the next-hop table that the copies in the maps use."""
        return {self._copy_shorts[(index * _COPY_SIZE + _COPY_NEXTHOP) // 2] for index in self._valid_copies()}

    def adopt(self, taken: set[int]) -> None:
        """Read the tables from the maps, and put every stream on the list that they call for. taken: rows of next hops that others may use."""
        maps = self._loaded.maps
        trees = {struct.unpack("<I", key)[0]: [] for key, _ in libbpf.elements(maps["c_trees"])}
        for key, value in libbpf.elements(maps["c_nodes"]):
            number, = struct.unpack("<I", key)
            port, position, rid, mgid, xid, xid_valid, in_tree = _NODE.unpack(value)
            node = self.engine.nodes[number] = Node(rid, None if port == _NO_PORT else port)
            if in_tree and mgid in trees:
                node.mgid, node.xid = mgid, xid if xid_valid else None
                trees[mgid].append((position, number))
        self.engine.trees = {mgid: dict.fromkeys(number for _, number in sorted(members)) for mgid, members in trees.items()}
        for key, value in libbpf.elements(maps["c_prunes"]):
            bits = int.from_bytes(value, "little")
            self.engine.prunes[struct.unpack("<I", key)[0]] = frozenset(n for n in range(PORTS) if bits >> n & 1)
        for key, value in libbpf.elements(maps["c_layers"]):
            named, = _LAYER_KEY.unpack(key)
            self._layers[named >> 8, named & 0xFF] = Layer(*_LAYER.unpack(value)[:2])
        self._adopt_copies(taken)
        self._adopt_streams()

    def _valid_copies(self) -> list[int]:
        return np.flatnonzero(self._copy_flags()).tolist()

    def _copy_flags(self) -> np.ndarray:
        """Of every record, whether it is in force."""
        return np.frombuffer(self._copy_mm, dtype=np.uint8, count=(self.capacity + 1) * _COPY_SIZE)[_COPY_VALID::_COPY_SIZE]

    def _adopt_copies(self, taken: set[int]) -> None:
        for index in self._valid_copies():
            at = index * _COPY_SIZE
            saddr, daddr, sport, dport = _COPY.unpack_from(self._copy_mm, at)
            if self._copy_mm[at + _COPY_FLAGS] & _OUT6:
                wide = self._wide_mm[index * _WIDE_SIZE : index * _WIDE_SIZE + 32]
                saddr, daddr = wide[:16], wide[16:]
            number, rid, nexthop = _COPY_KEY.unpack_from(self._copy_mm, at + _COPY_NAME)
            if (number, rid) in self._copies:
                # A process was killed between the two stores of a change.
                self._copy_mm[at + _COPY_VALID] = 0
                continue
            splice, target, cadence = _RENUMBERING.unpack_from(self._wide_mm, index * _WIDE_SIZE + _RENUMBERING_AT)
            rewrite = Rewrite(Endpoint(saddr, sport), Endpoint(daddr, dport), nexthop, target, splice, cadence)
            self._splicing[splice] += bool(splice)
            row = self._hops.adopt(daddr, saddr, 1, self._copy_shorts[(at + _COPY_NEXTHOP) // 2], taken)
            self._held[daddr, saddr] += 1
            self._copy_shorts[(at + _COPY_NEXTHOP) // 2] = row
            self._copies[number, rid] = _Copy(index, rewrite, row, self._ifindex(row))
        used = {copy.index for copy in self._copies.values()}
        self._free_copies = [index for index in self._free_copies if index not in used]

    def _adopt_streams(self) -> None:
        taken: set[int] = set()
        for raw, value in libbpf.elements(self._loaded.maps["c_index"]):
            index, = struct.unpack("<I", value)
            saddr, daddr, sport, dport, version = _STREAM_KEY.unpack_from(raw)
            if version == layout.VERSION_MARK[4]:
                saddr, daddr = saddr[:4], daddr[:4]
            key = StreamKey(FiveTuple(Endpoint(saddr, sport), Endpoint(daddr, dport)), struct.unpack_from("!I", raw, _STREAM_KEY.size)[0])
            number, mgid, rid, l1_xid, l2_xid, track = _ACTION.unpack_from(self._stream_mm, index * _STREAM_SIZE + _STREAM_ACTION)
            flags = self._stream_turns[(index * _STREAM_SIZE + _STREAM_TURN) // 8] >> 32
            stream = _Stream(index, _action(flags, mgid, l1_xid, rid, l2_xid, number, track))
            self._tracking[stream.action.track] += bool(stream.action.track)
            self._streams[key], self._keys[index] = stream, key
            self._link(key, stream.action)
            taken.add(index)
            self._adopt_list(stream)
        self._free_streams = [index for index in self._free_streams if index not in taken]
        used = set(self._output_of)
        self._free_outputs = [row for row in self._free_outputs if row not in used]
        for row, composition in self._output_of.items():
            self._fill_output(row, composition)
        for key, stream in self._streams.items():
            try:
                self._turn_all(self._write_lists([(key, stream)]))
            except BfrtError as error:
                log.error("the copies of %s with SSRC %08x stay as they were: %s", key.flow, key.ssrc, error)
        self.settle()

    def _adopt_list(self, stream: _Stream) -> None:
        """Take over the list that a stream is on, until it has its new one."""
        turn = (stream.index * _STREAM_SIZE + _STREAM_TURN) // 8
        at, trees = self._stream_turns[turn] & 0xFFFFFFFF, len(stream.action.mgids)
        if not at:
            return
        try:
            if trees == 1:
                stream.list = self._claim(at)
                return
            if not self._lists.claim(at, trees):
                raise ValueError(at)
            parts = tuple(self._claim(part & 0xFFFFFFFF) for part in struct.unpack_from(f"<{trees}Q", self._list_mm, at * 8))
            stream.list = _List(at, trees, 0, parts=parts)
        except ValueError:
            log.error("the list of stream %d overlaps another one: its packets have no copies until it is made anew", stream.index)
            self._stream_turns[turn] &= ~0xFFFFFFFF

    def _claim(self, at: int) -> _List:
        """One list of copies, taken over. Raises ValueError when something else is there."""
        if not at:
            return _NO_COPIES
        copies, outputs, devices, _ = _HEAD.unpack_from(self._list_mm, at * 8)
        words = 1 + devices + copies
        if not self._lists.claim(at, words):
            raise ValueError(at)
        places = [_DEVICE.unpack_from(self._list_mm, (at + 1 + n) * 8) for n in range(devices)]
        ends = [first for _, first in places[1:]] + [copies]
        composition = tuple((ifindex, end - first) for (ifindex, first), end in zip(places, ends))
        self._outputs[composition] = outputs
        self._output_of[outputs] = composition
        self._output_users[outputs] += 1
        return _List(at, words, outputs)


def _flags(action: Action) -> int:
    """The half of a stream's `turn` that says what its packets are."""
    trees = action.trees << 8 if action.trees > 1 else _ONE_TREE if action.trees else 0
    return action.descriptor | (_TO_AGENT if action.to_agent else 0) | action.extension << 4 | trees | (_TRACKED if action.track else 0) | action.layers << 16


def _action(flags: int, mgid: int, l1_xid: int, rid: int, l2_xid: int, number: int, track: int) -> Action:
    """The inverse of _flags(), with the rest."""
    trees = 1 if flags & _ONE_TREE else flags >> 8 & 15
    return Action(mgid, l1_xid, rid, l2_xid, number, bool(flags & _TO_AGENT), trees, flags >> 16, flags >> 4 & 15, flags & 7, track if flags & _TRACKED else 0)


def _by_interface(element: tuple[int, int, _Copy]) -> int:
    return element[1]


def _raw_key(key: StreamKey) -> bytes:
    (saddr, sport), (daddr, dport) = key.flow
    six = len(saddr) == 16
    return _STREAM_KEY.pack(saddr if six else saddr + _ZERO12, daddr if six else daddr + _ZERO12, sport, dport, layout.VERSION_MARK[6 if six else 4]) + struct.pack("!I4x", key.ssrc)
