"""SIP dial-in: an INVITE to a conference's URI is answered with relay addresses of its own, a BYE leaves (RFC 4579's focus, its least part).

Packets are not transcoded and payload types not rewritten: who comes first settles each medium's format, and who cannot
take it gets 488. The SIP server stands in front: requests are taken from configured networks alone, and it authenticates.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

from aiosipua import ConnectionData, Dialog, DialogState, IncomingCall, MediaDescription, Origin, SdpMessage, SipRequest, SipResponse, SipUAS, UdpSipTransport, parse_uri, stringify_uri

from shunt import __version__
from shunt.conference.control.layers import Told, offered_layers
from shunt.conference.control.manager import Conferences
from shunt.conference.control.ice import make_credentials
from shunt.conference.control.model import Conference, ConferenceError, Leg, Participant, medium_of
from shunt.conference.packets import Layers
from shunt.config.values import IPNetwork, SocketAddress
from shunt.net import Endpoint

log = logging.getLogger(__name__)

_PICTURES = ("video", "screen")
_PROTOCOLS = ("RTP/AVP", "RTP/AVPF")
_DIRECTIONS = {"sendrecv": "sendrecv", "sendonly": "recvonly", "recvonly": "sendonly", "inactive": "inactive"}
_PHRASES = {404: "Not Found", 480: "Temporarily Unavailable", 488: "Not Acceptable Here", 503: "Service Unavailable"}
_T1, _T2 = 0.5, 4.0
_AGAIN_S = 0.1
_TRANSACTION_S = 32.0  # 64 T1: for as long a request may come again
_MOST_LEGS = 16  # of one medium of one call
_DIALOG = ("local_tag", "remote_tag", "local_uri", "remote_uri", "remote_target", "route_set", "local_cseq", "remote_cseq")
_UNWANTED = re.compile(r"[^A-Za-z0-9_.@+-]")


class _Transport(UdpSipTransport):
    """What aiosipua leaves out: Record-Route headers of an INVITE in its answers (RFC 3261 section 12.1.1), without which a proxy does not
    see the rest of the call; and server transactions, so that a request that comes again is not judged again (section 17.2)."""

    uas: SipUAS | None = None

    def __init__(self, local_addr: tuple[str, int]) -> None:
        super().__init__(local_addr)
        self._answers: OrderedDict[tuple[str, str], tuple[float, SipResponse]] = OrderedDict()  # by the topmost Via and the method

    def send_reply(self, response: SipResponse) -> None:
        cseq = response.cseq
        call = self.uas.get_call(response.call_id or "") if self.uas is not None else None
        if call is not None and cseq is not None and cseq.method == "INVITE" and 100 < response.status_code < 300 and not response.headers.get("record-route"):
            for route in call.invite.headers.get("record-route"):
                response.headers.append("Record-Route", route)
        if cseq is not None:
            now = time.monotonic()
            self._answers[response.headers.get("via")[0], cseq.method] = now, response
            while self._answers and next(iter(self._answers.values()))[0] < now - _TRANSACTION_S:
                self._answers.popitem(last=False)
        super().send_reply(response)

    def send(self, message: SipRequest | SipResponse, addr: tuple[str, int]) -> None:
        if self._udp_transport is not None:  # while another agent still holds the socket, nothing goes; what is not answered goes again
            super().send(message, addr)

    def repeat(self, request: SipRequest) -> bool:
        """Whether this request has been answered before; then the answer goes once more."""
        via = request.headers.get("via")
        answered = self._answers.get((via[0], request.method)) if via else None
        if answered is None:
            return False
        super().send_reply(answered[1])
        return True


class StandIn:
    """Answers in the place of a focus whose agent stands by: 503, so that the SIP server turns to the agent in charge."""

    def __init__(self, listen: SocketAddress, allow: Sequence[IPNetwork]) -> None:
        self._allow = tuple(allow)
        self._transport = UdpSipTransport((listen.host, listen.port))
        self._uas = SipUAS(self._transport, user_agent=f"shunt/{__version__}")

    async def start(self) -> None:
        """Listen, unless the agent in charge has this very socket, or its address."""
        try:
            await self._uas.start()
        except OSError as error:
            log.info("conference.sip %s: %s: the agent in charge has it", self._transport.local_addr, error.strerror or error)
            return
        self._transport.on_message = self._refuse

    def _refuse(self, message: SipRequest | SipResponse, addr: tuple[str, int]) -> None:
        if isinstance(message, SipRequest) and message.method != "ACK" and any(ipaddress.ip_address(addr[0]) in network for network in self._allow):
            self._uas._send_error(message, 503, "Another Agent Is In Charge")

    async def stop(self) -> None:
        await self._uas.stop()


class Focus:
    """A SIP user agent that conferences are dialled at."""

    def __init__(self, listen: SocketAddress, allow: Sequence[IPNetwork], conferences: Conferences) -> None:
        """allow: networks from which requests are taken; from elsewhere they are ignored."""
        self._allow = tuple(allow)
        self._conferences = conferences
        self._transport = _Transport((listen.host, listen.port))
        self._transport.uas = self._uas = SipUAS(self._transport, user_agent=f"shunt/{__version__}")
        self._uas.on_invite = self._invited
        self._uas.on_reinvite = self._invited_again
        self._uas.on_bye = lambda call, request: self._leave(call.call_id)
        self._uas.on_ack_timeout = lambda call: self._leave(call.call_id, "no-ack")
        self._calls: dict[tuple[str, str], IncomingCall] = {}  # by conference and participant
        self._seats: dict[str, tuple[str, str]] = {}  # by Call-ID
        self._addresses: dict[str, list[bytes]] = {}  # of the last offer, by Call-ID
        self._ufrags: dict[str, str] = {}
        self._byes: dict[str, asyncio.TimerHandle] = {}  # not answered yet, by Call-ID
        self._lines: dict[str, list[str | None]] = {}  # which medium each description of a call is
        self._answering: set[str] = set()  # Call-IDs of INVITEs that are about to be answered
        conferences.on_left = self._left

    async def start(self, *, patient: bool = False) -> None:
        """Listen, and go on with the calls of the book's participants. patient: another agent may not have let go of the socket yet, or of
        its address; it is waited for. Raises OSError, naming the socket."""
        for conference in self._conferences.book:
            for one in conference.participants.values():
                if one.dialog:
                    self._resume(conference.name, one)
        try:
            await self._uas.start()
        except OSError as error:
            host, port = self._transport.local_addr
            why = f"conference.sip {host} port {port}: {error.strerror or error}"
            if not patient or error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                raise OSError(error.errno, why) from error
            log.warning("%s; trying again until it can be had", why)
            self._conferences.spawn(self._start_later())
        else:
            self._check_senders()

    async def _start_later(self) -> None:
        while True:
            await asyncio.sleep(_AGAIN_S)
            try:
                await self._uas.start()
            except OSError:
                continue
            log.info("conference.sip: the socket is there")
            self._check_senders()
            return

    def _check_senders(self) -> None:
        """From now on, take requests from those alone who may send some, and each once."""
        inner = self._transport.on_message

        def checked(message: SipRequest | SipResponse, addr: tuple[str, int]) -> None:
            source = ipaddress.ip_address(addr[0])
            if inner is None or not any(source in network for network in self._allow):
                return
            if isinstance(message, SipResponse):
                self._answered(message)
            elif not (message.method == "INVITE" and message.call_id in self._answering) and not self._transport.repeat(message):
                inner(message, addr)

        self._transport.on_message = checked

    async def stop(self) -> None:
        """Listen no more; calls stay, and their media goes on."""
        for timer in self._byes.values():
            timer.cancel()
        await self._uas.stop()

    # -- over a restart ------------------------------------------------------------------------------------------

    def _keep(self, conference: Conference, participant: Participant, call: IncomingCall) -> None:
        """Write a call down with its participant: another agent is to go on with it."""
        dialog = call.dialog
        participant.dialog = {name: getattr(dialog, name) for name in _DIALOG} | {
            "source": list(call.source_addr), "addresses": [address.hex() for address in self._addresses[call.call_id]], "ufrag": self._ufrags[call.call_id],
            "lines": self._lines[call.call_id],
        }  # fmt: skip
        self._conferences.book.keep(conference)

    def _resume(self, conference: str, participant: Participant) -> None:
        """Go on with a call that another agent has answered."""
        kept, call_id = participant.dialog, participant.call_id
        dialog = Dialog(call_id=call_id, **{name: kept[name] for name in _DIALOG})
        dialog.confirm()
        host, port = kept["source"]
        call = IncomingCall(
            dialog=dialog, invite=SipRequest(method="INVITE", uri=dialog.local_uri), transport=self._transport, source_addr=(host, port), user_agent=self._uas.user_agent,
            retransmit_2xx=True, on_ack_timeout=self._uas._dispatch_ack_timeout,
        )  # fmt: skip
        self._uas._calls[call_id] = call
        self._calls[conference, participant.name], self._seats[call_id] = call, (conference, participant.name)
        self._addresses[call_id], self._ufrags[call_id] = [bytes.fromhex(address) for address in kept["addresses"]], kept["ufrag"]
        self._lines[call_id] = kept["lines"]

    # -- calls ---------------------------------------------------------------------------------------------------

    def _invited(self, call: IncomingCall) -> None:
        to = call.invite.to_addr
        if to is not None and to.tag:
            call.reject(481)  # nobody here knows the call
            return
        try:
            conference = self._conferences.book.get(parse_uri(call.invite.uri).user or "")
            offer = _offer(call)
            agreed = _agreed(conference, offer)
            kinds = [kind for kind in agreed if medium_of(kind) in agreed]
            if not kinds:
                raise ConferenceError(488, _why_not(conference, call))
            name = self._name(conference, call)
            addresses, ufrag = _addresses(call), _remote_ufrag(call)
            # Where signalling says that media is, ICE has to find out.
            self._conferences.join(conference.name, name, kinds, [] if ufrag else addresses, ice=bool(ufrag), layers=_all_layers(offer, agreed))
        except (ConferenceError, ValueError) as error:
            # What is nonsense or full to the API has names of its own in SIP.
            status = {400: 488, 409: 480}.get(error.status, error.status) if isinstance(error, ConferenceError) else 400
            log.info("SIP call %s is refused with %d: %s", call.call_id, status, error)
            call._send_response(status, _PHRASES.get(status, "Bad Request"), extra_headers={"Warning": _warning(self._transport.local_addr[0], error)})
            call.dialog.terminate()
            return
        made = conference.participants[name]
        made.call_id = call.call_id
        self._settle(conference, made, call, offer, {kind: agreed[kind] for kind in kinds})
        self._conferences.renew(conference.name, name, None, _directions(call, offer))
        call.dialog.route_set = list(call.invite.headers.get("record-route"))  # the called side's order is that of the request
        self._calls[conference.name, name] = call
        self._seats[call.call_id] = conference.name, name
        self._addresses[call.call_id] = addresses
        self._ufrags[call.call_id] = ufrag
        self._lines[call.call_id] = [kind for kind, _ in offer]
        self._keep(conference, made, call)
        self._accept(call, _answer(conference, made, offer, 1))

    @staticmethod
    def _settle(conference: Conference, one: Participant, call: IncomingCall, offer: list[tuple[str | None, MediaDescription]], agreed: dict[str, list[str]]) -> None:
        """Media that have just got relay addresses: their formats are the conference's, and where they are to go is as the offer says."""
        for kind, media in offer:
            if kind is not None and kind in agreed:
                conference.formats.setdefault(medium_of(kind), agreed[kind])
                one.legs[kind].muxed = "rtcp-mux" in media.attributes
                one.legs[kind].offered = _offered(call, media) if one.ice is None else None

    def _accept(self, call: IncomingCall, answer: SdpMessage) -> None:
        """Answer once the next agent would know the call too."""
        self._answering.add(call.call_id)
        self._conferences.spawn(self._accept_kept(call, answer))

    async def _accept_kept(self, call: IncomingCall, answer: SdpMessage) -> None:
        try:
            await self._conferences.shelf.kept()
        finally:
            self._answering.discard(call.call_id)
        if call.dialog.state is not DialogState.TERMINATED:
            call.accept(answer)
        elif call.call_id in self._seats:
            self._leave(call.call_id, "cancelled")

    def _invited_again(self, call: IncomingCall) -> None:
        """Hold, resume, another address, further media: the relay addresses stay; a new address has to be learned anew."""
        seat = self._seats.get(call.call_id)
        conference = self._conferences.book.conferences.get(seat[0]) if seat is not None else None
        if seat is None or conference is None or seat[1] not in conference.participants:
            call.reject(481)
            return
        try:
            before = self._lines[call.call_id]
            offer, addresses = _offer(call, before), _addresses(call)
        except (ConferenceError, ValueError):
            call._send_response(488, "Not Acceptable Here")  # the dialog goes on as it was
            return
        ufrag, one = _remote_ufrag(call), conference.participants[seat[1]]
        if one.ice is not None and ufrag != self._ufrags.get(call.call_id):
            one.ice = make_credentials()  # the peer begins anew, and so do we (RFC 8839 section 4.4.1.1.1)
        if _without_address(call, offer):
            addresses = self._addresses[call.call_id]  # on hold: where its media comes from has not changed
        self._add(conference, one, call, offer, addresses)
        self._lines[call.call_id] = [kind or (before[place] if place < len(before) else None) for place, (kind, _) in enumerate(offer)]
        self._conferences.renew(*seat, addresses if addresses != self._addresses.get(call.call_id) else None, _directions(call, offer))
        self._addresses[call.call_id], self._ufrags[call.call_id] = addresses, ufrag
        if contacts := call.invite.contact:  # requests of ours go there from now on (RFC 3261 section 12.2.2)
            call.dialog.remote_target = stringify_uri(contacts[0].uri)
        self._keep(conference, one, call)
        self._accept(call, _answer(conference, conference.participants[seat[1]], offer, int(time.time())))

    def _add(self, conference: Conference, one: Participant, call: IncomingCall, offer: list[tuple[str | None, MediaDescription]], addresses: list[bytes]) -> None:
        """Take up what an offer has beyond the participant's media, where it can be had: otherwise the call goes on without."""
        new = {kind: format_ for kind, format_ in _agreed(conference, offer).items() if kind not in one.legs}
        new = {kind: format_ for kind, format_ in new.items() if medium_of(kind) in one.legs or medium_of(kind) in new}
        if not new:
            return
        try:
            self._conferences.add(conference.name, one.name, list(new), addresses if one.ice is None else [], _all_layers(offer, new))
        except ConferenceError as error:
            log.info("SIP call %s: %s cannot be added: %s", call.call_id, ", ".join(new), error)
            return
        self._settle(conference, one, call, offer, new)

    def _leave(self, call_id: str, reason: str = "bye") -> None:
        seat = self._forget(call_id)
        if seat is not None:
            try:
                self._conferences.leave(*seat, reason)
            except ConferenceError as error:
                log.debug("SIP call %s: %s", call_id, error)

    def _left(self, conference: str, participant: str) -> None:
        """A participant is out, whoever says so: its call ends."""
        call = self._calls.get((conference, participant))
        self._seats = {call_id: seat for call_id, seat in self._seats.items() if seat != (conference, participant)}
        if call is not None:
            self._forget(call.call_id)
            if (bye := call.hangup()) is not None:
                self._await_answer(bye, call.source_addr, _T1, time.monotonic() + _TRANSACTION_S)
            self._uas._calls.pop(call.call_id, None)  # it forgets calls of which a BYE comes, not those that it ends

    def _await_answer(self, bye: SipRequest, addr: tuple[str, int], wait: float, until: float) -> None:
        """A BYE that is not answered is sent again, each time after twice as long (RFC 3261 section 17.1.2)."""

        def again() -> None:
            self._byes.pop(bye.call_id or "", None)
            if time.monotonic() < until:
                self._transport.send(bye, addr)
                self._await_answer(bye, addr, min(2 * wait, _T2), until)

        self._byes[bye.call_id or ""] = asyncio.get_running_loop().call_later(wait, again)

    def _answered(self, response: SipResponse) -> None:
        """A request of ours, which are BYEs, has an answer."""
        if response.status_code >= 200 and (timer := self._byes.pop(response.call_id or "", None)) is not None:
            timer.cancel()

    def _forget(self, call_id: str) -> tuple[str, str] | None:
        seat = self._seats.pop(call_id, None)
        self._addresses.pop(call_id, None)
        self._ufrags.pop(call_id, None)
        self._lines.pop(call_id, None)
        if seat is not None:
            self._calls.pop(seat, None)
        return seat

    @staticmethod
    def _name(conference: Conference, call: IncomingCall) -> str:
        """The caller's user part, with a number where somebody of that name is there already."""
        wanted = _UNWANTED.sub("_", parse_uri(call.caller).user or "anonymous")[:50].lstrip(".@+-") or "anonymous"
        name, number = wanted, 1
        while name in conference.participants:
            number += 1
            name = f"{wanted}-{number}"
        return name


