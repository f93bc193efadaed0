"""What the REST API answers about calls, from the agent's snapshots and events: pages, one call, its history. And the settings of what operators look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from shunt.api.view import AgentUnavailable, DataPlaneUnavailable
from shunt.calls.text import why_lines
from shunt.config.load import ConfigError, loads
from shunt.config.model import Config
from tests.tools.telling import CALLER, JSON, TO_CALLER, counters, hold, leg, line, offloaded, relayed, sdp, snapshot, unheard
from tests.tools.watching import Watched


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


async def test_a_call_is_shown_with_those_that_record_it(tmp_path: Path) -> None:
    """Each recording by its command, its subscription and its target. What is not known is said to be so."""
    tag = "61ee98ec22bb290184708b49dda263e9"
    holds = [
        hold("playback", "play media", selection="from-tag=A label=x"), hold("copy", "C", "callee", "192.0.2.210:40020"), hold("recording", "record-call"),
        hold("subscription", "subscribe request", subscription=tag, to=["192.0.2.211:40010", "[2001:db8::1]:40020"]), hold("subscription", None, subscription="s2"),
    ]  # fmt: skip
    kept = line(relayed("caller", "playback", "suspended"), relayed("callee", "playback", "suspended"), holds=holds, recorders=4)
    watched = Watched(tmp_path, snapshot(kept))
    call = await watched.view.call("c1")
    assert call is not None
    (media,) = call["media"]
    assert media["recorders"] == 4 and media["held_by"][3]["subscription"] == tag
    assert [each["text"] for each in media["held_by"]] == [
        "playback (from-tag=A label=x) by play media", "copy of the callee by C, to 192.0.2.210:40020", "recording by record-call",
        "subscription 61ee98ec22bb… by subscribe request, to 192.0.2.211:40010, [2001:db8::1]:40020", "subscription s2, begun past the agent, to an unknown address",
    ]  # fmt: skip
    said = why_lines(call)
    at = said.index("  recorded: 4 recorders")
    assert [text.strip() for text in said[at + 1 : at + 5]] == [each["text"] for each in media["held_by"][1:]]
    assert said[at + 5] == "  held on the relay: playback (from-tag=A label=x) by play media"


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
    assert not history["counters_fresh"] and "the last known state follows" in history["diagnosis"][0]["text"] and len(history["events"]) == 1
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


async def test_the_worst_mos_comes_first_and_what_is_unknown_last(tmp_path: Path) -> None:
    def lossy(lost: int) -> JSON:
        return snapshot(line(offloaded("caller", 1000 - lost, counters=counters(1000 - lost, lost=lost)), offloaded("callee")), call=f"lost{lost}")

    unknown = [snapshot(line(*(relayed(party, "waiting-for-media") for party in ("caller", "callee"))), call=f"unknown{n}") for n in range(2)]
    watched = Watched(tmp_path, unknown[0], lossy(0), lossy(90), *(snapshot(call=f"more{n}") for n in range(120)), unknown[1], lossy(30))
    found, total = await watched.view.calls(None, None, None, 0, 2, by_mos=True)
    assert ([call["call_id"] for call in found], total) == (["lost90", "lost30"], 125)
    assert [call["call_id"] for call in (await watched.view.calls(None, None, None, 123, 10, by_mos=True))[0]] == ["unknown0", "unknown1"]
    assert [call["call_id"] for call in (await watched.view.calls(None, None, None, 0, 10, problems=True, by_mos=True))[0]] == ["lost90", "lost30", "unknown0", "unknown1"]


async def test_parties_are_those_of_sip_or_unknown(tmp_path: Path) -> None:
    watched = Watched(tmp_path, snapshot(), snapshot(call="c2"))
    watched.sip("INVITE", tags=("A", None), **{"from": "sip:سارة@example.net", "to": "sip:bob@example.net"})
    listed = {call["call_id"]: (call["from"], call["to"]) for call in (await watched.view.calls(None, None, None, 0, 10))[0]}
    assert listed == {"c1": ("sip:سارة@example.net", "sip:bob@example.net"), "c2": (None, None)}


@pytest.mark.parametrize("media", [1, None])
async def test_what_events_told_of_calls_is_known_without_the_agent(tmp_path: Path, media: int | None) -> None:
    """The last state and source of each stream, and no figure; not the calls that had ended."""
    watched = Watched(tmp_path)
    watched.conversation()
    watched.call = "c2"
    watched.control("U", media=media)
    watched.learn("waiting", media=media)
    watched.call = "c3"
    watched.control("U", media=media)
    for source in ("192.0.2.9:1", "192.0.2.9:2"):
        watched.learn("latched" if source.endswith("1") else "moved", source=source, media=media)
    watched.state("caller", "offloaded", media=media)
    watched.state("caller", "suspended", "re-invite", before="offloaded", media=media)
    with pytest.raises(AgentUnavailable):
        watched.view.known_calls(None, None, None)
    await watched.view.status()
    watched.agency.away = True
    found, silent_s = watched.view.known_calls(None, None, None)
    assert [call["call_id"] for call in found] == ["c2", "c3"] and 0 <= silent_s < 60
    (shown,) = found[1]["media"]
    assert (shown["index"], shown["legs"]["caller"]["learned"], shown["legs"]["caller"]["relay_address"], shown["legs"]["callee"]["learned"]) == (media, "192.0.2.9:2", TO_CALLER, None)
    (stream,) = shown["streams"]
    assert (stream["state"], stream["reason"], stream["packets"], stream["lost"], stream["idle_ms"]) == ("suspended", "re-invite", None, None, None)
    assert found[0]["media"][0]["legs"]["caller"]["learned"] is None, "one packet latches nothing"
    assert [call["call_id"] for call in watched.view.known_calls("suspended", None, None)[0]] == ["c3"]
    assert watched.view.known_calls("suspended", "offloaded", None)[0] == [] == watched.view.known_calls(None, None, "c9")[0]
    ended, _ = watched.view.known_call("c1")
    assert ended is not None and ended["ended"] and watched.view.known_call("c9")[0] is None
    watched.call = "c3"
    history = await watched.history()
    assert history["last_known_s"] is not None and "the agent does not answer" in history["report"]


async def test_a_report_has_what_a_ticket_needs(tmp_path: Path) -> None:
    hostile = "sip:\u202egnp@\x1b[2J"
    watched = Watched(tmp_path, snapshot(line(offloaded("caller", 940, counters=counters(940, lost=60, jitter_ms=12.0)), offloaded("callee", reason="silent", idle_s=840.0))))
    watched.sip("INVITE", tags=("A", None), **{"from": hostile, "to": "sip:bob@example.net"})
    for _ in range(100):
        watched.control("U")
    watched.sip(200, sdp=[sdp()])
    watched.agency.draining = True
    await watched.view.status()
    report = (await watched.history())["report"]
    for part in (
        "Call c1\n", "From sip:\\u202egnp@\\x1b[2J\n", "To sip:bob@example.net\n", "final response 200, is up", " ! the agent drains", "!! ", "60 lost (6.00 %)", "jitter 12.00 ms", "MOS ", "reason silent",
        "the last 14 min 00 s ago", "INVITE", "200 OK", "… 42 more",
    ):  # fmt: skip
        assert part in report, part
    assert all(letter == "\n" or letter.isprintable() for letter in report)
    unseen = Watched(tmp_path, snapshot())
    assert "unknown, no copy of its SIP was seen" in (await unseen.history())["report"]
