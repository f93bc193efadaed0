"""The user agent server: transactions and dialogs, with a clock that the test moves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from aiosipua import SipMessage, SipRequest, SipResponse, parse_sdp

from shunt.operator.conferences.dialog import Seat
from shunt.operator.conferences.uas import Call, Transaction, UserAgent

SDP = "v=0\r\no=- 1 1 IN IP4 192.0.2.7\r\ns=-\r\nc=IN IP4 192.0.2.7\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\n"
PHONE = ("192.0.2.7", 5066)


class Clock:
    """Timers that fire when the test lets time pass."""

    def __init__(self) -> None:
        self.time = 0.0
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self.time

    def later(self, seconds: float, work: Callable[[], None]) -> Clock.Timer:
        entry = (self.time + seconds, work)
        self._timers.append(entry)
        return Clock.Timer(self, entry)

    class Timer:
        def __init__(self, clock: Clock, entry: tuple[float, Callable[[], None]]) -> None:
            self._clock, self._entry = clock, entry

        def cancel(self) -> None:
            if self._entry in self._clock._timers:
                self._clock._timers.remove(self._entry)

    def pass_by(self, seconds: float) -> None:
        until = self.time + seconds
        while due := sorted((entry for entry in self._timers if entry[0] <= until), key=lambda entry: entry[0]):
            self._timers.remove(due[0])
            self.time = due[0][0]
            due[0][1]()
        self.time = until

    @property
    def waiting(self) -> int:
        return len(self._timers)


class Scene:
    """A user agent, what it has sent, and what it has told."""

    def __init__(self) -> None:
        self.clock, self.sent, self.told = Clock(), list[SipRequest | SipResponse](), list[tuple[str, object]]()
        self.transactions: list[Transaction] = []
        self.agent = UserAgent(("203.0.113.10", 5070), "shunt/test", self, self._send, self.clock.later, self.clock.now)
        self._numbers: Iterator[int] = iter(range(1, 1000))

    def _send(self, data: bytes, to: tuple[str, int]) -> None:
        assert to[0] == PHONE[0]
        self.sent.append(SipMessage.parse(data))

    def gate(self, request: SipRequest) -> str | None:
        return None

    def invited(self, transaction: Transaction) -> None:
        self.transactions.append(transaction)

    def invited_anew(self, transaction: Transaction) -> None:
        self.told.append(("anew", transaction))
        self.transactions.append(transaction)

    def changed(self, transaction: Transaction) -> None:
        self.transactions.append(transaction)

    def answered(self, call: Call, text: str | None) -> None:
        self.told.append(("answer", text))

    def ended(self, call: Call, reason: str) -> None:
        self.told.append(("ended", reason))

    def put(self, method: str, cseq: int = 1, body: str = "", *, to_tag: str = "", branch: str = "", content_type: str = "application/sdp", headers: tuple[str, ...] = ()) -> None:
        to = f";tag={to_tag}" if to_tag else ""
        lines = [f"{method} sip:room@203.0.113.10:5070 SIP/2.0", f"Via: SIP/2.0/UDP 192.0.2.7:5066;branch=z9hG4bK{branch or f'{method}{cseq}'}", "Max-Forwards: 70"]
        lines += ["From: <sip:ann@192.0.2.7>;tag=ann", f"To: <sip:room@203.0.113.10>{to}", "Call-ID: 1@192.0.2.7", f"CSeq: {cseq} {method}", "Contact: <sip:ann@192.0.2.7:5066>"]
        lines += ["Record-Route: <sip:203.0.113.10;lr;x=1>", *headers, *([f"Content-Type: {content_type}"] if body else []), f"Content-Length: {len(body)}", "", body]
        self.agent.receive("\r\n".join(lines).encode(), PHONE)

    @property
    def last(self) -> SipRequest | SipResponse:
        return self.sent[-1]

    def status(self) -> int:
        assert isinstance(self.last, SipResponse)
        return self.last.status_code

    def tag(self) -> str:
        to = self.last.to_addr
        assert to is not None and to.tag
        return to.tag

    def call(self, body: str = SDP, headers: tuple[str, ...] = ()) -> str:
        """A call that is up; the tag of the focus."""
        self.put("INVITE", 1, body, headers=headers)
        self.agent.accept(self.transactions[-1], parse_sdp(SDP), offers=not body)
        assert self.status() == 200
        tag = self.tag()
        self.put("ACK", 1, "" if body else SDP, to_tag=tag, branch="ack1")
        return tag


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_call_begins_and_ends(scene: Scene) -> None:
    scene.put("INVITE", 1, SDP)
    assert scene.status() == 100
    transaction = scene.transactions[0]
    assert transaction.offer is not None and transaction.offer.media[0].port == 4000
    scene.agent.accept(transaction, parse_sdp(SDP))
    assert scene.status() == 200 and scene.last.headers.get("record-route") == ["<sip:203.0.113.10;lr;x=1>"] and scene.last.content_type == "application/sdp"
    answer, tag = bytes(scene.last), scene.tag()
    scene.clock.pass_by(0.6)
    assert len(scene.sent) == 3 and bytes(scene.last) == answer, "no ACK: the answer goes again"
    scene.put("INVITE", 1, SDP)
    assert len(scene.sent) == 4 and bytes(scene.last) == answer and len(scene.transactions) == 1
    scene.put("ACK", 1, to_tag=tag, branch="ack")
    scene.clock.pass_by(60)
    assert len(scene.sent) == 4 and scene.told == []
    scene.put("BYE", 2, to_tag=tag)
    assert scene.status() == 200 and scene.told == [("ended", "bye")] and scene.agent.calls == {} and scene.clock.waiting == 0


def test_an_answer_without_an_ack_ends_the_call(scene: Scene) -> None:
    scene.put("INVITE", 1, SDP)
    scene.agent.accept(scene.transactions[0], parse_sdp(SDP))
    scene.clock.pass_by(40)
    assert scene.told == [("ended", "no-ack")] and isinstance(scene.last, SipRequest) and scene.last.method == "BYE"
    before = len(scene.sent)
    scene.clock.pass_by(60)
    assert before < len(scene.sent) <= before + 10, "the BYE goes again until nobody can wait any more"
    assert scene.clock.waiting == 0


def test_an_offer_in_the_answer_is_answered_in_the_ack(scene: Scene) -> None:
    tag = scene.call("")
    assert scene.told == [("answer", SDP)]
    # The same in the running call, with an answer in a multipart body; UPDATE may not come between.
    scene.put("INVITE", 2, "", to_tag=tag)
    assert scene.transactions[-1].offer is None and not scene.transactions[-1].first
    scene.agent.accept(scene.transactions[-1], parse_sdp(SDP), offers=True)
    scene.put("UPDATE", 3, SDP, to_tag=tag)
    assert scene.status() == 491
    body = f"--x\r\nContent-Type: application/sdp\r\n\r\n{SDP}\r\n--x--\r\n"
    scene.put("ACK", 2, body, to_tag=tag, branch="ack2", content_type="multipart/mixed;boundary=x")
    assert scene.told[1:] == [("answer", SDP)]
    # An ACK without an answer says so.
    scene.put("INVITE", 4, "", to_tag=tag)
    scene.agent.accept(scene.transactions[-1], parse_sdp(SDP), offers=True)
    scene.put("ACK", 4, to_tag=tag, branch="ack4")
    assert scene.told[2:] == [("answer", None)]


def test_refused_and_cancelled_calls_leave_nothing(scene: Scene) -> None:
    scene.put("INVITE", 1, SDP)
    scene.agent.refuse(scene.transactions[0], 488, 'no "codec"')
    assert scene.status() == 488 and scene.last.get_header("warning") == "399 203.0.113.10 \"no 'codec'\"" and scene.agent.calls == {}
    scene.clock.pass_by(1)
    assert len(scene.sent) == 3, "an error goes again too"
    scene.put("ACK", 1, to_tag=scene.tag(), branch="INVITE1")
    scene.clock.pass_by(60)
    assert len(scene.sent) == 3
    scene.put("INVITE", 2, SDP)
    scene.put("CANCEL", 2, branch="INVITE2")
    assert [message.status_code for message in scene.sent[-2:] if isinstance(message, SipResponse)] == [200, 487]
    transaction = scene.transactions[-1]
    assert transaction.cancelled and scene.agent.calls == {}
    before = len(scene.sent)
    scene.agent.accept(transaction, parse_sdp(SDP))
    assert len(scene.sent) == before and scene.told == []


def test_requests_of_no_call_are_refused(scene: Scene) -> None:
    for method in ("INVITE", "BYE", "UPDATE"):
        scene.put(method, 1, to_tag="made-up", branch=f"made-up-{method}")
        assert scene.status() == 481
    scene.put("CANCEL", 9)
    assert scene.status() == 481
    scene.put("OPTIONS", 3)
    assert scene.status() == 200 and "application/sdp" in str(scene.last.get_header("accept"))
    scene.put("SUBSCRIBE", 4)
    assert scene.status() == 405 and "INVITE" in str(scene.last.get_header("allow"))
    tag = scene.call()
    scene.put("BYE", 5, to_tag=tag + "x")
    assert scene.status() == 481
    scene.put("BYE", 1, to_tag=tag, branch="old")
    assert scene.status() == 500, "its number is not higher"
    scene.put("INVITE", 1, SDP, branch="another-way")
    assert scene.status() == 482
    assert scene.told == [] and list(scene.agent.calls) == ["1@192.0.2.7"]


def test_what_cannot_be_understood_is_said(scene: Scene) -> None:
    scene.put("INVITE", 1, "<presence/>", content_type="application/pidf+xml")
    assert scene.status() == 415 and "application/sdp" in str(scene.last.get_header("accept"))
    scene.put("INVITE", 2, SDP, headers=("Require: 100rel, timer",))
    assert scene.status() == 420 and scene.last.get_header("unsupported") == "100rel"
    scene.put("INVITE", 3, SDP.replace("4000", "port"))
    assert scene.status() == 400
    for data in (b"", b"\xff\x00", b"INVITE\r\n\r\n", b"SIP/2.0 abc\r\n\r\n", b"BYE sip:x SIP/2.0\r\nVia: x\r\nCSeq: y\r\nFrom: a\r\nTo: b\r\nCall-ID: c\r\n\r\n"):
        scene.agent.receive(data, PHONE)
    assert scene.transactions == []


def _mutated(generator: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(made))
        piece = generator.choice([b"", b":", b";", b"\r\n", b"\x00", b"99999999999", b"[", b"<", b'"', b"=", b"\xff", bytes(made[generator.randrange(len(made)) :][:20])])
        made[at : at + generator.choice([0, 0, 1, 8])] = piece
    return bytes(made)


@pytest.mark.parametrize("seed", range(20))
def test_any_datagram_may_come(scene: Scene, seed: int) -> None:
    generator, received = random.Random(seed), list[bytes]()
    receive = scene.agent.receive
    scene.agent.receive = lambda data, source: (received.append(data), receive(data, source))[1]  # type: ignore[method-assign]
    tag = scene.call(headers=("Supported: timer",))
    scene.put("UPDATE", 2, SDP, to_tag=tag)
    scene.put("CANCEL", 2, to_tag=tag)
    scene.put("OPTIONS", 3)
    received += [bytes(message) for message in scene.sent]
    for _ in range(200):
        receive(_mutated(generator, generator.choice(received)), PHONE)
    scene.clock.pass_by(100)


def test_one_change_at_a_time(scene: Scene) -> None:
    tag = scene.call()
    scene.put("INVITE", 2, SDP, to_tag=tag)
    scene.put("UPDATE", 3, SDP, to_tag=tag)
    assert scene.status() == 500 and scene.last.get_header("retry-after")
    scene.put("CANCEL", 2, to_tag=tag, branch="INVITE2")
    assert scene.transactions[-1].cancelled and list(scene.agent.calls) == ["1@192.0.2.7"], "the call goes on as it was"
    scene.put("UPDATE", 4, to_tag=tag)
    assert scene.status() == 200 and len(scene.transactions) == 2, "without an offer it refreshes the session"


def test_session_timers(scene: Scene) -> None:
    tag = scene.call(headers=("Supported: timer", "Session-Expires: 300;refresher=uac"))
    scene.clock.pass_by(200)
    scene.put("UPDATE", 2, to_tag=tag, headers=("Supported: timer",))
    assert scene.last.get_header("session-expires") == "300;refresher=uac"
    scene.clock.pass_by(260)
    assert scene.told == []
    scene.clock.pass_by(20)
    assert scene.told == [("ended", "session-expired")]


def test_the_focus_refreshes_where_the_caller_asks_for_it(scene: Scene) -> None:
    scene.call(headers=("Supported: timer", "Session-Expires: 300;refresher=uas", "Allow: INVITE, UPDATE"))
    for _ in range(3):
        scene.clock.pass_by(150)
        update = scene.last
        assert isinstance(update, SipRequest) and update.method == "UPDATE"
        scene.agent.receive(b"SIP/2.0 200 OK\r\nVia: " + update.headers.get("via")[0].encode() + b"\r\nContent-Length: 0\r\n\r\n", PHONE)
    assert scene.told == []
    scene.clock.pass_by(200)
    assert scene.told == [("ended", "session-expired")], "an UPDATE without an answer"


def test_a_call_of_another_process_goes_on(scene: Scene) -> None:
    tag = scene.call()
    call = scene.agent.calls["1@192.0.2.7"]
    seat = Seat("room", "ann", call.call_id, PHONE)
    seat.note(call.dialog)
    other = Scene()
    other.agent.resume(seat.resumed(), PHONE, 300, refreshes=False)
    other.put("INVITE", 1, SDP)
    assert [what for what, _ in other.told] == ["anew"]
    other.agent.accept(other.transactions[0], parse_sdp(SDP))
    assert other.status() == 200 and other.tag() == tag
    other.put("ACK", 1, to_tag=tag, branch="ack1")
    other.agent.hang_up("1@192.0.2.7")
    assert isinstance(other.last, SipRequest) and other.last.method == "BYE" and other.agent.calls == {}
