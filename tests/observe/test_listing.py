"""What the REST API answers about calls, from the agent's snapshots and events: pages, one call, its history. And the settings of what operators look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shunt.admin import AgentError, AgentUnreachable
from shunt.api.view import AgentUnavailable, DataPlaneUnavailable
from shunt.config.load import ConfigError, loads
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
from tests.tools.telling import CALLER, TO_CALLER, JSON, Telling, counters, leg, line, offloaded, relayed, sdp, snapshot, unheard


class Agency:
    """Stands for the admin client: answers as an agent that has these calls."""

    def __init__(self, *calls: JSON) -> None:
        self.by_id = {call["call"]: call for call in calls}
        self.away = False
        self.pages: list[int] = []
        self.verdict = {"verdict": "redirect", "reason": None, "out_source": None, "out_destination": None, "out_interface": None}

    def _answer(self) -> None:
        if self.away:
            raise AgentUnreachable("/run/admin.sock", "connection refused")

    async def calls(self, *, limit: int, after: int | None, fresh: bool, **filters: Any) -> JSON:
        self._answer()
        self.pages.append(limit)
        first = after or 0
        found = list(self.by_id.values())[first : first + limit]
        end = first + len(found)
        return {"calls": found, "total": len(self.by_id), "next": end if end < len(self.by_id) else None}

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

    def __init__(self, folder: Path, *calls: JSON) -> None:
        super().__init__()
        self.agency: Any = Agency(*calls)
        config = Config.model_validate({"builtin_relay": {"addresses": ["127.0.0.1"]}})
        history, dialogs, position = History(), Dialogs(), Position(folder / "position.json")
        self.bus.subscribe(history)
        self.bus.subscribe(dialogs, dialog_events.KINDS)
        follower = Follower(self.agency, self.bus, position, _room)
        agent = Agent(self.agency)
        health = Health(config, agent, self.agency, Own)
        self.view = OperatorView(
            config=config, agent=agent, follower=follower, position=position, history=history, dialogs=dialogs, instruments=Instruments(), records=None, homer=None, health=health
        )  # fmt: skip

    async def history(self) -> JSON:
        found = await self.view.history(self.call)
        assert found is not None, "nothing is known of it"
        return found


async def _room() -> None:
    """There is always room."""


@pytest.mark.parametrize(("offset", "limit", "ids"), [(0, 2, [0, 1]), (2498, 10, [2498, 2499]), (5000, 10, []), (1500, 3, [1500, 1501, 1502]), (990, 20, list(range(990, 1010)))])
async def test_pages_of_the_rest_api_are_those_of_the_agent(tmp_path: Path, offset: int, limit: int, ids: list[int]) -> None:
    """The admin API gives 1000 calls at most, and goes on after the last of them; the REST API counts from the first call."""
    watched = Watched(tmp_path, *(snapshot(call=f"call{n}@host") for n in range(2500)))
    found, total = await watched.view.calls(None, None, None, offset, limit)
    assert ([call["call_id"] for call in found], total) == ([f"call{n}@host" for n in ids], 2500)
    assert max(watched.agency.pages) <= 1000


async def test_a_call_is_shown_with_what_is_known_of_it(tmp_path: Path) -> None:
    carried = offloaded("caller", 600, counters=counters(600, lost=3), idle_s=0.018, offloaded_after_us=None)
    waiting = relayed("callee", "waiting-for-media")
    watched = Watched(tmp_path, snapshot(line(carried, waiting, caller=leg("caller", source_mismatches=2), callee=unheard("callee", relay_packets=7, relay_packets_age_s=1.5))))
    watched.state("caller", "offloaded")
    call = await watched.view.call("c1")
    assert call is not None
    assert (call["call_id"], call["created"], call["relay"], call["from_tag"], call["ended"], call["counters_error"]) == ("c1", "2026-11-24T12:08:08.000+00:00", "local", "A", False, None)
    (media,) = call["media"]
    caller, callee = media["legs"]["caller"], media["legs"]["callee"]
    assert (caller["signalled"], caller["learned"], caller["relay_address"], caller["source_mismatches"]) == (CALLER, CALLER, TO_CALLER, 2)
    assert (callee["learned"], callee["relay_packets"], callee["relay_packets_age_s"]) == (None, 7, 1.5)
    sent, nothing = media["streams"]
    assert (sent["direction"], sent["packets"], sent["lost"], sent["jitter_ms"], sent["idle_ms"]) == ("caller->callee", 600, 3, 0.5, 18)
    assert sent["key"] == f"{CALLER} > {TO_CALLER}" and sent["offloaded_after_ms"] == 8.2, "where the snapshot does not say it, the event does"
    assert (nothing["packets"], nothing["lost"], nothing["jitter_ms"], nothing["idle_ms"]) == (0, None, None, None)
    assert nothing["explanation"] == "The relay carries this stream: it has counted 7 packets of this party, and the data plane reported none."
    assert call["quality"][0]["caller"]["mos"] > 4 and call["quality"][0]["callee"]["mos"] is None
    assert await watched.view.call("c2") is None


async def test_the_list_has_the_worst_figures_and_what_is_wrong_now(tmp_path: Path) -> None:
    lossy = offloaded("caller", 940, counters=counters(940, lost=60, jitter_ms=12.0))
    quiet = offloaded("callee", reason="silent", idle_s=840.0)
    muted = line(offloaded("caller", 200, reason="one-way"), relayed("callee", "waiting-for-media"), callee=unheard("callee"))
    signalled = muted | {"callee": unheard("callee", sdp=sdp(direction="recvonly"))}
    kinds = {"well": line(), "lossy": line(lossy, offloaded("callee")), "quiet": line(offloaded("caller"), quiet), "muted": muted, "signalled": signalled}
    watched = Watched(tmp_path, *(snapshot(made, call=name) for name, made in kinds.items()), *(snapshot(call=f"more{n}") for n in range(200)))
    listed = {call["call_id"]: call for call in (await watched.view.calls(None, None, None, 0, 500))[0]}
    assert {name: listed[name]["problems"] for name in kinds} == {
        "well": [], "lossy": ["6.0 % of the caller's packets lost"], "quiet": ["the callee is silent for 840 s"], "muted": ["one-way: no media from the callee"], "signalled": [],
    }  # fmt: skip
    assert (listed["lossy"]["loss_percent"], listed["lossy"]["jitter_ms"]) == (6.0, 12.0) and 1 < listed["lossy"]["mos"] < listed["well"]["mos"]
    found, total = await watched.view.calls(None, None, None, 1, 10, problems=True)
    assert ([call["call_id"] for call in found], total) == (["quiet", "muted"], 3)


async def test_figures_that_are_not_known_are_none_in_the_list(tmp_path: Path) -> None:
    unknown = line(*(offloaded(party, counters=None, counters_age_s=None, idle_s=None) for party in ("caller", "callee")))
    watched = Watched(tmp_path, snapshot(unknown, counters_error="no answer"))
    ((call,), _) = await watched.view.calls(None, None, None, 0, 10)
    assert call["loss_percent"] is call["jitter_ms"] is call["mos"] is None and call["problems"] == ["counters not known"]


async def test_counters_that_are_not_known_are_not_0(tmp_path: Path) -> None:
    unknown = offloaded("caller", counters=None, counters_age_s=None, idle_s=None)
    watched = Watched(tmp_path, snapshot(line(unknown, offloaded("callee")), counters_error="no answer"))
    call = await watched.view.call("c1")
    assert call is not None and call["counters_error"] == "no answer"
    stream = call["media"][0]["streams"][0]
    assert stream["packets"] is stream["bytes"] is stream["counters_age_s"] is None
    with pytest.raises(DataPlaneUnavailable, match="no answer; the counters at hand are older"):
        await watched.view.why("c1")
    assert not (await watched.history())["counters_fresh"]


async def test_a_call_that_is_over_is_shown_by_its_end(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.conversation(packets=500)
    call = await watched.view.call("c1")
    assert call is not None and call["ended"] and call["media"][0]["streams"][0]["packets"] == 500


async def test_the_story_of_a_call_without_a_data_plane(tmp_path: Path) -> None:
    streams = [relayed(party, "no-data-plane", "allocated") for party in ("caller", "callee")]
    watched = Watched(tmp_path, snapshot(line(*streams, caller=unheard("caller", relay_packets=5), callee=unheard("callee", relay_packets=6))))
    assert await watched.view.history("c2") is None
    watched.control("U")
    watched.control("L")
    history = await watched.history()
    assert [event["what"] for event in history["events"] if event["kind"] == "control"] == ["U", "L"] and history["events"][0]["seq"] == 101
    assert history["diagnosis"][0]["text"] == "Media flows both ways; the relay carries it." and history["counters_fresh"]
    assert history["quality"][0]["media"][0]["caller"]["mos"] is None


async def test_what_befell_the_agent_meanwhile_is_in_the_calls_story(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for step in (lambda: watched.link("relay", "down"), lambda: watched.control("U"), lambda: watched.link("relay", "up"), watched.ended, lambda: watched.link("relay", "down")):
        step()
        watched.pause(1)
    told = [(event["what"], event["text"]) for event in (await watched.history())["events"] if event["kind"] == "note"]
    assert told == [("relay-up", "a relay answers again: local"), ("ended", "The media line was deleted by signalling.")], "what was before the call, or after it, is not part of it"


async def test_while_the_agent_is_away_the_events_tell_and_say_so(tmp_path: Path) -> None:
    watched = Watched(tmp_path, snapshot())
    watched.control("U")
    watched.agency.away = True
    history = await watched.history()
    assert not history["counters_fresh"] and "what follows is what was known before" in history["diagnosis"][0]["text"] and len(history["events"]) == 1
    with pytest.raises(AgentUnavailable):
        await watched.view.calls(None, None, None, 0, 10)


async def test_the_data_planes_word_on_an_entry_is_asked_for(tmp_path: Path) -> None:
    watched = Watched(tmp_path, snapshot())
    assert (await watched.history())["diagnosis"][0]["level"] == "ok"
    watched.agency.verdict |= {"verdict": "pass", "reason": "no-next-hop"}
    assert any("does not forward the caller's packets" in finding["text"] for finding in (await watched.history())["diagnosis"])


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("cdr: {}", "names no file"),
        ("cdr: {csv: /a, json_lines: /a}", "is the file of csv too"),
        ("cdr: {csv: a.csv}", "not an absolute path"),
        ("homer: {}", "target"),
        ('homer: {target: "tcp:127.0.0.1:9060"}', "tcp is not possible here"),
        ("quality: {delay_ms: -1}", "greater than or equal to 0"),
        ("history: {per_call: 1}", "greater than or equal to 16"),
    ],
)
def test_wrong_settings_are_named(section: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads('builtin_relay: {addresses: ["127.0.0.1"]}\n' + section + "\n")
    assert says in str(caught.value)


def test_copies_to_loopback_come_from_any_address_of_this_host() -> None:
    def networks(section: JSON) -> list[str]:
        hep = Config.model_validate({"builtin_relay": {"addresses": ["127.0.0.1"]}, "hep": section}).hep
        assert hep is not None
        return [str(n) for n in hep.networks()]

    assert networks({}) == ["0.0.0.0/0", "::/0"]
    assert networks({"listen": "udp:192.0.2.1:9060"}) == ["127.0.0.0/8", "::1/128"]
    assert networks({"allow": ["192.0.2.0/24"]}) == ["192.0.2.0/24"], "what is written counts"
