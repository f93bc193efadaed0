"""Offers and answers of callers."""

from __future__ import annotations

import pytest
from aiosipua import SdpMessage
from aiosipua.sdp import parse_sdp, serialize_sdp

from shunt.admin.model import Codec
from shunt.operator.conferences import sdp
from shunt.operator.conferences.sdp import NotAcceptable
from tests.operator_conferences.samples import OPUS, PCMU, VP8, conference, medium, participant

HEAD = "v=0\r\no=- 1 1 IN IP4 192.0.2.7\r\ns=-\r\nc=IN IP4 192.0.2.7\r\nt=0 0\r\n"
DESCRIPTOR = "https://aomediacodec.github.io/av1-rtp-spec/#dependency-descriptor-rtp-header-extension"


def offer(media: str, head: str = HEAD) -> SdpMessage:
    return parse_sdp(head + media)


def kinds(media: str, before: tuple[str | None, ...] = ()) -> list[str | None]:
    return [line.kind for line in sdp.read_offer(offer(media), before)]


def test_each_description_is_a_medium_of_its_own() -> None:
    audio, video = "m=audio 4000 RTP/AVP 0\r\n", "m=video 4002 RTP/AVP 96\r\na=rtpmap:96 VP8/90000\r\n"
    assert kinds(audio + video + video + video) == ["audio", "video", "screen", None]
    assert kinds(audio + video + video.replace("VP8/90000", "VP8/90000\r\na=recvonly") * 2) == ["audio", "video", "video/2", "video/3"]
    assert kinds(video + "a=content:slides\r\n" + video) == ["screen", "video"]
    assert kinds(audio + audio) == ["audio", None], "a second one that sends has no place"
    assert kinds(audio.replace("4000", "0") + audio.replace("AVP", "SAVP") + "m=application 9 UDP/DTLS/SCTP x\r\n") == [None, None, None]
    # In a call each description stays what it was, whatever its direction.
    assert kinds(audio + video + "a=sendonly\r\n" + video, ("audio", "video", "video/2")) == ["audio", "video", "video/2"]
    refused = sdp.read_offer(offer(audio + "m=video 0 RTP/AVP 96\r\n"), ("audio", "video"))
    assert [line.kind for line in refused] == ["audio", None] and sdp.lines_after(refused, ("audio", "video")) == ["audio", "video"]


def test_the_first_participants_codec_holds() -> None:
    lines = sdp.read_offer(offer("m=audio 4000 RTP/AVP 101 0 8\r\na=rtpmap:101 telephone-event/8000\r\n"))
    assert sdp.agree(lines, {})["audio"]["encoding"] == "PCMU", "DTMF is no medium"
    room = conference(participant("ann", medium("audio", 20000)), participant("bob", medium("audio", 20002, OPUS)), participant("cem", medium("audio", 20004, PCMU)))
    assert sdp.settled(room) == {"audio": OPUS}
    assert sdp.agree(lines, sdp.settled(room)) == {}
    assert sdp.why_not(lines, sdp.settled(room)) == "no medium of the offer is accepted: audio is opus/48000/2"
    secure = sdp.read_offer(offer("m=audio 4000 RTP/SAVP 0\r\n"))
    assert sdp.why_not(secure, {}).startswith("RTP/SAVP: each call has SRTP keys of its own")


def test_a_payload_type_of_ones_own_is_answered_with() -> None:
    (line,) = sdp.read_offer(offer("m=audio 4000 RTP/AVP 109\r\na=rtpmap:109 OPUS/48000/2\r\n"))
    chosen = sdp.choose(OPUS, line.media)
    assert chosen is not None and chosen["payload_type"] == 109
    (both,) = sdp.read_offer(offer("m=audio 4000 RTP/AVP 109 111\r\na=rtpmap:109 opus/48000/2\r\na=rtpmap:111 opus/48000/2\r\n"))
    chosen = sdp.choose(OPUS, both.media)
    assert chosen is not None and chosen["payload_type"] == 111, "where it has the others' too, nothing has to be rewritten"
    (mono,) = sdp.read_offer(offer("m=audio 4000 RTP/AVP 111\r\na=rtpmap:111 opus/48000\r\n"))
    assert sdp.choose(OPUS, mono.media) is None, "one channel is another format"
    one_channel: Codec = PCMU | {"channels": 1}  # type: ignore[assignment]
    (plain,) = sdp.read_offer(offer("m=audio 4000 RTP/AVP 0\r\n"))
    assert sdp.choose(one_channel, plain.media) is not None


def test_a_further_description_needs_the_first() -> None:
    video = "m=video 4002 RTP/AVP 97\r\na=rtpmap:97 H264/90000\r\n"
    lines = sdp.read_offer(offer(video + video + "a=recvonly\r\n"))
    assert sdp.agree(lines, {"video": VP8}) == {}
    assert list(sdp.agree(lines, {})) == ["video", "video/2"]


