"""`shunt conference`: sizing."""

from __future__ import annotations

import json

import click

from shunt.conference.capacity import LAYER_ROWS, SET, Load, Tables, capacity, paper
from shunt.conference.engine import Limits
from shunt.conference.trees import Design

_EXIT_CODES = "Exit codes: 0 all is well; 2 wrong usage."
_LIMITS = Limits()


@click.group(epilog=_EXIT_CODES)
def conference() -> None:
    """Conferences: what fits into a replication engine."""


@conference.command("capacity", epilog=_EXIT_CODES)
@click.option("--participants", type=click.IntRange(2, 32_767), metavar="N", default=10, show_default=True, help="Of each meeting.")
@click.option("--senders", type=click.IntRange(1, 32_767), metavar="N", help="How many of them send; all, unless said.")
@click.option("--adapted", type=click.IntRange(0, 32_767), metavar="N", help="How many of them get less than the top quality; all, unless said.")
@click.option("--qualities", type=click.IntRange(1, 8), metavar="N", default=SET, show_default=True, help="Trees of a set. The agent's have one of sound, three of pictures and three of the screen; the paper's 3, one for each temporal layer.")
@click.option("--sender-rate", type=click.FloatRange(0, min_open=True), default=2.5e6, show_default="2.5 Mbit/s", metavar="BIT/S", help="Of all streams of one sender.")
@click.option("--line-rate", type=click.FloatRange(0, min_open=True), default=12.8e12, show_default="12.8 Tbit/s", metavar="BIT/S", help="Of the switch.")
@click.option("--trees", type=click.IntRange(9, 65_536), metavar="N", default=_LIMITS.trees, show_default=True, help="MGIDs of the engine.")
@click.option("--nodes", type=click.IntRange(2), metavar="N", default=_LIMITS.nodes, show_default=True, help="L1 nodes of the engine.")
@click.option("--rewritten", "tracked", type=click.IntRange(0), metavar="N", default=_LIMITS.tracked, show_default=True, help="Streams whose numbers can be rewritten.")
@click.option("--conference-rows", type=click.IntRange(1), metavar="N", help="Rows of `conference`: streams. Not counted unless given, as all rows of tables.")
@click.option("--copy-rows", type=click.IntRange(1), metavar="N", help="Rows of `copy`: one for each receiver of each stream.")
@click.option("--layer-rows", type=click.IntRange(1), metavar="N", help=f"Rows of `layer`: {LAYER_ROWS} for each stream with layers.")
@click.option("--relay-rows", type=click.IntRange(1), metavar="N", help="Rows of `relay`, for meetings of two: one for each stream.")
@click.option("--paper", "of_paper", is_flag=True, help="The four figures of the Scallop paper beside ours, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def capacity_command(
    participants: int, senders: int | None, adapted: int | None, qualities: int, sender_rate: float, line_rate: float, trees: int, nodes: int, tracked: int,
    conference_rows: int | None, copy_rows: int | None, layer_rows: int | None, relay_rows: int | None, of_paper: bool, as_json: bool,
) -> None:
    """How many meetings fit, for each design of replication trees, and which limit ends it."""
    if of_paper:
        rows = paper()
    else:
        load = Load(participants=participants, senders=senders, adapted=adapted, sender_rate=sender_rate)
        limits = Limits(trees=trees, nodes=nodes, tracked=tracked)
        try:
            tables = Tables(conference_rows, copy_rows, layer_rows, relay_rows)
            rows = [capacity(design, load, limits, qualities, line_rate, tables) for design in Design]
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps({"capacity": rows}, indent=2))
        return
    for row in rows:
        said = f"   the paper says {row['paper']}" if of_paper else ""
        others = ", ".join(f"{what} {count:,}" for what, count in sorted(row["allowed"].items(), key=lambda item: item[1]))
        click.echo(f"{row['design']:<10}{row['meetings']:>12,}{said}   ({others})")
