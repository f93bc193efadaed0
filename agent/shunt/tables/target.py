"""What a target's schema offers the relay table: its tables and fields by id, and their messages as templates and layouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from shunt.bfrt import wire
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.proxy_hash import HASH32, HASH48, LinearHash, distinct
from shunt.bfrt.schema import Action, Field, Names, Schema, SchemaError, Table
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import RelayEntry, StreamStats

PARAMETERS = ("src_addr", "dst_addr", "src_port", "dst_port")
_INSERT, _MODIFY, _DELETE = pb.Update.INSERT, pb.Update.MODIFY, pb.Update.DELETE


def form(field: Field) -> str:
    """The struct format of a field's value on the wire."""
    if field.size is None or field.repeated:
        raise SchemaError(f"{field.name} is {field.type}, not a bit string")
    return {1: "B", 2: "H"}.get(field.size, f"{field.size}s")


class Rewrite:
    """One action of the relay table that says where packets go, and the templates of its updates."""

    def __init__(self, table: Table, action: Action, key: Sequence[wire.Part], ttl: Field | None) -> None:
        self.action = action
        self.by_name = {name: action.fields.find(name) for name in (*PARAMETERS, "set_dscp", "dscp")}
        for name in ("dst_addr", "src_port", "dst_port"):
            if self.by_name[name] is None:
                raise SchemaError(f"{table.name}: {action.name} has no parameter {name}")
        known = {field.id for field in self.by_name.values() if field is not None}
        strange = [field.name for field in action.fields if field.id not in known]
        if strange:
            raise SchemaError(f"{table.name}: {action.name} has a parameter {strange[0]} that the agent does not know")
        self.has_src = self.by_name["src_addr"] is not None
        self.has_dscp = self.by_name["set_dscp"] is not None and self.by_name["dscp"] is not None
        self._ids = tuple(field.id if (field := self.by_name[name]) is not None else None for name in ("dst_addr", "src_port", "dst_port", "src_addr", "set_dscp", "dscp"))
        self.addr_size: int | None = None
        for name, sizes in (("src_addr", (4, 16)), ("dst_addr", (4, 16)), ("src_port", (2,)), ("dst_port", (2,)), ("set_dscp", (1,)), ("dscp", (1,))):
            field = self.by_name[name]
            if field is not None and field.size not in sizes:
                raise SchemaError(f"{table.name}: {action.name}'s {name} has {field.size} bytes")
            if field is not None and "addr" in name:
                if self.addr_size not in (None, field.size):
                    raise SchemaError(f"{table.name}: {action.name} mixes IP versions")
                self.addr_size = field.size
        data: list[wire.Part] = wire.number(1, action.id)
        for field in self.by_name.values():
            if field is not None:
                data += wire.data_stream(field.id, wire.Slot(form(field)))
        if ttl is not None:
            data += wire.data_stream(ttl.id, wire.Slot("I"))
        self.has_ttl = ttl is not None
        self._templates = {
            kind: wire.Template(wire.message(3, wire.number(1, kind), wire.message(2, wire.message(1, wire.number(1, table.id), key, wire.message(3, data)))))
            for kind in (_INSERT, _MODIFY)
        }

    def update(self, kind: int, entry: RelayEntry) -> bytes | None:
        """A serialised update; None when this action cannot say what the entry does. Raises struct.error for a port, DSCP or time that does not fit."""
        (saddr, sport), (daddr, dport) = entry.key
        (out_saddr, out_sport), (out_daddr, out_dport) = entry.src, entry.dst
        dscp = entry.dscp
        if len(out_daddr) != self.addr_size or len(out_saddr) != self.addr_size or (dscp is not None and not self.has_dscp):
            return None
        values: tuple[bytes | int, ...]
        if self.has_src:
            values = (saddr, daddr, sport, dport, out_saddr, out_daddr, out_sport, out_dport)
        elif out_saddr == daddr:
            values = (saddr, daddr, sport, dport, out_daddr, out_sport, out_dport)
        else:
            # Without a source address of its own, the packet's old destination becomes its source.
            return None
        if self.has_dscp:
            values += (dscp is not None, dscp or 0)
        if self.has_ttl:
            values += (entry.ttl_ms,)
        return self._templates[kind].pack(*values)

    def entry(self, key: FiveTuple, values: Mapping[int, Any], ttl: Field | None) -> RelayEntry:
        """The entry of values that a read returned, by field id."""
        get, (address, sport, dport, source, rewrites, code) = values.get, self._ids
        src_port, dst_port = get(sport), get(dport)
        # Mostly numbers already: a call for each would be a fifth of reading a table.
        if src_port.__class__ is not int:
            src_port = as_number(src_port)
        if dst_port.__class__ is not int:
            dst_port = as_number(dst_port)
        return RelayEntry(
            key,
            Endpoint(key.dst.addr if source is None else get(source, b""), src_port),
            Endpoint(get(address, b""), dst_port),
            as_number(get(ttl.id)) if ttl is not None else 0,
            as_number(get(code)) if self.has_dscp and as_number(get(rewrites)) else None,
        )


