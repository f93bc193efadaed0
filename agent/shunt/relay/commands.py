"""The rtpproxy commands as the built-in relay executes them: a command's bytes in, the reply's bytes out.

Replies and error codes are rtpproxy 3.2's (facts sections 2, 3, 8 and 10), and where they are not, on purpose:
U and L never answer E7 to E10, which would make OpenSIPS give the whole relay up; resizing (Z) is accepted but not done,
as a call with another packet time is better than none; recording, copying, playing and DTMF catching are refused with
an error that concerns that command alone, and V/VF does not claim them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shunt import limits
from shunt.answers import Answers
from shunt.net import Endpoint
from shunt.relay.ports import AddressUnusable, PortsExhausted
from shunt.relay.session import TO_CALLEE, TO_CALLER, Deletion, Leg, Session, SessionTable
from shunt.rtpproxy import capabilities as cap
from shunt.rtpproxy.codec import DEFAULT_COUNTERS, PROTOCOL_VERSION, CodecError, Command, join_tag, parse_command

log = logging.getLogger(__name__)

SUPPORTED = frozenset({
    cap.BASIC, cap.MULTIPLE_STREAMS, cap.VERSION_PARAMETER, cap.QUERY, cap.CODECS, cap.AUTOBRIDGE, cap.LOAD, cap.COUNTERS,
    cap.NEW_PORT, cap.NOTIFY_SELF, cap.TTL_FLAG, cap.TTL_MODIFIER, cap.TTL_SUBCOMMAND, 20260308,
})
"""Dates that VF answers with 1; NOTIFY is added when notices can be sent. 20260308 is `U … && L …`. Not RESIZE, COPY,
STOP_RECORDING and the counters of sequence tracking, which are not there; nor SUBCOMMANDS, from which OpenSIPS
concludes that DTMF can be caught."""

_MAX_COMMAND = 8192
_COOKIE_SECONDS = 35.0
_MAX_COOKIES = 50_000
_MAX_TTL = 2_000_000_000

# verb: fewest and most words (with the verb), whether modifiers and sub-commands are allowed.
_SHAPES = {
    "U": (5, 8, True, True), "L": (5, 6, True, True), "D": (3, 4, True, False), "P": (5, 6, True, False),
    "R": (3, 4, True, False), "C": (4, 5, True, False), "S": (3, 4, False, False), "N": (3, 4, True, False),
    "VF": (2, 2, False, False), "V": (1, 1, False, False), "I": (1, 1, True, False), "Q": (3, 18, True, True),
    "X": (1, 1, False, False), "G": (1, 32, True, False),
}
_CODEC_ERRORS = (
    ("nothing after &&", 3), ("modifier Z", 13), ("modifier c", 14), ("modifier l", 15), ("modifier L", 15),
    ("modifier R", 16), ("modifier r", 16), ("port", 37),
)
_PLAY_REFUSED, _QUERY_UNKNOWN, _COPY_REFUSED, _STATS_UNKNOWN = 60, 62, 65, 68
_SET = re.compile(r"(ttl|tos)=([0-9]{1,10})\Z")
_MODULE = re.compile(r"[Mm][0-9]{1,9}:[0-9]{1,9}\Z")

QUERY_COUNTERS = DEFAULT_COUNTERS
GLOBAL_COUNTERS = (
    "nsess_created", "nsess_destroyed", "nsess_timeout", "nsess_complete", "nsess_nortp", "nsess_owrtp", "nsess_nortcp",
    "nsess_owrtcp", "npkts_rcvd", "npkts_played", "npkts_relayed", "npkts_discard", "total_duration", "ncmds_rcvd",
    "ncmds_rcvd_ndups", "ncmds_succd", "ncmds_errs", "ncmds_repld", "pps_in",
)


class Refusal(Exception):
    """The command is not done, and answered with this error number, or with `reply`."""

    def __init__(self, code: int, reply: bytes | None = None) -> None:
        super().__init__(f"E{code}")
        self.reply = reply or b"E%d" % code


def _unknown_session(verb: str) -> Refusal:
    # Of all commands L alone says 0.
    return Refusal(50, b"0" if verb == "L" else None)


class Media(Protocol):
    """What the commands do to sockets; the relay provides it."""

    def open_leg(self, session: Session, index: int) -> None:
        """Bind a port pair on the leg's address, in place of one it has. Raises PortsExhausted or AddressUnusable."""

    def leg_signalled(self, session: Session, index: int) -> None:
        """The leg's signalled address or its flags were set (again)."""

    def created(self, session: Session) -> None: ...

    def changed(self, session: Session) -> None: ...

    def removed(self, session: Session) -> None:
        """The session is out of the table: its sockets are to be closed."""

    def set_tos(self, session: Session, index: int, tos: int) -> bool: ...

    def counts(self, session: Session) -> dict[str, int]: ...

    def last_heard(self, session: Session) -> float: ...

    def totals(self) -> dict[str, int | float]:
        """The packet and session counters that G and I report."""

    def load(self) -> float:
        """Share of one processor that the process used lately, in percent."""

    def can_notify(self) -> bool: ...

    def can_bind(self, ip: str) -> bool: ...

    def local_address_towards(self, ip: str) -> str | None:
        """The local address from which the kernel would send to ip."""


