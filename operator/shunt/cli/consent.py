"""Consent to what ends or moves media: --yes, or the answer at a terminal."""

from __future__ import annotations

import sys

import click

from shunt.cli.failure import EXIT_USAGE, Failure

YES = click.option("--yes", is_flag=True, help="Do it without asking.")


def consent(will: str, yes: bool) -> None:
    """Ask at a terminal. `will`: what the command does, and to how many. Raises Failure (usage) without a terminal and without --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(f"{will}. Nothing was done: give --yes to do it", EXIT_USAGE)
    click.confirm(f"{will}. Do it?", abort=True, err=True)
