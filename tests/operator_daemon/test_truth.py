"""The operator's side says what is so: who is silent, what is not known, and under which names Prometheus finds it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.lab.processes import PORTS, RELAY_PORT, ROOT
from tests.lab.topology import EDGE_IP
from tests.operator_daemon.lab import IS_ROOT, NEEDS_ROOT, live

pytestmark = [pytest.mark.netns, pytest.mark.skipif(not IS_ROOT, reason=NEEDS_ROOT)]

# An entry is idle after half of the relay's time-out.
QUICK = [{"name": "local", "socket": f"udp:127.0.0.1:{RELAY_PORT}", "media": [{"address": EDGE_IP, "ports": f"{PORTS[0]}-{PORTS[1]}"}], "ttl": 8, "symmetric": True}]
# Of parts that this lab does not have, and of losses that do not happen.
ABSENT = re.compile(r"shunt_conference|shunt_journal|shunt_role|shunt_cdr_lost_timestamp_seconds")


async def test_a_silent_party_is_in_the_list(tmp_path: Path) -> None:
    """Filterable by its reason, with how long, in the list, in `shunt calls` and in `shunt top`; the other party is not."""
    async with live(tmp_path, relays=QUICK) as talk:
        lab = talk.operated
        await talk.conversation("call-1")
        await talk.caller.hush()
        page = await asyncio.to_thread(lab.until, lambda: (found := lab.edge.get("/v1/calls?reason=silent"))["calls"] and found, 60)
        streams = {stream["direction"]: stream for stream in page["calls"][0]["media"][0]["streams"] if stream["component"] == "rtp"}
        quiet, other = streams["caller->callee"], streams["callee->caller"]
        assert (quiet["state"], quiet["reason"], other["reason"]) == ("offloaded", "silent", "offloaded") and quiet["idle_ms"] >= 1000
        assert other["counters_age_s"] == 0 and other["offloaded_after_ms"] is not None and other["packets"] > 10
        assert re.search(r"call-1 .* silent for \d", await asyncio.to_thread(lab.edge.shunt, "calls", "--reason", "silent"))
        assert "silent for" in await asyncio.to_thread(lab.edge.shunt, "top", "--once")
        assert "silent for" not in await asyncio.to_thread(lab.edge.shunt, "calls", "--reason", "contested")
        history = await talk.ask("/v1/calls/call-1/history")
        assert history["diagnosis"][0]["text"].startswith("One-way audio: the callee sends, but the caller has sent nothing for"), history["diagnosis"]
        assert "idle" in [event["what"] for event in history["events"] if event["kind"] == "note"]


async def test_without_the_softswitch_nothing_is_said_to_flow(tmp_path: Path) -> None:
    """Counters are not fresh, the totals not known, a call that the relay carries is not one of which no packet was seen."""
    async with live(tmp_path) as talk:
        lab = talk.operated
        await talk.conversation("call-1")
        lab.softswitch.kill()
        await asyncio.to_thread(lab.until, lambda: lab.edge.status()["data_plane"]["connected"] is False, 30)
        status = await talk.ask("/v1/status")
        assert status["packets"]["data_plane"] is None and status["packets"]["relay"] is not None, status["packets"]
        assert "data-plane-down" in [problem["code"] for problem in status["problems"]]
        history = await talk.ask("/v1/calls/call-1/history")
        assert not history["counters_fresh"]
        assert not [finding for finding in history["diagnosis"] if "flows both ways" in finding["text"]], history["diagnosis"]
        await talk.next_phones(1)
        to_caller, to_callee = await talk.call("call-2", natted=False)
        talk.caller.talk(to_caller)
        talk.callee.talk(to_callee)

        def carried() -> Any:
            call = lab.edge.get("/v1/calls/call-2")
            return {stream["reason"] for stream in call["media"][0]["streams"]} == {"data-plane-unavailable"}

        await asyncio.to_thread(lab.until, carried)
        listed = await asyncio.to_thread(lab.edge.shunt, "calls")
        assert "No packet" not in listed and "data-plane-unavailable" in listed


async def test_prometheus_finds_what_dashboard_and_alerts_ask_for(tmp_path: Path) -> None:
    """Every name in packaging/ is served by the operator daemon, with the agent's own metrics; without the agent it says so."""
    async with live(tmp_path) as talk:
        lab = talk.operated
        await talk.conversation("call-1")
        during = await asyncio.to_thread(lab.metrics)
        await talk.bye("call-1")
        await asyncio.to_thread(lab.await_record, "call-1")
        text = await asyncio.to_thread(lab.metrics)
        asked = set()
        for path in (ROOT / "packaging/grafana/shunt.json", ROOT / "packaging/prometheus/shunt.rules.yml"):
            asked |= set(re.findall(r"\bshunt_[a-z_]+", path.read_text()))
        served = set(re.findall(r"^# TYPE (\S+)|^(shunt_[a-z_]+)", during + text, re.M))
        names = {name for pair in served for name in pair if name}
        missing = {name for name in asked if name not in names and re.sub(r"_(bucket|count|sum)$", "", name) not in names and not ABSENT.match(name)}
        assert not missing, missing
        assert 'shunt_calls_ended_total{reason="released"} 1.0' in text and "shunt_agent_up 1.0" in text
        assert text.count("# TYPE shunt_calls gauge") == 1 and 'shunt_learn_verdicts_total{verdict="latched"}' in text
        lab.agent.kill()
        await asyncio.to_thread(lab.until, lambda: "shunt_agent_up 0.0" in lab.metrics())
        assert "shunt_history_events" in await asyncio.to_thread(lab.metrics)
