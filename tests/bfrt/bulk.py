"""Large requests made cheaply: inserts, deletes and reads of relay entries by the hundred thousand, and the figures of a process under them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import grpc

from tests.softswitch.client import DELETE, INSERT, Session
from tests.tools.bfrt._pb import bfruntime_pb2 as pb

_SERVICE = "/bfrt_proto.BfRuntime/"
_MARKS = (b"\xa1\xa2\xa3\xa4", b"\xb1\xb2\xb3\xb4", b"\xc1\xc2", b"\xd1\xd2")  # stand for a key's fields in a template
_TO = b"\xe1\xe2\xe3\xe4"  # stands for the destination
_TTL = b"\xf1\xf2\xf3\xf4"
_TIMEOUT = 300.0  # seconds for a call, with a busy machine in mind


class Flow(NamedTuple):
    """The key of an IPv4 entry, packed."""

    saddr: bytes
    daddr: bytes
    sport: bytes
    dport: bytes


def spread(count: int) -> list[Flow]:
    """Keys that share few relay ports: their sources differ, and so do their ports, of as many relay addresses as are needed."""
    return [Flow((0x0B000000 + n).to_bytes(4, "big"), (0x0A5B0100 + n // 40_000).to_bytes(4, "big"), b"\x0f\xa0", (10_000 + n % 40_000).to_bytes(2, "big")) for n in range(count)]


def one_port(count: int) -> list[Flow]:
    """Keys that share one relay port."""
    return [Flow((0x0B000000 + n).to_bytes(4, "big"), b"\x0a\x5b\x01\x01", b"\x0f\xa0", b"\x75\x30") for n in range(count)]


class Bulk:
    """Requests of a session; the messages are put together from a template of one update."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._table = session.table("relay")
        data = {"dst_addr": _TO, "dst_port": 5_000, "src_port": 7_000, "$ENTRY_TTL": _TTL}
        self._insert = self._template(pb.Update(type=INSERT, entity=session.entity(self._table, _MARKS, "relay_to", data)))
        self._delete = self._template(pb.Update(type=DELETE, entity=session.entity(self._table, _MARKS)))
        self._entity = self._template(session.entity(self._table, _MARKS))
        channel = session.channel
        self._write = channel.unary_unary(_SERVICE + "Write")
        self._read = channel.unary_stream(_SERVICE + "Read")

    @staticmethod
    def _template(message: pb.Update | pb.Entity) -> list[bytes]:
        """The message's bytes around the key's fields, in the order of the fields."""
        whole, parts = message.SerializeToString(), []
        for mark in _MARKS:
            before, found, whole = whole.partition(mark)
            assert found, mark
            parts.append(before)
        return [*parts, whole]

    @staticmethod
    def _towards(template: Sequence[bytes], to: bytes) -> list[bytes]:
        return [*template[:-1], template[-1].replace(_TO, to)]

    @staticmethod
    def _members(tag: bytes, template: Sequence[bytes], flows: Iterable[Flow]) -> bytes:
        a, b, c, d, e = template
        size = sum(map(len, template)) + sum(map(len, _MARKS))
        head = tag + (bytes((size,)) if size < 128 else bytes((size & 0x7F | 0x80, size >> 7)))
        return b"".join(b"".join((head, a, flow.saddr, b, flow.daddr, c, flow.sport, d, flow.dport, e)) for flow in flows)

    def _head(self, kind: type[pb.WriteRequest] | type[pb.ReadRequest]) -> bytes:
        request = kind(client_id=self._session.client_id, p4_name="" if self._session.bound else "relay")
        request.target.pipe_id, request.target.direction, request.target.prsr_id = 0xFFFF, 0xFF, 0xFF
        return request.SerializeToString()

    def inserts(self, flows: Iterable[Flow], *, ttl: int = 60_000) -> bytes:
        """A WriteRequest; all entries send packets to one address. ttl: in milliseconds."""
        template = [part.replace(_TTL, ttl.to_bytes(4, "big")) for part in self._towards(self._insert, b"\x0a\x09\x09\x09")]
        return self._head(pb.WriteRequest) + self._members(b"\x1a", template, flows)

    def inserts_apart(self, flows: Iterable[Flow]) -> bytes:
        """A WriteRequest; each entry sends packets to an address of its own."""
        parts = (self._members(b"\x1a", self._towards(self._insert, (0x0B000000 + n).to_bytes(4, "big")), [flow]) for n, flow in enumerate(flows))
        return self._head(pb.WriteRequest) + b"".join(parts)

    def deletes(self, flows: Iterable[Flow]) -> bytes:
        """A WriteRequest."""
        return self._head(pb.WriteRequest) + self._members(b"\x1a", self._delete, flows)

    def clearing(self) -> bytes:
        """A WriteRequest that empties the table."""
        return self._head(pb.WriteRequest) + pb.WriteRequest(updates=[pb.Update(type=DELETE, entity=self._session.entity(self._table))]).SerializeToString()

    def reads(self, flows: Iterable[Flow]) -> bytes:
        """A ReadRequest for these entries."""
        return self._head(pb.ReadRequest) + self._members(b"\x1a", self._entity, flows)

    def reading(self) -> bytes:
        """A ReadRequest for the whole table."""
        return self._head(pb.ReadRequest) + pb.ReadRequest(entities=[self._session.entity(self._table)]).SerializeToString()

    def write(self, request: bytes) -> None:
        """Send a WriteRequest. Raises grpc.RpcError."""
        self._write(request, timeout=_TIMEOUT)

    def read(self, request: bytes) -> list[bytes]:
        """Send a ReadRequest; the serialised responses. Raises grpc.RpcError."""
        return list(self._read(request, timeout=_TIMEOUT))

    def read_later(self, request: bytes) -> grpc.Call:
        """Send a ReadRequest whose responses nobody takes."""
        return self._read(request, timeout=_TIMEOUT)

    def keys(self, responses: Iterable[bytes]) -> set[Flow]:
        """The keys of all entries in responses."""
        found = set()
        for response in responses:
            for entity in pb.ReadResponse.FromString(response).entities:
                if not entity.table_entry.is_default_entry:
                    values = {one.field_id: one.exact.value for one in entity.table_entry.key.fields}
                    found.add(Flow(*(values[field.id] for field in self._table.key)))
        return found


def resident_kib(pid: int, what: str = "VmRSS") -> int:
    """A process's memory: VmRSS is what is resident now, VmHWM the most since forget_peak()."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status[what].split()[0])


def forget_peak(pid: int) -> None:
    """The peak of a process's resident memory is from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # proc(5)


def cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time, for time.clock_gettime(): what a busy machine takes from the process does not count."""
    return (~pid << 3) | 2  # clock_getcpuclockid(3): CPUCLOCK_SCHED of a process
