"""Offers of rooms: which medium each line is, and the one codec that is left of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from shunt.admin.model import Codec
from shunt.operator.rooms.offer import Malformed, NotTaken, choose, ice_ufrag, named, narrowed, read, read_fragment
from tests.operator_conferences.samples import OPUS, PCMU, VP8

PREFERRED = {"audio": ["opus", "PCMU"], "video": ["VP8", "H264"], "screen": ["VP8", "H264"]}
CHROMIUM = (Path(__file__).parent / "offer_chromium.sdp").read_text()


def lines(*sections: str) -> str:
    return "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\n" + "".join(sections)


def audio(mid: str, direction: str = "sendonly", formats: str = "111 0", more: str = "") -> str:
    return f"m=audio 9 UDP/TLS/RTP/SAVPF {formats}\r\na=mid:{mid}\r\na={direction}\r\na=rtpmap:111 opus/48000/2\r\na=fmtp:111 minptime=10\r\n{more}"


def video(mid: str, direction: str = "sendonly", more: str = "") -> str:
    return (
        f"m=video 9 UDP/TLS/RTP/SAVPF 96 97 102 103\r\na=mid:{mid}\r\na={direction}\r\na=rtpmap:96 VP8/90000\r\na=rtcp-fb:96 nack pli\r\na=rtpmap:97 rtx/90000\r\na=fmtp:97 apt=96\r\n"
        f"a=rtpmap:102 H264/90000\r\na=fmtp:102 packetization-mode=1;profile-level-id=42001f\r\na=rtpmap:103 H264/90000\r\na=fmtp:103 packetization-mode=1;profile-level-id=42e01f\r\n{more}"
    )


def test_the_first_of_a_kind_sends_and_others_bring_one_sender_each() -> None:
    offer = read(lines(audio("0"), video("1"), audio("2", "recvonly"), video("3", "recvonly"), video("4", "recvonly"), video("5")))
    assert named(offer, {}, {}) == {"0": "audio", "1": "video", "2": "audio/2", "3": "video/2", "4": "video/3", "5": "screen"}


def test_who_offers_may_say_what_a_line_is_for() -> None:
    offer = read(lines(audio("0"), video("1", "recvonly"), video("2", "recvonly"), video("3")))
    assert named(offer, {}, {"2": "screen", "3": "screen", "0": "screen"}) == {"0": "audio", "1": "video/2", "2": "screen/2", "3": "screen"}


def test_a_line_stays_what_it_was() -> None:
    offer = read(lines(audio("0", "inactive"), video("1", "inactive"), video("2", "recvonly")))
    assert named(offer, {"0": "audio", "1": "video"}, {"1": "screen"}) == {"0": "audio", "1": "video", "2": "video/2"}


def test_beyond_the_room_for_one_medium_lines_are_left_out() -> None:
    offer = read(lines(audio("a"), *(audio(str(number), "recvonly") for number in range(16))))
    assert len(named(offer, {}, {})) == 16


def test_one_codec_is_left_with_what_retransmits_it() -> None:
    offer = read(lines(audio("0"), video("1")))
    left = narrowed(offer, named(offer, {}, {}), {}, PREFERRED)
    assert left.sections[0].formats == ("111",) and left.sections[1].formats == ("96", "97")
    assert "H264" not in left.text() and "a=rtcp-fb:96 nack pli\r\n" in left.text() and "a=fmtp:97 apt=96\r\n" in left.text()
    assert read(left.text()) == left


def test_of_several_forms_of_h264_the_one_that_all_have_is_taken() -> None:
    offer = read(lines(video("1")))
    left = narrowed(offer, {"1": "video"}, {}, PREFERRED | {"video": ["H264"]})
    assert left.sections[0].formats == ("103",)


def test_the_rooms_codec_holds_whatever_is_preferred() -> None:
    offer = read(lines(audio("0")))
    assert narrowed(offer, {"0": "audio"}, {"audio": PCMU}, PREFERRED).sections[0].formats == ("0",)
    other: Codec = {**OPUS, "payload_type": 96}
    assert choose(offer.sections[0], other, []) is not None, "another payload type is no other codec"


def test_what_cannot_be_taken_is_refused_with_the_reason() -> None:
    offer = read(lines(video("1")))
    av1: Codec = {**VP8, "encoding": "AV1"}
    with pytest.raises(NotTaken, match=r"video is AV1/90000 in this room, as its first participant has it, and nothing is transcoded; offered: VP8, rtx, H264"):
        narrowed(offer, {"1": "video"}, {"video": av1}, PREFERRED)
    with pytest.raises(NotTaken, match="video has to be one of none"):
        narrowed(offer, {"1": "video"}, {}, PREFERRED | {"video": []})


def test_a_line_that_cannot_be_taken_is_switched_off_beside_one_that_can() -> None:
    offer = read(lines(audio("0"), video("1")))
    left = narrowed(offer, named(offer, {}, {}), {}, PREFERRED | {"video": ["AV1"]})
    assert [section.refused for section in left.sections] == [False, True] and left.sections[1].mid == "1"


@pytest.mark.parametrize(
    ("direction", "settled", "preferred", "taken"),
    [("sendonly", {}, ["AV1"], False), ("recvonly", {}, ["AV1"], False), ("recvonly", {"video": {**VP8, "encoding": "AV1"}}, [], False), ("recvonly", {}, [], True), ("sendonly", {}, [], False)],
)
def test_a_program_gets_the_whole_but_for_a_medium_that_no_room_of_this_kind_has(direction: str, settled: dict[str, Codec], preferred: list[str], taken: bool) -> None:
    offer = read(lines(audio("0"), video("1", direction)))
    media = named(offer, {}, {})
    if taken:
        left = narrowed(offer, media, settled, PREFERRED | {"video": preferred}, whole=True)
        assert [section.refused for section in left.sections] == [False, True] and left.refused == {"video": ""}
    else:
        with pytest.raises(NotTaken, match="video"):
            narrowed(offer, media, settled, PREFERRED | {"video": preferred}, whole=True)


def test_what_chromium_offers() -> None:
    offer = read(CHROMIUM)
    assert [(section.kind, section.direction) for section in offer.sections] == [("audio", "recvonly"), ("video", "sendonly")]
    left = narrowed(offer, named(offer, {}, {}), {}, PREFERRED)
    assert left.sections[0].formats == ("111",) and left.sections[1].formats == ("96", "97")
    assert "dependency-descriptor" in left.text() and "a=fmtp:111 minptime=10;useinbandfec=1" in left.text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "v=0"),
        ("hello", "line 1"),
        (lines(), "no media"),
        (lines("m=audio\r\n"), "line 5"),
        (lines("m=audio 9 UDP/TLS/RTP/SAVPF 0\r\n"), "a=mid"),
        (lines(audio("0"), video("0")), "a=mid"),
    ],
)
def test_what_is_no_offer_is_refused(text: str, said: str) -> None:
    with pytest.raises(Malformed, match=said):
        read(text)


def test_fragments_of_trickle_ice() -> None:
    found = read_fragment("a=ice-ufrag:EsAw\r\na=ice-pwd:P2uY\r\nm=audio 9 RTP/AVP 0\r\na=end-of-candidates\r\n")
    assert (found.ufrag, found.pwd) == ("EsAw", "P2uY")
    assert read_fragment("").ufrag is None
    with pytest.raises(Malformed):
        read_fragment("v=0\r\n")


def test_a_fragment_is_answered_in_its_own_bundle_group() -> None:
    asked = read_fragment("a=group:BUNDLE a b\r\nm=video 9 UDP/TLS/RTP/SAVPF 96\r\na=mid:a\r\na=ice-ufrag:EsAw\r\na=ice-pwd:P2uY\r\n")
    candidate = "candidate:1 1 udp 2130706431 198.18.4.2 3478 typ host"
    assert asked.answer("0123", "secret", [candidate], "0").splitlines() == [
        "a=ice-lite", "a=group:BUNDLE a b", "m=video 9 UDP/TLS/RTP/SAVPF 96", "a=mid:a", "a=ice-ufrag:0123", "a=ice-pwd:secret", f"a={candidate}", "a=end-of-candidates",
    ]  # fmt: skip
    assert "m=audio 9 RTP/AVP 0\r\na=mid:7\r\n" in read_fragment("a=ice-ufrag:EsAw\r\n").answer("0123", "secret", [], "7")
    assert ice_ufrag(asked.answer("0123", "secret", [], "0")) == "0123" and ice_ufrag("v=0\r\n") is None
