"""Sizing: the paper's four figures, every limit, and the command."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from shunt.cli.capacity import SET, Design, Limits, Load, Tables, capacity, paper
from shunt.cli.main import cli


def thousands(count: int, unit: int) -> str:
    value = count / unit
    return f"{value:.0f}K" if value >= 100 else f"{value:.1f}K"


def test_the_papers_figures():
    rows = paper()
    assert [row["meetings"] for row in rows] == [533_333, 131_070, 43_690, 4_369]
    # The paper rounds trees in units of 1024, and two-party meetings in units of 1000.
    assert [thousands(row["meetings"], 1000 if row["design"] == "two-party" else 1024) for row in rows] == [row["paper"] for row in rows]
    assert [row["bound_by"] for row in rows] == ["line rate", "trees", "trees", "trees"]


@pytest.mark.parametrize(
    ("design", "load", "limits", "bound_by", "meetings"),
    [
        (Design.TWO_PARTY, Load(sender_rate=6.4e6), Limits(), "line rate", 1_000_000),
        (Design.NRA, Load(participants=1000, sender_rate=1, senders=1), Limits(), "L1 nodes", 16_777),
        (Design.NRA, Load(participants=10, sender_rate=1), Limits(streams=2**16), "stream numbers", 3_276),
        (Design.RA_R, Load(participants=3, sender_rate=1e6), Limits(), "rewritten streams", 10_922),
        (Design.RA_SR, Load(participants=10), Limits(), "rewritten streams", 728),
        (Design.RA_SR, Load(participants=10, adapted=1), Limits(), "trees", 4_369),
        (Design.RA_R, Load(participants=50, adapted=0), Limits(), "line rate", 435),
    ],
)
def test_each_limit_ends_it_somewhere(design, load, limits, bound_by, meetings):
    found = capacity(design, load, limits)
    assert (found["bound_by"], found["meetings"]) == (bound_by, meetings), found


ROWS = Tables(conference=65_536, copy=65_536, layer=65_536, relay=40_000)  # of conference-tofino2


@pytest.mark.parametrize(
    ("design", "load", "tables", "bound_by", "meetings"),
    [
        (Design.TWO_PARTY, Load(participants=2, sender_rate=1), ROWS, "rows of relay", 10_000),
        (Design.NRA, Load(participants=3, sender_rate=1), ROWS, "rows of layer", 1_040),
        (Design.NRA, Load(participants=3, sender_rate=1, layered_sources=0), ROWS, "rows of copy", 5_461),
        (Design.NRA, Load(participants=3, sender_rate=1, layered_sources=0), Tables(conference=8_192, copy=65_536), "rows of conference", 1_365),
        (Design.RA_SR, Load(participants=10, sender_rate=1), ROWS, "rows of layer", 312),
        (Design.RA_SR, Load(participants=10, sender_rate=1), Tables(copy=65_536), "rows of copy", 364),
        (Design.RA_SR, Load(participants=10, sender_rate=1), Tables(), "rewritten streams", 728),
        (Design.NRA, Load(participants=3, sender_rate=1), Tables(), "trees", 131_068),
    ],
)
def test_tables_end_it_before_the_engine_does(design, load, tables, bound_by, meetings):
    found = capacity(design, load, qualities=SET, tables=tables)
    assert (found["bound_by"], found["meetings"]) == (bound_by, meetings), found


def test_no_such_meeting():
    with pytest.raises(ValueError, match="at least two participants"):
        capacity(Design.NRA, Load(participants=1))
    with pytest.raises(ValueError, match="65536 RIDs of a tree are for 32767 participants"):
        capacity(Design.NRA, Load(participants=40_000))


def test_command():
    runner = CliRunner()
    done = runner.invoke(cli, ["conference", "capacity", "--paper", "--json"])
    assert done.exit_code == 0, done.output
    assert [row["meetings"] for row in json.loads(done.output)["capacity"]] == [533_333, 131_070, 43_690, 4_369]
    done = runner.invoke(cli, ["conference", "capacity", "--participants", "10", "--adapted", "1"])
    assert done.exit_code == 0 and [line.split()[0] for line in done.output.splitlines()] == ["two-party", "NRA", "RA-R", "RA-SR"]
    assert "1,872" in done.output, "what the agent lays out"
    done = runner.invoke(cli, ["conference", "capacity", "--participants", "10", "--adapted", "1", "--qualities", "3"])
    assert "4,369" in done.output
    done = runner.invoke(cli, ["conference", "capacity", "--participants", "3", "--conference-rows", "9", "--copy-rows", "12", "--layer-rows", "630", "--relay-rows", "12", "--json"])
    assert [(row["meetings"], row["bound_by"]) for row in json.loads(done.output)["capacity"]] == [(3, "rows of relay"), *[(1, "rows of conference")] * 3]
    done = runner.invoke(cli, ["conference", "capacity", "--participants", "32767", "--trees", "9", "--nodes", "1"])
    assert done.exit_code == 2
    assert "conference" in runner.invoke(cli, ["--help"]).output
    assert "capacity" in runner.invoke(cli, ["conference", "--help"]).output
