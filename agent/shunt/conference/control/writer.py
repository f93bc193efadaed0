"""Puts the planner's rows into the data plane, in the planner's order, and makes sure of them when the data plane is (back) there.

The planner names meetings, participants and streams; here addresses stand in their place. A row whose receiver has no
address yet is not written until it has one; a row whose addresses change is written anew, the new key before the old
one goes. Where the data plane is a switch, its own routes say by which port and next hop a copy leaves. Nothing else of the agent writes these tables, nor relay entries at the conferences' addresses.

After a restart of either side all that is found is left to work while everything is laid out anew beside it, under
numbers that nothing found uses. Then streams are moved one by one, and what was found and is not wanted goes last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

from shunt.bfrt import client as bfrt
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.client import BfrtRefused, BfrtUnavailable
from shunt.conference.control.forwarding import Forwarding, NextHop, NoRoute
from shunt.conference.control.layers import TARGETS, Former, Layering, Rewriting
from shunt.conference.control.model import FIRST_TREE, PORT, TREES, Book, Leg, Participant, kind_of
from shunt.conference.control.records import Ledger
from shunt.conference.control.rows import Found, Rewrite, Rows, StreamKey, Tree, memory
from shunt.conference.engine import CONFERENCE, COPY, LAYER, MGID, NODE, PRUNE, RELAY, CopyTo, EngineFull, Replicate, Source
from shunt.conference.migration import Abandoned, Action, Allocator, Write
from shunt.conference.trees import Meeting, Slot
from shunt.net import FiveTuple
from shunt.tables.entry import Outcome, RelayEntry
from shunt.tables.relay_table import DataPlaneUnavailable, RelayTable

log = logging.getLogger(__name__)

DRAIN_S = 0.02
"""How long a packet may be under way in the data plane (shunt.conference.migration); a softswitch's takes microseconds."""
_TIMEOUT = 5.0
_READ_ALL = 60.0
_READ_KEYS = 500
_ORDER = (RELAY, CONFERENCE, COPY, LAYER, MGID, NODE)  # in which rows that nobody wants go
_RETRIES = 5
_COUNTING = (RELAY, CONFERENCE, COPY)

Row = tuple[str, Any]


class Refused(Exception):
    """The data plane did not take a row; what had been built for it has been taken out, and all is as it was."""


class Broken(Exception):
    """A change ended half way, or the data plane is gone: everything has to be made sure of."""


