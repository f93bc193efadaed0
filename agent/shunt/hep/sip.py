"""What a SIP message says about its dialog and its media. Pure functions; no byte string makes them fail badly.

Every message that a SIP server receives or sends comes by here, so no more is read than is wanted: the start line, four headers, SDP.
Any line end, folding, compact names and blanks before the colon are taken: a BYE must not be missed because something in it is odd.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from shunt.calls.sdp import SdpMedia
from shunt.hep.codec import UNKNOWN
from shunt.net import Endpoint

_COMPACT = {"i": "call-id", "f": "from", "t": "to"}
_WANTED = ("call-id", "from", "to", "cseq")
_FIRST_LETTERS = frozenset("cCiIfFtT")
_STATUS_LINE = re.compile(r"SIP/[0-9.]+ +([1-6][0-9][0-9])(?: |$)", re.IGNORECASE)
_REQUEST_LINE = re.compile(r"([A-Za-z0-9.!%*_+`'~-]{1,32}) +\S.*?SIP/[0-9.]+$", re.IGNORECASE)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_TAG = re.compile(r';[ \t]*tag[ \t]*=[ \t]*([^\s;,>"]+)', re.IGNORECASE)
_CSEQ = re.compile(r"[0-9]+\s+(\S{1,32})")
_SDP_START = re.compile(rb"(?:^|[\r\n])v=0")
_HEADER_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_MAX_MEDIA_LINES = 64
_MAX_FORMATS = 32
_RTPMAP = re.compile(rb"rtpmap:([0-9]{1,3})[ \t]+([\w.+-]{1,32})/([0-9]{1,9})")
_PTIME = re.compile(rb"ptime:([0-9]{1,4})")


class SipError(ValueError):
    """The bytes are no SIP message with a Call-ID; the message says what is missing."""


@dataclass(slots=True)
class SipMessageFacts:
    """What one message says: a request has method, a response has status.

    from_tag is "" where the header has none (RFC 2543), to_tag is None outside of a dialog; cseq_method
    is the request's that a response answers. sdp has one endpoint for each media line, in m-line order:
    port 0 where the line is rejected, address 0.0.0.0 on hold and where c= names no IP address. media says
    what else there is to each of them.
    """

    method: str | None
    status: int | None
    call_id: str
    from_tag: str
    to_tag: str | None
    cseq_method: str
    sdp: tuple[Endpoint, ...]
    media: tuple[SdpMedia, ...] = ()


def parse(data: bytes) -> SipMessageFacts:
    """Read one message. Raises SipError where start line or Call-ID cannot be made out, and nothing else."""
    data = data.lstrip(b"\r\n\0 \t")
    end = _HEADER_END.search(data)
    head, body = (data[: end.start()], data[end.end() :]) if end else (data, b"")
    lines = head.decode("latin-1").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    headers: dict[str, str] = {}
    name = ""
    for line in lines[1:]:
        if line[:1] in (" ", "\t"):
            if name:
                headers[name] += " " + line.strip(" \t")
            continue
        name = ""
        if line[:1] not in _FIRST_LETTERS:
            continue
        key, sep, value = line.partition(":")
        key = key.strip(" \t").lower()
        key = _COMPACT.get(key, key)
        if sep and key in _WANTED and not headers.get(key):
            name = key
            headers[name] = value.strip(" \t")
    headers = {key: value.strip(" \t") for key, value in headers.items()}
    start = lines[0].strip(" \t")
    method: str | None = None
    status: int | None = None
    if match := _STATUS_LINE.match(start):
        status = int(match[1])
    elif match := _REQUEST_LINE.fullmatch(start):
        method = match[1]
    else:
        raise SipError(f"{start[:60]!r} is no SIP start line")
    if not headers.get("call-id"):
        raise SipError(f"{start[:60]!r} has no Call-ID")
    cseq = _CSEQ.match(headers.get("cseq", ""))
    return SipMessageFacts(
        method=method,
        status=status,
        call_id=headers["call-id"],
        from_tag=_tag(headers.get("from", "")) or "",
        to_tag=_tag(headers.get("to", "")),
        cseq_method=cseq[1] if cseq else (method or ""),
        sdp=sdp_endpoints(body) if body else (),
        media=sdp_media(body) if body else (),
    )


def _tag(value: str) -> str | None:
    """The tag parameter of a From or To value: never one inside the display name or the URI."""
    value = _QUOTED.sub("", value) if '"' in value else value
    _, closed, after = value.rpartition(">")
    match = _TAG.search(after if closed else value)
    return match[1] if match else None


def sdp_endpoints(body: bytes) -> tuple[Endpoint, ...]:
    """Connection address and port of every media line (RFC 8866 sections 5.7, 5.14); a media-level c= wins.

    The SDP may be one part of a multipart body. Lines that do not follow the RFC are passed over.
    """
    return _read_sdp(body)[0]


def sdp_media(body: bytes) -> tuple[SdpMedia, ...]:
    """Kind, direction, formats and packet time of every media line (RFC 8866 sections 5.14, 6.4, 6.6, 6.7), as many as sdp_endpoints() has."""
    return _read_sdp(body)[1]


@functools.lru_cache(maxsize=256)
def _read_sdp(body: bytes) -> tuple[tuple[Endpoint, ...], tuple[SdpMedia, ...]]:
    """The same body passes several times, as each copy of a message does: the last few are remembered."""
    found = _SDP_START.search(body)
    if found is None:
        return (), ()
    address = UNKNOWN.addr
    session: dict[str, Any] = {}
    lines: list[dict[str, Any]] = []
    for line in body[found.start() :].replace(b"\r", b"\n").split(b"\n"):
        kind = line[:2]
        if kind == b"a=":
            _attribute(lines[-1] if lines else session, line[2:].strip())
        elif kind == b"m=":
            words = line[2:].split()
            if len(words) < 2:
                continue
            if len(lines) == _MAX_MEDIA_LINES:
                break
            port = words[1].split(b"/")[0]
            number = int(port) if port.isdigit() and len(port) <= 5 and int(port) <= 65535 else 0
            lines.append({"kind": words[0][:16].decode("latin-1"), "port": number, "formats": ()})
        elif kind == b"c=":
            words = line[2:].split()
            if len(words) >= 3 and lines:
                lines[-1]["address"] = _address(words[2])
            elif len(words) >= 3:
                address = _address(words[2])
        elif kind == b"--" and lines:
            break  # the boundary after a multipart body's SDP
    direction, ptime = session.get("direction", "sendrecv"), session.get("ptime")
    return (
        tuple([Endpoint(line.get("address", address), line["port"]) for line in lines]),
        tuple([SdpMedia(line["kind"], line.get("direction", direction), line["formats"], line.get("ptime", ptime)) for line in lines]),
    )


def _attribute(line: dict[str, Any], text: bytes) -> None:
    if text in (b"sendrecv", b"sendonly", b"recvonly", b"inactive"):
        line["direction"] = text.decode()
    elif (match := _RTPMAP.match(text)) and len(line.get("formats", ())) < _MAX_FORMATS:
        line["formats"] = (*line.get("formats", ()), (int(match[1]), match[2].decode("latin-1").upper(), int(match[3])))
    elif match := _PTIME.match(text):
        line["ptime"] = int(match[1])


def _address(word: bytes) -> bytes:
    try:
        return Endpoint.of(word.split(b"/")[0].decode("ascii"), 0).addr
    except ValueError:  # UnicodeDecodeError is one too
        return UNKNOWN.addr