class KeyedTable:
    """A table whose key is the 5-tuple of one IP version."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.fields = [table.key[name] for name in PARAMETERS]
        sizes = [field.size for field in self.fields]
        if len(table.key) != 4 or sizes not in ([4, 4, 2, 2], [16, 16, 2, 2]) or any(field.match != "Exact" for field in self.fields):
            raise SchemaError(f"{table.name}: its key is not a 5-tuple")
        self.addr_size = sizes[0]
        self.ids = [field.id for field in self.fields]
        self.wants(())

    def key_parts(self) -> list[wire.Part]:
        return wire.message(2, *(wire.key_exact(field.id, wire.Slot(form(field))) for field in self.fields))

    def key(self, message: pb.TableKey) -> FiveTuple:
        """The 5-tuple of a key that the target sent. Raises SchemaError."""
        values = {field.field_id: field.exact.value for field in message.fields}
        try:
            src, dst, sport, dport = (values[number] for number in self.ids)
        except KeyError:
            raise SchemaError(f"{self.table.name}: the target sent a key without all of its fields") from None
        return FiveTuple(Endpoint(src, int.from_bytes(sport, "big")), Endpoint(dst, int.from_bytes(dport, "big")))

    def wants(self, data_fields: Iterable[int]) -> None:
        """Make read requests ask for these data fields only (none: for all)."""
        data = [part for number in data_fields for part in wire.message(2, wire.number(1, number))]
        tail = wire.message(3, data) if data else []
        flags = wire.message(9, wire.number(1, 1))  # from the hardware, not from a driver's cache

        def template(key: list[wire.Part]) -> wire.Template:
            return wire.Template(wire.message(3, wire.message(1, wire.number(1, self.table.id), key, tail, flags)))

        self._one, self._every = template(self.key_parts()), template([])

    def request(self, key: FiveTuple | None) -> bytes:
        """A serialised read of one entry, or of all."""
        if key is None:
            return self._every.pack()
        return self._one.pack(key.src.addr, key.dst.addr, key.src.port, key.dst.port)


class Counters(KeyedTable):
    """The counters of a relay table, where there is no better source of statistics."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.fields_of = [table.data.find(name) for name in ("$COUNTER_SPEC_PKTS", "$COUNTER_SPEC_BYTES")]
        self.counts = any(field is not None for field in self.fields_of)
        self.wants(field.id for field in self.fields_of if field is not None)

    def stats(self, values: Mapping[int, Any]) -> StreamStats:
        """The counters of values that a read returned; 0 where the table does not count."""
        packets, size = (as_number(values.get(field.id)) if field is not None else 0 for field in self.fields_of)
        return StreamStats(packets, size)


