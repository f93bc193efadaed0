"""The call book: applies control commands and their replies to calls, and finds the leg a packet belongs to. No I/O."""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from shunt.calls import reasons
from shunt.calls.model import SIDES, Call, Component, Leg, MediaLine, Side, new_line
from shunt.calls.parties import Parties
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint
from shunt.rtpproxy.codec import Command, keepalive_modifiers

log = logging.getLogger(__name__)

_MAX_TOMBSTONES = 10_000
_MOST_SIGHTED = 8  # addresses of one party
_MAX_SIGHTED_CALLS = 50_000

# Commands that make the relay itself work on the media, and the reason each gives.
_BLOCKING_VERBS = {"P": reasons.PLAYBACK, "R": reasons.RECORDING, "C": reasons.COPY}


@dataclass(frozen=True, slots=True)
class Change:
    """What a U or L that has not reached the relay yet means for a known media line.

    side: the party it describes; moved: the signalled address differs (so the old source is suspect);
    changed: anything at all differs, so the entries have to be out before the relay hears of it.
    """

    line: MediaLine
    side: Side
    moved: bool
    changed: bool


@dataclass(frozen=True, slots=True)
class Slot:
    """Whose packets arrive at a relay port."""

    line: MediaLine
    side: Side
    component: Component


def _signalled(command: Command) -> Endpoint | None:
    """The address argument of a U or L, the null address of a hold included; None for the `-` of keep-alives."""
    if command.on_hold:
        return Endpoint(bytes(4), command.port or 0)
    return command.endpoint


