"""Plain media of every shape is offloaded, and a change in signalling is followed: nothing is lost that rtpengine alone would deliver."""

from __future__ import annotations

import asyncio

import pytest

from tests.lab.topology import NAT_IP
from tests.ng.phone import AUDIO, VIDEO, Line, sdp
from tests.ng.scene import Scene

pytestmark = [pytest.mark.netns, pytest.mark.e2e]

MUX = Line(attributes=(*AUDIO.attributes, "rtcp-mux"))
SHAPES = {
    "audio": {},
    "audio-and-video": {"lines": (AUDIO, VIDEO)},
    "nat": {"host": "natcaller"},
    "ipv6": {"versions": (6, 6)},
    "ipv4-to-ipv6": {"versions": (4, 6), "address_family": "IP6"},
    "ipv6-to-ipv4": {"versions": (6, 4), "address_family": "IP4"},
    "two-interfaces": {"direction": ["outside", "inside"]},
}


async def _place(ng: Scene, shape: str):
    options = dict(SHAPES[shape])
    family = options.pop("address_family", None)
    direction = options.pop("direction", None)
    call = ng.call(**options)
    of_offer = {**({"address_family": family} if family else {}), **({"direction": direction} if direction else {})}
    text = await call.offer(**of_offer)
    await call.answer()
    # A phone behind NAT is reached once it has sent.
    call.caller.talk()
    await asyncio.sleep(0.1)
    call.callee.talk()
    return call, text


@pytest.mark.parametrize("shape", SHAPES)
async def test_plain_media_is_offloaded(ng: Scene, shape: str) -> None:
    call, text = await _place(ng, shape)
    if shape == "two-interfaces":
        assert "198.18.2.1" in text and call.caller.relays[0].rtp[0] == "198.18.1.1"
    await call.offloaded()
    await call.talked()
    if shape == "nat" and not ng.alone:
        learned = [leg["learned"] for leg in (await call.view())["media"][0]["legs"].values()]
        assert any(each and each.startswith(f"{NAT_IP}:") for each in learned), learned
    await call.hang_up()
    await call.check_media()


async def test_reports_in_the_media_stream(ng: Scene) -> None:
    """rtcp-mux on both sides: one stream, whose RTCP arrives too."""
    call = ng.call((MUX,), muxed=(True, True))
    await call.connect()
    await call.offloaded("rtp")
    await call.talked(1.0)
    await call.hang_up()
    await call.check_media()


async def test_reports_muxed_on_one_side_only(ng: Scene) -> None:
    """rtcp-mux towards the caller, two ports towards the callee: the relay has to take them apart."""
    call = ng.call((MUX,), muxed=(True, False))
    text = await call.offer(rtcp_mux=["demux"])
    assert "rtcp-mux" not in text
    await call.answer(text=sdp(call.callee.at, call.callee.ports))
    call.talk()
    await call.stays("rtcp-demux")
    await call.talked(1.0)
    await call.hang_up()
    await call.check_media()


async def test_early_media(ng: Scene) -> None:
    """The callee is heard before any answer, after a 183 and after the 200, which has the same SDP."""
    call = ng.call()
    await call.offer()
    call.callee.talk()
    await asyncio.sleep(0.3)
    await call.answer()
    call.caller.talk()
    await call.offloaded("rtp")
    await call.answer()
    await call.offloaded()
    await call.hang_up()
    await call.check_media()


async def test_late_offer(ng: Scene) -> None:
    """The 200 has the offer, the ACK the answer: the tags change places."""
    call = ng.call()
    await call.offer(call.callee)
    await call.answer(call.caller)
    call.talk()
    await call.offloaded()
    await call.hang_up()
    await call.check_media()


async def test_reinvite_without_a_change(ng: Scene) -> None:
    call = ng.call()
    await call.connect()
    await call.offloaded()
    await call.change()
    await call.offloaded()
    await call.change(call.callee)
    await call.offloaded()
    await call.hang_up()
    await call.check_media()


@pytest.mark.parametrize("who", ["caller", "callee"])
async def test_reinvite_to_another_port(ng: Scene, who: str) -> None:
    """rtpengine opens a new port towards the other party; the media of both goes on by it."""
    call = ng.call()
    await call.connect()
    await call.offloaded()
    await call.hush()
    mover, other = (call.caller, call.callee) if who == "caller" else (call.callee, call.caller)
    before = other.relays[0].rtp
    mover.moves()
    await call.change(mover)
    assert other.relays[0].rtp != before, "the relay was expected to open another port"
    call.talk()
    await call.offloaded()
    await call.talked()
    if not ng.alone:
        learned = {leg["learned"] for leg in (await call.view())["media"][0]["legs"].values()}
        assert learned == {f"{phone.at}:{phone.ports[0]}" for phone in (call.caller, call.callee)}
    await call.hang_up()
    await call.check_media()