def _offer(call: IncomingCall, before: Sequence[str | None] | None = None) -> list[tuple[str | None, MediaDescription]]:
    """The offer's media descriptions, and which medium each is: as `before`, where the call has begun and it was one (RFC 3264 section 8). Raises ConferenceError."""
    if call.sdp_offer is None:
        raise ConferenceError(488, "the INVITE has no offer")
    found: list[tuple[str | None, MediaDescription]] = []
    taken = {kind for kind in before or () if kind is not None}
    for place, media in enumerate(call.sdp_offer.media):
        kind = before[place] if before is not None and place < len(before) else None
        if kind is None:
            kind = _new_kind(media, taken)
        if not media.port or media.proto not in _PROTOCOLS:
            kind = None
        if kind is not None:
            taken.add(kind)
        if "extmap-allow-mixed" in call.sdp_offer.attributes:  # for all (RFC 8285 section 6)
            media.attributes["extmap-allow-mixed"] = []
        found.append((kind, media))
    return found


def _new_kind(media: MediaDescription, taken: Collection[str]) -> str | None:
    """Which medium a description is that was none before; None: there is no room for one more."""
    kind = {"audio": "audio", "video": "video"}.get(media.media)
    if kind in taken and media.direction == "recvonly":  # room for one more remote stream
        return next((name for number in range(2, _MOST_LEGS + 1) if (name := f"{kind}/{number}") not in taken), None)
    if kind == "video" and ("slides" in media.attributes.get("content", []) or "video" in taken):
        kind = "screen"
    return None if kind in taken else kind