class Writer:
    """The rows of all conferences in one data plane. One caller at a time."""

    def __init__(self, table: RelayTable, book: Book, ledger: Ledger | None = None) -> None:
        """ledger: to be told what rows have counted."""
        self.book = book
        self.allocator = Allocator(qualities=TREES)
        self.layering = Layering(rewriting=Rewriting.NONE)
        self.inside: dict[Row, Any] = {}
        self.writes = 0
        self._table = table
        self._ledger = ledger
        self._rows: Rows | None = None
        self._rewriting = Rewriting.NONE
        self._forwarding: Forwarding | None = None  # None: the data plane's kernel has the routes
        self._users: Counter[tuple[str, int]] = Counter()  # rows that are in, by their table and track or splice
        self._plan: dict[Row, Any] = {}
        self._placed: dict[Row, Row] = {}  # where a row of the plan went
        self._layer_rows: dict[str, set[Row]] = {}  # by conference
        self._owners: dict[Row, set[Row]] = {}  # rows of the plan that want this row: streams of one source share a relay entry

    # -- where receivers are -------------------------------------------------------------------------------------

    async def read_routes(self) -> bool:
        """Read a switch's routes and next hops; whether any is another than before. Raises BfrtUnavailable, BfrtRefused and SchemaError."""
        client = self._table.client
        if client.schema is None:
            raise BfrtUnavailable("the data plane is not connected")
        if self._forwarding is None or self._forwarding.schema is not client.schema:
            self._forwarding = Forwarding.of(client.schema)
        return self._forwarding is not None and self._forwarding.take(await client.read_raw(self._forwarding.reading(), timeout=_TIMEOUT, bulk=True))

    @property
    def routed(self) -> bool:
        """Whether the data plane is a switch with routes of its own."""
        return self._forwarding is not None

    def next_hop(self, address: bytes) -> NextHop:
        """Where a switch sends packets to an address. Raises NoRoute."""
        if self._forwarding is None:
            raise NoRoute("the data plane has no routes of its own")
        return self._forwarding.next_hop(address)

    def port(self, one: Participant) -> int | None:
        """The port by which a participant is reached: that of its first leg that can be. None: by none."""
        if self._forwarding is None:
            return PORT
        for leg in one.legs.values():
            if leg.latch.learned is not None:
                with contextlib.suppress(NoRoute):
                    return self._forwarding.next_hop(leg.latch.learned.addr).port
        return None

    def unreached(self, one: Participant, leg: Leg, in_tree: bool = True) -> str:
        """Why nothing can go to a participant's leg whose address is known; empty where it can. in_tree: by a copy, and not by a relay entry."""
        try:
            if in_tree:
                self._hop(one, leg)
            elif self._forwarding is not None and leg.latch.learned is not None:
                self._forwarding.next_hop(leg.latch.learned.addr)
        except NoRoute as reason:
            return str(reason)
        return ""

    def _hop(self, one: Participant, leg: Leg) -> int:
        """The number of the next hop of copies to a leg; 0 where the kernel finds the way. Raises NoRoute."""
        if self._forwarding is None or leg.latch.learned is None:
            return 0
        hop, port = self._forwarding.next_hop(leg.latch.learned.addr), self.port(one)
        if hop.port != port:  # a node of a tree is one participant, whatever the medium
            raise NoRoute(f"{leg.latch.learned.ip}: the switch sends there by port {hop.port}, and other media of {one.name} by port {port}; they have to have one in common")
        return hop.number

    # -- changes -----------------------------------------------------------------------------------------------

    async def bring(self, meeting: Meeting) -> None:
        """Bring a meeting into this state. Raises EngineFull and Refused, with nothing changed, and Broken."""
        placement = self.allocator.placements.get(meeting.name)
        if (placement.meeting if placement is not None else Meeting(meeting.name, ())) != meeting:
            await self._change(meeting)
        placement = self.allocator.placements.get(meeting.name)
        if placement is not None:
            try:
                # A stream is tracked before its receivers' numbers go by that; who is to get a stream no longer, because of its numbers, is out before.
                copies = sorted(placement.copies, key=lambda key: self.book.of(placement.copies[key].source, placement.copies[key].receiver) is not None)
                for row in [*((CONFERENCE, key) for key in placement.conference), *((COPY, key) for key in copies), *((RELAY, key) for key in placement.relay)]:
                    await self._settle(row)
            except Refused as error:
                raise Broken(f"conference {meeting.name}: {error}") from None
        try:
            await self._settle_layers(meeting.name)
        except Refused as error:
            raise Broken(f"conference {meeting.name}: {error}") from None

    async def _change(self, meeting: Meeting) -> None:
        change = self.allocator.change(meeting)
        refused: Refused | None = None
        write = next(change, None)
        while write is not None:
            try:
                await self._carry_out(write)
            except Refused as error:
                if refused is not None:
                    raise Broken(f"conference {meeting.name}: {error}") from None
                refused = error
                try:
                    write = change.throw(Abandoned())
                except StopIteration:
                    break
                except Abandoned:  # streams had been moved already
                    raise Broken(f"conference {meeting.name}: {error}") from None
                continue
            write = next(change, None)
        if refused is not None:
            raise refused

    async def _carry_out(self, write: Write) -> None:
        if write.action is Action.DRAIN:
            await asyncio.sleep(DRAIN_S)
            return
        row = (write.table, write.key)
        if write.action is Action.DELETE:
            self._plan.pop(row, None)
        else:
            self._plan[row] = write.value
        await self._settle(row)

    async def _settle(self, row: Row) -> None:
        """Make the data plane hold what the plan says of this row, now that addresses are what they are."""
        wanted = self._told(row)
        before = self._placed.get(row)
        if wanted is not None:
            here, value = wanted
            if self.inside.get(here) != value:
                if here[0] == COPY and value.splice and here in self.inside and self.inside[here].splice != value.splice and self._rewriting is Rewriting.S_LR:
                    # Until now it got everything: the change is to happen where a frame begins.
                    await self._put(here, value._replace(target=TARGETS - 1))
                await self._put(here, value)
            self._owners.setdefault(here, set()).add(row)
            self._placed[row] = here
        else:
            self._placed.pop(row, None)
        if before is not None and (wanted is None or before != wanted[0]):
            owners = self._owners[before]
            owners.discard(row)
            if not owners:
                del self._owners[before]
                await self._take_out(before)

    def _told(self, row: Row) -> tuple[Row, Any] | None:
        """A row of the plan in the data plane's own terms; None where there is none, or an address is missing yet."""
        if row not in self._plan:
            return None
        name, key = row
        value = self._plan[row]
        if name == CONFERENCE:
            return self._stream(key, value)
        if name == COPY:
            return self._copy(key, value)
        if name == RELAY:
            return self._relay(key, value)
        return row, value

    def _stream(self, source: Source, value: Replicate) -> tuple[Row, Any] | None:
        leg = self.book.of(source, source.sender)
        if leg is None or leg.latch.learned is None:
            return None
        kind, ssrc = kind_of(source.name)
        tree = Tree(value.mgid + (FIRST_TREE[kind] if value.trees > 1 else 0), *value[2:])
        layers, track = self._layers(source)
        if layers and leg.layers is not None:
            trees = TARGETS if value.trees > 1 else 1
            tree = tree._replace(trees=trees, layers=layers, extension=leg.layers.extension, descriptor=leg.layers.descriptor, track=track)
        return (CONFERENCE, StreamKey(FiveTuple(leg.latch.learned, leg.relay), ssrc)), tree

    def _layers(self, source: Source) -> tuple[int, int]:
        """The numbers of a stream's rows in `layer` and of its track; 0 of one that goes whole."""
        leg = self.book.of(source, source.sender)
        if leg is None or leg.layers is None or leg.latch.learned is None or kind_of(source.name)[1] in leg.repair:
            return 0, 0
        tracked = self.book.conferences[source.meeting].tracked(source.sender)
        return self.layering.stream(source, leg.layers, FiveTuple(leg.latch.learned, leg.relay), kind_of(source.name)[1], tracked)

    def _copy(self, key: tuple[int, int], value: CopyTo) -> tuple[Row, Any] | None:
        leg = self.book.of(value.source, value.receiver)
        if leg is None or leg.latch.learned is None or not leg.receives:
            return None
        target = self.book.conferences[value.source.meeting].targets.get((value.source.sender, value.receiver))
        splice = self.layering.splice(value.source, value.receiver, leg.latch.learned) if target is not None and self._layers(value.source)[0] else 0
        try:
            rewrite = Rewrite(leg.relay, leg.latch.learned, nexthop=self._hop(self.book.conferences[value.source.meeting].participants[value.receiver], leg))
        except NoRoute:
            return None
        if splice and target is not None:
            rewrite = rewrite._replace(target=target, splice=splice, cadence=self.layering.cadence(value.source, target))
        return (COPY, key), rewrite

    @property
    def layers_counted(self) -> bool:
        """Whether the data plane counts each layer of a stream by itself."""
        return self._rows is not None and self._rows.layers_counted

    def layers_of(self, name: str) -> Iterator[tuple[Source, int, Row]]:
        """Rows of `layer` that are in for a conference: (stream, layer, row)."""
        placement = self.allocator.placements.get(name)
        for source in placement.conference if placement is not None else ():
            for key, row in self.layering.rows(source).items():
                if (LAYER, key) in self.inside:
                    yield source, row.layer, (LAYER, key)

    async def _settle_layers(self, name: str) -> None:
        """Which ids are which layer, for all streams of a conference; and numbers that nobody has any more are given back."""
        placement = self.allocator.placements.get(name)
        sources = [] if placement is None else [*placement.conference]
        self.layering.forget(name, sources, self.book.conferences[name].participants if name in self.book.conferences else ())
        wanted = {(LAYER, key): row for source in sources for key, row in self.layering.rows(source).items()}
        for row, value in wanted.items():
            if self.inside.get(row) != value:
                await self._put(row, value)
            self._owners.setdefault(row, set()).add((LAYER, name))
        for row in self._layer_rows.get(name, set()) - wanted.keys():
            self._owners.pop(row, None)
            await self._take_out(row)
        self._layer_rows[name] = set(wanted)
        if not wanted:
            del self._layer_rows[name]

    def _relay(self, source: Source, receiver: str) -> tuple[Row, Any] | None:
        leg, other = self.book.of(source, source.sender), self.book.of(source, receiver)
        if leg is None or other is None or leg.latch.learned is None or other.latch.learned is None or not other.receives:
            return None
        entry = RelayEntry(FiveTuple(leg.latch.learned, leg.relay), other.relay, other.latch.learned)
        return (RELAY, entry.key), entry

    # -- single rows ---------------------------------------------------------------------------------------------

    async def _put(self, row: Row, value: Any) -> None:
        name, key = row
        if self._ledger is not None and self._ledger.changes_hands(row, value):
            await self._account(row)
        if self._ledger is not None and name in _COUNTING:
            self._ledger.placed(row, value)
        if name == RELAY:
            result = await self._table.insert(value)
            self._judge(name, key, result.outcome, result.detail)
        elif name == PRUNE:
            await self._write(pb.Update.MODIFY, row, value)
        else:
            if (number := memory(name, value)) and not self._users[name, number]:
                await self._forget(name, number)
            await self._write(pb.Update.MODIFY if row in self.inside else pb.Update.INSERT, row, value)
        self._users[name, memory(name, self.inside.get(row))] -= 1
        self._users[name, memory(name, value)] += 1
        self.inside[row] = value
        if self._ledger is not None and name in _COUNTING:
            self._ledger.stands(row)

    async def _take_out(self, row: Row) -> None:
        name, key = row
        if name != PRUNE:
            await self._account(row, last=True)
        if name == RELAY:
            result, stats = await self._table.delete(key)
            self._judge(name, key, result.outcome, result.detail)
            if self._ledger is not None and stats is not None:  # a delete does not wait for them for long
                self._ledger.counted(row, stats, last=True)
        elif name != PRUNE:
            await self._write(pb.Update.DELETE, row, None)
        self._users[name, memory(name, self.inside.pop(row, None))] -= 1
        if self._ledger is not None:
            self._ledger.gone(row)

    async def _forget(self, name: str, number: int) -> None:
        """A track or splice that no row has: whoever had it before has left its memory there. All of it is gone, in each pipe, before a row has it again."""
        assert self._rows is not None
        entities, what = self._rows.forgetting(name, number), f"memory of {name} {number}"
        for attempt in range(_RETRIES if entities else 0):
            try:
                errors = await self._table.client.write_entities(pb.Update.INSERT, entities, timeout=_TIMEOUT)
            except BfrtUnavailable as unavailable:
                raise Broken(str(unavailable)) from None
            except BfrtRefused as refused:
                raise Refused(f"{what}: {refused}") from None
            error = next((error for error in errors if error is not None), None)
            if error is None:
                return
            if error.code not in bfrt.RETRYABLE:
                raise Refused(f"{what}: {error.message}")
            await asyncio.sleep(DRAIN_S * 2**attempt)
        if entities:
            raise Broken(f"{what}: the data plane puts the write off again and again")

    async def _account(self, row: Row, *, last: bool = False) -> None:
        """Tell the ledger what a row has counted; last: it goes out."""
        name, key = row
        if self._ledger is None or name not in _COUNTING or self._rows is None:
            return
        try:
            if name == RELAY:
                stats = (await self._table.stats([key])).get(key)
            else:
                stats = self._rows.read(await self._table.client.read(self._rows.reading(name, key), timeout=_TIMEOUT))
        except (BfrtUnavailable, DataPlaneUnavailable) as unavailable:
            raise Broken(str(unavailable)) from None
        except BfrtRefused as refused:
            log.warning("what %s %s has counted is not known: %s", name, key, refused)
            stats = None
        self._ledger.counted(row, stats, last=last)

    @staticmethod
    def _judge(name: str, key: Any, outcome: Outcome, detail: str) -> None:
        if outcome is Outcome.UNAVAILABLE:
            raise Broken(detail or "the data plane does not answer")
        if outcome not in (Outcome.INSTALLED, Outcome.REMOVED, Outcome.ABSENT):
            raise Refused(f"{name} {key}: {outcome.value}: {detail}")

    async def _write(self, kind: int, row: Row, value: Any) -> None:
        name, key = row
        if self._rows is None:
            raise Broken("the data plane's tables are not known yet")
        for attempt in range(_RETRIES):
            try:
                update = bfrt.update_bytes(kind, self._rows.entity(name, key, value))
                (error,) = await self._table.client.write([update], timeout=_TIMEOUT)
            except BfrtUnavailable as unavailable:
                raise Broken(str(unavailable)) from None
            except (BfrtRefused, ValueError) as refused:
                raise Refused(f"{name} {key}: {refused}") from None
            self.writes += 1
            if error is None or (kind == pb.Update.DELETE and error.code == bfrt.NOT_FOUND):
                return
            if error.code == bfrt.ALREADY_EXISTS and kind == pb.Update.INSERT and name in (CONFERENCE, COPY):
                kind = pb.Update.MODIFY
            elif error.code == bfrt.NOT_FOUND and kind == pb.Update.MODIFY and name in (CONFERENCE, COPY):
                kind = pb.Update.INSERT
            elif error.code in bfrt.RETRYABLE:
                await asyncio.sleep(DRAIN_S * 2**attempt)
            else:
                raise Refused(f"{name} {key}: {error.message}")
        raise Broken(f"{name} {key}: the data plane puts the write off again and again")

    # -- making sure of everything ---------------------------------------------------------------------------------

    async def adopt(self, meetings: list[Meeting]) -> list[tuple[Meeting, str]]:
        """Take over what the data plane holds and bring it to these meetings; those for which there was no room, with the reason.

        Raises Broken, SchemaError for a data plane without these tables, BfrtUnavailable, BfrtRefused and DataPlaneUnavailable.
        """
        schema = self._table.client.schema
        if schema is None:
            raise BfrtUnavailable("the data plane is not connected")
        self._rows = rows = Rows(schema)
        self._rewriting = rows.rewriting
        found = list(rows.found(await self._table.client.read(rows.everything(), timeout=_READ_ALL)))
        self.inside = {(one.table, one.key): one.value for one in found}
        relayed = {key: entry for key, entry in (await self._table.entries()).items() if self.book.owns(key.dst)}
        # What an operation still under way may take out counts as found, not as what is wanted: it is written anew, or goes.
        sure = {key for key, entry in relayed.items() if self._table.claim(entry)}
        self.inside |= {(RELAY, key): entry if key in sure else None for key, entry in relayed.items()}
        if self._ledger is not None:
            counting = {row: value for row, value in self.inside.items() if row[0] in _COUNTING}
            self._ledger.found(counting | {(RELAY, key): entry for key, entry in relayed.items()})
        self._plan, self._placed, self._owners, self._layer_rows = {}, {}, {}, {}
        self.allocator = Allocator(qualities=TREES)
        self._users = Counter((name, memory(name, value)) for (name, _), value in self.inside.items())
        self.layering = Layering(rows.limits, self._rewriting, rows.ways)
        self.layering.remember(_former(found))
        held = _Held(self.allocator, found)
        left_out = []
        for meeting in meetings:
            try:
                await self.bring(meeting)
            except (EngineFull, Refused) as error:
                left_out.append((meeting, str(error)))
        await asyncio.sleep(DRAIN_S)
        unwanted = [row for row in self.inside if row not in self._owners and row[0] != PRUNE]
        try:
            for row in sorted(unwanted, key=lambda row: _ORDER.index(row[0])):
                await self._take_out(row)
        except Refused as error:
            raise Broken(str(error)) from None
        held.give_back()
        self.layering.give_back()
        log.info("conferences: %d carried on, %d rows found, %d of them taken out", len(meetings) - len(left_out), len(found), len(unwanted))
        return left_out

    # -- counters ------------------------------------------------------------------------------------------------

    async def counts(self, rows: list[Row]) -> dict[Row, int]:
        """Packets counted by rows that are in. Raises BfrtUnavailable, BfrtRefused and DataPlaneUnavailable."""
        counted = {(one.table, one.key): one.packets for one in await self._counters(rows)}
        relayed = [key for name, key in rows if name == RELAY]
        if relayed:
            counted |= {(RELAY, key): stats.packets for key, stats in (await self._table.stats(relayed)).items()}
        return counted

    async def octets(self, rows: list[Row]) -> dict[Row, int]:
        """Bytes counted by rows of the replication tables that are in, as counts() does packets."""
        return {(one.table, one.key): one.octets for one in await self._counters(rows)}

    async def _counters(self, rows: list[Row]) -> list[Found]:
        asked = [row for row in rows if row[0] in (CONFERENCE, LAYER, COPY)]
        found: list[Found] = []
        for start in range(0, len(asked) if self._rows is not None else 0, _READ_KEYS):
            assert self._rows is not None
            entities = [self._rows.entity(*row) for row in asked[start : start + _READ_KEYS]]
            found += self._rows.found(await self._table.client.read(entities, timeout=_TIMEOUT))
        return found

    def rows_of(self, name: str) -> Iterator[tuple[Source, str | None, Row]]:
        """What is in for a conference: (stream, receiver of a copy or relay entry, row)."""
        placement = self.allocator.placements.get(name)
        if placement is None:
            return
        for source in placement.conference:
            if (row := self._placed.get((CONFERENCE, source))) is not None:
                yield source, None, row
        for key, copy in placement.copies.items():
            if (row := self._placed.get((COPY, key))) is not None:
                yield copy.source, copy.receiver, row
        for source, receiver in placement.relay.items():
            if (row := self._placed.get((RELAY, source))) is not None:
                yield source, receiver, row


