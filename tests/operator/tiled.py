"""Conferences with tiled video behind the REST API's own routes; the agent's answers are written down here, in the form of the admin API."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web

from shunt.admin import AgentError
from shunt.admin.model import Conference, ConferenceSummary
from shunt.operator.asking import Agent
from shunt.operator.conferences.happened import Happened
from shunt.operator.conferences.routes import add_routes
from tests.operator_conferences.samples import PCMU, VP8, conference, medium, participant

WIDTH, HEIGHT = 176, 144


def tile(place: int, name: str, across: int = 2, **more: Any) -> dict[str, Any]:
    """A tile of QCIF; across: how many are side by side."""
    corner = {"x": WIDTH * (place % across), "y": HEIGHT * (place // across), "width": WIDTH, "height": HEIGHT}
    return {"place": place, "participant": name, "source": 0x100 + place, "pictures": 80, "refused": 0, "refusal": None} | corner | more


def tiling(codec: str, places: int, *streams: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    made = [{"ssrc": 0xABC + at, "places": places, "tiles": tiles, "columns": []} for at, tiles in enumerate(streams)]
    wish = {"codec": codec, "payload_type": None, "places": None, "columns": None, "predicted": False, "receivers": None}
    return wish | {"mixer": "unix:/run/mixer.sock", "problem": None, "streams": made, "untiled": []} | more


def _hall() -> dict[str, Any]:
    waiting = dict.fromkeys(("x", "y", "width", "height"))
    first = [tile(0, "ann"), tile(1, "bob", pictures=0, **waiting), tile(3, "cem", refused=7, refusal="its bit stream cannot be read")]
    return tiling("H261", 4, first, [tile(1, "dora")], untiled=[{"participant": "eve", "reason": "its media are encrypted"}])


class Client:
    """What the routes ask of the admin API's client."""

    def __init__(self) -> None:
        self._asked = itertools.count()

    def _tiling(self, name: str) -> dict[str, Any] | None:
        if name == "hall/1 b":
            return _hall()
        if name == "tower":
            return tiling("H264", 6, [tile(at, f"p{at}", 1) for at in (0, 1, 5)], columns=2, problem="column 1: no mixer answers")
        if name == "screen":
            return tiling("H265", 9, [tile(0, "p0", 3)])
        if name == "moving":
            # Somebody else has the tile every few answers.
            return tiling("H265", 9, [tile(4, f"p{next(self._asked) // 2}", 3)])
        return None

    async def conferences(self) -> list[ConferenceSummary]:
        return [await self.conference(name) for name in ("hall/1 b", "tower", "screen", "plain")]

    async def conference(self, name: str) -> Conference:
        if name == "gone":
            raise AgentError(404, "not-found", "there is no conference gone", None)
        people = [
            participant("ann", medium("audio", 20000, PCMU, latched="192.0.2.7:4000"), medium("video", 20002, VP8, latched="192.0.2.7:4002"), gets_tiles=True),
            participant("fay", medium("video", 20004, VP8, direction="recvonly"), gets_tiles=True),
        ]
        return conference(*people, conference=name, tiling=self._tiling(name))


class Conferences:
    """The part of the view that has conferences, as the operator daemon's."""

    def add_routes(self, app: web.Application, error: Callable[..., web.Response]) -> None:
        add_routes(app, Agent(cast(Any, Client())), Happened(), error)
