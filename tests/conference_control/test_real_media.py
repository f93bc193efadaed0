"""Conferences of people with cameras: FFmpeg encodes, the real softswitch copies, FFmpeg decodes, and every frame is held against what was shown."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import numpy as np

from tests.tools.conference.rtcp import build_remb, build_rr
from tests.conference_control import media
from tests.conference_control.lab import Bridge, await_that
from tests.conference_control.media import FRAMES, GOP, RATE, SOUND_S, Person, decode, pictures, read_squares, tone_of
from tests.conference_control.room import NEEDS as pytestmark

WORST = 3.0  # mean difference of luma between what was shown and what was decoded, of 255


def await_pictures(receiver: Person, *senders: Person, count: int = 5) -> None:
    """Wait until this many packets of each sender's pictures have come."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not all(len(receiver.packets_of(one, "video")) >= count for one in senders):
        time.sleep(0.02)
    assert all(len(receiver.packets_of(one, "video")) >= count for one in senders), f"{receiver.name} sees not all"


def await_shown(sender: Person, count: int) -> None:
    """Wait until somebody has sent so many pictures."""
    assert await_that(lambda: len(sender.shown) >= count), f"{sender.name} has sent {len(sender.shown)} pictures"


def await_frames(receiver: Person, sender: Person, count: int) -> None:
    """Wait until packets of so many pictures of a sender have come."""
    assert await_that(lambda: len({data[4:8] for data in receiver.packets_of(sender, "video")}) >= count), f"{receiver.name} sees too few of {sender.name}"


def seen(receiver: Person, sender: Person) -> list[int]:
    """The numbers of the frames that a decoder makes of what a receiver has got of a sender; each is the sender's and as it was shown."""
    numbers = []
    for luma in decode("video", receiver.packets_of(sender, "video")):
        whose, number = read_squares(luma)
        difference = float(np.abs(luma.astype(int) - pictures(sender.clip).pictures[number]).mean())
        assert whose == sender.clip and difference < WORST, f"{receiver.name} of {sender.name}: frame {number} of {whose} is {difference:.1f} off"
        numbers.append(number)
    return numbers


def unbroken_run(numbers: list[int], shown: list[int]) -> bool:
    """Whether these frames were shown one after the other, beginning with a key frame."""
    text, part = " ".join(map(str, shown)) + " ", " ".join(map(str, numbers)) + " "
    return bool(numbers) and numbers[0] % GOP == 0 and f" {part}" in f" {text}"


def heard(receiver: Person, sender: Person) -> tuple[float, float]:
    """(frequency of the tone, seconds) of what a decoder makes of a sender's sound."""
    samples = np.concatenate(decode("audio", receiver.packets_of(sender, "audio")))
    return float(np.abs(np.fft.rfft(samples)).argmax()) * RATE / len(samples), len(samples) / RATE


def consecutive(packets: list[bytes]) -> bool:
    """Whether the sequence numbers follow each other without a gap or a double."""
    numbers = [int.from_bytes(data[2:4], "big") for data in packets]
    return all((after - before) & 0xFFFF == 1 for before, after in zip(numbers, numbers[1:]))


def test_three_see_and_hear_each_other_over_joins_and_leaves(room: Bridge) -> None:
    """Two talk, a third joins in mid-stream (relay to trees), one of the two leaves (and back): nobody's picture breaks."""
    ann, bob, cem = (Person(room, host, name, number) for number, (host, name) in enumerate((("caller", "ann"), ("callee", "bob"), ("natcaller", "cem")), 1))
    try:
        for one in (ann, bob):
            one.enter(room)
        await_pictures(ann, bob)
        await_pictures(bob, ann)
        await_shown(ann, 20)
        asked = ann.key_frames_asked
        cem.enter(room)
        room.await_design("NRA")
        await_pictures(cem, ann, bob)
        await_pictures(ann, cem)
        for receiver, sender in ((ann, bob), (bob, ann), (ann, cem), (cem, ann), (bob, cem), (cem, bob)):
            await_frames(receiver, sender, 2 * GOP)
        assert ann.key_frames_asked > asked, "who joins is given a picture to begin with"
        room.ask("DELETE", "/v1/conferences/room/participants/bob")
        room.await_design("two-party")
        await_shown(ann, len(ann.shown) + GOP)
    finally:
        for one in (ann, bob, cem):
            one.leave()
    pairs = [(receiver, sender) for receiver in (ann, bob, cem) for sender in (ann, bob, cem) if receiver is not sender]
    assert all(not receiver.packets_of(receiver, kind) for receiver in (ann, bob, cem) for kind in receiver.ssrcs), "nobody gets itself"
    for receiver, sender in pairs:
        for kind in ("audio", "video"):
            assert consecutive(receiver.packets_of(sender, kind)), f"{receiver.name} of {sender.name}: {kind} has gaps"
    with ThreadPoolExecutor(4) as pool:
        frames = list(pool.map(lambda pair: seen(*pair), pairs))
        sounds = list(pool.map(lambda pair: heard(*pair), pairs))
    for (receiver, sender), numbers, (tone, seconds) in zip(pairs, frames, sounds):
        what = f"{receiver.name} of {sender.name}"
        assert unbroken_run(numbers, sender.shown), f"{what}: {numbers} of {sender.shown}"
        assert tone == pytest.approx(tone_of(sender.clip), abs=3), what
        assert seconds == pytest.approx(len(receiver.packets_of(sender, "audio")) * SOUND_S, abs=0.1), what
    least = {("ann", "cem"): 15, ("cem", "ann"): 15}
    for (receiver, sender), numbers in zip(pairs, frames):
        assert len(numbers) >= least.get((receiver.name, sender.name), 12), f"{receiver.name} of {sender.name}: {len(numbers)} frames"
    assert max(ann.shown) < FRAMES