def test_where_audio_is_mixed_everybody_has_a_codec_of_its_own() -> None:
    room = conference(participant("ann", medium("audio", 20000, OPUS)), mixing=True)
    text = "m=audio 4000 RTP/AVP 18 8 0 101\r\na=rtpmap:18 G729/8000\r\na=rtpmap:101 telephone-event/8000\r\n"
    lines = sdp.read_offer(offer(text))
    agreed = sdp.agree(lines, sdp.wanted(room, lines, ice=False))
    assert agreed["audio"]["encoding"] == "PCMA", "the first that a mixer knows"
    (told,) = sdp.new_media(offer(text), lines, agreed, ice=False, mixing=True)
    assert [codec["encoding"] for codec in told["codecs"]] == ["PCMA", "telephone-event"]
    made = participant("bob", medium("audio", 20002, *told["codecs"]))
    answered = serialize_sdp(sdp.answer("room", made, offer(text), lines, 1))
    assert "m=audio 20002 RTP/AVP 8 101\r\n" in answered and "a=rtpmap:101 telephone-event/8000\r\n" in answered and "a=fmtp:101 0-15\r\n" in answered
    # Who takes several streams has the codec of the others where it can, so that nothing has to be mixed for it.
    both = sdp.read_offer(offer("m=audio 4000 RTP/AVP 0 111\r\na=rtpmap:111 opus/48000/2\r\n"))
    assert sdp.wanted(room, both, ice=True)["audio"]["encoding"] == "opus"
    assert sdp.wanted(room, both, ice=False)["audio"]["encoding"] == "PCMU"
    assert sdp.wanted(room, lines, ice=True)["audio"]["encoding"] == "PCMA"
    # A codec that no mixer knows is for those who have it in common, as without a mixer.
    unknown = sdp.read_offer(offer("m=audio 4000 RTP/AVP 18\r\na=rtpmap:18 G729/8000\r\n"))
    assert sdp.agree(unknown, sdp.wanted(room, unknown, ice=False)) == {}
    assert sdp.wanted(conference(participant("ann", medium("audio", 20000, OPUS))), lines, ice=False) == {"audio": OPUS}


def test_where_media_is_and_which_way_it_goes() -> None:
    audio = "m=audio 4000 RTP/AVP 0\r\n"
    two = offer(audio + "c=IN IP4 192.0.2.8\r\nm=video 4002 RTP/AVP 96\r\nc=IN IP4 host.example\r\n")
    assert sdp.signalled(two) == ["192.0.2.7", "192.0.2.8"]
    for text, head, wanted in (
        (audio, HEAD, "sendrecv"),
        (audio + "a=sendonly\r\n", HEAD, "sendonly"),
        (audio, HEAD + "a=recvonly\r\n", "recvonly"),
        (audio + "a=sendrecv\r\n", HEAD + "a=inactive\r\n", "sendrecv"),
        (audio, HEAD.replace("c=IN IP4 192.0.2.7", "c=IN IP4 0.0.0.0"), "inactive"),
    ):
        found = offer(text, head)
        assert sdp.direction(found, found.media[0]) == wanted
    held = offer(audio, HEAD.replace("c=IN IP4 192.0.2.7", "c=IN IP4 0.0.0.0"))
    assert sdp.signalled(held) == [] and sdp.without_address(held, sdp.read_offer(held))


def test_what_the_agent_is_told() -> None:
    found = offer(f"m=video 4002 RTP/AVPF 96\r\na=rtpmap:96 VP8/90000\r\na=extmap:12/sendonly {DESCRIPTOR}\r\na=rtcp-mux\r\na=sendonly\r\n")
    lines = sdp.read_offer(found)
    agreed = sdp.agree(lines, {})
    assert sdp.new_media(found, lines, agreed, ice=False, mixing=False) == [
        {
            "medium": "video",
            "transport": "RTP/AVPF",
            "direction": "sendonly",
            "codecs": [VP8],
            "layers": {"by": "dependency-descriptor", "extension_id": 12},
            "rtcp_mux": True,
            "destination": "192.0.2.7:4002",
        }
    ]
    assert sdp.new_media(found, lines, agreed, ice=True, mixing=False)[0]["destination"] is None
    changed = sdp.changed_media(found, lines, ["audio", "video"], agreed, ice=False, mixing=False)
    assert [(one["medium"], one["direction"]) for one in changed] == [("audio", "inactive"), ("video", "sendonly")], "what an offer leaves out is on hold"
    assert "codecs" not in changed[0] and changed[1]["codecs"] == [agreed["video"]], "a payload type may be another one now"


