"""A stand-in for the operator daemon's view of an agent, with calls in every state the tests need."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry

from shunt.api.server import ApiServer
from shunt.api.view import AgentUnavailable, DataPlaneUnavailable
from shunt.config.model import Api
from shunt.metrics.instruments import Instruments


def server(view: "StandIn", listen: str, token: str | None = None) -> ApiServer:
    """A server on a port that the kernel chooses, which a configuration file cannot ask for."""
    return ApiServer(view, Api.model_construct(listen=listen, token=token, token_file=None, tls=None))


def stream(direction: str, component: str = "rtp", state: str = "offloaded", reason: str = "offloaded", **more: Any) -> dict[str, Any]:
    base = {
        "direction": direction,
        "component": component,
        "state": state,
        "reason": reason,
        "detail": "",
        "since_s": 12.5,
        "key": "198.51.100.9:41000 > 192.0.2.1:35002",
        "rewrite": "192.0.2.1:35000 > 203.0.113.5:7000",
        "packets": 600,
        "bytes": 103_200,
        "lost": 3,
        "reordered": 1,
        "duplicates": 0,
        "jitter_ms": 0.75,
        "idle_ms": 18,
    }
    return base | more


def call(call_id: str, *streams: dict[str, Any], created: str = "2026-11-21T10:00:00+00:00") -> dict[str, Any]:
    legs = {
        "caller": {"signalled": "10.0.0.9:6000", "learned": "198.51.100.9:41000", "relay_address": "192.0.2.1:35002", "source_mismatches": 2},
        "callee": {"signalled": "203.0.113.5:7000", "learned": None, "relay_address": "192.0.2.1:35000", "source_mismatches": 0},
    }
    return {
        "call_id": call_id,
        "created": created,
        "age_s": 75.25,
        "relay": "r1",
        "from_tag": "ft",
        "to_tag": "tt",
        "from": "sip:4930456@example.net",
        "to": None,
        "media": [{"index": 1, "legs": legs, "streams": list(streams)}],
        **{"problems": [], "loss_percent": 0.0, "jitter_ms": 2.5, "mos": 4.35},
    }


LEARNING = {"state": "learning", "reason": "waiting-for-media", "key": None, "rewrite": None, "packets": 0, "bytes": 0} | dict.fromkeys(("lost", "reordered", "duplicates", "jitter_ms", "idle_ms"))
ONE_WAY = {"problems": ["one-way: no media from the callee"]}
METRICS = """\
# HELP shunt_calls Calls that the agent knows.
# TYPE shunt_calls gauge
shunt_calls 4
# HELP shunt_streams Streams by state.
# TYPE shunt_streams gauge
shunt_streams{state="offloaded"} 4
shunt_streams{state="learning"} 2
# HELP shunt_media_packets Media packets by carrier.
# TYPE shunt_media_packets counter
shunt_media_packets_total{carrier="data_plane"} 90000
# EOF
"""
ODD_CALL_ID = "a/b c%2F?d#e+ä@x/why"
HOSTILE_CALL_ID = "evil\x1b[2J[bold]x"


HISTORY = {
    "begin": "2026-11-21T10:00:01+00:00",
    "diagnosis": [{"level": "problem", "text": "One-way audio: the caller sends, but the callee has sent nothing so far.", "media": 1, "party": "callee"}],
    "counters_fresh": True,
    "left_out": 0,
    "quality": [],
    "signalling": {"call_id": "first@x", "from": "sip:4930456@example.net", "to": None, "began": "2026-11-21T10:00:01+00:00", "ended": None, "answered": True, "sip_code": 200, "hung_up": None},
    "report": "Call first@x\n",
    "events": [
        {
            "after_ms": 0.0,
            "seq": 7,
            "time": "2026-11-21T10:00:01+00:00",
            "kind": "control",
            "what": "U",
            "media": 1,
            "party": None,
            "component": None,
            "stream": None,
            "title": "U offer",
            "text": "U first@x [bold] — reply 35000",
            "count": 1,
            "until_ms": None,
            "facts": {"relay": "r1"},
        },
        {
            "after_ms": 812.5,
            "seq": 9,
            "time": "2026-11-21T10:00:01.812500+00:00",
            "kind": "learn",
            "what": "latched",
            "media": 1,
            "party": "caller",
            "component": "rtp",
            "stream": "caller->callee rtp",
            "title": "RTP from 198.51.100.9:41000: latched",
            "text": "to relay port 192.0.2.1:35002",
            "count": 3,
            "until_ms": 860.0,
            "facts": {},
        },
    ],
}


def _fits(found: dict[str, Any], state: str | None, reason: str | None) -> bool:
    if state is None and reason is None:
        return True
    return any((state in (None, s["state"])) and (reason in (None, s["reason"])) for media in found["media"] for s in media["streams"])


class StandIn:
    """Implements AgentView; the switches below make it fail as a data plane or an agent would."""

    def __init__(self) -> None:
        self.unavailable = False
        self.hang = False
        self.broken = False
        self.found_problems: list[dict[str, Any]] = []
        self.instruments = Instruments()
        self.by_id = {
            c["call_id"]: c
            for c in (
                call("second@x", stream("caller->callee"), stream("callee->caller", **LEARNING), created="2026-11-21T10:00:02+00:00") | ONE_WAY,
                call("first@x", stream("caller->callee"), stream("callee->caller"), stream("caller->callee", "rtcp"), created="2026-11-21T10:00:01+00:00"),
                call(ODD_CALL_ID, stream("caller->callee", state="suspended", reason="re-invite"), created="2026-11-21T10:00:03+00:00"),
                call(HOSTILE_CALL_ID, stream("caller->callee", **LEARNING), created="2026-11-21T10:00:04+00:00"),
            )
        }

    async def status(self) -> dict[str, Any]:
        if self.broken:
            raise RuntimeError("broken")
        return {
            "version": "0.1.0",
            "uptime_s": 3700.4,
            "control": ["udp:127.0.0.1:22221"],
            "problems": self.found_problems,
            "relays": [{"name": "r1", "address": "udp:127.0.0.1:22222", "alive": True, "sessions": 4, "version": "20040107", "keepalive": "ttl"}],
            "data_plane": {"target": "127.0.0.1:50052", "connected": True, "name": "softswitch", "entries": 14, "capacity": 262144},
            "calls": len(self.by_id),
            "streams": {"offloaded": 4, "learning": 2, "relayed": 1},
            "packets": {"data_plane": 90_000, "relay": 10},
            "commands": {"U": 4, "L": 4},
            "sip_trace": {"messages": 28, "byes": 3},
            "media_timeouts": 1,
            "source_mismatches": 5,
            "journal_failures": None,
            **self.own(),
        }

    def own(self) -> dict[str, Any]:
        cdr = {"up": True, "waiting": 0, "written": 3, "failures": 0, "dropped": 0, "lost_timestamp_seconds": None}
        return {"events": {"connected": True, "missing": {"expired": 0, "lost": 0}}, "history": {"events": 12, "capacity": 100, "calls": 4, "forgotten": 0}, "cdr": cdr, "homer": None}

    async def problems(self) -> list[str]:
        return ["agent-unreachable: it does not answer"] if self.unavailable else []

    async def health(self) -> dict[str, Any]:
        return self.health_known()

    def health_known(self) -> dict[str, Any]:
        why = "the agent does not answer: it is away"
        found = [{"code": "agent-unreachable", "severity": "fail", "subject": "agent", "message": why, "remedy": "See its log.", "since_s": 3}]
        unknown = [{"code": code, "message": why} for code in ("xdp-missing", "unrouted")]
        return {"verdict": "fail", "findings": found, "unknown": unknown} if self.unavailable else {"verdict": "ok", "findings": [], "unknown": []}

    async def calls(self, state: str | None, reason: str | None, match: str | None, offset: int, limit: int, problems: bool = False, by_mos: bool = False) -> tuple[list[dict[str, Any]], int]:
        found = [c for c in self.by_id.values() if (c.get("problems") or not problems) and (match or "") in c["call_id"] and _fits(c, state, reason)]
        found.sort(key=lambda c: ((c["mos"] is None, c["mos"]) if by_mos else (), c["created"], c["call_id"]))
        return found[offset : offset + limit], len(found)

    async def history(self, call_id: str) -> dict[str, Any] | None:
        await self._reach()
        return HISTORY | {"call_id": call_id} if call_id in self.by_id else None

    def registry(self) -> CollectorRegistry:
        return self.instruments.registry

    def find(self, text: str, since: float, until: float, over: bool | None, limit: int) -> list[dict[str, Any]]:
        found = [
            {"call_id": "gone@x", "from": "sip:4930123@example.net", "to": "sip:bob@example.net", "began": "2026-11-21T10:00:00.000+00:00", "ended": "2026-11-21T10:01:05.000+00:00"}
            | {"answered": True, "sip_code": 200, "hung_up": "caller"},
            {"call_id": "first@x", "from": "sip:4930456@example.net", "to": None, "began": "2026-11-21T10:02:00.000+00:00", "ended": None, "answered": False, "sip_code": None, "hung_up": None},
        ]
        return [one for one in found if text in f"{one['from']} {one['to']} {one['call_id']}" and (over is None or over == (one["ended"] is not None))][:limit]

    async def call(self, call_id: str) -> dict[str, Any] | None:
        """One call has its quality for each media line, where the list has the worst."""
        found = self.by_id.get(call_id)
        return found and {name: value for name, value in found.items() if name not in ("problems", "loss_percent", "jitter_ms", "mos")} | {"quality": []}

    async def why(self, call_id: str) -> dict[str, Any] | None:
        await self._reach()
        found = await self.call(call_id)
        return found and found | {"age_s": 76.0}

    async def trace(self, src: str, dst: str) -> dict[str, Any]:
        await self._reach()
        key = f"{src} > {dst}"
        if src.endswith(":1"):
            return {"key": key, "data_plane": None, "call": None}
        plane = {"verdict": "redirect", "reason": "entry found", "out_src": dst, "out_dst": src, "out_interface": "eth0"}
        slot = {"call_id": "first@x", "media": 1, "from": "caller", "component": "rtp", "state": "offloaded", "reason": "offloaded", "expected_source": src}
        return {"key": key, "data_plane": plane, "call": slot}

    async def agent_metrics(self) -> str:
        if self.unavailable:
            raise AgentUnavailable("the agent does not answer")
        await self._reach()
        return METRICS

    async def _reach(self) -> None:
        if self.unavailable:
            raise DataPlaneUnavailable("127.0.0.1:50052 does not answer")
        if self.hang:
            await asyncio.Event().wait()
