"""What a SIP message says about its dialog and its media. Pure functions; no byte string makes them fail badly.

aiosipua reads what follows RFC 3261. What it refuses, or leaves without Call-ID or tags, is read again
line by line: a BYE must not be missed because some other header is odd.
"""

from __future__ import annotations

import functools
import logging
import re
from dataclasses import dataclass
from typing import Any

from shunt.hep.codec import UNKNOWN
from shunt.net import Endpoint

# It warns about every body that does not match Content-Length; copies are cut off by tracers all the time.
logging.getLogger("aiosipua.message").setLevel(logging.ERROR)

_COMPACT = {"i": "call-id", "f": "from", "t": "to"}
_WANTED = ("call-id", "from", "to", "cseq")
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


@dataclass(frozen=True, slots=True)
class SdpMedia:
    """One media line of an SDP body. kind: audio, video, …; direction: sendrecv, sendonly, recvonly or inactive.

    formats has (payload type, encoding name in upper case, clock rate in Hz) of every a=rtpmap; ptime is in ms.
    """

    kind: str
    direction: str = "sendrecv"
    formats: tuple[tuple[int, str, int], ...] = ()
    ptime: int | None = None


@dataclass(frozen=True, slots=True)
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
    from aiosipua.message import SipMessage, SipRequest  # long to import: a starting agent answers commands first

    data = data.lstrip(b"\r\n\0 \t")
    try:
        message = SipMessage.parse(data)
    except (ValueError, IndexError, RecursionError):
        return _tolerant(data)
    headers = {name: message.headers.get_first(name) or "" for name in _WANTED}
    if isinstance(message, SipRequest):
        method, status = message.method, None
        good = _REQUEST_LINE.match(f"{method} {message.uri} SIP/2.0") is not None
    else:
        method, status = None, message.status_code
        good = 100 <= message.status_code <= 699
    # It decodes as UTF-8, with loss; the control protocol's Call-IDs and tags are Latin-1, one character to a byte.
    if not good or not all(v.isascii() and v for v in headers.values()) or not _tag(headers["from"]):
        return _tolerant(data)
    return _facts(method, status, headers, message.body)


def _tolerant(data: bytes) -> SipMessageFacts:
    """As parse, line by line: any line end, folding, compact names, blanks before the colon, other headers ignored."""
    end = _HEADER_END.search(data)
    head, body = (data[: end.start()], data[end.end() :]) if end else (data, b"")
    lines = re.split(r"\r\n|\n|\r", head.decode("latin-1"))
    start = lines[0].strip(" \t")
    method: str | None = None
    status: int | None = None
    if match := _STATUS_LINE.match(start):
        status = int(match[1])
    elif match := _REQUEST_LINE.fullmatch(start):
        method = match[1]
    else:
        raise SipError(f"{start[:60]!r} is no SIP start line")
    headers: dict[str, str] = {}
    name = ""
    for line in lines[1:]:
        if line[:1] in (" ", "\t"):
            if name:
                headers[name] += " " + line.strip(" \t")
            continue
        key, sep, value = line.partition(":")
        key = key.strip(" \t").lower()
        key = _COMPACT.get(key, key)
        name = key if sep and key in _WANTED and not headers.get(key) else ""
        if name:
            headers[name] = value.strip(" \t")
    headers = {key: value.strip(" \t") for key, value in headers.items()}
    if not headers.get("call-id"):
        raise SipError(f"{start[:60]!r} has no Call-ID")
    return _facts(method, status, headers, body)


def _facts(method: str | None, status: int | None, headers: dict[str, str], body: bytes) -> SipMessageFacts:
    cseq = _CSEQ.match(headers.get("cseq", ""))
    return SipMessageFacts(
        method=method,
        status=status,
        call_id=headers["call-id"],
        from_tag=_tag(headers.get("from", "")) or "",
        to_tag=_tag(headers.get("to", "")),
        cseq_method=cseq[1] if cseq else (method or ""),
        sdp=sdp_endpoints(body),
        media=sdp_media(body),
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
    found = _SDP_START.search(body)
    if found is None:
        return ()
    session = UNKNOWN.addr
    ports: list[int] = []
    addrs: list[bytes | None] = []
    for line in body[found.start() :].replace(b"\r", b"\n").split(b"\n"):
        kind, words = line[:2], line[2:].split()
        if line.startswith(b"--") and ports:
            break  # the boundary after a multipart body's SDP
        if kind == b"c=" and len(words) >= 3:
            addr = _address(words[2])
            if ports:
                addrs[-1] = addr
            else:
                session = addr
        elif kind == b"m=" and len(words) >= 2 and len(ports) < _MAX_MEDIA_LINES:
            port = words[1].split(b"/")[0]
            ports.append(int(port) if port.isdigit() and len(port) <= 5 and int(port) <= 65535 else 0)
            addrs.append(None)
    return tuple(Endpoint(session if addr is None else addr, port) for addr, port in zip(addrs, ports))


@functools.lru_cache(maxsize=256)
def sdp_media(body: bytes) -> tuple[SdpMedia, ...]:
    """Kind, direction, formats and packet time of every media line (RFC 8866 sections 5.14, 6.4, 6.6, 6.7).

    The same body passes several times, as each copy of a message does: the last few are remembered.
    """
    found = _SDP_START.search(body)
    if found is None:
        return ()
    lines: list[dict[str, Any]] = []
    session: dict[str, Any] = {}
    for line in body[found.start() :].replace(b"\r", b"\n").split(b"\n"):
        if line.startswith(b"m="):
            if len(lines) == _MAX_MEDIA_LINES:
                break
            lines.append({"kind": line[2:].split(b" ")[0][:16].decode("latin-1"), "formats": ()})
        elif line.startswith(b"a="):
            _attribute(lines[-1] if lines else session, line[2:].strip())
        elif line.startswith(b"--") and lines:
            break
    return tuple(SdpMedia(line["kind"], line.get("direction", session.get("direction", "sendrecv")), line["formats"], line.get("ptime", session.get("ptime"))) for line in lines)


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