class RelayTarget(KeyedTable):
    """`relay` or `relay6` of a target."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.ttl = table.data.find("$ENTRY_TTL")
        key = self.key_parts()
        self.rewrites: list[Rewrite] = []
        reasons = ["there is none"]
        for action in table.actions:
            if not action.default_only:
                try:
                    self.rewrites.append(Rewrite(table, action, key, self.ttl))
                except SchemaError as error:
                    # A target may have actions for other purposes.
                    reasons.append(str(error))
        if not self.rewrites:
            raise SchemaError(f"{table.name}: no action says where packets go: {reasons[-1]}")
        # The shortest action that suits an entry comes first.
        self.rewrites.sort(key=lambda rewrite: len(rewrite.action.fields))
        self.by_action = {rewrite.action.id: rewrite for rewrite in self.rewrites}
        self._delete = wire.Template(wire.message(3, wire.number(1, _DELETE), wire.message(2, wire.message(1, wire.number(1, table.id), key))))
        self.counters = Counters(table)

    def update(self, kind: int, entry: RelayEntry) -> bytes:
        """A serialised INSERT or MODIFY. Raises ValueError or struct.error, saying what does not fit."""
        for rewrite in self.rewrites:
            if (update := rewrite.update(kind, entry)) is not None:
                return update
        raise ValueError(f"{self.table.name} has no action that sends {entry.key} out from {entry.src} to {entry.dst}" + (f" with DSCP {entry.dscp}" if entry.dscp is not None else ""))

    def delete(self, key: FiveTuple) -> bytes:
        """A serialised DELETE."""
        return self._delete.pack(key.src.addr, key.dst.addr, key.src.port, key.dst.port)


class Quality(KeyedTable):
    """`softswitch.quality` or `quality6`: StreamStats by their own names."""

    counts = True

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._names = {field.id: field.name for field in table.data}

    def stats(self, values: Mapping[int, Any]) -> StreamStats:
        """The statistics of values that a read returned, by field id."""
        get = {name: as_number(values[number]) for number, name in self._names.items() if number in values}.get
        # Without an RTP packet there is nothing to say of losses and jitter.
        heard = bool(get("ssrc")) or any(get(name) for name in ("lost", "reordered", "duplicates", "jitter_us"))
        quality = [get(name) if heard else None for name in ("lost", "reordered", "duplicates", "jitter_us", "ssrc")]
        return StreamStats(get("packets", 0), get("bytes", 0), get("idle_ms"), *quality, get("source_mismatch"))


StatsSource = Quality | Counters


class Row:
    """How to take read entries of one layout apart (see wire.Layout)."""

    __slots__ = ("action_id", "width", "_key", "_data")

    def __init__(self, table: KeyedTable, message: pb.TableEntry) -> None:
        """message is one such entry. Raises ValueError when it is an unusual one."""
        key = [field.field_id for field in message.key.fields]
        kinds = [field.WhichOneof("value") for field in message.data.fields]
        data = [field.field_id for field, kind in zip(message.data.fields, kinds) if kind == "stream"]
        if sorted(key) != sorted(table.ids) or message.is_default_entry or not set(kinds) <= {"stream", "str_val"} or len(set(data)) < len(data):
            raise ValueError("an unusual entry")
        if [len(field.exact.value) for field in sorted(message.key.fields, key=lambda field: table.ids.index(field.field_id))] != [field.size for field in table.fields]:
            raise ValueError("an unusual key")
        self.action_id = message.data.action_id
        self._key = [key.index(number) for number in table.ids]
        self._data = [(number, 4 + place) for place, number in enumerate(data)]
        self.width = 4 + len(data)

    def items(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[FiveTuple, dict[int, Any]]]:
        """Key and data by field id of each row."""
        src, dst, sport, dport = self._key
        for row in rows:
            yield FiveTuple(Endpoint(row[src], row[sport]), Endpoint(row[dst], row[dport])), {number: row[place] for number, place in self._data}


class PortTable:
    """A table whose key is an address of one IP version and perhaps a port, and whose data are byte strings: its updates, as write() of the client takes them."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._parts = len(table.key)
        self._key = wire.message(2, *(wire.key_exact(field.id, wire.Slot(form(field))) for field in table.key))
        self._layouts: dict[tuple[int, tuple[str, ...]], tuple[wire.Template, list[int | None]]] = {}
        self.clear = self._template(_DELETE, [], ()).pack()  # deletes every row

    def _template(self, kind: int, key: list[wire.Part], names: tuple[str, ...]) -> wire.Template:
        fields = [self.table.data[name] for name in names]
        data = wire.message(3, *(wire.data_stream(field.id, wire.Slot(form(field))) for field in fields)) if fields else []
        return wire.Template(wire.message(3, wire.number(1, kind), wire.message(2, wire.message(1, wire.number(1, self.table.id), key, data))))

    def update(self, kind: int, end: Endpoint, data: Mapping[str, bytes]) -> bytes:
        """A serialised update of one row; data by field name. Raises SchemaError for a value of another width."""
        names = tuple(data)
        layout = self._layouts.get((kind, names))
        if layout is None:
            layout = self._layouts[kind, names] = self._template(kind, self._key, names), [self.table.data[name].size for name in names]
        template, sizes = layout
        if [len(value) for value in data.values()] != sizes:
            wrong = next(name for name, size in zip(names, sizes) if len(data[name]) != size)
            raise SchemaError(f"{self.table.name}: {wrong} has {self.table.data[wrong].size} bytes, not {len(data[wrong])}")
        return template.pack(*(end.addr, end.port)[: self._parts], *data.values())


