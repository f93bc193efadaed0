"""The SIP focus: an INVITE to a conference's URI is answered with relay addresses of its own, a BYE leaves (RFC 4353; RFC 4579, its least part).

A call's state is kept with its participant, by the agent: whoever operates that agent goes on with the call. The SIP server stands in front: requests are
taken from configured networks alone, and it authenticates.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from aiosipua import SdpMessage, SipRequest, parse_sdp, parse_uri

from shunt import __version__
from shunt.admin import AdminClient, AdminError, AgentError, AgentUnreachable
from shunt.admin.model import Conference, Participant
from shunt.config.values import IPNetwork, SocketAddress
from shunt.errors import cause
from shunt.events.bus import CONFERENCE, NOTE, Event
from shunt.operator.conferences import names, sdp
from shunt.operator.conferences.browsers import Browsers, NotNow, is_browser
from shunt.operator.conferences.dialog import Seat
from shunt.operator.conferences.sdp import NotAcceptable
from shunt.operator.conferences.uas import Address, Call, Transaction, UserAgent
from shunt.operator.events import MISSING

log = logging.getLogger(__name__)

KINDS = (CONFERENCE, NOTE)
_STATUS = {400: 488, 422: 488, 404: 404, 409: 480}  # of what the agent refuses: nonsense, not there, full
_RETRY_S = 0.5
_RECENT_S = 3600.0  # who left longer ago has no phone that waits for a BYE
_ANEW = frozenset({"agent-started", "agent-active", MISSING})  # after these, calls are compared with the agent's participants


class _Refused(Exception):
    """A call that cannot be taken, with the status of SIP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Datagrams(asyncio.DatagramProtocol):
    """Hands datagrams to the focus."""

    def __init__(self, receive: Callable[[bytes, Address], None]) -> None:
        self._receive = receive

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._receive(data, (str(addr[0]), int(addr[1])))

    def error_received(self, exc: Exception) -> None:
        log.debug("conference.sip: %s", exc)


