"""A call to a conference, as it is kept with its participant for a restart of either side. No I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from aiosipua import Dialog

from shunt.operator.conferences import names

_FORMAT = 1
_DIALOG = ("local_tag", "remote_tag", "local_uri", "remote_uri", "remote_target", "route_set", "local_cseq", "remote_cseq")


@dataclass(slots=True)
class Seat:
    """Whose call it is, and what later requests need.

    participant, name: the identifier at the agent, and the name for people;
    source: where its requests come from; lines: which medium each description is; addresses: those of the last offer; ufrag: of its ICE; session_s: the
    interval of its session timer (RFC 4028), None without; refresher: "uac" where the caller refreshes; answer: what a browser was answered last, whose media
    ends at an edge; empty: it is no browser; version: of the session description that it was sent last.
    """

    conference: str
    participant: str
    call_id: str
    source: tuple[str, int]
    lines: list[str | None] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    ufrag: str = ""
    session_s: int | None = None
    refresher: str = "uas"
    answer: str = ""
    version: int = 1
    dialog: dict[str, Any] = field(default_factory=dict)
    name: str = ""

    def note(self, dialog: Dialog) -> None:
        """Take over where a dialog is now."""
        self.dialog = {name: getattr(dialog, name) for name in _DIALOG}

    def resumed(self) -> Dialog:
        """The dialog, confirmed."""
        made = Dialog(call_id=self.call_id, **self.dialog)
        made.confirm()
        return made

    def kept(self) -> dict[str, Any]:
        """As JSON, for the participant's `signalling`."""
        call = asdict(self) | {"source": list(self.source)}
        return {"format": _FORMAT, names.KEY: call.pop("name"), "sip": call}

    def kept_for(self, participant: str, name: str, answer: str) -> dict[str, Any]:
        """The same, of a browser's call, once it is known who it is and what it is answered."""
        self.participant, self.name, self.answer = participant, name, answer
        return self.kept()

    @classmethod
    def read(cls, kept: Any) -> Seat | None:
        """The inverse of kept(); None: it is nobody's who has dialled in. Raises ValueError for what cannot be read."""
        if not isinstance(kept, dict) or "sip" not in kept:
            return None
        if kept.get("format") != _FORMAT:
            raise ValueError(f"format {kept.get('format')}, this version reads {_FORMAT}")
        given = kept["sip"]
        try:
            known = {one.name: given[one.name] for one in fields(cls) if one.name in given}
            host, port = known.pop("source")
            seat = cls(source=(str(host), int(port)), **known)
            seat.name = names.kept(seat.participant, kept)
            seat.resumed()
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return seat
