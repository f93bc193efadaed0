"""libbpf for benches: loading their own programs, maps in memory, links, test runs."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import mmap
import os
import struct
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

BPF_XDP = 37
_ARRAY = 2
_MMAPABLE = 1 << 10
XDP_FLAGS_SKB_MODE = 2
XDP_FLAGS_DRV_MODE = 4
_LIVE_FRAMES = 1 << 1

_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class BpfError(OSError):
    """A bpf operation failed; the text says which, on what, and what libbpf or the verifier said."""


class _TestRunOpts(ctypes.Structure):
    _fields_ = [
        ("sz", ctypes.c_size_t), ("data_in", ctypes.c_void_p), ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32), ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p), ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32), ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32), ("repeat", ctypes.c_int), ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32), ("cpu", ctypes.c_uint32), ("batch_size", ctypes.c_uint32),
    ]  # fmt: skip


class _LinkCreateOpts(ctypes.Structure):
    _fields_ = [
        ("sz", ctypes.c_size_t), ("flags", ctypes.c_uint32), ("iter_info", ctypes.c_void_p),
        ("iter_info_len", ctypes.c_uint32), ("target_btf_id", ctypes.c_uint32), ("cookie", ctypes.c_uint64),
    ]  # fmt: skip


class _MapCreateOpts(ctypes.Structure):
    _fields_ = [
        ("sz", ctypes.c_size_t), ("btf_fd", ctypes.c_uint32), ("btf_key_type_id", ctypes.c_uint32), ("btf_value_type_id", ctypes.c_uint32),
        ("btf_vmlinux_value_type_id", ctypes.c_uint32), ("inner_map_fd", ctypes.c_uint32), ("map_flags", ctypes.c_uint32),
        ("map_extra", ctypes.c_uint64), ("numa_node", ctypes.c_uint32), ("map_ifindex", ctypes.c_uint32),
    ]  # fmt: skip


class _Library:
    """libbpf with its prototypes, and the text of what it printed last."""

    def __init__(self) -> None:
        try:
            self.lib = ctypes.CDLL("libbpf.so.1", use_errno=True)
        except OSError as exc:
            raise BpfError(errno.ENOENT, "libbpf.so.1 is not installed (Debian: libbpf1)") from exc
        self._libc = ctypes.CDLL(None)
        self._libc.vsnprintf.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p)
        self.printed: list[str] = []
        self._callback = _PRINT(self._print)
        lib = self.lib
        void, text, u32, fd = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_int
        lib.libbpf_set_print.argtypes = (_PRINT,)
        lib.libbpf_set_print.restype = void
        lib.libbpf_set_print(self._callback)
        for name, arguments, result in (
            ("bpf_object__open_file", (text, void), void),
            ("bpf_object__load", (void,), fd),
            ("bpf_object__close", (void,), None),
            ("bpf_object__next_map", (void, void), void),
            ("bpf_object__next_program", (void, void), void),
            ("bpf_object__find_map_by_name", (void, text), void),
            ("bpf_map__name", (void,), text),
            ("bpf_map__fd", (void,), fd),
            ("bpf_map__reuse_fd", (void, fd), fd),
            ("bpf_map__value_size", (void,), u32),
            ("bpf_map__set_max_entries", (void, u32), fd),
            ("bpf_map__initial_value", (void, ctypes.POINTER(ctypes.c_size_t)), void),
            ("bpf_map__set_initial_value", (void, void, ctypes.c_size_t), fd),
            ("bpf_program__name", (void,), text),
            ("bpf_program__fd", (void,), fd),
            ("bpf_program__set_autoload", (void, ctypes.c_bool), fd),
            ("bpf_obj_pin", (fd, text), fd),
            ("bpf_obj_get", (text,), fd),
            ("bpf_obj_get_info_by_fd", (fd, void, ctypes.POINTER(u32)), fd),
            ("bpf_link_create", (fd, fd, ctypes.c_int, void), fd),
            ("bpf_link_update", (fd, fd, void), fd),
            ("bpf_link_detach", (fd,), fd),
            ("bpf_prog_test_run_opts", (fd, void), fd),
            ("bpf_map_lookup_elem", (fd, void, void), fd),
            ("bpf_map_update_elem", (fd, void, void, ctypes.c_uint64), fd),
            ("bpf_map_delete_elem", (fd, void), fd),
            ("bpf_map_create", (ctypes.c_int, text, u32, u32, u32, void), fd),
            ("libbpf_num_possible_cpus", (), ctypes.c_int),
            ("bpf_map_get_next_key", (fd, void, void), fd),
            ("bpf_map_get_fd_by_id", (u32,), fd),
            ("bpf_prog_get_fd_by_id", (u32,), fd),
        ):
            function = getattr(lib, name)
            function.argtypes = arguments
            function.restype = result

    def _print(self, level: int, template: bytes, arguments: int) -> int:
        room = ctypes.create_string_buffer(1 << 16)
        self._libc.vsnprintf(room, len(room), template, arguments)
        if level <= 1:
            self.printed = (self.printed + [room.value.decode("utf-8", "replace").rstrip()])[-40:]
        return 0

    def fail(self, number: int, what: str) -> BpfError:
        said, self.printed = "\n".join(self.printed), []
        text = f"{what}: {os.strerror(abs(number))}"
        if abs(number) == errno.EPERM:
            text += " (needs CAP_BPF and CAP_NET_ADMIN)"
        return BpfError(abs(number), text + (f"\n{said[-1500:]}" if said else ""))


_library: _Library | None = None


def library() -> _Library:
    """libbpf, opened on first use. Raises BpfError when it is not installed."""
    global _library
    if _library is None:
        _library = _Library()
    return _library


@dataclass(slots=True)
class LoadedObject:
    """File descriptors of a loaded object's programs and maps, owned by the caller."""

    programs: dict[str, int]
    maps: dict[str, int]

    def close(self) -> None:
        for fd in (*self.programs.values(), *self.maps.values()):
            os.close(fd)
        self.programs, self.maps = {}, {}


