"""The model and the writer without a data plane: latching, two-party relaying, trees, refusals, restarts, the configuration's errors."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.client import ALREADY_EXISTS, NO_SPACE, NOT_FOUND, UpdateError
from shunt.cli.failure import Failure
from shunt.conference.control import manager
from shunt.conference.client import ConferenceClient
from shunt.cli.conference import text
from shunt.conference.control.layers import Told
from shunt.conference.control.manager import Conferences
from shunt.conference.control.model import Book, ConferenceError
from shunt.conference.control.routes import add_routes
from shunt.conference.control.rows import Rewrite, Rows, StreamKey, Tree
from shunt.conference.control.settings import Conference as Settings
from shunt.conference.control.writer import Broken, Refused, Writer
from shunt.conference.engine import CONFERENCE, COPY, MGID, NODE, PRUNE, RELAY, Member, Node
from shunt.conference.rtcp import build_remb
from shunt.config.load import ConfigError, loads
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import LearnNotice, MediaRange, Outcome, RelayEntry, Result
from tests.softswitch.schema import load

SCHEMA = load(conferences=True)
RELAY_IP = Endpoint.of("192.0.2.1", 0).addr
POLICY = LatchPolicy()


class Plane:
    """A data plane in memory, as the writer sees it: a RelayTable and its client in one. It refuses what a real one refuses."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, Any], Any] = {}
        self.relays: dict[FiveTuple, RelayEntry] = {}
        self.schema = SCHEMA
        self.connected = True
        self.last_error = ""
        self.room = 1000  # rows
        self.client = self
        self.log: list[tuple[str, str]] = []
        self.on_up = lambda: None
        self.on_learn = lambda notice: None
        self._codec = Rows(SCHEMA)

    async def write(self, updates: list[bytes], *, timeout: float) -> list[UpdateError | None]:
        message = pb.WriteRequest.FromString(b"".join(updates))
        return [self._one(update) for update in message.updates]

    def _one(self, update: pb.Update) -> UpdateError | None:
        if update.entity.table_entry.table_id == SCHEMA.tables["$pre.prune"].id:
            self.log.append(("MODIFY", PRUNE))
            return None if update.type == pb.Update.MODIFY else UpdateError(3, "only modified")
        deleting = update.type == pb.Update.DELETE
        if deleting:
            row = next((row for row in self.rows if self._codec.entity(*row).table_entry.key == update.entity.table_entry.key and self._codec.entity(*row).table_entry.table_id == update.entity.table_entry.table_id), None)
            if row is None:
                return UpdateError(NOT_FOUND, "not found")
            self.log.append(("DELETE", row[0]))
            if row[0] == NODE and any(member.node == row[1] for (name, _), value in self.rows.items() if name == MGID for member in value):
                raise AssertionError("a node goes that a tree still has")
            del self.rows[row]
            return None
        (found,) = self._codec.found([update.entity])
        row = (found.table, found.key)
        if update.type == pb.Update.INSERT and row in self.rows:
            return UpdateError(ALREADY_EXISTS, "exists")
        if update.type == pb.Update.MODIFY and row not in self.rows:
            return UpdateError(NOT_FOUND, "not found")
        if len(self.rows) >= self.room and row not in self.rows:
            return UpdateError(NO_SPACE, "the table is full")
        self.log.append((pb.Update.Type.Name(update.type), found.table))
        self.rows[row] = found.value
        return None

    async def read(self, entities: list[pb.Entity], *, timeout: float) -> list[pb.Entity]:
        wanted = {entity.table_entry.table_id for entity in entities}
        made = [self._codec.entity(*row, value) for row, value in self.rows.items()]
        return [entity for entity in made if entity.table_entry.table_id in wanted]

    async def entries(self) -> dict[FiveTuple, RelayEntry]:
        return dict(self.relays)

    def claim(self, entry: RelayEntry) -> bool:
        return self.relays.get(entry.key) == entry

    async def insert(self, entry: RelayEntry) -> Result:
        self.log.append(("INSERT", RELAY))
        self.relays[entry.key] = entry
        return Result(Outcome.INSTALLED)

    async def delete(self, key: FiveTuple) -> tuple[Result, None]:
        self.log.append(("DELETE", RELAY))
        self.relays.pop(key, None)
        return Result(Outcome.REMOVED), None

    async def declare_media(self, ranges: list[MediaRange]) -> Result:
        return Result(Outcome.INSTALLED)

    def receivers(self, key: StreamKey) -> set[Endpoint]:
        """Where a packet of a stream would leave to, by the tables alone."""
        tree = self.rows[CONFERENCE, key]
        found = set()
        for member in self.rows.get((MGID, tree.mgid), ()):
            rid = self.rows[NODE, member.node].rid
            if not (member.xid_valid and member.xid == tree.l1_xid) and rid != tree.rid:
                copy = self.rows.get((COPY, (tree.stream, rid)))
                if copy is not None:
                    assert copy.dst not in found, "two copies to one receiver"
                    found.add(copy.dst)
        return found


@pytest.fixture
def book(tmp_path: Path) -> Book:
    made = Book(RELAY_IP, 20_000, 20_099, POLICY, tmp_path)
    made.create("room")
    return made


def source(number: int) -> Endpoint:
    return Endpoint.of("198.51.100.9", 30_000 + number)


