"""How `shunt history` writes one call: what is wrong in words, the quality of each stream, and every event with its time."""

from __future__ import annotations

import sys
from typing import Any

import click

from shunt.cli.show import printable, size

_AT_ONCE_MS = 20.0
_MARKS = {"problem": "!!", "hint": " !", "ok": "  "}
_COLOURS = {"problem": "red", "hint": "yellow", "ok": "green"}
_KINDS = {"sip": "SIP", "control": "rtpproxy", "learn": "learn", "table": "table", "state": "state", "note": "agent"}
_KIND_COLOURS = {"sip": "cyan", "control": "blue", "learn": "magenta", "table": "yellow", "state": "green", "note": None}


def write(history: dict[str, Any]) -> None:
    """Write a call's history (GET /v1/calls/CALL-ID/history)."""
    click.echo(printable(f"Call {history['call_id']}" + (f", first event {history['begin']}" if history["begin"] else "")))
    for finding in history["diagnosis"]:
        click.echo(click.style(_MARKS[finding["level"]], fg=_COLOURS[finding["level"]], bold=True) + " " + printable(finding["text"]))
    if not history["counters_fresh"]:
        click.echo("   The data plane does not answer: the counters are older.")
    for call in history["quality"]:
        for media in call["media"]:
            for side in ("caller", "callee"):
                click.echo("   " + printable(_quality(media, side)))
    click.echo()
    _events(history["events"])
    if history["left_out"]:
        click.echo(f"{history['left_out']} events were left out in the middle: a call keeps its first and its last ones (history.per_call).")


def _quality(media: dict[str, Any], side: str) -> str:
    stream = media[side]
    number = "" if media["index"] is None else f" {media['index']}"
    name = f"{media['kind'] or 'media'}{number} from the {side}: "
    if stream["packets"] is None:
        return f"{name}{stream['note']}"
    words = [f"{stream['packets']} packets, {size(stream['bytes'])} in the data plane"]
    if stream["loss_percent"] is not None:
        words.append(f"{stream['lost']} lost ({stream['loss_percent']:.2f} %)")
    if stream["jitter_ms"] is not None:
        words.append(f"jitter {stream['jitter_ms']:.2f} ms")
    if stream["codec"]:
        words.append(stream["codec"])
    words.append(f"MOS {stream['mos']:.2f} (R {stream['r']:.1f})" if stream["mos"] is not None else f"no MOS: {stream['note']}")
    return name + ", ".join(words)


def _events(events: list[dict[str, Any]]) -> None:
    events = _together(events)
    names = [event["stream"] or "" for event in events]
    stream_width = max((len(name) for name in names), default=0)
    colour = sys.stdout.isatty()
    for event, name in zip(events, names, strict=True):
        kind = event["kind"]
        head = f"{event['time'][11:23]} {event['after_ms'] / 1000:+9.3f}s  {_KINDS.get(kind, kind):<8}  {name:<{stream_width}}  "
        title = printable(event["title"])
        line = head + (click.style(title, fg=_KIND_COLOURS.get(kind), bold=kind == "state") if colour else title)
        click.echo(line + (f" — {printable(event['text'])}" if event["text"] else ""))


def _together(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events, with what happened to several streams of a media line at once as one."""
    found: list[dict[str, Any]] = []
    for event in events:
        last = found[-1] if found else None
        alike = last is not None and event["kind"] == "state" and all(event[name] == last[name] for name in ("kind", "title", "text", "media"))
        if alike and last is not None and event["after_ms"] - last["after_ms"] < _AT_ONCE_MS:
            last["stream"] = f"{last['streams'] + 1} streams"
            last["streams"] += 1
        else:
            found.append(event | {"streams": 1})
    return found
