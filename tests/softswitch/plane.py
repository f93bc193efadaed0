"""The softswitch's tables as a test uses them: relay entries, media ranges, filters, statistics, trace and notices, in Shunt's own types."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Sequence
from typing import Any

import grpc

from shunt.net import Endpoint, FiveTuple
from tests.softswitch import names
from tests.softswitch.client import DELETE, EXISTS, INSERT, INVALID, MODIFY, NO_SPACE, NOT_FOUND, PROGRAM, UPSERT, Refused, Row, Session, until
from tests.softswitch.replication import Replication
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.bfrt.schema import Table
from tests.tools.entry import LearnNotice, MediaRange, RelayEntry, StreamStats

_FAILED_PRECONDITION = 9
_OUTCOMES = {EXISTS: "exists", NO_SPACE: "full", NOT_FOUND: "absent", _FAILED_PRECONDITION: "host-policy"}
# How a relay entry's action is called: by the IP versions of its key and of what leaves, and whether the source differs from the key's
# destination or the DSCP field is set.
_ACTIONS = {
    (4, 4, False): "relay_to", (4, 4, True): "relay_to_from", (4, 6, True): "relay_to_v6",
    (6, 6, False): "relay6_to", (6, 6, True): "relay6_to_from", (6, 4, True): "relay6_to_v4",
}  # fmt: skip


class ReadEntry(RelayEntry):
    """A relay entry as it was read. It equals the entry that was written also when its time to live has been counted down."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RelayEntry):
            return NotImplemented
        return self.key == other.key and self.does_as(other) and (self.ttl_ms == other.ttl_ms or isinstance(other, ReadEntry) or 0 <= self.ttl_ms < other.ttl_ms)

    __hash__ = RelayEntry.__hash__