def seat(book: Book, number: int, kinds: tuple[str, ...] = ("audio",)) -> str:
    """A participant whose source is known."""
    one = book.join("room", f"p{number}", kinds, [], 0.0)
    for offset, leg in enumerate(one.legs.values()):
        leg.latch.take(source(number * 10 + offset), number, 1)
        leg.ssrcs = [number * 10 + offset]
    book.keep(book.get("room"))
    return one.name


async def written(book: Book, plane: Plane) -> Writer:
    made = Writer(plane, book)  # type: ignore[arg-type]
    assert await made.adopt([conference.meeting() for conference in book]) == []
    return made


async def three(book: Book) -> tuple[Plane, Writer]:
    """Three participants in trees."""
    plane = Plane()
    writer = await written(book, plane)
    for number in (1, 2, 3):
        seat(book, number)
    await writer.bring(book.get("room").meeting())
    return plane, writer


def keys(book: Book) -> dict[str, StreamKey]:
    return {name: StreamKey(FiveTuple(one.legs["audio"].latch.learned, one.legs["audio"].relay), one.legs["audio"].ssrcs[0]) for name, one in book.get("room").participants.items()}  # type: ignore[arg-type]


def everybody_hears_the_others(book: Book, plane: Plane) -> None:
    for name, key in keys(book).items():
        assert plane.receivers(key) == {other.legs["audio"].latch.learned for other in book.get("room").participants.values() if other.name != name}


# -- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        (CONFERENCE, StreamKey(FiveTuple(source(1), Endpoint(RELAY_IP, 20_000)), 0xFFFFFFFF), Tree(65_535, 2, 9, 287, 0xFFFFFF)),
        (CONFERENCE, StreamKey(FiveTuple(Endpoint.of("2001:db8::1", 1), Endpoint.of("2001:db8::2", 2)), 7), Tree(1, 1, 1, 1, 1)),
        (COPY, (0xFFFFFF, 65_535), Rewrite(Endpoint(RELAY_IP, 20_002), source(2))),
        (COPY, (1, 2), Rewrite(Endpoint.of("2001:db8::2", 20_002), Endpoint.of("2001:db8::1", 9))),
        (MGID, 65_535, (Member(5, True, 2), Member(6, True, 1))),
        (NODE, 16_777_215, Node(7, (1,))),
    ],
)
def test_rows_come_back_as_they_were_written(name: str, key: Any, value: Any) -> None:
    rows = Rows(SCHEMA)
    (found,) = rows.found([rows.entity(name, key, value)])
    assert found[:3] == (name, key, value)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ValueError, match="stream: 16777216 does not fit into 24 bits"):
        Rows(SCHEMA).entity(COPY, (1 << 24, 1), Rewrite(source(1), source(2)))
    with pytest.raises(ValueError, match="not of the IP version"):
        Rows(SCHEMA).entity(COPY, (1, 1), Rewrite(source(1), Endpoint.of("2001:db8::1", 1)))


# -- the writer --------------------------------------------------------------------------------------------------------


async def test_two_are_relayed_three_replicated_and_all_goes_at_the_end(book: Book) -> None:
    plane = Plane()
    writer = await written(book, plane)
    seat(book, 1)
    await writer.bring(book.get("room").meeting())
    assert not plane.rows and not plane.relays, "one alone hears nobody"
    seat(book, 2)
    await writer.bring(book.get("room").meeting())
    first, second = keys(book).values()
    assert not plane.rows
    assert {key: (entry.src, entry.dst) for key, entry in plane.relays.items()} == {
        first.flow: (second.flow.dst, second.flow.src), second.flow: (first.flow.dst, first.flow.src),
    }  # fmt: skip
    seat(book, 3)
    plane.log.clear()
    await writer.bring(book.get("room").meeting())
    assert not plane.relays
    everybody_hears_the_others(book, plane)
    # Before a relay entry goes, its stream has a row, and that row a tree with nodes and rewrites.
    order = [name for _, name in plane.log]
    assert max(i for i, name in enumerate(order) if name in (NODE, MGID, COPY)) < order.index(CONFERENCE) < order.index(RELAY)
    book.leave("room", "p1")
    plane.log.clear()
    await writer.bring(book.get("room").meeting())
    # The row of who left goes at once, those of the others when relay entries have their packets.
    assert plane.log[:5] == [("DELETE", CONFERENCE), *[("INSERT", RELAY)] * 2, *[("DELETE", CONFERENCE)] * 2] and len(plane.relays) == 2
    book.end("room")
    await writer.bring(type(book.create("room"))("room").meeting())
    assert not plane.relays and not plane.rows and not writer.inside.keys() - {(PRUNE, 1)}


async def test_qualities_say_who_gets_which_medium(book: Book) -> None:
    plane = Plane()
    writer = await written(book, plane)
    for number in (1, 2, 3):
        seat(book, number, ("audio", "video"))
    book.set_quality("room", "p1", "p3", "audio")
    await writer.bring(book.get("room").meeting())
    one, two, three = book.get("room").participants.values()
    key = {kind: StreamKey(FiveTuple(leg.latch.learned, leg.relay), leg.ssrcs[0]) for kind, leg in one.legs.items()}  # type: ignore[arg-type]
    assert plane.receivers(key["audio"]) == {two.legs["audio"].latch.learned, three.legs["audio"].latch.learned}
    assert plane.receivers(key["video"]) == {two.legs["video"].latch.learned}
    leg = two.legs["video"]
    assert plane.receivers(StreamKey(FiveTuple(leg.latch.learned, leg.relay), leg.ssrcs[0])) == {one.legs["video"].latch.learned, three.legs["video"].latch.learned}  # type: ignore[arg-type]


