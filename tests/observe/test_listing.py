"""Lists of calls page by page, what SDP says of media, and the agent's own answers without a data plane."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunt.agent import Agent
from shunt.calls import view
from shunt.calls.model import Call, State, new_line
from shunt.config.load import ConfigError, loads
from shunt.config.model import Config
from shunt.hep.sip import SdpMedia, sdp_media
from shunt.learning.latch import LatchPolicy


def calls(count: int) -> list[Call]:
    found = []
    for n in range(count):
        call = Call(f"call{n}@host", "r1", float(n), float(n))
        call.lines.append(new_line(call, "A", 1, 0.0, LatchPolicy()))
        if n % 3 == 0:
            call.lines[0].streams[0].set(State.LEARNING, "waiting-for-media", 0.0)
        found.append(call)
    return found


@pytest.mark.parametrize(
    ("state", "reason", "match", "offset", "limit", "ids", "total"),
    [
        (None, None, None, 0, 2, [0, 1], 1000),
        (None, None, None, 998, 10, [998, 999], 1000),
        (None, None, None, 5000, 10, [], 1000),
        ("learning", None, None, 1, 2, [3, 6], 334),
        ("learning", "waiting-for-answer", None, 0, 5, [], 0),
        (None, None, "99@", 0, 3, [99, 199, 299], 10),
        ("learning", None, "99@", 0, 9, [99, 399, 699, 999], 4),
    ],
)
async def test_pages(state, reason, match, offset: int, limit: int, ids: list[int], total: int) -> None:
    page, count = await view.page(calls(1000), state, reason, match, offset, limit)
    assert ([call.call_id for call in page], count) == ([f"call{n}@host" for n in ids], total)


async def test_looking_through_many_calls_gives_way_to_others() -> None:
    """A filter over 30,000 calls holds the loop for a few milliseconds at a time."""
    many, longest = calls(30_000), 0.0

    async def watch() -> None:
        nonlocal longest
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await view.page(many, "offloaded", None, None, 0, 100)
    watching.cancel()
    assert 0 < longest < 0.1


SDP = b"v=0\r\nc=IN IP4 192.0.2.1\r\na=sendonly\r\nm=audio 6000 RTP/AVP 0 111\r\na=rtpmap:111 opus/48000/2\r\na=ptime:30\r\nm=video 0 RTP/AVP 97\r\na=inactive\r\n"


def test_sdp_says_kind_direction_formats_and_packet_time() -> None:
    assert sdp_media(SDP) == (SdpMedia("audio", "sendonly", ((111, "OPUS", 48000),), 30), SdpMedia("video", "inactive"))
    assert sdp_media(b"no sdp") == ()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(SDP.split(b"\r\n")) | st.binary(max_size=40), max_size=30))
def test_no_sdp_breaks_the_reader(lines: list[bytes]) -> None:
    for line in sdp_media(b"v=0\r\n" + b"\r\n".join(lines)):
        assert line.direction in ("sendrecv", "sendonly", "recvonly", "inactive") and len(line.formats) <= 32


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(Config.model_validate({"builtin_relay": {"addresses": ["127.0.0.1"], "ports": "36200-36300"}, "journal": {"path": str(tmp_path / "j")}}))


async def test_an_agent_without_a_data_plane_still_tells_a_story(agent: Agent) -> None:
    assert await agent.history("c1") is None
    await agent.builtin.start()
    assert await agent.proxy.handle(b"Uc0,8 c1 127.0.0.1 6000 A;1", b"1", "127.0.0.1") is not None
    assert await agent.proxy.handle(b"Lc0,8 c1 127.0.0.1 7000 A;1 B;1", b"2", "127.0.0.1") is not None
    story = await agent.history("c1")
    assert [event["what"] for event in story["events"] if event["kind"] == "control"] == ["U", "L"]
    assert story["diagnosis"][0]["level"] == "ok" and "just been answered" in story["diagnosis"][0]["text"]
    assert (await agent.calls(None, None, "c1", 0, 10))[1] == 1
    assert agent.call("c1")["quality"][0]["caller"]["mos"] is None
    await agent.builtin.close()


async def test_what_befell_the_agent_meanwhile_is_in_the_calls_story(agent: Agent) -> None:
    await agent.builtin.start()
    agent.pool.relays[0].alive = False
    agent.observers._watch_relays()
    await agent.proxy.handle(b"Uc0,8 c1 127.0.0.1 6000 A;1", b"1", "127.0.0.1")
    agent.pool.relays[0].alive = True
    agent.observers._watch_relays()
    agent.observers._watch_relays()
    told = [(event["what"], event["text"]) for event in (await agent.history("c1"))["events"] if event["kind"] == "note"]
    assert told == [("relay-up", "a relay answers again: builtin")], "what was before the call is not part of it"
    await agent.builtin.close()


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
    def networks(hep: dict) -> list[str]:
        return [str(n) for n in Config.model_validate({"builtin_relay": {"addresses": ["127.0.0.1"]}, "hep": hep}).hep.networks()]

    assert networks({}) == ["0.0.0.0/0", "::/0"]
    assert networks({"listen": "udp:192.0.2.1:9060"}) == ["127.0.0.0/8", "::1/128"]
    assert networks({"allow": ["192.0.2.0/24"]}) == ["192.0.2.0/24"], "what is written counts"