def _agreed(conference: Conference, offer: list[tuple[str | None, MediaDescription]]) -> dict[str, list[str]]:
    """The format to answer with of each medium that can be taken: the conference's, or what is the first to settle it."""
    settled = dict(conference.formats)
    found: dict[str, list[str]] = {}
    for kind, media in offer:
        if kind is not None and (format_ := _format(settled.get(medium_of(kind)), media)) is not None:
            found[kind] = settled.setdefault(medium_of(kind), format_)
    return found


def _all_layers(offer: list[tuple[str | None, MediaDescription]], agreed: Mapping[str, list[str]]) -> dict[str, Told]:
    """How the pictures of an offer tell their layers."""
    return {kind: told for kind, media in offer if kind in _PICTURES and kind in agreed and (told := _layers(media, agreed[kind])) is not None}


def _format(settled: list[str] | None, media: MediaDescription) -> list[str] | None:
    """[payload type, rtpmap, fmtp] to answer with: what is settled, or the first that is offered; None when they do not agree."""
    for codec in media.codecs:
        rate = f"{codec.encoding_name}/{codec.clock_rate}" + (f"/{codec.channels}" if codec.channels not in (None, 1) else "")
        if codec.encoding_name and codec.encoding_name.lower() not in ("telephone-event", "cn"):
            if settled is None:
                return [str(codec.payload_type), rate, codec.fmtp or ""]
            if settled[:1] == [str(codec.payload_type)] and settled[1].lower() == rate.lower():
                return settled
    return None


