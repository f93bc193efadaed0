"""Sockets at the relay addresses of participants, and the way of RTCP through them.

What arrives here is what the data plane leaves to the host: RTCP, STUN, and packets before their source is learned. Reports of a
sender go on to all who get its medium, requests (NACK, PLI, FIR) to the one sender they name, and receivers' reports and
estimates to shunt.conference.control.adaptation; of two participants all RTCP goes on as it is. Connectivity checks are answered, RTP is dropped. While somebody holds a port, nobody else gets it, and senders get no ICMP errors. Where the
relay address is not of this host there is nothing to hold: then a switch's CPU port brings what arrives there, and takes what goes out, or RTCP is not heard.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable

from shunt.conference.control.adaptation import OWN_SSRC, Adaptation
from shunt.conference.control import ice
from shunt.conference.control.model import KINDS, TOP, Book, Conference, Leg, Participant, medium_of
from shunt.conference.feedback import KeyFrames
from shunt.conference.rtcp import TO_RECEIVERS, Kind, Route, build_pli, classify, to_senders, walk
from shunt.conference.rtp import MediaError, is_rtcp
from shunt.net import Endpoint, FiveTuple

log = logging.getLogger(__name__)

_AT_ONCE = 64
_AGAIN_S = 1.0
_MOST = 2048
_KEY_FRAME_S = 0.5
_SR_BARE = bytes((0x80, 200, 0, 6))  # an SR without report blocks: those are about the sender's own receptions


class Sockets:
    """RTP and RTCP sockets of all participants."""

    def __init__(self, book: Book, adaptation: Adaptation, send: Callable[[FiveTuple, bytes], None] | None = None) -> None:
        """send: sends a datagram where the relay addresses are a switch's, and no sockets are held; take what arrives there to arrived()."""
        self._send_by_switch = send
        self.counts = {"rtcp_taken": 0, "rtcp_refused": 0, "stun_answered": 0, "stun_refused": 0}
        self.on_check: Callable[[Conference, Participant, str, Endpoint, bool], None] = lambda conference, participant, kind, source, nominated: None
        self._book, self._adaptation = book, adaptation
        self._open: dict[Endpoint, socket.socket] = {}
        self._elsewhere = False
        self._key_frames: dict[int, KeyFrames] = {}  # by relay port

    def open(self, participant: Participant) -> None:
        """Hold a participant's ports that are not held yet. One that somebody else has is said: its media works, but errors go back to its senders."""
        if self._send_by_switch is not None:
            return
        for leg in participant.legs.values():
            for endpoint in (leg.relay, leg.relay.next_port()):
                if endpoint not in self._open:
                    self._hold(endpoint)

    def _hold_again(self, endpoint: Endpoint) -> None:
        """Try once more for a port that somebody else had: an agent that hangs, and whose place this one has taken."""
        if endpoint not in self._open and self._book.at(endpoint._replace(port=endpoint.port & ~1)) is not None:
            self._hold(endpoint, again=True)

    def _hold(self, endpoint: Endpoint, *, again: bool = False) -> None:
        made = socket.socket(socket.AF_INET if endpoint.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
        try:
            made.setblocking(False)
            made.bind((endpoint.ip, endpoint.port))
        except OSError as error:
            made.close()
            if error.errno == errno.EADDRINUSE:
                asyncio.get_running_loop().call_later(_AGAIN_S, self._hold_again, endpoint)
            if not again and (error.errno != errno.EADDRNOTAVAIL or not self._elsewhere):
                log.warning("conference address %s is not held: %s", endpoint, error.strerror or error)
            self._elsewhere = self._elsewhere or error.errno == errno.EADDRNOTAVAIL
            return
        self._open[endpoint] = made
        asyncio.get_running_loop().add_reader(made, self._read, made, endpoint)

    def close(self, participant: Participant) -> None:
        """Let a participant's ports go."""
        for leg in participant.legs.values():
            self._key_frames.pop(leg.relay.port, None)
            for endpoint in (leg.relay, leg.relay.next_port()):
                self._let_go(endpoint)

    def close_all(self) -> None:
        for endpoint in list(self._open):
            self._let_go(endpoint)

    def _let_go(self, endpoint: Endpoint) -> None:
        made = self._open.pop(endpoint, None)
        if made is not None:
            asyncio.get_running_loop().remove_reader(made)
            made.close()

    # -- RTCP ----------------------------------------------------------------------------------------------------

    def _read(self, sock: socket.socket, here: Endpoint) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, source = sock.recvfrom(_MOST)
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error of something sent from here
            self.arrived(here, Endpoint.of(source[0], source[1]), data)

    def arrived(self, here: Endpoint, source: Endpoint, data: bytes) -> bool:
        """Take what came to a relay address, if it is RTCP or STUN; whether it was."""
        if len(data) >= 8 and is_rtcp(data):
            self.take(here, source, data)
        elif ice.is_stun(data):
            self._check(here, source, data)
        else:
            return False
        return True

    def _check(self, here: Endpoint, source: Endpoint, data: bytes) -> None:
        """A connectivity check of a participant's peer is answered from where it arrived."""
        relay = here._replace(port=here.port & ~1)
        place = self._book.at(relay)
        found = ice.check(data, source, place[1].ice) if place is not None and place[1].ice is not None else None
        if place is None or found is None:
            self.counts["stun_refused"] += 1
            return
        self.counts["stun_answered"] += 1
        self._out(FiveTuple(here, source), found.answer)
        self.on_check(*place, source, found.nominated and here == relay)

    def take(self, here: Endpoint, source: Endpoint, data: bytes) -> None:
        """RTCP that arrived at a relay address. From whoever does not send the leg's media it is not taken."""
        relay = here._replace(port=here.port & ~1)
        place = self._book.at(relay)
        if place is None:
            return
        conference, sender, kind = place
        leg, medium = sender.legs[kind], medium_of(kind)
        if leg.latch.learned is None or source.addr != leg.latch.learned.addr:
            self.counts["rtcp_refused"] += 1
            return
        try:
            kinds = classify(data)
            leg.rtcp, leg.muxed = source, here == relay
            others = {name: one for name, one in conference.participants.items() if one is not sender and medium in one.legs and one.legs[medium].latch.learned is not None}
            present = sum(one.present for one in conference.participants.values())
            if present <= 2 and not conference.targets:
                for other in others.values():
                    self._send(other.leg_for(sender.name, medium), data)
            else:
                self._share(conference, sender, kind, others, kinds, data)
            self.counts["rtcp_taken"] += 1
        except MediaError as error:
            self.counts["rtcp_refused"] += 1
            log.debug("conference %s: RTCP of %s: %s", conference.name, sender.name, error)

    def _share(self, conference: Conference, sender: Participant, leg: str, others: dict[str, Participant], kinds: Kind, data: bytes) -> None:
        kind = medium_of(leg)
        conflicts = conference.conflicts()
        if kinds & (Kind.SR | Kind.BYE):
            parts = [
                _SR_BARE + data[item.where][4:28] if item.kind is Kind.SR else data[item.where] for item in walk(data)
                if item.kind in TO_RECEIVERS and (sender.name, kind, int.from_bytes(data[item.where][4:8], "big")) not in conflicts
            ]  # fmt: skip
            for name, other in others.items():
                if KINDS.index(kind) <= conference.qualities.get((sender.name, name), TOP):
                    if parts:
                        self._send(other.leg_for(sender.name, kind), b"".join(parts))
        wanted = {name: other.legs[kind] for name, other in others.items() if KINDS.index(kind) <= conference.qualities.get((name, sender.name), TOP)}
        streams = {ssrc: name for name, other in wanted.items() for ssrc in other.ssrcs if (name, kind, ssrc) not in conflicts and sender.leg_for(name, kind) is sender.legs[leg]}
        for name, report in self._adaptation.heard(conference.name, sender.name, kind, streams, data, transport=leg).items():
            self._send(wanted[name], report)
        routes = {ssrc: Route(name, ssrc) for ssrc, name in streams.items()}

        def original(ssrc: int, number: int) -> int | None:
            """Which packet has which of a receiver's own numbers is not known here, so it gets no repair, but key frames."""
            return None if conference.renumbered(streams[ssrc], sender.name, kind) else number

        for name, request in to_senders(data, routes, int.from_bytes(data[4:8], "big"), original).items():
            self._send(wanted[name], request)

    def _send(self, leg: Leg | None, data: bytes) -> None:
        """To where its RTCP comes from, or by custom ought to (RFC 3550 section 11)."""
        if leg is None or leg.latch.learned is None:
            return
        muxed = leg.muxed
        to = leg.latch.learned if muxed else leg.rtcp or leg.latch.learned.next_port()
        if to.port <= 65535 and to.addr == leg.latch.learned.addr:
            self._out(FiveTuple(leg.relay if muxed else leg.relay.next_port(), to), data)

    def _out(self, flow: FiveTuple, data: bytes) -> None:
        """Send from a relay address."""
        if self._send_by_switch is not None:
            self._send_by_switch(flow, data)
        elif (sock := self._open.get(flow.src)) is not None:
            try:
                sock.sendto(data, (flow.dst.ip, flow.dst.port))
            except OSError as error:
                log.debug("RTCP or STUN %s: %s", flow, error)

    def want_key_frame(self, leg: Leg) -> None:
        """Somebody gets this leg's pictures anew: its sender is asked for a key frame, at most every half second."""
        frames = self._key_frames.setdefault(leg.relay.port, KeyFrames(_KEY_FRAME_S))
        if frames.wanted(time.monotonic()):
            self._ask(leg)
        else:
            asyncio.get_running_loop().call_later(_KEY_FRAME_S, self._ask_late, leg, frames)

    def _ask_late(self, leg: Leg, frames: KeyFrames) -> None:
        if self._key_frames.get(leg.relay.port) is frames and frames.due(time.monotonic()):
            self._ask(leg)

    def _ask(self, leg: Leg) -> None:
        for ssrc in leg.ssrcs:
            self._send(leg, build_pli(OWN_SSRC, ssrc))
