"""How `shunt history` writes one call: what is wrong in words, the quality of each stream, and every event with its time."""

from __future__ import annotations

import sys
from typing import Any

import click

from shunt.calls.text import MARKS, OLD_COUNTERS, event_lines, printable, quality_lines

_COLOURS = {"problem": "red", "hint": "yellow", "ok": "green"}
_KIND_COLOURS = {"sip": "cyan", "control": "blue", "learn": "magenta", "table": "yellow", "state": "green", "note": None}


def write(history: dict[str, Any]) -> None:
    """Write a call's history (GET /v1/calls/CALL-ID/history)."""
    click.echo(printable(f"Call {history['call_id']}" + (f", first event {history['begin']}" if history["begin"] else "")))
    for finding in history["diagnosis"]:
        click.echo(click.style(MARKS[finding["level"]], fg=_COLOURS[finding["level"]], bold=True) + " " + printable(finding["text"]))
    if not history["counters_fresh"]:
        click.echo(f"   {OLD_COUNTERS}")
    for line in quality_lines(history):
        click.echo("   " + printable(line))
    click.echo()
    colour = sys.stdout.isatty()
    for kind, head, title, text in event_lines(history["events"]):
        title = printable(title)
        shown = click.style(title, fg=_KIND_COLOURS.get(kind), bold=kind == "state") if colour else title
        click.echo(head + shown + (f" — {printable(text)}" if text else ""))
    if history["left_out"]:
        click.echo(f"{history['left_out']} events were left out in the middle: a call keeps its first and its last ones (history.per_call).")
