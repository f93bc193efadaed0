"""How the `shunt` command writes calls and states for people: tables on a terminal, plain aligned text elsewhere."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click

_STATES = ("offloaded", "learning", "allocated", "suspended", "released")


def printable(text: Any) -> str:
    """Text from the network as it may go to a terminal: control characters and the like are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def duration(seconds: float) -> str:
    """750 ms, 12.5 s, 1 min 15 s, 2 h 03 min, 3 d 4 h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def size(count: int) -> str:
    """Bytes in decimal units."""
    value, units = float(count), ["B", "kB", "MB", "GB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


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
    click.echo(_count(len(rows), "call"))


def found(calls: Sequence[dict[str, Any]], limit: int) -> None:
    """One line for each call that was found by what SIP said of it."""
    rows = [(call["began"][:19], _lasted(call), call["from"] or "-", call["to"] or "-", _answer(call), call["call_id"]) for call in calls]
    if rows:
        table(("BEGAN (UTC)", "LASTED", "FROM", "TO", "ANSWER", "CALL-ID"), rows, right=(1,))
    click.echo(_count(len(rows), "call") + (f", the latest; --limit {limit}" if len(rows) == limit else ""))


def _lasted(call: dict[str, Any]) -> str:
    if call["ended"] is None:
        return "up" if call["answered"] else "ringing"
    return duration((datetime.fromisoformat(call["ended"]) - datetime.fromisoformat(call["began"])).total_seconds())


def _answer(call: dict[str, Any]) -> str:
    code = str(call["sip_code"] or "-")
    return f"{code}, {call['hung_up']} hung up" if call["hung_up"] else code


def why(call: dict[str, Any]) -> None:
    """Everything about one call, in plain words."""

    def echo(text: str) -> None:
        click.echo(printable(text))

    ended = ", ended" if call.get("ended") else ""
    echo(f"Call {call['call_id']} on relay {call['relay']}, begun {call['created']}, {duration(call['age_s'])} ago{ended}")
    for media in call.get("quality") or []:
        where = "" if media["index"] is None else f", media {media['index']}"
        for side in ("caller", "callee"):
            if media[side]["mos"] is not None:
                echo(f"Speech from the {side}{where}: MOS {media[side]['mos']:.2f} ({media[side]['codec']}, G.107)")
    echo(f"From tag {call['from_tag'] or '-'}, to tag {call['to_tag'] or '-'}")
    if not call["media"]:
        echo("No media line: no relay port has been asked for yet.")
    for media in call["media"]:
        click.echo()
        echo(f"Media {media['index'] if media['index'] is not None else '(only one)'}")
        for side in ("caller", "callee"):
            echo(f"  {side}: {_leg(media['legs'].get(side) or {})}")
        for stream in media["streams"]:
            for line in _stream(stream):
                echo(line)


def _leg(leg: dict[str, Any]) -> str:
    signalled, learned, relay = leg.get("signalled"), leg.get("learned"), leg.get("relay_address")
    if learned is None:
        heard = "no source latched yet"
    else:
        heard = f"sends from {learned} ({'as signalled' if learned == signalled else 'not as signalled'})"
    rtcp = f", RTCP from {leg['learned_rtcp']}" if leg.get("learned_rtcp") else ""
    counted = leg.get("relay_packets")
    carried = "" if not counted else f"; the relay has counted {counted} packets of it{_age(leg.get('relay_packets_age_s'))}"
    others = "" if not leg.get("source_mismatches") else f"; {_count(leg['source_mismatches'], 'packet')} came there from other sources"
    return f"signalled {signalled or '-'}; {heard}{rtcp}; told to send to relay port {relay or '-'}{others}{carried}"


def _age(seconds: float | None) -> str:
    return "" if not seconds else f", {duration(seconds)} ago"


def _stream(stream: dict[str, Any]) -> list[str]:
    lines = [f"  {stream['direction']} {stream['component'].upper()}: {stream['state']} for {duration(stream['since_s'])}, reason {stream['reason']}"]
    explanation = stream.get("explanation") or _explanation(stream["reason"])
    if explanation:
        lines.append(f"    {explanation}")
    if stream.get("detail"):
        lines.append(f"    detail: {stream['detail']}")
    if stream.get("key"):
        lines.append(f"    entry: {stream['key']} leaves as {stream.get('rewrite')}")
    if stream["packets"] or stream.get("key"):
        idle = "" if stream.get("idle_ms") is None else f", the last {duration(stream['idle_ms'] / 1000)} ago"
        carried = "packets not known" if stream["packets"] is None else f"{stream['packets']} packets, {size(stream['bytes'] or 0)}"
        lines.append(f"    data plane: {carried}{_age(stream.get('counters_age_s')) if stream['packets'] is not None else ''}{idle}")
        if quality := _quality(stream):
            lines.append(f"    quality: {quality}")
    return lines


def _explanation(reason: str) -> str:
    from shunt.calls.reasons import REASONS

    return REASONS.get(reason, "")


def _quality(stream: dict[str, Any]) -> str:
    words = []
    if (lost := stream.get("lost")) is not None:
        expected = lost + (stream["packets"] or 0)
        words.append(f"{lost} lost" + (f" ({100 * lost / expected:.2f} %)" if expected else ""))
    words += [f"{stream[name]} {name}" for name in ("reordered", "duplicates") if stream.get(name) is not None]
    if stream.get("jitter_ms") is not None:
        words.append(f"jitter {stream['jitter_ms']:.2f} ms")
    return ", ".join(words)


def status(status: dict[str, Any]) -> None:
    """The agent as a whole."""
    for line in attention(status):
        click.echo(printable(line))
    role = "" if status.get("role") in (None, "alone") else f", {status['role']}"
    if (drain := status.get("drain") or {}).get("stop"):
        left = f"{_count(drain['calls'], 'call')} and {drain['entries']} entries left"
        click.echo(f"Draining for {duration(drain['since_s'])}: {left}")
    click.echo(printable(f"Shunt {status['version']}{role}, up {duration(status['uptime_s'])}, control on {', '.join(status['control'])}"))
    streams = ", ".join(f"{count} {state}" for state, count in status["streams"].items())
    click.echo(printable(f"{_count(status['calls'], 'call')}; RTP streams: {streams or 'none'}"))
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
    lines = [line for problem in status.get("problems") or () for line in (f"!! {problem['message']}", f"   {problem['remedy']}" if problem.get("remedy") else "") if line]
    if agent.get("reachable") is False:
        lines.append(f"What follows is {duration(agent['age_s'])} old.")
    return lines


def _state(value: bool | None, true: str, false: str) -> str:
    return "unknown" if value is None else true if value else false


def _or_unknown(value: Any) -> Any:
    return "unknown" if value is None else value


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


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
