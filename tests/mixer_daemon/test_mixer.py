"""shunt-mixer over its control API: phones on sockets send tones, and each hears all others and not itself."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.mixer_daemon.process import Mixer, MixerFailed, await_that
from tests.tools.tone import G722, HEARD, OPUS, PCMA, PCMU, Codec, Talk, TonePhone, await_heard, await_silence, await_tone


class Copies:
    """In place of a data plane: what any phone sends goes on to the mixer, from one address."""

    def __init__(self, mixer: Mixer, codecs: Sequence[Codec]) -> None:
        self.mixer = mixer
        self.source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.source.bind(("127.0.0.1", 0))
        self.phones: list[TonePhone] = []
        for at, codec in enumerate(codecs):
            ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            ear.bind(("127.0.0.1", 0))
            self.phones.append(_Through(f"p{at}", codec, 400 + 150 * at, 1000 + at, ear, to=mixer.audio, through=self.source))

    def description(self) -> dict[str, Any]:
        host, port = self.source.getsockname()
        participants = [
            {
                "participant": phone.name,
                "ssrcs": [phone.ssrc],
                "codecs": [
                    {"payload_type": phone.codec.payload_type, "encoding": phone.codec.encoding, "clock_rate": phone.codec.clock_hz},
                    {"payload_type": 101, "encoding": "telephone-event", "clock_rate": phone.codec.clock_hz},
                ],
                "mix": {
                    "to": "{}:{}".format(*phone.socket.getsockname()), "ssrc": 9000 + phone.ssrc, "payload_type": phone.codec.payload_type,
                    "encoding": phone.codec.encoding, "clock_rate": phone.codec.clock_hz,
                },
            }
            for phone in self.phones
        ]  # fmt: skip
        return {"audio": {"from": f"{host}:{port}", "participants": participants}}

    def close(self) -> None:
        self.source.close()
        for phone in self.phones:
            phone.socket.close()


class _Through(TonePhone):
    """A phone whose packets come from another socket than it listens on."""

    def __init__(self, *arguments: Any, through: socket.socket, **more: Any) -> None:
        self.through = through
        super().__init__(*arguments, **more)

    def send(self) -> None:
        own, self.socket = self.socket, self.through
        try:
            super().send()
        finally:
            self.socket = own

    def press(self, key: int) -> None:
        own, self.socket = self.socket, self.through
        try:
            super().press(key)
        finally:
            self.socket = own


def test_everybody_hears_all_others_and_not_itself_in_mixed_codecs() -> None:
    with Mixer() as mixer:
        copies = Copies(mixer, [PCMA, PCMU, G722, OPUS])
        assert mixer.ask("PUT", "/v1/conferences/room", copies.description())[0] == 200
        with Talk(copies.phones):
            await_heard(copies.phones)
            packet = copies.phones[0].heard[-1]
            assert set(packet.csrcs) == {1001, 1002, 1003} and packet.ssrc == 10_000

            def view() -> dict[str, Any]:
                (found,) = mixer.ask("GET", "/v1/conferences")[1]["conferences"]
                return found

            assert await_that(lambda: all(one["speaks"] and one["added_ms"] > 0 for one in view()["participants"])), view()
            assert view()["speaker"] in ("p0", "p1", "p2", "p3")
            # Star and six: mute.
            for key in (10, 6):
                copies.phones[1].press(key)
                time.sleep(0.1)
            await_silence(copies.phones[0], copies.phones[1].hz)
            for key in (10, 9):
                copies.phones[2].press(key)
                time.sleep(0.1)

            def told() -> tuple[bool, ...]:
                views = {one["participant"]: one for one in mixer.ask("GET", "/v1/conferences")[1]["conferences"][0]["participants"]}
                return views["p1"]["muted"], views["p2"]["leave"], views["p0"]["leave"]

            assert await_that(lambda: told() == (True, True, False)), told()
        status = mixer.ask("GET", "/v1/status")[1]
        assert (status["conferences"], status["participants"], status["receivers"], status["full"]) == (1, 4, 4, None)
        assert "shunt_mixer_packets_sent_total" in mixer.ask("GET", "/metrics")[1]
        assert mixer.ask("DELETE", "/v1/conferences/room")[0] == 204
        assert mixer.ask("DELETE", "/v1/conferences/room")[0] == 404
        copies.close()
        assert mixer.stop() == 0


def test_two_conferences_do_not_hear_each_other_and_nobody_else_is_heard() -> None:
    with Mixer() as mixer:
        rooms = [Copies(mixer, [PCMA, PCMA]), Copies(mixer, [PCMU, PCMU])]
        rooms[1].phones[0].hz, rooms[1].phones[1].hz = 400, 550  # as of the first: SSRCs are the same too
        for at, room in enumerate(rooms):
            assert mixer.ask("PUT", f"/v1/conferences/r{at}", room.description())[0] == 200
        rooms[1].phones[0].talks = rooms[1].phones[1].talks = False
        stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        stranger.sendto(b"\x80\x08" + bytes(170), mixer.audio)
        with Talk([*rooms[0].phones, *rooms[1].phones]):
            await_tone(rooms[0].phones[0], 550)
            since = time.monotonic()
            assert await_that(lambda: len(rooms[1].phones[0].since(since)) > 30)
            assert rooms[1].phones[0].hears(since, 550) < HEARD / 10
        assert await_that(lambda: "shunt_mixer_packets_refused_total 1" in mixer.ask("GET", "/metrics")[1])
        stranger.close()
        for room in rooms:
            room.close()


def test_what_is_wrong_or_too_much_is_refused_with_the_reason() -> None:
    with Mixer(receivers=3) as mixer:
        small, large = Copies(mixer, [PCMA, PCMA]), Copies(mixer, [PCMA, PCMA])
        assert mixer.ask("PUT", "/v1/conferences/small", small.description())[0] == 200
        status, answer = mixer.ask("PUT", "/v1/conferences/large", large.description())
        assert status == 503 and answer["error"]["code"] == "full" and "mixer.receivers" in answer["error"]["message"]
        assert mixer.ask("PUT", "/v1/conferences/small", small.description())[0] == 200, "one that is there stays"
        wrong = small.description()
        wrong["audio"]["participants"][0]["mix"]["encoding"] = "iLBC"
        status, answer = mixer.ask("PUT", "/v1/conferences/small", wrong)
        assert status == 400 and "iLBC" in answer["error"]["message"]
        wrong["audio"]["participants"][0]["nonsense"] = 1
        assert mixer.ask("PUT", "/v1/conferences/small", wrong)[0] == 400
        assert mixer.ask("GET", "/v1/nothing")[0] == 404
        small.close()
        large.close()


def test_an_address_of_another_host_is_an_error_at_start() -> None:
    with pytest.raises(MixerFailed, match=r"198\.51\.100\.77"):
        Mixer(address="198.51.100.77")