class Plane:
    """A client of the softswitch. Updates are written in batches, each call waits for its answer; to be used from one thread.

    `session` is what it stands on, `replication` the conference tables (None where the process serves none). Close it, or use it as a
    context manager.
    """

    def __init__(self, target: str, *, bind: bool = True, client_id: int | None = None, credentials: grpc.ChannelCredentials | None = None, program: str = PROGRAM) -> None:
        """target: as gRPC names it. bind: own the program, as an agent does; otherwise no notices arrive."""
        self._arguments: dict[str, Any] = {"bind": bind, "client_id": client_id, "credentials": credentials, "program": program}
        self._open(target)

    def _open(self, target: str) -> None:
        self.session = Session(target, **self._arguments)
        schema = self.session.schema
        self._relay = {version: schema.tables[f"relay{six}"] for version, six in ((4, ""), (6, "6"))}
        self._media = {version: schema.tables[f"media{six}"] for version, six in ((4, ""), (6, "6"))}
        self._quality = {version: schema.tables[f"softswitch.quality{six}"] for version, six in ((4, ""), (6, "6"))}
        self._trace = {version: schema.tables[f"softswitch.trace{six}"] for version, six in ((4, ""), (6, "6"))}
        self._totals, self._interface = schema.tables["softswitch.totals"], schema.tables["softswitch.interface"]
        self.capacity = self._relay[4].size

        def tables(name: str) -> dict[int, Table]:
            return {4: schema.tables[name], 6: schema.tables[f"{name}6"]}

        self.blocklist = Filter(self.session, tables(names.BLOCKLIST))
        self.source_filter = SourceFilter(self.session, tables(names.SOURCE_FILTER))
        self.greylist = Greylist(self.session, tables(names.GREYLIST))
        self.allowlist = Filter(self.session, tables(names.ALLOWLIST))
        self._learns = {schema.learns[f"learn{six}"].id: schema.learns[f"learn{six}"] for six in ("", "6")}
        self.replication: Replication | None = Replication(self.session) if schema.tables.find("pipe.Egress.copy") is not None else None
        self._held = {schema.learns[f"softswitch.host_policy{six}"].id: schema.learns[f"softswitch.host_policy{six}"] for six in ("", "6")}
        self._held_back: set[FiveTuple] = set()
        self._learned = 0  # notices that have come, and those that the kernel had raised before
        totals = self.totals()
        self._learned_before, self._packets_before = totals["learn_notices"], totals["agent_packets"]
        self._waiting: list[LearnNotice] = []

    def reconnect(self, target: str | None = None) -> None:
        """A new session, as after a restart of the process; it waits until the process has noticed the end of the former."""
        self.session.close()

        def opened() -> bool:
            try:
                self._open(target if target is not None else self.session.target)
            except Refused as error:
                if error.code != EXISTS:
                    raise
                return False
            return True

        until(opened, "the program has no owner any more")

    def close(self) -> None:
        """End the session; everything in the tables stays."""
        self.session.close()

    def __enter__(self) -> Plane:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Relay entries

    def entity(self, entry: RelayEntry, *, ttl: bool = True) -> pb.Entity:
        """An entry as it is written."""
        version, out = entry.key.dst.version, entry.dst.version
        long_form = version != out or entry.src.addr != entry.key.dst.addr or entry.dscp is not None
        data: dict[str, Any] = {"dst_addr": entry.dst.addr, "dst_port": entry.dst.port, "src_port": entry.src.port}
        if long_form:
            data |= {"src_addr": entry.src.addr, "set_dscp": entry.dscp is not None, "dscp": entry.dscp or 0}
        if ttl:
            data["$ENTRY_TTL"] = entry.ttl_ms
        return self.session.entity(self._relay[version], _flat(entry.key), _ACTIONS[version, out, long_form], data)

    def _update(self, kind: int, entities: Iterable[pb.Entity]) -> list[str | None]:
        errors = self.session.write(pb.Update(type=kind, entity=entity) for entity in entities)
        return [None if error is None else _outcome(error) for error in errors]

    def insertion(self, entry: RelayEntry) -> pb.Update:
        """The update that inserts an entry, to be written by other means."""
        return pb.Update(type=INSERT, entity=self.entity(entry))

    def insert(self, entries: Sequence[RelayEntry]) -> list[str | None]:
        """Insert entries. For each None, `exists`, `full`, or `invalid: ` and why."""
        return self._update(INSERT, map(self.entity, entries))

    def modify(self, entries: Sequence[RelayEntry]) -> list[str | None]:
        """Change what entries do. For each None, `absent`, `full`, or `invalid: ` and why."""
        return self._update(MODIFY, map(self.entity, entries))

    def upsert(self, entries: Sequence[RelayEntry]) -> list[str | None]:
        """Insert entries, or change them where they are there. For each None or what went wrong."""
        return self._update(UPSERT, map(self.entity, entries))

    def delete(self, keys: Sequence[FiveTuple]) -> list[bool]:
        """Remove entries; for each whether it was there."""
        outcomes = self._update(DELETE, (self.session.entity(self._relay[key.dst.version], _flat(key)) for key in keys))
        assert set(outcomes) <= {None, "absent"}, outcomes
        return [outcome is None for outcome in outcomes]

    def get(self, keys: Sequence[FiveTuple]) -> list[RelayEntry | None]:
        """The entries of these keys, None for those that are not there."""
        found = {entry.key: entry for entry in map(self._entry, self._read(self._relay, keys))}
        return [found.get(key) for key in keys]

    def entries(self) -> dict[FiveTuple, RelayEntry]:
        """All entries by key."""
        return {entry.key: entry for table in self._relay.values() for entry in map(self._entry, self.session.rows(table))}

    def keys(self) -> list[FiveTuple]:
        """The keys of all entries."""
        return list(self.entries())

    def __len__(self) -> int:
        return self.totals()["entries"]

    def clear(self) -> None:
        """Remove every entry; media ranges and filters stay."""
        for table in self._relay.values():
            self.session.clear(table)

    def _read(self, tables: dict[int, Table], keys: Iterable[FiveTuple]) -> list[Row]:
        wanted = [self.session.entity(tables[key.dst.version], _flat(key)) for key in keys]
        return [self.session.row(entity) for entity in self.session.read(wanted)] if wanted else []

    def _entry(self, row: Row) -> RelayEntry:
        key, data = _five(row.key), row.data
        src = Endpoint(data.get("src_addr", key.dst.addr), row.number("src_port"))
        dscp = row.number("dscp") if any(data.get("set_dscp", b"")) else None
        return ReadEntry(key, src, Endpoint(data["dst_addr"], row.number("dst_port")), row.number("$ENTRY_TTL"), dscp)

    # Statistics

    def stats(self, keys: Sequence[FiveTuple] | None = None) -> dict[FiveTuple, StreamStats]:
        """What was counted on these entries (None: all); keys without an entry are left out. Figures of RTP are 0 before its first packet."""
        rows = self._read(self._quality, keys) if keys is not None else [row for table in self._quality.values() for row in self.session.rows(table)]
        return {_five(row.key): _stats(row) for row in rows}

    def idle(self, keys: Sequence[FiveTuple] | None = None) -> dict[FiveTuple, int]:
        """Milliseconds since the last packet, or since they were inserted, of these entries (None: all)."""
        return {key: stats.idle_ms or 0 for key, stats in self.stats(keys).items()}

    def reset_stats(self, keys: Iterable[FiveTuple]) -> None:
        """Set the counters of these entries to 0."""
        zero = {"$COUNTER_SPEC_PKTS": 0, "$COUNTER_SPEC_BYTES": 0}
        outcomes = self._update(MODIFY, (self.session.entity(self._relay[key.dst.version], _flat(key), None, zero) for key in keys))
        assert not any(outcomes), outcomes

    def totals(self) -> dict[str, int]:
        """Counters of the whole data plane since its maps were made."""
        return {name: int.from_bytes(value, "big") for name, value in self.session.rows(self._totals)[0].data.items()}

    def interfaces(self) -> list[tuple[str, int, str, int]]:
        """(name, ifindex, `native` or `generic`, receive queues) of each interface with the program."""
        return [(row.data["name"], int.from_bytes(row.key[0], "big"), row.data["mode"], row.number("rx_queues")) for row in self.session.rows(self._interface)]

    def trace(self, key: FiveTuple) -> dict[str, str]:
        """What becomes of a packet of this 5-tuple: verdict, reason, out_src, out_dst, out_interface (empty unless redirected)."""
        found = self._read(self._trace, [key])[0].data
        return {name: str(value) for name, value in found.items()}

    # Media ranges

    def media(self) -> list[MediaRange]:
        """The ranges of ports in which a packet without an entry raises a notice."""
        rows = [row for table in self._media.values() for row in self.session.rows(table)]
        return [MediaRange(row.key[0], int.from_bytes(row.key[1][0], "big"), int.from_bytes(row.key[1][1], "big")) for row in rows]

    def _put_media(self, kind: int, ports: MediaRange) -> str | None:
        table = self._media[4 if len(ports.addr) == 4 else 6]
        action = next(action.name for action in table.actions if not action.default_only) if kind == INSERT else None
        return self._update(kind, [self.session.entity(table, (ports.addr, (ports.first_port, ports.last_port), 0), action)])[0]

    def add_media(self, ports: MediaRange) -> str | None:
        """Add a range. None when it is there, or `exists`, `full`, or `invalid: ` and why."""
        return self._put_media(INSERT, ports)

    def remove_media(self, ports: MediaRange) -> bool:
        """Remove a range as it was added; False when it was not there."""
        return self._put_media(DELETE, ports) is None

    # Notices

    def _take_digests(self) -> None:
        digests = self.session.notices.digests
        while True:
            try:
                number, data = digests.get_nowait()
            except queue.Empty:
                return
            learn = self._learns.get(number)
            if learn is not None:
                self._learned += 1
                self._waiting.append(_notice({field.name: next(one.stream for one in data.fields if one.field_id == field.id) for field in learn.fields}))
            elif (held := self._held.get(number)) is not None:
                values = {field.name: next(one.stream for one in data.fields if one.field_id == field.id) for field in held.fields}
                src, dst = (Endpoint(values[f"{end}_addr"], int.from_bytes(values[f"{end}_port"], "big")) for end in ("src", "dst"))
                self._held_back.add(FiveTuple(src, dst))
            elif self.replication is not None:
                self.replication.receive(number, data)

    def poll_learn(self, limit: int = 1 << 20) -> list[LearnNotice]:
        """Take up to `limit` notices, once all that the kernel has raised since the session began have come. Needs a bound session."""
        wanted = self.totals()["learn_notices"] - self._learned_before

        def come() -> bool:
            self._take_digests()
            return self._learned >= wanted

        until(come, f"{wanted} learn notices")
        found, self._waiting = self._waiting[:limit], self._waiting[limit:]
        return found

    def held_back(self) -> set[FiveTuple]:
        """The keys of entries that were reported as held back by the host's policy, since the last call."""
        self._take_digests()
        found, self._held_back = self._held_back, set()
        return found

    def poll_packets(self) -> list[bytes]:
        """Take the packets for the agent, each as it came, once all that the kernel has taken since the session began have come."""
        assert self.replication is not None
        replication, wanted = self.replication, self.totals()["agent_packets"] - self._packets_before

        def come() -> bool:
            self._take_digests()
            return replication.received_packets >= wanted

        until(come, f"{wanted} packets for the agent")
        return replication.take_packets()

    def watch_idle(self, *, interval_ms: int = 100, min_ttl_ms: int = 0, max_ttl_ms: int = 0xFFFFFFFF, enable: bool = True) -> None:
        """Have idle entries reported. Raises Refused."""
        updates = []
        for table in self._relay.values():
            update = pb.Update(type=MODIFY)
            attribute = update.entity.table_attribute
            attribute.table_id = table.id
            idle = attribute.idle_table
            idle.enable, idle.idle_table_mode = enable, idle.IDLE_TABLE_NOTIFY_MODE
            idle.ttl_query_interval, idle.min_ttl, idle.max_ttl = interval_ms, min_ttl_ms, max_ttl_ms
            updates.append(update)
        for error in self.session.write(updates):
            if error is not None:
                raise error

    def idle_notice(self, seconds: float = 60.0) -> tuple[FiveTuple, bool]:
        """The next idle notice: an entry's key, and whether it has become idle (False: active again). Raises queue.Empty when none comes in time."""
        notice = self.session.notices.idle.get(timeout=seconds)
        return _five(self.session.row(pb.Entity(table_entry=notice.table_entry)).key), notice.type == notice.ENTRY_IDLE