async def test_a_receiver_that_moves_gets_copies_at_its_new_address(book: Book) -> None:
    plane, writer = await three(book)
    old = keys(book)["p2"]
    book.get("room").participants["p2"].legs["audio"].latch.take(source(99), 2, 1)
    await writer.bring(book.get("room").meeting())
    everybody_hears_the_others(book, plane)
    assert (CONFERENCE, old) not in plane.rows


async def test_no_room_leaves_everything_as_it_was(book: Book) -> None:
    plane, writer = await three(book)
    before, plane.room = dict(plane.rows), len(plane.rows) + 3
    seat(book, 4)
    with pytest.raises(Refused, match="the table is full"):
        await writer.bring(book.get("room").meeting())
    assert plane.rows == before
    plane.room = 1000
    await writer.bring(book.get("room").meeting())
    everybody_hears_the_others(book, plane)


async def test_restarts_take_over_what_is_there(book: Book, tmp_path: Path) -> None:
    plane = Plane()
    writer = await written(book, plane)
    for number in (1, 2, 3, 4):
        seat(book, number)
    await writer.bring(book.get("room").meeting())
    count = len(plane.rows)
    # Rows of an agent that died in the middle of a change.
    plane.rows |= {(NODE, 500): Node(9, (1,)), (MGID, 40): (Member(500, True, 1),), (COPY, (77, 9)): Rewrite(source(5), source(6))}
    for _ in range(5):
        again = Book(RELAY_IP, 20_000, 20_099, POLICY, tmp_path)
        assert again.load() == 1
        assert keys(again) == keys(book)
        plane.log.clear()
        await written(again, plane)
        assert len(plane.rows) == count
        everybody_hears_the_others(again, plane)
        # Streams are moved, never taken out.
        assert ("DELETE", CONFERENCE) not in plane.log and plane.log.count(("MODIFY", CONFERENCE)) == 4


async def test_a_restart_without_room_for_both_makes_room(book: Book, tmp_path: Path) -> None:
    plane = Plane()
    for number in (1, 2, 3, 4):
        seat(book, number)
    await written(book, plane)
    plane.room = len(plane.rows) + 2
    again = Book(RELAY_IP, 20_000, 20_099, POLICY, tmp_path)
    again.load()
    writer = Writer(plane, again)  # type: ignore[arg-type]
    ((meeting, reason),) = await writer.adopt([again.get("room").meeting()])
    assert meeting.name == "room" and "full" in reason and not plane.rows
    await writer.bring(meeting)
    everybody_hears_the_others(again, plane)


async def test_a_data_plane_that_is_gone_is_no_refusal(book: Book) -> None:
    plane = Plane()
    writer = await written(book, plane)

    async def unanswered(entry: RelayEntry) -> Result:
        return Result(Outcome.UNAVAILABLE, "no answer")

    plane.insert = unanswered  # type: ignore[method-assign]
    seat(book, 1)
    seat(book, 2)
    with pytest.raises(Broken, match="no answer"):
        await writer.bring(book.get("room").meeting())


# -- learning --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[Conferences, Plane]]:
    """Conferences over a data plane in memory, with an empty `room`."""
    settings = Settings.model_validate({"address": "192.0.2.1", "ports": "20000-20099", "state": str(tmp_path)})
    made, plane = Conferences(settings, POLICY, clock=lambda: running_clock[0]), Plane()
    running_clock[0] = 100.0
    made.attach(plane)  # type: ignore[arg-type]
    await made.start()
    plane.on_up()
    await until(lambda: not made.problem)
    made.create("room")
    yield made, plane
    await made.close()


running_clock = [100.0]


