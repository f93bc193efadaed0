"""A SIP user agent server (RFC 3261): server transactions, dialogs, offer and answer in INVITE, ACK and UPDATE, session timers (RFC 4028).

No socket and no clock: datagrams come in by `receive`, and go out by a function that is given. Messages, headers and dialogs are aiosipua's.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from aiosipua import (
    Dialog,
    DialogState,
    SdpMessage,
    SipMessage,
    SipRequest,
    SipResponse,
    create_dialog_from_request,
    generate_tag,
    parse_sdp,
    parse_via,
    serialize_sdp,
    stringify_uri,
    stringify_via,
)

from shunt.operator.conferences.bodies import ACCEPTED, Unsupported, session_description

log = logging.getLogger(__name__)

Address = tuple[str, int]
Later = Callable[[float, Callable[[], None]], "Timer"]

T1, T2 = 0.5, 4.0
TRANSACTION_S = 32.0
"""64 T1: for as long a message may come again."""
SESSION_S, LEAST_SESSION_S = 1800, 90  # RFC 4028 sections 4 and 9
_ALLOW = "INVITE, ACK, CANCEL, BYE, OPTIONS, UPDATE"
_SUPPORTED = "timer"
_NEEDED = ("via", "from", "to", "call-id", "cseq")
_PHRASES = {
    100: "Trying", 200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 415: "Unsupported Media Type", 420: "Bad Extension",
    480: "Temporarily Unavailable", 481: "Call/Transaction Does Not Exist", 482: "Loop Detected", 487: "Request Terminated", 488: "Not Acceptable Here",
    491: "Request Pending", 500: "Server Internal Error", 503: "Service Unavailable",
}  # fmt: skip


class Timer(Protocol):
    """What `Later` returns."""

    def cancel(self) -> None:
        """The function is not called."""


@dataclass(slots=True, eq=False)
class Call:
    """A call that came in.

    source: where its requests come from and ours go to; session_s: the interval of its session timer, None without; refreshes: whether this side
    refreshes it; resumed: another process has answered it.
    """

    dialog: Dialog
    source: Address
    session_s: int | None = None
    refreshes: bool = True
    resumed: bool = False
    transaction: Transaction | None = None
    session: Timer | None = None
    unacknowledged: dict[int, Transaction] = field(default_factory=dict)  # by CSeq number: INVITEs whose 2xx has no ACK

    @property
    def call_id(self) -> str:
        return self.dialog.call_id

    @property
    def ended(self) -> bool:
        return self.dialog.state is DialogState.TERMINATED


@dataclass(slots=True, eq=False)
class Transaction:
    """An INVITE, or an UPDATE with an offer. text, offer: its session description, None without; cancelled: nobody waits for an answer."""

    request: SipRequest
    call: Call
    text: str | None
    offer: SdpMessage | None
    first: bool
    cancelled: bool = False
    answered: bool = False
    offers: bool = False  # its 2xx has an offer, whose answer comes in the ACK
    timer: Timer | None = None


class User(Protocol):
    """What happens to calls."""

    def gate(self, request: SipRequest) -> str | None:
        """Whether a request can be served: None; the phrase of a 503; or empty, and it is dropped."""

    def invited(self, transaction: Transaction) -> None:
        """A new call."""

    def invited_anew(self, transaction: Transaction) -> None:
        """The INVITE of a call that another process has answered: the answer may be lost."""

    def changed(self, transaction: Transaction) -> None:
        """A further INVITE of a call, or an UPDATE with an offer."""

    def answered(self, call: Call, text: str | None) -> None:
        """The ACK for a 2xx with an offer, and the answer in it."""

    def ended(self, call: Call, reason: str) -> None:
        """The call is over: bye, no-ack, session-expired. Not for those that `hang_up` ends, or whose INVITE is refused or cancelled."""


@dataclass(slots=True, eq=False)
class _Served:
    at: float
    response: tuple[bytes, Address] | None = None
    transaction: Transaction | None = None


class UserAgent:
    """Calls that come in, by Call-ID."""

    def __init__(self, address: Address, name: str, user: User, send: Callable[[bytes, Address], None], later: Later, now: Callable[[], float]) -> None:
        """address: where it listens; name: for the header Server; later, now: the event loop's `call_later` and `time`."""
        self._host, self._port = address
        self._name, self._user, self._send, self._later, self._now = name, user, send, later, now
        self.calls: dict[str, Call] = {}
        self._served: OrderedDict[tuple[str, str, str], _Served] = OrderedDict()  # by branch, sent-by and method of the request
        self._requests: dict[str, tuple[Call, str, Timer]] = {}  # ours without an answer, by branch

    # -- messages --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, source: Address) -> None:
        """Take in a datagram; what is no SIP is dropped."""
        try:
            message = SipMessage.parse(data)
            if isinstance(message, SipResponse):
                self._responded(message)
            elif isinstance(message, SipRequest):
                self._request(message, source)
        except ValueError as error:
            log.debug("SIP from %s port %d cannot be parsed: %s", *source, error)

    def _request(self, request: SipRequest, source: Address) -> None:
        missing = [name for name in _NEEDED if not request.headers.get(name)]
        if "via" in missing:
            return
        _stamp(request, source)
        if missing or request.cseq is None or request.cseq.method != request.method:
            self._reply(request, 400)
            return
        if request.method == "ACK":
            self._acknowledged(request)
            return
        key = _key(request)
        if (served := self._served.get(key)) is not None:
            if served.response is not None:
                self._send(*served.response)
            return
        if (phrase := self._user.gate(request)) is not None:
            if phrase:
                self._reply(request, 503, phrase)
            return
        self._forget_old()
        self._served[key] = _Served(self._now())
        to = request.to_addr
        if request.method == "CANCEL":
            self._cancelled(request)
        elif to is not None and to.tag:
            self._within_dialog(request)
        elif request.method == "INVITE":
            self._first(request, source)
        elif request.method == "OPTIONS":
            self._reply(request, 200, headers={"Accept": ACCEPTED, "Allow": _ALLOW, "Supported": _SUPPORTED})
        elif request.method in ("BYE", "UPDATE"):
            self._reply(request, 481)
        else:
            self._reply(request, 405, headers={"Allow": _ALLOW})

    def _forget_old(self) -> None:
        while self._served and (oldest := next(iter(self._served.values()))).at < self._now() - TRANSACTION_S:
            if oldest.transaction is not None and not oldest.transaction.answered:
                break
            self._served.popitem(last=False)

    def _transaction(self, request: SipRequest, call: Call, *, first: bool) -> Transaction | None:
        """A request with its session description; None: it is answered with an error."""
        unknown = {token for value in request.headers.get("require") for token in value.lower().replace(",", " ").split()} - {_SUPPORTED}
        if unknown:
            self._reply(request, 420, headers={"Unsupported": ", ".join(sorted(unknown))})
            return None
        try:
            text = session_description(request.body, request.content_type, request.get_header("content-disposition"), request.get_header("content-encoding"))
            offer = parse_sdp(text) if text is not None else None
        except Unsupported as error:
            self._reply(request, 415, headers={"Accept": ACCEPTED, "Accept-Encoding": "identity", "Warning": warning(self._host, error)})
        except ValueError as error:
            self._reply(request, 400, headers={"Warning": warning(self._host, error)})
        else:
            made = Transaction(request, call, text, offer, first)
            self._served[_key(request)].transaction = call.transaction = made
            return made
        return None

    def _first(self, request: SipRequest, source: Address) -> None:
        call = self.calls.get(request.call_id or "")
        if call is not None:
            sender = request.from_addr
            if not call.resumed or call.transaction is not None or sender is None or sender.tag != call.dialog.remote_tag:
                self._reply(request, 482)  # the same request by another way (RFC 3261 section 8.2.2.2)
                return
            call.source = source
            if (transaction := self._transaction(request, call, first=True)) is not None:
                self._user.invited_anew(transaction)
            return
        dialog = create_dialog_from_request(request)
        dialog.route_set = list(request.headers.get("record-route"))  # the called side's order is that of the request
        call = Call(dialog, source)
        _negotiate_session(request, call)
        if (transaction := self._transaction(request, call, first=True)) is not None:
            self.calls[call.call_id] = call
            self._reply(request, 100)
            self._user.invited(transaction)

    def _within_dialog(self, request: SipRequest) -> None:
        call, sender, to, cseq = self.calls.get(request.call_id or ""), request.from_addr, request.to_addr, request.cseq
        assert to is not None and cseq is not None
        if call is None or sender is None or (sender.tag or "", to.tag) != (call.dialog.remote_tag, call.dialog.local_tag):
            self._reply(request, 481)
            return
        if cseq.seq <= call.dialog.remote_cseq:
            self._reply(request, 500)
            return
        call.dialog.remote_cseq = cseq.seq
        if request.method == "BYE":
            self._reply(request, 200)
            if call.transaction is not None:
                self._cancel(call.transaction)
            self._finish(call)
            self._user.ended(call, "bye")
        elif request.method == "OPTIONS":
            self._reply(request, 200, headers={"Accept": ACCEPTED, "Allow": _ALLOW, "Supported": _SUPPORTED})
        elif request.method not in ("INVITE", "UPDATE"):
            self._reply(request, 405, headers={"Allow": _ALLOW})
        elif call.transaction is not None:
            self._reply(request, 500, headers={"Retry-After": "1"})
        elif request.method == "UPDATE" and any(one.offers for one in call.unacknowledged.values()):
            self._reply(request, 491)
        elif (transaction := self._transaction(request, call, first=False)) is not None:
            if contacts := request.contact:  # requests of ours go there from now on (RFC 3261 section 12.2.2)
                call.dialog.remote_target = stringify_uri(contacts[0].uri)
            if request.method == "UPDATE" and transaction.offer is None:
                self.accept(transaction, None)
                return
            if request.method == "INVITE":
                self._reply(request, 100)
            self._user.changed(transaction)

    def _cancelled(self, request: SipRequest) -> None:
        served = self._served.get((*_key(request)[:2], "INVITE"))
        if served is None or served.transaction is None:
            self._reply(request, 481)
            return
        self._reply(request, 200)
        if not served.transaction.answered:
            self._cancel(served.transaction)

    def _cancel(self, transaction: Transaction) -> None:
        transaction.cancelled = True
        self._finally(transaction, self._response(transaction, 487))
        if transaction.first and not transaction.call.resumed:
            self._finish(transaction.call)

    def _acknowledged(self, request: SipRequest) -> None:
        served = self._served.get((*_key(request)[:2], "INVITE"))
        if served is not None and served.transaction is not None and served.transaction.timer is not None:
            served.transaction.timer.cancel()  # of an error
        call, cseq, sender, to = self.calls.get(request.call_id or ""), request.cseq, request.from_addr, request.to_addr
        if call is None or cseq is None or sender is None or to is None or (sender.tag or "", to.tag) != (call.dialog.remote_tag, call.dialog.local_tag):
            return
        transaction = call.unacknowledged.pop(cseq.seq, None)
        if transaction is None:
            return
        if transaction.timer is not None:
            transaction.timer.cancel()
        if transaction.offers:
            text = None
            try:
                text = session_description(request.body, request.content_type, request.get_header("content-disposition"), request.get_header("content-encoding"))
            except Unsupported as error:
                log.info("SIP call %s: the ACK has %s", call.call_id, error)
            self._user.answered(call, text)

    # -- answers ---------------------------------------------------------------------------------------------------

    def accept(self, transaction: Transaction, sdp: SdpMessage | None, *, offers: bool = False) -> None:
        """Answer with 200; nothing where nobody waits any more. offers: the SDP is an offer, for a request without one."""
        call, request = transaction.call, transaction.request
        if transaction.cancelled or call.ended:
            return
        response = self._response(transaction, 200, {"Allow": _ALLOW, "Supported": _SUPPORTED, "Accept": ACCEPTED})
        if request.method == "INVITE":
            for route in request.headers.get("record-route"):
                response.headers.append("Record-Route", route)
        if call.session_s is not None:
            response.set_header("Session-Expires", f"{call.session_s};refresher={'uas' if call.refreshes else 'uac'}")
            if _supports_timer(request):
                response.set_header("Require", "timer")
        if sdp is not None:
            response.text = serialize_sdp(sdp)
            response.set_header("Content-Type", "application/sdp")
        call.dialog.confirm()
        transaction.offers = offers
        if request.method == "INVITE" and request.cseq is not None:
            for earlier in call.unacknowledged.values():  # whose ACK is lost: the caller goes on
                if earlier.timer is not None:
                    earlier.timer.cancel()
            call.unacknowledged = {request.cseq.seq: transaction}
        self._finally(transaction, response)
        self._arm(call)

    def refuse(self, transaction: Transaction, status: int, reason: str) -> None:
        """Answer with an error; reason: for the caller's log. A call that was to begin is over."""
        if transaction.cancelled or transaction.call.ended:
            return
        self._finally(transaction, self._response(transaction, status, {"Warning": warning(self._host, reason)}))
        if transaction.first and not transaction.call.resumed:
            self._finish(transaction.call)

    def _response(self, transaction: Transaction, status: int, headers: Mapping[str, str] | None = None) -> SipResponse:
        response = transaction.call.dialog.create_response(transaction.request, status, _PHRASES[status], contact=f"<sip:{self._own}>")
        for name, value in {"Server": self._name, **(headers or {})}.items():
            response.set_header(name, value)
        return response

    def _finally(self, transaction: Transaction, response: SipResponse) -> None:
        """Send a final response; that to an INVITE again until its ACK comes (RFC 3261 sections 13.3.1.4 and 17.2.1)."""
        transaction.answered = True
        if transaction.call.transaction is transaction:
            transaction.call.transaction = None
        self._put(transaction.request, response)
        if transaction.request.method == "INVITE":
            self._repeat(transaction, response, T1, self._now() + TRANSACTION_S)

    def _repeat(self, transaction: Transaction, response: SipResponse, wait: float, until: float) -> None:
        def again() -> None:
            if self._now() < until:
                self._put(transaction.request, response)
                self._repeat(transaction, response, min(2 * wait, T2), until)
            elif response.status_code < 300 and not transaction.call.ended:
                log.warning("SIP call %s: no ACK", transaction.call.call_id)
                self._hang_up(transaction.call)
                self._user.ended(transaction.call, "no-ack")

        transaction.timer = self._later(wait, again)

    def _reply(self, request: SipRequest, status: int, phrase: str = "", headers: Mapping[str, str] | None = None) -> None:
        """Answer a request without a transaction of the focus."""
        response = SipResponse(status_code=status, reason_phrase=phrase or _PHRASES[status])
        for name in ("via", "from", "to", "call-id", "cseq"):
            for value in request.headers.get(name):
                if name == "to" and status != 100 and ";tag=" not in value.lower():
                    value += f";tag={generate_tag()}"
                response.add_header(name, value)
        for name, value in {"Server": self._name, **(headers or {})}.items():
            response.set_header(name, value)
        self._put(request, response)

    def _put(self, request: SipRequest, response: SipResponse) -> None:
        via = parse_via(response.headers.get("via")[0])
        port = via.rport if via.rport and via.rport.isdigit() else str(via.port or 5060)
        if not 0 < int(port) < 65536:
            raise ValueError(f"port {port} in Via")
        sent = bytes(response), ((via.received or via.host).strip("[]"), int(port))
        if (served := self._served.get(_key(request))) is not None:
            served.response = sent
        self._send(*sent)

    # -- requests of ours ------------------------------------------------------------------------------------------

    @property
    def _own(self) -> str:
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    def hang_up(self, call_id: str) -> None:
        """End a call; nothing where there is none."""
        if (call := self.calls.get(call_id)) is not None:
            if call.transaction is not None:
                self._cancel(call.transaction)
            self._hang_up(call)

    def _hang_up(self, call: Call) -> None:
        if call.dialog.state is DialogState.CONFIRMED:
            self._ask(call, "BYE")
        self._finish(call)

    def _ask(self, call: Call, method: str, headers: Mapping[str, str] | None = None) -> None:
        """Send a request, each time after twice as long, until its answer comes (RFC 3261 section 17.1.2)."""
        request = call.dialog.create_request(method, via_host=self._host, via_port=self._port)
        for name, value in (headers or {}).items():
            request.set_header(name, value)
        branch, data = request.via[0].branch or "", bytes(request)
        until = self._now() + TRANSACTION_S

        def put(wait: float) -> None:
            self._send(data, call.source)
            self._requests[branch] = call, method, self._later(wait, lambda: again(min(2 * wait, T2)))

        def again(wait: float) -> None:
            if self._now() < until:
                put(wait)
                return
            del self._requests[branch]
            self._unanswered(call, method)

        put(T1)

    def _unanswered(self, call: Call, method: str) -> None:
        if method == "UPDATE" and not call.ended:
            self._hang_up(call)
            self._user.ended(call, "session-expired")

    def _responded(self, response: SipResponse) -> None:
        if response.status_code < 200 or not response.headers.get("via"):
            return
        found = self._requests.pop(response.via[0].branch or "", None)
        if found is not None:
            call, method, timer = found
            timer.cancel()
            if response.status_code in (408, 481):
                self._unanswered(call, method)

    # -- calls -----------------------------------------------------------------------------------------------------

    def resume(self, dialog: Dialog, source: Address, session_s: int | None, *, refreshes: bool) -> None:
        """Go on with a call that another process has answered."""
        self.calls[dialog.call_id] = call = Call(dialog, source, session_s, refreshes, resumed=True)
        self._arm(call)

    def forget(self, call_id: str) -> None:
        """Another process has the call now."""
        if (call := self.calls.get(call_id)) is not None:
            self._finish(call)

    def close(self) -> None:
        """Do nothing from now on; the calls stay."""
        for call_id in list(self.calls):
            self.forget(call_id)
        for served in self._served.values():
            if served.transaction is not None and served.transaction.timer is not None:
                served.transaction.timer.cancel()
        for _, _, timer in self._requests.values():
            timer.cancel()

    def _finish(self, call: Call) -> None:
        call.dialog.terminate()
        for timer in (call.session, *(one.timer for one in call.unacknowledged.values())):
            if timer is not None:
                timer.cancel()
        if self.calls.get(call.call_id) is call:
            del self.calls[call.call_id]

    def _arm(self, call: Call) -> None:
        """Begin the session's interval anew (RFC 4028 sections 9 and 10)."""
        if call.session is not None:
            call.session.cancel()
        if call.session_s is None:
            return

        def refresh() -> None:
            self._ask(call, "UPDATE", {"Contact": f"<sip:{self._own}>", "Supported": _SUPPORTED, "Session-Expires": f"{call.session_s};refresher=uac"})
            self._arm(call)

        def expire() -> None:
            log.warning("SIP call %s: its session has expired", call.call_id)
            self._hang_up(call)
            self._user.ended(call, "session-expired")

        if call.refreshes:
            call.session = self._later(call.session_s / 2, refresh)
        else:
            call.session = self._later(call.session_s - min(32.0, call.session_s / 3), expire)