class Filter:
    """`blocklist` or `allowlist`: an address (and a port, where the table has one; 0 means any) for a time."""

    def __init__(self, session: Session, tables: dict[int, Table]) -> None:
        self._session = session
        self._tables = tables

    def _key(self, end: Endpoint) -> tuple[bytes | int, ...]:
        return (end.addr, end.port)[: len(self._tables[4].key)]

    def _put(self, end: Endpoint, milliseconds: int, more: Sequence[bytes | int] = ()) -> bool:
        table = self._tables[end.version]
        data = dict(zip((field.name for field in table.data), (milliseconds, *more)))
        try:
            self._session.put(UPSERT, table, self._key(end), None, data)
        except Refused as error:
            if error.code == NO_SPACE:
                return False
            raise
        return True

    def put(self, end: Endpoint, milliseconds: int) -> bool:
        """Add an entry from now on for so long, or give it that time; False when the table is full."""
        return self._put(end, milliseconds)

    def _row(self, end: Endpoint) -> Row | None:
        return self._session.get(self._tables[end.version], *self._key(end))

    def _more(self, end: Endpoint) -> list[bytes]:
        row = self._row(end)
        return [value for value in list(row.data.values())[1:] if any(value)] if row is not None else []

    def remaining(self, end: Endpoint) -> int | None:
        """For how many milliseconds more an entry is in force; None when there is none."""
        row = self._row(end)
        return None if row is None else row.number("ttl_ms")

    def remove(self, end: Endpoint) -> bool:
        """Remove an entry; False when it was not there."""
        try:
            self._session.put(DELETE, self._tables[end.version], self._key(end))
        except Refused as error:
            if error.code == NOT_FOUND:
                return False
            raise
        return True

    def ends(self) -> list[Endpoint]:
        """The keys of all entries in force."""
        rows = [row for table in self._tables.values() for row in self._session.rows(table)]
        return [Endpoint(row.key[0], int.from_bytes(row.key[1], "big") if len(row.key) > 1 else 0) for row in rows]

    def clear(self) -> None:
        """Remove every entry."""
        for table in self._tables.values():
            self._session.clear(table)


