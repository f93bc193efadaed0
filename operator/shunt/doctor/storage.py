"""Checks of folders and files: may the daemons write there, is there room, can they read their secrets."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from shunt.config.model import Config
from shunt.doctor.facts import Account, Facts, Node, Place, Unknown
from shunt.doctor.finding import Finding

_MIB = 1 << 20
LEAST_FREE = 16 * _MIB
"""Bytes below which the journal and the event log soon cannot be written."""
ROOM = 256 * _MIB
"""Bytes that are enough for the event log (64 MiB), the journal and some days of records."""


def folders(config: Config) -> dict[str, str]:
    """Folders that daemons write to, by the configuration's key. A folder of `admin`, `journal`, `operator` or a conference's state may be missing itself, not the one it lies in."""
    found = {}
    if config.serves_agent:
        found["admin.events"] = config.admin.events
        found["operator.state_dir"] = config.operator.state_dir
        if config.journal is not None and config.journal.redis is None:
            found["journal.path"] = os.path.dirname(config.journal.path)
        if config.conference is not None and (config.journal is None or config.journal.redis is None):
            found["conference.state"] = config.conference.state
    for name, section in (("cdr", config.cdr), ("conference.cdr", config.conference.cdr if config.conference is not None else None)):
        for key in ("csv", "json_lines"):
            if section is not None and (path := getattr(section, key)) is not None:
                found[f"{name}.{key}"] = os.path.dirname(path)
    return found


def secrets(config: Config) -> dict[str, str]:
    """Files that daemons read, by the configuration's key: certificates, keys, tokens, passwords."""
    found = {"api.token_file": config.api.token_file}
    if config.journal is not None:
        found["journal.redis_password_file"] = config.journal.redis_password_file
    for name, section in (("data_plane.tls", config.data_plane), ("softswitch.tls", config.softswitch)):
        if section is not None and section.tls is not None:
            found |= {f"{name}.{key}": getattr(section.tls, key) for key in ("ca_file", "certificate_file", "key_file")}
    return {key: path for key, path in found.items() if path is not None}


def check(config: Config, facts: Facts) -> Iterator[Finding]:
    """Each folder, then each file that daemons read."""
    for key, path in folders(config).items():
        yield _folder(key, path, facts.places[path], facts.account)
    for key, path in secrets(config).items():
        problem = facts.readable[path]
        reader = Account("root", 0, frozenset({0}), "") if key.startswith("softswitch.") else facts.account
        place = facts.places[path]
        if problem is None and isinstance(place, Place):
            problem = obstacle(place, reader, writing=False)
        if problem is None:
            yield Finding("ok", f"{key} {path}", f"{reader.name} can read it")
        else:
            yield Finding("fail", f"{key} {path}", problem, f"chgrp shunt {path}, chmod 640 {path}; or correct {key}")


def _folder(key: str, path: str, place: Place | Unknown, account: Account) -> Finding:
    subject = f"{key} {path}"
    if isinstance(place, Unknown):
        return Finding("unknown", subject, place.reason)
    missing = os.path.relpath(path, place.nodes[-1].path).count("/") + 1 if not place.exists else 0
    if missing > 1 or (missing and ("csv" in key or "json_lines" in key)):
        return Finding("fail", subject, f"there is no folder {os.path.dirname(path) if missing > 1 else path}", f"install -d -o {account.name} -m 750 {path}")
    if (problem := obstacle(place, account)) is not None:
        return Finding("fail", subject, problem, f"chown {account.name} {place.nodes[-1].path}; the user is {account.source}")
    if place.read_only:
        return Finding("fail", subject, "the file system is read-only", "mount it read-write, or look in the kernel's log for the fault that made it so")
    if place.free_files == 0:
        return Finding("fail", subject, "the file system has no inodes left", "remove files")
    room = f"{size(place.free)} free"
    if place.free < LEAST_FREE:
        return Finding("fail", subject, room, "free space: journal, events and records cannot be written soon")
    if place.free < ROOM:
        return Finding("warn", subject, room, f"free space: {size(ROOM)} suffice for events (64 MiB), journal and some days of records")
    return Finding("ok", subject, f"{account.name} can write, {room}" + ("; it will be created" if missing else ""))


def size(count: int) -> str:
    """Bytes in binary units."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"


def _allows(node: Node, account: Account, bits: int) -> bool:
    """Whether the mode gives the account these rights (4 read, 2 write, 1 search). Access control lists are not looked at."""
    shift = 6 if node.uid == account.uid else 3 if node.gid in account.gids else 0
    return (node.mode >> shift) & bits == bits


def obstacle(place: Place, account: Account, writing: bool = True) -> str | None:
    """What keeps an account from writing into a folder (or making it), or from reading a file; None: nothing."""
    last = place.nodes[-1]
    if writing and not last.is_folder:
        return f"{last.path} is not a folder"
    if account.uid == 0:
        return None
    for node in place.nodes[:-1]:
        if not _allows(node, account, 1):
            return f"{account.name} may not enter {node.path} (mode {stat.S_IMODE(node.mode):04o})"
    if not _allows(last, account, 3 if writing else 4):
        return f"{account.name} may not {'write to' if writing else 'read'} {last.path} (mode {stat.S_IMODE(last.mode):04o})"
    return None
