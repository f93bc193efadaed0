"""The stand-in of the commands' tests answers as the real daemons do: the same fields, of the same types."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.operator.stand_in import StandIn
from tests.operator_daemon.lab import IS_ROOT, NEEDS_ROOT, live

pytestmark = [pytest.mark.netns, pytest.mark.skipif(not IS_ROOT, reason=NEEDS_ROOT)]

# By name or number, not by field: these objects have other keys in each answer.
_OPEN = {"facts", "commands", "streams_by_reason"}


def _differences(made: Any, real: Any, where: str = "") -> list[str]:
    """Fields of `made` that `real` lacks, or has with another type. None fits every type."""
    if made is None or real is None:
        return []
    if isinstance(made, bool) or isinstance(real, bool) or not isinstance(made, (int, float)):
        if type(made) is not type(real):
            return [f"{where}: {type(made).__name__}, but {type(real).__name__} of the daemon"]
    elif not isinstance(real, (int, float)):
        return [f"{where}: a number, but {type(real).__name__} of the daemon"]
    if isinstance(made, dict):
        found = []
        for name, value in made.items():
            if name in _OPEN:
                continue
            if name not in real:
                found.append(f"{where}.{name}: the daemon has only {sorted(real)}")
            else:
                found += _differences(value, real[name], f"{where}.{name}")
        return found
    if isinstance(made, list) and real:
        return [line for value in made for line in _differences(value, real[0], f"{where}[]")]
    return []


def test_a_difference_is_found() -> None:
    assert _differences({"call_id": "x"}, {"call": "x"}) == [".call_id: the daemon has only ['call']"]
    assert _differences({"a": [{"b": 1}]}, {"a": [{"b": "1"}]}) == [".a[].b: a number, but str of the daemon"]
    assert not _differences({"a": None, "b": 1.5, "facts": {"x": 1}}, {"a": 3, "b": 2, "c": True, "facts": {}})


async def test_the_stand_in_answers_as_the_daemons_do(tmp_path: Path) -> None:
    """One call that is offloaded: each answer of the REST API beside that of the stand-in; `shunt trace` writes what it is given."""
    made = StandIn()
    async with live(tmp_path) as talk:
        await talk.conversation("call-1")
        async with asyncio.timeout(60):
            while not (await talk.ask("/v1/find?text=call-1"))["calls"]:
                await asyncio.sleep(0.1)
        call = await talk.ask(f"/v1/calls/{quote('call-1')}")
        leg = call["media"][0]["legs"]["caller"]
        source, port = leg["learned"], leg["relay_address"]
        pairs = {
            "status": (await made.status(), await talk.ask("/v1/status")),
            "calls": ((await made.calls(None, None, None, 0, 1))[0][0], (await talk.ask("/v1/calls"))["calls"][0]),
            "call": (await made.call("first@x"), call),
            "why": (await made.why("first@x"), await talk.ask("/v1/calls/call-1/why")),
            "history": (await made.history("first@x"), await talk.ask("/v1/calls/call-1/history")),
            "trace": (await made.trace(source, port), await talk.ask(f"/v1/trace?src={source}&dst={port}")),
            "find": (made.find("", 0, 2e9, None, 9)[0], (await talk.ask("/v1/find?text=call-1"))["calls"][0]),
        }
        found = [line for name, (one, other) in pairs.items() for line in _differences(one, other, name)]
        assert not found, "\n".join(found)
        text = await asyncio.to_thread(talk.lab.edge.shunt, "trace", source, port)
        assert "RTP of call call-1" in text and "offloaded" in text, text