def _layers(media: MediaDescription, format_: list[str]) -> Told | None:
    """How a medium's packets tell their layers: by a header extension that is offered, or the codec's own descriptor."""
    found = offered_layers(media.attributes.get("extmap", []))
    if found is not None:
        return found[0]
    way = {"vp8": Layers.VP8, "vp9": Layers.VP9}.get(format_[1].partition("/")[0].lower())
    return None if way is None else Told(way)


def _warning(host: str, error: Exception) -> str:
    """A Warning header (RFC 3261 section 20.43), so that the caller's log has the reason too."""
    words = "".join(character if character.isprintable() and character not in '"\\' else "'" for character in str(error))
    return f'399 {host} "{words}"'


def _why_not(conference: Conference, call: IncomingCall) -> str:
    """Why no medium of an offer can be taken."""
    assert call.sdp_offer is not None
    protocols = {media.proto for media in call.sdp_offer.media if media.port}
    if protocols and all("SAVP" in proto for proto in protocols):
        return f"{min(protocols)}: each call has SRTP keys of its own, so receivers could not read what is sent to them; RTP/AVP and RTP/AVPF can be taken"
    settled = "; ".join(f"{kind} is {format_[1]} with payload type {format_[0]}" for kind, format_ in conference.formats.items())
    return "no medium of the offer can be taken" + (f": {settled}" if settled else "")


