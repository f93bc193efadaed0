"""The softswitch under test: its process, a client, and what benches need of its pinned maps and programs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bench import libbpf
from tests.softswitch import testrun
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.softswitch.replication import Replication
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.entry import RelayEntry

# The relay's programs as `make` compiles them for benches: where their constants are.
RELAY = Path(__file__).resolve().parents[1] / "build/bench/obj/relay.o"
_BATCH = 10_000
_TIMEOUT = 120  # seconds


class Table:
    """A softswitch with the relay table in the network namespace of the thread that makes it. Close it with close()."""

    def __init__(self, interfaces: Sequence[str], *, capacity: int, mode: str = "native", copies: int = 0) -> None:
        self.process = Softswitch(interfaces, capacity=capacity, mode=mode, conference_copies=copies)
        self.process.start()
        self._maps: dict[str, int] = {}
        try:
            self.plane = Plane(self.process.target)
        except BaseException:
            self.process.unload()
            raise
        self._write = self.plane.session.channel.unary_unary("/bfrt_proto.BfRuntime/Write")

    def close(self) -> None:
        """End the process and leave nothing in the kernel."""
        for fd in self._maps.values():
            os.close(fd)
        self._maps.clear()
        self.plane.close()
        self.process.unload()

    @property
    def replication(self) -> Replication:
        assert self.plane.replication is not None, "it was started without room for conferences"
        return self.plane.replication

    def insert(self, entries: Iterable[RelayEntry]) -> None:
        """Insert entries, in large requests. Raises grpc.RpcError with the first that is refused."""
        self.write(self.updates(entries))

    def write(self, updates: Sequence[bytes]) -> None:
        """Write serialised updates. Raises grpc.RpcError."""
        header = pb.WriteRequest(client_id=self.plane.session.client_id)
        header.target.pipe_id = 0xFFFF
        head = header.SerializeToString()
        for start in range(0, len(updates), _BATCH):
            self._write(head + b"".join(updates[start : start + _BATCH]), timeout=_TIMEOUT)

    def updates(self, entries: Iterable[RelayEntry]) -> list[bytes]:
        """Entries as serialised inserts, each as a field of a write request."""
        return [pb.WriteRequest(updates=[self.plane.insertion(entry)]).SerializeToString() for entry in entries]

    def maps(self) -> dict[str, int]:
        """File descriptors of the pinned maps by name; they stay this object's."""
        if not self._maps:
            for path in self.process.pin_dir.iterdir():
                name = path.name
                # A note of the softswitch is a symbolic link.
                if path.is_dir() or path.is_symlink() or name.endswith(".debug") or "link" in name:
                    continue
                if name.startswith("limits_"):
                    name = "limits"
                elif name.startswith("data_"):
                    name = f".data.{name.removeprefix('data_')}"
                self._maps[name] = libbpf.get(path)
        return self._maps

    def memory(self) -> dict[str, int]:
        """Bytes of kernel memory of each map."""
        return {name: libbpf.map_memory(fd) for name, fd in self.maps().items()}

    def program(self, name: str) -> int:
        """A file descriptor of a pinned program; the caller closes it. Raises KeyError."""
        return libbpf.get(testrun.programs(self.process.pin_dir)[name])

    def constants(self) -> dict[str, bytes]:
        """The values of the relay program's constants by name, as the kernel holds them."""
        symbols = libbpf.constant_symbols(RELAY)
        fd = self.program("relay_native")
        try:
            data = libbpf.constants_of(fd, max(offset + size for offset, size in symbols.values()))
        finally:
            os.close(fd)
        return {name: data[offset : offset + size] for name, (offset, size) in symbols.items()}

    def load(self, path: Path, *, constants: Mapping[str, bytes] | None = None, sizes: Mapping[str, int] | None = None) -> libbpf.LoadedObject:
        """Load an object that includes the relay's headers, on this table's maps and with its constants. Raises BpfError."""
        values = self.constants() | dict(constants or {})
        return libbpf.load_object(path, sizes=dict(sizes or {}), reuse=self.maps(), constants=values, symbols=libbpf.constant_offsets(path))

    def run_live(self, frame: bytes) -> None:
        """Run the program of the first interface on one live frame: what it sends leaves, as from a driver. Raises BpfError."""
        with testrun.attached(self.process.interfaces[0]) as program:
            libbpf.run_live(program.fd, frame, repeat=1, batch=1)

    @contextlib.contextmanager
    def egress_program(self, copies: int, program: int) -> Iterator[None]:
        """Have the broadcasts of so many copies run another egress program for a while."""
        outer = self.maps()["c_outputs"]
        changed: list[tuple[int, bytes, bytes]] = []
        try:
            for row in libbpf.keys(outer, 4):
                inner = libbpf.inner_map(outer, int.from_bytes(row, "little"))
                if inner is None:
                    continue
                rows = {key: libbpf.value(inner, key, 8) for key in libbpf.keys(inner, 4)}
                rows = {key: value for key, value in rows.items() if value is not None}
                if len(rows) != copies:
                    os.close(inner)
                    continue
                for key, value in rows.items():
                    changed.append((inner, key, value))
                    libbpf.update(inner, key, value[:4] + program.to_bytes(4, "little"))
            yield
        finally:
            for inner, key, value in changed:
                own = libbpf.program_by_id(int.from_bytes(value[4:], "little"))
                libbpf.update(inner, key, value[:4] + own.to_bytes(4, "little"))
                os.close(own)
            for inner in {inner for inner, _, _ in changed}:
                os.close(inner)
