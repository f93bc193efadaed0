"""What only rtpengine can do stays with it, with the reason; and comes back to it in mid-call when a command asks for it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ng.phone import AUDIO, Line, Phone, sdp, until
from tests.ng.scene import Call, Scene
from tests.tools.ng import NgError

pytestmark = [pytest.mark.netns, pytest.mark.e2e]

_KEY = "inline:WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz"
SDES = Line(protocol="RTP/SAVP", attributes=(*AUDIO.attributes, f"crypto:1 AES_CM_128_HMAC_SHA1_80 {_KEY}"))
DTLS = Line(
    protocol="UDP/TLS/RTP/SAVPF",
    attributes=(*AUDIO.attributes, "setup:actpass", "fingerprint:sha-256 " + ":".join(["A5"] * 32), "mid:0", "rtcp-mux"),
)


async def test_srtp_from_end_to_end(ng: Scene) -> None:
    """Both sides speak SRTP with SDES keys: rtpengine decrypts and encrypts, or passes it, and sees to the keys."""
    call = ng.call((SDES,))
    await call.connect()
    await call.stays("srtp")
    await call.hang_up()


@pytest.mark.parametrize("srtp", ["caller", "callee"])
async def test_srtp_on_one_side(ng: Scene, srtp: str) -> None:
    call = ng.call((SDES if srtp == "caller" else AUDIO,))
    text = await call.offer(transport_protocol="RTP/AVP" if srtp == "caller" else "RTP/SAVP")
    assert ("RTP/SAVP" in text) == (srtp == "callee")
    await call.answer(text=sdp(call.callee.at, call.callee.ports, (AUDIO if srtp == "caller" else SDES,)))
    call.talk()
    await call.stays("srtp")
    await call.hang_up()


async def test_dtls(ng: Scene) -> None:
    call = ng.call((DTLS,), muxed=(True, False))
    await call.offer(transport_protocol="RTP/AVP", ICE="remove", rtcp_mux=["demux"])
    await call.answer(text=sdp(call.callee.at, call.callee.ports))
    call.talk()
    await call.stays("dtls")
    await call.hang_up()


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "removed"])
async def test_ice(ng: Scene, kept: bool) -> None:
    """With candidates the relay checks paths; without them it is plain media."""
    call = ng.call()
    caller = call.caller
    ice = "ice-ufrag:abcd", "ice-pwd:abcdefghijklmnopqrstuvwx"
    candidate = f"candidate:1 1 UDP 2130706431 {caller.at} {caller.ports[0]} typ host"
    text = sdp(caller.at, caller.ports, (Line(attributes=(*AUDIO.attributes, candidate)),), *ice)
    reply = await call.offer(text=text, **({} if kept else {"ICE": "remove"}))
    assert ("candidate" in reply) == kept
    await call.answer(**({} if kept else {"ICE": "remove"}))
    call.talk()
    if kept:
        await call.stays("ice")
    else:
        await call.offloaded()
    await call.hang_up()


async def test_transcoding_that_is_asked_for(ng: Scene) -> None:
    pcmu = Line(formats="0", attributes=("rtpmap:0 PCMU/8000",))
    pcma = Line(formats="8", attributes=("rtpmap:8 PCMA/8000",))
    call = ng.call((pcmu,))
    text = await call.offer(codec={"transcode": ["PCMA"]})
    assert "PCMA" in text
    await call.answer(text=sdp(call.callee.at, call.callee.ports, (pcma,)))
    call.callee.payload_type = 8
    call.talk()
    await call.stays("transcoding")
    await call.hush()
    assert set(call.callee.streams[0].got.values()) <= {8} and set(call.caller.streams[0].got.values()) <= {0}
    await call.hang_up()


async def test_transcoding_that_nobody_has_asked_for(ng: Scene) -> None:
    """The callee answers with a codec that was not offered."""
    pcmu = Line(formats="0", attributes=("rtpmap:0 PCMU/8000",))
    pcma = Line(formats="8", attributes=("rtpmap:8 PCMA/8000",))
    call = ng.call((pcmu,))
    await call.offer()
    await call.answer(text=sdp(call.callee.at, call.callee.ports, (pcma,)))
    call.callee.payload_type = 8
    call.talk()
    await call.stays("transcoding")
    await call.hang_up()


async def test_recording_from_the_start(ng: Scene) -> None:
    call = ng.call()
    await call.connect(record_call="on")
    await call.stays("recording")
    await call.talked()
    await call.hang_up()
    await call.check_media()


async def _back_and_forth(call: Call, begin: Callable[[], Awaitable[Any]], reason: str, end: Callable[[], Awaitable[Any]]) -> None:
    """Offloaded, on the relay for this reason, offloaded again."""
    await call.connect()
    await call.offloaded()
    await begin()
    await call.stays(reason)
    await end()
    await call.offloaded()


async def test_recording_in_mid_call(ng: Scene) -> None:
    """No packet is lost on the way to the recorder and back, and those in between are in the recording."""
    call = ng.call()
    await _back_and_forth(call, lambda: call.command("start recording"), "recording", lambda: call.command("stop recording"))
    await call.hang_up()
    await call.check_media()
    folder = ng.edge.work / "recordings"
    recorded = sum(path.stat().st_size for path in Path(folder).rglob("*.pcap"))
    assert recorded > 20 * 214, f"{recorded} bytes were recorded"


async def test_blocked_media(ng: Scene) -> None:
    """While the caller is blocked nothing of it arrives; afterwards everything does."""
    call = ng.call()
    await call.connect()
    await call.offloaded()
    await call.command("block media", from_tag=call.caller.tag)
    await call.stays("media-blocked")
    before = len(call.callee.streams[0].got)
    await asyncio.sleep(0.5)
    assert len(call.callee.streams[0].got) - before <= 1, "a blocked phone is heard"
    await call.command("unblock media", from_tag=call.caller.tag)
    await call.offloaded()
    start = len(call.caller.streams[0].sent)
    await asyncio.sleep(0.5)
    await call.hush()
    stream = call.caller.streams[0]
    assert all((stream.ssrc, seq) in call.callee.streams[0].got for seq in stream.sent[start:])
    await call.hang_up()


async def test_blocked_dtmf(ng: Scene) -> None:
    call = ng.call()
    await _back_and_forth(call, lambda: call.command("block DTMF", from_tag=call.caller.tag), "media-blocked", lambda: call.command("unblock DTMF", from_tag=call.caller.tag))
    await call.hang_up()
    await call.check_media()


async def test_forwarding(ng: Scene) -> None:
    call = ng.call()
    await _back_and_forth(call, lambda: call.command("start forwarding"), "forwarding", lambda: call.command("stop forwarding"))
    await call.hang_up()
    await call.check_media()


async def test_playback(ng: Scene, tmp_path: Path) -> None:
    """An announcement reaches a party by the relay alone."""
    data = bytes(16_000 * 8)
    wave = tmp_path / "silence.wav"
    wave.write_bytes(b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16) + b"data" + struct.pack("<I", len(data)) + data)
    call = ng.call()
    await call.connect()
    await call.offloaded()
    await call.command("play media", from_tag=call.caller.tag, file=str(wave))
    await call.stays("playback")
    await call.command("stop media", from_tag=call.caller.tag)
    await call.offloaded()
    await call.hang_up()


async def test_subscription(ng: Scene) -> None:
    """A third party gets a copy of the caller's media; the relay makes it."""
    call = ng.call()
    await call.connect()
    await call.offloaded()
    request = await call.command("subscribe request", from_tag=call.caller.tag)
    listener = ng.phone("callee", "listener")
    answer = sdp(listener.at, listener.ports, (Line(attributes=(*AUDIO.attributes, "recvonly")),))
    await call.command("subscribe answer", sdp=answer, to_tag=request["to-tag"])
    await call.stays("subscription")
    assert listener.streams[0].got, "the listener hears nothing"
    await call.command("unsubscribe", to_tag=request["to-tag"])
    await call.offloaded()
    await call.hang_up()
    await call.check_media()