def _directions(call: IncomingCall, offer: list[tuple[str | None, MediaDescription]]) -> dict[str, str]:
    """The direction of each medium, as the caller sees it. What has no address is on hold, as before RFC 3264 (its section 8.4): nothing may go there, and
    nothing need come."""
    return {kind: "inactive" if _is_nowhere(call, media) else media.direction for kind, media in offer if kind is not None}


def _is_nowhere(call: IncomingCall, media: MediaDescription) -> bool:
    """Whether a medium's address is 0.0.0.0 or ::."""
    connection = media.connection or (call.sdp_offer.connection if call.sdp_offer is not None else None)
    try:
        return connection is not None and ipaddress.ip_address(connection.address).is_unspecified
    except ValueError:
        return False  # a name


def _without_address(call: IncomingCall, offer: list[tuple[str | None, MediaDescription]]) -> bool:
    """Whether no medium of an offer has an address."""
    return all(_is_nowhere(call, media) for _, media in offer)


def _remote_ufrag(call: IncomingCall) -> str:
    """The caller's ICE user name, empty where it does not offer ICE."""
    assert call.sdp_offer is not None
    for attributes in (call.sdp_offer.attributes, *(media.attributes for media in call.sdp_offer.media)):
        if attributes.get("ice-ufrag") and attributes["ice-ufrag"][0]:
            return attributes["ice-ufrag"][0]
    return ""


