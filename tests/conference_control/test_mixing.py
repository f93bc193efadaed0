"""Telephones in a conference get one stream, which a mixer makes: softswitch, agent, mixers and operator daemon as processes; phones dial in and send tones."""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conference_control.lab import Bridge, Phone, await_that, bridge
from tests.conference_control.room import NEEDS as pytestmark
from tests.lab.processes import ROOT, Process, open_socket
from tests.lab.topology import CALLEE_IP, CALLER_IP, LabError, Topology
from tests.mixer_daemon.process import _Connection
from tests.tools.conference import rtcp
from tests.tools.tone import G722, HEARD, OPUS, PCMA, PCMU, Codec, Talk, TonePhone, await_heard, await_silence, await_tone, loudest

MIXER = os.environ.get("SHUNT_MIXER") or str(ROOT / "target/release/shunt-mixer")
PORT = 45_000
ANNOUNCED = 3000
_numbers = itertools.count()


class MixBridge(Bridge):
    """With two mixers, on the hosts of the phones."""

    def __init__(self, topology: Topology, work: Path) -> None:
        super().__init__(topology, work)
        self.mixers: dict[str, Process] = {}
        self.sounds: dict[str, TonePhone] = {}
        self.controls = {host: Path("/run") / f"{topology.prefix}-{host}-mixer.sock" for host in ("caller", "callee")}
        self.settings["conference"]["mixer"] = [f"unix:{path}" for path in self.controls.values()]
        for host, ip in (("caller", CALLER_IP), ("callee", CALLEE_IP)):
            section = {
                "listen": f"unix:{self.controls[host]}",
                "allow": [],
                "socket_group": "root",
                "address": ip,
                "port": PORT,
                "receivers": 400,
                "load": 0.9,
                "announcements": {"joined": f"tone:{ANNOUNCED}", "left": None},
            }
            document = {"valid": True, "errors": [], "config": {"mixer": section, "log": {"level": "info", "format": "text"}}}
            (work / f"mixer-{host}.json").write_text(json.dumps(document))
            self.mixers[host] = Process(topology, host, f"mixer-{host}", [MIXER, "-c", str(work / f"mixer-{host}.json")], work / f"mixer-{host}.log")

    def start(self) -> None:
        for host in self.mixers:
            self.start_mixer(host)
        super().start()

    def start_mixer(self, host: str) -> None:
        self.mixers[host].start().await_unix(self.controls[host])

    def stop(self) -> None:
        for mixer in self.mixers.values():
            mixer.stop()
        super().stop()

    def party(self, host: str, name: str) -> TonePhone:  # type: ignore[override]
        return self.sounds[name]

    def sound(self, host: str, name: str, codec: Codec) -> TonePhone:
        """A phone's ear and mouth."""
        number = next(_numbers)
        made = open_socket(self.topology, host, socket.AF_INET, socket.SOCK_DGRAM)
        made.bind(("0.0.0.0", 46_000 + 2 * number))
        self.sounds[name] = TonePhone(name, codec, 400 + 110 * (number % 20), 0x7000 + number, made)
        return self.sounds[name]

    def dial(self, host: str, name: str, codec: Codec) -> Phone:
        """A phone that has called `room`."""
        sound = self.sound(host, name, codec)
        phone = Phone(self, host, name)
        kind = codec.payload_type
        media = f"m=audio {{port}} RTP/AVP {kind} 101\r\na=rtpmap:{kind} {codec.rtpmap}\r\na=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-15\r\n"
        assert phone.call("room", media) == 200, phone.answer
        assert f" {kind} 101\r\n" in phone.answer and sound.to is not None
        return phone

    def one(self, name: str) -> dict[str, Any]:
        return next(one for one in self.conference()["participants"] if one["name"] == name)

    def placed(self) -> str:
        """The host of the conference's mixer."""
        control = self.conference()["mixer"]
        return next((host for host, path in self.controls.items() if control == f"unix:{path}"), "")

    def mixed(self, *names: str) -> bool:
        found = {one["name"]: one["gets_mix"] and one["media"][0]["source"] for one in self.conference()["participants"]}
        return all(found.get(name) for name in names)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[MixBridge]:
    with bridge(tmp_path, MixBridge) as made:
        made.ask("POST", "/v1/conferences?name=room")
        made.await_ready()
        yield made