class SourceFilter(Filter):
    """`source_filter`: an even port and the next one, where only packets of some addresses are admitted."""

    def put(self, end: Endpoint, milliseconds: int, admitted: Sequence[bytes] = ()) -> bool:
        """Admit only these packed addresses (none: nobody) from now on for so long; False when the table is full."""
        return self._put(end, milliseconds, admitted)

    def admitted(self, port: Endpoint) -> list[bytes]:
        """The addresses that are admitted at a filtered port."""
        return self._more(port)


class Greylist(Filter):
    """`greylist`: ranges of ports of a relay address, where packets of unknown sources are admitted once they have kept on."""

    def put(self, end: Endpoint, milliseconds: int, ranges: Sequence[tuple[int, int]] = ()) -> bool:
        """Greylist unknown sources at these ranges of first and last port, from now on for so long; False when the table is full."""
        return self._put(end, milliseconds, [first << 16 | last for first, last in ranges])

    def ranges(self, address: Endpoint) -> list[tuple[int, int]]:
        """The ranges of a greylisted address."""
        return [(int.from_bytes(value[:2], "big"), int.from_bytes(value[2:], "big")) for value in self._more(address)]


def _outcome(error: Refused) -> str:
    if error.code == INVALID:
        return f"invalid: {error}"
    if error.code not in _OUTCOMES:
        raise error
    return _OUTCOMES[error.code]


def _flat(key: FiveTuple) -> tuple[bytes | int, ...]:
    return key.src.addr, key.dst.addr, key.src.port, key.dst.port


def _five(key: Sequence[Any]) -> FiveTuple:
    saddr, daddr, sport, dport = key[:4]
    return FiveTuple(Endpoint(saddr, int.from_bytes(sport, "big")), Endpoint(daddr, int.from_bytes(dport, "big")))


def _stats(row: Row) -> StreamStats:
    figures = {name: row.number(name) for name in ("packets", "bytes", "idle_ms", "lost", "reordered", "duplicates", "jitter_us", "ssrc")}
    return StreamStats(**figures, source_mismatch=row.number("source_mismatch"))


def _notice(values: dict[str, bytes]) -> LearnNotice:
    number = {name: int.from_bytes(value, "big") for name, value in values.items()}
    key = FiveTuple(Endpoint(values["src_addr"], number["src_port"]), Endpoint(values["dst_addr"], number["dst_port"]))
    return LearnNotice(key, number["rtp_version"], number["payload_type"], number["seq"], number["ssrc"])
