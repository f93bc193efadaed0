"""`shunt top`: a live view of one agent on a terminal, from nothing but its REST API."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from shunt.calls.reasons import ONE_WAY, SILENT
from shunt.calls.text import duration, printable
from shunt.cli.client import Client
from shunt.cli.failure import Failure
from shunt.cli.show import reason_of

_BARS = " ▁▂▃▄▅▆▇█"
_POINTS = 60
SAME_READING_S = 0.1
"""Readings whose times differ by less are one."""
_STATE_STYLES = {"offloaded": "green", "learning": "yellow", "allocated": "yellow", "suspended": "red", "released": "dim"}


@dataclass
class Rates:
    """Packets per second from readings of totals; a counter that went back (a restart) starts anew."""

    last: dict[str, tuple[float, float]] = field(default_factory=dict)  # by name: when it was read (monotonic seconds), and the total
    now: dict[str, float] = field(default_factory=dict)
    course: dict[str, deque[float]] = field(default_factory=dict)

    def look(self, at: float, totals: dict[str, float | None], ages: dict[str, float | None] | None = None) -> None:
        """Take in totals that are seen at the moment `at` (monotonic seconds). ages: how many seconds ago some of them were read; the others are of this moment."""
        for name, value in totals.items():
            read = at - ((ages or {}).get(name) or 0.0)
            before = self.last.get(name)
            if value is None:
                self.last.pop(name, None)
                self.now.pop(name, None)
            elif before is None or value < before[1]:
                self.last[name] = (read, value)
                self.now.pop(name, None)
            elif read - before[0] > SAME_READING_S:
                self.last[name] = (read, value)
                self.now[name] = (value - before[1]) / (read - before[0])
            if name in self.now:
                self.course.setdefault(name, deque(maxlen=_POINTS)).append(self.now[name])


def sparkline(values: list[float]) -> str:
    """The course of a figure as one line of block characters."""
    top = max(values, default=0.0)
    return "".join(_BARS[0 if top <= 0 else round(value / top * (len(_BARS) - 1))] for value in values)


def _bar(share: float | None, width: int = 24) -> Text:
    if share is None:
        return Text("-")
    full = round(min(max(share, 0.0), 1.0) * width)
    style = "green" if share < 0.8 else "yellow" if share < 0.95 else "red"
    return Text("█" * full, style) + Text("░" * (width - full), "dim") + Text(f" {100 * share:.1f} %")


def _number(value: float | int | None) -> str:
    return "-" if value is None else f"{value:,.0f}".replace(",", " ")


def head(status: dict[str, Any], rates: Rates) -> RenderableType:
    """The agent's figures."""
    plane, streams = status.get("data_plane"), status["streams"]
    known = sum(streams.values())
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    role = "" if status.get("role") in (None, "alone") else f", {status['role']}"
    draining = ", DRAINING (no new stream is offloaded)" if (status.get("drain") or {}).get("stop") else ""
    grid.add_row("agent", Text(f"Shunt {status['version']}, up {duration(status['uptime_s'])}{role}{draining}"))
    if (agent := status.get("agent") or {}).get("reachable") is False:
        grid.add_row("agent", Text(f"DOES NOT ANSWER: all this is {duration(agent['age_s'])} old", "bold red"))
    grid.add_row("calls", Text(f"{_number(status['calls'])}; streams: " + ", ".join(f"{_number(count)} {name}" for name, count in streams.items())))
    grid.add_row("offloaded", _bar_of_share(streams.get("offloaded", 0) / known if known else None))
    if plane is None:
        grid.add_row("data plane", Text("none configured", "yellow"))
    else:
        up = _up(plane["connected"], "connected", "NOT CONNECTED")
        grid.add_row("data plane", Text(f"{plane['target']} ({plane.get('name') or 'unknown'}) ") + up)
        entries, capacity = plane.get("entries"), plane.get("capacity")
        share = entries / capacity if entries is not None and capacity else None
        grid.add_row("occupancy", _bar(share) + Text(f"  {_number(entries)} of {_number(capacity)} entries"))
    for name, label in (("data_plane", "packets/s"), ("relay", "on relays/s"), ("learn", "learn/s")):
        course = list(rates.course.get(name, ()))
        grid.add_row(label, Text(f"{_number(rates.now.get(name)):>10}  ") + Text(sparkline(course), "cyan"))
    return grid


def _up(value: bool | None, true: str, false: str) -> Text:
    return Text("unknown", "yellow") if value is None else Text(true, "green") if value else Text(false, "bold red")


