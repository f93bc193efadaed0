"""Folders, files, accounts and systemd units."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path

from shunt.doctor.facts import Account, Node, Place, Unit
from shunt.errors import cause

_UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
"""Earlier ones win (systemd.unit(5))."""
_UNITS = ("shunt-softswitch", "shunt-relay", "shunt-edge", "shunt-edge-local", "shunt-mixer", "shunt-agent", "shunt-operator", "shunt-standby", "shunt-standby-operator")


def place(path: str) -> Place:
    """A path as far as it exists; links are followed. Raises OSError."""
    nodes: list[Node] = []
    for each in [*reversed(Path(path).parents), Path(path)]:
        try:
            found = os.stat(each)
        except (FileNotFoundError, NotADirectoryError):
            break
        nodes.append(Node(str(each), stat.S_ISDIR(found.st_mode), found.st_mode, found.st_uid, found.st_gid))
    system = os.statvfs(nodes[-1].path)
    return Place(path, tuple(nodes), bool(system.f_flag & os.ST_RDONLY), system.f_bavail * system.f_frsize, system.f_favail if system.f_files else None)


def unreadable(path: str) -> str | None:
    """Why a file cannot be read by this process; None: it can, or only its rights are in the way, which are judged by its mode."""
    try:
        with open(path, "rb") as stream:
            stream.read(1)
    except PermissionError:
        return None
    except OSError as error:
        return cause(error)
    return None


def account(uid: int, source: str) -> Account:
    """A user with its groups; a number without a name is its own name."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(f"uid {uid}", uid, frozenset(), source)
    return Account(entry.pw_name, uid, frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid)), source)


def user(name: str) -> int | None:
    """A user's id; None: there is none such."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def group(name: str) -> int | None:
    """A group's id; None: there is none such."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def parse_settings(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Settings of [Service] of a unit file and its drop-ins, in order; an empty value takes the former ones back (systemd.service(5))."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        section = ""
        for line in text.replace("\\\n", " ").splitlines():
            line = line.strip()
            if line.startswith("[") and line.endswith("]"):
                section = line[1:-1]
            elif section == "Service" and line and line[0] not in "#;" and "=" in line:
                key, _, value = (part.strip() for part in line.partition("="))
                # An empty bounding set is a set without members, which is not the same as none given.
                found[key] = (*found.get(key, ()), value) if value else ()
    return found


def units(folders: Iterable[str] = _UNIT_FOLDERS) -> tuple[Unit, ...]:
    """Shunt's installed services; files that cannot be read are left out."""
    folders, found = tuple(folders), []
    for name in (f"{unit}.service" for unit in _UNITS):
        path = next((path for folder in folders if (path := Path(folder, name)).is_file()), None)
        if path is None:
            continue
        drop_ins: dict[str, Path] = {}
        for folder in reversed(folders):
            drop_ins |= {each.name: each for each in Path(folder, f"{name}.d").glob("*.conf")}
        texts = [each.read_text(encoding="utf-8", errors="replace") for each in [path, *(drop_ins[key] for key in sorted(drop_ins))] if os.access(each, os.R_OK)]
        found.append(Unit(name, str(path), parse_settings(texts)))
    return tuple(found)
