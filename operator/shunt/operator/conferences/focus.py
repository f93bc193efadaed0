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

from aiosipua import (
    DialogState,
    IncomingCall,
    SipRequest,
    SipResponse,
    SipUAS,
    parse_uri,
    stringify_uri,
)
from aiosipua.sdp import parse_sdp
from aiosipua.session_timer import parse_session_expires, peer_allows_update
from aiosipua.uas_requests import session_refreshed

from shunt import __version__
from shunt.admin import AdminClient, AdminError, AgentError, AgentUnreachable
from shunt.admin.model import Conference, Participant
from shunt.config.values import IPNetwork, SocketAddress
from shunt.events.bus import CONFERENCE, NOTE, Event
from shunt.operator.conferences import sdp
from shunt.operator.conferences.browsers import Browsers, NotNow, is_browser
from shunt.operator.conferences.dialog import Seat, participant_name
from shunt.operator.conferences.sdp import NotAcceptable
from shunt.operator.conferences.transport import TRANSACTION_S, FocusTransport
from shunt.operator.events import MISSING

log = logging.getLogger(__name__)

KINDS = (CONFERENCE, NOTE)
_PHRASES = {400: "Bad Request", 404: "Not Found", 480: "Temporarily Unavailable", 488: "Not Acceptable Here", 500: "Server Internal Error", 503: "Service Unavailable"}
_STATUS = {400: 488, 422: 488, 404: 404, 409: 480}  # of what the agent refuses: nonsense, not there, full
_T1, _T2 = 0.5, 4.0
_RETRY_S = 0.5
_RECENT_S = 3600.0  # who left longer ago has no phone that waits for a BYE
_SESSION_S, _LEAST_SESSION_S = 1800, 90  # RFC 4028 sections 4 and 9
_ANEW = frozenset({"agent-started", "agent-active", MISSING})  # after these, calls are compared with the agent's participants


