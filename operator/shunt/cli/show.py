"""How the `shunt` command writes calls and states for people: tables on a terminal, plain aligned text elsewhere."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click

from shunt.calls.text import count, duration, printable, why_lines

_STATES = ("offloaded", "learning", "allocated", "suspended", "released")


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[int] = ()) -> None:
    """Write a table; `right` are the columns set to the right. Off a terminal no line is wrapped or cut."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        grid = Table(box=None, pad_edge=False, header_style="bold")
        for n, heading in enumerate(headings):
            grid.add_column(heading, justify="right" if n in right else "left", overflow="fold")
        for row in cells:
            # Text, not str: square brackets in a Call-ID are not markup.
            grid.add_row(*(Text(cell) for cell in row))
        Console(highlight=False).print(grid)
        return
    widths = [max(len(row[n]) for row in [list(headings), *cells]) for n in range(len(headings))]
    for row in [list(headings), *cells]:
        click.echo("  ".join(c.rjust(w) if n in right else c.ljust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip())


def _streams(call: dict[str, Any]) -> list[dict[str, Any]]:
    return [stream for media in call["media"] for stream in media["streams"]]


def reason_of(stream: dict[str, Any]) -> str:
    """A stream's reason; of a party that is silent with how long."""
    if stream["reason"] == "silent" and stream.get("idle_ms") is not None:
        return f"silent for {duration(stream['idle_ms'] / 1000)}"
    return str(stream["reason"])


def calls(found: Sequence[dict[str, Any]]) -> None:
    """One line for each call."""
    rows = []
    for call in found:
        streams = [stream for stream in _streams(call) if stream["component"] == "rtp"]
        states = Counter(s["state"] for s in streams)
        summary = ", ".join(f"{states[s]} {s}" for s in (*_STATES, *sorted(set(states) - set(_STATES))) if states[s])
        reasons = ", ".join(sorted({reason_of(s) for s in streams if s["reason"] != s["state"]}))
        packets = [s["packets"] for s in streams if s["packets"] is not None]
        figures = (f"{call[name]:.{digits}f}" if call.get(name) is not None else "-" for name, digits in (("loss_percent", 1), ("jitter_ms", 0), ("mos", 2)))
        problems = "; ".join(call.get("problems", ()))
        told = f"{reasons or '-'}{f' ({problems})' if problems else ''}"
        rows.append((call["call_id"], duration(call["age_s"]), call["relay"], summary or "no media yet", told, sum(packets) if packets else "-", *figures))
    if rows:
        table(("CALL-ID", "AGE", "RELAY", "RTP STREAMS", "REASONS", "PACKETS", "LOSS %", "JITTER MS", "MOS"), rows, right=(1, 5, 6, 7, 8))
    click.echo(count(len(rows), "call"))


def found(calls: Sequence[dict[str, Any]], limit: int) -> None:
    """One line for each call that was found by what SIP said of it."""
    rows = [(call["began"][:19], _lasted(call), call["from"] or "-", call["to"] or "-", _answer(call), call["call_id"]) for call in calls]
    if rows:
        table(("BEGAN (UTC)", "LASTED", "FROM", "TO", "ANSWER", "CALL-ID"), rows, right=(1,))
    click.echo(count(len(rows), "call") + (f", the latest; --limit {limit}" if len(rows) == limit else ""))


def _lasted(call: dict[str, Any]) -> str:
    if call["ended"] is None:
        return "up" if call["answered"] else "ringing"
    return duration((datetime.fromisoformat(call["ended"]) - datetime.fromisoformat(call["began"])).total_seconds())


def _answer(call: dict[str, Any]) -> str:
    code = str(call["sip_code"] or "-")
    return f"{code}, {call['hung_up']} hung up" if call["hung_up"] else code


def why(call: dict[str, Any]) -> None:
    """Everything about one call, in plain words."""
    for line in [*_problems(call.get("host") or ()), *why_lines(call)]:
        click.echo(printable(line))


def status(status: dict[str, Any]) -> None:
    """The agent as a whole."""
    for line in attention(status):
        click.echo(printable(line))
    role = "" if status.get("role") in (None, "alone") else f", {status['role']}"
    if (drain := status.get("drain") or {}).get("stop"):
        left = f"{count(drain['calls'], 'call')} and {drain['entries']} entries left"
        click.echo(f"Draining for {duration(drain['since_s'])}: {left}")
    click.echo(printable(f"Shunt {status['version']}{role}, up {duration(status['uptime_s'])}, control on {', '.join(status['control'])}"))
    streams = ", ".join(f"{count} {state}" for state, count in status["streams"].items())
    click.echo(printable(f"{count(status['calls'], 'call')}; RTP streams: {streams or 'none'}"))
    packets = status["packets"]
    plane_packets, relay_packets = packets.get("data_plane"), packets.get("relay")
    both = (plane_packets or 0) + (relay_packets or 0)
    share = f" ({100 * plane_packets / both:.2f} % in the data plane)" if both and plane_packets is not None and relay_packets is not None else ""
    click.echo(f"Media packets: {_or_unknown(plane_packets)} in the data plane, {_or_unknown(relay_packets)} in relays{share}")
    plane = status.get("data_plane")
    if plane is None:
        click.echo("Data plane: none configured; all media stays on the relays")
    else:
        state = _state(plane["connected"], "connected", "NOT CONNECTED")
        click.echo(printable(f"Data plane: {plane['target']} ({plane.get('name') or 'unknown'}), {state}, {_or_dash(plane.get('entries'))} of {_or_dash(plane.get('capacity'))} entries"))
        for sentence in plane.get("lacks") or ():
            click.echo(printable(f"    {sentence}"))
    rows = [(r["name"], r["address"], _state(r["alive"], "up", "DOWN"), _or_dash(r.get("sessions")), _or_dash(r.get("version")), _or_dash(r.get("keepalive"))) for r in status["relays"]]
    table(("RELAY", "ADDRESS", "STATE", "SESSIONS", "VERSION", "KEEPALIVE"), rows, right=(3,))


def attention(status: dict[str, Any]) -> list[str]:
    """What an operator should see to, with what to do; and that of an agent that does not answer what follows is old."""
    agent = status.get("agent") or {}
    lines = _problems(status.get("problems") or ())
    if agent.get("reachable") is False:
        lines.append(f"Last known state, {duration(agent['age_s'])} old:")
    return lines


def _problems(problems: Sequence[dict[str, Any]]) -> list[str]:
    """Findings of health, each with what to do."""
    return [line for problem in problems for line in (f"!! {problem['message']}", f"   {problem['remedy']}" if problem.get("remedy") else "") if line]


def _state(value: bool | None, true: str, false: str) -> str:
    return "unknown" if value is None else true if value else false


def _or_unknown(value: Any) -> Any:
    return "unknown" if value is None else value


def _or_dash(value: Any) -> Any:
    return "-" if value is None else value


def trace(src: str, dst: str, answer: dict[str, Any]) -> None:
    """The data plane's answer about one packet, and whose relay port it would arrive at."""
    plane, call = answer["data_plane"], answer["call"]
    if plane is not None:
        click.echo(printable(f"{src} > {dst}: {plane['verdict']} ({plane['reason']})"))
        if plane.get("out_dst"):
            via = f" through {plane['out_interface']}" if plane.get("out_interface") else ""
            click.echo(printable(f"leaves as {plane.get('out_src')} > {plane['out_dst']}{via}"))
    if call is None:
        click.echo(printable(f"No call has {dst} as its relay port."))
        return
    media = "" if call["media"] is None else f", media {call['media']}"
    source = call["expected_source"] or "a source not learned yet"
    click.echo(printable(f"This relay port is for the {call['from']}'s {call['component'].upper()} of call {call['call_id']}{media}: {call['state']}, reason {call['reason']}; expected from {source}"))