def reports_go_both_ways(room: MixBridge) -> None:
    """Ann hears of her mix, and of what came of hers; the mixer hears what ann says of the mix."""
    ann = room.sounds["ann"]
    mix = ann.heard[-1].ssrc
    ann.report(rtcp.build_rr(ann.ssrc))

    def items(kind: rtcp.Kind) -> list[tuple[bytes, rtcp.Item]]:
        return [(packet, item) for _, packet in list(ann.rtcp) for item in rtcp.walk(packet) if item.kind is kind]

    def infos() -> list[rtcp.SenderInfo]:
        return [rtcp.sender_info(packet, item) for packet, item in items(rtcp.Kind.SR)]

    def blocks() -> list[rtcp.Report]:
        return [block for packet, item in items(rtcp.Kind.RR) for block in rtcp.reports(packet, item)]

    assert await_that(lambda: infos() and any(block.ssrc == ann.ssrc for block in blocks())), room.agent.tail()
    assert {info.ssrc for info in infos()} == {mix}, "the reports of others' mixes are theirs"
    assert {ssrc for packet, item in items(rtcp.Kind.SDES) for ssrc in rtcp.cnames(packet, item)} == {mix}
    ann.report(rtcp.build_rr(ann.ssrc, [rtcp.Report(mix, 128, 1, 1, 0, 0, 0)]))

    def reported() -> Any:
        connection = _Connection(str(room.controls[room.placed()]))
        connection.request("GET", "/v1/conferences")
        (found,) = json.loads(connection.getresponse().read())["conferences"]
        connection.close()
        return next(one["reported"] for one in found["participants"] if one["participant"] == "ann")

    assert await_that(lambda: (reported() or {}).get("lost") == 0.5)


def test_phones_of_four_codecs_hear_all_others_in_one_stream_over_losses_and_leaves(room: MixBridge) -> None:
    kinds = [("caller", "ann", PCMA), ("callee", "bob", PCMU), ("caller", "cem", G722), ("callee", "dia", OPUS), ("callee", "eve", PCMA)]
    with Talk([]) as talk:
        phones = {}
        for host, name, codec in kinds:
            phones[name] = room.dial(host, name, codec)
            talk.phones.append(room.sounds[name])
        ears = list(room.sounds.values())
        assert await_that(lambda: room.mixed(*phones)), (room.conference(), room.agent.tail())
        await_heard(ears)
        since = time.monotonic()
        assert await_that(lambda: all(len(ear.since(since)) > 10 for ear in ears))
        for ear in ears:
            heard = ear.since(since)
            assert len({packet.ssrc for packet in heard}) == 1, f"{ear.name} gets more than one stream"
            assert {packet.payload_type for packet in heard} == {ear.codec.payload_type}
            assert set(heard[-1].csrcs) == {other.ssrc for other in ears if other is not ear}
        assert room.conference()["speaker"] in phones
        reports_go_both_ways(room)
        # Five of a hundred packets are lost.
        room.sounds["bob"].drops = frozenset((7, 23, 48, 71, 90))
        room.sounds["dia"].drops = frozenset((11, 30, 52, 66, 97))
        await_heard(ears)
        # One that takes several streams, and whose codec is not known but by its payload type, gets each by itself.
        rest = room.sound("caller", "rex", PCMU)
        talk.phones.append(rest)
        rest.talk(room.ask("POST", "/v1/conferences/room/participants?name=rex&media=audio")["media"][0]["relay"])
        await_heard(ears)
        assert await_that(lambda: len({packet.ssrc for packet in rest.since(time.monotonic() - 0.5)}) == len(ears))
        assert not room.one("rex")["gets_mix"] and rest.ssrc not in {packet.ssrc for packet in rest.since(since)}
        await_tone(room.sounds["cem"], rest.hz)
        with pytest.raises(LabError, match="error: 400"):
            room.ask("POST", "/v1/conferences/room/mixed?participant=rex&mixed=yes")
        with pytest.raises(LabError, match="error: 400"):
            room.ask("POST", "/v1/conferences/room/mixed?participant=ann&mixed=no")
        # Star and six mute; star and nine leave.
        for key in (10, 6):
            room.sounds["bob"].press(key)
            time.sleep(0.1)
        assert await_that(lambda: room.one("bob")["muted"])
        await_silence(room.sounds["ann"], room.sounds["bob"].hz)
        for key in (10, 9):
            room.sounds["eve"].press(key)
            time.sleep(0.1)
        assert phones["eve"].receive().startswith("BYE sip:eve@")
        assert phones["dia"].bye() == 200
        assert await_that(lambda: [one["name"] for one in room.conference()["participants"]] == ["ann", "bob", "cem", "rex"])
        for gone in ("eve", "dia"):
            await_silence(room.sounds["ann"], room.sounds[gone].hz)
        assert {record["participant"]: record["reason"] for record in room.records(2)} == {"eve": "keys", "dia": "bye"}
        assert all(record["media"][0]["received_packets"] > 100 for record in room.records(2)), "a mix counts as received"