async def _subscribe(call: Call, **who: Any) -> tuple[Phone, str]:
    """A recorder that gets a copy of the media of one party, and the tag of its subscription."""
    request = await call.command("subscribe request", **who)
    recorder = call.scene.phone("callee", "recorder")
    answer = sdp(recorder.at, recorder.ports, (Line(attributes=(*AUDIO.attributes, "recvonly")),))
    await call.command("subscribe answer", sdp=answer, to_tag=request["to-tag"])
    return recorder, request["to-tag"]


async def test_two_subscriptions(ng: Scene) -> None:
    """The end of one recording leaves the other one whole; the stream is offloaded after the last one."""
    call = ng.call()
    await call.connect()
    await call.offloaded()
    caller = call.caller.streams[0]
    (one, first), (two, second) = [await _subscribe(call, from_tag=call.caller.tag) for _ in range(2)]
    await call.stays("subscription")
    if not ng.alone:
        view = await call.view()
        assert view is not None
        (media,) = view["media"]
        told = {hold["subscription"]: hold["to"] for hold in media["held_by"]}
        assert media["recorders"] == 2 and told == {tag: [f"{recorder.at}:{recorder.ports[0]}"] for recorder, tag in ((one, first), (two, second))}
    start = len(caller.sent)
    await asyncio.sleep(0.5)
    await call.command("unsubscribe", to_tag=first)
    await asyncio.sleep(1)
    await call.stays("subscription")
    end = len(caller.sent) - 5  # the last ones may be under way
    sent = {(caller.ssrc, seq) for seq in caller.sent[start:end]}
    await until(lambda: sent <= two.streams[0].got.keys(), lambda: f"missing at the second recorder: {len(sent - two.streams[0].got.keys())} of {len(sent)}")
    assert one.streams[0].got.keys() & sent < sent, "the first recorder still gets copies"
    await call.command("unsubscribe", to_tag=second)
    await call.offloaded()
    await call.hush()
    # A delete with a from-tag leaves the call at rtpengine 10.5 that had two subscriptions.
    await call.command("delete")
    await call.check_media()


