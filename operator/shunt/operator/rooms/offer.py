"""Offers of browsers (RFC 8829), as far as a room has to read them: which medium each line is, and which codec is left of it. Pure functions.

Whatever else an offer has is for the edge to read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shunt.admin.model import Codec
from shunt.operator.conferences.sdp import MOST_LEGS, medium_of

MEDIA = ("audio", "video", "screen")
_DIRECTIONS = ("sendrecv", "sendonly", "recvonly", "inactive")
_PROTOCOLS = ("UDP/TLS/RTP/SAVPF", "UDP/TLS/RTP/SAVP", "TCP/TLS/RTP/SAVPF")
_NUMBERED = re.compile(r"a=(?:rtpmap|fmtp|rtcp-fb):(\d+)[ \r]")


class Malformed(Exception):
    """An offer cannot be read; the text says where."""


class NotTaken(Exception):
    """An offer has nothing that the room can take; the text says why."""


@dataclass(frozen=True, slots=True)
class Section:
    """A media description: its lines, without line ends."""

    lines: tuple[str, ...]

    @property
    def kind(self) -> str:
        """audio, video or application."""
        return self.lines[0][2:].split(" ")[0]

    @property
    def port(self) -> str:
        return self.lines[0].split(" ")[1]

    @property
    def protocol(self) -> str:
        return self.lines[0].split(" ")[2]

    @property
    def formats(self) -> tuple[str, ...]:
        """Payload types in the order of preference."""
        return tuple(self.lines[0].split(" ")[3:])

    def attribute(self, name: str) -> str | None:
        """The value of the first attribute of a name."""
        return next((line[len(name) + 3 :] for line in self.lines if line.startswith(f"a={name}:")), None)

    @property
    def mid(self) -> str:
        return self.attribute("mid") or ""

    @property
    def direction(self) -> str:
        """As who offers sees it."""
        return next((one for one in _DIRECTIONS if f"a={one}" in self.lines), "sendrecv")

    @property
    def refused(self) -> bool:
        """Whether the line is switched off: port 0 without BUNDLE."""
        return self.port == "0" and "a=bundle-only" not in self.lines

    def codecs(self) -> list[Codec]:
        """What it offers, in the order of preference."""
        maps = dict(value.split(" ", 1) for line in self.lines if line.startswith("a=rtpmap:") and " " in (value := line[9:]))
        parameters = dict(value.split(" ", 1) for line in self.lines if line.startswith("a=fmtp:") and " " in (value := line[7:]))
        found: list[Codec] = []
        for number in self.formats:
            name, _, rest = maps.get(number, _STATIC.get(number, "")).partition("/")
            rate, _, channels = rest.partition("/")
            if name and number.isdecimal() and rate.isdecimal():
                found.append(
                    {
                        "payload_type": int(number),
                        "encoding": name,
                        "clock_rate": int(rate),
                        "channels": int(channels) if channels.isdecimal() and int(channels) > 1 else None,
                        "fmtp": parameters.get(number),
                    }
                )
        return found


_STATIC = {"0": "PCMU/8000", "8": "PCMA/8000", "9": "G722/8000"}


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer: the session's lines, and its media descriptions. refused: the room's codecs of media that it does not have, once it is narrowed."""

    session: tuple[str, ...]
    sections: tuple[Section, ...]
    refused: Mapping[str, str] = field(default_factory=dict, compare=False)

    def text(self) -> str:
        """As SDP."""
        return "".join(f"{line}\r\n" for part in (self.session, *(section.lines for section in self.sections)) for line in part)