def test_a_phone_that_calls_without_an_offer_gets_a_mix_in_its_own_codec(room: MixBridge) -> None:
    """The offer has all that a mixer speaks; what the answer in the ACK names is heard, and spoken."""
    with Talk([]) as talk:
        room.dial("callee", "ann", OPUS)
        room.dial("callee", "bob", PCMU)
        ear = room.sound("caller", "cem", G722)
        phone = Phone(room, "caller", "cem")
        media = f"m=audio {{port}} RTP/AVP {ear.codec.payload_type} 101\r\na=rtpmap:{ear.codec.payload_type} {ear.codec.rtpmap}\r\na=rtpmap:101 telephone-event/8000\r\n"
        assert phone.call_without_offer("room", media) == 200
        for codec in ("opus/48000/2", "G722/8000", "PCMA/8000", "PCMU/8000", "telephone-event/8000"):
            assert f" {codec}\r\n" in phone.answer, phone.answer
        talk.phones += room.sounds.values()
        assert await_that(lambda: room.mixed("ann", "bob", "cem")), (room.conference(), room.agent.tail())
        await_heard(list(room.sounds.values()))
        assert {packet.payload_type for packet in ear.heard} == {ear.codec.payload_type}
        ear.press(10)
        time.sleep(0.1)
        ear.press(6)
        assert await_that(lambda: room.one("cem")["muted"]), "its keys mean something"


def test_tiled_streams_are_asked_for_over_rest(room: MixBridge) -> None:
    room.ask("POST", "/v1/conferences/room/participants?name=rex&media=audio")
    for query in (
        "codec=VP8",
        "codec=H261&places=9",
        "codec=H264&places=many",
        "codec=H261&columns=4",
        "codec=H264&columns=1",
        "codec=H264&columns=20",
        "codec=H261&predicted=perhaps",
        "codec=H261&receivers=rex",
    ):
        with pytest.raises(LabError, match="error: 400"):
            room.ask("POST", f"/v1/conferences/room/tiling?{query}")
    asked = room.ask("POST", "/v1/conferences/room/tiling?codec=H264&places=20&payload_type=99&predicted=yes&receivers=ann,bob")["tiling"]
    assert (asked["codec"], asked["places"], asked["payload_type"], asked["predicted"], asked["receivers"]) == ("H264", 20, 99, True, ["ann", "bob"])
    asked = room.ask("POST", "/v1/conferences/room/tiling?codec=H265&places=9")["tiling"]
    assert (asked["codec"], asked["places"], asked["predicted"]) == ("H265", 9, False)
    joined = room.ask("POST", "/v1/conferences/room/tiling?codec=H264&columns=4")["tiling"]
    assert (joined["columns"], joined["places"], joined["streams"]) == (4, None, [])
    assert room.ask("DELETE", "/v1/conferences/room/tiling")["tiling"] is None
    with pytest.raises(LabError, match="error: 404"):
        room.ask("DELETE", "/v1/conferences/room/tiling")


