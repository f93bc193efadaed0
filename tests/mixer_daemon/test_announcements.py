"""shunt-mixer announces who joins and who leaves: by a tone, or by a file."""

from __future__ import annotations

import time
import wave
from pathlib import Path

import numpy as np
import pytest

from tests.mixer_daemon.process import Mixer, MixerFailed, await_that
from tests.mixer_daemon.test_mixer import Copies
from tests.tools.tone import PCMA, Talk, TonePhone, await_silence, loudest

JOINED, LEFT = 1200, 900
LOUD = 1500


def write(path: Path, rate: int, hz: int, channels: int = 1, octets: int = 2) -> Path:
    """A quarter of a second of a tone."""
    samples = (3000 * np.sin(2 * np.pi * hz * np.arange(rate // 4) / rate)).astype(np.int16)
    with wave.open(str(path), "wb") as made:
        made.setnchannels(channels)
        made.setsampwidth(octets)
        made.setframerate(rate)
        made.writeframes(np.repeat(samples, channels).tobytes())
    return path


def hears(phone: TonePhone, since: float, hz: int) -> bool:
    return await_that(lambda: loudest(phone, since, hz) > LOUD)


def test_who_stays_hears_who_joins_and_who_leaves(tmp_path: Path) -> None:
    sound = write(tmp_path / "joined.wav", 44_100, JOINED, channels=2)
    with Mixer(announcements={"joined": str(sound), "left": f"tone:{LEFT}"}) as mixer:
        copies = Copies(mixer, [PCMA, PCMA, PCMA])
        for phone in copies.phones:
            phone.talks = False
        whole = copies.description()

        def describe(count: int, announcements: bool = True) -> float:
            """These take part from now on; when that was said."""
            audio = {**whole["audio"], "participants": whole["audio"]["participants"][:count], "announcements": announcements}
            now = time.monotonic()
            assert mixer.ask("PUT", "/v1/conferences/room", {"audio": audio})[0] == 200
            return now

        ann = copies.phones[0]
        with Talk(copies.phones):
            began = describe(1)
            assert await_that(lambda: len(ann.since(began)) > 5)
            since = describe(2)
            assert hears(ann, since, JOINED) and hears(copies.phones[1], since, JOINED)
            assert loudest(ann, began, LEFT) < LOUD / 5, "nobody has left"
            await_silence(ann, JOINED)
            since = describe(1)
            assert hears(ann, since, LEFT)
            await_silence(ann, LEFT)
            since = describe(3, announcements=False)
            assert await_that(lambda: len(ann.since(since)) > 35)
            assert loudest(ann, since, JOINED) < LOUD / 5, "nothing is announced where it is not wanted"
        copies.close()


def test_what_cannot_be_played_is_said_at_the_start(tmp_path: Path) -> None:
    wrong = {
        tmp_path / "none.wav": "No such file",
        write(tmp_path / "octets.wav", 8000, 400, octets=1): "only PCM of 16 bits is played",
        write(tmp_path / "fast.wav", 96_000, 400): "8000 to 48000 are played",
    }
    for path, reason in wrong.items():
        with pytest.raises(MixerFailed, match=reason) as failed:
            Mixer(announcements={"joined": None, "left": str(path)})
        assert "exit code 78" in str(failed.value) and f"mixer.announcements.left: {path}" in str(failed.value)
