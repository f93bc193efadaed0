"""`shunt drain`: leave new streams on the relay, and wait until nothing is left."""

from __future__ import annotations

import time
from typing import Any

import click

from shunt.cli.client import Client


def drain(client: Client, stop: str | None, wait: bool, show: Any) -> dict[str, Any]:
    """Begin, end ("nothing") or only look (None); with wait, until the agent is empty. Returns the agent's last word."""
    if stop == "nothing":
        return client.ask("DELETE", "/v1/drain")
    answer = client.get("/v1/drain") if stop is None else client.ask("POST", "/v1/drain", stop=stop)
    last = None
    while wait and answer["stop"] is not None and not answer["empty"]:
        if (left := (answer["calls"], answer["entries"])) != last:
            show(answer)
            last = left
        time.sleep(1)
        answer = client.get("/v1/drain")
    return answer


def text(answer: dict[str, Any]) -> str:
    """One line for people."""
    if answer["stop"] is None:
        return f"not draining; {answer['calls']} calls, {answer['entries']} entries in the data plane"
    left = f"{answer['calls']} calls, {answer['entries']} entries left"
    until = "no entry is left" if answer["stop"] == "offloads" else "no call is left, those on the relay too"
    return f"draining, no new stream is offloaded: {f'empty; {left}' if answer['empty'] else f'{left}; empty when {until}'}"


def echo(answer: dict[str, Any]) -> None:
    click.echo(text(answer))