def _bar_of_share(share: float | None, width: int = 24) -> Text:
    """Like _bar, but much is good."""
    if share is None:
        return Text("-")
    full = round(share * width)
    return Text("█" * full, "green") + Text("░" * (width - full), "dim") + Text(f" {100 * share:.1f} %")


def relays(status: dict[str, Any]) -> Table:
    """One line for each relay."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("RELAY", "STATE", "SESSIONS", "PACKETS", "ADDRESS"):
        table.add_column(name, justify="right" if name in ("SESSIONS", "PACKETS") else "left")
    for relay in status["relays"]:
        state = _up(relay["alive"], "up", "DOWN")
        table.add_row(Text(relay["name"]), state, _number(relay.get("sessions")), _number(relay.get("packets_relayed")), Text(relay["address"]))
    return table


def reasons(status: dict[str, Any]) -> Text:
    """Why streams are where they are, the most frequent reason first."""
    counts = sorted(((count, name) for name, count in (status.get("streams_by_reason") or {}).items() if count), reverse=True)
    return Text("streams by reason: ", "bold") + Text(", ".join(f"{_number(count)} {name}" for count, name in counts) or "none")


def _style(stream: dict[str, Any]) -> str:
    """The colour of a stream's state; offloaded is not good where its party is silent, or nothing comes back."""
    return "yellow" if stream["reason"] in (SILENT, ONE_WAY) else _STATE_STYLES.get(stream["state"], "")


def calls(page: dict[str, Any], room: int) -> Table:
    """The newest calls, a line each."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for name, right in (("AGE", True), ("CALL-ID", False), ("CALLER", False), ("CALLEE", False), ("RTP", False), ("REASONS", False)):
        table.add_column(name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    for call in list(reversed(page["calls"]))[:room]:
        media = call["media"][0] if call["media"] else {"legs": {}, "streams": []}
        rtp = [s for line in call["media"] for s in line["streams"] if s["component"] == "rtp"]
        states = Text(" ").join(Text(s["state"], _style(s)) for s in rtp)
        legs = [media["legs"].get(side) or {} for side in ("caller", "callee")]
        why = ", ".join(sorted({reason_of(s) for s in rtp if s["reason"] != s["state"]}))
        table.add_row(duration(call["age_s"]), Text(printable(call["call_id"])), *(Text(printable(leg.get("learned") or leg.get("signalled") or "-")) for leg in legs), states, Text(why or "-"))
    return table


def screen(status: dict[str, Any], page: dict[str, Any], rates: Rates, height: int) -> RenderableType:
    """The whole view for a terminal of so many lines."""
    room = max(3, height - 19 - len(status["relays"]))
    shown = min(room, len(page["calls"]))
    return Group(
        Panel(head(status, rates), title="shunt top", title_align="left", border_style="dim"),
        relays(status),
        Text(),
        reasons(status),
        Text(),
        calls(page, room),
        Text(f"{shown} newest of {page['total']} calls; q ends", "dim"),
    )


def _look(client: Client, rates: Rates) -> tuple[dict[str, Any], dict[str, Any]]:
    status = client.get("/v1/status")
    totals = {"data_plane": status["packets"].get("data_plane"), "relay": status["packets"].get("relay"), "learn": status.get("learn_notices")}
    rates.look(time.monotonic(), totals, {"data_plane": (status.get("data_plane") or {}).get("age_s")})
    page = client.get("/v1/calls", limit=1)
    offset = max(0, page["total"] - 60)
    return status, client.get("/v1/calls", limit=60, offset=offset)


@contextmanager
def _keys() -> Iterator[None]:
    """Single keys without Enter, while it lasts."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed_q(seconds: float) -> bool:
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return False
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and sys.stdin.read(1) in ("q", "Q", "\x1b")


def run(client: Client, interval: float, once: bool) -> None:
    """Show the view until q or Ctrl-C; once: one look (rates need a second one, an interval later) and end.

    An agent that stops answering is waited for. Raises Failure when it cannot be reached at the start.
    """
    console, rates = Console(highlight=False), Rates()
    status, page = _look(client, rates)
    if once:
        time.sleep(interval)
        status, page = _look(client, rates)
        console.print(screen(status, page, rates, console.height))
        return
    with _keys(), Live(screen(status, page, rates, console.height), console=console, screen=True, auto_refresh=False) as live:
        while not _pressed_q(interval):
            try:
                status, page = _look(client, rates)
                live.update(screen(status, page, rates, console.height), refresh=True)
            except Failure as failure:
                live.update(Panel(Text(f"{failure.message}\nwaiting for it; q ends"), title="shunt top", border_style="red"), refresh=True)
