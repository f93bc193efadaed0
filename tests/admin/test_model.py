"""The client's types of the admin API against the structs that the agent serializes."""

from __future__ import annotations

import re

import pytest

from shunt.admin import model
from tests.lab.processes import ROOT

_STRUCT = re.compile(r"^#\[derive\(.*serialize.*\)\]\n(?:#\[.*\]\n)*pub struct (\w+) \{\n((?:.*\n)*?)\}", re.MULTILINE | re.IGNORECASE)
_FIELD = re.compile(r"((?:^    #\[.*\]\n)*)^    pub (?:r#)?(\w+): (\w+)", re.MULTILINE)
# Structs and types that differ in name.
_NAMES = {"CallView": "Call", "LegView": "Leg", "LineView": "Line", "HoldView": "Hold", "StreamView": "Stream"}

# The server adds these to the agent's status.
_ADDED = {"Status": {"api", "epoch", "events", "followers"}}


def _structs() -> dict[str, str]:
    texts = [(ROOT / "crates/runtime/admin-model/src" / name).read_text() for name in ("view.rs", "conference.rs", "event.rs")]
    return {_NAMES.get(name, name): body for text in texts for name, body in _STRUCT.findall(text)}


STRUCTS = _structs()


def _fields(body: str) -> set[str]:
    found: set[str] = set()
    for attributes, name, kind in _FIELD.findall(body):
        renamed = re.search(r'rename = "(\w+)"', attributes)
        if "flatten" in attributes:
            found |= _fields(STRUCTS.get(kind, ""))
        elif "serde(skip)" not in attributes:
            found.add(renamed[1] if renamed else name)
    return found


@pytest.mark.parametrize("name", sorted(STRUCTS.keys() & vars(model).keys()))
def test_the_client_has_the_fields_of_the_agent(name: str) -> None:
    assert set(vars(model)[name].__annotations__) == _fields(STRUCTS[name]) | _ADDED.get(name, set())


def test_the_document_names_every_field() -> None:
    words = set(re.findall(r"\w+", (ROOT / "docs/admin-api.md").read_text()))
    missing = {f"{name}.{field}" for name, body in STRUCTS.items() for field in _fields(body) - words}
    assert not missing
