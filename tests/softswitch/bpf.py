"""A few commands of bpf(2): pinned objects and programs by number, test runs, detaching links, and loading a test's own program."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_SYSCALL = {"x86_64": 321, "aarch64": 280}[platform.machine()]
# enum bpf_cmd of linux/bpf.h
_PROG_LOAD, _OBJ_PIN, _OBJ_GET, _PROG_TEST_RUN, _PROG_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD, _LINK_DETACH = 5, 6, 7, 10, 13, 15, 34
_XDP = 6  # enum bpf_prog_type
_LIVE_FRAMES = 2  # BPF_F_TEST_XDP_LIVE_FRAMES
_ATTRIBUTES = 128
_ID_AT, _NAME_AT, _NAME_SIZE = 4, 64, 16  # struct bpf_prog_info


def _call(command: int, attributes: bytes) -> tuple[int, bytes]:
    """The result of bpf(2), and the attributes as the kernel left them. Raises OSError."""
    room = ctypes.create_string_buffer(attributes.ljust(_ATTRIBUTES, b"\0"), _ATTRIBUTES)
    result = _libc.syscall(_SYSCALL, command, room, _ATTRIBUTES)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bpf(2) command {command}: {os.strerror(number)}")
    return result, room.raw


def pinned(path: Path) -> int:
    """A file descriptor of a pinned object. Raises OSError."""
    text = ctypes.create_string_buffer(os.fsencode(path))
    return _call(_OBJ_GET, struct.pack("=QII", ctypes.addressof(text), 0, 0))[0]


def pin(fd: int, path: Path) -> None:
    """Pin an object. Raises OSError."""
    text = ctypes.create_string_buffer(os.fsencode(path))
    _call(_OBJ_PIN, struct.pack("=QII", ctypes.addressof(text), fd, 0))


def program(number: int) -> int:
    """A file descriptor of the program with this id. Raises OSError."""
    return _call(_PROG_GET_FD_BY_ID, struct.pack("=III", number, 0, 0))[0]


def program_info(fd: int) -> tuple[int, str]:
    """A program's id, and its name as the kernel keeps it: the first fifteen characters. Raises OSError."""
    room = ctypes.create_string_buffer(_NAME_AT + _NAME_SIZE)
    _call(_OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, len(room), ctypes.addressof(room)))
    (number,) = struct.unpack_from("=I", room, _ID_AT)
    return number, room.raw[_NAME_AT : _NAME_AT + _NAME_SIZE].rstrip(b"\0").decode()


def detach(path: Path) -> None:
    """Detach a pinned link; without error when it is none, or its interface is gone."""
    try:
        fd = pinned(path)
    except OSError:
        return
    try:
        _call(_LINK_DETACH, struct.pack("=I", fd))
    except OSError:
        pass
    finally:
        os.close(fd)


def load_xdp(name: str, code: bytes) -> int:
    """Load an XDP program of so many instructions of eight bytes; returns its file descriptor. Raises OSError."""
    given, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"Apache-2.0")
    attributes = struct.pack("=IIQQIIQII16s", _XDP, len(code) // 8, ctypes.addressof(given), ctypes.addressof(licence), 0, 0, 0, 0, 0, name.encode())
    return _call(_PROG_LOAD, attributes)[0]


def run_live(fd: int, packet: bytes, *, repeat: int, batch: int) -> None:
    """Run an XDP program on live frames that start as `packet`: what it redirects leaves, as from a driver. batch: frames in one go. Raises OSError."""
    given = ctypes.create_string_buffer(packet, len(packet))
    _call(_PROG_TEST_RUN, struct.pack("=IIIIQQIIIIQQIII", fd, 0, len(packet), 0, ctypes.addressof(given), 0, repeat, 0, 0, 0, 0, 0, _LIVE_FRAMES, 0, batch))


def test_run(fd: int, packet: bytes, *, context: bytes = b"", repeat: int = 1) -> tuple[int, bytes, int]:
    """Run a program on a packet of at least 14 bytes; the result are its return value, the packet afterwards, and mean ns a run.

    context: a struct xdp_md. Raises OSError.
    """
    given, room = ctypes.create_string_buffer(packet, len(packet)), ctypes.create_string_buffer(len(packet) + 256)
    around = ctypes.create_string_buffer(context, len(context))
    _, after = _call(
        _PROG_TEST_RUN,
        struct.pack(
            "=IIIIQQIIIIQQIII", fd, 0, len(packet), len(room), ctypes.addressof(given), ctypes.addressof(room), repeat, 0,
            len(context), 0, ctypes.addressof(around) if context else 0, 0, 0, 0, 0,
        ),
    )  # fmt: skip
    _, verdict, _, size, _, _, _, duration = struct.unpack_from("=IIIIQQII", after)
    return verdict, room.raw[:size], duration


test_run.__test__ = False  # type: ignore[attr-defined]  # pytest: it is no test
