"""The operator daemon's view of an agent whose events and snapshots are written down (tests.tools.telling)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from shunt.admin import AgentError, AgentUnreachable
from shunt.config.model import Config
from shunt.events.history import History
from shunt.health.facts import Own
from shunt.metrics.instruments import Instruments
from shunt.operator import dialogs as dialog_events
from shunt.operator.asking import Agent
from shunt.operator.dialogs import Dialogs
from shunt.operator.follow import Follower
from shunt.operator.health import Health
from shunt.operator.position import Position
from shunt.operator.view import OperatorView
from tests.tools.telling import JSON, Telling

STATUS: JSON = {
    "api": 1, "epoch": 1, "version": "0.2.0", "pid": 2, "started_us": 0, "uptime_s": 3700.0, "role": "single", "ready": True, "problems": [], "control": ["udp:127.0.0.1:22221"],
    "relays": [{"name": "local", "address": "unix:/run/shunt/relay.sock", "alive": True, "sessions": 4, "version": "20040107", "keepalive": "ttl", "packets_relayed": 10, "error": None}],
    "data_plane": {
        "target": "unix:/run/shunt-softswitch/bfrt.sock", "connected": True, "name": "softswitch", "entries": 8, "capacity": 1000, "planned": 8, "orphans": 0, "reconciled": True, "lacks": [],
        "packets_relayed": 4000, "age_s": 0.0, "interfaces": [{"name": "eth0", "mode": "native"}], "totals": {"unrouted_packets": 0, "too_big_packets": 0},
    },
    "calls": 0, "calls_to_restore": 0, "streams": [], "commands": {"by_verb": {}, "not_understood": 0, "retransmissions": 0, "without_reply": 0}, "hep": None, "journal": None,
    "drain": {"stop": None, "since_s": None, "group": False, "calls": 0, "entries": 0}, "media_timeouts": 0, "source_mismatches": 0, "ended": {"calls": 0, "one_way": 0, "zero_packet": 0},
    "learn_notices": 0, "table_writes": None, "limits": {}, "conferences": None, "events": None, "followers": 1,
}  # fmt: skip
"""A status of the admin API of an agent with which all is well."""


class Agency:
    """Stands for the admin client: answers as an agent that has these calls."""

    def __init__(self, *calls: JSON) -> None:
        self.by_id = {call["call"]: call for call in calls}
        self.away = False
        self.draining = False
        self.pages: list[int] = []
        self.verdict = {"verdict": "redirect", "reason": None, "out_source": None, "out_destination": None, "out_interface": None}

    def _answer(self) -> None:
        if self.away:
            raise AgentUnreachable("/run/shunt/admin.sock", "connection refused")

    async def status(self) -> JSON:
        self._answer()
        streams = [{"state": stream["state"], "reason": stream["reason"], "streams": 1} for call in self.by_id.values() for line in call["lines"] for stream in line["streams"]]
        return STATUS | {"uptime_s": time.monotonic(), "calls": len(self.by_id), "streams": streams, "drain": STATUS["drain"] | ({"stop": "offloads", "since_s": 4.0} if self.draining else {})}

    async def metrics(self) -> str:
        self._answer()
        return "# EOF\n"

    async def calls(self, *, limit: int, after: int | None = None, fresh: bool = False, **filters: Any) -> JSON:
        self._answer()
        self.pages.append(limit)
        fitting = [call for name, call in self.by_id.items() if (filters.get("match") or "") in name]
        first = after or 0
        found = fitting[first : first + limit]
        end = first + len(found)
        return {"calls": found, "total": len(fitting), "next": end if end < len(fitting) else None}

    async def call(self, call_id: str, *, fresh: bool) -> JSON:
        self._answer()
        if call_id not in self.by_id:
            raise AgentError(404, "not-found", f"no call {call_id}")
        return self.by_id[call_id]

    async def trace(self, source: str, destination: str) -> JSON:
        self._answer()
        return {"source": source, "destination": destination, "data_plane": self.verdict, "call": None}


class Watched(Telling):
    """An agent's events and snapshots, and the view that the REST API has of them."""

    def __init__(self, folder: Path, *calls: JSON, agency: Agency | None = None) -> None:
        super().__init__()
        self.agency: Any = agency or Agency(*calls)
        config = Config.model_validate({"builtin_relay": {"addresses": ["127.0.0.1"]}})
        history, dialogs, position = History(), Dialogs(), Position(folder / "position.json")
        self.bus.subscribe(history)
        self.bus.subscribe(dialogs, dialog_events.KINDS)
        follower = Follower(self.agency, self.bus, position, _room)
        self.agent = agent = Agent(self.agency)
        self.health = health = Health(config, agent, self.agency, Own)
        self.view = OperatorView(
            config=config, agent=agent, follower=follower, position=position, history=history, dialogs=dialogs, instruments=Instruments(), records=None, homer=None, health=health
        )  # fmt: skip

    async def history(self) -> JSON:
        found = await self.view.history(self.call)
        assert found is not None, "nothing is known of it"
        return found


async def _room() -> None:
    """There is always room."""
