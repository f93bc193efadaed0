"""Writes the manual pages and docs/reference.md from the commands themselves, the configuration model and manual.yaml.

manual.py FOLDER        shunt.1 and shunt.yaml.5 into FOLDER
manual.py --docs ROOT   docs/reference.md below ROOT
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml
from pydantic_core import PydanticUndefined

from shunt import __version__
from shunt.cli.main import cli
from shunt.config.model import Config
from shunt.config.section import Section

TEXT: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("manual.yaml").read_text(encoding="utf-8"))


# -- what there is ------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command with its name and a context for its usage line; running ones first."""
    parent = click.Context(cli, info_name="shunt")
    first = ["agent", "relay", "edge", "mixer", "softswitch", "operator", "check-config", "doctor"]
    for name in [*first, *sorted(set(cli.list_commands(parent)) - set(first))]:
        command = cli.get_command(parent, name)
        assert command is not None
        if command.hidden:
            continue
        inner = command.commands if isinstance(command, click.Group) else {"": command}
        for sub, found in inner.items():
            whole = f"{name} {sub}".rstrip()
            yield whole, found, click.Context(found, info_name=whole, parent=parent)


def usage(name: str, command: click.Command, context: click.Context) -> str:
    """The synopsis: "shunt why [OPTIONS] CALL-ID"."""
    return " ".join(["shunt", name, *command.collect_usage_pieces(context)])