async def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds: what is marked is brought to the data plane by a task."""
    deadline = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        await asyncio.sleep(0.01)


def hear(conferences: Conferences, participant: str, src: Endpoint, ssrc: int, count: int, *, version: int = 2, payload_type: int = 0) -> None:
    """So many packets, 20 ms apart."""
    relay = conferences.book.get("room").participants[participant].legs["audio"].relay
    for seq in range(count):
        conferences._table.on_learn(LearnNotice(FiveTuple(src, relay), version, payload_type, seq, ssrc))  # type: ignore[union-attr]
        running_clock[0] += 0.02


async def test_a_source_is_believed_after_the_guard_and_a_rival_ends_that(running: tuple[Conferences, Plane]) -> None:
    conferences, plane = running
    for name in ("ann", "bob"):
        conferences.join("room", name, ["audio"], [])
    ann = conferences.book.get("room").participants["ann"].legs["audio"]
    hear(conferences, "ann", source(1), 11, 4)
    assert ann.latch.learned is None, "four packets prove nothing"
    hear(conferences, "ann", source(1), 11, 5)
    hear(conferences, "bob", source(2), 22, 9)
    assert ann.latch.learned == source(1) and ann.ssrcs == [11]
    await until(lambda: {key.src for key in plane.relays} == {source(1), source(2)})
    # Somebody as persistent, with another SSRC: nobody can tell who is right, so nobody is carried.
    hear(conferences, "ann", source(3), 33, 9)
    await until(lambda: ann.latch.contested and not plane.relays)


async def test_a_trusted_address_is_believed_at_once_and_an_intruder_never(running: tuple[Conferences, Plane]) -> None:
    conferences, _ = running
    conferences.join("room", "ann", ["audio"], [source(1).addr])
    ann = conferences.book.get("room").participants["ann"].legs["audio"]
    hear(conferences, "ann", source(1), 11, 1)
    assert ann.latch.learned == source(1)
    hear(conferences, "ann", Endpoint.of("203.0.113.66", 9), 66, 50)
    assert ann.latch.learned == source(1) and ann.strays == 50


async def test_rtcp_and_stun_are_no_streams(running: tuple[Conferences, Plane]) -> None:
    conferences, _ = running
    conferences.join("room", "ann", ["audio"], [source(1).addr])
    hear(conferences, "ann", source(1), 11, 9, payload_type=72)
    hear(conferences, "ann", source(1), 11, 9, version=0)
    assert conferences.book.get("room").participants["ann"].legs["audio"].latch.learned is None


async def test_a_new_ssrc_becomes_a_stream_but_not_without_end(running: tuple[Conferences, Plane]) -> None:
    conferences, plane = running
    for number, name in enumerate(("ann", "bob", "cem")):
        conferences.join("room", name, ["audio"], [source(1).addr])
        hear(conferences, name, source(number), 100 + number, 1)
    for ssrc in range(1, 30):
        hear(conferences, "ann", source(0), ssrc, 1)
        running_clock[0] += 1
    assert conferences.book.get("room").participants["ann"].legs["audio"].ssrcs == [26, 27, 28, 29]
    await until(lambda: sorted(key.ssrc for name, key in plane.rows if name == CONFERENCE) == [26, 27, 28, 29, 101, 102])


async def test_trouble_is_said_and_made_good(running: tuple[Conferences, Plane], monkeypatch: pytest.MonkeyPatch) -> None:
    conferences, plane = running
    insert, failing = plane.insert, [RuntimeError("trouble")]

    async def once(entry: RelayEntry) -> Result:
        if failing:
            raise failing.pop()
        return await insert(entry)

    monkeypatch.setattr(plane, "insert", once)
    monkeypatch.setattr("shunt.conference.control.manager._RETRY_S", 0.3)
    for number, name in enumerate(("ann", "bob")):
        conferences.join("room", name, ["audio"], [source(1).addr])
        hear(conferences, name, source(number), number + 1, 1)
    await until(lambda: conferences.list()[0]["problem"] == "RuntimeError: trouble")
    assert len(plane.relays) < 2
    with pytest.raises(ConferenceError, match="trouble"):
        conferences.join("room", "cem", ["audio"], [])
    await until(lambda: conferences.list()[0]["problem"] == "" and len(plane.relays) == 2)


async def test_who_is_silent_is_taken_out(running: tuple[Conferences, Plane]) -> None:
    conferences, _ = running
    left = []
    conferences.on_left = lambda *who: left.append(who)
    conferences.join("room", "ann", ["audio"], [])
    running_clock[0] += 59
    await conferences._look()
    assert not left
    running_clock[0] += 2
    await conferences._look()
    assert left == [("room", "ann")]
    # Who waits alone for others has no row that counts, but is heard.
    conferences.join("room", "bob", ["audio"], [source(2).addr])
    for _ in range(5):
        running_clock[0] += 30
        hear(conferences, "bob", source(2), 2, 1)
        await conferences._look()
    assert len(left) == 1
    conferences.leave("room", "bob")
    assert conferences.list()[0]["participants"] == 0


async def test_srtp_goes_on_whole_and_nothing_of_it_is_left_out(running: tuple[Conferences, Plane]) -> None:
    conferences, _ = running
    conferences.join("room", "ann", ["video"], [], transport="RTP/SAVPF")
    conferences.join("room", "bob", ["video"], [])
    with pytest.raises(ConferenceError, match="ann's pictures go on whole: RTP/SAVPF: SRTP authenticates sequence numbers") as refused:
        conferences.set_target("room", "ann", "bob", 1)
    assert refused.value.status == 409
    conferences.set_target("room", "bob", "ann", 1)
    with pytest.raises(ConferenceError, match="each DTLS association has keys of its own"):
        conferences.join("room", "cem", ["video"], [], transport="UDP/TLS/RTP/SAVPF")
    again = Book(RELAY_IP, 20_000, 20_099, POLICY, Path(conferences.settings.state))
    again.load()
    assert again.get("room").participants["ann"].srtp and not again.get("room").participants["bob"].srtp


async def test_only_a_nomination_says_where_an_ice_participant_is(running: tuple[Conferences, Plane]) -> None:
    conferences, _ = running
    answer = conferences.join("room", "ann", ["audio"], [source(1).addr], ice=True)
    assert set(answer["ice"]) == {"ufrag", "pwd"} and answer["ice"]["pwd"] not in str(await conferences.look("room"))
    one = conferences.book.get("room").participants["ann"]
    hear(conferences, "ann", source(1), 1, 20)
    assert not one.present and one.legs["audio"].strays == 20
    conferences._checked(conferences.book.get("room"), one, "audio", source(2), False)
    assert not one.present
    conferences._checked(conferences.book.get("room"), one, "audio", source(2), True)
    assert one.legs["audio"].latch.learned == source(2)
    hear(conferences, "ann", source(2), 7, 1)
    assert one.legs["audio"].ssrcs == [7]
    hear(conferences, "ann", source(3), 7, 20)
    assert one.legs["audio"].latch.learned == source(2), "an address that was not nominated is nobody's"
    conferences._checked(conferences.book.get("room"), one, "audio", source(3), True)
    assert one.legs["audio"].latch.learned == source(3) and one.legs["audio"].ssrcs == [7]
    again = Book(RELAY_IP, 20_000, 20_099, POLICY, Path(conferences.settings.state))
    again.load()
    assert again.get("room").participants["ann"].ice == one.ice


async def test_who_does_not_receive_has_no_copies(running: tuple[Conferences, Plane]) -> None:
    conferences, plane = running
    for number, name in enumerate(("ann", "bob", "cem")):
        conferences.join("room", name, ["audio"], [source(1).addr])
        hear(conferences, name, source(number), number + 1, 1)
    copies = lambda: {row.dst for (table, _), row in plane.rows.items() if table == COPY}  # noqa: E731
    await until(lambda: copies() == {source(0), source(1), source(2)})
    conferences.renew("room", "bob", None, {"audio": "sendonly"})
    await until(lambda: copies() == {source(0), source(2)})
    assert not conferences.book.get("room").participants["bob"].held
    conferences.renew("room", "bob", None, {"audio": "inactive"})
    assert conferences.book.get("room").participants["bob"].held
    conferences.renew("room", "bob", None, {"audio": "sendrecv"})
    await until(lambda: copies() == {source(0), source(1), source(2)})


async def test_a_leg_for_each_sender_where_there_are_enough(running: tuple[Conferences, Plane], tmp_path: Path) -> None:
    conferences, plane = running
    answer = conferences.join("room", "ann", ["audio/3", "audio", "audio/2"], [source(0).addr])
    assert [leg["medium"] for leg in answer["media"]] == ["audio", "audio/3", "audio/2"]
    conferences.book.get("room").participants["ann"].legs["audio/2"].offered = source(50)
    conferences.book.get("room").participants["ann"].legs["audio/3"].offered = Endpoint.of("203.0.113.66", 9)  # not where ann is
    for number, name in enumerate(("ann", "bob", "cem", "dan")):
        if name != "ann":
            conferences.join("room", name, ["audio"], [source(0).addr])
        hear(conferences, name, source(number), number + 1, 1)
    ann = conferences.book.get("room").participants["ann"]

    def brought() -> dict[str, Endpoint]:
        """Where each sender's copies for ann go, and that they come from where ann sends to."""
        assert conferences._writer is not None
        found = {}
        for stream, receiver, row in conferences._writer.rows_of("room"):
            if receiver == "ann" and row in plane.rows and row[0] == COPY:
                leg = ann.leg_for(stream.sender, "audio")
                found[stream.sender] = plane.rows[row].dst if leg is not None and plane.rows[row].src == leg.relay else source(999)
        return found

    # What has no leg of its own comes in the first.
    await until(lambda: brought() == {"bob": source(0), "cem": source(50), "dan": source(0)})
    # The third leg proves itself; who has a leg keeps it.
    conferences._table.on_learn(LearnNotice(FiveTuple(source(60), ann.legs["audio/3"].relay), 2, 0, 1, 99))  # type: ignore[union-attr]
    await until(lambda: brought() == {"bob": source(0), "cem": source(50), "dan": source(60)})
    assert ann.legs["audio/3"].ssrcs == []
    conferences.leave("room", "cem")
    conferences.join("room", "eve", ["audio"], [source(0).addr])
    hear(conferences, "eve", source(5), 6, 1)
    await until(lambda: brought() == {"bob": source(0), "eve": source(50), "dan": source(60)})
    again = Book(RELAY_IP, 20_000, 20_099, POLICY, tmp_path)
    again.load()
    assert {name: (leg.relay, leg.latch.learned, leg.sends) for name, leg in again.get("room").participants["ann"].legs.items()} == {
        name: (leg.relay, leg.latch.learned, leg.sends) for name, leg in ann.legs.items()
    }
    for media in (["audio/2"], ["audio", "audio/1"], ["audio", "smell/2"]):
        with pytest.raises(ConferenceError, match="is none of audio, video, screen"):
            conferences.join("room", "fay", media, [])


