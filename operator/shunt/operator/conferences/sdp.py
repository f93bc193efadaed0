"""Offers and answers of calls to a conference (RFC 3264). Pure functions.

Pictures are not transcoded: the codec of the first participant with a medium holds for all, and who does not offer it cannot take part with that medium. So it is with
audio where there is no mixer; where there is one, anybody has a codec of its own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiosipua import ConnectionData, MediaDescription, Origin, SdpMessage

from shunt.admin.model import (
    Codec,
    Conference,
    Credentials,
    Direction,
    JoinMedium,
    Layers,
    Participant,
)
from shunt.net import Endpoint

VIDEO_MEDIA = ("video", "screen")
MOST_LEGS = 16
"""Media descriptions of one medium of one call."""
_PROTOCOLS = ("RTP/AVP", "RTP/AVPF")
_DIRECTIONS: tuple[Direction, ...] = ("sendrecv", "sendonly", "recvonly", "inactive")
_MIRRORED: dict[str, str] = {"sendrecv": "sendrecv", "sendonly": "recvonly", "recvonly": "sendonly", "inactive": "inactive"}
_KEYS = "telephone-event"
_NOT_MEDIA = (_KEYS, "cn")
_MIXABLE = {("opus", 48000, 2), ("g722", 8000, 1), ("pcma", 8000, 1), ("pcmu", 8000, 1)}
"""What a mixer decodes and encodes."""
_EXTENSIONS = {
    "https://aomediacodec.github.io/av1-rtp-spec/#dependency-descriptor-rtp-header-extension": "dependency-descriptor",
    "urn:ietf:params:rtp-hdrext:framemarking": "frame-marking",
}
_OWN_DESCRIPTOR = {"vp8": "vp8", "vp9": "vp9"}


class NotAcceptable(Exception):
    """No medium of an offer can be taken, or it is malformed; the text is for the caller's log (SIP status 488)."""


@dataclass(frozen=True, slots=True)
class Line:
    """A media description of an offer. kind: which medium of the participant it is, "video/2" for a further one; None: it is refused."""

    kind: str | None
    media: MediaDescription


def medium_of(kind: str) -> str:
    """The medium of a kind: "video" of "video/2"."""
    return kind.partition("/")[0]


# -- the offer ---------------------------------------------------------------------------------------------------------


def read_offer(sdp: SdpMessage, before: Sequence[str | None] = ()) -> list[Line]:
    """The media descriptions of an offer. before: which medium each was in the call until now (RFC 3264 section 8)."""
    found: list[Line] = []
    taken = {kind for kind in before if kind is not None}
    for place, media in enumerate(sdp.media):
        kind = before[place] if place < len(before) else None
        if kind is None:
            kind = _new_kind(media, taken)
        if not media.port or media.proto not in _PROTOCOLS:
            kind = None
        if kind is not None:
            taken.add(kind)
        if "extmap-allow-mixed" in sdp.attributes:  # for all (RFC 8285 section 6)
            media.attributes["extmap-allow-mixed"] = []
        found.append(Line(kind, media))
    return found


def _new_kind(media: MediaDescription, taken: Collection[str]) -> str | None:
    """Which medium a description is that was none before; None: there is no room for one more."""
    kind = {"audio": "audio", "video": "video"}.get(media.media)
    if kind in taken and media.direction == "recvonly":  # room for one more remote stream
        return next((name for number in range(2, MOST_LEGS + 1) if (name := f"{kind}/{number}") not in taken), None)
    if kind == "video" and ("slides" in media.attributes.get("content", []) or "video" in taken):
        kind = "screen"
    return None if kind in taken else kind


def lines_after(lines: Sequence[Line], before: Sequence[str | None]) -> list[str | None]:
    """Which medium each description of a call is, after an offer: one that it refuses now is kept for later."""
    return [line.kind or (before[place] if place < len(before) else None) for place, line in enumerate(lines)]


def signalled(sdp: SdpMessage) -> list[str]:
    """Where an offer says that media is: addresses that signalling names. Names of hosts are no addresses."""
    found: list[str] = []
    for connection in [sdp.connection, *(media.connection for media in sdp.media)]:
        if connection is not None:
            try:
                address = ipaddress.ip_address(connection.address)
            except ValueError:
                continue
            if not address.is_unspecified and str(address) not in found:
                found.append(str(address))
    return found


