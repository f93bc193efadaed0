"""Sessions of browsers: each is a session at an edge and a participant at the agent, and neither stays without the other.

What is kept is kept by those two: this process may die at any time, and compares them when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shunt.admin import AdminClient, AdminError, AgentError, AgentUnreachable
from shunt.admin.model import Conference, Participant
from shunt.config.rooms import Rooms as Settings
from shunt.events.bus import CONFERENCE, NOTE, Event
from shunt.operator.conferences import names as people
from shunt.operator.conferences.browsers import Kept
from shunt.operator.conferences.sdp import settled
from shunt.operator.events import MISSING
from shunt.operator.rooms import offer as offers
from shunt.operator.rooms import session as sessions
from shunt.operator.rooms import view
from shunt.operator.rooms.edge import Answer, EdgeClient, EdgeError, EdgeRefused, EdgeUnreachable, Ice
from shunt.operator.rooms.offer import NotTaken
from shunt.operator.rooms.session import Session
from shunt.tasks import keep_running

log = logging.getLogger(__name__)

KINDS = (CONFERENCE, NOTE)
FOLLOWERS = 2000
"""Pages that follow their rooms at once."""
_RETRY_S = 0.25
_GONE_S = 2.0  # so long nobody listens on an edge's socket before its sessions are given up: an upgrade takes less
_COMPARE_S = 15.0
_FREE_S = 2.0
_NOT_YET = "sessions are being restored after a start"
_LOOK_S = 1.0
_GATHER_S = 0.03
_RESTARTED = "the media server has been restarted"
_ENDS = {
    "": "the connection was closed",
    "no consent": "the connection was lost",
    "not connected in time": "no connection came about",
    "no keys": "no connection came about",
    "internal error": "the connection was closed",
}
"""Of an edge's reasons, what people are told."""
_ENDED = 10_000  # sessions of which it is known why they ended
_ANEW = frozenset({"agent-started", "agent-active", MISSING})


class NoEdge(Exception):
    """No edge takes another session now; the text says what each of them said."""


class NotYet(Exception):
    """This process has just started, and does not know yet which sessions there are."""


class SessionGone(Exception):
    """A session is over; the text says why."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A session, and the SDP answer. refused: the room's codecs of media that the browser does not have."""

    session: Session
    answer: str
    refused: Mapping[str, str]