async def test_rest_says_what_is_wrong(running: tuple[Conferences, Plane], monkeypatch: pytest.MonkeyPatch) -> None:
    conferences, plane = running
    app = web.Application()
    add_routes(app, conferences, lambda status, message, parameter=None: web.json_response({"error": message}, status=status))
    go = {"X-Shunt-Command": "1"}
    async with TestClient(TestServer(app)) as client:
        for method, path, headers, status, words in (
            ("POST", "/v1/conferences?name=x", {}, 403, "needs the header X-Shunt-Command"),
            ("DELETE", "/v1/conferences/room", {}, 403, "needs the header"),
            ("POST", "/v1/conferences", go, 400, "name: is missing"),
            ("POST", "/v1/conferences?name=room", go, 409, "already"),
            ("POST", "/v1/conferences?nmae=x", go, 400, "nmae: unknown parameter; known here: name"),
            ("POST", "/v1/conferences?name=x&name=y", go, 400, "given more than once"),
            ("POST", "/v1/conferences/room/participants?name=a&trusted=1.2.3", go, 400, "'1.2.3' is not an IP address"),
            ("POST", "/v1/conferences/room/participants?name=a&media=", go, 400, "medium ''"),
            ("POST", "/v1/conferences/room/participants?name=a&ice=maybe", go, 400, "ice: 'maybe' is neither yes nor no"),
            ("POST", "/v1/conferences/room/participants?name=a&transport=UDP/TLS/RTP/SAVPF", go, 400, "each DTLS association has keys of its own"),
            ("POST", "/v1/conferences/room/participants?name=a&transport=TCP", go, 400, "'TCP': is none of RTP/AVP"),
            ("GET", "/v1/conferences/none", {}, 404, "no conference 'none'"),
        ):
            async with client.request(method, path, headers=headers) as answer:
                assert (answer.status, words in (await answer.json())["error"]) == (status, True), path
        async with client.post("/v1/conferences/room/participants?name=a&media=audio,video&trusted=192.0.2.7,2001:db8::7", headers=go) as answer:
            assert answer.status == 200 and [leg["relay"] for leg in (await answer.json())["media"]] == ["192.0.2.1:20000", "192.0.2.1:20002"]
        # Who comes while the data plane is about to be there waits for it; who waits in vain is told for what.
        conferences.problem = "rows are being read"
        asyncio.get_running_loop().call_later(0.2, setattr, conferences, "problem", "")
        async with client.post("/v1/conferences/room/participants?name=b", headers=go) as answer:
            assert answer.status == 200
        monkeypatch.setattr(manager, "READY_S", 0.1)
        conferences.problem, plane.connected, plane.last_error = "not yet", False, "127.0.0.1:50052 refuses"
        async with client.post("/v1/conferences/room/participants?name=c", headers=go) as answer:
            assert (answer.status, await answer.json()) == (503, {"error": "nobody can be let in, 0.1 s were waited for that: the data plane is not there: 127.0.0.1:50052 refuses"})