def remote_ufrag(sdp: SdpMessage) -> str:
    """The caller's ICE user name, empty where it does not offer ICE."""
    for attributes in (sdp.attributes, *(media.attributes for media in sdp.media)):
        if attributes.get("ice-ufrag") and attributes["ice-ufrag"][0]:
            return attributes["ice-ufrag"][0]
    return ""


def _is_nowhere(sdp: SdpMessage, media: MediaDescription) -> bool:
    """Whether a medium's address is 0.0.0.0 or ::."""
    connection = media.connection or sdp.connection
    try:
        return connection is not None and ipaddress.ip_address(connection.address).is_unspecified
    except ValueError:
        return False  # a name


def without_address(sdp: SdpMessage, lines: Iterable[Line]) -> bool:
    """Whether no medium of an offer has an address."""
    return all(_is_nowhere(sdp, line.media) for line in lines)


def direction(sdp: SdpMessage, media: MediaDescription) -> Direction:
    """The direction of a medium, as the caller sees it. What has no address is on hold, as before RFC 3264 (its section 8.4)."""
    return "inactive" if _is_nowhere(sdp, media) else _offered_direction(sdp, media)


def _offered_direction(sdp: SdpMessage, media: MediaDescription) -> Direction:
    for attributes in (media.attributes, sdp.attributes):  # the session's holds for media without one of their own (RFC 8866 section 6.7)
        for one in _DIRECTIONS:
            if one in attributes:
                return one
    return "sendrecv"


def _destination(sdp: SdpMessage, media: MediaDescription) -> str | None:
    """Where a media description says that its medium is to go (ADDRESS:PORT)."""
    connection = media.connection or sdp.connection
    try:
        return str(Endpoint.of(connection.address, media.port)) if connection is not None and not _is_nowhere(sdp, media) else None
    except ValueError:
        return None  # a name


# -- codecs ------------------------------------------------------------------------------------------------------------


def settled(conference: Conference) -> dict[str, Codec]:
    """The codec of each medium of a conference: that of the first participant who has one."""
    found: dict[str, Codec] = {}
    for member in conference["members"]:
        found |= {medium: codec for medium, codec in own_codecs(member).items() if medium not in found}
    return found


def wanted(conference: Conference, lines: Iterable[Line], *, ice: bool) -> dict[str, Codec]:
    """The codec of each medium that an offer is to be answered with. Where audio is mixed, a telephone has the first that it offers, and who takes several streams that of the others if it can."""
    found = settled(conference)
    audio = {line.kind: line.media for line in lines if line.kind is not None and medium_of(line.kind) == "audio"}
    mixable = [codec for codec in _offered(audio["audio"]) if _is_mixable(codec)] if "audio" in audio else []
    if not conference["mixing"] or not mixable:
        return found
    takes_several = ice or len(audio) > 1
    if takes_several and "audio" in found and choose(found["audio"], audio["audio"]) is not None:
        return found
    return found | {"audio": mixable[0]}


def _is_mixable(codec: Codec) -> bool:
    return (codec["encoding"].lower(), codec["clock_rate"], codec.get("channels") or 1) in _MIXABLE


def _keys(media: MediaDescription, codec: Codec) -> list[Codec]:
    """How a caller tells its keys beside a codec (RFC 4733), of the codec's clock rate where there is a choice."""
    offered: list[Codec] = [
        {"payload_type": one.payload_type, "encoding": _KEYS, "clock_rate": one.clock_rate, "fmtp": one.fmtp or None}
        for one in media.codecs
        if one.encoding_name and one.encoding_name.lower() == _KEYS
    ]
    return sorted(offered, key=lambda one: one["clock_rate"] != codec["clock_rate"])[:1]


def own_codecs(participant: Participant) -> dict[str, Codec]:
    """The codec of each medium of a participant."""
    found: dict[str, Codec] = {}
    for medium in participant["media"]:
        if medium["codecs"]:
            found.setdefault(medium_of(medium["medium"]), medium["codecs"][0])
    return found


def _offered(media: MediaDescription) -> list[Codec]:
    """The codecs of a description, but for those that are no media of their own."""
    return [
        {
            "payload_type": codec.payload_type,
            "encoding": codec.encoding_name,
            "clock_rate": codec.clock_rate,
            "channels": None if codec.channels in (None, 1) else codec.channels,
            "fmtp": codec.fmtp or None,
        }
        for codec in media.codecs
        if codec.encoding_name and codec.encoding_name.lower() not in _NOT_MEDIA
    ]


def _same(one: Codec, other: Codec) -> bool:
    return (one["encoding"].lower(), one["clock_rate"], one.get("channels") or 1) == (other["encoding"].lower(), other["clock_rate"], other.get("channels") or 1)