class Focus:
    """A SIP user agent that conferences are dialled at. A subscriber of the bus, for events of KINDS."""

    def __init__(self, listen: SocketAddress, allow: Sequence[IPNetwork], client: AdminClient, browsers: Browsers | None = None) -> None:
        """allow: networks from which requests are taken; others are ignored. browsers: whoever has edges; None: calls of browsers are refused."""
        self._allow, self._client, self._browsers = tuple(allow), client, browsers
        self._listen = (listen.host, listen.port)
        self._socket: asyncio.DatagramTransport | None = None
        self._uas: UserAgent | None = None
        self._seats: dict[str, Seat] = {}  # by Call-ID
        self._joining: set[str] = set()  # Call-IDs of calls that are being let in
        self._answering: set[str] = set()  # Call-IDs of INVITEs that are about to be answered
        self._locks: dict[str, asyncio.Lock] = {}  # by conference: the first to come settles codecs and names
        self._leaving: dict[str, tuple[Seat, str]] = {}  # of whom the agent is still to be told, by Call-ID
        self._tasks: set[asyncio.Task[None]] = set()
        self._compare = asyncio.Event()
        self.serving = False  # whether the calls of the agent's participants are known
        self.standing_by = False

    # -- running -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen. Raises OSError, naming the socket."""
        loop = asyncio.get_running_loop()
        host, port = self._listen
        try:
            self._socket, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self._received), local_addr=self._listen)
        except OSError as error:
            raise OSError(error.errno, f"conference.sip {host} port {port}: {cause(error)}") from error
        self._uas = UserAgent(self._listen, f"shunt/{__version__}", self, self._send, loop.call_later, loop.time)
        self._compare.set()

    async def run(self) -> None:
        """For ever: compare calls with the agent's participants whenever that is due."""
        while True:
            await self._compare.wait()
            self._compare.clear()
            try:
                await self._compare_all()
            except AdminError as error:
                unknown = isinstance(error, AgentError) and error.status == 501
                log.log(logging.ERROR if unknown else logging.DEBUG, "conferences of the agent: %s", error)
                self.standing_by = isinstance(error, AgentError) and error.status == 503
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._compare.wait(), _RETRY_S)  # the agent may say before that that it is in charge
                self._compare.set()

    async def close(self) -> None:
        """Listen no more; calls stay, and their media goes on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._uas is not None:
            self._uas.close()
        if self._socket is not None:
            self._socket.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a SIP request failed", exc_info=task.exception())

    def __call__(self, event: Event) -> None:
        """Take in one event of the agent."""
        if event.kind == CONFERENCE:
            if event.what == "left" and event.facts.get("call"):
                self._left(event.facts, event.at)
        elif event.what == "agent-standby":
            self._stand_by()
        elif event.what in _ANEW:
            self._compare.set()

    def _stand_by(self) -> None:
        """Another agent has the conferences, and its operator the calls."""
        self.serving, self.standing_by = False, True
        for call_id in list(self._seats):
            self._forget(call_id)
            self._agent.forget(call_id)
        self._leaving.clear()

    # -- messages ------------------------------------------------------------------------------------------------

    @property
    def _agent(self) -> UserAgent:
        assert self._uas is not None, "start() comes first"
        return self._uas

    def _send(self, data: bytes, to: Address) -> None:
        if self._socket is not None and not self._socket.is_closing():
            self._socket.sendto(data, to)

    def _received(self, data: bytes, source: Address) -> None:
        """A message: from those alone who may send some."""
        address = ipaddress.ip_address(source[0])
        if any(address in network for network in self._allow):
            self._agent.receive(data, source)

    def gate(self, request: SipRequest) -> str | None:
        """Of calls nothing is known yet: an answer would end them. A request that begins one goes to another server."""
        if self.serving:
            return None
        to = request.to_addr
        if self.standing_by:
            return "Another Agent Is In Charge"
        return "The Agent Does Not Answer" if request.method == "INVITE" and (to is None or not to.tag) else ""

    def invited_anew(self, transaction: Transaction) -> None:
        """Answer the INVITE of a call that a former process let in as that one did: its answer may be lost."""
        seat = self._seats.get(transaction.call.call_id)
        if seat is None:
            self._agent.refuse(transaction, 480, "the call is over")
            return
        self._spawn(self._in_turn(transaction, lambda one: self._answer_again(one, seat)))

    async def _answer_again(self, transaction: Transaction, seat: Seat) -> None:
        conference = await self._client.conference(seat.conference)
        member = _member(conference, seat)
        if member is None:
            raise _Refused(480, f"{seat.participant} has left {seat.conference}")
        if seat.answer:
            self._agent.accept(transaction, parse_sdp(seat.answer))
        elif transaction.offer is not None:
            lines = sdp.read_offer(transaction.offer, seat.lines)
            self._agent.accept(transaction, sdp.answer(seat.conference, member, transaction.offer, lines, seat.version))
        else:
            self._agent.accept(transaction, sdp.offer(seat.conference, member, seat.lines, sdp.offered_codecs(conference, member), seat.version), offers=True)

    # -- calls ---------------------------------------------------------------------------------------------------

    def invited(self, transaction: Transaction) -> None:
        """A new call."""
        self._spawn(self._in_turn(transaction, self._let_in))

    async def _in_turn(self, transaction: Transaction, work: Callable[[Transaction], Awaitable[None]]) -> None:
        """Do what an INVITE asks for, and answer it with an error where that cannot be."""
        call_id = transaction.call.call_id
        self._answering.add(call_id)
        try:
            await work(transaction)
        except _Refused as error:
            self._refuse(transaction, error.status, error)
        except NotAcceptable as error:
            self._refuse(transaction, 488, error)
        except NotNow as error:
            self._refuse(transaction, 503, error)
        except ValueError as error:
            self._refuse(transaction, 400, error)
        except AgentError as error:
            self._refuse(transaction, _STATUS.get(error.status, 503), error)
        except AgentUnreachable as error:
            self._refuse(transaction, 503, error)
        finally:
            self._answering.discard(call_id)

    def _refuse(self, transaction: Transaction, status: int, error: Exception) -> None:
        log.info("SIP call %s is rejected with %d: %s", transaction.call.call_id, status, error)
        self._agent.refuse(transaction, status, str(error))

    async def _let_in(self, transaction: Transaction) -> None:
        call, offer = transaction.call, transaction.offer
        name = parse_uri(transaction.request.uri).user or ""
        if not name:
            raise _Refused(404, "the request URI names no conference")
        seat = Seat(name, "", call.call_id, call.source, session_s=call.session_s, refresher="uas" if call.refreshes else "uac")
        if self._browsers is not None and is_browser(offer):
            seat.note(call.dialog)
            await self._let_browser_in(transaction, seat, self._browsers)
            return
        async with self._lock(name):
            conference = await self._client.conference(name)
            if offer is None:  # it comes in the answer (RFC 3261 section 13.2.1)
                codecs = sdp.offered_codecs(conference)
                seat.lines, media = [*codecs], sdp.media_to_offer(codecs)
            else:
                lines = sdp.read_offer(offer)
                seat.lines, seat.addresses, seat.ufrag = [line.kind for line in lines], sdp.signalled(offer), sdp.remote_ufrag(offer)
                wanted = sdp.wanted(conference, lines, ice=bool(seat.ufrag))
                agreed = sdp.agree(lines, wanted)
                if not agreed:
                    raise NotAcceptable(sdp.why_not(lines, wanted))
                media = sdp.new_media(offer, lines, agreed, ice=bool(seat.ufrag), mixing=conference["mixing"])
            seat.note(call.dialog)
            seat.participant, seat.name = names.admitted(conference, *_caller(transaction))
            self._joining.add(call.call_id)
            try:
                ice = bool(seat.ufrag)
                signalled = [] if ice else seat.addresses
                made = await self._client.join(name, seat.participant, media, signalled=signalled, ice=ice, call=call.call_id, signalling=seat.kept())
            finally:
                self._joining.discard(call.call_id)
        if not self._seated(transaction, seat):
            return
        if offer is None:
            self._agent.accept(transaction, sdp.offer(name, made, seat.lines, codecs, seat.version), offers=True)
        else:
            self._agent.accept(transaction, sdp.answer(name, made, offer, lines, seat.version))

    def _seated(self, transaction: Transaction, seat: Seat) -> bool:
        """The participant is in; whether its caller still waits for the answer."""
        self._seats[seat.call_id] = seat
        if transaction.cancelled or transaction.call.ended:
            self._hung_up(seat.call_id, "cancelled")
            return False
        return True

    async def _let_browser_in(self, transaction: Transaction, seat: Seat, browsers: Browsers) -> None:
        wanted, user = _caller(transaction)
        self._joining.add(seat.call_id)
        try:
            await browsers.join(seat.conference, wanted, user, transaction.text or "", seat.call_id, seat.kept_for)
        finally:
            self._joining.discard(seat.call_id)
        if self._seated(transaction, seat):
            self._agent.accept(transaction, parse_sdp(seat.answer))

    def _lock(self, name: str) -> asyncio.Lock:
        """Of a conference; those that nobody waits for are forgotten."""
        if len(self._locks) > 1000:
            self._locks = {one: lock for one, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(name, asyncio.Lock())

    def changed(self, transaction: Transaction) -> None:
        """Hold, resume, another address, further media: the relay addresses stay; a new address is latched anew."""
        if transaction.call.call_id in self._seats:
            self._spawn(self._in_turn(transaction, self._change))
        else:
            self._agent.refuse(transaction, 481, "the call is over")

    async def _change(self, transaction: Transaction) -> None:
        call, offer = transaction.call, transaction.offer
        seat = self._seats[call.call_id]
        seat.note(call.dialog)
        if seat.answer:
            if transaction.text is not None and self._browsers is not None:
                await self._browsers.change(seat.conference, seat.participant, transaction.text, seat.kept_for)
            self._agent.accept(transaction, parse_sdp(seat.answer), offers=offer is None)
            return
        lines = sdp.read_offer(offer, seat.lines) if offer is not None else []
        async with self._lock(seat.conference):
            conference = await self._client.conference(seat.conference)
            member = _member(conference, seat)
            if member is None:
                raise _Refused(480, f"{seat.participant} has left {seat.conference}")
            seat.version += 1
            if offer is not None:
                member = await self._apply(conference, member, seat, offer, lines)
        if offer is None:  # it comes in the answer (RFC 3261 section 14.1)
            self._agent.accept(transaction, sdp.offer(seat.conference, member, seat.lines, sdp.offered_codecs(conference, member), seat.version), offers=True)
        else:
            self._agent.accept(transaction, sdp.answer(seat.conference, member, offer, lines, seat.version))

    async def _apply(self, conference: Conference, member: Participant, seat: Seat, described: SdpMessage, lines: Sequence[sdp.Line]) -> Participant:
        """Tell the agent what a caller's session description says now; the participant after it."""
        ufrag = sdp.remote_ufrag(described)
        addresses = seat.addresses if sdp.without_address(described, lines) else sdp.signalled(described)  # on hold: where its media comes from has not changed
        ice = member["ice"] is not None
        present = {medium["medium"] for medium in member["media"]}
        agreed = sdp.agree(lines, sdp.wanted(conference, lines, ice=ice) | sdp.own_codecs(member))
        new = sdp.new_media(described, lines, {kind: codec for kind, codec in agreed.items() if kind not in present}, ice=ice, mixing=conference["mixing"])
        moved = addresses != seat.addresses and not ice
        restart = ice and ufrag != seat.ufrag  # the peer begins anew, and so do we (RFC 8839 section 4.4.1.1.1)
        seat.lines, seat.addresses, seat.ufrag = sdp.lines_after(lines, seat.lines), addresses, ufrag
        changed = sdp.changed_media(described, lines, present, agreed, ice=ice, mixing=conference["mixing"])
        update: dict[str, Any] = {"signalled": addresses if moved else None, "ice_restart": restart, "signalling": seat.kept()}
        try:
            return await self._client.update_participant(seat.conference, seat.participant, media=[*changed, *new], **update)
        except AgentError as error:
            if not new or error.status not in _STATUS:
                raise
            log.info("SIP call %s: %s cannot be added: %s", seat.call_id, ", ".join(one["medium"] for one in new), error)
            return await self._client.update_participant(seat.conference, seat.participant, media=changed, **update)

    def answered(self, call: Call, text: str | None) -> None:
        """The answer to an offer of ours."""
        seat = self._seats.get(call.call_id)
        if seat is not None and not seat.answer:
            self._spawn(self._take_answer(seat, text))

    async def _take_answer(self, seat: Seat, text: str | None) -> None:
        """A call that begins without an answer that can be used ends; one that runs stays as it was."""
        begins = True
        try:
            async with self._lock(seat.conference):
                conference = await self._client.conference(seat.conference)
                member = _member(conference, seat)
                if member is None:
                    return
                begins = not sdp.own_codecs(member)
                if text is None:
                    raise NotAcceptable("the ACK has no answer")
                described = parse_sdp(text)
                lines = sdp.read_offer(described, seat.lines)[: len(seat.lines)]
                wanted = sdp.wanted(conference, lines, ice=member["ice"] is not None) | sdp.own_codecs(member)
                if not sdp.agree(lines, wanted):
                    raise NotAcceptable(sdp.why_not(lines, wanted))
                await self._apply(conference, member, seat, described, lines)
        except (NotAcceptable, ValueError, AdminError) as error:
            log.info("SIP call %s: the answer cannot be used%s: %s", seat.call_id, ", and the call ends" if begins else "", error)
            if begins:
                self._agent.hang_up(seat.call_id)
                self._hung_up(seat.call_id, "no-ack")

    # -- ends ----------------------------------------------------------------------------------------------------

    def ended(self, call: Call, reason: str) -> None:
        """The call is over."""
        self._hung_up(call.call_id, reason)

    def _hung_up(self, call_id: str, reason: str) -> None:
        """The caller is gone: the agent is told so until it answers."""
        seat = self._forget(call_id)
        if seat is not None:
            self._leaving[call_id] = seat, reason
            self._spawn(self._leave(call_id))

    async def _leave(self, call_id: str) -> None:
        while (found := self._leaving.get(call_id)) is not None:
            seat, reason = found
            try:
                if _member(await self._client.conference(seat.conference), seat) is not None:
                    await self._client.leave(seat.conference, seat.participant, reason)
            except AgentError as error:
                if error.status not in (502, 503, 504):
                    log.debug("SIP call %s: %s", call_id, error)
                    break
                await asyncio.sleep(_RETRY_S)
            except AgentUnreachable:
                await asyncio.sleep(_RETRY_S)
            else:
                break
        self._leaving.pop(call_id, None)

    def _left(self, facts: Mapping[str, Any], wall: float) -> None:
        """A participant is out, whoever says so: its call ends. Also that of one who left while this process was away."""
        call_id = str(facts["call"])
        seat, recent = self._seats.get(call_id), wall > time.time() - _RECENT_S
        if seat is None and recent and call_id not in self._leaving and call_id not in self._joining and facts["reason"] not in ("bye", "cancelled", "no-ack", "session-expired"):
            seat = _seat(facts["conference"], facts.get("participant"), facts.get("signalling"))
            if seat is not None:
                self._resume(seat)
        if seat is not None and (seat.conference, seat.participant) == (facts["conference"], facts.get("participant")):
            self._end(call_id)

    def _end(self, call_id: str) -> None:
        """Hang up."""
        self._forget(call_id)
        self._agent.hang_up(call_id)

    def _forget(self, call_id: str) -> Seat | None:
        return self._seats.pop(call_id, None)

    # -- over a restart ------------------------------------------------------------------------------------------

    async def _compare_all(self) -> None:
        """Go on with the calls of all participants, and end those whose participant is gone. Raises AdminError."""
        known = set(self._seats)
        found: set[str] = set()
        for summary in await self._client.conferences():
            try:
                conference = await self._client.conference(summary["conference"])
            except AgentError as error:
                if error.status == 404:
                    continue
                raise
            for member in conference["members"]:
                seat = _seat(conference["conference"], member["participant"], member["signalling"])
                if seat is None:
                    continue
                found.add(seat.call_id)
                if seat.call_id not in self._seats and seat.call_id not in self._leaving and seat.call_id not in self._answering:
                    self._resume(seat)
        for call_id in known - found:
            if call_id in self._seats and call_id not in self._answering:
                self._end(call_id)
        if not self.serving:
            log.info("conferences: accepting calls at %s port %d; %d continue", *self._listen, len(found))
        self.serving, self.standing_by = True, False

    def _resume(self, seat: Seat) -> None:
        """Go on with a call that another process has answered."""
        dialog = seat.resumed()
        # Numbers of the former process's requests are not known: by the clock they are higher (RFC 3261 section 8.1.1.5). What comes again is taken once more.
        dialog.local_cseq, dialog.remote_cseq = max(dialog.local_cseq, int(time.time()) & 0x7FFFFFFF), max(0, dialog.remote_cseq - 1)
        self._seats[seat.call_id] = seat
        self._agent.resume(dialog, seat.source, seat.session_s, refreshes=seat.refresher == "uas")


def _seat(conference: str, participant: Any, signalling: Any) -> Seat | None:
    """The call of a participant; None: it has none, or none that can be read."""
    try:
        return Seat.read(signalling)
    except ValueError as error:
        log.error("conference %s: the call of %s cannot be continued: %s", conference, participant, error)
        return None


def _caller(transaction: Transaction) -> tuple[str, str]:
    """The name and the user part of who calls."""
    return names.caller(transaction.request.get_header("from") or "", parse_uri(transaction.call.dialog.remote_uri).user)


def _member(conference: Conference, seat: Seat) -> Participant | None:
    """The participant of a call."""
    return next((one for one in conference["members"] if one["participant"] == seat.participant and one["call"] == seat.call_id), None)
