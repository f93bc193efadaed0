"""Bound sockets of this network namespace and the processes that hold them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from shunt.doctor.facts import Bound, Ports, Process, Unknown
from shunt.errors import cause, plain

_LISTENING = "0A"
_CONNECT_S = 1.0


class Row(NamedTuple):
    """A line of /proc/net/udp and its like."""

    kind: Literal["udp", "tcp"]
    host: str
    port: int
    inode: int


def parse_table(text: str, kind: Literal["udp", "tcp"]) -> list[Row]:
    """Bound UDP or listening TCP sockets of /proc/net/udp, udp6, tcp or tcp6 (proc(5)); sockets that are connected count as bound."""
    rows = []
    for line in text.splitlines()[1:]:
        words = line.split()
        host, _, port = words[1].partition(":")
        if kind == "tcp" and words[3] != _LISTENING:
            continue
        packed = b"".join(struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
        rows.append(Row(kind, socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed), int(port, 16), int(words[9])))
    return rows


def _rows() -> list[Row]:
    kinds: tuple[Literal["udp", "tcp"], ...] = ("udp", "tcp")
    rows = []
    for kind in kinds:
        rows += parse_table(Path(f"/proc/self/net/{kind}").read_text(encoding="ascii"), kind)
        with contextlib.suppress(FileNotFoundError):  # no IPv6
            rows += parse_table(Path(f"/proc/self/net/{kind}6").read_text(encoding="ascii"), kind)
    return rows


def process(pid: int) -> Process:
    """A process's name and arguments; what cannot be read is empty."""
    name, arguments = str(pid), b""
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    return Process(pid, name, tuple(word.decode(errors="replace") for word in arguments.split(b"\0") if word))


def _holders(wanted: set[int]) -> dict[int, Process]:
    """The process of each of these sockets, where /proc says it; root sees all."""
    found: dict[int, Process] = {}
    for entry in os.scandir("/proc") if wanted else ():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(f"/proc/{entry.name}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(descriptor.path)
                    if target.startswith("socket:[") and (inode := int(target[8:-1])) in wanted and inode not in found:
                        found[inode] = process(int(entry.name))
    return found


def bound(wanted: Callable[[Row], bool]) -> tuple[Bound, ...]:
    """The sockets that are wanted, with their processes, and without those of this one. Raises OSError."""
    rows = [row for row in _rows() if wanted(row)]
    holders = _holders({row.inode for row in rows})
    if len(holders) < len({row.inode for row in rows}):
        # A socket may have been closed before its process was looked for.
        still = {row.inode for row in _rows()}
        rows = [row for row in rows if row.inode in holders or row.inode in still]
    unseen = Unknown("its process cannot be seen; ask as root" if os.geteuid() else "its process is in no pid namespace that is seen here")
    found = [Bound(row.kind, row.host, row.port, holders.get(row.inode, unseen)) for row in rows]
    return tuple(each for each in found if not isinstance(each.holder, Process) or each.holder.pid != os.getpid())


def unix_listener(path: str) -> Bound | None:
    """Who listens on a Unix socket; None: nobody."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(_CONNECT_S)
        try:
            link.connect(path)
            pid = struct.unpack("=iII", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as error:
            return Bound("unix", "", 0, Unknown(cause(error)), path)
    # Pid 0: the listener is in another pid namespace.
    return Bound("unix", "", 0, process(pid) if pid else Unknown("its process is in another pid namespace"), path)


def peer_uid(path: str) -> int | None:
    """The user that listens on a Unix socket; None: nobody does, or it cannot be asked."""
    with socket.socket(socket.AF_UNIX) as link, contextlib.suppress(OSError):
        link.settimeout(_CONNECT_S)
        link.connect(path)
        return int(struct.unpack("=iII", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])
    return None


def _is_local(address: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            # What else may go wrong says nothing about the address.
            return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


def parse_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """The ranges of ip_local_reserved_ports: "8080,9148-9150"."""
    found = []
    for part in text.strip().split(",") if text.strip() else ():
        first, _, last = part.partition("-")
        found.append((int(first), int(last or first)))
    return tuple(found)


def ports(addresses: Iterable[str], unix: Iterable[str], wanted: Callable[[Row], bool]) -> Ports:
    """What ports.py asks. Raises OSError."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
        ephemeral: tuple[int, int] | Unknown = (int(first), int(last))
    except OSError as error:
        ephemeral = Unknown(plain(error, "ip_local_port_range"))
    try:
        reserved = parse_ranges(Path("/proc/sys/net/ipv4/ip_local_reserved_ports").read_text(encoding="ascii"))
    except OSError:
        reserved = ()
    local: Mapping[str, bool] = {address: _is_local(address) for address in addresses}
    listeners = [listener for path in unix if (listener := unix_listener(path)) is not None]
    return Ports(ephemeral, reserved, (*bound(wanted), *listeners), local)