def load_object(path: Path, *, sizes: dict[str, int], reuse: dict[str, int], constants: dict[str, bytes], symbols: dict[str, int], without: Container[str] = ()) -> LoadedObject:
    """Load an object file. sizes: by map name, max_entries, or of a data section the bytes it shall have; reuse: open maps to take instead of new ones.

    constants: values for the program's read-only data by variable name; symbols: their offsets in it
    (constant_offsets() reads them). without: programs to leave out, whose verification would take its time. Raises BpfError with the verifier's words.
    """
    lib = library().lib
    library().printed = []
    handle = lib.bpf_object__open_file(os.fsencode(path), None)
    if not handle:
        raise library().fail(ctypes.get_errno(), f"cannot open {path}")
    own_sizes: dict[int, int] = {}  # of the object's data sections
    try:
        current = lib.bpf_object__next_map(handle, None)
        while current:
            name = lib.bpf_map__name(current).decode()
            if name.startswith(".data"):
                own_sizes[current] = lib.bpf_map__value_size(current)
            if name in reuse:
                _check(lib.bpf_map__reuse_fd(current, reuse[name]), f"cannot reuse map {name}")
            elif name in sizes and name.startswith(".data"):
                made = data_section(name, sizes[name])
                try:
                    _check(lib.bpf_map__reuse_fd(current, made), f"cannot size map {name}")
                finally:
                    os.close(made)
            elif name in sizes:
                _check(lib.bpf_map__set_max_entries(current, sizes[name]), f"cannot size map {name}")
            elif name.endswith(".rodata") and constants:
                size = ctypes.c_size_t()
                old = lib.bpf_map__initial_value(current, ctypes.byref(size))
                value = bytearray(ctypes.string_at(old, size.value))
                for variable, content in constants.items():
                    offset = symbols[variable]
                    value[offset : offset + len(content)] = content
                _check(lib.bpf_map__set_initial_value(current, bytes(value), len(value)), "cannot set the constants")
            current = lib.bpf_object__next_map(handle, current)
        current = lib.bpf_object__next_program(handle, None)
        while current:
            if lib.bpf_program__name(current).decode() in without:
                _check(lib.bpf_program__set_autoload(current, False), "cannot leave a program out")
            current = lib.bpf_object__next_program(handle, current)
        _check(lib.bpf_object__load(handle), f"cannot load {path.name}")
        programs, maps = {}, {}
        current = lib.bpf_object__next_program(handle, None)
        while current:
            name = lib.bpf_program__name(current).decode()
            if name not in without:
                programs[name] = os.dup(lib.bpf_program__fd(current))
            current = lib.bpf_object__next_program(handle, current)
        current = lib.bpf_object__next_map(handle, None)
        while current:
            maps[lib.bpf_map__name(current).decode()] = os.dup(lib.bpf_map__fd(current))
            current = lib.bpf_object__next_map(handle, current)
        for fd in (*programs.values(), *maps.values()):
            os.set_inheritable(fd, False)
        return LoadedObject(programs, maps)
    finally:
        # libbpf unmaps its copy of a section by the size of the map that it was given, which would tear down its neighbours.
        for current, size in own_sizes.items():
            if lib.bpf_map__value_size(current) != size:
                stand_in = data_section("stand_in", size)
                lib.bpf_map__reuse_fd(current, stand_in)
                os.close(stand_in)
        lib.bpf_object__close(handle)