class _Refused(Exception):
    """A call that cannot be taken, with the status of SIP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Focus:
    """A SIP user agent that conferences are dialled at. A subscriber of the bus, for events of KINDS."""

    def __init__(self, listen: SocketAddress, allow: Sequence[IPNetwork], client: AdminClient, browsers: Browsers | None = None) -> None:
        """allow: networks from which requests are taken; others are ignored. browsers: whoever has edges; None: calls of browsers are refused."""
        self._allow, self._client, self._browsers = tuple(allow), client, browsers
        self._transport = FocusTransport((listen.host, listen.port), self._invite_of)
        self._uas = SipUAS(self._transport, user_agent=f"shunt/{__version__}")
        self._uas.on_invite = self._invited
        self._uas.on_reinvite = self._invited_again
        self._uas.on_bye = lambda call, request: self._hung_up(call.call_id, "bye")
        self._uas.on_ack_timeout = lambda call: self._hung_up(call.call_id, "no-ack")
        self._uas.on_session_expired = lambda call: self._hung_up(call.call_id, "session-expired")
        self._seats: dict[str, Seat] = {}  # by Call-ID
        self._joining: set[str] = set()  # Call-IDs of calls that are being let in
        self._answering: set[str] = set()  # Call-IDs of INVITEs that are about to be answered
        self._locks: dict[str, asyncio.Lock] = {}  # by conference: the first to come settles codecs and names
        self._byes: dict[str, asyncio.TimerHandle] = {}  # not answered yet, by Call-ID
        self._leaving: dict[str, tuple[Seat, str]] = {}  # of whom the agent is still to be told, by Call-ID
        self._tasks: set[asyncio.Task[None]] = set()
        self._compare = asyncio.Event()
        self.serving = False  # whether the calls of the agent's participants are known
        self.standing_by = False

    # -- running -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen. Raises OSError, naming the socket."""
        try:
            await self._uas.start()
        except OSError as error:
            host, port = self._transport.local_addr
            raise OSError(error.errno, f"conference.sip {host} port {port}: {error.strerror or error}") from error
        inner = self._transport.on_message
        assert inner is not None
        self._transport.on_message = lambda message, addr: self._take(inner, message, addr)
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
        for timer in self._byes.values():
            timer.cancel()
        await self._uas.stop()

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
        self._leaving.clear()

    # -- messages ------------------------------------------------------------------------------------------------

    def _take(self, inner: Callable[[Any, tuple[str, int]], None], message: SipRequest | SipResponse, addr: tuple[str, int]) -> None:
        """A message: from those alone who may send some, and each request once."""
        source = ipaddress.ip_address(addr[0])
        if not any(source in network for network in self._allow):
            return
        if isinstance(message, SipResponse):
            self._answered(message)
        elif not self.serving and message.method != "ACK":
            # Of calls nothing is known yet: an answer would end them. A request that begins one goes to another server.
            to = message.to_addr
            if self.standing_by or message.method == "INVITE" and (to is None or not to.tag):
                self._uas._send_error(message, 503, "Another Agent Is In Charge" if self.standing_by else "The Agent Does Not Answer")
        elif not self._transport.repeat(message) and not (message.method in ("INVITE", "UPDATE") and message.call_id in self._answering):
            if message.method == "INVITE" and self._came_before(message, addr):
                return
            if message.method == "UPDATE" and message.content_type == "application/sdp" and (call := self._uas._calls.get(message.call_id or "")) is not None:
                self._updated(call, message, addr)
            else:
                inner(message, addr)

    def _came_before(self, request: SipRequest, addr: tuple[str, int]) -> bool:
        """Whether it is the INVITE of a call that a former process let in, and whose answer may be lost: then it is answered as that one did."""
        seat, call = self._seats.get(request.call_id or ""), self._uas._calls.get(request.call_id or "")
        to, sender = request.to_addr, request.from_addr
        if seat is None or call is None or (to is not None and to.tag) or sender is None or sender.tag != seat.dialog["remote_tag"]:
            return False
        call.invite, call.source_addr = request, addr
        call.sdp_offer = parse_sdp(request.text) if request.content_type == "application/sdp" else None
        self._answering.add(call.call_id)
        self._spawn(self._answer_again(call, seat))
        return True

    async def _answer_again(self, call: IncomingCall, seat: Seat) -> None:
        try:
            conference = await self._client.conference(seat.conference)
            member = _member(conference, seat)
            if member is not None and seat.answer:
                call.accept(parse_sdp(seat.answer))
            elif member is not None and call.sdp_offer is not None:
                lines = sdp.read_offer(call.sdp_offer, seat.lines)
                call.accept(sdp.answer(seat.conference, member, call.sdp_offer, lines, 1))
        except (AdminError, NotAcceptable) as error:
            log.info("SIP call %s: %s", call.call_id, error)
        finally:
            self._answering.discard(call.call_id)

    def _invite_of(self, call_id: str) -> SipRequest | None:
        call = self._uas._calls.get(call_id)
        return call.invite if call is not None else None

    # -- calls ---------------------------------------------------------------------------------------------------

    def _invited(self, call: IncomingCall) -> None:
        to = call.invite.to_addr
        if to is not None and to.tag:
            call.reject(481)  # nobody here knows the call
            return
        self._answering.add(call.call_id)
        self._spawn(self._in_turn(call, self._let_in))

    async def _in_turn(self, call: IncomingCall, work: Callable[[IncomingCall], Awaitable[None]]) -> None:
        """Do what an INVITE asks for, and answer it with an error where that cannot be."""
        try:
            await work(call)
        except _Refused as error:
            self._refuse(call, error.status, error)
        except NotAcceptable as error:
            self._refuse(call, 488, error)
        except NotNow as error:
            self._refuse(call, 503, error)
        except ValueError as error:
            self._refuse(call, 400, error)
        except AgentError as error:
            self._refuse(call, _STATUS.get(error.status, 503), error)
        except AgentUnreachable as error:
            self._refuse(call, 503, error)
        finally:
            self._answering.discard(call.call_id)

    def _refuse(self, call: IncomingCall, status: int, error: Exception) -> None:
        log.info("SIP call %s is refused with %d: %s", call.call_id, status, error)
        if call.dialog.state is DialogState.TERMINATED:
            return  # CANCEL was faster
        call._send_response(status, _PHRASES[status], extra_headers={"Warning": _warning(self._transport.local_addr[0], error)})
        if call.call_id not in self._seats:
            call.dialog.terminate()
            asyncio.get_running_loop().call_later(TRANSACTION_S, self._drop, call)  # the library forgets it with the ACK only

    def _drop(self, call: IncomingCall) -> None:
        if self._uas._calls.get(call.call_id) is call:
            del self._uas._calls[call.call_id]

    async def _let_in(self, call: IncomingCall) -> None:
        name = parse_uri(call.invite.uri).user or ""
        if not name:
            raise _Refused(404, "the request URI names no conference")
        if self._browsers is not None and is_browser(call.sdp_offer):
            await self._let_browser_in(call, name, self._browsers)
            return
        offer, lines = call.sdp_offer, sdp.read_offer(call.sdp_offer)
        assert offer is not None
        ufrag = sdp.remote_ufrag(offer)
        self._negotiate_session(call)
        call.dialog.route_set = list(call.invite.headers.get("record-route"))  # the called side's order is that of the request
        seat = Seat(name, "", call.call_id, call.source_addr, [line.kind for line in lines], sdp.signalled(offer), ufrag, call.session_interval, "uas" if call.session_refresher_us else "uac")
        seat.note(call.dialog)
        async with self._lock(name):
            conference = await self._client.conference(name)
            wanted = sdp.wanted(conference, lines, ice=bool(ufrag))
            agreed = sdp.agree(lines, wanted)
            if not agreed:
                raise NotAcceptable(sdp.why_not(lines, wanted))
            seat.participant = participant_name(parse_uri(call.caller).user, {member["participant"] for member in conference["members"]})
            self._joining.add(call.call_id)
            try:
                made = await self._client.join(
                    name,
                    seat.participant,
                    sdp.new_media(offer, lines, agreed, ice=bool(ufrag), mixing=conference["mixing"]),
                    signalled=[] if ufrag else seat.addresses,
                    ice=bool(ufrag),
                    call=call.call_id,
                    signalling=seat.kept(),
                )
            finally:
                self._joining.discard(call.call_id)
        self._seats[call.call_id] = seat
        if call.dialog.state is DialogState.TERMINATED:
            self._hung_up(call.call_id, "cancelled")
        else:
            call.accept(sdp.answer(name, made, offer, lines, 1))

    async def _let_browser_in(self, call: IncomingCall, name: str, browsers: Browsers) -> None:
        self._negotiate_session(call)
        call.dialog.route_set = list(call.invite.headers.get("record-route"))
        seat = Seat(name, "", call.call_id, call.source_addr, session_s=call.session_interval, refresher="uas" if call.session_refresher_us else "uac")
        seat.note(call.dialog)
        self._joining.add(call.call_id)
        try:
            await browsers.join(name, parse_uri(call.caller).user or "anonymous", call.invite.text, call.call_id, seat.kept_for)
        finally:
            self._joining.discard(call.call_id)
        self._seats[call.call_id] = seat
        if call.dialog.state is DialogState.TERMINATED:
            self._hung_up(call.call_id, "cancelled")
        else:
            call.accept(parse_sdp(seat.answer))

    def _lock(self, name: str) -> asyncio.Lock:
        """Of a conference; those that nobody waits for are forgotten."""
        if len(self._locks) > 1000:
            self._locks = {one: lock for one, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(name, asyncio.Lock())

    @staticmethod
    def _negotiate_session(call: IncomingCall) -> None:
        """A session timer with callers who know of it (RFC 4028): one who is gone without a BYE leaves, on hold too. Raises _Refused."""
        if not call._caller_supports("timer"):
            return
        given = call.invite.get_header("session-expires") or call.invite.get_header("x")
        interval, refresher = parse_session_expires(given) if given else (_SESSION_S, None)
        call.session_interval = max(interval or _SESSION_S, _LEAST_SESSION_S)
        call.session_refresher_us = refresher == "uas" and peer_allows_update(call.invite.headers.get("allow"))

    def _invited_again(self, call: IncomingCall) -> None:
        """Hold, resume, another address, further media: the relay addresses stay; a new address is latched anew."""
        if call.call_id not in self._seats:
            call.reject(481)
            return
        self._answering.add(call.call_id)
        self._spawn(self._in_turn(call, self._change))

    def _updated(self, call: IncomingCall, request: SipRequest, addr: tuple[str, int]) -> None:
        """An UPDATE with an offer (RFC 3311) asks for the same as a re-INVITE; its answer waits for no ACK."""
        if not self._uas._validate_in_dialog(call.dialog, request):
            return
        try:
            offer = parse_sdp(request.text)
        except ValueError:
            self._uas._send_error(request, 400, "Bad SDP")
            return
        session_refreshed(self._uas, call.call_id, call)
        change = IncomingCall(
            dialog=call.dialog,
            invite=request,
            transport=self._transport,
            source_addr=addr,
            sdp_offer=offer,
            user_agent=self._uas.user_agent,
            session_interval=call.session_interval,
            session_refresher_us=call.session_refresher_us,
        )
        self._invited_again(change)

    async def _change(self, call: IncomingCall) -> None:
        seat = self._seats[call.call_id]
        if seat.answer:
            await self._change_browser(call, seat)
            return
        offer, lines = call.sdp_offer if call.invite.body else None, sdp.read_offer(call.sdp_offer if call.invite.body else None, seat.lines)
        assert offer is not None
        ufrag = sdp.remote_ufrag(offer)
        addresses = seat.addresses if sdp.without_address(offer, lines) else sdp.signalled(offer)  # on hold: where its media comes from has not changed
        async with self._lock(seat.conference):
            conference = await self._client.conference(seat.conference)
            member = _member(conference, seat)
            if member is None:
                raise _Refused(480, f"{seat.participant} has left {seat.conference}")
            ice = member["ice"] is not None
            present = {medium["medium"] for medium in member["media"]}
            agreed = sdp.agree(lines, sdp.wanted(conference, lines, ice=ice) | sdp.own_codecs(member))
            new = sdp.new_media(offer, lines, {kind: codec for kind, codec in agreed.items() if kind not in present}, ice=ice, mixing=conference["mixing"])
            moved = addresses != seat.addresses and not ice
            restart = ice and ufrag != seat.ufrag  # the peer begins anew, and so do we (RFC 8839 section 4.4.1.1.1)
            seat.lines, seat.addresses, seat.ufrag = sdp.lines_after(lines, seat.lines), addresses, ufrag
            if contacts := call.invite.contact:  # requests of ours go there from now on (RFC 3261 section 12.2.2)
                call.dialog.remote_target = stringify_uri(contacts[0].uri)
            seat.note(call.dialog)
            changed = sdp.changed_media(offer, lines, present, agreed, ice=ice, mixing=conference["mixing"])
            update: dict[str, Any] = {"signalled": addresses if moved else None, "ice_restart": restart, "signalling": seat.kept()}
            try:
                member = await self._client.update_participant(seat.conference, seat.participant, media=[*changed, *new], **update)
            except AgentError as error:
                if not new or error.status not in _STATUS:
                    raise
                log.info("SIP call %s: %s cannot be added: %s", call.call_id, ", ".join(one["medium"] for one in new), error)
                member = await self._client.update_participant(seat.conference, seat.participant, media=changed, **update)
        if call.dialog.state is not DialogState.TERMINATED:
            call.accept(sdp.answer(seat.conference, member, offer, lines, int(time.time())))

    async def _change_browser(self, call: IncomingCall, seat: Seat) -> None:
        if contacts := call.invite.contact:
            call.dialog.remote_target = stringify_uri(contacts[0].uri)
        seat.note(call.dialog)
        if call.invite.body and self._browsers is not None:
            await self._browsers.change(seat.conference, seat.participant, call.invite.text, seat.kept_for)
        if call.dialog.state is not DialogState.TERMINATED:
            call.accept(parse_sdp(seat.answer))

    # -- ends ----------------------------------------------------------------------------------------------------

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
        call = self._uas._calls.get(call_id)
        self._forget(call_id)
        if call is None:
            return
        call._stop_retransmissions()
        if (bye := call.hangup()) is not None:
            self._await_answer(bye, call.source_addr, _T1, time.monotonic() + TRANSACTION_S)
        self._uas._calls.pop(call_id, None)  # the library forgets calls of which a BYE comes, not those that it ends

    def _await_answer(self, bye: SipRequest, addr: tuple[str, int], wait: float, until: float) -> None:
        """A BYE that is not answered is sent again, each time after twice as long (RFC 3261 section 17.1.2)."""

        def again() -> None:
            self._byes.pop(bye.call_id or "", None)
            if time.monotonic() < until:
                self._transport.send(bye, addr)
                self._await_answer(bye, addr, min(2 * wait, _T2), until)

        self._byes[bye.call_id or ""] = asyncio.get_running_loop().call_later(wait, again)

    def _answered(self, response: SipResponse) -> None:
        """A request of ours has an answer: a BYE, or an UPDATE that refreshes a session."""
        method = response.cseq.method if response.cseq is not None else ""
        call_id = response.call_id or ""
        if method == "BYE" and response.status_code >= 200 and (timer := self._byes.pop(call_id, None)) is not None:
            timer.cancel()
        elif method == "UPDATE" and response.status_code in (408, 481) and call_id in self._seats:
            call = self._uas._calls.pop(call_id, None)
            if call is not None:
                call._stop_retransmissions()
                call.dialog.terminate()
            self._hung_up(call_id, "session-expired")

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
            log.info("conferences: calls are taken at %s port %d; %d go on", *self._transport.local_addr, len(found))
        self.serving, self.standing_by = True, False

    def _resume(self, seat: Seat) -> None:
        """Go on with a call that another process has answered."""
        dialog = seat.resumed()
        # Numbers of the former process's requests are not known: by the clock they are higher (RFC 3261 section 8.1.1.5). What comes again is taken once more.
        dialog.local_cseq, dialog.remote_cseq = max(dialog.local_cseq, int(time.time()) & 0x7FFFFFFF), max(0, dialog.remote_cseq - 1)
        call = IncomingCall(
            dialog=dialog,
            invite=SipRequest(method="INVITE", uri=dialog.local_uri),
            transport=self._transport,
            source_addr=seat.source,
            user_agent=self._uas.user_agent,
            retransmit_2xx=True,
            session_interval=seat.session_s,
            session_refresher_us=seat.refresher == "uas",
            on_ack_timeout=self._uas._dispatch_ack_timeout,
        )
        call._answered = True
        self._uas._calls[seat.call_id] = call
        self._seats[seat.call_id] = seat
        self._uas._start_session_timer(call)


def _seat(conference: str, participant: Any, signalling: Any) -> Seat | None:
    """The call of a participant; None: it has none, or none that can be read."""
    try:
        return Seat.read(signalling)
    except ValueError as error:
        log.error("conference %s: the call of %s cannot be carried on: %s", conference, participant, error)
        return None


def _member(conference: Conference, seat: Seat) -> Participant | None:
    """The participant of a call."""
    return next((one for one in conference["members"] if one["participant"] == seat.participant and one["call"] == seat.call_id), None)


def _warning(host: str, error: Exception) -> str:
    """A Warning header (RFC 3261 section 20.43), so that the caller's log has the reason too."""
    words = "".join(character if character.isprintable() and character not in '"\\' else "'" for character in str(error))
    return f'399 {host} "{words}"'