async def test_python_asks_an_agent(running: tuple[Conferences, Plane]) -> None:
    """Create, join, qualities, targets, watch, leave, end, as documented; and what is wrong in the agent's own words."""
    conferences, _ = running
    app = web.Application()
    add_routes(app, conferences, lambda status, message, parameter=None: web.json_response({"error": message}, status=status))
    async with TestServer(app) as server:

        def ask() -> None:
            asked = ConferenceClient(f"http://127.0.0.1:{server.port}")
            assert asked.create("board")["name"] == "board" and [one["name"] for one in asked.all()] == ["room", "board"]
            answer = asked.join("board", "ann", ["audio", "video"], trusted=["192.0.2.7", "2001:db8::7"], ice=True, transport="RTP/AVPF", layers=["video=dependency-descriptor:12"])
            assert [leg["medium"] for leg in answer["media"]] == ["audio", "video"] and set(answer["ice"]) == {"ufrag", "pwd"}
            assert [leg["medium"] for leg in asked.join("board", "bob", ["video"])["media"]] == ["video"]
            asked.set_quality("board", "ann", "bob", "audio")
            asked.set_target("board", "ann", "bob", 1)
            look, again = itertools.islice(asked.watch("board", 0.01), 2)
            assert look["qualities"] == again["qualities"] == [{"sender": "ann", "receiver": "bob", "quality": "audio"}]
            assert [one["name"] for one in asked.look("board")["participants"]] == ["ann", "bob"]
            for status, words, call in (
                (404, "no conference 'x/y'", lambda: asked.look("x/y")), (409, "already", lambda: asked.create("board")), (400, "'smell'", lambda: asked.join("board", "cem", ["smell"])),
                (404, "no participant 'cem'", lambda: asked.leave("board", "cem")),
            ):  # fmt: skip
                with pytest.raises(Failure, match=words) as failed:
                    call()
                assert failed.value.status == status
            assert asked.leave("board", "bob") == {"conference": "board", "left": "bob"} and asked.end("board") == {"ended": "board"}

        await asyncio.to_thread(ask)
        port = server.port
    assert [one.name for one in conferences.book] == ["room"]
    with pytest.raises(Failure, match="no agent at") as failed:
        await asyncio.to_thread(ConferenceClient(f"127.0.0.1:{port}").all)
    assert failed.value.status == 0


def lowest(current: int, history: Any, estimate: Any) -> int:
    """An operator's function."""
    return 0


async def test_the_configured_function_is_the_one_that_is_asked(tmp_path: Path) -> None:
    """A default would leave this receiver, who can take anything, where it is."""
    settings = Settings.model_validate({"address": "192.0.2.1", "ports": "20000-20099", "state": str(tmp_path), "selector": f"{__name__}:lowest"})
    conferences = Conferences(settings, POLICY)
    conferences.book.create("room")
    for number, name in enumerate(("ann", "bob", "cem")):
        one = conferences.book.join("room", name, ["video"], [], 0.0, layers={"video": Told.parse("vp8")})
        one.legs["video"].latch.take(source(number), number, 1)
    for place, rate in ((("room", "ann", "video"), 6e5), *((("room", "ann", "video", str(layer)), 2e5) for layer in range(3))):
        conferences._meters.setdefault(place, manager._Meter()).rate = rate
    conferences.adaptation.heard("room", "bob", "video", {1: "ann"}, build_remb(9, 10_000_000, [1]))
    assert conferences.book.get("room").targets == {("ann", "bob"): 0}
    for timer in conferences._holds.values():
        timer.cancel()