def choose(wanted: Codec | None, media: MediaDescription) -> Codec | None:
    """The codec to answer with, with the caller's own payload type: the wanted one, or the first that is offered; None: they do not agree.

    Of several payload types of the wanted codec that of the others is taken where it is offered: then nothing has to be rewritten.
    """
    offered = _offered(media)
    if wanted is None:
        return offered[0] if offered else None
    same = [codec for codec in offered if _same(codec, wanted)]
    return next((codec for codec in same if codec["payload_type"] == wanted["payload_type"]), same[0] if same else None)


def agree(lines: Iterable[Line], wanted: Mapping[str, Codec]) -> dict[str, Codec]:
    """The codec of each medium of an offer that can be taken. A further description of a medium needs the medium's first."""
    chosen = dict(wanted)
    found: dict[str, Codec] = {}
    for line in lines:
        if line.kind is not None and (codec := choose(chosen.get(medium_of(line.kind)), line.media)) is not None:
            found[line.kind] = codec
            chosen.setdefault(medium_of(line.kind), codec)
    return {kind: codec for kind, codec in found.items() if medium_of(kind) in found}


def why_not(lines: Sequence[Line], wanted: Mapping[str, Codec]) -> str:
    """Why no medium of an offer can be taken."""
    protocols = {line.media.proto for line in lines if line.media.port}
    if protocols and all("SAVP" in proto for proto in protocols):
        return f"{min(protocols)}: each call has SRTP keys of its own, so receivers could not decrypt the copies; accepted are RTP/AVP and RTP/AVPF"
    said = "; ".join(f"{kind} is {_rtpmap(codec)}" for kind, codec in wanted.items())
    return "no medium of the offer is accepted" + (f": {said}" if said else "")


# -- what the agent is told -------------------------------------------------------------------------------------------


def offered_layers(extmaps: Iterable[str]) -> tuple[Layers, str] | None:
    """How an offer's medium tells layers, by its `extmap` attributes ("12 URI", "12/sendonly URI"); and the attribute to answer with."""
    found: dict[str, tuple[Layers, str]] = {}
    for extmap in extmaps:
        identity, _, rest = extmap.partition(" ")
        uri, number = rest.split(" ")[0], identity.partition("/")[0]
        if uri in _EXTENSIONS and number.isdecimal() and 1 <= int(number) <= 14:
            found.setdefault(uri, ({"by": _EXTENSIONS[uri], "extension_id": int(number)}, f"{number} {uri}"))
    return next((found[uri] for uri in _EXTENSIONS if uri in found), None)


def _layers(media: MediaDescription, codec: Codec) -> Layers | None:
    """How a picture's packets tell their layers: by a header extension that is offered, or the codec's own descriptor."""
    if (found := offered_layers(media.attributes.get("extmap", []))) is not None:
        return found[0]
    by = _OWN_DESCRIPTOR.get(codec["encoding"].lower())
    return None if by is None else {"by": by}


def new_media(sdp: SdpMessage, lines: Iterable[Line], agreed: Mapping[str, Codec], *, ice: bool, mixing: bool) -> list[JoinMedium]:
    """Media that a participant is to get relay addresses for. ice: where they come from and go to is for ICE to find out; mixing: keys mean something."""
    return [
        {
            "medium": line.kind,
            "transport": line.media.proto,
            "direction": direction(sdp, line.media),
            "codecs": _named(line, agreed[line.kind], mixing),
            "layers": _layers(line.media, agreed[line.kind]) if medium_of(line.kind) in VIDEO_MEDIA else None,
            "rtcp_mux": "rtcp-mux" in line.media.attributes,
            "destination": None if ice else _destination(sdp, line.media),
        }
        for line in lines
        if line.kind is not None and line.kind in agreed
    ]


def _named(line: Line, codec: Codec, mixing: bool) -> list[Codec]:
    return [codec, *(_keys(line.media, codec) if mixing and line.kind == "audio" else [])]


def changed_media(sdp: SdpMessage, lines: Iterable[Line], present: Collection[str], agreed: Mapping[str, Codec], *, ice: bool, mixing: bool) -> list[JoinMedium]:
    """What a later offer says of media that a participant has: those that it leaves out are on hold. A payload type may be another one now."""
    found: dict[str, JoinMedium] = {kind: {"medium": kind, "direction": "inactive"} for kind in present}
    for line in lines:
        if line.kind in found:
            found[line.kind] = {
                "medium": line.kind,
                "transport": line.media.proto,
                "direction": direction(sdp, line.media),
                "codecs": _named(line, agreed[line.kind], mixing) if line.kind in agreed else [],
                "destination": None if ice else _destination(sdp, line.media),
            }
    return list(found.values())


