"""RTCP of participants: what goes to whom, how often, and what it changes."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from aioice import stun

from tests.tools.conference import rtcp
from tests.tools.conference.rtcp import Kind, Report
from tests.agent_conference.lab import Camera, Lab, pli
from tests.lab.party import Party, come_to_rest

_SR = struct.Struct("!BBHIIIIII")
_RECENT = 30  # packets
_REQUESTS_S = 0.5  # between two requests for a key frame that a sender gets


def sender_report(party: Party, stamp: int) -> bytes:
    return _SR.pack(0x80, 200, 6, party.ssrc, stamp, 0, 0, party.sent, party.sent * 160)


def items(data: bytes, kind: Kind) -> list[bytes]:
    return [data[item.where] for item in rtcp.walk(data) if item.kind is kind]


def got(party: Party, kind: Kind) -> list[bytes]:
    """Items of this kind that have come."""
    return [item for data in list(party.rtcp) for item in items(data, kind)]


def renumbered_without_doubles(receiver: Party, sender: Party) -> list[int]:
    numbers = receiver.sequences[sender.ssrc]
    assert len(set(numbers)) == len(numbers), "a sequence number came twice"
    return numbers


def await_layers(lab: Lab, receiver: Party, sender: Party, *layers: set[int], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Wait until what a receiver gets of a camera for a while are the packets of one of these sets, by their place in the pattern of layers."""
    begun = len(receiver.received(sender))

    def recent() -> set[int]:
        meanwhile()
        numbers = receiver.received(sender)
        return {number % 4 for number in numbers[-_RECENT:]} if len(numbers) >= begun + _RECENT else set()

    lab.until(recent, lambda found: found in layers)


def test_sender_reports_go_to_all_at_once_and_without_their_report_blocks(lab: Lab) -> None:
    parties = lab.talking(4)
    for party in parties:
        party.hush()
    for stamp in range(200):
        parties[0].send_rtcp(sender_report(parties[0], stamp))
        time.sleep(0.005)

    def stamps(party: Party) -> list[int]:
        return [struct.unpack_from("!I", report, 8)[0] for report in got(party, Kind.SR) if len(report) == 28]

    # bench/feedback.py measures how long they take.
    lab.until(lambda: [stamps(other) for other in parties[1:]], lambda found: found == [list(range(200))] * 3)
    assert not got(parties[0], Kind.SR)


def test_key_frame_requests_of_many_are_one(lab: Lab) -> None:
    cameras = lab.talking(4, Camera)
    lab.await_copies()
    before, began = len(got(cameras[0], Kind.PLI)), time.monotonic()
    for _ in range(100):
        for receiver in cameras[1:]:
            receiver.send_rtcp(pli(receiver, cameras[0]))
        time.sleep(0.01)
    lab.until(lambda: len(got(cameras[0], Kind.PLI)) - before, lambda requests: requests >= 2)
    assert come_to_rest(lambda: len(got(cameras[0], Kind.PLI)))
    requests, took = len(got(cameras[0], Kind.PLI)) - before, time.monotonic() - began
    assert requests <= 2 + took / _REQUESTS_S, f"{requests} of 300 in {took:.1f} s"
    assert not any(got(other, Kind.PLI)[-1][8:12] != struct.pack("!I", other.ssrc) for other in cameras if got(other, Kind.PLI))


def test_a_nack_is_answered_to_who_asked_and_to_nobody_else(lab: Lab) -> None:
    cameras = lab.talking(3, Camera)
    lab.await_copies()
    sender, asks, other = cameras
    lost = [number & 0xFFFF for number in asks.received(sender)[-60:-50]]
    before = lab.metric("retransmitted")
    counts = {number: len([one for one in asks.sequences[sender.ssrc] if one == number]) for number in lost}
    assert set(counts.values()) == {1}
    asks.send_rtcp(rtcp.build_nack(asks.ssrc, sender.ssrc, lost))
    lab.until(lambda: [asks.sequences[sender.ssrc].count(number) for number in lost], lambda counts: counts == [2] * len(lost))
    time.sleep(0.3)
    assert len(set(other.sequences[sender.ssrc])) == len(other.sequences[sender.ssrc]), "the other one got it too"
    assert not got(sender, Kind.NACK), "the cache had it"
    assert lab.metric("retransmitted") == before + len(lost)


def test_fewer_layers_by_hand_have_numbers_of_their_own_and_are_repaired(lab: Lab) -> None:
    sender, limited, whole = lab.talking(3, Camera)
    lab.await_copies()
    lab.target(sender, limited, 0)
    lab.await_design("ra-sr")
    await_layers(lab, limited, sender, {0})
    numbers = renumbered_without_doubles(limited, sender)
    assert all(after == before + 1 & 0xFFFF for before, after in zip(numbers, numbers[1:])), "there is a gap"
    # One of its own numbers is asked for: the packet that it was comes again, to it alone. Where a frame began just when its row was written, it is not
    # certain which packet that was, and there is a key frame instead.
    lost, frame, asked = numbers[-10], limited.received(sender)[-10], len(got(sender, Kind.PLI))
    limited.send_rtcp(rtcp.build_nack(limited.ssrc, sender.ssrc, [lost]))
    lab.until(lambda: limited.sequences[sender.ssrc].count(lost) == 2 or len(got(sender, Kind.PLI)) > asked, bool)
    assert limited.sequences[sender.ssrc].count(lost) == 1 or limited.received(sender).count(frame) == 2
    renumbered_without_doubles(whole, sender)
    (one,) = [one for one in lab.room()["subscriptions"] if (one["sender"], one["receiver"]) == (sender.name, limited.name)]
    assert (one["target"], one["decided_by"]) == (0, "operator")


