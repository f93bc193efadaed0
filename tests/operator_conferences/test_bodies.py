"""The session description is found in whatever way a SIP message carries it."""

from __future__ import annotations

import base64
import itertools
import random

import pytest

from shunt.operator.conferences.bodies import Unsupported, session_description

SDP = "v=0\r\no=- 1 1 IN IP4 192.0.2.7\r\ns=-\r\nc=IN IP4 192.0.2.7\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\n"
PIDF = b'<?xml version="1.0"?>\r\n<presence xmlns="urn:ietf:params:xml:ns:pidf" entity="sip:ann@example.org"/>\r\n'
ISUP = bytes([0x01, 0x11, 0x00, 0x0D, 0x0A, 0x2D, 0x2D, 0xFF, 0x0D, 0x00, 0x0A, 0x85])
ISUP_HEAD = "Content-Type: application/ISUP;version=nxv3;base=etsi121\r\nContent-Disposition: signal;handling=optional\r\n"


def part(content: bytes, head: str = "Content-Type: application/sdp\r\n") -> bytes:
    return head.encode() + b"\r\n" + content


def multipart(boundary: str, *parts: bytes, close: bool = True, preamble: bytes = b"") -> bytes:
    marked = b"".join(b"\r\n--" + boundary.encode() + b"\r\n" + one for one in parts)
    return preamble + marked[0 if preamble else 2 :] + (b"\r\n--" + boundary.encode() + b"--\r\n" if close else b"")


@pytest.mark.parametrize(
    "content_type",
    [
        "application/sdp",
        "Application/SDP",
        "APPLICATION/sdp",
        "application/sdp;charset=utf-8",
        "application/SDP ;level=1",
        'application/sdp; charset="UTF-8" ; a=b',
        "application / sdp",
        "application/sdp;",
    ],
)
def test_a_type_is_read_in_any_case_and_with_parameters(content_type: str) -> None:
    assert session_description(SDP.encode(), content_type) == SDP


def test_without_a_body_there_is_no_description() -> None:
    assert session_description(b"", None) is None
    assert session_description(b"\r\n", "application/sdp") is None


def _spelled(generator: random.Random, word: str) -> str:
    return "".join(generator.choice((letter.lower(), letter.upper())) for letter in word)


@pytest.mark.parametrize("seed", range(60))
def test_any_multipart_body(seed: int) -> None:
    """Parts in any order, nested, with other spellings, boundaries quoted or not, with or without an end."""
    generator = random.Random(seed)
    letters = "abcXYZ0189'()+_,-./:=?"
    names = iter(["b" + "".join(generator.choice(letters) for _ in range(generator.randint(1, 60))) + str(number) for number in range(4)])
    sdp_head = f"{_spelled(generator, 'Content-Type')}: {_spelled(generator, 'application/sdp')}{generator.choice(['', ';charset=utf-8', ' ; x=1'])}\r\n"
    sdp_head += generator.choice(["", "Content-Disposition: session\r\n", "Content-Disposition: Session;handling=required\r\n", "Content-ID: <1@example>\r\n"])
    content = SDP.encode()
    if generator.random() < 0.3:
        sdp_head += f"Content-Transfer-Encoding: {generator.choice(['base64', 'BASE64'])}\r\n"
        content = base64.encodebytes(content)
    whole = part(content, sdp_head)
    others = [part(PIDF, "Content-Type: application/pidf+xml\r\nContent-ID: <2@example>\r\n"), part(ISUP, ISUP_HEAD), part(b"hello", "Content-Type: text/plain\r\n"), part(b"", "")]
    head, boundary = "", ""
    for _ in range(generator.randint(1, 3)):
        parts = [whole, *generator.sample(others, generator.randint(0, 3))]
        generator.shuffle(parts)
        boundary = next(names)
        whole = multipart(boundary, *parts, close=generator.random() < 0.8, preamble=generator.choice([b"", b"a preamble\r\n"]))
        quoted = f'"{boundary}"' if generator.random() < 0.7 or set(boundary) & set("()<>@,;:\\/[]?=") else boundary
        kind = _spelled(generator, "multipart/" + generator.choice(["mixed", "related", "alternative"]))
        head = f"{kind};{generator.choice(['', ' '])}{_spelled(generator, 'boundary')}={quoted}{generator.choice(['', ';x=y', '; type=text'])}"
        body, whole = whole, part(whole, f"Content-Type: {head}\r\n")
    found = session_description(body, head)
    assert found is not None and found.strip() == SDP.strip(), (head, body)


def test_the_last_alternative_and_the_first_of_mixed_count() -> None:
    first, second = part(SDP.encode()), part(SDP.replace("4000", "5000").encode())
    body = multipart("b", first, second)
    assert "4000" in str(session_description(body, "multipart/mixed;boundary=b"))
    assert "5000" in str(session_description(body, "multipart/alternative;boundary=b"))


def test_a_description_for_another_purpose_does_not_count() -> None:
    """Early sessions (RFC 3959), and what is compressed."""
    early = part(SDP.replace("4000", "5000").encode(), "Content-Type: application/sdp\r\nContent-Disposition: early-session\r\n")
    assert "4000" in str(session_description(multipart("b", early, part(SDP.encode())), "multipart/mixed;boundary=b"))
    assert session_description(multipart("b", early), "multipart/mixed;boundary=b") is None
    with pytest.raises(Unsupported):
        session_description(b"\x1f\x8b", "application/sdp", encoding="gzip")


def test_what_has_to_be_understood_and_is_not_is_said() -> None:
    for content_type, disposition in itertools.product(("application/pidf+xml", "text/plain;charset=utf-8", "multipart/mixed", None, "nonsense"), (None, "render;handling=required")):
        with pytest.raises(Unsupported):
            session_description(PIDF, content_type, disposition)
    assert session_description(PIDF, "application/pidf+xml", "render;handling=optional") is None
    required = part(ISUP, ISUP_HEAD.replace("optional", "required"))
    with pytest.raises(Unsupported, match="isup"):
        session_description(multipart("b", part(SDP.encode()), required), "multipart/mixed;boundary=b")
    assert session_description(multipart("b", part(PIDF, "Content-Type: application/pidf+xml\r\n")), "multipart/mixed;boundary=b") is None


@pytest.mark.parametrize("seed", range(40))
def test_any_bytes_are_read_or_refused(seed: int) -> None:
    generator = random.Random(seed)
    body = bytes(generator.choice(b"-\r\nab:;/= \x00\xff") for _ in range(generator.randint(0, 300)))
    content_type = "".join(generator.choice('ab/;="- \tmultipart/') for _ in range(generator.randint(0, 40)))
    for tried in (content_type, "multipart/mixed;boundary=a", 'multipart/mixed; boundary="-"'):
        try:
            session_description(body, tried)
        except Unsupported:
            pass