class Rooms:
    """All sessions at the configured edges. A subscriber of the bus, for events of KINDS.

    What asks the agent raises AdminError; what asks an edge EdgeError.
    """

    def __init__(self, settings: Settings, client: AdminClient, edges: Sequence[EdgeClient] | None = None) -> None:
        """edges: those of the settings, unless given."""
        self._settings, self._client = settings, client
        self._edges = {edge.socket: edge for edge in (edges if edges is not None else [EdgeClient(socket) for socket in settings.edges])}
        self._sessions: dict[str, Session] = {}
        self._joining: set[str] = set()  # sessions whose participant is not there yet
        self._creating: dict[str, int] = {}  # sessions that an edge is asked for, by socket
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}
        self._changes: dict[str, asyncio.Event] = {}
        self._looks: dict[str, tuple[float, Conference]] = {}
        self._compare_due = asyncio.Event()
        self._compare_due.set()
        self._adopted = asyncio.Event()  # sessions of a former process are known
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: dict[str, asyncio.Task[None]] = {}  # whose agent is still to be told, by session
        self.followers = 0

    # -- running -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Follow the edges."""
        for edge in self._edges.values():
            self._spawn(keep_running(f"edge {edge.socket}", lambda edge=edge: self._follow_edge(edge)))  # type: ignore[misc]  # mypy cannot infer a lambda that binds by default
        self._spawn(keep_running("rooms", self._compare_again))

    async def close(self) -> None:
        """Stop; sessions and their media go on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for edge in self._edges.values():
            await edge.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of a room failed", exc_info=task.exception())

    def __call__(self, event: Event) -> None:
        """Take in one event of the agent."""
        if event.kind != CONFERENCE:
            if event.what in _ANEW:
                self._compare_due.set()
            return
        room = str(event.facts["conference"])
        if event.what == "left":
            session = Session.read(room, str(event.facts.get("participant")), event.facts.get("signalling"))
            if session is not None and session.id in self._sessions:
                self._drop(session.id, f"removed from the room: {event.facts.get('reason', 'removed')}")
                self._spawn(self._end_at_edge(session))
        self._changed(room)

    def _changed(self, room: str) -> None:
        if (change := self._changes.pop(room, None)) is not None:
            change.set()

    # -- sessions ------------------------------------------------------------------------------------------------

    def session(self, room: str, session: str) -> Session:
        """Raises SessionGone, NotYet."""
        found = self._sessions.get(session)
        if found is None and not self._adopted.is_set():
            raise NotYet(_NOT_YET)
        if found is None or found.room != room:
            raise SessionGone(self._ended.get(session, "there is no such session"))
        return found

    def session_of(self, room: str, participant: str) -> Session:
        """Raises SessionGone."""
        found = next((one for one in self._sessions.values() if (one.room, one.participant) == (room, participant)), None)
        if found is None:
            raise SessionGone(f"{participant} has no session in {room}")
        return found

    def all(self) -> list[Session]:
        """Every session, in the order of rooms."""
        return sorted(self._sessions.values(), key=lambda one: (one.room, one.participant))

    async def details(self, session: Session) -> dict[str, Any] | None:
        """What its edge counts of a session; None: it does not say."""
        try:
            return await self._edges[session.edge].session(session.id)
        except (EdgeError, KeyError):
            return None

    async def join(
        self, room: str, name: str, text: str, role: str, wanted: Mapping[str, str] | None = None, *, user: str | None = None, holder: str = "", muted: bool = False,
        whole: bool = False, call: str | None = None, kept: Kept | None = None,
    ) -> Joined:  # fmt: skip
        """Let a browser in. name: what it wishes to be called; text: its offer; wanted: what each line is for, by mid; user: what its identifier is made of, unless it
        is the name; holder: of the session; muted: its microphone; whole: refuse an offer of which a medium cannot be taken; call: the Call-ID of who comes by
        SIP, of whom more is kept.

        Raises BadName, Malformed, NotTaken, NotYet, NoEdge, EdgeError, AdminError; then nothing of it is left.
        """
        await self._await_adopted()
        name = people.checked(name)
        offer = offers.read(text)
        names = offers.named(offer, {}, wanted or {})
        async with self._lock(room):
            conference = await self._conference(room)
            narrowed = offers.narrowed(offer, names, settled(conference), self._settings.codecs(room), whole=whole)
            participant, called = people.admitted(conference, name, user)
            edge, answer = await self._at_an_edge(room, participant, called, narrowed.text(), role)
            session = Session(answer["session"], edge.socket, room, participant, called, role, self._named(answer, names), holder, muted)
            session.besides = kept(participant, called, answer["answer"]) if kept is not None else {}
            self._joining.add(session.id)
            self._sessions[session.id] = session
            try:
                made = await self._join_at_agent(session, answer, call)
                await edge.connect(session.id, sessions.targets(made, session.names))
            except BaseException as error:
                self._drop(session.id, str(error))
                self._spawn(self._end_everywhere(session, "removed"))
                raise
            finally:
                self._joining.discard(session.id)
        log.info("room %s: %s is in, session %s", room, people.words(participant, called), session.id)
        self._changed(room)
        return Joined(session, answer["answer"], narrowed.refused)

    async def _join_at_agent(self, session: Session, answer: Answer, call: str | None) -> Participant:
        media = sessions.joined_media(answer["media"], session.names)
        if not media:
            raise NotTaken("no medium of the offer is left")
        return await self._client.join(session.room, session.participant, media, signalled=sessions.addresses(answer["media"]), call=call, signalling=session.kept())

    async def renegotiate(self, session: Session, text: str, wanted: Mapping[str, str] | None = None, *, kept: Kept | None = None) -> Joined:
        """Take a further offer of a session. Raises Malformed, NotTaken, SessionGone, EdgeError, AdminError."""
        offer = offers.read(text)
        names = offers.named(offer, session.names, wanted or {})
        edge = self._edges[session.edge]
        async with self._lock(session.room):
            conference = await self._client.conference(session.room)
            narrowed = offers.narrowed(offer, names, settled(conference), self._settings.codecs(session.room))
            with self._there(session):
                answer = await edge.renegotiate(session.id, narrowed.text())
            session.names = self._named(answer, names)
            if kept is not None:
                session.besides = kept(session.participant, session.name, answer["answer"])
            media = sessions.joined_media(answer["media"], session.names)
            made = await self._client.update_participant(session.room, session.participant, media=media, signalling=session.kept())
            await edge.connect(session.id, sessions.targets(made, session.names))
        self._changed(session.room)
        return Joined(session, answer["answer"], narrowed.refused)

    async def mute(self, session: Session, muted: bool) -> None:
        """Keep whether a browser's microphone is muted, for the others' pages. Raises AdminError."""
        async with self._lock(session.room):
            before, session.muted = session.muted, muted
            try:
                await self._client.update_participant(session.room, session.participant, signalling=session.kept())
            except AdminError:
                session.muted = before
                raise
        self._changed(session.room)

    async def ice_user(self, session: Session) -> str:
        """The edge's ICE user name for a session. Raises SessionGone, EdgeError."""
        with self._there(session):
            return str((await self._edges[session.edge].session(session.id))["ufrag"])

    async def restart_ice(self, session: Session, ufrag: str, pwd: str) -> Ice:
        """Begin a session's ICE anew (RFC 8445 section 9), with the browser's new credentials: keys, media and the participant stay. Raises SessionGone, EdgeError."""
        with self._there(session):
            return await self._edges[session.edge].restart_ice(session.id, ufrag, pwd)

    @contextlib.contextmanager
    def _there(self, session: Session) -> Iterator[None]:
        """Its edge is asked for a session; raises SessionGone where it has none."""
        try:
            yield
        except EdgeRefused as error:
            if error.status != 404:
                raise
            self._closed(session.id, _RESTARTED)
            raise SessionGone(self._ended[session.id]) from error

    @staticmethod
    def _named(answer: Answer, names: Mapping[str, str]) -> dict[str, str]:
        """The lines that the edge has taken."""
        taken = {one["mid"] for one in answer["media"]}
        return {mid: name for mid, name in names.items() if mid in taken}

    async def leave(self, session: Session) -> None:
        """End a session, as its browser wishes."""
        self._drop(session.id, "left")
        await self._end_everywhere(session, "bye")

    async def _await_adopted(self) -> None:
        """Raises NotYet."""
        try:
            async with asyncio.timeout(_FREE_S):
                await self._adopted.wait()
        except TimeoutError:
            raise NotYet(_NOT_YET) from None

    async def replaced(self, room: str, session: str, holder: str) -> None:
        """A browser comes again: its session before is over, and its name is free, if the same token began it. Raises NotYet."""
        await self._await_adopted()
        if (found := self._sessions.get(session)) is not None and found.room == room and found.holder == holder:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FREE_S):
                    await self.leave(found)
        elif (task := self._leaving.get(session)) is not None:
            await asyncio.wait([task], timeout=_FREE_S)

    async def peek(self, room: str) -> dict[str, Any]:
        """Who is in a room; nobody where there is none yet. Raises AdminError."""
        try:
            return view.peek(await self._client.conference(room))
        except AgentError as error:
            if error.status == 404 and self._settings.create:
                return {"participants": [], "wanted": dict.fromkeys(offers.MEDIA, 0)}
            raise

    async def _conference(self, room: str) -> Conference:
        """The room's conference, made where the configuration says so. Raises AdminError."""
        try:
            return await self._client.conference(room)
        except AgentError as error:
            if error.status != 404 or not self._settings.create:
                raise
        with contextlib.suppress(AgentError):  # another has made it meanwhile
            await self._client.create_conference(room)
        return await self._client.conference(room)

    async def _at_an_edge(self, room: str, participant: str, name: str, text: str, role: str) -> tuple[EdgeClient, Answer]:
        """A session at the edge with the fewest that takes it. Raises NoEdge, or EdgeRefused for an offer that no edge would take."""
        said: list[str] = []
        for edge in await self._by_load(said):
            self._creating[edge.socket] = self._creating.get(edge.socket, 0) + 1
            try:
                return edge, await edge.create(room, participant, text, role, name)
            except EdgeRefused as error:
                if error.status not in (409, 429, 500, 503):
                    raise
                said.append(str(error))
            except EdgeUnreachable as error:
                said.append(_away(error))
            finally:
                self._creating[edge.socket] -= 1
        raise NoEdge("; ".join(said) or "no edge is configured")

    async def _by_load(self, said: list[str]) -> list[EdgeClient]:
        """Edges that answer, the one with the fewest sessions first. said: gets the words of the others."""

        async def load(edge: EdgeClient) -> tuple[int, EdgeClient] | None:
            try:
                return int((await edge.status()).get("sessions", 0)), edge
            except EdgeError as error:
                said.append(_away(error))
                return None

        found = [one for one in await asyncio.gather(*map(load, self._edges.values())) if one is not None]
        return [edge for _, edge in sorted(found, key=lambda one: one[0])]

    def _lock(self, room: str) -> asyncio.Lock:
        """Of a room: the first to come settles codecs and names. Those that nobody waits for are forgotten."""
        if len(self._locks) > 1000:
            self._locks = {one: lock for one, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(room, asyncio.Lock())

    # -- ends ----------------------------------------------------------------------------------------------------

    def _drop(self, session: str, why: str) -> Session | None:
        """Forget a session; its page is told why."""
        found = self._sessions.pop(session, None)
        self._ended[session] = why
        while len(self._ended) > _ENDED:
            self._ended.popitem(last=False)
        if found is not None:
            self._changed(found.room)
        return found

    def _closed(self, session: str, why: str) -> None:
        """An edge has ended a session: its participant leaves."""
        if (found := self._drop(session, _ENDS.get(why, why))) is not None:
            log.info("room %s: the session of %s is over: %s", found.room, people.words(found.participant, found.name), why)
            self._leaving[session] = task = self._spawn(self._leave(found, "removed"))
            task.add_done_callback(lambda _: self._leaving.pop(session, None))

    async def _end_everywhere(self, session: Session, reason: str) -> None:
        await asyncio.gather(self._end_at_edge(session), self._leave(session, reason))

    async def _end_at_edge(self, session: Session) -> None:
        """What is left there while the edge does not answer, goes with the comparison once it does."""
        with contextlib.suppress(EdgeError, KeyError):
            await self._edges[session.edge].end(session.id)

    async def _leave(self, session: Session, reason: str) -> None:
        """The agent is told until it answers."""
        while True:
            try:
                conference = await self._client.conference(session.room)
                if any(_session(conference, member) == session.id for member in conference["members"]):
                    await self._client.leave(session.room, session.participant, reason)
                break
            except AgentError as error:
                if error.status not in (502, 503, 504):
                    log.debug("room %s, %s: %s", session.room, session.participant, error)
                    break
            except AgentUnreachable:
                pass
            await asyncio.sleep(_RETRY_S)
        self._changed(session.room)

    # -- edges ---------------------------------------------------------------------------------------------------

    async def _follow_edge(self, edge: EdgeClient) -> None:
        """For ever: sessions that end there; and what is to be done when it is back, or gone."""
        gone_since: float | None = None
        said = ""
        while True:
            try:
                async for event in edge.events():
                    if not event:
                        gone_since, said = None, ""
                        self._compare_due.set()
                    elif event.get("state") == "closed":
                        self._closed(str(event["session"]), str(event.get("reason") or ""))
            except EdgeError as error:
                if str(error) != said:
                    log.warning("%s; trying again", error)
                said = str(error)
                gone = isinstance(error, EdgeUnreachable) and error.gone
                gone_since = (gone_since or time.monotonic()) if gone else None
                if gone_since is not None and time.monotonic() - gone_since > _GONE_S:
                    for session in [one for one in self._sessions.values() if one.edge == edge.socket and one.id not in self._joining]:
                        self._closed(session.id, "the media server does not answer")
            await asyncio.sleep(_RETRY_S)

    async def _compare_again(self) -> None:
        """For ever: compare edges and agent whenever that is due, and now and then."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_COMPARE_S):
                    await self._compare_due.wait()
            self._compare_due.clear()
            try:
                await self.compare()
            except AdminError as error:
                log.debug("rooms: %s", error)
                await asyncio.sleep(_RETRY_S)
                if isinstance(error, AgentUnreachable):
                    self._compare_due.set()

    async def compare(self) -> None:
        """Adopt the sessions that both sides know, and end what only one of them has. Raises AdminError."""
        known = set(self._sessions) - self._joining
        there: dict[str, set[str]] = {}  # by edge that answers
        for edge in self._edges.values():
            creating = bool(self._creating.get(edge.socket))
            with contextlib.suppress(EdgeError):
                there[edge.socket] = {str(one["session"]) for one in await edge.sessions() if one.get("state") != "closed" and not creating or str(one["session"]) in self._sessions}
        kept = {session.id: (session, member) for session, member in await self._kept()}
        for session, member in kept.values():
            if session.id in self._joining:
                continue
            if session.edge not in there:  # it may be back soon; otherwise its sessions are given up
                if session.id not in self._ended:
                    self._sessions.setdefault(session.id, session)
            elif session.id in there[session.edge]:
                if session.id not in self._sessions and session.id not in self._ended:
                    self._sessions[session.id] = session
                    await self._reconnect(session, member)
            elif session.id in known or session.id not in self._sessions:
                self._sessions.setdefault(session.id, session)
                self._closed(session.id, _RESTARTED)
        for socket, found in there.items():
            for gone in found - set(kept) - self._joining:
                if gone in known or gone not in self._sessions:
                    self._drop(gone, "removed from the room")
                    with contextlib.suppress(EdgeError):
                        await self._edges[socket].end(gone)
        self._adopted.set()

    async def _kept(self) -> list[tuple[Session, Participant]]:
        """All participants who are at an edge of ours. Raises AdminError."""
        found = []
        for summary in await self._client.conferences():
            try:
                conference = await self._client.conference(summary["conference"])
            except AgentError as error:
                if error.status == 404:
                    continue
                raise
            for member in conference["members"]:
                session = Session.read(conference["conference"], member["participant"], member["signalling"])
                if session is not None and session.edge in self._edges:
                    found.append((session, member))
        return found

    async def _reconnect(self, session: Session, member: Participant) -> None:
        """The process before may have died before it said where plain RTP goes; said again it changes nothing."""
        with contextlib.suppress(EdgeError):
            await self._edges[session.edge].connect(session.id, sessions.targets(member, session.names))

    # -- what pages follow ---------------------------------------------------------------------------------------

    async def follow(self, session: Session) -> AsyncIterator[dict[str, Any]]:
        """The room as the session's browser is to see it, whenever it has changed; None of it: still the same. Ends with {"closed": why}."""
        last: dict[str, Any] | None = None
        while True:
            if session.id not in self._sessions:
                yield {"closed": self._ended.get(session.id, "the session is over")}
                return
            change = self._changes.setdefault(session.room, asyncio.Event())
            now = await self._seen(session)
            if session.id in self._sessions:
                yield now if now != last else {}
                last = now
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await change.wait()
                await asyncio.sleep(_GATHER_S)

    async def _seen(self, session: Session) -> dict[str, Any]:
        begun = time.monotonic()
        at, conference = self._looks.get(session.room, (0.0, None))
        try:
            if conference is None or at < begun - _GATHER_S / 2:
                conference = await self._client.conference(session.room)
                self._looks[session.room] = begun, conference
                self._forget_looks(begun)
        except AdminError as error:
            log.debug("room %s: %s", session.room, error)
            return {"room": session.room, "me": session.participant, "name": session.name, "problem": view.NO_ANSWER}
        return view.room(conference, session)

    def _forget_looks(self, now: float) -> None:
        if len(self._looks) > 1000:
            self._looks = {room: look for room, look in self._looks.items() if look[0] > now - 60}


def _away(error: EdgeError) -> str:
    """What a browser is told of an edge that does not answer: not where it is, which is in the log."""
    log.warning("%s", error)
    return "an edge does not answer"


def _session(conference: Conference, member: Participant) -> str | None:
    session = Session.read(conference["conference"], member["participant"], member["signalling"])
    return session.id if session is not None else None