def test_the_answer_has_a_description_for_each() -> None:
    found = offer(
        "m=audio 4000 RTP/AVP 109\r\na=rtpmap:109 opus/48000/2\r\na=rtcp-mux\r\n"
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\n"
        f"m=video 4002 RTP/AVPF 96\r\na=rtpmap:96 VP8/90000\r\na=rtcp-fb:96 nack pli\r\na=rtcp-fb:* transport-cc\r\na=extmap:5 {DESCRIPTOR}\r\na=sendonly\r\n"
    )
    mine = participant("ann", medium("audio", 20000, OPUS | {"payload_type": 109}), medium("video", 20002, VP8))  # type: ignore[arg-type]
    text = serialize_sdp(sdp.answer("room", mine, found, sdp.read_offer(found), 3))
    audio, application, video = text.split("m=")[1:]
    assert "o=shunt 20000 3 IN IP4 203.0.113.10\r\n" in text and "c=IN IP4 203.0.113.10\r\n" in text and "ice" not in text
    assert audio.startswith("audio 20000 RTP/AVP 109\r\n") and "a=rtpmap:109 opus/48000/2\r\n" in audio and "a=fmtp:109 minptime=10\r\n" in audio and "a=rtcp-mux\r\n" in audio
    assert application.startswith("application 0 ")
    assert video.startswith("video 20002 RTP/AVPF 96\r\n") and "a=rtcp-fb:96 nack pli\r\n" in video and "transport-cc" not in video
    assert f"a=extmap:5 {DESCRIPTOR}\r\n" in video and "a=recvonly\r\n" in video


def test_the_answer_has_candidates_for_who_offers_ice() -> None:
    found = offer("a=ice-ufrag:them\r\na=ice-pwd:secret\r\nm=audio 4000 RTP/AVP 0\r\n")
    assert sdp.remote_ufrag(found) == "them"
    mine = participant("ann", medium("audio", 20000, PCMU), ice={"ufrag": "us", "password": "hidden"})
    text = serialize_sdp(sdp.answer("room", mine, found, sdp.read_offer(found), 1))
    assert "a=ice-lite\r\n" in text and "a=ice-ufrag:us\r\n" in text and "a=ice-pwd:hidden\r\n" in text
    assert text.count("a=candidate:") == 2 and "203.0.113.10 20001 typ host" in text, "RTCP has a candidate of its own without rtcp-mux"


def test_an_offer_of_our_own() -> None:
    """Without a caller's offer: what the conference speaks, or all that is known; places and what is not used stay in a running call."""
    assert [codec["encoding"] for codec in sdp.offered_codecs(conference())["audio"]] == ["opus", "G722", "PCMA", "PCMU"]
    room = conference(participant("ann", medium("audio", 20000, OPUS), medium("video", 20002, VP8)))
    assert sdp.offered_codecs(room) == {"audio": [OPUS], "video": [VP8]}
    mixed = sdp.offered_codecs(conference(participant("ann", medium("audio", 20000, {**PCMU, "payload_type": 111})), mixing=True))["audio"]
    assert [codec["encoding"] for codec in mixed] == ["PCMU", "opus", "G722", "PCMA", "telephone-event", "telephone-event"]
    assert len({codec["payload_type"] for codec in mixed}) == 6
    bob = participant("bob", medium("audio", 20004), medium("video", 20006, transport="RTP/AVPF"))
    text = serialize_sdp(sdp.offer("room", bob, ["audio", "video"], sdp.offered_codecs(room), 1))
    assert "m=audio 20004 RTP/AVP 111\r\na=rtpmap:111 opus/48000/2\r\na=fmtp:111 minptime=10\r\na=sendrecv" in text
    assert "m=video 20006 RTP/AVPF 96" in text and "a=rtcp-fb:96 nack pli" in text and "o=shunt 20004 1 " in text
    # In a call: each description keeps its place.
    cem = participant("cem", medium("audio", 20008, PCMU, rtcp_mux=True))
    again = sdp.offer("room", cem, ["video", None, "audio"], sdp.offered_codecs(room, cem), 4)
    assert [(media.media, media.port) for media in again.media] == [("video", 0), ("audio", 0), ("audio", 20008)]
    assert "rtcp-mux" in again.media[2].attributes and again.origin.session_version == "4"


def test_an_answer_settles_what_was_offered() -> None:
    described = offer("m=audio 4000 RTP/AVP 8 0\r\na=sendonly\r\nm=video 0 RTP/AVPF 96\r\n")
    lines = sdp.read_offer(described, ("audio", "video"))
    assert [line.kind for line in lines] == ["audio", None]
    agreed = sdp.agree(lines, {})
    changed = sdp.changed_media(described, lines, {"audio", "video"}, agreed, ice=False, mixing=False)
    by_kind = {one["medium"]: one for one in changed}
    assert by_kind["audio"]["codecs"][0]["encoding"] == "PCMA" and by_kind["audio"]["direction"] == "sendonly" and by_kind["audio"]["destination"] == "192.0.2.7:4000"
    assert by_kind["video"]["direction"] == "inactive"
