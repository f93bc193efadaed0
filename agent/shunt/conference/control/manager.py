"""Conferences in a running agent: joins and leaves, sources learned, and the data plane kept in step.

Whatever changes marks its conference; one task brings marked conferences to what they are to be, one after the other.
Nothing here waits for the data plane but that task and questions about counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shunt.bfrt.client import BfrtRefused, BfrtUnavailable
from shunt.bfrt.schema import SchemaError
from shunt.cdr.writer import RecordWriter
from shunt.conference.control.adaptation import Adaptation
from shunt.conference.control.cpu_port import CpuPort
from shunt.conference.control.forwarding import NoRoute
from shunt.conference.control.ice import make_credentials
from shunt.conference.control.layers import TARGETS, Packet, Told, read_frame, read_packet
from shunt.conference.control.model import HELD_S, KINDS, STREAMS, TOP, TREES, Book, Conference, ConferenceError, Leg, Participant, kind_of, medium_of, source_name
from shunt.conference.control.records import Departed, Ledger, csv_header, csv_lines
from shunt.conference.control.shelf import Folder, Shelf
from shunt.conference.control.sockets import Sockets
from shunt.conference.control.writer import Broken, Refused, Row, Writer
from shunt.conference.engine import CONFERENCE, EngineFull, Source
from shunt.conference.feedback import select_decode_target
from shunt.conference.frames import Datagram, write_datagram
from shunt.conference.packets import Layers
from shunt.conference.rtp import MediaError
from shunt.conference.trees import Design, Meeting, design_of
from shunt.config.conference import Conference as Settings
from shunt.config.selector import load_selector
from shunt.config.values import SocketAddress
from shunt.events.bus import CONFERENCE as EVENT, EventBus
from shunt.learning.latch import LatchPolicy, Verdict
from shunt.learning.scanners import Scanners
from shunt.net import Endpoint, FiveTuple
from shunt.offload import REBIND_SILENCE_MS, SprayGuard
from shunt.tables.entry import LearnNotice, MediaRange, StreamStats
from shunt.tables.relay_table import DataPlaneUnavailable, RelayTable
from shunt.tasks import keep_running

if TYPE_CHECKING:
    from shunt.conference.control.focus import Focus, StandIn

log = logging.getLogger(__name__)

READY_S = 3.0
_RETRY_S = 1.0
_STRUCTURE_S = 2.0
_LEFT_OUT_S = 5.0  # until a conference for which there was no room is tried again
_POLL_S = 5.0
_ROUTES_S = 1.0  # between two readings of a switch's routes because of somebody whom none leads to
_METER_S, _METER_WEIGHT = 1.0, 0.5
_SHARES = {2: (0.6, 1.0, 1.0), 3: (0.4, 0.6, 1.0)}
"""Of a stream's rate, what each decode target has, by the number of its layers: how libwebrtc divides it. For data planes that do not count layers."""
_TOLD = 0.25  # of a stream's bytes: below that, its rows are not those of its structure
_NEW_SSRC_S = 0.2  # between two new SSRCs of one source: more often is no encoder that starts anew
_DIRECTIONS = {(True, True): "sendrecv", (True, False): "sendonly", (False, True): "recvonly", (False, False): "inactive"}
_FAILURES = (Broken, BfrtUnavailable, BfrtRefused, DataPlaneUnavailable, SchemaError)


class _Meter:
    """A rate from counters that are read now and then."""

    def __init__(self) -> None:
        self.rate: float | None = None  # bit/s
        self._before: tuple[float, dict[Row, int]] | None = None

    def take(self, now: float, octets: dict[Row, int]) -> None:
        """octets: what each row has counted; a row that is new, or counts anew, counts from its next reading."""
        if self._before is not None and now > self._before[0]:
            then, earlier = self._before
            rate = sum(max(0, count - earlier[row]) for row, count in octets.items() if row in earlier) * 8 / (now - then)
            self.rate = rate if self.rate is None else self.rate + _METER_WEIGHT * (rate - self.rate)
        self._before = now, octets