# -- the model ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_with_the_reason(book: Book) -> None:
    seat(book, 1)
    for status, message, call in (
        (409, "already", lambda: book.create("room")),
        (400, "starts with a letter", lambda: book.create("../etc")),
        (404, "no conference 'x'", lambda: book.join("x", "p", ["audio"], [], 0.0)),
        (409, "takes part in room already", lambda: book.join("room", "p1", ["audio"], [], 0.0)),
        (400, "'smell' is none of audio, video, screen", lambda: book.join("room", "p2", ["smell"], [], 0.0)),
        (400, "gets nothing of its own", lambda: book.set_quality("room", "p1", "p1", "audio")),
        (400, "'best' is none of", lambda: book.set_quality("room", "p1", "p1", "best")),
        (404, "no participant 'p9'", lambda: book.leave("room", "p9")),
    ):
        with pytest.raises(ConferenceError, match=message) as error:
            call()
        assert error.value.status == status


def test_ports_run_out_and_come_back(book: Book) -> None:
    for number in range(16):
        book.join("room", f"p{number}", ["audio", "video", "screen"], [], 0.0)
    with pytest.raises(ConferenceError, match="all ports of conference.ports"):
        book.join("room", "late", ["audio", "video", "screen"], [], 0.0)
    before = dict(book.get("room").participants["p3"].legs)
    with pytest.raises(ConferenceError, match="all ports of conference.ports"):
        book.add("room", "p3", ["video/2", "video/3", "video/4"], [], {})
    assert book.get("room").participants["p3"].legs == before
    gone = book.leave("room", "p3")
    assert {leg.relay.port % 2 for leg in gone.legs.values()} == {0}
    book.join("room", "late", ["audio", "video", "screen"], [], 0.0)


@pytest.mark.parametrize("body", ["", "{", "[]", '{"format": 2}', '{"format": 1, "name": "x", "participants": [{"name": "a", "call_id": "", "legs": {"audio": {"port": 5}}}], "qualities": []}'])
def test_a_file_that_cannot_be_read_is_left_alone(tmp_path: Path, body: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "x.json").write_text(body)
    assert Book(RELAY_IP, 20_000, 20_099, POLICY, tmp_path).load() == 0
    assert "x.json cannot be carried on" in caplog.text and (tmp_path / "x.json").read_text() == body


# -- configuration -----------------------------------------------------------------------------------------------------