def read(text: str) -> Offer:
    """Raises Malformed."""
    parts: list[list[str]] = [[]]
    for number, line in enumerate(text.splitlines(), 1):
        if not line:
            continue
        if len(line) < 3 or line[1] != "=":
            raise Malformed(f"line {number} of the SDP is none: {line[:40]!r}")
        if line.startswith("m="):
            if len(line.split(" ")) < 4:
                raise Malformed(f"line {number} of the SDP: a media description has a kind, a port, a protocol and formats")
            parts.append([])
        parts[-1].append(line)
    if not parts[0] or parts[0][0] != "v=0":
        raise Malformed("the SDP does not begin with v=0")
    sections = tuple(Section(tuple(part)) for part in parts[1:])
    if not sections:
        raise Malformed("the SDP describes no media")
    mids = [section.mid for section in sections]
    if "" in mids or len(set(mids)) < len(mids):
        raise Malformed("each media description of the SDP needs an a=mid of its own")
    return Offer(tuple(parts[0]), sections)


# -- which medium a line is --------------------------------------------------------------------------------------------


def named(offer: Offer, before: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Which medium of the participant each line is, by mid: "video" what it sends, "video/2" and so on what brings it one sender.

    before: which each was until now; wanted: what who offers says that a line is for (audio, video, screen). Lines for which there is no room are left out.
    """
    found: dict[str, str] = {}
    taken = set(before.values())
    for section in offer.sections:
        if section.kind not in ("audio", "video") or section.protocol not in _PROTOCOLS:
            continue
        medium = before.get(section.mid) or _new_name(section, wanted.get(section.mid), taken)
        if medium is not None:
            found[section.mid] = medium
            taken.add(medium)
    return found


def _new_name(section: Section, wanted: str | None, taken: set[str]) -> str | None:
    kind = wanted if wanted in MEDIA and (wanted == "audio") == (section.kind == "audio") else section.kind
    if section.refused:
        return None
    if section.direction == "recvonly":
        return next((name for number in range(2, MOST_LEGS + 1) if (name := f"{kind}/{number}") not in taken), None)
    if kind == "video" and kind in taken and wanted is None:
        kind = "screen"
    return None if kind in taken else kind


# -- codecs ------------------------------------------------------------------------------------------------------------


def _key(codec: Codec) -> tuple[str, int, int]:
    return codec["encoding"].lower(), codec["clock_rate"], codec.get("channels") or 1


def choose(section: Section, settled: Codec | None, preferred: Sequence[str]) -> Codec | None:
    """The codec of a line: the settled one of the room, or the first of the preferred names that is offered; None: neither is."""
    offered = section.codecs()
    if settled is not None:
        same = [codec for codec in offered if _key(codec) == _key(settled)]
        return next((codec for codec in same if _parameters(codec) == _parameters(settled)), same[0] if same else None)
    for name in preferred:
        of_name = [codec for codec in offered if codec["encoding"].lower() == name.lower()]
        if of_name:
            return max(of_name, key=_usual)
    return None


def _parameters(codec: Codec) -> set[str]:
    return {part.strip().lower() for part in (codec.get("fmtp") or "").split(";") if part.strip()}


def _usual(codec: Codec) -> bool:
    """Of several forms of H.264 the one that all browsers have: constrained baseline, packetization mode 1 (RFC 7742 section 6.2)."""
    parameters = _parameters(codec)
    return "packetization-mode=1" in parameters and any(one.startswith("profile-level-id=42e0") for one in parameters)


def narrowed(offer: Offer, media: Mapping[str, str], settled: Mapping[str, Codec], preferred: Mapping[str, Sequence[str]], *, whole: bool = False) -> Offer:
    """The offer with one codec, and its retransmissions, in each line; a line that has none of it is refused in place (port 0).

    media: which medium each line is, by mid; whole: all of it, or nothing, but for a medium to watch that the room does not have at all. Raises NotTaken where
    nothing is left, or less than the whole.
    """
    agreed = dict(settled)
    sections, reasons, refused, lacking = [], [], {}, False
    for section in offer.sections:
        medium = media.get(section.mid)
        if medium is None or section.refused:
            sections.append(section if medium is not None else _switched_off(section))
            continue
        kind = medium_of(medium)
        codec = choose(section, agreed.get(kind), preferred[kind])
        if codec is None:
            lacking |= section.direction != "recvonly" or kind in agreed or bool(preferred[kind])
            reasons.append(_why_not(section, kind, agreed.get(kind), preferred[kind]))
            refused[kind] = agreed[kind]["encoding"] if kind in agreed else " or ".join(preferred[kind])
            sections.append(_switched_off(section))
            continue
        agreed.setdefault(kind, codec)
        sections.append(_only(section, codec))
    if reasons and (whole and lacking or all(section.refused for section in sections)):
        raise NotTaken("; ".join(dict.fromkeys(reasons)))
    return Offer(offer.session, tuple(sections), refused)


def _why_not(section: Section, kind: str, settled: Codec | None, preferred: Sequence[str]) -> str:
    offered = ", ".join(dict.fromkeys(codec["encoding"] for codec in section.codecs())) or "nothing"
    wanted = f"is {settled['encoding']}/{settled['clock_rate']} in this room, as its first participant has it" if settled is not None else f"has to be one of {', '.join(preferred) or 'none'}"
    return f"{kind} {wanted}, and nothing is transcoded; offered: {offered}"


def _only(section: Section, codec: Codec) -> Section:
    """A line with one codec, and what retransmits it (RFC 4588)."""
    own = str(codec["payload_type"])
    repairs = {str(one["payload_type"]) for one in section.codecs() if one["encoding"].lower() == "rtx" and f"apt={own}" in _parameters(one)}
    kept = [number for number in section.formats if number == own or number in repairs]
    first = " ".join([*section.lines[0].split(" ")[:3], *kept])
    rest = [line for line in section.lines[1:] if (found := _NUMBERED.match(line + "\r")) is None or found[1] in kept]
    return Section((first, *rest))


def _switched_off(section: Section) -> Section:
    words = section.lines[0].split(" ")
    return Section((" ".join([words[0], "0", *words[2:]]), *(line for line in section.lines[1:] if line != "a=bundle-only")))


# -- ICE ---------------------------------------------------------------------------------------------------------------


def ice_ufrag(text: str) -> str | None:
    """The ICE user name that a description names first."""
    return next((line[12:] for line in text.splitlines() if line.startswith("a=ice-ufrag:")), None)


@dataclass(frozen=True, slots=True)
class Fragment:
    """An SDP fragment (RFC 8840): the ICE credentials that it names, and its lines."""

    ufrag: str | None
    pwd: str | None
    lines: tuple[str, ...]

    def answer(self, ufrag: str, pwd: str, candidates: Sequence[str], mid: str) -> str:
        """The fragment of an ICE-lite side for the same BUNDLE group, as RFC 9725 section 4.3.3 has it. mid: of its first line, where this one has none."""
        groups = [line for line in self.lines if line.startswith("a=group:")]
        first = next((line for line in self.lines if line.startswith("m=")), "m=audio 9 RTP/AVP 0")
        own = next((line for line in self.lines if line.startswith("a=mid:")), f"a=mid:{mid}")
        credentials = [f"a=ice-ufrag:{ufrag}", f"a=ice-pwd:{pwd}"]
        lines = ["a=ice-lite", *groups, first, own, *credentials, *(f"a={one}" for one in candidates), "a=end-of-candidates"]
        return "".join(f"{line}\r\n" for line in lines)


def read_fragment(text: str) -> Fragment:
    """Raises Malformed for what is no fragment."""
    lines = tuple(line for line in text.splitlines() if line)
    for line in lines:
        if not line.startswith(("a=", "m=")):
            raise Malformed(f"no line of an SDP fragment: {line[:40]!r}")

    def value(name: str) -> str | None:
        return next((line[len(name) + 3 :] for line in lines if line.startswith(f"a={name}:")), None)

    return Fragment(value("ice-ufrag"), value("ice-pwd"), lines)
