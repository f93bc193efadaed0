"""The softswitch's data plane: relay entries in shared maps, XDP programs on interfaces, statistics and notices out.

Programs, maps and attachments are pinned: they forward on when this process ends, and the next one
takes them over as they are. The maps are the only copy of the table; what Python keeps besides (which
address owns which slots, which entries are in the overflow table) is read from them again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import LearnNotice, MediaRange, RelayEntry, StreamStats
from shunt_softswitch import layout, libbpf, netlink, rows
from shunt_softswitch.nexthop import NextHops, NextHopsExhausted
from shunt_softswitch.figures import figures, idle_ms
from shunt_softswitch.hearing import Hearing
from shunt_softswitch.replication import Replication

log = logging.getLogger(__name__)

OBJECT = Path(__file__).with_name("obj") / "relay.o"
_KERNEL_MAPS = (
    "layout", ".data.settings", ".data.addresses4", ".data.addresses6", ".data.places", ".data.nexthops", "media", "media_ranges",
    ".data.slots", "details", "wides", "overflow", ".data.totals", "gates", "notices", "refused", "guarded", "wary", "known",
)  # fmt: skip
_LATER_MAPS = frozenset({"refused", "guarded", "wary", "known"})  # an older version of this layout may have pinned none
_FORMER_MAPS = ("slots", "totals", ".data.chunks")  # of layouts before 5
_NO_SLOT = -1
_ZERO4 = b"\0" * 4
_ZERO12 = b"\0" * 12
_ZERO56 = b"\0" * 56
_HEAD, _HEAD_AT = layout.SLOT_HEAD, layout.SLOT_HEAD_OFFSET
_FLAGS = 1  # of the head's fields
_COUNTERS, _COUNTERS_AT = layout.SLOT_COUNTERS, layout.SLOT_COUNTERS_OFFSET
_PORTS = struct.Struct("!HH")
_KEYS = struct.Struct("!4s4s8xHH")  # from the addresses to the ports
_ADDRESSES_AT, _OUT_AT, _PORTS_AT = layout.SLOT_ADDRESSES_OFFSET, layout.SLOT_OUT_OFFSET, layout.SLOT_PORTS_OFFSET
_DETAIL_AT = layout.SLOT_SIZE  # in a record of the overflow table: slot, detail, wide
_WIDE_AT = layout.SLOT_SIZE + layout.DETAIL_SIZE


class DataPlaneError(RuntimeError):
    """The data plane cannot be opened or operated; the text says what and where."""


@dataclass(slots=True)
class _Address:
    """A relay address that owns a row: its number, and for each 256 ports the chunk (0: none; no chunk has that number)."""

    addr: bytes
    number: int
    row: int
    chunks: list[int] = field(default_factory=lambda: [0] * (65536 // layout.CHUNK_PORTS))
    live_chunks: int = 0
    ranges: set[MediaRange] = field(default_factory=set)


@dataclass(slots=True)
class _Attached:
    """An interface with the relay program on it."""

    name: str
    ifindex: int
    generic: bool
    link: int


def _fixed(addr: bytes) -> bytes:
    """An address in the sixteen bytes of a key."""
    return addr if len(addr) == 16 else addr + _ZERO12


def _pin_path(directory: Path, name: str) -> Path:
    """Where a map is pinned; a BPF file system allows no dots in names."""
    return directory / name.replace(".", "_").lstrip("_")


class DataPlane:
    """The relay table in the kernel. Synchronous; to be used from one thread; make it with open()."""

    def __init__(self, *, pin_dir: Path, lock: int, loaded: libbpf.LoadedObject, constants: dict[str, bytes]) -> None:
        """Use open(). Takes over lock and loaded, whose maps are complete and marked."""
        self.constants = constants  # of the programs, for others that are built on them
        self._pin_dir = pin_dir
        self._lock = lock
        self._loaded = loaded
        maps = loaded.maps
        _, _, self.capacity, chunk_total = layout.LAYOUT_MARK.unpack_from(libbpf.map_view(maps["layout"], layout.LAYOUT_MARK.size))
        slots = chunk_total * layout.CHUNK_PORTS
        self._slot_mm = libbpf.map_view(maps[".data.slots"], slots * layout.SLOT_SIZE)
        self._words = memoryview(self._slot_mm).cast("I")
        self._slots = np.frombuffer(self._slot_mm, dtype=layout.SLOT, count=slots)
        self._detail_mm = libbpf.map_view(maps["details"], slots * layout.DETAIL_SIZE)
        self._detail_words = memoryview(self._detail_mm).cast("I")
        self._details = np.frombuffer(self._detail_mm, dtype=layout.DETAIL, count=slots)
        self._wide_mm = libbpf.map_view(maps["wides"], slots * layout.WIDE_SIZE)
        self._rows4 = memoryview(libbpf.map_view(maps[".data.addresses4"], layout.ADDRESS_ROWS * 8)).cast("Q")
        self._rows6 = libbpf.map_view(maps[".data.addresses6"], layout.ADDRESS_ROWS * 24)
        self._owners6 = memoryview(self._rows6).cast("I")
        self._places = memoryview(libbpf.map_view(maps[".data.places"], layout.PLACES_SIZE)).cast("I")
        self._media = np.frombuffer(libbpf.map_view(maps["media"], layout.ADDRESSES * 8192), dtype=np.uint8, count=layout.ADDRESSES * 8192)
        self._totals = np.frombuffer(libbpf.map_view(maps[".data.totals"], layout.CPUS * layout.TOTALS * 8), dtype=np.uint64).reshape(layout.CPUS, layout.TOTALS)
        self._settings = memoryview(libbpf.map_view(maps[".data.settings"], 8)).cast("I")
        self._hops = NextHops(libbpf.map_view(maps[".data.nexthops"], layout.NEXTHOPS * layout.NEXTHOP.size))
        self._ring = libbpf.Ring(maps["notices"])
        self._addresses: dict[bytes, _Address] = {}
        self._free_numbers = list(range(layout.ADDRESSES - 1, -1, -1))
        self._free_chunks = list(range(chunk_total - 1, 0, -1))
        self._live = [0] * chunk_total  # entries and overflow marks in each chunk
        self._overflow: dict[FiveTuple, int] = {}  # slot that carries the mark, or _NO_SLOT
        self._marked: dict[int, int] = {}  # slot: overflow entries of its port
        self._loose: dict[tuple[bytes, int], set[FiveTuple]] = {}  # address and chunk position: entries without a slot
        self._entries = 0
        self._attached: list[_Attached] = []
        self._names: list[str] = []
        self._mode = "auto"
        self._limited = False
        self._room = ctypes.create_string_buffer(layout.OVERFLOW_SIZE)
        self.replication: Replication | None = None
        self.hearing = Hearing.of(maps)

    # Opening and closing

    @classmethod
    def open(
        cls, *, interfaces: list[str], capacity: int = 262144, pin_dir: str = "/sys/fs/bpf/shunt", mode: str = "auto", dynamic_clock: int = layout.DEFAULT_CLOCK, strays: str = "pass", copies: int = 0, packet_limit: int = 0,
    ) -> DataPlane:
        """Load and attach, or take over what a former process left pinned in pin_dir.

        mode: `native`, `generic`, or `auto`: native where every interface can both run the program and
        send what others redirect to it, else generic. dynamic_clock: RTP clock in Hz assumed for the
        payload types 96 to 127. strays: `pass` or `drop` packets to a port whose entry is for another source. copies: rewrites of
        conference packets to have room for (0: no conferences). packet_limit: packets per second of one entry above which they are
        dropped (0: no limit). Maps that are taken over keep their capacity. Raises DataPlaneError.
        """
        if mode not in ("auto", "native", "generic"):
            raise DataPlaneError(f"XDP mode {mode!r} is none of auto, native, generic")
        if not 1 <= capacity <= 60000 * layout.CHUNK_PORTS:
            raise DataPlaneError(f"capacity {capacity} is not in 1..{60000 * layout.CHUNK_PORTS}")
        if strays not in ("pass", "drop"):
            raise DataPlaneError(f"strays {strays!r} is none of pass, drop")
        directory = Path(pin_dir)
        lock = -1
        plane: DataPlane | None = None
        try:
            libbpf.ensure_bpffs(directory)
            lock = libbpf.lock_directory(directory)
            loaded, constants = cls._load(directory, capacity, dynamic_clock, strays == "drop", packet_limit)
            plane = cls(pin_dir=directory, lock=lock, loaded=loaded, constants=constants)
            plane._limited = packet_limit > 0
            if plane.capacity != capacity:
                log.warning("the table pinned in %s has capacity %d; %d takes effect after it is unloaded", pin_dir, plane.capacity, capacity)
            if copies:
                plane.replication = Replication.open(
                    pin_dir=directory, copies=copies, hops=plane._hops, clock=plane._tick, relay_maps=plane.maps(), constants=plane.constants, limited=plane._limited
                )
            plane._adopt()
            plane._attach_all(interfaces, mode)
            if not copies:
                Replication.unpin(directory)
        except OSError as exc:
            if plane is not None:
                plane.close()
            elif lock >= 0:
                os.close(lock)
            raise DataPlaneError(str(exc)) from exc
        except DataPlaneError:
            if plane is not None:
                plane.close()
            elif lock >= 0:
                os.close(lock)
            raise
        return plane

    @staticmethod
    def _load(directory: Path, capacity: int, dynamic_clock: int, drop_strays: bool, packet_limit: int) -> tuple[libbpf.LoadedObject, dict[str, bytes]]:
        if not OBJECT.exists():
            raise DataPlaneError(f"{OBJECT} is missing: build the programs first (make build)")
        symbols = libbpf.constant_offsets(OBJECT)
        pinned: dict[str, int] = {}
        chunks = layout.chunk_count(capacity)
        try:
            fresh = not (directory / "layout").exists()
            if not fresh:
                pinned["layout"] = libbpf.get(directory / "layout")
                magic, version, _, taken_over = layout.LAYOUT_MARK.unpack_from(libbpf.map_view(pinned["layout"], layout.LAYOUT_MARK.size))
                fresh = magic != layout.MAGIC or version != layout.LAYOUT_VERSION
                if fresh:
                    log.warning(
                        "the tables pinned in %s have layout %d, this program has %d: they are taken out, and media goes through the relay until the agent has written its entries again",
                        directory, version, layout.LAYOUT_VERSION,
                    )
                    os.close(pinned.pop("layout"))
            if fresh:
                # Otherwise the rest of a start that did not finish.
                _take_out(directory)
            else:
                chunks = taken_over
                for name in _KERNEL_MAPS[1:]:
                    if name not in _LATER_MAPS or _pin_path(directory, name).exists():
                        pinned[name] = libbpf.get(_pin_path(directory, name))
                if len(pinned) < len(_KERNEL_MAPS):
                    libbpf.forget_loaded(directory)
            slots = chunks * layout.CHUNK_PORTS
            constants = {"tick_ns": layout.tick_table(dynamic_clock), "drop_strays": bytes([drop_strays])}
            for name, number in ({"last_slot": (slots - 1) * layout.SLOT_SIZE} | layout.packet_limits(packet_limit, slots)).items():
                constants[name] = number.to_bytes(4, "little")
            loaded = libbpf.load_once(
                OBJECT, directory,
                sizes={".data.slots": slots * layout.SLOT_SIZE, "details": slots, "wides": slots, "overflow": capacity, "limits": slots + layout.LOOSE_LIMITS if packet_limit else 1},
                reuse=pinned,
                constants=constants,
                symbols=symbols,
                without=("relay_native", "relay_generic") if packet_limit else ("limited_native", "limited_generic"),
                besides="limits",
            )
            if fresh:
                mark = libbpf.map_view(loaded.maps["layout"], layout.LAYOUT_MARK.size)
                layout.LAYOUT_MARK.pack_into(mark, 0, layout.MAGIC, layout.LAYOUT_VERSION, capacity, chunks)
            for name in reversed(_KERNEL_MAPS):
                if name not in pinned:
                    libbpf.pin(loaded.maps[name], _pin_path(directory, name))
            return loaded, constants
        finally:
            for fd in pinned.values():
                os.close(fd)

    def close(self) -> None:
        """End this process's part; programs, maps and attachments stay and forward on."""
        if self._lock < 0:
            return
        if self.replication is not None:
            self.replication.close()
        self._hops.close()
        self._ring.close()
        for attached in self._attached:
            os.close(attached.link)
        self._attached = []
        self._loaded.close()
        self._words.release()
        self._detail_words.release()
        self._rows4.release()
        self._owners6.release()
        self._places.release()
        self._settings.release()
        del self._slots, self._details, self._media, self._totals
        os.close(self._lock)
        self._lock = -1

    def unload(self) -> None:
        """Detach, unpin, forget: media passes up to the relay from now on."""
        for attached in self._attached:
            self._detach(attached)
        self._attached = []
        self._hops.clear()
        _take_out(self._pin_dir)
        self.close()
        with contextlib.suppress(OSError):  # the mount point of the BPF file system itself stays
            self._pin_dir.rmdir()

    def __enter__(self) -> DataPlane:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Interfaces

    def _attach_all(self, names: list[str], mode: str) -> None:
        self._names, self._mode = list(dict.fromkeys(names)), mode
        wanted: list[netlink.Link] = []
        for name in self._names:
            link = self._hops.link_named(name)
            if link is None:
                raise DataPlaneError(f"there is no interface {name!r} in this network namespace")
            wanted.append(link)
        for path in self._pin_dir.glob("link_*"):
            ifindex = int(path.name.split("_")[1])
            fd = libbpf.get(path)
            if libbpf.link_ifindex(fd) != ifindex or ifindex not in {link.ifindex for link in wanted}:
                libbpf.detach(fd)
                path.unlink()
            os.close(fd)
        for link in wanted:
            self._attached.append(self._attach(link, mode))
        if mode == "auto" and any(not attached.generic for attached in self._attached):
            self._hops.forget_features()
            deaf = [attached.name for attached in self._attached if not self._hops.sends(attached.ifindex)]
            if deaf:
                log.info("%s cannot send what native XDP redirects: generic XDP on every interface", ", ".join(deaf))
                for n, attached in enumerate(self._attached):
                    if not attached.generic:
                        self._detach(attached)
                        self._attached[n] = self._attach(wanted[n], "generic")
        self._settings[1] = any(not attached.generic for attached in self._attached)
        self._hops.attached(attached.ifindex for attached in self._attached)

    def _link_path(self, ifindex: int, generic: bool) -> Path:
        # By number: a BPF file system allows no dots in names, interface names do have them.
        return self._pin_dir / f"link_{ifindex}_{'generic' if generic else 'native'}"

    def _attach(self, link: netlink.Link, mode: str) -> _Attached:
        for generic in (False, True):
            path = self._link_path(link.ifindex, generic)
            if not path.exists():
                continue
            fd = libbpf.get(path)
            if mode == "auto" or generic == (mode == "generic"):
                libbpf.replace_program(fd, self._relay_program(generic))
                return _Attached(link.name, link.ifindex, generic, fd)
            self._detach(_Attached(link.name, link.ifindex, generic, fd))
        if not libbpf.disable_offloads(link.name):
            log.info("%s keeps VLAN stripping or large receive offload: stripped tags are invisible to XDP", link.name)
        tries = {"native": (False,), "generic": (True,), "auto": (False, True)}[mode]
        for generic in tries:
            try:
                fd = libbpf.attach_xdp(self._relay_program(generic), link.ifindex, generic=generic)
            except libbpf.BpfError as exc:
                if exc.errno == errno.EBUSY:
                    raise DataPlaneError(f"{link.name} already has another XDP program: detach it first") from exc
                if generic == tries[-1]:
                    raise DataPlaneError(f"{link.name}: {exc}") from exc
                continue
            libbpf.pin(fd, self._link_path(link.ifindex, generic))
            return _Attached(link.name, link.ifindex, generic, fd)
        raise AssertionError("the last try returns or raises")

    def _detach(self, attached: _Attached) -> None:
        libbpf.detach(attached.link)
        os.close(attached.link)
        self._link_path(attached.ifindex, attached.generic).unlink(missing_ok=True)

    def _relay_program(self, generic: bool) -> int:
        if self.replication is not None:
            return self.replication.program(generic, self._limited)
        return self._loaded.programs[f"{'limited' if self._limited else 'relay'}_{'generic' if generic else 'native'}"]

    def interfaces(self) -> list[tuple[str, int, str, int]]:
        """(name, ifindex, `native` or `generic`, receive queues) of each interface with the program."""
        found = []
        for attached in self._attached:
            link = self._hops.link(attached.ifindex)
            found.append((attached.name, attached.ifindex, "generic" if attached.generic else "native", link.rx_queues if link else 0))
        return found

    def _reattach(self) -> None:
        """Come back to interfaces that were removed and made again under their name."""
        for n, attached in enumerate(self._attached):
            link = self._hops.link_named(attached.name)
            if link is None or link.ifindex == attached.ifindex:
                continue
            self._detach(attached)
            try:
                self._attached[n] = self._attach(link, "generic" if attached.generic else "native")
            except (DataPlaneError, OSError) as exc:
                log.error("%s came back, but the relay program cannot be attached: %s", attached.name, exc)
                del self._attached[n]
                break
        self._settings[1] = any(not attached.generic for attached in self._attached)
        self._hops.attached(attached.ifindex for attached in self._attached)

    # Events

    @property
    def event_fd(self) -> int:
        """Readable when handle_events() has work: routes, neighbours or links have changed."""
        return self._hops.fd

    def handle_events(self) -> None:
        """Follow route, neighbour and link changes. To be called when event_fd is readable, and every 5 s."""
        moved = self._hops.handle_events()
        if moved:
            self._move(moved)
            if self.replication is not None:
                self.replication.moved(moved)
            self._hops.settle(moved)
        if any(self._hops.link(attached.ifindex) is None for attached in self._attached):
            self._reattach()

    def _move(self, moved: list[Any]) -> None:
        """Write the new rows of moved destinations into their entries."""
        new4 = {m.dst + m.src: m.index for m in moved if len(m.dst) == 4}
        rest = {(m.dst, m.src): m.index for m in moved if len(m.dst) == 16}
        valid = np.flatnonzero(self._slots["generation"] & 1)
        out6 = (self._slots["flags"][valid] & layout.ENTRY_OUT6) != 0
        if new4:
            index = valid[~out6]
            have = self._slots["out_daddr"][index].astype(np.uint64) << np.uint64(32) | self._slots["out_saddr"][index]
            names = np.array([int.from_bytes(k[:4], "little") << 32 | int.from_bytes(k[4:], "little") for k in new4], dtype=np.uint64)
            order = np.argsort(names)
            rows = np.fromiter(new4.values(), dtype=np.uint16, count=len(new4))[order]
            names = names[order]
            at = np.minimum(np.searchsorted(names, have), len(names) - 1)
            hit = names[at] == have
            self._slots["nexthop"][index[hit]] = rows[at[hit]]
        if rest:
            for slot in valid[out6].tolist():
                _, _, out_saddr, out_daddr = layout.WIDE_ENTRY.unpack_from(self._wide_mm, slot * layout.WIDE_SIZE)
                row = rest.get((out_daddr, out_saddr))
                if row is not None:
                    self._slots["nexthop"][slot] = row
        for key in self._overflow:
            record = self._overflow_record(key)
            if record is None:
                continue
            entry = self._decode_record(record)
            row = new4.get(entry.dst.addr + entry.src.addr) if entry.dst.version == 4 else rest.get((entry.dst.addr, entry.src.addr))
            if row is not None:
                struct.pack_into("<H", record, layout.SLOT_NEXTHOP_OFFSET, row)
                libbpf.update(self._loaded.maps["overflow"], self._flow_key(key), bytes(record))

    # Addresses and slots

    def _add_address(self, addr: bytes) -> _Address | None:
        """Give an address its row; None when there is no room for one more."""
        if not self._free_numbers:
            return None
        home = layout.address_home(addr)
        for n in range(layout.ADDRESS_PROBES):
            row = (home + n) % layout.ADDRESS_ROWS
            if (self._rows4[row] if len(addr) == 4 else self._owners6[row * 6 + 4]) == 0:
                break
        else:
            return None
        address = _Address(addr, self._free_numbers.pop(), row)
        self._addresses[addr] = address
        if len(addr) == 4:
            self._rows4[row] = (address.number + 1) << 32 | int.from_bytes(addr, "little")
            if not self._places[layout.shortcut(addr)]:
                self._places[layout.shortcut(addr)] = layout.list_place(address.number)
        else:
            self._rows6[row * 24 : row * 24 + 16] = addr
            self._owners6[row * 6 + 4] = address.number + 1
        return address

    def _drop_address(self, address: _Address) -> None:
        """Give up the row of an address without slots and media ports."""
        if address.live_chunks or address.ranges:
            return
        if len(address.addr) == 4:
            self._rows4[address.row] = 0
        else:
            self._owners6[address.row * 6 + 4] = 0
        del self._addresses[address.addr]
        if len(address.addr) == 4 and self._places[layout.shortcut(address.addr)] == layout.list_place(address.number):
            others = (other.number for addr, other in self._addresses.items() if len(addr) == 4 and addr[2:] == address.addr[2:])
            heir = next(others, None)
            self._places[layout.shortcut(address.addr)] = 0 if heir is None else layout.list_place(heir)
        self._free_numbers.append(address.number)

    def _find_slot(self, addr: bytes, port: int) -> int:
        address = self._addresses.get(addr)
        if address is None:
            return _NO_SLOT
        chunk = address.chunks[port >> 8]
        return chunk << 8 | port & 255 if chunk else _NO_SLOT

    def _make_slot(self, addr: bytes, port: int) -> int:
        """The slot of a relay address and port, with a new chunk if need be; _NO_SLOT when there is no room."""
        if not self._free_chunks:
            return _NO_SLOT
        address = self._addresses.get(addr) or self._add_address(addr)
        if address is None:
            return _NO_SLOT
        position = port >> 8
        chunk = self._free_chunks.pop()
        address.chunks[position] = chunk
        address.live_chunks += 1
        base = chunk << 8
        # Entries of these ports that had found no room before: their packets now meet a slot.
        for key in self._loose.pop((addr, position), ()):
            slot = base | key.dst.port & 255
            self._overflow[key] = slot
            self._mark(slot)
        self._places[layout.chunk_word(address.number, position)] = chunk * layout.CHUNK_SIZE
        self._settings[0] = self._loose_count()
        return base | port & 255

    def _drop_chunk(self, addr: bytes, port: int) -> None:
        """Give up a chunk without entries."""
        address = self._addresses[addr]
        position = port >> 8
        chunk = address.chunks[position]
        self._places[layout.chunk_word(address.number, position)] = 0
        address.chunks[position] = 0
        address.live_chunks -= 1
        self._free_chunks.append(chunk)
        self._drop_address(address)

    def _loose_count(self) -> int:
        return sum(len(keys) for keys in self._loose.values())

    def _mark(self, slot: int) -> None:
        count = self._marked.get(slot, 0)
        self._marked[slot] = count + 1
        if not count:
            self._live[slot >> 8] += 1
            self._detail_words[slot * 16] |= layout.SLOT_OVERFLOW

    def _unmark(self, slot: int) -> None:
        count = self._marked[slot] - 1
        if count:
            self._marked[slot] = count
            return
        del self._marked[slot]
        self._live[slot >> 8] -= 1
        self._detail_words[slot * 16] &= ~layout.SLOT_OVERFLOW

    def _holds(self, slot: int, key: FiveTuple) -> bool:
        """Whether the slot's entry, known to be valid, is this key's."""
        at = slot * layout.SLOT_SIZE
        (saddr, sport), (daddr, dport) = key
        mm = self._slot_mm
        if mm[at + _PORTS_AT : at + _PORTS_AT + 4] != _PORTS.pack(sport, dport):
            return False
        is6 = bool(mm[at + layout.SLOT_FLAGS_OFFSET] & layout.ENTRY_KEY6)
        if len(saddr) == 4:
            return not is6 and mm[at + _ADDRESSES_AT : at + _ADDRESSES_AT + 8] == saddr + daddr
        wide = slot * layout.WIDE_SIZE
        return is6 and self._wide_mm[wide : wide + 32] == saddr + daddr

    @staticmethod
    def _flow_key(key: FiveTuple) -> bytes:
        (saddr, sport), (daddr, dport) = key
        return layout.FLOW_KEY.pack(_fixed(saddr), _fixed(daddr), sport, dport, layout.VERSION_MARK[4 if len(saddr) == 4 else 6])

    def _overflow_record(self, key: FiveTuple) -> bytearray | None:
        if not libbpf.lookup(self._loaded.maps["overflow"], self._flow_key(key), self._room):
            return None
        return bytearray(self._room.raw)

    # Entries

    def _tick(self) -> int:
        """The kernel's tick now, modulo 2^32."""
        return libbpf.test_run(self._loaded.programs["tick"], b"\0" * 14).retval

    @staticmethod
    def _fault(entry: RelayEntry) -> str | None:
        """What is wrong with an entry, or None."""
        (saddr, sport), (daddr, dport) = entry.key
        (out_saddr, out_sport), (out_daddr, out_dport) = entry.src, entry.dst
        if len(saddr) != len(daddr) or len(saddr) not in (4, 16):
            return "invalid: the key's addresses are not both IPv4 or both IPv6"
        if len(out_saddr) != len(out_daddr) or len(out_saddr) not in (4, 16):
            return "invalid: source and destination of the action are not both IPv4 or both IPv6"
        if not (0 <= sport <= 65535 and 0 <= dport <= 65535 and 0 <= out_sport <= 65535 and 0 <= out_dport <= 65535):
            return "invalid: a port is not in 0..65535"
        if entry.dscp is not None and not 0 <= entry.dscp <= 63:
            return f"invalid: DSCP {entry.dscp} is not in 0..63"
        if not 0 <= entry.ttl_ms <= 0xFFFFFFFF:
            return f"invalid: time to live {entry.ttl_ms} ms is not in 0..4294967295"
        return None

    @staticmethod
    def _head(entry: RelayEntry, hop: int) -> tuple[Any, ...]:
        """The slot's part in network order; Addresses are zero where the wide part has them."""
        (saddr, sport), (daddr, dport) = entry.key
        (out_saddr, out_sport), (out_daddr, out_dport) = entry.src, entry.dst
        flags = 0
        if len(saddr) == 16:
            flags = layout.ENTRY_KEY6
            saddr = daddr = _ZERO4
        if len(out_saddr) == 16:
            flags |= layout.ENTRY_OUT6
            out_saddr = out_daddr = _ZERO4
        dscp = 0
        if entry.dscp is not None:
            flags |= layout.ENTRY_DSCP
            dscp = entry.dscp << 2
        changes = layout.checksum_changes(saddr, daddr, sport, dport, out_saddr, out_daddr, out_sport, out_dport)
        return hop.to_bytes(2, "little"), flags, dscp, saddr, daddr, out_saddr, out_daddr, sport, dport, out_sport, out_dport, *layout.of_checksums(*changes)

    @staticmethod
    def _wide(entry: RelayEntry) -> bytes:
        return layout.WIDE_ENTRY.pack(_fixed(entry.key.src.addr), _fixed(entry.key.dst.addr), _fixed(entry.src.addr), _fixed(entry.dst.addr))

    def insert(self, entries: list[RelayEntry]) -> list[str | None]:
        """Put entries in. For each: None when it is in, or `exists`, `full`, or `invalid: ` and why."""
        now = self._tick()
        if len(entries) > 1:
            self._hops.look_ahead({(entry.dst.addr, entry.src.addr): None for entry in entries})
        try:
            return [self._insert(entry, now) for entry in entries]
        finally:
            self._hops.look_ahead(())

    def insert_rows(self, new: np.ndarray) -> np.ndarray:
        """Put in, in one go, those of many IPv4 entries (rows.ROW) that simply have a free slot. True for these; the others are for insert()."""
        taken = np.zeros(len(new), dtype=bool)
        if self._entries + len(new) > self.capacity:
            return taken
        places, at = np.unique(new["daddr"].astype(np.int64) << 8 | new["dport"] >> 8, return_inverse=True)
        bases = np.array([self._base((place >> 8).to_bytes(4, "little"), (place & 255) << 8) for place in places.tolist()], dtype=np.int64)[at]
        numbers = np.where(bases == _NO_SLOT, _NO_SLOT, bases | new["dport"] & 255)
        # Of two entries of one slot the first takes it.
        free = np.zeros(len(new), dtype=bool)
        free[np.unique(numbers, return_index=True)[1]] = True
        free &= (bases != _NO_SLOT) & rows.usable(new)
        free &= (self._slots["generation"][numbers] & 1 == 0) & (self._details["slot_flags"][numbers] == 0)
        chosen = np.flatnonzero(free)
        if not len(chosen):
            return taken
        names, at, users = np.unique(rows.name_pairs(new[chosen]), return_inverse=True, return_counts=True)
        pairs = [rows.pair(name) for name in names.tolist()]
        self._hops.look_ahead(pairs)
        try:
            hops = np.array([self._acquire(*pair, count) for pair, count in zip(pairs, users.tolist())], dtype=np.int64)[at]
        finally:
            self._hops.look_ahead(())
        chosen, hops = chosen[hops >= 0], hops[hops >= 0]
        numbers = numbers[chosen]
        records = rows.slots_of(new[chosen], hops)
        generations = self._slots["generation"][numbers]
        records["generation"] = generations
        records["last_jiffies"] = self._tick()
        details = np.zeros(len(chosen), dtype=layout.DETAIL)
        details["ttl_ms"] = new["ttl_ms"][chosen]
        self._slots[numbers] = records
        self._details[numbers] = details
        self._slots["generation"][numbers] = generations + 1
        for chunk, count in zip(*(column.tolist() for column in np.unique(numbers >> 8, return_counts=True))):
            self._live[chunk] += count
        self._entries += len(chosen)
        taken[chosen] = True
        return taken

    def _base(self, addr: bytes, port: int) -> int:
        """The first slot of the chunk of a relay address and port, made if need be; _NO_SLOT when there is no room."""
        slot = self._find_slot(addr, port)
        slot = self._make_slot(addr, port) if slot < 0 else slot
        return slot & ~255 if slot >= 0 else _NO_SLOT

    def _acquire(self, dst: bytes, src: bytes, users: int) -> int:
        """The row by which packets from src to dst leave, for so many entries; -1 when there is no row left."""
        try:
            return self._hops.acquire(dst, src, users)
        except NextHopsExhausted:
            return -1

    def _insert(self, entry: RelayEntry, now: int) -> str | None:
        fault = self._fault(entry)
        if fault is not None:
            return fault
        key = entry.key
        addr, port = key.dst
        slot = self._find_slot(addr, port)
        generation = self._words[slot * 16] if slot >= 0 else 0
        if generation & 1 and self._holds(slot, key):
            return "exists"
        if self._overflow and key in self._overflow:
            return "exists"
        if self._entries >= self.capacity:
            return "full"
        if slot < 0:
            slot = self._make_slot(addr, port)
            generation = self._words[slot * 16] if slot >= 0 else 0
        try:
            hop = self._hops.acquire(entry.dst.addr, entry.src.addr)
        except NextHopsExhausted:
            if slot >= 0 and not self._live[slot >> 8]:
                self._drop_chunk(addr, port)
            return "full"
        head = self._head(entry, hop)
        if slot < 0 or generation & 1:
            return self._insert_overflow(entry, slot, head, now)
        at = slot * layout.SLOT_SIZE
        if head[_FLAGS] & (layout.ENTRY_KEY6 | layout.ENTRY_OUT6):
            self._wide_mm[slot * 64 : slot * 64 + 64] = self._wide(entry)
        mm = self._slot_mm
        _HEAD.pack_into(mm, at + _HEAD_AT, *head)
        _COUNTERS.pack_into(mm, at + _COUNTERS_AT, now)
        layout.DETAIL_ENTRY.pack_into(self._detail_mm, at + layout.DETAIL_TTL_OFFSET, entry.ttl_ms)
        self._words[slot * 16] = (generation + 1) & 0xFFFFFFFF
        self._live[slot >> 8] += 1
        self._entries += 1
        return None

    def _insert_overflow(self, entry: RelayEntry, slot: int, head: tuple[Any, ...], now: int) -> str | None:
        record = bytearray(layout.OVERFLOW_SIZE)
        struct.pack_into("<I", record, 0, 1)
        _HEAD.pack_into(record, _HEAD_AT, *head)
        _COUNTERS.pack_into(record, _COUNTERS_AT, now)
        layout.DETAIL_ENTRY.pack_into(record, _DETAIL_AT + layout.DETAIL_TTL_OFFSET, entry.ttl_ms)
        record[_WIDE_AT:] = self._wide(entry)
        key = entry.key
        problem = libbpf.update(self._loaded.maps["overflow"], self._flow_key(key), bytes(record))
        if problem:
            self._hops.release(entry.dst.addr, entry.src.addr)
            return "full" if problem in (errno.E2BIG, errno.ENOMEM, errno.ENOSPC) else f"invalid: {os.strerror(problem)}"
        self._overflow[key] = slot
        if slot >= 0:
            self._mark(slot)
        else:
            self._loose.setdefault((key.dst.addr, key.dst.port >> 8), set()).add(key)
            self._settings[0] += 1
        self._entries += 1
        return None

    def modify(self, entries: list[RelayEntry]) -> list[str | None]:
        """Change what entries do; their counters go on. For each: None, `absent`, `full`, or `invalid: ` and why."""
        return [self._modify(entry) for entry in entries]

    def _modify(self, entry: RelayEntry) -> str | None:
        fault = self._fault(entry)
        if fault is not None:
            return fault
        key = entry.key
        slot = self._slot_of(key)
        record = self._overflow_record(key) if slot < 0 and key in self._overflow else None
        if slot < 0 and record is None:
            return "absent"
        try:
            hop = self._hops.acquire(entry.dst.addr, entry.src.addr)
        except NextHopsExhausted:
            return "full"
        head = self._head(entry, hop)
        if record is not None:
            old = self._decode_record(record)
            _HEAD.pack_into(record, _HEAD_AT, *head)
            struct.pack_into("<I", record, _DETAIL_AT + layout.DETAIL_TTL_OFFSET, entry.ttl_ms)
            record[_WIDE_AT:] = self._wide(entry)
            libbpf.update(self._loaded.maps["overflow"], self._flow_key(key), bytes(record))
        else:
            old = self._entry_at(slot)
            at = slot * layout.SLOT_SIZE
            generation = self._words[slot * 16]
            self._words[slot * 16] = (generation + 1) & 0xFFFFFFFF
            if head[_FLAGS] & (layout.ENTRY_KEY6 | layout.ENTRY_OUT6):
                self._wide_mm[slot * 64 : slot * 64 + 64] = self._wide(entry)
            _HEAD.pack_into(self._slot_mm, at + _HEAD_AT, *head)
            self._detail_words[slot * 16 + layout.DETAIL_TTL_OFFSET // 4] = entry.ttl_ms
            self._words[slot * 16] = (generation + 2) & 0xFFFFFFFF
        self._hops.release(old.dst.addr, old.src.addr)
        return None

    def delete(self, keys: list[FiveTuple]) -> list[bool]:
        """Take entries out; for each whether it was in. The next packet of it already passes up."""
        return [self._delete(key) for key in keys]

    def _delete(self, key: FiveTuple) -> bool:
        slot = self._slot_of(key)
        if slot >= 0:
            at = slot * layout.SLOT_SIZE
            self._words[slot * 16] = (self._words[slot * 16] + 1) & 0xFFFFFFFF
            if self._slot_mm[at + layout.SLOT_FLAGS_OFFSET] & layout.ENTRY_OUT6:
                out_saddr, out_daddr = self._wide_mm[slot * 64 + 32 : slot * 64 + 48], self._wide_mm[slot * 64 + 48 : slot * 64 + 64]
            else:
                out_saddr, out_daddr = self._slot_mm[at + _OUT_AT : at + _OUT_AT + 4], self._slot_mm[at + _OUT_AT + 4 : at + _OUT_AT + 8]
            self._hops.release(out_daddr, out_saddr)
            self._live[slot >> 8] -= 1
        elif key in self._overflow:
            record = self._overflow_record(key)
            libbpf.delete(self._loaded.maps["overflow"], self._flow_key(key))
            if record is not None:
                old = self._decode_record(record)
                self._hops.release(old.dst.addr, old.src.addr)
            slot = self._overflow.pop(key)
            if slot >= 0:
                self._unmark(slot)
            else:
                place = (key.dst.addr, key.dst.port >> 8)
                self._loose[place].discard(key)
                if not self._loose[place]:
                    del self._loose[place]
                self._settings[0] -= 1
        else:
            return False
        self._entries -= 1
        if slot >= 0 and not self._live[slot >> 8]:
            self._drop_chunk(key.dst.addr, key.dst.port)
        return True

    def _slot_of(self, key: FiveTuple) -> int:
        """The slot that holds this key's entry, or _NO_SLOT."""
        slot = self._find_slot(key.dst.addr, key.dst.port)
        if slot >= 0 and self._words[slot * 16] & 1 and self._holds(slot, key):
            return slot
        return _NO_SLOT

    def clear(self) -> None:
        """Take every entry out; media ranges stay."""
        generations = self._slots["generation"]
        valid = np.flatnonzero(generations & 1)
        generations[valid] += 1
        for key in list(self._overflow):
            libbpf.delete(self._loaded.maps["overflow"], self._flow_key(key))
        for slot in self._marked:
            self._detail_words[slot * 16] = 0
        self._overflow.clear()
        self._marked.clear()
        self._loose.clear()
        self._settings[0] = 0
        for address in list(self._addresses.values()):
            for position, chunk in enumerate(address.chunks):
                if chunk:
                    self._places[layout.chunk_word(address.number, position)] = 0
                    self._live[chunk] = 0
                    self._free_chunks.append(chunk)
                    address.chunks[position] = 0
            address.live_chunks = 0
            self._drop_address(address)
        self._hops.clear(self.replication.destinations() if self.replication is not None else {})
        self._entries = 0

    # Reading

    @staticmethod
    def _decode(record: Any, at: int, wide: Any, ttl_ms: int) -> RelayEntry:
        _hop, flags, dscp, saddr, daddr, out_saddr, out_daddr, sport, dport, out_sport, out_dport, _, _ = _HEAD.unpack_from(record, at + _HEAD_AT)
        if flags & layout.ENTRY_KEY6:
            saddr, daddr = bytes(wide[0:16]), bytes(wide[16:32])
        if flags & layout.ENTRY_OUT6:
            out_saddr, out_daddr = bytes(wide[32:48]), bytes(wide[48:64])
        return RelayEntry(
            FiveTuple(Endpoint(saddr, sport), Endpoint(daddr, dport)),
            Endpoint(out_saddr, out_sport),
            Endpoint(out_daddr, out_dport),
            ttl_ms,
            dscp >> 2 if flags & layout.ENTRY_DSCP else None,
        )

    def _entry_at(self, slot: int) -> RelayEntry:
        ttl_ms = self._detail_words[slot * 16 + layout.DETAIL_TTL_OFFSET // 4]
        return self._decode(self._slot_mm, slot * 64, self._wide_mm[slot * 64 : slot * 64 + 64], ttl_ms)

    def _decode_record(self, record: bytes | bytearray) -> RelayEntry:
        (ttl_ms,) = struct.unpack_from("<I", record, _DETAIL_AT + layout.DETAIL_TTL_OFFSET)
        return self._decode(record, 0, record[_WIDE_AT:], ttl_ms)

    def get(self, keys: list[FiveTuple]) -> list[RelayEntry | None]:
        """The entries of these keys, None for those that are not in."""
        found: list[RelayEntry | None] = []
        for key in keys:
            slot = self._slot_of(key)
            record = self._overflow_record(key) if slot < 0 and key in self._overflow else None
            if slot >= 0:
                found.append(self._entry_at(slot))
            else:
                found.append(None if record is None else self._decode_record(record))
        return found

    def __len__(self) -> int:
        return self._entries

    def keys(self) -> list[FiveTuple]:
        """The keys of all entries."""
        return self._keys_at(np.flatnonzero(self._slots["generation"] & 1)) + list(self._overflow)

    def _keys_at(self, slots: np.ndarray) -> list[FiveTuple]:
        raw = np.frombuffer(self._slot_mm, dtype=np.uint8, count=len(self._slots) * layout.SLOT_SIZE).reshape(-1, layout.SLOT_SIZE)
        heads = raw[slots, _ADDRESSES_AT : _PORTS_AT + 4].tobytes()
        is6 = (self._slots["flags"][slots] & layout.ENTRY_KEY6) != 0
        keys = [FiveTuple(Endpoint(s, sp), Endpoint(d, dp)) for s, d, sp, dp in _KEYS.iter_unpack(heads)]
        for n in np.flatnonzero(is6).tolist():
            at = int(slots[n]) * 64
            key = keys[n]
            keys[n] = FiveTuple(Endpoint(self._wide_mm[at : at + 16], key.src.port), Endpoint(self._wide_mm[at + 16 : at + 32], key.dst.port))
        return keys

    def _gather(self, keys: list[FiveTuple] | None) -> tuple[list[FiveTuple], np.ndarray, np.ndarray, np.ndarray]:
        """Keys, copies of their slots and details, and the stray counter of each one's port."""
        if keys is None:
            slots = np.flatnonzero(self._slots["generation"] & 1)
            found = self._keys_at(slots)
            further = list(self._overflow)
        else:
            found, numbers, further = [], [], []
            for key in keys:
                slot = self._slot_of(key)
                if slot >= 0:
                    found.append(key)
                    numbers.append(slot)
                elif key in self._overflow:
                    further.append(key)
            slots = np.array(numbers, dtype=np.int64)
        records, details = self._slots[slots], self._details[slots]
        strays = details["stray"]
        if further:
            raw = [bytes(self._overflow_record(key) or bytes(layout.OVERFLOW_SIZE)) for key in further]
            records = np.concatenate([records, np.frombuffer(b"".join(r[:_DETAIL_AT] for r in raw), dtype=layout.SLOT)])
            details = np.concatenate([details, np.frombuffer(b"".join(r[_DETAIL_AT:_WIDE_AT] for r in raw), dtype=layout.DETAIL)])
            marks = (self._overflow[key] for key in further)
            more = [self._detail_words[slot * 16 + layout.DETAIL_STRAY_WORD] if slot >= 0 else 0 for slot in marks]
            strays = np.concatenate([strays, np.array(more, dtype=np.uint32)])
        return found + further, records, details, strays

    def stats(self, keys: list[FiveTuple] | None = None) -> dict[FiveTuple, StreamStats]:
        """What was counted on these entries (None: all); keys without an entry are left out.

        lost is expected minus received packets (RFC 3550 A.3, so duplicates count as received), never
        below 0; jitter_us assumes the clock of the payload type. ssrc and what goes with it are None
        until the first RTP packet.
        """
        found, records, details, strays = self._gather(keys)
        return dict(zip(found, figures(records, details, strays, self._tick())))

    def scan(self, size: int, most: int) -> Iterator[list[tuple[RelayEntry, StreamStats]]]:
        """All entries with addresses of `size` bytes and their statistics, at most `most` at a time.

        Entries may come and go between two steps: those that went are left out, those that came may be.
        """
        valid = (self._slots["generation"] & 1 != 0) & ((self._slots["flags"] & layout.ENTRY_KEY6 != 0) == (size == 16))
        slots = np.flatnonzero(valid)
        for start in range(0, len(slots), most):
            chunk = slots[start : start + most]
            chunk = chunk[self._slots["generation"][chunk] & 1 != 0]
            records, details = self._slots[chunk], self._details[chunk]
            entries = [self._entry_at(slot) for slot in chunk.tolist()]
            # Another entry may have taken a slot since.
            yield [pair for pair in zip(entries, figures(records, details, details["stray"], self._tick())) if len(pair[0].key.dst.addr) == size]
        further = [key for key in self._overflow if len(key.dst.addr) == size]
        for start in range(0, len(further), most):
            keys = further[start : start + most]
            stats = self.stats(keys)
            yield [(entry, stats[entry.key]) for entry in self.get(keys) if entry is not None and entry.key in stats]

    def idle(self, keys: list[FiveTuple] | None = None) -> dict[FiveTuple, int]:
        """Milliseconds since the last packet (or since the entry was put in) of these entries (None: all)."""
        found, records, _, _ = self._gather(keys)
        return dict(zip(found, idle_ms(records["last_jiffies"], self._tick()).tolist()))

    def expired(self) -> list[FiveTuple]:
        """Keys of the entries that have been idle for their ttl_ms or longer (ttl 0: never)."""
        now = self._tick()
        # Column by column, so that a million entries cost no copy of their records.
        valid = np.flatnonzero(self._slots["generation"] & 1)
        ttl = self._details["ttl_ms"][valid]
        late = valid[(ttl > 0) & (idle_ms(self._slots["last_jiffies"][valid], now) >= ttl)]
        keys = self._keys_at(late)
        if self._overflow:
            found, records, details, _ = self._gather(list(self._overflow))
            mask = (details["ttl_ms"] > 0) & (idle_ms(records["last_jiffies"], now) >= details["ttl_ms"])
            keys += [found[n] for n in np.flatnonzero(mask).tolist()]
        return keys

    def reset_stats(self, keys: Iterable[FiveTuple]) -> None:
        """Set the counters of these entries to 0; their idle time goes on."""
        for key in keys:
            slot = self._slot_of(key)
            record = self._overflow_record(key) if slot < 0 and key in self._overflow else None
            if slot >= 0:
                _reset(self._slot_mm, slot * 64, self._detail_mm, slot * 64)
            elif record is not None:
                _reset(record, 0, record, _DETAIL_AT)
                libbpf.update(self._loaded.maps["overflow"], self._flow_key(key), bytes(record))

    def totals(self) -> dict[str, int]:
        """Counters of the whole data plane, over all CPUs, since the maps were made."""
        sums = self._sums()
        reasons = sums[: layout.REASON_ROOM]
        relayed, missed, stray, limited, conference, refused = (reasons[n] for n in (0, layout.MISS, layout.STRAY, layout.OVER_LIMIT, layout.CONFERENCE, layout.REFUSED))
        totals = {
            "rx_packets": sum(reasons),
            "relayed_packets": relayed,
            "relayed_bytes": sums[layout.REASON_ROOM],
            "missed_packets": missed,
            "stray_packets": stray,
            "passed_packets": sum(reasons) - relayed - missed - stray - limited - conference - refused,
            "refused_packets": refused,
            "limited_packets": limited,
            "conference_packets": conference,
            "too_big_packets": reasons[layout.TOO_BIG],
            "unrouted_packets": reasons[layout.UNROUTED],
            "learn_notices": sums[layout.REASON_ROOM + 1],
            "learn_suppressed": sums[layout.REASON_ROOM + 2],
            "entries": self._entries,
            "capacity": self.capacity,
        }
        return totals if self.replication is None else totals | self.replication.agent_counts()

    def reasons(self) -> dict[str, int]:
        """How many packets ended for which reason; `relayed` is among them."""
        return dict(zip(layout.REASONS, self._sums()))

    def _sums(self) -> list[int]:
        return self._totals.sum(axis=0).tolist()

    def maps(self) -> dict[str, int]:
        """File descriptors of the maps by name, for programs that share them; they stay this object's."""
        return {name: self._loaded.maps[name] for name in (*_KERNEL_MAPS, "limits")}

    def program(self, name: str) -> int:
        """File descriptor of a program (`relay_native`, `relay_generic`, `limited_native`, `limited_generic`, `relay_trace`) for a test run; it stays this object's."""
        return self._loaded.programs[name]

    def memory(self) -> dict[str, int]:
        """Bytes of kernel memory of each map."""
        return {name: libbpf.map_memory(fd) for name, fd in self.maps().items()}

    # Media ports

    def media(self) -> list[MediaRange]:
        """The ranges in which a miss raises a learn notice."""
        return [r for address in self._addresses.values() for r in address.ranges]

    def add_media(self, ports: MediaRange) -> str | None:
        """Add a range. None when it is in, or `exists`, `full`, or `invalid: ` and why."""
        if len(ports.addr) not in (4, 16) or not 0 <= ports.first_port <= ports.last_port <= 65535:
            return f"invalid: {ports.first_port}-{ports.last_port} is no range of ports of an IPv4 or IPv6 address"
        address = self._addresses.get(ports.addr)
        if address is not None and ports in address.ranges:
            return "exists"
        address = address or self._add_address(ports.addr)
        if address is None:
            return "full"
        problem = libbpf.update(self._loaded.maps["media_ranges"], self._range_key(ports), struct.pack("<I", 1))
        if problem:
            self._drop_address(address)
            return "full"
        address.ranges.add(ports)
        self._write_media(address)
        return None

    def remove_media(self, ports: MediaRange) -> bool:
        """Remove a range as it was added; False when it was not in."""
        address = self._addresses.get(ports.addr)
        if address is None or ports not in address.ranges:
            return False
        address.ranges.discard(ports)
        libbpf.delete(self._loaded.maps["media_ranges"], self._range_key(ports))
        self._write_media(address)
        self._drop_address(address)
        return True

    def _write_media(self, address: _Address) -> None:
        bits = np.zeros(65536, dtype=np.uint8)
        for ports in address.ranges:
            bits[ports.first_port : ports.last_port + 1] = 1
        self._media[address.number * 8192 : (address.number + 1) * 8192] = np.packbits(bits, bitorder="little")

    @staticmethod
    def _range_key(ports: MediaRange) -> bytes:
        return struct.pack("!16sHH4s", _fixed(ports.addr), ports.first_port, ports.last_port, layout.VERSION_MARK[4 if len(ports.addr) == 4 else 6])

    # Learn notices

    @property
    def learn_fd(self) -> int:
        """Readable when poll_learn() has notices."""
        return self._loaded.maps["notices"]

    def poll_learn(self, limit: int = 4096) -> list[LearnNotice]:
        """Take up to `limit` waiting notices."""
        found: list[LearnNotice] = []
        for record in self._ring.read(limit):
            saddr, daddr, sport, dport, version = layout.FLOW_KEY.unpack_from(record)
            ssrc, seq, rtp_version, payload_type = layout.NOTICE.unpack_from(record, layout.FLOW_KEY.size)
            if version == layout.VERSION_MARK[4]:
                saddr, daddr = saddr[:4], daddr[:4]
            found.append(LearnNotice(FiveTuple(Endpoint(saddr, sport), Endpoint(daddr, dport)), rtp_version, payload_type, seq, ssrc))
        return found

    # Trace

    def trace(self, key: FiveTuple, vlan: int | None = None) -> dict[str, str]:
        """What the program does with a packet of this 5-tuple now, by running it on one; nothing is counted.

        vlan: the packet's 802.1Q tag. Keys of the answer: verdict (`redirect`, `pass`), reason,
        out_src, out_dst, out_interface (empty unless redirected).
        """
        if len(key.src.addr) != len(key.dst.addr):
            return {"verdict": "invalid", "reason": "addresses of two IP versions", "out_src": "", "out_dst": "", "out_interface": ""}
        run = libbpf.test_run(self._loaded.programs["relay_trace"], sample_packet(key, vlan))
        verdict, reason, hop = run.retval & 0xFF, run.retval >> 8 & 0xFF, run.retval >> 16
        answer = {
            "verdict": layout.VERDICTS[verdict] if verdict < len(layout.VERDICTS) else str(verdict),
            "reason": layout.REASONS[reason] if reason < len(layout.REASONS) else str(reason),
            "out_src": "",
            "out_dst": "",
            "out_interface": "",
        }
        if verdict == layout.XDP_REDIRECT:
            src, dst, tag = _read_packet(run.packet)
            ifindex, _, _ = self._hops.describe(hop)
            link = self._hops.link(ifindex)
            answer |= {"out_src": str(src), "out_dst": str(dst), "out_interface": link.name if link else str(ifindex)}
        return answer

    # Adoption

    def _adopt(self) -> None:
        """Read the state that Python keeps from the maps, and mend what a killed process left half done."""
        used: set[int] = set()
        found: dict[bytes, tuple[int, int]] = {}
        for row in range(layout.ADDRESS_ROWS):
            word = self._rows4[row]
            if word >> 32:
                found[(word & 0xFFFFFFFF).to_bytes(4, "little")] = ((word >> 32) - 1, row)
            owner = self._owners6[row * 6 + 4]
            if owner:
                found[self._rows6[row * 24 : row * 24 + 16]] = (owner - 1, row)
        for addr, (number, row) in found.items():
            address = self._addresses[addr] = _Address(addr, number, row)
            for position in range(256):
                chunk = self._places[layout.chunk_word(number, position)] // layout.CHUNK_SIZE
                if chunk:
                    address.chunks[position] = chunk
                    address.live_chunks += 1
                    used.add(chunk)
        shortcuts = {layout.shortcut(addr): layout.list_place(number) for addr, (number, _) in found.items() if len(addr) == 4}
        for word in range(layout.SHORTCUTS):
            if self._places[word] != shortcuts.get(word, 0):
                self._places[word] = shortcuts.get(word, 0)
        numbers = {address.number for address in self._addresses.values()}
        self._free_numbers = [n for n in self._free_numbers if n not in numbers]
        self._free_chunks = [n for n in self._free_chunks if n not in used]

        valid = np.flatnonzero(self._slots["generation"] & 1)
        reachable = np.isin(valid >> 8, np.fromiter(used, dtype=np.int64, count=len(used)))
        stale = valid[~reachable]
        self._slots["generation"][stale] += 1
        valid = valid[reachable]
        self._entries = len(valid)
        for chunk, count in zip(*np.unique(valid >> 8, return_counts=True)):
            self._live[int(chunk)] += int(count)
        overflow_hops = self._adopt_overflow()
        self._adopt_media()
        for address in list(self._addresses.values()):
            for position, chunk in enumerate(address.chunks):
                if chunk and not self._live[chunk]:
                    self._drop_chunk(address.addr, position << 8)
            if address.addr in self._addresses:
                self._drop_address(address)
        self._adopt_hops(valid, overflow_hops)

    def _adopt_overflow(self) -> list[tuple[FiveTuple, RelayEntry, int]]:
        entries: list[tuple[FiveTuple, RelayEntry, int]] = []
        loose = 0
        for _, record in libbpf.elements(self._loaded.maps["overflow"]):
            entry = self._decode_record(record)
            (hop,) = struct.unpack_from("<H", record, layout.SLOT_NEXTHOP_OFFSET)
            slot = self._find_slot(entry.key.dst.addr, entry.key.dst.port)
            self._overflow[entry.key] = slot
            if slot >= 0:
                self._mark(slot)
            else:
                self._loose.setdefault((entry.key.dst.addr, entry.key.dst.port >> 8), set()).add(entry.key)
                loose += 1
            entries.append((entry.key, entry, hop))
        self._settings[0] = loose
        for slot in np.flatnonzero(self._details["slot_flags"]).tolist():
            if slot not in self._marked:
                self._detail_words[slot * 16] = 0
        self._entries += len(entries)
        return entries

    def _adopt_media(self) -> None:
        for raw, _ in libbpf.elements(self._loaded.maps["media_ranges"]):
            addr, first, last, version = struct.unpack("!16sHH4s", raw)
            ports = MediaRange(addr[:4] if version == layout.VERSION_MARK[4] else addr, first, last)
            address = self._addresses.get(ports.addr) or self._add_address(ports.addr)
            if address is not None:
                address.ranges.add(ports)
        for address in self._addresses.values():
            self._write_media(address)

    def _adopt_hops(self, valid: np.ndarray, overflow: list[tuple[FiveTuple, RelayEntry, int]]) -> None:
        """Find the next hops of the entries anew, on the rows that they use already wherever possible."""
        records = self._slots[valid]
        hops = records["nexthop"]
        taken = set(np.unique(hops).tolist()) | {hop for _, _, hop in overflow}
        if self.replication is not None:
            taken |= self.replication.rows()
        out6 = (records["flags"] & layout.ENTRY_OUT6) != 0
        narrow = np.flatnonzero(~out6)
        packed = records["out_daddr"][narrow].astype(np.uint64) << np.uint64(32) | records["out_saddr"][narrow]
        unique, first, inverse, counts = np.unique(packed, return_index=True, return_inverse=True, return_counts=True)
        rows = np.zeros(len(unique), dtype=np.uint16)
        for n, (name, count) in enumerate(zip(unique.tolist(), counts.tolist())):
            dst, src = (name >> 32).to_bytes(4, "little"), (name & 0xFFFFFFFF).to_bytes(4, "little")
            rows[n] = self._hops.adopt(dst, src, count, int(hops[narrow[first[n]]]), taken)
        if len(narrow):
            new = rows[inverse]
            changed = new != hops[narrow]
            self._slots["nexthop"][valid[narrow[changed]]] = new[changed]
        for n in np.flatnonzero(out6).tolist():
            slot = int(valid[n])
            entry = self._entry_at(slot)
            row = self._hops.adopt(entry.dst.addr, entry.src.addr, 1, int(hops[n]), taken)
            if row != int(hops[n]):
                self._slots["nexthop"][slot] = row
        for key, entry, hop in overflow:
            row = self._hops.adopt(entry.dst.addr, entry.src.addr, 1, hop, taken)
            record = self._overflow_record(key) if row != hop else None
            if record is not None:
                struct.pack_into("<H", record, layout.SLOT_NEXTHOP_OFFSET, row)
                libbpf.update(self._loaded.maps["overflow"], self._flow_key(key), bytes(record))
        if self.replication is not None:
            self.replication.adopt(taken)
        self._hops.finish_adoption()


def _take_out(directory: Path) -> None:
    """Detach the programs that are attached from here and unpin what a softswitch pins, whatever its layout."""
    for path in [*directory.glob("link_*_native"), *directory.glob("link_*_generic")]:
        fd = libbpf.get(path)
        libbpf.detach(fd)
        os.close(fd)
        path.unlink()
    Replication.unpin(directory)
    libbpf.forget_loaded(directory)
    # The mark goes first: a rest without it is no table.
    for name in (*_KERNEL_MAPS, *_FORMER_MAPS):
        _pin_path(directory, name).unlink(missing_ok=True)


def _reset(slots: Any, slot_at: int, details: Any, detail_at: int) -> None:
    """Zero the counters of one slot and detail."""
    (last,) = struct.unpack_from("<I", slots, slot_at + layout.SLOT_LAST_OFFSET)
    _COUNTERS.pack_into(slots, slot_at + _COUNTERS_AT, last)
    details[detail_at + layout.DETAIL_COUNTERS_OFFSET : detail_at + layout.DETAIL_SIZE] = _ZERO56


def _ones_sum(data: bytes) -> int:
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def sample_packet(key: FiveTuple, vlan: int | None = None) -> bytes:
    """An Ethernet frame with an RTP-like UDP packet of this 5-tuple, checksums right."""
    (saddr, sport), (daddr, dport) = key
    payload = b"\x80\0" + b"\0" * 10
    length = 8 + len(payload)
    udp = struct.pack("!HHHH", sport, dport, length, 0)
    check = ~_ones_sum(saddr + daddr + struct.pack("!HH", 17, length) + udp + payload) & 0xFFFF
    udp = udp[:6] + struct.pack("!H", check or 0xFFFF) + payload
    if len(saddr) == 4:
        header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + length, 0, 0x4000, 64, 17, 0, saddr, daddr)
        header = header[:10] + struct.pack("!H", ~_ones_sum(header) & 0xFFFF) + header[12:]
        kind = 0x0800
    else:
        header = struct.pack("!IHBB16s16s", 0x60000000, length, 17, 64, saddr, daddr)
        kind = 0x86DD
    tag = b"" if vlan is None else struct.pack("!HH", 0x8100, vlan & 0xFFF)
    return b"\x02\0\0\0\0\1\x02\0\0\0\0\2" + tag + struct.pack("!H", kind) + header + udp


def _read_packet(frame: bytes) -> tuple[Endpoint, Endpoint, int | None]:
    """Source, destination and VLAN tag of a frame that the program has rewritten."""
    at, tag = 14, None
    (kind,) = struct.unpack_from("!H", frame, 12)
    if kind == 0x8100:
        tag, kind = struct.unpack_from("!HH", frame, 14)
        at, tag = 18, tag & 0xFFF
    size, addresses = (20, at + 12) if kind == 0x0800 else (40, at + 8)
    width = 4 if kind == 0x0800 else 16
    sport, dport = struct.unpack_from("!HH", frame, at + size)
    src = frame[addresses : addresses + width]
    dst = frame[addresses + width : addresses + 2 * width]
    return Endpoint(src, sport), Endpoint(dst, dport), tag