_BASE = "builtin_relay: {addresses: [192.0.2.1], ports: '35000-36000'}\ndata_plane: {target: '127.0.0.1:50052'}\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (_BASE + "conference: {ports: '20000-20099'}\n", "3:13: conference.address: this key is missing"),
        (_BASE + "conference: {address: 192.0.2.1, ports: '35500-35600'}\n", "3:41: conference.ports: 192.0.2.1 ports 35500-35600 overlap 35000-36000 of builtin_relay.ports"),
        (_BASE + "conference: {address: 192.0.2.1, selector: 'shunt.conference.feedback:STALE_S'}\n", "3:44: conference.selector: shunt.conference.feedback:STALE_S is not a function"),
        (_BASE + "conference: {address: 192.0.2.1, port: 5}\n", "3:34: conference.port: unknown key; did you mean ports?"),
        (_BASE + "conference: {address: 192.0.2.1, sip: 'udp:192.0.2.1:20002'}\n", "conference.sip: udp:192.0.2.1:20002 lies within the media ports 192.0.2.1 20000-29999"),
        (_BASE.splitlines()[0] + "\nconference: {address: 192.0.2.1}\n", "2:13: conference: needs a data_plane"),
        (
            _BASE + "cdr: {csv: /var/log/c.csv, json_lines: /var/log/c.jsonl}\nconference: {address: 192.0.2.1, cdr: {csv: /var/log/conf.csv, json_lines: /var/log/x/../c.csv}}\n",
            "4:76: conference.cdr.json_lines: is the file of cdr.csv too",
        ),
    ],
)
def test_configuration_errors_name_key_and_line(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loads(text)
    assert error in str(raised.value)


def test_without_the_section_there_are_no_conferences() -> None:
    assert loads(_BASE).conference is None
    assert str(loads(_BASE + "conference: {address: 192.0.2.1}\n").conference.ports) == "20000-29999"


# -- streams that are told apart by their SSRC, and by their payload type --------------------------------------------


def reached(conferences: Conferences, plane: Plane) -> dict[tuple[str, int], set[str]]:
    """Who gets each stream, (sender, SSRC), by the tables alone."""
    people = conferences.book.get("room").participants
    names = {leg.latch.learned: one.name for one in people.values() for leg in one.legs.values()}
    return {(names.get(key.flow.src, "gone"), key.ssrc): {names.get(there, "gone") for there in plane.receivers(key)} for name, key in plane.rows if name == CONFERENCE}


def notice(conferences: Conferences, participant: str, kind: str, src: Endpoint, ssrc: int, payload_type: int = 96) -> None:
    """A packet of a stream that has no row."""
    running_clock[0] += 1
    relay = conferences.book.get("room").participants[participant].legs[kind].relay
    conferences._table.on_learn(LearnNotice(FiveTuple(src, relay), 2, payload_type, 1, ssrc))  # type: ignore[union-attr]


async def test_of_two_with_one_ssrc_the_first_is_carried(running: tuple[Conferences, Plane]) -> None:
    """Whoever comes with it later is told of, heard by nobody, and hears everybody; when the first is gone, it is carried."""
    conferences, plane = running
    people = ("ann", "bob", "cem")
    for number, name in enumerate(people):
        conferences.join("room", name, ["audio"], [source(1).addr])
        if name != "cem":
            notice(conferences, name, "audio", source(number), 7)
    await until(lambda: len(plane.relays) == 2)  # two hear only each other
    notice(conferences, "cem", "audio", source(2), 9)
    await until(lambda: reached(conferences, plane) == {("ann", 7): {"bob", "cem"}, ("cem", 9): {"ann", "bob"}} and not plane.relays)
    look = await conferences.look("room")
    assert {one["name"]: one["media"][0]["conflicts"] for one in look["participants"]} == {"ann": [], "bob": [{"ssrc": 7, "owner": "ann"}], "cem": []}
    assert "bob's audio 00000007 goes to nobody: ann has sent this SSRC before" in text(look) and "00000007 goes to nobody: it is ann's" in text(look)
    # Who takes another's SSRC later loses that stream alone, whoever joined first.
    notice(conferences, "ann", "audio", source(0), 9)
    await until(lambda: ("ann", "audio", 9) in conferences.book.get("room").conflicting)
    assert reached(conferences, plane) == {("ann", 7): {"bob", "cem"}, ("cem", 9): {"ann", "bob"}}
    again = Book(RELAY_IP, 20_000, 20_099, POLICY, Path(conferences.settings.state))
    again.load()
    assert again.get("room").conflicts() == conferences.book.get("room").conflicts() == {("bob", "audio", 7): "ann", ("ann", "audio", 9): "cem"}
    # It begins anew with another, as RFC 3550 section 8.2 asks for.
    notice(conferences, "bob", "audio", source(1), 8)
    await until(lambda: reached(conferences, plane).get(("bob", 8)) == {"ann", "cem"})
    conferences.join("room", "dan", ["audio"], [source(1).addr])
    notice(conferences, "dan", "audio", source(3), 10)
    conferences.leave("room", "ann")
    await until(lambda: reached(conferences, plane) == {("bob", 7): {"cem", "dan"}, ("bob", 8): {"cem", "dan"}, ("cem", 9): {"bob", "dan"}, ("dan", 10): {"bob", "cem"}})
    assert [one["what"] for one in (await conferences.look("room"))["happened"] if "ssrc" in one["what"]] == ["ssrc-conflict", "ssrc-conflict", "ssrc-free"]


async def test_one_ssrc_for_sound_and_pictures_is_no_conflict(running: tuple[Conferences, Plane]) -> None:
    """They come at ports of their own."""
    conferences, plane = running
    for number, name in enumerate(("ann", "bob", "cem")):
        conferences.join("room", name, ["audio", "video"], [source(1).addr])
        notice(conferences, name, "audio", source(number), number + 1)
        notice(conferences, name, "video", source(10 + number), (number + 1) % 3 + 1)
    await until(lambda: len(reached(conferences, plane)) == 6)
    assert conferences.book.get("room").conflicts() == {}


async def test_what_repairs_a_stream_goes_to_those_alone_who_have_its_numbers(running: tuple[Conferences, Plane], tmp_path: Path) -> None:
    """RTX names packets by the sender's numbers: copies for a receiver with numbers of its own would be put in the wrong place."""
    conferences, plane = running
    for number, name in enumerate(("ann", "bob", "cem")):
        conferences.join("room", name, ["video"], [source(1).addr], layers={"video": Told.parse("dependency-descriptor:12")})
        notice(conferences, name, "video", source(number), 100 + number)
    notice(conferences, "ann", "video", source(0), 200, payload_type=97)
    everybody = {("ann", 100): {"bob", "cem"}, ("ann", 200): {"bob", "cem"}, ("bob", 101): {"ann", "cem"}, ("cem", 102): {"ann", "bob"}}
    await until(lambda: reached(conferences, plane) == everybody)
    assert {key.ssrc: bool(tree.layers) for (name, key), tree in plane.rows.items() if name == CONFERENCE} == {100: True, 101: True, 102: True, 200: False}
    plane.log.clear()
    for target in (1, 2, 0):  # numbers that were rewritten once are rewritten to the end
        conferences.set_target("room", "ann", "cem", target)
        await until(lambda: reached(conferences, plane) == everybody | {("ann", 200): {"bob"}})
    copies = [kind for kind, name in plane.log if name == COPY]
    assert copies.index("DELETE") < copies.index("MODIFY"), "what repairs goes before the receiver has numbers of its own"
    # A stream that begins anew, of the payload type of before, goes to everybody.
    notice(conferences, "ann", "video", source(0), 300)
    await until(lambda: reached(conferences, plane).get(("ann", 300)) == {"bob", "cem"})
    ann = conferences.book.get("room").participants["ann"].legs["video"]
    assert (ann.repair, ann.ssrcs) == ([200], [100, 200, 300])
    said = text(await conferences.look("room"))
    assert "ann's video 000000c8 is taken for repair: its payload type is 97, not 96; who gets fewer layers does not get it" in said and "000000c8 repairs" in said
    again = Book(RELAY_IP, 20_000, 20_099, POLICY, tmp_path)
    again.load()
    assert again.get("room").participants["ann"].legs["video"].repair == [200]
    for ssrc in (301, 302, 303, 304):
        notice(conferences, "ann", "video", source(0), ssrc)
    assert ann.repair == [] and ann.ssrcs == [301, 302, 303, 304]
