"""Folders and files: rights by mode, room, what will be made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shunt.doctor.facts import Account, Node, Place, Unknown
from shunt.doctor.finding import Finding
from shunt.doctor.storage import LEAST_FREE, ROOM, check, obstacle, size
from tests.doctor.hosts import GID, OWN, ROOT_NODE, SHUNT, UID, VAR, by_subject, config, facts, place

JOURNAL, CDR = "journal.path /var/lib/shunt", "cdr.csv /var/log/shunt"


def found(path: str = "/var/lib/shunt", **changes: Any) -> dict[str, Finding]:
    places = dict(facts().places) | {path: place(path, **changes)}
    return by_subject(check(config(), facts(places=places)))


def test_room() -> None:
    assert found()[JOURNAL] == Finding("ok", JOURNAL, "shunt can write, 10 GiB free")
    assert found(free=LEAST_FREE - 1)[JOURNAL].verdict == "fail"
    assert found(free=ROOM - 1)[JOURNAL].verdict == "warn"
    assert found(free_files=0)[JOURNAL].verdict == "fail"
    assert found(free_files=None)[JOURNAL].verdict == "ok"
    assert found(read_only=True)[JOURNAL].verdict == "fail"


def test_missing_folders() -> None:
    lib = Node("/var/lib", True, 0o40777, 0, 0)
    made = found(nodes=(ROOT_NODE, VAR, lib))[JOURNAL]
    assert made.verdict == "ok" and "it will be created" in made.found
    assert found(nodes=(ROOT_NODE, VAR))[JOURNAL].verdict == "fail"
    assert found("/var/log/shunt", nodes=(ROOT_NODE, VAR, replace(lib, path="/var/log")))[CDR].verdict == "fail", "nobody makes the folder of records"
    assert "is not a folder" in found(nodes=(ROOT_NODE, VAR, Node("/var/lib", False, 0o100666, 0, 0)))[JOURNAL].found


@pytest.mark.parametrize(
    ("node", "account", "free"),
    [
        (OWN, SHUNT, True),
        (replace(OWN, mode=0o40550), SHUNT, False),
        (replace(OWN, uid=0, mode=0o40770), SHUNT, True),
        (replace(OWN, uid=0), SHUNT, False),
        (replace(OWN, uid=0, gid=0, mode=0o40757), SHUNT, True),
        # The first class that fits decides, even if a later one allows more.
        (replace(OWN, mode=0o40077), SHUNT, False),
        (replace(OWN, uid=0, mode=0o40000), Account("root", 0, frozenset(), ""), True),
    ],
)
def test_rights_to_write(node: Node, account: Account, free: bool) -> None:
    tried = Place(node.path, (ROOT_NODE, VAR, node), False, 1 << 30, None)
    assert (obstacle(tried, account) is None) == free


def test_every_folder_on_the_way_has_to_let_one_in() -> None:
    shut = Place("/var/own", (ROOT_NODE, replace(VAR, mode=0o40700), OWN), False, 1 << 30, None)
    assert obstacle(shut, SHUNT) == "shunt may not enter /var (mode 0700)"


def test_files_that_daemons_read() -> None:
    asked = config(("data_plane: {}", "data_plane: {}\napi: {token_file: /etc/token}"))
    subject = "api.token_file /etc/token"

    def token(problem: str | None, mode: int, gid: int) -> Finding:
        there = Place("/etc/token", (ROOT_NODE, Node("/etc/token", False, mode, 0, gid)), False, 1 << 30, None)
        return by_subject(check(asked, facts(places=dict(facts().places) | {"/etc/token": there}, readable={"/etc/token": problem})))[subject]

    assert token(None, 0o100640, GID) == Finding("ok", subject, "shunt can read it")
    assert "may not read" in token(None, 0o100600, 0).found
    assert token("No such file or directory", 0o100640, GID).verdict == "fail"
    assert UID != GID


def test_what_cannot_be_read_is_unknown() -> None:
    places = dict(facts().places) | {"/var/lib/shunt": Unknown("Permission denied")}
    assert by_subject(check(config(), facts(places=places)))[JOURNAL] == Finding("unknown", JOURNAL, "Permission denied")


def test_sizes() -> None:
    assert [size(n) for n in (0, 1023, 1024, 10 << 20, 3 << 29, 5 << 50)] == ["0 B", "1023 B", "1.0 KiB", "10 MiB", "1.5 GiB", "5120 TiB"]