async def test_hold_and_resume(ng: Scene) -> None:
    """sendonly: music goes one way; afterwards both ways are offloaded again."""
    call = ng.call()
    await call.connect()
    await call.offloaded()
    hold = sdp(call.caller.at, call.caller.ports, (Line(attributes=(*AUDIO.attributes, "sendonly")),))
    held = sdp(call.callee.at, call.callee.ports, (Line(attributes=(*AUDIO.attributes, "recvonly")),))
    await call.callee.hush()
    await call.change(text=hold, back=held)
    await asyncio.sleep(1.0)
    await call.change()
    call.callee.talk()
    await call.offloaded()
    await call.hang_up()
    await call.check_media()


async def test_hold_with_a_null_address(ng: Scene) -> None:
    call = ng.call()
    await call.connect()
    await call.offloaded()
    await call.callee.hush()
    await call.change(text=call.sdp(call.caller).replace(f"c=IN IP4 {call.caller.at}", "c=IN IP4 0.0.0.0"))
    await asyncio.sleep(0.5)
    if not ng.alone:
        reasons = {s["reason"] for s in await call.streams()}
        assert "on-hold" in reasons, reasons
    await call.change()
    call.callee.talk()
    await call.offloaded()
    await call.hang_up()
    await call.check_media()


async def test_video_is_switched_off_and_on_again(ng: Scene) -> None:
    call = ng.call((AUDIO, VIDEO))
    await call.connect()
    await call.offloaded()
    await call.hush()
    off = AUDIO, Line("video", "96", port=0, attributes=VIDEO.attributes)
    await call.change(text=sdp(call.caller.at, call.caller.ports, off), back=sdp(call.callee.at, call.callee.ports, off))
    assert [relay.rtp[1] == 0 for relay in call.callee.relays] == [False, True]
    call.talk()
    await call.offloaded(line=0)
    await call.hush()
    await call.change()
    call.talk()
    await call.offloaded()
    await call.hang_up()
    await call.check_media()


async def test_a_phone_that_loses_a_fork_takes_nothing_with_it(ng: Scene) -> None:
    """Two phones ring, each with a branch of its own and early media; one answers, the branch of the other is deleted."""
    call = ng.call()
    loser = ng.phone("callee", "loser")
    await call.offer(via_branch="branch-lost")
    loser.relays = call.callee.relays
    await call.offer(via_branch="branch-won")
    assert loser.relays != call.callee.relays, "each branch has ports of its own"
    loser.talk()
    await call.command("answer", sdp=call.sdp(loser), received_from=["IP4", loser.at], from_tag=call.caller.tag, to_tag=loser.tag, via_branch="branch-lost", **call.keys)
    await asyncio.sleep(0.2)
    await loser.hush()
    await call.answer(via_branch="branch-won")
    call.talk()
    await call.offloaded()
    await call.command("delete", from_tag=call.caller.tag, via_branch="branch-lost")
    await call.offloaded()
    await call.talked()
    await call.offloaded()
    await call.hang_up()
    await call.check_media()


async def test_dtmf_goes_with_the_stream(ng: Scene) -> None:
    """Telephone events are packets of the same stream: they arrive as such, and it stays offloaded."""
    call = ng.call()
    await call.connect()
    await call.offloaded()
    call.caller.payload_type = 101
    await asyncio.sleep(0.3)
    call.caller.payload_type = 0
    await asyncio.sleep(0.3)
    await call.offloaded("rtp")
    await call.hang_up()
    await call.check_media()
    assert list(call.callee.streams[0].got.values()).count(101) >= 10


async def test_a_delete_stops_media_at_once(ng: Scene) -> None:
    """What is sent once the delete has taken effect is not forwarded."""
    call = ng.call()
    await call.connect()
    await call.offloaded()
    await call.command("delete", from_tag=call.caller.tag)
    await ng.clean()
    await asyncio.sleep(0.15)
    got = [len(phone.streams[0].got) for phone in (call.caller, call.callee)]
    await asyncio.sleep(0.5)
    assert [len(phone.streams[0].got) for phone in (call.caller, call.callee)] == got
    await call.hush()


async def test_a_call_with_many_lines(ng: Scene) -> None:
    """Twelve media lines, and an SDP of more than 12 kB."""
    long = Line(attributes=(*AUDIO.attributes, *(f"x-filler-{number}:{'x' * 200}" for number in range(5))))
    call = ng.call((long,) * 12)
    assert len(call.sdp(call.caller)) > 12_000
    await call.connect()
    await call.offloaded("rtp")
    await call.hang_up()
    await call.check_media()
