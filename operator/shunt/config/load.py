"""Reading the configuration file: YAML to model, with all errors and warnings at once, each with its line and column.

PyYAML follows YAML 1.1, where `no` is false, `010` is 8 and `12:30:45` is 45045. Here only its event
parser is used; plain scalars are resolved by YAML 1.2's core schema. Aliases are refused (they expand
exponentially), so are tags, duplicate keys and documents after the first.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml
from pydantic import BaseModel, ValidationError

from shunt.config.model import Api, Config, dotted
from shunt.config.section import Location
from shunt.errors import cause

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 32
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_MAX_DIGITS = 40
_NULLS = ("", "~", "null", "Null", "NULL")
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
# What YAML 1.1 took for a boolean; a hint where a boolean was expected.
_YAML11_BOOLEANS = ("yes", "no", "on", "off", "y", "n")


class Problem(NamedTuple):
    """One error or warning: 1-based line and column, the key's location (empty for syntax) and what is wrong."""

    line: int
    column: int
    where: Location
    message: str

    def text(self, file: str, kind: str = "") -> str:
        """One line: `shunt.yaml:4:13: relays.0.socket: …`; kind comes after the place."""
        return f"{file}:{self.line}:{self.column}: {kind}" + (f"{dotted(self.where)}: " if self.where else "") + self.message