def test_who_joins_is_announced_where_that_is_wanted(room: MixBridge) -> None:
    with Talk([]) as talk:
        room.dial("caller", "ann", PCMA)
        talk.phones.append(room.sounds["ann"])
        assert await_that(lambda: room.mixed("ann")), room.agent.tail()
        for query in ("announcements=loud", ""):
            with pytest.raises(LabError, match="error: 400"):
                room.ask("POST", f"/v1/conferences/room/announcements?{query}")
        assert room.ask("POST", "/v1/conferences/room/announcements?announcements=yes")["announcements"] is True
        since = time.monotonic()
        room.dial("callee", "bob", PCMU)
        talk.phones.append(room.sounds["bob"])
        assert await_that(lambda: loudest(room.sounds["ann"], since, ANNOUNCED) > HEARD), room.agent.tail()
        assert await_that(lambda: loudest(room.sounds["ann"], time.monotonic() - 0.3, ANNOUNCED) < HEARD / 5)  # it is over
        # An agent that begins anew remembers, and announces nobody who was there. Nobody talks: packets that a busy machine delays would be clicks, which
        # have a little of every frequency.
        for sound in room.sounds.values():
            sound.talks = False
        await_silence(room.sounds["ann"], room.sounds["bob"].hz)
        since = time.monotonic()
        room.agent.kill()
        room.start_agent()
        room.await_ready()
        assert await_that(lambda: room.mixed("ann", "bob"))
        assert room.conference()["announcements"] is True
        now = time.monotonic()
        assert await_that(lambda: len(room.sounds["ann"].since(now)) > 50)
        assert loudest(room.sounds["ann"], since, ANNOUNCED) < HEARD / 5


def test_a_mixer_and_an_agent_that_die_are_a_gap_at_most_and_no_call_ends(room: MixBridge) -> None:
    with Talk([]) as talk:
        phones = [room.dial(host, name, codec) for host, name, codec in (("caller", "ann", PCMA), ("callee", "bob", OPUS), ("callee", "cem", PCMA))]
        talk.phones.extend(room.sounds.values())
        ears = list(room.sounds.values())
        assert await_that(lambda: room.mixed("ann", "bob", "cem")), room.agent.tail()
        await_heard(ears)
        # The agent goes: mixes go on, and so does the placing when it is back.
        ssrcs = {packet.ssrc for packet in ears[0].since(time.monotonic() - 0.5)}
        since = time.monotonic()
        room.agent.kill()
        await_heard(ears)
        room.start_agent()
        room.await_ready()
        await_heard(ears)
        found = ears[0].since(since)
        assert {packet.ssrc for packet in found} == ssrcs, "the mix goes on as it was"
        assert {(later.sequence - before.sequence) & 0xFFFF for before, later in itertools.pairwise(found)} == {1}, "no packet of the mix is missing"
        # The mixer goes: another one has the conference.
        first = room.placed()
        came = len(ears[0].rtcp)
        ears[0].report(rtcp.build_rr(ears[0].ssrc))
        assert await_that(lambda: len(ears[0].rtcp) > came), "RTCP finds its way to the phone"
        died = time.monotonic()
        room.mixers[first].kill()
        assert await_that(lambda: room.placed() not in ("", first)), room.agent.tail()
        await_heard(ears)
        ended = [packet[item.where][4:8] for when, packet in ears[0].rtcp if when > died for item in rtcp.walk(packet) if item.kind is rtcp.Kind.BYE]
        assert [int.from_bytes(ssrc, "big") for ssrc in ended] == list(ssrcs), "the mix of a mixer that has died is over"
        # The first one comes back without conferences; the second is asked to stop: all goes back.
        room.start_mixer(first)
        second = room.placed()
        room.mixers[second].stop()
        assert await_that(lambda: room.placed() == first), room.agent.tail()
        await_heard(ears)
        # No mixer at all: everybody gets copies of the others, as without one.
        room.mixers[first].kill()
        assert await_that(lambda: not room.one("ann")["gets_mix"])
        since = time.monotonic()
        assert await_that(lambda: ears[2].ssrc in {packet.ssrc for packet in ears[0].since(since)})
        room.start_mixer(first)
        assert await_that(lambda: room.mixed("ann", "bob", "cem"))
        await_heard(ears)
        assert [phone.bye() for phone in phones] == [200, 200, 200]
        assert await_that(lambda: room.conference()["mixer"] is None)