# -- an offer of our own -----------------------------------------------------------------------------------------------

_DEFAULTS: tuple[Codec, ...] = (
    {"payload_type": 111, "encoding": "opus", "clock_rate": 48000, "channels": 2, "fmtp": None},
    {"payload_type": 9, "encoding": "G722", "clock_rate": 8000, "channels": None, "fmtp": None},
    {"payload_type": 8, "encoding": "PCMA", "clock_rate": 8000, "channels": None, "fmtp": None},
    {"payload_type": 0, "encoding": "PCMU", "clock_rate": 8000, "channels": None, "fmtp": None},
)
_FEEDBACK = ("nack pli", "ccm fir")


def offered_codecs(conference: Conference, participant: Participant | None = None) -> dict[str, list[Codec]]:
    """The codecs of each medium of an offer to a caller: its own, or those of the conference; for audio that is mixed or settles with this call, all that are known."""
    own = settled(conference) | (own_codecs(participant) if participant is not None else {})
    audio = [own["audio"]] if "audio" in own else []
    if conference["mixing"] or not audio:
        audio += [codec for codec in _DEFAULTS if not any(_same(codec, other) for other in audio)]
    taken: set[int] = set()
    found: dict[str, list[Codec]] = {"audio": [_numbered(codec, taken) for codec in audio]}
    if conference["mixing"]:
        found["audio"] += [
            _numbered({"payload_type": 101, "encoding": _KEYS, "clock_rate": rate, "channels": None, "fmtp": "0-15"}, taken) for rate in sorted({codec["clock_rate"] for codec in audio})
        ]
    return found | {medium: [own[medium]] for medium in VIDEO_MEDIA if medium in own}


def _numbered(codec: Codec, taken: set[int]) -> Codec:
    """The codec with a payload type that no other of its description has."""
    number = next(number for number in (codec["payload_type"], *range(96, 128)) if number not in taken)
    taken.add(number)
    return {**codec, "payload_type": number}


def media_to_offer(codecs: Mapping[str, Sequence[Codec]]) -> list[JoinMedium]:
    """Media of a caller who has not said yet what they are to be."""
    return [{"medium": medium, "transport": "RTP/AVPF" if medium in VIDEO_MEDIA else "RTP/AVP", "direction": "sendrecv", "rtcp_mux": False} for medium in codecs]


def offer(name: str, participant: Participant, kinds: Sequence[str | None], codecs: Mapping[str, Sequence[Codec]], version: int) -> SdpMessage:
    """One description for each of `kinds`, which keep their places (RFC 3264 section 8); None, and what the participant does not have: one that is not used."""
    present = {medium["medium"]: medium for medium in participant["media"]}
    media = []
    for kind in kinds:
        medium, named = present.get(kind or ""), codecs.get(medium_of(kind or ""), ())
        if medium is None or not named:
            media.append(MediaDescription("video" if medium_of(kind or "audio") in VIDEO_MEDIA else "audio", 0, "RTP/AVP", ["0"]))
            continue
        relay, video = Endpoint.parse(medium["address"]), medium_of(medium["medium"]) in VIDEO_MEDIA
        attributes = {"rtpmap": [f"{codec['payload_type']} {_rtpmap(codec)}" for codec in named]}
        if formats := [f"{codec['payload_type']} {codec['fmtp']}" for codec in named if codec.get("fmtp")]:
            attributes["fmtp"] = formats
        if video and "AVPF" in medium["transport"]:
            attributes["rtcp-fb"] = [f"{codec['payload_type']} {kind}" for codec in named for kind in _FEEDBACK]
        if medium_of(medium["medium"]) == "screen":
            attributes["content"] = ["slides"]
        layers = medium["layers"]
        for uri, by in _EXTENSIONS.items():
            if layers is not None and layers["by"] == by and layers.get("extension_id"):
                attributes |= {"extmap": [f"{layers.get('extension_id')} {uri}"], "extmap-allow-mixed": []}
        attributes["sendonly" if "/" in medium["medium"] else "sendrecv"] = []
        if medium["rtcp_mux"]:
            attributes["rtcp-mux"] = []
        if participant["ice"] is not None:
            attributes |= _ice(participant["ice"], relay, medium["rtcp_mux"])
        media.append(MediaDescription("video" if video else "audio", relay.port, medium["transport"], [str(codec["payload_type"]) for codec in named], attributes=attributes))
    return _session(name, participant, media, version)


