"""Conferences of a running agent from Python: what the REST API offers, as calls. `shunt conference` is made of it.

    room = ConferenceClient("http://127.0.0.1:8077")
    room.create("board")
    print(room.join("board", "ann", ["audio", "video"])["media"])
    for look in room.watch("board"):
        print(look["flows"])

Blocking; from asyncio, ask in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from shunt.cli.client import Client
from shunt.cli.failure import Failure

__all__ = ["ConferenceClient", "Failure"]


class ConferenceClient:
    """The conferences of one agent. All methods raise Failure: `message` has the agent's own words, `status` is HTTP's (404 not there, 409 there
    already or full, 400 nonsense, 401 a token is wanted, 503 the data plane is not there, 0 the agent cannot be reached)."""

    def __init__(self, api: str | Client = "http://127.0.0.1:8077", token: str | None = None) -> None:
        """api: http://HOST:PORT or unix:/PATH, or a client that is there; token: the API's (api.token_file). Nothing is asked yet. Raises Failure where `api` is neither."""
        self._client = api if isinstance(api, Client) else Client(api, token)

    def all(self) -> list[dict[str, Any]]:
        """Every conference in a few words: name, participants, present, design, problem."""
        found: list[dict[str, Any]] = self._client.get(_path())["conferences"]
        return found

    def create(self, name: str) -> dict[str, Any]:
        """Make a conference, empty yet."""
        return self._ask("POST", _path(), name=name)

    def join(
        self, name: str, participant: str, media: Iterable[str] = ("audio",), *, trusted: Iterable[str] = (), ice: bool = False, transport: str = "RTP/AVP",
        layers: Iterable[str] = (),
    ) -> dict[str, Any]:  # fmt: skip
        """Let a participant in; `media` of the answer has the relay address of each medium, `ice` our credentials.

        media: audio, video, screen, and video/2 and so on for addresses of one sender's; trusted: IP addresses from which its media is latched at
        once; ice: it finds its way by ICE; transport: as in SDP; layers: how pictures tell theirs, "video=dependency-descriptor:12" (docs/conference-control.md).
        """
        return self._ask(
            "POST", _path(name, "participants"), name=participant, media=",".join(media), trusted=",".join(trusted) or None, ice="yes" if ice else None, transport=transport,
            layers=",".join(layers) or None,
        )  # fmt: skip

    def leave(self, name: str, participant: str) -> dict[str, Any]:
        """Take a participant out; who has dialled in gets a BYE."""
        return self._ask("DELETE", _path(name, "participants", participant))

    def set_quality(self, name: str, sender: str, receiver: str, quality: str) -> dict[str, Any]:
        """How much of a sender's media a receiver gets: up to audio, video or screen. The conference as it is then."""
        return self._ask("POST", _path(name, "quality"), sender=sender, receiver=receiver, quality=quality)

    def set_mixed(self, name: str, participant: str, mixed: str) -> dict[str, Any]:
        """Whether a participant gets one stream of audio, made of all others: yes, no, or auto. The conference as it is then."""
        return self._ask("POST", _path(name, "mixed"), participant=participant, mixed=mixed)

    def set_tiling(
        self, name: str, codec: str, *, payload_type: int | None = None, places: int | None = None, columns: int | None = None, predicted: bool = False,
        receivers: Iterable[str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Streams that show many participants, tiled by a mixer, for these receivers or for everybody who can play them; in place of everybody's video.
        The conference as it is then.

        codec: H261, H264 or H265; payload_type: of the tiled streams; places: tiles of a column or grid; columns: how many columns of H.264, each made by a
        mixer of its own, are joined in a stream; predicted: sources of H.264 or H.265 have agreed on vectors that stay within the picture (docs/tiling.md).
        """
        return self._ask(
            "POST", _path(name, "tiling"), codec=codec, payload_type=payload_type, places=places, columns=columns,
            predicted="yes" if predicted else None, receivers=None if receivers is None else ",".join(receivers),
        )  # fmt: skip

    def set_announcements(self, name: str, wanted: bool) -> dict[str, Any]:
        """Whether those who get a mix hear who joins and who leaves."""
        return self._ask("POST", _path(name, "announcements"), announcements="yes" if wanted else "no")

    def end_tiling(self, name: str) -> dict[str, Any]:
        """Everybody gets everybody's video again. The conference as it is then."""
        return self._ask("DELETE", _path(name, "tiling"))

    def set_target(self, name: str, sender: str, receiver: str, target: int | str) -> dict[str, Any]:
        """How many frames of a sender's video a receiver gets: 0 the fewest, 2 all, "pause" none; "auto": as the policy decides. The conference as it is then."""
        return self._ask("POST", _path(name, "target"), sender=sender, receiver=receiver, target=target)

    def look(self, name: str) -> dict[str, Any]:
        """Who is there, from where, who gets how many packets of whom, what downlinks carry, what happened last."""
        found: dict[str, Any] = self._client.get(_path(name))
        return found

    def watch(self, name: str, interval: float = 1.0) -> Iterator[dict[str, Any]]:
        """A look, and another every so many seconds, without end."""
        while True:
            yield self.look(name)
            time.sleep(interval)

    def end(self, name: str) -> dict[str, Any]:
        """Take all participants out, and the conference away."""
        return self._ask("DELETE", _path(name))

    def _ask(self, method: str, path: str, **query: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.ask(method, path, **query)
        return answer


def _path(*parts: str) -> str:
    return "/v1/conferences" + "".join("/" + quote(part, safe="") for part in parts)
