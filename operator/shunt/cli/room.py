"""`shunt room link|list|show`: links to rooms, and the browsers in them. Uses the REST API."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from shunt.cli.main import _asks_agent, _Command

if TYPE_CHECKING:
    from shunt.cli.client import Client

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class _Duration(click.ParamType[int]):
    """A duration such as 90m, 2h or 7d, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises click.BadParameter."""
        found = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", str(value))
        if found is None:
            self.fail(f"{value!r} is no time such as 90m, 2h or 7d", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


@click.group()
def room() -> None:
    """Rooms: links for browsers, and who is in them."""


def _path(*parts: str) -> str:
    return "/v1/rooms" + "".join("/" + quote(part, safe="") for part in parts)


def _write(value: Any, as_json: bool, text: str) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2) if as_json else text)


@room.command("link", cls=_Command)
@click.argument("name")
@click.option("--valid", type=_Duration(), default="2h", show_default=True, metavar="TIME", help="How long the link admits participants: 90m, 2h, 7d. Participants stay afterwards.")
@click.option("--as", "participant", metavar="PARTICIPANT", help="Name of the link's holder in the room. Default: chosen on joining.")
@click.option("--watch", "role", flag_value="watch", help="The holder only watches: WHEP, or the page without camera.")
@click.option("--publish", "role", flag_value="publish", help="The holder only publishes: WHIP.")
@_asks_agent
def link(client: Client, as_json: bool, name: str, valid: int, participant: str | None, role: str | None) -> None:
    """Make a signed link to a room. The server does not store links."""
    answer = client.ask("POST", _path(name, "links"), valid_s=valid, role=role, name=participant)
    until = datetime.fromtimestamp(answer["until"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lines = [f"until {until}"]
    if answer["role"] != "publish":
        lines.append(f"page   {answer['page']}")
    if answer["role"] != "watch":
        lines.append(f"WHIP   {answer['whip']}")
    if answer["role"] != "publish":
        lines.append(f"WHEP   {answer['whep']}")
    lines.append(f"token  {answer['token']}")
    _write(answer, as_json, "\n".join(lines))


@room.command("list", cls=_Command)
@_asks_agent
def list_all(client: Client, as_json: bool) -> None:
    """List rooms with browsers."""
    answer = client.get(_path())
    _write(answer, as_json, "\n".join(f"{one['name']:<24}{', '.join(one['browsers'])}" for one in answer["rooms"]) or "no browser is in any room")


@room.command("show", cls=_Command)
@click.argument("name")
@_asks_agent
def show(client: Client, as_json: bool, name: str) -> None:
    """Show a room's browsers, their edges and connections. `shunt conference watch` shows all participants."""
    answer = client.get(_path(name))
    _write(answer, as_json, "\n".join(_line(one) for one in answer["browsers"]) or f"no browser is in {name}")


def _line(one: dict[str, Any]) -> str:
    at = one["transport"]
    who = one["name"] if one["name"] == one["participant"] else f"{one['name']} ({one['participant']})"
    if at is None:
        return f"{who:<20}{one['role']:<9}its edge does not answer: {one['edge']}"
    words = [str(at.get("state", "?"))]
    words += [str(at[key]) for key in ("transport", "remote", "srtp") if at.get(key)]
    if at.get("rtt_ms") is not None:
        words.append(f"round trip {at['rtt_ms']:.0f} ms")
    if at.get("estimate") is not None:
        words.append(f"can take {at['estimate'] / 1000:.0f}k")
    return f"{who:<20}{one['role']:<9}{', '.join(words)}"