class Answers:
    """Reads a target's answers about one table."""

    def __init__(self, table: KeyedTable) -> None:
        self.table = table
        self._splitter: wire.Splitter[Row] = wire.Splitter(1, wire.ENTITY, self._learn)

    def _learn(self, body: bytes) -> tuple[pb.Entity, Row | None]:
        entity = pb.Entity.FromString(body)
        try:
            return entity, Row(self.table, entity.table_entry)
        except ValueError:
            return entity, None

    def items(self, response: bytes) -> Iterator[tuple[FiveTuple, int, Mapping[int, Any]]]:
        """Key, action id and data by field id of each entry; the default entry is left out. Raises SchemaError."""
        try:
            yield from self._items(response)
        except (ValueError, DecodeError) as error:
            raise SchemaError(f"{self.table.table.name}: the target's answer cannot be read: {error}") from None

    def _items(self, response: bytes) -> Iterator[tuple[FiveTuple, int, Mapping[int, Any]]]:
        for item in self._splitter.walk(response):
            if isinstance(item, wire.Rest):
                continue
            if isinstance(item, wire.Run):
                for key, values in item.plan.items(item.values):
                    yield key, item.plan.action_id, values
            elif item.table_entry.HasField("key"):
                message = item.table_entry
                yield self.table.key(message.key), message.data.action_id, {field.field_id: field.stream for field in message.data.fields}


def as_number(value: bytes | int | None) -> int:
    """A value that a read returned, as a number."""
    if value is None:
        return 0
    return value if isinstance(value, int) else int.from_bytes(value, "big")


_BUILDS = {"none": (), "hash32": (HASH32,), "hash48": (HASH48,)}


def stored_hashes(schema: Schema, target: RelayTarget, setting: str) -> tuple[LinearHash, ...]:
    """Under which hashes a relay table may store its keys, as far as the target and the configuration say; () for none.

    What the target's own context.json says always counts; the setting (none, hash32, hash48) is added
    to it. With "auto", a target that says nothing and is no softswitch may be any build that there is.
    """
    told = schema.hashes_of(target.table)
    crcs = _BUILDS.get(setting)
    if crcs is None:
        exact = told is not None or schema.tables.find("softswitch.totals") is not None
        crcs = () if exact else (HASH32, HASH48)
    return distinct((*(told or ()), *(LinearHash.of_crc(crc, 2 * (target.addr_size or 0) + 4) for crc in crcs)))


def _by_size(tables: Names[Table], name: str) -> dict[int, PortTable]:
    """The table of this name for IPv4, and the same for IPv6, where there are such, by the size of the address in the key."""
    found = (tables.find(name), tables.find(name + "6"))
    return {next(iter(table.key)).size or 0: PortTable(table) for table in found if table is not None}