async def test_an_end_of_dtmf_blocking_leaves_media_blocked(ng: Scene) -> None:
    """Two commands of one reason."""
    call = ng.call()
    await call.connect()
    await call.offloaded()
    for command in ("block media", "block DTMF", "unblock DTMF"):
        await call.command(command, from_tag=call.caller.tag)
    await call.stays("media-blocked")
    await call.command("unblock media", from_tag=call.caller.tag)
    await call.offloaded()
    await call.hang_up()


async def test_fax(ng: Scene) -> None:
    """A re-INVITE to T.38 over UDPTL: it is no RTP."""
    call = ng.call()
    await call.connect()
    await call.offloaded()
    await call.hush()
    fax = Line("image", "t38", "udptl", attributes=("T38FaxVersion:0", "T38FaxRateManagement:transferredTCF"))
    await call.change(text=sdp(call.caller.at, call.caller.ports, (fax,)), back=sdp(call.callee.at, call.callee.ports, (fax,)))
    call.talk()
    await call.stays("t38")
    await call.hang_up()


async def test_a_command_that_is_not_known(ng: Scene) -> None:
    """It passes as it is. What the relay refuses changes nothing."""
    call = ng.call()
    await call.connect()
    await call.offloaded()
    reply = await ng.ask("frobnicate", call_id=call.id)
    assert reply == {"result": "error", "error-reason": "Unrecognized command"}
    await asyncio.sleep(0.5)
    await call.offloaded()
    await call.hang_up()
    await call.check_media()


async def test_an_error_is_passed_on(ng: Scene) -> None:
    with pytest.raises(NgError, match="Unknown call-id"):
        await ng.command("query", call_id="nobody")
