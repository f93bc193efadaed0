"""The agent's status as the REST API gives it. Pure functions.

What the agent does not tell is null. Of an agent that does not answer the last status is given, with its age; what can have changed since, as whether a
relay answers, is null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shunt.calls.kinds import State
from shunt.calls.reasons import NO_DATA_PLANE

_OLD_S = 10.0  # the agent reads the data plane's counters every two seconds


def status_view(status: Mapping[str, Any], age_s: float, error: str | None) -> dict[str, Any]:
    """status: of the admin API; age_s: how long ago it was read; error: why it could not be read anew, None if it was."""
    fresh = error is None
    relays = [dict(relay) | ({} if fresh else {"alive": None}) for relay in status["relays"]]
    hep, journal = status["hep"], status["journal"]
    return {
        "version": status["version"],
        "agent": {"reachable": fresh, "age_s": round(age_s, 3), "error": error, "epoch": status["epoch"], "pid": status["pid"]},
        "ready": status["ready"] if fresh else None,
        "role": "alone" if status["role"] == "single" else status["role"],
        "uptime_s": round(status["uptime_s"], 3),
        "control": status["control"],
        "relays": relays,
        "data_plane": _data_plane(status["data_plane"], fresh),
        "calls": status["calls"],
        "conference_count": status["conferences"],
        "ended": dict(status["ended"]),
        "streams": count_streams(status["streams"]),
        "streams_by_reason": _by_reason(status["streams"]),
        "packets": {"data_plane": _plane_packets(status["data_plane"], fresh), "relay": _sum(relay["packets_relayed"] for relay in relays)},
        "learn_notices": status["learn_notices"],
        "commands": status["commands"]["by_verb"],
        "sip_trace": None if hep is None else dict(hep),
        "media_timeouts": status["media_timeouts"],
        "source_mismatches": status["source_mismatches"],
        "journal_failures": None if journal is None else journal["failures"],
        "journal_pending": None if journal is None else journal["pending"],
        "calls_to_read": status["calls_to_restore"],
        "table_reconciled": bool(status["data_plane"] and status["data_plane"]["reconciled"]) if fresh else None,
        "drain": drain_view(status["drain"]),
        "limits": dict(status["limits"]),
        "table_batches": None if (writes := status["table_writes"]) is None else dict(writes),
    }


def _data_plane(plane: Mapping[str, Any] | None, fresh: bool) -> dict[str, Any] | None:
    if plane is None:
        return None
    names = ("target", "connected", "name", "entries", "capacity", "orphans", "lacks", "reconciled", "age_s")
    return {name: plane[name] for name in names} | {"ours": plane["planned"]} | ({} if fresh else {"connected": None})


def _plane_packets(plane: Mapping[str, Any] | None, fresh: bool) -> int | None:
    """What the data plane has relayed; None where that is not known of this moment."""
    if plane is None or not fresh or not plane["connected"] or plane["age_s"] is None or plane["age_s"] > _OLD_S:
        return None
    packets: int | None = plane["packets_relayed"]
    return packets


def _sum(values: Any) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def count_streams(counts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many RTP streams are offloaded, learning, or on the relay for another reason."""
    found: Counter[str] = Counter(offloaded=0, learning=0, relayed=0)
    for count in counts:
        state = count["state"]
        if state == State.RELEASED.value:
            continue
        if state == State.OFFLOADED.value:
            found["offloaded"] += count["streams"]
        elif state in (State.LEARNING.value, State.ALLOCATED.value) and count["reason"] != NO_DATA_PLANE:
            found["learning"] += count["streams"]
        else:
            found["relayed"] += count["streams"]
    return dict(found)


def _by_reason(counts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for count in counts:
        if count["state"] != State.RELEASED.value:
            found[count["reason"]] += count["streams"]
    return dict(found)


def drain_view(drain: Mapping[str, Any]) -> dict[str, Any]:
    """{stop, since_s, calls, entries, empty}: empty says that maintenance may begin."""
    left = drain["entries"] if drain["stop"] == "offloads" else drain["calls"] + drain["entries"]
    return dict(drain) | {"empty": drain["stop"] is not None and left == 0}