class Plan:
    """What a target's schema offers the relay table, resolved to ids. Raises SchemaError for one that cannot serve."""

    def __init__(self, schema: Schema, hash_setting: str = "auto") -> None:
        tables = schema.tables
        self.relay: dict[int, RelayTarget] = {}
        for name in ("relay", "relay6"):
            table = tables.find(name)
            if table is not None:
                target = RelayTarget(table)
                self.relay[target.addr_size or 0] = target
        if not self.relay:
            raise SchemaError("the target has no relay table")
        self.hashes = {size: stored_hashes(schema, target, hash_setting) for size, target in self.relay.items()}
        self.by_table = {target.table.id: target for target in self.relay.values()}
        self.answers = {size: Answers(target) for size, target in self.relay.items()}
        quality = [Quality(table) for table in (tables.find("softswitch.quality"), tables.find("softswitch.quality6")) if table is not None]
        self.quality = {source.addr_size or 0: source for source in quality}
        self.stats: dict[int, tuple[StatsSource, Answers]] = {}
        for size, target in self.relay.items():
            source = self.quality.get(size) or target.counters
            self.stats[size] = (source, Answers(source))
        self.counts = any(source.counts for source, _ in self.stats.values())
        trace = [KeyedTable(table) for table in (tables.find("softswitch.trace"), tables.find("softswitch.trace6")) if table is not None]
        self.trace = {keyed.addr_size or 0: keyed for keyed in trace}
        self.totals = tables.find("softswitch.totals")
        self.interface = tables.find("softswitch.interface")
        self.refused, self.known = _by_size(tables, "softswitch.blocklist"), _by_size(tables, "softswitch.allowlist")
        self.guarded, self.wary = _by_size(tables, "softswitch.source_filter"), _by_size(tables, "softswitch.greylist")
        self.media = {table.key["dst_addr"].size or 0: table for table in (tables.find("media"), tables.find("media6")) if table is not None}
        self.learns: dict[int, dict[str, int]] = {}
        for name in ("learn", "learn6"):
            learn = schema.learns.find(name)
            if learn is not None:
                self.learns[learn.id] = {part: learn.fields[part].id for part in (*PARAMETERS, "rtp_version", "payload_type", "seq", "ssrc")}

        self.packets = schema.learns.find("softswitch.packet")

    def lacks(self) -> list[str]:
        """What the target does not offer, as sentences for operators: a missing table switches off one thing and no more."""
        found = [f"no relay table for IPv{4 if size == 4 else 6}: such media stays on the relay" for size in (4, 16) if size not in self.relay]
        for size, target in self.relay.items():
            name = target.table.name.rpartition(".")[2]
            if not any(rewrite.has_src for rewrite in target.rewrites):
                found.append(f"{name} has no action with a source address: media between two relay addresses stays on the relay")
            if not any(rewrite.has_dscp for rewrite in target.rewrites):
                found.append(f"{name} has no action that sets DSCP")
            if not any(rewrite.addr_size != size for rewrite in target.rewrites):
                found.append(f"{name} has no action towards the other IP version: such media stays on the relay")
            if "IdleTimeout" not in target.table.attributes:
                found.append(f"{name} does not age: no media time-outs from the data plane")
            if size not in self.quality:
                counts = "packets and bytes only" if target.counters.counts else "nothing counted but on watched streams"
                found.append(f"no softswitch.quality for {name}: no jitter or idle times, {counts}")
            if size not in self.media:
                found.append(f"no media table for IPv{4 if size == 4 else 6}: no source can be learned")
        if not self.refused:
            found.append("no softswitch.blocklist: before the offload a relay hears whoever scans its ports")
        if not self.trace:
            found.append("no softswitch.trace: packets cannot be traced through the data plane")
        return found

    def for_key(self, key: FiveTuple) -> RelayTarget:
        """The relay table of a key. Raises ValueError when the target has none for its IP version."""
        (source, _), (destination, _) = key
        if len(source) != len(destination):
            raise ValueError(f"{key} mixes IP versions")
        target = self.relay.get(len(destination))
        if target is None:
            raise ValueError(f"the data plane has no relay table for IPv{key.dst.version}")
        return target