@dataclass(slots=True)
class _Offer:
    """A U or L whose modifiers and arguments were judged, not yet applied."""

    command: Command
    addresses: tuple[str, str]  # by leg, for a new session
    local: str | None  # address that l, R or 6 chose
    letters: int
    signalled: Endpoint | None
    asymmetric: bool


class Commands:
    """Executes commands on a session table. `addresses`: the relay's own, the first is I, the second E."""

    def __init__(
        self, table: SessionTable, media: Media, addresses: list[str], *, ttl: float, setup_ttl: float, asymmetric: bool,
        clock: Callable[[], float],
    ) -> None:
        self.table = table
        self.media = media
        self.addresses = addresses
        self.ttl = ttl
        self.setup_ttl = setup_ttl
        self.asymmetric = asymmetric
        self.clock = clock
        self.received = self.duplicates = self.succeeded = self.failed = 0
        self._answered: Answers[tuple[str | None, bytes, bytes], bytes] = Answers(_COOKIE_SECONDS, _MAX_COOKIES)

    def execute(self, body: bytes, cookie: bytes | None, peer_ip: str | None) -> bytes:
        """The reply to one command, both without cookie and line end. Raises nothing for any bytes.

        A repeated command (same cookie, sender and text within 35 s) gets its first reply and is not executed again.
        """
        self.received += 1
        now = self.clock()
        key = (peer_ip, cookie, bytes(body)) if cookie is not None else None
        known = self._answered.get(key, now) if key is not None else None
        if known is not None:
            self.duplicates += 1
            return known
        try:
            reply = self._run(body, peer_ip)
            failed = False
        except Refusal as refusal:
            reply, failed = refusal.reply, True
        except Exception:
            log.exception("command %r failed", body[:200])
            reply, failed = b"E5", True
        if failed:
            self.failed += 1
        else:
            self.succeeded += 1
        if key is not None:
            self._answered.keep(key, reply, now)
        return reply

    def _run(self, body: bytes, peer_ip: str | None) -> bytes:
        if len(body) > _MAX_COMMAND:
            raise Refusal(5)
        command = self._read(body)
        verb = command.verb
        if verb == "V":
            return b"%d" % PROTOCOL_VERSION
        if verb == "VF":
            return b"1" if self.supports(command.extra[0]) else b"0"
        if verb in ("U", "L"):
            return self._offer_answer(command, peer_ip)
        if verb == "D":
            return self._delete(command)
        if verb == "Q":
            return self._query(command)
        if verb == "I":
            return self._info(command)
        if verb == "G":
            return self._statistics(command)
        if verb == "X":
            for session in self.table.clear():
                self.media.removed(session)
            return b"0"
        return self._unsupported(command)

    def _read(self, body: bytes) -> Command:
        """Count the words and read the command. Raises Refusal with rtpproxy's error number."""
        words = body.split()
        if not words:
            raise Refusal(5)
        main = words[: words.index(b"&&")] if b"&&" in words else words
        if not main:
            raise Refusal(5)
        text = main[0].decode("latin-1")
        verb = "VF" if text[:2].upper() == "VF" else text[0].upper()
        if verb not in _SHAPES:
            raise Refusal(0)
        fewest, most, modifiers, subcommands = _SHAPES[verb]
        if not fewest <= len(main) <= most:
            raise Refusal(1)
        if len(text) > len(verb) and not modifiers:
            raise Refusal(2)
        if len(main) < len(words) and not subcommands:
            raise Refusal(3)
        try:
            return parse_command(body)
        except CodecError as error:
            log.info("command refused: %s", error)
            raise Refusal(next((code for what, code in _CODEC_ERRORS if error.what.startswith(what)), 5)) from None

    def supports(self, date: str) -> bool:
        """Whether VF with that date is answered with 1."""
        number = int(date) if date.isascii() and date.isdigit() else 0
        return number in SUPPORTED or (number == cap.NOTIFY and self.media.can_notify())

    # -- U and L --------------------------------------------------------------------------------------

    def _offer_answer(self, command: Command, peer_ip: str | None) -> bytes:
        offer = self._judge(command)
        steps = self._subcommands(command)
        found = self._find(command)
        if found is None and command.verb == "L":
            raise _unknown_session("L")
        if command.verb == "U" and command.notify_socket is not None and not self.media.can_notify():
            raise Refusal(75)
        now = self.clock()
        if found is None:
            session, index = self._create(offer, now), TO_CALLEE
        else:
            session, leg = found
            index = leg if command.verb == "U" else 1 - leg
            self._renew(session, index, offer, now)
        if command.verb == "U":
            session.notify = self._notify_target(command, peer_ip)
        reply = self._apply(session, index, offer)
        results = self._after(steps, session, 1 - index, now)
        self.media.changed(session)
        return reply + results

    def _judge(self, command: Command) -> _Offer:
        """Check modifiers and address of a U or L. Raises Refusal."""
        flags = command.flags
        bridging = len(self.addresses) > 1
        addresses = [self.addresses[0], self.addresses[0]]
        for n, letter in enumerate(flags.directions):
            if not bridging or n > 1:
                raise Refusal(11 if letter == "E" else 12)
            # The first letter is the side of the sender, the second that of the address returned (facts section 6).
            addresses[TO_CALLER if n == 0 else TO_CALLEE] = self.addresses[1 if letter == "E" else 0]
        if flags.unknown or flags.ttl == 0 or (flags.ttl or 0) > _MAX_TTL:
            raise Refusal(35)
        if flags.resize is not None and not 0 < flags.resize < 1000:
            raise Refusal(13)
        local = None
        if flags.local_address is not None:
            local = str(Endpoint.of(flags.local_address, 0).ip)
            if not self.media.can_bind(local):
                raise Refusal(72)
        elif flags.remote_address is not None:
            local = self.media.local_address_towards(flags.remote_address)
            if local is None:
                raise Refusal(32)
        elif not flags.directions and (":" in addresses[0]) != flags.ipv6:
            local = next((a for a in self.addresses if (":" in a) == flags.ipv6), None)
            if local is None:
                raise Refusal(36)
        signalled = command.endpoint
        if command.address is not None and signalled is None and not command.on_hold:
            # rtpproxy takes what is too short to be an address for "none given".
            if len(command.address) >= (2 if flags.ipv6 else 7):
                raise Refusal(37)
        if signalled is not None and (":" in command.address) != flags.ipv6:
            raise Refusal(37)
        if signalled is not None and signalled.port == 0:
            signalled = None
        asymmetric = flags.asymmetric or (self.asymmetric and not flags.symmetric)
        return _Offer(command, (addresses[0], addresses[1]), local, len(flags.directions), signalled, asymmetric)

    def _find(self, command: Command) -> tuple[Session, int] | None:
        to_tag = None if command.to_tag is None else join_tag(command.to_tag, command.to_media)
        return self.table.find(command.call_id, join_tag(command.from_tag, command.from_media), to_tag)

    def _create(self, offer: _Offer, now: float) -> Session:
        command = offer.command
        addresses = offer.addresses if offer.local is None else (offer.local, offer.local)
        weak = command.flags.weak
        session = Session(
            command.call_id, join_tag(command.from_tag, command.from_media), (Leg(addresses[0], weak=weak), Leg(addresses[1])),
            ttl=self.ttl, setup_ttl=self.setup_ttl, touched=now, strong=not weak,
        )
        self._open(session, TO_CALLEE, 72)
        self.table.add(session)
        self.media.created(session)
        return session

    def _open(self, session: Session, index: int, code: int) -> None:
        try:
            self.media.open_leg(session, index)
        except (PortsExhausted, AddressUnusable) as error:
            limits.count("ports_exhausted")
            log.error("%s: no port: %s", session.call_id, error)
            raise Refusal(code) from None

    def _renew(self, session: Session, index: int, offer: _Offer, now: float) -> None:
        """A U or L on a known session, answered with the port of leg `index`: open it, or replace it on modifier N."""
        leg = session.legs[index]
        flags = offer.command.flags
        if leg.port == 0 or flags.new_port:
            before = leg.address
            if offer.local is not None:
                leg.address = offer.local
            elif flags.new_port and offer.letters == 2:
                leg.address = offer.addresses[TO_CALLEE]
            try:
                self._open(session, index, 71)
            except Refusal:
                leg.address = before
                raise
        if not session.complete and index == TO_CALLER:
            session.complete = True
        if flags.weak:
            leg.weak = True
        elif offer.command.verb == "U":
            session.strong = True
        session.touched = now

    def _apply(self, session: Session, index: int, offer: _Offer) -> bytes:
        """What the command says about its party goes to the leg opposite the port that it is answered with."""
        command = offer.command
        party = session.legs[1 - index]
        if offer.signalled is not None:
            party.signalled = offer.signalled
            party.on_hold = False
        elif command.on_hold:
            party.on_hold = True
        party.asymmetric = offer.asymmetric
        party.codecs = command.flags.codecs
        if command.flags.resize is not None:
            log.warning("%s: resizing to %d ms was asked for and is not done", session.call_id, command.flags.resize)
        if command.flags.ttl is not None:
            session.set_ttl(command.flags.ttl, self.clock())
        self.media.leg_signalled(session, 1 - index)
        leg = session.legs[index]
        return f"{leg.port} {leg.address}{' 6' if ':' in leg.address else ''}".encode()

    def _notify_target(self, command: Command, peer_ip: str | None) -> tuple[str, str, str | None] | None:
        if command.notify_socket is None:
            return None
        if command.notify_tag is None or command.notify_socket.partition(":")[0] not in ("tcp", "unix"):
            log.warning("%s: invalid notify socket %s: no time-out notice", command.call_id, command.notify_socket)
            return None
        return command.notify_socket, command.notify_tag, peer_ip

    # -- sub-commands ---------------------------------------------------------------------------------

    def _subcommands(self, command: Command) -> list[tuple[str, object]]:
        """Read what follows &&: (kind, argument) each. Raises Refusal(3) for what cannot be."""
        steps: list[tuple[str, object]] = []
        for raw in command.subcommands:
            words = raw.decode("latin-1").split()
            head, rest = words[0], words[1:]
            letter = head[0].upper()
            if letter == "S" and len(head) <= 2 and len(rest) == 1:
                match = _SET.match(rest[0])
                value = int(match.group(2)) if match else 0
                if not match or not 0 < value <= (255 if match.group(1) == "tos" else _MAX_TTL):
                    raise Refusal(3)
                reverse = head[1:].upper() == "R"
                steps.append((match.group(1), (value, reverse)))
            elif letter == "T" and command.verb in ("U", "L") and not rest and head[1:].isascii() and head[1:].isdigit():
                if not 0 < int(head[1:]) <= _MAX_TTL:
                    raise Refusal(3)
                steps.append(("ttl", (int(head[1:]), False)))
            elif letter == "D" and not rest and head[1:].upper() in ("", "W"):
                steps.append(("delete", head[1:] != ""))
            elif letter == "L" and command.verb == "U" and command.to_tag is not None and len(rest) == 2:
                steps.append(("lookup", self._sub_offer(command, raw)))
            elif command.verb in ("U", "L") and (_MODULE.match(head) or letter == "C"):
                steps.append(("unsupported", head))
            else:
                raise Refusal(3)
        return steps

    def _sub_offer(self, command: Command, raw: bytes) -> _Offer:
        words = raw.split()
        tags = [join_tag(command.from_tag, command.from_media), join_tag(command.to_tag, command.to_media)]
        line = [words[0], command.call_id.encode("latin-1"), words[1], words[2], *(tag.encode("latin-1") for tag in tags)]
        try:
            return self._judge(parse_command(b" ".join(line)))
        except (CodecError, Refusal):
            raise Refusal(3) from None

    def _after(self, steps: list[tuple[str, object]], session: Session, party: int, now: float) -> bytes:
        """Run the sub-commands in order; `party` is the leg the command spoke of. Their part of the reply.

        Successes without words of their own are left out at the end of the reply; the first failure ends the rest.
        """
        reply = b""
        silent = 0
        gone: list[Session] = []
        for kind, argument in steps:
            answer = b""
            if session in gone:
                answer = b"-1"
            elif kind == "ttl":
                session.set_ttl(argument[0], now)
            elif kind == "tos":
                if not self.media.set_tos(session, 1 - party if argument[1] else party, argument[0]):
                    answer = b"-1"
            elif kind == "delete":
                done = self._drop(session.call_id, session.tag, None, bool(argument))
                gone += done.removed
                answer = b"" if done.matched else b"-1"
            elif kind == "lookup":
                try:
                    self._renew(session, party, argument, now)
                    answer = self._apply(session, party, argument)
                    party = 1 - party
                except Refusal:
                    answer = b"-1"
            else:
                log.warning("%s: sub-command %s is not supported", session.call_id, argument)
                answer = b"-1"
            if answer:
                reply += b" && 0" * silent + b" && " + answer
                silent = 0
                if answer == b"-1":
                    break
            else:
                silent += 1
        return reply

    # -- the others -----------------------------------------------------------------------------------

    def _delete(self, command: Command) -> bytes:
        if command.modifiers.upper().replace("W", ""):
            raise Refusal(8)
        to_tag = None if command.to_tag is None else join_tag(command.to_tag, command.to_media)
        from_tag = join_tag(command.from_tag, command.from_media)
        if not self._drop(command.call_id, from_tag, to_tag, command.flags.weak).matched:
            raise _unknown_session("D")
        return b"0"

    def _drop(self, call_id: str, from_tag: str, to_tag: str | None, weak: bool) -> Deletion:
        done = self.table.delete(call_id, from_tag, to_tag, weak=weak)
        for session in done.removed:
            self.media.removed(session)
        for session in done.kept:
            self.media.changed(session)
        return done

    def _query(self, command: Command) -> bytes:
        steps = self._subcommands(command)
        found = self._find(command)
        if found is None:
            raise _unknown_session("Q")
        if command.modifiers.upper().replace("V", ""):
            raise Refusal(19)
        session, leg = found
        counts = self.media.counts(session)
        first, other = ("from_caller", "from_callee") if leg == TO_CALLEE else ("from_callee", "from_caller")
        now = self.clock()
        values = {
            "ttl": self._ttl_left(session, now), "npkts_ina": counts[first], "npkts_ino": counts[other],
            "nrelayed": counts["relayed"], "ndropped": counts["dropped"],
        }
        names = command.extra or QUERY_COUNTERS
        reply = self._values(names, values, bool(command.modifiers), _QUERY_UNKNOWN)
        reply += self._after(steps, session, 1 - leg, now)
        if steps:
            self.media.changed(session)
        return reply

    def _ttl_left(self, session: Session, now: float) -> int:
        left = session.left(now, self.media.last_heard(session))
        return max(0, int(left) + (left > int(left)))

    @staticmethod
    def _values(names: tuple[str, ...], values: dict[str, int | float], verbose: bool, unknown: int) -> bytes:
        words = []
        for name in names:
            if name not in values:
                raise Refusal(unknown)
            text = f"{values[name]:.6f}" if isinstance(values[name], float) else str(values[name])
            words.append(f"{name}={text}" if verbose else text)
        return " ".join(words).encode()

    def _info(self, command: Command) -> bytes:
        letters = command.modifiers.upper()
        if letters.replace("B", "").replace("L", ""):
            raise Refusal(18)
        totals = self.media.totals()
        lines = [
            f"sessions created: {totals['nsess_created']}", f"active sessions: {len(self.table)}",
            f"active streams: {2 * len(self.table)}", f"packets received: {totals['npkts_rcvd']}",
            f"packets transmitted: {totals['npkts_relayed']}",
        ]
        if "L" in letters:
            lines.append(f"average load: {self.media.load():.6f}")
        return "\n".join(lines).encode()

    def _statistics(self, command: Command) -> bytes:
        if command.modifiers.upper().replace("V", ""):
            raise Refusal(9)
        values = {
            **self.media.totals(), "npkts_played": 0, "ncmds_rcvd": self.received, "ncmds_rcvd_ndups": self.duplicates,
            "ncmds_succd": self.succeeded, "ncmds_errs": self.failed, "ncmds_repld": self.succeeded + self.failed,
        }
        return self._values(command.extra, values, bool(command.modifiers), _STATS_UNKNOWN)

    def _unsupported(self, command: Command) -> bytes:
        """P, R and C are refused; S and N stop what never runs here, so they succeed."""
        if self._find(command) is None:
            raise _unknown_session(command.verb)
        if command.verb in ("S", "N"):
            return b"0"
        log.warning("%s: command %s is not supported by the built-in relay", command.call_id, command.verb)
        raise Refusal(_PLAY_REFUSED if command.verb == "P" else _COPY_REFUSED)