class Conferences:
    """All conferences of an agent. attach() comes before the data plane's start."""

    def __init__(
        self, settings: Settings, policy: LatchPolicy, scanners: Scanners | None = None, *, events: EventBus | None = None, clock: Callable[[], float] = time.monotonic,
        delay_ms: float = 50.0, shelf: Shelf | None = None, cpu_interface: str | None = None,
    ) -> None:  # fmt: skip
        """Nothing is read or opened yet. events: who else hears of what happens; clock: monotonic seconds; delay_ms as in
        shunt.quality.score; shelf: where conferences are kept for the next agent, by default in the state folder; cpu_interface: of a switch's CPU port,
        by which RTCP comes and goes. Raises ValueError where the selector cannot be used."""
        self.settings = settings
        self._paired = shelf is not None  # the agent before this one may not have ended yet
        self.shelf = Folder(Path(settings.state)) if shelf is None else shelf
        self.clock = clock
        self.book = Book(settings.address.packed, settings.ports.first, settings.ports.last, policy, self.shelf)
        self.problem = "the data plane has not been connected yet"
        self.strays_ignored = 0
        self.scanners = scanners
        self._table: RelayTable | None = None
        self._writer: Writer | None = None
        self._spray = SprayGuard()
        self.adaptation = Adaptation(self, load_selector(settings.selector) if settings.selector is not None else select_decode_target, clock)
        self._events = events
        self.records = RecordWriter(settings.cdr.csv, settings.cdr.json_lines, header=csv_header(), lines=csv_lines) if settings.cdr is not None else None
        self._ledger = Ledger(self.book) if self.records is not None else None
        self._delay_ms = delay_ms
        self._departed: dict[str, list[Departed]] = {}  # whose rows are still to go, by conference
        self._meters: dict[tuple[str, ...], _Meter] = {}  # by conference, sender, medium and, where it has some, layer
        self._untold: dict[str, set[Source]] = {}  # of each conference, streams that hardly any row told the layers of when last measured
        self._holds: dict[tuple[str, str, str], asyncio.TimerHandle] = {}
        self._cpu_port = CpuPort(cpu_interface, self.book.address, self._arrived) if cpu_interface is not None else None
        self._sockets = Sockets(self.book, self.adaptation, self._send_by_switch if self._cpu_port is not None else None)
        self._routes_read = 0.0
        self._look_for_routes = False
        self._sockets.on_check = self._checked
        self._focus: Focus | None = None
        self._stand_in: StandIn | None = None
        self.serving = False  # whether this agent has the conferences: from start() on
        self._dirty: dict[str, None] = {}
        self._unsure = True
        self._wake = asyncio.Event()
        self._new_ssrc: dict[int, float] = {}
        self._flows: dict[str, set[tuple[Source, str | None]]] = {}  # of pictures, when the data plane was last brought to them
        self.on_left: Callable[[str, str], None] = lambda conference, participant: None
        self._tasks: set[asyncio.Task[None]] = set()

    # -- running -------------------------------------------------------------------------------------------------

    def attach(self, table: RelayTable) -> None:
        """Hear of the data plane's notices and comings; those of calls go on to whom they went before."""
        self._table, self._writer = table, Writer(table, self.book, self._ledger)
        went_up, learned = table.on_up, table.on_learn
        table.on_packet = self.packet

        def up() -> None:
            went_up()
            self._unsure = True
            self._wake.set()

        def notice(told: LearnNotice) -> None:
            if self.book.owns(told.key.dst):
                self.noticed(told)
            else:
                learned(told)

        table.on_up, table.on_learn = up, notice

    def add_routes(self, app: Any, error: Callable[..., Any]) -> None:
        """Serve the REST API's routes."""
        from shunt.conference.control.routes import add_routes

        add_routes(app, self, error)

    def owns(self, key: FiveTuple) -> bool:
        """Whether a relay entry of this key is a conference's."""
        return self.book.owns(key.dst)

    async def stand_by(self) -> None:
        """Until start(), have SIP calls turned to the agent in charge."""
        if self.settings.sip is not None:
            from shunt.conference.control.focus import StandIn

            self._stand_in = StandIn(SocketAddress.parse(self.settings.sip), self.settings.sip_allow)
            await self._stand_in.start()

    async def _stop_standing_by(self) -> None:
        if self._stand_in is not None:
            await self._stand_in.stop()
            self._stand_in = None

    async def start(self) -> None:
        """Carry on with the conferences that were kept, and serve. Raises JournalError, and OSError naming the SIP socket."""
        await self.shelf.open()
        self.serving = True
        if count := self.book.load():
            log.info("conferences: %d carried on", count)
        for conference in self.book:
            for participant in conference.participants.values():
                self._sockets.open(participant)
        if self._cpu_port is not None:
            self._cpu_port.start()
        await self._stop_standing_by()
        if self.settings.sip is not None:
            from shunt.conference.control.focus import Focus

            self._focus = Focus(SocketAddress.parse(self.settings.sip), self.settings.sip_allow, self)
            await self._focus.start(patient=self._paired)
        if self.records is not None:
            self.records.start()
        self.spawn(keep_running("rows of conferences", self._work))
        self.spawn(keep_running("counters of conferences", self._poll))
        self.spawn(keep_running("quality of conferences", self._measure))

    async def close(self) -> None:
        """Stop; rows stay in the data plane, and conferences are kept."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stop_standing_by()
        if self._focus is not None:
            await self._focus.stop()
        self._sockets.close_all()
        if self._cpu_port is not None:
            self._cpu_port.close()
        if self.records is not None and self._ledger is not None:
            for name, departed in list(self._departed.items()):
                for one in departed:
                    self._ledger.given_up(one.participant.legs.values())
                self._record(name, departed)
            await self.records.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside, until close()."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the conferences failed", exc_info=task.exception())

    def keep_all(self) -> None:
        """What conferences are kept on has lost them."""
        for conference in self.book:
            self.book.keep(conference)

    def _touch(self, name: str) -> None:
        self._dirty[name] = None
        self._wake.set()

    def _later(self, seconds: float, name: str | None) -> None:
        loop = asyncio.get_running_loop()
        if name is None:
            loop.call_later(seconds, self._wake.set)
        else:
            loop.call_later(seconds, self._touch, name)

    # -- the data plane --------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """For ever: bring what is marked to what it is to be."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._table is None or not self._table.connected:
                continue  # its coming wakes us
            try:
                if self._unsure:
                    await self._make_sure()
                if self._look_for_routes:
                    await self._look_up_routes()
                while self._dirty:
                    name = next(iter(self._dirty))
                    del self._dirty[name]
                    await self._bring(name)
            except _FAILURES as error:
                if str(error) != self.problem:
                    log.error("conferences: %s", error)
                self._start_over(str(error))
            except Exception as error:  # one conference's trouble must not be the end of all others
                log.exception("conferences")
                self._start_over(f"{type(error).__name__}: {error}")

    def _start_over(self, reason: str) -> None:
        """What the data plane holds is not certain: soon everything is made sure of."""
        self.problem, self._unsure = reason, True
        self._later(_RETRY_S, None)

    async def _make_sure(self) -> None:
        assert self._table is not None and self._writer is not None
        declared = await self._table.declare_media([MediaRange(self.book.address, self.book.first, self.book.last | 1)])
        if not declared.ok:
            raise Broken(f"the data plane does not take the conferences' address, so nobody can be learned: {declared.detail or declared.outcome.value}")
        self._unsure = False
        await self._read_routes()
        self._dirty.clear()
        if self._cpu_port is not None and not self._writer.routed:
            log.error("data_plane.cpu_interface %s: this data plane has no routes of its own, so nothing can be sent by it: leave the key out", self._cpu_port.interface)
        for conference in self.book:
            conference.problem = ""
            conference.show()
            self._tell_conflicts(conference)
        meetings = [conference.meeting(self._writer.port) for conference in self.book]
        for meeting in meetings:
            self._tell_unreached(meeting)
        departed = {name: list(those) for name, those in self._departed.items()}
        for meeting, reason in await self._writer.adopt(meetings):
            self._no_room(meeting.name, reason)
        self.problem = ""
        for name, those in departed.items():
            self._record(name, those)

    async def _bring(self, name: str) -> None:
        assert self._writer is not None
        conference = self.book.conferences.get(name, Conference(name))
        departed = list(self._departed.get(name, ()))
        try:
            conference.show()
            self._tell_conflicts(conference)
            if any(self._writer.unreached(one, leg) for one in conference.participants.values() for leg in one.legs.values()) and self.clock() - self._routes_read >= _ROUTES_S:
                await self._look_up_routes()
            meeting = conference.meeting(self._writer.port)
            self._tell_unreached(meeting)
            await self._writer.bring(meeting)
            conference.problem = ""
            self._record(name, departed)
            self._want_pictures(conference)
            self._want_layers(conference)
        except (EngineFull, Refused) as error:
            self._no_room(name, str(error))

    def _record(self, name: str, departed: list[Departed]) -> None:
        """The rows of these are out, and have said what they counted; that of those who stay outlives the agent.

        Who left while a conference was brought to its state of before still has rows, and is none of them.
        """
        if self.records is None:
            return
        if waiting := self._departed.pop(name, [])[len(departed) :]:
            self._departed[name] = waiting
        for one in departed:
            self.records.put(one.record(self._delay_ms))
        if name in self.book.conferences:
            self.book.keep(self.book.conferences[name])

    def _want_pictures(self, conference: Conference) -> None:
        """Ask for key frames of the pictures that somebody gets from now on."""
        assert self._writer is not None
        flows = {
            (source, receiver) for source, receiver, _ in self._writer.rows_of(conference.name)
            if receiver is not None and 0 < KINDS.index(kind_of(source.name)[0]) <= conference.qualities.get((source.sender, receiver), TOP)
        }
        for source in {source for source, _ in flows - self._flows.get(conference.name, set())}:
            leg = self.book.of(source, source.sender)
            if leg is not None:
                self._sockets.want_key_frame(leg)
        self._flows[conference.name] = flows
        if conference.name not in self.book.conferences:
            del self._flows[conference.name]

    def _want_layers(self, conference: Conference) -> None:
        """Somebody is to get less of streams that have not told their layers: a key frame does, and is asked for until it has come."""
        assert self._writer is not None
        waiting = {
            source for source, receiver, _ in self._writer.rows_of(conference.name)
            if conference.targets.get((source.sender, receiver or ""), TARGETS - 1) < TARGETS - 1 and self._writer.layering.awaits_structure(source)
        }
        for source in waiting:
            leg = self.book.of(source, source.sender)
            if leg is not None:
                self._sockets.want_key_frame(leg)
        if waiting:
            self._later(_STRUCTURE_S, conference.name)

    def _tell_conflicts(self, conference: Conference) -> None:
        """Say whose streams are not carried because others have their SSRCs, and whose are again."""
        before, now = conference.conflicting, conference.conflicts()
        for participant, medium, ssrc in before.keys() - now.keys():
            if participant in conference.participants:
                self.tell(conference.name, "ssrc-free", participant=participant, medium=medium, ssrc=ssrc)
        for (participant, medium, ssrc), owner in now.items():
            if before.get((participant, medium, ssrc)) != owner:
                self.tell(conference.name, "ssrc-conflict", participant=participant, medium=medium, ssrc=ssrc, owner=owner)
                log.warning("conference %s: %s's %s with SSRC %08x goes to nobody: %s has sent this SSRC before, and receivers could not tell them apart", conference.name, participant, medium, ssrc, owner)
        conference.conflicting = now

    async def _read_routes(self) -> None:
        """A switch's routes are its operator's, who may change them at any time: whose copies they are for follow."""
        assert self._writer is not None
        self._look_for_routes, self._routes_read = False, self.clock()
        if await self._writer.read_routes():
            self._dirty |= dict.fromkeys(self.book.conferences)

    async def _look_up_routes(self) -> None:
        """Read routes anew, in between: where they cannot be read, those of before hold."""
        try:
            await self._read_routes()
        except (BfrtUnavailable, BfrtRefused) as error:
            log.warning("conferences: the switch's routes cannot be read, and those of before are in force: %s", error)

    def _tell_unreached(self, meeting: Meeting) -> None:
        """Say to whom nothing goes because the switch has no way there, and to whom it goes again."""
        assert self._writer is not None
        conference, in_tree = self.book.conferences.get(meeting.name), design_of(meeting, TREES) is not Design.TWO_PARTY
        if conference is None:
            return
        legs = {(one.name, kind): self._writer.unreached(one, leg, in_tree) for one in conference.participants.values() for kind, leg in one.legs.items()}
        now = {place: reason for place, reason in legs.items() if reason}
        for participant, medium in conference.unreached.keys() - now.keys():
            if participant in conference.participants:
                self.tell(conference.name, "route", participant=participant, medium=medium)
        for (participant, medium), reason in now.items():
            if conference.unreached.get((participant, medium)) != reason:
                self.tell(conference.name, "no-route", participant=participant, medium=medium, detail=reason)
                log.warning("conference %s: %s gets no %s: %s", conference.name, participant, medium, reason)
        conference.unreached = now

    def _no_room(self, name: str, reason: str) -> None:
        conference = self.book.conferences.get(name)
        if conference is not None:
            if conference.problem != reason:
                self.tell(name, "no-room", detail=reason)
                log.error("conference %s: %s", name, reason)
            conference.problem = reason
        self._later(_LEFT_OUT_S, name)

    # -- learning --------------------------------------------------------------------------------------------------

    def noticed(self, notice: LearnNotice) -> None:
        """A packet to a conference's address that no row claims. Called for every one: nothing here waits."""
        place = self.book.at(notice.key.dst)
        if place is None:
            # RTCP of a participant has the port after its RTP's.
            if self.scanners is not None and self.book.at(notice.key.dst._replace(port=notice.key.dst.port & ~1)) is None:
                self.scanners.note(notice.key)
            return
        if notice.rtp_version != 2 or 64 <= notice.payload_type <= 95:
            return  # STUN, DTLS, or RTCP beside RTP (RFC 5761 section 4): never a stream's packet
        conference, participant, kind = place
        leg, src, now = participant.legs[kind], notice.key.src, self.clock()
        latch = leg.latch
        if participant.ice is not None and src != latch.learned:
            self._stray(leg)  # where its media comes from is for its checks to say
            return
        if self._spray.is_sprayer(now, src, notice.key.dst) and src.addr not in latch.trusted:
            self._stray(leg)
            return
        if medium_of(kind) == KINDS[0]:
            leg.payload_type = notice.payload_type
        before = latch.learned
        verdict = latch.observe(now, src, notice.ssrc, notice.seq)
        if verdict in (Verdict.STRAY, Verdict.QUARANTINED):
            self._stray(leg)
            return
        if verdict is Verdict.REBIND:
            if not leg.moving:
                leg.moving = True
                self.spawn(self._rebind(conference, participant, kind, notice))
            return
        if verdict is Verdict.OVERRIDE:
            latch.take(src, notice.ssrc, notice.seq)
        if latch.learned == src:
            participant.heard = now  # who is alone has no row that would count
        if verdict is Verdict.KNOWN:
            self._heard_ssrc(conference, participant, kind, notice.ssrc, notice.payload_type)
        elif latch.learned != before:
            leg.ssrcs, leg.repair = [], []
            if latch.learned is not None and "/" not in kind:
                self._streams(conference, participant, kind, notice.ssrc, notice.payload_type)
            self._moved(conference, participant, kind)

    def packet(self, frame: bytes) -> None:
        """A packet that the data plane has copied here, because it may say which layers its stream has."""
        found = read_frame(frame)
        if found is not None:
            self._layered(found)

    def _arrived(self, datagram: Datagram) -> None:
        """A datagram from a switch's CPU port: RTCP, a connectivity check, or a packet that the mirror session brings because it may say which
        layers its stream has. Media before its source is learned comes this way too."""
        flow, payload = datagram
        if self.book.owns(flow.dst) and not self._sockets.arrived(flow.dst, flow.src, payload) and (found := read_packet(datagram)) is not None:
            self._layered(found)

    def _send_by_switch(self, flow: FiveTuple, data: bytes) -> None:
        """Send a datagram out of a switch's CPU port, as its routes have it: the frame is bridged to the port of its next hop."""
        assert self._cpu_port is not None and self._writer is not None
        try:
            hop = self._writer.next_hop(flow.dst.addr)
        except NoRoute as reason:
            self._cpu_port.counts["cpu_port_unsent"] += 1
            log.debug("%s: not sent: %s", flow, reason)
            return
        self._cpu_port.send(write_datagram(flow, data, hop.src_mac, hop.dst_mac, hop.vlan))

    def _layered(self, found: Packet) -> None:
        """An RTP packet that may say which layers its stream has."""
        place = self.book.at(found.flow.dst)
        if place is None or self._writer is None:
            return
        conference, participant, kind = place
        if participant.legs[kind].latch.learned != found.flow.src:
            return
        source = Source(conference.name, participant.name, source_name(kind, found.ssrc))
        try:
            if self._writer.layering.see(source, found.payload):
                self._touch(conference.name)
        except MediaError as error:
            log.warning("conference %s: layers of %s's %s: %s", conference.name, participant.name, kind, error)

    def _checked(self, conference: Conference, participant: Participant, kind: str, source: Endpoint, nominated: bool) -> None:
        """A check with a participant's credentials has come: a sign of life, and with a nomination the word on where its media comes from."""
        participant.heard = self.clock()
        latch = participant.legs[kind].latch
        if nominated and latch.learned != source:
            latch.trusted = {source.addr}
            latch.take(source, latch.ssrc or 0, latch.seq)
            self._moved(conference, participant, kind)

    def _stray(self, leg: Leg) -> None:
        leg.strays += 1
        self.strays_ignored += 1

    def _heard_ssrc(self, conference: Conference, participant: Participant, kind: str, ssrc: int, payload_type: int | None) -> None:
        """The source sends a stream that is not known yet: another one, or its encoder has started anew. payload_type: None where it is not known."""
        leg, now = participant.legs[kind], self.clock()
        if ssrc in leg.ssrcs or "/" in kind or now - self._new_ssrc.get(leg.relay.port, -_NEW_SSRC_S) < _NEW_SSRC_S:
            return
        self._new_ssrc[leg.relay.port] = now
        self._streams(conference, participant, kind, ssrc, payload_type)
        participant.heard = now
        self.book.keep(conference)
        self._touch(conference.name)

    def _streams(self, conference: Conference, participant: Participant, kind: str, ssrc: int, payload_type: int | None) -> None:
        """A leg has one stream more. Of pictures, what has another payload type than the first is taken for repair: RTX and FEC have payload types of their own."""
        leg = participant.legs[kind]
        leg.ssrcs = [*leg.ssrcs, ssrc][-STREAMS:]
        if kind != KINDS[0] and payload_type is not None:
            leg.payload_type = payload_type if leg.payload_type is None else leg.payload_type
            if payload_type != leg.payload_type:
                leg.repair.append(ssrc)
                self.tell(conference.name, "repair", participant=participant.name, medium=kind, ssrc=ssrc, payload_type=payload_type, of=leg.payload_type)
        leg.repair = [one for one in leg.repair if one in leg.ssrcs]

    def _moved(self, conference: Conference, participant: Participant, kind: str) -> None:
        leg = participant.legs[kind]
        participant.heard = self.clock()
        if "/" not in kind and leg.latch.learned is not None:
            # Where a participant is itself, it is believed to get more: elsewhere its signalling could send a flood to a third party.
            for name, further in participant.legs.items():
                if name != kind and medium_of(name) == kind and further.latch.learned is None and further.offered is not None and further.offered.addr == leg.latch.learned.addr:
                    further.latch.take(further.offered, 0, 0)
        self.tell(conference.name, "source", participant=participant.name, medium=kind, source=str(leg.latch.learned) if leg.latch.learned is not None else None)
        log.info("conference %s: %s's %s comes from %s to %s", conference.name, participant.name, kind, leg.latch.learned or "nobody certain", leg.relay)
        self.book.keep(conference)
        self._touch(conference.name)

    async def _rebind(self, conference: Conference, participant: Participant, kind: str, notice: LearnNotice) -> None:
        """Follow a NAT rebinding, but only when the old source has fallen silent: an injector's victim has not."""
        leg = participant.legs[kind]
        old = leg.latch.learned
        try:
            before = await self._count_leg(conference.name, participant.name, kind)
            await asyncio.sleep(REBIND_SILENCE_MS / 1000)
            silent = before is not None and before == await self._count_leg(conference.name, participant.name, kind)
        except _FAILURES:
            return  # the next packet from there asks again
        finally:
            leg.moving = False
        if self.book.conferences.get(conference.name) is not conference or conference.participants.get(participant.name) is not participant or leg.latch.learned != old:
            return
        if not silent:
            self._stray(leg)
            return
        leg.latch.take(notice.key.src, notice.ssrc, notice.seq)
        if notice.ssrc not in leg.ssrcs and "/" not in kind:
            self._streams(conference, participant, kind, notice.ssrc, notice.payload_type)
        self._moved(conference, participant, kind)

    async def _count_leg(self, name: str, participant: str, kind: str) -> int | None:
        """Packets of a leg that the data plane counted; None when none of its rows is in."""
        assert self._writer is not None
        rows = [row for source, receiver, row in self._writer.rows_of(name) if row[0] != "copy" and (source.sender, kind_of(source.name)[0]) == (participant, kind)]
        counted = await self._writer.counts(list(dict.fromkeys(rows)))
        return sum(counted.values()) if counted else None

    # -- time-outs -------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        """For ever: read counters, and take out who has not been heard for long."""
        while True:
            await asyncio.sleep(_POLL_S)
            self._look_for_routes = True
            self._wake.set()
            try:
                await self._look()
            except _FAILURES as error:
                log.warning("counters of conferences: %s", error)
            except Exception:
                log.exception("counters of conferences")

    async def _look(self) -> None:
        if self._table is None or not self._table.connected or self._unsure or self.problem:
            # Nobody can be heard while there is no data plane to hear with.
            for conference in self.book:
                for participant in conference.participants.values():
                    participant.heard = self.clock()
            return
        assert self._writer is not None
        rows: dict[tuple[str, str, str], dict[Row, None]] = {}
        for conference in self.book:
            for source, _, row in self._writer.rows_of(conference.name):
                if row[0] != "copy":
                    rows.setdefault((conference.name, source.sender, kind_of(source.name)[0]), {})[row] = None
        counted = await self._writer.counts([row for those in rows.values() for row in those])
        relayed = [row[1] for those in rows.values() for row in those if row[0] == "relay"]
        stats = await self._table.stats(relayed) if relayed else {}
        for conference in list(self.book):
            self._judge(conference, rows, counted, stats)

    def _judge(
        self, conference: Conference, rows: dict[tuple[str, str, str], dict[Row, None]], counted: dict[Row, int], stats: dict[FiveTuple, StreamStats]
    ) -> None:
        """Who of a conference has been heard, by the counters of its rows; who has been silent for too long is taken out."""
        now = self.clock()
        for participant in list(conference.participants.values()):
            for kind, leg in participant.legs.items():
                mine = rows.get((conference.name, participant.name, kind), {})
                packets = sum(counted.get(row, 0) for row in mine)
                if packets != leg.packets:
                    leg.packets, participant.heard = packets, now
                for row in mine:
                    # A relay entry takes every SSRC, so nobody notices a new one; a tree will want to know it. Of pictures it may be one that
                    # repairs another, which shows when a tree does not know it.
                    stat = stats.get(row[1])
                    if stat is not None and stat.ssrc and stat.packets and kind == KINDS[0]:
                        self._heard_ssrc(conference, participant, kind, stat.ssrc, None)
            if not participant.held and now - participant.heard > self.settings.timeout:
                log.info("conference %s: %s has sent nothing for %d s and is taken out", conference.name, participant.name, self.settings.timeout)
                with contextlib.suppress(ConferenceError):
                    self.leave(conference.name, participant.name, "media-timeout")

    # -- rates and targets (shunt.conference.control.adaptation.Hands) --------------------------------------------

    async def _measure(self) -> None:
        """For ever: the rates of what is sent in conferences whose receivers say what they can take."""
        while True:
            await asyncio.sleep(_METER_S)
            names = self.adaptation.active()
            self._meters = {place: meter for place, meter in self._meters.items() if place[0] in names}
            self._untold = {name: untold for name, untold in self._untold.items() if name in names}
            if not names or self._writer is None or self.problem:
                continue
            rows: dict[Row, tuple[str, ...]] = {
                row: (name, source.sender, kind_of(source.name)[0]) for name in names for source, _, row in self._writer.rows_of(name) if row[0] == CONFERENCE
            }
            if self._writer.layers_counted:
                rows |= {row: (name, source.sender, kind_of(source.name)[0], str(layer)) for name in names for source, layer, row in self._writer.layers_of(name)}
            try:
                counted = await self._writer.octets(list(rows))
            except _FAILURES as error:
                log.debug("rates of conferences: %s", error)
                continue
            sums: dict[tuple[str, ...], dict[Row, int]] = {}
            for row, octets in counted.items():
                sums.setdefault(rows[row], {})[row] = octets
            for place, octets in sums.items():
                self._meters.setdefault(place, _Meter()).take(self.clock(), octets)
            for name in names:
                self._want_structures(name)

    def _want_structures(self, name: str) -> None:
        """Ask for key frames of streams that go to everybody because hardly any packet is of a template with a row: a structure was lost on its way here."""
        assert self._writer is not None
        untold = set()
        for source in {source for source, _, _ in self._writer.layers_of(name)}:
            place = (name, source.sender, kind_of(source.name)[0])
            total = self._meters.get(place)
            layers = [meter.rate for of, meter in self._meters.items() if of[:3] == place and len(of) == 4]
            if total is not None and total.rate and layers and None not in layers and sum(filter(None, layers)) < total.rate * _TOLD:
                untold.add(source)
        for source in untold & self._untold.get(name, set()):  # twice: rows that have just come have not counted yet
            leg = self.book.of(source, source.sender)
            if leg is not None and leg.layers is not None and leg.layers.way is Layers.DEPENDENCY_DESCRIPTOR:
                self._sockets.want_key_frame(leg)
        self._untold[name] = untold

    def rates(self, conference: str, sender: str, kind: str) -> tuple[float, ...]:
        """bit/s of each decode target of a sender's medium, lowest first; empty where they have not been measured yet."""
        meter = self._meters.get((conference, sender, kind))
        if meter is None or meter.rate is None:
            return ()
        found = self.book.conferences.get(conference)
        if found is not None and sender in found.participants and found.participants[sender].srtp:
            return (meter.rate,)  # nothing of it may be left out
        if self._writer is not None and not self._writer.layers_counted:
            present = {layer for source, layer, _ in self._writer.layers_of(conference) if (source.sender, kind_of(source.name)[0]) == (sender, kind)}
            return tuple(meter.rate * share for share in _SHARES.get(len(present), (1.0,)))
        layers = [self._meters.get((conference, sender, kind, str(layer))) for layer in range(TARGETS)]
        rates = [layer.rate if layer is not None and layer.rate is not None else 0.0 for layer in layers]
        # What no row says is a layer goes to everybody.
        total = max(meter.rate, sum(rates))
        return tuple(total - sum(rates[target + 1 :]) for target in range(TARGETS)) if any(rates[1:]) else (total,)

    def target(self, conference: str, sender: str, receiver: str) -> int | None:
        """The decode target that a receiver is limited to; None: it gets all."""
        found = self.book.conferences.get(conference)
        return None if found is None else found.targets.get((sender, receiver))

    def needs_key_frame(self, conference: str, sender: str, kind: str) -> bool:
        """Whether a receiver can take up higher layers of this medium with a key frame only: a dependency descriptor tells where else."""
        found = self.book.conferences.get(conference)
        one = found.participants.get(sender) if found is not None else None
        told = one.legs[kind].layers if one is not None and kind in one.legs else None
        return told is None or told.way is not Layers.DEPENDENCY_DESCRIPTOR

    def want_key_frame(self, conference: str, sender: str, kind: str) -> None:
        """Ask a sender for a key frame, at most every half second."""
        found = self.book.conferences.get(conference)
        one = found.participants.get(sender) if found is not None else None
        if one is not None and kind in one.legs:
            self._sockets.want_key_frame(one.legs[kind])

    def tell(self, conference: str, what: str, **facts: Any) -> None:
        """Something happened in a conference: for its own record, and for who watches the agent's events."""
        found = self.book.conferences.get(conference)
        if found is not None:
            found.happened.append({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "what": what, **facts})
        if self._events is not None:
            self._events.emit(EVENT, "", what, conference=conference, **facts)

    # -- what operators ask for ----------------------------------------------------------------------------------

    def create(self, name: str) -> dict[str, Any]:
        """Raises ConferenceError."""
        return self._view(self.book.create(name), {})

    async def ready(self) -> None:
        """Wait until participants can be let in, for a moment: an agent that has just started is about to be. Raises ConferenceError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_S
        while self.problem:
            if loop.time() > deadline:
                raise ConferenceError(503, f"nobody can be let in, {READY_S:g} s were waited for that: {self._missing()}")
            await asyncio.sleep(0.02)

    def _missing(self) -> str:
        """Why nobody can be let in."""
        away = self._table is not None and not self._table.connected
        return f"the data plane is not there: {self._table.last_error}" if away and self._table is not None else self.problem

    def join(self, name: str, participant: str, kinds: list[str], trusted: list[bytes], *, ice: bool = False, transport: str = "RTP/AVP", layers: Mapping[str, Told] | None = None) -> dict[str, Any]:
        """Give a participant its relay addresses. trusted: packed addresses that somebody vouches for; ice: it finds its way by ICE,
        and the answer has our credentials; transport: of its media, as in SDP; layers: how they tell them. Raises ConferenceError."""
        if self.problem:
            raise ConferenceError(503, self._missing())
        made = self.book.join(name, participant, kinds, trusted, self.clock(), ice=make_credentials() if ice else None, transport=transport, layers=layers)
        self._sockets.open(made)
        self.tell(name, "joined", participant=participant, media=list(made.legs))
        log.info("conference %s: %s joins at %s", name, participant, ", ".join(f"{kind} {leg.relay}" for kind, leg in made.legs.items()))
        answer = self._participant(self.book.get(name), made, {})
        return answer if made.ice is None else answer | {"ice": made.ice._asdict()}

    def add(self, name: str, participant: str, kinds: list[str], trusted: list[bytes], layers: Mapping[str, Told]) -> None:
        """Give a participant relay addresses for further media; arguments as of join(). Raises ConferenceError."""
        if self.problem:
            raise ConferenceError(503, self._missing())
        made = self.book.add(name, participant, kinds, trusted, layers)
        self._sockets.open(made)
        self.tell(name, "media", participant=participant, media=kinds)
        log.info("conference %s: %s takes part with more, at %s", name, participant, ", ".join(f"{kind} {made.legs[kind].relay}" for kind in kinds))

    def leave(self, name: str, participant: str, reason: str = "removed") -> dict[str, Any]:
        """reason: for its record. Raises ConferenceError."""
        gone = self.book.leave(name, participant)
        if self.records is not None:
            self._departed.setdefault(name, []).append(Departed(self.book.get(name), gone, reason))
        self.adaptation.leave(name, participant)
        self.tell(name, "left", participant=participant, reason=reason)
        self._sockets.close(gone)
        for leg in gone.legs.values():
            self._new_ssrc.pop(leg.relay.port, None)
        self._touch(name)
        log.info("conference %s: %s leaves", name, participant)
        self.on_left(name, participant)
        return {"conference": name, "left": participant}

    def renew(self, name: str, participant: str, addresses: list[bytes] | None, directions: Mapping[str, str]) -> None:
        """Signalling speaks of a participant again: other addresses (None: the same), the direction of each medium as the
        participant sees it ("sendonly", ...). Who does not receive gets no copies. Raises ConferenceError."""
        conference = self.book.get(name)
        one = conference.participant(participant)
        one.heard = self.clock()
        before = [(leg.sends, leg.receives) for leg in one.legs.values()]
        for kind, leg in one.legs.items():
            direction = directions.get(kind, "inactive")
            leg.sends, leg.receives = direction in ("sendrecv", "sendonly"), direction in ("sendrecv", "recvonly")
        if before != [(leg.sends, leg.receives) for leg in one.legs.values()]:
            self.tell(name, "directions", participant=participant, media=dict(directions))
            self.book.keep(conference)
            self._touch(name)
        if addresses is not None and one.ice is None:
            for leg in one.legs.values():
                leg.latch.trusted = set(addresses)
                leg.latch.forget(self.clock(), quarantine=True)
                leg.ssrcs, leg.repair = [], []
            self.book.keep(conference)
            self._touch(name)

    def end(self, name: str) -> dict[str, Any]:
        """Raises ConferenceError."""
        for participant in list(self.book.get(name).participants.values()):
            self.leave(name, participant.name, "ended")
        self.book.end(name)
        self.adaptation.end(name)
        self._touch(name)
        return {"ended": name}

    def set_quality(self, name: str, sender: str, receiver: str, quality: str) -> dict[str, Any]:
        """Raises ConferenceError."""
        conference = self.book.set_quality(name, sender, receiver, quality)
        self._touch(name)
        return self._view(conference, {})

    def set_target(self, name: str, sender: str, receiver: str, target: int) -> None:
        """Which layers of a sender's pictures a receiver gets from now on: 0 the lowest frame rate, TARGETS - 1 everything.

        Pictures without layers go on whole. Asking for what is in force already costs nothing.
        Raises ConferenceError.
        """
        conference = self.book.get(name)
        if conference.participant(sender).srtp:
            raise ConferenceError(409, f"{sender}'s pictures go on whole: {conference.participant(sender).srtp}")
        if conference.targets.get((sender, receiver), TARGETS - 1) != target:
            if self._writer is not None and (sender, receiver) not in conference.targets:
                told = [leg.layers for leg in conference.participant(sender).legs.values() if leg.layers is not None]
                unread = [reason for one in told if (reason := self._writer.layering.unread(one))]
                if unread and len(unread) == len(told):
                    raise ConferenceError(409, f"{sender}'s pictures go on whole: {unread[0]}")
                if self._writer.layering.room((name, sender)) < 2 * STREAMS:
                    raise ConferenceError(409, f"{sender}'s pictures go on as they are: as many streams and receivers have numbers rewritten as the data plane has room for")
            self.book.set_target(name, sender, receiver, target)
            if (sender, receiver) in conference.held:
                key = (name, sender, receiver)
                if (before := self._holds.pop(key, None)) is not None:
                    before.cancel()
                self._holds[key] = asyncio.get_running_loop().call_later(HELD_S, self._let_go, conference, *key)
            self._touch(name)

    def _let_go(self, conference: Conference, name: str, sender: str, receiver: str) -> None:
        """The receiver's numbers have changed over to fewer layers: it may leave the trees of the others."""
        del self._holds[name, sender, receiver]
        if conference.held.pop((sender, receiver), None) is not None:
            self._touch(name)

    def list(self) -> list[dict[str, Any]]:
        """Every conference in a few words."""
        return [
            {"name": one.name, "participants": len(one.participants), "present": sum(p.present for p in one.participants.values()), "design": self._design(one), "problem": one.problem or self.problem}
            for one in self.book
        ]

    def totals(self) -> dict[str, Any]:
        """Numbers for the status and for metrics."""
        people = [one for conference in self.book for one in conference.participants.values()]
        designs: dict[str, int] = {}
        for conference in self.book:
            designs[self._design(conference)] = designs.get(self._design(conference), 0) + 1
        return {
            "problem": self.problem or None, "with_problem": sum(bool(conference.problem) for conference in self.book), "designs": designs,
            "participants": {"present": sum(one.present for one in people), "awaited": sum(not one.present for one in people), "held": sum(one.held for one in people)},
            "limited": sum(target < TARGETS - 1 for conference in self.book for target in conference.targets.values()),
            "rows_written": self._writer.writes if self._writer is not None else 0, "strays_ignored": self.strays_ignored,
            "feedback": self._sockets.counts | self.adaptation.counts | (self._cpu_port.counts if self._cpu_port is not None else {}),
            "cpu_port": None if self._cpu_port is None else {"interface": self._cpu_port.interface, "problem": self._cpu_port.problem or None},
            "unreached": sum(len(conference.unreached) for conference in self.book),
            "records": None if self.records is None else {"written": self.records.written, "failures": self.records.failures, "dropped": self.records.dropped},
        }  # fmt: skip

    async def look(self, name: str) -> dict[str, Any]:
        """A conference with what the data plane counts now, as far as it answers. Raises ConferenceError."""
        conference = self.book.get(name)
        counted: dict[Row, int] = {}
        if self._writer is not None and not self.problem:
            with contextlib.suppress(*_FAILURES):
                counted = await self._writer.counts(list(dict.fromkeys(row for _, _, row in self._writer.rows_of(name))))
        return self._view(conference, counted)

    def _design(self, conference: Conference) -> str:
        placement = self._writer.allocator.placements.get(conference.name) if self._writer is not None else None
        return placement.design.value if placement is not None else "empty"

    def _view(self, conference: Conference, counted: dict[Row, int]) -> dict[str, Any]:
        people = [self._participant(conference, one, counted) for one in conference.participants.values()]
        flows = []
        if self._writer is not None:
            for source, receiver, row in self._writer.rows_of(conference.name):
                if receiver is not None:
                    kind, ssrc = kind_of(source.name)
                    level = conference.qualities.get((source.sender, receiver), TOP)
                    if KINDS.index(kind) <= level:
                        flows.append({"sender": source.sender, "receiver": receiver, "medium": kind, "ssrc": ssrc, "packets": counted.get(row)})
        qualities = [{"sender": sender, "receiver": receiver, "quality": KINDS[level]} for (sender, receiver), level in conference.qualities.items()]
        return {"name": conference.name, "design": self._design(conference), "problem": conference.problem or self.problem, "participants": people, "qualities": qualities, "flows": flows, "downlinks": self.adaptation.view(conference.name), "happened": list(conference.happened)}

    def _participant(self, conference: Conference, one: Participant, counted: dict[Row, int]) -> dict[str, Any]:
        sent: dict[str, int] = {}
        conflicts = conference.conflicts()
        if self._writer is not None:
            seen: set[Row] = set()
            for source, _, row in self._writer.rows_of(conference.name):
                if source.sender == one.name and row[0] != "copy" and row not in seen:
                    seen.add(row)
                    kind = kind_of(source.name)[0]
                    sent[kind] = sent.get(kind, 0) + counted.get(row, 0)
        return {
            "name": one.name,
            "present": one.present, "ice": one.ice is not None, "srtp": one.srtp,
            "silent_s": round(self.clock() - one.heard, 1),
            "media": [
                {
                    "medium": kind, "relay": str(leg.relay), "source": str(leg.latch.learned) if leg.latch.learned is not None else None, "contested": leg.latch.contested,
                    "direction": _DIRECTIONS[leg.sends, leg.receives], "layers": str(leg.layers) if leg.layers is not None else None,
                    "ssrcs": leg.ssrcs, "repair": leg.repair, "unreached": conference.unreached.get((one.name, kind)),
                    "conflicts": [{"ssrc": ssrc, "owner": owner} for (name, medium, ssrc), owner in conflicts.items() if (name, medium) == (one.name, kind)],
                    "packets": sent.get(kind, 0), "strays": leg.strays,
                } for kind, leg in one.legs.items()
            ],
        }
