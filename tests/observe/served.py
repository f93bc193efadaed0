"""The operator daemon's view and REST API, as the daemon has them, over calls that are written down: python -m tests.observe.served PORT FOLDER.

A file `away` in the folder: the agent does not answer; `draining`: it drains.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from shunt.admin.model import Conference, ConferenceSummary
from shunt.api.server import ApiServer
from shunt.config.model import Api
from shunt.events.bus import CONFERENCE
from shunt.operator.conferences.happened import Happened
from shunt.operator.conferences.routes import add_routes
from tests.operator import tiled
from tests.tools.telling import CALLEE, JSON, counters, leg, line, offloaded, relayed, sdp, snapshot, unheard
from tests.tools.watching import Agency, Watched

HOSTILE_ID = "<img src=x onerror=document.title='owned'>\u202egnp.exe\u2066/" + "x" * 300
HOSTILE_FROM = "sip:\"><script>document.title='owned'</script>\u202emoc.knab@" + "a" * 300
ARABIC = "sip:سارة.الخطيب@مثال.إختبار"
CHINESE = "sip:李小龙@例子.测试"
LOSSY, WELL, UNKNOWN, SIX = "lossy@192.0.2.2", "well@192.0.2.2", "past-hep@192.0.2.2", "six@[2001:db8:1234:5678::2]"
LATE = [f"late{n}@192.0.2.2" for n in range(30)]


class Distant(Agency, tiled.Client):
    """An agent with calls and conferences that may be away."""

    def __init__(self, folder: Path, *calls: JSON) -> None:
        Agency.__init__(self, *calls)
        tiled.Client.__init__(self)
        self._folder = folder

    def _answer(self) -> None:
        self.away, self.draining = (self._folder / "away").exists(), (self._folder / "draining").exists()
        super()._answer()

    async def conferences(self) -> list[ConferenceSummary]:
        self._answer()
        return await tiled.Client.conferences(self)

    async def conference(self, name: str) -> Conference:
        self._answer()
        return await tiled.Client.conference(self, name)


class Conferences:
    """The conferences of the view."""

    def __init__(self, watched: Watched) -> None:
        self._agent, self._happened = watched.agent, Happened()
        watched.bus.subscribe(self._happened, (CONFERENCE,))

    def add_routes(self, app: web.Application, error: Callable[..., web.Response]) -> None:
        add_routes(app, self._agent, self._happened, error)


def _figures(lost: int = 0) -> list[JSON]:
    return [line(*(offloaded(party, 1000 - lost, counters=counters(1000 - lost, lost=lost)) for party in ("caller", "callee")))]


def _lines() -> dict[str, list[JSON]]:
    unheard_yet = line(relayed("caller", "waiting-for-media"), relayed("callee", "waiting-for-media"), caller=unheard("caller"), callee=unheard("callee"))
    one_way = line(offloaded("caller", 200, reason="one-way"), relayed("callee", "waiting-for-media"), callee=unheard("callee"))
    return {LOSSY: _figures(80), WELL: _figures(), UNKNOWN: [unheard_yet], SIX: [one_way], HOSTILE_ID: _figures(10)} | {name: _figures() for name in LATE}


def _tell(watched: Watched, call: str, caller: str, callee: str, *, source: str = "192.0.2.2:6000") -> None:
    """A call as far as both parties' streams are offloaded."""
    watched.call, ends = call, {"from": caller, "to": callee}
    watched.sip("INVITE", tags=("A", None), sdp=[sdp(port=6000)], source=source, **ends)
    watched.sip("INVITE", tags=("A", None), sdp=[sdp(port=6000)], source="203.0.113.10:5060", destination="198.51.100.3:5060", **ends)
    watched.control(f"Uc0,8 {call} 192.0.2.2 6000 A;1")
    watched.pause(0.2)
    watched.sip(180, source=CALLEE, **ends)
    watched.pause(2)
    watched.control(f"Lc0,8 {call} 198.51.100.3 7000 A;1 B;1")
    watched.sip(200, sdp=[sdp(port=7000, address="198.51.100.3")], source=CALLEE, **ends)
    watched.pause(0.02)
    for party in ("caller", "callee"):
        watched.learn("source-mismatch", party, "198.51.100.77:40000")
        watched.learn("latched", party, count=3)
        watched.state(party, "offloaded")
    watched.happened("resumed")


def build(folder: Path) -> Watched:
    """The view over all of this."""
    watched = Watched(folder, agency=Distant(folder, *(snapshot(*lines, call=name) for name, lines in _lines().items())))
    watched.view.conferences = Conferences(watched)  # type: ignore[assignment]
    for name, caller, callee in ((LOSSY, ARABIC, CHINESE), (WELL, "sip:alice@example.net", "sip:bob@example.net"), (HOSTILE_ID, HOSTILE_FROM, ARABIC)):
        _tell(watched, name, caller, callee)
    _tell(watched, SIX, "sip:carol@example.net", "sip:dave@example.net", source="[2001:db8:1234:5678:9abc:def0:1234:5678]:50600")
    for name in (UNKNOWN, *LATE):
        watched.call = name
        watched.control(f"Uc0,8 {name} 192.0.2.2 6000 A;1")
    watched.say("conference", {"conference": "hall/1 b", "what": "created"}, about=None)
    for participant in ("ann", "fay", "gus"):
        watched.say("conference", {"conference": "hall/1 b", "what": "joined", "participant": participant}, about=None)
    watched.say("conference", {"conference": "hall/1 b", "what": "left", "participant": "gus"}, about=None)
    return watched


async def serve(port: int, folder: Path) -> None:
    """Serve for ever."""
    watched = build(folder)
    await ApiServer(watched.view, Api.model_construct(listen=f"127.0.0.1:{port}", token=None, token_file=None, tls=None)).start()
    await watched.health.run()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