def _check(result: int, what: str) -> int:
    if result < 0:
        raise library().fail(result if result < -1 else ctypes.get_errno(), what)
    return result


def constant_offsets(path: Path) -> dict[str, int]:
    """Offsets of the global constants in an object's .rodata section."""
    return {name: offset for name, (offset, _) in constant_symbols(path).items()}


def constant_symbols(path: Path) -> dict[str, tuple[int, int]]:
    """(offset, bytes) of each global constant in an object's .rodata section, from its ELF symbol table."""
    image = path.read_bytes()
    (sections_at,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, sections_at + size * n) for n in range(count)]
    names_at = headers[names_index][4]

    def text(at: int) -> str:
        return image[at : image.index(b"\0", at)].decode()

    found: dict[str, tuple[int, int]] = {}
    for header in headers:
        if header[1] != 2:  # SHT_SYMTAB
            continue
        strings_at = headers[header[6]][4]
        for at in range(header[4], header[4] + header[5], 24):
            name, _info, _other, section, value, length = struct.unpack_from("<IBBHQQ", image, at)
            if 0 < section < count and text(names_at + headers[section][0]) == ".rodata" and name:
                found[text(strings_at + name)] = value, length
    return found


def get(path: Path) -> int:
    """Open what is pinned at `path`; returns a file descriptor. Raises BpfError."""
    return _check(library().lib.bpf_obj_get(os.fsencode(path)), f"cannot open pinned {path}")


def map_memory(fd: int) -> int:
    """Bytes of kernel memory that a map takes, as the kernel accounts it."""
    for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines():
        if line.startswith("memlock:"):
            return int(line.split()[1])
    return 0