class ConfigError(Exception):
    """The configuration cannot be used. `problems` holds every error, in file order."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.file = file
        self.problems = sorted(problems, key=lambda p: (p.line, p.column))
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """One line for each error: `shunt.yaml:4:13: relays.0.socket: …`."""
        return [problem.text(self.file) for problem in self.problems]


class _Positions:
    """Where each value and each key stands in the text."""

    def __init__(self) -> None:
        self.values: dict[Location, tuple[int, int]] = {(): (1, 1)}
        self.keys: dict[Location, tuple[int, int]] = {}
        self.problems: list[Problem] = []

    def nearest(self, where: Location, key: bool = False) -> tuple[int, int]:
        """Position of the longest known start of `where`; of its key if asked and known."""
        if key and where in self.keys:
            return self.keys[where]
        for end in range(len(where), -1, -1):
            if where[:end] in self.values:
                return self.values[where[:end]]
        return 1, 1


class _Mark(Protocol):
    """Where something is in the text, counted from 0."""

    @property
    def line(self) -> int: ...

    @property
    def column(self) -> int: ...


def _place(mark: _Mark | None) -> tuple[int, int]:
    """The same, counted from 1; the beginning where it is not known."""
    return (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)


class _Refused(Exception):
    """The text is not YAML that we take; holds the problem."""

    def __init__(self, mark: _Mark | None, message: str, where: Location = ()) -> None:
        self.problem = Problem(*_place(mark), where, message)


def load(path: str | os.PathLike[str]) -> Config:
    """Read and check a file. Raises ConfigError with every problem; OSError where the file cannot be read."""
    return _checked(_text(path), str(path))[0]


def load_for_host(path: str | os.PathLike[str]) -> tuple[Config, list[Problem], list[Problem]]:
    """The same, with warnings (another data plane than the file's own), and with what this host lacks (an interface), each in file order."""
    config, positions = _checked(_text(path), str(path))

    def placed(found: Iterable[tuple[Location, str]]) -> list[Problem]:
        return sorted(Problem(*positions.nearest(where), where, message) for where, message in found)

    return config, placed(config.warnings()), placed(_missing_interfaces(config))


def _missing_interfaces(config: Config) -> Iterator[tuple[Location, str]]:
    for where, name in config.interfaces():
        try:
            socket.if_nametoindex(name)
        except OSError:
            yield where, f"there is no interface {name} on this host"


def _text(path: str | os.PathLike[str]) -> str:
    """The file's text. Raises ConfigError where it is none; OSError."""
    file = Path(path)
    with file.open("rb") as stream:
        raw = stream.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise ConfigError(str(file), [Problem(1, 1, (), f"the file is larger than {_MAX_BYTES} bytes")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        raise ConfigError(str(file), [Problem(line, column, (), f"byte 0x{raw[error.start]:02x} is not UTF-8")]) from None
    return text


def loads(text: str, file: str = "shunt.yaml") -> Config:
    """Check configuration text; `file` is the name that errors give. Raises ConfigError with every problem."""
    return _checked(text, file)[0]


def _checked(text: str, file: str) -> tuple[Config, _Positions]:
    positions = _Positions()
    try:
        data = _read(text, positions)
    except _Refused as refused:
        raise ConfigError(file, [*positions.problems, refused.problem]) from None
    if data is None:
        raise ConfigError(file, [Problem(1, 1, (), "the file is empty; it needs at least relays or builtin_relay")])
    if not isinstance(data, dict):
        raise ConfigError(file, [Problem(*positions.nearest(()), (), "the file is not a mapping of keys such as relays:")])
    empty = _empty_sections(data, positions)
    problems = positions.problems + empty
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        told = {p.where for p in empty}
        problems += [p for p in (_problem(e, positions) for e in error.errors()) if p.where not in told]
        raise ConfigError(file, problems) from None
    problems += [Problem(*positions.nearest(where), where, message) for where, message in config.problems()]
    if problems:
        raise ConfigError(file, problems)
    return config, positions


def _empty_sections(data: dict[str, Any], positions: _Positions) -> list[Problem]:
    """A key with nothing after it could mean "on, with defaults" or "off": the operator has to say."""
    return [
        Problem(*positions.nearest((key,), key=True), (key,), "no value is given: write {} for the defaults, or remove the key")
        for key, value in data.items()
        if value is None and key in Config.model_fields
    ]


def _problem(error: Any, positions: _Positions) -> Problem:
    where: Location = tuple(error["loc"])
    kind, message = error["type"], error["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return Problem(*positions.nearest(where, key=True), where, _unknown_key(where))
    if kind == "missing":
        return Problem(*positions.nearest(where), where, "this key is missing")
    if kind == "bool_type" and str(error["input"]).lower() in _YAML11_BOOLEANS:
        message = f"write true or false, not {error['input']}"
    elif kind in ("model_type", "dict_type"):
        message = "a mapping of keys was expected"
    elif kind == "list_type":
        message = 'a list was expected: ["..."], or lines that start with "- "'
    elif kind == "int_type" and isinstance(error["input"], str):
        message = f"{message}, not the text {error['input']!r}"
    return Problem(*positions.nearest(where), where, message)


def _unknown_key(where: Location) -> str:
    known = _known_keys(where[:-1])
    close = difflib.get_close_matches(str(where[-1]), known, n=1)
    return "unknown key" + (f"; did you mean {close[0]}?" if close else f"; known here: {', '.join(known)}")


def _known_keys(where: Location) -> list[str]:
    model: Any = Config
    for step in where:
        if isinstance(step, str):
            model = _section(model.model_fields[step].annotation)
    return list(model.model_fields)


def _section(annotation: Any) -> type[BaseModel]:
    """The section inside `list[Section]` or `Section | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(_section(a) for a in annotation.__args__ if a is not type(None))


def _read(text: str, positions: _Positions) -> Any:
    """The data of the text's one document; notes positions and duplicate keys. Raises _Refused."""
    try:
        events = iter(yaml.parse(text, Loader=yaml.CSafeLoader))
        value: Any = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _Refused(event.start_mark, "a second document starts here; only one is allowed")
            elif not isinstance(event, (yaml.StreamStartEvent, yaml.StreamEndEvent, yaml.DocumentEndEvent)):
                value = _value(event, events, (), positions, 0)
        return value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark is not None and mark.line <= text.count("\n") and text.split("\n")[mark.line].lstrip(" ").startswith("\t"):
            raise _Refused(mark, "a tab: YAML indents with spaces only") from None
        detail = ": ".join(part for part in (error.context, error.problem) if part)
        raise _Refused(error.problem_mark or error.context_mark, f"not YAML: {detail}") from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position] if isinstance(error.position, int) else ""
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        refused = _Refused(None, f"a character that YAML does not allow: {error.reason}")
        refused.problem = refused.problem._replace(line=line, column=column)
        raise refused from None


def _value(event: Any, events: Any, where: Location, positions: _Positions, depth: int) -> Any:
    mark = event.start_mark
    if isinstance(event, yaml.AliasEvent):
        raise _Refused(mark, f"*{event.anchor}: aliases are not supported; write the value out", where)
    if event.tag is not None:
        raise _Refused(mark, f"the tag {event.tag!r} is not supported", where)
    if depth > _MAX_DEPTH:
        raise _Refused(mark, f"nested deeper than {_MAX_DEPTH} levels", where[:3])
    positions.values[where] = (mark.line + 1, mark.column + 1)
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[Any] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_value(event, events, (*where, len(items)), positions, depth + 1))
        return items
    mapping: dict[str, Any] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        if not isinstance(event, yaml.ScalarEvent):
            raise _Refused(event.start_mark, "a key has to be a plain word", where)
        key, place = event.value, (*where, event.value)
        key_at = _place(event.start_mark)
        if key in mapping:
            line, column = positions.keys[place]
            positions.problems.append(Problem(*key_at, place, f"this key was given before, at {line}:{column}"))
        else:
            positions.keys[place] = key_at
        mapping[key] = _value(next(events), events, place, positions, depth + 1)
    return mapping


def _scalar(event: yaml.ScalarEvent) -> Any:
    """YAML 1.2 core schema, except that octal is left text: nobody means 0o17 in a configuration."""
    text = event.value
    if event.style:
        return text
    if text in _NULLS:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if len(text) <= _MAX_DIGITS:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _HEXADECIMAL.fullmatch(text):
            return int(text, 16)
        if _FLOAT.fullmatch(text) and not re.fullmatch(r"[-+]?[0-9]+", text):
            return float(text)
    return text


def api_token(settings: Api) -> str | None:
    """The REST API's token, from the configuration or the first line of its token_file; None if there is none.

    Raises ValueError, naming the file, where it cannot be read or holds no usable token.
    """
    if settings.token_file is None:
        return settings.token
    path = settings.token_file
    try:
        with open(path, encoding="utf-8") as stream:
            token = stream.readline(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"api.token_file {path}: {cause(error)}") from None
    if len(token) < 8:
        raise ValueError(f"api.token_file {path}: its first line has {len(token)} characters; a token has at least 8")
    return token


def tls_context(settings: Api) -> ssl.SSLContext | None:
    """The REST API's certificate and key; None: it is served in the clear. Raises ValueError, naming the files, where they cannot be used."""
    if settings.tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls.certificate, settings.tls.key)
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(f"api.tls: {settings.tls.certificate} with {settings.tls.key}: {cause(error)}") from None
    return context
