"""The last events of each conference, for who watches it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from shunt.events.bus import CONFERENCE, Event
from shunt.operator.conferences import names

KINDS = (CONFERENCE,)
_EVENTS = 100  # of each conference
_CONFERENCES = 10_000
_NOT_SHOWN = frozenset({"conference", "signalling", "joined_us"})


def _target(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A level counts the layers that go, 0 for none; a target is the highest of them."""
    level = {"target": facts["level"], "before": facts["before"]}
    shown = {name: None if count == 0 else count - 1 for name, count in level.items()}
    return {name: value for name, value in facts.items() if name not in ("level", "before")} | shown | {"estimate": facts["estimate_bits_per_s"]}


def _downlink(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "participant"} | {"sender": facts["participant"]}


_SHOWN: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"target": _target, "downlink": _downlink}


class Happened:
    """A subscriber of the bus, for events of KINDS. Beyond a number of conferences the one that was quiet for longest is forgotten."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[dict[str, Any]]] = OrderedDict()
        self._present: dict[str, dict[str, None]] = {}

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        name = str(event.facts["conference"])
        if event.what == "created":
            self._of.pop(name, None)
        kept = self._of.setdefault(name, deque(maxlen=_EVENTS))
        self._of.move_to_end(name)
        if len(self._of) > _CONFERENCES:
            forgotten, _ = self._of.popitem(last=False)
            self._present.pop(forgotten, None)
        self._follow(name, event)
        facts = _SHOWN.get(event.what, dict)(event.facts)
        if event.facts.get("signalling") is not None:
            facts = facts | {"name": names.kept(str(event.facts["participant"]), event.facts["signalling"])}
        facts = {key: value for key, value in facts.items() if key not in _NOT_SHOWN and not (event.what == "left" and key == "media")}
        kept.append({"time": datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds"), "what": event.what, **facts})

    def _follow(self, name: str, event: Event) -> None:
        """Who is in it."""
        if event.what == "ended":
            self._present.pop(name, None)
        elif event.what == "left":
            self._present.get(name, {}).pop(str(event.facts["participant"]), None)
        elif event.what in ("created", "joined"):
            present = self._present.setdefault(name, {})
            if event.what == "joined":
                present[str(event.facts["participant"])] = None

    def present(self) -> dict[str, list[str]]:
        """The conferences that have not ended, and who is in each."""
        return {name: list(participants) for name, participants in self._present.items()}

    def of(self, conference: str) -> list[dict[str, Any]]:
        """The last events of a conference, oldest first."""
        return list(self._of.get(conference, ()))