def map_view(fd: int, size: int) -> mmap.mmap:
    """Map an mmapable array of `size` bytes. Raises BpfError."""
    page = mmap.PAGESIZE
    try:
        return mmap.mmap(fd, -(-size // page) * page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as exc:
        raise BpfError(exc.errno, f"cannot map an array of {size} bytes: {exc.strerror}") from exc


def lookup(fd: int, key: bytes, room: ctypes.Array) -> bool:
    """Read one element into `room`; False when it is absent."""
    result = library().lib.bpf_map_lookup_elem(fd, key, room)
    if result in (-errno.ENOENT, -1) and ctypes.get_errno() in (errno.ENOENT, 0):
        return False
    _check(result, "cannot read a map element")
    return True


def update(fd: int, key: bytes, value: bytes) -> int:
    """Write one element; returns 0 or the positive errno (E2BIG and ENOMEM: no room)."""
    result = library().lib.bpf_map_update_elem(fd, key, value, 0)
    return 0 if result == 0 else abs(result) if result < -1 else ctypes.get_errno()


def inner_map(fd: int, row: int, key_size: int = 4) -> int | None:
    """A file descriptor of the map in one row of an array of maps, or None."""
    number = ctypes.create_string_buffer(4)
    if not lookup(fd, row.to_bytes(key_size, "little"), number):
        return None
    return _check(library().lib.bpf_map_get_fd_by_id(int.from_bytes(number.raw, "little")), f"cannot open the map in row {row}")


def value(fd: int, key: bytes, size: int) -> bytes | None:
    """The value of so many bytes of one key, or None."""
    room = ctypes.create_string_buffer(size)
    return room.raw if lookup(fd, key, room) else None


def keys(fd: int, size: int) -> list[bytes]:
    """All keys of a map; size: bytes of one."""
    found: list[bytes] = []
    key, following = None, ctypes.create_string_buffer(size)
    while library().lib.bpf_map_get_next_key(fd, key, following) == 0:
        found.append(following.raw)
        key = ctypes.create_string_buffer(following.raw, size)
    return found


def program_maps(program: int) -> list[int]:
    """The ids of the maps that a program uses. Raises BpfError."""
    ids = (ctypes.c_uint32 * 64)()
    info = bytearray(80)  # the beginning of struct bpf_prog_info
    struct.pack_into("<I", info, 52, len(ids))
    struct.pack_into("<Q", info, 56, ctypes.addressof(ids))
    room, size = ctypes.create_string_buffer(bytes(info), len(info)), ctypes.c_uint32(len(info))
    _check(library().lib.bpf_obj_get_info_by_fd(program, room, ctypes.byref(size)), "cannot ask about a program")
    return list(ids[: struct.unpack_from("<I", room, 52)[0]])


def constants_of(program: int, size: int) -> bytes:
    """What a loaded program's read-only data is, of so many bytes. Raises LookupError where it has none of that size."""
    for number in program_maps(program):
        fd = _check(library().lib.bpf_map_get_fd_by_id(number), f"cannot open map {number}")
        try:
            info = ctypes.create_string_buffer(80)  # the beginning of struct bpf_map_info
            _check(library().lib.bpf_obj_get_info_by_fd(fd, info, ctypes.byref(ctypes.c_uint32(len(info)))), f"cannot ask about map {number}")
            value_size, name = struct.unpack_from("<I", info, 12)[0], info.raw[24:40].rstrip(b"\0")
            if name.endswith(b".rodata") and value_size == size:
                room = ctypes.create_string_buffer(size)
                lookup(fd, bytes(4), room)
                return room.raw
        finally:
            os.close(fd)
    raise LookupError(f"no read-only data of {size} bytes")


def program_by_id(number: int) -> int:
    """A file descriptor of the program with this id. Raises BpfError."""
    return _check(library().lib.bpf_prog_get_fd_by_id(number), f"cannot open program {number}")


def data_section(name: str, size: int) -> int:
    """The map of a data section of `size` bytes, all 0; returns its file descriptor. libbpf makes none of another size than the object file's.

    Raises BpfError.
    """
    opts = _MapCreateOpts(sz=ctypes.sizeof(_MapCreateOpts), map_flags=_MMAPABLE)
    return _check(library().lib.bpf_map_create(_ARRAY, name.encode()[:15], 4, size, 1, ctypes.byref(opts)), f"cannot make map {name} of {size} bytes")


def per_cpu(fd: int, index: int, size: int) -> list[bytes]:
    """The values of one element of a per-CPU array of `size` (a multiple of 8) bytes, one for each possible CPU."""
    cpus = library().lib.libbpf_num_possible_cpus()
    room = ctypes.create_string_buffer(cpus * size)
    _check(library().lib.bpf_map_lookup_elem(fd, struct.pack("<I", index), room), "cannot read per-CPU counters")
    return [room.raw[n * size : (n + 1) * size] for n in range(cpus)]


@dataclass(slots=True)
class TestRun:
    """The outcome of BPF_PROG_TEST_RUN: return value, packet afterwards, mean ns of one run."""

    __test__ = False

    retval: int
    packet: bytes
    duration_ns: int


def test_run(program: int, packet: bytes, *, repeat: int = 1) -> TestRun:
    """Run an XDP program on a packet of at least 14 bytes. Raises BpfError."""
    room = ctypes.create_string_buffer(len(packet) + 256)
    given = ctypes.create_string_buffer(packet, len(packet))
    opts = _TestRunOpts(
        sz=ctypes.sizeof(_TestRunOpts), data_in=ctypes.addressof(given), data_out=ctypes.addressof(room),
        data_size_in=len(packet), data_size_out=len(room), repeat=repeat,
    )  # fmt: skip
    _check(library().lib.bpf_prog_test_run_opts(program, ctypes.byref(opts)), "BPF_PROG_TEST_RUN")
    return TestRun(opts.retval, room.raw[: opts.data_size_out], opts.duration)


def run_live(program: int, packet: bytes, *, repeat: int, batch: int) -> None:
    """Run an XDP program `repeat` times on live frames that start as `packet`: what it redirects leaves, as from a driver.

    batch: frames between two flushes (1 to 4096). Redirects go by interface numbers of the calling thread's
    namespace. Returns early on a signal. Raises BpfError.
    """
    given = ctypes.create_string_buffer(packet, len(packet))
    opts = _TestRunOpts(sz=ctypes.sizeof(_TestRunOpts), data_in=ctypes.addressof(given), data_size_in=len(packet), repeat=repeat, flags=_LIVE_FRAMES, batch_size=batch)
    result = library().lib.bpf_prog_test_run_opts(program, ctypes.byref(opts))
    if result not in (0, -errno.EINTR):
        _check(result, "BPF_PROG_TEST_RUN with live frames")


def attach_xdp(program: int, ifindex: int, *, generic: bool) -> int:
    """Attach by a link, which outlives the process once pinned; returns its file descriptor. Raises BpfError."""
    opts = _LinkCreateOpts(sz=ctypes.sizeof(_LinkCreateOpts), flags=XDP_FLAGS_SKB_MODE if generic else XDP_FLAGS_DRV_MODE)
    mode = "generic" if generic else "native"
    return _check(library().lib.bpf_link_create(program, ifindex, BPF_XDP, ctypes.byref(opts)), f"cannot attach {mode} XDP to interface {ifindex}")


def detach(link: int) -> None:
    """Detach a link for good; not an error when its interface is gone."""
    library().lib.bpf_link_detach(link)
