"""Migrations in BMv2 under live packets: the agent changes tree designs, two become three and two again, and who stays misses nothing and gets nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from shunt.conference.frames import FrameError, read_datagram
from shunt.conference.rtp import parse_header
from shunt.net import Endpoint, FiveTuple
from tests.p4.test_conference_agent_bmv2 import DD, Scene, Someone, device, meet, program, scene, settled, until  # noqa: F401
from tests.vectors.model import Port

pytestmark = pytest.mark.netns

_GAP_S = 0.01


class Stream:
    """Packets of one medium of a participant, numbered, until it is over."""

    def __init__(self, scene: Scene, sender: Someone, kind: str) -> None:  # noqa: F811
        self._scene, self.sender, self.kind = scene, sender, kind
        self.ssrc = sender.ssrc + (0x200 if kind == "video" else 0)
        self.sent = 0

    def send(self) -> None:
        """The next packet."""
        payload = bytes((0x80, 96 if self.kind == "video" else 0)) + self.sent.to_bytes(2, "big") + bytes(4) + self.ssrc.to_bytes(4, "big") + bytes(40)
        self._scene.send(self.sender, self.kind, payload)
        self.sent += 1

    async def go_on(self) -> None:
        while True:
            self.send()
            await asyncio.sleep(_GAP_S)

    def at(self, one: Someone, relays: dict[str, Endpoint] | None = None) -> list[int]:
        """The numbers that a participant got, in the order of their coming, all by its own port; checksums were right, or they are not here. relays: those of
        another time."""
        flow, found = FiveTuple((relays or one.relays)[self.kind], one.at(self.kind)), []
        for port, frame in self._scene.frames:
            if port is not Port.CPU:
                try:
                    datagram = read_datagram(frame)
                except FrameError:
                    continue
                if datagram is not None and datagram.flow == flow and int.from_bytes(datagram.payload[8:12], "big") == self.ssrc:
                    assert port is one.hop.port
                    found.append(parse_header(datagram.payload).sequence)
        return found


def unbroken(numbers: list[int]) -> bool:
    return bool(numbers) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_live_packets_over_migrations_in_both_directions(scene: Scene) -> None:  # noqa: F811
    ann, bob, tom = scene.people.values()
    await meet(scene)
    sound, pictures = Stream(scene, ann, "audio"), Stream(scene, ann, "video")
    for one in (ann, bob, tom):  # whose pictures are known by a packet
        Stream(scene, one, "video").send()
    pictures.sent = 1
    room, conferences = scene.conferences.book.get("room"), scene.conferences
    await until(lambda: all(one.legs["video"].ssrcs for one in room.participants.values()), "sources of pictures")
    await settled(scene)
    scene.frames.clear()

    async def becomes(design: str, change: Callable[[], object]) -> None:
        """A change, and some packets after it."""
        change()
        await until(lambda: conferences.list()[0]["design"] == design, design)
        await settled(scene)
        before = sound.sent
        await until(lambda: sound.sent > before + 5, "packets")

    def seat() -> None:
        answer = conferences.join("room", "tom", ["audio", "video"], [Endpoint.of(tom.ip, 0).addr], layers={"video": DD})
        tom.relays = {leg["medium"]: Endpoint.parse(leg["relay"]) for leg in answer["media"]}
        scene.send(tom, "audio", tom.audio())
        Stream(scene, tom, "video").send()

    sending = [asyncio.create_task(stream.go_on()) for stream in (sound, pictures)]
    try:
        await becomes("NRA", lambda: None)
        await becomes("RA-SR", lambda: conferences.set_quality("room", "ann", "tom", "audio"))
        await becomes("RA-R", lambda: conferences.set_quality("room", "bob", "tom", "audio"))
        await becomes("NRA", lambda: [conferences.set_quality("room", sender, "tom", "screen") for sender in ("ann", "bob")])
        await becomes("two-party", lambda: conferences.leave("room", "tom"))
        gone = tom.relays
        await becomes("NRA", seat)
        await becomes("two-party", lambda: conferences.leave("room", "tom"))
    finally:
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
    await until(lambda: all(stream.at(bob)[-1:] == [stream.sent - 1] for stream in (sound, pictures)), "the last packets")
    await asyncio.sleep(0.3)
    for stream in (sound, pictures):
        got = stream.at(bob)
        assert unbroken(got), f"{stream.kind}: {len(got)} of {stream.sent}, lost {sorted(set(range(got[0], stream.sent)) - set(got))[:9]}, twice {sorted(n for n in set(got) if got.count(n) > 1)[:9]}"
        assert got[-1] == stream.sent - 1 and len(got) > 80
        assert stream.at(ann) == [], "nobody gets his own"
        assert unbroken(stream.at(tom)), "one stretch at his second seat"
    assert gone != tom.relays and unbroken(sound.at(tom, gone))
    shown = pictures.at(tom, gone)
    steps = [after - before for before, after in zip(shown, shown[1:])]
    assert sum(step != 1 for step in steps) == 1 and min(steps) == 1, "his pictures stop once, and come again"