class CallBook:
    """All calls. One instance, one owner; everything else asks it or gives it commands."""

    def __init__(self, latch_policy: LatchPolicy, *, symmetric_relays: Collection[str] = ()) -> None:
        """symmetric_relays: the relays that learn addresses on bridged legs (letters E, I) even without modifier S."""
        self._policy = latch_policy
        self._symmetric_relays = frozenset(symmetric_relays)
        self._calls: dict[str, Call] = {}
        self._slots: dict[Endpoint, Slot] = {}
        self._branches: defaultdict[str, set[str]] = defaultdict(set)
        self._sightings: OrderedDict[str, dict[str, set[bytes]]] = OrderedDict()
        self.tombstones: OrderedDict[str, Call] = OrderedDict()
        self.parties = Parties()

    # -- finding ----------------------------------------------------------------------------------

    def calls(self) -> list[Call]:
        return list(self._calls.values())

    @property
    def count(self) -> int:
        """How many calls run."""
        return len(self._calls)

    def lines(self) -> list[MediaLine]:
        return [line for call in self._calls.values() for line in call.lines]

    def call(self, call_id: str) -> Call | None:
        """A call that runs, or one that ended lately."""
        return self._calls.get(call_id) or self.tombstones.get(call_id)

    def slot(self, relay_port: Endpoint) -> Slot | None:
        return self._slots.get(relay_port)

    def relay_of(self, call_id: str) -> str | None:
        """The name of the relay that a call sticks to."""
        call = self._calls.get(call_id)
        return call.relay if call else None

    def find(self, command: Command) -> tuple[MediaLine, bool] | None:
        """The media line a U, L or Q is about, and whether its tags are swapped (facts: the session tag comes second)."""
        call = self._calls.get(command.call_id or "")
        if call is None:
            return None
        for line in call.lines:
            if line.tag == command.from_tag and line.media == command.from_media:
                return line, False
        for line in call.lines:
            if line.tag == command.to_tag and command.to_media in (line.media, None):
                if command.to_media is None and command.from_media != line.media:
                    continue
                return line, True
        return None

    def sibling_address(self, command: Command) -> bytes | None:
        """The relay address that the call's other media lines use towards the party that a U or L does not describe."""
        call = self._calls.get(command.call_id or "")
        for line in call.lines if call else ():
            side = self._described(command, swapped=line.tag != command.from_tag).other
            if line.legs[side].relay is not None:
                return line.legs[side].relay.addr
        return None

    # -- U and L ----------------------------------------------------------------------------------

    def foresee(self, command: Command) -> Change | None:
        """Before a U or L goes to the relay: which known line it touches and whether it changes anything."""
        found = self.find(command)
        if found is None:
            return None
        line, swapped = found
        side = self._described(command, swapped)
        leg = line.legs[side]
        address = _signalled(command)
        if address is None:
            return Change(line, side, moved=False, changed=False)
        moved = leg.signalled is not None and leg.signalled != address
        fresh = leg.signalled is None
        return Change(line, side, moved, changed=moved or (not fresh and leg.modifiers != command.modifiers))

    def described(self, command: Command) -> str | None:
        """Whose media a U or L describes, "caller" or "callee"; None where that is not known, and for other commands."""
        if command.verb not in ("U", "L"):
            return None
        found = self.find(command)
        return None if found is None else self._described(command, found[1]).value

    @staticmethod
    def _described(command: Command, swapped: bool) -> Side:
        caller = (command.verb == "U") != swapped
        return Side.CALLER if caller else Side.CALLEE

    def offer_answer(self, command: Command, relay: str, port: Endpoint, now: float, wall: float, peer_ip: str | None) -> MediaLine | None:
        """A U or L succeeded with relay address `port`. Returns the media line; None for an L that nothing belongs to."""
        found = self.find(command)
        if found is None:
            if command.verb != "U" or command.call_id is None or command.from_tag is None:
                return None
            line, swapped = self._create(command, relay, now, wall), False
        else:
            line, swapped = found
        side = self._described(command, swapped)
        leg = line.legs[side]
        self._place(line, side.other, port)
        line.last_activity = now
        tag = command.from_tag if swapped else command.to_tag
        if tag:
            line.other_tag = tag
            self._vouch(line, side.other)
        if command.notify_socket and command.notify_tag:
            line.notify_socket, line.notify_tag, line.peer_ip = command.notify_socket, command.notify_tag, peer_ip
        elif command.verb == "U" and found is not None and _signalled(command) is not None:
            # A re-offer without notify arguments cancels the notification (facts section 9).
            line.notify_socket = line.notify_tag = None
        address = _signalled(command)
        if address is not None:
            leg.name(address)
            leg.modifiers = command.modifiers
            leg.keepalive = keepalive_modifiers(command.flags)
            leg.asymmetric = self._is_asymmetric(command, relay)
            for latch in (leg.rtp, leg.rtcp):
                latch.trusted = {address.addr} | self._sighted(line, side)
            self.parties.add(leg, leg.rtp.trusted)
            self.parties.changed(leg)
        if command.flags.resize:
            line.blocks.add(reasons.RESIZE)
        else:
            line.blocks.discard(reasons.RESIZE)
        if any(sub[:1] in b"Mm" for sub in command.subcommands):
            line.blocks.add(reasons.DTMF)
        return line

    def _is_asymmetric(self, command: Command, relay: str) -> bool:
        flags = command.flags
        bridged = bool(flags.directions) and not flags.symmetric
        return flags.asymmetric or (bridged and relay not in self._symmetric_relays)

    def _create(self, command: Command, relay: str, now: float, wall: float) -> MediaLine:
        call = self._calls.get(command.call_id)
        if call is None:
            call = Call(command.call_id, relay, now, wall)
            self._enter(call)
            self.tombstones.pop(command.call_id, None)
        line = new_line(call, command.from_tag, command.from_media, now, self._policy)
        call.lines.append(line)
        return line

    def _enter(self, call: Call) -> None:
        self._calls[call.call_id] = call
        stem, dash, branch = call.call_id.rpartition("-")
        if dash and branch.isdigit():
            self._branches[stem].add(call.call_id)

    def _leave(self, call: Call) -> None:
        if self._calls.get(call.call_id) is not call:
            return
        del self._calls[call.call_id]
        stem = call.call_id.rpartition("-")[0]
        if stem in self._branches:
            self._branches[stem].discard(call.call_id)
            if not self._branches[stem]:
                del self._branches[stem]

    def _place(self, line: MediaLine, side: Side, relay: Endpoint) -> None:
        leg = line.legs[side]
        if leg.relay == relay:
            return
        self._unindex(line, side)
        leg.relay = relay
        leg.rtp.forget(0.0, quarantine=False)
        leg.rtcp.forget(0.0, quarantine=False)
        leg.latched_at = leg.first_heard = None
        leg.last_heard.clear()
        self._slots[relay] = Slot(line, side, Component.RTP)
        self._slots[relay.next_port()] = Slot(line, side, Component.RTCP)
        self.parties.changed(leg)

    def _unindex(self, line: MediaLine, side: Side) -> None:
        old = line.legs[side].relay
        if old is None:
            return
        for port in (old, old.next_port()):
            slot = self._slots.get(port)
            # The relay may have given the port to another session already: that slot is not ours to remove.
            if slot is not None and slot.line is line:
                del self._slots[port]

    def put_in_order(self) -> None:
        """The order in which calls began, after calls were restored in any."""
        self._calls = dict(sorted(self._calls.items(), key=lambda item: item[1].created_wall))

    def restore(self, call: Call) -> None:
        """Take back a call from the journal, with its legs' relay ports."""
        self._enter(call)
        for line in call.lines:
            for side, leg in line.legs.items():
                for latch in (leg.rtp, leg.rtcp):
                    self.parties.add(leg, latch.trusted if latch.learned is None else {*latch.trusted, latch.learned.addr})
                if leg.relay is not None:
                    self._slots[leg.relay] = Slot(line, side, Component.RTP)
                    self._slots[leg.relay.next_port()] = Slot(line, side, Component.RTCP)

    # -- the end ----------------------------------------------------------------------------------

    def matching(self, command: Command) -> list[MediaLine]:
        """The media lines a D, P, S, R or C is about: by tags in either order, all media unless an index is given."""
        call = self._calls.get(command.call_id or "")
        if call is None:
            return []
        def fits(line: MediaLine) -> bool:
            for tag, media in ((command.from_tag, command.from_media), (command.to_tag, command.to_media)):
                if tag == line.tag and media in (None, line.media):
                    return True
            return False
        return [line for line in call.lines if fits(line)]

    def of_dialog(self, call_id: str, from_tag: str | None, to_tag: str | None) -> list[MediaLine]:
        """The media lines of a SIP dialog (rtp_relay appends the branch to the call-id on the control channel).

        A tag that contradicts a known one leaves the line alone, so that a BYE of one fork does not end another.
        """
        tags = {t for t in (from_tag, to_tag) if t}
        return [line for line in self._running(call_id) if line.tag in tags and (line.other_tag is None or len(tags) < 2 or line.other_tag in tags)]

    def _running(self, call_id: str) -> list[MediaLine]:
        calls = [self._calls[call_id]] if call_id in self._calls else [self._calls[c] for c in self._branches.get(call_id, ())]
        return [line for call in calls for line in call.lines]

    def release(self, line: MediaLine, reason: str) -> None:
        """The line is over: its ports no longer mean anything to us; it stays readable as a tombstone for a while."""
        line.released = reason
        for side in SIDES:
            self._unindex(line, side)
            self.parties.leave(line.legs[side])
        call = line.call
        if all(other.released for other in call.lines):
            self._leave(call)
            self.tombstones[call.call_id] = call
            self.tombstones.move_to_end(call.call_id)
            while len(self.tombstones) > _MAX_TOMBSTONES:
                # A call and its lines name each other: let go of so, their memory waits for no garbage collection.
                self.tombstones.popitem(last=False)[1].lines.clear()

    def block(self, command: Command) -> list[MediaLine]:
        """A P, R or C: the relay is going to work on the media of these lines, so they have to stay on it."""
        lines = self.matching(command)
        reason = _BLOCKING_VERBS.get(command.verb)
        if reason is not None:
            for line in lines:
                line.blocks.add(reason)
        return lines

    def unblock(self, command: Command) -> list[MediaLine]:
        """An S ends playback."""
        lines = self.matching(command)
        for line in lines:
            line.blocks.discard(reasons.PLAYBACK)
        return lines

    # -- what SIP shows ---------------------------------------------------------------------------

    def sight(self, call_id: str, tag: str, address: bytes) -> None:
        """The SIP messages of party `tag` come from this address: that vouches for it as a media source too."""
        known = self._sightings.setdefault(call_id, {}).setdefault(tag, set())
        self._sightings.move_to_end(call_id)
        if address not in known and len(known) >= _MOST_SIGHTED:
            return
        known.add(address)
        while len(self._sightings) > _MAX_SIGHTED_CALLS:
            self._sightings.popitem(last=False)
        for line in self.of_dialog(call_id, tag, None):
            side = Side.CALLER if line.tag == tag else Side.CALLEE
            line.legs[side].rtp.trusted.add(address)
            line.legs[side].rtcp.trusted.add(address)
            self.parties.add(line.legs[side], (address,))
        for line in self._running(call_id):
            if line.other_tag is None and line.tag != tag:  # he rings
                self.parties.add(line.legs[Side.CALLEE], (address,))

    def called(self, call_id: str, tag: str, source: bytes, destination: bytes) -> None:
        """An INVITE of party `tag` goes from here to there: who is called is there, and his media may overtake his answer.

        What comes from the party itself goes to the SIP server.
        """
        for line in self._running(call_id):
            if line.other_tag is None and line.tag == tag and source not in line.legs[Side.CALLER].addresses:
                self.parties.add(line.legs[Side.CALLEE], (destination,))

    def _vouch(self, line: MediaLine, side: Side) -> None:
        """What was seen of a party before its media line was known."""
        seen, leg = self._sighted(line, side), line.legs[side]
        leg.rtp.trusted |= seen
        leg.rtcp.trusted |= seen
        self.parties.add(leg, seen)

    def _sighted(self, line: MediaLine, side: Side) -> set[bytes]:
        tag = line.tag if side is Side.CALLER else line.other_tag
        return set(self._sightings.get(line.call.call_id, {}).get(tag or "", ()))

    def leg_of(self, slot: Slot) -> Leg:
        return slot.line.legs[slot.side]