def _feedback(offered: MediaDescription, payload_type: str) -> dict[str, list[str]]:
    """The feedback that is offered for a payload type, without TWCC (shunt.conference.control.adaptation)."""
    taken = [line for line in offered.attributes.get("rtcp-fb", []) if line.split(" ", 1)[0] in (payload_type, "*") and "transport-cc" not in line]
    return {"rtcp-fb": taken} if taken else {}


def _candidates(leg: Leg) -> list[str]:
    """The leg's addresses as ICE candidates (RFC 8839 section 5.1): type preference 126, the only ones."""
    components = [(1, leg.relay)] if leg.muxed else [(1, leg.relay), (2, leg.relay.next_port())]
    return [f"1 {component} udp {(126 << 24) + (65535 << 8) + 256 - component} {where.ip} {where.port} typ host" for component, where in components]


def _addresses(call: IncomingCall) -> list[bytes]:
    """Where the offer says that media is: what signalling vouches for."""
    assert call.sdp_offer is not None
    found = []
    for connection in [call.sdp_offer.connection, *(media.connection for media in call.sdp_offer.media)]:
        if connection is not None:
            try:
                address = ipaddress.ip_address(connection.address)
            except ValueError:
                continue  # a name: its packets will have to prove themselves
            if not address.is_unspecified and address.packed not in found:
                found.append(address.packed)
    return found


def _offered(call: IncomingCall, media: MediaDescription) -> Endpoint | None:
    """Where a media description says that its medium is to go."""
    connection = media.connection or (call.sdp_offer.connection if call.sdp_offer is not None else None)
    try:
        return Endpoint.of(connection.address, media.port) if connection is not None else None
    except ValueError:
        return None  # a name


def _answer(conference: Conference, participant: Participant, offer: list[tuple[str | None, MediaDescription]], version: int) -> SdpMessage:
    """One description for each of the offer's. Those that are only for receiving bring one sender each; what remains comes in the first, told apart by SSRCs."""
    first = next(iter(participant.legs.values())).relay
    where = "IP4" if first.version == 4 else "IP6"
    media = []
    for kind, offered in offer:
        leg = participant.legs.get(kind) if kind is not None else None
        format_ = conference.formats.get(medium_of(kind)) if kind is not None else None
        if leg is None or format_ is None:
            media.append(MediaDescription(offered.media, 0, offered.proto, offered.formats[:1]))
            continue
        attributes = {"rtpmap": [f"{format_[0]} {format_[1]}"]} | ({"fmtp": [f"{format_[0]} {format_[2]}"]} if format_[2] else {})
        attributes |= _feedback(offered, format_[0])
        if (told := offered_layers(offered.attributes.get("extmap", []))) is not None and medium_of(kind or "") in _PICTURES:
            attributes["extmap"] = [told[1]]
            if "extmap-allow-mixed" in offered.attributes:  # a template structure needs the two-byte form, what follows it does not
                attributes["extmap-allow-mixed"] = []
        attributes[_DIRECTIONS[offered.direction]] = []
        if leg.muxed:
            attributes["rtcp-mux"] = []
        if participant.ice is not None:
            attributes |= {"ice-ufrag": [participant.ice.ufrag], "ice-pwd": [participant.ice.pwd], "candidate": _candidates(leg), "end-of-candidates": []}
        media.append(MediaDescription(offered.media, leg.relay.port, offered.proto, [format_[0]], attributes=attributes))
    return SdpMessage(
        origin=Origin("shunt", str(first.port), str(version), "IN", where, first.ip), session_name=conference.name, connection=ConnectionData("IN", where, first.ip),
        attributes={"ice-lite": []} if participant.ice is not None else {}, media=media,
    )  # fmt: skip
