"""README and start pages: short, and every command, option, unit, key and setting in them exists. test_pages_on_a_host.py runs them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from shunt.cli.main import cli
from tests.packaging import pages, units

ROOT = pages.ROOT
ALL = [command for page in pages.PAGES for command in (*pages.commands(page), *pages.commands_in_text(page))]


@pytest.mark.parametrize("page", [*pages.PAGES, "docs/start/rooms.md", "docs/start/room-clients.md"])
def test_a_page_is_short(page: str) -> None:
    words = len((ROOT / page).read_text(encoding="utf-8").split())
    assert words <= (700 if page == "README.md" else 400), f"{page} has {words} words"


@pytest.mark.parametrize("page", pages.PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert {block.language for block in pages.blocks(page)} <= pages.LANGUAGES, page
    assert text.count("```") == 2 * len(pages.blocks(page)), f"{page}: a fence inside a list or without an end"
    assert not re.search(r"^    \S", pages.text_of(page), re.MULTILINE), f"{page}: an indented block, which no test runs"
    files = [block for block in pages.blocks(page) if block.language in ("yaml", "ini")]
    assert all(block.file for block in files), f"{page}: the paragraph before a file's block ends with its path"


def test_every_command_is_run_or_has_a_reason() -> None:
    run = {command for page in pages.PAGES for command in pages.commands(page)} | set(pages.IN_TEXT)
    assert [command for command in ALL if command not in run] == []
    assert [command for command in (*pages.NOT_RUN, *pages.IN_TEXT) if command not in ALL] == [], "no page has it any more"


def test_every_option_of_shunt_exists() -> None:
    found = [shlex.split(command) for command in ALL if command.startswith("shunt ")]
    assert len(found) > 10
    for _, name, *arguments in found:
        if name.startswith("-"):
            assert any(name in option.opts for option in cli.params), name
            continue
        assert name in cli.commands, name
        command = cli.commands[name]
        try:
            command.make_parser(click.Context(command)).parse_args(arguments)
        except click.UsageError as error:
            pytest.fail(f"shunt {name} {' '.join(arguments)}: {error.format_message()}")


def test_every_unit_and_every_make_target_exists() -> None:
    rules = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "Makefile", *ROOT.glob("*/*.mk")))
    for command in ALL:
        words = command.split()
        if words[0] == "systemctl":
            assert [word for word in words if word.startswith("shunt-") and f"{word}.service" not in units.NAMES] == [], command
        if words[0] == "make":
            assert re.search(rf"^{re.escape(words[1])}:", rules, re.MULTILINE), command


def test_every_configuration_is_taken(tmp_path: Path) -> None:
    configurations = [(page, block) for page in pages.PAGES for block in pages.blocks(page) if block.language == "yaml"]
    assert len(configurations) == 3
    for page, block in configurations:
        (tmp_path / "shunt.yaml").write_text(block.text.replace("eth0", "lo"))
        done = CliRunner().invoke(cli, ["check-config", str(tmp_path / "shunt.yaml")])
        assert done.exit_code == 0 and "no errors" in done.output, f"{page}: {done.output}"


@pytest.mark.parametrize("server", ["opensips", "kamailio"])
def test_every_line_for_a_sip_server_is_in_its_shipped_configuration(server: str) -> None:
    for page in pages.PAGES:
        name = f"{server}-rtpengine.cfg" if page.endswith("rtpengine.md") else f"{server}.cfg"
        shipped = [line.split("  #")[0].rstrip() for line in (ROOT / "opensips-config" / name).read_text(encoding="utf-8").splitlines()]
        wanted = [line for block in pages.blocks(page) if block.language == server for line in block.lines]
        assert [line for line in wanted if line not in shipped] == [], f"{page} and {name}"