def test_what_is_raised_again_leaves_no_hole_that_is_asked_for_in_vain(lab: Lab) -> None:
    sender, limited, whole = lab.talking(3, Camera)
    lab.target(sender, limited, None)
    assert come_to_rest(lambda: len(limited.received(sender))), "it is not paused"
    lab.target(sender, limited, 2)
    limited.await_packets(sender)
    numbers = limited.sequences[sender.ssrc]
    at = next(at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1)
    hole = [*range(numbers[at - 1] + 1, numbers[at])]
    before = len(got(sender, Kind.NACK))
    limited.send_rtcp(rtcp.build_nack(limited.ssrc, sender.ssrc, hole[:64]))
    time.sleep(0.5)
    assert len(got(sender, Kind.NACK)) == before, "the sender is asked for what was never to come"
    assert len(set(whole.sequences[sender.ssrc])) == len(whole.sequences[sender.ssrc])


def test_an_estimate_takes_layers_away_and_gives_them_back(lab: Lab) -> None:
    sender, poor, rich = lab.talking(3, Camera)
    lab.until(lambda: [stream["targets_bits_per_s"] for member in lab.room()["members"] for stream in member["media"][0]["streams"]], lambda rates: all(len(one) == 3 for one in rates))

    def estimate(bitrate: int) -> None:
        poor.send_rtcp(rtcp.build_rr(poor.ssrc, [Report(sender.ssrc, 0, 0, 0, 0, 0, 0)]) + rtcp.build_remb(poor.ssrc, bitrate, [sender.ssrc]))
        rich.send_rtcp(rtcp.build_rr(rich.ssrc) + rtcp.build_remb(rich.ssrc, 5_000_000, [sender.ssrc]))
        time.sleep(0.2)

    for _ in range(5):
        estimate(5_000_000)
    await_layers(lab, poor, sender, {0, 2}, {0}, meanwhile=lambda: estimate(120_000))
    assert len({number % 4 for number in rich.received(sender)[-_RECENT:]}) == 4
    assert lab.events("target")[0]["receiver"] == poor.name
    await_layers(lab, poor, sender, {0, 1, 2, 3}, meanwhile=lambda: estimate(5_000_000))
    for _ in range(10):
        estimate(5_000_000)
    renumbered_without_doubles(poor, sender)
    # Of all estimates the sender hears one receiver's, the best downlink.
    estimates = [rtcp.remb(item, next(iter(rtcp.walk(item)))).bitrate for item in got(sender, Kind.REMB)]
    # Another one has to be the better one for two seconds, and then is the one that is passed on.
    assert estimates and min(estimates[-8:]) > 1_000_000, estimates[-8:]


def test_no_number_comes_twice_over_an_agent_that_is_killed(lab: Lab) -> None:
    sender, limited, whole = lab.talking(3, Camera)
    lab.target(sender, limited, 1)
    lab.await_design("ra-sr")
    await_layers(lab, limited, sender, {0, 2})
    lab.agent.kill()
    limited.await_packets(sender)
    lab.start_agent()
    lab.await_design("ra-sr")
    await_layers(lab, limited, sender, {0, 2})
    lab.target(sender, limited, 2)
    await_layers(lab, limited, sender, {0, 1, 2, 3})
    numbers = renumbered_without_doubles(limited, sender)
    assert all(after == before + 1 & 0xFFFF for before, after in zip(numbers, numbers[1:])), "there is a gap"
    renumbered_without_doubles(whole, sender)


def test_six_more_join_a_healthy_room_and_nobody_gets_less(lab: Lab) -> None:
    cameras = lab.talking(3, Camera)

    def estimates(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for one in cameras:
                others = [other.ssrc for other in cameras if other is not one]
                # As a browser's: 1.5 times what arrives, of what has come for a while.
                bitrate = int(1.5 * 200 * 190 * 8 * 2)
                one.send_rtcp(rtcp.build_rr(one.ssrc) + rtcp.build_remb(one.ssrc, bitrate, others))
            time.sleep(0.2)

    estimates(2)
    for at in range(3, 9):
        one = lab.party(("caller", "callee")[at % 2], f"p{at}", Camera)
        one.talk(lab.join(one)["media"][0]["address"])
        cameras.append(one)
        estimates(0.3)
    estimates(2)
    assert not lab.events("target"), lab.events("target")


def test_checks_are_answered_and_say_where_media_goes(lab: Lab) -> None:
    parties = lab.talking(2)
    listener = lab.party("callee", "browser")
    answer = lab.join(listener, {"medium": "audio", "direction": "recvonly"}, ice=True)
    host, port = answer["media"][0]["address"].rsplit(":", 1)
    listener.relay = (host, int(port))

    def check(password: str) -> None:
        request = stun.Message(stun.Method.BINDING, stun.Class.REQUEST, attributes={"USERNAME": f"{answer['ice']['ufrag']}:x", "PRIORITY": 1, "USE-CANDIDATE": None, "ICE-CONTROLLING": 1})
        request.add_message_integrity(password.encode())
        request.add_fingerprint()
        listener.send_rtcp(bytes(request))

    check("wrong" * 6)
    time.sleep(0.5)
    assert not listener.stun and not listener.got
    check(answer["ice"]["password"])
    listener.await_packets(*parties)
    reply = stun.parse_message(listener.stun[0])
    assert reply.message_class is stun.Class.RESPONSE and reply.check_message_integrity(answer["ice"]["password"].encode())
    assert reply.attributes["XOR-MAPPED-ADDRESS"][1] == listener.socket.getsockname()[1]