def options(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    """(how it is written, what it does) of each option."""
    records = [p.get_help_record(context) for p in command.params if isinstance(p, click.Option)]
    return [record for record in records if record is not None]


def paragraphs(text: str) -> list[str]:
    """Text by paragraph, each on one line."""
    return [" ".join(part.split()) for part in text.strip().split("\n\n") if part.strip()]


def _nested(annotation: Any) -> tuple[type[Section] | None, bool]:
    """The section that a key holds, if any, and whether it is a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    for kind in typing.get_args(annotation):
        found, many = _nested(kind)
        if found is not None:
            return found, many or typing.get_origin(annotation) is list
    return None, False


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None or value is PydanticUndefined or value == []:
        return ""
    if isinstance(value, list):
        return "default: [" + ", ".join(map(str, value)) + "]"
    return f"default: {str(value).lower() if isinstance(value, bool) else value}"


def keys(section: type[Section] = Config, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(dotted key, meaning, default) of every key of the configuration; of a list's items as relays[].name."""
    for name, field in section.model_fields.items():
        inner, many = _nested(field.annotation)
        if inner is None:
            yield f"{prefix}{name}", field.description or "", _default(field)
            continue
        where = f"{prefix}{name}{'[]' if many else ''}"
        yield where, field.description or "", "required" if field.is_required() else ""
        yield from keys(inner, f"{where}.")


# -- manual pages -------------------------------------------------------------------------------------


def roff(text: str) -> str:
    """Text that troff prints as it is; `code` in bold."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    return "\\&" + text if text.startswith((".", "'")) else text


def _page(name: str, section: int, what: str) -> list[str]:
    return [f'.TH {name.upper()} {section} "" "shunt {__version__}" "Shunt"', ".ad l", ".nh", ".SH NAME", f"{roff(name)} \\- {roff(what)}"]


def _pairs(title: str, pairs: dict[str, str]) -> list[str]:
    lines = [f".SH {title}"]
    for name, text in pairs.items():
        lines += [".TP", f".B {roff(name)}", roff(text)]
    return lines


def man_command() -> str:
    """shunt(1)."""
    lines = _page("shunt", 1, "takes the media of SIP calls off the relay server")
    lines.append(".SH SYNOPSIS")
    for name, command, context in commands():
        arguments = " ".join(command.collect_usage_pieces(context))
        lines += [f"\\fBshunt {roff(name)}\\fR {roff(arguments)}", ".br"]
    lines.append(".SH DESCRIPTION")
    for part in paragraphs(TEXT["description"]):
        lines += [".PP", roff(part)]
    lines.append(".SH COMMANDS")
    for name, command, context in commands():
        lines.append(f".SS {roff(usage(name, command, context))}")
        for part in paragraphs(command.help or ""):
            lines += [roff(part), ".PP"]
        lines.pop()
        for written, does in options(command, context):
            lines += [".TP", f".B {roff(written)}", roff(does)]
    lines += _pairs("ENVIRONMENT", TEXT["environment"]) + _pairs("FILES", TEXT["files"]) + _pairs("SIGNALS", TEXT["signals"])
    codes = re.sub(r"^Exit codes: ", "", cli.epilog or "")
    lines.append(".SH EXIT STATUS")
    for code in codes.rstrip(".").split(";"):
        number, _, meaning = code.strip().partition(" ")
        lines += [".TP", f".B {roff(number)}", roff(meaning[0].upper() + meaning[1:] + ".")]
    lines += [".SH SEE ALSO", ".BR shunt.yaml (5),", ".BR rtpproxy (8)"]
    return "\n".join(lines) + "\n"


def man_configuration() -> str:
    """shunt.yaml(5)."""
    lines = _page("shunt.yaml", 5, "configuration of the Shunt agent and softswitch")
    lines += [
        ".SH DESCRIPTION",
        roff("YAML, read by the daemons. `shunt check-config` names every error with line and column. Keys of sections are written with dots here; [] is an item of a list."),
        ".SH KEYS",
    ]
    for key, meaning, default in keys():
        lines += [".TP", f".B {roff(key)}", roff(meaning + (f" ({default})" if default else ""))]
    lines += [".SH FILES", ".TP", ".B /etc/shunt/shunt.yaml", roff("What the units read."), ".SH SEE ALSO", ".BR shunt (1)"]
    return "\n".join(lines) + "\n"


# -- documents ----------------------------------------------------------------------------------------


def _common() -> dict[tuple[str, str], list[str]]:
    """Options that four commands or more have alike, with the commands that lack them."""
    having: dict[tuple[str, str], list[str]] = {}
    names = []
    for name, command, context in commands():
        names.append(name)
        for option in options(command, context):
            having.setdefault(option, []).append(name)
    return {option: [name for name in names if name not in found] for option, found in having.items() if len(found) >= 4}


def _whose(option: tuple[str, str], lacking: list[str]) -> str:
    """Which commands have a common option, as the shorter list."""
    having = [name for name, command, context in commands() if option in options(command, context)]
    if len(having) < len(lacking):
        return "These commands: " + ", ".join(f"`{name}`" for name in having)
    return "All commands except " + ", ".join(f"`{name}`" for name in lacking)


def _common_options() -> list[str]:
    """The options of _common, below the commands that have them."""
    grouped: dict[str, list[str]] = {}
    for option, lacking in _common().items():
        grouped.setdefault(_whose(option, lacking), []).append(f"* `{option[0]}`: {option[1]}")
    return [line for whose, lines in grouped.items() for line in (f"{whose}:", "", *lines, "")]


def reference() -> str:
    """docs/reference.md."""
    lines = [
        "# Which commands, options and configuration keys are there?",
        "",
        "After this page you know every command, option, exit code, file and configuration key. `make manual` generates it from the code and `packaging/manual.yaml`; `man shunt` and `man shunt.yaml` have the same text.",
        "",
        "## Commands",
        "",
        (cli.epilog or "").strip(),
        "",
        "### Common options",
        "",
    ]
    common = _common()
    lines += _common_options()
    for name, command, context in commands():
        lines += [f"### {usage(name, command, context).replace(' [OPTIONS]', '')}", "", *[line for part in paragraphs(command.help or "") for line in (part, "")]]
        own = [(written, does) for written, does in options(command, context) if (written, does) not in common]
        lines += [*(f"* `{written}`: {does}" for written, does in own), ""] if own else []
    for title in ("environment", "files", "signals"):
        lines += [f"## {title.capitalize()}", "", *(f"* `{name}`: {text}" for name, text in TEXT[title].items()), ""]
    lines += ["## Configuration", "", "Keys of sections are written with dots; `[]` is an item of a list.", ""]
    first: dict[tuple[str, str], str] = {}
    for section in dict.fromkeys(key.split(".")[0] for key, _, _ in keys()):
        lines += [f"### {section}", ""]
        for key, meaning, default in keys():
            if key == section:
                lines += [meaning, ""]
            elif key.split(".")[0] == section:
                alike = first.setdefault((key.rsplit(".", 1)[-1], meaning), key)
                said = f" (`{default.removeprefix('default: ')}`)" if default.startswith("default: ") else f" ({default})" if default else ""
                lines.append(f"* `{key}`: {meaning if alike == key else f'as `{alike}`.'}{said}")
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def documents(root: Path) -> dict[Path, str]:
    """The committed documents and what they should say."""
    return {root / "docs/reference.md": reference()}


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--docs", is_flag=True, help="docs/reference.md below FOLDER, instead of shunt.1 and shunt.yaml.5 in it.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def main(folder: Path, docs: bool) -> None:
    if docs:
        written = documents(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        written = {folder / "shunt.1": man_command(), folder / "shunt.yaml.5": man_configuration()}
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