# -- the answer --------------------------------------------------------------------------------------------------------


def _rtpmap(codec: Codec) -> str:
    channels = codec.get("channels")
    return f"{codec['encoding']}/{codec['clock_rate']}" + (f"/{channels}" if channels not in (None, 1) else "")


def _feedback(media: MediaDescription, payload_type: str) -> dict[str, list[str]]:
    """The feedback that is offered for a payload type, without TWCC, whose numbers count the packets of one transport only."""
    taken = [line for line in media.attributes.get("rtcp-fb", []) if line.split(" ", 1)[0] in (payload_type, "*") and "transport-cc" not in line]
    return {"rtcp-fb": taken} if taken else {}


def _candidates(relay: Endpoint, muxed: bool) -> list[str]:
    """A relay address as ICE candidates (RFC 8839 section 5.1): type preference 126, the only ones."""
    components = [(1, relay)] if muxed else [(1, relay), (2, relay.next_port())]
    return [f"1 {component} udp {(126 << 24) + (65535 << 8) + 256 - component} {where.ip} {where.port} typ host" for component, where in components]


def answer(name: str, participant: Participant, offer: SdpMessage, lines: Iterable[Line], version: int) -> SdpMessage:
    """One description for each of the offer's, with the participant's relay addresses. name: the conference's; version: of the session description."""
    relays = {medium["medium"]: Endpoint.parse(medium["address"]) for medium in participant["media"]}
    codecs, ice = own_codecs(participant), participant["ice"]
    told = {medium["medium"] for medium in participant["media"] if any(codec["encoding"] == _KEYS for codec in medium["codecs"])}
    media = []
    for line in lines:
        offered, relay = line.media, relays.get(line.kind or "")
        codec = choose(codecs.get(medium_of(line.kind or "")), offered) if relay is not None else None
        if relay is None or codec is None:
            media.append(MediaDescription(offered.media, 0, offered.proto, offered.formats[:1]))
            continue
        number, muxed = str(codec["payload_type"]), "rtcp-mux" in offered.attributes
        attributes = {"rtpmap": [f"{number} {_rtpmap(codec)}"]}
        own = codecs.get(medium_of(line.kind or ""))
        if fmtp := (own or codec).get("fmtp"):
            attributes["fmtp"] = [f"{number} {fmtp}"]
        keys = _keys(offered, codec) if line.kind in told else []
        for one in keys:
            attributes["rtpmap"].append(f"{one['payload_type']} {_rtpmap(one)}")
            attributes.setdefault("fmtp", []).append(f"{one['payload_type']} 0-15")
        attributes |= _feedback(offered, number)
        if (layers := offered_layers(offered.attributes.get("extmap", []))) is not None and medium_of(line.kind or "") in VIDEO_MEDIA:
            attributes["extmap"] = [layers[1]]
            if "extmap-allow-mixed" in offered.attributes:  # a template structure needs the two-byte form, what follows it does not
                attributes["extmap-allow-mixed"] = []
        # An address of 0.0.0.0 is a hold that needs no other answer than what was offered.
        attributes[_MIRRORED[_offered_direction(offer, offered)]] = []
        if muxed:
            attributes["rtcp-mux"] = []
        if ice is not None:
            attributes |= _ice(ice, relay, muxed)
        media.append(MediaDescription(offered.media, relay.port, offered.proto, [number, *(str(one["payload_type"]) for one in keys)], attributes=attributes))
    return _session(name, participant, media, version)


def _ice(ice: Credentials, relay: Endpoint, muxed: bool) -> dict[str, list[str]]:
    return {"ice-ufrag": [ice["ufrag"]], "ice-pwd": [ice["password"]], "candidate": _candidates(relay, muxed), "end-of-candidates": []}


def _session(name: str, participant: Participant, media: list[MediaDescription], version: int) -> SdpMessage:
    first = Endpoint.parse(participant["media"][0]["address"])
    where = "IP4" if first.version == 4 else "IP6"
    return SdpMessage(
        origin=Origin("shunt", str(first.port), str(version), "IN", where, first.ip),
        session_name=name,
        connection=ConnectionData("IN", where, first.ip),
        attributes={"ice-lite": []} if participant["ice"] is not None else {},
        media=media,
    )