@pytest.mark.slow
def test_a_slow_receivers_pictures_come_less_often_and_never_break(room: Bridge) -> None:
    """By what it says it can take, 30 pictures/s become 15 and 7.5, and 30 again; a decoder shows each that comes as it was."""
    ann, bob, cem = (Person(room, host, name, number) for number, (host, name) in enumerate((("caller", "ann"), ("callee", "bob"), ("natcaller", "cem")), 1))

    def take_until(target: int, bitrate: Callable[[list[int]], float]) -> None:
        """Report until cem gets this target of ann's. bitrate: what it says, by the rates of the targets."""
        deadline, times = time.monotonic() + 120, 0
        while time.monotonic() < deadline:
            view = {one["receiver"]: one for one in room.conference()["downlinks"] if one["sender"] == "ann" and one["medium"] == "video"}
            rates = view["cem"]["rates"] if "cem" in view else []
            if len(rates) == 3 and view["cem"]["target"] == target and times > 2:
                return
            times += len(rates) == 3
            says = bitrate(rates) if len(rates) == 3 else 1e7
            for one, value in ((bob, 1e7), (cem, says)):
                one.report(build_rr(one.ssrcs["video"]) + build_remb(one.ssrcs["video"], int(value), [ann.ssrcs["video"]]))
            time.sleep(0.2)
        raise AssertionError(f"cem is not given target {target}: {room.conference()['downlinks']}")

    try:
        for one in (ann, bob, cem):
            one.enter(room, "video=vp8")
        await_pictures(cem, ann, bob)
        await_pictures(bob, ann)
        take_until(2, lambda rates: 1e7)
        take_until(1, lambda rates: (rates[1] + rates[2]) / 2)
        time.sleep(1.6)
        take_until(0, lambda rates: rates[0] * 1.01)
        time.sleep(1.6)
        asked = ann.key_frames_asked
        take_until(1, lambda rates: 1e7)
        take_until(2, lambda rates: 1e7)
        time.sleep(1.6)
        assert ann.key_frames_asked >= asked + 2, "a key frame is asked for with each step up"
    finally:
        for one in (ann, bob, cem):
            one.leave()
    assert consecutive(cem.packets_of(ann, "video")), "numbers of what is left out are closed up"
    assert consecutive(bob.packets_of(ann, "video"))
    with ThreadPoolExecutor(2) as pool:
        slow, whole = pool.map(lambda pair: seen(*pair), ((cem, ann), (bob, ann)))
    assert unbroken_run(whole, ann.shown)
    # Between two frames of a target's lie one, two or four, unless pictures begin anew.
    steps = [(after - before) % FRAMES for before, after in zip(slow, slow[1:])]
    runs = [(step, len(list(those))) for step, those in itertools.groupby(steps)]
    longest = [max((length for step, length in runs if step == wanted), default=0) for wanted in (1, 2, 4)]
    assert longest[0] >= 20 and longest[1] >= 10 and longest[2] >= 6, runs
    order = [step for step, length in runs if length >= 4 and step in (1, 2, 4)]
    assert [step for step, _ in itertools.groupby(order)] == [1, 2, 4, 2, 1], runs


@pytest.mark.slow
def test_ten_with_pictures_and_sound(room: Bridge) -> None:
    """Ten, one after the other; two leave in mid-stream. What all others get of each other has no gap, and decodes."""
    hosts = ("caller", "callee", "natcaller")
    people = [Person(room, hosts[number % 3], f"p{number}", number) for number in range(10)]
    try:
        for one in people:
            one.enter(room)
        for one in people:
            # Requests for key frames of many joins are one every half second: so many packets have a key frame among them.
            await_pictures(one, *(other for other in people if other is not one), count=3 * GOP)
        for gone in people[8:]:
            room.ask("DELETE", f"/v1/conferences/room/participants/{gone.name}")
        time.sleep(1.0)
        assert {one["name"] for one in room.conference()["participants"]} == {one.name for one in people[:8]}
    finally:
        for one in people:
            one.leave()
    for receiver in people:
        for sender in people:
            if receiver is not sender:
                for kind in ("audio", "video"):
                    assert consecutive(receiver.packets_of(sender, kind)), f"{receiver.name} of {sender.name}: {kind} has gaps"
    pairs = [(people[number], people[(number + 3) % 10]) for number in range(10)]
    with ThreadPoolExecutor(4) as pool:
        for (receiver, sender), numbers in zip(pairs, pool.map(lambda pair: seen(*pair), pairs)):
            stayed = sender in people[:8] and receiver in people[:8]
            assert unbroken_run(numbers, sender.shown) and len(numbers) >= (10 if stayed else 1), f"{receiver.name} of {sender.name}: {numbers} of {sender.shown}"