def _key(request: SipRequest) -> tuple[str, str, str]:
    via = parse_via(request.headers.get("via")[0])
    return via.branch or "", f"{via.host}:{via.port}", request.method


def _stamp(request: SipRequest, source: Address) -> None:
    """Note in the topmost Via where a request came from (RFC 3261 section 18.2.1, RFC 3581 section 4)."""
    values = request.headers.get("via")
    via = parse_via(values[0])
    if "rport" in via.params:
        via.rport = str(source[1])
        via.received = source[0]
    elif via.host.strip("[]") != source[0]:
        via.received = source[0]
    request.headers.remove("via")
    for value in (stringify_via(via), *values[1:]):
        request.add_header("Via", value)


def _supports_timer(request: SipRequest) -> bool:
    return any("timer" in value.lower().replace(",", " ").split() for name in ("supported", "k", "require") for value in request.headers.get(name))


def _negotiate_session(request: SipRequest, call: Call) -> None:
    """A session timer with callers who know of it (RFC 4028): one who is gone without a BYE leaves, on hold too."""
    if not _supports_timer(request):
        return
    given = request.get_header("session-expires") or request.get_header("x") or ""
    interval, *parameters = (part.strip().lower() for part in given.split(";"))
    allowed = {method.strip().upper() for value in request.headers.get("allow") for method in value.split(",")}
    call.session_s = max(int(interval) if interval.isdigit() else SESSION_S, LEAST_SESSION_S)
    call.refreshes = "refresher=uas" in parameters and (not allowed or "UPDATE" in allowed)


def warning(host: str, reason: object) -> str:
    """A Warning header (RFC 3261 section 20.43), so that the caller's log has the reason too."""
    words = "".join(character if character.isprintable() and character not in '"\\' else "'" for character in str(reason))
    return f'399 {host} "{words}"'