def _former(found: list[Found]) -> dict[tuple[FiveTuple, int], Former]:
    """What is kept of layers and numbers, by the streams and addresses that it is for."""
    streams = {one.key: one.value for one in found if one.table == CONFERENCE and one.value.layers}
    former = {(key.flow, key.ssrc): Former(tree.layers, tree.track) for key, tree in streams.items()}
    for key, tree in streams.items():
        mine = former[key.flow, key.ssrc]
        mine.rows = {one.key[1]: one.value for one in found if one.table == LAYER and one.key[0] == tree.layers}
        mine.splices = {one.value.dst: one.value.splice for one in found if one.table == COPY and one.key[0] == tree.stream and one.value.splice}
    return former


class _Held:
    """Numbers that rows which were found use: kept from an allocator until those rows are gone."""

    def __init__(self, allocator: Allocator, found: list[Found]) -> None:
        self._room = room = allocator.room
        trees = {one.key for one in found if one.table == MGID} | {one.value.mgid for one in found if one.table == CONFERENCE}
        nodes = {one.key for one in found if one.table == NODE}
        streams = {one.key[0] for one in found if one.table == COPY} | {one.value.stream for one in found if one.table == CONFERENCE}
        self._halves: list[Slot] = []
        free: list[Slot] = []
        top = 0
        while top < max(trees, default=0):
            # Sets come in order, each with both of its halves.
            pair = [room.half(room.qualities, 0), room.half(room.qualities, 1)]
            used = any(pair[0].base <= mgid < pair[0].base + room.qualities for mgid in trees)
            (self._halves if used else free).extend(pair)
            top = pair[0].base + room.qualities - 1
        for slot in reversed(free):
            room.give_half(slot)
        self._nodes = self._take(max(nodes, default=0), nodes)
        self._streams = [self._stream(number) for number in range(1, max(streams, default=0) + 1)]
        for number, source in zip(range(len(self._streams), 0, -1), reversed(self._streams[:])):
            if number not in streams:
                room.forget(source.meeting, set())
                self._streams.remove(source)

    def _take(self, last: int, used: set[int]) -> list[int]:
        taken = [self._room.node() for _ in range(last)]
        for number in reversed(taken):
            if number not in used:
                self._room.give_node(number)
        return [number for number in taken if number in used]

    def _stream(self, number: int) -> Source:
        source = Source(f"/{number}", "", "")  # no conference has such a name
        self._room.stream(source)
        return source

    def give_back(self) -> None:
        """The rows are gone."""
        for slot in reversed(self._halves):
            self._room.give_half(slot)
        for number in reversed(self._nodes):
            self._room.give_node(number)
        for source in reversed(self._streams):
            self._room.forget(source.meeting, set())
