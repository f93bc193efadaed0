"""How `shunt doctor` looks for the daemons and writes what it found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import click

from shunt.calls.text import printable
from shunt.cli import daemons
from shunt.cli.failure import Failure
from shunt.config.model import Config
from shunt.doctor import services
from shunt.doctor.examine import examine
from shunt.doctor.finding import VERDICTS, Group
from shunt.doctor.host.read import read

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "cyan"}
_WIDTH = max(map(len, VERDICTS))


def find(config: Config) -> list[Group]:
    """What is found on this host, by group."""
    programs = {}
    for name in services.programs(config):
        with contextlib.suppress(Failure):
            programs[name] = daemons.find(name)
    return examine(config, read(config, programs))


def write(groups: Iterable[Group]) -> None:
    """One line for each finding, and how many there are of each verdict. Colours on a terminal only."""
    count = dict.fromkeys(VERDICTS, 0)
    for group in groups:
        click.echo(group.title)
        for finding in group.findings:
            count[finding.verdict] += 1
            advice = f" -> {finding.advice}" if finding.advice else ""
            verdict = click.style(finding.verdict.ljust(_WIDTH), fg=_COLOURS[finding.verdict])
            click.echo(f"  {verdict}  {printable(f'{finding.subject}: {finding.found}{advice}')}")
        click.echo()
    click.echo(", ".join(f"{number} {verdict}" for verdict, number in count.items()))
